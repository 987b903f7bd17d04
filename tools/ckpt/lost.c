// SPDX-License-Identifier: Apache-2.0
/*
 * lost.c - refuses what CRIU does not see, or restores as something else without a word
 *
 * The job's processes stand still, and CRIU is reading them. Looked for are
 *
 *   System V semaphores, queues and shared memory: they belong to a host, not to a process. Whose they are is known by
 *     the pid of who made or used them last, which the kernel tells in the pids of the caller: so a process of the
 *     job's namespace asks, to which a pid of another one is 0
 *   datagrams that a UDP socket has received and nobody has read, or that it holds back (UDP_CORK, MSG_MORE)
 *   a UDP socket's membership in a multicast group
 *   eventfds that count down one by one (EFD_SEMAPHORE)
 *   a process whose next child would begin a pid namespace
 *   a process that is to tell its end by another signal than SIGCHLD, and a program that runs from a memfd
 *   events of inotify and fanotify that nobody has read
 *
 * Sealed mappings, and those with a protection key, are looked for while the processes run: the kernel looks at each page
 * of a process for that. So are threads with a table of files, a working folder or namespaces of their own, since only
 * those of the first thread are saved, and deadlines of the scheduler.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt_i.h"
#include "criu.h"

#ifndef SCHED_DEADLINE
#define SCHED_DEADLINE 6
#endif

#define HELD_MS	100	/* for a sent datagram to leave the host */

static const char *name_of(pid_t pid, char name[32])
{
	char path[32];
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	in = fopen(path, "re");
	if (!in || fscanf(in, "%31[^\n]", name) != 1)
		strcpy(name, "?");
	if (in)
		fclose(in);
	return name;
}

/* -------------------------------------------------------------------------------- System V */

struct found {
	int kind;		/* 0: nothing, 1: semaphores, 2: a queue, 3: memory */
	int id;
	pid_t pid;		/* in the caller's namespace */
};

static bool is_one(const pid_t *pids, int n, pid_t pid)
{
	for (int i = 0; i < n; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

/* Without pids, each that the kernel tells is one: the caller is in the job's namespace. */
static bool hits(const pid_t *pids, int n, pid_t pid)
{
	return pid > 0 && (!pids || is_one(pids, n, pid));
}

static bool find_sets(const pid_t *pids, int n, struct found *f)
{
	union semun { int val; struct semid_ds *buf; struct seminfo *info; } u;
	struct seminfo all;
	struct semid_ds ds;
	int last;

	u.info = &all;
	last = semctl(0, 0, SEM_INFO, u);
	for (int i = 0; i <= last; i++) {
		u.buf = &ds;
		f->id = semctl(i, 0, SEM_STAT_ANY, u);
		for (unsigned long k = 0; f->id >= 0 && k < ds.sem_nsems; k++) {
			f->pid = semctl(f->id, k, GETPID);
			if (hits(pids, n, f->pid))
				return true;
		}
	}
	return false;
}

static bool find_queues(const pid_t *pids, int n, struct found *f)
{
	struct msginfo all;
	struct msqid_ds ds;
	int last = msgctl(0, MSG_INFO, (struct msqid_ds *)&all);

	for (int i = 0; i <= last; i++) {
		f->id = msgctl(i, MSG_STAT_ANY, &ds);
		if (f->id < 0)
			continue;
		f->pid = hits(pids, n, ds.msg_lspid) ? ds.msg_lspid : ds.msg_lrpid;
		if (hits(pids, n, f->pid))
			return true;
	}
	return false;
}

static bool find_memory(const pid_t *pids, int n, struct found *f)
{
	struct shm_info all;
	struct shmid_ds ds;
	int last = shmctl(0, SHM_INFO, (struct shmid_ds *)&all);

	for (int i = 0; i <= last; i++) {
		f->id = shmctl(i, SHM_STAT_ANY, &ds);
		if (f->id < 0)
			continue;
		f->pid = hits(pids, n, ds.shm_cpid) ? ds.shm_cpid : ds.shm_lpid;
		if (hits(pids, n, f->pid))
			return true;
	}
	return false;
}

static void find_objects(const pid_t *pids, int n, struct found *f)
{
	f->kind = find_sets(pids, n, f) ? 1 : find_queues(pids, n, f) ? 2 : find_memory(pids, n, f) ? 3 : 0;
}

/* A child of the child is in the job's namespace, and asks there. Only system calls follow the forks. */
static int ask_inside(pid_t root, struct found *f)
{
	int answer[2], status = -1;
	pid_t pid;

	if (pipe2(answer, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (!pid) {
		int fd = syscall(SYS_pidfd_open, root, 0);

		if (fd < 0 || setns(fd, CLONE_NEWPID))
			_exit(1);
		pid = fork();
		if (!pid) {
			find_objects(NULL, 0, f);
			_exit(write(answer[1], f, sizeof(*f)) != sizeof(*f));
		}
		_exit(pid < 0 || waitpid(pid, &status, 0) != pid || status);
	}
	close(answer[1]);
	if (pid > 0 && (waitpid(pid, &status, 0) != pid || status || read(answer[0], f, sizeof(*f)) != sizeof(*f)))
		status = -1;
	close(answer[0]);
	return pid < 0 || status ? -EIO : 0;
}

static bool has_own_pids(pid_t root)
{
	char path[32];
	struct stat of, own;

	snprintf(path, sizeof(path), "/proc/%d/ns/pid", root);
	return !stat(path, &of) && !stat("/proc/self/ns/pid", &own) && of.st_ino != own.st_ino;
}

static int check_objects(const pid_t *pids, int n, struct why *why)
{
	static const char *const what[] = { "", "semaphores", "message queue", "shared memory" };
	static const char option[] = " sqm";
	struct found f = { 0 };
	int err = 0;

	if (has_own_pids(pids[0]))
		err = ask_inside(pids[0], &f);
	else
		find_objects(pids, n, &f);
	if (err)
		return why_set(why, err, "the System V objects of the job cannot be asked for: %s", strerror(-err));
	return !f.kind ? 0 :
		why_set(why, -ENOTSUP, "process %d of the job has used the System V %s %d, which no checkpoint has: use "
			"POSIX's, or remove what is not needed any more (`ipcrm -%c %d`)", f.pid, what[f.kind], f.id,
			option[f.kind], f.id);
}

/* ------------------------------------------------------------------------------- processes */

struct queue {			/* of a UDP socket: not empty */
	unsigned long inode;
	unsigned int sent, received, port;
};

struct queues {
	struct queue *queue;
	size_t n;
};

/* Those of the root's network. */
static int read_queues(pid_t root, struct queues *all)
{
	static const char *const names[] = { "udp", "udp6", "udplite", "udplite6" };
	char path[40], text[512];
	int err = 0;

	for (int i = 0; i < 4 && !err; i++) {
		struct queue q, *more;
		FILE *in;

		snprintf(path, sizeof(path), "/proc/%d/net/%s", root, names[i]);
		in = fopen(path, "re");
		while (in && !err && fgets(text, sizeof(text), in)) {
			if (sscanf(text, " %*d: %*36[0-9A-F]:%x %*36[0-9A-F]:%*x %*x %x:%x %*x:%*x %*x %*u %*d %lu",
				   &q.port, &q.sent, &q.received, &q.inode) != 4 || !(q.sent || q.received))
				continue;
			more = realloc(all->queue, (all->n + 1) * sizeof(*more));
			if (!more) {
				err = -ENOMEM;
				break;
			}
			all->queue = more;
			more[all->n++] = q;
		}
		if (in)
			fclose(in);
	}
	return err;
}

static const struct queue *queue_of(const struct queues *all, unsigned long inode)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->queue[i].inode == inode)
			return &all->queue[i];
	return NULL;
}

/* What a socket has sent leaves the host, or comes to another one on it, unless the socket holds it back. */
static bool holds_back(pid_t root, unsigned long inode)
{
	bool held = true;

	for (int ms = 0; held && ms < HELD_MS; ms++) {
		struct queues now = { NULL, 0 };
		const struct queue *q;

		usleep(1000);
		q = read_queues(root, &now) ? NULL : queue_of(&now, inode);
		held = q && q->sent;
		free(now.queue);
	}
	return held;
}

static int check_socket(pid_t root, pid_t pid, const struct queues *all, unsigned long inode, struct why *why)
{
	const struct queue *q = queue_of(all, inode);
	char name[32];

	if (q && q->received)
		return why_set(why, -ENOTSUP, "the UDP socket of port %u in process %d (%s) has datagrams that nobody has "
			       "read, which CRIU cannot restore: checkpoint again when they are", q->port, pid,
			       name_of(pid, name));
	if (q && holds_back(root, inode))
		return why_set(why, -ENOTSUP, "the UDP socket of port %u in process %d (%s) holds back what it is to send "
			       "(UDP_CORK, MSG_MORE), which CRIU cannot restore: checkpoint again when it is sent",
			       q->port, pid, name_of(pid, name));
	return 0;
}

struct group {
	int interface;
	bool six;
	struct in6_addr address;	/* the first word of it, unless it is six */
};

struct groups {
	struct group *group;
	size_t n;
};

static int add_group(struct groups *all, const struct group *g)
{
	struct group *more = realloc(all->group, (all->n + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	all->group = more;
	more[all->n++] = *g;
	return 0;
}

/* The groups in which the root's network is a member, but for that of all hosts. */
static int read_groups(pid_t root, struct groups *all)
{
	char path[40], text[256];
	struct group g = { 0 };
	int err = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/net/igmp", root);
	in = fopen(path, "re");
	while (in && !err && fgets(text, sizeof(text), in)) {
		if (*text != '\t' && sscanf(text, "%d", &g.interface) == 1)
			continue;
		if (sscanf(text, " %8x", &g.address.s6_addr32[0]) == 1 &&
		    g.address.s6_addr32[0] != htonl(INADDR_ALLHOSTS_GROUP))
			err = add_group(all, &g);
	}
	if (in)
		fclose(in);
	return err;
}

/* "1    lo              ff020000000000000000000000001234     1 0000000C 0" */
static int read_groups_six(pid_t root, struct groups *all)
{
	struct group g = { .six = true };
	char path[40], text[256], word[9];
	int err = 0, at;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/net/igmp6", root);
	in = fopen(path, "re");
	while (in && !err && fgets(text, sizeof(text), in)) {
		if (sscanf(text, "%d %*s %n%*32[0-9a-f]", &g.interface, &at) != 1 || strlen(text) < (size_t)at + 32)
			continue;
		for (int i = 0; i < 4; i++) {
			snprintf(word, sizeof(word), "%.8s", text + at + 8 * i);
			g.address.s6_addr32[i] = htonl(strtoul(word, NULL, 16));
		}
		err = add_group(all, &g);
	}
	if (in)
		fclose(in);
	return err;
}

static bool is_member(int s, const struct group *g)
{
	struct group_filter f = { .gf_interface = g->interface };
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&f.gf_group;
	struct sockaddr_in *to = (struct sockaddr_in *)&f.gf_group;
	socklen_t len = sizeof(f);

	if (g->six) {
		six->sin6_family = AF_INET6;
		six->sin6_addr = g->address;
	} else {
		to->sin_family = AF_INET;
		to->sin_addr.s_addr = g->address.s6_addr32[0];
	}
	return !getsockopt(s, g->six ? IPPROTO_IPV6 : IPPROTO_IP, MCAST_MSFILTER, &f, &len);
}

static int check_member(pid_t pid, const char *fd, const struct groups *all, struct why *why)
{
	int s = all->n ? criu_copy_fd(pid, atoi(fd)) : -1;
	char name[32];
	int err = 0;

	for (size_t i = 0; i < all->n && s >= 0 && !err; i++)
		if (is_member(s, &all->group[i]))
			err = why_set(why, -ENOTSUP, "descriptor %.12s of process %d (%s) is a socket that has joined a "
				      "multicast group, which CRIU does not restore: close it, or leave the group", fd,
				      pid, name_of(pid, name));
	if (s >= 0)
		close(s);
	return err;
}

static int check_event(pid_t pid, const char *fd, struct why *why)
{
	char path[300], line[128], name[32];
	int one_by_one = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%.12s", pid, fd);
	in = fopen(path, "re");
	while (in && fgets(line, sizeof(line), in) && sscanf(line, "eventfd-semaphore: %d", &one_by_one) != 1)
		;
	if (in)
		fclose(in);
	return one_by_one ? why_set(why, -ENOTSUP, "descriptor %.12s of process %d (%s) is an eventfd with EFD_SEMAPHORE, "
				    "which CRIU restores without that: close it", fd, pid, name_of(pid, name)) : 0;
}

/* Of inotify and fanotify, what has happened and is not read. */
static int check_watch(pid_t pid, const char *fd, const char *what, struct why *why)
{
	int own = criu_copy_fd(pid, atoi(fd)), bytes = 0;
	char name[32];

	if (own >= 0 && ioctl(own, FIONREAD, &bytes))
		bytes = 0;
	if (own >= 0)
		close(own);
	return bytes ? why_set(why, -ENOTSUP, "descriptor %.12s of process %d (%s), %s, has events that nobody has read, which "
			       "CRIU does not save: checkpoint again when they are", fd, pid, name_of(pid, name), what) : 0;
}

/* Field 38 of /proc/PID/stat: the signal that a process's end gives its parent. */
static int exit_signal_of(pid_t pid)
{
	char path[32], text[1024];
	const char *at;
	int fd;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[n < 0 ? 0 : n] = 0;
	at = strrchr(text, ')');
	for (int i = 2; at && i < 38; i++)
		at = strchr(at + 1, ' ');
	return at ? atoi(at) : SIGCHLD;
}

/* What CRIU gives each process anew. */
static int check_kind(pid_t root, pid_t pid, struct why *why)
{
	int sig = pid == root ? SIGCHLD : exit_signal_of(pid);
	char path[32], exe[16] = "", name[32];

	if (sig != SIGCHLD && !family_has_ended(pid))
		return why_set(why, -ENOTSUP, "process %d (%s) tells its parent of its end by signal %d (clone), which CRIU "
			       "restores as SIGCHLD: start it with that", pid, name_of(pid, name), sig);
	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	if (readlink(path, exe, sizeof(exe) - 1) > 0 && !strncmp(exe, "/memfd:", 7))
		return why_set(why, -ENOTSUP, "process %d (%s) runs a program that is in a memfd, which CRIU cannot restore: start "
			       "it from a file", pid, name_of(pid, name));
	return 0;
}

static int check_children(pid_t pid, struct why *why)
{
	char path[48], name[32];
	struct stat own, next;

	snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
	if (stat(path, &own) || family_has_ended(pid))
		return 0;
	/* One that has no process yet is not shown. */
	snprintf(path, sizeof(path), "/proc/%d/ns/pid_for_children", pid);
	if (stat(path, &next) ? errno != ENOENT : next.st_ino == own.st_ino)
		return 0;
	return why_set(why, -ENOTSUP, "the next child of process %d (%s) would be in a pid namespace of its own, which no "
		       "restore can make: end it, or start it without that", pid, name_of(pid, name));
}

static int check_process(pid_t root, pid_t pid, const struct queues *all, const struct groups *groups,
			 struct why *why)
{
	unsigned long inode;
	char path[32], what[64];
	struct dirent *e;
	int err = check_children(pid, why) ?: check_kind(root, pid, why);
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	d = opendir(path);
	while (d && !err && (e = readdir(d))) {
		ssize_t n = readlinkat(dirfd(d), e->d_name, what, sizeof(what) - 1);

		what[n < 0 ? 0 : n] = 0;
		if (sscanf(what, "socket:[%lu]", &inode) == 1)
			err = check_socket(root, pid, all, inode, why) ?: check_member(pid, e->d_name, groups, why);
		else if (!strcmp(what, "anon_inode:[eventfd]"))
			err = check_event(pid, e->d_name, why);
		else if (!strcmp(what, "anon_inode:inotify") || !strcmp(what, "anon_inode:[fanotify]"))
			err = check_watch(pid, e->d_name, what, why);
	}
	if (d)
		closedir(d);
	return err;
}

int ckpt_lost(const pid_t *pids, int n, struct why *why)
{
	struct queues all = { NULL, 0 };
	struct groups groups = { NULL, 0 };
	int err = check_objects(pids, n, why);

	if (!err && (read_queues(pids[0], &all) || read_groups(pids[0], &groups) || read_groups_six(pids[0], &groups)))
		err = why_set(why, -ENOMEM, "no memory for the list of UDP sockets");
	for (int i = 0; i < n && !err; i++)
		err = check_process(pids[0], pids[i], &all, &groups, why);
	free(all.queue);
	free(groups.group);
	return err;
}

/* A process that ends meanwhile has none. */
static int check_mappings(pid_t pid, struct why *why)
{
	static const char key[] = "ProtectionKey:";
	char path[32], line[PATH_MAX + 128], name[32];
	const char *what = NULL;
	bool own = false;	/* not the kernel's, which has a name in brackets */
	unsigned long at = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/smaps", pid);
	in = fopen(path, "re");
	while (in && !what && fgets(line, sizeof(line), in)) {
		if (!isupper(*line)) {
			at = strtoul(line, NULL, 16);
			own = !strstr(line, " [v") && !strstr(line, " [u");
		} else if (own && !strncmp(line, key, sizeof(key) - 1) && atoi(line + sizeof(key) - 1) > 0) {
			what = "has a protection key (pkey_mprotect)";
		} else if (own && !strncmp(line, "VmFlags:", 8) && strstr(line, " sl")) {
			what = "is sealed (mseal)";
		}
	}
	if (in)
		fclose(in);
	return what ? why_set(why, -ENOTSUP, "the mapping at %#lx of process %d (%s) %s, which CRIU does not restore", at, pid,
			      name_of(pid, name), what) : 0;
}

static bool differs(pid_t pid, pid_t tid, int type)
{
	return syscall(SYS_kcmp, pid, tid, type, 0, 0) > 0;
}

static bool has_own_space(pid_t pid, pid_t tid, const char *kind)
{
	char path[64];
	struct stat of, own;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, kind);
	if (stat(path, &of))
		return false;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/ns/%s", pid, tid, kind);
	return !stat(path, &own) && own.st_ino != of.st_ino;
}

/* What the thread has of its own, which CRIU takes from the first one. */
static const char *own_of(pid_t pid, pid_t tid)
{
	if (differs(pid, tid, KCMP_FILES))
		return "a table of files";
	if (differs(pid, tid, KCMP_FS))
		return "a working folder";
	return has_own_space(pid, tid, "net") ? "a network namespace" : has_own_space(pid, tid, "uts") ? "a UTS namespace" :
	       has_own_space(pid, tid, "ipc") ? "an IPC namespace" : NULL;
}

/* A thread that ends gives up its files first, and is there for some time without them. */
static bool is_ending(pid_t tid)
{
	char path[32], line[256];
	bool has = false;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	in = fopen(path, "re");
	while (in && fgets(line, sizeof(line), in))
		has |= !strncmp(line, "FDSize:", 7) && atoi(line + 7) > 0;
	if (in)
		fclose(in);
	return !has;
}

static int check_thread(pid_t pid, pid_t tid, struct why *why)
{
	const char *what = tid == pid ? NULL : own_of(pid, tid);
	char name[32];

	if (what && !is_ending(pid) && !is_ending(tid))
		return why_set(why, -ENOTSUP, "thread %d (%s) of process %d has %s of its own (unshare), which CRIU does not save: "
			       "do that in a process", tid, name_of(tid, name), pid, what);
	if (sched_getscheduler(tid) == SCHED_DEADLINE)
		return why_set(why, -ENOTSUP, "thread %d (%s) of process %d has a deadline (SCHED_DEADLINE), which CRIU cannot "
			       "restore: take another policy (chrt --other)", tid, name_of(tid, name), pid);
	return 0;
}

static int check_threads(pid_t pid, struct why *why)
{
	char path[32];
	struct dirent *e;
	int err = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	d = opendir(path);
	while (d && !err && (e = readdir(d)))
		if (*e->d_name != '.')
			err = check_thread(pid, atoi(e->d_name), why);
	if (d)
		closedir(d);
	return err;
}

int ckpt_lost_running(const pid_t *pids, int n, struct why *why)
{
	int err = 0;

	for (int i = 0; i < n && !err; i++)
		err = check_mappings(pids[i], why) ?: check_threads(pids[i], why);
	return err;
}
