/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - graphs as data: nodes, edges, clones, user objects, queries
 */
#include "graph_i.h"
#include "module_i.h"

#include <stdlib.h>
#include <string.h>

struct user {			/* CUuserObject */
	struct obj o;
	void *ptr;
	CUhostFn destroy;
	unsigned int refs;
};

/* -------------------------------------------------------------------- edges */

static int edges_add(struct edges *x, struct node *n, const CUgraphEdgeData *data)
{
	if (x->n == x->cap) {
		size_t cap = x->cap ? x->cap * 2 : 4;
		struct edge *e = realloc(x->e, cap * sizeof(*e));

		if (!e)
			return -1;
		x->e = e;
		x->cap = cap;
	}
	x->e[x->n].n = n;
	x->e[x->n].data = data ? *data : (CUgraphEdgeData){ 0 };
	x->n++;
	return 0;
}

static struct edge *edge_find(struct edges *x, const struct node *n)
{
	for (size_t i = 0; i < x->n; i++)
		if (x->e[i].n == n)
			return &x->e[i];
	return NULL;
}

static void edges_del(struct edges *x, const struct node *n)
{
	struct edge *e = edge_find(x, n);

	if (!e)
		return;
	x->n--;
	memmove(e, e + 1, (x->e + x->n - e) * sizeof(*e));
}

static int edge_add(struct node *from, struct node *to, const CUgraphEdgeData *data)
{
	if (edges_add(&from->out, to, data))
		return -1;
	if (edges_add(&to->in, from, data)) {
		edges_del(&from->out, to);
		return -1;
	}
	return 0;
}

static bool edge_del(struct node *from, struct node *to)
{
	if (!edge_find(&from->out, to))
		return false;
	edges_del(&from->out, to);
	edges_del(&to->in, from);
	return true;
}

/* ------------------------------------------------------------ nodes, graphs */

struct graph *soft_graph_new(void)
{
	struct graph *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->refs = 1;
	g->id = next_id();
	obj_add(g, OBJ_GRAPH);
	return g;
}

static void node_free(struct node *n)
{
	obj_del(n);
	desc_free(&n->d);
	free(n->in.e);
	free(n->out.e);
	free(n->kparams);
	free(n);
}

static void user_put(struct user *u, unsigned int count)
{
	bool saved = tls.in_callback;

	u->refs -= count;
	if (u->refs)
		return;
	obj_del(u);
	tls.in_callback = true;		/* the destructor must not call CUDA: big is held */
	u->destroy(u->ptr);
	tls.in_callback = saved;
	free(u);
}

void soft_graph_delete(struct graph *g)
{
	obj_del(g);
	for (size_t i = 0; i < g->n; i++)
		node_free(g->nodes[i]);
	for (size_t i = 0; i < g->nusers; i++)
		user_put(g->users[i].u, g->users[i].count);
	conds_put(g->conds);
	free(g->users);
	free(g->nodes);
	free(g->order);
	free(g);
}

void graph_put_ref(struct graph *g)
{
	if (!--g->refs)
		soft_graph_delete(g);
}

static int set_kparams(struct node *n)
{
	const struct ptx_entry_info *e;
	struct func *f;
	void **p;

	if (n->d.kind != D_KERNEL)
		return 0;
	f = n->d.k.fn;
	e = program_entry(f->mod->prog, f->entry);
	p = realloc(n->kparams, (e->nparams + 1) * sizeof(*p));
	if (!p)
		return -1;
	n->kparams = p;
	for (uint32_t i = 0; i < e->nparams; i++)
		p[i] = (char *)n->d.k.params + e->params[i].offset;
	return 0;
}

CUresult soft_node_add(struct graph *g, struct desc *d, struct node **deps,
		       const CUgraphEdgeData *data, size_t ndeps, struct node **out)
{
	struct node *n = calloc(1, sizeof(*n));

	if (g->n == g->cap && n) {
		size_t cap = g->cap ? g->cap * 2 : 16;
		struct node **p = realloc(g->nodes, cap * sizeof(*p));

		if (!p) {
			free(n);
			n = NULL;
		} else {
			g->nodes = p;
			g->cap = cap;
		}
	}
	if (!n) {
		desc_free(d);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	n->g = g;
	n->d = *d;
	n->enabled = true;
	n->ctx = ctx_current();
	obj_add(n, OBJ_NODE);
	g->nodes[g->n++] = n;
	if (set_kparams(n))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < ndeps; i++)
		if (!edge_find(&n->in, deps[i]) && edge_add(deps[i], n, data ? &data[i] : NULL))
			return CUDA_ERROR_OUT_OF_MEMORY;
	if (out)
		*out = n;
	return CUDA_SUCCESS;
}

static void soft_node_delete(struct node *n)
{
	struct graph *g = n->g;

	while (n->in.n)
		edge_del(n->in.e[0].n, n);
	while (n->out.n)
		edge_del(n, n->out.e[0].n);
	for (size_t i = 0; i < g->n; i++)
		if (g->nodes[i] == n) {
			g->n--;
			memmove(g->nodes + i, g->nodes + i + 1, (g->n - i) * sizeof(*g->nodes));
			break;
		}
	node_free(n);
}

CUresult node_set_desc(struct node *n, struct desc *d)
{
	desc_free(&n->d);
	n->d = *d;
	return set_kparams(n) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

struct node *graph_find_clone(struct graph *clone, const struct node *orig)
{
	for (size_t i = 0; i < clone->n; i++)
		if (clone->nodes[i]->orig == orig)
			return clone->nodes[i];
	return NULL;
}

/*
 * A copy with its own nodes, children and references. With for_exec, a clone of an executable clone
 * inherits its nodes' origins.
 */
struct graph *soft_graph_clone(struct graph *g, bool for_exec)
{
	struct graph *c = soft_graph_new();

	if (!c)
		return NULL;
	c->orig = g;
	c->conds = g->conds;
	conds_get(c->conds);
	for (size_t i = 0; i < g->n; i++) {
		struct node *from = g->nodes[i], *to;
		struct desc d;

		if (desc_copy(&d, &from->d))
			goto nomem;
		if (d.kind == D_CHILD) {
			d.child = soft_graph_clone(from->d.child, for_exec);
			if (!d.child)
				goto nomem;
			d.child->owned = true;
		}
		if (d.kind == D_COND && cond_clone(&d, &from->d, for_exec))
			goto nomem;
		if (soft_node_add(c, &d, NULL, NULL, 0, &to))
			goto nomem;
		to->orig = for_exec && g->order ? from->orig : from;
		to->enabled = from->enabled;
		to->ctx = from->ctx;
		memcpy(to->attr, from->attr, sizeof(to->attr));
		from->visited = false;
		from->indegree = i;
	}
	for (size_t i = 0; i < g->n; i++)
		for (size_t j = 0; j < g->nodes[i]->out.n; j++) {
			struct edge *e = &g->nodes[i]->out.e[j];

			if (edge_add(c->nodes[i], c->nodes[e->n->indegree], &e->data))
				goto nomem;
		}
	c->users = calloc(g->nusers + 1, sizeof(*c->users));
	if (!c->users)
		goto nomem;
	for (size_t i = 0; i < g->nusers; i++) {
		c->users[i] = (struct user_ref){ g->users[i].u, 1 };
		c->users[i].u->refs++;
	}
	c->nusers = g->nusers;
	return c;
nomem:
	soft_graph_delete(c);
	return NULL;
}

bool soft_graph_order(struct graph *g)
{
	size_t done = 0, next = 0;

	free(g->order);
	g->order = calloc(g->n + 1, sizeof(*g->order));
	if (!g->order)
		return false;
	for (size_t i = 0; i < g->n; i++) {
		g->nodes[i]->indegree = g->nodes[i]->in.n;
		if (!g->nodes[i]->in.n)
			g->order[done++] = g->nodes[i];
	}
	while (next < done) {
		struct node *n = g->order[next++];

		for (size_t i = 0; i < n->out.n; i++)
			if (!--n->out.e[i].n->indegree)
				g->order[done++] = n->out.e[i].n;
	}
	for (size_t i = 0; i < g->n; i++) {
		struct desc *d = &g->nodes[i]->d;

		if (d->kind == D_CHILD && !soft_graph_order(d->child))
			return false;
		for (unsigned int j = 0; d->kind == D_COND && j < d->cond.size; j++)
			if (!soft_graph_order(d->cond.body[j]))
				return false;
	}
	return done == g->n;
}

int node_type(const struct node *n)
{
	switch (n->d.kind) {
	case D_KERNEL:
		return CU_GRAPH_NODE_TYPE_KERNEL;
	case D_MEMCPY:
		return CU_GRAPH_NODE_TYPE_MEMCPY;
	case D_MEMSET:
		return CU_GRAPH_NODE_TYPE_MEMSET;
	case D_HOST:
		return CU_GRAPH_NODE_TYPE_HOST;
	case D_CHILD:
		return CU_GRAPH_NODE_TYPE_GRAPH;
	case D_RECORD:
		return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
	case D_WAIT:
		return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
	case D_ALLOC:
		return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
	case D_FREE:
		return CU_GRAPH_NODE_TYPE_MEM_FREE;
	case D_MEMOPS:
		return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
	case D_COND:
		return CU_GRAPH_NODE_TYPE_CONDITIONAL;
	default:
		return CU_GRAPH_NODE_TYPE_EMPTY;
	}
}

CUresult node_get(CUgraphNode h, int type, struct node **out)
{
	struct node *n = (struct node *)h;

	if (!obj_live(n, OBJ_NODE) || (type >= 0 && node_type(n) != type))
		return CUDA_ERROR_INVALID_VALUE;
	*out = n;
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------------- calls */

static CUresult lock_graph(CUgraph h, struct graph **g)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(h, OBJ_GRAPH))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*g = (struct graph *)h;
	return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	struct graph *g;
	CUresult r;

	if (!phGraph || flags)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	g = soft_graph_new();
	*phGraph = (CUgraph)g;
	return api_unlock(g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
	struct graph *g;
	CUresult r = lock_graph(hGraph, &g);

	if (r)
		return r;
	if (g->owned || g->order)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	graph_put_ref(g);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
	struct graph *g, *c;
	CUresult r;

	if (!phGraphClone)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_graph(originalGraph, &g);
	if (r)
		return r;
	for (size_t i = 0; i < g->n; i++)
		if (g->nodes[i]->d.kind == D_ALLOC || g->nodes[i]->d.kind == D_FREE ||
		    g->nodes[i]->d.kind == D_COND)
			return api_unlock(CUDA_ERROR_NOT_SUPPORTED);
	c = soft_graph_clone(g, false);
	*phGraphClone = (CUgraph)c;
	return api_unlock(c ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
				CUgraph hClonedGraph)
{
	struct graph *g;
	struct node *n;
	CUresult r;

	if (!phNode)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_graph(hClonedGraph, &g);
	if (r)
		return r;
	r = node_get(hOriginalNode, -1, &n);
	if (!r) {
		n = graph_find_clone(g, n);
		*phNode = (CUgraphNode)n;
		r = n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	struct node *n;
	CUresult r;

	if (!type)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	r = node_get(hNode, -1, &n);
	if (!r)
		*type = node_type(n);
	return api_unlock(r);
}

/* Returns a list as CUDA does: a NULL array queries the number; unused elements become NULL. */
static void fill_nodes(CUgraphNode *out, size_t *count, struct node **nodes, size_t n)
{
	if (out) {
		for (size_t i = 0; i < *count; i++)
			out[i] = i < n ? (CUgraphNode)nodes[i] : NULL;
		if (n > *count)
			n = *count;
	}
	*count = n;
}

static CUresult list_nodes(CUgraph h, CUgraphNode *out, size_t *count, bool roots)
{
	struct graph *g;
	struct node **v;
	size_t n = 0;
	CUresult r;

	if (!count)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_graph(h, &g);
	if (r)
		return r;
	v = calloc(g->n + 1, sizeof(*v));
	if (!v)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	for (size_t i = 0; i < g->n; i++)
		if (!roots || !g->nodes[i]->in.n)
			v[n++] = g->nodes[i];
	fill_nodes(out, count, v, n);
	free(v);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	return list_nodes(hGraph, nodes, numNodes, false);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
	return list_nodes(hGraph, rootNodes, numRootNodes, true);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
			    CUgraphEdgeData *edgeData, size_t *numEdges)
{
	struct graph *g;
	size_t n = 0;
	CUresult r;

	if (!numEdges || (!from != !to))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_graph(hGraph, &g);
	if (r)
		return r;
	for (size_t i = 0; i < g->n; i++)
		for (size_t j = 0; j < g->nodes[i]->out.n; j++, n++)
			if (from && n < *numEdges) {
				from[n] = (CUgraphNode)g->nodes[i];
				to[n] = (CUgraphNode)g->nodes[i]->out.e[j].n;
				if (edgeData)
					edgeData[n] = g->nodes[i]->out.e[j].data;
			}
	for (size_t i = n; from && i < *numEdges; i++)
		from[i] = to[i] = NULL;
	if (!from || n < *numEdges)
		*numEdges = n;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
	return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

static CUresult list_edges(CUgraphNode h, CUgraphNode *out, CUgraphEdgeData *data, size_t *count,
			   bool in)
{
	struct edges *x;
	struct node *n;
	CUresult r;

	if (!count)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	r = node_get(h, -1, &n);
	if (r)
		return api_unlock(r);
	x = in ? &n->in : &n->out;
	for (size_t i = 0; out && i < *count; i++) {
		out[i] = i < x->n ? (CUgraphNode)x->e[i].n : NULL;
		if (data && i < x->n)
			data[i] = x->e[i].data;
	}
	if (!out || x->n < *count)
		*count = x->n;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
				       CUgraphEdgeData *edgeData, size_t *numDependencies)
{
	return list_edges(hNode, dependencies, edgeData, numDependencies, true);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
				    size_t *numDependencies)
{
	return list_edges(hNode, dependencies, NULL, numDependencies, true);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
					 CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
	return list_edges(hNode, dependentNodes, edgeData, numDependentNodes, false);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
				      size_t *numDependentNodes)
{
	return list_edges(hNode, dependentNodes, NULL, numDependentNodes, false);
}

static CUresult change_edges(CUgraph h, const CUgraphNode *from, const CUgraphNode *to,
			     const CUgraphEdgeData *data, size_t count, bool add)
{
	struct graph *g;
	CUresult r;

	if (count && (!from || !to))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_graph(h, &g);
	if (r)
		return r;
	for (size_t i = 0; i < count; i++) {
		struct node *a, *b;

		if (node_get(from[i], -1, &a) || node_get(to[i], -1, &b) || a->g != g ||
		    b->g != g || a == b || !edge_find(&a->out, b) != add)
			return api_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	for (size_t i = 0; i < count; i++) {
		struct node *a = (struct node *)from[i], *b = (struct node *)to[i];

		if (!add)
			edge_del(a, b);
		else if (!edge_find(&a->out, b) && edge_add(a, b, data ? &data[i] : NULL))
			return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
				   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
	return change_edges(hGraph, from, to, edgeData, numDependencies, true);
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
				size_t numDependencies)
{
	return change_edges(hGraph, from, to, NULL, numDependencies, true);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
				      const CUgraphNode *to, const CUgraphEdgeData *edgeData,
				      size_t numDependencies)
{
	return change_edges(hGraph, from, to, edgeData, numDependencies, false);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
				   size_t numDependencies)
{
	return change_edges(hGraph, from, to, NULL, numDependencies, false);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
	struct node *n;
	CUresult r = api_lock();

	if (r)
		return r;
	r = node_get(hNode, -1, &n);
	if (!r && (n->d.kind == D_ALLOC || n->d.kind == D_FREE))
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r)
		soft_node_delete(n);
	return api_unlock(r);
}

static void dot_name(FILE *f, struct node *n)
{
	static const char *const types[] = {
		"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT",
		"EVENT_RECORD", "", "", "MEM_ALLOC", "MEM_FREE", "BATCH_MEM_OP", "CONDITIONAL",
	};
	struct func *fn = n->d.kind == D_KERNEL ? n->d.k.fn : NULL;

	fprintf(f, "\"n%p\" [label=\"%s%s%s\"];\n", (void *)n, types[node_type(n)], fn ? "\\n" : "",
		fn ? program_entry(fn->mod->prog, fn->entry)->name : "");
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
	struct graph *g;
	CUresult r;
	FILE *f;

	(void)flags;
	if (!path)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_graph(hGraph, &g);
	if (r)
		return r;
	f = fopen(path, "we");
	if (!f)
		return api_unlock(CUDA_ERROR_OPERATING_SYSTEM);
	fprintf(f, "digraph dot {\n");
	for (size_t i = 0; i < g->n; i++)
		dot_name(f, g->nodes[i]);
	for (size_t i = 0; i < g->n; i++)
		for (size_t j = 0; j < g->nodes[i]->out.n; j++)
			fprintf(f, "\"n%p\" -> \"n%p\";\n", (void *)g->nodes[i],
				(void *)g->nodes[i]->out.e[j].n);
	fprintf(f, "}\n");
	return api_unlock(fclose(f) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS);
}

/* ------------------------------------------------------------- user objects */

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
			    unsigned int initialRefcount, unsigned int flags)
{
	struct user *u;
	CUresult r;

	if (!object_out || !destroy || !initialRefcount || initialRefcount > INT32_MAX ||
	    flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	u = calloc(1, sizeof(*u));
	if (!u)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	u->ptr = ptr;
	u->destroy = destroy;
	u->refs = initialRefcount;
	obj_add(u, OBJ_USER);
	*object_out = (CUuserObject)u;
	return api_unlock(CUDA_SUCCESS);
}

static CUresult lock_user(CUuserObject h, unsigned int count, struct user **u)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(h, OBJ_USER) || !count || count > INT32_MAX)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*u = (struct user *)h;
	return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	struct user *u;
	CUresult r = lock_user(object, count, &u);

	if (r)
		return r;
	u->refs += count;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	struct user *u;
	CUresult r = lock_user(object, count, &u);

	if (r)
		return r;
	if (count > u->refs)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	user_put(u, count);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
				 unsigned int flags)
{
	struct graph *g = (struct graph *)graph;
	struct user_ref *p;
	struct user *u;
	CUresult r;

	if (flags & ~CU_GRAPH_USER_OBJECT_MOVE)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_user(object, count, &u);
	if (r)
		return r;
	if (!obj_live(g, OBJ_GRAPH) || ((flags & CU_GRAPH_USER_OBJECT_MOVE) && count > u->refs))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	p = realloc(g->users, (g->nusers + 1) * sizeof(*p));
	if (!p)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	g->users = p;
	g->users[g->nusers++] = (struct user_ref){ u, count };
	if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
		u->refs += count;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
	struct graph *g = (struct graph *)graph;
	struct user *u;
	CUresult r = lock_user(object, count, &u);

	if (r)
		return r;
	r = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; obj_live(g, OBJ_GRAPH) && i < g->nusers; i++) {
		if (g->users[i].u != u || g->users[i].count < count)
			continue;
		g->users[i].count -= count;
		if (!g->users[i].count)
			g->users[i] = g->users[--g->nusers];
		user_put(u, count);
		r = CUDA_SUCCESS;
		break;
	}
	return api_unlock(r);
}
