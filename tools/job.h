/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - a job from its start to its end: the front process, the supervisor, ranks and proxies
 *
 *   shell ── front ── supervisor ─┬─ init ── rank 0 … rank n-1 ── whatever they start
 *              ▲          ▲       ├─ proxies, one for each connection
 *           signals    sockets    └─ prefixer, if there are several ranks
 *
 * init (init.c) is process 1 of a pid namespace, so that a restored job has its pids again; it tells
 * the supervisor over the status pipe how ranks end. Without the right to make a namespace, and for
 * a rank that reads a terminal (its session is not ours to take along), the ranks are the
 * supervisor's own children.
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

#include "criu.h"
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
	bool host_pids;		/* no pid namespace, whatever may be */
	bool help;		/* is all that is wanted */
	bool summary;		/* tell the sums of the trace */
	/* its own checkpoints: ckpt_own.h */
	char *store, *criu;	/* absolute, or NULL */
	long every_ms, every_steps;	/* 0: never */
	int preempt_signal;	/* 0: none */
	long preempt_ms;
	bool restart;
	char **command;
};

/* What was so when we started, and is to be so again in what we start. */
struct job_before {
	sigset_t mask;
	struct sigaction pipe, ttou, chld;
	struct rlimit files;
};

/* The end of a job whose folder has a file `checkpointed`: EX_TEMPFAIL. */
#define JOB_CHECKPOINTED	75

struct job;

/*
 * A job that comes back. All of it stays the caller's until the job has ended. The functions run in
 * the supervisor's process, one after the other, before its loop; a failure has been said, and ends
 * the job. They may start children (and threads), which must be gone when they return, but for the
 * restored tree.
 */
struct job_restore {
	const struct rundir_job *was;	/* from rundir_parse(): path, command, init, ranks, proxies */
	/* The proxies of was run with `--restore`, each on job_control_path(). 0 or -errno. */
	int (*proxies)(void *arg, struct job *job);
	/*
	 * Restores the tree as a child of this process; inherit[] is for --inherit-fd: the ranks'
	 * stdio and init's status pipe (their fds stay the caller's). The host's pid of the root
	 * (init, or the rank where there was none), or -errno. NULL: only the proxies were to be asked;
	 * run's exit status says what came of it, and the job gets a folder of its own.
	 */
	pid_t (*tree)(void *arg, struct job *job, const struct criu_fd *inherit, size_t n);
	/* The tree runs. proxy[].client may be filled in, see family_find(). 0 or -errno. */
	int (*go)(void *arg, struct job *job, struct rundir_proxy *proxy, int n, pid_t root);
	void *arg;
};

enum job_end {
	JOB_ENDED,		/* its ranks have ended */
	JOB_TAKEN,		/* there is a file `checkpointed`, and the tree was killed */
	JOB_LOST,		/* a proxy did not end by itself, or said that its device is lost */
	JOB_UNRESTORED,		/* what again() returned could not be brought back */
};

struct job {
	const struct job_options *opt;
	const struct places *places;
	struct rundir dir;
	struct job_before was;
	bool terminal;		/* the rank stays in the front's process group, on its terminal */
	pid_t front, group;	/* the front's process group */
	int front_pipe;		/* end of file: the front is dead */
	int devices;		/* that ranks are spread over */
	int port;		/* MASTER_PORT */
	const struct job_restore *restore;	/* NULL: the command is started */
	/*
	 * Asked when the ranks and proxies are gone, unless we were told to end; NULL: never. What
	 * it returns is done in the same folder. status: that run is about to exit with.
	 */
	const struct job_restore *(*again)(void *arg, struct job *job, enum job_end end,
					   int status);
	void *again_arg;
};

/* RUNDIR/R-N.ctl: where a proxy is spoken to. 0 or -ENAMETOOLONG. */
int job_control_path(const struct job *job, int rank, int serial, char *path, size_t size);


/* The host's pid of what is inner in the namespace of root's tree; 0: there is none. */
pid_t job_host_pid(pid_t root, pid_t inner);

/* For long work in job_restore: we are told to end, by a signal or the front's death. */
bool job_stopping(const struct job *job);

/*
 * Runs the job, or brings one back (then opt->ranks is as many as it had); says what went wrong.
 * Returns run's exit status.
 */
int job_run(const struct job_options *opt, const struct places *places,
	    const struct job_restore *restore);

/* The whole of a subcommand that starts a job: its own way to read arguments, and its help. */
typedef int (*job_parse)(struct job_options *opt, int argc, char **argv);
int job_main(int argc, char **argv, job_parse parse, const char *help);

/* The supervisor's life; returns run's exit status. The caller is the front's child. */
int job_supervise(struct job *job, const sigset_t *handled);

/* --------------------------------------------------------------------------- start.c */

/*
 * start_rank: fd[] become the command's 0, 1, 2 and stay the caller's. start_proxy: sock stays the
 * caller's; -1: it is started with --restore. The new process' pid, or -errno when it could not be
 * executed.
 */
pid_t start_rank(const struct job *job, int rank, const int fd[3]);
pid_t start_proxy(const struct job *job, int rank, int serial, int sock);

/*
 * All ranks in a pid namespace of their own. fd[r] as above; inner[r] is what init calls the rank and
 * pid[r] what we do, or both -errno of the first that could not be executed, after which none is
 * tried (0). status is the write end of the status pipe and stays the caller's. init's pid, or
 * -errno; -EPERM: there is no namespace to be had, and nothing has been started.
 */
pid_t start_init(const struct job *job, const int (*fd)[3], int status, pid_t *pid, pid_t *inner);

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
