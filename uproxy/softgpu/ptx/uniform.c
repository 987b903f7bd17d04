// SPDX-License-Identifier: Apache-2.0
/*
 * uniform.c - finds branches that split a warp, and registers that are not uniform (rules: flow.c)
 */
#include <stdlib.h>
#include <string.h>

#include "flow_i.h"

static bool may_spin(const struct insn *i)
{
	switch (i->op) {
	case OP_atom: case OP_nanosleep:
		return true;
	case OP_mbarrier:
		return insn_is_mbarrier_wait(i);
	case OP_ld:
		return insn_is_strong(i);
	case OP_call:
		return i->o[1].kind != O_FUNC || i->o[1].func->body;
	}
	return false;
}

bool flow_local_mem(const struct insn *i)
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

/* Taint analysis in a loop: registers that are computed from tainted ones. */
struct taint {
	const uint64_t *from, *except;	/* tainted registers; ones that exempt a load */
	bool tainted, excepted, inner;	/* a source is in @from; in @except; defined in the loop */
	uint64_t *to;
	const uint64_t *defs;		/* the loop's */
	const uint64_t *only;		/* registers that may be tainted, or NULL */
	struct flow *w;
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
	t->w->fresh[t->w->nfresh++] = reg;
}

/* Loads memory that another thread may write. */
static bool loads_shared(const struct insn *i)
{
	return i->op == OP_ld && !insn_promoted(i) && !flow_local_mem(i) && !insn_has(i, M_const) &&
	       !insn_has(i, M_param) && !insn_has(i, M_nc);
}

static bool orders_memory(const struct insn *i)
{
	return i->op == OP_fence || i->op == OP_membar || i->op == OP_bar || i->op == OP_barrier;
}

enum taint_kind { BY_LOADS, BY_TURNS, BY_POLLS };

/* Propagates taint in loop @l; see polls_plainly(). */
static void spread(struct flow *w, struct ploop *l, enum taint_kind kind, struct taint *t, bool fenced)
{
	struct ufunc *f = w->f;
	uint32_t b, k, r;

	for_each_bit(b, l->blocks, f->nblk)
		for (k = f->blk[b].first; k < f->blk[b].last; k++) {
			struct insn *i = &w->b->insn[k];
			bool load = kind != BY_TURNS && loads_shared(i);

			t->tainted = t->excepted = t->inner = false;
			insn_regs(i, taint_src, t);
			if (kind == BY_LOADS)
				t->tainted |= load;
			else if (kind == BY_POLLS && load)
				t->tainted = fenced || !t->excepted;
			if (t->tainted)
				insn_regs(i, taint_dst, t);
		}
	while (w->nfresh) {
		r = w->fresh[--w->nfresh];
		for (k = w->use_at[r]; k < w->use_at[r + 1]; k++) {
			struct insn *i = &w->b->insn[w->uses[k]];

			if (bit_get(l->blocks, w->blk_of[w->uses[k]]) &&
			    (kind != BY_POLLS || !loads_shared(i)))
				insn_regs(i, taint_dst, t);
		}
	}
}

/* Taints registers that change in each iteration without a load: counters and their results. */
static void turns(struct flow *w, struct ploop *l, struct taint *t, const uint64_t *carried,
		  const uint64_t *loaded)
{
	struct ufunc *f = w->f;
	uint32_t b, k;

	t->except = loaded;
	t->only = carried;
	for_each_bit(b, l->blocks, f->nblk)
		for (k = f->blk[b].first; k < f->blk[b].last; k++) {
			t->excepted = t->inner = false;
			insn_regs(&w->b->insn[k], taint_src, t);
			if (t->inner && !t->excepted && w->b->insn[k].op != OP_ld)
				insn_regs(&w->b->insn[k], taint_dst, t);
		}
	t->only = NULL;
	spread(w, l, BY_TURNS, t, false);
}

/*
 * Plain loads may poll for another thread's write, too: the exit condition depends on a load, whose
 * address the loop does not change or beside which the loop has a fence or barrier, and on no
 * counter.
 */
static bool polls_plainly(struct flow *w, struct ploop *l, uint64_t *set[5])
{
	struct ufunc *f = w->f;
	struct taint t = { .w = w };
	bool fenced = false, any = false;
	uint32_t b, k;

	for_each_bit(b, l->blocks, f->nblk)
		for (k = f->blk[b].first; k < f->blk[b].last; k++) {
			fenced |= orders_memory(&w->b->insn[k]);
			any |= loads_shared(&w->b->insn[k]);
		}
	if (!any)
		return false;
	for_each_bit(b, l->blocks, f->nblk)
		for (k = w->def_at[b]; k < w->def_at[b + 1]; k++) {
			bit_set(set[0], w->defs[k]);
			if (flow_is_live(w, flow_live_into(w, l->header), w->defs[k]))
				bit_set(set[1], w->defs[k]);
		}
	t.defs = set[0];
	t.from = t.to = set[2];
	spread(w, l, BY_LOADS, &t, false);
	t.from = t.to = set[3];
	turns(w, l, &t, set[1], set[2]);
	for_each_bit(b, l->blocks, f->nblk)
		for (k = w->def_at[b]; k < w->def_at[b + 1]; k++)
			set[2][w->defs[k] / 64] |= set[3][w->defs[k] / 64];
	t.except = set[2];
	t.from = t.to = set[4];
	spread(w, l, BY_POLLS, &t, fenced);
	for_each_bit(b, l->blocks, f->nblk) {
		struct pblock *bl = &f->blk[b];
		struct insn *last = bl->last > bl->first ? &w->b->insn[bl->last - 1] : NULL;

		if (!last || last->guard < 0 ||
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

/* Clears the sets, which contain only registers that the loop defines. */
static void clear_sets(struct flow *w, const struct ploop *l, uint64_t *set[5])
{
	uint32_t b, k, x;

	for_each_bit(b, l->blocks, w->f->nblk)
		for (k = w->def_at[b]; k < w->def_at[b + 1]; k++)
			for (x = 0; x < 5; x++)
				set[x][w->defs[k] / 64] = 0;
}

void flow_find_spins(struct flow *w)
{
	struct ufunc *f = w->f;
	uint64_t *set[5];	/* the loop's definitions, carried, loaded, counting, polled */
	uint32_t i, b, k;

	for (i = 0; i < f->nloops; i++)
		for_each_bit(b, f->loop[i].blocks, f->nblk)
			for (k = f->blk[b].first; k < f->blk[b].last; k++)
				if (may_spin(&w->b->insn[k])) {
					bool wait = insn_is_mbarrier_wait(&w->b->insn[k]);

					f->loop[i].spin = true;
					f->loop[i].polls |= wait || w->b->insn[k].op == OP_ld;
					w->u->spins |= !wait;
				}
	for (k = 0; k < 5; k++)
		set[k] = ptx_arena_alloc(w->tmp, w->b->nregs / 8 + 16);
	for (i = 0; i < f->nloops; i++) {
		if (f->loop[i].polls)
			continue;
		if (polls_plainly(w, &f->loop[i], set))
			w->u->spins = f->loop[i].spin = f->loop[i].polls = true;
		clear_sets(w, &f->loop[i], set);
	}
	if (w->irreducible)
		for (b = 0; b < f->nblk; b++)
			for (k = f->blk[b].first; k < f->blk[b].last; k++)
				if (may_spin(&w->b->insn[k]))
					w->u->spins = true;
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
	case OP_movmatrix: case OP_call: case OP_suld: case OP_tex: case OP_tld4:
	case OP_alloca: case OP_stacksave: case OP_sured:
		return true;
	case OP_vote: case OP_match: case OP_redux: case OP_activemask: case OP_bar: case OP_barrier:
		return divergent || i->op == OP_match;
	case OP_ld:
		/* generic and .param addresses may be local: one address, a place per lane */
		if (insn_promoted(i))
			return false;
		if (flow_local_mem(i))
			return true;
		if (insn_has(i, M_global) || insn_is_shared(i) || insn_has(i, M_const))
			return false;
		return !(i->nopnd > 1 && i->o[1].var && i->o[1].reg < 0);
	case OP_mbarrier:
		return insn_has(i, M_arrive) || insn_has(i, M_arrive_drop);
	case OP_ldu:
		return false;
	case OP_mov:	/* flags of carry chains are kept per lane */
		return false;
	}
	return false;
}

bool flow_uses_cc(const struct insn *i)
{
	return insn_has(i, M_cc) || i->op == OP_addc || i->op == OP_subc || i->op == OP_madc;
}

/* A block that only returns or exits: lanes that branch to it end. */
bool block_trivial_exit(const struct ufunc *f, const struct pblock *b)
{
	const struct insn *i = &f->b->insn[b->first];

	if (b->first == b->last)
		return !b->nsucc;
	return b->last - b->first == 1 && (i->op == OP_ret || i->op == OP_exit) && i->guard < 0;
}

static void set_varying(struct flow *w, uint32_t reg)
{
	if (w->f->uniform[reg]) {
		w->f->uniform[reg] = 0;
		w->fresh[w->nfresh++] = reg;
	}
}

static void vary_dst(void *arg, int reg, bool def)
{
	if (def)
		set_varying(arg, reg);
}

static void vary_defs(struct flow *w, uint32_t b)
{
	uint32_t k;

	for (k = w->def_at[b]; k < w->def_at[b + 1]; k++)
		set_varying(w, w->defs[k]);
}

/* Marks results that differ by lane whatever the sources are. */
static void vary_by_lane(struct flow *w, const struct pblock *b)
{
	uint32_t k;

	for (k = b->first; b->rpo != UINT32_MAX && k < b->last; k++)
		if (lane_op(&w->b->insn[k], b->divergent) || flow_uses_cc(&w->b->insn[k]))
			insn_regs(&w->b->insn[k], vary_dst, w);
}

static void set_divergent(struct flow *w, uint32_t b)
{
	struct pblock *bl = &w->f->blk[b];

	if (bl->divergent)
		return;
	bl->divergent = true;
	vary_by_lane(w, bl);
}

static void mark_join(struct ufunc *f, uint32_t b)
{
	f->blk[b].join = true;
}

/* Rule 2: lanes leave loop @l in different iterations. */
static void diverge_loop(struct flow *w, int l)
{
	struct ufunc *f = w->f;
	struct ploop *lp = &f->loop[l];
	uint32_t b, k, x;

	if (lp->divergent)
		return;
	lp->divergent = true;
	memset(w->live, 0, w->words * 8);
	for_each_bit(b, lp->blocks, f->nblk) {
		set_divergent(w, b);
		for (k = 0; k < f->blk[b].nsucc; k++) {
			uint32_t s = f->blk[b].succ[k];

			if (bit_get(lp->blocks, s))
				continue;
			mark_join(f, s);
			for (x = 0; x < w->words; x++)
				w->live[x] |= flow_live_into(w, s)[x];
		}
	}
	for_each_bit(b, lp->blocks, f->nblk)
		for (k = w->def_at[b]; k < w->def_at[b + 1]; k++)
			if (flow_is_live(w, w->live, w->defs[k]))
				set_varying(w, w->defs[k]);
	if (lp->spin)
		f->preempts = true;
}

/* Another lane may wait for this instruction's effect. */
static bool tells_others(const struct insn *i)
{
	switch (i->op) {
	case OP_st:
		return !insn_promoted(i) && !insn_has(i, M_local);
	case OP_bar: case OP_barrier:
		return insn_has(i, M_arrive);
	case OP_atom: case OP_red: case OP_call: case OP_cp: case OP_sust: case OP_sured:
	case OP_stmatrix: case OP_wmma: case OP_UNKNOWN:
		return true;
	case OP_mbarrier:
		return !insn_is_mbarrier_wait(i);
	}
	return false;
}

/* Waits for other warps. */
bool flow_is_block_barrier(const struct insn *i)
{
	return (i->op == OP_bar || i->op == OP_barrier) && !insn_has(i, M_arrive) &&
	       (!i->nmod || strcmp(i->mtext[0], "warp"));
}

/* A block that no lane passes before the whole warp has arrived. */
static bool stops_warp(struct flow *w, const struct pblock *b)
{
	return b->first < b->last && flow_is_block_barrier(&w->b->insn[b->first]);
}

/* Marks in w->seen the blocks that are reached from @from without passing the block @stop. */
static void walk(struct flow *w, uint32_t from, int stop)
{
	struct ufunc *f = w->f;
	uint32_t n = 0, k, b;

	memset(w->seen, 0, w->bwords * 8);
	for (w->todo[n++] = from; n;) {
		b = w->todo[--n];
		for (k = 0; (int)b != stop && k < f->blk[b].nsucc; k++)
			if (!bit_get(w->seen, f->blk[b].succ[k])) {
				bit_set(w->seen, f->blk[b].succ[k]);
				w->todo[n++] = f->blk[b].succ[k];
			}
	}
}

/* Marks in @acts the blocks from which tells_others() is reached without passing a barrier. */
static void find_acts(struct flow *w, uint64_t *acts)
{
	struct ufunc *f = w->f;
	uint32_t n = 0, i, k, b;

	memset(w->seen, 0, w->bwords * 8);	/* blocks that tell, or lead there */
	for (i = 0; i < f->nreach; i++) {
		b = f->order[i];
		for (k = f->blk[b].first; k < f->blk[b].last && !tells_others(&w->b->insn[k]); k++)
			;
		if (k < f->blk[b].last && !stops_warp(w, &f->blk[b])) {
			bit_set(w->seen, b);
			w->todo[n++] = b;
		}
	}
	while (n) {
		b = w->todo[--n];
		for (k = 0; k < f->blk[b].npred; k++) {
			uint32_t p = f->blk[b].pred[k];

			bit_set(acts, p);
			if (!bit_get(w->seen, p) && !stops_warp(w, &f->blk[p])) {
				bit_set(w->seen, p);
				w->todo[n++] = p;
			}
		}
	}
}

/*
 * A polling loop that all lanes of a group leave together may wait for lanes at a join or on the
 * other side of a branch, if these could write before they reach a barrier that they cannot pass
 * alone.  Then groups must preempt each other.  Other ways to wait (atomics, calls) differ by lane.
 */
static void waits_for_side(struct flow *w)
{
	struct ufunc *f = w->f;
	uint64_t *acts = NULL;
	bool any = false;
	uint32_t l, b;

	for (l = 0; l < f->nloops; l++)
		any |= f->loop[l].polls && f->blk[f->loop[l].header].divergent;
	if (!any || f->preempts)
		return;
	acts = ptx_arena_alloc(w->tmp, w->bwords * 8);
	find_acts(w, acts);
	for_each_bit(b, acts, f->nblk) {
		if (!f->blk[b].div_branch)
			continue;
		walk(w, b, f->blk[b].ipdom);
		for (l = 0; l < f->nloops; l++)
			if (f->loop[l].polls && f->blk[f->loop[l].header].divergent &&
			    bit_get(w->seen, f->loop[l].header)) {
				f->preempts = true;
				return;
			}
	}
}

/* Lanes may be in different iterations of loop @l, so nothing that it defines is uniform. */
static void out_of_step(struct flow *w, int l)
{
	struct ufunc *f = w->f;
	uint32_t b;

	if (w->stepless[l])
		return;
	w->stepless[l] = 1;
	diverge_loop(w, l);
	for_each_bit(b, f->loop[l].blocks, f->nblk) {
		if (f->blk[b].npred > 1)
			mark_join(f, b);
		vary_defs(w, b);
	}
}

static void add_label(struct flow *w, uint32_t b, int label)
{
	uint32_t at = w->f->blk[b].rpo;

	w->label[b] = label;
	w->lo = at < w->lo ? at : w->lo;
	w->hi = at > w->hi ? at : w->hi;
}

static void add_join(struct flow *w, uint32_t b)
{
	mark_join(w->f, b);
	if (!bit_get(w->is_join, b)) {
		bit_set(w->is_join, b);
		w->joins[w->njoins++] = b;
	}
}

/* Loops that lanes may leave at different times because of the branch at the end of @b. */
static void leave_loops(struct flow *w, const struct pblock *b)
{
	struct ufunc *f = w->f;
	uint32_t i, k, s;
	int l;

	for (l = b->loop; l >= 0; l = f->loop[l].parent) {
		if (b->ipdom >= 0 && bit_get(f->loop[l].blocks, b->ipdom))
			break;
		diverge_loop(w, l);
		for_each_bit(i, f->loop[l].blocks, f->nblk)
			for (k = 0; k < f->blk[i].nsucc; k++) {
				s = f->blk[i].succ[k];
				if (!bit_get(f->loop[l].blocks, s)) {
					add_label(w, s, s);
					add_join(w, s);
				}
			}
	}
}

/* A label is the successor (or join) by which a block is reached; two labels make a join. */
static void spread_labels(struct flow *w, int stop)
{
	struct ufunc *f = w->f;
	uint32_t i, k, x, s;

	for (i = w->lo; i <= w->hi && i < f->nreach; i++) {	/* hi grows */
		x = f->order[i];
		if (w->label[x] < 0 || (int)x == stop)
			continue;
		w->region[w->nregion++] = x;
		set_divergent(w, x);
		for (k = 0; k < f->blk[x].nsucc; k++) {
			s = f->blk[x].succ[k];
			if (f->blk[s].rpo <= i)
				continue;	/* a back edge */
			if (w->label[s] < 0) {
				add_label(w, s, w->label[x]);
			} else if (w->label[s] != w->label[x]) {
				w->label[s] = s;
				add_join(w, s);
			}
		}
	}
}

/*
 * Rules 1, 4 and 5: a register that the region defines varies if it is live at a join or into a
 * successor of the branch, or if two sides define it.
 */
static void vary_region(struct flow *w, const struct pblock *b)
{
	uint32_t i, k, x, r;

	memset(w->live, 0, w->words * 8);
	for (i = 0; i < w->njoins; i++)
		for (x = 0; x < w->words; x++)
			w->live[x] |= flow_live_into(w, w->joins[i])[x];
	for (i = 0; i < b->nsucc; i++)
		for (x = 0; x < w->words; x++)
			w->live[x] |= flow_live_into(w, b->succ[i])[x];
	w->epoch++;
	for (i = 0; i < w->nregion; i++) {
		x = w->region[i];
		for (k = w->def_at[x]; k < w->def_at[x + 1]; k++) {
			r = w->defs[k];
			if (flow_is_live(w, w->live, r) ||
			    (w->stamp[r] == w->epoch && w->side[r] != (uint32_t)w->label[x]))
				set_varying(w, r);
			w->stamp[r] = w->epoch;
			w->side[r] = w->label[x];
		}
	}
}

/* The effects of the divergent branch at the end of @bi.  Called once for each branch. */
static void influence(struct flow *w, uint32_t bi)
{
	struct ufunc *f = w->f;
	struct pblock *b = &f->blk[bi];
	int stop = b->ipdom, l;
	uint32_t i, s;

	w->lo = UINT32_MAX;
	w->hi = w->njoins = w->nregion = 0;
	for (i = 0; i < b->nsucc; i++) {
		s = b->succ[i];
		if ((!block_trivial_exit(f, &f->blk[s]) || b->nsucc > 2) && f->blk[s].rpo > b->rpo)
			add_label(w, s, s);	/* no back edge */
	}
	leave_loops(w, b);
	spread_labels(w, stop);
	/* a successor that other edges reach, too, is a join by itself */
	for (i = 0; i < b->nsucc; i++)
		if (f->blk[b->succ[i]].npred > 1 && f->blk[b->succ[i]].rpo > b->rpo)
			add_join(w, b->succ[i]);
	vary_region(w, b);
	/* lanes that reach the latch without passing the post-dominator get out of step */
	for (l = b->loop; l >= 0; l = f->loop[l].parent)
		if (stop >= 0 && bit_get(f->loop[l].blocks, stop) &&
		    (int)f->loop[l].latch != stop && w->label[f->loop[l].latch] >= 0)
			out_of_step(w, l);
	for (i = w->lo; i <= w->hi && i < f->nreach; i++)
		w->label[f->order[i]] = -1;
	while (w->njoins) {
		i = w->joins[--w->njoins];
		w->is_join[i / 64] &= ~(1ull << i % 64);
	}
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

/* Propagates from the registers that vary. */
static void follow(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t r, k;

	while (w->nfresh) {
		r = w->fresh[--w->nfresh];
		for (k = w->use_at[r]; k < w->use_at[r + 1]; k++) {
			uint32_t i = w->uses[k];
			struct pblock *b = &f->blk[w->blk_of[i]];

			if (b->rpo == UINT32_MAX)
				continue;
			insn_regs(&w->b->insn[i], vary_dst, w);
			if (i + 1 != b->last || b->div_branch || !branch_diverges(w, b))
				continue;
			b->div_branch = true;
			f->diverges = true;
			influence(w, w->blk_of[i]);
		}
	}
}

/* Rule 3: lanes need not be in step, so loops' values vary and lanes may meet at every join. */
static void no_lockstep(struct flow *w, bool everything)
{
	struct ufunc *f = w->f;
	uint32_t b;

	for (b = 0; b < f->nblk; b++) {
		if (f->blk[b].npred > 1)
			mark_join(f, b);
		set_divergent(w, b);
		if (everything || f->blk[b].loop >= 0)
			vary_defs(w, b);
	}
}

/*
 * A lane waits for its cluster, not for its warp: lanes may pass the barrier at different places, and
 * come to the next one apart although the analysis sees them together.
 */
static void part_at_clusters(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t i;

	for (i = 0; f->diverges && i < f->nreach; i++) {
		uint32_t b = f->order[i];

		if (f->blk[b].collective && insn_has(&w->b->insn[f->blk[b].first], M_cluster))
			set_divergent(w, b);
	}
}

/*
 * Registers that vary make others vary, directly or by a branch.  None becomes uniform again, so
 * the order of propagation does not matter.
 */
void flow_uniformity(struct flow *w)
{
	struct ufunc *f = w->f;
	bool stepless = false;
	uint32_t i;

	f->uniform = ptx_arena_alloc(w->a, w->b->nregs + 1);
	memset(f->uniform, 1, w->b->nregs);
	w->label = ptx_arena_alloc(w->tmp, f->nblk * sizeof(*w->label));
	memset(w->label, 0xff, f->nblk * sizeof(*w->label));
	w->joins = ptx_arena_alloc(w->tmp, f->nblk * sizeof(*w->joins));
	w->region = ptx_arena_alloc(w->tmp, f->nblk * sizeof(*w->region));
	w->is_join = ptx_arena_alloc(w->tmp, w->bwords * 8);
	w->seen = ptx_arena_alloc(w->tmp, w->bwords * 8);
	w->stamp = ptx_arena_alloc(w->tmp, (w->b->nregs + 1) * sizeof(*w->stamp));
	w->side = ptx_arena_alloc(w->tmp, (w->b->nregs + 1) * sizeof(*w->side));
	w->stepless = ptx_arena_alloc(w->tmp, f->nloops + 1);
	if (w->irreducible) {
		no_lockstep(w, true);
		f->preempts = true;
	}
	for (i = 0; i < f->nreach; i++)
		vary_by_lane(w, &f->blk[f->order[i]]);
	do {
		follow(w);
		waits_for_side(w);
		part_at_clusters(w);
		if (f->preempts && !stepless) {
			stepless = true;
			no_lockstep(w, false);
		}
	} while (w->nfresh);
}

void flow_number_stubs(struct flow *w)
{
	struct ufunc *f = w->f;
	uint8_t *spins = ptx_arena_alloc(w->tmp, f->nblk + 1);
	uint32_t i, k;

	for (i = 0; i < f->nblk; i++)
		f->blk[i].stub = -1;
	if (!f->diverges)
		return;
	f->stub_blk = ptx_arena_alloc(w->a, (f->nblk + 1) * sizeof(uint32_t));
	for (k = 0; k < f->nloops; k++)		/* a spinning group waits there */
		spins[f->loop[k].header] |= f->preempts && f->loop[k].spin;
	for (i = 0; i < f->nreach; i++) {
		struct pblock *b = &f->blk[f->order[i]];
		bool stub = b->join || (b->collective && b->divergent);

		for (k = 0; k < b->npred && !stub; k++)
			stub = f->blk[b->pred[k]].div_branch;
		if (stub || spins[f->order[i]]) {
			b->stub = f->nstubs;
			f->stub_blk[f->nstubs++] = f->order[i];
		}
	}
}
