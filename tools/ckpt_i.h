/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_i.h - what checkpoint, restore, migrate and run's own checkpoints share
 *
 * In a job's folder (rundir.h), beside what is said there:
 *
 *     R.sock.gate      held (flock, shared) by a client while it connects, exclusively by a conductor
 *     conductor.lock   held by the one conductor of the job
 *     options          what `run` was told, for whoever restores the job: lines of facts
 *     checkpointed     written before CRIU kills the tree: the job has not failed. "ID STORE [WORD]…",
 *                      words as in facts: what the front is to execute next, as `migrate` wants it
 *     last             "ID STORE" of the last published checkpoint
 *     restored         "ID DEVICE": the job has come back from that one, in this folder; DEVICE as
 *                      it was asked for, -1: as it was
 *
 * Functions return 0 or -errno; they have told the user why, unless they fill in why[].
 */
#ifndef CKPT_I_H
#define CKPT_I_H

#include <limits.h>

#include "ckpt_facts.h"
#include "ckpt_phase.h"
#include "rundir.h"
#include "tool_i.h"

#define CKPT_WHY	1024

/* ------------------------------------------------------------------------ ckpt_where.c */

/* given (may be NULL), $SINGVGPU_STORE, else the user's place; absolute. */
int ckpt_store_path(const char *given, char path[PATH_MAX]);
/* Makes the folders above it, 0700, for a store that is to be created. */
int ckpt_store_parents(const char *path);

/*
 * The live job with that id, or to which the process of that pid belongs; for rundir_list_free(job, 1).
 * NULL: the user knows why.
 */
struct rundir_job *ckpt_find_job(const char *who);

/* A process and all that descend from it; *pids is the caller's. Their number or -errno, unsaid. */
int ckpt_tree(pid_t root, pid_t **pids);
/* Is there no such process, or only its status left? */
bool ckpt_has_ended(pid_t pid);

/* No second conductor, and no client half connected, while it is held. */
struct ckpt_hold {
	int conductor;
	int gate[256];		/* JOB_RANKS_MAX */
	int gates;
};

/* Keeps conductors off a job that is being brought back; to be closed. fd or -errno, unsaid. */
int ckpt_hold_alone(const char *rundir, long ms);
/* Has it processes by now, and does its file name all proxies? */
bool ckpt_is_up(const struct rundir_job *job);
int ckpt_hold(const struct rundir_job *job, long ms, struct ckpt_hold *h);
void ckpt_release(struct ckpt_hold *h);

/* The file for --json, "-" is stdout; NULL: said. ckpt_json_close: 0 or an exit status. */
FILE *ckpt_json_open(const char *path);
int ckpt_json_close(const char *path, FILE *out);

/* Writes, reads a line of words in the job's folder, replaced as a whole. n: -errno or words. */
int ckpt_note(const char *rundir, const char *name, char *const words[], int n);
int ckpt_read_note(const char *rundir, const char *name, char *words[], int room, char **text);

/* ----------------------------------------------------------------------- ckpt_remote.c */

/* What brings id back there, as a shell reads it; more may be NULL. malloc'ed, or NULL. */
char *ckpt_remote_command(const char *program, const char *store, const char *id, const char *more);
/* Runs it on host, its output goes to our stderr. Its exit status or -errno. */
int ckpt_ssh(const char *ssh, const char *host, const char *command);
/* Becomes it; comes back, and has said why, only if that fails. */
void ckpt_ssh_exec(const char *ssh, const char *host, const char *command);

/* ----------------------------------------------------------------------- ckpt_mapped.c */

/* The files that the job's processes (host pids) have mapped and that it will find again by path. */
int ckpt_mapped(const pid_t *pids, int n, struct ckpt_facts *f);
/* Those that are missing or are others now; why names the first. 0, -ENOENT, -ESTALE. */
int ckpt_mapped_check(const struct ckpt_facts *f, char *why, size_t size);

/* ------------------------------------------------------------------------ ckpt_ports.c */

/* The TCP ports on which the processes (host pids, the root first) listen. */
int ckpt_ports(const pid_t *pids, int n, struct ckpt_facts *f);
/* Those that others listen on here; why names the first and who has it. 0, -EADDRINUSE. */
int ckpt_ports_check(const struct ckpt_facts *f, char *why, size_t size);
/* One of them that only connections of before keep, which will pass; 0: there is none. */
int ckpt_ports_passing(const struct ckpt_facts *f);

#endif
