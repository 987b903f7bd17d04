/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rundir.h - the folder of a running job, and what it says about the job
 *
 *   BASE            $XDG_RUNTIME_DIR/singvgpu, else /run/singvgpu (root) or /tmp/singvgpu-UID; 0700
 *   BASE/ID/        one for each job; ID is the process that the user started
 *     lock          held (flock) by run and its supervisor: if it is free both are dead
 *     job           text, replaced as a whole: struct rundir_job, for ps and top
 *     R.sock        where rank R's CUDA processes connect
 *     R-N.ctl       where rank R's proxy N is spoken to (uproxy/control.h)
 *     R-N.stat      struct uproxy_stat of rank R's proxy N
 *
 * Who creates, lists or sweeps holds a lock on BASE itself: nobody sees a folder without its lock.
 */
#ifndef RUNDIR_H
#define RUNDIR_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct rundir {
	char path[PATH_MAX];
	int lock;		/* fd, close-on-exec; -1: none */
};

/* A new folder, locked. Says what is wrong. */
int rundir_create(struct rundir *d);
/* Removes the folder and all in it, then the base if nothing else is in there. */
void rundir_remove(struct rundir *d);
/* Removes what killed jobs have left. Returns how many, or -errno without having said anything. */
int rundir_sweep(void);

enum { RANK_RUNNING, RANK_EXITED, RANK_KILLED };

#define RUNDIR_KEY	64

struct rundir_rank {
	pid_t pid;
	int state;		/* RANK_ */
	int code;		/* exit status, or signal */
	pid_t inner;		/* the pid in the job's namespace */
	/* What CRIU calls stdin, stdout, stderr ("pipe:[5]", "tty[8803:e]"); "": a plain file */
	char stdio[3][RUNDIR_KEY];
};

struct rundir_proxy {
	int rank, serial;
	pid_t pid, client;
	char name[32];		/* the client's; not in the job file */
};

struct rundir_job {
	char id[32];
	char path[PATH_MAX];
	bool live;		/* its lock is held */
	pid_t pid, supervisor;
	pid_t init;		/* process 1 of the job's pid namespace; 0: it has none */
	char status[RUNDIR_KEY];	/* init's pipe to the supervisor, as CRIU calls it */
	bool terminal;		/* the rank reads the user's terminal, in the user's session */
	uint64_t started_ns;	/* CLOCK_REALTIME */
	int devices;
	char *command;		/* as a shell would read it */
	int ranks;
	struct rundir_rank *rank;
	int proxies;
	struct rundir_proxy *proxy;
};

/*
 * A folder at the path it had before: -EBUSY if a live job has it. What a dead one has left there is
 * removed. Says what is wrong.
 */
int rundir_create_as(struct rundir *d, const char *path);

/* Writes d's job file anew. */
int rundir_write(const struct rundir *d, const struct rundir_job *job);

/* A job file's text, to be freed by rundir_list_free(job, 1). 0, -ENOMEM or -EBADMSG. */
int rundir_parse(struct rundir_job *job, const char *text, size_t len);

/*
 * The jobs of this user, or of all users if all (as root), oldest first; stale ones too, with
 * live = false. Returns their number or -errno.
 */
int rundir_list(struct rundir_job **jobs, bool all);
void rundir_list_free(struct rundir_job *jobs, int n);

/* The command as one line that a shell reads back; malloc'ed, or NULL. */
char *rundir_quote(char *const argv[]);

#endif
