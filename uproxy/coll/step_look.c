// SPDX-License-Identifier: Apache-2.0
/*
 * step_look.c - what a state is like: its digest, what is in flight in it, and sentences
 */
#include <stdio.h>

#include "step_i.h"

/* ---- what a state is like ---- */

static uint64_t mix(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

/* Of an operation, by names that do not depend on who posted first. */
static uint64_t op_digest(const struct step *s, const struct op *op)
{
	uint64_t h = mix(comm_at(s, op->comm)->key, op->number), sum = 0, one;
	uint32_t i, before = 0;

	/* Of operations between the same two ranks, the earlier one is posted to first. */
	for (i = op->prev; i && op->is_pair; i = op_at(s, i - 1)->prev)
		before += op_at(s, i - 1)->is_pair && op_at(s, i - 1)->source == op->source &&
		          op_at(s, i - 1)->destination == op->destination;
	h = mix(h, op->is_pair | op->code << 8 | op->sides << 16 | (uint64_t)before << 32);
	h = mix(h, op->source | (uint64_t)op->destination << 32);
	h = mix(h, op->posted | (uint64_t)op->call.kind << 32 | (uint64_t)op->call.type << 40 |
	                   (uint64_t)op->call.op << 48);
	h = mix(mix(mix(h, op->call.count), op->call.peer), op->order);
	for (i = op->parts; i; i = part_at(s, i - 1)->next) {
		const struct part *p = part_at(s, i - 1);

		one = mix(p->member, p->used | p->told << 8 | p->begun << 16);
		sum += mix(mix(one, p->device), p->call | p->cookie << 16);
	}
	return mix(h, sum);
}

uint64_t step_digest(const struct step *s)
{
	uint64_t h = mix(s->orders, 1), sum = 0;
	uint32_t i;

	for (i = 0; i < s->limit[PROXIES]; i++) {
		const struct proxy *p = proxy_at(s, i);

		if (!is_used(s, PROXIES, i))
			continue;
		h = mix(h, i);
		h = mix(h, p->state | (uint64_t)p->device << 8 | (uint64_t)p->parts << 32);
	}
	for (i = 0; i < s->limit[DEVICES]; i++) {
		const struct device *d = device_at(s, i);

		if (!d->proxies && !d->parts)
			continue;
		h = mix(h, i);
		h = mix(mix(h, d->proxies | (uint64_t)d->exited << 32), d->parts);
		h = mix(h, mix(d->seen, d->woken));
	}
	for (i = 0; i < s->limit[COMMS]; i++) {
		const struct comm *c = comm_at(s, i);

		if (!is_used(s, COMMS, i))
			continue;
		h = mix(mix(h, c->key), c->state | c->died << 8 | c->code << 16);
		h = mix(mix(h, c->ranks | (uint64_t)c->joined << 32),
		        c->first | (uint64_t)c->gone << 32);
	}
	for (i = 0; i < s->limit[MEMBERS]; i++) {
		const struct member *m = member_at(s, i);

		if (!is_used(s, MEMBERS, i))
			continue;
		h = mix(h, i);
		h = mix(h, m->used | m->silent << 8); /* its communicator begins at comm->first */
		h = mix(h, mix(m->proxy, m->posted));
	}
	for (i = 0; i < s->limit[OPS]; i++)
		sum += is_used(s, OPS, i) ? op_digest(s, op_at(s, i)) : 0;
	for (i = 0; i < s->limit[RECORDS]; i++) {
		const struct record *r = record_at(s, i);

		if (is_used(s, RECORDS, i))
			sum += mix(mix(r->cookie, r->member | (uint64_t)r->code << 32),
			           r->parked | (uint64_t)r->left << 32);
	}
	return mix(h, sum);
}

/* ---- who is where ---- */

bool step_is_at(const struct step *s, const struct step_place *p, bool *stands)
{
	const struct member *m = is_used(s, MEMBERS, p->member) ? member_at(s, p->member) : NULL;
	const struct comm *c = m ? comm_at(s, m->comm) : NULL;

	*stands = c && c->state == STANDING;
	return c && m->used != RESERVED && c->key == p->key && c->ranks == p->ranks && m->joined == p->proxy &&
	       rank_of(s, p->member) == p->rank;
}

void step_records(const struct step *s, uint32_t proxy, void (*each)(void *ctx, uint32_t member, uint64_t cookie, bool begun),
                  void *ctx)
{
	for (uint32_t i = 0, left = s->used[RECORDS]; left && i < s->limit[RECORDS]; i++) {
		const struct record *r = record_at(s, i);

		if (!is_used(s, RECORDS, i))
			continue;
		left--;
		if (member_at(s, r->member)->joined == proxy)
			each(ctx, r->member, r->cookie, !r->parked);
	}
}

/* ---- what is in flight ---- */

static void waits_for(uint32_t *waits, uint32_t *list, uint32_t rank)
{
	if (*waits < STEP_LOOK_RANKS)
		list[*waits] = rank;
	++*waits;
}

/* Who has posted an operation that is in the log, and has not ended. */
static void look_at_parts(const struct step *s, const struct op *op, struct step_op_look *look)
{
	for (uint32_t p = op->parts; p; p = part_at(s, p - 1)->next)
		if (part_at(s, p - 1)->used != ENDED)
			waits_for(&look->waits, look->rank, rank_of(s, part_at(s, p - 1)->member));
}

static void look_at_op(const struct step *s, const struct op *op, struct step_op_look *look)
{
	const struct comm *c = comm_at(s, op->comm);

	*look = (struct step_op_look){ .born = op->born,
		                       .call = op->call,
		                       .number = op->number,
		                       .source = op->source,
		                       .destination = op->destination,
		                       .order = op->order,
		                       .failed = op->code != STEP_OK };
	if (op->order || op->code) {
		look_at_parts(s, op, look);
	} else if (op->is_pair) {
		waits_for(&look->waits, look->rank,
		          op->sides & SENDER ? op->destination : op->source);
	} else {
		for (uint32_t r = 0; r < c->ranks; r++)
			if (may_post(s, op, r))
				waits_for(&look->waits, look->rank, r);
	}
}

static void look_at_comm(const struct step *s, const struct comm *c, struct step_comm_look *look)
{
	*look = (struct step_comm_look){ .key = c->key,
		                         .ranks = c->ranks,
		                         .joined = c->joined,
		                         .member = c->first,
		                         .stands = c->state == STANDING };
	for (uint32_t r = 0; c->state == FORMING && r < c->ranks; r++)
		if (member_at(s, c->first + r)->used == RESERVED)
			waits_for(&look->waits, look->rank, r);
}

void step_look(const struct step *s, const struct step_looker *looker)
{
	for (uint32_t i = 0, left = s->used[COMMS]; left && i < s->limit[COMMS]; i++) {
		struct step_comm_look comm;
		struct step_op_look op;

		if (!is_used(s, COMMS, i))
			continue;
		left--;
		look_at_comm(s, comm_at(s, i), &comm);
		looker->comm(looker->ctx, s, &comm);
		for (uint32_t o = comm_at(s, i)->ops; o; o = op_at(s, o - 1)->next) {
			look_at_op(s, op_at(s, o - 1), &op);
			if (op.waits)
				looker->op(looker->ctx, s, &comm, &op);
		}
	}
}

/* ---- who owes ---- */

static bool owes_op(const struct step *s, uint32_t proxy, const struct comm *c, const struct op *op)
{
	uint32_t rank;

	if (op->order || op->code)
		return false;
	if (op->is_pair) {
		rank = op->sides & SENDER ? op->destination : op->source;
		return member_at(s, c->first + rank)->proxy == proxy;
	}
	for (rank = 0; rank < c->ranks; rank++)
		if (may_post(s, op, rank) && member_at(s, c->first + rank)->proxy == proxy)
			return true;
	return false;
}

uint64_t step_owes(const struct step *s, uint32_t proxy)
{
	uint64_t oldest = 0;

	for (uint32_t i = 0, left = s->used[COMMS]; left && i < s->limit[COMMS]; i++) {
		const struct op *op;
		uint32_t o;

		if (!is_used(s, COMMS, i))
			continue;
		left--;
		/* A communicator's operations lie in the order of their births. */
		for (o = comm_at(s, i)->ops; o && !owes_op(s, proxy, comm_at(s, i), op_at(s, o - 1));
		     o = op_at(s, o - 1)->next)
			;
		op = o ? op_at(s, o - 1) : NULL;
		if (op && (!oldest || op->born < oldest))
			oldest = op->born;
	}
	return oldest;
}

static bool has_posted(const struct step *s, uint32_t proxy, const struct op *op)
{
	for (uint32_t p = op->parts; p; p = part_at(s, p - 1)->next)
		if (part_at(s, p - 1)->proxy == proxy)
			return true;
	return false;
}

bool step_waits(const struct step *s, uint32_t proxy, uint32_t other)
{
	for (uint32_t i = 0, left = s->used[COMMS]; left && i < s->limit[COMMS]; i++) {
		if (!is_used(s, COMMS, i))
			continue;
		left--;
		for (uint32_t o = comm_at(s, i)->ops; o; o = op_at(s, o - 1)->next)
			if (owes_op(s, other, comm_at(s, i), op_at(s, o - 1)) && has_posted(s, proxy, op_at(s, o - 1)))
				return true;
	}
	return false;
}

/* ---- sentences ---- */

const char *step_kind_name(enum step_kind kind)
{
	static const char *const names[STEP_KINDS] = {
		[STEP_ALLREDUCE] = "all-reduce",
		[STEP_REDUCE] = "reduce",
		[STEP_BROADCAST] = "broadcast",
		[STEP_ALLGATHER] = "all-gather",
		[STEP_REDUCESCATTER] = "reduce-scatter",
		[STEP_ALLTOALL] = "all-to-all",
		[STEP_GATHER] = "gather",
		[STEP_SCATTER] = "scatter",
		[STEP_SEND] = "send",
		[STEP_RECV] = "receive",
	};

	return (unsigned int)kind < STEP_KINDS ? names[kind] : "unknown call";
}

int step_sentence(const struct step_failure *f, char *text, size_t size)
{
	static const char *const what[] = {
		[STEP_DIFFERENT_COUNT] = "a count of",
		[STEP_DIFFERENT_TYPE] = "the type",
		[STEP_DIFFERENT_OP] = "the operator",
		[STEP_DIFFERENT_ROOT] = "the root",
	};
	char name[80];

	if (f->kind == STEP_KINDS)
		return snprintf(text, size, "rank %u has died", f->rank);
	if (f->kind >= STEP_SEND)
		snprintf(name, sizeof(name), "send from rank %u to %u", f->source, f->destination);
	else
		snprintf(name, sizeof(name), "%s, collective %llu", step_kind_name(f->kind),
		         (unsigned long long)f->number);
	switch (f->reason) {
	case STEP_LEFT:
		return snprintf(text, size, "%s: rank %u has left", name, f->rank);
	case STEP_DIED:
		return snprintf(text, size, "%s: rank %u has died", name, f->rank);
	case STEP_TRANSPORT:
		if (f->value)
			return snprintf(text, size, "%s: the device of rank %u failed with CUDA error %llu",
			                name, f->rank, (unsigned long long)f->value);
		return snprintf(text, size, f->code == STEP_REMOTE ? "%s: rank %u has lost another rank" :
		                "%s: the transport of rank %u failed", name, f->rank);
	case STEP_DIFFERENT_KIND:
		return snprintf(text, size, "collective %llu: rank %u calls %s, rank %u %s",
		                (unsigned long long)f->number, f->rank, step_kind_name(f->value),
		                f->other, step_kind_name(f->other_value));
	default:
		return snprintf(text, size, "%s: rank %u has %s %llu, rank %u %llu", name, f->rank,
		                what[f->reason], (unsigned long long)f->value, f->other,
		                (unsigned long long)f->other_value);
	}
}
