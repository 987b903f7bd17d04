// SPDX-License-Identifier: Apache-2.0
/*
 * cover.c - what each stream and event covers, what has failed, and the waits to be ended then
 *
 * Numbers are the session's, so a chain may have the collectives of one stream first and of another one later.
 * What is over stays in covers: a chain with nothing open is dropped from them when they are used next. A
 * number that has failed is in `failures` until its communicator ends, and its chain is open for so long.
 */
#include <stdlib.h>

#include "answer.h"
#include "context.h"
#include "cover.h"
#include "fail.h"
#include "handle.h"
#include "outside.h"
#include "park.h"
#include "stat_i.h"

#define QUERY_NS	1000000000ull
#define BUCKETS		1024u

bool cover_any;

static struct failure {
	struct failure *next;
	uint64_t comm, from;		/* from: the first that has failed */
	uint64_t cause;
	uint32_t chain, count;		/* count: how many have */
} *failures;

static const struct stream *owner[COVER_CHAINS];	/* only compared */
static uint32_t open_in[COVER_CHAINS];			/* collectives that are not over; atomic */
static uint64_t failed_from[COVER_CHAINS];		/* the first in `failures`; 0: none */
static uint64_t failed_ns;				/* the latest failure */
static uint64_t numbers;				/* given out */
static struct cover *instead;
static struct sv_session *session;

static struct noted {			/* an event's cover */
	struct noted *next;
	uint64_t event;
	struct cover cover;
} *events[BUCKETS];
static size_t nevents, tidy_at = BUCKETS;

static struct watch *watches;		/* watch_lock */
static struct lock watch_lock = LOCK_INIT(PROXY_WATCHES);

/* ------------------------------------------------------------------------------ covers */

static bool is_open(uint32_t chain)
{
	/* pairs with cover_coll(), cover_done() and cover_mended() */
	return __atomic_load_n(&open_in[chain], __ATOMIC_ACQUIRE);
}

bool cover_bad(const struct cover *c)
{
	for (uint32_t i = 0; i < COVER_CHAINS; i++)
		if (failed_from[i] && c->upto[i] >= failed_from[i])
			return true;
	return false;
}

bool cover_bad_by(const struct cover *c, uint64_t *cause)
{
	const struct failure *f;

	for (f = failures; f && c->upto[f->chain] < f->from; f = f->next)
		;
	*cause = f ? f->cause : 0;
	return f;
}

uint64_t cover_cause(void)
{
	return failures ? failures->cause : 0;
}

bool cover_open(const struct cover *c)
{
	for (uint32_t i = 0; i < COVER_CHAINS; i++)
		if (c->upto[i] && is_open(i))
			return true;
	return false;
}

bool cover_fails(void)
{
	return failures;
}

static void add(struct cover *to, const struct cover *c)
{
	for (uint32_t i = 0; i < COVER_CHAINS; i++)
		if (c->upto[i] > to->upto[i] && is_open(i))
			to->upto[i] = c->upto[i];
}

/* The stream's, to be changed. NULL: no memory, which ends the session. */
static struct cover *own(struct stream *st)
{
	if (!st->cover)
		st->cover = calloc(1, sizeof(*st->cover));
	return st->cover;
}

static void no_memory(void)
{
	session_fail(session, -ENOMEM, "no memory for what streams wait for", 0, 0);
}

/* The stream has taken over what may have failed already. */
static void stand(struct stream *st)
{
	if (!failures || !cover_bad(st->cover))
		return;
	if (park_fail(st))
		no_memory();
	park_spread(session);
}

static void take_over(struct stream *st, const struct cover *c)
{
	if (!c || !cover_open(c))
		return;
	if (!own(st)) {
		no_memory();
		return;
	}
	add(st->cover, c);
	stand(st);
}

void cover_use(struct stream *st)
{
	const struct context *c = st->context;

	if (st->legacy)
		for (const struct stream *b = c->streams; b; b = b->next) {
			if (b->blocking)
				take_over(st, b->cover);
		}
	else if (st->blocking)
		take_over(st, c->legacy.cover);
}

struct cover cover_of_stream(const struct stream *st)
{
	struct cover c = { { 0 } };

	if (st->cover)
		add(&c, st->cover);
	for (const struct stream *b = st->legacy ? st->context->streams : NULL; b; b = b->next)
		if (b->blocking && b->cover)
			add(&c, b->cover);
	return c;
}

struct cover cover_of_context(const struct context *c)
{
	struct cover all = { { 0 } };

	if (c->legacy.cover)
		add(&all, c->legacy.cover);
	if (c->grave && c->grave->cover)
		add(&all, c->grave->cover);
	for (const struct stream *st = c->streams; st; st = st->next)
		if (st->cover)
			add(&all, st->cover);
	return all;
}

bool cover_stands(const struct stream *st)
{
	return st->cover && cover_bad(st->cover);
}

CUresult cover_query_since(uint64_t ns)
{
	return now_ns() - ns < QUERY_NS ? CUDA_ERROR_NOT_READY : COVER_FAILS;
}

CUresult cover_query(void)
{
	return cover_query_since(failed_ns);
}

/* ------------------------------------------------------------------------------ events */

static struct noted **place_of(uint64_t event)
{
	struct noted **at = &events[(event * 0x9e3779b97f4a7c15ull) >> 32 & (BUCKETS - 1)];

	while (*at && (*at)->event != event)
		at = &(*at)->next;
	return at;
}

static void drop(struct noted **at)
{
	struct noted *n = *at;

	*at = n->next;
	free(n);
	nevents--;
}

/* Drops what covers nothing any more. */
static void tidy(void)
{
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (struct noted **at = &events[i]; *at;) {
			if (cover_open(&(*at)->cover))
				at = &(*at)->next;
			else
				drop(at);
		}
	tidy_at = 2 * nevents > BUCKETS ? 2 * nevents : BUCKETS;
}

void cover_instead(struct cover *c)
{
	instead = c;
}

void cover_event_gone(uint64_t event)
{
	struct noted **at = place_of(event);

	if (*at)
		drop(at);
}

void cover_record(const struct stream *st, uint64_t event)
{
	bool open = st->cover && cover_open(st->cover);
	struct noted **at;

	if (instead) {
		*instead = open ? *st->cover : (struct cover){ { 0 } };
		return;
	}
	if (!open) {
		if (nevents)
			cover_event_gone(event);
		return;
	}
	if (nevents >= tidy_at)
		tidy();
	at = place_of(event);
	if (!*at) {
		*at = calloc(1, sizeof(**at));
		if (!*at) {
			no_memory();
			return;
		}
		(*at)->event = event;
		nevents++;
	}
	(*at)->cover = *st->cover;
}

struct cover cover_of_event(uint64_t event)
{
	struct noted *n = nevents ? *place_of(event) : NULL;
	struct cover c = { { 0 } };

	if (instead)
		n = NULL;
	if (n || instead)
		add(&c, n ? &n->cover : instead);
	return c;
}

void cover_wait(struct stream *st, uint64_t event)
{
	struct cover c = cover_of_event(event);

	take_over(st, &c);
}

void cover_follow(struct stream *st, const struct stream *after)
{
	take_over(st, after->cover);
}

/* ------------------------------------------------------------------------------ collectives */

/* The stream's chain; else one with nothing open, or any. */
static uint32_t chain_of(const struct stream *st)
{
	static uint32_t next;
	uint32_t i;

	for (i = 0; i < COVER_CHAINS && owner[i] != st; i++)
		;
	for (uint32_t k = 0; k < COVER_CHAINS && i == COVER_CHAINS; k++)
		if (!is_open((next + k) % COVER_CHAINS))
			i = (next + k) % COVER_CHAINS;
	if (i == COVER_CHAINS)
		i = next % COVER_CHAINS;
	next = i + 1;
	owner[i] = st;
	return i;
}

int cover_coll(struct sv_session *s, struct stream *st, uint32_t *chain, uint64_t *number)
{
	if (!own(st))
		return -ENOMEM;
	session = s;
	cover_any = true;
	*chain = chain_of(st);
	*number = ++numbers;
	st->cover->upto[*chain] = numbers;
	__atomic_add_fetch(&open_in[*chain], 1, __ATOMIC_RELEASE);
	return 0;
}

void cover_done(uint32_t chain)
{
	__atomic_sub_fetch(&open_in[chain], 1, __ATOMIC_RELEASE);
}

static void find_first(void)
{
	memset(failed_from, 0, sizeof(failed_from));
	for (const struct failure *f = failures; f; f = f->next)
		if (!failed_from[f->chain] || f->from < failed_from[f->chain])
			failed_from[f->chain] = f->from;
}

/* Streams whose last operations stand: what comes next must not fill the driver's queues. */
static int stand_all(void)
{
	struct context **c;
	ssize_t n = handle_contexts(session, &c);
	int rc = n < 0 ? -ENOMEM : 0;

	for (ssize_t i = 0; i < n && !rc; i++) {
		if (cover_stands(&c[i]->legacy))
			rc = park_fail(&c[i]->legacy);
		for (struct stream *st = c[i]->streams; st && !rc; st = st->next)
			if (cover_stands(st))
				rc = park_fail(st);
	}
	free(c);
	return rc;
}

/* Takes a wait that stands off the list. false: there is none. */
static bool take_watch(struct answer *a)
{
	struct watch *w;

	lock_take(&watch_lock);
	for (w = watches; w && !cover_bad(&w->cover); w = w->next)
		;
	if (w) {
		*w->at = w->next;
		if (w->next)
			w->next->at = w->at;
		w->at = NULL;
		w->answered = true;
		*a = w->answer;
	}
	lock_drop(&watch_lock);
	return w;
}

int cover_failed(uint32_t chain, uint64_t number, uint64_t comm, uint64_t cause)
{
	struct failure *f;
	struct answer a;
	int rc;

	for (f = failures; f && (f->comm != comm || f->chain != chain); f = f->next)
		;
	if (!f) {
		f = calloc(1, sizeof(*f));
		if (!f)
			return -ENOMEM;
		*f = (struct failure){ .next = failures, .comm = comm, .chain = chain, .from = number,
				       .cause = cause };
		failures = f;
	}
	f->count++;
	if (number < f->from)
		f->from = number;
	failed_ns = now_ns();
	find_first();
	rc = stand_all();
	if (rc)
		return rc;
	park_spread(session);
	outside_say();
	while (take_watch(&a))
		cover_answer(&a);
	return 0;
}

void cover_open_again(uint32_t chain)
{
	__atomic_add_fetch(&open_in[chain], 1, __ATOMIC_RELEASE);
}

void cover_mended(uint64_t comm)
{
	struct failure **at, *f;
	bool some = false;

	for (at = &failures; (f = *at);) {
		if (f->comm != comm) {
			at = &f->next;
			continue;
		}
		*at = f->next;
		__atomic_sub_fetch(&open_in[f->chain], f->count, __ATOMIC_RELEASE);
		free(f);
		some = true;
	}
	if (!some)
		return;
	find_first();
	park_mend();
	park_spread(session);
	outside_say();
}

/* ------------------------------------------------------------------------------ waits in the driver */

void cover_answer(const struct answer *a)
{
	answer_now(a, COVER_FAILS, NULL, 0);
}

void watch_begin(struct watch *w, const struct cover *c, const struct answer *a)
{
	w->cover = *c;
	w->answer = *a;
	lock_take(&watch_lock);
	w->next = watches;
	w->at = &watches;
	if (watches)
		watches->at = &w->next;
	watches = w;
	lock_drop(&watch_lock);
}

bool watch_end(struct watch *w)
{
	bool mine;

	lock_take(&watch_lock);
	mine = !w->answered;
	if (w->at) {
		*w->at = w->next;
		if (w->next)
			w->next->at = w->at;
		w->at = NULL;
	}
	lock_drop(&watch_lock);
	return mine;
}
