// SPDX-License-Identifier: Apache-2.0
/*
 * matrix.c - every collective × type × operator × number of ranks, in place and not, against the
 * tree on all leaves at once, which coll-tree and test-vectors compare with another implementation
 *
 * matrix              a short run
 * matrix long         the full matrix up to 4 KiB, sums of f32 and bf16 up to 64 MiB, 2 % of the rest
 *
 * All processes make all ranks' buffers from the same seed, so each knows what it must get. A poison
 * in what they get, and a margin around it, show what was not written, and what was too much.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tree.h"
#include "types.h"
#include "world.h"

#define MARGIN 64
#define POISON 0xa5
#define TABLE  (1u << 20)

struct one {
	uint32_t kind, type, op, ranks, peer;
	uint64_t count;
	bool in_place;
	uint64_t seed;
	uint32_t device[WORLD_MAX];
};

static const char *const kinds[STEP_KINDS] = {
	"all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter",
	"all-to-all", "gather", "scatter", "send", "recv",
};

static unsigned char *table;
static bool full;

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static uint64_t mixed(uint64_t a, uint64_t b)
{
	uint64_t x = (a + 1) * 0x9e3779b97f4a7c15ull ^ (b + 1) * 0xc2b2ae3d27d4eb4full;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return (x ^ x >> 32) | 1;
}

/* Rank r's buffer: any bits, so NaN, infinities and subnormals among them. */
static void fill(const struct one *o, uint32_t r, char *to, uint64_t len)
{
	uint64_t at = mixed(o->seed, r) % TABLE & ~7ull;

	while (len) {
		uint64_t n = TABLE - at < len ? TABLE - at : len;

		memcpy(to, table + at, n);
		to += n;
		len -= n;
		at = 0;
	}
}

static uint64_t factor_of(const struct one *o, uint32_t r)
{
	return mixed(o->seed + 7, r);
}

static void sizes(const struct one *o, uint32_t r, uint64_t *send, uint64_t *recv)
{
	uint64_t one = o->count * tree_leaf_size(o->type), all = one * o->ranks;
	bool root = r == o->peer;

	*send = *recv = one;
	switch (o->kind) {
	case STEP_REDUCE: *recv = root ? one : 0; break;
	case STEP_BROADCAST: *send = root ? one : 0; break;
	case STEP_ALLGATHER: *recv = all; break;
	case STEP_REDUCESCATTER: *send = all; break;
	case STEP_ALLTOALL: *send = *recv = all; break;
	case STEP_GATHER: *recv = root ? all : 0; break;
	case STEP_SCATTER: *send = root ? all : 0; break;
	case STEP_SEND: *recv = 0; break;
	case STEP_RECV: *send = 0; break;
	}
}

/* Where in place means what: the offset of the send buffer in the receive buffer. */
static int64_t place(const struct one *o, uint32_t r)
{
	int64_t one = o->count * tree_leaf_size(o->type);

	switch (o->kind) {
	case STEP_ALLGATHER:
	case STEP_GATHER: return one * r;
	case STEP_REDUCESCATTER:
	case STEP_SCATTER: return -one * (int64_t)r;
	default: return 0;
	}
}

static char *room(uint64_t len)
{
	char *p = world_alloc(len + 2 * MARGIN);

	if (!p)
		world_fail("out of memory");
	memset(p, POISON, len + 2 * MARGIN);
	return p + MARGIN;
}

static char *leaf_of(const struct one *o, uint32_t r)
{
	uint64_t send, recv;
	char *p;

	sizes(o, r, &send, &recv);
	p = room(send);
	fill(o, r, p, send);
	return p;
}

static void reduce_all(const struct one *o, uint64_t first, char *to)
{
	struct tree_reduction red = { o->type, o->op, o->ranks };
	struct tree_part part[WORLD_MAX];
	uint64_t factor[WORLD_MAX];

	for (uint32_t r = 0; r < o->ranks; r++) {
		factor[r] = factor_of(o, r);
		part[r] = (struct tree_part){ { r, r + 1 },
			                      leaf_of(o, r) + first * tree_leaf_size(o->type),
			                      o->op == TREE_PREMULSUM ? &factor[r] : NULL };
	}
	if (tree_reduce(&red, part, o->ranks, to, o->count))
		world_fail("the reference");
	for (uint32_t r = 0; r < o->ranks; r++)
		world_free((char *)part[r].data - first * tree_leaf_size(o->type) - MARGIN);
}

/* What rank r must get. */
static char *expected(const struct one *o, uint32_t r, uint64_t len)
{
	uint64_t one = o->count * tree_leaf_size(o->type);
	char *want = room(len), *from;

	if (o->kind == STEP_ALLREDUCE || o->kind == STEP_REDUCE || o->kind == STEP_REDUCESCATTER) {
		reduce_all(o, o->kind == STEP_REDUCESCATTER ? r * o->count : 0, want);
		return want;
	}
	if (o->kind == STEP_BROADCAST || o->kind == STEP_RECV || o->kind == STEP_SCATTER) {
		struct one source = *o;

		source.kind = o->kind == STEP_RECV ? STEP_SEND : o->kind;
		from = leaf_of(&source, o->peer);
		memcpy(want, from + (o->kind == STEP_SCATTER ? r * one : 0), one);
		world_free(from - MARGIN);
		return want;
	}
	for (uint32_t s = 0; s < o->ranks; s++) {
		from = leaf_of(o, s);
		memcpy(want + s * one, from + (o->kind == STEP_ALLTOALL ? r * one : 0), one);
		world_free(from - MARGIN);
	}
	return want;
}

static void check(const struct one *o, uint32_t r, const char *got, uint64_t len)
{
	char *want = expected(o, r, len);

	for (uint64_t i = 0; i < len; i++)
		if (got[i] != want[i])
			world_fail("%s %s %s, %u ranks, %lu elements, root %u, in place %d, rank %u: "
			           "byte %lu is %02x, not %02x", kinds[o->kind], type_names[o->type],
			           op_names[o->op], o->ranks, (unsigned long)o->count, o->peer,
			           o->in_place, r, (unsigned long)i, got[i] & 0xff, want[i] & 0xff);
	world_free(want - MARGIN);
}

static void margins(const struct one *o, uint32_t r, const char *p, uint64_t len)
{
	for (int i = 0; i < MARGIN; i++)
		if ((unsigned char)p[-1 - i] != POISON || (unsigned char)p[len + i] != POISON)
			world_fail("%s %s, %lu elements, rank %u: written beyond the buffer",
			           kinds[o->kind], type_names[o->type], (unsigned long)o->count, r);
}

/* One rank's buffers. */
struct mine {
	struct transport_part p;
	char *send, *recv;
	uint64_t nsend, nrecv, factor;
};

static void prepare(const struct one *o, uint32_t r, struct mine *m)
{
	int64_t at = place(o, r);

	sizes(o, r, &m->nsend, &m->nrecv);
	m->send = m->recv = NULL;
	if (o->in_place && m->nsend && m->nrecv) {
		/* The larger one holds the other. */
		char *whole = room(m->nsend > m->nrecv ? m->nsend : m->nrecv);

		if (m->nsend > m->nrecv)
			m->recv = (m->send = whole) - at;
		else
			m->send = (m->recv = whole) + at;
	} else {
		m->send = m->nsend ? room(m->nsend) : NULL;
		m->recv = m->nrecv ? room(m->nrecv) : NULL;
	}
	if (m->nsend)
		fill(o, r, m->send, m->nsend);
	m->factor = factor_of(o, r);
	m->p = (struct transport_part){ .rank = r, .send = m->send, .recv = m->recv,
		                   .factor = o->op == TREE_PREMULSUM ? &m->factor : NULL };
}

static void finish(const struct one *o, struct mine *m)
{
	bool shared = o->in_place && m->nsend && m->nrecv;

	if (m->nrecv)
		check(o, m->p.rank, m->recv, m->nrecv);
	if (shared) {
		char *whole = m->nsend > m->nrecv ? m->send : m->recv;

		margins(o, m->p.rank, whole, m->nsend > m->nrecv ? m->nsend : m->nrecv);
		world_free(whole - MARGIN);
		return;
	}
	if (m->recv) {
		margins(o, m->p.rank, m->recv, m->nrecv);
		world_free(m->recv - MARGIN);
	}
	if (m->send) {
		char *was = leaf_of(o, m->p.rank);

		if (memcmp(was, m->send, m->nsend))
			world_fail("%s %s, rank %u: what it sent has changed", kinds[o->kind],
			           type_names[o->type], m->p.rank);
		world_free(was - MARGIN);
		world_free(m->send - MARGIN);
	}
}

static uint64_t order;

static void run(uint32_t self, const struct one *o)
{
	struct mine mine[WORLD_MAX];
	struct transport_part part[WORLD_MAX];
	struct ended e = { 0 };
	struct transport_start s = { .order = ++order, .ranks = o->ranks, .device = o->device,
		                .part = part, .done = on_end, .arg = &e };
	struct one of[WORLD_MAX];
	int rc;

	s.call = (struct step_call){ .kind = o->kind, .type = o->type, .op = o->op,
		                     .peer = o->peer, .count = o->count };
	for (uint32_t r = 0; r < o->ranks; r++) {
		struct one *mine_of = &of[s.nparts];

		if (o->device[r] != self)
			continue;
		*mine_of = *o;
		if (o->kind == STEP_SEND) {	/* rank 0 or another one to peer */
			uint32_t from = (o->peer + 1 + o->seed % (o->ranks - 1)) % o->ranks;

			if (r != from && r != o->peer)
				continue;
			mine_of->kind = r == from ? STEP_SEND : STEP_RECV;
			mine_of->peer = r == from ? o->peer : from;
			s.call.kind = mine_of->kind;
			s.call.peer = mine_of->peer;
		}
		prepare(mine_of, r, &mine[s.nparts]);
		part[s.nparts] = mine[s.nparts].p;
		s.nparts++;
	}
	if (!s.nparts)
		return;
	s.comm = 1;
	if (driver->announce)
		driver->announce(end, s.order);
	rc = driver->start(end, &s);
	if (rc)
		world_fail("start of %s: %s", kinds[o->kind], strerror(-rc));
	rc = await(&e, 60000);
	if (rc)
		world_fail("%s %s %s, %u ranks, %lu elements, root %u: ended with %d", kinds[o->kind],
		           type_names[o->type], op_names[o->op], o->ranks, (unsigned long)o->count,
		           o->peer, rc);
	for (uint32_t i = 0; i < s.nparts; i++)
		finish(&of[i], &mine[i]);
}

static void identity(struct one *o)
{
	for (uint32_t r = 0; r < o->ranks; r++)
		o->device[r] = r;
}

static bool reduces(uint32_t kind)
{
	return kind == STEP_ALLREDUCE || kind == STEP_REDUCE || kind == STEP_REDUCESCATTER;
}

/* All kinds, types and operators with these counts, one rank per device; of `in` one at random. */
static void matrix(uint32_t self, const uint64_t *bytes, uint32_t nbytes, uint32_t in, uint64_t seed)
{
	struct one o = { .ranks = world->n };
	uint64_t x = mixed(seed, 99);

	identity(&o);
	for (o.kind = 0; o.kind < STEP_RECV; o.kind++)
		for (o.type = 0; o.type < TREE_TYPES; o.type++)
			for (o.op = 0; o.op < (reduces(o.kind) ? TREE_OPS : 1); o.op++)
				for (uint32_t i = 0; i < nbytes * 2; i++) {
					o.count = bytes[i / 2] / tree_leaf_size(o.type);
					o.in_place = i & 1;
					if (o.in_place && (o.kind == STEP_ALLTOALL || o.kind == STEP_SEND))
						continue;
					if (!o.count || next(&x) % in)
						continue;
					o.peer = next(&x) % o.ranks;
					o.seed = next(&x);
					run(self, &o);
				}
}

/* Ranks that share devices, by random maps. */
static void sharers(uint32_t self, uint32_t times)
{
	uint64_t x = mixed(5, world->n);

	while (times--) {
		struct one o = { .ranks = 1 + next(&x) % WORLD_MAX, .kind = next(&x) % STEP_RECV,
			         .type = next(&x) % TREE_TYPES, .in_place = next(&x) & 1 };

		o.op = reduces(o.kind) ? next(&x) % TREE_OPS : 0;
		o.count = 1 + next(&x) % (next(&x) & 3 ? 3000 : 60000);
		o.peer = next(&x) % o.ranks;
		o.seed = next(&x);
		if (o.kind == STEP_ALLTOALL)
			o.in_place = false;
		for (uint32_t r = 0; r < o.ranks; r++)
			o.device[r] = next(&x) % world->n;
		if (o.kind == STEP_SEND && o.ranks == 1)
			continue;
		run(self, &o);
	}
}

static void large(uint32_t self)
{
	static const uint64_t mib[] = { 1, 16, 64 };
	struct one o = { .ranks = world->n, .kind = STEP_ALLREDUCE, .op = TREE_SUM };

	identity(&o);
	for (uint32_t i = 0; i < 6; i++) {
		o.type = i & 1 ? TREE_BF16 : TREE_F32;
		o.count = (mib[i / 2] << 20) / tree_leaf_size(o.type) + i;
		o.in_place = i & 1;
		o.seed = i + 1;
		run(self, &o);
	}
}

static void body(uint32_t self, void *arg)
{
	static const uint64_t few[] = { 8, 520, 4096 }, one[] = { 40000 };
	static const uint64_t all[] = { 8, 16, 64, 256, 264, 512, 1000, 1024, 2048, 2056, 4096 };
	static const uint64_t rest[] = { 8192, 32768, 32776, 65536, 100000, 131080, 262144, 1000000,
		                         1 << 20, 3000000, 4 << 20 };

	(void)arg;
	if (driver->join) {	/* over the fake NCCL: one rank on a device */
		world_join(1);
		matrix(self, few, 3, full ? 1 : 3, 1);
		matrix(self, one, 1, full ? 4 : 10, 2);
		driver->leave(end, 1);
		return;
	}
	if (!full) {
		matrix(self, few, 3, 2, 1);
		matrix(self, one, 1, 20, 2);
		sharers(self, 60);
		return;
	}
	matrix(self, all, 11, 1, 1);
	matrix(self, rest, 11, 50, 2);
	sharers(self, 2000);
	large(self);
}

static int in_world(uint32_t n)
{
	static unsigned int test;
	double since = seconds();
	int rc;

	if (world_tcp && !world_has_ip()) {
		printf("ok %u %u ranks over TCP # SKIP this host has no IP address but loopback\n", ++test,
		       n);
		return 0;
	}
	world_begin(n, body, NULL);
	rc = world_end();
	printf("%s %u %u ranks%s # %.1f s\n", rc ? "not ok" : "ok", ++test, n,
	       world_tcp ? " over TCP" : "", seconds() - since);
	return !!rc;
}

int main(int argc, char **argv)
{
	uint64_t x = 88172645463325252ull;
	int bad = 0;

	full = argc > 1 && !strcmp(argv[1], "long");
	table = mmap(NULL, TABLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (table == MAP_FAILED)
		return 1;
	for (uint32_t i = 0; i < TABLE / 8; i++)
		((uint64_t *)table)[i] = next(&x);
	printf("TAP version 13\n1..%d\n", world_nccl ? 7 : 10);
	for (uint32_t n = 2; n <= 8; n++)
		bad += in_world(n);
	if (world_nccl)
		return !!bad;
	/* Over TCP there are fewer. */
	world_tcp = true;
	for (uint32_t n = 2; n <= 4; n++)
		bad += in_world(n);
	return !!bad;
}
