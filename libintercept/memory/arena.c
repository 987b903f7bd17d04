// SPDX-License-Identifier: Apache-2.0
/*
 * arena.c - the client's part of the arena, in chunks that are backed and pinned while in use
 *
 * One record pins a run of chunks, and one unpins the whole run. An allocation lies in one run:
 * NVIDIA's driver refuses a copy that straddles two regions of cuMemHostRegister. Up to CACHE_MAX
 * bytes of chunks without allocations stay pinned for later allocations; beyond that, unused runs
 * are unpinned and their pages freed.
 *
 *   0 ── allocated, record sent ──► PINNED ── CACHE_MAX, nothing in its run ──► PINNED | GOING ── answered ──► 0
 *
 * A thread that allocates in a chunk that is GOING waits until the unpin is answered, and pins it
 * anew.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK		(2ull << 20)
#define CACHE_MAX	(64ull << 20)
#define PINNED		0x80000000u
#define GOING		0x40000000u
#define MISFITS		64	/* places in several runs that an allocation passes over */

struct chunks {			/* a session's; locks.arena */
	struct space *space;
	uint32_t *of;		/* per chunk: PINNED | GOING | number of allocations */
	uint32_t *run;		/* per chunk: the first chunk of the run that it was pinned in */
	uint64_t n;
	uint64_t cached;	/* bytes of pinned chunks without allocations */
	pthread_cond_t gone;	/* chunks that were GOING */
};

CUresult arena_init(void)
{
	uint64_t len = ring_geometry(session.ring)->arena_len;
	uint64_t first = (session.shared->arena_first + CHUNK - 1) & -CHUNK;
	struct chunks *ch = session.chunks;

	if (!ch)
		ch = session.chunks = calloc(1, sizeof(*ch));
	if (!ch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (ch->of)
		munmap(ch->of, 2 * ch->n * sizeof(*ch->of));
	if (ch->space)
		space_free(ch->space);
	*ch = (struct chunks){ .n = len / CHUNK, .gone = PTHREAD_COND_INITIALIZER };
	ch->of = mmap(NULL, 2 * ch->n * sizeof(*ch->of), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ch->of == MAP_FAILED || first >= ch->n * CHUNK) {
		ch->of = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ch->run = ch->of + ch->n;
	ch->space = space_new(first, ch->n * CHUNK - first);
	return ch->space ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Back n chunks and send their X_PIN. SEND_AGAIN: nothing was sent. */
static CUresult pin(uint64_t first, uint64_t n)
{
	struct chunks *ch = session.chunks;
	struct sv_pin a = { first * CHUNK, n * CHUNK };
	CUresult rc;

	TRY(session_rc(ring_commit(session.ring, a.off, a.len)));
	rc = send_try(SV_OP_X_PIN, &a, sizeof(a));
	for (uint64_t i = first; !rc && i < first + n; i++) {
		ch->of[i] |= PINNED;
		ch->run[i] = first;
	}
	return rc;
}

/*
 * Pin chunks [first, end), which all have allocations, as one run, unless one run has them all.
 * *fits false: others have pinned some of them. locks.arena is held.
 */
static CUresult pin_whole(uint64_t first, uint64_t end, bool *fits)
{
	struct chunks *ch = session.chunks;
	uint64_t i;
	bool pinned;

	/* Waiting drops the lock, so all are looked at again. */
	for (i = first; i < end; i++)
		if (ch->of[i] & GOING) {
			lock_wait(&session.locks.arena, &ch->gone);
			i = first - 1;
		}
	pinned = ch->of[first] & PINNED;
	*fits = true;
	for (i = first + 1; i < end; i++)
		if (pinned != !!(ch->of[i] & PINNED) ||
		    (pinned && ch->run[i] != ch->run[first]))
			*fits = false;
	return *fits && !pinned ? pin(first, end - first) : CUDA_SUCCESS;
}

static void hold(uint64_t first, uint64_t end)
{
	struct chunks *ch = session.chunks;

	for (uint64_t i = first; i < end; i++)
		if (ch->of[i]++ == PINNED)
			ch->cached -= CHUNK;
}

/* The record that unpins chunk i's run; false: the run has allocations. locks.arena is held. */
static bool unused_run(uint64_t i, struct sv_pin *a)
{
	struct chunks *ch = session.chunks;
	uint64_t first = ch->run[i], end = first;

	for (; end < ch->n && (ch->of[end] & PINNED) && ch->run[end] == first; end++)
		if (ch->of[end] != PINNED)
			return false;
	*a = (struct sv_pin){ first * CHUNK, (end - first) * CHUNK };
	return true;
}

/* Unpin a run. locks.arena is held, and dropped while the proxy works. */
static void unpin(const struct sv_pin *a)
{
	struct chunks *ch = session.chunks;
	uint64_t first = a->off / CHUNK, end = first + a->len / CHUNK;
	CUresult rc;

	for (uint64_t i = first; i < end; i++)
		ch->of[i] |= GOING;
	ch->cached -= a->len;
	lock_drop(&session.locks.arena);
	/* Answered, since the device must unpin the pages before they are freed. */
	rc = send_sync(SV_OP_X_UNPIN, a, sizeof(*a), NULL, 0, NULL, 0);
	if (!rc)
		ring_decommit(session.ring, a->off, a->len);
	lock_take(&session.locks.arena);
	for (uint64_t i = first; i < end; i++) {
		ch->of[i] &= ~(rc ? GOING : GOING | PINNED);
		if (ch->of[i] == PINNED)
			ch->cached += CHUNK;
	}
	pthread_cond_broadcast(&ch->gone);
}

static void unhold(uint64_t first, uint64_t end)
{
	struct chunks *ch = session.chunks;

	for (uint64_t i = first; i < end; i++)
		if (--ch->of[i] == PINNED)
			ch->cached += CHUNK;
}

/* Unpin unused runs that have chunks of [first, end), until at most keep bytes are cached. */
static void unpin_unused(uint64_t first, uint64_t end, uint64_t keep)
{
	struct chunks *ch = session.chunks;
	struct sv_pin a;

	for (uint64_t i = first; i < end && ch->cached > keep; i++)
		if (ch->of[i] == PINNED && unused_run(i, &a))
			unpin(&a);
}

static void release(uint64_t off, uint64_t len)
{
	struct chunks *ch = session.chunks;
	uint64_t first = off / CHUNK, end = (off + len - 1) / CHUNK + 1;

	space_release(ch->space, off);
	unhold(first, end);
	unpin_unused(first, end, CACHE_MAX);
}

/* A place of room bytes, held; *fits false: it lies in several runs. No success: there is none. */
static CUresult take_place(uint64_t room, uint64_t align, uint64_t *at, bool *fits)
{
	struct chunks *ch = session.chunks;
	uint64_t first, end;
	CUresult rc;

	lock_take(&session.locks.arena);
	*at = space_alloc(ch->space, room, align, 0, NULL);
	if (!*at) {
		lock_drop(&session.locks.arena);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	first = *at / CHUNK;
	end = (*at + room - 1) / CHUNK + 1;
	hold(first, end);
	rc = pin_whole(first, end, fits);
	lock_drop(&session.locks.arena);
	while (send_again(&rc, sizeof(struct sv_pin))) {
		lock_take(&session.locks.arena);
		rc = pin_whole(first, end, fits);
		lock_drop(&session.locks.arena);
	}
	if (rc)
		arena_free(*at);
	return rc;
}

/* A place within one run. Places in several are held meanwhile, so that others are tried. */
static CUresult find_place(uint64_t room, uint64_t align, uint64_t *at)
{
	uint64_t misfits[MISFITS];
	CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
	uint32_t n = 0;
	bool fits = false;

	while (!fits && n < MISFITS) {
		rc = take_place(room, align, at, &fits);
		if (rc)
			break;
		if (!fits) {
			misfits[n++] = *at;
			rc = CUDA_ERROR_OUT_OF_MEMORY;
		}
		/* Up to a chunk then lies in a single one. */
		if (align < CHUNK)
			align = CHUNK;
	}
	while (n)
		arena_free(misfits[--n]);
	return rc;
}

CUresult arena_alloc(uint64_t len, uint64_t align, void *owner, uint64_t *off)
{
	uint64_t room = (len + 63) & -64ull, at = 0;
	CUresult rc;

	if (!len || room < len)
		return CUDA_ERROR_INVALID_VALUE;
	lock_may_wait("memory of the arena");
	if (align < 64)
		align = 64;
	rc = find_place(room, align, &at);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY) {
		lock_take(&session.locks.arena);
		unpin_unused(0, session.chunks->n, 0);
		lock_drop(&session.locks.arena);
		rc = find_place(room, align, &at);
	}
	if (!rc && owner)
		arena_own(at, owner);
	*off = rc ? 0 : at;
	return rc;
}

void arena_free(uint64_t off)
{
	struct chunks *ch = session.chunks;
	uint64_t base, len;

	lock_may_wait("memory of the arena to go");
	lock_take(&session.locks.arena);
	if (space_find(ch->space, off, &base, &len, NULL) && base == off)
		release(off, len);
	lock_drop(&session.locks.arena);
}

void arena_own(uint64_t off, void *owner)
{
	struct chunks *ch = session.chunks;

	lock_take(&session.locks.arena);
	space_own(ch->space, off, owner);
	lock_drop(&session.locks.arena);
}

bool arena_find(uint64_t off, uint64_t *base, uint64_t *len, void **owner)
{
	struct chunks *ch = session.chunks;
	bool found;

	lock_take(&session.locks.arena);
	found = space_find(ch->space, off, base, len, owner);
	lock_drop(&session.locks.arena);
	return found;
}

bool arena_each(bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg)
{
	struct chunks *ch = session.chunks;
	bool found;

	lock_take(&session.locks.arena);
	found = space_each(ch->space, fn, arg);
	lock_drop(&session.locks.arena);
	return found;
}

void *arena_reply(uint64_t len, uint64_t *off)
{
	if (arena_alloc(len, 64, NULL, off))
		return NULL;
	memset(arena_at(*off), 0, len);
	return arena_at(*off);
}

void arena_reply_done(uint64_t off)
{
	arena_free(off);
}
