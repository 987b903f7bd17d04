// SPDX-License-Identifier: Apache-2.0
/*
 * slice.c - what a session does in its turn, before it and after
 *
 * The board's word for the seat (board_slice()) says what it has to do. `stage` is how far it is:
 *
 *   AWAY ── COMING ──► BRINGS (worker) ──► HERE ── LEAVING ──► DRAINS ──► TAKES (worker) ──► AWAY
 *                                           ▲                    │ the device does not run dry: TURNS_STAYS
 *                                           └────────────────────┘
 *
 * When the bytes cannot be moved the session has failed, and the stage is LOST.
 */
#include <stdlib.h>

#include "board.h"
#include "comm_i.h"
#include "common.h"
#include "context.h"
#include "device_memory.h"
#include "fail.h"
#include "log.h"
#include "park.h"
#include "slice.h"
#include "stat_i.h"
#include "still.h"
#include "streams.h"
#include "turns.h"
#include "worker.h"

#define DRAIN_NS 10000000000ull		/* a device that does not run dry for so long keeps its slice */
#define LOOK_NS	 100000			/* between two looks at a device that runs */

enum stage { AWAY, BRINGS, HERE, DRAINS, TAKES, LOST };

static struct slice {
	struct board *board;
	uint32_t seat, device;
	uint32_t seen;			/* board_slice.changes */
	enum stage stage;
	bool due, idle, blocked;	/* as the board was told last */
	bool told;			/* that the device did not run dry */
	uint64_t drains;		/* ns: since when */
	bool ran;			/* a look at the device has found that it runs */
	/* Of the worker's job: */
	bool known;			/* what lies in the memory is what the table says */
	struct why why;
	int rc;
	uint32_t done;			/* atomic */
} slice;

/* ------------------------------------------------------------------------------ the board */

static void turn(struct sv_session *s, struct turns_event *e)
{
	int rc;

	e->seat = slice.seat;
	e->device = slice.device;
	e->now = now_ns();
	rc = board_turn(slice.board, e);
	if (rc)
		session_fail(s, rc, "the job's board has lost this session's slice, since a proxy was killed", 0, 0);
}

static void say(struct sv_session *s, bool due, bool idle, bool blocked)
{
	struct turns_event e = { .kind = TURNS_SAYS, .due = due, .idle = idle, .blocked = blocked };

	if (due == slice.due && idle == slice.idle && blocked == slice.blocked)
		return;
	slice.due = due;
	slice.idle = idle;
	slice.blocked = blocked;
	turn(s, &e);
}

int slice_start(struct sv_session *s, struct why *why)
{
	struct turns_event e = { .kind = TURNS_ENTER };
	int lock, rc = comm_attach(s, &slice.board, &lock, &slice.seat, why);

	if (rc)
		return rc;
	slice.device = s->hal.dev;
	rc = common_join(&s->hal, lock, slice.device, why);
	if (rc)
		return rc;
	park_away(true);
	e.seat = slice.seat;
	e.device = slice.device;
	e.now = now_ns();
	rc = board_turn(slice.board, &e);
	return rc ? why_set(why, rc, "no place among those who share the device: %s", strerror(-rc)) : 0;
}

/* ------------------------------------------------------------------------------ the worker */

static bool has_ended(uint32_t seat)
{
	return board_slice(slice.board, seat).state == TURNS_ABSENT;
}

static void done(struct sv_session *s, int rc)
{
	slice.rc = rc;
	__atomic_store_n(&slice.done, 1, __ATOMIC_RELEASE);
	ring_kick(s->ring);
}

static void bring(void *arg)
{
	struct sv_session *s = arg;
	int rc = common_begin(slice.seat, has_ended, slice.known, &slice.why);
	uint64_t va, len;

	do
		for (va = s->hal.window; !rc && window_next_run(s, va, &va, &len); va += len)
			common_bring(va, len);
	while (!rc && !common_came());
	done(s, rc);
}

static void take(void *arg)
{
	struct sv_session *s = arg;
	int rc = common_ends(&slice.why);
	uint64_t va, len;

	for (va = s->hal.window; !rc && window_next_run(s, va, &va, &len); va += len)
		rc = common_leave(va, len, &slice.why);
	if (!rc)
		common_left();
	done(s, rc);
}

static void start_work(struct sv_session *s, enum stage stage)
{
	void (*work)(void *arg) = stage == BRINGS ? bring : take;

	slice.stage = stage;
	why_clear(&slice.why);
	if (worker_run(work, s))
		work(s);
}

/* ------------------------------------------------------------------------------ coming and leaving */

/* The memory is the session's: what has waited for that runs. */
static void is_here(struct sv_session *s)
{
	slice.stage = HERE;
	slice.due = slice.idle = slice.blocked = false;
	comm_return();
	comm_write();
	park_away(false);
	park_run(s);
}

static void set(uint64_t *field, uint64_t n)
{
	__atomic_store_n(field, n, __ATOMIC_RELAXED);
}

/* The figures of the switch that has brought the session's bytes. */
static void show_switch(struct uproxy_slices *st)
{
	uint64_t began = board_slice_began(slice.board, slice.device), ns = now_ns() - began;

	stat_add(&st->begun, 1);
	if (!began)
		return;
	__atomic_store_n(&st->last_us[st->switches % UPROXY_SWITCHES], (uint32_t)(ns / 1000), __ATOMIC_RELAXED);
	stat_add(&st->switch_ns, ns);
	stat_add(&st->switches, 1);
}

static void show_moved(struct uproxy_slices *st)
{
	struct common_moved m = common_moved();

	set(&st->digested, m.digested);
	set(&st->taken, m.taken);
	set(&st->brought, m.brought);
	set(&st->backing, m.backing);
	set(&st->backing_peak, m.backing_peak);
}

static void work_ended(struct sv_session *s)
{
	struct turns_event e = { .kind = slice.stage == BRINGS ? TURNS_CAME : TURNS_LEFT };

	__atomic_store_n(&slice.done, 0, __ATOMIC_RELAXED);
	if (slice.rc) {
		slice.stage = LOST;
		tell("%s", slice.why.text);
		session_fail(s, slice.rc, "the session's bytes cannot be moved between slices", 0, 0);
		return;
	}
	show_moved(&s->stat->slices);
	if (slice.stage == BRINGS) {
		show_switch(&s->stat->slices);
		turn(s, &e);
		is_here(s);
		return;
	}
	slice.stage = AWAY;
	slice.due = slice.idle = slice.blocked = false;
	turn(s, &e);
}

static void stays(struct sv_session *s, struct stream *st)
{
	struct turns_event e = { .kind = TURNS_STAYS };
	char text[128], name[64];

	if (st && !slice.told) {
		st = still_other(s, st);
		still_name(st, name, sizeof(name));
		tell("this rank keeps the device, which others wait for: %s waits for %s", name, still_cause(s, st, text, sizeof(text)));
		slice.told = true;
	}
	turn(s, &e);
	is_here(s);
}

/* Is nothing under way in the session's memory? */
static bool is_dry(struct sv_session *s, struct stream **busy)
{
	CUresult r;

	*busy = NULL;
	comm_step_aside();
	if (!worker_idle() || comm_in_memory())
		return false;
	*busy = still_busy(s, &r);
	/* In a context that is broken nothing runs any more. */
	return !*busy || r != CUDA_ERROR_NOT_READY;
}

static void drain(struct sv_session *s)
{
	struct stream *busy;
	int rc;

	if (!is_dry(s, &busy)) {
		slice.ran = true;
		if (now_ns() - slice.drains > DRAIN_NS)
			stays(s, busy);
		return;
	}
	comm_ahead(s);
	/* A post may have been the last one that an operation waited for, which has started then. */
	if (!is_dry(s, &busy))
		return;
	if (slice.ran)
		stat_add(&s->stat->slices.drain_ns, now_ns() - slice.drains);
	rc = comm_capture();
	if (rc)
		session_fail(s, rc, "no memory for what collectives send", 0, 0);
	else
		start_work(s, TAKES);
}

static void is_told(struct sv_session *s, const struct board_slice *b)
{
	slice.seen = b->changes;
	if (b->state == TURNS_COMING && slice.stage == AWAY) {
		slice.known = b->last != TURNS_NONE;
		start_work(s, BRINGS);
	} else if (b->state == TURNS_LEAVING && slice.stage == HERE && !board_is_broken(slice.board)) {
		park_away(true);
		slice.stage = DRAINS;
		slice.drains = now_ns();
		slice.ran = false;
	}
}

bool slice_due(void)
{
	/* pairs with done() */
	return common_on && (__atomic_load_n(&slice.done, __ATOMIC_ACQUIRE) || (slice.stage == HERE && comm_arrived()) ||
			     board_slice(slice.board, slice.seat).changes != slice.seen);
}

void slice_run(struct sv_session *s)
{
	struct board_slice b = board_slice(slice.board, slice.seat);

	/* pairs with done() */
	if (__atomic_load_n(&slice.done, __ATOMIC_ACQUIRE))
		work_ended(s);
	if (b.changes != slice.seen)
		is_told(s, &b);
	if (slice.stage == HERE && comm_arrived()) {
		comm_write();
		park_run(s);
	}
	if (slice.stage == DRAINS)
		drain(s);
}

/* ------------------------------------------------------------------------------ what is true of it */

/* For how long the consumer may wait before the board has to look at the clock again. */
static int64_t until_tick(struct sv_session *s)
{
	uint64_t next = board_slice_next(slice.board, slice.device), now = now_ns();
	/* Who is due on a board that is broken waits for a turn that does not come: the tick says so. */
	bool in_vain = slice.due && board_is_broken(slice.board);
	struct turns_event e = { .kind = TURNS_TICK };

	if (!in_vain && next == TURNS_NEVER)
		return -1;
	if (!in_vain && next > now)
		return (int64_t)(next - now);
	turn(s, &e);
	return 0;
}

/* The same for what the slices alone ask. */
static int64_t idle(struct sv_session *s)
{
	struct stream *busy;
	int64_t most;
	bool dry;

	switch (slice.stage) {
	case DRAINS:
		drain(s);
		return slice.stage == DRAINS ? LOOK_NS : -1;
	case HERE:
		/* As long as nobody else is due, nobody asks. */
		if (board_slice_next(slice.board, slice.device) == TURNS_NEVER)
			return -1;
		dry = is_dry(s, &busy);
		say(s, false, dry, dry && park_open());
		most = until_tick(s);
		return dry || most < LOOK_NS ? most : LOOK_NS;
	case AWAY:
		park_run(s);
		say(s, park_waits() || comm_arrived(), false, false);
		return until_tick(s);
	default:
		return -1;
	}
}

int64_t slice_idle(struct sv_session *s)
{
	int64_t most;

	if (!common_on)
		return -1;
	if (hostfunc_returned(s))
		park_run(s);
	most = idle(s);
	return hostfunc_holds() && (most < 0 || most > LOOK_NS) ? LOOK_NS : most;
}

bool slice_rests(struct sv_session *s, bool *turn)
{
	bool rests;

	if (turn)
		*turn = false;
	if (!common_on)
		return true;
	if (slice_due())
		slice_run(s);
	slice_idle(s);
	rests = !slice_due() && !hostfunc_holds() && (slice.stage == AWAY ? !slice.due : slice.stage == HERE);
	if (turn)
		*turn = slice.stage == BRINGS || slice.stage == TAKES || (slice.stage == AWAY && slice.due);
	return rests;
}

/* ------------------------------------------------------------------------------ a restore */

int slice_take(struct sv_session *s, bool (*given_up)(void *arg), void *arg, struct why *why)
{
	unsigned int naps = 0;

	say(s, true, false, false);
	while (slice.stage != HERE && !session_failed(s)) {
		if (!(naps % 64) && given_up(arg))
			return why_set(why, -ECANCELED, "given up while other ranks restore their memory");
		if (slice_due())
			slice_run(s);
		else if (slice.stage == AWAY && !until_tick(s))
			continue;
		else
			still_nap(&naps);
	}
	return session_failed(s) ? why_set(why, session_failed(s), "%s", s->failed_rule) : 0;
}

int slice_give(struct sv_session *s, bool (*given_up)(void *arg), void *arg, struct why *why)
{
	int rc = comm_capture();

	if (rc)
		return why_set(why, rc, "no memory for what collectives send");
	park_away(true);
	start_work(s, TAKES);
	lock_may_wait("the worker");
	for (unsigned int naps = 0; slice.stage != AWAY && !session_failed(s);) {
		if (!(naps % 64) && given_up(arg))
			return why_set(why, -ECANCELED, "given up while the memory was taken away");
		/* pairs with done() */
		if (__atomic_load_n(&slice.done, __ATOMIC_ACQUIRE))
			work_ended(s);
		else
			still_nap(&naps);
	}
	slice.seen = board_slice(slice.board, slice.seat).changes;
	return session_failed(s) ? why_set(why, session_failed(s), "%s", s->failed_rule) : 0;
}

/* The memory may go: nothing works in it any more, and what others have not received of it is copied. */
static bool is_left_well(struct sv_session *s)
{
	uint64_t since = now_ns();
	unsigned int naps = 0;
	struct stream *busy;

	while (!is_dry(s, &busy)) {
		if (now_ns() - since > DRAIN_NS)
			return false;
		if (comm_posted())
			comm_run(s);
		still_nap(&naps);
	}
	return !comm_capture();
}

bool slice_leave(struct sv_session *s)
{
	struct turns_event e = { .kind = TURNS_ENDS, .seat = slice.seat };
	unsigned int naps = 0;
	bool good;

	if (!common_on)
		return true;
	park_away(true);
	/* A process that ends while its worker changes the table tears it. The load pairs with done(). */
	while ((slice.stage == BRINGS || slice.stage == TAKES) && !__atomic_load_n(&slice.done, __ATOMIC_ACQUIRE))
		still_nap(&naps);
	/* A rank that has failed waits for no drain: the end of this process tells the others, and ends its slice. */
	good = slice.stage == AWAY || slice.stage == TAKES || (comm_exited() && is_left_well(s));
	common_stops();
	if (!good || !comm_exited())
		return good;
	e.now = now_ns();
	return !board_turn(slice.board, &e);
}
