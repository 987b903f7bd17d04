// SPDX-License-Identifier: Apache-2.0
/*
 * alu.c - integer, logic, comparison and move instructions.
 */
#include <errno.h>
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)

static bool is_x2(enum ptype t)
{
	return t == T_F16X2 || t == T_BF16X2 || t == T_U16X2 || t == T_S16X2;
}

static V icmp(struct jit *j, LLVMIntPredicate p, V a, V b)
{
	return LLVMBuildICmp(B(j), p, a, b, "");
}

static V sel(struct jit *j, V c, V a, V b)
{
	return LLVMBuildSelect(B(j), c, a, b, "");
}

static V zext(struct jit *j, V a, Ty t)
{
	return LLVMBuildZExt(B(j), a, jty(j, t), "");
}

static V sext(struct jit *j, V a, Ty t)
{
	return LLVMBuildSExt(B(j), a, jty(j, t), "");
}

static V trunc_to(struct jit *j, V a, Ty t)
{
	return LLVMBuildTrunc(B(j), a, jty(j, t), "");
}

static Ty int_ty(struct jit *j, unsigned int bits)
{
	return LLVMIntTypeInContext(j->c, bits);
}

/* ---- carry chains: the flag is kept per lane ---- */

static V get_cc(struct jit *j)
{
	return pred_of(j, wload_var(j, j->i32, offsetof(struct rt_warp, cc)));
}

static void set_cc(struct jit *j, V v)
{
	v = sel(j, pred_of(j, guarded_mask(j)), v, get_cc(j));
	wstore(j, bits_of(j, v), offsetof(struct rt_warp, cc));
}

static V add_carry(struct jit *j, V a, V b, Ty s, bool in, bool out)
{
	V r = LLVMBuildAdd(B(j), a, b, ""), c = icmp(j, LLVMIntULT, r, a);

	if (in) {
		V r2 = LLVMBuildAdd(B(j), r, zext(j, get_cc(j), s), "");

		c = LLVMBuildOr(B(j), c, icmp(j, LLVMIntULT, r2, r), "");
		r = r2;
	}
	if (out)
		set_cc(j, c);
	return r;
}

/*
 * The flag is the carry of a + ~b + 1, which is set if there was no borrow. The manual defines it
 * as the borrow. That only matters where a chain mixes additions and subtractions: nvcc's chains
 * for division do, and need the carry.
 */
static V sub_carry(struct jit *j, V a, V b, Ty s, bool in, bool out)
{
	V r = LLVMBuildSub(B(j), a, b, ""), borrow = icmp(j, LLVMIntULT, a, b);

	if (in) {
		V k = zext(j, LLVMBuildNot(B(j), get_cc(j), ""), s);
		V r2 = LLVMBuildSub(B(j), r, k, "");

		borrow = LLVMBuildOr(B(j), borrow, icmp(j, LLVMIntULT, r, k), "");
		r = r2;
	}
	if (out)
		set_cc(j, LLVMBuildNot(B(j), borrow, ""));
	return r;
}

/* ---- multiplication ---- */

static V mul_hi(struct jit *j, V a, V b, enum ptype t)
{
	unsigned int bits = ptype_size(t) * 8;
	Ty w = int_ty(j, bits * 2), s = int_ty(j, bits);
	bool sg = ptype_is_signed(t);

	a = sg ? sext(j, a, w) : zext(j, a, w);
	b = sg ? sext(j, b, w) : zext(j, b, w);
	a = LLVMBuildMul(B(j), a, b, "");
	a = LLVMBuildLShr(B(j), a, kint(j, w, bits), "");
	return trunc_to(j, a, s);
}

static V mul_wide(struct jit *j, V a, V b, enum ptype t)
{
	Ty w = int_ty(j, ptype_size(t) * 16);

	a = ptype_is_signed(t) ? sext(j, a, w) : zext(j, a, w);
	b = ptype_is_signed(t) ? sext(j, b, w) : zext(j, b, w);
	return LLVMBuildMul(B(j), a, b, "");
}

static enum ptype wide_of(enum ptype t)
{
	switch (t) {
	case T_U16: return T_U32;
	case T_S16: return T_S32;
	case T_U32: return T_U64;
	case T_S32: return T_S64;
	default: return T_NONE;
	}
}

static V ext24(struct jit *j, V a, bool sg)
{
	a = LLVMBuildShl(B(j), a, kint(j, j->i32, 8), "");
	return sg ? LLVMBuildAShr(B(j), a, kint(j, j->i32, 8), "") :
		    LLVMBuildLShr(B(j), a, kint(j, j->i32, 8), "");
}

static void emit_mul_int(struct jit *j, bool mad)
{
	enum ptype t = typ(j, 0), w;
	V a = get(j, opnd(j, 1), t), b = get(j, opnd(j, 2), t), r, c;
	bool cc = insn_has(j->in, M_cc), cin = j->in->op == OP_madc;
	bool is24 = j->in->op == OP_mul24 || j->in->op == OP_mad24;

	if (is24) {
		a = ext24(j, a, ptype_is_signed(t));
		b = ext24(j, b, ptype_is_signed(t));
	}
	if (insn_has(j->in, M_wide)) {
		w = wide_of(t);
		if (!w)
			jit_fail(j, "type");
		r = mul_wide(j, a, b, t);
		t = w;
	} else if (insn_has(j->in, M_hi)) {
		if (is24) {
			r = mul_wide(j, a, b, t);
			r = LLVMBuildLShr(B(j), r, kint(j, j->i64, 16), "");
			r = trunc_to(j, r, j->i32);
		} else {
			r = mul_hi(j, a, b, t);
		}
	} else {
		r = LLVMBuildMul(B(j), a, b, "");
	}
	if (mad) {
		c = get(j, opnd(j, 3), t);
		if (cc || cin) {
			r = add_carry(j, r, c, scalar_ty(j, t), cin, cc);
		} else if (insn_has(j->in, M_sat)) {
			r = intr2(j, "llvm.sadd.sat", r, c);
		} else {
			r = LLVMBuildAdd(B(j), r, c, "");
		}
	}
	set(j, opnd(j, 0), r, t);
}

/* ---- division: 32 bits through exact double arithmetic, 64 bits in C ---- */

static V div_rem(struct jit *j, V a, V b, enum ptype t, bool rem)
{
	bool sg = ptype_is_signed(t);
	Ty s = scalar_ty(j, t);
	unsigned int bits = ptype_size(t) * 8;
	V q, zero, fa, fb;

	if (bits == 64) {
		int op = rem ? (sg ? RT_F_REMS64 : RT_F_REMU64) : (sg ? RT_F_DIVS64 : RT_F_DIVU64);

		return fop(j, op, 0, a, b, NULL, j->i64);
	}
	zero = icmp(j, LLVMIntEQ, b, kint(j, s, 0));
	if (sg) {
		fa = LLVMBuildSIToFP(B(j), a, jty(j, j->f64), "");
		fb = LLVMBuildSIToFP(B(j), b, jty(j, j->f64), "");
	} else {
		fa = LLVMBuildUIToFP(B(j), a, jty(j, j->f64), "");
		fb = LLVMBuildUIToFP(B(j), b, jty(j, j->f64), "");
	}
	fb = sel(j, zero, kfp(j, j->f64, 1), fb);
	q = LLVMBuildFDiv(B(j), fa, fb, "");
	if (sg)		/* INT_MIN / -1 is 2^31: wraps */
		q = LLVMBuildFPToSI(B(j), q, jty(j, j->i64), "");
	else
		q = LLVMBuildFPToUI(B(j), q, jty(j, j->i64), "");
	q = trunc_to(j, q, s);
	q = sel(j, zero, kint(j, s, ~0ull), q);		/* the hardware's result */
	if (!rem)
		return q;
	return sel(j, zero, a, LLVMBuildSub(B(j), a, LLVMBuildMul(B(j), q, b, ""), ""));
}

/* ---- shifts ---- */

static V shift(struct jit *j, int op, V a, V n, enum ptype t)
{
	unsigned int bits = ptype_size(t) * 8;
	Ty s = scalar_ty(j, t);
	V big = icmp(j, LLVMIntUGE, n, kint(j, j->i32, bits)), r, m;

	m = bits > 32 ? zext(j, n, s) : bits < 32 ? trunc_to(j, n, s) : n;
	if (op == OP_shr && ptype_is_signed(t)) {
		m = sel(j, big, kint(j, s, bits - 1), m);
		return LLVMBuildAShr(B(j), a, m, "");
	}
	r = op == OP_shl ? LLVMBuildShl(B(j), a, m, "") : LLVMBuildLShr(B(j), a, m, "");
	return sel(j, big, kint(j, s, 0), r);
}

static void emit_shf(struct jit *j)
{
	V a = get(j, opnd(j, 1), T_B32), b = get(j, opnd(j, 2), T_B32);
	V n = get(j, opnd(j, 3), T_B32), w, r;
	bool left = insn_has(j->in, M_l);

	if (insn_has(j->in, M_wrap))
		n = LLVMBuildAnd(B(j), n, kint(j, j->i32, 31), "");
	else
		n = intr2(j, "llvm.umin", n, kint(j, j->i32, 32));
	w = LLVMBuildOr(B(j), zext(j, a, j->i64),
			LLVMBuildShl(B(j), zext(j, b, j->i64), kint(j, j->i64, 32), ""), "");
	n = zext(j, n, j->i64);
	if (left) {
		r = LLVMBuildShl(B(j), w, n, "");
		r = LLVMBuildLShr(B(j), r, kint(j, j->i64, 32), "");
	} else {
		r = LLVMBuildLShr(B(j), w, n, "");
	}
	set(j, opnd(j, 0), trunc_to(j, r, j->i32), T_B32);
}

/* ---- bits ---- */

static void emit_bfe(struct jit *j)
{
	enum ptype t = typ(j, 0);
	unsigned int bits = ptype_size(t) * 8;
	Ty s = scalar_ty(j, t);
	V a = get(j, opnd(j, 1), t), p = get(j, opnd(j, 2), T_U32), n = get(j, opnd(j, 3), T_U32);
	V r, lim, big, k;

	/* shifts the field to the top, then down, which fills with the sign (or zero) */
	p = LLVMBuildAnd(B(j), p, kint(j, j->i32, 255), "");
	n = LLVMBuildAnd(B(j), n, kint(j, j->i32, 255), "");
	r = shift(j, OP_shr, a, p, t);		/* sign fills when signed */
	big = icmp(j, LLVMIntUGE, n, kint(j, j->i32, bits));
	lim = LLVMBuildSub(B(j), kint(j, j->i32, bits), n, "");
	lim = sel(j, big, kint(j, j->i32, 0), lim);
	k = bits == 64 ? zext(j, lim, s) : lim;
	/* n == 0 would shift by the width, which is undefined: a select replaces it */
	k = LLVMBuildAnd(B(j), k, kint(j, s, bits - 1), "");
	r = LLVMBuildShl(B(j), r, k, "");
	r = ptype_is_signed(t) ? LLVMBuildAShr(B(j), r, k, "") : LLVMBuildLShr(B(j), r, k, "");
	r = sel(j, icmp(j, LLVMIntEQ, n, kint(j, j->i32, 0)), kint(j, s, 0), r);
	set(j, opnd(j, 0), r, t);
}

static void emit_bfi(struct jit *j)
{
	enum ptype t = typ(j, 0);
	unsigned int bits = ptype_size(t) * 8;
	enum ptype ut = bits == 64 ? T_U64 : T_U32;
	Ty s = scalar_ty(j, t);
	V a = get(j, opnd(j, 1), t), b = get(j, opnd(j, 2), t);
	V p = get(j, opnd(j, 3), T_U32), n = get(j, opnd(j, 4), T_U32), m;

	p = LLVMBuildAnd(B(j), p, kint(j, j->i32, 255), "");
	n = LLVMBuildAnd(B(j), n, kint(j, j->i32, 255), "");
	m = shift(j, OP_shl, kint(j, s, ~0ull), n, ut);
	m = LLVMBuildNot(B(j), m, "");
	m = shift(j, OP_shl, m, p, ut);
	a = shift(j, OP_shl, a, p, ut);
	a = LLVMBuildAnd(B(j), a, m, "");
	b = LLVMBuildAnd(B(j), b, LLVMBuildNot(B(j), m, ""), "");
	set(j, opnd(j, 0), LLVMBuildOr(B(j), a, b, ""), t);
}

static void emit_bmsk(struct jit *j)
{
	V p = get(j, opnd(j, 1), T_U32), n = get(j, opnd(j, 2), T_U32), m;

	if (insn_has(j->in, M_wrap)) {
		p = LLVMBuildAnd(B(j), p, kint(j, j->i32, 31), "");
		n = LLVMBuildAnd(B(j), n, kint(j, j->i32, 31), "");
	}
	m = LLVMBuildNot(B(j), shift(j, OP_shl, kint(j, j->i32, ~0ull), n, T_U32), "");
	set(j, opnd(j, 0), shift(j, OP_shl, m, p, T_U32), T_U32);
}

static V clz(struct jit *j, V a)
{
	Ty t = LLVMTypeOf(a);
	V args[2] = { a, LLVMConstInt(j->i1, 0, false) };

	return call_intr(j, "llvm.ctlz", &t, 1, args, 2);
}

static V to32(struct jit *j, V a, unsigned int bits)
{
	return bits == 64 ? trunc_to(j, a, j->i32) : a;
}

static void emit_bfind(struct jit *j)
{
	enum ptype t = typ(j, 0);
	unsigned int bits = ptype_size(t) * 8;
	Ty s = scalar_ty(j, t);
	V a = get(j, opnd(j, 1), t), z, r;

	if (ptype_is_signed(t))
		a = LLVMBuildXor(B(j), a, LLVMBuildAShr(B(j), a, kint(j, s, bits - 1), ""), "");
	z = to32(j, clz(j, a), bits);
	r = insn_has(j->in, M_shiftamt) ? z : LLVMBuildSub(B(j), kint(j, j->i32, bits - 1), z, "");
	r = sel(j, icmp(j, LLVMIntEQ, a, kint(j, s, 0)), kint(j, j->i32, ~0ull), r);
	set(j, opnd(j, 0), r, T_U32);
}

/* prmt.b32: bytes of {b,a} by selectors. */
static void emit_prmt(struct jit *j)
{
	V a = get(j, opnd(j, 1), T_B32), b = get(j, opnd(j, 2), T_B32), c, r = NULL, w, c3;
	enum ptx_mod mode = M_UNKNOWN;
	unsigned int k;

	for (k = 0; k < j->in->nmod; k++)
		if (!j->in->mtype[k])
			mode = j->in->mods[k];
	c = get(j, opnd(j, 3), T_B32);
	w = LLVMBuildOr(B(j), zext(j, a, j->i64),
			LLVMBuildShl(B(j), zext(j, b, j->i64), kint(j, j->i64, 32), ""), "");
	c3 = LLVMBuildAnd(B(j), c, kint(j, j->i32, 3), "");
	for (k = 0; k < 4; k++) {
		V s, sign, byte;

		switch (mode) {
		case M_f4e:
			s = LLVMBuildAdd(B(j), c3, kint(j, j->i32, k), "");
			break;
		case M_b4e:	/* 0: 5 6 7 0 from the top, that is k -> c - k mod 8 */
			s = LLVMBuildAnd(B(j), LLVMBuildSub(B(j), c3, kint(j, j->i32, k), ""),
					 kint(j, j->i32, 7), "");
			break;
		case M_rc8:
			s = c3;
			break;
		case M_ecl:
			s = intr2(j, "llvm.umax", c3, kint(j, j->i32, k));
			break;
		case M_ecr:
			s = intr2(j, "llvm.umin", c3, kint(j, j->i32, k));
			break;
		case M_rc16:
			s = LLVMBuildAnd(B(j), LLVMBuildShl(B(j), c3, kint(j, j->i32, 1), ""),
					 kint(j, j->i32, 2), "");
			s = LLVMBuildAdd(B(j), s, kint(j, j->i32, k & 1), "");
			break;
		default:
			s = LLVMBuildLShr(B(j), c, kint(j, j->i32, 4 * k), "");
			s = LLVMBuildAnd(B(j), s, kint(j, j->i32, 15), "");
		}
		byte = LLVMBuildAnd(B(j), s, kint(j, j->i32, 7), "");
		byte = LLVMBuildShl(B(j), byte, kint(j, j->i32, 3), "");
		byte = LLVMBuildLShr(B(j), w, zext(j, byte, j->i64), "");
		byte = trunc_to(j, byte, j->i8);
		if (mode == M_UNKNOWN) {
			sign = LLVMBuildAShr(B(j), byte, kint(j, j->i8, 7), "");
			byte = sel(j, icmp(j, LLVMIntUGE, s, kint(j, j->i32, 8)), sign, byte);
		}
		byte = LLVMBuildShl(B(j), zext(j, byte, j->i32), kint(j, j->i32, 8 * k), "");
		r = r ? LLVMBuildOr(B(j), r, byte, "") : byte;
	}
	set(j, opnd(j, 0), r, T_B32);
}

static void emit_lop3(struct jit *j)
{
	V a = get(j, opnd(j, 1), T_B32), b = get(j, opnd(j, 2), T_B32), c = get(j, opnd(j, 3), T_B32);
	V r = kint(j, j->i32, 0), na, nb, nc, p;
	unsigned int lut, k;

	if (opnd(j, 4)->kind != O_IMM)
		jit_fail(j, "the table must be a constant");
	lut = j->in->o[4].imm & 255;
	na = LLVMBuildNot(B(j), a, "");
	nb = LLVMBuildNot(B(j), b, "");
	nc = LLVMBuildNot(B(j), c, "");
	for (k = 0; k < 8; k++)
		if (lut >> k & 1) {
			p = LLVMBuildAnd(B(j), k & 4 ? a : na, k & 2 ? b : nb, "");
			p = LLVMBuildAnd(B(j), p, k & 1 ? c : nc, "");
			r = LLVMBuildOr(B(j), r, p, "");
		}
	if (j->in->nopnd > 5 && j->in->o[0].reg2 >= 0) {
		V q = get_pred(j, opnd(j, 5)), z = icmp(j, LLVMIntNE, r, kint(j, j->i32, 0));

		z = insn_has(j->in, M_and) ? LLVMBuildAnd(B(j), z, q, "") : LLVMBuildOr(B(j), z, q, "");
		set_reg(j, j->in->o[0].reg2, z, T_PRED);
	}
	set(j, opnd(j, 0), r, T_B32);
}

static void emit_dp(struct jit *j)
{
	bool au = typ(j, 0) == T_U32, bu = typ(j, 1) == T_U32, dp2 = j->in->op == OP_dp2a;
	V a = get(j, opnd(j, 1), T_B32), b = get(j, opnd(j, 2), T_B32), r = get(j, opnd(j, 3), T_B32);
	unsigned int k, n = dp2 ? 2 : 4;

	for (k = 0; k < n; k++) {
		unsigned int ab = dp2 ? 16 : 8, bk = dp2 && insn_has(j->in, M_hi) ? k + 2 : k;
		V x = LLVMBuildShl(B(j), a, kint(j, j->i32, 32 - ab * (k + 1)), "");
		V y = LLVMBuildShl(B(j), b, kint(j, j->i32, 24 - 8 * bk), "");

		x = au ? LLVMBuildLShr(B(j), x, kint(j, j->i32, 32 - ab), "") :
			 LLVMBuildAShr(B(j), x, kint(j, j->i32, 32 - ab), "");
		y = bu ? LLVMBuildLShr(B(j), y, kint(j, j->i32, 24), "") :
			 LLVMBuildAShr(B(j), y, kint(j, j->i32, 24), "");
		r = LLVMBuildAdd(B(j), r, LLVMBuildMul(B(j), x, y, ""), "");
	}
	set(j, opnd(j, 0), r, T_B32);
}

/* ---- comparison ---- */

static LLVMIntPredicate int_pred(struct jit *j, enum ptx_mod m, bool sg)
{
	switch (m) {
	case M_eq: return LLVMIntEQ;
	case M_ne: return LLVMIntNE;
	case M_lt: return sg ? LLVMIntSLT : LLVMIntULT;
	case M_le: return sg ? LLVMIntSLE : LLVMIntULE;
	case M_gt: return sg ? LLVMIntSGT : LLVMIntUGT;
	case M_ge: return sg ? LLVMIntSGE : LLVMIntUGE;
	case M_lo: return LLVMIntULT;
	case M_ls: return LLVMIntULE;
	case M_hi: return LLVMIntUGT;
	case M_hs: return LLVMIntUGE;
	default: jit_fail(j, "comparison");
	}
}

static LLVMRealPredicate real_pred(struct jit *j, enum ptx_mod m)
{
	switch (m) {
	case M_eq: return LLVMRealOEQ;
	case M_ne: return LLVMRealONE;
	case M_lt: return LLVMRealOLT;
	case M_le: return LLVMRealOLE;
	case M_gt: return LLVMRealOGT;
	case M_ge: return LLVMRealOGE;
	case M_equ: return LLVMRealUEQ;
	case M_neu: return LLVMRealUNE;
	case M_ltu: return LLVMRealULT;
	case M_leu: return LLVMRealULE;
	case M_gtu: return LLVMRealUGT;
	case M_geu: return LLVMRealUGE;
	case M_num: return LLVMRealORD;
	case M_nan: return LLVMRealUNO;
	default: jit_fail(j, "comparison");
	}
}

static enum ptx_mod cmp_mod(struct jit *j)
{
	unsigned int k;

	for (k = 0; k < j->in->nmod; k++)
		if ((j->in->mods[k] >= M_eq && j->in->mods[k] <= M_nan) ||
		    j->in->mods[k] == M_lo || j->in->mods[k] == M_hi)
			return j->in->mods[k];
	jit_fail(j, "comparison missing");
}

static V compare(struct jit *j, enum ptype t, V a, V b)
{
	enum ptx_mod m = cmp_mod(j);

	if (t == T_F16 || t == T_BF16) {
		a = half_to_f32(j, a, t);
		b = half_to_f32(j, b, t);
		if (insn_has(j->in, M_ftz)) {	/* f16 subnormals are below this */
			V lim = kfp(j, j->f32, 0x1p-14), z = kfp(j, j->f32, 0);

			a = sel(j, LLVMBuildFCmp(B(j), LLVMRealOLT, intr1(j, "llvm.fabs", a), lim, ""),
				z, a);
			b = sel(j, LLVMBuildFCmp(B(j), LLVMRealOLT, intr1(j, "llvm.fabs", b), lim, ""),
				z, b);
		}
		return LLVMBuildFCmp(B(j), real_pred(j, m), a, b, "");
	}
	if (t == T_F32 || t == T_F64) {
		if (t == T_F32 && insn_has(j->in, M_ftz)) {
			a = flush(j, a);
			b = flush(j, b);
		}
		return LLVMBuildFCmp(B(j), real_pred(j, m), a, b, "");
	}
	return icmp(j, int_pred(j, m, ptype_is_signed(t)), a, b);
}

static enum ptx_mod bool_mod(const struct insn *i)
{
	return insn_has(i, M_and) ? M_and : insn_has(i, M_or) ? M_or :
	       insn_has(i, M_xor) ? M_xor : M_UNKNOWN;
}

static V combine(struct jit *j, enum ptx_mod m, V a, V b)
{
	return m == M_and ? LLVMBuildAnd(B(j), a, b, "") :
	       m == M_or ? LLVMBuildOr(B(j), a, b, "") : LLVMBuildXor(B(j), a, b, "");
}

static V half_of(struct jit *j, V v, unsigned int k)
{
	if (k)
		v = LLVMBuildLShr(B(j), v, kint(j, j->i32, 16), "");
	return trunc_to(j, v, j->i16);
}

static void emit_setp(struct jit *j)
{
	enum ptype t = typ(j, j->in->ntypes - 1);
	enum ptx_mod bm = bool_mod(j->in);
	const struct opnd *d = opnd(j, 0);
	V p, q = NULL, r;

	if (is_x2(t)) {		/* p|q are the two halves */
		enum ptype h = t == T_F16X2 ? T_F16 : T_BF16;
		V a = get(j, opnd(j, 1), T_B32), b = get(j, opnd(j, 2), T_B32);

		p = compare(j, h, half_of(j, a, 0), half_of(j, b, 0));
		r = compare(j, h, half_of(j, a, 1), half_of(j, b, 1));
		if (bm && j->in->nopnd > 3) {
			q = get_pred(j, opnd(j, 3));
			p = combine(j, bm, p, q);
			r = combine(j, bm, r, q);
		}
	} else {
		p = compare(j, t, get(j, opnd(j, 1), t), get(j, opnd(j, 2), t));
		r = LLVMBuildNot(B(j), p, "");
		if (bm && j->in->nopnd > 3) {
			q = get_pred(j, opnd(j, 3));
			p = combine(j, bm, p, q);
			r = combine(j, bm, r, q);
		}
	}
	set(j, d, p, T_PRED);
	if (d->reg2 >= 0)
		set_reg(j, d->reg2, r, T_PRED);
}

static void emit_set(struct jit *j)
{
	enum ptype dt = typ(j, 0), t = typ(j, 1);
	enum ptx_mod bm = bool_mod(j->in);
	V q = bm && j->in->nopnd > 3 ? get_pred(j, opnd(j, 3)) : NULL, p, r = NULL;
	unsigned int k;

	if (is_x2(t)) {
		enum ptype h = t == T_F16X2 ? T_F16 : T_BF16;
		V a = get(j, opnd(j, 1), T_B32), b = get(j, opnd(j, 2), T_B32);
		uint64_t one = dt == T_F16X2 ? 0x3c00 : dt == T_BF16X2 ? 0x3f80 : 0xffff;

		for (k = 0; k < 2; k++) {
			p = compare(j, h, half_of(j, a, k), half_of(j, b, k));
			if (q)
				p = combine(j, bm, p, q);
			p = sel(j, p, kint(j, j->i32, one << 16 * k), kint(j, j->i32, 0));
			r = r ? LLVMBuildOr(B(j), r, p, "") : p;
		}
		set(j, opnd(j, 0), r, T_B32);
		return;
	}
	p = compare(j, t, get(j, opnd(j, 1), t), get(j, opnd(j, 2), t));
	if (q)
		p = combine(j, bm, p, q);
	if (dt == T_F32)
		r = sel(j, p, kfp(j, j->f32, 1), kfp(j, j->f32, 0));
	else if (dt == T_F16 || dt == T_BF16)
		r = sel(j, p, kint(j, j->i16, dt == T_F16 ? 0x3c00 : 0x3f80), kint(j, j->i16, 0));
	else
		r = sel(j, p, kint(j, scalar_ty(j, dt), ~0ull), kint(j, scalar_ty(j, dt), 0));
	set(j, opnd(j, 0), r, dt);
}

static void emit_slct(struct jit *j)
{
	enum ptype t = typ(j, 0), ct = typ(j, 1);
	V a = get(j, opnd(j, 1), t), b = get(j, opnd(j, 2), t), c = get(j, opnd(j, 3), ct), p;

	if (ct == T_F32) {
		if (insn_has(j->in, M_ftz))
			c = flush(j, c);
		p = LLVMBuildFCmp(B(j), LLVMRealOGE, c, kfp(j, j->f32, 0), "");
	} else {
		p = icmp(j, LLVMIntSGE, c, kint(j, j->i32, 0));
	}
	set(j, opnd(j, 0), sel(j, p, a, b), t);
}

/* ---- mov, also packing and unpacking ---- */

static void emit_mov(struct jit *j)
{
	const struct opnd *d = opnd(j, 0), *s = opnd(j, 1);
	enum ptype t = j->in->ntypes ? j->in->t[0] : T_B32;
	unsigned int bits = ptype_size(t) * 8, k, each;
	static const enum ptype by_bits[] = { [8] = T_B8, [16] = T_B16, [32] = T_B32, [64] = T_B64 };

	if (d->kind == O_VEC && s->kind == O_VEC) {
		for (k = 0; k < d->nvec && k < s->nvec; k++)
			set(j, &d->vec[k], get(j, &s->vec[k], t), t);
	} else if (s->kind == O_VEC) {
		Ty st = scalar_ty(j, t);
		V r = kint(j, st, 0), v;

		each = bits / s->nvec;
		if (each < 8 || each > 64 || (each & (each - 1)))
			jit_fail(j, "pack");
		for (k = 0; k < s->nvec; k++) {
			v = get(j, &s->vec[k], by_bits[each]);
			v = zext(j, v, st);
			v = LLVMBuildShl(B(j), v, kint(j, st, each * k), "");
			r = LLVMBuildOr(B(j), r, v, "");
		}
		set(j, d, r, t);
	} else if (d->kind == O_VEC) {
		enum ptype bt = bits == 128 ? T_B128 : by_bits[bits];
		V v = get(j, s, bt);

		each = bits / d->nvec;
		if (each < 8 || each > 64 || (each & (each - 1)))
			jit_fail(j, "unpack");
		for (k = 0; k < d->nvec; k++) {
			V e = LLVMBuildLShr(B(j), v, kint(j, scalar_ty(j, bt), each * k), "");

			if (d->vec[k].kind == O_REG)
				set(j, &d->vec[k], trunc_to(j, e, scalar_ty(j, by_bits[each])),
				    by_bits[each]);
		}
	} else {
		set(j, d, get(j, s, t), t);
	}
}

static void emit_add_sub(struct jit *j)
{
	enum ptype t = typ(j, 0);
	bool cc = insn_has(j->in, M_cc), sub = j->in->op == OP_sub || j->in->op == OP_subc;
	bool cin = j->in->op == OP_addc || j->in->op == OP_subc;
	V a, b, r;

	if (t == T_U16X2 || t == T_S16X2) {
		V h[2];
		int k;

		a = get(j, opnd(j, 1), T_B32);
		b = get(j, opnd(j, 2), T_B32);
		for (k = 0; k < 2; k++) {
			V x = half_of(j, a, k), y = half_of(j, b, k);

			h[k] = sub ? LLVMBuildSub(B(j), x, y, "") : LLVMBuildAdd(B(j), x, y, "");
			h[k] = zext(j, h[k], j->i32);
		}
		r = LLVMBuildOr(B(j), h[0], LLVMBuildShl(B(j), h[1], kint(j, j->i32, 16), ""), "");
		set(j, opnd(j, 0), r, T_B32);
		return;
	}
	a = get(j, opnd(j, 1), t);
	b = get(j, opnd(j, 2), t);
	if (insn_has(j->in, M_sat))
		r = intr2(j, sub ? "llvm.ssub.sat" : "llvm.sadd.sat", a, b);
	else if (!cc && !cin)
		r = sub ? LLVMBuildSub(B(j), a, b, "") : LLVMBuildAdd(B(j), a, b, "");
	else
		r = sub ? sub_carry(j, a, b, scalar_ty(j, t), cin, cc) :
			  add_carry(j, a, b, scalar_ty(j, t), cin, cc);
	set(j, opnd(j, 0), r, t);
}

static void emit_minmax_int(struct jit *j)
{
	enum ptype t = typ(j, 0);
	bool mx = j->in->op == OP_max, sg = ptype_is_signed(t);
	const char *name = mx ? (sg ? "llvm.smax" : "llvm.umax") : (sg ? "llvm.smin" : "llvm.umin");
	V a, b, r;

	if (t == T_U16X2 || t == T_S16X2) {
		V h[2];
		int k;

		a = get(j, opnd(j, 1), T_B32);
		b = get(j, opnd(j, 2), T_B32);
		for (k = 0; k < 2; k++) {
			h[k] = intr2(j, name, half_of(j, a, k), half_of(j, b, k));
			if (insn_has(j->in, M_relu))
				h[k] = intr2(j, "llvm.smax", h[k], kint(j, j->i16, 0));
			h[k] = zext(j, h[k], j->i32);
		}
		r = LLVMBuildOr(B(j), h[0], LLVMBuildShl(B(j), h[1], kint(j, j->i32, 16), ""), "");
		set(j, opnd(j, 0), r, T_B32);
		return;
	}
	r = intr2(j, name, get(j, opnd(j, 1), t), get(j, opnd(j, 2), t));
	if (insn_has(j->in, M_relu))
		r = intr2(j, "llvm.smax", r, kint(j, scalar_ty(j, t), 0));
	set(j, opnd(j, 0), r, t);
}

/* Operands of the scalar video instructions, of which only the forms in old code are supported. */
static V video_opnd(struct jit *j, const struct opnd *o, enum ptype t)
{
	return get(j, o, t == T_U32 ? T_U32 : T_S32);
}

/* vshl, vshr: @a has 64 bits, so a shift by 32 needs no care. */
static V video_shift(struct jit *j, V a, V b)
{
	V n = insn_has(j->in, M_wrap) ? LLVMBuildAnd(B(j), b, kint(j, j->i64, 31), "") :
					intr2(j, "llvm.umin", b, kint(j, j->i64, 32));

	if (insn_has(j->in, M_wrap) == insn_has(j->in, M_clamp))
		jit_fail(j, "modifier");
	return j->in->op == OP_vshl ? LLVMBuildShl(B(j), a, n, "") : LLVMBuildAShr(B(j), a, n, "");
}

static void emit_video(struct jit *j)
{
	enum ptype dt = typ(j, 0), at = typ(j, 1), bt = typ(j, 2);
	V a, b, r, c;
	unsigned int k;

	for (k = 0; k < j->in->nmod; k++)	/* plain 32-bit forms only */
		if (!j->in->mtype[k] && j->in->mods[k] != M_sat && j->in->mods[k] != M_add &&
		    j->in->mods[k] != M_min && j->in->mods[k] != M_max &&
		    j->in->mods[k] != M_clamp && j->in->mods[k] != M_wrap)
			jit_fail(j, "modifier");
	a = video_opnd(j, opnd(j, 1), at);
	b = video_opnd(j, opnd(j, 2), bt);
	a = ptype_is_signed(at) ? sext(j, a, j->i64) : zext(j, a, j->i64);
	b = ptype_is_signed(bt) ? sext(j, b, j->i64) : zext(j, b, j->i64);
	switch (j->in->op) {
	case OP_vadd: r = LLVMBuildAdd(B(j), a, b, ""); break;
	case OP_vsub: r = LLVMBuildSub(B(j), a, b, ""); break;
	case OP_vmin: r = intr2(j, "llvm.smin", a, b); break;
	case OP_vmax: r = intr2(j, "llvm.smax", a, b); break;
	case OP_vabsdiff:
		r = LLVMBuildSub(B(j), a, b, "");
		r = intr2(j, "llvm.smax", r, LLVMBuildNeg(B(j), r, ""));
		break;
	case OP_vshl: case OP_vshr: r = video_shift(j, a, b); break;
	default: jit_fail(j, "not supported");
	}
	if (insn_has(j->in, M_sat)) {
		bool sg = ptype_is_signed(dt);

		r = intr2(j, "llvm.smin", r, kint(j, j->i64, sg ? 0x7fffffff : 0xffffffff));
		r = intr2(j, "llvm.smax", r, kint(j, j->i64, sg ? (uint64_t)-0x80000000ll : 0));
	}
	r = trunc_to(j, r, j->i32);
	if (j->in->nopnd > 3) {
		bool sg = ptype_is_signed(dt);

		c = get(j, opnd(j, 3), dt);
		if (insn_has(j->in, M_add))
			r = LLVMBuildAdd(B(j), r, c, "");
		else if (insn_has(j->in, M_min))
			r = intr2(j, sg ? "llvm.smin" : "llvm.umin", r, c);
		else if (insn_has(j->in, M_max))
			r = intr2(j, sg ? "llvm.smax" : "llvm.umax", r, c);
		else
			jit_fail(j, "modifier");
	}
	set(j, opnd(j, 0), r, dt);
}

/* The comparison modifiers of vset2 and vset4. */
static bool is_comparison(unsigned int mod)
{
	return mod == M_eq || mod == M_ne || mod == M_lt || mod == M_le || mod == M_gt || mod == M_ge;
}

/* vadd4 and similar: packed bytes or halves, in the plain form (no selectors or masks). */
static void emit_video_simd(struct jit *j)
{
	static const struct { uint16_t op2, op4, op; } ops[] = {
		{ OP_vadd2, OP_vadd4, OP_vadd }, { OP_vsub2, OP_vsub4, OP_vsub },
		{ OP_vavrg2, OP_vavrg4, OP_rem }, { OP_vabsdiff2, OP_vabsdiff4, OP_vabsdiff },
		{ OP_vmin2, OP_vmin4, OP_vmin }, { OP_vmax2, OP_vmax4, OP_vmax },
		{ OP_vset2, OP_vset4, OP_vset },
	};
	bool compare = j->in->op == OP_vset2 || j->in->op == OP_vset4;
	enum ptype dt = compare ? T_U32 : typ(j, 0), at = typ(j, !compare), bt = typ(j, 2 - compare);
	bool sum = insn_has(j->in, M_add), sg = ptype_is_signed(dt);
	V a = get(j, opnd(j, 1), T_B32), b = get(j, opnd(j, 2), T_B32), r = kint(j, j->i32, 0);
	unsigned int k, n = 0, w, op = 0;

	for (k = 0; k < sizeof(ops) / sizeof(ops[0]); k++)
		if (j->in->op == ops[k].op2 || j->in->op == ops[k].op4) {
			n = j->in->op == ops[k].op2 ? 2 : 4;
			op = ops[k].op;
		}
	for (k = 0; k < j->in->nmod; k++)
		if (!n || (!j->in->mtype[k] && j->in->mods[k] != M_add &&
			   (compare ? !is_comparison(j->in->mods[k]) : j->in->mods[k] != M_sat)))
			jit_fail(j, "modifier");
	w = 32 / n;
	if (sum)
		r = get(j, opnd(j, 3), T_B32);
	for (k = 0; k < n; k++) {
		V up = kint(j, j->i32, 32 - w * (k + 1)), down = kint(j, j->i32, 32 - w), x, y, v;

		x = LLVMBuildShl(B(j), a, up, "");
		y = LLVMBuildShl(B(j), b, up, "");
		x = ptype_is_signed(at) ? LLVMBuildAShr(B(j), x, down, "") : LLVMBuildLShr(B(j), x, down, "");
		y = ptype_is_signed(bt) ? LLVMBuildAShr(B(j), y, down, "") : LLVMBuildLShr(B(j), y, down, "");
		switch (op) {
		case OP_vadd: v = LLVMBuildAdd(B(j), x, y, ""); break;
		case OP_vsub: v = LLVMBuildSub(B(j), x, y, ""); break;
		case OP_vmin: v = intr2(j, "llvm.smin", x, y); break;
		case OP_vmax: v = intr2(j, "llvm.smax", x, y); break;
		case OP_vabsdiff:
			v = LLVMBuildSub(B(j), x, y, "");
			v = intr2(j, "llvm.smax", v, LLVMBuildNeg(B(j), v, ""));
			break;
		case OP_vset:
			v = LLVMBuildICmp(B(j), int_pred(j, cmp_mod(j), ptype_is_signed(at) ||
							 ptype_is_signed(bt)), x, y, "");
			v = zext(j, v, j->i32);
			break;
		default:	/* average, rounded away from zero by half */
			v = LLVMBuildAdd(B(j), LLVMBuildAdd(B(j), x, y, ""), kint(j, j->i32, 1), "");
			v = LLVMBuildAShr(B(j), v, kint(j, j->i32, 1), "");
		}
		if (insn_has(j->in, M_sat)) {
			uint64_t hi = (1ull << (w - sg)) - 1;

			v = intr2(j, "llvm.smin", v, kint(j, j->i32, hi));
			v = intr2(j, "llvm.smax", v, kint(j, j->i32, sg ? ~hi : 0));
		}
		if (sum) {
			r = LLVMBuildAdd(B(j), r, v, "");
			continue;
		}
		v = LLVMBuildAnd(B(j), v, kint(j, j->i32, (1ull << w) - 1), "");
		r = LLVMBuildOr(B(j), r, LLVMBuildShl(B(j), v, kint(j, j->i32, w * k), ""), "");
	}
	set(j, opnd(j, 0), r, T_B32);
}

static void emit_logic(struct jit *j)
{
	enum ptype t = typ(j, 0);
	V a = get(j, opnd(j, 1), t), b, r;

	switch (j->in->op) {
	case OP_not:
		r = LLVMBuildNot(B(j), a, "");
		break;
	case OP_cnot:
		r = icmp(j, LLVMIntEQ, a, kint(j, scalar_ty(j, t), 0));
		r = zext(j, r, scalar_ty(j, t));
		break;
	default:
		b = get(j, opnd(j, 2), t);
		r = j->in->op == OP_and ? LLVMBuildAnd(B(j), a, b, "") :
		    j->in->op == OP_or ? LLVMBuildOr(B(j), a, b, "") :
		    LLVMBuildXor(B(j), a, b, "");
	}
	set(j, opnd(j, 0), r, t);
}

static void emit_unary_int(struct jit *j)
{
	enum ptype t = typ(j, 0);
	unsigned int bits = ptype_size(t) * 8;
	V a = get(j, opnd(j, 1), t), r;

	switch (j->in->op) {
	case OP_neg:
		set(j, opnd(j, 0), LLVMBuildNeg(B(j), a, ""), t);
		return;
	case OP_abs:
		r = icmp(j, LLVMIntSLT, a, kint(j, scalar_ty(j, t), 0));
		set(j, opnd(j, 0), sel(j, r, LLVMBuildNeg(B(j), a, ""), a), t);
		return;
	case OP_popc:
		r = to32(j, intr1(j, "llvm.ctpop", a), bits);
		break;
	case OP_clz:
		r = to32(j, clz(j, a), bits);
		break;
	case OP_brev:
		set(j, opnd(j, 0), intr1(j, "llvm.bitreverse", a), t);
		return;
	default:
		jit_fail(j, "not supported");
	}
	set(j, opnd(j, 0), r, T_U32);
}

static void emit_sad(struct jit *j)
{
	enum ptype t = typ(j, 0);
	V a = get(j, opnd(j, 1), t), b = get(j, opnd(j, 2), t), c = get(j, opnd(j, 3), t), p;

	p = icmp(j, ptype_is_signed(t) ? LLVMIntSLT : LLVMIntULT, a, b);
	a = sel(j, p, LLVMBuildSub(B(j), b, a, ""), LLVMBuildSub(B(j), a, b, ""));
	set(j, opnd(j, 0), LLVMBuildAdd(B(j), a, c, ""), t);
}

void emit_alu(struct jit *j)
{
	enum ptype t0 = j->in->ntypes ? j->in->t[0] : T_NONE;
	bool fl = ptype_is_float(t0) || t0 == T_F16X2 || t0 == T_BF16X2 || t0 == T_F32X2;

	switch (j->in->op) {
	case OP_mov:
		emit_mov(j);
		return;
	case OP_setp:
		emit_setp(j);
		return;
	case OP_set:
		emit_set(j);
		return;
	case OP_selp: {
		V a = get(j, opnd(j, 1), t0), b = get(j, opnd(j, 2), t0);

		set(j, opnd(j, 0), sel(j, get_pred(j, opnd(j, 3)), a, b), t0);
		return;
	}
	case OP_slct:
		emit_slct(j);
		return;
	case OP_and: case OP_or: case OP_xor: case OP_not: case OP_cnot:
		emit_logic(j);
		return;
	case OP_shl: case OP_shr:
		set(j, opnd(j, 0), shift(j, j->in->op, get(j, opnd(j, 1), t0),
					 get(j, opnd(j, 2), T_U32), t0), t0);
		return;
	case OP_shf: emit_shf(j); return;
	case OP_bfe: emit_bfe(j); return;
	case OP_bfi: emit_bfi(j); return;
	case OP_bmsk: emit_bmsk(j); return;
	case OP_bfind: emit_bfind(j); return;
	case OP_prmt: emit_prmt(j); return;
	case OP_lop3: emit_lop3(j); return;
	case OP_dp4a: case OP_dp2a: emit_dp(j); return;
	case OP_sad: emit_sad(j); return;
	case OP_fns:
		set(j, opnd(j, 0), fop(j, RT_F_FNS, 0, get(j, opnd(j, 1), T_B32),
				       get(j, opnd(j, 2), T_B32), get(j, opnd(j, 3), T_B32), j->i32),
		    T_B32);
		return;
	case OP_vadd: case OP_vsub: case OP_vmin: case OP_vmax: case OP_vabsdiff: case OP_vshl:
	case OP_vshr:
		emit_video(j);
		return;
	case OP_vadd2: case OP_vsub2: case OP_vavrg2: case OP_vabsdiff2: case OP_vmin2:
	case OP_vmax2: case OP_vadd4: case OP_vsub4: case OP_vavrg4: case OP_vabsdiff4:
	case OP_vmin4: case OP_vmax4: case OP_vset2: case OP_vset4:
		emit_video_simd(j);
		return;
	case OP_addc: case OP_subc:
		emit_add_sub(j);
		return;
	case OP_madc: case OP_mad24:
		emit_mul_int(j, true);
		return;
	case OP_mul24:
		emit_mul_int(j, false);
		return;
	}
	if (fl) {
		emit_fp(j);
		return;
	}
	switch (j->in->op) {
	case OP_add: case OP_sub: emit_add_sub(j); return;
	case OP_mul: emit_mul_int(j, false); return;
	case OP_mad: emit_mul_int(j, true); return;
	case OP_div: case OP_rem:
		set(j, opnd(j, 0), div_rem(j, get(j, opnd(j, 1), t0), get(j, opnd(j, 2), t0), t0,
					   j->in->op == OP_rem), t0);
		return;
	case OP_min: case OP_max: emit_minmax_int(j); return;
	case OP_neg: case OP_abs: case OP_popc: case OP_clz: case OP_brev:
		emit_unary_int(j);
		return;
	}
	jit_fail(j, "not supported");
}
