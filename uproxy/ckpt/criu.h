/* SPDX-License-Identifier: Apache-2.0 */
/*
 * criu.h - finds CRIU, has it dump and restore a process tree, and says in its words what failed
 *
 * CRIU runs as a child of the caller, its images come and go through images.h: no file but its log
 * is written. While a dump goes on:
 *
 *   criu_dump() ── starts ──► criu dump --stream: freezes the tree, images ──► sink
 *       ▲                        │ post-dump: all is out, the tree is still frozen
 *       └── frozen() ◄───────────┘
 *             0: CRIU kills the tree, or lets it run (leave_running)
 *         not 0, or the caller is dead: CRIU fails and lets the tree run, as if nothing had been
 *
 * All functions return 0 or -errno and put a sentence into why[].
 */
#ifndef UPROXY_CKPT_CRIU_H
#define UPROXY_CKPT_CRIU_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "images.h"

#define CRIU_WHY	1024	/* enough for why[] */

struct criu {
	char path[PATH_MAX];
	char version[32];
	char plugins[PATH_MAX];	/* the folder of singvgpu_plugin.so; "": none */
};

/*
 * given: the program that the user names, or NULL: then $SINGVGPU_CRIU, what the set-up has
 * unpacked beside this program, and $PATH are looked at. -ENOENT, -EOPNOTSUPP (too old), -EPERM (not
 * root), -ENOEXEC (it does not run, or `criu check` fails).
 */
int criu_find(struct criu *c, const char *given, char *why, size_t size);

/* What CRIU calls something that is open: "pipe:[5]", "/memfd:singvgpu-00ff". */
struct criu_fd {
	int fd;
	const char *key;
};

/*
 * The key of an open file that cannot be dumped without its other end: a pipe, a terminal, a socket.
 * "" for what CRIU finds again by name.
 */
int criu_key(int fd, char *key, size_t size);

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
	long limit_ms;		/* for CRIU to come to post-dump; 0: none. frozen() takes its time */

	/* The tree is frozen and all images are in the sink. 0: go on. why[] is the dump's. */
	int (*frozen)(void *arg, char *why, size_t size);
	/* Called every 100 ms: bytes of images so far. Not 0: give up (-ECANCELED). May be NULL. */
	int (*progress)(void *arg, uint64_t bytes);
	void *arg;

	/* results */
	uint64_t bytes;		/* of images */
	uint64_t frozen_ns;	/* the tree did not run; with frozen()'s time */
	uint64_t criu_ns;	/* of that, without frozen()'s time */
};

int criu_dump(struct criu_dump *d, char *why, size_t size);

struct criu_restore {
	const struct criu *criu;
	bool terminal;		/* stdin is a terminal; the tree comes into our session */
	pid_t group;		/* process group for it, with terminal */
	bool plugin;
	const struct criu_fd *fds;
	size_t n_fds;
	const char *env[3];
	const struct images_source *source;
	long limit_ms;
	/* The tree is there, but does not run yet. pid: of the root. 0: go on. May be NULL. */
	int (*ready)(void *arg, pid_t pid, char *why, size_t size);
	int (*progress)(void *arg, uint64_t bytes);
	void *arg;

	pid_t pid;		/* result: the root, a child of the caller or of its subreaper */
	uint64_t bytes;
};

/* When it fails nothing is left of the tree. */
int criu_restore(struct criu_restore *r, char *why, size_t size);

#endif
