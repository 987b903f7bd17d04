// SPDX-License-Identifier: Apache-2.0
/*
 * graph.c - executable graphs: built from the client's description (graph.h), updated, launched
 *
 *   bytes ── node_read: a node, checked ──► struct item ── handles and ranges made real ──► driver
 *
 * The description is copied before it is read. Bytes that no honest client can have written (sizes,
 * padding, dependencies on later nodes) end the session; a stale handle, or a range that is not the
 * session's, is an error of the call. An update is checked as a whole before the first node is
 * changed.
 */
#include <stdlib.h>

#include "attrs.h"
#include "context.h"
#include "device_memory.h"
#include "graph.h"
#include "graphs.h"
#include "handle.h"
#include "kept.h"
#include "modules.h"
#include "stat_i.h"
#include "streams.h"
#include "transfer.h"

#define BYTES_MAX	(1u << 30)
#define ATTRS_MAX	16

struct gnode {
	uint32_t graph;
	uint16_t type;
	bool disabled;
	CUgraphNode first, last;	/* differ for calls */
};

/*
 * A client's graph with conditional handles. The driver's handles belong to a driver's graph, in
 * which one executable graph at a time is built. Freed when client and exec are done with it.
 */
struct root {
	CUgraph graph;
	CUgraphConditionalHandle *handle;
	uint32_t n;
	bool used, gone;		/* by an exec, or for a new handle; by the client. root_lock */
	bool kept;			/* a handle lacks a default: its value outlives a launch */
};

static struct lock root_lock = LOCK_INIT(PROXY_ROOTS);

struct exec {
	CUgraph graph;			/* its nodes are what updates name */
	CUgraphExec real;
	struct root *root;		/* whose graph it is, or NULL */
	uint32_t n;
	struct gnode node[];
};

/* A node of a description, in private memory. */
struct item {
	struct sv_graph_node h;
	const struct sv_graph_dep *deps;
	const uint8_t *body;
	uint32_t len;
};

struct reader {
	const uint8_t *p;
	uint64_t len, at, root;
	uint32_t nodes;
	void *own;			/* to be freed */
};

/* A node in the driver's terms. */
struct real {
	CUcontext ctx;
	CUDA_KERNEL_NODE_PARAMS kernel;
	void *extra[5];
	size_t bytes;
	const struct sv_launch *launch;
	CUDA_MEMCPY3D copy;
	CUDA_MEMSET_NODE_PARAMS set;
	CUDA_HOST_NODE_PARAMS host;
	CUDA_BATCH_MEM_OP_NODE_PARAMS memops;
	CUstreamBatchMemOpParams op[SV_GRAPH_MEMOPS_MAX];
	CUevent event;
	CUgraphNodeParams cond;
};

/* ------------------------------------------------------------------------------ reading */

/* Copies from the arena; in a replay, from the kept copy. */
static int copy_arena(struct call *k, const struct sv_graph_req *a, void *to)
{
	const void *from = arena_at(k->c.session, a->off);
	uint64_t len = a->len;

	if (k->c.session->replay)
		from = kept_find(k->seq, &len);
	if (!from || len != a->len)
		return -ENOENT;
	memcpy(to, from, len);
	return 0;
}

/* Keeps the description of an executed record, for a restore. */
static void reader_keep(struct call *k, const struct reader *r)
{
	if (r->own && !k->c.session->replay && kept_add(k->seq, r->own, r->len))
		__atomic_store_n(&k->c.session->log_full, true, __ATOMIC_RELAXED);
}

static int reader_open(struct call *k, struct reader *r)
{
	struct sv_session *s = k->c.session;
	const struct sv_graph_req *a = k->c.data;
	const struct sv_graph *h;

	*r = (struct reader){ .len = a->len };
	if (a->len % 8 || a->len < sizeof(*h) || a->len > BYTES_MAX)
		return sv_bad(&k->c, "size of a graph's description");
	if (a->off == SV_GRAPH_INLINE) {
		if (!tail_is(&k->c, sizeof(*a), a->len))
			return sv_bad(&k->c, "size of a record with a graph's description");
		r->p = (const uint8_t *)(a + 1);
	} else {
		if (k->c.len != sizeof(*a) || a->off % 8 || !arena_client(s, a->off, a->len))
			return sv_bad(&k->c, "place of a graph's description");
		r->own = malloc(a->len);
		if (!r->own)
			return CUDA_ERROR_OUT_OF_MEMORY;
		r->p = r->own;
		if (copy_arena(k, a, r->own))
			return sv_bad(&k->c, "a graph's description that was not kept");
	}
	h = (const struct sv_graph *)r->p;
	r->at = sizeof(*h);
	r->nodes = h->nodes;
	r->root = h->root;
	if (h->pad || h->nodes > SV_GRAPH_NODES_MAX ||
	    h->nodes > (r->len - r->at) / sizeof(struct sv_graph_node))
		return sv_bad(&k->c, "number of a graph's nodes");
	return 0;
}

static int deps_check(struct call *k, const struct item *n)
{
	for (uint32_t i = 0; i < n->h.deps; i++) {
		const struct sv_graph_dep *d = &n->deps[i];

		if (d->node >= n->h.index || d->pad || d->to_port || d->from_port > 2 ||
		    d->type > 1)
			return sv_bad(&k->c, "a dependency of a graph's node");
	}
	return 0;
}

static uint32_t body_size(const struct item *n)
{
	const struct sv_launch *l = (const struct sv_launch *)n->body;
	uint64_t len;

	switch (n->h.type) {
	case SV_NODE_EMPTY:
		return 0;
	case SV_NODE_KERNEL:
		if (n->len < sizeof(*l) || l->attrs > ATTRS_MAX)
			return UINT32_MAX;
		len = sizeof(*l) + l->attrs * sizeof(CUlaunchAttribute) +
		      (((uint64_t)l->param_bytes + 7) & ~7ull);
		return len > UINT32_MAX ? UINT32_MAX : len;
	case SV_NODE_COPY:
		return sizeof(struct sv_copy3d);
	case SV_NODE_SET:
		return sizeof(struct sv_graph_set);
	case SV_NODE_CALL:
		return sizeof(struct sv_graph_call);
	case SV_NODE_RECORD:
	case SV_NODE_WAIT:
		return sizeof(struct sv_graph_event);
	case SV_NODE_COND:
		return sizeof(struct sv_graph_if);
	case SV_NODE_MEMOPS:
		return !n->len || n->len % sizeof(struct sv_graph_memop) ||
		       n->len > SV_GRAPH_MEMOPS_MAX * sizeof(struct sv_graph_memop) ? UINT32_MAX :
		       n->len;
	default:
		return UINT32_MAX;
	}
}

static bool may_be_disabled(uint16_t type)
{
	return type == SV_NODE_KERNEL || type == SV_NODE_COPY || type == SV_NODE_SET;
}

/* Reads the next node, checks its size and dependencies. */
static int node_read(struct call *k, struct reader *r, struct item *n)
{
	uint64_t left = r->len - r->at, deps;

	if (left < sizeof(n->h))
		return sv_bad(&k->c, "a graph's description ends early");
	memcpy(&n->h, r->p + r->at, sizeof(n->h));
	deps = (uint64_t)n->h.deps * sizeof(*n->deps);
	if (n->h.size % 8 || n->h.size > left || n->h.size < sizeof(n->h) ||
	    deps > n->h.size - sizeof(n->h))
		return sv_bad(&k->c, "size of a graph's node");
	n->deps = (const struct sv_graph_dep *)(r->p + r->at + sizeof(n->h));
	n->body = (const uint8_t *)n->deps + deps;
	n->len = n->h.size - sizeof(n->h) - deps;
	if (n->len != body_size(n))
		return sv_bad(&k->c, "size or type of a graph's node");
	if (n->h.pad)
		return sv_bad(&k->c, "padding of a graph's node");
	if (n->h.flags & ~(may_be_disabled(n->h.type) ? SV_NODE_DISABLED : 0u))
		return sv_bad(&k->c, "flags of a graph's node");
	r->at += n->h.size;
	return deps_check(k, n);
}

/* ------------------------------------------------------------------------- handles and ranges */

static int attr_check(struct call *k, const CUlaunchAttribute *a)
{
	if (!sv_zero((const uint8_t *)a->pad, sizeof(a->pad)))
		return sv_bad(&k->c, "padding of a graph node's attribute");
	return sv_attr_of(a->id) & SV_ATTR_NODE ? 0 : CUDA_ERROR_NOT_SUPPORTED;
}

static int real_kernel(struct call *k, const struct item *n, struct real *o)
{
	const struct sv_launch *l = (const struct sv_launch *)n->body;
	const CUlaunchAttribute *at = (const CUlaunchAttribute *)(l + 1);
	struct func *func;
	CUfunction f;
	int rc;

	if (l->flags || l->stream || l->ctx != n->h.ctx)
		return sv_bad(&k->c, "a graph's launch");
	for (uint32_t i = 0; i < l->attrs; i++) {
		rc = attr_check(k, &at[i]);
		if (rc)
			return rc;
	}
	rc = func_find(k->c.session, l->function, &f, &func);
	if (rc < 0)
		k->c.why = "function of a graph's launch";
	if (rc)
		return rc;
	if (func && func->known && l->param_bytes < func->param_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	func_seen(k->c.session, l->function, l->ctx);
	o->launch = l;
	o->bytes = l->param_bytes;
	o->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
	o->extra[1] = (void *)(uintptr_t)(at + l->attrs);
	o->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
	o->extra[3] = &o->bytes;
	o->extra[4] = CU_LAUNCH_PARAM_END;
	o->kernel = (CUDA_KERNEL_NODE_PARAMS){
		.gridDimX = l->grid[0], .gridDimY = l->grid[1], .gridDimZ = l->grid[2],
		.blockDimX = l->block[0], .blockDimY = l->block[1], .blockDimZ = l->block[2],
		.sharedMemBytes = l->shared, .extra = o->extra,
	};
	if (sv_is_handle(SV_T_CUkernel, l->function)) {
		o->kernel.kern = (CUkernel)f;
		o->kernel.ctx = o->ctx;
	} else {
		o->kernel.func = f;
	}
	return 0;
}

static int real_copy(struct call *k, const struct item *n, struct real *o)
{
	const struct sv_copy3d *a = (const struct sv_copy3d *)n->body;

	if (a->ctx || a->stream || a->word || a->value)
		return sv_bad(&k->c, "a graph's copy");
	return copy_params(k, a, &o->copy);
}

static int real_set(struct call *k, const struct item *n, struct real *o)
{
	const struct sv_graph_set *a = (const struct sv_graph_set *)n->body;
	uint64_t len;

	if (a->elem != 1 && a->elem != 2 && a->elem != 4)
		return sv_bad(&k->c, "element of a graph's memset");
	len = a->height > 1 ? sv_pitch(a->pitch, a->width, a->height, a->elem) :
			      sv_mul(a->width, a->elem);
	o->set = (CUDA_MEMSET_NODE_PARAMS){ a->dst, a->pitch, a->value, a->elem, a->width,
					    a->height };
	return sv_window(k->c.session, a->dst, len, 1);
}

static void call_due(void *user)
{
	hostfunc_due((uintptr_t)user);
}

static int real_call(struct call *k, const struct item *n, struct real *o)
{
	const struct sv_graph_call *a = (const struct sv_graph_call *)n->body;
	uint64_t word = (uintptr_t)arena_at(k->c.session, a->word);

	if (!a->id || a->word % 8 || !arena_pinned(k->c.session, a->word, 8))
		return sv_bad(&k->c, "id or word of a graph's call");
	o->host = (CUDA_HOST_NODE_PARAMS){ call_due, (void *)(uintptr_t)a->id };
	memset(o->op, 0, 2 * sizeof(*o->op));
	o->op[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
	o->op[0].waitValue.address = word;
	o->op[0].waitValue.value64 = 1;
	o->op[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
	o->op[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
	o->op[1].writeValue.address = word;
	o->memops = (CUDA_BATCH_MEM_OP_NODE_PARAMS){ o->ctx, 2, o->op, 0 };
	return 0;
}

static int real_memop(struct call *k, const struct sv_graph_memop *a, CUstreamBatchMemOpParams *p)
{
	bool wide = false, write = false;

	memset(p, 0, sizeof(*p));
	p->operation = a->op;
	switch (a->op) {
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		write = true;
		/* fallthrough */
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		wide = true;
		p->waitValue.value64 = a->value;
		break;
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		write = true;
		/* fallthrough */
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		p->waitValue.value = a->value;
		break;
	case CU_STREAM_MEM_OP_BARRIER:
		p->memoryBarrier.flags = a->flags;
		return 0;
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		p->flushRemoteWrites.flags = a->flags;
		return 0;
	default:
		return sv_bad(&k->c, "a graph's memory operation");
	}
	p->waitValue.address = a->addr;
	p->waitValue.flags = a->flags;
	if (a->addr % (wide ? 8 : 4))
		return CUDA_ERROR_INVALID_VALUE;
	return sv_window(k->c.session, a->addr, wide ? 8 : 4, write);
}

static int real_memops(struct call *k, const struct item *n, struct real *o)
{
	const struct sv_graph_memop *a = (const struct sv_graph_memop *)n->body;
	uint32_t count = n->len / sizeof(*a);

	for (uint32_t i = 0; i < count; i++) {
		int rc = real_memop(k, &a[i], &o->op[i]);

		if (rc)
			return rc;
	}
	o->memops = (CUDA_BATCH_MEM_OP_NODE_PARAMS){ o->ctx, count, o->op, 0 };
	return 0;
}

static int real_cond(struct call *k, const struct item *n, const struct root *root, struct real *o)
{
	const struct sv_graph_if *a = (const struct sv_graph_if *)n->body;
	uint32_t i = 0;

	while (root && i < root->n && root->handle[i] != a->handle)
		i++;
	if (!root || i == root->n)
		return sv_bad(&k->c, "handle of a conditional node");
	if (!a->size || a->size > SV_GRAPH_BODIES_MAX)
		return sv_bad(&k->c, "bodies of a conditional node");
	memset(&o->cond, 0, sizeof(o->cond));
	o->cond.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
	o->cond.conditional.handle = a->handle;
	o->cond.conditional.type = a->type;
	o->cond.conditional.size = a->size;
	o->cond.conditional.ctx = o->ctx;
	return 0;
}

static int make_real(struct call *k, const struct item *n, const struct root *root, struct real *o)
{
	struct sv_session *s = k->c.session;
	uint64_t v;
	int rc;

	if (n->h.type == SV_NODE_EMPTY)
		return n->h.ctx ? sv_bad(&k->c, "context of an empty node") : 0;
	rc = sv_real(s, SV_T_CUcontext, n->h.ctx, 0, &v);
	o->ctx = (CUcontext)(uintptr_t)v;
	if (rc < 0)
		k->c.why = "context of a graph's node";
	if (rc)
		return rc;
	switch (n->h.type) {
	case SV_NODE_KERNEL:
		return real_kernel(k, n, o);
	case SV_NODE_COPY:
		return real_copy(k, n, o);
	case SV_NODE_SET:
		return real_set(k, n, o);
	case SV_NODE_CALL:
		return real_call(k, n, o);
	case SV_NODE_MEMOPS:
		return real_memops(k, n, o);
	case SV_NODE_COND:
		return real_cond(k, n, root, o);
	default:
		rc = sv_real(s, SV_T_CUevent, ((const struct sv_graph_event *)n->body)->event, 0,
			     &v);
		o->event = (CUevent)(uintptr_t)v;
		if (rc < 0)
			k->c.why = "event of a graph's node";
		return rc;
	}
}

/* ------------------------------------------------------------------------------ building */

#define NEEDS(s, f) do { \
	if (!(s)->hal.drv.f) \
		return CUDA_ERROR_NOT_SUPPORTED; \
} while (0)

static CUresult add_kernel(struct sv_session *s, CUgraph g, const CUgraphNode *deps, size_t ndeps,
			   const struct real *o, CUgraphNode *out)
{
	const CUlaunchAttribute *at = (const CUlaunchAttribute *)(o->launch + 1);
	CUresult r;

	NEEDS(s, cuGraphAddKernelNode_v2);
	r = s->hal.drv.cuGraphAddKernelNode_v2(out, g, deps, ndeps, &o->kernel);
	for (uint32_t i = 0; i < o->launch->attrs && !r; i++) {
		NEEDS(s, cuGraphKernelNodeSetAttribute);
		r = s->hal.drv.cuGraphKernelNodeSetAttribute(*out, at[i].id, &at[i].value);
	}
	return r;
}

static CUresult add_call(struct sv_session *s, CUgraph g, const CUgraphNode *deps, size_t ndeps,
			 const struct real *o, struct gnode *out)
{
	CUresult r;

	NEEDS(s, cuGraphAddHostNode);
	NEEDS(s, cuGraphAddBatchMemOpNode);
	r = s->hal.drv.cuGraphAddHostNode(&out->first, g, deps, ndeps, &o->host);
	if (!r)
		r = s->hal.drv.cuGraphAddBatchMemOpNode(&out->last, g, &out->first, 1, &o->memops);
	return r;
}

static CUresult add_cond(struct sv_session *s, CUgraph g, const CUgraphNode *deps, size_t ndeps,
			 struct real *o, CUgraphNode *out)
{
	if (s->hal.drv.cuGraphAddNode_v2)
		return s->hal.drv.cuGraphAddNode_v2(out, g, deps, NULL, ndeps, &o->cond);
	NEEDS(s, cuGraphAddNode);
	return s->hal.drv.cuGraphAddNode(out, g, deps, ndeps, &o->cond);
}

static CUresult add_node(struct sv_session *s, CUgraph g, const CUgraphNode *deps, size_t ndeps,
			 struct real *o, struct gnode *out)
{
	CUgraphNode *n = &out->first;
	CUresult r;

	switch (out->type) {
	case SV_NODE_KERNEL:
		r = add_kernel(s, g, deps, ndeps, o, n);
		break;
	case SV_NODE_COPY:
		NEEDS(s, cuGraphAddMemcpyNode);
		r = s->hal.drv.cuGraphAddMemcpyNode(n, g, deps, ndeps, &o->copy, o->ctx);
		break;
	case SV_NODE_SET:
		NEEDS(s, cuGraphAddMemsetNode);
		r = s->hal.drv.cuGraphAddMemsetNode(n, g, deps, ndeps, &o->set, o->ctx);
		break;
	case SV_NODE_CALL:
		return add_call(s, g, deps, ndeps, o, out);
	case SV_NODE_RECORD:
		NEEDS(s, cuGraphAddEventRecordNode);
		r = s->hal.drv.cuGraphAddEventRecordNode(n, g, deps, ndeps, o->event);
		break;
	case SV_NODE_WAIT:
		NEEDS(s, cuGraphAddEventWaitNode);
		r = s->hal.drv.cuGraphAddEventWaitNode(n, g, deps, ndeps, o->event);
		break;
	case SV_NODE_MEMOPS:
		NEEDS(s, cuGraphAddBatchMemOpNode);
		r = s->hal.drv.cuGraphAddBatchMemOpNode(n, g, deps, ndeps, &o->memops);
		break;
	case SV_NODE_COND:
		r = add_cond(s, g, deps, ndeps, o, n);
		break;
	default:
		NEEDS(s, cuGraphAddEmptyNode);
		r = s->hal.drv.cuGraphAddEmptyNode(n, g, deps, ndeps);
	}
	out->last = *n;
	return r;
}

/* Adds dependencies with edge data; a driver without edge data gets plain dependencies. */
static CUresult add_edges(struct sv_session *s, struct exec *x, CUgraph g, const struct item *n,
			  const struct gnode *to)
{
	CUresult r = 0;

	for (uint32_t i = 0; i < n->h.deps && !r; i++) {
		const struct sv_graph_dep *d = &n->deps[i];
		CUgraphEdgeData data = { .from_port = d->from_port, .type = d->type };

		if (!d->from_port && !d->type)
			continue;
		r = s->hal.drv.cuGraphAddDependencies_v2(g, &x->node[d->node].last,
							 &to->first, &data, 1);
	}
	return r;
}

/* The graphs of a description: the outermost, then the bodies of its conditional nodes. */
struct graphs {
	CUgraph *g;
	uint32_t n;
};

static int add_bodies(struct graphs *v, const struct real *o)
{
	const CUDA_CONDITIONAL_NODE_PARAMS *p = &o->cond.conditional;
	CUgraph *g = realloc(v->g, (v->n + p->size) * sizeof(*g));

	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	v->g = g;
	memcpy(g + v->n, p->phGraph_out, p->size * sizeof(*g));
	v->n += p->size;
	return 0;
}

static int same_graph(struct call *k, const struct exec *x, const struct item *n,
		      const struct graphs *v)
{
	if (n->h.graph >= v->n)
		return sv_bad(&k->c, "graph of a graph's node");
	for (uint32_t i = 0; i < n->h.deps; i++)
		if (x->node[n->deps[i].node].graph != n->h.graph)
			return sv_bad(&k->c, "a dependency on another graph");
	return 0;
}

static int build_node(struct call *k, struct exec *x, const struct item *n, struct graphs *v,
		      struct real *o)
{
	struct sv_session *s = k->c.session;
	struct gnode *g = &x->node[n->h.index];
	CUgraphNode *deps;
	bool edges = s->hal.drv.cuGraphAddDependencies_v2;
	size_t m = 0;
	int rc = same_graph(k, x, n, v);

	if (!rc)
		rc = make_real(k, n, x->root, o);
	if (rc)
		return rc;
	deps = malloc((n->h.deps + 1ul) * sizeof(*deps));
	if (!deps)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < n->h.deps; i++)
		if (!edges || (!n->deps[i].from_port && !n->deps[i].type))
			deps[m++] = x->node[n->deps[i].node].last;
	g->type = n->h.type;
	g->graph = n->h.graph;
	g->disabled = n->h.flags & SV_NODE_DISABLED;
	rc = add_node(s, v->g[n->h.graph], deps, m, o, g);
	free(deps);
	if (!rc && edges)
		rc = add_edges(s, x, v->g[n->h.graph], n, g);
	return rc || g->type != SV_NODE_COND ? rc : add_bodies(v, o);
}

static int build(struct call *k, struct reader *r, struct exec *x)
{
	struct real *o = malloc(sizeof(*o));
	struct graphs v = { malloc(sizeof(*v.g)), 1 };
	struct item n;
	int rc = o && v.g ? 0 : CUDA_ERROR_OUT_OF_MEMORY;

	if (v.g)
		v.g[0] = x->graph;
	for (uint32_t i = 0; i < x->n && !rc; i++) {
		rc = node_read(k, r, &n);
		if (!rc && n.h.index != i)
			rc = sv_bad(&k->c, "order of a graph's nodes");
		if (!rc)
			rc = build_node(k, x, &n, &v, o);
	}
	free(o);
	free(v.g);
	if (!rc && r->at != r->len)
		rc = sv_bad(&k->c, "something follows a graph's nodes");
	return rc;
}

static void root_free(struct sv_session *s, struct root *r)
{
	if (!r)
		return;
	s->hal.drv.cuGraphDestroy(r->graph);
	free(r->handle);
	free(r);
}

/* Begins a use of the graph. false: an exec, or whoever makes a new handle, uses it. root_lock */
static bool root_use(struct root *r)
{
	bool mine = !r->used;

	assert_held(&root_lock);
	r->used = true;
	return mine;
}

/* Ends it, and the graph, if the client has forgotten that meanwhile. */
static void root_done(struct sv_session *s, struct root *r)
{
	struct root *unneeded;

	lock_take(&root_lock);
	r->used = false;
	unneeded = r->gone ? r : NULL;
	lock_drop(&root_lock);
	root_free(s, unneeded);
}

/* Takes the client's graph that has conditional handles, unless an exec uses it. */
static int root_take(struct call *k, uint64_t handle, struct root **out)
{
	struct root *r;

	if (!sv_is_handle(SV_T_CUgraph, handle))
		return sv_bad(&k->c, "handle of a graph with conditional nodes");
	lock_take(&root_lock);
	r = handle_obj(k->c.session, SV_T_CUgraph, handle);
	if (r && root_use(r))
		*out = r;
	lock_drop(&root_lock);
	return !r ? CUDA_ERROR_INVALID_HANDLE : *out ? 0 : CUDA_ERROR_NOT_SUPPORTED;
}

static void exec_free(struct sv_session *s, struct exec *x)
{
	struct cuda_driver *d = &s->hal.drv;

	if (x->real && d->cuGraphExecDestroy)
		d->cuGraphExecDestroy(x->real);
	if (x->root) {
		/* Empty the graph for the next exec. Bodies are destroyed with their nodes. */
		for (uint32_t i = 0; i < x->n && d->cuGraphDestroyNode; i++) {
			if (x->node[i].first && !x->node[i].graph)
				d->cuGraphDestroyNode(x->node[i].first);
			if (x->node[i].last != x->node[i].first && !x->node[i].graph)
				d->cuGraphDestroyNode(x->node[i].last);
		}
		root_done(s, x->root);
	} else if (x->graph && d->cuGraphDestroy) {
		d->cuGraphDestroy(x->graph);
	}
	free(x);
}

static int instantiate(struct call *k, struct reader *r, struct exec *x)
{
	const struct sv_graph_req *a = k->c.data;
	struct sv_session *s = k->c.session;
	int rc;

	NEEDS(s, cuGraphCreate);
	NEEDS(s, cuGraphInstantiateWithFlags);
	if (r->root) {
		rc = root_take(k, r->root, &x->root);
		if (!rc)
			x->graph = x->root->graph;
	} else {
		rc = s->hal.drv.cuGraphCreate(&x->graph, 0);
	}
	if (!rc)
		rc = build(k, r, x);
	if (!rc)
		rc = s->hal.drv.cuGraphInstantiateWithFlags(&x->real, x->graph, a->flags);
	for (uint32_t i = 0; i < x->n && !rc; i++) {
		if (!x->node[i].disabled)
			continue;
		NEEDS(s, cuGraphNodeSetEnabled);
		rc = s->hal.drv.cuGraphNodeSetEnabled(x->real, x->node[i].first, 0);
	}
	return rc;
}

/* Runs on a worker, since kernels may have to be compiled. */
int do_graph(struct call *k)
{
	const struct sv_graph_req *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct reader r;
	struct exec *x = NULL;
	int rc;

	if (a->flags & ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)
		return sv_bad(&k->c, "flags of a graph");
	rc = reader_open(k, &r);
	if (!rc) {
		rc = sv_enter(s, a->ctx);
		if (rc < 0)
			k->c.why = "context of a graph";
	}
	if (!rc) {
		rc = sv_reserve(s, SV_T_CUgraphExec, a->exec);
		if (rc < 0)
			k->c.why = "handle of a graph";
	}
	if (rc)
		goto out;
	x = calloc(1, sizeof(*x) + r.nodes * sizeof(*x->node));
	if (x) {
		x->n = r.nodes;
		rc = instantiate(k, &r, x);
	} else {
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!rc && handle_bind(s, SV_T_CUgraphExec, a->exec, (uintptr_t)x->real, x, a->ctx))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (rc) {
		sv_unreserve(s, SV_T_CUgraphExec, a->exec);
		if (x)
			exec_free(s, x);
	} else {
		reader_keep(k, &r);
	}
out:
	free(r.own);
	return rc < 0 ? rc : fails(k, rc);
}

/* ------------------------------------------------------------------------------ updates */

static int exec_find(struct call *k, uint64_t handle, struct exec **x)
{
	uint64_t real;
	int rc = sv_real(k->c.session, SV_T_CUgraphExec, handle, 0, &real);

	if (rc < 0)
		k->c.why = "handle of an executable graph";
	if (rc)
		return rc;
	*x = handle_obj(k->c.session, SV_T_CUgraphExec, handle);
	return *x ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult change(struct sv_session *s, struct exec *x, const struct gnode *g,
		       const struct real *o)
{
	struct cuda_driver *d = &s->hal.drv;
	CUresult r;

	switch (g->type) {
	case SV_NODE_KERNEL:
		NEEDS(s, cuGraphExecKernelNodeSetParams_v2);
		return d->cuGraphExecKernelNodeSetParams_v2(x->real, g->first, &o->kernel);
	case SV_NODE_COPY:
		NEEDS(s, cuGraphExecMemcpyNodeSetParams);
		return d->cuGraphExecMemcpyNodeSetParams(x->real, g->first, &o->copy, o->ctx);
	case SV_NODE_SET:
		NEEDS(s, cuGraphExecMemsetNodeSetParams);
		return d->cuGraphExecMemsetNodeSetParams(x->real, g->first, &o->set, o->ctx);
	case SV_NODE_CALL:
		NEEDS(s, cuGraphExecHostNodeSetParams);
		NEEDS(s, cuGraphExecBatchMemOpNodeSetParams);
		r = d->cuGraphExecHostNodeSetParams(x->real, g->first, &o->host);
		return r ? r : d->cuGraphExecBatchMemOpNodeSetParams(x->real, g->last, &o->memops);
	case SV_NODE_RECORD:
		NEEDS(s, cuGraphExecEventRecordNodeSetEvent);
		return d->cuGraphExecEventRecordNodeSetEvent(x->real, g->first, o->event);
	case SV_NODE_WAIT:
		NEEDS(s, cuGraphExecEventWaitNodeSetEvent);
		return d->cuGraphExecEventWaitNodeSetEvent(x->real, g->first, o->event);
	case SV_NODE_MEMOPS:
		NEEDS(s, cuGraphExecBatchMemOpNodeSetParams);
		return d->cuGraphExecBatchMemOpNodeSetParams(x->real, g->first, &o->memops);
	default:
		return CUDA_SUCCESS;
	}
}

static CUresult enable(struct sv_session *s, struct exec *x, struct gnode *g, bool disabled)
{
	CUresult r;

	if (g->disabled == disabled)
		return CUDA_SUCCESS;
	NEEDS(s, cuGraphNodeSetEnabled);
	r = s->hal.drv.cuGraphNodeSetEnabled(x->real, g->first, !disabled);
	if (!r)
		g->disabled = disabled;
	return r;
}

/* Checks all nodes of the description, or (apply) changes them. */
static int update(struct call *k, struct reader r, struct exec *x, struct real *o, bool apply)
{
	struct sv_session *s = k->c.session;
	struct item n;
	int rc = 0;

	for (uint32_t i = 0; i < r.nodes && !rc; i++) {
		rc = node_read(k, &r, &n);
		if (!rc && (n.h.deps || n.h.graph || n.h.type == SV_NODE_COND ||
			    n.h.index >= x->n || x->node[n.h.index].type != n.h.type))
			rc = sv_bad(&k->c, "a graph's update is of other nodes");
		if (!rc)
			rc = make_real(k, &n, NULL, o);
		if (!rc && apply)
			rc = change(s, x, &x->node[n.h.index], o);
		if (!rc && apply)
			rc = enable(s, x, &x->node[n.h.index], n.h.flags & SV_NODE_DISABLED);
	}
	if (!rc && r.at != r.len)
		rc = sv_bad(&k->c, "something follows a graph's update");
	return rc;
}

int do_graph_update(struct call *k)
{
	const struct sv_graph_req *a = k->c.data;
	struct real *o = NULL;
	struct exec *x = NULL;
	struct reader r;
	int rc;

	if (a->flags & ~SV_GRAPH_SURE)
		return sv_bad(&k->c, "flags of a graph's update");
	rc = reader_open(k, &r);
	if (!rc && r.root)
		rc = sv_bad(&k->c, "root of a graph's update");
	if (!rc) {
		rc = sv_enter(k->c.session, a->ctx);
		if (rc < 0)
			k->c.why = "context of a graph's update";
	}
	if (!rc)
		rc = exec_find(k, a->exec, &x);
	if (!rc) {
		o = malloc(sizeof(*o));
		rc = o ? update(k, r, x, o, false) : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!rc)
		rc = update(k, r, x, o, true);
	if (!rc)
		reader_keep(k, &r);
	free(o);
	free(r.own);
	return rc < 0 ? rc : fails(k, rc);
}

/* ------------------------------------------------------------------------------ conditions */

/* The driver's graph of a client's graph; made with its first conditional handle. */
static int root_make(struct call *k, uint64_t handle, struct root **out)
{
	struct sv_session *s = k->c.session;
	struct root *r;
	int rc;

	*out = handle_obj(s, SV_T_CUgraph, handle);
	if (*out)
		return 0;
	NEEDS(s, cuGraphCreate);
	NEEDS(s, cuGraphDestroy);
	rc = sv_reserve(s, SV_T_CUgraph, handle);
	if (rc)
		return rc < 0 ? sv_bad(&k->c, "handle of a graph") : rc;
	r = calloc(1, sizeof(*r));
	rc = r ? (int)s->hal.drv.cuGraphCreate(&r->graph, 0) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc && handle_bind(s, SV_T_CUgraph, handle, (uintptr_t)r->graph, r, 0)) {
		s->hal.drv.cuGraphDestroy(r->graph);
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (rc) {
		sv_unreserve(s, SV_T_CUgraph, handle);
		free(r);
		return rc;
	}
	*out = r;
	return 0;
}

/* Only this thread uses the root. */
static int cond_add(struct call *k, const struct sv_graph_cond *a, struct root *r)
{
	struct sv_session *s = k->c.session;
	CUgraphConditionalHandle *p = realloc(r->handle, (r->n + 1) * sizeof(*p));
	int rc;

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->handle = p;
	wanted_next(s, a->graph, r->n);
	rc = s->hal.drv.cuGraphConditionalHandleCreate(&p[r->n], r->graph, context_here()->real,
						       a->value, a->flags);
	if (rc)
		return rc;
	r->kept |= !(a->flags & CU_GRAPH_COND_ASSIGN_DEFAULT);
	memcpy(k->c.reply, &p[r->n++], sizeof(*p));
	k->c.reply_len = sizeof(*p);
	return 0;
}

static int cond_make(struct call *k, const struct sv_graph_cond *a)
{
	struct sv_session *s = k->c.session;
	struct root *r;
	bool mine;
	int rc;

	rc = sv_enter(s, a->ctx);
	if (rc)
		return rc < 0 ? sv_bad(&k->c, "context of a conditional handle") : rc;
	NEEDS(s, cuGraphConditionalHandleCreate);
	rc = root_make(k, a->graph, &r);
	if (rc)
		return rc;
	lock_take(&root_lock);
	mine = root_use(r);	/* else a worker may be reading its handles */
	lock_drop(&root_lock);
	if (!mine)
		return CUDA_ERROR_NOT_SUPPORTED;
	rc = cond_add(k, a, r);
	root_done(s, r);
	return rc;
}

struct walk {
	condition_visit fn;
	void *arg;
};

static void walk_root(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	const struct walk *w = arg;
	const struct root *r = obj;

	(void)real;
	for (unsigned int i = 0; r && i < r->n; i++)
		w->fn(w->arg, handle, i, r->handle[i], r->kept);
}

void graph_conditions(struct sv_session *s, condition_visit fn, void *arg)
{
	handle_walk(s, SV_T_CUgraph, walk_root, &(struct walk){ fn, arg });
}

int do_graph_cond(struct call *k)
{
	int rc = cond_make(k, k->c.data);

	return rc < 0 ? rc : fails(k, rc);
}

int do_graph_forget(struct call *k)
{
	const struct sv_graph_forget *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct root *r, *unneeded = NULL;

	if (!sv_is_handle(SV_T_CUgraph, a->graph))
		return sv_bad(&k->c, "handle of a graph");
	lock_take(&root_lock);
	r = handle_obj(s, SV_T_CUgraph, a->graph);
	if (r) {
		sv_unbind(s, SV_T_CUgraph, a->graph);
		r->gone = true;
		unneeded = r->used ? NULL : r;
	}
	lock_drop(&root_lock);
	root_free(s, unneeded);
	return fails(k, r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

/* ------------------------------------------------------------------------------ launches */

static int launch(struct call *k, const struct sv_graph_launch *a, bool upload, bool *stored)
{
	struct sv_session *s = k->c.session;
	struct exec *x;
	uint64_t stream;
	CUresult w;
	int rc;

	rc = sv_enter(s, a->ctx);
	if (rc < 0)
		k->c.why = "context of a graph's launch";
	if (!rc) {
		rc = sv_real(s, SV_T_CUstream, a->stream, 0, &stream);
		if (rc < 0)
			k->c.why = "stream of a graph's launch";
	}
	if (!rc)
		rc = exec_find(k, a->exec, &x);
	if (rc)
		return rc;
	if (upload) {
		NEEDS(s, cuGraphUpload);
		return s->hal.drv.cuGraphUpload(x->real, (CUstream)(uintptr_t)stream);
	}
	NEEDS(s, cuGraphLaunch);
	stat_add(&s->stat->launches, 1);
	rc = s->hal.drv.cuGraphLaunch(x->real, (CUstream)(uintptr_t)stream);
	w = a->word ? s->hal.drv.cuStreamWriteValue64_v2((CUstream)(uintptr_t)stream,
			(uintptr_t)arena_at(s, a->word), a->value, 0) : CUDA_SUCCESS;
	*stored = !w;
	return rc ? rc : (int)w;
}

int do_graph_launch(struct call *k)
{
	const struct sv_graph_launch *a = k->c.data;
	struct sv_session *s = k->c.session;
	bool stored = false;
	int rc;

	if (a->word && (a->word % 8 || !arena_pinned(s, a->word, 8)))
		return sv_bad(&k->c, "the word to store behind a graph");
	rc = launch(k, a, false, &stored);
	/* The client waits for the word, whatever became of the launch. */
	if (rc >= 0 && a->word && !stored)
		__atomic_store_n((uint64_t *)arena_at(s, a->word), a->value, __ATOMIC_RELEASE);
	return rc < 0 ? rc : fails(k, rc);
}

int do_graph_upload(struct call *k)
{
	const struct sv_graph_launch *a = k->c.data;
	bool stored;
	int rc;

	if (a->word || a->value)
		return sv_bad(&k->c, "an upload with a word");
	rc = launch(k, a, true, &stored);
	return rc < 0 ? rc : fails(k, rc);
}

int do_graph_destroy(struct call *k)
{
	const struct sv_graph_end *a = k->c.data;
	struct exec *x;
	int rc = exec_find(k, a->exec, &x);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	sv_unbind(k->c.session, SV_T_CUgraphExec, a->exec);
	exec_free(k->c.session, x);
	return fails(k, CUDA_SUCCESS);
}
