// SPDX-License-Identifier: Apache-2.0
/*
 * hostfunc.c - host functions of streams, run by a thread of this process
 *
 *   cuLaunchHostFunc ── id, word ──► proxy: the stream comes to it, waits for word >= id
 *   runner ◄── SV_OP_X_NEXT_CALL: id is due ── runs it, stores id in word ──► the stream goes on
 *
 * The runner starts with the first host function and asks for the next call for ever; one call runs
 * at a time, as with NVIDIA's driver. A stream's ids grow, so that one word serves it.
 */
#include "client.h"
#include "hostfunc.h"

#include <signal.h>
#include <stdlib.h>

struct call {
	struct call *next;
	uint64_t id;
	uint64_t word;			/* arena offset */
	CUhostFn fn;
	CUstreamCallback stream_fn;	/* of cuStreamAddCallback, instead */
	CUstream stream;
	void *arg;
	bool keep;			/* of a graph: runs at each launch */
};

#define BUCKETS 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct call *bucket[BUCKETS];	/* by id */
static uint64_t ids;
static bool running;

static struct call *take(uint64_t id)
{
	struct call **p, *c;

	pthread_mutex_lock(&lock);
	for (p = &bucket[id % BUCKETS]; (c = *p) && c->id != id; p = &c->next)
		;
	if (c && !c->keep)
		*p = c->next;
	pthread_mutex_unlock(&lock);
	return c;
}

static void run(const struct sv_next_call *due)
{
	struct call *c = take(due->id);
	uint64_t *word;
	bool keep;

	if (!c)
		return;
	keep = c->keep;		/* then c may be forgotten as soon as its function has returned */
	word = arena_at(c->word);
	if (c->stream_fn)
		c->stream_fn(c->stream, due->status, c->arg);
	else if (!due->status)
		c->fn(c->arg);
	if (keep)
		return;
	__atomic_store_n(word, c->id, __ATOMIC_RELEASE);
	free(c);
}

static void *runner(void *arg)
{
	struct sv_next_call due;

	(void)arg;
	thread.in_callback = true;
	for (;;) {
		struct ring_ticket t;

		/*
		 * Not send_sync: failures of other records are not for this thread to report. And not
		 * stopped by a dump's gate: the dump waits for streams that wait for this thread.
		 */
		if (ring_request_anyway(session.ring, &t, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0))
			break;
		if (ring_await(session.ring, &t, NULL, &due, sizeof(due), NULL, -1))
			break;
		if (due.id)
			run(&due);
	}
	return NULL;
}

/* Signals are for the program's own threads. */
static CUresult start(void)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t t;
	int rc;

	if (running)
		return CUDA_SUCCESS;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&t, &attr, runner, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	running = !rc;
	return rc ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult add(struct stream *s, struct call *from, struct sv_host_func *a)
{
	struct call *c = malloc(sizeof(*c));
	CUresult rc = CUDA_SUCCESS;

	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = *from;
	pthread_mutex_lock(&lock);
	rc = start();
	if (!rc && s && !s->call_word) {
		rc = arena_alloc(8, 64, NULL, &s->call_word);
		if (!rc)
			*(uint64_t *)arena_at(s->call_word) = 0;
	}
	if (!rc) {
		c->id = ++ids;
		c->word = s ? s->call_word : 0;
		c->next = bucket[c->id % BUCKETS];
		bucket[c->id % BUCKETS] = c;
		a->id = c->id;
		a->word = c->word;
	}
	pthread_mutex_unlock(&lock);
	if (rc)
		free(c);
	return rc;
}

static CUresult enqueue(struct stream *s, struct call *from)
{
	struct sv_host_func a = { .ctx = s->o.ctx->o.handle, .stream = s->wire };
	CUresult rc;

	TRY(add(s, from, &a));
	rc = send_async(SV_OP_cuLaunchHostFunc, &a, sizeof(a), NULL, 0);
	if (rc)
		free(take(a.id));
	return rc;
}

CUresult hostfunc_keep(CUhostFn fn, void *arg, uint64_t *id)
{
	struct call c = { .fn = fn, .arg = arg, .keep = true };
	struct sv_host_func a;

	TRY(add(NULL, &c, &a));
	*id = a.id;
	return CUDA_SUCCESS;
}

void hostfunc_forget(uint64_t id)
{
	struct call *c;

	pthread_mutex_lock(&lock);
	for (c = bucket[id % BUCKETS]; c && c->id != id; c = c->next)
		;
	if (c)
		c->keep = false;
	pthread_mutex_unlock(&lock);
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
	if (s->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	TRY(capture_legacy(s));
	return enqueue(s, &c);
}
