// SPDX-License-Identifier: Apache-2.0
/*
 * context.c - contexts and each thread's stack of them
 *
 * A primary context has one handle for the life of the process; it is live between the first
 * retain and the reset or last release. Everything in a context ends with it: objects, memory,
 * cudart's context-local storage.
 */
#include "captured.h"
#include "context.h"
#include "export_tables.h"
#include "hooks.h"
#include "object.h"
#include "send.h"
#include "session.h"

#include <string.h>

int context_count;
static uint64_t ids;	/* of all sessions' contexts; atomic */

/* ---------------------------------------------------------------------------- current context */

CUresult context_current(struct context **out)
{
	struct context *ctx = thread.ctx;

	TRY(session_check());
	if (unlikely(!ctx))
		return thread.in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_CONTEXT;
	if (unlikely(!ctx->live))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*out = ctx;
	return send_broken();
}

static void set_top(void)
{
	thread.ctx = thread.depth ? thread.stack[thread.depth - 1] : NULL;
	here = thread.ctx ? thread.ctx->session : process.home;
}

static CUresult push(struct context *ctx)
{
	if (thread.depth == CTX_STACK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	thread.stack[thread.depth++] = ctx;
	set_top();
	return CUDA_SUCCESS;
}

static CUresult find_context(CUcontext handle, struct context **out)
{
	TRY(process_check());
	if (unlikely(thread.in_callback))
		return CUDA_ERROR_NOT_PERMITTED;
	*out = obj_find(SV_T_CUcontext, sv_u64(handle));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUcontext handle_of(const struct context *ctx)
{
	return ctx ? (CUcontext)(uintptr_t)ctx->o.handle : NULL;
}

API CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	struct context *ctx;

	TRY(find_context(handle, &ctx));
	return push(ctx);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	TRY(process_check());
	if (!thread.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (out)
		*out = handle_of(thread.ctx);
	thread.depth--;
	set_top();
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext handle)
{
	struct context *ctx;

	TRY(process_check());
	if (!handle) {
		if (thread.depth)
			thread.depth--;
		set_top();
		return CUDA_SUCCESS;
	}
	TRY(find_context(handle, &ctx));
	if (!thread.depth)
		return push(ctx);
	thread.stack[thread.depth - 1] = ctx;
	set_top();
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *out)
{
	if (unlikely(!out))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_check());
	if (unlikely(thread.in_callback))
		return CUDA_ERROR_NOT_PERMITTED;
	*out = handle_of(thread.ctx);
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *out)
{
	if (unlikely(!out))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_check());
	if (unlikely(!thread.ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	*out = device_of(thread.ctx->session);
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext handle)
{
	struct context *ctx;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle)
		return cuCtxGetDevice(out);
	TRY(find_context(handle, &ctx));
	*out = device_of(ctx->session);
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------------------------- beginning */

static void prepare(struct context *ctx, unsigned int flags)
{
	struct stream *s = &ctx->legacy;

	ctx->flags = flags;
	ctx->session = here;
	__atomic_store_n(&process.used, true, __ATOMIC_RELAXED);
	ctx->id = __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED);
	memcpy(ctx->limit, here->shared->limit, sizeof(ctx->limit));
	memset(s, 0, sizeof(*s));
	s->o.ctx = ctx;
	s->o.handle = SV_STREAM_LEGACY;
	s->wire = SV_STREAM_LEGACY;
	s->id = ctx->id;
	ctx->live = true;
	__atomic_add_fetch(&context_count, 1, __ATOMIC_RELAXED);
}

/* Refuse calls from host functions, which must not wait for process.lock. */
static CUresult may_lock(void)
{
	TRY(process_check());
	return thread.in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

static CUresult primary_locked(CUdevice dev, struct context **out)
{
	struct context *ctx = process.primary[dev];

	if (!ctx) {
		ctx = obj_new(SV_T_CUcontext, NULL);
		if (!ctx)
			return CUDA_ERROR_OUT_OF_MEMORY;
		ctx->primary = true;
		ctx->session = &sessions[dev];
		process.primary[dev] = ctx;
	}
	*out = ctx;
	return CUDA_SUCCESS;
}

CUresult context_primary(CUcontext *out, CUdevice dev)
{
	struct context *ctx;
	CUresult rc;

	TRY(may_lock());
	lock_take(&process.lock);
	rc = !session_device(dev) ? CUDA_ERROR_INVALID_DEVICE :
	     primary_locked(dev, &ctx);
	if (!rc)
		*out = handle_of(ctx);
	lock_drop(&process.lock);
	return rc;
}

static CUresult retain_locked(CUdevice dev, struct context **out)
{
	struct sv_ctx_new a = { 0 };
	struct session *s;

	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	TRY(session_on(dev, &s));
	a.flags = process.primary_flags[dev];
	TRY(primary_locked(dev, out));
	if (!(*out)->live) {
		ON(s);
		a.ctx = (*out)->o.handle;
		TRY(send_sync(SV_OP_cuDevicePrimaryCtxRetain, &a, sizeof(a), NULL, 0, NULL, 0));
		prepare(*out, process.primary_flags[dev]);
	}
	s->retained++;
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
	struct context *ctx;
	CUresult rc;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(may_lock());
	lock_take(&process.lock);
	rc = retain_locked(dev, &ctx);
	if (!rc)
		*out = handle_of(ctx);
	lock_drop(&process.lock);
	return rc;
}

#define FLAGS_KNOWN (CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | \
		     CU_CTX_SYNC_MEMOPS)

static bool bad_flags(unsigned int flags)
{
	unsigned int sched = flags & CU_CTX_SCHED_MASK;

	return (flags & ~FLAGS_KNOWN) || (sched & (sched - 1));	/* at most one CU_CTX_SCHED_ */
}

static CUresult create_locked(struct context **out, unsigned int flags, CUdevice dev)
{
	struct sv_ctx_new a = { .flags = flags };
	struct session *s;
	CUresult rc;

	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	TRY(session_on(dev, &s));
	*out = obj_new(SV_T_CUcontext, NULL);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a.ctx = (*out)->o.handle;
	ON(s);
	rc = send_sync(SV_OP_cuCtxCreate_v4, &a, sizeof(a), NULL, 0, NULL, 0);
	if (rc)
		obj_free(SV_T_CUcontext, &(*out)->o);
	else
		prepare(*out, flags);
	return rc;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice dev, unsigned int version)
{
	struct context *ctx;
	CUresult rc;

	if (!out || bad_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(may_lock());
	lock_take(&process.lock);
	rc = create_locked(&ctx, flags, dev);
	if (!rc) {
		ctx->api_version = version;
		rc = push(ctx);
		if (rc)
			obj_free(SV_T_CUcontext, &ctx->o);
		else
			*out = handle_of(ctx);
	}
	lock_drop(&process.lock);
	return rc;
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice dev)
{
	return create(out, flags, dev, 3020);
}

API CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int n, unsigned int flags,
			    CUdevice dev)
{
	if (params || n)
		return sv_unsupported("cuCtxCreate_v3", "execution affinity partitions the device");
	return create(out, flags, dev, 3020);
}

API CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags,
			    CUdevice dev)
{
	if (params && (params->numExecAffinityParams || params->cigParams))
		return sv_unsupported("cuCtxCreate_v4", "execution affinity partitions the device");
	return create(out, flags, dev, 3020);
}

/* ------------------------------------------------------------------------------ destruction */

static void object_gone(struct obj *o, unsigned int type)
{
	if (type == SV_T_CUstream) {
		((struct stream *)o)->owner = NULL;
		capture_stream_gone((struct stream *)o);
	}
	if (type == SV_T_CUevent)
		capture_event_gone((struct event *)o);
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].object_gone)
			context_hooks[i].object_gone(o, type);
}

/* A context whose streams stand does not end: the error, and nothing has been done. Without a lock. */
static CUresult may_end(struct context *ctx)
{
	if (!ctx || !ctx->live || likely(!process_has_posted()))
		return CUDA_SUCCESS;
	return context_sync(ctx) == CUDA_ERROR_EXTERNAL_DEVICE ? CUDA_ERROR_EXTERNAL_DEVICE : CUDA_SUCCESS;
}

static CUresult end_context(struct context *ctx)
{
	struct sv_ctx_end a = { ctx->o.handle };
	CUresult rc;

	ON(ctx->session);
	export_tables_context_gone(handle_of(ctx));
	ctx->live = false;
	__atomic_sub_fetch(&context_count, 1, __ATOMIC_RELAXED);
	rc = send_sync(ctx->primary ? SV_OP_cuDevicePrimaryCtxReset_v2 : SV_OP_cuCtxDestroy_v2, &a,
		       sizeof(a), NULL, 0, NULL, 0);
	verdict_limits_change();	/* a reset undoes its limits; kernels of libraries live on */
	obj_free_context(ctx, object_gone);
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].gone)
			context_hooks[i].gone(ctx);
	return rc;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	CUresult rc = CUDA_SUCCESS;

	TRY(may_lock());
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (sessions[dev].retained == 1)
		TRY(may_end(process.primary[dev]));
	lock_take(&process.lock);
	if (!sessions[dev].retained)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else if (!--sessions[dev].retained)
		rc = end_context(process.primary[dev]);
	lock_drop(&process.lock);
	return rc;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	CUresult rc = CUDA_SUCCESS;

	TRY(may_lock());
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	TRY(may_end(process.primary[dev]));
	lock_take(&process.lock);
	if (process.primary[dev] && process.primary[dev]->live) {
		sessions[dev].retained = 0;
		rc = end_context(process.primary[dev]);
	}
	lock_drop(&process.lock);
	return rc;
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	TRY(may_lock());
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (bad_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	lock_take(&process.lock);
	process.primary_flags[dev] = flags;
	if (process.primary[dev] && process.primary[dev]->live)
		process.primary[dev]->flags = flags;	/* not sent: the proxy waits in its own way */
	lock_drop(&process.lock);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_check());
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = process.primary_flags[dev];
	*active = process.primary[dev] && process.primary[dev]->live;
	return CUDA_SUCCESS;
}

API CUresult cuCtxDestroy_v2(CUcontext handle)
{
	struct context *ctx;
	CUresult rc;

	TRY(find_context(handle, &ctx));
	if (ctx->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	TRY(may_end(ctx));
	if (thread.ctx == ctx) {
		thread.depth--;
		set_top();
	}
	lock_take(&process.lock);
	rc = ctx->live ? end_context(ctx) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (!ctx->o.next)
		obj_free(SV_T_CUcontext, &ctx->o);
	lock_drop(&process.lock);
	return rc;
}

API CUresult cuCtxAttach(CUcontext *out, unsigned int flags)
{
	struct context *ctx;

	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	ctx->attached++;
	*out = handle_of(ctx);
	return CUDA_SUCCESS;
}

API CUresult cuCtxDetach(CUcontext handle)
{
	struct context *ctx;

	TRY(find_context(handle, &ctx));
	if (ctx != thread.ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (ctx->attached) {
		ctx->attached--;
		return CUDA_SUCCESS;
	}
	return cuCtxDestroy_v2(handle);
}

/* ---------------------------------------------------------------------------------- properties */

static CUresult named(CUcontext handle, struct context **out)
{
	if (handle)
		return find_context(handle, out);
	return context_current(out);
}

API CUresult cuCtxGetFlags(unsigned int *flags)
{
	struct context *ctx;

	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	*flags = ctx->flags;
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned int flags)
{
	struct context *ctx;

	if (bad_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	ctx->flags = flags;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	struct context *ctx;

	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(named(handle, &ctx));
	*id = ctx->id;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	struct context *ctx;

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(named(handle, &ctx));
	*version = ctx->api_version ? ctx->api_version : 3020;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct context *ctx;

	if (!value || (unsigned int)limit >= CU_LIMIT_MAX || limit >= 16)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	if (ctx->limit[limit] == UINT64_MAX)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = ctx->limit[limit];
	return CUDA_SUCCESS;
}

CUresult sv_hook_cuCtxSetLimit(CUlimit limit, size_t value, int per_thread, int *done)
{
	struct sv_cuCtxSetLimit a = { .limit = limit, .value = value };
	struct context *ctx;

	(void)per_thread;
	*done = 1;
	if ((unsigned int)limit >= CU_LIMIT_MAX || limit >= 16)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	a.ctx = ctx->o.handle;
	TRY(send_sync(SV_OP_cuCtxSetLimit, &a, sizeof(a), NULL, 0, NULL, 0));
	verdict_limits_change();
	ctx->limit[limit] = value;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	if (least)
		*least = here->shared->priority_least;
	if (greatest)
		*greatest = here->shared->priority_greatest;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------ synchronising */

API CUresult cuCtxSynchronize(void)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	TRY(capture_sync(NULL));
	return context_sync(ctx);
}

API CUresult cuCtxSynchronize_v2(CUcontext handle)
{
	struct context *ctx;

	TRY(named(handle, &ctx));
	if (!ctx->live)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	TRY(capture_sync(NULL));
	return context_sync(ctx);
}

/* ------------------------------------------------------------------------------- older versions */

API CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

API CUresult cuCtxPopCurrent(CUcontext *out)
{
	return cuCtxPopCurrent_v2(out);
}

API CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return cuCtxPushCurrent_v2(ctx);
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return cuDevicePrimaryCtxRelease_v2(dev);
}

API CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return cuDevicePrimaryCtxReset_v2(dev);
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}
