/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_kernel.h - what reduce.c gives to the kernels of reduce.cu, in device memory
 */
#ifndef REDUCE_KERNEL_H
#define REDUCE_KERNEL_H

#include <stdint.h>

#define REDUCE_DEPTH 12u /* values on the stack: those of 2^11 parts */

struct reduce_part {
	uint64_t data;
	uint64_t factor; /* where a leaf's factor lies, one element of its type; 0: it has none */
	uint32_t leaf;
	uint32_t merges; /* behind this part: tree_merges() */
};

#define REDUCE_CHUNK 128u /* as many as a kernel's 4096 bytes of parameters have room for, and a divisor of REDUCE_PARTS */

struct reduce_chunk {
	struct reduce_part part[REDUCE_CHUNK];
};

#endif /* REDUCE_KERNEL_H */
