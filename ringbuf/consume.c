// SPDX-License-Identifier: Apache-2.0
/*
 * consume.c - the proxy's end: takes records out of the ring, answers, latches errors, freezes
 *
 * All that the client can write is hostile: the header is copied once and then checked, the
 * payload is copied once and never looked at in the ring; how far we are (struct ring_rx) is kept
 * in our own memory and only shown in the control page.
 *
 *      ring_wait ─► ring_peek ─► (serve: ring_complete, ring_log_append) ─► ring_advance ─┐
 *          ▲                                                                               │
 *          └───────────── head is published every `batch` units, and when idle ◄───────────┘
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "ring_i.h"

#define BATCH_UNITS	64
#define LOOK_AWAY_TICKS	1000	/* of the TSC: some 300 ns */
#define FIRST		(SINGVGPU_UNIT - sizeof(struct singvgpu_rec))

static int broken(struct ring *r, const char *why)
{
	r->why = why;
	return -EPROTO;
}

static bool committed(struct ring *r, uint64_t pos)
{
	/* Pairs with the store that commits, in produce.c. */
	return load_acquire(&unit_at(r, pos)->seq) == pos + 1;
}

/* The module, or we, say that it died; or it has said good-bye. */
static bool client_gone(struct ring *r)
{
	return load_acquire(&r->rx.peer_gone) || load_acquire(&r->ctl->client_closed) ||
	       load_acquire(&r->ctl->client_life) & SINGVGPU_LIFE_DIED;
}

/* ring_publish: show the producers how far we are; wake those who wait for room. */
void ring_publish(struct ring *r)
{
	if (r->rx.published == r->rx.pos)
		return;
	r->rx.published = r->rx.pos;
	/* A locked instruction, before space_waiters is read; see wait_for_room. */
	swap(&r->ctl->head, r->rx.pos);
	if (load(&r->ctl->space_waiters))
		r->ops->wake(r, low_half(&r->ctl->head), UINT32_MAX);
}

/* ring_consumed: everything before pos has been served. */
void ring_consumed(struct ring *r, uint64_t pos)
{
	r->rx.pos = pos;
	r->rx.next = pos;
	if (pos - r->rx.published >= r->rx.batch)
		ring_publish(r);
}

/*
 * The ring was found empty behind a record that nobody waits for: more may follow at once. A
 * consumer that polls the very line that is written next slows the producer down to a line
 * transfer for each record; one that looks away for a moment comes back to a batch of them.
 */
static bool look_away(struct ring *r)
{
	uint64_t start = __builtin_ia32_rdtsc();

	if (!r->rx.streaming)
		return false;
	r->rx.streaming = false;
	while (__builtin_ia32_rdtsc() - start < LOOK_AWAY_TICKS)
		cpu_relax();
	return committed(r, r->rx.pos);
}

/* Nothing is committed: 0, or -EPIPE. What was committed before the client died is still served. */
static int nothing(struct ring *r)
{
	bool gone = client_gone(r);

	ring_publish(r);
	return gone && !committed(r, r->rx.pos) ? -EPIPE : 0;
}

/* h is our copy of the header of a record of several units, or of padding, or of nonsense. */
static int check(struct ring *r, const struct singvgpu_rec *h)
{
	uint32_t left = r->geo.ring_units - (r->rx.pos & r->mask);

	if (h->op == SINGVGPU_OP_PAD) {
		if (h->len != left * SINGVGPU_UNIT - sizeof(*h) || h->cpl)
			return broken(r, "padding that does not end with the ring");
		return 0;
	}
	if (h->len > r->payload_max)
		return broken(r, "a record longer than the ring allows");
	if (rec_units(h->len) > left)
		return broken(r, "a record over the end of the ring");
	if (h->cpl > r->geo.cpl_slots)
		return broken(r, "a completion slot that does not exist");
	return 0;
}

int ring_peek(struct ring *r, struct ring_record *rec)
{
	struct ring_rx *rx = &r->rx;
	const struct singvgpu_rec *h = (const struct singvgpu_rec *)rx->copy;
	uint32_t units;
	int rc;

	for (;;) {
		if (!committed(r, rx->pos) && !look_away(r))
			return nothing(r);
		memcpy(rx->copy, unit_at(r, rx->pos), SINGVGPU_UNIT);
		/* From here on the header is our copy, and the compiler may not think otherwise. */
		atomic_signal_fence(memory_order_seq_cst);
		units = 1;
		if (likely(h->len <= FIRST && h->op != SINGVGPU_OP_PAD &&
			   h->cpl <= r->geo.cpl_slots))
			break;
		rc = check(r, h);
		if (rc)
			return rc;
		units = rec_units(h->len);
		if (h->op != SINGVGPU_OP_PAD) {
			memcpy(rx->copy + SINGVGPU_UNIT, unit_at(r, rx->pos) + SINGVGPU_UNIT / sizeof(*h),
			       h->len - FIRST);
			break;
		}
		ring_consumed(r, rx->pos + units);
	}
	if (h->cpl && rx->next == rx->pos)
		rx->requested++;
	rx->next = rx->pos + units;
	rx->streaming = !h->cpl;
	rec->seq = rx->pos + 1;
	rec->op = h->op;
	rec->cpl = h->cpl;
	rec->len = h->len;
	rec->data = h + 1;
	return 1;
}

void ring_advance(struct ring *r)
{
	ring_consumed(r, r->rx.next);
}

/* ------------------------------------------------------------------------------ waiting */

static bool something(struct ring *r)
{
	return committed(r, r->rx.pos) || client_gone(r) || load(&r->rx.kicked);
}

static bool spin(struct ring *r)
{
	uint64_t start = 0;
	unsigned int i;

	if (!load(&r->rx.spin.ns))
		return something(r);
	do {
		for (i = 0; i < 64; i++) {
			if (something(r))
				return true;
			cpu_relax();
		}
		if (!start) {
			start = ring_now();
			if (!ring_spin_useful(r))
				return false;
		}
	} while (ring_now() - start < load(&r->rx.spin.ns));
	return something(r);
}

/* Lies down, as the first row of the table in ring_i.h says. */
static int sleep_on_bell(struct ring *r, int64_t *timeout)
{
	uint32_t bell = load_acquire(&r->ctl->doorbell);
	int rc = 0;

	ring_show_cpu(r);	/* also where we never spin */
	__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_SLEEPS, __ATOMIC_SEQ_CST);
	if (!(r->rx.cons & SINGVGPU_CONS_FENCE))
		ring_membarrier_global(false);
	if (!something(r))
		rc = r->ops->wait(r, &r->ctl->doorbell, bell, timeout);
	__atomic_fetch_and(&r->ctl->cons, ~SINGVGPU_CONS_SLEEPS, __ATOMIC_SEQ_CST);
	return rc;
}

int ring_wait(struct ring *r, int64_t timeout_ns)
{
	bool slept = false;
	int rc = 0;

	ring_publish(r);
	while (!something(r) && !rc) {
		if (!spin(r)) {
			slept = true;
			rc = sleep_on_bell(r, &timeout_ns);
		}
	}
	ring_spin_adapt(&r->rx.spin, !slept);
	if (rc == -EPIPE)
		store_release(&r->rx.peer_gone, 1);
	if (__atomic_exchange_n(&r->rx.kicked, 0, __ATOMIC_ACQUIRE))
		return -EINTR;
	if (committed(r, r->rx.pos))
		return 0;
	return client_gone(r) ? -EPIPE : rc;
}

void ring_kick(struct ring *r)
{
	store_release(&r->rx.kicked, 1);
	__atomic_fetch_add(&r->ctl->doorbell, 1, __ATOMIC_SEQ_CST);
	r->ops->wake(r, &r->ctl->doorbell, 1);
}

/* -------------------------------------------------------------------- answers and errors */

int ring_complete(struct ring *r, uint16_t cpl, uint64_t seq, int32_t status, const void *data,
		  uint32_t len)
{
	struct singvgpu_cpl *c = &r->cpl[cpl - 1];

	if (!cpl || cpl > r->geo.cpl_slots || len > SINGVGPU_CPL_DATA)
		return -EINVAL;
	c->status = status;
	c->len = len;
	if (len)
		memcpy(c->data, data, len);
	store_release(&c->seq, seq);
	__atomic_fetch_add(&r->rx.answered, 1, __ATOMIC_RELEASE);
	/*
	 * Before cpl_waiters is read; see sleep_for_answer. Not by swapping seq: the client, which
	 * polls that line, would take it away between the stores above and the swap.
	 */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (unlikely(load(&r->ctl->cpl_waiters)) && load(&c->waiting))
		r->ops->wake(r, low_half(&c->seq), 1);
	return 0;
}

void ring_latch_error(struct ring *r, uint64_t seq, int32_t err)
{
	pthread_mutex_lock(&r->rx.lock);
	if (!r->rx.error) {
		r->rx.error = err;
		store(&r->ctl->error_seq, seq);
		store(&r->ctl->error, err);
		r->rx.cons |= SINGVGPU_CONS_ERROR;
		/* Releases the two words above to ring_error. */
		__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_ERROR, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&r->rx.lock);
}

const char *ring_why(const struct ring *r)
{
	return r->why ? r->why : "";
}

int ring_watch_peer(struct ring *r, int pidfd)
{
	return r->client ? -EINVAL : r->ops->watch_peer(r, pidfd);
}

/* ------------------------------------------------------------------------------- freeze */

int ring_thaw(struct ring *r)
{
	int rc;

	if (!(r->rx.cons & SINGVGPU_CONS_GATE))
		return -EALREADY;
	pthread_mutex_lock(&r->rx.lock);
	r->rx.cons &= ~SINGVGPU_CONS_GATE;
	pthread_mutex_unlock(&r->rx.lock);
	rc = r->ops->gate(r, false);
	r->ops->wake(r, &r->ctl->cons, UINT32_MAX);
	return rc;
}

static int drain(struct ring *r, ring_serve serve, void *arg, uint64_t deadline, bool forever)
{
	struct ring_record rec;
	int rc;

	for (;;) {
		rc = ring_peek(r, &rec);
		if (rc == 1)
			rc = serve(arg, r, &rec);
		else if (!rc && load_acquire(&r->rx.answered) == r->rx.requested)
			return 0;
		else if (!rc)
			sched_yield();
		if (rc < 0 && rc != -EAGAIN)
			return rc;
		if (!forever && ring_now() > deadline) {
			r->why = committed(r, r->rx.pos) ? "records are left in the ring" :
							   "requests are not answered yet";
			return -ETIMEDOUT;
		}
	}
}

int ring_freeze(struct ring *r, ring_serve serve, void *arg, int64_t timeout_ns)
{
	uint64_t deadline = ring_now() + timeout_ns;
	int rc;

	if (r->rx.cons & SINGVGPU_CONS_GATE)
		return -EALREADY;
	rc = r->ops->gate(r, true);
	if (rc)
		return rc;
	pthread_mutex_lock(&r->rx.lock);
	r->rx.cons |= SINGVGPU_CONS_GATE;
	pthread_mutex_unlock(&r->rx.lock);
	ring_membarrier_global(false);	/* who looks from now on sees the gate */
	rc = drain(r, serve, arg, deadline, timeout_ns < 0);
	if (rc)
		ring_thaw(r);
	return rc;
}

/* The proxy's truth, as the object has it: a new one, or one filled by ring_restore. */
int ring_consume_init(struct ring *r)
{
	struct ring_rx *rx = &r->rx;

	rx->pos = load(&r->ctl->head);
	rx->next = rx->pos;
	rx->published = rx->pos;
	rx->batch = r->geo.ring_units / 8 < BATCH_UNITS ? r->geo.ring_units / 8 : BATCH_UNITS;
	ring_spin_init(&rx->spin, SPIN_MAX_NS);
	rx->cons = load(&r->ctl->cons) & ~SINGVGPU_CONS_SLEEPS;
	rx->error = load(&r->ctl->error);
	if (ring_membarrier_global(false)) {
		/* Then the producers must fence themselves. */
		rx->cons |= SINGVGPU_CONS_FENCE;
		__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_FENCE, __ATOMIC_SEQ_CST);
	}
	return ring_log_init(r);
}
