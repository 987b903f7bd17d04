// SPDX-License-Identifier: Apache-2.0
/*
 * stub.c - what a generated stub asks before it sends (stub.h): handles, streams, ranges, and whether a
 * stream is captured; send.c has the rest
 */
#include "captured.h"
#include "context.h"
#include "memory_i.h"
#include "module.h"
#include "object.h"

void *sv_stub_begins(void)
{
	thread.named = NULL;
	return here;
}

void sv_stub_ends(void **before)
{
	here = *before;
}

/* Moves the stub under way to the device of this context. INVALID_HANDLE: it has moved elsewhere. */
static CUresult named(const struct context *ctx)
{
	if (unlikely(thread.named && thread.named->session != ctx->session))
		return CUDA_ERROR_INVALID_HANDLE;
	thread.named = ctx;
	here = ctx->session;
	return CUDA_SUCCESS;
}

int sv_ctx(uint64_t *ctx)
{
	struct context *c;

	TRY(context_current(&c));
	*ctx = c->o.handle;
	return CUDA_SUCCESS;
}

uint64_t sv_ctx_named(uint64_t ctx)
{
	return thread.named && thread.named->session != thread.ctx->session ?
		thread.named->o.handle : ctx;
}

uint64_t sv_device(uint64_t device)
{
	return process.visible[device];
}

int sv_use(unsigned int type, uint64_t handle)
{
	const struct obj *o;

	TRY(session_check());
	if (type == SV_T_CUdevice_v1)
		return (int)handle == device_of(here) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	o = obj_find(type, handle);
	if (!o && type == SV_T_CUfunction)
		o = obj_find(SV_T_CUkernel, handle);	/* passed in a function's place */
	if (unlikely(!o))
		return type == SV_T_CUcontext ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
	if (type == SV_T_CUcontext)
		return named((const struct context *)o);
	if (o->ctx)
		return named(o->ctx);
	return image_here(o);
}

int sv_stream(uint64_t handle, int per_thread, uint64_t *stream)
{
	int before = thread.per_thread;
	struct stream *s;
	CUresult rc;

	thread.per_thread = per_thread;
	rc = stream_find((CUstream)(uintptr_t)handle, &s);
	thread.per_thread = before;
	TRY(rc);
	*stream = s->wire;
	return named(s->o.ctx);
}

int sv_new(unsigned int type, uint64_t *handle)
{
	struct obj *o;

	TRY(session_check());
	o = obj_new(type, thread.ctx);
	if (!o)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = o->handle;
	return CUDA_SUCCESS;
}

void sv_drop(unsigned int type, uint64_t handle)
{
	struct obj *o = obj_find(type, handle);

	if (o && type == SV_T_CUevent)
		capture_event_gone((struct event *)o);
	if (o)
		obj_free(type, o);
}

int sv_made(unsigned int type, uint64_t handle)
{
	(void)type;
	(void)handle;
	return CUDA_SUCCESS;	/* the driver's own values are checked by the proxy alone */
}

int sv_range(uint64_t addr, uint64_t len, int write)
{
	(void)write;
	return len ? memory_range(addr, len) : CUDA_SUCCESS;
}

static struct stream *by_wire(uint64_t wire)
{
	return wire == SV_STREAM_LEGACY ? &thread.ctx->legacy : obj_find(SV_T_CUstream, wire);
}

int sv_capturing(uint64_t stream)
{
	struct stream *s = by_wire(stream);

	return s && capture_on(s);
}

int sv_capture(uint64_t stream, uint16_t op, const void *args, uint32_t len, const void *data,
	       uint64_t data_len)
{
	struct stream *s = by_wire(stream);

	return s ? capture_record(s, op, args, len, data, data_len) : CUDA_ERROR_INVALID_HANDLE;
}
