// SPDX-License-Identifier: Apache-2.0
/*
 * say.c - prints messages to the user, which never wait for their reader, parses and formats numbers
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "message.h"
#include "tool_i.h"

#define FINISH_MS	1000	/* for a slow reader, when we end */

static struct message heard = MESSAGE_INIT(STDERR_FILENO, "singvgpu");

/* In one write, so that lines of several processes do not mix. */
static void put_line(const char *tail, const char *fmt, va_list ap)
{
	char line[4096];
	int n = snprintf(line, sizeof(line), "singvgpu: ");

	n += vsnprintf(line + n, sizeof(line) - n, fmt, ap);
	if (n < (int)sizeof(line))
		n += snprintf(line + n, sizeof(line) - n, "%s%s", tail ? ": " : "", tail ?: "");
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	message_put(&heard, line, n);
}

bool say_picture(const char *text, size_t len)
{
	return message_show(&heard, text, len);
}

void say_finish(void)
{
	message_finish(&heard, FINISH_MS);
}

void say_text(const char *text, size_t len)
{
	while (len) {
		const char *end = memchr(text, '\n', len);
		size_t n = end ? (size_t)(end - text) + 1 : len;

		if (n > MESSAGE_LINE)
			n = MESSAGE_LINE;
		message_put(&heard, text, n);
		text += n;
		len -= n;
	}
}

void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_line(NULL, fmt, ap);
	va_end(ap);
}

void say_errno(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_line(strerror(err < 0 ? -err : err), fmt, ap);
	va_end(ap);
}

void tell_lines(tell_line *tell, const char *text)
{
	for (size_t n; text && *text; text += n + !!text[n]) {
		n = strcspn(text, "\n");
		tell("%.*s", (int)n, text);
	}
}

int say_usage(const char *command, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_line(NULL, fmt, ap);
	va_end(ap);
	say("try 'singvgpu%s%s --help'", command ? " " : "", command ?: "");
	return EXIT_USAGE;
}

int parse_size(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGTP";
	const char *unit;
	char *end;
	double n;
	int shift = 0;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	n = strtod(text, &end);
	if (strchr(text, 'x') || strchr(text, 'X') || !isfinite(n))
		return -EINVAL;
	if (*end && (unit = strchr(units, *end & ~32))) {
		shift = 10 * (unit - units + 1);
		end++;
		if (*end == 'i')
			end++;
	}
	if (*end == 'B')
		end++;
	if (*end)
		return -EINVAL;
	n = ldexp(n, shift);
	if (n >= 0x1p63)
		return -ERANGE;
	*bytes = n;
	return 0;
}

int parse_int(const char *text, long least, long most, long *value)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (end == text || *end || strchr(" \t\n", *text))
		return -EINVAL;
	if (errno || n < least || n > most)
		return -ERANGE;
	*value = n;
	return 0;
}

int parse_seconds(const char *text, long *ms)
{
	char *end;
	double n;

	if ((*text < '0' || *text > '9') && *text != '.')
		return -EINVAL;
	n = strtod(text, &end);
	if (end == text || (*end && strcmp(end, "s")) || !isfinite(n))
		return -EINVAL;
	if (n > 1e6)
		return -ERANGE;
	*ms = lround(n * 1000);
	return 0;
}

static char *show(char *buf, double n, double base, const char *units)
{
	int u = 0;

	while (n >= base && units[u + 1]) {
		n /= base;
		u++;
	}
	if (!u)
		snprintf(buf, 16, "%.0f", n);
	else
		snprintf(buf, 16, n < 9.95 ? "%.1f%c" : "%.0f%c", n, units[u]);
	return buf;
}

char *show_size(char *buf, uint64_t bytes)
{
	return show(buf, bytes, 1024, " KMGTPE");
}

char *show_count(char *buf, uint64_t n)
{
	return show(buf, n, 1000, " kMGTPE");
}

char *show_age(char *buf, uint64_t s)
{
	if (s < 60)
		snprintf(buf, 16, "%us", (unsigned int)s);
	else if (s < 3600)
		snprintf(buf, 16, "%um%02us", (unsigned int)s / 60, (unsigned int)s % 60);
	else if (s < 86400)
		snprintf(buf, 16, "%uh%02um", (unsigned int)s / 3600, (unsigned int)s / 60 % 60);
	else
		snprintf(buf, 16, "%ud%02uh", (unsigned int)(s / 86400) % 100000,
			 (unsigned int)(s / 3600 % 24));
	return buf;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

uint64_t now_ms(void)
{
	return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

uint64_t wall_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}
