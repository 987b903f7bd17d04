/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.h - descriptions of arrays in the client
 */
#ifndef ARRAY_H
#define ARRAY_H

#include "object.h"

/* A CUarray's object: in place of what obj_new() gives to types without a struct of their own. */
struct array {
	struct obj o;
	uint64_t last;			/* object.c's */
	CUDA_ARRAY3D_DESCRIPTOR d;
	uint32_t bytes;			/* of an element; 0: not asked yet */
};

/* The live array of a handle, on whichever device, its description known. INVALID_HANDLE. */
LOCAL CUresult array_find(CUarray handle, struct array **out);

#endif
