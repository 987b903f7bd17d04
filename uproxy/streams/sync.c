// SPDX-License-Identifier: Apache-2.0
/*
 * sync.c - synchronisation that never blocks the consumer: each wait becomes a notice (hal_notify)
 *
 * If the work is done, the driver's own synchronisation is called, which does not wait then and
 * writes out what kernels have printed; the call is answered at once. A helper stream (struct
 * spare), one for each wait, waits for an event. To synchronise a context, each stream that is not
 * idle gets a notice; the legacy stream gets one only if it was used, since a callback there
 * would hold up the other streams.
 */
#include <stdlib.h>

#include "answer.h"
#include "context.h"
#include "cover.h"
#include "device_memory.h"
#include "print.h"
#include "streams.h"

/* ------------------------------------------------------------------------------ one stream */

struct waiting {
	struct watch watch;
	struct answer answer;
	uint64_t *word, number;		/* told of the end instead of the client, or NULL: sv_watch */
	struct stream *st;		/* held, or NULL */
	uint64_t used;
	struct context *context;	/* whose spare stream it is, or NULL */
	struct spare *spare;
};

struct spare {
	struct spare *next;
	CUstream stream;
};

static struct lock spare_lock = LOCK_INIT(PROXY_SPARE);

static void put_spare(struct context *c, struct spare *sp)
{
	lock_take(&spare_lock);
	sp->next = c->spare;
	c->spare = sp;
	lock_drop(&spare_lock);
}

static void arrived(void *arg, CUresult status)
{
	struct waiting *w = arg;

	print_pump(w->answer.s);
	if (w->spare)
		put_spare(w->context, w->spare);
	if (w->st) {
		stream_reached(w->st, w->used);
		stream_put(w->st);
	}
	/* pairs with look() of the client */
	if (w->word)
		__atomic_store_n(w->word, status ? SV_WATCH_ASK(w->number) : SV_WATCH_DONE(w->number), __ATOMIC_RELEASE);
	else if (watch_end(&w->watch))
		answer_now(&w->answer, status, NULL, 0);
	free(w);
}

/* What has failed does not end: the driver's answer alone, or that. */
static CUresult unless_bad(CUresult r, const struct cover *c)
{
	return (!r || r == CUDA_ERROR_NOT_READY) && cover_fails() && cover_bad(c) ? COVER_FAILS : r;
}

static int wait_on(struct call *k, CUstream stream, const struct cover *c, const struct waiting *what)
{
	struct waiting *w = malloc(sizeof(*w));
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	if (w) {
		*w = *what;
		w->answer = answer_later(k);
		if (w->st)
			__atomic_add_fetch(&w->st->refs, 1, __ATOMIC_RELAXED);
		if (w->word)
			__atomic_store_n(w->word, SV_WATCHED(w->number), __ATOMIC_RELAXED);
		else if (cover_open(c))
			watch_begin(&w->watch, c, &w->answer);
		r = hal_notify(&k->c.session->hal, stream, arrived, w);
		if (!r)
			return CALL_LATER;
		if (w->word)
			__atomic_store_n(w->word, 0, __ATOMIC_RELAXED);
		else
			watch_end(&w->watch);
		if (w->st)
			stream_put(w->st);
		free(w);
	}
	if (what->spare)
		put_spare(what->context, what->spare);
	return fails(k, r);
}

/* As the driver answers, except that a callback that is about to return is no work. */
static CUresult query(struct sv_session *s, const struct stream *st)
{
	CUresult r = s->hal.drv.cuStreamQuery(st->real);

	return r == CUDA_ERROR_NOT_READY && stream_known_idle(st) ? CUDA_SUCCESS : r;
}

int sync_stream(struct call *k, struct stream *st)
{
	struct sv_session *s = k->c.session;
	struct cover c = { { 0 } };
	CUresult r = s->hal.drv.cuStreamQuery(st->real);

	lock_may_wait("the device");
	if (cover_any)
		c = cover_of_stream(st);
	if (unless_bad(r, &c) == COVER_FAILS)
		return fails(k, COVER_FAILS);
	if (r == CUDA_ERROR_NOT_READY && !stream_known_idle(st))
		return wait_on(k, st->real, &c,
			       &(struct waiting){ .st = st, .used = st->context->uses });
	if (!r)
		r = s->hal.drv.cuStreamSynchronize(st->real);
	print_pump(s);
	return fails(k, r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r);
}

static int begin_sync(struct call *k, const struct sv_sync_on *a)
{
	int rc = sv_enter(k->c.session, a->ctx);

	return rc < 0 ? sv_fails(&k->c, rc, "context of a synchronisation") : rc;
}


static int stream_of(struct call *k, struct stream **st)
{
	const struct sv_sync_on *a = k->c.data;
	int rc = begin_sync(k, a);

	if (rc)
		return rc;
	rc = uproxy_stream_find(k->c.session, a->on, st);
	if (rc < 0)
		k->c.why = "stream of a synchronisation";
	return rc;
}

int do_stream_sync(struct call *k)
{
	struct stream *st;
	int rc = stream_of(k, &st);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	return sync_stream(k, st);
}

static CUresult asked(CUresult r, struct cover c)
{
	return unless_bad(r, &c) == COVER_FAILS ? cover_query() : r;
}

int do_stream_query(struct call *k)
{
	struct stream *st;
	int rc = stream_of(k, &st);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	return fails(k, asked(query(k->c.session, st), cover_of_stream(st)));
}

/*
 * A client that polls is told in a word when the work is done. Work behind a collective operation is not watched: the
 * operation may fail, and then cover_query() decides what a query answers. One that has failed is open until its
 * communicator has ended.
 */
static bool may_watch(struct call *k, const struct cover *c)
{
	return k->c.status == CUDA_ERROR_NOT_READY && !cover_open(c);
}

/* The record begins as a query's. */
static int bad_watch(struct call *k)
{
	const struct sv_watch *a = k->c.data;

	if (a->word % 8 || a->number >> 62 || !arena_pinned(k->c.session, a->word, 8))
		return sv_bad(&k->c, "the word of a watch");
	return 0;
}

static int tell(struct call *k, CUstream stream, struct waiting *w)
{
	const struct sv_watch *a = k->c.data;

	w->word = (uint64_t *)arena_at(k->c.session, a->word);
	w->number = a->number;
	wait_on(k, stream, NULL, w);
	return fails(k, CUDA_ERROR_NOT_READY);
}

int do_stream_watch(struct call *k)
{
	struct stream *st;
	struct cover c;
	int rc = bad_watch(k) ?: stream_of(k, &st);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	c = cover_of_stream(st);
	fails(k, asked(query(k->c.session, st), c));
	/* A callback in the legacy stream would hold up the others. */
	if (!may_watch(k, &c) || st->legacy)
		return 0;
	return tell(k, st->real, &(struct waiting){ .st = st, .used = st->context->uses });
}

/* ------------------------------------------------------------------------------ events */

static struct spare *get_spare(struct sv_session *s, struct context *c, CUresult *r)
{
	struct spare *sp;

	lock_take(&spare_lock);
	sp = c->spare;
	if (sp)
		c->spare = sp->next;
	lock_drop(&spare_lock);
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

/* A spare stream that waits for the event. NULL: *r says why. */
static struct spare *spare_behind(struct sv_session *s, struct context *c, CUevent event, CUresult *r)
{
	struct spare *sp = get_spare(s, c, r);

	if (!sp)
		return NULL;
	*r = s->hal.drv.cuStreamWaitEvent(sp->stream, event, 0);
	if (!*r)
		return sp;
	put_spare(c, sp);
	return NULL;
}

static int event_of(struct call *k, CUevent *event)
{
	const struct sv_sync_on *a = k->c.data;
	uint64_t real = 0;
	int rc = begin_sync(k, a);

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
	const struct sv_sync_on *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct cover c = { { 0 } };
	struct spare *sp;
	CUevent event;
	CUresult r;
	int rc = event_of(k, &event);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	if (cover_any)
		c = cover_of_event(a->on);
	lock_may_wait("the device");
	r = s->hal.drv.cuEventQuery(event);
	if (unless_bad(r, &c) == COVER_FAILS)
		return fails(k, COVER_FAILS);
	if (r != CUDA_ERROR_NOT_READY) {
		if (!r)
			r = s->hal.drv.cuEventSynchronize(event);
		print_pump(s);
		return fails(k, r);
	}
	sp = spare_behind(s, context_here(), event, &r);
	if (!sp)
		return fails(k, r);
	return wait_on(k, sp->stream, &c,
		       &(struct waiting){ .context = context_here(), .spare = sp });
}

int do_event_query(struct call *k)
{
	const struct sv_sync_on *a = k->c.data;
	CUevent event;
	int rc = event_of(k, &event);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	return fails(k, asked(k->c.session->hal.drv.cuEventQuery(event), cover_of_event(a->on)));
}

int do_event_watch(struct call *k)
{
	const struct sv_watch *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct spare *sp;
	struct cover c;
	CUevent event;
	CUresult r;
	int rc = bad_watch(k) ?: event_of(k, &event);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	c = cover_of_event(a->on);
	fails(k, asked(s->hal.drv.cuEventQuery(event), c));
	if (!may_watch(k, &c))
		return 0;
	sp = spare_behind(s, context_here(), event, &r);
	if (!sp)
		return 0;
	return tell(k, sp->stream, &(struct waiting){ .context = context_here(), .spare = sp });
}

int do_event_record(struct call *k)
{
	const struct sv_cuEventRecord *a = k->c.data;	/* the other form begins so, too */
	struct stream *st;
	int rc = cuda_dispatch(&k->c);

	if (cover_any && !rc && !k->c.status && !uproxy_stream_find(k->c.session, a->hStream, &st))
		cover_record(st, a->hEvent);
	return rc;
}

int do_event_wait(struct call *k)
{
	const struct sv_cuStreamWaitEvent *a = k->c.data;
	struct stream *st;
	int rc = cuda_dispatch(&k->c);

	if (cover_any && !rc && !k->c.status && !uproxy_stream_find(k->c.session, a->hStream, &st))
		cover_wait(st, a->hEvent);
	return rc;
}

int do_event_destroy(struct call *k)
{
	const struct sv_cuEventDestroy *a = k->c.data;
	int rc;

	if (cover_any)
		cover_event_gone(a->hEvent);
	rc = cuda_dispatch(&k->c);
	return rc;
}

struct copying {
	struct context *context;
	struct spare *spare;
};

static void copied(void *arg, CUresult status)
{
	struct copying *c = arg;

	(void)status;
	put_spare(c->context, c->spare);
	free(c);
}

/* A helper stream waits for the event, and records the copy; others use that stream only after that. */
CUresult event_copy(struct sv_session *s, CUevent event, CUevent *copy)
{
	struct copying *c;
	struct hal *h = &s->hal;
	CUevent e;
	CUresult r;

	r = h->drv.cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
	if (r)
		return r;
	*copy = e;
	if (!h->drv.cuEventQuery(event))
		return CUDA_SUCCESS;	/* one that has not been recorded is complete, too */
	c = malloc(sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->context = context_here();
	c->spare = spare_behind(s, c->context, event, &r);
	if (!c->spare) {
		free(c);
		return r;
	}
	r = h->drv.cuEventRecord(e, c->spare->stream);
	if (r || hal_notify(h, c->spare->stream, copied, c))
		copied(c, r);
	return r;
}

/* ------------------------------------------------------------------------------ a context */

struct gather {
	struct watch watch;
	struct answer answer;
	unsigned int open;	/* streams not done, + 1 while they are being added; atomic */
	int32_t status;		/* the first error; atomic */
};

struct gathering {		/* one of the streams */
	struct gather *all;
	struct stream *st;	/* held */
	uint64_t used;
};

static void gather_end(struct gather *g, CUresult status)
{
	int32_t none = CUDA_SUCCESS;

	if (status)
		__atomic_compare_exchange_n(&g->status, &none, status, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	/* pairs with itself: the last one sees what the others have stored */
	if (__atomic_sub_fetch(&g->open, 1, __ATOMIC_ACQ_REL))
		return;
	print_pump(g->answer.s);
	if (watch_end(&g->watch))
		answer_now(&g->answer, g->status, NULL, 0);
	free(g);
}

static void gathered(void *arg, CUresult status)
{
	struct gathering *n = arg;
	struct gather *g = n->all;

	stream_reached(n->st, n->used);
	stream_put(n->st);
	free(n);
	gather_end(g, status);
}

/* Adds a stream to wait for, if it is not idle. */
static CUresult gather_stream(struct sv_session *s, struct gather *g, struct stream *st)
{
	struct gathering *n;
	CUresult r;

	/* pairs with stream_reached() */
	if (st->used <= __atomic_load_n(&st->done, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	lock_may_wait("the device");
	r = s->hal.drv.cuStreamQuery(st->real);
	if (!r) {
		stream_reached(st, st->used);
		return s->hal.drv.cuStreamSynchronize(st->real);
	}
	if (r != CUDA_ERROR_NOT_READY || stream_known_idle(st))
		return r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r;
	n = malloc(sizeof(*n));
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*n = (struct gathering){ g, st, st->used };
	__atomic_add_fetch(&st->refs, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&g->open, 1, __ATOMIC_RELAXED);
	r = hal_notify(&s->hal, st->real, gathered, n);
	if (r) {
		__atomic_sub_fetch(&g->open, 1, __ATOMIC_RELAXED);
		stream_put(st);
		free(n);
	}
	return r;
}

int do_ctx_sync(struct call *k)
{
	const struct sv_sync_on *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct cover all;
	struct context *c;
	struct gather *g;
	CUresult r = CUDA_SUCCESS;
	int rc = begin_sync(k, a);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	if (a->on)
		return sv_bad(&k->c, "a context's synchronisation is on nothing");
	g = malloc(sizeof(*g));
	if (!g)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	*g = (struct gather){ .answer = answer_later(k), .open = 1 };
	c = context_here();
	if (cover_any) {
		all = cover_of_context(c);
		if (cover_fails() && cover_bad(&all) && !k->c.session->latched) {
			free(g);
			return fails(k, COVER_FAILS);
		}
		if (cover_open(&all))
			watch_begin(&g->watch, &all, &g->answer);
	}
	for (struct stream *st = c->streams; st && !r; st = st->next)
		r = gather_stream(s, g, st);
	if (!r)
		r = gather_stream(s, g, &c->legacy);
	if (!r && c->grave)
		r = gather_stream(s, g, c->grave);
	/* With no stream to wait for, a query reports the error of a failed context. */
	if (!r && __atomic_load_n(&g->open, __ATOMIC_RELAXED) == 1)
		r = s->hal.drv.cuStreamQuery(CU_STREAM_LEGACY);
	gather_end(g, r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r);
	return CALL_LATER;
}

/*
 * Work in a destroyed stream goes on, but the stream cannot be queried any more. So another stream
 * waits for it: the grave, one for each context.
 */
CUresult sync_orphan(struct sv_session *s, struct stream *st)
{
	struct context *c = st->context;
	struct hal *h = &s->hal;
	CUstream real;
	CUevent done;
	CUresult r;

	if (query(s, st) != CUDA_ERROR_NOT_READY)
		return CUDA_SUCCESS;
	r = h->drv.cuCtxSetCurrent(c->real);
	context_forget();
	if (!r && !c->grave) {
		r = h->drv.cuStreamCreate(&real, CU_STREAM_NON_BLOCKING);
		c->grave = r ? NULL : uproxy_stream_new(c, 0, real, false);
		if (!r && !c->grave)
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!r)
		r = h->drv.cuEventCreate(&done, CU_EVENT_DISABLE_TIMING);
	if (r)
		return r;
	r = h->drv.cuEventRecord(done, st->real);
	if (!r)
		r = h->drv.cuStreamWaitEvent(c->grave->real, done, 0);
	h->drv.cuEventDestroy_v2(done);
	stream_used(c->grave);
	if (cover_any)
		cover_follow(c->grave, st);
	return r;
}
