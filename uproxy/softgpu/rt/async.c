// SPDX-License-Identifier: Apache-2.0
/*
 * async.c - barriers in memory (mbarrier), and bulk copies
 *
 * An mbarrier is a word of a block's shared memory (RT_MB_*): its phase completes when no arrival is
 * pending and no bytes are to come.  Only the block's worker changes it.  A wait tells whether the
 * phase has completed, and does not block; if it has not, the next back edge lets other lanes and
 * warps run.
 */
#include <string.h>

#include "rt_i.h"

enum { COUNT_MAX = (1 << RT_MB_COUNT) - 1 };

struct mbarrier {
	uint32_t pending, expected;	/* arrivals of this phase; of each phase from the next on */
	int32_t tx;			/* bytes expected, less those that have come */
	bool phase;
};

static void bad(struct rt_warp *w, int lane, const char *text) __attribute__((noreturn));

static void bad(struct rt_warp *w, int lane, const char *text)
{
	rt_fault(w, PTX_ILLEGAL_INSN, 0, lane, text);
}

static uint64_t *mbarrier_at(struct rt_warp *w, uint64_t a, int space, int lane)
{
	bool shared = space == RT_SHARED ||
		      (space == RT_GENERIC && a >= PTX_VA_SHARED && a < PTX_VA_LOCAL);

	if (!shared)
		rt_fault(w, PTX_ILLEGAL_SPACE, a, lane, "an mbarrier outside shared memory");
	return (uint64_t *)rt_resolve(w, a, 8, space, lane, true);
}

static struct mbarrier decode(struct rt_warp *w, int lane, uint64_t v)
{
	if (!(v >> RT_MB_VALID & 1))
		bad(w, lane, "an mbarrier that is not initialised");
	return (struct mbarrier){
		.pending = v & COUNT_MAX, .expected = v >> RT_MB_EXPECTED & COUNT_MAX,
		.tx = (int64_t)(v << (64 - RT_MB_TX - RT_MB_TX_BITS)) >> (64 - RT_MB_TX_BITS),
		.phase = v >> RT_MB_PHASE,
	};
}

static uint64_t encode(const struct mbarrier *m)
{
	return m->pending | (uint64_t)m->expected << RT_MB_EXPECTED |
	       ((uint64_t)m->tx & ((1u << RT_MB_TX_BITS) - 1)) << RT_MB_TX | 1ull << RT_MB_VALID |
	       (uint64_t)m->phase << RT_MB_PHASE;
}

static void arrive(struct rt_warp *w, int lane, struct mbarrier *m, uint64_t count)
{
	if (count > m->pending)
		bad(w, lane, "more arrivals at an mbarrier than it expects");
	m->pending -= count;
}

static void expect(struct rt_warp *w, int lane, struct mbarrier *m, int64_t bytes)
{
	if (m->tx + bytes > COUNT_MAX || m->tx + bytes < -COUNT_MAX)
		bad(w, lane, "an mbarrier expects too many bytes");
	m->tx += bytes;
}

static void change(struct rt_warp *w, int lane, struct mbarrier *m, uint32_t op, uint64_t x)
{
	switch (op) {
	case RT_MB_EXPECT:
		expect(w, lane, m, x);
		break;
	case RT_MB_COMPLETE:
		expect(w, lane, m, -(int64_t)x);
		break;
	case RT_MB_ARRIVE:
		arrive(w, lane, m, x);
		break;
	case RT_MB_ARRIVE_EXPECT:
		expect(w, lane, m, x);
		arrive(w, lane, m, 1);
		break;
	case RT_MB_DROP:
	case RT_MB_DROP_EXPECT:
		if (op == RT_MB_DROP_EXPECT)
			expect(w, lane, m, x);
		x = op == RT_MB_DROP ? x : 1;
		arrive(w, lane, m, x);
		if (x > m->expected)
			bad(w, lane, "more drops at an mbarrier than it expects arrivals");
		m->expected -= x;
		break;
	}
	if (m->pending || m->tx)
		return;
	m->phase = !m->phase;
	m->pending = m->expected;
	w->block->worker->progress = true;
}

static void init(struct rt_warp *w, int lane, uint64_t *p, uint64_t count)
{
	struct mbarrier m = { .pending = count, .expected = count };

	if (count > COUNT_MAX)
		bad(w, lane, "the count of an mbarrier");
	*p = encode(&m);
}

/* In order of lanes. y: the state before. Returns the lanes whose phase has completed. */
static uint32_t rt_mbarrier(struct rt_warp *w, uint32_t mask, uint32_t op, uint32_t space)
{
	uint32_t done = 0;

	EACH(mask, l) {
		uint64_t *p = mbarrier_at(w, w->addr[l], space, l), x = w->x.u64[l];
		struct mbarrier m;

		if (op == RT_MB_INIT) {
			init(w, l, p, x);
			continue;
		}
		m = decode(w, l, *p);
		w->y.u64[l] = *p;
		if (op == RT_MB_INVAL) {
			*p = 0;
		} else if (op == RT_MB_TEST || op == RT_MB_TEST_PARITY) {
			if (m.phase != (op == RT_MB_TEST ? x >> RT_MB_PHASE : x & 1))
				done |= 1u << l;
		} else {
			change(w, l, &m, op, x);
			*p = encode(&m);
		}
	}
	if ((op == RT_MB_TEST || op == RT_MB_TEST_PARITY) && done != mask)
		w->budget = 0;
	return done;
}

/* ---- bulk copies ---- */

/* @bytes of a copy have come; @a is the shared address of its barrier. */
void rt_complete_tx(struct rt_warp *w, int lane, uint64_t a, uint32_t bytes)
{
	uint64_t *p = mbarrier_at(w, a, RT_SHARED, lane);
	struct mbarrier m = decode(w, lane, *p);

	change(w, lane, &m, RT_MB_COMPLETE, bytes);
	*p = encode(&m);
}

static void reduce(uint8_t *d, const uint8_t *s, uint32_t bytes, uint32_t desc)
{
	uint32_t size = desc >> RT_BULK_SIZE & 15, i;

	for (i = 0; i < bytes; i += size) {
		uint64_t v = 0;

		memcpy(&v, s + i, size);
		rt_atom_one(d + i, size, desc >> RT_BULK_OP & 15, desc >> RT_BULK_TYPE & 15, v, 0);
	}
}

static void copy_some(uint8_t *d, const uint8_t *s, uint32_t bytes, uint32_t mask)
{
	uint32_t i;

	for (i = 0; i < bytes; i++)
		if (mask >> i % 16 & 1)
			d[i] = s[i];
}

static void bulk_one(struct rt_warp *w, int lane, uint64_t to, uint64_t barrier, uint32_t desc)
{
	uint32_t bytes = w->x.u32[256 + lane];
	const uint8_t *s;
	uint8_t *d;

	if (bytes) {
		s = rt_resolve_bytes(w, w->x.u64[lane], bytes, 16, desc >> RT_BULK_SRC & 15, lane,
				     false);
		d = rt_resolve_bytes(w, to, bytes, 16, desc & 15, lane, true);
		if (desc & RT_BULK_REDUCE)
			reduce(d, s, bytes, desc);
		else if (desc & RT_BULK_MASK)
			copy_some(d, s, bytes, ((uint16_t *)(w->x.b + 3072))[lane]);
		else
			memmove(d, s, bytes);
	}
	if (desc & RT_BULK_TX)
		rt_complete_tx(w, lane, barrier, bytes);
}

/* The same place in the shared memory of the cluster's block @rank. */
uint64_t rt_peer(uint64_t a, uint32_t rank)
{
	return (a & ((1u << PTX_VA_RANK) - 1)) | (rank + 1ull) << PTX_VA_RANK;
}

/*
 * addr: destinations; x: sources; + 1024: bytes; + 2048: barriers; + 3072: which bytes of 16, or
 * which blocks.
 */
static void rt_bulk(struct rt_warp *w, uint32_t mask, uint32_t desc)
{
	EACH(mask, l) {
		uint64_t to = w->addr[l], barrier = w->x.u64[256 + l];
		uint32_t ranks = ((uint16_t *)(w->x.b + 3072))[l];

		if (w->x.u32[256 + l] % 16)
			bad(w, l, "the size of a bulk copy is no multiple of 16");
		if (!(desc & RT_BULK_MULTICAST)) {
			bulk_one(w, l, to, barrier, desc);
			continue;
		}
		EACH(ranks, rank)
			bulk_one(w, l, rt_peer(to, rank), rt_peer(barrier, rank), desc);
	}
}

/* x: bytes. */
static void rt_clear(struct rt_warp *w, uint32_t mask, uint32_t space)
{
	EACH(mask, l) {
		uint64_t bytes = w->x.u64[l];

		if (bytes % 8 || bytes > UINT32_MAX)
			bad(w, l, "the size of a bulk store");
		if (bytes)
			memset(rt_resolve_bytes(w, w->addr[l], bytes, 8, space, l, true), 0, bytes);
	}
}

const struct rt_symbol rt_async_symbols[] = {
	{ "rt_mbarrier", rt_mbarrier }, { "rt_bulk", rt_bulk }, { "rt_clear", rt_clear },
	{ NULL, NULL },
};
