// SPDX-License-Identifier: Apache-2.0
/*
 * memset.c - memset without a stream: runs on the default stream, waits if it sets host memory
 *
 * Calls that set device memory may return before it is set (CUDA programming guide, "API
 * synchronization behavior"). All forms check their arguments here, as the driver would.
 */
#include "client.h"
#include "cuda_hooks.h"

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

static CUresult check(int *done, uint64_t dst, uint64_t pitch, uint64_t width, uint64_t height,
		      unsigned int element)
{
	*done = dst % element || pitch % element ||
		(height > 1 && pitch < sv_mul(width, element));
	return *done ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sv_hook_cuMemsetD16Async(CUdeviceptr dst, unsigned short v, size_t n, CUstream stream,
				  int per_thread, int *done)
{
	(void)v;
	(void)stream;
	(void)per_thread;
	return check(done, dst, 0, n, 1, 2);
}

CUresult sv_hook_cuMemsetD32Async(CUdeviceptr dst, unsigned int v, size_t n, CUstream stream,
				  int per_thread, int *done)
{
	(void)v;
	(void)stream;
	(void)per_thread;
	return check(done, dst, 0, n, 1, 4);
}

CUresult sv_hook_cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w,
				   size_t h, CUstream stream, int per_thread, int *done)
{
	(void)v;
	(void)stream;
	(void)per_thread;
	return check(done, dst, pitch, w, h, 1);
}

CUresult sv_hook_cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short v, size_t w,
				    size_t h, CUstream stream, int per_thread, int *done)
{
	(void)v;
	(void)stream;
	(void)per_thread;
	return check(done, dst, pitch, w, h, 2);
}

CUresult sv_hook_cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w,
				    size_t h, CUstream stream, int per_thread, int *done)
{
	(void)v;
	(void)stream;
	(void)per_thread;
	return check(done, dst, pitch, w, h, 4);
}
