/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - stream capture: streams that join, calls that it forbids, its end
 *
 * A capturing stream has a capture and the nodes that its next work will depend on. An error
 * invalidates the capture: every call on its streams fails until the origin stream ends it.
 */
#include "graph_i.h"

#include <stdlib.h>
#include <string.h>

struct capture {
	uint64_t id;
	struct graph *g;
	bool foreign;			/* the graph is the caller's */
	CUstreamCaptureMode mode;
	struct stream *origin;
	struct tls *thread;		/* where it began */
	unsigned int *thread_count;
	bool invalid;
	struct capture *next;
};

static struct capture *captures;

static bool has_edges(const struct stream *st)
{
	return st->cap_edges != NULL;
}

static int set_deps(struct stream *st, struct node **deps, size_t n)
{
	struct node **p = malloc((n + 1) * sizeof(*p));

	if (!p)
		return -1;
	if (n)
		memcpy(p, deps, n * sizeof(*p));
	free(st->cap_deps);
	if (has_edges(st)) {
		free(st->cap_edges);
		st->cap_edges = NULL;
	}
	st->cap_deps = p;
	st->ncap_deps = n;
	return 0;
}

static int add_dep(struct stream *st, struct node *n)
{
	struct node **p;

	for (size_t i = 0; i < st->ncap_deps; i++)
		if (st->cap_deps[i] == n)
			return 0;
	p = realloc(st->cap_deps, (st->ncap_deps + 1) * sizeof(*p));
	if (!p)
		return -1;
	st->cap_deps = p;
	st->cap_deps[st->ncap_deps++] = n;
	return 0;
}

static void leave(struct stream *st)
{
	free(st->cap_deps);
	free(st->cap_edges);
	st->cap_deps = NULL;
	st->cap_edges = NULL;
	st->ncap_deps = 0;
	st->cap = NULL;
	st->cap_origin = false;
}

/* All streams leave; the graph stays with the caller. */
static void capture_end(struct capture *c)
{
	struct capture **p;

	for (struct ctx *ctx = contexts; ctx; ctx = ctx->next)
		for (struct stream *st = ctx->streams; st; st = st->next)
			if (st->cap == c)
				leave(st);
	for (p = &captures; *p && *p != c; p = &(*p)->next)
		;
	if (*p)
		*p = c->next;
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread == &tls)
		tls.captures--;
	free(c);
}

void capture_abandon(struct stream *st)
{
	struct capture *c = st->cap;

	if (!st->cap_origin) {
		leave(st);	/* at its end the capture finds work that was not joined */
		return;
	}
	if (!c->foreign)
		graph_put_ref(c->g);
	capture_end(c);
}

/* 901 when invalidated. */
static CUresult capture_state(struct stream *st)
{
	return st->cap && st->cap->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult capture_forbids(void)
{
	CUresult r = CUDA_SUCCESS;

	if (!captures || tls.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct capture *c = captures; c; c = c->next) {
		bool mine = c->thread == &tls && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		bool all = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
			   tls.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

		if (mine || all) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return r;
}

/* A query or synchronisation of a capturing stream invalidates the capture, in any mode. */
CUresult capture_asked(struct stream *st)
{
	capture_forbids();
	st->cap->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult soft_capture_legacy(struct ctx *ctx)
{
	CUresult r = CUDA_SUCCESS;

	if (!captures)
		return CUDA_SUCCESS;
	for (struct stream *st = ctx->streams; st; st = st->next)
		if (st->cap && !(st->flags & CU_STREAM_NON_BLOCKING)) {
			st->cap->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	return r;
}

/* A call on all streams of a context invalidates their captures. */
CUresult capture_context(struct ctx *ctx)
{
	CUresult r = CUDA_SUCCESS;

	for (struct stream *st = ctx->streams; st && captures; st = st->next)
		if (st->cap) {
			st->cap->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return r;
}

/* A context cannot wait for an event of a running capture. */
CUresult capture_event_live(struct event *ev)
{
	for (struct capture *c = captures; c && ev->cap_id; c = c->next)
		if (c->id == ev->cap_id) {
			c->invalid = true;
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return CUDA_SUCCESS;
}

/* Work submitted to a capturing stream. */
CUresult capture_submit(struct stream *st, struct desc *d)
{
	struct node *n;
	CUresult r = capture_state(st);

	if (!r && d->kind == D_FREE) {
		struct mem *m = mem_find(d->free.va);

		if (!m || m->kind != MEM_GRAPH || m->va != d->free.va) {
			st->cap->invalid = true;
			r = CUDA_ERROR_INVALID_VALUE;
		}
	}
	if (r) {
		desc_free(d);
		return r;
	}
	r = soft_node_add(st->cap->g, d, st->cap_deps, st->cap_edges, st->ncap_deps, &n);
	if (!r) {
		n->ctx = st->ctx;
		n->capture = st->cap->id;
		r = set_deps(st, &n, 1) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	}
	if (r)
		st->cap->invalid = true;
	return r;
}

CUresult soft_capture_record(struct stream *st, struct event *ev)
{
	struct node **deps;
	CUresult r = capture_state(st);

	if (r)
		return r;
	deps = malloc((st->ncap_deps + 1) * sizeof(*deps));
	if (!deps)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(deps, st->cap_deps, st->ncap_deps * sizeof(*deps));
	event_clear_capture(ev);
	op_put(ev->rec);
	ev->rec = NULL;
	ev->cap_id = st->cap->id;
	ev->cap_deps = deps;
	ev->ncap_deps = st->ncap_deps;
	return CUDA_SUCCESS;
}

static struct capture *capture_by_id(uint64_t id)
{
	struct capture *c;

	for (c = captures; c && c->id != id; c = c->next)
		;
	return c;
}

/* cuStreamWaitEvent where the stream captures, or the event was last recorded in a capture. */
CUresult capture_wait(struct stream *st, struct event *ev)
{
	struct capture *c = ev->cap_id ? capture_by_id(ev->cap_id) : NULL;
	CUresult r = capture_state(st);

	if (r)
		return r;
	if (!ev->cap_id) {
		if (!ev->rec)
			return CUDA_SUCCESS;	/* never recorded */
		st->cap->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (!c) {
		if (st->cap)
			st->cap->invalid = true;
		return CUDA_ERROR_CAPTURED_EVENT;
	}
	if (c->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (st->cap && st->cap != c) {
		st->cap->invalid = c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!st->cap) {
		if (st->legacy) {
			c->invalid = true;
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
		if (set_deps(st, NULL, 0))
			return CUDA_ERROR_OUT_OF_MEMORY;
		st->cap = c;
	}
	for (size_t i = 0; i < ev->ncap_deps; i++)
		if (add_dep(st, ev->cap_deps[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------------- calls */

static CUresult begin_capture(struct stream *st, struct graph *g, bool foreign, struct node **deps,
			      size_t ndeps, CUstreamCaptureMode mode)
{
	struct capture *c;

	if ((int)mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (st->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (st->cap)
		return CUDA_ERROR_ILLEGAL_STATE;
	c = calloc(1, sizeof(*c));
	if (c && !g)
		g = soft_graph_new();
	if (!c || !g || set_deps(st, deps, ndeps)) {
		free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->id = next_id();
	c->g = g;
	c->foreign = foreign;
	c->mode = mode;
	c->origin = st;
	c->thread = &tls;
	c->next = captures;
	captures = c;
	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		tls.captures++;
	st->cap = c;
	st->cap_origin = true;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);

	return r ?: api_unlock(begin_capture(st, NULL, false, NULL, 0, mode));
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
	return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
				     const CUgraphNode *dependencies,
				     const CUgraphEdgeData *dependencyData, size_t numDependencies,
				     CUstreamCaptureMode mode)
{
	struct graph *g = (struct graph *)hGraph;
	struct stream *st;
	struct node *n;
	CUresult r = api_lock_stream(hStream, &st);

	(void)dependencyData;
	if (r)
		return r;
	if (!obj_live(g, OBJ_GRAPH) || (numDependencies && !dependencies))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < numDependencies; i++)
		if (node_get(dependencies[i], -1, &n) || n->g != g)
			return api_unlock(CUDA_ERROR_INVALID_VALUE);
	return api_unlock(
		begin_capture(st, g, true, (struct node **)dependencies, numDependencies, mode));
}

/* Whether all streams were joined: the origin's next work would depend on every captured leaf. */
static bool joined(struct capture *c)
{
	struct stream *st = c->origin;

	for (size_t i = 0; i < c->g->n; i++) {
		struct node *n = c->g->nodes[i];
		bool found = n->capture != c->id || n->out.n;

		for (size_t j = 0; j < st->ncap_deps && !found; j++)
			found = st->cap_deps[j] == n;
		if (!found)
			return false;
	}
	return true;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	struct capture *c;
	struct stream *st;
	CUresult r;

	r = api_lock_stream(hStream, &st);
	if (r)
		return r;
	if (phGraph)
		*phGraph = NULL;
	c = st->cap;
	if (!c)
		return api_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (c->origin != st) {
		c->invalid = true;
		return api_unlock(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	}
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != &tls)
		return api_unlock(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	if (c->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!joined(c))
		r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (!r && phGraph)
		*phGraph = (CUgraph)c->g;
	else if (!c->foreign)
		graph_put_ref(c->g);
	capture_end(c);
	return api_unlock(r);
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	struct stream *st;
	CUresult r;

	if (!captureStatus)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_stream(hStream, &st);
	if (r)
		return r;
	if (st->legacy)
		r = soft_capture_legacy(st->ctx);
	*captureStatus = !st->cap ? CU_STREAM_CAPTURE_STATUS_NONE :
			 st->cap->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
					    CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return api_unlock(r);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				   cuuint64_t *id_out, CUgraph *graph_out,
				   const CUgraphNode **dependencies_out,
				   const CUgraphEdgeData **edgeData_out,
				   size_t *numDependencies_out)
{
	struct stream *st;
	CUresult r;

	if (!captureStatus_out)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_stream(hStream, &st);
	if (r)
		return r;
	if (st->legacy) {
		for (struct stream *s = st->ctx->streams; s; s = s->next)
			if (s->cap && !(s->flags & CU_STREAM_NON_BLOCKING))
				return api_unlock(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	}
	*captureStatus_out = !st->cap ? CU_STREAM_CAPTURE_STATUS_NONE :
			     st->cap->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
						CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (*captureStatus_out != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return api_unlock(CUDA_SUCCESS);
	if (id_out)
		*id_out = st->cap->id;
	if (graph_out)
		*graph_out = (CUgraph)st->cap->g;
	if (dependencies_out)
		*dependencies_out = (const CUgraphNode *)st->cap_deps;
	if (edgeData_out) {
		if (!st->cap_edges)
			st->cap_edges = calloc(st->ncap_deps + 1, sizeof(*st->cap_edges));
		*edgeData_out = st->cap_edges;
	}
	if (numDependencies_out)
		*numDependencies_out = st->ncap_deps;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				   cuuint64_t *id_out, CUgraph *graph_out,
				   const CUgraphNode **dependencies_out,
				   size_t *numDependencies_out)
{
	return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out,
					 dependencies_out, NULL, numDependencies_out);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				cuuint64_t *id_out)
{
	return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, NULL, NULL, NULL,
					 NULL);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
					      const CUgraphEdgeData *dependencyData,
					      size_t numDependencies, unsigned int flags)
{
	struct stream *st;
	struct node *n;
	CUresult r = api_lock_stream(hStream, &st);

	(void)dependencyData;
	if (r)
		return r;
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (numDependencies && !dependencies))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (!st->cap)
		return api_unlock(CUDA_ERROR_ILLEGAL_STATE);
	r = capture_state(st);
	for (size_t i = 0; i < numDependencies && !r; i++)
		if (node_get(dependencies[i], -1, &n) || n->g != st->cap->g)
			r = CUDA_ERROR_INVALID_VALUE;
	if (!r && flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES &&
	    set_deps(st, (struct node **)dependencies, numDependencies))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < numDependencies && !r && !flags; i++)
		if (add_dep(st, (struct node *)dependencies[i]))
			r = CUDA_ERROR_OUT_OF_MEMORY;
	/* joined() does not look at nodes that the program added itself */
	return api_unlock(r);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
					   size_t numDependencies, unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, NULL, numDependencies,
						    flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode old = tls.mode;
	CUresult r = api_enter();

	if (r)
		return r;
	if (!mode || (int)*mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	tls.mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}
