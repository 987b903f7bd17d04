// SPDX-License-Identifier: Apache-2.0
/*
 * comm.c - communicators: their creation, their end, and the board's mail
 *
 * A communicator of the board has the digest of its unique id as its key. Nothing of all this is set up before
 * the first communicator.
 */
#include <stdio.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define COMM_PRIVATE
#include "answer.h"
#include "comm_i.h"
#include "context.h"
#include "device_memory.h"
#include "handle.h"
#include "log.h"
#include "park.h"

struct comms comms = { .lock = LOCK_INIT(PROXY_COMMS), .fd = -1 };

void comm_board(int fd, uint32_t seat)
{
	comms.fd = fd;
	comms.seat = seat;
}

bool comm_exited(void)
{
	return comms.left;
}

unsigned int comm_count(void)
{
	unsigned int n = 0;

	for (struct communicator *c = comms.all; c; c = c->next)
		n++;
	return n;
}

struct communicator *comm_find(uint64_t number)
{
	struct communicator *c;

	for (c = comms.all; c && c->number != number; c = c->next)
		;
	return c;
}

/* The first failure is kept. comm_lock */
static void set_failure(struct communicator *c, uint32_t code, const char *text)
{
	struct sv_comm_word *w = c->word;

	assert_held(&comms.lock);
	if (!w || w->code)
		return;
	snprintf(w->text, sizeof(w->text), "%s", text);
	__atomic_store_n(&w->code, code, __ATOMIC_RELEASE);
}

/* " (its text)", of the driver; or nothing. */
static const char *error_text(uint32_t error)
{
	static __thread char text[120];
	const char *of = NULL;
	const struct hal *h = &comms.s->hal;

	*text = 0;
	if (h->drv.cuGetErrorString && !h->drv.cuGetErrorString(error, &of) && of)
		snprintf(text, sizeof(text), " (%s)", of);
	return text;
}

static void sentence(const struct step_failure *f, char *text, size_t size)
{
	int n = step_sentence(f, text, size);

	if (f->reason == STEP_TRANSPORT && f->value && n >= 0 && (size_t)n < size)
		snprintf(text + n, size - n, "%s", error_text(f->value));
}

/* An operation of the communicator has failed. Any thread; comm_lock. */
void comm_failed_for(struct communicator *c, enum step_code code, const char *why)
{
	assert_held(&comms.lock);
	set_failure(c, code, why);
	if (!__atomic_exchange_n(&c->told, 1, __ATOMIC_RELAXED) && !c->aborted &&
	    !__atomic_load_n(&comms.cut, __ATOMIC_RELAXED) && !ring_peer_gone(comms.s->ring))
		tell("rank %u of a communicator of %u: %s", c->rank, c->ranks, why);
}

/* The same; the reason is the board's, or follows from the code. */
void comm_failed(struct communicator *c, enum step_code code, const struct step_failure *f)
{
	char text[sizeof(c->word->text)];
	uint32_t broken = __atomic_load_n(&comms.broken, __ATOMIC_RELAXED);

	if (f && f->code)
		sentence(f, text, sizeof(text));
	else if (code == STEP_SYSTEM && broken)
		snprintf(text, sizeof(text), "this rank's device failed with CUDA error %u%s", broken,
			 error_text(broken));
	else
		snprintf(text, sizeof(text), "%s", code == STEP_REMOTE && comms.lost ?
			 "a proxy was killed while it changed the job's board" :
			 code == STEP_REMOTE ? "a rank has left or died" :
			 code == STEP_INVALID_USAGE ? "calls of ranks differ, or an address is not the device's" :
			 "no memory for an operation");
	comm_failed_for(c, code, text);
}

/* ------------------------------------------------------------------------------ set-up */

/* Where the consumer cannot sleep on its seat's word. */
static void *wake_consumer(void *arg)
{
	uint32_t seen = 0;

	(void)arg;
	for (;;) {
		board_await(comms.board, comms.seat, &seen);
		ring_kick(comms.s->ring);
	}
	return NULL;
}

/* From here on the board's wakes end the consumer's waits. */
static int heed_board(void)
{
	pthread_t t;
	int rc = ring_heed(comms.s->ring, board_word(comms.board, comms.seat));

	if (rc != -ENOTSUP)
		return rc;
	rc = -pthread_create(&t, NULL, wake_consumer, NULL);
	if (!rc)
		pthread_detach(t);
	return rc;
}

static int address_of(void *arg, uint32_t end, void *to)
{
	(void)arg;
	return board_address(comms.board, comm_seat_of(end), to);
}

static int note(void *arg, uint64_t comm, const void *p, size_t size)
{
	(void)arg;
	return board_note(comms.board, comms.seat, comm, p, size);
}

static int noted(void *arg, uint64_t comm, void *to)
{
	(void)arg;
	return board_noted(comms.board, comm, to);
}

static void say(void *arg, const char *text)
{
	(void)arg;
	tell("%s", text);
}

void comm_order(enum transport_order order)
{
	comms.order = order;
}

void comm_together(const uint16_t *sharers, int n)
{
	for (int i = 0; i < n; i++)
		comms.together |= sharers[i] > 1;
}

bool comm_ends(struct communicator *c)
{
	if (board_seats(comms.board, c->member, c->end, c->ranks) != c->ranks)
		return false;
	for (uint32_t r = 0; r < c->ranks; r++)
		c->end[r] = comm_end_of(c->end[r]);
	return true;
}

/* Whether this proxy works on the device that the job's table says. */
static int check_place(const struct sv_session *s, struct why *why)
{
	int logical = s->shared->device, rc;
	struct board_place at;

	rc = board_place(comms.board, comms.seat, &at);
	if (rc)
		return why_set(why, rc, "no place on the job's board: %s", rc == -ENOENT ?
			       "the table of seating has none for this proxy" : strerror(-rc));
	if (logical < 0 || logical >= (int)BOARD_DEVICES || at.physical[logical] != s->hal.dev)
		return why_set(why, -EXDEV, "no place on the job's board: the table of seating does not have device %d of "
			       "rank %u on device %d of this host", logical, at.rank, s->hal.dev);
	return 0;
}

static int attach(struct sv_session *s, struct why *why)
{
	int rc;

	if (comms.fd < 0)
		return why_set(why, -ENODEV, "this proxy has no board: `singvgpu run` did not start it, or "
			       "could make none (ulimit -Hf)");
	comms.s = s;
	rc = comms.board ? 0 : board_open(comms.fd, &comms.board);
	if (rc)
		return why_set(why, rc, "the job's board cannot be mapped: %s", strerror(-rc));
	rc = check_place(s, why);
	if (rc)
		return rc;
	rc = comms.heeded ? 0 : heed_board();
	if (rc)
		return why_set(why, rc, "no place on the job's board: %s", strerror(-rc));
	comms.heeded = true;
	return 0;
}

int comm_attach(struct sv_session *s, struct board **board, int *fd, uint32_t *seat, struct why *why)
{
	int rc = attach(s, why);

	comms.sliced = true;
	*board = comms.board;
	*fd = comms.fd;
	*seat = comms.seat;
	return rc;
}

/* again: the board has our proxy already, from before a restore. */
static int set_up(struct sv_session *s, bool again, struct why *why)
{
	const struct transport_open o = { .self = comm_end_of(comms.seat), .address = address_of, .note = note,
				     .noted = noted, .say = say, .hal = &s->hal, .order = comms.order,
				     .together = comms.together };
	uint8_t address[TRANSPORT_ADDRESS_MAX];
	int rc;

	if (comms.transport)
		return 0;
	rc = attach(s, why);
	if (rc)
		return rc;
	if (!comms.driver)
		comms.driver = transport_load(&s->hal, why);
	if (!comms.driver)
		return why->err;
	if (!comms.word)
		rc = post_init(s, why);
	if (rc)
		return rc;
	rc = comms.driver->open(&comms.transport, &o, why);
	if (rc) {
		comms.transport = NULL;
		return rc;
	}
	rc = comms.driver->address(comms.transport, address);
	if (rc >= 0)
		rc = (again ? board_return : board_enter)(comms.board, comms.seat, address, rc);
	if (rc) {
		comms.driver->close(comms.transport);
		comms.transport = NULL;
		return why_set(why, rc, "no place on the job's board: %s", strerror(-rc));
	}
	return 0;
}

int comm_again(struct sv_session *s, struct why *why)
{
	struct context **c;
	ssize_t n = handle_contexts(s, &c);

	/* The words are pinned in a context. */
	for (ssize_t i = 0; i < n; i++)
		if (!i || c[i]->primary)
			s->hal.drv.cuCtxSetCurrent(c[i]->real);
	if (n >= 0)
		free(c);
	context_forget();
	return set_up(s, true, why);
}

/* ------------------------------------------------------------------------------ creation */

static int code_of(int rc)
{
	switch (rc) {
	case -EEXIST:
	case -EINVAL:
	case -EPROTO:
		return STEP_INVALID_USAGE;
	case -ECONNRESET:
	case -ENOTRECOVERABLE:
		return STEP_REMOTE;
	default:
		return STEP_SYSTEM;
	}
}

static const char *sentence_of(int rc)
{
	switch (rc) {
	case -EEXIST:
		return "two ranks are on one device, or a rank has joined twice (Duplicate GPU)";
	case -EINVAL:
		return "ranks do not agree on their number";
	case -EPROTO:
		return "this unique id has been used before";
	case -ECONNRESET:
	case -ENOTRECOVERABLE:
		return "a rank has died during the creation";
	case -ENOSPC:
		return "the job has too many communicators";
	default:
		return strerror(-rc);
	}
}

static void comm_drop(struct communicator *c)
{
	struct communicator **p;

	lock_take(&comms.lock);
	for (p = &comms.all; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	__atomic_store_n(&c->word->state, SV_COMM_ENDED, __ATOMIC_RELEASE);
	c->word = NULL;
	if (c->told)
		post_forget(c);
	comm_put(c);
	lock_drop(&comms.lock);
}

void comm_put(struct communicator *c)
{
	assert_held(&comms.lock);
	if (--c->refs)
		return;
	/* Not before what it has sent into buffers has been received. */
	if (c->grouped && comms.driver->leave)
		comms.driver->leave(comms.transport, c->key);
	free(c->end);
	free(c);
}

/* The creation's end: answers its call, if that is open. */
static void created(struct communicator *c, uint32_t code, const char *text)
{
	struct sv_comm_result r = { .code = code };

	lock_take(&comms.lock);
	if (code)
		set_failure(c, code, text);
	__atomic_store_n(&c->word->state, code ? SV_COMM_FAILED : SV_COMM_STANDS, __ATOMIC_RELEASE);
	lock_drop(&comms.lock);
	if (!c->created.op)
		return;
	answer_now(&c->created, CUDA_SUCCESS, &r, sizeof(r));
	c->created.op = 0;
}

static void on_joined(const struct step_action *a)
{
	struct communicator *c;
	struct why why = { 0 };
	struct transport_group g;
	int rc;

	for (c = comms.all; c && c->member != a->member; c = c->next)
		;
	c = c ?: comms.joining;
	if (!c)			/* it was aborted before this mail was read */
		return;
	c->joined = true;
	c->member = a->code ? STEP_NONE : a->member;	/* the board may give it to another one */
	if (a->code) {
		created(c, a->code, a->code == STEP_REMOTE ? sentence_of(-ECONNRESET) :
			"ranks do not agree on their number, or two are on one device (Duplicate GPU)");
		return;
	}
	if (!comm_ends(c)) {
		created(c, STEP_REMOTE, sentence_of(-ECONNRESET));
		return;
	}
	c->stands = true;
	g = (struct transport_group){ .comm = c->key, .ranks = c->ranks, .rank = c->rank, .device = c->end };
	rc = comms.driver->join ? comms.driver->join(comms.transport, &g, &why) : 0;
	c->grouped = !rc;
	created(c, rc ? STEP_SYSTEM : 0, why.text);
}

int do_comm_new(struct call *k)
{
	const struct sv_comm_new *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct step_event e = { .kind = STEP_JOIN };
	struct communicator *c, *parent;
	struct why why = { 0 };
	int rc;

	if (!a->comm || comm_find(a->comm))
		return sv_bad(&k->c, "number of a communicator");
	if (a->word % 8 || !arena_pinned(s, a->word, sizeof(struct sv_comm_word)))
		return sv_bad(&k->c, "word of a communicator");
	if (!a->ranks || a->rank >= a->ranks)
		return sv_bad(&k->c, "ranks of a communicator");
	rc = sv_enter(s, a->ctx);
	if (rc)
		return sv_fails(&k->c, rc, "context of a communicator");
	c = calloc(1, sizeof(*c));
	if (c)
		c->end = calloc(a->ranks, sizeof(*c->end));
	if (!c || !c->end) {
		free(c);
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	}
	c->refs = 1;
	c->number = a->comm;
	c->key = XXH3_64bits(a->id, sizeof(a->id));
	c->ranks = a->ranks;
	c->rank = a->rank;
	c->member = STEP_NONE;
	c->word = (void *)arena_at(s, a->word);
	c->created = answer_later(k);
	comms.s = s;		/* a communicator that is never set up gets calls, too */
	lock_take(&comms.lock);
	c->next = comms.all;
	comms.all = c;
	lock_drop(&comms.lock);
	if (a->ranks > BOARD_SEATS)
		rc = why_set(&why, -ENOSPC, "more than %u ranks", BOARD_SEATS);
	else if (comm_count() > COMMS_MAX)
		rc = why_set(&why, -ENOSPC, "more than %u communicators of one process", COMMS_MAX);
	else
		rc = set_up(s, false, &why);
	if (rc) {
		uproxy_say("no communicator: %s", why.text);
		created(c, STEP_SYSTEM, why.text);
		c->joined = true;
		return CALL_LATER;
	}
	e.proxy = comms.seat;
	e.comm = c->key;
	e.ranks = a->ranks;
	e.rank = a->rank;
	parent = a->parent ? comm_find(a->parent) : NULL;
	e.parent = parent ? parent->member + 1 : 0;	/* STEP_NONE: has failed */
	comms.joining = c;
	rc = comm_event(&e);
	comms.joining = NULL;
	if (rc < 0 && c->created.op) {
		created(c, code_of(rc), sentence_of(rc));
		c->joined = true;
	} else if (rc >= 0 && !c->joined) {
		c->member = rc;
	}
	return CALL_LATER;
}

/* ------------------------------------------------------------------------------ the end */

/* Ends a communicator that has nothing under way any more. */
static void end_if_idle(struct sv_session *s, struct communicator *c)
{
	struct step_event e = { .kind = STEP_LEAVE, .member = c->member, .comm = c->key };
	struct answer ended = c->ended, abort = c->abort;
	bool open;

	lock_take(&comms.lock);
	/* What is parked behind a failure of its own never gets its turn. */
	open = c->open > (c->told ? post_ahead_of(c) : 0);
	lock_drop(&comms.lock);
	if (open || (!c->aborted && !c->told && park_posting(c->number)))
		return;
	if (c->stands && !c->aborted)
		comm_event(&e);
	post_mend(s, c);
	comm_drop(c);
	if (ended.op)
		answer_now(&ended, CUDA_SUCCESS, NULL, 0);
	if (abort.op)
		answer_now(&abort, CUDA_SUCCESS, NULL, 0);
}

int do_comm_end(struct call *k)
{
	const struct sv_comm_end *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct communicator *c = comm_find(a->comm);
	struct step_event e = { .kind = STEP_LEAVE };
	bool abort = a->flags & SV_COMM_ABORT;

	if (a->pad || a->flags & ~SV_COMM_ABORT)
		return sv_bad(&k->c, "flags of a communicator's end");
	/* Threads of the client may end and abort it at once, and either record may come first. */
	if (!c || (abort && c->aborted))
		return 0;
	if (!abort && c->ended.op)
		return sv_bad(&k->c, "the second end of a communicator");
	if (!c->joined && !abort)
		return sv_bad(&k->c, "the end of a communicator under creation");
	c->ending = true;
	*(abort ? &c->abort : &c->ended) = answer_later(k);
	if (abort) {
		c->aborted = true;
		e.member = c->member;
		e.comm = c->key;
		if (c->member != STEP_NONE)
			comm_event(&e);
		if (!c->joined)
			created(c, STEP_INVALID_USAGE, "the communicator was aborted");
	}
	end_if_idle(s, c);
	return CALL_LATER;
}

int do_comm_leave(struct call *k)
{
	if (k->c.len)
		return sv_bad(&k->c, "size of a record");
	comms.left = true;
	return 0;
}

/* ------------------------------------------------------------------------------ the board */

static void comm_act(void *ctx, const struct step_action *a);

int comm_event(const struct step_event *e)
{
	int rc = board_step(comms.board, comms.seat, e, comm_act, NULL);

	if (rc == -ENOTRECOVERABLE)
		comm_errand();
	return rc;
}

static void comm_act(void *ctx, const struct step_action *a)
{
	(void)ctx;
	switch (a->kind) {
	case STEP_JOINED:
		on_joined(a);
		break;
	case STEP_START:
		post_start(a);
		break;
	case STEP_BUFFER:
		post_buffer(a);
		break;
	case STEP_CANCEL:
		post_cancel(a);
		break;
	case STEP_BEGUN:
		post_begun(a);
		break;
	case STEP_ENDED:
		post_ended(a);
		break;
	case STEP_BROKEN:
		lock_take(&comms.lock);
		for (struct communicator *c = comms.all; c; c = c->next)
			if (c->member == a->member)
				comm_failed(c, a->code, &a->failure);
		lock_drop(&comms.lock);
		break;
	case STEP_RELEASE:
		__atomic_store_n(&comms.released, 1, __ATOMIC_RELEASE);
		board_wake(comms.board, comms.seat);
		break;
	default:
		break;
	}
}

void comm_errand(void)
{
	__atomic_store_n(&comms.errand, 1, __ATOMIC_RELEASE);
	ring_kick(comms.s->ring);
}

bool comm_posted(void)
{
	return comms.transport && (__atomic_load_n(&comms.errand, __ATOMIC_RELAXED) ||
				   (!comms.lost && board_mailed(comms.board, comms.seat)));
}

bool comm_busy(void)
{
	/* A sharer that is out has work posted for long, and its processor is wanted by the one that is resident. */
	return __atomic_load_n(comms.away ? &comms.running : &comms.in_use, __ATOMIC_RELAXED);
}

bool comm_drive(bool (*more)(void *arg), void *arg)
{
	return comms.transport && comms.driver->drive && comms.driver->drive(comms.transport, more, arg);
}

/* The board is of no more use: all that is under way ends. */
static void lose_board(void)
{
	comms.lost = true;
	if (!ring_peer_gone(comms.s->ring))
		tell("a proxy was killed while it changed the job's board: all communicators of the job have failed");
	for (struct communicator *c = comms.all; c; c = c->next) {
		lock_take(&comms.lock);
		comm_failed(c, STEP_REMOTE, NULL);
		lock_drop(&comms.lock);
		if (!c->joined)
			created(c, STEP_REMOTE, sentence_of(-ENOTRECOVERABLE));
		c->joined = true;
	}
	post_broken();
}

void comm_run(struct sv_session *s)
{
	struct communicator *c, *next;
	int rc;

	/*
	 * A plain store may become visible only after park_run() has looked, and wipe out an errand set in between. It
	 * pairs with comm_errand() and release().
	 */
	__atomic_exchange_n(&comms.errand, 0, __ATOMIC_SEQ_CST);
	rc = comms.lost ? 0 : board_mail(comms.board, comms.seat, comm_act, NULL);
	if (rc)
		lose_board();
	post_stand();
	if (park_any)
		park_run(s);
	for (c = comms.all; c; c = next) {
		next = c->next;
		if (c->ending)
			end_if_idle(s, c);
	}
}

void comm_sleeps(bool sleeps)
{
	if (comms.heeded)
		board_sleeps(comms.board, comms.seat, sleeps);
}

void comm_shut(void)
{
	if (comms.board)
		board_shut(comms.board);
}

void comm_leave(bool failed)
{
	struct step_event e = { .kind = STEP_EXIT, .proxy = comms.seat };
	uint32_t seen = 0;

	if (!comms.transport)
		return;
	if (!failed && comms.left)
		post_all_up();
	if (failed || !comms.left || comm_event(&e) < 0) {
		board_leave(comms.board, comms.seat);
		board_shut(comms.board);
		return;
	}
	/* pairs with comm_act(), here and below */
	while (!__atomic_load_n(&comms.released, __ATOMIC_ACQUIRE)) {
		board_sleeps(comms.board, comms.seat, true);
		if (board_mail(comms.board, comms.seat, comm_act, NULL))
			break;
		/* pairs with comm_act() */
		if (!__atomic_load_n(&comms.released, __ATOMIC_ACQUIRE))
			board_await(comms.board, comms.seat, &seen);
	}
	if (comms.driver->depart)
		comms.driver->depart(comms.transport);
	board_leave(comms.board, comms.seat);
	board_shut(comms.board);
}
