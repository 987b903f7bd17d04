// SPDX-License-Identifier: Apache-2.0
/*
 * window.c - the device addresses that belong to the session: granules of the window, pins, globals
 *
 * `granule` has a byte for each granule (2 MiB) of the window. The consumer alone changes granules
 * and pins; workers look them up through sv_window. SV_OP_X_MAP maps memory granule by granule,
 * since the client may unmap a part of it. A mapping of cuMemMap is unmapped as a whole, so its
 * first granule is marked.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "peer.h"

#define G_MAP	0x01u		/* of SV_OP_X_MAP */
#define G_VMM	0x02u		/* of SV_OP_cuMemMap */
#define G_FIRST	0x04u		/* first of a mapping */
#define G_PEER	0x08u		/* memory of another process */
#define G_READ	0x10u
#define G_WRITE	0x20u
#define G_OPEN	0x40u		/* of SV_OP_X_MAP, and can be exported */

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
static uint64_t mapped, pinned;	/* bytes, consumer */
static struct ranges pins;	/* arena offsets */
static struct ranges globals;
static struct ranges mappings;	/* of cuMemMap: owner is its struct vmm; consumer */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;	/* pins, globals */

int window_init(struct sv_session *s)
{
	granule = mmap(NULL, s->hal.window_len / SV_GRANULE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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

bool arena_client(const struct sv_session *s, uint64_t off, uint64_t len)
{
	return off >= s->arena_first && off <= s->arena_len && len <= s->arena_len - off;
}

bool arena_pinned(struct sv_session *s, uint64_t off, uint64_t len)
{
	bool is;

	if (!arena_client(s, off, len))
		return false;
	/* A logged record was checked then. */
	if (s->replay)
		return true;
	pthread_rwlock_rdlock(&lock);
	is = range_covers(&pins, off, len);
	pthread_rwlock_unlock(&lock);
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
	pthread_rwlock_rdlock(&lock);
	ok = range_covers(&globals, addr, len);
	pthread_rwlock_unlock(&lock);
	return ok ? 0 : CUDA_ERROR_INVALID_VALUE;
}

int globals_add(const void *owner, uint64_t ctx, uint64_t addr, uint64_t len)
{
	int rc;

	if (!len)
		return 0;
	if (addr + len < addr)
		return -EINVAL;
	pthread_rwlock_wrlock(&lock);
	rc = range_add(&globals, addr, len, owner, ctx);
	if (rc == -EEXIST && range_covers(&globals, addr, len))
		rc = 0;		/* added before */
	pthread_rwlock_unlock(&lock);
	return rc;
}

void globals_drop(const void *owner, uint64_t ctx)
{
	pthread_rwlock_wrlock(&lock);
	for (size_t i = globals.n; i-- > 0;)
		if ((!owner || globals.r[i].owner == owner) && (!ctx || globals.r[i].ctx == ctx))
			range_erase(&globals, i);
	pthread_rwlock_unlock(&lock);
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
		if (g[i])
			return false;
	return true;
}

static void account(struct sv_session *s, int64_t bytes)
{
	mapped += bytes;
	__atomic_store_n(&s->stat->device_bytes, mapped, __ATOMIC_RELAXED);
	if (mapped > s->stat->device_peak)
		__atomic_store_n(&s->stat->device_peak, mapped, __ATOMIC_RELAXED);
}

static void account_pins(struct sv_session *s, int64_t bytes)
{
	pinned += bytes;
	__atomic_store_n(&s->stat->pinned_bytes, pinned, __ATOMIC_RELAXED);
}

uint64_t window_bytes(uint64_t *pins)
{
	if (pins)
		*pins = pinned;
	return mapped;
}

int do_map(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_map *a = k->c.data;
	CUresult r;

	if (whole(k, a->va, a->len))
		return -EBADMSG;
	if (!granules_free(s, a->va, a->len))
		return sv_bad(&k->c, "memory mapped where there is some already");
	if (a->len > s->budget - mapped)
		return sv_bad(&k->c, "more memory than was granted");
	r = hal_map(&s->hal, a->va, a->len, SV_GRANULE);
	if (r)
		return fails(k, r);
	set_granules(s, a->va, a->len, G_MAP | G_READ | G_WRITE);
	account(s, a->len);
	return 0;
}

int do_unmap(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_map *a = k->c.data;
	CUresult r;

	if (whole(k, a->va, a->len))
		return -EBADMSG;
	if (!granules_have(s, a->va, a->len, G_MAP)) {
		if (granules_free(s, a->va, a->len))
			return fails(k, CUDA_ERROR_INVALID_VALUE);	/* its mapping failed */
		return sv_bad(&k->c, "unmapping what is not mapped so");
	}
	if (s->shares)
		peer_hide(a->va, a->len);
	r = hal_unmap(&s->hal, a->va, a->len);
	if (r)
		return fails(k, r);
	set_granules(s, a->va, a->len, 0);
	account(s, -(int64_t)a->len);
	return 0;
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
	return in_window(s, va, len) && granules_have(s, va, len, G_MAP);
}

/* Copies a granule's contents to other memory, mapped at spare for the copy. The device is idle. */
static CUresult copied(struct hal *h, CUmemGenericAllocationHandle to, uint64_t spare, uint64_t va)
{
	CUresult r = h->drv.cuMemMap(spare, SV_GRANULE, 0, to, 0);

	if (r)
		return r;
	r = hal_access(h, spare, SV_GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	if (!r)
		r = h->drv.cuMemcpyDtoD_v2(spare, va, SV_GRANULE);
	if (!r)
		r = h->drv.cuCtxSynchronize();
	h->drv.cuMemUnmap(spare, SV_GRANULE);
	return r;
}

static CUresult replaced(struct sv_session *s, CUmemGenericAllocationHandle by, uint64_t va)
{
	CUmemGenericAllocationHandle old;
	struct hal *h = &s->hal;
	CUresult r = h->drv.cuMemRetainAllocationHandle(&old, (void *)va);

	if (r)
		return r;
	r = hal_unmap(h, va, SV_GRANULE);
	if (!r) {
		r = h->drv.cuMemMap(va, SV_GRANULE, 0, by, 0);
		if (r && h->drv.cuMemMap(va, SV_GRANULE, 0, old, 0))
			session_fail(s, -ENOMEM, "memory that was to be shared is lost", 0, 0);
		if (hal_access(h, va, SV_GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			session_fail(s, -ENOMEM, "memory that was to be shared is lost", 0, 0);
	}
	h->drv.cuMemRelease(old);
	return r;
}

static CUresult make_open(struct sv_session *s, uint64_t va, uint64_t spare)
{
	CUmemAllocationProp prop = s->hal.prop;
	CUmemGenericAllocationHandle own;
	CUresult r;

	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	r = s->hal.drv.cuMemCreate(&own, SV_GRANULE, &prop, 0);
	if (r)
		return r;
	r = copied(&s->hal, own, spare, va);
	if (!r)
		r = replaced(s, own, va);
	s->hal.drv.cuMemRelease(own);
	if (!r)
		__atomic_or_fetch(granule_at(s, va), G_OPEN, __ATOMIC_RELAXED);
	return r;
}

CUresult window_shareable(struct sv_session *s, uint64_t va, uint64_t len)
{
	uint64_t end = va + len;
	CUdeviceptr spare = 0;
	CUresult r = CUDA_SUCCESS;

	for (va &= ~(SV_GRANULE - 1); va < end && !r; va += SV_GRANULE) {
		if (*granule_at(s, va) & G_OPEN)
			continue;
		if (!spare) {
			if (!freeze_idle(s))
				return CUDA_ERROR_NOT_READY;
			r = s->hal.drv.cuCtxSetCurrent(s->hal.primary);
			context_forget();
			if (!r)
				r = s->hal.drv.cuMemAddressReserve(&spare, SV_GRANULE, 0, 0, 0);
		}
		if (!r)
			r = make_open(s, va, spare);
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
	if (!a->len || a->off % 4096 || a->len % 4096 ||
	    !arena_client(k->c.session, a->off, a->len))
		return sv_bad(&k->c, "a range that is not whole pages of the client's arena");
	return 0;
}

int do_pin(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_pin *a = k->c.data;
	CUresult r;
	int rc;

	if (pages(k, a))
		return -EBADMSG;
	pthread_rwlock_wrlock(&lock);
	rc = range_add(&pins, a->off, a->len, NULL, 0);
	pthread_rwlock_unlock(&lock);
	if (rc == -EEXIST)
		return sv_bad(&k->c, "pinning what is pinned already");
	if (rc)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	r = s->hal.drv.cuCtxSetCurrent(s->hal.primary);
	if (!r)
		r = hal_pin(&s->hal, arena_at(s, a->off), a->len);
	context_forget();
	if (r) {
		pthread_rwlock_wrlock(&lock);
		range_erase(&pins, range_index(&pins, a->off));
		pthread_rwlock_unlock(&lock);
		return fails(k, r);
	}
	account_pins(s, a->len);
	return 0;
}

struct unpinning {
	struct answer answer;
	uint8_t *at;
};

static void unpin(void *arg)
{
	struct unpinning *u = arg;
	struct sv_session *s = u->answer.s;
	CUresult r = s->hal.drv.cuCtxSetCurrent(s->hal.primary);

	if (!r)
		r = hal_unpin(&s->hal, u->at);
	context_forget();
	answer_now(&u->answer, r, NULL, 0);
	free(u);
}

/* The driver may wait for the device before it unpins, so a worker calls it. */
int do_unpin(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_pin *a = k->c.data;
	struct unpinning *u;
	size_t i;

	if (pages(k, a))
		return -EBADMSG;
	i = range_index(&pins, a->off);
	if (i == pins.n || pins.r[i].at != a->off || pins.r[i].len != a->len) {
		if (i == pins.n || pins.r[i].at >= a->off + a->len)
			return fails(k, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
		return sv_bad(&k->c, "unpinning what is not pinned so");
	}
	u = malloc(sizeof(*u));
	if (!u)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	*u = (struct unpinning){ answer_later(k), arena_at(s, a->off) };
	pthread_rwlock_wrlock(&lock);
	range_erase(&pins, i);
	pthread_rwlock_unlock(&lock);
	account_pins(s, -a->len);
	if (worker_run(unpin, u))
		unpin(u);
	return CALL_LATER;
}

void window_repin(struct sv_session *s)
{
	ipc_repin(s);
	pthread_rwlock_rdlock(&lock);
	for (size_t i = 0; i < pins.n; i++) {
		CUresult r = hal_pin(&s->hal, arena_at(s, pins.r[i].at), pins.r[i].len);

		/* The device must not use unpinned memory: the session ends. */
		if (r && r != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
			session_fail(s, -ENOMEM, "arena memory cannot be pinned again after a reset",
				     0, 0);
	}
	pthread_rwlock_unlock(&lock);
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
	r = a->len > s->budget - mapped ? CUDA_ERROR_OUT_OF_MEMORY :
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
	int rc = sv_real(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle, 0, &real);

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
	rc = sv_real(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle, 0, &real);
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

/* Is the range a row of whole mappings of cuMemMap? */
static bool whole_mappings(const struct sv_session *s, uint64_t va, uint64_t len)
{
	const uint8_t *end = granule_at(s, va + len);

	if (!granules_have(s, va, len, G_VMM) || !(*granule_at(s, va) & G_FIRST))
		return false;
	return va + len == s->hal.window + s->hal.window_len || !(*end & G_VMM) || *end & G_FIRST;
}

int do_mem_unmap(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_map *a = k->c.data;
	CUresult r;
	size_t i;

	if (whole(k, a->va, a->len))
		return -EBADMSG;
	if (!whole_mappings(s, a->va, a->len))
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
	if (!whole_mappings(s, a->va, a->len))
		return fails(k, CUDA_ERROR_INVALID_VALUE);
	r = hal_access(&s->hal, a->va, a->len, a->flags);
	for (uint64_t i = 0; !r && i < a->len / SV_GRANULE; i++) {
		uint8_t *g = granule_at(s, a->va) + i;

		__atomic_store_n(g, (*g & (G_VMM | G_FIRST)) | bits, __ATOMIC_RELAXED);
	}
	return fails(k, r);
}
