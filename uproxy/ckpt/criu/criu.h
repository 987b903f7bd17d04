/* SPDX-License-Identifier: Apache-2.0 */
/*
 * criu.h - finds CRIU, runs it to dump and restore a process tree, and quotes its errors
 *
 * CRIU runs as a child of the caller. Its images go through images.h; only its log becomes a file.
 * During a dump:
 *
 *   criu_dump() ── starts ──► criu dump --stream: gets ready, the tree runs
 *       ▲                        │ pre-dump
 *       ├── ready() ◄────────────┤   0: CRIU freezes the tree, images ──► sink
 *       ├── still()              │      meanwhile
 *       │                        │ post-dump: all is out, the tree is still frozen
 *       └── frozen() ◄───────────┘
 *             0: CRIU kills the tree, or lets it run (leave_running)
 *         not 0, or the caller is dead: CRIU fails and lets the tree run on
 *
 * All functions return 0 or -errno; *why, which the caller has zeroed, gets it with a sentence.
 */
#ifndef UPROXY_CKPT_CRIU_H
#define UPROXY_CKPT_CRIU_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "images.h"
#include "why.h"

struct criu {
	char path[PATH_MAX];
	char version[32];
	char plugins[PATH_MAX];	/* the folder of singvgpu_plugin.so; "": none */
};

/*
 * given: the program that the user names; NULL: look for it in $SINGVGPU_CRIU, in what the set-up
 * has unpacked beside this program, and in $PATH. -ENOENT, -EOPNOTSUPP (too old), -EPERM (no root),
 * -ENOEXEC (it does not run, or `criu check` fails).
 */
int criu_find(struct criu *c, const char *given, struct why *why);
/* The same, by a time (criu_now(), ns; 0: in a minute): -ETIMEDOUT, CRIU does not answer. */
int criu_find_until(struct criu *c, const char *given, uint64_t end_ns, struct why *why);

/* CRIU's name for an open file: "pipe:[5]", "/memfd:singvgpu-00ff". */
struct criu_fd {
	int fd;
	const char *key;
};

/*
 * The key of an open file whose other end lies outside the tree: a pipe, a terminal, a socket. "":
 * CRIU finds the file by its path.
 */
int criu_key(int fd, char *key, size_t size);

/* A hard link that a dump has made to a file whose own name is gone; see links.c. */
struct criu_link {
	char *path;
	char *instead;		/* a restore: where the file is now */
	dev_t dev;		/* a dump: of the file */
	ino_t ino;
};

struct criu_links {
	struct criu_link *link;
	size_t n;
};

void criu_links_free(struct criu_links *l);

struct criu_dump {
	const struct criu *criu;
	pid_t pid;		/* of the root, as we see it */
	bool leave_running;
	bool terminal;		/* it is in a session on a terminal that is not its own */
	bool plugin;		/* the channel is /dev/singvgpu */
	const char *const *keys;	/* of what will be inherited (criu_key()) */
	size_t n_keys;
	const char *env[3];	/* "NAME=value" for the plugin; NULL: no more */
	const struct images_sink *sink;
	long limit_ms;		/* until post-dump; 0: none. For frozen() there is none */
	bool alone;		/* no other dump of ours on this host shall make links meanwhile */
	bool filled;		/* CRIU's memory begins with other bytes than 0, which it takes for an error */

	/* CRIU is about to freeze the tree. 0: go on. *why is the dump's. May be NULL. */
	int (*ready)(void *arg, struct why *why);
	/* The tree is frozen; images may come. Once, before frozen(). 0: go on. *why is the dump's. May be NULL. */
	int (*still)(void *arg, struct why *why);
	/* The tree is frozen and all images are in the sink. 0: go on. *why is the dump's. */
	int (*frozen)(void *arg, struct why *why);
	/*
	 * The tree, of which no thread runs yet, will run on: after frozen(), or the dump has failed or is given up.
	 * It is not called if CRIU fails by itself. May be NULL.
	 */
	void (*lets_go)(void *arg);
	/* Called every 100 ms: bytes of images so far. Not 0: give up (-ECANCELED). May be NULL. */
	int (*progress)(void *arg, uint64_t bytes);
	void *arg;

	pid_t criu_pid;		/* for ready(), which may take long: CRIU, a zombie if it has ended */

	/* for frozen() and lets_go(); removed when CRIU has ended */
	struct criu_links links;
	uint64_t since_ns;	/* the tree stands still since then, at least; CLOCK_MONOTONIC, 0: not known */
	uint64_t stood_ns;	/* from then until CRIU has read that clock, at most */

	/* results */
	bool met;		/* a link has the name of a file: try again, alone */
	bool empty;		/* CRIU took a 0 for an error: try again, filled */
	uint64_t bytes;		/* of images */
	uint64_t frozen_ns;	/* time that the tree was frozen */
	uint64_t criu_ns;	/* of this, without frozen()'s time */
};

/* -ERESTART: the tree runs on, and another try may succeed. */
int criu_dump(struct criu_dump *d, struct why *why);

/* What threads had asked for and did not get: CPUs that are not here; all that the kernel refused. */
struct criu_attributes {
	unsigned int clipped, failed;
};

struct criu_restore {
	const struct criu *criu;
	bool terminal;		/* stdin is a terminal; the tree joins our session */
	pid_t group;		/* process group for it, with terminal */
	bool plugin;
	const struct criu_fd *fds;
	size_t n_fds;
	const char *env[3];
	const struct images_source *source;
	/*
	 * The dump's links, which the caller has placed elsewhere, and a word for the names of what
	 * CRIU makes for a while. None of these names is left, whatever happens.
	 */
	const struct criu_links *links;
	const char *tag;
	long limit_ms;
	long last_ms;		/* from ready() to CRIU's end, at most (-ETIMEDOUT); 0: a minute */
	/* The tree exists, but does not run yet. pid: of the root. 0: go on. May be NULL. */
	int (*ready)(void *arg, pid_t pid, struct why *why);
	int (*progress)(void *arg, uint64_t bytes);
	void *arg;

	uint64_t since_ns;	/* for ready(): since then CLOCK_MONOTONIC goes on for the tree; 0: not known */
	pid_t pid;		/* result: the root, a child of the caller or of its subreaper */
	struct criu_attributes attributes;	/* result */
	uint64_t bytes;
};

/* After a failure no process of the tree is left. */
int criu_restore(struct criu_restore *r, struct why *why);

/* A copy of a process's descriptor, which the caller closes; -1: there is none, or it may not be had. */
int criu_copy_fd(pid_t pid, int fd);

#endif
