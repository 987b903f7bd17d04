// SPDX-License-Identifier: Apache-2.0
/*
 * outside.c - waits for streams of other proxies, and what these are told of ours
 *
 * A wait takes a number of a chain, as a collective does, and is *known* as what the other proxy has said of it when
 * the consumer looked last:
 *
 *   OPEN ──► STANDS: the number has failed ──► OPEN: it has not ──► OVER: it is done
 *
 * The word of a crossing is memory of the client, which may write anything there: it is compared, never followed. A
 * cause leads to a communicator's word, which says whether that has ended. So the wait goes on when the program's abort
 * has returned, though the proxies between have not said so yet.
 */
#include <stdlib.h>
#include <time.h>

#include "context.h"
#include "device_memory.h"
#include "fail.h"
#include "outside.h"
#include "park.h"
#include "streams.h"

#define NAP_NS		2000000l
#define NAP_MOST_NS	20000000l
#define TOLD_MOST	64u	/* before it is looked which of them are over */

bool outside_stands;

static struct outside *waits;		/* the consumer changes it, with the lock */
static struct lock lock = LOCK_INIT(PROXY_OUTSIDE);
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct sv_session *session;
static bool looking;			/* there is a thread */
static bool due;			/* atomic */
static uint32_t standing;		/* of `waits` */

static struct told *told_all;
static uint32_t told_n, told_look = TOLD_MOST;

/* ------------------------------------------------------------------------------ waits */

static bool is_news(struct outside *o)
{
	uint64_t cause = 0;

	return o->state(o, &cause) != o->known || cause != o->cause;
}

/* Looks at what others say, which wakes nobody. */
static void *look_on(void *arg)
{
	struct timespec nap = { 0, NAP_NS };

	lock_take(&lock);
	for (;;) {
		bool news = false;

		while (!waits) {
			nap.tv_nsec = NAP_NS;
			lock_wait(&lock, &more);
		}
		for (struct outside *o = waits; o && !news; o = o->next)
			news = is_news(o);
		lock_drop(&lock);
		if (news) {
			__atomic_store_n(&due, true, __ATOMIC_RELEASE);
			ring_kick(session->ring);
		}
		nap.tv_nsec = news ? NAP_NS : nap.tv_nsec < NAP_MOST_NS ? nap.tv_nsec * 5 / 4 : nap.tv_nsec;
		nanosleep(&nap, NULL);
		lock_take(&lock);
	}
	return arg;
}

bool outside_due(void)
{
	return __atomic_load_n(&due, __ATOMIC_RELAXED);
}

int outside_wait(struct sv_session *s, struct stream *st, struct outside *o)
{
	pthread_t t;
	int rc;

	session = s;
	if (!looking) {
		rc = -pthread_create(&t, NULL, look_on, NULL);
		if (rc)
			return rc;
		pthread_detach(t);
		looking = true;
	}
	rc = cover_coll(s, st, &o->chain, &o->nth);
	if (rc)
		return rc;
	o->known = OUTSIDE_OPEN;
	o->cause = 0;
	lock_take(&lock);
	o->next = waits;
	waits = o;
	pthread_cond_signal(&more);
	lock_drop(&lock);
	return 0;
}

/* As a communicator's. A client that gives one the same number confuses itself alone. */
static uint64_t number_of(const struct outside *o)
{
	return 1ull << 63 | o->nth;
}

/* The consumer learns what has become of a wait, which was open, or stood. */
static void take(struct sv_session *s, const struct outside *o, bool stood)
{
	int rc = 0;

	if (stood && o->known != OUTSIDE_OVER)
		cover_open_again(o->chain);
	if (stood)
		cover_mended(number_of(o));
	else if (o->known == OUTSIDE_OVER)
		cover_done(o->chain);
	if (o->known == OUTSIDE_STANDS)
		rc = cover_failed(o->chain, o->nth, number_of(o), o->cause);
	standing += (o->known == OUTSIDE_STANDS) - stood;
	outside_stands = standing;
	if (rc)
		session_fail(s, rc, "no memory for what streams wait for", SV_OP_X_CROSS_WAIT, 0);
}

void outside_look(struct sv_session *s)
{
	struct outside **at = &waits, *o;
	bool some = false;

	/* pairs with look_on(): what it has seen is seen below */
	(void)__atomic_exchange_n(&due, false, __ATOMIC_SEQ_CST);
	while ((o = *at)) {
		uint64_t cause = 0;
		enum outside_state was = o->known, is = o->state(o, &cause);

		if (is == was && cause == o->cause) {
			at = &o->next;
			continue;
		}
		lock_take(&lock);
		o->known = is;
		o->cause = cause;
		if (is == OUTSIDE_OVER)
			*at = o->next;
		else
			at = &o->next;
		lock_drop(&lock);
		take(s, o, was == OUTSIDE_STANDS);
		if (is == OUTSIDE_OVER)
			o->end(o);
		some = true;
	}
	if (some && park_any)
		park_run(s);
}

/* ------------------------------------------------------------------------------ what others are told */

static void say(struct told *t)
{
	uint64_t cause;
	bool stands = cover_bad_by(&t->cover, &cause);

	if (stands == t->stands && (!stands || cause == t->cause))
		return;
	t->stands = stands;
	t->cause = cause;
	t->say(t, stands, cause);
}

void outside_say(void)
{
	struct told **at = &told_all, *t;

	while ((t = *at)) {
		say(t);
		if (!t->over(t)) {
			at = &t->next;
			continue;
		}
		*at = t->next;
		t->end(t);
		told_n--;
	}
	told_look = 2 * told_n > TOLD_MOST ? 2 * told_n : TOLD_MOST;
}

void outside_tell(struct told *t, const struct cover *c)
{
	t->cover = *c;
	t->stands = false;
	t->next = told_all;
	told_all = t;
	if (++told_n >= told_look)
		outside_say();
	else
		say(t);
}

/* ------------------------------------------------------------------------------ crossings */

struct crossing {
	union {
		struct outside wait;
		struct told told;
	};
	struct sv_session *s;
	uint64_t word, value;
};

static struct sv_cross_word *word_at(const struct sv_session *s, uint64_t off)
{
	return (struct sv_cross_word *)arena_at(s, off);
}

static bool has_arrived(const struct crossing *c)
{
	/* pairs with store_word() of the other device's proxy, or with its device's write */
	return __atomic_load_n(&word_at(c->s, c->word)->arrived, __ATOMIC_ACQUIRE) >= c->value;
}

static void crossing_says(const struct sv_session *s, uint64_t word, uint64_t value, bool stands, uint64_t cause)
{
	struct sv_cross_word *w = word_at(s, word);

	if (!stands && __atomic_load_n(&w->stands, __ATOMIC_RELAXED) != value)
		return;		/* it is used for another crossing by now, or nothing has been said */
	__atomic_store_n(&w->cause, cause, __ATOMIC_RELAXED);
	__atomic_store_n(&w->stands, stands ? value : 0, __ATOMIC_RELEASE);
}

/* Has the communicator that this word was for ended? */
static bool has_ended(const struct sv_session *s, uint64_t cause)
{
	const struct sv_comm_word *w = (const struct sv_comm_word *)arena_at(s, cause);

	/* pairs with comm_drop() of the communicator's proxy */
	return cause && cause % 8 == 0 && arena_client(s, cause, sizeof(*w)) &&
	       __atomic_load_n(&w->state, __ATOMIC_ACQUIRE) == SV_COMM_ENDED;
}

static enum outside_state crossing_state(struct outside *o, uint64_t *cause)
{
	struct crossing *c = (struct crossing *)o;
	const struct sv_cross_word *w = word_at(c->s, c->word);

	if (has_arrived(c))
		return OUTSIDE_OVER;
	/* pairs with crossing_says() of the other device's proxy */
	if (__atomic_load_n(&w->stands, __ATOMIC_ACQUIRE) != c->value)
		return OUTSIDE_OPEN;
	*cause = __atomic_load_n(&w->cause, __ATOMIC_RELAXED);
	return has_ended(c->s, *cause) ? OUTSIDE_OPEN : OUTSIDE_STANDS;
}

static void crossing_wait_ends(struct outside *o)
{
	free((struct crossing *)o);
}

static void crossing_say(struct told *t, bool stands, uint64_t cause)
{
	const struct crossing *c = (const struct crossing *)t;

	crossing_says(c->s, c->word, c->value, stands, cause);
}

static bool crossing_over(struct told *t)
{
	return has_arrived((const struct crossing *)t);
}

static void crossing_told_ends(struct told *t)
{
	free((struct crossing *)t);
}

void outside_parked(struct sv_session *s, const struct ring_record *rec, bool stands)
{
	const struct sv_cross *a = rec->data;

	if (rec->len >= sizeof(*a) && a->word % 8 == 0 && arena_pinned(s, a->word, sizeof(struct sv_cross_word)))
		crossing_says(s, a->word, a->value, stands, stands ? cover_cause() : 0);
}

/* Checks the record and enters its context. 0, a CUresult, -errno; *c: for what it is about. */
static int crossing_begin(struct call *k, struct stream **st, struct crossing **c)
{
	const struct sv_cross *a = k->c.data;
	struct sv_session *s = k->c.session;
	int rc;

	if (!a->value || a->word % 8 || !arena_pinned(s, a->word, sizeof(struct sv_cross_word)))
		return sv_bad(&k->c, "the word of a crossing");
	rc = sv_enter(s, a->ctx);
	if (!rc)
		rc = stream_use(s, a->stream, st);
	if (rc < 0)
		k->c.why = "stream of a crossing";
	if (rc)
		return rc;
	*c = malloc(sizeof(**c));
	if (!*c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*c)->s = s;
	(*c)->word = a->word;
	(*c)->value = a->value;
	return 0;
}

static uintptr_t arrived_at(const struct sv_session *s, const struct sv_cross *a)
{
	return (uintptr_t)&word_at(s, a->word)->arrived;
}

int do_cross_tell(struct call *k)
{
	const struct sv_cross *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct cover cover = { { 0 } };
	struct crossing *c;
	struct stream *st;
	CUresult r;
	int rc = crossing_begin(k, &st, &c);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	r = s->hal.drv.cuStreamWriteValue64_v2(st->real, arrived_at(s, a), a->value, 0);
	if (!r && cover_any)
		cover = cover_of_stream(st);
	if (!cover_open(&cover)) {
		free(c);
		return fails(k, r);
	}
	c->told.say = crossing_say;
	c->told.over = crossing_over;
	c->told.end = crossing_told_ends;
	outside_tell(&c->told, &cover);
	return fails(k, r);
}

int do_cross_wait(struct call *k)
{
	const struct sv_cross *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct crossing *c;
	struct stream *st;
	int rc = crossing_begin(k, &st, &c);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	c->wait.state = crossing_state;
	c->wait.end = crossing_wait_ends;
	if (has_arrived(c))
		free(c);
	else
		rc = outside_wait(s, st, &c->wait);
	if (rc) {
		free(c);
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	}
	st->wait_addr = arrived_at(s, a);
	return fails(k, s->hal.drv.cuStreamWaitValue64_v2(st->real, arrived_at(s, a), a->value,
							  CU_STREAM_WAIT_VALUE_GEQ));
}
