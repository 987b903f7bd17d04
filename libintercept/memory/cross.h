/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cross.h - copies and waits that concern several devices of the process
 */
#ifndef CROSS_H
#define CROSS_H

#include "client.h"

/* A linear copy on a stream; `here` is the stream's session, which reaches both sides. */
typedef CUresult cross_copy_fn(struct stream *s, uint64_t dst, uint64_t src, uint64_t len, bool sync);

/* Does addr lie in another device's window than that of `here`? */
static inline bool cross_is(uint64_t addr)
{
	struct session *s;

	if (likely(!__atomic_load_n(&process.several, __ATOMIC_RELAXED)))
		return false;
	s = session_at(addr);
	return s && s != here;
}

/*
 * The copy on stream s of memory that another device has; sync: complete on return. copy does what one
 * device can. INVALID_VALUE; OUT_OF_MEMORY: for the slots, of at most 8 MiB.
 */
LOCAL CUresult cross_copy(struct stream *s, uint64_t dst, uint64_t src, uint64_t len, bool sync,
			  cross_copy_fn *copy);

/* Work enqueued into s from now on waits for the latest record of another device's event. */
LOCAL CUresult cross_wait(struct stream *s, struct event *e);

#endif
