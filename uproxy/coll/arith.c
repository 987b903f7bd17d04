// SPDX-License-Identifier: Apache-2.0
/*
 * arith.c - sums, products, extremes and conversions of arrays, which the compiler vectorises
 *
 * build.mk compiles this file for each level of processors, with ARITH as the name of the table.
 * Each element's result is one operation of IEEE 754 on its own, or integer arithmetic; so a
 * vector's width cannot change it. No FMA: -ffp-contract=off. The caller sets round-to-nearest and
 * keeps subnormals.
 */
#include <stdbool.h>
#include <string.h>

#include "arith.h"

/* dst may be a or b, which the compiler cannot know and which does no harm. */
#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < n; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++)
#endif

static inline uint32_t bits32(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float float32(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static inline uint64_t bits64(double f)
{
	uint64_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline double float64(uint64_t u)
{
	double f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* NaN of every type: all bits set but the sign. */
static inline float canon32(float f)
{
	uint32_t u = bits32(f);

	return float32((u & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : u);
}

static inline double canon64(double f)
{
	uint64_t u = bits64(f);

	return float64((u & INT64_MAX) > 0x7ff0000000000000 ? INT64_MAX : u);
}

/*
 * Extremes: the number of a number and a NaN is the number; -0 < +0. The key orders bits like the
 * values that they stand for.
 */
static inline int32_t key32(uint32_t u)
{
	return (int32_t)(u ^ ((uint32_t)((int32_t)u >> 31) >> 1));
}

static inline int64_t key64(uint64_t u)
{
	return (int64_t)(u ^ ((uint64_t)((int64_t)u >> 63) >> 1));
}

static inline float extreme32(float a, float b, bool max)
{
	uint32_t x = bits32(a), y = bits32(b);
	uint32_t r = (key32(x) < key32(y)) != max ? x : y;

	r = (x & 0x7fffffff) > 0x7f800000 ? y : r;
	r = (y & 0x7fffffff) > 0x7f800000 ? x : r;
	return float32(r);
}

static inline double extreme64(double a, double b, bool max)
{
	uint64_t x = bits64(a), y = bits64(b);
	uint64_t r = (key64(x) < key64(y)) != max ? x : y;

	r = (x & INT64_MAX) > 0x7ff0000000000000 ? y : r;
	r = (y & INT64_MAX) > 0x7ff0000000000000 ? x : r;
	return float64(r);
}

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

/* Selected, not branched on, so that a vector can do it: infinities, NaN and subnormals. */
static inline float from_f16(uint32_t h)
{
	uint32_t magnitude = (h & 0x7fff) << 13, exponent = magnitude & 0x0f800000;
	uint32_t special = magnitude + (224u << 23), normal = magnitude + (112u << 23);
	uint32_t tiny = bits32(float32(magnitude + (113u << 23)) - float32(113u << 23));
	uint32_t r = exponent == 0x0f800000 ? special : normal;

	r = exponent == 0 ? tiny : r;
	return float32(r | (h & 0x8000) << 16);
}

static inline float from_bf16(uint32_t h)
{
	return float32(h << 16);
}

static inline float from_e5m2(uint32_t b)
{
	return from_f16(b << 8);
}

static inline float from_e4m3(uint32_t b)
{
	uint32_t magnitude = (b & 0x7f) << 20, normal = magnitude + (120u << 23);
	uint32_t tiny = bits32(float32(magnitude + (121u << 23)) - float32(121u << 23));
	uint32_t r = (magnitude & 0x07800000) == 0 ? tiny : normal;

	r = (b & 0x7f) == 0x7f ? 0x7fffffff : r;
	return float32(r | (b & 0x80) << 24);
}

/*
 * Rounds to a format with so many bits of mantissa and this bias; over is what stands for
 * magnitudes that would come out above most, the largest finite one.
 */
static inline uint32_t to_narrow(float f, int mantissa, uint32_t bias, uint32_t most, uint32_t over,
                                 uint32_t sign)
{
	const int shift = 23 - mantissa;
	/* One unit in its last place is the least subnormal number of the format. */
	const uint32_t magic = (127 - bias + shift + 1) << 23;
	uint32_t u = bits32(f), a = u & 0x7fffffff;
	uint32_t normal = (a + ((1u << (shift - 1)) - 1) + (a >> shift & 1)) >> shift;
	uint32_t tiny = bits32(float32(a) + float32(magic)) - magic;
	uint32_t r = normal - ((127 - bias) << mantissa);

	r = a < (128 - bias) << 23 ? tiny : r;
	r = r > most ? over : r;
	r |= u >> 31 ? sign : 0;
	return a > 0x7f800000 ? sign - 1 : r;
}

#define NARROW(name, type, mantissa, bias, most, over, sign)                             \
	static void widen_##name(void *dst, const void *a, size_t n)                     \
	{                                                                                \
		float *to = dst;                                                         \
		const type *from = a;                                                    \
                                                                                         \
		EACH to[i] = from_##name(from[i]);                                       \
	}                                                                                \
	static void narrow_##name(void *dst, const void *a, size_t n)                    \
	{                                                                                \
		type *to = dst;                                                          \
		const float *from = a;                                                   \
                                                                                         \
		EACH to[i] = (type)to_narrow(from[i], mantissa, bias, most, over, sign); \
	}

NARROW(f16, uint16_t, 10, 15, 0x7bff, 0x7c00, 0x8000)
NARROW(bf16, uint16_t, 7, 127, 0x7f7f, 0x7f80, 0x8000)
NARROW(e4m3, uint8_t, 3, 7, 0x7e, 0x7e, 0x80)
NARROW(e5m2, uint8_t, 2, 15, 0x7b, 0x7b, 0x80)

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
