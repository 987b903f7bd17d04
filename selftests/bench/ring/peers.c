// SPDX-License-Identifier: Apache-2.0
/*
 * peers.c - ping-pong over the kernel's own means, and DPDK's ring
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../limits.h"
#include "peers.h"

#define TRIPS	1500

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		exit(1);
	return p;
}

/* Runs parent and child, on the first and second CPU; ns of the parent. */
static double pair(void (*parent)(void *), void (*child)(void *), void *arg)
{
	uint64_t begin;
	cpu_set_t was;
	int status;
	pid_t pid;
	double ns;

	sched_getaffinity(0, sizeof(was), &was);
	pid = fork();
	if (!pid) {
		pin(limit_cpu(1));
		child(arg);
		_exit(0);
	}
	pin(limit_cpu(0));
	begin = now();
	parent(arg);
	waitpid(pid, &status, 0);
	ns = now() - begin;
	sched_setaffinity(0, sizeof(was), &was);
	if (status) {
		fprintf(stderr, "peers: a child failed\n");
		exit(1);
	}
	return ns;
}

/* --- futex */

static void futex_hand(uint32_t *w, uint32_t to, uint32_t back)
{
	__atomic_store_n(w, to, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, w, FUTEX_WAKE, 1, NULL, NULL, 0);
	while (__atomic_load_n(w, __ATOMIC_ACQUIRE) != back)
		syscall(SYS_futex, w, FUTEX_WAIT, to, NULL, NULL, 0);
}

static void futex_parent(void *arg)
{
	int i;

	for (i = 0; i < TRIPS; i++)
		futex_hand(arg, 1, 0);
}

static void futex_child(void *arg)
{
	uint32_t *w = arg;
	int i;

	for (i = 0; i < TRIPS; i++) {
		while (__atomic_load_n(w, __ATOMIC_ACQUIRE) != 1)
			syscall(SYS_futex, w, FUTEX_WAIT, 0, NULL, NULL, 0);
		__atomic_store_n(w, 0, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, w, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
}

double peer_futex_ns(void)
{
	uint32_t *w = shared(4096);
	double ns = pair(futex_parent, futex_child, w) / TRIPS;

	munmap(w, 4096);
	return ns;
}

/* --- file descriptors */

struct ends {
	int to[2], from[2];	/* [0] is read, [1] written */
};

static void fd_parent(void *arg)
{
	struct ends *e = arg;
	uint64_t n = 1;
	int i;

	for (i = 0; i < TRIPS; i++)
		if (write(e->to[1], &n, 8) != 8 || read(e->from[0], &n, 8) != 8)
			exit(1);
}

static void fd_child(void *arg)
{
	struct ends *e = arg;
	uint64_t n;
	int i;

	for (i = 0; i < TRIPS; i++)
		if (read(e->to[0], &n, 8) != 8 || write(e->from[1], &n, 8) != 8)
			_exit(1);
}

static double fd_pair(struct ends *e)
{
	double ns = pair(fd_parent, fd_child, e) / TRIPS;

	close(e->to[0]);
	close(e->from[0]);
	if (e->to[1] != e->to[0] && e->to[1] != e->from[0])
		close(e->to[1]);
	if (e->from[1] != e->from[0] && e->from[1] != e->to[0])
		close(e->from[1]);
	return ns;
}

double peer_eventfd_ns(void)
{
	int a = eventfd(0, EFD_CLOEXEC), b = eventfd(0, EFD_CLOEXEC);
	struct ends e = { { a, a }, { b, b } };

	return fd_pair(&e);
}

double peer_pipe_ns(void)
{
	struct ends e;

	if (pipe(e.to) || pipe(e.from))
		exit(1);
	return fd_pair(&e);
}

double peer_unix_ns(void)
{
	int s[2];
	struct ends e;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, s))
		exit(1);
	e = (struct ends){ { s[1], s[0] }, { s[0], s[1] } };
	return fd_pair(&e);
}

/* --- DPDK */

#ifdef HAVE_DPDK
#include <rte_ring.h>
#include <rte_ring_elem.h>

#define ELEMENTS 400000

static void rte_parent(void *arg)
{
	uint64_t e[8] = { 0 };
	int i;

	for (i = 0; i < ELEMENTS; i++) {
		e[0] = i;
		while (rte_ring_sp_enqueue_elem(arg, e, sizeof(e)))
			__builtin_ia32_pause();
	}
}

static void rte_child(void *arg)
{
	uint64_t e[8];
	int i;

	for (i = 0; i < ELEMENTS; i++) {
		while (rte_ring_sc_dequeue_elem(arg, e, sizeof(e)))
			__builtin_ia32_pause();
		if (e[0] != (uint64_t)i)
			_exit(1);
	}
}

double peer_rte_ring_ns(void)
{
	ssize_t size = rte_ring_get_memsize_elem(64, 1024);
	struct rte_ring *r = shared(size);
	double ns;

	if (rte_ring_init(r, "peer", 1024, RING_F_SP_ENQ | RING_F_SC_DEQ))
		exit(1);
	ns = pair(rte_parent, rte_child, r) / ELEMENTS;
	munmap(r, size);
	return ns;
}
#else
double peer_rte_ring_ns(void)
{
	return 0;
}
#endif
