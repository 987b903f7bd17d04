/* SPDX-License-Identifier: Apache-2.0 */
/*
 * managed.c - attributes of managed memory by page: advice, prefetches, discards
 *
 * Host and device share memory, so nothing moves: hints are stored only for queries.
 */
#include "soft_i.h"

#include <stdlib.h>

#define PAGE 4096
#define CPU_BIT 31

struct hint {
	bool read_mostly;
	uint32_t accessed_by;			/* devices by number, CPU_BIT */
	CUmemLocation preferred, prefetched;	/* type 0: none */
};

/* Hints of a range's pages; *h is NULL while the allocation has none. big. */
static CUresult pages(CUdeviceptr p, size_t len, bool make, struct hint **h, size_t *n)
{
	struct mem *m = mem_find(p);
	size_t first;

	if (!m || m->kind != MEM_MANAGED || !len || len > m->va + m->len - p)
		return CUDA_ERROR_INVALID_VALUE;
	if (make && !m->hints)
		m->hints = calloc(m->len / PAGE + 1, sizeof(struct hint));
	if (make && !m->hints)
		return CUDA_ERROR_OUT_OF_MEMORY;
	first = (p - m->va) / PAGE;
	*h = m->hints ? (struct hint *)m->hints + first : NULL;
	*n = (p - m->va + len - 1) / PAGE - first + 1;
	return CUDA_SUCCESS;
}

static CUresult check_location(CUmemLocation l, bool nodes)
{
	switch (l.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return l.id < 0 || l.id >= ndevices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST:
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return nodes && l.id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* The location for a device number of calls that are older than CUmemLocation. */
static CUmemLocation old_location(CUdevice dev)
{
	return dev == CU_DEVICE_CPU ? (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST } :
				      (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE,
						       .id = dev };
}

/* ------------------------------------------------------------------- advice */

static void advise(struct hint *h, CUmem_advise advice, CUmemLocation at)
{
	uint32_t who = 1u << (at.type == CU_MEM_LOCATION_TYPE_DEVICE ? at.id : CPU_BIT);

	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		h->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
		break;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		h->preferred = at;
		break;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		h->preferred = (CUmemLocation){ 0 };
		break;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
		h->accessed_by |= who;
		break;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		h->accessed_by &= ~who;
		break;
	}
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
			CUmemLocation location)
{
	struct hint *h;
	size_t n;
	CUresult r = api_lock();

	if (r)
		return r;
	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
		r = check_location(location, true);
	else if (advice >= CU_MEM_ADVISE_SET_ACCESSED_BY)
		r = check_location(location, false);
	if (!r)
		r = pages(devPtr, count, true, &h, &n);
	for (size_t i = 0; !r && i < n; i++)
		advise(&h[i], advice, location);
	return api_unlock(r);
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
	return cuMemAdvise_v2(devPtr, count, advice, old_location(device));
}

/* --------------------------------------------------- prefetches and discards */

static CUresult set_prefetched(CUdeviceptr p, size_t len, CUmemLocation to)
{
	struct hint *h;
	size_t n;
	CUresult r = pages(p, len, true, &h, &n);

	for (size_t i = 0; !r && i < n; i++)
		h[i].prefetched = to;
	return r;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
			       unsigned int flags, CUstream hStream)
{
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	r = flags ? CUDA_ERROR_INVALID_VALUE : check_location(location, true);
	if (!r && st->cap)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return api_unlock(r ?: set_prefetched(devPtr, count, location));
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
	return cuMemPrefetchAsync_v2(devPtr, count, old_location(dstDevice), 0, hStream);
}

/* Ranges; a prefetched range gets the last location whose first index is not above its own. */
struct batch {
	CUdeviceptr *p;
	size_t *len, n;
	CUmemLocation *to;
	size_t *index, locations;
	unsigned long long flags;
};

static CUresult check_batch(const struct batch *b, const struct stream *st)
{
	struct hint *h;
	size_t n;
	CUresult r = CUDA_SUCCESS;

	if (!b->p || !b->len || !b->n || b->flags || st->legacy)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !r && i < b->n; i++)
		r = pages(b->p[i], b->len[i], false, &h, &n);
	if (r || !b->to)
		return r;
	if (!b->index || !b->locations || b->locations > b->n || b->index[0])
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !r && i < b->locations; i++) {
		r = check_location(b->to[i], true);
		if (b->index[i] >= b->n || (i && b->index[i] <= b->index[i - 1]))
			r = CUDA_ERROR_INVALID_VALUE;
	}
	return r;
}

static CUresult run_batch(const struct batch *b, CUstream h)
{
	struct stream *st;
	size_t l = 0;
	CUresult r = api_lock_stream(h, &st);

	if (r)
		return r;
	r = check_batch(b, st);
	if (!r && st->cap)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	for (size_t i = 0; !r && b->to && i < b->n; i++) {
		while (l + 1 < b->locations && b->index[l + 1] <= i)
			l++;
		r = set_prefetched(b->p[i], b->len[i], b->to[l]);
	}
	return api_unlock(r);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
				 CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
				 size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)
{
	struct batch b = { dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs,
			   flags };

	return prefetchLocs ? run_batch(&b, hStream) : api_enter() ?: CUDA_ERROR_INVALID_VALUE;
}

/* Discarded memory has undefined contents: the old ones stay. */
CUresult cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
				unsigned long long flags, CUstream hStream)
{
	struct batch b = { .p = dptrs, .len = sizes, .n = count, .flags = flags };

	return run_batch(&b, hStream);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
					   CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
					   size_t numPrefetchLocs, unsigned long long flags,
					   CUstream hStream)
{
	return cuMemPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
				       numPrefetchLocs, flags, hStream);
}

/* ---------------------------------------------------------------- questions */

static bool same(CUmemLocation a, CUmemLocation b)
{
	return a.type == b.type && a.id == b.id;
}

/* The hints that all pages share. */
static struct hint in_common(const struct hint *h, size_t n)
{
	struct hint c = { 0 };

	if (h)
		c = h[0];
	for (size_t i = 1; h && i < n; i++) {
		c.read_mostly &= h[i].read_mostly;
		c.accessed_by &= h[i].accessed_by;
		if (!same(h[i].preferred, h[0].preferred))
			c.preferred = (CUmemLocation){ 0 };
		if (!same(h[i].prefetched, h[0].prefetched))
			c.prefetched = (CUmemLocation){ 0 };
	}
	return c;
}

static int old_device(CUmemLocation l)
{
	return l.type == CU_MEM_LOCATION_TYPE_DEVICE ? l.id :
	       l.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

static void accessed_by(int *out, size_t n, uint32_t who)
{
	size_t k = 0;

	for (int d = 0; d < CPU_BIT && k < n; d++)
		if (who >> d & 1)
			out[k++] = d;
	if (k < n && who >> CPU_BIT)
		out[k++] = CU_DEVICE_CPU;
	while (k < n)
		out[k++] = CU_DEVICE_INVALID;
}

CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
				CUdeviceptr devPtr, size_t count)
{
	struct hint *h, c;
	size_t n;
	CUresult r = api_lock();

	if (r)
		return r;
	if (!data || !dataSize || dataSize % 4 ||
	    (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && dataSize != 4))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	r = pages(devPtr, count, false, &h, &n);
	if (r)
		return api_unlock(r);
	c = in_common(h, n);
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		*(int *)data = c.read_mostly;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		*(int *)data = old_device(c.preferred);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		accessed_by(data, dataSize / 4, c.accessed_by);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		*(int *)data = old_device(c.prefetched);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		*(int *)data = c.preferred.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		*(int *)data = c.preferred.id;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		*(int *)data = c.prefetched.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		*(int *)data = c.prefetched.id;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
				 size_t numAttributes, CUdeviceptr devPtr, size_t count)
{
	CUresult r = api_enter();

	if (r)
		return r;
	if (!data || !dataSizes || !attributes || !numAttributes)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < numAttributes && !r; i++)
		r = cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
	return r;
}
