// SPDX-License-Identifier: Apache-2.0
/*
 * math.c - arithmetic that compiled code leaves to C: directed rounding, narrow formats, integer
 * division
 *
 * Lanes are computed one by one without contraction, so results do not depend on vector width.
 * Compile with -frounding-math -ffp-contract=off.
 */
#include <math.h>
#include <string.h>
#include <xmmintrin.h>

#include "rt_i.h"

static float x32(const struct rt_warp *w, int k, uint32_t l)
{
	return w->x.f32[k * 256 + l];
}

static double x64(const struct rt_warp *w, int k, uint32_t l)
{
	return w->x.f64[k * 128 + l];
}

/* ---- directed rounding: MXCSR around one operation ---- */

static unsigned int mxcsr_of(int mode)
{
	switch (mode) {
	case RT_RZ: return 0x1f80 | 0x6000;
	case RT_RM: return 0x1f80 | 0x2000;
	case RT_RP: return 0x1f80 | 0x4000;
	default: return 0x1f80;
	}
}

static void arith32(struct rt_warp *w, uint32_t n, int op, int mode)
{
	uint32_t l;

	_mm_setcsr(mxcsr_of(mode));
	for (l = 0; l < n; l++) {
		volatile float a = x32(w, 0, l), b = x32(w, 1, l), r;

		switch (op) {
		case RT_F_ADD32: r = a + b; break;
		case RT_F_SUB32: r = a - b; break;
		case RT_F_MUL32: r = a * b; break;
		case RT_F_DIV32: r = a / b; break;
		case RT_F_SQRT32: r = __builtin_sqrtf(a); break;
		default: r = __builtin_fmaf(a, b, x32(w, 2, l));
		}
		w->y.f32[l] = r;
	}
	_mm_setcsr(0x1f80);
}

static void arith64(struct rt_warp *w, uint32_t n, int op, int mode)
{
	uint32_t l;

	_mm_setcsr(mxcsr_of(mode));
	for (l = 0; l < n; l++) {
		volatile double a = x64(w, 0, l), b = x64(w, 1, l), r;

		switch (op) {
		case RT_F_ADD64: r = a + b; break;
		case RT_F_SUB64: r = a - b; break;
		case RT_F_MUL64: r = a * b; break;
		case RT_F_DIV64: r = a / b; break;
		case RT_F_SQRT64: r = __builtin_sqrt(a); break;
		default: r = __builtin_fma(a, b, x64(w, 2, l));
		}
		w->y.f64[l] = r;
	}
	_mm_setcsr(0x1f80);
}

static void convert(struct rt_warp *w, uint32_t n, int op, int mode)
{
	uint32_t l;

	_mm_setcsr(mxcsr_of(mode));
	for (l = 0; l < n; l++) {
		volatile float f = 0;
		volatile double d = 0;
		volatile uint64_t u = w->x.u64[l];
		volatile uint32_t v = w->x.u32[l];

		switch (op) {
		case RT_F_64TO32: d = w->x.f64[l]; f = d; break;
		case RT_F_S32TO32: f = (int32_t)v; break;
		case RT_F_U32TO32: f = (int64_t)v; break;
		case RT_F_S64TO32: f = (int64_t)u; break;
		case RT_F_S64TO64: d = (int64_t)u; break;
		case RT_F_U64TO32:
		case RT_F_U64TO64:	/* halved with a sticky bit when the sign bit is set */
			if ((int64_t)u < 0) {
				volatile int64_t h = (int64_t)(u >> 1 | (u & 1));

				if (op == RT_F_U64TO32) {
					f = h;
					f = f * 2;
				} else {
					d = h;
					d = d * 2;
				}
			} else if (op == RT_F_U64TO32) {
				f = (int64_t)u;
			} else {
				d = (int64_t)u;
			}
			break;
		}
		if (op == RT_F_S64TO64 || op == RT_F_U64TO64)
			w->y.f64[l] = d;
		else
			w->y.f32[l] = f;
	}
	_mm_setcsr(0x1f80);
}

/* ---- narrow formats ---- */

struct fmt {
	int ebits, mbits, bias;
	bool has_inf;
};

static const struct fmt f16 = { 5, 10, 15, true }, bf16 = { 8, 7, 127, true };
static const struct fmt e4m3 = { 4, 3, 7, false }, e5m2 = { 5, 2, 15, true };

/* @d rounded to @f by @mode, without its sign; overflow gives all ones in the exponent. */
static uint32_t narrow(double d, const struct fmt *f, int mode)
{
	int emin = 1 - f->bias, e;
	double a = fabs(d), s, r, fl;
	bool neg = signbit(d), up;
	uint64_t m;

	if (!a)
		return 0;
	if (isinf(a))
		return ((1u << f->ebits) - 1) << f->mbits;
	frexp(a, &e);
	e--;				/* a = 1.x * 2^e */
	if (e < emin)
		e = emin;
	s = ldexp(a, f->mbits - e);	/* exact: at most 53 bits, scaled */
	fl = floor(s);
	r = s - fl;
	m = (uint64_t)fl;
	switch (mode) {
	case RT_RZ: up = false; break;
	case RT_RM: up = neg && r > 0; break;
	case RT_RP: up = !neg && r > 0; break;
	case RT_RNA: up = r >= 0.5; break;
	default: up = r > 0.5 || (r == 0.5 && (m & 1));
	}
	m += up;
	/* m has mbits + 1 bits when normal; a carry moves into the exponent by itself */
	return (uint32_t)(((uint64_t)(e - emin) << f->mbits) + m);
}

static uint16_t to_half(double d, const struct fmt *f, int mode)
{
	uint32_t r, inf = ((1u << f->ebits) - 1) << f->mbits, sign = signbit(d) ? 0x8000 : 0;

	if (isnan(d))
		return 0x7fff;
	r = narrow(d, f, mode);
	if (r >= inf) {
		r = inf;
		if (!isinf(d) && (mode == RT_RZ || (mode == RT_RM && !sign) ||
				  (mode == RT_RP && sign)))
			r = inf - 1;
	}
	return r | sign;
}

/* satfinite: overflow and infinity become the largest value, NaN stays. */
static uint8_t to_fp8(float v, const struct fmt *f, bool relu)
{
	uint32_t max = f == &e4m3 ? 0x7e : 0x7b, r, sign = signbit(v) ? 0x80 : 0;

	if (isnan(v))
		return 0x7f;
	if (relu && sign)
		return 0;
	r = narrow(v, f, RT_RN);
	return (r > max ? max : r) | sign;
}

static float from_fp8(uint8_t b, const struct fmt *f)
{
	uint32_t e = b >> f->mbits & ((1u << f->ebits) - 1), m = b & ((1u << f->mbits) - 1);
	float v;

	if (f == &e4m3 && (b & 0x7f) == 0x7f)
		return NAN;
	if (f == &e5m2 && e == 31)
		v = m ? NAN : INFINITY;
	else if (e)
		v = ldexpf(1.0f + ldexpf(m, -f->mbits), (int)e - f->bias);
	else
		v = ldexpf(m, 1 - f->bias - f->mbits);
	return b & 0x80 ? -v : v;
}

static uint32_t to_tf32(float v, int mode)
{
	uint32_t b;

	memcpy(&b, &v, 4);
	if (isnan(v))
		return 0x7fffffff;
	if (isinf(v))
		return b;
	if (mode == RT_RNA)
		b += 0x1000;
	else if (mode == RT_RN)
		b += 0xfff + (b >> 13 & 1);
	return b & ~0x1fffu;
}

static void narrow_lanes(struct rt_warp *w, uint32_t n, int op, int flags)
{
	uint32_t l;
	int mode = flags & 255;

	for (l = 0; l < n; l++)
		switch (op) {
		case RT_F_32TO16: ((uint16_t *)w->y.b)[l] = to_half(x32(w, 0, l), &f16, mode); break;
		case RT_F_32TOBF16: ((uint16_t *)w->y.b)[l] = to_half(x32(w, 0, l), &bf16, mode); break;
		case RT_F_64TO16:
			((uint16_t *)w->y.b)[l] = to_half(x64(w, 0, l), flags >> 8 ? &bf16 : &f16, mode);
			break;
		case RT_F_32TOTF32: w->y.u32[l] = to_tf32(x32(w, 0, l), mode); break;
		case RT_F_32TOE4M3: w->y.b[l] = to_fp8(x32(w, 0, l), &e4m3, flags & 1); break;
		case RT_F_32TOE5M2: w->y.b[l] = to_fp8(x32(w, 0, l), &e5m2, flags & 1); break;
		case RT_F_E4M3TO16: w->y.f32[l] = from_fp8(w->x.b[l], &e4m3); break;
		case RT_F_E5M2TO16: w->y.f32[l] = from_fp8(w->x.b[l], &e5m2); break;
		}
}

/*
 * 64-bit integers to half. A double is exact below 2^53; above, one bit stands for all those that it has no room
 * for, so that the value is rounded once.
 */
static void int64_to_half(struct rt_warp *w, uint32_t n, bool sg, int flags)
{
	uint32_t l;

	for (l = 0; l < n; l++) {
		uint64_t u = w->x.u64[l];
		bool neg = sg && (int64_t)u < 0;
		double d;

		if (neg)
			u = -u;
		if (u >> 53)
			u = (u & ~0xfffull) | (u & 0xfff ? 0x800 : 0);
		d = (double)u;
		((uint16_t *)w->y.b)[l] = to_half(neg ? -d : d, flags >> 8 ? &bf16 : &f16, flags & 255);
	}
}

/* ---- integers ---- */

static void div64(struct rt_warp *w, uint32_t n, int op)
{
	uint32_t l;

	for (l = 0; l < n; l++) {
		uint64_t a = w->x.u64[l], b = w->x.u64[128 + l], q, r;
		int64_t sa = a, sb = b;

		switch (op) {
		case RT_F_DIVU64:
		case RT_F_REMU64:
			q = b ? a / b : ~0ull;
			r = b ? a % b : a;
			break;
		default:
			if (!sb) {
				q = ~0ull;
				r = a;
			} else if (sb == -1) {
				q = -a;
				r = 0;
			} else {
				q = sa / sb;
				r = sa % sb;
			}
		}
		w->y.u64[l] = op == RT_F_DIVU64 || op == RT_F_DIVS64 ? q : r;
	}
}

/* fns.b32: the n-th set bit of mask from base, upwards or downwards. */
static uint32_t fns(uint32_t mask, uint32_t base, int32_t offset)
{
	int count = 0, i, dir = offset < 0 ? -1 : 1, want = offset < 0 ? -offset : offset;

	if (base > 31)
		return 0xffffffff;
	if (!offset)
		return mask >> base & 1 ? base : 0xffffffff;
	for (i = base; i >= 0 && i < 32; i += dir)
		if (mask >> i & 1 && ++count == want)
			return i;
	return 0xffffffff;
}

static void rt_fop(struct rt_warp *w, uint32_t mask, uint32_t op, uint32_t mode, uint32_t n)
{
	uint32_t l;

	(void)mask;
	if (op <= RT_F_FMA32)
		arith32(w, n, op, mode);
	else if (op <= RT_F_FMA64)
		arith64(w, n, op, mode);
	else if (op == RT_F_S64TO16 || op == RT_F_U64TO16)
		int64_to_half(w, n, op == RT_F_S64TO16, mode);
	else if (op == RT_F_64TO32 || (op >= RT_F_S32TO32 && op <= RT_F_U64TO64))
		convert(w, n, op, mode);
	else if (op == RT_F_FNS)
		for (l = 0; l < n; l++)
			w->y.u32[l] = fns(w->x.u32[l], w->x.u32[256 + l], w->x.u32[512 + l]);
	else if (op >= RT_F_DIVU32)
		div64(w, n, op);
	else
		narrow_lanes(w, n, op, mode);
}

const struct rt_symbol rt_math_symbols[] = {
	{ "rt_fop", rt_fop }, { NULL, NULL },
};
