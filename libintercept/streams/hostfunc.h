/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostfunc.h - host functions that outlive one run, for graphs
 */
#ifndef HOSTFUNC_H
#define HOSTFUNC_H

#include "process.h"

/* The arguments of capture_record() with SV_OP_cuLaunchHostFunc. */
struct hostfunc_args {
	CUhostFn fn;
	void *arg;
};

/* A function that SV_OP_X_NEXT_CALL may make due repeatedly, until hostfunc_forget(). */
LOCAL CUresult hostfunc_keep(CUhostFn fn, void *arg, uint64_t *id);
LOCAL void hostfunc_forget(uint64_t id);

#endif
