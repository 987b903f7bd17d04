// SPDX-License-Identifier: Apache-2.0
/*
 * latest.c - which checkpoint "latest" and "latest:JOB" are
 *
 * A store may hold checkpoints of several jobs, and the newest one may be of any of them. So "latest" alone
 * is taken where there is one job; else it is refused, with the list. A job is told apart by its host, its
 * id there and its command, since ids come again.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt_bring.h"
#include "store_tool_i.h"
#include "watch.h"

#define LISTED	8

struct of_job {
	char *host, *job, *command;	/* NULL: not said */
	char id[STORE_ID];		/* its newest checkpoint */
	uint64_t time_ns;
};

struct jobs {
	struct store *s;
	struct of_job *job;
	size_t n;
};

static bool same(const char *a, const char *b)
{
	return !strcmp(a ?: "", b ?: "");
}

static void free_job(struct of_job *j)
{
	free(j->host);
	free(j->job);
	free(j->command);
}

/* Checkpoints come oldest first, so that a later one of the same job replaces it; others are skipped. */
static int see(void *arg, const char *id, uint64_t time_ns)
{
	struct jobs *l = arg;
	struct store_checkpoint *c;
	struct of_job new = { .time_ns = time_ns }, *more;
	const char *json;
	size_t i = 0;

	if (!time_ns || store_checkpoint_open(l->s, id, &c))
		return 0;
	json = store_checkpoint_json(c);
	new.host = store_json_string(json, "host");
	new.job = store_json_string(json, "job");
	new.command = store_json_string(json, "command");
	store_checkpoint_close(c);
	snprintf(new.id, sizeof(new.id), "%s", id);
	while (i < l->n && !(same(l->job[i].host, new.host) && same(l->job[i].job, new.job) &&
			     same(l->job[i].command, new.command)))
		i++;
	if (!new.job) {
		free_job(&new);
		return 0;
	}
	if (i < l->n) {		/* to the end: the list is in the order of time */
		free_job(&l->job[i]);
		memmove(&l->job[i], &l->job[i + 1], (--l->n - i) * sizeof(new));
	}
	more = realloc(l->job, (l->n + 1) * sizeof(new));
	if (!more) {
		free_job(&new);
		return -ENOMEM;
	}
	l->job = more;
	more[l->n++] = new;
	return 0;
}

/* Whole lines, malloc'ed, or NULL. */
static char *list_jobs(const struct jobs *l, const char *dir)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	for (size_t i = l->n; i-- && l->n - i <= LISTED;) {
		const struct of_job *j = &l->job[i];
		time_t at = j->time_ns / 1000000000;
		char when[32], job[40], command[128];
		struct tm tm;

		strftime(when, sizeof(when), "%F %T", localtime_r(&at, &tm));
		fprintf(out, "  latest:%s is %.8s of %s: %s\n", watch_clip(job, sizeof(job), j->job), j->id, when,
			watch_clip(command, sizeof(command), j->command ?: "-"));
	}
	if (l->n > LISTED)
		fprintf(out, "  and %zu more: `singvgpu store ls --store %s`\n", l->n - LISTED, dir);
	if (!fclose(out) && *text)
		return text;
	free(text);
	return NULL;
}

/* The newest of this job, NULL: of the only one. NULL: *why says why there is none. */
static const struct of_job *choose(const struct jobs *l, const char *dir, const char *job, struct why *why)
{
	const struct of_job *found = NULL;

	for (size_t i = 0; i < l->n; i++)
		if (!job || same(l->job[i].job, job))
			found = &l->job[i];
	if (job && !found)
		why_set(why, -ENOENT, "the store %s has no checkpoint of a job %s%s", dir, job, l->n ? "; it has" : "");
	else if (!job && l->n > 1)
		why_set(why, -ENOENT, "the store %s has checkpoints of %zu jobs, and \"latest\" does not say of which: "
			"give one of these, or an id", dir, l->n);
	else if (!found)
		why_set(why, -ENOENT, "the store %s has no checkpoint of a job", dir);
	return !found || (!job && l->n > 1) ? NULL : found;
}

int bring_latest(struct store *s, const char *dir, const char *word, char id[STORE_ID], char **list, struct why *why)
{
	struct jobs l = { .s = s };
	const struct of_job *j;
	int err;

	if (strcmp(word, "latest") && strncmp(word, "latest:", 7))
		return -EINVAL;
	err = store_list(s, see, &l);
	if (err) {
		why_set(why, err, "%s", err == -ENOMEM ? strerror(ENOMEM) : store_why()->text);
	} else {
		j = choose(&l, dir, word[6] ? word + 7 : NULL, why);
		if (j)
			memcpy(id, j->id, STORE_ID);
		else
			*list = list_jobs(&l, dir);
		err = j ? 0 : -ENOENT;
	}
	for (size_t i = 0; i < l.n; i++)
		free_job(&l.job[i]);
	free(l.job);
	return err;
}
