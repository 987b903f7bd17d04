/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.h - what the rest of the interposer says to stream capture and to graphs
 *
 * A call that puts work on a stream asks capture_on() first. If it says yes, the work goes to one
 * of the functions below, which add a node or say why that is forbidden, and nothing is sent.
 */
#ifndef CAPTURE_H
#define CAPTURE_H

#include "client.h"

extern LOCAL unsigned int capture_live;	/* captures under way in the process; atomic */

LOCAL bool capture_on_slow(const struct stream *s);

/* Does work put on this stream now concern a capture? (The legacy stream does, by being used.) */
static inline bool capture_on(const struct stream *s)
{
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED)))
		return false;
	return s->capture || capture_on_slow(s);
}

/*
 * Records that capture_record() takes as they are: launches, copies (addresses are the program's
 * own, pageable ones included), memsets, stream memory operations; SV_OP_cuLaunchHostFunc with
 * struct hostfunc_args (hostfunc.h). What has no record:
 */
LOCAL CUresult capture_copy(struct stream *s, const CUDA_MEMCPY3D *c);
LOCAL CUresult capture_memops(struct stream *s, unsigned int n,
			      const CUstreamBatchMemOpParams *ops);
/* cuMemAllocAsync and cuMemFreeAsync */
LOCAL CUresult capture_alloc(struct stream *s, size_t len, CUdeviceptr *out);
LOCAL CUresult capture_free(struct stream *s, CUdeviceptr addr);

/* Work that no graph can have: cuStreamAddCallback and the like. Ends in 900. */
LOCAL CUresult capture_refuse(struct stream *s);

/* The event was last recorded in a capture: it may not be asked for or waited for: 907. */
LOCAL CUresult capture_event(struct event *e);

/* A stream or event goes away. */
LOCAL void capture_stream_gone(struct stream *s);
LOCAL void capture_event_gone(struct event *e);

/* Memory of an allocation node is freed outside of its graph. false: addr is not such memory. */
LOCAL bool graph_memory_freed(CUdeviceptr addr);

/* The context is about to end: executable graphs in it do, too. */
LOCAL void graph_context_gone(struct context *ctx);

#endif
