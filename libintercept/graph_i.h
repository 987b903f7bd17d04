/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_i.h - graphs in the client: nodes, each one piece of work, and edges between them
 *
 *   graph.c       handles, graphs, edges, clones, questions, user objects
 *   graph_node.c  parameters into work, and back       graph_mem.c   allocation nodes
 *   graph_exec.c  executable graphs: description for the proxy, launches, updates
 *   graph_call.c  what the client runs for a node: host functions, copies of pageable memory
 *   capture.c     streams that record
 *
 * graph_lock() guards all of it. What runs a node's call in the program takes no lock, so that
 * waiting for the proxy with it held cannot end in a circle; but an instantiation, which may take
 * long, is waited for without it. Destructors of user objects run in graph_unlock(), without it,
 * too.
 */
#ifndef GRAPH_I_H
#define GRAPH_I_H

#include "capture.h"
#include "client.h"
#include "graph.h"

struct node;
struct graph;

struct edge {
	struct node *n;
	CUgraphEdgeData data;
};

struct edges {
	struct edge *e;
	uint32_t n, cap;
};

struct kernel {
	uint64_t func;			/* or kernel */
	uint32_t grid[3], block[3];
	uint32_t shared;
	uint32_t param_bytes;
	uint8_t *params;		/* as the kernel has them */
	void **param;			/* into params, for those who ask */
	CUlaunchAttribute *attr;	/* one of each id at most */
	uint32_t attrs;
};

/* Memory of an allocation node: at one address for as long as anything may use it. */
struct graph_mem {
	struct graph_mem *next;
	uint32_t refs;			/* nodes, in all clones */
	struct memory *m;		/* NULL: it went with its context */
	struct context *ctx;
	uint64_t addr, len;
	uint64_t graph;			/* handle of the one that it was allocated in */
	uint64_t last_free;		/* handle of the node there that frees it last, if no one
					 * allocates it behind that; else 0 */
	int live;			/* allocated by a launch, and not freed */
	bool used;			/* some launch has had it */
};

struct work {
	int type;			/* CUgraphNodeType */
	uint64_t ctx;
	union {
		struct kernel k;
		CUDA_MEMCPY3D copy;
		CUDA_MEMSET_NODE_PARAMS_v2 set;
		CUDA_HOST_NODE_PARAMS_v2 host;
		struct graph *child;
		CUevent event;
		struct {
			uint32_t n;
			CUstreamBatchMemOpParams *op;
		} memops;
		struct {
			CUDA_MEM_ALLOC_NODE_PARAMS_v2 p;
			struct graph_mem *m;
		} alloc;
		CUdeviceptr free;
		struct {
			CUDA_CONDITIONAL_NODE_PARAMS p;
			struct graph **body;	/* p.size of them; p.phGraph_out has the handles */
		} cond;
	};
};

struct node {
	uint64_t handle;
	struct graph *g;
	struct work w;
	struct edges in, out;
	uint64_t orig;			/* handle of the node that this one was cloned from */
	uint64_t capture;		/* the capture that added it and is to join it, or 0 */
	uint32_t at;			/* place in g->nodes; of a clone also in the original */
	uint32_t pending;		/* scratch of graph_order() */
	/* of an executable graph; description has main for what is in order with others */
	uint32_t first, main, last;	/* places in the description */
	bool enabled;
	unsigned int shape;		/* of a copy: SHAPE_ */
	struct graph_call *call;	/* what the client runs for it, or NULL */
};

struct user_ref {
	struct user *u;
	uint32_t count;
};

struct graph {
	uint64_t handle;
	struct node **nodes;		/* in the order in which they were added */
	uint32_t n, cap;
	struct user_ref *users;
	uint32_t nusers;
	bool owned;			/* by a child graph node or an executable graph */
	bool capturing;			/* into it, from cuStreamBeginCaptureToGraph */
	uint64_t orig;
	struct graph *top;		/* of a conditional node's body: the outermost graph */
	uint64_t *conds;		/* conditional handles, the driver's values */
	uint32_t nconds;
	uint64_t root;			/* as the proxy knows it, if it has conditional handles */
};

struct exec {
	uint64_t handle;
	struct exec *next;		/* all of them, or those that have gone but may run */
	struct context *ctx;
	uint64_t ctx_handle;
	struct graph *g;		/* what it does; nodes remember where they came from */
	uint64_t flags;
	uint64_t desc, update;		/* arena offsets: of all of it, of the newest whole update */
	uint64_t *parts;		/* and of updates of some nodes that no record had room for */
	uint32_t nparts;
	uint64_t words;			/* arena offset: done, then one word for each call */
	uint32_t calls;			/* words behind it */
	uint64_t launches;		/* done becomes this */
	struct graph_call *retired;		/* replaced by an update */
};

/* --------------------------------------------------------------------------------- capture.c */

/* An executable graph launched on a stream that records: a child graph. Under the lock. */
LOCAL CUresult capture_graph(struct stream *s, const struct graph *g);

/* A graph that is captured into goes, with the one that it is a part of. */
LOCAL void capture_graph_gone(const struct graph *g);

/* ----------------------------------------------------------------------------------- graph.c */

LOCAL CUresult graph_lock(void);		/* and the session is well */
LOCAL CUresult graph_unlock(CUresult r);	/* returns r */

/* Handles of this file's types: to the thing, or 0: out of memory; and back, or NULL. */
LOCAL uint64_t graph_name(unsigned int type, void *p);
LOCAL void *graph_find(unsigned int type, uint64_t handle);
LOCAL void graph_unname(unsigned int type, uint64_t handle);

LOCAL struct graph *graph_new(void);
LOCAL void graph_delete(struct graph *g);
LOCAL struct graph *graph_clone(const struct graph *g);
LOCAL bool graph_has_cond(const struct graph *g);	/* conditional nodes or handles */
LOCAL bool graph_has_memory(const struct graph *g);	/* memory nodes, in children too */
LOCAL struct graph *graph_of(CUgraph h);
LOCAL struct node *node_of(CUgraphNode h, int type);	/* -1: any */

/* Add a node; what w points to is the graph's in any case. data may be NULL. */
LOCAL CUresult node_add(struct graph *g, struct work *w, struct node **deps,
			const CUgraphEdgeData *data, size_t ndeps, struct node **out);
LOCAL void node_delete(struct node *n);

/* Nodes in an order that their edges allow; NULL: out of memory, or *cycle. Free it. */
LOCAL struct node **graph_order(const struct graph *g, bool *cycle);

/* The graphs inside a node: its child, or its bodies. */
static inline uint32_t node_graphs(const struct node *n)
{
	return n->w.type == CU_GRAPH_NODE_TYPE_GRAPH ? 1 :
	       n->w.type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? n->w.cond.p.size : 0;
}

static inline struct graph *node_graph(const struct node *n, uint32_t i)
{
	return n->w.type == CU_GRAPH_NODE_TYPE_GRAPH ? n->w.child : n->w.cond.body[i];
}

/* -------------------------------------------------------------------------------- graph_node.c */

/* Where a node is to be. */
struct spot {
	struct graph *g;
	struct node **deps;
	size_t ndeps;
};

/* at NULL: the node is there already. */
LOCAL CUresult work_of_params(const CUgraphNodeParams *p, const struct spot *at, struct work *w);
LOCAL CUresult work_copy(struct work *to, const struct work *from);
LOCAL void work_free(struct work *w);
LOCAL CUresult work_memcpy(const CUDA_MEMCPY3D *c, uint64_t ctx, struct work *w);
LOCAL CUresult work_memops(unsigned int n, const CUstreamBatchMemOpParams *op, uint64_t ctx,
			   struct work *w);
LOCAL CUresult work_launch(const struct sv_launch *l, const void *tail, uint32_t len,
			   struct work *w);
LOCAL CUresult work_cond(const CUDA_CONDITIONAL_NODE_PARAMS *p, struct graph *in, uint64_t ctx,
			 struct work *w);
LOCAL CUresult work_take_attrs(struct work *to, const struct work *from);
LOCAL bool edge_data_ok(const CUgraphEdgeData *d, const struct node *from, const struct node *to);

/* How a copy reaches one side. */
LOCAL bool copy_pageable(const CUDA_MEMCPY3D *c, bool dst);	/* not by the device */
LOCAL bool copy_linear_host(const CUDA_MEMCPY3D *c, bool dst);	/* by the client */
LOCAL uint8_t *copy_host(const CUDA_MEMCPY3D *c, bool dst, size_t *pitch, size_t *slice);

/* --------------------------------------------------------------------------------- graph_mem.c */

/*
 * Memory for an allocation at this spot: what a node before it has freed, or new. One memory is
 * enough for a graph that allocates and frees again and again, as with NVIDIA's driver.
 */
LOCAL CUresult graph_mem_new(size_t len, const struct spot *at, struct graph_mem **out);
LOCAL void graph_mem_node(struct node *n);	/* a node of memory has been added */
LOCAL struct graph_mem *graph_mem_at(CUdeviceptr addr);
LOCAL void graph_mem_put(struct graph_mem *m);
LOCAL CUresult graph_mem_launch(const struct graph *g, bool auto_free);
LOCAL void graph_mem_context_gone(struct context *ctx);
LOCAL void graph_mem_sweep(void);	/* without graph_lock: memory that nothing names any more */

/* --------------------------------------------------------------------------------- graph_exec.c */

LOCAL struct exec *exec_of(CUgraphExec h);
LOCAL CUresult exec_set(CUgraphExec h, CUgraphNode node, const CUgraphNodeParams *p);

/* -------------------------------------------------------------------------------- graph_call.c
 *
 * A call belongs to a node of an executable graph; it goes when no launch can bring it up again.
 */
#define SHAPE_FROM	1u	/* the client copies from its source into the staging range first */
#define SHAPE_TO	2u	/* the client copies from there to its destination afterwards */
#define SHAPE_CLIENT	4u	/* the client copies; the device has nothing to do */

struct graph_call {
	struct graph_call *next;	/* of exec's retired ones */
	uint64_t id;
	uint64_t word;			/* arena offset */
	uint64_t stamp;			/* launches of the graph when it was retired */
	bool idle;			/* the node is disabled */
	CUhostFn fn;			/* a host function, or NULL: a copy */
	void *user;
	CUDA_MEMCPY3D copy;
	unsigned int shape;
	uint64_t stage;			/* arena offset of the copy's packed bytes, or 0 */
};

/* What n's work asks of the client, by a new call. n->shape says how, if it is a copy. */
LOCAL CUresult graph_call_new(const struct node *n, uint64_t word, struct graph_call **out);
LOCAL void graph_call_free(struct graph_call *c);

#endif
