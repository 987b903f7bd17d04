/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow_i.h - the state of one function's analysis, shared by flow.c, uniform.c and fold.c
 *
 *   flow.c      blocks, dominators, loops, liveness; the order of the steps
 *   uniform.c   loops whose lanes may be preempted, divergent branches, registers that vary
 *   fold.c      short sides of a branch under guards; the first writes after a barrier
 *
 * The sets and lists are in the analysis' scratch arena, and are freed with it.
 */
#ifndef SOFTGPU_FLOW_I_H
#define SOFTGPU_FLOW_I_H

#include "ptx_i.h"

struct flow {
	struct unit *u;
	struct ufunc *f;
	struct pbody *b;
	struct arena *a, *tmp;		/* of the unit; of this analysis */
	uint32_t bwords;		/* per block set */
	/* lists: list[at[i]] up to list[at[i + 1]] */
	uint32_t *use_at, *uses;	/* instructions, per register */
	uint32_t *def_at, *defs;	/* registers, per block */
	uint32_t *need_at, *needs;	/* registers that are read before they are written, per block */
	uint32_t *blk_of;		/* per instruction */
	/* Few registers are live between blocks (global): sets hold only these. */
	uint32_t *global, nglobal;	/* per register: 1 and its number among them, or 0 */
	uint32_t words;			/* per set of them */
	uint64_t *in;			/* registers live into a block, per block */
	uint32_t *fresh, nfresh;	/* registers whose uses are still to be looked at */
	uint32_t *todo;			/* blocks of a walk */
	uint64_t *live;			/* a set of global registers */
	uint64_t *seen;			/* a set of blocks */
	/* for influence(), of one branch */
	int *label;			/* per block */
	uint64_t *is_join;
	uint32_t *joins, njoins, *region, nregion;
	uint32_t lo, hi;		/* the part of the order that has labels */
	uint32_t *side, *stamp, epoch;	/* per register: the label that defines it */
	uint8_t *stepless;		/* per loop: out_of_step() was called */
	bool irreducible;
};

/* The first member of a set of @n from @i on, or @n. */
static inline uint32_t flow_next_bit(const uint64_t *set, uint32_t n, uint32_t i)
{
	uint64_t v;

	if (i >= n)
		return n;
	for (v = set[i / 64] >> i % 64 << i % 64; !v; v = set[i / 64]) {
		i = (i / 64 + 1) * 64;
		if (i >= n)
			return n;
	}
	i = i / 64 * 64 + __builtin_ctzll(v);
	return i < n ? i : n;
}

static inline bool flow_is_live(const struct flow *w, const uint64_t *set, uint32_t reg)
{
	return w->global[reg] && bit_get(set, w->global[reg] - 1);
}

static inline uint64_t *flow_live_into(const struct flow *w, uint32_t b)
{
	return w->in + (size_t)b * w->words;
}

#define for_each_bit(_i, _set, _n) \
	for ((_i) = flow_next_bit(_set, _n, 0); (_i) < (_n); (_i) = flow_next_bit(_set, _n, (_i) + 1))

bool flow_ends_block(const struct insn *i);
bool flow_is_collective(const struct insn *i);
bool flow_uses_cc(const struct insn *i);
bool flow_local_mem(const struct insn *i);
bool flow_is_block_barrier(const struct insn *i);
void flow_find_spins(struct flow *w);
void flow_uniformity(struct flow *w);
void flow_number_stubs(struct flow *w);
bool flow_fold_short_sides(struct flow *w);
void flow_find_late_writes(struct flow *w);

#endif
