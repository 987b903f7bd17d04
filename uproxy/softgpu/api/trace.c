/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - SINGVGPU_SOFT_TRACE=FILE: each call of the driver API, a line, in the order of returns
 *
 *   THREAD NAME = RESULT [DETAIL]
 *
 * A thread's number is that of its first call. Launches have a detail: what is launched, and
 * "recorded" if it will not run. "%p" in FILE is the process; lines are appended, each by one
 * write(), so processes may share a file. Calls that the driver makes itself are not in it, nor
 * are cuGetProcAddress's.
 *
 * gen_api.sh writes a function of each call's name, which calls the driver's own: soft_ and the
 * name (api_names.h), and a line is written here.
 */
#include "soft_i.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int trace_fd = -1;

static __thread char detail[512];
static __thread unsigned int number;

__attribute__((constructor)) static void trace_open(void)
{
	const char *s = getenv("SINGVGPU_SOFT_TRACE"), *pid;
	char path[4096];

	if (!s || !*s)
		return;
	pid = strstr(s, "%p");
	if (pid)
		snprintf(path, sizeof(path), "%.*s%d%s", (int)(pid - s), s, getpid(), pid + 2);
	else
		snprintf(path, sizeof(path), "%s", s);
	trace_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (trace_fd < 0)
		soft_log("SINGVGPU_SOFT_TRACE=%s: %m", path);
}

void trace_detail(const char *fmt, ...)
{
	va_list ap;

	if (trace_fd < 0)
		return;
	va_start(ap, fmt);
	vsnprintf(detail, sizeof(detail), fmt, ap);
	va_end(ap);
}

CUresult trace_call(const char *name, CUresult r)
{
	static unsigned int threads;
	char line[1024];
	int n;

	if (!number)
		number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
	n = snprintf(line, sizeof(line), "%u %s = %d%s%s\n", number, name, r, *detail ? " " : "",
		     detail);
	*detail = 0;
	if (n > 0 && write(trace_fd, line, n) != n) {
		close(trace_fd);
		trace_fd = -1;		/* a full disk must not fail the program */
	}
	return r;
}
