/* SPDX-License-Identifier: Apache-2.0 */
/*
 * patience.h - when a test may declare a process hung, on a machine of any speed and load
 *
 * A deadline by the clock alone fails on a slow or busy machine: an emulated one on a loaded host
 * may stall for seconds. A hung process sleeps and stays asleep. So a test that has waited
 * PATIENCE_S in vain calls others_go_on() before it fails. A process that never stops running is
 * ended by the harness, whose own limits are as generous.
 *
 * Include it behind <kselftest_harness.h>.
 */
#ifndef SELFTESTS_HARNESS_PATIENCE_H
#define SELFTESTS_HARNESS_PATIENCE_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_S 20

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT 600

/* How many times a thread has left the CPU; *busy: it is runnable, or waits for a disk. */
static inline uint64_t patience_thread(int pid, const char *tid, bool *busy)
{
	unsigned long long n, sum = 0;
	char path[300], line[256], state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", pid, tid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "State: %c", &state) == 1 && (state == 'R' || state == 'D'))
			*busy = true;
		if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1 ||
		    sscanf(line, "nonvoluntary_ctxt_switches: %llu", &n) == 1)
			sum += n;
	}
	if (f)
		fclose(f);
	return sum;
}

/* The same for all threads of a process in our process group, which the test has for itself. */
static inline uint64_t patience_process(int pid, bool *busy)
{
	char path[64];
	struct dirent *e;
	uint64_t sum = 0;
	DIR *dir;

	if (pid == getpid() || getpgid(pid) != getpgrp())
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir)))
		if (e->d_name[0] != '.')
			sum += patience_thread(pid, e->d_name, busy);
	if (dir)
		closedir(dir);
	return sum + 1;
}

/*
 * Whether another process of this test is runnable, or has run since the last call with the same
 * *mark. The first call, with *mark 0, returns true.
 */
static inline bool others_go_on(uint64_t *mark)
{
	DIR *dir = opendir("/proc");
	uint64_t sum = 1, was = *mark;
	bool busy = false;
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (atoi(e->d_name) > 0)
			sum += patience_process(atoi(e->d_name), &busy);
	if (dir)
		closedir(dir);
	*mark = sum;
	return busy || sum != was;
}

#endif /* SELFTESTS_HARNESS_PATIENCE_H */
