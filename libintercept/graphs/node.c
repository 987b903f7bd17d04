/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - nodes of each type: parameters into work, and work into parameters
 *
 * A node owns copies of all that its parameters point to, as CUDA says, except for the memory that
 * a copy or a host function works on.
 */
#include <stdlib.h>
#include <string.h>

#include "attrs.h"
#include "context.h"
#include "graph_i.h"
#include "memory_i.h"
#include "module.h"
#include "object.h"
#include "send.h"
#include "streamops.h"

/* ---------------------------------------------------------------------------------- kernels */

static void *dup_mem(const void *p, size_t len)
{
	void *q = malloc(len ? len : 1);

	if (q && len)
		memcpy(q, p, len);
	return q;
}

/* Convert a launch record's head and tail (attributes, then parameters) to a node's work. */
CUresult work_launch(const struct sv_launch *l, const void *tail, uint32_t len, struct work *w);

static CUresult work_kernel(const CUDA_KERNEL_NODE_PARAMS_v3 *p, struct context *ctx,
			    struct work *w)
{
	CUfunction f = p->func ? p->func : (CUfunction)p->kern;
	CUlaunchConfig c = {
		.gridDimX = p->gridDimX, .gridDimY = p->gridDimY, .gridDimZ = p->gridDimZ,
		.blockDimX = p->blockDimX, .blockDimY = p->blockDimY, .blockDimZ = p->blockDimZ,
		.sharedMemBytes = p->sharedMemBytes,
	};
	struct launch l;

	if (!f || (p->kernelParams && p->extra))
		return CUDA_ERROR_INVALID_VALUE;
	if (!p->func && p->ctx)
		ctx = obj_find(SV_T_CUcontext, sv_u64(p->ctx));
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	TRY(launch_layout(&c, ctx, f, p->kernelParams, p->extra, &l));
	return work_launch(&l.head, l.tail, l.tail_len, w);
}

static CUlaunchAttribute *attr_find(const struct kernel *k, int id)
{
	for (uint32_t i = 0; i < k->attrs; i++)
		if ((int)k->attr[i].id == id)
			return &k->attr[i];
	return NULL;
}

static CUresult attr_set(struct kernel *k, int id, const CUlaunchAttributeValue *v)
{
	CUlaunchAttribute *a = attr_find(k, id);

	if (!a) {
		a = realloc(k->attr, (k->attrs + 1) * sizeof(*a));
		if (!a)
			return CUDA_ERROR_OUT_OF_MEMORY;
		k->attr = a;
		a += k->attrs++;
		memset(a, 0, sizeof(*a));
		a->id = id;
	}
	a->value = *v;
	return 0;
}

static CUresult kernel_params(struct kernel *k, const struct sv_func_info *info, const void *buf,
			      uint32_t len)
{
	k->param_bytes = len;
	k->params = calloc(1, len + 8);
	k->param = calloc(info->params + 1, sizeof(*k->param));
	if (!k->params || !k->param)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(k->params, buf, len);
	for (uint32_t i = 0; i < info->params; i++)
		k->param[i] = k->params + info->param[i].off;
	return 0;
}

static CUresult take_attr(struct kernel *k, const CUlaunchAttribute *a)
{
	switch ((int)a->id) {
	case CU_LAUNCH_ATTRIBUTE_IGNORE:
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:	/* a hint, unused */
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:			/* handled by capture.c */
	case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
		return 0;
	default:
		return attr_set(k, a->id, &a->value);
	}
}

CUresult work_launch(const struct sv_launch *l, const void *tail, uint32_t len, struct work *w)
{
	struct function *fn = function_find((CUfunction)(uintptr_t)l->function);
	uint64_t attrs = (uint64_t)l->attrs * sizeof(CUlaunchAttribute);
	CUlaunchAttributeValue coop = { .cooperative = 1 };
	struct kernel *k = &w->k;
	CUresult r;

	if (!fn || attrs > len || l->param_bytes > len - attrs)
		return CUDA_ERROR_INVALID_VALUE;
	/* The driver sees the graph when it is instantiated; this is what it says of a launch. */
	if (l->param_bytes != fn->info->param_bytes)
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_KERNEL, .ctx = l->ctx };
	k->func = l->function;
	memcpy(k->grid, l->grid, sizeof(k->grid));
	memcpy(k->block, l->block, sizeof(k->block));
	k->shared = l->shared;
	r = kernel_params(k, fn->info, (const uint8_t *)tail + attrs, l->param_bytes);
	if (!r && (l->flags & SV_LAUNCH_COOPERATIVE))
		r = attr_set(k, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &coop);
	for (uint32_t i = 0; i < l->attrs && !r; i++)
		r = take_attr(k, (const CUlaunchAttribute *)tail + i);
	if (r)
		work_free(w);
	return r;
}

/* ----------------------------------------------------------------------------------- copies */

struct side {
	CUmemorytype type;
	uint64_t addr;
	CUarray array;
	size_t x, y, z, pitch, height;
};

static struct side side_of(const CUDA_MEMCPY3D *c, bool dst)
{
	if (dst)
		return (struct side){
			c->dstMemoryType,
			c->dstMemoryType == CU_MEMORYTYPE_HOST ? sv_u64(c->dstHost) : c->dstDevice,
			c->dstArray, c->dstXInBytes, c->dstY, c->dstZ, c->dstPitch, c->dstHeight };
	return (struct side){
		c->srcMemoryType,
		c->srcMemoryType == CU_MEMORYTYPE_HOST ? sv_u64(c->srcHost) : c->srcDevice,
		c->srcArray, c->srcXInBytes, c->srcY, c->srcZ, c->srcPitch, c->srcHeight };
}

/* First byte and length of the linear memory that a copy accesses. false: overflow. */
static bool extent(const CUDA_MEMCPY3D *c, const struct side *s, uint64_t *first, uint64_t *len)
{
	uint64_t slice = sv_mul(s->pitch, s->height), a, b, row;

	if (__builtin_mul_overflow(slice, s->z, &a) ||
	    __builtin_mul_overflow(s->pitch, s->y, &b) || __builtin_add_overflow(a, b, &a) ||
	    __builtin_add_overflow(a, s->x, &a) || __builtin_add_overflow(s->addr, a, first))
		return false;
	row = sv_pitch(s->pitch, c->WidthInBytes, c->Height, 1);
	return !__builtin_mul_overflow(slice, c->Depth - 1, &a) &&
	       !__builtin_add_overflow(a, row, len);
}

/* Has it len bytes at addr? Its device need not be the node's. */
static bool allocated(const struct memory *m, uint64_t addr, uint64_t len)
{
	return addr - m->base <= m->len && len <= m->len - (addr - m->base) &&
	       (m->kind != MEMORY_RESERVED || !vmm_range(addr, len));
}

static bool is_abroad(uint64_t addr)
{
	struct memory m;

	return memory_find(addr, &m) && !memory_is_here(&m);
}

static bool side_abroad(const CUDA_MEMCPY3D *c, bool dst)
{
	struct side s = side_of(c, dst);
	uint64_t first, len;

	if (s.type == CU_MEMORYTYPE_ARRAY) {
		const struct obj *o = obj_find(SV_T_CUarray, sv_u64(s.array));

		return o && o->ctx->session != here;
	}
	return extent(c, &s, &first, &len) && is_abroad(first);
}

bool work_abroad(const struct work *w)
{
	return w->type == CU_GRAPH_NODE_TYPE_MEMSET ? is_abroad(w->set.dst) :
	       w->type == CU_GRAPH_NODE_TYPE_MEMCPY &&
	       (side_abroad(&w->copy, false) || side_abroad(&w->copy, true));
}

enum reach { REACH_BAD, REACH_ARRAY, REACH_DEVICE, REACH_ARENA, REACH_CLIENT };

static enum reach reach_of(const CUDA_MEMCPY3D *c, bool dst)
{
	struct side s = side_of(c, dst);
	uint64_t first, len, arena = (uint64_t)(uintptr_t)process.arena;
	struct memory m;

	if (s.type == CU_MEMORYTYPE_ARRAY)
		return obj_find(SV_T_CUarray, sv_u64(s.array)) ? REACH_ARRAY : REACH_BAD;
	if (!s.addr || !extent(c, &s, &first, &len))
		return REACH_BAD;
	if ((c->Height > 1 || c->Depth > 1) && s.pitch < s.x + c->WidthInBytes)
		return REACH_BAD;
	if (c->Depth > 1 && s.height < s.y + c->Height)
		return REACH_BAD;
	if (memory_find(first, &m)) {
		if (!allocated(&m, first, len))
			return REACH_BAD;
		switch (m.kind) {
		case MEMORY_HOST:
		case MEMORY_MANAGED:
			return REACH_ARENA;
		case MEMORY_REGISTERED:
			return REACH_CLIENT;
		default:
			return REACH_DEVICE;
		}
	}
	if (session_at(first) || first - arena < process.arena_len)
		return REACH_BAD;	/* not allocated */
	return s.type == CU_MEMORYTYPE_DEVICE ? REACH_BAD : REACH_CLIENT;
}

bool copy_pageable(const CUDA_MEMCPY3D *c, bool dst)
{
	return reach_of(c, dst) == REACH_CLIENT;
}

bool copy_linear_host(const CUDA_MEMCPY3D *c, bool dst)
{
	enum reach r = reach_of(c, dst);

	return r == REACH_CLIENT || r == REACH_ARENA;
}

uint8_t *copy_host(const CUDA_MEMCPY3D *c, bool dst, size_t *pitch, size_t *slice)
{
	struct side s = side_of(c, dst);

	*pitch = s.pitch;
	*slice = s.pitch * s.height;
	return (uint8_t *)(uintptr_t)s.addr + s.z * *slice + s.y * s.pitch + s.x;
}

static bool bad_type(CUmemorytype t)
{
	return t < CU_MEMORYTYPE_HOST || t > CU_MEMORYTYPE_UNIFIED;
}

CUresult work_memcpy(const CUDA_MEMCPY3D *c, uint64_t ctx, struct work *w)
{
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_MEMCPY, .ctx = ctx, .copy = *c };
	if (bad_type(c->srcMemoryType) || bad_type(c->dstMemoryType) || !c->WidthInBytes ||
	    !c->Height || !c->Depth || c->srcLOD || c->dstLOD || c->reserved0 || c->reserved1)
		return CUDA_ERROR_INVALID_VALUE;
	c = &w->copy;
	if (!c->srcPitch)
		w->copy.srcPitch = c->srcXInBytes + c->WidthInBytes;
	if (!c->dstPitch)
		w->copy.dstPitch = c->dstXInBytes + c->WidthInBytes;
	if (!c->srcHeight)
		w->copy.srcHeight = c->srcY + c->Height;
	if (!c->dstHeight)
		w->copy.dstHeight = c->dstY + c->Height;
	if (reach_of(c, false) == REACH_BAD || reach_of(c, true) == REACH_BAD)
		return CUDA_ERROR_INVALID_VALUE;
	return 0;
}

static CUresult work_memset(const CUDA_MEMSET_NODE_PARAMS_v2 *p, uint64_t ctx, struct work *w)
{
	uint64_t row = sv_mul(p->width, p->elementSize), len;
	struct memory m;

	if (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4)
		return CUDA_ERROR_INVALID_VALUE;
	if (!p->width || !p->height || p->dst % p->elementSize ||
	    (p->height > 1 && (p->pitch < row || p->pitch % p->elementSize)))
		return CUDA_ERROR_INVALID_VALUE;
	len = sv_pitch(p->height > 1 ? p->pitch : row, p->width, p->height, p->elementSize);
	if (!memory_find(p->dst, &m) || m.kind == MEMORY_REGISTERED || !allocated(&m, p->dst, len))
		return CUDA_ERROR_INVALID_VALUE;
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_MEMSET, .ctx = ctx, .set = *p };
	w->set.ctx = NULL;
	return 0;
}

/* ------------------------------------------------------------------------------ other types */

static CUresult memop_check(const CUstreamBatchMemOpParams *op)
{
	switch (op->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		TRY(memop_wait(op->waitValue.address, 4, op->waitValue.flags));
		return memory_range(op->waitValue.address, 4);
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		TRY(memop_wait(op->waitValue.address, 8, op->waitValue.flags));
		return memory_range(op->waitValue.address, 8);
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		TRY(memop_write(op->writeValue.address, 4, op->writeValue.flags));
		return memory_range(op->writeValue.address, 4);
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		TRY(memop_write(op->writeValue.address, 8, op->writeValue.flags));
		return memory_range(op->writeValue.address, 8);
	case CU_STREAM_MEM_OP_BARRIER:
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		return 0;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult work_memops(unsigned int n, const CUstreamBatchMemOpParams *op, uint64_t ctx,
		     struct work *w)
{
	if (!n || n > SV_GRAPH_MEMOPS_MAX || !op)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < n; i++)
		TRY(memop_check(&op[i]));
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .ctx = ctx };
	w->memops.n = n;
	w->memops.op = dup_mem(op, n * sizeof(*op));
	return w->memops.op ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult work_event(CUevent h, int type, uint64_t ctx, struct work *w)
{
	struct event *e = obj_find(SV_T_CUevent, sv_u64(h));

	if (!e)
		return CUDA_ERROR_INVALID_VALUE;
	if (e->peers)
		return sv_unsupported("cuGraphAddEventRecordNode",
				      "an event of several processes is not in graphs");
	e->elsewhere = true;
	*w = (struct work){ .type = type, .ctx = ctx, .event = h };
	return 0;
}

/* A child graph node's parameters, as cuda.h has them since 12.9. */
struct child_params {
	CUgraph graph;
	uint32_t ownership;
};

static CUresult work_child(const CUgraphNodeParams *params, struct work *w)
{
	struct child_params p;
	struct graph *g;

	_Static_assert(sizeof(p) <= sizeof(params->reserved1), "child_params");
	memcpy(&p, params->reserved1, sizeof(p));
	g = graph_of(p.graph);
	if (!g || g->capturing || p.ownership > CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
		return CUDA_ERROR_INVALID_VALUE;
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_GRAPH };
	if (graph_has_cond(g))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (p.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
		if (g->owned)
			return CUDA_ERROR_INVALID_VALUE;
		w->child = g;
	} else {
		if (graph_has_memory(g))
			return CUDA_ERROR_NOT_SUPPORTED;
		w->child = graph_clone(g);
		if (!w->child)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	w->child->owned = true;
	return 0;
}

static CUresult work_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS_v2 *p, const struct spot *at,
			   uint64_t ctx, struct work *w)
{
	if (!at || !p->bytesize || p->poolProps.handleTypes ||
	    p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !session_device(p->poolProps.location.id) || (p->accessDescCount && !p->accessDescs))
		return CUDA_ERROR_INVALID_VALUE;
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .ctx = ctx };
	w->alloc.p = *p;
	w->alloc.p.accessDescs = NULL;
	w->alloc.p.accessDescCount = 0;
	TRY(graph_mem_new(p->bytesize, at, &w->alloc.m));
	w->alloc.p.dptr = w->alloc.m->addr;
	return 0;
}

static CUresult work_cond(const CUDA_CONDITIONAL_NODE_PARAMS *p, struct graph *in, uint64_t ctx,
			  struct work *w);

CUresult work_of_params(const CUgraphNodeParams *p, const struct spot *at, struct work *w)
{
	struct context *ctx;

	w->type = CU_GRAPH_NODE_TYPE_EMPTY;
	TRY(context_current(&ctx));
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return work_kernel(&p->kernel, ctx, w);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return work_memcpy(&p->memcpy.copyParams, ctx->o.handle, w);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return work_memset(&p->memset, ctx->o.handle, w);
	case CU_GRAPH_NODE_TYPE_HOST:
		*w = (struct work){ .type = p->type, .ctx = ctx->o.handle, .host = p->host };
		return p->host.fn ? 0 : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return work_child(p, w);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		*w = (struct work){ .type = p->type };
		return 0;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return work_event(p->eventWait.event, p->type, ctx->o.handle, w);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return work_event(p->eventRecord.event, p->type, ctx->o.handle, w);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return work_alloc(&p->alloc, at, ctx->o.handle, w);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		*w = (struct work){ .type = p->type, .ctx = ctx->o.handle, .free = p->free.dptr };
		return graph_mem_at(p->free.dptr) ? 0 : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return p->memOp.flags ? CUDA_ERROR_INVALID_VALUE :
		       work_memops(p->memOp.count, p->memOp.paramArray, ctx->o.handle, w);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return at ? work_cond(&p->conditional, at->g, ctx->o.handle, w) :
		       CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
		return sv_unsupported("an external semaphore's node", "such semaphores belong to "
				      "another API and cannot be rebuilt after a restore");
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

void work_free(struct work *w)
{
	switch (w->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		free(w->k.params);
		free(w->k.param);
		free(w->k.attr);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		if (w->child)
			graph_delete(w->child);
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		free(w->memops.op);
		break;
	case NODE_COLL:
		free(w->coll.call);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		if (w->alloc.m)
			graph_mem_put(w->alloc.m);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		for (unsigned int i = 0; w->cond.body && i < w->cond.p.size; i++)
			if (w->cond.body[i])
				graph_delete(w->cond.body[i]);
		free(w->cond.body);
		free(w->cond.p.phGraph_out);
		break;
	default:
		break;
	}
	w->type = CU_GRAPH_NODE_TYPE_EMPTY;
}

static size_t params_of(const struct kernel *k)
{
	size_t n = 0;

	while (k->param[n])
		n++;
	return n;
}

static CUresult copy_kernel(struct kernel *to, const struct kernel *from)
{
	size_t n = params_of(from);

	to->params = dup_mem(from->params, from->param_bytes + 8);
	to->param = calloc(n + 1, sizeof(*to->param));
	to->attr = dup_mem(from->attr, from->attrs * sizeof(*to->attr));
	if (!to->params || !to->param || !to->attr)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < n; i++)
		to->param[i] = to->params + ((uint8_t *)from->param[i] - from->params);
	return 0;
}

static bool bodies_alloc(struct work *w)
{
	w->cond.body = calloc(w->cond.p.size, sizeof(*w->cond.body));
	w->cond.p.phGraph_out = calloc(w->cond.p.size, sizeof(CUgraph));
	return w->cond.body && w->cond.p.phGraph_out;
}

static void body_is(struct work *w, unsigned int i, struct graph *g, struct graph *top)
{
	g->owned = true;
	g->top = top;
	w->cond.body[i] = g;
	w->cond.p.phGraph_out[i] = (CUgraph)(uintptr_t)g->handle;
}

static CUresult copy_bodies(struct work *to, const struct work *from)
{
	if (!bodies_alloc(to))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned int i = 0; i < to->cond.p.size; i++) {
		struct graph *g = graph_clone(from->cond.body[i]);

		if (!g)
			return CUDA_ERROR_OUT_OF_MEMORY;
		body_is(to, i, g, from->cond.body[i]->top);
	}
	return 0;
}

/* The work of a conditional node; its bodies are empty graphs, which the program fills. */
static CUresult work_cond(const CUDA_CONDITIONAL_NODE_PARAMS *p, struct graph *in, uint64_t ctx,
			  struct work *w)
{
	struct graph *top = in->top ? in->top : in;
	unsigned int max = p->type == CU_GRAPH_COND_TYPE_IF ? 2 :
			   p->type == CU_GRAPH_COND_TYPE_WHILE ? 1 : SV_GRAPH_BODIES_MAX;
	uint32_t i = 0;

	while (i < top->nconds && top->conds[i] != p->handle)
		i++;
	if (i == top->nconds || (unsigned int)p->type > CU_GRAPH_COND_TYPE_SWITCH || !p->size ||
	    p->size > max || (p->ctx && !obj_find(SV_T_CUcontext, sv_u64(p->ctx))))
		return CUDA_ERROR_INVALID_VALUE;
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
			    .ctx = p->ctx ? sv_u64(p->ctx) : ctx };
	w->cond.p = *p;
	if (!bodies_alloc(w))
		goto nomem;
	for (i = 0; i < p->size; i++) {
		struct graph *g = graph_new();

		if (!g)
			goto nomem;
		body_is(w, i, g, top);
	}
	return 0;
nomem:
	work_free(w);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* work_free() accepts *to even if this fails. */
CUresult work_copy(struct work *to, const struct work *from)
{
	*to = *from;
	switch (from->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		to->k.params = NULL;
		to->k.param = NULL;
		to->k.attr = NULL;
		return copy_kernel(&to->k, &from->k);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		to->child = graph_clone(from->child);
		if (!to->child)
			return CUDA_ERROR_OUT_OF_MEMORY;
		to->child->owned = true;
		return 0;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		to->memops.op = dup_mem(from->memops.op, from->memops.n * sizeof(*to->memops.op));
		return to->memops.op ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
	case NODE_COLL:
		to->coll.call = dup_mem(from->coll.call, from->coll.n * sizeof(*to->coll.call));
		return to->coll.call ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		to->alloc.m->refs++;
		return 0;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return copy_bodies(to, from);
	default:
		return 0;
	}
}

/* Copy a kernel's attributes, which stay when a node's parameters change. */
CUresult work_take_attrs(struct work *to, const struct work *from)
{
	void *a = dup_mem(from->k.attr, from->k.attrs * sizeof(*from->k.attr));

	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	free(to->k.attr);
	to->k.attr = a;
	to->k.attrs = from->k.attrs;
	return 0;
}

bool edge_data_ok(const CUgraphEdgeData *d, const struct node *from, const struct node *to)
{
	static const CUgraphEdgeData none;

	if (!d || !memcmp(d, &none, sizeof(none)))
		return true;
	if (d->to_port || memcmp(d->reserved, none.reserved, sizeof(none.reserved)) ||
	    d->type > CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC ||
	    d->from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER)
		return false;
	if (from->w.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return false;
	return to->w.type == CU_GRAPH_NODE_TYPE_KERNEL || !d->type;
}

/* ----------------------------------------------------------------------------------- adding */

/* The nodes of the handles, to be freed; NULL: a handle names no node of the graph. */
static struct node **nodes_of(const struct graph *g, const CUgraphNode *h, size_t n)
{
	struct node **v = calloc(n + 1, sizeof(*v));

	for (size_t i = 0; v && i < n; i++) {
		v[i] = node_of(h[i], -1);
		if (v[i] && v[i]->g == g)
			continue;
		free(v);
		return NULL;
	}
	return v;
}

/* Have the proxy load a kernel before the lock is taken. Errors in p are found later, under it. */
static CUresult prepare(const CUgraphNodeParams *p)
{
	const CUDA_KERNEL_NODE_PARAMS_v3 *k = &p->kernel;
	struct context *ctx;
	struct function *fn;

	if (p->type != CU_GRAPH_NODE_TYPE_KERNEL || context_current(&ctx))
		return CUDA_SUCCESS;
	fn = function_find(k->func ? k->func : (CUfunction)k->kern);
	if (!k->func && k->ctx)
		ctx = obj_find(SV_T_CUcontext, sv_u64(k->ctx));
	return fn && ctx ? function_ready(ctx, fn) : CUDA_SUCCESS;
}

static CUresult add_node(CUgraphNode *out, CUgraph hGraph, const CUgraphNode *deps,
			 const CUgraphEdgeData *data, size_t ndeps, CUgraphNodeParams *p,
			 struct graph_spare *spare)
{
	struct graph *g = graph_of(hGraph);
	struct node **from, *n = NULL;
	struct work w;
	CUresult r;

	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	from = nodes_of(g, deps, ndeps);
	if (!from)
		return CUDA_ERROR_INVALID_VALUE;
	r = work_of_params(p, &(struct spot){ g, from, ndeps, spare }, &w);
	for (size_t i = 0; i < ndeps && data && !r; i++) {
		struct node to = { .w.type = p->type };

		if (!edge_data_ok(&data[i], from[i], &to)) {
			work_free(&w);
			r = CUDA_ERROR_INVALID_VALUE;
		}
	}
	if (!r)
		r = node_add(g, &w, from, data, ndeps, &n);
	free(from);
	if (r)
		return r;
	if (p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		p->alloc.dptr = n->w.alloc.p.dptr;
	if (p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		p->conditional.phGraph_out = n->w.cond.p.phGraph_out;
	*out = (CUgraphNode)(uintptr_t)n->handle;
	return 0;
}

API CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
			       const CUgraphNode *dependencies,
			       const CUgraphEdgeData *dependencyData, size_t numDependencies,
			       CUgraphNodeParams *nodeParams)
{
	struct graph_spare spare = { 0 };
	CUresult r;

	TRY(session_check());
	if (!phGraphNode || !nodeParams || (numDependencies && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(prepare(nodeParams));
	for (;;) {
		TRY(graph_lock());
		r = graph_unlock(add_node(phGraphNode, hGraph, dependencies, dependencyData,
					  numDependencies, nodeParams, &spare));
		if (r != SEND_AGAIN)
			break;
		graph_spare_get(&spare);
	}
	graph_spare_put(&spare);
	return r;
}

API CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			    const CUgraphNode *dependencies, size_t numDependencies,
			    CUgraphNodeParams *nodeParams)
{
	return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies,
				 nodeParams);
}

/* CUgraphNodeParams of one type, with the given assignments to its members. */
#define PARAMS(_type, ...) ({						\
	CUgraphNodeParams _p;						\
									\
	memset(&_p, 0, sizeof(_p));					\
	_p.type = CU_GRAPH_NODE_TYPE_##_type;				\
	__VA_ARGS__;							\
	_p; })
#define ADD(_type, ...) ({						\
	CUgraphNodeParams _all = PARAMS(_type, __VA_ARGS__);		\
									\
	cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, &_all); })
#define NEED(_x) do {							\
	TRY(session_check());						\
	if (!(_x))							\
		return CUDA_ERROR_INVALID_VALUE;			\
} while (0)

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
				     const CUgraphNode *dependencies, size_t numDependencies,
				     const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return ADD(KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies, size_t numDependencies,
				  const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	NEED(nodeParams);
	return ADD(KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies, size_t numDependencies,
				  const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	NEED(copyParams);
	return ADD(MEMCPY, _p.memcpy.copyParams = *copyParams; _p.memcpy.copyCtx = ctx);
}

API CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies, size_t numDependencies,
				  const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	NEED(memsetParams);
	return ADD(MEMSET, memcpy(&_p.memset, memsetParams, sizeof(*memsetParams));
		   _p.memset.ctx = ctx);
}

API CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				const CUgraphNode *dependencies, size_t numDependencies,
				const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return ADD(HOST, memcpy(&_p.host, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				      const CUgraphNode *dependencies, size_t numDependencies,
				      CUgraph childGraph)
{
	return ADD(GRAPH, _p.graph.graph = childGraph);
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				 const CUgraphNode *dependencies, size_t numDependencies)
{
	return ADD(EMPTY, (void)0);
}

API CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				       const CUgraphNode *dependencies, size_t numDependencies,
				       CUevent event)
{
	return ADD(EVENT_RECORD, _p.eventRecord.event = event);
}

API CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				     const CUgraphNode *dependencies, size_t numDependencies,
				     CUevent event)
{
	return ADD(WAIT_EVENT, _p.eventWait.event = event);
}

API CUresult cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				      const CUgraphNode *dependencies, size_t numDependencies,
				      const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return ADD(BATCH_MEM_OP, memcpy(&_p.memOp, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				    const CUgraphNode *dependencies, size_t numDependencies,
				    CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams p;

	NEED(nodeParams);
	p = PARAMS(MEM_ALLOC, memcpy(&_p.alloc, nodeParams, sizeof(*nodeParams)));
	TRY(cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, &p));
	nodeParams->dptr = p.alloc.dptr;
	return 0;
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				   const CUgraphNode *dependencies, size_t numDependencies,
				   CUdeviceptr dptr)
{
	return ADD(MEM_FREE, _p.free.dptr = dptr);
}

/*
 * Make a conditional handle for g. It is the driver's own value, since device code reads it, and
 * comes with the proxy's answer. Called under the lock, which is dropped meanwhile.
 */
static CUresult cond_new(struct graph *g, struct context *ctx, unsigned int value,
			 unsigned int flags, CUgraphConditionalHandle *out)
{
	struct sv_graph_cond a = { ctx->o.handle, g->handle, value, flags };
	uint64_t handle, *p;
	CUresult r;

	assert_held(&process.locks.graphs);
	if (g->root && g->root_in != ctx->session)
		return sv_unsupported("a graph", "it has conditional handles on several devices");
	graph_unlock(0);
	{
		ON(ctx->session);
		r = send_sync(SV_OP_cuGraphConditionalHandleCreate, &a, sizeof(a), NULL, 0, &handle,
			      sizeof(handle));
	}
	graph_relock();
	if (r)
		return r;
	g = graph_of((CUgraph)(uintptr_t)a.graph);
	if (!g)		/* destroyed meanwhile */
		return CUDA_ERROR_INVALID_VALUE;
	g->root = g->handle;
	g->root_in = ctx->session;
	p = realloc(g->conds, (g->nconds + 1) * sizeof(*p));
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	g->conds = p;
	g->conds[g->nconds++] = handle;
	*out = handle;
	return 0;
}

API CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph,
					    CUcontext ctx, unsigned int defaultLaunchValue,
					    unsigned int flags)
{
	struct context *c;
	struct graph *g;

	NEED(pHandle_out && !(flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT));
	TRY(context_current(&c));
	if (ctx)
		c = obj_find(SV_T_CUcontext, sv_u64(ctx));
	TRY(graph_lock());
	g = graph_of(hGraph);
	if (!g || !c)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	return graph_unlock(cond_new(g->top ? g->top : g, c, defaultLaunchValue, flags,
				     pHandle_out));
}

/* ---------------------------------------------------------------------------------- queries */

static CUresult lock_node(CUgraphNode h, int type, const void *out, struct node **n)
{
	NEED(out);
	TRY(graph_lock());
	*n = node_of(h, type);
	return *n ? 0 : graph_unlock(node_refused(h));
}

/* The CUkernel from which a launch's function is derived, which cudart expects; or NULL. */
static CUkernel kernel_of(const struct kernel *k)
{
	const struct function *fn = function_find((CUfunction)(uintptr_t)k->func);

	if (!sv_is_handle(SV_T_CUkernel, k->func))
		fn = fn ? fn->kernel : NULL;
	return fn ? (CUkernel)(uintptr_t)fn->o.handle : NULL;
}

API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	const struct kernel *k;
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL, nodeParams, &n));
	k = &n->w.k;
	*nodeParams = (CUDA_KERNEL_NODE_PARAMS){
		.func = (CUfunction)(uintptr_t)k->func,
		.kern = kernel_of(k),
		.gridDimX = k->grid[0], .gridDimY = k->grid[1], .gridDimZ = k->grid[2],
		.blockDimX = k->block[0], .blockDimY = k->block[1], .blockDimZ = k->block[2],
		.sharedMemBytes = k->shared,
		.kernelParams = k->param,
		.ctx = (CUcontext)(uintptr_t)n->w.ctx,
	};
	return graph_unlock(0);
}

API CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUDA_KERNEL_NODE_PARAMS p;

	NEED(nodeParams);
	TRY(cuGraphKernelNodeGetParams_v2(hNode, &p));
	memcpy(nodeParams, &p, sizeof(*nodeParams));
	return 0;
}

API CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams, &n));
	*nodeParams = n->w.copy;
	return graph_unlock(0);
}

API CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams, &n));
	memcpy(nodeParams, &n->w.set, sizeof(*nodeParams));
	return graph_unlock(0);
}

API CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams, &n));
	nodeParams->fn = n->w.host.fn;
	nodeParams->userData = n->w.host.userData;
	return graph_unlock(0);
}

API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_GRAPH, phGraph, &n));
	*phGraph = (CUgraph)(uintptr_t)n->w.child->handle;
	return graph_unlock(0);
}

API CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out, &n));
	*event_out = n->w.event;
	return graph_unlock(0);
}

API CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out, &n));
	*event_out = n->w.event;
	return graph_unlock(0);
}

API CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
					    CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams_out)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nodeParams_out, &n));
	*nodeParams_out = (CUDA_BATCH_MEM_OP_NODE_PARAMS){
		.ctx = (CUcontext)(uintptr_t)n->w.ctx, .count = n->w.memops.n,
		.paramArray = n->w.memops.op,
	};
	return graph_unlock(0);
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
					  CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params_out, &n));
	memcpy(params_out, &n->w.alloc.p, sizeof(*params_out));
	return graph_unlock(0);
}

API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
	struct node *n;

	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, dptr_out, &n));
	*dptr_out = n->w.free;
	return graph_unlock(0);
}

/* ---------------------------------------------------------------------- changing parameters */

/*
 * Keep the memory that cuGraphKernelNodeGetParams has returned, if the new parameters fit into it.
 */
static void keep_params(struct kernel *k, struct kernel *old)
{
	uint8_t *params = old->params;
	void **param = old->param;
	size_t n = params_of(k);

	if (k->param_bytes > old->param_bytes || n != params_of(old))
		return;
	memcpy(params, k->params, k->param_bytes);
	for (size_t i = 0; i < n; i++)
		param[i] = params + ((uint8_t *)k->param[i] - k->params);
	old->params = k->params;
	old->param = k->param;
	k->params = params;
	k->param = param;
}

static CUresult set_in_graph(CUgraphNode h, const CUgraphNodeParams *p)
{
	struct node *n = node_of(h, p->type);
	struct work w;

	if (!n)
		return node_refused(h);
	if (p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || p->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(work_of_params(p, NULL, &w));
	if (p->type == CU_GRAPH_NODE_TYPE_KERNEL) {
		w.k.attr = n->w.k.attr;		/* attributes stay */
		w.k.attrs = n->w.k.attrs;
		n->w.k.attr = NULL;
		keep_params(&w.k, &n->w.k);
	}
	work_free(&n->w);
	n->w = w;
	return 0;
}

static CUresult set_params(CUgraphExec x, CUgraphNode h, const CUgraphNodeParams *p)
{
	TRY(prepare(p));
	if (x)
		return exec_set(x, h, p);
	TRY(graph_lock());
	return graph_unlock(set_in_graph(h, p));
}

#define SET(_exec, _type, ...) ({					\
	CUgraphNodeParams _all = PARAMS(_type, __VA_ARGS__);		\
									\
	set_params(_exec, hNode, &_all); })

API CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	NEED(nodeParams);
	return set_params(NULL, hNode, nodeParams);
}

API CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				      CUgraphNodeParams *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return set_params(hGraphExec, hNode, nodeParams);
}

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
					   const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
					const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
					       const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, KERNEL, memcpy(&_p.kernel, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, MEMCPY, _p.memcpy.copyParams = *nodeParams);
}

API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	NEED(copyParams && hGraphExec);
	return SET(hGraphExec, MEMCPY, _p.memcpy.copyParams = *copyParams; _p.memcpy.copyCtx = ctx);
}

API CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode,
					const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, MEMSET, memcpy(&_p.memset, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    const CUDA_MEMSET_NODE_PARAMS *memsetParams,
					    CUcontext ctx)
{
	NEED(memsetParams && hGraphExec);
	return SET(hGraphExec, MEMSET, memcpy(&_p.memset, memsetParams, sizeof(*memsetParams));
		   _p.memset.ctx = ctx);
}

API CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, HOST, memcpy(&_p.host, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					  const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, HOST, memcpy(&_p.host, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
						CUgraph childGraph)
{
	NEED(hGraphExec);
	return SET(hGraphExec, GRAPH, _p.graph.graph = childGraph);
}

API CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
	return SET(NULL, EVENT_RECORD, _p.eventRecord.event = event);
}

API CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
						CUevent event)
{
	NEED(hGraphExec);
	return SET(hGraphExec, EVENT_RECORD, _p.eventRecord.event = event);
}

API CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
	return SET(NULL, WAIT_EVENT, _p.eventWait.event = event);
}

API CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
					      CUevent event)
{
	NEED(hGraphExec);
	return SET(hGraphExec, WAIT_EVENT, _p.eventWait.event = event);
}

API CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
					    const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams);
	return SET(NULL, BATCH_MEM_OP, memcpy(&_p.memOp, nodeParams, sizeof(*nodeParams)));
}

API CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
						const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	NEED(nodeParams && hGraphExec);
	return SET(hGraphExec, BATCH_MEM_OP, memcpy(&_p.memOp, nodeParams, sizeof(*nodeParams)));
}

/* --------------------------------------------------------------- attributes of kernel nodes */

static bool attr_of_node(int id)
{
	return sv_attr_of(id) & SV_ATTR_NODE;
}

/*
 * Locks the graphs and finds the priority of a collective operation's node, or nothing. XLA sets it on
 * every node of a capture that looks like a kernel.
 */
static int *lock_priority(CUgraphNode h, int attr, const void *value)
{
	struct node *n;

	if (attr != CU_LAUNCH_ATTRIBUTE_PRIORITY || !value || graph_lock())
		return NULL;
	n = node_of(h, NODE_COLL);
	if (n)
		return &n->w.coll.priority;
	graph_unlock(0);
	return NULL;
}

API CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
					   CUkernelNodeAttrValue *value_out)
{
	const int *priority = lock_priority(hNode, attr, value_out);
	const CUlaunchAttribute *a;
	struct node *n;

	if (priority) {
		memset(value_out, 0, sizeof(*value_out));
		value_out->priority = *priority;
		return graph_unlock(0);
	}
	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL, value_out, &n));
	if (!attr_of_node(attr))
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	a = attr_find(&n->w.k, attr);
	if (a) {
		*value_out = a->value;
	} else {
		memset(value_out, 0, sizeof(*value_out));
		if (attr == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP)
			value_out->memSyncDomainMap.remote = 1;
	}
	return graph_unlock(0);
}

API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
					   const CUkernelNodeAttrValue *value)
{
	int *priority = lock_priority(hNode, attr, value);
	struct node *n;

	if (priority) {
		*priority = value->priority;
		return graph_unlock(0);
	}
	TRY(lock_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL, value, &n));
	if (attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
		return graph_unlock(sv_unsupported("a device-updatable kernel node",
			"nodes that kernels change are not virtualized"));
	return graph_unlock(attr_of_node(attr) ? attr_set(&n->w.k, attr, value) :
			    CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
	struct node *d, *s;
	CUlaunchAttribute *a;

	TRY(graph_lock());
	d = node_of(dst, CU_GRAPH_NODE_TYPE_KERNEL);
	s = node_of(src, CU_GRAPH_NODE_TYPE_KERNEL);
	if (!d || !s)
		return graph_unlock(d ? node_refused(src) : node_refused(dst));
	a = dup_mem(s->w.k.attr, s->w.k.attrs * sizeof(*a));
	if (!a)
		return graph_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	free(d->w.k.attr);
	d->w.k.attr = a;
	d->w.k.attrs = s->w.k.attrs;
	return graph_unlock(0);
}
