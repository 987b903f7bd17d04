/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array_i.h - CUDA arrays: pitch-linear memory with a texel format.
 */
#ifndef SOFT_ARRAY_I_H
#define SOFT_ARRAY_I_H

#include "soft_i.h"

struct array {
	struct obj o;
	struct ctx *ctx;
	struct mem *mem;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	uint64_t va;
	size_t pitch, slice;		/* bytes from row to row, slice to slice */
	size_t row, rows, slices;	/* extent: bytes, rows (1 at least), slices (1 at least) */
	unsigned int texel;		/* bytes */
	bool of_mipmap;			/* a level: cannot be destroyed by itself */
};

struct ptx_tex;

/* Whether a format is supported; bytes of a channel; channels, or 0: the descriptor gives them. */
bool array_format(CUarray_format f, unsigned int *bytes, unsigned int *channels);
struct array *mipmap_level(CUmipmappedArray h, unsigned int level);
void array_gone(struct mem *m);
const struct ptx_tex *tex_find(uint64_t handle);

#endif
