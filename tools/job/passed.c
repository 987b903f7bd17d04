// SPDX-License-Identifier: Apache-2.0
/*
 * passed.c - the descriptors from 3 up that the command gets: passed.h
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "passed.h"
#include "tool_i.h"

#define MEM_MAJOR	1	/* /dev/null, /dev/zero … */

static int *passed, passed_n;	/* ascending */

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

void passed_find(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *e;

	while (dir && (e = readdir(dir))) {
		int fd = atoi(e->d_name), flags = fd > 2 && fd != dirfd(dir) ? fcntl(fd, F_GETFD) : -1;
		int *more;

		if (flags < 0 || flags & FD_CLOEXEC)
			continue;
		more = realloc(passed, (passed_n + 1) * sizeof(*passed));
		if (!more)
			break;		/* those that follow are closed in the job */
		passed = more;
		passed[passed_n++] = fd;
	}
	if (dir)
		closedir(dir);
	if (passed_n)
		qsort(passed, passed_n, sizeof(*passed), by_number);
}

void passed_keep(void)
{
	unsigned int from = 3;

	for (int i = 0; i < passed_n; i++) {
		if ((unsigned int)passed[i] > from)
			syscall(SYS_close_range, from, passed[i] - 1, CLOSE_RANGE_CLOEXEC);
		from = passed[i] + 1;
	}
	syscall(SYS_close_range, from, ~0u, CLOSE_RANGE_CLOEXEC);
}

void passed_close(void)
{
	for (int i = 0; i < passed_n; i++)
		close(passed[i]);
	passed_n = 0;
}

/* "/path", "pipe:[7]", "anon_inode:[eventfd]". */
static void what_is(int fd, char *what, size_t size)
{
	char path[32];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, what, size - 1);
	what[n > 0 ? n : 0] = 0;
}

int passed_pipes(char *keys, size_t size)
{
	char what[128];
	size_t at = 0;
	int n = 0;

	*keys = 0;
	for (int i = 0; i < passed_n; i++) {
		what_is(passed[i], what, sizeof(what));
		if (!strncmp(what, "pipe:", 5) && at + strlen(what) + 2 < size)
			at += snprintf(keys + at, size - at, "%s%s", n++ ? "," : "", what);
	}
	return n;
}

/* What a checkpoint will refuse, or NULL. A FIFO with a name, and a file, are opened again by name. */
static const char *refused(int fd, const char *what)
{
	struct stat st;

	if (fstat(fd, &st))
		return NULL;
	if (S_ISFIFO(st.st_mode))
		return *what == '/' ? NULL : "a pipe that another process may have, too";
	if (S_ISSOCK(st.st_mode))
		return "a socket that another process may have, too";
	if (S_ISCHR(st.st_mode) && major(st.st_rdev) == MEM_MAJOR)
		return NULL;
	if (S_ISCHR(st.st_mode))
		return isatty(fd) ? "a terminal" : "a device";
	if (S_ISBLK(st.st_mode))
		return "a device";
	return *what == '/' ? NULL : "which another process may have, too";
}

void passed_tell(void)
{
	char what[128];

	for (int i = 0; i < passed_n; i++) {
		const char *is;

		what_is(passed[i], what, sizeof(what));
		is = refused(passed[i], what);
		if (is)
			say("the command gets descriptor %d (%s), %s: a checkpoint is refused while both have it "
			    "open. --close-fds keeps it out of the job", passed[i], what, is);
	}
}
