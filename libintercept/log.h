/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - log lines of the preloaded libraries: the stand-in for libcuda and libsingvgpu-rtc.so
 */
#ifndef LOG_H
#define LOG_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	fd = *where == '/' ? open(where, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : 2;
	if (fd < 0)
		return;
	if (write(fd, line, n) < 0)
		n = 0;		/* a failed write is ignored */
	if (fd != 2)
		close(fd);
}

#endif
