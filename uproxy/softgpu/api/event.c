/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.c - events: each refers to the op that recorded it last, which has the completion time
 */
#include "soft_i.h"

#include <stdlib.h>

void event_clear_capture(struct event *ev)
{
	free(ev->cap_deps);
	ev->cap_deps = NULL;
	ev->ncap_deps = 0;
	ev->cap_id = 0;
}

void event_put(struct event *ev)
{
	if (--ev->refs)
		return;
	op_put(ev->rec);
	event_clear_capture(ev);
	free(ev);
}

void event_record_op(struct event *ev, struct op *op)
{
	op_put(ev->rec);
	ev->rec = op;
	event_clear_capture(ev);
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	struct event *ev;
	struct ctx *ctx;
	CUresult r;

	if (!phEvent ||
	    (Flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) ||
	    ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING)))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	ev = calloc(1, sizeof(*ev));
	if (!ev)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	ev->ctx = ctx;
	ev->flags = Flags;
	ev->refs = 1;
	obj_add(ev, OBJ_EVENT);
	*phEvent = (CUevent)ev;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(hEvent, OBJ_EVENT))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	obj_del(hEvent);
	event_put((struct event *)hEvent);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent hEvent)
{
	return cuEventDestroy_v2(hEvent);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
	struct event *ev = (struct event *)hEvent;
	struct desc d = { .kind = D_RECORD };
	struct stream *st;
	struct op *op;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	if (!obj_live(ev, OBJ_EVENT))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	if ((flags & ~CU_EVENT_RECORD_EXTERNAL) || (flags && !st->cap))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (ev->ctx != st->ctx)
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	if (st->cap && !(flags & CU_EVENT_RECORD_EXTERNAL))
		return api_unlock(soft_capture_record(st, ev));
	if (st->cap) {
		d.event = ev;
		ev->refs++;
		return api_unlock(stream_submit(st, &d, NULL));
	}
	r = stream_submit(st, &d, &op);
	if (!r)
		event_record_op(ev, op);
	return api_unlock(r);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
	return cuEventRecordWithFlags(hEvent, hStream, 0);
}

/* Checks an event and its context's sticky error. Success: big is held. */
static CUresult lock_event(CUevent h, struct event **out)
{
	struct event *ev = (struct event *)h;
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(ev, OBJ_EVENT))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	r = ctx_check(ev->ctx);
	if (!r)
		r = ev->ctx->sticky;
	if (!r && ev->cap_id)
		r = CUDA_ERROR_CAPTURED_EVENT;
	*out = ev;
	return r ? api_unlock(r) : r;
}

CUresult cuEventQuery(CUevent hEvent)
{
	struct event *ev;
	CUresult r = lock_event(hEvent, &ev);

	if (r)
		return r;
	r = capture_forbids();
	if (!r && ev->rec && !ev->rec->done)
		r = CUDA_ERROR_NOT_READY;
	return api_unlock(r);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
	struct event *ev;
	CUresult r = lock_event(hEvent, &ev);

	if (r)
		return r;
	r = capture_forbids();
	if (!r && ev->rec)
		r = op_wait(ev->rec);
	print_flush();
	return api_unlock(r);
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	struct event *a, *b = (struct event *)hEnd;
	CUresult r = lock_event(hStart, &a);

	if (r)
		return r;
	if (!pMilliseconds)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (!obj_live(b, OBJ_EVENT) || a->ctx->dev != b->ctx->dev || !a->rec || !b->rec ||
		 (a->flags & CU_EVENT_DISABLE_TIMING) || (b->flags & CU_EVENT_DISABLE_TIMING))
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (b->cap_id)
		r = CUDA_ERROR_CAPTURED_EVENT;
	else if (!a->rec->done || !b->rec->done)
		r = CUDA_ERROR_NOT_READY;
	if (!r)
		*pMilliseconds = ((int64_t)b->rec->ns - (int64_t)a->rec->ns) * 1e-6f;
	return api_unlock(r);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

static CUresult lock_ctx_event(CUcontext hCtx, CUevent hEvent, struct ctx **out)
{
	CUresult r = api_lock();
	struct ctx *ctx = (struct ctx *)hCtx;

	if (r)
		return r;
	r = obj_live(ctx, OBJ_CTX) ? ctx_check(ctx) : CUDA_ERROR_INVALID_CONTEXT;
	if (!r && !obj_live(hEvent, OBJ_EVENT))
		r = CUDA_ERROR_INVALID_HANDLE;
	if (!r)
		r = capture_context(ctx);
	*out = ctx;
	return r ? api_unlock(r) : r;
}

CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
	struct desc d = { .kind = D_RECORD };
	struct op **tails = NULL, *op;
	struct ctx *ctx;
	size_t n = 0;
	CUresult r = lock_ctx_event(hCtx, hEvent, &ctx);

	if (r)
		return r;
	if (((struct event *)hEvent)->ctx != ctx)
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	for (struct stream *s = ctx->streams; s; s = s->next)
		n++;
	tails = calloc(n, sizeof(*tails));
	if (!tails)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	n = 0;
	for (struct stream *s = ctx->streams; s; s = s->next)
		if (s != ctx->legacy && s->tail)
			tails[n++] = s->tail;
	r = stream_submit_after(ctx->legacy, &d, tails, n, &op);
	if (!r)
		event_record_op((struct event *)hEvent, op);
	free(tails);
	return api_unlock(r);
}

CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
	struct event *ev = (struct event *)hEvent;
	struct ctx *ctx;
	CUresult r = lock_ctx_event(hCtx, hEvent, &ctx);

	if (r)
		return r;
	r = capture_event_live(ev);
	for (struct stream *s = ctx->streams; s && !r && ev->rec && !ev->rec->done; s = s->next) {
		struct desc d = { .kind = D_EMPTY };

		if (!s->destroyed)
			r = stream_submit_after(s, &d, &ev->rec, 1, NULL);
	}
	return api_unlock(r);
}
