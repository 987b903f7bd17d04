// SPDX-License-Identifier: Apache-2.0
/*
 * park.c - the queues of parked records
 *
 * A *position* is a queue and a ticket; it is passed when the queue has run that far. A stream's queue
 * is first in, first out; a record that a collective holds up has the tickets behind it. A parked record has a
 * list of positions, of other queues, that must be passed before it: the legacy stream's, a blocking
 * stream's, that of an event's record.
 *
 * Records in no stream's order are in other queues: `all` for those that wait for everything (the
 * ends of objects, in their order), `order` for those that later records wait for, too, and one for
 * each synchronisation of an event. Nothing waits for one of the last kind, which goes with its record;
 * all others are freed when nothing is parked.
 *
 * Positions refer to earlier records alone, so nothing waits in a circle.
 */
#include <stdlib.h>

#include "park.h"

struct position {
	struct queue *q;
	uint64_t ticket;
};

struct parked {
	struct parked *next;
	const struct record *row;
	uint64_t ticket;
	unsigned int npos;
	struct position *pos;
	struct ring_record rec;
	uint64_t data[];
};

struct queue {
	struct queue *next;
	struct stream *st;		/* NULL: of none, or of one that has ended */
	bool ordered;			/* of a stream */
	bool single;			/* goes with its record */
	struct parked *first, **last;
	uint64_t in, out;		/* tickets given, and passed */
	bool held;
};

/* The last parked record that recorded an event or posted to a communicator, and the last that uses it. */
struct name {
	uint64_t what;
	struct position made, used;
};

bool park_any;
static bool posts_closed;		/* atomic */

static struct queue *queues, *order, *all;
static struct name *names;
static size_t nnames, names_room;
static uint64_t parked;			/* records, and streams held */
static uint64_t records_parked;
static struct parked *running;		/* by park_run() */

#define COMM_NAME	(1ull << 63)	/* a communicator's number among names; handles do not have it */

bool park_busy(const struct stream *st)
{
	return st->queue && (st->queue->held || st->queue->first);
}

void park_posts(bool open)
{
	__atomic_store_n(&posts_closed, !open, __ATOMIC_RELEASE);
	if (!open)
		park_any = true;
}

static bool is_closed(const struct record *r)
{
	return r->park == PARK_POST && __atomic_load_n(&posts_closed, __ATOMIC_ACQUIRE);
}

uint64_t park_count(void)
{
	return records_parked;
}

static struct queue *queue_new(struct stream *st)
{
	struct queue *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->st = st;
	q->ordered = st;
	q->last = &q->first;
	q->next = queues;
	queues = q;
	if (st)
		st->queue = q;
	park_any = true;
	return q;
}

/* Nothing is parked or held: no position is of interest any more. */
static void forget_all(void)
{
	struct queue *q;

	while ((q = queues)) {
		queues = q->next;
		if (q->st)
			q->st->queue = NULL;
		free(q);
	}
	order = all = NULL;
	nnames = 0;
	park_any = false;
}

static bool passed(const struct position *p)
{
	return !p->q || p->q->out >= p->ticket;
}

/* ------------------------------------------------------------------------------ what a record waits for */

struct waits {
	struct position *pos;
	unsigned int n, room;
	bool failed;
};

static void wait_for(struct waits *w, struct position p)
{
	struct position *more;

	if (passed(&p))
		return;
	if (w->n == w->room) {
		unsigned int room = w->room ? 2 * w->room : 4;

		more = realloc(w->pos, room * sizeof(*more));
		if (!more) {
			w->failed = true;
			return;
		}
		w->pos = more;
		w->room = room;
	}
	w->pos[w->n++] = p;
}

static void wait_for_tail(struct waits *w, struct queue *q)
{
	if (q)
		wait_for(w, (struct position){ q, q->in });
}

static void wait_for_all(struct waits *w)
{
	for (struct queue *q = queues; q; q = q->next)
		if (q->ordered)
			wait_for_tail(w, q);
}

static struct name *name_find(uint64_t what)
{
	for (size_t i = 0; i < nnames; i++)
		if (names[i].what == what)
			return &names[i];
	return NULL;
}

static struct name *name_get(uint64_t what)
{
	struct name *n = name_find(what), *more;

	if (n)
		return n;
	if (nnames == names_room) {
		size_t room = names_room ? 2 * names_room : 64;

		more = realloc(names, room * sizeof(*more));
		if (!more)
			return NULL;
		names = more;
		names_room = room;
	}
	names[nnames] = (struct name){ .what = what };
	return &names[nnames++];
}

static uint64_t field(const struct ring_record *rec, uint16_t at)
{
	uint64_t v = 0;

	if (at && at - 1u + sizeof(v) <= rec->len)
		memcpy(&v, (const uint8_t *)rec->data + at - 1, sizeof(v));
	return v;
}

/* The stream that a record is in; NULL: its handler will refuse it. */
static struct stream *stream_of(struct sv_session *s, const struct ring_record *rec,
				const struct record *r)
{
	struct stream *st;

	if (sv_enter(s, field(rec, 1)) || uproxy_stream_find(s, field(rec, r->stream), &st))
		return NULL;
	return st;
}

/* What is put into the legacy stream waits for the blocking ones, and the other way round. */
static void wait_for_streams(struct waits *w, const struct stream *st)
{
	const struct context *c = st->context;

	if (st->legacy)
		for (const struct stream *b = c->streams; b; b = b->next) {
			if (b->blocking)
				wait_for_tail(w, b->queue);
		}
	else if (st->blocking)
		wait_for_tail(w, c->legacy.queue);
}

static uint64_t name_of(const struct ring_record *rec, const struct record *r)
{
	return r->park == PARK_POST ? COMM_NAME | field(rec, r->event) : field(rec, r->event);
}

/* ------------------------------------------------------------------------------ parking */

static enum park_answer park(struct queue *q, const struct ring_record *rec, const struct record *r,
			struct waits *w)
{
	struct parked *p = malloc(sizeof(*p) + ((rec->len + 7) & ~7ull));

	if (!p || w->failed) {
		free(p);
		free(w->pos);
		return PARK_NO_MEMORY;
	}
	*p = (struct parked){ .row = r, .ticket = ++q->in, .npos = w->n, .pos = w->pos, .rec = *rec };
	memcpy(p->data, rec->data, rec->len);
	p->rec.data = p->data;
	*q->last = p;
	q->last = &p->next;
	parked++;
	records_parked++;
	return PARK_PARKED;
}

static enum park_answer park_in_stream(struct sv_session *s, const struct ring_record *rec,
				  const struct record *r)
{
	struct stream *st = stream_of(s, rec, r);
	struct waits w = { 0 };
	struct name *n = NULL;
	struct position here;
	enum park_answer rc;

	if (!st)
		return PARK_RUN;
	wait_for_tail(&w, order);
	wait_for_streams(&w, st);
	if (r->event) {
		n = name_find(name_of(rec, r));
		/* Whoever records an event, or posts, comes after those who use what was there. */
		if (n)
			wait_for(&w, n->made);
		if (n && !r->waits)
			wait_for(&w, n->used);
	}
	if (!w.n && !w.failed && !park_busy(st) && !is_closed(r))
		return PARK_RUN;
	if (!st->queue && !queue_new(st)) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	if (r->event && !n && !(n = name_get(name_of(rec, r)))) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	rc = park(st->queue, rec, r, &w);
	here = (struct position){ st->queue, st->queue->in };
	if (rc == PARK_PARKED && n)
		*(r->waits ? &n->used : &n->made) = here;
	return rc;
}

bool park_posting(uint64_t comm)
{
	const struct name *n = name_find(COMM_NAME | comm);

	return n && !passed(&n->made);
}

static enum park_answer park_alone(const struct ring_record *rec, const struct record *r)
{
	struct queue **of = r->park == PARK_ORDER ? &order : r->park == PARK_ALL ? &all : NULL, *q;
	struct waits w = { 0 };
	struct name *n;

	wait_for_tail(&w, order);
	if (r->park == PARK_WAITS) {
		n = name_find(field(rec, r->event));
		if (n)
			wait_for(&w, n->made);
	} else {
		wait_for_all(&w);
		wait_for_tail(&w, all);
	}
	if (!w.n && !w.failed)
		return PARK_RUN;
	q = of && *of ? *of : queue_new(NULL);
	if (!q) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	if (of)
		*of = q;
	q->single = !of;
	return park(q, rec, r, &w);
}

static bool is_busy(struct sv_session *s, const struct ring_record *rec, const struct record *r)
{
	struct stream *st = r->stream ? stream_of(s, rec, r) : NULL;
	const uint16_t event[] = { r->event, r->event2 };
	struct waits w = { 0 };
	bool busy = false;

	if (st) {
		wait_for_streams(&w, st);
		busy = w.n || w.failed || park_busy(st);
		free(w.pos);
	}
	for (int i = 0; i < 2; i++) {
		struct name *n = event[i] ? name_find(field(rec, event[i])) : NULL;

		busy |= n && !passed(&n->made);
	}
	return busy;
}

enum park_answer park_take(struct sv_session *s, const struct ring_record *rec, const struct record *r)
{
	switch (r ? r->park : PARK_NEVER) {
	case PARK_STREAM:
	case PARK_POST:
		return park_in_stream(s, rec, r);
	case PARK_WAITS:
	case PARK_ALL:
	case PARK_ORDER:
		return park_alone(rec, r);
	case PARK_BUSY:
		return is_busy(s, rec, r) ? PARK_NOT_READY : PARK_RUN;
	default:
		return PARK_RUN;
	}
}

/* ------------------------------------------------------------------------------ holding and running */

int park_hold(struct sv_session *s, struct stream *st)
{
	(void)s;
	if (!st->queue && !queue_new(st))
		return -ENOMEM;
	/* A parked record has its ticket, which is passed when the stream is released. */
	if (!running)
		st->queue->in++;
	st->queue->held = true;
	parked++;
	return 0;
}

void park_release(struct stream *st)
{
	struct queue *q = st->queue;

	if (!q || !q->held)
		return;
	q->held = false;
	q->out++;
	parked--;
}

void park_leave(struct stream *st)
{
	park_release(st);
	if (st->queue)
		st->queue->st = NULL;
	st->queue = NULL;
}

static bool is_due(const struct queue *q)
{
	const struct parked *p = q->first;

	if (!p || q->held || is_closed(p->row))
		return false;
	for (unsigned int i = 0; i < p->npos; i++)
		if (!passed(&p->pos[i]))
			return false;
	return true;
}

static void run_first(struct sv_session *s, struct queue *q)
{
	struct parked *p = q->first;

	q->first = p->next;
	if (!q->first)
		q->last = &q->first;
	parked--;
	records_parked--;
	running = p;
	serve_parked(s, &p->rec, p->row);
	running = NULL;
	if (!q->held)
		q->out = p->ticket;
	free(p->pos);
	free(p);
}

void park_run(struct sv_session *s)
{
	struct queue **at, *q;
	bool some = true;

	while (some && parked) {
		some = false;
		for (at = &queues; (q = *at);) {
			while (is_due(q) && !__atomic_load_n(&s->failed, __ATOMIC_ACQUIRE)) {
				run_first(s, q);
				some = true;
			}
			if (!q->single || q->first) {
				at = &q->next;
				continue;
			}
			*at = q->next;
			free(q);
		}
	}
	if (!parked && !__atomic_load_n(&posts_closed, __ATOMIC_ACQUIRE))
		forget_all();
}
