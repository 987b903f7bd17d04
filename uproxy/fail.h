/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fail.h - how a session fails, and how its client hears of deferred errors
 */
#ifndef FAIL_H
#define FAIL_H

#include "call.h"

/* Ends the session: the client broke a rule (static text), or a resource is lost. Any thread. */
void session_fail(struct sv_session *s, int err, const char *rule, uint16_t op, uint64_t seq);

/* The code with which the session has failed: then `failed_rule` and the like are there, too. 0: it has not. Any thread. */
static inline int session_failed(const struct sv_session *s)
{
	/* pairs with session_fail() */
	return __atomic_load_n(&s->failed, __ATOMIC_ACQUIRE);
}

/* Reports a deferred error (nobody waits for the record) or a sticky one. Any thread. */
void session_error(struct sv_session *s, CUresult r, uint16_t op, uint64_t seq);

/* Has the client ask for room before it hands in more (SV_LATE_FULL), or no longer. Any thread. */
void session_full(struct sv_session *s, bool full);

#endif
