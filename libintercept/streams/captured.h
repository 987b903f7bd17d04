/* SPDX-License-Identifier: Apache-2.0 */
/*
 * captured.h - what stream capture asks of a call that puts work on a stream
 *
 * Such a call first calls capture_on(). Where that returns true, nothing is sent: a function below adds a node to
 * the graph, or returns the error that forbids it. Graphs are on a higher floor: a node is added by hooks (hooks.h).
 */
#ifndef CAPTURED_H
#define CAPTURED_H

#include "hooks.h"
#include "object.h"

extern LOCAL unsigned int capture_live;	/* number of active captures in the process; atomic */

LOCAL bool capture_on_slow(const struct stream *s);

/* Whether work put on this stream concerns a capture, as any use of the legacy stream may. */
static inline bool capture_on(const struct stream *s)
{
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED)))
		return false;
	return s->capture || capture_on_slow(s);
}

/* Refuse a call that a capture forbids, and end that capture. CUDA_ERROR_STREAM_CAPTURE_… */
LOCAL CUresult capture_unsafe(void);		/* forbidden by the thread's capture mode */
LOCAL CUresult capture_sync(struct stream *s);	/* would wait for s (NULL: for everything) */
LOCAL CUresult capture_legacy(struct stream *s);	/* uses s, perhaps the legacy stream */

/* Refuse work that graphs cannot have, as cuStreamAddCallback: STREAM_CAPTURE_UNSUPPORTED (900). */
LOCAL CUresult capture_refuse(struct stream *s);

/*
 * CUDA_ERROR_CAPTURED_EVENT (907) if the event was last recorded in a capture: no queries or waits.
 */
LOCAL CUresult capture_event(struct event *e);

/* ------------------------------------------------------------------------- what graphs add */

/*
 * capture_record() takes records of launches, copies (with the program's own addresses, pageable
 * ones included), memsets, stream memory operations, and SV_OP_cuLaunchHostFunc with struct
 * hostfunc_args (hostfunc.h).
 */
static inline CUresult capture_record(struct stream *s, uint16_t op, const void *a, uint32_t alen,
				      const void *b, uint32_t blen)
{
	return graph_hooks.record(s, op, a, alen, b, blen);
}

static inline CUresult capture_memops(struct stream *s, unsigned int n,
				      const CUstreamBatchMemOpParams *ops)
{
	return graph_hooks.memops(s, n, ops);
}

/* cuMemAllocAsync and cuMemFreeAsync */
static inline CUresult capture_alloc(struct stream *s, size_t len, CUdeviceptr *out)
{
	return graph_hooks.alloc(s, len, out);
}

static inline CUresult capture_free(struct stream *s, CUdeviceptr addr)
{
	return graph_hooks.free(s, addr);
}

/* A stream or event is destroyed. */
static inline void capture_stream_gone(struct stream *s)
{
	if (unlikely(s->capture))
		graph_hooks.stream_gone(s);
}

LOCAL void capture_event_gone(struct event *e);

/* ----------------------------------------------------- captures, under process.locks.graphs */

LOCAL CUresult graph_lock(void);	/* an error: not taken, the session is broken */

/* The nodes that the next work of a captured stream depends on. */
struct tail {
	uint64_t capture;		/* id */
	CUgraphNode *dep;
	CUgraphEdgeData *edge;
	size_t n, cap;
};

struct graph;

struct capture {
	uint64_t id;
	struct graph *g;		/* NULL: it was destroyed, and the capture is invalid */
	bool foreign;			/* into an existing graph */
	bool invalid;
	CUstreamCaptureMode mode;
	uint64_t thread;		/* that began it */
	struct stream *origin;
	struct stream **stream;		/* all streams captured into it */
	size_t n, cap;
	struct capture *next;
};

extern LOCAL struct capture *captures;

LOCAL struct capture *capture_find(uint64_t id);
LOCAL uint64_t capture_thread(void);	/* a number of this thread */
LOCAL void capture_tail_free(struct tail *t);

/* CAPTURE_IMPLICIT if the legacy stream would have to wait for a captured stream of the context. */
LOCAL CUresult capture_of_legacy(const struct context *ctx, bool invalidate);

static inline CUresult capture_state(const struct stream *s)
{
	return s->capture && s->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : 0;
}

#endif
