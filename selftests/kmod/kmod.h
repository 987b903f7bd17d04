/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kmod.h - helpers of the module's tests: a channel made in one line, children, threads that wait
 *
 * Both ends of a channel have the same address, so a process can map only one of them: a test maps
 * the proxy's, its child the client's. Waiting and waking need no mapping.
 */
#ifndef SELFTESTS_KMOD_H
#define SELFTESTS_KMOD_H

#include "../harness/leaks.h"
#include "../harness/patience.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include <linux/singvgpu.h>

#include "ring.h"

#define VA 0x7e9000000000ULL
#define PAGE 4096ULL
#ifndef ARENA
#define ARENA (16ULL << 20)
#endif
#define LOG (64ULL << 10)
#define DOORBELL offsetof(struct singvgpu_ctl, doorbell)
#define MS 1000000LL

/* Skips the test, with a reason, where there is no device. */
#define REQUIRE_DEVICE() do { \
	if (access(SINGVGPU_DEV_PATH, F_OK)) \
		SKIP(return, "no " SINGVGPU_DEV_PATH ": the module is not loaded"); \
} while (0)

/* A system call's result as the kernel returns it: -errno on failure. */
#define SYS(call) ({ long r_ = (long)(call); r_ == -1 ? -errno : r_; })

static inline int open_device(void)
{
	return open(SINGVGPU_DEV_PATH, O_RDWR | O_CLOEXEC);
}

static inline struct singvgpu_create default_create(void)
{
	struct singvgpu_create arg = {
		.api_version = SINGVGPU_API_VERSION,
		.geo = { .va = VA, .arena_len = ARENA, .log_len = LOG, .ring_units = 1024,
			 .cpl_slots = 64 },
	};
	int pid = getpid();
	static int count;

	memcpy(arg.id, &pid, sizeof(pid));
	count++;
	memcpy(arg.id + 4, &count, sizeof(count));
	memset(arg.cookie, 0xc0, sizeof(arg.cookie));
	return arg;
}

static inline struct singvgpu_attach attach_to(const struct singvgpu_create *create)
{
	struct singvgpu_attach arg = { .api_version = SINGVGPU_API_VERSION };

	memcpy(arg.id, create->id, sizeof(arg.id));
	memcpy(arg.cookie, create->cookie, sizeof(arg.cookie));
	return arg;
}

static inline long create(int fd, struct singvgpu_create *arg)
{
	return SYS(ioctl(fd, SINGVGPU_IOC_CREATE, arg));
}

static inline long attach(int fd, const struct singvgpu_create *c)
{
	struct singvgpu_attach arg = attach_to(c);

	return SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &arg));
}

static inline struct singvgpu_info info_of(int fd)
{
	struct singvgpu_info info;

	memset(&info, 0xaa, sizeof(info));
	if (ioctl(fd, SINGVGPU_IOC_GET_INFO, &info))
		memset(&info, 0xbb, sizeof(info));
	return info;
}

static inline long wait_on(int fd, uint64_t off, uint32_t expect, int64_t timeout)
{
	struct singvgpu_wait arg = { .off = off, .expect = expect, .timeout_ns = timeout };

	return SYS(ioctl(fd, SINGVGPU_IOC_WAIT, &arg));
}

static inline long wake(int fd, uint64_t off, uint32_t nr)
{
	struct singvgpu_wake arg = { .off = off, .nr = nr };

	return SYS(ioctl(fd, SINGVGPU_IOC_WAKE, &arg));
}

static inline long range(int fd, unsigned long cmd, uint64_t off, uint64_t len)
{
	struct singvgpu_range arg = { .off = off, .len = len };

	return SYS(ioctl(fd, cmd, &arg));
}

/* Regions of default_create()'s channel. */
#define RING_OFF (PAGE + 64 * 64)
#define ARENA_OFF (RING_OFF + 1024 * 64)
#define LOG_OFF (ARENA_OFF + ARENA)
#define LENGTH (LOG_OFF + LOG)

static inline void *map_at(int fd, uint64_t off, uint64_t len)
{
	return mmap((void *)(VA + off), len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, off);
}

static inline struct singvgpu_ctl *ctl_of(void)
{
	return (struct singvgpu_ctl *)VA;
}

static inline int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static inline void sleep_ms(int ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * MS };

	nanosleep(&ts, NULL);
}

/* Waits until thread tid of any process sleeps in the kernel. False: it has ended. */
static inline int sleeps(pid_t tid)
{
	char path[64], line[256], *p;

	for (;; sleep_ms(1)) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/stat", tid);
		f = fopen(path, "re");
		if (!f)
			return 0;
		p = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
		fclose(f);
		if (p && p[2] == 'S')
			return 1;
		if (p && (p[2] == 'Z' || p[2] == 'X'))
			return 0;
	}
}

/* A thread that waits on a word and stores the call's result. */
struct waiter {
	int fd;
	uint64_t off;
	uint32_t expect;
	int64_t timeout;
	pthread_t thread;
	_Atomic pid_t tid;
	long result;
	int64_t left;
};

static void *waiter_main(void *p)
{
	struct waiter *w = p;
	struct singvgpu_wait arg = { .off = w->off, .expect = w->expect,
				     .timeout_ns = w->timeout };

	w->tid = gettid();
	w->result = SYS(ioctl(w->fd, SINGVGPU_IOC_WAIT, &arg));
	w->left = arg.timeout_ns;
	return NULL;
}

/* Returns once it sleeps. */
static inline int waiter_start(struct waiter *w)
{
	w->tid = 0;
	w->result = 12345;
	if (pthread_create(&w->thread, NULL, waiter_main, w))
		return 0;
	while (!w->tid)
		sched_yield();
	return sleeps(w->tid);
}

static inline long waiter_end(struct waiter *w)
{
	pthread_join(w->thread, NULL);
	return w->result;
}

/* Steps of a child and its parent, which wait for each other: a pipe each way. */
struct steps {
	int to_child[2];
	int to_parent[2];
};

static inline int steps_open(struct steps *s)
{
	return pipe2(s->to_child, O_CLOEXEC) || pipe2(s->to_parent, O_CLOEXEC);
}

static inline void steps_close(struct steps *s)
{
	close(s->to_child[0]);
	close(s->to_child[1]);
	close(s->to_parent[0]);
	close(s->to_parent[1]);
}

static inline void tell_parent(struct steps *s)
{
	if (write(s->to_parent[1], "x", 1) != 1)
		_exit(99);
}

static inline void tell_child(struct steps *s)
{
	if (write(s->to_child[1], "x", 1) != 1)
		abort();
}

static inline int a_child_has_died(void)
{
	siginfo_t info = { .si_pid = 0 };

	return !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid;
}

/* False: it hangs, or has died. */
static inline int wait_child(struct steps *s)
{
	struct pollfd pfd = { .fd = s->to_parent[0], .events = POLLIN };
	uint64_t mark = 0;
	char c;
	int n;

	do
		n = poll(&pfd, 1, PATIENCE_S * 1000);
	while (!n && !a_child_has_died() && others_go_on(&mark));
	return n == 1 && read(s->to_parent[0], &c, 1) == 1;
}

static inline void wait_parent(struct steps *s)
{
	char c;

	if (read(s->to_child[0], &c, 1) != 1)
		_exit(98);
}

/* The exit status of a child; 1000 + signal if one killed it. */
static inline int reap(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* A line of /sys/kernel/debug/singvgpu/totals; -1 if it cannot be read. */
static inline long total(const char *name)
{
	FILE *f = fopen("/sys/kernel/debug/singvgpu/totals", "re");
	char key[32];
	long value, found = -1;

	while (f && fscanf(f, "%31s %ld", key, &value) == 2)
		if (!strcmp(key, name))
			found = value;
	if (f)
		fclose(f);
	return found;
}

/*
 * Waits until the total has that value: files are closed some time after their process ended. No
 * process is left whose progress could be observed, so the limit is by the clock.
 */
static inline long total_settles(const char *name, long value)
{
	int i;

	for (i = 0; i < 3 * PATIENCE_S * 1000 && total(name) != value; i++)
		sleep_ms(1);
	return total(name);
}

/*
 * How many channels are in memory that were not there before; 0 as well without debugfs. A test's
 * files are closed by then. No other test runs beside it.
 */
static inline long channels_left(long before)
{
	int i;

	for (i = 0; i < PATIENCE_S * 100 && total("channels") > before; i++)
		sleep_ms(10);
	return total("channels") > before ? total("channels") - before : 0;
}

static inline long parameter(const char *name, const char *value)
{
	char path[128];
	int fd;
	long n;

	snprintf(path, sizeof(path), "/sys/module/singvgpu/parameters/%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = SYS(write(fd, value, strlen(value)));
	close(fd);
	return n < 0 ? n : 0;
}

/* A proxy end, mapped, and a client end, not mapped, in one process. */
FIXTURE(channel) {
	struct singvgpu_create create;
	int proxy;
	int client;
	struct singvgpu_ctl *ctl;
	long channels;
};

FIXTURE_SETUP(channel)
{
	REQUIRE_DEVICE();
	self->channels = total("channels");
	self->create = default_create();
	self->proxy = open_device();
	ASSERT_LE(0, self->proxy);
	self->client = open_device();
	ASSERT_LE(0, self->client);
	ASSERT_EQ(0, create(self->proxy, &self->create));
	ASSERT_EQ(0, attach(self->client, &self->create));
	ASSERT_EQ((void *)VA, map_at(self->proxy, 0, LENGTH));
	self->ctl = ctl_of();
}

FIXTURE_TEARDOWN(channel)
{
	munmap((void *)VA, LENGTH);
	close(self->client);
	close(self->proxy);
	EXPECT_EQ(0, channels_left(self->channels));
}

#endif
