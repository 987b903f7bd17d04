// SPDX-License-Identifier: Apache-2.0
/*
 * flow.c - a function's control flow: blocks, branches that split a warp, and the dispatcher.
 *
 * Registers that are live at some stub (a place where lanes may wait) have slots in memory: every
 * block loads the slots that it uses, and at its end stores those that it changed, under the mask.
 * Other registers are SSA values.  So a split only notes which lanes wait where, and the code does
 * not grow with the number of stubs times the registers live there.
 *
 * Slots also allow cutting a function: each stub, with the blocks that only it leads to, becomes an
 * LLVM function of its own (a region), and regions jump to each other by tail calls.  Compile time
 * is then linear in the size of the kernel.  A group that reaches a join while other groups wait at
 * an earlier or the same stub waits there, too; the dispatcher picks the lowest stub:
 *
 *   running --split--> other side pending, running
 *   running --join, something pending at or before it--> pending --rt_pick--> running
 *   running --collective that other lanes are still to reach--> deferred --rt_pick--> running
 *   running --loop that may wait for another lane, budget used up--> pending, rotate
 *   running --return or exit, nothing pending--> the function returns
 */
#include <errno.h>
#include <string.h>

#include "jit_i.h"

#define FOFF(f) offsetof(struct rt_frame, f)

static V fptr(struct jit *j, size_t off)
{
	V idx = c64(j, off);

	return LLVMBuildInBoundsGEP2(j->b, j->i8, j->frame, &idx, 1, "");
}

static V minpend(struct jit *j)
{
	return LLVMBuildLoad2(j->b, j->i32, j->minpend, "");
}

static void tail_call(struct jit *j, V fn)
{
	V args[5] = { j->w, j->frame, cur_mask(j), minpend(j), j->lsp }, c;

	c = LLVMBuildCall2(j->b, j->region_ty, fn, args, 5, "");
	LLVMSetTailCallKind(c, LLVMTailCallKindMustTail);
	LLVMBuildRetVoid(j->b);
}

static void dispatch(struct jit *j)
{
	tail_call(j, j->dispatch);
}

static void go_to(struct jit *j, uint32_t to)
{
	if (j->head[to])
		tail_call(j, j->region_fn[to]);
	else
		LLVMBuildBr(j->b, j->bb[to]);
}

/* Makes lanes @mask wait at @to's stub; their registers are in the slots already. */
static void park(struct jit *j, uint32_t to, V mask)
{
	V p = fptr(j, sizeof(struct rt_frame) + 4ull * j->f->blk[to].stub);

	store_al(j, LLVMBuildOr(j->b, load_al(j, j->i32, p, 4), mask, ""), p, 4);
}

static void jump(struct jit *j, uint32_t to)
{
	struct pblock *b = &j->f->blk[to];
	LLVMBasicBlockRef wait, go;
	V c;

	if (!b->join || b->stub < 0) {
		go_to(j, to);
		return;
	}
	wait = new_bb(j, "park");
	go = new_bb(j, "go");
	c = LLVMBuildICmp(j->b, LLVMIntULT, c32(j, b->stub), minpend(j), "");
	br_likely(j, c, go, wait);
	at_bb(j, wait);
	park(j, to, cur_mask(j));
	dispatch(j);
	at_bb(j, go);
	go_to(j, to);
}

/* A back edge: decrements the budget, and lets other groups and warps run when it is used up. */
static void back_edge(struct jit *j, uint32_t to)
{
	struct ufunc *f = j->f;
	struct pblock *h = &f->blk[to];
	LLVMBasicBlockRef ok = new_bb(j, "ok"), spent = new_bb(j, "spent");
	bool spin = h->loop >= 0 && f->loop[h->loop].spin;
	V v = wload_var(j, j->i32, offsetof(struct rt_warp, budget));

	v = LLVMBuildSub(j->b, v, c32(j, 1), "");
	wstore(j, v, offsetof(struct rt_warp, budget));
	br_likely(j, LLVMBuildICmp(j->b, LLVMIntSGT, v, c32(j, 0), ""), ok, spent);
	at_bb(j, spent);
	call_rt(j, spin || j->u->spins ? "rt_yield" : "rt_tick", j->voidt, &j->w, 1);
	if (h->stub >= 0 && f->diverges && f->preempts) {
		LLVMBasicBlockRef set_aside = new_bb(j, "rotate");
		V c = minpend(j);

		c = LLVMBuildICmp(j->b, LLVMIntEQ, c, c32(j, RT_NONE), "");
		LLVMBuildCondBr(j->b, c, ok, set_aside);
		at_bb(j, set_aside);
		park(j, to, cur_mask(j));
		store_al(j, c32(j, h->stub), fptr(j, FOFF(rotate)), 4);
		dispatch(j);
	} else {
		LLVMBuildBr(j->b, ok);
	}
	at_bb(j, ok);
}

static void edge_to(struct jit *j, uint32_t from, uint32_t to, bool back)
{
	(void)from;
	if (back)
		back_edge(j, to);
	jump(j, to);
}

static void edge(struct jit *j, uint32_t from, uint32_t to)
{
	edge_to(j, from, to, j->f->blk[to].rpo <= j->f->blk[from].rpo);
}

/* The lanes of @mask return from the function, or exit. */
static void leave(struct jit *j, bool exits, V mask)
{
	if (exits) {
		V a = wload_var(j, j->i32, offsetof(struct rt_warp, alive));

		a = LLVMBuildAnd(j->b, a, LLVMBuildNot(j->b, mask, ""), "");
		wstore(j, a, offsetof(struct rt_warp, alive));
	}
}

void jit_finish(struct jit *j)
{
	LLVMBasicBlockRef done, more;
	V c;

	if (!j->f->diverges) {
		LLVMBuildRetVoid(j->b);
		return;
	}
	done = new_bb(j, "done");
	more = new_bb(j, "more");
	c = LLVMBuildICmp(j->b, LLVMIntEQ, minpend(j), c32(j, RT_NONE), "");
	br_likely(j, c, done, more);
	at_bb(j, done);
	LLVMBuildRetVoid(j->b);
	at_bb(j, more);
	dispatch(j);
}

static bool block_exits(struct jit *j, const struct pblock *b)
{
	if (j->f == j->u->fn)
		return true;
	return b->last > b->first && j->f->b->insn[b->last - 1].op == OP_exit;
}

/*
 * The branch at the end of block @from: of the lanes @m, those of @t go to @yes, the others to @no.
 * A side of UINT32_MAX leaves the function.
 */
static void split(struct jit *j, uint32_t from, uint32_t yes, uint32_t no, V t, V m, bool exits)
{
	struct ufunc *f = j->f;
	LLVMBasicBlockRef all = new_bb(j, "all"), some = new_bb(j, "some");
	LLVMBasicBlockRef none = new_bb(j, "none"), both = new_bb(j, "both");
	V rest = LLVMBuildAnd(j->b, m, LLVMBuildNot(j->b, t, ""), ""), c;
	uint32_t lo, hi;
	V mlo, mhi;

	LLVMBuildCondBr(j->b, LLVMBuildICmp(j->b, LLVMIntEQ, rest, c32(j, 0), ""), all, some);
	at_bb(j, all);
	if (yes == UINT32_MAX) {
		leave(j, exits, t);
		jit_finish(j);
	} else {
		edge(j, from, yes);
	}
	at_bb(j, some);
	LLVMBuildCondBr(j->b, LLVMBuildICmp(j->b, LLVMIntEQ, t, c32(j, 0), ""), none, both);
	at_bb(j, none);
	edge(j, from, no);
	at_bb(j, both);
	if (yes == UINT32_MAX) {
		leave(j, exits, t);
		LLVMBuildStore(j->b, rest, j->mask);
		edge(j, from, no);
		return;
	}
	lo = f->blk[yes].rpo < f->blk[no].rpo ? yes : no;
	hi = lo == yes ? no : yes;
	mlo = lo == yes ? t : rest;
	mhi = lo == yes ? rest : t;
	park(j, hi, mhi);
	c = minpend(j);
	c = intr2(j, "llvm.umin", c, c32(j, f->blk[hi].stub));
	LLVMBuildStore(j->b, c, j->minpend);
	LLVMBuildStore(j->b, mlo, j->mask);
	edge(j, from, lo);
}

static void branch_cond(struct jit *j, uint32_t bi, const struct insn *t)
{
	struct pblock *b = &j->f->blk[bi];
	uint32_t yes, no;
	bool leaves = t->op == OP_ret || t->op == OP_exit;
	V c, m;

	if (!leaves && b->nsucc < 2) {		/* both sides are one block */
		edge(j, bi, b->succ[0]);
		return;
	}
	yes = leaves ? UINT32_MAX : b->succ[0];
	no = leaves ? b->succ[0] : b->succ[1];
	if (j->f->uniform[t->guard]) {
		LLVMBasicBlockRef ty = new_bb(j, "taken"), tn = new_bb(j, "fall");

		j->vec = false;
		c = get_reg(j, t->guard, T_PRED, t->guard_neg);
		LLVMBuildCondBr(j->b, c, ty, tn);
		at_bb(j, ty);
		if (leaves) {
			leave(j, t->op == OP_exit || j->f == j->u->fn, cur_mask(j));
			jit_finish(j);
		} else {
			edge(j, bi, yes);
		}
		at_bb(j, tn);
		edge(j, bi, no);
		return;
	}
	j->vec = true;
	m = cur_mask(j);
	c = LLVMBuildAnd(j->b, bits_of(j, get_reg(j, t->guard, T_PRED, t->guard_neg)), m, "");
	if (leaves) {
		split(j, bi, UINT32_MAX, no, c, m, t->op == OP_exit || j->f == j->u->fn);
	} else if (block_trivial_exit(j->f, &j->f->blk[yes])) {
		split(j, bi, UINT32_MAX, no, c, m, block_exits(j, &j->f->blk[yes]));
	} else if (block_trivial_exit(j->f, &j->f->blk[no])) {
		c = LLVMBuildAnd(j->b, m, LLVMBuildNot(j->b, c, ""), "");
		split(j, bi, UINT32_MAX, yes, c, m, block_exits(j, &j->f->blk[no]));
	} else {
		split(j, bi, yes, no, c, m, false);
	}
}

/* brx.idx: a chain of splits, one target after the other; indices out of range are undefined. */
static void branch_index(struct jit *j, uint32_t bi, const struct insn *t)
{
	struct pblock *b = &j->f->blk[bi];
	uint32_t n = t->nopnd - 1, k;
	V idx, sw;

	if (b->nsucc == 1) {
		edge(j, bi, b->succ[0]);
		return;
	}
	if (opnd_uniform(j, &t->o[0])) {
		LLVMBasicBlockRef *to = ptx_arena_alloc(&j->u->arena, (b->nsucc + 1) * sizeof(*to));

		j->vec = false;
		idx = get(j, &t->o[0], T_U32);
		for (k = 0; k < b->nsucc; k++)
			to[k] = new_bb(j, "case");
		sw = LLVMBuildSwitch(j->b, idx, to[b->nsucc - 1], n);
		for (k = 0; k < n; k++) {
			uint32_t s, lab = j->f->b->labels[t->o[k + 1].imm]->insn;

			for (s = 0; s + 1 < b->nsucc; s++)
				if (j->f->blk[b->succ[s]].first == lab)
					break;
			LLVMAddCase(sw, c32(j, k), to[s]);
		}
		for (k = 0; k < b->nsucc; k++) {
			at_bb(j, to[k]);
			edge(j, bi, b->succ[k]);
		}
		return;
	}
	/* every group waits at its target, then one is dispatched */
	j->vec = true;
	idx = get(j, &t->o[0], T_U32);
	for (k = 0; k < b->nsucc; k++) {
		LLVMBasicBlockRef some = new_bb(j, "case"), next = new_bb(j, "next");
		V in = LLVMConstNull(LLVMVectorType(j->i1, 32)), m;
		uint32_t s;

		for (s = 0; s < n; s++)
			if (j->f->b->labels[t->o[s + 1].imm]->insn == j->f->blk[b->succ[k]].first)
				in = LLVMBuildOr(j->b, in, LLVMBuildICmp(j->b, LLVMIntEQ, idx,
						 kint(j, j->i32, s), ""), "");
		m = LLVMBuildAnd(j->b, bits_of(j, in), cur_mask(j), "");
		LLVMBuildCondBr(j->b, LLVMBuildICmp(j->b, LLVMIntNE, m, c32(j, 0), ""), some, next);
		at_bb(j, some);
		park(j, b->succ[k], m);
		LLVMBuildBr(j->b, next);
		at_bb(j, next);
	}
	dispatch(j);
}

static void terminate(struct jit *j, uint32_t bi)
{
	struct pblock *b = &j->f->blk[bi];
	const struct insn *t = b->last > b->first ? &j->f->b->insn[b->last - 1] : NULL;

	j->guard = NULL;
	if (t)
		j->in = t;
	if (t && t->op == OP_brx) {
		branch_index(j, bi, t);
	} else if (t && t->guard >= 0 && (t->op == OP_bra || t->op == OP_ret || t->op == OP_exit)) {
		branch_cond(j, bi, t);
	} else if (t && t->op == OP_trap) {
		rt_trap_now(j, RT_TRAP_TRAP);
		LLVMBuildUnreachable(j->b);
	} else if (b->nsucc) {
		edge(j, bi, b->succ[0]);
	} else {
		leave(j, block_exits(j, b), cur_mask(j));
		jit_finish(j);
	}
}

/* The lanes that a collective waits for: its mask, or the union of all lanes' masks; NULL: all. */
static V wanted(struct jit *j, const struct insn *i)
{
	bool warp_bar = i->op == OP_bar && i->nmod && !strcmp(i->mtext[0], "warp");
	const struct opnd *o = i->nopnd ? &i->o[i->nopnd - 1] : NULL;
	V m;

	if (!o || ((i->op == OP_bar || i->op == OP_barrier) && !warp_bar) || i->op == OP_mma ||
	    i->op == OP_wmma || i->op == OP_ldmatrix || i->op == OP_stmatrix)
		return NULL;
	j->vec = !opnd_uniform(j, o);
	m = get(j, o, T_B32);
	if (!j->vec)
		return m;
	m = LLVMBuildSelect(j->b, pred_of(j, cur_mask(j)), m, LLVMConstNull(LLVMTypeOf(m)), "");
	return intr1(j, "llvm.vector.reduce.or", m);
}

/* Before a collective: waits for lanes that have not reached it, unless the group is forced. */
static void gather(struct jit *j, uint32_t bi)
{
	struct pblock *b = &j->f->blk[bi];
	const struct insn *i = &j->f->b->insn[b->first];
	LLVMBasicBlockRef wait, go;
	V need, alive, miss, forced;

	if (!b->collective || !b->divergent || b->stub < 0)
		return;
	j->in = i;
	j->guard = NULL;
	alive = wload_var(j, j->i32, offsetof(struct rt_warp, alive));
	need = wanted(j, i);
	need = need ? LLVMBuildAnd(j->b, alive, need, "") : alive;
	miss = LLVMBuildAnd(j->b, need, LLVMBuildNot(j->b, cur_mask(j), ""), "");
	wait = new_bb(j, "defer");
	go = new_bb(j, "go");
	forced = load_al(j, j->i32, fptr(j, FOFF(forced)), 4);
	store_al(j, c32(j, 0), fptr(j, FOFF(forced)), 4);
	miss = LLVMBuildSelect(j->b, LLVMBuildICmp(j->b, LLVMIntEQ, forced, c32(j, 0), ""), miss,
			       c32(j, 0), "");
	br_likely(j, LLVMBuildICmp(j->b, LLVMIntEQ, miss, c32(j, 0), ""), go, wait);
	at_bb(j, wait);
	park(j, bi, cur_mask(j));
	store_al(j, c32(j, b->stub), fptr(j, FOFF(defer)), 4);
	dispatch(j);
	at_bb(j, go);
}

/* Before a write that may be the first after a barrier: calls rt_late() if it is. */
static void hold_write(struct jit *j)
{
	LLVMBasicBlockRef hold = new_bb(j, "hold"), go = new_bb(j, "go");
	V args[2] = { j->w, cur_mask(j) };
	V late = LLVMBuildAnd(j->b, wload_var(j, j->i32, offsetof(struct rt_warp, late)), args[1], "");

	br_likely(j, LLVMBuildICmp(j->b, LLVMIntEQ, late, c32(j, 0), ""), go, hold);
	at_bb(j, hold);
	call_rt(j, "rt_late", j->voidt, args, 2);
	LLVMBuildBr(j->b, go);
	at_bb(j, go);
}

void emit_insn(struct jit *j, const struct insn *i)
{
	j->in = i;
	j->guard = NULL;
	j->vec = !insn_uniform(j, i);
	if (i->guard >= 0) {
		j->guard_vec = j->vec && !j->f->uniform[i->guard];
		if (j->f->uniform[i->guard]) {
			bool v = j->vec;

			j->vec = false;
			j->guard = get_reg(j, i->guard, T_PRED, i->guard_neg);
			j->vec = v;
		} else {
			j->guard = get_reg(j, i->guard, T_PRED, i->guard_neg);
		}
	}
	if (i->late)
		hold_write(j);
	if (j->u->info.turns && insn_needs_turn(i))
		call_rt(j, "rt_turn", j->voidt, &j->w, 1);
	switch (i->op) {
	case OP_UNKNOWN:
		jit_fail(j, "unknown opcode");
	case OP_pmevent: case OP_prefetch: case OP_prefetchu: case OP_discard:
	case OP_applypriority: case OP_griddepcontrol: case OP_setmaxnreg:
		break;
	case OP_ld: case OP_ldu: case OP_st: case OP_atom: case OP_red: case OP_cvta:
	case OP_isspacep: case OP_fence: case OP_membar: case OP_createpolicy:
	case OP_alloca: case OP_stacksave: case OP_stackrestore: case OP_mapa: case OP_getctarank:
		emit_mem(j);
		break;
	case OP_mbarrier:
		emit_mbarrier(j);
		break;
	case OP_cp:
		emit_cp(j);
		break;
	case OP_tex: case OP_tld4: case OP_suld: case OP_sust:
		emit_tex(j);
		break;
	case OP_shfl: case OP_vote: case OP_match: case OP_redux: case OP_activemask:
	case OP_elect: case OP_bar: case OP_barrier: case OP_nanosleep: case OP_brkpt:
		emit_warp(j);
		break;
	case OP_mma: case OP_wmma: case OP_ldmatrix: case OP_stmatrix: case OP_movmatrix:
		emit_mma(j);
		break;
	case OP_call:
		emit_call(j);
		break;
	case OP_cvt: case OP_szext:
		emit_cvt(j);
		break;
	default:
		emit_alu(j);
	}
}

static void emit_block(struct jit *j, uint32_t bi)
{
	struct pblock *b = &j->f->blk[bi];
	uint32_t k, x, words = (j->f->b->nregs + 63) / 64;

	at_bb(j, j->bb[bi]);
	j->epoch++;
	memset(j->live_out, 0, words * 8);
	for (k = 0; k < b->nsucc; k++)
		for (x = 0; x < words; x++)
			j->live_out[x] |= j->f->blk[b->succ[k]].livein[x];
	gather(j, bi);
	for (k = b->first; k < b->last; k++) {
		const struct insn *i = &j->f->b->insn[k];

		if (i->op == OP_bra || i->op == OP_brx || i->op == OP_ret || i->op == OP_exit ||
		    i->op == OP_trap)
			break;
	}
	emit_insns(j, b->first, k);
	write_back(j);
	terminate(j, bi);
}

/* ---- regions ---- */

/* Assigns every block to a region; a block that is reached from two regions starts a new one. */
static void spread_regions(struct jit *j)
{
	struct ufunc *f = j->f;
	uint32_t i, k, *region = j->region;
	bool changed = true;

	while (changed) {
		changed = false;
		for (i = 0; i < f->nreach; i++) {
			uint32_t b = f->order[i];
			struct pblock *bl = &f->blk[b];

			if (j->head[b]) {
				region[b] = b;
				continue;
			}
			region[b] = UINT32_MAX;
			for (k = 0; k < bl->npred; k++)
				if (f->blk[bl->pred[k]].rpo < i && region[b] == UINT32_MAX)
					region[b] = region[bl->pred[k]];
		}
		for (i = 0; i < f->nreach; i++) {
			uint32_t b = f->order[i];
			struct pblock *bl = &f->blk[b];

			for (k = 0; k < bl->npred && !j->head[b]; k++)
				if (region[bl->pred[k]] != region[b] ||
				    region[b] == UINT32_MAX) {
					j->head[b] = 1;
					changed = true;
				}
		}
	}
}

/*
 * Register allocation takes time quadratic in a function's size, so large regions of huge functions
 * are cut.  Registers that are live at a cut move to memory.
 */
static void cut_regions(struct jit *j)
{
	struct ufunc *f = j->f;
	uint32_t i, *size = ptx_arena_alloc(&j->u->arena, (f->nblk + 1) * sizeof(*size));

	for (i = 0; i < f->nreach; i++) {
		uint32_t b = f->order[i], r = j->region[b], n = f->blk[b].last - f->blk[b].first;

		if (size[r] && size[r] + n > ptx_region_most(f->b->ninsn)) {
			j->head[b] = 1;
			size[r] = 0;
		}
		size[r] += n;
	}
}

/* Finds the blocks that start regions: the first, stubs, and those that follow from them. */
static void find_heads(struct jit *j)
{
	struct ufunc *f = j->f;
	uint32_t i;

	j->head = ptx_arena_alloc(&j->u->arena, f->nblk + 1);
	j->region = ptx_arena_alloc(&j->u->arena, (f->nblk + 1) * sizeof(*j->region));
	j->head[f->order[0]] = 1;
	for (i = 0; i < f->nstubs; i++)
		j->head[f->stub_blk[i]] = 1;
	spread_regions(j);
	if (f->b->ninsn > PTX_HUGE) {
		cut_regions(j);
		spread_regions(j);
	}
}

static uint64_t assign_slots(struct jit *j)
{
	struct ufunc *f = j->f;
	uint64_t off = sizeof(struct rt_frame) + 8ull * f->nstubs;
	uint32_t r, x, i, words = (f->b->nregs + 63) / 64;
	uint64_t *live = ptx_arena_alloc(&j->u->arena, words * 8 + 8);

	for (i = 1; i < f->nreach; i++)
		if (j->head[f->order[i]])
			for (x = 0; x < words; x++)
				live[x] |= f->blk[f->order[i]].livein[x];
	off = (off + 63) & ~63ull;
	for (r = 0; r < f->b->nregs; r++) {
		j->slot[r] = NO_SLOT;
		if (!bit_get(live, r))
			continue;
		j->slot[r] = off;
		if (f->uniform[r] || f->b->regtype[r] == T_PRED)
			off += 64;
		else
			off += (ptype_size(f->b->regtype[r]) * 32 + 63) & ~63u;
	}
	return off;
}

V jit_alloca(struct jit *j, Ty t, unsigned int align)
{
	V a = LLVMBuildAlloca(j->eb, t, "");

	if (align)
		LLVMSetAlignment(a, align);
	return a;
}

/* The alloca of a register that is not live between regions. */
V jit_reg_alloca(struct jit *j, uint32_t r)
{
	if (j->reg_region[r] != j->region_no) {
		Ty t = jty_n(j, reg_ty(j, r), !j->f->uniform[r]);

		j->reg_region[r] = j->region_no;
		j->reg[r] = jit_alloca(j, t, 0);
		LLVMBuildStore(j->eb, LLVMConstNull(t), j->reg[r]);
	}
	return j->reg[r];
}

static void emit_region(struct jit *j, uint32_t head)
{
	struct ufunc *f = j->f;
	LLVMBasicBlockRef entry;
	uint32_t i;

	j->fn = j->region_fn[head];
	j->region_no++;
	j->w = LLVMGetParam(j->fn, 0);
	j->frame = j->slots = LLVMGetParam(j->fn, 1);
	j->lsp = LLVMGetParam(j->fn, 4);
	entry = new_bb(j, "entry");
	LLVMPositionBuilderAtEnd(j->eb, entry);
	j->mask = jit_alloca(j, j->i32, 0);
	j->minpend = jit_alloca(j, j->i32, 0);
	LLVMBuildStore(j->eb, LLVMGetParam(j->fn, 2), j->mask);
	LLVMBuildStore(j->eb, LLVMGetParam(j->fn, 3), j->minpend);
	for (i = 0; i < f->nreach; i++)
		if (j->region[f->order[i]] == head)
			j->bb[f->order[i]] = new_bb(j, "b");
	for (i = 0; i < f->nreach; i++)
		if (j->region[f->order[i]] == head)
			emit_block(j, f->order[i]);
	LLVMBuildBr(j->eb, j->bb[head]);
}

/* Calls rt_pick() for the next group, and jumps to its stub. */
static void emit_dispatch(struct jit *j)
{
	struct ufunc *f = j->f;
	V *fns = ptx_arena_alloc(&j->u->arena, (f->nstubs + 1) * sizeof(V)), idx, table, args[5], c;
	LLVMBasicBlockRef go, done;
	uint32_t s;
	Ty arr = LLVMArrayType2(j->ptr, f->nstubs);

	for (s = 0; s < f->nstubs; s++)
		fns[s] = j->region_fn[f->stub_blk[s]];
	table = LLVMAddGlobal(j->m, arr, "stubs");
	LLVMSetInitializer(table, LLVMConstArray2(j->ptr, fns, f->nstubs));
	LLVMSetGlobalConstant(table, true);
	LLVMSetLinkage(table, LLVMInternalLinkage);
	j->fn = j->dispatch;
	at_bb(j, new_bb(j, "entry"));
	go = new_bb(j, "go");
	done = new_bb(j, "done");
	args[0] = LLVMGetParam(j->fn, 0);
	j->frame = args[1] = LLVMGetParam(j->fn, 1);
	args[4] = LLVMGetParam(j->fn, 4);
	idx = call_rt(j, "rt_pick", j->i32, &j->frame, 1);
	LLVMBuildCondBr(j->b, LLVMBuildICmp(j->b, LLVMIntEQ, idx, c32(j, RT_NONE), ""), done, go);
	at_bb(j, done);
	LLVMBuildRetVoid(j->b);
	at_bb(j, go);
	args[2] = load_al(j, j->i32, fptr(j, FOFF(mask)), 4);
	args[3] = load_al(j, j->i32, fptr(j, FOFF(minpend)), 4);
	idx = LLVMBuildZExt(j->b, idx, j->i64, "");
	c = LLVMBuildInBoundsGEP2(j->b, j->ptr, table, &idx, 1, "");
	c = load_al(j, j->ptr, c, 8);
	c = LLVMBuildCall2(j->b, j->region_ty, c, args, 5, "");
	LLVMSetTailCallKind(c, LLVMTailCallKindMustTail);
	LLVMBuildRetVoid(j->b);
}

/* The function itself: makes the frame and enters the first region. */
static void emit_entry(struct jit *j, uint32_t idx, uint64_t size)
{
	struct ufunc *f = j->f;
	V args[5], a[2];
	uint32_t i;

	j->fn = j->fns[idx];
	at_bb(j, new_bb(j, "entry"));
	j->w = LLVMGetParam(j->fn, 0);
	j->lsp = LLVMGetParam(j->fn, 2);
	j->frame = LLVMBuildAlloca(j->b, LLVMArrayType2(j->i8, size), "");
	LLVMSetAlignment(j->frame, 64);
	j->slots = j->frame;
	LLVMBuildMemSet(j->b, fptr(j, sizeof(struct rt_frame)), LLVMConstInt(j->i8, 0, false),
			c64(j, 8ull * f->nstubs), 8);
	store_al(j, c32(j, f->nstubs), fptr(j, FOFF(nstubs)), 4);
	store_al(j, c32(j, 0), fptr(j, FOFF(forced)), 4);
	store_al(j, c32(j, RT_NONE), fptr(j, FOFF(defer)), 4);
	store_al(j, c32(j, RT_NONE), fptr(j, FOFF(rotate)), 4);
	for (i = 0; i < f->b->nregs; i++)	/* zero: may be read before it is written */
		if (j->slot[i] != NO_SLOT && bit_get(f->blk[f->order[0]].livein, i))
			slot_store(j, i, LLVMConstNull(jty_n(j, reg_ty(j, i), !f->uniform[i])),
				   true);
	if (idx) {
		a[0] = j->w;
		a[1] = LLVMBuildAdd(j->b, j->lsp, c64(j, f->frame), "");
		call_rt(j, "rt_stack", j->voidt, a, 2);
	}
	args[0] = j->w;
	args[1] = j->frame;
	args[2] = LLVMGetParam(j->fn, 1);
	args[3] = c32(j, RT_NONE);
	args[4] = j->lsp;
	LLVMBuildCall2(j->b, j->region_ty, j->region_fn[f->order[0]], args, 5, "");
	LLVMBuildRetVoid(j->b);
}

void jit_function(struct jit *j, uint32_t idx)
{
	struct ufunc *f = &j->u->fn[idx];
	uint64_t size;
	uint32_t i;

	j->f = f;
	j->in = NULL;
	j->reg = ptx_arena_alloc(&j->u->arena, (f->b->nregs + 1) * sizeof(V));
	j->reg_region = ptx_arena_alloc(&j->u->arena, (f->b->nregs + 1) * sizeof(uint32_t));
	j->slot = ptx_arena_alloc(&j->u->arena, (f->b->nregs + 1) * sizeof(uint64_t));
	j->cache = ptx_arena_alloc(&j->u->arena, (f->b->nregs + 1) * sizeof(V));
	j->cached = ptx_arena_alloc(&j->u->arena, (f->b->nregs + 1) * sizeof(uint32_t));
	j->dirty = ptx_arena_alloc(&j->u->arena, (f->b->nregs + 1) * sizeof(uint32_t));
	j->dirty_regs = ptx_arena_alloc(&j->u->arena, (f->b->nregs + 1) * sizeof(uint32_t));
	j->live_out = ptx_arena_alloc(&j->u->arena, f->b->nregs / 8 + 16);
	j->rewritten = ptx_arena_alloc(&j->u->arena, f->b->nregs + 1);
	j->bb = ptx_arena_alloc(&j->u->arena, (f->nblk + 1) * sizeof(*j->bb));
	j->region_fn = ptx_arena_alloc(&j->u->arena, (f->nblk + 1) * sizeof(V));
	find_heads(j);
	size = assign_slots(j);
	for (i = 0; i < f->nreach; i++)
		if (j->head[f->order[i]])
			j->region_fn[f->order[i]] = jit_new_fn(j, "r", j->region_ty, true);
	j->dispatch = f->diverges ? jit_new_fn(j, "dispatch", j->region_ty, true) : NULL;
	emit_entry(j, idx, size);
	for (i = 0; i < f->nreach; i++)
		if (j->head[f->order[i]])
			emit_region(j, f->order[i]);
	if (f->diverges)
		emit_dispatch(j);
}
