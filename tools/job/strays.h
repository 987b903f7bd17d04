/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strays.h - tells of programs that the job has started without singvgpu, and that use CUDA: a line for each
 *
 *   exec ─► libsingvgpu-files.so in the parent ─┐ (libintercept/files/exec.c)
 *                                               ├─► DIR/strays, a FIFO ─► strays_hear(): a line on stderr
 *   the watcher: a process that looks at /proc ─┘
 *
 * What a parent notes costs nothing where nothing is lost. Two kinds of program escape it: those that a program without
 * our library starts, and those that load CUDA's libraries while they run, such as Python. For them the watcher looks at
 * the job's processes: after 2 s, 4 s, 8 s … and then once a minute, and, as soon as a parent has noted that an
 * environment is lost, at each exec on the host that the kernel reports (the process connector, which needs root).
 * Such a program is not told of if it has ended before the watcher looks.
 *
 * The watcher is a process of its own, since files of another user can make it wait. Of another user's process it reads
 * the names of its mappings alone.
 */
#ifndef STRAYS_H
#define STRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STRAYS_TOLD	64	/* lines, at most */

struct job;

struct strays {
	const struct job *job;
	int fifo;		/* open for reading and writing; -1: there is none */
	char text[1024];	/* read from it, and not yet a whole record */
	size_t have;
	pid_t watcher;		/* 0: none runs */
	int tell;		/* a byte written here makes the watcher look, now and at each exec; -1: none */
	uint64_t next;		/* ms of now_ms(): when the watcher is started; 0: it was */
	bool begins;		/* an environment is lost */
	int n;
	uint64_t told[STRAYS_TOLD];	/* hashes of kinds and names */
};

/* Before the ranks are started. Without the FIFO nothing is told. */
void strays_start(struct strays *s, const struct job *job);
/* The FIFO may have something to read. Never waits. */
void strays_hear(struct strays *s);
/* Starts the watcher in time; returns the ms until it wants to be called again, or -1. */
int strays_step(struct strays *s);
/* True: the process that has ended was the watcher. */
bool strays_ended(struct strays *s, pid_t pid);
/* The ranks have ended: kills the watcher, which strays_ended() is to be told of. */
void strays_finish(struct strays *s);
/* The job is over: tells what is left. */
void strays_stop(struct strays *s);

#endif
