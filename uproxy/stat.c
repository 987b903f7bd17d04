// SPDX-License-Identifier: Apache-2.0
/*
 * stat.c - keeps the figures that `singvgpu ps` and `top` show, in a file that is mapped here
 *
 * The file is its user's, who may cut it off, and its file system may be full: both raise SIGBUS
 * where a figure is stored. The handler then puts memory of our own in the page's place, and the
 * session goes on with figures that nobody sees.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "stat_i.h"

#define PAGE	4096

static uint8_t *shown;			/* the file's page; NULL: there is none */
static struct sigaction before;

static void lost(int sig, siginfo_t *si, void *context)
{
	uintptr_t at = (uintptr_t)si->si_addr - (uintptr_t)shown;
	int err = errno;

	(void)context;
	if (si->si_code <= 0 || at >= PAGE ||
	    mmap(shown, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) != shown) {
		sigaction(sig, &before, NULL);
		if (si->si_code <= 0)
			raise(sig);
	}
	errno = err;
}

/* The page of an open file, which may get shorter. */
static struct uproxy_stat *map_file(int fd)
{
	struct sigaction sa = { .sa_sigaction = lost, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return p;
	shown = p;
	sigemptyset(&sa.sa_mask);
	sigaction(SIGBUS, &sa, &before);
	return p;
}

void stat_thread(void)
{
	static __thread bool open;
	sigset_t bus;

	if (open)
		return;
	open = true;
	sigemptyset(&bus);
	sigaddset(&bus, SIGBUS);
	pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
}

struct uproxy_stat *stat_open(const char *path)
{
	static struct uproxy_stat none;
	struct uproxy_stat *st = &none;
	struct timespec ts;
	int fd;

	if (path) {
		fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, 0) || ftruncate(fd, sizeof(*st)))
			st = MAP_FAILED;
		else
			st = map_file(fd);
		if (fd >= 0)
			close(fd);
		if (st == MAP_FAILED) {
			uproxy_say("cannot use %s: %s", path, strerror(errno));
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

void stat_device(struct sv_session *s, const char *name)
{
	s->stat->device = s->hal.dev;
	s->stat->logical = s->shared->device + 1;
	s->stat->driver_version = s->hal.version;
	s->stat->budget = s->budget;
	snprintf(s->stat->device_name, sizeof(s->stat->device_name), "%.63s", name);
}

/* The proxy decides by s->state; the copy in the file is only shown. */
void stat_why(struct sv_session *s, const struct why *why)
{
	why_copy(s->stat->why, sizeof(s->stat->why), why);
}

void stat_state(struct sv_session *s, uint32_t state)
{
	__atomic_store_n(&s->state, state, __ATOMIC_RELEASE);
	__atomic_store_n(&s->stat->state, state, __ATOMIC_RELEASE);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}
