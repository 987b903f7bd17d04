/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h - how a graph crosses the ring: its description, for SV_OP_X_GRAPH and …_X_GRAPH_UPDATE
 *
 *   struct sv_graph, then for each node: struct sv_graph_node, its dependencies, its body
 *
 * A node's index is its position in the list. Dependencies name earlier nodes of the same graph,
 * so there are no cycles. A child graph's nodes are inlined at the place of their node. The
 * bodies of a conditional node are separate graphs: graph 0 is the outermost one, and each
 * conditional node, in the order of the list, adds one graph per body. Everything is a multiple
 * of 8 bytes; padding is zero. Handles are virtual, except for conditional ones; addresses are
 * those of window and arena.
 *
 * SV_OP_X_GRAPH          every node, in order. The proxy instantiates the graph.
 * SV_OP_X_GRAPH_UPDATE   some nodes, by `index`, in any order, with deps 0 and the type that they
 *                        have: replaces their bodies and whether they are enabled
 *
 * The description lies in the arena (sv_graph_req.off), or, if off is SV_GRAPH_INLINE, behind struct
 * sv_graph_req in the record. In the arena it stays as long as the log needs it: until the graph is
 * destroyed or, for an update of all nodes, until the next such update.
 *
 * SV_NODE_CALL: the client runs a function. The proxy makes two nodes of it: a host function that
 * makes the id due for SV_OP_X_NEXT_CALL (the same id at each launch), and a wait until the
 * client has stored 1 at the arena offset `word`, which is then reset to 0. Launches of a graph
 * run one after the other, so one word is enough. No thread of the proxy or of the driver waits
 * meanwhile.
 *
 * Memory nodes exist in the client alone: it keeps their addresses and sends SV_NODE_EMPTY.
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
	uint64_t root;		/* CUgraph that the conditional handles were made for, or 0 */
};

struct sv_graph_node {
	uint32_t size;		/* bytes of the node: this struct, dependencies and body */
	uint32_t index;		/* X_GRAPH: its position in the list */
	uint16_t type;		/* SV_NODE_ */
	uint16_t flags;
	uint32_t deps;		/* number of struct sv_graph_dep */
	uint64_t ctx;		/* where it runs; 0 for SV_NODE_EMPTY */
	uint32_t graph;		/* number of its graph; update: 0 */
	uint32_t pad;
};

struct sv_graph_dep {
	uint32_t node;
	uint8_t from_port;	/* as CUgraphEdgeData; 0: the whole node */
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
	uint64_t handle;	/* the answer of SV_OP_cuGraphConditionalHandleCreate */
	uint32_t type;		/* CUgraphConditionalNodeType */
	uint32_t size;		/* number of bodies */
};

/*
 * SV_OP_cuGraphConditionalHandleCreate, answered with the handle (uint64_t), which device code
 * reads. The first record for `graph` binds that handle, since the driver makes conditional handles
 * for a graph; at most one executable graph at a time may be made of it. SV_OP_cuGraphDestroy ends
 * the binding; executable graphs made of it stay. (log)
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
 * SV_OP_cuGraphLaunch, SV_OP_cuGraphUpload (word 0), not answered. If word is not 0, the device
 * stores value at that arena offset (8 bytes, aligned) when the launch is complete.
 */
struct sv_graph_launch {
	uint64_t ctx, stream;
	uint64_t exec;
	uint64_t word, value;
};

/* SV_OP_cuGraphExecDestroy, not answered: launches in flight still complete. (log) */
struct sv_graph_end {
	uint64_t exec;
};

_Static_assert(sizeof(struct sv_graph) == 16, "wire");
_Static_assert(sizeof(struct sv_graph_node) == 32, "wire");
_Static_assert(sizeof(struct sv_graph_dep) == 8, "wire");
_Static_assert(sizeof(struct sv_graph_set) == 40, "wire");
_Static_assert(sizeof(struct sv_graph_call) == 16, "wire");
_Static_assert(sizeof(struct sv_graph_event) == 8, "wire");
_Static_assert(sizeof(struct sv_graph_memop) == 24, "wire");
_Static_assert(sizeof(struct sv_graph_if) == 16, "wire");
_Static_assert(sizeof(struct sv_graph_cond) == 24, "wire");
_Static_assert(sizeof(struct sv_graph_forget) == 8, "wire");
_Static_assert(sizeof(struct sv_graph_launch) == 40, "wire");
_Static_assert(sizeof(struct sv_graph_end) == 8, "wire");

#endif
