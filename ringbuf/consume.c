// SPDX-License-Identifier: Apache-2.0
/*
 * consume.c - the proxy's end: takes records out of the ring, answers, latches errors, freezes
 *
 * Everything that the client can write is untrusted: the header is copied once and then checked,
 * the payload is copied once and never read in the ring. The consumed position (struct ring_rx)
 * is kept in private memory, and the control page only shows it.
 *
 *      ring_wait ─► ring_peek_run ─► (serve: ring_complete, ring_log_append) ─► ring_advance ─┐
 *          ▲                                                                                  │
 *          └───────────── head is published every `batch` units, and when idle ◄───────────┘
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "ring_i.h"

#define BATCH_UNITS	64
#define AHEAD_UNITS	64
#define LOOK_AWAY_TICKS	1000	/* of the TSC: some 300 ns */
#define LOOK_AGAIN_TICKS	300
#define NO_END		(~0ull)
#define TAKEN_NS	2000	/* a yield that took longer has let another thread run */
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

/* The module, or memfd.c, has noticed the client's death; or the client has said good-bye. */
static bool client_gone(struct ring *r)
{
	return load_acquire(&r->rx.peer_gone) || load_acquire(&r->ctl->client_closed) ||
	       load_acquire(&r->ctl->client_life) & SINGVGPU_LIFE_DIED;
}

/* ring_publish: store the consumed position in head, and wake producers that wait for room. */
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
 * The last position that may be read now. Behind a record without an answer more records may
 * follow at once. A consumer that reads the line that is written next slows the producer down to
 * one line transfer per record, even if only its processor reads ahead in speculation. So it
 * polls one line some way ahead, and takes the records before it once that line is committed. The
 * address of each line read depends on the value found there, so that the processor cannot touch
 * a line behind it. After some 300 ns without success all positions may be read.
 *
 * The value found there may be payload, or forged: each record is checked before it is taken.
 */
static uint64_t look_ahead(struct ring *r)
{
	struct ring_rx *rx = &r->rx;
	uint64_t last = rx->pos + rx->ahead - 1, found, now;

	if (rx->sure - rx->pos - 1 < rx->ahead)
		return rx->sure - 1;
	if (likely(!rx->streaming))
		return NO_END;
	for (;;) {
		found = load_acquire(&unit_at(r, last)->seq) - 1;
		if (found == last) {
			rx->sure = last + 1;
			asm("" : "+r" (found));
			return found;
		}
		now = __builtin_ia32_rdtsc();
		if (now - rx->looked >= LOOK_AWAY_TICKS)
			break;
		while (__builtin_ia32_rdtsc() - now < LOOK_AGAIN_TICKS)
			cpu_relax();
	}
	rx->streaming = false;
	return NO_END;
}

/*
 * Nothing is committed: 0, or -EPIPE. Records committed before the client's death are still served.
 */
static int nothing(struct ring *r)
{
	bool gone = client_gone(r);

	ring_publish(r);
	return gone && !committed(r, r->rx.pos) ? -EPIPE : 0;
}

/* Check the private copy of a header that is not that of a valid record of one unit. */
static int check(struct ring *r, uint64_t pos, const struct singvgpu_rec *h)
{
	uint32_t left = r->geo.ring_units - (pos & r->mask);

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

/*
 * Copies the record at pos to `to` and returns its units; 0 nothing is committed, or there is no
 * room for it now. at: the position to read, pos or, if pos must not be read yet, an earlier one.
 */
static inline __attribute__((always_inline)) int take(struct ring *r, uint64_t pos, uint64_t at,
						      uint8_t *to, struct ring_record *rec)
{
	const struct singvgpu_rec *u = unit_at(r, at);
	struct singvgpu_rec h = { .seq = pos + 1 };
	uint32_t units;
	int rc;

	/* Pairs with the store that commits, in produce.c. */
	if (load_acquire(&u->seq) != pos + 1)
		return 0;
	memcpy(&h.op, &u->op, sizeof(h) - sizeof(h.seq));
	memcpy(to, u + 1, FIRST);
	/* From here on only the copies are used: the compiler must not read the ring again. */
	atomic_signal_fence(memory_order_seq_cst);
	units = 1;
	if (unlikely(h.len > FIRST || h.op == SINGVGPU_OP_PAD || h.cpl > r->geo.cpl_slots)) {
		rc = check(r, pos, &h);
		if (rc)
			return rc;
		units = rec_units(h.len);
		if (units * SINGVGPU_UNIT > r->rx.copy + SINGVGPU_RECORD_MAX - to)
			return 0;
		if (h.op != SINGVGPU_OP_PAD)
			memcpy(to + FIRST, unit_at(r, pos) + SINGVGPU_UNIT / sizeof(h), h.len - FIRST);
	}
	rec->seq = pos + 1;
	memcpy(&rec->op, &h.op, sizeof(h) - sizeof(h.seq));
	rec->data = to;
	return units;
}

_Static_assert(offsetof(struct ring_record, op) == offsetof(struct singvgpu_rec, op) &&
	       offsetof(struct ring_record, cpl) == offsetof(struct singvgpu_rec, cpl) &&
	       offsetof(struct ring_record, len) == offsetof(struct singvgpu_rec, len), "copied whole");

static inline __attribute__((always_inline)) int peek(struct ring *r, struct ring_record *rec,
						      unsigned int max)
{
	struct ring_rx *rx = &r->rx;
	uint64_t pos = rx->pos, last = look_ahead(r), at;
	uint8_t *to = rx->copy, *end = to + SINGVGPU_RECORD_MAX;
	unsigned int n = 0;
	int units = 0;

	while (n < max && to < end) {
		at = pos <= last ? pos : last;
		asm("" : "+r" (at));
		units = take(r, pos, at, to, &rec[n]);
		if (units <= 0)
			break;
		if (unlikely(rec[n].op == SINGVGPU_OP_PAD)) {
			if (n)
				break;
			ring_consumed(r, pos + units);
			pos = rx->pos;
			last = look_ahead(r);
			continue;
		}
		pos += units;
		to += units * SINGVGPU_UNIT;
		if (unlikely(rec[n++].cpl)) {
			if (rx->seen < pos)
				rx->requested++;
			break;	/* reading the next line first would delay the answer */
		}
	}
	if (unlikely(!n))
		return units < 0 ? units : nothing(r);
	if (rx->seen < pos)
		rx->seen = pos;
	rx->next = pos;
	rx->streaming = !rec[n - 1].cpl;
	if (rx->streaming && pos >= rx->sure)
		rx->looked = __builtin_ia32_rdtsc();
	return n;
}

int ring_peek(struct ring *r, struct ring_record *rec)
{
	return peek(r, rec, 1);
}

int ring_peek_run(struct ring *r, struct ring_record *rec, unsigned int max)
{
	return peek(r, rec, max);
}

void ring_advance_past(struct ring *r, const struct ring_record *rec)
{
	ring_consumed(r, rec->seq - 1 + rec_units(rec->len));
}

void ring_advance(struct ring *r)
{
	ring_consumed(r, r->rx.next);
}

/* ------------------------------------------------------------------------------ waiting */

static bool is_called(struct ring *r)
{
	return r->rx.heeded && load_acquire(r->rx.heeded) != r->rx.heard;
}

static bool something(struct ring *r)
{
	return committed(r, r->rx.pos) || client_gone(r) || load(&r->rx.kicked) || is_called(r);
}

int ring_heed(struct ring *r, const uint32_t *word)
{
	if (r->ops->backend != RING_MEMFD)
		return -ENOTSUP;
	r->rx.heard = load_acquire(word);
	r->rx.heeded = word;
	return 0;
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

/* Sleeps on the doorbell, as the first row of the table in ring_i.h describes. */
static int sleep_on_bell(struct ring *r, int64_t *timeout)
{
	uint32_t bell = load_acquire(&r->ctl->doorbell);
	int64_t first = *timeout < 0 || *timeout > SETTLE_NS ? SETTLE_NS : *timeout, left = first;
	int rc = 0;

	ring_show_cpu(r);	/* even if this end never spins */
	r->rx.naps += r->rx.naps == UINT32_MAX ? 2 : 1;
	store(&r->ctl->naps, r->rx.naps);
	__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_SLEEPS, __ATOMIC_SEQ_CST);
	if (!(load(&r->rx.cons) & SINGVGPU_CONS_FENCE))
		ring_membarrier_global(false);
	if (!something(r)) {
		rc = r->ops->wait(r, &r->ctl->doorbell, bell, &left);
		if (*timeout >= 0)
			*timeout -= first - left;
		if (rc == -ETIMEDOUT && *timeout)
			rc = something(r) ? 0 : r->ops->wait(r, &r->ctl->doorbell, bell, timeout);
	}
	__atomic_fetch_and(&r->ctl->cons, ~SINGVGPU_CONS_SLEEPS, __ATOMIC_SEQ_CST);
	return rc;
}

static int waited(struct ring *r, int rc)
{
	if (rc == -EPIPE)
		store_release(&r->rx.peer_gone, 1);
	if (unlikely(load(&r->rx.kicked)) &&
	    __atomic_exchange_n(&r->rx.kicked, 0, __ATOMIC_ACQUIRE))
		return -EINTR;
	if (is_called(r)) {
		r->rx.heard = load_acquire(r->rx.heeded);
		return -EINTR;
	}
	if (committed(r, r->rx.pos))
		return 0;
	return client_gone(r) ? -EPIPE : rc;
}

int ring_wait(struct ring *r, int64_t timeout_ns)
{
	bool slept = false;
	int rc = 0;

	ring_publish(r);
	/* The fast path for a record that comes at once. */
	for (int i = 0; load(&r->rx.spin.ns) && i < 64 && !load(&r->rx.kicked); i++) {
		if (committed(r, r->rx.pos))
			return 0;
		cpu_relax();
	}
	while (!something(r) && !rc) {
		if (!spin(r)) {
			slept = true;
			rc = sleep_on_bell(r, &timeout_ns);
		}
	}
	ring_spin_adapt(&r->rx.spin, !slept);
	return waited(r, rc);
}

/* Spins by turns that it gives away, until another thread has taken one. */
static bool spin_yielding(struct ring *r)
{
	uint64_t start = ring_now(), last = start, now;

	if (!ring_spin_useful(r)) {
		sched_yield();
		return something(r);
	}
	do {
		sched_yield();
		if (something(r))
			return true;
		now = ring_now();
		if (now - last > TAKEN_NS)
			return false;
		last = now;
	} while (now - start < load(&r->rx.spin.ns));
	return false;
}

int ring_wait_yielding(struct ring *r, int64_t timeout_ns)
{
	bool helped = something(r);
	int rc = 0;

	ring_publish(r);
	if (!helped) {
		helped = spin_yielding(r);
		ring_spin_adapt(&r->rx.spin, helped);
	}
	while (!something(r) && !rc)
		rc = sleep_on_bell(r, &timeout_ns);
	return waited(r, rc);
}

bool ring_due(struct ring *r)
{
	ring_publish(r);
	return something(r);
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
	/*
	 * A locked instruction, before cpl_waiters is read; see sleep_for_answer. It is not on seq,
	 * since the client polls that line and would take it away after the stores above.
	 */
	__atomic_fetch_add(&r->rx.answered, 1, __ATOMIC_SEQ_CST);
	if (unlikely(load(&r->ctl->cpl_waiters)) && load(&c->waiting))
		r->ops->wake(r, low_half(&c->seq), 1);
	return 0;
}

uint64_t ring_unanswered(const struct ring *r)
{
	return r->rx.requested - load_acquire(&r->rx.answered);
}

void ring_reopen(struct ring *r, uint64_t requests)
{
	r->rx.requested += requests;
}

void ring_latch_error(struct ring *r, uint64_t seq, int32_t err)
{
	pthread_mutex_lock(&r->rx.lock);
	if (!r->rx.error) {
		r->rx.error = err;
		store(&r->ctl->error_seq, seq);
		store(&r->ctl->error, err);
		__atomic_fetch_or(&r->rx.cons, SINGVGPU_CONS_ERROR, __ATOMIC_RELAXED);
		/* Releases the two words above to ring_error. */
		__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_ERROR, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&r->rx.lock);
}

const char *ring_why(const struct ring *r)
{
	return r->why ? r->why : "";
}

int ring_peer_gone(struct ring *r)
{
	return client_gone(r);
}

int ring_watch_peer(struct ring *r, int pidfd)
{
	return r->client ? -EINVAL : r->ops->watch_peer(r, pidfd);
}

void ring_lose_peer(struct ring *r)
{
	if (r->ops->lose_peer)
		r->ops->lose_peer(r);
}

/* ------------------------------------------------------------------------------- freeze */

int ring_thaw(struct ring *r)
{
	int rc;

	if (!(load(&r->rx.cons) & SINGVGPU_CONS_GATE))
		return -EALREADY;
	__atomic_fetch_and(&r->rx.cons, ~SINGVGPU_CONS_GATE, __ATOMIC_RELAXED);
	rc = r->ops->gate(r, false);
	r->ops->wake(r, &r->ctl->cons, UINT32_MAX);
	return rc;
}

/* ring_freeze's `settled`: all requests are answered. */
static int all_answered(void *arg, struct ring *r, uint64_t unanswered)
{
	(void)arg;
	(void)r;
	if (unanswered)
		sched_yield();
	return !unanswered;
}

static int drain(struct ring *r, ring_serve serve, ring_settled settled, void *arg,
		 uint64_t deadline, bool forever)
{
	struct ring_record rec;
	int rc;

	for (;;) {
		rc = serve ? ring_peek(r, &rec) : client_gone(r) ? -EPIPE : 0;
		if (rc == 1) {
			rc = serve(arg, r, &rec);
		} else if (!rc) {
			rc = settled(arg, r, ring_unanswered(r));
			if (rc > 0)
				return 0;
		}
		if (rc < 0 && rc != -EAGAIN)
			return rc;
		if (!forever && ring_now() > deadline) {
			r->why = committed(r, r->rx.pos) ? "records are left in the ring" :
							   "requests are not answered yet";
			return -ETIMEDOUT;
		}
	}
}

int ring_freeze_when(struct ring *r, ring_serve serve, ring_settled settled, void *arg,
		     int64_t timeout_ns)
{
	uint64_t deadline = ring_now() + timeout_ns;
	int rc;

	if (load(&r->rx.cons) & SINGVGPU_CONS_GATE)
		return -EALREADY;
	rc = r->ops->gate(r, true);
	if (rc)
		return rc;
	__atomic_fetch_or(&r->rx.cons, SINGVGPU_CONS_GATE, __ATOMIC_RELAXED);
	/* From here on every producer sees the gate, or drain() sees its record (ring_i.h). */
	ring_membarrier_global(false);
	nanosleep(&(struct timespec){ .tv_nsec = SETTLE_NS }, NULL);
	rc = drain(r, serve, settled, arg, deadline, timeout_ns < 0);
	if (rc)
		ring_thaw(r);
	return rc;
}

int ring_freeze(struct ring *r, ring_serve serve, void *arg, int64_t timeout_ns)
{
	return ring_freeze_when(r, serve, all_answered, arg, timeout_ns);
}

/* Read the proxy's state from the object: a new one, or one filled by ring_restore. */
int ring_consume_init(struct ring *r)
{
	struct ring_rx *rx = &r->rx;

	rx->pos = load(&r->ctl->head);
	rx->next = rx->pos;
	rx->published = rx->pos;
	rx->seen = rx->pos;
	rx->ahead = r->geo.ring_units / 4 < AHEAD_UNITS ? r->geo.ring_units / 4 : AHEAD_UNITS;
	rx->batch = r->geo.ring_units / 8 < BATCH_UNITS ? r->geo.ring_units / 8 : BATCH_UNITS;
	ring_spin_init(&rx->spin, SPIN_MAX_NS);
	rx->cons = load(&r->ctl->cons) & ~SINGVGPU_CONS_SLEEPS;
	rx->naps = load(&r->ctl->naps);		/* continues, since a restored client has tx.rung */
	rx->error = load(&r->ctl->error);
	if (ring_membarrier_global(false)) {
		/* Without membarrier the producers must fence. */
		rx->cons |= SINGVGPU_CONS_FENCE;
		__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_FENCE, __ATOMIC_SEQ_CST);
	}
	return ring_log_init(r);
}
