/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repeat.h - finds the step of a training in the stream of its records: what repeats, and where in it the least
 * memory is in use
 *
 *   repeat_item, repeat_bytes … ─► looking ── two or three equal repetitions ──► known ── the place is reached ─► HERE
 *                                     ▲                                            │ an item that was not expected
 *                                     └────────────────────────────────────────────┘
 *
 * An *item* is a record that has the device do something: a launch, a copy, a collective. A *gap* is what lies
 * between two items: calls that allocate and free, waits, events. A boundary is a place in a gap.
 *
 * Two views of the stream are looked at, since a program may choose other kernels for other shapes. In the first
 * one an item is its operation and its kernel, without sizes, and a run of copies from the host is one item, as is
 * one of copies to it and of waits. In the second view all work between these and collectives is one item.
 *
 * A repetition is taken for the step if
 *   - it has a copy from the host, if any has been seen; else, in the first view, the host hears from the device in
 *     it. Loops over layers have neither, and a program whose steps have neither shows no pattern;
 *   - it has collectives of each communicator that has been seen, and of one at least if the program has any. Loops
 *     over batches whose gradients are summed have none, or have not those of all. In the second view, a repetition
 *     without collectives has copies both ways;
 *   - it has occurred twice; without collectives, and in the second view, three times. Two more are needed where
 *     less memory has been in use before, and one more than there were if it has ended since: it may be a loop
 *     within the step.
 *
 * The boundary is the gap of the repetition in which the least memory is in use. Of several, as where a program
 * keeps what it has freed, it is one before a copy from the host, the first one after collectives of the
 * communicator that has the fewest; without collectives, after the host has heard from the device. Pure: no clock,
 * no I/O.
 */
#ifndef ATSTEP_REPEAT_H
#define ATSTEP_REPEAT_H

#include <stdbool.h>
#include <stdint.h>

#define REPEAT_ITEMS	(1u << 20)	/* after so many it is given up */

enum repeat_kind {
	REPEAT_WORK,		/* launches, and what else runs on the device */
	REPEAT_TO_DEVICE,	/* a copy from the host */
	REPEAT_TO_HOST,		/* a copy to the host, or the host waits for the device */
	REPEAT_COLL,		/* what: the communicator */
};

struct repeat;

/* talks: the program has communicators. NULL: no memory. */
struct repeat *repeat_new(bool talks);
void repeat_free(struct repeat *r);

/* Memory in use now. */
void repeat_bytes(struct repeat *r, uint64_t bytes);

/* The next item, before it runs. true: the boundary is before it, and it is not taken into account yet. */
bool repeat_item(struct repeat *r, enum repeat_kind kind, uint64_t what);

/* In a gap, where the program is about to allocate or does nothing: is the boundary here? */
bool repeat_here(struct repeat *r);

/* It goes past the boundary at which it is, and on to the next one. */
void repeat_pass(struct repeat *r);

/* Is a step known? Its number of items then, else 0; repetitions of it that have been seen, in *times. */
uint32_t repeat_known(const struct repeat *r, uint32_t *times);

/* Items seen; -ENOMEM or -E2BIG: it looks no further. */
int64_t repeat_seen(const struct repeat *r);

#endif /* ATSTEP_REPEAT_H */
