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

#endif /* REDUCE_KERNEL_H */
