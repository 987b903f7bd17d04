/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - all of cuMemcpy* and cuMemset*, reduced to CUDA_MEMCPY3D and one form of memset
 *
 * As CUDA promises, an asynchronous copy from pageable memory has read its source when the call
 * returns, and one to pageable memory has completed. A captured copy does neither.
 */
#include "soft_i.h"
#include "array_i.h"

#include <stdlib.h>
#include <string.h>

#define STAGE_MAX ((size_t)4 << 20)

#define LINEAR(_d, _dt, _s, _st, _n) {					\
	.WidthInBytes = (_n), .Height = 1, .Depth = 1,			\
	.srcMemoryType = CU_MEMORYTYPE_##_st, .src##_st##_FIELD = (_s),	\
	.dstMemoryType = CU_MEMORYTYPE_##_dt, .dst##_dt##_FIELD = (_d) }
#define srcHOST_FIELD srcHost
#define srcDEVICE_FIELD srcDevice
#define srcUNIFIED_FIELD srcDevice
#define srcARRAY_FIELD srcArray
#define dstHOST_FIELD dstHost
#define dstDEVICE_FIELD dstDevice
#define dstUNIFIED_FIELD dstDevice
#define dstARRAY_FIELD dstArray

static uint64_t host_side(CUmemorytype t, const void *host, CUdeviceptr dev)
{
	return t == CU_MEMORYTYPE_HOST ? (uint64_t)host : t == CU_MEMORYTYPE_UNIFIED ? dev : 0;
}

static bool pageable(uint64_t va, size_t len)
{
	return va && mem_is_pageable(va, len);
}

/* A private copy of a pageable source, or NULL when it is too big for one. */
static void *stage(const CUDA_MEMCPY3D *c)
{
	size_t len = c->WidthInBytes * c->Height * c->Depth;
	CUDA_MEMCPY3D to = *c;
	void *p;

	if (len > STAGE_MAX)
		return NULL;
	p = malloc(len);
	if (!p)
		return NULL;
	to.dstMemoryType = CU_MEMORYTYPE_HOST;
	to.dstHost = p;
	to.dstXInBytes = to.dstY = to.dstZ = 0;
	to.dstPitch = c->WidthInBytes;
	to.dstHeight = c->Height;
	copy_run(&to, NULL);
	return p;
}

static CUresult submit_copy(CUstream h, const CUDA_MEMCPY3D *c, bool sync)
{
	struct desc d = { .kind = D_MEMCPY, .copy.c = *c };
	uint64_t src = host_side(c->srcMemoryType, c->srcHost, c->srcDevice);
	uint64_t dst = host_side(c->dstMemoryType, c->dstHost, c->dstDevice);
	struct stream *st;
	struct op *op;
	CUresult r = api_lock_stream(h, &st);

	if (r)
		return r;
	r = copy_check(c);
	if (!r && sync)
		r = capture_forbids();
	if (!r && st->cap) {
		r = sync ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : stream_submit(st, &d, NULL);
		return api_unlock(r);
	}
	if (r || !c->WidthInBytes || !c->Height || !c->Depth)
		return api_unlock(r);
	if (!sync && pageable(dst, 1))
		sync = true;
	if (!sync && pageable(src, 1)) {
		if (!profile_pageable_waits && !stream_idle(st))
			d.copy.staging = stage(c);
		sync = !d.copy.staging;
	}
	r = stream_submit(st, &d, &op);
	if (!r && sync)
		r = op_wait(op);
	op_put(op);
	return api_unlock(r);
}

/* ------------------------------------------------------------------- linear */

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dst, UNIFIED, src, UNIFIED, ByteCount);

	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
	CUDA_MEMCPY3D c = LINEAR(dst, UNIFIED, src, UNIFIED, ByteCount);

	return submit_copy(hStream, &c, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstDevice, DEVICE, srcHost, HOST, ByteCount);

	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
			      CUstream hStream)
{
	CUDA_MEMCPY3D c = LINEAR(dstDevice, DEVICE, srcHost, HOST, ByteCount);

	return submit_copy(hStream, &c, false);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstHost, HOST, srcDevice, DEVICE, ByteCount);

	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
			      CUstream hStream)
{
	CUDA_MEMCPY3D c = LINEAR(dstHost, HOST, srcDevice, DEVICE, ByteCount);

	return submit_copy(hStream, &c, false);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstDevice, DEVICE, srcDevice, DEVICE, ByteCount);

	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
			      CUstream hStream)
{
	CUDA_MEMCPY3D c = LINEAR(dstDevice, DEVICE, srcDevice, DEVICE, ByteCount);

	return submit_copy(hStream, &c, false);
}

/*
 * All devices share one address space, so a peer copy is a plain copy; both contexts must exist, and
 * neither may have broken.
 */
static CUresult check_peers(CUcontext a, CUcontext b)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(a, OBJ_CTX) || !obj_live(b, OBJ_CTX))
		r = CUDA_ERROR_INVALID_CONTEXT;
	else
		r = ctx_latched((struct ctx *)a) ?: ctx_latched((struct ctx *)b);
	return api_unlock(r);
}

/* Waits for all work of a context. */
static CUresult wait_for(CUcontext ctx)
{
	CUresult r = cuCtxPushCurrent_v2(ctx);

	if (r)
		return r;
	r = cuCtxSynchronize();
	return cuCtxPopCurrent_v2(NULL) ?: r;
}

/* "serialized with respect all pending and future asynchronous work in to" all three contexts. */
CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
		      CUcontext srcContext, size_t ByteCount)
{
	return check_peers(dstContext, srcContext) ?: wait_for(dstContext) ?: wait_for(srcContext) ?:
	       cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
			   CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
	return check_peers(dstContext, srcContext) ?:
	       cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
}

/* ------------------------------------------------------------------- arrays */

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
			 size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstArray, ARRAY, srcDevice, DEVICE, ByteCount);

	c.dstXInBytes = dstOffset;
	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
			 size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstDevice, DEVICE, srcArray, ARRAY, ByteCount);

	c.srcXInBytes = srcOffset;
	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstArray, ARRAY, srcHost, HOST, ByteCount);

	c.dstXInBytes = dstOffset;
	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstHost, HOST, srcArray, ARRAY, ByteCount);

	c.srcXInBytes = srcOffset;
	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
			 size_t ByteCount)
{
	CUDA_MEMCPY3D c = LINEAR(dstArray, ARRAY, srcArray, ARRAY, ByteCount);

	c.dstXInBytes = dstOffset;
	c.srcXInBytes = srcOffset;
	return submit_copy(NULL, &c, true);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
			      size_t ByteCount, CUstream hStream)
{
	CUDA_MEMCPY3D c = LINEAR(dstArray, ARRAY, srcHost, HOST, ByteCount);

	c.dstXInBytes = dstOffset;
	return submit_copy(hStream, &c, false);
}

CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
			      CUstream hStream)
{
	CUDA_MEMCPY3D c = LINEAR(dstHost, HOST, srcArray, ARRAY, ByteCount);

	c.srcXInBytes = srcOffset;
	return submit_copy(hStream, &c, false);
}

/* ---------------------------------------------------------------- 2D and 3D */

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream h, bool sync)
{
	CUDA_MEMCPY3D c;

	if (!p)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	c = (CUDA_MEMCPY3D){
		.srcXInBytes = p->srcXInBytes, .srcY = p->srcY,
		.srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
		.srcDevice = p->srcDevice, .srcArray = p->srcArray,
		.srcPitch = p->srcPitch ? p->srcPitch : p->WidthInBytes + p->srcXInBytes,
		.dstXInBytes = p->dstXInBytes, .dstY = p->dstY,
		.dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost,
		.dstDevice = p->dstDevice, .dstArray = p->dstArray,
		.dstPitch = p->dstPitch ? p->dstPitch : p->WidthInBytes + p->dstXInBytes,
		.WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1,
		.srcHeight = p->srcY + p->Height, .dstHeight = p->dstY + p->Height,
	};
	return submit_copy(h, &c, sync);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
	return copy_2d(pCopy, NULL, true);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
	return copy_2d(pCopy, NULL, true);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
	return copy_2d(pCopy, hStream, false);
}

static void fill_pitches(CUDA_MEMCPY3D *c)
{
	if (!c->srcPitch)
		c->srcPitch = c->srcXInBytes + c->WidthInBytes;
	if (!c->dstPitch)
		c->dstPitch = c->dstXInBytes + c->WidthInBytes;
	if (!c->srcHeight)
		c->srcHeight = c->srcY + c->Height;
	if (!c->dstHeight)
		c->dstHeight = c->dstY + c->Height;
}

static CUresult copy_3d(const CUDA_MEMCPY3D *p, CUstream h, bool sync)
{
	CUDA_MEMCPY3D c;

	if (!p)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	c = *p;
	fill_pitches(&c);
	return submit_copy(h, &c, sync);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
	return copy_3d(pCopy, NULL, true);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
	return copy_3d(pCopy, hStream, false);
}

/* A side's context, which an array has itself. sync: the copy comes after all of its work. */
static CUresult peer_side(CUmemorytype type, CUcontext ctx, bool sync)
{
	if (type == CU_MEMORYTYPE_ARRAY)
		return CUDA_SUCCESS;
	return check_peers(ctx, ctx) ?: (sync ? wait_for(ctx) : CUDA_SUCCESS);
}

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream h, bool sync)
{
	CUDA_MEMCPY3D c;
	CUresult r;

	if (!p)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = peer_side(p->srcMemoryType, p->srcContext, sync) ?:
	    peer_side(p->dstMemoryType, p->dstContext, sync);
	if (r)
		return r;
	c = (CUDA_MEMCPY3D){
		.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcZ = p->srcZ,
		.srcLOD = p->srcLOD, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
		.srcDevice = p->srcDevice, .srcArray = p->srcArray, .srcPitch = p->srcPitch,
		.srcHeight = p->srcHeight,
		.dstXInBytes = p->dstXInBytes, .dstY = p->dstY, .dstZ = p->dstZ,
		.dstLOD = p->dstLOD, .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost,
		.dstDevice = p->dstDevice, .dstArray = p->dstArray, .dstPitch = p->dstPitch,
		.dstHeight = p->dstHeight,
		.WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = p->Depth,
	};
	fill_pitches(&c);
	return submit_copy(h, &c, sync);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
	return copy_3d_peer(pCopy, NULL, true);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
	return copy_3d_peer(pCopy, hStream, false);
}

/* -------------------------------------------------------------------- batch */

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
			       CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
			       CUstream hStream)
{
	CUresult r = api_enter();

	if (r)
		return r;
	if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs ||
	    numAttrs > count || (uintptr_t)hStream <= 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (attrsIdxs[0])
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < numAttrs; i++)
		if (attrs[i].srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_INVALID ||
		    attrs[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
		    (i && attrsIdxs[i] <= attrsIdxs[i - 1]) || attrsIdxs[i] >= count)
			return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		CUDA_MEMCPY3D c = LINEAR(dsts[i], UNIFIED, srcs[i], UNIFIED, sizes[i]);
		struct stream *st;

		r = api_lock_stream(hStream, &st) ?: api_unlock(copy_check(&c));
		if (r)
			return r;
	}
	for (size_t i = 0; i < count && !r; i++)
		r = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream);
	return r;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
			    CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
			    size_t *failIdx, CUstream hStream)
{
	CUresult r = cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs,
					   hStream);

	if (r && failIdx)
		*failIdx = SIZE_MAX;
	return r;
}

/* Bytes of an operand's element: of an array's texel; 0 for memory. big. */
static CUresult operand_element(const CUmemcpy3DOperand *o, size_t *out)
{
	*out = 0;
	if (o->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
		return CUDA_SUCCESS;
	if (o->type != CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	if (!obj_live(o->op.array.array, OBJ_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	*out = ((struct array *)o->op.array.array)->texel;
	return CUDA_SUCCESS;
}

/* One copy of a batch. Its sizes count elements of its arrays; without an array, bytes. */
static CUresult of_batch(const CUDA_MEMCPY3D_BATCH_OP *o, CUDA_MEMCPY3D *c)
{
	const CUmemcpy3DOperand *d = &o->dst, *s = &o->src;
	size_t de, se, e;
	CUresult r;

	if (o->srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_INVALID ||
	    o->srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
	    (o->flags & ~CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE) || !o->extent.width ||
	    !o->extent.height || !o->extent.depth)
		return CUDA_ERROR_INVALID_VALUE;
	r = operand_element(d, &de) ?: operand_element(s, &se);
	if (r)
		return r;
	if (de && se && de != se)
		return CUDA_ERROR_INVALID_VALUE;
	e = de ? de : se ? se : 1;
	*c = (CUDA_MEMCPY3D){
		.WidthInBytes = o->extent.width * e, .Height = o->extent.height,
		.Depth = o->extent.depth,
		.dstMemoryType = de ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
		.srcMemoryType = se ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
	};
	if (de) {
		c->dstArray = d->op.array.array;
		c->dstXInBytes = d->op.array.offset.x * e;
		c->dstY = d->op.array.offset.y;
		c->dstZ = d->op.array.offset.z;
	} else {
		c->dstDevice = d->op.ptr.ptr;
		c->dstPitch = d->op.ptr.rowLength * e;
		c->dstHeight = d->op.ptr.layerHeight;
	}
	if (se) {
		c->srcArray = s->op.array.array;
		c->srcXInBytes = s->op.array.offset.x * e;
		c->srcY = s->op.array.offset.y;
		c->srcZ = s->op.array.offset.z;
	} else {
		c->srcDevice = s->op.ptr.ptr;
		c->srcPitch = s->op.ptr.rowLength * e;
		c->srcHeight = s->op.ptr.layerHeight;
	}
	fill_pitches(c);
	return copy_check(c);
}

CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
				 unsigned long long flags, CUstream hStream)
{
	CUDA_MEMCPY3D c;
	CUresult r = api_enter();

	if (r)
		return r;
	if (!numOps || !opList || flags || (uintptr_t)hStream <= 1)
		return CUDA_ERROR_INVALID_VALUE;
	for (int run = 0; run < 2; run++)	/* first check all: a refused batch has no effect */
		for (size_t i = 0; i < numOps && !r; i++) {
			r = api_lock() ?: api_unlock(of_batch(&opList[i], &c));
			if (!r && run)
				r = submit_copy(hStream, &c, false);
		}
	return r;
}

CUresult cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
			      unsigned long long flags, CUstream hStream)
{
	CUresult r = cuMemcpy3DBatchAsync_v2(numOps, opList, flags, hStream);

	if (r && failIdx)
		*failIdx = SIZE_MAX;
	return r;
}

/* ------------------------------------------------------------------- memset */

static CUresult submit_set(CUstream h, CUdeviceptr dst, size_t pitch, unsigned int elem,
			   unsigned int value, size_t width, size_t height, bool sync)
{
	struct desc d = { .kind = D_MEMSET,
			  .set = { dst, pitch, width, height, elem, value } };
	struct stream *st;
	struct op *op;
	size_t len;
	CUresult r = api_lock_stream(h, &st);

	if (r)
		return r;
	/* The address of a recorded one is checked when the graph is instantiated. */
	r = st->cap ? set_span(&d, &len) : set_check(&d);
	if (!r && sync)
		r = capture_forbids();
	if (!r && st->cap && sync)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (r || ((!width || !height) && !st->cap))
		return api_unlock(r);
	r = stream_submit(st, &d, &op);
	if (!r && sync)
		r = op_wait(op);
	op_put(op);
	return api_unlock(r);
}

CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
	return submit_set(NULL, dstDevice, 0, 1, uc, N, 1, true);
}

CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
	return submit_set(NULL, dstDevice, 0, 2, us, N, 1, true);
}

CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
	return submit_set(NULL, dstDevice, 0, 4, ui, N, 1, true);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
			 size_t Height)
{
	return submit_set(NULL, dstDevice, dstPitch, 1, uc, Width, Height, true);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
			  size_t Height)
{
	return submit_set(NULL, dstDevice, dstPitch, 2, us, Width, Height, true);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
			  size_t Height)
{
	return submit_set(NULL, dstDevice, dstPitch, 4, ui, Width, Height, true);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
	return submit_set(hStream, dstDevice, 0, 1, uc, N, 1, false);
}

CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
{
	return submit_set(hStream, dstDevice, 0, 2, us, N, 1, false);
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
	return submit_set(hStream, dstDevice, 0, 4, ui, N, 1, false);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
			   size_t Height, CUstream hStream)
{
	return submit_set(hStream, dstDevice, dstPitch, 1, uc, Width, Height, false);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
			    size_t Height, CUstream hStream)
{
	return submit_set(hStream, dstDevice, dstPitch, 2, us, Width, Height, false);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
			    size_t Height, CUstream hStream)
{
	return submit_set(hStream, dstDevice, dstPitch, 4, ui, Width, Height, false);
}

/* --------------------------------------------------------- stream memory ops */

CUresult memop_check(const CUstreamBatchMemOpParams *p)
{
	size_t len = 4;
	uint64_t va = p->waitValue.address;

	switch (p->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		len = 8; /* fall through */
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		if (p->waitValue.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH))
			return CUDA_ERROR_INVALID_VALUE;
		if (p->waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH)
			return CUDA_ERROR_NOT_SUPPORTED;
		break;
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		len = 8; /* fall through */
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		if (p->writeValue.flags & ~CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_STREAM_MEM_OP_BARRIER:
		return CUDA_SUCCESS;
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return va % len || !mem_device_ok(va, len, 3) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
			       CUstreamBatchMemOpParams *paramArray, unsigned int flags)
{
	struct desc d = { .kind = D_MEMOPS, .memops = { .n = count } };
	struct stream *st;
	CUresult r;

	if (!paramArray || !count || count > 256 || flags)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_stream(stream, &st);
	if (r)
		return r;
	for (unsigned int i = 0; i < count && !r; i++)
		r = memop_check(&paramArray[i]);
	if (r)
		return api_unlock(r);
	d.memops.ops = calloc(count, sizeof(*d.memops.ops));
	if (!d.memops.ops)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(d.memops.ops, paramArray, count * sizeof(*d.memops.ops));
	return api_unlock(stream_submit(st, &d, NULL));
}

static CUresult memop(CUstream h, CUstreamBatchMemOpType type, CUdeviceptr addr, cuuint64_t value,
		      unsigned int flags)
{
	CUstreamBatchMemOpParams p;

	memset(&p, 0, sizeof(p));
	p.waitValue.operation = type;
	p.waitValue.address = addr;
	if (type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_32)
		p.waitValue.value = value;
	else
		p.waitValue.value64 = value;
	p.waitValue.flags = flags;
	return cuStreamBatchMemOp_v2(h, 1, &p, 0);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
				unsigned int flags)
{
	return memop(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
				unsigned int flags)
{
	return memop(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
				 unsigned int flags)
{
	return memop(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
				 unsigned int flags)
{
	return memop(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
			     unsigned int flags)
{
	return cuStreamWaitValue32_v2(stream, addr, value, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
			     unsigned int flags)
{
	return cuStreamWaitValue64_v2(stream, addr, value, flags);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
			      unsigned int flags)
{
	return cuStreamWriteValue32_v2(stream, addr, value, flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
			      unsigned int flags)
{
	return cuStreamWriteValue64_v2(stream, addr, value, flags);
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
			    CUstreamBatchMemOpParams *paramArray, unsigned int flags)
{
	return cuStreamBatchMemOp_v2(stream, count, paramArray, flags);
}
