// SPDX-License-Identifier: Apache-2.0
/*
 * freeze.c - freezes a session: closes the gate, drains the ring, waits until the device is idle
 *
 *   serving ── freeze: gate ─► drain, streams run dry ─► frozen ── thaw ─► serving
 *                                 └─ no progress: stream and cause are named ─┘
 *
 * Queued work has no limit. The timeout is for the time in which no record is served, no call
 * answered and no operation of a stream completed (mark.c).
 *
 * In a job of several ranks all proxies drain at once, and what all have posted runs to its end; calls that
 * wait for what is parked stay open. A session that has nothing left to do waits until that is so of all
 * (comm/save.c): until then an operation may start that brings parked records forward.
 *
 * Sharers of a device (slice/slice.h) go on to take turns until nobody has anything left to do in a slice.
 *
 * A session that stands at the end of a step (atstep.h) takes no further record: these stay in the ring.
 *
 * Meanwhile the client runs on. Its host functions run, too: the thread that asks for them passes
 * the gate (ring_request_anyway). An operation that waits for another act of the host (a value in
 * memory, a kernel that polls) holds up the dump until the timeout; then the session runs on.
 */
#include <stdio.h>
#include <stdlib.h>

#include "atstep.h"
#include "board.h"
#include "comm_i.h"
#include "content.h"
#include "context.h"
#include "control.h"
#include "cover.h"
#include "fail.h"
#include "handle.h"
#include "journal.h"
#include "outside.h"
#include "print.h"
#include "rebuild.h"
#include "serve.h"
#include "slice.h"
#include "stat_i.h"
#include "still.h"
#include "streams.h"
#include "worker.h"

_Static_assert(CTL_SEATS == BOARD_SEATS, "control.h repeats it");

#define LOOK_NS		10000000ull	/* between two looks at the streams */
#define IDLE_MS_MAX	86400000ull

/* ----------------------------------------------------------------- whether a dump is possible */

/* The checks that need no device. */
static int may_be(struct sv_session *s, struct why *why)
{
	int rc;

	lock_take(&s->error_lock);
	rc = s->latched || session_failed(s) ? -ENOTSUP : 0;
	lock_drop(&s->error_lock);
	if (rc)
		return why_set(why, rc, "an error has broken the context for good: nothing can be read "
			       "from the device any more; restart the job or restore an earlier "
			       "checkpoint");
	if (cover_fails())
		return why_set(why, -EBUSY, "a collective operation has failed, and the program has neither "
			       "aborted nor destroyed its communicator: until then its streams stand, and "
			       "what is in them cannot be saved");
	if (s->bypassed)
		return why_set(why, -ENOTSUP, "the program uses a driver library that singvgpu does not "
			       "see: what it has on the device cannot be saved (SINGVGPU_LOG=1 names it)");
	if (__atomic_load_n(&s->shares, __ATOMIC_RELAXED))
		return why_set(why, -ENOTSUP, "the program has shared device memory with another process "
			       "(cuMemExportToShareableHandle, cuIpcGetMemHandle, "
			       "cuMemPoolExportPointer and what opens those), or events: what two "
			       "sessions have in common cannot be saved");
	if (__atomic_load_n(&s->log_full, __ATOMIC_RELAXED))
		return why_set(why, -ENOTSUP,
			       "the channel's log is full, so it lacks objects that the job has made "
			       "on the device: restart the job");
	return 0;
}

/* ----------------------------------------------------------------- whether the device is idle */

struct freezing {
	struct sv_session *s;
	uint64_t begin, idle_ns, held_ns;
	int (*tell)(uint64_t done, uint64_t total);
	uint64_t looked, moved;		/* now_ns(): last look at the streams, last progress */
	uint64_t left, total;		/* operations of the streams: left, in all */
	uint64_t served, unanswered;	/* records, at the last look */
	uint64_t flood;			/* records served since the ring was empty */
	unsigned int naps;
	uint64_t cut;
	const uint64_t *seats;
	uint64_t left_open;		/* requests that stay in the ring */
	bool ends;			/* NCCL is just ending a communicator */
	struct why *why;
};

/* The driver may wait for the device before it answers what content_check asks it. */
int freeze_possible(struct sv_session *s, struct why *why)
{
	CUresult r = CUDA_SUCCESS;
	int rc = may_be(s, why);

	if (rc || !worker_idle() || still_busy(s, &r) || r)
		return rc;
	return content_check(s, why);
}

/* The number of operations left in all streams. */
static uint64_t count_left(struct sv_session *s)
{
	struct context **c;
	ssize_t n = handle_contexts(s, &c);
	struct stream *rest;
	uint64_t left = 0;

	for (ssize_t i = 0; i < n; i++) {
		if (s->hal.drv.cuCtxSetCurrent(c[i]->real))
			continue;
		for (struct stream *st = still_first(c[i], &rest); st; st = still_next(c[i], st, &rest))
			left += stream_left(s, st);
	}
	context_forget();
	free(c);
	return left;
}

/* Has anything happened since the last look? */
static void look(struct freezing *f, uint64_t unanswered)
{
	uint64_t now = now_ns(), left;

	if (f->looked && now - f->looked < LOOK_NS)
		return;
	f->looked = now;
	left = count_left(f->s);
	if (left != f->left || unanswered != f->unanswered || f->served)
		f->moved = now;
	/* Records served meanwhile have added operations. */
	if (left > f->left)
		f->total += left - f->left;
	f->left = left;
	f->unanswered = unanswered;
	f->served = 0;
}

/* "; 3 operations are left in it, and none was completed in 2.0 s (before: 77 in 8.1 s, 9.5 a second)" */
static void how_far(const struct freezing *f, const struct stream *st, char *text, size_t n)
{
	uint64_t done = f->total - f->left;
	double idle = (now_ns() - f->moved) / 1e9, before = (f->moved - f->begin) / 1e9;
	int at = snprintf(text, n, "%llu operations are left in it, and none was completed in %.1f s",
			  (unsigned long long)(st->ops - st->passed), idle);

	if (done && before > 0 && at < (int)n)
		snprintf(text + at, n - at, " (before: %llu in %.1f s, %.1f a second)",
			 (unsigned long long)done, before, done / before);
}

/* Nothing has moved for long: names what it waits for. 0: it has not been too long for that. */
static int blame(struct freezing *f, uint64_t unanswered)
{
	struct sv_session *s = f->s;
	struct stream *st;
	char text[128], name[64], far[160];
	CUresult r;
	bool late = now_ns() - f->moved > f->idle_ns, held;

	st = still_busy(s, &r);
	if (!st && hostfunc_holds())
		return why_set(f->why, -EBUSY, "a stream waits for a host function of the program that has not returned yet: checkpoint "
			       "again later, or give it a longer deadline");
	if (!st && !late)
		return 0;
	if (!st && f->ends)
		return why_set(f->why, -ETIMEDOUT, "NCCL has not ended a communicator that the program aborted or destroyed, or "
			       "that has failed: it waits for the other ranks: checkpoint again later");
	if (!st)
		return why_set(f->why, -ETIMEDOUT, worker_idle() ?
			       "%llu calls of the program are not answered yet" :
			       "a module or graph is still being loaded or compiled (%llu calls are "
			       "open)", (unsigned long long)unanswered);
	st = still_other(s, st);
	held = f->held_ns < f->idle_ns && (still_in_host_function(s, st) || st->wait_addr);
	if (!held && !late)
		return 0;
	still_name(st, name, sizeof(name));
	how_far(f, st, far, sizeof(far));
	return why_set(f->why, held ? -EBUSY : -ETIMEDOUT, "%s waits for %s; %s: checkpoint again "
		       "later, or give it a longer deadline", name, still_cause(s, st, text, sizeof(text)),
		       far);
}

/* Tells how far it is. Does nobody wait for the freeze any more? */
static bool forsaken(const struct freezing *f)
{
	return f->tell(f->total - f->left, f->total);
}

/* The ring is empty. Does everything stand still but the thread that asks for host functions? */
static int settled(void *arg, struct ring *r, uint64_t unanswered)
{
	struct freezing *f = arg;
	struct sv_session *s = f->s;
	struct stream *st = NULL;
	CUresult res = CUDA_SUCCESS;
	bool still, turn;

	(void)r;
	f->flood = 0;
	if (forsaken(f))
		return -ECANCELED;
	if (comm_posted())
		comm_run(s);
	if (outside_due())
		outside_look(s);
	if (cover_fails())
		return may_be(s, f->why);
	if (f->cut)
		comm_step_aside();
	still = slice_rests(s, &turn) && still_answered(unanswered, f->left_open);
	if (session_failed(s))
		return why_set(f->why, session_failed(s), "%s", s->failed_rule);
	if (turn)
		f->moved = now_ns();	/* the sharer that has the memory is late, and names the cause itself */
	if (still)
		st = still_busy(s, &res);
	if (res && res != CUDA_ERROR_NOT_READY)
		return why_set(f->why, -EIO, "the device is in error %d", res);
	f->ends = still && !st && !comm_halt(true);
	if (still && !st && !f->ends) {
		bool all;
		int rc = comm_cut(f->cut, f->seats, &all, f->why);

		if (rc)
			return rc;
		if (all) {
			hostfunc_release(s);
			return 1;
		}
		f->moved = now_ns();	/* another session is late, and names the cause itself */
		comm_halt(false);	/* it may wait for a communicator that has to end here, too */
	}
	look(f, unanswered);
	if (now_ns() - f->moved > f->held_ns) {
		int rc = blame(f, unanswered);

		if (rc)
			return rc;
	}
	still_nap(&f->naps);
	return 0;
}

static int serve_one(void *arg, struct ring *r, const struct ring_record *rec)
{
	struct freezing *f = arg;

	if (forsaken(f))
		return -ECANCELED;
	/* The gate is closed: a client that respects it can have filled the ring once. */
	if (++f->flood > 2 * ring_geometry(r)->ring_units)
		return why_set(f->why, -ETIMEDOUT,
			       "the program submits calls although the gate is closed");
	f->served++;
	if (comm_posted())
		comm_run(f->s);
	return serve_record(f->s, rec);
}

/* The device is idle: synchronises all contexts, which brings out printed text and errors. */
static int flush(struct sv_session *s, struct why *why)
{
	struct context **c;
	ssize_t count = handle_contexts(s, &c);
	CUresult r = count < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;

	lock_may_wait("the device");
	for (ssize_t i = 0; i < count && !r; i++) {
		r = s->hal.drv.cuCtxSetCurrent(c[i]->real);
		if (!r && s->hal.drv.cuCtxSynchronize)
			r = s->hal.drv.cuCtxSynchronize();
	}
	free(c);
	context_forget();
	print_pump(s);
	return r ? why_set(why, -EIO, "the device is in error %d", r) : 0;
}

/* ------------------------------------------------------------------------------ freeze, thaw */

int freeze(struct sv_session *s, const struct ctl_freeze *how,
	   int (*tell)(uint64_t done, uint64_t total), uint64_t *ns, struct why *why)
{
	uint64_t idle_ms = how->idle_ms < IDLE_MS_MAX ? how->idle_ms : IDLE_MS_MAX, held_ms = how->held_ms;
	uint64_t begin = now_ns();
	struct freezing f = { .s = s, .begin = begin, .moved = begin, .tell = tell, .why = why,
			      .cut = how->cut, .seats = how->seats };
	int rc = may_be(s, why);

	if (rc)
		return rc;
	f.idle_ns = idle_ms * 1000000;
	f.held_ns = held_ms && held_ms < idle_ms ? held_ms * 1000000 : f.idle_ns;
	f.left_open = how->at_step ? at_step_held() : 0;
	rc = ring_freeze_when(s->ring, how->at_step ? NULL : serve_one, settled, &f, -1);
	if (rc) {
		comm_cut_ends();
		return why_set(why, rc, "%s", rc == -ECANCELED ? "the conductor has gone" :
			       ring_strerror(rc));
	}
	stat_state(s, UPROXY_FROZEN);
	comm_stands(s, true);
	rc = flush(s, why);
	if (!rc && journal_compact(s) == -EBADMSG)
		rc = why_set(why, -EBADMSG, "the channel's log is damaged");
	/* The last of the work may have brought an error, so check again. */
	if (!rc)
		rc = may_be(s, why) ?: content_check(s, why);
	if (rc)
		thaw(s);
	*ns = now_ns() - begin;
	return rc;
}

int thaw(struct sv_session *s)
{
	int rc;

	comm_cut_ends();
	comm_stands(s, false);
	rc = ring_thaw(s->ring);
	stat_state(s, UPROXY_SERVING);
	return rc;
}
