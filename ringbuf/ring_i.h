/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_i.h - the state of one end of a channel, and the interface of backends
 *
 * Who waits for whom, and on which word (all in struct singvgpu_ctl or _cpl):
 *
 *   consumer for a record     doorbell   rung by a producer that sees CONS_SLEEPS after its commit
 *   producer for room         head       woken by the consumer when space_waiters != 0
 *   producer at the gate      cons       woken by ring_thaw
 *   client for an answer      cpl.seq    woken by ring_complete when cpl_waiters, cpl.waiting != 0
 *
 * Each is the store-buffering pattern: the sleeper announces its sleep, then checks the word again;
 * the waker stores, then checks for an announcement. In the three lower rows both sides have a full
 * barrier (a locked instruction). In the first row the waker is the hot path and has none: the
 * consumer, before it sleeps, makes every CPU that runs the client execute one (membarrier
 * GLOBAL_EXPEDITED, for which the client has registered; tx.fence where that is refused).
 *
 * Linux leaves out a processor on which a thread of the client has ended, as long as only other threads of the client
 * run there: exit_mm() clears the run queue's membarrier_state, and membarrier_switch_mm() leaves it alone where the mm
 * stays the same (seen on 6.18). What such a thread has stored is seen when it leaves its store buffer, so after
 * SETTLE_NS the consumer looks once more.
 *
 * A woken consumer clears CONS_SLEEPS some time later. A producer that still sees it may skip the
 * doorbell if a complete doorbell write and wake followed the consumer's latest sleep announcement:
 * ctl->naps counts the announcements, and tx.rung has the count at the latest complete ring.
 */
#ifndef RING_I_H
#define RING_I_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ring.h"
#include "ring_post.h"

#define SPIN_MAX_NS	10000
#define SPIN_MIN_NS	500
#define SETTLE_NS	200000	/* any store has left its store buffer */
#define LINE		64

#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)

/* Shared memory has plain types in the uapi header, and is read and written by these alone. */
#define load(p)			__atomic_load_n(p, __ATOMIC_RELAXED)
#define load_acquire(p)		__atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store(p, v)		__atomic_store_n(p, v, __ATOMIC_RELAXED)
#define store_release(p, v)	__atomic_store_n(p, v, __ATOMIC_RELEASE)
#define swap(p, v)		__atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)

/*
 * A backend. A word is 32 bits in the control page or a completion slot. Timeouts are relative;
 * an interruption leaves the rest in *ns, and < 0 is for ever.
 * wait: 0 the word differs from expect or a wake came; -ETIMEDOUT, -EINTR, -EPIPE the peer died.
 */
struct ring_ops {
	enum ring_backend backend;
	int (*wait)(struct ring *r, uint32_t *word, uint32_t expect, int64_t *ns);
	void (*wake)(struct ring *r, uint32_t *word, uint32_t nr);
	int (*wake_wait)(struct ring *r, uint32_t *wake, uint32_t *word, uint32_t expect,
			 int64_t *ns);
	int (*gate)(struct ring *r, bool closed);
	int (*commit)(struct ring *r, size_t off, size_t len);
	int (*decommit)(struct ring *r, size_t off, size_t len);
	int (*client_fd)(struct ring *r);
	int (*watch_peer)(struct ring *r, int pidfd);
	void (*lose_peer)(struct ring *r);	/* or NULL */
	uint32_t (*generation)(const struct ring *r);
	void (*hang_up)(struct ring *r);	/* good-bye; the mapping is still there */
};

/* How long to spin before a sleep, in ns: up to max, longer after it has helped, else shorter. */
struct spin {
	uint32_t ns;
	uint32_t max;
};

/*
 * Producers' state, private to the client process, shared by its threads.
 *
 * Submissions are serialised by `owner`: the token of the thread that may write to the ring.
 * As long as only one thread has ever submitted, it keeps the ownership between submissions (bit 0,
 * BIASED) and needs no locked instruction. The writes to the ring are a restartable sequence
 * (rseq(2)): a signal, a preemption or a membarrier aborts it, and it starts over by reading
 * `owner`. So ownership can be taken from a thread at any instruction, whether the thread is
 * interrupted by the handler that now submits, preempted, cancelled or dead: change `owner`,
 * then membarrier(PRIVATE_EXPEDITED_RSEQ). No thread ever waits for one that does not run.
 *
 * pos and next are the positions before and behind the latest attempt's record, stored in this
 * order; the ring tells whether that record was committed:
 *
 *   unit(pos).seq == pos + 1 ? the next record goes to next : it goes to pos
 *
 * The unit behind a record must not look committed, see <linux/singvgpu.h>. Only payload of an
 * earlier, longer record could look so; stale[unit] marks units that may hold such payload. The
 * byte is set before payload is written there, and cleared together with the unit's seq, in the
 * sequence. From next up to `clean` no unit is stale.
 *
 * ring_post (ring_post.h), which is inlined into callers, uses `end` instead: up to there an
 * owner with the bias may submit records of one unit without further checks, since there is room,
 * no unit is stale, and the ring's end is not reached. While end is not 0 the latest attempt was
 * one unit at next - 1, and pos is not updated. The attempt of a longer record clears end; the
 * commit of a short one sets it (struct attempt, grant).
 *
 * Without rseq (fallback) `owner` is not used; `lock` is, with all signals blocked.
 */
#define BIASED 1ull	/* as ring_post.h's assembly knows */

struct ring_tx {
	uint64_t owner;
	uint64_t next;		/* owner */
	uint64_t end;		/* owner */
	uint64_t exact;		/* cons | life << 32 with which ring_post may pass; any thread */
	uint64_t expect;	/* cons | life << 32 as last handled, under STATE_MASK */
	uint64_t pos;		/* owner */
	uint64_t clean;		/* owner */
	uint64_t limit;		/* where a record must end, by head as last read; owner */
	uint32_t shared;	/* a second thread has submitted: no more bias */
	uint32_t fence;		/* membarrier is refused: commit, then mfence; never BIASED */
	uint32_t rseq;		/* restartable sequences work here; set once */
	uint32_t rung;		/* the latest value of naps for which the doorbell was rung */
	uint32_t broken;	/* membarrier, granted at attach, is refused: no more records */
	uint32_t lock;		/* fallback: futex, 0 free, 1 held, 2 held and waited for */
	struct spin spin;	/* any thread */
};

#define STATE_MASK	((uint64_t)(uint32_t)~SINGVGPU_CONS_SLEEPS | \
			 (uint64_t)SINGVGPU_LIFE_DIED << 32)

/* Consumer's state, private to the proxy, which never reads it back from shared memory. */
struct ring_rx {
	uint64_t pos;		/* next record */
	uint64_t next;		/* behind the records peeked last, or pos */
	uint64_t published;	/* ctl->head */
	uint32_t batch;		/* units after which head is published */
	uint32_t ahead;		/* units; see look_ahead */
	bool streaming;		/* the last record wanted no answer */
	uint64_t sure;		/* records before it seemed committed to look_ahead */
	uint64_t looked;	/* TSC when the last record of a stream was found */
	uint64_t seen;		/* behind the furthest record peeked */
	struct spin spin;
	uint32_t kicked;
	const uint32_t *heeded;	/* ring_heed: another word that ends a wait, or NULL */
	uint32_t heard;		/* its last value */
	uint32_t cons;		/* the bits of ctl->cons, without SLEEPS; atomic */
	uint32_t naps;		/* ctl->naps */
	uint64_t requested;	/* records peeked that want an answer */
	uint64_t answered;	/* atomic */
	uint64_t log_len;	/* bytes in the current half */
	uint32_t log_half;
	int32_t error;		/* lock */
	uint32_t peer_gone;
	pthread_mutex_t lock;	/* ring_latch_error */
	uint8_t *copy;		/* RECORD_MAX bytes: payloads of the records being served */
};

/*
 * The state of each completion slot, private to the client: 0 free, SLOT_LENT, or the seq of a
 * request that timed out, whose answer must come before the slot can be lent again.
 */
#define SLOT_LENT	(1ull << 63)

struct ring {
	/* Read by each submission; set once. A fork's child finds zeros here (WIPEONFORK). */
	struct singvgpu_ctl *ctl;
	uint8_t *units;
	uint32_t mask;		/* ring_units - 1 */
	uint32_t payload_max;
	struct ring_tx tx __attribute__((aligned(LINE)));

	struct ring_rx rx __attribute__((aligned(LINE)));

	const struct ring_ops *ops __attribute__((aligned(LINE)));
	struct singvgpu_cpl *cpl;
	uint8_t *arena;
	uint8_t *log;
	struct singvgpu_geometry geo;
	struct layout {
		uint64_t cpl_off, ring_off, arena_off, log_off, end;
		uint64_t arena_at, log_at;	/* in the object behind fd; the others are where they are in memory */
	} lay;
	uint64_t map_len;
	int fd;
	bool client;
	uint8_t id[16], cookie[16];
	const char *why;
	uint64_t *slot;		/* client */
	uint8_t *stale;		/* client; ring_units bytes */
	struct life *life;	/* proxy, memfd */
	size_t self_len;	/* bytes of this mapping */
};

#define SAME_PLACE(name, where) \
	_Static_assert(offsetof(struct ring_post, name) == offsetof(struct ring, where), #name)
SAME_PLACE(ctl, ctl);
SAME_PLACE(units, units);
SAME_PLACE(mask, mask);
SAME_PLACE(owner, tx.owner);
SAME_PLACE(next, tx.next);
SAME_PLACE(end, tx.end);
SAME_PLACE(exact, tx.exact);

/* ring.c */
int ring_layout(const struct singvgpu_geometry *g, struct layout *l);
uint64_t ring_at(const struct layout *l, uint64_t off);
int ring_new(struct ring **out, const struct singvgpu_geometry *g, bool client);
int ring_map(struct ring *r);
void ring_init_ctl(struct ring *r);
void ring_free(struct ring *r);
int ring_create_generation(struct ring **out, const struct ring_params *p, uint32_t generation);

/* produce.c */
int ring_produce_init(struct ring *r);

/* consume.c: reads the proxy's state from a new object (zeros) or a restored one */
int ring_consume_init(struct ring *r);
void ring_publish(struct ring *r);
void ring_consumed(struct ring *r, uint64_t pos);

/* log.c: reads the log's state, which a crash or a hostile peer may have left damaged */
int ring_log_init(struct ring *r);

/* spin.c */
uint64_t ring_now(void);
uint32_t ring_show_cpu(struct ring *r);
bool ring_spin_useful(struct ring *r);
void ring_spin_init(struct spin *s, uint32_t max);
void ring_spin_adapt(struct spin *s, bool helped);
int ring_membarrier_global(bool reg);
int ring_membarrier_rseq(bool reg);

/* kmod.c, memfd.c */
extern const struct ring_ops ring_memfd_ops;
int ring_kmod_create(struct ring *r, uint32_t generation);
int ring_kmod_attach(int fd, const uint8_t *id, const uint8_t *cookie, struct ring **out);
int ring_kmod_look(int fd, struct singvgpu_geometry *g, struct layout *lay, uint8_t id[16]);
int ring_memfd_create(struct ring *r, uint32_t generation);
int ring_memfd_attach(int fd, struct ring **out);
int ring_memfd_look(int fd, struct singvgpu_geometry *g, struct layout *lay, uint8_t id[16]);
int ring_memfd_commit(int fd, uint64_t at, uint64_t len);

static inline uint32_t rec_units(uint64_t len)
{
	return (len + sizeof(struct singvgpu_rec) + SINGVGPU_UNIT - 1) / SINGVGPU_UNIT;
}

static inline struct singvgpu_rec *unit_at(const struct ring *r, uint64_t pos)
{
	return (struct singvgpu_rec *)(r->units + (pos & r->mask) * SINGVGPU_UNIT);
}

/* The low half of a 64-bit word, which is what a futex or the module can wait on. */
static inline uint32_t *low_half(void *p)
{
	return p;
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

#endif /* RING_I_H */
