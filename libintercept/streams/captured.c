// SPDX-License-Identifier: Apache-2.0
/*
 * captured.c - which streams are being captured, and which calls that forbids
 *
 * graphs/capture.c begins and ends captures, and adds what is captured to a graph. A call that breaks a rule of
 * captures makes those that it concerns invalid, and is refused. Everything is under process.locks.graphs, except
 * that capture_live is also read without it.
 */
#include "captured.h"

#include <stdlib.h>

unsigned int capture_live;
struct capture *captures;

CUresult graph_lock(void)
{
	TRY(session_check());
	lock_take(&process.locks.graphs);
	return CUDA_SUCCESS;
}

static CUresult captures_unlock(CUresult r)
{
	lock_drop(&process.locks.graphs);
	return r;
}

/* A number, since addresses of thread-local data are reused. */
uint64_t capture_thread(void)
{
	static __thread uint64_t me;
	static uint64_t threads;

	if (!me)
		me = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
	return me;
}

void capture_tail_free(struct tail *t)
{
	if (!t)
		return;
	free(t->dep);
	free(t->edge);
	free(t);
}

struct capture *capture_find(uint64_t id)
{
	struct capture *c;

	for (c = captures; c && c->id != id; c = c->next)
		;
	return c;
}

void capture_event_gone(struct event *e)
{
	struct tail *t = e->capture_tail;

	e->capture = NULL;
	e->capture_tail = NULL;
	capture_tail_free(t);
}

/* --------------------------------------------------------------------------- forbidden calls */

CUresult capture_unsafe(void)
{
	CUresult r = 0;

	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED)) ||
	    thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return 0;
	TRY(graph_lock());
	for (struct capture *c = captures; c; c = c->next) {
		bool mine = c->thread == capture_thread() &&
			    c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		bool all = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
			   thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

		if (mine || all) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return captures_unlock(r);
}

CUresult capture_of_legacy(const struct context *ctx, bool invalidate)
{
	CUresult r = 0;

	for (struct capture *c = captures; c; c = c->next)
		for (size_t i = 0; i < c->n; i++)
			if (c->stream[i]->o.ctx == ctx &&
			    !(c->stream[i]->flags & CU_STREAM_NON_BLOCKING)) {
				c->invalid |= invalidate;
				r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
			}
	return r;
}

CUresult capture_legacy(struct stream *s)
{
	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED)) ||
	    s->wire != SV_STREAM_LEGACY)
		return 0;
	TRY(graph_lock());
	return captures_unlock(capture_of_legacy(s->o.ctx, true));
}

bool capture_on_slow(const struct stream *s)
{
	bool on;

	if (s->wire != SV_STREAM_LEGACY || graph_lock())
		return false;
	on = capture_of_legacy(s->o.ctx, false);
	captures_unlock(0);
	return on;
}

CUresult capture_sync(struct stream *s)
{
	CUresult r = 0;

	if (likely(!__atomic_load_n(&capture_live, __ATOMIC_RELAXED)))
		return 0;
	TRY(graph_lock());
	if (s && s->capture) {
		s->capture->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	} else if (s && s->wire == SV_STREAM_LEGACY) {
		r = capture_of_legacy(s->o.ctx, true);
	}
	for (struct capture *c = captures; c && !s; c = c->next)
		for (size_t i = 0; i < c->n; i++)
			if (c->stream[i]->o.ctx == thread.ctx) {
				c->invalid = true;
				r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
			}
	return captures_unlock(r);
}

CUresult capture_event(struct event *e)
{
	struct capture *c;

	if (likely(!e->capture_tail))
		return 0;
	TRY(graph_lock());
	c = capture_find(((struct tail *)e->capture_tail)->capture);
	if (c)
		c->invalid = true;
	return captures_unlock(CUDA_ERROR_CAPTURED_EVENT);
}

CUresult capture_refuse(struct stream *s)
{
	TRY(graph_lock());
	if (!s->capture)
		return captures_unlock(capture_of_legacy(s->o.ctx, true));
	if (capture_state(s))
		return captures_unlock(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	s->capture->invalid = true;
	return captures_unlock(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}
