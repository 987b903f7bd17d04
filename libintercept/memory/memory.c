// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - device memory: addresses of the client's choice, pieces of memory mapped behind them
 *
 * Each granule of the window has a number of allocations and flags: whether the proxy has mapped
 * memory there. The proxy maps memory in pieces, of up to PIECE_MAX, which are unmapped as a whole.
 * A piece of several granules is used by one allocation alone, or by none: an allocation that would
 * take a part of such a piece has it unmapped first. So any granule without allocations can be
 * unmapped. Such granules may stay mapped for later allocations (`cached` bytes of them, at most
 * CACHE_MAX), and count as free. Physical memory in use never exceeds the session's budget, so the
 * client knows without the proxy when that is used up.
 *
 * Other processes use the device's memory, too, so the proxy answers when it has mapped a piece, or
 * that the driver has no memory left. The lock is dropped meanwhile:
 *
 *   0 ── held, record sent ──► GOING ── answered ──► MAPPED ── unused, record sent ──► GOING ── answered ──► 0
 *
 * A thread that needs a granule that is GOING waits.
 */
#include "arena.h"
#include "captured.h"
#include "context.h"
#include "memory_i.h"
#include "send.h"
#include "space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CACHE_MAX	(256ull << 20)
#define PIECE_MAX	(512ull << 20)
#define MAPPED		0x80000000u
#define GOING		0x40000000u
#define FIRST		0x20000000u	/* of a piece */
#define COUNT		0x1fffffffu
#define ALIGN		512u
#define CROWDED_NS	10000000	/* between two looks at whether the job has been moved */

struct global {			/* a module's variable; a list, since they are few */
	struct memory m;
	struct global *next;
};

struct granules {		/* a session's; locks.memory */
	uint32_t *of;		/* per granule: MAPPED | GOING | FIRST | number of allocations */
	uint64_t n;
	uint64_t mapped;	/* bytes of mapped granules, the cached and the leaving ones included */
	uint64_t cached;	/* bytes of mapped granules without allocations */
	uint64_t leaving;	/* bytes that the proxy is unmapping */
	uint64_t promised;	/* bytes of unmapped granules with allocations */
	uint64_t charged;	/* bytes that VMM calls have created */
	struct global *globals;
	pthread_cond_t gone;	/* granules that were GOING */
};

CUresult memory_begin(void)
{
	const struct sv_shared *sh = here->shared;
	struct granules *gr = here->granules;

	if (!gr)
		gr = here->granules = calloc(1, sizeof(*gr));
	if (!gr)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (gr->of)
		munmap(gr->of, gr->n * sizeof(*gr->of));
	if (here->window)
		space_free(here->window);
	*gr = (struct granules){ .n = sh->window_len / SV_GRANULE, .globals = gr->globals,
				  .gone = PTHREAD_COND_INITIALIZER };
	gr->of = mmap(NULL, gr->n * sizeof(*gr->of), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (gr->of == MAP_FAILED) {
		gr->of = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	here->window = space_new(sh->window, sh->window_len);
	return here->window ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---------------------------------------------------------------------------------- granules */

static uint64_t index_of(uint64_t addr)
{
	return (addr - here->shared->window) / SV_GRANULE;
}

static bool unused(uint32_t granule)
{
	return granule & MAPPED && !(granule & COUNT);
}

static uint64_t piece_first(uint64_t i)
{
	while (!(here->granules->of[i] & FIRST))
		i--;
	return i;
}

static uint64_t piece_end(uint64_t i)
{
	struct granules *gr = here->granules;

	for (i++; i < gr->n && (gr->of[i] & (MAPPED | FIRST)) == MAPPED; i++)
		;
	return i;
}

/* Send a record about n granules, which are GOING until it is answered. The lock is dropped. */
static CUresult tell(uint16_t op, uint64_t first, uint64_t n)
{
	struct sv_pieces a = { here->shared->window + first * SV_GRANULE, n * SV_GRANULE,
			       n * SV_GRANULE < PIECE_MAX ? n * SV_GRANULE : PIECE_MAX };
	uint32_t len = op == SV_OP_X_MAP_PIECES ? sizeof(a) : sizeof(struct sv_map);
	struct granules *gr = here->granules;
	CUresult rc;

	for (uint64_t i = first; i < first + n; i++)
		gr->of[i] |= GOING;
	lock_drop(&process.locks.memory);
	rc = send_sync(op, &a, len, NULL, 0, NULL, 0);
	lock_take(&process.locks.memory);
	for (uint64_t i = first; i < first + n; i++)
		gr->of[i] &= ~GOING;
	pthread_cond_broadcast(&gr->gone);
	return rc;
}

/* Unmap the pieces of [first, end). Those who hold a part of one have it mapped anew. */
static CUresult unmap(uint64_t first, uint64_t end)
{
	uint64_t len = (end - first) * SV_GRANULE;
	struct granules *gr = here->granules;
	CUresult rc;

	for (uint64_t i = first; i < end; i++) {
		gr->of[i] &= COUNT;
		if (gr->of[i])
			gr->promised += SV_GRANULE;
		else
			gr->cached -= SV_GRANULE;
	}
	gr->leaving += len;
	rc = tell(SV_OP_X_UNMAP, first, end - first);
	gr->leaving -= len;
	gr->mapped -= len;
	return rc;
}

/* Unmap all pieces with granules in [first, end) that have no allocation. The lock is dropped. */
static CUresult unmap_unused(uint64_t first, uint64_t end)
{
	struct granules *gr = here->granules;

	for (uint64_t i = first, from; i < end; i++) {
		if (!unused(gr->of[i]))
			continue;
		from = piece_first(i);
		do
			i = piece_end(i);
		while (i < end && unused(gr->of[i]));
		TRY(unmap(from, i));
	}
	return CUDA_SUCCESS;
}

/* Wait until no granule of [first, end) is GOING. */
static void settle(uint64_t first, uint64_t end)
{
	struct granules *gr = here->granules;

	for (uint64_t i = first; i < end; i++)
		if (gr->of[i] & GOING) {
			lock_wait(&process.locks.memory, &gr->gone);
			i = first - 1;
		}
}

CUresult memory_unmap_cached(uint64_t addr, uint64_t len)
{
	uint64_t first = index_of(addr), end = index_of(addr + len - 1) + 1;
	CUresult rc;

	lock_may_wait("device memory to go");
	lock_take(&process.locks.memory);
	rc = unmap_unused(first, end);
	settle(first, end);
	lock_drop(&process.locks.memory);
	return rc;
}

static uint64_t in_use(void)
{
	struct granules *gr = here->granules;

	return gr->mapped - gr->cached - gr->leaving + gr->promised + gr->charged;
}

static void unhold(uint64_t first, uint64_t end)
{
	struct granules *gr = here->granules;

	for (uint64_t i = first; i < end; i++) {
		gr->of[i]--;
		if (unused(gr->of[i]))
			gr->cached += SV_GRANULE;
		else if (!(gr->of[i] & COUNT))
			gr->promised -= SV_GRANULE;
	}
}

/* Count one more allocation in each granule of the range. OUT_OF_MEMORY: over the budget. */
static CUresult hold(uint64_t first, uint64_t end)
{
	struct granules *gr = here->granules;

	for (uint64_t i = first; i < end; i++) {
		if (unused(gr->of[i]))
			gr->cached -= SV_GRANULE;
		else if (!(gr->of[i] & COUNT))
			gr->promised += SV_GRANULE;
		gr->of[i]++;
	}
	if (in_use() <= here->shared->budget)
		return CUDA_SUCCESS;
	unhold(first, end);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Unmap all cached granules if promised and charged memory needs their part of the budget. */
static CUresult make_room(void)
{
	struct granules *gr = here->granules;

	while (gr->mapped + gr->promised + gr->charged > here->shared->budget) {
		if (gr->cached)
			TRY(unmap_unused(0, gr->n));
		else if (gr->leaving)
			lock_wait(&process.locks.memory, &gr->gone);
		else
			break;
	}
	return CUDA_SUCCESS;
}

/*
 * Have the range mapped, whose granules are all held. Granules that it fills, [first, end), are in
 * pieces of their own; one at either end that it shares with other allocations is a piece.
 */
static CUresult map_missing(uint64_t first, uint64_t end, uint64_t from, uint64_t to)
{
	struct granules *gr = here->granules;
	CUresult rc = CUDA_SUCCESS;

	for (uint64_t i = from, n; i < to && !rc; i += n) {
		uint64_t stop = i < first ? first : i < end ? end : to;

		n = 1;
		if (gr->of[i] & GOING) {
			lock_wait(&process.locks.memory, &gr->gone);
			n = 0;
		} else if (gr->of[i] & MAPPED) {
			/* The ends may lie in pieces that reach farther. */
			uint64_t low = piece_first(i), high = piece_end(i);

			if (high - low > 1 && (low < first || high > end)) {
				rc = unmap(low, high);
				n = 0;
			}
		} else {
			while (i + n < stop && !(gr->of[i + n] & (MAPPED | GOING)))
				n++;
			rc = make_room();
			if (!rc)
				rc = tell(SV_OP_X_MAP_PIECES, i, n);
			for (uint64_t j = i; !rc && j < i + n; j++)
				gr->of[j] |= MAPPED | ((j - i) * SV_GRANULE % PIECE_MAX ? 0 : FIRST);
			gr->mapped += rc ? 0 : n * SV_GRANULE;
			gr->promised -= rc ? 0 : n * SV_GRANULE;
		}
	}
	return rc;
}

/* ------------------------------------------------------------------------------- allocations */

static CUresult hold_all(uint64_t addr, uint64_t len)
{
	return hold(index_of(addr), index_of(addr + len - 1) + 1);
}

/*
 * The device's other sharers have what is missing. Is the job about to be moved for that? Then comes back when it has been, or cannot
 * be, with *waited. The lock is dropped. This process is dumped in here.
 */
static CUresult await_room(bool *waited)
{
	const struct timespec nap = { .tv_nsec = CROWDED_NS };
	CUresult rc;

	*waited = false;
	lock_drop(&process.locks.memory);
	while ((rc = send_sync(SV_OP_X_CROWDED, NULL, 0, NULL, 0, NULL, 0)) == CUDA_ERROR_NOT_READY) {
		*waited = true;
		nanosleep(&nap, NULL);
	}
	lock_take(&process.locks.memory);
	return rc;
}

static CUresult map_all(uint64_t addr, uint64_t len)
{
	uint64_t from = index_of(addr), to = index_of(addr + len - 1) + 1;
	uint64_t first = index_of(addr + SV_GRANULE - 1), end = index_of(addr + len);
	struct granules *gr = here->granules;
	bool waited;
	CUresult rc;

	lock_take(&process.locks.memory);
	rc = map_missing(first, end, from, to);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY && gr->cached) {
		rc = unmap_unused(0, gr->n);	/* other processes have taken the rest */
		if (!rc)
			rc = map_missing(first, end, from, to);
	}
	while (rc == CUDA_ERROR_OUT_OF_MEMORY) {
		CUresult late = await_room(&waited);

		if (!late && !waited)
			break;
		rc = late ?: map_missing(first, end, from, to);
	}
	lock_drop(&process.locks.memory);
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
	*m = (struct memory){ .kind = kind, .len = len, .ctx = thread.ctx, .session = here };
	lock_may_wait("device memory");
	lock_take(&process.locks.memory);
	addr = space_alloc(here->window, room, align, place, m);
	rc = addr ? hold_all(addr, room) : CUDA_ERROR_OUT_OF_MEMORY;
	if (rc && addr)
		space_release(here->window, addr);
	m->base = addr;
	m->id = memory_next_id();
	lock_drop(&process.locks.memory);
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

	assert_held(&process.locks.memory);
	if (!space_find(here->window, m->base, &base, &len, &owner) || owner != m)
		return false;
	space_release(here->window, base);
	unhold(index_of(base), index_of(base + len - 1) + 1);
	return true;
}

/*
 * Without the lock: unmap the range's cached granules if the cache is over its limit, and all of them when the proxy
 * looks for the place where the least memory is in use.
 */
static void shrink_cache(uint64_t addr, uint64_t len)
{
	struct granules *gr = here->granules;

	if (unlikely(session_at_step()) && __atomic_load_n(&gr->cached, __ATOMIC_RELAXED))
		memory_unmap_cached(here->shared->window, gr->n * SV_GRANULE);
	else if (__atomic_load_n(&gr->cached, __ATOMIC_RELAXED) > CACHE_MAX)
		memory_unmap_cached(addr, len);
}

void memory_free(struct memory *m)
{
	ON(m->session);

	lock_may_wait("device memory to go");
	lock_take(&process.locks.memory);
	take_out(m);
	lock_drop(&process.locks.memory);
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
	assert_held(&process.locks.memory);
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
		lock_take(&process.locks.memory);
		found = space_each(here->window, of_context, g);
		if (found)
			rc = withdraw(g->found);
		lock_drop(&process.locks.memory);
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
		arena_free(g.found->base - sv_u64(process.arena));
		free(g.found->more);
		free(g.found);
	}
	pool_context_gone(ctx);
}

/* A restored session may have got less than it had. */
static uint64_t room(void)
{
	uint64_t used = in_use(), budget = here->shared->budget;

	return used < budget ? budget - used : 0;
}

uint64_t memory_left(void)
{
	uint64_t left;

	lock_take(&process.locks.memory);
	left = room();
	lock_drop(&process.locks.memory);
	return left;
}

CUresult memory_charge(uint64_t len)
{
	struct granules *gr = here->granules;
	CUresult rc = CUDA_SUCCESS;
	bool charged;

	lock_may_wait("device memory");
	lock_take(&process.locks.memory);
	charged = len <= room();
	if (charged)
		gr->charged += len;
	else
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc)
		rc = make_room();
	lock_drop(&process.locks.memory);
	if (rc && charged)
		memory_uncharge(len);
	return rc;
}

void memory_uncharge(uint64_t len)
{
	struct granules *gr = here->granules;

	lock_take(&process.locks.memory);
	gr->charged -= len;
	lock_drop(&process.locks.memory);
}

/* --------------------------------------------------------------------- finding allocations */

static bool find_locked(uint64_t addr, struct memory *out)
{
	uint64_t base, len, arena = (uint64_t)(uintptr_t)process.arena;
	struct session *s = session_at(addr);
	void *owner = NULL;

	if (s)
		space_find(s->window, addr, &base, &len, &owner);
	else if (addr - arena < process.arena_len)
		arena_find(addr - arena, &base, &len, &owner);
	if (owner) {
		*out = *(struct memory *)owner;
		return true;
	}
	/* Drivers in different processes may have variables at the same addresses: `here` is first. */
	for (int i = -1; i < process.devices; i++) {
		s = i < 0 ? here : &sessions[i];
		for (struct global *g = s->granules ? s->granules->globals : NULL; g; g = g->next)
			if (addr - g->m.base < g->m.len) {
				*out = g->m;
				return true;
			}
	}
	return false;
}

bool memory_find(uint64_t addr, struct memory *out)
{
	bool found;

	lock_take(&process.locks.memory);
	found = find_locked(addr, out);
	lock_drop(&process.locks.memory);
	if (!found)
		return host_registered(addr, out);
	return out->kind == MEMORY_POOL ? pool_find(addr, out) : true;
}

CUresult memory_range(uint64_t addr, uint64_t len)
{
	struct memory m;

	if (!memory_find(addr, &m) || m.kind == MEMORY_REGISTERED || addr - m.base > m.len ||
	    len > m.len - (addr - m.base) || !memory_is_here(&m))
		return CUDA_ERROR_INVALID_VALUE;
	return m.kind == MEMORY_RESERVED ? vmm_range(addr, len) : CUDA_SUCCESS;
}

CUresult memory_add_global(uint64_t addr, uint64_t len, void *module)
{
	struct granules *gr = here->granules;
	struct global *g;

	lock_take(&process.locks.memory);
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
					.session = here,
					.ctx = thread.ctx, .id = memory_next_id(), .more = module };
	lock_drop(&process.locks.memory);
	return g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_drop_globals(void *module)
{
	lock_take(&process.locks.memory);
	for (int i = 0; i < process.devices; i++) {
		struct granules *gr = sessions[i].granules;

		for (struct global **p = gr ? &gr->globals : NULL, *g; p && (g = *p);) {
			if (g->m.more == module) {
				*p = g->next;
				free(g);
			} else {
				p = &g->next;
			}
		}
	}
	lock_drop(&process.locks.memory);
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
		lock_take(&process.locks.memory);
		m = space_find(here->window, addr, &base, NULL, &owner) && base == addr ? owner : NULL;
		rc = m ? withdraw(m) : CUDA_SUCCESS;
		lock_drop(&process.locks.memory);
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
	ON(m.session);
	if (m.kind == MEMORY_POOL) {
		TRY(context_sync(ctx));
		return cuMemFreeAsync(addr, CU_STREAM_LEGACY);
	}
	if (m.kind == MEMORY_PEER && ipc_pool(&m)) {
		TRY(context_sync(ctx));
		return ipc_free(addr, NULL);
	}
	if (m.kind == MEMORY_GRAPH) {
		TRY(context_sync(m.ctx->live ? m.ctx : ctx));
		return graph_hooks.memory_freed(addr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	if (m.kind != MEMORY_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	rc = context_sync(m.ctx->live ? m.ctx : ctx);
	if (rc == CUDA_ERROR_EXTERNAL_DEVICE)	/* what stands may use it yet */
		return rc;
	freed = free_at(addr);
	return rc ? rc : freed;
}
