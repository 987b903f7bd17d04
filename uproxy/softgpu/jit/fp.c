// SPDX-License-Identifier: Apache-2.0
/*
 * fp.c - floating-point arithmetic.
 *
 * f32 and f64 round to nearest with the CPU's own instructions; other rounding modes go through C
 * with the mode set.  f16 and bf16 are computed in a wider type, with the result of one rounding:
 * sums and products in f32 (24 >= 2 * 11 + 2 bits), fma by an intermediate rounding to odd.
 * Multiplication and addition are never contracted.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)

static V sel(struct jit *j, V c, V a, V b)
{
	return LLVMBuildSelect(B(j), c, a, b, "");
}

static V as_int(struct jit *j, V f, Ty i)
{
	return LLVMBuildBitCast(B(j), f, jty(j, i), "");
}

static V as_fp(struct jit *j, V i, Ty f)
{
	return LLVMBuildBitCast(B(j), i, jty(j, f), "");
}

static V fcmp(struct jit *j, LLVMRealPredicate p, V a, V b)
{
	return LLVMBuildFCmp(B(j), p, a, b, "");
}

/* .ftz: subnormals become zeros of their sign. */
V flush(struct jit *j, V v)
{
	V i = as_int(j, v, j->i32), e, s;

	if (LLVMIsConstant(v) && !j->vec) {
		LLVMBool lose;
		double d = LLVMConstRealGetDouble(v, &lose);

		if (d == 0 || d >= 0x1p-126 || d <= -0x1p-126)
			return v;
	}
	e = LLVMBuildAnd(B(j), i, kint(j, j->i32, 0x7f800000), "");
	s = LLVMBuildAnd(B(j), i, kint(j, j->i32, 0x80000000), "");
	e = LLVMBuildICmp(B(j), LLVMIntEQ, e, kint(j, j->i32, 0), "");
	return as_fp(j, sel(j, e, s, i), j->f32);
}

/* .sat: [0, 1], NaN gives 0. */
V sat01(struct jit *j, V v)
{
	Ty s = LLVMTypeOf(v);
	V zero, one;

	if (LLVMGetTypeKind(s) == LLVMVectorTypeKind)
		s = LLVMGetElementType(s);
	zero = kfp(j, s, 0);
	one = kfp(j, s, 1);
	v = sel(j, fcmp(j, LLVMRealOGT, v, zero), v, zero);
	return sel(j, fcmp(j, LLVMRealOLT, v, one), v, one);
}

V half_to_f32(struct jit *j, V h, enum ptype t)
{
	if (t == T_BF16) {
		h = LLVMBuildZExt(B(j), h, jty(j, j->i32), "");
		h = LLVMBuildShl(B(j), h, kint(j, j->i32, 16), "");
		return as_fp(j, h, j->f32);
	}
	return LLVMBuildFPExt(B(j), as_fp(j, h, j->f16), jty(j, j->f32), "");
}

/* Rounds to nearest even; NaN becomes the ISA's canonical NaN, 0x7fff. */
V f32_to_half(struct jit *j, V f, enum ptype t)
{
	V i, r, nan = fcmp(j, LLVMRealUNO, f, f);

	if (t == T_BF16) {
		i = as_int(j, f, j->i32);
		r = LLVMBuildLShr(B(j), i, kint(j, j->i32, 16), "");
		r = LLVMBuildAnd(B(j), r, kint(j, j->i32, 1), "");
		r = LLVMBuildAdd(B(j), r, kint(j, j->i32, 0x7fff), "");
		r = LLVMBuildAdd(B(j), r, i, "");
		r = LLVMBuildLShr(B(j), r, kint(j, j->i32, 16), "");
		r = LLVMBuildTrunc(B(j), r, jty(j, j->i16), "");
	} else {
		r = LLVMBuildFPTrunc(B(j), f, jty(j, j->f16), "");
		r = as_int(j, r, j->i16);
	}
	return sel(j, nan, kint(j, j->i16, 0x7fff), r);
}

/* Rounds f64 to f32 so that a later rounding to at most 22 bits is correct. */
static V f64_to_f32_odd(struct jit *j, V d)
{
	V f = LLVMBuildFPTrunc(B(j), d, jty(j, j->f32), "");
	V back = LLVMBuildFPExt(B(j), f, jty(j, j->f64), "");
	V inexact = fcmp(j, LLVMRealONE, back, d), away, i = as_int(j, f, j->i32);

	away = fcmp(j, LLVMRealOGT, intr1(j, "llvm.fabs", back), intr1(j, "llvm.fabs", d));
	away = sel(j, away, LLVMBuildSub(B(j), i, kint(j, j->i32, 1), ""), i);
	away = LLVMBuildOr(B(j), away, kint(j, j->i32, 1), "");
	return as_fp(j, sel(j, inexact, away, i), j->f32);
}

/* p + c in f32 or f64, rounded to odd. */
static V add_odd(struct jit *j, V p, V c, bool dbl)
{
	V s = LLVMBuildFAdd(B(j), p, c, ""), bb, e, i, fix, up;
	Ty it = dbl ? j->i64 : j->i32, ft = dbl ? j->f64 : j->f32;

	bb = LLVMBuildFSub(B(j), s, p, "");
	e = LLVMBuildFAdd(B(j), LLVMBuildFSub(B(j), p, LLVMBuildFSub(B(j), s, bb, ""), ""),
			  LLVMBuildFSub(B(j), c, bb, ""), "");
	i = as_int(j, s, it);
	/* error of the other sign: the magnitude was rounded up, step back; then set the last bit */
	up = LLVMBuildXor(B(j), as_int(j, e, it), i, "");
	up = LLVMBuildICmp(B(j), LLVMIntSLT, up, kint(j, it, 0), "");
	fix = sel(j, up, LLVMBuildSub(B(j), i, kint(j, it, 1), ""), i);
	fix = LLVMBuildOr(B(j), fix, kint(j, it, 1), "");
	return as_fp(j, sel(j, fcmp(j, LLVMRealONE, e, kfp(j, ft, 0)), fix, i), ft);
}

/* A product of f16 is exact in f32, and its sum with an f16 cannot leave f32's range. */
static V fma_half(struct jit *j, enum ptype t, V *f)
{
	V d[3], r;
	int k;

	if (t == T_F16)
		return add_odd(j, LLVMBuildFMul(B(j), f[0], f[1], ""), f[2], false);
	for (k = 0; k < 3; k++)
		d[k] = LLVMBuildFPExt(B(j), f[k], jty(j, j->f64), "");
	r = LLVMBuildFMul(B(j), d[0], d[1], "");
	return f64_to_f32_odd(j, add_odd(j, r, d[2], true));
}

static int round_mode(struct jit *j)
{
	if (insn_has(j->in, M_rz))
		return RT_RZ;
	if (insn_has(j->in, M_rm))
		return RT_RM;
	if (insn_has(j->in, M_rp))
		return RT_RP;
	return RT_RN;
}

/*
 * Minimum or maximum: a NaN loses (or wins, .NAN), -0 < +0.  f32 or f64 values.
 */
static V minmax(struct jit *j, V a, V b, bool mx, bool nan_wins)
{
	Ty s = LLVMTypeOf(a), i;
	V r, an, bn, eq, nan;

	if (LLVMGetTypeKind(s) == LLVMVectorTypeKind)
		s = LLVMGetElementType(s);
	i = s == j->f64 ? j->i64 : j->i32;
	nan = as_fp(j, kint(j, i, s == j->f64 ? 0x7fffffffffffffffull : 0x7fffffff), s);
	r = sel(j, fcmp(j, mx ? LLVMRealOGT : LLVMRealOLT, a, b), a, b);
	eq = mx ? LLVMBuildAnd(B(j), as_int(j, a, i), as_int(j, b, i), "") :
		  LLVMBuildOr(B(j), as_int(j, a, i), as_int(j, b, i), "");
	r = sel(j, fcmp(j, LLVMRealOEQ, a, b), as_fp(j, eq, s), r);
	an = fcmp(j, LLVMRealUNO, a, a);
	bn = fcmp(j, LLVMRealUNO, b, b);
	if (nan_wins)
		return sel(j, LLVMBuildOr(B(j), an, bn, ""), nan, r);
	r = sel(j, an, b, r);
	r = sel(j, bn, a, r);
	return sel(j, LLVMBuildAnd(B(j), an, bn, ""), nan, r);
}

static V fma_fp(struct jit *j, V a, V b, V c)
{
	return intr3(j, "llvm.fma", a, b, c);
}

/* One f16 or bf16 operation on i16 values. */
static V half_op(struct jit *j, enum ptype t, V *a, unsigned int n)
{
	V f[3], r;
	unsigned int k;
	int op = j->in->op;

	if (op == OP_neg)
		return LLVMBuildXor(B(j), a[0], kint(j, j->i16, 0x8000), "");
	if (op == OP_abs)
		return LLVMBuildAnd(B(j), a[0], kint(j, j->i16, 0x7fff), "");
	for (k = 0; k < n; k++) {
		f[k] = half_to_f32(j, a[k], t);
		if (insn_has(j->in, M_ftz)) {
			V lim = kfp(j, j->f32, t == T_F16 ? 0x1p-14 : 0x1p-126);
			V small = fcmp(j, LLVMRealOLT, intr1(j, "llvm.fabs", f[k]), lim);
			V z = LLVMBuildAnd(B(j), as_int(j, f[k], j->i32),
					   kint(j, j->i32, 0x80000000), "");

			f[k] = sel(j, small, as_fp(j, z, j->f32), f[k]);
		}
	}
	switch (op) {
	case OP_add: r = LLVMBuildFAdd(B(j), f[0], f[1], ""); break;
	case OP_sub: r = LLVMBuildFSub(B(j), f[0], f[1], ""); break;
	case OP_mul: r = LLVMBuildFMul(B(j), f[0], f[1], ""); break;
	case OP_fma:
	case OP_mad:
		r = fma_half(j, t, f);
		break;
	case OP_min:
	case OP_max:
		r = minmax(j, f[0], f[1], op == OP_max, insn_has(j->in, M_NAN));
		if (insn_has(j->in, M_xorsign)) {
			V s = LLVMBuildXor(B(j), as_int(j, f[0], j->i32), as_int(j, f[1], j->i32), "");
			V x = minmax(j, intr1(j, "llvm.fabs", f[0]), intr1(j, "llvm.fabs", f[1]),
				     op == OP_max, insn_has(j->in, M_NAN));

			s = LLVMBuildAnd(B(j), s, kint(j, j->i32, 0x80000000), "");
			r = as_fp(j, LLVMBuildOr(B(j), as_int(j, x, j->i32), s, ""), j->f32);
		}
		break;
	case OP_ex2:
	case OP_tanh:
		r = approx(j, f[0]);
		break;
	default: jit_fail(j, "not supported for half precision");
	}
	if (insn_has(j->in, M_relu)) {
		V z = kfp(j, j->f32, 0), isnan = fcmp(j, LLVMRealUNO, r, r);

		r = sel(j, LLVMBuildOr(B(j), isnan, fcmp(j, LLVMRealOGT, r, z), ""), r, z);
	}
	if (insn_has(j->in, M_sat))
		r = sat01(j, r);
	r = f32_to_half(j, r, t);
	if (insn_has(j->in, M_ftz) && t == T_F16) {
		V m = LLVMBuildAnd(B(j), r, kint(j, j->i16, 0x7c00), "");

		m = LLVMBuildICmp(B(j), LLVMIntEQ, m, kint(j, j->i16, 0), "");
		r = sel(j, m, LLVMBuildAnd(B(j), r, kint(j, j->i16, 0x8000), ""), r);
	}
	return r;
}

/* The same on both halves of registers. */
static V half2_op(struct jit *j, enum ptype e, V *a, unsigned int n)
{
	V x[3], r = NULL, v;
	unsigned int k, h;

	for (h = 0; h < 2; h++) {
		for (k = 0; k < n; k++) {
			v = h ? LLVMBuildLShr(B(j), a[k], kint(j, j->i32, 16), "") : a[k];
			x[k] = LLVMBuildTrunc(B(j), v, jty(j, j->i16), "");
		}
		v = LLVMBuildZExt(B(j), half_op(j, e, x, n), jty(j, j->i32), "");
		if (h)
			v = LLVMBuildShl(B(j), v, kint(j, j->i32, 16), "");
		r = r ? LLVMBuildOr(B(j), r, v, "") : v;
	}
	return r;
}

/* A function: a warp's fma has a hundred instructions, and a kernel may have thousands of them. */
static V half2_fma(struct jit *j, enum ptype e, V *a)
{
	LLVMBasicBlockRef back = LLVMGetInsertBlock(B(j));
	Ty vt = LLVMVectorType(j->i32, 32), args[3] = { vt, vt, vt };
	V fn, outer = j->fn, in[3];
	char name[64];
	int k;

	snprintf(name, sizeof(name), "fma_%s%s%s%s", e == T_F16 ? "f16x2" : "bf16x2",
		 insn_has(j->in, M_ftz) ? "_ftz" : "", insn_has(j->in, M_relu) ? "_relu" : "",
		 insn_has(j->in, M_sat) ? "_sat" : "");
	fn = LLVMGetNamedFunction(j->m, name);
	if (!fn) {
		fn = jit_new_fn(j, name, LLVMFunctionType(vt, args, 3, false), true);
		j->fn = fn;
		at_bb(j, new_bb(j, "entry"));
		for (k = 0; k < 3; k++)
			in[k] = LLVMGetParam(fn, k);
		LLVMBuildRet(B(j), half2_op(j, e, in, 3));
		j->fn = outer;
		at_bb(j, back);
	}
	return LLVMBuildCall2(B(j), LLVMGlobalGetValueType(fn), fn, a, 3, "");
}

static void emit_half(struct jit *j, enum ptype t)
{
	unsigned int n = j->in->nopnd - 1, k;
	bool x2 = t == T_F16X2 || t == T_BF16X2;
	enum ptype e = t == T_F16X2 || t == T_F16 ? T_F16 : T_BF16;
	V a[3];

	if (n < 1 || n > 3)
		jit_fail(j, "operands");
	for (k = 0; k < n; k++)
		a[k] = get(j, opnd(j, k + 1), x2 ? T_B32 : e);
	if (!x2)
		set(j, opnd(j, 0), half_op(j, e, a, n), e);
	else if (j->vec && n == 3 && (j->in->op == OP_fma || j->in->op == OP_mad))
		set(j, opnd(j, 0), half2_fma(j, e, a), T_B32);
	else
		set(j, opnd(j, 0), half2_op(j, e, a, n), T_B32);
}

static V rounded(struct jit *j, int op32, V a, V b, V c, bool dbl)
{
	int mode = round_mode(j);

	return fop(j, dbl ? op32 + (RT_F_ADD64 - RT_F_ADD32) : op32, mode, a, b, c,
		   dbl ? j->f64 : j->f32);
}

static V arith(struct jit *j, V *a, bool dbl)
{
	bool rn = round_mode(j) == RT_RN;
	Ty s = dbl ? j->f64 : j->f32;

	switch (j->in->op) {
	case OP_add:
		return rn ? LLVMBuildFAdd(B(j), a[0], a[1], "") :
			    rounded(j, RT_F_ADD32, a[0], a[1], NULL, dbl);
	case OP_sub:
		return rn ? LLVMBuildFSub(B(j), a[0], a[1], "") :
			    rounded(j, RT_F_SUB32, a[0], a[1], NULL, dbl);
	case OP_mul:
		return rn ? LLVMBuildFMul(B(j), a[0], a[1], "") :
			    rounded(j, RT_F_MUL32, a[0], a[1], NULL, dbl);
	case OP_fma:
	case OP_mad:
		return rn ? fma_fp(j, a[0], a[1], a[2]) :
			    rounded(j, RT_F_FMA32, a[0], a[1], a[2], dbl);
	case OP_div:
		return rn ? LLVMBuildFDiv(B(j), a[0], a[1], "") :
			    rounded(j, RT_F_DIV32, a[0], a[1], NULL, dbl);
	case OP_rcp:
		return rn ? LLVMBuildFDiv(B(j), kfp(j, s, 1), a[0], "") :
			    rounded(j, RT_F_DIV32, kfp(j, s, 1), a[0], NULL, dbl);
	case OP_sqrt:
		return rn ? intr1(j, "llvm.sqrt", a[0]) :
			    rounded(j, RT_F_SQRT32, a[0], NULL, NULL, dbl);
	case OP_rsqrt:
		return LLVMBuildFDiv(B(j), kfp(j, s, 1), intr1(j, "llvm.sqrt", a[0]), "");
	case OP_neg:
		return LLVMBuildFNeg(B(j), a[0], "");
	case OP_abs:
		return intr1(j, "llvm.fabs", a[0]);
	case OP_min:
	case OP_max: {
		bool mx = j->in->op == OP_max, nan = insn_has(j->in, M_NAN);
		V r, sg;

		if (!insn_has(j->in, M_xorsign)) {
			r = minmax(j, a[0], a[1], mx, nan);
			return a[2] ? minmax(j, r, a[2], mx, nan) : r;
		}
		sg = LLVMBuildXor(B(j), as_int(j, a[0], j->i32), as_int(j, a[1], j->i32), "");
		sg = LLVMBuildAnd(B(j), sg, kint(j, j->i32, 0x80000000), "");
		r = minmax(j, intr1(j, "llvm.fabs", a[0]), intr1(j, "llvm.fabs", a[1]), mx, nan);
		return as_fp(j, LLVMBuildOr(B(j), as_int(j, r, j->i32), sg, ""), j->f32);
	}
	case OP_copysign: {	/* copysign d, a, b: a's sign on b */
		Ty i = dbl ? j->i64 : j->i32;
		uint64_t m = dbl ? 1ull << 63 : 0x80000000;
		V x = LLVMBuildAnd(B(j), as_int(j, a[0], i), kint(j, i, m), "");
		V y = LLVMBuildAnd(B(j), as_int(j, a[1], i), kint(j, i, ~m), "");

		return as_fp(j, LLVMBuildOr(B(j), x, y, ""), s);
	}
	case OP_ex2: case OP_lg2: case OP_sin: case OP_cos: case OP_tanh:
		return approx(j, a[0]);
	}
	jit_fail(j, "not supported");
}

static void emit_testp(struct jit *j, enum ptype t)
{
	Ty i = t == T_F64 ? j->i64 : j->i32;
	uint64_t inf = t == T_F64 ? 0x7ff0000000000000ull : 0x7f800000;
	uint64_t min = t == T_F64 ? 0x0010000000000000ull : 0x00800000;
	V a = as_int(j, get(j, opnd(j, 1), t), i), r;

	a = LLVMBuildAnd(B(j), a, kint(j, i, t == T_F64 ? ~0ull >> 1 : 0x7fffffff), "");
	if (insn_has(j->in, M_finite))
		r = LLVMBuildICmp(B(j), LLVMIntULT, a, kint(j, i, inf), "");
	else if (insn_has(j->in, M_infinite))
		r = LLVMBuildICmp(B(j), LLVMIntEQ, a, kint(j, i, inf), "");
	else if (insn_has(j->in, M_number))
		r = LLVMBuildICmp(B(j), LLVMIntULE, a, kint(j, i, inf), "");
	else if (insn_has(j->in, M_notanumber))
		r = LLVMBuildICmp(B(j), LLVMIntUGT, a, kint(j, i, inf), "");
	else if (insn_has(j->in, M_normal))
		r = LLVMBuildAnd(B(j), LLVMBuildICmp(B(j), LLVMIntULT, a, kint(j, i, inf), ""),
				 LLVMBuildICmp(B(j), LLVMIntUGE, a, kint(j, i, min), ""), "");
	else if (insn_has(j->in, M_subnormal))
		r = LLVMBuildAnd(B(j), LLVMBuildICmp(B(j), LLVMIntULT, a, kint(j, i, min), ""),
				 LLVMBuildICmp(B(j), LLVMIntNE, a, kint(j, i, 0), ""), "");
	else
		jit_fail(j, "class");
	set(j, opnd(j, 0), r, T_PRED);
}

/* rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 use the upper word only; the lower is zero. */
static V upper_word(struct jit *j, V v)
{
	V i = LLVMBuildAnd(B(j), as_int(j, v, j->i64), kint(j, j->i64, 0xffffffff00000000ull), "");

	return as_fp(j, i, j->f64);
}

/* Two f32 in a 64-bit register (sm_100). */
static void emit_f32x2(struct jit *j)
{
	unsigned int n = j->in->nopnd - 1, k, h;
	V a[3], x[3] = { 0 }, r = NULL, v;

	if (n < 1 || n > 3)
		jit_fail(j, "operands");
	for (k = 0; k < n; k++)
		a[k] = get(j, opnd(j, k + 1), T_B64);
	for (h = 0; h < 2; h++) {
		for (k = 0; k < n; k++) {
			v = h ? LLVMBuildLShr(B(j), a[k], kint(j, j->i64, 32), "") : a[k];
			x[k] = as_fp(j, LLVMBuildTrunc(B(j), v, jty(j, j->i32), ""), j->f32);
			if (insn_has(j->in, M_ftz))
				x[k] = flush(j, x[k]);
		}
		v = arith(j, x, false);
		if (insn_has(j->in, M_ftz))
			v = flush(j, v);
		v = LLVMBuildZExt(B(j), as_int(j, v, j->i32), jty(j, j->i64), "");
		if (h)
			v = LLVMBuildShl(B(j), v, kint(j, j->i64, 32), "");
		r = r ? LLVMBuildOr(B(j), r, v, "") : v;
	}
	set(j, opnd(j, 0), r, T_B64);
}

/* add, sub and fma.f32 of f16 or bf16 operands, of which the last is f32. */
static bool is_mixed(const struct insn *i, unsigned int n)
{
	bool fma = i->op == OP_fma;

	return i->ntypes == 2 && i->t[0] == T_F32 && (i->t[1] == T_F16 || i->t[1] == T_BF16) &&
	       (fma || i->op == OP_add || i->op == OP_sub) && n == (fma ? 3 : 2);
}

void emit_fp(struct jit *j)
{
	enum ptype t = j->in->ntypes ? j->in->t[0] : T_NONE;
	bool dbl = t == T_F64, ftz = insn_has(j->in, M_ftz) && !dbl;
	unsigned int n = j->in->nopnd - 1, k;
	V a[3] = { 0 }, r;

	if (j->in->op == OP_testp) {
		emit_testp(j, typ(j, 0));
		return;
	}
	if (t == T_F16 || t == T_BF16 || t == T_F16X2 || t == T_BF16X2) {
		emit_half(j, t);
		return;
	}
	if (t == T_F32X2) {
		emit_f32x2(j);
		return;
	}
	if (t != T_F32 && t != T_F64)
		jit_fail(j, "type");
	if (n < 1 || n > 3)
		jit_fail(j, "operands");
	if (j->in->ntypes > 1 && !is_mixed(j->in, n))
		jit_fail(j, "mixed precision");
	for (k = 0; k < n; k++) {
		if (j->in->ntypes > 1 && k < n - 1)
			a[k] = half_to_f32(j, get(j, opnd(j, k + 1), typ(j, 1)), typ(j, 1));
		else
			a[k] = get(j, opnd(j, k + 1), t);
		if (ftz)
			a[k] = flush(j, a[k]);
	}
	r = arith(j, a, dbl);
	if (dbl && insn_has(j->in, M_approx) && insn_has(j->in, M_ftz))
		r = upper_word(j, r);
	if (insn_has(j->in, M_sat))
		r = sat01(j, r);
	if (ftz && j->in->op != OP_neg && j->in->op != OP_abs && j->in->op != OP_min &&
	    j->in->op != OP_max)
		r = flush(j, r);
	set(j, opnd(j, 0), r, t);
}
