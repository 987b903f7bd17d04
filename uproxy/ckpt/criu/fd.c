// SPDX-License-Identifier: Apache-2.0
/*
 * fd.c - a descriptor of another process, to look at what is behind it
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "criu.h"

int criu_copy_fd(pid_t pid, int fd)
{
	int process = syscall(SYS_pidfd_open, pid, 0);
	int own = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0);

	if (process >= 0)
		close(process);
	return own;
}
