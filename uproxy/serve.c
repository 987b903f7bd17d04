// SPDX-License-Identifier: Apache-2.0
/*
 * serve.c - takes a record from the ring: it is parked or executed, logged, answered
 *
 * The consumer logs a record that changes state: when it has executed it, before it answers; or when it has
 * handed it to a worker, which answers. The consumer never waits for the device.
 */
#include <signal.h>
#include <stdlib.h>

#include "answer.h"
#include "fail.h"
#include "journal.h"
#include "log.h"
#include "outside.h"
#include "park.h"
#include "records.h"
#include "serve.h"
#include "worker.h"

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

/* ------------------------------------------------------------------------------ one record */

static int check_size(struct call *k, const struct record *r)
{
	if (!r || !r->fn)
		return 0;		/* the generated dispatch checks its own */
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
		/* The session runs on without a log, so it cannot be restored any more. */
		__atomic_store_n(&s->log_full, true, __ATOMIC_RELAXED);
		uproxy_say("the log takes no more records: %s", ring_strerror(rc));
	}
	ring_advance_past(s->ring, rec);
}

int serve_again(struct sv_session *s, const struct ring_record *rec, const char **rule)
{
	const struct record *r = record_of(rec->op);
	struct call k;
	CUresult later;
	int rc;

	call_begin(&k, s, rec);
	rc = check_size(&k, r);
	if (!rc)
		rc = record_run(r, &k);
	*rule = k.c.why;
	if (rc != CALL_LATER)
		return rc < 0 ? rc : (int)k.c.status;
	/*
	 * An error is told in the log alone. The client has had one when the record was executed first, and a record
	 * that ends an object takes it out of the tables in any case.
	 */
	later = answer_wait(s->replay);
	if (later)
		uproxy_say("%s (record %llu) gives %d when it is executed again", op_name(rec->op),
			   (unsigned long long)rec->seq, later);
	return 0;
}

/* Something is parked. Has the record been parked, too, or answered? Else it is to be executed now. */
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
	/* To drop the record would change the order of its stream, and of its communicator's calls. */
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

	call_begin(&k, s, rec);
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
