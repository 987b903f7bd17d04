// SPDX-License-Identifier: Apache-2.0
/*
 * stream.c - streams and events, as far as the client knows them
 */
#include "captured.h"
#include "context.h"
#include "cuda_hooks.h"
#include "memory_i.h"
#include "object.h"
#include "send.h"

/* ---------------------------------------------------------------------------------- streams */

static bool bad_flags(unsigned int flags)
{
	return flags & ~CU_STREAM_NON_BLOCKING;
}

CUresult sv_hook_cuStreamCreate(CUstream *out, unsigned int flags, int per_thread, int *done)
{
	struct context *ctx;
	struct stream *s;

	(void)per_thread;
	*done = 1;
	if (!out || bad_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(stream_new(ctx, flags, &s));
	*out = (CUstream)(uintptr_t)s->wire;
	return CUDA_SUCCESS;
}

CUresult sv_hook_cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority,
					    int per_thread, int *done)
{
	struct sv_cuStreamCreateWithPriority a = { .flags = flags, .priority = priority };
	const struct sv_shared *sh;
	struct context *ctx;
	struct stream *s;
	CUresult rc;

	(void)per_thread;
	*done = 1;
	if (!out || bad_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	sh = here->shared;
	s = obj_new(SV_T_CUstream, ctx);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->flags = flags;
	/* A priority out of range is clamped, not refused (cuStreamCreateWithPriority). */
	if (priority > sh->priority_least)
		priority = sh->priority_least;
	if (priority < sh->priority_greatest)
		priority = sh->priority_greatest;
	s->priority = priority;
	a.ctx = ctx->o.handle;
	a.phStream = s->wire;
	rc = send_async(SV_OP_cuStreamCreateWithPriority, &a, sizeof(a), NULL, 0);
	if (rc)
		obj_free(SV_T_CUstream, &s->o);
	else
		*out = (CUstream)(uintptr_t)s->wire;
	return rc;
}

API CUresult cuStreamDestroy_v2(CUstream handle)
{
	struct stream *s = obj_find(SV_T_CUstream, sv_u64(handle));
	struct sv_stream_end a;
	CUresult rc;

	TRY(session_check());
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	ON(s->o.ctx->session);
	a.stream = s->wire;
	capture_stream_gone(s);
	rc = send_async(SV_OP_cuStreamDestroy_v2, &a, sizeof(a), NULL, 0);
	pool_stream_gone(s);
	obj_free(SV_T_CUstream, &s->o);
	return rc;
}

API CUresult cuStreamDestroy(CUstream handle)
{
	return cuStreamDestroy_v2(handle);
}

API CUresult cuStreamSynchronize(CUstream handle)
{
	struct stream *s;

	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	TRY(capture_sync(s));
	return stream_sync(s->o.ctx, s);
}

API CUresult cuStreamQuery(CUstream handle)
{
	struct stream *s;

	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	TRY(capture_sync(s));
	return stream_query(s);
}

API CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
	struct stream *s;

	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	*priority = s->priority;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
	struct stream *s;

	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	*flags = s->flags;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	struct stream *s;

	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	*id = s->id;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(CUstream handle, CUcontext *out)
{
	struct stream *s;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	*out = (CUcontext)(uintptr_t)s->o.ctx->o.handle;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *out, CUgreenCtx *green)
{
	if (green)
		*green = NULL;
	return cuStreamGetCtx(handle, out);
}

/* No stream has a green context, since none can be made. */
API CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green)
{
	struct stream *s;

	if (!green)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	*green = NULL;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(CUstream handle, CUdevice *out)
{
	struct stream *s;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	*out = device_of(here);
	return CUDA_SUCCESS;
}

/* ----------------------------------------------------------------------------------- events */

static CUresult event(CUevent handle, struct event **out)
{
	TRY(session_check());
	*out = obj_find(SV_T_CUevent, sv_u64(handle));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuEventQuery(CUevent handle)
{
	struct event *e;

	TRY(event(handle, &e));
	ON(e->o.ctx->session);
	TRY(capture_event(e));
	return event_query(e);
}

API CUresult cuEventSynchronize(CUevent handle)
{
	struct event *e;

	TRY(event(handle, &e));
	ON(e->o.ctx->session);
	TRY(capture_event(e));
	return sync_ask(e->peers ? SV_OP_X_IPC_SYNC : SV_OP_cuEventSynchronize, e->o.ctx, e->o.handle);
}
