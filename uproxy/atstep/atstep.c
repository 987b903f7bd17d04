// SPDX-License-Identifier: Apache-2.0
/*
 * atstep.c - serves a session up to the end of a step, together with the job's other proxies
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "atstep.h"
#include "comm_i.h"
#include "device_memory.h"
#include "fail.h"
#include "graph.h"
#include "meeting.h"
#include "park.h"
#include "records.h"
#include "repeat.h"
#include "serve.h"
#include "slice.h"
#include "stat_i.h"
#include "still.h"

#define LIMIT_MS_MAX	86400000ull
#define LAST_NS		1000000000ull	/* behind the deadline: who stands waits for others to say what they lack */
#define PATIENCE_NS	1000000000ull	/* for others at a boundary; twice the length of a step is added */
#define QUIET_NS	50000000ull	/* without a record the program is taken to do nothing */
#define OWES_NS		5000000ull	/* between two looks at the board, whose lock all proxies need */
#define WAIT_NS		10000000
#define CHECK_EACH	32u		/* records */

struct looking {
	struct sv_session *s;
	struct repeat *repeat;
	struct meeting *meeting;
	int (*tell)(uint64_t done, uint64_t total);
	struct why *why;
	uint64_t begun, deadline, quiet;	/* now_ns(); quiet: since when there is no record, or 0 */
	uint64_t records;
	uint64_t passed;			/* boundaries that were given up, since others did not come */
	uint64_t held;				/* requests in the ring that stay unanswered: 1 or 0 */
	uint64_t since;				/* now_ns() at the last boundary */
};

static uint64_t held_request;

uint64_t at_step_held(void)
{
	return held_request;
}

/* ------------------------------------------------------------------------------- records as items */

static bool is_host(const struct sv_session *s, uint64_t addr)
{
	return addr - (uintptr_t)s->arena < s->arena_len;
}

static enum repeat_kind copies(bool from_host, bool to_host)
{
	return from_host && !to_host ? REPEAT_TO_DEVICE : to_host && !from_host ? REPEAT_TO_HOST : REPEAT_WORK;
}

/* Is the record an item of repeat.h? Then *kind is its kind, and *what tells it from others of that kind. */
static bool is_item(const struct sv_session *s, const struct ring_record *rec, enum repeat_kind *kind,
		    uint64_t *what)
{
	const struct record *r = record_of(rec->op);
	const struct sv_copy3d *rows = rec->data;
	const struct sv_copy *copy = rec->data;

	*kind = REPEAT_WORK;
	*what = rec->op;
	if (!r || rec->len < r->size)
		return false;
	switch (rec->op) {
	case SV_OP_cuLaunchKernel:
		*what = ((const struct sv_launch *)rec->data)->function;
		return true;
	case SV_OP_cuGraphLaunch:
		*what = ((const struct sv_graph_launch *)rec->data)->exec;
		return true;
	case SV_OP_X_COLL:
		*kind = REPEAT_COLL;
		*what = ((const struct sv_coll *)rec->data)->comm;
		return true;
	case SV_OP_cuMemcpyAsync:
		*kind = copies(is_host(s, copy->src), is_host(s, copy->dst));
		return copy->len;
	case SV_OP_cuMemcpy3DAsync_v2:
		*kind = copies(!rows->src.array && is_host(s, rows->src.addr),
			       !rows->dst.array && is_host(s, rows->dst.addr));
		return true;
	case SV_OP_cuStreamSynchronize:
	case SV_OP_cuEventSynchronize:
	case SV_OP_cuCtxSynchronize:
		*kind = REPEAT_TO_HOST;
		return true;
	case SV_OP_cuMemsetD8Async:
	case SV_OP_cuMemsetD16Async:
	case SV_OP_cuMemsetD32Async:
	case SV_OP_cuMemsetD2D8Async:
	case SV_OP_cuMemsetD2D16Async:
	case SV_OP_cuMemsetD2D32Async:
	case SV_OP_cuLaunchHostFunc:
		return true;
	}
	return false;
}

/* Is the boundary, where the session is to stop, before this record? */
static bool stops_at(struct looking *l, const struct ring_record *rec)
{
	const struct record *r = record_of(rec->op);
	enum repeat_kind kind;
	uint64_t what;

	repeat_bytes(l->repeat, window_bytes(NULL));
	if (is_item(l->s, rec, &kind, &what))
		return repeat_item(l->repeat, kind, what);
	return r && r->flags & RECORD_ALLOC && repeat_here(l->repeat);
}

/* ------------------------------------------------------------------------------- giving up */

/* The reason for giving up: what this proxy has not found, or that others did not come. Returns it as -errno. */
static int lacks(struct looking *l)
{
	double s = (now_ns() - l->begun) / 1e9;
	int64_t seen = repeat_seen(l->repeat);
	uint32_t times;

	if (seen == -ENOMEM)
		return why_set(l->why, seen, "no memory to look for the step in its records");
	if (!seen)
		return why_set(l->why, -ETIMEDOUT, "it has had its device do nothing in %.0f s", s);
	if (l->passed)
		return why_set(l->why, -ETIMEDOUT, "%llu times it stood at the end of a step, and other ranks "
			       "did not", (unsigned long long)l->passed);
	if (repeat_known(l->repeat, &times))
		return why_set(l->why, -ETIMEDOUT, "its step, or those of other ranks, have not ended in %.0f s", s);
	if (seen == -E2BIG)
		return why_set(l->why, -E2BIG, "no step shows in its last %u launches, copies and collectives",
			       REPEAT_ITEMS);
	return why_set(l->why, -ETIMEDOUT, "no step shows in its last %lld launches, copies and collectives "
		       "(%.0f s)", (long long)seen, s);
}

/*
 * Shall this proxy go on with the search? 0, or -errno and the reason. at: it is at a boundary. stands: it has told
 * the meeting that it stands there.
 */
static int go_on(struct looking *l, bool at, bool stands)
{
	uint64_t now = now_ns();
	uint32_t times;
	int rc = 0;

	repeat_known(l->repeat, &times);
	if (l->tell(times, 0))
		rc = -ECANCELED;
	else if (ring_peer_gone(l->s->ring))
		rc = why_set(l->why, -ECONNRESET, "its process has ended");
	else if (meeting_state(l->meeting) == MEETING_LOST)
		return -ECANCELED;
	else if (repeat_seen(l->repeat) < 0 || now > l->deadline + (at ? LAST_NS : 0))
		rc = lacks(l);
	/* If the meeting was sealed before it could be failed, all stand, this proxy too: so it was in time. */
	return rc && (meeting_fail(l->meeting) != MEETING_SEALED || !stands) ? rc : 0;
}

/* ------------------------------------------------------------------------------- standing */

/* Has everything been done that the records before the boundary have asked for? */
static bool is_done(struct looking *l)
{
	struct sv_session *s = l->s;

	return !park_count() && comm_finished() && still_answered(ring_unanswered(s->ring), l->held) && still_idle(s);
}

/*
 * Stands at a boundary until all others do (1), or until this proxy must go on to its next boundary (0); or -errno.
 * request: the next record in the ring, which stays there, waits for an answer.
 */
static int stand(struct looking *l, bool request)
{
	uint64_t since = now_ns(), patience, looked = 0, now;
	bool stands = false, rests, late, owes = false;
	unsigned int naps = 0;
	uint32_t times;
	int rc;

	repeat_known(l->repeat, &times);
	patience = PATIENCE_NS + 2 * (since - l->begun) / (times ?: 1);
	l->held = request;
	l->since = since;
	for (;;) {
		if (comm_posted())
			comm_run(l->s);
		/* One that stands takes its turns, too: others need them. */
		rests = slice_rests(l->s, NULL);
		rc = session_failed(l->s);
		if (rc)
			return rc;
		if (!stands && rests && is_done(l)) {
			stands = true;
			meeting_arrive(l->meeting);
		}
		if (stands && meeting_state(l->meeting) == MEETING_SEALED)
			return 1;
		rc = go_on(l, true, stands);
		if (rc)
			return rc;
		/*
		 * It goes on when another rank's operation needs it, or after some time: others may wait for its program on
		 * the CPU, and a record that stays in the ring may do what a stream waits for.
		 */
		now = now_ns();
		late = now - since > patience && (stands || still_waits_for_program(l->s));
		if (now - looked > OWES_NS) {
			owes = comm_owes();
			looked = now;
		}
		if (late || owes) {
			if (stands && meeting_leave(l->meeting) == MEETING_SEALED)
				return 1;
			l->passed++;
			return 0;
		}
		still_nap(&naps);
	}
}

/* ------------------------------------------------------------------------------- serving */

/* The ring is empty: waits a moment for a record (0). 1: the program has been quiet, and here is a boundary. */
static int wait_record(struct looking *l)
{
	int64_t most = slice_idle(l->s);
	int rc = 0;

	if (l->quiet && now_ns() - l->quiet > QUIET_NS && repeat_here(l->repeat))
		return 1;
	l->quiet = l->quiet ?: now_ns();
	lock_may_wait("a record");
	comm_sleeps(true);
	if (!comm_posted() && !slice_due())
		rc = ring_wait(l->s->ring, most < 0 || most > WAIT_NS ? WAIT_NS : most);
	comm_sleeps(false);
	return rc == -EINTR || rc == -ETIMEDOUT ? 0 : rc;
}

/* Serves records, and stops at boundaries, until all proxies stand. 0 or -errno. */
static int serve(struct looking *l)
{
	struct sv_session *s = l->s;
	struct ring_record rec;
	int rc, at;

	for (;;) {
		if (!(l->records % CHECK_EACH) || l->quiet) {
			rc = go_on(l, false, false);
			if (rc)
				return rc;
		}
		if (comm_posted())
			comm_run(s);
		if (slice_due())
			slice_run(s);
		rc = session_failed(s);
		if (rc)
			return rc;
		repeat_bytes(l->repeat, window_bytes(NULL));
		rc = ring_peek(s->ring, &rec);
		if (rc < 0)
			return rc;
		at = rc ? stops_at(l, &rec) : wait_record(l);
		if (at < 0)
			return at;
		if (at) {
			at = stand(l, rc && rec.cpl);
			if (at)
				return at < 0 ? at : 0;
			repeat_pass(l->repeat);
			continue;
		}
		if (!rc)
			continue;
		l->quiet = 0;
		l->records++;
		serve_record(s, &rec);
	}
}

/* Maps the meeting of the conductor's fd, after a check that nobody can shrink it. */
static int join(struct looking *l, int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *p;

	if (fstat(fd, &st) || st.st_size < (off_t)sizeof(*l->meeting) ||
	    seals < 0 || (seals & MEETING_SEALS) != MEETING_SEALS)
		return why_set(l->why, -EPROTO, "the request brings no meeting");
	p = mmap(NULL, sizeof(*l->meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return why_set(l->why, -errno, "the meeting cannot be mapped: %s", strerror(errno));
	l->meeting = p;
	if (l->meeting->magic == MEETING_MAGIC && l->meeting->members)
		return 0;
	munmap(p, sizeof(*l->meeting));
	return why_set(l->why, -EPROTO, "the request brings no meeting");
}

int at_step(struct sv_session *s, const struct ctl_step *how, int fd,
	    int (*tell)(uint64_t done, uint64_t total), struct ctl_stepped *to, struct why *why)
{
	struct looking l = { .s = s, .tell = tell, .why = why, .begun = now_ns() };
	int rc = join(&l, fd);

	if (rc)
		return rc;
	l.deadline = l.begun + (how->limit_ms < LIMIT_MS_MAX ? how->limit_ms : LIMIT_MS_MAX) * 1000000;
	l.repeat = repeat_new(comm_talks());
	__atomic_store_n(&s->shared->at_step, 1, __ATOMIC_RELAXED);
	rc = l.repeat ? serve(&l) : why_set(why, -ENOMEM, "no memory");
	__atomic_store_n(&s->shared->at_step, 0, __ATOMIC_RELAXED);
	if (rc) {
		meeting_fail(l.meeting);
		why_text(why, rc, rc == -ECANCELED ? "another rank has given up" : ring_strerror(rc));
	} else {
		held_request = l.held;
		to->items = repeat_known(l.repeat, &to->times);
		to->passed = l.passed;
		to->ns = now_ns() - l.begun;
		to->stood_ns = now_ns() - l.since;
	}
	repeat_free(l.repeat);
	munmap(l.meeting, sizeof(*l.meeting));
	return rc;
}
