// SPDX-License-Identifier: Apache-2.0
/*
 * val.c - types, constants, operands and results in code generation
 */
#include <errno.h>
#include <string.h>

#include "jit_i.h"

void jit_fail(struct jit *j, const char *why)
{
	char buf[96];

	ptx_fail(-ENOTSUP, j->in ? j->in->line : 0, "%s: %s",
		 j->in ? insn_str(j->in, buf, sizeof(buf)) : "function", why);
}

Ty jty_n(struct jit *j, Ty scalar, bool vec)
{
	(void)j;
	return vec ? LLVMVectorType(scalar, 32) : scalar;
}

Ty jty(struct jit *j, Ty scalar)
{
	return jty_n(j, scalar, j->vec);
}

Ty scalar_ty(struct jit *j, enum ptype t)
{
	switch (t) {
	case T_PRED:
		return j->i1;
	case T_F32:
		return j->f32;
	case T_F64:
		return j->f64;
	default:
		switch (ptype_size(t)) {
		case 1: return j->i8;
		case 2: return j->i16;
		case 4: return j->i32;
		case 8: return j->i64;
		case 16: return j->i128;
		}
	}
	jit_fail(j, "a type is missing or not supported");
}

static V widen_const(struct jit *j, V v)
{
	V e[32];
	int i;

	if (!j->vec)
		return v;
	for (i = 0; i < 32; i++)
		e[i] = v;
	return LLVMConstVector(e, 32);
}

V kint(struct jit *j, Ty scalar, uint64_t v)
{
	return widen_const(j, LLVMConstInt(scalar, v, false));
}

V kfp(struct jit *j, Ty scalar, double v)
{
	return widen_const(j, LLVMConstReal(scalar, v));
}

V c32(struct jit *j, uint32_t v)
{
	return LLVMConstInt(j->i32, v, false);
}

V c64(struct jit *j, uint64_t v)
{
	return LLVMConstInt(j->i64, v, false);
}

V iota(struct jit *j, Ty scalar, uint64_t step)
{
	V e[32];
	int i;

	(void)j;
	for (i = 0; i < 32; i++)
		e[i] = LLVMConstInt(scalar, i * step, false);
	return LLVMConstVector(e, 32);
}

V splat(struct jit *j, V v)
{
	Ty t = LLVMTypeOf(v), vt;
	V z, u;

	if (LLVMGetTypeKind(t) == LLVMVectorTypeKind)
		return v;
	vt = LLVMVectorType(t, 32);
	if (LLVMIsConstant(v)) {
		V e[32];
		int i;

		for (i = 0; i < 32; i++)
			e[i] = v;
		return LLVMConstVector(e, 32);
	}
	u = LLVMGetPoison(vt);
	z = LLVMBuildInsertElement(j->b, u, v, c32(j, 0), "");
	return LLVMBuildShuffleVector(j->b, z, u, LLVMConstNull(LLVMVectorType(j->i32, 32)), "");
}

V call_intr(struct jit *j, const char *name, Ty *over, unsigned int nover, V *args, unsigned int n)
{
	unsigned int id = LLVMLookupIntrinsicID(name, strlen(name));
	V f;

	if (!id)
		jit_fail(j, name);
	f = LLVMGetIntrinsicDeclaration(j->m, id, over, nover);
	return LLVMBuildCall2(j->b, LLVMGlobalGetValueType(f), f, args, n, "");
}

V intr1(struct jit *j, const char *name, V a)
{
	Ty t = LLVMTypeOf(a);

	return call_intr(j, name, &t, 1, &a, 1);
}

V intr2(struct jit *j, const char *name, V a, V b)
{
	Ty t = LLVMTypeOf(a);
	V args[2] = { a, b };

	return call_intr(j, name, &t, 1, args, 2);
}

V intr3(struct jit *j, const char *name, V a, V b, V c)
{
	Ty t = LLVMTypeOf(a);
	V args[3] = { a, b, c };

	return call_intr(j, name, &t, 1, args, 3);
}

V call_rt(struct jit *j, const char *name, Ty ret, V *args, unsigned int n)
{
	V f = LLVMGetNamedFunction(j->m, name);
	Ty t[8], ft;
	unsigned int i;

	for (i = 0; i < n; i++)
		t[i] = LLVMTypeOf(args[i]);
	ft = LLVMFunctionType(ret, t, n, false);
	if (!f)
		f = LLVMAddFunction(j->m, name, ft);
	return LLVMBuildCall2(j->b, ft, f, args, n, "");
}

V wptr(struct jit *j, size_t off)
{
	V idx = c64(j, off);

	return LLVMBuildInBoundsGEP2(j->b, j->i8, j->w, &idx, 1, "");
}

V load_al(struct jit *j, Ty t, V p, unsigned int align)
{
	V v = LLVMBuildLoad2(j->b, t, p, "");

	LLVMSetAlignment(v, align);
	return v;
}

V store_al(struct jit *j, V v, V p, unsigned int align)
{
	V s = LLVMBuildStore(j->b, v, p);

	LLVMSetAlignment(s, align);
	return s;
}

V wload_var(struct jit *j, Ty t, size_t off)
{
	unsigned int align = off % 64 == 0 ? 64 : off % 8 == 0 ? 8 : 4;

	return load_al(j, t, wptr(j, off), align);
}

V wload(struct jit *j, Ty t, size_t off)
{
	V v = wload_var(j, t, off);

	LLVMSetMetadata(v, j->md_inv, j->inv);
	return v;
}

void wstore(struct jit *j, V v, size_t off)
{
	store_al(j, v, wptr(j, off), off % 64 == 0 ? 64 : off % 8 == 0 ? 8 : 4);
}

LLVMBasicBlockRef new_bb(struct jit *j, const char *name)
{
	return LLVMAppendBasicBlockInContext(j->c, j->fn, name);
}

void at_bb(struct jit *j, LLVMBasicBlockRef bb)
{
	LLVMPositionBuilderAtEnd(j->b, bb);
}

void br_likely(struct jit *j, V cond, LLVMBasicBlockRef yes, LLVMBasicBlockRef no)
{
	V br = LLVMBuildCondBr(j->b, cond, yes, no);

	LLVMSetMetadata(br, j->md_weights, j->weights_likely);
}

/* ---- masks ---- */

V cur_mask(struct jit *j)
{
	return LLVMBuildLoad2(j->b, j->i32, j->mask, "m");
}

V bits_of(struct jit *j, V pred)
{
	return LLVMBuildBitCast(j->b, pred, j->i32, "");
}

V pred_of(struct jit *j, V bits)
{
	return LLVMBuildBitCast(j->b, bits, LLVMVectorType(j->i1, 32), "");
}

V guarded_mask(struct jit *j)
{
	V m = cur_mask(j);

	if (!j->guard)
		return m;
	if (j->guard_vec)
		return LLVMBuildAnd(j->b, m, bits_of(j, j->guard), "");
	return LLVMBuildSelect(j->b, j->guard, m, c32(j, 0), "");
}

/* ---- operands ---- */

const struct opnd *opnd(struct jit *j, unsigned int k)
{
	if (k >= j->in->nopnd)
		ptx_fail(-EINVAL, j->in->line, "%s: operand missing", ptx_op_name[j->in->op]);
	return &j->in->o[k];
}

enum ptype typ(struct jit *j, unsigned int k)
{
	if (k >= j->in->ntypes)
		jit_fail(j, "a type is missing");
	return j->in->t[k];
}

Ty reg_ty(struct jit *j, int reg)
{
	return scalar_ty(j, j->f->b->regtype[reg]);
}

static unsigned int bits_of_ty(Ty t)
{
	switch (LLVMGetTypeKind(t)) {
	case LLVMIntegerTypeKind:
		return LLVMGetIntTypeWidth(t);
	case LLVMFloatTypeKind:
		return 32;
	case LLVMDoubleTypeKind:
		return 64;
	default:
		return 16;
	}
}

/* Reinterprets @v (scalar type @from) as @to; narrows or widens integers by sign. */
static V reinterpret(struct jit *j, V v, Ty from, Ty to, bool sign)
{
	unsigned int fb = bits_of_ty(from), tb = bits_of_ty(to);
	bool vec = LLVMGetTypeKind(LLVMTypeOf(v)) == LLVMVectorTypeKind;
	Ty fi, ti;

	if (from == to)
		return v;
	if (from == j->i1 || to == j->i1)
		jit_fail(j, "a predicate where a number is wanted, or the reverse");
	fi = LLVMIntTypeInContext(j->c, fb);
	ti = LLVMIntTypeInContext(j->c, tb);
	if (from != fi)
		v = LLVMBuildBitCast(j->b, v, jty_n(j, fi, vec), "");
	if (fb > tb)
		v = LLVMBuildTrunc(j->b, v, jty_n(j, ti, vec), "");
	else if (fb < tb)
		v = sign ? LLVMBuildSExt(j->b, v, jty_n(j, ti, vec), "") :
			   LLVMBuildZExt(j->b, v, jty_n(j, ti, vec), "");
	if (to != ti)
		v = LLVMBuildBitCast(j->b, v, jty_n(j, to, vec), "");
	return v;
}

/* ---- registers ---- */

static V slot_ptr(struct jit *j, uint32_t reg)
{
	V idx = c64(j, j->slot[reg]);

	return LLVMBuildInBoundsGEP2(j->b, j->i8, j->slots, &idx, 1, "");
}

static V slot_load(struct jit *j, uint32_t r)
{
	Ty t = reg_ty(j, r);
	V p = slot_ptr(j, r), v;

	if (j->f->uniform[r]) {
		v = load_al(j, t == j->i1 ? j->i32 : t, p, 16);
		if (t == j->i1)
			v = LLVMBuildTrunc(j->b, v, j->i1, "");
	} else if (t == j->i1) {
		v = pred_of(j, load_al(j, j->i32, p, 16));
	} else {
		v = load_al(j, LLVMVectorType(t, 32), p, 64);
	}
	return v;
}

void slot_store(struct jit *j, uint32_t r, V v, bool all)
{
	Ty t = reg_ty(j, r);
	V p = slot_ptr(j, r), mask = NULL;

	if (j->f->uniform[r]) {
		store_al(j, t == j->i1 ? LLVMBuildZExt(j->b, v, j->i32, "") : v, p, 16);
		return;
	}
	if (!all)
		mask = cur_mask(j);
	if (t == j->i1) {
		V bits = bits_of(j, v);

		if (mask) {
			V old = load_al(j, j->i32, p, 16);

			old = LLVMBuildAnd(j->b, old, LLVMBuildNot(j->b, mask, ""), "");
			bits = LLVMBuildOr(j->b, LLVMBuildAnd(j->b, bits, mask, ""), old, "");
		}
		store_al(j, bits, p, 16);
	} else {
		/* not a masked store: CPUs do not forward those, and the next load would wait */
		if (mask)
			v = LLVMBuildSelect(j->b, pred_of(j, mask), v,
					    load_al(j, LLVMTypeOf(v), p, 64), "");
		store_al(j, v, p, 64);
	}
}

static V read_reg(struct jit *j, int reg)
{
	if (j->cached[reg] != j->epoch) {
		if (j->slot[reg] == NO_SLOT)
			j->cache[reg] = LLVMBuildLoad2(j->b, jty_n(j, reg_ty(j, reg),
								   !j->f->uniform[reg]),
						       jit_reg_alloca(j, reg), "");
		else
			j->cache[reg] = slot_load(j, reg);
		j->cached[reg] = j->epoch;
	}
	return j->cache[reg];
}

/* Slots get new values at the end of the block, once, and only if a later block reads them. */
static void write_reg(struct jit *j, int reg, V v)
{
	if (bit_get(j->live_out, reg) && j->dirty[reg] != j->epoch) {
		j->dirty[reg] = j->epoch;
		j->dirty_regs[j->ndirty++] = reg;
	}
	j->cache[reg] = v;
	j->cached[reg] = j->epoch;
}

void write_back(struct jit *j)
{
	uint32_t k;

	for (k = 0; k < j->ndirty; k++) {
		uint32_t r = j->dirty_regs[k];

		if (j->slot[r] != NO_SLOT)
			slot_store(j, r, j->cache[r], false);
		else
			LLVMBuildStore(j->b, j->cache[r], jit_reg_alloca(j, r));
	}
	j->ndirty = 0;
}

V get_reg(struct jit *j, int reg, enum ptype t, bool neg)
{
	Ty rt = reg_ty(j, reg), want = scalar_ty(j, t);
	bool uni = j->f->uniform[reg];
	V v = read_reg(j, reg);

	if (j->vec && uni)
		v = splat(j, v);
	else if (!j->vec && !uni)
		jit_fail(j, "internal: a lane's value in uniform code");
	v = reinterpret(j, v, rt, want, ptype_is_signed(t));
	if (neg && want == j->i1)
		v = LLVMBuildNot(j->b, v, "");
	else if (neg && (want == j->f32 || want == j->f64))
		v = LLVMBuildFNeg(j->b, v, "");
	else if (neg)
		v = LLVMBuildNeg(j->b, v, "");
	return v;
}

#define WOFF(f) offsetof(struct rt_warp, f)

static V cluster_size(struct jit *j, int dim)
{
	return wload(j, j->i32, WOFF(cluster) + 4 * dim);
}

static V cluster_ctaid(struct jit *j, int dim)
{
	return LLVMBuildURem(j->b, wload(j, j->i32, WOFF(ctaid) + 4 * dim), cluster_size(j, dim), "");
}

V cluster_rank(struct jit *j)
{
	V r = LLVMBuildMul(j->b, cluster_ctaid(j, 2), cluster_size(j, 1), "");

	r = LLVMBuildAdd(j->b, r, cluster_ctaid(j, 1), "");
	r = LLVMBuildMul(j->b, r, cluster_size(j, 0), "");
	return LLVMBuildAdd(j->b, r, cluster_ctaid(j, 0), "");
}

static V get_sreg(struct jit *j, int s)
{
	V v;

	switch (s) {
	case SR_tid_x: case SR_tid_y: case SR_tid_z:
		return wload(j, LLVMVectorType(j->i32, 32), WOFF(tid) + 128 * (s - SR_tid_x));
	case SR_ntid_x: case SR_ntid_y: case SR_ntid_z:
		return wload(j, j->i32, WOFF(ntid) + 4 * (s - SR_ntid_x));
	case SR_ctaid_x: case SR_ctaid_y: case SR_ctaid_z:
		return wload(j, j->i32, WOFF(ctaid) + 4 * (s - SR_ctaid_x));
	case SR_nctaid_x: case SR_nctaid_y: case SR_nctaid_z:
		return wload(j, j->i32, WOFF(nctaid) + 4 * (s - SR_nctaid_x));
	case SR_laneid:
		return iota(j, j->i32, 1);
	case SR_lanemask_eq:
		return LLVMBuildShl(j->b, splat(j, c32(j, 1)), iota(j, j->i32, 1), "");
	case SR_lanemask_lt:
	case SR_lanemask_le:
	case SR_lanemask_gt:
	case SR_lanemask_ge: {
		V e[32];
		int i;

		for (i = 0; i < 32; i++) {
			uint32_t lt = (1u << i) - 1, eq = 1u << i;

			e[i] = c32(j, s == SR_lanemask_lt ? lt : s == SR_lanemask_le ? lt | eq :
				   s == SR_lanemask_gt ? ~(lt | eq) : ~lt);
		}
		return LLVMConstVector(e, 32);
	}
	case SR_warpid:
		return wload(j, j->i32, WOFF(warpid));
	case SR_nwarpid:
		return wload(j, j->i32, WOFF(nwarpid));
	case SR_smid:
		return wload(j, j->i32, WOFF(smid));
	case SR_nsmid:
		return wload(j, j->i32, WOFF(nsmid));
	case SR_gridid:
		return wload(j, j->i64, WOFF(gridid));
	case SR_dynamic_smem_size:
		return wload(j, j->i32, WOFF(dyn_shared));
	case SR_total_smem_size:
	case SR_aggr_smem_size:
		return wload(j, j->i32, WOFF(total_shared));
	case SR_envreg1:
		return wload(j, j->i32, WOFF(envreg));
	case SR_envreg2:
		return wload(j, j->i32, WOFF(envreg) + 4);
	case SR_clock: case SR_clock_hi: case SR_clock64:
	case SR_globaltimer: case SR_globaltimer_lo: case SR_globaltimer_hi:
		v = c32(j, s >= SR_globaltimer);
		v = call_rt(j, "rt_clock", j->i64, &v, 1);
		if (s == SR_clock_hi || s == SR_globaltimer_hi)
			v = LLVMBuildLShr(j->b, v, c64(j, 32), "");
		if (s != SR_clock64 && s != SR_globaltimer)
			v = LLVMBuildTrunc(j->b, v, j->i32, "");
		return v;
	case SR_nclusterid_x: case SR_nclusterid_y: case SR_nclusterid_z:
		v = wload(j, j->i32, WOFF(nctaid) + 4 * (s - SR_nclusterid_x));
		return LLVMBuildUDiv(j->b, v, cluster_size(j, s - SR_nclusterid_x), "");
	case SR_clusterid_x: case SR_clusterid_y: case SR_clusterid_z:
		v = wload(j, j->i32, WOFF(ctaid) + 4 * (s - SR_clusterid_x));
		return LLVMBuildUDiv(j->b, v, cluster_size(j, s - SR_clusterid_x), "");
	case SR_cluster_ctaid_x: case SR_cluster_ctaid_y: case SR_cluster_ctaid_z:
		return cluster_ctaid(j, s - SR_cluster_ctaid_x);
	case SR_cluster_nctaid_x: case SR_cluster_nctaid_y: case SR_cluster_nctaid_z:
		return cluster_size(j, s - SR_cluster_nctaid_x);
	case SR_cluster_ctarank:
		return cluster_rank(j);
	case SR_cluster_nctarank:
		v = LLVMBuildMul(j->b, cluster_size(j, 0), cluster_size(j, 1), "");
		return LLVMBuildMul(j->b, v, cluster_size(j, 2), "");
	case SR_cluster_nctaid_w: case SR_nclusterid_w:
		return c32(j, 1);
	case SR_current_graph_exec:
		return c64(j, 0);
	case SR_is_explicit_cluster:
		v = wload(j, j->i32, WOFF(explicit_cluster));
		return LLVMBuildICmp(j->b, LLVMIntNE, v, c32(j, 0), "");
	case SR_ntid_w: case SR_nctaid_w:
		return c32(j, 1);
	case SR_reserved_smem_offset_cap:
		return c32(j, RT_SHARED_RESERVED);
	case SR_reserved_smem_offset_begin: case SR_reserved_smem_offset_end:
	case SR_reserved_smem_offset_0: case SR_reserved_smem_offset_1:
		v = LLVMBuildTrunc(j->b, wload(j, j->i64, WOFF(shared_size)), j->i32, "");
		if (s == SR_reserved_smem_offset_end)
			return v;
		return LLVMBuildSub(j->b, v, c32(j, s == SR_reserved_smem_offset_1 ?
					       RT_SHARED_RESERVED / 2 : RT_SHARED_RESERVED), "");
	}
	return c32(j, 0);
}

static V var_addr(struct jit *j, const struct opnd *o)
{
	const struct pvar *v = o->var;
	V a;

	switch (v->space) {
	case V_GLOBAL:
	case V_CONST:
		a = wload(j, j->ptr, WOFF(vars));
		{
			V idx = c64(j, v->index);

			a = LLVMBuildInBoundsGEP2(j->b, j->i64, a, &idx, 1, "");
			a = load_al(j, j->i64, a, 8);
			LLVMSetMetadata(a, j->md_inv, j->inv);
		}
		return LLVMBuildAdd(j->b, a, c64(j, o->imm), "");
	case V_SHARED:
		return c64(j, v->offset + o->imm);
	case V_LOCAL:
		return LLVMBuildAdd(j->b, j->lsp, c64(j, v->offset + o->imm), "");
	case V_PARAM:		/* no address space of its own: generic */
		return LLVMBuildAdd(j->b, j->lsp,
				    c64(j, PTX_VA_LOCAL + v->offset + o->imm), "");
	case V_ENTRY_PARAM:
		return c64(j, PTX_VA_PARAM + v->offset + o->imm);
	}
	jit_fail(j, "address of a variable");
}

V get(struct jit *j, const struct opnd *o, enum ptype t)
{
	Ty want = scalar_ty(j, t);
	V v;

	switch (o->kind) {
	case O_REG:
		return get_reg(j, o->reg, t, o->neg);
	case O_IMM:
		if (want == j->f32 || want == j->f64)
			v = LLVMConstReal(want, (double)o->imm);
		else if (want == j->i1)
			v = LLVMConstInt(want, o->imm != 0, false);
		else if (want == j->i128) {
			uint64_t w[2] = { o->imm, o->imm >> 63 };

			v = LLVMConstIntOfArbitraryPrecision(want, 2, w);
		} else
			v = LLVMConstInt(want, o->imm, false);
		break;
	case O_F32:
	case O_F64:
		v = LLVMConstInt(o->kind == O_F32 ? j->i32 : j->i64, o->imm, false);
		v = LLVMConstBitCast(v, o->kind == O_F32 ? j->f32 : j->f64);
		if (want == j->f32 && o->kind == O_F64) {
			uint64_t bits = o->imm;
			uint32_t fb;
			double d;
			float f;

			memcpy(&d, &bits, 8);
			f = d;
			memcpy(&fb, &f, 4);
			v = LLVMConstBitCast(c32(j, fb), j->f32);
		} else if (want == j->f64 && o->kind == O_F32) {
			v = LLVMBuildFPExt(j->b, v, j->f64, "");
		} else {
			v = reinterpret(j, v, o->kind == O_F32 ? j->f32 : j->f64, want, false);
		}
		break;
	case O_SREG:
		v = get_sreg(j, o->sreg);
		{
			Ty have = LLVMTypeOf(v);

			if (LLVMGetTypeKind(have) == LLVMVectorTypeKind)
				have = LLVMGetElementType(have);
			v = reinterpret(j, v, have, want, false);
		}
		break;
	case O_VAR:
		v = reinterpret(j, var_addr(j, o), j->i64, want, false);
		break;
	case O_FUNC:
		v = reinterpret(j, c64(j, ptx_func_value(o->func->ordinal)), j->i64, want, false);
		break;
	case O_NAME:
		ptx_fail(-EINVAL, j->in->line, "%s is not defined", o->name);
	default:
		jit_fail(j, "an operand of a kind that is not supported here");
	}
	return j->vec ? splat(j, v) : v;
}

V get_pred(struct jit *j, const struct opnd *o)
{
	return get(j, o, T_PRED);
}

static V blend(struct jit *j, V v, V old)
{
	V g = j->guard;

	if (!g)
		return v;
	return LLVMBuildSelect(j->b, g, v, old, "");
}

void set_reg(struct jit *j, int reg, V v, enum ptype t)
{
	Ty rt = reg_ty(j, reg), have = LLVMTypeOf(v);
	bool uni = j->f->uniform[reg];

	if (LLVMGetTypeKind(have) == LLVMVectorTypeKind)
		have = LLVMGetElementType(have);
	v = reinterpret(j, v, have, rt, ptype_is_signed(t));
	if (!uni)
		v = splat(j, v);
	else if (LLVMGetTypeKind(LLVMTypeOf(v)) == LLVMVectorTypeKind)
		jit_fail(j, "internal: a vector for a uniform register");
	if (j->guard && !j->in->whole)
		v = blend(j, v, read_reg(j, reg));
	write_reg(j, reg, v);
}

void set(struct jit *j, const struct opnd *o, V v, enum ptype t)
{
	if (o->kind == O_NONE)
		return;
	if (o->kind != O_REG)
		ptx_fail(-EINVAL, j->in->line, "%s: the result must be a register",
			 ptx_op_name[j->in->op]);
	set_reg(j, o->reg, v, t);
}

struct uni_ctx {
	struct jit *j;
	bool varying;
};

static void uni_reg(void *arg, int reg, bool def)
{
	struct uni_ctx *u = arg;

	(void)def;
	if (!u->j->f->uniform[reg])
		u->varying = true;
}

static bool has_lane_sreg(const struct opnd *o)
{
	unsigned int k;

	if (o->kind == O_SREG && (o->sreg == SR_laneid || (o->sreg >= SR_tid_x &&
	    o->sreg <= SR_tid_z) || (o->sreg >= SR_lanemask_eq && o->sreg <= SR_lanemask_gt)))
		return true;
	for (k = 0; k < o->nvec; k++)
		if (has_lane_sreg(&o->vec[k]))
			return true;
	return false;
}

/* Whether nothing that the instruction reads or writes differs between lanes. */
bool insn_uniform(struct jit *j, const struct insn *i)
{
	struct uni_ctx u = { .j = j };
	unsigned int k;

	insn_regs(i, uni_reg, &u);
	for (k = 0; k < i->nopnd; k++)
		if (has_lane_sreg(&i->o[k]))
			return false;
	return !u.varying;
}

bool opnd_uniform(struct jit *j, const struct opnd *o)
{
	if (has_lane_sreg(o))
		return false;
	if ((o->kind == O_REG || o->kind == O_MEM) && o->reg >= 0)
		return j->f->uniform[o->reg];
	return true;
}

/* ---- operands and results in scratch memory ---- */

void put_x(struct jit *j, unsigned int k, V v)
{
	wstore(j, v, offsetof(struct rt_warp, x) + k * 1024);
}

V get_y(struct jit *j, unsigned int e, Ty scalar)
{
	unsigned int size = bits_of_ty(scalar) / 8;

	return wload_var(j, jty(j, scalar), offsetof(struct rt_warp, y) + (size_t)e * 32 * size);
}

V fop(struct jit *j, int op, int mode, V a, V b, V c, Ty ret)
{
	V args[5] = { j->w, j->vec ? cur_mask(j) : c32(j, 1), c32(j, op), c32(j, mode),
		      c32(j, j->vec ? 32 : 1) };

	put_x(j, 0, a);
	if (b)
		put_x(j, 1, b);
	if (c)
		put_x(j, 2, c);
	call_rt(j, "rt_fop", j->voidt, args, 5);
	return get_y(j, 0, ret);
}
