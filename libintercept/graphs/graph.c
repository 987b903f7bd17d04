/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - graphs as data: handles, nodes, edges, clones, queries, user objects
 *
 * Nothing here crosses the ring. Nodes are listed in the order in which they were added, edges in
 * the order in which the program named them, as NVIDIA's driver does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph_i.h"
#include "module.h"
#include "object.h"
#include "send.h"

struct user {			/* CUuserObject */
	uint64_t handle;
	void *ptr;
	CUhostFn destroy;
	uint64_t refs;
	struct user *next;	/* in `doomed` */
};

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct user *doomed;		/* these lists are left to graph_unlock() */
static struct graph *forgotten;
static struct graph_call *calls;
static struct exec *execs;

void graph_relock(void)
{
	lock_take(&process.locks.graphs);
}

void graph_wait(void)
{
	lock_wait(&process.locks.graphs, &changed);
}

void graph_changed(void)
{
	pthread_cond_broadcast(&changed);
}

static void users_end(struct user *u)
{
	while (u) {
		struct user *next = u->next;

		u->destroy(u->ptr);
		free(u);
		u = next;
	}
}

/* Have the proxy forget graphs, too. A handle may be reused only after its record was sent. */
static void graphs_end(struct graph *g)
{
	while (g) {
		struct sv_graph_forget forget = { g->root };
		struct graph *next = g->next;

		ON(g->root_in);
		send_async(SV_OP_cuGraphDestroy, &forget, sizeof(forget), NULL, 0);
		lock_take(&process.locks.graphs);
		graph_unname(SV_T_CUgraph, g->handle);
		lock_drop(&process.locks.graphs);
		free(g);
		g = next;
	}
}

static void calls_end(struct graph_call *c)
{
	while (c) {
		struct graph_call *next = c->next;

		graph_call_free(c);
		c = next;
	}
}

CUresult graph_unlock(CUresult r)
{
	struct user *u = doomed;
	struct graph *g = forgotten;
	struct graph_call *c = calls;
	struct exec *x = execs, *next;

	doomed = NULL;
	forgotten = NULL;
	calls = NULL;
	execs = NULL;
	lock_drop(&process.locks.graphs);
	graphs_end(g);
	calls_end(c);
	for (; x; x = next) {
		next = x->next;
		exec_end(x);
	}
	users_end(u);
	return r;
}

void graph_call_later(struct graph_call *c)
{
	c->next = calls;
	calls = c;
}

void exec_later(struct exec *x)
{
	x->next = execs;
	execs = x;
}

/* --------------------------------------------------------------------------------- handles */

static struct table {
	struct slot {
		void *p;		/* NULL: free, next in its place */
		uint32_t next;
		uint8_t use;
	} *slot;
	uint32_t n, cap;
	uint32_t free, gone, asked;	/* lists, as in object.c; + 1 */
	uint32_t ngone;
	uint64_t stamp;			/* of `asked` */
} tables[4];

static struct table *table_of(unsigned int type)
{
	return type == SV_T_CUgraph ? &tables[0] : type == SV_T_CUgraphNode ? &tables[1] :
	       type == SV_T_CUgraphExec ? &tables[2] : &tables[3];
}

/* As in object.c: an index is used again when the proxy has ended what had it. */
static void look_for_free(struct table *t)
{
	if (t->asked && seen_is(t->stamp)) {
		t->free = t->asked;
		t->asked = 0;
	}
	if (t->asked || t->ngone < SEEN_AFTER)
		return;
	t->stamp = seen_ask();
	if (!t->stamp)
		return;
	t->asked = t->gone;
	t->gone = t->ngone = 0;
}

uint64_t graph_name(unsigned int type, void *p)
{
	struct table *t = table_of(type);
	uint32_t i;

	if (!t->free)
		look_for_free(t);
	if (t->free) {
		i = t->free - 1;
		t->free = t->slot[i].next;
	} else {
		if (t->n == t->cap) {
			uint32_t cap = t->cap ? t->cap * 2 : 64;
			struct slot *s;

			if (cap > 1u << SV_HANDLE_INDEX_BITS)
				return 0;
			s = realloc(t->slot, cap * sizeof(*s));
			if (!s)
				return 0;
			t->slot = s;
			t->cap = cap;
		}
		i = t->n++;
		t->slot[i].use = 0;
	}
	t->slot[i].p = p;
	return sv_handle(type, i, ++t->slot[i].use);
}

void *graph_find(unsigned int type, uint64_t handle)
{
	struct table *t = table_of(type);
	uint32_t i = sv_handle_index(handle);

	if (!sv_is_handle(type, handle) || i >= t->n || !t->slot[i].p ||
	    (t->slot[i].use & 15) != sv_handle_use(handle))
		return NULL;
	return t->slot[i].p;
}

void graph_hide(unsigned int type, uint64_t handle)
{
	table_of(type)->slot[sv_handle_index(handle)].p = NULL;
}

void graph_show(unsigned int type, uint64_t handle, void *p)
{
	table_of(type)->slot[sv_handle_index(handle)].p = p;
}

void graph_unname(unsigned int type, uint64_t handle)
{
	struct table *t = table_of(type);
	uint32_t i = sv_handle_index(handle);
	bool posts = process_has_posted();
	uint32_t *list = posts ? &t->gone : &t->free;

	t->slot[i].p = NULL;
	t->slot[i].next = *list;
	*list = i + 1;
	t->ngone += posts;
}

struct graph *graph_of(CUgraph h)
{
	return graph_find(SV_T_CUgraph, sv_u64(h));
}

struct node *node_of(CUgraphNode h, int type)
{
	struct node *n = graph_find(SV_T_CUgraphNode, sv_u64(h));

	return n && (type < 0 || n->w.type == type) ? n : NULL;
}

CUresult node_refused(CUgraphNode h)
{
	return node_of(h, NODE_COLL) ?
		sv_unsupported("a call for the node of a collective operation",
			       "it is no kernel, and has none of a kernel's parameters") :
		CUDA_ERROR_INVALID_VALUE;
}

static CUgraphNode node_handle(const struct node *n)
{
	return (CUgraphNode)(uintptr_t)n->handle;
}

/* ----------------------------------------------------------------------------------- edges */

static bool edges_add(struct edges *x, struct node *n, const CUgraphEdgeData *data)
{
	if (x->n == x->cap) {
		uint32_t cap = x->cap ? x->cap * 2 : 2;
		struct edge *e = realloc(x->e, cap * sizeof(*e));

		if (!e)
			return false;
		x->e = e;
		x->cap = cap;
	}
	x->e[x->n].n = n;
	x->e[x->n++].data = data ? *data : (CUgraphEdgeData){ 0 };
	return true;
}

static struct edge *edges_find(const struct edges *x, const struct node *n)
{
	for (uint32_t i = 0; i < x->n; i++)
		if (x->e[i].n == n)
			return &x->e[i];
	return NULL;
}

static void edges_del(struct edges *x, const struct node *n)
{
	struct edge *e = edges_find(x, n);

	if (!e)
		return;
	x->n--;
	memmove(e, e + 1, (size_t)(x->e + x->n - e) * sizeof(*e));
}

/* The side with fewer edges knows whether there is one. */
static struct edge *edge_find(const struct node *from, const struct node *to)
{
	return from->out.n < to->in.n ? edges_find(&from->out, to) : edges_find(&to->in, from);
}

static CUresult edge_add(struct node *from, struct node *to, const CUgraphEdgeData *data)
{
	if (!edges_add(&from->out, to, data))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!edges_add(&to->in, from, data)) {
		from->out.n--;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return 0;
}

static void edge_del(struct node *from, struct node *to)
{
	edges_del(&from->out, to);
	edges_del(&to->in, from);
}

/* --------------------------------------------------------------------------- nodes, graphs */

struct graph *graph_new(void)
{
	struct graph *g = calloc(1, sizeof(*g));

	if (g)
		g->handle = graph_name(SV_T_CUgraph, g);
	if (g && g->handle)
		return g;
	free(g);
	return NULL;
}

static void node_free(struct node *n)
{
	graph_unname(SV_T_CUgraphNode, n->handle);
	work_free(&n->w);
	free(n->in.e);
	free(n->out.e);
	if (n->call)
		graph_call_later(n->call);
	free(n);
}

static void user_put(struct user *u, uint64_t count)
{
	u->refs -= count;
	if (u->refs)
		return;
	graph_unname(SV_T_CUuserObject, u->handle);
	u->next = doomed;
	doomed = u;
}

void graph_delete(struct graph *g)
{
	if (g->capturing)
		capture_graph_gone(g);
	free(g->conds);
	for (uint32_t i = 0; i < g->n; i++)
		node_free(g->nodes[i]);
	for (uint32_t i = 0; i < g->nusers; i++)
		user_put(g->users[i].u, g->users[i].count);
	free(g->users);
	free(g->nodes);
	if (g->root == g->handle) {
		graph_hide(SV_T_CUgraph, g->handle);
		g->next = forgotten;
		forgotten = g;
	} else {
		graph_unname(SV_T_CUgraph, g->handle);
		free(g);
	}
}

static struct node *node_new(struct graph *g)
{
	struct node *n;

	if (g->n == g->cap) {
		uint32_t cap = g->cap ? g->cap * 2 : 16;
		struct node **p = realloc(g->nodes, cap * sizeof(*p));

		if (!p)
			return NULL;
		g->nodes = p;
		g->cap = cap;
	}
	n = calloc(1, sizeof(*n));
	if (!n)
		return NULL;
	n->handle = graph_name(SV_T_CUgraphNode, n);
	if (!n->handle) {
		free(n);
		return NULL;
	}
	n->g = g;
	n->enabled = true;
	n->w.type = CU_GRAPH_NODE_TYPE_EMPTY;
	n->at = g->n;
	g->nodes[g->n++] = n;
	return n;
}

static void node_delete(struct node *n);

CUresult node_add(struct graph *g, struct work *w, struct node **deps, const CUgraphEdgeData *data,
		  size_t ndeps, struct node **out)
{
	struct node *n = node_new(g);

	if (!n) {
		work_free(w);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	n->w = *w;
	for (size_t i = 0; i < ndeps; i++)
		if (!edges_find(&n->in, deps[i]) && edge_add(deps[i], n, data ? &data[i] : NULL)) {
			node_delete(n);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	graph_mem_node(n);
	*out = n;
	return 0;
}

static void node_delete(struct node *n)
{
	struct graph *g = n->g;

	while (n->in.n)
		edge_del(n->in.e[n->in.n - 1].n, n);
	while (n->out.n)
		edge_del(n, n->out.e[n->out.n - 1].n);
	g->n--;
	for (uint32_t i = n->at; i < g->n; i++) {
		g->nodes[i] = g->nodes[i + 1];
		g->nodes[i]->at = i;
	}
	node_free(n);
}

static bool clone_users(struct graph *c, const struct graph *g)
{
	c->users = calloc(g->nusers + 1, sizeof(*c->users));
	if (!c->users)
		return false;
	for (; c->nusers < g->nusers; c->nusers++) {
		c->users[c->nusers] = (struct user_ref){ g->users[c->nusers].u, 1 };
		c->users[c->nusers].u->refs++;
	}
	return true;
}

/* A copy with its own nodes, child graphs and references; NULL: out of memory. */
struct graph *graph_clone(const struct graph *g)
{
	struct graph *c = graph_new();
	bool ok = c && clone_users(c, g);

	for (uint32_t i = 0; ok && i < g->n; i++) {
		struct node *n = node_new(c);

		ok = n && !work_copy(&n->w, &g->nodes[i]->w);
		if (ok) {
			n->orig = g->nodes[i]->handle;
			n->enabled = g->nodes[i]->enabled;
		}
	}
	for (uint32_t i = 0; ok && i < g->n; i++) {
		const struct edges *in = &g->nodes[i]->in, *out = &g->nodes[i]->out;

		for (uint32_t j = 0; ok && j < in->n; j++)
			ok = edges_add(&c->nodes[i]->in, c->nodes[in->e[j].n->at], &in->e[j].data);
		for (uint32_t j = 0; ok && j < out->n; j++)
			ok = edges_add(&c->nodes[i]->out, c->nodes[out->e[j].n->at],
				       &out->e[j].data);
	}
	if (ok) {
		c->orig = g->handle;
		c->root = g->root;
		c->root_in = g->root_in;
		return c;
	}
	if (c)
		graph_delete(c);
	return NULL;
}

struct node **graph_order(const struct graph *g, bool *cycle)
{
	struct node **order = calloc(g->n + 1, sizeof(*order));
	uint32_t done = 0, next = 0;

	*cycle = false;
	if (!order)
		return NULL;
	for (uint32_t i = 0; i < g->n; i++) {
		g->nodes[i]->pending = g->nodes[i]->in.n;
		if (!g->nodes[i]->in.n)
			order[done++] = g->nodes[i];
	}
	while (next < done) {
		struct node *n = order[next++];

		for (uint32_t i = 0; i < n->out.n; i++)
			if (!--n->out.e[i].n->pending)
				order[done++] = n->out.e[i].n;
	}
	if (done == g->n)
		return order;
	*cycle = true;
	free(order);
	return NULL;
}

/* ----------------------------------------------------------------------------------- calls */

static CUresult lock_graph(CUgraph h, struct graph **g)
{
	TRY(graph_lock());
	*g = graph_of(h);
	return *g ? 0 : graph_unlock(CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	struct graph *g;

	TRY(session_check());
	if (!phGraph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_lock());
	g = graph_new();
	if (g)
		*phGraph = (CUgraph)(uintptr_t)g->handle;
	return graph_unlock(g ? 0 : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuGraphDestroy(CUgraph hGraph)
{
	struct graph *g;

	TRY(lock_graph(hGraph, &g));
	if (g->owned || g->capturing)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	graph_delete(g);
	graph_unlock(0);
	graph_mem_sweep();
	return 0;
}

bool graph_has_coll(const struct graph *g)
{
	bool has = false;

	for (uint32_t i = 0; i < g->n && !has; i++) {
		has = g->nodes[i]->w.type == NODE_COLL;
		for (uint32_t j = 0; j < node_graphs(g->nodes[i]) && !has; j++)
			has = graph_has_coll(node_graph(g->nodes[i], j));
	}
	return has;
}

/* Whether g has memory nodes: their allocation cannot belong to two graphs. */
bool graph_has_memory(const struct graph *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		const struct work *w = &g->nodes[i]->w;

		if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
		    w->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
		    (w->type == CU_GRAPH_NODE_TYPE_GRAPH && graph_has_memory(w->child)))
			return true;
	}
	return false;
}

bool graph_has_cond(const struct graph *g)
{
	bool has = g->nconds || g->top;

	for (uint32_t i = 0; i < g->n && !has; i++)
		has = g->nodes[i]->w.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
	return has;
}

API CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
	struct graph *g, *c;

	TRY(session_check());
	if (!phGraphClone)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_graph(originalGraph, &g));
	if (graph_has_memory(g) || graph_has_cond(g))
		return graph_unlock(CUDA_ERROR_NOT_SUPPORTED);
	c = graph_clone(g);
	if (c)
		*phGraphClone = (CUgraph)(uintptr_t)c->handle;
	return graph_unlock(c ? 0 : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
				    CUgraph hClonedGraph)
{
	struct graph *g;

	TRY(session_check());
	if (!phNode || !hOriginalNode)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_graph(hClonedGraph, &g));
	for (uint32_t i = 0; i < g->n; i++)
		if (g->nodes[i]->orig == sv_u64(hOriginalNode)) {
			*phNode = node_handle(g->nodes[i]);
			return graph_unlock(0);
		}
	return graph_unlock(CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	struct node *n;

	TRY(session_check());
	if (!type)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_lock());
	n = node_of(hNode, -1);
	if (n)
		*type = n->w.type == NODE_COLL ? CU_GRAPH_NODE_TYPE_KERNEL : n->w.type;
	return graph_unlock(n ? 0 : CUDA_ERROR_INVALID_VALUE);
}

/* With a NULL array returns the number of nodes; surplus entries of the array become NULL. */
static CUresult list_nodes(CUgraph h, CUgraphNode *out, size_t *count, bool roots)
{
	struct graph *g;
	size_t n = 0;

	TRY(session_check());
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_graph(h, &g));
	for (uint32_t i = 0; i < g->n; i++) {
		if (roots && g->nodes[i]->in.n)
			continue;
		if (out && n < *count)
			out[n] = node_handle(g->nodes[i]);
		n++;
	}
	for (size_t i = n; out && i < *count; i++)
		out[i] = NULL;
	if (!out || n < *count)
		*count = n;
	return graph_unlock(0);
}

API CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	return list_nodes(hGraph, nodes, numNodes, false);
}

API CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
	return list_nodes(hGraph, rootNodes, numRootNodes, true);
}

static bool plain(const CUgraphEdgeData *d)
{
	return !d->from_port && !d->to_port && !d->type;
}

API CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
				CUgraphEdgeData *edgeData, size_t *numEdges)
{
	struct graph *g;
	bool lossy = false;
	size_t n = 0;

	TRY(session_check());
	if (!numEdges || !from != !to)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_graph(hGraph, &g));
	for (uint32_t i = 0; i < g->n; i++)
		for (uint32_t j = 0; j < g->nodes[i]->out.n; j++, n++) {
			const struct edge *e = &g->nodes[i]->out.e[j];

			if (!from || n >= *numEdges)
				continue;
			from[n] = node_handle(g->nodes[i]);
			to[n] = node_handle(e->n);
			if (edgeData)
				edgeData[n] = e->data;
			else
				lossy |= !plain(&e->data);
		}
	for (size_t i = n; from && i < *numEdges; i++)
		from[i] = to[i] = NULL;
	if (!from || n < *numEdges)
		*numEdges = n;
	return graph_unlock(lossy ? CUDA_ERROR_LOSSY_QUERY : 0);
}

API CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
	return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

static CUresult list_edges(CUgraphNode h, CUgraphNode *out, CUgraphEdgeData *data, size_t *count,
			   bool in)
{
	bool lossy = false;
	struct edges *x;
	struct node *n;

	TRY(session_check());
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_lock());
	n = node_of(h, -1);
	if (!n)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	x = in ? &n->in : &n->out;
	for (size_t i = 0; out && i < *count; i++) {
		out[i] = i < x->n ? node_handle(x->e[i].n) : NULL;
		if (i >= x->n)
			continue;
		if (data)
			data[i] = x->e[i].data;
		else
			lossy |= !plain(&x->e[i].data);
	}
	if (!out || x->n < *count)
		*count = x->n;
	return graph_unlock(lossy ? CUDA_ERROR_LOSSY_QUERY : 0);
}

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
					   CUgraphEdgeData *edgeData, size_t *numDependencies)
{
	return list_edges(hNode, dependencies, edgeData, numDependencies, true);
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
					size_t *numDependencies)
{
	return list_edges(hNode, dependencies, NULL, numDependencies, true);
}

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
					     CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
	return list_edges(hNode, dependentNodes, edgeData, numDependentNodes, false);
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
					  size_t *numDependentNodes)
{
	return list_edges(hNode, dependentNodes, NULL, numDependentNodes, false);
}

static CUresult check_edge(const struct graph *g, CUgraphNode from, CUgraphNode to,
			   const CUgraphEdgeData *data, bool add)
{
	struct node *a = node_of(from, -1), *b = node_of(to, -1);
	struct edge *e;

	if (!a || !b || a->g != g || b->g != g || a == b)
		return CUDA_ERROR_INVALID_VALUE;
	e = edge_find(a, b);
	if (!e != add)
		return CUDA_ERROR_INVALID_VALUE;
	if (add)
		return edge_data_ok(data, a, b) ? 0 : CUDA_ERROR_INVALID_VALUE;
	if (data ? !!memcmp(data, &e->data, sizeof(*data)) : !plain(&e->data))
		return CUDA_ERROR_INVALID_VALUE;
	return 0;
}

static CUresult change_edges(CUgraph h, const CUgraphNode *from, const CUgraphNode *to,
			     const CUgraphEdgeData *data, size_t count, bool add)
{
	struct graph *g;
	CUresult r = 0;

	TRY(session_check());
	if (count && (!from || !to))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_graph(h, &g));
	for (size_t i = 0; i < count && !r; i++)
		r = check_edge(g, from[i], to[i], data ? &data[i] : NULL, add);
	for (size_t i = 0; i < count && !r; i++) {
		struct node *a = node_of(from[i], -1), *b = node_of(to[i], -1);

		if (!add)
			edge_del(a, b);
		else if (!edge_find(a, b))
			r = edge_add(a, b, data ? &data[i] : NULL);
	}
	return graph_unlock(r);
}

API CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
				       const CUgraphNode *to, const CUgraphEdgeData *edgeData,
				       size_t numDependencies)
{
	return change_edges(hGraph, from, to, edgeData, numDependencies, true);
}

API CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
				    size_t numDependencies)
{
	return change_edges(hGraph, from, to, NULL, numDependencies, true);
}

API CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
					  const CUgraphNode *to, const CUgraphEdgeData *edgeData,
					  size_t numDependencies)
{
	return change_edges(hGraph, from, to, edgeData, numDependencies, false);
}

API CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from,
				       const CUgraphNode *to, size_t numDependencies)
{
	return change_edges(hGraph, from, to, NULL, numDependencies, false);
}

API CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
	struct node *n;

	TRY(graph_lock());
	n = node_of(hNode, -1);
	if (!n)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	if (n->w.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || n->w.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		return graph_unlock(CUDA_ERROR_NOT_SUPPORTED);
	node_delete(n);
	return graph_unlock(0);
}

/* ------------------------------------------------------------------------------------- dot */

static void dot_node(FILE *f, const struct node *n)
{
	static const char *const types[] = {
		"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT",
		"EVENT_RECORD", "EXT_SEMAS_SIGNAL", "EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE",
		"BATCH_MEM_OP", "CONDITIONAL",
	};
	struct function *fn = NULL;

	if (n->w.type == CU_GRAPH_NODE_TYPE_KERNEL)
		fn = function_find((CUfunction)(uintptr_t)n->w.k.func);
	fprintf(f, "\"graph_%u_node_%u\"[label=\"%u\\n%s%s%s\"];\n",
		sv_handle_index(n->g->handle), n->at, n->at,
		n->w.type == NODE_COLL ? "COLLECTIVE" : types[n->w.type],
		fn && fn->name ? "\\n" : "", fn && fn->name ? fn->name : "");
}

static void dot_graph(FILE *f, const struct graph *g)
{
	uint32_t id = sv_handle_index(g->handle);

	fprintf(f, "subgraph cluster_%u {\nlabel=\"graph_%u\" graph[style=\"dashed\"];\n", id, id);
	for (uint32_t i = 0; i < g->n; i++)
		dot_node(f, g->nodes[i]);
	for (uint32_t i = 0; i < g->n; i++)
		for (uint32_t j = 0; j < g->nodes[i]->out.n; j++)
			fprintf(f, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\";\n", id, i, id,
				g->nodes[i]->out.e[j].n->at);
	fprintf(f, "}\n");
	for (uint32_t i = 0; i < g->n; i++)
		for (uint32_t j = 0; j < node_graphs(g->nodes[i]); j++)
			dot_graph(f, node_graph(g->nodes[i], j));
}

API CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
	struct graph *g;
	FILE *f;

	(void)flags;
	TRY(session_check());
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_graph(hGraph, &g));
	f = fopen(path, "we");
	if (!f)
		return graph_unlock(CUDA_ERROR_OPERATING_SYSTEM);
	fprintf(f, "digraph dot {\n");
	dot_graph(f, g);
	fprintf(f, "}\n");
	return graph_unlock(fclose(f) ? CUDA_ERROR_OPERATING_SYSTEM : 0);
}

/* ---------------------------------------------------------------------------- user objects */

API CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
				unsigned int initialRefcount, unsigned int flags)
{
	struct user *u;

	TRY(session_check());
	if (!object_out || !destroy || !initialRefcount || initialRefcount > INT32_MAX ||
	    flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_lock());
	u = calloc(1, sizeof(*u));
	if (u)
		u->handle = graph_name(SV_T_CUuserObject, u);
	if (!u || !u->handle) {
		free(u);
		return graph_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	u->ptr = ptr;
	u->destroy = destroy;
	u->refs = initialRefcount;
	*object_out = (CUuserObject)(uintptr_t)u->handle;
	return graph_unlock(0);
}

static CUresult lock_user(CUuserObject h, unsigned int count, struct user **u)
{
	TRY(graph_lock());
	*u = graph_find(SV_T_CUuserObject, sv_u64(h));
	if (!*u || !count || count > INT32_MAX)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	return 0;
}

API CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	struct user *u;

	TRY(lock_user(object, count, &u));
	u->refs += count;
	return graph_unlock(0);
}

API CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	struct user *u;

	TRY(lock_user(object, count, &u));
	if (count > u->refs)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	user_put(u, count);
	return graph_unlock(0);
}

API CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
				     unsigned int flags)
{
	struct user_ref *p = NULL;
	struct graph *g;
	struct user *u;

	TRY(session_check());
	if (flags & ~CU_GRAPH_USER_OBJECT_MOVE)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_user(object, count, &u));
	g = graph_of(graph);
	if (!g || ((flags & CU_GRAPH_USER_OBJECT_MOVE) && count > u->refs))
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	for (uint32_t i = 0; i < g->nusers && !p; i++)
		if (g->users[i].u == u)
			p = &g->users[i];
	if (!p) {
		p = realloc(g->users, (g->nusers + 1) * sizeof(*p));
		if (!p)
			return graph_unlock(CUDA_ERROR_OUT_OF_MEMORY);
		g->users = p;
		p = &g->users[g->nusers++];
		*p = (struct user_ref){ .u = u };
	}
	p->count += count;
	if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
		u->refs += count;
	return graph_unlock(0);
}

API CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
	struct graph *g;
	struct user *u;

	TRY(lock_user(object, count, &u));
	g = graph_of(graph);
	for (uint32_t i = 0; g && i < g->nusers; i++) {
		if (g->users[i].u != u || g->users[i].count < count)
			continue;
		g->users[i].count -= count;
		if (!g->users[i].count)
			g->users[i] = g->users[--g->nusers];
		user_put(u, count);
		return graph_unlock(0);
	}
	return graph_unlock(CUDA_ERROR_INVALID_VALUE);
}
