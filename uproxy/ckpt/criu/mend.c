// SPDX-License-Identifier: Apache-2.0
/*
 * mend.c - cleans up after a killed CRIU: the tree, the network, and CRIU's own processes
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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

/* From now on processes that lose their parent become our children. */
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

#define TREE_MAX 4096

/* Fills pid[] with the tree's processes, by /proc's pids. Returns their number. */
static size_t fill_tree(pid_t root, pid_t *pid)
{
	char path[300];
	size_t n = 1;
	int child;

	pid[0] = root;
	for (size_t i = 0; i < n; i++) {
		struct dirent *e;
		DIR *tasks;

		snprintf(path, sizeof(path), "/proc/%d/task", pid[i]);
		tasks = opendir(path);
		while (tasks && (e = readdir(tasks))) {
			FILE *in;

			snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children", pid[i],
				 e->d_name);
			in = *e->d_name == '.' ? NULL : fopen(path, "re");
			while (in && n < TREE_MAX && fscanf(in, "%d", &child) == 1)
				pid[n++] = child;
			if (in)
				fclose(in);
		}
		if (tasks)
			closedir(tasks);
	}
	return n;
}

pid_t *criu_tree(pid_t root, size_t *n)
{
	pid_t *pid = malloc(TREE_MAX * sizeof(*pid));

	*n = pid ? fill_tree(root, pid) : 0;
	return pid;
}

bool criu_alive(pid_t pid)
{
	char path[32], text[512] = "", *end;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (f && !fgets(text, sizeof(text), f))
		*text = 0;
	if (f)
		fclose(f);
	end = strrchr(text, ')');
	return end && end[1] && end[2] != 'Z' && end[2] != 'X';
}

int criu_inner_pid(pid_t pid)
{
	char path[32], line[256], *last;
	int inner = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	while (f && inner < 0 && fgets(line, sizeof(line), f)) {
		last = strncmp(line, "NSpid:", 6) ? NULL : strrchr(line, '\t');
		inner = last ? atoi(last + 1) : -1;
	}
	if (f)
		fclose(f);
	return inner;
}

pid_t criu_find_pid(pid_t root, int inner)
{
	pid_t *pid = malloc(TREE_MAX * sizeof(*pid)), found = 0;
	size_t n = pid ? fill_tree(root, pid) : 0;

	for (size_t i = 0; i < n && !found; i++)
		found = criu_inner_pid(pid[i]) == inner ? pid[i] : 0;
	free(pid);
	return found;
}

bool criu_below(pid_t top, pid_t one)
{
	pid_t *pid = malloc(TREE_MAX * sizeof(*pid));
	size_t n = pid ? fill_tree(top, pid) : 0;
	bool found = false;

	for (size_t i = 0; i < n && !found; i++)
		found = pid[i] == one;
	free(pid);
	return found;
}

/* The process that traces a thread; -1: it is none that could run. */
static pid_t tracer_of(pid_t pid, const char *tid)
{
	char path[64], line[128], state = 'X';
	int tracer = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", pid, tid);
	in = fopen(path, "re");
	while (in && fgets(line, sizeof(line), in))
		if (sscanf(line, "State: %c", &state) != 1 && sscanf(line, "TracerPid: %d", &tracer) == 1)
			break;
	if (in)
		fclose(in);
	return state == 'Z' || state == 'X' ? -1 : tracer;
}

bool criu_holds(pid_t criu, pid_t root)
{
	pid_t *pid = malloc(TREE_MAX * sizeof(*pid)), tracer;
	size_t n = pid ? fill_tree(root, pid) : 0;
	bool all = n && n < TREE_MAX;
	char path[32];

	for (size_t i = 0; i < n && all; i++) {
		struct dirent *e;
		DIR *tasks;

		snprintf(path, sizeof(path), "/proc/%d/task", pid[i]);
		tasks = opendir(path);
		while (tasks && all && (e = readdir(tasks))) {
			tracer = *e->d_name == '.' ? -1 : tracer_of(pid[i], e->d_name);
			all = tracer < 0 || tracer == criu;
		}
		if (tasks)
			closedir(tasks);
	}
	free(pid);
	return all;
}

/* Calls each with the link of every fd of the tree ("socket:[5]"), until it returns true. */
static bool each_file(pid_t root, bool (*each)(void *arg, pid_t pid, int fd, const char *what), void *arg)
{
	pid_t *pid = malloc(TREE_MAX * sizeof(*pid));
	size_t n = pid ? fill_tree(root, pid) : 0;
	char path[300], what[300];
	bool found = false;

	for (size_t i = 0; i < n && !found; i++) {
		struct dirent *e;
		DIR *fds;

		snprintf(path, sizeof(path), "/proc/%d/fd", pid[i]);
		fds = opendir(path);
		while (fds && !found && (e = readdir(fds))) {
			ssize_t len = readlinkat(dirfd(fds), e->d_name, what, sizeof(what) - 1);

			what[len < 0 ? 0 : len] = 0;
			found = len > 0 && each(arg, pid[i], atoi(e->d_name), what);
		}
		if (fds)
			closedir(fds);
	}
	free(pid);
	return found;
}

struct suspect {
	char *text;
	size_t size;
};

static bool is_suspect(void *arg, pid_t pid, int fd, const char *what)
{
	static const char *const kinds[] = { "[io_uring]", "[userfaultfd]", "[perf_event]",
					     "bpf", "[pidfd]", "[kvm" };
	char path[32], name[32] = "?";
	struct suspect *s = arg;
	FILE *f;

	(void)fd;
	if (strncmp(what, "anon_inode:", 11) && strncmp(what, "pidfd:", 6))
		return false;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!strstr(what, kinds[i]))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/comm", pid);
		f = fopen(path, "re");
		if (f && fscanf(f, "%31[^\n]", name) != 1)
			strcpy(name, "?");
		if (f)
			fclose(f);
		snprintf(s->text, s->size, "process %d (%s) has %s open", pid, name, what);
		return true;
	}
	return false;
}

bool criu_suspect(pid_t root, char *text, size_t size)
{
	struct suspect s = { text, size };

	return each_file(root, is_suspect, &s);
}

/* --------------------------------------------------------------------------------- network */

/*
 * CRIU blocks connections by a table of nftables, "CRIU-…", and deletes it when the tree runs on or
 * is restored. If CRIU was killed, the table stays and the connections are dead; if the tree was
 * killed, the table stays until the tree is restored here. Tables from before the dump are left
 * alone. Of the new ones we delete those that block no connection, or only connections within this
 * host, which carry no data before they are restored; while the tree lives, also those that block a
 * connection of the tree.
 */
static char *nft(const struct criu *c, const char *args)
{
	char dir[PATH_MAX], *cmd = NULL, *text = NULL, *slash;
	size_t len = 0;
	FILE *in, *out;
	int ch;

	snprintf(dir, sizeof(dir), "%s", c->path);
	slash = strrchr(dir, '/');
	if (slash)
		strcpy(slash, "/nft");
	if (asprintf(&cmd, "PATH=$PATH:/usr/sbin:/sbin; exec 2>/dev/null; '%s' %s", slash &&
		     !access(dir, X_OK) ? dir : "nft", args) < 0)
		return NULL;
	in = popen(cmd, "re");
	out = open_memstream(&text, &len);
	while (in && out && (ch = getc(in)) != EOF)
		putc(ch, out);
	if (in)
		pclose(in);
	if (out)
		fclose(out);
	free(cmd);
	return text;
}

void criu_tables(struct run *r)
{
	free(r->tables);
	r->tables = nft(r->criu, "list tables");
}

struct connection {
	const char *table;	/* its text */
	char *sockets;		/* of /proc/net/tcp */
};

/* Is "socket:[5]" a connection in the table, "1.2.3.4 . 80 . 5.6.7.8 . 999"? */
static bool in_table(void *arg, pid_t pid, int fd, const char *what)
{
	struct connection *c = arg;
	unsigned int from, to, fp, tp;
	unsigned long inode, other;
	char key[96];
	char *line;

	(void)pid, (void)fd;
	if (sscanf(what, "socket:[%lu]", &inode) != 1)
		return false;
	for (line = c->sockets; line && *line; line = strchr(line, '\n') ?: "", line += !!*line) {
		if (sscanf(line, " %*d: %x:%x %x:%x %*x %*x:%*x %*x:%*x %*x %*u %*d %lu", &from,
			   &fp, &to, &tp, &other) != 5 || other != inode)
			continue;
		snprintf(key, sizeof(key), "%u.%u.%u.%u . %u . %u.%u.%u.%u . %u", from & 255,
			 from >> 8 & 255, from >> 16 & 255, from >> 24, fp, to & 255,
			 to >> 8 & 255, to >> 16 & 255, to >> 24, tp);
		if (strstr(c->table, key))
			return true;
	}
	return false;
}

static char *read_tcp(pid_t root)
{
	char path[32], *text = NULL;
	size_t len = 0;
	FILE *in, *out;
	int ch;

	snprintf(path, sizeof(path), "/proc/%d/net/tcp", root);
	in = fopen(path, "re");
	out = open_memstream(&text, &len);
	while (in && out && (ch = getc(in)) != EOF)
		putc(ch, out);
	if (in)
		fclose(in);
	if (out)
		fclose(out);
	return text;
}

/* Are both ends of all "elements = { 127.0.0.1 . 80 . 127.0.0.1 . 999, … }" on this host? */
static bool all_local(const char *table)
{
	char from[64], to[64];
	const char *at = table;

	while ((at = strstr(at, "elements = {"))) {
		const char *end = strchr(at, '}') ?: at + strlen(at);

		for (at += 12; at && at < end; at = memchr(at, ',', end - at), at += !!at) {
			if (sscanf(at, " %63s . %*s . %63s .", from, to) != 2)
				return false;
			if (strcmp(from, to) && (strncmp(from, "127.", 4) || strncmp(to, "127.", 4)))
				return false;
		}
		at = end;
	}
	return true;
}

static void look_at_table(struct run *r, pid_t root, const char *name)
{
	struct connection c = { 0 };
	char args[128], *text;

	snprintf(args, sizeof(args), "list table inet %s", name);
	text = nft(r->criu, args);
	c.table = text ?: "";
	c.sockets = root ? read_tcp(root) : NULL;
	if (text && (all_local(text) || (root && each_file(root, in_table, &c)))) {
		snprintf(args, sizeof(args), "delete table inet %s", name);
		free(nft(r->criu, args));
	}
	free(c.sockets);
	free(text);
}

/*
 * CRIU reads connections in the kernel's repair mode, and ends that when the tree runs on. In it a socket sends nothing:
 * its peer would wait for ever for what is written, or for the end.
 */
static bool end_repair(void *arg, pid_t pid, int fd, const char *what)
{
	socklen_t size = sizeof(int);
	int own, is = 0;

	(void)arg;
	if (strncmp(what, "socket:", 7))
		return false;
	own = criu_copy_fd(pid, fd);
	if (own >= 0 && !getsockopt(own, IPPROTO_TCP, TCP_REPAIR, &is, &size) && is) {
		is = TCP_REPAIR_OFF;
		setsockopt(own, IPPROTO_TCP, TCP_REPAIR, &is, sizeof(is));
	}
	if (own >= 0)
		close(own);
	return false;
}

void criu_mend(struct run *r, pid_t root)
{
	char *now, *save = NULL, name[64];

	if (root)
		each_file(root, end_repair, NULL);
	now = nft(r->criu, "list tables");
	for (char *line = now ? strtok_r(now, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		if (sscanf(line, "table inet %63[-CRIU0-9a-f]", name) == 1 &&
		    !strncmp(name, "CRIU-", 5) && !(r->tables && strstr(r->tables, name)))
			look_at_table(r, root, name);
	free(now);
}
