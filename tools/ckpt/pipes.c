// SPDX-License-Identifier: Apache-2.0
/*
 * pipes.c - the pipes from 3 up that the command was started with, whose other ends may be elsewhere
 *
 * CRIU would make a new pipe, with nobody at its other end. One that no process outside of the job has
 * open any more, such as that of `cat <(echo x)`, is the job's own, and is saved.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_i.h"
#include "ckpt_save.h"

/* The descriptor by which pid has the pipe, or -1. */
static int has_pipe(pid_t pid, const char *key)
{
	char path[32], what[64];
	struct dirent *e;
	int found = -1;
	ssize_t n;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	d = opendir(path);
	while (d && found < 0 && (e = readdir(d))) {
		n = readlinkat(dirfd(d), e->d_name, what, sizeof(what) - 1);
		what[n < 0 ? 0 : n] = 0;
		if (!strcmp(what, key))
			found = atoi(e->d_name);
	}
	if (d)
		closedir(d);
	return found;
}

static bool in_tree(pid_t pid, const pid_t *pids, int n)
{
	for (int i = 0; i < n; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

/* A process outside of the tree that has it, or 0. */
static pid_t stranger(const char *key, const pid_t *pids, int n)
{
	DIR *d = opendir("/proc");
	struct dirent *e;
	pid_t found = 0;

	while (d && !found && (e = readdir(d))) {
		pid_t pid = isdigit(*e->d_name) ? atoi(e->d_name) : 0;

		if (pid && pid != getpid() && !in_tree(pid, pids, n) && has_pipe(pid, key) >= 0)
			found = pid;
	}
	if (d)
		closedir(d);
	return found;
}

static bool is_stdio(const struct rundir_job *job, const char *key)
{
	for (int r = 0; r < job->ranks; r++)
		for (int i = 0; i < 3; i++)
			if (!strcmp(job->rank[r].stdio[i], key))
				return true;
	return false;
}

static int check_pipe(const struct save *s, const char *key, const pid_t *pids, int n, struct why *why)
{
	char name[32], their[32];
	pid_t other = 0;
	int fd = -1, i;

	for (i = 0; i < n && fd < 0; i++)
		fd = has_pipe(pids[i], key);
	if (fd >= 0 && !is_stdio(&s->job, key))
		other = stranger(key, pids, n);
	if (!other)
		return 0;
	return why_set(why, -ENOTSUP, "process %d (%s) has descriptor %d open, a pipe (%s) that it was started "
		       "with and that process %d (%s), outside of the job, has, too: no restore could "
		       "connect them. `run --close-fds` keeps it out of the job", pids[i - 1],
		       family_name(pids[i - 1], name), fd, key, other, family_name(other, their));
}

int save_pipes(const struct save *s, const pid_t *pids, int n, struct why *why)
{
	const char *list = facts_option(&s->facts, "pipes");
	char *keys = list ? strdup(list) : NULL, *save = NULL;
	int err = list && !keys ? -ENOMEM : 0;

	for (char *key = keys ? strtok_r(keys, ",", &save) : NULL; key && !err; key = strtok_r(NULL, ",", &save))
		err = check_pipe(s, key, pids, n, why);
	free(keys);
	return err;
}
