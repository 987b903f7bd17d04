// SPDX-License-Identifier: Apache-2.0
/*
 * family.c - finds all descendants of a process by walking /proc from parent to child
 *
 * The caller is a subreaper, so a descendant that loses its parent becomes its child: neither a
 * double fork nor a new session hides a process.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool_i.h"

struct kin {
	pid_t pid;		/* in our namespace; 0: none */
	pid_t proc, parent;	/* in /proc, which may be of an outer namespace */
	pid_t inner;		/* in its own namespace */
	int levels;		/* namespaces from /proc's to its own */
	bool ours, dead, hidden;
	char name[32];
};

/* Our own pid in /proc, and the number of namespaces from /proc's to ours. */
static pid_t self;
static int depth;

/* "NSpid:\t100\t2\n": the pid in each namespace, from /proc's to the process' own. */
static void read_pids(struct kin *k, const char *at)
{
	int n = 0, pid, len;

	for (; sscanf(at, "%d%n", &pid, &len) == 1 && *at != '\n'; at += len) {
		if (n++ == depth)
			k->pid = pid;
		k->inner = pid;
		k->levels = n;
		if (at[len] == '\n')
			break;
	}
}

/* /proc/PID/status: "Name:\tsh\nUmask:…\nState:\tS …\n…PPid:\t1\n…NSpid:\t…". */
static bool read_kin(pid_t proc, struct kin *k)
{
	char path[32], text[2048], *state, *parent, *pids;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/status", proc);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	memset(k, 0, sizeof(*k));
	state = strstr(text, "\nState:\t");
	parent = strstr(text, "\nPPid:\t");
	pids = strstr(text, "\nNSpid:\t");
	if (sscanf(text, "Name:\t%31[^\n]", k->name) != 1 || !state || !parent || !pids)
		return false;
	k->proc = proc;
	k->parent = atoi(parent + 7);
	k->dead = state[8] == 'Z' || state[8] == 'X';
	read_pids(k, pids + 8);
	return true;
}

static void find_self(void)
{
	char text[16] = "";
	struct kin k;

	depth = 0;
	self = readlink("/proc/self", text, sizeof(text) - 1) > 0 ? atoi(text) : getpid();
	while (self != getpid() && read_kin(self, &k) && k.pid != getpid() && depth < 32)
		depth++;
}

static int compare_kin(const void *a, const void *b)
{
	const struct kin *x = a, *y = b;

	return (x->proc > y->proc) - (x->proc < y->proc);
}

/* By their pids in /proc. */
static struct kin *read_all(int *count)
{
	struct kin *all = NULL, *more;
	int n = 0, room = 0;
	struct dirent *e;
	DIR *proc = opendir("/proc");

	while (proc && (e = readdir(proc))) {
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
	if (proc)
		closedir(proc);
	if (n)
		qsort(all, n, sizeof(*all), compare_kin);
	*count = n;
	return all;
}

/* All processes; ours marks our living descendants without those of except[]. */
static struct kin *look(const pid_t *except, int n_except, int *count)
{
	struct kin *all;
	bool changed;
	int n;

	find_self();
	all = read_all(&n);
	do {
		changed = false;
		for (int i = 0; i < n; i++) {
			bool skip = all[i].ours || all[i].proc == self || !all[i].pid;

			for (int x = 0; x < n_except && !skip; x++) {
				skip = all[i].pid == except[x];
				all[i].hidden |= all[i].pid == -except[x];
			}
			if (skip)
				continue;
			all[i].ours = all[i].parent == self;
			for (int p = 0; p < n && !all[i].ours; p++)
				all[i].ours = all[p].ours && all[p].proc == all[i].parent;
			changed |= all[i].ours;
		}
	} while (changed);
	for (int i = 0; i < n; i++)
		all[i].ours &= !all[i].hidden && !all[i].dead;
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
		if (!all[i].ours)
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
		if (!all[i].ours)
			continue;
		kill(all[i].pid, sig);
		if (sig != SIGKILL)
			kill(all[i].pid, SIGCONT);
		count++;
	}
	free(all);
	return count;
}

static const struct kin *find_kin(const struct kin *all, int n, pid_t proc)
{
	struct kin key = { .proc = proc };

	return bsearch(&key, all, n, sizeof(*all), compare_kin);
}

static bool descends(const struct kin *all, int n, const struct kin *k, pid_t root)
{
	for (int steps = 0; k && steps < n; steps++) {
		if (k->pid == root)
			return true;
		k = find_kin(all, n, k->parent);
	}
	return false;
}

/* The child of root that k descends from; 0: it does not. */
static pid_t branch_of(const struct kin *all, int n, const struct kin *k, pid_t root)
{
	for (int steps = 0; k && steps < n; steps++) {
		if (k->parent == root)
			return k->proc;
		k = find_kin(all, n, k->parent);
	}
	return 0;
}

int family_list(pid_t root, pid_t (*kin)[2], int most)
{
	int n, count = 0;
	struct kin *all;
	pid_t branch;

	find_self();
	if (depth)
		return 0;
	all = read_all(&n);
	for (int i = 0; i < n && count < most; i++) {
		branch = all[i].dead ? 0 : branch_of(all, n, &all[i], root);
		if (!branch)
			continue;
		kin[count][0] = all[i].proc;
		kin[count++][1] = branch;
	}
	free(all);
	return count;
}

pid_t family_find(pid_t root, pid_t inner)
{
	int n, levels = 0;
	struct kin *all;
	pid_t found = 0;

	find_self();
	all = read_all(&n);
	for (int i = 0; i < n; i++)
		if (all[i].pid == root)
			levels = all[i].levels;
	for (int i = 0; i < n && !found; i++)
		if (all[i].inner == inner && all[i].levels == levels && all[i].pid &&
		    descends(all, n, &all[i], root))
			found = all[i].pid;
	free(all);
	return found;
}

char *family_name(pid_t pid, char *buf)
{
	struct kin k;

	find_self();
	/* With depth, /proc has another process under this number. */
	snprintf(buf, 32, "%s", pid > 0 && !depth && read_kin(pid, &k) ? k.name : "?");
	return buf;
}

/* /proc/PID/stat: "pid (name, with anything in it) S ppid …". */
char family_state(pid_t pid, pid_t *parent)
{
	char path[32], text[512], state, *end;
	pid_t up;
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	if (n <= 0)
		return 0;
	text[n] = 0;
	end = strrchr(text, ')');
	if (!end || sscanf(end, ") %c %d", &state, &up) != 2)
		return 0;
	if (parent)
		*parent = up;
	return state;
}

bool family_has_ended(pid_t pid)
{
	char state = family_state(pid, NULL);

	return !state || state == 'Z' || state == 'X';
}
