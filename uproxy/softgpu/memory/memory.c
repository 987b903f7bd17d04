/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the window, its sub-allocation, and the table of all memory known to CUDA
 *
 * The window is one PROT_NONE range, reserved by cuInit. Kernels can address the window, and host
 * memory made known by cuMemHostAlloc and cuMemHostRegister. The program's reservations are taken
 * from the low end of the window, everything else from its high end. The window is a 16th larger
 * than SINGVGPU_SOFT_WINDOW, so that one reservation may have that size, at the base. Memory of
 * 1 MiB and more consists of whole 2 MiB units, zero at first and unmapped when freed; smaller
 * blocks share units of a device's heap. A device's `used` counts units.
 */
#include "array_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BIG ((size_t)1 << 20)
#define MIN_ALIGN 512

uint64_t window_base;
size_t window_len;

uint64_t mem_host_gen;

static struct extents window_free;

/* Every known range, sorted by address, disjoint. */
static struct mem **mems;
static size_t nmems, cmems;

struct unit {				/* 2 MiB shared by small blocks */
	uint64_t va;
	struct extents free;
	struct unit *next;
};

struct heap {
	struct unit *units;
};

/* ------------------------------------------------------------------ extents */

static size_t ext_index(const struct extents *x, uint64_t va)
{
	size_t lo = 0, hi = x->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (x->e[mid].va < va)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int ext_insert(struct extents *x, size_t i, uint64_t va, size_t len)
{
	if (x->n == x->cap) {
		size_t cap = x->cap ? x->cap * 2 : 16;
		struct ext *e = realloc(x->e, cap * sizeof(*e));

		if (!e)
			return -ENOMEM;
		x->e = e;
		x->cap = cap;
	}
	memmove(x->e + i + 1, x->e + i, (x->n - i) * sizeof(*x->e));
	x->e[i] = (struct ext){ va, len };
	x->n++;
	return 0;
}

static void ext_erase(struct extents *x, size_t i)
{
	x->n--;
	memmove(x->e + i, x->e + i + 1, (x->n - i) * sizeof(*x->e));
}

int ext_put(struct extents *x, uint64_t va, size_t len)
{
	size_t i = ext_index(x, va);

	if (i && x->e[i - 1].va + x->e[i - 1].len == va) {
		x->e[i - 1].len += len;
		if (i < x->n && va + len == x->e[i].va) {
			x->e[i - 1].len += x->e[i].len;
			ext_erase(x, i);
		}
		return 0;
	}
	if (i < x->n && va + len == x->e[i].va) {
		x->e[i].va = va;
		x->e[i].len += len;
		return 0;
	}
	return ext_insert(x, i, va, len);
}

/* Takes [va, va + len) out of extent i, which holds it. */
static bool ext_cut(struct extents *x, size_t i, uint64_t va, size_t len)
{
	struct ext *e = &x->e[i];
	uint64_t end = e->va + e->len;

	if (e->va < va && va + len < end) {
		if (ext_insert(x, i + 1, va + len, end - (va + len)))
			return false;
		x->e[i].len = va - x->e[i].va;
	} else if (e->va < va) {
		e->len = va - e->va;
	} else if (va + len < end) {
		e->va = va + len;
		e->len = end - e->va;
	} else {
		ext_erase(x, i);
	}
	return true;
}

uint64_t ext_take(struct extents *x, size_t len, size_t align)
{
	for (size_t i = 0; i < x->n; i++) {
		uint64_t va = ROUND_UP(x->e[i].va, align);

		if (va + len > x->e[i].va + x->e[i].len || va + len < va)
			continue;
		return ext_cut(x, i, va, len) ? va : 0;
	}
	return 0;
}

/* ext_take() from the high end. */
static uint64_t ext_take_high(struct extents *x, size_t len, size_t align)
{
	for (size_t i = x->n; i-- > 0;) {
		uint64_t va = (x->e[i].va + x->e[i].len - len) / align * align;

		if (len > x->e[i].len || va < x->e[i].va)
			continue;
		return ext_cut(x, i, va, len) ? va : 0;
	}
	return 0;
}

bool ext_take_at(struct extents *x, uint64_t va, size_t len)
{
	size_t i = ext_index(x, va + 1);

	if (!i || va + len < va || va + len > x->e[i - 1].va + x->e[i - 1].len)
		return false;
	return ext_cut(x, i - 1, va, len);
}

/* ------------------------------------------------------------------- window */

static uint64_t env_u64(const char *name, uint64_t deflt)
{
	const char *s = getenv(name);

	return s && *s ? strtoull(s, NULL, 0) : deflt;
}

static bool reserve(uint64_t base, size_t len)
{
	void *p = mmap((void *)base, len, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (p == MAP_FAILED)
		return false;
	if ((uint64_t)p != base) {	/* a kernel before 4.17 takes the address for a hint */
		munmap(p, len);
		return false;
	}
	madvise(p, len, MADV_DONTDUMP);
	window_base = base;
	window_len = ext_put(&window_free, base, len) ? 0 : len;
	return true;
}

/* Present under thread sanitizer, which has no shadow for the usual base and would abort. */
extern void __tsan_init(void) __attribute__((weak));

/* Reserves the window: a smaller one where address space is limited. */
void soft_memory_init(void)
{
	uint64_t base = env_u64("SINGVGPU_SOFT_BASE",
				__tsan_init ? 0x7e8000000000ull : 0x200000000000ull);
	size_t len = env_u64("SINGVGPU_SOFT_WINDOW", (size_t)(__tsan_init ? 1 : 64) << 36);

	base = base / PAGE_2M * PAGE_2M;
	len = len / PAGE_2M * PAGE_2M;
	for (; len >= ((size_t)1 << 30); len = len / 4 / PAGE_2M * PAGE_2M)
		if (reserve(base, len + len / 16 / PAGE_2M * PAGE_2M)) {
			place_init();
			return;
		}
	soft_log("cannot reserve a window at 0x%llx: %s", (unsigned long long)base,
		 strerror(errno));
}

bool in_window(uint64_t va, size_t len)
{
	return va >= window_base && va - window_base <= window_len &&
	       len <= window_len - (va - window_base);
}

uint64_t window_take(size_t len, size_t align, uint64_t hint)
{
	if (hint && hint % align == 0 && in_window(hint, len) &&
	    ext_take_at(&window_free, hint, len))
		return hint;
	return ext_take(&window_free, len, align < PAGE_2M ? PAGE_2M : align);
}

uint64_t window_take_own(size_t len, size_t align)
{
	return ext_take_high(&window_free, len, align < PAGE_2M ? PAGE_2M : align);
}

/* Unmaps memory and returns its addresses to the window. */
void window_put(uint64_t va, size_t len)
{
	if (mmap((void *)va, len, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
		soft_log("cannot give back %zu bytes at 0x%llx: %s", len, (unsigned long long)va,
			 strerror(errno));
		return;
	}
	ext_put(&window_free, va, len);
}

/* -------------------------------------------------------------------- table */

static size_t mem_index(uint64_t va)
{
	size_t lo = 0, hi = nmems;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (mems[mid]->va <= va)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct mem *mem_find(uint64_t va)
{
	size_t i = mem_index(va);

	if (!i || va - mems[i - 1]->va >= mems[i - 1]->len)
		return NULL;
	return mems[i - 1];
}

/* The first range that ends after `from`; returns the number of ranges from it on. */
size_t mem_next(uint64_t from, struct mem **out)
{
	size_t i = mem_index(from);

	if (i && from - mems[i - 1]->va < mems[i - 1]->len)
		i--;
	*out = i < nmems ? mems[i] : NULL;
	return nmems - i;
}

struct mem *mem_insert(uint64_t va, size_t len, enum mem_kind kind, struct ctx *ctx)
{
	size_t i = mem_index(va);
	struct mem *m;

	if (nmems == cmems) {
		size_t cap = cmems ? cmems * 2 : 256;
		struct mem **p = realloc(mems, cap * sizeof(*p));

		if (!p)
			return NULL;
		mems = p;
		cmems = cap;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->va = va;
	m->len = m->span = len;
	m->kind = kind;
	m->ctx = ctx;
	m->dev = ctx ? ctx->dev : NULL;
	m->prot = PROT_READ | PROT_WRITE;
	m->id = next_id();
	memmove(mems + i + 1, mems + i, (nmems - i) * sizeof(*mems));
	mems[i] = m;
	nmems++;
	mem_host_gen += !in_window(va, 1);
	return m;
}

void mem_remove(struct mem *m)
{
	size_t i = mem_index(m->va) - 1;

	nmems--;
	mem_host_gen += !in_window(m->va, 1);
	memmove(mems + i, mems + i + 1, (nmems - i) * sizeof(*mems));
	free(m->hints);
	free(m);
}

/* Is all of this range memory that the device may access so? */
bool mem_device_ok(uint64_t va, size_t len, int prot)
{
	while (len) {
		struct mem *m = mem_find(va);
		size_t n;

		if (!m || (m->prot & prot) != prot)
			return false;
		n = m->va + m->len - va;
		if (n >= len)
			return true;
		va += n;
		len -= n;
	}
	return true;
}

/* Host memory that CUDA does not know: asynchronous copies must not touch it after the call. */
bool mem_is_pageable(uint64_t va, size_t len)
{
	struct mem *m = mem_find(va);

	return !in_window(va, len) && !(m && len <= m->va + m->len - va);
}

/* --------------------------------------------------------------- allocation */

static bool make_usable(uint64_t va, size_t len)
{
	if (mprotect((void *)va, len, PROT_READ | PROT_WRITE))
		return false;
	madvise((void *)va, len, MADV_HUGEPAGE);
	madvise((void *)va, len, MADV_DODUMP);
	return true;
}

static uint64_t units_take(struct device *dev, size_t len, size_t align)
{
	uint64_t va;

	if (len > dev->total - dev->used)
		return 0;
	va = window_take_own(len, align);
	if (!va)
		return 0;
	if (!make_usable(va, len)) {
		window_put(va, len);
		return 0;
	}
	dev->used += len;
	return va;
}

static uint64_t small_take(struct device *dev, size_t len, size_t align)
{
	struct unit *u;
	uint64_t va;

	if (!dev->heap)
		dev->heap = calloc(1, sizeof(*dev->heap));
	if (!dev->heap)
		return 0;
	for (u = dev->heap->units; u; u = u->next) {
		va = ext_take(&u->free, len, align);
		if (va)
			return va;
	}
	u = calloc(1, sizeof(*u));
	if (!u)
		return 0;
	u->va = units_take(dev, PAGE_2M, PAGE_2M);
	if (!u->va || ext_put(&u->free, u->va, PAGE_2M)) {
		free(u);
		return 0;
	}
	u->next = dev->heap->units;
	dev->heap->units = u;
	return ext_take(&u->free, len, align);
}

static void small_put(struct device *dev, uint64_t va, size_t len)
{
	struct unit **p, *u;

	for (p = &dev->heap->units; (u = *p); p = &u->next)
		if (va - u->va < PAGE_2M)
			break;
	if (!u || ext_put(&u->free, va, len))
		return;
	if (u->free.e[0].len < PAGE_2M)
		return;
	*p = u->next;
	free(u->free.e);
	window_put(u->va, PAGE_2M);
	dev->used -= PAGE_2M;
	free(u);
}

CUresult mem_alloc(struct device *dev, struct ctx *ctx, size_t len, size_t align,
		   enum mem_kind kind, struct mem **out)
{
	size_t span;
	uint64_t va;
	struct mem *m;

	if (!len)
		return CUDA_ERROR_INVALID_VALUE;
	if (len > dev->total)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (align < MIN_ALIGN)
		align = MIN_ALIGN;
	if (len >= BIG) {
		span = ROUND_UP(len, PAGE_2M);
		va = units_take(dev, span, PAGE_2M);
	} else {
		span = ROUND_UP(len, MIN_ALIGN);
		va = small_take(dev, span, align);
	}
	if (!va)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m = mem_insert(va, len, kind, ctx);
	if (!m) {
		if (len >= BIG) {
			window_put(va, span);
			dev->used -= span;
		} else {
			small_put(dev, va, span);
		}
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->dev = dev;
	m->span = span;
	*out = m;
	return CUDA_SUCCESS;
}

CUresult mem_place(struct device *dev, struct ctx *ctx, size_t len, size_t align,
		   enum mem_kind kind, uint64_t key, struct mem **out)
{
	struct mem *m;
	size_t span;
	uint64_t va = len ? place_take(dev, key, len, align, &span) : 0;

	if (!va)
		return mem_alloc(dev, ctx, len, align, kind, out);
	m = mem_insert(va, len, kind, ctx);
	if (!m) {
		place_put(dev, va, span);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->dev = dev;
	m->span = span;
	*out = m;
	return CUDA_SUCCESS;
}

void mem_free(struct mem *m)
{
	if (m->kind == MEM_HOST) {
		munmap((void *)m->va, m->span);
	} else if (place_is(m->va)) {
		place_put(m->dev, m->va, m->span);
	} else if (m->kind != MEM_REGISTERED && m->kind != MEM_VMM) {
		if (m->span >= PAGE_2M) {
			window_put(m->va, m->span);
			m->dev->used -= m->span;
		} else {
			small_put(m->dev, m->va, m->span);
		}
	}
	mem_remove(m);
}

/*
 * Frees a context's memory. Reservations and physical memory belong to no context; blocks that its
 * streams took from pools return to the pools.
 */
void mem_free_ctx(struct ctx *ctx)
{
	for (size_t i = nmems; i-- > 0;) {
		struct mem *m = mems[i];

		if (m->ctx != ctx || m->kind == MEM_VMM || m->kind == MEM_POOL_FREE)
			continue;
		if (m->kind == MEM_POOL) {
			m->ctx = NULL;
			pool_freed(m, NULL);
			i = nmems;	/* the last block of a destroyed pool frees other entries */
			continue;
		}
		if (m->kind == MEM_ARRAY)
			array_gone(m);
		mem_free(m);
	}
}

/* -------------------------------------------------------------------- calls */

CUresult cuMemGetInfo_v2(size_t *freep, size_t *total)
{
	struct ctx *ctx;
	CUresult r;

	if (!freep || !total)
		return CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	*freep = device_room(ctx->dev);
	*total = ctx->dev->total;
	return api_unlock(CUDA_SUCCESS);
}

static CUresult alloc_for_caller(CUdeviceptr *dptr, size_t len, enum mem_kind kind,
				 unsigned int flags)
{
	struct ctx *ctx;
	struct mem *m;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	r = capture_forbids();
	if (!r)
		r = mem_alloc(ctx->dev, ctx, len, MIN_ALIGN, kind, &m);
	if (r == CUDA_ERROR_OUT_OF_MEMORY && !ctx_drain(ctx)) {
		pool_drained(ctx->dev);
		r = mem_alloc(ctx->dev, ctx, len, MIN_ALIGN, kind, &m);
	}
	if (!r) {
		m->flags = flags;
		*dptr = m->va;
	}
	return api_unlock(r);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	if (!dptr || !bytesize)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return alloc_for_caller(dptr, bytesize, MEM_DEVICE, 0);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
			    unsigned int ElementSizeBytes)
{
	size_t pitch;
	CUresult r = api_enter();

	if (r)
		return r;
	if (!dptr || !pPitch || !WidthInBytes || !Height ||
	    (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16) ||
	    WidthInBytes > 0x7fffffff)
		return CUDA_ERROR_INVALID_VALUE;
	pitch = ROUND_UP(WidthInBytes, MIN_ALIGN);
	if (Height > SIZE_MAX / pitch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = alloc_for_caller(dptr, pitch * Height, MEM_DEVICE, 0);
	if (!r)
		*pPitch = pitch;
	return r;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	CUresult r = api_enter();

	if (r)
		return r;
	if (!dptr || !bytesize ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	return alloc_for_caller(dptr, bytesize, MEM_MANAGED, flags);
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct ctx *ctx;
	struct mem *m;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	if (!dptr)
		return api_unlock(CUDA_SUCCESS);
	r = capture_forbids();
	if (r)
		return api_unlock(r);
	m = mem_find(dptr);
	if (!m || m->va != dptr ||
	    (m->kind != MEM_DEVICE && m->kind != MEM_MANAGED && m->kind != MEM_POOL &&
	     m->kind != MEM_GRAPH))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	r = ctx_drain(m->ctx && obj_live(m->ctx, OBJ_CTX) ? m->ctx : ctx);
	m = mem_find(dptr);	/* the lock was dropped */
	if (!m || m->va != dptr)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (m->kind == MEM_POOL)
		pool_freed(m, NULL);
	else if (m->kind == MEM_GRAPH)
		pool_mem_graph_free(m);
	else
		mem_free(m);
	return api_unlock(r);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	struct ctx *ctx;
	struct mem *m;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	m = mem_find(dptr);
	if (!m)
		return api_unlock(CUDA_ERROR_NOT_FOUND);
	if (pbase)
		*pbase = m->va;
	if (psize)
		*psize = m->len;
	return api_unlock(CUDA_SUCCESS);
}
