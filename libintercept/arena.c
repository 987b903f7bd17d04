// SPDX-License-Identifier: Apache-2.0
/*
 * arena.c - the client's part of the arena, in chunks that are backed and pinned while in use
 *
 * Chunks are pinned in runs, one record each, and unpinned so. A run without allocations stays pinned
 * for the next one, up to CACHE_MAX of them; then it is unpinned and its pages go back.
 */
#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK		(2ull << 20)
#define CACHE_MAX	(64ull << 20)
#define PINNED		0x80000000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* inside memory_lock */
static struct space *space;
static uint32_t *chunk;		/* PINNED | allocations in it */
static uint32_t *run;		/* the first chunk of the run that it was pinned in */
static uint64_t chunks, cached;	/* cached: bytes of pinned chunks without allocations */

CUresult arena_init(void)
{
	uint64_t len = ring_geometry(session.ring)->arena_len;
	uint64_t first = (session.shared->arena_first + CHUNK - 1) & -CHUNK;

	if (chunk)
		munmap(chunk, 2 * chunks * sizeof(*chunk));
	if (space)
		space_free(space);
	chunks = len / CHUNK;
	cached = 0;
	chunk = mmap(NULL, 2 * chunks * sizeof(*chunk), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (chunk == MAP_FAILED || first >= chunks * CHUNK) {
		chunk = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	run = chunk + chunks;
	space = space_new(first, chunks * CHUNK - first);
	return space ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult pin(uint64_t first, uint64_t n)
{
	struct sv_pin a = { first * CHUNK, n * CHUNK };

	TRY(session_rc(ring_commit(session.ring, a.off, a.len)));
	return send_async(SV_OP_X_PIN, &a, sizeof(a), NULL, 0);
}

static CUresult hold(uint64_t off, uint64_t len)
{
	uint64_t first = off / CHUNK, end = (off + len - 1) / CHUNK + 1;
	CUresult rc = CUDA_SUCCESS;

	for (uint64_t i = first; i < end; i++)
		if (chunk[i]++ == PINNED)
			cached -= CHUNK;
	for (uint64_t i = first; i < end && !rc;) {
		uint64_t n = 0;

		while (i + n < end && !(chunk[i + n] & PINNED))
			n++;
		if (n)
			rc = pin(i, n);
		for (uint64_t j = 0; !rc && j < n; j++) {
			chunk[i + j] |= PINNED;
			run[i + j] = i;
		}
		i += n ? n : 1;
	}
	return rc;
}

/* Let go of the run that a chunk is in, if nothing is allocated in it. */
static void unpin(uint64_t i)
{
	uint64_t first = run[i], end = first;
	struct sv_pin a;

	for (; end < chunks && (chunk[end] & PINNED) && run[end] == first; end++)
		if (chunk[end] != PINNED)
			return;
	a = (struct sv_pin){ first * CHUNK, (end - first) * CHUNK };
	/* Answered: the device lets go of the pages before they do. */
	if (send_sync(SV_OP_X_UNPIN, &a, sizeof(a), NULL, 0, NULL, 0))
		return;
	memset(chunk + first, 0, (end - first) * sizeof(*chunk));
	cached -= a.len;
	ring_decommit(session.ring, a.off, a.len);
}

static void unhold(uint64_t off, uint64_t len)
{
	uint64_t first = off / CHUNK, end = (off + len - 1) / CHUNK + 1;

	for (uint64_t i = first; i < end; i++)
		if (--chunk[i] == PINNED)
			cached += CHUNK;
	for (uint64_t i = first; i < end && cached > CACHE_MAX; i++)
		if (chunk[i] == PINNED)
			unpin(i);
}

CUresult arena_alloc(uint64_t len, uint64_t align, void *owner, uint64_t *off)
{
	uint64_t room = (len + 63) & -64ull;
	CUresult rc;

	if (!len || room < len)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	*off = space_alloc(space, room, align < 64 ? 64 : align, 0, owner);
	rc = *off ? hold(*off, room) : CUDA_ERROR_OUT_OF_MEMORY;
	if (rc && *off) {
		unhold(*off, room);
		space_release(space, *off);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

void arena_free(uint64_t off)
{
	uint64_t base, len;
	void *owner;

	pthread_mutex_lock(&lock);
	if (space_find(space, off, &base, &len, &owner) && base == off) {
		space_release(space, off);
		unhold(off, len);
	}
	pthread_mutex_unlock(&lock);
}

bool arena_find(uint64_t off, uint64_t *base, uint64_t *len, void **owner)
{
	bool found;

	pthread_mutex_lock(&lock);
	found = space_find(space, off, base, len, owner);
	pthread_mutex_unlock(&lock);
	return found;
}

bool arena_each(bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg)
{
	bool found;

	pthread_mutex_lock(&lock);
	found = space_each(space, fn, arg);
	pthread_mutex_unlock(&lock);
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
