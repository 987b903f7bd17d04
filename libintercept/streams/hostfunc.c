// SPDX-License-Identifier: Apache-2.0
/*
 * hostfunc.c - host functions of streams, run by a thread of this process
 *
 *   cuLaunchHostFunc ── id, word ──► proxy: the stream reaches it, waits for word >= id
 *   runner ◄── SV_OP_X_NEXT_CALL: id is due ── runs it, stores id in word ──► the stream continues
 *      ◄── sv_shared.due, while the proxy waits for the device and has not read the request
 *
 * A device's runner starts with the first host function on one of its streams and requests the next
 * call for ever; it runs one call at a time, as NVIDIA's driver does. A stream's ids grow, so that one
 * word is enough for it.
 */
#include "arena.h"
#include "captured.h"
#include "context.h"
#include "hostfunc.h"
#include "send.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

struct call {
	struct call *next;
	uint64_t id;
	uint64_t word;			/* arena offset */
	CUhostFn fn;
	CUstreamCallback stream_fn;	/* cuStreamAddCallback's function, instead of fn */
	CUstream stream;
	void *arg;
	bool keep;			/* a graph's: runs at each launch */
};

#define BUCKETS 1024
#define LOOK_NS	100000		/* between two looks at sv_shared.due */

struct calls {			/* locks.hostfunc */
	struct call *bucket[BUCKETS];	/* by id */
	uint64_t ids;
};

static struct call *take(uint64_t id)
{
	struct call **p, *c;

	lock_take(&process.locks.hostfunc);
	for (p = &process.calls->bucket[id % BUCKETS]; (c = *p) && c->id != id; p = &c->next)
		;
	if (c && !c->keep)
		*p = c->next;
	lock_drop(&process.locks.hostfunc);
	return c;
}

static void run(const struct sv_next_call *due)
{
	struct call *c = take(due->id);
	uint64_t *word;
	bool keep;

	if (!c)
		return;
	keep = c->keep;		/* then another thread may free c as soon as its function returns */
	word = arena_at(c->word);
	__atomic_add_fetch(&process.called, 1, __ATOMIC_RELAXED);
	if (c->stream_fn)
		c->stream_fn(c->stream, due->status, c->arg);
	else if (!due->status)
		c->fn(c->arg);
	if (keep)
		return;
	__atomic_store_n(word, c->id, __ATOMIC_RELEASE);
	free(c);
}

/* Runs what is due without the request's answer, until the proxy has taken the request. */
static void run_meanwhile(struct ring_ticket *t)
{
	/* The client changes its tail. */
	struct sv_due *told = (struct sv_due *)&here->shared->due;
	struct sv_next_call due;

	while (!ring_taken(here->ring, t)) {
		if (sv_due_take(told, &due))
			run(&due);
		else if (ring_expect(here->ring, t, LOOK_NS) != -ETIMEDOUT)
			break;
	}
}

static void *runner(void *arg)
{
	struct sv_next_call due;

	here = arg;
	thread.in_callback = true;
	for (;;) {
		struct ring_ticket t;

		lock_may_wait("the next call");
		/*
		 * Not send_sync: this thread must not consume deferred errors. It passes a closed
		 * gate, since the freeze waits for streams that wait for this thread.
		 */
		if (ring_request_anyway(here->ring, &t, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0))
			break;
		run_meanwhile(&t);
		if (ring_await(here->ring, &t, NULL, &due, sizeof(due), NULL, -1))
			break;
		if (due.id)
			run(&due);
	}
	return NULL;
}

/* Start the runner, with signals blocked: they are the program's. locks.hostfunc is held. */
static CUresult start(void)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t t;
	int rc;

	assert_held(&process.locks.hostfunc);
	if (!process.calls)
		process.calls = calloc(1, sizeof(*process.calls));
	if (!process.calls)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (here->calling)
		return CUDA_SUCCESS;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&t, &attr, runner, here);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	here->calling = !rc;
	return rc ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Allocate the stream's word with its first call. */
static CUresult make_word(struct stream *s)
{
	uint64_t off;
	bool used;

	/* pairs with the store below */
	if (likely(__atomic_load_n(&s->call_word, __ATOMIC_ACQUIRE)))
		return CUDA_SUCCESS;
	TRY(arena_alloc(8, 64, NULL, &off));
	*(uint64_t *)arena_at(off) = 0;
	lock_take(&process.locks.hostfunc);
	used = !s->call_word;
	if (used)
		__atomic_store_n(&s->call_word, off, __ATOMIC_RELEASE);
	lock_drop(&process.locks.hostfunc);
	if (!used)
		arena_free(off);
	return CUDA_SUCCESS;
}

static CUresult add_call(struct stream *s, struct call *from, struct sv_host_func *a)
{
	struct call *c, **p;
	CUresult rc;

	if (s)
		TRY(make_word(s));
	c = malloc(sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = *from;
	lock_take(&process.locks.hostfunc);
	rc = start();
	if (!rc) {
		c->id = ++process.calls->ids;
		c->word = s ? s->call_word : 0;
		p = &process.calls->bucket[c->id % BUCKETS];
		c->next = *p;
		*p = c;
		a->id = c->id;
		a->word = c->word;
	}
	lock_drop(&process.locks.hostfunc);
	if (rc)
		free(c);
	return rc;
}

static CUresult enqueue(struct stream *s, struct call *from)
{
	struct sv_host_func a = { .ctx = s->o.ctx->o.handle, .stream = s->wire };
	CUresult rc;

	TRY(add_call(s, from, &a));
	rc = send_async(SV_OP_cuLaunchHostFunc, &a, sizeof(a), NULL, 0);
	if (rc)
		free(take(a.id));
	return rc;
}

CUresult hostfunc_keep(CUhostFn fn, void *arg, uint64_t *id)
{
	struct call c = { .fn = fn, .arg = arg, .keep = true };
	struct sv_host_func a;

	TRY(add_call(NULL, &c, &a));
	*id = a.id;
	return CUDA_SUCCESS;
}

void hostfunc_forget(uint64_t id)
{
	struct call *c;

	lock_take(&process.locks.hostfunc);
	for (c = process.calls->bucket[id % BUCKETS]; c && c->id != id; c = c->next)
		;
	if (c)
		c->keep = false;
	lock_drop(&process.locks.hostfunc);
	free(take(id));
}

API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *arg)
{
	struct call c = { .fn = fn, .arg = arg };
	struct hostfunc_args args = { fn, arg };
	struct stream *s;

	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	TRY(capture_legacy(s));
	if (s->capture)
		return capture_record(s, SV_OP_cuLaunchHostFunc, &args, sizeof(args), NULL, 0);
	return enqueue(s, &c);
}

API CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback fn, void *arg, unsigned int flags)
{
	struct call c = { .stream_fn = fn, .arg = arg, .stream = handle };
	struct stream *s;

	if (!fn || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_find(handle, &s));
	ON(s->o.ctx->session);
	if (s->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	TRY(capture_legacy(s));
	return enqueue(s, &c);
}
