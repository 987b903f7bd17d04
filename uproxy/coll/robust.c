// SPDX-License-Identifier: Apache-2.0
/*
 * robust.c - takes a lock between processes, waits for it, and gives it back
 */
#define _GNU_SOURCE
#include "robust.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS       100
#define SLEEP_NS    10000000 /* for what no barrier finds: who was to be woken has been killed */
#define SLEEP_NO_NS 1000000 /* without the barrier */

/* This thread's: the kernel's list, which libc has registered, and its number. */
static __thread struct robust_list_head *list;
static __thread uint32_t self;
static bool has_barrier;

static void relax(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

static int thread_known(void)
{
	size_t size;

	if (syscall(SYS_get_robust_list, 0, &list, &size) || !list || size != sizeof(*list)) {
		list = NULL;
		return -ENOSYS;
	}
	self = (uint32_t)syscall(SYS_gettid);
	return 0;
}

/* The child's only thread has another number than the one that it was. */
static void forked(void)
{
	list = NULL;
}

static int barrier(int command)
{
	return (int)syscall(SYS_membarrier, command, 0, 0);
}

static void registered(void)
{
	pthread_atfork(NULL, NULL, forked);
}

int robust_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, registered);
	has_barrier = !barrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
	return thread_known();
}

static bool try_take(struct robust *r, uint32_t was)
{
	/* pairs with robust_give() */
	return __atomic_compare_exchange_n(&r->word, &was, self, false, __ATOMIC_ACQUIRE,
	                                   __ATOMIC_RELAXED);
}

/* Until its holder gives it back, dies, or some milliseconds have passed. */
static void wait_for(struct robust *r)
{
	struct timespec t = { .tv_nsec = has_barrier ? SLEEP_NS : SLEEP_NO_NS };
	uint32_t now;

	__atomic_store_n(&r->waits, 1, __ATOMIC_SEQ_CST);
	/* A holder that has not seen this yet has not given the lock back before what is read next. */
	if (has_barrier)
		barrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
	/* pairs with robust_give() */
	now = __atomic_load_n(&r->word, __ATOMIC_SEQ_CST);
	if (now & FUTEX_TID_MASK)
		syscall(SYS_futex, &r->word, FUTEX_WAIT, now, &t, NULL, 0);
}

static int take_contended(struct robust *r)
{
	bool slept = false;

	for (uint32_t spins = 0;; spins++) {
		uint32_t now = __atomic_load_n(&r->word, __ATOMIC_RELAXED);

		if (!(now & FUTEX_TID_MASK)) {
			if (!try_take(r, now))
				continue;
			/* Of several who slept one has been woken: the others are its business. */
			if (slept)
				__atomic_store_n(&r->waits, 1, __ATOMIC_RELAXED);
			return now ? EOWNERDEAD : 0;
		}
		if (spins < SPINS) {
			relax();
			continue;
		}
		wait_for(r);
		slept = true;
	}
}

int robust_take(struct robust *r)
{
	if (!list && thread_known())
		return ENOSYS;
	list->list_op_pending = (void *)((char *)&r->word - list->futex_offset);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	return try_take(r, 0) ? 0 : take_contended(r);
}

void robust_give(struct robust *r)
{
	uint32_t waits = __atomic_load_n(&r->waits, __ATOMIC_RELAXED);

	/* Cleared before, so that no mark is lost: who leaves one from here on finds the word 0, or is seen. */
	if (waits)
		__atomic_store_n(&r->waits, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&r->word, 0, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	waits |= __atomic_load_n(&r->waits, __ATOMIC_RELAXED);
	if (waits)
		syscall(SYS_futex, &r->word, FUTEX_WAKE, 1, NULL, NULL, 0);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	/* Not before the wake: whoever is killed in between has the kernel wake for it. */
	list->list_op_pending = NULL;
}
