/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arith.h - arithmetic on arrays for tree.c: arith.c, compiled once for each level of processors
 *
 * In each function dst may be a or b, and must not overlap them otherwise. Elements are independent
 * of each other, so no level may give other bits than the others.
 */
#ifndef UPROXY_COLL_ARITH_H
#define UPROXY_COLL_ARITH_H

#include <stddef.h>
#include <stdint.h>

/* Types of accumulation. */
enum arith_acc {
	ACC_INT8,
	ACC_UINT8,
	ACC_INT32,
	ACC_UINT32,
	ACC_INT64,
	ACC_UINT64,
	ACC_F32,
	ACC_F64,
	ACCS,
};

enum arith_op {
	ARITH_ADD,
	ARITH_MUL,
	ARITH_MAX,
	ARITH_MIN,
	ARITH_OPS,
};

/* Narrow types. */
enum arith_narrow {
	NARROW_F16,
	NARROW_BF16,
	NARROW_E4M3,
	NARROW_E5M2,
	NARROWS,
};

struct arith {
	/* dst = a op b */
	void (*combine[ACCS][ARITH_OPS])(void *dst, const void *a, const void *b, size_t n);
	/* The same, and every NaN of dst becomes the canonical one. */
	void (*last[ACCS][ARITH_OPS])(void *dst, const void *a, const void *b, size_t n);
	/* dst = a * *factor */
	void (*scale[ACCS])(void *dst, const void *a, const void *factor, size_t n);
	/* dst = a / ranks; integers truncate */
	void (*divide[ACCS])(void *dst, const void *a, uint32_t ranks, size_t n);
	/* Replaces every NaN by the canonical one. NULL for integers. */
	void (*canon[ACCS])(void *dst, size_t n);
	/* From a narrow type to f32; dst is not a. */
	void (*widen[NARROWS])(void *dst, const void *a, size_t n);
	/* From f32 to a narrow type: nearest, ties to even, canonical NaN; fp8 saturates. */
	void (*narrow[NARROWS])(void *dst, const void *a, size_t n);
};

extern const struct arith arith_base, arith_avx2, arith_avx512;

#endif /* UPROXY_COLL_ARITH_H */
