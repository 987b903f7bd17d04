// SPDX-License-Identifier: Apache-2.0
/*
 * flow.c - chunks of an operation's flows, in and out; the transport's owner alone runs this
 *
 * A sender may be EAGER bytes ahead before the receiver has started, and WINDOW bytes afterwards:
 * the receiver grants them as it takes chunks. Chunks of a flow come and are taken in order; one
 * that comes too soon, since another device's for the same elements is missing, is kept where it
 * lies in the link's memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport_i.h"

#define TURN 4 /* chunks that an operation sends before others, and what has come, have their turn */

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ------------------------------------------------------------------------------ what is kept */

static void kept_free(struct transport *c, struct kept *k)
{
	if (k->link)
		wire_release(c, k->link, k->data);
	else
		free(k->data);
	free(k);
}

/* Keeps a message: where it is, if it lies in a link's memory. */
static struct kept *keep(const struct msg *m, void *data, struct link *link)
{
	struct kept *k = malloc(sizeof(*k));

	if (!k)
		return NULL;
	*k = (struct kept){ .msg = *m, .link = link, .data = data };
	if (!link) {
		k->data = malloc(m->len ?: 1);
		if (!k->data) {
			free(k);
			return NULL;
		}
		memcpy(k->data, data, m->len);
	}
	return k;
}

static struct early **early_slot(struct transport *c, uint64_t order)
{
	/* The top bits alone depend on all of the order's. */
	_Static_assert(EARLY_HASH == 1u << 13, "64 - 51 bits");
	return &c->early[order * c->secret >> 51];
}

/* Takes an order's messages, of one device or of any, out of the hash. NULL: there are none. */
static struct early *early_take(struct transport *c, uint64_t order, uint32_t from)
{
	struct early **at = early_slot(c, order), *e;

	while ((e = *at) && (e->order != order || (from != UINT32_MAX && e->from != from)))
		at = &e->next;
	if (!e)
		return NULL;
	*at = e->next;
	for (struct kept *k = e->first; k; k = k->next)
		c->early_bytes[e->from] -= k->msg.len + EARLY_EACH;
	return e;
}

/* The list for a message's order and device; NULL: no memory. */
static struct early *early_list(struct transport *c, const struct msg *m)
{
	struct early **slot = early_slot(c, m->order), *e;

	for (e = *slot; e && (e->order != m->order || e->from != m->from); e = e->next)
		;
	if (e)
		return e;
	e = malloc(sizeof(*e));
	if (!e)
		return NULL;
	*e = (struct early){ .next = *slot, .order = m->order, .from = m->from };
	e->last = &e->first;
	*slot = e;
	return e;
}

void early_drop(struct transport *c, uint64_t order, uint32_t from)
{
	struct kept *k, *next;
	struct early *e;

	while ((e = early_take(c, order, from))) {
		for (k = e->first; k; k = next) {
			next = k->next;
			kept_free(c, k);
		}
		free(e);
	}
}

void flow_forget(struct transport *c, struct op *op)
{
	for (uint32_t i = 0; i < op->nin; i++) {
		struct kept *k;

		while ((k = op->in[i].kept)) {
			op->in[i].kept = k->next;
			kept_free(c, k);
		}
	}
}

/* ------------------------------------------------------------------------------ what comes */

/* Writes what all local parts get, from a byte on. Buffers in place are the same. */
static void to_parts(struct op *op, uint64_t at, const void *data, uint64_t len)
{
	for (uint32_t r = 0; r < op->s.ranks; r++)
		if (op->part[r].p.rank != UINT32_MAX && (char *)op->part[r].p.recv + at != data)
			memcpy((char *)op->part[r].p.recv + at, data, len);
}

static char *any_recv(struct op *op)
{
	uint32_t r;

	for (r = 0; op->part[r].p.rank == UINT32_MAX; r++)
		;
	return op->part[r].p.recv;
}

/* Grants more of a flow, when half of the window has been taken. */
static void grant(struct transport *c, struct op *op, struct flow_in *f)
{
	uint64_t window = WINDOW / f->size;
	struct msg m = { .what = MSG_GRANT, .flow = f->what, .a = f->a, .b = f->b,
		         .order = op->s.order };

	if (f->granted >= f->len || f->pos + window - f->granted < window / 2)
		return;
	f->granted = f->pos + window;
	m.first = f->granted;
	wire_send(c, f->from, &m, NULL, NULL);
}

static void taken(struct transport *c, struct op *op, struct flow_in *f, uint64_t n)
{
	f->pos += n;
	if (f->pos == f->len)
		op->ins_left--;
	else
		grant(c, op, f);
}

/* The next chunk of every flow of a piece is there: reduces them. */
static void piece_chunk(struct op *op, struct piece *p, uint64_t n)
{
	uint64_t at = (p->first + p->pos) * op->leaf;
	char *to = p->to ? p->to + p->pos * op->leaf : any_recv(op) + at;

	for (uint32_t i = 0; i < p->shares; i++) {
		struct share *s = &op->share[p->share + i];
		struct flow_in *f = s->in;

		op->tp[i] = (struct tree_part){ .node = s->node, .scale = s->scale };
		if (!f) {
			op->tp[i].data = s->base + p->pos * op->leaf;
			continue;
		}
		op->tp[i].data = f->now ? f->data : f->kept->data;
		f->factor = f->now ? f->now->factor : f->kept->msg.factor;
	}
	tree_reduce(&op->red, op->tp, p->shares, to, n);
	if (!p->to)
		to_parts(op, at, to, n * op->leaf);
	p->pos += n;
	op->pieces_left -= p->pos == p->len;
}

/* Goes on with a piece as far as its flows have come; at most `most` chunks. */
static bool piece_run(struct transport *c, struct op *op, struct piece *p, int most)
{
	bool any = false;

	if (op->exchange && op->outs_left)
		return false;
	while (p->pos < p->len && most--) {
		uint64_t n = least(op->chunk, p->len - p->pos);

		for (uint32_t i = 0; i < p->shares; i++) {
			struct flow_in *f = op->share[p->share + i].in;

			if (f && !f->now && !f->kept)
				return any;
		}
		piece_chunk(op, p, n);
		any = true;
		for (uint32_t i = 0; i < p->shares; i++) {
			struct flow_in *f = op->share[p->share + i].in;
			struct kept *k;

			if (!f)
				continue;
			if (f->now) {
				f->now = NULL;
			} else {
				k = f->kept;
				f->kept = k->next;
				kept_free(c, k);
			}
			taken(c, op, f, n);
		}
	}
	return any;
}

/* Where the chunk would be that comes next in a flow, behind those that are kept. */
static uint64_t flow_next(const struct op *op, const struct flow_in *f)
{
	return f->kept ? least(f->last->msg.first + op->chunk, f->len) : f->pos;
}

/* A chunk of a flow. 1: it is kept; 0; -EPROTO: it is not what comes next; -ENOMEM. */
static int flow_chunk(struct transport *c, struct op *op, struct flow_in *f, const struct msg *m,
                      void *data, struct link *link)
{
	uint64_t n = least(op->chunk, f->len - f->pos);
	struct kept *k;

	if (m->first != flow_next(op, f) || m->first >= f->len ||
	    m->len != least(op->chunk, f->len - m->first) * f->size)
		return -EPROTO;
	if (f->what == MSG_LEAVES) {
		if (!f->kept) {
			f->now = m;
			f->data = data;
			piece_run(c, op, &op->piece[f->piece], 1);
			if (!f->now)
				return 0;
			f->now = NULL;
		}
		k = keep(m, data, link);
		if (!k)
			return -ENOMEM;
		*(f->kept ? &f->last->next : &f->kept) = k;
		f->last = k;
		return 1;
	}
	if (f->to)
		memcpy(f->to + f->pos * f->size, data, n * f->size);
	else
		to_parts(op, f->at + f->pos * f->size, data, n * f->size);
	taken(c, op, f, n);
	return 0;
}

static void flow_grant(struct op *op, const struct msg *m)
{
	for (uint32_t i = 0; i < op->nout; i++) {
		struct flow_out *f = &op->out[i];

		if (f->device == m->from && f->what == m->flow && f->a == m->a && f->b == m->b)
			f->granted = m->first;
	}
}

static bool was_cancelled(const struct transport *c, uint64_t order)
{
	return order && c->forgotten[order % HASH] == order;
}

static bool early(struct transport *c, const struct msg *m, void *data, struct link *link)
{
	struct early *e = NULL;
	struct kept *k = NULL;

	if (was_cancelled(c, m->order))
		return false;
	if (c->early_bytes[m->from] + m->len + EARLY_EACH <= EARLY_MOST)
		e = early_list(c, m);
	if (e)
		k = keep(m, data, link);
	if (!k) {		/* operations that come to need it later must fail, too */
		wire_refuse(c, m->from, "more than is kept for operations that have not started");
		return false;
	}
	*e->last = k;
	e->last = &k->next;
	c->early_bytes[m->from] += m->len + EARLY_EACH;
	return !!link;
}

/* The owner alone counts; others read. */
static void count(uint64_t *n, uint64_t more)
{
	__atomic_store_n(n, *n + more, __ATOMIC_RELAXED);
}

bool flow_message(struct transport *c, const struct msg *m, void *data, struct link *link, size_t len)
{
	struct flow_in *f;
	struct op *op;
	int rc;

	if (m->from >= TRANSPORT_DEVICES_MAX || m->from == c->o.self)
		return false;
	if (m->magic != MSG_MAGIC || m->zero || m->what < MSG_LEAVES || m->what > MSG_DROP) {
		wire_refuse(c, m->from, "no message of this transport");
		return false;
	}
	if (m->what == MSG_DROP) {
		early_drop(c, m->order, m->from);
		return false;
	}
	op = op_find(c, m->order);
	if (m->len != len || !len != (m->what == MSG_GRANT) || len > CHUNK) {
		wire_refuse(c, m->from, "a message with a wrong length");
		return false;
	}
	if (!op)
		return early(c, m, data, link);
	if (m->what == MSG_GRANT) {
		flow_grant(op, m);
		op_wake(c, op);
		return false;
	}
	f = plan_in(op, m->from, m->what, m->a, m->b);
	rc = f ? flow_chunk(c, op, f, m, data, link) : -EPROTO;
	if (rc == -EPROTO)
		wire_refuse(c, m->from, "a message that does not fit its operation");
	else if (rc < 0)
		device_lost(c, m->from);
	if (rc < 0)
		return false;
	count(&c->n.received, m->len);
	op_wake(c, op);
	return rc && link;
}

/* ------------------------------------------------------------------------------ what goes */

const void *flow_data(struct op *op, const struct flow_out *f, uint64_t first)
{
	const char *from = f->base;

	if (f->what == MSG_RESULT)
		from = any_recv(op) + op->piece[f->piece].first * op->leaf;
	return from ? from + first * f->size : NULL;
}

void flow_pack(struct op *op, const struct flow_out *f, uint64_t first, void *to, uint64_t n)
{
	const void *from = flow_data(op, f, first);

	if (from)
		memcpy(to, from, n * f->size);
	else
		plan_leaves(op, f->leaf, f->leaves, f->at + first, to, n);
}

/* Sends the next chunk of a flow. Whether it has. */
static bool send_one(struct transport *c, struct op *op, struct flow_out *f)
{
	uint64_t end = f->what == MSG_RESULT ? op->piece[f->piece].pos : f->len;
	uint64_t n = least(op->chunk, f->len - f->sent);
	struct msg m = { .what = f->what, .a = f->a, .b = f->b, .order = op->s.order,
		         .first = f->sent, .factor = f->factor, .len = n * f->size };
	int rc;

	if (f->sent == f->len || f->sent + n > end || f->sent + n > f->granted)
		return false;
	rc = wire_send(c, f->device, &m, op, f);
	if (rc == -EAGAIN)
		return false;
	if (rc) {
		op->code = rc == -ENOMEM ? STEP_SYSTEM : STEP_REMOTE;
		return false;
	}
	f->sent += n;
	op->outs_left -= f->sent == f->len;
	count(&c->n.sent, m.len);
	count(&c->n.messages, 1);
	return true;
}

void flow_run(struct transport *c, struct op *op)
{
	uint32_t left = TURN, idle = 0;

	while (left && idle < op->nout && op->outs_left && !op->code) {
		bool sent = send_one(c, op, &op->out[op->turn]);

		op->turn = (op->turn + 1) % op->nout;
		idle = sent ? 0 : idle + 1;
		left -= sent;
	}
	for (uint32_t i = 0; i < op->npieces && op->pieces_left; i++) {
		struct piece *p = &op->piece[i];

		if (p->pos < p->len && piece_run(c, op, p, TURN) && p->pos < p->len)
			op_wake(c, op);
	}
	if (!left)
		op_wake(c, op);
}

bool flow_ended(const struct op *op)
{
	return !op->ins_left && !op->outs_left && !op->pieces_left;
}

bool flow_needs(const struct op *op, uint32_t device)
{
	for (uint32_t i = 0; i < op->nin; i++)
		if (op->in[i].from == device && flow_next(op, &op->in[i]) < op->in[i].len)
			return true;
	for (uint32_t i = 0; i < op->nout; i++)
		if (op->out[i].device == device && op->out[i].sent < op->out[i].len)
			return true;
	return false;
}

void flow_begin(struct transport *c, struct op *op)
{
	struct early *e;
	struct kept *k;

	for (uint32_t i = 0; i < op->ncopies; i++)
		memmove(op->copy[i].to, op->copy[i].from, op->copy[i].len);
	for (uint32_t i = 0; i < op->nout; i++)
		op->out[i].granted = least(op->out[i].len, EAGER / op->out[i].size);
	for (uint32_t i = 0; i < op->nin; i++) {
		struct flow_in *f = &op->in[i];

		f->granted = least(f->len, EAGER / f->size);
		grant(c, op, f);
	}
	while ((e = early_take(c, op->s.order, UINT32_MAX))) {
		while ((k = e->first)) {
			struct link *link = k->link;

			e->first = k->next;
			if (!flow_message(c, &k->msg, k->data, link, k->msg.len) && link)
				wire_release(c, link, k->data);
			else if (!link)
				free(k->data);
			free(k);
		}
		free(e);
	}
}
