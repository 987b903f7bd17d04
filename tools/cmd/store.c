// SPDX-License-Identifier: Apache-2.0
/*
 * store.c - `singvgpu store`: selects the command; create, rm, gc and verify
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_i.h"
#include "files.h"
#include "store_tool_i.h"

static const char help[] =
"Usage: singvgpu store [OPTION]... COMMAND [ARG]...\n"
"Looks after the checkpoints of jobs.\n"
"\n"
"  create             make an empty store\n"
"  ls                 list its checkpoints\n"
"  show [ID]          what one consists of (default: the latest)\n"
"  verify             read and check all that is in the store\n"
"  rm ID...           take checkpoints away; gc frees their room\n"
"  gc                 remove what no checkpoint needs\n"
"  push TO [ID]...    copy checkpoints (default: all) to another store\n"
"  pull FROM [ID]...  and from another one: a folder, or HOST:FOLDER over ssh\n"
"\n"
"      --store DIR        the store (default: $SINGVGPU_STORE, or the user's own)\n"
"  -j, --json             ls, show, verify, gc: as JSON\n"
"  -s, --sizes            ls: what each takes alone, too; reads all lists of pages\n"
"      --zstd LEVEL       create: compress what comes in, 1 to 19 (default: not)\n"
"      --keep PERCENT     gc: rewrite segments of which less is needed (default 75)\n"
"      --wait SECONDS     gc: for dumps and restores to end (default 0)\n"
"      --create           push, pull: make the store that is to receive, if need be\n"
"      --remote PROGRAM   push, pull: singvgpu on the other host (default singvgpu)\n"
"      --help             print this and exit\n"
"\n"
"An ID may be its first four digits or more, or 'latest'.\n";

enum {
	OPTION_STORE = 256,
	OPTION_ZSTD,
	OPTION_KEEP,
	OPTION_WAIT,
	OPTION_CREATE,
	OPTION_REMOTE,
};

static const struct option longs[] = {
	{ "store", required_argument, NULL, OPTION_STORE },
	{ "json", no_argument, NULL, 'j' },
	{ "sizes", no_argument, NULL, 's' },
	{ "zstd", required_argument, NULL, OPTION_ZSTD },
	{ "keep", required_argument, NULL, OPTION_KEEP },
	{ "wait", required_argument, NULL, OPTION_WAIT },
	{ "create", no_argument, NULL, OPTION_CREATE },
	{ "remote", required_argument, NULL, OPTION_REMOTE },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static int failed(void)
{
	say("%s", store_why()->text);
	return EXIT_OURS;
}

static int create(const struct store_args *a)
{
	struct store_params p = { .zstd = a->zstd };
	struct why why = { 0 };
	char path[PATH_MAX];

	if (!ckpt_store_path(a->store, path, &why) && !ckpt_store_parents(path, &why) &&
	    !store_create(path, &p, &why))
		return 0;
	say("%s", why.text);
	return EXIT_OURS;
}

/* Looks up all ids before it removes the first checkpoint. */
static int rm(const struct store_args *a)
{
	struct store *s = store_args_open(a, NULL, STORE_RW);
	char (*id)[STORE_ID] = calloc(a->argc, sizeof(*id));
	int rc = s && id ? 0 : EXIT_OURS;

	for (int i = 0; i < a->argc && !rc; i++) {
		struct store_checkpoint *c;
		int err = store_checkpoint_open(s, a->argv[i], &c);

		/* A damaged one can be removed by its full name. */
		if (err == -EBADMSG && strlen(a->argv[i]) == STORE_ID - 1) {
			strcpy(id[i], a->argv[i]);
			continue;
		}
		if (err) {
			rc = failed();
			break;
		}
		strcpy(id[i], store_checkpoint_id(c));
		store_checkpoint_close(c);
	}
	for (int i = 0; i < a->argc && !rc; i++) {
		int err = store_remove(s, id[i]);

		if (err && err != -ENOENT)	/* named twice */
			rc = failed();
	}
	free(id);
	store_close(s);
	return rc;
}

/* ----------------------------------------------------------------------- gc and verify */

struct shown {
	struct phases phases;
	struct phase *phase;
	struct json json;
	bool as_json;
	int hurts;
	char (*hurt)[STORE_ID + 64];
};

static void progress(void *arg, const char *phase, uint64_t done, uint64_t total)
{
	struct shown *sh = arg;

	if (!sh->phase || strcmp(sh->phase->name, phase)) {
		if (sh->phase)
			phase_end(&sh->phases, sh->phase, sh->phase->done, 0, 0);
		sh->phase = phase_begin(&sh->phases, "%s", phase);
	}
	phase_progress(&sh->phases, sh->phase, done, total);
}

static int gc(const struct store_args *a)
{
	struct store *s = store_args_open(a, NULL, STORE_RW);
	struct json j = { .out = stdout };
	struct files_gc_stats logs = { 0 };
	struct store_gc_stats st;
	char freed[16], kept[16];
	struct shown sh = { 0 };
	int err;

	if (!s)
		return EXIT_OURS;
	phases_start(&sh.phases, "gc", "", false);
	err = store_gc(s, a->keep, a->wait_ms, progress, &sh, &st) ?: files_gc(s, &logs);
	phases_clear(&sh.phases);
	if (err)
		failed();
	store_close(s);
	if (err)
		return EXIT_OURS;
	st.freed += logs.freed;
	if (!a->json) {
		printf("%s freed, %s kept: %llu segments removed, %llu rewritten, "
		       "%llu left-overs of writers removed, %llu logs of jobs\n", show_size(freed, st.freed),
		       show_size(kept, st.kept), (unsigned long long)st.segments_removed,
		       (unsigned long long)st.segments_rewritten,
		       (unsigned long long)st.temporaries, (unsigned long long)logs.logs);
		return 0;
	}
	json_open(&j, NULL, '{');
	json_uint(&j, "freed", st.freed);
	json_uint(&j, "kept", st.kept);
	json_uint(&j, "segments_removed", st.segments_removed);
	json_uint(&j, "segments_rewritten", st.segments_rewritten);
	json_uint(&j, "temporaries", st.temporaries);
	json_uint(&j, "logs", logs.logs);
	json_close(&j, '}');
	return 0;
}

static void bad(void *arg, const char *file, uint64_t at, const char *what)
{
	struct shown *sh = arg;

	phases_clear(&sh->phases);
	if (sh->as_json) {
		json_open(&sh->json, NULL, '{');
		json_string(&sh->json, "file", file);
		if (at != UINT64_MAX)
			json_uint(&sh->json, "at", at);
		json_string(&sh->json, "what", what);
		json_close(&sh->json, '}');
	} else if (at != UINT64_MAX) {
		printf("bad: %s, byte %llu: %s\n", file, (unsigned long long)at, what);
	} else {
		printf("bad: %s: %s\n", file, what);
	}
}

/* Keeps the damaged part for the report, which follows all problems. */
static void hurt(void *arg, const char *id, const char *part)
{
	struct shown *sh = arg;
	void *more = realloc(sh->hurt, (sh->hurts + 1) * sizeof(*sh->hurt));

	if (!more)
		return;
	sh->hurt = more;
	snprintf(sh->hurt[sh->hurts++], sizeof(*sh->hurt), "%.32s %.60s", id, part ?: "");
}

static void verify_json(struct shown *sh, const struct store_verify_stats *st)
{
	struct json *j = &sh->json;

	json_close(j, ']');
	json_open(j, "hurt", '[');
	for (int i = 0; i < sh->hurts; i++) {
		char *part = strchr(sh->hurt[i], ' ');

		*part++ = 0;
		json_open(j, NULL, '{');
		json_string(j, "id", sh->hurt[i]);
		json_string(j, "part", part);
		json_close(j, '}');
	}
	json_close(j, ']');
	json_uint(j, "segments", st->segments);
	json_uint(j, "pages", st->pages);
	json_uint(j, "bytes", st->bytes);
	json_uint(j, "checkpoints", st->checkpoints);
	json_uint(j, "objects", st->objects);
	json_uint(j, "problems", st->problems);
	json_close(j, '}');
}

static void verify_text(const struct shown *sh, const struct store_verify_stats *st)
{
	char bytes[16];

	for (int i = 0; i < sh->hurts; i++)
		printf("does not restore: %s\n", sh->hurt[i]);
	printf("%llu checkpoints, %llu segments, %s: ", (unsigned long long)st->checkpoints,
	       (unsigned long long)st->segments, show_size(bytes, st->bytes));
	if (st->problems)
		printf("%llu problems\n", (unsigned long long)st->problems);
	else
		puts("all is as it was written");
}

static int verify(const struct store_args *a)
{
	struct store *s = store_args_open(a, NULL, 0);
	struct shown sh = { .as_json = a->json, .json.out = stdout };
	struct store_verify_stats st = { 0 };
	int err;

	if (!s)
		return EXIT_OURS;
	phases_start(&sh.phases, "verify", "", false);
	if (a->json) {
		json_open(&sh.json, NULL, '{');
		json_open(&sh.json, "bad", '[');
	}
	err = store_verify(s, bad, hurt, progress, &sh, &st);
	phases_clear(&sh.phases);
	if (a->json)
		verify_json(&sh, &st);
	else if (!err || err == -EBADMSG)
		verify_text(&sh, &st);
	if (err && err != -EBADMSG)
		failed();
	free(sh.hurt);
	store_close(s);
	return !err ? 0 : err == -EBADMSG ? 1 : EXIT_OURS;
}

/* ------------------------------------------------------------------------------- main */

/* Options that some commands take, as bits. */
enum { JSON = 1, SIZES = 2, ZSTD = 4, KEEP = 8, WAIT = 16, CREATE = 32, REMOTE = 64 };

static const struct {
	const char *name;
	int (*main)(const struct store_args *a);
	int least, most;	/* arguments */
	unsigned int takes;
} commands[] = {
	{ "create", create, 0, 0, ZSTD },
	{ "ls", store_ls, 0, 0, JSON | SIZES },
	{ "show", store_show, 0, 1, JSON },
	{ "verify", verify, 0, 0, JSON },
	{ "rm", rm, 1, INT_MAX, 0 },
	{ "gc", gc, 0, 0, JSON | KEEP | WAIT },
	{ "push", store_push, 1, INT_MAX, CREATE | REMOTE },
	{ "pull", store_pull, 1, INT_MAX, CREATE | REMOTE },
	{ "serve", store_serve, 1, 1, CREATE },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* Parses one option; 0 or an exit status. given: the bits above of the options seen. */
static int option(struct store_args *a, int c, unsigned int *given)
{
	switch (c) {
	case OPTION_STORE:
		a->store = optarg;
		return 0;
	case 'j':
		a->json = true;
		*given |= JSON;
		return 0;
	case 's':
		a->sizes = true;
		*given |= SIZES;
		return 0;
	case OPTION_CREATE:
		a->create = true;
		*given |= CREATE;
		return 0;
	case OPTION_REMOTE:
		a->remote = optarg;
		*given |= REMOTE;
		return 0;
	case OPTION_ZSTD:
		*given |= ZSTD;
		if (parse_int(optarg, 0, 19, &a->zstd))
			return say_usage("store", "--zstd '%s' is not a level from 0 to 19", optarg);
		return 0;
	case OPTION_KEEP:
		*given |= KEEP;
		if (parse_int(optarg, 0, 100, &a->keep))
			return say_usage("store", "--keep '%s' is not a percentage", optarg);
		return 0;
	case OPTION_WAIT:
		*given |= WAIT;
		if (parse_seconds(optarg, &a->wait_ms))
			return say_usage("store", "--wait '%s' is not a number of seconds", optarg);
		return 0;
	}
	return say_usage("store", "that option is not known, or lacks its value");
}

int store_main(int argc, char **argv)
{
	struct store_args a = { .keep = 75, .remote = "singvgpu" };
	unsigned int given = 0;
	int c, rc;

	while ((c = getopt_long(argc, argv, "jsh", longs, NULL)) != -1) {
		if (c == 'h') {
			fputs(help, stdout);
			return 0;
		}
		rc = option(&a, c, &given);
		if (rc)
			return rc;
	}
	if (optind == argc)
		return say_usage("store", "which command?");
	a.command = argv[optind];
	a.argc = argc - optind - 1;
	a.argv = argv + optind + 1;
	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (strcmp(a.command, commands[i].name))
			continue;
		if (given & ~commands[i].takes)
			return say_usage("store", "'%s' does not take one of these options",
					 a.command);
		if (a.argc < commands[i].least)
			return say_usage("store", "'%s' needs an argument", a.command);
		if (a.argc > commands[i].most)
			return say_usage("store", "'%s' is one argument too many",
					 a.argv[commands[i].most]);
		return commands[i].main(&a);
	}
	return say_usage("store", "there is no command '%s'", a.command);
}
