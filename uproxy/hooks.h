/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - what other rooms do when a context ends: the one way by which a floor calls a higher one
 */
#ifndef HOOKS_H
#define HOOKS_H

#include <stdbool.h>
#include <stdint.h>

struct sv_session;

/* Each function may be NULL. gone: consumer; the others: a worker, in turn with other resets. */
struct context_hook {
	void (*gone)(uint64_t ctx);		/* the context's handle is no more */
	bool (*reset)(void);			/* before the primary context is reset; false: it has to stay */
	void (*repin)(struct sv_session *s);	/* the primary context is a new one: what was pinned in it is not */
};

extern const struct context_hook context_hooks[];
extern const int context_hooks_n;

#endif
