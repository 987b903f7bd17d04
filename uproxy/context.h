/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - contexts and their streams, and the context that a record runs in
 */
#ifndef CONTEXT_H
#define CONTEXT_H

#include "call.h"

struct stream {
	struct stream *next;
	struct context *context;
	uint64_t handle;
	CUstream real;
	bool blocking;		/* work of the legacy stream waits for it */
	bool legacy;
	uint64_t used;		/* context.uses at its last use; consumer */
	uint64_t done;		/* uses up to this number are known to be done; atomic */
	unsigned int refs;	/* handle and callbacks; atomic */
	uint64_t call, call_word;	/* the last host function's id; its word's arena offset */
	uint64_t wait_addr;		/* of the last wait for memory, or 0 */
	uint64_t ops, passed;	/* operations put into it, and those known to be done; consumer */
	struct marks *marks;	/* mark.c; or NULL */
	struct queue *queue;	/* park.c; or NULL */
	struct cover *cover;	/* cover.c; or NULL */
};

struct context {
	uint64_t handle;
	CUcontext real;
	bool primary;
	struct stream *streams;	/* consumer */
	struct spare *spare;	/* sync.c: helper streams; spare_lock */
	struct stream legacy;
	struct stream *grave;	/* sync.c: waits for the work of destroyed streams; or NULL */
	uint64_t uses;		/* counts uses of its streams; consumer */
};

/* The calling thread's current context, as sv_enter left it. */
struct context *context_here(void);
void context_forget(void);	/* the driver's current context was changed without sv_enter */
/* Any live context, for driver calls that need one, whichever it is: the thread's, or the primary one. */
void sv_enter_any(struct sv_session *s);

int do_ctx_retain(struct call *k);
int do_ctx_create(struct call *k);
int do_ctx_reset(struct call *k);
int do_ctx_destroy(struct call *k);

#endif
