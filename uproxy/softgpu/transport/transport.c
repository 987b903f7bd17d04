// SPDX-License-Identifier: Apache-2.0
/*
 * transport.c - the transport's interface, and an operation's way from its start to its end
 *
 *   start ──► incoming ──► begun: in the hash by order ──► ended: op_end() ──► done()
 *                │                    │ cancel()               ▲
 *                └────────────────────┴────────────────────────┘
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport_i.h"

struct op *op_find(struct transport *c, uint64_t order)
{
	struct op *op = c->hash[order % HASH];

	while (op && op->s.order != order)
		op = op->hash;
	return op;
}

static struct op *op_new(struct transport *c)
{
	struct op *op;

	lock_take(&c->lock);
	op = c->spare;
	if (op) {
		c->spare = op->next;
		c->spares--;
	}
	lock_drop(&c->lock);
	if (!op)
		op = aligned_alloc(64, sizeof(*op));
	if (op)
		memset(op, 0, offsetof(struct op, room));
	return op;
}

/* Frees an operation that is in no list; under the lock, if `listed`, it is taken out of `all`. */
static void op_free(struct transport *c, struct op *op, bool listed)
{
	op_clear(op);
	lock_take(&c->lock);
	if (listed) {
		*op->link = op->next;
		if (op->next)
			op->next->link = op->link;
	}
	if (c->spares < SPARE_MOST) {
		op->next = c->spare;
		c->spare = op;
		c->spares++;
		op = NULL;
	}
	lock_drop(&c->lock);
	free(op);
}

void op_wake(struct transport *c, struct op *op)
{
	if (op->runnable)
		return;
	op->runnable = true;
	op->run = NULL;
	*c->run_end = op;
	c->run_end = &op->run;
}

void op_wake_all(struct transport *c)
{
	for (uint32_t h = 0; h < HASH; h++)
		for (struct op *op = c->hash[h]; op; op = op->hash)
			op_wake(c, op);
}

/* Takes an operation out of everything but the lists of `lock`. */
static void op_unhash(struct transport *c, struct op *op)
{
	struct op **at = &c->hash[op->s.order % HASH];

	while (*at && *at != op)
		at = &(*at)->hash;
	if (*at)
		*at = op->hash;
	if (!op->runnable)
		return;
	for (at = &c->run; *at != op; at = &(*at)->run)
		;
	*at = op->run;
	if (c->run_end == &op->run)
		c->run_end = at;
}

/* Whether an operation sends something to a device, or gets it from there. */
static bool op_meets(const struct op *op, uint32_t device)
{
	for (uint32_t k = 0; k < op->nin; k++)
		if (op->in[k].from == device)
			return true;
	for (uint32_t k = 0; k < op->nout; k++)
		if (op->out[k].device == device)
			return true;
	return false;
}

/* An operation has come to its end with code. Frees it. */
static void op_end(struct transport *c, struct op *op, enum step_code code)
{
	void (*done)(void *arg, enum step_code code) = op->s.done;
	void *arg = op->s.arg;

	lock_may_wait("what done() waits for");
	op_unhash(c, op);
	if (code) {
		struct msg m = { .what = MSG_DROP, .order = op->s.order };

		c->forgotten[op->s.order % HASH] = op->s.order;
		flow_forget(c, op);
		for (uint32_t i = 0; i < op->devices; i++)
			if (op_meets(op, op->dev[i]))
				wire_send(c, op->dev[i], &m, NULL, NULL);
	}
	op_free(c, op, true);
	done(arg, code);
}

/* Operations end that still need a device which is lost, or has sent nonsense. */
void device_lost(struct transport *c, uint32_t device)
{
	for (uint32_t h = 0; h < HASH; h++)
		for (struct op *op = c->hash[h]; op; op = op->hash)
			if (!op->code && flow_needs(op, device)) {
				op->code = STEP_REMOTE;
				op_wake(c, op);
			}
}

static void begin(struct transport *c, struct op *op)
{
	struct op **slot = &c->hash[op->s.order % HASH];

	op->hash = *slot;
	*slot = op;
	flow_begin(c, op);
	/* Not in the next turn: other devices wait for what this one sends. */
	flow_run(c, op);
	if (op->code || flow_ended(op))
		op_wake(c, op);
}

/* What other threads have said. */
static void take_news(struct transport *c)
{
	struct withdrawn *gone;
	struct op *op, *next;

	__atomic_store_n(&c->news, 0, __ATOMIC_RELAXED);
	/* Pairs with drive_bell(): what was stored before news is seen under the lock. */
	lock_take(&c->lock);
	op = c->incoming;
	c->incoming = NULL;
	c->incoming_end = &c->incoming;
	gone = c->withdrawn;
	c->withdrawn = NULL;
	lock_drop(&c->lock);
	for (; op; op = next) {
		next = op->incoming;
		begin(c, op);
	}
	while (gone) {
		struct withdrawn *w = gone;

		gone = w->next;
		c->forgotten[w->order % HASH] = w->order;
		early_drop(c, w->order, UINT32_MAX);
		free(w);
	}
	/* A done() may start and cancel: from the front again after each. */
	for (;;) {
		lock_take(&c->lock);
		for (op = c->all; op && !(op->cancelled && op_find(c, op->s.order) == op); op = op->next)
			;
		lock_drop(&c->lock);
		if (!op)
			return;
		op_end(c, op, STEP_REMOTE);
	}
}

/* Runs what is runnable now, once. */
static bool run_all(struct transport *c)
{
	struct op *last = c->run ? (struct op *)((char *)c->run_end - offsetof(struct op, run)) : NULL;
	struct op *op;
	bool more = last;

	while (more && (op = c->run)) {
		more = op != last;
		c->run = op->run;
		if (!c->run)
			c->run_end = &c->run;
		op->runnable = false;
		if (!op->code)
			flow_run(c, op);
		if (op->code)
			op_end(c, op, op->code);
		else if (flow_ended(op))
			op_end(c, op, STEP_OK);
	}
	return last;
}

bool comm_turn(struct transport *c)
{
	bool any = wire_progress(c);

	if (__atomic_load_n(&c->news, __ATOMIC_RELAXED)) {
		take_news(c);
		any = true;
	}
	return run_all(c) | any;
}

/* ------------------------------------------------------------------------------ the interface */

static void comm_free(struct transport *c)
{
	struct op *next;

	if (c->bell >= 0)
		close(c->bell);
	if (c->call >= 0)
		close(c->call);
	for (struct op *op = c->spare; op; op = next) {
		next = op->next;
		free(op);
	}
	free(c->early);
	free(c->early_bytes);
	lock_end(&c->lock);
	free(c);
}

static int soft_open(struct transport **out, const struct transport_open *o, struct why *why)
{
	struct transport *c;
	int rc;

	if (o->self >= TRANSPORT_DEVICES_MAX || !o->address)
		return why_set(why, -EINVAL, "device %u of a transport: at most %u are possible",
		               o->self, TRANSPORT_DEVICES_MAX);
	if (o->order != TRANSPORT_TREE)
		return why_set(why, -ENOTSUP, "--reduction=nccl: the soft device has no NCCL, only the tree");
	c = calloc(1, sizeof(*c));
	if (!c)
		return why_set(why, -ENOMEM, "no memory for the transport");
	lock_init(&c->lock, PROXY_TRANSPORT);
	c->o = *o;
	c->run_end = &c->run;
	c->incoming_end = &c->incoming;
	c->early_bytes = calloc(TRANSPORT_DEVICES_MAX, sizeof(*c->early_bytes));
	c->early = calloc(EARLY_HASH, sizeof(*c->early));
	c->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = c->bell < 0 || c->call < 0 ? -errno : c->early_bytes && c->early ? 0 : -ENOMEM;
	if (rc)
		why_set(why, rc, "the transport: %s", err_text(rc));
	else
		rc = wire_open(c, why);
	if (rc) {
		comm_free(c);
		return rc;
	}
	rc = drive_begin(c);
	if (rc) {
		why_set(why, rc, "the transport's thread: %s", err_text(rc));
		wire_close(c);
		comm_free(c);
		return rc;
	}
	*out = c;
	return 0;
}

static int soft_start(struct transport *c, const struct transport_start *s)
{
	bool here = drive_mine(c); /* from done() */
	struct op *op = op_new(c);
	int rc;

	if (!op)
		return -ENOMEM;
	op->s = *s;
	rc = plan(op, c->o.self);
	if (rc) {
		op_free(c, op, false);
		return rc;
	}
	lock_take(&c->lock);
	op->next = c->all;
	op->link = &c->all;
	if (op->next)
		op->next->link = &op->next;
	c->all = op;
	if (!here) {
		*c->incoming_end = op;
		c->incoming_end = &op->incoming;
	}
	lock_drop(&c->lock);
	if (here)
		begin(c, op);
	else
		drive_bell(c);
	return 0;
}

static void soft_cancel(struct transport *c, uint64_t order)
{
	bool any = false;

	lock_take(&c->lock);
	for (struct op *op = c->all; op; op = op->next)
		if (op->s.order == order)
			op->cancelled = any = true;
	lock_drop(&c->lock);
	if (any)
		drive_bell(c);
}

static void soft_withdraw(struct transport *c, uint64_t order)
{
	struct withdrawn *w = malloc(sizeof(*w));

	if (!w)			/* what comes of it stays until the end */
		return;
	w->order = order;
	lock_take(&c->lock);
	w->next = c->withdrawn;
	c->withdrawn = w;
	lock_drop(&c->lock);
	drive_bell(c);
}

static void soft_counters(struct transport *c, struct transport_counters *n)
{
	n->sent = __atomic_load_n(&c->n.sent, __ATOMIC_RELAXED);
	n->received = __atomic_load_n(&c->n.received, __ATOMIC_RELAXED);
	n->messages = __atomic_load_n(&c->n.messages, __ATOMIC_RELAXED);
}

static void soft_close(struct transport *c)
{
	struct op *op;

	drive_end(c);
	for (;;) {
		take_news(c);
		lock_take(&c->lock);
		op = c->all;
		lock_drop(&c->lock);
		if (!op)
			break;
		op_end(c, op, STEP_REMOTE);
	}
	for (uint32_t h = 0; h < EARLY_HASH; h++)
		while (c->early[h])
			early_drop(c, c->early[h]->order, UINT32_MAX);
	wire_close(c);
	comm_free(c);
}

__attribute__((visibility("default"))) const struct transport_driver singvgpu_transport = {
	.version = TRANSPORT_VERSION,
	.name = "soft",
	.open = soft_open,
	.address = wire_address,
	.start = soft_start,
	.cancel = soft_cancel,
	.withdraw = soft_withdraw,
	.counters = soft_counters,
	.close = soft_close,
	.drive = drive,
};
