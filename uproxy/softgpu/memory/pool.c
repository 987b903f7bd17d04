/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - stream-ordered memory: pools, and which stream may reuse a freed block
 *
 * A freed block stays in its pool. The stream that freed it may reuse it at once, since its work is
 * ordered; another stream may when the free has been executed. A synchronisation returns unused
 * blocks to the device, down to the release threshold, oldest first.
 */
#include "soft_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POOL_ALIGN 512

struct freed {
	struct mem *mem;
	uint64_t stream;		/* id of the stream that freed it; 0: reusable by all */
	struct op *op;			/* the free; NULL: executed */
	struct freed *next;		/* older ones first */
};

struct pool {
	struct obj o;
	struct device *dev;
	CUmemPoolProps props;
	bool is_default, destroyed;
	struct freed *freed;
	uint64_t threshold;
	uint64_t used, used_high, reserved, reserved_high;
	size_t blocks;			/* allocated and not freed */
	int reuse_event, reuse_opportunistic, reuse_internal;
	uint32_t access;		/* bitmap of other devices with access */
};

struct pool *soft_pool_of(const struct mem *m)
{
	return m->owner;
}

static struct pool *pool_new(struct device *dev)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->dev = dev;
	p->reuse_event = p->reuse_opportunistic = p->reuse_internal = 1;
	p->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	p->props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p->props.location.id = dev->ordinal;
	obj_add(p, OBJ_POOL);
	return p;
}

void pool_init(struct device *dev)
{
	pthread_mutex_lock(&big);
	dev->pool_default = dev->pool = pool_new(dev);
	if (dev->pool)
		dev->pool->is_default = true;
	pthread_mutex_unlock(&big);
}

static bool reached(struct freed *f)
{
	if (f->op && f->op->done) {
		op_put(f->op);
		f->op = NULL;
	}
	return !f->op;
}

static void release(struct pool *p, struct freed **link)
{
	struct freed *f = *link;

	*link = f->next;
	p->reserved -= f->mem->span;
	f->mem->ctx = NULL;
	mem_free(f->mem);
	op_put(f->op);
	free(f);
}

static void trim(struct pool *p, uint64_t keep)
{
	for (struct freed **l = &p->freed; *l && p->reserved > keep;)
		if (reached(*l))
			release(p, l);
		else
			l = &(*l)->next;
}

static void maybe_gone(struct pool *p)
{
	if (!p->destroyed || p->blocks)
		return;
	trim(p, 0);
	if (p->freed)
		return;			/* some frees have not been executed */
	free(p);
}

void pool_drained(struct device *dev)
{
	if (dev->pool_default)
		trim(dev->pool_default, dev->pool_default->threshold);
	if (dev->pool && dev->pool != dev->pool_default)
		trim(dev->pool, dev->pool->threshold);
}

static CUresult pool_alloc(struct pool *p, struct stream *st, size_t len, struct mem **out)
{
	size_t span = len >= ((size_t)1 << 20) ? ROUND_UP(len, PAGE_2M) : ROUND_UP(len, POOL_ALIGN);
	struct freed **best = NULL, *f;
	struct mem *m;
	CUresult r;

	for (struct freed **l = &p->freed; *l; l = &(*l)->next) {
		if ((*l)->mem->span != span)
			continue;
		if ((*l)->stream != st->id && (!reached(*l) || !p->reuse_opportunistic))
			continue;
		best = l;
		break;
	}
	if (best) {
		f = *best;
		*best = f->next;
		m = f->mem;
		op_put(f->op);
		free(f);
	} else {
		if (p->props.maxSize && p->reserved + span > p->props.maxSize)
			return CUDA_ERROR_OUT_OF_MEMORY;
		r = mem_alloc(p->dev, NULL, len, POOL_ALIGN, MEM_POOL, &m);
		if (r == CUDA_ERROR_OUT_OF_MEMORY) {
			ctx_drain(st->ctx);
			trim(p, 0);
			r = mem_alloc(p->dev, NULL, len, POOL_ALIGN, MEM_POOL, &m);
		}
		if (r)
			return r;
		m->owner = p;
		p->reserved += m->span;
		if (p->reserved > p->reserved_high)
			p->reserved_high = p->reserved;
	}
	m->kind = MEM_POOL;
	m->prot = PROT_READ | PROT_WRITE;
	m->len = len;
	m->ctx = st->ctx;
	m->flags = 0;
	p->blocks++;
	p->used += m->span;
	if (p->used > p->used_high)
		p->used_high = p->used;
	*out = m;
	return CUDA_SUCCESS;
}

/* `op` frees m; NULL: m is free now. */
void pool_freed(struct mem *m, struct op *op)
{
	struct pool *p = m->owner;
	struct freed *f, **l;

	p->used -= m->span;
	p->blocks--;
	m->kind = MEM_POOL_FREE;
	m->prot = 0;
	f = calloc(1, sizeof(*f));
	if (!f) {		/* out of memory: not pooled, but freed if no work can use it */
		if (!op || op->done) {
			p->reserved -= m->span;
			mem_free(m);
		}
		return;
	}
	f->mem = m;
	if (op && !op->done) {
		f->op = op;
		op->refs++;
	}
	f->stream = op && op->st ? op->st->id : 0;
	for (l = &p->freed; *l; l = &(*l)->next)
		;
	*l = f;
	maybe_gone(p);
}

static CUresult alloc_async(CUdeviceptr *dptr, size_t len, struct pool *p, CUstream h)
{
	struct stream *st;
	struct mem *m;
	CUresult r = api_lock_stream(h, &st);

	if (r)
		return r;
	if (!p)
		p = st->ctx->dev->pool;
	else if (!obj_live(p, OBJ_POOL))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (st->cap) {
		struct desc d = { .kind = D_ALLOC };

		d.alloc.p.poolProps = p->props;
		d.alloc.p.bytesize = len;
		r = graph_mem_alloc(st->ctx, &d);
		if (!r)
			*dptr = d.alloc.p.dptr;
		return api_unlock(r ?: stream_submit(st, &d, NULL));
	}
	r = pool_alloc(p, st, len, &m);
	if (!r)
		*dptr = m->va;
	return api_unlock(r);
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	if (!dptr || !bytesize)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return alloc_async(dptr, bytesize, NULL, hStream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
				 CUstream hStream)
{
	if (!dptr || !bytesize || !pool)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return alloc_async(dptr, bytesize, (struct pool *)pool, hStream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct desc d = { .kind = D_EMPTY };
	struct stream *st;
	struct mem *m;
	struct op *op;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	if (!dptr)
		return api_unlock(CUDA_SUCCESS);
	if (st->cap) {
		d.kind = D_FREE;
		d.free.va = dptr;
		return api_unlock(stream_submit(st, &d, NULL));
	}
	m = mem_find(dptr);
	if (!m || m->va != dptr ||
	    (m->kind != MEM_POOL && m->kind != MEM_DEVICE && m->kind != MEM_GRAPH))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (m->kind == MEM_DEVICE) {	/* from cuMemAlloc: waits for the stream, then cuMemFree */
		stream_wait(st);
		api_unlock(r);
		return cuMemFree_v2(dptr);
	}
	if (m->kind == MEM_GRAPH) {
		r = stream_wait(st);
		if (mem_find(dptr) == m)
			pool_mem_graph_free(m);
		return api_unlock(r);
	}
	r = stream_submit(st, &d, &op);
	if (!r)
		pool_freed(m, op);
	op_put(op);
	return api_unlock(r);
}

/* -------------------------------------------------------------------- pools */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	struct pool *p;
	CUresult r;

	if (!pool || !poolProps)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (poolProps->handleTypes)
		return api_unlock(CUDA_ERROR_NOT_SUPPORTED);
	if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return api_unlock(CUDA_ERROR_NOT_SUPPORTED);
	if (poolProps->location.id < 0 || poolProps->location.id >= ndevices)
		return api_unlock(CUDA_ERROR_INVALID_DEVICE);
	p = pool_new(&devices[poolProps->location.id]);
	if (!p)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	p->props = *poolProps;
	*pool = (CUmemoryPool)p;
	return api_unlock(CUDA_SUCCESS);
}

static CUresult lock_pool(CUmemoryPool h, struct pool **p)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(h, OBJ_POOL))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*p = (struct pool *)h;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct pool *p;
	CUresult r = lock_pool(pool, &p);

	if (r)
		return r;
	if (p->is_default)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (p->dev->pool == p)
		p->dev->pool = p->dev->pool_default;
	obj_del(p);
	p->destroyed = true;
	maybe_gone(p);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	struct pool *p;
	CUresult r = lock_pool(pool, &p);

	if (r)
		return r;
	trim(p, minBytesToKeep);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct pool *p;
	CUresult r;

	if (!value)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_pool(pool, &p);
	if (r)
		return r;
	switch (attr) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		p->reuse_event = *(int *)value;
		break;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		p->reuse_opportunistic = *(int *)value;
		break;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		p->reuse_internal = *(int *)value;
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		p->threshold = *(cuuint64_t *)value;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(cuuint64_t *)value)
			r = CUDA_ERROR_INVALID_VALUE;
		else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
			p->used_high = p->used;
		else
			p->reserved_high = p->reserved;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct pool *p;
	CUresult r;

	if (!value)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_pool(pool, &p);
	if (r)
		return r;
	switch (attr) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		*(int *)value = p->reuse_event;
		break;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		*(int *)value = p->reuse_opportunistic;
		break;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = p->reuse_internal;
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = p->threshold;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = p->reserved;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = p->reserved_high;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = p->used;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = p->used_high;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	struct pool *p;
	CUresult r;

	if (!map || !count)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_pool(pool, &p);
	if (r)
		return r;
	for (size_t i = 0; i < count && !r; i++) {
		int id = map[i].location.id;

		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			r = CUDA_ERROR_INVALID_VALUE;
		else if (id < 0 || id >= ndevices)
			r = CUDA_ERROR_INVALID_DEVICE;
		else if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			p->access |= 1u << id;
		else if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && id != p->dev->ordinal)
			p->access &= ~(1u << id);
		else
			r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
	struct pool *p;
	CUresult r;

	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    location->id < 0 || location->id >= ndevices)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_pool(memPool, &p);
	if (r)
		return r;
	*flags = location->id == p->dev->ordinal || (p->access & (1u << location->id)) ?
			 CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return api_unlock(CUDA_SUCCESS);
}

static CUresult get_pool(CUmemoryPool *out, CUdevice dev, bool deflt)
{
	CUresult r;

	if (!out)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	if (dev < 0 || dev >= ndevices)
		return api_enter() ?: CUDA_ERROR_INVALID_DEVICE;
	r = api_lock();
	if (r)
		return r;
	*out = (CUmemoryPool)(deflt ? devices[dev].pool_default : devices[dev].pool);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
	return get_pool(pool_out, dev, true);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	return get_pool(pool, dev, false);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	struct pool *p;
	CUresult r;

	if (dev < 0 || dev >= ndevices)
		return api_enter() ?: CUDA_ERROR_INVALID_DEVICE;
	r = lock_pool(pool, &p);
	if (r)
		return r;
	if (p->dev->ordinal != dev)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	devices[dev].pool = p;
	return api_unlock(CUDA_SUCCESS);
}

/* CUDA 13's pools by location: only devices have pools. */
static CUresult by_location(CUmemLocation *l, CUmemAllocationType type)
{
	if (!l || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return l ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	return l->type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
				CUmemAllocationType type)
{
	CUresult r = api_enter() ?: by_location(location, type);

	return r ?: get_pool(pool_out, location->id, true);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult r = api_enter() ?: by_location(location, type);

	return r ?: get_pool(pool, location->id, false);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	CUresult r = api_enter() ?: by_location(location, type);

	return r ?: cuDeviceSetMemPool(location->id, pool);
}
