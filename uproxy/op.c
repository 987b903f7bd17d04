// SPDX-License-Identifier: Apache-2.0
/*
 * op.c - names of operations, for messages
 */
#include "call.h"

const char *op_name(uint16_t op)
{
	return op < SV_OPS_cuda && cuda_ops[op].name ? cuda_ops[op].name : "unknown";
}
