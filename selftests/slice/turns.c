// SPDX-License-Identifier: Apache-2.0
/*
 * turns.c - every interleaving of what three ranks do that share one device or two by slices
 *
 * A *world* is a state of uproxy/slice/turns.h, one of uproxy/coll/step.h beside it, and a *watch*: what
 * the test knows of each rank's program, streams and memory. From each world all events are tried that
 * could come there, unless an equal world has been seen. The watch checks each action against the rules of
 * turns.h on its own account. In the end, each world that has been seen must have a way to the end of all
 * ranks' programs: then a run in which everything that can happen does happen at some time ends.
 *
 * A program is a word for each rank, of these letters:
 *
 *   C c      a kernel in stream 0, in stream 1 A B      an all-reduce of all ranks in stream 0, of ranks 0
 *   and 1 in stream 1 s t u    a large send from rank 0 to 1, from 1 to 2, from 2 to 0, and its receive, in
 *   stream 0 W        the program waits until both streams have done all .        the program is busy with
 *   something else x y z    it sends a message to rank 0, 1, 2 on the CPU X Y Z    it waits for a message
 *   of rank 0, 1, 2 p q r    it runs small kernels until there is one
 *
 * At its end it waits as for W.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step.h"
#include "tree.h"
#include "turns.h"

#include "kselftest_harness.h"
#include "../coll/worlds.h"
#include "../harness/patience.h"

#define RANKS   3
#define COMMS   2
#define STREAMS 2
#define LENGTH  8		/* of a word */
#define EVENTS  64
#define DEVICES 2

static char prog[RANKS][LENGTH + 1];
static uint8_t device_of[RANKS];

enum life { HERE, ENDED, DEAD };

/* What has become of a record. */
enum stage { SENT = 1, POSTED, BEGUN, OVER };

struct watch {
	uint8_t life[RANKS];
	uint8_t host[RANKS];		/* letters that the program has done */
	uint8_t at[RANKS][STREAMS];	/* letters before which the stream has nothing to do any more */
	uint8_t runs[RANKS];		/* a kernel does */
	uint8_t stage[RANKS][LENGTH];
	uint8_t started[RANKS][LENGTH];	/* by the transport: 1 in the memory, 2 from a copy */
	uint8_t copied[RANKS][LENGTH];	/* what it sends has been */
	uint8_t pending[RANKS][LENGTH];	/* its result waits to be written */
	uint8_t failed[RANKS];
	uint8_t mail[RANKS][RANKS];	/* to, from */
	uint8_t state[RANKS];		/* enum turns_state, as it was told */
	uint8_t due[RANKS], idle[RANKS], blocked[RANKS];
	uint8_t disturbances;
	uint8_t order[RANKS][LENGTH];
} __attribute__((aligned(8)));

/* Known from the state's digest, but for its absolute times. */
struct clock {
	uint64_t now, due[RANKS], idle[RANKS], came[RANKS], told[DEVICES];
};

#define STEP_MEMORY  6144
#define TURNS_MEMORY 512

struct world {
	struct watch w;
	struct clock c;
	_Alignas(8) char turns[TURNS_MEMORY];
	_Alignas(8) char step[STEP_MEMORY];
};

static struct world *now;
static bool is_prompt;		/* programs send records, and proxies say what is true of them, at once */
static uint32_t member_of[RANKS][COMMS];

static const struct step_limits limits = { 3, 3, COMMS, 5, 10, 20, 16 };
static const struct turns_rules rules = { 2, 7, 3, 0 };

static struct step *step_of(struct world *world)
{
	return (struct step *)world->step;
}

static struct turns *turns_of(struct world *world)
{
	return (struct turns *)world->turns;
}

/* ---- programs ---- */

static bool is_one_of(char letter, const char *letters)
{
	return letter && strchr(letters, letter);
}

static bool is_collective(char letter)
{
	return is_one_of(letter, "ABstu");
}

static bool is_record(char letter)
{
	return is_one_of(letter, "Cc") || is_collective(letter);
}

static int stream_of(char letter)
{
	return letter == 'c' || letter == 'B';
}

static bool is_receive(uint32_t rank, char letter)
{
	return (letter == 's' && rank == 1) || (letter == 't' && rank == 2) || (letter == 'u' && rank == 0);
}

static char letter_of(const struct watch *w, uint32_t rank)
{
	return prog[rank][w->host[rank]];
}

/* The first record of a stream that has been sent and has not been done; LENGTH: none. */
static int first_of(const struct watch *w, uint32_t rank, int stream)
{
	for (int i = w->at[rank][stream]; i < w->host[rank]; i++)
		if (is_record(prog[rank][i]) && stream_of(prog[rank][i]) == stream && w->stage[rank][i] == SENT)
			return i;
	return LENGTH;
}

/* Is the result of each collective before the record in its stream there? pending: or does it wait to be written? */
static bool is_behind(const struct watch *w, uint32_t rank, int index, bool pending, uint8_t least)
{
	for (int i = 0; i < index; i++) {
		if (!is_collective(prog[rank][i]) || stream_of(prog[rank][i]) != stream_of(prog[rank][index]))
			continue;
		if (w->stage[rank][i] < least || (!pending && w->pending[rank][i]))
			return false;
	}
	return true;
}

static bool has_pending(const struct watch *w, uint32_t rank)
{
	for (int i = 0; i < LENGTH; i++)
		if (w->pending[rank][i])
			return true;
	return false;
}

static bool is_resident(const struct watch *w, uint32_t rank)
{
	return w->state[rank] == TURNS_RESIDENT;
}

/* Could the stream's first record run in the rank's slice? written: as soon as a result has been written. */
static bool could_run(const struct watch *w, uint32_t rank, int stream, bool written)
{
	int i = first_of(w, rank, stream);

	if (i == LENGTH || w->failed[rank] || is_receive(rank, prog[rank][i]))
		return false;
	return is_collective(prog[rank][i]) ? is_behind(w, rank, i, true, BEGUN) : is_behind(w, rank, i, written, OVER);
}

/* Has a program that waits for its streams nothing left to wait for? */
static bool is_done(const struct watch *w, uint32_t rank)
{
	for (int i = 0; i < w->host[rank]; i++)
		if (is_record(prog[rank][i]) && (w->stage[rank][i] != OVER || w->pending[rank][i]))
			return false;
	return !w->runs[rank];
}

static bool polls(const struct watch *w, uint32_t rank)
{
	return is_one_of(letter_of(w, rank), "pqr") && !w->failed[rank];
}

/* What a proxy says of itself. */
static void truth(const struct watch *w, uint32_t rank, uint8_t *due, uint8_t *idle, uint8_t *blocked)
{
	bool waited = !letter_of(w, rank) || letter_of(w, rank) == 'W', any = polls(w, rank), behind = false;

	for (int s = 0; s < STREAMS; s++) {
		any |= could_run(w, rank, s, true);
		behind |= first_of(w, rank, s) != LENGTH;
	}
	*due = any || (has_pending(w, rank) && (waited || behind));
	*idle = !any && !w->runs[rank] && !has_pending(w, rank);
	*blocked = *idle && waited && !is_done(w, rank);
	if (w->state[rank] != TURNS_RESIDENT)
		*idle = *blocked = 0;
}

/* ---- the watch ---- */

static uint64_t oldest(void *ctx, uint32_t seat)
{
	uint64_t born = step_owes(step_of(ctx), seat);

	return born ? born : TURNS_NEVER;
}

static bool waits(void *ctx, uint32_t seat, uint32_t other)
{
	return step_waits(step_of(ctx), seat, other);
}

static bool is_long_due(uint32_t rank)
{
	uint64_t patience = rules.patience * rules.least_ns;

	patience = patience > rules.patience_ns ? patience : rules.patience_ns;
	return now->c.now - now->c.due[rank] >= patience;
}

static bool may_come(uint32_t rank, uint32_t device)
{
	const struct watch *w = &now->w;

	return device_of[rank] == device && w->life[rank] == HERE && w->state[rank] == TURNS_OUT && w->due[rank];
}

/* Rule 2: may the resident's slice end now, as the watch sees it? */
static bool may_end(uint32_t rank)
{
	const struct watch *w = &now->w;
	const struct clock *c = &now->c;
	bool is = false, stuck = false;

	for (uint32_t r = 0; r < RANKS; r++)
		stuck |= r != rank && device_of[r] == device_of[rank] && w->life[r] == HERE && waits(now, rank, r);
	for (uint32_t r = 0; r < RANKS; r++)
		is |= may_come(r, device_of[rank]) &&
		      ((w->idle[rank] && (c->now - c->idle[rank] >= rules.least_ns || (w->blocked[rank] && stuck))) ||
		       (is_long_due(r) && c->now - c->came[rank] >= rules.least_ns));
	return is;
}

/* Rule 3: is there one that ought to come rather than this one? */
static bool is_outranked(uint32_t rank)
{
	bool is = false;

	for (uint32_t r = 0; r < RANKS; r++) {
		if (r == rank || !may_come(r, device_of[rank]))
			continue;
		if (is_long_due(r) != is_long_due(rank))
			is |= is_long_due(r);
		else if (!is_long_due(r) && oldest(now, r) != oldest(now, rank))
			is |= oldest(now, r) < oldest(now, rank);
		else
			is |= now->c.due[r] < now->c.due[rank];
	}
	return is;
}

static void saw_turn(void *ctx, const struct turns_action *a)
{
	struct watch *w = &now->w;
	uint8_t was = a->seat < RANKS ? w->state[a->seat] : TURNS_ABSENT;

	(void)ctx;
	if (a->seat >= RANKS || (w->life[a->seat] != HERE) != (a->state == TURNS_ABSENT))
		return broke("a turn of nobody");
	switch (a->state) {
	case TURNS_COMING:
		for (uint32_t r = 0; r < RANKS; r++)
			if (device_of[r] == device_of[a->seat] && w->state[r] > TURNS_OUT)
				broke("rank %u comes while rank %u has the memory", a->seat, r);
		if (!may_come(a->seat, device_of[a->seat]))
			broke("rank %u comes and is not due", a->seat);
		else if (is_outranked(a->seat))
			broke("rank %u comes before its time", a->seat);
		break;
	case TURNS_LEAVING:
		if (was != TURNS_RESIDENT || !may_end(a->seat))
			broke("rank %u is to leave for no reason", a->seat);
		break;
	case TURNS_RESIDENT:
		if (was == TURNS_RESIDENT)
			break;
		if (was != TURNS_COMING && was != TURNS_LEAVING)
			broke("rank %u becomes resident at once", a->seat);
		now->c.came[a->seat] = now->c.idle[a->seat] = now->c.now;
		w->due[a->seat] = w->idle[a->seat] = w->blocked[a->seat] = 0;
		for (uint32_t r = 0; was == TURNS_LEAVING && r < RANKS; r++)
			now->c.due[r] = device_of[r] == device_of[a->seat] ? now->c.now : now->c.due[r];
		for (uint32_t r = 0; was == TURNS_COMING && r < RANKS; r++)
			if (device_of[r] != device_of[a->seat] && is_resident(w, r) && w->idle[r] && waits(now, r, a->seat))
				now->c.idle[r] = now->c.now;
		break;
	case TURNS_OUT:
		if (was == TURNS_COMING)
			broke("rank %u is out before it came", a->seat);
		w->due[a->seat] = w->idle[a->seat] = w->blocked[a->seat] = 0;
		break;
	default:
		break;
	}
	w->state[a->seat] = a->state;
}

static void saw(void *ctx, const struct step_action *a)
{
	struct watch *w = &now->w;
	uint32_t rank = a->cookie / LENGTH, i = a->cookie % LENGTH;

	(void)ctx;
	switch (a->kind) {
	case STEP_JOINED:
	case STEP_FAILED:
	case STEP_WAKE:
	case STEP_RELEASE:
	case STEP_CANCEL:
		break;
	case STEP_BUFFER:
		broke("a large send goes into a buffer");
		break;
	case STEP_BROKEN:
		for (uint32_t r = 0; r < RANKS * COMMS; r++)
			if (member_of[r / COMMS][r % COMMS] == a->member)
				w->failed[r / COMMS] |= w->life[r / COMMS] == HERE;
		break;
	case STEP_START:
		w->order[rank][i] = a->order;
		w->started[rank][i] = w->state[rank] == TURNS_RESIDENT || w->state[rank] == TURNS_LEAVING ? 1 : 2;
		if (w->started[rank][i] == 2 && !w->copied[rank][i] && !is_receive(rank, prog[rank][i]))
			broke("rank %u's operation %u starts, and its data is not there", rank, i);
		break;
	case STEP_BEGUN:
		w->stage[rank][i] = BEGUN;
		break;
	case STEP_ENDED:
		w->stage[rank][i] = OVER;
		if (a->code)
			w->failed[rank] = 1;
		break;
	}
}

/* ---- events ---- */

enum what {
	HOST, RUN, KERNEL_ENDS, POST, WRITE, START, DONE, SAY, TIME, LEFT, CAME, FINISH, /* disturbances: */ STAY, GIVE, DIE
};

static const char *const what_name[] = {
	"program", "run", "kernel-ends", "post", "write", "start", "done", "say", "time", "left", "came", "finish", "stay", "give",
	"die",
};

struct event {
	uint8_t what, rank, index; /* index: a letter; of RUN: its stream; of TIME: the device is `rank` */
};

/* Has it nothing under way in the device's memory? And are the inputs of what it has posted there? */
static bool is_drained(const struct watch *w, uint32_t rank)
{
	if (w->runs[rank] || has_pending(w, rank))
		return false;
	for (int i = 0; i < LENGTH; i++) {
		if (w->started[rank][i] == 1)
			return false;
		if (w->stage[rank][i] == POSTED && !is_receive(rank, prog[rank][i]) && !is_behind(w, rank, i, false, OVER))
			return false;
	}
	return true;
}

static bool host_goes_on(const struct watch *w, uint32_t rank)
{
	char l = letter_of(w, rank);

	if (!l || w->failed[rank])
		return false;
	if (l == 'W')
		return is_done(w, rank);
	if (is_one_of(l, "XYZ"))
		return w->mail[rank][l - 'X'];
	if (is_one_of(l, "pqr"))
		return is_resident(w, rank) && !w->runs[rank] && w->mail[rank][l - 'p'];
	return true;
}

static int rank_events(const struct watch *w, uint32_t r, struct event *out)
{
	uint8_t due, idle, blocked;
	int n = 0, i;

	truth(w, r, &due, &idle, &blocked);
	if (host_goes_on(w, r))
		out[n++] = (struct event){ HOST, r, 0 };
	for (int s = 0; s < STREAMS; s++) {
		i = first_of(w, r, s);
		if (i == LENGTH || w->failed[r])
			continue;
		if (is_receive(r, prog[r][i]) ? is_behind(w, r, i, true, BEGUN) :
		    is_resident(w, r) && could_run(w, r, s, false) && !w->runs[r])
			out[n++] = (struct event){ is_collective(prog[r][i]) ? POST : RUN, r, i };
	}
	if (w->runs[r])
		out[n++] = (struct event){ KERNEL_ENDS, r, 0 };
	for (i = 0; i < LENGTH; i++)
		if (w->pending[r][i] && (is_resident(w, r) || w->state[r] == TURNS_LEAVING))
			out[n++] = (struct event){ WRITE, r, i };
	if (due != w->due[r] || idle != w->idle[r] || blocked != w->blocked[r])
		out[n++] = (struct event){ SAY, r, 0 };
	if (w->state[r] == TURNS_LEAVING && is_drained(w, r))
		out[n++] = (struct event){ LEFT, r, 0 };
	if (w->state[r] == TURNS_COMING)
		out[n++] = (struct event){ CAME, r, 0 };
	if ((!letter_of(w, r) && is_done(w, r)) || w->failed[r])
		out[n++] = (struct event){ FINISH, r, 0 };
	return n;
}

static int events_of(struct world *world, struct event *out)
{
	struct watch *w = &world->w;
	int n = 0;

	for (uint32_t r = 0; r < RANKS; r++) {
		if (w->life[r] == HERE)
			n += rank_events(w, r, out + n);
		for (int i = 0; i < LENGTH; i++)
			if (w->started[r][i] && w->life[r] != DEAD)
				out[n++] = (struct event){ DONE, r, i };
	}
	for (uint32_t d = 0; d < DEVICES; d++)
		if (turns_next(turns_of(world), d) != TURNS_NEVER)
			out[n++] = (struct event){ TIME, d, 0 };
	return n;
}

static int disturbances_of(const struct watch *w, struct event *out)
{
	int n = 0;

	if (!w->disturbances)
		return 0;
	for (uint32_t r = 0; r < RANKS; r++) {
		if (w->life[r] != HERE)
			continue;
		if (w->state[r] == TURNS_LEAVING && w->runs[r])
			out[n++] = (struct event){ STAY, r, 0 };
		if (w->state[r] == TURNS_RESIDENT && is_drained(w, r))
			out[n++] = (struct event){ GIVE, r, 0 };
		out[n++] = (struct event){ DIE, r, 0 };
	}
	return n;
}

static int tell_step(struct step_event *e)
{
	return step(step_of(now), e, saw, NULL);
}

static int tell_turns(enum turns_event_kind kind, uint32_t rank)
{
	const struct watch *w = &now->w;
	const struct turns_owed owed = { oldest, waits, now };
	struct turns_event e = { .kind = kind, .seat = rank, .device = rank, .now = now->c.now };

	if (kind == TURNS_ENTER)
		e.device = device_of[rank];
	if (kind == TURNS_SAYS) {
		e.due = w->due[rank];
		e.idle = w->idle[rank];
		e.blocked = w->blocked[rank];
	}
	return turns(turns_of(now), &e, &owed, saw_turn, NULL);
}

static int say(uint32_t rank)
{
	struct watch *w = &now->w;
	uint8_t due, idle, blocked;

	truth(w, rank, &due, &idle, &blocked);
	if (due && !w->due[rank])
		now->c.due[rank] = now->c.now;
	if (idle && !w->idle[rank])
		now->c.idle[rank] = now->c.now;
	w->due[rank] = due;
	w->idle[rank] = idle;
	w->blocked[rank] = blocked;
	return tell_turns(TURNS_SAYS, rank);
}

static int post(uint32_t rank, int i)
{
	char l = prog[rank][i];
	struct step_call call = { .kind = STEP_ALLREDUCE, .type = TREE_UINT8, .count = STEP_BUFFERED + 1 };
	struct step_event e = { .kind = STEP_POST, .proxy = rank, .device = rank, .cookie = rank * LENGTH + i, .calls = &call,
				.ncalls = 1, .member = member_of[rank][l == 'B'] };

	if (is_one_of(l, "stu")) {
		call.kind = is_receive(rank, l) ? STEP_RECV : STEP_SEND;
		call.peer = call.kind == STEP_SEND ? (rank + 1) % RANKS : (rank + RANKS - 1) % RANKS;
	}
	now->w.stage[rank][i] = POSTED;
	return tell_step(&e);
}

/* What a program does next; it never waits for a record that it sends. */
static void go_on(uint32_t rank)
{
	struct watch *w = &now->w;
	char l = letter_of(w, rank);

	if (is_one_of(l, "xyz"))
		w->mail[l - 'x'][rank]++;
	else if (is_one_of(l, "XYZ"))
		w->mail[rank][l - 'X']--;
	else if (is_one_of(l, "pqr"))
		w->mail[rank][l - 'p']--;
	else if (is_record(l))
		w->stage[rank][w->host[rank]] = SENT;
	w->host[rank]++;
}

/* A process is gone: with all that was under way. */
static int is_gone(uint32_t rank, bool died)
{
	struct watch *w = &now->w;
	struct step_event e = { .kind = died ? STEP_DIE : STEP_EXIT, .proxy = rank, .device = rank };
	int rc;

	w->life[rank] = died ? DEAD : ENDED;
	w->state[rank] = TURNS_ABSENT;
	w->due[rank] = w->idle[rank] = w->blocked[rank] = w->runs[rank] = w->failed[rank] = 0;
	memset(w->pending[rank], 0, LENGTH);
	memset(w->at[rank], 0, STREAMS);
	w->host[rank] = 0;
	if (died)
		memset(w->started[rank], 0, LENGTH);
	rc = tell_turns(TURNS_ENDS, rank);
	return rc ?: tell_step(&e);
}

/* What the log has for this rank is started. */
static void start_next(uint32_t rank)
{
	struct step_event e = { .kind = STEP_NEXT, .proxy = rank, .device = rank };

	while (now->w.life[rank] != DEAD && tell_step(&e) == 1)
		;
}

static void copy_posted(uint32_t rank)
{
	struct watch *w = &now->w;

	if (!is_drained(w, rank))
		broke("rank %u leaves and has something under way", rank);
	for (int i = 0; i < LENGTH; i++)
		w->copied[rank][i] |= w->stage[rank][i] == POSTED;
}

static int send_event(const struct event *e)
{
	struct watch *w = &now->w;
	uint32_t r = e->rank;
	struct step_event s = { .kind = STEP_DONE, .proxy = r, .device = r };
	uint64_t at;

	switch (e->what) {
	case HOST:
		go_on(r);
		return 0;
	case RUN:
		w->runs[r] = 1;
		w->stage[r][e->index] = OVER;
		return 0;
	case KERNEL_ENDS:
		w->runs[r] = 0;
		return 0;
	case POST:
		return post(r, e->index);
	case WRITE:
		w->pending[r][e->index] = 0;
		return 0;
	case DONE:
		s.order = w->order[r][e->index];
		w->pending[r][e->index] = w->started[r][e->index] == 2 && w->life[r] == HERE && !w->failed[r] &&
					  !(is_one_of(prog[r][e->index], "stu") && !is_receive(r, prog[r][e->index]));
		w->started[r][e->index] = 0;
		return tell_step(&s);
	case SAY:
		return say(r);
	case TIME:
		at = turns_next(turns_of(now), r);
		now->c.now = now->c.now > at ? now->c.now : at;
		return tell_turns(TURNS_TICK, r);
	case LEFT:
		copy_posted(r);
		return tell_turns(TURNS_LEFT, r);
	case CAME:
		return tell_turns(TURNS_CAME, r);
	case FINISH:
		return is_gone(r, false);
	case STAY:
		w->disturbances--;
		return tell_turns(TURNS_STAYS, r);
	case GIVE:
		w->disturbances--;
		copy_posted(r);
		return tell_turns(TURNS_LEFT, r);
	case DIE:
		w->disturbances--;
		return is_gone(r, true);
	}
	return -1;
}

/* ---- what must hold in every world ---- */

static void check_world(void)
{
	const struct watch *w = &now->w;

	for (uint32_t r = 0; r < RANKS; r++) {
		bool has = w->state[r] == TURNS_RESIDENT || w->state[r] == TURNS_LEAVING;

		if (turns_state(turns_of(now), r) != w->state[r])
			broke("rank %u's state was not told", r);
		if (w->runs[r] && !has)
			broke("a kernel of rank %u runs in another's memory", r);
		for (int i = 0; i < LENGTH; i++)
			if (w->started[r][i] == 1 && w->life[r] == HERE && !has)
				broke("the transport is in another's memory for rank %u", r);
	}
}

static bool is_end(const struct watch *w)
{
	for (uint32_t r = 0; r < RANKS; r++)
		if (w->life[r] == HERE)
			return false;
	return true;
}

/* ---- exploring ---- */

#define SEEN  (1u << 22)
#define EDGES (1u << 24)

static struct {
	uint64_t digest;
	uint32_t number;	/* of the world, from 1 */
} *seen;
static struct {
	uint32_t from, to;
} *edges;
static uint8_t *ends;		/* by number: has a way to the end */
static uint32_t nseen, nedges;
static uint64_t worlds;

_Static_assert(sizeof(struct watch) % 8 == 0, "mix() takes words");

/* The world's number; *is_new: nobody has been there. */
static uint32_t number_of(struct world *world, bool *is_new)
{
	uint64_t h = mix(step_digest(step_of(world)), &world->w, sizeof(world->w));
	uint64_t t = turns_digest(turns_of(world), world->c.now);
	uint32_t at;

	h = mix(h, &t, sizeof(t));
	for (at = h % SEEN; seen[at].number; at = (at + 1) % SEEN)
		if (seen[at].digest == h) {
			*is_new = false;
			return seen[at].number;
		}
	seen[at].digest = h;
	seen[at].number = ++nseen;
	*is_new = true;
	if (nseen > SEEN / 8 * 7)
		broke("more worlds than there is room for");
	return nseen;
}

static void be_prompt(void)
{
	struct watch *w = &now->w;

	for (uint32_t r = 0; r < RANKS; r++) {
		uint8_t due, idle, blocked;

		if (w->life[r] != HERE)
			continue;
		while (is_record(letter_of(w, r)) && host_goes_on(w, r))
			go_on(r);
		truth(w, r, &due, &idle, &blocked);
		if ((due != w->due[r] || idle != w->idle[r] || blocked != w->blocked[r]) && say(r))
			broke("rank %u says what is refused", r);
	}
}

static void world_begin(struct world *world, int disturbances)
{
	struct step_event e = { .kind = STEP_ENTER };
	int m;

	memset(world, 0, sizeof(*world));
	now = world;
	*wrong = '\0';
	step_init(world->step, &limits);
	turns_init(world->turns, RANKS, DEVICES, &rules);
	world->w.disturbances = disturbances;
	world->c.now = 1000;
	for (uint32_t r = 0; r < RANKS; r++) {
		e.proxy = e.device = r;
		if (tell_step(&e) || tell_turns(TURNS_ENTER, r))
			broke("a proxy cannot enter");
	}
	e.kind = STEP_JOIN;
	for (uint32_t c = 0; c < COMMS; c++)
		for (uint32_t r = 0; r < (c ? 2 : RANKS); r++) {
			e.proxy = e.rank = r;
			e.comm = c + 1;
			e.ranks = c ? 2 : RANKS;
			m = tell_step(&e);
			member_of[r][c] = m;
			if (m < 0)
				broke("a member cannot join");
		}
	member_of[2][1] = STEP_NONE;
	if (is_prompt)
		be_prompt();
}

static bool try_event(struct world *world, const struct event *e)
{
	int rc;

	now = world;
	rc = send_event(e);
	if (rc < 0)
		broke("%s of %u, %u is refused with %d", what_name[e->what], e->rank, e->index, rc);
	for (uint32_t r = 0; r < RANKS; r++)
		start_next(r);
	if (is_prompt)
		be_prompt();
	check_world();
	return !*wrong;
}

static void print_event(const struct event *e)
{
	printf("# after: %s %u %u\n", what_name[e->what], e->rank, e->index);
}

/* Prints how it came to what is wrong, innermost event first. */
static bool explore(struct world *world, uint32_t number)
{
	struct event events[EVENTS];
	struct world next;
	uint32_t to;
	bool is_new;
	int n;

	worlds++;
	if (is_end(&world->w)) {
		ends[number] = 1;
		return true;
	}
	n = events_of(world, events);
	n += disturbances_of(&world->w, events + n);
	for (int i = 0; i < n; i++) {
		next = *world;
		is_new = false;
		if (try_event(&next, &events[i])) {
			to = number_of(&next, &is_new);
			if (nedges == EDGES)
				broke("more events than there is room for");
			else if (!*wrong) {
				edges[nedges].from = number;
				edges[nedges++].to = to;
			}
			if (!*wrong && (!is_new || explore(&next, to)))
				continue;
		}
		print_event(&events[i]);
		return false;
	}
	return true;
}

/* Does each world have a way to the end? What an event leads to is seen after it, mostly: backwards is quick. */
static bool all_end(void)
{
	bool more = true;
	uint32_t n, left = 0;

	while (more) {
		more = false;
		for (n = nedges; n--;)
			if (ends[edges[n].to] && !ends[edges[n].from])
				ends[edges[n].from] = more = true;
	}
	for (n = 1; n <= nseen; n++)
		left += !ends[n];
	if (left)
		broke("%u of %u worlds have no way to the end", left, nseen);
	return !left;
}

static const uint8_t maps[][RANKS] = { { 0, 0, 0 }, { 0, 0, 1 }, { 0, 1, 0 }, { 0, 1, 1 } };
#define MAPS (sizeof(maps) / sizeof(maps[0]))

static void take_program(const char *words, int map)
{
	int n;

	memset(prog, 0, sizeof(prog));
	n = sscanf(words, "%8s %8s %8s", prog[0], prog[1], prog[2]);
	if (n != RANKS)
		broke("a program of %d words", n);
	memcpy(device_of, maps[map], sizeof(device_of));
}

static bool explore_program(const char *words, int map, int disturbances)
{
	struct world world;
	bool is_new;

	memset(seen, 0, SEEN * sizeof(*seen));
	memset(ends, 0, SEEN);
	nseen = nedges = 0;
	take_program(words, map);
	is_prompt = true;
	world_begin(&world, disturbances);
	if (!*wrong && explore(&world, number_of(&world, &is_new)) && all_end()) {
		if (getenv("SLICE_VERBOSE"))
			printf("# %s on map %d: %u worlds\n", words, map, nseen);
		return true;
	}
	printf("# program %s on map %d: %s\n", words, map, wrong);
	return false;
}

/* ---- random programs, and random runs of them ---- */

static bool add(uint32_t rank, char letter)
{
	size_t n = strlen(prog[rank]);

	if (n < LENGTH)
		prog[rank][n] = letter;
	return n < LENGTH;
}

static bool has_room(void)
{
	for (uint32_t r = 0; r < RANKS; r++)
		if (strlen(prog[r]) + 3 > LENGTH)
			return false;
	return true;
}

/* Ranks do things in one order, so that the program ends on devices of its own. */
static void random_program(void)
{
	memset(prog, 0, sizeof(prog));
	while (has_room()) {
		uint32_t a = rnd(RANKS), b = (a + 1 + rnd(RANKS - 1)) % RANKS, what = rnd(8);

		for (uint32_t r = 0; what < 3 && r < (what == 2 ? 2 : RANKS); r++) {
			if (rnd(3))
				add(r, what == 2 ? 'c' : 'C');
			add(r, what == 2 ? 'B' : 'A');
			if (!rnd(3))
				add(r, 'W');
		}
		if (what == 3) {
			add(a, "stu"[a]);
			add((a + 1) % RANKS, "stu"[a]);
		} else if (what < 6 && what > 3) {
			add(a, "xyz"[b]);
			add(b, (what == 5 ? "pqr" : "XYZ")[a]);
		} else if (what >= 6) {
			add(a, "Cc"[rnd(2)]);
		}
	}
	memcpy(device_of, maps[rnd(MAPS)], sizeof(device_of));
}

#define STEPS 20000

/* One run, with events at random: each that can happen does at some time. */
static bool stroll(int disturbances)
{
	static struct event path[STEPS];
	struct event events[EVENTS];
	struct world world;
	int n, more, steps = 0;

	is_prompt = false;
	world_begin(&world, disturbances);
	while (!*wrong && !is_end(&world.w)) {
		worlds++;
		n = events_of(&world, events);
		more = rnd(16) ? 0 : disturbances_of(&world.w, events + n);
		if (!n && !more)
			broke("nothing can happen any more");
		else if (steps == STEPS)
			broke("no end after %d events", steps);
		else {
			path[steps] = events[rnd(n + more)];
			try_event(&world, &path[steps++]);
		}
	}
	for (int i = steps; *wrong && i-- > 0 && i > steps - 60;)
		print_event(&path[i]);
	return !*wrong;
}

/* ---- single events ---- */

FIXTURE(state)
{
	_Alignas(8) char mem[TURNS_MEMORY];
	struct turns *t;
	uint64_t now;
	uint32_t told, seat, state, last;	/* of the last action; and how many there have been */
};

FIXTURE_SETUP(state)
{
	self->t = turns_init(self->mem, RANKS, DEVICES, &rules);
	self->now = 100;
}

FIXTURE_TEARDOWN(state)
{
}

static void note_turn(void *ctx, const struct turns_action *a)
{
	FIXTURE_DATA(state) *self = ctx;

	self->told++;
	self->seat = a->seat;
	self->state = a->state;
	self->last = a->last;
}

static uint64_t owes_nothing(void *ctx, uint32_t seat)
{
	return TURNS_NEVER;
}

static bool waits_for_nobody(void *ctx, uint32_t seat, uint32_t other)
{
	return false;
}

static int give(FIXTURE_DATA(state) *self, enum turns_event_kind kind, uint32_t seat, const char *says)
{
	static const struct turns_owed owed = { owes_nothing, waits_for_nobody, NULL };
	struct turns_event e = { .kind = kind, .seat = seat, .now = self->now, .due = !strcmp(says, "due"),
				 .idle = !strcmp(says, "idle") };

	return turns(self->t, &e, &owed, note_turn, self);
}

/* Seat `to` comes instead of `from`; the switch takes so long. */
static int switches(FIXTURE_DATA(state) *self, uint32_t from, uint32_t to, uint64_t ns)
{
	int rc = give(self, TURNS_SAYS, from, "idle") | give(self, TURNS_SAYS, to, "due");

	self->now += turns_cost(self->t, 0);
	rc |= give(self, TURNS_TICK, 0, "");
	self->now += ns;
	return rc | give(self, TURNS_LEFT, from, "") | give(self, TURNS_CAME, to, "");
}

TEST_F(state, an_event_that_contradicts_the_state_is_refused)
{
	EXPECT_EQ(turns_size(0, 1), 0);
	EXPECT_EQ(turns_size(1, 0), 0);
	EXPECT_EQ(turns_size(TURNS_MOST + 1, 1), 0);
	EXPECT_EQ(turns_size(1, TURNS_MOST + 1), 0);
	EXPECT_EQ(turns_state(self->t, RANKS), TURNS_ABSENT);
	for (int kind = TURNS_SAYS; kind <= TURNS_ENDS; kind++)
		if (kind != TURNS_TICK)
			EXPECT_EQ(give(self, kind, 0, ""), -EPROTO);
	EXPECT_EQ(give(self, TURNS_ENTER, RANKS, ""), -EPROTO);
	EXPECT_EQ(turns(self->t, &(struct turns_event){ .kind = TURNS_ENTER, .device = DEVICES }, NULL, NULL, NULL), -EPROTO);
	EXPECT_EQ(turns(self->t, &(struct turns_event){ .kind = TURNS_TICK, .device = DEVICES }, NULL, NULL, NULL), -EPROTO);
	EXPECT_EQ(self->told, 0);
	ASSERT_EQ(give(self, TURNS_ENTER, 0, ""), 0);
	EXPECT_EQ(give(self, TURNS_ENTER, 0, ""), -EPROTO);
	EXPECT_EQ(give(self, TURNS_LEFT, 0, ""), -EPROTO);
	EXPECT_EQ(give(self, TURNS_STAYS, 0, ""), -EPROTO);
	EXPECT_EQ(give(self, TURNS_CAME, 0, ""), -EPROTO);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	EXPECT_EQ(turns_state(self->t, 0), TURNS_COMING);
	EXPECT_EQ(give(self, TURNS_LEFT, 0, ""), -EPROTO);
	ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
	EXPECT_EQ(give(self, TURNS_CAME, 0, ""), -EPROTO);
	EXPECT_EQ(give(self, TURNS_STAYS, 0, ""), -EPROTO);
}

TEST_F(state, a_resident_may_leave_unasked)
{
	ASSERT_EQ(give(self, TURNS_ENTER, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_ENTER, 1, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_LEFT, 0, ""), 0);
	EXPECT_EQ(turns_state(self->t, 0), TURNS_OUT);
	EXPECT_EQ(give(self, TURNS_LEFT, 0, ""), -EPROTO);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	EXPECT_EQ(self->state, TURNS_COMING);
	EXPECT_EQ(self->last, 0);
	ASSERT_EQ(give(self, TURNS_CAME, 1, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	ASSERT_EQ(give(self, TURNS_LEFT, 1, ""), 0);
	EXPECT_EQ(self->seat, 0);
	EXPECT_EQ(self->last, 1);
}

TEST_F(state, whose_bytes_lie_there_is_told)
{
	for (uint32_t seat = 0; seat < RANKS; seat++)
		ASSERT_EQ(give(self, TURNS_ENTER, seat, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	EXPECT_EQ(self->state, TURNS_COMING);
	EXPECT_EQ(self->last, TURNS_NONE);
	ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
	ASSERT_EQ(switches(self, 0, 1, 1), 0);
	EXPECT_EQ(self->seat, 1);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "idle"), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 2, "due"), 0);
	self->now += turns_cost(self->t, 0);
	ASSERT_EQ(give(self, TURNS_TICK, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_LEFT, 1, ""), 0);
	EXPECT_EQ(self->seat, 2);
	EXPECT_EQ(self->state, TURNS_COMING);
	EXPECT_EQ(self->last, 1);
	/* One that ends in its slice leaves bytes that are nobody's. */
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	ASSERT_EQ(give(self, TURNS_ENDS, 2, ""), 0);
	EXPECT_EQ(self->seat, 1);
	EXPECT_EQ(self->last, TURNS_NONE);
	ASSERT_EQ(give(self, TURNS_CAME, 1, ""), 0);
	ASSERT_EQ(switches(self, 1, 0, 1), 0);
	/* And so does one that ends after its slice. */
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "idle"), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	self->now += turns_cost(self->t, 0);
	ASSERT_EQ(give(self, TURNS_TICK, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, ""), 0);
	ASSERT_EQ(give(self, TURNS_LEFT, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_ENDS, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	EXPECT_EQ(self->state, TURNS_COMING);
	EXPECT_EQ(self->last, TURNS_NONE);
}

TEST_F(state, a_cost_and_a_patience_follow_the_last_switch)
{
	ASSERT_EQ(give(self, TURNS_ENTER, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_ENTER, 1, ""), 0);
	EXPECT_EQ(turns_cost(self->t, 0), rules.least_ns);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
	/* Of one that has something to run: by its patience, which is patience_ns at least. */
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	EXPECT_EQ(turns_next(self->t, 0), self->now + rules.patience_ns);
	/* Of one that has nothing to run: by its cost. */
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "idle"), 0);
	EXPECT_EQ(turns_next(self->t, 0), self->now + rules.least_ns);
	ASSERT_EQ(switches(self, 0, 1, 10), 0);
	EXPECT_EQ(turns_cost(self->t, 0), 10);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	EXPECT_EQ(turns_next(self->t, 0), self->now + 30);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "idle"), 0);
	EXPECT_EQ(turns_next(self->t, 0), self->now + 10);
	ASSERT_EQ(switches(self, 1, 0, 1), 0);
	EXPECT_EQ(turns_cost(self->t, 0), rules.least_ns);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
}

/* A slice ends for a sharer that wants no more, or has ended, before it could come. */
TEST_F(state, a_pause_in_which_nobody_is_due_is_no_cost)
{
	for (uint32_t seat = 0; seat < RANKS; seat++)
		ASSERT_EQ(give(self, TURNS_ENTER, seat, ""), 0);
	for (int ends = 0; ends < 2; ends++) {
		ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
		ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
		ASSERT_EQ(give(self, TURNS_SAYS, 0, "idle"), 0);
		ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
		self->now += turns_cost(self->t, 0);
		ASSERT_EQ(give(self, TURNS_TICK, 0, ""), 0);
		EXPECT_EQ(self->state, TURNS_LEAVING);
		ASSERT_EQ(ends ? give(self, TURNS_ENDS, 1, "") : give(self, TURNS_SAYS, 1, ""), 0);
		ASSERT_EQ(give(self, TURNS_LEFT, 0, ""), 0);
		self->now += 1000;
		ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
		ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
		EXPECT_EQ(turns_cost(self->t, 0), rules.least_ns);
		ASSERT_EQ(give(self, TURNS_LEFT, 0, ""), 0);
	}
}

TEST_F(state, since_when_is_what_was_said_first)
{
	uint64_t next;

	ASSERT_EQ(give(self, TURNS_ENTER, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_ENTER, 1, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	next = turns_next(self->t, 0);
	self->now++;
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	EXPECT_EQ(turns_next(self->t, 0), next);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "idle"), 0);
	next = turns_next(self->t, 0);
	self->now++;
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "idle"), 0);
	EXPECT_EQ(turns_next(self->t, 0), next);
}

TEST_F(state, a_resident_is_told_that_another_is_due)
{
	uint32_t told;

	for (uint32_t seat = 0; seat < RANKS; seat++)
		ASSERT_EQ(give(self, TURNS_ENTER, seat, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
	told = self->told;
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	EXPECT_EQ(self->told, told + 1);
	EXPECT_EQ(self->seat, 0);
	EXPECT_EQ(self->state, TURNS_RESIDENT);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	EXPECT_EQ(self->told, told + 1);
	ASSERT_EQ(give(self, TURNS_SAYS, 2, "due"), 0);
	EXPECT_EQ(self->told, told + 2);
}

TEST_F(state, a_slice_that_goes_on_is_as_long_as_a_new_one)
{
	ASSERT_EQ(give(self, TURNS_ENTER, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_ENTER, 1, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	/* What it has said before its slice does not count in it. */
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "idle"), 0);
	ASSERT_EQ(give(self, TURNS_CAME, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	EXPECT_EQ(turns_next(self->t, 0), self->now + rules.patience_ns);
	self->now += rules.patience_ns;
	ASSERT_EQ(give(self, TURNS_TICK, 0, ""), 0);
	EXPECT_EQ(turns_state(self->t, 0), TURNS_LEAVING);
	self->now += 50;
	ASSERT_EQ(give(self, TURNS_STAYS, 0, ""), 0);
	EXPECT_EQ(turns_state(self->t, 0), TURNS_RESIDENT);
	EXPECT_EQ(turns_next(self->t, 0), self->now + rules.patience_ns);
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "idle"), 0);
	EXPECT_EQ(turns_next(self->t, 0), self->now + rules.least_ns);
	/* One that was to leave as it had nothing to run, and has got something since. */
	self->now += rules.least_ns;
	ASSERT_EQ(give(self, TURNS_TICK, 0, ""), 0);
	EXPECT_EQ(turns_state(self->t, 0), TURNS_LEAVING);
	ASSERT_EQ(give(self, TURNS_STAYS, 0, ""), 0);
	EXPECT_EQ(turns_state(self->t, 0), TURNS_RESIDENT);
}

/* Seat 1, on the other device, waits for seat 0. */
static bool waits_across(void *ctx, uint32_t seat, uint32_t other)
{
	return seat == 1 && other == 0;
}

TEST_F(state, who_waits_for_one_that_comes_elsewhere_waits_anew)
{
	static const struct turns_owed owed = { owes_nothing, waits_across, NULL };
	struct turns_event e = { .kind = TURNS_ENTER, .seat = 1, .device = 1, .now = self->now };

	ASSERT_EQ(turns(self->t, &e, &owed, note_turn, self), 0);
	e.seat = 2;
	ASSERT_EQ(turns(self->t, &e, &owed, note_turn, self), 0);
	ASSERT_EQ(give(self, TURNS_ENTER, 0, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "due"), 0);
	ASSERT_EQ(give(self, TURNS_CAME, 1, ""), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 2, "due"), 0);
	ASSERT_EQ(give(self, TURNS_SAYS, 1, "idle"), 0);
	EXPECT_EQ(turns_next(self->t, 1), self->now + rules.least_ns);
	self->now++;
	ASSERT_EQ(give(self, TURNS_SAYS, 0, "due"), 0);
	e = (struct turns_event){ .kind = TURNS_CAME, .seat = 0, .now = self->now };
	ASSERT_EQ(turns(self->t, &e, &owed, note_turn, self), 0);
	EXPECT_EQ(turns_next(self->t, 1), self->now + rules.least_ns);
}

#ifdef SLICE_BRIEF		/* under sanitizers, which have other things to find */
#define STRIDE  5
#define STROLLS 1000
#else
#define STRIDE  1
#define STROLLS 20000
#endif

FIXTURE(worlds)
{
	bool is_long;
};

FIXTURE_SETUP(worlds)
{
	const char *mode = getenv("SLICE_EXPLORE");

	self->is_long = mode && !strcmp(mode, "long");
	seen = calloc(SEEN, sizeof(*seen));
	edges = calloc(EDGES, sizeof(*edges));
	ends = calloc(SEEN, 1);
	ASSERT_NE(seen, NULL);
	ASSERT_NE(edges, NULL);
	ASSERT_NE(ends, NULL);
	ASSERT_LE(step_size(&limits), STEP_MEMORY);
	ASSERT_LE(turns_size(RANKS, DEVICES), TURNS_MEMORY);
}

FIXTURE_TEARDOWN(worlds)
{
	printf("# %llu worlds\n", (unsigned long long)worlds);
	free(seen);
	free(edges);
	free(ends);
}

static const char *const programs[] = {
	"CACW CACW CACW",	/* data-parallel */
	"CAAW CAAW CAAW",
	"CA CA CAW",		/* nobody waits but one */
	"AyCW AXCW ACW",	/* a message behind a collective */
	"CsCW CsW CW",		/* a pair, and one that only computes */
	"sCuW sCtW tCuW",	/* a ring of receives before sends */
	"yACW XACW ACW",	/* a rank that is late, for another's message */
	"qACW CxACW ACW",	/* one that polls with kernels until then */
	"qA rxA CyA",		/* one polls for one that polls */
	"BAW BAW cAW",		/* two communicators, two streams */
	"ABcW ABCW CAC",
	"rCW CC CCx",		/* one polls for one that has no collective at all */
};

#define EACH_OF(programs, map)                                                     \
	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)        \
		for (int map = (int)i % STRIDE; map < (int)MAPS; map += STRIDE)

TEST_F(worlds, undisturbed_programs_end_in_every_order_of_events)
{
	EACH_OF(programs, map)
		ASSERT_TRUE(explore_program(programs[i], map, 0));
}

TEST_F(worlds, with_a_death_a_slice_given_up_or_a_kernel_that_stays_all_others_end)
{
	EACH_OF(programs, map)
		if (self->is_long || ((i + map) % 4 == 0 && strcspn(programs[i], "B") == strlen(programs[i])))
			ASSERT_TRUE(explore_program(programs[i], map, 1));
}

TEST_F(worlds, strolls_through_random_programs)
{
	for (int i = 0; i < (self->is_long ? 1000000 : STROLLS); i++) {
		random_program();
		if (stroll(rnd(3)))
			continue;
		printf("# program %s %s %s on devices %u %u %u: %s\n", prog[0], prog[1], prog[2], device_of[0], device_of[1],
		       device_of[2], wrong);
		ASSERT_TRUE(false);
	}
}

TEST_HARNESS_MAIN
