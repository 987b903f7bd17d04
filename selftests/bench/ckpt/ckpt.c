// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt.c - what checkpoints cost, beside the disk's own rate, other deduplicating stores and CRIU
 *
 *   build/selftests/bench/ckpt [--quick] [--turns N] [--no-peers] [--dir DIR] [--only PART] [OUT.json]
 *
 * PART is store (a: two synthetic dumps), lanes (in memory: a model of dumps on a larger machine),
 * step (b: a GPT), torch (PyTorch, if it is in build/torch) or criu (c: a process of 1 GiB). DIR is on
 * the disk to measure, and gets work files: 12 GiB, an eighth of that with --quick.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt.h"

static const struct part {
	const char *name;
	void (*run)(const struct bench *b);
} parts[] = {
	{ "store", bench_store },
	{ "step", bench_step },
	{ "torch", bench_torch },
	{ "criu", bench_criu },
	{ "lanes", bench_lanes },	/* last: it leaves the others' mounts */
};

#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

static const struct option longs[] = {
	{ "quick", no_argument, NULL, 'q' },
	{ "turns", required_argument, NULL, 't' },
	{ "no-peers", no_argument, NULL, 'n' },
	{ "dir", required_argument, NULL, 'd' },
	{ "only", required_argument, NULL, 'o' },
	{ 0 },
};

static const struct part *part_find(const char *name)
{
	for (const struct part *p = parts; p < parts + N_PARTS; p++)
		if (!strcmp(p->name, name))
			return p;
	die("there is no part '%s'", name);
}

/* b->dir: a folder of our own below it. */
static void begin(struct bench *b, const char *dir)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	char *real = realpath(build, NULL);

	if (!real || snprintf(b->build, sizeof(b->build), "%s", real) >= (int)sizeof(b->build))
		die("%s: %s", build, strerror(errno));
	free(real);
	snprintf(b->dir, sizeof(b->dir), "%s/bench", b->build);
	mkdir(b->dir, 0777);
	if (dir && (!realpath(dir, NULL) || strlen(dir) > 400))
		die("%s: %s", dir, strerror(errno));
	real = realpath(dir ?: b->dir, NULL);
	snprintf(b->dir, sizeof(b->dir), "%.400s/ckpt.XXXXXX", real);
	free(real);
	if (!mkdtemp(b->dir))
		die("%s: %s", b->dir, strerror(errno));
	snprintf(b->log, sizeof(b->log), "%s/bench/ckpt.log", b->build);
	unlink(b->log);
}

static void remove_work(void *arg)
{
	const struct bench *b = arg;

	folder_remove(b, b->dir);
}

int main(int argc, char **argv)
{
	struct bench b = { .size = 2ull << 30, .turns = 5, .peers = true };
	const struct part *only = NULL;
	const char *dir = NULL;
	char path[512];
	int c;

	if (argc == 4 && !strcmp(argv[1], "--victim"))
		return ckpt_victim_main(argv[2], strtoull(argv[3], NULL, 10));
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'q':
			b.size /= 8;
			b.turns = 3;
			break;
		case 't':
			b.turns = atoi(optarg) > 0 ? atoi(optarg) : 1;
			break;
		case 'n':
			b.peers = false;
			break;
		case 'd':
			dir = optarg;
			break;
		case 'o':
			only = part_find(optarg);
			break;
		default:
			return 2;
		}
	}
	begin(&b, dir);
	guard(remove_work, &b);
	for (const struct part *p = parts; p < parts + N_PARTS; p++)
		if (!only || only == p)
			p->run(&b);
	snprintf(path, sizeof(path), "%s/bench/ckpt.json", b.build);
	write_json(optind < argc ? argv[optind] : path);
	return 0;
}
