/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_options.h - the options of a job's own checkpoints (ckpt_own.h)
 */
#ifndef OWN_OPTIONS_H
#define OWN_OPTIONS_H

#include "job.h"

enum {
	OWN_STORE = 512,
	OWN_CRIU,
	OWN_EVERY,
	OWN_STEPS,
	OWN_AT_STEP,
	OWN_SIGNAL,
	OWN_GRACE,
	OWN_RESTART,
	OWN_HOST_PIDS,
	OWN_TRUST,
	OWN_OUTSIDE,
};

#define OWN_LONG \
	{ "store", required_argument, NULL, OWN_STORE }, \
	{ "criu", required_argument, NULL, OWN_CRIU }, \
	{ "every", required_argument, NULL, OWN_EVERY }, \
	{ "every-steps", required_argument, NULL, OWN_STEPS }, \
	{ "at-step", optional_argument, NULL, OWN_AT_STEP }, \
	{ "preempt-signal", required_argument, NULL, OWN_SIGNAL }, \
	{ "preempt-grace", required_argument, NULL, OWN_GRACE }, \
	{ "restart", no_argument, NULL, OWN_RESTART }, \
	{ "trust-owner", required_argument, NULL, OWN_TRUST }, \
	{ "host-pids", no_argument, NULL, OWN_HOST_PIDS }, \
	{ "outside", no_argument, NULL, OWN_OUTSIDE }

#define OWN_HELP \
"      --every TIME     take a checkpoint every TIME, such as 90s, 30m or 2h\n" \
"      --every-steps N  take one after every N kernel launches, as `ps` counts them\n" \
"      --at-step[=SECONDS]\n" \
"                       take these at the end of a training step (see singvgpu checkpoint\n" \
"                       --help)\n" \
"      --preempt-signal SIGNAL\n" \
"                       at this signal take a checkpoint and end, with status 75\n" \
"      --preempt-grace SECONDS\n" \
"                       in that time; else the command gets the signal (default 30)\n" \
"      --restart        bring the command back from its last checkpoint by itself when\n" \
"                       a proxy is killed or its device is lost\n" \
"      --store DIR      where checkpoints go (see singvgpu checkpoint --help)\n" \
"      --trust-owner USER\n" \
"                       a store of that user will do for --restart, too; USER can then\n" \
"                       have the restart do anything with your rights\n" \
"      --criu PATH      the CRIU program for them\n" \
"      --host-pids      no pid namespace for the command\n" \
"      --outside        its checkpoints may break TCP connections to processes outside\n"

/* Parses one option. 0, or an exit status with the reason printed; -1: none of these options. */
int own_option(struct job_options *opt, int c, const char *command);

#endif
