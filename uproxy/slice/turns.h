/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h - decides which of a device's sharers has its memory, and for how long
 *
 * turns() is a pure function, like the step of collectives (coll/step.h): it gets a state and one event,
 * changes the state, and hands out actions. The state is one block of memory without pointers.
 *
 * Words. *Sharers* are proxies with one device, whose ranks do not fit its memory together. The *resident*
 * is the sharer whose bytes are in the device's memory; a *slice* is the time for which it is. A sharer is
 * *due* when a record of it could run if it were resident, or when a result waits to be written.
 *
 *              it is chosen              TURNS_CAME                it is to end its slice            TURNS_LEFT
 *   TURNS_OUT ─────────────► TURNS_COMING ────────► TURNS_RESIDENT ────────────────────► TURNS_LEAVING ───────► TURNS_OUT
 *                                                        ▲            TURNS_STAYS             │
 *                                                        └────────────────────────────────────┘
 *
 * Rules, which selftests/slice/turns.c checks in every interleaving (RANKS.md R13; *cost* is the time that
 * the device's last switch took, and at least turns_rules.least_ns):
 *   1. At most one sharer of a device is coming, resident or leaving.
 *   2. A slice ends only while another sharer is due, and then
 *      a. at once, if the resident has nothing to run, its program waits in a call, and what it waits for
 *         has not been posted by another sharer;
 *      b. if the resident has had nothing to run for as long as the cost. That time begins anew when a rank
 *         that it waits for comes to another device;
 *      c. if another sharer has been due for `patience` costs, and for patience_ns at least, and the
 *         resident has been there for the cost.
 *   3. Next is, of those due, who has been due as long as (c) says; else the one that owes the oldest
 *      operation; else the one that has been due longest.
 *   4. A sharer that ends or dies has no slice any more, whatever its state.
 */
#ifndef UPROXY_SLICE_TURNS_H
#define UPROXY_SLICE_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TURNS_NONE    UINT32_MAX
#define TURNS_NEVER   UINT64_MAX
#define TURNS_MOST    (1u << 12)	/* sharers, devices */

enum turns_state {
	TURNS_ABSENT,	/* nobody has the seat */
	TURNS_OUT,	/* its bytes are elsewhere, and its records wait */
	TURNS_COMING,	/* it has the memory, and brings its bytes there */
	TURNS_RESIDENT,	/* its records run */
	TURNS_LEAVING,	/* it drains the device, and takes its bytes away */
};

enum turns_event_kind {
	TURNS_ENTER,	/* seat, device: a sharer begins, without bytes */
	TURNS_SAYS,	/* seat, due, idle, blocked: what is true of it now; nothing of that is when its state has changed */
	TURNS_LEFT,	/* seat: it was leaving, or resident, and touches the memory no more */
	TURNS_STAYS,	/* seat: it was leaving, and cannot drain the device: its slice goes on */
	TURNS_CAME,	/* seat: its bytes are there */
	TURNS_TICK,	/* device: time has passed (turns_next()) */
	TURNS_ENDS,	/* seat: its process has ended, in whatever way */
};

struct turns_event {
	enum turns_event_kind kind;
	uint32_t seat, device;
	uint64_t now;	/* ns of a clock that only grows */
	bool due;	/* see above; of a resident: it has something to run */
	bool idle;	/* a resident: nothing of it runs on the device, and no record of it could */
	bool blocked;	/* idle, and its program waits in a call for what is parked */
};

/*
 * A sharer's state has changed to `state`, or a resident's has not, but another sharer has become due. `last`:
 * of one that is coming, whose bytes lie in the memory; TURNS_NONE: nobody's.
 */
struct turns_action {
	uint32_t seat;
	enum turns_state state;
	uint32_t last;
};

typedef void turns_act(void *ctx, const struct turns_action *action);

/* What collectives say of the sharers (coll/step.h: step_owes(), step_waits()). */
struct turns_owed {
	/*
	 * The age of the oldest operation that waits for this one to post: less is older; TURNS_NEVER: there
	 * is none.
	 */
	uint64_t (*oldest)(void *ctx, uint32_t seat);
	/* Does it wait for an operation that `other` has not posted? */
	bool (*waits)(void *ctx, uint32_t seat, uint32_t other);
	void *ctx;
};

struct turns_rules {
	uint64_t least_ns, patience_ns;
	uint32_t patience;
	uint32_t zero;
};

/* RANKS.md R13: at least 1 ms; 50 times as much, and at least 1 s. */
static const struct turns_rules turns_default = { 1000000, 1000000000, 50, 0 };

struct turns;

/* Bytes of a state for so many seats and devices, each 1 to TURNS_MOST; else 0. */
size_t turns_size(uint32_t seats, uint32_t devices);
/* Makes an empty state of turns_size() bytes at mem, which is all zero and 8-aligned. */
struct turns *turns_init(void *mem, uint32_t seats, uint32_t devices, const struct turns_rules *rules);

/*
 * Gives the state one event; act() is called for each action, and must not call turns(). 0, or -EPROTO: the
 * event contradicts the state, which has not changed then, and act() has not been called.
 */
int turns(struct turns *t, const struct turns_event *e, const struct turns_owed *owed, turns_act *act, void *ctx);

/* When a device needs a TURNS_TICK, if no event comes before that; TURNS_NEVER: not at all. */
uint64_t turns_next(const struct turns *t, uint32_t device);

enum turns_state turns_state(const struct turns *t, uint32_t seat);
/* The ns that the device's last switch took: its cost. */
uint64_t turns_cost(const struct turns *t, uint32_t device);
/* When a switch began that is under way: the `now` at which a slice was told to end. 0: there is none. */
uint64_t turns_began(const struct turns *t, uint32_t device);

/* Equal for two states that go on alike from `now` on. */
uint64_t turns_digest(const struct turns *t, uint64_t now);

#endif /* UPROXY_SLICE_TURNS_H */
