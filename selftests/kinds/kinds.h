/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinds.h - one process for each kind of resource: it sets the resource up, stands while it is saved and
 * restored, and looks at what has come back
 *
 * A kind is a function that calls stand() once. NEED() gives up before that, where this kernel lacks the
 * resource; IS() tells what is wrong after it. The function runs in a process and a folder of its own.
 */
#ifndef SELFTESTS_KINDS_H
#define SELFTESTS_KINDS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

struct kind {
	const char *name;
	void (*run)(void);
	bool alone;		/* one of CRIU and singvgpu refuses it: it is saved in a job of its own */
};

struct family {
	const char *name;
	const struct kind *kinds;	/* ends with a NULL name */
};

extern const struct family files_family, sockets_family, timers_family, namespaces_family, memory_family,
	ipc_family, threads_family, signals_family, terminals_family;

/*
 * Tells that all is set up, and returns when the test lets the restored process go on. A process that stand_with()
 * waits for first the calls of others that it has forked.
 */
void stand(void);
void stand_with(int others);

/* End the process: the kernel cannot have the resource; it is not what it was. */
void unable(const char *what, int err) __attribute__((noreturn));
void bad(const char *what, int line) __attribute__((noreturn));

#define NEED(cond) do { if (!(cond)) unable(#cond, errno); } while (0)
#define IS(cond) do { if (!(cond)) bad(#cond, __LINE__); } while (0)

/* A child that runs fn and then waits until this process ends. */
pid_t child(void (*fn)(void));

static inline bool same(const void *a, const char *text)
{
	return !memcmp(a, text, strlen(text));
}

#endif
