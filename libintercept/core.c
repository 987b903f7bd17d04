// SPDX-License-Identifier: Apache-2.0
/*
 * core.c - lends this library's sessions to the other stand-ins (core.h)
 */
#include "arena.h"
#include "captured.h"
#include "context.h"
#include "core.h"
#include "graphs.h"
#include "managedvar.h"
#include "memory_i.h"
#include "object.h"
#include "send.h"
#include "session.h"
#include "transfer.h"

#include <string.h>

_Static_assert(sizeof(struct core_ticket) >= sizeof(struct ring_ticket), "a ticket fits");

static CUresult enter_primary(int device, struct core_place *out)
{
	CUcontext handle;

	TRY(cuDevicePrimaryCtxRetain(&handle, device));
	out->ctx = obj_find(SV_T_CUcontext, sv_u64(handle));
	out->retained = 1;
	return out->ctx ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult enter(int device, struct core_place *out)
{
	memset(out, 0, sizeof(*out));
	TRY(session_open());
	if (thread.in_callback)
		return CUDA_ERROR_NOT_PERMITTED;
	if (device < 0 && thread.ctx)
		TRY(context_current(&out->ctx));
	else
		TRY(enter_primary(device < 0 ? 0 : device, out));
	out->session = out->ctx->session;
	out->handle = out->ctx->o.handle;
	out->device = device_of(out->session);
	return CUDA_SUCCESS;
}

static void leave(struct core_place *p)
{
	if (p->retained)
		cuDevicePrimaryCtxRelease_v2(p->device);
	p->retained = 0;
}

static inline CUresult usable(const struct core_place *p)
{
	if (unlikely(p->ctx->o.handle != p->handle || !p->ctx->live))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return unlikely(thread.in_callback) ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

static CUresult stream_in(const struct core_place *p, CUstream handle, struct stream **out)
{
	if (likely(sv_u64(handle) > 2)) {
		*out = obj_find(SV_T_CUstream, sv_u64(handle));
		if (unlikely(!*out))
			return CUDA_ERROR_INVALID_HANDLE;
		return likely((*out)->o.ctx->session == p->session) ? CUDA_SUCCESS :
								      CUDA_ERROR_INVALID_CONTEXT;
	}
	if (handle == CU_STREAM_PER_THREAD)
		return stream_own(p->ctx, out);
	*out = &p->ctx->legacy;
	return CUDA_SUCCESS;
}

static CUresult coll(const struct core_place *p, const struct core_comm *comm, CUstream handle,
		     struct sv_coll *head, const struct sv_coll_call *calls)
{
	struct stream *s;

	ON(p->session);
	TRY(usable(p));
	TRY(stream_in(p, handle, &s));
	if (unlikely(capture_on(s)))
		return capture_coll(s, comm, head, calls);
	TRY(managedvar_launch(s->o.ctx));
	head->ctx = s->o.ctx->o.handle;
	head->stream = s->wire;
	return send_async(SV_OP_X_COLL, head, sizeof(*head), calls, head->calls * sizeof(*calls));
}

static CUresult send_one(const struct core_place *p, uint16_t op, const void *a, uint32_t len)
{
	ON(p->session);
	return send_async(op, a, len, NULL, 0);
}

static CUresult call(const struct core_place *p, uint16_t op, const void *a, uint32_t len)
{
	ON(p->session);
	return send_sync(op, a, len, NULL, 0, NULL, 0);
}

static CUresult request(const struct core_place *p, struct core_ticket *t, uint16_t op,
			const void *a, uint32_t len)
{
	ON(p->session);
	return send_request((struct ring_ticket *)t, op, a, len, NULL, 0);
}

static CUresult await(const struct core_place *p, struct core_ticket *t)
{
	ON(p->session);
	return send_await((struct ring_ticket *)t, NULL, 0);
}

/* `here` gets a communicator: from now on its proxy is asked what it has seen (seen.c). */
static CUresult seen_begin(void)
{
	uint64_t off;
	bool used;

	/* pairs with the store below */
	if (__atomic_load_n(&here->seen_word, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	TRY(arena_alloc(sizeof(uint64_t), 64, NULL, &off));
	lock_take(&process.locks.seen);
	used = !here->seen_word;
	if (used) {
		*(uint64_t *)arena_at(off) = process.seen;
		__atomic_store_n(&here->seen_word, off, __ATOMIC_RELEASE);
	}
	lock_drop(&process.locks.seen);
	if (!used)
		arena_free(off);
	return CUDA_SUCCESS;
}

static CUresult arena_new(const struct core_place *p, uint64_t len, uint64_t *off, void **at)
{
	ON(p->session);
	TRY(seen_begin());
	__atomic_store_n(&process.posts, true, __ATOMIC_RELAXED);
	TRY(arena_alloc(len, 64, NULL, off));
	*at = arena_at(*off);
	memset(*at, 0, len);
	return CUDA_SUCCESS;
}

static void arena_give(const struct core_place *p, uint64_t off)
{
	ON(p->session);
	arena_free(off);
}

static CUresult broken(const struct core_place *p)
{
	ON(p->session);
	TRY(session_check());
	if (ring_proxy_gone(here->ring))
		return CUDA_ERROR_SYSTEM_NOT_READY;
	return send_latched();
}

static CUresult range(const struct core_place *p, uint64_t addr, uint64_t len)
{
	ON(p->session);
	return memory_range(addr, len);
}

const struct singvgpu_core core_table = {
	.size = sizeof(struct singvgpu_core),
	.version = SINGVGPU_CORE_VERSION,
	.enter = enter,
	.leave = leave,
	.coll = coll,
	.send = send_one,
	.call = call,
	.request = request,
	.await = await,
	.arena_new = arena_new,
	.arena_free = arena_give,
	.broken = broken,
	.range = range,
	.on_copy = copy_on_failed,
	.log = client_log,
};
