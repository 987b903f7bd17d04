/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rundir.h - the folder of a running job, and what it says about the job
 *
 *   BASE            $XDG_RUNTIME_DIR/singvgpu, else /run/singvgpu (root) or /tmp/singvgpu-UID; 0700
 *   BASE/ID/        one for each job; ID is the process that the user started
 *     lock          held (flock) by run and its supervisor: if it is free both are dead
 *     job           text, replaced as a whole: struct rundir_job, for ps and top
 *     R.sock        where rank R's CUDA processes connect
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

struct rundir_rank {
	pid_t pid;
	int state;		/* RANK_ */
	int code;		/* exit status, or signal */
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
	uint64_t started_ns;	/* CLOCK_REALTIME */
	int devices;
	char *command;		/* as a shell would read it */
	int ranks;
	struct rundir_rank *rank;
	int proxies;
	struct rundir_proxy *proxy;
};

/* Writes d's job file anew. */
int rundir_write(const struct rundir *d, const struct rundir_job *job);

/*
 * The jobs of this user, or of all users if all (as root), oldest first; stale ones too, with
 * live = false. Returns their number or -errno.
 */
int rundir_list(struct rundir_job **jobs, bool all);
void rundir_list_free(struct rundir_job *jobs, int n);

/* The command as one line that a shell reads back; malloc'ed, or NULL. */
char *rundir_quote(char *const argv[]);

#endif
