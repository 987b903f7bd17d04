// SPDX-License-Identifier: Apache-2.0
/*
 * memset.c - memset without a stream: runs on the default stream, waits if it sets host memory
 *
 * Calls that set device memory may return before it is set (CUDA programming guide, "API
 * synchronization behavior"). All forms check their arguments here, as the driver would.
 */
#include "captured.h"
#include "context.h"
#include "cross.h"
#include "cuda_hooks.h"
#include "memory_i.h"

/* Finish a call that has enqueued work at dst on the default stream. */
static CUresult finish(CUresult rc, CUdeviceptr dst)
{
	struct memory m;
	struct stream *s;

	if (rc || !memory_find(dst, &m) || (m.kind != MEMORY_HOST && m.kind != MEMORY_MANAGED))
		return rc;
	TRY(stream_find(NULL, &s));
	ON(s->o.ctx->session);
	return stream_sync(s->o.ctx, s);
}

static CUresult begin_memset(void)
{
	struct stream *s;

	TRY(stream_find(NULL, &s));
	ON(s->o.ctx->session);
	TRY(capture_unsafe());
	return capture_legacy(s);
}

/* The stream that 0 stands for: the legacy or the per-thread one, by the caller's form. */
static CUstream own_or_legacy(void)
{
	return thread.per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

API CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char v, size_t n)
{
	TRY(begin_memset());
	return finish(cuMemsetD8Async(dst, v, n, own_or_legacy()), dst);
}

API CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short v, size_t n)
{
	TRY(begin_memset());
	return finish(cuMemsetD16Async(dst, v, n, own_or_legacy()), dst);
}

API CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int v, size_t n)
{
	TRY(begin_memset());
	return finish(cuMemsetD32Async(dst, v, n, own_or_legacy()), dst);
}

API CUresult cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h)
{
	TRY(begin_memset());
	return finish(cuMemsetD2D8Async(dst, pitch, v, w, h, own_or_legacy()), dst);
}

API CUresult cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h)
{
	TRY(begin_memset());
	return finish(cuMemsetD2D16Async(dst, pitch, v, w, h, own_or_legacy()), dst);
}

API CUresult cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h)
{
	TRY(begin_memset());
	return finish(cuMemsetD2D32Async(dst, pitch, v, w, h, own_or_legacy()), dst);
}

/* ------------------------------------------------------------------ arguments of all the forms */

/* Elements of 1, 2 or 4 bytes: rows of them, or one run if pitch is 0. */
struct set {
	CUdeviceptr dst;
	size_t pitch, w, h;
	unsigned int v, element;
};

static CUresult set_on(void *arg, struct stream *on, bool sync)
{
	const struct set *a = arg;
	CUstream s = (CUstream)(uintptr_t)on->wire;

	(void)sync;
	switch (a->pitch ? a->element : a->element << 4) {
	case 1:
		return cuMemsetD2D8Async(a->dst, a->pitch, a->v, a->w, a->h, s);
	case 2:
		return cuMemsetD2D16Async(a->dst, a->pitch, a->v, a->w, a->h, s);
	case 4:
		return cuMemsetD2D32Async(a->dst, a->pitch, a->v, a->w, a->h, s);
	case 1 << 4:
		return cuMemsetD8Async(a->dst, a->v, a->w, s);
	case 2 << 4:
		return cuMemsetD16Async(a->dst, a->v, a->w, s);
	default:
		return cuMemsetD32Async(a->dst, a->v, a->w, s);
	}
}

/* Memory of another device than the stream's is set there, in the order of the stream. */
static __attribute__((noinline)) CUresult set_abroad(int *done, CUdeviceptr dst, size_t pitch, size_t w, size_t h,
						     unsigned int v, unsigned int element, CUstream stream,
						     int per_thread)
{
	struct set a = { dst, pitch, w, h, v, element };
	int before = sv_per_thread(per_thread);
	struct context *home;
	struct stream *s;
	CUresult rc = stream_find(stream, &s);

	sv_per_thread(before);
	*done = rc != CUDA_SUCCESS;
	TRY(rc);
	ON(s->o.ctx->session);
	if (!cross_is(a.dst) || !a.w || !a.h || capture_on(s))
		return CUDA_SUCCESS;	/* the rest of the stub has it */
	*done = 1;
	TRY(cross_look(a.dst, 1, &home));	/* set_on() checks the rest, as for any stream */
	return cross_work(s, home, set_on, &a);
}

/* Of a process with one device all arguments stay in registers. */
static inline CUresult check(int *done, CUdeviceptr dst, size_t pitch, size_t w, size_t h, unsigned int v,
			     unsigned int element, CUstream stream, int per_thread)
{
	*done = ((dst | pitch) & (element - 1)) || (h > 1 && pitch < sv_mul(w, element));
	if (*done)
		return CUDA_ERROR_INVALID_VALUE;
	if (likely(!__atomic_load_n(&process.several, __ATOMIC_RELAXED)))
		return CUDA_SUCCESS;
	return set_abroad(done, dst, pitch, w, h, v, element, stream, per_thread);
}

CUresult sv_hook_cuMemsetD8Async(CUdeviceptr dst, unsigned char v, size_t n, CUstream stream,
				 int per_thread, int *done)
{
	return check(done, dst, 0, n, 1, v, 1, stream, per_thread);
}

CUresult sv_hook_cuMemsetD16Async(CUdeviceptr dst, unsigned short v, size_t n, CUstream stream,
				  int per_thread, int *done)
{
	return check(done, dst, 0, n, 1, v, 2, stream, per_thread);
}

CUresult sv_hook_cuMemsetD32Async(CUdeviceptr dst, unsigned int v, size_t n, CUstream stream,
				  int per_thread, int *done)
{
	return check(done, dst, 0, n, 1, v, 4, stream, per_thread);
}

CUresult sv_hook_cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w,
				   size_t h, CUstream stream, int per_thread, int *done)
{
	return check(done, dst, pitch, w, h, v, 1, stream, per_thread);
}

CUresult sv_hook_cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short v, size_t w,
				    size_t h, CUstream stream, int per_thread, int *done)
{
	return check(done, dst, pitch, w, h, v, 2, stream, per_thread);
}

CUresult sv_hook_cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w,
				    size_t h, CUstream stream, int per_thread, int *done)
{
	return check(done, dst, pitch, w, h, v, 4, stream, per_thread);
}

CUresult cross_node_set(struct stream *s, const CUDA_MEMSET_NODE_PARAMS_v2 *p)
{
	struct set a = { p->dst, p->height > 1 ? p->pitch : 0, p->width, p->height, p->value,
			 p->elementSize };
	struct context *home;

	ON(s->o.ctx->session);
	if (!cross_is(a.dst))
		return set_on(&a, s, false);
	TRY(cross_look(a.dst, 1, &home));
	return cross_work(s, home, set_on, &a);
}
