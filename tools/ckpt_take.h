/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_take.h - takes a checkpoint of a running job
 *
 *   look ─► freeze ─► device, criu (at once) ─► tree frozen: channel, files, publish ─► killed
 *                                                     └ leave_running: the tree goes on, publish
 *
 * Until the checkpoint is published nothing is done that cannot be undone, and what is done undoes
 * itself when this process dies: CRIU lets the tree go on, and each proxy opens its gate.
 */
#ifndef CKPT_TAKE_H
#define CKPT_TAKE_H

#include "ckpt_i.h"

struct take_options {
	const char *store;	/* NULL: the default */
	const char *criu;	/* NULL: what is found */
	bool leave_running;
	long timeout_ms;	/* for all up to the publication; 0: none */
	long freeze_ms;		/* for the devices to become idle */
	char *const *next;	/* words for the file "checkpointed", behind id and store */
	int n_next;
	/*
	 * Asked when the checkpoint is published and before the job is killed: not 0 and the job
	 * runs on. NULL: not asked.
	 */
	int (*accept)(void *arg, const char *store, const char *id, char *why, size_t size);
	void *arg;
};

/* The options that all commands that take one have; for getopt_long. */
enum { TAKE_STORE = 900, TAKE_TIMEOUT, TAKE_FREEZE, TAKE_CRIU };
#define TAKE_LONG						\
	{ "store", required_argument, NULL, TAKE_STORE },	\
	{ "timeout", required_argument, NULL, TAKE_TIMEOUT },	\
	{ "freeze", required_argument, NULL, TAKE_FREEZE },	\
	{ "criu", required_argument, NULL, TAKE_CRIU }
#define TAKE_DEFAULT ((struct take_options){ .timeout_ms = 600000, .freeze_ms = 30000 })

/* c and optarg, as getopt has them: 0, 1 none of these, or < 0 it is not a number of seconds. */
int take_option(struct take_options *o, int c);

struct take_result {
	char id[33];		/* "" if nothing was published */
	char store[PATH_MAX];
	uint64_t frozen_ns;	/* that the job's processes did not run */
	uint64_t bytes, stored;	/* handled; new to the store */
};

/* 0, or -errno, with the phase, the cause and the remedy said; the job runs on then. */
int ckpt_take(const struct rundir_job *job, const struct take_options *o, struct phases *ps,
	      struct take_result *r);

/* SIGINT, SIGTERM, SIGHUP end what is under way, cleanly, in this process from now on. */
void ckpt_heed_signals(void);
extern volatile int ckpt_signalled;	/* the signal that came, or 0 */

#endif
