/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - what rooms do for a floor below: the one way by which a floor calls a higher one
 *
 * Lists of hooks are constants of hooks.c. Each function may be NULL, except graph_hooks'.
 */
#ifndef HOOKS_H
#define HOOKS_H

#include "object.h"

/* What rooms do when a session begins or ends (session.c). In the order of the list; process.lock is held. */
struct session_hook {
	CUresult (*first)(void);	/* before the first session; again if that has failed */
	CUresult (*begin)(void);	/* `here` has been connected, perhaps again */
	void (*part)(const struct session *s);	/* it is about to be closed */
	void (*forked)(void);		/* in the child of a fork, which has one thread and no device */
};

extern LOCAL const struct session_hook session_hooks[];
extern LOCAL const int session_hooks_n;

/* What rooms do when the program has waited for a context (sync.c), and when it ends (context.c). In the order of the list. */
struct context_hook {
	CUresult (*waited)(struct context *ctx);	/* the program has waited, and may read memory */
	void (*trim)(bool all);		/* what is free does not stay mapped, up to the program's thresholds */
	void (*object_gone)(struct obj *o, unsigned int type);	/* an object of a context that has ended */
	void (*gone)(struct context *ctx);	/* after its objects */
};

extern LOCAL const struct context_hook context_hooks[];
extern LOCAL const int context_hooks_n;

/* How graphs take what is captured (captured.h). */
struct graph_hooks {
	CUresult (*record)(struct stream *s, uint16_t op, const void *a, uint32_t alen, const void *b,
			   uint32_t blen);
	CUresult (*memops)(struct stream *s, unsigned int n, const CUstreamBatchMemOpParams *ops);
	CUresult (*alloc)(struct stream *s, size_t len, CUdeviceptr *out);
	CUresult (*free)(struct stream *s, CUdeviceptr addr);
	void (*stream_gone)(struct stream *s);	/* a captured one */

	/* Memory of an allocation node was freed outside its graph. false: addr is no such memory. */
	bool (*memory_freed)(CUdeviceptr addr);
};

extern LOCAL const struct graph_hooks graph_hooks;

#endif
