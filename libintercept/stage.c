// SPDX-License-Identifier: Apache-2.0
/*
 * stage.c - slots of the arena through which pageable memory passes
 *
 *   free ── stage_get ──► claimed ── stage_sent ──► busy until the device has stored `value` ──► free
 *                            └────── stage_put ──────────────────────────────────────────────► free
 *
 * Slots get their memory when they are first used.
 */
#include "client.h"

#include <string.h>

#define SMALL 64u
#define LARGE 8u
#define SLOTS (SMALL + LARGE)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct slot {
	uint64_t off;		/* 0: no memory yet */
	uint64_t value;		/* the word has it when the slot is free */
	bool claimed;
	uint64_t ctx, stream;	/* where the record that frees it was sent */
} slots[SLOTS];

static uint64_t words;		/* arena offset of the words, 8 bytes a slot; 0: not there yet */

void stage_init(void)
{
	memset(slots, 0, sizeof(slots));
	words = 0;
}

static uint64_t *word_of(unsigned int i)
{
	return (uint64_t *)arena_at(words) + i;
}

static bool is_free(unsigned int i)
{
	return !slots[i].claimed &&
		__atomic_load_n(word_of(i), __ATOMIC_ACQUIRE) == slots[i].value;
}

/* A free slot of the class, or -1. */
static int pick(bool large)
{
	static unsigned int next[2];
	unsigned int n = large ? LARGE : SMALL, base = large ? SMALL : 0;

	for (unsigned int k = 0; k < n; k++) {
		unsigned int i = base + next[large]++ % n;

		if (is_free(i))
			return i;
	}
	return -1;
}

static CUresult take(unsigned int i, struct stage *out)
{
	struct slot *s = &slots[i];
	uint64_t len = i < SMALL ? STAGE_SMALL : STAGE_LARGE;

	if (!s->off)
		TRY(arena_alloc(len, 4096, NULL, &s->off));
	s->claimed = true;
	*out = (struct stage){ s->off, len, words + i * 8, ++s->value, i };
	return CUDA_SUCCESS;
}

/* All are busy: wait for the stream that the next one in turn was sent on. */
static CUresult wait_for(uint64_t ctx, uint64_t stream)
{
	struct sv_sync_on a = { ctx, stream };

	return send_sync(SV_OP_cuStreamSynchronize, &a, sizeof(a), NULL, 0, NULL, 0);
}

static CUresult busiest(bool large, uint64_t *ctx, uint64_t *stream)
{
	unsigned int n = large ? LARGE : SMALL, base = large ? SMALL : 0;

	for (unsigned int i = base; i < base + n; i++)
		if (!slots[i].claimed) {
			*ctx = slots[i].ctx;
			*stream = slots[i].stream;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_READY;	/* other threads hold them all, for a moment */
}

CUresult stage_get(uint64_t want, struct stage *out)
{
	bool large = want > STAGE_SMALL, any;
	uint64_t ctx, stream;
	CUresult rc;
	int i;

	for (;;) {
		rc = CUDA_SUCCESS;
		any = false;
		pthread_mutex_lock(&lock);
		if (!words) {
			rc = arena_alloc(SLOTS * 8, 64, NULL, &words);
			if (!rc)	/* it may have been used for something else */
				memset(arena_at(words), 0, SLOTS * 8);
		}
		if (rc) {
			pthread_mutex_unlock(&lock);
			return rc;
		}
		i = pick(large);
		if (i >= 0)
			rc = take(i, out);
		else
			any = !busiest(large, &ctx, &stream);
		pthread_mutex_unlock(&lock);
		if (i >= 0)
			return rc;
		if (any)
			TRY(wait_for(ctx, stream));
		else
			TRY(session_check());
	}
}

void stage_sent(struct stage *s, const struct context *ctx, const struct stream *on)
{
	pthread_mutex_lock(&lock);
	slots[s->slot].ctx = ctx->o.handle;
	slots[s->slot].stream = on->wire;
	slots[s->slot].claimed = false;
	pthread_mutex_unlock(&lock);
}

void stage_put(struct stage *s)
{
	pthread_mutex_lock(&lock);
	__atomic_store_n(word_of(s->slot), s->value, __ATOMIC_RELEASE);
	slots[s->slot].claimed = false;
	pthread_mutex_unlock(&lock);
}
