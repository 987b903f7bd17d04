// SPDX-License-Identifier: Apache-2.0
/*
 * approx.c - approximations of transcendental functions: computed in double, rounded once.
 *
 * Each is a function of its own in the module, for a lane or for a warp.  Plain operations in a
 * fixed order without contraction give the same bits for any vector width.
 */
#include <stdio.h>

#include "jit_i.h"

#define B(j) ((j)->b)
#define MAGIC 0x1.8p52			/* added to a double, rounds it to an integer */
#define TWO_TO_E_BIAS 1023

static V fadd(struct jit *j, V a, V b)
{
	return LLVMBuildFAdd(B(j), a, b, "");
}

static V sub(struct jit *j, V a, V b)
{
	return LLVMBuildFSub(B(j), a, b, "");
}

static V mul(struct jit *j, V a, V b)
{
	return LLVMBuildFMul(B(j), a, b, "");
}

static V dbl(struct jit *j, double v)
{
	return kfp(j, j->f64, v);
}

static V is(struct jit *j, LLVMRealPredicate p, V a, V b)
{
	return LLVMBuildFCmp(B(j), p, a, b, "");
}

static V pick(struct jit *j, V c, V yes, V no)
{
	return LLVMBuildSelect(B(j), c, yes, no, "");
}

static V bits(struct jit *j, V d)
{
	return LLVMBuildBitCast(B(j), d, jty(j, j->i64), "");
}

static V of_bits(struct jit *j, V b)
{
	return LLVMBuildBitCast(B(j), b, jty(j, j->f64), "");
}

static V quiet_nan(struct jit *j)
{
	return LLVMConstBitCast(kint(j, j->i32, 0x7fc00000), jty(j, j->f32));
}

static V infinity(struct jit *j, bool minus)
{
	return LLVMConstBitCast(kint(j, j->i32, minus ? 0xff800000 : 0x7f800000), jty(j, j->f32));
}

/* (c[n - 1] * x + ...) * x + c[0] */
static V poly(struct jit *j, V x, const double *c, unsigned int n)
{
	V r = dbl(j, c[--n]);

	while (n--)
		r = fadd(j, mul(j, r, x), dbl(j, c[n]));
	return r;
}

/* 2^x for |x| < 1000: 2^fraction, with an error below 2^-40, times 2^integer. */
static V exp2_of(struct jit *j, V x)
{
	static const double c[] = { 1.0, 6.9314718055994530942e-1, 2.4022650695910071233e-1,
		5.5504108664821579953e-2, 9.6181291076284771619e-3, 1.3333558146428443423e-3,
		1.5403530393381609954e-4, 1.5252733804059840280e-5, 1.3215486790144309488e-6,
		1.0178086009239699728e-7 };
	V t = fadd(j, x, dbl(j, MAGIC)), k = sub(j, t, dbl(j, MAGIC)), e;

	e = LLVMBuildAdd(B(j), bits(j, t), kint(j, j->i64, TWO_TO_E_BIAS), "");
	e = LLVMBuildShl(B(j), e, kint(j, j->i64, 52), "");
	return mul(j, poly(j, sub(j, x, k), c, sizeof(c) / sizeof(c[0])), of_bits(j, e));
}

static V to_float(struct jit *j, V d)
{
	return LLVMBuildFPTrunc(B(j), d, jty(j, j->f32), "");
}

static V to_double(struct jit *j, V f)
{
	return LLVMBuildFPExt(B(j), f, jty(j, j->f64), "");
}

static V ex2(struct jit *j, V x)
{
	V small = is(j, LLVMRealOLT, x, kfp(j, j->f32, -150)), zero = kfp(j, j->f32, 0), in, r;
	V big = is(j, LLVMRealOGE, x, kfp(j, j->f32, 128)), nan = is(j, LLVMRealUNO, x, x);

	in = pick(j, LLVMBuildOr(B(j), LLVMBuildOr(B(j), small, big, ""), nan, ""), zero, x);
	r = to_float(j, exp2_of(j, to_double(j, in)));
	r = pick(j, small, zero, pick(j, big, infinity(j, false), r));
	return pick(j, nan, x, r);
}

/* e + log2(m) for m around 1, where log2(m) = 2 atanh(s) / ln 2. */
static V lg2(struct jit *j, V x)
{
	static const double c[] = { 1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13,
				    1.0 / 15 };
	V zero = kfp(j, j->f32, 0), inf = infinity(j, false), ok, b, d, e, s, r, up;

	ok = LLVMBuildAnd(B(j), is(j, LLVMRealOGT, x, zero), is(j, LLVMRealOLT, x, inf), "");
	b = bits(j, to_double(j, pick(j, ok, x, kfp(j, j->f32, 1))));
	e = LLVMBuildLShr(B(j), b, kint(j, j->i64, 52), "");
	e = LLVMBuildOr(B(j), e, bits(j, dbl(j, 0x1p52)), "");
	e = sub(j, of_bits(j, e), dbl(j, 0x1p52 + TWO_TO_E_BIAS));
	d = LLVMBuildAnd(B(j), b, kint(j, j->i64, 0xfffffffffffffull), "");
	d = of_bits(j, LLVMBuildOr(B(j), d, bits(j, dbl(j, 1)), ""));
	up = is(j, LLVMRealOGT, d, dbl(j, 1.4142135623730951));
	d = pick(j, up, mul(j, d, dbl(j, 0.5)), d);
	e = pick(j, up, fadd(j, e, dbl(j, 1)), e);
	s = LLVMBuildFDiv(B(j), sub(j, d, dbl(j, 1)), fadd(j, d, dbl(j, 1)), "");
	r = poly(j, mul(j, s, s), c, sizeof(c) / sizeof(c[0]));
	r = mul(j, mul(j, dbl(j, 2.8853900817779268147), s), r);
	r = to_float(j, fadd(j, e, r));
	r = pick(j, ok, r, pick(j, is(j, LLVMRealOEQ, x, zero), infinity(j, true), x));
	return pick(j, is(j, LLVMRealOLT, x, zero), quiet_nan(j), r);
}

/* sin(x + shift * pi / 2) */
static V sine(struct jit *j, V x, unsigned int shift)
{
	static const double cs[] = { -1.6666666666666632e-1, 8.3333333333224895e-3,
		-1.9841269829857949e-4, 2.7557313621385725e-6, -2.5050747762857807e-8,
		1.5896230157654656e-10 };
	static const double cc[] = { 4.1666666666666602e-2, -1.3888888888873056e-3,
		2.4801587289476729e-5, -2.7557314351390663e-7, 2.0875723212981748e-9,
		-1.1359647557788195e-11 };
	V d, k, q, r, z, s, c, odd, neg, ok;

	ok = is(j, LLVMRealOLT, intr1(j, "llvm.fabs", x), infinity(j, false));
	d = to_double(j, pick(j, ok, x, kfp(j, j->f32, 0)));
	k = sub(j, fadd(j, mul(j, d, dbl(j, 0.63661977236758134308)), dbl(j, MAGIC)),
		dbl(j, MAGIC));
	/* pi/2 in three parts: exact enough for every float */
	r = sub(j, sub(j, d, mul(j, k, dbl(j, 0x1.921fb54400000p+0))),
		mul(j, k, dbl(j, 0x1.0b4611a600000p-34)));
	r = sub(j, r, mul(j, k, dbl(j, 0x1.3198a2e037073p-69)));
	/* the quadrant: k modulo 4, which is exact */
	q = sub(j, k, mul(j, intr1(j, "llvm.trunc", mul(j, k, dbl(j, 0.25))), dbl(j, 4)));
	q = intr1(j, "llvm.trunc", q);
	q = bits(j, fadd(j, q, dbl(j, MAGIC + shift)));
	odd = LLVMBuildTrunc(B(j), q, jty(j, j->i1), "");
	neg = LLVMBuildTrunc(B(j), LLVMBuildLShr(B(j), q, kint(j, j->i64, 1), ""), jty(j, j->i1), "");
	z = mul(j, r, r);
	s = fadd(j, r, mul(j, mul(j, r, z), poly(j, z, cs, 6)));
	c = fadd(j, sub(j, dbl(j, 1), mul(j, dbl(j, 0.5), z)),
		 mul(j, mul(j, z, z), poly(j, z, cc, 6)));
	r = pick(j, odd, c, s);
	r = to_float(j, pick(j, neg, LLVMBuildFNeg(B(j), r, ""), r));
	return pick(j, ok, r, quiet_nan(j));
}

static V tanh_of(struct jit *j, V x)
{
	V d = to_double(j, x), a = intr1(j, "llvm.fabs", d), e, r, big, tiny;
	V one = kfp(j, j->f32, 1);

	big = is(j, LLVMRealOGT, a, dbl(j, 20));
	tiny = is(j, LLVMRealULT, a, dbl(j, 1e-4));		/* and NaNs */
	e = pick(j, LLVMBuildOr(B(j), big, tiny, ""), dbl(j, 0), a);
	e = exp2_of(j, mul(j, mul(j, dbl(j, 2), e), dbl(j, 1.4426950408889634074)));
	r = LLVMBuildFDiv(B(j), sub(j, e, dbl(j, 1)), fadd(j, e, dbl(j, 1)), "");
	r = to_float(j, intr2(j, "llvm.copysign", r, d));
	r = pick(j, big, intr2(j, "llvm.copysign", one, x), r);
	return pick(j, tiny, x, r);
}

static V body(struct jit *j, uint16_t op, V x)
{
	switch (op) {
	case OP_ex2: return ex2(j, x);
	case OP_lg2: return lg2(j, x);
	case OP_sin: return sine(j, x, 0);
	case OP_cos: return sine(j, x, 1);
	case OP_tanh: return tanh_of(j, x);
	}
	jit_fail(j, "not supported");
}

/* The current instruction's approximation for f32 values of a lane or a warp. */
V approx(struct jit *j, V x)
{
	LLVMBasicBlockRef back = LLVMGetInsertBlock(B(j));
	Ty t = jty(j, j->f32);
	V fn, outer = j->fn;
	char name[32];

	snprintf(name, sizeof(name), "%s_%u", ptx_op_name[j->in->op], j->vec ? 32 : 1);
	fn = LLVMGetNamedFunction(j->m, name);
	if (!fn) {
		fn = jit_new_fn(j, name, LLVMFunctionType(t, &t, 1, false), true);
		j->fn = fn;
		at_bb(j, new_bb(j, "entry"));
		LLVMBuildRet(B(j), body(j, j->in->op, LLVMGetParam(fn, 0)));
		j->fn = outer;
		at_bb(j, back);
	}
	return LLVMBuildCall2(B(j), LLVMGlobalGetValueType(fn), fn, &x, 1, "");
}
