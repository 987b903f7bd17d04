// SPDX-License-Identifier: Apache-2.0
/*
 * serve.c - the consumer: takes records, has them executed, logs them, answers
 *
 * A record that changes state is logged when it has been executed or handed to a worker, and is
 * answered after that. The consumer never waits for the device. Between two records it executes the
 * conductor's requests (control.c).
 */
#include <signal.h>
#include <stdlib.h>

#include "comm_i.h"
#include "cover.h"
#include "outside.h"
#include "park.h"
#include "uproxy_i.h"

#define ROOMS 8

void *sv_room(struct sv_session *s, unsigned int slot, uint64_t len)
{
	static __thread struct {
		void *p;
		uint64_t len;
	} room[ROOMS];
	void *p;

	(void)s;
	if (slot >= ROOMS || len > SINGVGPU_RECORD_MAX * 4ull)
		return NULL;
	if (len > room[slot].len) {
		p = realloc(room[slot].p, len);
		if (!p)
			return NULL;
		room[slot].p = p;
		room[slot].len = len;
	}
	return room[slot].p ? room[slot].p : (room[slot].p = malloc(8));
}

/* ------------------------------------------------------------------------------ answers */

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
		replay_answer(a->s, status);
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

/* ------------------------------------------------------------------------------ one record */

static int check_size(struct call *k, const struct record *r)
{
	if (!r || !r->fn)
		return 0;		/* the generated code does it */
	if (k->c.len < r->size || (k->c.len > r->size && !(r->flags & RECORD_TAIL)))
		return sv_bad(&k->c, "size of a record");
	return 0;
}

static void consume(struct sv_session *s, const struct ring_record *rec, bool log)
{
	int rc;

	if (log && !__atomic_load_n(&s->log_full, __ATOMIC_RELAXED)) {
		rc = journal_add(s, rec);
		if (!rc)
			return;
		/* The session runs on, and cannot be restored. */
		__atomic_store_n(&s->log_full, true, __ATOMIC_RELAXED);
		uproxy_say("the log takes no more records: %s", ring_strerror(rc));
	}
	ring_advance_past(s->ring, rec);
}

static inline void take(struct call *k, struct sv_session *s, const struct ring_record *rec)
{
	k->c.session = s;
	k->c.driver = &s->hal.drv;
	k->c.data = rec->data;
	k->c.len = rec->len;
	k->c.op = rec->op;
	k->c.reply_len = 0;
	k->c.status = 0;
	k->c.why = NULL;
	k->seq = rec->seq;
	k->cpl = rec->cpl;
	k->begin_ns = trace_on ? now_ns() : 0;
	k->bytes = 0;
	k->lane = 0;
}

int serve_again(struct sv_session *s, const struct ring_record *rec, const char **rule)
{
	const struct record *r = record_of(rec->op);
	CUresult later = CUDA_SUCCESS;
	struct call k;
	int rc;

	take(&k, s, rec);
	rc = check_size(&k, r);
	if (!rc)
		rc = record_run(r, &k);
	*rule = k.c.why;
	if (rc != CALL_LATER)
		return rc < 0 ? rc : (int)k.c.status;
	/* An object that ended has left the tables; the client knows the driver's error already. */
	rc = replay_wait(s, &later);
	if (!rc && later)
		uproxy_say("%s (record %llu) gives %d when it is executed again", op_name(rec->op),
			   (unsigned long long)rec->seq, later);
	return rc;
}

void serve_parked(struct sv_session *s, const struct ring_record *rec, const struct record *r)
{
	struct call k;
	int rc;

	take(&k, s, rec);
	rc = record_run(r, &k);
	if (rc < 0)
		session_fail(s, rc, rc == -ENOSYS ? "an unknown operation" : k.c.why, rec->op,
			     rec->seq);
	if (rc)
		return;
	/* It was logged when it came. */
	if (k.c.status && r->flags & RECORD_LOG)
		journal_failed(rec->seq);
	answer_call(&k);
}

/* Something is parked. Is the record taken care of? */
static bool is_parked(struct sv_session *s, const struct ring_record *rec, const struct record *r,
		      struct call *k)
{
	enum park_answer how;

	if (outside_stands)
		outside_look(s);
	how = park_take(s, rec, r);
	if (how == PARK_RUN)
		return false;
	consume(s, rec, how == PARK_PARKED && r->flags & RECORD_LOG);
	if (how == PARK_PARKED && !park_answered(rec, r))
		return true;
	/* Without it the order of its stream, and of its communicator's calls, would be another. */
	if (how == PARK_NO_MEMORY)
		session_fail(s, -ENOMEM, "no memory for what waits for other ranks", rec->op, rec->seq);
	k->c.status = how == PARK_PARKED ? CUDA_SUCCESS :
		      how == PARK_NOT_READY ? CUDA_ERROR_NOT_READY :
		      how == PARK_FAILED ? COVER_FAILS : CUDA_ERROR_OUT_OF_MEMORY;
	answer_call(k);
	return true;
}

int serve_record(struct sv_session *s, const struct ring_record *rec)
{
	const struct record *r = record_of(rec->op);
	struct call k;
	int rc;

	take(&k, s, rec);
	rc = check_size(&k, r);
	if (!rc && park_any && is_parked(s, rec, r, &k))
		return 0;
	if (!rc && r && r->flags & RECORD_WORKER) {
		rc = worker_call(r, &k);
		consume(s, rec, r->flags & RECORD_LOG);
		if (rc) {
			k.c.status = CUDA_ERROR_OUT_OF_MEMORY;
			answer_call(&k);
		}
		return 0;
	}
	if (!rc)
		rc = record_run(r, &k);
	if (rc < 0) {
		session_fail(s, rc, rc == -ENOSYS ? "an unknown operation" : k.c.why, rec->op,
			     rec->seq);
		return rc;
	}
	consume(s, rec, !k.c.status && r->flags & RECORD_LOG);
	if (rc != CALL_LATER)
		answer_call(&k);
	return 0;
}

static bool due(void *arg)
{
	struct sv_session *s = arg;

	return ring_due(s->ring) || comm_posted() || control_posted() || outside_due() ||
	       __atomic_load_n(&s->failed, __ATOMIC_RELAXED);
}

/* Waits for a record or other work, and moves the data of collectives meanwhile. Returns as ring_wait(). */
static int await_work(struct sv_session *s)
{
	bool busy = comm_busy();
	int rc = 0;

	if (busy && comm_drive(due, s))
		return ring_due(s->ring) ? ring_wait(s->ring, -1) : 0;
	comm_sleeps(true);
	if (!comm_posted() && !outside_due())
		rc = (busy ? ring_wait_yielding : ring_wait)(s->ring, -1);
	comm_sleeps(false);
	return rc;
}

#define RUN 64	/* records taken from the ring at once */

int session_serve(struct sv_session *s)
{
	struct ring_record rec[RUN];
	int rc;

	for (;;) {
		if (control_posted())
			control_run(s);
		if (comm_posted())
			comm_run(s);
		if (outside_due())
			outside_look(s);
		rc = ring_peek_run(s->ring, rec, RUN);
		if (rc > 0) {
			for (int i = 0; i < rc; i++)
				if (!__atomic_load_n(&s->failed, __ATOMIC_ACQUIRE))
					serve_record(s, &rec[i]);
		} else if (!rc) {
			stat_add(&s->stat->waits, 1);
			rc = await_work(s);
			if (rc == -EINTR)
				rc = 0;
		}
		if (__atomic_load_n(&s->failed, __ATOMIC_ACQUIRE))
			return s->failed;
		if (rc == -EPIPE)
			return 0;
		if (rc < 0) {
			session_fail(s, rc, rc == -EPROTO ? ring_why(s->ring) : ring_strerror(rc),
				     0, 0);
			return rc;
		}
	}
}
