// SPDX-License-Identifier: Apache-2.0
/*
 * prefix.c - the output of several ranks, a line at a time, with "[rank] " before each
 *
 * It is a process of its own: who reads our output may be slow, and nobody but the ranks that print
 * is to wait for that.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "job.h"

#define LINE_MAX_BYTES	65536	/* longer ones are cut in pieces */

struct stream {
	int fd;			/* -1: ended */
	int to;
	int rank;
	char *line;		/* what has come of a line */
	int len;
	bool within;		/* the line's first piece is out already */
};

/* Who left a line unfinished on stdout and stderr, for a newline before another goes on. */
static struct stream *unfinished[3];

static bool put(int to, const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(to, text, len);

		if (n < 0 && errno == EAGAIN) {
			poll(&(struct pollfd){ .fd = to, .events = POLLOUT }, 1, -1);
			continue;
		}
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		text += n;
		len -= n;
	}
	return true;
}

/* Writes line[0..len) of s as a whole line, or a piece of one. */
static bool put_line(struct stream *s, const char *line, int len, bool whole)
{
	static char out[LINE_MAX_BYTES + 32];
	int n = 0;

	if (unfinished[s->to] && unfinished[s->to] != s)
		out[n++] = '\n';
	if (!s->within || unfinished[s->to] != s)
		n += sprintf(out + n, "[%d] ", s->rank);
	memcpy(out + n, line, len);
	s->within = !whole;
	unfinished[s->to] = whole ? NULL : s;
	return put(s->to, out, n + len);
}

/* "\r" ends a line too, so that a progress bar moves; not in "\r\n". */
static int line_end(const char *text, int len)
{
	for (int i = 0; i < len; i++) {
		if (text[i] == '\n')
			return i + 1;
		if (text[i] == '\r' && i + 1 < len && text[i + 1] != '\n')
			return i + 1;
	}
	return 0;
}

static bool consume(struct stream *s)
{
	int at = 0, n;
	bool ok = true;

	while (ok && (n = line_end(s->line + at, s->len - at))) {
		ok = put_line(s, s->line + at, n, true);
		at += n;
	}
	memmove(s->line, s->line + at, s->len - at);
	s->len -= at;
	if (ok && s->len == LINE_MAX_BYTES) {
		ok = put_line(s, s->line, s->len, false);
		s->len = 0;
	}
	return ok;
}

static void end(struct stream *s, bool finish)
{
	if (finish && (s->len || (s->within && unfinished[s->to] == s))) {
		if (s->len == LINE_MAX_BYTES)
			put_line(s, s->line, s->len--, false);
		s->line[s->len++] = '\n';
		put_line(s, s->line, s->len, true);
	}
	close(s->fd);
	s->fd = -1;
}

static void pump(struct stream *s, struct pollfd *p, int n)
{
	int open = n;

	while (open) {
		if (poll(p, n, -1) < 0)
			continue;
		for (int i = 0; i < n; i++) {
			ssize_t got;

			if (s[i].fd < 0 || !p[i].revents)
				continue;
			got = read(s[i].fd, s[i].line + s[i].len, LINE_MAX_BYTES - s[i].len);
			if (got < 0 && (errno == EINTR || errno == EAGAIN))
				continue;
			if (got > 0) {
				s[i].len += got;
				/* Nobody reads us: the rank is to learn of it, by SIGPIPE. */
				if (consume(&s[i]))
					continue;
			}
			end(&s[i], got <= 0);
			p[i].fd = -1;
			open--;
		}
	}
}

/* Above all the write ends, without whose closing nothing ever ends. */
static void close_others(const struct stream *s, int n)
{
	int last = 2;

	for (int i = 0; i < n; i++)
		last = s[i].fd > last ? s[i].fd : last;
	for (int fd = 3; fd < last; fd++) {
		bool needed = false;

		for (int i = 0; i < n && !needed; i++)
			needed = s[i].fd == fd;
		if (!needed)
			close(fd);
	}
	syscall(SYS_close_range, last + 1, ~0u, 0);
}

pid_t prefix_start(const int *out, const int *err, int ranks)
{
	struct stream *s = calloc(2 * ranks, sizeof(*s));
	struct pollfd *p = calloc(2 * ranks, sizeof(*p));
	pid_t pid = -ENOMEM;

	for (int i = 0; s && i < 2 * ranks; i++) {
		s[i].to = i & 1 ? STDERR_FILENO : STDOUT_FILENO;
		s[i].fd = i & 1 ? err[i / 2] : out[i / 2];
		s[i].rank = i / 2;
		s[i].line = malloc(LINE_MAX_BYTES);
		if (!s[i].line)
			goto free;
		if (p)
			p[i] = (struct pollfd){ .fd = s[i].fd, .events = POLLIN };
	}
	if (s && p)
		pid = fork();
	if (pid < 0 && s && p)
		pid = -errno;
	if (!pid) {
		close_others(s, 2 * ranks);
		pump(s, p, 2 * ranks);
		_exit(0);
	}
free:
	for (int i = 0; s && i < 2 * ranks; i++)
		free(s[i].line);
	free(s);
	free(p);
	return pid;
}
