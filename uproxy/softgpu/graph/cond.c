/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cond.c - conditional nodes: bodies that a value in device memory chooses and repeats.
 *
 * A conditional handle is the device address of its value; cudaGraphSetConditional() in a kernel
 * stores there (program.c has it as PTX). Handles live as long as their graph and its clones.
 */
#include "graph_i.h"

#include <stdlib.h>
#include <string.h>

struct cond_set {			/* the handles of one graph */
	unsigned int refs;
	size_t n;
	struct {
		struct mem *mem;
		unsigned int value;
		bool assign;		/* value is set when a launch begins */
	} *h;
};

void conds_get(struct cond_set *c)
{
	if (c)
		c->refs++;
}

void conds_put(struct cond_set *c)
{
	if (!c || --c->refs)
		return;
	for (size_t i = 0; i < c->n; i++)
		mem_free(c->h[i].mem);
	free(c->h);
	free(c);
}

void conds_begin(struct cond_set *c)
{
	for (size_t i = 0; c && i < c->n; i++)
		if (c->h[i].assign)
			__atomic_store_n((unsigned int *)c->h[i].mem->va, c->h[i].value,
					 __ATOMIC_RELEASE);
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph,
					CUcontext hCtx, unsigned int defaultLaunchValue,
					unsigned int flags)
{
	struct graph *g = (struct graph *)hGraph;
	struct ctx *ctx;
	uint64_t want;
	struct mem *m;
	void *p;
	CUresult r;

	if (!pHandle_out || (flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	if (!obj_live(g, OBJ_GRAPH) || (hCtx && !obj_live(hCtx, OBJ_CTX)))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (!g->conds)
		g->conds = calloc(1, sizeof(*g->conds));
	if (!g->conds)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	if (!g->conds->refs)
		g->conds->refs = 1;
	p = realloc(g->conds->h, (g->conds->n + 1) * sizeof(*g->conds->h));
	if (!p)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	g->conds->h = p;
	want = place_wanted();
	r = mem_place(ctx->dev, NULL, 4, 512, MEM_MODULE,
		      place_is(want) ? place_key(want) : place_hash(0, "condition", 9), &m);
	if (r)
		return api_unlock(r);
	m->owner = g->conds;
	*(unsigned int *)m->va = defaultLaunchValue;
	g->conds->h[g->conds->n].mem = m;
	g->conds->h[g->conds->n].value = defaultLaunchValue;
	g->conds->h[g->conds->n++].assign = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
	*pHandle_out = m->va;
	return api_unlock(CUDA_SUCCESS);
}

bool conds_own(unsigned int i, struct mem **out)
{
	for (uint64_t at = window_base; mem_next(at, out); at = (*out)->va + (*out)->len)
		if ((*out)->kind == MEM_MODULE && (*out)->len == 4 && !(*out)->ctx && !i--)
			return true;
	return false;
}

CUresult cond_desc(const CUDA_CONDITIONAL_NODE_PARAMS *p, struct desc *d)
{
	struct mem *m = mem_find(p->handle);
	unsigned int max = p->type == CU_GRAPH_COND_TYPE_IF ? 2 :
			   p->type == CU_GRAPH_COND_TYPE_WHILE ? 1 : 1024;

	if (!m || m->va != p->handle || m->kind != MEM_MODULE || m->len != 4 || !p->size ||
	    p->size > max || (int)p->type < 0 || p->type > CU_GRAPH_COND_TYPE_SWITCH)
		return CUDA_ERROR_INVALID_VALUE;
	*d = (struct desc){ .kind = D_COND,
			    .cond = { .handle = p->handle, .type = p->type } };
	d->cond.body = calloc(p->size, sizeof(*d->cond.body));
	if (!d->cond.body)
		return CUDA_ERROR_OUT_OF_MEMORY;
	while (d->cond.size < p->size) {
		struct graph *g = soft_graph_new();

		if (!g) {
			desc_free(d);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		g->owned = true;
		d->cond.body[d->cond.size++] = g;
	}
	return CUDA_SUCCESS;
}

void cond_free(struct desc *d)
{
	for (unsigned int i = 0; i < d->cond.size; i++)
		graph_put_ref(d->cond.body[i]);
	free(d->cond.body);
}

int cond_clone(struct desc *to, const struct desc *from, bool for_exec)
{
	to->cond.size = 0;
	to->cond.body = calloc(from->cond.size, sizeof(*to->cond.body));
	if (!to->cond.body)
		return -1;
	while (to->cond.size < from->cond.size) {
		struct graph *g = soft_graph_clone(from->cond.body[to->cond.size], for_exec);

		if (!g) {
			cond_free(to);
			return -1;
		}
		g->owned = true;
		to->cond.body[to->cond.size++] = g;
	}
	return 0;
}

CUresult cond_run(struct ctx *ctx, struct stream *st, struct op *op, struct desc *d)
{
	const unsigned int *value = (const unsigned int *)d->cond.handle;
	/* pairs with conds_begin(), and with kernels that have ended */
	unsigned int v = __atomic_load_n(value, __ATOMIC_ACQUIRE);
	CUresult r = CUDA_SUCCESS;

	switch (d->cond.type) {
	case CU_GRAPH_COND_TYPE_IF:
		if (!v && d->cond.size < 2)
			return CUDA_SUCCESS;
		return graph_run(ctx, st, op, d->cond.body[v ? 0 : 1]);
	case CU_GRAPH_COND_TYPE_WHILE:
		while (v && !r && !ctx_over(ctx)) {
			r = graph_run(ctx, st, op, d->cond.body[0]);
			/* pairs with kernels that have ended, which set it */
			v = __atomic_load_n(value, __ATOMIC_ACQUIRE);
		}
		return r;
	default:
		return v < d->cond.size ? graph_run(ctx, st, op, d->cond.body[v]) : CUDA_SUCCESS;
	}
}
