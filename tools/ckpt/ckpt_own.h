/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_own.h - the checkpoints that `run` itself takes of its job, periodically and when it is
 * preempted, and the restores of --restart and `migrate`
 *
 * The supervisor has one struct own, and calls these functions from its loop (cmd/watchers.c). A child of the
 * supervisor, `singvgpu checkpoint` or `resize`, takes the checkpoint, so the loop never waits for one.
 *
 *   IDLE ─ time, launches ─► PERIODIC ─ done ─► IDLE
 *     └─── the signal ─► PREEMPT ─ done: the tree is gone, the job ends with status 75
 *     │                     └ failed, or the grace time is over: the ranks get the signal
 *     └─── a device is full (jobboard_crowded) ─► TURNS: `singvgpu resize` has its ranks take turns with it
 *                           └ failed: the ranks do without the memory
 */
#ifndef CKPT_OWN_H
#define CKPT_OWN_H

#include "job.h"

enum own_state { OWN_IDLE, OWN_PERIODIC, OWN_PREEMPT, OWN_TURNS };

struct own {
	const struct job *job;
	enum own_state state;
	pid_t child;		/* 0: none */
	bool wanted;		/* the signal came; its checkpoint has not begun */
	int pressed;		/* signals sent to the child since the deadline */
	uint64_t due;		/* now_ms() of the next periodic one; 0: none */
	uint64_t looked;	/* when launches were counted last */
	uint64_t launches;	/* their number at the last checkpoint */
	uint64_t deadline;	/* of PREEMPT */
};

/* Writes RUNDIR/options. 0 or -errno. What else happens is told through job->tell. */
int own_start(struct own *o, const struct job *job, struct why *why);
/* Begins checkpoints that are due. Returns the ms until the next call is due, or -1. */
int own_step(struct own *o, const struct rundir_job *info);
/* True: sig is --preempt-signal, and the ranks must not get it. */
bool own_signal(struct own *o, int sig);
/* A child has ended. True: it was the checkpoint. *forward: 0, or a signal to send to the ranks. */
bool own_ended(struct own *o, pid_t pid, int status, int *forward);
/* The job ends by itself: begins no more checkpoints and gives up the current one. */
void own_stop(struct own *o);

/* struct job's again(): --restart and `migrate`; arg is not used. */
const struct job_restore *own_again(void *arg, struct job *job, enum job_end end, int status);

/* What run says when its job was saved and ended: id, store, id. A restore knows it by its text. */
#define OWN_SAVED "the job is saved as checkpoint %s; `singvgpu restore --store %s %s` brings it back"

/* With --restart: checks that the store, if any, is trusted. 0, -EPERM. */
int own_check(const struct job_options *opt, struct why *why);

#endif
