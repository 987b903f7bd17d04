// SPDX-License-Identifier: Apache-2.0
/*
 * answer.c - records are answered and counted; while a log is executed again, one thread waits for each answer instead
 */
#include "answer.h"
#include "fail.h"
#include "log.h"
#include "outcome.h"
#include "records.h"
#include "stat_i.h"
#include "trace_i.h"

static void hand_over(struct replay_answer *r, CUresult status)
{
	lock_take(&r->lock);
	r->answered = true;
	r->status = status;
	pthread_cond_signal(&r->come);
	lock_drop(&r->lock);
}

CUresult answer_wait(struct replay_answer *r)
{
	CUresult status;

	lock_take(&r->lock);
	while (!r->answered)
		lock_wait(&r->lock, &r->come);
	r->answered = false;
	status = r->status;
	lock_drop(&r->lock);
	return status;
}

struct answer answer_later(const struct call *k)
{
	return (struct answer){ .s = k->c.session, .seq = k->seq, .begin_ns = k->begin_ns,
				.bytes = k->bytes, .op = k->c.op, .cpl = k->cpl };
}

/*
 * What a worker executes is in the log before its result is known. later: it answers by answer_now;
 * then what was to end has left the tables, so the log keeps its end.
 */
static bool logged_early(uint16_t op, bool later)
{
	const struct record *r = record_of(op);

	return r && r->flags & RECORD_LOG &&
	       (later ? !r->ends && !(r->flags & RECORD_ENDS_VALUE) : r->flags & RECORD_WORKER);
}

static void account(struct sv_session *s, uint16_t op, uint64_t seq, uint16_t cpl, CUresult r,
		    bool later)
{
	stat_add(&s->stat->calls, 1);
	if (cpl)
		stat_add(&s->stat->answered, 1);
	if (!r || (r == CUDA_ERROR_NOT_READY && cpl))
		return;
	if (logged_early(op, later))
		journal_failed(seq);
	stat_add(&s->stat->errors, 1);
	if (r == COVER_FAILS)
		log_result(op, seq, CUDA_ERROR_EXTERNAL_DEVICE);
	else if (!cpl || hal_sticky(r))
		session_error(s, r, op, seq);
	else
		log_result(op, seq, r);
}

/* The status as the client gets it. */
static int32_t told(CUresult r)
{
	return r == COVER_FAILS ? CUDA_ERROR_EXTERNAL_DEVICE : r;
}

void answer_now(const struct answer *a, CUresult status, const void *reply, uint16_t len)
{
	if (a->s->replay) {
		hand_over(a->s->replay, status);
		return;
	}
	if (trace_on)
		trace_span(a->op, 1, a->begin_ns, now_ns(), a->bytes);
	stat_thread();
	account(a->s, a->op, a->seq, a->cpl, status, true);
	if (a->cpl)
		ring_complete(a->s->ring, a->cpl, a->seq, told(status), reply, len);
}

void answer_call(struct call *k)
{
	struct sv_session *s = k->c.session;

	if (trace_on)
		trace_span(k->c.op, k->lane, k->begin_ns, now_ns(), k->bytes);
	account(s, k->c.op, k->seq, k->cpl, k->c.status, false);
	if (k->cpl)
		ring_complete(s->ring, k->cpl, k->seq, told(k->c.status), k->c.reply,
			      k->c.status ? 0 : k->c.reply_len);
}
