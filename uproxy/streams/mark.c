// SPDX-License-Identifier: Apache-2.0
/*
 * mark.c - how far a stream has come in the operations that are queued in it
 *
 * A driver tells only whether a stream is idle. So events are recorded between operations, and a
 * freeze asks which of them have completed. A stream has at most MARKS of them:
 *
 *   the first operations after the stream was idle  a mark between any two
 *   no place is left                                completed marks are dropped, then every second
 *                                                   one until half are left; from now on a mark
 *                                                   every GAP operations, or every GAP-th part of
 *                                                   the queue, if that is more
 *
 * So however deep the queue is, a small part of it lies between two marks, and a program that never
 * waits has an event recorded for one operation in GAP. A mark is recorded before an operation, not
 * after it: a program that waits for each operation gets no marks, and a mark in the legacy stream
 * waits for nothing that the next operation would not wait for. Consumer.
 */
#include <stdlib.h>

#include "context.h"
#include "streams.h"

#define MARKS	32
#define GAP	16

struct mark {
	CUevent event;		/* kept and recorded again; NULL: there is none yet */
	uint64_t ops;		/* operations before it */
};

struct marks {
	unsigned int n;		/* recorded marks, in order; the events behind them are free */
	uint64_t gap, newest;	/* operations between two, and before the newest */
	struct mark mark[MARKS];
};

static void drop_done(struct sv_session *s, struct stream *st)
{
	struct marks *m = st->marks;
	struct mark free[MARKS];
	unsigned int done = 0;

	while (done < m->n && !s->hal.drv.cuEventQuery(m->mark[done].event))
		done++;
	if (!done)
		return;
	st->passed = m->mark[done - 1].ops;
	memcpy(free, m->mark, done * sizeof(*free));
	memmove(m->mark, m->mark + done, (MARKS - done) * sizeof(*free));
	memcpy(m->mark + MARKS - done, free, done * sizeof(*free));
	m->n -= done;
}

static void make_room(struct sv_session *s, struct stream *st)
{
	struct marks *m = st->marks;

	drop_done(s, st);
	for (m->gap = GAP; m->gap < (st->ops - st->passed) / GAP; )
		m->gap *= 2;
	while (m->n > MARKS / 2) {
		for (unsigned int i = 1; i < m->n; i += 2) {
			struct mark other = m->mark[i / 2];

			m->mark[i / 2] = m->mark[i];
			m->mark[i] = other;
		}
		m->n /= 2;
	}
}

void stream_mark(struct sv_session *s, struct stream *st)
{
	struct marks *m = st->marks;
	struct mark *next;

	if (st->passed == st->ops || stream_known_idle(st)) {
		st->passed = st->ops;
		if (m) {
			m->n = 0;
			m->gap = 1;
			m->newest = st->ops;
		}
		return;
	}
	if (!m) {
		m = st->marks = calloc(1, sizeof(*m));
		if (!m)
			return;
		m->gap = 1;
	}
	if (st->ops - m->newest < m->gap)
		return;
	if (m->n == MARKS)
		make_room(s, st);
	next = &m->mark[m->n];
	/* An error here comes back with the operation, or a freeze lacks this mark. */
	if (!next->event && s->hal.drv.cuEventCreate(&next->event, CU_EVENT_DISABLE_TIMING))
		return;
	m->newest = next->ops = st->ops;
	if (!s->hal.drv.cuEventRecord(next->event, st->real))
		m->n++;
}

uint64_t stream_left(struct sv_session *s, struct stream *st)
{
	if (st->passed == st->ops)
		return 0;
	if (st->marks)
		drop_done(s, st);
	if (!s->hal.drv.cuStreamQuery(st->real))
		st->passed = st->ops;
	return st->ops - st->passed;
}

void stream_unmark(struct sv_session *s, struct stream *st)
{
	for (unsigned int i = 0; st->marks && i < MARKS; i++)
		if (st->marks->mark[i].event)
			s->hal.drv.cuEventDestroy_v2(st->marks->mark[i].event);
	free(st->marks);
	st->marks = NULL;
}
