// SPDX-License-Identifier: Apache-2.0
/*
 * loop.c - the consumer's loop: takes records from the ring; between two of them it executes the conductor's requests
 * (control.c), and what other ranks have posted
 */
#include "comm_i.h"
#include "control_i.h"
#include "fail.h"
#include "outside.h"
#include "serve.h"
#include "slice.h"
#include "stat_i.h"

static bool due(void *arg)
{
	struct sv_session *s = arg;

	return ring_due(s->ring) || comm_posted() || slice_due() || control_posted() || outside_due() ||
	       session_failed(s);
}

/* Waits for a record or other work, and moves the data of collectives meanwhile. Returns as ring_wait(). */
static int await_work(struct sv_session *s)
{
	bool busy = comm_busy();
	int64_t most = slice_idle(s);
	int rc = 0;

	if (!most)
		return 0;
	if (busy && comm_drive(due, s))
		return ring_due(s->ring) ? ring_wait(s->ring, -1) : 0;
	lock_may_wait("a record");
	comm_sleeps(true);
	if (!comm_posted() && !slice_due() && !outside_due())
		rc = (busy ? ring_wait_yielding : ring_wait)(s->ring, most);
	comm_sleeps(false);
	return rc == -ETIMEDOUT ? 0 : rc;
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
		if (slice_due())
			slice_run(s);
		if (outside_due())
			outside_look(s);
		rc = ring_peek_run(s->ring, rec, RUN);
		if (rc > 0) {
			for (int i = 0; i < rc; i++)
				if (!session_failed(s))
					serve_record(s, &rec[i]);
		} else if (!rc) {
			stat_add(&s->stat->waits, 1);
			rc = await_work(s);
			if (rc == -EINTR)
				rc = 0;
		}
		if (session_failed(s))
			return session_failed(s);
		if (rc == -EPIPE)
			return 0;
		if (rc < 0) {
			session_fail(s, rc, rc == -EPROTO ? ring_why(s->ring) : ring_strerror(rc),
				     0, 0);
			return rc;
		}
	}
}
