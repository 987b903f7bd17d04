// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_step.c - two checkpoints of a GPT in training, with at least one optimizer step between them
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

/* Bytes of pages that were not seen before. */
static uint64_t object_fresh(struct store *st, const struct store_ref *ref, struct seen *s)
{
	static const uint8_t zeros[STORE_PAGE];
	static uint8_t buf[CHUNK] __attribute__((aligned(4096)));
	struct store_reader *r;
	uint64_t fresh = 0, at = 0;
	ssize_t n;

	check(store_object_open(st, ref, &r));
	while ((n = store_read(r, at, buf, CHUNK)) > 0) {
		memset(buf + n, 0, CHUNK - n);
		for (ssize_t i = 0; i < n; i += STORE_PAGE)
			if (memcmp(buf + i, zeros, STORE_PAGE) &&
			    seen_add(s, XXH64(buf + i, STORE_PAGE, 1)))
				fresh += STORE_PAGE;
		at += n;
	}
	check(n);
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

static void start(const struct bench *b)
{
	char gpt[512];
	int out;

	snprintf(job.tool, sizeof(job.tool), "%s/tools/singvgpu", b->build);
	snprintf(gpt, sizeof(gpt), "%s/selftests/jobs/gpt", b->build);
	snprintf(job.out, sizeof(job.out), "%s/gpt.out", b->dir);
	snprintf(job.store, sizeof(job.store), "%s/gpt.store", b->dir);
	job.pid = fork();
	if (job.pid)
		return;
	out = open(job.out, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (dup2(open("/dev/null", O_RDONLY), 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
		_exit(127);
	close_range(3, ~0u, 0);
	execl(job.tool, job.tool, "run", "--store", job.store, "--", gpt, "--steps", "1000000",
	      "--every", "1", "--sample", "0", NULL);
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

void bench_step(const struct bench *b)
{
	char path[512], first[64], second[64];
	uint64_t first_bytes, second_bytes, bytes;
	double first_s, second_s;

	snprintf(path, sizeof(path), "%s/selftests/jobs/gpt", b->build);
	if (geteuid() || access(path, X_OK)) {
		printf("# step: %s\n", geteuid() ? "CRIU needs root" : "the GPT is not built");
		return;
	}
	atexit(end);
	start(b);
	wait_step(3);
	first_s = checkpoint(b, first, &first_bytes);
	wait_step(step() + 2);		/* the line may be of a step that was in the first */
	second_s = checkpoint(b, second, &second_bytes);
	end();
	bytes = changed(job.store, first, second);
	metric("step.first_s", first_s, "s");
	metric("step.first_bytes", first_bytes, "B");
	metric("step.second_s", second_s, "s");
	metric("step.second_bytes", second_bytes, "B");
	metric("step.changed_bytes", bytes, "B");
	metric_bar("step.second_vs_changed", (double)second_bytes / bytes, NAN, 1.03);
	metric_bar("step.second_vs_first_s", second_s / first_s, NAN, 1.1);
}
