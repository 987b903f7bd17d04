/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_i.h - what checkpoint, restore, migrate and run's own checkpoints share
 *
 * Nothing in this folder prints: only the commands do. Functions return 0 or -errno, and *why gets the reason; "unsaid"
 * below: there is no sentence. What the user should know while a command goes on, or of one that succeeds, is told
 * through a tell_line (tool_i.h).
 */
#ifndef CKPT_I_H
#define CKPT_I_H

#include <limits.h>

#include "ckpt_facts.h"
#include "ckpt_where.h"
#include "phase.h"
#include "rundir.h"
#include "tool_i.h"
#include "why.h"

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
