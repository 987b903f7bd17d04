/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - streams: queues of operations, the threads that run them, waiting for them
 *
 * An op runs when it is its stream's head and all its dependencies are done. It is run by a
 * worker (started when none is idle, ended after some idle seconds) or by a thread that waits for
 * the stream. Each runnable stream gets a thread of its own, so streams progress while others spin.
 * Implicit synchronisation with the legacy stream adds dependencies when work is submitted.
 *
 * A wait for a word takes a thread, which polls it. A host may say of some words that it tells of each
 * store there (softcuda_told_words): then a stream at such a wait is *held*. It has no thread, and
 * goes on in the call that tells (softcuda_told).
 *
 *   made ready ── the head waits for a told word ──► held ── told, and met; its context is over ──► runs
 *
 * Whoever tells has stored the word before it takes big. So either the look at the word that would
 * hold the stream sees the store, or the stream is on the list of held ones when that is gone through.
 */
#include "soft_i.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_WORKERS 1024
#define IDLE_SECONDS 5
#define INLINE_BYTES 65536

static pthread_cond_t work_cv = PTHREAD_COND_INITIALIZER;
static pthread_cond_t done_cv = PTHREAD_COND_INITIALIZER;
static unsigned int nworkers, nidle, nwaiting, nready;
static struct stream *ready;		/* streams that can run, the most urgent first */
static struct stream *held;		/* streams whose heads wait for told words */
static uint64_t told_from, told_len;	/* where told words lie */

/* ---------------------------------------------------------------------- ops */

static struct op *op_new(struct stream *st)
{
	struct op *op = calloc(1, sizeof(*op));

	if (op) {
		op->st = st;
		op->refs = 1;
	}
	return op;
}

void op_put(struct op *op)
{
	if (!op || --op->refs)
		return;
	desc_free(&op->d);
	free(op->waiters);
	free(op);
}

struct op *op_completed(uint64_t ns)
{
	struct op *op = op_new(NULL);

	if (op) {
		op->done = true;
		op->ns = ns;
	}
	return op;
}

struct op *op_pending(struct stream *st)
{
	return op_new(st);
}

static int op_add_dep(struct op *op, struct op *on)
{
	if (!on || on->done || on == op)
		return 0;
	if (on->nwaiters == on->cap) {
		unsigned int cap = on->cap ? on->cap * 2 : 4;
		struct op **w = realloc(on->waiters, cap * sizeof(*w));

		if (!w)
			return -ENOMEM;
		on->waiters = w;
		on->cap = cap;
	}
	on->waiters[on->nwaiters++] = op;
	op->deps++;
	return 0;
}

/* Whether an op that nothing else keeps from running waits for a told word. */
static bool is_held(const struct op *op)
{
	uint64_t word;

	return told_len && desc_waits(&op->d, &word) && word - told_from < told_len &&
	       !ctx_over(op->st->ctx) && !desc_wait_met(&op->d);
}

static bool runnable(const struct stream *st)
{
	return st->head && !st->head->deps && !st->running && !is_held(st->head);
}

/* Takes a stream out of the lists, since its head is about to run. */
static void ready_remove(struct stream *st)
{
	struct stream **p;

	if (st->held) {
		for (p = &held; *p != st; p = &(*p)->held_next)
			;
		*p = st->held_next;
		st->held = false;
	}
	if (!st->queued)
		return;
	for (p = &ready; *p != st; p = &(*p)->ready_next)
		;
	*p = st->ready_next;
	st->queued = false;
	nready--;
}

static void *worker(void *arg);

static void start_worker(void)
{
	sigset_t all, old;
	pthread_attr_t a;
	pthread_t t;

	if (nworkers >= MAX_WORKERS)
		return;
	/* Leaves signals to the program's threads; a fault always reaches its own thread. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	if (!pthread_create(&t, &a, worker, NULL))
		nworkers++;
	pthread_attr_destroy(&a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void make_ready(struct stream *st)
{
	struct stream **p;

	if (st->queued)
		return;
	if (!runnable(st)) {
		if (!st->held && !st->running && st->head && !st->head->deps) {
			st->held_next = held;
			held = st;
			st->held = true;
		}
		return;
	}
	ready_remove(st);
	for (p = &ready; *p && (*p)->priority <= st->priority; p = &(*p)->ready_next)
		;
	st->ready_next = *p;
	*p = st;
	st->queued = true;
	nready++;
	if (nidle >= nready)
		pthread_cond_signal(&work_cv);
	else
		start_worker();
}

static void stream_gone(struct stream *st)
{
	struct stream **p;

	ready_remove(st);
	for (p = &st->ctx->streams; *p && *p != st; p = &(*p)->next)
		;
	if (*p)
		*p = st->next;
	free(st);
	if (nwaiting)
		pthread_cond_broadcast(&done_cv);
}

void op_finish(struct op *op)
{
	struct stream *st = op->st;

	op->done = true;
	op->ns = soft_now_ns();
	for (unsigned int i = 0; i < op->nwaiters; i++) {
		struct op *w = op->waiters[i];

		if (!--w->deps && w->st->head == w && w->st != st)
			make_ready(w->st);
	}
	op->nwaiters = 0;
	if (nwaiting)
		pthread_cond_broadcast(&done_cv);
}

static void op_complete(struct op *op)
{
	struct stream *st = op->st;

	st->head = op->next;
	if (!st->head)
		st->tail = NULL;
	op_finish(op);
	op_put(op);
}

/* The program's host functions run in workers, never in one of its threads that waits. */
static bool for_worker(const struct desc *d)
{
	return d->kind == D_HOST || d->kind == D_CALLBACK ||
	       (d->kind == D_GRAPH && graph_calls_host(d->child));
}

/* What whoever tells of a word runs: the host's own functions, and nothing that touches memory. */
static bool for_teller(const struct desc *d)
{
	uint64_t word;

	return d->kind == D_EMPTY || d->kind == D_RECORD || d->kind == D_HOST ||
	       d->kind == D_CALLBACK || desc_waits(d, &word);
}

enum runner { WORKER, WAITER, TELLER };

/* Whether a run goes on with the head: `until` is the op that a waiter waits for. */
static bool goes_on(const struct op *op, enum runner by, const struct op *until)
{
	if (op->deps || is_held(op))
		return false;
	return by == WORKER || (by == WAITER ? !until->done && !for_worker(&op->d) : for_teller(&op->d));
}

/*
 * Runs ops until st is empty, or its head has open dependencies, is held, or is not for who runs it.
 * The caller holds big and has set st->running.
 */
static void stream_run(struct stream *st, enum runner by, struct op *until)
{
	struct op *op;

	while ((op = st->head) && goes_on(op, by, until)) {
		struct ctx *ctx = st->ctx;
		CUresult r = CUDA_SUCCESS;

		op->started = true;
		if (op->d.kind != D_EMPTY && op->d.kind != D_RECORD) {
			pthread_mutex_unlock(&big);
			r = desc_run(ctx, st, op, &op->d);
			pthread_mutex_lock(&big);
		}
		if (r)
			ctx_fail(ctx, r);
		op_complete(op);
	}
	st->running = false;
	if (!st->head && st->destroyed)
		stream_gone(st);
	else
		make_ready(st);
}

static void *worker(void *arg)
{
	pthread_mutex_lock(&big);
	for (;;) {
		struct stream *st = ready;

		if (st) {
			ready_remove(st);
			if (runnable(st)) {
				st->running = true;
				stream_run(st, WORKER, NULL);
			} else {
				make_ready(st);	/* held, if anything */
			}
			continue;
		}
		struct timespec until;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += IDLE_SECONDS;
		nidle++;
		if (pthread_cond_clockwait(&work_cv, &big, CLOCK_MONOTONIC, &until) == ETIMEDOUT && !ready) {
			nidle--;
			break;
		}
		nidle--;
	}
	nworkers--;
	pthread_mutex_unlock(&big);
	return arg;
}

CUresult op_wait(struct op *op)
{
	struct ctx *ctx;

	if (op->done) {
		print_flush();
		return CUDA_SUCCESS;
	}
	ctx = op->st->ctx;
	op->refs++;
	while (!op->done) {
		struct stream *st = op->st;

		if (runnable(st) && !for_worker(&st->head->d)) {
			ready_remove(st);
			st->running = true;
			stream_run(st, WAITER, op);
			continue;
		}
		nwaiting++;
		pthread_cond_wait(&done_cv, &big);
		nwaiting--;
	}
	op_put(op);
	print_flush();
	return obj_live(ctx, OBJ_CTX) ? ctx->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult stream_wait(struct stream *st)
{
	struct ctx *ctx = st->ctx;
	return st->tail ? op_wait(st->tail) : ctx->sticky;
}

bool stream_idle(struct stream *st)
{
	return !st->head;
}

/* ---------------------------------------------------------------- told words */

/* The first stream that is on the list of held ones and can run. */
static struct stream *let_go(void)
{
	struct stream *st;

	for (st = held; st && !runnable(st); st = st->held_next)
		;
	return st;
}

void stream_let_go(void)
{
	struct stream *st;

	while ((st = let_go()))
		make_ready(st);
}

/*
 * Stores to these words are told: waits for them need no thread that polls. The memory stays as it
 * is; there is one such range.
 */
__attribute__((visibility("default")))
void softcuda_told_words(const void *from, size_t len)
{
	pthread_mutex_lock(&big);
	told_from = (uintptr_t)from;
	told_len = len;
	stream_let_go();	/* at other words: from here on they are polled */
	pthread_mutex_unlock(&big);
}

/*
 * Told words have been stored to. here: the host's functions that come next in streams are called
 * now, in this thread, which holds no lock that they may take; else workers call them.
 */
__attribute__((visibility("default")))
void softcuda_told(bool here)
{
	static __thread bool inside;	/* a function called below tells: the loop there sees it */
	struct stream *st;

	if (here && inside)
		return;
	pthread_mutex_lock(&big);
	if (!here) {
		stream_let_go();
	} else {
		inside = true;
		while ((st = let_go())) {
			ready_remove(st);
			st->running = true;
			stream_run(st, TELLER, NULL);
		}
		inside = false;
	}
	pthread_mutex_unlock(&big);
}

/* Adds the dependencies of the legacy stream's implicit synchronisation. */
static int add_implicit(struct stream *st, struct op *op)
{
	struct ctx *ctx = st->ctx;

	if (st->legacy) {
		for (struct stream *s = ctx->streams; s; s = s->next)
			if (s != st && s->tail && !(s->flags & CU_STREAM_NON_BLOCKING) &&
			    op_add_dep(op, s->tail))
				return -ENOMEM;
		return 0;
	}
	if (st->flags & CU_STREAM_NON_BLOCKING || !ctx->legacy || !ctx->legacy->tail)
		return 0;
	return op_add_dep(op, ctx->legacy->tail);
}

/* Whether the work takes less time than handing it to a worker. */
static bool cheap(const struct desc *d)
{
	switch (d->kind) {
	case D_EMPTY:
	case D_RECORD:
		return true;
	case D_MEMCPY:
		return d->copy.c.Depth <= 1 && d->copy.c.Height <= 1 &&
		       d->copy.c.WidthInBytes <= INLINE_BYTES;
	case D_MEMOPS:
		for (unsigned int i = 0; i < d->memops.n; i++)
			if (d->memops.ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
			    d->memops.ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
				return false;
		return true;
	case D_MEMSET:
		return d->set.height <= 1 && d->set.width * d->set.elem <= INLINE_BYTES;
	default:
		return false;
	}
}

CUresult stream_submit_after(struct stream *st, struct desc *d, struct op **after, size_t n,
			     struct op **out)
{
	struct op *op = op_new(st);
	int r;

	if (!op) {
		desc_free(d);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	op->d = *d;
	r = add_implicit(st, op);
	for (size_t i = 0; i < n && !r; i++)
		r = op_add_dep(op, after[i]);
	if (r) {
		/* ops list it as a waiter already, so it is queued, as an empty op */
		desc_free(&op->d);
		op->d = (struct desc){ .kind = D_EMPTY };
		ctx_fail(st->ctx, CUDA_ERROR_OUT_OF_MEMORY);
	}
	if (out) {
		op->refs++;
		*out = op;
	}
	if (st->tail)
		st->tail->next = op;
	else
		st->head = op;
	st->tail = op;
	if (st->head == op && !op->deps && !st->running && cheap(&op->d)) {
		ready_remove(st);
		st->running = true;
		stream_run(st, WAITER, op);
	} else {
		make_ready(st);
	}
	return CUDA_SUCCESS;
}

/* NVIDIA's queues hold so many operations: a call with one more waits until the device has done some. */
static CUresult wait_for_room(struct stream *st)
{
	for (;;) {
		unsigned int n = 0;

		for (const struct op *op = st->head; op && n < profile_queue; op = op->next)
			n++;
		if (!profile_queue || n < profile_queue)
			return CUDA_SUCCESS;
		nwaiting++;
		pthread_cond_wait(&done_cv, &big);
		nwaiting--;
		if (!obj_live(st, OBJ_STREAM))
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
}

CUresult stream_submit(struct stream *st, struct desc *d, struct op **out)
{
	CUresult r;

	if (out)
		*out = NULL;
	if (st->cap)
		return capture_submit(st, d);
	r = st->legacy ? soft_capture_legacy(st->ctx) : CUDA_SUCCESS;
	if (!r)
		r = wait_for_room(st);
	if (r) {
		desc_free(d);
		return r;
	}
	return stream_submit_after(st, d, NULL, 0, out);
}

/* ------------------------------------------------------------------ streams */

struct stream *soft_stream_new(struct ctx *ctx, unsigned int flags, int priority)
{
	struct stream *st = calloc(1, sizeof(*st));

	if (!st)
		return NULL;
	st->ctx = ctx;
	st->flags = flags;
	st->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
	st->attr[CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP].memSyncDomainMap.remote = 1;
	st->id = next_id();
	st->next = ctx->streams;
	ctx->streams = st;
	obj_add(st, OBJ_STREAM);
	return st;
}

void stream_free(struct stream *st)
{
	if (st->cap)
		capture_abandon(st);
	obj_del(st);
	st->owner = NULL;
	st->destroyed = true;
	if (!st->head && !st->running)
		stream_gone(st);
}

void stream_flush_dead(struct ctx *ctx)
{
	while (ctx->streams) {	/* left: running streams, which their threads free */
		nwaiting++;
		pthread_cond_wait(&done_cv, &big);
		nwaiting--;
	}
}

static struct stream *per_thread(struct ctx *ctx)
{
	struct stream *st;

	for (st = ctx->streams; st; st = st->next)
		if (st->owner == &tls && !st->destroyed)
			return st;
	st = soft_stream_new(ctx, 0, 0);
	if (st) {
		tls_register();
		st->per_thread = true;
		st->owner = &tls;
	}
	return st;
}

CUresult stream_get(CUstream h, struct stream **out)
{
	struct stream *st = (struct stream *)h;
	struct ctx *ctx = ctx_current();
	CUresult r;

	if ((uintptr_t)h <= 2) {
		r = ctx_check(ctx);
		if (r)
			return r;
		if (h == CU_STREAM_PER_THREAD || (!h && tls.ptds))
			st = per_thread(ctx);
		else
			st = ctx->legacy;
		if (!st)
			return CUDA_ERROR_OUT_OF_MEMORY;
	} else if (!obj_live(st, OBJ_STREAM)) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*out = st;
	return CUDA_SUCCESS;
}

CUresult api_lock_stream(CUstream h, struct stream **out)
{
	struct ctx *ctx;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	r = stream_get(h, out);
	if (!r)
		r = (*out)->ctx->sticky;
	return r ? api_unlock(r) : r;
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
	struct ctx *ctx;
	struct stream *st;
	CUresult r;

	if (!phStream || (flags & ~CU_STREAM_NON_BLOCKING))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	st = soft_stream_new(ctx, flags, priority);
	if (!st)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	*phStream = (CUstream)st;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if ((uintptr_t)hStream <= 2 || !obj_live(hStream, OBJ_STREAM) ||
	    ((struct stream *)hStream)->legacy)
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	stream_free((struct stream *)hStream);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream hStream)
{
	return cuStreamDestroy_v2(hStream);
}

CUresult cuStreamQuery(CUstream hStream)
{
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	if (st->cap)
		r = capture_asked(st);
	else if (st->legacy)
		r = soft_capture_legacy(st->ctx);
	if (!r && st->legacy)
		for (struct stream *s = st->ctx->streams; s; s = s->next)
			if (s->head && !(s->flags & CU_STREAM_NON_BLOCKING))
				r = CUDA_ERROR_NOT_READY;
	if (!r && st->head)
		r = CUDA_ERROR_NOT_READY;
	return api_unlock(r);
}

CUresult cuStreamSynchronize(CUstream hStream)
{
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);
	struct ctx *ctx;

	if (r)
		return r;
	ctx = st->ctx;
	if (st->cap)
		r = capture_asked(st);
	else if (st->legacy)
		r = soft_capture_legacy(ctx);
	if (r)
		return api_unlock(r);
	if (st->legacy) {		/* waits for what its next op would depend on */
		struct desc d = { .kind = D_EMPTY };

		r = stream_submit_after(st, &d, NULL, 0, NULL);
	}
	if (!r)
		r = stream_wait(st);
	print_flush();
	if (!r)
		pool_drained(ctx->dev);
	return api_unlock(r);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
	struct event *ev = (struct event *)hEvent;
	struct desc d = { .kind = D_EMPTY };
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	if (!obj_live(ev, OBJ_EVENT))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	if (Flags & ~CU_EVENT_WAIT_EXTERNAL)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (st->cap && (Flags & CU_EVENT_WAIT_EXTERNAL)) {
		d.kind = D_WAIT;
		d.event = ev;
		ev->refs++;
		return api_unlock(stream_submit(st, &d, NULL));
	}
	if (st->cap || ev->cap_id)
		return api_unlock(capture_wait(st, ev));
	if (ev->rec && !ev->rec->done && ev->rec->st != st)
		r = stream_submit_after(st, &d, &ev->rec, 1, NULL);
	return api_unlock(r);
}

/* ------------------------------------------------------------------ queries */

/* For queries, which do not report sticky errors. */
static CUresult lock_query(CUstream h, struct stream **out)
{
	CUresult r = api_lock();

	if (r)
		return r;
	r = stream_get(h, out);
	return r ? api_unlock(r) : r;
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!priority)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*priority = st->priority;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!flags)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*flags = st->flags;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!streamId)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*streamId = st->id;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!device)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*device = st->ctx->dev->ordinal;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!pctx)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*pctx = (CUcontext)st->ctx;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
	if (!pGreenCtx)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	*pGreenCtx = NULL;
	return cuStreamGetCtx(hStream, pCtx);
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!phCtx)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*phCtx = NULL;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!value_out)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	switch ((int)attr) {
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
		memset(value_out, 0, sizeof(*value_out));
		value_out->priority = st->priority;
		break;
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		*value_out = st->attr[attr];
		if ((int)attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY &&
		    !value_out->syncPolicy)
			value_out->syncPolicy = CU_SYNC_POLICY_AUTO;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value)
{
	struct stream *st;
	CUresult r = lock_query(hStream, &st);

	if (r)
		return r;
	if (!value)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	switch ((int)attr) {
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
		st->priority = value->priority < -5 ? -5 : value->priority > 0 ? 0 :
			       value->priority;
		break;
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		if (value->syncPolicy < CU_SYNC_POLICY_AUTO ||
		    value->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC) {
			r = CUDA_ERROR_INVALID_VALUE;
			break;
		}
		st->attr[attr] = *value;
		break;
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:	/* hints: kept, without effect here */
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		st->attr[attr] = *value;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return api_unlock(r);
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
	struct stream *d, *s;
	CUresult r = lock_query(dst, &d);

	if (r)
		return r;
	r = stream_get(src, &s);
	if (!r && s->ctx != d->ctx)
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		memcpy(d->attr, s->attr, sizeof(d->attr));
		d->priority = s->priority;
	}
	return api_unlock(r);
}

/* ---------------------------------------------------------- host functions */

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
	struct desc d = { .kind = D_HOST, .host = { fn, userData } };
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	if (!fn)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	return api_unlock(stream_submit(st, &d, NULL));
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
			     unsigned int flags)
{
	struct desc d = { .kind = D_CALLBACK, .cb = { callback, userData, hStream } };
	struct stream *st;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	if (!callback || flags)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (st->cap)
		return api_unlock(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return api_unlock(stream_submit(st, &d, NULL));
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
				unsigned int flags)
{
	struct stream *st;
	struct mem *m;
	CUresult r = api_lock_stream(hStream, &st);

	if (r)
		return r;
	m = mem_find(dptr);
	if (!m || m->kind != MEM_MANAGED || (length && (length != m->len || m->va != dptr)) ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
	     flags != CU_MEM_ATTACH_SINGLE))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (st->cap)
		return api_unlock(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return api_unlock(CUDA_SUCCESS);	/* host and device memory are always coherent */
}

/* ------------------------------------------------------------ device printf */

static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;
static char *print_buf;
static size_t print_len, print_cap;

static void print_out(const char *text, size_t len)
{
	fwrite(text, 1, len, stdout);
	fflush(stdout);
}

void print_error(const char *line)
{
	fprintf(stderr, "%s\n", line);
}

void print_text(const char *text, size_t len)
{
	pthread_mutex_lock(&print_lock);
	if (print_len + len > print_cap) {
		size_t cap = print_cap ? print_cap * 2 : 65536;
		char *p = cap > (16 << 20) || cap < len ? NULL : realloc(print_buf, cap);

		if (p) {
			print_buf = p;
			print_cap = cap;
		} else {		/* the buffer is full: text is printed early, not lost */
			print_out(print_buf, print_len);
			print_len = 0;
		}
	}
	if (print_len + len <= print_cap) {
		memcpy(print_buf + print_len, text, len);
		print_len += len;
	} else {
		print_out(text, len);
	}
	pthread_mutex_unlock(&print_lock);
}

void print_flush(void)
{
	if (!__atomic_load_n(&print_len, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&print_lock);
	if (print_len)
		print_out(print_buf, print_len);
	print_len = 0;
	pthread_mutex_unlock(&print_lock);
}
