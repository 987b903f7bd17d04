// SPDX-License-Identifier: Apache-2.0
/*
 * reap.c - the ends of NCCL's communicators: ncclCommAbort and ncclCommDestroy, each call on a thread of its own
 *
 *   reap_begin ──► due ── unless nccl_halt() ──► calls ── NCCL returns ──► over ── reaps_run ──► freed
 *
 * Both calls wait until the device has nothing to do, and for the same call of other ranks. A stream of the program may
 * be waiting for a word that the transport's thread stores, so that thread may make neither call. Several calls may run at
 * once: before ncclCommAbort waits, it tells the kernels of its communicator to stop. NCCL 2.22 has groups of aborts
 * for that, but a group ends with its slowest abort, and takes none that comes later.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_i.h"

uint64_t nccl_patience_ns = 10000000000ull;
uint64_t nccl_note_ns = 2000000000ull;

uint64_t nccl_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static const char *name_of(const struct reap *r)
{
	return r->destroys ? "ncclCommDestroy" : "ncclCommAbort";
}

static void *call(void *arg)
{
	struct reap *r = arg;
	struct transport *c = r->c;

	c->h->drv.cuCtxSetCurrent(c->h->primary);
	lock_may_wait("NCCL");
	/* Whatever it returns, the handle is gone. */
	r->result = r->destroys ? c->nccl.ncclCommDestroy(r->comm) : c->nccl.ncclCommAbort(r->comm);
	lock_take(&c->lock);
	r->state = REAP_OVER;
	nccl_kick(c);
	pthread_cond_broadcast(&c->idle);
	lock_drop(&c->lock);
	return NULL;
}

void reap_begin(struct transport *c, struct group *g, bool destroys, uint64_t note)
{
	struct reap *r = g->reap;

	*r = (struct reap){ .c = c, .comm = g->comm, .note = note, .ranks = g->ranks, .rank = g->rank,
			    .destroys = destroys, .since_ns = nccl_now_ns() };
	g->reap = NULL;
	g->comm = NULL;
	lock_take(&c->lock);
	r->next = c->reaps;
	c->reaps = r;
	lock_drop(&c->lock);
	reaps_run(c);
}

/* One that is over, taken out of the list; or one that is due, whose call begins. lock */
static struct reap *next_reap(struct transport *c)
{
	struct reap **at, *r;

	assert_held(&c->lock);
	for (at = &c->reaps; (r = *at); at = &r->next)
		if (r->state == REAP_OVER || (r->state == REAP_DUE && !c->halted))
			break;
	if (r && r->state == REAP_OVER)
		*at = r->next;
	return r;
}

static void finish(struct transport *c, struct reap *r)
{
	pthread_join(r->thread, NULL);
	if (r->result)
		nccl_say(c, "NCCL, rank %u of %u: %s: %s", r->rank, r->ranks, name_of(r),
			 c->nccl.ncclGetErrorString(r->result));
	if (!r->note) {
		free(r);
		return;
	}
	/* NCCL may have waited for some of the other ranks only, so the note stays for those that have not read it. */
	r->since_ns = nccl_now_ns();
	r->next = c->notes;
	c->notes = r;
}

bool notes_run(struct transport *c, bool all)
{
	uint64_t now = nccl_now_ns();
	struct reap **at = &c->notes, *r;

	while ((r = *at)) {
		if (!all && now - r->since_ns < nccl_note_ns) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		c->o.note(c->o.arg, r->note, NULL, 0);
		free(r);
	}
	return c->notes;
}

/* Names what has been under way for too long, once. */
static void say_late(struct transport *c)
{
	uint64_t now = nccl_now_ns();
	struct reap *r;

	lock_take(&c->lock);
	for (r = c->reaps; r; r = r->next)
		if (!r->said && r->state != REAP_OVER && now - r->since_ns > nccl_patience_ns)
			break;
	lock_drop(&c->lock);
	if (!r)
		return;
	r->said = true;
	nccl_say(c, "NCCL, rank %u of %u: %s has not returned for %.1f s: it waits for the device, or for other ranks of the "
		 "communicator", r->rank, r->ranks, name_of(r), (now - r->since_ns) / 1e9);
}

bool reaps_run(struct transport *c)
{
	struct reap *r;
	bool over, left;

	do {
		lock_take(&c->lock);
		r = next_reap(c);
		left = c->reaps;
		over = r && r->state == REAP_OVER;
		if (r && !over)
			r->state = REAP_CALLS;
		lock_drop(&c->lock);
		if (over) {
			finish(c, r);
		} else if (r && nccl_thread(&r->thread, call, r, "nccl-end")) {
			/* No thread: at the next look. */
			lock_take(&c->lock);
			r->state = REAP_DUE;
			lock_drop(&c->lock);
			r = NULL;
		}
	} while (r);
	if (left)
		say_late(c);
	return left;
}

uint32_t reaps_count(struct transport *c)
{
	uint32_t n = 0;

	assert_held(&c->lock);
	for (struct reap *r = c->reaps; r; r = r->next)
		n += r->state == REAP_CALLS;
	return n;
}

bool nccl_halt(struct transport *c, bool on)
{
	bool none;

	lock_take(&c->lock);
	none = !reaps_count(c);
	c->halted = on && none;
	lock_drop(&c->lock);
	return none;
}
