/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - ranges of addresses: what is allocated in them, and which ones the process keeps for itself
 */
#ifndef SPACE_H
#define SPACE_H

#include "process.h"

/* ---------------------------------------------------------------------------------------- space.c */

/*
 * An address range and the allocations in it. Not thread safe: the caller holds its own lock.
 */
struct space;

#define SPACE_HIGH 1u		/* allocate at the high end of the range */

LOCAL struct space *space_new(uint64_t base, uint64_t len);
LOCAL void space_free(struct space *s);

/* Allocate len bytes at a multiple of align (a power of two). 0: no room. */
LOCAL uint64_t space_alloc(struct space *s, uint64_t len, uint64_t align, unsigned int flags,
			   void *owner);

/* Allocate exactly this range. -EEXIST something in it is in use. */
LOCAL int space_take(struct space *s, uint64_t addr, uint64_t len, void *owner);

/* The allocation that holds addr: its base, length and owner. false: none. */
LOCAL bool space_find(struct space *s, uint64_t addr, uint64_t *base, uint64_t *len, void **owner);

/* Call fn for each allocation, by address, until it returns true: then true. fn changes nothing. */
LOCAL bool space_each(const struct space *s,
		      bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg);

/* Change the owner of the allocation that begins at base. */
LOCAL void space_own(struct space *s, uint64_t base, void *owner);

/* Free the allocation that begins at base. false: none begins there. */
LOCAL bool space_release(struct space *s, uint64_t base);

/* --------------------------------------------------------------------------------------- window.c */

/*
 * window_reserve: keeps the program from mapping anything in [base, base + len). 0, -EEXIST or -errno.
 * window_leave: keeps a window reserved for the next session, which probably has the same one.
 */
LOCAL int window_reserve(struct reserved *window, uint64_t base, uint64_t len);
LOCAL void window_leave(struct reserved *window);
/* Release the addresses reserved for a channel, which is about to be mapped there. */
LOCAL void window_make_way(void);

#endif
