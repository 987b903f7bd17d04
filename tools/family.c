// SPDX-License-Identifier: Apache-2.0
/*
 * family.c - all that came of a process: found by walking /proc from parent to child
 *
 * The caller is a subreaper, so who loses its parent becomes its child: nobody gets away by forking
 * twice or by a session of its own.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool_i.h"

struct kin {
	pid_t pid, parent;
	bool ours, dead;
	char name[32];
};

/* /proc/PID/stat: "pid (name, with anything in it) S ppid …". */
static bool read_kin(pid_t pid, struct kin *k)
{
	char path[32], text[512], *name, *end, state;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	name = strchr(text, '(');
	end = strrchr(text, ')');
	memset(k, 0, sizeof(*k));
	if (!name || !end || sscanf(end + 1, " %c %d", &state, &k->parent) != 2)
		return false;
	*end = 0;
	snprintf(k->name, sizeof(k->name), "%s", name + 1);
	k->pid = pid;
	k->dead = state == 'Z' || state == 'X';
	return true;
}

/* All processes; those that descend from us and from none of except are marked. */
static struct kin *look(const pid_t *except, int n_except, int *count)
{
	struct kin *all = NULL, *more;
	int n = 0, room = 0;
	struct dirent *e;
	bool changed;
	DIR *proc = opendir("/proc");

	*count = 0;
	if (!proc)
		return NULL;
	while ((e = readdir(proc))) {
		if (*e->d_name < '0' || *e->d_name > '9')
			continue;
		if (n == room) {
			room = room ? 2 * room : 256;
			more = realloc(all, room * sizeof(*all));
			if (!more)
				break;
			all = more;
		}
		n += read_kin(atoi(e->d_name), &all[n]);
	}
	closedir(proc);
	do {
		changed = false;
		for (int i = 0; i < n; i++) {
			bool skip = all[i].ours || all[i].pid == getpid();

			for (int x = 0; x < n_except && !skip; x++)
				skip = all[i].pid == except[x];
			if (skip)
				continue;
			all[i].ours = all[i].parent == getpid();
			for (int p = 0; p < n && !all[i].ours; p++)
				all[i].ours = all[p].ours && all[p].pid == all[i].parent;
			changed |= all[i].ours;
		}
	} while (changed);
	*count = n;
	return all;
}

int family_count(const pid_t *except, int n_except, char *names, size_t size)
{
	int n, count = 0, at = 0;
	struct kin *all = look(except, n_except, &n);

	if (size)
		*names = 0;
	for (int i = 0; i < n; i++) {
		if (!all[i].ours || all[i].dead)
			continue;
		if (count < 4 && at < (int)size)
			at += snprintf(names + at, size - at, "%s%s (%d)", count ? ", " : "",
				       all[i].name, all[i].pid);
		else if (count == 4 && at < (int)size)
			at += snprintf(names + at, size - at, ", ...");
		count++;
	}
	free(all);
	return count;
}

int family_kill(const pid_t *except, int n_except, int sig)
{
	int n, count = 0;
	struct kin *all = look(except, n_except, &n);

	for (int i = 0; i < n; i++) {
		if (!all[i].ours || all[i].dead)
			continue;
		kill(all[i].pid, sig);
		if (sig != SIGKILL)
			kill(all[i].pid, SIGCONT);
		count++;
	}
	free(all);
	return count;
}

char *family_name(pid_t pid, char *buf)
{
	struct kin k;

	snprintf(buf, 32, "%s", pid > 0 && read_kin(pid, &k) ? k.name : "?");
	return buf;
}
