// SPDX-License-Identifier: Apache-2.0
/*
 * save.c - joins a cut of the job, turns a session's communicators into bytes (saved.h), and makes them again
 *
 * A cut finds no operation that has started (docs/ranks.md, Start and Cut). What it finds are records that are posted
 * and not begun, each of which holds its stream or is parked, too (comm_ahead()); sends that lie in buffers until their receivers are there; and
 * parked records. The board has the state of the operations, which refers to records by their cookies and to
 * proxies by their seats; so both stay the same over a restore.
 */
#include <stdio.h>
#include <stdlib.h>

#define COMM_PRIVATE
#include "answer.h"
#include "comm_i.h"
#include "context.h"
#include "device_memory.h"
#include "park.h"
#include "saved.h"
#include "streams.h"
#include "tree.h"

_Static_assert(SAVED_SLOTS == POSTED_MAX && SAVED_CALLS == SV_COLL_CALLS_MAX && SAVED_FACTORS == SV_COLL_FACTOR_AT,
	       "saved.h repeats these");

/* ------------------------------------------------------------------------------ the cut */

/*
 * A group of which some calls have ended and others wait for their partners: its stream is let through,
 * and gets another notice and another wait when the next call starts. comm_lock
 */
static void step_aside(struct posted *p)
{
	assert_held(&comms.lock);
	if (!p->queued || !p->reached || p->begun || p->starts || p->filling)
		return;
	post_store(p);
	post_uncover(p);
	p->queued = p->reached = false;
}

void comm_step_aside(void)
{
	lock_take(&comms.lock);
	for (uint32_t i = 0; comms.in_use && i < POSTED_MAX; i++)
		if (comms.posted[i])
			step_aside(comms.posted[i]);
	lock_drop(&comms.lock);
	post_tell(false);
}

/* Is nothing under way here: no operation, no copy, no word to the board? */
static bool is_still(void)
{
	bool still;

	lock_take(&comms.lock);
	still = !comms.starts && !comms.telling;
	for (uint32_t i = 0; i < POSTED_MAX; i++) {
		struct posted *p = comms.posted[i];

		if (!p)
			continue;
		still &= (p->begun || !p->queued) && !p->filling && !p->kept && (!p->begun || p->ended);
		/* What was posted ahead and has ended well is waited for, as its record would be posted again. */
		still &= !p->ahead || !p->begun || p->code;
	}
	lock_drop(&comms.lock);
	return still;
}

bool comm_finished(void)
{
	bool is;

	if (!comms.transport)
		return true;
	if (comm_posted())
		return false;
	lock_take(&comms.lock);
	is = !comms.starts && !comms.telling;
	for (uint32_t i = 0; i < POSTED_MAX && is; i++)
		is = !comms.posted[i] || comms.posted[i]->ended;
	lock_drop(&comms.lock);
	return is;
}

bool comm_talks(void)
{
	const struct communicator *c = comms.all;

	while (c && (c->ranks < 2 || !c->stands || c->ending))
		c = c->next;
	return c;
}

bool comm_owes(void)
{
	return comms.transport && board_owes(comms.board, comms.seat);
}

/* Has something been sent into memory of the transport's own, which only the transport could save? */
static bool is_lent(void)
{
	bool is = false;

	lock_take(&comms.lock);
	for (uint32_t i = 0; comms.driver->buffer && i < POSTED_MAX && !is; i++)
		for (uint32_t k = 0; comms.posted[i] && k < comms.posted[i]->calls && !is; k++)
			is = comms.posted[i]->call[k].buffer;
	lock_drop(&comms.lock);
	return is;
}

int comm_cut(uint64_t cut, const uint64_t *seats, bool *all, struct why *why)
{
	int rc;

	if (!cut && comms.transport)
		return why_set(why, -ENOTSUP, "the program has NCCL communicators: all ranks of a job are "
			       "saved together");
	*all = !cut || comms.fd < 0;
	if (*all)
		return 0;
	if (!comms.board) {
		rc = board_open(comms.fd, &comms.board);
		if (rc)
			return why_set(why, rc, "the job's board cannot be mapped: %s", strerror(-rc));
	}
	if (comms.transport && (comm_posted() || !is_still()))
		return 0;
	if (comms.transport && is_lent())
		return why_set(why, -EBUSY, "what a rank has sent lies in device memory of the transport, "
			       "and nobody has received it yet: checkpoint again later");
	rc = board_cut(comms.board, comms.seat, cut, seats, all);
	__atomic_store_n(&comms.cut, *all, __ATOMIC_RELAXED);
	if (rc == -EAGAIN)
		return 0;
	if (rc == -ESTALE)
		return why_set(why, -ERESTART, "a rank has begun or ended meanwhile");
	if (rc)
		return why_set(why, -ENOTSUP, "the collective operations of the job have failed, since a "
			       "proxy was killed: there is nothing to save");
	return 0;
}

bool comm_halt(bool on)
{
	return !comms.transport || !comms.driver->halt || comms.driver->halt(comms.transport, on);
}

void comm_cut_ends(void)
{
	comm_halt(false);
	__atomic_store_n(&comms.cut, false, __ATOMIC_RELAXED);
	if (comms.board)
		board_cut_ends(comms.board, comms.seat);
}

bool comm_seat(uint32_t *seat)
{
	*seat = comms.seat;
	return comms.fd >= 0;
}

bool comm_there(void)
{
	return comms.transport;
}

static unsigned int is_request(const struct answer *a)
{
	return a->op && a->cpl;
}

uint64_t comm_open(void)
{
	uint64_t n = park_open();

	for (const struct communicator *c = comms.all; c; c = c->next)
		n += is_request(&c->created) + is_request(&c->ended) + is_request(&c->abort);
	return n;
}

/* ------------------------------------------------------------------------------ to bytes */

struct bytes {
	uint8_t *p;
	size_t n, room;
	bool failed;
};

static void put(struct bytes *b, const void *p, size_t n)
{
	size_t all = (n + 7) & ~(size_t)7;

	if (b->failed)
		return;
	if (b->n + all > b->room) {
		size_t room = 2 * (b->room + all);
		uint8_t *more = realloc(b->p, room);

		if (!more) {
			b->failed = true;
			return;
		}
		b->p = more;
		b->room = room;
	}
	memset(b->p + b->n + n, 0, all - n);
	if (n)
		memcpy(b->p + b->n, p, n);
	b->n += all;
}

static struct saved_answer answer_to(const struct answer *a)
{
	return (struct saved_answer){ .seq = a->op ? a->seq : 0, .op = a->op, .cpl = a->op ? a->cpl : 0 };
}

static void put_comm(struct bytes *b, struct sv_session *s, const struct communicator *c, bool listed)
{
	struct saved_comm to = {
		.number = c->number, .key = c->key, .member = c->member, .ranks = c->ranks,
		.rank = c->rank,
		.word = c->word ? (uint64_t)((const uint8_t *)c->word - (const uint8_t *)arena_at(s, 0)) : 0,
		.flags = (listed ? C_LISTED : 0) | (c->joined ? C_JOINED : 0) |
			 (c->stands ? C_STANDS : 0) | (c->aborted ? C_ABORTED : 0) |
			 (c->ending ? C_ENDING : 0) | (c->refused ? C_REFUSED : 0) |
			 (c->told ? C_TOLD : 0),
	};

	/* Of one that has left the list all has been answered. */
	if (listed) {
		to.answer[ANSWER_CREATED] = answer_to(&c->created);
		to.answer[ANSWER_ENDED] = answer_to(&c->ended);
		to.answer[ANSWER_ABORT] = answer_to(&c->abort);
	}
	put(b, &to, sizeof(to));
}

static void put_posted(struct bytes *b, const struct posted *p, uint32_t comm)
{
	struct saved_posted to = {
		.seq = p->seq, .ctx = p->ctx, .number = p->number, .comm = comm, .slot = p->slot,
		.calls = p->calls, .code = p->code,
		.stream = p->begun ? 0 : p->st->legacy ? SV_STREAM_LEGACY : p->st->handle,
		.flags = (p->begun ? P_BEGUN : 0) | (p->ended ? P_ENDED : 0) | (p->failed ? P_FAILED : 0) |
			 (p->ahead ? P_AHEAD : 0),
	};

	put(b, &to, sizeof(to));
	for (uint32_t i = 0; i < p->calls; i++) {
		const struct coll_call *c = &p->call[i];
		struct saved_call call = { .call = c->call, .send = c->send, .recv = c->recv,
					   .factor = c->factor, .scale = c->scale };

		if (c->buffer)
			call.buffer = c->call.count * tree_leaf_size(c->call.type);
		put(b, &call, sizeof(call));
	}
	for (uint32_t i = 0; i < p->calls; i++) {
		const struct coll_call *c = &p->call[i];

		if (c->buffer)
			put(b, c->buffer, c->call.count * tree_leaf_size(c->call.type));
	}
}

static int put_item(void *arg, const struct ring_record *rec, uint64_t event)
{
	struct saved_item to = { .seq = rec->seq, .event = event, .op = rec->op, .cpl = rec->cpl,
				 .len = rec->len };
	struct { struct bytes *b; uint32_t n; } *all = arg;

	put(all->b, &to, sizeof(to));
	put(all->b, rec->data, rec->len);
	all->n++;
	return 0;
}

static int by_seq(const void *a, const void *b)
{
	const struct posted *const *p = a, *const *q = b;

	return (*p)->seq < (*q)->seq ? -1 : (*p)->seq > (*q)->seq;
}

/* The communicator's number among those in list, which it may be added to. */
static uint32_t place_of(struct communicator **list, uint32_t *n, struct communicator *c)
{
	uint32_t i;

	for (i = 0; i < *n && list[i] != c; i++)
		;
	if (i == *n)
		list[(*n)++] = c;
	return i;
}

int comm_save(struct sv_session *s, void **bytes, size_t *len, struct why *why)
{
	struct saved_head h = { .magic = SAVED_MAGIC, .version = SAVED_VERSION, .seat = comms.seat,
			  .slots = POSTED_MAX, .flags = comms.left ? H_LEFT : 0 };
	struct posted *posted[POSTED_MAX];
	struct bytes b = { 0 };
	struct { struct bytes *b; uint32_t n; } items = { &b, 0 };
	struct communicator **list = calloc(comm_count() + POSTED_MAX, sizeof(*list));
	uint32_t listed, n = 0, place[POSTED_MAX];
	const struct saved_head *read;
	const char *what = "";
	int rc;

	if (!list)
		return why_set(why, -ENOMEM, "no memory for the communicators");
	for (struct communicator *c = comms.all; c; c = c->next)
		place_of(list, &n, c);
	listed = n;
	for (uint32_t i = 0; i < POSTED_MAX; i++)
		/* One that was posted ahead and has failed is refused when its turn comes. */
		if (comms.posted[i] && !(comms.posted[i]->ahead && comms.posted[i]->begun))
			posted[h.posted++] = comms.posted[i];
	qsort(posted, h.posted, sizeof(posted[0]), by_seq);
	for (uint32_t i = 0; i < h.posted; i++)
		place[i] = place_of(list, &n, posted[i]->comm);
	h.comms = n;
	memcpy(h.numbers, comms.numbers, sizeof(h.numbers));
	put(&b, &h, sizeof(h));
	for (uint32_t i = 0; i < n; i++)
		put_comm(&b, s, list[i], i < listed);
	for (uint32_t i = 0; i < h.posted; i++)
		put_posted(&b, posted[i], place[i]);
	rc = park_each(put_item, &items);
	free(list);
	if (rc || b.failed) {
		free(b.p);
		return why_set(why, rc ?: -ENOMEM, "no memory for the communicators");
	}
	((struct saved_head *)b.p)->items = items.n;
	/* A restore reads them by this function: what it would not take may not end the job. */
	rc = saved_check(b.p, b.n, &read, &what);
	if (rc) {
		free(b.p);
		return why_set(why, rc == -ENOMEM ? rc : -ENOTSUP, "a restore could not read its communicators: %s",
			       rc == -ENOMEM ? "no memory" : what);
	}
	*bytes = b.p;
	*len = b.n;
	return 0;
}

int comm_save_board(void **image, size_t *len)
{
	*image = NULL;
	return comms.board ? board_save(comms.board, image, len) : 0;
}

/* ------------------------------------------------------------------------------ from bytes */

static int damaged(struct why *why, const char *what)
{
	return why_set(why, -EBADMSG, "what was saved of its communicators is damaged: %s", what);
}

static const struct saved_head *check(const void *bytes, size_t len, struct why *why)
{
	const struct saved_head *h;
	const char *what;
	int rc = saved_check(bytes, len, &h, &what);

	if (rc == -EPROTONOSUPPORT)
		why_set(why, rc, "its communicators were saved in version %u of their format, this proxy reads "
			"version %u", h->version, SAVED_VERSION);
	else if (rc == -ENOMEM)
		why_set(why, rc, "no memory");
	else if (rc)
		damaged(why, what);
	return rc ? NULL : h;
}

/* Goes past a record, which has been checked. */
static const struct saved_posted *take_record(struct saved_bytes *f, const struct saved_call **calls,
					      struct saved_bytes *buffers)
{
	const struct saved_posted *p = saved_take(f, sizeof(*p));

	*calls = saved_calls(f, p, buffers);
	return p;
}

int comm_expect(const void *bytes, size_t len, struct why *why)
{
	struct saved_bytes f = { bytes, len }, buffers;
	const struct saved_head *h = check(bytes, len, why);
	const struct saved_call *calls;
	int rc = 0;

	if (!h)
		return why->err;
	saved_take(&f, sizeof(*h));
	saved_take(&f, (uint64_t)h->comms * sizeof(struct saved_comm));
	for (uint32_t i = 0; i < h->posted; i++)
		take_record(&f, &calls, &buffers);
	for (uint32_t i = 0; i < h->items && !rc; i++) {
		const struct saved_item *it = saved_take(&f, sizeof(*it));

		saved_take(&f, it->len);
		if (it->op != PARK_RECORDED)
			rc = park_expect(it->seq);
	}
	return rc ? why_set(why, rc, "no memory") : 0;
}

static struct answer answer_from(struct sv_session *s, const struct saved_answer *a)
{
	return (struct answer){ .s = s, .seq = a->seq, .op = a->op, .cpl = a->cpl };
}

static int take_comm(struct sv_session *s, const struct saved_comm *from, struct communicator **out)
{
	struct communicator *c;

	if (from->flags & C_LISTED && !arena_pinned(s, from->word, sizeof(struct sv_comm_word)))
		return -EBADMSG;
	c = calloc(1, sizeof(*c));
	if (c)	/* of one that never stood nobody asks where its ranks are */
		c->end = calloc(from->ranks > BOARD_SEATS ? 1 : from->ranks, sizeof(*c->end));
	if (!c || !c->end) {
		free(c);
		return -ENOMEM;
	}
	c->number = from->number;
	c->key = from->key;
	c->member = from->member;
	c->ranks = from->ranks;
	c->rank = from->rank;
	c->joined = from->flags & C_JOINED;
	c->stands = from->flags & C_STANDS;
	c->aborted = from->flags & C_ABORTED;
	c->ending = from->flags & C_ENDING;
	c->refused = from->flags & C_REFUSED;
	c->told = from->flags & C_TOLD ? 1 : 0;
	*out = c;
	if (!(from->flags & C_LISTED))
		return 0;
	c->created = answer_from(s, &from->answer[ANSWER_CREATED]);
	c->ended = answer_from(s, &from->answer[ANSWER_ENDED]);
	c->abort = answer_from(s, &from->answer[ANSWER_ABORT]);
	if ((c->created.op && c->created.op != SV_OP_X_COMM_NEW) || (c->ended.op && c->ended.op != SV_OP_X_COMM_END) ||
	    (c->abort.op && c->abort.op != SV_OP_X_COMM_END))
		return -EBADMSG;
	ring_reopen(s->ring, is_request(&c->created) + is_request(&c->ended) + is_request(&c->abort));
	c->word = (void *)arena_at(s, from->word);
	c->refs = 1;
	c->next = comms.all;
	comms.all = c;
	return 0;
}

/* The communicator is on the board where it was, and stands again, for the transport. */
static int stand_again(struct communicator *c, struct why *why)
{
	const struct step_place at = { .key = c->key, .member = c->member, .rank = c->rank, .ranks = c->ranks,
				       .proxy = comms.seat };
	struct transport_group g = { .comm = c->key, .ranks = c->ranks, .rank = c->rank, .device = c->end };
	bool stands, is;
	int rc;

	if (c->aborted || (c->joined && !c->stands))
		return 0;
	is = board_is_at(comms.board, &at, &stands) && stands == c->stands;
	/* Of one that has failed, or that this rank has left, others may have gone. */
	if (!is)
		return c->stands && (c->told || !c->word) ? 0 : damaged(why, "a communicator that the board has not");
	if (!c->stands)
		return 0;
	if (!comm_ends(c))
		return damaged(why, "ranks of a communicator that the board has not");
	if (c->told || !comms.driver->join)
		return 0;
	rc = comms.driver->join(comms.transport, &g, why);
	c->grouped = !rc;
	return rc;
}

/* Of what has ended, the memory may have gone since: only what is in buffers of ours is still read. */
static int check_saved(struct sv_session *s, const struct communicator *c, const struct saved_call *call, bool ended)
{
	const struct step_call *is = &call->call;
	struct sv_coll_call a = {
		.kind = is->kind, .type = is->type, .op = is->op, .peer = is->peer, .count = is->count,
		.send = call->send, .recv = call->recv, .factor = call->factor, .scale = (uint8_t)call->scale,
	};

	if (ended) {
		a.send = a.recv = a.count = 0;
		a.scale = a.scale == SV_COLL_FACTOR_AT ? SV_COLL_FACTOR : a.scale;
	}
	return post_check(s, c, &a) ? -EBADMSG : 0;
}

/* Is the item the parked record of one that was posted ahead? */
static bool is_of(const struct saved_item *it, const void *data, const struct saved_posted *p, const struct saved_call *call,
		  const struct communicator *c)
{
	const struct sv_coll *a = data;

	for (uint32_t i = 0; i < p->calls; i++)
		if (call[i].call.kind >= STEP_SEND)
			return false;
	return it && it->seq == p->seq && it->op == SV_OP_X_COLL && it->len >= sizeof(*a) && a->comm == c->number &&
	       a->stream == p->stream && a->calls == p->calls;
}

static int take_posted(struct sv_session *s, const struct saved_posted *from,
		       const struct saved_call *call, struct saved_bytes buffers, struct communicator *c)
{
	struct stream *st = NULL;
	struct posted *p;

	for (uint32_t i = 0; i < from->calls; i++)
		if (check_saved(s, c, &call[i], from->flags & P_BEGUN))
			return -EBADMSG;
	if (!(from->flags & P_BEGUN) && (sv_enter(s, from->ctx) ||
					 uproxy_stream_find(s, from->stream, &st)))
		return -EBADMSG;
	p = calloc(1, sizeof(*p) + from->calls * sizeof(p->call[0]));
	if (!p)
		return -ENOMEM;
	p->comm = c;
	p->st = st;
	p->ctx = from->ctx;
	p->seq = from->seq;
	p->number = from->number;
	p->slot = from->slot;
	p->calls = from->calls;
	p->code = from->code;
	p->begun = p->queued = p->reached = from->flags & P_BEGUN;
	p->ended = from->flags & P_ENDED;
	p->failed = from->flags & P_FAILED;
	p->ahead = from->flags & P_AHEAD;
	comms.ahead += p->ahead;
	for (uint32_t i = 0; i < p->calls; i++) {
		const void *sent = call[i].buffer ? saved_take(&buffers, call[i].buffer) : NULL;

		p->call[i] = (struct coll_call){ .call = call[i].call, .send = call[i].send,
						 .recv = call[i].recv, .factor = call[i].factor,
						 .scale = (uint8_t)call[i].scale };
		if (!call[i].buffer)
			continue;
		p->call[i].buffer = post_buffer_new(call[i].buffer);
		if (!p->call[i].buffer)
			return -ENOMEM;
		memcpy(p->call[i].buffer, sent, call[i].buffer);
		p->buffers++;
	}
	lock_take(&comms.lock);
	posted_enter(p);
	lock_drop(&comms.lock);
	if (!st)
		return 0;
	__atomic_add_fetch(&st->refs, 1, __ATOMIC_RELAXED);
	if (p->ahead)
		return 0;
	p->held = true;
	return park_hold(st);
}

static int take_item(struct sv_session *s, const struct saved_item *it, const void *data)
{
	struct ring_record rec = { .seq = it->seq, .op = it->op, .cpl = it->cpl, .len = it->len,
				   .data = data };

	if (rec.cpl)
		ring_reopen(s->ring, 1);
	return park_again(s, &rec, it->event);
}

/* Records that hold their streams and parked ones, in the order in which they came. */
static int take_records(struct sv_session *s, struct saved_bytes *f, const struct saved_head *h,
			struct communicator *const *list)
{
	const struct saved_call *calls = NULL;
	const struct saved_posted *p = NULL;
	struct saved_bytes items = *f, buffers;
	const struct saved_item *it = NULL, *last = NULL;
	const void *data = NULL;
	uint32_t i = 0, k = 0;
	int rc = 0;

	for (i = 0; i < h->posted; i++)
		take_record(&items, &calls, &buffers);
	for (i = 0; !rc && (p || it || i < h->posted || k < h->items);) {
		if (!p && i < h->posted) {
			p = take_record(f, &calls, &buffers);
			i++;
		}
		if (!it && k < h->items) {
			it = saved_take(&items, sizeof(*it));
			k++;
		}
		if (p && (!it || (it->op != PARK_RECORDED && p->seq < it->seq))) {
			if (p->flags & P_AHEAD && !is_of(last, data, p, calls, list[p->comm]))
				rc = -EBADMSG;
			rc = rc ?: take_posted(s, p, calls, buffers, list[p->comm]);
			p = NULL;
		} else {
			const void *bytes = saved_take(&items, it->len);

			rc = take_item(s, it, bytes);
			if (it->op != PARK_RECORDED) {
				last = it;
				data = bytes;
			}
			it = NULL;
		}
	}
	return rc;
}

struct matching {
	uint32_t n;
	bool differs;
};

/* A record of ours on the board has been posted here, by the same member, and goes on. */
static void match(void *ctx, uint32_t member, uint64_t cookie, bool begun)
{
	uint32_t slot = cookie & 0xffff;
	const struct posted *p = slot < POSTED_MAX ? comms.posted[slot] : NULL;
	struct matching *m = ctx;

	m->n++;
	m->differs |= !p || p->number != cookie >> 16 || p->comm->member != member || p->ended || p->begun != begun;
}

/* What has not ended here, the board will end: no more and no less. */
static bool board_agrees(void)
{
	struct matching m = { 0 };
	uint32_t open = 0;

	for (uint32_t i = 0; i < POSTED_MAX; i++)
		open += comms.posted[i] && !comms.posted[i]->ended;
	board_records(comms.board, comms.seat, match, &m);
	return !m.differs && m.n == open;
}

int comm_rebuild(struct sv_session *s, const void *bytes, size_t len, struct why *why)
{
	struct saved_bytes f = { bytes, len };
	const struct saved_head *h = check(bytes, len, why);
	const struct saved_comm *c;
	struct communicator **list;
	int rc;

	if (!h)
		return why->err;
	saved_take(&f, sizeof(*h));
	c = saved_take(&f, (uint64_t)h->comms * sizeof(*c));
	if (comms.fd < 0 || comms.seat != h->seat)
		return why_set(why, -EINVAL, "its seat among the job's proxies is %u, and was %u",
			       comms.fd < 0 ? UINT32_MAX : comms.seat, h->seat);
	rc = comm_again(s, why);
	if (rc)
		return rc;
	comm_stands(s, true);
	comms.left = h->flags & H_LEFT;
	memcpy(comms.numbers, h->numbers, sizeof(comms.numbers));
	list = calloc(h->comms + 1, sizeof(*list));
	rc = list ? 0 : -ENOMEM;
	for (uint32_t i = 0; i < h->comms && !rc; i++)
		rc = take_comm(s, &c[i], &list[i]) ?: stand_again(list[i], why);
	if (!rc)
		rc = take_records(s, &f, h, list);
	free(list);
	if (!rc && !board_agrees())
		rc = damaged(why, "records that the board has otherwise");
	park_expect_none();
	comm_errand();
	return !rc || why->err ? why->err : rc == -ENOMEM ? why_set(why, rc, "no memory") :
	       damaged(why, "what does not belong to its session");
}
