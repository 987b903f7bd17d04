// SPDX-License-Identifier: Apache-2.0
/*
 * reduce.cu - the reduction tree on the device: one kernel for each type, with the bits of tree.c
 *
 * Each thread takes elements of its own through a program for a stack machine (tree_merges()), which
 * all threads share. What happens to an element is coll/scalar.h, and IEEE 754's operations, each
 * rounded on its own: nothing is contracted (-fmad=false), and subnormals are kept (-ftz=false).
 *
 * The build writes this as PTX, which the driver compiles, with the version that digest.ptx has.
 */
#include "reduce_kernel.h"
#include "scalar.h"
#include "tree.h"

/* A type of integers: sums and products wrap, in a width without overflow. */
template <class type, class wide, class quotient> struct integer {
	typedef type leaf, acc;
	static __device__ acc widen(leaf x) { return x; }
	static __device__ leaf narrow(acc x) { return x; }
	static __device__ acc add(acc x, acc y) { return (acc)((wide)x + (wide)y); }
	static __device__ acc mul(acc x, acc y) { return (acc)((wide)x * (wide)y); }
	static __device__ acc extreme(acc x, acc y, bool max) { return (x > y) == max ? x : y; }
	static __device__ acc divide(acc x, uint32_t n) { return (acc)((quotient)x / (quotient)n); }
};

/* Accumulation in f32, for itself and the narrow types. */
struct in_f32 {
	typedef float acc;
	static __device__ acc add(acc x, acc y) { return __fadd_rn(x, y); }
	static __device__ acc mul(acc x, acc y) { return __fmul_rn(x, y); }
	static __device__ acc extreme(acc x, acc y, bool max) { return extreme32(x, y, max); }
	static __device__ acc divide(acc x, uint32_t n) { return __fdiv_rn(x, __uint2float_rn(n)); }
};

struct f32 : in_f32 {
	typedef float leaf;
	static __device__ acc widen(leaf x) { return x; }
	static __device__ leaf narrow(acc x) { return canon32(x); }
};

struct f64 {
	typedef double leaf, acc;
	static __device__ acc widen(leaf x) { return x; }
	static __device__ leaf narrow(acc x) { return canon64(x); }
	static __device__ acc add(acc x, acc y) { return __dadd_rn(x, y); }
	static __device__ acc mul(acc x, acc y) { return __dmul_rn(x, y); }
	static __device__ acc extreme(acc x, acc y, bool max) { return extreme64(x, y, max); }
	static __device__ acc divide(acc x, uint32_t n) { return __ddiv_rn(x, (double)n); }
};

#define NARROW(name, type)                                                        \
	struct name : in_f32 {                                                    \
		typedef type leaf;                                                \
		static __device__ acc widen(leaf x) { return from_##name(x); }    \
		static __device__ leaf narrow(acc x) { return to_##name(x); }     \
	};

NARROW(f16, uint16_t)
NARROW(bf16, uint16_t)
NARROW(e4m3, uint8_t)
NARROW(e5m2, uint8_t)

template <class T> static __device__ typename T::acc combine(uint32_t op, typename T::acc x, typename T::acc y)
{
	if (op == TREE_PROD)
		return T::mul(x, y);
	if (op == TREE_MAX || op == TREE_MIN)
		return T::extreme(x, y, op == TREE_MAX);
	return T::add(x, y);
}

template <class T> static __device__ typename T::acc load(const struct reduce_part *p, uint64_t i)
{
	typename T::acc x;

	if (!p->leaf)
		return ((const typename T::acc *)p->data)[i];
	x = T::widen(((const typename T::leaf *)p->data)[i]);
	return p->factor ? T::mul(x, T::widen(*(const typename T::leaf *)p->factor)) : x;
}

/* ranks: of the whole tree, at its root; else 0, and the result is a partial. */
template <class T>
static __device__ void reduce(const struct reduce_part *part, uint32_t parts, uint32_t op, uint32_t ranks,
			      void *dst, uint64_t count)
{
	uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;

#pragma unroll 1
	for (; i < count; i += gridDim.x * (uint64_t)blockDim.x) {
		typename T::acc stack[REDUCE_DEPTH], top = load<T>(&part[0], i);
		uint32_t depth = 0;

#pragma unroll 1
		for (uint32_t p = 1; p < parts; p++) {
			stack[depth++] = top;
			top = load<T>(&part[p], i);
#pragma unroll 1
			for (uint32_t m = part[p].merges; m; m--)
				top = combine<T>(op, stack[--depth], top);
		}
		if (!ranks) {
			((typename T::acc *)dst)[i] = top;
			continue;
		}
		if (op == TREE_AVG)
			top = T::divide(top, ranks);
		((typename T::leaf *)dst)[i] = T::narrow(top);
	}
}

/* Puts a part of a program into the table. A launch copies its parameters at once, and does not wait for the stream. */
extern "C" __global__ void reduce_table(struct reduce_part *to, uint32_t n, const struct reduce_chunk from)
{
	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
		to[i] = from.part[i];
}

#define KERNEL(name, ...)                                                                       \
	extern "C" __global__ void reduce_##name(const struct reduce_part *part, uint32_t parts, \
						 uint32_t op, uint32_t ranks, void *dst,        \
						 uint64_t count)                                \
	{                                                                                       \
		typedef __VA_ARGS__ type;                                                       \
		reduce<type>(part, parts, op, ranks, dst, count);                               \
	}

KERNEL(int8, integer<int8_t, uint32_t, int32_t>)
KERNEL(uint8, integer<uint8_t, uint32_t, uint32_t>)
KERNEL(int32, integer<int32_t, uint32_t, int64_t>)
KERNEL(uint32, integer<uint32_t, uint32_t, uint32_t>)
KERNEL(int64, integer<int64_t, uint64_t, int64_t>)
KERNEL(uint64, integer<uint64_t, uint64_t, uint64_t>)
KERNEL(f16, f16)
KERNEL(f32, f32)
KERNEL(f64, f64)
KERNEL(bf16, bf16)
KERNEL(e4m3, e4m3)
KERNEL(e5m2, e5m2)
