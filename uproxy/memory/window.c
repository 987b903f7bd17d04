// SPDX-License-Identifier: Apache-2.0
/*
 * window.c - the device addresses that belong to the session: granules of the window, pins, globals
 *
 * `granule` has a byte for each granule (2 MiB) of the window; workers look it up through sv_window.
 * Memory is mapped in pieces, by SV_OP_X_MAP and SV_OP_X_MAP_PIECES or, with a piece for each call,
 * by cuMemMap. A piece is unmapped as a whole, so its first granule is marked.
 *
 * The driver may take long to map, unmap or pin, and may wait for the device, so workers call it.
 * The consumer checks the record and sets the range apart; until the worker is done nothing else can
 * use it:
 *
 *   0 ── map ──► G_BUSY ── do_mapping ──► G_MAP ── unmap ──► G_MAP | G_BUSY ── do_unmapping ──► 0
 *   (nowhere) ── pin ──► in `pinning` ── pin_it ──► in `pins`
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "answer.h"
#include "common.h"
#include "context.h"
#include "crowd.h"
#include "device_memory.h"
#include "fail.h"
#include "handle.h"
#include "peer.h"
#include "still.h"
#include "worker.h"

#define PAGE	4096ull
#define LARGE	(16ull << 20)	/* bytes of a pinned range */

#define G_MAP	0x01u		/* of SV_OP_X_MAP, SV_OP_X_MAP_PIECES */
#define G_VMM	0x02u		/* of SV_OP_cuMemMap */
#define G_FIRST	0x04u		/* first of a piece */
#define G_PEER	0x08u		/* memory of another process */
#define G_READ	0x10u
#define G_WRITE	0x20u
#define G_OPEN	0x40u		/* G_MAP, and can be exported */
#define G_BUSY	0x80u		/* a worker maps or unmaps it */

struct range {
	uint64_t at, len;
	const void *owner;	/* of a global: its image */
	uint64_t ctx;
};

struct ranges {			/* sorted by address, disjoint */
	struct range *r;
	size_t n, cap;
};

static uint8_t *granule;
static uint64_t mapped, pinned;	/* bytes; atomic */
static uint64_t arena_end;	/* of the arena, as far as it is there; atomic, only grows */
static struct ranges pins;	/* arena offsets */
static struct ranges pinning;	/* the same, not pinned yet */
static unsigned int repins;	/* counts window_repin */
static struct ranges globals;
static struct ranges mappings;	/* of cuMemMap: owner is its struct vmm; consumer */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;	/* pins, pinning, repins, globals */
static const struct lock rank = LOCK_INIT(PROXY_WINDOW);	/* what the checker of locks knows of it */

static inline void lock_to_read(void)
{
	lock_takes(&rank);
	pthread_rwlock_rdlock(&lock);
}

static inline void lock_to_change(void)
{
	lock_takes(&rank);
	pthread_rwlock_wrlock(&lock);
}

static inline void unlock(void)
{
	lock_drops(&rank);
	pthread_rwlock_unlock(&lock);
}

int window_init(struct sv_session *s)
{
	granule = mmap(NULL, s->hal.window_len / SV_GRANULE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	arena_end = s->arena_len < RING_ARENA_LEAST ? s->arena_len : RING_ARENA_LEAST;
	return granule == MAP_FAILED ? -ENOMEM : 0;
}

/* ------------------------------------------------------------------------------ ranges */

/* The first range that ends behind at. */
static size_t range_index(const struct ranges *x, uint64_t at)
{
	size_t lo = 0, hi = x->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (x->r[mid].at + x->r[mid].len <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int range_add(struct ranges *x, uint64_t at, uint64_t len, const void *owner, uint64_t ctx)
{
	size_t i = range_index(x, at);

	if (i < x->n && x->r[i].at < at + len)
		return -EEXIST;
	if (x->n == x->cap) {
		size_t cap = x->cap ? x->cap * 2 : 64;
		struct range *r = realloc(x->r, cap * sizeof(*r));

		if (!r)
			return -ENOMEM;
		x->r = r;
		x->cap = cap;
	}
	memmove(x->r + i + 1, x->r + i, (x->n - i) * sizeof(*x->r));
	x->r[i] = (struct range){ at, len, owner, ctx };
	x->n++;
	return 0;
}

static void range_erase(struct ranges *x, size_t i)
{
	x->n--;
	memmove(x->r + i, x->r + i + 1, (x->n - i) * sizeof(*x->r));
}

/* Is all of it in ranges that follow each other without a hole? */
static bool range_covers(const struct ranges *x, uint64_t at, uint64_t len)
{
	for (size_t i = range_index(x, at); len; i++) {
		uint64_t n;

		if (i == x->n || x->r[i].at > at)
			return false;
		n = x->r[i].at + x->r[i].len - at;
		if (n >= len)
			return true;
		at += n;
		len -= n;
	}
	return true;
}

/* ------------------------------------------------------------------------------ look-ups */

static bool in_arena(const struct sv_session *s, uint64_t off, uint64_t len)
{
	return off >= s->arena_first && off <= s->arena_len && len <= s->arena_len - off;
}

/* Has pages of the arena, which then is there up to them. */
static int arena_commit(const struct sv_session *s, uint64_t off, uint64_t len)
{
	uint64_t old = __atomic_load_n(&arena_end, __ATOMIC_RELAXED), end = off + len;
	int rc = s->guest ? ring_guest_commit(&s->home, off, len) : ring_commit(s->ring, off, len);

	while (!rc && old < end && !__atomic_compare_exchange_n(&arena_end, &old, end, true, __ATOMIC_RELAXED,
								__ATOMIC_RELAXED))
		;
	return rc;
}

/* Makes sure that the arena is there up to `end`, a whole page's. */
static int arena_reach(const struct sv_session *s, uint64_t end)
{
	return end <= __atomic_load_n(&arena_end, __ATOMIC_RELAXED) ? 0 : arena_commit(s, end - PAGE, PAGE);
}

/* Bytes that the host can still give to anybody; UINT64_MAX: it does not say. */
static uint64_t host_room(void)
{
	unsigned long long avail = 0, swap = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];

	if (!f)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), f)) {
		(void)sscanf(line, "MemAvailable: %llu", &avail);
		(void)sscanf(line, "SwapFree: %llu", &swap);
	}
	fclose(f);
	return avail ? (avail + swap) << 10 : UINT64_MAX;
}

/*
 * Backs what is to be pinned. A restored arena has its data already, and all else of it may stay away.
 * Programs often use a part of what is large, so its pages come at the first access, or when a driver pins
 * them. The module's limits are told of by COMMIT alone.
 */
static int arena_back(const struct sv_session *s, uint64_t off, uint64_t len)
{
	if (s->guest || s->replay)
		return arena_reach(s, off + len);
	if (len < LARGE || ring_backend(s->ring) != RING_MEMFD)
		return arena_commit(s, off, len);
	return len > host_room() ? -ENOMEM : arena_reach(s, off + len);
}

bool arena_client(const struct sv_session *s, uint64_t off, uint64_t len)
{
	if (!in_arena(s, off, len))
		return false;
	/* A logged record's range may have been unpinned since, and so not have come back. */
	return off + len <= __atomic_load_n(&arena_end, __ATOMIC_RELAXED) ||
	       (s->replay && !arena_reach(s, (off + len + PAGE - 1) & -PAGE));
}

bool arena_pinned(struct sv_session *s, uint64_t off, uint64_t len)
{
	bool is;

	if (!arena_client(s, off, len))
		return false;
	/* A logged record was checked then. */
	if (s->replay)
		return true;
	lock_to_read();
	is = range_covers(&pins, off, len);
	unlock();
	return is;
}

static bool in_window(const struct sv_session *s, uint64_t va, uint64_t len)
{
	return va >= s->hal.window && va - s->hal.window <= s->hal.window_len &&
	       len <= s->hal.window_len - (va - s->hal.window);
}

static bool granules_have(const struct sv_session *s, uint64_t va, uint64_t len, uint8_t bits)
{
	uint64_t i = (va - s->hal.window) / SV_GRANULE;
	uint64_t end = (va - s->hal.window + len + SV_GRANULE - 1) / SV_GRANULE;

	for (; i < end; i++)
		if ((__atomic_load_n(&granule[i], __ATOMIC_RELAXED) & bits) != bits)
			return false;
	return true;
}

int sv_window(struct sv_session *s, uint64_t addr, uint64_t len, int write)
{
	uint64_t arena = (uintptr_t)s->arena;
	bool ok;

	if (!len)
		return 0;
	if (len == UINT64_MAX || addr + len < addr)
		return CUDA_ERROR_INVALID_VALUE;
	/* A logged record was checked then; the log may lack mappings that have gone since. */
	if (s->replay && in_window(s, addr, len))
		return 0;
	if (in_window(s, addr, len))
		return granules_have(s, addr, len, write ? G_WRITE : G_READ) ? 0 :
			CUDA_ERROR_INVALID_VALUE;
	if (addr >= arena && addr - arena < s->arena_len)
		return arena_pinned(s, addr - arena, len) ? 0 : CUDA_ERROR_INVALID_VALUE;
	lock_to_read();
	ok = range_covers(&globals, addr, len);
	unlock();
	return ok ? 0 : CUDA_ERROR_INVALID_VALUE;
}

int globals_add(const void *owner, uint64_t ctx, uint64_t addr, uint64_t len)
{
	int rc;

	if (!len)
		return 0;
	if (addr + len < addr)
		return -EINVAL;
	lock_to_change();
	rc = range_add(&globals, addr, len, owner, ctx);
	if (rc == -EEXIST && range_covers(&globals, addr, len))
		rc = 0;		/* added before */
	unlock();
	return rc;
}

void globals_drop(const void *owner, uint64_t ctx)
{
	lock_to_change();
	for (size_t i = globals.n; i-- > 0;)
		if ((!owner || globals.r[i].owner == owner) && (!ctx || globals.r[i].ctx == ctx))
			range_erase(&globals, i);
	unlock();
}

/* ------------------------------------------------------------------------------ mapping */

static int whole(struct call *k, uint64_t va, uint64_t len)
{
	if (!len || va % SV_GRANULE || len % SV_GRANULE || !in_window(k->c.session, va, len))
		return sv_bad(&k->c, "a range that is not whole granules of the window");
	return 0;
}

static uint8_t *granule_at(const struct sv_session *s, uint64_t va)
{
	return &granule[(va - s->hal.window) / SV_GRANULE];
}

static void set_granules(const struct sv_session *s, uint64_t va, uint64_t len, uint8_t bits)
{
	uint8_t *g = granule_at(s, va);

	for (uint64_t i = 0; i < len / SV_GRANULE; i++)
		__atomic_store_n(&g[i], bits, __ATOMIC_RELAXED);
}

static bool granules_free(const struct sv_session *s, uint64_t va, uint64_t len)
{
	const uint8_t *g = granule_at(s, va);

	for (uint64_t i = 0; i < len / SV_GRANULE; i++)
		if (__atomic_load_n(&g[i], __ATOMIC_RELAXED))
			return false;
	return true;
}

/* Does a piece of this kind (G_MAP, G_VMM) have the granules on both sides of va? */
static bool inside_piece(const struct sv_session *s, uint64_t va, uint8_t kind)
{
	return va < s->hal.window + s->hal.window_len &&
	       (*granule_at(s, va) & (kind | G_FIRST)) == kind;
}

/* Is the range a row of whole pieces of this kind? */
static bool whole_pieces(const struct sv_session *s, uint64_t va, uint64_t len, uint8_t kind)
{
	return granules_have(s, va, len, kind) && !inside_piece(s, va, kind) &&
	       !inside_piece(s, va + len, kind);
}

/* What goes also leaves room for other sharers. Their limit is asked for what comes: crowd_comes(), crowd_has(). */
static void account(struct sv_session *s, int64_t bytes)
{
	uint64_t now = __atomic_add_fetch(&mapped, bytes, __ATOMIC_RELAXED);

	if (bytes < 0)
		crowd_leaves(-bytes);
	__atomic_store_n(&s->stat->device_bytes, now, __ATOMIC_RELAXED);
	if (now > s->stat->device_peak)
		__atomic_store_n(&s->stat->device_peak, now, __ATOMIC_RELAXED);
}

static void account_pins(struct sv_session *s, int64_t bytes)
{
	uint64_t now = __atomic_add_fetch(&pinned, bytes, __ATOMIC_RELAXED);

	__atomic_store_n(&s->stat->pinned_bytes, now, __ATOMIC_RELAXED);
}

uint64_t window_bytes(uint64_t *pins)
{
	if (pins)
		*pins = __atomic_load_n(&pinned, __ATOMIC_RELAXED);
	return __atomic_load_n(&mapped, __ATOMIC_RELAXED);
}

static uint64_t left(const struct sv_session *s)
{
	uint64_t used = window_bytes(NULL);

	return used < s->budget ? s->budget - used : 0;
}

struct work {			/* on a range that has been set apart */
	struct answer answer;
	CUresult (*fn)(struct sv_session *s, uint64_t at, uint64_t len, uint64_t piece);
	uint64_t at, len, piece;
};

static void work(void *arg)
{
	struct work *w = arg;
	struct sv_session *s = w->answer.s;
	CUresult r;

	/* Memory is mapped even if that context is gone. */
	s->hal.drv.cuCtxSetCurrent(s->hal.primary);
	context_forget();
	r = w->fn(s, w->at, w->len, w->piece);
	answer_now(&w->answer, r, NULL, 0);
	free(w);
}

/* Nobody waits for a record that is not to be answered: it is done before the next one. */
static int on_worker(struct call *k,
		     CUresult (*fn)(struct sv_session *s, uint64_t at, uint64_t len, uint64_t piece),
		     uint64_t at, uint64_t len, uint64_t piece)
{
	struct work *w = k->cpl && !k->c.session->replay ? malloc(sizeof(*w)) : NULL;

	if (w) {
		*w = (struct work){ answer_later(k), fn, at, len, piece };
		if (!worker_run(work, w))
			return CALL_LATER;
		free(w);
	}
	return fails(k, fn(k->c.session, at, len, piece));
}

static CUresult do_mapping(struct sv_session *s, uint64_t va, uint64_t len, uint64_t piece)
{
	CUresult r = CUDA_SUCCESS;

	if (common_on)
		common_map(va, len);
	else
		r = hal_map(&s->hal, va, len, piece);
	if (r)
		account(s, -(int64_t)len);
	for (uint64_t at = 0; at < len; at += SV_GRANULE)
		set_granules(s, va + at, SV_GRANULE, r ? 0 : G_MAP | G_READ | G_WRITE |
			     (at % piece ? 0 : G_FIRST));
	return r;
}

static int map(struct call *k, uint64_t va, uint64_t len, uint64_t piece)
{
	struct sv_session *s = k->c.session;

	if (whole(k, va, len))
		return -EBADMSG;
	if (!piece || piece % SV_GRANULE)
		return sv_bad(&k->c, "pieces that are not whole granules");
	if (!granules_free(s, va, len))
		return sv_bad(&k->c, "memory mapped where there is some already");
	if (len > left(s) && !s->restored)
		return sv_bad(&k->c, "more memory than was granted");
	/* A restored job may come from a device that it had alone, or with fewer others, and the client may not have seen that yet. */
	if (len > left(s) || (common_on && !common_has(&s->hal, va, len)))
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	if (s->replay)
		crowd_has(len);
	else if (!crowd_comes(len))
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	set_granules(s, va, len, G_BUSY);
	account(s, len);
	return on_worker(k, do_mapping, va, len, piece);
}

int do_map(struct call *k)
{
	const struct sv_map *a = k->c.data;

	return map(k, a->va, a->len, SV_GRANULE);
}

int do_map_pieces(struct call *k)
{
	const struct sv_pieces *a = k->c.data;

	return map(k, a->va, a->len, a->piece);
}

int do_crowded(struct call *k)
{
	return fails(k, crowd_waits() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

static CUresult do_unmapping(struct sv_session *s, uint64_t va, uint64_t len, uint64_t piece)
{
	CUresult r = CUDA_SUCCESS;

	(void)piece;
	if (common_on)
		common_unmap(va, len);
	else
		r = hal_unmap(&s->hal, va, len);
	if (!r)
		account(s, -(int64_t)len);
	for (uint8_t *g = granule_at(s, va), *end = g + len / SV_GRANULE; g < end; g++)
		__atomic_store_n(g, r ? (*g & ~G_BUSY) | G_READ | G_WRITE : 0, __ATOMIC_RELAXED);
	return r;
}

int do_unmap(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_map *a = k->c.data;

	if (whole(k, a->va, a->len))
		return -EBADMSG;
	if (granules_free(s, a->va, a->len))
		return fails(k, CUDA_ERROR_INVALID_VALUE);	/* its mapping failed */
	if (!whole_pieces(s, a->va, a->len, G_MAP) || !granules_have(s, a->va, a->len, G_READ))
		return sv_bad(&k->c, "unmapping what is not mapped so");
	if (s->shares)
		peer_hide(a->va, a->len);
	for (uint8_t *g = granule_at(s, a->va), *end = g + a->len / SV_GRANULE; g < end; g++)
		__atomic_store_n(g, (*g & ~(G_READ | G_WRITE)) | G_BUSY, __ATOMIC_RELAXED);
	return on_worker(k, do_unmapping, a->va, a->len, 0);
}

bool window_next_run(struct sv_session *s, uint64_t from, uint64_t *va, uint64_t *len)
{
	uint64_t n = s->hal.window_len / SV_GRANULE, i = (from - s->hal.window) / SV_GRANULE, end;

	while (i < n && !(granule[i] & G_MAP))
		i += i % 8 || *(const uint64_t *)&granule[i] ? 1 : 8;
	if (i >= n)
		return false;
	for (end = i; end < n && granule[end] & G_MAP; end++)
		;
	*va = s->hal.window + i * SV_GRANULE;
	*len = (end - i) * SV_GRANULE;
	return true;
}

/* ------------------------------------------------------------------------------ other processes */

bool window_mapped(const struct sv_session *s, uint64_t va, uint64_t len)
{
	return in_window(s, va, len) && granules_have(s, va, len, G_MAP | G_READ);
}

/* Copies a granule's contents to other memory, mapped at spare for the copy. The device is idle. */
static CUresult copied(struct hal *h, CUmemGenericAllocationHandle to, uint64_t spare, uint64_t va)
{
	CUresult r = h->drv.cuMemMap(spare, SV_GRANULE, 0, to, 0);

	if (r)
		return r;
	lock_may_wait("the device");
	r = hal_access(h, spare, SV_GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	if (!r)
		r = h->drv.cuMemcpyDtoD_v2(spare, va, SV_GRANULE);
	if (!r)
		r = h->drv.cuCtxSynchronize();
	h->drv.cuMemUnmap(spare, SV_GRANULE);
	return r;
}

/* Maps the n granules of memory `by` instead of the piece at va; the device is idle. */
static CUresult replaced(struct sv_session *s, const CUmemGenericAllocationHandle *by, uint64_t n,
			 uint64_t va)
{
	CUmemGenericAllocationHandle old;
	struct hal *h = &s->hal;
	CUresult r = h->drv.cuMemRetainAllocationHandle(&old, (void *)va);
	uint64_t i = 0;

	if (r)
		return r;
	r = hal_unmap(h, va, n * SV_GRANULE);
	if (!r) {
		for (; i < n && !r; i++)
			r = h->drv.cuMemMap(va + i * SV_GRANULE, SV_GRANULE, 0, by[i], 0);
		if (r && --i)
			hal_unmap(h, va, i * SV_GRANULE);
		if (r && h->drv.cuMemMap(va, n * SV_GRANULE, 0, old, 0))
			session_fail(s, -ENOMEM, "memory that was to be shared is lost", 0, 0);
		if (hal_access(h, va, n * SV_GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			session_fail(s, -ENOMEM, "memory that was to be shared is lost", 0, 0);
	}
	h->drv.cuMemRelease(old);
	return r;
}

/* Replaces the piece of n granules at va by exportable granules; spare is room for one. */
static CUresult make_open(struct sv_session *s, uint64_t va, uint64_t n, uint64_t spare)
{
	CUmemGenericAllocationHandle *own = calloc(n, sizeof(*own));
	CUmemAllocationProp prop = s->hal.prop;
	CUresult r = own ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t i;

	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	for (i = 0; i < n && !r; i++) {
		r = s->hal.drv.cuMemCreate(&own[i], SV_GRANULE, &prop, 0);
		if (r)
			break;
		r = copied(&s->hal, own[i], spare, va + i * SV_GRANULE);
	}
	if (!r)
		r = replaced(s, own, n, va);
	while (i)
		s->hal.drv.cuMemRelease(own[--i]);
	free(own);
	if (!r)
		set_granules(s, va, n * SV_GRANULE,
			     G_MAP | G_FIRST | G_OPEN | G_READ | G_WRITE);
	return r;
}

CUresult window_shareable(struct sv_session *s, uint64_t va, uint64_t len)
{
	uint64_t end = va + len, next;
	CUdeviceptr spare = 0;
	CUresult r = common_on ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;

	for (va &= ~(SV_GRANULE - 1); va < end && !r; va = next) {
		next = va + SV_GRANULE;
		if (*granule_at(s, va) & G_OPEN)
			continue;
		while (inside_piece(s, va, G_MAP))
			va -= SV_GRANULE;
		while (inside_piece(s, next, G_MAP))
			next += SV_GRANULE;
		if (!spare) {
			if (!still_idle(s))
				return CUDA_ERROR_NOT_READY;
			r = s->hal.drv.cuCtxSetCurrent(s->hal.primary);
			context_forget();
			if (!r)
				r = s->hal.drv.cuMemAddressReserve(&spare, SV_GRANULE, 0, 0, 0);
		}
		if (!r)
			r = make_open(s, va, (next - va) / SV_GRANULE, spare);
	}
	if (spare)
		s->hal.drv.cuMemAddressFree(spare, SV_GRANULE);
	return r;
}

CUresult window_map_peer(struct call *k, uint64_t va, uint64_t n, const uint64_t *handle)
{
	struct sv_session *s = k->c.session;
	CUresult r = CUDA_SUCCESS;
	uint64_t i;

	if (whole(k, va, n * SV_GRANULE))
		return CUDA_ERROR_INVALID_VALUE;
	if (common_on)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!granules_free(s, va, n * SV_GRANULE)) {
		k->c.why = "memory mapped where there is some already";
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (i = 0; i < n && !r; i++)
		r = s->hal.drv.cuMemMap(va + i * SV_GRANULE, SV_GRANULE, 0, handle[i], 0);
	if (!r)
		r = hal_access(&s->hal, va, n * SV_GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	else
		i--;
	if (r) {
		if (i)
			hal_unmap(&s->hal, va, i * SV_GRANULE);
		return r;
	}
	set_granules(s, va, n * SV_GRANULE, G_PEER | G_READ | G_WRITE);
	return CUDA_SUCCESS;
}

int do_ipc_close(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_map *a = k->c.data;
	CUresult r;

	if (whole(k, a->va, a->len))
		return -EBADMSG;
	if (!granules_have(s, a->va, a->len, G_PEER))
		return sv_bad(&k->c, "closing what is not another process's");
	r = hal_unmap(&s->hal, a->va, a->len);
	if (!r)
		set_granules(s, a->va, a->len, 0);
	return fails(k, r);
}

/* ------------------------------------------------------------------------------ pinning */

static int pages(struct call *k, const struct sv_pin *a)
{
	if (!a->len || a->off % PAGE || a->len % PAGE || !in_arena(k->c.session, a->off, a->len))
		return sv_bad(&k->c, "a range that is not whole pages of the client's arena");
	return 0;
}

/* The device must not use unpinned memory: until it is pinned, nobody finds the range in pins. */
static CUresult pin_it(struct sv_session *s, uint64_t off, uint64_t len, uint64_t unused)
{
	unsigned int before;
	bool again = false;
	CUresult r;

	(void)unused;
	do {
		/* pairs with window_repin() */
		before = __atomic_load_n(&repins, __ATOMIC_ACQUIRE);
		r = arena_back(s, off, len) ? CUDA_ERROR_OUT_OF_MEMORY : s->hal.drv.cuCtxSetCurrent(s->hal.primary);
		if (!r)
			r = hal_pin(&s->hal, arena_at(s, off), len);
		if (again && r == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
			r = CUDA_SUCCESS;
		context_forget();
		lock_to_change();
		again = before != repins;	/* the primary context has become another one */
		if (!again) {
			range_erase(&pinning, range_index(&pinning, off));
			if (!r && range_add(&pins, off, len, NULL, 0)) {
				hal_unpin(&s->hal, arena_at(s, off));
				r = CUDA_ERROR_OUT_OF_MEMORY;
			}
		}
		unlock();
	} while (again);
	if (!r)
		account_pins(s, len);
	return r;
}

int do_pin(struct call *k)
{
	const struct sv_pin *a = k->c.data;
	size_t i;
	int rc;

	if (pages(k, a))
		return -EBADMSG;
	lock_to_change();
	i = range_index(&pins, a->off);
	rc = i < pins.n && pins.r[i].at < a->off + a->len ? -EEXIST :
		range_add(&pinning, a->off, a->len, NULL, 0);
	unlock();
	if (rc == -EEXIST)
		return sv_bad(&k->c, "pinning what is pinned already");
	if (rc)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	return on_worker(k, pin_it, a->off, a->len, 0);
}

static CUresult unpin(struct sv_session *s, uint64_t off, uint64_t len, uint64_t unused)
{
	CUresult r = s->hal.drv.cuCtxSetCurrent(s->hal.primary);

	(void)len;
	(void)unused;
	if (!r)
		r = hal_unpin(&s->hal, arena_at(s, off));
	context_forget();
	return r;
}

int do_unpin(struct call *k)
{
	const struct sv_pin *a = k->c.data;
	const char *wrong = NULL;
	size_t i;

	if (pages(k, a))
		return -EBADMSG;
	lock_to_change();
	i = range_index(&pins, a->off);
	if (i == pins.n || pins.r[i].at >= a->off + a->len)
		k->c.status = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	else if (pins.r[i].at != a->off || pins.r[i].len != a->len)
		wrong = "unpinning what is not pinned so";
	else
		range_erase(&pins, i);
	unlock();
	if (wrong)
		return sv_bad(&k->c, wrong);
	if (k->c.status)
		return 0;
	account_pins(k->c.session, -a->len);
	return on_worker(k, unpin, a->off, a->len, 0);
}

void window_repin(struct sv_session *s)
{
	CUresult words = hal_notify_repin(&s->hal);

	if (words)
		session_fail(s, -ENOMEM, "the words of waits cannot be pinned again after a reset",
			     0, 0);
	lock_to_read();
	__atomic_add_fetch(&repins, 1, __ATOMIC_RELEASE);
	for (size_t i = 0; i < pins.n; i++) {
		CUresult r = hal_pin(&s->hal, arena_at(s, pins.r[i].at), pins.r[i].len);

		/* The device must not use unpinned memory: the session ends. */
		if (r && r != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
			session_fail(s, -ENOMEM, "arena memory cannot be pinned again after a reset",
				     0, 0);
	}
	unlock();
}

/* ------------------------------------------------------------------------------ VMM */

static struct vmm *vmms, **vmms_end = &vmms;

const struct vmm *window_vmm(void)
{
	return vmms;
}

static void vmm_put(struct sv_session *s, struct vmm *m)
{
	struct vmm **p;

	if (m->maps || !m->released)
		return;
	account(s, -(int64_t)m->len);
	for (p = &vmms; *p != m; p = &(*p)->next)
		;
	*p = m->next;
	if (!*p)
		vmms_end = p;
	free(m);
}

/* The address of one of its mappings, or 0. */
static uint64_t vmm_address(const struct vmm *m)
{
	for (size_t i = 0; i < mappings.n; i++)
		if (mappings.r[i].owner == m)
			return mappings.r[i].at;
	return 0;
}

int window_add_vmm(struct call *k, uint64_t handle, uint64_t real, uint64_t len)
{
	struct sv_session *s = k->c.session;
	struct vmm *m = calloc(1, sizeof(*m));

	if (!m) {
		s->hal.drv.cuMemRelease(real);
		sv_unreserve(s, SV_T_CUmemGenericAllocationHandle_v1, handle);
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	}
	m->handle = handle;
	m->real = real;
	m->len = len;
	*vmms_end = m;
	vmms_end = &m->next;
	account(s, len);
	crowd_has(len);
	return handle_bind(s, SV_T_CUmemGenericAllocationHandle_v1, handle, real, m, 0);
}

int do_mem_create(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_mem_create *a = k->c.data;
	CUmemAllocationProp prop = s->hal.prop;
	CUmemGenericAllocationHandle real;
	CUresult r;
	int rc;

	if (a->flags & ~(uint64_t)SV_MEM_SHARED || !a->len || a->len % SV_GRANULE)
		return sv_bad(&k->c, "flags or length of memory to create");
	if (a->flags & SV_MEM_SHARED)
		prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	rc = sv_reserve(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle);
	if (rc < 0)
		return sv_fails(&k->c, rc, "handle of memory to create");
	if (rc)
		return fails(k, rc);
	/* Its memory would be this session's alone. */
	r = common_on ? CUDA_ERROR_NOT_SUPPORTED : a->len > left(s) ? CUDA_ERROR_OUT_OF_MEMORY :
		s->hal.drv.cuMemCreate(&real, a->len, &prop, 0);
	if (!r)
		return window_add_vmm(k, a->handle, real, a->len);
	sv_unreserve(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle);
	return fails(k, r);
}

int do_mem_release(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_mem_release *a = k->c.data;
	uint64_t real;
	struct vmm *m;
	CUresult r;
	int rc = handle_real(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle, &real);

	if (rc)
		return sv_fails(&k->c, rc, "handle of memory to release");
	m = handle_obj(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle);
	sv_unbind(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle);
	r = s->hal.drv.cuMemRelease(real);
	m->released = true;
	vmm_put(s, m);
	return fails(k, r);
}

int do_mem_map(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_mem_map *a = k->c.data;
	struct vmm *m;
	uint64_t real;
	CUresult r;
	int rc;

	if (whole(k, a->va, a->len))
		return -EBADMSG;
	if (!granules_free(s, a->va, a->len))
		return sv_bad(&k->c, "memory mapped where there is some already");
	rc = handle_real(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle, &real);
	if (rc)
		return sv_fails(&k->c, rc, "handle of memory to map");
	m = handle_obj(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle);
	if (range_add(&mappings, a->va, a->len, m, 0))
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	r = s->hal.drv.cuMemMap(a->va, a->len, a->offset, real, 0);
	if (r) {
		range_erase(&mappings, range_index(&mappings, a->va));
		return fails(k, r);
	}
	m->maps++;
	m->va = a->va;
	set_granules(s, a->va, a->len, G_VMM);
	set_granules(s, a->va, SV_GRANULE, G_VMM | G_FIRST);
	return 0;
}

int do_mem_unmap(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_map *a = k->c.data;
	CUresult r;
	size_t i;

	if (whole(k, a->va, a->len))
		return -EBADMSG;
	if (!whole_pieces(s, a->va, a->len, G_VMM))
		return fails(k, CUDA_ERROR_INVALID_VALUE);
	r = hal_unmap(&s->hal, a->va, a->len);
	if (r)
		return fails(k, r);
	set_granules(s, a->va, a->len, 0);
	i = range_index(&mappings, a->va);
	while (i < mappings.n && mappings.r[i].at < a->va + a->len) {
		struct vmm *m = (struct vmm *)(uintptr_t)mappings.r[i].owner;

		range_erase(&mappings, i);
		m->maps--;
		m->va = vmm_address(m);
		vmm_put(s, m);
	}
	return 0;
}

int do_mem_access(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_mem_access *a = k->c.data;
	uint8_t bits;
	CUresult r;

	if (whole(k, a->va, a->len) || a->pad)
		return sv_bad(&k->c, "range or padding of an access");
	switch (a->flags) {
	case CU_MEM_ACCESS_FLAGS_PROT_NONE:
		bits = 0;
		break;
	case CU_MEM_ACCESS_FLAGS_PROT_READ:
		bits = G_READ;
		break;
	case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		bits = G_READ | G_WRITE;
		break;
	default:
		return fails(k, CUDA_ERROR_INVALID_VALUE);
	}
	if (!whole_pieces(s, a->va, a->len, G_VMM))
		return fails(k, CUDA_ERROR_INVALID_VALUE);
	r = hal_access(&s->hal, a->va, a->len, a->flags);
	for (uint64_t i = 0; !r && i < a->len / SV_GRANULE; i++) {
		uint8_t *g = granule_at(s, a->va) + i;

		__atomic_store_n(g, (*g & (G_VMM | G_FIRST)) | bits, __ATOMIC_RELAXED);
	}
	return fails(k, r);
}
