// SPDX-License-Identifier: Apache-2.0
/*
 * warp.c - operations across lanes: shuffles, votes, barriers; and calls
 */
#include <errno.h>
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)
#define WOFF(f) offsetof(struct rt_warp, f)

/* The value in the lowest active lane. */
static V first_lane(struct jit *j, V v)
{
	V m = LLVMBuildOr(B(j), cur_mask(j), c32(j, 0x80000000), ""), args[2];
	Ty t = j->i32;

	if (LLVMGetTypeKind(LLVMTypeOf(v)) != LLVMVectorTypeKind)
		return v;
	args[0] = m;
	args[1] = LLVMConstInt(j->i1, 1, false);
	m = call_intr(j, "llvm.cttz", &t, 1, args, 2);
	return LLVMBuildExtractElement(B(j), v, m, "");
}

static V scalar_opnd(struct jit *j, const struct opnd *o, enum ptype t)
{
	bool vec = j->vec;
	V v;

	j->vec = !opnd_uniform(j, o);
	v = first_lane(j, get(j, o, t));
	j->vec = vec;
	return v;
}

/* Active lanes among the members that operand @k names. */
static V members(struct jit *j, unsigned int k)
{
	V m = cur_mask(j);

	if (k < j->in->nopnd)
		m = LLVMBuildAnd(B(j), m, scalar_opnd(j, opnd(j, k), T_B32), "");
	return m;
}

/* The same, a mask per lane: lanes of different tiles name different members. */
static V members_apart(struct jit *j, unsigned int k)
{
	bool vec = j->vec;
	V m;

	if (k >= j->in->nopnd || opnd_uniform(j, opnd(j, k)))
		return NULL;
	j->vec = true;
	m = LLVMBuildAnd(B(j), get(j, opnd(j, k), T_B32), splat(j, cur_mask(j)), "");
	j->vec = vec;
	return m;
}

/* For runtime calls, which always take a mask per lane. */
static void put_members(struct jit *j, unsigned int k)
{
	V apart = members_apart(j, k);

	put_x(j, 3, apart ? apart : splat(j, members(j, k)));
}

/* ---- shfl ---- */

static int shfl_source(const struct insn *i, int lane, unsigned int b, unsigned int c, bool *in)
{
	int seg = c >> 8 & 31, clamp = c & 31, bv = b & 31, src;
	int maxl = (lane & seg) | (clamp & ~seg), minl = lane & seg;

	if (insn_has(i, M_up)) {
		src = lane - bv;
		*in = src >= maxl;
	} else if (insn_has(i, M_down)) {
		src = lane + bv;
		*in = src <= maxl;
	} else if (insn_has(i, M_bfly)) {
		src = lane ^ bv;
		*in = src <= maxl;
	} else {
		src = minl | (bv & ~seg);
		*in = src <= maxl;
	}
	return *in ? src : lane;
}

static void shfl_const(struct jit *j, V a, unsigned int b, unsigned int c)
{
	V idx[32], pred[32];
	int l;

	for (l = 0; l < 32; l++) {
		bool in;

		idx[l] = c32(j, shfl_source(j->in, l, b, c, &in));
		pred[l] = LLVMConstInt(j->i1, in, false);
	}
	a = LLVMBuildShuffleVector(B(j), a, LLVMGetPoison(LLVMTypeOf(a)),
				   LLVMConstVector(idx, 32), "");
	set(j, opnd(j, 0), a, T_B32);
	if (j->in->o[0].reg2 >= 0)
		set_reg(j, j->in->o[0].reg2, LLVMConstVector(pred, 32), T_PRED);
}

static void emit_shfl(struct jit *j)
{
	const struct insn *i = j->in;
	bool is_static = opnd(j, 2)->kind == O_IMM && opnd(j, 3)->kind == O_IMM;
	int mode = insn_has(i, M_up) ? 0 : insn_has(i, M_down) ? 1 : insn_has(i, M_bfly) ? 2 : 3;
	V a, args[3];

	j->vec = true;
	a = get(j, opnd(j, 1), T_B32);
	/*
	 * A lane that does not take part gives 0. PTX leaves that open, but programs that run on real
	 * devices add it up, and a register's old value would make sums wrong (reduction samples).
	 */
	a = LLVMBuildSelect(B(j), pred_of(j, cur_mask(j)), a, LLVMConstNull(LLVMTypeOf(a)), "");
	if (is_static) {
		shfl_const(j, a, i->o[2].imm, i->o[3].imm);
		return;
	}
	put_x(j, 0, a);
	put_x(j, 1, get(j, opnd(j, 2), T_B32));
	put_x(j, 2, get(j, opnd(j, 3), T_B32));
	args[0] = j->w;
	args[1] = cur_mask(j);
	args[2] = c32(j, mode);
	a = call_rt(j, "rt_shfl", j->i32, args, 3);
	if (i->o[0].reg2 >= 0)
		set_reg(j, i->o[0].reg2, pred_of(j, a), T_PRED);
	set(j, opnd(j, 0), get_y(j, 0, j->i32), T_B32);
}

/* ---- votes ---- */

static void emit_vote(struct jit *j)
{
	const struct insn *i = j->in;
	V apart = members_apart(j, 2), m = apart ? apart : members(j, 2), p, r, none;

	j->vec = true;
	p = bits_of(j, get_pred(j, opnd(j, 1)));
	p = LLVMBuildAnd(B(j), apart ? splat(j, p) : p, m, "");
	none = LLVMConstNull(LLVMTypeOf(p));
	if (insn_has(i, M_ballot)) {
		set(j, opnd(j, 0), p, T_B32);
		return;
	}
	if (insn_has(i, M_any)) {
		r = LLVMBuildICmp(B(j), LLVMIntNE, p, none, "");
	} else {
		r = LLVMBuildICmp(B(j), LLVMIntEQ, p, m, "");
		if (insn_has(i, M_uni))
			r = LLVMBuildOr(B(j), r, LLVMBuildICmp(B(j), LLVMIntEQ, p, none, ""), "");
		else if (!insn_has(i, M_all))
			jit_fail(j, "mode");
	}
	set(j, opnd(j, 0), r, T_PRED);
}

static void emit_match(struct jit *j)
{
	const struct insn *i = j->in;
	enum ptype t = ptype_size(typ(j, 0)) == 8 ? T_B64 : T_B32;
	V args[3], r;

	args[0] = j->w;
	args[1] = cur_mask(j);
	put_members(j, 2);
	j->vec = true;
	put_x(j, 0, get(j, opnd(j, 1), t));
	args[2] = c32(j, (t == T_B64) | insn_has(i, M_all) << 1);
	r = call_rt(j, "rt_match", j->i32, args, 3);
	set(j, opnd(j, 0), get_y(j, 0, j->i32), T_B32);
	if (i->o[0].reg2 >= 0)
		set_reg(j, i->o[0].reg2, pred_of(j, r), T_PRED);
}

static void emit_redux(struct jit *j)
{
	const struct insn *i = j->in;
	enum ptype t = typ(j, 0);
	int op = insn_has(i, M_add) ? RT_ADD : insn_has(i, M_min) ? RT_MIN :
		 insn_has(i, M_max) ? RT_MAX : insn_has(i, M_and) ? RT_AND :
		 insn_has(i, M_or) ? RT_OR : insn_has(i, M_xor) ? RT_XOR : -1;
	int kind = t == T_S32 ? RT_S32 : t == T_F32 ? RT_F32 : RT_U32;
	V args[4], r;

	if (op < 0)
		jit_fail(j, "operation");
	args[0] = j->w;
	args[1] = cur_mask(j);
	put_members(j, 2);
	j->vec = true;
	put_x(j, 0, get(j, opnd(j, 1), t == T_F32 ? T_F32 : T_B32));
	args[2] = c32(j, op | insn_has(i, M_abs) << 8 | insn_has(i, M_NAN) << 9);
	args[3] = c32(j, kind);
	r = call_rt(j, "rt_redux", j->i32, args, 4);	/* of the lowest lane */
	if (members_apart(j, 2))
		r = get_y(j, 0, j->i32);
	set(j, opnd(j, 0), r, T_B32);
}

static void emit_elect(struct jit *j)
{
	V apart = members_apart(j, 1), m = apart ? apart : members(j, 1), low;
	V args[2] = { m, LLVMConstInt(j->i1, 0, false) };
	Ty t = LLVMTypeOf(m);

	low = LLVMBuildAnd(B(j), m, LLVMBuildNeg(B(j), m, ""), "");
	if (apart) {
		V lane = LLVMBuildShl(B(j), splat(j, c32(j, 1)), iota(j, j->i32, 1), "");

		low = bits_of(j, LLVMBuildICmp(B(j), LLVMIntEQ, low, lane, ""));
	}
	if (j->in->o[0].reg2 >= 0)
		set_reg(j, j->in->o[0].reg2, pred_of(j, low), T_PRED);
	set(j, opnd(j, 0), call_intr(j, "llvm.cttz", &t, 1, args, 2), T_B32);
}

/* ---- barriers ---- */

static void bar_red(struct jit *j, unsigned int k)
{
	const struct insn *i = j->in;
	int op = insn_has(i, M_popc) ? 0 : insn_has(i, M_and) ? 1 : 2;
	V args[6], p, r;

	args[0] = j->w;
	args[1] = cur_mask(j);
	args[2] = scalar_opnd(j, opnd(j, k), T_U32);
	args[3] = i->nopnd > k + 2 ? scalar_opnd(j, opnd(j, k + 1), T_U32) : c32(j, 0);
	j->vec = true;
	p = get_pred(j, opnd(j, i->nopnd - 1));
	args[4] = LLVMBuildAnd(B(j), bits_of(j, p), cur_mask(j), "");
	args[5] = c32(j, op);
	r = call_rt(j, "rt_bar_red", j->i32, args, 6);
	if (op)
		set(j, opnd(j, 0), LLVMBuildICmp(B(j), LLVMIntNE, r, c32(j, 0), ""), T_PRED);
	else
		set(j, opnd(j, 0), r, T_U32);
}

static void emit_bar(struct jit *j)
{
	const struct insn *i = j->in;
	V args[5];

	if (i->nmod && !strcmp(i->mtext[0], "warp")) {	/* gather() has waited for the lanes */
		LLVMBuildFence(B(j), LLVMAtomicOrderingSequentiallyConsistent, true, "");
		return;
	}
	args[0] = j->w;
	args[1] = cur_mask(j);
	if (insn_has(i, M_cluster)) {
		call_rt(j, insn_has(i, M_arrive) ? "rt_cluster_arrive" : "rt_cluster_wait", j->voidt,
			args, 2);
		return;
	}
	if (insn_has(i, M_red)) {
		bar_red(j, 1);
		return;
	}
	args[2] = i->nopnd ? scalar_opnd(j, opnd(j, 0), T_U32) : c32(j, 0);
	args[3] = i->nopnd > 1 ? scalar_opnd(j, opnd(j, 1), T_U32) : c32(j, 0);
	call_rt(j, insn_has(i, M_arrive) ? "rt_bar_arrive" : "rt_bar", j->voidt, args, 4);
}

void rt_trap_now(struct jit *j, int kind)
{
	V args[3] = { j->w, cur_mask(j), c32(j, kind) };

	call_rt(j, "rt_trap", j->voidt, args, 3);
}

void emit_warp(struct jit *j)
{
	switch (j->in->op) {
	case OP_shfl: emit_shfl(j); return;
	case OP_vote: emit_vote(j); return;
	case OP_match: emit_match(j); return;
	case OP_redux: emit_redux(j); return;
	case OP_activemask:
		set(j, opnd(j, 0), cur_mask(j), T_B32);
		return;
	case OP_elect: emit_elect(j); return;
	case OP_bar: case OP_barrier: emit_bar(j); return;
	case OP_nanosleep:
		call_rt(j, "rt_sleep", j->voidt, &j->w, 1);
		return;
	case OP_brkpt:
		rt_trap_now(j, RT_TRAP_TRAP);
		return;
	}
	jit_fail(j, "not supported");
}

/* ---- calls ---- */

/* A parameter's first bytes as a value in every lane. */
static V param_value(struct jit *j, const struct opnd *list, unsigned int k, enum ptype t)
{
	const struct opnd *o;
	V args[3];

	if (k >= list->nvec)
		ptx_fail(-EINVAL, j->in->line, "call: a parameter is missing");
	o = &list->vec[k];
	j->vec = true;
	if (o->kind != O_VAR)
		return get(j, o, t);
	if (o->var->space != V_PARAM)
		jit_fail(j, "parameter");
	wstore(j, splat(j, LLVMBuildAdd(B(j), j->lsp, c64(j, o->var->offset), "")), WOFF(addr));
	args[0] = j->w;
	args[1] = cur_mask(j);
	args[2] = c32(j, RT_DESC(ptype_size(t), 1, RT_LOCAL));
	call_rt(j, "rt_ld", j->voidt, args, 3);
	return get_y(j, 0, scalar_ty(j, t));
}

static void put_local(struct jit *j, V addr, V v, unsigned int size)
{
	V args[3] = { j->w, cur_mask(j), c32(j, RT_DESC(size, 1, RT_LOCAL)) };

	wstore(j, splat(j, addr), WOFF(addr));
	put_x(j, 0, splat(j, v));
	call_rt(j, "rt_st", j->voidt, args, 3);
}

static void set_result(struct jit *j, const struct opnd *rets, V v, enum ptype t)
{
	const struct opnd *o;

	if (!rets->nvec)
		return;
	o = &rets->vec[0];
	if (o->kind != O_VAR)
		set(j, o, v, t);
	else
		put_local(j, LLVMBuildAdd(B(j), j->lsp, c64(j, o->var->offset), ""), v,
			  ptype_size(t));
}

static void emit_builtin(struct jit *j, const char *name)
{
	const struct opnd *rets = opnd(j, 0), *params = opnd(j, 2);
	V args[2];

	if (!strcmp(name, "vprintf")) {
		put_x(j, 0, param_value(j, params, 0, T_U64));
		put_x(j, 1, param_value(j, params, 1, T_U64));
	} else if (!strcmp(name, "__assertfail")) {
		put_x(j, 0, param_value(j, params, 0, T_U64));
		put_x(j, 1, param_value(j, params, 1, T_U64));
		put_x(j, 2, param_value(j, params, 2, T_U32));
		put_x(j, 3, param_value(j, params, 3, T_U64));
	} else {
		put_x(j, 0, param_value(j, params, 0, T_U64));
	}
	args[0] = j->w;
	args[1] = cur_mask(j);
	call_rt(j, !strcmp(name, "vprintf") ? "rt_vprintf" : !strcmp(name, "malloc") ? "rt_malloc" :
		   !strcmp(name, "free") ? "rt_free" : "rt_assertfail", j->voidt, args, 2);
	if (!strcmp(name, "vprintf"))
		set_result(j, rets, get_y(j, 0, j->i32), T_U32);
	else if (!strcmp(name, "malloc"))
		set_result(j, rets, get_y(j, 0, j->i64), T_U64);
}

/* Copies between this frame and the callee's, lane by lane. */
static void copy_local(struct jit *j, V dst, V src, uint64_t size)
{
	V args[5] = { j->w, cur_mask(j), dst, src, c64(j, size) };

	call_rt(j, "rt_lcopy", j->voidt, args, 5);
}

static void pass(struct jit *j, const struct opnd *o, const struct pvar *formal, V callee,
		 uint64_t off, bool out)
{
	V there = LLVMBuildAdd(B(j), callee, c64(j, off), ""), args[3];
	static const enum ptype by_size[] = { [1] = T_U8, [2] = T_U16, [4] = T_U32, [8] = T_U64,
					      [16] = T_B128 };
	unsigned int size = ptype_size(formal->type);

	if (o->kind == O_VAR) {
		V here = LLVMBuildAdd(B(j), j->lsp, c64(j, o->var->offset + o->imm), "");
		uint64_t n = o->var->size < formal->size ? o->var->size : formal->size;

		if (o->var->space != V_PARAM)
			jit_fail(j, "parameter");
		copy_local(j, out ? here : there, out ? there : here, n);
		return;
	}
	j->vec = true;
	if (!out) {
		put_local(j, there, get(j, o, by_size[size]), size);
		return;
	}
	wstore(j, splat(j, there), WOFF(addr));
	args[0] = j->w;
	args[1] = cur_mask(j);
	args[2] = c32(j, RT_DESC(size, 1, RT_LOCAL));
	call_rt(j, "rt_ld", j->voidt, args, 3);
	set(j, o, get_y(j, 0, scalar_ty(j, by_size[size])), by_size[size]);
}

static void call_indirect(struct jit *j, V lsp)
{
	V rem = jit_alloca(j, j->i32, 0), t, m, sw, args[3];
	LLVMBasicBlockRef loop = new_bb(j, "next"), body = new_bb(j, "target");
	LLVMBasicBlockRef done = new_bb(j, "called"), bad = new_bb(j, "bad");
	V tv, lane, iargs[2];
	Ty i32 = j->i32;
	uint32_t k;

	j->vec = true;
	tv = get(j, opnd(j, 1), T_U64);
	LLVMBuildStore(B(j), cur_mask(j), rem);
	LLVMBuildBr(B(j), loop);
	at_bb(j, loop);
	m = LLVMBuildLoad2(B(j), j->i32, rem, "");
	LLVMBuildCondBr(B(j), LLVMBuildICmp(B(j), LLVMIntEQ, m, c32(j, 0), ""), done, body);
	at_bb(j, body);
	iargs[0] = LLVMBuildOr(B(j), m, c32(j, 0x80000000), "");
	iargs[1] = LLVMConstInt(j->i1, 1, false);
	lane = call_intr(j, "llvm.cttz", &i32, 1, iargs, 2);
	t = LLVMBuildExtractElement(B(j), tv, lane, "");
	args[0] = j->w;
	args[1] = LLVMBuildAnd(B(j), m, bits_of(j, LLVMBuildICmp(B(j), LLVMIntEQ, tv, splat(j, t),
				"")), "");
	args[2] = lsp;
	LLVMBuildStore(B(j), LLVMBuildAnd(B(j), m, LLVMBuildNot(B(j), args[1], ""), ""), rem);
	sw = LLVMBuildSwitch(B(j), t, bad, j->u->nfn);
	for (k = 1; k < j->u->nfn; k++) {
		LLVMBasicBlockRef bb;

		if (!j->u->fn[k].f->addr_taken)
			continue;
		bb = new_bb(j, "call");
		LLVMAddCase(sw, c64(j, ptx_func_value(j->u->fn[k].f->ordinal)), bb);
		at_bb(j, bb);
		LLVMBuildCall2(B(j), j->fn_ty, j->fns[k], args, 3, "");
		LLVMBuildBr(B(j), loop);
	}
	at_bb(j, bad);
	wstore(j, t, WOFF(addr));
	rt_trap_now(j, RT_TRAP_PC);
	LLVMBuildBr(B(j), done);
	at_bb(j, done);
}

static struct ptargets *prototype(struct jit *j)
{
	struct ptargets *t;

	if (j->in->o[3].kind != O_NAME)
		jit_fail(j, "indirect call without a prototype");
	for (t = j->f->b->targets; t; t = t->next)
		if (!strcmp(t->name, j->in->o[3].name))
			break;
	if (!t)
		ptx_fail(-EINVAL, j->in->line, "%s is not defined", j->in->o[3].name);
	return t;
}

/* .calltargets has no types: uses those of the first target. */
static void signature(struct jit *j, struct pvar ***rets, unsigned int *nrets,
		      struct pvar ***params, unsigned int *nparams)
{
	struct pfunc *f = opnd(j, 1)->kind == O_FUNC ? j->in->o[1].func : NULL;

	if (!f) {
		struct ptargets *t = prototype(j);

		if (t->is_proto) {
			*rets = t->rets;
			*nrets = t->nrets;
			*params = t->params;
			*nparams = t->nparams;
			return;
		}
		if (t->n) {
			struct psym *y = ptx_lookup(j->u->m, j->u->fn->f->src, t->names[0],
						    strlen(t->names[0]));
			f = y ? y->func : NULL;
		}
		if (!f)
			jit_fail(j, "call targets");
	}
	*rets = f->rets;
	*nrets = f->nrets;
	*params = f->params;
	*nparams = f->nparams;
}

void emit_call(struct jit *j)
{
	const struct opnd *rets = opnd(j, 0), *target = opnd(j, 1), *params = opnd(j, 2);
	struct pvar **fr, **fp;
	unsigned int nr, np, k;
	uint64_t offs[64];
	LLVMBasicBlockRef gone, on;
	V lsp, args[3], m;

	if (target->kind == O_FUNC && !target->func->body) {
		emit_builtin(j, target->func->name);
		return;
	}
	signature(j, &fr, &nr, &fp, &np);
	if (nr != rets->nvec || np != params->nvec || nr + np > 64)
		ptx_fail(-EINVAL, j->in->line, "call with the wrong number of parameters");
	ptx_call_layout(fr, nr, fp, np, offs);
	lsp = LLVMBuildAdd(B(j), j->lsp, c64(j, j->f->frame), "");
	{	/* room for what is passed */
		V a[2] = { j->w, LLVMBuildAdd(B(j), lsp, c64(j, 4096), "") };

		call_rt(j, "rt_stack", j->voidt, a, 2);
	}
	for (k = 0; k < np; k++)
		pass(j, &params->vec[k], fp[k], lsp, offs[nr + k], false);
	if (target->kind == O_FUNC) {
		struct ufunc *u = unit_find(j->u, target->func);

		if (!u)
			jit_fail(j, "internal: callee");
		args[0] = j->w;
		args[1] = cur_mask(j);
		args[2] = lsp;
		LLVMBuildCall2(B(j), j->fn_ty, j->fns[u - j->u->fn], args, 3, "");
	} else {
		call_indirect(j, lsp);
	}
	m = wload_var(j, j->i32, WOFF(alive));
	m = LLVMBuildAnd(B(j), m, cur_mask(j), "");
	LLVMBuildStore(B(j), m, j->mask);
	gone = new_bb(j, "gone");
	on = new_bb(j, "on");
	br_likely(j, LLVMBuildICmp(B(j), LLVMIntNE, m, c32(j, 0), ""), on, gone);
	at_bb(j, gone);
	jit_finish(j);
	at_bb(j, on);
	for (k = 0; k < nr; k++)
		pass(j, &rets->vec[k], fr[k], lsp, offs[k], true);
}
