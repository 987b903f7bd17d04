/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt.h - the parts of the checkpoint bench, and their shared helpers
 *
 * Each part alternates its measurements, several times, and reports medians: machines are noisy,
 * and only figures of one run can be compared.
 */
#ifndef CKPT_H
#define CKPT_H

#include <stdbool.h>
#include <stdint.h>

#include "../report.h"

struct bench {
	char build[256];	/* absolute */
	char dir[512];		/* work files; on the measured disk */
	char log[600];		/* output of the programs that are started */
	uint64_t size;		/* of a dump */
	int turns;
	bool peers;		/* also measure restic, borg and casync, which take minutes */
};

/* ---------------------------------------------------------------------- ckpt_dumps.c */

struct dumps {
	char path[2][600];	/* the dumps; the second has some pages changed */
	uint64_t changed;	/* bytes of pages that differ */
};

/*
 * Writes two dumps that resemble the memory of a training job: weights that zstd makes 10 to 20 %
 * smaller, tables of pointers, text. No page is zero or a repetition, so that all must be stored.
 * 3 % of the second one's pages, scattered, differ. Both are in the page cache and on the disk.
 */
void dumps_make(const struct bench *b, struct dumps *d);

/* ----------------------------------------------------------------------- ckpt_peers.c */

/* Runs a program; returns its status (-1: killed). b->log gets its output. seconds may be NULL. */
int program(const struct bench *b, double *seconds, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A folder's size on its disk: for each file the larger of its length and its blocks. */
uint64_t folder_bytes(const char *path);
void folder_remove(const struct bench *b, const char *path);

/*
 * fio's bandwidth in bytes/s for writing a new file of that size, in blocks of bs, from fio's
 * default memory or from huge pages; 0 without fio.
 */
double fio_write(const struct bench *b, const char *bs, uint64_t size, bool huge);
/* The same for reading in blocks of 1 MiB, n times with each memory; 0 without fio. */
int fio_read(const struct bench *b, double *v, double *huge, int n, uint64_t size);
/* restic, borg and casync: each reports peer.NAME.{first_s,second_s,second_bytes}. */
void peers(const struct bench *b, const struct dumps *d);
/* The least of peer.*.KEY; NAN without peers. */
double peers_best(const char *key);

/* ------------------------------------------------------------------------------ parts */

void bench_store(const struct bench *b);	/* a: ckpt_store.c */
void bench_lanes(const struct bench *b);	/* ckpt_lanes.c */
void bench_step(const struct bench *b);		/* b: ckpt_step.c */
void bench_torch(const struct bench *b);
void bench_criu(const struct bench *b);		/* c: ckpt_criu.c */
/* The dumped process: `ckpt --victim FILE BYTES`. It runs until it is killed. */
int ckpt_victim_main(const char *path, uint64_t bytes);

#endif
