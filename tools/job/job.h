/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - a job from its start to its end: the front process, the supervisor, ranks and proxies
 *
 *   shell ── front ── supervisor ─┬─ init ── rank 0 … rank n-1 ── whatever they start
 *              ▲          ▲       ├─ proxies, one for each connection
 *           signals    sockets    └─ prefixer, if there are several ranks
 *
 * init (init.c) is process 1 of a pid namespace, so that a restored job has its pids again; it
 * reports the ends of ranks over the status pipe. Without the right to make a namespace, and for a
 * rank that reads a terminal (whose session a checkpoint cannot contain), the ranks are the
 * supervisor's own children.
 *
 * The front is the process that the user started: it forwards signals and returns the exit status.
 * The supervisor does everything else. Both are subreapers, and each sees the other's death: if
 * either is killed, the other ends all processes of the job and removes its folder.
 *
 * States of a job, with the function of job.c that leaves them:
 *
 *   RUN ─ step_run ─► FAMILY ─ step_family ─► PROXIES ─ step_proxies ─► OUTPUT ─ step_output ─► END
 *
 *   RUN      a rank has failed, or the front is dead: TERM to the others, KILL after the grace time
 *   FAMILY   processes that the ranks have left running: 2 s if all ended well, TERM, KILL
 *   PROXIES  proxies end since their clients have; else TERM, KILL
 *   OUTPUT   the prefixer writes the rest of the output
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
#include "why.h"

#define JOB_RANKS_MAX	SEATING_RANKS
#define JOB_PROXIES_MAX	1024
#define JOB_LIMITS	7
#define JOB_DEVICES_MAX	SEATING_DEVICES	/* SV_DEVICES_MAX */

struct job_options {
	long ranks;
	long devices;		/* virtual ones on the soft device; 0: those of the driver */
	struct seating_on on;	/* of --on; not given: logical and physical devices have the same numbers */
	long sees;		/* with --on: how many logical devices the job sees */
	long grace_ms;
	long collective_ms;	/* that a collective may stand, before it is named; 0: for ever */
	uint64_t memory;	/* bytes of device memory for each proxy; 0: the proxy's default */
	const char *window;	/* sv_windows_parse takes it; NULL: the proxy's */
	const char *backend;
	const char *reduction;	/* tree or nccl; NULL: the proxy's */
	char *driver;		/* absolute */
	char *log;		/* absolute, or NULL */
	char *trace;		/* absolute, or NULL: raw traces are TRACE.R-N, merged into TRACE */
	enum seating_share share;
	bool ranked;		/* --ranks was given: ranks get RANK, WORLD_SIZE … */
	bool host_pids;		/* make no pid namespace */
	bool close_fds;		/* the command gets no descriptors from 3 up */
	bool help;		/* print the help and exit */
	bool summary;		/* print the sums of the trace */
	bool warm;		/* print what was compiled; root's kernels are kept for all users */
	/* its own checkpoints: ckpt_own.h */
	char *store, *criu;	/* absolute, or NULL */
	uid_t trust_owner;	/* of --restart's restores; 0: nobody else */
	long every_ms, every_steps;	/* 0: never */
	long at_step_ms;		/* checkpoint's --at-step for its own checkpoints; 0: not */
	int preempt_signal;	/* 0: none */
	long preempt_ms;
	bool restart, outside;
	char **command;
};

/* The process attributes that we were started with, which ranks get again. */
struct job_before {
	sigset_t mask;
	struct sigaction pipe, ttou, chld, xfsz;
	struct rlimit limit[JOB_LIMITS];
};

/* Ranks keep the user's limits; the supervisor and its proxies raise theirs (raise_limits()). */
extern const int job_limits[JOB_LIMITS];

/* run's exit status for a job whose folder has a file `checkpointed`: EX_TEMPFAIL. */
#define JOB_CHECKPOINTED	75

struct job;

#define JOB_WATCHERS_MAX	8

/*
 * What watches a job, or acts on it, and is no part of its life: the job's own checkpoints, its history, programs that are
 * not in it. The supervisor knows none of them by name: it calls each function that is not NULL, in the order of the
 * table. They run in the supervisor's loop and never wait.
 */
struct job_watcher {
	/* Before each life of the job, from its start or a restore on. 0 or -errno. */
	int (*start)(const struct job *job, struct why *why);
	/* The ranks run. lives: false for a check of a checkpoint, and for a restore that has failed. */
	void (*started)(const struct job *job, bool lives);
	/* In each turn of the loop; runs: some rank runs. Returns the ms until the next call is due, or -1. */
	int (*step)(const struct job *job, bool runs);
	/* hear: what fd() has returned before the loop (negative: there is nothing) has something to read. */
	int (*fd)(void);
	void (*hear)(void);
	/* The supervisor may print next: takes away a line that is to be replaced. */
	void (*hush)(void);
	/* While ranks run. True: the signal is for the watcher, and the ranks must not get it. */
	bool (*signal)(int sig);
	/* The files of the proxy are still there. */
	void (*proxy_ended)(const struct job *job, const struct rundir_proxy *p);
	/* Its child; 0: none. waited: the job's end waits for it, and kills it in the end; else `ranks_ended` does. */
	pid_t (*child)(void);
	bool waited;
	/* A child of the supervisor has ended. True: it was the watcher's. *forward: a signal to send to the ranks, or 0. */
	bool (*ended)(pid_t pid, int status, int *forward);
	/* All ranks have ended; taken: by a checkpoint. */
	void (*ranks_ended)(bool taken);
	/* The end of a life. */
	void (*stop)(const struct job *job);
	/* The job is over, and its folder is still there. status: run's exit status; how: it ended. */
	void (*close)(const struct job *job, int status, const char *how);
	/* The folder is gone; only of a job that nobody has asked to end. */
	void (*report)(const struct job *job, int status);
};

/*
 * How to restore a job. The caller keeps all of it until the job has ended. The functions run in
 * the supervisor's process, one after the other, before its loop; a failure ends the job, and the supervisor
 * prints its reason, unless *why has none. Children and threads that they start must have ended when they
 * return, except for the restored tree.
 */
struct job_restore {
	const struct rundir_job *was;	/* from rundir_parse(): path, command, init, ranks, proxies */
	const struct seating *seating;	/* who sits where from now on; its seats are not taken */
	/* was' proxies run with `--restore`, each on job_control_path(). 0 or -errno. */
	int (*proxies)(void *arg, struct job *job, struct why *why);
	/*
	 * Restores the tree as a child of this process; inherit[] is for --inherit-fd: the ranks'
	 * stdio and init's status pipe (their fds stay the caller's). Returns the host's pid of the
	 * root (init, or the rank of a job without init), or -errno. NULL: a check by the proxies
	 * alone; run's exit status is its result, and the job gets a new folder.
	 */
	pid_t (*tree)(void *arg, struct job *job, const struct criu_fd *inherit, size_t n, struct why *why);
	/* The tree runs. proxy[].client may be filled in, see family_find(). 0 or -errno. */
	int (*go)(void *arg, struct job *job, struct rundir_proxy *proxy, int n, pid_t root, struct why *why);
	/* In the process that has forked the supervisor: closes what only the supervisor uses from then on. */
	void (*leave)(void *arg);
	void *arg;
};

enum job_end {
	JOB_ENDED,		/* its ranks have ended */
	JOB_TAKEN,		/* there is a file `checkpointed`, and the tree was killed */
	JOB_LOST,		/* a proxy was killed, or its device is lost */
	JOB_UNRESTORED,		/* a restore failed */
};

struct job {
	const struct job_options *opt;
	const struct places *places;
	struct rundir dir;
	struct job_before was;
	bool terminal;		/* the rank stays in the front's process group, on its terminal */
	pid_t front, group;	/* the front's process group */
	int front_pipe;		/* end of file: the front is dead */
	int devices;		/* physical ones of this host, as far as `run` can tell */
	uint8_t map[SEATING_DEVICES];	/* with --on: the physical device of each logical one */
	struct seating *seating;	/* the supervisor's; NULL before it runs */
	int slices[SEATING_DEVICES][2];	/* of each device of this host that ranks share by slices: a socket's ends, which their
					 * proxies get (uproxy/slice/common.h); else 0 */
	int port;		/* MASTER_PORT */
	struct jobboard *board;	/* the supervisor's (jobboard.h); NULL before it runs */
	const struct rundir_job *info;	/* the supervisor's, as in the job file; NULL before it runs */
	const struct job_watcher *const *watchers;	/* a NULL behind at most JOB_WATCHERS_MAX */
	tell_line *tell;	/* what the user should know of the job's checkpoints and restores */
	const struct job_restore *restore;	/* NULL: the command is started */
	bool former;			/* the restore was beside the job's former proxies, on the same devices perhaps */
	/*
	 * Called when ranks and proxies have ended, unless a signal has asked for the end; may be
	 * NULL. The restore that it returns is done in the same folder. status: run's exit status.
	 */
	const struct job_restore *(*again)(void *arg, struct job *job, enum job_end end,
					   int status);
	void *again_arg;
};

/* RUNDIR/R-N.ctl: a proxy's control socket. 0 or -ENAMETOOLONG. */
int job_control_path(const struct job *job, int rank, int serial, char *path, size_t size);

/* The host's pid of the process with pid inner in the namespace of root's tree; 0: none. */
pid_t job_host_pid(pid_t root, pid_t inner);

/* For long work in job_restore: a signal, or the front's death, asks us to end. */
bool job_stopping(const struct job *job);

/*
 * Runs a job, or restores one (with opt->ranks as it had). Prints the reason of a failure. Returns
 * run's exit status.
 */
int job_run(const struct job_options *opt, const struct places *places,
	    const struct job_restore *restore);

/* The main function of a subcommand that starts a job, given its parser of arguments and help. */
typedef int (*job_parse)(struct job_options *opt, int argc, char **argv);
int job_main(int argc, char **argv, job_parse parse, const char *help);

/* The supervisor's life; returns run's exit status. The caller is the front's child. */
int job_supervise(struct job *job, const sigset_t *handled);

/* The table of a job that is started: its options, devices and map say it. */
void job_seating(const struct job *job, struct seating *t);

/* --------------------------------------------------------------------------- start.c */

/*
 * Return the new process' pid, or -errno if it cannot be executed. start_rank: fd[] become the
 * command's 0, 1, 2 and stay the caller's. start_proxy: board and its seat are for collectives,
 * negative: there is none; board and sock stay the caller's; sock -1: start with --restore.
 */
pid_t start_rank(const struct job *job, int rank, const int fd[3]);
pid_t start_proxy(const struct job *job, int rank, int serial, int board, int seat, int sock);
/*
 * Ends a proxy, a child of this process, whose client has left its session by an exec: the process lives, and has the session's
 * channel no longer. Waits up to 2 s for the end, so that the device's memory is there for the next session.
 */
void end_left_proxy(pid_t proxy, pid_t client);

/*
 * Starts init and all ranks in a new pid namespace. fd[r] as above. inner[r] is the rank's pid in
 * that namespace and pid[r] the one in ours; for the first rank that cannot be executed both are
 * -errno, and for those behind it 0. status is the write end of the status pipe and stays the
 * caller's. Returns init's pid, or -errno; -EPERM: a namespace cannot be made, and nothing has been
 * started.
 */
pid_t start_init(const struct job *job, const int (*fd)[3], int status, pid_t *pid, pid_t *inner);

/* The stat file and raw trace of a proxy. */
/* In a process that the supervisor has forked: closes all descriptors but these and 0 to 2. */
void start_close_others(const int *keep, int n);

int start_stat_path(const struct job *job, int rank, int serial, char *path, size_t size);
int start_trace_path(const struct job *job, int rank, int serial, char *path, size_t size);

/* A TCP port of the loopback interface that is free now, or -errno. */
int start_free_port(void);

/* -------------------------------------------------------------------------- prefix.c */

/*
 * Starts a process that copies out[r] and err[r] to stdout and stderr, each line as "[r] line",
 * until all have ended. The read ends stay the caller's. Its pid or -errno.
 */
pid_t prefix_start(const int *out, const int *err, int ranks);

#endif
