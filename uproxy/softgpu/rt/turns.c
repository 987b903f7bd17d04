// SPDX-License-Identifier: Apache-2.0
/*
 * turns.c - runs blocks in parallel, but their atomics in turns, so that results are reproducible
 *
 * If blocks distribute work by an atomic, or add up in an order that they wait for, the order of
 * these accesses determines the kernel's result.  Blocks are placed in slots, whose number does not
 * depend on the number of workers.  The turn passes round the slots; only the block that has it may
 * perform an atomic or a strong access (insn_needs_turn()).  A turn ends some barriers after the
 * last such access, or when the block yields in a loop; a block that ends in its turn leaves the
 * turn to the slot's next block.  So a turn's end depends only on its own block.  Blocks read
 * nothing else that other blocks write (can_take_turns()), so the order of turns determines the
 * result: the same bits with one worker or many.
 *
 * A slot belongs to the worker that claimed it, until the worker has more than its share.  Workers
 * also check the turn at each barrier, so that a block whose turn it is does not wait while its
 * worker runs another.  When many turns pass and no block ends, a block may wait for one that has
 * not begun: then slots are added.
 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "rt_i.h"

enum {
	SLOTS = 16,		/* at first */
	BARRIERS = 2,		/* of a turn after its last access: the next is often behind one */
	STALE = 64,		/* turns per slot in which no block ends, before slots are added */
	STALE_LOOP = 8,		/* weight of a turn that ended in a loop, not at a barrier */
	NO_SLOT = UINT32_MAX,	/* the turn, when all slots are retired */
	LOOKS = 256,		/* polls of the turn before a worker sleeps */
	NAP_NS = 1000000,	/* longest sleep: a fault or a stop wakes no worker */
};

static bool is_retired(const struct rt_run *r, uint32_t slot)
{
	return r->retired[slot / 64] >> slot % 64 & 1;
}

void rt_turns_init(struct rt_run *r)
{
	r->by_turns = true;
	r->nslots = r->nblocks < SLOTS ? r->nblocks : SLOTS;
}

/* Adds slots: a block may wait for one that has not begun. */
static void add_slots(struct rt_run *r)
{
	uint64_t most = r->l->resident ? r->l->resident : 64, n = atomic_load(&r->nslots);

	if (most > RT_MAX_SLOTS)
		most = RT_MAX_SLOTS;
	r->stale = 0;
	if (atomic_load(&r->taken) == r->nblocks || n >= most)
		return;
	n += 1 + n / 4;
	atomic_store(&r->nslots, n < most ? n : most);
}

/* @loops: the block yields in a loop, where it may wait for another block. */
void rt_turn_end(struct rt_block *b, bool loops)
{
	struct rt_run *r = b->worker->run;
	uint32_t slot = b->slot, n;

	b->has_turn = false;
	r->stale += loops ? STALE_LOOP : 1;
	if (r->stale >= STALE * atomic_load(&r->nslots))
		add_slots(r);
	n = atomic_load(&r->nslots);
	do
		slot = (slot + 1) % n;
	while (is_retired(r, slot) && slot != b->slot);
	if (is_retired(r, slot))
		slot = NO_SLOT;
	atomic_store(&r->turn, slot);
	if (atomic_load(&r->asleep))
		syscall(SYS_futex, &r->turn, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static bool try_turn(struct rt_block *b)
{
	if (!b->has_turn)
		b->has_turn = atomic_load(&b->worker->run->turn) == b->slot;
	return b->has_turn;
}

/* Called by compiled code before an access that needs the turn. */
void rt_turn(struct rt_warp *w)
{
	struct rt_block *b = w->block;

	if (!b->worker->run->by_turns)
		return;
	while (!try_turn(b)) {
		b->wants_turn = b->paused = true;
		rt_to_main(b->worker);
	}
	b->wants_turn = false;
	b->barriers = 0;
}

/* This worker's block in the slot that has the turn, if it needs the turn; or NULL. */
static struct rt_block *called(struct rt_worker *wk, uint32_t turn)
{
	struct rt_block *b;

	for (b = wk->blocks; b; b = b->next)
		if (b->slot == turn && (!b->active || b->wants_turn))
			return b;
	return NULL;
}

/* All warps of @b have reached a barrier; a caller on a fiber is the last of them. */
void rt_turn_barrier(struct rt_block *b)
{
	if (b->has_turn && ++b->barriers >= BARRIERS)
		rt_turn_end(b, false);
}

void rt_turn_look(struct rt_block *b)
{
	struct rt_worker *wk = b->worker;
	uint32_t turn = atomic_load(&wk->run->turn);

	if (b->has_turn || turn == wk->looked)
		return;
	wk->looked = turn;
	if (called(wk, turn)) {
		b->paused = true;
		rt_to_main(wk);
	}
}

/* The most slots that a worker should have. */
static uint32_t share(struct rt_run *r)
{
	uint32_t n = atomic_load(&r->nworkers);

	return (atomic_load(&r->nslots) + n - 1) / n;
}

/* Claims the slot whose turn it is, if it has no worker and this worker has less than its share. */
static bool claim(struct rt_worker *wk, uint32_t slot)
{
	struct rt_run *r = wk->run;
	uint64_t bit = 1ull << slot % 64;
	struct rt_block *b;

	if (slot == NO_SLOT || wk->nslots >= share(r) ||
	    (atomic_fetch_or(&r->claimed[slot / 64], bit) & bit))
		return false;
	for (b = wk->blocks; b && b->slot != NO_SLOT; b = b->next)
		;
	if (!b)
		b = rt_block_new(wk);
	if (!b) {
		rt_record(r, PTX_NOMEM, 0, NULL, 0, NULL);
		wk->aborted = true;
		return false;
	}
	b->slot = slot;
	wk->nslots++;
	return true;
}

/* Gives up a slot, whose turn it is, to a worker that joined later and has too few. */
static void give_up(struct rt_worker *wk, struct rt_block *b)
{
	uint32_t slot = b->slot;

	b->has_turn = false;
	b->slot = NO_SLOT;
	wk->nslots--;
	atomic_fetch_and(&wk->run->claimed[slot / 64], ~(1ull << slot % 64));
}

/* Starts the slot's next block; if none is left, retires the slot. */
static void next_block(struct rt_worker *wk, struct rt_block *b)
{
	struct rt_run *r = wk->run;
	uint64_t i = atomic_load(&r->taken);

	r->stale = 0;
	b->barriers = 0;
	if (i < r->nblocks) {
		atomic_store(&r->taken, i + 1);
		rt_block_init(wk, b, i);
	} else {
		r->retired[b->slot / 64] |= 1ull << b->slot % 64;
		rt_turn_end(b, false);
		b->slot = NO_SLOT;
		wk->nslots--;
	}
}

/* Runs a slot until it must wait for its turn, or another block of this worker should run. */
static void run_slot(struct rt_worker *wk, struct rt_block *b)
{
	do {
		if (b->active) {
			if (!rt_round(wk, b) && !wk->aborted) {
				rt_record(wk->run, PTX_DEADLOCK, 0, &b->warp[0], 0,
					  "threads wait at a barrier that no other thread can reach");
				wk->aborted = true;
			}
		} else if (!try_turn(b)) {
			break;
		} else if (wk->nslots > share(wk->run)) {
			give_up(wk, b);
		} else {
			next_block(wk, b);
		}
	} while (!wk->aborted && b->slot != NO_SLOT && !b->paused);
}

/* Of the blocks that can run without the turn, the one that gets it first. */
static struct rt_block *next_to_compute(struct rt_worker *wk, uint32_t turn)
{
	uint32_t n = atomic_load(&wk->run->nslots), far, least = UINT32_MAX;
	struct rt_block *b, *best = NULL;

	for (b = wk->blocks; b; b = b->next) {
		if (!b->active || b->wants_turn)
			continue;
		far = (b->slot + n - turn % n) % n;
		if (far < least) {
			least = far;
			best = b;
		}
	}
	return best;
}

static void wait_for_turn(struct rt_run *r, uint32_t seen)
{
	const struct timespec nap = { .tv_nsec = NAP_NS };
	unsigned int i;

	for (i = 0; i < LOOKS; i++) {
		if (atomic_load(&r->turn) != seen)
			return;
		_mm_pause();
	}
	atomic_fetch_add(&r->asleep, 1);
	syscall(SYS_futex, &r->turn, FUTEX_WAIT_PRIVATE, seen, &nap, NULL, 0);
	atomic_fetch_sub(&r->asleep, 1);
}

void rt_turns_run(struct rt_worker *wk)
{
	struct rt_run *r = wk->run;
	struct rt_block *b;
	uint32_t turn;

	atomic_fetch_add(&r->nworkers, 1);
	while (!wk->aborted && !atomic_load(&r->abort)) {
		if (r->l->stop && __atomic_load_n(r->l->stop, __ATOMIC_RELAXED)) {
			rt_record(r, PTX_STOPPED, 0, NULL, 0, NULL);
			break;
		}
		turn = atomic_load(&r->turn);
		if (turn == NO_SLOT)
			break;
		b = called(wk, turn);
		if (!b && claim(wk, turn))
			continue;
		wk->looked = turn;
		if (!b)
			b = next_to_compute(wk, turn);
		if (b)
			run_slot(wk, b);
		else
			wait_for_turn(r, turn);
	}
	atomic_fetch_sub(&r->nworkers, 1);
}
