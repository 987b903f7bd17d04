// SPDX-License-Identifier: Apache-2.0
/*
 * waits.c - the transport's operations progress in a thread that waits (drive), and in the transport's
 * own thread while that one has other work or sleeps; between processes, without proxies
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tree.h"
#include "world.h"

#define TIMES  400
#define COUNTS 5u

static const uint64_t counts[COUNTS] = { 1, 2, 1024, 40000, 300000 };

/* An all-reduce, and which thread has told of its end. */
struct sum {
	struct ended e;
	uint64_t count;
	float *send, *recv;
	bool here; /* told in the thread that waits */
};

static pthread_t waiter;
static __thread bool driving;

static void on_sum(void *arg, enum step_code code)
{
	struct sum *s = arg;

	s->here = pthread_equal(pthread_self(), waiter);
	if (s->here && !driving)
		world_fail("an end was told in the waiting thread while it did not wait");
	on_end(&s->e, code);
}

static void sum_new(struct sum *s, uint64_t count)
{
	memset(s, 0, sizeof(*s));
	s->count = count;
	s->send = malloc(count * sizeof(float));
	s->recv = calloc(count, sizeof(float));
	for (uint64_t i = 0; i < count; i++)
		s->send[i] = world_self + i % 1000;
}

static void sum_start(struct sum *s, uint64_t order)
{
	struct transport_part p = { .rank = world_self, .send = s->send, .recv = s->recv };
	struct transport_start start = { .order = order, .ranks = world->n, .nparts = 1, .device = world_devices,
		                    .part = &p, .done = on_sum, .arg = s };

	s->e.code = 0;
	start.call = (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = s->count };
	if (driver->start(end, &start))
		world_fail("start");
}

static void sum_check(struct sum *s)
{
	float base = world->n * (world->n - 1) / 2;

	if (s->e.code != STEP_OK + 1)
		world_fail("it ended with %u", s->e.code);
	for (uint64_t i = 0; i < s->count; i++)
		if (s->recv[i] != base + world->n * (i % 1000))
			world_fail("element %lu is %f", (unsigned long)i, s->recv[i]);
	memset(s->recv, 0, s->count * sizeof(float));
}

static void sum_free(struct sum *s)
{
	free(s->send);
	free(s->recv);
}

static bool has_ended(void *arg)
{
	return __atomic_load_n(&((struct sum *)arg)->e.code, __ATOMIC_ACQUIRE);
}

static bool at_once(void *arg)
{
	(void)arg;
	return true;
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static bool drive(bool (*more)(void *arg), void *arg)
{
	bool due;

	driving = true;
	due = driver->drive(end, more, arg);
	driving = false;
	return due;
}

static void nap_ms(int ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l };

	nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------------------ the tests */

/* drive() may end before the operation: then the transport's own thread completes it. */
static void sum_await(struct sum *s)
{
	if (!drive(has_ended, s) && await(&s->e, 20000))
		world_fail("nobody goes on when the thread has left to sleep");
	sum_check(s);
}

static void here_body(uint32_t self, void *arg)
{
	uint32_t here = 0;

	(void)arg;
	waiter = pthread_self();
	for (uint64_t i = 0; i < TIMES; i++) {
		struct sum s;

		sum_new(&s, counts[i % COUNTS]);
		sum_start(&s, i + 1);
		sum_await(&s);
		here += s.here;
		sum_free(&s);
	}
	/* With fewer processors than threads, or over TCP, the helper may tell of more of them. */
	if (here < TIMES / 4 && world->n == 2 && !world_tcp)
		world_fail("device %u: %u of %u were told in the thread that waits", self, here, TIMES);
}

/* Operations end while the thread has other work. */
static void away_body(uint32_t self, void *arg)
{
	uint64_t order = 0;
	struct sum s;

	(void)arg;
	waiter = pthread_self();
	sum_new(&s, counts[4]);
	for (int i = 0; i < 20; i++) {
		sum_start(&s, ++order);
		sum_await(&s);
		sum_start(&s, ++order);
		if (i % 2)
			drive(at_once, NULL);
		if (await(&s.e, 20000))
			world_fail("device %u: nobody goes on when the thread has other work", self);
		if (s.here)
			world_fail("told in a thread that has other work");
		sum_check(&s);
	}
	sum_free(&s);
}

/* Device 1 is late, so the helper of device 0 sleeps when the thread drives for a moment. */
static void asleep_body(uint32_t self, void *arg)
{
	struct sum s;

	(void)arg;
	waiter = pthread_self();
	sum_new(&s, counts[3]);
	for (uint64_t order = 1; order <= 10; order++) {
		world_barrier();
		nap_ms(self ? 60 : 0);
		sum_start(&s, order);
		if (!self) {
			nap_ms(20);
			drive(at_once, NULL);
		}
		if (await(&s.e, 20000))
			world_fail("device %u: nobody goes on when the thread has other work", self);
		sum_check(&s);
	}
	sum_free(&s);
}

static double used(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void late_body(uint32_t self, void *arg)
{
	struct sum s;
	double begin, took, cpu;

	(void)arg;
	waiter = pthread_self();
	sum_new(&s, counts[3]);
	for (uint64_t order = 1; order <= 20; order++) {
		if (self)
			nap_ms(20);
		begin = seconds();
		sum_start(&s, order);
		if (!self && drive(never, NULL))
			world_fail("more than nothing");
		took = seconds() - begin;
		if (!self && took > 10)
			world_fail("it waits for %f s, and does not sleep", took);
		if (await(&s.e, 20000))
			world_fail("device %u: what comes when the thread sleeps is lost", self);
		sum_check(&s);
	}
	sum_free(&s);
	world_barrier();
	cpu = used();
	nap_ms(300);
	cpu = used() - cpu;
	if (cpu > 0.1)
		world_fail("device %u: %f s of a processor in 0.3 s in which nothing was to be done", self, cpu);
	world_barrier();
}

/* Threads start operations while another one drives, is away, or leaves to sleep, in any order. */
struct starter {
	pthread_t thread;
	uint64_t first;
	uint32_t done;
};

static void *starts(void *arg)
{
	struct starter *st = arg;

	for (uint64_t i = 0; i < TIMES; i++) {
		struct sum s;

		sum_new(&s, counts[i % (COUNTS - 1)]);
		sum_start(&s, st->first + 2 * i);
		if (await(&s.e, 60000))
			world_fail("operation %lu does not end", (unsigned long)(st->first + 2 * i));
		sum_check(&s);
		sum_free(&s);
	}
	__atomic_store_n(&st->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

static bool some(void *arg)
{
	uint32_t *left = arg;

	return !(*left)--;
}

static void any_body(uint32_t self, void *arg)
{
	struct starter st[2] = { { .first = 1 }, { .first = 2 } };
	unsigned int seed = 7 + self;
	uint32_t left;

	(void)arg;
	waiter = pthread_self();
	for (int i = 0; i < 2; i++)
		if (pthread_create(&st[i].thread, NULL, starts, &st[i]))
			world_fail("no thread");
	while (!__atomic_load_n(&st[0].done, __ATOMIC_ACQUIRE) ||
	       !__atomic_load_n(&st[1].done, __ATOMIC_ACQUIRE)) {
		left = rand_r(&seed) % 5000;
		if (rand_r(&seed) % 4)
			drive(some, &left);
		else if (rand_r(&seed) % 4)
			drive(never, NULL);
		else
			nap_ms(rand_r(&seed) % 5);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(st[i].thread, NULL);
}

/* close() while the thread neither drives nor has handed the transport back. */
static void close_body(uint32_t self, void *arg)
{
	struct sum s;

	(void)arg;
	waiter = pthread_self();
	driving = true;		/* close() may tell */
	sum_new(&s, counts[4]);
	sum_start(&s, 1);
	driver->drive(end, self ? has_ended : at_once, &s);
	if (await(&s.e, 20000))
		world_fail("nobody goes on");
	if (!self)
		driver->drive(end, at_once, NULL);
	sum_check(&s);
}

static bool in_world(uint32_t n, void (*body)(uint32_t, void *))
{
	world_begin(n, body, NULL);
	return !world_end();
}

static int all(const char *how)
{
	static const struct {
		uint32_t n;
		void (*body)(uint32_t, void *);
		const char *name;
	} t[] = {
		{ 2, here_body, "ends are told in the thread that waits" },
		{ 4, here_body, "and with more ends than processors" },
		{ 2, away_body, "when it has other work, operations end without it" },
		{ 2, asleep_body, "also when the transport's own thread slept before" },
		{ 2, late_body, "when nothing comes it may sleep, and misses nothing" },
		{ 3, any_body, "other threads start operations meanwhile" },
		{ 2, close_body, "an end closes while its thread is away" },
	};
	char name[160];
	int bad = 0;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		snprintf(name, sizeof(name), "%s%s", t[i].name, how);
		bad += world_result(in_world(t[i].n, t[i].body), name);
	}
	return bad;
}

int main(void)
{
	int bad;

	world_tcp = true;
	printf("TAP version 13\n1..%d\n", world_has_ip() ? 14 : 7);
	world_tcp = false;
	bad = all("");
	world_tcp = true;
	if (world_has_ip())
		bad += all(", over TCP");
	return !!bad;
}
