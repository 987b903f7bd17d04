// SPDX-License-Identifier: Apache-2.0
/*
 * managed.c - managed memory: pinned memory of the arena, coherent for program and device
 *
 * The memory never moves, so prefetching does nothing, and advice only changes the answers to
 * queries of range attributes. Those are kept per page, in memory->more.
 */
#include "arena.h"
#include "captured.h"
#include "context.h"
#include "memory_i.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096ull
#define HOST_BIT 31		/* of accessed_by: the CPU; the others are device ordinals */

struct place {			/* a CUmemLocation; type 0: none */
	uint8_t type;
	int8_t id;
};

struct page {
	struct place preferred, prefetched;
	uint32_t accessed_by;
	bool read_mostly;
};

/* ------------------------------------------------------------------------------ allocation */

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t len, unsigned int flags)
{
	struct context *ctx;
	struct memory *m;

	if (!out || !len || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	TRY(host_alloc(MEMORY_MANAGED, len, flags, &m));
	*out = m->base;
	return CUDA_SUCCESS;
}

/* No effect: attachment restricts streams on devices that cannot share managed memory. */
API CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr addr, size_t len,
				    unsigned int flags)
{
	struct stream *s;
	struct memory m;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
	    flags != CU_MEM_ATTACH_SINGLE)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags == CU_MEM_ATTACH_SINGLE && s->wire == SV_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	if (!memory_find(addr, &m) || m.kind != MEMORY_MANAGED || m.base != addr ||
	    (len && len != m.len))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* ----------------------------------------------------------------------- attributes of pages */

/*
 * Call fn for the pages of a managed range, under locks.memory, so that the range stays allocated.
 * The table of pages is made when it is first needed. INVALID_VALUE: the range is not managed.
 */
static CUresult pages(uint64_t addr, uint64_t len, bool make,
		      void (*fn)(struct page *p, uint64_t n, void *arg), void *arg)
{
	struct page none = { 0 };
	uint64_t arena = (uint64_t)(uintptr_t)process.arena, off = addr - arena, base, room;
	uint64_t first, n;
	struct memory *m;
	CUresult rc = CUDA_SUCCESS;
	void *owner = NULL;

	lock_take(&process.locks.memory);
	if (!len || off >= process.arena_len ||
	    !arena_find(off, &base, &room, &owner) || !owner) {
		lock_drop(&process.locks.memory);
		return CUDA_ERROR_INVALID_VALUE;
	}
	m = owner;
	first = (off - base) / PAGE;
	n = (off - base) % PAGE + len;
	n = n / PAGE + !!(n % PAGE);
	if (m->kind != MEMORY_MANAGED || len > m->len - (off - base))
		rc = CUDA_ERROR_INVALID_VALUE;
	else if (make && !m->more)
		m->more = calloc(m->len / PAGE + 1, sizeof(struct page));
	if (!rc && make && !m->more)
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc && m->more)
		fn((struct page *)m->more + first, n, arg);
	else if (!rc)
		fn(&none, 1, arg);
	lock_drop(&process.locks.memory);
	return rc;
}

static CUresult is_location(CUmemLocation l, bool nodes)
{
	switch (l.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return session_device(l.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return nodes && l.id >= 0 && l.id <= SCHAR_MAX ? CUDA_SUCCESS :
			CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUmemLocation location_of(CUdevice dev)
{
	return (CUmemLocation){
		dev == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, dev,
	};
}

/* -------------------------------------------------------------------------------- prefetch */

static void set_prefetched(struct page *p, uint64_t n, void *arg)
{
	while (n--)
		p++->prefetched = *(struct place *)arg;
}

static void nothing(struct page *p, uint64_t n, void *arg)
{
	(void)p;
	(void)n;
	(void)arg;
}

static CUresult prefetch(uint64_t addr, size_t len, CUmemLocation to, struct stream *s)
{
	struct place at = { to.type, to.type == CU_MEM_LOCATION_TYPE_HOST ? 0 : to.id };

	TRY(is_location(to, true));
	TRY(capture_legacy(s));
	if (capture_on(s))
		return capture_refuse(s);
	return pages(addr, len, true, set_prefetched, &at);
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr addr, size_t len, CUmemLocation to,
				   unsigned int flags, CUstream stream)
{
	struct stream *s;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return prefetch(addr, len, to, s);
}

API CUresult cuMemPrefetchAsync(CUdeviceptr addr, size_t len, CUdevice dev, CUstream stream)
{
	return cuMemPrefetchAsync_v2(addr, len, location_of(dev), 0, stream);
}

/* Check a batch. Range i uses the location with the largest index that is not above i. */
static CUresult check_batch(const CUdeviceptr *addr, const size_t *len, size_t n,
			    const CUmemLocation *to, const size_t *index, size_t locations,
			    unsigned long long flags)
{
	if (!addr || !len || !n || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		TRY(pages(addr[i], len[i], false, nothing, NULL));
	if (!to)
		return CUDA_SUCCESS;
	if (!index || !locations || locations > n || index[0])
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < locations; i++) {
		TRY(is_location(to[i], true));
		if (index[i] >= n || (i && index[i] <= index[i - 1]))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchBatchAsync(CUdeviceptr *addr, size_t *len, size_t n, CUmemLocation *to,
				     size_t *index, size_t locations, unsigned long long flags,
				     CUstream stream)
{
	struct stream *s;
	size_t l = 0;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	if (!to || s->wire == SV_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(check_batch(addr, len, n, to, index, locations, flags));
	for (size_t i = 0; i < n; i++) {
		while (l + 1 < locations && index[l + 1] <= i)
			l++;
		TRY(prefetch(addr[i], len[i], to[l], s));
	}
	return CUDA_SUCCESS;
}

/* The contents of discarded memory are undefined, so they may stay. */
API CUresult cuMemDiscardBatchAsync(CUdeviceptr *addr, size_t *len, size_t n,
				    unsigned long long flags, CUstream stream)
{
	struct stream *s;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	if (s->wire == SV_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(check_batch(addr, len, n, NULL, NULL, 0, flags));
	return capture_on(s) ? capture_refuse(s) : CUDA_SUCCESS;
}

API CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *addr, size_t *len, size_t n,
					       CUmemLocation *to, size_t *index, size_t locations,
					       unsigned long long flags, CUstream stream)
{
	return cuMemPrefetchBatchAsync(addr, len, n, to, index, locations, flags, stream);
}

/* ------------------------------------------------------------------------------------ advice */

struct advice {
	CUmem_advise what;
	CUmemLocation at;
};

static void advise(struct page *p, uint64_t n, void *arg)
{
	const struct advice *a = arg;
	uint32_t who = 1u << (a->at.type == CU_MEM_LOCATION_TYPE_DEVICE ? a->at.id & 31 : HOST_BIT);

	for (; n--; p++)
		switch (a->what) {
		case CU_MEM_ADVISE_SET_READ_MOSTLY:
			p->read_mostly = true;
			break;
		case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
			p->read_mostly = false;
			break;
		case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
			p->preferred = (struct place){ a->at.type, a->at.id };
			break;
		case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
			p->preferred = (struct place){ 0, 0 };
			break;
		case CU_MEM_ADVISE_SET_ACCESSED_BY:
			p->accessed_by |= who;
			break;
		case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
			p->accessed_by &= ~who;
			break;
		}
}

API CUresult cuMemAdvise_v2(CUdeviceptr addr, size_t len, CUmem_advise what, CUmemLocation at)
{
	struct advice a = { what, at };
	struct context *ctx;

	TRY(context_current(&ctx));
	switch (what) {
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		TRY(is_location(at, true));
		break;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		TRY(is_location(at, false));
		break;
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (a.at.type != CU_MEM_LOCATION_TYPE_DEVICE && a.at.type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
		a.at.id = 0;
	return pages(addr, len, true, advise, &a);
}

API CUresult cuMemAdvise(CUdeviceptr addr, size_t len, CUmem_advise what, CUdevice dev)
{
	return cuMemAdvise_v2(addr, len, what, location_of(dev));
}

/* ----------------------------------------------------------------------------------- queries */

/* The attributes that all pages of the range have in common. */
struct common {
	bool read_mostly;
	uint32_t accessed_by;
	bool one_preferred, one_prefetched;
	struct place preferred, prefetched;
};

static bool same_place(struct place a, struct place b)
{
	return a.type == b.type && a.id == b.id;
}

static void in_common(struct page *p, uint64_t n, void *arg)
{
	struct common *c = arg;

	*c = (struct common){ p->read_mostly, p->accessed_by, true, true, p->preferred,
			      p->prefetched };
	for (; n--; p++) {
		c->read_mostly &= p->read_mostly;
		c->accessed_by &= p->accessed_by;
		c->one_preferred &= same_place(p->preferred, c->preferred);
		c->one_prefetched &= same_place(p->prefetched, c->prefetched);
	}
	if (!c->one_preferred)
		c->preferred = (struct place){ 0, 0 };
	if (!c->one_prefetched)
		c->prefetched = (struct place){ 0, 0 };
}

/* The location's number in attributes older than CUmemLocation. */
static int device_at(struct place p)
{
	return p.type == CU_MEM_LOCATION_TYPE_DEVICE ? p.id :
		p.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

static CUresult accessed_by(int *out, size_t size, uint32_t mask)
{
	size_t n = size / sizeof(int), k = 0;

	if (!n || size % sizeof(int))
		return CUDA_ERROR_INVALID_VALUE;
	for (int d = 0; d < HOST_BIT && k < n; d++)
		if (mask >> d & 1)
			out[k++] = d;
	if (k < n && mask >> HOST_BIT)
		out[k++] = CU_DEVICE_CPU;
	while (k < n)
		out[k++] = CU_DEVICE_INVALID;
	return CUDA_SUCCESS;
}

API CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute,
				    CUdeviceptr addr, size_t len)
{
	struct context *ctx;
	struct common c;
	int *out = data;

	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(pages(addr, len, false, in_common, &c));
	if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)
		return accessed_by(data, size, c.accessed_by);
	if (size != sizeof(int))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		*out = c.read_mostly;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		*out = device_at(c.preferred);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		*out = device_at(c.prefetched);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		*out = c.preferred.type;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		*out = c.preferred.id;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		*out = c.prefetched.type;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		*out = c.prefetched.id;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

API CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes,
				     size_t n, CUdeviceptr addr, size_t len)
{
	if (!data || !sizes || !attributes || !n)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		TRY(cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], addr, len));
	return CUDA_SUCCESS;
}
