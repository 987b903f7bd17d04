// SPDX-License-Identifier: Apache-2.0
/*
 * fold.c - guards short sides of divergent branches, and marks the first writes after a barrier
 */
#include <stdlib.h>
#include <string.h>

#include "flow_i.h"

/* ---- short sides of a split become guarded instructions ---- */

enum { SHORT = 8 };

/* Can run under a guard, and does not change the guard itself. */
static bool may_guard(const struct insn *i, int guard)
{
	unsigned int k;

	if (i->guard >= 0 || flow_ends_block(i) || flow_is_collective(i) || flow_uses_cc(i))
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
	const struct flow *w;
	const uint64_t *after, *beside;
	bool any;
};

static void note_needed(void *arg, int reg, bool def)
{
	struct needed *n = arg;

	if (def && (flow_is_live(n->w, n->after, reg) ||
		    (n->beside && flow_is_live(n->w, n->beside, reg))))
		n->any = true;
}

/* Guards a side.  Results that are dead behind it and on the other side (@beside) need no guard. */
static void guard_all(struct flow *w, uint32_t from, uint32_t to, int guard, bool neg,
		      const struct pblock *after, const struct pblock *beside)
{
	struct needed n = { .w = w, .after = flow_live_into(w, after - w->f->blk),
			    .beside = beside ? flow_live_into(w, beside - w->f->blk) : NULL };
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
 * Replaces divergent branches around a few instructions by guards: a split costs more than the
 * instructions.  Returns whether the function must be analysed again.
 */
bool flow_fold_short_sides(struct flow *w)
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

/* ---- the first writes after a barrier ---- */

/* Writes memory that other warps of the block may read. */
static bool writes_shared(const struct insn *i)
{
	switch (i->op) {
	case OP_st:
		return !insn_promoted(i) && !flow_local_mem(i);
	case OP_cp:
		return !insn_has(i, M_commit_group) && !insn_has(i, M_wait_group) &&
		       !insn_has(i, M_wait_all);
	case OP_wmma:
		return insn_has(i, M_store);
	case OP_atom: case OP_red: case OP_sust: case OP_sured: case OP_stmatrix:
		return true;
	}
	return false;
}

/*
 * Whether at the end of block @b a barrier may have been passed with no write since; @late: the
 * same at its beginning.  A call may end in that state, too.
 */
static bool late_behind(struct flow *w, const struct pblock *b, bool late, bool mark)
{
	uint32_t k;

	for (k = b->first; k < b->last; k++) {
		struct insn *i = &w->b->insn[k];
		bool writes = writes_shared(i);

		if (mark)
			i->late = writes && late;
		if (writes)
			late = false;
		else if (flow_is_block_barrier(i) || i->op == OP_call)
			late = true;
	}
	return late;
}

void flow_find_late_writes(struct flow *w)
{
	struct ufunc *f = w->f;
	uint32_t n = 0, i, k, *todo = w->todo;
	uint8_t *late = ptx_arena_alloc(w->tmp, f->nblk + 1),
		*out = ptx_arena_alloc(w->tmp, f->nblk + 1);

	if (!w->u->info.barriers)
		return;
	late[0] = f != w->u->fn;	/* a function may be called in that state */
	for (i = 0; i < f->nreach; i++)
		todo[n++] = f->order[f->nreach - 1 - i];
	while (n) {
		struct pblock *b = &f->blk[todo[--n]];

		k = b - f->blk;
		if (out[k] || !late_behind(w, b, late[k], false))
			continue;
		out[k] = 1;
		for (i = 0; i < b->nsucc; i++)
			if (!late[b->succ[i]]) {
				late[b->succ[i]] = 1;
				todo[n++] = b->succ[i];
			}
	}
	for (i = 0; i < f->nreach; i++)
		late_behind(w, &f->blk[f->order[i]], late[f->order[i]], true);
}
