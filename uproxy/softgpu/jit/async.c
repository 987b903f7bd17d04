// SPDX-License-Identifier: Apache-2.0
/*
 * async.c - barriers in memory (mbarrier), and copies that complete on them
 */
#include <errno.h>
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)
#define WOFF(f) offsetof(struct rt_warp, f)

static enum rt_mbarrier mbarrier_op(struct jit *j)
{
	const struct insn *i = j->in;
	bool expect = insn_has(i, M_expect_tx);

	if (insn_has(i, M_init)) return RT_MB_INIT;
	if (insn_has(i, M_inval)) return RT_MB_INVAL;
	if (insn_has(i, M_arrive)) return expect ? RT_MB_ARRIVE_EXPECT : RT_MB_ARRIVE;
	if (insn_has(i, M_arrive_drop)) return expect ? RT_MB_DROP_EXPECT : RT_MB_DROP;
	if (expect) return RT_MB_EXPECT;
	if (insn_has(i, M_complete_tx)) return RT_MB_COMPLETE;
	if (insn_is_mbarrier_wait(i))
		return insn_has(i, M_parity) ? RT_MB_TEST_PARITY : RT_MB_TEST;
	jit_fail(j, "operation");
}

/* The lanes' operand in x: a count, bytes, a parity, or a state. */
static void put_operand(struct jit *j, unsigned int k, enum rt_mbarrier op)
{
	V v = kint(j, j->i64, 1);

	if (op == RT_MB_TEST)
		v = get(j, opnd(j, k), T_B64);
	else if (op != RT_MB_INVAL && (k < j->in->nopnd || (op != RT_MB_ARRIVE && op != RT_MB_DROP)))
		v = LLVMBuildZExt(B(j), get(j, opnd(j, k), T_U32), jty(j, j->i64), "");
	put_x(j, 0, v);
}

/* mbarrier.op [state,] [address] {, operand {, time limit}}; a wait returns at once. */
void emit_mbarrier(struct jit *j)
{
	bool uni = !j->vec, wait = insn_is_mbarrier_wait(j->in);
	unsigned int k = opnd(j, 0)->kind != O_MEM;
	enum rt_mbarrier op;
	enum rt_space sp;
	V args[4], r;

	if (insn_has(j->in, M_pending_count)) {
		r = LLVMBuildAnd(B(j), get(j, opnd(j, 1), T_B64),
				 kint(j, j->i64, (1u << RT_MB_COUNT) - 1), "");
		set(j, opnd(j, 0), LLVMBuildTrunc(B(j), r, jty(j, j->i32), ""), T_U32);
		return;
	}
	op = mbarrier_op(j);
	if (wait && !k)
		ptx_fail(-EINVAL, j->in->line, "mbarrier: a wait without a result");
	j->vec = true;
	put_operand(j, k + 1, op);
	wstore(j, mem_addr(j, opnd(j, k), &sp), WOFF(addr));
	args[0] = j->w;
	args[1] = cur_mask(j);
	args[2] = c32(j, op);
	args[3] = c32(j, sp);
	r = call_rt(j, "rt_mbarrier", j->i32, args, 4);
	if (wait)
		set(j, opnd(j, 0), uni ? LLVMBuildICmp(B(j), LLVMIntNE, r, c32(j, 0), "") :
					 pred_of(j, r), T_PRED);
	else if (k)
		set(j, opnd(j, 0), get_y(j, 0, j->i64), T_B64);
}

/* An address of another space than the one that the instruction's other operands are in. */
static V addr_in(struct jit *j, const struct opnd *o, enum ptx_mod mod, enum rt_space *sp)
{
	const struct insn *i = j->in;
	struct insn other = *i;
	uint16_t mods[1] = { mod };
	V a;

	other.nmod = 1;
	other.mods = mods;
	j->in = &other;
	a = mem_addr(j, o, sp);
	j->in = i;
	return a;
}

/* Bytes that st.async or red.async has written arrive at the barrier that its last operand names. */
void complete_tx(struct jit *j, unsigned int bytes)
{
	bool vec = j->vec;
	enum rt_space sp;
	V args[4];

	j->vec = true;
	wstore(j, mem_addr(j, opnd(j, 2), &sp), WOFF(addr));
	put_x(j, 0, kint(j, j->i64, bytes));
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, RT_MB_COMPLETE);
	args[3] = c32(j, sp);
	call_rt(j, "rt_mbarrier", j->i32, args, 4);
	j->vec = vec;
}

/* st.bulk [address], bytes, 0 */
void emit_st_bulk(struct jit *j)
{
	enum rt_space sp;
	V args[3];

	if (opnd(j, 2)->kind != O_IMM || j->in->o[2].imm)
		jit_fail(j, "a value other than 0");
	j->vec = true;
	wstore(j, mem_addr(j, opnd(j, 0), &sp), WOFF(addr));
	put_x(j, 0, get(j, opnd(j, 1), T_U64));
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, sp);
	call_rt(j, "rt_clear", j->voidt, args, 3);
}

/* cp.async.mbarrier.arrive [barrier]: all earlier copies of the thread have been made. */
static void emit_cp_arrive(struct jit *j)
{
	bool counted = insn_has(j->in, M_noinc);	/* else the arrival adds itself first */
	enum rt_space sp;
	V args[4];

	j->vec = true;
	wstore(j, mem_addr(j, opnd(j, 0), &sp), WOFF(addr));
	put_x(j, 0, kint(j, j->i64, counted));
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, counted ? RT_MB_ARRIVE : RT_MB_EXPECT);
	args[3] = c32(j, sp);
	call_rt(j, "rt_mbarrier", j->i32, args, 4);
}

/* cp.async.ca.shared.global [dst], [src], size{, src-size}{, cache policy} */
static void emit_cp_async(struct jit *j)
{
	const struct insn *i = j->in;
	enum rt_space sp;
	uint64_t size;
	V args[3], n;

	j->vec = true;
	if (opnd(j, 2)->kind != O_IMM)
		jit_fail(j, "size");
	size = i->o[2].imm;
	if (size != 4 && size != 8 && size != 16)
		jit_fail(j, "size");
	wstore(j, addr_in(j, opnd(j, 0), M_shared, &sp), WOFF(addr));
	put_x(j, 0, addr_in(j, opnd(j, 1), M_global, &sp));
	n = kint(j, j->i32, size);
	if (i->nopnd > 3) {
		if (i->o[3].kind == O_REG && j->f->b->regtype[i->o[3].reg] == T_PRED)
			n = LLVMBuildSelect(B(j), get_pred(j, opnd(j, 3)), kint(j, j->i32, 0), n, "");
		else if (!(i->o[3].kind == O_REG &&
			   ptype_size(j->f->b->regtype[i->o[3].reg]) == 8))
			n = get(j, opnd(j, 3), T_U32);
	}
	put_x(j, 1, n);
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, size);
	call_rt(j, "rt_cp_async", j->voidt, args, 3);
}

/* The spaces of the operands, in the order of the modifiers. */
static enum ptx_mod nth_space(struct jit *j, unsigned int n)
{
	const struct insn *i = j->in;
	unsigned int k;

	for (k = 0; k < i->nmod; k++)
		if ((i->mods[k] == M_global || i->mods[k] == M_shared_cta ||
		     i->mods[k] == M_shared_cluster) && !n--)
			return i->mods[k];
	jit_fail(j, "state spaces");
}

/*
 * cp{.reduce}.async.bulk.dst.src.completion{.op.type} [dst], [src], size{, [barrier]}
 *	{, blocks}{, cache policy}{, byte mask}
 */
static void emit_cp_bulk(struct jit *j)
{
	const struct insn *i = j->in;
	enum ptx_mod dst = nth_space(j, 0), src = nth_space(j, 1);
	uint32_t desc = 0, k;
	enum rt_space sp;
	V args[3];

	for (k = 0; k < i->nmod; k++)
		if (!strcmp(i->mtext[k], "ignore_oob"))
			jit_fail(j, i->mtext[k]);
	j->vec = true;
	wstore(j, addr_in(j, opnd(j, 0), dst, &sp), WOFF(addr));
	desc |= sp;
	put_x(j, 0, addr_in(j, opnd(j, 1), src, &sp));
	desc |= sp << RT_BULK_SRC;
	put_x(j, 1, get(j, opnd(j, 2), T_U32));
	if (insn_has(i, M_tx_bytes)) {
		desc |= RT_BULK_TX;
		put_x(j, 2, addr_in(j, opnd(j, 3), M_shared_cluster, &sp));
	} else if (!insn_has(i, M_bulk_group)) {
		jit_fail(j, "completion");
	}
	if (insn_has(i, M_cp_mask)) {
		desc |= RT_BULK_MASK;
		put_x(j, 3, get(j, opnd(j, i->nopnd - 1), T_U16));
	} else if (insn_has(i, M_multicast)) {
		desc |= RT_BULK_MULTICAST;
		put_x(j, 3, get(j, opnd(j, 4), T_U16));
	}
	if (insn_has(i, M_reduce))
		desc |= RT_BULK_REDUCE | atom_op(j) << RT_BULK_OP |
			atom_type(j, typ(j, 0)) << RT_BULK_TYPE |
			ptype_size(typ(j, 0)) << RT_BULK_SIZE;
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, desc);
	call_rt(j, "rt_bulk", j->voidt, args, 3);
}

/* The map's address and the coordinates of [map, {x, y, ...}].  Returns the space of the map. */
static enum rt_space put_tensor(struct jit *j, const struct opnd *o, uint32_t *rank)
{
	const struct opnd *c = o->nvec == 1 && o->vec[0].kind == O_VEC ? &o->vec[0] : NULL;
	enum rt_space sp;
	uint32_t k;

	if (!c || !c->nvec || c->nvec > 5)
		ptx_fail(-EINVAL, j->in->line, "cp: expected a tensor map and up to five coordinates");
	put_x(j, 0, addr_in(j, o, M_bulk, &sp));
	for (k = 0; k < c->nvec; k++)
		wstore(j, get(j, &c->vec[k], T_B32), WOFF(x) + 1024 + 128 * k);
	*rank = c->nvec;
	return sp;
}

/*
 * cp.async.bulk.tensor.dim.shared.global{.tile}.completion [dst], [map, {x, ...}], [barrier]{, blocks}
 * cp{.reduce}.async.bulk.tensor.dim.global.shared{.op}{.tile}.bulk_group [map, {x, ...}], [src]
 */
static void emit_cp_tensor(struct jit *j)
{
	const struct insn *i = j->in;
	bool store = nth_space(j, 0) == M_global;
	uint32_t desc, rank, k;
	enum rt_space sp;
	V args[4];

	for (k = 0; k < i->nmod; k++)
		if (!strncmp(i->mtext[k], "im2col", 6) || !strncmp(i->mtext[k], "tile::", 6) ||
		    !strncmp(i->mtext[k], "cta_group", 9))
			jit_fail(j, i->mtext[k]);
	j->vec = true;
	desc = put_tensor(j, opnd(j, !store), &rank);
	wstore(j, addr_in(j, opnd(j, store), M_shared_cluster, &sp), WOFF(addr));
	if (store) {
		desc |= RT_TENSOR_STORE;
		if (insn_has(i, M_reduce))
			desc |= RT_BULK_REDUCE | atom_op(j) << RT_BULK_OP;
	} else {
		desc |= RT_BULK_TX;
		put_x(j, 2, addr_in(j, opnd(j, 2), M_shared_cluster, &sp));
		if (insn_has(i, M_multicast)) {
			desc |= RT_BULK_MULTICAST;
			put_x(j, 3, get(j, opnd(j, 3), T_U16));
		}
	}
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, desc);
	args[3] = c32(j, rank);
	call_rt(j, "rt_tensor", j->voidt, args, 4);
}

/* Copies are made at once: what waits for them has nothing to do. */
void emit_cp(struct jit *j)
{
	const struct insn *i = j->in;

	if (!insn_has(i, M_async))
		jit_fail(j, "not supported");
	if (insn_has(i, M_commit_group) || insn_has(i, M_wait_group) || insn_has(i, M_wait_all) ||
	    insn_has(i, M_prefetch))
		return;
	if (insn_has(i, M_mbarrier))
		emit_cp_arrive(j);
	else if (insn_has(i, M_tensor))
		emit_cp_tensor(j);
	else if (insn_has(i, M_bulk))
		emit_cp_bulk(j);
	else
		emit_cp_async(j);
}
