/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the options that `run` and `trace` share
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "job.h"

#define OPTIONS_SHORT	"hn:"

enum {
	OPTION_DEVICES = 256,
	OPTION_ON,
	OPTION_DRIVER,
	OPTION_MEMORY,
	OPTION_WINDOW,
	OPTION_BACKEND,
	OPTION_LOG,
	OPTION_GRACE,
	OPTION_COLLECTIVE,
	OPTION_REDUCTION,
	OPTION_SHARE,
	OPTION_CLOSE_FDS,
};

#define OPTIONS_LONG \
	{ "ranks", required_argument, NULL, 'n' }, \
	{ "devices", required_argument, NULL, OPTION_DEVICES }, \
	{ "on", required_argument, NULL, OPTION_ON }, \
	{ "driver", required_argument, NULL, OPTION_DRIVER }, \
	{ "memory", required_argument, NULL, OPTION_MEMORY }, \
	{ "window", required_argument, NULL, OPTION_WINDOW }, \
	{ "backend", required_argument, NULL, OPTION_BACKEND }, \
	{ "log", required_argument, NULL, OPTION_LOG }, \
	{ "grace", required_argument, NULL, OPTION_GRACE }, \
	{ "collective-timeout", required_argument, NULL, OPTION_COLLECTIVE }, \
	{ "reduction", required_argument, NULL, OPTION_REDUCTION }, \
	{ "share", required_argument, NULL, OPTION_SHARE }, \
	{ "close-fds", no_argument, NULL, OPTION_CLOSE_FDS }, \
	{ "help", no_argument, NULL, 'h' }

#define OPTIONS_HELP \
"      --devices N      N virtual devices on this CPU, whatever GPUs there are\n" \
"      --on M           use M devices; the job sees as many as --devices says, else as\n" \
"                       many as it has ranks, and several ranks share one\n" \
"      --on A,B,...     device 0 of the job is device A of this host, 1 is B, and so on;\n" \
"                       A, with a comma alone: all are device A\n" \
"      --driver PATH    the CUDA driver that the proxies load (default: NVIDIA's if\n" \
"                       there is a GPU, else the soft device)\n" \
"      --memory SIZE    device memory that each process may use\n" \
"      --window BASE:LEN[,...]\n" \
"                       addresses for device memory, tried in turn\n" \
"      --backend WHICH  auto, kmod or memfd: what carries the calls (default auto)\n" \
"      --log FILE       append the proxies' messages to FILE\n" \
"      --grace SECONDS  from SIGTERM to SIGKILL for ranks when another has failed, and\n" \
"                       for what a command left running (default 10)\n" \
"      --collective-timeout SECONDS\n" \
"                       name a collective that stands for so long, and who is missing\n" \
"                       (default 600; 0: never)\n" \
"      --reduction tree|nccl\n" \
"                       the order in which collectives add: one tree, with the same bits on\n" \
"                       any devices (default), or NCCL's own\n" \
"      --share auto|together|slices|never\n" \
"                       ranks on one device have memory of their own there (together), or\n" \
"                       take turns with all of it (slices), or do what fits (auto, the\n" \
"                       default), or are refused (never)\n" \
"      --close-fds      pass no descriptors but 0, 1 and 2 on to the command\n"

void options_default(struct job_options *opt);
/* Parses one option, c from getopt_long. 0, or an exit status with the reason printed. */
int options_parse(struct job_options *opt, int c, const char *command);
/* An absolute path of a file that can be created; malloc'ed, or NULL with the reason printed. */
char *options_path(const char *path);
/*
 * Parses --on. 0, or an exit status with the reason printed. *where: the same for bring_where_parse(), malloc'ed; NULL after
 * a failure.
 */
int options_on_where(const char *text, struct seating_on *on, char **where, const char *command);
/* Parses --share. 0, or an exit status with the reason printed. */
int options_share(const char *text, enum seating_share *share, const char *command);
/* The user of --trust-owner. 0, or an exit status with the reason printed. */
int options_trust_owner(const char *text, uid_t *uid);
/* Finds the places and the driver; checks that the job can be started. 0 or an exit status. */
int options_finish(struct job_options *opt, struct places *places);
void options_free(struct job_options *opt, struct places *places);

#endif
