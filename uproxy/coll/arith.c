// SPDX-License-Identifier: Apache-2.0
/*
 * arith.c - sums, products, extremes and conversions of arrays, which the compiler vectorises
 *
 * build.mk compiles this file for each level of processors, with ARITH as the name of the table.
 * Each element's result is one operation of IEEE 754 on its own, or integer arithmetic; so a
 * vector's width cannot change it. No FMA: -ffp-contract=off. The caller sets round-to-nearest and
 * keeps subnormals.
 */
#include "arith.h"
#include "scalar.h"

/* dst may be a or b, which the compiler cannot know and which does no harm. */
#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < n; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++)
#endif

#define COMBINE(name, type, expr)                                           \
	static void name(void *dst, const void *a, const void *b, size_t n) \
	{                                                                   \
		type *to = dst;                                             \
		const type *l = a, *r = b;                                  \
                                                                            \
		EACH                                                        \
		{                                                           \
			type x = l[i], y = r[i];                            \
                                                                            \
			to[i] = (type)(expr);                               \
		}                                                           \
	}

#define SCALE(name, type, wide)                                                  \
	static void name(void *dst, const void *a, const void *factor, size_t n) \
	{                                                                        \
		type *to = dst;                                                  \
		const type *from = a;                                            \
		type f = *(const type *)factor;                                  \
                                                                                 \
		EACH to[i] = (type)((wide)from[i] * (wide)f);                    \
	}

#define DIVIDE(name, type, wide)                                             \
	static void name(void *dst, const void *a, uint32_t ranks, size_t n) \
	{                                                                    \
		type *to = dst;                                              \
		const type *from = a;                                        \
		wide d = (wide)ranks;                                        \
                                                                             \
		EACH to[i] = (type)((wide)from[i] / d);                      \
	}

/* Integers wrap: sums and products are those of the unsigned type, in a width without overflow. */
#define INTEGER(name, type, wide, quotient)          \
	COMBINE(add_##name, type, (wide)x + (wide)y) \
	COMBINE(mul_##name, type, (wide)x *(wide)y)  \
	COMBINE(max_##name, type, x > y ? x : y)     \
	COMBINE(min_##name, type, x < y ? x : y)     \
	SCALE(scale_##name, type, wide)              \
	DIVIDE(divide_##name, type, quotient)

INTEGER(int8, int8_t, uint32_t, int32_t)
INTEGER(uint8, uint8_t, uint32_t, uint32_t)
INTEGER(int32, int32_t, uint32_t, int64_t)
INTEGER(uint32, uint32_t, uint32_t, uint32_t)
INTEGER(int64, int64_t, uint64_t, int64_t)
INTEGER(uint64, uint64_t, uint64_t, uint64_t)

COMBINE(add_f32, float, x + y)
COMBINE(mul_f32, float, x *y)
COMBINE(max_f32, float, extreme32(x, y, true))
COMBINE(min_f32, float, extreme32(x, y, false))
COMBINE(add_f32_last, float, canon32(x + y))
COMBINE(mul_f32_last, float, canon32(x *y))
COMBINE(max_f32_last, float, canon32(extreme32(x, y, true)))
COMBINE(min_f32_last, float, canon32(extreme32(x, y, false)))
SCALE(scale_f32, float, float)
DIVIDE(divide_f32, float, float)

COMBINE(add_f64, double, x + y)
COMBINE(mul_f64, double, x *y)
COMBINE(max_f64, double, extreme64(x, y, true))
COMBINE(min_f64, double, extreme64(x, y, false))
COMBINE(add_f64_last, double, canon64(x + y))
COMBINE(mul_f64_last, double, canon64(x *y))
COMBINE(max_f64_last, double, canon64(extreme64(x, y, true)))
COMBINE(min_f64_last, double, canon64(extreme64(x, y, false)))
SCALE(scale_f64, double, double)
DIVIDE(divide_f64, double, double)

static void canon_f32(void *dst, size_t n)
{
	float *to = dst;

	EACH to[i] = canon32(to[i]);
}

static void canon_f64(void *dst, size_t n)
{
	double *to = dst;

	EACH to[i] = canon64(to[i]);
}

#define NARROW(name, type)                                               \
	static void widen_##name(void *dst, const void *a, size_t n)     \
	{                                                                \
		float *to = dst;                                         \
		const type *from = a;                                    \
                                                                         \
		EACH to[i] = from_##name(from[i]);                       \
	}                                                                \
	static void narrow_##name(void *dst, const void *a, size_t n)    \
	{                                                                \
		type *to = dst;                                          \
		const float *from = a;                                   \
                                                                         \
		EACH to[i] = to_##name(from[i]);                         \
	}

NARROW(f16, uint16_t)
NARROW(bf16, uint16_t)
NARROW(e4m3, uint8_t)
NARROW(e5m2, uint8_t)

#define OPS_OF(name)                      \
	{                                 \
		[ARITH_ADD] = add_##name, \
		[ARITH_MUL] = mul_##name, \
		[ARITH_MAX] = max_##name, \
		[ARITH_MIN] = min_##name, \
	}
#define INTEGERS(what)                                                                 \
	[ACC_INT8] = what(int8), [ACC_UINT8] = what(uint8), [ACC_INT32] = what(int32), \
	[ACC_UINT32] = what(uint32), [ACC_INT64] = what(int64), [ACC_UINT64] = what(uint64)
#define ALL(what)       INTEGERS(what), [ACC_F32] = what(f32), [ACC_F64] = what(f64)
#define SCALE_OF(name)  scale_##name
#define DIVIDE_OF(name) divide_##name

const struct arith ARITH = {
	.combine = { ALL(OPS_OF) },
	.last = { INTEGERS(OPS_OF), [ACC_F32] = OPS_OF(f32_last), [ACC_F64] = OPS_OF(f64_last) },
	.scale = { ALL(SCALE_OF) },
	.divide = { ALL(DIVIDE_OF) },
	.canon = { [ACC_F32] = canon_f32, [ACC_F64] = canon_f64 },
	.widen = { widen_f16, widen_bf16, widen_e4m3, widen_e5m2 },
	.narrow = { narrow_f16, narrow_bf16, narrow_e4m3, narrow_e5m2 },
};
