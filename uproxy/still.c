// SPDX-License-Identifier: Apache-2.0
/*
 * still.c - whether a session stands still, and who is to blame if it does not
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm_i.h"
#include "context.h"
#include "handle.h"
#include "still.h"
#include "streams.h"
#include "worker.h"

/* ------------------------------------------------------------------------------ is it idle? */

bool still_answered(uint64_t unanswered, uint64_t more)
{
	return unanswered == hostfunc_open() + comm_open() + more && worker_idle();
}

struct stream *still_first(struct context *c, struct stream **rest)
{
	*rest = c->streams;
	return &c->legacy;
}

/* The streams of a context: the legacy one, the client's, and the one for destroyed ones. */
struct stream *still_next(struct context *c, struct stream *st, struct stream **rest)
{
	struct stream *next = *rest;

	if (next) {
		*rest = next->next;
		return next;
	}
	return st == c->grave ? NULL : c->grave;
}

/* The first busy stream; *r is the driver's answer. NULL: there is none. */
static struct stream *busy_in(struct sv_session *s, struct context *c, CUresult *r)
{
	struct stream *rest;

	*r = s->hal.drv.cuCtxSetCurrent(c->real);
	context_forget();
	for (struct stream *st = still_first(c, &rest); st; st = still_next(c, st, &rest)) {
		if (!*r)
			*r = s->hal.drv.cuStreamQuery(st->real);
		if (*r)
			return st;
	}
	return NULL;
}

struct stream *still_busy(struct sv_session *s, CUresult *r)
{
	struct stream *st = NULL;
	struct context **c;
	ssize_t n = handle_contexts(s, &c);

	*r = n < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	for (ssize_t i = 0; i < n && !st; i++)
		st = busy_in(s, c[i], r);
	free(c);
	return st;
}

bool still_idle(struct sv_session *s)
{
	CUresult r;

	return !still_busy(s, &r) && !r;
}

/* ------------------------------------------------------------------------------ who is to blame? */

/* The legacy stream is busy when a blocking stream is: finds that one, to name it. */
struct stream *still_other(struct sv_session *s, struct stream *st)
{
	struct context *c = st->context;

	for (struct stream *o = c->streams; st->legacy && o; o = o->next)
		if (o->blocking && s->hal.drv.cuStreamQuery(o->real) == CUDA_ERROR_NOT_READY)
			return o;
	return st;
}

bool still_in_host_function(const struct sv_session *s, const struct stream *st)
{
	/* pairs with run() of streams/hostfunc.c in the client */
	return st->call &&
	       __atomic_load_n((uint64_t *)arena_at(s, st->call_word), __ATOMIC_ACQUIRE) < st->call;
}

bool still_waits_for_program(struct sv_session *s)
{
	CUresult r;
	struct stream *st = still_busy(s, &r);

	if (!st || r != CUDA_ERROR_NOT_READY)
		return st;
	st = still_other(s, st);
	return still_in_host_function(s, st) || st->wait_addr;
}

const char *still_cause(const struct sv_session *s, const struct stream *st, char *text, size_t n)
{
	if (still_in_host_function(s, st))
		return "a host function of the program that has not returned yet";
	if (!st->wait_addr)
		return "a kernel or copy that does not end, or waits for the program";
	snprintf(text, n, "a value in memory at 0x%llx (cuStreamWaitValue), or a kernel that runs on",
		 (unsigned long long)st->wait_addr);
	return text;
}

void still_name(const struct stream *st, char *text, size_t n)
{
	if (st->legacy)
		snprintf(text, n, "the default stream");
	else if (st == st->context->grave)
		snprintf(text, n, "a stream that was destroyed");
	else
		snprintf(text, n, "stream %u (0x%llx)", sv_handle_index(st->handle),
			 (unsigned long long)st->handle);
}

void still_nap(unsigned int *naps)
{
	struct timespec t = { 0, *naps < 32 ? 20000 : *naps < 256 ? 200000 : 1000000 };

	lock_may_wait("the device");
	++*naps;
	nanosleep(&t, NULL);
}
