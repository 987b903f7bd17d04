// SPDX-License-Identifier: Apache-2.0
/*
 * explore.c - every interleaving of what three ranks post, devices start and end, and who goes when
 *
 * A *world* is a state of uproxy/coll/step.h with a *watch* beside it: what the test knows of each
 * rank's program, and what the actions have told so far. From each world all events are tried that
 * a rank or device could cause there, unless an equal world has been seen. The watch checks each
 * action against the rules of step.h, on its own account: it knows which calls belong together.
 *
 * A program is a sequence of operations, of which each rank posts its part: on one stream or
 * several, singly or in groups, with two ranks on one device or none.
 *
 * In `make check` some programs are explored whole and all others at random; `coll-explore-long`
 * (COLL_EXPLORE=long) explores all.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step.h"
#include "tree.h"

#include "kselftest_harness.h"
#include "../harness/patience.h"
#include "worlds.h"

#define RANKS  3
#define OPS    4
#define COMMS  2
#define ALL    7
#define RECS   8
#define LARGE  (STEP_BUFFERED + 1)
#define EVENTS 96

/* An operation of a program: of the communicator of ranks 0, 1, 2 or of that of ranks 0, 1. */
struct kind {
	char letter;
	uint8_t comm, is_pair, source, destination, liar;
	uint8_t call;
	uint64_t count;
};

static const struct kind kinds[] = {
	{ 'A', 0, .call = STEP_ALLREDUCE, .count = 100 },
	{ 'b', 1, .call = STEP_BROADCAST, .count = 100 },
	{ 'p', 0, 1, 0, 1, .count = LARGE },
	{ 'q', 0, 1, 1, 2, .count = 10 }, /* ends when posted */
	{ 'r', 0, 1, 2, 0, .count = LARGE },
	{ 's', 0, 1, 2, 2, .count = LARGE }, /* to itself */
	{ 't', 1, 1, 1, 0, .count = 10 },
	{ 'M', 0, .call = STEP_ALLGATHER, .count = 100, .liar = 1 }, /* rank 1 has another count */
	{ 'Z', 0, .call = STEP_ALLREDUCE, .count = 0 },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct rec {
	uint8_t comm, stream, ncalls;
	uint8_t op[2 * OPS];
	struct step_call calls[2 * OPS];
};

struct program {
	char name[64];
	struct kind ops[OPS];
	uint8_t nops;
	uint8_t members[OPS]; /* a mask of ranks */
	uint8_t device[RANKS];
	uint8_t nrecs[RANKS];
	struct rec recs[RANKS][RECS];
};

enum life { HERE, EXITED, DEAD };

/*
 * What the watch knows of a call of a rank for an operation; a rank that sends to itself has one.
 */
enum stage { NOTHING, POSTED, STARTED, OVER };

struct watch {
	uint8_t life[RANKS], released[RANKS];
	uint8_t left[RANKS][COMMS], broken[RANKS][COMMS], is_broken[COMMS];
	uint8_t posted[RANKS][RECS], begun[RANKS][RECS], ended[RANKS][RECS];
	uint8_t stage[OPS][RANKS];
	uint8_t told[OPS][RANKS]; /* the rank has nothing to wait for */
	uint8_t failed[OPS]; /* the code; 0 if it has not */
	uint8_t announced[OPS];
	uint8_t cancelled[OPS][RANKS]; /* on a device */
	uint8_t started[OPS][RANKS]; /* on a device: 1 started, 2 done */
	uint8_t order[OPS];
	uint8_t last[RANKS], woken[RANKS]; /* of a device: orders */
	uint8_t disturbances; /* still to come */
} __attribute__((aligned(8)));

#define MEMORY 6144

struct world {
	struct watch w;
	_Alignas(8) char mem[MEMORY];
};

static struct program prog;
static struct world *now; /* whose actions are being watched */
static uint32_t member_of[RANKS][COMMS];
static size_t state_size;
static uint64_t worlds;

static struct step *state_of(struct world *world)
{
	return (struct step *)world->mem;
}

static const struct step_limits limits = { 3, 3, COMMS, 5, 10, 20, 16 };

/* ---- programs ---- */

static void add_call(struct rec *r, const struct kind *k, uint8_t op, uint32_t rank, uint8_t call)
{
	struct step_call *c = &r->calls[r->ncalls];

	*c = (struct step_call){ .kind = call, .type = TREE_UINT8, .count = k->count };
	if (k->is_pair)
		c->peer = call == STEP_SEND ? k->destination : k->source;
	if (k->liar && rank == 1)
		c->count++;
	r->op[r->ncalls++] = op;
}

static void add_op(struct rec *r, uint8_t op, uint32_t rank)
{
	const struct kind *k = &prog.ops[op];

	if (!k->is_pair) {
		add_call(r, k, op, rank, k->call);
		return;
	}
	if (k->source == rank)
		add_call(r, k, op, rank, STEP_SEND);
	if (k->destination == rank)
		add_call(r, k, op, rank, STEP_RECV);
}

/* The records of a rank for a block of operations: one for each communicator. */
static void add_block(uint32_t rank, uint8_t from, uint8_t to, int streams, bool opposite)
{
	int c, i, n;

	for (c = 0; c < COMMS; c++) {
		int comm = opposite && rank == 1 ? COMMS - 1 - c : c;
		struct rec *r = &prog.recs[rank][prog.nrecs[rank]];

		memset(r, 0, sizeof(*r));
		r->comm = comm;
		r->stream = streams == 0 ? 0 : streams == 1 ? comm : 2 * from + comm;
		/* In a group the order of pairs is anybody's choice. */
		for (n = 0; n < to - from; n++) {
			i = opposite && rank == 1 ? to - 1 - n : from + n;
			if (prog.ops[i].comm == comm && prog.ops[i].is_pair &&
			    prog.members[i] >> rank & 1)
				add_op(r, i, rank);
		}
		for (i = from; i < to; i++)
			if (prog.ops[i].comm == comm && !prog.ops[i].is_pair &&
			    prog.members[i] >> rank & 1)
				add_op(r, i, rank);
		prog.nrecs[rank] += !!r->ncalls;
	}
}

/* Two pairs between the same ranks must come in one order. */
static bool is_legal(bool opposite)
{
	int i, j;

	for (i = 0; opposite && i < prog.nops; i++)
		for (j = 0; j < i; j++)
			if (prog.ops[i].letter == prog.ops[j].letter && prog.ops[i].is_pair)
				return false;
	return true;
}

/* variant: streams (3) × group size 1, 2, 4 (3) × in opposite order (2) × who share a device (3) */
#define VARIANTS 54

static bool make_program(const char *letters, int variant)
{
	int streams = variant % 3, group = 1 << variant / 3 % 3, i;
	static const uint8_t devices[3][RANKS] = { { 0, 1, 2 }, { 0, 0, 1 }, { 0, 1, 1 } };
	bool opposite = variant / 9 % 2;
	uint32_t rank, k;

	memset(&prog, 0, sizeof(prog));
	snprintf(prog.name, sizeof(prog.name), "%s/%d", letters, variant);
	for (i = 0; letters[i]; i++) {
		for (k = 0; kinds[k].letter != letters[i]; k++)
			;
		prog.ops[i] = kinds[k];
		prog.members[i] = kinds[k].is_pair ?
		                          1 << kinds[k].source | 1 << kinds[k].destination :
		                  kinds[k].comm ? 3 :
		                                  ALL;
	}
	prog.nops = i;
	/* On one stream the order of communicators must be the same everywhere. */
	if ((opposite && streams == 0) || !is_legal(opposite))
		return false;
	for (rank = 0; rank < RANKS; rank++) {
		prog.device[rank] = devices[variant / 18][rank];
		for (i = 0; i < prog.nops; i += group)
			add_block(rank, i, i + group < prog.nops ? i + group : prog.nops, streams,
			          opposite);
	}
	return true;
}

/* ---- the watch ---- */

static bool is_lost(const struct watch *w, uint32_t device)
{
	uint32_t r;

	for (r = 0; r < RANKS; r++)
		if (prog.device[r] == device && w->life[r] != DEAD && !w->released[r])
			return false;
	return true;
}

static bool is_stopped(const struct watch *w, int op)
{
	uint32_t d;

	for (d = 0; d < RANKS; d++)
		if (w->started[op][d] == 1 && !is_lost(w, d))
			return false;
	return true;
}

/* The record that an action names. */
static const struct rec *named(const struct step_action *a, uint32_t *rank, uint32_t *index)
{
	const struct rec *r;

	*rank = a->cookie / RECS;
	*index = a->cookie % RECS;
	if (*rank >= RANKS || *index >= prog.nrecs[*rank]) {
		broke("an action names no record");
		return NULL;
	}
	r = &prog.recs[*rank][*index];
	if (member_of[*rank][r->comm] != a->member)
		broke("an action names another member than the record's");
	if (now->w.life[*rank] != HERE && a->kind != STEP_START)
		broke("rank %u is gone and hears of its records", *rank);
	return r;
}

static void saw_start(const struct step_action *a)
{
	struct watch *w = &now->w;
	uint32_t rank, index, r, on = 0;
	const struct rec *rec = named(a, &rank, &index);
	int op;

	if (!rec || a->call >= rec->ncalls) {
		broke("a start of no call");
		return;
	}
	op = rec->op[a->call];
	for (r = 0; r < RANKS; r++) {
		if (!(prog.members[op] >> r & 1))
			continue;
		on += prog.device[r] == a->device;
		if (w->stage[op][r] == NOTHING)
			broke("operation %d started before rank %u has posted it", op, r);
	}
	on *= prog.ops[op].is_pair && prog.ops[op].source == prog.ops[op].destination ? 2 : 1;
	if (w->failed[op])
		broke("operation %d started after it had failed", op);
	if (prog.device[rank] != a->device || a->more >= on)
		broke("operation %d started for a rank that is elsewhere", op);
	/* The first of the device's parts. */
	if (a->more + 1 == on) {
		if (w->started[op][a->device])
			broke("operation %d started twice", op);
		if (w->order[op] && w->order[op] != a->order)
			broke("operation %d has two places in the log", op);
		for (r = 0; r < OPS; r++)
			if ((int)r != op && w->order[r] == a->order)
				broke("operations %d and %u have one place in the log", op, r);
		if (w->last[a->device] >= a->order)
			broke("device %u starts in another order than the log's", a->device);
		if (w->woken[a->device] < a->order)
			broke("device %u was not woken", a->device);
		w->order[op] = a->order;
		w->last[a->device] = a->order;
		w->started[op][a->device] = 1;
	} else if (w->order[op] != a->order || w->last[a->device] != a->order) {
		broke("one start of two operations");
	}
	w->stage[op][rank] = STARTED;
}

static void saw_begun(const struct step_action *a)
{
	struct watch *w = &now->w;
	uint32_t rank, index, i;
	const struct rec *rec = named(a, &rank, &index);

	if (!rec)
		return;
	if (w->begun[rank][index]++)
		broke("rank %u's record %u begins twice", rank, index);
	for (i = 0; i < rec->ncalls; i++)
		if (rec->calls[i].count && w->stage[rec->op[i]][rank] < STARTED &&
		    !w->told[rec->op[i]][rank] && !w->failed[rec->op[i]])
			broke("rank %u's record %u begins too early", rank, index);
}

static void saw_ended(const struct step_action *a)
{
	struct watch *w = &now->w;
	uint32_t rank, index, i;
	const struct rec *rec = named(a, &rank, &index);
	bool failed = false, known = false;

	if (!rec)
		return;
	if (w->ended[rank][index]++)
		broke("rank %u's record %u ends twice", rank, index);
	if (!w->begun[rank][index])
		broke("rank %u's record %u ends before it begins", rank, index);
	for (i = 0; i < rec->ncalls; i++) {
		int op = rec->op[i];

		if (!rec->calls[i].count || w->told[op][rank])
			continue;
		if (w->stage[op][rank] == OVER)
			continue;
		if (!w->failed[op])
			broke("rank %u's record %u ends before operation %d", rank, index, op);
		if (w->stage[op][rank] == STARTED && !is_stopped(w, op))
			broke("rank %u's record %u ends while operation %d goes on", rank, index,
			      op);
		failed = true;
		known |= w->failed[op] == a->code;
	}
	if (failed ? !known : a->code)
		broke("rank %u's record %u ends with %u", rank, index, a->code);
	for (i = 0; i < rec->ncalls; i++)
		w->told[rec->op[i]][rank] = 1;
}

static void saw_buffer(const struct step_action *a)
{
	uint32_t rank, index;
	const struct rec *rec = named(a, &rank, &index);

	if (!rec || a->call >= rec->ncalls || rec->calls[a->call].kind != STEP_SEND ||
	    rec->calls[a->call].count > STEP_BUFFERED)
		broke("what is no small send goes into a buffer");
	else
		now->w.told[rec->op[a->call]][rank] = 1;
}

static void saw_failed(const struct step_action *a)
{
	const struct step_failure *f = &a->failure;
	uint64_t number = 0;
	bool known = false;
	char text[200];
	int op;

	step_sentence(&a->failure, text, sizeof(text));
	/*
	 * What the watch expects. One that fails for each of those who post it may be told twice.
	 */
	for (op = 0; op < prog.nops; op++) {
		const struct kind *k = &prog.ops[op];

		if (!k->count || k->comm != a->comm - 1 || k->is_pair != (f->kind >= STEP_SEND))
			continue;
		if (k->is_pair ? k->source != f->source || k->destination != f->destination :
		                 number++ != f->number)
			continue;
		if (now->w.failed[op] != f->code)
			continue;
		known = true;
		if (now->w.announced[op])
			continue;
		now->w.announced[op] = 1;
		break;
	}
	if (!known)
		broke("unexpected: %s", text);
}

static void saw_cancel(const struct step_action *a)
{
	int op;

	for (op = 0; op < prog.nops; op++)
		if (now->w.order[op] == a->order && now->w.started[op][a->device] == 1)
			break;
	if (op == prog.nops || now->w.cancelled[op][a->device]++ || !now->w.failed[op])
		broke("device %u cancels what it need not", a->device);
}

static void saw_release(uint32_t rank)
{
	struct watch *w = &now->w;
	int op;

	if (w->life[rank] != EXITED || w->released[rank]++)
		broke("proxy %u is released and has not left", rank);
	for (op = 0; op < prog.nops; op++)
		if ((prog.members[op] >> rank & 1) && w->stage[op][rank] != NOTHING &&
		    w->stage[op][rank] != OVER && !w->failed[op])
			broke("proxy %u is released before operation %d is over", rank, op);
}

static void saw(void *ctx, const struct step_action *a)
{
	uint32_t r;

	(void)ctx;
	switch (a->kind) {
	case STEP_JOINED:
		if (a->code)
			broke("a creation failed");
		break;
	case STEP_WAKE:
		now->w.woken[a->device] = a->order;
		break;
	case STEP_START:
		saw_start(a);
		break;
	case STEP_BUFFER:
		saw_buffer(a);
		break;
	case STEP_CANCEL:
		saw_cancel(a);
		break;
	case STEP_BEGUN:
		saw_begun(a);
		break;
	case STEP_ENDED:
		saw_ended(a);
		break;
	case STEP_FAILED:
		saw_failed(a);
		break;
	case STEP_BROKEN:
		for (r = 0; r < RANKS * COMMS; r++)
			if (member_of[r / COMMS][r % COMMS] == a->member)
				now->w.broken[r / COMMS][r % COMMS] = 1;
		break;
	case STEP_RELEASE:
		saw_release(a->proxy);
		break;
	}
}

/* ---- events ---- */

enum what { POST, START, DONE, BREAK, LEAVE, EXIT, DIE };

struct event {
	uint8_t what, rank, index; /* device, operation */
};

static bool is_member(int op, uint32_t rank)
{
	return prog.members[op] >> rank & 1;
}

/* What a member's going does to the operations: R3 and R8, as the test understands them. */
static void expect_failures(struct watch *w, uint32_t rank, uint32_t comm, bool died)
{
	bool was_in = !w->left[rank][comm];
	uint32_t r;
	int op;

	for (op = 0; op < prog.nops; op++) {
		bool needed, over = true;

		if (prog.ops[op].comm != comm || w->failed[op] || !prog.ops[op].count)
			continue;
		for (r = 0; r < RANKS; r++)
			over &= !is_member(op, r) || w->stage[op][r] == OVER;
		if (is_member(op, rank))
			needed = w->stage[op][rank] != OVER && (died || !w->told[op][rank]) &&
			         (was_in || w->stage[op][rank] != NOTHING);
		else
			needed = died && was_in && !over;
		if (needed)
			w->failed[op] = STEP_REMOTE;
	}
}

static bool was_posted(const struct watch *w, int op)
{
	uint32_t r;

	for (r = 0; r < RANKS; r++)
		if (w->stage[op][r] != NOTHING)
			return true;
	return false;
}

static void record_posted(struct watch *w, uint32_t rank, uint32_t index)
{
	const struct rec *rec = &prog.recs[rank][index];
	uint32_t i, r;

	w->posted[rank][index] = 1;
	for (i = 0; i < rec->ncalls; i++) {
		int op = rec->op[i];

		if (!rec->calls[i].count)
			continue;
		w->stage[op][rank] = POSTED;
		for (r = 0; r < RANKS; r++)
			if (prog.ops[op].liar && !w->failed[op] && r != rank &&
			    (r == 1 || rank == 1) && w->stage[op][r] != NOTHING)
				w->failed[op] = STEP_INVALID_USAGE;
	}
}

static int send_event(const struct event *e)
{
	struct watch *w = &now->w;
	struct step_event s = { .proxy = e->rank, .device = e->rank };
	const struct rec *rec;
	uint32_t r, c;

	switch (e->what) {
	case POST:
		rec = &prog.recs[e->rank][e->index];
		s.kind = STEP_POST;
		s.member = member_of[e->rank][rec->comm];
		s.cookie = e->rank * RECS + e->index;
		s.calls = rec->calls;
		s.ncalls = rec->ncalls;
		record_posted(w, e->rank, e->index);
		break;
	case START:
		s.kind = STEP_NEXT;
		break;
	case BREAK:
	case DONE:
		s.kind = STEP_DONE;
		s.order = w->order[e->index];
		w->started[e->index][e->rank] = 2;
		if (e->what == BREAK) {
			s.code = STEP_SYSTEM;
			w->failed[e->index] = STEP_SYSTEM;
			w->disturbances--;
		}
		for (r = 0; r < RANKS; r++)
			if (is_member(e->index, r) && prog.device[r] == e->rank)
				w->stage[e->index][r] = w->failed[e->index] ? STARTED : OVER;
		break;
	case LEAVE:
		s.kind = STEP_LEAVE;
		s.member = member_of[e->rank][e->index];
		w->disturbances--;
		expect_failures(w, e->rank, e->index, false);
		w->left[e->rank][e->index] = 1;
		break;
	case EXIT:
	case DIE:
		s.kind = e->what == EXIT ? STEP_EXIT : STEP_DIE;
		if (e->index)
			w->disturbances--;
		w->life[e->rank] = e->what == EXIT ? EXITED : DEAD;
		for (c = 0; c < COMMS; c++) {
			if (c && e->rank == 2)
				continue;
			expect_failures(w, e->rank, c, e->what == DIE);
			w->is_broken[c] |= e->what == DIE && !w->left[e->rank][c];
			w->left[e->rank][c] = 1;
		}
		break;
	}
	return step(state_of(now), &s, saw, NULL);
}

/* Whether a rank has nothing more to do. */
static bool is_finished(const struct watch *w, uint32_t rank)
{
	uint32_t i;

	for (i = 0; i < prog.nrecs[rank]; i++)
		if (!w->ended[rank][i])
			return false;
	return true;
}

static bool may_post(const struct watch *w, uint32_t rank, uint32_t index)
{
	const struct rec *r = &prog.recs[rank][index];
	uint32_t i;

	if (w->posted[rank][index] || w->life[rank] != HERE || w->left[rank][r->comm])
		return false;
	for (i = 0; i < index; i++) {
		const struct rec *before = &prog.recs[rank][i];

		if (w->left[rank][before->comm])
			continue;
		if ((before->comm == r->comm && !w->posted[rank][i]) ||
		    (before->stream == r->stream && !w->begun[rank][i]))
			return false;
	}
	return true;
}

static int events_of(const struct watch *w, struct event *out)
{
	uint32_t r, i;
	int n = 0;

	for (r = 0; r < RANKS; r++) {
		for (i = 0; i < prog.nrecs[r]; i++)
			if (may_post(w, r, i))
				out[n++] = (struct event){ POST, r, i };
		if (!is_lost(w, r) && w->woken[r] > w->last[r])
			out[n++] = (struct event){ START, r, 0 };
		for (i = 0; i < prog.nops; i++)
			if (w->started[i][r] == 1 && !is_lost(w, r))
				out[n++] = (struct event){ DONE, r, i };
		if (w->life[r] == HERE && is_finished(w, r))
			out[n++] = (struct event){ EXIT, r, 0 };
	}
	return n;
}

static int disturbances_of(const struct watch *w, struct event *out)
{
	uint32_t r, i;
	int n = 0;

	if (!w->disturbances)
		return 0;
	for (r = 0; r < RANKS; r++) {
		for (i = 0; i < prog.nops; i++)
			if (w->started[i][r] == 1 && !is_lost(w, r) && !w->failed[i])
				out[n++] = (struct event){ BREAK, r, i };
		if (w->life[r] == HERE) {
			for (i = 0; i < (r == 2 ? 1 : COMMS); i++)
				if (!w->left[r][i])
					out[n++] = (struct event){ LEAVE, r, i };
			if (!is_finished(w, r))
				out[n++] = (struct event){ EXIT, r, 1 };
		}
		if (w->life[r] != DEAD && !w->released[r])
			out[n++] = (struct event){ DIE, r, 1 };
	}
	return n;
}

/* ---- what must hold in every world ---- */

/* What step_cancels() says for one device. */
struct cancels {
	uint32_t device;
	uint8_t op[OPS];
};

static void saw_again(void *ctx, const struct step_action *a)
{
	struct cancels *c = ctx;
	int op;

	for (op = 0; op < prog.nops; op++)
		if (now->w.order[op] == a->order && now->w.started[op][c->device] == 1)
			break;
	if (a->kind != STEP_CANCEL || a->device != c->device || op == prog.nops || c->op[op]++)
		broke("device %u is to cancel what it need not", c->device);
}

/* All that has been cancelled, and goes on. */
static void check_cancels(uint32_t device)
{
	const struct watch *w = &now->w;
	struct cancels c = { .device = device };
	int op;

	if (is_lost(w, device))
		return;
	step_cancels(state_of(now), device, saw_again, &c);
	for (op = 0; op < prog.nops; op++)
		if (c.op[op] != (w->cancelled[op][device] && w->started[op][device] == 1))
			broke("device %u is %sto cancel operation %d", device, c.op[op] ? "" : "not ",
			      op);
}

/* A state that is reached can be saved, and what is loaded goes on alike: each sixteenth one is tried. */
static void check_image(void)
{
	_Alignas(8) char mem[MEMORY];
	struct step *again;
	static unsigned int nth;
	const char *why = NULL;
	void *image;
	size_t len;
	int rc;

	if (nth++ % 16)
		return;
	if (step_save(state_of(now), &image, &len)) {
		broke("no memory");
		return;
	}
	again = step_init(mem, &limits);
	rc = step_load(again, image, len, &why);
	if (rc)
		broke("what was saved is refused with %d: %s", rc, why ? why : "");
	else if (step_digest(again) != step_digest(state_of(now)))
		broke("what was loaded differs from what was saved");
	free(image);
}

static void check_world(void)
{
	const struct watch *w = &now->w;
	uint32_t d, r, c;
	int op;

	check_image();

	for (op = 0; op < prog.nops; op++)
		for (d = 0; d < RANKS; d++)
			if (w->failed[op] && w->started[op][d] == 1 && !is_lost(w, d) &&
			    !w->cancelled[op][d])
				broke("operation %d failed and device %u goes on", op, d);
	for (d = 0; d < RANKS; d++)
		check_cancels(d);
	for (op = 0; op < prog.nops; op++) {
		const struct kind *k = &prog.ops[op];

		if (k->is_pair && k->count <= STEP_BUFFERED && !w->failed[op] &&
		    w->stage[op][k->source] == POSTED && !w->told[op][k->source] &&
		    w->stage[op][k->destination] == NOTHING)
			broke("the small send %d waits for its receiver", op);
	}
	for (op = 0; op < prog.nops; op++)
		if (w->failed[op] && was_posted(w, op) && !w->announced[op])
			broke("operation %d failed and nobody said why", op);
	for (r = 0; r < RANKS; r++)
		for (c = 0; c < COMMS; c++)
			if (w->is_broken[c] && w->life[r] == HERE && !w->left[r][c] &&
			    !w->broken[r][c] && (!c || r < 2))
				broke("rank %u does not hear that communicator %u is broken", r, c);
}

static void check_end(void)
{
	const struct watch *w = &now->w;
	uint32_t r, i;

	for (r = 0; r < RANKS; r++) {
		if (w->life[r] == EXITED && !w->released[r])
			broke("proxy %u is never released", r);
		for (i = 0; w->life[r] == HERE && i < prog.nrecs[r]; i++) {
			if (!w->posted[r][i] && !w->left[r][prog.recs[r][i].comm])
				broke("rank %u's record %u is never posted", r, i);
			if (w->posted[r][i] && !w->ended[r][i])
				broke("rank %u's record %u never ends", r, i);
		}
	}
}

/* With everybody gone, the state is empty. */
static void check_empty(void)
{
	struct world was = *now;
	struct step_limits used;
	struct step_event e = { .kind = STEP_EXIT };
	uint32_t r;

	for (r = 0; r < RANKS; r++) {
		e.proxy = r;
		if (now->w.life[r] == HERE) {
			now->w.life[r] = EXITED;
			step(state_of(now), &e, saw, NULL);
		}
	}
	step_used(state_of(now), &used);
	if (used.proxies || used.devices || used.comms || used.members || used.ops || used.parts ||
	    used.records)
		broke("left over: %u proxies, %u communicators, %u operations, %u records",
		      used.proxies, used.comms, used.ops, used.records);
	*now = was;
}

/* ---- exploring ---- */

#define SEEN (1u << 23)
static uint64_t *seen;
static uint32_t nseen;

/* Whether an equal world has been here; notes it if not. */
static bool is_known(struct world *world)
{
	uint64_t h = mix(step_digest(state_of(world)), &world->w, sizeof(world->w));
	uint32_t at;

	h += !h;
	for (at = h % SEEN; seen[at]; at = (at + 1) % SEEN)
		if (seen[at] == h)
			return true;
	seen[at] = h;
	if (++nseen > SEEN / 8 * 7)
		broke("more worlds than there is room for");
	return false;
}

static void world_begin(struct world *world, int disturbances)
{
	struct step_event e = { .kind = STEP_ENTER };
	uint32_t r, c;
	int m;

	memset(world, 0, sizeof(*world));
	now = world;
	*wrong = '\0';
	state_size = step_size(&limits);
	step_init(world->mem, &limits);
	world->w.disturbances = disturbances;
	for (r = 0; r < RANKS; r++) {
		e.proxy = r;
		e.device = prog.device[r];
		if (step(state_of(world), &e, saw, NULL))
			broke("a proxy cannot enter");
	}
	e.kind = STEP_JOIN;
	for (c = 0; c < COMMS; c++)
		for (r = 0; r < (c ? 2 : RANKS); r++) {
			e.proxy = e.rank = r;
			e.comm = c + 1;
			e.ranks = c ? 2 : RANKS;
			m = step(state_of(world), &e, saw, NULL);
			member_of[r][c] = m;
			if (m < 0)
				broke("a member cannot join");
		}
	member_of[2][1] = STEP_NONE;
}

static void event_name(const struct event *e, char *text, size_t size)
{
	static const char *const names[] = { "post",  "start", "done", "break",
		                             "leave", "exit",  "die" };

	snprintf(text, size, "%s %u %u", names[e->what], e->rank, e->index);
}

static bool try_event(struct world *world, const struct event *e)
{
	int ret;

	now = world;
	ret = send_event(e);
	if (ret < 0)
		broke("event %d of %u is refused with %d", e->what, e->rank, ret);
	/* What had been logged has failed since. */
	if (e->what == START && !ret)
		world->w.last[e->rank] = world->w.woken[e->rank];
	check_world();
	return !*wrong;
}

/* Prints how it came to what is wrong, innermost event first. */
static bool explore(struct world *world)
{
	struct event events[EVENTS];
	struct world next;
	char text[40];
	int n, i;

	worlds++;
	n = events_of(&world->w, events);
	if (!n) {
		now = world;
		check_end();
		check_empty();
		if (*wrong)
			return false;
	}
	n += disturbances_of(&world->w, events + n);
	for (i = 0; i < n; i++) {
		next = *world;
		if (try_event(&next, &events[i]) &&
		    (is_known(&next) || (!*wrong && explore(&next))))
			continue;
		event_name(&events[i], text, sizeof(text));
		printf("# after: %s\n", text);
		return false;
	}
	return true;
}

/* One run, with events at random. */
static bool stroll(int disturbances)
{
	struct event events[EVENTS], path[200];
	struct world world;
	int n, more, steps = 0;
	char text[40];

	world_begin(&world, disturbances);
	for (;;) {
		worlds++;
		n = events_of(&world.w, events);
		more = rnd(8) ? 0 : disturbances_of(&world.w, events + n);
		if (!n && !more)
			break;
		path[steps] = events[rnd(n + more)];
		if (!try_event(&world, &path[steps++]) || steps == 200)
			break;
	}
	if (!*wrong) {
		check_end();
		check_empty();
	}
	while (*wrong && steps--) {
		event_name(&path[steps], text, sizeof(text));
		printf("# after: %s\n", text);
	}
	return !*wrong;
}

static bool explore_program(const char *letters, int variant, int disturbances)
{
	struct world world;

	if (!make_program(letters, variant))
		return true;
	memset(seen, 0, SEEN * sizeof(*seen));
	nseen = 0;
	world_begin(&world, disturbances);
	if (!*wrong && explore(&world)) {
		if (getenv("COLL_VERBOSE"))
			printf("# %s: %u worlds\n", prog.name, nseen);
		return true;
	}
	printf("# program %s: %s\n", prog.name, wrong);
	return false;
}

/* Under sanitizers, which have other things to find, a small part of all. */
#ifdef COLL_BRIEF
#define STRIDE  11
#define STROLLS 4000
#else
#define STRIDE  1
#define STROLLS 60000
#endif

FIXTURE(worlds)
{
	bool is_long;
};

FIXTURE_SETUP(worlds)
{
	const char *mode = getenv("COLL_EXPLORE");

	self->is_long = mode && !strcmp(mode, "long");
	seen = calloc(SEEN, sizeof(*seen));
	ASSERT_NE(seen, NULL);
	ASSERT_LE(step_size(&limits), MEMORY);
}

FIXTURE_TEARDOWN(worlds)
{
	printf("# %llu worlds\n", (unsigned long long)worlds);
	free(seen);
}

static const char *const small[] = { "Ab", "pq", "qp", "sZ", "M", "bA", "tA", "Mq", "bt", "rA" };
static const char *const middle[] = { "AbA", "pqr", "qtb", "MAp", "sqA", "qqp" };
static const char *const large[] = {
	"AbAb", "pqrt", "Apbq", "sZAb", "qtbA", "MbpA", "qpAr", "AAAA"
};

#define EACH_OF(letters)                                           \
	for (i = 0; i < sizeof(letters) / sizeof(letters[0]); i++) \
		for (v = (int)i % STRIDE; v < VARIANTS; v += STRIDE)

TEST_F(worlds, undisturbed_programs_end_in_every_order_of_events)
{
	size_t i;
	int v;

	EACH_OF(small)
	{
		ASSERT_TRUE(explore_program(small[i], v, 0));
	}
	EACH_OF(middle)
	{
		if (self->is_long || v % 2 == (int)i % 2)
			ASSERT_TRUE(explore_program(middle[i], v, 0));
	}
	EACH_OF(large)
	{
		if (self->is_long || v % 7 == 2)
			ASSERT_TRUE(explore_program(large[i], v, 0));
	}
}

TEST_F(worlds, with_one_disturbance_everybody_gets_an_end)
{
	size_t i;
	int v;

	EACH_OF(small)
	{
		if (self->is_long || v % 5 == (int)i % 5)
			ASSERT_TRUE(explore_program(small[i], v, 1));
	}
	EACH_OF(middle)
	{
		if (self->is_long || v == (int)i)
			ASSERT_TRUE(explore_program(middle[i], v, 1));
	}
	EACH_OF(large)
	{
		/* The last has more worlds than there is room for. */
		if (self->is_long ? v % 9 == 6 && i < 7 : i == 2 && v == 3)
			ASSERT_TRUE(explore_program(large[i], v, 1));
	}
}

TEST_F(worlds, with_two_disturbances_everybody_gets_an_end)
{
	size_t i;
	int v;

	EACH_OF(small)
	{
		if (self->is_long || v == 18 + (int)i || v == 36 + (int)i)
			ASSERT_TRUE(explore_program(small[i], v, 2));
	}
}

TEST_F(worlds, strolls_through_all_programs)
{
	char letters[OPS + 1] = "";
	int i, n, disturbances;

	for (i = 0; i < (self->is_long ? 3000000 : STROLLS); i++) {
		for (n = 0; n < OPS; n++)
			letters[n] = kinds[rnd(KINDS)].letter;
		disturbances = rnd(4);
		if (!make_program(letters, rnd(VARIANTS)) || stroll(disturbances))
			continue;
		printf("# program %s: %s\n", prog.name, wrong);
		ASSERT_TRUE(false);
	}
}

TEST_HARNESS_MAIN
