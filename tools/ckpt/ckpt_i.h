/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_i.h - what checkpoint, restore, migrate and run's own checkpoints share
 *
 * Files in a job's folder, beside those of rundir.h:
 *
 *     R.sock.gate      held (flock, shared) by a client while it connects, exclusively by a conductor
 *     conductor.lock   held by the job's only conductor
 *     options          the options of `run`, for a restore: lines of facts
 *     checkpointed     written before CRIU kills the tree: the job was saved and has not failed.
 *                      "ID STORE [WORD]…", words as in facts: the supervisor's next step
 *     last             "ID STORE" of the last published checkpoint
 *     restored         "ID DEVICE": the job was restored here from that checkpoint; DEVICE is the
 *                      requested one, -1: the former one
 *
 * Nothing in this folder prints: only the commands do. Functions return 0 or -errno, and *why gets the reason; "unsaid"
 * below: there is no sentence. What the user should know while a command goes on, or of one that succeeds, is told
 * through a tell_line (tool_i.h).
 */
#ifndef CKPT_I_H
#define CKPT_I_H

#include <limits.h>

#include "ckpt_facts.h"
#include "phase.h"
#include "rundir.h"
#include "tool_i.h"
#include "why.h"

/* ------------------------------------------------------------------------ where.c */

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

/* A process and its descendants; the caller frees *pids. Their number or -errno, unsaid. */
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

/* Replace, read a file in the job's folder: one line of words. ckpt_read_note: their number. */
int ckpt_note(const char *rundir, const char *name, char *const words[], int n);
int ckpt_read_note(const char *rundir, const char *name, char *words[], int room, char **text);

/* ----------------------------------------------------------------------- remote.c */

/*
 * The command line, quoted for a shell, that restores id on another host; trust is a uid in
 * decimal, more may be NULL. malloc'ed, or NULL.
 */
char *ckpt_remote_command(const char *program, const char *store, const char *trust, const char *id,
			  const char *more);
/*
 * Runs command on host, with its output on our stderr. Its exit status or -errno. tell is called in the child, if the
 * shell cannot be executed.
 */
int ckpt_ssh(const char *ssh, const char *host, const char *command, tell_line *tell);
/* Executes ssh with command in place of this program. Returns -errno on failure. */
int ckpt_ssh_exec(const char *ssh, const char *host, const char *command, struct why *why);

/* --------------------------------------------------------------------- contents.c */

#define CKPT_DIGEST	38		/* "xxh3:HEX" and a NUL */

/*
 * ckpt_contents_open: NULL: no memory. ckpt_contents_digest: of the whole file; 0 or -errno, unsaid: -ECANCELED once
 * stop(arg), which is asked meanwhile unless it is NULL, is true.
 */
struct ckpt_contents;
struct ckpt_contents *ckpt_contents_open(bool (*stop)(void *arg), void *arg);
int ckpt_contents_digest(struct ckpt_contents *c, int fd, char digest[CKPT_DIGEST]);
void ckpt_contents_close(struct ckpt_contents *c);

/* ------------------------------------------------------------------------ parts.c */

struct store;
struct store_checkpoint;
/*
 * Checks that the checkpoint has the parts that its facts list, and the store all pages of them (s is NULL: the parts
 * alone); reads no pages. 0, -EBADMSG, or an error of the store: *why names the first part that it is not so of.
 */
int ckpt_parts_check(const struct ckpt_facts *f, struct store *s, const struct store_checkpoint *c, struct why *why);

/* ----------------------------------------------------------------------- mapped.c */

/* The files that the job's processes (host pids) have mapped and that a restore finds by path. stop: as above. */
int ckpt_mapped(const pid_t *pids, int n, struct ckpt_facts *f, bool (*stop)(void *arg), void *arg, struct why *why);
/* Checks that they are here and the same; *why names the first other one. 0, -ENOENT, -ESTALE. */
int ckpt_mapped_check(const struct ckpt_facts *f, struct why *why);

/* ------------------------------------------------------------------------ stood.c */

/*
 * To all processes of a tree of which no thread runs: their steady clocks shall know nothing of the time
 * since since_ns (CLOCK_MONOTONIC; 0: none), nor of before_ns more.
 */
void ckpt_stood(pid_t root, uint64_t since_ns, uint64_t before_ns);

/* ------------------------------------------------------------------------- lost.c */

/*
 * -ENOTSUP: the processes (host pids, the root first), of which no thread runs, have what CRIU would lose without a
 * word; *why names it.
 */
int ckpt_lost(const pid_t *pids, int n, struct why *why);
/* The same of what takes a while to look for, such as their mappings; the processes may run. */
int ckpt_lost_running(const pid_t *pids, int n, struct why *why);

/* ------------------------------------------------------------------------ ports.c */

/*
 * The TCP ports on which the processes (host pids, the root first) listen, and their connections. No thread of them
 * runs: who opens a socket between two looks would seem to be a process outside.
 * -ENOTSUP: unless outside, a connection that they have made leads out of the job.
 */
int ckpt_ports(const struct rundir_job *job, const pid_t *pids, int n, bool outside, struct ckpt_facts *f,
	       struct why *why);
/*
 * Checks that no other process listens on them, and that all their addresses are this host's. Tells of each
 * that does not fit if there are several; *why names the first. 0, -EADDRINUSE, -EADDRNOTAVAIL.
 */
int ckpt_ports_check(const struct ckpt_facts *f, tell_line *tell, struct why *why);
/* A port that only ended connections still occupy, which will pass; 0: there is none. */
int ckpt_ports_passing(const struct ckpt_facts *f);

#endif
