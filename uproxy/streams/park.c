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
 * each synchronisation of an event and each change of a graph. All are freed when nothing is parked, and
 * those of the last kind and of destroyed streams some time before.
 *
 * Positions refer to earlier records alone, so nothing waits in a circle.
 *
 * Nothing here is looked at again and again while it waits, however much is parked. A queue is in one place:
 *
 *   ready ── its first record is looked at ──► runs
 *     ▲            │ a position has not been passed: among the waiters of that queue, by ticket
 *     ├────────────┤ collectives are not posted now: closed; there is no room: roomless
 *     │            └ its stream is held: nowhere
 *     └── the position is passed, collectives are posted again, there is room, the stream is released
 *
 * A *version* of an event is one recording of it, as long as a parked record needs that. As in CUDA, an event
 * may be recorded again while waits for the earlier recording are open, and nothing waits for these: the
 * earlier version gets an event of its own, a copy.
 *
 * A queue *stands* while its stream covers a failed operation (cover.h). All of it that is not passed is *bad* then,
 * and in other queues each record with a bad position, and what is behind it. Nothing that is bad runs; what the
 * program waits for there is answered at once, and does nothing when its turn comes.
 *
 *   recorded, in the event ── a later one is recorded, waits are parked ──► in a copy
 *   parked ── runs, is the latest so far ──► in the event
 *      └───── runs, a later one has run ───► in a copy if waits are parked, else nowhere
 */
#include <stdlib.h>

#include "answer.h"
#include "context.h"
#include "cover.h"
#include "device_memory.h"
#include "fail.h"
#include "handle.h"
#include "outcome.h"
#include "outside.h"
#include "park.h"
#include "records.h"
#include "streams.h"

struct position {
	struct queue *q;
	uint64_t ticket;
};

struct version {
	uint64_t event;
	uint64_t number;
	unsigned int refs;		/* parked records: its own, and waits */
	CUevent copy;			/* NULL: the event has it */
	struct cover cover;		/* the copy's */
};

struct parked {
	struct parked *next;
	const struct record *row;
	struct version *version;	/* what it records or waits for, or NULL */
	uint64_t ticket;
	unsigned int npos, at;		/* at: those before it have been passed */
	bool answered;			/* bad: does nothing any more */
	bool ahead;			/* park_ahead() has handed it out */
	struct position *pos;
	struct parked *same;		/* in its list of by_seq */
	struct ring_record rec;
	uint64_t data[];
};

struct queue {
	struct queue *next;
	struct stream *st;		/* NULL: of none, or of one that has been destroyed */
	struct parked *first, **last;
	uint64_t in, out;		/* tickets given, and passed */
	uint64_t bad;			/* tickets from here on are; 0: none */
	struct load {			/* what is parked here; of a stream's */
		uint64_t records, bytes;
	} load;
	bool full;			/* too much, and not yet half of that again */
	bool held;
	bool listed;			/* in one of the three lists, or among another's waiters */
	bool fresh;			/* in `fresh`: has tickets that the end of no object waits for */
	struct queue *fresh_next;
	struct queue *list_next;	/* in `ready`, `closed`, `roomless`; of waiters, the next sibling */
	/* A heap of the queues that wait for a ticket of this one. */
	struct queue *waiters;
	struct queue *child;
	uint64_t ticket;		/* that it waits for itself */
	bool stands, holds;		/* holds: a ticket of its own for that, as nothing else was there */
};

/*
 * Of an event, a communicator or an instantiated graph: the last parked record that recorded it, posted to it or
 * changed it, and the last that uses it.
 */
struct name {
	struct name *next;		/* in its bucket */
	uint64_t what;
	struct position made, used;
	unsigned int open;		/* parked records of it */
	/* Of an event's versions, the number of the last one, and of the one that the event has; and
	 * these two themselves, if something refers to them. */
	uint64_t last_number, held_number;
	struct version *last, *held;
	uint64_t told;			/* each(): the last number so far, and whether there is one */
	bool any_told;
};

bool park_any;
static bool is_away;			/* park_away() */
static bool (*may_post)(uint64_t comm, uint64_t seq);	/* NULL: each; atomic */

static struct queue *queues, *order, *all;
static struct queue *ready, *closed, *fresh;
static struct queue *roomless;		/* PARK_ROOM, while the session has too much parked */
static struct load load;		/* of the session */
static bool full;			/* the same as a queue's */
static uint32_t queues_full, queues_stand, queues_held;
static struct name **names;		/* buckets */
static size_t nnames, names_room, names_new;	/* new: since the last tidy() */
static struct parked **by_seq;		/* buckets */
static size_t seq_room;
static uint64_t records_parked, calls_parked;
static uint64_t queues_idle;		/* that the next tidy() may free */
static struct parked *running;		/* by park_run() */
static bool again;			/* a saved record is parked, due or not */
static uint64_t *expected;		/* numbers of saved records, ascending */
static size_t nexpected, expected_room;

#define IDLE_MAX	64u
#define COMM_NAME	(1ull << 63)	/* a communicator's number among names; handles do not have it */

/* Is the stream held, or is something parked in it? */
static bool park_busy(const struct stream *st)
{
	return st->queue && (st->queue->held || st->queue->stands || st->queue->first);
}

void park_posts(bool (*may)(uint64_t comm, uint64_t seq))
{
	__atomic_store_n(&may_post, may, __ATOMIC_RELEASE);
	if (may)
		park_any = true;
}

void park_away(bool away)
{
	is_away = away;
	park_any |= away;
}

bool park_answered(const struct ring_record *rec, const struct record *r)
{
	const struct sv_graph_req *a = rec->data;

	/* What it describes must be in it. */
	return r->answered && rec->len > r->size && !(a->flags & SV_GRAPH_SURE);
}

uint64_t park_count(void)
{
	return records_parked;
}

uint64_t park_open(void)
{
	return calls_parked;
}

static struct queue *queue_new(struct stream *st)
{
	struct queue *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->st = st;
	q->last = &q->first;
	q->next = queues;
	queues = q;
	if (st)
		st->queue = q;
	park_any = true;
	return q;
}

static void make_fresh(struct queue *q)
{
	if (q->fresh)
		return;
	q->fresh = true;
	q->fresh_next = fresh;
	fresh = q;
}

/* A position of the queue has been given away. */
static uint64_t next_ticket(struct queue *q)
{
	make_fresh(q);
	return ++q->in;
}

/* Its first record is to be looked at. */
static void make_ready(struct queue *q)
{
	if (q->listed)
		return;
	q->listed = true;
	q->list_next = ready;
	ready = q;
}

/* ------------------------------------------------------------------------------ who waits for a ticket
 *
 * A pairing heap, the least ticket first. It needs no memory of its own, so that nothing fails when a record
 * that has been parked is looked at.
 */

static struct queue *meld(struct queue *a, struct queue *b)
{
	struct queue *first, *later;

	if (!a || !b)
		return a ? a : b;
	first = a->ticket <= b->ticket ? a : b;
	later = first == a ? b : a;
	later->list_next = first->child;
	first->child = later;
	return first;
}

/* Melds the children of a root that goes: in pairs, then these from the last one on. */
static struct queue *meld_all(struct queue *children)
{
	struct queue *pairs = NULL, *root = NULL, *a, *b, *pair;

	while ((a = children)) {
		b = a->list_next;
		children = b ? b->list_next : NULL;
		a->list_next = NULL;
		if (b)
			b->list_next = NULL;
		pair = meld(a, b);
		pair->list_next = pairs;
		pairs = pair;
	}
	while ((pair = pairs)) {
		pairs = pair->list_next;
		pair->list_next = NULL;
		root = meld(root, pair);
	}
	return root;
}

static void wait_in(struct queue *q, const struct position *p)
{
	q->listed = true;
	q->list_next = q->child = NULL;
	q->ticket = p->ticket;
	p->q->waiters = meld(p->q->waiters, q);
}

/* The queue has run that far. */
static void passes(struct queue *q, uint64_t out)
{
	struct queue *w;

	q->out = out;
	while ((w = q->waiters) && w->ticket <= out) {
		q->waiters = meld_all(w->child);
		w->listed = false;
		w->child = NULL;
		make_ready(w);
	}
}

static void names_free(void)
{
	for (size_t i = 0; i < names_room; i++)
		for (struct name *n; (n = names[i]);) {
			names[i] = n->next;
			free(n);
		}
	nnames = names_new = 0;
}

/* Is a position of interest to what comes next? */
static bool is_open(void)
{
	return records_parked || queues_held || queues_stand;
}

/* Nothing is parked, held or stands, and so nothing is full. */
static void forget_all(void)
{
	struct queue *q;

	while ((q = queues)) {
		queues = q->next;
		if (q->st)
			q->st->queue = NULL;
		free(q);
	}
	order = all = ready = closed = fresh = roomless = NULL;
	queues_idle = 0;
	names_free();
	park_any = false;
}

/* A queue that stands has a ticket that is not passed: others' positions there wait. */
static void take_ticket(struct queue *q)
{
	if (q->out < q->in)
		return;
	q->holds = true;
	next_ticket(q);
}

static void goes_on(struct queue *q)
{
	if (!q->stands)
		return;
	q->stands = false;
	queues_stand--;
	if (q->holds)
		passes(q, q->out + 1);
	q->holds = false;
	make_ready(q);
}

/* Its end has waited for all that was parked: it is not held, and does not stand. */
void park_stream_gone(struct stream *st)
{
	if (!st->queue)
		return;
	st->queue->st = NULL;
	queues_idle++;
	st->queue = NULL;
}

static bool passed(const struct position *p)
{
	return !p->q || p->q->out >= p->ticket;
}

static bool is_bad(const struct position *p)
{
	return !passed(p) && p->q->bad && p->ticket >= p->q->bad;
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

/*
 * All that is parked, for the end of an object, or what waits like one. Each of these waits for those before it, by
 * the tail of `order` or as their queue is fresh, so it need not wait for what they wait for.
 */
static void wait_for_all(struct waits *w)
{
	for (struct queue *q; (q = fresh);) {
		wait_for_tail(w, q);
		q->fresh = false;
		fresh = q->fresh_next;
	}
}

static size_t bucket_of(uint64_t number, size_t room)
{
	return (number * 0x9e3779b97f4a7c15ull >> 32) % room;
}

static struct name *name_find(uint64_t what)
{
	struct name *n = names_room ? names[bucket_of(what, names_room)] : NULL;

	for (; n && n->what != what; n = n->next)
		;
	return n;
}

static void forget_passed(struct position *p)
{
	if (passed(p))
		*p = (struct position){ 0 };
}

/* Drops names and queues that nothing refers to, while something is parked all the time. */
static void tidy(void)
{
	struct queue **at, *q;

	for (q = queues; q; q = q->next)
		for (struct parked *p = q->first; p; p = p->next)
			for (unsigned int i = p->at; i < p->npos; i++)
				forget_passed(&p->pos[i]);
	for (size_t i = 0; i < names_room; i++)
		for (struct name **of = &names[i], *n; (n = *of);) {
			forget_passed(&n->made);
			forget_passed(&n->used);
			if (n->open) {
				of = &n->next;
				continue;
			}
			*of = n->next;
			free(n);
			nnames--;
		}
	for (at = &fresh; (q = *at);) {
		if (q->out < q->in) {
			at = &q->fresh_next;
			continue;
		}
		*at = q->fresh_next;
		q->fresh = false;
	}
	for (at = &queues; (q = *at);) {
		if (q->st || q == order || q == all || q->first || q->out < q->in || q->listed) {
			at = &q->next;
			continue;
		}
		*at = q->next;
		free(q);
	}
	names_new = 0;
	queues_idle = 0;
}

/* How many names or queues may have become idle before a tidy(), which looks at all that is parked. */
static uint64_t idle_most(void)
{
	return IDLE_MAX + records_parked / 2;
}

static bool names_grow(void)
{
	size_t room = names_room ? 2 * names_room : 64;
	struct name **more = calloc(room, sizeof(*more));

	if (!more)
		return false;
	for (size_t i = 0; i < names_room; i++)
		for (struct name *n; (n = names[i]);) {
			struct name **to = &more[bucket_of(n->what, room)];

			names[i] = n->next;
			n->next = *to;
			*to = n;
		}
	free(names);
	names = more;
	names_room = room;
	return true;
}

static struct name *name_get(uint64_t what)
{
	struct name *n = name_find(what), **to;

	if (n)
		return n;
	if (names_new > idle_most() + nnames / 2)
		tidy();
	n = calloc(1, sizeof(*n));
	if (!n || (nnames >= names_room && !names_grow() && !names_room)) {
		free(n);
		return NULL;
	}
	to = &names[bucket_of(what, names_room)];
	n->what = what;
	n->next = *to;
	*to = n;
	nnames++;
	names_new++;
	return n;
}

static uint64_t field(const struct ring_record *rec, uint16_t at)
{
	uint64_t v = 0;

	if (at && at - 1u + sizeof(v) <= rec->len)
		memcpy(&v, (const uint8_t *)rec->data + at - 1, sizeof(v));
	return v;
}

/* Does a record of collectives read this rank's memory? */
static bool sends(const struct ring_record *rec)
{
	const struct sv_coll *a = rec->data;
	const struct sv_coll_call *call = (const void *)(a + 1);

	if (rec->len < sizeof(*a) || a->calls > (rec->len - sizeof(*a)) / sizeof(*call))
		return true;		/* its handler refuses it */
	for (uint32_t i = 0; i < a->calls; i++)
		if (call[i].kind != SV_COLL_RECV)
			return true;
	return false;
}

/* Does it wait for the session's memory? */
static bool is_elsewhere(const struct ring_record *rec, const struct record *r)
{
	return is_away && r->touches && (r->park != PARK_POST || sends(rec));
}

/* Is it a collective that is not posted now? */
static bool is_refused(const struct ring_record *rec, const struct record *r)
{
	/* pairs with park_posts() */
	bool (*may)(uint64_t comm, uint64_t seq) = r->park == PARK_POST ? __atomic_load_n(&may_post, __ATOMIC_ACQUIRE) : NULL;

	return may && !may(field(rec, r->event), rec->seq);
}

static bool is_closed(const struct ring_record *rec, const struct record *r)
{
	return is_refused(rec, r) || is_elsewhere(rec, r);
}

bool park_waits(void)
{
	for (const struct queue *q = closed; q; q = q->list_next)
		if (!is_refused(&q->first->rec, q->first->row))
			return true;
	return false;
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

/* ------------------------------------------------------------------------------ collectives that need not wait */

/* Can the record be skipped by what comes behind it, if that is a collective? Recordings of events, and waits for them. */
static bool lets_pass(const struct parked *p)
{
	return p->version || p->ahead;
}

/* Is the position that of a collective that is ahead, of the same communicator? */
static bool is_ahead(const struct position *at, uint64_t comm)
{
	const struct parked *p = at->q->first;

	while (p && lets_pass(p) && p->ticket != at->ticket)
		p = p->next;
	return p && p->ticket == at->ticket && p->ahead && name_of(&p->rec, p->row) == comm;
}

/* Does the record wait for nothing but what comes before it in its queue, and for the order of its communicator? */
static bool is_next(const struct queue *q, const struct parked *p)
{
	for (unsigned int i = p->at; i < p->npos; i++) {
		const struct position *at = &p->pos[i];

		if (at->q != q && !passed(at) && !is_ahead(at, name_of(&p->rec, p->row)))
			return false;
	}
	return true;
}

/* Whether any of the queue has been posted. */
static bool post_next(struct queue *q, park_post *post, void *ctx)
{
	bool any = false;

	for (struct parked *p = q->first; p && is_next(q, p); p = p->next) {
		if (lets_pass(p))
			continue;
		if (p->row->park != PARK_POST || is_refused(&p->rec, p->row) || !post(ctx, q->st, q->held, &p->rec))
			break;
		p->ahead = any = true;
	}
	return any;
}

void park_ahead(park_post *post, void *ctx)
{
	bool any = true;

	while (any) {
		any = false;
		for (struct queue *q = queues; q; q = q->next)
			if (q->st && !q->bad)
				any |= post_next(q, post, ctx);
	}
}

/* ------------------------------------------------------------------------------ versions of events */

static void version_put(struct sv_session *s, struct version *v)
{
	struct name *n;

	if (!v || --v->refs)
		return;
	n = name_find(v->event);
	if (n && n->last == v)
		n->last = NULL;
	if (n && n->held == v)
		n->held = NULL;
	if (v->copy)
		s->hal.drv.cuEventDestroy_v2(v->copy);
	free(v);
}

/* The version that a record, which is about to be parked, makes or waits for. NULL: no memory. */
static struct version *version_get(struct name *n, bool waits)
{
	struct version *v = waits ? n->last : NULL;

	if (!v) {
		v = calloc(1, sizeof(*v));
		if (!v)
			return NULL;
		v->event = n->what;
		v->number = waits ? n->last_number : ++n->last_number;
		n->last = v;
		if (waits)		/* nothing parked records it: it is in the event */
			n->held = v;
	}
	v->refs++;
	return v;
}

/* The event is about to be recorded: what it has gets a copy, if parked records wait for that. */
static CUresult event_makes_room(struct sv_session *s, struct name *n, uint64_t number)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t real;

	if (n->held && n->held->refs && !sv_real(s, SV_T_CUevent, n->what, 0, &real)) {
		r = event_copy(s, (CUevent)(uintptr_t)real, &n->held->copy);
		n->held->cover = cover_of_event(n->what);
	}
	n->held = NULL;
	n->held_number = number;
	return r;
}

/* Executes a parked record, and answers it. */
static void run_record(struct sv_session *s, const struct parked *p)
{
	struct call k;
	int rc;

	call_begin(&k, s, &p->rec);
	rc = record_run(p->row, &k);
	if (rc < 0)
		session_fail(s, rc, rc == -ENOSYS ? "an unknown operation" : k.c.why, p->rec.op,
			     p->rec.seq);
	if (rc)
		return;
	/* It was logged when it came. */
	if (k.c.status && p->row->flags & RECORD_LOG)
		journal_failed(p->rec.seq);
	answer_call(&k);
}

/* Runs a parked record of an event, or not if a later one has been recorded and nobody waits for this. */
static void run_version(struct sv_session *s, const struct parked *p)
{
	struct version *v = p->version;
	struct name *n = name_find(v->event);
	CUresult r;

	if (sv_enter(s, field(&p->rec, 1)))	/* the context has gone, which the handler says */
		return run_record(s, p);
	r = CUDA_SUCCESS;
	if (p->row->waits) {
		event_instead(v->copy);
		cover_instead(v->copy ? &v->cover : NULL);
	} else if (v->number > n->held_number) {
		r = event_makes_room(s, n, v->number);
		n->held = v;
	} else if (v->refs > 1 || p->rec.cpl) {
		r = s->hal.drv.cuEventCreate(&v->copy, CU_EVENT_DISABLE_TIMING);
		event_instead(v->copy);
		cover_instead(&v->cover);
	} else {
		return;
	}
	if (r)
		session_error(s, r, p->rec.op, p->rec.seq);
	run_record(s, p);
	event_instead(NULL);
	cover_instead(NULL);
}

/* ------------------------------------------------------------------------------ how much is parked */

static uint64_t bytes_of(const struct parked *p)
{
	return sizeof(*p) + p->rec.len + p->npos * sizeof(*p->pos);
}

static bool is_above(const struct load *l, uint64_t records, uint64_t bytes)
{
	return l->records > records || l->bytes > bytes;
}

/* Full from its limit on, until half of it is left. */
static bool is_full(const struct load *l, bool was, unsigned int times)
{
	unsigned int part = was ? 2 : 1;

	return is_above(l, times * PARK_RECORDS_MAX / part, times * PARK_BYTES_MAX / part);
}

/*
 * Whether the session has too much parked. While a stream stands behind a failed operation that may not change
 * before the program, which may be about to wait for room, gives that up.
 */
static bool is_crowded(void)
{
	return full && !queues_stand;
}

static void find_room(void)
{
	for (struct queue *q; !is_crowded() && (q = roomless);) {
		roomless = q->list_next;
		q->listed = false;
		make_ready(q);
	}
}

/* One record more in the queue, or one less. */
static void count(struct sv_session *s, struct queue *q, uint64_t bytes, bool more)
{
	bool was = full || queues_full, q_was = q->full;

	q->load.records += more ? 1 : -1;
	q->load.bytes += more ? bytes : -bytes;
	load.records += more ? 1 : -1;
	load.bytes += more ? bytes : -bytes;
	full = is_full(&load, full, PARK_STREAMS_MAX);
	q->full = q != all && q != order && is_full(&q->load, q->full, 1);
	queues_full += q->full - q_was;
	if (was != (full || queues_full))
		session_full(s, !was);
	find_room();
}

/* The ticket that has been passed when half of what a full queue may have is left. */
static uint64_t half(const struct queue *q)
{
	struct load left = q->load;
	const struct parked *p;

	for (p = q->first; p && is_full(&left, true, 1); p = p->next) {
		left.records--;
		left.bytes -= bytes_of(p);
		if (!is_full(&left, true, 1))
			break;
	}
	return p ? p->ticket : q->in;
}

/* ------------------------------------------------------------------------------ parking */

static void seqs_grow(void)
{
	size_t room = seq_room ? 2 * seq_room : 64;
	struct parked **more = calloc(room, sizeof(struct parked *));

	if (!more)		/* then the lists get longer */
		return;
	for (size_t i = 0; i < seq_room; i++)
		for (struct parked *p; (p = by_seq[i]);) {
			struct parked **to = &more[bucket_of(p->rec.seq, room)];

			by_seq[i] = p->same;
			p->same = *to;
			*to = p;
		}
	free(by_seq);
	by_seq = more;
	seq_room = room;
}

/* false: no memory for the first one. */
static bool seq_put(struct parked *p)
{
	struct parked **to;

	if (records_parked >= seq_room)
		seqs_grow();
	if (!seq_room)
		return false;
	to = &by_seq[bucket_of(p->rec.seq, seq_room)];
	p->same = *to;
	*to = p;
	return true;
}

static void seq_drop(const struct parked *p)
{
	struct parked **at = &by_seq[bucket_of(p->rec.seq, seq_room)];

	for (; *at != p; at = &(*at)->same)
		;
	*at = p->same;
}

static bool waits_are_bad(const struct waits *w)
{
	for (unsigned int i = 0; i < w->n; i++)
		if (is_bad(&w->pos[i]))
			return true;
	return false;
}

static enum park_answer park(struct sv_session *s, struct queue *q, const struct ring_record *rec,
			     const struct record *r, struct waits *w, struct name *n)
{
	bool bad = q->bad || waits_are_bad(w);
	struct parked *p;
	struct version *v;

	if (bad && rec->cpl && !park_answered(rec, r)) {
		for (unsigned int i = 0; i < w->n; i++)		/* for the next one that waits for all */
			make_fresh(w->pos[i].q);
		free(w->pos);
		return PARK_FAILED;
	}
	p = malloc(sizeof(*p) + ((rec->len + 7) & ~7ull));
	v = p && n && r->versions ? version_get(n, r->waits) : NULL;
	if (!p || w->failed || (n && r->versions && !v)) {
		version_put(NULL, v);
		free(p);
		free(w->pos);
		return PARK_NO_MEMORY;
	}
	*p = (struct parked){ .row = r, .version = v, .npos = w->n, .pos = w->pos, .rec = *rec };
	if (!seq_put(p)) {
		version_put(NULL, v);
		free(p);
		free(w->pos);
		return PARK_NO_MEMORY;
	}
	p->ticket = next_ticket(q);
	if (park_answered(rec, r))
		p->rec.cpl = 0;
	calls_parked += p->rec.cpl != 0;
	if (bad && !q->bad)
		q->bad = p->ticket;
	if (n) {
		n->open++;
		*(r->waits ? &n->used : &n->made) = (struct position){ q, p->ticket };
	}
	memcpy(p->data, rec->data, rec->len);
	p->rec.data = p->data;
	*q->last = p;
	q->last = &p->next;
	if (q->first == p)
		make_ready(q);
	records_parked++;
	count(s, q, bytes_of(p), true);
	if (bad && r->tells)
		outside_parked(s, &p->rec, true);
	return PARK_PARKED;
}

/* What a record waits for since it concerns this: an event has versions for that; all else is used in order. */
static void wait_for_name(struct waits *w, const struct name *n, const struct record *r)
{
	if (!n || (r->versions && !r->waits))
		return;
	wait_for(w, n->made);
	if (!r->versions)
		wait_for(w, n->used);
}

/* An event is recorded at once, though earlier recordings or waits for them may be parked. */
static enum park_answer recorded_now(struct sv_session *s, struct name *n)
{
	CUresult r = event_makes_room(s, n, ++n->last_number);

	n->last = NULL;
	n->made = (struct position){ 0 };
	return r ? PARK_NO_MEMORY : PARK_RUN;
}

static enum park_answer park_in_stream(struct sv_session *s, const struct ring_record *rec,
				  const struct record *r)
{
	struct stream *st = stream_of(s, rec, r);
	struct waits w = { 0 };
	struct name *n = NULL;

	if (!st)
		return PARK_RUN;
	wait_for_tail(&w, order);
	wait_for_streams(&w, st);
	if (r->event)
		n = name_find(name_of(rec, r));
	wait_for_name(&w, n, r);
	if (!w.n && !w.failed && !park_busy(st) && !is_closed(rec, r) && !again)
		return n && r->versions && !r->waits ? recorded_now(s, n) : PARK_RUN;
	if (!st->queue && !queue_new(st)) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	if (r->event && !n && !(n = name_get(name_of(rec, r)))) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	return park(s, st->queue, rec, r, &w, n);
}

bool park_posting(uint64_t comm)
{
	const struct name *n = name_find(COMM_NAME | comm);

	return n && !passed(&n->made);
}

static enum park_answer park_alone(struct sv_session *s, const struct ring_record *rec,
				   const struct record *r)
{
	struct queue **of = r->park == PARK_ORDER ? &order : r->park == PARK_ALL ? &all : NULL, *q;
	struct name *n = r->event ? name_find(field(rec, r->event)) : NULL;
	struct waits w = { 0 };

	wait_for_tail(&w, order);
	wait_for_name(&w, n, r);
	if (of)
		wait_for_all(&w);
	if (!w.n && !w.failed && !again)
		return PARK_RUN;
	if (r->event && !n && !(n = name_get(field(rec, r->event)))) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	q = of && *of ? *of : queue_new(NULL);
	if (!q) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	if (of)
		*of = q;
	return park(s, q, rec, r, &w, n);
}

/* The stream of the record that a request for room is for; NULL: it has none, or would be refused. */
static struct stream *stream_asked(struct sv_session *s, const struct ring_record *rec,
				   const struct record *of)
{
	const struct sv_room *a = rec->data;
	struct ring_record asked = { .op = a->op, .len = rec->len - sizeof(*a), .data = a + 1 };

	return of->stream ? stream_of(s, &asked, of) : NULL;
}

static enum park_answer park_room(struct sv_session *s, const struct ring_record *rec,
				  const struct record *r)
{
	const struct sv_room *a = rec->data;
	const struct record *of = record_of(a->op);
	bool parks = of && of->park != PARK_NEVER && of->park != PARK_BUSY && of->park != PARK_ROOM;
	struct stream *st = parks ? stream_asked(s, rec, of) : NULL;
	struct queue *q = st ? st->queue : NULL;
	struct waits w = { 0 };

	if (!again && !(q && q->full) && !(parks && is_crowded()))
		return PARK_RUN;
	if (q && q->full)
		wait_for(&w, (struct position){ q, half(q) });
	q = queue_new(NULL);
	if (!q) {
		free(w.pos);
		return PARK_NO_MEMORY;
	}
	return park(s, q, rec, r, &w, NULL);
}

/* Whether what a query asks about waits for parked records; *bad: for a failed operation. */
static bool is_busy(struct sv_session *s, const struct ring_record *rec, const struct record *r, bool *bad)
{
	struct stream *st = r->stream ? stream_of(s, rec, r) : NULL;
	const uint16_t event[] = { r->event, r->event2 };
	bool busy = order && order->out < order->in;	/* an event recorded there has no name */
	struct waits w = { 0 };

	if (st) {
		wait_for_streams(&w, st);
		busy |= w.n || w.failed || park_busy(st);
		*bad = waits_are_bad(&w) || (st->queue && st->queue->bad);
		free(w.pos);
	}
	for (int i = 0; i < 2; i++) {
		struct name *n = event[i] ? name_find(field(rec, event[i])) : NULL;

		busy |= n && !passed(&n->made);
		*bad |= n && is_bad(&n->made);
	}
	return busy;
}

enum park_answer park_take(struct sv_session *s, const struct ring_record *rec, const struct record *r)
{
	bool bad = false;

	switch (r ? r->park : PARK_NEVER) {
	case PARK_STREAM:
	case PARK_POST:
		return park_in_stream(s, rec, r);
	case PARK_ALONE:
	case PARK_ALL:
	case PARK_ORDER:
		return park_alone(s, rec, r);
	case PARK_ROOM:
		return park_room(s, rec, r);
	case PARK_BUSY:
		if (!is_busy(s, rec, r, &bad))
			return PARK_RUN;
		return bad && cover_query() == COVER_FAILS ? PARK_FAILED : PARK_NOT_READY;
	default:
		return PARK_RUN;
	}
}

/* ------------------------------------------------------------------------------ holding and running */

int park_hold(struct stream *st)
{
	if (!st->queue && !queue_new(st))
		return -ENOMEM;
	/* A parked record has its ticket, which is passed when the stream is released. */
	if (!running)
		next_ticket(st->queue);
	st->queue->held = true;
	queues_held++;
	return 0;
}

void park_release(struct stream *st)
{
	struct queue *q = st->queue;

	if (!q || !q->held)
		return;
	q->held = false;
	passes(q, q->out + 1);
	make_ready(q);
	queues_held--;
	if (q->stands)
		take_ticket(q);
}

int park_fail(struct stream *st)
{
	struct queue *q;

	if (!st->queue && !queue_new(st))
		return -ENOMEM;
	q = st->queue;
	if (q->stands)
		return 0;
	q->stands = true;
	queues_stand++;
	find_room();
	take_ticket(q);
	return 0;
}

void park_mend(void)
{
	for (struct queue *q = queues; q; q = q->next)
		if (!q->st || !cover_stands(q->st))
			goes_on(q);
}

/* The first ticket of a queue that is bad since another queue is; 0: none. */
static uint64_t first_bad(const struct queue *q)
{
	for (const struct parked *p = q->first; p; p = p->next)
		for (unsigned int i = p->at; i < p->npos; i++)
			if (is_bad(&p->pos[i]))
				return p->ticket;
	return 0;
}

/* The program waits for the record, which does nothing any more: that is its answer. */
static void answer_bad(struct sv_session *s, struct parked *p)
{
	struct answer a = { .s = s, .seq = p->rec.seq, .op = p->rec.op, .cpl = p->rec.cpl };

	p->answered = true;
	p->rec.cpl = 0;
	calls_parked--;
	if (p->row->flags & RECORD_LOG)
		journal_failed(p->rec.seq);
	cover_answer(&a);
}

void park_spread(struct sv_session *s)
{
	bool more = true;

	for (struct queue *q = queues; q; q = q->next)
		q->bad = q->stands ? q->out + 1 : 0;
	while (more) {
		more = false;
		for (struct queue *q = queues; q; q = q->next)
			if (!q->bad && (q->bad = first_bad(q)))
				more = true;
	}
	for (struct queue *q = queues; q; q = q->next)
		for (struct parked *p = q->first; p; p = p->next) {
			bool bad = q->bad && p->ticket >= q->bad;

			if (bad && p->rec.cpl)
				answer_bad(s, p);
			if (p->row->tells)
				outside_parked(s, &p->rec, bad);
		}
}

/* Can the queue's first record run? If not, the queue gets its place until it can. It is in none. */
static bool is_due(struct queue *q)
{
	struct parked *p = q->first;

	if (!p || q->held || q->stands)
		return false;
	if (p->row->park == PARK_ROOM && is_crowded()) {
		q->listed = true;
		q->list_next = roomless;
		roomless = q;
		return false;
	}
	for (; p->at < p->npos; p->at++)
		if (!passed(&p->pos[p->at])) {
			wait_in(q, &p->pos[p->at]);
			return false;
		}
	/* This comes last: a closed queue waits for nothing else. */
	if (is_closed(&p->rec, p->row)) {
		q->listed = true;
		q->list_next = closed;
		closed = q;
		return false;
	}
	return true;
}

static void run_first(struct sv_session *s, struct queue *q)
{
	struct parked *p = q->first;
	struct name *n;

	q->first = p->next;
	if (!q->first)
		q->last = &q->first;
	seq_drop(p);
	records_parked--;
	calls_parked -= p->rec.cpl != 0;
	count(s, q, bytes_of(p), false);
	running = p;
	if (p->answered)
		;
	else if (p->version)
		run_version(s, p);
	else
		run_record(s, p);
	running = NULL;
	if (!q->held)
		passes(q, p->ticket);
	if (q->stands)			/* since it has run */
		take_ticket(q);
	version_put(s, p->version);
	n = p->row->event ? name_find(name_of(&p->rec, p->row)) : NULL;
	if (n && n->open)
		n->open--;
	queues_idle += !q->st && !q->first;
	free(p->pos);
	free(p);
}

void park_run(struct sv_session *s)
{
	struct queue *q;

	/* Those that are not posted yet get back there. */
	while ((q = closed)) {
		closed = q->list_next;
		q->listed = false;
		make_ready(q);
	}
	while (is_open() && (q = ready) && !session_failed(s)) {
		ready = q->list_next;
		q->listed = false;
		while (!q->listed && is_due(q))
			run_first(s, q);
	}
	/* pairs with park_posts() */
	if (!is_open() && !is_away && !__atomic_load_n(&may_post, __ATOMIC_ACQUIRE))
		forget_all();
	else if (queues_idle > idle_most())
		tidy();
}

int do_seen(struct call *k)
{
	const struct sv_seen *a = k->c.data;
	struct sv_session *s = k->c.session;

	if (a->word % 8 || !arena_pinned(s, a->word, sizeof(uint64_t)))
		return sv_bad(&k->c, "the word of ends that have been seen");
	__atomic_store_n((uint64_t *)arena_at(s, a->word), a->value, __ATOMIC_RELEASE);
	return 0;
}

int do_room(struct call *k)
{
	const struct sv_room *a = k->c.data;

	if (!k->cpl || a->pad[0] || a->pad[1] || a->pad[2] || k->c.len > sizeof(*a) + SV_ROOM_BYTES)
		return sv_bad(&k->c, "a request for room");
	return 0;
}

/* ------------------------------------------------------------------------------ saving and parking again */

bool park_has(uint64_t seq)
{
	for (size_t lo = 0, hi = nexpected; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;

		if (expected[mid] == seq)
			return true;
		if (expected[mid] < seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (const struct parked *p = seq_room ? by_seq[bucket_of(seq, seq_room)] : NULL; p; p = p->same)
		if (p->rec.seq == seq)
			return true;
	return false;
}

int park_expect(uint64_t seq)
{
	if (nexpected == expected_room) {
		size_t room = expected_room ? 2 * expected_room : 64;
		uint64_t *more = realloc(expected, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		expected = more;
		expected_room = room;
	}
	expected[nexpected++] = seq;
	return 0;
}

void park_expect_none(void)
{
	free(expected);
	expected = NULL;
	nexpected = expected_room = 0;
}

static int older(const void *a, const void *b)
{
	const struct parked *const *p = a, *const *q = b;

	return (*p)->rec.seq < (*q)->rec.seq ? -1 : (*p)->rec.seq > (*q)->rec.seq;
}

/*
 * The recordings that have run are complete, since the streams are idle. They are of interest where the
 * next parked wait, or a later record, would otherwise take an earlier, parked recording for the last one.
 */
static int tell_recorded(const struct name *n, uint64_t number,
			 int (*fn)(void *arg, const struct ring_record *rec, uint64_t event), void *arg)
{
	static const struct ring_record recorded = { .op = PARK_RECORDED };

	return n->any_told && number > n->told ? fn(arg, &recorded, n->what) : 0;
}

static int each(struct parked *const *list, size_t n,
		int (*fn)(void *arg, const struct ring_record *rec, uint64_t event), void *arg)
{
	int rc = 0;

	for (size_t i = 0; i < names_room; i++)
		for (struct name *of = names[i]; of; of = of->next)
			of->told = of->any_told = 0;
	for (size_t i = 0; i < n && !rc; i++) {
		const struct parked *p = list[i];
		struct name *of = p->version ? name_find(p->version->event) : NULL;

		if (of && p->row->waits)
			rc = tell_recorded(of, p->version->number, fn, arg);
		rc = rc ?: fn(arg, &p->rec, 0);
		if (of) {
			of->told = p->version->number ?: of->told;
			of->any_told = true;
		}
	}
	for (size_t i = 0; i < names_room; i++)
		for (const struct name *of = names[i]; of && !rc; of = of->next)
			rc = tell_recorded(of, of->last_number, fn, arg);
	return rc;
}

int park_each(int (*fn)(void *arg, const struct ring_record *rec, uint64_t event), void *arg)
{
	struct parked **list = malloc((records_parked + 1) * sizeof(struct parked *));
	size_t n = 0;
	int rc;

	if (!list)
		return -ENOMEM;
	for (struct queue *q = queues; q; q = q->next)
		for (struct parked *p = q->first; p; p = p->next)
			list[n++] = p;
	qsort(list, n, sizeof(struct parked *), older);
	rc = each(list, n, fn, arg);
	free(list);
	return rc;
}

int park_again(struct sv_session *s, const struct ring_record *rec, uint64_t event)
{
	const struct record *r;
	struct name *n;
	enum park_answer how;

	if (rec->op == PARK_RECORDED) {
		n = name_find(event);
		return n && recorded_now(s, n) == PARK_RUN ? 0 : -EBADMSG;
	}
	r = record_of(rec->op);
	if (!r || (r->fn && (rec->len < r->size || (rec->len > r->size && !(r->flags & RECORD_TAIL)))))
		return -EBADMSG;
	again = true;
	how = park_take(s, rec, r);
	again = false;
	return how == PARK_PARKED ? 0 : how == PARK_NO_MEMORY ? -ENOMEM : -EBADMSG;
}
