// SPDX-License-Identifier: Apache-2.0
/*
 * ipc_event.c - events shared between processes, made by cuIpcGetEventHandle or opened from a
 * handle
 *
 * Records, waits and queries of such events are answered by the proxy, so that other processes
 * see a record as soon as the call has returned.
 */
#include "captured.h"
#include "context.h"
#include "cuda_hooks.h"
#include "object.h"
#include "send.h"
#include "transfer.h"

#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct sv_ipc_handle) == sizeof(CUipcEventHandle), "a handle is all of it");

API CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
	struct sv_ipc_handle h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
				   .kind = SV_IPC_EVENT };
	struct sv_ipc_shown shown;
	struct sv_sync_on a;
	struct event *e;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	e = obj_find(SV_T_CUevent, sv_u64(event));
	if (!e || e->flags != CU_EVENT_INTERPROCESS)
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(capture_event(e));
	ON(e->o.ctx->session);
	a = (struct sv_sync_on){ e->o.ctx->o.handle, e->o.handle };
	TRY(send_sync(SV_OP_cuIpcGetEventHandle, &a, sizeof(a), NULL, 0, &shown, sizeof(shown)));
	e->peers = true;
	memcpy(h.server, shown.server, sizeof(h.server));
	memcpy(h.secret, shown.secret, sizeof(h.secret));
	memcpy(out, &h, sizeof(h));
	return CUDA_SUCCESS;
}

API CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
	struct sv_ipc_event a;
	struct context *ctx;
	struct event *e;
	CUevent event;
	CUresult rc;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	memcpy(&a.h, &handle, sizeof(a.h));
	if (a.h.magic != SV_IPC_MAGIC || a.h.version != SV_IPC_VERSION ||
	    a.h.kind != SV_IPC_EVENT || a.h.at || a.h.len || a.h.device)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	a.ctx = ctx->o.handle;
	a.event = sv_u64(event);
	rc = send_sync(SV_OP_cuIpcOpenEventHandle, &a, sizeof(a), NULL, 0, NULL, 0);
	e = obj_find(SV_T_CUevent, a.event);
	if (rc || !e) {
		cuEventDestroy(event);
		return rc ? rc : CUDA_ERROR_INVALID_HANDLE;
	}
	e->peers = true;
	*out = event;
	return CUDA_SUCCESS;
}

static CUresult on(uint16_t op, struct stream *s, struct event *e)
{
	struct sv_ipc_on a = { s->o.ctx->o.handle, e->o.handle, s->wire };
	CUresult rc;

	/* Not ready: the event has 128 records that are not complete yet. */
	while ((rc = send_sync(op, &a, sizeof(a), NULL, 0, NULL, 0)) == CUDA_ERROR_NOT_READY)
		usleep(100);
	return rc;
}

CUresult ipc_record(struct stream *s, struct event *e)
{
	return on(SV_OP_X_IPC_RECORD, s, e);
}

CUresult ipc_wait(struct stream *s, struct event *e)
{
	return on(SV_OP_X_IPC_WAIT, s, e);
}

CUresult sv_hook_cuEventDestroy_v2(CUevent hEvent, int per_thread, int *done)
{
	struct event *e = obj_find(SV_T_CUevent, sv_u64(hEvent));
	struct sv_ipc_end a;

	(void)per_thread;
	*done = 0;
	if (likely(!e || !e->peers))
		return CUDA_SUCCESS;
	ON(e->o.ctx->session);
	a.event = e->o.handle;
	return send_async(SV_OP_X_IPC_END, &a, sizeof(a), NULL, 0);
}

CUresult sv_hook_cuEventDestroy(CUevent hEvent, int per_thread, int *done)
{
	return sv_hook_cuEventDestroy_v2(hEvent, per_thread, done);
}
