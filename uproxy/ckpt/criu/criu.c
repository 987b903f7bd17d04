// SPDX-License-Identifier: Apache-2.0
/*
 * criu.c - one run of CRIU: its arguments, its fds, the exchange with its action script, its end
 *
 * CRIU runs in a folder of its own below $TMPDIR, for its log, the socket of images.c and files of
 * plugins. Its action script reports over one pipe that CRIU has reached a point, and waits on
 * another for permission to go on; if we die it reads nothing, and fails. CRIU closes fds that it
 * does not know, so the script opens both pipes, and CRIU the script, below /proc/PID/fd of ours.
 *
 * A restore does not end by CRIU's own exit. CRIU detaches from one thread after the other, and gives
 * up and kills the tree if one of them is gone: a thread that it has just let run may have ended the
 * process, or another one. At "pre-resume" all that remains to be done is to detach; there let_go()
 * kills CRIU, and the kernel detaches all threads of the tree in one step (ptrace(2)). No process runs
 * while CRIU exists, and none can tell that it was stopped: no signal is sent to it or to its parent.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "criu_i.h"

#define FD_FIRST	100
#define ARGS_MAX	600
#define TICK_MS		100
#define HURRY		-15	/* nice */
#define BROKEN_MS	10000	/* for CRIU to let the tree go after images_close() */
#define LAST_MS		60000	/* for CRIU to let a restored tree go */
#define FAILED_MS	2000	/* for CRIU to end after its log says that it has failed */
#define ALONE_MS	60000	/* for other dumps to end */
#define OLD_NS		1000000000ull	/* for a list of tables */

static const char script[] =
"#!/bin/sh\n"
"case $CRTOOLS_SCRIPT_ACTION in pre-dump|post-dump|post-restore|pre-resume)\n"
"\techo $CRTOOLS_SCRIPT_ACTION ${CRTOOLS_INIT_PID:-0} $PPID $$ >/proc/%1$d/fd/%2$d &&\n"
"\t\tread r </proc/%1$d/fd/%3$d && exit $r\n"
"\texit 1\n"
"esac\n";

uint64_t criu_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* -------------------------------------------------------------------------------- folder */

static int write_file(const char *dir, const char *name, const void *data, size_t len)
{
	char path[CRIU_DIR + 256];
	int fd, err = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (write(fd, data, len) != (ssize_t)len)
		err = -EIO;
	close(fd);
	return err;
}

char *criu_read_file(const char *dir, const char *name, size_t *len)
{
	char path[CRIU_DIR + 256], *text = NULL;
	struct stat st;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode))
		text = malloc(st.st_size + 1);
	n = text ? read(fd, text, st.st_size) : -1;
	close(fd);
	if (n < 0) {
		free(text);
		return NULL;
	}
	text[n] = 0;
	*len = n;
	return text;
}

/*
 * The folder's owner holds its lock. Whoever makes one first removes those without an owner: their conductors were
 * killed. Folders that are kept for the user ($SINGVGPU_KEEP_CRIU) have another name.
 */
static const char folder[] = "singvgpu-criu-", kept[] = "singvgpu-criu.";

#define SWEEP_MAX 100000	/* entries of $TMPDIR that are looked at */

static void empty_dir(int fd)
{
	int again = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	DIR *d = again < 0 ? NULL : fdopendir(again);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			if (unlinkat(fd, e->d_name, 0) && errno == EISDIR)
				unlinkat(fd, e->d_name, AT_REMOVEDIR);
	if (d)
		closedir(d);
	else if (again >= 0)
		close(again);
}

static void sweep_one(int tmp, const char *name)
{
	int fd = openat(tmp, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd >= 0 && !fstat(fd, &st) && st.st_uid == geteuid() && !flock(fd, LOCK_EX | LOCK_NB)) {
		empty_dir(fd);
		unlinkat(tmp, name, AT_REMOVEDIR);
	}
	if (fd >= 0)
		close(fd);
}

static void sweep_dirs(const char *tmp)
{
	DIR *d = opendir(tmp);
	struct dirent *e;

	for (int n = 0; d && n < SWEEP_MAX && (e = readdir(d)); n++)
		if (!strncmp(e->d_name, folder, sizeof(folder) - 1))
			sweep_one(dirfd(d), e->d_name);
	if (d)
		closedir(d);
}

/* Makes and locks the folder. -EAGAIN: it was swept before we had its lock. */
static int make_locked(char *dir, int *lock)
{
	struct stat st;
	int err;

	if (!mkdtemp(dir))
		return -errno;
	*lock = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*lock >= 0 && !flock(*lock, LOCK_EX) && !fstat(*lock, &st) && st.st_nlink)
		return 0;
	err = *lock < 0 && errno != ENOENT ? -errno : -EAGAIN;
	if (*lock >= 0)
		close(*lock);
	*lock = -1;
	return err;
}

static int make_dir(char *dir, int *lock, struct why *why)
{
	const char *tmp = getenv("TMPDIR"), *name = getenv("SINGVGPU_KEEP_CRIU") ? kept : folder;
	char plugins[CRIU_DIR + 16];
	int err = -EAGAIN;

	if (!tmp || *tmp != '/' || strlen(tmp) > 60)	/* the path of a socket is 107 bytes */
		tmp = "/tmp";
	sweep_dirs(tmp);
	for (int i = 0; i < 100 && err == -EAGAIN; i++)
		err = snprintf(dir, CRIU_DIR, "%s/%sXXXXXX", tmp, name) < CRIU_DIR ? make_locked(dir, lock) :
		      -ENAMETOOLONG;
	snprintf(plugins, sizeof(plugins), "%s/plugins", dir);
	if (!err && mkdir(plugins, 0700))
		err = -errno;
	return err ? why_set(why, err, "a folder for CRIU in %s: %s", tmp, strerror(-err)) : 0;
}

/* ----------------------------------------------------------------------------- arguments */

struct args {
	char *v[ARGS_MAX];
	int n;
	bool failed;
};

static void arg(struct args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void arg(struct args *a, const char *fmt, ...)
{
	va_list ap;

	if (a->n + 1 == ARGS_MAX) {
		a->failed = true;
		return;
	}
	va_start(ap, fmt);
	if (vasprintf(&a->v[a->n], fmt, ap) < 0)
		a->failed = true;
	else
		a->v[++a->n] = NULL;
	va_end(ap);
}

static void free_args(struct args *a)
{
	while (a->n)
		free(a->v[--a->n]);
}

/*
 * Arguments of dump and restore alike. Cgroups are left to the caller of a restore; the system's
 * plugins (CRIU's own for GPUs among them) are not loaded.
 */
static void common_args(struct args *a, const struct run *r, const char *what, bool terminal,
			bool plugin)
{
	arg(a, "%s", r->criu->path);
	arg(a, "%s", what);
	arg(a, "-D");
	arg(a, "%s", r->dir);
	arg(a, "-o");
	arg(a, "criu.log");
	arg(a, "-v2");
	arg(a, "--stream");
	arg(a, "--tcp-established");
	arg(a, "--network-lock");
	arg(a, "nftables");
	arg(a, "--file-locks");
	arg(a, "--link-remap");
	arg(a, "--manage-cgroups=ignore");
	arg(a, "-L");
	if (plugin)
		arg(a, "%s", r->criu->plugins);
	else
		arg(a, "%s/plugins", r->dir);
	if (terminal)
		arg(a, "--shell-job");
}

/* Our own pid as /proc has it, which may be that of an outer namespace. */
static pid_t criu_self(void)
{
	char text[16] = "";

	return readlink("/proc/self", text, sizeof(text) - 1) > 0 ? atoi(text) : getpid();
}

/* A job's terminal is not passed as a key, since it is CRIU's own stdin. */
static bool is_tty(const char *key)
{
	return !strncmp(key, "tty[", 4);
}

static void dump_args(struct args *a, const struct run *r, const struct criu_dump *d)
{
	common_args(a, r, "dump", d->terminal, d->plugin);
	arg(a, "-t");
	arg(a, "%d", d->pid);
	arg(a, "--ghost-limit");
	arg(a, "2047M");
	arg(a, "--action-script");
	arg(a, "/proc/%d/fd/%d", criu_self(), r->script);
	if (d->leave_running)
		arg(a, "--leave-running");
	for (size_t i = 0; i < d->n_keys; i++) {
		const char *key = d->keys[i];

		if (is_tty(key) && !d->terminal)
			arg(a, "--external=%s", key);
		else if (!strncmp(key, "socket[", 7))
			arg(a, "--external=unix[%s", key + 7);
		else if (!strncmp(key, "socket:[", 8))
			arg(a, "--external=unix[%s", key + 8);
	}
}

static void restore_args(struct args *a, const struct run *r, const struct criu_restore *d)
{
	common_args(a, r, "restore", d->terminal, d->plugin);
	arg(a, "--restore-detached");
	arg(a, "--pidfile");
	arg(a, "pid");
	arg(a, "--action-script");
	arg(a, "/proc/%d/fd/%d", criu_self(), r->script);
	for (size_t i = 0; i < d->n_fds; i++) {
		if (is_tty(d->fds[i].key) && d->terminal)
			continue;
		arg(a, "--inherit-fd");
		arg(a, "fd[%zu]:%s", FD_FIRST + i, d->fds[i].key);
	}
}

/* ------------------------------------------------------------------------------ its process */

struct child {
	const struct run *run;
	char *const *argv;
	const struct criu_fd *fds;
	size_t n_fds;
	const char *const *env;
	bool terminal;
	bool filled;		/* struct criu_dump's */
	bool hurry;		/* a tree is frozen meanwhile: raise the priority */
	pid_t group;
};

/* Moves fd to a number from `first` on, since other fds will get the lower numbers. */
static int aside(int fd, int first)
{
	fd = fcntl(fd, F_DUPFD_CLOEXEC, first);
	if (fd < 0)
		_exit(126);
	return fd;
}

static void set_fds(const struct child *c)
{
	int first = FD_FIRST + c->n_fds, moved[ARGS_MAX], null, err;
	char path[CRIU_DIR + 16];

	snprintf(path, sizeof(path), "%s/stderr", c->run->dir);
	null = aside(open("/dev/null", O_RDWR | O_CLOEXEC), first);
	err = aside(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), first);
	for (size_t i = 0; i < c->n_fds; i++)
		moved[i] = aside(c->fds[i].fd, first);
	for (size_t i = 0; i < c->n_fds; i++)
		dup2(moved[i], FD_FIRST + (int)i);
	if (!c->terminal)
		dup2(null, 0);
	if (dup2(null, 1) < 0 || dup2(err, 2) < 0)
		_exit(126);
	syscall(SYS_close_range, 3, FD_FIRST - 1, 0);
	syscall(SYS_close_range, first, ~0u, 0);
}

static void child(const struct child *c) __attribute__((noreturn));
static void child(const struct child *c)
{
	sigset_t none;

	if (c->terminal)
		setpgid(0, c->group);
	else
		setsid();
	if (c->hurry)
		setpriority(PRIO_PROCESS, 0, HURRY);
	set_fds(c);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGTTOU, SIG_IGN);
	unsetenv("LD_PRELOAD");
	unsetenv("LD_LIBRARY_PATH");
	if (c->filled)
		setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=165", 1);
	for (int i = 0; i < 3 && c->env[i]; i++)
		putenv((char *)c->env[i]);
	execv(c->argv[0], c->argv);
	dprintf(2, "%s: %s\n", c->argv[0], strerror(errno));
	_exit(127);
}

/* Makes the action script and its pipes, of which all ends remain ours. */
static int make_script(struct run *r)
{
	if (pipe2(r->from, O_CLOEXEC) || pipe2(r->to, O_CLOEXEC))
		return -errno;
	r->script = memfd_create("script", MFD_CLOEXEC);
	if (r->script < 0)
		return -errno;
	return dprintf(r->script, script, criu_self(), r->from[1], r->to[0]) < 0 ? -errno : 0;
}

static int start(struct run *r, struct child *c)
{
	r->pid = fork();
	if (!r->pid)
		child(c);
	return r->pid > 0 ? 0 : -errno;
}

/* Closes the images, so that CRIU fails and lets the tree run on; kills CRIU after BROKEN_MS. */
static void give_up(struct run *r, uint64_t now)
{
	if (!r->images_gone) {
		if (r->before_end)
			r->before_end(r);
		images_close(r->images);
		r->images = NULL;
		r->images_gone = true;
		r->kill_at = now + BROKEN_MS * 1000000ull;
	} else if (now > r->kill_at) {
		kill(r->pid, SIGKILL);
	}
}

/*
 * CRIU, whose script is at "pre-resume", ends; the tree runs from then on, or is killed if we do not want it any more.
 * criu is r->pid, or a process below it if the user's CRIU is a script. False: it is neither, and goes on by itself.
 */
static bool let_go(struct run *r, pid_t root, pid_t criu, pid_t script)
{
	if (root <= 1 || criu <= 1 || script <= 1 || (criu != r->pid && !criu_below(r->pid, criu)))
		return false;
	if (r->err)
		kill(root, SIGKILL);
	r->gone = !r->err;
	r->criu_pid = criu;
	r->script_pid = script;
	kill(criu, SIGKILL);
	if (criu != r->pid)
		kill(r->pid, SIGKILL);
	return true;
}

/* Waits for what CRIU's end has made children of ours: itself, if it was below r->pid, and its script. */
static void reap_rest(const struct run *r)
{
	if (!r->criu_pid)
		return;
	while (r->criu_pid != r->pid && criu_alive(r->criu_pid))
		usleep(1000);
	if (r->criu_pid != r->pid)
		waitpid(r->criu_pid, NULL, 0);
	if (write(r->to[1], "0\n", 2) == 2)
		waitpid(r->script_pid, NULL, 0);
}

/* The action script has reached a point and written "post-dump ROOT CRIU SCRIPT\n": the tree's root, and two pids. */
static void hear(struct run *r)
{
	char text[128];
	ssize_t n = read(r->from[0], text, sizeof(text) - 1);
	int pid = 0, criu = 0, own = 0;

	if (n <= 0)
		return;
	text[n] = 0;
	(void)sscanf(text, "%*s %d %d %d", &pid, &criu, &own);
	if (!strncmp(text, "pre-resume", 10)) {
		if (let_go(r, pid, criu, own))
			return;
	} else if (!strncmp(text, "pre-dump", 8)) {
		r->err = r->err ?: r->before ? r->before(r) : 0;
	} else {
		r->heard = true;
		r->err = r->err ?: r->at_point(r, pid);
	}
	if (write(r->to[1], r->err ? "1\n" : "0\n", 2) != 2)
		r->err = r->err ?: -EPIPE;
}

static void call_still(struct run *r)
{
	int (*still)(struct run *r) = r->still;

	r->still = NULL;
	if (still && !r->err)
		r->err = still(r);
}

static void look_after(struct run *r)
{
	uint64_t now = criu_now();

	if (r->limit && now > r->limit && !r->heard && !r->err)
		r->err = why_set(r->why, -ETIMEDOUT, "CRIU did not end in time");
	if (!r->err && r->progress) {
		r->err = r->progress(r->progress_arg, r->images ? images_bytes(r->images) : 0);
		if (r->err)
			why_set(r->why, r->err, "it was cancelled");
	}
	if (r->err && !r->heard)
		give_up(r, now);
	/* CRIU may wait for ever for a process that it has killed, and of which it traces a thread. */
	if (!r->failed_at && !r->gone && criu_has_failed(r))
		r->failed_at = now + FAILED_MS * 1000000ull;
	if (r->failed_at && now > r->failed_at)
		kill(r->pid, SIGKILL);
	if (r->heard && r->kill_at && now > r->kill_at && !r->gone) {
		r->late = true;
		kill(r->pid, SIGKILL);
	}
}

/*
 * CRIU has ended: stores its status. A CRIU that was killed in a dump may leave children: its script, and those that
 * stop themselves for it to look at. They are of its group, whose number is nobody else's before CRIU is waited for.
 */
static bool has_ended(struct run *r)
{
	siginfo_t end = { 0 };

	if (waitid(P_PID, r->pid, &end, WEXITED | WNOHANG | WNOWAIT) || !end.si_pid)
		return false;
	if (r->alone)
		kill(-r->pid, SIGKILL);
	return waitpid(r->pid, &r->status, 0) == r->pid;
}

/* Serves the script until CRIU has ended; stores its status in r->status. */
static void attend(struct run *r)
{
	int pidfd = syscall(SYS_pidfd_open, r->pid, 0);

	for (;;) {
		struct pollfd p[] = { { .fd = pidfd, .events = POLLIN },
				      { .fd = r->still && r->images ? images_still(r->images) : -1, .events = POLLIN },
				      { .fd = r->from[0], .events = POLLIN } };
		int n = poll(p, 3, pidfd < 0 ? 5 : TICK_MS);

		if (n > 0 && p[1].revents)
			call_still(r);
		if (n > 0 && p[2].revents)
			hear(r);
		if (has_ended(r))
			break;
		look_after(r);
	}
	if (pidfd >= 0)
		close(pidfd);
	reap_rest(r);
}

/* ----------------------------------------------------------------------------------- dump */

static void add_plugin_images(struct run *r)
{
	struct dirent *e;
	DIR *d = opendir(r->dir);
	size_t len;
	char *text;

	while (d && (e = readdir(d))) {
		if (strncmp(e->d_name, "singvgpu-", 9))
			continue;
		text = criu_read_file(r->dir, e->d_name, &len);
		r->err = r->err ?: text ? images_add(r->images, e->d_name, text, len) : -EIO;
		free(text);
	}
	if (d)
		closedir(d);
}

static int images_why(struct run *r, int err)
{
	char what[64];

	if (images_failed(r->images, what))
		why_set(r->why, err, "CRIU's image %s: %s", what, strerror(-err));
	return err;
}

static int about_to_dump(struct run *r)
{
	struct criu_dump *d = r->arg;
	uint64_t start = criu_now();
	int err = d->ready ? d->ready(d->arg, r->why) : 0;

	/* Other dumps have come and gone meanwhile. */
	if (criu_now() - start > OLD_NS)
		criu_tables(r);
	/* In slices, since the dump may be given up meanwhile. */
	for (int ms = 0; !err && r->links < 0 && ms < ALONE_MS; ms += TICK_MS) {
		r->links = criu_links_lock(d->alone, TICK_MS);
		if (r->links < 0 && r->progress && (err = r->progress(r->progress_arg, 0)))
			why_set(r->why, err, "it was cancelled");
	}
	return err;
}

static int stands_still(struct run *r)
{
	struct criu_dump *d = r->arg;

	int err = criu_attributes_save(r->images, d->pid);

	if (err)
		return why_set(r->why, err, "no memory for what threads have asked for");
	return d->still ? d->still(d->arg, r->why) : 0;
}

/* If CRIU lets the tree go in this moment, by itself, the tree's clocks may go back. */
static void given_up(struct run *r)
{
	struct criu_dump *d = r->arg;
	uint64_t clocks;

	images_asked(r->images, &d->since_ns, &clocks);
	if (d->lets_go && d->since_ns && criu_holds(r->pid, d->pid))
		d->lets_go(d->arg);
}

static int all_there(struct run *r)
{
	struct criu_dump *d = r->arg;
	int err;

	add_plugin_images(r);
	err = r->err ?: images_gather(r->images);
	if (err)
		return images_why(r, err);
	err = criu_edit(r->images, d->pid, r->why);
	if (err)
		return err;
	err = images_settle(r->images);
	if (err)
		return images_why(r, err);
	err = criu_links_read(&d->links, r->images);
	return err ? why_set(r->why, err, "CRIU's list of files cannot be read") : 0;
}

static int dumped(struct run *r, pid_t pid)
{
	struct criu_dump *d = r->arg;
	uint64_t start;
	int err;

	(void)pid;
	call_still(r);
	err = r->err ?: all_there(r);
	images_asked(r->images, &d->since_ns, &start);
	d->stood_ns = d->since_ns && start > d->since_ns ? start - d->since_ns : 0;
	start = criu_now();
	if (!err && d->frozen)
		err = d->frozen(d->arg, r->why);
	r->point_ns = criu_now() - start;
	if (d->lets_go && (err || d->leave_running))
		d->lets_go(d->arg);
	return err;
}

static void close_script(struct run *r)
{
	int fds[] = { r->from[0], r->from[1], r->to[0], r->to[1], r->script };

	for (int i = 0; i < 5; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static int begin_run(struct run *r, const struct criu *criu, struct why *why)
{
	int err;

	memset(r, 0, sizeof(*r));
	r->criu = criu;
	r->why = why;
	r->from[0] = r->from[1] = r->to[0] = r->to[1] = r->script = r->links = r->lock = -1;
	err = make_script(r);
	if (err)
		why_set(why, err, "pipes for CRIU: %s", strerror(-err));
	else
		err = make_dir(r->dir, &r->lock, why);
	if (err)
		close_script(r);
	return err;
}

static void end_run(struct run *r)
{
	if (r->images)
		images_close(r->images);
	close_script(r);
	if (r->links >= 0)
		close(r->links);
	free(r->tables);
	if (!getenv("SINGVGPU_KEEP_CRIU")) {
		empty_dir(r->lock);
		rmdir(r->dir);
	}
	close(r->lock);
}

/*
 * Has CRIU killed the tree, as it was allowed to? When the root is process 1 of a namespace all
 * processes die with it, and CRIU fails to detach from them; that failure does not matter.
 */
static bool killed(const struct run *r, const struct criu_dump *d)
{
	if (!r->heard || r->err || d->leave_running)
		return false;
	for (int ms = 0; ms < 2000; ms += 5) {
		if (!criu_alive(d->pid))
			return true;
		usleep(5000);
	}
	return false;
}

int criu_dump(struct criu_dump *d, struct why *why)
{
	struct args a = { 0 };
	struct run r;
	struct child c = { .run = &r, .argv = a.v, .env = d->env, .hurry = true, .filled = d->filled };
	int err = begin_run(&r, d->criu, why);

	if (err)
		return err;
	r.arg = d;
	r.before = about_to_dump;
	r.still = stands_still;
	r.at_point = dumped;
	r.alone = true;
	r.before_end = given_up;
	r.progress = d->progress;
	r.progress_arg = d->arg;
	r.limit = d->limit_ms ? criu_now() + d->limit_ms * 1000000ull : 0;
	dump_args(&a, &r, d);
	d->met = d->empty = false;
	d->links = (struct criu_links){ NULL, 0 };
	criu_tables(&r);
	err = a.failed ? -E2BIG : images_capture(&r.images, r.dir, d->sink);
	if (!err)
		err = start(&r, &c);
	if (err) {
		why_set(why, err, "CRIU cannot be started: %s", strerror(-err));
	} else {
		d->criu_pid = r.pid;
		attend(&r);
		d->criu_pid = 0;
		d->bytes = r.images ? images_bytes(r.images) : 0;
		criu_frozen_time(&r, d);
		err = killed(&r, d) ? 0 : criu_verdict(&r, "dump", d->pid);
		d->met = err && criu_met(&r);
		d->empty = err && criu_empty(&r);
		criu_links_remove(&d->links);
		if (WIFSIGNALED(r.status) || (!err && !d->leave_running))
			criu_mend(&r, err ? d->pid : 0);
	}
	criu_links_free(&d->links);
	free_args(&a);
	end_run(&r);
	return err;
}

/* -------------------------------------------------------------------------------- restore */

static int put_plugin_image(void *arg, const char *name, const void *data, size_t len)
{
	if (strncmp(name, "singvgpu-", 9) || strchr(name, '/'))
		return 0;
	return write_file(arg, name, data, len);
}

static pid_t find_inner(void *arg, int pid)
{
	return criu_find_pid(*(pid_t *)arg, pid);
}

static int made(struct run *r, pid_t pid)
{
	struct criu_restore *d = r->arg;
	int err = images_fill(r->images, find_inner, &pid);
	uint64_t asked;

	if (err)
		return images_why(r, err);
	images_asked(r->images, &asked, &d->since_ns);
	criu_attributes_set(r->images, pid, false, &d->attributes);
	return !d->ready ? 0 : d->ready(d->arg, pid, r->why);
}

static int restored(struct run *r, pid_t pid)
{
	const struct criu_restore *d = r->arg;
	int err = made(r, pid);

	r->kill_at = criu_now() + (d->last_ms ?: LAST_MS) * 1000000ull;
	return err;
}

static pid_t read_pid(struct run *r)
{
	size_t len;
	char *text = criu_read_file(r->dir, "pid", &len);
	pid_t pid = text ? atoi(text) : 0;

	free(text);
	return pid;
}

int criu_restore(struct criu_restore *d, struct why *why)
{
	struct args a = { 0 };
	struct run r;
	struct child c = { .run = &r, .argv = a.v, .env = d->env, .fds = d->fds,
			   .n_fds = d->n_fds, .terminal = d->terminal, .group = d->group };
	static const struct criu_links none;
	const char *tag = d->tag ?: "";
	struct criu_links made = none;
	struct kin before;
	int err = begin_run(&r, d->criu, why);

	if (err)
		return err;
	r.arg = d;
	r.at_point = restored;
	r.progress = d->progress;
	r.progress_arg = d->arg;
	r.limit = d->limit_ms ? criu_now() + d->limit_ms * 1000000ull : 0;
	criu_adopt(&before);
	err = images_serve(&r.images, r.dir, d->source);
	if (err) {
		why_set(why, err, "CRIU's images cannot be read: %s", strerror(-err));
	} else if ((err = criu_links_rename(r.images, d->links ?: &none, tag, &made))) {
		why_set(why, err, "CRIU's list of files cannot be read");
	} else {
		restore_args(&a, &r, d);
		err = a.failed || d->n_fds > (ARGS_MAX - 40) / 2 ? -E2BIG : 0;
	}
	if (!err)
		err = images_each(r.images, put_plugin_image, r.dir) ?: start(&r, &c);
	if (err) {
		why_set(why, err, "CRIU cannot be started: %s", strerror(-err));
	} else {
		attend(&r);
		d->bytes = r.images ? images_bytes(r.images) : 0;
		err = criu_verdict(&r, "restore", 0);
		d->pid = err ? 0 : read_pid(&r);
		if (!err && d->pid <= 0)
			err = why_set(why, -EIO, "CRIU does not say what it has restored");
		if (!err && r.images)
			criu_attributes_set(r.images, d->pid, true, &d->attributes);
	}
	if (err)
		criu_disown(&before);
	criu_links_sweep(&made, tag);
	criu_links_free(&made);
	free(before.pid);
	free_args(&a);
	end_run(&r);
	return err;
}
