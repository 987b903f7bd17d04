/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scalar.h - what one element goes through in a reduction, but for IEEE 754's own operations
 *
 * arith.c's loops on the host and the kernels of hal/nccl/reduce.cu share it, so that both give the
 * same bits: hence C that is C++ and device code, too. Values are selected, not branched on, so that
 * a vector can do it. Nothing here may be contracted, and subnormals must be kept.
 */
#ifndef UPROXY_COLL_SCALAR_H
#define UPROXY_COLL_SCALAR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SCALAR static __device__ inline
#else
#define SCALAR static inline
#endif

SCALAR uint32_t bits32(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

SCALAR float float32(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

SCALAR uint64_t bits64(double f)
{
	uint64_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

SCALAR double float64(uint64_t u)
{
	double f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* NaN of every type: all bits set but the sign. */
SCALAR float canon32(float f)
{
	uint32_t u = bits32(f);

	return float32((u & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : u);
}

SCALAR double canon64(double f)
{
	uint64_t u = bits64(f);

	return float64((u & INT64_MAX) > 0x7ff0000000000000 ? INT64_MAX : u);
}

/*
 * Extremes: the number of a number and a NaN is the number; -0 < +0. The key orders bits like the
 * values that they stand for.
 */
SCALAR int32_t key32(uint32_t u)
{
	return (int32_t)(u ^ ((uint32_t)((int32_t)u >> 31) >> 1));
}

SCALAR int64_t key64(uint64_t u)
{
	return (int64_t)(u ^ ((uint64_t)((int64_t)u >> 63) >> 1));
}

SCALAR float extreme32(float a, float b, bool max)
{
	uint32_t x = bits32(a), y = bits32(b);
	uint32_t r = (key32(x) < key32(y)) != max ? x : y;

	r = (x & 0x7fffffff) > 0x7f800000 ? y : r;
	r = (y & 0x7fffffff) > 0x7f800000 ? x : r;
	return float32(r);
}

SCALAR double extreme64(double a, double b, bool max)
{
	uint64_t x = bits64(a), y = bits64(b);
	uint64_t r = (key64(x) < key64(y)) != max ? x : y;

	r = (x & INT64_MAX) > 0x7ff0000000000000 ? y : r;
	r = (y & INT64_MAX) > 0x7ff0000000000000 ? x : r;
	return float64(r);
}

/* Narrow types, widened: infinities, NaN and subnormals, too. */
SCALAR float from_f16(uint32_t h)
{
	uint32_t magnitude = (h & 0x7fff) << 13, exponent = magnitude & 0x0f800000;
	uint32_t special = magnitude + (224u << 23), normal = magnitude + (112u << 23);
	uint32_t tiny = bits32(float32(magnitude + (113u << 23)) - float32(113u << 23));
	uint32_t r = exponent == 0x0f800000 ? special : normal;

	r = exponent == 0 ? tiny : r;
	return float32(r | (h & 0x8000) << 16);
}

SCALAR float from_bf16(uint32_t h)
{
	return float32(h << 16);
}

SCALAR float from_e5m2(uint32_t b)
{
	return from_f16(b << 8);
}

SCALAR float from_e4m3(uint32_t b)
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
SCALAR uint32_t to_narrow(float f, int mantissa, uint32_t bias, uint32_t most, uint32_t over,
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

/* to_narrow() of each type. */
SCALAR uint16_t to_f16(float f)
{
	return (uint16_t)to_narrow(f, 10, 15, 0x7bff, 0x7c00, 0x8000);
}

SCALAR uint16_t to_bf16(float f)
{
	return (uint16_t)to_narrow(f, 7, 127, 0x7f7f, 0x7f80, 0x8000);
}

SCALAR uint8_t to_e4m3(float f)
{
	return (uint8_t)to_narrow(f, 3, 7, 0x7e, 0x7e, 0x80);
}

SCALAR uint8_t to_e5m2(float f)
{
	return (uint8_t)to_narrow(f, 2, 15, 0x7b, 0x7b, 0x80);
}

#endif /* UPROXY_COLL_SCALAR_H */
