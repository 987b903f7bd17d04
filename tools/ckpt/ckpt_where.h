/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_where.h - finds the store, the job and its processes; who holds a job, and notes in its folder
 *
 * Files in a job's folder, beside those of rundir.h:
 *
 *     R.sock.gate      held (flock, shared) by a client while it connects, exclusively by a conductor
 *     conductor.lock   held by the job's only conductor
 *     options          the options of `run`, for a restore: lines of facts
 *     checkpointed     written before CRIU kills the tree: the job was saved and has not failed.
 *                      "ID STORE [WORD]…", words as in facts: the supervisor's next step
 *     taken            empty; written when CRIU has killed it, before conductor.lock is dropped. Without it and with
 *                      nobody at the lock, `checkpointed` is of a conductor that died, and the job has run on.
 *     last             "ID STORE" of the last published checkpoint
 *     restored         "ID DEVICE": the job was restored here from that checkpoint; DEVICE is the
 *                      requested one, -1: the former one
 *
 * Functions return 0 or -errno, and *why gets the reason, as ckpt_i.h says.
 */
#ifndef CKPT_WHERE_H
#define CKPT_WHERE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "rundir.h"
#include "why.h"

/* The store's absolute path: given if not NULL, else $SINGVGPU_STORE, else the user's default. */
int ckpt_store_path(const char *given, char path[PATH_MAX], struct why *why);
/*
 * The user of --trust-owner, by name or number, whose store is trusted like root's and our own; see
 * store_open_trusted(). 0, -ENOENT.
 */
int ckpt_trust_owner(const char *text, uid_t *uid, struct why *why);
#define TRUST_HELP \
"      --trust-owner USER a store of that user will do, too; USER can then have a restore\n" \
"                         do anything with your rights\n"

/* Makes the folders above a store that is to be created, with mode 0700. */
int ckpt_store_parents(const char *path, struct why *why);

/*
 * The live job with that id, or the one that has a process of that pid; for rundir_list_free(job,
 * 1). ckpt_live_job looks among the jobs of rundir_list(which). NULL: there is none of the *live ones, or,
 * with *live < 0, *why has an error. ckpt_find_job: the user's own, and started. NULL: *why has the reason.
 */
struct rundir_job *ckpt_live_job(const char *who, int which, int *live, struct why *why);
struct rundir_job *ckpt_find_job(const char *who, struct why *why);

/* A process, which is the first, and its descendants; the caller frees *pids. Their number or -errno, unsaid. */
int ckpt_tree(pid_t root, pid_t **pids);
/* The rank to which a process (host pid) of a job belongs; 0 if it belongs to none. */
int ckpt_rank_of(const struct rundir_job *job, pid_t pid);

/* Excludes a second conductor and clients that are about to connect, until ckpt_release(). */
struct ckpt_hold {
	int conductor;
	int gate[256];		/* JOB_RANKS_MAX */
	int gates;
};

/* Keeps conductors off a job being restored, until the fd is closed. fd or -errno, unsaid. */
int ckpt_hold_alone(const char *rundir, long ms);
/* The job has processes, and its file names all its proxies. */
bool ckpt_is_up(const struct rundir_job *job);
int ckpt_hold(const struct rundir_job *job, long ms, struct ckpt_hold *h, struct why *why);
void ckpt_release(struct ckpt_hold *h);

/* The file for --json, "-" is stdout; NULL: *why. ckpt_json_close: 0 or -errno. */
FILE *ckpt_json_open(const char *path, struct why *why);
int ckpt_json_close(const char *path, FILE *out, struct why *why);

/* Replace, remove, read a file in the job's folder: one line of words. ckpt_read_note: their number. */
int ckpt_note(const char *rundir, const char *name, char *const words[], int n);
void ckpt_note_remove(const char *rundir, const char *name);
int ckpt_read_note(const char *rundir, const char *name, char *words[], int room, char **text);

#endif
