// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - device memory: addresses of the client's choice, granules mapped behind them
 *
 * For each granule of the window: how many allocations lie in it, and whether the proxy has mapped
 * memory there. A granule without allocations may stay mapped for the next (`cached` bytes of them,
 * at most CACHE_MAX), and counts as free. Physical memory in use never exceeds the budget that the
 * session was granted, so that running out of memory is known here (DESIGN 3).
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

LOCAL pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
LOCAL struct space *memory_window;

static uint32_t *granule;	/* MAPPED | allocations in it */
static uint64_t granules;
static uint64_t mapped;		/* bytes of mapped granules, the cached ones included */
static uint64_t cached;		/* bytes of mapped granules without allocations */
static uint64_t charged;	/* bytes that VMM calls have created */

struct global {			/* a module's variable: few, so a list will do */
	struct memory m;
	struct global *next;
};

static struct global *globals;	/* memory_lock */

CUresult memory_init(void)
{
	const struct sv_shared *sh = session.shared;

	if (granule)
		munmap(granule, granules * sizeof(*granule));
	if (memory_window)
		space_free(memory_window);
	granules = sh->window_len / SV_GRANULE;
	granule = mmap(NULL, granules * sizeof(*granule), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (granule == MAP_FAILED) {
		granule = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mapped = cached = charged = 0;
	memory_window = space_new(sh->window, sh->window_len);
	return memory_window ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---------------------------------------------------------------------------------- granules */

static uint64_t index_of(uint64_t addr)
{
	return (addr - session.shared->window) / SV_GRANULE;
}

static CUresult tell(uint16_t op, uint64_t first, uint64_t n)
{
	struct sv_map a = { session.shared->window + first * SV_GRANULE, n * SV_GRANULE };

	return send_async(op, &a, sizeof(a), NULL, 0);
}

/* Unmap all runs of granules in [first, end) that no allocation uses. */
static CUresult unmap_unused(uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end;) {
		uint64_t n = 0;

		while (i + n < end && granule[i + n] == MAPPED)
			granule[i + n++] = 0;
		if (n) {
			mapped -= n * SV_GRANULE;
			cached -= n * SV_GRANULE;
			TRY(tell(SV_OP_X_UNMAP, i, n));
		}
		i += n ? n : 1;
	}
	return CUDA_SUCCESS;
}

void memory_unmap_cached(uint64_t addr, uint64_t len)
{
	unmap_unused(index_of(addr), index_of(addr + len - 1) + 1);
}

static uint64_t in_use(void)
{
	return mapped - cached + charged;
}

static uint64_t missing(uint64_t first, uint64_t end)
{
	uint64_t n = 0;

	for (uint64_t i = first; i < end; i++)
		n += !(granule[i] & MAPPED);
	return n * SV_GRANULE;
}

static CUresult map_missing(uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end;) {
		uint64_t n = 0;

		while (i + n < end && !(granule[i + n] & MAPPED))
			granule[i + n++] |= MAPPED;
		if (n) {
			mapped += n * SV_GRANULE;
			TRY(tell(SV_OP_X_MAP, i, n));
		}
		i += n ? n : 1;
	}
	return CUDA_SUCCESS;
}

/* One more allocation in each granule of the range, all of them mapped. */
static CUresult hold(uint64_t addr, uint64_t len)
{
	uint64_t first = index_of(addr), end = index_of(addr + len - 1) + 1, reused = 0;

	for (uint64_t i = first; i < end; i++)
		if (granule[i]++ == MAPPED)
			reused += SV_GRANULE;
	cached -= reused;
	if (in_use() + missing(first, end) <= session.shared->budget) {
		if (mapped + charged + missing(first, end) <= session.shared->budget)
			return map_missing(first, end);
		/* The cache is in the way: it gives all back. */
		TRY(unmap_unused(0, granules));
		return map_missing(first, end);
	}
	for (uint64_t i = first; i < end; i++)
		granule[i]--;
	cached += reused;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void unhold(uint64_t addr, uint64_t len)
{
	uint64_t first = index_of(addr), end = index_of(addr + len - 1) + 1;

	for (uint64_t i = first; i < end; i++)
		if (--granule[i] == MAPPED)
			cached += SV_GRANULE;
	if (cached > CACHE_MAX)
		unmap_unused(first, end);
}

/* ------------------------------------------------------------------------------- allocations */

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
	pthread_mutex_lock(&memory_lock);
	addr = space_alloc(memory_window, room, align, place, m);
	rc = addr ? hold(addr, room) : CUDA_ERROR_OUT_OF_MEMORY;
	if (rc && addr)
		space_release(memory_window, addr);
	m->base = addr;
	m->id = memory_next_id();
	pthread_mutex_unlock(&memory_lock);
	if (rc)
		free(m);
	else
		*out = m;
	return rc;
}

static void free_locked(struct memory *m)
{
	uint64_t base, len;
	void *owner;

	if (space_find(memory_window, m->base, &base, &len, &owner) && owner == m) {
		space_release(memory_window, base);
		unhold(base, len);
	}
}

void memory_free(struct memory *m)
{
	pthread_mutex_lock(&memory_lock);
	free_locked(m);
	pthread_mutex_unlock(&memory_lock);
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
		return false;	/* of registered memory: host.c's */
	g->found = m;
	return true;
}

void memory_context_gone(struct context *ctx)
{
	struct gone g = { .ctx = ctx };

	host_context_gone(ctx);
	ipc_context_gone(ctx);
	pthread_mutex_lock(&memory_lock);
	while (space_each(memory_window, of_context, &g)) {
		if (g.found->shown)
			ipc_forget(g.found->base);
		free_locked(g.found);
		free(g.found);
	}
	pthread_mutex_unlock(&memory_lock);
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

	pthread_mutex_lock(&memory_lock);
	left = session.shared->budget - in_use();
	pthread_mutex_unlock(&memory_lock);
	return left;
}

CUresult memory_charge(uint64_t len)
{
	CUresult rc = CUDA_SUCCESS;

	pthread_mutex_lock(&memory_lock);
	if (len > session.shared->budget - in_use())
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	else if (mapped + charged + len > session.shared->budget)
		rc = unmap_unused(0, granules);
	if (!rc)
		charged += len;
	pthread_mutex_unlock(&memory_lock);
	return rc;
}

void memory_uncharge(uint64_t len)
{
	pthread_mutex_lock(&memory_lock);
	charged -= len;
	pthread_mutex_unlock(&memory_lock);
}

/* --------------------------------------------------------------------------- what is where */

static bool find_locked(uint64_t addr, struct memory *out)
{
	const struct sv_shared *sh = session.shared;
	uint64_t base, len, arena = (uint64_t)(uintptr_t)session.arena;
	void *owner = NULL;

	if (addr - sh->window < sh->window_len)
		space_find(memory_window, addr, &base, &len, &owner);
	else if (addr - arena < ring_geometry(session.ring)->arena_len)
		arena_find(addr - arena, &base, &len, &owner);
	if (owner) {
		*out = *(struct memory *)owner;
		return true;
	}
	for (struct global *g = globals; g; g = g->next)
		if (addr - g->m.base < g->m.len) {
			*out = g->m;
			return true;
		}
	return false;
}

bool memory_find(uint64_t addr, struct memory *out)
{
	bool found;

	pthread_mutex_lock(&memory_lock);
	found = find_locked(addr, out);
	pthread_mutex_unlock(&memory_lock);
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
	struct global *g;

	pthread_mutex_lock(&memory_lock);
	for (g = globals; g && g->m.base != addr; g = g->next)
		;
	if (!g) {
		g = calloc(1, sizeof(*g));
		if (g) {
			g->next = globals;
			globals = g;
		}
	}
	if (g)
		g->m = (struct memory){ .kind = MEMORY_GLOBAL, .base = addr, .len = len,
					.ctx = thread.ctx, .id = memory_next_id(), .more = module };
	pthread_mutex_unlock(&memory_lock);
	return g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_drop_globals(void *module)
{
	pthread_mutex_lock(&memory_lock);
	for (struct global **p = &globals, *g; (g = *p);) {
		if (g->m.more == module) {
			*p = g->next;
			free(g);
		} else {
			p = &g->next;
		}
	}
	pthread_mutex_unlock(&memory_lock);
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
		pool_trim(true);	/* pools give back what they only keep */
		rc = memory_alloc(MEMORY_DEVICE, len, 0, 0, &m);
	}
	if (rc)
		return rc;
	*out = m->base;
	return CUDA_SUCCESS;
}

/* Work that is under way may use the memory: it is waited for, as NVIDIA's driver does. */
API CUresult cuMemFree_v2(CUdeviceptr addr)
{
	struct context *ctx;
	struct memory m;
	uint64_t base, len;
	CUresult rc;
	void *owner;
	bool ours;

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
	if (m.shown)
		ipc_forget(addr);
	pthread_mutex_lock(&memory_lock);
	ours = space_find(memory_window, addr, &base, &len, &owner) && base == addr;
	if (ours)
		free_locked(owner);
	pthread_mutex_unlock(&memory_lock);
	if (ours)
		free(owner);
	return rc;
}
