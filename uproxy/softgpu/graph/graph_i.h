/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_i.h - graphs: nodes, each one piece of work (struct desc), and edges between them
 *
 * An executable graph holds a clone, which is not changed while a launch of it is pending: a change
 * makes a new clone. Nodes of a clone remember the node that they were made from.
 */
#ifndef SOFT_GRAPH_I_H
#define SOFT_GRAPH_I_H

#include "soft_i.h"

struct edge {
	struct node *n;
	CUgraphEdgeData data;
};

struct edges {
	struct edge *e;
	size_t n, cap;
};

struct node {
	struct obj o;
	struct graph *g;
	struct desc d;
	struct edges in, out;
	struct node *orig;		/* what this one was cloned from */
	bool enabled, visited;
	unsigned int indegree; /* scratch of soft_graph_order() */
	struct ctx *ctx;
	void **kparams;			/* pointers into d.k.params, for queries */
	CUlaunchAttributeValue attr[20];	/* of a kernel node */
	uint64_t capture;		/* id of the capture that added it, or 0 */
};

struct user_ref {
	struct user *u;
	unsigned int count;
};

struct graph {
	struct obj o;
	unsigned int refs;
	uint64_t id;
	struct node **nodes;		/* in the order in which they were added */
	size_t n, cap;
	struct node **order;		/* of an executable clone */
	struct cond_set *conds;		/* conditional handles, shared with clones */
	struct user_ref *users;
	size_t nusers;
	bool owned;			/* by a node: its handle cannot destroy it */
	struct graph *orig;
};

struct exec {
	struct obj o;
	unsigned int refs;
	struct graph *g;
	unsigned long long flags;
	struct ctx *ctx;
	struct op *last;		/* launches of one graph run one after the other */
};

/* Memory of an allocation node: its address is fixed while a node or the program may use it. */
struct gmem {
	unsigned int refs;		/* nodes, in all clones */
	struct mem *mem;
	bool live;			/* allocated by a launch, and not freed */
};

struct graph *soft_graph_new(void);
void soft_graph_delete(struct graph *g);
/* Adds a node; takes over what d points to, also on error. */
CUresult soft_node_add(struct graph *g, struct desc *d, struct node **deps,
		       const CUgraphEdgeData *data, size_t ndeps, struct node **out);
struct graph *soft_graph_clone(struct graph *g, bool for_exec);
/* Sorts by dependencies; false: there is a cycle. */
bool soft_graph_order(struct graph *g);
struct node *graph_find_clone(struct graph *clone, const struct node *orig);
int node_type(const struct node *n);
CUresult node_get(CUgraphNode h, int type, struct node **out);	/* big; type -1: any */
CUresult node_set_desc(struct node *n, struct desc *d);
void gmem_put(struct gmem *g);

void conds_get(struct cond_set *c);
void conds_put(struct cond_set *c);
void conds_begin(struct cond_set *c);	/* a launch begins */
CUresult cond_desc(const CUDA_CONDITIONAL_NODE_PARAMS *p, struct desc *d);
void cond_free(struct desc *d);
int cond_clone(struct desc *to, const struct desc *from, bool for_exec);
CUresult cond_run(struct ctx *ctx, struct stream *st, struct op *op, struct desc *d);

#endif
