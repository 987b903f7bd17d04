// SPDX-License-Identifier: Apache-2.0
/*
 * stage.c - staging slots: parts of the arena through which pageable memory is copied
 *
 *   free ── stage_get ──► claimed ── stage_sent ──► busy until the device has stored `value` ──► free
 *                            ├── stage_give_up: a copy to the host has failed, and may come yet ──► busy
 *                            └────── stage_put ──────────────────────────────────────────────► free
 *
 * Slots get their memory when they are first used. Copies into a stream that waits for other ranks keep theirs, and
 * the program may have to do something else before these come: so a process that has had a communicator gets
 * further slots when all are busy, by sets, and waits for one only when there is no memory for them.
 */
#include "arena.h"
#include "object.h"
#include "send.h"

#include <stdlib.h>
#include <string.h>

#define SMALL 64u
#define LARGE 8u
#define SLOTS (SMALL + LARGE)
#define SETS 64u

struct stages {			/* a set of slots; locks.stage */
	struct slot {
		uint64_t off;		/* 0: not allocated yet */
		uint64_t value;		/* the word has it when the slot is free */
		bool claimed;
		uint64_t ctx, stream;	/* where the record that frees it was sent */
	} slots[SLOTS];
	uint64_t words;			/* arena offset, 8 bytes a slot; 0: not there yet */
	unsigned int next[2];		/* small, large: the slot to try first */
	struct stages *more;		/* the next set, or NULL; atomic */
};

static void forget_sets(struct stages *st)
{
	struct stages *next;

	for (; st; st = next) {
		next = st->more;
		free(st);
	}
}

CUresult stage_begin(void)
{
	forget_sets(here->stages);
	here->stages = calloc(1, sizeof(*here->stages));
	return here->stages ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static uint64_t *word_of(const struct stages *st, unsigned int i)
{
	return (uint64_t *)arena_at(st->words) + i;
}

static bool is_free(const struct stages *st, unsigned int i)
{
	/* pairs with stage_put(), and with store_word() of the proxy or its device's write */
	return !st->slots[i].claimed &&
		__atomic_load_n(word_of(st, i), __ATOMIC_ACQUIRE) == st->slots[i].value;
}

/* A free slot of the class, or -1. */
static int pick(struct stages *st, bool large)
{
	unsigned int n = large ? LARGE : SMALL, base = large ? SMALL : 0;

	for (unsigned int k = 0; k < n; k++) {
		unsigned int i = base + st->next[large]++ % n;

		if (is_free(st, i))
			return i;
	}
	return -1;
}

static void take(struct stages *st, unsigned int i, struct stage *out)
{
	struct slot *s = &st->slots[i];
	uint64_t len = i < SMALL ? STAGE_SMALL : STAGE_LARGE;

	s->claimed = true;
	*out = (struct stage){ s->off, len, st->words + i * 8, ++s->value, i, st };
}

/* Allocate a claimed slot's memory, on its first use. */
static CUresult back(struct stage *s)
{
	CUresult rc;

	if (s->off)
		return CUDA_SUCCESS;
	rc = arena_alloc(s->len, 4096, NULL, &s->off);
	if (rc)
		stage_put(s);
	else
		s->set->slots[s->slot].off = s->off;
	return rc;
}

/* Allocate the first set's words in the first call. */
static CUresult make_words(void)
{
	struct stages *st = here->stages;
	uint64_t off;
	bool used;

	/* pairs with the store below */
	if (likely(__atomic_load_n(&st->words, __ATOMIC_ACQUIRE)))
		return CUDA_SUCCESS;
	TRY(arena_alloc(SLOTS * 8, 64, NULL, &off));
	memset(arena_at(off), 0, SLOTS * 8);	/* it may have been used for something else */
	lock_take(&here->locks.stage);
	used = !st->words;
	if (used)
		__atomic_store_n(&st->words, off, __ATOMIC_RELEASE);
	lock_drop(&here->locks.stage);
	if (!used)
		arena_free(off);
	return CUDA_SUCCESS;
}

/* Adds a set behind the n-th, if that is the last one. */
static CUresult add_set(unsigned int n)
{
	struct stages *st = here->stages, *new;
	CUresult rc;

	if (n >= SETS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	new = calloc(1, sizeof(*new));
	if (!new)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = arena_alloc(SLOTS * 8, 64, NULL, &new->words);
	if (rc) {
		free(new);
		return rc;
	}
	memset(arena_at(new->words), 0, SLOTS * 8);
	lock_take(&here->locks.stage);
	while (--n && st->more)
		st = st->more;
	if (!st->more) {
		st->more = new;
		new = NULL;
	}
	lock_drop(&here->locks.stage);
	if (new) {
		arena_free(new->words);
		free(new);
	}
	return CUDA_SUCCESS;
}

/* Wait for the stream on which a busy slot was sent. */
static CUresult wait_for(uint64_t ctx, uint64_t stream)
{
	struct sv_sync_on a = { ctx, stream };

	return send_sync(SV_OP_cuStreamSynchronize, &a, sizeof(a), NULL, 0, NULL, 0);
}

static CUresult busiest(bool large, uint64_t *ctx, uint64_t *stream)
{
	struct stages *st = here->stages;
	unsigned int n = large ? LARGE : SMALL, base = large ? SMALL : 0;

	for (unsigned int i = base; i < base + n; i++)
		if (!st->slots[i].claimed) {
			*ctx = st->slots[i].ctx;
			*stream = st->slots[i].stream;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_READY;	/* other threads have claimed all, for a moment */
}

CUresult stage_get(uint64_t want, struct stage *out)
{
	bool large = want > STAGE_SMALL, any;
	uint64_t ctx = 0, stream = 0;
	struct stages *st;
	unsigned int sets;
	int i;

	TRY(make_words());
	for (;;) {
		any = false;
		i = -1;
		sets = 0;
		lock_take(&here->locks.stage);
		for (st = here->stages; st && i < 0; st = st->more, sets++) {
			i = pick(st, large);
			if (i >= 0)
				take(st, i, out);
		}
		if (i < 0)
			any = !busiest(large, &ctx, &stream);
		lock_drop(&here->locks.stage);
		if (i >= 0) {
			CUresult rc = back(out);

			/* A further set's slot without memory: one that has some is waited for. */
			if (!rc || out->set == here->stages)
				return rc;
			lock_take(&here->locks.stage);
			any = !busiest(large, &ctx, &stream);
			lock_drop(&here->locks.stage);
			TRY(any ? wait_for(ctx, stream) : session_check());
			continue;
		}
		if (process_has_posted() && !add_set(sets))
			continue;
		if (any)
			TRY(wait_for(ctx, stream));
		else
			TRY(session_check());
	}
}

void stage_sent(struct stage *s, const struct context *ctx, const struct stream *on)
{
	struct stages *st = s->set;

	lock_take(&here->locks.stage);
	st->slots[s->slot].ctx = ctx->o.handle;
	st->slots[s->slot].stream = on->wire;
	st->slots[s->slot].claimed = false;
	lock_drop(&here->locks.stage);
}

void stage_give_up(struct stage *s, const struct context *ctx, uint64_t stream)
{
	struct sv_cuStreamWriteValue64_v2 a = { .ctx = ctx->o.handle, .stream = stream, .value = s->value,
						.addr = sv_u64(arena_at(s->word)) };

	if (send_async(SV_OP_cuStreamWriteValue64_v2, &a, sizeof(a), NULL, 0)) {
		stage_put(s);		/* the context is broken, and copies nothing more */
		return;
	}
	lock_take(&here->locks.stage);
	s->set->slots[s->slot].ctx = a.ctx;
	s->set->slots[s->slot].stream = stream;
	s->set->slots[s->slot].claimed = false;
	lock_drop(&here->locks.stage);
}

void stage_put(struct stage *s)
{
	struct stages *st = s->set;

	lock_take(&here->locks.stage);
	__atomic_store_n(word_of(st, s->slot), s->value, __ATOMIC_RELEASE);
	st->slots[s->slot].claimed = false;
	lock_drop(&here->locks.stage);
}
