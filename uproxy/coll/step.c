// SPDX-License-Identifier: Apache-2.0
/*
 * step.c - the step over communicators, members, operations and the log
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "step_i.h"
#include "tree.h"

/* The event being carried out. */
struct turn {
	struct step *s;
	step_act *act;
	void *ctx;
	struct step_failure *why; /* of ends that come later than their operation's failure */
	bool full; /* no send may go into a buffer */
};

void step_mark(struct step *s, int array, uint32_t i, bool used)
{
	uint64_t bit = 1ull << (i % 64), *word = &bitmap(s, array)[i / 64];

	*word = used ? *word | bit : *word & ~bit;
	if (!used && i / 64 < index_of(s)->low[array])
		index_of(s)->low[array] = i / 64;
	s->used[array] += used ? 1 : -1;
	memset(entry(s, array, i), 0, sizes[array]);
}

uint32_t step_take(struct step *s, int array)
{
	uint64_t *map = bitmap(s, array);
	uint32_t word = index_of(s)->low[array], i;

	for (; !~map[word]; word++)
		index_of(s)->looks++;
	index_of(s)->low[array] = word;
	i = word * 64 + (uint32_t)__builtin_ctzll(~map[word]);
	step_mark(s, array, i, true);
	return i;
}

static bool has_room(const struct step *s, int array, uint32_t n)
{
	return s->limit[array] - s->used[array] >= n;
}

/* The lowest run of n free members, or STEP_NONE. */
static uint32_t free_run(const struct step *s, uint32_t n)
{
	uint32_t i, run = 0;

	for (i = 0; i < s->limit[MEMBERS]; i++) {
		run = is_used(s, MEMBERS, i) ? 0 : run + 1;
		if (run == n)
			return i + 1 - n;
	}
	return STEP_NONE;
}

static void tell(const struct turn *t, const struct step_action *action)
{
	t->act(t->ctx, action);
}

/* ---- records ---- */

static void record_begins(const struct turn *t, uint32_t r, uint8_t code)
{
	struct record *rec = record_at(t->s, r);

	if (--rec->parked == 0 && !member_at(t->s, rec->member)->silent)
		tell(t, &(struct step_action){ .kind = STEP_BEGUN,
		                               .member = rec->member,
		                               .cookie = rec->cookie,
		                               .code = rec->code ?: code });
}

static void record_ends(const struct turn *t, uint32_t r, uint8_t code)
{
	struct record *rec = record_at(t->s, r);

	if (!rec->code)
		rec->code = code;
	if (--rec->left)
		return;
	if (!member_at(t->s, rec->member)->silent)
		tell(t, &(struct step_action){ .kind = STEP_ENDED,
		                               .member = rec->member,
		                               .cookie = rec->cookie,
		                               .code = rec->code,
		                               .failure = *t->why });
	step_mark(t->s, RECORDS, r, false);
}

/* code: of a part that begins as it fails. */
static void part_begins(const struct turn *t, struct part *p, uint8_t code)
{
	if (!p->begun) {
		p->begun = 1;
		record_begins(t, p->record, code);
	}
}

/* The end of a call for its record: once. */
static void part_told(const struct turn *t, struct part *p, uint8_t code)
{
	if (p->told)
		return;
	part_begins(t, p, code);
	p->told = 1;
	record_ends(t, p->record, code);
}

/*
 * The end of a proxy whose process is gone, when none of its parts is needed any more. The last one
 * that lives on a device stays until all parts there have ended.
 */
static void proxy_settle(const struct turn *t, uint32_t i)
{
	struct step *s = t->s;
	struct proxy *p = proxy_at(s, i);
	struct device *d = device_at(s, p->device);
	uint32_t m;

	if (p->parts || (p->state != EXITED && p->state != DIED) ||
	    (p->state == EXITED && d->proxies == 1 && d->parts))
		return;
	if (p->state == EXITED) {
		d->proxies--;
		d->exited--;
		tell(t, &(struct step_action){ .kind = STEP_RELEASE, .proxy = i });
	}
	for (m = 0; m < s->limit[MEMBERS]; m++)
		if (is_used(s, MEMBERS, m) && member_at(s, m)->used != RESERVED &&
		    member_at(s, m)->proxy == i)
			member_at(s, m)->proxy = STEP_NONE;
	step_mark(s, PROXIES, i, false);
}

/* Nobody touches the part's memory any more, here or elsewhere. */
static void part_ends(const struct turn *t, struct part *p, uint8_t code)
{
	struct step *s = t->s;
	struct device *d = device_at(s, p->device);
	uint32_t i;

	p->used = ENDED;
	part_told(t, p, code);
	d->parts--;
	proxy_at(s, p->proxy)->parts--;
	proxy_settle(t, p->proxy);
	for (i = 0; !d->parts && d->exited && i < s->limit[PROXIES]; i++)
		if (proxy_at(s, i)->device == p->device)
			proxy_settle(t, i);
}

/* ---- operations ---- */

void step_add_op(struct step *s, uint32_t i)
{
	struct op *op = op_at(s, i);
	struct comm *c = comm_at(s, op->comm);

	op->prev = c->ops_last;
	if (c->ops_last)
		op_at(s, c->ops_last - 1)->next = i + 1;
	else
		c->ops = i + 1;
	c->ops_last = i + 1;
}

static uint32_t op_new(struct step *s, uint32_t comm, const struct step_call *call, uint32_t rank)
{
	uint32_t i = step_take(s, OPS);
	struct op *op = op_at(s, i);

	op->used = 1;
	op->born = ++s->births;
	op->comm = comm;
	op->call = *call;
	op->first_rank = rank;
	step_add_op(s, i);
	return i;
}

static void op_free(struct step *s, uint32_t i)
{
	struct op *op = op_at(s, i);
	struct comm *c = comm_at(s, op->comm);
	uint32_t p, next;

	index_drop(s, i);
	for (p = op->parts; p; p = next) {
		next = part_at(s, p - 1)->next;
		step_mark(s, PARTS, p - 1, false);
	}
	*(op->prev ? &op_at(s, op->prev - 1)->next : &c->ops) = op->next;
	*(op->next ? &op_at(s, op->next - 1)->prev : &c->ops_last) = op->prev;
	if (op->order) {
		*(op->log_prev ? &op_at(s, op->log_prev - 1)->log_next : &s->log) = op->log_next;
		*(op->log_next ? &op_at(s, op->log_next - 1)->log_prev : &s->log_last) =
			op->log_prev;
	}
	step_mark(s, OPS, i, false);
}

/* Frees a communicator that all have left, and whose operations are gone. */
static void comm_settle(struct step *s, uint32_t i)
{
	struct comm *c = comm_at(s, i);
	uint32_t r;

	if (!c->used || c->ops || (c->state != NEVER && c->gone < c->ranks) ||
	    (c->state == NEVER && c->joined < c->ranks))
		return;
	for (r = 0; r < c->ranks; r++)
		step_mark(s, MEMBERS, c->first + r, false);
	step_mark(s, COMMS, i, false);
}

static void failure_names(const struct op *op, struct step_failure *f)
{
	f->kind = op->call.kind;
	f->number = op->number;
	f->source = op->source;
	f->destination = op->destination;
}

/*
 * The reason why an operation cannot come about, if a member is gone that would have to be there.
 */
static bool lacks_member(const struct step *s, const struct op *op, uint32_t rank,
                         struct step_failure *f)
{
	const struct comm *c = comm_at(s, op->comm);
	uint32_t r;

	if (!c->gone)
		return false;
	*f = (struct step_failure){ .code = STEP_REMOTE, .reason = STEP_LEFT };
	for (r = 0; r < c->ranks; r++) {
		const struct member *m = member_at(s, c->first + r);

		if (r == rank || m->used == IN)
			continue;
		/*
		 * A pair lacks its other end, unless that has posted; or its communicator is
		 * broken.
		 */
		if (op->is_pair && m->used == GONE &&
		    (op->posted == 2 || (r != op->source && r != op->destination)))
			continue;
		f->rank = r;
		f->reason = m->used == DEAD ? STEP_DIED : STEP_LEFT;
		return true;
	}
	return false;
}

/* Which part's device has failed the operation: best one that says by which error. */
static bool device_failed(const struct step *s, const struct op *op, struct step_failure *f)
{
	const struct part *part = NULL;
	uint32_t p;

	for (p = op->parts; p; p = part_at(s, p - 1)->next)
		if (part_at(s, p - 1)->cause && (!part || part->cause == STEP_NONE))
			part = part_at(s, p - 1);
	if (!part)
		return false;
	*f = (struct step_failure){ .code = op->code, .reason = STEP_TRANSPORT,
		                    .rank = rank_of(s, part->member) };
	if (part->cause != STEP_NONE)
		f->value = part->cause;
	return true;
}

/* A part ends whose operation has failed before: why, as far as the state still has it. */
static void ends_late(const struct turn *t, uint32_t i, struct part *part)
{
	const struct op *op = op_at(t->s, i);
	bool known = op->code != STEP_INVALID_USAGE &&
		     (lacks_member(t->s, op, STEP_NONE, t->why) || device_failed(t->s, op, t->why));

	if (known)
		failure_names(op, t->why);
	else
		*t->why = (struct step_failure){ 0 };
	part_ends(t, part, op->code);
}

/*
 * What an operation's parts make possible: the ends of a failed one when it has stopped everywhere,
 * and its own end. It may be freed.
 */
static void op_settle(const struct turn *t, uint32_t i)
{
	struct step *s = t->s;
	struct op *op = op_at(s, i);
	uint32_t p, r, comm = op->comm;
	bool started = false, open = false;

	for (p = op->parts; p; p = part_at(s, p - 1)->next)
		started |= part_at(s, p - 1)->used == STARTED;
	for (p = op->parts; p; p = part_at(s, p - 1)->next) {
		struct part *part = part_at(s, p - 1);

		if (part->used == HALTED && !started)
			ends_late(t, i, part);
		open |= part->used != ENDED;
	}
	if (!op->code && op->posted < (op->is_pair ? 2 : comm_at(s, comm)->ranks))
		return;
	for (r = 0; !op->is_pair && op->code && r < comm_at(s, comm)->ranks; r++)
		open |= may_post(s, op, r);
	if (open)
		return;
	op_free(s, i);
	comm_settle(s, comm);
}

/* Whether an earlier part of the operation is on the same device. */
static bool is_repeated(const struct step *s, const struct op *op, uint32_t part)
{
	uint32_t p, device = part_at(s, part - 1)->device;

	for (p = op->parts; p != part; p = part_at(s, p - 1)->next)
		if (part_at(s, p - 1)->device == device)
			return true;
	return false;
}

/* Fails an operation once: it starts nowhere any more, and is cancelled where it has started. */
static void op_fails(const struct turn *t, uint32_t i, struct step_failure *f)
{
	struct step *s = t->s;
	struct op *op = op_at(s, i);
	uint32_t p;

	if (op->code)
		return;
	op->code = f->code;
	failure_names(op, f);
	tell(t, &(struct step_action){
			.kind = STEP_FAILED, .comm = comm_at(s, op->comm)->key, .failure = *f });
	for (p = op->parts; p; p = part_at(s, p - 1)->next) {
		struct part *part = part_at(s, p - 1);

		if (part->used == WAITS) {
			index_unqueue(s, p - 1);
			part_ends(t, part, op->code);
		} else if (part->used == STARTED && !is_repeated(s, op, p)) {
			tell(t, &(struct step_action){ .kind = STEP_CANCEL,
			                               .device = part->device,
			                               .order = op->order });
		}
	}
	op_settle(t, i);
}

void step_add_to_log(struct step *s, uint32_t i)
{
	op_at(s, i)->log_prev = s->log_last;
	*(s->log_last ? &op_at(s, s->log_last - 1)->log_next : &s->log) = i + 1;
	s->log_last = i + 1;
}

static void op_logged(const struct turn *t, uint32_t i)
{
	struct step *s = t->s;
	struct op *op = op_at(s, i);
	uint32_t p;

	index_drop(s, i);
	op->order = ++s->orders;
	index_put(s, i);
	step_add_to_log(s, i);
	for (p = op->parts; p; p = part_at(s, p - 1)->next) {
		struct device *d = device_at(s, part_at(s, p - 1)->device);

		index_queue(s, p - 1);
		if (d->woken == op->order)
			continue;
		d->woken = op->order;
		tell(t, &(struct step_action){ .kind = STEP_WAKE,
		                               .device = part_at(s, p - 1)->device,
		                               .order = op->order });
	}
}

/* ---- posting ---- */

static bool is_same(const struct op *op, const struct step_call *call)
{
	const struct step_call *first = &op->call;

	return call->count == first->count && call->type == first->type && call->op == first->op &&
	       (op->is_pair || (call->kind == first->kind && call->peer == first->peer));
}

/* How a call differs from the operation's first one. */
static bool op_differs(const struct op *op, const struct step_call *call, uint32_t rank,
                       struct step_failure *f)
{
	const struct step_call *first = &op->call;

	if (is_same(op, call))
		return false;
	*f = (struct step_failure){ .code = STEP_INVALID_USAGE,
		                    .rank = rank,
		                    .other = op->first_rank };
	if (!op->is_pair && call->kind != first->kind) {
		f->reason = STEP_DIFFERENT_KIND;
		f->value = call->kind;
		f->other_value = first->kind;
	} else if (call->count != first->count) {
		f->reason = STEP_DIFFERENT_COUNT;
		f->value = call->count;
		f->other_value = first->count;
	} else if (call->type != first->type) {
		f->reason = STEP_DIFFERENT_TYPE;
		f->value = call->type;
		f->other_value = first->type;
	} else if (call->op != first->op) {
		f->reason = STEP_DIFFERENT_OP;
		f->value = call->op;
		f->other_value = first->op;
	} else {
		f->reason = STEP_DIFFERENT_ROOT;
		f->value = call->peer;
		f->other_value = first->peer;
	}
	return true;
}

void step_add_part(struct step *s, uint32_t i, uint32_t p)
{
	struct op *op = op_at(s, i);

	*(op->parts_last ? &part_at(s, op->parts_last - 1)->next : &op->parts) = p + 1;
	op->parts_last = p + 1;
	op->posted++;
}

static uint32_t part_new(struct step *s, uint32_t i, uint32_t m, uint32_t record, uint32_t call)
{
	uint32_t p = step_take(s, PARTS), proxy = member_at(s, m)->proxy;

	*part_at(s, p) = (struct part){ .used = WAITS,
		                        .member = m,
		                        .proxy = proxy,
		                        .device = proxy_at(s, proxy)->device,
		                        .record = record,
		                        .call = call,
		                        .cookie = record_at(s, record)->cookie };
	*part_place(s, p) = (struct part_place){ .op = i };
	step_add_part(s, i, p);
	proxy_at(s, proxy)->parts++;
	device_at(s, part_at(s, p)->device)->parts++;
	return p;
}

static void post_collective(const struct turn *t, uint32_t m, uint32_t record, uint32_t n,
                            const struct step_call *call)
{
	struct step *s = t->s;
	struct member *member = member_at(s, m);
	const struct comm *c = comm_at(s, member->comm);
	uint64_t number = member->posted++;
	uint32_t rank = rank_of(s, m), p;
	uint32_t i = index_find(s, &(struct key){ .kind = BY_NUMBER, .comm = member->comm, .number = number });
	struct step_failure f;

	if (i) {
		i--;
	} else {
		i = op_new(s, member->comm, call, rank);
		op_at(s, i)->number = number;
		index_put(s, i);
	}
	p = part_new(s, i, m, record, n);
	if (op_at(s, i)->code) {
		ends_late(t, i, part_at(s, p));
		op_settle(t, i);
	} else if (lacks_member(s, op_at(s, i), rank, &f) ||
	           op_differs(op_at(s, i), call, rank, &f)) {
		op_fails(t, i, &f);
	} else if (op_at(s, i)->posted == c->ranks) {
		op_logged(t, i);
	}
}

static void post_pair(const struct turn *t, uint32_t m, uint32_t record, uint32_t n,
                      const struct step_call *call)
{
	struct step *s = t->s;
	uint32_t comm = member_at(s, m)->comm;
	uint8_t side = call->kind == STEP_SEND ? SENDER : RECEIVER;
	uint32_t rank = rank_of(s, m), i, p;
	uint32_t source = side == SENDER ? rank : call->peer;
	uint32_t destination = side == SENDER ? call->peer : rank;
	struct step_failure f;
	struct op *op;

	i = index_find(s, &(struct key){ .kind = side == SENDER ? BY_SENDER : BY_RECEIVER,
	                                 .comm = comm,
	                                 .source = source,
	                                 .destination = destination });
	if (i)
		index_drop(s, --i);
	else
		i = op_new(s, comm, call, rank);
	op = op_at(s, i);
	op->is_pair = 1;
	op->source = source;
	op->destination = destination;
	op->sides |= side;
	index_put(s, i);
	p = part_new(s, i, m, record, n);
	if (lacks_member(s, op, rank, &f) || op_differs(op, call, rank, &f)) {
		op_fails(t, i, &f);
	} else if (op->posted == 2) {
		op_logged(t, i);
	} else if (side == SENDER && !t->full &&
	           call->count <= STEP_BUFFERED / tree_leaf_size(call->type)) {
		tell(t, &(struct step_action){ .kind = STEP_BUFFER,
		                               .member = m,
		                               .cookie = part_at(s, p)->cookie,
		                               .call = n });
		part_told(t, part_at(s, p), STEP_OK);
	}
}

static bool is_call(const struct step_call *call, uint32_t ranks)
{
	return call->kind < STEP_KINDS && call->type < TREE_TYPES && call->op < TREE_OPS &&
	       !call->zero && call->peer < ranks;
}

static int record_posted(const struct turn *t, const struct step_event *e)
{
	struct step *s = t->s;
	struct record *rec;
	uint32_t i, r, n = 0;

	if (!is_used(s, MEMBERS, e->member) || member_at(s, e->member)->used != IN || !e->ncalls ||
	    comm_at(s, member_at(s, e->member)->comm)->state != STANDING)
		return -EPROTO;
	for (i = 0; i < e->ncalls; i++) {
		if (!is_call(&e->calls[i], comm_at(s, member_at(s, e->member)->comm)->ranks))
			return -EPROTO;
		n += !!e->calls[i].count;
	}
	if (!has_room(s, RECORDS, 1) || !has_room(s, OPS, n) || !has_room(s, PARTS, n))
		return -ENOSPC;
	r = step_take(s, RECORDS);
	rec = record_at(s, r);
	/* One more, so that nothing ends before all calls are there. */
	*rec = (struct record){
		.used = 1, .member = e->member, .parked = n + 1, .left = n + 1, .cookie = e->cookie
	};
	for (i = 0; i < e->ncalls; i++) {
		if (!e->calls[i].count)
			continue;
		if (e->calls[i].kind >= STEP_SEND)
			post_pair(t, e->member, r, i, &e->calls[i]);
		else
			post_collective(t, e->member, r, i, &e->calls[i]);
	}
	record_begins(t, r, STEP_OK);
	record_ends(t, r, STEP_OK);
	return 0;
}

/* ---- devices ---- */

/* The parts of an operation that a device has not started: from one on in its queue. */
static uint32_t parts_from(const struct step *s, uint32_t p)
{
	uint32_t op = part_place(s, p)->op, n = 1;

	for (p = part_place(s, p)->next; p && part_place(s, p - 1)->op == op; n++)
		p = part_place(s, p - 1)->next;
	return n;
}

static int device_starts(const struct turn *t, const struct step_event *e)
{
	struct step *s = t->s;
	uint32_t p, n;
	struct op *op;

	if (e->device >= s->limit[DEVICES] || !device_at(s, e->device)->proxies)
		return -EPROTO;
	p = device_place(s, e->device)->first;
	if (!p)
		return 0;
	op = op_at(s, part_place(s, p - 1)->op);
	device_at(s, e->device)->seen = op->order;
	for (n = parts_from(s, p - 1); n; p = device_place(s, e->device)->first) {
		struct part *part = part_at(s, p - 1);

		index_unqueue(s, p - 1);
		part->used = STARTED;
		tell(t, &(struct step_action){ .kind = STEP_START,
		                               .device = e->device,
		                               .order = op->order,
		                               .member = part->member,
		                               .cookie = part->cookie,
		                               .call = part->call,
		                               .more = --n });
		part_begins(t, part, STEP_OK);
	}
	return 1;
}

static int device_done(const struct turn *t, const struct step_event *e)
{
	struct step *s = t->s;
	struct step_failure f = { .code = e->code, .reason = STEP_TRANSPORT, .value = e->cause };
	uint32_t i, p, n = 0;
	struct op *op;

	i = index_find(s, &(struct key){ .kind = BY_ORDER, .number = e->order });
	if (!i || e->code > UINT8_MAX)
		return -EPROTO;
	op = op_at(s, i - 1);
	for (p = op->parts; p; p = part_at(s, p - 1)->next) {
		struct part *part = part_at(s, p - 1);

		if (part->device != e->device || part->used != STARTED)
			continue;
		f.rank = rank_of(s, part->member);
		n++;
	}
	if (!n)
		return -EPROTO;
	/* Halted first: there is nothing to cancel here. */
	for (p = op->parts; p; p = part_at(s, p - 1)->next) {
		struct part *part = part_at(s, p - 1);

		if (part->device != e->device || part->used != STARTED)
			continue;
		if (e->code)	/* the first of these counts */
			part->cause = e->cause ? e->cause : STEP_NONE;
		if (e->code || op->code)
			part->used = HALTED;
		else
			part_ends(t, part, STEP_OK);
	}
	if (e->code && !op->code)
		op_fails(t, i - 1, &f);
	else
		op_settle(t, i - 1);
	return 0;
}

/* ---- coming and going ---- */

static int proxy_enters(const struct turn *t, const struct step_event *e)
{
	struct step *s = t->s;

	if (e->proxy >= s->limit[PROXIES] || e->device >= s->limit[DEVICES])
		return -ENOSPC;
	if (is_used(s, PROXIES, e->proxy))
		return -EPROTO;
	step_mark(s, PROXIES, e->proxy, true);
	*proxy_at(s, e->proxy) = (struct proxy){ .state = LIVES, .device = e->device };
	/* What is in the log is not for those who come now. */
	if (!device_at(s, e->device)->proxies++)
		device_at(s, e->device)->seen = s->orders;
	return 0;
}

/* Ends a creation, for those who have joined and those who will. */
static void creation_fails(const struct turn *t, uint32_t i, uint8_t code)
{
	struct comm *c = comm_at(t->s, i);
	uint32_t r;

	c->state = NEVER;
	c->code = code;
	for (r = 0; r < c->ranks; r++) {
		struct member *m = member_at(t->s, c->first + r);

		if (m->used == IN && !m->silent)
			tell(t, &(struct step_action){ .kind = STEP_JOINED,
			                               .comm = c->key,
			                               .member = c->first + r,
			                               .code = code });
		if (m->used == IN)
			m->used = GONE;
	}
	comm_settle(t->s, i);
}

static uint32_t comm_new(struct step *s, const struct step_event *e, uint32_t first)
{
	uint32_t i = step_take(s, COMMS), r;

	*comm_at(s, i) = (struct comm){
		.used = 1, .state = FORMING, .ranks = e->ranks, .first = first, .key = e->comm
	};
	for (r = 0; r < e->ranks; r++) {
		step_mark(s, MEMBERS, first + r, true);
		*member_at(s, first + r) = (struct member){ .used = RESERVED, .comm = i };
	}
	return i;
}

static int member_joins(const struct turn *t, const struct step_event *e)
{
	struct step *s = t->s;
	uint32_t i, r, first;
	struct comm *c;

	if (!is_used(s, PROXIES, e->proxy) || proxy_at(s, e->proxy)->state != LIVES || !e->ranks ||
	    e->rank >= e->ranks || e->ranks > ENTRIES_MAX)
		return -EPROTO;
	/* One of those whom it would wait for may be dead, and will not come. */
	if (e->parent && is_used(s, MEMBERS, e->parent - 1) &&
	    comm_at(s, member_at(s, e->parent - 1)->comm)->died)
		return -ECONNRESET;
	for (i = 0; i < s->limit[COMMS]; i++)
		if (comm_at(s, i)->used && comm_at(s, i)->key == e->comm)
			break;
	if (i == s->limit[COMMS]) {
		first = free_run(s, e->ranks);
		if (first == STEP_NONE || !has_room(s, COMMS, 1))
			return -ENOSPC;
		i = comm_new(s, e, first);
	}
	c = comm_at(s, i);
	if (c->state == STANDING)
		return -EPROTO;
	if (c->state == NEVER) {
		uint8_t code = c->code;

		c->joined++;
		comm_settle(s, i);
		return code == STEP_REMOTE ? -ECONNRESET : -EINVAL;
	}
	for (r = 0; r < c->ranks; r++)
		if (member_at(s, c->first + r)->used == IN &&
		    (r == e->rank || member_at(s, c->first + r)->proxy == e->proxy))
			break;
	c->joined++;
	if (c->ranks != e->ranks || r < c->ranks) {
		int err = r < c->ranks ? -EEXIST : -EINVAL;

		creation_fails(t, i, STEP_INVALID_USAGE);
		return err;
	}
	member_at(s, c->first + e->rank)->used = IN;
	member_at(s, c->first + e->rank)->proxy = e->proxy;
	member_at(s, c->first + e->rank)->joined = e->proxy;
	if (c->joined == c->ranks) {
		c->state = STANDING;
		for (r = 0; r < c->ranks; r++)
			tell(t, &(struct step_action){ .kind = STEP_JOINED,
			                               .comm = c->key,
			                               .member = c->first + r });
	}
	return (int)(c->first + e->rank);
}

/*
 * Whether an operation cannot go on without a member that goes: broke says that it takes its
 * communicator's pairs with it. What a member has sent into a buffer outlives it, unless it dies.
 */
static bool op_needs(const struct step *s, const struct op *op, uint32_t m, bool died, bool broke)
{
	uint32_t p, rank = rank_of(s, m);
	bool posted = false;

	for (p = op->parts; p; p = part_at(s, p - 1)->next) {
		const struct part *part = part_at(s, p - 1);

		if (part->member != m)
			continue;
		posted = true;
		if (part->used != ENDED && (died || !part->told))
			return true;
	}
	if (!op->is_pair)
		return !posted;
	return (op->source == rank && !(op->sides & SENDER)) ||
	       (op->destination == rank && !(op->sides & RECEIVER)) || (broke && !posted);
}

/* A member goes, or dies after it has gone. */
static void member_goes(const struct turn *t, uint32_t m, bool died)
{
	struct step *s = t->s;
	struct member *member = member_at(s, m);
	uint32_t comm = member->comm, i, after, r;
	struct comm *c = comm_at(s, comm);
	bool was_in = member->used == IN, first = died && was_in && !c->died;

	if (c->state == FORMING)
		creation_fails(t, comm, STEP_REMOTE);
	if (c->state != STANDING)
		return;
	if (was_in) {
		member->used = died ? DEAD : GONE;
		c->gone++;
		c->died |= died;
	}
	for (r = 0; first && r < c->ranks; r++)
		if (member_at(s, c->first + r)->used == IN)
			tell(t, &(struct step_action){ .kind = STEP_BROKEN,
			                               .member = c->first + r,
			                               .code = STEP_REMOTE,
			                               .failure = { .code = STEP_REMOTE,
			                                            .kind = STEP_KINDS,
			                                            .rank = m - c->first,
			                                            .reason = STEP_DIED } });
	for (i = c->ops; i; i = after) {
		struct step_failure f = { .code = STEP_REMOTE,
			                  .rank = m - c->first,
			                  .reason = died ? STEP_DIED : STEP_LEFT };

		after = op_at(s, i - 1)->next;
		if (op_at(s, i - 1)->code)
			op_settle(t, i - 1);
		else if (op_needs(s, op_at(s, i - 1), m, died, died && was_in))
			op_fails(t, i - 1, &f);
	}
	comm_settle(s, comm);
}

static int member_leaves(const struct turn *t, const struct step_event *e)
{
	const struct member *m;

	if (!is_used(t->s, MEMBERS, e->member))
		return -EPROTO;
	m = member_at(t->s, e->member);
	/* The number may be another communicator's by now, if the creation has failed meanwhile. */
	if (m->used != IN || (e->comm && comm_at(t->s, m->comm)->key != e->comm))
		return -EPROTO;
	member_goes(t, e->member, false);
	return 0;
}

/* Nobody hears of a proxy's members any more, and they go. */
static void members_go(const struct turn *t, uint32_t proxy, bool died)
{
	struct step *s = t->s;
	uint32_t m;

	for (m = 0; m < s->limit[MEMBERS]; m++)
		if (is_used(s, MEMBERS, m) && member_at(s, m)->used != RESERVED &&
		    member_at(s, m)->proxy == proxy)
			member_at(s, m)->silent = 1;
	for (m = 0; m < s->limit[MEMBERS]; m++)
		if (is_used(s, MEMBERS, m) && member_at(s, m)->proxy == proxy &&
		    (member_at(s, m)->used == IN || (died && member_at(s, m)->used == GONE)))
			member_goes(t, m, died);
}

static int proxy_exits(const struct turn *t, const struct step_event *e)
{
	if (!is_used(t->s, PROXIES, e->proxy) || proxy_at(t->s, e->proxy)->state != LIVES)
		return -EPROTO;
	members_go(t, e->proxy, false);
	proxy_at(t->s, e->proxy)->state = EXITED;
	device_at(t->s, proxy_at(t->s, e->proxy)->device)->exited++;
	proxy_settle(t, e->proxy);
	return 0;
}

/* What has started on a device that has no proxy any more is as good as cancelled there. */
static void device_lost(struct step *s, uint32_t device)
{
	uint32_t i, p;

	for (i = s->log; i; i = op_at(s, i - 1)->log_next)
		for (p = op_at(s, i - 1)->parts; p; p = part_at(s, p - 1)->next)
			if (part_at(s, p - 1)->device == device &&
			    part_at(s, p - 1)->used == STARTED)
				part_at(s, p - 1)->used = HALTED;
}

/* Who has died may have been about to join any of them. */
static void creations_fail(const struct turn *t)
{
	uint32_t i;

	for (i = 0; i < t->s->limit[COMMS]; i++)
		if (is_used(t->s, COMMS, i) && comm_at(t->s, i)->state == FORMING)
			creation_fails(t, i, STEP_REMOTE);
}

static int proxy_dies(const struct turn *t, const struct step_event *e)
{
	struct step *s = t->s;
	struct proxy *p;
	uint32_t i, after;

	if (e->proxy == STEP_NONE) {
		creations_fail(t);
		return 0;
	}
	if (!is_used(s, PROXIES, e->proxy) || proxy_at(s, e->proxy)->state == DIED)
		return -EPROTO;
	p = proxy_at(s, e->proxy);
	/* It is settled when all of its members have gone. */
	device_at(s, p->device)->exited -= p->state == EXITED;
	p->state = LIVES;
	if (!--device_at(s, p->device)->proxies)
		device_lost(s, p->device);
	members_go(t, e->proxy, true);
	creations_fail(t);
	/* Failed operations may have waited for this device alone. */
	for (i = s->log; i; i = after) {
		after = op_at(s, i - 1)->log_next;
		if (op_at(s, i - 1)->code)
			op_settle(t, i - 1);
	}
	p->state = DIED;
	proxy_settle(t, e->proxy);
	return 0;
}

int step(struct step *s, const struct step_event *event, step_act *act, void *ctx)
{
	struct step_failure why = { 0 };
	const struct turn t = { s, act, ctx, &why, event->full };

	switch (event->kind) {
	case STEP_ENTER:
		return proxy_enters(&t, event);
	case STEP_JOIN:
		return member_joins(&t, event);
	case STEP_POST:
		return record_posted(&t, event);
	case STEP_NEXT:
		return device_starts(&t, event);
	case STEP_DONE:
		return device_done(&t, event);
	case STEP_LEAVE:
		return member_leaves(&t, event);
	case STEP_EXIT:
		return proxy_exits(&t, event);
	case STEP_DIE:
		return proxy_dies(&t, event);
	}
	return -EPROTO;
}

void step_cancels(const struct step *s, uint32_t device, step_act *act, void *ctx)
{
	uint32_t i, p;

	for (i = s->log; i; i = op_at(s, i - 1)->log_next) {
		const struct op *op = op_at(s, i - 1);

		if (!op->code)
			continue;
		for (p = op->parts; p; p = part_at(s, p - 1)->next)
			if (part_at(s, p - 1)->device == device && part_at(s, p - 1)->used == STARTED)
				break;
		if (p)
			act(ctx, &(struct step_action){ .kind = STEP_CANCEL,
			                                .device = device,
			                                .order = op->order });
	}
}

/* ---- who is where ---- */

uint32_t step_proxy(const struct step *s, uint32_t member)
{
	if (!is_used(s, MEMBERS, member) || member_at(s, member)->used == RESERVED)
		return STEP_NONE;
	return member_at(s, member)->proxy;
}

uint32_t step_device(const struct step *s, uint32_t proxy)
{
	return is_used(s, PROXIES, proxy) ? proxy_at(s, proxy)->device : STEP_NONE;
}

bool step_lives(const struct step *s, uint32_t proxy)
{
	return is_used(s, PROXIES, proxy) && proxy_at(s, proxy)->state == LIVES;
}

uint32_t step_ranks(const struct step *s, uint32_t member, uint32_t *proxy, uint32_t max)
{
	const struct comm *c;
	uint32_t r;

	if (!is_used(s, MEMBERS, member))
		return 0;
	c = comm_at(s, member_at(s, member)->comm);
	for (r = 0; r < c->ranks && r < max; r++)
		proxy[r] = member_at(s, c->first + r)->used == RESERVED ?
			STEP_NONE : member_at(s, c->first + r)->joined;
	return c->ranks;
}

/* ---- the state's memory ---- */

static void limits_of(const struct step_limits *l, uint32_t *limit)
{
	limit[PROXIES] = l->proxies;
	limit[DEVICES] = l->devices;
	limit[COMMS] = l->comms;
	limit[MEMBERS] = l->members;
	limit[OPS] = l->ops;
	limit[PARTS] = l->parts;
	limit[RECORDS] = l->records;
}

/* Fills in where everything lies; returns the size in 8 bytes, or 0. */
static uint32_t lay_out(struct step *s, const struct step_limits *limits)
{
	uint64_t at = (sizeof(*s) + 7) / 8;
	int i;

	memset(s, 0, sizeof(*s));
	limits_of(limits, s->limit);
	for (i = 0; i < ARRAYS; i++) {
		if (!s->limit[i] || s->limit[i] > ENTRIES_MAX)
			return 0;
		s->map[i] = (uint32_t)at;
		at += (s->limit[i] + 63) / 64;
		s->at[i] = (uint32_t)at;
		at += ((uint64_t)s->limit[i] * sizes[i] + 7) / 8;
	}
	return (uint32_t)at;
}

size_t step_size(const struct step_limits *limits)
{
	struct step s;
	uint32_t end = lay_out(&s, limits);

	return end ? 8 * ((size_t)end + index_size(&s)) : 0;
}

size_t step_saved_size(const struct step_limits *limits)
{
	struct step s;

	return 8 * (size_t)lay_out(&s, limits);
}

struct step *step_init(void *mem, const struct step_limits *limits)
{
	return step_init_zeroed(memset(mem, 0, step_size(limits)), limits);
}

struct step *step_init_zeroed(void *mem, const struct step_limits *limits)
{
	lay_out(mem, limits);
	index_lay_out(mem, index_of(mem));
	return mem;
}

struct step *step_grow(const struct step *s, void *mem, const struct step_limits *limits)
{
	struct step *to = step_init(mem, limits);
	int i;

	for (i = 0; i < ARRAYS; i++) {
		memcpy(bitmap(to, i), bitmap(s, i), (s->limit[i] + 63) / 64 * 8);
		memcpy(entry(to, i, 0), entry(s, i, 0), (size_t)s->limit[i] * sizes[i]);
		to->used[i] = s->used[i];
	}
	to->log = s->log;
	to->log_last = s->log_last;
	to->orders = s->orders;
	to->births = s->births;
	step_index(to);
	return to;
}

void step_used(const struct step *s, struct step_limits *used)
{
	uint32_t i, devices = 0;

	for (i = 0; i < s->limit[DEVICES]; i++)
		devices += !!device_at(s, i)->proxies;
	*used = (struct step_limits){ .proxies = s->used[PROXIES],
		                      .devices = devices,
		                      .comms = s->used[COMMS],
		                      .members = s->used[MEMBERS],
		                      .ops = s->used[OPS],
		                      .parts = s->used[PARTS],
		                      .records = s->used[RECORDS] };
}
