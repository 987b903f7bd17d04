// SPDX-License-Identifier: Apache-2.0
/*
 * cvt.c - conversions.
 */
#include <errno.h>
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)

static V sel(struct jit *j, V c, V a, V b)
{
	return LLVMBuildSelect(B(j), c, a, b, "");
}

static int mode_of(const struct insn *i)
{
	if (insn_has(i, M_rz) || insn_has(i, M_rzi))
		return RT_RZ;
	if (insn_has(i, M_rm) || insn_has(i, M_rmi))
		return RT_RM;
	if (insn_has(i, M_rp) || insn_has(i, M_rpi))
		return RT_RP;
	if (insn_has(i, M_rna))
		return RT_RNA;
	return RT_RN;
}

static bool is_half(enum ptype t)
{
	return t == T_F16 || t == T_BF16;
}

/* Rounds f32 or f64 to an integral value by rounding mode. */
static V to_integral(struct jit *j, V f, int mode)
{
	switch (mode) {
	case RT_RZ: return intr1(j, "llvm.trunc", f);
	case RT_RM: return intr1(j, "llvm.floor", f);
	case RT_RP: return intr1(j, "llvm.ceil", f);
	default: return intr1(j, "llvm.roundeven", f);
	}
}

static void float_to_int(struct jit *j, enum ptype d, enum ptype s)
{
	bool sg = ptype_is_signed(d);
	unsigned int bits = ptype_size(d) * 8;
	V f = get(j, opnd(j, 1), s), r, args[1];
	Ty over[2];

	if (is_half(s)) {
		f = half_to_f32(j, f, s);
	} else if (s == T_F32 && insn_has(j->in, M_ftz)) {
		f = flush(j, f);
	}
	f = to_integral(j, f, mode_of(j->in));
	over[0] = jty(j, scalar_ty(j, d));
	over[1] = LLVMTypeOf(f);
	args[0] = f;
	r = call_intr(j, sg ? "llvm.fptosi.sat" : "llvm.fptoui.sat", over, 2, args, 1);
	if (s == T_F64 || bits == 64) {		/* NaN is 0 elsewhere */
		V nan = LLVMBuildFCmp(B(j), LLVMRealUNO, f, f, "");

		r = sel(j, nan, kint(j, scalar_ty(j, d), 1ull << (bits - 1)), r);
	}
	set(j, opnd(j, 0), r, d);
}

static void int_to_float(struct jit *j, enum ptype d, enum ptype s)
{
	bool sg = ptype_is_signed(s);
	int mode = mode_of(j->in);
	V a = get(j, opnd(j, 1), s), r;
	unsigned int bits = ptype_size(s) * 8;
	Ty wide = bits < 32 ? j->i32 : scalar_ty(j, s);

	if (bits < 32)
		a = sg ? LLVMBuildSExt(B(j), a, jty(j, wide), "") :
			 LLVMBuildZExt(B(j), a, jty(j, wide), "");
	if (is_half(d)) {	/* rounded once: f64 has all 32-bit values, C takes longer ones */
		int how = mode | (d == T_BF16) << 8;

		if (bits == 64) {
			r = fop(j, sg ? RT_F_S64TO16 : RT_F_U64TO16, how, a, NULL, NULL, j->i16);
		} else {
			V f = sg ? LLVMBuildSIToFP(B(j), a, jty(j, j->f64), "") :
				   LLVMBuildUIToFP(B(j), a, jty(j, j->f64), "");

			r = fop(j, RT_F_64TO16, how, f, NULL, NULL, j->i16);
		}
		set(j, opnd(j, 0), r, d);
		return;
	}
	if (mode == RT_RN || (d == T_F64 && bits <= 32)) {
		r = sg ? LLVMBuildSIToFP(B(j), a, jty(j, scalar_ty(j, d)), "") :
			 LLVMBuildUIToFP(B(j), a, jty(j, scalar_ty(j, d)), "");
	} else {
		int op = d == T_F64 ? (sg ? RT_F_S64TO64 : RT_F_U64TO64) :
			 bits == 64 ? (sg ? RT_F_S64TO32 : RT_F_U64TO32) :
				      (sg ? RT_F_S32TO32 : RT_F_U32TO32);

		r = fop(j, op, mode, a, NULL, NULL, scalar_ty(j, d));
	}
	if (insn_has(j->in, M_sat))
		r = sat01(j, r);
	set(j, opnd(j, 0), r, d);
}

static V float_as_f32(struct jit *j, V v, enum ptype s)
{
	return is_half(s) ? half_to_f32(j, v, s) : v;
}

static bool rounds_to_int(const struct insn *i)
{
	return insn_has(i, M_rni) || insn_has(i, M_rzi) || insn_has(i, M_rmi) ||
	       insn_has(i, M_rpi);
}

static V relu(struct jit *j, V f)
{
	Ty t = LLVMTypeOf(f);
	V z = LLVMConstNull(t), n = LLVMBuildFCmp(B(j), LLVMRealUNO, f, f, "");

	return sel(j, LLVMBuildOr(B(j), n, LLVMBuildFCmp(B(j), LLVMRealOGT, f, z, ""), ""), f, z);
}

/* f32 or f64 @f to half @d; f64 must not round twice. */
static V narrow_half(struct jit *j, V f, enum ptype d, bool dbl, int mode)
{
	if (dbl)
		return fop(j, RT_F_64TO16, mode | (d == T_BF16) << 8, f, NULL, NULL, j->i16);
	if (insn_has(j->in, M_satfinite)) {	/* finite range, NaN stays */
		double lim = d == T_F16 ? 65504.0 : 0x1.fep127;
		V hi = kfp(j, j->f32, lim), lo = kfp(j, j->f32, -lim);

		f = sel(j, LLVMBuildFCmp(B(j), LLVMRealOGT, f, hi, ""), hi, f);
		f = sel(j, LLVMBuildFCmp(B(j), LLVMRealOLT, f, lo, ""), lo, f);
	}
	if (mode == RT_RN)
		return f32_to_half(j, f, d);
	return fop(j, d == T_F16 ? RT_F_32TO16 : RT_F_32TOBF16, mode, f, NULL, NULL, j->i16);
}

static void float_to_float(struct jit *j, enum ptype d, enum ptype s)
{
	int mode = mode_of(j->in);
	V f = get(j, opnd(j, 1), s);
	bool ftz = insn_has(j->in, M_ftz), dbl = s == T_F64;

	f = float_as_f32(j, f, s);
	if (ftz && (s == T_F32 || s == T_BF16))
		f = flush(j, f);
	if (rounds_to_int(j->in))
		f = to_integral(j, f, mode);
	if (insn_has(j->in, M_relu))
		f = relu(j, f);
	if (insn_has(j->in, M_sat))
		f = sat01(j, f);
	if (is_half(d)) {
		if (rounds_to_int(j->in))
			mode = RT_RN;
		set(j, opnd(j, 0), narrow_half(j, f, d, dbl, mode), d);
		return;
	}
	if (d == T_F64 && !dbl) {
		f = LLVMBuildFPExt(B(j), f, jty(j, j->f64), "");
	} else if (d == T_F32 && dbl) {
		f = mode == RT_RN || rounds_to_int(j->in) ?
			LLVMBuildFPTrunc(B(j), f, jty(j, j->f32), "") :
			fop(j, RT_F_64TO32, mode, f, NULL, NULL, j->f32);
		if (ftz)
			f = flush(j, f);
	}
	set(j, opnd(j, 0), f, d);
}

static void int_to_int(struct jit *j, enum ptype d, enum ptype s)
{
	unsigned int db = ptype_size(d) * 8, sb = ptype_size(s) * 8;
	bool sg = ptype_is_signed(s);
	V a = get(j, opnd(j, 1), s);
	Ty w = j->i64, dt = scalar_ty(j, d);

	if (!insn_has(j->in, M_sat)) {
		if (db > sb)
			a = sg ? LLVMBuildSExt(B(j), a, jty(j, dt), "") :
				 LLVMBuildZExt(B(j), a, jty(j, dt), "");
		else if (db < sb)
			a = LLVMBuildTrunc(B(j), a, jty(j, dt), "");
		set(j, opnd(j, 0), a, d);
		return;
	}
	if (sb < 64)
		a = sg ? LLVMBuildSExt(B(j), a, jty(j, w), "") :
			 LLVMBuildZExt(B(j), a, jty(j, w), "");
	if (ptype_is_signed(d)) {
		uint64_t hi = db == 64 ? INT64_MAX : (1ull << (db - 1)) - 1;

		if (sg) {
			a = intr2(j, "llvm.smin", a, kint(j, w, hi));
			a = intr2(j, "llvm.smax", a, kint(j, w, ~hi));
		} else {
			a = intr2(j, "llvm.umin", a, kint(j, w, hi));
		}
	} else {
		if (sg)
			a = intr2(j, "llvm.smax", a, kint(j, w, 0));
		if (db < 64)
			a = intr2(j, "llvm.umin", a, kint(j, w, (1ull << db) - 1));
	}
	if (db < 64)
		a = LLVMBuildTrunc(B(j), a, jty(j, dt), "");
	set(j, opnd(j, 0), a, d);
}

static V pack16(struct jit *j, V lo, V hi)
{
	lo = LLVMBuildZExt(B(j), lo, jty(j, j->i32), "");
	hi = LLVMBuildZExt(B(j), hi, jty(j, j->i32), "");
	return LLVMBuildOr(B(j), lo, LLVMBuildShl(B(j), hi, kint(j, j->i32, 16), ""), "");
}

/* cvt.rn.f16x2.f32 d, a, b: a is the upper half. */
static void to_x2(struct jit *j, enum ptype d)
{
	enum ptype h = d == T_F16X2 ? T_F16 : T_BF16;
	int mode = mode_of(j->in), k;
	V r[2];

	for (k = 0; k < 2; k++) {
		V f = get(j, opnd(j, 2 - k), T_F32);

		if (insn_has(j->in, M_ftz))
			f = flush(j, f);
		if (insn_has(j->in, M_relu))
			f = relu(j, f);
		r[k] = narrow_half(j, f, h, false, mode);
	}
	set(j, opnd(j, 0), pack16(j, r[0], r[1]), T_B32);
}

static V fp8(struct jit *j, V v, int op, int flags, Ty ret)
{
	return fop(j, op, flags, v, NULL, NULL, ret);
}

/* e4m3x2 and e5m2x2 from two f32 or one f16x2 (bf16x2), and back to f16x2. */
static void fp8x2(struct jit *j, enum ptype d, enum ptype s)
{
	int flags = insn_has(j->in, M_relu) ? 1 : 0, k;
	V r[2], a;

	if (d == T_E4M3X2 || d == T_E5M2X2) {
		int op32 = d == T_E4M3X2 ? RT_F_32TOE4M3 : RT_F_32TOE5M2;

		if (s == T_F32) {
			for (k = 0; k < 2; k++)
				r[k] = fp8(j, get(j, opnd(j, 2 - k), T_F32), op32, flags, j->i8);
		} else if (s == T_F16X2 || s == T_BF16X2) {
			enum ptype h = s == T_F16X2 ? T_F16 : T_BF16;

			a = get(j, opnd(j, 1), T_B32);
			for (k = 0; k < 2; k++) {
				V x = k ? LLVMBuildLShr(B(j), a, kint(j, j->i32, 16), "") : a;

				x = LLVMBuildTrunc(B(j), x, jty(j, j->i16), "");
				r[k] = fp8(j, half_to_f32(j, x, h), op32, flags, j->i8);
			}
		} else {
			jit_fail(j, "source type");
		}
		r[0] = LLVMBuildZExt(B(j), r[0], jty(j, j->i16), "");
		r[1] = LLVMBuildZExt(B(j), r[1], jty(j, j->i16), "");
		r[0] = LLVMBuildOr(B(j), r[0],
				   LLVMBuildShl(B(j), r[1], kint(j, j->i16, 8), ""), "");
		set(j, opnd(j, 0), r[0], T_B16);
		return;
	}
	a = get(j, opnd(j, 1), T_B16);
	for (k = 0; k < 2; k++) {
		V x = k ? LLVMBuildLShr(B(j), a, kint(j, j->i16, 8), "") : a, f;

		x = LLVMBuildTrunc(B(j), x, jty(j, j->i8), "");
		f = fp8(j, x, s == T_E4M3X2 ? RT_F_E4M3TO16 : RT_F_E5M2TO16, flags, j->f32);
		r[k] = f32_to_half(j, f, d == T_F16X2 ? T_F16 : T_BF16);
	}
	set(j, opnd(j, 0), pack16(j, r[0], r[1]), T_B32);
}

/* cvt.pack.sat.d.s32[.b32] d, a, b[, c] */
static void cvt_pack(struct jit *j)
{
	enum ptype d = typ(j, 0);
	unsigned int bits = ptype_size(d) * 8;
	bool sg = ptype_is_signed(d);
	V r = kint(j, j->i32, 0), x;
	int k;

	for (k = 0; k < 2; k++) {
		uint64_t hi = (1ull << (bits - sg)) - 1;

		x = get(j, opnd(j, 2 - k), T_S32);
		x = intr2(j, "llvm.smin", x, kint(j, j->i32, hi));
		x = intr2(j, "llvm.smax", x, kint(j, j->i32, sg ? ~hi : 0));
		x = LLVMBuildAnd(B(j), x, kint(j, j->i32, (1ull << bits) - 1), "");
		r = LLVMBuildOr(B(j), r, LLVMBuildShl(B(j), x, kint(j, j->i32, bits * k), ""), "");
	}
	if (j->in->nopnd > 3) {
		x = get(j, opnd(j, 3), T_B32);
		x = LLVMBuildShl(B(j), x, kint(j, j->i32, 2 * bits), "");
		r = LLVMBuildOr(B(j), r, x, "");
	}
	set(j, opnd(j, 0), r, T_B32);
}

static void emit_szext(struct jit *j)
{
	enum ptype t = typ(j, 0);
	V a = get(j, opnd(j, 1), t), n = get(j, opnd(j, 2), T_U32), k, big, r, zero;

	if (insn_has(j->in, M_wrap))
		n = LLVMBuildAnd(B(j), n, kint(j, j->i32, 31), "");
	big = LLVMBuildICmp(B(j), LLVMIntUGE, n, kint(j, j->i32, 32), "");
	zero = LLVMBuildICmp(B(j), LLVMIntEQ, n, kint(j, j->i32, 0), "");
	k = LLVMBuildAnd(B(j), LLVMBuildSub(B(j), kint(j, j->i32, 32), n, ""),
			 kint(j, j->i32, 31), "");
	r = LLVMBuildShl(B(j), a, k, "");
	r = ptype_is_signed(t) ? LLVMBuildAShr(B(j), r, k, "") : LLVMBuildLShr(B(j), r, k, "");
	r = sel(j, big, a, r);
	set(j, opnd(j, 0), sel(j, zero, kint(j, j->i32, 0), r), t);
}

void emit_cvt(struct jit *j)
{
	enum ptype d = typ(j, 0), s;

	if (j->in->op == OP_szext) {
		emit_szext(j);
		return;
	}
	if (insn_has(j->in, M_pack)) {
		cvt_pack(j);
		return;
	}
	s = typ(j, 1);
	if (d == T_TF32) {
		V f = get(j, opnd(j, 1), T_F32);

		if (insn_has(j->in, M_relu))
			f = relu(j, f);
		f = fop(j, RT_F_32TOTF32, mode_of(j->in), f, NULL, NULL, j->i32);
		set(j, opnd(j, 0), f, T_B32);
	} else if (d == T_E4M3X2 || d == T_E5M2X2 || s == T_E4M3X2 || s == T_E5M2X2) {
		fp8x2(j, d, s);
	} else if (d == T_F16X2 || d == T_BF16X2) {
		if (s != T_F32)
			jit_fail(j, "source type");
		to_x2(j, d);
	} else if (ptype_is_float(d) && ptype_is_float(s)) {
		float_to_float(j, d, s);
	} else if (ptype_is_float(d)) {
		int_to_float(j, d, s);
	} else if (ptype_is_float(s)) {
		float_to_int(j, d, s);
	} else if (ptype_size(d) <= 8 && ptype_size(s) <= 8 && d < T_F16 && s < T_F16) {
		int_to_int(j, d, s);
	} else {
		jit_fail(j, "types");
	}
}
