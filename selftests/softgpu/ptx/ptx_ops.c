// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_ops.c - one PTX opcode after the other, on edge cases, against C.
 *
 * Each row is a line of PTX that computes %d from %a, %b and %c, and a function that returns the
 * expected value.  It runs once with varying operands and once with uniform ones (one value for the
 * whole warp), which compile to different code.
 */
#include "ptx_test.h"

#include <fenv.h>

enum { N = 1024 };

struct row {
	const char *type;	/* of a, b and c, and d: "b32 b32" */
	const char *ptx;
	uint64_t (*ref)(uint64_t a, uint64_t b, uint64_t c);
};

static uint64_t rng_state;

static uint64_t rng(void)
{
	rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
	return rng_state ^ rng_state >> 29;
}

static float f(uint64_t v)
{
	uint32_t u = v;
	float r;

	memcpy(&r, &u, 4);
	return r;
}

static uint64_t fb(float v)
{
	uint32_t u;

	memcpy(&u, &v, 4);
	return u;
}

static double d(uint64_t v)
{
	double r;

	memcpy(&r, &v, 8);
	return r;
}

static uint64_t db(double v)
{
	uint64_t u;

	memcpy(&u, &v, 8);
	return u;
}

static float ftz(float v)
{
	return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}

#define REF(name, expr)								\
	static uint64_t name(uint64_t a, uint64_t b, uint64_t c)		\
	{									\
		(void)a; (void)b; (void)c;					\
		return expr;							\
	}
#define U32(x) ((uint32_t)(x))
#define S32(x) ((int32_t)(x))
#define S64(x) ((int64_t)(x))

REF(add32, U32(a + b))
REF(sub32, U32(a - b))
REF(mullo, U32(a * b))
REF(mulhi_u, (uint64_t)U32(a) * U32(b) >> 32)
REF(mulhi_s, U32((uint64_t)((int64_t)S32(a) * S32(b)) >> 32))
REF(madlo, U32(a * b + c))
REF(wide_s, (uint64_t)((int64_t)S32(a) * S32(b)))
REF(wide_u, (uint64_t)U32(a) * U32(b))
REF(div_u, U32(b) ? U32(a) / U32(b) : 0xffffffff)
REF(rem_u, U32(b) ? U32(a) % U32(b) : U32(a))
REF(div_s, !S32(b) ? 0xffffffff : U32((int64_t)S32(a) / S32(b)))
REF(rem_s, !S32(b) ? U32(a) : U32((int64_t)S32(a) % S32(b)))
REF(shl32, U32(b) > 31 ? 0 : U32(a << U32(b)))
REF(shr_u, U32(b) > 31 ? 0 : U32(a) >> U32(b))
REF(shr_s, U32(S32(a) >> (U32(b) > 31 ? 31 : U32(b))))
REF(min_s, U32(S32(a) < S32(b) ? a : b))
REF(max_u, U32(a) > U32(b) ? U32(a) : U32(b))
REF(abs_s, U32(S32(a) < 0 ? -(uint64_t)a : a))
REF(popc, __builtin_popcount(U32(a)))
REF(clz32, U32(a) ? __builtin_clz(U32(a)) : 32)
REF(sad_s, U32((S32(a) < S32(b) ? b - a : a - b) + c))
REF(addsat, S64(S32(a)) + S32(b) > INT32_MAX ? INT32_MAX : S64(S32(a)) + S32(b) < INT32_MIN ?
	    0x80000000 : U32(a + b))
REF(vshr_add, U32((U32(b) > 31 ? 0 : U32(a) >> U32(b)) + c))
REF(vshr_wrap, U32(S32(a) >> (b & 31)))
#define LANES(n, w, t, cmp) ({ uint32_t r_ = 0; for (int k_ = 0; k_ < n; k_++)	\
		r_ |= (uint32_t)((t)(a >> k_ * w) cmp (t)(b >> k_ * w)) << k_ * w; r_; })
REF(vset4_eq, LANES(4, 8, uint8_t, ==))
REF(vset4_ne, LANES(4, 8, uint8_t, !=))
REF(vset4_lt, LANES(4, 8, int8_t, <))
REF(vset2_ge, LANES(2, 16, uint16_t, >=))
REF(vset2_add, U32(c + (LANES(2, 16, int16_t, >) & 1) + (LANES(2, 16, int16_t, >) >> 16)))
REF(vshl_sat, ({ __int128 v = S32(a) * ((__int128)1 << (U32(b) > 32 ? 32 : U32(b)));
		 int32_t r = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
		 U32(r > S32(c) ? r : S32(c)); }))
REF(brev, ({ uint32_t r = 0; for (int i = 0; i < 32; i++) r |= (U32(a) >> i & 1) << (31 - i); r; }))
REF(bfind_u, U32(U32(a) ? 31 - __builtin_clz(U32(a)) : -1))
REF(bfind_s, ({ uint32_t x = S32(a) < 0 ? ~U32(a) : U32(a); U32(x ? 31 - __builtin_clz(x) : -1); }))
REF(bfe_u, ({ uint32_t p = b & 255, n = c & 255, r = 0;
	      for (uint32_t i = 0; i < 32; i++)
		      if (i < n && p + i <= 31)
			      r |= (U32(a) >> (p + i) & 1) << i;
	      r; }))
REF(bfe_s, ({ uint32_t p = b & 255, n = c & 255, r = 0, s;
	      s = n ? U32(a) >> (p + n - 1 < 31 ? p + n - 1 : 31) & 1 : 0;
	      for (uint32_t i = 0; i < 32; i++)
		      r |= (i < n && p + i <= 31 ? U32(a) >> (p + i) & 1 : s) << i;
	      r; }))
REF(bfi, ({ uint32_t p = c & 255, n = c >> 8 & 255, r = U32(b);
	    for (uint32_t i = 0; i < n && p + i <= 31; i++)
		    r = (r & ~(1u << (p + i))) | (U32(a) >> i & 1) << (p + i);
	    r; }))
REF(prmt, ({ uint64_t w = U32(a) | (uint64_t)U32(b) << 32; uint32_t r = 0;
	     for (int i = 0; i < 4; i++) {
		     uint32_t s = U32(c) >> 4 * i & 15, x = w >> 8 * (s & 7) & 255;
		     if (s & 8) x = x & 128 ? 255 : 0;
		     r |= x << 8 * i;
	     }
	     r; }))
REF(shf_l_wrap, ({ uint32_t n = c & 31; U32(((uint64_t)U32(b) << 32 | U32(a)) << n >> 32); }))
REF(shf_r_clamp, ({ uint32_t n = U32(c) > 32 ? 32 : U32(c);
		    U32(((uint64_t)U32(b) << 32 | U32(a)) >> n); }))
REF(lop3_e8, U32((a & b) | (b & c) | (a & c)))
REF(lop3_96, U32(a ^ b ^ c))
REF(dp4a_s, ({ int32_t r = S32(c); for (int i = 0; i < 4; i++)
	       r = S32(U32(r) + U32((int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i))); U32(r); }))
REF(mul24lo, U32(S64(S32(a << 8) >> 8) * (S32(b << 8) >> 8)))
REF(addc_chain, ({ uint64_t x = (uint64_t)U32(a) + U32(b); U32(U32(c) + U32(c) + (x >> 32)); }))
/* The flag after a subtraction says that nothing was borrowed. */
REF(subc_chain, ({ uint64_t x = ((uint64_t)U32(c) << 32 | U32(a)) - ((uint64_t)U32(a) << 32 | U32(b));
	       U32(x >> 32); }))
REF(sub_addc, U32(c) + (U32(a) >= U32(b)))
REF(add_subc, U32(a) - U32(c) - !(((uint64_t)U32(a) + U32(b)) >> 32))
REF(subc_addc, ({ uint64_t x = (uint64_t)U32(c) << 32 | U32(a), y = (uint64_t)U32(a) << 32 | U32(b);
	       U32(7 + (x >= y)); }))
REF(add64, a + b)
REF(mulhi64, (uint64_t)((unsigned __int128)a * b >> 64))
REF(div64s, !b ? ~0ull : b == ~0ull ? -a : (uint64_t)(S64(a) / S64(b)))
REF(rem64u, b ? a % b : a)
REF(shl64, U32(b) > 63 ? 0 : a << U32(b))
REF(selp, S32(a) < S32(b) ? U32(a) : U32(c))
REF(slct, S32(c) >= 0 ? U32(a) : U32(b))
REF(setu, U32(a) >= U32(b) ? 0xffffffff : 0)
REF(r_fadd, fb(f(a) + f(b)))
REF(r_fmul, fb(f(a) * f(b)))
REF(r_ffma, fb(fmaf(f(a), f(b), f(c))))
REF(fmad2, fb(f(fb(f(a) * f(b))) + f(c)))
REF(r_fdiv, fb(f(a) / f(b)))
REF(r_fsqrt, fb(sqrtf(f(a))))
REF(fadd_ftz, fb(ftz(ftz(f(a)) + ftz(f(b)))))
REF(fmul_sat, ({ float v = f(a) * f(b); fb(v != v || v <= 0 ? 0 : v > 1 ? 1 : v); }))
REF(fneg, U32(a ^ 0x80000000))
REF(fabs_, U32(a & 0x7fffffff))
REF(fmin_, ({ float x = f(a), y = f(b);
	      x != x && y != y ? 0x7fffffff : x != x ? fb(y) : y != y ? fb(x) :
	      x == y ? U32(a | b) : fb(x < y ? x : y); }))
REF(fmax_nan, ({ float x = f(a), y = f(b);
		 x != x || y != y ? 0x7fffffff : x == y ? U32(a & b) : fb(x > y ? x : y); }))
#define ROUNDED(name, mode, expr)						\
	REF(name, ({ fesetround(mode); volatile float r_ = (expr); fesetround(FE_TONEAREST); fb(r_); }))
#define VF(x) ({ volatile float v_ = f(x); v_; })
ROUNDED(fadd_rz, FE_TOWARDZERO, VF(a) + VF(b))
ROUNDED(fmul_rm, FE_DOWNWARD, VF(a) * VF(b))
ROUNDED(fdiv_rp, FE_UPWARD, VF(a) / VF(b))
ROUNDED(ffma_rz, FE_TOWARDZERO, fmaf(VF(a), VF(b), VF(c)))
ROUNDED(i2f_rz, FE_TOWARDZERO, ({ volatile int32_t i = S32(a); (float)i; }))
ROUNDED(d2f_rp, FE_UPWARD, ({ volatile double x = d(a); (float)x; }))
REF(dadd, db(d(a) + d(b)))
REF(dfma, db(fma(d(a), d(b), d(c))))
REF(ddiv, db(d(a) / d(b)))
REF(setp_ltu, !(f(a) >= f(b)) ? 1 : 0)
REF(setp_ne, f(a) < f(b) || f(a) > f(b) ? 1 : 0)
static double clampd(double v, double lo, double hi)
{
	return v != v ? 0 : v < lo ? lo : v > hi ? hi : v;
}
REF(f2s_rzi, U32(S32(clampd(trunc((double)f(a)), INT32_MIN, INT32_MAX))))
REF(f2s_rni, U32(S32(clampd(nearbyint((double)f(a)), INT32_MIN, INT32_MAX))))
REF(f2u_rmi, U32((int64_t)clampd(floor((double)f(a)), 0, UINT32_MAX)))
REF(f2s64, f(a) != f(a) ? 1ull << 63 : f(a) >= 0x1p63f ? INT64_MAX : f(a) < -0x1p63f ? 1ull << 63 :
	   (uint64_t)(int64_t)truncf(f(a)))
REF(f2s8, (uint64_t)U32((int32_t)(int8_t)clampd(trunc((double)f(a)), -128, 127)))
REF(u2f, fb((float)U32(a)))
REF(s642f, fb((float)S64(a)))
REF(f2d, db(f(a)))
REF(sat_s8, U32((int32_t)(S32(a) > 127 ? 127 : S32(a) < -128 ? -128 : S32(a))))
REF(sat_u16, S32(a) < 0 ? 0 : S32(a) > 65535 ? 65535 : U32(a))
REF(sext8, U32((int32_t)(int8_t)a))
REF(frni, fb(nearbyintf(f(a))))
REF(half_rt, ({ _Float16 h = (_Float16)f(a); fb((float)h); }))
REF(hadd, ({ _Float16 x, y, r; uint16_t q, p = a, s = b; memcpy(&x, &p, 2); memcpy(&y, &s, 2);
	     r = (_Float16)((float)x + (float)y); memcpy(&q, &r, 2); (q & 0x7fff) > 0x7c00 ? 0x7fff : q; }))
REF(hfma, ({ _Float16 x, y, z, r; uint16_t q, p = a, s = b, t = c; memcpy(&x, &p, 2);
	     memcpy(&y, &s, 2); memcpy(&z, &t, 2);
	     __float128 e = (__float128)x * (__float128)y + (__float128)z; r = (_Float16)e;
	     memcpy(&q, &r, 2); (q & 0x7fff) > 0x7c00 ? 0x7fff : q; }))
REF(bf_rn, ({ uint32_t u = U32(a); f(a) != f(a) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16; }))
REF(bfma, ({ __float128 e = (__float128)f(a << 16) * f(b << 16) + f(c << 16);
	     uint32_t u = fb((float)e) & 0xffff0000;
	     __float128 at = f(u), next = f(u + 0x10000), half;
	     if (fabs((double)at) > fabs((double)e)) {	/* the cast went past it */
		     u -= 0x10000; next = at; at = f(u);
	     }
	     half = at + (next - at) / 2;
	     u >>= 16; (e == half ? u & 1 : (e > half) == (next > at)) ? u + 1 : u; }))
#define UPPER(x) f((x) & 0xffff0000)	/* a bf16 */
REF(mixed_add, fb(UPPER(a) + f(b)))
REF(mixed_fma, fb(fmaf(UPPER(a), UPPER(b), f(c))))
REF(mixed_sat, ({ float r = (float)(_Float16)f(a) + f(b); fb(r > 0 ? r < 1 ? r : 1 : 0); }))
static float as_half(uint64_t v)
{
	volatile float r = (_Float16)f(v);

	return r;
}
REF(mixed_sub_rz, ({ volatile float x = as_half(a); fesetround(FE_TOWARDZERO);
		     volatile float r = x - VF(b); fesetround(FE_TONEAREST); fb(r); }))
ROUNDED(mixed_fma_rm, FE_DOWNWARD, fmaf(VF((a) & 0xffff0000), VF((b) & 0xffff0000), VF(c)))
/* An integer as bf16, rounded by 'n' (nearest), 'z', or 'p': in integers. */
static uint64_t bf_of(bool neg, uint64_t v, char mode)
{
	int e = v ? 63 - __builtin_clzll(v) : 0, cut = e > 7 ? e - 7 : 0;
	uint64_t m = v >> cut, rest = v - (m << cut), half = cut ? 1ull << (cut - 1) : 1;
	bool up = mode == 'n' ? rest > half || (rest == half && m & 1) : mode == 'p' && rest && !neg;

	if (!v)
		return 0;
	return (uint64_t)neg << 15 | (((uint64_t)(e + 126) << 7) + (e < 7 ? m << (7 - e) : m) + (cut && up));
}
REF(s32_bf_rz, bf_of(S32(a) < 0, S32(a) < 0 ? -(int64_t)S32(a) : S32(a), 'z'))
REF(u32_bf_rn, bf_of(false, U32(a), 'n'))
REF(s16_bf_rp, bf_of((int16_t)a < 0, (int16_t)a < 0 ? -(int16_t)a : (int16_t)a, 'p'))
REF(u64_bf_rn, bf_of(false, a, 'n'))
REF(s64_bf_rz, bf_of(S64(a) < 0, S64(a) < 0 ? -a : a, 'z'))
REF(testp_sub, fpclassify(f(a)) == FP_SUBNORMAL)
REF(sign_join, ({ float b2 = f(a) > 0 ? f(b) : f(b) + 1; float l = ftz(f(c));
		  l <= INFINITY ? U32((fb(b2) & 0x7fffffff) | (a & 0x80000000)) : fb(b2); }))
REF(bits_join, ({ uint32_t x = f(a) > 0 ? U32(b) : U32(b) + 1;
		  S32(c) < 9 ? (U32(a) & 0xff0) | (x & ~0xff0u) : x; }))
REF(copysign_, U32((b & 0x7fffffff) | (a & 0x80000000)))

static const struct row rows[] = {
	{ "b32", "add.u32 %d, %a, %b;", add32 },
	{ "b32", "sub.s32 %d, %a, %b;", sub32 },
	{ "b32", "mul.lo.s32 %d, %a, %b;", mullo },
	{ "b32", "mul.hi.u32 %d, %a, %b;", mulhi_u },
	{ "b32", "mul.hi.s32 %d, %a, %b;", mulhi_s },
	{ "b32", "mad.lo.u32 %d, %a, %b, %c;", madlo },
	{ "b32 b64", "mul.wide.s32 %d, %a, %b;", wide_s },
	{ "b32 b64", "mul.wide.u32 %d, %a, %b;", wide_u },
	{ "b32", "div.u32 %d, %a, %b;", div_u },
	{ "b32", "rem.u32 %d, %a, %b;", rem_u },
	{ "b32", "div.s32 %d, %a, %b;", div_s },
	{ "b32", "rem.s32 %d, %a, %b;", rem_s },
	{ "b32", "shl.b32 %d, %a, %b;", shl32 },
	{ "b32", "shr.u32 %d, %a, %b;", shr_u },
	{ "b32", "shr.s32 %d, %a, %b;", shr_s },
	{ "b32", "min.s32 %d, %a, %b;", min_s },
	{ "b32", "max.u32 %d, %a, %b;", max_u },
	{ "b32", "abs.s32 %d, %a;", abs_s },
	{ "b32", "popc.b32 %d, %a;", popc },
	{ "b32", "clz.b32 %d, %a;", clz32 },
	{ "b32", "sad.s32 %d, %a, %b, %c;", sad_s },
	{ "b32", "add.sat.s32 %d, %a, %b;", addsat },
	{ "b32", "brev.b32 %d, %a;", brev },
	{ "b32", "bfind.u32 %d, %a;", bfind_u },
	{ "b32", "bfind.s32 %d, %a;", bfind_s },
	{ "b32", "bfe.u32 %d, %a, %b, %c;", bfe_u },
	{ "b32", "bfe.s32 %d, %a, %b, %c;", bfe_s },
	{ "b32", "{ .reg .b32 %n; shr.u32 %n, %c, 8; bfi.b32 %d, %a, %b, %c, %n; }", bfi },
	{ "b32", "prmt.b32 %d, %a, %b, %c;", prmt },
	{ "b32", "shf.l.wrap.b32 %d, %a, %b, %c;", shf_l_wrap },
	{ "b32", "shf.r.clamp.b32 %d, %a, %b, %c;", shf_r_clamp },
	{ "b32", "lop3.b32 %d, %a, %b, %c, 0xe8;", lop3_e8 },
	{ "b32", "lop3.b32 %d, %a, %b, %c, 0x96;", lop3_96 },
	{ "b32", "dp4a.s32.s32 %d, %a, %b, %c;", dp4a_s },
	{ "b32", "vshr.u32.u32.u32.clamp.add %d, %a, %b, %c;", vshr_add },
	{ "b32", "vshr.s32.s32.u32.wrap %d, %a, %b;", vshr_wrap },
	{ "b32", "vset4.u32.u32.eq %d, %a, %b, %c;", vset4_eq },
	{ "b32", "vset4.u32.u32.ne %d, %a, %b, %c;", vset4_ne },
	{ "b32", "vset4.s32.s32.lt %d, %a, %b, %c;", vset4_lt },
	{ "b32", "vset2.u32.u32.ge %d, %a, %b, %c;", vset2_ge },
	{ "b32", "vset2.s32.s32.gt.add %d, %a, %b, %c;", vset2_add },
	{ "b32", "vshl.s32.s32.u32.sat.clamp.max %d, %a, %b, %c;", vshl_sat },
	{ "b32", "mul24.lo.s32 %d, %a, %b;", mul24lo },
	{ "b32", "{ .reg .b32 %n; add.cc.u32 %n, %a, %b; addc.u32 %d, %c, %c; }", addc_chain },
	{ "b32", "{ .reg .b32 %n; sub.cc.u32 %n, %a, %b; subc.u32 %d, %c, %a; }", subc_chain },
	{ "b32", "{ .reg .b32 %n; sub.cc.u32 %n, %a, %b; addc.u32 %d, %c, 0; }", sub_addc },
	{ "b32", "{ .reg .b32 %n; add.cc.u32 %n, %a, %b; subc.u32 %d, %a, %c; }", add_subc },
	{ "b32", "{ .reg .b32 %n; sub.cc.u32 %n, %a, %b; subc.cc.u32 %n, %c, %a; addc.u32 %d, 7, 0; }",
	  subc_addc },
	{ "b64", "add.s64 %d, %a, %b;", add64 },
	{ "b64", "mul.hi.u64 %d, %a, %b;", mulhi64 },
	{ "b64", "div.s64 %d, %a, %b;", div64s },
	{ "b64", "rem.u64 %d, %a, %b;", rem64u },
	{ "b64", "{ .reg .b32 %n; cvt.u32.u64 %n, %b; shl.b64 %d, %a, %n; }", shl64 },
	{ "b32", "{ .reg .pred %p; setp.lt.s32 %p, %a, %b; selp.b32 %d, %a, %c, %p; }", selp },
	{ "b32", "slct.u32.s32 %d, %a, %b, %c;", slct },
	{ "b32", "set.ge.u32.u32 %d, %a, %b;", setu },
	{ "f32", "add.f32 %d, %a, %b;", r_fadd },
	{ "f32", "mul.rn.f32 %d, %a, %b;", r_fmul },
	{ "f32", "fma.rn.f32 %d, %a, %b, %c;", r_ffma },
	{ "f32", "{ .reg .f32 %n; mul.f32 %n, %a, %b; add.f32 %d, %n, %c; }", fmad2 },
	{ "f32", "div.rn.f32 %d, %a, %b;", r_fdiv },
	{ "f32", "sqrt.rn.f32 %d, %a;", r_fsqrt },
	{ "f32", "add.ftz.f32 %d, %a, %b;", fadd_ftz },
	{ "f32", "mul.sat.f32 %d, %a, %b;", fmul_sat },
	{ "f32", "neg.f32 %d, %a;", fneg },
	{ "f32", "abs.f32 %d, %a;", fabs_ },
	{ "f32", "min.f32 %d, %a, %b;", fmin_ },
	{ "f32", "max.NaN.f32 %d, %a, %b;", fmax_nan },
	{ "f32", "add.rz.f32 %d, %a, %b;", fadd_rz },
	{ "f32", "mul.rm.f32 %d, %a, %b;", fmul_rm },
	{ "f32", "div.rp.f32 %d, %a, %b;", fdiv_rp },
	{ "f32", "fma.rz.f32 %d, %a, %b, %c;", ffma_rz },
	{ "b32 f32", "cvt.rz.f32.s32 %d, %a;", i2f_rz },
	{ "f64 f32", "cvt.rp.f32.f64 %d, %a;", d2f_rp },
	{ "f64", "add.f64 %d, %a, %b;", dadd },
	{ "f64", "fma.rn.f64 %d, %a, %b, %c;", dfma },
	{ "f64", "div.rn.f64 %d, %a, %b;", ddiv },
	{ "f32 b32", "{ .reg .pred %p; setp.ltu.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p; }", setp_ltu },
	{ "f32 b32", "{ .reg .pred %p; setp.ne.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p; }", setp_ne },
	{ "f32 b32", "cvt.rzi.s32.f32 %d, %a;", f2s_rzi },
	{ "f32 b32", "cvt.rni.s32.f32 %d, %a;", f2s_rni },
	{ "f32 b32", "cvt.rmi.u32.f32 %d, %a;", f2u_rmi },
	{ "f32 b64", "cvt.rzi.s64.f32 %d, %a;", f2s64 },
	{ "f32 b32", "cvt.rzi.s8.f32 %d, %a;", f2s8 },
	{ "b32 f32", "cvt.rn.f32.u32 %d, %a;", u2f },
	{ "b64 f32", "cvt.rn.f32.s64 %d, %a;", s642f },
	{ "f32 f64", "cvt.f64.f32 %d, %a;", f2d },
	{ "b32", "cvt.sat.s8.s32 %d, %a;", sat_s8 },
	{ "b32", "{ .reg .b16 %h; cvt.sat.u16.s32 %h, %a; cvt.u32.u16 %d, %h; }", sat_u16 },
	{ "b32", "cvt.s32.s8 %d, %a;", sext8 },
	{ "f32", "cvt.rni.f32.f32 %d, %a;", frni },
	{ "f32", "{ .reg .b16 %h; cvt.rn.f16.f32 %h, %a; cvt.f32.f16 %d, %h; }", half_rt },
	{ "b32", "{ .reg .b16 %x<3>; cvt.u16.u32 %x0, %a; cvt.u16.u32 %x1, %b;"
		 " add.f16 %x2, %x0, %x1; cvt.u32.u16 %d, %x2; }", hadd },
	{ "b32", "{ .reg .b16 %x<4>; cvt.u16.u32 %x0, %a; cvt.u16.u32 %x1, %b; cvt.u16.u32 %x2, %c;"
		 " fma.rn.f16 %x3, %x0, %x1, %x2; cvt.u32.u16 %d, %x3; }", hfma },
	{ "f32 b32", "{ .reg .b16 %h; cvt.rn.bf16.f32 %h, %a; cvt.u32.u16 %d, %h; }", bf_rn },
	{ "f32", "{ .reg .b16 %l, %h; mov.b32 {%l, %h}, %a; add.rn.f32.bf16 %d, %h, %b; }", mixed_add },
	{ "f32", "{ .reg .b16 %h; cvt.rn.f16.f32 %h, %a; add.sat.f32.f16 %d, %h, %b; }", mixed_sat },
	{ "f32", "{ .reg .b16 %h; cvt.rn.f16.f32 %h, %a; sub.rz.f32.f16 %d, %h, %b; }", mixed_sub_rz },
	{ "f32", "{ .reg .b16 %l, %h, %i; mov.b32 {%l, %h}, %a; mov.b32 {%l, %i}, %b;"
		 " fma.rn.f32.bf16 %d, %h, %i, %c; }", mixed_fma },
	{ "f32", "{ .reg .b16 %l, %h, %i; mov.b32 {%l, %h}, %a; mov.b32 {%l, %i}, %b;"
		 " fma.rm.f32.bf16 %d, %h, %i, %c; }", mixed_fma_rm },
	{ "b32", "{ .reg .b16 %h; cvt.rz.bf16.s32 %h, %a; cvt.u32.u16 %d, %h; }", s32_bf_rz },
	{ "b32", "{ .reg .b16 %h; cvt.rn.bf16.u32 %h, %a; cvt.u32.u16 %d, %h; }", u32_bf_rn },
	{ "b32", "{ .reg .b16 %h; cvt.u16.u32 %h, %a; cvt.rp.bf16.s16 %h, %h; cvt.u32.u16 %d, %h; }",
	  s16_bf_rp },
	{ "b64 b32", "{ .reg .b16 %h; cvt.rn.bf16.u64 %h, %a; cvt.u32.u16 %d, %h; }", u64_bf_rn },
	{ "b64 b32", "{ .reg .b16 %h; cvt.rz.bf16.s64 %h, %a; cvt.u32.u16 %d, %h; }", s64_bf_rz },
	{ "f32 b32", "{ .reg .pred %p; testp.subnormal.f32 %p, %a; selp.u32 %d, 1, 0, %p; }",
	  testp_sub },
	{ "f32", "copysign.f32 %d, %a, %b;", copysign_ },
	{ "f32", "{ .reg .pred %p, %q; .reg .f32 %n; setp.gt.f32 %q, %a, 0f00000000; @%q bra L;\n"
		 "add.f32 %b, %b, 0f3F800000;\nL: copysign.f32 %n, %a, %b;\n"
		 "setp.le.ftz.f32 %p, %c, 0f7F800000; selp.f32 %d, %n, %b, %p; }", sign_join },
	{ "b32", "{ .reg .pred %p, %q; .reg .b32 %n<3>; setp.gt.f32 %q, %a, 0f00000000; @%q bra L;\n"
		 "add.u32 %b, %b, 1;\nL: and.b32 %n0, %a, 0xff0; and.b32 %n1, %b, 0xfffff00f;\n"
		 "or.b32 %n2, %n0, %n1; setp.lt.s32 %p, %c, 9; selp.b32 %d, %n2, %b, %p; }", bits_join },
};

static const uint32_t edge32[] = {
	0, 1, 2, 3, 31, 32, 33, 63, 64, 127, 128, 255, 256, 0x7fff, 0x8000, 0xffff, 0x10000,
	0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff, 0x3f800000, 0xbf800000,
	0x3f000000, 0x40200000, 0x00000001, 0x80000007, 0x007fffff, 0x00800000, 0x7f7fffff,
	0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x4f000000, 0xcf000000, 0x5f000000,
	0x33800000, 0x477fe000, 0x477ff000, 0x38800000, 0x387fffff, 0x33000000, 0x33000001,
	0x3c003c01, 0x7bff0400, 0x00010001, 0x7c007e00,
};

static uint64_t operand(const char *type, uint32_t i, uint32_t which)
{
	uint32_t n = sizeof(edge32) / sizeof(edge32[0]);
	bool edge = i < n * 12 && which < 2;
	uint64_t v;

	if (edge)
		v = edge32[which ? (i * 7 + i / n) % n : i % n];
	else
		v = rng() >> (rng() & 31);
	if (type[1] == '6') {
		if (edge && type[0] == 'f')
			v = db(f(v));
		else if (edge)
			v = (uint64_t)(int64_t)(int32_t)v;
		else
			v = rng();
	}
	return v;
}

/*
 * A product of a and b that lies in the middle between two halves, and a c that is too small to be seen
 * in f32, or in f64: who rounds the sum to one of these first loses which side of the middle it is on.
 */
static void ties_f16(uint64_t *a, uint64_t *b, uint64_t *c)
{
	_Float16 x, y;
	uint16_t p, q;

	do {
		p = 0x3c00 | (rng() & 0x83ff);
		q = 0x3c00 | (rng() & 0x3ff);
		memcpy(&x, &p, 2);
		memcpy(&y, &q, 2);
	} while ((fb((float)x * (float)y) & 0xfff) || ((fb((float)x * (float)y) & 0x1000) == 0));
	*a = p;
	*b = q;
	*c = (rng() & 0x8000) | (rng() & 1 ? 1 : 2);
}

static void ties_bf16(uint64_t *a, uint64_t *b, uint64_t *c)
{
	do {
		*a = 0x3f80 | (rng() & 0x807f);
		*b = 0x3f80 | (rng() & 0x7f);
	} while ((fb(f(*a << 16) * f(*b << 16)) & 0xffff) != 0x8000);
	*c = (rng() & 0x8000) | (127 - 20 - rng() % 80) << 7 | (rng() & 0x7f);
}

typedef void (*operands_fn)(uint64_t *a, uint64_t *b, uint64_t *c);

static bool is_nan(const char *type, uint64_t v)
{
	return type[0] == 'f' && (type[1] == '6' ? isnan(d(v)) : isnan(f(v)));
}

/* One kernel for one row; b, c read at index 0 make them uniform, a too in the uniform variant. */
static int build(struct prog *p, const struct row *r, bool uniform, char *st, char *dt)
{
	char text[4096];
	int n = sscanf(r->type, "%7s %7s", st, dt);

	if (n < 2)
		strcpy(dt, st);
	snprintf(text, sizeof(text),
		 ".version 8.0\n.target sm_90\n.address_size 64\n"
		 ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{\n"
		 ".reg .b64 %%rd<10>; .reg .b32 %%r<8>; .reg .%s %%a, %%b, %%c; .reg .%s %%d;\n"
		 "ld.param.u64 %%rd0, [pa]; ld.param.u64 %%rd1, [pb]; ld.param.u64 %%rd2, [pc];\n"
		 "ld.param.u64 %%rd3, [pd]; mov.u32 %%r0, %%ctaid.x; mov.u32 %%r1, %%ntid.x;\n"
		 "mov.u32 %%r2, %%tid.x; mad.lo.u32 %%r3, %%r0, %%r1, %%r2;\n"
		 "mul.wide.u32 %%rd4, %%r3, 8; mul.wide.u32 %%rd5, %s, 8;\n"
		 "add.u64 %%rd0, %%rd0, %%rd5; add.u64 %%rd1, %%rd1, %%rd5; add.u64 %%rd2, %%rd2, %%rd5;\n"
		 "add.u64 %%rd3, %%rd3, %%rd4;\n"
		 "ld.global.%s %%a, [%%rd0]; ld.global.%s %%b, [%%rd1]; ld.global.%s %%c, [%%rd2];\n"
		 "%s\nst.global.%s [%%rd3], %%d;\nret;\n}\n",
		 st, dt, uniform ? "%r0" : "%r3", st, st, st, r->ptx, dt);
	return prog_load(p, text, "k");
}

/* operands: NULL of all kinds */
static void check_row(struct __test_metadata *_metadata, const struct row *r, bool uniform,
		      operands_fn operands)
{
	uint64_t *a = (uint64_t *)window(), *b = a + N, *c = b + N, *out = c + N;
	uint64_t args[4] = { (uint64_t)a, (uint64_t)b, (uint64_t)c, (uint64_t)out };
	uint32_t block = uniform ? 32 : 96, i, src, bad = 0;
	struct prog p;
	char st[8], dt[8];
	int ret;

	rng_state = 42;
	for (i = 0; i < N; i++) {
		a[i] = operand(r->type, i, 0);
		b[i] = operand(r->type, i, 1);
		c[i] = operand(r->type, i, 2);
		if (operands)
			operands(&a[i], &b[i], &c[i]);
	}
	memset(out, 0xa5, N * 8);
	ret = build(&p, r, uniform, st, dt);
	ASSERT_EQ(0, ret)
		TH_LOG("%s: %s", r->ptx, p.err);
	ret = prog_run(&p, N / block, block, 0, args, sizeof(args));
	ASSERT_EQ(0, ret);
	for (i = 0; i < N / block * block; i++) {
		uint64_t want, got = out[i];

		src = uniform ? i / block : i;
		want = r->ref(a[src], b[src], c[src]);
		if (dt[1] != '6') {
			got &= 0xffffffff;
			EXPECT_EQ(0xa5a5a5a5, out[i] >> 32);
		}
		if (got == want || (is_nan(dt, got) && is_nan(dt, want)))
			continue;
		if (bad++ < 4)
			TH_LOG("%s (%s): a %llx b %llx c %llx: got %llx, want %llx", r->ptx,
			       uniform ? "uniform" : "varying", (unsigned long long)a[src],
			       (unsigned long long)b[src], (unsigned long long)c[src],
			       (unsigned long long)got, (unsigned long long)want);
	}
	EXPECT_EQ(0, bad);
	prog_free_all(&p);
}

FIXTURE(opcodes) {
};
FIXTURE_SETUP(opcodes)
{
}
FIXTURE_TEARDOWN(opcodes)
{
}

TEST_F_TIMEOUT(opcodes, with_varying_operands, 900)
{
	unsigned int i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check_row(_metadata, &rows[i], false, NULL);
}

TEST_F_TIMEOUT(opcodes, with_uniform_operands, 900)
{
	unsigned int i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check_row(_metadata, &rows[i], true, NULL);
}

TEST_F(opcodes, products_of_halves_and_a_sum_are_rounded_once)
{
	static const struct row f16 = { "b32", "{ .reg .b16 %x<4>; cvt.u16.u32 %x0, %a;"
		" cvt.u16.u32 %x1, %b; cvt.u16.u32 %x2, %c;"
		" fma.rn.f16 %x3, %x0, %x1, %x2; cvt.u32.u16 %d, %x3; }", hfma };
	static const struct row bf16 = { "b32", "{ .reg .b16 %x<4>; cvt.u16.u32 %x0, %a;"
		" cvt.u16.u32 %x1, %b; cvt.u16.u32 %x2, %c;"
		" fma.rn.bf16 %x3, %x0, %x1, %x2; cvt.u32.u16 %d, %x3; }", bfma };

	for (int uniform = 0; uniform < 2; uniform++) {
		check_row(_metadata, &f16, uniform, ties_f16);
		check_row(_metadata, &bf16, uniform, ties_bf16);
	}
}

TEST_HARNESS_MAIN
