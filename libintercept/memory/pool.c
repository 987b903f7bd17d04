// SPDX-License-Identifier: Apache-2.0
/*
 * pool.c - stream-ordered memory: pools, and blocks whose free the stream has not reached yet
 *
 * A pool has slabs of device memory, each with its own space of addresses:
 *
 *   free ── alloc ──► used ── cuMemFreeAsync on s ──► pending on s ── s reaches the free ──► free
 *                       ▲                                │
 *                       ├── alloc on s, at once ─────────┤
 *                       └── alloc on t, which is made to wait for s (when nothing else is left)
 *
 * At each free the device stores the stream's count of frees in a word of the arena, which shows
 * without a query how far the stream has come. Slabs without used or pending blocks are freed
 * down to the pool's release threshold: by pool_unlock(), after the lock, since memory_free() may
 * wait.
 */
#include "arena.h"
#include "captured.h"
#include "context.h"
#include "memory_i.h"
#include "object.h"
#include "send.h"
#include "space.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define ALIGN	512ull
#define SLAB	(8ull << 20)	/* by which a pool grows while memory is plentiful */
#define TRIES	256		/* pending blocks that an allocation examines */

struct block {
	struct memory m;		/* more: the slab */
	uint64_t room;			/* bytes in the slab */
	struct pool_stream *on;		/* pending on this stream, or NULL: used */
	uint64_t seq;			/* pending until on's word has this value */
	struct block *older, *newer;	/* pending on the same stream */
};

struct pool_stream {
	struct pool_stream *next, **prev;	/* in `streams`, or (next) `spares` */
	struct stream *s;		/* NULL: destroyed */
	struct context *ctx;
	uint64_t word;			/* arena offset */
	uint64_t seq;			/* frees so far */
	struct block *oldest, *newest;
};

struct slab {
	struct slab *next;
	struct pool *pool;
	struct memory *m;
	struct space *space;
	size_t blocks;			/* used and pending */
};

struct pool {
	struct pool *next;
	uint64_t handle;		/* 0: destroyed, and waits for its last allocation */
	int device;			/* the program's ordinal */
	uint64_t max;			/* bytes, 0: no limit */
	struct slab *slabs;
	uint64_t reserved, reserved_high, used, used_high, threshold;
	int users;			/* threads that wait with the lock released */
	int follow, opportunistic, internal;
	bool shared;			/* can be exported */
	bool imported;			/* no allocations in it */
	uint8_t key[16];		/* if shared or imported */
};

struct handle {
	struct obj o;
	uint64_t last;			/* object.c's */
	struct pool *pool;
};

struct pools {			/* a session's; locks.pools */
	struct pool *all;
	struct pool *standard[SV_DEVICES_MAX], *current[SV_DEVICES_MAX];	/* by device */
	struct pool_stream *streams, *spares;
	struct slab *dead;		/* that pool_unlock() frees */
};

/* Drop the lock, then free the slabs that were given up under it. */
static void pool_unlock(void)
{
	struct slab *b = process.pools->dead, *next;

	process.pools->dead = NULL;
	lock_drop(&process.locks.pools);
	for (; b; b = next) {
		next = b->next;
		memory_free(b->m);
		space_free(b->space);
		free(b);
	}
}

/* -------------------------------------------------------------------------------------- slabs */

static void pool_end(struct pool *p)
{
	for (struct pool **q = &process.pools->all; *q; q = &(*q)->next)
		if (*q == p) {
			*q = p->next;
			break;
		}
	free(p);
}

static void slab_end(struct slab *b)
{
	struct pool *p = b->pool;

	for (struct slab **q = &p->slabs; *q; q = &(*q)->next)
		if (*q == b) {
			*q = b->next;
			break;
		}
	p->reserved -= b->m->len;
	b->m->more = NULL;		/* hides it from slab_of() */
	b->next = process.pools->dead;
	process.pools->dead = b;
}

/* Give up empty slabs until at most keep bytes are reserved. */
static void trim(struct pool *p, uint64_t keep)
{
	struct slab *next;

	for (struct slab *b = p->slabs; b && p->reserved > keep; b = next) {
		next = b->next;
		if (!b->blocks)
			slab_end(b);
	}
	if (!p->handle && !p->slabs && !p->users)
		pool_end(p);
}

static void trim_all(void)
{
	struct pool *next;

	for (struct pool *p = process.pools->all; p; p = next) {
		next = p->next;
		trim(p, p->handle && !session_at_step() ? p->threshold : 0);
	}
}

/* The length of a new slab for room bytes; 0: over the pool's limit. */
static uint64_t slab_len(const struct pool *p, uint64_t room)
{
	uint64_t len = (room + SV_GRANULE - 1) & -SV_GRANULE;

	if (len < SLAB && memory_left() >= 32 * SLAB && (!p->max || p->reserved + SLAB <= p->max))
		len = SLAB;
	return len < room || (p->max && p->reserved + len > p->max) ? 0 : len;
}

/* Without the lock, since allocation may wait. */
static CUresult slab_new(uint64_t len, struct slab **out)
{
	struct slab *b = calloc(1, sizeof(*b));
	CUresult rc;

	if (!b)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = memory_alloc(MEMORY_POOL, len, SV_GRANULE, 0, &b->m);
	if (rc) {
		free(b);
		return rc;
	}
	b->m->ctx = NULL;	/* the pool's, not the current context's */
	b->space = space_new(b->m->base, len);
	if (!b->space) {
		memory_free(b->m);
		free(b);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = b;
	return CUDA_SUCCESS;
}

/* Add a slab. The lock is released meanwhile, so the caller must look everything up again. */
static CUresult grow(struct pool *p, uint64_t room)
{
	uint64_t len = slab_len(p, room);
	struct slab *b;
	CUresult rc;

	if (!len)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->users++;
	p->reserved += len;		/* so that no other thread passes the limit */
	pool_unlock();
	rc = slab_new(len, &b);
	lock_take(&process.locks.pools);
	p->users--;
	if (rc) {
		p->reserved -= len;
		return rc;
	}
	b->m->more = b;
	b->pool = p;
	b->next = p->slabs;
	p->slabs = b;
	if (p->reserved > p->reserved_high)
		p->reserved_high = p->reserved;
	return CUDA_SUCCESS;
}

/* The slab that holds an address, or NULL. */
static struct slab *slab_of(uint64_t addr)
{
	struct session *s = session_at(addr);
	void *owner = NULL;
	struct slab *b = NULL;

	lock_take(&process.locks.memory);
	if (s && space_find(s->window, addr, NULL, NULL, &owner) && owner &&
	    ((struct memory *)owner)->kind == MEMORY_POOL)
		b = ((struct memory *)owner)->more;
	lock_drop(&process.locks.memory);
	return b;
}

static struct block *block_of(uint64_t addr)
{
	struct slab *b = slab_of(addr);
	void *owner = NULL;

	return b && space_find(b->space, addr, NULL, NULL, &owner) ? owner : NULL;
}

/* ------------------------------------------------------------------------------------- blocks */

static void unlink_pending(struct block *k)
{
	struct pool_stream *on = k->on;

	*(k->older ? &k->older->newer : &on->oldest) = k->newer;
	*(k->newer ? &k->newer->older : &on->newest) = k->older;
	k->older = k->newer = NULL;
	k->on = NULL;
}

/* Make a block free memory of its slab. */
static void block_end(struct block *k)
{
	struct slab *b = k->m.more;

	if (k->on)
		unlink_pending(k);
	space_release(b->space, k->m.base);
	b->blocks--;
	free(k);
}

/*
 * The word and its value are kept for the next user, since another stream may still have to wait
 * until the word has reached a value.
 */
static void stream_end(struct pool_stream *on)
{
	*on->prev = on->next;
	if (on->next)
		on->next->prev = on->prev;
	if (on->s)
		on->s->pool = NULL;
	on->s = NULL;
	on->next = process.pools->spares;
	process.pools->spares = on;
}

/* Add a spare one for stream_pool(). Without the lock. */
static CUresult spare_new(void)
{
	struct pool_stream *on = calloc(1, sizeof(*on));

	if (!on)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (arena_alloc(8, 8, NULL, &on->word)) {
		free(on);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*(uint64_t *)arena_at(on->word) = 0;
	lock_take(&process.locks.pools);
	on->next = process.pools->spares;
	process.pools->spares = on;
	lock_drop(&process.locks.pools);
	return CUDA_SUCCESS;
}

/* NULL: there is no spare one. */
static struct pool_stream *stream_pool(struct stream *s)
{
	struct pool_stream *on = s->pool;

	if (on)
		return on;
	on = process.pools->spares;
	if (!on)
		return NULL;
	process.pools->spares = on->next;
	on->s = s;
	on->ctx = s->o.ctx;
	on->next = process.pools->streams;
	if (on->next)
		on->next->prev = &on->next;
	on->prev = &process.pools->streams;
	process.pools->streams = on;
	s->pool = on;
	return on;
}

/* Free the pending blocks whose streams have reached the free. */
static void settle(void)
{
	struct pool_stream *on, *next;

	for (on = process.pools->streams; on; on = next) {
		/* pairs with store_word() of the proxy, or with its device's write */
		uint64_t done = __atomic_load_n((uint64_t *)arena_at(on->word), __ATOMIC_ACQUIRE);

		next = on->next;
		while (on->oldest && on->oldest->seq <= done)
			block_end(on->oldest);
		if (!on->s && !on->oldest && done >= on->seq)
			stream_end(on);
	}
}

void pool_trim(bool all)
{
	struct pool *next;

	lock_take(&process.locks.pools);
	settle();
	for (struct pool *p = process.pools->all; p; p = next) {
		next = p->next;
		trim(p, all || !p->handle || session_at_step() ? 0 : p->threshold);
	}
	pool_unlock();
}

CUresult pool_init(void)
{
	if (!process.pools)
		process.pools = calloc(1, sizeof(*process.pools));
	return process.pools ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void use(struct block *k, struct context *ctx, uint64_t len)
{
	struct pool *p = ((struct slab *)k->m.more)->pool;

	k->m.kind = MEMORY_POOL;
	k->m.ctx = ctx;
	k->m.session = ctx->session;
	k->m.len = len;
	k->m.id = memory_next_id();
	p->used += k->room;
	if (p->used > p->used_high)
		p->used_high = p->used;
}

/* A new block in a slab's free memory, or NULL: no room. */
static struct block *block_in(struct slab *b, uint64_t room)
{
	struct block *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->m.base = space_alloc(b->space, room, ALIGN, 0, k);
	if (!k->m.base) {
		free(k);
		return NULL;
	}
	k->m.more = b;
	k->room = room;
	b->blocks++;
	return k;
}

/* Cut a pending block after room bytes; the rest stays pending, as a block of its own. */
static void split(struct block *k, uint64_t room)
{
	struct slab *b = k->m.more;
	struct block *rest;

	if (k->room - room < ALIGN)
		return;
	rest = calloc(1, sizeof(*rest));
	if (!rest)
		return;
	*rest = *k;
	rest->m.base = k->m.base + room;
	rest->room = k->room - room;
	/* Releasing the block first gives the space spare nodes for the two parts. */
	space_release(b->space, k->m.base);
	if (space_take(b->space, k->m.base, room, k) ||
	    space_take(b->space, rest->m.base, rest->room, rest)) {
		/* No memory for a node: leave the block whole. */
		space_release(b->space, k->m.base);
		if (space_take(b->space, k->m.base, k->room, k))
			client_log("out of memory: %#lx is lost", (long)k->m.base);
		free(rest);
		return;
	}
	k->room = room;
	b->blocks++;
	rest->older = k;
	rest->newer = k->newer;
	*(k->newer ? &k->newer->older : &k->on->newest) = rest;
	k->newer = rest;
}

/* The shortest block that is long enough, among the newest pending ones of the pool. */
static struct block *pending_fit(struct pool_stream *on, struct pool *p, uint64_t room)
{
	struct block *best = NULL;
	int tries = TRIES;

	for (struct block *k = on->newest; k && tries--; k = k->older)
		if (k->room >= room && ((struct slab *)k->m.more)->pool == p &&
		    (!best || k->room < best->room))
			best = k;
	return best;
}

/* Take a block that is pending on another stream, for which s is made to wait. SEND_AGAIN. */
static CUresult borrow(struct pool *p, struct stream *s, uint64_t room, struct block **out)
{
	struct sv_cuStreamWaitValue64_v2 a = { .ctx = s->o.ctx->o.handle };
	struct block *k = NULL;
	CUresult rc;

	for (struct pool_stream *on = process.pools->streams; on && !k; on = on->next)
		k = on->ctx == s->o.ctx ? pending_fit(on, p, room) : NULL;
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a.stream = s->wire;
	a.addr = sv_u64(arena_at(k->on->word));
	a.value = k->seq;
	a.flags = CU_STREAM_WAIT_VALUE_GEQ;
	rc = send_try(SV_OP_cuStreamWaitValue64_v2, &a, sizeof(a));
	if (!rc)
		*out = k;
	return rc == SEND_AGAIN || !rc ? rc : CUDA_ERROR_OUT_OF_MEMORY;
}

static void take_pending(struct block *k, uint64_t room, struct block **out)
{
	split(k, room);
	unlink_pending(k);
	*out = k;
}

/* Memory that the stream can have at once; false: none. */
static bool at_hand(struct pool *p, struct stream *s, uint64_t room, struct block **out)
{
	struct block *k = s->pool ? pending_fit(s->pool, p, room) : NULL;

	*out = NULL;
	if (k)
		take_pending(k, room, out);
	for (struct slab *b = p->slabs; b && !*out; b = b->next)
		*out = block_in(b, room);
	return *out;
}

/* Find memory, grow the pool or (not if last) borrow. SEND_AGAIN: drop the lock and start over. */
static CUresult find_room(struct pool *p, struct stream *s, uint64_t room, bool last,
			  struct block **out)
{
	struct block *k;
	CUresult rc;

	if (at_hand(p, s, room, out))
		return CUDA_SUCCESS;
	rc = grow(p, room);
	if (!rc && p->handle)
		return at_hand(p, s, room, out) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	if (!p->handle)
		return CUDA_ERROR_INVALID_VALUE;	/* destroyed meanwhile */
	if (last || !p->internal)
		return rc;
	rc = borrow(p, s, room, &k);
	if (!rc)
		take_pending(k, room, out);
	return rc;
}

/* Wait for all work: then free memory is less fragmented, and other pools can free slabs. */
static CUresult wait_for_room(struct pool *p, struct stream *s, uint64_t room, struct block **out)
{
	CUresult rc;

	p->users++;
	pool_unlock();
	rc = context_sync(s->o.ctx);
	pool_trim(true);
	lock_take(&process.locks.pools);
	p->users--;
	if (!rc && !p->handle)
		rc = CUDA_ERROR_INVALID_VALUE;
	return rc ? rc : find_room(p, s, room, true, out);
}

static CUresult alloc(struct pool *p, struct stream *s, uint64_t len, uint64_t *out)
{
	uint64_t room = (len + ALIGN - 1) & -ALIGN;
	struct block *k = NULL;
	CUresult rc;

	if (room < len)
		return CUDA_ERROR_OUT_OF_MEMORY;
	settle();
	rc = find_room(p, s, room, false, &k);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY)
		rc = wait_for_room(p, s, room, &k);
	if (!rc) {
		use(k, s->o.ctx, len);
		*out = k->m.base;
	}
	trim_all();
	return rc;
}

/* ---------------------------------------------------------------------- queries of other files */

bool pool_find(uint64_t addr, struct memory *out)
{
	struct block *k;

	lock_take(&process.locks.pools);
	k = block_of(addr);
	if (k && !k->on)
		*out = k->m;
	else
		k = NULL;
	lock_drop(&process.locks.pools);
	return k;
}

uint64_t pool_of(uint64_t addr)
{
	struct slab *b;
	uint64_t h;

	lock_take(&process.locks.pools);
	b = slab_of(addr);
	h = b ? b->pool->handle : 0;
	lock_drop(&process.locks.pools);
	return h;
}

/* A used block that begins at addr. locks.pools is held. */
static struct block *used_at(uint64_t addr)
{
	struct block *k = block_of(addr);

	assert_held(&process.locks.pools);
	return k && !k->on && k->m.base == addr ? k : NULL;
}

void pool_stream_gone(struct stream *s)
{
	lock_take(&process.locks.pools);
	if (s->pool) {
		s->pool->s = NULL;	/* settle() ends it when its work is complete */
		s->pool = NULL;
	}
	lock_drop(&process.locks.pools);
}

static void slab_context_gone(struct slab *b, struct context *ctx)
{
	uint64_t at, len;

	for (at = b->m->base; at < b->m->base + b->m->len; at += len) {
		struct block *k;
		void *owner;

		len = ALIGN;
		if (!space_find(b->space, at, NULL, &len, &owner))
			continue;
		k = owner;
		if (k->on || k->m.ctx != ctx)
			continue;
		b->pool->used -= k->room;
		block_end(k);
	}
}

/* The context's work has ended, so its memory is not used any more. */
void pool_context_gone(struct context *ctx)
{
	struct pool_stream *on, *next;

	lock_take(&process.locks.pools);
	for (on = process.pools->streams; on; on = next) {
		next = on->next;
		if (on->ctx != ctx)
			continue;
		while (on->oldest)
			block_end(on->oldest);
		stream_end(on);
	}
	for (struct pool *p = process.pools->all; p; p = p->next)
		for (struct slab *b = p->slabs; b; b = b->next)
			slab_context_gone(b, ctx);
	trim_all();
	pool_unlock();
}

/* -------------------------------------------------------------------------------- allocation */

static CUresult standard_locked(int dev, struct pool **out)
{
	struct pool *p = process.pools->standard[dev];
	struct handle *h;

	if (!p) {
		h = obj_new(SV_T_CUmemoryPool, NULL);
		p = calloc(1, sizeof(*p));
		if (!p || !h) {
			free(p);
			if (h)
				obj_free(SV_T_CUmemoryPool, &h->o);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		*p = (struct pool){ .next = process.pools->all, .handle = h->o.handle,
				    .device = dev, .follow = 1, .opportunistic = 1,
				    .internal = 1 };
		h->pool = p;
		process.pools->all = p;
		process.pools->standard[dev] = p;
	}
	*out = p;
	return CUDA_SUCCESS;
}

static CUresult current_locked(int dev, struct pool **out)
{
	*out = process.pools->current[dev];
	return *out ? CUDA_SUCCESS : standard_locked(dev, out);
}

static CUresult pool_locked(CUmemoryPool handle, struct pool **out)
{
	struct handle *h = obj_find(SV_T_CUmemoryPool, sv_u64(handle));

	if (!h || !h->pool)
		return CUDA_ERROR_INVALID_VALUE;
	*out = h->pool;
	return CUDA_SUCCESS;
}

static CUresult alloc_async(CUdeviceptr *out, size_t len, CUmemoryPool handle, bool from,
			    CUstream stream)
{
	struct stream *s;
	struct pool *p;
	uint64_t addr = 0;
	CUresult rc;

	if (!out || !len)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	TRY(capture_legacy(s));
	if (capture_on(s))
		return capture_alloc(s, len, out);
	TRY(send_late());
	do {
		lock_take(&process.locks.pools);
		rc = from ? pool_locked(handle, &p) : current_locked(device_of(here), &p);
		if (!rc && p->imported)
			rc = CUDA_ERROR_INVALID_VALUE;
		if (!rc && p->device != device_of(here))
			rc = CUDA_ERROR_INVALID_DEVICE;
		if (!rc)
			rc = alloc(p, s, len, &addr);
		pool_unlock();
	} while (send_again(&rc, sizeof(struct sv_cuStreamWaitValue64_v2)));
	if (!rc)
		*out = addr;
	return rc;
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t len, CUstream stream)
{
	return alloc_async(out, len, NULL, false, stream);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t len, CUmemoryPool pool,
				     CUstream stream)
{
	return alloc_async(out, len, pool, true, stream);
}

/*
 * Free a block in the stream's order: it becomes pending on s. SEND_AGAIN: nothing has changed;
 * NOT_READY: a spare pool_stream is needed.
 */
static CUresult pend(struct block *k, struct stream *s)
{
	struct pool_stream *on = stream_pool(s);
	struct sv_copy a = { .ctx = s->o.ctx->o.handle, .stream = s->wire };

	if (!on)
		return CUDA_ERROR_NOT_READY;
	a.word = on->word;
	a.value = on->seq + 1;
	if (k->m.shown && ipc_forget(k->m.base) == SEND_AGAIN)
		return SEND_AGAIN;
	k->m.shown = false;
	TRY(send_try(SV_OP_cuMemcpyAsync, &a, sizeof(a)));
	((struct slab *)k->m.more)->pool->used -= k->room;
	k->seq = ++on->seq;
	k->on = on;
	k->older = on->newest;
	*(on->newest ? &on->newest->newer : &on->oldest) = k;
	on->newest = k;
	return CUDA_SUCCESS;
}

API CUresult cuMemFreeAsync(CUdeviceptr addr, CUstream stream)
{
	struct stream *s;
	struct memory m;
	struct block *k;
	CUresult rc;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	if (!addr)
		return CUDA_SUCCESS;
	TRY(capture_legacy(s));
	if (capture_on(s))
		return capture_free(s, addr);
	if (graph_hooks.memory_freed(addr))
		return CUDA_SUCCESS;
	do {
		lock_take(&process.locks.pools);
		k = used_at(addr);
		rc = k && memory_is_here(&k->m) ? pend(k, s) : CUDA_ERROR_INVALID_VALUE;
		lock_drop(&process.locks.pools);
		if (unlikely(rc == CUDA_ERROR_NOT_READY)) {
			TRY(spare_new());
			rc = SEND_AGAIN;
		}
	} while (send_again(&rc, sizeof(struct sv_copy)));
	if (!k && memory_find(addr, &m) && m.base == addr) {
		if (m.kind == MEMORY_DEVICE)
			return cuMemFree_v2(addr);
		if (m.kind == MEMORY_PEER)
			return ipc_free(addr, s);
	}
	return rc;
}

/* -------------------------------------------------------------------------------------- pools */

static CUresult new_pool(const struct pool *as, CUmemoryPool *out)
{
	struct handle *h = obj_new(SV_T_CUmemoryPool, NULL);
	struct pool *p = calloc(1, sizeof(*p));

	if (!p || !h) {
		free(p);
		if (h)
			obj_free(SV_T_CUmemoryPool, &h->o);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*p = *as;
	p->handle = h->o.handle;
	p->follow = p->opportunistic = p->internal = 1;
	lock_take(&process.locks.pools);
	p->next = process.pools->all;
	process.pools->all = p;
	h->pool = p;
	lock_drop(&process.locks.pools);
	*out = (CUmemoryPool)(uintptr_t)p->handle;
	return CUDA_SUCCESS;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	struct pool p = { 0 };

	if (!out || !props)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return sv_absent("cuMemPoolCreate",
				 "pools are shared with other processes by file descriptors alone");
	if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return sv_unsupported("cuMemPoolCreate", "a pool is of device memory");
	if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (!session_device(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	p.device = props->location.id;
	p.max = props->maxSize;
	p.shared = props->handleTypes;
	if (p.shared && getrandom(p.key, sizeof(p.key), 0) != sizeof(p.key))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return new_pool(&p, out);
}

CUresult pool_imported(CUmemoryPool *out, const uint8_t key[16])
{
	struct pool p = { .device = device_of(here), .imported = true };

	memcpy(p.key, key, sizeof(p.key));
	return new_pool(&p, out);
}

CUresult pool_key(CUmemoryPool pool, bool imported, uint8_t key[16])
{
	struct pool *p;
	CUresult rc;

	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	if (!rc && !(imported ? p->imported : p->shared))
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		memcpy(key, p->key, sizeof(p->key));
	lock_drop(&process.locks.pools);
	return rc;
}

CUresult pool_share(uint64_t addr, uint64_t *len, uint8_t key[16])
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	struct block *k;
	struct pool *p;

	lock_take(&process.locks.pools);
	k = used_at(addr);
	p = k ? ((struct slab *)k->m.more)->pool : NULL;
	if (p && p->shared) {
		k->m.shown = true;
		*len = k->m.len;
		memcpy(key, p->key, sizeof(p->key));
		rc = CUDA_SUCCESS;
	}
	lock_drop(&process.locks.pools);
	return rc;
}

/* Allocations outlive the pool's handle; the last of them ends the pool. */
API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct pool *p;
	CUresult rc;

	TRY(session_check());
	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	for (int i = 0; !rc && i < SV_DEVICES_MAX; i++)
		if (process.pools->standard[i] == p)
			rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc) {
		for (int i = 0; i < SV_DEVICES_MAX; i++)
			if (process.pools->current[i] == p)
				process.pools->current[i] = NULL;
		obj_free(SV_T_CUmemoryPool, obj_find(SV_T_CUmemoryPool, p->handle));
		p->handle = 0;
		settle();
		trim_all();
	}
	pool_unlock();
	return rc;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	struct pool *p;
	CUresult rc;

	TRY(session_check());
	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	if (!rc) {
		settle();
		trim_all();
		trim(p, keep);
	}
	pool_unlock();
	return rc;
}

static CUresult set_locked(struct pool *p, CUmemPool_attribute attr, const void *value)
{
	switch (attr) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		p->follow = !!*(const int *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		p->opportunistic = !!*(const int *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		p->internal = !!*(const int *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		p->threshold = *(const uint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		if (*(const uint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		p->reserved_high = p->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(const uint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		p->used_high = p->used;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult get_locked(struct pool *p, CUmemPool_attribute attr, void *value)
{
	switch (attr) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		*(int *)value = p->follow;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		*(int *)value = p->opportunistic;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = p->internal;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(uint64_t *)value = p->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(uint64_t *)value = p->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(uint64_t *)value = p->reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(uint64_t *)value = p->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(uint64_t *)value = p->used_high;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct pool *p;
	CUresult rc;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	if (!rc)
		rc = set_locked(p, attr, value);
	lock_drop(&process.locks.pools);
	return rc;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct pool *p;
	CUresult rc;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	if (!rc) {
		settle();
		trim_all();
		rc = get_locked(p, attr, value);
	}
	pool_unlock();
	return rc;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t n)
{
	struct pool *p;
	CUresult rc;

	if (!n || !map)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	for (size_t i = 0; !rc && i < n; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			rc = CUDA_ERROR_INVALID_VALUE;
		else if (!session_device(map[i].location.id))
			rc = CUDA_ERROR_INVALID_DEVICE;
		else if (map[i].location.id == p->device)
			rc = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS :
				CUDA_ERROR_INVALID_VALUE;
		else if (map[i].flags)
			rc = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	}
	lock_drop(&process.locks.pools);
	return rc;
}

API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *at)
{
	struct pool *p;
	CUresult rc;

	if (!flags || !at || at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (!session_device(at->id))
		return CUDA_ERROR_INVALID_DEVICE;
	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	if (!rc)
		*flags = at->id == p->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE :
			CU_MEM_ACCESS_FLAGS_PROT_NONE;
	lock_drop(&process.locks.pools);
	return rc;
}

/* ------------------------------------------------------------------------- pools of a device */

static CUresult get_pool(CUmemoryPool *out, CUdevice dev,
			 CUresult (*which)(int dev, struct pool **out))
{
	struct pool *p;
	CUresult rc;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	lock_take(&process.locks.pools);
	rc = which(dev, &p);
	if (!rc)
		*out = (CUmemoryPool)(uintptr_t)p->handle;
	lock_drop(&process.locks.pools);
	return rc;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev)
{
	return get_pool(out, dev, standard_locked);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev)
{
	return get_pool(out, dev, current_locked);
}

API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	struct pool *p;
	CUresult rc;

	TRY(session_check());
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	lock_take(&process.locks.pools);
	rc = pool_locked(pool, &p);
	if (!rc && (p->device != dev || p->imported))
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		process.pools->current[dev] = p;
	lock_drop(&process.locks.pools);
	return rc;
}

static CUresult of_device(const CUmemLocation *at, CUmemAllocationType type)
{
	if (!at)
		return CUDA_ERROR_INVALID_VALUE;
	if (at->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return sv_unsupported("pools by location", "a pool is of device memory");
	return CUDA_SUCCESS;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *at, CUmemAllocationType type)
{
	TRY(of_device(at, type));
	return cuDeviceGetDefaultMemPool(out, at->id);
}

API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *at, CUmemAllocationType type)
{
	TRY(of_device(at, type));
	return cuDeviceGetMemPool(out, at->id);
}

API CUresult cuMemSetMemPool(CUmemLocation *at, CUmemAllocationType type, CUmemoryPool pool)
{
	TRY(of_device(at, type));
	return cuDeviceSetMemPool(at->id, pool);
}
