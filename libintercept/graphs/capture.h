/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.h - the interface of stream capture and graphs to the rest of the interposer
 *
 * A call that puts work on a stream first calls capture_on(). Where that returns true, nothing is
 * sent: one of the functions below adds a node, or returns the error that forbids it.
 */
#ifndef CAPTURE_H
#define CAPTURE_H

#include "client.h"

struct core_comm;
struct sv_coll;
struct sv_coll_call;

extern LOCAL unsigned int capture_live;	/* number of active captures in the process; atomic */

LOCAL bool capture_on_slow(const struct stream *s);

/* Whether work put on this stream concerns a capture, as any use of the legacy stream may. */
static inline bool capture_on(const struct stream *s)
{
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED)))
		return false;
	return s->capture || capture_on_slow(s);
}

/*
 * capture_record() takes records of launches, copies (with the program's own addresses, pageable
 * ones included), memsets, stream memory operations, and SV_OP_cuLaunchHostFunc with struct
 * hostfunc_args (hostfunc.h). These functions capture work that has no record:
 */
LOCAL CUresult capture_copy(struct stream *s, const CUDA_MEMCPY3D *c);
LOCAL CUresult capture_memops(struct stream *s, unsigned int n,
			      const CUstreamBatchMemOpParams *ops);
/* cuMemAllocAsync and cuMemFreeAsync */
LOCAL CUresult capture_alloc(struct stream *s, size_t len, CUdeviceptr *out);
LOCAL CUresult capture_free(struct stream *s, CUdeviceptr addr);

/* A collective record: head has the number of calls, and their communicator. */
LOCAL CUresult capture_coll(struct stream *s, const struct core_comm *comm,
			    const struct sv_coll *head, const struct sv_coll_call *calls);

/* Refuse work that graphs cannot have, as cuStreamAddCallback: STREAM_CAPTURE_UNSUPPORTED (900). */
LOCAL CUresult capture_refuse(struct stream *s);

/*
 * CUDA_ERROR_CAPTURED_EVENT (907) if the event was last recorded in a capture: no queries or waits.
 */
LOCAL CUresult capture_event(struct event *e);

/* A stream or event is destroyed. */
LOCAL void capture_stream_gone(struct stream *s);
LOCAL void capture_event_gone(struct event *e);

/*
 * Note that memory of an allocation node was freed outside its graph. false: addr is no such
 * memory.
 */
LOCAL bool graph_memory_freed(CUdeviceptr addr);

/* End the executable graphs of a context that is about to end. */
LOCAL void graph_context_gone(struct context *ctx);

#endif
