/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.c - allocation and free nodes: addresses that a graph has for as long as it lives
 *
 *                      launch of its graph ──►
 *   not allocated (live 0) ◄───────────────── allocated (live 1)
 *                      ◄── free node launched, cuMemFree, cuMemFreeAsync
 *
 * The memory exists from the node's creation until no node refers to it and it is not allocated.
 * On the device the nodes do nothing. Everything is under graph_lock().
 */
#include <stdlib.h>

#include "context.h"
#include "graph_i.h"
#include "memory_i.h"
#include "send.h"

static void totals(uint64_t *used, uint64_t *reserved)
{
	*used = *reserved = 0;
	for (struct graph_mem *m = here->graph_mem.all; m; m = m->next) {
		*reserved += m->len;
		*used += m->live ? m->len : 0;
	}
	if (*used > here->graph_mem.used_high)
		here->graph_mem.used_high = *used;
	if (*reserved > here->graph_mem.reserved_high)
		here->graph_mem.reserved_high = *reserved;
}

#define LOOK_BACK 4096u		/* nodes */

/* The smallest memory of len bytes or more that a node before this spot frees, or NULL. */
static struct graph_mem *freed_before(const struct spot *at, size_t len)
{
	struct node **todo = calloc(at->g->n + 1, sizeof(*todo));
	struct graph_mem *best = NULL, *m;
	uint32_t n = 0;

	for (uint32_t i = 0; i < at->g->n; i++)
		at->g->nodes[i]->pending = 0;
	for (size_t i = 0; todo && i < at->ndeps; i++)
		if (!at->deps[i]->pending++)
			todo[n++] = at->deps[i];
	for (uint32_t i = 0; i < n && i < LOOK_BACK; i++) {
		const struct node *d = todo[i];

		for (uint32_t j = 0; j < d->in.n; j++)
			if (!d->in.e[j].n->pending++)
				todo[n++] = d->in.e[j].n;
		if (d->w.type != CU_GRAPH_NODE_TYPE_MEM_FREE)
			continue;
		m = graph_mem_at(d->w.free);
		if (m && m->last_free == d->handle && m->graph == at->g->handle &&
		    m->len >= len && (!best || m->len < best->len))
			best = m;
	}
	free(todo);
	return best;
}

void graph_mem_node(struct node *n)
{
	struct graph_mem *m;

	if (n->w.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
		n->w.alloc.m->last_free = 0;
	} else if (n->w.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
		m = graph_mem_at(n->w.free);
		if (m && m->graph == n->g->handle)
			m->last_free = n->handle;
	}
}

void graph_spare_get(struct graph_spare *s)
{
	s->rc = memory_alloc(MEMORY_GRAPH, s->len, 0, 0, &s->m);
	s->tried = true;
}

void graph_spare_put(struct graph_spare *s)
{
	if (s->m)
		memory_free(s->m);
}

CUresult graph_mem_new(size_t len, const struct spot *at, struct graph_mem **out)
{
	struct graph_mem *m = freed_before(at, len);
	uint64_t used, reserved;

	if (m) {
		m->refs++;
		*out = m;
		return 0;
	}
	if (!at->spare->tried) {
		at->spare->len = len;
		return SEND_AGAIN;
	}
	if (!at->spare->m || len != at->spare->len)	/* the length has changed meanwhile */
		return at->spare->rc ? at->spare->rc : CUDA_ERROR_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->m = at->spare->m;
	at->spare->m = NULL;
	m->addr = m->m->base;
	m->ctx = m->m->ctx;
	m->graph = at->g->handle;
	m->len = len;
	m->refs = 1;
	m->next = here->graph_mem.all;
	here->graph_mem.all = m;
	*out = m;
	totals(&used, &reserved);
	return 0;
}

struct graph_mem *graph_mem_at(CUdeviceptr addr)
{
	struct graph_mem *m;

	for (m = here->graph_mem.all; m && m->addr != addr; m = m->next)
		;
	return m;
}

/* Leave memory to graph_mem_sweep() if it has no nodes and is not allocated. */
static void settle(struct graph_mem *m)
{
	struct graph_mem **p;

	if (m->refs || m->live)
		return;
	for (p = &here->graph_mem.all; *p != m; p = &(*p)->next)
		;
	*p = m->next;
	m->next = here->graph_mem.dead;
	here->graph_mem.dead = m;
}

void graph_mem_put(struct graph_mem *m)
{
	m->refs--;
	settle(m);
}

static bool any_live(const struct graph *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		const struct work *w = &g->nodes[i]->w;

		if ((w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && w->alloc.m->live) ||
		    (w->type == CU_GRAPH_NODE_TYPE_GRAPH && any_live(w->child)))
			return true;
	}
	return false;
}

enum { FORGET, ALLOC, FREE };

static void set_live(const struct graph *g, int step)
{
	for (uint32_t i = 0; i < g->n; i++) {
		const struct work *w = &g->nodes[i]->w;
		struct graph_mem *m;

		if (w->type == CU_GRAPH_NODE_TYPE_GRAPH) {
			set_live(w->child, step);
		} else if (step != FREE && w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
			w->alloc.m->live = step == ALLOC ? w->alloc.m->live + 1 : 0;
			w->alloc.m->used = true;
		} else if (step == FREE && w->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
			m = graph_mem_at(w->free);
			if (m && m->live && !--m->live)
				settle(m);
		}
	}
}

/*
 * A launch: memory that an earlier launch has left allocated is an error, or (auto_free) is freed.
 */
CUresult graph_mem_launch(const struct graph *g, bool auto_free)
{
	uint64_t used, reserved;

	if (!auto_free && any_live(g))
		return CUDA_ERROR_INVALID_VALUE;
	set_live(g, FORGET);
	set_live(g, ALLOC);
	totals(&used, &reserved);
	set_live(g, FREE);
	return 0;
}

bool graph_memory_freed(CUdeviceptr addr)
{
	struct graph_mem *m;
	bool was;

	if (graph_lock())
		return false;
	m = graph_mem_at(addr);
	was = m && m->live;
	if (was) {
		m->live = 0;
		settle(m);
	}
	graph_unlock(0);
	if (was)
		graph_mem_sweep();
	return was;
}

/* Waits for what may use the memory: streams other than those of its graphs, too. *for_ctx: has been waited for. */
static CUresult wait_for_users(const struct graph_mem *m, struct context **for_ctx)
{
	struct context *ctx = m->ctx->live ? m->ctx : thread.ctx;

	if (!m->used || !ctx || ctx == *for_ctx)
		return CUDA_SUCCESS;
	*for_ctx = ctx;
	return context_sync(ctx);
}

void graph_mem_sweep(void)
{
	struct context *for_ctx = NULL;
	struct graph_mem *m, *next;

	if (!__atomic_load_n(&here->graph_mem.dead, __ATOMIC_RELAXED) || graph_lock())
		return;
	m = here->graph_mem.dead;
	here->graph_mem.dead = NULL;
	graph_unlock(0);
	for (; m; m = next) {
		next = m->next;
		if (wait_for_users(m, &for_ctx) == CUDA_ERROR_EXTERNAL_DEVICE)
			break;		/* what stands may use them yet: the next sweep looks again */
		if (m->m)
			memory_free(m->m);
		free(m);
	}
	if (!m)
		return;
	graph_relock();
	for (; m; m = next) {
		next = m->next;
		m->next = here->graph_mem.dead;
		here->graph_mem.dead = m;
	}
	graph_unlock(0);
}

static void forget_memory(struct graph_mem *m, const struct context *ctx)
{
	for (; m; m = m->next)
		if (m->ctx == ctx) {
			m->m = NULL;	/* memory.c frees it */
			m->live = 0;
			m->used = false;
		}
}

void graph_mem_context_gone(struct context *ctx)
{
	forget_memory(here->graph_mem.all, ctx);
	forget_memory(here->graph_mem.dead, ctx);
}

/* ----------------------------------------------------------------------------------- calls */

API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	TRY(session_check());
	if (!session_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	graph_mem_sweep();
	return 0;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	uint64_t used, reserved;
	CUresult r = 0;

	TRY(session_check());
	if (!session_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_lock());
	totals(&used, &reserved);
	switch (attr) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = used;
		break;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = here->graph_mem.used_high;
		break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = reserved;
		break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = here->graph_mem.reserved_high;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	return graph_unlock(r);
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	TRY(session_check());
	if (!session_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || *(cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_lock());
	if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		here->graph_mem.used_high = 0;
	else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		here->graph_mem.reserved_high = 0;
	else
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	return graph_unlock(0);
}
