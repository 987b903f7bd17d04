/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec.c - executable graphs: instantiated, updated, launched, run
 *
 * A launch is one op of its stream. It runs the nodes one after the other, in a topological order
 * that depends on the graph alone.
 */
#include "graph_i.h"
#include "module_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void exec_put(struct exec *x)
{
	if (--x->refs)
		return;
	graph_put_ref(x->g);
	op_put(x->last);
	free(x);
}

bool graph_calls_host(const struct graph *g)
{
	for (size_t i = 0; i < g->n; i++) {
		const struct desc *d = &g->nodes[i]->d;

		if (d->kind == D_HOST || (d->kind == D_CHILD && graph_calls_host(d->child)))
			return true;
		for (unsigned int k = 0; d->kind == D_COND && k < d->cond.size; k++)
			if (graph_calls_host(d->cond.body[k]))
				return true;
	}
	return false;
}

CUresult graph_run(struct ctx *ctx, struct stream *st, struct op *op, struct graph *g)
{
	CUresult r = CUDA_SUCCESS;

	if (!g->owned)
		conds_begin(g->conds);
	for (size_t i = 0; i < g->n && !r; i++) {
		struct node *n = g->order[i];

		if (!n->enabled)
			continue;
		if (n->d.kind == D_CHILD)
			r = graph_run(ctx, st, op, n->d.child);
		else
			r = desc_run(ctx, st, op, &n->d);
	}
	return r;
}

/* ------------------------------------------------- event nodes of a launch */

static size_t count_marks(const struct graph *g)
{
	size_t n = 0;

	for (size_t i = 0; i < g->n; i++) {
		const struct node *x = g->order[i];

		if (x->enabled && (x->d.kind == D_RECORD || x->d.kind == D_WAIT))
			n++;
		else if (x->enabled && x->d.kind == D_CHILD)
			n += count_marks(x->d.child);
	}
	return n;
}

static int put_marks(struct graph *g, struct stream *st, struct desc *d)
{
	for (size_t i = 0; i < g->n; i++) {
		struct node *x = g->order[i];
		struct mark *m = &d->marks[d->nmarks];

		if (!x->enabled)
			continue;
		if (x->d.kind == D_CHILD && put_marks(x->d.child, st, d))
			return -ENOMEM;
		if (x->d.kind == D_WAIT) {
			m->op = x->d.event->rec;
			if (m->op)
				m->op->refs++;
			d->nmarks++;
		} else if (x->d.kind == D_RECORD) {
			m->op = op_pending(st);
			if (!m->op)
				return -ENOMEM;
			m->record = true;
			m->op->refs++;
			event_record_op(x->d.event, m->op);
			d->nmarks++;
		}
	}
	return 0;
}

/* At a launch: makes d's marks; the recorded events refer to their ops from now on. */
static int graph_marks(struct graph *g, struct stream *st, struct desc *d)
{
	size_t n = count_marks(g);

	d->marks = n ? calloc(n, sizeof(*d->marks)) : NULL;
	return n && (!d->marks || put_marks(g, st, d)) ? -ENOMEM : 0;
}

void graph_marks_free(struct desc *d)
{
	for (size_t i = 0; i < d->nmarks; i++) {
		if (d->marks[i].record && !d->marks[i].op->done)
			op_finish(d->marks[i].op);	/* the launch has failed */
		op_put(d->marks[i].op);
	}
	free(d->marks);
	d->marks = NULL;
	d->nmarks = 0;
}

static CUresult run_mark(struct mark *m)
{
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&big);
	if (m->record)
		op_finish(m->op);
	else if (m->op)
		r = op_wait(m->op);
	pthread_mutex_unlock(&big);
	return r;
}

CUresult graph_run_marked(struct ctx *ctx, struct stream *st, struct op *op, struct graph *g)
{
	CUresult r = CUDA_SUCCESS;

	if (!g->owned)
		conds_begin(g->conds);
	for (size_t i = 0; i < g->n && !r && !ctx_latched(ctx); i++) {
		struct node *n = g->order[i];

		if (!n->enabled)
			continue;
		if (n->d.kind == D_CHILD)
			r = graph_run_marked(ctx, st, op, n->d.child);
		else if (n->d.kind == D_RECORD || n->d.kind == D_WAIT)
			r = run_mark(&op->d.marks[op->d.mark++]);
		else
			r = desc_run(ctx, st, op, &n->d);
	}
	return r;
}

/* --------------------------------------------------------------- instances */

static CUresult check_sets(const struct graph *g)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < g->n && !r; i++) {
		const struct desc *d = &g->nodes[i]->d;

		r = d->kind == D_MEMSET ? set_check(d) : d->kind == D_CHILD ? check_sets(d->child) :
									      CUDA_SUCCESS;
	}
	return r;
}

static CUresult check_kinds(struct graph *g, struct ctx *ctx)
{
	for (size_t i = 0; i < g->n; i++)
		if (g->nodes[i]->d.kind == D_KERNEL && g->nodes[i]->d.k.fn->mod->ctx != ctx)
			return CUDA_ERROR_NOT_SUPPORTED;	/* nodes of several contexts */
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph h, unsigned long long flags,
			    CUgraphInstantiateResult *why)
{
	const unsigned long long known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
					 CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
					 CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
	struct graph *g = (struct graph *)h;
	struct exec *x;
	struct ctx *ctx;
	CUresult r;

	if (why)
		*why = CUDA_GRAPH_INSTANTIATE_ERROR;
	if (!out)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
		return api_enter() ?: CUDA_ERROR_NOT_SUPPORTED;
	if (flags & ~known)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	if (!obj_live(g, OBJ_GRAPH))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	r = check_kinds(g, ctx);
	if (r) {
		if (why)
			*why = CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
		return api_unlock(r);
	}
	r = check_sets(g);
	if (r)
		return api_unlock(r);
	x = calloc(1, sizeof(*x));
	if (x)
		x->g = soft_graph_clone(g, true);
	if (!x || !x->g) {
		free(x);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	if (!soft_graph_order(x->g)) {
		soft_graph_delete(x->g);
		free(x);
		if (why)
			*why = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	x->refs = 1;
	x->flags = flags & ~CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	x->ctx = ctx;
	obj_add(x, OBJ_EXEC);
	*out = (CUgraphExec)x;
	if (why)
		*why = CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
				     unsigned long long flags)
{
	return instantiate(phGraphExec, hGraph, flags, NULL);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	if (!instantiateParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	instantiateParams->hErrNode_out = NULL;
	return instantiate(phGraphExec, hGraph, instantiateParams->flags,
			   &instantiateParams->result_out);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
			       char *logBuffer, size_t bufferSize)
{
	if (phErrorNode)
		*phErrorNode = NULL;
	if (logBuffer && bufferSize)
		*logBuffer = 0;
	return instantiate(phGraphExec, hGraph, 0, NULL);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
			    char *logBuffer, size_t bufferSize)
{
	return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

static CUresult lock_exec(CUgraphExec h, struct exec **x)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(h, OBJ_EXEC))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*x = (struct exec *)h;
	return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
	struct exec *x;
	CUresult r;

	if (!flags)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_exec(hGraphExec, &x);
	if (r)
		return r;
	*flags = x->flags;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct exec *x;
	CUresult r = lock_exec(hGraphExec, &x);

	if (r)
		return r;
	obj_del(x);
	exec_put(x);
	return api_unlock(CUDA_SUCCESS);
}

/* Memory of graphs: allocated and not freed; held by allocation nodes. */
struct graph_use {
	uint64_t used, reserved;
};

/* *now: current use. Returns the high-water marks since the program last reset them. */
static struct graph_use *graph_use(int dev, struct graph_use *now)
{
	static struct graph_use high[SOFT_MAX_DEVICES];
	uint64_t from = 0;
	struct mem *m;

	*now = (struct graph_use){ 0 };
	for (; mem_next(from, &m) && m; from = m->va + m->len) {
		const struct gmem *g = m->owner;

		if (m->kind != MEM_GRAPH || m->dev->ordinal != dev)
			continue;
		now->reserved += m->span;
		now->used += !g || g->live ? m->span : 0;
	}
	if (now->used > high[dev].used)
		high[dev].used = now->used;
	if (now->reserved > high[dev].reserved)
		high[dev].reserved = now->reserved;
	return &high[dev];
}

/* Allocations that an earlier launch did not free: an error, unless the launch frees them first. */
static CUresult check_live(struct graph *g, bool auto_free)
{
	struct graph_use now;
	int dev = -1;

	for (size_t i = 0; i < g->n; i++) {
		struct desc *d = &g->nodes[i]->d;

		if (d->kind != D_ALLOC || !d->alloc.gm->live)
			continue;
		if (!auto_free)
			return CUDA_ERROR_INVALID_VALUE;
		d->alloc.gm->live = false;
	}
	for (size_t i = 0; i < g->n; i++)
		if (g->nodes[i]->d.kind == D_ALLOC) {
			g->nodes[i]->d.alloc.gm->live = true;
			dev = g->nodes[i]->d.alloc.gm->mem->dev->ordinal;
		}
	if (dev >= 0)
		graph_use(dev, &now);
	for (size_t i = 0; i < g->n; i++)
		if (g->nodes[i]->d.kind == D_FREE) {
			struct mem *m = mem_find(g->nodes[i]->d.free.va);

			if (m && m->kind == MEM_GRAPH)
				pool_mem_graph_free(m);
		}
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
	struct exec *x = (struct exec *)hGraph;
	struct desc d = { .kind = D_GRAPH };
	struct stream *st;
	struct op *op;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	if (!obj_live(x, OBJ_EXEC))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (st->cap) {		/* captured as a child graph */
		d.kind = D_CHILD;
		d.child = soft_graph_clone(x->g, false);
		if (!d.child)
			return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
		d.child->owned = true;
		return api_unlock(stream_submit(st, &d, NULL));
	}
	r = st->legacy ? soft_capture_legacy(st->ctx) : CUDA_SUCCESS;
	if (!r)
		r = check_live(x->g, x->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	if (r)
		return api_unlock(r);
	d.child = x->g;
	x->g->refs++;
	if (graph_marks(x->g, st, &d)) {
		desc_free(&d);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	r = stream_submit_after(st, &d, &x->last, x->last ? 1 : 0, &op);
	if (!r) {
		op_put(x->last);
		x->last = op;
	}
	return api_unlock(r);
}

CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream)
{
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	return api_unlock(obj_live(hGraph, OBJ_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* ------------------------------------------------------------------- update */

static CUgraphExecUpdateResult compare_nodes(struct node *a, struct node *b)
{
	if (node_type(a) != node_type(b))
		return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
	if (a->d.kind == D_KERNEL && a->d.k.fn->mod->ctx != b->d.k.fn->mod->ctx)
		return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
	if (a->d.kind == D_KERNEL && a->d.k.cooperative != b->d.k.cooperative)
		return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
	if (a->d.kind == D_MEMCPY &&
	    (a->d.copy.c.srcMemoryType != b->d.copy.c.srcMemoryType ||
	     a->d.copy.c.dstMemoryType != b->d.copy.c.dstMemoryType))
		return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
	if (a->d.kind == D_ALLOC || a->d.kind == D_FREE || a->d.kind == D_COND)
		return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
	return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* Whether n depends on its graph's node of this index (compare() stores indices in indegree). */
static bool depends(const struct node *n, unsigned int index)
{
	for (size_t i = 0; i < n->in.n; i++)
		if (n->in.e[i].n->indegree == index)
			return true;
	return false;
}

/* Nodes correspond by the order in which they were added: two captures of the same code match. */
static CUgraphExecUpdateResult compare(struct graph *a, struct graph *b, struct node **bad,
				       struct node **from)
{
	CUgraphExecUpdateResult r;

	if (a->n != b->n)
		return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
	for (size_t i = 0; i < b->n; i++)
		b->nodes[i]->indegree = i;
	for (size_t i = 0; i < a->n; i++)
		a->nodes[i]->indegree = i;
	for (size_t i = 0; i < a->n; i++) {
		struct node *x = a->nodes[i], *y = b->nodes[i];

		*bad = y;
		r = compare_nodes(x, y);
		if (r)
			return r;
		if (x->in.n != y->in.n)
			return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		for (size_t j = 0; j < y->in.n; j++)	/* a clone's edges may be reordered */
			if (!depends(x, y->in.e[j].n->indegree)) {
				*from = y->in.e[j].n;
				return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
			}
		if (x->d.kind == D_CHILD) {
			r = compare(x->d.child, y->d.child, bad, from);
			if (r)
				return r;
		}
	}
	*bad = NULL;
	return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
			      CUgraphExecUpdateResultInfo *resultInfo)
{
	struct exec *x = (struct exec *)hGraphExec;
	struct graph *g = (struct graph *)hGraph, *c;
	struct node *bad = NULL, *from = NULL;
	CUgraphExecUpdateResult what;
	CUresult r;

	if (!resultInfo)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (!obj_live(x, OBJ_EXEC) || !obj_live(g, OBJ_GRAPH))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	what = compare(x->g, g, &bad, &from);
	resultInfo->result = what;
	resultInfo->errorNode = (CUgraphNode)bad;
	resultInfo->errorFromNode = (CUgraphNode)from;
	if (what)
		return api_unlock(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	c = soft_graph_clone(g, true);
	if (!c || !soft_graph_order(c))
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	/* node handles of the instantiated graph stay valid for this executable graph */
	for (size_t i = 0; i < c->n; i++)
		c->nodes[i]->orig = x->g->nodes[i]->orig;
	graph_put_ref(x->g);
	x->g = c;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
			   CUgraphExecUpdateResult *updateResult_out)
{
	CUgraphExecUpdateResultInfo info = { .result = CU_GRAPH_EXEC_UPDATE_ERROR };
	CUresult r = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);

	if (hErrorNode_out)
		*hErrorNode_out = info.errorNode;
	if (updateResult_out)
		*updateResult_out = info.result;
	return r;
}

/* ------------------------------------------------------ memory of graphs */

static CUresult check_dev(CUdevice dev, const void *value)
{
	CUresult r = api_enter();

	if (r)
		return r;
	if (dev < 0 || dev >= ndevices)
		return CUDA_ERROR_INVALID_DEVICE;
	return value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	return check_dev(device, &device);	/* destroyed graphs hold no memory */
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	struct graph_use now, *high;
	CUresult r = check_dev(device, value);

	if (r)
		return r;
	pthread_mutex_lock(&big);
	high = graph_use(device, &now);
	switch (attr) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = now.used;
		break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = now.reserved;
		break;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = high->used;
		break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = high->reserved;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	struct graph_use now;
	CUresult r = check_dev(device, value);

	if (r)
		return r;
	if ((attr != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
	     attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) || *(cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&big);
	if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		graph_use(device, &now)->used = 0;
	else
		graph_use(device, &now)->reserved = 0;
	return api_unlock(CUDA_SUCCESS);
}
