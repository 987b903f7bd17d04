/* SPDX-License-Identifier: Apache-2.0 */
/*
 * criu_i.h - a run of CRIU, for criu.c and what it needs to judge and clean up after one
 */
#ifndef UPROXY_CKPT_CRIU_I_H
#define UPROXY_CKPT_CRIU_I_H

#include "criu.h"

#define CRIU_DIR 96

struct run {
	const struct criu *criu;
	char dir[CRIU_DIR];
	struct images *images;	/* NULL: taken away, images_gone */
	bool images_gone;
	pid_t pid;
	int from[2], to[2];	/* pipes of the action script */
	int script;
	int (*at_point)(struct run *r, pid_t pid);
	void *arg;
	int (*progress)(void *arg, uint64_t bytes);
	void *progress_arg;
	uint64_t limit, kill_at;	/* ns, CLOCK_MONOTONIC; 0: none */
	bool heard;		/* the action script has come to its point */
	uint64_t point_ns;	/* we took there */
	char *tables;		/* of nftables, before */
	int err;		/* ours */
	int status;		/* CRIU's */
	char *why;
	size_t why_size;
};

uint64_t criu_now(void);
/* malloc'ed, with a NUL behind it; NULL: none. */
char *criu_read_file(const char *dir, const char *name, size_t *len);

/* ------------------------------------------------------------------------- criu_words.c */

/* What came of a run that has ended: 0, or -errno and r->why in CRIU's words. root: 0, or a tree. */
int criu_verdict(struct run *r, const char *what, pid_t root);
/* From stats-dump, or as well as we know. */
void criu_frozen_time(struct run *r, struct criu_dump *d);

/* -------------------------------------------------------------------------- criu_mend.c */

/* What CRIU never dumps and the tree has open, in words; false: nothing. */
bool criu_suspect(pid_t root, char *text, size_t size);

/*
 * criu_tables: before a dump, which connections are locked. criu_mend: behind it, where CRIU was
 * killed, unlocks those of the tree; where the tree was (root is 0), those that need no lock.
 */
void criu_tables(struct run *r);
void criu_mend(struct run *r, pid_t root);

/* It is there, and no zombie. */
bool criu_alive(pid_t pid);

/* The process of root's tree that has that pid in its own namespace; 0: there is none. */
pid_t criu_find_pid(pid_t root, int inner);

/* Our children, so that those that a failed restore leaves behind can be told from others. */
struct kin {
	pid_t *pid;
	size_t n;
};
void criu_adopt(struct kin *before);
void criu_disown(const struct kin *before);

#endif
