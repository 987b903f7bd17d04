/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cross.h - copies and waits that concern several devices of the process
 */
#ifndef CROSS_H
#define CROSS_H

#include "process.h"

struct event;
struct memory;

#define CROSS_PIECE (2ull << 20)	/* bytes; an element of an array lies in one piece */

/* Enqueues work into s; `here` is the session of s. sync: complete on return, if the host is a side. */
typedef CUresult cross_work_fn(void *arg, struct stream *s, bool sync);

/*
 * A copy with a side on another device than the stream's. Between two devices it passes through the arena
 * in pieces. A copy with one device is enqueued there whole.
 */
struct cross {
	struct context *dst, *src;	/* whose device has the side; NULL: the host */
	uint64_t len, pieces;		/* len: bytes; pieces: how often next() is called */
	void (*next)(struct cross *c);	/* the next piece, of at most CROSS_PIECE bytes, is the current one */

	/* Enqueues the copy of the current piece into the slot, packed, or out of it. `here` as above. */
	CUresult (*move)(struct cross *c, struct stream *s, uint64_t slot, bool in);
	cross_work_fn *all;		/* enqueues the whole copy; arg is this struct */
};

/* Does addr lie in another device's window than that of `here`? */
static inline bool cross_is(uint64_t addr)
{
	struct session *s;

	if (likely(!__atomic_load_n(&process.several, __ATOMIC_RELAXED)))
		return false;
	s = session_at(addr);
	return s && s != here;
}

/* The context in which device memory is copied; *ctx NULL: the host has it. INVALID_VALUE: it ended. */
LOCAL CUresult cross_home(const struct memory *m, struct context **ctx);

/* The same for len bytes at addr, pageable memory included. INVALID_VALUE: not all are allocated. */
LOCAL CUresult cross_look(uint64_t addr, uint64_t len, struct context **ctx);

/*
 * The copy on stream s, which does not capture; sync: complete on return. c and what it points to are
 * not used after the return. OUT_OF_MEMORY: for the slots, of at most 8 MiB.
 */
LOCAL CUresult cross_copy(struct stream *s, struct cross *c, bool sync);

/* Has `work` enqueue what it does into a stream of another device's context, in the order of s. */
LOCAL CUresult cross_work(struct stream *s, struct context *ctx, cross_work_fn *work, void *arg);

/*
 * Work of a graph's node that its device cannot do, on a stream: a copy whose source, or destination, is the
 * packed memory of the arena at `from`, or `to`, unless that is 0; a memset.
 */
LOCAL CUresult cross_node_copy(struct stream *s, const CUDA_MEMCPY3D *p, uint64_t from, uint64_t to);
LOCAL CUresult cross_node_set(struct stream *s, const CUDA_MEMSET_NODE_PARAMS_v2 *p);

/* Work enqueued into s from now on waits for the latest record of another device's event. */
LOCAL CUresult cross_wait(struct stream *s, struct event *e);

#endif
