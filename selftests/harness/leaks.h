/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaks.h - kselftest's harness; a test that leaks an fd or a shared mapping fails
 *
 * Include this instead of <kselftest_harness.h>. The harness runs each test with its fixture's
 * setup and teardown in a child of its own. Fds and mappings that this child has at its end, but
 * the program had not at its start, are leaked. (A FIXTURE_TEARDOWN_PARENT runs too late for this
 * check.)
 */
#ifndef SELFTESTS_HARNESS_LEAKS_H
#define SELFTESTS_HARNESS_LEAKS_H

#include <unistd.h>

static void leaks_exit(int code) __attribute__((noreturn));

/* Replaces only the harness's own call in __run_test: its macros expand after the #undef. */
#define _exit leaks_exit
#include <kselftest_harness.h>
#undef _exit

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAKS_MAX_FD 4096

static unsigned char leaks_known_fd[LEAKS_MAX_FD];
static int leaks_known_maps;

/* Visits each open fd but the one that lists them. Returns the number of unknown ones. */
static int leaks_scan_fds(int learn)
{
	DIR *dir = opendir("/proc/self/fd");
	char path[300], target[256];
	struct dirent *entry;
	int leaked = 0;

	while (dir && (entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		ssize_t n;

		if (entry->d_name[0] == '.' || fd == dirfd(dir) || fd >= LEAKS_MAX_FD)
			continue;
		if (learn)
			leaks_known_fd[fd] = 1;
		if (leaks_known_fd[fd])
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		target[n < 0 ? 0 : n] = '\0';
		fprintf(stderr, "# leaked fd %d -> %s\n", fd, target);
		leaked++;
	}
	if (dir)
		closedir(dir);
	return leaked;
}

/* Counts shared mappings of memfds and of the device. */
static int leaks_count_maps(int show)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512], perms[8];
	int n = 0;

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%*s %7s", perms) != 1 || perms[3] != 's')
			continue;
		if (!strstr(line, "/memfd:") && !strstr(line, "/dev/singvgpu"))
			continue;
		if (show)
			fprintf(stderr, "# leaked mapping %s", line);
		n++;
	}
	if (maps)
		fclose(maps);
	return n;
}

static void __attribute__((constructor)) leaks_learn(void)
{
	leaks_scan_fds(1);
	leaks_known_maps = leaks_count_maps(0);
}

static void leaks_exit(int code)
{
	/* A failed or skipped test has been reported, and may have had no chance to clean up. */
	if (code == KSFT_PASS) {
		if (leaks_scan_fds(0))
			code = KSFT_FAIL;
		if (leaks_count_maps(0) > leaks_known_maps) {
			leaks_count_maps(1);
			code = KSFT_FAIL;
		}
	}
	fflush(NULL);
	_exit(code);
}

#endif
