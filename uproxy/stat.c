// SPDX-License-Identifier: Apache-2.0
/*
 * stat.c - the numbers that `singvgpu ps` and `top` show, in a file that they map
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "uproxy_i.h"

struct uproxy_stat *stat_open(const char *path)
{
	static struct uproxy_stat none;
	struct uproxy_stat *st = &none;
	struct timespec ts;
	int fd;

	if (path) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, 0) || ftruncate(fd, sizeof(*st)))
			st = MAP_FAILED;
		else
			st = mmap(NULL, sizeof(*st), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd >= 0)
			close(fd);
		if (st == MAP_FAILED) {
			say("cannot use %s: %s", path, strerror(errno));
			st = &none;
		}
	}
	clock_gettime(CLOCK_REALTIME, &ts);
	st->version = UPROXY_STAT_VERSION;
	st->size = sizeof(*st);
	st->state = UPROXY_STARTING;
	st->pid = getpid();
	st->started_ns = ts.tv_sec * 1000000000ull + ts.tv_nsec;
	__atomic_store_n(&st->magic, UPROXY_STAT_MAGIC, __ATOMIC_RELEASE);
	return st;
}

void stat_add(uint64_t *field, uint64_t n)
{
	__atomic_fetch_add(field, n, __ATOMIC_RELAXED);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}
