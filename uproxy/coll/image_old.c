// SPDX-License-Identifier: Apache-2.0
/*
 * image_old.c - reads images of version 1: the memory of a step as it was on the board
 *
 *   0      magic, version, size of what follows the head
 *   4096   struct head_1, then for each array a bitmap of its used entries, and its entries
 *
 * Only what image.h has is taken over; what version 1 had beside it (counts, lists in both directions) follows from that.
 * Each entry is taken once, so a list that runs in a circle, or into another one, is refused. The rest is image.c's to check.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"

#define HEAD 4096u

enum { PROXIES, DEVICES, COMMS, MEMBERS, OPS, PARTS, RECORDS, ARRAYS };

/* What a board had room for. A fuzzer has smaller ones. */
#ifndef IMAGE_1_LIMITS
#define IMAGE_1_LIMITS 1024, 1024, 1 << 13, 1 << 16, 1 << 17, 1 << 18, 1 << 17
#endif
static const uint32_t limits[ARRAYS] = { IMAGE_1_LIMITS };

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct head_1 {
	uint32_t limit[ARRAYS], used[ARRAYS], at[ARRAYS], map[ARRAYS];
	uint32_t log, log_last;
	uint64_t orders, births;
};

struct proxy_1 {
	uint8_t state, zero[3];
	uint32_t device, parts;
};

struct device_1 {
	uint32_t proxies, exited, parts, zero;
	uint64_t seen, woken;
};

struct comm_1 {
	uint8_t used, state, died, code;
	uint32_t ranks, joined, gone, first, ops, ops_last, zero;
	uint64_t key;
};

struct member_1 {
	uint8_t used, silent, zero[2];
	uint32_t comm, proxy, joined;
	uint64_t posted;
};

struct op_1 {
	uint8_t used, is_pair, code, sides;
	uint32_t comm, posted, source, destination, parts, parts_last, next, prev, log_next, log_prev, first_rank;
	uint64_t number, order, born;
	struct step_call call;
};

struct part_1 {
	uint8_t used, told, begun, zero;
	uint32_t member, proxy, device, call, record, next, zero_2;
	uint64_t cookie;
};

struct record_1 {
	uint8_t used, code, zero[2];
	uint32_t member, parked, left;
	uint64_t cookie;
};
#pragma GCC diagnostic pop

_Static_assert(sizeof(struct head_1) == 136, "file format");
_Static_assert(sizeof(struct proxy_1) == 12, "file format");
_Static_assert(sizeof(struct device_1) == 32, "file format");
_Static_assert(sizeof(struct comm_1) == 40, "file format");
_Static_assert(sizeof(struct member_1) == 24, "file format");
_Static_assert(sizeof(struct op_1) == 88, "file format");
_Static_assert(sizeof(struct part_1) == 40, "file format");
_Static_assert(sizeof(struct record_1) == 24, "file format");

static const uint32_t sizes[ARRAYS] = {
	sizeof(struct proxy_1), sizeof(struct device_1), sizeof(struct comm_1),   sizeof(struct member_1),
	sizeof(struct op_1),    sizeof(struct part_1),   sizeof(struct record_1),
};

struct old {
	const struct head_1 *h;
	uint32_t *record; /* places in the new image */
	uint8_t *op, *part; /* taken */
};

static const void *entry(const struct old *o, int array, uint32_t i)
{
	return (const char *)o->h + 8 * (size_t)o->h->at[array] + (size_t)i * sizes[array];
}

static bool is_used(const struct old *o, int array, uint32_t i)
{
	const uint64_t *map = (const uint64_t *)((const char *)o->h + 8 * (size_t)o->h->map[array]);

	return i < limits[array] && map[i / 64] >> (i % 64) & 1;
}

/* Is this the layout that such a board had, and are as many entries used as it says? */
static bool is_laid_out(const struct old *o, size_t len)
{
	uint64_t at = sizeof(struct head_1) / 8;

	if (len < sizeof(struct head_1))
		return false;
	for (int i = 0; i < ARRAYS; i++) {
		if (o->h->limit[i] != limits[i] || o->h->map[i] != at)
			return false;
		at += (limits[i] + 63) / 64;
		if (o->h->at[i] != at)
			return false;
		at += ((uint64_t)limits[i] * sizes[i] + 7) / 8;
	}
	if (len != 8 * at)
		return false;
	for (int i = 0; i < ARRAYS; i++) {
		uint32_t n = 0;

		for (uint32_t k = 0; i != DEVICES && k < limits[i]; k++)
			n += is_used(o, i, k);
		if (n != o->h->used[i])
			return false;
	}
	return true;
}

/* Where the new image's entries are put. */
struct new {
	struct image_head h, n; /* n: what is filled */
	struct image_proxy *proxy;
	struct image_device *device;
	struct image_comm *comm;
	struct image_member *member;
	struct image_op *op;
	struct image_part *part;
	struct image_record *record;
};

static bool take_parts(struct old *o, struct new *n, const struct op_1 *op, struct image_op *to)
{
	for (uint32_t p = op->parts; p; to->parts++) {
		const struct part_1 *part;

		if (!is_used(o, PARTS, p - 1) || o->part[p - 1])
			return false;
		o->part[p - 1] = 1;
		part = entry(o, PARTS, p - 1);
		if (part->told > 1 || (!part->told && !is_used(o, RECORDS, part->record)))
			return false;
		n->part[n->n.parts++] = (struct image_part){
			.cookie = part->cookie, .member = part->member, .proxy = part->proxy,
			.device = part->device, .call = part->call, .state = part->used, .begun = part->begun,
			.record = part->told ? STEP_NONE : o->record[part->record] };
		p = part->next;
	}
	return true;
}

static bool take_comm(struct old *o, struct new *n, uint32_t i)
{
	const struct comm_1 *c = entry(o, COMMS, i);

	n->comm[n->n.comms] = (struct image_comm){ .key = c->key, .ranks = c->ranks, .joined = c->joined,
		                                   .first = c->first, .state = c->state, .code = c->code };
	for (uint32_t r = 0; r < c->ranks; r++) {
		const struct member_1 *m;

		if (c->first >= limits[MEMBERS] || !is_used(o, MEMBERS, c->first + r) ||
		    n->n.members == n->h.members)
			return false;
		m = entry(o, MEMBERS, c->first + r);
		if (m->comm != i)
			return false;
		n->member[n->n.members++] = (struct image_member){ .posted = m->posted, .proxy = m->proxy,
			                                           .joined = m->joined, .state = m->used };
	}
	for (uint32_t x = c->ops; x;) {
		const struct op_1 *op;
		struct image_op *to;

		if (!is_used(o, OPS, x - 1) || o->op[x - 1])
			return false;
		o->op[x - 1] = 1;
		op = entry(o, OPS, x - 1);
		if (op->comm != i || op->call.zero || op->is_pair != (op->call.kind >= STEP_SEND))
			return false;
		to = &n->op[n->n.ops++];
		*to = (struct image_op){ .number = op->number, .order = op->order, .born = op->born,
			                 .count = op->call.count, .comm = n->n.comms, .peer = op->call.peer,
			                 .kind = op->call.kind, .type = op->call.type, .op = op->call.op,
			                 .code = op->code };
		if (!take_parts(o, n, op, to))
			return false;
		x = op->next;
	}
	n->n.comms++;
	return true;
}

static bool take_all(struct old *o, struct new *n)
{
	for (uint32_t i = 0; i < limits[PROXIES]; i++) {
		const struct proxy_1 *p = entry(o, PROXIES, i);

		if (is_used(o, PROXIES, i))
			n->proxy[n->n.proxies++] = (struct image_proxy){ .proxy = i, .device = p->device,
				                                         .state = p->state };
	}
	for (uint32_t i = 0; i < limits[DEVICES]; i++) {
		const struct device_1 *d = entry(o, DEVICES, i);

		if (d->proxies || d->parts || d->seen)
			n->device[n->n.devices++] = (struct image_device){ .device = i, .seen = d->seen,
				                                           .woken = d->woken };
	}
	for (uint32_t i = 0; i < limits[RECORDS]; i++) {
		const struct record_1 *r = entry(o, RECORDS, i);

		o->record[i] = n->n.records;
		if (is_used(o, RECORDS, i))
			n->record[n->n.records++] = (struct image_record){ .cookie = r->cookie, .member = r->member,
				                                           .code = r->code };
	}
	for (uint32_t i = 0; i < limits[COMMS]; i++)
		if (is_used(o, COMMS, i) && !take_comm(o, n, i))
			return false;
	return n->n.members == n->h.members && n->n.ops == n->h.ops && n->n.parts == n->h.parts;
}

/* The memory of the new image, of the size that the old one's counts make it. */
static void *make(const struct old *o, struct new *n)
{
	const uint32_t *used = o->h->used;
	uint32_t devices = 0;
	size_t size;
	char *p;

	for (uint32_t i = 0; i < limits[DEVICES]; i++) {
		const struct device_1 *d = entry(o, DEVICES, i);

		devices += d->proxies || d->parts || d->seen;
	}
	size = sizeof(n->h) + used[PROXIES] * sizeof(*n->proxy) + devices * sizeof(*n->device) +
	       used[COMMS] * sizeof(*n->comm) + used[MEMBERS] * sizeof(*n->member) +
	       used[OPS] * sizeof(*n->op) + used[PARTS] * sizeof(*n->part) + used[RECORDS] * sizeof(*n->record);
	p = calloc(1, size);
	if (!p)
		return NULL;
	n->h = (struct image_head){ .magic = IMAGE_MAGIC, .version = IMAGE_VERSION, .size = size,
		                    .proxies = used[PROXIES], .devices = devices, .comms = used[COMMS],
		                    .members = used[MEMBERS], .ops = used[OPS], .parts = used[PARTS],
		                    .records = used[RECORDS], .orders = o->h->orders, .births = o->h->births };
	memcpy(p, &n->h, sizeof(n->h));
	n->proxy = (void *)(p + sizeof(n->h));
	n->device = (void *)(n->proxy + n->h.proxies);
	n->comm = (void *)(n->device + devices);
	n->member = (void *)(n->comm + n->h.comms);
	n->op = (void *)(n->member + n->h.members);
	n->part = (void *)(n->op + n->h.ops);
	n->record = (void *)(n->part + n->h.parts);
	return p;
}

/* What was saved of a board that nobody had entered. */
static int none(void **to, size_t *to_len)
{
	struct image_head *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	*h = (struct image_head){ .magic = IMAGE_MAGIC, .version = IMAGE_VERSION, .size = sizeof(*h) };
	*to = h;
	*to_len = sizeof(*h);
	return 0;
}

int image_from_1(const void *image, size_t len, void **to, size_t *to_len, const char **why)
{
	struct old o = { 0 };
	struct new n = { 0 };
	uint64_t size;
	void *p;
	int rc = -ENOMEM;

	*why = "its head";
	if (len < HEAD)
		return -EBADMSG;
	memcpy(&size, (const char *)image + 8, sizeof(size));
	if (size != len - HEAD)
		return -EBADMSG;
	if (!size)
		return none(to, to_len);
	o.h = (const void *)((const char *)image + HEAD);
	if (!is_laid_out(&o, size))
		return -EBADMSG;
	o.record = calloc(limits[RECORDS], sizeof(*o.record));
	o.op = calloc(limits[OPS], 1);
	o.part = calloc(limits[PARTS], 1);
	p = make(&o, &n);
	if (o.record && o.op && o.part && p)
		rc = take_all(&o, &n) ? 0 : -EBADMSG;
	*why = "its lists";
	free(o.record);
	free(o.op);
	free(o.part);
	if (rc) {
		free(p);
		return rc;
	}
	*to = p;
	*to_len = n.h.size;
	return 0;
}
