/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - log lines of the preloaded libraries, and what they say unasked: a call that is refused
 *
 * A line is one write. It never waits for its reader, changes no flags of the program's descriptor and
 * raises no signal: a line that does not fit is dropped.
 */
#ifndef LOG_H
#define LOG_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif

/* A pipe or a terminal. The file is opened anew where the kernel cannot write to it without waiting. */
static inline ssize_t log_try(int fd, const char *line, size_t len)
{
	struct iovec v = { (void *)line, len };
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	ssize_t n = pwritev2(fd, &v, 1, -1, RWF_NOWAIT);
	char path[32];
	int own;

	if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS))
		return n;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (own < 0)	/* another user's */
		return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) ? write(fd, line, len) : -1;
	n = write(own, line, len);
	close(own);
	return n;
}

/* Writes a line of at most PIPE_BUF bytes, with its end. errno stays. */
static inline void log_put(int fd, const char *line, size_t len)
{
	static const struct timespec now;
	sigset_t mine, before, pending, closed;
	int saved = errno;
	struct stat st;

	sigemptyset(&closed);
	sigaddset(&closed, SIGPIPE);
	mine = closed;
	sigaddset(&mine, SIGTTOU);
	if (fstat(fd, &st) || sigpending(&pending) || pthread_sigmask(SIG_BLOCK, &mine, &before))
		goto out;
	if (S_ISSOCK(st.st_mode))
		len = send(fd, line, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	else
		len = S_ISREG(st.st_mode) ? write(fd, line, len) : log_try(fd, line, len);
	if (!sigismember(&pending, SIGPIPE))
		while (sigtimedwait(&closed, NULL, &now) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
out:
	errno = saved;
}

/* The line's end, and its length. */
static inline size_t log_end(char *line, size_t room, int n)
{
	if (n > (int)room - 2)
		n = room - 2;
	line[n++] = '\n';
	return n;
}

/* SINGVGPU_LOG: a file if it begins with '/', else stderr; nothing if it is not set. */
static inline void log_line(const char *fmt, va_list ap)
{
	const char *where = getenv("SINGVGPU_LOG");
	char line[512];
	int fd, n;

	if (!where || !*where)
		return;
	n = snprintf(line, sizeof(line), "singvgpu[%d]: ", getpid());
	n += vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	fd = *where == '/' ? open(where, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : 2;
	if (fd < 0)
		return;
	log_put(fd, line, log_end(line, sizeof(line), n));
	if (fd != 2)
		close(fd);
}

#define LOG_REFUSALS 64

/*
 * Says on stderr that a call is refused, once for each name in `said`: its caller may ignore the error.
 * The strings live as long as the library. A log that is on stderr has the line already.
 */
static inline void log_refusal(const char *said[LOG_REFUSALS], const char *name, const char *reason)
{
	const char *where = getenv("SINGVGPU_LOG");
	char line[1024];
	int i;

	for (i = 0; i < LOG_REFUSALS; i++) {
		const char *other = NULL;

		/* pairs with itself in another thread */
		if (__atomic_compare_exchange_n(&said[i], &other, name, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			break;
		if (!strcmp(other, name))
			return;
	}
	if (i == LOG_REFUSALS || (where && *where && *where != '/'))
		return;
	i = snprintf(line, sizeof(line), "singvgpu[%d]: %s is not supported: %s. If the program ignores this "
		     "error, its results may be wrong: do without the call, or run without singvgpu.",
		     getpid(), name, reason);
	log_put(2, line, log_end(line, sizeof(line), i));
}

#endif
