/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h - how a graph crosses the ring: the description behind SV_OP_X_GRAPH and …_X_GRAPH_UPDATE
 *
 *   struct sv_graph, then for each node: struct sv_graph_node, its dependencies, its body
 *
 * A node's place in the list is its name. Dependencies name earlier nodes of the same graph, so
 * there are no cycles. Child graphs have been put in the place of their node; the bodies of a
 * conditional node are graphs of their own: 0 is the graph itself, and each conditional node adds
 * as many as it has, in the order of the list. Everything is a multiple of 8 bytes; padding is
 * zero. Handles are virtual, except for conditional ones; addresses are those of window and arena.
 *
 * SV_OP_X_GRAPH          every node, in order. The proxy instantiates; later it names by `index`.
 * SV_OP_X_GRAPH_UPDATE   some nodes (any order, deps 0, the same type as before): their bodies and
 *                        whether they are enabled become these
 *
 * The description lies in the arena (sv_graph_req.off), or, if off is SV_GRAPH_INLINE, behind struct
 * sv_graph_req in the record. One in the arena stays there as long as the log needs it: until the
 * graph is destroyed, or, that of an update of all nodes, until the next such update.
 *
 * SV_NODE_CALL: the client runs something. The proxy makes two nodes of it: a host function that
 * says the id by SV_OP_X_NEXT_CALL (the same at each launch), and a wait until the client has
 * stored 1 at the arena offset `word`, which is set to 0 again. Launches of a graph come one after
 * the other, so one word is enough. No thread of the proxy waits meanwhile, nor of the driver.
 *
 * Memory nodes are the client's own affair: it keeps their addresses, and sends SV_NODE_EMPTY.
 */
#ifndef SV_GRAPH_H
#define SV_GRAPH_H

#include <stdint.h>

#include "proto.h"

#define SV_GRAPH_INLINE		UINT64_MAX
#define SV_GRAPH_NODES_MAX	(1u << 20)
#define SV_GRAPH_MEMOPS_MAX	256u

enum {
	SV_NODE_EMPTY = 1,
	SV_NODE_KERNEL,		/* struct sv_launch, attributes, parameters; stream is 0 */
	SV_NODE_COPY,		/* struct sv_copy3d; ctx, stream, word, value are 0 */
	SV_NODE_SET,		/* struct sv_graph_set */
	SV_NODE_CALL,		/* struct sv_graph_call */
	SV_NODE_RECORD,		/* struct sv_graph_event */
	SV_NODE_WAIT,		/* struct sv_graph_event */
	SV_NODE_MEMOPS,		/* struct sv_graph_memop, one or more */
	SV_NODE_COND,		/* struct sv_graph_if */
};

#define SV_NODE_DISABLED	1u	/* kernel, copy, set */

struct sv_graph {
	uint32_t nodes;
	uint32_t pad;
	uint64_t root;		/* CUgraph that conditional handles were made for, or 0 */
};

struct sv_graph_node {
	uint32_t size;		/* bytes of all of it, this struct included */
	uint32_t index;		/* X_GRAPH: as counted */
	uint16_t type;		/* SV_NODE_ */
	uint16_t flags;
	uint32_t deps;		/* struct sv_graph_dep */
	uint64_t ctx;		/* where it runs; 0 for SV_NODE_EMPTY */
	uint32_t graph;		/* that it is in; update: 0 */
	uint32_t pad;
};

struct sv_graph_dep {
	uint32_t node;
	uint8_t from_port;	/* as CUgraphEdgeData; 0: all of it */
	uint8_t to_port;
	uint8_t type;
	uint8_t pad;
};

struct sv_graph_set {
	uint64_t dst, pitch;
	uint64_t width, height;	/* elements, rows */
	uint32_t elem;		/* 1, 2, 4 bytes */
	uint32_t value;
};

struct sv_graph_call {
	uint64_t id;		/* not 0 */
	uint64_t word;		/* arena offset, 8 bytes, aligned */
};

struct sv_graph_event {
	uint64_t event;
};

struct sv_graph_memop {
	uint32_t op;		/* CUstreamBatchMemOpType */
	uint32_t flags;
	uint64_t addr;
	uint64_t value;
};

#define SV_GRAPH_BODIES_MAX	1024u

struct sv_graph_if {
	uint64_t handle;	/* as SV_OP_cuGraphConditionalHandleCreate has answered */
	uint32_t type;		/* CUgraphConditionalNodeType */
	uint32_t size;		/* bodies */
};

/*
 * SV_OP_cuGraphConditionalHandleCreate, answered with the handle (uint64_t), which device code
 * reads. The first one binds `graph`, so that the driver has one to make it for; one executable
 * graph at a time may be made of it. SV_OP_cuGraphDestroy: it is not used any more; what was made
 * of it is not touched. (log)
 */
struct sv_graph_cond {
	uint64_t ctx;
	uint64_t graph;
	uint32_t value;		/* default */
	uint32_t flags;
};

struct sv_graph_forget {
	uint64_t graph;
};

/*
 * SV_OP_cuGraphLaunch, SV_OP_cuGraphUpload (word 0), not answered. When the launch is done, and
 * word is not 0, the device stores value at that arena offset (8 bytes, aligned).
 */
struct sv_graph_launch {
	uint64_t ctx, stream;
	uint64_t exec;
	uint64_t word, value;
};

/* SV_OP_cuGraphExecDestroy, not answered: launches under way end as they would. (log) */
struct sv_graph_end {
	uint64_t exec;
};

_Static_assert(sizeof(struct sv_graph_node) == 32, "sv_graph_node");
_Static_assert(sizeof(struct sv_graph_dep) == 8, "sv_graph_dep");
_Static_assert(sizeof(struct sv_graph_memop) == 24, "sv_graph_memop");

#endif
