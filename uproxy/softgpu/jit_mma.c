// SPDX-License-Identifier: Apache-2.0
/*
 * jit_mma.c - matrix instructions.
 */
#include "jit_i.h"

void emit_mma(struct jit *j)
{
	jit_fail(j, "not supported yet");
}
