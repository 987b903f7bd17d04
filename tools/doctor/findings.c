// SPDX-License-Identifier: Apache-2.0
/*
 * findings.c - notes findings, and asks libraries that may crash or hang in a process of their own
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor_i.h"

static void add_finding(struct doctor *d, const char *name, enum verdict verdict,
			const char *remedy, const char *fmt, va_list ap)
{
	struct finding *f = &d->found[d->n];

	if (d->n == sizeof(d->found) / sizeof(d->found[0]))
		return;
	d->n++;
	f->name = name;
	f->verdict = verdict;
	vsnprintf(f->detail, sizeof(f->detail), fmt, ap);
	snprintf(f->remedy, sizeof(f->remedy), "%s", remedy ?: "");
}

void found(struct doctor *d, const char *name, enum verdict verdict, const char *remedy,
	   const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add_finding(d, name, verdict, remedy, fmt, ap);
	va_end(ap);
}

void found_fatal(struct doctor *d, const char *name, const char *remedy, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add_finding(d, name, MISSING, remedy, fmt, ap);
	va_end(ap);
	if (!d->cannot)
		d->cannot = name;
}

int first_line(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), err = -errno;
	ssize_t n;

	*text = 0;
	if (fd < 0)
		return err;
	n = read(fd, text, size - 1);
	err = n < 0 ? -errno : 0;
	close(fd);
	text[n > 0 ? n : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return err;
}

static void probe_child(int (*fn)(const char *arg, FILE *out), const char *arg, int fd)
	__attribute__((noreturn));
static void probe_child(int (*fn)(const char *arg, FILE *out), const char *arg, int fd)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), status;
	FILE *out = fdopen(fd, "w");

	for (int i = 0; i < 3; i++)
		dup2(null, i);
	/* a driver's helper processes and threads go with it */
	setpgid(0, 0);
	status = out ? fn(arg, out) : -ENOMEM;
	if (out)
		fflush(out);
	_exit(-status & 255);
}

int probe(int (*fn)(const char *arg, FILE *out), const char *arg, char *text, size_t size)
{
	uint64_t until = now_ms() + 20000, now;
	int pipes[2], status;
	size_t at = 0;
	ssize_t n = 1;
	pid_t pid;

	*text = 0;
	fflush(stdout);
	if (pipe2(pipes, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (!pid)
		probe_child(fn, arg, pipes[1]);
	close(pipes[1]);
	while (pid > 0 && n && (now = now_ms()) < until) {
		struct pollfd p = { .fd = pipes[0], .events = POLLIN };

		if (poll(&p, 1, until - now) <= 0)
			continue;
		n = read(pipes[0], text + at, size - 1 - at);
		if (n < 0 || at + n == size - 1)
			n = n < 0 ? 0 : n;
		at += n;
		if (at == size - 1)
			break;
	}
	text[at] = 0;
	close(pipes[0]);
	if (pid < 0)
		return -EAGAIN;
	/* The child has closed the pipe, or its time is over. */
	if (n)
		kill(-pid, SIGKILL);
	for (int i = 0; i < 200 && !waitpid(pid, &status, WNOHANG); i++)
		usleep(i < 100 ? 1000 : 10000);
	if (!kill(pid, 0)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	if (n)
		return -ETIMEDOUT;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EFAULT;
}
