// SPDX-License-Identifier: Apache-2.0
/*
 * context.c - contexts, their streams, and the context that a record runs in
 *
 * The proxy retains the primary context from start to end, since memory is pinned in it; the
 * client's handle is a name for it. When a context ends, all handles bound in it are unbound at
 * once, in the order of the records; a worker then ends the driver's context, which may take long.
 */
#include <stdlib.h>

#include "answer.h"
#include "context.h"
#include "handle.h"
#include "hooks.h"
#include "print.h"
#include "worker.h"

static uint64_t ended;		/* counts ended contexts; a change makes threads' `here` invalid */
static __thread struct context *here;
static __thread uint64_t here_handle, here_ended;

struct context *context_here(void)
{
	return here;
}

void context_forget(void)
{
	here_handle = 0;
	here = NULL;
}

int sv_enter(struct sv_session *s, uint64_t ctx)
{
	struct context *c;
	CUresult r;

	/* pairs with do_end_context(), as below */
	if (ctx == here_handle && here_ended == __atomic_load_n(&ended, __ATOMIC_ACQUIRE) && ctx)
		return 0;
	if (!sv_is_handle(SV_T_CUcontext, ctx))
		return -EPROTO;
	here_ended = __atomic_load_n(&ended, __ATOMIC_ACQUIRE);
	here_handle = 0;
	here = NULL;
	c = handle_obj(s, SV_T_CUcontext, ctx);
	if (!c)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	r = s->hal.drv.cuCtxSetCurrent(c->real);
	if (r)
		return r;
	here = c;
	here_handle = ctx;
	return 0;
}

void sv_enter_any(struct sv_session *s)
{
	/* pairs with do_end_context() */
	if (here_handle && here_ended == __atomic_load_n(&ended, __ATOMIC_ACQUIRE))
		return;
	context_forget();
	s->hal.drv.cuCtxSetCurrent(s->hal.primary);
}

static int bind_context(struct call *k, uint64_t handle, CUcontext real, bool primary)
{
	struct context *c = calloc(1, sizeof(*c));

	if (!c || handle_bind(k->c.session, SV_T_CUcontext, handle, (uintptr_t)real, c, 0)) {
		free(c);
		sv_unreserve(k->c.session, SV_T_CUcontext, handle);
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	}
	c->handle = handle;
	c->real = real;
	c->primary = primary;
	c->legacy = (struct stream){ .context = c, .real = CU_STREAM_LEGACY, .legacy = true,
				     .refs = 1 };
	return 0;
}

static uint64_t primary;	/* the client's handle of it; consumer */

static int reserve_context(struct call *k, const struct sv_ctx_new *a)
{
	int rc;

	if (a->pad)
		return sv_bad(&k->c, "padding of a new context");
	rc = sv_reserve(k->c.session, SV_T_CUcontext, a->ctx);
	return rc < 0 ? sv_fails(&k->c, rc, "handle of a new context") : rc;
}

int do_ctx_retain(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_ctx_new *a = k->c.data;
	int rc;

	if (primary)
		return sv_bad(&k->c, "the primary context is retained already");
	rc = reserve_context(k, a);
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	if (s->hal.drv.cuDevicePrimaryCtxSetFlags_v2)
		s->hal.drv.cuDevicePrimaryCtxSetFlags_v2(s->hal.dev, a->flags);
	rc = bind_context(k, a->ctx, s->hal.primary, true);
	if (!rc && !k->c.status)
		primary = a->ctx;
	return rc;
}

int do_ctx_create(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_ctx_new *a = k->c.data;
	CUcontext real = NULL;
	CUresult r;
	int rc = reserve_context(k, a);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	r = s->hal.drv.cuCtxCreate_v2(&real, a->flags, s->hal.dev);
	/* cuCtxCreate pushed the new context, which sv_enter does not know. */
	here_handle = 0;
	here = NULL;
	if (r) {
		sv_unreserve(s, SV_T_CUcontext, a->ctx);
		return fails(k, r);
	}
	if (s->hal.drv.cuCtxPopCurrent_v2)
		s->hal.drv.cuCtxPopCurrent_v2(NULL);
	return bind_context(k, a->ctx, real, false);
}

/* --------------------------------------------------------------------------- ending a context */

struct ending {
	struct answer answer;
	CUcontext real;
	bool primary;
};

static bool may_reset(void)
{
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].reset && !context_hooks[i].reset())
			return false;
	return true;
}

static void repin(struct sv_session *s)
{
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].repin)
			context_hooks[i].repin(s);
}

static void tell_gone(uint64_t ctx)
{
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].gone)
			context_hooks[i].gone(ctx);
}

static void end_context(void *arg)
{
	struct ending *e = arg;
	struct sv_session *s = e->answer.s;
	struct hal *h = &s->hal;
	CUresult r;

	h->drv.cuCtxSetCurrent(h->primary);
	here_handle = 0;
	if (e->primary && !may_reset()) {
		answer_now(&e->answer, CUDA_SUCCESS, NULL, 0);
		free(e);
		return;
	}
	hal_notify_leave(h, e->real);
	if (e->primary) {
		/* A reset does not release the context, but NVIDIA's is gone until it is retained again. */
		r = h->drv.cuDevicePrimaryCtxReset_v2(h->dev);
		if (!r)
			r = h->drv.cuDevicePrimaryCtxRetain(&h->primary, h->dev);
		if (!r)
			h->drv.cuCtxSetCurrent(h->primary);
		repin(s);
	} else {
		r = h->drv.cuCtxDestroy_v2(e->real);
	}
	hal_notify_left(h, e->real);
	print_pump(s);
	answer_now(&e->answer, r, NULL, 0);
	free(e);
}

/* Matches the handles bound in the context, and its own. */
static int of_context(void *arg, unsigned int type, uint64_t ctx, void *obj)
{
	uint64_t gone = *(uint64_t *)arg;

	if (type == SV_T_CUcontext)
		return obj && ((struct context *)obj)->handle == gone;
	return ctx == gone;
}

static int do_end_context(struct call *k, bool reset)
{
	struct sv_session *s = k->c.session;
	const struct sv_ctx_end *a = k->c.data;
	struct context *c;
	struct ending *e;
	uint64_t gone = a->ctx;

	if (!sv_is_handle(SV_T_CUcontext, gone))
		return sv_bad(&k->c, "handle of the context to end");
	c = handle_obj(s, SV_T_CUcontext, gone);
	if (!c)
		return fails(k, CUDA_ERROR_CONTEXT_IS_DESTROYED);
	if (c->primary != reset)
		return fails(k, CUDA_ERROR_INVALID_CONTEXT);
	e = malloc(sizeof(*e));
	if (!e)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	*e = (struct ending){ answer_later(k), c->real, c->primary };
	/* c is never freed: a worker may be using it. Contexts are few. */
	handle_sweep(s, of_context, &gone);
	tell_gone(gone);
	__atomic_add_fetch(&ended, 1, __ATOMIC_RELEASE);
	s->hal.drv.cuCtxSetCurrent(s->hal.primary);
	if (reset)
		primary = 0;
	if (worker_run(end_context, e)) {
		free(e);
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	}
	return CALL_LATER;
}

int do_ctx_reset(struct call *k)
{
	return do_end_context(k, true);
}

int do_ctx_destroy(struct call *k)
{
	return do_end_context(k, false);
}

