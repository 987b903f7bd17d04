/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - a job from its start to its end: the front process, the supervisor, ranks and proxies
 *
 *   shell ── front ── supervisor ─┬─ rank 0 … rank n-1 ── whatever they start
 *              ▲          ▲       ├─ proxies, one for each connection
 *           signals    sockets    └─ prefixer, if there are several ranks
 *
 * The front is what the user started: it hands signals on and gives the exit status. The supervisor
 * does everything else. Both are subreapers and each sees the other's end, so that either of them
 * can be killed -9 and the other still ends all that the job has started and removes its folder.
 *
 * States of a job, with the function of job.c that leaves them:
 *
 *   RUN ─ step_run ─► FAMILY ─ step_family ─► PROXIES ─ step_proxies ─► OUTPUT ─ step_output ─► END
 *
 *   RUN      a rank has failed, or the front is dead: TERM to the others, KILL after the grace time
 *   FAMILY   what the ranks have left running: TERM, KILL
 *   PROXIES  they see that their clients are gone; else TERM, KILL
 *   OUTPUT   the prefixer writes what is still in the pipes
 */
#ifndef JOB_H
#define JOB_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "rundir.h"
#include "tool_i.h"

#define JOB_RANKS_MAX	256
#define JOB_PROXIES_MAX	1024
#define JOB_DEVICES_MAX	16	/* SV_DEVICES_MAX */

struct job_options {
	long ranks;
	long devices;		/* virtual ones on the soft device; 0: what the driver has */
	long grace_ms;
	uint64_t memory;	/* bytes of device memory for each proxy; 0: the proxy's default */
	const char *backend;
	char *driver;		/* absolute */
	char *log;		/* absolute, or NULL */
	char *trace;		/* absolute, or NULL: raw traces are TRACE.R-N, merged into TRACE */
	bool help;		/* is all that is wanted */
	bool summary;		/* tell the sums of the trace */
	char **command;
};

/* What was so when we started, and is to be so again in what we start. */
struct job_before {
	sigset_t mask;
	struct sigaction pipe, ttou, chld;
	struct rlimit files;
};

struct job {
	const struct job_options *opt;
	const struct places *places;
	struct rundir dir;
	struct job_before was;
	bool share_tty;		/* the rank stays in the front's process group, on its terminal */
	pid_t front, group;	/* the front's process group */
	int front_pipe;		/* end of file: the front is dead */
	int devices;		/* that ranks are spread over */
	int port;		/* MASTER_PORT */
};

/* Runs the job; says what went wrong. Returns run's exit status. */
int job_run(const struct job_options *opt, const struct places *places);

/* The whole of a subcommand that starts a job: its own way to read arguments, and its help. */
typedef int (*job_parse)(struct job_options *opt, int argc, char **argv);
int job_main(int argc, char **argv, job_parse parse, const char *help);

/* The supervisor's life; returns run's exit status. The caller is the front's child. */
int job_supervise(struct job *job, const sigset_t *handled);

/* --------------------------------------------------------------------------- start.c */

/*
 * start_rank: fd[] become the command's 0, 1, 2 and stay the caller's. start_proxy: sock stays the
 * caller's. The new process' pid, or -errno when it could not be executed.
 */
pid_t start_rank(const struct job *job, int rank, const int fd[3]);
pid_t start_proxy(const struct job *job, int rank, int serial, int sock);

/* The stat file and raw trace of a proxy. */
int start_stat_path(const struct job *job, int rank, int serial, char *path, size_t size);
int start_trace_path(const struct job *job, int rank, int serial, char *path, size_t size);

/* A TCP port of the loopback interface that nobody uses now, or -errno. */
int start_free_port(void);

/* -------------------------------------------------------------------------- prefix.c */

/*
 * A process that copies out[r] and err[r] to stdout and stderr, each line as "[r] line", until all
 * have ended. The read ends stay the caller's. Its pid or -errno.
 */
pid_t prefix_start(const int *out, const int *err, int ranks);

#endif
