/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h - a child that does one thing, and then waits for its end
 */
#ifndef CHILD_H
#define CHILD_H

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * The child's part. It says by a byte to the descriptor `told` that act(arg, &told) has returned; act() may close all other
 * descriptors, and may move this one. The child ends with its parent.
 */
static inline void __attribute__((noreturn)) child_acts(void (*act)(void *arg, int *told), void *arg, int told)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	act(arg, &told);
	if (write(told, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* A child that has acted; -1: it has not. */
static inline pid_t child_begin(void (*act)(void *arg, int *told), void *arg)
{
	int told[2];
	pid_t pid;
	char c;

	if (pipe(told))
		return -1;
	pid = fork();
	if (!pid) {
		close(told[0]);
		child_acts(act, arg, told[1]);
	}
	close(told[1]);
	if (read(told[0], &c, 1) != 1)
		pid = -1;
	close(told[0]);
	return pid;
}

static inline void child_end(pid_t pid)
{
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

/* From now on a grandchild whose parent has ended is this process's child. children_gone() waits until all have ended. */
static inline void children_are_ours(void)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static inline void children_gone(void)
{
	while (waitpid(-1, NULL, 0) > 0)
		;
}

#endif
