/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - the client's part of the arena, and staging slots in it
 */
#ifndef ARENA_H
#define ARENA_H

#include "process.h"

/* -------------------------------------------------------------------------------- as hooks.h says */

LOCAL CUresult arena_begin(void);
LOCAL void arena_part(const struct session *s);
LOCAL CUresult stage_begin(void);

/* ---------------------------------------------------------------------------------------- arena.c */

/*
 * The client's part of the arena. Ranges are backed, and pinned for the device, before they are
 * allocated: allocating and freeing may wait. Offsets count from the arena's start, as in records.
 */
LOCAL CUresult arena_alloc(uint64_t len, uint64_t align, void *owner, uint64_t *off);
LOCAL CUresult arena_zeroed(uint64_t len, uint64_t align, uint64_t *off);	/* the bytes are 0 */
LOCAL void arena_free(uint64_t off);
LOCAL void arena_own(uint64_t off, void *owner);	/* new owner of the allocation at off */
LOCAL bool arena_find(uint64_t off, uint64_t *base, uint64_t *len, void **owner);
LOCAL bool arena_each(bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg);

/* Zeroed arena memory for one reply or a short text; a thread may hold several. */
LOCAL void *arena_reply(uint64_t len, uint64_t *off);
LOCAL void arena_reply_done(uint64_t off);

/* ---------------------------------------------------------------------------------------- stage.c */

/*
 * Copies of pageable memory pass through staging slots in the arena. A slot is busy until the
 * device has stored `value` in the slot's word, or its user calls stage_put().
 */
struct stage {
	uint64_t off, len;	/* the slot's place and size */
	uint64_t word;		/* arena offset */
	uint64_t value;		/* the word has this value when the slot is free again */
	unsigned int slot;
	struct stages *set;
};

#define STAGE_SMALL (64u << 10)
#define STAGE_LARGE (2u << 20)

/* A slot of want bytes or fewer; waits for the device if all are busy. */
LOCAL CUresult stage_get(uint64_t want, struct stage *out);

/* Called after sending, on this stream, the record that stores into the slot's word. */
LOCAL void stage_sent(struct stage *s, const struct context *ctx, const struct stream *on);

/* Free a slot that no record in flight uses. */
LOCAL void stage_put(struct stage *s);

/* Its copy to the host was answered with an error, and may come yet: its stream frees it behind that. */
LOCAL void stage_give_up(struct stage *s, const struct context *ctx, uint64_t stream);

#endif
