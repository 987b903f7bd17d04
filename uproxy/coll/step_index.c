// SPDX-License-Identifier: Apache-2.0
/*
 * step_index.c - finds an operation for a post, a start or an end, without a walk over what is in flight
 */
#include "step_i.h"

#define PER_BUCKET 2 /* operations, when a state is full */

static enum key_kind kind_of(const struct op *op)
{
	if (op->order)
		return BY_ORDER;
	if (!op->is_pair)
		return BY_NUMBER;
	return op->sides == SENDER ? BY_RECEIVER : op->sides == RECEIVER ? BY_SENDER : BY_NOTHING;
}

static bool is_key(const struct op *op, const struct key *k)
{
	if (kind_of(op) != k->kind)
		return false;
	if (k->kind == BY_ORDER)
		return op->order == k->number;
	return op->comm == k->comm && (k->kind == BY_NUMBER ? op->number == k->number :
		op->source == k->source && op->destination == k->destination);
}

static struct key key_of(const struct op *op)
{
	struct key k = { .kind = kind_of(op) };

	if (k.kind == BY_ORDER) {
		k.number = op->order;
	} else if (k.kind == BY_NUMBER) {
		k.comm = op->comm;
		k.number = op->number;
	} else {
		k.comm = op->comm;
		k.source = op->source;
		k.destination = op->destination;
	}
	return k;
}

/* Consecutive operations have neighbouring buckets, so that a processor has their lines. */
static uint32_t bucket_of(const struct step *s, const struct key *k)
{
	uint64_t h = (uint64_t)k->comm << 40 ^ (uint64_t)k->source << 20 ^ k->destination;

	h = k->number + (h * 0x9e3779b97f4a7c15ull >> 32) + k->kind * 5;
	return h & (index_of(s)->buckets - 1);
}

static uint32_t *bucket_at(const struct step *s, uint32_t n)
{
	return (uint32_t *)indexed(s, INDEX_BUCKETS) + n;
}

/* The places of operations; index + 1 leads to one. */
static struct op_place *places_of(const struct step *s)
{
	return (struct op_place *)indexed(s, INDEX_OPS) - 1;
}

static uint32_t find_in(struct step *s, uint32_t i, const struct key *key)
{
	for (; i && !is_key(op_at(s, i - 1), key); i = places_of(s)[i].next)
		index_of(s)->looks++;
	return i;
}

uint32_t index_find(struct step *s, const struct key *key)
{
	return find_in(s, *bucket_at(s, bucket_of(s, key)), key);
}

void index_put(struct step *s, uint32_t op)
{
	struct op_place *of = places_of(s), *place = &of[op + 1];
	struct key key = key_of(op_at(s, op));
	uint32_t first, last, *bucket;

	*place = (struct op_place){ 0 };
	if (key.kind == BY_NOTHING)
		return;
	place->bucket = bucket_of(s, &key) + 1;
	bucket = bucket_at(s, place->bucket - 1);
	/* Only of pairs there are several of a key. */
	first = key.kind == BY_SENDER || key.kind == BY_RECEIVER ? find_in(s, *bucket, &key) : 0;
	if (first) {
		last = of[first].latest ? of[first].latest : first;
		place->earlier = last;
		of[last].later = op + 1;
		of[first].latest = op + 1;
		return;
	}
	place->next = *bucket;
	if (*bucket)
		of[*bucket].prev = op + 1;
	*bucket = op + 1;
}

/* The first of a key goes: the next one takes its place in the bucket. */
static void first_goes(struct op_place *of, uint32_t first, uint32_t *bucket)
{
	struct op_place *place = &of[first];
	uint32_t heir = place->later ? place->later : place->next;

	if (place->later) {
		of[heir].earlier = 0;
		of[heir].latest = place->latest == heir ? 0 : place->latest;
		of[heir].next = place->next;
		if (place->next)
			of[place->next].prev = heir;
	}
	if (heir)
		of[heir].prev = place->prev;
	*(place->prev ? &of[place->prev].next : bucket) = heir;
}

void index_drop(struct step *s, uint32_t op)
{
	struct op_place *of = places_of(s), *place = &of[op + 1];

	if (!place->bucket)
		return;
	if (!place->earlier) {
		first_goes(of, op + 1, bucket_at(s, place->bucket - 1));
		return;
	}
	of[place->earlier].later = place->later;
	if (place->later) {
		of[place->later].earlier = place->earlier;
	} else {
		struct key key = key_of(op_at(s, op));
		uint32_t first = index_find(s, &key);

		of[first].latest = place->earlier == first ? 0 : place->earlier;
	}
}

void index_queue(struct step *s, uint32_t part)
{
	struct device_place *d = device_place(s, part_at(s, part)->device);
	struct part_place *p = part_place(s, part);

	p->queued = 1;
	p->next = 0;
	p->prev = d->last;
	*(d->last ? &part_place(s, d->last - 1)->next : &d->first) = part + 1;
	d->last = part + 1;
}

void index_unqueue(struct step *s, uint32_t part)
{
	struct device_place *d = device_place(s, part_at(s, part)->device);
	struct part_place *p = part_place(s, part);

	if (!p->queued)
		return;
	*(p->prev ? &part_place(s, p->prev - 1)->next : &d->first) = p->next;
	*(p->next ? &part_place(s, p->next - 1)->prev : &d->last) = p->prev;
	p->queued = p->next = p->prev = 0;
}

/* ---- its memory ---- */

static uint32_t buckets_of(const struct step *s)
{
	uint32_t n = 16;

	while (n < s->limit[OPS] / PER_BUCKET)
		n *= 2;
	return n;
}

/* Fills in where everything lies, if x is not NULL; returns the size in 8 bytes. */
static uint32_t lay_out(const struct step *s, struct index *x)
{
	const uint64_t bytes[] = {
		[INDEX_BUCKETS] = buckets_of(s) * sizeof(uint32_t),
		[INDEX_OPS] = (uint64_t)s->limit[OPS] * sizeof(struct op_place),
		[INDEX_PARTS] = (uint64_t)s->limit[PARTS] * sizeof(struct part_place),
		[INDEX_DEVICES] = (uint64_t)s->limit[DEVICES] * sizeof(struct device_place),
	};
	uint64_t at = (sizeof(struct index) + 7) / 8;

	for (int i = 0; i <= INDEX_DEVICES; i++) {
		if (x)
			x->at[i] = (uint32_t)at;
		at += (bytes[i] + 7) / 8;
	}
	return (uint32_t)at;
}

uint32_t index_size(const struct step *s)
{
	return lay_out(s, NULL);
}

void index_lay_out(const struct step *s, struct index *x)
{
	x->buckets = buckets_of(s);
	lay_out(s, x);
}

static void index_op(struct step *s, uint32_t i)
{
	index_put(s, i);
	for (uint32_t p = op_at(s, i)->parts; p; p = part_at(s, p - 1)->next)
		*part_place(s, p - 1) = (struct part_place){ .op = i };
}

void step_index(struct step *s)
{
	struct index *x = index_of(s);

	index_lay_out(s, x);
	for (uint32_t i = 0; i < s->limit[COMMS]; i++)
		for (uint32_t o = is_used(s, COMMS, i) ? comm_at(s, i)->ops : 0; o;
		     o = op_at(s, o - 1)->next)
			index_op(s, o - 1);
	for (uint32_t o = s->log; o; o = op_at(s, o - 1)->log_next)
		for (uint32_t p = op_at(s, o - 1)->parts; p; p = part_at(s, p - 1)->next)
			if (part_at(s, p - 1)->used == WAITS)
				index_queue(s, p - 1);
	x->looks = 0;
}

uint64_t step_looks(const struct step *s)
{
	return index_of(s)->looks;
}
