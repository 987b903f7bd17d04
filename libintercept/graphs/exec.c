/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec.c - executable graphs: described to the proxy, launched, updated
 *
 * An exec has a clone of its graph, whose nodes have the original node's handle and their indices
 * in the description. The description is flat: a child graph's nodes are inlined and joined by an
 * empty node; a copy of pageable memory becomes a call and a copy, or a copy and a call (call.c).
 *
 *   instantiated ── cuGraphExecDestroy ─► gone, may still run ── done == launches ─► freed
 *
 * A thread that makes or changes an exec sends the description without the lock. Meanwhile the
 * exec is busy: other threads wait in lock_exec(), and it is not freed.
 */
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "context.h"
#include "graph_i.h"
#include "managedvar.h"
#include "object.h"
#include "send.h"

#define EVENTS_MAX 64u		/* more of them in a graph, and it is not cut for their sake */

static struct exec *exec_of(CUgraphExec h)
{
	return graph_find(SV_T_CUgraphExec, sv_u64(h));
}

/* ----------------------------------------------------------------------------- description */

struct desc {
	uint8_t *p;
	size_t len, cap;
	struct exec *x;
	bool update;		/* nodes without dependencies, at their old indices */
	uint32_t next;		/* index of the next node */
	uint32_t graph, graphs;	/* number of the current graph; number of graphs so far */
	uint32_t count;
	bool broken;		/* the graph has breaks */
	struct break_at *brk;
	uint32_t breaks;	/* the array doubles when this is a power of two */
	CUresult error;
};

static void put_bytes(struct desc *d, const void *p, size_t len)
{
	size_t room = (len + 7) & ~7ul;

	if (d->error || !len)
		return;
	if (d->len + room > d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 4096;
		uint8_t *q;

		while (cap < d->len + room)
			cap *= 2;
		q = cap <= UINT32_MAX ? realloc(d->p, cap) : NULL;
		if (!q) {
			d->error = CUDA_ERROR_OUT_OF_MEMORY;
			return;
		}
		d->p = q;
		d->cap = cap;
	}
	memcpy(d->p + d->len, p, len);
	memset(d->p + d->len + len, 0, room - len);
	d->len += room;
}

struct part {
	const void *p;
	size_t len;
};

/* Append a node to the description; returns its index. */
static uint32_t emit(struct desc *d, int type, const struct node *n,
		     const struct sv_graph_dep *deps, uint32_t ndeps, const struct part *parts,
		     int nparts)
{
	struct sv_graph_node h = { .index = d->next, .type = type, .graph = d->graph };
	size_t at = d->len;

	if (d->update)
		ndeps = 0;
	if (type != SV_NODE_EMPTY)
		h.ctx = n->w.ctx;
	if ((type == SV_NODE_KERNEL || type == SV_NODE_COPY || type == SV_NODE_SET) && !n->enabled)
		h.flags = SV_NODE_DISABLED;
	h.deps = ndeps;
	put_bytes(d, &h, sizeof(h));
	put_bytes(d, deps, ndeps * sizeof(*deps));
	for (int i = 0; i < nparts; i++)
		put_bytes(d, parts[i].p, parts[i].len);
	if (!d->error)
		((struct sv_graph_node *)(d->p + at))->size = d->len - at;
	d->count++;
	if (d->count > SV_GRAPH_NODES_MAX && !d->error)
		d->error = CUDA_ERROR_OUT_OF_MEMORY;
	return d->next++;
}

static void emit_kernel(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
			uint32_t ndeps)
{
	const struct kernel *k = &n->w.k;
	struct sv_launch l = {
		.ctx = n->w.ctx, .function = k->func,
		.grid = { k->grid[0], k->grid[1], k->grid[2] },
		.block = { k->block[0], k->block[1], k->block[2] },
		.shared = k->shared, .attrs = k->attrs, .param_bytes = k->param_bytes,
	};
	struct part parts[] = { { &l, sizeof(l) },
				{ k->attr, k->attrs * sizeof(*k->attr) },
				{ k->params, k->param_bytes } };

	n->main = emit(d, SV_NODE_KERNEL, n, deps, ndeps, parts, 3);
}

static void emit_call(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		      uint32_t ndeps)
{
	struct sv_graph_call c = { n->call->id, n->call->word };
	struct part part = { &c, sizeof(c) };

	n->main = emit(d, SV_NODE_CALL, n, deps, ndeps, &part, 1);
}

/* A node that the client sends at each launch; a description of changes has nothing of it. */
static void emit_break(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		       uint32_t ndeps)
{
	struct break_at *b = d->brk;

	if (d->update) {
		n->main = d->next++;
		return;
	}
	if (!(d->breaks & (d->breaks - 1)))
		b = realloc(b, (d->breaks ? 2 * d->breaks : 1) * sizeof(*b));
	if (!b) {
		d->error = CUDA_ERROR_OUT_OF_MEMORY;
		return;
	}
	d->brk = b;
	n->main = emit(d, SV_NODE_EMPTY, n, deps, ndeps, NULL, 0);
	b[d->breaks++] = (struct break_at){ n->main, n };
}

static void fill_sides(const CUDA_MEMCPY3D *c, struct sv_copy3d *o)
{
	o->dst = (struct sv_copy3d_side){ .pitch = c->dstPitch, .height = c->dstHeight,
		.x = c->dstXInBytes, .y = c->dstY, .z = c->dstZ };
	o->src = (struct sv_copy3d_side){ .pitch = c->srcPitch, .height = c->srcHeight,
		.x = c->srcXInBytes, .y = c->srcY, .z = c->srcZ };
	if (c->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		o->dst.array = sv_u64(c->dstArray);
	else
		o->dst.addr = c->dstMemoryType == CU_MEMORYTYPE_HOST ? sv_u64(c->dstHost) :
			      c->dstDevice;
	if (c->srcMemoryType == CU_MEMORYTYPE_ARRAY)
		o->src.array = sv_u64(c->srcArray);
	else
		o->src.addr = c->srcMemoryType == CU_MEMORYTYPE_HOST ? sv_u64(c->srcHost) :
			      c->srcDevice;
}

static void emit_copy(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		      uint32_t ndeps)
{
	const CUDA_MEMCPY3D *c = &n->w.copy;
	struct sv_copy3d o = { .width = c->WidthInBytes, .height = c->Height, .depth = c->Depth };
	struct sv_copy3d_side staged = { .pitch = c->WidthInBytes, .height = c->Height };
	struct part part = { &o, sizeof(o) };
	struct sv_graph_dep before = { 0 };

	if (n->shape & SHAPE_CALLS)
		staged.addr = (uint64_t)(uintptr_t)arena_at(n->call->stage);
	if (n->shape & (SHAPE_FROM | SHAPE_CLIENT)) {
		emit_call(d, n, deps, ndeps);
		if (n->shape & SHAPE_CLIENT)
			return;
		before.node = n->main;
		deps = &before;
		ndeps = 1;
	}
	fill_sides(c, &o);
	if (n->shape & SHAPE_FROM)
		o.src = staged;
	if (n->shape & SHAPE_TO)
		o.dst = staged;
	if (n->shape & SHAPE_CROSS)
		emit_break(d, n, deps, ndeps);
	else
		n->main = emit(d, SV_NODE_COPY, n, deps, ndeps, &part, 1);
	if (n->shape & SHAPE_TO) {
		before.node = n->main;
		emit_call(d, n, &before, 1);
	}
}

/* A memset is recorded with any address (`late` in cuda.ann); the proxy checks it. */
static void emit_set(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		     uint32_t ndeps)
{
	const CUDA_MEMSET_NODE_PARAMS_v2 *p = &n->w.set;
	struct sv_graph_set s = { p->dst, p->pitch, p->width, p->height, p->elementSize, p->value };
	struct part part = { &s, sizeof(s) };

	if (n->shape & SHAPE_CROSS)
		emit_break(d, n, deps, ndeps);
	else
		n->main = emit(d, SV_NODE_SET, n, deps, ndeps, &part, 1);
}

static void emit_memops(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
			uint32_t ndeps)
{
	struct sv_graph_memop op[SV_GRAPH_MEMOPS_MAX];
	struct part part = { op, n->w.memops.n * sizeof(*op) };

	for (uint32_t i = 0; i < n->w.memops.n; i++) {
		const CUstreamBatchMemOpParams *p = &n->w.memops.op[i];

		op[i] = (struct sv_graph_memop){ .op = p->operation };
		switch (p->operation) {
		case CU_STREAM_MEM_OP_BARRIER:
		case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
			op[i].flags = p->memoryBarrier.flags;
			continue;
		case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		case CU_STREAM_MEM_OP_WRITE_VALUE_32:
			op[i].value = p->waitValue.value;
			break;
		default:
			op[i].value = p->waitValue.value64;
		}
		op[i].flags = p->waitValue.flags;
		op[i].addr = p->waitValue.address;
	}
	n->main = emit(d, SV_NODE_MEMOPS, n, deps, ndeps, &part, 1);
}

static void emit_event(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		       uint32_t ndeps)
{
	struct sv_graph_event e = { sv_u64(n->w.event) };
	struct part part = { &e, sizeof(e) };

	n->main = emit(d, n->w.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ? SV_NODE_WAIT :
		       SV_NODE_RECORD, n, deps, ndeps, &part, 1);
}

static void emit_graph(struct desc *d, struct graph *g, const struct sv_graph_dep *entry,
		       uint32_t nentry);

/* The child's nodes, then an empty node that depends on all leaves of the child. */
static void emit_child(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		       uint32_t ndeps)
{
	struct graph *g = n->w.child;
	struct sv_graph_dep *leaves = calloc(g->n + 1, sizeof(*leaves));
	uint32_t k = 0;

	if (!leaves) {
		d->error = CUDA_ERROR_OUT_OF_MEMORY;
		return;
	}
	emit_graph(d, g, deps, ndeps);
	for (uint32_t i = 0; i < g->n; i++)
		if (!g->nodes[i]->out.n)
			leaves[k++].node = g->nodes[i]->last;
	n->main = emit(d, SV_NODE_EMPTY, n, k ? leaves : deps, k ? k : ndeps, NULL, 0);
	free(leaves);
}

/* The node, then its bodies as separate graphs. */
static void emit_cond(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		      uint32_t ndeps)
{
	const CUDA_CONDITIONAL_NODE_PARAMS *p = &n->w.cond.p;
	struct sv_graph_if c = { p->handle, p->type, p->size };
	struct part part = { &c, sizeof(c) };
	uint32_t outer = d->graph, first = d->graphs;

	n->main = emit(d, SV_NODE_COND, n, deps, ndeps, &part, 1);
	d->graphs += p->size;
	for (uint32_t i = 0; i < p->size && !d->error; i++) {
		d->graph = first + i;
		emit_graph(d, n->w.cond.body[i], NULL, 0);
	}
	d->graph = outer;
}

static void emit_node(struct desc *d, struct node *n, const struct sv_graph_dep *deps,
		      uint32_t ndeps)
{
	n->first = d->next;
	switch (n->w.type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		emit_kernel(d, n, deps, ndeps);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		emit_copy(d, n, deps, ndeps);
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		emit_set(d, n, deps, ndeps);
		break;
	case CU_GRAPH_NODE_TYPE_HOST:
		emit_call(d, n, deps, ndeps);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		emit_child(d, n, deps, ndeps);
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		emit_memops(d, n, deps, ndeps);
		break;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		if (d->broken)
			emit_break(d, n, deps, ndeps);
		else
			emit_event(d, n, deps, ndeps);
		break;
	case NODE_COLL:
		emit_break(d, n, deps, ndeps);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		emit_cond(d, n, deps, ndeps);
		n->last = n->main;
		return;
	default:	/* empty ones, and those of memory */
		n->main = emit(d, SV_NODE_EMPTY, n, deps, ndeps, NULL, 0);
	}
	n->last = d->next - 1;
}

/* n's dependencies; only edges between kernels keep their data. Returns their number. */
static uint32_t deps_of(const struct node *n, struct sv_graph_dep *out)
{
	for (uint32_t i = 0; i < n->in.n; i++) {
		const struct edge *e = &n->in.e[i];

		out[i] = (struct sv_graph_dep){ .node = e->n->last };
		if (n->w.type == CU_GRAPH_NODE_TYPE_KERNEL &&
		    e->n->w.type == CU_GRAPH_NODE_TYPE_KERNEL) {
			out[i].from_port = e->data.from_port;
			out[i].to_port = e->data.to_port;
			out[i].type = e->data.type;
		}
	}
	return n->in.n;
}

static void emit_graph(struct desc *d, struct graph *g, const struct sv_graph_dep *entry,
		       uint32_t nentry)
{
	struct node **order;
	bool cycle;

	order = graph_order(g, &cycle);
	if (!order) {
		d->error = cycle ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
		return;
	}
	for (uint32_t i = 0; i < g->n && !d->error; i++) {
		struct node *n = order[i];
		struct sv_graph_dep *deps = calloc(n->in.n + 1, sizeof(*deps));

		if (!deps)
			d->error = CUDA_ERROR_OUT_OF_MEMORY;
		else if (n->in.n)
			emit_node(d, n, deps, deps_of(n, deps));
		else
			emit_node(d, n, entry, nentry);
		free(deps);
	}
	free(order);
}

/* -------------------------------------------------------------------------- instantiation */

static unsigned int shape_of(const struct node *n)
{
	unsigned int cross = work_abroad(&n->w) ? SHAPE_CROSS : 0;
	bool from, to;

	if (n->w.type != CU_GRAPH_NODE_TYPE_MEMCPY)
		return cross;
	from = copy_pageable(&n->w.copy, false);
	to = copy_pageable(&n->w.copy, true);
	if ((from || to) && copy_linear_host(&n->w.copy, false) &&
	    copy_linear_host(&n->w.copy, true))
		return SHAPE_CLIENT;
	return (from ? SHAPE_FROM : 0) | (to ? SHAPE_TO : 0) | cross;
}

/* Set the shape of all nodes, and return the number of calls that the graph needs. */
static uint32_t count_calls(struct graph *g)
{
	uint32_t calls = 0;

	for (uint32_t i = 0; i < g->n; i++) {
		struct node *n = g->nodes[i];

		n->shape = shape_of(n);
		for (uint32_t j = 0; j < node_graphs(n); j++)
			calls += count_calls(node_graph(n, j));
		calls += (n->shape & SHAPE_CALLS) || n->w.type == CU_GRAPH_NODE_TYPE_HOST;
	}
	return calls;
}

static CUresult make_calls(struct exec *x, struct graph *g)
{
	CUresult r = 0;

	for (uint32_t i = 0; i < g->n && !r; i++) {
		struct node *n = g->nodes[i];

		for (uint32_t j = 0; j < node_graphs(n) && !r; j++)
			r = make_calls(x, node_graph(n, j));
		if (!r && ((n->shape & SHAPE_CALLS) || n->w.type == CU_GRAPH_NODE_TYPE_HOST))
			r = graph_call_new(n, x->words + 8 + 8ull * x->calls++, &n->call);
	}
	return r;
}

static CUresult prepare(struct exec *x)
{
	uint32_t calls = count_calls(x->g);

	if (!calls && !graph_has_memory(x->g))
		return 0;
	TRY(arena_alloc(8 + 8ull * calls, 64, NULL, &x->words));
	memset(arena_at(x->words), 0, 8 + 8ull * calls);
	return make_calls(x, x->g);
}

/* Under the lock; graph_unlock() frees x. */
static void exec_free(struct exec *x)
{
	assert_held(&process.locks.graphs);
	graph_delete(x->g);
	while (x->retired) {
		struct graph_call *c = x->retired;

		x->retired = c->next;
		graph_call_later(c);
	}
	pieces_unname(x);
	exec_later(x);
}

void exec_end(struct exec *x)
{
	if (x->desc)
		arena_free(x->desc);
	if (x->update)
		arena_free(x->update);
	for (uint32_t i = 0; i < x->nparts; i++)
		arena_free(x->parts[i]);
	free(x->parts);
	pieces_free(x);
	if (x->words)
		arena_free(x->words);
	free(x);
}

static uint64_t done(const struct exec *x)
{
	uint64_t *word;

	if (!x->words)
		return x->launches;
	word = arena_at(x->words);
	/* pairs with do_graph_launch() of the proxy, or with its device's write */
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Under the lock: free destroyed execs whose launches are complete. */
static void sweep(void)
{
	assert_held(&process.locks.graphs);
	for (struct exec **p = &process.execs.gone, *x; (x = *p);) {
		if (x->busy || done(x) < x->launches) {
			p = &x->next;
			continue;
		}
		*p = x->next;
		exec_free(x);
	}
}

CUresult exec_send(uint16_t op, struct exec *x, uint64_t handle, const void *desc, size_t len,
		   uint64_t flags, uint64_t *off)
{
	struct sv_graph_req req = { x->ctx_handle, handle, SV_GRAPH_INLINE, len, flags };
	uint32_t max = ring_payload_max(here->ring);
	uint64_t *parts;
	CUresult r;

	if (off && max > 2048)
		max = 2048;
	if (sizeof(req) + len <= max)
		return send_sync(op, &req, sizeof(req), desc, len, NULL, 0);
	TRY(arena_alloc(len, 4096, NULL, &req.off));
	memcpy(arena_at(req.off), desc, len);
	r = send_sync(op, &req, sizeof(req), NULL, 0, NULL, 0);
	if (r) {
		arena_free(req.off);
		return r;
	}
	if (!off) {
		parts = realloc(x->parts, (x->nparts + 1) * sizeof(*parts));
		if (!parts)
			return 0;	/* the arena memory is never freed */
		x->parts = parts;
		off = &parts[x->nparts++];
		*off = 0;
	}
	if (*off)
		arena_free(*off);
	*off = req.off;
	return 0;
}

/* Has it collectives, or copies or memsets of another device's memory? Their shapes are set. */
static bool has_breaks(const struct graph *g)
{
	bool has = graph_has_coll(g);

	for (uint32_t i = 0; i < g->n && !has; i++) {
		has = g->nodes[i]->shape & SHAPE_CROSS;
		for (uint32_t j = 0; j < node_graphs(g->nodes[i]) && !has; j++)
			has = has_breaks(node_graph(g->nodes[i], j));
	}
	return has;
}

/* How many nodes record an event or wait for one; EVENTS_MAX + 1: too many, or there are conditional nodes. */
static uint32_t count_events(const struct graph *g)
{
	uint32_t n = graph_has_cond(g) ? EVENTS_MAX + 1 : 0;

	for (uint32_t i = 0; i < g->n && n <= EVENTS_MAX; i++) {
		const struct node *node = g->nodes[i];

		n += node->w.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ||
		     node->w.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
		for (uint32_t j = 0; j < node_graphs(node) && n <= EVENTS_MAX; j++)
			n += count_events(node_graph(node, j));
	}
	return n > EVENTS_MAX ? EVENTS_MAX + 1 : n;
}

/*
 * Whether the graph is cut at its events: then the proxy sees them, which a launch may record or wait for only when
 * other ranks have posted, or never.
 */
static bool shows_events(const struct graph *g)
{
	uint32_t n = !g->root && process_has_posted() ? count_events(g) : 0;

	return n && n <= EVENTS_MAX;
}

static CUresult describe(struct exec *x, struct desc *d)
{
	struct sv_graph h = { .root = x->g->root };

	*d = (struct desc){ .x = x, .graphs = 1, .broken = has_breaks(x->g) || shows_events(x->g) };
	put_bytes(d, &h, sizeof(h));
	emit_graph(d, x->g, NULL, 0);
	if (!d->error)
		((struct sv_graph *)d->p)->nodes = d->count;
	return d->error;
}

static CUresult exec_new(struct graph *g, struct context *ctx, uint64_t flags, struct exec **out)
{
	struct exec *x = calloc(1, sizeof(*x));

	if (!x)
		return CUDA_ERROR_OUT_OF_MEMORY;
	x->g = graph_clone(g);
	if (x->g)
		x->handle = graph_name(SV_T_CUgraphExec, NULL);	/* hidden until x is complete */
	if (!x->handle) {
		if (x->g)
			graph_delete(x->g);
		free(x);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	x->g->owned = true;
	x->ctx = ctx;
	x->ctx_handle = ctx->o.handle;
	x->session = ctx->session;
	x->flags = flags & ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;	/* done once */
	*out = x;
	return 0;
}

/* Hide an exec from its handle, which stays taken. */
static void forget(struct exec *x)
{
	graph_hide(SV_T_CUgraphExec, x->handle);
	for (struct exec **p = &process.execs.live; *p; p = &(*p)->next)
		if (*p == x) {
			*p = x->next;
			break;
		}
}

/* Each node's context is on one device: then *ctx is one of these, or what it was if there is none. */
static CUresult one_device(const struct graph *g, struct context **ctx)
{
	const struct context *first = NULL;

	for (uint32_t i = 0; i < g->n; i++) {
		struct context *c = obj_find(SV_T_CUcontext, g->nodes[i]->w.ctx);

		if (!c)
			continue;
		if (first && first->session != c->session)
			return sv_unsupported("a graph", "it has nodes on several devices");
		if (!first && c->session != (*ctx)->session)
			*ctx = c;
		first = c;
	}
	for (uint32_t i = 0; i < g->n; i++)
		for (uint32_t j = 0; j < node_graphs(g->nodes[i]); j++) {
			struct context *c = *ctx;

			TRY(one_device(node_graph(g->nodes[i], j), &c));
			if (c->session != (*ctx)->session)
				return sv_unsupported("a graph", "it has graphs on several devices");
		}
	return CUDA_SUCCESS;
}

#define FLAGS (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | \
	       CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

static CUresult instantiate(CUgraphExec *out, CUgraph h, uint64_t flags,
			    CUgraphInstantiateResult *why)
{
	struct context *ctx;
	struct exec *x = NULL;
	struct graph *g;
	struct desc d = { 0 };
	CUresult r;

	*why = CUDA_GRAPH_INSTANTIATE_ERROR;
	TRY(session_check());
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
		*why = CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
		return sv_unsupported("cuGraphInstantiate for launches by the device",
				      "their handles are the driver's own values");
	}
	if (flags & ~(uint64_t)FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(graph_lock());
	sweep();
	g = graph_of(h);
	r = g && !g->capturing && !g->top ? one_device(g, &ctx) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = exec_new(g, ctx, flags, &x);
	graph_unlock(0);
	ON(ctx->session);
	/* Until graph_show() no other thread can find x. */
	if (!r)
		r = prepare(x);
	if (!r) {
		r = describe(x, &d);
		if (r == CUDA_ERROR_INVALID_VALUE)
			*why = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
	}
	flags &= CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
	if (!r)
		r = d.broken ? pieces_new(x, d.p, d.len, d.brk, d.breaks, flags) :
		    exec_send(SV_OP_X_GRAPH, x, x->handle, d.p, d.len, flags, &x->desc);
	if (r && x)
		pieces_end(x);
	free(d.p);
	free(d.brk);
	graph_relock();
	if (r && x) {
		graph_unname(SV_T_CUgraphExec, x->handle);
		exec_free(x);
	} else if (!r) {
		graph_show(SV_T_CUgraphExec, x->handle, x);
		x->next = process.execs.live;
		process.execs.live = x;
		*out = (CUgraphExec)(uintptr_t)x->handle;
		*why = CUDA_GRAPH_INSTANTIATE_SUCCESS;
	}
	graph_unlock(0);
	graph_mem_sweep();
	return r;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
					 unsigned long long flags)
{
	CUgraphInstantiateResult why;

	return instantiate(phGraphExec, hGraph, flags, &why);
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
					  CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	TRY(session_check());
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	p->hErrNode_out = NULL;
	TRY(instantiate(phGraphExec, hGraph, p->flags, &p->result_out));
	if (p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
		return cuGraphUpload(*phGraphExec, p->hUploadStream);
	return 0;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
				   CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
	CUgraphInstantiateResult why;

	if (phErrorNode)
		*phErrorNode = NULL;
	if (logBuffer && bufferSize)
		*logBuffer = 0;
	return instantiate(phGraphExec, hGraph, 0, &why);
}

API CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
				char *logBuffer, size_t bufferSize)
{
	return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

/* -------------------------------------------------------------------- launches, destruction */

static CUresult lock_exec(CUgraphExec h, struct exec **x)
{
	TRY(graph_lock());
	while ((*x = exec_of(h)) && (*x)->busy)
		graph_wait();
	return *x ? 0 : graph_unlock(CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
	struct exec *x;

	TRY(session_check());
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_exec(hGraphExec, &x));
	*flags = x->flags;
	return graph_unlock(0);
}

static CUresult launch(struct exec *x, struct stream *s)
{
	struct sv_graph_launch a = { s->o.ctx->o.handle, s->wire, x->handle, 0, 0 };
	CUresult r;

	r = graph_mem_launch(x->g, x->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	if (!r && x->words) {
		a.word = x->words;
		a.value = ++x->launches;
	}
	graph_unlock(0);
	if (!r)
		r = managedvar_launch(s->o.ctx);
	if (!r)
		r = send_async(SV_OP_cuGraphLaunch, &a, sizeof(a), NULL, 0);
	return r;
}

/* A graph without nodes belongs to the device that was current when it was instantiated. */
static CUresult may_be_elsewhere(const struct exec *x)
{
	return x->g->n ? sv_unsupported("launching a graph", "its nodes are on another device than the stream") :
			 CUDA_SUCCESS;
}

API CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	struct stream *s;
	struct exec *x;

	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	TRY(lock_exec(hGraphExec, &x));
	if (capture_on(s))
		return graph_unlock(capture_graph(s, x->g));
	if (x->session != here)
		return graph_unlock(may_be_elsewhere(x));
	return x->pieces ? pieces_launch(x, s) : launch(x, s);
}

API CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
	struct sv_graph_launch a = { 0 };
	struct stream *s;
	struct exec *x;
	bool elsewhere;

	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	TRY(lock_exec(hGraphExec, &x));
	a.exec = x->handle;
	elsewhere = x->session != here;
	if (!elsewhere && x->pieces && !capture_on(s))
		return pieces_upload(x, s);
	TRY(graph_unlock(elsewhere ? may_be_elsewhere(x) : CUDA_SUCCESS));
	if (capture_on(s))
		return capture_refuse(s);
	if (elsewhere)
		return CUDA_SUCCESS;
	a.ctx = s->o.ctx->o.handle;
	a.stream = s->wire;
	return send_async(SV_OP_cuGraphUpload, &a, sizeof(a), NULL, 0);
}

API CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct sv_graph_end a;
	CUresult r = 0;
	struct exec *x;
	bool pieces;

	TRY(session_check());
	TRY(lock_exec(hGraphExec, &x));
	ON(x->session);
	a.exec = x->handle;
	forget(x);
	x->next = process.execs.gone;
	process.execs.gone = x;
	x->busy = pieces = x->pieces;
	graph_unlock(0);
	if (pieces)
		pieces_end(x);
	else
		r = send_async(SV_OP_cuGraphExecDestroy, &a, sizeof(a), NULL, 0);
	/* The handle may be reused only after the record was sent. */
	graph_relock();
	graph_unname(SV_T_CUgraphExec, a.exec);
	if (pieces)
		x->busy = false;
	sweep();
	graph_unlock(0);
	graph_mem_sweep();
	return r;
}

void graph_context_gone(struct context *ctx)
{
	if (graph_lock())
		return;
	graph_mem_context_gone(ctx);
	for (struct exec **p = &process.execs.live, *x; (x = *p);) {
		if (x->ctx != ctx) {
			p = &x->next;
			continue;
		}
		*p = x->next;
		graph_unname(SV_T_CUgraphExec, x->handle);
		if (x->busy) {		/* sweep() frees it later */
			x->next = process.execs.gone;
			process.execs.gone = x;
		} else {
			exec_free(x);
		}
	}
	for (struct exec *x = process.execs.gone; x; x = x->next)
		if (x->ctx == ctx)
			x->launches = 0;
	sweep();
	graph_unlock(0);
	graph_mem_sweep();
}

/* ---------------------------------------------------------------------------------- updates */

static struct node *find_in(const struct graph *g, uint64_t orig, uint32_t at)
{
	if (at < g->n && g->nodes[at]->orig == orig)
		return g->nodes[at];
	for (uint32_t i = 0; i < g->n; i++)
		if (g->nodes[i]->orig == orig)
			return g->nodes[i];
	for (uint32_t i = 0; i < g->n; i++)
		for (uint32_t j = 0; j < node_graphs(g->nodes[i]); j++) {
			struct node *n = find_in(node_graph(g->nodes[i], j), orig, at);

			if (n)
				return n;
		}
	return NULL;
}

/* The exec's clone of this node, which may have been destroyed since. */
static struct node *exec_node(const struct exec *x, CUgraphNode h)
{
	struct node *n = node_of(h, -1);

	return find_in(x->g, sv_u64(h), n ? n->at : 0);
}

/*
 * Describe a changed node, at the indices that it has. It gets a new call, so that launches in
 * flight keep the old one. A copy keeps its shape, since the graph's nodes stay; a change that
 * would need other calls is refused.
 */
static CUresult describe_change(struct desc *d, struct node *now, struct node *next)
{
	bool from = now->shape & (SHAPE_FROM | SHAPE_CLIENT);
	bool to = now->shape & (SHAPE_TO | SHAPE_CLIENT);

	next->shape = now->shape;
	if (shape_of(next) & ~now->shape)
		return CUDA_ERROR_NOT_SUPPORTED;
	if ((from && !copy_linear_host(&next->w.copy, false)) ||
	    (to && !copy_linear_host(&next->w.copy, true)))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (now->call)
		TRY(graph_call_new(next, now->call->word, &next->call));
	d->next = now->first;
	emit_node(d, next, NULL, 0);
	return d->error;
}

/* Complete a node's change: next's work and call become now's; the old call retires. */
static void change(struct exec *x, struct node *now, struct node *next)
{
	work_free(&now->w);
	now->w = next->w;
	next->w.type = CU_GRAPH_NODE_TYPE_EMPTY;
	now->enabled = next->enabled;
	if (now->call) {
		now->call->stamp = x->launches;
		now->call->next = x->retired;
		x->retired = now->call;
		now->call = next->call;
		next->call = NULL;
	}
	for (struct graph_call **p = &x->retired, *c; (c = *p);) {
		if (c->stamp > done(x)) {
			p = &c->next;
			continue;
		}
		*p = c->next;
		graph_call_later(c);
	}
}

struct pair {
	struct node *now;
	struct node next;
};

struct pairs {
	struct pair *p;
	size_t n, cap;
};

static CUresult pair_add(struct pairs *v, struct node *now, const struct work *w, bool enabled)
{
	struct pair *p;

	if (v->n == v->cap) {
		size_t cap = v->cap ? v->cap * 2 : 8;

		p = realloc(v->p, cap * sizeof(*p));
		if (!p)
			return CUDA_ERROR_OUT_OF_MEMORY;
		v->p = p;
		v->cap = cap;
	}
	p = &v->p[v->n++];
	memset(p, 0, sizeof(*p));
	p->now = now;
	p->next.g = now->g;
	p->next.enabled = enabled;
	return work_copy(&p->next.w, w);
}

/* Pair the nodes of two graphs of the same topology. */
static CUresult pair_graphs(struct pairs *v, const struct graph *now, const struct graph *next)
{
	for (uint32_t i = 0; i < now->n; i++) {
		struct node *a = now->nodes[i], *b = next->nodes[i];

		if (a->w.type == CU_GRAPH_NODE_TYPE_GRAPH)
			TRY(pair_graphs(v, a->w.child, b->w.child));
		else if (a->w.type != CU_GRAPH_NODE_TYPE_EMPTY)
			TRY(pair_add(v, a, &b->w, a->enabled));
	}
	return 0;
}

/* An update has failed in one piece: those before it get what they had. */
static void take_back(struct exec *x, struct pairs *v, bool whole)
{
	struct desc d = { .x = x, .update = true, .broken = true };
	struct sv_graph h = { 0 };

	put_bytes(&d, &h, sizeof(h));
	for (size_t i = 0; i < v->n; i++) {
		d.next = v->p[i].now->first;
		emit_node(&d, v->p[i].now, NULL, 0);
	}
	if (!d.error) {
		((struct sv_graph *)d.p)->nodes = d.count;
		pieces_update(x, d.p, d.len, whole);
	}
	free(d.p);
}

/*
 * Apply all changes or none. off: the pairs are all nodes of the graph (exec_send). Called under
 * the lock, which is dropped while the changes are described and sent.
 */
static CUresult apply(struct exec *x, struct pairs *v, uint64_t *off)
{
	struct desc d = { .x = x, .update = true, .broken = x->pieces };
	struct sv_graph h = { 0 };
	CUresult r = 0;

	x->busy = true;
	graph_unlock(0);
	put_bytes(&d, &h, sizeof(h));
	for (size_t i = 0; i < v->n && !r; i++)
		r = describe_change(&d, v->p[i].now, &v->p[i].next);
	if (!r && v->n) {
		((struct sv_graph *)d.p)->nodes = d.count;
		r = x->pieces ? pieces_update(x, d.p, d.len, off) :
		    exec_send(SV_OP_X_GRAPH_UPDATE, x, x->handle, d.p, d.len, 0, off);
		if (r && x->pieces)
			take_back(x, v, off);
	}
	graph_relock();
	x->busy = false;
	graph_changed();
	for (size_t i = 0; i < v->n; i++) {
		if (!r)
			change(x, v->p[i].now, &v->p[i].next);
		work_free(&v->p[i].next.w);
		if (v->p[i].next.call)
			graph_call_later(v->p[i].next.call);
	}
	free(v->p);
	free(d.p);
	return r;
}

static bool attrs_same(const struct kernel *a, const struct kernel *b)
{
	if (a->attrs != b->attrs)
		return false;
	for (uint32_t i = 0; i < a->attrs; i++) {
		uint32_t j = 0;

		while (j < b->attrs && memcmp(&a->attr[i], &b->attr[j], sizeof(*a->attr)))
			j++;
		if (j == b->attrs)
			return false;
	}
	return true;
}

static CUgraphExecUpdateResult compare_nodes(const struct node *a, const struct node *b)
{
	unsigned int shape;

	if (a->w.type != b->w.type)
		return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
	switch (a->w.type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		if (a->w.ctx != b->w.ctx)
			return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
		return attrs_same(&a->w.k, &b->w.k) ? CU_GRAPH_EXEC_UPDATE_SUCCESS :
		       CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		shape = shape_of(b);
		if (a->w.copy.srcMemoryType != b->w.copy.srcMemoryType ||
		    a->w.copy.dstMemoryType != b->w.copy.dstMemoryType || (shape & ~a->shape))
			return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
		return CU_GRAPH_EXEC_UPDATE_SUCCESS;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return a->w.memops.n == b->w.memops.n ? CU_GRAPH_EXEC_UPDATE_SUCCESS :
		       CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
	default:
		return CU_GRAPH_EXEC_UPDATE_SUCCESS;
	}
}

static CUgraphExecUpdateResult differ(CUgraphExecUpdateResultInfo *info,
				      CUgraphExecUpdateResult what, const struct node *n,
				      const struct node *from)
{
	info->errorNode = n ? (CUgraphNode)(uintptr_t)n->handle : NULL;
	info->errorFromNode = from ? (CUgraphNode)(uintptr_t)from->handle : NULL;
	return info->result = what;
}

/* A node on which b depends and a does not, or not by the same kind of edge. NULL: none. */
static const struct node *other_dep(const struct node *a, const struct node *b)
{
	for (uint32_t i = 0; i < b->in.n; i++) {
		const struct edge *e = &b->in.e[i];
		uint32_t j = 0;

		while (j < a->in.n && (a->in.e[j].n->at != e->n->at ||
				       memcmp(&a->in.e[j].data, &e->data, sizeof(e->data))))
			j++;
		if (j == a->in.n)
			return e->n;
	}
	return NULL;
}

/*
 * Nodes correspond by the order in which they were added, as two captures of the same code have it.
 */
static CUgraphExecUpdateResult compare(const struct graph *a, const struct graph *b,
				       CUgraphExecUpdateResultInfo *info)
{
	CUgraphExecUpdateResult r;

	if (a->n != b->n)
		return differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
	for (uint32_t i = 0; i < a->n; i++) {
		const struct node *x = a->nodes[i], *y = b->nodes[i], *from;

		r = compare_nodes(x, y);
		if (r)
			return differ(info, r, y, NULL);
		if (x->in.n != y->in.n)
			return differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, y, NULL);
		from = other_dep(x, y);
		if (from)
			return differ(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, y, from);
		r = x->w.type == CU_GRAPH_NODE_TYPE_GRAPH ?
		    compare(x->w.child, y->w.child, info) : CU_GRAPH_EXEC_UPDATE_SUCCESS;
		if (r)
			return r;
	}
	return differ(info, CU_GRAPH_EXEC_UPDATE_SUCCESS, NULL, NULL);
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
				  CUgraphExecUpdateResultInfo *resultInfo)
{
	struct pairs v = { 0 };
	struct graph *g;
	struct exec *x;
	CUresult r;

	TRY(session_check());
	if (!resultInfo)
		return CUDA_ERROR_INVALID_VALUE;
	memset(resultInfo, 0, sizeof(*resultInfo));
	resultInfo->result = CU_GRAPH_EXEC_UPDATE_ERROR;
	TRY(lock_exec(hGraphExec, &x));
	ON(x->session);
	g = graph_of(hGraph);
	if (!g)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	if (compare(x->g, g, resultInfo))
		return graph_unlock(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	resultInfo->result = CU_GRAPH_EXEC_UPDATE_ERROR;
	r = pair_graphs(&v, x->g, g);
	if (r)
		for (size_t i = 0; i < v.n; i++)
			work_free(&v.p[i].next.w);
	if (r)
		free(v.p);
	else
		r = apply(x, &v, &x->update);
	if (!r)
		resultInfo->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
	else if (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE)
		r = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	return graph_unlock(r);
}

API CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
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

/* Change the parameters of one node of an executable graph, or of all nodes of a child graph. */
CUresult exec_set(CUgraphExec h, CUgraphNode hNode, const CUgraphNodeParams *p)
{
	CUgraphExecUpdateResultInfo info;
	struct pairs v = { 0 };
	struct work w;
	struct exec *x;
	struct node *n;
	CUresult r;

	TRY(lock_exec(h, &x));
	ON(x->session);
	n = exec_node(x, hNode);
	if (n && n->w.type == NODE_COLL)
		return graph_unlock(node_refused(hNode));
	if (!n || n->w.type != (int)p->type || p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	    p->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	r = work_of_params(p, NULL, &w);
	if (r)
		return graph_unlock(r);
	if (p->type == CU_GRAPH_NODE_TYPE_KERNEL && w.ctx != n->w.ctx)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (p->type == CU_GRAPH_NODE_TYPE_GRAPH)
		r = compare(n->w.child, w.child, &info) ? CUDA_ERROR_INVALID_VALUE :
		    pair_graphs(&v, n->w.child, w.child);
	else if (p->type != CU_GRAPH_NODE_TYPE_EMPTY)
		r = pair_add(&v, n, &w, n->enabled);
	if (!r && p->type == CU_GRAPH_NODE_TYPE_KERNEL)
		r = work_take_attrs(&v.p[0].next.w, &n->w);
	work_free(&w);
	if (!r) {
		r = graph_unlock(apply(x, &v, NULL));
		if (r == CUDA_ERROR_NOT_SUPPORTED)
			sv_unsupported("a change of a copy in an executable graph",
				       "it has other sides than before; instantiate the graph again");
		return r;
	}
	for (size_t i = 0; i < v.n; i++)
		work_free(&v.p[i].next.w);
	free(v.p);
	return graph_unlock(r);
}

API CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
				   unsigned int isEnabled)
{
	struct pairs v = { 0 };
	struct exec *x;
	struct node *n;
	CUresult r;

	TRY(lock_exec(hGraphExec, &x));
	ON(x->session);
	n = exec_node(x, hNode);
	if (n && n->w.type == NODE_COLL)
		return graph_unlock(node_refused(hNode));
	if (!n || (n->w.type != CU_GRAPH_NODE_TYPE_KERNEL &&
		   n->w.type != CU_GRAPH_NODE_TYPE_MEMCPY &&
		   n->w.type != CU_GRAPH_NODE_TYPE_MEMSET))
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	if (n->enabled == !!isEnabled)
		return graph_unlock(0);
	r = pair_add(&v, n, &n->w, isEnabled);
	if (!r)
		return graph_unlock(apply(x, &v, NULL));
	free(v.p);
	return graph_unlock(r);
}

API CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
				   unsigned int *isEnabled)
{
	struct exec *x;
	struct node *n;

	TRY(session_check());
	if (!isEnabled)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(lock_exec(hGraphExec, &x));
	n = exec_node(x, hNode);
	if (n)
		*isEnabled = n->enabled;
	return graph_unlock(n ? 0 : CUDA_ERROR_INVALID_VALUE);
}
