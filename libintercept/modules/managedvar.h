/* SPDX-License-Identifier: Apache-2.0 */
/*
 * managedvar.h - when the bytes of __managed__ variables are copied to and from the device
 */
#ifndef MANAGEDVAR_H
#define MANAGEDVAR_H

#include "process.h"

/* NOT_SUPPORTED: the address is in use in this process. */
LOCAL CUresult managedvar_add(uint64_t addr, uint64_t len, void *module, const void *bytes);
LOCAL void managedvar_drop(void *module);

LOCAL CUresult managedvar_launch_slow(struct context *ctx);
LOCAL CUresult managedvar_waited_slow(struct context *ctx);

/* Whether the session has ever had such a variable. */
static inline bool managedvar_any(void)
{
	/* pairs with table() in managedvar.c */
	return unlikely(__atomic_load_n(&here->managedvars, __ATOMIC_ACQUIRE));
}

/* Called before work that may use the variables is enqueued. */
static inline CUresult managedvar_launch(struct context *ctx)
{
	return managedvar_any() ? managedvar_launch_slow(ctx) : CUDA_SUCCESS;
}

/* Called after a synchronisation. */
static inline CUresult managedvar_waited(struct context *ctx)
{
	return managedvar_any() ? managedvar_waited_slow(ctx) : CUDA_SUCCESS;
}

#endif
