/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - nodes of each type and their parameters, in graphs and in executable ones.
 */
#include "graph_i.h"
#include "module_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---------------------------------------------------------- allocation nodes */

void gmem_put(struct gmem *g)
{
	if (--g->refs)
		return;
	if (g->live) {
		g->mem->owner = NULL;	/* the program frees it */
	} else if (g->mem) {
		mem_free(g->mem);
	}
	free(g);
}

void pool_mem_graph_free(struct mem *m)
{
	struct gmem *g = m->owner;

	if (g)
		g->live = false;
	else
		mem_free(m);
}

CUresult graph_mem_alloc(struct ctx *ctx, struct desc *d)
{
	struct gmem *g;
	struct mem *m;
	CUresult r;

	if (!d->alloc.p.bytesize || d->alloc.p.poolProps.handleTypes)
		return CUDA_ERROR_INVALID_VALUE;
	g = calloc(1, sizeof(*g));
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = mem_alloc(ctx->dev, NULL, d->alloc.p.bytesize, 512, MEM_GRAPH, &m);
	if (r) {
		free(g);
		return r;
	}
	m->owner = g;
	g->mem = m;
	g->refs = 1;
	d->alloc.gm = g;
	d->alloc.p.dptr = m->va;
	d->alloc.p.accessDescs = NULL;
	d->alloc.p.accessDescCount = 0;
	return CUDA_SUCCESS;
}

/* ----------------------------------------------------- parameters into work */

static CUresult kernel_desc(const CUDA_KERNEL_NODE_PARAMS_v3 *p, struct desc *d, struct ctx **ctx)
{
	struct launch k = {
		.grid = { p->gridDimX, p->gridDimY, p->gridDimZ },
		.block = { p->blockDimX, p->blockDimY, p->blockDimZ },
		.smem = p->sharedMemBytes,
	};
	CUfunction f = p->func ? p->func : (CUfunction)p->kern;
	struct ctx *c = p->ctx ? (struct ctx *)p->ctx : *ctx;
	struct func *fn;
	CUresult r;

	if (ctx_check(c))
		return CUDA_ERROR_INVALID_CONTEXT;
	r = func_resolve(f, c, &fn);
	if (r)
		return r;
	if (!program_ready(fn->mod->prog, fn->entry)) {
		struct program *prog = fn->mod->prog;
		unsigned int entry = fn->entry;

		prog->refs++;
		pthread_mutex_unlock(&big);
		r = program_compile(prog, entry);
		pthread_mutex_lock(&big);
		program_put(prog);
		if (r || (r = func_resolve(f, c, &fn)))
			return r;
	}
	k.fn = fn;
	r = launch_check(fn->mod->ctx, &k);
	if (r == BAD_CONFIG)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r || launch_params(fn, &k, p->kernelParams, p->extra, &r))
		return r;
	*d = (struct desc){ .kind = D_KERNEL, .k = k };
	fn->mod->refs++;
	*ctx = fn->mod->ctx;
	return CUDA_SUCCESS;
}

static CUresult copy_desc(const CUDA_MEMCPY3D *p, struct desc *d)
{
	*d = (struct desc){ .kind = D_MEMCPY, .copy.c = *p };
	if (!d->copy.c.srcPitch)
		d->copy.c.srcPitch = p->srcXInBytes + p->WidthInBytes;
	if (!d->copy.c.dstPitch)
		d->copy.c.dstPitch = p->dstXInBytes + p->WidthInBytes;
	if (!d->copy.c.srcHeight)
		d->copy.c.srcHeight = p->srcY + p->Height;
	if (!d->copy.c.dstHeight)
		d->copy.c.dstHeight = p->dstY + p->Height;
	if (!p->WidthInBytes || !p->Height || !p->Depth)
		return CUDA_ERROR_INVALID_VALUE;
	return copy_check(&d->copy.c);
}

static CUresult event_desc(CUevent h, enum desc_kind kind, struct desc *d)
{
	struct event *ev = (struct event *)h;

	if (!obj_live(ev, OBJ_EVENT))
		return CUDA_ERROR_INVALID_VALUE;
	ev->refs++;
	*d = (struct desc){ .kind = kind, .event = ev };
	return CUDA_SUCCESS;
}

static CUresult memops_desc(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *p, struct desc *d)
{
	CUresult r = CUDA_SUCCESS;

	if (!p->count || p->count > 256 || !p->paramArray || p->flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < p->count && !r; i++)
		r = memop_check(&p->paramArray[i]);
	if (r)
		return r;
	*d = (struct desc){ .kind = D_MEMOPS, .memops = { .n = p->count } };
	d->memops.ops = calloc(p->count, sizeof(*d->memops.ops));
	if (!d->memops.ops)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(d->memops.ops, p->paramArray, p->count * sizeof(*d->memops.ops));
	return CUDA_SUCCESS;
}

static CUresult child_desc(CUgraph h, struct desc *d)
{
	struct graph *g = (struct graph *)h;

	if (!obj_live(g, OBJ_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < g->n; i++)
		if (g->nodes[i]->d.kind == D_ALLOC || g->nodes[i]->d.kind == D_FREE ||
		    g->nodes[i]->d.kind == D_COND)
			return CUDA_ERROR_NOT_SUPPORTED;
	*d = (struct desc){ .kind = D_CHILD, .child = soft_graph_clone(g, false) };
	if (!d->child)
		return CUDA_ERROR_OUT_OF_MEMORY;
	d->child->owned = true;
	return CUDA_SUCCESS;
}

/* Converts a caller's parameters into work. */
static CUresult desc_of_params(const CUgraphNodeParams *p, struct desc *d, struct ctx **ctx)
{
	struct mem *m;

	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return kernel_desc(&p->kernel, d, ctx);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return copy_desc(&p->memcpy.copyParams, d);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		if (p->memset.elementSize != 1 && p->memset.elementSize != 2 &&
		    p->memset.elementSize != 4)
			return CUDA_ERROR_INVALID_VALUE;
		*d = (struct desc){ .kind = D_MEMSET,
				    .set = { p->memset.dst, p->memset.pitch, p->memset.width,
					     p->memset.height, p->memset.elementSize,
					     p->memset.value } };
		if (!d->set.width || !d->set.height)
			return CUDA_ERROR_INVALID_VALUE;
		return set_check(d);
	case CU_GRAPH_NODE_TYPE_HOST:
		*d = (struct desc){ .kind = D_HOST, .host = { p->host.fn, p->host.userData } };
		return p->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return child_desc(p->graph.graph, d);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		*d = (struct desc){ .kind = D_EMPTY };
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return event_desc(p->eventWait.event, D_WAIT, d);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return event_desc(p->eventRecord.event, D_RECORD, d);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		*d = (struct desc){ .kind = D_ALLOC };
		d->alloc.p = *(const CUDA_MEM_ALLOC_NODE_PARAMS_v1 *)&p->alloc;
		if (p->alloc.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    p->alloc.poolProps.location.id < 0 ||
		    p->alloc.poolProps.location.id >= ndevices)
			return CUDA_ERROR_INVALID_VALUE;
		return graph_mem_alloc(*ctx, d);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		m = mem_find(p->free.dptr);
		if (!m || m->va != p->free.dptr || m->kind != MEM_GRAPH)
			return CUDA_ERROR_INVALID_VALUE;
		*d = (struct desc){ .kind = D_FREE, .free = { .va = p->free.dptr } };
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return memops_desc(&p->memOp, d);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return cond_desc(&p->conditional, d);
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* ------------------------------------------------------------------- adding */

CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
			   const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
			   size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	struct graph *g = (struct graph *)hGraph;
	struct ctx *ctx;
	struct node *n;
	struct desc d;
	CUresult r;

	if (!phGraphNode || !nodeParams || (numDependencies && !dependencies))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	if (!obj_live(g, OBJ_GRAPH))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < numDependencies; i++)
		if (node_get(dependencies[i], -1, &n) || n->g != g)
			return api_unlock(CUDA_ERROR_INVALID_VALUE);
	r = desc_of_params(nodeParams, &d, &ctx);
	if (!r)
		r = soft_node_add(g, &d, (struct node **)dependencies, dependencyData,
				  numDependencies, &n);
	if (r)
		return api_unlock(r);
	n->ctx = ctx;
	if (d.kind == D_ALLOC)
		nodeParams->alloc.dptr = d.alloc.p.dptr;
	if (d.kind == D_COND)
		nodeParams->conditional.phGraph_out = (CUgraph *)d.cond.body;
	*phGraphNode = (CUgraphNode)n;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
			size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies,
				 nodeParams);
}

#define ADD(_type, ...) ({						\
	CUgraphNodeParams _p;						\
									\
	memset(&_p, 0, sizeof(_p));					\
	_p.type = CU_GRAPH_NODE_TYPE_##_type;				\
	__VA_ARGS__;							\
	cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, &_p); })

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
				 const CUgraphNode *dependencies, size_t numDependencies,
				 const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	if (!nodeParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return ADD(KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	if (!nodeParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return ADD(KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	if (!copyParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return ADD(MEMCPY, _p.memcpy.copyParams = *copyParams; _p.memcpy.copyCtx = ctx);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			      const CUgraphNode *dependencies, size_t numDependencies,
			      const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	if (!memsetParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return ADD(MEMSET, memcpy(&_p.memset, memsetParams, sizeof(*memsetParams));
		   _p.memset.ctx = ctx);
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			    const CUgraphNode *dependencies, size_t numDependencies,
			    const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	if (!nodeParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return ADD(HOST, memcpy(&_p.host, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies, size_t numDependencies,
				  CUgraph childGraph)
{
	return ADD(GRAPH, _p.graph.graph = childGraph);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			     const CUgraphNode *dependencies, size_t numDependencies)
{
	return ADD(EMPTY, (void)0);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				   const CUgraphNode *dependencies, size_t numDependencies,
				   CUevent event)
{
	return ADD(EVENT_RECORD, _p.eventRecord.event = event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				 const CUgraphNode *dependencies, size_t numDependencies,
				 CUevent event)
{
	return ADD(WAIT_EVENT, _p.eventWait.event = event);
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies, size_t numDependencies,
				  const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	if (!nodeParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return ADD(BATCH_MEM_OP, memcpy(&_p.memOp, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				const CUgraphNode *dependencies, size_t numDependencies,
				CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams p;
	CUresult r;

	if (!nodeParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	memset(&p, 0, sizeof(p));
	p.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
	memcpy(&p.alloc, nodeParams, sizeof(*nodeParams));
	r = cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, &p);
	if (!r)
		nodeParams->dptr = p.alloc.dptr;
	return r;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			       const CUgraphNode *dependencies, size_t numDependencies,
			       CUdeviceptr dptr)
{
	return ADD(MEM_FREE, _p.free.dptr = dptr);
}

/* ----------------------------------------------------------------- asking */

static CUresult lock_node(CUgraphNode h, int type, const void *out, struct node **n)
{
	CUresult r;

	if (!out)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	r = node_get(h, type, n);
	return r ? api_unlock(r) : r;
}

static CUkernel kernel_of(const struct func *f)
{
	const struct library *lib = f->mod->lib;

	return lib ? (CUkernel)lib->kernels[f->entry] : NULL;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams, &n);

	if (r)
		return r;
	*nodeParams = (CUDA_KERNEL_NODE_PARAMS){
		.func = (CUfunction)n->d.k.fn,
		.kern = kernel_of(n->d.k.fn),	/* cudart knows kernels by CUkernel */
		.gridDimX = n->d.k.grid[0], .gridDimY = n->d.k.grid[1], .gridDimZ = n->d.k.grid[2],
		.blockDimX = n->d.k.block[0], .blockDimY = n->d.k.block[1],
		.blockDimZ = n->d.k.block[2],
		.sharedMemBytes = n->d.k.smem,
		.kernelParams = n->kparams,
		.ctx = (CUcontext)n->ctx,
	};
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUDA_KERNEL_NODE_PARAMS p;
	CUresult r = nodeParams ? cuGraphKernelNodeGetParams_v2(hNode, &p) :
				  CUDA_ERROR_INVALID_VALUE;

	if (!r)
		memcpy(nodeParams, &p, sizeof(*nodeParams));
	return r;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams, &n);

	if (r)
		return r;
	*nodeParams = n->d.copy.c;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams, &n);

	if (r)
		return r;
	*nodeParams = (CUDA_MEMSET_NODE_PARAMS){
		.dst = n->d.set.dst, .pitch = n->d.set.pitch, .value = n->d.set.value,
		.elementSize = n->d.set.elem, .width = n->d.set.width, .height = n->d.set.height,
	};
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams, &n);

	if (r)
		return r;
	nodeParams->fn = n->d.host.fn;
	nodeParams->userData = n->d.host.user;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_GRAPH, phGraph, &n);

	if (r)
		return r;
	*phGraph = (CUgraph)n->d.child;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out, &n);

	if (r)
		return r;
	*event_out = (CUevent)n->d.event;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out, &n);

	if (r)
		return r;
	*event_out = (CUevent)n->d.event;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
					CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams_out)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nodeParams_out, &n);

	if (r)
		return r;
	nodeParams_out->ctx = (CUcontext)n->ctx;
	nodeParams_out->count = n->d.memops.n;
	nodeParams_out->paramArray = n->d.memops.ops;
	nodeParams_out->flags = 0;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params_out, &n);

	if (r)
		return r;
	memcpy(params_out, &n->d.alloc.p, sizeof(*params_out));
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, dptr_out, &n);

	if (r)
		return r;
	*dptr_out = n->d.free.va;
	return api_unlock(CUDA_SUCCESS);
}

/* --------------------------------------------------------------- changing */

/* The executable graph's node that was made from hNode, in a clone that no pending launch uses. */
static CUresult exec_node(CUgraphExec hExec, CUgraphNode hNode, struct node **out)
{
	struct exec *x = (struct exec *)hExec;
	struct node *n;

	if (!obj_live(x, OBJ_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	if (node_get(hNode, -1, &n) || !graph_find_clone(x->g, n))
		return CUDA_ERROR_INVALID_VALUE;
	if (x->g->refs > 1) {
		struct graph *g = soft_graph_clone(x->g, true);

		if (!g || !soft_graph_order(g))
			return CUDA_ERROR_OUT_OF_MEMORY;
		x->g->refs--;
		x->g = g;
	}
	*out = graph_find_clone(x->g, n);
	return CUDA_SUCCESS;
}

static CUresult set_cluster(struct launch *k, const unsigned int size[3])
{
	struct launch changed = *k;
	CUresult r;

	memcpy(changed.cluster, size, sizeof(changed.cluster));
	r = cluster_launch(&changed);
	if (!r)
		*k = changed;
	return r;
}

static CUresult set_params(CUgraphExec hExec, CUgraphNode hNode, const CUgraphNodeParams *p)
{
	struct ctx *ctx;
	struct node *n;
	struct desc d;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	r = hExec ? exec_node(hExec, hNode, &n) : node_get(hNode, -1, &n);
	if (!r && (node_type(n) != (int)p->type || p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
		   p->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
		   p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = desc_of_params(p, &d, &ctx);
	if (r)
		return api_unlock(r);
	if (hExec && d.kind == D_KERNEL && d.k.fn->mod->ctx != n->d.k.fn->mod->ctx) {
		desc_free(&d);
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	if (hExec && d.kind == D_CHILD &&
	    (!soft_graph_order(d.child) || d.child->n != n->d.child->n)) {
		desc_free(&d);
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	d.k.cooperative = d.kind == D_KERNEL ? n->d.k.cooperative : d.k.cooperative;
	if (d.kind == D_KERNEL && n->d.k.cluster[0])
		r = set_cluster(&d.k, n->d.k.cluster);
	if (r) {
		desc_free(&d);
		return api_unlock(r);
	}
	return api_unlock(node_set_desc(n, &d));
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	if (!nodeParams)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return set_params(NULL, hNode, nodeParams);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				  CUgraphNodeParams *nodeParams)
{
	if (!nodeParams || !hGraphExec)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return set_params(hGraphExec, hNode, nodeParams);
}

#define SET(_exec, _type, ...) ({					\
	CUgraphNodeParams _p;						\
									\
	memset(&_p, 0, sizeof(_p));					\
	_p.type = CU_GRAPH_NODE_TYPE_##_type;				\
	__VA_ARGS__;							\
	set_params(_exec, hNode, &_p); })
#define NEED(_x) do {							\
	if (!(_x))							\
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;		\
} while (0)

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
					   const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, MEMCPY, _p.memcpy.copyParams = *nodeParams);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	NEED(copyParams && hGraphExec);
	return SET(hGraphExec, MEMCPY, _p.memcpy.copyParams = *copyParams; _p.memcpy.copyCtx = ctx);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, MEMSET, memcpy(&_p.memset, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	NEED(memsetParams && hGraphExec);
	return SET(hGraphExec, MEMSET, memcpy(&_p.memset, memsetParams, sizeof(*memsetParams));
		   _p.memset.ctx = ctx);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, HOST, memcpy(&_p.host, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				      const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, HOST, memcpy(&_p.host, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    CUgraph childGraph)
{
	NEED(hGraphExec);
	return SET(hGraphExec, GRAPH, _p.graph.graph = childGraph);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
	return SET(NULL, EVENT_RECORD, _p.eventRecord.event = event);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
					    CUevent event)
{
	NEED(hGraphExec);
	return SET(hGraphExec, EVENT_RECORD, _p.eventRecord.event = event);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
	return SET(NULL, WAIT_EVENT, _p.eventWait.event = event);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
	NEED(hGraphExec);
	return SET(hGraphExec, WAIT_EVENT, _p.eventWait.event = event);
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
					const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, BATCH_MEM_OP, memcpy(&_p.memOp, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, BATCH_MEM_OP, memcpy(&_p.memOp, nodeParams, sizeof(*nodeParams)));
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
	struct node *n;
	CUresult r = api_lock();

	if (r)
		return r;
	r = exec_node(hGraphExec, hNode, &n);
	if (!r && n->d.kind != D_KERNEL && n->d.kind != D_MEMCPY && n->d.kind != D_MEMSET)
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		n->enabled = isEnabled != 0;
	return api_unlock(r);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
	struct exec *x = (struct exec *)hGraphExec;
	struct node *n;
	CUresult r = lock_node(hNode, -1, isEnabled, &n);

	if (r)
		return r;
	n = obj_live(x, OBJ_EXEC) ? graph_find_clone(x->g, n) : NULL;
	if (!n)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*isEnabled = n->enabled;
	return api_unlock(CUDA_SUCCESS);
}

/* ------------------------------------------------- attributes of kernel nodes */

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
				       CUkernelNodeAttrValue *value_out)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL, value_out, &n);

	if (r)
		return r;
	if ((int)attr <= 0 || (int)attr >= 20)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*value_out = n->attr[attr];
	if (attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
		value_out->cooperative = n->d.k.cooperative;
	if (attr == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
		value_out->clusterDim.x = n->d.k.cluster[0];
		value_out->clusterDim.y = n->d.k.cluster[1];
		value_out->clusterDim.z = n->d.k.cluster[2];
	}
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
				       const CUkernelNodeAttrValue *value)
{
	struct node *n;
	CUresult r = lock_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL, value, &n);

	if (r)
		return r;
	switch ((int)attr) {
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
		n->d.k.cooperative = value->cooperative != 0;
		break;
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		n->attr[attr] = *value;
		break;
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
		r = set_cluster(&n->d.k, (const unsigned int[3]){
			value->clusterDim.x, value->clusterDim.y, value->clusterDim.z });
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
	struct node *d, *s;
	CUresult r = api_lock();

	if (r)
		return r;
	r = node_get(dst, CU_GRAPH_NODE_TYPE_KERNEL, &d);
	if (!r)
		r = node_get(src, CU_GRAPH_NODE_TYPE_KERNEL, &s);
	if (!r) {
		memcpy(d->attr, s->attr, sizeof(d->attr));
		d->d.k.cooperative = s->d.k.cooperative;
		if (s->d.k.cluster[0])
			r = set_cluster(&d->d.k, s->d.k.cluster);
	}
	return api_unlock(r);
}
