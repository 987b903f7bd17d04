// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_flow.c - control flow of one function and what is the same in all lanes of a warp.
 *
 * Execution.  A warp runs one block at a time for a mask of lanes.  At a branch where the lanes
 * disagree, one side waits; where sides may meet again (a join), a group waits until no group is
 * left in an earlier block.  Blocks are ordered so that a loop's blocks are contiguous and come
 * before what follows the loop, and every loop has one latch, so all lanes that are still in a
 * loop go through its iterations together.
 *
 * Uniform.  A register is uniform when, at each use, the lanes that run together hold one value.
 * That follows from the order above: it fails for what is defined on one side of a divergent
 * branch and used at its join, for what leaves a loop that lanes leave in different iterations,
 * and for any loop's values once lanes may be preempted (spin) - see the three rules below.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_i.h"

struct flow {
	struct unit *u;
	struct ufunc *f;
	struct pbody *b;
	struct arena *a;
	uint32_t words;			/* per register set */
	uint32_t bwords;		/* per block set */
	uint64_t **use, **def, **out;	/* per block */
	int *label;			/* per block, while a branch is looked at */
	int *head, *next;		/* blocks by label */
	uint64_t *seen, *two, *group;	/* register sets, the same */
	bool irreducible;
};

/* ---- blocks ---- */

static bool ends_block(const struct insn *i)
{
	switch (i->op) {
	case OP_bra: case OP_brx: case OP_ret: case OP_exit: case OP_trap:
		return true;
	}
	return false;
}

/* Waits for other lanes of its warp: starts a block, so that lanes can meet there. */
static bool is_collective(const struct insn *i)
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
	uint32_t i, k, n = 0, *at = arena_alloc(w->a, (b->ninsn + 2) * sizeof(*at));
	uint8_t *start = arena_alloc(w->a, b->ninsn + 2);

	start[0] = 1;
	for (i = 0; i < b->ninsn; i++) {
		const struct insn *t = &b->insn[i];

		for (k = t->op == OP_brx; (t->op == OP_bra || t->op == OP_brx) && k < t->nopnd; k++)
			if (b->labels[t->o[k].imm]->insn <= b->ninsn)
				start[b->labels[t->o[k].imm]->insn] = 1;
		if (ends_block(&b->insn[i]))
			start[i + 1] = 1;
		if (is_collective(&b->insn[i]))
			start[i] = 1;
	}
	for (i = k = 0; b->ninsn > PTX_HUGE && i < b->ninsn; i++) {	/* see jit_flow.c */
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
	f->blk = arena_alloc(w->a, (n * 2 + 2) * sizeof(*f->blk));	/* room for latches */
	for (i = 0; i < b->ninsn; i++)
		if (start[i])
			f->blk[at[i]].first = i;
	f->blk[n].first = f->blk[n].last = b->ninsn;
	for (i = 0; i < n; i++) {
		struct pblock *bl = &f->blk[i];
		struct insn *t;

		bl->last = i + 1 < n ? f->blk[i + 1].first : b->ninsn;
		t = &b->insn[bl->last - 1];
		bl->succ = arena_alloc(w->a, (t->op == OP_brx ? t->nopnd + 1 : 2) * sizeof(*bl->succ));
		bl->collective = is_collective(&b->insn[bl->first]);
		if (t->op == OP_bra || t->op == OP_brx)
			for (k = t->op == OP_brx; k < t->nopnd; k++) {
				uint32_t to = b->labels[t->o[k].imm]->insn;

				if (t->op == OP_brx && bl->nsucc > k)
					break;
				add_succ(bl, to >= b->ninsn ? n : at[to]);
			}
		if ((t->op == OP_bra || t->op == OP_ret || t->op == OP_exit) ? t->guard >= 0 :
		    !ends_block(t))
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
		f->blk[i].pred = arena_alloc(w->a, (f->blk[i].npred + 1) * sizeof(uint32_t));
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
	uint32_t *stack = arena_alloc(w->a, (n + 1) * sizeof(*stack));
	uint32_t *pos = arena_alloc(w->a, (n + 1) * sizeof(*pos));
	uint32_t *done = arena_alloc(w->a, (n + 1) * sizeof(*done));
	uint8_t *seen = arena_alloc(w->a, n + 1);

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
	f->order = arena_alloc(w->a, (2 * n + 2) * sizeof(*f->order));
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
	uint32_t *stack = arena_alloc(w->a, (n + 1) * sizeof(*stack));
	uint32_t *pos = arena_alloc(w->a, (n + 1) * sizeof(*pos));
	uint32_t *done = arena_alloc(w->a, (n + 1) * sizeof(*done));
	uint32_t *rank = arena_alloc(w->a, (n + 1) * sizeof(*rank));
	uint8_t *seen = arena_alloc(w->a, n + 1), *set = arena_alloc(w->a, n + 1);
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
		rank[done[i]] = post - i;	/* larger: further from the exit */
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
	uint32_t *stack = arena_alloc(w->a, (f->nblk + 2) * sizeof(*stack)), sp = 0, k;

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
		l->succ = arena_alloc(w->a, sizeof(uint32_t));
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
	for (i = 0; i < f->nblk; i++) {
		f->blk[i].loop = -1;
		cap += f->blk[i].npred;
	}
	f->loop = arena_alloc(w->a, (cap + 1) * sizeof(*f->loop));
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
			l->blocks = arena_alloc(w->a, w->bwords * 8);
			loop_body(w, l, p);
		}
	}
	for (i = 0; i < f->nloops; i++) {
		/* the latest earlier loop that holds the header is the parent */
		for (j = i; j-- > 0;)
			if (bit_get(f->loop[j].blocks, f->loop[i].header) &&
			    f->loop[j].header != f->loop[i].header) {
				f->loop[i].parent = j;
				break;
			}
		for (k = 0; k < f->nblk; k++)
			if (bit_get(f->loop[i].blocks, k))
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
	uint32_t *need = arena_alloc(w->a, (f->nblk + 1) * sizeof(*need));
	uint32_t *ready = arena_alloc(w->a, (f->nblk + 1) * sizeof(*ready));
	uint32_t *order = arena_alloc(w->a, (f->nblk + 1) * sizeof(*order));
	int cur = -1;

	if (w->irreducible)
		return;		/* the depth-first order will do */
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

struct sets {
	uint64_t *use, *def;
	bool partial;
};

static void note_use(void *arg, int reg, bool def)
{
	struct sets *s = arg;

	if (!def && !bit_get(s->def, reg))
		bit_set(s->use, reg);
}

static void note_def(void *arg, int reg, bool def)
{
	struct sets *s = arg;

	if (!def)
		return;
	if (s->partial && !bit_get(s->def, reg))
		bit_set(s->use, reg);	/* the old value may stay */
	bit_set(s->def, reg);
}

static void liveness(struct flow *w)
{
	struct ufunc *f = w->f;
	bool changed = true;
	uint32_t i, k, x;

	w->words = (w->b->nregs + 63) / 64;
	if ((uint64_t)f->nblk * w->words > 1 << 24)	/* half a GiB of sets */
		ptx_fail(-ENOTSUP, f->f->line, "%s is too large: %u blocks, %u registers",
			 f->f->name, f->nblk, w->b->nregs);
	w->use = arena_alloc(w->a, f->nblk * sizeof(*w->use));
	w->def = arena_alloc(w->a, f->nblk * sizeof(*w->def));
	w->out = arena_alloc(w->a, f->nblk * sizeof(*w->out));
	for (i = 0; i < f->nblk; i++) {
		struct sets s;

		w->use[i] = s.use = arena_alloc(w->a, w->words * 8 + 8);
		w->def[i] = s.def = arena_alloc(w->a, w->words * 8 + 8);
		w->out[i] = arena_alloc(w->a, w->words * 8 + 8);
		f->blk[i].livein = arena_alloc(w->a, w->words * 8 + 8);
		for (k = f->blk[i].first; k < f->blk[i].last; k++) {
			s.partial = w->b->insn[k].guard >= 0 && !w->b->insn[k].whole;
			insn_regs(&w->b->insn[k], note_use, &s);
			insn_regs(&w->b->insn[k], note_def, &s);
		}
	}
	while (changed) {
		changed = false;
		for (i = f->nreach; i-- > 0;) {
			uint32_t b = f->order[i];
			uint64_t *in = f->blk[b].livein, *out = w->out[b];

			for (k = 0; k < f->blk[b].nsucc; k++)
				for (x = 0; x < w->words; x++)
					out[x] |= f->blk[f->blk[b].succ[k]].livein[x];
			for (x = 0; x < w->words; x++) {
				uint64_t v = w->use[b][x] | (out[x] & ~w->def[b][x]);

				if (v != in[x]) {
					in[x] = v;
					changed = true;
				}
			}
		}
	}
}

/* ---- divergence ---- */

static bool may_spin(const struct insn *i)
{
	switch (i->op) {
	case OP_atom: case OP_nanosleep: case OP_mbarrier:
		return true;
	case OP_ld:
		return insn_is_strong(i);
	case OP_call:
		return i->o[1].kind != O_FUNC || i->o[1].func->body;
	}
	return false;
}

static bool local_mem(const struct insn *i)
{
	const struct opnd *o;
	unsigned int k;

	if (insn_promoted(i))
		return false;
	if (insn_has(i, M_local))
		return true;
	for (k = 0; k < i->nopnd; k++) {
		o = &i->o[k];
		if (o->kind == O_MEM && o->var && (o->var->space == V_LOCAL ||
						   o->var->space == V_PARAM))
			return true;
	}
	return false;
}

/* Registers that are computed, inside of a loop, from what matters. */
struct taint {
	const uint64_t *from, *except;	/* tainted already; what keeps a load from counting */
	bool tainted, excepted, inner;	/* a source is; is among @except; is defined in the loop */
	uint64_t *to;
	const uint64_t *defs;		/* the loop's */
	const uint64_t *only;		/* registers that may be tainted, or NULL */
	bool changed;
};

static void taint_src(void *arg, int reg, bool def)
{
	struct taint *t = arg;

	if (def)
		return;
	t->tainted |= bit_get(t->from, reg);
	t->excepted |= t->except && bit_get(t->except, reg);
	t->inner |= bit_get(t->defs, reg);
}

static void taint_dst(void *arg, int reg, bool def)
{
	struct taint *t = arg;

	if (!def || bit_get(t->to, reg) || (t->only && !bit_get(t->only, reg)))
		return;
	bit_set(t->to, reg);
	t->changed = true;
}

/* Loads what another thread may write. */
static bool loads_shared(const struct insn *i)
{
	return i->op == OP_ld && !insn_promoted(i) && !local_mem(i) && !insn_has(i, M_const) &&
	       !insn_has(i, M_param) && !insn_has(i, M_nc);
}

static bool orders_memory(const struct insn *i)
{
	return i->op == OP_fence || i->op == OP_membar || i->op == OP_bar || i->op == OP_barrier;
}

enum taint_kind { BY_LOADS, BY_TURNS, BY_POLLS };

/* One pass over loop @l; see polls_plainly(). */
static bool spread(struct flow *w, struct ploop *l, enum taint_kind kind, struct taint *t, bool fenced)
{
	struct ufunc *f = w->f;
	uint32_t b, k;

	t->changed = false;
	for (b = 0; b < f->nblk; b++)
		for (k = f->blk[b].first; bit_get(l->blocks, b) && k < f->blk[b].last; k++) {
			struct insn *i = &w->b->insn[k];
			bool load = loads_shared(i);

			t->tainted = t->excepted = t->inner = false;
			insn_regs(i, taint_src, t);
			if (kind == BY_LOADS)
				t->tainted |= load;
			else if (kind == BY_POLLS && load)
				t->tainted = fenced || !t->excepted;
			if (t->tainted)
				insn_regs(i, taint_dst, t);
		}
	return t->changed;
}

/* What changes from turn to turn by itself: counters and what comes of them. */
static void turns(struct flow *w, struct ploop *l, struct taint *t, const uint64_t *carried,
		  const uint64_t *loaded)
{
	struct ufunc *f = w->f;
	uint32_t b, k;

	t->except = loaded;
	t->only = carried;
	for (b = 0; b < f->nblk; b++)
		for (k = f->blk[b].first; bit_get(l->blocks, b) && k < f->blk[b].last; k++) {
			t->excepted = t->inner = false;
			insn_regs(&w->b->insn[k], taint_src, t);
			if (t->inner && !t->excepted && w->b->insn[k].op != OP_ld)
				insn_regs(&w->b->insn[k], taint_dst, t);
		}
	t->only = NULL;
	while (spread(w, l, BY_TURNS, t, false))
		;
}

/*
 * Plain loads may wait for another thread as well: the way out depends on what they find, at an address
 * that the loop does not change or behind a fence or a barrier, and on nothing that counts.
 */
static bool polls_plainly(struct flow *w, struct ploop *l)
{
	struct ufunc *f = w->f;
	size_t n = w->words * 8 + 8;
	uint64_t *set[5];	/* the loop's definitions, carried, loaded, counting, polled */
	struct taint t = { 0 };
	bool fenced = false, any = false;
	uint32_t b, k, x;

	for (b = 0; b < f->nblk; b++)
		for (k = f->blk[b].first; bit_get(l->blocks, b) && k < f->blk[b].last; k++) {
			fenced |= orders_memory(&w->b->insn[k]);
			any |= loads_shared(&w->b->insn[k]);
		}
	if (!any)
		return false;
	for (k = 0; k < 5; k++)
		set[k] = arena_alloc(w->a, n);
	for (b = 0; b < f->nblk; b++)
		for (x = 0; bit_get(l->blocks, b) && x < w->words; x++)
			set[0][x] |= w->def[b][x];
	for (x = 0; x < w->words; x++)
		set[1][x] = set[0][x] & f->blk[l->header].livein[x];
	t.defs = set[0];
	t.from = t.to = set[2];
	while (spread(w, l, BY_LOADS, &t, false))
		;
	t.from = t.to = set[3];
	turns(w, l, &t, set[1], set[2]);
	for (x = 0; x < w->words; x++)
		set[2][x] |= set[3][x];
	t.except = set[2];
	t.from = t.to = set[4];
	while (spread(w, l, BY_POLLS, &t, fenced))
		;
	for (b = 0; b < f->nblk; b++) {
		struct pblock *bl = &f->blk[b];
		struct insn *last = bl->last > bl->first ? &w->b->insn[bl->last - 1] : NULL;

		if (!bit_get(l->blocks, b) || !last || last->guard < 0 ||
		    (last->op != OP_bra && last->op != OP_ret && last->op != OP_exit) ||
		    !bit_get(set[4], last->guard) || bit_get(set[3], last->guard))
			continue;
		if (last->op != OP_bra)
			return true;
		for (k = 0; k < bl->nsucc; k++)
			if (!bit_get(l->blocks, bl->succ[k]))
				return true;
	}
	return false;
}

static void find_spins(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t i, b, k;

	for (i = 0; i < f->nloops; i++)
		for (b = 0; b < f->nblk; b++)
			if (bit_get(f->loop[i].blocks, b))
				for (k = f->blk[b].first; k < f->blk[b].last; k++)
					if (may_spin(&w->b->insn[k])) {
						f->loop[i].spin = true;
						f->loop[i].polls |= w->b->insn[k].op == OP_ld;
					}
	for (i = 0; i < f->nloops; i++)
		if (!f->loop[i].polls && polls_plainly(w, &f->loop[i]))
			f->loop[i].spin = f->loop[i].polls = true;
	if (w->irreducible)
		for (b = 0; b < f->nblk; b++)
			for (k = f->blk[b].first; k < f->blk[b].last; k++)
				if (may_spin(&w->b->insn[k]))
					w->u->spins = true;
	for (i = 0; i < f->nloops; i++)
		if (f->loop[i].spin)
			w->u->spins = true;
}

struct uni {
	struct flow *w;
	bool varying;		/* a source is */
	bool changed;
	bool force;
};

static void uni_src(void *arg, int reg, bool def)
{
	struct uni *u = arg;

	if (!def && !u->w->f->uniform[reg])
		u->varying = true;
}

static void uni_dst(void *arg, int reg, bool def)
{
	struct uni *u = arg;

	if (def && u->w->f->uniform[reg]) {
		u->w->f->uniform[reg] = 0;
		u->changed = true;
	}
}

static bool lane_sreg(const struct opnd *o)
{
	unsigned int k;

	if (o->kind == O_SREG)
		switch (o->sreg) {
		case SR_laneid: case SR_tid_x: case SR_tid_y: case SR_tid_z: case SR_lanemask_eq:
		case SR_lanemask_le: case SR_lanemask_lt: case SR_lanemask_ge:
		case SR_lanemask_gt:
			return true;
		}
	for (k = 0; k < o->nvec; k++)
		if (lane_sreg(&o->vec[k]))
			return true;
	return false;
}

/* Gives different lanes different results although its sources are uniform. */
static bool lane_op(const struct insn *i, bool divergent)
{
	unsigned int k;

	for (k = 0; k < i->nopnd; k++)
		if (lane_sreg(&i->o[k]))
			return true;
	switch (i->op) {
	case OP_atom: case OP_shfl: case OP_elect: case OP_mma: case OP_wmma: case OP_ldmatrix:
	case OP_movmatrix: case OP_call: case OP_mbarrier: case OP_suld: case OP_tex: case OP_tld4:
	case OP_alloca: case OP_stacksave: case OP_sured:
		return true;
	case OP_vote: case OP_match: case OP_redux: case OP_activemask: case OP_bar: case OP_barrier:
		return divergent || i->op == OP_match;
	case OP_ld:
		/* generic and .param addresses may be local: one address, many places */
		if (insn_promoted(i))
			return false;
		if (local_mem(i))
			return true;
		if (insn_has(i, M_global) || insn_has(i, M_shared) || insn_has(i, M_const) ||
		    insn_has(i, M_shared_cta))
			return false;
		return !(i->nopnd > 1 && i->o[1].var && i->o[1].reg < 0);
	case OP_ldu:
		return false;
	case OP_mov:	/* flags of carry chains are kept per lane */
		return false;
	}
	return false;
}

static bool uses_cc(const struct insn *i)
{
	return insn_has(i, M_cc) || i->op == OP_addc || i->op == OP_subc || i->op == OP_madc;
}

/* Only returns or exits, with nothing before: lanes that go there are just gone. */
bool block_trivial_exit(const struct ufunc *f, const struct pblock *b)
{
	const struct insn *i = &f->b->insn[b->first];

	if (b->first == b->last)
		return !b->nsucc;
	return b->last - b->first == 1 && (i->op == OP_ret || i->op == OP_exit) && i->guard < 0;
}

static void set_varying(struct flow *w, uint32_t reg, bool *changed)
{
	if (w->f->uniform[reg]) {
		w->f->uniform[reg] = 0;
		*changed = true;
	}
}

/* Rules 1 and 2: live into @to and defined in @region (a block set). */
static void vary_at(struct flow *w, uint32_t to, const uint64_t *region, bool *changed)
{
	struct ufunc *f = w->f;
	uint32_t b, x, r;

	for (b = 0; b < f->nblk; b++) {
		if (!bit_get(region, b))
			continue;
		for (x = 0; x < w->words; x++) {
			uint64_t v = w->def[b][x] & f->blk[to].livein[x];

			while (v) {
				r = x * 64 + __builtin_ctzll(v);
				v &= v - 1;
				set_varying(w, r, changed);
			}
		}
	}
}

static void mark_join(struct ufunc *f, uint32_t b)
{
	f->blk[b].join = true;
}

/* Lanes leave loop @l in different iterations. */
static void diverge_loop(struct flow *w, int l, bool *changed)
{
	struct ufunc *f = w->f;
	struct ploop *lp = &f->loop[l];
	uint32_t b, k;

	if (!lp->divergent) {
		lp->divergent = true;
		*changed = true;
	}
	for (b = 0; b < f->nblk; b++) {
		if (!bit_get(lp->blocks, b))
			continue;
		f->blk[b].divergent = true;
		for (k = 0; k < f->blk[b].nsucc; k++)
			if (!bit_get(lp->blocks, f->blk[b].succ[k])) {
				mark_join(f, f->blk[b].succ[k]);
				vary_at(w, f->blk[b].succ[k], lp->blocks, changed);
			}
	}
	if (lp->spin)
		f->preempts = true;
}

/* May be what another lane waits for. */
static bool tells_others(const struct insn *i)
{
	switch (i->op) {
	case OP_st:
		return !insn_promoted(i) && !insn_has(i, M_local);
	case OP_bar: case OP_barrier:
		return insn_has(i, M_arrive);
	case OP_atom: case OP_red: case OP_call: case OP_cp: case OP_sust: case OP_sured:
	case OP_stmatrix: case OP_wmma: case OP_mbarrier: case OP_UNKNOWN:
		return true;
	}
	return false;
}

/* Nobody passes here before the whole warp has come. */
static bool stops_warp(struct flow *w, const struct pblock *b)
{
	const struct insn *i = &w->b->insn[b->first];

	return b->first < b->last && (i->op == OP_bar || i->op == OP_barrier) &&
	       !insn_has(i, M_arrive) && (!i->nmod || strcmp(i->mtext[0], "warp"));
}

/* Marks in @seen what is reached from @from short of the block @stop and, if @bar, of barriers. */
static void walk(struct flow *w, uint32_t from, int stop, bool bar, uint64_t *seen)
{
	struct ufunc *f = w->f;
	uint32_t n = 0, k, *todo = arena_alloc(w->a, (f->nblk + 2) * sizeof(*todo));

	for (todo[n++] = from; n;) {
		uint32_t b = todo[--n];

		if ((int)b == stop || (bar && b != from && stops_warp(w, &f->blk[b])))
			continue;
		for (k = 0; k < f->blk[b].nsucc; k++)
			if (!bit_get(seen, f->blk[b].succ[k])) {
				bit_set(seen, f->blk[b].succ[k]);
				todo[n++] = f->blk[b].succ[k];
			}
	}
}

/* Whether lanes that a branch has parted from those in loop @l could do what these wait for. */
static bool side_may_act(struct flow *w, uint32_t l)
{
	struct ufunc *f = w->f;
	uint64_t *seen = arena_alloc(w->a, w->bwords * 8), *acts = arena_alloc(w->a, w->bwords * 8);
	uint32_t b, i;

	for (b = 0; b < f->nblk; b++) {
		if (f->blk[b].rpo == UINT32_MAX || !f->blk[b].div_branch)
			continue;
		memset(seen, 0, w->bwords * 8);
		walk(w, b, f->blk[b].ipdom, false, seen);
		if (bit_get(seen, f->loop[l].header))
			walk(w, b, -1, true, acts);
	}
	for (b = 0; b < f->nblk; b++)
		for (i = f->blk[b].first; bit_get(acts, b) && !stops_warp(w, &f->blk[b]) &&
		     i < f->blk[b].last; i++)
			if (tells_others(&w->b->insn[i]))
				return true;
	return false;
}

/*
 * A loop that all lanes of a group leave together may wait for those at a join or on the other side
 * of a branch, if memory says when to leave, and if those could write there before a barrier that
 * they cannot pass alone.  What else may wait (atomics, calls) differs by lane.
 */
static void waits_for_side(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t l;

	for (l = 0; l < f->nloops && !f->preempts; l++)
		f->preempts = f->loop[l].polls && f->blk[f->loop[l].header].divergent &&
			      side_may_act(w, l);
}

/*
 * Rules 4 and 5: uniform registers have one slot for all lanes, so while lanes wait on one side the
 * other must not write what they still read, nor both sides write the same register.
 */
static void vary_sides(struct flow *w, uint32_t bi, const uint64_t *region, bool *changed)
{
	struct ufunc *f = w->f;
	struct pblock *b = &f->blk[bi];
	uint64_t *seen = w->seen, *two = w->two, *group = w->group;
	uint32_t k, x, i, l;
	int y;

	memset(seen, 0, w->words * 8);
	memset(two, 0, w->words * 8);
	for (i = 0; i < f->nblk; i++)
		w->head[i] = -1;
	for (i = 0; i < f->nblk; i++)
		if (bit_get(region, i)) {
			w->next[i] = w->head[w->label[i]];
			w->head[w->label[i]] = i;
		}
	for (l = 0; l < f->nblk; l++) {		/* labels are blocks */
		if (w->head[l] < 0)
			continue;
		memset(group, 0, w->words * 8);
		for (y = w->head[l]; y >= 0; y = w->next[y])
			for (x = 0; x < w->words; x++)
				group[x] |= w->def[y][x];
		for (x = 0; x < w->words; x++) {
			two[x] |= seen[x] & group[x];
			seen[x] |= group[x];
		}
	}
	for (k = 0; k < b->nsucc; k++)
		for (x = 0; x < w->words; x++)
			two[x] |= seen[x] & f->blk[b->succ[k]].livein[x];
	for (x = 0; x < w->words; x++) {
		uint64_t v = two[x];

		while (v) {
			set_varying(w, x * 64 + __builtin_ctzll(v), changed);
			v &= v - 1;
		}
	}
}

/* In one turn of loop @l some lanes do what others skip, so nothing that it defines is uniform. */
static void out_of_step(struct flow *w, int l, bool *changed)
{
	struct ufunc *f = w->f;
	uint32_t b, x;

	diverge_loop(w, l, changed);
	for (b = 0; b < f->nblk; b++) {
		if (!bit_get(f->loop[l].blocks, b))
			continue;
		if (f->blk[b].npred > 1)
			mark_join(f, b);
		for (x = 0; x < w->b->nregs; x++)
			if (bit_get(w->def[b], x) && f->uniform[x]) {
				f->uniform[x] = 0;
				*changed = true;
			}
	}
}

/*
 * Walks what the branch at the end of @bi influences: labels say by which successor (or join) a
 * block is reached; two labels make a join.
 */
static void influence(struct flow *w, uint32_t bi, bool *changed)
{
	struct ufunc *f = w->f;
	struct pblock *b = &f->blk[bi];
	uint64_t *region = arena_alloc(w->a, w->bwords * 8);
	uint64_t *joins = arena_alloc(w->a, w->bwords * 8);
	int stop = b->ipdom, l;
	uint32_t i, k;

	for (i = 0; i < f->nblk; i++)
		w->label[i] = -1;
	for (k = 0; k < b->nsucc; k++)
		if (!block_trivial_exit(f, &f->blk[b->succ[k]]) || b->nsucc > 2) {
			if (f->blk[b->succ[k]].rpo <= b->rpo)
				continue;	/* the back edge */
			w->label[b->succ[k]] = b->succ[k];
		}
	/* loops that lanes may leave at different times because of this branch */
	for (l = b->loop; l >= 0; l = f->loop[l].parent) {
		if (stop >= 0 && bit_get(f->loop[l].blocks, stop))
			break;
		diverge_loop(w, l, changed);
		for (i = 0; i < f->nblk; i++)
			if (bit_get(f->loop[l].blocks, i))
				for (k = 0; k < f->blk[i].nsucc; k++) {
					uint32_t s = f->blk[i].succ[k];

					if (!bit_get(f->loop[l].blocks, s)) {
						w->label[s] = s;
						bit_set(joins, s);
					}
				}
	}
	for (i = 0; i < f->nreach; i++) {
		uint32_t x = f->order[i];

		if (w->label[x] < 0 || (int)x == stop)
			continue;
		bit_set(region, x);
		f->blk[x].divergent = true;
		for (k = 0; k < f->blk[x].nsucc; k++) {
			uint32_t s = f->blk[x].succ[k];

			if (f->blk[s].rpo <= f->blk[x].rpo)
				continue;	/* a back edge */
			if (w->label[s] < 0) {
				w->label[s] = w->label[x];
			} else if (w->label[s] != w->label[x]) {
				w->label[s] = s;
				if (!f->blk[s].join)
					*changed = true;
				mark_join(f, s);
				bit_set(joins, s);
			}
		}
	}
	/* a successor that the other side reaches too is a join by itself */
	for (k = 0; k < b->nsucc; k++) {
		uint32_t s = b->succ[k];

		if (f->blk[s].npred > 1 && f->blk[s].rpo > b->rpo) {
			mark_join(f, s);
			bit_set(joins, s);
		}
	}
	for (i = 0; i < f->nblk; i++)
		if (bit_get(joins, i))
			vary_at(w, i, region, changed);
	vary_sides(w, bi, region, changed);
	/* around the loop without passing where all must come: those who pass there are ahead */
	for (l = b->loop; l >= 0; l = f->loop[l].parent)
		if (stop >= 0 && bit_get(f->loop[l].blocks, stop) &&
		    bit_get(region, f->loop[l].latch))
			out_of_step(w, l, changed);
}

static bool branch_diverges(struct flow *w, struct pblock *b)
{
	struct insn *t = b->last > b->first ? &w->b->insn[b->last - 1] : NULL;
	uint32_t k, real = 0;

	if (!t)
		return false;
	if (t->op == OP_brx)
		return t->o[0].kind == O_REG && !w->f->uniform[t->o[0].reg] && b->nsucc > 1;
	if (t->guard < 0 || w->f->uniform[t->guard] ||
	    (t->op != OP_bra && t->op != OP_ret && t->op != OP_exit))
		return false;
	for (k = 0; k < b->nsucc; k++)
		real += !block_trivial_exit(w->f, &w->f->blk[b->succ[k]]);
	return real > 1;
}

static bool all_varying_insn(struct flow *w, struct insn *i, bool divergent)
{
	struct uni u = { .w = w };

	insn_regs(i, uni_src, &u);
	if (u.varying || lane_op(i, divergent) || uses_cc(i))
		insn_regs(i, uni_dst, &u);
	return u.changed;
}

/* Any loop's values, and all joins, where lanes need not go in step. */
static void no_lockstep(struct flow *w, bool everything)
{
	struct ufunc *f = w->f;
	uint32_t b, x;

	for (b = 0; b < f->nblk; b++) {
		if (f->blk[b].npred > 1)
			mark_join(f, b);
		f->blk[b].divergent = true;
		if (!everything && f->blk[b].loop < 0)
			continue;
		for (x = 0; x < w->b->nregs; x++)
			if (bit_get(w->def[b], x))
				f->uniform[x] = 0;
	}
}

static void uniformity(struct flow *w)
{
	struct ufunc *f = w->f;
	bool changed = true, stepless = false;
	uint32_t i, k;

	f->uniform = arena_alloc(w->a, w->b->nregs + 1);
	memset(f->uniform, 1, w->b->nregs);
	w->label = arena_alloc(w->a, f->nblk * sizeof(*w->label));
	w->head = arena_alloc(w->a, f->nblk * sizeof(*w->head));
	w->next = arena_alloc(w->a, f->nblk * sizeof(*w->next));
	w->seen = arena_alloc(w->a, w->words * 8 + 8);
	w->two = arena_alloc(w->a, w->words * 8 + 8);
	w->group = arena_alloc(w->a, w->words * 8 + 8);
	if (w->irreducible) {
		no_lockstep(w, true);
		f->preempts = true;
	}
	while (changed) {
		changed = false;
		for (i = 0; i < f->nreach; i++) {
			struct pblock *b = &f->blk[f->order[i]];

			for (k = b->first; k < b->last; k++)
				changed |= all_varying_insn(w, &w->b->insn[k], b->divergent);
			if (!b->div_branch && branch_diverges(w, b)) {
				b->div_branch = true;
				f->diverges = true;
				changed = true;
			}
			if (b->div_branch)
				influence(w, f->order[i], &changed);
		}
		waits_for_side(w);
		if (f->preempts && !stepless) {
			stepless = true;
			no_lockstep(w, false);
			changed = true;
		}
	}
}

static void number_stubs(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t i, k;

	for (i = 0; i < f->nblk; i++)
		f->blk[i].stub = -1;
	if (!f->diverges)
		return;
	f->stub_blk = arena_alloc(w->a, (f->nblk + 1) * sizeof(uint32_t));
	for (i = 0; i < f->nreach; i++) {
		struct pblock *b = &f->blk[f->order[i]];
		bool stub = b->join || (b->collective && b->divergent);

		for (k = 0; k < b->npred && !stub; k++)
			stub = f->blk[b->pred[k]].div_branch;
		/* where a spinning group is set aside */
		for (k = 0; k < f->nloops && !stub; k++)
			stub = f->preempts && f->loop[k].header == f->order[i] && f->loop[k].spin;
		if (stub) {
			b->stub = f->nstubs;
			f->stub_blk[f->nstubs++] = f->order[i];
		}
	}
}

/* ---- short sides of a split become guarded instructions ---- */

enum { SHORT = 8 };

/* Can run under a guard, and does not change the guard itself. */
static bool may_guard(const struct insn *i, int guard)
{
	unsigned int k;

	if (i->guard >= 0 || ends_block(i) || is_collective(i) || uses_cc(i))
		return false;
	switch (i->op) {
	case OP_call: case OP_bar: case OP_barrier: case OP_nanosleep: case OP_mbarrier:
	case OP_brkpt: case OP_activemask: case OP_alloca: case OP_stacksave:
	case OP_stackrestore: case OP_griddepcontrol: case OP_UNKNOWN:
		return false;
	}
	if (insn_promoted(i))
		return false;
	for (k = 0; k < (unsigned int)insn_has_dst(i) && k < i->nopnd; k++)
		if ((i->o[k].kind == O_REG && i->o[k].reg == guard) || i->o[k].reg2 == guard)
			return false;
	return true;
}

/* Block @s is short, entered from @from alone, and its instructions up to @end may be guarded. */
static bool may_fold(struct flow *w, uint32_t from, uint32_t s, uint32_t end, int guard)
{
	struct pblock *b = &w->f->blk[s];
	uint32_t k;

	if (b->npred != 1 || b->pred[0] != from || b->nsucc != 1 || b->collective ||
	    b->last - b->first > SHORT || b->first == b->last)
		return false;
	for (k = b->first; k < end; k++)
		if (!may_guard(&w->b->insn[k], guard))
			return false;
	return true;
}

static bool touches_memory(const struct insn *i)
{
	switch (i->op) {
	case OP_ld: case OP_ldu: case OP_st: case OP_atom: case OP_red: case OP_tex: case OP_tld4:
	case OP_suld: case OP_sust: case OP_sured: case OP_cp: case OP_fence: case OP_membar:
	case OP_prefetch: case OP_prefetchu: case OP_discard: case OP_applypriority:
		return true;
	}
	return false;
}

struct needed {
	const uint64_t *after, *beside;
	bool any;
};

static void note_needed(void *arg, int reg, bool def)
{
	struct needed *n = arg;

	if (def && (bit_get(n->after, reg) || (n->beside && bit_get(n->beside, reg))))
		n->any = true;
}

/* What nobody reads later, nor in the other side (@beside), may be written for all lanes. */
static void guard_all(struct flow *w, uint32_t from, uint32_t to, int guard, bool neg,
		      const struct pblock *after, const struct pblock *beside)
{
	struct needed n = { .after = after->livein, .beside = beside ? beside->livein : NULL };
	uint32_t k;

	for (k = from; k < to; k++) {
		struct insn *i = &w->b->insn[k];

		n.any = false;
		insn_regs(i, note_needed, &n);
		i->whole = !n.any;
		if (i->whole && !touches_memory(i))
			continue;
		i->guard = guard;
		i->guard_neg = neg;
	}
}

static void drop(struct insn *i)
{
	i->op = OP_pmevent;
	i->nopnd = i->nmod = i->ntypes = 0;
	i->guard = -1;
}

/* @p bra else; a; bra end; else: b; end: */
static bool fold_two(struct flow *w, uint32_t bi, struct insn *t, uint32_t then, uint32_t other)
{
	struct pblock *a = &w->f->blk[then], *b = &w->f->blk[other];
	struct insn *jump;

	if (a->first == a->last)
		return false;
	jump = &w->b->insn[a->last - 1];
	if (jump->op != OP_bra || jump->guard >= 0 || a->last != b->first ||
	    a->nsucc != 1 || b->nsucc != 1 || a->succ[0] != b->succ[0] ||
	    w->f->blk[a->succ[0]].first != b->last ||
	    !may_fold(w, bi, then, a->last - 1, t->guard) ||
	    !may_fold(w, bi, other, b->last, t->guard))
		return false;
	guard_all(w, a->first, a->last - 1, t->guard, !t->guard_neg, &w->f->blk[a->succ[0]], b);
	guard_all(w, b->first, b->last, t->guard, t->guard_neg, &w->f->blk[a->succ[0]], NULL);
	drop(jump);
	drop(t);
	return true;
}

/*
 * A branch that splits the warp costs more than a few instructions that some lanes need not do.
 * Returns whether there is something new to analyse.
 */
static bool fold_short_sides(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t i, k, then, n = f->nreach;
	bool any = false;

	for (i = 0; i < n; i++) {
		uint32_t bi = f->order[i];
		struct pblock *b = &f->blk[bi];
		struct insn *t = b->last > b->first ? &w->b->insn[b->last - 1] : NULL;

		if (!t || t->op != OP_bra || t->guard < 0 || !b->div_branch || b->nsucc != 2)
			continue;
		for (k = 0; k < 2 && f->blk[b->succ[k]].first != b->last; k++)
			;
		if (k == 2)
			continue;
		then = b->succ[k];
		if (f->blk[then].succ && f->blk[then].nsucc == 1 &&
		    f->blk[then].succ[0] == b->succ[!k] &&
		    f->blk[b->succ[!k]].first == f->blk[then].last &&
		    may_fold(w, bi, then, f->blk[then].last, t->guard)) {
			guard_all(w, f->blk[then].first, f->blk[then].last, t->guard, !t->guard_neg,
				  &f->blk[b->succ[!k]], NULL);
			drop(t);
			any = true;
		} else if (fold_two(w, bi, t, then, b->succ[!k])) {
			any = true;
		}
	}
	return any;
}

static void analyse(struct unit *u, struct ufunc *f, bool fold)
{
	struct flow w = { .u = u, .f = f, .b = f->b, .a = &u->arena };

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
	liveness(&w);
	find_spins(&w);
	uniformity(&w);
	if (fold && f->diverges && fold_short_sides(&w))
		analyse(u, f, false);
	else
		number_stubs(&w);
}

void ptx_analyse(struct unit *u, struct ufunc *f)
{
	analyse(u, f, true);
}
