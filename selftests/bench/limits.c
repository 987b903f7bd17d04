// SPDX-License-Identifier: Apache-2.0
/*
 * limits.c - measures the cache-coherence limits between two CPUs; nothing else belongs here
 *
 * Two processes, like client and proxy, share an anonymous mapping; the parent runs on the first
 * CPU, a child per measurement on the second.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"

#define SLOTS	1024		/* lines of the ring that this is the limit of */
#define CHUNK	256		/* lines per flag */
#define LINES	(1 << 20)	/* lines per measurement */
#define BOUNCES	50000

struct shared {
	_Alignas(128) uint64_t flag;
	_Alignas(128) uint64_t ack;
	_Alignas(128) uint64_t line[SLOTS][8];
};

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

int limit_cpu(int which)
{
	cpu_set_t set;
	int cpu, n = 0, first = -1;

	sched_getaffinity(0, sizeof(set), &set);
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &set))
			continue;
		if (first < 0)
			first = cpu;
		if (n++ == which)
			return cpu;
	}
	return first;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

#define peek(p)		__atomic_load_n(p, __ATOMIC_ACQUIRE)
#define poke(p, v)	__atomic_store_n(p, v, __ATOMIC_RELEASE)

static void stream_reader(struct shared *s)
{
	uint64_t c, i, k, bad = 0;

	for (c = 0; c < LINES / CHUNK; c++) {
		while (peek(&s->flag) <= c)
			__builtin_ia32_pause();
		for (i = c * CHUNK; i < (c + 1) * CHUNK; i++)
			for (k = 0; k < 8; k++)
				bad |= s->line[i % SLOTS][k] ^ i;
		poke(&s->ack, c + 1);
	}
	_exit(bad != 0);
}

static void stream_writer(struct shared *s)
{
	uint64_t c, i, k;

	for (c = 0; c < LINES / CHUNK; c++) {
		while (c - peek(&s->ack) >= SLOTS / CHUNK)
			__builtin_ia32_pause();
		for (i = c * CHUNK; i < (c + 1) * CHUNK; i++)
			for (k = 0; k < 8; k++)
				s->line[i % SLOTS][k] = i;
		poke(&s->flag, c + 1);
	}
	while (peek(&s->ack) != c)
		;
}

static void bounce_back(struct shared *s)
{
	uint64_t i;

	for (i = 1; i < 2 * BOUNCES; i += 2) {
		while (peek(&s->flag) != i)
			__builtin_ia32_pause();
		poke(&s->flag, i + 1);
	}
	_exit(0);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double bounce(struct shared *s)
{
	static double took[BOUNCES];
	uint64_t begin = now(), t0 = __builtin_ia32_rdtsc(), t, i;

	for (i = 0; i < BOUNCES; i++) {
		t = __builtin_ia32_rdtsc();
		poke(&s->flag, 2 * i + 1);
		while (peek(&s->flag) != 2 * i + 2)
			__builtin_ia32_pause();
		took[i] = __builtin_ia32_rdtsc() - t;
	}
	qsort(took, BOUNCES, sizeof(*took), by_value);
	return took[BOUNCES / 2] * (now() - begin) / (__builtin_ia32_rdtsc() - t0);
}

/* Runs one measurement against a child; ends the program when the child has seen wrong data. */
static double with_child(void (*child)(struct shared *), double (*parent)(struct shared *))
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cpu_set_t was;
	double result;
	int status;
	pid_t pid;

	if (s == MAP_FAILED)
		exit(1);
	sched_getaffinity(0, sizeof(was), &was);
	pid = fork();
	if (!pid) {
		pin(limit_cpu(1));
		child(s);
	}
	pin(limit_cpu(0));
	result = parent(s);
	sched_setaffinity(0, sizeof(was), &was);
	if (waitpid(pid, &status, 0) != pid || status) {
		fprintf(stderr, "limits: the child saw wrong data\n");
		exit(1);
	}
	munmap(s, sizeof(*s));
	return result;
}

static double stream(struct shared *s)
{
	uint64_t begin = now();

	stream_writer(s);
	return (double)(now() - begin) / LINES;
}

double limit_stream_ns(void)
{
	return with_child(stream_reader, stream);
}

double limit_bounce_ns(void)
{
	return with_child(bounce_back, bounce);
}
