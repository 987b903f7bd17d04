/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h - modules, libraries, their functions, and launches of these
 */
#ifndef MODULE_H
#define MODULE_H

#include "object.h"

/* An answer of the driver about a function; `about`, of len bytes, is what was asked. */
struct verdict {
	uint64_t changes;
	const void *about;
	uint32_t len;
	uint16_t op, list;
	CUresult rc;
	int value;
};

/*
 * verdict_about: a question, to be made before the driver is asked. verdict_find: fills in the
 * answer, if it is known. verdict_keep: copies both. verdict_free: when the function ends.
 */
LOCAL struct verdict verdict_about(const struct function *f, uint16_t op, const void *about,
				   uint32_t len);
LOCAL bool verdict_find(const struct function *f, struct verdict *v);
LOCAL void verdict_keep(struct function *f, const struct verdict *v);
LOCAL void verdict_free(struct function *f);

/* The function of a CUfunction, or of a CUkernel passed in its place. NULL: neither. */
static inline struct function *function_find(CUfunction f)
{
	struct function *fn = obj_find(SV_T_CUfunction, (uint64_t)(uintptr_t)f);

	return likely(fn) ? fn : obj_find(SV_T_CUkernel, (uint64_t)(uintptr_t)f);
}

/*
 * Before a launch in the context: has the proxy's worker compile and load it, so that the launch does
 * not block the proxy, and the log knows when its library came into the context. function_load: the
 * latter alone.
 */
LOCAL CUresult function_prepare(struct context *ctx, struct function *fn);
LOCAL CUresult function_load(struct context *ctx, struct function *fn);
static inline CUresult function_ready(struct context *ctx, struct function *fn)
{
	return likely(fn->prepared == ctx->o.handle) ? CUDA_SUCCESS : function_prepare(ctx, fn);
}

/*
 * Libraries and kernels have no context. If o is one, image_here loads it for the device of `here`,
 * unless that device has it. Objects of other types are left alone.
 */
LOCAL CUresult image_here(const struct obj *o);

/* --------------------------------------------------------------------------------------- launch.c */

#define LAUNCH_ATTRS_MAX 16

/*
 * Check a launch's arguments and lay out the record's tail, which follows its head: attributes
 * (with virtual handles), then parameters. tail points into the thread's scratch memory.
 */
struct launch {
	struct sv_launch head;
	const void *tail;
	uint32_t tail_len;
	struct function *fn;
};

LOCAL CUresult launch_layout(const CUlaunchConfig *c, struct context *ctx, CUfunction f,
			     void **params, void **extra, struct launch *out);

#endif
