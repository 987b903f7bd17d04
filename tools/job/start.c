// SPDX-License-Identifier: Apache-2.0
/*
 * start.c - starts ranks and proxies, with their environment and without our files
 *
 * Nothing here uses PR_SET_PDEATHSIG: it would kill a job that CRIU restores.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init.h"
#include "job.h"
#include "passed.h"

#define USUAL_STACK (8ul << 20)
#define CHANNEL	     "/memfd:singvgpu-"	/* and 32 hexadecimal digits (ringbuf/memfd.c) */
#define CHANNEL_NAME (sizeof(CHANNEL) + 32)
#define PROXY_END_MS 2000

/* ------------------------------------------------------------------------ environment */

struct env {
	char **var;
	int n, room;
	bool failed;
};

static void env_put(struct env *e, char *text)
{
	char **more;

	if (e->n + 2 > e->room) {
		e->room = e->room ? 2 * e->room : 128;
		more = realloc(e->var, e->room * sizeof(*more));
		if (!more) {
			e->failed = true;
			free(text);
			return;
		}
		e->var = more;
	}
	if (!text)
		e->failed = true;
	e->var[e->n++] = text;
	e->var[e->n] = NULL;
}

static void env_set(struct env *e, const char *name, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void env_set(struct env *e, const char *name, const char *fmt, ...)
{
	size_t len = strlen(name);
	char *value = NULL, *text = NULL;
	va_list ap;
	int at = 0;

	va_start(ap, fmt);
	if (vasprintf(&value, fmt, ap) < 0 || asprintf(&text, "%s=%s", name, value) < 0)
		text = NULL;
	va_end(ap);
	free(value);
	for (int i = 0; i < e->n; i++) {
		if (!strncmp(e->var[i], name, len) && e->var[i][len] == '=')
			free(e->var[i]);
		else
			e->var[at++] = e->var[i];
	}
	e->n = at;
	env_put(e, text);
}

static void env_unset(struct env *e, const char *name)
{
	size_t len = strlen(name);
	int at = 0;

	for (int i = 0; i < e->n; i++) {
		if (!strncmp(e->var[i], name, len) && e->var[i][len] == '=')
			free(e->var[i]);
		else
			e->var[at++] = e->var[i];
	}
	e->n = at;
	if (e->var)
		e->var[at] = NULL;
}

static void env_copy(struct env *e)
{
	for (char **v = environ; *v; v++)
		env_put(e, strdup(*v));
}

static void env_free(struct env *e)
{
	for (int i = 0; i < e->n; i++)
		free(e->var[i]);
	free(e->var);
}

static bool in_dir(const char *word, size_t len, const char *dir)
{
	size_t n = strlen(dir);

	return len >= n && !strncmp(word, dir, n) && (len == n || word[n] == '/');
}

/* In this order; only the first is required. libsingvgpu-files.so: libintercept/files/record.h. */
static const char *const preloads[] = { "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2",
	"libsingvgpu-files.so", "libsingvgpu-rtc.so", "libsingvgpu-clock.so" };
#define PRELOADS ((int)(sizeof(preloads) / sizeof(preloads[0])))

/*
 * The list without our entries, so that a job within a job gets them once, and a proxy not at all.
 * In LD_PRELOAD the stand-ins' bare names are ours, too. malloc'ed, "" if nothing is left.
 */
static char *others(const char *list, const char *separators, const char *libdir, bool preload)
{
	char *left = calloc(1, list ? strlen(list) + 2 : 1);
	size_t n;

	for (; left && list && *list; list += n + !!list[n]) {
		bool ours;

		n = strcspn(list, separators);
		ours = !n || in_dir(list, n, libdir);
		for (int i = 0; preload && i < PRELOADS; i++)
			ours |= n == strlen(preloads[i]) && !strncmp(list, preloads[i], n);
		if (ours)
			continue;
		if (*left)
			strcat(left, ":");
		strncat(left, list, n);
	}
	return left;
}

/*
 * Of a list of folders those with an NVIDIA driver. A job's other folders, as of a conda environment, hold
 * libraries that the job was built with: LLVM does not start with an older libstdc++. malloc'ed.
 */
static char *drivers(char *list)
{
	char *left = calloc(1, list ? strlen(list) + 2 : 1), file[PATH_MAX];
	size_t n;

	for (char *dir = list; left && dir && *dir; dir += n + !!dir[n]) {
		n = strcspn(dir, ":;");
		if (snprintf(file, sizeof(file), "%.*s/libcuda.so.1", (int)n, dir) >= (int)sizeof(file) ||
		    access(file, R_OK))
			continue;
		if (*left)
			strcat(left, ":");
		strncat(left, dir, n);
	}
	free(list);
	return left;
}

/* Puts our entries in front of the variables' values. */
static void env_libraries(struct env *e, const char *libdir)
{
	char *preload = others(getenv("LD_PRELOAD"), ": ", libdir, true);
	char *path = others(getenv("LD_LIBRARY_PATH"), ":;", libdir, false);
	char file[PATH_MAX], *list = NULL;
	size_t len;
	FILE *out = open_memstream(&list, &len);

	for (int i = 0; out && i < PRELOADS; i++) {
		snprintf(file, sizeof(file), "%s/%s", libdir, preloads[i]);
		/* LD_PRELOAD takes no path with a space; ld.so searches for bare names. */
		if (!i || !access(file, R_OK))
			fprintf(out, "%s%s", i ? ":" : "", strchr(libdir, ' ') ? preloads[i] : file);
	}
	if (!preload || !path || !out || fclose(out)) {
		e->failed = true;
	} else {
		env_set(e, "LD_PRELOAD", "%s%s%s", list, *preload ? ":" : "", preload);
		env_set(e, "LD_LIBRARY_PATH", "%s%s%s", libdir, *path ? ":" : "", path);
	}
	free(list);
	free(preload);
	free(path);
}

/* torchrun's variables, by which programs know that they are distributed. */
static void rank_numbers(struct env *e, const struct job *job, int rank)
{
	const struct seating *t = job->seating;

	env_set(e, "RANK", "%d", rank);
	env_set(e, "LOCAL_RANK", "%d", t->rank[rank].local);
	env_set(e, "WORLD_SIZE", "%d", t->ranks);
	env_set(e, "LOCAL_WORLD_SIZE", "%d", seating_local_size(t, rank));
	env_set(e, "MASTER_ADDR", "%s", seating_master(t));
	if (job->port > 0)
		env_set(e, "MASTER_PORT", "%d", job->port);
}

static void rank_env(struct env *e, const struct job *job, int rank)
{
	char socket[RUNDIR_NAME];

	env_copy(e);
	if (job->opt->ranked)
		rank_numbers(e, job, rank);
	/* gloo takes the address that the host's name has, which another host may not. */
	if (seating_one_host(job->seating) && !getenv("GLOO_SOCKET_IFNAME") && (job->opt->ranked || !getenv("WORLD_SIZE")))
		env_set(e, "GLOO_SOCKET_IFNAME", "lo");
	env_set(e, "SINGVGPU_SOCKET", "%s/%s", job->dir.path, rundir_name(socket, RUNDIR_SOCKET, rank, 0));
	/* Jupyter's kernel ends when this is not its parent: in the job's pid namespace it never is. */
	env_unset(e, "JPY_PARENT_PID");
	env_unset(e, "SINGVGPU_WINDOW");
	if (job->opt->window)
		env_set(e, "SINGVGPU_WINDOW", "%s", job->opt->window);
	env_set(e, "SINGVGPU_FILES", "%s/files", job->dir.path);
	if (!places_nvidia_devices())
		env_set(e, "SINGVGPU_NODES", "%d", job->seating->devices);
	env_libraries(e, job->places->libdir);
}

static void proxy_env(struct env *e, const struct job *job)
{
	/* CUDA_VISIBLE_DEVICES is applied in the client, once. */
	static const char *const of_ranks[] = { "RANK", "LOCAL_RANK", "WORLD_SIZE",
		"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SINGVGPU_SOCKET",
		"SINGVGPU_FILES", "SINGVGPU_NODES", "CUDA_VISIBLE_DEVICES",
		/* They are for the stand-in. NVIDIA's NCCL in a proxy would meet all others at one address, and block. */
		"NCCL_COMM_ID", "NCCL_COMM_BLOCKING" };
	char *preload = others(getenv("LD_PRELOAD"), ": ", job->places->libdir, true);
	char *path = drivers(others(getenv("LD_LIBRARY_PATH"), ":;", job->places->libdir, false));

	env_copy(e);
	for (size_t i = 0; i < sizeof(of_ranks) / sizeof(of_ranks[0]); i++)
		env_unset(e, of_ranks[i]);
	env_unset(e, "LD_PRELOAD");
	env_unset(e, "LD_LIBRARY_PATH");
	if (!preload || !path)
		e->failed = true;
	if (preload && *preload)
		env_set(e, "LD_PRELOAD", "%s", preload);
	if (path && *path)
		env_set(e, "LD_LIBRARY_PATH", "%s", path);
	if (job->opt->devices)
		env_set(e, "SINGVGPU_SOFT_DEVICES", "%ld", job->opt->devices);
	env_unset(e, "SINGVGPU_SOFT_WARM");
	if (job->opt->warm)
		env_set(e, "SINGVGPU_SOFT_WARM", "1");
	free(preload);
	free(path);
}

/* ------------------------------------------------------------------------- processes */

struct start {
	const struct job *job;
	char *const *argv;
	char **env;
	int fd[5 + 2 * SEATING_DEVICES], fds;	/* become 0, 1, 2 … */
	bool search;		/* $PATH */
	bool rank;
};

/*
 * A proxy's address space is not randomised, and its stack's limit, which moves it, is the usual
 * one: drivers place variables of modules relative to it, and a restored job has their addresses.
 * A sandbox may refuse it; the proxy then says so.
 */
static void fix_addresses(void)
{
	struct rlimit stack;
	int persona = personality(0xffffffff);

	if (persona >= 0)
		personality(persona | ADDR_NO_RANDOMIZE);
	if (!getrlimit(RLIMIT_STACK, &stack) && stack.rlim_max >= USUAL_STACK) {
		stack.rlim_cur = USUAL_STACK;
		setrlimit(RLIMIT_STACK, &stack);
	}
}

static void put_fds(const struct start *s)
{
	int fd[sizeof(s->fd) / sizeof(s->fd[0])];

	/* First duplicated above the target numbers. */
	for (int i = 0; i < s->fds; i++)
		fd[i] = fcntl(s->fd[i], F_DUPFD_CLOEXEC, sizeof(fd) / sizeof(fd[0]));
	for (int i = 0; i < s->fds; i++)
		dup2(fd[i], i);
}

static void child(const struct start *s, int report) __attribute__((noreturn));
static void child(const struct start *s, int report)
{
	const struct job_before *was = &s->job->was;
	int err;

	if (s->rank && s->job->terminal)
		setpgid(0, s->job->group);
	else
		setsid();
	put_fds(s);
	report = fcntl(report, F_DUPFD_CLOEXEC, sizeof(s->fd) / sizeof(s->fd[0]));
	if (s->rank)
		passed_keep();
	else
		syscall(SYS_close_range, s->fds, ~0u, CLOSE_RANGE_CLOEXEC);
	if (!s->rank && chdir("/"))
		_exit(EXIT_OURS);
	sigaction(SIGPIPE, &was->pipe, NULL);
	sigaction(SIGTTOU, &was->ttou, NULL);
	sigaction(SIGCHLD, &was->chld, NULL);
	sigaction(SIGXFSZ, &was->xfsz, NULL);
	for (int i = 0; s->rank && i < JOB_LIMITS; i++)
		setrlimit(job_limits[i], &was->limit[i]);
	if (!s->rank)
		fix_addresses();
	sigprocmask(SIG_SETMASK, &was->mask, NULL);
	if (s->search)
		execvpe(s->argv[0], s->argv, s->env);
	else
		execve(s->argv[0], s->argv, s->env);
	err = errno;
	if (write(report, &err, sizeof(err)) < 0)
		_exit(EXIT_OURS);
	_exit(err == ENOENT ? EXIT_NOTFOUND : EXIT_NOEXEC);
}

/* Forks, and waits until exec has succeeded or failed. */
static pid_t start(const struct start *s)
{
	int report[2], err;
	ssize_t n;
	pid_t pid;

	if (pipe2(report, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (!pid)
		child(s, report[1]);
	err = -errno;
	close(report[1]);
	if (pid > 0) {
		do {
			n = read(report[0], &err, sizeof(err));
		} while (n < 0 && errno == EINTR);
		err = n == sizeof(err) ? -err : 0;
		if (err)
			kill(pid, SIGKILL);	/* the supervisor reaps it as a stranger */
	}
	close(report[0]);
	return err ?: pid;
}

pid_t start_rank(const struct job *job, int rank, const int fd[3])
{
	struct start s = { .job = job, .argv = job->opt->command, .fd = { fd[0], fd[1], fd[2] },
			   .fds = 3, .search = true, .rank = true };
	struct env e = { 0 };
	pid_t pid;
	int files;

	rank_env(&e, job, rank);
	s.env = e.var;
	/* Without this file nothing is logged, which a checkpoint reports. */
	files = rundir_open(job->dir.path, geteuid(), "files", O_CREAT | O_WRONLY);
	if (files >= 0)
		close(files);
	pid = e.failed ? -ENOMEM : start(&s);
	env_free(&e);
	return pid;
}

/* ------------------------------------------------------------------------------- init */

struct births {
	int err;		/* of init */
	pid_t pid[JOB_RANKS_MAX];
};

/* Executes init with only the status pipe open. Returns only an error. */
static int become_init(const struct job *job, const struct births *b, int status)
{
	char *argv[JOB_RANKS_MAX + 2] = { "singvgpu-init" }, number[JOB_RANKS_MAX][12];
	char *env[] = { NULL };
	int n = 1, fd;

	for (int r = 0; r < job->opt->ranks && b->pid[r] > 0; r++) {
		snprintf(number[r], sizeof(number[r]), "%d", b->pid[r]);
		argv[n++] = number[r];
	}
	fd = fcntl(status, F_DUPFD_CLOEXEC, 16);
	if (fd < 0 || dup2(fd, INIT_FD) < 0 || chdir(job->dir.path))
		return -errno;
	syscall(SYS_close_range, 0, INIT_FD - 1, 0);
	syscall(SYS_close_range, INIT_FD + 1, ~0u, CLOSE_RANGE_CLOEXEC);
	execve(job->places->init, argv, env);
	return -errno;
}

/* Process 1: starts the ranks, and waits until the supervisor has found their pids. */
static void first(const struct job *job, const int (*fd)[3], int status, int report, int leave)
	__attribute__((noreturn));
static void first(const struct job *job, const int (*fd)[3], int status, int report, int leave)
{
	struct births b = { 0 };
	char byte;
	int err;

	setsid();
	for (int r = 0; r < job->opt->ranks && (!r || b.pid[r - 1] > 0); r++)
		b.pid[r] = start_rank(job, r, fd[r]);
	report = fcntl(report, F_DUPFD_CLOEXEC, 16);
	if (write(report, &b, sizeof(b)) != sizeof(b) || read(leave, &byte, 1) != 1)
		_exit(EXIT_OURS);
	err = become_init(job, &b, status);
	if (write(report, &err, sizeof(err)) != sizeof(err))
		_exit(EXIT_OURS);
	_exit(EXIT_OURS);
}

/* Reads up to len bytes, until end of file. */
static size_t read_all(int fd, void *data, size_t len)
{
	size_t at = 0;
	ssize_t n;

	while (at < len) {
		n = read(fd, (char *)data + at, len - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		at += n;
	}
	return at;
}

pid_t start_init(const struct job *job, const int (*fd)[3], int status, pid_t *pid, pid_t *inner)
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };
	int report[2], leave[2], err = 0;
	struct births b;
	pid_t init;

	if (pipe2(report, O_CLOEXEC))
		return -errno;
	if (pipe2(leave, O_CLOEXEC)) {
		err = -errno;
		close(report[0]);
		close(report[1]);
		return err;
	}
	init = syscall(SYS_clone3, &a, sizeof(a));
	if (!init)
		first(job, fd, status, report[1], leave[0]);
	if (init < 0)
		err = -EPERM;
	close(report[1]);
	close(leave[0]);
	if (!err && read_all(report[0], &b, sizeof(b)) != sizeof(b))
		err = -EIO;
	for (int r = 0; !err && r < job->opt->ranks; r++) {
		inner[r] = b.pid[r];
		pid[r] = b.pid[r] > 0 ? family_find(init, b.pid[r]) : b.pid[r];
	}
	if (!err && write(leave[1], "", 1) != 1)
		err = -errno;
	close(leave[1]);
	if (!err && read_all(report[0], &b.err, sizeof(b.err)) == sizeof(b.err))
		err = b.err;
	close(report[0]);
	if (err && init > 0)
		kill(init, SIGKILL);		/* the supervisor reaps it as a stranger */
	return err ?: init;
}

void start_close_others(const int *keep, int n)
{
	int last = 2;

	for (int i = 0; i < n; i++)
		last = keep[i] > last ? keep[i] : last;
	for (int fd = 3; fd < last; fd++) {
		bool needed = false;

		for (int i = 0; i < n && !needed; i++)
			needed = keep[i] == fd;
		if (!needed)
			close(fd);
	}
	syscall(SYS_close_range, last + 1, ~0u, 0);
}

int start_stat_path(const struct job *job, int rank, int serial, char *path, size_t size)
{
	return rundir_path(path, size, job->dir.path, RUNDIR_STAT, rank, serial);
}

int start_trace_path(const struct job *job, int rank, int serial, char *path, size_t size)
{
	int n = snprintf(path, size, "%s.%d-%d", job->opt->trace, rank, serial);

	return n < (int)size ? 0 : -ENAMETOOLONG;
}

int job_control_path(const struct job *job, int rank, int serial, char *path, size_t size)
{
	return rundir_path(path, size, job->dir.path, RUNDIR_CONTROL, rank, serial);
}

/*
 * "N,N,…" for each device of the host: the first of two descriptors that the proxy gets if ranks share the device by slices,
 * else 0. Are there any?
 */
static bool slices_text(struct start *s, char *text, size_t size)
{
	bool any = false;
	size_t at = 0;

	for (int d = 0; d < SEATING_DEVICES; d++) {
		const int *mail = s->job->slices[d];

		at += snprintf(text + at, size - at, "%s%d", d ? "," : "", mail[0] ? s->fds : 0);
		for (int end = 0; mail[0] && end < 2; end++)
			s->fd[s->fds++] = mail[end];
		any |= mail[0];
	}
	return any;
}

/* The channel that a line of /proc/PID/maps names, without what follows its name; NULL: none. */
static const char *channel_of(char *line)
{
	char *at = strstr(line, CHANNEL);

	if (!at || strspn(at + strlen(CHANNEL), "0123456789abcdef") != 32)
		return NULL;
	at[strlen(CHANNEL) + 32] = 0;
	return at;
}

/* Has a process mapped this channel? If the name is empty, any one will do, and `channel` gets its name. -1: nobody can tell. */
static int has_channel(pid_t pid, char channel[CHANNEL_NAME])
{
	char path[32], *line = NULL;
	const char *name;
	size_t room = 0;
	int has = -1;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	in = fopen(path, "re");
	while (in && has <= 0 && getline(&line, &room, in) > 0) {
		name = channel_of(line);
		has = name && (!*channel || !strcmp(name, channel));
		if (has)
			snprintf(channel, CHANNEL_NAME, "%s", name);
	}
	free(line);
	if (in)
		fclose(in);
	return has;
}

void end_left_proxy(pid_t proxy, pid_t client)
{
	char channel[CHANNEL_NAME] = "";
	siginfo_t end = { 0 };

	if (has_channel(proxy, channel) <= 0 || has_channel(client, channel))
		return;
	kill(proxy, SIGUSR2);
	for (int ms = 0; ms < PROXY_END_MS && !waitid(P_PID, proxy, &end, WEXITED | WNOHANG | WNOWAIT) && !end.si_pid; ms++)
		usleep(1000);
}

pid_t start_proxy(const struct job *job, int rank, int serial, int board, int seat, int sock)
{
	const struct job_options *opt = job->opt;
	char stat[PATH_MAX], trace[PATH_MAX], control[PATH_MAX], device[16], budget[24], place[16], number[16], devices[16];
	char map[4 * SEATING_DEVICES], sharers[4 * SEATING_DEVICES], slices[4 * SEATING_DEVICES];
	const struct seating *t = job->seating;
	char *argv[39] = { job->places->proxy, "--device", device, "--driver", opt->driver,
			   "--stat", stat, "--control", control };
	struct start s = { .job = job, .argv = argv, .fds = 3 };
	int n = 9, err, null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct env e = { 0 };
	pid_t pid;

	snprintf(device, sizeof(device), "%d", t->rank[rank].first);
	seating_map_text(t, rank, map, sizeof(map));
	seating_sharers_text(t, rank, sharers, sizeof(sharers));
	snprintf(place, sizeof(place), "%d", seat);
	err = start_stat_path(job, rank, serial, stat, sizeof(stat)) ?:
	      job_control_path(job, rank, serial, control, sizeof(control));
	/* A fresh job's devices are what the driver says, a restored one's what its programs have seen. */
	if (job->restore || !seating_is_plain(t, rank)) {
		argv[n++] = "--map";
		argv[n++] = map;
	}
	if ((job->restore || opt->on.given) && t->devices) {
		snprintf(devices, sizeof(devices), "%d", t->devices);
		argv[n++] = "--devices";
		argv[n++] = devices;
	}
	argv[n++] = "--sharers";
	argv[n++] = sharers;
	if (board >= 0) {
		s.fd[s.fds++] = board;
		argv[n++] = "--board";
		argv[n++] = "3";
		argv[n++] = "--seat";
		argv[n++] = place;
	}
	if (slices_text(&s, slices, sizeof(slices))) {
		argv[n++] = "--slices";
		argv[n++] = slices;
	}
	/* Only a restore moves ranks to slices, and CRIU needs root for it. */
	if (seating_crowded(t) >= 0 && t->share == SHARE_AUTO && !geteuid())
		argv[n++] = "--whole";
	if (sock < 0) {
		argv[n++] = "--restore";
	} else {
		snprintf(number, sizeof(number), "%d", s.fds);
		s.fd[s.fds++] = sock;
		argv[n++] = "--socket";
		argv[n++] = number;
	}
	if (opt->memory) {
		snprintf(budget, sizeof(budget), "%llu", (unsigned long long)opt->memory);
		argv[n++] = "--budget";
		argv[n++] = budget;
	}
	if (opt->log) {
		argv[n++] = "--log";
		argv[n++] = opt->log;
	}
	if (opt->trace && !err) {
		err = start_trace_path(job, rank, serial, trace, sizeof(trace));
		unlink(trace);	/* of a job that was killed */
		argv[n++] = "--trace";
		argv[n++] = trace;
	}
	if (opt->window) {
		argv[n++] = "--window";
		argv[n++] = (char *)opt->window;
	}
	if (opt->backend) {
		argv[n++] = "--backend";
		argv[n++] = (char *)opt->backend;
	}
	if (opt->reduction) {
		argv[n++] = "--reduction";
		argv[n++] = (char *)opt->reduction;
	}
	s.fd[0] = s.fd[1] = null;
	s.fd[2] = STDERR_FILENO;
	proxy_env(&e, job);
	s.env = e.var;
	if (null < 0)
		pid = -EMFILE;
	else
		pid = err ?: e.failed ? -ENOMEM : start(&s);
	env_free(&e);
	if (null >= 0)
		close(null);
	return pid;
}

int start_free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(a);
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -errno;

	if (s < 0)
		return port;
	if (bind(s, (void *)&a, sizeof(a)) || getsockname(s, (void *)&a, &len))
		port = -errno;
	else
		port = ntohs(a.sin_port);
	close(s);
	return port;
}
