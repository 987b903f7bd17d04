// SPDX-License-Identifier: Apache-2.0
/*
 * past.c - what checkpoints and restores add to a job's history, and the history's way through a store
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt_past.h"
#include "history.h"

static uint64_t mono_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

/* The wall clock when the phases began; *ns: since then. */
static unsigned long long began(const struct phases *ps, unsigned long long *ns)
{
	*ns = mono_ns() - ps->begun_ns;
	return wall_ns() - *ns;
}

static void put_phase(const struct phases *ps, const struct phase *p, uint64_t now, FILE *out)
{
	fputs("phase ", out);
	facts_word(out, p->name);
	fprintf(out, " %llu %llu %llu %llu\n", (unsigned long long)(p->begun_ns - ps->begun_ns),
		(unsigned long long)((p->ended_ns ?: now) - p->begun_ns),
		(unsigned long long)(p->unit ? 0 : p->done), (unsigned long long)p->stored);
}

/* Of more ranks than an event has room for, all phases of a kind are one. */
static void put_phases(struct phases *ps, FILE *out)
{
	struct phase sum[HISTORY_PHASES];
	uint64_t now;

	pthread_mutex_lock(&ps->lock);
	now = mono_ns();		/* later than what has begun while we waited */
	for (int i = 0; i < ps->n && ps->n <= HISTORY_PHASES; i++)
		put_phase(ps, &ps->phase[i], now, out);
	if (ps->n > HISTORY_PHASES)
		for (int i = 0, n = phases_kinds(ps, sum, HISTORY_PHASES); i < n; i++)
			put_phase(ps, &sum[i], now, out);
	pthread_mutex_unlock(&ps->lock);
}

char *ckpt_past_taken(struct phases *ps, const struct take_result *r, const char *id, bool left)
{
	unsigned long long ns, time = began(ps, &ns);
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	fprintf(out, "checkpoint %llu %llu %llu %llu %d %llu %llu %llu %s ", time, ns,
		(unsigned long long)phases_still_from(ps), (unsigned long long)r->stood_ns, left,
		(unsigned long long)r->bytes, (unsigned long long)r->zeros, (unsigned long long)r->fresh, id);
	facts_word(out, r->store);
	putc('\n', out);
	put_phases(ps, out);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

static void append(const char *rundir, char *text)
{
	if (text)
		history_append(rundir, text, strlen(text));
	free(text);
}

/* No history in the folder: they are off. */
static bool is_kept(const char *rundir)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/" HISTORY_EVENTS, rundir) < (int)sizeof(path) &&
	       !access(path, F_OK);
}

void ckpt_past_take(const char *rundir, struct phases *ps, const struct take_result *r, bool left)
{
	if (is_kept(rundir))
		append(rundir, ckpt_past_taken(ps, r, r->id, left));
}

/* The event in out, whose text is *text, ends with the phases, and is added to the job's history. */
static void end_event(const char *rundir, struct phases *ps, FILE *out, char **text)
{
	putc('\n', out);
	put_phases(ps, out);
	if (fclose(out)) {
		free(*text);
		*text = NULL;
	}
	append(rundir, *text);
}

void ckpt_past_failed(const char *rundir, struct phases *ps, const char *reason)
{
	unsigned long long ns, time = began(ps, &ns);
	char *text = NULL;
	size_t len;
	FILE *out = is_kept(rundir) ? open_memstream(&text, &len) : NULL;

	if (!out)
		return;
	fprintf(out, "failed %llu %llu ", time, ns);
	facts_word(out, phases_failed(ps));
	putc(' ', out);
	facts_word(out, reason);
	end_event(rundir, ps, out, &text);
}

void ckpt_past_restored(const char *rundir, struct phases *ps, const char *id, const char *store,
			const char *where)
{
	unsigned long long ns, time = began(ps, &ns);
	char *text = NULL, host[65] = "?";
	size_t len;
	FILE *out = is_kept(rundir) ? open_memstream(&text, &len) : NULL;

	if (!out)
		return;
	gethostname(host, sizeof(host) - 1);
	fprintf(out, "restore %llu %llu %s ", time, ns, id);
	facts_word(out, store);
	putc(' ', out);
	facts_word(out, host);
	fputs(" " SINGVGPU_VERSION " ", out);
	facts_word(out, where);
	end_event(rundir, ps, out, &text);
}
