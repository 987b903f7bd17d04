/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rundir.h - the folder of a running job, and its files
 *
 *   BASE            $XDG_RUNTIME_DIR/singvgpu, else /run/singvgpu (root) or /tmp/singvgpu-UID; 0700
 *   BASE/ID/        one for each job; ID is the process that the user started
 *     lock          held (flock) by run and its supervisor; free: both are dead
 *     job           text, replaced as a whole: struct rundir_job, for ps and top
 *     R.sock        where rank R's CUDA processes connect
 *     R.sock.gate   locked by whoever connects, and by a conductor to keep all away (ckpt_where.h)
 *     R-N.ctl       control socket of rank R's proxy N (uproxy/include/control.h)
 *     R-N.stat      struct uproxy_stat of rank R's proxy N
 *     comms         text: communicators and what is in flight (jobboard.h), if there are any
 *     history.*     what the job has done (history.h)
 *
 * Functions that create, list or sweep hold a lock on BASE, so none of them sees a folder without
 * its lock. Folders of other users are only shown (`ps -a`): we wait for no lock in them, open
 * their files without blocking, close at once what is no regular file, and read no more than a limit.
 */
#ifndef RUNDIR_H
#define RUNDIR_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "seating.h"
#include "why.h"

struct rundir {
	char path[PATH_MAX];
	int lock;		/* fd, close-on-exec; -1: none */
};

/* Creates a folder and locks it. 0 or -errno. */
int rundir_create(struct rundir *d, struct why *why);
/* Removes the folder with its files, then the base if it is empty. */
void rundir_remove(struct rundir *d);
/* Removes the folders of killed jobs. Returns their number, or -errno, unsaid. */
int rundir_sweep(void);

enum { RANK_RUNNING, RANK_EXITED, RANK_KILLED };

#define RUNDIR_KEY	64

/* Names in the folder: of a rank's files, and of its proxy `serial`. */
#define RUNDIR_NAME	32

enum rundir_name { RUNDIR_SOCKET, RUNDIR_GATE, RUNDIR_CONTROL, RUNDIR_STAT, RUNDIR_KEPT };

/*
 * rundir_name: such a name. rundir_path: with the folder before it; 0 or -ENAMETOOLONG. rundir_is_control: is it the name
 * of a control socket, and whose?
 */
const char *rundir_name(char name[RUNDIR_NAME], enum rundir_name what, int rank, int serial);
int rundir_path(char *path, size_t size, const char *dir, enum rundir_name what, int rank, int serial);
bool rundir_is_control(const char *name, int *rank, int *serial);

struct rundir_rank {
	pid_t pid;
	int state;		/* RANK_ */
	int code;		/* exit status, or signal */
	pid_t inner;		/* the pid in the job's namespace */
	/* CRIU's keys of stdin, stdout, stderr ("pipe:[5]", "tty[8803:e]"); "": a plain file */
	char stdio[3][RUNDIR_KEY];
};

struct rundir_proxy {
	int rank, serial;
	pid_t pid, client;
	int seat;		/* on the board of collectives; -1: none, or of a job file that does not say */
	char name[32];		/* the client's; not in the job file */
};

/* Of the job file. A change that an older reader would misread raises it; older files are read. */
#define RUNDIR_VERSION	1u

struct rundir_job {
	unsigned int version;
	char id[32];
	char path[PATH_MAX];
	uid_t uid;		/* the owner, from rundir_list() */
	bool live;		/* its lock is held */
	pid_t pid, supervisor;
	pid_t init;		/* process 1 of the job's pid namespace; 0: it has none */
	char status[RUNDIR_KEY];	/* CRIU's key of init's pipe to the supervisor */
	bool terminal;		/* the rank reads the user's terminal, in the user's session */
	uint64_t started_ns;	/* CLOCK_REALTIME */
	int devices;
	char *command;		/* quoted for a shell */
	int ranks;
	struct rundir_rank *rank;
	struct seating seating;	/* ranks 0: the file has none */
	int proxies;
	struct rundir_proxy *proxy;
};

/*
 * Makes a job's folder again at its former path, without the files of a dead job there. -EBUSY: a
 * live job has it; -errno.
 */
int rundir_create_as(struct rundir *d, const char *path, struct why *why);

/*
 * Opens a file in a job's folder, close-on-exec, without blocking. It must be a regular file with
 * one name, and belong to owner, as must the folder; else -EPERM, -ELOOP or -ENXIO. Returns an fd
 * or -errno, and sets errno.
 */
int rundir_open(const char *dir, uid_t owner, const char *name, int flags);
/* Opens one and takes its lock: an fd, -EWOULDBLOCK if the lock is held, or -errno. */
int rundir_try_lock(const char *dir, uid_t owner, const char *name, int flags);
/*
 * Reads such a file; the caller frees *text, which has a NUL behind its len bytes. 0 or -errno; -EFBIG: it has more than
 * `most` bytes (rundir_read: 16 MiB).
 */
int rundir_read(const char *dir, uid_t owner, const char *name, char **text, size_t *len);
int rundir_read_most(const char *dir, uid_t owner, const char *name, size_t most, char **text, size_t *len);
/* A new file, with which rundir_commit replaces name, or which rundir_drop removes. NULL: errno. rundir_commit: 0 or -errno. */
FILE *rundir_begin(const char *dir, const char *name);
int rundir_commit(const char *dir, const char *name, FILE *out);
void rundir_drop(const char *dir, const char *name, FILE *out);

/* Writes d's job file anew. */
int rundir_write(const struct rundir *d, const struct rundir_job *job);

/*
 * Parses a job file's text; rundir_list_free(job, 1) frees job. 0, -ENOMEM; -EBADMSG, -EFBIG: it is none that this
 * program writes; -EPROTONOSUPPORT: it is of a later version, job->version.
 */
int rundir_parse(struct rundir_job *job, const char *text, size_t len);

enum rundir_whose {
	RUNDIR_HERE,		/* this user's jobs in the base of new jobs */
	RUNDIR_OWN,		/* this user's jobs, also under another XDG_RUNTIME_DIR */
	RUNDIR_ALL,		/* for root: jobs of all users */
};

/*
 * Lists jobs, oldest first; stale ones have live = false. Returns their number or -errno. Files of other users are read
 * up to a limit, in number, bytes and lines: *left_out (or NULL) gets the number of jobs beyond it, and of those whose
 * file is none.
 */
int rundir_list(struct rundir_job **jobs, enum rundir_whose whose, unsigned int *left_out);
void rundir_list_free(struct rundir_job *jobs, int n);

/* The command as one line, quoted for a shell; malloc'ed, or NULL. */
char *rundir_quote(char *const argv[]);

#endif
