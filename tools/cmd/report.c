// SPDX-License-Identifier: Apache-2.0
/*
 * report.c - `singvgpu report`: a page about a job, from its history; finds the history that is meant
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_i.h"
#include "jobboard.h"
#include "history.h"
#include "report_i.h"
#include "store.h"

static const char help[] =
"Usage: singvgpu report [OPTION]... JOB\n"
"Writes a page about a job, as HTML: what it did over time, what its checkpoints cost,\n"
"and which of its ranks the others waited for.\n"
"JOB is a running job's id or the pid of a process of it, the id of a job that has\n"
"ended, or a checkpoint's id, its first digits, or \"latest\".\n"
"\n"
"  -o, --output FILE    the page (default singvgpu-report.html); -: stdout\n"
"      --store DIR      JOB is a checkpoint in DIR; without, jobs come first, then the\n"
"                       default store (see singvgpu checkpoint --help)\n"
"  -a, --all            jobs of all users (as root)\n"
"      --help           print this and exit\n"
"\n"
"SINGVGPU_HISTORY=off in a job's environment keeps no history of it.\n";

enum { STORE = 256 };

static const struct option longs[] = {
	{ "output", required_argument, NULL, 'o' },
	{ "store", required_argument, NULL, STORE },
	{ "all", no_argument, NULL, 'a' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

struct args {
	const char *output, *store, *job;
	bool all, help;
};

struct source {
	char *data;		/* a whole history */
	size_t len;
	char id[64], what[128];
	char checkpoint[STORE_ID];	/* "": it is none */
	const char *state;	/* NULL: as the history says */
	char *more;		/* what is under way, or NULL */
};

/* ------------------------------------------------------------------------- a running job */

/* A sentence for each rank that waits: for what. */
static char *under_way(const struct rundir_job *job)
{
	struct jobboard_comm *comm;
	char sentence[700], *text = NULL;
	size_t n, len;
	FILE *out = open_memstream(&text, &len);

	if (out && !jobboard_read(job, &comm, &n)) {
		for (size_t i = 0; i < n && len < 8192; i++)
			for (unsigned int o = 0; o < comm[i].ops && ftell(out) < 8192; o++) {
				jobboard_sentence(&comm[i].op[o], wall_ns(), sentence, sizeof(sentence));
				fprintf(out, "%scommunicator %08llx: %s", ftell(out) ? "; " : "",
					(unsigned long long)(comm[i].key >> 32), sentence);
			}
		jobboard_free(comm, n);
	}
	if (out && fclose(out)) {
		free(text);
		text = NULL;
	}
	return text;
}

/* 0: it is none; 1: found; -errno: an error, said. */
static int find_running(const struct args *a, struct source *s)
{
	int live, found;
	struct why why = { 0 };
	struct rundir_job *job = ckpt_live_job(a->job, a->all ? RUNDIR_ALL : RUNDIR_OWN, &live, &why);

	if (why.err)
		say("%s", why.text);
	if (!job)
		return live < 0 ? live : 0;
	snprintf(s->id, sizeof(s->id), "%s", job->id);
	snprintf(s->what, sizeof(s->what), "job %s", job->id);
	s->state = "running";
	s->data = history_pack(job->path, job->uid, NULL, &s->len);
	s->more = under_way(job);
	found = s->data ? 1 : -ENOENT;
	if (!s->data)
		say("job %s has no history: it has just begun, or SINGVGPU_HISTORY=off", job->id);
	rundir_list_free(job, 1);
	return found;
}

static int find_ended(const struct args *a, struct source *s)
{
	struct why why = { 0 };
	int err = history_kept(a->job, &s->data, &s->len, &why);

	if (err == -ENOENT)
		return 0;
	if (err) {
		say("%s", why.text);
		return err;
	}
	snprintf(s->id, sizeof(s->id), "%.40s", a->job);
	snprintf(s->what, sizeof(s->what), "job %.40s, which has ended", a->job);
	return 1;
}

/* ------------------------------------------------------------------------- a checkpoint */

static int read_part(struct store *st, const struct store_ref *ref, struct source *s)
{
	struct store_reader *r;
	int err;

	if (store_ref_size(ref) > HISTORY_MAX) {
		say("%s: its history has %llu bytes, more than any", s->what, (unsigned long long)store_ref_size(ref));
		return -EFBIG;
	}
	err = store_object_open(st, ref, &r);
	if (!err) {
		s->len = store_size(r);
		s->data = calloc(1, s->len + 1);
		err = !s->data ? -ENOMEM : store_read(r, 0, s->data, s->len) == (ssize_t)s->len ? 0 : -EBADMSG;
		store_reader_close(r);
	}
	if (err)
		say("%s: its history cannot be read: %s", s->what, err == -ENOMEM ? "out of memory" : store_why()->text);
	return err;
}

static int find_checkpoint(const struct args *a, struct source *s)
{
	const struct store_ref *ref;
	struct store_checkpoint *c;
	struct why why = { 0 };
	char path[PATH_MAX];
	struct store *st;
	int err = ckpt_store_path(a->store, path, &why) ?: store_open(&st, path, STORE_WAIT, &why);

	if (err) {
		if (a->store || err != -ENOENT)
			say("%s", why.text);
		return a->store || err != -ENOENT ? err : 0;
	}
	err = store_checkpoint_open(st, a->job, &c);
	if (err) {
		if (a->store || (err != -ENOENT && err != -EINVAL))
			say("%s", store_why()->text);
		store_close(st);
		return a->store || (err != -ENOENT && err != -EINVAL) ? err : 0;
	}
	snprintf(s->id, sizeof(s->id), "of checkpoint %s", store_checkpoint_id(c));
	snprintf(s->what, sizeof(s->what), "checkpoint %s", store_checkpoint_id(c));
	snprintf(s->checkpoint, sizeof(s->checkpoint), "%s", store_checkpoint_id(c));
	s->state = "saved as this checkpoint";
	ref = store_checkpoint_find(c, "history");
	if (!ref) {
		say("%s has no history: it is of an older singvgpu, or of a job with SINGVGPU_HISTORY=off", s->what);
		err = -ENODATA;
	} else {
		err = read_part(st, ref, s);
	}
	store_checkpoint_close(c);
	store_close(st);
	return err ?: 1;
}

/* ------------------------------------------------------------------------------- the page */

/* Nobody named the default file: in a folder of others it may be a link to one of the user's. */
static FILE *open_page(const char *path, bool named)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (named ? 0 : O_NOFOLLOW), 0666);
	FILE *out = fd < 0 ? NULL : fdopen(fd, "w");

	if (fd >= 0 && !out)
		close(fd);
	return out;
}

/* A running job's or a checkpoint's history is closed by its state; the others have an end of their own. */
static int write_page(const struct args *a, const struct source *s, const struct past *p)
{
	const char *path = a->output ?: "singvgpu-report.html";
	bool to_stdout = !strcmp(path, "-");
	char store[PATH_MAX];
	struct why why = { 0 };
	struct report *r = calloc(1, sizeof(*r));
	FILE *out;
	int err = r ? report_gather(r, p, ckpt_store_path(a->store, store, &why) ? NULL : store) : -ENOMEM;

	if (err) {
		say("%s: %s", s->what, err == -ENODATA ? "its history is damaged: it has no beginning" : "out of memory");
		if (r)
			report_free(r);
		free(r);
		return EXIT_OURS;
	}
	r->id = s->id;
	r->state = s->state;
	r->more = s->more;
	out = to_stdout ? stdout : open_page(path, a->output);
	if (!out) {
		say_errno(errno, "%s", path);
		err = EXIT_OURS;
	} else {
		err = report_page(out, r);
		if (fflush(out) || ferror(out) || (!to_stdout && fclose(out)) || err) {
			say("%s cannot be written", path);
			err = EXIT_OURS;
		}
	}
	if (!err && !to_stdout)
		printf("%s\n", path);
	report_free(r);
	free(r);
	return err;
}

static int parse_args(struct args *a, int argc, char **argv)
{
	int c;

	while ((c = getopt_long(argc, argv, "o:ah", longs, NULL)) != -1) {
		switch (c) {
		case 'o':
			a->output = optarg;
			break;
		case STORE:
			a->store = optarg;
			break;
		case 'a':
			a->all = true;
			break;
		case 'h':
			a->help = true;
			return 0;
		default:
			return say_usage("report", "that option is not known, or lacks its value");
		}
	}
	if (optind + 1 != argc)
		return say_usage("report", optind == argc ? "which job? (singvgpu ps, singvgpu store ls)" :
				 "one job at a time");
	a->job = argv[optind];
	return 0;
}

int report_main(int argc, char **argv)
{
	struct args a = { 0 };
	struct source s = { 0 };
	struct why why = { 0 };
	struct past past;
	int status = parse_args(&a, argc, argv), found;

	if (status || a.help) {
		if (!status)
			fputs(help, stdout);
		return status;
	}
	found = a.store ? 0 : find_running(&a, &s) ?: find_ended(&a, &s);
	found = found ?: find_checkpoint(&a, &s);
	if (!found)
		say("there is no job '%s', running or ended, and no checkpoint of that id; `singvgpu ps` and `singvgpu store "
		    "ls` list them, and ended jobs are kept for some time", a.job);
	if (found <= 0) {
		free(s.more);
		return EXIT_OURS;
	}
	if (past_read(&past, s.data, s.len, &why)) {
		say("%s: its history is damaged: %s", s.what, why.text);
		status = EXIT_OURS;
	} else {
		/* When it was saved, its checkpoint had no id yet. */
		for (size_t i = 0; i < past.events && *s.checkpoint; i++)
			if (past.event[i].kind == PAST_CHECKPOINT && !strcmp(past.event[i].id, "-"))
				past.event[i].id = s.checkpoint;
		status = write_page(&a, &s, &past);
	}
	past_free(&past);
	free(s.data);
	free(s.more);
	return status;
}
