/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - stream capture: streams that join, work that becomes nodes, its end; captured.c forbids calls meanwhile
 *
 *   none ── cuStreamBeginCapture ─► active ── cuStreamEndCapture ─► none, and a graph
 *                │ wait for an event of the capture: another stream joins
 *                └── a call that is forbidden ─► invalid ── cuStreamEndCapture ─► none, and 901
 *
 * A captured stream has a tail: the nodes that its next work depends on. An event recorded on the
 * stream gets a copy of the tail. Tails name nodes by handle, so nodes may be destroyed.
 * Everything is under graph_lock().
 */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "cross.h"
#include "cuda_hooks.h"
#include "graph_i.h"
#include "hostfunc.h"
#include "object.h"
#include "send.h"
#include "transfer.h"

static uint64_t ids;

/* ------------------------------------------------------------------------------------ tails */

static bool tail_add(struct tail *t, CUgraphNode n, const CUgraphEdgeData *data)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->dep[i] == n)
			return true;
	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 4;
		void *d = realloc(t->dep, cap * sizeof(*t->dep)), *e;

		if (!d)
			return false;
		t->dep = d;
		e = realloc(t->edge, cap * sizeof(*t->edge));
		if (!e)
			return false;
		t->edge = e;
		t->cap = cap;
	}
	t->dep[t->n] = n;
	t->edge[t->n++] = data ? *data : (CUgraphEdgeData){ 0 };
	return true;
}

static struct tail *tail_copy(const struct tail *from)
{
	struct tail *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->capture = from->capture;
	for (size_t i = 0; i < from->n; i++)
		if (!tail_add(t, from->dep[i], &from->edge[i])) {
			capture_tail_free(t);
			return NULL;
		}
	return t;
}

/* ---------------------------------------------------------------------------------- streams */

static bool join(struct capture *c, struct stream *s)
{
	struct tail *t = calloc(1, sizeof(*t));

	if (t && c->n == c->cap) {
		size_t cap = c->cap ? c->cap * 2 : 4;
		struct stream **p = realloc(c->stream, cap * sizeof(*p));

		if (!p) {
			free(t);
			return false;
		}
		c->stream = p;
		c->cap = cap;
	}
	if (!t)
		return false;
	t->capture = c->id;
	c->stream[c->n++] = s;
	s->capture_tail = t;
	s->capture = c;
	return true;
}

static void leave(struct stream *s)
{
	struct capture *c = s->capture;

	for (size_t i = 0; i < c->n; i++)
		if (c->stream[i] == s) {
			c->stream[i] = c->stream[--c->n];
			break;
		}
	capture_tail_free(s->capture_tail);
	s->capture_tail = NULL;
	s->capture = NULL;
}

/* End a capture in all its streams, and free it; the graph is left to the caller. */
static void capture_end(struct capture *c)
{
	struct capture **p;

	while (c->n)
		leave(c->stream[0]);
	for (p = &captures; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	if (c->g)
		c->g->capturing = false;
	__atomic_sub_fetch(&capture_live, 1, __ATOMIC_RELAXED);
	free(c->stream);
	free(c);
}

void capture_graph_gone(const struct graph *g)
{
	for (struct capture *c = captures; c; c = c->next)
		if (c->g == g) {
			c->g = NULL;
			c->invalid = true;
		}
}

void graph_stream_gone(struct stream *s)
{
	struct capture *c;

	if (!s->capture || graph_lock())
		return;
	c = s->capture;
	if (!c) {
		graph_unlock(0);
		return;
	}
	if (c->origin == s) {
		struct graph *g = c->foreign ? NULL : c->g;

		capture_end(c);
		if (g)
			graph_delete(g);
	} else {
		leave(s);	/* work not joined is an error at the end */
	}
	graph_unlock(0);
}

/* ------------------------------------------------------------------------------- work, nodes */

/* The nodes of a tail that still exist, and the edges from them; *deps NULL: out of memory. */
static size_t tail_nodes(const struct capture *c, const struct tail *t, struct node ***deps,
			 CUgraphEdgeData **edge)
{
	struct node **d = calloc(t->n + 1, sizeof(*d));
	CUgraphEdgeData *e = calloc(t->n + 1, sizeof(*e));
	size_t k = 0;

	if (!d || !e) {
		free(d);
		free(e);
		d = NULL;
		e = NULL;
	}
	for (size_t i = 0; d && i < t->n; i++) {
		d[k] = node_of(t->dep[i], -1);
		e[k] = t->edge[i];
		k += d[k] && d[k]->g == c->g;
	}
	*deps = d;
	*edge = e;
	return k;
}

/* Add work behind the stream's tail; takes over what w points to. */
static CUresult record(struct stream *s, struct work *w)
{
	struct tail *t = s->capture_tail;
	struct capture *c = s->capture;
	struct node **deps, *n = NULL;
	CUgraphEdgeData *edge;
	CUresult r;
	size_t k;

	if (!c || c->invalid) {
		work_free(w);
		return c ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : capture_of_legacy(s->o.ctx, true);
	}
	k = tail_nodes(c, t, &deps, &edge);
	if (deps) {
		r = node_add(c->g, w, deps, edge, k, &n);
	} else {
		work_free(w);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	free(deps);
	free(edge);
	if (!r) {
		n->capture = c->id;
		t->n = 0;
		if (!tail_add(t, (CUgraphNode)(uintptr_t)n->handle, NULL))
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->invalid |= r;
	return r;
}

static CUresult refused(struct stream *s, CUresult r)
{
	if (r && s->capture)
		s->capture->invalid = true;
	return r;
}

static CUresult work_copy1(const struct sv_copy *a, struct work *w)
{
	CUDA_MEMCPY3D c = { .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = a->src,
			    .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = a->dst,
			    .WidthInBytes = a->len, .Height = 1, .Depth = 1 };

	return work_memcpy(&c, a->ctx, w);
}

static CUresult work_copy3(const struct sv_copy3d *a, struct work *w)
{
	const struct sv_copy3d_side *d = &a->dst, *s = &a->src;
	CUDA_MEMCPY3D c = {
		.srcXInBytes = s->x, .srcY = s->y, .srcZ = s->z,
		.srcMemoryType = s->array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
		.srcDevice = s->addr, .srcArray = (CUarray)(uintptr_t)s->array,
		.srcPitch = s->pitch, .srcHeight = s->height,
		.dstXInBytes = d->x, .dstY = d->y, .dstZ = d->z,
		.dstMemoryType = d->array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
		.dstDevice = d->addr, .dstArray = (CUarray)(uintptr_t)d->array,
		.dstPitch = d->pitch, .dstHeight = d->height,
		.WidthInBytes = a->width, .Height = a->height, .Depth = a->depth,
	};

	return work_memcpy(&c, a->ctx, w);
}

static void work_set(struct work *w, uint64_t ctx, uint64_t dst, uint64_t pitch, uint64_t width,
		     uint64_t height, uint32_t elem, uint32_t value)
{
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_MEMSET, .ctx = ctx,
			    .set = { dst, pitch, value, elem, width, height, NULL } };
}

static CUresult work_memop(unsigned int op, uint64_t ctx, uint64_t addr, uint64_t value,
			   unsigned int flags, struct work *w)
{
	CUstreamBatchMemOpParams p;

	memset(&p, 0, sizeof(p));
	p.waitValue.operation = op;
	p.waitValue.address = addr;
	p.waitValue.value64 = value;
	p.waitValue.flags = flags;
	return work_memops(1, &p, ctx, w);
}

#define SET(_name, _elem, _value) do {						\
	const struct sv_##_name *r_ = a;					\
	work_set(w, r_->ctx, r_->dstDevice, r_->N * (_elem), r_->N, 1, _elem,	\
		 r_->_value);							\
	return r_->N ? 0 : -1;							\
} while (0)
#define SET2(_name, _elem, _value) do {						\
	const struct sv_##_name *r_ = a;					\
	work_set(w, r_->ctx, r_->dstDevice, r_->dstPitch, r_->Width, r_->Height,\
		 _elem, r_->_value);						\
	return r_->Width && r_->Height ? 0 : -1;				\
} while (0)
#define MEMOP(_name, _op) do {							\
	const struct sv_##_name *r_ = a;					\
	return work_memop(_op, r_->ctx, r_->addr, r_->value, r_->flags, w);	\
} while (0)

static int work_host(const struct hostfunc_args *h, uint64_t ctx, struct work *w)
{
	*w = (struct work){ .type = CU_GRAPH_NODE_TYPE_HOST, .ctx = ctx,
			    .host = { h->fn, h->arg } };
	return 0;
}

/* Convert a record to a node's work: 0, -1 the record does nothing, or a CUresult. */
static int work_of_record(struct stream *s, uint16_t op, const void *a, uint32_t alen,
			  const void *b, uint32_t blen, struct work *w)
{
	(void)alen;
	switch (op) {
	case SV_OP_cuLaunchKernel:
		return work_launch(a, b, blen, w);
	case SV_OP_cuMemcpyAsync:
		return ((const struct sv_copy *)a)->len ? (int)work_copy1(a, w) : -1;
	case SV_OP_cuMemcpy3DAsync_v2:
		return work_copy3(a, w);
	case SV_OP_cuMemsetD8Async:
		SET(cuMemsetD8Async, 1, uc);
	case SV_OP_cuMemsetD16Async:
		SET(cuMemsetD16Async, 2, us);
	case SV_OP_cuMemsetD32Async:
		SET(cuMemsetD32Async, 4, ui);
	case SV_OP_cuMemsetD2D8Async:
		SET2(cuMemsetD2D8Async, 1, uc);
	case SV_OP_cuMemsetD2D16Async:
		SET2(cuMemsetD2D16Async, 2, us);
	case SV_OP_cuMemsetD2D32Async:
		SET2(cuMemsetD2D32Async, 4, ui);
	case SV_OP_cuStreamWaitValue32_v2:
		MEMOP(cuStreamWaitValue32_v2, CU_STREAM_MEM_OP_WAIT_VALUE_32);
	case SV_OP_cuStreamWaitValue64_v2:
		MEMOP(cuStreamWaitValue64_v2, CU_STREAM_MEM_OP_WAIT_VALUE_64);
	case SV_OP_cuStreamWriteValue32_v2:
		MEMOP(cuStreamWriteValue32_v2, CU_STREAM_MEM_OP_WRITE_VALUE_32);
	case SV_OP_cuStreamWriteValue64_v2:
		MEMOP(cuStreamWriteValue64_v2, CU_STREAM_MEM_OP_WRITE_VALUE_64);
	case SV_OP_cuLaunchHostFunc:
		return work_host(a, s->o.ctx->o.handle, w);
	default:
		client_log("record %u cannot be captured", op);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
}

/* Events that a launch triggers early: they get the tail behind the launch, which is later. */
static void launch_events(struct stream *s, const struct sv_launch *l, const CUlaunchAttribute *at)
{
	for (uint32_t i = 0; i < l->attrs; i++) {
		struct event *e = NULL;

		if (at[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
			e = obj_find(SV_T_CUevent, sv_u64(at[i].value.programmaticEvent.event));
		else if (at[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
			e = obj_find(SV_T_CUevent, sv_u64(at[i].value.launchCompletionEvent.event));
		if (!e)
			continue;
		capture_event_gone(e);
		e->capture_tail = tail_copy(s->capture_tail);
		e->capture = e->capture_tail;
	}
}

CUresult graph_record(struct stream *s, uint16_t op, const void *a, uint32_t alen, const void *b,
			uint32_t blen)
{
	struct work w = { .type = CU_GRAPH_NODE_TYPE_EMPTY };
	CUresult r;
	int rc;

	TRY(graph_lock());
	r = s->capture ? capture_state(s) : capture_of_legacy(s->o.ctx, true);
	if (r || !s->capture)
		return graph_unlock(r);
	rc = work_of_record(s, op, a, alen, b, blen, &w);
	if (rc < 0)
		return graph_unlock(0);
	r = rc ? refused(s, rc) : record(s, &w);
	if (!r && op == SV_OP_cuLaunchKernel)
		launch_events(s, a, b);
	return graph_unlock(r);
}

CUresult graph_memops(struct stream *s, unsigned int n, const CUstreamBatchMemOpParams *ops)
{
	struct work w;
	CUresult r;

	TRY(graph_lock());
	r = work_memops(n, ops, s->o.ctx->o.handle, &w);
	return graph_unlock(r ? refused(s, r) : record(s, &w));
}

CUresult capture_coll(struct stream *s, const struct core_comm *comm, const struct sv_coll *head,
		      const struct sv_coll_call *calls)
{
	static uint64_t seq;		/* under the lock */
	struct work w = { .type = NODE_COLL, .ctx = s->o.ctx->o.handle };

	w.coll = (struct coll){ .comm = comm, .number = head->comm, .n = head->calls };
	TRY(graph_lock());
	if (s->capture && s->capture->g && s->capture->g->top) {
		s->capture->invalid = true;
		client_log("a collective operation in a conditional node's body is not supported: it "
			   "would start on one rank alone");
		return graph_unlock(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	w.coll.seq = ++seq;
	w.coll.call = malloc(head->calls * sizeof(*calls));
	if (!w.coll.call)
		return graph_unlock(refused(s, CUDA_ERROR_OUT_OF_MEMORY));
	memcpy(w.coll.call, calls, head->calls * sizeof(*calls));
	return graph_unlock(record(s, &w));
}

static CUresult alloc_here(struct stream *s, size_t len, struct graph_spare *spare,
			   struct graph_mem **out)
{
	struct spot at = { .g = s->capture->g, .spare = spare };
	CUgraphEdgeData *edge;
	CUresult r;

	at.ndeps = tail_nodes(s->capture, s->capture_tail, &at.deps, &edge);
	r = at.deps ? graph_mem_new(len, &at, out) : CUDA_ERROR_OUT_OF_MEMORY;
	free(at.deps);
	free(edge);
	return r;
}

CUresult graph_alloc(struct stream *s, size_t len, CUdeviceptr *out)
{
	struct work w = { .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .ctx = s->o.ctx->o.handle };
	CUDA_MEM_ALLOC_NODE_PARAMS_v2 *p = &w.alloc.p;
	struct graph_spare spare = { 0 };
	uint64_t addr;
	CUresult r;

	TRY(graph_lock());
	p->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	p->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p->poolProps.location.id = device_of(here);
	p->bytesize = len;
	for (;;) {
		r = s->capture ? capture_state(s) : capture_of_legacy(s->o.ctx, true);
		if (!r)
			r = s->capture ? alloc_here(s, len, &spare, &w.alloc.m) :
					 CUDA_ERROR_ILLEGAL_STATE;
		if (r != SEND_AGAIN)
			break;
		graph_unlock(0);
		graph_spare_get(&spare);
		graph_relock();
	}
	if (!refused(s, r)) {
		addr = p->dptr = w.alloc.m->addr;
		r = record(s, &w);
		if (!r)
			*out = addr;
	}
	graph_unlock(r);
	graph_spare_put(&spare);
	if (r)
		graph_mem_sweep();
	return r;
}

CUresult graph_free(struct stream *s, CUdeviceptr addr)
{
	struct work w = { .type = CU_GRAPH_NODE_TYPE_MEM_FREE, .ctx = s->o.ctx->o.handle,
			  .free = addr };

	TRY(graph_lock());
	if (!graph_mem_at(addr))
		return graph_unlock(refused(s, CUDA_ERROR_INVALID_VALUE));
	return graph_unlock(record(s, &w));
}

CUresult capture_graph(struct stream *s, const struct graph *g)
{
	struct work w = { .type = CU_GRAPH_NODE_TYPE_GRAPH };

	if (!s->capture || capture_state(s))
		return s->capture ? capture_state(s) : capture_of_legacy(s->o.ctx, true);
	if (graph_has_memory(g) || g->root)
		return refused(s, CUDA_ERROR_NOT_SUPPORTED);
	w.child = graph_clone(g);
	if (!w.child)
		return refused(s, CUDA_ERROR_OUT_OF_MEMORY);
	w.child->owned = true;
	return record(s, &w);
}

/* ----------------------------------------------------------------------------------- events */

/* Record an event on a captured stream, or on the legacy stream. */
static CUresult record_event(struct stream *s, struct event *e, CUevent h, unsigned int flags)
{
	struct work w = { .type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .ctx = s->o.ctx->o.handle,
			  .event = h };
	struct tail *t;

	if (!s->capture || capture_state(s))
		return s->capture ? capture_state(s) : capture_of_legacy(s->o.ctx, true);
	if (flags & CU_EVENT_RECORD_EXTERNAL) {
		e->elsewhere = true;
		return record(s, &w);
	}
	t = tail_copy(s->capture_tail);
	if (!t)
		return refused(s, CUDA_ERROR_OUT_OF_MEMORY);
	capture_event_gone(e);
	e->capture_tail = t;
	e->capture = (struct capture *)t;	/* not NULL: recorded in a capture */
	return 0;
}

static CUresult wait_event(struct stream *s, struct event *e, CUevent h, unsigned int flags)
{
	struct work w = { .type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .ctx = s->o.ctx->o.handle,
			  .event = h };
	const struct tail *t = e->capture_tail;
	struct capture *c = t ? capture_find(t->capture) : NULL;

	TRY(capture_state(s));
	if (s->capture && (flags & CU_EVENT_WAIT_EXTERNAL))
		return record(s, &w);
	if (!t)
		return e->recorded ? refused(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : 0;
	if (!c)
		return refused(s, CUDA_ERROR_CAPTURED_EVENT);
	if (c->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (s->capture && s->capture != c) {
		s->capture->invalid = c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!s->capture && s->wire == SV_STREAM_LEGACY) {
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (!s->capture && !join(c, s))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < t->n; i++)
		if (!tail_add(s->capture_tail, t->dep[i], &t->edge[i]))
			return refused(s, CUDA_ERROR_OUT_OF_MEMORY);
	return 0;
}

static CUresult hook_stream(CUstream h, int per_thread, struct stream **s)
{
	int before = sv_per_thread(per_thread);
	CUresult r = stream_find(h, s);

	sv_per_thread(before);
	return r;
}

/* An interprocess event is made as a plain one, and shared later, by ipc_event.c. */
CUresult sv_hook_cuEventCreate(CUevent *phEvent, unsigned int Flags, int per_thread, int *done)
{
	const unsigned int shared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	struct event *e;

	(void)per_thread;
	*done = 1;
	if (Flags & ~(shared | CU_EVENT_BLOCKING_SYNC))
		return CUDA_ERROR_INVALID_VALUE;
	if (Flags & CU_EVENT_INTERPROCESS) {
		if ((Flags & shared) != shared)
			return CUDA_ERROR_INVALID_VALUE;
		TRY(cuEventCreate(phEvent, Flags & ~CU_EVENT_INTERPROCESS));
		e = obj_find(SV_T_CUevent, sv_u64(*phEvent));
		if (e)
			e->flags = CU_EVENT_INTERPROCESS;
		return CUDA_SUCCESS;
	}
	*done = 0;
	return 0;
}

#define WHOLE_CONTEXT "an event of several processes is recorded in one stream, and waited for by one"
#define IN_GRAPHS "an event of several processes is not recorded or waited for by graphs"

CUresult sv_hook_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags,
					int per_thread, int *done)
{
	struct event *e = obj_find(SV_T_CUevent, sv_u64(hEvent));
	struct stream *s;

	if (unlikely(!e))
		return 0;	/* the stub returns the error */
	if (unlikely(flags & ~CU_EVENT_RECORD_EXTERNAL)) {
		*done = 1;
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (unlikely(__atomic_load_n(&context_count, __ATOMIC_RELAXED) > 1)) {
		*done = 1;
		TRY(hook_stream(hStream, per_thread, &s));
		if (s->o.ctx != e->o.ctx)
			return CUDA_ERROR_INVALID_HANDLE;
		*done = 0;
	}
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED) && !e->capture_tail && !flags &&
		   !e->peers)) {
		event_begins(e, &thread);
		return 0;
	}
	*done = 1;
	TRY(hook_stream(hStream, per_thread, &s));
	if (capture_on(s)) {
		if (flags && e->peers)
			return sv_unsupported("cuEventRecordWithFlags", IN_GRAPHS);
		TRY(graph_lock());
		return graph_unlock(record_event(s, e, hEvent, flags));
	}
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;	/* only for captures */
	*done = e->peers;
	TRY(graph_lock());
	capture_event_gone(e);
	event_begins(e, &thread);
	TRY(graph_unlock(0));
	return e->peers ? ipc_record(s, e) : CUDA_SUCCESS;
}

CUresult sv_hook_cuEventRecord(CUevent hEvent, CUstream hStream, int per_thread, int *done)
{
	return sv_hook_cuEventRecordWithFlags(hEvent, hStream, 0, per_thread, done);
}

CUresult sv_hook_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags,
				   int per_thread, int *done)
{
	struct event *e = obj_find(SV_T_CUevent, sv_u64(hEvent));
	struct stream *s;

	if (unlikely(!e))
		return 0;
	if (unlikely(Flags & ~CU_EVENT_WAIT_EXTERNAL)) {
		*done = 1;
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED) && !e->capture_tail &&
		   !e->peers && !__atomic_load_n(&process.several, __ATOMIC_RELAXED)))
		return 0;
	*done = 1;
	TRY(hook_stream(hStream, per_thread, &s));
	if (e->o.ctx->session != s->o.ctx->session) {
		if (e->peers || e->capture_tail || capture_on(s))
			return sv_unsupported("cuStreamWaitEvent", "another device's event in a graph, "
					      "or one of other processes");
		return cross_wait(s, e);
	}
	if (!e->capture_tail && !capture_on(s)) {
		*done = e->peers;
		return e->peers ? ipc_wait(s, e) : CUDA_SUCCESS;
	}
	if (!e->capture_tail && e->peers)
		return sv_unsupported("cuStreamWaitEvent", IN_GRAPHS);
	TRY(graph_lock());
	if (!e->capture_tail && !s->capture)
		return graph_unlock(capture_of_legacy(s->o.ctx, true));
	return graph_unlock(wait_event(s, e, hEvent, Flags));
}

/* A call that concerns all streams of a context invalidates their captures. Under the lock. */
static CUresult all_streams(const struct context *ctx)
{
	CUresult r = 0;

	assert_held(&process.locks.graphs);
	for (struct capture *c = captures; c; c = c->next)
		for (size_t i = 0; i < c->n; i++)
			if (c->stream[i]->o.ctx == ctx) {
				c->invalid = true;
				r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
			}
	return r;
}

CUresult sv_hook_cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent, int per_thread, int *done)
{
	struct context *ctx = obj_find(SV_T_CUcontext, sv_u64(hCtx));
	struct event *e = obj_find(SV_T_CUevent, sv_u64(hEvent));
	CUresult r;

	(void)per_thread;
	*done = 1;
	TRY(session_check());
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!e || e->o.ctx != ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (e->peers)
		return sv_unsupported("cuCtxRecordEvent", WHOLE_CONTEXT);
	if (!ctx->live)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	TRY(graph_lock());
	r = all_streams(ctx);
	if (!r) {
		capture_event_gone(e);
		event_begins(e, NULL);
		*done = 0;
	}
	return graph_unlock(r);
}

CUresult sv_hook_cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent, int per_thread, int *done)
{
	struct context *ctx = obj_find(SV_T_CUcontext, sv_u64(hCtx));
	struct event *e = obj_find(SV_T_CUevent, sv_u64(hEvent));
	struct capture *c;
	CUresult r;

	(void)per_thread;
	*done = 1;
	TRY(session_check());
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (e->peers)
		return sv_unsupported("cuCtxWaitEvent", WHOLE_CONTEXT);
	if (!ctx->live)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	TRY(graph_lock());
	r = all_streams(ctx);
	c = e->capture_tail ? capture_find(((struct tail *)e->capture_tail)->capture) : NULL;
	if (c) {
		c->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	*done = r;
	return graph_unlock(r);
}

/* ----------------------------------------------------------------------------------- calls */

static CUresult begin_capture(struct stream *s, struct graph *g, const CUgraphNode *deps,
			      const CUgraphEdgeData *data, size_t ndeps, CUstreamCaptureMode mode)
{
	struct capture *c;
	bool foreign = g;

	if (s->wire == SV_STREAM_LEGACY)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	c = calloc(1, sizeof(*c));
	if (c && !g)
		g = graph_new();
	if (!c || !g) {
		free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*c = (struct capture){ .id = ++ids, .g = g, .foreign = foreign, .mode = mode,
			       .thread = capture_thread(), .origin = s, .next = captures };
	captures = c;
	g->capturing = true;
	__atomic_add_fetch(&capture_live, 1, __ATOMIC_RELAXED);
	if (!join(c, s))
		goto nomem;
	for (size_t i = 0; i < ndeps; i++)
		if (!tail_add(s->capture_tail, deps[i], data ? &data[i] : NULL))
			goto nomem;
	return 0;
nomem:
	capture_end(c);
	if (!foreign)
		graph_delete(g);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool bad_mode(CUstreamCaptureMode mode)
{
	return (unsigned int)mode > CU_STREAM_CAPTURE_MODE_RELAXED;
}

API CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	struct stream *s;

	TRY(session_check());
	if (bad_mode(mode))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	TRY(graph_lock());
	return graph_unlock(begin_capture(s, NULL, NULL, NULL, 0, mode));
}

API CUresult cuStreamBeginCapture(CUstream hStream)
{
	return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* Whether all of these are nodes of g. */
static bool nodes_in(const struct graph *g, const CUgraphNode *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct node *m = node_of(v[i], -1);

		if (!m || m->g != g)
			return false;
	}
	return true;
}

API CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
					 const CUgraphNode *dependencies,
					 const CUgraphEdgeData *dependencyData,
					 size_t numDependencies, CUstreamCaptureMode mode)
{
	struct graph *g;
	struct stream *s;

	TRY(session_check());
	if (bad_mode(mode) || (numDependencies && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	TRY(graph_lock());
	g = graph_of(hGraph);
	if (!g || g->capturing || !nodes_in(g, dependencies, numDependencies))
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	return graph_unlock(
		begin_capture(s, g, dependencies, dependencyData, numDependencies, mode));
}

/* Whether all streams have joined the origin: each captured leaf must be in the origin's tail. */
static bool joined(const struct capture *c)
{
	const struct tail *t = c->origin->capture_tail;

	for (uint32_t i = 0; i < c->g->n; i++) {
		const struct node *n = c->g->nodes[i];
		bool found = n->capture != c->id || n->out.n;

		for (size_t j = 0; j < t->n && !found; j++)
			found = sv_u64(t->dep[j]) == n->handle;
		if (!found)
			return false;
	}
	return true;
}

static CUresult end_capture(struct stream *s, CUgraph *out)
{
	struct capture *c = s->capture;
	struct graph *g;
	bool foreign;
	CUresult r = 0;

	if (!c)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (c->origin != s) {
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != capture_thread())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (c->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!joined(c))
		r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	g = c->g;
	foreign = c->foreign;
	capture_end(c);
	if (!r && out)
		*out = (CUgraph)(uintptr_t)g->handle;
	else if (!foreign)
		graph_delete(g);	/* the program has no handle of it */
	return r;
}

API CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	struct stream *s;
	CUresult r;

	TRY(session_check());
	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	if (phGraph)
		*phGraph = NULL;
	TRY(graph_lock());
	r = graph_unlock(end_capture(s, phGraph));
	if (r)
		graph_mem_sweep();
	return r;
}

static CUstreamCaptureStatus status_of(const struct stream *s)
{
	return !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE :
	       s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
	       CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Queries of the legacy stream fail while a stream that it waits for is captured. */
static CUresult asked_legacy(const struct stream *s)
{
	return s->wire == SV_STREAM_LEGACY ? capture_of_legacy(s->o.ctx, false) : 0;
}

API CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	struct stream *s;
	CUresult r;

	TRY(session_check());
	if (!captureStatus)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED))) {
		*captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
		return 0;
	}
	TRY(graph_lock());
	r = asked_legacy(s);
	if (!r)
		*captureStatus = status_of(s);
	return graph_unlock(r);
}

static bool has_edge_data(const struct tail *t)
{
	static const CUgraphEdgeData none;

	for (size_t i = 0; i < t->n; i++)
		if (memcmp(&t->edge[i], &none, sizeof(none)))
			return true;
	return false;
}

static CUresult capture_info(struct stream *s, CUstreamCaptureStatus *status, cuuint64_t *id,
			     CUgraph *graph, const CUgraphNode **deps,
			     const CUgraphEdgeData **edges, size_t *n)
{
	const struct tail *t = s->capture_tail;

	TRY(asked_legacy(s));
	*status = status_of(s);
	if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return 0;
	if (deps && !edges && has_edge_data(t))
		return CUDA_ERROR_LOSSY_QUERY;
	if (id)
		*id = s->capture->id;
	if (graph)
		*graph = (CUgraph)(uintptr_t)s->capture->g->handle;
	if (deps)
		*deps = t->dep;
	if (edges)
		*edges = t->edge;
	if (n)
		*n = t->n;
	return 0;
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				       cuuint64_t *id_out, CUgraph *graph_out,
				       const CUgraphNode **dependencies_out,
				       const CUgraphEdgeData **edgeData_out,
				       size_t *numDependencies_out)
{
	struct stream *s;

	TRY(session_check());
	if (!captureStatus_out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED))) {
		*captureStatus_out = CU_STREAM_CAPTURE_STATUS_NONE;
		return 0;
	}
	TRY(graph_lock());
	return graph_unlock(capture_info(s, captureStatus_out, id_out, graph_out,
					 dependencies_out, edgeData_out, numDependencies_out));
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				       cuuint64_t *id_out, CUgraph *graph_out,
				       const CUgraphNode **dependencies_out,
				       size_t *numDependencies_out)
{
	return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out,
					 dependencies_out, NULL, numDependencies_out);
}

API CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				    cuuint64_t *id_out)
{
	return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, NULL, NULL, NULL,
					 NULL);
}

/* Empty a tail; its nodes need not be joined any more. */
static void let_go(const struct capture *c, struct tail *t)
{
	for (size_t i = 0; i < t->n; i++) {
		struct node *n = node_of(t->dep[i], -1);

		if (n && n->g == c->g)
			n->capture = 0;
	}
	t->n = 0;
}

static CUresult update_tail(struct stream *s, const CUgraphNode *deps, const CUgraphEdgeData *data,
			    size_t n, bool set)
{
	struct capture *c = s->capture;
	struct tail *t = s->capture_tail;

	if (!c)
		return CUDA_ERROR_ILLEGAL_STATE;
	TRY(capture_state(s));
	if (!nodes_in(c->g, deps, n))
		return CUDA_ERROR_INVALID_VALUE;
	if (set)
		let_go(c, t);
	for (size_t i = 0; i < n; i++) {
		struct node *m = node_of(deps[i], -1);

		if (!tail_add(t, deps[i], data ? &data[i] : NULL))
			return refused(s, CUDA_ERROR_OUT_OF_MEMORY);
		if (m->capture == 0 && set)
			m->capture = c->id;
	}
	return 0;
}

API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
						  const CUgraphEdgeData *dependencyData,
						  size_t numDependencies, unsigned int flags)
{
	struct stream *s;

	TRY(session_check());
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (numDependencies && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(hStream, &s));
	ON(s->o.ctx->session);
	TRY(graph_lock());
	return graph_unlock(update_tail(s, dependencies, dependencyData, numDependencies, flags));
}

API CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
					       size_t numDependencies, unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, NULL, numDependencies,
						    flags);
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	int old = thread.capture_mode;

	TRY(session_check());
	if (!mode || bad_mode(*mode))
		return CUDA_ERROR_INVALID_VALUE;
	thread.capture_mode = *mode;
	*mode = old;
	return 0;
}
