/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_take.h - takes a checkpoint of a running job
 *
 *   look ─► (step) ─► freeze ─► device, criu (at once) ─► tree frozen: channel, files, publish ─► killed
 *                                                     └ leave_running: the tree goes on, publish
 *
 * Every step before the publication can be undone, and undoes itself if this process dies: CRIU
 * lets the tree go on, and each proxy opens its gate.
 */
#ifndef CKPT_TAKE_H
#define CKPT_TAKE_H

#include "ckpt_i.h"

struct take_options {
	const char *store;	/* NULL: the default */
	const char *criu;	/* NULL: criu_find() searches */
	bool leave_running;
	bool outside;		/* connections out of the job are allowed */
	bool keep;		/* proxies stay with what their devices have, for a restore by the same supervisor */
	long timeout_ms;	/* until the publication; 0: none */
	long freeze_ms;		/* that a busy device may go without progress */
	long step_ms;		/* in which all ranks shall come to the end of a step; 0: cut anywhere */
	char *const *next;	/* words behind id and store in the file "checkpointed" */
	int n_next;
	/*
	 * Called with the proxies' answers, before the job is changed; may be NULL. An error ends the checkpoint, and the
	 * job runs on.
	 */
	int (*look)(void *arg, const struct rundir_job *job, const struct ckpt_facts *facts, struct why *why);
	bool look_only;		/* stop after that: -ECANCELED without a sentence if all is well, else the reason */
	/*
	 * Called between the publication and the job's end, or NULL. If it returns an error the job
	 * runs on.
	 */
	int (*accept)(void *arg, const char *store, const char *id, struct why *why);
	void *arg;
};

/* The options, for getopt_long, of all commands that take a checkpoint. */
enum { TAKE_STORE = 900, TAKE_TIMEOUT, TAKE_FREEZE, TAKE_CRIU, TAKE_OUTSIDE, TAKE_STEP };
#define TAKE_LONG						\
	{ "store", required_argument, NULL, TAKE_STORE },	\
	{ "timeout", required_argument, NULL, TAKE_TIMEOUT },	\
	{ "freeze", required_argument, NULL, TAKE_FREEZE },	\
	{ "criu", required_argument, NULL, TAKE_CRIU },		\
	{ "outside", no_argument, NULL, TAKE_OUTSIDE },		\
	{ "at-step", optional_argument, NULL, TAKE_STEP }
#define TAKE_STEP_MS 30000	/* --at-step without a time */
#define TAKE_DEFAULT ((struct take_options){ .timeout_ms = 600000, .freeze_ms = 30000 })

/* Parses getopt's c and optarg: 0; 1: none of these options; < 0: not a number of seconds. */
int take_option(struct take_options *o, int c);

struct take_result {
	char id[33];		/* "" if nothing was published */
	char store[PATH_MAX];
	uint64_t frozen_ns;	/* time for which the job's processes stood still */
	uint64_t stood_ns;	/* from the closing of the gates until the job went on, or ended */
	uint64_t bytes, stored;	/* handled; new to the store, maps included */
	uint64_t zeros, fresh;	/* of the bytes: zeros, and what was stored anew; others were there */
	bool at_step;		/* cut at the end of a step */
	char not_at_step[640];	/* else why not, if that was asked for */
	char below[PATH_MAX + 256];	/* whole lines for below the reason of a failure: what there is nevertheless, and the remedy */
};

/* 0; or -errno: *why has the phase and the cause, and the job runs on. */
int ckpt_take(const struct rundir_job *job, const struct take_options *o, struct phases *ps,
	      struct take_result *r, struct why *why);

/* From now on SIGINT, SIGTERM and SIGHUP end this process's checkpoint cleanly. */
void ckpt_heed_signals(void);

#endif
