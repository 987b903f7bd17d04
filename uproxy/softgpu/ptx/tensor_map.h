/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_map.h - the soft device's encoding of a CUtensorMap: written by the driver, read by kernels
 *
 * It lies in memory that programs write, and outlives checkpoints: the fields keep their places, and
 * a reader trusts none of them.
 */
#ifndef SOFTGPU_TENSOR_MAP_H
#define SOFTGPU_TENSOR_MAP_H

#include <stdint.h>

enum { TENSOR_RANK_MAX = 5, TENSOR_MAGIC = 0x544d4150 /* "TMAP" */ };
enum tensor_form { TENSOR_TILED, TENSOR_IM2COL, TENSOR_WIDE };

struct tensor_map {
	uint32_t magic;
	uint8_t form, type, rank, interleave, swizzle, promotion, fill, mode;	/* as cuda.h numbers them */
	uint16_t box[TENSOR_RANK_MAX], channels, pixels;
	uint8_t step[TENSOR_RANK_MAX];
	int16_t lower[TENSOR_RANK_MAX - 2], upper[TENSOR_RANK_MAX - 2];
	uint64_t address;
	uint32_t last[TENSOR_RANK_MAX];		/* a dimension's last index */
	uint32_t stride[TENSOR_RANK_MAX - 1];	/* in units of 256 bytes, with what is left over below */
	uint8_t rest[TENSOR_RANK_MAX - 1];
};

_Static_assert(sizeof(struct tensor_map) <= 128, "a map has 128 bytes");

#endif
