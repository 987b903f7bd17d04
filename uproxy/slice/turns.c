// SPDX-License-Identifier: Apache-2.0
/*
 * turns.c - who has a shared device's memory: the rules of turns.h
 *
 * A state is a head, the sharers by seat, and the devices. A device has a list of its sharers, by seat, in the order in
 * which they have entered.
 */
#include <errno.h>

#include "turns.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct sharer {
	uint32_t device;
	uint32_t next;		/* of the device; seat + 1 */
	uint8_t state;		/* enum turns_state */
	uint8_t due, idle, blocked;
	uint32_t zero;
	uint64_t due_since, idle_since, came;	/* ns; of idle_since: or since a rank that it waits for came elsewhere */
};

struct device {
	uint32_t first;		/* sharer; seat + 1 */
	uint32_t holder;	/* who comes, is resident or leaves; seat + 1 */
	uint32_t last;		/* whose bytes lie there; seat + 1 */
	uint32_t zero;
	uint64_t cost;		/* ns, of the last switch; 0: there was none */
	uint64_t began;		/* of a switch that is under way: its slice was told to end; else 0 */
};

struct turns {
	uint32_t seats, devices;
	struct turns_rules rules;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct sharer) == 40, "shared");
_Static_assert(sizeof(struct device) == 32, "shared");
_Static_assert(sizeof(struct turns) == 32, "shared");

/* An event on its way. */
struct turn {
	struct turns *t;
	uint64_t now;
	const struct turns_owed *owed;
	turns_act *act;
	void *ctx;
};

static struct sharer *sharer_at(const struct turns *t, uint32_t seat)
{
	return (struct sharer *)(t + 1) + seat;
}

static struct device *device_at(const struct turns *t, uint32_t device)
{
	return (struct device *)sharer_at(t, t->seats) + device;
}

size_t turns_size(uint32_t seats, uint32_t devices)
{
	if (!seats || !devices || seats > TURNS_MOST || devices > TURNS_MOST)
		return 0;
	return sizeof(struct turns) + seats * sizeof(struct sharer) + devices * sizeof(struct device);
}

struct turns *turns_init(void *mem, uint32_t seats, uint32_t devices, const struct turns_rules *rules)
{
	struct turns *t = mem;

	t->seats = seats;
	t->devices = devices;
	t->rules = *rules;
	return t;
}

/* ------------------------------------------------------------------------------ times */

static uint64_t cost_of(const struct turns *t, const struct device *d)
{
	return d->cost > t->rules.least_ns ? d->cost : t->rules.least_ns;
}

static uint64_t patience_of(const struct turns *t, const struct device *d)
{
	uint64_t ns = t->rules.patience * cost_of(t, d);

	return ns > t->rules.patience_ns ? ns : t->rules.patience_ns;
}

/* Who can be chosen: is out, and due. */
static bool may_come(const struct sharer *q)
{
	return q->state == TURNS_OUT && q->due;
}

/* When rule 2 b ends the resident's slice, and when 2 c does, for one that is due. */
static uint64_t idle_ends(const struct turns *t, const struct device *d, const struct sharer *r)
{
	return r->idle ? r->idle_since + cost_of(t, d) : TURNS_NEVER;
}

static uint64_t patience_ends(const struct turns *t, const struct device *d, const struct sharer *r,
			      const struct sharer *q)
{
	uint64_t waited = q->due_since + patience_of(t, d), been = r->came + cost_of(t, d);

	return waited > been ? waited : been;
}

/* ------------------------------------------------------------------------------ choosing */

static void becomes(const struct turn *o, uint32_t seat, enum turns_state state, uint32_t last)
{
	struct turns_action a = { .seat = seat, .state = state, .last = last };

	sharer_at(o->t, seat)->state = state;
	o->act(o->ctx, &a);
}

/* Is p, who may come, to come before q? */
static bool is_first(const struct turn *o, const struct device *d, uint32_t p, uint32_t q)
{
	const struct sharer *a = sharer_at(o->t, p), *b = sharer_at(o->t, q);
	uint64_t patience = patience_of(o->t, d), old_a, old_b;
	bool long_a = o->now - a->due_since >= patience, long_b = o->now - b->due_since >= patience;

	if (long_a != long_b)
		return long_a;
	if (!long_a) {
		old_a = o->owed->oldest(o->owed->ctx, p);
		old_b = o->owed->oldest(o->owed->ctx, q);
		if (old_a != old_b)
			return old_a < old_b;
	}
	return a->due_since < b->due_since;
}

/* Rule 3; TURNS_NONE: nobody is due. */
static uint32_t next_of(const struct turn *o, const struct device *d)
{
	uint32_t best = TURNS_NONE;

	for (uint32_t i = d->first; i; i = sharer_at(o->t, i - 1)->next)
		if (may_come(sharer_at(o->t, i - 1)) && (best == TURNS_NONE || is_first(o, d, i - 1, best)))
			best = i - 1;
	return best;
}

/* Rule 2 a: does the resident wait for an operation that another sharer has not posted? */
static bool waits_for_sharer(const struct turn *o, const struct device *d, uint32_t resident)
{
	for (uint32_t i = d->first; i; i = sharer_at(o->t, i - 1)->next)
		if (i - 1 != resident && o->owed->waits(o->owed->ctx, resident, i - 1))
			return true;
	return false;
}

/* Does the resident's slice end for q, who may come? */
static bool ends_for(const struct turn *o, const struct device *d, uint32_t resident, const struct sharer *q)
{
	const struct sharer *r = sharer_at(o->t, resident);

	return idle_ends(o->t, d, r) <= o->now || patience_ends(o->t, d, r, q) <= o->now ||
	       (r->idle && r->blocked && waits_for_sharer(o, d, resident));
}

static bool slice_ends(const struct turn *o, const struct device *d)
{
	for (uint32_t i = d->first; i; i = sharer_at(o->t, i - 1)->next)
		if (may_come(sharer_at(o->t, i - 1)) && ends_for(o, d, d->holder - 1, sharer_at(o->t, i - 1)))
			return true;
	return false;
}

/* What can be decided for a device is decided. */
static void decide(const struct turn *o, uint32_t device)
{
	struct device *d = device_at(o->t, device);
	uint32_t seat;

	if (d->holder) {
		if (sharer_at(o->t, d->holder - 1)->state != TURNS_RESIDENT || !slice_ends(o, d))
			return;
		d->began = o->now;
		becomes(o, d->holder - 1, TURNS_LEAVING, TURNS_NONE);
		return;
	}
	seat = next_of(o, d);
	if (seat == TURNS_NONE) {
		d->began = 0;	/* the pause until somebody is due is no cost of a switch */
		return;
	}
	d->holder = seat + 1;
	becomes(o, seat, TURNS_COMING, d->last ? d->last - 1 : TURNS_NONE);
}

/* ------------------------------------------------------------------------------ events */

static void enter(const struct turn *o, uint32_t seat, uint32_t device)
{
	struct sharer *q = sharer_at(o->t, seat);
	uint32_t *end = &device_at(o->t, device)->first;

	while (*end)
		end = &sharer_at(o->t, *end - 1)->next;
	*end = seat + 1;
	*q = (struct sharer){ .device = device };
	becomes(o, seat, TURNS_OUT, TURNS_NONE);
}

static void says(const struct turn *o, struct sharer *q, const struct turns_event *e)
{
	const struct device *d = device_at(o->t, q->device);
	bool wants = e->due && !q->due;

	if (wants)
		q->due_since = o->now;
	if (e->idle && !q->idle)
		q->idle_since = o->now;
	q->due = e->due;
	q->idle = e->idle;
	q->blocked = e->blocked;
	/* A resident need not say when it has nothing to run, as long as nobody waits for that. */
	if (wants && d->holder && q->state == TURNS_OUT && sharer_at(o->t, d->holder - 1)->state == TURNS_RESIDENT)
		becomes(o, d->holder - 1, TURNS_RESIDENT, TURNS_NONE);
}

static void left(const struct turn *o, uint32_t seat)
{
	struct sharer *q = sharer_at(o->t, seat);
	struct device *d = device_at(o->t, q->device);

	d->holder = 0;
	q->due = 0;
	becomes(o, seat, TURNS_OUT, TURNS_NONE);
}

/* The others begin to wait anew; else the next event would end the slice again. */
static void stays(const struct turn *o, uint32_t seat)
{
	struct sharer *r = sharer_at(o->t, seat);
	struct device *d = device_at(o->t, r->device);

	d->began = 0;
	r->due = r->idle = r->blocked = 0;
	for (uint32_t i = d->first; i; i = sharer_at(o->t, i - 1)->next)
		sharer_at(o->t, i - 1)->due_since = o->now;
	becomes(o, seat, TURNS_RESIDENT, TURNS_NONE);
}

/* Residents of other devices that wait for the one that has come may get what they wait for soon. */
static void wait_anew(const struct turn *o, uint32_t came)
{
	for (uint32_t i = 0; i < o->t->devices; i++) {
		const struct device *d = device_at(o->t, i);
		struct sharer *r = d->holder ? sharer_at(o->t, d->holder - 1) : NULL;

		if (r && i != sharer_at(o->t, came)->device && r->state == TURNS_RESIDENT && r->idle &&
		    o->owed->waits(o->owed->ctx, d->holder - 1, came))
			r->idle_since = o->now;
	}
}

static void came(const struct turn *o, uint32_t seat)
{
	struct sharer *q = sharer_at(o->t, seat);
	struct device *d = device_at(o->t, q->device);

	if (d->began)
		d->cost = o->now - d->began;
	d->began = 0;
	d->last = seat + 1;
	q->came = o->now;
	q->due = q->idle = q->blocked = 0;
	becomes(o, seat, TURNS_RESIDENT, TURNS_NONE);
	wait_anew(o, seat);
}

static void ends(const struct turn *o, uint32_t seat)
{
	struct sharer *q = sharer_at(o->t, seat);
	struct device *d = device_at(o->t, q->device);
	uint32_t *at = &d->first;

	while (*at != seat + 1)
		at = &sharer_at(o->t, *at - 1)->next;
	*at = q->next;
	if (d->holder == seat + 1) {
		d->holder = 0;
		/* What of it lies there is nobody's. */
		d->last = d->began = 0;
	} else if (d->last == seat + 1) {
		d->last = 0;
	}
	becomes(o, seat, TURNS_ABSENT, TURNS_NONE);
	*q = (struct sharer){ 0 };
}

/* May an event of a sharer come in this state? */
static bool is_time_for(enum turns_event_kind kind, enum turns_state state)
{
	switch (kind) {
	case TURNS_LEFT:
		return state == TURNS_LEAVING || state == TURNS_RESIDENT;
	case TURNS_STAYS:
		return state == TURNS_LEAVING;
	case TURNS_CAME:
		return state == TURNS_COMING;
	default:
		return state != TURNS_ABSENT;
	}
}

static bool fits(const struct turns *t, const struct turns_event *e)
{
	enum turns_state state;

	if (e->kind == TURNS_TICK)
		return e->device < t->devices;
	if (e->seat >= t->seats)
		return false;
	state = sharer_at(t, e->seat)->state;
	if (e->kind == TURNS_ENTER)
		return e->device < t->devices && state == TURNS_ABSENT;
	return is_time_for(e->kind, state);
}

int turns(struct turns *t, const struct turns_event *e, const struct turns_owed *owed, turns_act *act, void *ctx)
{
	struct turn o = { .t = t, .now = e->now, .owed = owed, .act = act, .ctx = ctx };
	uint32_t device = e->device;

	if (!fits(t, e))
		return -EPROTO;
	if (e->kind != TURNS_ENTER && e->kind != TURNS_TICK)
		device = sharer_at(t, e->seat)->device;
	switch (e->kind) {
	case TURNS_ENTER:
		enter(&o, e->seat, device);
		break;
	case TURNS_SAYS:
		says(&o, sharer_at(t, e->seat), e);
		break;
	case TURNS_LEFT:
		left(&o, e->seat);
		break;
	case TURNS_STAYS:
		stays(&o, e->seat);
		break;
	case TURNS_CAME:
		came(&o, e->seat);
		break;
	case TURNS_TICK:
		break;
	case TURNS_ENDS:
		ends(&o, e->seat);
		break;
	}
	decide(&o, device);
	return 0;
}

/* ------------------------------------------------------------------------------ what a state is like */

uint64_t turns_next(const struct turns *t, uint32_t device)
{
	const struct device *d = device_at(t, device);
	const struct sharer *r = d->holder ? sharer_at(t, d->holder - 1) : NULL;
	uint64_t next = TURNS_NEVER, at;

	if (!r || r->state != TURNS_RESIDENT)
		return next;
	for (uint32_t i = d->first; i; i = sharer_at(t, i - 1)->next) {
		const struct sharer *q = sharer_at(t, i - 1);

		if (!may_come(q))
			continue;
		at = patience_ends(t, d, r, q);
		at = at < idle_ends(t, d, r) ? at : idle_ends(t, d, r);
		next = next < at ? next : at;
	}
	return next;
}

enum turns_state turns_state(const struct turns *t, uint32_t seat)
{
	return seat < t->seats ? sharer_at(t, seat)->state : TURNS_ABSENT;
}

uint64_t turns_cost(const struct turns *t, uint32_t device)
{
	return cost_of(t, device_at(t, device));
}

uint64_t turns_began(const struct turns *t, uint32_t device)
{
	return device_at(t, device)->began;
}

static uint64_t mix(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

/* How long ago, as far as it matters for a device. */
static uint64_t ago(const struct turns *t, const struct device *d, uint64_t now, uint64_t since)
{
	uint64_t most = patience_of(t, d) + cost_of(t, d);

	return now - since < most ? now - since : most;
}

static uint64_t sharer_digest(const struct turns *t, const struct device *d, uint32_t seat, uint64_t now)
{
	const struct sharer *q = sharer_at(t, seat);
	uint64_t h = mix(seat, q->state | q->due << 8 | q->idle << 16 | q->blocked << 24);

	h = mix(h, q->due ? ago(t, d, now, q->due_since) : 0);
	h = mix(h, q->idle ? ago(t, d, now, q->idle_since) : 0);
	return mix(h, q->state == TURNS_RESIDENT ? ago(t, d, now, q->came) : 0);
}

uint64_t turns_digest(const struct turns *t, uint64_t now)
{
	uint64_t h = 0;

	for (uint32_t i = 0; i < t->devices; i++) {
		const struct device *d = device_at(t, i);

		h = mix(mix(h, d->holder | (uint64_t)d->last << 32), cost_of(t, d));
		h = mix(h, d->began ? 1 + ago(t, d, now, d->began) : 0);
		for (uint32_t q = d->first; q; q = sharer_at(t, q - 1)->next)
			h = mix(h, sharer_digest(t, d, q - 1, now));
	}
	return h;
}
