// SPDX-License-Identifier: Apache-2.0
/*
 * flow.c - control-flow analysis of a function, and which values are uniform across a warp
 *
 * Execution.  A warp runs one block at a time for a mask of lanes (a group).  At a branch where the
 * lanes disagree, one side waits; where sides may meet again (a join), a group waits until no group
 * is left in an earlier block.  Blocks are ordered so that a loop's blocks are contiguous and come
 * before what follows the loop, and every loop has one latch, so all lanes that are still in a
 * loop execute its iterations together.
 *
 * Uniform.  A register is uniform when, at each use, the lanes that run together hold one value.  A
 * register varies if it depends on one that does, or by these rules: (1) it is defined on one side
 * of a divergent branch and live at its join; (2) it is live behind a loop that lanes leave in
 * different iterations; (3) it is defined in a loop where lanes may be preempted (spin).  Uniform
 * registers have one slot for all lanes, hence (4) one side must not write what waiting lanes of
 * the other side still read, (5) nor both sides the same register.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "flow_i.h"

/* ---- blocks ---- */

bool flow_ends_block(const struct insn *i)
{
	switch (i->op) {
	case OP_bra: case OP_brx: case OP_ret: case OP_exit: case OP_trap:
		return true;
	}
	return false;
}

/* Waits for other lanes of its warp.  It starts a block, so that lanes can meet there. */
bool flow_is_collective(const struct insn *i)
{
	switch (i->op) {
	case OP_bar: case OP_barrier:
		return !insn_has(i, M_arrive);
	case OP_shfl: case OP_vote: case OP_match: case OP_redux: case OP_elect: case OP_mma:
	case OP_wmma: case OP_ldmatrix: case OP_stmatrix: case OP_movmatrix:
		return true;
	}
	return false;
}

static void add_succ(struct pblock *b, uint32_t s)
{
	uint32_t i;

	for (i = 0; i < b->nsucc; i++)
		if (b->succ[i] == s)
			return;
	b->succ[b->nsucc++] = s;
}

static void make_blocks(struct flow *w)
{
	struct pbody *b = w->b;
	struct ufunc *f = w->f;
	uint32_t i, k, n = 0, *at = ptx_arena_alloc(w->tmp, (b->ninsn + 2) * sizeof(*at));
	uint8_t *start = ptx_arena_alloc(w->tmp, b->ninsn + 2);

	start[0] = 1;
	for (i = 0; i < b->ninsn; i++) {
		const struct insn *t = &b->insn[i];

		for (k = t->op == OP_brx; (t->op == OP_bra || t->op == OP_brx) && k < t->nopnd; k++)
			if (b->labels[t->o[k].imm]->insn <= b->ninsn)
				start[b->labels[t->o[k].imm]->insn] = 1;
		if (flow_ends_block(&b->insn[i]))
			start[i + 1] = 1;
		if (flow_is_collective(&b->insn[i]))
			start[i] = 1;
	}
	for (i = k = 0; b->ninsn > PTX_HUGE && i < b->ninsn; i++) {	/* see jit/flow.c */
		k = start[i] ? 0 : k + 1;
		if (k == ptx_region_most(b->ninsn) / 2)
			start[i] = 1, k = 0;
	}
	for (i = 0; i < b->ninsn; i++) {
		n += start[i];
		at[i] = n - 1;
	}
	at[b->ninsn] = n;		/* falling off the end: a block that returns */
	f->nblk = n + 1;
	f->blk = ptx_arena_alloc(w->a, (n * 2 + 2) * sizeof(*f->blk)); /* room for latches */
	for (i = 0; i < b->ninsn; i++)
		if (start[i])
			f->blk[at[i]].first = i;
	f->blk[n].first = f->blk[n].last = b->ninsn;
	for (i = 0; i < n; i++) {
		struct pblock *bl = &f->blk[i];
		struct insn *t;

		bl->last = i + 1 < n ? f->blk[i + 1].first : b->ninsn;
		t = &b->insn[bl->last - 1];
		bl->succ = ptx_arena_alloc(w->a, (t->op == OP_brx ? t->nopnd + 1 : 2) *
							 sizeof(*bl->succ));
		bl->collective = flow_is_collective(&b->insn[bl->first]);
		if (t->op == OP_bra || t->op == OP_brx)
			for (k = t->op == OP_brx; k < t->nopnd; k++) {
				uint32_t to = b->labels[t->o[k].imm]->insn;

				if (t->op == OP_brx && bl->nsucc > k)
					break;
				add_succ(bl, to >= b->ninsn ? n : at[to]);
			}
		if ((t->op == OP_bra || t->op == OP_ret || t->op == OP_exit) ? t->guard >= 0 :
		    !flow_ends_block(t))
			add_succ(bl, i + 1);
	}
}

static void make_preds(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t i, k;

	for (i = 0; i < f->nblk; i++)
		f->blk[i].npred = 0;
	for (i = 0; i < f->nblk; i++)
		if (f->blk[i].rpo != UINT32_MAX)
			for (k = 0; k < f->blk[i].nsucc; k++)
				f->blk[f->blk[i].succ[k]].npred++;
	for (i = 0; i < f->nblk; i++) {
		f->blk[i].pred = ptx_arena_alloc(w->a, (f->blk[i].npred + 1) * sizeof(uint32_t));
		f->blk[i].npred = 0;
	}
	for (i = 0; i < f->nblk; i++)
		if (f->blk[i].rpo != UINT32_MAX)
			for (k = 0; k < f->blk[i].nsucc; k++) {
				struct pblock *s = &f->blk[f->blk[i].succ[k]];

				s->pred[s->npred++] = i;
			}
}

/* Depth-first reverse post-order into f->order; unreachable blocks get UINT32_MAX. */
static void dfs_order(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t n = f->nblk, sp = 0, post = 0, i;
	uint32_t *stack = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*stack));
	uint32_t *pos = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*pos));
	uint32_t *done = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*done));
	uint8_t *seen = ptx_arena_alloc(w->tmp, n + 1);

	stack[sp++] = 0;
	seen[0] = 1;
	while (sp) {
		uint32_t b = stack[sp - 1];

		if (pos[b] < f->blk[b].nsucc) {
			uint32_t s = f->blk[b].succ[pos[b]++];

			if (!seen[s]) {
				seen[s] = 1;
				stack[sp++] = s;
			}
		} else {
			done[post++] = b;
			sp--;
		}
	}
	f->order = ptx_arena_alloc(w->a, (2 * n + 2) * sizeof(*f->order));
	for (i = 0; i < n; i++)
		f->blk[i].rpo = UINT32_MAX;
	for (i = 0; i < post; i++) {
		f->order[i] = done[post - 1 - i];
		f->blk[f->order[i]].rpo = i;
	}
	f->nreach = post;
}

static int meet(struct ufunc *f, int a, int b)
{
	while (a != b) {
		while (f->blk[a].rpo > f->blk[b].rpo)
			a = f->blk[a].idom;
		while (f->blk[b].rpo > f->blk[a].rpo)
			b = f->blk[b].idom;
	}
	return a;
}

static void dominators(struct ufunc *f)
{
	bool changed = true;
	uint32_t i, k;

	for (i = 0; i < f->nblk; i++)
		f->blk[i].idom = -1;
	f->blk[0].idom = 0;
	while (changed) {
		changed = false;
		for (i = 1; i < f->nreach; i++) {
			struct pblock *b = &f->blk[f->order[i]];
			int d = -1;

			for (k = 0; k < b->npred; k++) {
				int p = b->pred[k];

				if (f->blk[p].idom < 0)
					continue;
				d = d < 0 ? p : meet(f, d, p);
			}
			if (d != b->idom) {
				b->idom = d;
				changed = true;
			}
		}
	}
}

static bool dominates(struct ufunc *f, uint32_t a, uint32_t b)
{
	while (f->blk[b].rpo > f->blk[a].rpo)
		b = f->blk[b].idom;
	return a == b;
}

/* Post-dominators over f->order reversed.  -1: the virtual exit. */
static int pmeet(struct ufunc *f, int a, int b, const uint32_t *prank)
{
	while (a != b) {
		if (a < 0 || b < 0)
			return -1;
		if (prank[a] > prank[b])
			a = f->blk[a].ipdom;
		else
			b = f->blk[b].ipdom;
	}
	return a;
}

static void post_dominators(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t n = f->nblk, sp = 0, post = 0, i, k;
	uint32_t *stack = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*stack));
	uint32_t *pos = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*pos));
	uint32_t *done = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*done));
	uint32_t *rank = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*rank));
	uint8_t *seen = ptx_arena_alloc(w->tmp, n + 1), *set = ptx_arena_alloc(w->tmp, n + 1);
	bool changed = true;

	for (i = 0; i < n; i++)
		f->blk[i].ipdom = -1;
	/* depth first over predecessors, from every block that leaves the function */
	for (i = 0; i < f->nreach; i++) {
		uint32_t r = f->order[f->nreach - 1 - i];
		struct insn *t = f->blk[r].last > f->blk[r].first ?
				 &w->b->insn[f->blk[r].last - 1] : NULL;
		bool leaves = !f->blk[r].nsucc || (t && (t->op == OP_ret || t->op == OP_exit));

		if (!leaves || seen[r])
			continue;
		seen[r] = 1;
		stack[sp++] = r;
		while (sp) {
			uint32_t b = stack[sp - 1];

			if (pos[b] < f->blk[b].npred) {
				uint32_t s = f->blk[b].pred[pos[b]++];

				if (!seen[s]) {
					seen[s] = 1;
					stack[sp++] = s;
				}
			} else {
				done[post++] = b;
				sp--;
			}
		}
	}
	for (i = 0; i < post; i++)
		rank[done[i]] = post - i;	/* larger: farther from the exit */
	while (changed) {
		changed = false;
		for (i = post; i-- > 0;) {
			struct pblock *b = &f->blk[done[i]];
			struct insn *t = b->last > b->first ? &w->b->insn[b->last - 1] : NULL;
			bool first = true;
			int d = -1;

			if (!b->nsucc || (t && (t->op == OP_ret || t->op == OP_exit))) {
				set[done[i]] = 1;
				continue;	/* ipdom stays the virtual exit */
			}
			for (k = 0; k < b->nsucc; k++) {
				if (!set[b->succ[k]])
					continue;
				d = first ? (int)b->succ[k] : pmeet(f, d, b->succ[k], rank);
				first = false;
			}
			if (first)
				continue;
			if (!set[done[i]] || d != b->ipdom) {
				set[done[i]] = 1;
				b->ipdom = d;
				changed = true;
			}
		}
	}
}

/* ---- loops ---- */

static void loop_body(struct flow *w, struct ploop *l, uint32_t latch)
{
	struct ufunc *f = w->f;
	uint32_t *stack = w->todo, sp = 0, k;

	bit_set(l->blocks, l->header);
	if (!bit_get(l->blocks, latch)) {
		bit_set(l->blocks, latch);
		stack[sp++] = latch;
	}
	while (sp) {
		struct pblock *b = &f->blk[stack[--sp]];

		for (k = 0; k < b->npred; k++)
			if (!bit_get(l->blocks, b->pred[k])) {
				bit_set(l->blocks, b->pred[k]);
				stack[sp++] = b->pred[k];
			}
	}
}

static void redirect(struct pblock *b, uint32_t from, uint32_t to)
{
	uint32_t k;

	for (k = 0; k < b->nsucc; k++)
		if (b->succ[k] == from)
			b->succ[k] = to;
}

/* Gives every loop header one latch.  True when blocks were added. */
static bool single_latches(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t i, k, n = f->nblk;
	bool added = false;

	for (i = 0; i < n; i++) {
		struct pblock *h = &f->blk[i], *l;
		uint32_t back = 0;

		if (h->rpo == UINT32_MAX)
			continue;
		for (k = 0; k < h->npred; k++)
			back += dominates(f, i, h->pred[k]);
		if (back < 2)
			continue;
		l = &f->blk[f->nblk];
		memset(l, 0, sizeof(*l));
		l->first = l->last = h->first;
		l->succ = ptx_arena_alloc(w->a, sizeof(uint32_t));
		l->succ[l->nsucc++] = i;
		for (k = 0; k < h->npred; k++)
			if (dominates(f, i, h->pred[k]))
				redirect(&f->blk[h->pred[k]], i, f->nblk);
		f->nblk++;
		added = true;
	}
	return added;
}

static void find_loops(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t i, k, j, cap = 0;

	w->bwords = (f->nblk + 63) / 64;
	w->todo = ptx_arena_alloc(w->tmp, (2 * f->nblk + 2) * sizeof(*w->todo));
	for (i = 0; i < f->nblk; i++) {
		f->blk[i].loop = -1;
		cap += f->blk[i].npred;
	}
	f->loop = ptx_arena_alloc(w->a, (cap + 1) * sizeof(*f->loop));
	for (i = 0; i < f->nreach; i++) {	/* outer headers come first */
		uint32_t h = f->order[i];

		for (k = 0; k < f->blk[h].npred; k++) {
			uint32_t p = f->blk[h].pred[k];
			struct ploop *l;

			if (f->blk[p].rpo < i)
				continue;
			if (!dominates(f, h, p)) {
				w->irreducible = true;
				continue;
			}
			l = &f->loop[f->nloops++];
			l->header = h;
			l->latch = p;
			l->parent = -1;
			l->blocks = ptx_arena_alloc(w->a, w->bwords * 8);
			loop_body(w, l, p);
		}
	}
	for (i = 0; i < f->nloops; i++) {
		/* the parent is the last earlier loop that contains the header */
		for (j = i; j-- > 0;)
			if (bit_get(f->loop[j].blocks, f->loop[i].header) &&
			    f->loop[j].header != f->loop[i].header) {
				f->loop[i].parent = j;
				break;
			}
		for_each_bit(k, f->loop[i].blocks, f->nblk)
			f->blk[k].loop = i;	/* inner loops come later */
	}
}

static bool in_loop(struct ufunc *f, uint32_t b, int loop)
{
	return loop < 0 || bit_get(f->loop[loop].blocks, b);
}

/* Topological order in which each loop is contiguous: see the top of this file. */
static void loop_order(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t n = f->nreach, i, k, count = 0, nready = 0;
	uint32_t *need = ptx_arena_alloc(w->tmp, (f->nblk + 1) * sizeof(*need));
	uint32_t *ready = ptx_arena_alloc(w->tmp, (f->nblk + 1) * sizeof(*ready));
	uint32_t *order = ptx_arena_alloc(w->tmp, (f->nblk + 1) * sizeof(*order));
	int cur = -1;

	if (w->irreducible)
		return;		/* keeps the depth-first order */
	for (i = 0; i < f->nblk; i++)
		for (k = 0; k < f->blk[i].npred; k++)
			if (f->blk[f->blk[i].pred[k]].rpo < f->blk[i].rpo)
				need[i]++;
	ready[nready++] = 0;
	while (nready) {
		uint32_t best = 0, b;

		while (true) {
			bool found = false;

			for (i = 0; i < nready; i++)
				if (in_loop(f, ready[i], cur) &&
				    (!found || f->blk[ready[i]].first < f->blk[ready[best]].first)) {
					best = i;
					found = true;
				}
			if (found || cur < 0)
				break;
			cur = f->loop[cur].parent;
		}
		b = ready[best];
		ready[best] = ready[--nready];
		order[count++] = b;
		cur = f->blk[b].loop;
		for (k = 0; k < f->blk[b].nsucc; k++) {
			uint32_t s = f->blk[b].succ[k];

			if (f->blk[s].rpo > f->blk[b].rpo && !--need[s])
				ready[nready++] = s;
		}
	}
	if (count != n)
		ptx_fail(-ENOTSUP, 0, "control flow that can not be ordered");
	memcpy(f->order, order, n * sizeof(*order));
	for (i = 0; i < n; i++)
		f->blk[order[i]].rpo = i;
}

/* ---- liveness ---- */

static void count_reg(void *arg, int reg, bool def)
{
	struct flow *w = arg;

	w->use_at[reg + 1] += !def;
	w->def_at[0] += def;
}

/* While blocks are read; @defined and @needed: per register, 1 + the last block that did so. */
struct lists {
	struct flow *w;
	uint32_t block, insn, *end, *defined, *needed, ndefs, nneeds;
	bool partial;
};

static void note_need(struct lists *l, int reg)
{
	if (l->defined[reg] == l->block + 1 || l->needed[reg] == l->block + 1)
		return;
	l->needed[reg] = l->block + 1;
	l->w->needs[l->nneeds++] = reg;
	if (!l->w->global[reg])
		l->w->global[reg] = ++l->w->nglobal;
}

static void note_use(void *arg, int reg, bool def)
{
	struct lists *l = arg;

	if (def)
		return;
	l->w->uses[l->end[reg]++] = l->insn;
	note_need(l, reg);
}

static void note_def(void *arg, int reg, bool def)
{
	struct lists *l = arg;

	if (!def)
		return;
	if (l->partial)
		note_need(l, reg);	/* the old value may stay */
	if (l->defined[reg] != l->block + 1)
		l->w->defs[l->ndefs++] = reg;
	l->defined[reg] = l->block + 1;
}

static void list_registers(struct flow *w)
{
	uint32_t n = w->b->nregs, i, k, nuses = 0, ndefs;
	struct lists l = { .w = w };
	struct ufunc *f = w->f;

	w->use_at = ptx_arena_alloc(w->tmp, (n + 2) * sizeof(*w->use_at));
	w->def_at = ptx_arena_alloc(w->tmp, (f->nblk + 1) * sizeof(*w->def_at));
	w->need_at = ptx_arena_alloc(w->tmp, (f->nblk + 1) * sizeof(*w->need_at));
	w->blk_of = ptx_arena_alloc(w->tmp, (w->b->ninsn + 1) * sizeof(*w->blk_of));
	w->global = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*w->global));
	w->fresh = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*w->fresh));
	l.end = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*l.end));
	l.defined = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*l.defined));
	l.needed = ptx_arena_alloc(w->tmp, (n + 1) * sizeof(*l.needed));
	for (i = 0; i < f->nblk; i++)
		for (k = f->blk[i].first; k < f->blk[i].last; k++)
			insn_regs(&w->b->insn[k], count_reg, w);
	ndefs = w->def_at[0];
	w->def_at[0] = 0;
	for (i = 0; i < n; i++) {
		l.end[i] = nuses;
		nuses += w->use_at[i + 1];
	}
	w->uses = ptx_arena_alloc(w->tmp, (nuses + 1) * sizeof(*w->uses));
	w->defs = ptx_arena_alloc(w->tmp, (ndefs + 1) * sizeof(*w->defs));
	w->needs = ptx_arena_alloc(w->tmp, (nuses + ndefs + 1) * sizeof(*w->needs));
	for (i = 0; i < n; i++)
		w->use_at[i] = l.end[i];
	w->use_at[n] = nuses;
	for (i = 0; i < f->nblk; i++) {
		l.block = i;
		for (k = f->blk[i].first; k < f->blk[i].last; k++) {
			l.insn = k;
			l.partial = w->b->insn[k].guard >= 0 && !w->b->insn[k].whole;
			w->blk_of[k] = i;
			insn_regs(&w->b->insn[k], note_use, &l);
			insn_regs(&w->b->insn[k], note_def, &l);
		}
		w->def_at[i + 1] = l.ndefs;
		w->need_at[i + 1] = l.nneeds;
	}
}

/* Computes live-in of block @b from its successors'.  Returns whether it has grown. */
static bool flow_back(struct flow *w, uint32_t b, uint64_t *out)
{
	struct pblock *bl = &w->f->blk[b];
	uint64_t *in = flow_live_into(w, b);
	uint32_t k, x, g;

	memset(out, 0, w->words * 8);
	for (k = 0; k < bl->nsucc; k++)
		for (x = 0; x < w->words; x++)
			out[x] |= flow_live_into(w, bl->succ[k])[x];
	for (k = w->def_at[b]; k < w->def_at[b + 1]; k++) {
		g = w->global[w->defs[k]];
		if (g)
			out[(g - 1) / 64] &= ~(1ull << (g - 1) % 64);
	}
	for (k = w->need_at[b]; k < w->need_at[b + 1]; k++)
		bit_set(out, w->global[w->needs[k]] - 1);
	if (!memcmp(in, out, w->words * 8))
		return false;
	memcpy(in, out, w->words * 8);
	return true;
}

static void liveness(struct flow *w)
{
	struct ufunc *f = w->f;
	uint8_t *fresh = ptx_arena_alloc(w->tmp, f->nblk + 1); /* a successor has changed */
	uint32_t i, k, b, left = f->nreach;

	if ((uint64_t)f->nblk * ((w->b->nregs + 63) / 64) > 1 << 24)	/* half a GiB of sets */
		ptx_fail(-ENOTSUP, f->f->line, "%s is too large: %u blocks, %u registers",
			 f->f->name, f->nblk, w->b->nregs);
	w->words = (w->nglobal + 63) / 64;
	w->in = ptx_arena_alloc(w->tmp, (size_t)f->nblk * w->words * 8 + 8);
	w->live = ptx_arena_alloc(w->tmp, w->words * 8 + 8);
	memset(fresh, 1, f->nblk);
	while (left)
		for (i = f->nreach; i-- > 0;) {
			b = f->order[i];
			if (!fresh[b])
				continue;
			fresh[b] = 0;
			left--;
			if (!flow_back(w, b, w->live))
				continue;
			for (k = 0; k < f->blk[b].npred; k++) {
				left += !fresh[f->blk[b].pred[k]];
				fresh[f->blk[b].pred[k]] = 1;
			}
		}
}

/* Stores live-in sets of all registers, for code generation. */
static void keep_liveness(struct flow *w)
{
	uint32_t n = w->b->nregs, i, b,
		 *reg = ptx_arena_alloc(w->tmp, (w->nglobal + 1) * sizeof(*reg));
	struct ufunc *f = w->f;

	for (i = 0; i < n; i++)
		if (w->global[i])
			reg[w->global[i] - 1] = i;
	for (b = 0; b < f->nblk; b++) {
		f->blk[b].livein = ptx_arena_alloc(w->a, (n + 63) / 64 * 8 + 8);
		for_each_bit(i, flow_live_into(w, b), w->nglobal)
			bit_set(f->blk[b].livein, reg[i]);
	}
}
static void analyse(struct unit *u, struct ufunc *f, bool fold)
{
	struct flow w = { .u = u, .f = f, .b = f->b, .a = &u->arena, .tmp = &u->scratch };

	f->nloops = f->nstubs = 0;
	f->diverges = f->preempts = false;
	make_blocks(&w);
	dfs_order(&w);
	make_preds(&w);
	dominators(f);
	if (single_latches(&w)) {
		dfs_order(&w);
		make_preds(&w);
		dominators(f);
	}
	find_loops(&w);
	loop_order(&w);
	post_dominators(&w);
	list_registers(&w);
	liveness(&w);
	flow_find_spins(&w);
	flow_uniformity(&w);
	if (fold && f->diverges && flow_fold_short_sides(&w)) {
		analyse(u, f, false);
	} else {
		keep_liveness(&w);
		flow_number_stubs(&w);
		flow_find_late_writes(&w);
	}
}

void ptx_analyse(struct unit *u, struct ufunc *f)
{
	analyse(u, f, true);
	ptx_arena_free(&u->scratch);
}
