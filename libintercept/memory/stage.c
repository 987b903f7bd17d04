// SPDX-License-Identifier: Apache-2.0
/*
 * stage.c - staging slots: parts of the arena through which pageable memory is copied
 *
 *   free ── stage_get ──► claimed ── stage_sent ──► busy until the device has stored `value` ──► free
 *                            └────── stage_put ──────────────────────────────────────────────► free
 *
 * Slots get their memory when they are first used.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>

#define SMALL 64u
#define LARGE 8u
#define SLOTS (SMALL + LARGE)

struct stages {			/* a session's; locks.stage */
	struct slot {
		uint64_t off;		/* 0: not allocated yet */
		uint64_t value;		/* the word has it when the slot is free */
		bool claimed;
		uint64_t ctx, stream;	/* where the record that frees it was sent */
	} slots[SLOTS];
	uint64_t words;			/* arena offset, 8 bytes a slot; 0: not there yet */
	unsigned int next[2];		/* small, large: the slot to try first */
};

CUresult stage_init(void)
{
	if (!here->stages)
		here->stages = malloc(sizeof(*here->stages));
	if (!here->stages)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(here->stages, 0, sizeof(*here->stages));
	return CUDA_SUCCESS;
}

static uint64_t *word_of(unsigned int i)
{
	struct stages *st = here->stages;

	return (uint64_t *)arena_at(st->words) + i;
}

static bool is_free(unsigned int i)
{
	struct stages *st = here->stages;

	return !st->slots[i].claimed &&
		__atomic_load_n(word_of(i), __ATOMIC_ACQUIRE) == st->slots[i].value;
}

/* A free slot of the class, or -1. */
static int pick(bool large)
{
	struct stages *st = here->stages;
	unsigned int n = large ? LARGE : SMALL, base = large ? SMALL : 0;

	for (unsigned int k = 0; k < n; k++) {
		unsigned int i = base + st->next[large]++ % n;

		if (is_free(i))
			return i;
	}
	return -1;
}

static void take(unsigned int i, struct stage *out)
{
	struct stages *st = here->stages;
	struct slot *s = &st->slots[i];
	uint64_t len = i < SMALL ? STAGE_SMALL : STAGE_LARGE;

	s->claimed = true;
	*out = (struct stage){ s->off, len, st->words + i * 8, ++s->value, i };
}

/* Allocate a claimed slot's memory, on its first use. */
static CUresult back(struct stage *s)
{
	struct stages *st = here->stages;
	CUresult rc;

	if (s->off)
		return CUDA_SUCCESS;
	rc = arena_alloc(s->len, 4096, NULL, &s->off);
	if (rc)
		stage_put(s);
	else
		st->slots[s->slot].off = s->off;
	return rc;
}

/* Allocate the slots' words in the first call. */
static CUresult make_words(void)
{
	struct stages *st = here->stages;
	uint64_t off;
	bool used;

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
	uint64_t ctx, stream;
	int i;

	TRY(make_words());
	for (;;) {
		any = false;
		lock_take(&here->locks.stage);
		i = pick(large);
		if (i >= 0)
			take(i, out);
		else
			any = !busiest(large, &ctx, &stream);
		lock_drop(&here->locks.stage);
		if (i >= 0)
			return back(out);
		if (any)
			TRY(wait_for(ctx, stream));
		else
			TRY(session_check());
	}
}

void stage_sent(struct stage *s, const struct context *ctx, const struct stream *on)
{
	struct stages *st = here->stages;

	lock_take(&here->locks.stage);
	st->slots[s->slot].ctx = ctx->o.handle;
	st->slots[s->slot].stream = on->wire;
	st->slots[s->slot].claimed = false;
	lock_drop(&here->locks.stage);
}

void stage_put(struct stage *s)
{
	struct stages *st = here->stages;

	lock_take(&here->locks.stage);
	__atomic_store_n(word_of(s->slot), s->value, __ATOMIC_RELEASE);
	st->slots[s->slot].claimed = false;
	lock_drop(&here->locks.stage);
}
