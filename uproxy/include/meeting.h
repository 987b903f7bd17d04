/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meeting.h - where the proxies of a job agree that all of them stand at the end of a step: a page that a
 * conductor makes and gives to each
 *
 *   running ── meeting_arrive ─► standing ── all stand ─► sealed: it stays so
 *      ▲                            │
 *      └──── meeting_leave ─────────┘      any ── meeting_fail ─► failed: it stays so
 *
 * One word holds it all, so each change is seen whole: nobody leaves when the last one has arrived, and a
 * failure and a seal exclude each other. Who writes to it are processes of one user, or root's: its length is sealed,
 * since a shorter one would end all of them.
 */
#ifndef UPROXY_MEETING_H
#define UPROXY_MEETING_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

#define MEETING_MAGIC	0x544d5653u	/* "SVMT" */
#define MEETING_FAILED	(1ull << 32)
#define MEETING_SEALS	(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct meeting {
	uint32_t magic, members;
	uint64_t word;		/* MEETING_FAILED, or how many stand; atomic */
};
_Static_assert(sizeof(struct meeting) == 16, "proxies and conductor map it");

enum meeting_state { MEETING_OPEN, MEETING_SEALED, MEETING_LOST };

static inline enum meeting_state meeting_at(const struct meeting *m, uint64_t word)
{
	return word & MEETING_FAILED ? MEETING_LOST : word >= m->members ? MEETING_SEALED : MEETING_OPEN;
}

static inline enum meeting_state meeting_state(const struct meeting *m)
{
	/* pairs with meeting_change() of others */
	return meeting_at(m, __atomic_load_n(&m->word, __ATOMIC_ACQUIRE));
}

/* Changes the word as long as the meeting is open. The state after it. */
static inline enum meeting_state meeting_change(struct meeting *m, uint64_t add)
{
	/* pairs with itself in another process, as below */
	uint64_t word = __atomic_load_n(&m->word, __ATOMIC_ACQUIRE);

	while (meeting_at(m, word) == MEETING_OPEN)
		if (__atomic_compare_exchange_n(&m->word, &word, word + add, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return meeting_at(m, word + add);
	return meeting_at(m, word);
}

static inline enum meeting_state meeting_arrive(struct meeting *m)
{
	return meeting_change(m, 1);
}

/* Of one that stands. MEETING_OPEN: it stands no longer. */
static inline enum meeting_state meeting_leave(struct meeting *m)
{
	return meeting_change(m, -1ull);
}

static inline enum meeting_state meeting_fail(struct meeting *m)
{
	return meeting_change(m, MEETING_FAILED);
}

#endif /* UPROXY_MEETING_H */
