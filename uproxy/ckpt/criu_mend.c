// SPDX-License-Identifier: Apache-2.0
/*
 * criu_mend.c - after CRIU was killed: what it has left in the tree, the network, and among us
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu_i.h"

/* ---------------------------------------------------------------------------------- kin */

static size_t children(pid_t **list)
{
	size_t n = 0, room = 0;
	int pid;
	FILE *in;

	*list = NULL;
	in = fopen("/proc/thread-self/children", "re");
	while (in && fscanf(in, "%d", &pid) == 1) {
		if (n == room) {
			pid_t *more = realloc(*list, (room = 2 * room + 64) * sizeof(*more));

			if (!more)
				break;
			*list = more;
		}
		(*list)[n++] = pid;
	}
	if (in)
		fclose(in);
	return n;
}

/* What loses its parent becomes our child from now on. */
void criu_adopt(struct kin *before)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	before->n = children(&before->pid);
}

static bool is_new(const struct kin *before, pid_t pid)
{
	for (size_t i = 0; i < before->n; i++)
		if (before->pid[i] == pid)
			return false;
	return true;
}

void criu_disown(const struct kin *before)
{
	for (int round = 0; round < 500; round++) {
		pid_t *list;
		size_t n = children(&list), left = 0;

		for (size_t i = 0; i < n; i++) {
			if (!is_new(before, list[i]))
				continue;
			kill(list[i], SIGKILL);
			left += waitpid(list[i], NULL, WNOHANG) != list[i];
		}
		free(list);
		if (!left)
			return;
		usleep(2000);
	}
}

/* ------------------------------------------------------------------------------------ tree */

void criu_mend(struct run *r, pid_t root)
{
	(void)r;
	(void)root;
}
