// SPDX-License-Identifier: Apache-2.0
/*
 * supervise.c - runs one test program, and reports and kills every process that it leaves behind
 *
 * supervise SECONDS STATUS-FILE COMMAND [ARG...]
 *
 * The command runs in a session of its own. We are the subreaper of its descendants: those that do
 * not end within a second of the command are leaked. None is alive when supervise ends. The status
 * file then has lines of:
 *
 *	exit N | signal N | timeout	how the command ended
 *	leak PID COMMAND		a process that it left behind
 *	cpu SECONDS			CPU time of the command and all its descendants
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 1000

static long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Reads /proc/ENTRY/stat; true if that is a living child of ours. */
static bool living_child(const char *entry, pid_t *pid)
{
	char path[64], line[512], state, *end;
	int parent;
	FILE *stat;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%.20s/stat", entry);
	stat = fopen(path, "re");
	if (!stat)
		return false;
	n = fread(line, 1, sizeof(line) - 1, stat);
	fclose(stat);
	line[n] = '\0';
	/* The name in brackets may hold anything; the state follows the last bracket. */
	end = strrchr(line, ')');
	*pid = atoi(line);
	return end && sscanf(end, ") %c %d", &state, &parent) == 2 && parent == getpid() &&
	       state != 'Z' && state != 'X';
}

/* Calls fn for each living child, and says how many there are. Orphans of the command are ours. */
static int each_child(void (*fn)(pid_t pid, void *arg), void *arg)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	pid_t pid;
	int n = 0;

	while (proc && (entry = readdir(proc))) {
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (living_child(entry->d_name, &pid)) {
			fn(pid, arg);
			n++;
		}
	}
	if (proc)
		closedir(proc);
	return n;
}

static void kill_child(pid_t pid, void *arg)
{
	(void)arg;
	kill(pid, SIGKILL);
}

static void report_child(pid_t pid, void *arg)
{
	char path[64], cmd[256] = "";
	int fd;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, cmd, sizeof(cmd) - 1);
	if (fd >= 0)
		close(fd);
	for (ssize_t i = 0; i + 1 < n; i++)
		if (cmd[i] < ' ')
			cmd[i] = ' ';
	fprintf(arg, "leak %d %s\n", pid, cmd);
}

/* Reaps until the command `main_pid` (with 0: every child) is gone, or the deadline has passed. */
static bool reap_until(pid_t main_pid, int *status, long deadline)
{
	const struct timespec tick = { .tv_nsec = 20 * 1000000 };
	sigset_t chld;
	int st;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	for (;;) {
		pid_t pid = waitpid(-1, &st, WNOHANG);

		if (pid < 0 && errno == ECHILD)
			return true;
		if (pid > 0 && pid == main_pid) {
			*status = st;
			return true;
		}
		if (pid > 0)
			continue;
		if (now_ms() >= deadline)
			return false;
		sigtimedwait(&chld, NULL, &tick);
	}
}

static void kill_all(void)
{
	/* Killing a child makes its own children ours: again until none is left. */
	while (each_child(kill_child, NULL) > 0)
		reap_until(0, NULL, now_ms() + 100);
}

static void stop(int sig)
{
	kill_all();
	_exit(128 + sig);
}

/* Those that are reaped, by us or by their parents, which we have reaped. */
static void report_cpu(FILE *out)
{
	struct rusage use;

	getrusage(RUSAGE_CHILDREN, &use);
	fprintf(out, "cpu %.1f\n", use.ru_utime.tv_sec + use.ru_stime.tv_sec +
		(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
}

static pid_t start(char **command)
{
	pid_t pid = fork();

	if (pid == 0) {
		sigset_t none;
		int null = open("/dev/null", O_RDONLY);

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		/* Whatever we were started under: nohup, a shell's background, with what is open there. */
		for (int sig = 1; sig < NSIG; sig++)
			signal(sig, SIG_DFL);
		if (null > 0) {
			dup2(null, 0);
			close(null);
		}
		setsid();
		syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
		execvp(command[0], command);
		fprintf(stderr, "supervise: %s: %s\n", command[0], strerror(errno));
		_exit(127);
	}
	return pid;
}

int main(int argc, char **argv)
{
	bool in_time;
	sigset_t chld;
	int status = 0;
	FILE *out;
	pid_t pid;

	if (argc < 4 || atoi(argv[1]) < 1) {
		fprintf(stderr, "usage: supervise SECONDS STATUS-FILE COMMAND [ARG...]\n");
		return 2;
	}
	out = fopen(argv[2], "we");
	if (!out || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
		fprintf(stderr, "supervise: %s: %s\n", argv[2], strerror(errno));
		return 2;
	}
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	signal(SIGTERM, stop);
	signal(SIGINT, stop);

	pid = start(argv + 3);
	if (pid < 0) {
		fprintf(stderr, "supervise: fork: %s\n", strerror(errno));
		return 2;
	}
	in_time = reap_until(pid, &status, now_ms() + atoi(argv[1]) * 1000L);
	if (!in_time)
		fprintf(out, "timeout\n");
	else if (WIFSIGNALED(status))
		fprintf(out, "signal %d\n", WTERMSIG(status));
	else
		fprintf(out, "exit %d\n", WEXITSTATUS(status));
	if (in_time && !reap_until(0, NULL, now_ms() + GRACE_MS))
		each_child(report_child, out);
	kill_all();
	report_cpu(out);
	return fclose(out) ? 2 : 0;
}
