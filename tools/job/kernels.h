/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - what the job's proxies compile: a line on a terminal while they do, and what there is to
 * say at the job's end
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "rundir.h"
#include "stat.h"

struct kernels {
	bool terminal;			/* stderr is one */
	bool shown;			/* the line is on it */
	uint64_t next;			/* ms of now_ms(): when to look again */
	uint64_t moved;			/* when something was last being compiled */
	uint64_t before;		/* kernels compiled, at the last look */
	struct uproxy_kernels ended;	/* sums of the proxies that have ended */
	uint64_t launches, collectives;
	char idle[64];			/* a program that had CUDA's runtime; "": none had */
	bool triton;			/* it has written its cache's files */
};

void kernels_start(struct kernels *k);

/*
 * Writes, changes or removes the line; returns the ms until it wants to be called again, or -1. The
 * launcher's other messages must follow kernels_clear().
 */
int kernels_step(struct kernels *k, const struct rundir_job *job);
void kernels_clear(struct kernels *k);

/* Adds the figures of a proxy that has ended, whose file is still there. */
void kernels_ended(struct kernels *k, const struct rundir_job *job, const struct rundir_proxy *p);

/*
 * Looks, before the folder is removed, which process had CUDA's runtime (libintercept/idle.c), and
 * whether Triton is among those that changed files (libintercept/files).
 */
void kernels_look(struct kernels *k, const struct rundir_job *job);

/*
 * The job is over, with this exit status: says why kernels did not run, in a line each, and with warm
 * what was compiled.
 */
void kernels_report(const struct kernels *k, int status, bool warm);

#endif
