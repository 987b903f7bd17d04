/* SPDX-License-Identifier: Apache-2.0 */
/*
 * managedvar.h - when the bytes of __managed__ variables are carried over
 */
#ifndef MANAGEDVAR_H
#define MANAGEDVAR_H

#include "client.h"

extern LOCAL bool managedvar_any;	/* there are such variables; never again false */

/* NOT_SUPPORTED: the address is in use in this process. */
LOCAL CUresult managedvar_add(uint64_t addr, uint64_t len, void *module, const void *bytes);
LOCAL void managedvar_drop(void *module);

LOCAL CUresult managedvar_launch_slow(struct context *ctx);
LOCAL CUresult managedvar_waited_slow(struct context *ctx);

/* Work that may use them is about to be enqueued. */
static inline CUresult managedvar_launch(struct context *ctx)
{
	return unlikely(managedvar_any) ? managedvar_launch_slow(ctx) : CUDA_SUCCESS;
}

/* Something has been waited for. */
static inline CUresult managedvar_waited(struct context *ctx)
{
	return unlikely(managedvar_any) ? managedvar_waited_slow(ctx) : CUDA_SUCCESS;
}

#endif
