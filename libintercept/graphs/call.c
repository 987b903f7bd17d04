/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - work of graph nodes that runs in the client: host functions, copies of pageable memory
 *
 *   host function   call
 *   pageable → x    call: source → staging range,  then the device: staging range → x
 *   x → pageable    the device: x → staging range, then call: staging range → destination
 *
 * A call runs in the thread of hostfunc.c when the graph reaches it, so that a copy accesses the
 * program's memory at the time that CUDA defines. The call's word tells the device that it has
 * ended.
 */
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "graph_i.h"
#include "hostfunc.h"

static void copy_rows(const CUDA_MEMCPY3D *c, uint8_t *to, size_t to_pitch, size_t to_slice,
		      const uint8_t *from, size_t from_pitch, size_t from_slice)
{
	for (size_t z = 0; z < c->Depth; z++)
		for (size_t y = 0; y < c->Height; y++)
			memmove(to + z * to_slice + y * to_pitch,
				from + z * from_slice + y * from_pitch, c->WidthInBytes);
}

static void run_copy(const struct graph_call *c)
{
	size_t pitch = c->copy.WidthInBytes, slice = pitch * c->copy.Height;
	size_t src_pitch, src_slice, dst_pitch, dst_slice;
	uint8_t *src = copy_host(&c->copy, false, &src_pitch, &src_slice);
	uint8_t *dst = copy_host(&c->copy, true, &dst_pitch, &dst_slice);

	if (c->shape & SHAPE_CLIENT)
		copy_rows(&c->copy, dst, dst_pitch, dst_slice, src, src_pitch, src_slice);
	else if (c->shape & SHAPE_FROM)
		copy_rows(&c->copy, arena_at(c->stage), pitch, slice, src, src_pitch, src_slice);
	else
		copy_rows(&c->copy, dst, dst_pitch, dst_slice, arena_at(c->stage), pitch, slice);
}

static void run(void *arg)
{
	const struct graph_call *c = arg;
	uint64_t *word = arena_at(c->word);

	if (!c->idle && c->fn)
		c->fn(c->user);
	else if (!c->idle)
		run_copy(c);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);	/* from here on c may be freed */
}

CUresult graph_call_new(const struct node *n, uint64_t word, struct graph_call **out)
{
	struct graph_call *c = calloc(1, sizeof(*c));
	CUresult r = 0;

	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->word = word;
	c->idle = !n->enabled;
	if (n->w.type == CU_GRAPH_NODE_TYPE_HOST) {
		c->fn = n->w.host.fn;
		c->user = n->w.host.userData;
	} else {
		c->copy = n->w.copy;
		c->shape = n->shape;
		if (!(c->shape & SHAPE_CLIENT))
			r = arena_alloc(sv_mul(c->copy.WidthInBytes,
					       sv_mul(c->copy.Height, c->copy.Depth)),
					256, NULL, &c->stage);
	}
	if (!r)
		r = hostfunc_keep(run, c, &c->id);
	if (r) {
		graph_call_free(c);
		return r;
	}
	*out = c;
	return 0;
}

void graph_call_free(struct graph_call *c)
{
	if (c->id)
		hostfunc_forget(c->id);
	if (c->stage)
		arena_free(c->stage);
	free(c);
}
