// SPDX-License-Identifier: Apache-2.0
/*
 * streamops.c - attributes of streams, and memory operations in them
 *
 * Queries of attributes are answered here; the driver gets attributes as hints. A batch of memory
 * operations becomes single ones in the same order.
 */
#include "captured.h"
#include "context.h"
#include "cuda_hooks.h"
#include "send.h"
#include "streamops.h"

#include <string.h>

/* ------------------------------------------------------------------------------- attributes */

static void value_of(const struct stream *s, CUstreamAttrID id, CUstreamAttrValue *v)
{
	if (s->attr_set & 1u << id) {
		*v = s->attr[id];
		return;
	}
	memset(v, 0, sizeof(*v));
	if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
		v->syncPolicy = CU_SYNC_POLICY_AUTO;
	if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
		v->priority = s->priority;
	if (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP)
		v->memSyncDomainMap.remote = 1;
}

API CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue *out)
{
	struct stream *s;

	if (!out || !sv_attr_of_stream(id))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	value_of(s, id, out);
	return CUDA_SUCCESS;
}

static CUresult set_attribute(struct stream *s, CUstreamAttrID id, const CUstreamAttrValue *v)
{
	struct sv_stream_attr a = { .ctx = s->o.ctx->o.handle, .stream = s->wire, .id = id };
	const struct sv_shared *sh = here->shared;

	if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY &&
	    (v->syncPolicy < CU_SYNC_POLICY_AUTO || v->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(a.value, v, sizeof(*v));
	if (sv_attr_of(id) & SV_ATTR_STREAM)
		TRY(send_sync(SV_OP_cuStreamSetAttribute, &a, sizeof(a), NULL, 0, NULL, 0));
	s->attr[id] = *v;
	s->attr_set |= 1u << id;
	if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
		s->priority = v->priority > sh->priority_least ? sh->priority_least :
			      v->priority < sh->priority_greatest ? sh->priority_greatest :
			      v->priority;
		s->attr[id].priority = s->priority;
	}
	return CUDA_SUCCESS;
}

API CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue *v)
{
	struct stream *s;

	if (!v || !sv_attr_of_stream(id))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	return set_attribute(s, id, v);
}

API CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
	struct stream *d, *s;
	CUstreamAttrValue v;

	TRY(stream_find(to, &d));
	ON(d->o.ctx->session);
	TRY(stream_find(from, &s));
	if (d->o.ctx != s->o.ctx)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int id = 0; id < SV_ATTR_STREAM_IDS; id++) {
		if (!sv_attr_of_stream(id) || (!((s->attr_set | d->attr_set) & 1u << id) &&
		    (id != CU_LAUNCH_ATTRIBUTE_PRIORITY || s->priority == d->priority)))
			continue;	/* both have the default */
		value_of(s, id, &v);
		TRY(set_attribute(d, id, &v));
	}
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------- memory operations */

CUresult memop_wait(uint64_t addr, unsigned int size, unsigned int flags)
{
	const struct sv_device *d = session_device(device_of(here));

	if (addr % size || (flags & ~(CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH)))
		return CUDA_ERROR_INVALID_VALUE;
	if ((flags & CU_STREAM_WAIT_VALUE_FLUSH) &&
	    !d->attr[CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES])
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult memop_write(uint64_t addr, unsigned int size, unsigned int flags)
{
	return addr % size || (flags & ~CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) ?
	       CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

#define HOOK(_name, _type, _check)					\
CUresult sv_hook_##_name(CUstream stream, CUdeviceptr addr, _type value, unsigned int flags, \
			 int per_thread, int *done)			\
{									\
	CUresult r;							\
									\
	(void)stream;							\
	(void)value;							\
	(void)per_thread;						\
	TRY(session_check());						\
	r = _check(addr, sizeof(_type), flags);				\
	*done = r;							\
	return r;							\
}

HOOK(cuStreamWaitValue32_v2, cuuint32_t, memop_wait)
HOOK(cuStreamWaitValue64_v2, cuuint64_t, memop_wait)
HOOK(cuStreamWriteValue32_v2, cuuint32_t, memop_write)
HOOK(cuStreamWriteValue64_v2, cuuint64_t, memop_write)

static CUresult one(CUstream s, const CUstreamBatchMemOpParams *p)
{
	switch (p->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		return cuStreamWaitValue32_v2(s, p->waitValue.address, p->waitValue.value,
					      p->waitValue.flags);
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		return cuStreamWriteValue32_v2(s, p->writeValue.address, p->writeValue.value,
					       p->writeValue.flags);
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		return cuStreamWaitValue64_v2(s, p->waitValue.address, p->waitValue.value64,
					      p->waitValue.flags);
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		return cuStreamWriteValue64_v2(s, p->writeValue.address, p->writeValue.value64,
					       p->writeValue.flags);
	case CU_STREAM_MEM_OP_BARRIER:
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		return CUDA_SUCCESS;	/* each single operation orders the work before it */
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

API CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int n, CUstreamBatchMemOpParams *ops,
				   unsigned int flags)
{
	struct stream *s;

	if (flags || !ops || !n || n > 256)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	if (capture_on(s))
		return capture_memops(s, n, ops);
	if (s->wire == SV_STREAM_LEGACY)
		handle = CU_STREAM_LEGACY;
	else
		handle = (CUstream)(uintptr_t)s->wire;
	for (unsigned int i = 0; i < n; i++)
		TRY(one(handle, &ops[i]));
	return CUDA_SUCCESS;
}

/* The older versions do the same on devices that have the operations. */
API CUresult cuStreamBatchMemOp(CUstream s, unsigned int n, CUstreamBatchMemOpParams *ops,
				unsigned int flags)
{
	return cuStreamBatchMemOp_v2(s, n, ops, flags);
}

static CUstream resolved(CUstream s)
{
	return s ? s : thread.per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

API CUresult cuStreamWaitValue32(CUstream s, CUdeviceptr addr, cuuint32_t v, unsigned int flags)
{
	return cuStreamWaitValue32_v2(resolved(s), addr, v, flags);
}

API CUresult cuStreamWaitValue64(CUstream s, CUdeviceptr addr, cuuint64_t v, unsigned int flags)
{
	return cuStreamWaitValue64_v2(resolved(s), addr, v, flags);
}

API CUresult cuStreamWriteValue32(CUstream s, CUdeviceptr addr, cuuint32_t v, unsigned int flags)
{
	return cuStreamWriteValue32_v2(resolved(s), addr, v, flags);
}

API CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr addr, cuuint64_t v, unsigned int flags)
{
	return cuStreamWriteValue64_v2(resolved(s), addr, v, flags);
}
