// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_step.c - two checkpoints of a training, with at least one optimizer step between them: of the
 * GPT, and of PyTorch with workers, whose torch.save of the same state is another measure
 *
 * Changed pages are counted independently of the store: all pages of both checkpoints are read back
 * and looked up by another hash. A page of the second counts unless it is zero, in the first, or
 * counted already.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "ckpt.h"
#include "store.h"

#define CHUNK	(1u << 20)
#define WAIT_S	300	/* only what hangs needs as long */

struct job {
	pid_t pid;
	char out[600], store[600], tool[512];
};

static struct job job;

/* -------------------------------------------------------------------------------- pages */

struct seen {
	uint64_t *key;		/* 0: none */
	uint64_t room, n;	/* room: a power of two */
};

/* Whether it was new. */
static bool seen_add(struct seen *s, uint64_t key)
{
	uint64_t i = (key += !key) & (s->room - 1);

	if (2 * s->n >= s->room)
		die("a checkpoint has more than %llu pages", (unsigned long long)s->n);
	while (s->key[i] && s->key[i] != key)
		i = (i + 1) & (s->room - 1);
	if (s->key[i])
		return false;
	s->key[i] = key;
	s->n++;
	return true;
}

static void check(int err)
{
	if (err < 0)
		die("%s", store_why()->text);
}

/* Bytes of pages that were not seen before. A device's window is a large object with holes. */
static uint64_t object_fresh(struct store *st, const struct store_ref *ref, struct seen *s)
{
	static const uint8_t zeros[STORE_PAGE];
	static uint8_t buf[CHUNK] __attribute__((aligned(4096)));
	uint64_t fresh = 0, from, to = 0;
	struct store_reader *r;
	ssize_t n;

	check(store_object_open(st, ref, &r));
	while (!store_next_data(r, to, &from, &to))
		for (uint64_t at = from; at < to; at += n) {
			n = store_read(r, at, buf, to - at < CHUNK ? to - at : CHUNK);
			check(n ?: -EIO);
			memset(buf + n, 0, CHUNK - n);
			for (ssize_t i = 0; i < n; i += STORE_PAGE)
				if (memcmp(buf + i, zeros, STORE_PAGE) &&
				    seen_add(s, XXH64(buf + i, STORE_PAGE, 1)))
					fresh += STORE_PAGE;
		}
	store_reader_close(r);
	return fresh;
}

static uint64_t checkpoint_fresh(struct store *st, const char *id, struct seen *s)
{
	const struct store_part *part;
	struct store_checkpoint *c;
	uint64_t fresh = 0;
	size_t n;

	check(store_checkpoint_open(st, id, &c));
	n = store_checkpoint_parts(c, &part);
	for (size_t i = 0; i < n; i++)
		fresh += object_fresh(st, &part[i].ref, s);
	store_checkpoint_close(c);
	return fresh;
}

static uint64_t changed(const char *dir, const char *first, const char *second)
{
	struct seen s = { .room = 1 << 22 };
	struct store *st;
	struct why why = { 0 };
	uint64_t bytes;

	s.key = calloc(s.room, sizeof(*s.key));
	if (!s.key)
		die("no memory");
	if (store_open(&st, dir, 0, &why))
		die("%s", why.text);
	checkpoint_fresh(st, first, &s);
	bytes = checkpoint_fresh(st, second, &s);
	store_close(st);
	free(s.key);
	return bytes;
}

/* ---------------------------------------------------------------------------------- job */

/* The last "step N/" that it has printed; 0 before the first. */
static int step(void)
{
	char line[256];
	int n, of, last = 0;
	FILE *f = fopen(job.out, "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "step %d/%d", &n, &of) == 2)
			last = n;
	if (f)
		fclose(f);
	return last;
}

static void wait_step(int n)
{
	double end = now_s() + WAIT_S;

	while (step() < n) {
		if (now_s() > end || waitpid(job.pid, NULL, WNOHANG))
			die("the training ends, or stands still: see %s", job.out);
		usleep(2000);
	}
}

/* args: the job's, of which the first is a program below the build folder. */
static void start(const struct bench *b, const char *name, char *args[])
{
	static char *const run[] = { "run", "--store", job.store, "--" };
	char *argv[16] = { job.tool }, program[512];
	int out, n = 1;

	snprintf(job.tool, sizeof(job.tool), "%s/tools/singvgpu", b->build);
	snprintf(program, sizeof(program), "%s/%s", b->build, args[0]);
	snprintf(job.out, sizeof(job.out), "%s/%s.out", b->dir, name);
	snprintf(job.store, sizeof(job.store), "%s/%s.store", b->dir, name);
	for (int i = 0; i < 4; i++)
		argv[n++] = run[i];
	argv[n++] = program;
	for (int i = 1; args[i]; i++)
		argv[n++] = args[i];
	job.pid = fork();
	if (job.pid)
		return;
	out = open(job.out, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (dup2(open("/dev/null", O_RDONLY), 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
		_exit(127);
	close_range(3, ~0u, 0);
	execv(job.tool, argv);
	_exit(127);
}

static void end(void)
{
	if (job.pid <= 0)
		return;
	kill(job.pid, SIGTERM);
	while (waitpid(job.pid, NULL, 0) < 0 && errno == EINTR)
		;
	job.pid = 0;
}

/* Its seconds; what the store has grown by is added up in *bytes. */
static double checkpoint(const struct bench *b, char id[64], uint64_t *bytes)
{
	uint64_t before = access(job.store, F_OK) ? 0 : folder_bytes(job.store);
	char path[600];
	double s;
	FILE *f;

	snprintf(path, sizeof(path), "%s/id", b->dir);
	if (program(b, &s, "'%s' checkpoint --quiet --leave-running --store '%s' %d >'%s'", job.tool,
		    job.store, job.pid, path))
		die("singvgpu cannot checkpoint: see %s", b->log);
	f = fopen(path, "r");
	if (!f || fscanf(f, "%63s", id) != 1)
		die("%s has no id", path);
	fclose(f);
	*bytes = folder_bytes(job.store) - before;
	return s;
}

static void name_metric(const char *name, const char *what, double value, const char *unit)
{
	char full[64];

	snprintf(full, sizeof(full), "%s.%s", name, what);
	metric(full, value, unit);
}

static void two_checkpoints(const struct bench *b, const char *name, char *args[])
{
	uint64_t first_bytes, second_bytes, bytes;
	char first[64], second[64], full[64];
	double first_s, second_s;

	start(b, name, args);
	wait_step(3);
	first_s = checkpoint(b, first, &first_bytes);
	wait_step(step() + 2);		/* the line may be of a step that was in the first */
	second_s = checkpoint(b, second, &second_bytes);
	end();
	bytes = changed(job.store, first, second);
	name_metric(name, "first_s", first_s, "s");
	name_metric(name, "first_bytes", first_bytes, "B");
	name_metric(name, "second_s", second_s, "s");
	name_metric(name, "second_bytes", second_bytes, "B");
	name_metric(name, "changed_bytes", bytes, "B");
	snprintf(full, sizeof(full), "%s.second_vs_changed", name);
	metric_bar(full, (double)second_bytes / bytes, NAN, 1.03);
	snprintf(full, sizeof(full), "%s.second_vs_first_s", name);
	metric_bar(full, second_s / first_s, NAN, 1.1);
}

static bool there(const struct bench *b, const char *name, const char *program)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", b->build, program);
	if (!geteuid() && !access(path, X_OK))
		return true;
	printf("# %s: %s%s\n", name, geteuid() ? "CRIU needs root" : "there is no ",
	       geteuid() ? "" : program);
	return false;
}

void bench_step(const struct bench *b)
{
	char *args[] = { "selftests/jobs/gpt", "--steps", "1000000", "--every", "1", "--sample", "0",
			 NULL };

	if (!there(b, "step", args[0]))
		return;
	atexit(end);
	two_checkpoints(b, "step", args);
}

/* The line "torch.save BYTES SECONDS" of the job. */
static void report_saved(void)
{
	char line[256];
	double bytes, s;
	FILE *f = fopen(job.out, "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "torch.save %lf %lf", &bytes, &s) == 2) {
			metric("torch.save_bytes", bytes, "B");
			metric("torch.save_s", s, "s");
		}
	if (f)
		fclose(f);
}

void bench_torch(const struct bench *b)
{
	char saved[600];
	char *args[] = { "torch/python3", "selftests/bench/torch/torch_state.py", saved, NULL };

	if (!there(b, "torch", args[0]))
		return;
	snprintf(saved, sizeof(saved), "%s/torch.saved", b->dir);
	atexit(end);
	two_checkpoints(b, "torch", args);
	report_saved();
}
