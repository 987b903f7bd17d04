/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pieces.c - executable graphs with collective operations or other devices' memory, cut into pieces
 *
 * A collective starts when all ranks have posted it (docs/collectives.md), so no driver's graph has it; nor has
 * one a copy between devices, which pass through the arena (memory/cross.c). A graph with such nodes becomes
 * pieces: each of them, each record of an event, each wait for one, and
 * between these *breaks* driver's graphs. A launch is a sequence of records in some streams:
 *
 *   the launch's stream, lane 0:  wait end ─► graph ─► collective ─► graph ───────► wait ─► record end
 *                                               └ event ──┐                          ▲
 *   lane 1:                                               └► wait ─► graph ─► event ─┘
 *
 * The proxy parks them as if the program had sent them; a half-done launch is what of it is parked.
 *
 * Nodes are in one piece if the same breaks are before them, and the same breaks are behind them. Along
 * an edge the first set can only grow, and the second only shrink: so pieces are in no circle, and a
 * collective waits for its own predecessors alone. Graphs in the middle may wait for more.
 *
 * Pieces are sent in an order in which each comes behind its predecessors, and collectives come as they
 * were captured, since all ranks post those of a communicator in one order. A piece is put behind
 * another one of its lane only where it depends on that: else a collective could wait for one that
 * another rank posts later. `end` keeps two launches of one graph apart, as drivers do.
 */
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "cross.h"
#include "cuda_ops.h"
#include "graph_i.h"
#include "managedvar.h"
#include "object.h"
#include "send.h"

#define LANES_MAX	64
#define BREAKS_MAX	4096
#define NONE		UINT32_MAX

enum kind { PIECE_EMPTY, PIECE_GRAPH, PIECE_BREAK };

struct piece {
	enum kind kind;
	struct node *n;			/* PIECE_BREAK */
	uint64_t exec;			/* PIECE_GRAPH: its handle */
	bool made;			/* the proxy has it */
	uint64_t desc, update;		/* arena offsets, as those of struct exec */
	uint32_t nodes;
	uint32_t lane;
	uint32_t wait, waits;		/* in pieces.wait: events of other lanes */
	CUevent event;			/* recorded behind it, or NULL */
};

struct pieces {
	uint32_t n;
	struct piece *piece;		/* in the order in which they are sent */
	CUevent *wait;
	uint32_t waits;
	uint32_t lanes;
	CUstream lane[LANES_MAX];	/* [0] is the launch's */
	CUevent begin, end;		/* of a launch */
	CUevent join[LANES_MAX];	/* of lanes, for which a launch's end waits */
	uint32_t joins;
	bool launched;
	uint32_t nodes;			/* of the description; each one's piece, and index there */
	uint32_t *of, *index;
};

/* ------------------------------------------------------------------------------ cutting */

struct edge_of {
	uint32_t from, to;		/* pieces */
};

/* Pieces under construction, numbered as they are found. */
struct cut {
	const struct sv_graph_node **node;
	uint32_t nodes, breaks, words;
	uint32_t *brk;			/* each node's, or NONE */
	uint64_t *before, *behind;	/* `words` words a node: breaks */
	const struct break_at *at;
	uint32_t n;
	uint32_t *of;			/* each node's piece */
	uint32_t *first;		/* each piece's first node */
	struct edge_of *edge;		/* sorted by `to` */
	size_t edges;
	uint32_t *order, *place;	/* pieces as they are sent, and the reverse */
	uint32_t *lane, *step;		/* each piece's, and its number there */
	uint32_t (*clock)[LANES_MAX];	/* by piece: how many of each lane come before it */
	uint32_t len[LANES_MAX], lanes;
};

static const struct sv_graph_dep *deps_of(const struct sv_graph_node *n)
{
	return (const struct sv_graph_dep *)(n + 1);
}

static CUresult read_nodes(struct cut *c, const uint8_t *desc)
{
	const struct sv_graph *h = (const struct sv_graph *)desc;

	desc += sizeof(*h);
	for (uint32_t i = 0; i < c->nodes; i++) {
		c->node[i] = (const struct sv_graph_node *)desc;
		desc += c->node[i]->size;
		c->brk[i] = NONE;
		if (h->root || c->node[i]->graph || c->node[i]->type == SV_NODE_COND)
			return sv_unsupported("a graph with conditional nodes and collective operations, or "
					      "copies between devices",
					      "these are no nodes of the device's graph, which decides by itself");
	}
	for (uint32_t i = 0; i < c->breaks; i++)
		c->brk[c->at[i].index] = i;
	return 0;
}

static void add_set(struct cut *c, uint64_t *to, const uint64_t *from, uint32_t node)
{
	uint32_t brk = c->brk[node];

	for (uint32_t i = 0; i < c->words; i++)
		to[i] |= from[i];
	if (brk != NONE)
		to[brk / 64] |= 1ull << brk % 64;
}

static void find_sets(struct cut *c)
{
	for (uint32_t i = 0; i < c->nodes; i++)
		for (uint32_t k = 0; k < c->node[i]->deps; k++) {
			uint32_t d = deps_of(c->node[i])[k].node;

			add_set(c, c->before + (size_t)i * c->words,
				c->before + (size_t)d * c->words, d);
		}
	for (uint32_t i = c->nodes; i--;)
		for (uint32_t k = 0; k < c->node[i]->deps; k++)
			add_set(c, c->behind + (size_t)deps_of(c->node[i])[k].node * c->words,
				c->behind + (size_t)i * c->words, i);
}

static bool same_sets(const struct cut *c, uint32_t a, uint32_t b)
{
	size_t len = c->words * sizeof(uint64_t);

	return !memcmp(c->before + (size_t)a * c->words, c->before + (size_t)b * c->words, len) &&
	       !memcmp(c->behind + (size_t)a * c->words, c->behind + (size_t)b * c->words, len);
}

static uint64_t hash_sets(const struct cut *c, uint32_t node)
{
	const uint64_t *a = c->before + (size_t)node * c->words;
	const uint64_t *b = c->behind + (size_t)node * c->words;
	uint64_t h = 0;

	for (uint32_t i = 0; i < c->words; i++) {
		h = (h ^ a[i]) * 0x9e3779b97f4a7c15ull;
		h = (h ^ h >> 29 ^ b[i]) * 0xbf58476d1ce4e5b9ull;
	}
	return h ^ h >> 32;
}

/* Puts the nodes into pieces; nodes of the same sets are found by a table of hashes. */
static CUresult find_pieces(struct cut *c)
{
	size_t room = 16;
	uint32_t *table;

	while (room < 2ul * c->nodes)
		room *= 2;
	table = malloc(room * sizeof(*table));
	if (!table)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(table, 0xff, room * sizeof(*table));
	for (uint32_t i = 0; i < c->nodes; i++) {
		size_t at = hash_sets(c, i) & (room - 1);

		while (c->brk[i] == NONE && table[at] != NONE &&
		       !same_sets(c, c->first[table[at]], i))
			at = (at + 1) & (room - 1);
		if (c->brk[i] == NONE && table[at] != NONE) {
			c->of[i] = table[at];
			continue;
		}
		if (c->brk[i] == NONE)
			table[at] = c->n;
		c->first[c->n] = i;
		c->of[i] = c->n++;
	}
	free(table);
	return 0;
}

static int by_to(const void *a, const void *b)
{
	const struct edge_of *x = a, *y = b;

	return x->to != y->to ? (x->to < y->to ? -1 : 1) :
	       x->from != y->from ? (x->from < y->from ? -1 : 1) : 0;
}

static CUresult find_edges(struct cut *c)
{
	size_t n = 0, kept = 0;

	for (uint32_t i = 0; i < c->nodes; i++)
		n += c->node[i]->deps;
	c->edge = malloc((n + 1) * sizeof(*c->edge));
	if (!c->edge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < c->nodes; i++)
		for (uint32_t k = 0; k < c->node[i]->deps; k++) {
			uint32_t from = c->of[deps_of(c->node[i])[k].node];

			if (from != c->of[i])
				c->edge[c->edges++] = (struct edge_of){ from, c->of[i] };
		}
	qsort(c->edge, c->edges, sizeof(*c->edge), by_to);
	for (size_t i = 0; i < c->edges; i++)
		if (!i || by_to(&c->edge[i], &c->edge[i - 1]))
			c->edge[kept++] = c->edge[i];
	c->edges = kept;
	return 0;
}

/* ------------------------------------------------------------------------------ the order */

/* The sequence number of a break's collective; none: the largest number. */
static uint64_t seq_of(const struct break_at *b)
{
	return b->n->w.type == NODE_COLL ? b->n->w.coll.seq : UINT64_MAX;
}

/* A piece is as urgent as the first collective that it is, or that waits for it. */
static uint64_t urgency(const struct cut *c, uint32_t piece)
{
	uint32_t node = c->first[piece];
	const uint64_t *behind = c->behind + (size_t)node * c->words;
	uint64_t least = c->brk[node] == NONE ? UINT64_MAX : seq_of(&c->at[c->brk[node]]);

	for (uint32_t i = 0; i < c->breaks; i++)
		if (behind[i / 64] >> i % 64 & 1 && seq_of(&c->at[i]) < least)
			least = seq_of(&c->at[i]);
	return least;
}

/* Orders the pieces: of those whose predecessors are there, the most urgent one is next. */
static CUresult find_order(struct cut *c)
{
	uint64_t *urgent = calloc(c->n, sizeof(*urgent));
	uint32_t *left = calloc(c->n, sizeof(*left)), done, best, i;
	size_t e;

	for (i = 0; urgent && left && i < c->n; i++)
		urgent[i] = urgency(c, i);
	for (e = 0; left && e < c->edges; e++)
		left[c->edge[e].to]++;
	for (done = 0; urgent && left && done < c->n; done++) {
		best = NONE;
		for (i = 0; i < c->n; i++)
			if (!left[i] && (best == NONE || urgent[i] < urgent[best]))
				best = i;
		c->order[done] = best;
		c->place[best] = done;
		left[best] = NONE;
		for (e = 0; e < c->edges; e++)
			if (c->edge[e].from == best)
				left[c->edge[e].to]--;
	}
	free(left);
	free(urgent);
	return urgent && left ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Finds the piece's predecessors, and what comes before it because of them. */
static const struct edge_of *find_before(struct cut *c, uint32_t piece, size_t *n)
{
	size_t low = 0, high = c->edges, i;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (c->edge[mid].to < piece)
			low = mid + 1;
		else
			high = mid;
	}
	for (i = low; i < c->edges && c->edge[i].to == piece; i++) {
		uint32_t from = c->edge[i].from;

		for (uint32_t l = 0; l < c->lanes; l++)
			if (c->clock[piece][l] < c->clock[from][l])
				c->clock[piece][l] = c->clock[from][l];
	}
	*n = i - low;
	return c->edge + low;
}

/* Puts a piece on a lane whose last piece comes before it: a predecessor, if there is one. */
static CUresult find_lane(struct cut *c, uint32_t piece)
{
	uint32_t *clock = c->clock[piece], lane = NONE;
	const struct edge_of *e;
	size_t n;

	e = find_before(c, piece, &n);
	for (uint32_t l = c->lanes; l--;)
		if (c->len[l] == clock[l])
			lane = l;
	for (size_t i = 0; i < n; i++) {
		uint32_t l = c->lane[e[i].from];

		if (c->len[l] == clock[l] && c->step[e[i].from] + 1 == c->len[l])
			lane = l;
	}
	if (lane == NONE && c->lanes == LANES_MAX)
		return sv_unsupported("a graph with collective operations, or copies between devices",
				      "it has more than 64 branches beside each other");
	if (lane == NONE)
		lane = c->lanes++;
	c->lane[piece] = lane;
	c->step[piece] = c->len[lane];
	clock[lane] = ++c->len[lane];
	return 0;
}

/* ------------------------------------------------------------------------------ the pieces */

static CUresult event_new(CUevent *e)
{
	return *e ? CUDA_SUCCESS : cuEventCreate(e, CU_EVENT_DISABLE_TIMING);
}

/* The k-th piece of a lane. */
static uint32_t piece_at(const struct cut *c, uint32_t lane, uint32_t k)
{
	uint32_t i = 0;

	while (c->lane[c->order[i]] != lane || c->step[c->order[i]] != k)
		i++;
	return i;
}

/* Notes the events that a piece, or the end, waits for, whose lane has come so far as `known` says. */
static CUresult add_waits(struct pieces *v, const struct cut *c, const uint32_t *clock, uint32_t lane,
			  uint32_t *known, CUevent *to, uint32_t *n)
{
	for (uint32_t l = 0; l < c->lanes; l++) {
		struct piece *p;
		uint32_t i;

		if (l == lane || clock[l] <= known[l])
			continue;
		i = piece_at(c, l, clock[l] - 1);
		p = &v->piece[i];
		TRY(event_new(&p->event));
		to[(*n)++] = p->event;
		for (uint32_t k = 0; k < c->lanes; k++)
			if (known[k] < c->clock[c->order[i]][k])
				known[k] = c->clock[c->order[i]][k];
	}
	return 0;
}

static CUresult add_events(struct pieces *v, const struct cut *c)
{
	uint32_t known[LANES_MAX][LANES_MAX] = { 0 };	/* of each lane's last piece */
	CUevent *more;

	for (uint32_t i = 0; i < v->n; i++) {
		struct piece *p = &v->piece[i];
		uint32_t lane = p->lane;

		more = realloc(v->wait, (v->waits + LANES_MAX) * sizeof(*more));
		if (!more)
			return CUDA_ERROR_OUT_OF_MEMORY;
		v->wait = more;
		p->wait = v->waits;
		TRY(add_waits(v, c, c->clock[c->order[i]], lane, known[lane], v->wait, &v->waits));
		if (lane && !c->step[c->order[i]] && p->wait == v->waits)
			v->wait[v->waits++] = v->begin;
		p->waits = v->waits - p->wait;
		known[lane][lane] = c->clock[c->order[i]][lane];
	}
	return add_waits(v, c, c->len, 0, known[0], v->join, &v->joins);
}

/* Makes the streams and events of a launch, in the current context. */
static CUresult make_lanes(struct pieces *v, const struct cut *c)
{
	TRY(event_new(&v->begin));
	TRY(event_new(&v->end));
	for (v->lanes = 1; v->lanes < c->lanes; v->lanes++)
		TRY(cuStreamCreate(&v->lane[v->lanes], CU_STREAM_NON_BLOCKING));
	return add_events(v, c);
}

static CUresult fill(struct pieces *v, const struct cut *c)
{
	v->n = c->n;
	v->nodes = c->nodes;
	v->piece = calloc(c->n, sizeof(*v->piece));
	v->of = calloc(c->nodes + 1ul, sizeof(*v->of));
	v->index = calloc(c->nodes + 1ul, sizeof(*v->index));
	if (!v->piece || !v->of || !v->index)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < c->n; i++)
		v->piece[i].lane = c->lane[c->order[i]];
	for (uint32_t i = 0; i < c->nodes; i++) {
		struct piece *p = &v->piece[c->place[c->of[i]]];

		v->of[i] = p - v->piece;
		v->index[i] = p->nodes++;
		if (c->brk[i] != NONE) {
			p->kind = PIECE_BREAK;
			p->n = c->at[c->brk[i]].n;
		} else if (c->node[i]->type != SV_NODE_EMPTY) {
			p->kind = PIECE_GRAPH;
		}
	}
	return 0;
}

static CUresult cut_up(struct cut *c, struct pieces *v, const void *desc)
{
	uint32_t n = ((const struct sv_graph *)desc)->nodes;

	c->nodes = n;
	c->words = (c->breaks + 63) / 64;
	c->node = calloc(n + 1ul, sizeof(*c->node));
	c->brk = calloc(n + 1ul, sizeof(*c->brk));
	c->before = calloc((n + 1ul) * c->words, sizeof(*c->before));
	c->behind = calloc((n + 1ul) * c->words, sizeof(*c->behind));
	c->of = calloc(n + 1ul, sizeof(*c->of));
	c->first = calloc(n + 1ul, sizeof(*c->first));
	if (!c->node || !c->brk || !c->before || !c->behind || !c->of || !c->first)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(read_nodes(c, desc));
	find_sets(c);
	TRY(find_pieces(c));
	c->order = calloc(c->n, sizeof(*c->order));
	c->place = calloc(c->n, sizeof(*c->place));
	c->lane = calloc(c->n, sizeof(*c->lane));
	c->step = calloc(c->n, sizeof(*c->step));
	c->clock = calloc(c->n, sizeof(*c->clock));
	if (!c->order || !c->place || !c->lane || !c->step || !c->clock)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(find_edges(c));
	TRY(find_order(c));
	c->lanes = 1;
	for (uint32_t i = 0; i < c->n; i++)
		TRY(find_lane(c, c->order[i]));
	TRY(fill(v, c));
	return make_lanes(v, c);
}

static void cut_free(struct cut *c)
{
	free(c->node);
	free(c->brk);
	free(c->before);
	free(c->behind);
	free(c->of);
	free(c->first);
	free(c->edge);
	free(c->order);
	free(c->place);
	free(c->lane);
	free(c->step);
	free(c->clock);
}

/* ------------------------------------------------------------------------------ descriptions */

/* Copies a node for its own piece: dependencies on other pieces are those of the pieces. */
static size_t copy_node(const struct pieces *v, const struct sv_graph_node *n, uint8_t *to)
{
	size_t body = n->size - sizeof(*n) - n->deps * sizeof(struct sv_graph_dep);
	struct sv_graph_node *h = (struct sv_graph_node *)to;
	struct sv_graph_dep *d = (struct sv_graph_dep *)(h + 1);

	*h = *n;
	h->index = v->index[n->index];
	h->deps = 0;
	for (uint32_t i = 0; i < n->deps; i++) {
		const struct sv_graph_dep *old = &deps_of(n)[i];

		if (v->of[old->node] != v->of[n->index])
			continue;
		d[h->deps] = *old;
		d[h->deps++].node = v->index[old->node];
	}
	memcpy(d + h->deps, deps_of(n) + n->deps, body);
	h->size = (uint8_t *)(d + h->deps) + body - to;
	return h->size;
}

/* Sends each piece its nodes of a description. */
static CUresult send_pieces(struct exec *x, uint16_t op, const void *desc, size_t len, uint64_t flags,
			    bool whole)
{
	const struct sv_graph *all = desc;
	struct pieces *v = x->pieces;
	struct sv_graph *h = malloc(len);
	CUresult r = h ? 0 : CUDA_ERROR_OUT_OF_MEMORY;

	for (uint32_t i = 0; i < v->n && !r; i++) {
		const uint8_t *from = (const uint8_t *)(all + 1);
		struct piece *p = &v->piece[i];
		uint8_t *to = (uint8_t *)(h + 1);

		if (p->kind != PIECE_GRAPH)
			continue;
		*h = (struct sv_graph){ 0 };
		for (uint32_t k = 0; k < all->nodes; k++) {
			const struct sv_graph_node *n = (const struct sv_graph_node *)from;

			from += n->size;
			if (v->of[n->index] != i)
				continue;
			to += copy_node(v, n, to);
			h->nodes++;
		}
		if (!h->nodes)
			continue;
		r = exec_send(op, x, p->exec, h, to - (uint8_t *)h, flags,
			      op == SV_OP_X_GRAPH ? &p->desc : whole ? &p->update : NULL);
		p->made |= !r;
	}
	free(h);
	return r;
}

static CUresult name_pieces(struct pieces *v)
{
	CUresult r = 0;

	graph_relock();
	for (uint32_t i = 0; i < v->n && !r; i++)
		if (v->piece[i].kind == PIECE_GRAPH) {
			v->piece[i].exec = graph_name(SV_T_CUgraphExec, NULL);
			r = v->piece[i].exec ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
		}
	return graph_unlock(r);
}

CUresult pieces_new(struct exec *x, const void *desc, size_t len, const struct break_at *b,
		    uint32_t breaks, uint64_t flags)
{
	struct cut c = { .at = b, .breaks = breaks };
	CUcontext was;
	CUresult r;

	if (breaks > BREAKS_MAX)
		return sv_unsupported("a graph with collective operations, or copies between devices",
				      "it has more than 4096 of them");
	x->pieces = calloc(1, sizeof(*x->pieces));
	if (!x->pieces)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = cuCtxPushCurrent_v2((CUcontext)(uintptr_t)x->ctx_handle);
	if (!r) {
		r = cut_up(&c, x->pieces, desc);
		cuCtxPopCurrent_v2(&was);
		here = x->session;	/* the thread's context may be on another device */
	}
	cut_free(&c);
	if (!r)
		r = name_pieces(x->pieces);
	return r ? r : send_pieces(x, SV_OP_X_GRAPH, desc, len, flags, true);
}

CUresult pieces_update(struct exec *x, const void *desc, size_t len, bool whole)
{
	/* If one fails, those that have been changed are changed back. */
	return send_pieces(x, SV_OP_X_GRAPH_UPDATE, desc, len, SV_GRAPH_SURE, whole);
}

/* ------------------------------------------------------------------------------ launches */

static CUresult wait_for(const struct exec *x, uint64_t stream, CUevent e)
{
	struct sv_cuStreamWaitEvent a = { .ctx = x->ctx_handle, .hStream = stream,
					  .hEvent = sv_u64(e) };

	return send_async(SV_OP_cuStreamWaitEvent, &a, sizeof(a), NULL, 0);
}

static CUresult record(const struct exec *x, uint64_t stream, CUevent e)
{
	struct sv_cuEventRecord a = { x->ctx_handle, sv_u64(e), stream };

	return send_async(SV_OP_cuEventRecord, &a, sizeof(a), NULL, 0);
}

static struct stream *stream_of(const struct exec *x, uint64_t wire)
{
	return wire == SV_STREAM_LEGACY ? &x->ctx->legacy : obj_find(SV_T_CUstream, wire);
}

/* A copy or a memset of another device's memory; pageable sides are copied by the node's call. */
static CUresult send_cross(const struct exec *x, const struct node *n, uint64_t stream)
{
	struct stream *s = stream_of(x, stream);
	uint64_t stage = n->call ? sv_u64(arena_at(n->call->stage)) : 0;

	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!n->enabled)
		return CUDA_SUCCESS;
	if (n->w.type == CU_GRAPH_NODE_TYPE_MEMSET)
		return cross_node_set(s, &n->w.set);
	return cross_node_copy(s, &n->w.copy, n->shape & SHAPE_FROM ? stage : 0,
			       n->shape & SHAPE_TO ? stage : 0);
}

static CUresult send_break(const struct exec *x, const struct node *n, uint64_t stream)
{
	const struct coll *c = &n->w.coll;
	struct sv_coll head = { .ctx = x->ctx_handle, .stream = stream };

	if (n->shape & SHAPE_CROSS)
		return send_cross(x, n, stream);
	if (n->w.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		return record(x, stream, n->w.event);
	if (n->w.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
		return wait_for(x, stream, n->w.event);
	head.comm = c->number;
	head.calls = c->n;
	return send_async(SV_OP_X_COLL, &head, sizeof(head), c->call, c->n * sizeof(*c->call));
}

static CUresult send_piece(const struct exec *x, const struct piece *p, uint64_t stream)
{
	struct sv_graph_launch a = { x->ctx_handle, stream, p->exec, 0, 0 };

	for (uint32_t i = 0; i < p->waits; i++)
		TRY(wait_for(x, stream, x->pieces->wait[p->wait + i]));
	if (p->kind == PIECE_GRAPH)
		TRY(send_async(SV_OP_cuGraphLaunch, &a, sizeof(a), NULL, 0));
	if (p->kind == PIECE_BREAK)
		TRY(send_break(x, p->n, stream));
	return p->event ? record(x, stream, p->event) : CUDA_SUCCESS;
}

static CUresult send_launch(const struct exec *x, uint64_t stream)
{
	struct sv_cuStreamWriteValue64_v2 end = { .ctx = x->ctx_handle, .stream = stream };
	struct pieces *v = x->pieces;

	if (v->launched)
		TRY(wait_for(x, stream, v->end));
	v->launched = true;
	if (v->lanes > 1)
		TRY(record(x, stream, v->begin));
	for (uint32_t i = 0; i < v->n; i++) {
		uint32_t lane = v->piece[i].lane;

		TRY(send_piece(x, &v->piece[i], lane ? sv_u64(v->lane[lane]) : stream));
	}
	for (uint32_t i = 0; i < v->joins; i++)
		TRY(wait_for(x, stream, v->join[i]));
	TRY(record(x, stream, v->end));
	if (!x->words)
		return CUDA_SUCCESS;
	end.addr = (uintptr_t)arena_at(x->words);
	end.value = x->launches;
	return send_async(SV_OP_cuStreamWriteValue64_v2, &end, sizeof(end), NULL, 0);
}

/* Communicators that have ended, or failed, do nothing more. Their memory stays. */
static CUresult check_comms(const struct pieces *v)
{
	for (uint32_t i = 0; i < v->n; i++) {
		const struct node *n = v->piece[i].n;
		const struct sv_comm_word *w;

		if (!n || n->w.type != NODE_COLL)
			continue;
		/* pairs with comm_new() in nccl/comm.c */
		if (__atomic_load_n(&n->w.coll.comm->number, __ATOMIC_ACQUIRE) != n->w.coll.number) {
			client_log("cuGraphLaunch: a communicator of the graph has been destroyed, "
				   "finalized or aborted");
			return CUDA_ERROR_INVALID_HANDLE;
		}
		w = n->w.coll.comm->word;
		/* pairs with set_failure() of the proxy: the text is there */
		if (__atomic_load_n(&w->code, __ATOMIC_ACQUIRE)) {
			client_log("cuGraphLaunch: a communicator of the graph has failed: %s", w->text);
			return CUDA_ERROR_EXTERNAL_DEVICE;
		}
	}
	return CUDA_SUCCESS;
}

CUresult pieces_launch(struct exec *x, struct stream *s)
{
	CUresult r = check_comms(x->pieces);

	if (!r && s->o.ctx != x->ctx)
		r = sv_unsupported("launching a graph with collective operations, or copies between devices",
				   "the stream is of another context than the graph");
	if (!r)
		r = graph_mem_launch(x->g, x->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	if (r)
		return graph_unlock(r);
	x->launches += !!x->words;
	x->busy = true;
	graph_unlock(0);
	r = managedvar_launch(s->o.ctx);
	if (!r)
		r = send_launch(x, s->wire);
	graph_relock();
	x->busy = false;
	graph_changed();
	return graph_unlock(r);
}

CUresult pieces_upload(struct exec *x, struct stream *s)
{
	struct sv_graph_launch a = { .ctx = s->o.ctx->o.handle, .stream = s->wire };
	CUresult r = 0;

	x->busy = true;
	graph_unlock(0);
	for (uint32_t i = 0; i < x->pieces->n && !r; i++) {
		a.exec = x->pieces->piece[i].exec;
		if (a.exec)
			r = send_async(SV_OP_cuGraphUpload, &a, sizeof(a), NULL, 0);
	}
	graph_relock();
	x->busy = false;
	graph_changed();
	return graph_unlock(r);
}

/* ------------------------------------------------------------------------------ the end */

static void event_end(CUevent *e)
{
	if (*e)
		cuEventDestroy_v2(*e);
	*e = NULL;
}

void pieces_end(struct exec *x)
{
	struct pieces *v = x->pieces;

	for (uint32_t i = 0; v && i < v->n; i++) {
		struct sv_graph_end a = { v->piece[i].exec };

		if (v->piece[i].made)
			send_async(SV_OP_cuGraphExecDestroy, &a, sizeof(a), NULL, 0);
		v->piece[i].made = false;
		event_end(&v->piece[i].event);
	}
	if (!v)
		return;
	event_end(&v->begin);
	event_end(&v->end);
	for (uint32_t i = 1; i < v->lanes; i++)
		cuStreamDestroy_v2(v->lane[i]);
	v->lanes = 1;
}

void pieces_unname(struct exec *x)
{
	struct pieces *v = x->pieces;

	for (uint32_t i = 0; v && i < v->n; i++) {
		if (v->piece[i].exec)
			graph_unname(SV_T_CUgraphExec, v->piece[i].exec);
		v->piece[i].exec = 0;
	}
}

void pieces_free(struct exec *x)
{
	struct pieces *v = x->pieces;

	if (!v)
		return;
	for (uint32_t i = 0; i < v->n; i++) {
		if (v->piece[i].desc)
			arena_free(v->piece[i].desc);
		if (v->piece[i].update)
			arena_free(v->piece[i].update);
	}
	free(v->piece);
	free(v->wait);
	free(v->of);
	free(v->index);
	free(v);
}
