// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - device memory: addresses of the client's choice, granules mapped behind them
 *
 * Each granule of the window has a number of allocations and a flag: the proxy has mapped memory
 * there. Granules without allocations may stay mapped for later allocations (`cached` bytes of
 * them, at most CACHE_MAX), and count as free. Physical memory in use never exceeds the session's
 * budget, so the client knows without the proxy when memory runs out.
 */
#include "capture.h"
#include "client.h"
#include "memory_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CACHE_MAX	(256ull << 20)
#define MAPPED		0x80000000u
#define ALIGN		512u

struct global {			/* a module's variable; a list, since they are few */
	struct memory m;
	struct global *next;
};

struct granules {		/* a session's; locks.memory */
	uint32_t *of;		/* per granule: MAPPED | number of allocations */
	uint64_t n;
	uint64_t mapped;	/* bytes of mapped granules, the cached ones included */
	uint64_t cached;	/* bytes of mapped granules without allocations */
	uint64_t promised;	/* bytes of unmapped granules with allocations */
	uint64_t charged;	/* bytes that VMM calls have created */
	struct global *globals;
};

CUresult memory_init(void)
{
	const struct sv_shared *sh = session.shared;
	struct granules *gr = session.granules;

	if (!gr)
		gr = session.granules = calloc(1, sizeof(*gr));
	if (!gr)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (gr->of)
		munmap(gr->of, gr->n * sizeof(*gr->of));
	if (session.window)
		space_free(session.window);
	*gr = (struct granules){ .n = sh->window_len / SV_GRANULE, .globals = gr->globals };
	gr->of = mmap(NULL, gr->n * sizeof(*gr->of), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (gr->of == MAP_FAILED) {
		gr->of = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	session.window = space_new(sh->window, sh->window_len);
	return session.window ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---------------------------------------------------------------------------------- granules */

static uint64_t index_of(uint64_t addr)
{
	return (addr - session.shared->window) / SV_GRANULE;
}

/* Under the lock, so that records are sent in the order of changes to granules. */
static CUresult tell(uint16_t op, uint64_t first, uint64_t n)
{
	struct sv_map a = { session.shared->window + first * SV_GRANULE, n * SV_GRANULE };

	return send_try(op, &a, sizeof(a));
}

/* Unmap all granules in [first, end) without allocations. SEND_AGAIN: some may still be mapped. */
static CUresult unmap_unused(uint64_t first, uint64_t end)
{
	struct granules *gr = session.granules;

	for (uint64_t i = first; i < end;) {
		uint64_t n = 0;

		while (i + n < end && gr->of[i + n] == MAPPED)
			n++;
		if (n) {
			TRY(tell(SV_OP_X_UNMAP, i, n));
			memset(gr->of + i, 0, n * sizeof(*gr->of));
			gr->mapped -= n * SV_GRANULE;
			gr->cached -= n * SV_GRANULE;
		}
		i += n ? n : 1;
	}
	return CUDA_SUCCESS;
}

CUresult memory_unmap_cached(uint64_t addr, uint64_t len)
{
	CUresult rc;

	do {
		lock_take(&session.locks.memory);
		rc = unmap_unused(index_of(addr), index_of(addr + len - 1) + 1);
		lock_drop(&session.locks.memory);
	} while (send_again(&rc, sizeof(struct sv_map)));
	return rc;
}

static uint64_t in_use(void)
{
	struct granules *gr = session.granules;

	return gr->mapped - gr->cached + gr->promised + gr->charged;
}

/*
 * Map the unmapped granules of [first, end), which all have allocations. SEND_AGAIN: not all yet.
 */
static CUresult map_missing(uint64_t first, uint64_t end)
{
	struct granules *gr = session.granules;

	for (uint64_t i = first; i < end;) {
		uint64_t n = 0;

		while (i + n < end && !(gr->of[i + n] & MAPPED))
			n++;
		if (n) {
			TRY(tell(SV_OP_X_MAP, i, n));
			for (uint64_t j = i; j < i + n; j++)
				gr->of[j] |= MAPPED;
			gr->mapped += n * SV_GRANULE;
			gr->promised -= n * SV_GRANULE;
		}
		i += n ? n : 1;
	}
	return CUDA_SUCCESS;
}

static void unhold(uint64_t first, uint64_t end)
{
	struct granules *gr = session.granules;

	for (uint64_t i = first; i < end; i++) {
		gr->of[i]--;
		if (gr->of[i] == MAPPED)
			gr->cached += SV_GRANULE;
		else if (!gr->of[i])
			gr->promised -= SV_GRANULE;
	}
}

/* Count one more allocation in each granule of the range. OUT_OF_MEMORY: over the budget. */
static CUresult hold(uint64_t first, uint64_t end)
{
	struct granules *gr = session.granules;

	for (uint64_t i = first; i < end; i++) {
		if (gr->of[i] == MAPPED)
			gr->cached -= SV_GRANULE;
		else if (!gr->of[i])
			gr->promised += SV_GRANULE;
		gr->of[i]++;
	}
	if (in_use() <= session.shared->budget)
		return CUDA_SUCCESS;
	unhold(first, end);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Unmap all cached granules if promised and charged memory needs their part of the budget. */
static CUresult make_room(void)
{
	struct granules *gr = session.granules;

	if (gr->mapped + gr->promised + gr->charged <= session.shared->budget)
		return CUDA_SUCCESS;
	return unmap_unused(0, gr->n);
}

/* ------------------------------------------------------------------------------- allocations */

static CUresult hold_all(uint64_t addr, uint64_t len)
{
	return hold(index_of(addr), index_of(addr + len - 1) + 1);
}

/* The range has been held, so no thread unmaps its granules between the tries. */
static CUresult map_all(uint64_t addr, uint64_t len)
{
	CUresult rc;

	do {
		lock_take(&session.locks.memory);
		rc = make_room();
		if (!rc)
			rc = map_missing(index_of(addr), index_of(addr + len - 1) + 1);
		lock_drop(&session.locks.memory);
	} while (send_again(&rc, sizeof(struct sv_map)));
	return rc;
}

CUresult memory_alloc(enum memory_kind kind, uint64_t len, uint64_t align, unsigned int place,
		      struct memory **out)
{
	uint64_t room = (len + ALIGN - 1) & -(uint64_t)ALIGN, addr;
	struct memory *m;
	CUresult rc;

	if (!len)
		return CUDA_ERROR_INVALID_VALUE;
	if (room < len)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (align < ALIGN)
		align = ALIGN;
	if (len >= SV_GRANULE && align < SV_GRANULE)
		align = SV_GRANULE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct memory){ .kind = kind, .len = len, .ctx = thread.ctx };
	lock_may_wait("device memory");
	lock_take(&session.locks.memory);
	addr = space_alloc(session.window, room, align, place, m);
	rc = addr ? hold_all(addr, room) : CUDA_ERROR_OUT_OF_MEMORY;
	if (rc && addr)
		space_release(session.window, addr);
	m->base = addr;
	m->id = memory_next_id();
	lock_drop(&session.locks.memory);
	if (!rc)
		rc = map_all(addr, room);
	if (!rc)
		*out = m;
	else if (addr)
		memory_free(m);
	else
		free(m);
	return rc;
}

/* Remove m from the window; false: it is not there. locks.memory is held. */
static bool take_out(struct memory *m)
{
	uint64_t base, len;
	void *owner;

	if (!space_find(session.window, m->base, &base, &len, &owner) || owner != m)
		return false;
	space_release(session.window, base);
	unhold(index_of(base), index_of(base + len - 1) + 1);
	return true;
}

/* Without the lock: unmap the range's cached granules if the cache is over its limit. */
static void shrink_cache(uint64_t addr, uint64_t len)
{
	struct granules *gr = session.granules;

	if (__atomic_load_n(&gr->cached, __ATOMIC_RELAXED) > CACHE_MAX)
		memory_unmap_cached(addr, len);
}

void memory_free(struct memory *m)
{
	lock_may_wait("device memory to go");
	lock_take(&session.locks.memory);
	take_out(m);
	lock_drop(&session.locks.memory);
	shrink_cache(m->base, m->len);
	free(m);
}

struct gone {
	struct context *ctx;
	struct memory *found;
};

static bool of_context(void *arg, uint64_t base, uint64_t len, void *owner)
{
	struct gone *g = arg;
	struct memory *m = owner;

	(void)base;
	(void)len;
	if (!m || m->ctx != g->ctx || (m->kind != MEMORY_DEVICE && m->kind != MEMORY_HOST &&
				       m->kind != MEMORY_MANAGED))
		return false;
	if (m->kind == MEMORY_HOST && m->more)
		return false;	/* a view of registered memory: host.c frees it */
	g->found = m;
	return true;
}

/*
 * Remove m from the window, after ending its export to other processes, so that a later allocation
 * can have its address. locks.memory is held. SEND_AGAIN: m is still there.
 */
static CUresult withdraw(struct memory *m)
{
	if (m->shown && ipc_forget(m->base) == SEND_AGAIN)
		return SEND_AGAIN;
	take_out(m);
	return CUDA_SUCCESS;
}

static bool free_one(struct gone *g)
{
	CUresult rc = CUDA_SUCCESS;
	bool found;

	do {
		lock_take(&session.locks.memory);
		found = space_each(session.window, of_context, g);
		if (found)
			rc = withdraw(g->found);
		lock_drop(&session.locks.memory);
	} while (send_again(&rc, IPC_FORGET_LEN));
	if (!found || rc)
		return found;	/* the session is broken: the next try sends nothing */
	shrink_cache(g->found->base, g->found->len);
	free(g->found);
	return true;
}

void memory_context_gone(struct context *ctx)
{
	struct gone g = { .ctx = ctx };

	host_context_gone(ctx);
	ipc_context_gone(ctx);
	while (free_one(&g))
		;
	while (arena_each(of_context, &g)) {
		arena_free(g.found->base - sv_u64(session.arena));
		free(g.found->more);
		free(g.found);
	}
	pool_context_gone(ctx);
}

uint64_t memory_left(void)
{
	uint64_t left;

	lock_take(&session.locks.memory);
	left = session.shared->budget - in_use();
	lock_drop(&session.locks.memory);
	return left;
}

CUresult memory_charge(uint64_t len)
{
	struct granules *gr = session.granules;
	CUresult rc = CUDA_SUCCESS;

	lock_take(&session.locks.memory);
	if (len > session.shared->budget - in_use())
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	else
		gr->charged += len;
	lock_drop(&session.locks.memory);
	if (rc)
		return rc;
	do {
		lock_take(&session.locks.memory);
		rc = make_room();
		lock_drop(&session.locks.memory);
	} while (send_again(&rc, sizeof(struct sv_map)));
	if (rc)
		memory_uncharge(len);
	return rc;
}

void memory_uncharge(uint64_t len)
{
	struct granules *gr = session.granules;

	lock_take(&session.locks.memory);
	gr->charged -= len;
	lock_drop(&session.locks.memory);
}

/* --------------------------------------------------------------------- finding allocations */

static bool find_locked(uint64_t addr, struct memory *out)
{
	struct granules *gr = session.granules;
	const struct sv_shared *sh = session.shared;
	uint64_t base, len, arena = (uint64_t)(uintptr_t)session.arena;
	void *owner = NULL;

	if (addr - sh->window < sh->window_len)
		space_find(session.window, addr, &base, &len, &owner);
	else if (addr - arena < ring_geometry(session.ring)->arena_len)
		arena_find(addr - arena, &base, &len, &owner);
	if (owner) {
		*out = *(struct memory *)owner;
		return true;
	}
	for (struct global *g = gr->globals; g; g = g->next)
		if (addr - g->m.base < g->m.len) {
			*out = g->m;
			return true;
		}
	return false;
}

bool memory_find(uint64_t addr, struct memory *out)
{
	bool found;

	lock_take(&session.locks.memory);
	found = find_locked(addr, out);
	lock_drop(&session.locks.memory);
	if (!found)
		return host_registered(addr, out);
	return out->kind == MEMORY_POOL ? pool_find(addr, out) : true;
}

CUresult memory_range(uint64_t addr, uint64_t len)
{
	struct memory m;

	if (!memory_find(addr, &m) || m.kind == MEMORY_REGISTERED || addr - m.base > m.len ||
	    len > m.len - (addr - m.base))
		return CUDA_ERROR_INVALID_VALUE;
	return m.kind == MEMORY_RESERVED ? vmm_range(addr, len) : CUDA_SUCCESS;
}

CUresult memory_add_global(uint64_t addr, uint64_t len, void *module)
{
	struct granules *gr = session.granules;
	struct global *g;

	lock_take(&session.locks.memory);
	for (g = gr->globals; g && g->m.base != addr; g = g->next)
		;
	if (!g) {
		g = calloc(1, sizeof(*g));
		if (g) {
			g->next = gr->globals;
			gr->globals = g;
		}
	}
	if (g)
		g->m = (struct memory){ .kind = MEMORY_GLOBAL, .base = addr, .len = len,
					.ctx = thread.ctx, .id = memory_next_id(), .more = module };
	lock_drop(&session.locks.memory);
	return g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_drop_globals(void *module)
{
	struct granules *gr = session.granules;

	lock_take(&session.locks.memory);
	for (struct global **p = &gr->globals, *g; (g = *p);) {
		if (g->m.more == module) {
			*p = g->next;
			free(g);
		} else {
			p = &g->next;
		}
	}
	lock_drop(&session.locks.memory);
}

/* -------------------------------------------------------------------------------- the calls */

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t len)
{
	struct context *ctx;
	struct memory *m;
	CUresult rc;

	if (!out || !len)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	rc = memory_alloc(MEMORY_DEVICE, len, 0, 0, &m);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY) {
		pool_trim(true);	/* free the pools' empty slabs, and try again */
		rc = memory_alloc(MEMORY_DEVICE, len, 0, 0, &m);
	}
	if (rc)
		return rc;
	*out = m->base;
	return CUDA_SUCCESS;
}

/* Free the allocation that begins at addr, unless another thread has just done so. */
static CUresult free_at(uint64_t addr)
{
	struct memory *m;
	uint64_t base;
	void *owner;
	CUresult rc;

	do {
		lock_take(&session.locks.memory);
		m = space_find(session.window, addr, &base, NULL, &owner) && base == addr ? owner : NULL;
		rc = m ? withdraw(m) : CUDA_SUCCESS;
		lock_drop(&session.locks.memory);
	} while (send_again(&rc, IPC_FORGET_LEN));
	if (!m || rc)
		return rc;
	shrink_cache(m->base, m->len);
	free(m);
	return CUDA_SUCCESS;
}

/* Waits for work in flight, which may use the memory, as NVIDIA's driver does. */
API CUresult cuMemFree_v2(CUdeviceptr addr)
{
	struct context *ctx;
	struct memory m;
	CUresult rc, freed;

	TRY(context_current(&ctx));
	if (!addr)
		return CUDA_SUCCESS;
	TRY(capture_unsafe());
	if (!memory_find(addr, &m) || m.base != addr)
		return CUDA_ERROR_INVALID_VALUE;
	if (m.kind == MEMORY_MANAGED)
		return host_free(addr, MEMORY_MANAGED);
	if (m.kind == MEMORY_POOL) {
		TRY(context_sync(ctx));
		return cuMemFreeAsync(addr, CU_STREAM_LEGACY);
	}
	if (m.kind == MEMORY_PEER && ipc_pool(&m)) {
		TRY(context_sync(ctx));
		return ipc_free(addr, NULL);
	}
	if (m.kind == MEMORY_GRAPH)
		return graph_memory_freed(addr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (m.kind != MEMORY_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	rc = context_sync(m.ctx->live ? m.ctx : ctx);
	freed = free_at(addr);
	return rc ? rc : freed;
}
