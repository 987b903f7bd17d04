// SPDX-License-Identifier: Apache-2.0
/*
 * post.c - records of collective calls: posted, started behind their streams, ended
 *
 * A record takes its place in its stream when its first call is started: a notice, and a wait for the record's
 * word. When the stream has come to the notice, the calls that have been started go to the transport. At the
 * record's end its word is stored, and the stream goes on. If the record has failed, its stream *stands* until
 * the program ends the communicator (cover.h). A small send whose receive nobody has posted is copied into a
 * buffer when the stream has come to it; then the stream goes on.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define COMM_PRIVATE
#include "comm_i.h"
#include "context.h"
#include "cover.h"
#include "fail.h"
#include "park.h"
#include "stat_i.h"
#include "streams.h"
#include "trace.h"
#include "trace_i.h"
#include "tree.h"

_Static_assert((int)SV_COLL_RECV == STEP_RECV && (int)SV_COLL_KINDS == STEP_KINDS, "kinds of calls");
_Static_assert(SV_COLL_PREMULSUM == TREE_PREMULSUM, "operators");

/* ------------------------------------------------------------------------------ records */

static uint64_t cookie_of(const struct posted *p)
{
	return p->number << 16 | p->slot;
}

/* The record of a cookie; comm_lock. NULL: it has gone. */
static struct posted *posted_of(uint64_t cookie)
{
	uint32_t slot = cookie & 0xffff;
	struct posted *p = slot < POSTED_MAX ? comms.posted[slot] : NULL;

	return p && cookie_of(p) == cookie ? p : NULL;
}

int post_init(struct sv_session *s, struct why *why)
{
	size_t len = POSTED_MAX * sizeof(uint64_t);
	void *page;
	CUresult r;

	len = (len + getpagesize() - 1) & ~(size_t)(getpagesize() - 1);
	page = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return why_set(why, -ENOMEM, "no memory for the words of collectives");
	r = hal_pin(&s->hal, page, len);
	if (r) {
		munmap(page, len);
		return why_set(why, -EIO, "the words of collectives cannot be pinned: CUDA error %d", r);
	}
	comms.word = page;
	hal_told_words(&s->hal, page, len);
	return 0;
}

bool comm_reset(void)
{
	if (!comms.transport || !comms.driver->reset)
		return true;
	if (comms.left)
		return false;
	comms.driver->reset(comms.transport);
	return true;
}

void comm_repin(struct sv_session *s)
{
	size_t len = POSTED_MAX * sizeof(uint64_t);

	if (comms.word)
		hal_pin(&s->hal, comms.word, (len + getpagesize() - 1) & ~(size_t)(getpagesize() - 1));
}

/* A buffer for what is sent before its receiver is there: the transport's memory, if it has some, else malloc()'s. */
void *post_buffer_new(size_t size)
{
	void *buffer = comms.driver->buffer ? comms.driver->buffer(comms.transport, size) : malloc(size);

	if (buffer)
		comms.buffered += size;
	return buffer;
}

static uint64_t bytes_of(const struct step_call *c)
{
	return c->count * tree_leaf_size(c->type);
}

/* comm_lock */
static void buffer_free(const struct coll_call *c)
{
	void *buffer = c->buffer;

	assert_held(&comms.lock);
	if (buffer)
		comms.buffered -= bytes_of(&c->call);
	if (buffer && comms.driver->unbuffer)
		comms.driver->unbuffer(comms.transport, buffer);
	else
		free(buffer);
}

/* Has this rank `times` as much under way as its part of the board, so that more would take others' part? comm_lock */
static bool is_crowded(uint32_t times)
{
	assert_held(&comms.lock);
	return comms.in_use >= times * POSTED_SHARED ||
	       (uint64_t)comms.calls * comms.most_ranks >= times * CALLS_MAX;
}

/* The record that was posted ahead, or NULL. */
static struct posted *ahead_of(uint64_t seq)
{
	struct posted *p = NULL;

	if (!comms.ahead)
		return NULL;
	lock_take(&comms.lock);
	for (uint32_t i = 0; i < POSTED_MAX && !p; i++)
		if (comms.posted[i] && comms.posted[i]->ahead && comms.posted[i]->seq == seq)
			p = comms.posted[i];
	lock_drop(&comms.lock);
	return p;
}

/* May a record of the communicator be posted while others are parked? One that is posted already may have its turn. */
static bool post_has_room(uint64_t comm, uint64_t seq)
{
	const struct communicator *c = comm_find(comm);
	bool has;

	if (ahead_of(seq))
		return true;
	lock_take(&comms.lock);
	/* The list's reference is the only one: nothing of it is under way. */
	has = c && c->refs == 1 && comms.in_use < POSTED_MAX && !is_crowded(2);
	lock_drop(&comms.lock);
	return has;
}

/* Counts a record that has come (more) or gone. comm_lock */
static void posted_count(const struct posted *p, bool more)
{
	bool was = comms.crowded;

	assert_held(&comms.lock);
	__atomic_store_n(&comms.in_use, comms.in_use + (more ? 1 : -1), __ATOMIC_RELAXED);
	comms.calls += more ? p->calls : -p->calls;
	comms.crowded = is_crowded(1);
	if (comms.crowded != was)
		park_posts(comms.crowded ? post_has_room : NULL);
	if (was && !more)
		comm_errand();
}

/* Frees the record if it has ended and nothing refers to it any more. comm_lock */
void posted_settle(struct posted *p)
{
	assert_held(&comms.lock);
	if (!p->begun || !p->ended || p->buffers || p->filling || p->starts || p->stands || p->kept ||
	    p->to_release || p->ahead || (p->queued && !p->reached))
		return;
	comms.posted[p->slot] = NULL;
	posted_count(p, false);
	for (uint32_t i = 0; i < p->calls; i++) {
		buffer_free(&p->call[i]);
		copy_free(p->call[i].sent);
	}
	if (p->st)
		stream_put(p->st);
	comm_put(p->comm);
	free(p);
}

/* comm_lock */
static void set_going(struct uproxy_while *w, bool going)
{
	uint64_t now = now_ns(), since = w->since;

	assert_held(&comms.lock);
	if (going == !!since)
		return;
	/* In this order, since readers have no lock: one in between sees too little time, and never any of it twice. */
	__atomic_store_n(&w->since, going ? now : 0, __ATOMIC_RELAXED);
	if (!going)
		__atomic_store_n(&w->ns, w->ns + now - since, __ATOMIC_RELEASE);
}

/* Counts in *n what is going on, and in *w the time in which anything is. more: one begins; else one ends. comm_lock */
static void goes_on(struct uproxy_while *w, uint32_t *n, bool more)
{
	assert_held(&comms.lock);
	*n += more ? 1 : -1;
	set_going(w, *n && !comms.still);
}

void comm_stands(struct sv_session *s, bool still)
{
	lock_take(&comms.lock);
	comms.still = still;
	set_going(&s->stat->coll_waits, comms.waiting && !still);
	set_going(&s->stat->coll_runs, comms.running && !still);
	lock_drop(&comms.lock);
}

/* Counts the records that wait for other ranks: each from its posting until it has begun. comm_lock */
static void post_waits(bool more)
{
	assert_held(&comms.lock);
	goes_on(&comms.s->stat->coll_waits, &comms.waiting, more);
}

void post_store(struct posted *p)
{
	assert_held(&comms.lock);
	__atomic_store_n(&comms.word[p->slot], p->wait, __ATOMIC_RELEASE);
	comms.stored = true;
}

static __thread bool in_done;	/* this thread is in done(), which tells at its end of all that is stored meanwhile */

void post_tell(bool here)
{
	bool stored;

	if (in_done)
		return;
	lock_take(&comms.lock);
	stored = comms.stored;
	comms.stored = false;
	lock_drop(&comms.lock);
	lock_may_wait("what comes next in a stream");
	if (stored)
		hal_told(&comms.s->hal, here);
}

/* Lets the stream go on if the record has ended, has no buffer to fill and does not stand. comm_lock */
void post_let_go(struct posted *p)
{
	assert_held(&comms.lock);
	if (p->ended && p->queued && p->reached && !p->filling && !p->stands && !p->kept)
		post_store(p);
}

void post_forget(struct communicator *c)
{
	for (uint32_t i = 0; i < POSTED_MAX; i++) {
		struct posted *p = comms.posted[i];

		if (!p || p->comm != c)
			continue;
		p->buffers = 0;
		posted_settle(p);
	}
}

/* Nothing behind the record in its stream can fail by it any more: it has left the stream, or has ended. comm_lock */
void post_uncover(struct posted *p)
{
	assert_held(&comms.lock);
	if (p->covered)
		cover_done(p->chain);
	p->covered = false;
}

/* The record has begun: its stream, which was held until then, may be used. Consumer; comm_lock. */
static void release(struct posted *p)
{
	assert_held(&comms.lock);
	if (!p->held)
		return;
	park_release(p->st);
	p->held = false;
	__atomic_store_n(&comms.errand, 1, __ATOMIC_RELEASE);
}

/* What names a failed communicator to other proxies: the arena offset of its word, or 0. comm_lock */
static uint64_t cause_of(const struct sv_session *s, const struct communicator *c)
{
	assert_held(&comms.lock);
	return c->word ? (uint8_t *)c->word - arena_at(s, 0) : 0;
}

/* The next record whose stream is to stand, as it has failed, or to be released. NULL: there is none. comm_lock */
static struct posted *next_to_stand(void)
{
	assert_held(&comms.lock);
	for (uint32_t i = 0; comms.in_use && i < POSTED_MAX; i++)
		if (comms.posted[i] && !comms.posted[i]->ahead &&
		    (comms.posted[i]->to_release || (comms.posted[i]->stands && !comms.posted[i]->known)))
			return comms.posted[i];
	return NULL;
}

void post_stand(void)
{
	struct sv_session *s = comms.s;
	struct posted *p;
	uint64_t cause;
	int rc = 0;

	/* pairs with post_ended() */
	if (!__atomic_load_n(&comms.stands, __ATOMIC_ACQUIRE))
		return;
	__atomic_store_n(&comms.stands, 0, __ATOMIC_RELAXED);
	lock_take(&comms.lock);
	while ((p = next_to_stand())) {
		if (p->to_release) {
			release(p);
			p->to_release = false;
			posted_settle(p);
			continue;
		}
		p->known = true;
		cause = cause_of(s, p->comm);
		lock_drop(&comms.lock);
		if (!p->covered)
			rc = cover_coll(s, p->st, &p->chain, &p->nth);
		if (!rc)
			rc = cover_failed(p->chain, p->nth, p->comm->number, cause);
		if (rc)
			session_fail(s, rc, "no memory for what streams wait for", SV_OP_X_COLL, p->seq);
		lock_take(&comms.lock);
		release(p);
		/* A record that is not in its stream holds nothing there: what is parked behind it stands already. */
		p->stands = p->queued;
		posted_settle(p);
	}
	lock_drop(&comms.lock);
}

void post_mend(struct sv_session *s, struct communicator *c)
{
	post_stand();
	lock_take(&comms.lock);
	for (uint32_t i = 0; comms.in_use && i < POSTED_MAX; i++) {
		struct posted *p = comms.posted[i];

		if (!p || p->comm != c)
			continue;
		p->stands = false;
		post_let_go(p);
	}
	lock_drop(&comms.lock);
	cover_mended(c->number);
	if (comms.transport) {
		post_tell(false);
		comm_errand();
	} else if (park_any) {
		park_run(s);
	}
}

/* ------------------------------------------------------------------------------ starts */

static void done(void *arg, enum step_code code);

/* Where the start of an order is in its list, or the list's end. comm_lock */
static struct start **start_at(uint64_t order)
{
	struct start **at = &comms.by_order[order % STARTS_LISTS];

	assert_held(&comms.lock);
	while (*at && (*at)->order != order)
		at = &(*at)->other;
	return at;
}

/* comm_lock */
static void start_enter(struct start *st)
{
	assert_held(&comms.lock);
	*start_at(st->order) = st;
	st->next = comms.starts;
	st->prev = &comms.starts;
	if (st->next)
		st->next->prev = &st->next;
	comms.starts = st;
}

/* comm_lock */
static void start_leave(struct start *st)
{
	assert_held(&comms.lock);
	*start_at(st->order) = st->other;
	*st->prev = st->next;
	if (st->next)
		st->next->prev = st->prev;
}

/* The part of a start as the transport has it. */
static struct transport_part part_of(const struct start *st, uint32_t i)
{
	const struct posted *p = st->part[i].p;
	const struct coll_call *c = &p->call[st->part[i].call];
	bool pair = c->call.kind >= STEP_SEND;
	struct transport_part part = { .rank = p->comm->rank };

	part.send = c->buffer ?: c->kept ? c->sent : (void *)(uintptr_t)c->send;
	part.recv = c->kept ? c->received : (void *)(uintptr_t)c->recv;
	if (pair && c->call.kind == STEP_SEND)
		part.recv = NULL;
	if (pair && c->call.kind == STEP_RECV)
		part.send = NULL;
	if (c->scale == SV_COLL_FACTOR)
		part.factor = &c->factor;
	else if (c->scale == SV_COLL_FACTOR_AT)
		part.factor = c->kept ? (void *)&c->scaled : (void *)(uintptr_t)c->factor;
	part.factor_there = c->scale == SV_COLL_FACTOR_AT && !c->kept;
	return part;
}

/* comm_lock */
static void start_put(struct start *st)
{
	assert_held(&comms.lock);
	if (!--st->holds)
		free(st);
}

/* Tells the transport that an operation which was announced will not start. */
static void withdraw(uint64_t order)
{
	if (comms.driver->withdraw)
		comms.driver->withdraw(comms.transport, order);
}

/* All streams have come so far. Any thread, without comm_lock. */
static void go(struct start *st)
{
	const struct posted *p = st->part[0].p;
	struct transport_part part = part_of(st, 0);
	struct transport_start op = { .order = st->order, .comm = p->comm->key,
				 .call = p->call[st->part[0].call].call,
				 .ranks = p->comm->ranks, .nparts = 1, .part = &part,
				 .device = p->comm->end, .done = done, .arg = st };
	enum step_code code;
	bool cancelled;
	int rc;

	lock_may_wait("the board");
	if (st->parts == 2) {		/* a rank's send to itself */
		struct transport_part other = part_of(st, 1);

		op.call.kind = STEP_SEND;
		part.send = part.send ?: other.send;
		part.recv = part.recv ?: other.recv;
	}
	lock_take(&comms.lock);
	code = st->code ?: st->cancelled ? STEP_REMOTE : STEP_OK;
	st->holds = 2;
	st->gone = true;
	goes_on(&comms.s->stat->coll_runs, &comms.running, true);
	lock_drop(&comms.lock);
	rc = code ? 0 : comms.driver->start(comms.transport, &op);
	/* The board first: the withdrawal makes others fail, and the board shall know that the fault was here. */
	if (code || rc) {
		done(st, code ?: STEP_SYSTEM);
		withdraw(op.order);
	}
	/* A transport ignores a cancel of what it does not know yet: so one that has come meanwhile is repeated. */
	lock_take(&comms.lock);
	st->running = true;
	cancelled = st->cancelled;
	start_put(st);
	lock_drop(&comms.lock);
	if (cancelled)
		comms.driver->cancel(comms.transport, op.order);
}

/* Fills in what the trace says of a start that ends: a row for each part, to be written without the lock. comm_lock */
static uint32_t traced(const struct start *st, enum step_code code, struct uproxy_trace_coll row[2])
{
	assert_held(&comms.lock);
	for (uint32_t i = 0; i < st->parts; i++) {
		const struct posted *p = st->part[i].p;
		const struct step_call *call = &p->call[st->part[i].call].call;

		row[i] = (struct uproxy_trace_coll){
			.call = call->kind, .type = call->type, .failed = code != STEP_OK,
			.rank = p->comm->rank, .ranks = p->comm->ranks, .peer = call->peer,
			.comm = p->comm->key, .order = st->order, .count = call->count,
			.posted_ns = p->posted_ns, .started_ns = st->started_ns, .ended_ns = now_ns() };
	}
	return st->parts;
}

/* This device's part of an operation has ended. Any thread. */
static void done(void *arg, enum step_code code)
{
	uint64_t *ended_well = &comms.s->stat->collectives;
	struct start *st = arg;
	struct step_event e = { .kind = STEP_DONE, .device = board_device(comms.seat), .order = st->order,
				.code = code, .cause = code ? st->cause : 0 };
	struct uproxy_trace_coll row[2];
	uint32_t rows = 0;
	uint64_t cut[2];
	bool outer = in_done;
	int cuts = 0;

	in_done = true;
	lock_take(&comms.lock);
	if (trace_on)
		rows = traced(st, code, row);
	if (st->gone)
		goes_on(&comms.s->stat->coll_runs, &comms.running, false);
	if (!code)		/* nobody else adds to it without the lock */
		__atomic_store_n(ended_well, *ended_well + st->parts, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < st->parts; i++) {
		struct posted *p = st->part[i].p;
		struct coll_call *c = &p->call[st->part[i].call];

		if (c->buffer) {
			buffer_free(c);
			c->buffer = NULL;
			p->buffers -= p->buffers > 0;
		}
		call_ends(p, c, code);
		if (!--p->starts && p->cut && !p->ended)
			cut[cuts++] = cookie_of(p);
		posted_settle(p);
	}
	start_leave(st);
	start_put(st);
	comms.telling++;
	lock_drop(&comms.lock);
	for (uint32_t i = 0; i < rows; i++)
		trace_coll(&row[i]);
	comm_event(&e);
	if (comm_arrived())
		comm_errand();	/* a result that waits to be written makes the session due */
	for (int i = 0; i < cuts; i++)
		post_ended(&(struct step_action){ .cookie = cut[i], .code = STEP_REMOTE });
	in_done = outer;
	post_tell(true);
	lock_take(&comms.lock);
	comms.telling--;
	lock_drop(&comms.lock);
}

static void filled(void *arg)
{
	struct posted *p = arg;

	lock_take(&comms.lock);
	p->filling--;
	post_let_go(p);
	posted_settle(p);
	lock_drop(&comms.lock);
	post_tell(false);
}

/* The stream has come so far, and stays there until the transport has what is sent. false: it never will. comm_lock */
static bool fill_buffer(struct posted *p, const struct coll_call *c)
{
	const void *from = (void *)(uintptr_t)c->send;
	size_t size = c->call.count * tree_leaf_size(c->call.type);

	assert_held(&comms.lock);
	if (!comms.driver->fill) {
		memcpy(c->buffer, from, size);
		return true;
	}
	p->filling++;
	if (!comms.driver->fill(comms.transport, c->buffer, from, size, filled, p))
		return true;
	p->filling--;
	p->failed = true;
	comm_failed(p->comm, STEP_SYSTEM, NULL);
	return false;
}

/* The stream has come to a record. A thread of the driver. */
static void reached(void *arg, CUresult status)
{
	struct start *ready = NULL, *st;
	struct posted *p = arg;

	stat_thread();
	lock_take(&comms.lock);
	p->reached = true;
	p->failed |= status != CUDA_SUCCESS;
	if (status)
		__atomic_store_n(&comms.broken, status, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < p->calls; i++) {
		struct coll_call *c = &p->call[i];
		bool lost = status || (c->buffer && !fill_buffer(p, c));

		st = c->start;
		c->start = NULL;
		if (!st)
			continue;
		if (lost) {		/* what it would send was never written */
			st->code = STEP_SYSTEM;
			st->cause = status;
		}
		if (!--st->left) {
			st->ready = ready;
			ready = st;
		}
	}
	post_let_go(p);
	posted_settle(p);
	lock_drop(&comms.lock);
	post_tell(false);	/* a notice may come when the stream is at the wait already */
	while ((st = ready)) {
		ready = st->ready;
		go(st);
	}
}

/*
 * Has all been done that has been put into the stream? Only asked of a stream that follows no other one by itself, so
 * there is nothing else that it could wait for.
 */
static bool is_idle(struct sv_session *s, const struct stream *st)
{
	return !st->blocking && !st->legacy && !s->hal.drv.cuStreamQuery(st->real);
}

/* Puts a record into its stream. A stream that is idle has come so far already, and needs no notice. Consumer. */
static void enqueue(struct posted *p)
{
	struct sv_session *s = comms.s;
	bool idle = false;
	CUresult r;
	int rc;

	if (p->queued)
		return;
	if (cover_coll(s, p->st, &p->chain, &p->nth))
		session_fail(s, -ENOMEM, "no memory for what streams wait for", SV_OP_X_COLL, p->seq);
	else
		p->covered = true;
	p->queued = true;
	p->wait = ++comms.waits[p->slot];
	rc = sv_enter(s, p->ctx);
	if (!rc) {
		idle = is_idle(s, p->st);
		stream_mark(s, p->st);
		stream_used(p->st);
	}
	if (rc)
		r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		r = idle ? CUDA_SUCCESS : hal_notify(&s->hal, p->st->real, reached, p);
	if (r || idle)
		reached(p, r);
	if (r)
		return;
	r = s->hal.drv.cuStreamWaitValue64_v2(p->st->real, (uintptr_t)&comms.word[p->slot],
					      p->wait, CU_STREAM_WAIT_VALUE_GEQ);
	if (r)
		session_error(s, r, SV_OP_X_COLL, 0);
}

/* The cookie of the record that this thread is posting. What starts meanwhile has waited for this rank alone. */
static __thread uint64_t posting;

static void count_last(const struct posted *p, const struct step_action *a)
{
	if (a->cookie == posting && p->comm->ranks > 1 && p->call[a->call].call.kind < STEP_SEND)
		stat_add(&comms.s->stat->coll_last, 1);
}

void post_start(const struct step_action *a)
{
	struct start *st;
	struct posted *p;
	bool keeps, now;

	lock_take(&comms.lock);
	p = posted_of(a->cookie);
	st = *start_at(a->order);
	lock_drop(&comms.lock);
	if (!p || a->call >= p->calls || (st && st->parts == 2))
		p = NULL;
	if (p && !st) {
		st = calloc(1, sizeof(*st));
		if (!st)
			p = NULL;
	}
	/* Without slices, one that is ahead, as a checkpoint has it, waits for its turn. */
	keeps = comms.away || (p && p->ahead && comms.sliced);
	if (p && !keeps && !p->ahead)
		enqueue(p);
	else if (p && keeps && call_keep(p, &p->call[a->call])) {
		if (st->parts) {		/* the start goes on with its other part, and fails */
			lock_take(&comms.lock);
			st->code = STEP_SYSTEM;
			now = !--st->left;
			lock_drop(&comms.lock);
			if (now)
				go(st);
			return;
		}
		free(st);
		p = NULL;
	}
	if (!p) {			/* no memory, or a send that was given up: no part of it runs here */
		struct step_event e = { .kind = STEP_DONE, .device = board_device(comms.seat), .order = a->order,
					.code = STEP_SYSTEM };

		if (!a->more)
			comm_event(&e);
		return;
	}
	count_last(p, a);
	if (!st->parts) {
		st->order = a->order;
		st->started_ns = trace_on ? now_ns() : 0;
		st->left = 1;
		lock_take(&comms.lock);
		start_enter(st);
		lock_drop(&comms.lock);
	}
	if (!st->parts && comms.driver->announce)
		comms.driver->announce(comms.transport, a->order);
	lock_take(&comms.lock);
	st->part[st->parts].p = p;
	st->part[st->parts++].call = a->call;
	p->starts++;
	if (p->failed) {		/* what it would send was never written */
		st->code = STEP_SYSTEM;
		st->cause = __atomic_load_n(&comms.broken, __ATOMIC_RELAXED);
	}
	if (!p->reached && !p->call[a->call].kept) {
		st->left++;
		p->call[a->call].start = st;
	}
	now = !a->more && !--st->left;
	lock_drop(&comms.lock);
	if (now)
		go(st);
}

/* A start whose streams have not come so far ends at once, since nobody has touched its buffers yet. */
static bool take_back(struct start *st)
{
	if (!st->left)
		return false;
	for (uint32_t i = 0; i < st->parts; i++)
		st->part[i].p->call[st->part[i].call].start = NULL;
	st->holds = 1;
	return true;
}

void post_cancel(const struct step_action *a)
{
	bool running = false, back = false;
	struct start *st;

	lock_take(&comms.lock);
	st = *start_at(a->order);
	if (st && !st->cancelled) {	/* the board may say it again */
		st->cancelled = true;
		running = st->running;
		back = take_back(st);
	}
	lock_drop(&comms.lock);
	if (back) {
		withdraw(a->order);
		done(st, STEP_REMOTE);
	} else if (running) {
		comms.driver->cancel(comms.transport, a->order);
	}
}

/* ------------------------------------------------------------------------------ what the board says */

void post_buffer(const struct step_action *a)
{
	struct coll_call *c;
	struct posted *p;

	lock_take(&comms.lock);
	p = posted_of(a->cookie);
	c = p && a->call < p->calls ? &p->call[a->call] : NULL;
	if (c) {
		c->buffer = post_buffer_new(c->call.count * tree_leaf_size(c->call.type));
		p->buffers += !!c->buffer;
		if (!c->buffer)
			comm_failed(p->comm, STEP_SYSTEM, NULL);
		else if (p->reached)	/* at the first buffer of a group */
			fill_buffer(p, c);
	}
	lock_drop(&comms.lock);
	if (!c)
		return;
	enqueue(p);
}

void post_begun(const struct step_action *a)
{
	struct posted *p;

	lock_take(&comms.lock);
	p = posted_of(a->cookie);
	if (p) {
		if (!p->begun)
			post_waits(false);
		p->begun = true;
		/* A record that fails keeps its stream held until the stream stands: so a wait for this record alone fails, too. */
		if (!a->code && !p->kept)
			release(p);
		posted_settle(p);
	}
	lock_drop(&comms.lock);
}

/* Any thread: the transport's, too. */
void post_ended(const struct step_action *a)
{
	struct communicator *c;
	struct posted *p;
	bool errand, stands, tells = false;

	lock_take(&comms.lock);
	p = posted_of(a->cookie);
	c = p ? p->comm : NULL;
	stands = c && a->code && !c->aborted;
	/* Before the stream goes on: the client asks for failures first. */
	if (c && a->code)
		comm_failed(c, a->code, &a->failure);
	if (p) {
		p->ended = true;
		p->code = a->code;
		p->stands = stands;
		/* Only the consumer may release a stream. */
		p->to_release = !stands && p->held && !p->kept;
		tells = stands || p->to_release;
		if (tells)
			__atomic_store_n(&comms.stands, 1, __ATOMIC_RELEASE);
		if (!stands)
			post_uncover(p);
		post_let_go(p);
		posted_settle(p);
	}
	errand = c && !--c->open && __atomic_load_n(&c->ending, __ATOMIC_RELAXED);
	lock_drop(&comms.lock);
	post_tell(false);
	if (errand || tells)
		comm_errand();
}

/* The orders of all starts that are not cancelled; one, if there is no memory for more. The caller frees *list. */
static size_t starts_left(uint64_t **list, uint64_t *one)
{
	size_t n = 0, all = 0;

	lock_take(&comms.lock);
	for (const struct start *st = comms.starts; st; st = st->next)
		all += !st->cancelled;
	*list = malloc(all * sizeof(**list));
	for (const struct start *st = comms.starts; st; st = st->next) {
		if (st->cancelled)
			continue;
		*(*list ? &(*list)[n] : one) = st->order;
		n = *list ? n + 1 : 1;
	}
	lock_drop(&comms.lock);
	return n;
}

/*
 * What has been started is cancelled, and its records end when nobody touches their memory any more; all
 * others end at once.
 */
void post_broken(void)
{
	struct step_action begun = { .code = STEP_REMOTE }, ended = begun;
	uint64_t *list, one = 0;
	size_t n;

	for (uint32_t i = 0; i < POSTED_MAX; i++) {
		struct posted *p;

		lock_take(&comms.lock);
		p = comms.posted[i];
		begun.cookie = p ? cookie_of(p) : 0;
		ended.cookie = p && !p->ended && !p->starts ? cookie_of(p) : 0;
		if (p) {
			p->buffers = 0;
			p->cut = true;
		}
		lock_drop(&comms.lock);
		if (begun.cookie)
			post_begun(&begun);
		if (ended.cookie)
			post_ended(&ended);
	}
	do {
		n = starts_left(&list, &one);
		for (size_t i = 0; i < n; i++)
			post_cancel(&(struct step_action){ .order = list ? list[i] : one });
		free(list);
	} while (n);
}

/* ------------------------------------------------------------------------------ posting */

static struct step_call call_of(const struct sv_coll_call *a)
{
	return (struct step_call){ .kind = a->kind, .type = a->type, .op = a->op, .peer = a->peer, .count = a->count };
}

int post_check(struct sv_session *s, const struct communicator *c, const struct sv_coll_call *a)
{
	struct step_call call = call_of(a);
	uint64_t send, recv;
	CUresult r;

	if (a->kind >= STEP_KINDS || a->type >= TREE_TYPES || a->op >= TREE_OPS ||
	    a->peer >= c->ranks || a->scale > SV_COLL_FACTOR_AT ||
	    (a->op == TREE_PREMULSUM) != (a->scale != SV_COLL_NO_FACTOR))
		return -EPROTO;
	if (!call_sizes(c, &call, &send, &recv))
		return CUDA_ERROR_INVALID_VALUE;
	r = sv_window(s, a->send, send, 0);
	if (!r)
		r = sv_window(s, a->recv, recv, 1);
	if (!r && a->scale == SV_COLL_FACTOR_AT)
		r = sv_window(s, a->factor, tree_leaf_size(a->type), 0);
	return r;
}

static uint32_t free_slot(void)
{
	uint32_t i;

	for (i = 0; i < POSTED_MAX && comms.posted[i]; i++)
		;
	return i;
}

void posted_enter(struct posted *p)
{
	assert_held(&comms.lock);
	p->comm->refs++;
	p->comm->open += !p->ended;
	comms.posted[p->slot] = p;
	if (!p->begun)
		post_waits(true);
	if (comms.most_ranks < p->comm->ranks)
		comms.most_ranks = p->comm->ranks;
	posted_count(p, true);
}

static struct posted *posted_new(struct communicator *c, struct stream *st, uint64_t seq,
				 const struct sv_coll *a, const struct sv_coll_call *call)
{
	struct posted *p = calloc(1, sizeof(*p) + a->calls * sizeof(p->call[0]));
	uint32_t slot;

	if (!p)
		return NULL;
	lock_take(&comms.lock);
	slot = free_slot();
	if (slot == POSTED_MAX) {
		lock_drop(&comms.lock);
		free(p);
		return NULL;
	}
	p->comm = c;
	p->st = st;
	p->seq = seq;
	p->ctx = a->ctx;
	p->slot = slot;
	p->number = ++comms.numbers[slot];
	p->posted_ns = trace_on ? now_ns() : 0;
	p->calls = a->calls;
	for (uint32_t i = 0; i < a->calls; i++) {
		const struct sv_coll_call *f = &call[i];

		p->call[i].call = call_of(f);
		p->call[i].send = f->send;
		p->call[i].recv = f->recv;
		p->call[i].factor = f->factor;
		p->call[i].scale = f->scale;
	}
	posted_enter(p);
	lock_drop(&comms.lock);
	__atomic_add_fetch(&st->refs, 1, __ATOMIC_RELAXED);
	return p;
}

/* Have the record's small sends no room in buffers, if all of them need some? */
static bool is_full(const struct posted *p)
{
	uint64_t need = 0;
	bool full;

	for (uint32_t i = 0; i < p->calls; i++) {
		const struct step_call *c = &p->call[i].call;

		if (c->kind == STEP_SEND && c->count <= STEP_BUFFERED / tree_leaf_size(c->type))
			need += bytes_of(c);
	}
	lock_take(&comms.lock);
	full = comms.buffered + need > BUFFERED_MAX;
	lock_drop(&comms.lock);
	return full;
}

/* Posts a record. 0 or -errno of the board. */
static int post(struct posted *p)
{
	struct step_call one, *calls = p->calls == 1 ? &one : malloc(p->calls * sizeof(*calls));
	struct step_event e = { .kind = STEP_POST, .member = p->comm->member,
				.cookie = cookie_of(p), .ncalls = p->calls, .calls = calls };
	int rc;

	if (!calls)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->calls; i++)
		calls[i] = p->call[i].call;
	e.full = p->call[0].call.kind >= STEP_SEND && is_full(p);
	posting = e.cookie;
	rc = comm_event(&e);
	posting = 0;
	if (calls != &one)
		free(calls);
	return rc;
}

/*
 * The record could not be posted. Later ones are not posted either, since they would take its place in the
 * order of calls; the others of the communicator learn of it when this rank aborts.
 */
static int refuse(struct sv_session *s, struct communicator *c, struct stream *st, struct posted *p, enum step_code code)
{
	struct step_action a = { .code = code };
	uint32_t chain;
	uint64_t nth, cause;
	int rc = 0;

	lock_take(&comms.lock);
	comm_failed(c, code, NULL);
	cause = cause_of(s, c);
	lock_drop(&comms.lock);
	c->refused = true;
	if (p) {
		a.cookie = cookie_of(p);
		post_begun(&a);
		post_ended(&a);
		post_stand();
	} else if (st) {
		rc = cover_coll(s, st, &chain, &nth) ?: cover_failed(chain, nth, c->number, cause);
		comm_errand();	/* what waits for room may run now */
	}
	return rc;
}

static const char full[] = "the job's board is full: its ranks have 131072 operations under way; smaller groups or "
			   "synchronisation help";
_Static_assert(BOARD_OPS == 131072, "as the sentence says");

/* ------------------------------------------------------------------------------ ahead */

static bool meet(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

#define AHEAD_CALLS 64u		/* of a record; each is compared with those of all records before it */

/* Does one of the two calls, of their communicators, write where the other one works? */
static bool depend(const struct communicator *of, const struct coll_call *first, const struct communicator *c,
		   const struct sv_coll_call *then)
{
	struct step_call call = call_of(then);
	uint64_t send, recv, send2, recv2;

	if (!call_sizes(of, &first->call, &send, &recv) || !call_sizes(c, &call, &send2, &recv2))
		return true;
	return meet(first->recv, recv, then->send, send2) || meet(first->recv, recv, then->recv, recv2) ||
	       meet(first->send, send, then->recv, recv2);
}

/*
 * May a record be posted ahead of those that come before it in its stream or in its communicator, and have not ended? What has not
 * begun in its stream must be of its communicator, so that all ranks post it in this order. None of them may write where the record
 * works, nor the record where one of them works. held: the stream is, which must be for one of them.
 */
static bool may_go_ahead(const struct communicator *c, const struct stream *st, bool held, uint32_t calls,
			 const struct sv_coll_call *call)
{
	bool may = true;

	lock_take(&comms.lock);
	for (uint32_t i = 0; i < POSTED_MAX && may; i++) {
		const struct posted *q = comms.posted[i];

		if (!q || (q->st != st && q->comm != c) || (q->ended && !q->kept && !q->ahead))
			continue;
		held &= !(q->st == st && q->held);
		may = q->begun || q->comm == c;
		for (uint32_t n = 0; n < q->calls && may; n++)
			for (uint32_t m = 0; m < calls && may; m++)
				may = !depend(q->comm, &q->call[n], c, &call[m]);
	}
	lock_drop(&comms.lock);
	return may && !held;
}

/* The communicator of a record that is parked, if that has only collectives, which its handler would not refuse; or NULL. */
static struct communicator *comm_ready(struct sv_session *s, const struct ring_record *rec)
{
	const struct sv_coll *a = rec->data;
	const struct sv_coll_call *call = (const void *)(a + 1);
	struct communicator *c;

	if (rec->op != SV_OP_X_COLL || rec->len < sizeof(*a) || !a->calls || a->calls > AHEAD_CALLS || a->pad ||
	    rec->len != sizeof(*a) + (uint64_t)a->calls * sizeof(*call))
		return NULL;
	c = comm_find(a->comm);
	if (!c || c->aborted || !c->stands || c->refused)
		return NULL;
	for (uint32_t i = 0; i < a->calls; i++)
		if (post_check(s, c, &call[i]) || call[i].kind >= STEP_SEND || call[i].scale == SV_COLL_FACTOR_AT)
			return NULL;
	return c;
}

/* Gives back a record that the board has not taken. */
static void posted_drop(struct posted *p)
{
	lock_take(&comms.lock);
	p->ahead = false;
	comms.ahead--;
	p->begun = p->ended = true;
	p->comm->open--;
	post_waits(false);
	posted_settle(p);
	lock_drop(&comms.lock);
}

/* Posts a record that is parked. Whether the next one of its stream may follow. */
static bool post_ahead(void *ctx, struct stream *st, bool held, const struct ring_record *rec)
{
	const struct sv_coll *a = rec->data;
	const struct sv_coll_call *call = (const void *)(a + 1);
	struct sv_session *s = ctx;
	struct communicator *c;
	struct posted *p;
	int rc;

	if (ahead_of(rec->seq))
		return true;
	c = comm_ready(s, rec);
	if (!c || !may_go_ahead(c, st, held, a->calls, call))
		return false;
	p = posted_new(c, st, rec->seq, a, call);
	if (!p)
		return false;
	lock_take(&comms.lock);
	p->ahead = true;
	comms.ahead++;
	lock_drop(&comms.lock);
	rc = post(p);
	if (rc == -ENOSPC || rc == -ENOMEM) {	/* there may be room when its turn comes */
		posted_drop(p);
		return false;
	}
	if (rc)
		refuse(s, c, st, p, STEP_REMOTE);
	return !rc;
}

void comm_ahead(struct sv_session *s)
{
	if (comms.in_use)
		park_ahead(post_ahead, s);
}

/* The turn of a record that was posted ahead has come: what of it has started, and works in the memory, goes behind its stream. */
static void comes_up(struct posted *p)
{
	bool waits = false;

	lock_take(&comms.lock);
	for (uint32_t n = 0; n < p->calls; n++)
		waits |= p->call[n].start != NULL;
	lock_drop(&comms.lock);
	if (waits)
		enqueue(p);		/* while it is ahead, since it may end at once */
	lock_take(&comms.lock);
	p->ahead = false;
	comms.ahead--;
	if (p->stands)
		__atomic_store_n(&comms.stands, 1, __ATOMIC_RELEASE);
	lock_drop(&comms.lock);
}

void post_all_up(void)
{
	for (uint32_t i = 0; comms.ahead && i < POSTED_MAX; i++)
		if (comms.posted[i] && comms.posted[i]->ahead)
			comes_up(comms.posted[i]);
}

uint32_t post_ahead_of(const struct communicator *c)
{
	uint32_t n = 0;

	assert_held(&comms.lock);
	for (uint32_t i = 0; comms.ahead && i < POSTED_MAX; i++)
		n += comms.posted[i] && comms.posted[i]->ahead && !comms.posted[i]->ended && comms.posted[i]->comm == c;
	return n;
}

/* ------------------------------------------------------------------------------ SV_OP_X_COLL */

/* Posts a new record, or refuses it: what its handler returns. *cookie, which is 0 before, names a record that was posted. */
static int post_new(struct call *k, uint64_t *cookie)
{
	const struct sv_coll *a = k->c.data;
	const struct sv_coll_call *call = (const void *)(a + 1);
	struct sv_session *s = k->c.session;
	struct communicator *c = comm_find(a->comm);
	struct stream *st;
	struct posted *p;
	int rc;

	if (!a->calls || a->calls > SV_COLL_CALLS_MAX || a->pad ||
	    !tail_is(&k->c, sizeof(*a), (uint64_t)a->calls * sizeof(*call)))
		return sv_bad(&k->c, "calls of a collective record");
	if (!c || c->aborted)
		return 0;	/* it was parked, and the communicator has been aborted since */
	rc = sv_enter(s, a->ctx);
	if (!rc)
		rc = uproxy_stream_find(s, a->stream, &st);
	if (rc > 0)
		refuse(s, c, NULL, NULL, STEP_INVALID_USAGE);
	if (rc)
		return sv_fails(&k->c, rc, "stream of a collective");
	for (uint32_t i = 0; i < a->calls; i++) {
		rc = post_check(s, c, &call[i]);
		if (rc < 0)
			return sv_bad(&k->c, "a collective call");
		if (rc)
			return refuse(s, c, st, NULL, STEP_INVALID_USAGE) ?: fails(k, rc);
	}
	if (!c->stands || c->refused)
		return refuse(s, c, st, NULL, STEP_INVALID_USAGE);
	p = posted_new(c, st, k->seq, a, call);
	if (!p)
		return refuse(s, c, st, NULL, STEP_SYSTEM);
	*cookie = cookie_of(p);
	rc = post(p);
	if (!rc)
		return 0;
	*cookie = 0;
	if (rc == -ENOSPC) {
		lock_take(&comms.lock);
		comm_failed_for(c, STEP_SYSTEM, full);
		lock_drop(&comms.lock);
	}
	return refuse(s, c, st, p, rc == -ENOTRECOVERABLE ? STEP_REMOTE : STEP_SYSTEM);
}

int do_coll(struct call *k)
{
	struct posted *p = ahead_of(k->seq);
	uint64_t cookie = p ? cookie_of(p) : 0;
	int rc = 0;

	if (p)
		comes_up(p);
	else
		rc = post_new(k, &cookie);
	if (!cookie)
		return rc;
	/* It may have begun and ended meanwhile. What it receives beside the memory has still to be written there. */
	lock_take(&comms.lock);
	p = posted_of(cookie);
	if (p && (!p->begun || p->kept)) {
		p->held = true;
		rc = park_hold(p->st);
		if (rc)
			p->held = false;
	} else if (p) {
		posted_settle(p);
	}
	lock_drop(&comms.lock);
	post_stand();
	return rc ? fails(k, CUDA_ERROR_OUT_OF_MEMORY) : 0;
}
