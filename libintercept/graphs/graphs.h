/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graphs.h - what graphs do for the rest of the interposer: capture.c's part of captures (captured.h), and memory of nodes
 */
#ifndef GRAPHS_H
#define GRAPHS_H

#include "object.h"

struct core_comm;
struct sv_coll;
struct sv_coll_call;

/* As hooks.h says. */
LOCAL CUresult graph_record(struct stream *s, uint16_t op, const void *a, uint32_t alen, const void *b,
			    uint32_t blen);
LOCAL CUresult graph_memops(struct stream *s, unsigned int n, const CUstreamBatchMemOpParams *ops);
LOCAL CUresult graph_alloc(struct stream *s, size_t len, CUdeviceptr *out);
LOCAL CUresult graph_free(struct stream *s, CUdeviceptr addr);
LOCAL void graph_stream_gone(struct stream *s);
LOCAL bool graph_memory_freed(CUdeviceptr addr);
LOCAL void graph_context_gone(struct context *ctx);	/* ends its executable graphs */

/* A collective record: head has the number of calls, and their communicator. */
LOCAL CUresult capture_coll(struct stream *s, const struct core_comm *comm,
			    const struct sv_coll *head, const struct sv_coll_call *calls);

#endif
