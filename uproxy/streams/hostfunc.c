// SPDX-License-Identifier: Apache-2.0
/*
 * hostfunc.c - host functions in streams: the client runs them, the device waits for them
 *
 *   stream: … ─► callback: id is due ─► wait until the arena's word is >= id ─► …
 *   client: SV_OP_X_NEXT_CALL ◄─ id; calls the function; stores id in the word
 *
 * No thread of the driver waits for the client, but the consumer may. NVIDIA's queues have an end: a call
 * into a full one returns when the device has done some of the queue's work. When that work is behind a
 * host function, the client's request for the function may stand in the ring, unread. So a function
 * that is due without an open request is told in sv_shared.due. The client takes it there without a record.
 */
#include <stdlib.h>

#include "answer.h"
#include "common.h"
#include "context.h"
#include "device_memory.h"
#include "log.h"
#include "park.h"
#include "print.h"
#include "streams.h"

#define OPEN_MAX 64		/* requests; a client needs one or two */

struct due {
	struct due *next;
	uint64_t id;
	int32_t status;
};

static struct sv_due *told;
static uint32_t told_head;	/* told's own is read once: a session that was saved had a head */
static bool told_begun;
static struct due *first, **last = &first;	/* for which told has no room */
static struct answer open_requests[OPEN_MAX];
static unsigned int nopen;
static struct lock lock = LOCK_INIT(PROXY_HOSTFUNC);

/* Streams that are held until a host function returns, in a session that shares its device by slices. Consumer. */
struct held_stream {
	struct held_stream *next;
	struct stream *st;
	uint64_t id, word;
};
static struct held_stream *held_streams;

static void say_due(const struct answer *a, const struct due *d)
{
	struct sv_next_call n = { .id = d->id, .status = d->status };

	answer_now(a, CUDA_SUCCESS, &n, sizeof(n));
}

void hostfunc_begin(struct sv_session *s)
{
	told = &s->shared->due;
	told_begun = false;
}

/* Under the lock. */
static void tell_due(void)
{
	struct due *d;

	assert_held(&lock);
	if (!told_begun)
		told_head = __atomic_load_n(&told->head, __ATOMIC_RELAXED);
	told_begun = true;
	/* pairs with sv_due_take() */
	while ((d = first) && told_head - __atomic_load_n(&told->tail, __ATOMIC_ACQUIRE) < SV_DUE) {
		told->call[told_head % SV_DUE] = (struct sv_next_call){ .id = d->id,
									.status = d->status };
		__atomic_store_n(&told->head, ++told_head, __ATOMIC_RELEASE);
		first = d->next;
		if (!first)
			last = &first;
		free(d);
	}
}

static void due_now(void *arg, CUresult status)
{
	struct due *d = arg;
	struct answer a;

	d->status = status;
	d->next = NULL;
	lock_take(&lock);
	if (!nopen) {
		*last = d;
		last = &d->next;
		tell_due();
		lock_drop(&lock);
		return;
	}
	a = open_requests[--nopen];
	lock_drop(&lock);
	print_pump(a.s);
	say_due(&a, d);
	free(d);
}

void hostfunc_due(uint64_t id)
{
	struct due *d = malloc(sizeof(*d));

	if (!d) {
		uproxy_say("no memory to say that host function %llu is due",
			   (unsigned long long)id);
		return;
	}
	d->id = id;
	due_now(d, CUDA_SUCCESS);
}

int do_next_call(struct call *k)
{
	struct sv_next_call n;
	int rc = 0;

	if (!k->cpl)
		return sv_bad(&k->c, "a request for host functions that is not answered");
	lock_take(&lock);
	tell_due();
	if (sv_due_take(told, &n)) {
		memcpy(k->c.reply, &n, sizeof(n));
		k->c.reply_len = sizeof(n);
	} else if (nopen < OPEN_MAX) {
		open_requests[nopen++] = answer_later(k);
		rc = CALL_LATER;
	} else {
		rc = sv_bad(&k->c, "too many requests for host functions");
	}
	lock_drop(&lock);
	return rc;
}

unsigned int hostfunc_open(void)
{
	unsigned int n;

	lock_take(&lock);
	n = nopen;
	lock_drop(&lock);
	return n;
}

void hostfunc_release(struct sv_session *s)
{
	struct sv_next_call none = { .id = 0 };
	struct answer a;
	bool open;

	(void)s;
	do {
		lock_take(&lock);
		open = nopen;
		if (open)
			a = open_requests[--nopen];
		lock_drop(&lock);
		if (open)
			answer_now(&a, CUDA_SUCCESS, &none, sizeof(none));
	} while (open);
}

/*
 * A slice ends when the device is idle, so no stream in the driver may wait for the client. The proxy holds the stream
 * instead, as it does behind a collective that not all have posted.
 */
static CUresult hold_stream(struct stream *st, const struct sv_host_func *a)
{
	struct held_stream *h = malloc(sizeof(*h));

	if (!h || park_hold(st)) {
		free(h);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*h = (struct held_stream){ held_streams, st, a->id, a->word };
	held_streams = h;
	return CUDA_SUCCESS;
}

bool hostfunc_holds(void)
{
	return held_streams;
}

bool hostfunc_returned(const struct sv_session *s)
{
	struct held_stream *h, **at = &held_streams;
	bool any = false;

	while ((h = *at)) {
		/* pairs with run() of streams/hostfunc.c in the client */
		if (__atomic_load_n((uint64_t *)arena_at(s, h->word), __ATOMIC_ACQUIRE) < h->id) {
			at = &h->next;
			continue;
		}
		*at = h->next;
		park_release(h->st);
		free(h);
		any = true;
	}
	return any;
}

int do_host_func(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_host_func *a = k->c.data;
	struct stream *st;
	struct due *d;
	CUresult r;
	int rc;

	if (!a->id || a->word % 8 || !arena_pinned(s, a->word, 8))
		return sv_bad(&k->c, "id or word of a host function");
	rc = sv_enter(s, a->ctx);
	if (rc < 0)
		k->c.why = "context of a host function";
	if (!rc) {
		rc = stream_use(s, a->stream, &st);
		if (rc < 0)
			k->c.why = "stream of a host function";
	}
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	d = malloc(sizeof(*d));
	if (!d)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	d->id = a->id;
	st->call = a->id;
	st->call_word = a->word;
	r = hal_notify(&s->hal, st->real, due_now, d);
	if (r) {
		free(d);
		return fails(k, r);
	}
	if (common_on)
		return fails(k, hold_stream(st, a));
	return fails(k, s->hal.drv.cuStreamWaitValue64_v2(st->real, (uintptr_t)arena_at(s, a->word),
							  a->id, CU_STREAM_WAIT_VALUE_GEQ));
}
