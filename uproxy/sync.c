// SPDX-License-Identifier: Apache-2.0
/*
 * sync.c - waiting without waiting: what a synchronisation waits for becomes a callback
 *
 * Where nothing is open, the driver's own synchronisation is called (it does not wait then, and
 * writes out what kernels have printed) and answered at once. For an event a stream of ours waits,
 * which nobody else does anything in: one for each wait, kept in a pool of its context. A context
 * waits for each of its streams that is not idle; not through the legacy stream, unless that was
 * used: a callback there would hold up the others.
 */
#include <stdlib.h>

#include "uproxy_i.h"

/* ------------------------------------------------------------------------------ one stream */

struct waiting {
	struct answer answer;
	struct context *context;	/* whose spare stream it is, or NULL */
	struct spare *spare;
};

struct spare {
	struct spare *next;
	CUstream stream;
};

static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;

static void put_spare(struct context *c, struct spare *sp)
{
	pthread_mutex_lock(&spare_lock);
	sp->next = c->spare;
	c->spare = sp;
	pthread_mutex_unlock(&spare_lock);
}

static void arrived(void *arg, CUresult status)
{
	struct waiting *w = arg;

	print_pump(w->answer.s);
	if (w->spare)
		put_spare(w->context, w->spare);
	answer_now(&w->answer, status, NULL, 0);
	free(w);
}

static int wait_on(struct call *k, CUstream stream, struct context *c, struct spare *sp)
{
	struct waiting *w = malloc(sizeof(*w));
	CUresult r;

	if (!w)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	*w = (struct waiting){ answer_later(k), c, sp };
	r = hal_notify(&k->c.session->hal, stream, arrived, w);
	if (!r)
		return CALL_LATER;
	if (sp)
		put_spare(c, sp);
	free(w);
	return fails(k, r);
}

int sync_stream(struct call *k, CUstream stream)
{
	struct sv_session *s = k->c.session;
	CUresult r = s->hal.drv.cuStreamQuery(stream);

	if (r == CUDA_ERROR_NOT_READY)
		return wait_on(k, stream, NULL, NULL);
	if (!r)
		r = s->hal.drv.cuStreamSynchronize(stream);
	print_pump(s);
	return fails(k, r);
}

static int begin(struct call *k, const struct sv_sync_on *a)
{
	int rc = sv_enter(k->c.session, a->ctx);

	return rc < 0 ? sv_fails(&k->c, rc, "context of a synchronisation") : rc;
}

int do_stream_sync(struct call *k)
{
	const struct sv_sync_on *a = k->c.data;
	CUstream stream;
	int rc = begin(k, a);

	if (!rc) {
		rc = stream_use(k->c.session, a->on, &stream);
		if (rc < 0)
			k->c.why = "stream of a synchronisation";
	}
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	return sync_stream(k, stream);
}

int do_stream_query(struct call *k)
{
	const struct sv_sync_on *a = k->c.data;
	CUstream stream;
	int rc = begin(k, a);

	if (!rc) {
		rc = stream_use(k->c.session, a->on, &stream);
		if (rc < 0)
			k->c.why = "stream of a query";
	}
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	return fails(k, k->c.session->hal.drv.cuStreamQuery(stream));
}

/* ------------------------------------------------------------------------------ events */

static struct spare *get_spare(struct sv_session *s, struct context *c, CUresult *r)
{
	struct spare *sp;

	pthread_mutex_lock(&spare_lock);
	sp = c->spare;
	if (sp)
		c->spare = sp->next;
	pthread_mutex_unlock(&spare_lock);
	if (sp)
		return sp;
	sp = calloc(1, sizeof(*sp));
	*r = sp ? s->hal.drv.cuStreamCreate(&sp->stream, CU_STREAM_NON_BLOCKING) :
		  CUDA_ERROR_OUT_OF_MEMORY;
	if (!*r)
		return sp;
	free(sp);
	return NULL;
}

static int event_of(struct call *k, CUevent *event)
{
	const struct sv_sync_on *a = k->c.data;
	uint64_t real = 0;
	int rc = begin(k, a);

	if (!rc) {
		rc = sv_real(k->c.session, SV_T_CUevent, a->on, 0, &real);
		if (rc < 0)
			k->c.why = "event to wait for";
	}
	*event = (CUevent)(uintptr_t)real;
	return rc;
}

int do_event_sync(struct call *k)
{
	struct sv_session *s = k->c.session;
	struct spare *sp;
	CUevent event;
	CUresult r;
	int rc = event_of(k, &event);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	r = s->hal.drv.cuEventQuery(event);
	if (r != CUDA_ERROR_NOT_READY) {
		if (!r)
			r = s->hal.drv.cuEventSynchronize(event);
		print_pump(s);
		return fails(k, r);
	}
	sp = get_spare(s, context_here(), &r);
	if (!sp)
		return fails(k, r);
	r = s->hal.drv.cuStreamWaitEvent(sp->stream, event, 0);
	if (r) {
		put_spare(context_here(), sp);
		return fails(k, r);
	}
	return wait_on(k, sp->stream, context_here(), sp);
}

int do_event_query(struct call *k)
{
	CUevent event;
	int rc = event_of(k, &event);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	return fails(k, k->c.session->hal.drv.cuEventQuery(event));
}

/* ------------------------------------------------------------------------------ a context */

struct gather {
	struct answer answer;
	unsigned int open;	/* streams, and the one who counts them; atomic */
	int32_t status;		/* the first error; atomic */
};

static void gathered(void *arg, CUresult status)
{
	struct gather *g = arg;
	int32_t none = CUDA_SUCCESS;

	if (status)
		__atomic_compare_exchange_n(&g->status, &none, status, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	if (__atomic_sub_fetch(&g->open, 1, __ATOMIC_ACQ_REL))
		return;
	print_pump(g->answer.s);
	answer_now(&g->answer, g->status, NULL, 0);
	free(g);
}

/* One more stream to wait for, if it is not idle. */
static CUresult gather_stream(struct sv_session *s, struct gather *g, CUstream stream, bool *dirty)
{
	CUresult r = s->hal.drv.cuStreamQuery(stream);

	if (r != CUDA_ERROR_NOT_READY) {
		if (!r) {
			*dirty = false;
			r = s->hal.drv.cuStreamSynchronize(stream);
		}
		return r;
	}
	__atomic_add_fetch(&g->open, 1, __ATOMIC_RELAXED);
	r = hal_notify(&s->hal, stream, gathered, g);
	if (r)
		__atomic_sub_fetch(&g->open, 1, __ATOMIC_RELAXED);
	return r;
}

int do_ctx_sync(struct call *k)
{
	const struct sv_sync_on *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct context *c;
	struct gather *g;
	CUresult r = CUDA_SUCCESS;
	bool grave = true;
	int rc = begin(k, a);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	if (a->on)
		return sv_bad(&k->c, "a context's synchronisation is on nothing");
	g = malloc(sizeof(*g));
	if (!g)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	*g = (struct gather){ .answer = answer_later(k), .open = 1 };
	c = context_here();
	for (struct stream *st = c->streams; st && !r; st = st->next)
		if (st->dirty)
			r = gather_stream(s, g, st->real, &st->dirty);
	if (!r && c->legacy_dirty)
		r = gather_stream(s, g, CU_STREAM_LEGACY, &c->legacy_dirty);
	if (!r && c->grave)
		r = gather_stream(s, g, c->grave, &grave);
	/* A failed context says so in any query, also where nothing was to be asked. */
	if (!r && g->open == 1 && s->hal.drv.cuCtxGetStreamPriorityRange)
		r = s->hal.drv.cuStreamQuery(c->grave ? c->grave : CU_STREAM_LEGACY);
	gathered(g, r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r);
	return CALL_LATER;
}

CUresult sync_orphan(struct sv_session *s, struct stream *st)
{
	struct hal *h = &s->hal;
	CUevent done;
	CUresult r;

	if (!st->dirty || h->drv.cuStreamQuery(st->real) != CUDA_ERROR_NOT_READY)
		return CUDA_SUCCESS;
	r = h->drv.cuCtxSetCurrent(st->context->real);
	context_forget();
	if (!r && !st->context->grave)
		r = h->drv.cuStreamCreate(&st->context->grave, CU_STREAM_NON_BLOCKING);
	if (!r)
		r = h->drv.cuEventCreate(&done, CU_EVENT_DISABLE_TIMING);
	if (r)
		return r;
	r = h->drv.cuEventRecord(done, st->real);
	if (!r)
		r = h->drv.cuStreamWaitEvent(st->context->grave, done, 0);
	h->drv.cuEventDestroy_v2(done);
	return r;
}
