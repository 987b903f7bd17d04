/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_i.h - graphs in the client: nodes, each one piece of work, and edges between them
 *
 *   graph.c       handles, graphs, edges, clones, queries, user objects
 *   node.c        node parameters into work, and back
 *   mem.c         allocation and free nodes
 *   exec.c        executable graphs: description for the proxy, launches, updates
 *   pieces.c      those with collective operations, which the proxy gets in pieces
 *   call.c        work of a node that the client runs: host functions, copies of pageable memory
 *   capture.c     stream capture
 *
 * graph_lock() guards all of it. It is dropped while a thread waits for the proxy; an executable
 * graph that this thread makes or changes meanwhile is its alone (exec.busy). Cleanup that may
 * wait is left to graph_unlock(), which does it without the lock: destructors of user objects,
 * records, arena memory.
 */
#ifndef GRAPH_I_H
#define GRAPH_I_H

#include "captured.h"

#include "core.h"
#include "graph.h"
#include "graphs.h"

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
	uint8_t *params;		/* in the kernel's layout */
	void **param;			/* pointers into params, for cuGraphKernelNodeGetParams */
	CUlaunchAttribute *attr;	/* at most one of each id */
	uint32_t attrs;
};

/*
 * A node with the calls of a collective record: of a communicator, and if they were grouped of a
 * group. It has no driver's node. Programs see a kernel node, as NCCL's own captures have it.
 */
#define NODE_COLL	0x100		/* work.type */

struct coll {
	const struct core_comm *comm;
	uint64_t number;		/* the communicator's; comm has another one when it has ended */
	uint64_t seq;			/* collectives are posted in the order of their capture */
	uint32_t n;
	int priority;			/* which a program has set; it means nothing here */
	struct sv_coll_call *call;
};

/* Memory of an allocation node; its address stays the same as long as it may be used. */
struct graph_mem {
	struct graph_mem *next;
	uint32_t refs;			/* number of nodes, in all clones */
	struct memory *m;		/* NULL: freed with its context */
	struct context *ctx;
	uint64_t addr, len;
	uint64_t graph;			/* handle of the graph with its first allocation node */
	uint64_t last_free;		/* handle of that graph's free node for it; 0: none, or the
					 * memory has been allocated again behind it */
	int live;			/* allocated by a launch, and not freed */
	bool used;			/* a launch has used it */
};

struct work {
	int type;			/* CUgraphNodeType, or NODE_COLL */
	uint64_t ctx;
	union {
		struct kernel k;
		CUDA_MEMCPY3D copy;
		CUDA_MEMSET_NODE_PARAMS_v2 set;
		CUDA_HOST_NODE_PARAMS_v2 host;
		struct graph *child;
		struct coll coll;
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
	uint64_t capture;		/* the capture that added it and has to join it, or 0 */
	uint32_t at;			/* index in g->nodes; a clone has the original's */
	uint32_t pending;		/* scratch of graph_order() */
	/* Of an executable graph: indices in the description. */
	uint32_t first, main, last;
	bool enabled;
	unsigned int shape;		/* of a copy, or a memset: SHAPE_ */
	struct graph_call *call;	/* the part that the client runs, or NULL */
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
	bool capturing;			/* a stream is being captured into it */
	uint64_t orig;
	struct graph *top;		/* of a conditional node's body: the outermost graph */
	uint64_t *conds;		/* conditional handles, the driver's values */
	uint32_t nconds;
	uint64_t root;			/* its handle in the proxy, if it has conditional handles */
	struct session *root_in;	/* which has made those */
	struct graph *next;		/* in the list of graphs that the proxy is to forget */
};

struct exec {
	uint64_t handle;
	struct exec *next;		/* in the list of live, or of destroyed but running ones */
	struct context *ctx;
	uint64_t ctx_handle;
	struct session *session;	/* the context's */
	struct graph *g;		/* a clone, whose nodes have orig */
	uint64_t flags;
	uint64_t desc, update;		/* arena offsets of description and last full update */
	uint64_t *parts;		/* and of partial updates that did not fit into a record */
	uint32_t nparts;
	struct pieces *pieces;		/* of a graph with breaks, or NULL */
	uint64_t words;			/* arena offset of the done word, then one word per call */
	uint32_t calls;			/* number of words after the done word */
	uint64_t launches;		/* the done word has this when all are complete */
	struct graph_call *retired;	/* calls that an update has replaced */
	bool busy;			/* a thread is sending its description, without the lock */
};

/* --------------------------------------------------------------------------------- capture.c */

/* Capture the launch of an executable graph, as a child graph node. Under the lock. */
LOCAL CUresult capture_graph(struct stream *s, const struct graph *g);

/* Invalidate captures into a graph that is deleted. Under the lock. */
LOCAL void capture_graph_gone(const struct graph *g);

/* ----------------------------------------------------------------------------------- graph.c */

LOCAL CUresult graph_unlock(CUresult r);	/* returns r */
LOCAL void graph_relock(void);			/* after graph_unlock(), in the same call */

/* Under the lock: wait for graph_changed() of another thread; any object may be gone afterwards. */
LOCAL void graph_wait(void);
LOCAL void graph_changed(void);

/* Have graph_unlock() call graph_call_free(), or exec_end(). */
LOCAL void graph_call_later(struct graph_call *c);
LOCAL void exec_later(struct exec *x);

/* graph_name: a new handle for p; 0: out of memory. graph_find: the object of a handle, or NULL. */
LOCAL uint64_t graph_name(unsigned int type, void *p);
LOCAL void *graph_find(unsigned int type, uint64_t handle);
LOCAL void graph_unname(unsigned int type, uint64_t handle);

/*
 * graph_hide: graph_find() returns NULL for the handle, which stays taken. graph_show: it finds p.
 */
LOCAL void graph_hide(unsigned int type, uint64_t handle);
LOCAL void graph_show(unsigned int type, uint64_t handle, void *p);

LOCAL struct graph *graph_new(void);
LOCAL void graph_delete(struct graph *g);
LOCAL struct graph *graph_clone(const struct graph *g);
LOCAL bool graph_has_cond(const struct graph *g);	/* conditional nodes or handles */
LOCAL bool graph_has_memory(const struct graph *g);	/* memory nodes, in children too */
LOCAL struct graph *graph_of(CUgraph h);
LOCAL struct node *node_of(CUgraphNode h, int type);	/* -1: any */
LOCAL CUresult node_refused(CUgraphNode h);		/* why node_of() has found none of a type */

/* Add a node; takes over what w points to, also when it fails. data may be NULL. */
LOCAL CUresult node_add(struct graph *g, struct work *w, struct node **deps,
			const CUgraphEdgeData *data, size_t ndeps, struct node **out);

LOCAL bool graph_has_coll(const struct graph *g);	/* collectives, in child graphs and bodies too */

/* The nodes in topological order, to be freed; NULL: out of memory, or *cycle. */
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

/* -------------------------------------------------------------------------------- node.c */

/* The place of a node that is to be added. */
struct spot {
	struct graph *g;
	struct node **deps;
	size_t ndeps;
	struct graph_spare *spare;	/* for an allocation node */
};

/*
 * Memory for an allocation node, allocated without the lock. Where graph_mem_new() returns
 * SEND_AGAIN, the caller drops the lock, calls graph_spare_get() and starts over; the second try
 * takes the spare memory, or the error of its allocation. In the end graph_spare_put() frees what
 * is left, without the lock, too.
 */
struct graph_spare {
	struct memory *m;		/* NULL: rc is the error */
	size_t len;			/* wanted */
	CUresult rc;
	bool tried;
};
LOCAL void graph_spare_get(struct graph_spare *s);
LOCAL void graph_spare_put(struct graph_spare *s);

/* at NULL: the work is for an existing node. */
LOCAL CUresult work_of_params(const CUgraphNodeParams *p, const struct spot *at, struct work *w);
LOCAL CUresult work_copy(struct work *to, const struct work *from);
LOCAL void work_free(struct work *w);
LOCAL CUresult work_memcpy(const CUDA_MEMCPY3D *c, uint64_t ctx, struct work *w);
LOCAL CUresult work_memops(unsigned int n, const CUstreamBatchMemOpParams *op, uint64_t ctx,
			   struct work *w);
LOCAL CUresult work_launch(const struct sv_launch *l, const void *tail, uint32_t len,
			   struct work *w);
LOCAL CUresult work_take_attrs(struct work *to, const struct work *from);
LOCAL bool edge_data_ok(const CUgraphEdgeData *d, const struct node *from, const struct node *to);

/* Is memory of a copy or a memset on another device than that of `here`? */
LOCAL bool work_abroad(const struct work *w);

/* How one side of a copy can be reached. */
LOCAL bool copy_pageable(const CUDA_MEMCPY3D *c, bool dst);	/* the device cannot */
LOCAL bool copy_linear_host(const CUDA_MEMCPY3D *c, bool dst);	/* the client can */
LOCAL uint8_t *copy_host(const CUDA_MEMCPY3D *c, bool dst, size_t *pitch, size_t *slice);

/* --------------------------------------------------------------------------------- mem.c */

/*
 * Memory for an allocation node at this spot: memory that an earlier node frees, or else new
 * memory. A graph that allocates and frees in turns needs one piece of memory, as with NVIDIA's
 * driver.
 */
LOCAL CUresult graph_mem_new(size_t len, const struct spot *at, struct graph_mem **out);
LOCAL void graph_mem_node(struct node *n);	/* a memory node has been added */
LOCAL struct graph_mem *graph_mem_at(CUdeviceptr addr);
LOCAL void graph_mem_put(struct graph_mem *m);
LOCAL CUresult graph_mem_launch(const struct graph *g, bool auto_free);
LOCAL void graph_mem_context_gone(struct context *ctx);
LOCAL void graph_mem_sweep(void);	/* frees unused memory; without graph_lock */

/* --------------------------------------------------------------------------------- exec.c */

LOCAL void exec_end(struct exec *x);		/* frees x and its arena memory, without the lock */
LOCAL CUresult exec_set(CUgraphExec h, CUgraphNode node, const CUgraphNodeParams *p);

/*
 * Send a description for an executable graph: in the record if it is small (or, off NULL, if it fits
 * at all), else in the arena, where a replay finds it. The arena memory replaces that at *off,
 * which is freed, or is added to x's parts.
 */
LOCAL CUresult exec_send(uint16_t op, struct exec *x, uint64_t handle, const void *desc, size_t len,
			 uint64_t flags, uint64_t *off);

/* ------------------------------------------------------------------------------ pieces.c */

/*
 * A node of a description that is in no driver's graph: a collective, a copy or memset of another device's
 * memory, or in a graph that has some a record of an event, or a wait for one. The description has an
 * empty node there.
 */
struct break_at {
	uint32_t index;
	struct node *n;
};

/*
 * pieces_new: cut a description at its breaks, and have the proxy make the graphs between them.
 * pieces_update: change the nodes of a description of changes. pieces_launch: under the lock, which
 * is dropped meanwhile; x is busy. pieces_upload: copy them to the device. All may wait.
 */
LOCAL CUresult pieces_new(struct exec *x, const void *desc, size_t len, const struct break_at *b,
			  uint32_t breaks, uint64_t flags);
LOCAL CUresult pieces_update(struct exec *x, const void *desc, size_t len, bool whole);
LOCAL CUresult pieces_launch(struct exec *x, struct stream *s);
LOCAL CUresult pieces_upload(struct exec *x, struct stream *s);

/* pieces_end: without the lock: end what the proxy has of them. pieces_unname: under it, later. */
LOCAL void pieces_end(struct exec *x);
LOCAL void pieces_unname(struct exec *x);
LOCAL void pieces_free(struct exec *x);

/* -------------------------------------------------------------------------------- call.c
 *
 * A call belongs to a node of an executable graph, and is freed when no launch can run it any more.
 * Both functions may wait.
 */
#define SHAPE_FROM	1u	/* the client copies the source into a staging buffer first */
#define SHAPE_TO	2u	/* the client copies the staging buffer to its destination last */
#define SHAPE_CLIENT	4u	/* the client does the whole copy */
#define SHAPE_CALLS	7u	/* any of these needs a call */
#define SHAPE_CROSS	8u	/* a side is on another device: it is a break (pieces.c); a memset's, too */

struct graph_call {
	struct graph_call *next;	/* in exec.retired, or in the list of calls to be freed */
	uint64_t id;
	uint64_t word;			/* arena offset */
	uint64_t stamp;			/* exec.launches when it was retired */
	bool idle;			/* the node is disabled */
	CUhostFn fn;			/* a host function, or NULL: a copy */
	void *user;
	CUDA_MEMCPY3D copy;
	unsigned int shape;
	uint64_t stage;			/* arena offset of the copy's staging buffer, or 0 */
};

/* A new call for the client's part of n's work; a copy's n->shape is set. */
LOCAL CUresult graph_call_new(const struct node *n, uint64_t word, struct graph_call **out);
LOCAL void graph_call_free(struct graph_call *c);

#endif
