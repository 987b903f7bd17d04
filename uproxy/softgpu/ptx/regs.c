// SPDX-License-Identifier: Apache-2.0
/*
 * regs.c - which registers an instruction reads and writes.
 */
#include "ptx_i.h"

int insn_has_dst(const struct insn *i)
{
	switch (i->op) {
	case OP_st: case OP_red: case OP_bra: case OP_brx: case OP_ret: case OP_exit: case OP_trap:
	case OP_brkpt: case OP_fence: case OP_membar: case OP_nanosleep: case OP_prefetch:
	case OP_prefetchu: case OP_discard: case OP_applypriority: case OP_cp: case OP_stmatrix:
	case OP_griddepcontrol: case OP_sust: case OP_sured: case OP_pmevent: case OP_setmaxnreg:
	case OP_stackrestore: case OP_UNKNOWN:
		return 0;
	case OP_bar:
	case OP_barrier:
		return insn_has(i, M_red);
	case OP_wmma:
		return !insn_has(i, M_store);
	case OP_mbarrier:
		return insn_has(i, M_test_wait) || insn_has(i, M_try_wait) ||
		       insn_has(i, M_pending_count) || insn_has(i, M_arrive) ||
		       insn_has(i, M_arrive_drop);
	}
	return i->nopnd > 0;
}

static void opnd_regs(const struct opnd *o, bool def, reg_fn fn, void *arg)
{
	unsigned int k;

	if (o->kind == O_REG)
		fn(arg, o->reg, def);
	else if (o->kind == O_MEM && o->reg >= 0)
		fn(arg, o->reg, false);
	if (o->reg2 >= 0)
		fn(arg, o->reg2, def);
	for (k = 0; k < o->nvec; k++)
		opnd_regs(&o->vec[k], def && o->kind != O_MEM, fn, arg);
}

static int piece_reg(const struct pvar *v, uint64_t off)
{
	struct ppiece *p;

	for (p = v->pieces; p; p = p->next)
		if (p->off == off)
			return p->reg;
	return -1;
}

/* The registers that ld.param or st.param of a promoted variable reads or writes. */
static void promoted_regs(const struct insn *i, reg_fn fn, void *arg)
{
	const struct opnd *o = &i->o[i->op == OP_st ? 0 : 1];
	unsigned int k, n = i->o[i->op == OP_st ? 1 : 0].kind == O_VEC ?
			    i->o[i->op == OP_st ? 1 : 0].nvec : 1;

	for (k = 0; k < n; k++) {
		int r = piece_reg(o->var, o->imm + k * ptype_size(i->t[0]));

		if (r >= 0)
			fn(arg, r, i->op == OP_st);
	}
}

bool insn_promoted(const struct insn *i)
{
	const struct opnd *o;

	if ((i->op != OP_ld && i->op != OP_st) || i->nopnd < 2)
		return false;
	o = &i->o[i->op == OP_st ? 0 : 1];
	return o->kind == O_MEM && o->var && o->var->promoted;
}

void insn_regs(const struct insn *i, reg_fn fn, void *arg)
{
	unsigned int k, dst = insn_has_dst(i);

	if (i->guard >= 0)
		fn(arg, i->guard, false);
	for (k = 0; k < i->nopnd; k++)		/* uses first */
		opnd_regs(&i->o[k], k < dst, fn, arg);
	if (insn_promoted(i))
		promoted_regs(i, fn, arg);
}
