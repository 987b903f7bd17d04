// SPDX-License-Identifier: Apache-2.0
/*
 * produce.c - the client's end: puts records into the ring and waits for answers
 *
 * Invariants. (1) A record exists as a whole from the store of its seq on, and the ring's records
 * are contiguous: there are no holes. (2) No thread waits for another one that does not run. Both
 * follow from struct ring_tx in ring_i.h.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ring_i.h"
#include "rseq_x86.h"

#define PREFETCH	(32 * SINGVGPU_UNIT)	/* over the ring's end: the arena, harmless */
#define SCAN_UNITS	256	/* at most; and half of the ring, to meet no unit of this lap */
#define NEVER		(~0ull)	/* no state of a channel; for tx.exact */
#define FIRST_BYTES	((uint32_t)(SINGVGPU_UNIT - sizeof(struct singvgpu_rec)))
#define STEAL_NS	100000	/* patience with an owner; doubled after each lost attempt */

/* The builtin prefetches for reading, unless the compiler may assume a newer x86. */
static inline void prefetch_for_write(const void *p)
{
	asm volatile("prefetchw %0" : : "m" (*(const char *)p));
}

static uint64_t state_word(const struct ring *r)
{
	typedef uint64_t __attribute__((may_alias)) both;

	/* cons and life are adjacent and aligned: one load. */
	return load((both *)&r->ctl->cons);
}

/* ---------------------------------------------------------------------------- ownership */

/* The thread's token: unique among living threads, cheap to get, a multiple of 32. */
static inline uint64_t thread_token(void)
{
	return (uint64_t)(uintptr_t)rseq_area();
}

static bool cas(uint64_t *p, uint64_t old, uint64_t new)
{
	return __atomic_compare_exchange_n(p, &old, new, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_RELAXED);
}

/* Takes the ownership of the ring from a thread, at whatever instruction that is. */
static bool steal(struct ring_tx *tx, uint64_t from, uint64_t me)
{
	store(&tx->shared, 1);
	if (!cas(&tx->owner, from, me))
		return false;
	/* It was granted at attach. Without it `from` may still be writing: end this channel. */
	if (ring_membarrier_rseq(false)) {
		store(&tx->broken, 1);
		store(&tx->expect, ~0ull);
	}
	return true;
}

static uint64_t own_slow(struct ring_tx *tx, uint64_t me, unsigned int lost)
{
	uint64_t start = 0, patience = (uint64_t)STEAL_NS << (lost < 10 ? lost : 10);
	unsigned int spins = 0;

	for (;;) {
		uint64_t own = load_acquire(&tx->owner), want;

		if ((own & ~BIASED) == me)
			return own;
		if (!own) {
			want = load(&tx->shared) ? me : me | BIASED;
			if (cas(&tx->owner, 0, want))
				return want;
			continue;
		}
		if (own & BIASED) {
			if (steal(tx, own, me))
				return me;
			continue;
		}
		cpu_relax();
		if (++spins % 64)
			continue;
		if (!start)
			start = ring_now();
		else if (ring_now() - start > patience && steal(tx, own, me))
			return me;
		sched_yield();
	}
}

/* Take the ownership; returns this thread's key. lost: attempts lost to other threads. */
static inline uint64_t own(struct ring_tx *tx, unsigned int lost)
{
	uint64_t key = thread_token() | BIASED;

	return likely(load(&tx->owner) == key) ? key : own_slow(tx, key & ~BIASED, lost);
}

static inline void disown(struct ring_tx *tx, uint64_t key)
{
	if (!(key & BIASED))
		rseq_release(tx, key);
}

/* --- without rseq: a lock, held with all signals blocked */

static long lock_futex(struct ring_tx *tx, int op, uint32_t val)
{
	return syscall(SYS_futex, &tx->lock, op | FUTEX_PRIVATE_FLAG, val, NULL, NULL, 0);
}

static void lock_signals(struct ring_tx *tx, uint64_t *saved)
{
	const uint64_t all = ~0ull;
	uint32_t was = 0;

	/* The C library's sigprocmask would not block the signal that cancels threads. */
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, saved, sizeof(all));
	if (__atomic_compare_exchange_n(&tx->lock, &was, 1, false, __ATOMIC_ACQUIRE,
					__ATOMIC_RELAXED))
		return;
	while (__atomic_exchange_n(&tx->lock, 2, __ATOMIC_ACQUIRE))
		lock_futex(tx, FUTEX_WAIT, 2);
}

static void unlock_signals(struct ring_tx *tx, const uint64_t *saved)
{
	if (__atomic_exchange_n(&tx->lock, 0, __ATOMIC_RELEASE) == 2)
		lock_futex(tx, FUTEX_WAKE, 1);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, saved, NULL, sizeof(*saved));
}

static void locked_commit(struct ring_tx *tx, const struct attempt *t)
{
	uint8_t *to = t->unit;

	tx->pos = t->seq - 1;
	tx->clean = t->clean;
	tx->next = t->end;
	memcpy(to + 8, &t->header, 8);
	memcpy(to + 16, t->first, sizeof(t->first));
	if (t->alen)
		memcpy(to + SINGVGPU_UNIT, t->a, t->alen);
	if (t->blen)
		memcpy(to + SINGVGPU_UNIT + t->alen, t->b, t->blen);
	store(&((struct singvgpu_rec *)t->next)->seq, 0);
	*t->stale = 0;
	/* Pairs with the acquire in ring_peek. */
	store_release(&((struct singvgpu_rec *)to)->seq, t->seq);
}

/* -------------------------------------------------------------------------- submission */

/* If membarrier is refused here or to the consumer, every submission fences, and none is fast. */
static void check_fence(struct ring *r, uint64_t state)
{
	if (!ring_membarrier_global(true) && !(state & SINGVGPU_CONS_FENCE))
		return;
	store(&r->tx.fence, 1);
	store(&r->tx.exact, NEVER);
	store(&r->tx.shared, 1);
}

/* What a submission waits for. */
enum patience {
	WAIT,			/* for the gate, and for room */
	PASS_GATE,		/* for room alone */
	GIVE_UP,		/* for nothing: -EAGAIN */
};

/* Handle a changed state word: gate, new generation, the proxy's end, a latched error. */
static int state_changed(struct ring *r, enum patience how)
{
	uint64_t w = state_word(r), changed;
	int64_t forever = -1;
	int rc;

	if (load(&r->tx.broken))
		return -ENOSYS;
	while (w & SINGVGPU_CONS_GATE && how != PASS_GATE) {
		if (how == GIVE_UP)
			return -EAGAIN;
		rc = r->ops->wait(r, &r->ctl->cons, (uint32_t)w, &forever);
		if (rc && rc != -EINTR)
			return rc;
		w = state_word(r);
	}
	if (w & (SINGVGPU_CONS_CLOSED | (uint64_t)SINGVGPU_LIFE_DIED << 32))
		return -EPIPE;
	w &= STATE_MASK & ~(uint64_t)SINGVGPU_CONS_GATE;
	changed = w ^ load(&r->tx.expect);
	if ((uint32_t)changed >> SINGVGPU_CONS_GEN_SHIFT)	/* restored: registration lost */
		check_fence(r, w);
	store(&r->tx.expect, w);
	return 0;
}

/* Let the fast path pass as long as the state is this, which the slow path has checked. */
static inline void pass_as(struct ring *r, uint64_t state)
{
	uint64_t exact = load(&r->tx.fence) ? NEVER : state & ~(uint64_t)SINGVGPU_CONS_SLEEPS;

	if (load(&r->tx.exact) != exact)
		store(&r->tx.exact, exact);
}

/*
 * Whether there is room at pos for a record of units and a unit behind it. pos may be out of
 * date, even lie before head; then the attempt that uses it fails.
 */
static inline bool has_room(uint64_t pos, uint32_t units, uint64_t limit)
{
	return (int64_t)(pos + units - limit) <= 0;
}

static inline uint64_t limit_of(const struct ring *r, uint64_t head)
{
	return head + r->geo.ring_units - 1;
}

/* Called without ownership. 0: there may be room for a record of units at pos now. */
static int wait_for_room(struct ring *r, uint64_t pos, uint32_t units)
{
	uint64_t start = ring_now(), limit = load(&r->tx.spin.ns), head;
	int64_t forever = -1;
	unsigned int i;
	int rc = 0;

#define ROOM() has_room(pos, units, limit_of(r, head = load_acquire(&r->ctl->head)))
	while (ring_spin_useful(r) && ring_now() - start < limit)
		for (i = 0; i < 32; i++) {
			if (ROOM())
				return 0;
			cpu_relax();
		}
	while (!ROOM() && !rc) {
		/* A locked instruction: announced before head is read again; see ring_publish. */
		__atomic_fetch_add(&r->ctl->space_waiters, 1, __ATOMIC_SEQ_CST);
		if (!ROOM())
			rc = r->ops->wait(r, low_half(&r->ctl->head), (uint32_t)head, &forever);
		__atomic_fetch_sub(&r->ctl->space_waiters, 1, __ATOMIC_SEQ_CST);
		if (rc == -EINTR)
			rc = 0;
	}
#undef ROOM
	return rc;
}

/* Rings the doorbell. The consumer clears CONS_SLEEPS itself when it runs again. */
static int ring_bell(struct ring *r)
{
	uint32_t nap = load(&r->ctl->naps);

	ring_show_cpu(r);
	__atomic_fetch_add(&r->ctl->doorbell, 1, __ATOMIC_SEQ_CST);
	r->ops->wake(r, &r->ctl->doorbell, 1);
	/*
	 * Only after the wake: other threads rely on rung, and this one may be preempted or killed.
	 */
	store(&r->tx.rung, nap);
	return 0;
}

/*
 * After a commit: whether the doorbell must be rung. A new generation is noticed here, too, and
 * leads to a fence, for a thread that was dumped after it had read the state: before 6.3 the
 * kernel does not report the registration, so CRIU cannot register the restored process for the
 * consumer's membarrier.
 */
static inline bool consumer_sleeps(struct ring *r)
{
	uint32_t nap;

	atomic_signal_fence(memory_order_seq_cst);
	if (likely(load(&r->ctl->cons) == (uint32_t)load(&r->tx.expect)) && !load(&r->tx.fence))
		return false;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!(load(&r->ctl->cons) & SINGVGPU_CONS_SLEEPS))
		return false;
	nap = load(&r->ctl->naps);
	return !nap || nap != load(&r->tx.rung);
}

/* The header's second word, as in memory. */
static inline uint64_t header(uint16_t op, uint16_t cpl, uint32_t len)
{
	return op | (uint64_t)cpl << 16 | (uint64_t)len << 32;
}

static inline uint8_t *stale_at(const struct ring *r, uint64_t pos)
{
	return r->stale + (pos & r->mask);
}

static inline bool was_committed(const struct ring *r, uint64_t pos)
{
	return load(&unit_at(r, pos)->seq) == pos + 1;
}

/* A position up to which, from pos on, no unit is stale; at most SCAN_UNITS ahead. */
static uint64_t clean_until(const struct ring *r, uint64_t pos)
{
	typedef const uint64_t __attribute__((may_alias)) eight;
	uint64_t end = r->geo.ring_units / 2;

	end = pos + (end < SCAN_UNITS ? end : SCAN_UNITS);
	while (pos < end)
		if (pos % 8 == 0 && !*(eight *)stale_at(r, pos))
			pos += 8;
		else if (!*stale_at(r, pos))
			pos++;
		else
			break;
	return pos;
}

/* Up to where ring_post may submit after a record of one unit; 0: it may not. */
static inline uint64_t grant(const struct ring *r, const struct attempt *t)
{
	uint64_t end = ((t->seq - 1) | r->mask) + 1, limit = load(&r->tx.limit);

	if (!(t->key & BIASED))
		return 0;
	end = end < limit ? end : limit;
	end = end < t->clean - 1 ? end : t->clean - 1;
	return end > t->end ? end : 0;
}

/*
 * Tries to commit t's record, of `units`, or the padding that must precede it; the owner calls.
 * 1 committed, 0 call again, -ENOSPC no room behind *pos.
 */
static inline int attempt(struct ring *r, struct attempt *t, uint32_t units, uint64_t *pos,
			  uint32_t *want)
{
	uint32_t left, n = units;
	uint64_t end;
	struct attempt pad;
	bool behind;

	t->old = load(&r->tx.next);
	/* next is read first: the sequence notices what a signal handler changes after that. */
	atomic_signal_fence(memory_order_seq_cst);
	end = load(&r->tx.end);
	*pos = end ? t->old - 1 : load(&r->tx.pos);
	behind = was_committed(r, *pos);
	if (likely(behind))
		*pos = t->old;
	left = r->geo.ring_units - (*pos & r->mask);
	if (unlikely(n > left))
		n = left;
	if (unlikely(!has_room(*pos, n, load(&r->tx.limit)))) {
		*want = n;
		/* Pairs with the release in ring_publish: those units have been read. */
		store(&r->tx.limit, limit_of(r, load_acquire(&r->ctl->head)));
		if (!has_room(*pos, n, load(&r->tx.limit)))
			return -ENOSPC;
	}
	if (unlikely(n != units)) {
		memset(&pad, 0, sizeof(pad));
		pad.key = t->key;
		pad.old = t->old;
		pad.header = header(SINGVGPU_OP_PAD, 0, left * SINGVGPU_UNIT -
					sizeof(struct singvgpu_rec));
		t = &pad;
	}
	t->seq = *pos + 1;
	t->end = *pos + n;
	t->unit = unit_at(r, *pos);
	t->next = unit_at(r, t->end);
	t->stale = stale_at(r, t->end);
	/* Before the scan, which may reach these units again; a loop where they are few. */
	if (n > 9)
		memset(stale_at(r, *pos + 1), 1, n - 1);
	else
		for (uint64_t at = *pos + 1; at < t->end; at++)
			*(volatile uint8_t *)stale_at(r, at) = 1;
	t->clean = load(&r->tx.clean);
	/*
	 * This record cleans the unit behind it. A longer attempt may have left payload further on.
	 */
	if (t->clean <= t->end + 1 || !behind)
		t->clean = clean_until(r, t->end + 1);
	t->grant = n == 1 && n == units && r->tx.rseq ? grant(r, t) : 0;
	prefetch_for_write((uint8_t *)t->unit + PREFETCH);
	if (likely(r->tx.rseq)) {
		if (rseq_commit(&r->tx, t))
			return 0;
	} else {
		locked_commit(&r->tx, t);
	}
	return n == units;
}

/*
 * Commits a record: takes the ownership, tries, waits for room. On success t->seq is the record's.
 * With PASS_GATE and a closed gate tx.exact stays, since the gate is closed for other threads.
 */
static int commit(struct ring *r, struct attempt *t, uint32_t units, enum patience how)
{
	uint64_t gate = how == PASS_GATE ? SINGVGPU_CONS_GATE : 0;
	unsigned int lost = 0;
	uint64_t signals = 0, pos;
	uint64_t state;
	uint32_t want = 0;
	int rc;

	for (;;) {
		state = state_word(r);
		if (unlikely((state & STATE_MASK & ~gate) != load(&r->tx.expect))) {
			rc = state_changed(r, how);
			if (rc)
				return rc;
			continue;
		}
		if (likely(!(state & SINGVGPU_CONS_GATE)))
			pass_as(r, state);
		if (likely(r->tx.rseq)) {
			t->key = own(&r->tx, lost);
			rc = attempt(r, t, units, &pos, &want);
			disown(&r->tx, t->key);
			lost += !rc;
		} else {
			lock_signals(&r->tx, &signals);
			rc = attempt(r, t, units, &pos, &want);
			unlock_signals(&r->tx, &signals);
		}
		if (likely(rc == 1))
			return 0;
		if (rc == -ENOSPC) {
			if (how == GIVE_UP)
				return -EAGAIN;
			rc = wait_for_room(r, pos, want);
			if (rc)
				return rc;
		}
	}
}

/*
 * Loads in halves: the caller has just stored these bytes, mostly in words of 8, and the processor
 * forwards a store only to a load that lies within it. The compiler would join two plain loads.
 */
static inline v16 load16(const void *p)
{
	const struct half {
		char byte[8];
	} *h = p;
	v16 v;

	asm("movq %1, %0; movhps %2, %0" : "=&x" (v) : "m" (h[0]), "m" (h[1]));
	return v;
}

/* Copies n <= 48 bytes and fills up with zeros, so that a record never has stale stack content. */
static inline void short_first(v16 first[3], const uint8_t *p, uint32_t n)
{
	memset(first, 0, FIRST_BYTES);
	if (n >= 16)
		first[0] = load16(p);
	if (n >= 32)
		first[1] = load16(p + 16);
	if (n >= FIRST_BYTES)
		first[2] = load16(p + 32);
	if (n % 16)
		memcpy(first + n / 16, p + n / 16 * 16, n % 16);
}

/* Copies the first 48 bytes of a ‖ b to t->first, and points t->a, t->b to the rest. */
static inline void gather(struct attempt *t, const uint8_t *a, uint32_t alen, const uint8_t *b,
			  uint32_t blen)
{
	uint8_t both[FIRST_BYTES];
	uint32_t n;

	t->a = a;
	t->alen = 0;
	t->blen = blen;
	t->b = b;
	if (likely(alen >= FIRST_BYTES)) {
		t->first[0] = load16(a);
		t->first[1] = load16(a + 16);
		t->first[2] = load16(a + 32);
		t->a = a + FIRST_BYTES;
		t->alen = alen - FIRST_BYTES;
	} else if (!blen) {
		short_first(t->first, a, alen);
	} else {
		n = blen < FIRST_BYTES - alen ? blen : FIRST_BYTES - alen;
		if (alen)
			memcpy(both, a, alen);
		memcpy(both + alen, b, n);
		short_first(t->first, both, alen + n);
		t->b = b + n;
		t->blen = blen - n;
	}
}

static __attribute__((noinline)) int submit_slow(struct ring *r, uint64_t head, const void *a,
						 uint32_t alen, const void *b, uint32_t blen,
						 enum patience how, uint64_t *seq)
{
	struct attempt t;	/* not cleared: that would double the time */
	int rc;

	if (unlikely(!r->ctl))
		return -ECHILD;
	if (unlikely((uint16_t)head == SINGVGPU_OP_PAD))
		return -EINVAL;
	if (unlikely((uint64_t)alen + blen > r->payload_max))
		return -EMSGSIZE;
	t.header = head;
	gather(&t, a, alen, b, blen);
	rc = commit(r, &t, rec_units(alen + blen), how);
	*seq = t.seq;
	return rc;
}

static inline __attribute__((always_inline)) bool post(struct ring *r, uint64_t head,
						      const v16 first[3], uint64_t *seq)
{
	return ring_post_unit(r, head, (ring_pair)first[0], (ring_pair)first[1],
			      (ring_pair)first[2], seq);
}

static inline __attribute__((always_inline)) bool post_short(struct ring *r, uint16_t op,
							    uint64_t head, const void *a,
							    uint32_t alen, uint32_t blen,
							    uint64_t *seq)
{
	v16 first[3];

	if (alen > FIRST_BYTES || blen || op == SINGVGPU_OP_PAD)
		return false;
	short_first(first, a, alen);
	return likely(post(r, head, first, seq));
}

static __attribute__((noinline)) int submit(struct ring *r, uint16_t op, uint16_t cpl,
					    const void *a, uint32_t alen, const void *b,
					    uint32_t blen, uint64_t *seq)
{
	uint64_t head = header(op, cpl, alen + blen);

	if (post_short(r, op, head, a, alen, blen, seq))
		return 0;
	return submit_slow(r, head, a, alen, b, blen, WAIT, seq);
}

/* post_short for a payload of exactly one unit, the most common one, without other cases. */
static inline __attribute__((always_inline)) bool
post_full(struct ring *r, uint16_t op, uint16_t cpl, const void *a, uint32_t alen, uint32_t blen,
	  uint64_t *seq)
{
	if (unlikely(alen != FIRST_BYTES || blen || op == SINGVGPU_OP_PAD))
		return false;
	return likely(post(r, header(op, cpl, FIRST_BYTES),
			   (const v16[3]){ load16(a), load16(a + 16), load16(a + 32) }, seq));
}

static __attribute__((noinline)) int submit_async(struct ring *r, uint16_t op, const void *a,
						  uint32_t alen, const void *b, uint32_t blen)
{
	uint64_t seq;
	int rc;

	rc = submit(r, op, 0, a, alen, b, blen, &seq);
	if (!rc && consumer_sleeps(r))
		ring_bell(r);
	return rc;
}

int ring_post_wake(struct ring *r)
{
	return consumer_sleeps(r) ? ring_bell(r) : 0;
}

int ring_post_slow(struct ring *r, uint16_t op, uint32_t len, const uint64_t w[6])
{
	if (unlikely(len > RING_POST_MAX))
		return -EMSGSIZE;
	return submit_async(r, op, w, len, NULL, 0);
}

int ring_submit(struct ring *r, uint16_t op, const void *a, uint32_t alen, const void *b,
		uint32_t blen)
{
	uint64_t seq;

	if (post_full(r, op, 0, a, alen, blen, &seq))
		return likely(ring_post_quiet(r)) ? 0 : ring_post_wake(r);
	return submit_async(r, op, a, alen, b, blen);
}

int ring_try_submit(struct ring *r, uint16_t op, const void *a, uint32_t alen, const void *b,
		    uint32_t blen)
{
	uint64_t head = header(op, 0, alen + blen), seq;
	int rc;

	if (post_short(r, op, head, a, alen, blen, &seq))
		return likely(ring_post_quiet(r)) ? 0 : ring_post_wake(r);
	rc = submit_slow(r, head, a, alen, b, blen, GIVE_UP, &seq);
	if (!rc && consumer_sleeps(r))
		ring_bell(r);
	return rc;
}

/* As attempt() computes it: `next` counts an attempt, too, that has been given up and will be overwritten. */
uint64_t ring_position(const struct ring *r)
{
	uint64_t next = load(&r->tx.next), pos;

	if (unlikely(!r->ctl))
		return 0;
	atomic_signal_fence(memory_order_seq_cst);
	pos = load(&r->tx.end) ? next - 1 : load(&r->tx.pos);
	return likely(was_committed(r, pos)) ? next : pos;
}

int ring_wait_room(struct ring *r, uint32_t len)
{
	uint64_t pos;
	uint32_t n, left;
	int rc;

	if (unlikely(!r->ctl))
		return -ECHILD;
	if (unlikely(len > r->payload_max))
		return -EMSGSIZE;
	rc = state_changed(r, WAIT);
	if (rc)
		return rc;
	pos = ring_position(r);	/* it may be out of date when the caller tries */
	n = rec_units(len);
	left = r->geo.ring_units - (pos & r->mask);
	return wait_for_room(r, pos, n < left ? n : left);
}

int ring_proxy_gone(const struct ring *r)
{
	return r->ctl && state_word(r) & (SINGVGPU_CONS_CLOSED | (uint64_t)SINGVGPU_LIFE_DIED << 32);
}

uint32_t ring_payload_max(const struct ring *r)
{
	return r->payload_max;
}

/* ----------------------------------------------------------------------------- answers */

static inline bool is_free(const struct ring *r, uint32_t slot, uint64_t by)
{
	return likely(!by) || (by != SLOT_LENT && load_acquire(&r->cpl[slot].seq) == by);
}

static bool borrow(struct ring *r, uint32_t slot)
{
	uint64_t by = load(&r->slot[slot]);

	return is_free(r, slot, by) && cas(&r->slot[slot], by, SLOT_LENT);
}

/*
 * Borrow this thread's last slot, or another. With rseq slot 0 belongs to the thread with the bias.
 */
static __attribute__((noinline)) int borrow_any(struct ring *r)
{
	static __thread uint32_t last __attribute__((tls_model("initial-exec")));
	uint32_t n = r->geo.cpl_slots, first = n > 1 && r->tx.rseq, i, slot = last;

	for (i = first; i < n; i++, slot++) {
		if (slot >= n || slot < first)
			slot = first;
		if (likely(borrow(r, slot))) {
			last = slot;
			return slot;
		}
	}
	return -EBUSY;
}

/*
 * At most one thread ever has the bias. Slot 0 is its own, so borrowing it needs no locked
 * instruction. A signal handler that borrows it between the load and the store has returned it
 * before the store.
 */
static inline int borrow_slot(struct ring *r)
{
	uint64_t by = load(&r->slot[0]);

	if (unlikely(load(&r->tx.owner) != (thread_token() | BIASED) || !is_free(r, 0, by) ||
		     r->geo.cpl_slots == 1))
		return borrow_any(r);
	store(&r->slot[0], SLOT_LENT);
	return 0;
}

static void return_slot(struct ring *r, uint16_t slot)
{
	store_release(&r->slot[slot], 0);
}

static inline __attribute__((always_inline)) int request(struct ring *r, struct ring_ticket *t,
							 uint16_t op, const void *a, uint32_t alen,
							 const void *b, uint32_t blen, bool anyway)
{
	int slot, rc;

	if (unlikely(!r->ctl))
		return -ECHILD;
	slot = borrow_slot(r);
	if (slot < 0)
		return slot;
	if (load(&r->cpl[slot].waiting))
		store(&r->cpl[slot].waiting, 0);
	t->slot = slot;
	if (!anyway && post_full(r, op, slot + 1, a, alen, blen, &t->seq))
		return 0;
	rc = anyway ? submit_slow(r, header(op, slot + 1, alen + blen), a, alen, b, blen, PASS_GATE,
				  &t->seq) :
		      submit(r, op, slot + 1, a, alen, b, blen, &t->seq);
	if (rc)
		return_slot(r, slot);
	return rc;
}

int ring_request(struct ring *r, struct ring_ticket *t, uint16_t op, const void *a, uint32_t alen,
		 const void *b, uint32_t blen)
{
	int rc = request(r, t, op, a, alen, b, blen, false);

	if (!rc && consumer_sleeps(r))
		ring_bell(r);
	return rc;
}

int ring_request_anyway(struct ring *r, struct ring_ticket *t, uint16_t op, const void *a,
			uint32_t alen, const void *b, uint32_t blen)
{
	int rc = request(r, t, op, a, alen, b, blen, true);

	if (!rc && consumer_sleeps(r))
		ring_bell(r);
	return rc;
}

static inline bool answered_soon(const struct singvgpu_cpl *c, uint64_t seq)
{
	for (unsigned int i = 0; i < 64; i++) {
		if (load_acquire(&c->seq) == seq)
			return true;
		cpu_relax();
	}
	return false;
}

static __attribute__((noinline)) bool spin_for_answer(struct ring *r, const struct singvgpu_cpl *c,
						      uint64_t seq)
{
	uint64_t start = 0;

	if (!load(&r->tx.spin.ns))
		return false;
	do {
		if (answered_soon(c, seq))
			return true;
		if (!start) {
			start = ring_now();
			if (!ring_spin_useful(r))
				return false;
		}
	} while (ring_now() - start < load(&r->tx.spin.ns));
	return false;
}

/* bell: the consumer sleeps; the system call that waits wakes it, too. */
static int sleep_for_answer(struct ring *r, struct singvgpu_cpl *c, uint64_t seq, bool bell,
			    int64_t timeout)
{
	uint64_t was;
	int rc = 0;

	ring_show_cpu(r);
	store(&c->waiting, 1);
	/* A locked instruction: announced before seq is read again; see ring_complete. */
	__atomic_fetch_add(&r->ctl->cpl_waiters, 1, __ATOMIC_SEQ_CST);
	while ((was = load_acquire(&c->seq)) != seq) {
		if (bell) {
			__atomic_fetch_add(&r->ctl->doorbell, 1, __ATOMIC_SEQ_CST);
			rc = r->ops->wake_wait(r, &r->ctl->doorbell, low_half(&c->seq),
					       (uint32_t)was, &timeout);
			bell = false;
		} else {
			rc = r->ops->wait(r, low_half(&c->seq), (uint32_t)was, &timeout);
		}
		if (rc && rc != -EINTR)
			break;
		rc = 0;
	}
	if (bell)	/* answered already; but a consumer that sleeps now must see our record */
		ring_bell(r);
	if (rc && load_acquire(&c->seq) == seq)
		rc = 0;
	__atomic_fetch_sub(&r->ctl->cpl_waiters, 1, __ATOMIC_SEQ_CST);
	store(&c->waiting, 0);
	return rc;
}

static int spin_or_sleep(struct ring *r, const struct ring_ticket *t, bool bell, int64_t timeout_ns)
{
	struct singvgpu_cpl *c = &r->cpl[t->slot];
	bool spun = !bell && spin_for_answer(r, c, t->seq);
	int rc = spun ? 0 : sleep_for_answer(r, c, t->seq, bell, timeout_ns);

	ring_spin_adapt(&r->tx.spin, spun);
	return rc;
}

static __attribute__((noinline)) int await_slow(struct ring *r, struct ring_ticket *t, bool bell,
						int64_t timeout_ns)
{
	int rc = spin_or_sleep(r, t, bell, timeout_ns);

	if (rc)
		store_release(&r->slot[t->slot], t->seq);
	return rc;
}

static inline __attribute__((always_inline)) int await(struct ring *r, struct ring_ticket *t,
						       bool bell, int32_t *status, void *data,
						       uint32_t cap, uint32_t *len,
						       int64_t timeout_ns)
{
	struct singvgpu_cpl *c = &r->cpl[t->slot];
	uint32_t n;
	int rc;

	if (unlikely(bell || !load(&r->tx.spin.ns) || !answered_soon(c, t->seq))) {
		rc = await_slow(r, t, bell, timeout_ns);
		if (rc)
			return rc;
	}
	if (status)
		*status = c->status;
	n = c->len < SINGVGPU_CPL_DATA ? c->len : SINGVGPU_CPL_DATA;
	n = n < cap ? n : cap;
	if (data)
		memcpy(data, c->data, n);
	if (len)
		*len = n;
	return_slot(r, t->slot);
	return 0;
}

int ring_await(struct ring *r, struct ring_ticket *t, int32_t *status, void *data, uint32_t cap,
	       uint32_t *len, int64_t timeout_ns)
{
	if (unlikely(!r->ctl))
		return -ECHILD;
	return await(r, t, false, status, data, cap, len, timeout_ns);
}

int ring_expect(struct ring *r, const struct ring_ticket *t, int64_t timeout_ns)
{
	if (unlikely(!r->ctl))
		return -ECHILD;
	return spin_or_sleep(r, t, false, timeout_ns);
}

/* The proxy may answer a record before the ring's head has passed it. */
bool ring_taken(const struct ring *r, const struct ring_ticket *t)
{
	return !r->ctl || load_acquire(&r->ctl->head) >= t->seq ||
	       load_acquire(&r->cpl[t->slot].seq) == t->seq;
}

int ring_call(struct ring *r, uint16_t op, const void *a, uint32_t alen, const void *b,
	      uint32_t blen, int32_t *status, void *data, uint32_t cap, uint32_t *len)
{
	struct ring_ticket t;
	int rc;

	rc = request(r, &t, op, a, alen, b, blen, false);
	if (rc)
		return rc;
	return await(r, &t, consumer_sleeps(r), status, data, cap, len, -1);
}

int32_t ring_error(struct ring *r, uint64_t *seq)
{
	/* Pairs with the release in ring_latch_error. */
	if (!r->ctl || !(load_acquire(&r->ctl->cons) & SINGVGPU_CONS_ERROR))
		return 0;
	if (seq)
		*seq = load(&r->ctl->error_seq);
	return load(&r->ctl->error);
}

/*
 * A client that follows another one continues behind the last record that was committed. -EPROTO:
 * the ring has no valid end.
 */
static int find_end(struct ring *r)
{
	uint64_t pos = load_acquire(&r->ctl->head), end = pos + r->geo.ring_units;
	struct singvgpu_rec *h;

	r->tx.limit = limit_of(r, pos);
	while ((h = unit_at(r, pos))->seq == pos + 1) {
		pos += rec_units(h->len);
		if (pos >= end)
			return -EPROTO;
	}
	r->tx.pos = pos;
	r->tx.next = pos;
	return 0;
}

int ring_produce_init(struct ring *r)
{
	struct ring_tx *tx = &r->tx;

	/* The first submission handles these bits if they are set. */
	tx->expect = state_word(r) & (uint32_t)~(SINGVGPU_CONS_SLEEPS | SINGVGPU_CONS_GATE |
						 SINGVGPU_CONS_CLOSED);
	ring_spin_init(&tx->spin, SPIN_MAX_NS);
	check_fence(r, state_word(r));
#ifndef __SANITIZE_THREAD__	/* TSan cannot see into assembly */
	tx->rseq = __rseq_size && (int32_t)load(&rseq_area()->cpu_id) >= 0 &&
		   !ring_membarrier_rseq(true);
#endif
	return find_end(r);
}
