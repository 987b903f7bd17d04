// SPDX-License-Identifier: Apache-2.0
/*
 * drive.c - who makes operations progress: a thread of the transport, the helper, or one that waits
 *
 *              sleeps               wakes, or the bell has rung
 *   HELPER ──────────────► ASLEEP ──────────────► HELPER
 *     │ a thread attends     │ a thread attends
 *     ▼                      ▼
 *   NOBODY ◄────────────── WAITER ──────────────► HELPER
 *     │   it has other work        it wants to sleep
 *     └── and does not come back for a while ───► HELPER
 *
 * A thread attends if it has nothing to do but wait for operations: it polls the transport itself. An
 * operation then needs no second thread between call and result, which would have to be scheduled first.
 * Only the owner touches the members of struct transport that have no lock and are not atomic.
 *
 * The owner polls, yields its processor after a while without progress, and then sleeps until a message
 * comes or the bell rings. So threads do not keep each other from working where there are fewer
 * processors. Before it yields, it leaves a processor that too many ends share (wire_part).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "transport_i.h"

/*
 * Polls without progress before the first yield. Their number follows what polls have brought lately:
 * with more threads than processors they bring nothing.
 */
#define SPINS_LEAST 4u
#define SPINS_MOST  400u
/*
 * Time of yields without progress before a sleep. An attending thread's is longer: once it sleeps, a
 * message has to wake the helper, and the helper that thread.
 */
#define HELPER_NS 50000u
#define WAITER_NS 1000000u
/*
 * The helper's patience with a thread that has other work: it grows with one that keeps coming back, since
 * every look takes 10 µs of a processor.
 */
#define TICK_MS      1
#define TICK_MOST_MS 4

enum owner { HELPER, ASLEEP, WAITER, NOBODY };

static __thread const struct transport *mine; /* this thread owns it */

bool drive_mine(const struct transport *c)
{
	return mine == c;
}

static bool owner_change(struct transport *c, enum owner from, enum owner to)
{
	uint32_t was = from;

	/* pairs with itself, with hand_over() and with the fence of drive_bell() */
	return __atomic_compare_exchange_n(&c->owner, &was, to, false, __ATOMIC_SEQ_CST,
	                                   __ATOMIC_RELAXED);
}

static void ring(int bell)
{
	uint64_t one = 1;

	if (write(bell, &one, sizeof(one)) < 0)
		return; /* it has rung so often that it cannot be missed */
}

void drive_bell(struct transport *c)
{
	/* Pairs with owner_change() in helper_sleep(): either we see that it sleeps, or it our news. */
	__atomic_store_n(&c->news, 1, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&c->owner, __ATOMIC_RELAXED) == ASLEEP)
		ring(c->bell);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

/* How long a thread has looked without progress, and for how long it does. */
struct patience {
	uint64_t since;
	uint32_t idle, spins, ns;
};

/* There was progress. */
static void rewarded(struct patience *p)
{
	/* Also if the first yield has brought it: the spins were in vain. */
	if (p->idle >= p->spins && p->spins > SPINS_LEAST)
		p->spins -= p->spins / 4;
	else if (p->idle && p->idle < p->spins && p->spins < SPINS_MOST)
		p->spins += 1 + p->spins / 4;
	p->idle = 0;
}

/* After a turn. false: sleep. */
static bool patient(struct transport *c, struct patience *p, bool any)
{
	if (any) {
		rewarded(p);
		return true;
	}
	if (++p->idle < p->spins)
		return true;
	if (p->idle == p->spins)
		p->since = now_ns();
	if (mine)
		wire_part(c);
	sched_yield();
	if (now_ns() - p->since < p->ns)
		return true;
	p->idle = 0;
	return false;
}

/* ------------------------------------------------------------------------------ the helper */

/* Clears the call; `owner` has the reason. */
static void hear(struct transport *c)
{
	uint64_t calls;

	if (read(c->call, &calls, sizeof(calls)) < 0)
		return; /* nobody has */
}

/* Sleeps until a message comes, the bell rings, or another thread has taken the transport. */
static void helper_sleep(struct transport *c)
{
	int ms;

	lock_may_wait("a message of another device");
	hear(c);
	if (wire_rest(c, &ms)) {
		owner_change(c, HELPER, ASLEEP);
		if (!__atomic_load_n(&c->news, __ATOMIC_RELAXED) &&
		    !__atomic_load_n(&c->stop, __ATOMIC_RELAXED))
			wire_sleep(c, ms);
		if (!owner_change(c, ASLEEP, HELPER)) {
			mine = NULL;
			return;
		}
	}
	wire_rise(c);
}

/* Waits until the other thread hands the transport back, or has not driven for a while. */
static void helper_stands_by(struct transport *c)
{
	struct pollfd call = { .fd = c->call, .events = POLLIN };
	uint32_t seen = 0, turns;
	bool before = false;
	int ms = TICK_MS;

	for (;;) {
		turns = __atomic_load_n(&c->turns, __ATOMIC_RELAXED);
		/* pairs with hand_over() */
		switch (__atomic_load_n(&c->owner, __ATOMIC_ACQUIRE)) {
		case HELPER:
			mine = c;
			return;
		case NOBODY:
			if (!(before && turns == seen) && !__atomic_load_n(&c->stop, __ATOMIC_RELAXED))
				break;
			if (!owner_change(c, NOBODY, HELPER))
				break;
			__atomic_store_n(&c->attends, 0, __ATOMIC_RELAXED);
			mine = c;
			return;
		default:
			break;
		}
		before = true;
		seen = turns;
		if (poll(&call, 1, ms) > 0)
			hear(c);
		else if (ms < TICK_MOST_MS)
			ms *= 2;
	}
}

static void *helper(void *arg)
{
	struct patience p = { .spins = SPINS_MOST, .ns = HELPER_NS };
	struct transport *c = arg;

	mine = c;
	/* pairs with drive_end() */
	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&c->attends, __ATOMIC_RELAXED) && owner_change(c, HELPER, NOBODY))
			mine = NULL;
		if (!mine)
			helper_stands_by(c);
		if (!patient(c, &p, comm_turn(c)))
			helper_sleep(c);
	}
	return NULL;
}

int drive_begin(struct transport *c)
{
	int rc = -pthread_create(&c->helper, NULL, helper, c);

	if (!rc)
		pthread_setname_np(c->helper, "comm");
	return rc;
}

void drive_end(struct transport *c)
{
	__atomic_store_n(&c->stop, 1, __ATOMIC_RELEASE);
	lock_may_wait("the transport's thread");
	drive_bell(c);
	ring(c->call);
	pthread_join(c->helper, NULL);
}

/* ------------------------------------------------------------------------------ a thread that waits */

static void take(struct transport *c)
{
	if (owner_change(c, NOBODY, WAITER)) {
		mine = c;
	} else if (owner_change(c, ASLEEP, WAITER)) {
		mine = c;
		wire_rise(c);
		ring(c->call); /* the helper stands by: this thread may get other work */
	}
}

static void hand_over(struct transport *c, enum owner to)
{
	mine = NULL;
	__atomic_store_n(&c->turns, c->turns + 1, __ATOMIC_RELAXED);
	__atomic_store_n(&c->owner, to, __ATOMIC_RELEASE);
	if (to == HELPER)
		ring(c->call);
}

bool drive(struct transport *c, bool (*more)(void *arg), void *arg)
{
	static __thread struct patience p = { .spins = SPINS_MOST, .ns = WAITER_NS };
	bool due;

	__atomic_store_n(&c->attends, 1, __ATOMIC_RELAXED);
	do {
		if (!mine)
			take(c);
		due = more(arg);
	} while (!due && patient(c, &p, mine && comm_turn(c)));
	if (due)
		rewarded(&p);
	else
		__atomic_store_n(&c->attends, 0, __ATOMIC_RELAXED);
	if (mine)
		hand_over(c, due ? NOBODY : HELPER);
	return due;
}
