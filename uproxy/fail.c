// SPDX-License-Identifier: Apache-2.0
/*
 * fail.c - how a session fails, and how its client hears of deferred errors
 */
#include "fail.h"
#include "log.h"

#define LATE_TOLD	20		/* deferred errors that are logged; there may be millions */

void session_fail(struct sv_session *s, int err, const char *rule, uint16_t op, uint64_t seq)
{
	lock_take(&s->error_lock);
	if (!s->failed) {
		s->failed_rule = rule ?: "a rule of the protocol";
		s->failed_op = op;
		s->failed_seq = seq;
		/* pairs with session_failed() */
		__atomic_store_n(&s->failed, err, __ATOMIC_RELEASE);
	}
	lock_drop(&s->error_lock);
	ring_kick(s->ring);
}

/* error_lock */
static void store_late(struct sv_session *s)
{
	assert_held(&s->error_lock);
	__atomic_store_n(&s->shared->late,
			 (uint64_t)s->late << 32 | (s->full ? SV_LATE_FULL : 0) | s->late_error,
			 __ATOMIC_RELEASE);
}

void session_full(struct sv_session *s, bool full)
{
	lock_take(&s->error_lock);
	if (s->full != full) {
		s->full = full;
		store_late(s);
	}
	lock_drop(&s->error_lock);
}

void session_error(struct sv_session *s, CUresult r, uint16_t op, uint64_t seq)
{
	bool sticky = hal_sticky(r), first;

	lock_take(&s->error_lock);
	first = !sticky || !s->latched;
	if (sticky && !s->latched) {
		ring_latch_error(s->ring, seq, r);
		s->latched = true;
	}
	if (first) {
		s->late++;
		s->late_error = (uint32_t)r & ~(uint32_t)SV_LATE_FULL;
		store_late(s);
	}
	lock_drop(&s->error_lock);
	if (first && __atomic_fetch_add(&s->told, 1, __ATOMIC_RELAXED) < LATE_TOLD)
		uproxy_say("%s (record %llu) gives %d%s", op_name(op), (unsigned long long)seq, r,
			   sticky ? ": the context is broken" : "");
}
