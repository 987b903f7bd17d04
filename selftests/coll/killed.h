/* SPDX-License-Identifier: Apache-2.0 */
/*
 * killed.h - kills a traced child after so many instructions
 */
#ifndef COLL_KILLED_H
#define COLL_KILLED_H

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

/* The child has asked to be traced, and stops. Its status: of its end, if it has ended before. -1: there is none. */
static inline int step_and_kill(pid_t pid, int steps)
{
	int status;

	for (int i = 0; i <= steps; i++) {
		if (waitpid(pid, &status, 0) != pid)
			return -1;
		if (!WIFSTOPPED(status))
			return status;
		if (i < steps)
			ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return status;
}

#endif
