// SPDX-License-Identifier: Apache-2.0
/*
 * prefix.c - prints the output of several ranks line by line, with "[rank] " before each
 *
 * It is a process of its own: the reader of our output may be slow, and only ranks that print may
 * have to wait for it.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

#define LINE_MAX_BYTES	65536	/* longer lines are cut in pieces */

struct stream {
	int fd;			/* -1: ended */
	int to;
	int rank;
	char *line;		/* an unfinished line */
	int len;
	bool within;		/* a piece of this line is written already */
};

/* By fd (1, 2): the stream with an unfinished line there, which others' output ends first. */
static struct stream *unfinished[3];

static bool put_all(int to, const char *text, size_t len)
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
	return put_all(s->to, out, n + len);
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

static void end_stream(struct stream *s, bool finish)
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
				/* Our output has no reader: the rank gets SIGPIPE. */
				if (consume(&s[i]))
					continue;
			}
			end_stream(&s[i], got <= 0);
			p[i].fd = -1;
			open--;
		}
	}
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
		int keep[2 * ranks];

		for (int i = 0; i < 2 * ranks; i++)
			keep[i] = s[i].fd;
		/* Open write ends would keep the pipes from ending. */
		start_close_others(keep, 2 * ranks);
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
