/* SPDX-License-Identifier: Apache-2.0 */
/*
 * robust.h - a lock between processes that costs one locked instruction, and outlives its holders
 *
 * pthread's robust mutex takes two: one to take it, one to give it back, since whoever waits leaves a
 * mark in the same word. Here those who wait leave their mark beside it, and have a barrier executed
 * for the holder (membarrier) before they sleep; so it is given back by a store. Where the kernel has no
 * such barrier they look again after a millisecond.
 *
 * Killed holders. A thread that has the lock, or is about to, says so in the field of its robust list
 * that is for an operation under way; the kernel then treats the lock as one of the list when the
 * thread ends, for whichever reason. Therefore it may hold one such lock at a time, and may use no robust
 * mutex of pthread meanwhile.
 */
#ifndef UPROXY_COLL_ROBUST_H
#define UPROXY_COLL_ROBUST_H

#include <stdint.h>

/* All zero: nobody has it. In memory that all share. */
struct robust {
	uint32_t word; /* the holder's thread, as the kernel wants it; futex */
	uint32_t waits; /* somebody may sleep until it is given back; atomic */
} __attribute__((aligned(8)));

/* Once in each process, before it takes one. 0, or -ENOSYS: the kernel has no robust lists. */
int robust_init(void);

/* 0, or EOWNERDEAD: it is taken, and its last holder died with it. */
int robust_take(struct robust *r);
void robust_give(struct robust *r);

#endif /* UPROXY_COLL_ROBUST_H */
