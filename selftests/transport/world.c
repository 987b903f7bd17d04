// SPDX-License-Identifier: Apache-2.0
/*
 * world.c - processes with an end of the transport each
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/futex.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef WORLD_NCCL
#include "hal.h"
extern size_t nccl_scratch; /* of hal/nccl/issue.c */
#endif
#include "wire_i.h"
#include "world.h"

struct world *world;
const struct transport_driver *driver;
struct transport *end;
uint32_t world_self;
bool world_tcp, world_apart;

const uint32_t world_devices[WORLD_MAX] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };

int world_result(bool ok, const char *name)
{
	static unsigned int test;

	printf("%s %u %s\n", ok ? "ok" : "not ok", ++test, name);
	return !ok;
}

double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

void world_fail(const char *fmt, ...)
{
	va_list ap;

	if (!__atomic_exchange_n(&world->failed, 1, __ATOMIC_ACQ_REL)) {
		va_start(ap, fmt);
		vsnprintf(world->text, sizeof(world->text), fmt, ap);
		va_end(ap);
		fprintf(stderr, "# %s\n", world->text);
	}
	_exit(1);
}

void world_barrier(void)
{
	uint32_t turn = __atomic_load_n(&world->turn, __ATOMIC_ACQUIRE);

	if (__atomic_add_fetch(&world->came, 1, __ATOMIC_ACQ_REL) == world->n) {
		world->came = 0;
		__atomic_store_n(&world->turn, turn + 1, __ATOMIC_RELEASE);
		syscall(SYS_futex, &world->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
		return;
	}
	while (__atomic_load_n(&world->turn, __ATOMIC_ACQUIRE) == turn) {
		struct timespec t = { .tv_nsec = 100000000 };

		syscall(SYS_futex, &world->turn, FUTEX_WAIT, turn, &t, NULL, 0);
		if (__atomic_load_n(&world->failed, __ATOMIC_ACQUIRE))
			_exit(1);
	}
}

static int address(void *arg, uint32_t device, void *to)
{
	uint32_t len;

	(void)arg;
	if (device >= world->n || world->gone[device])
		return -ENOENT;
	len = __atomic_load_n(&world->len[device], __ATOMIC_ACQUIRE);
	memcpy(to, world->address[device], len);
	return len ? (int)len : -ENOENT;
}

#ifdef WORLD_NCCL
static struct hal hal;
static char *memory, *top; /* of the device; from top on it is free */
static uint32_t taken;
#define MEMORY (96ul << 20)

const bool world_nccl = true;

/* -1: a key that no test has. */
static int note_of(uint64_t key)
{
	uint64_t small = key & ~(1ull << 63);

	return small < 64 ? (int)(small + 64 * (key >> 63)) : -1;
}

static int note(void *arg, uint64_t key, const void *p, size_t size)
{
	int i = note_of(key);

	(void)arg;
	if (i < 0)
		return -ENOSPC;
	if (size)
		memcpy(world->note[i], p, size);
	__atomic_store_n(&world->noted[i], size, __ATOMIC_RELEASE);
	return 0;
}

static int noted(void *arg, uint64_t key, void *to)
{
	int i = note_of(key);
	uint32_t n = i < 0 ? 0 : __atomic_load_n(&world->noted[i], __ATOMIC_ACQUIRE);

	(void)arg;
	if (!n)
		return -ENOENT;
	memcpy(to, world->note[i], n);
	return (int)n;
}

static void say(void *arg, const char *text)
{
	(void)arg;
	snprintf(world->said[world_self], sizeof(world->said[0]), "%s", text);
}

static void load(struct transport_open *o)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	char path[PATH_MAX], fake[PATH_MAX];
	struct why why = { 0 };
	CUdeviceptr p;

	snprintf(path, sizeof(path), "%s/uproxy/softgpu/libsoftcuda.so", build);
	snprintf(fake, sizeof(fake), "%s/selftests/nccl/fake/libnccl.so.2", build);
	setenv("FAKE_NCCL_CUDA", path, 1);
	if (getenv("FAKE_NCCL_LOG_DIR")) {
		char log[PATH_MAX];

		snprintf(log, sizeof(log), "%s/%u", getenv("FAKE_NCCL_LOG_DIR"), world_self);
		setenv("FAKE_NCCL_LOG", log, 1);
	}
	setenv("SINGVGPU_NCCL", fake, 0);
	setenv("SINGVGPU_SOFT_PROFILE", "h100,pageable-waits", 1);
	if (hal_open(&hal, path, 0x200000000000ull, 1ull << 40, &why) || hal_start(&hal, 0, &why) ||
	    hal.drv.cuMemAlloc_v2(&p, MEMORY))
		world_fail("the soft device: %s", why.text);
	memory = top = (char *)p;
	nccl_scratch = 16 << 10; /* so that operations have several chunks */
	driver = &transport_nccl;
	o->hal = &hal;
	o->note = note;
	o->noted = noted;
	o->say = say;
	o->order = world->order;
}

struct hal *world_hal(void)
{
	return &hal;
}

void *world_alloc(size_t size)
{
	char *p = top;

	top += (size + 255) & ~255ul;
	if (top > memory + MEMORY)
		world_fail("the device's memory is used up");
	taken++;
	return p;
}

void world_free(void *p)
{
	(void)p;
	if (!--taken)
		top = memory;
}

void world_join(uint64_t key)
{
	static const uint32_t self[WORLD_MAX] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
	struct transport_group g = { .comm = key, .ranks = world->n, .rank = world_self, .device = self };
	struct why why = { 0 };

	if (driver->join(end, &g, &why))
		world_fail("join: %s", why.text);
}
#else
const bool world_nccl = false;

static void load(struct transport_open *o)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	char path[PATH_MAX];
	void *lib;

	(void)o;
	snprintf(path, sizeof(path), "%s/uproxy/softgpu/libsoftcomm.so", build);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	driver = lib ? dlsym(lib, TRANSPORT_DRIVER_SYMBOL) : NULL;
	if (!driver || driver->version != TRANSPORT_VERSION)
		world_fail("%s: %s", path, driver ? "another version" : dlerror());
}

void *world_alloc(size_t size)
{
	return malloc(size);
}

void world_free(void *p)
{
	free(p);
}

void world_join(uint64_t key)
{
	(void)key;
}
#endif

static void child(uint32_t self, void (*body)(uint32_t self, void *arg), void *arg)
{
	struct transport_open o = { .self = self, .address = address };
	struct why why = { 0 };
	struct address a;
	int n;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	world->pid[self] = getpid();
	if (world_apart) {
		int ns = open(self ? "/run/netns/svcollb" : "/run/netns/svcolla", O_RDONLY);

		if (ns < 0 || setns(ns, CLONE_NEWNET))
			world_fail("a network namespace: %s", strerror(errno));
	}
	world_self = self;
	load(&o);
	if (world->unopened) {	/* the test opens it for itself */
		world_barrier();
		body(self, arg);
		_exit(0);
	}
	if (driver->open(&end, &o, &why))
		world_fail("open: %s", why.text);
	n = driver->address(end, &a);
	if (n != sizeof(a) && !world_nccl)
		world_fail("an address of %d bytes", n);
	/* Whoever is in another network namespace is reached by TCP. */
	if (world_tcp)
		a.net = ~(uint64_t)self;
	memcpy(world->address[self], &a, sizeof(a));
	__atomic_store_n(&world->len[self], n, __ATOMIC_RELEASE);
	world_barrier();
	body(self, arg);
	driver->counters(end, &world->count[self]);
	driver->close(end);
	_exit(0);
}

bool world_has_ip(void)
{
	struct ifaddrs *all, *i;
	bool has = false;

	if (getifaddrs(&all))
		return false;
	for (i = all; i; i = i->ifa_next)
		has |= i->ifa_addr && i->ifa_flags & IFF_UP && !(i->ifa_flags & IFF_LOOPBACK) &&
		       i->ifa_addr->sa_family == AF_INET;
	freeifaddrs(all);
	return has;
}

void world_begin(uint32_t n, void (*body)(uint32_t self, void *arg), void *arg)
{
	world_begin_as(n, TRANSPORT_TREE, false, body, arg);
}

void world_begin_as(uint32_t n, enum transport_order order, bool unopened, void (*body)(uint32_t self, void *arg),
                    void *arg)
{
	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
	             0);
	if (world == MAP_FAILED)
		exit(1);
	world->n = n;
	world->order = order;
	world->unopened = unopened;
	world->victim = UINT32_MAX;
	fflush(stdout);
	for (uint32_t i = 0; i < n; i++) {
		pid_t pid = fork();

		if (!pid)
			child(i, body, arg);
		if (pid < 0)
			exit(1);
		world->pid[i] = pid;
	}
}

int world_end(void)
{
	int failed = 0, status;

	for (uint32_t i = 0; i < world->n; i++) {
		waitpid(world->pid[i], &status, 0);
		if (WIFSIGNALED(status) && i != world->victim)
			fprintf(stderr, "# end %u: signal %d\n", i, WTERMSIG(status));
		failed += i != world->victim && status;
	}
	return failed;
}

void on_end(void *arg, enum step_code code)
{
	struct ended *e = arg;

	__atomic_store_n(&e->code, code + 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &e->code, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int await(struct ended *e, int ms)
{
	double until = seconds() + ms / 1000.0;

	while (!__atomic_load_n(&e->code, __ATOMIC_ACQUIRE)) {
		struct timespec t = { .tv_nsec = 10000000 };

		if (seconds() > until)
			return -1;
		syscall(SYS_futex, &e->code, FUTEX_WAIT, 0, &t, NULL, 0);
	}
	return e->code - 1;
}
