// SPDX-License-Identifier: Apache-2.0
/*
 * log.c - what the proxy says: to the file of --log, else to the stderr that it was started with
 *
 * The driver's stdout and stderr are the job's (print.c), so ours is a descriptor of its own. Lines
 * are whole: several proxies may append to one file. SINGVGPU_LOG asks for more of them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "uproxy_i.h"

static int fd = -1;
static bool verbose;

void log_open(const char *path)
{
	const char *env = getenv("SINGVGPU_LOG");

	verbose = path || (env && *env);
	if (path)
		fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		fd = fcntl(2, F_DUPFD_CLOEXEC, 10);
}

bool log_verbose(void)
{
	return verbose;
}

void say(const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	int n, m;

	if (fd < 0)
		return;
	n = snprintf(line, sizeof(line), "singvgpu-proxy[%d]: ", getpid());
	va_start(ap, fmt);
	m = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	va_end(ap);
	n = m < (int)sizeof(line) - n - 1 ? n + m : (int)sizeof(line) - 2;
	line[n++] = '\n';
	if (write(fd, line, n) < 0)
		return;
}
