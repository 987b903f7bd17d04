/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - contexts and the streams in them, and waiting for either
 */
#ifndef CONTEXT_H
#define CONTEXT_H

#include "object.h"

/* The current context, if the session works. CUDA_ERROR_INVALID_CONTEXT, session errors. */
LOCAL CUresult context_current(struct context **out);
/*
 * Live contexts of the process: while there is one, a call cannot name objects of two. Exact under
 * process.lock, else a hint.
 */
extern LOCAL int context_count;

/* The stream that a handle stands for in the current context, special values included. */
LOCAL CUresult stream_find(CUstream handle, struct stream **out);
LOCAL CUresult stream_own(struct context *ctx, struct stream **out);	/* the per-thread one */

/* A new stream with flags as of cuStreamCreate; `here` is the context's session. */
LOCAL CUresult stream_new(struct context *ctx, unsigned int flags, struct stream **out);

/*
 * Wait until the work enqueued so far in a context, or on a stream, is done. sync_ask: sends a record that asks
 * whether it is, or waits for it; its answer. stream_query, event_query: what is known already is not asked.
 */
LOCAL CUresult context_sync(struct context *ctx);
LOCAL CUresult stream_sync(struct context *ctx, struct stream *s);
LOCAL CUresult sync_ask(uint16_t op, struct context *ctx, uint64_t on);
LOCAL CUresult stream_query(struct stream *s);
LOCAL CUresult event_query(struct event *e);

/* A limit or preference of a context has changed: makes all answers about functions (verdict.c) void. */
static inline void verdict_limits_change(void)
{
	__atomic_add_fetch(&here->limit_changes, 1, __ATOMIC_RELEASE);
}

/* The primary context's handle, which exists even while the context is not retained. */
LOCAL CUresult context_primary(CUcontext *out, CUdevice dev);

#endif
