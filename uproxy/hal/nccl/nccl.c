// SPDX-License-Identifier: Apache-2.0
/*
 * nccl.c - the transport's interface, and its thread
 *
 * Other threads change the lists below the lock and wake the thread. Callbacks of the driver do no more
 * than that either. The thread sleeps without a limit, unless a group has something to poll, or NCCL has communicators.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_i.h"

#define TICK_MS 2 /* between two looks at what NCCL has begun */
#define LOOK_MS 500 /* ... at what other ranks say, or what has not ended */
#define DEPART_MS 10000 /* that others may take to create a communicator with one that leaves */
#define LEFT_MS 500 /* that NCCL may take to end communicators when the process ends */

void nccl_say(struct transport *c, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (c->o.say)
		c->o.say(c->o.arg, text);
}

void nccl_kick(struct transport *c)
{
	assert_held(&c->lock);
	c->kicked = true;
	pthread_cond_signal(&c->news);
}

/* lock */
static struct op **place_of(struct transport *c, uint64_t order)
{
	struct op **at = &c->ops;

	assert_held(&c->lock);
	while (*at && (*at)->order < order)
		at = &(*at)->next;
	return at;
}

/* lock */
static struct op *op_of(struct transport *c, uint64_t order)
{
	struct op *op = *place_of(c, order);

	assert_held(&c->lock);
	return op && op->order == order ? op : NULL;
}

/* ------------------------------------------------------------------------------ the device */

static void device_forget(struct transport *c)
{
	const struct cuda_driver *drv = &c->h->drv;

	reduce_close(c->reduce);
	if (c->factors)
		drv->cuMemFree_v2(c->factors);
	if (c->scratch)
		drv->cuMemFree_v2(c->scratch);
	if (c->stream)
		drv->cuStreamDestroy_v2(c->stream);
	if (c->copies)
		drv->cuStreamDestroy_v2(c->copies);
	c->reduce = NULL;
	c->scratch = c->factors = 0;
	c->stream = c->copies = NULL;
	c->prepared = false;
}

int device_prepare(struct transport *c)
{
	const struct cuda_driver *drv = &c->h->drv;
	struct why why = { 0 };
	CUresult r;
	int rc = 0;

	if (c->prepared)
		return 0;
	r = drv->cuCtxSetCurrent(c->h->primary);
	if (!r)
		r = drv->cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING);
	if (!r)
		r = drv->cuStreamCreate(&c->copies, CU_STREAM_NON_BLOCKING);
	if (!r)
		r = drv->cuMemAlloc_v2(&c->factors, 8 * TRANSPORT_DEVICES_MAX);
	if (r)
		rc = why_set(&why, -EIO, "no streams and memory on the device: CUDA error %d", r);
	if (!rc)
		rc = reduce_open(&c->reduce, c->h, &why);
	if (rc)
		nccl_say(c, "NCCL: %s", why.text);
	c->prepared = !rc;
	if (rc)
		device_forget(c);
	return rc;
}

static void buffers_free(struct transport *c, struct buffer *list)
{
	while (list) {
		struct buffer *b = list;

		list = b->next;
		if (b->room)
			c->h->drv.cuMemFree_v2(b->at);
		free(b);
	}
}

/* Nothing is in the stream any more, or it is lost with the context. */
static void device_drop(struct transport *c)
{
	struct buffer *spare;

	lock_take(&c->lock);
	spare = c->spare;
	c->spare = NULL;
	for (struct buffer *b = c->buffers; b; b = b->next) {	/* what they had is gone with the context */
		b->room = 0;
		b->failed = true;
	}
	lock_drop(&c->lock);
	buffers_free(c, spare);
	if (c->prepared)
		device_forget(c);
}

/* ------------------------------------------------------------------------------ operations end */

/* The stream has come to an operation's end. A thread of the driver. */
static void reached(void *arg, CUresult status)
{
	struct op *op = arg;
	struct transport *c = op->c;

	lock_take(&c->lock);
	op->status = status;
	op->reached = true;
	nccl_kick(c);
	lock_drop(&c->lock);
}

static enum step_code code_of(const struct op *op)
{
	if (op->code)
		return op->code;
	if (!op->reached)
		return STEP_REMOTE;
	return op->status ? STEP_SYSTEM : STEP_OK;
}

/* One that has come to its end, or will not begin: taken out of the list. lock */
static struct op *take_ended(struct transport *c)
{
	assert_held(&c->lock);
	for (struct op **at = &c->ops, *op; (op = *at); at = &op->next)
		if (op->state == OP_ISSUED ? op->reached : op->cancelled && op->state == OP_STARTED) {
			*at = op->next;
			return op;
		}
	return NULL;
}

static bool ops_end(struct transport *c)
{
	bool any = false;
	struct op *op;

	for (;;) {
		lock_take(&c->lock);
		op = take_ended(c);
		lock_drop(&c->lock);
		if (!op)
			return any;
		any = true;
		lock_may_wait("what done() waits for");
		op->s.done(op->s.arg, code_of(op));
		free(op);
	}
}

void break_cancelled(struct transport *c)
{
	for (;;) {
		struct group *g = NULL;

		lock_take(&c->lock);
		for (struct op *op = c->ops; op && !g; op = op->next)
			if (op->state == OP_ISSUED && !op->reached && (op->cancelled || c->stop) && op->group->comm)
				g = op->group;
		lock_drop(&c->lock);
		if (!g)
			return;
		group_break(c, g, STEP_REMOTE);
	}
}

/* ------------------------------------------------------------------------------ operations begin */

/*
 * The next operation, if it has been started and its buffer has been filled; its group. For a buffer that fills_run() has
 * not seen, nccl_fill() has kicked the thread, so that fills_run() comes before the next call. lock
 */
static struct op *next_started(struct transport *c, struct group **g)
{
	struct op *op = c->ops;

	assert_held(&c->lock);
	while (op && op->state == OP_ISSUED)
		op = op->next;
	if (!op || op->state != OP_STARTED || op->cancelled || (op->buffer && op->buffer->filling))
		return NULL;
	for (*g = c->groups; *g && ((*g)->key != op->s.comm || (*g)->left); *g = (*g)->next)
		;
	return op;
}

/* Issues one operation. false: none can be now; *polls: it waits for its group. */
static bool issue_next(struct transport *c, bool *polls)
{
	struct group *g = NULL;
	struct op *op;
	CUresult r;

	lock_take(&c->lock);
	op = next_started(c, &g);
	if (op && g && g->state != GROUP_READY && g->state != GROUP_BROKEN) {
		*polls = true;
		op = NULL;
	}
	if (op) {
		op->state = OP_ISSUED;
		op->group = g;
	}
	lock_drop(&c->lock);
	if (!op)
		return false;
	op->code = !g ? STEP_SYSTEM : g->state == GROUP_BROKEN ? g->code : STEP_OK;
	if (!op->code && device_prepare(c))
		op->code = STEP_SYSTEM;
	if (op->code) {
		reached(op, CUDA_SUCCESS);
		return true;
	}
	op->code = issue(c, op);
	/* Half of it may be there: the others cannot go on with this group either. */
	if (op->code)
		group_break(c, g, op->code);
	r = hal_notify(c->h, c->stream, reached, op);
	if (r)
		reached(op, c->h->drv.cuStreamSynchronize(c->stream) ?: r);
	return true;
}

/* ------------------------------------------------------------------------------ buffers */

/* Device memory for a buffer: what was used before, or new. */
static bool buffer_room(struct transport *c, struct buffer *b)
{
	struct buffer **at, *s = NULL;

	if (b->room)		/* it is filled once more, after a cut */
		return true;
	if (device_prepare(c))
		return false;
	lock_take(&c->lock);
	for (at = &c->spare; (s = *at) && s->room < b->size; at = &s->next)
		;
	if (s)
		*at = s->next;
	lock_drop(&c->lock);
	if (s) {
		b->at = s->at;
		b->room = s->room;
		free(s);
		return true;
	}
	for (b->room = 4096; b->room < b->size; b->room *= 2)
		;
	if (c->h->drv.cuMemAlloc_v2(&b->at, b->room))
		b->room = 0;
	return b->room;
}

/* lock */
static void buffer_recycle(struct transport *c, struct buffer *b)
{
	struct buffer **at = &c->buffers;

	assert_held(&c->lock);
	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	if (!b->room) {
		free(b);
		return;
	}
	b->next = c->spare;
	c->spare = b;
}

/* In a stream of their own: that of operations may wait for other devices. */
static void fills_run(struct transport *c)
{
	struct buffer *b;
	CUresult r;

	for (;;) {
		lock_take(&c->lock);
		b = c->fills;
		if (b && !(c->fills = b->fill))
			c->fills_end = &c->fills;
		lock_drop(&c->lock);
		if (!b)
			return;
		r = CUDA_ERROR_OUT_OF_MEMORY;
		if (buffer_room(c, b))
			r = c->h->drv.cuMemcpyAsync(b->at, (CUdeviceptr)b->from, b->size, c->copies) ?:
			    c->h->drv.cuStreamSynchronize(c->copies);
		if (r)
			nccl_say(c, "NCCL: what is sent cannot be kept for its receiver: CUDA error %d", r);
		b->failed = r;
		lock_may_wait("what filled() waits for");
		b->filled(b->arg);
		lock_take(&c->lock);
		b->filling = false;
		if (b->dropped)
			buffer_recycle(c, b);
		lock_drop(&c->lock);
	}
}

static void *nccl_buffer(struct transport *c, size_t size)
{
	struct buffer *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->size = size;
	lock_take(&c->lock);
	b->next = c->buffers;
	c->buffers = b;
	lock_drop(&c->lock);
	return b;
}

static void nccl_unbuffer(struct transport *c, void *buffer)
{
	struct buffer *b = buffer;

	lock_take(&c->lock);
	if (b->filling)
		b->dropped = true;
	else
		buffer_recycle(c, b);
	lock_drop(&c->lock);
}

static int nccl_fill(struct transport *c, void *buffer, const void *from, size_t size,
		     void (*filled)(void *arg), void *arg)
{
	struct buffer *b = buffer;

	if (size > b->size)
		return -EINVAL;
	lock_take(&c->lock);
	b->from = from;
	b->filled = filled;
	b->arg = arg;
	b->filling = true;
	b->fill = NULL;
	*c->fills_end = b;
	c->fills_end = &b->fill;
	nccl_kick(c);
	lock_drop(&c->lock);
	return 0;
}

/* ------------------------------------------------------------------------------ the thread */

/* Is nothing in the stream, and has NCCL ended what it was to end? */
static bool has_settled(struct transport *c)
{
	bool left = reaps_run(c);

	return !left && (!c->prepared || c->h->drv.cuStreamQuery(c->stream) != CUDA_ERROR_NOT_READY);
}

/* Ends all that is under way. false: the device or NCCL does not do so. */
static bool stop_all(struct transport *c, enum step_code code)
{
	struct timespec nap = { .tv_nsec = 1000000 };
	uint64_t begin = nccl_now_ns();
	struct group *g;

	lock_take(&c->lock);
	g = c->groups;
	lock_drop(&c->lock);
	for (; g; g = g->next)
		group_break(c, g, code);
	while (!has_settled(c)) {
		if (nccl_now_ns() - begin > nccl_patience_ns)
			return false;
		ops_end(c);	/* the device may wait for what done() stores */
		nanosleep(&nap, NULL);
	}
	return true;
}

static void reset_now(struct transport *c)
{
	if (!stop_all(c, STEP_SYSTEM))
		nccl_say(c, "NCCL: the device, or NCCL, does not end what was aborted before the device's reset");
	/* Notices of what has ended still come, from threads of the driver. */
	device_drop(c);
	lock_take(&c->lock);
	c->resetting = false;
	pthread_cond_broadcast(&c->idle);
	lock_drop(&c->lock);
}

static struct timespec in_ms(uint64_t ms)
{
	uint64_t at = nccl_now_ns() + ms * 1000000;

	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000) };
}

/* ms: 0: without a limit. */
static void nap(struct transport *c, uint64_t ms)
{
	struct timespec until = in_ms(ms);

	lock_take(&c->lock);
	while (!c->kicked && !c->stop)
		if (!ms)
			lock_wait(&c->lock, &c->news);
		else if (lock_wait_until(&c->lock, &c->news, &until))
			break;
	c->kicked = false;
	lock_drop(&c->lock);
}

static bool is(struct transport *c, const bool *what)
{
	bool yes;

	lock_take(&c->lock);
	yes = *what;
	lock_drop(&c->lock);
	return yes;
}

static void opened(struct transport *c, int rc)
{
	lock_take(&c->lock);
	c->opened = rc ?: 1;
	pthread_cond_broadcast(&c->idle);
	lock_drop(&c->lock);
}

static void *work(void *arg)
{
	struct transport *c = arg;
	int rc = device_prepare(c);
	bool polls, looks;

	opened(c, rc);
	if (rc)
		return NULL;
	while (!is(c, &c->stop)) {
		if (is(c, &c->resetting))
			reset_now(c);
		fills_run(c);
		break_cancelled(c);
		looks = false;
		polls = groups_run(c, &looks);
		looks |= reaps_run(c);
		looks |= notes_run(c, false);
		if (ops_end(c) || issue_next(c, &polls))
			continue;
		nap(c, polls ? TICK_MS : looks ? LOOK_MS : 0);
	}
	stop_all(c, STEP_REMOTE);
	return NULL;
}

/* ------------------------------------------------------------------------------ the interface */

static void comm_free(struct transport *c)
{
	struct group *g;

	while ((g = c->groups)) {
		c->groups = g->next;
		group_free(g);
	}
	pthread_cond_destroy(&c->news);
	pthread_cond_destroy(&c->idle);
	lock_end(&c->lock);
	free(c);
}

/* NCCL's threads and ours leave signals to the proxy's. */
int nccl_thread(pthread_t *t, void *(*fn)(void *arg), void *arg, const char *name)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = -pthread_create(t, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!rc)
		pthread_setname_np(*t, name);
	return rc;
}

static int thread_start(struct transport *c)
{
	int rc = nccl_thread(&c->thread, work, c, "nccl");

	if (rc)
		return rc;
	lock_take(&c->lock);
	while (!c->opened)
		lock_wait(&c->lock, &c->idle);
	rc = c->opened < 0 ? c->opened : 0;
	lock_drop(&c->lock);
	if (rc)
		pthread_join(c->thread, NULL);
	return rc;
}

static int nccl_open(struct transport **out, const struct transport_open *o, struct why *why)
{
	struct transport *c;
	int rc = 0;

	if (!o->hal || !o->address || !o->note || !o->noted)
		return why_set(why, -EINVAL, "NCCL's transport needs a device and a board");
	c = calloc(1, sizeof(*c));
	if (!c)
		return why_set(why, -ENOMEM, "no memory for the transport");
	c->o = *o;
	c->h = o->hal;
	c->fills_end = &c->fills;
	lock_init(&c->lock, PROXY_TRANSPORT);
	pthread_cond_init(&c->news, NULL);
	pthread_cond_init(&c->idle, NULL);
	if (o->together)
		together_load(&c->nccl, c->h);
	else
		rc = library_load(c, why);
	if (!rc) {
		rc = thread_start(c);
		if (rc)
			why_set(why, rc, "NCCL's transport does not start: %s", strerror(-rc));
	}
	if (rc) {
		comm_free(c);
		return rc;
	}
	*out = c;
	return 0;
}

/* Ranks meet by the board's notes. */
static int nccl_address(struct transport *c, void *to)
{
	(void)c;
	*(uint8_t *)to = 0;
	return 1;
}

static int nccl_join(struct transport *c, const struct transport_group *g, struct why *why)
{
	struct group *new;

	if (g->ranks > REDUCE_PARTS)
		return why_set(why, -ENOTSUP, "NCCL's transport: at most %u ranks", REDUCE_PARTS);
	for (uint32_t r = 0; r < g->ranks; r++)
		if (r != g->rank && g->device[r] == c->o.self)
			return why_set(why, -ENOTSUP, "NCCL's transport: one rank on a device");
	new = calloc(1, sizeof(*new));
	if (new) {
		new->device = malloc(g->ranks * sizeof(*new->device));
		new->reap = malloc(sizeof(*new->reap));
	}
	if (!new || !new->device || !new->reap) {
		if (new)
			group_free(new);
		return why_set(why, -ENOMEM, "no memory for a communicator");
	}
	memcpy(new->device, g->device, g->ranks * sizeof(*new->device));
	new->key = g->comm;
	new->ranks = g->ranks;
	new->rank = g->rank;
	lock_take(&c->lock);
	new->next = c->groups;
	c->groups = new;
	c->forming = true;
	nccl_kick(c);
	lock_drop(&c->lock);
	return 0;
}

static void nccl_leave(struct transport *c, uint64_t key)
{
	lock_take(&c->lock);
	for (struct group *g = c->groups; g; g = g->next)
		if (g->key == key)
			g->left = true;
	nccl_kick(c);
	lock_drop(&c->lock);
}

/* lock */
static struct op *op_add(struct transport *c, uint64_t order)
{
	struct op **at = place_of(c, order), *op;

	assert_held(&c->lock);
	if (*at && (*at)->order == order)
		return *at;
	op = calloc(1, sizeof(*op));
	if (!op)
		return NULL;
	op->c = c;
	op->order = order;
	op->next = *at;
	*at = op;
	return op;
}

static void nccl_announce(struct transport *c, uint64_t order)
{
	lock_take(&c->lock);
	op_add(c, order);	/* without memory, its start fails */
	lock_drop(&c->lock);
}

static void nccl_withdraw(struct transport *c, uint64_t order)
{
	struct op **at, *op;

	lock_take(&c->lock);
	at = place_of(c, order);
	op = *at && (*at)->order == order && (*at)->state == OP_ANNOUNCED ? *at : NULL;
	if (op)
		*at = op->next;
	nccl_kick(c);
	lock_drop(&c->lock);
	free(op);
}

static bool has_buffers(const struct transport_start *s)
{
	const struct transport_part *p = s->part;
	uint32_t kind = s->call.kind;
	bool root = p->rank == s->call.peer, here = kind >= STEP_SEND && root;
	bool send = here || (kind != STEP_RECV && (root || (kind != STEP_BROADCAST && kind != STEP_SCATTER)));
	bool recv = here || (kind != STEP_SEND && (root || (kind != STEP_REDUCE && kind != STEP_GATHER)));

	return (p->send || !send) && (p->recv || !recv);
}

static bool is_formed(const struct transport *c, const struct transport_start *s)
{
	const struct transport_part *p = s->part;
	bool adds = s->call.kind == STEP_ALLREDUCE || s->call.kind == STEP_REDUCE ||
		    s->call.kind == STEP_REDUCESCATTER;
	uint64_t size;

	return s->nparts == 1 && s->call.count && p->rank < s->ranks && s->device[p->rank] == c->o.self &&
	       s->call.kind < STEP_KINDS && s->call.type < TREE_TYPES && s->call.op < TREE_OPS &&
	       s->call.peer < s->ranks && (adds || !s->call.op) && has_buffers(s) &&
	       (s->call.op != TREE_PREMULSUM || p->factor) &&
	       !__builtin_mul_overflow(s->call.count, 8ull * s->ranks, &size);
}

static int nccl_start(struct transport *c, const struct transport_start *s)
{
	struct op *op;
	int rc = 0;

	if (!is_formed(c, s))
		return -EINVAL;
	lock_take(&c->lock);
	op = op_add(c, s->order);
	if (!op) {
		rc = -ENOMEM;
	} else if (op->state != OP_ANNOUNCED) {
		rc = -EINVAL;
	} else {
		op->s = *s;
		op->part = *s->part;
		op->s.part = NULL;
		op->s.device = NULL;
		if (s->call.op == TREE_PREMULSUM && !op->part.factor_there)
			memcpy(&op->factor, op->part.factor, tree_leaf_size(s->call.type));
		for (struct buffer *b = c->buffers; b; b = b->next)
			if (op->part.send == b)
				op->buffer = b;
		op->state = OP_STARTED;
		nccl_kick(c);
	}
	lock_drop(&c->lock);
	return rc;
}

static void nccl_cancel(struct transport *c, uint64_t order)
{
	struct op *op;

	lock_take(&c->lock);
	op = op_of(c, order);
	if (op && op->state != OP_ANNOUNCED) {
		op->cancelled = true;
		nccl_kick(c);
	}
	lock_drop(&c->lock);
}

static void nccl_counters(struct transport *c, struct transport_counters *n)
{
	n->sent = __atomic_load_n(&c->n.sent, __ATOMIC_RELAXED);
	n->received = __atomic_load_n(&c->n.received, __ATOMIC_RELAXED);
	n->messages = __atomic_load_n(&c->n.messages, __ATOMIC_RELAXED);
}

static void nccl_reset(struct transport *c)
{
	lock_take(&c->lock);
	c->resetting = true;
	nccl_kick(c);
	while (c->resetting)
		lock_wait(&c->lock, &c->idle);
	lock_drop(&c->lock);
}

/* NCCL's calls that do not return end with the process. */
static void nccl_depart(struct transport *c)
{
	struct timespec until = in_ms(DEPART_MS);
	uint32_t left;

	lock_take(&c->lock);
	c->departs = true;
	for (struct group *g = c->groups; g; g = g->next)
		g->left = true;
	nccl_kick(c);
	while (c->forming && !lock_wait_until(&c->lock, &c->idle, &until))
		;
	until = in_ms(LEFT_MS);
	while ((left = reaps_count(c)) && !lock_wait_until(&c->lock, &c->idle, &until))
		;
	lock_drop(&c->lock);
	if (left)
		nccl_say(c, "NCCL: the process ends, and %u of its communicators have not ended within %u ms", left, LEFT_MS);
}

static void nccl_close(struct transport *c)
{
	struct op *op;
	bool left;

	lock_take(&c->lock);
	c->stop = true;
	c->halted = false;
	nccl_kick(c);
	lock_drop(&c->lock);
	lock_may_wait("NCCL's thread");
	pthread_join(c->thread, NULL);
	c->h->drv.cuCtxSetCurrent(c->h->primary);
	/* What is announced has no end to tell; what is issued still gets its notice. */
	for (;;) {
		bool issued = false;

		lock_take(&c->lock);
		for (op = c->ops; op; op = op->next) {
			op->cancelled = true;
			issued |= op->state == OP_ISSUED;
		}
		lock_drop(&c->lock);
		ops_end(c);
		if (!issued)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	}
	while ((op = c->ops)) {
		c->ops = op->next;
		free(op);
	}
	left = reaps_run(c);
	notes_run(c, true);
	/* The threads of calls that have not returned keep the transport; the device may be theirs for ever. */
	if (left) {
		nccl_say(c, "NCCL: communicators have not ended, and are left");
		return;
	}
	device_drop(c);
	buffers_free(c, c->buffers);
	comm_free(c);
}

const struct transport_driver transport_nccl = {
	.version = TRANSPORT_VERSION,
	.name = "nccl",
	.open = nccl_open,
	.address = nccl_address,
	.start = nccl_start,
	.cancel = nccl_cancel,
	.counters = nccl_counters,
	.close = nccl_close,
	.join = nccl_join,
	.leave = nccl_leave,
	.announce = nccl_announce,
	.withdraw = nccl_withdraw,
	.buffer = nccl_buffer,
	.unbuffer = nccl_unbuffer,
	.fill = nccl_fill,
	.reset = nccl_reset,
	.depart = nccl_depart,
	.halt = nccl_halt,
};
