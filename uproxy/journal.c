// SPDX-License-Identifier: Apache-2.0
/*
 * journal.c - the channel's log: what a record adds to it, and what of it is still needed
 *
 * When the log is full, and when a dump freezes the session, it is looked through as a whole. Each
 * entry is a node; what it refers to are edges to the entries that made that:
 *
 *   makes    a handle, or maps or pins memory: needed as long as that is live
 *   changes  something that was made: needed if that is, and if no later entry does the same
 *   ends     needed if what made it is
 *
 * and whatever a needed entry refers to is needed, together with its end if that has come since. What
 * drivers give out themselves (addresses of variables, textures) depends on what was there before:
 * an image that has gone stays in the log if one that is needed was made in its lifetime.
 * Entries are only dropped, never changed or moved. What cannot be understood is kept.
 */
#include <stdlib.h>

#include "graph.h"
#include "uproxy_i.h"

#define NONE	UINT32_MAX

/* ------------------------------------------------------------------------------ told by others */

struct pair {
	uint64_t a, b;
};

struct list {
	struct pair *p;
	size_t n, cap;
};

static struct list failures;	/* a: records that were logged before they failed */
static struct list ends;	/* a: record, b: that of what it ended, where the log does not say */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int by_a(const void *x, const void *y)
{
	const struct pair *p = x, *q = y;

	return p->a < q->a ? -1 : p->a > q->a;
}

/* The lists are sorted while the log is looked through, and lock is held. */
static const struct pair *list_find(const struct list *l, uint64_t a)
{
	struct pair key = { a, 0 };

	return l->n ? bsearch(&key, l->p, l->n, sizeof(key), by_a) : NULL;
}

static void list_add(struct list *l, uint64_t a, uint64_t b)
{
	pthread_mutex_lock(&lock);
	if (l->n == l->cap) {
		size_t n = l->cap ? l->cap * 2 : 64;
		struct pair *p = realloc(l->p, n * sizeof(*p));

		if (!p) {	/* the entry stays; a restore finds out, and says so */
			pthread_mutex_unlock(&lock);
			return;
		}
		l->p = p;
		l->cap = n;
	}
	l->p[l->n++] = (struct pair){ a, b };
	pthread_mutex_unlock(&lock);
}

void journal_failed(uint64_t seq)
{
	list_add(&failures, seq, 0);
}

void journal_ended(uint64_t made, uint64_t seq)
{
	list_add(&ends, seq, made);
}

/* ------------------------------------------------------------------------------ entries */

struct item {
	uint64_t seq;
	uint32_t edges, nedges;	/* into survey.edge: what it refers to */
	uint32_t end;		/* the entry that ends what this one makes, or NONE */
	uint32_t target;	/* what this one changes or ends, or NONE */
	uint32_t group;		/* of memory: the entries that go together */
	uint16_t op;
	uint8_t type;		/* of the handle that it makes */
	bool makes, memory, ordered;
	bool about;		/* it changes or ends something; that may have left the log already */
	bool live, need, drop;
	uint64_t handle;
};

struct bound {			/* hash table: a handle, and the entry that made it */
	uint64_t handle;
	uint32_t item;
};

struct survey {
	struct sv_session *s;
	struct item *item;
	uint32_t n, cap;
	uint32_t *edge;
	uint32_t nedges, edge_cap;
	struct bound *bound;
	uint32_t nbound, bound_mask;
	uint32_t *owner;	/* by granule: the entry that maps it, + 1 */
	bool busy;		/* workers run: what they make is not live yet */
	uint64_t upto;		/* kept bytes of later records are not looked at */
	uint32_t at;		/* of the second walk */
};

uint64_t journal_seq(const struct singvgpu_log_entry *e)
{
	uint64_t len = e->len + sizeof(struct singvgpu_rec);

	return e->end + 1 - (len + SINGVGPU_UNIT - 1) / SINGVGPU_UNIT;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
	return x ^ x >> 29;
}

static struct bound *bound_at(struct survey *v, uint64_t handle)
{
	uint32_t i = mix(handle) & v->bound_mask;

	while (v->bound[i].handle && v->bound[i].handle != handle)
		i = (i + 1) & v->bound_mask;
	return &v->bound[i];
}

static uint32_t maker_of(struct survey *v, uint64_t handle)
{
	struct bound *b = bound_at(v, handle);

	return b->handle ? b->item : NONE;
}

/* item NONE: the handle is free again. */
static int bind(struct survey *v, uint64_t handle, uint32_t item)
{
	struct bound *b;

	if (v->nbound >= v->bound_mask / 2) {
		struct survey w = { .bound_mask = v->bound_mask * 2 + 1 };

		w.bound = calloc(w.bound_mask + 1ul, sizeof(*w.bound));
		if (!w.bound)
			return -ENOMEM;
		for (uint32_t i = 0; i <= v->bound_mask; i++)
			if (v->bound[i].handle)
				*bound_at(&w, v->bound[i].handle) = v->bound[i];
		free(v->bound);
		v->bound = w.bound;
		v->bound_mask = w.bound_mask;
	}
	b = bound_at(v, handle);
	v->nbound += !b->handle;
	*b = (struct bound){ handle, item };
	return 0;
}

static int add_edge(struct survey *v, struct item *it, uint32_t to)
{
	for (uint32_t i = it->nedges; i > 0 && it->nedges - i < 8; i--)
		if (v->edge[it->edges + i - 1] == to)
			return 0;
	if (v->nedges == v->edge_cap) {
		uint32_t cap = v->edge_cap ? v->edge_cap * 2 : 1024;
		uint32_t *e = cap > v->edge_cap ? realloc(v->edge, cap * sizeof(*e)) : NULL;

		if (!e)
			return -ENOMEM;
		v->edge = e;
		v->edge_cap = cap;
	}
	v->edge[v->nedges++] = to;
	it->nedges++;
	return 0;
}

static bool is_any_handle(uint64_t w)
{
	return w >> 40 == SV_HANDLE_TAG && !(w & 15);
}

/* Words that are handles, or addresses of the window: to whatever made or mapped that. */
static int refer(struct survey *v, struct item *it, const void *data, uint64_t len)
{
	const struct hal *h = &v->s->hal;
	uint32_t to;
	uint64_t w;
	int rc = 0;

	for (uint64_t at = 0; at + sizeof(w) <= len && !rc; at += sizeof(w)) {
		memcpy(&w, (const uint8_t *)data + at, sizeof(w));
		if (is_any_handle(w))
			to = maker_of(v, w);
		else if (w - h->window < h->window_len)
			to = v->owner[(w - h->window) / SV_GRANULE] - 1;
		else
			continue;
		if (to != NONE && to != (uint32_t)(it - v->item))
			rc = add_edge(v, it, to);
	}
	return rc;
}

/* ------------------------------------------------------------------------------ what a record does */

static uint64_t word(const void *data, uint32_t len, size_t at)
{
	uint64_t w = 0;

	if (at + sizeof(w) <= len)
		memcpy(&w, (const uint8_t *)data + at, sizeof(w));
	return w;
}

#define FIELD(type, name) word(data, e->len, offsetof(struct type, name))

/* The handle that it makes, 0: none. */
static uint64_t made_by(const struct singvgpu_log_entry *e, const void *data)
{
	const struct sv_op *op = e->op < cuda_ops_count ? &cuda_ops[e->op] : NULL;

	switch (e->op) {
	case SV_OP_cuDevicePrimaryCtxRetain:
	case SV_OP_cuCtxCreate_v4:
		return FIELD(sv_ctx_new, ctx);
	case SV_OP_cuLibraryLoadData:
	case SV_OP_cuModuleLoadDataEx:
		return FIELD(sv_image, handle);
	case SV_OP_cuLibraryGetKernel:
	case SV_OP_cuModuleGetFunction:
		return FIELD(sv_by_name, handle);
	case SV_OP_cuKernelGetFunction:
	case SV_OP_cuLibraryGetModule:
		return FIELD(sv_derive, handle);
	case SV_OP_cuMemCreate:
		return FIELD(sv_mem_create, handle);
	case SV_OP_cuMemImportFromShareableHandle:
		return FIELD(sv_mem_share, handle);
	case SV_OP_X_GRAPH:
		return FIELD(sv_graph_req, exec);
	case SV_OP_X_PIN:
		return FIELD(sv_pin, off) | 1;		/* no handle is odd */
	}
	return op && op->creates && op->handle ? word(data, e->len, op->handle - 1) : 0;
}

static uint64_t ended_by(const struct singvgpu_log_entry *e, const void *data)
{
	const struct sv_op *op = e->op < cuda_ops_count ? &cuda_ops[e->op] : NULL;

	switch (e->op) {
	case SV_OP_cuDevicePrimaryCtxReset_v2:
	case SV_OP_cuCtxDestroy_v2:
		return FIELD(sv_ctx_end, ctx);
	case SV_OP_cuStreamDestroy_v2:
		return FIELD(sv_stream_end, stream);
	case SV_OP_cuLibraryUnload:
	case SV_OP_cuModuleUnload:
		return FIELD(sv_image_end, handle);
	case SV_OP_cuMemRelease:
		return FIELD(sv_mem_release, handle);
	case SV_OP_cuGraphExecDestroy:
		return FIELD(sv_graph_end, exec);
	case SV_OP_cuGraphDestroy:
		return FIELD(sv_graph_forget, graph);
	case SV_OP_X_UNPIN:
		return FIELD(sv_pin, off) | 1;
	}
	return op && op->destroys && op->handle ? word(data, e->len, op->handle - 1) : 0;
}

/* Where what it is about is named, if that is not what it makes or ends. */
static uint64_t changed_by(const struct singvgpu_log_entry *e, const void *data)
{
	switch (e->op) {
	case SV_OP_cuCtxSetLimit:
	case SV_OP_cuCtxSetCacheConfig:
	case SV_OP_cuCtxSetSharedMemConfig:
	case SV_OP_cuKernelSetAttribute:
	case SV_OP_cuKernelSetCacheConfig:
	case SV_OP_cuFuncLoad:
		return word(data, e->len, 0);
	case SV_OP_cuFuncSetAttribute:
	case SV_OP_cuFuncSetCacheConfig:
	case SV_OP_cuFuncSetSharedMemConfig:
	case SV_OP_X_PREPARE:
		return word(data, e->len, 8);
	case SV_OP_cuStreamSetAttribute:
		if (FIELD(sv_stream_attr, stream) == SV_STREAM_LEGACY)
			return FIELD(sv_stream_attr, ctx);
		return FIELD(sv_stream_attr, stream);
	case SV_OP_cuLibraryGetGlobal:
	case SV_OP_cuLibraryGetManaged:
	case SV_OP_cuModuleGetGlobal_v2:
		return FIELD(sv_by_name, from);
	case SV_OP_X_GRAPH_UPDATE:
		return FIELD(sv_graph_req, exec);
	}
	return 0;
}

static bool is_texture(uint16_t op)
{
	return op == SV_OP_cuTexObjectCreate || op == SV_OP_cuSurfObjectCreate;
}

static bool ends_texture(uint16_t op)
{
	return op == SV_OP_cuTexObjectDestroy || op == SV_OP_cuSurfObjectDestroy;
}

static bool of_memory(uint16_t op)
{
	return op == SV_OP_X_MAP || op == SV_OP_X_UNMAP || op == SV_OP_cuMemMap ||
	       op == SV_OP_cuMemUnmap || op == SV_OP_cuMemSetAccess;
}

/* ------------------------------------------------------------------------------ memory */

static uint32_t group_of(struct survey *v, uint32_t i)
{
	while (v->item[i].group != i) {
		v->item[i].group = v->item[v->item[i].group].group;
		i = v->item[i].group;
	}
	return i;
}

/*
 * A range of whole granules (all of these records begin with va and len) is mapped, unmapped or
 * changed: the entries that touch a mapping stay or go together.
 */
static int touch_memory(struct survey *v, uint32_t i, const struct singvgpu_log_entry *e,
			const void *data)
{
	const struct hal *h = &v->s->hal;
	uint64_t va = FIELD(sv_map, va), len = FIELD(sv_map, len);
	bool map = e->op == SV_OP_X_MAP || e->op == SV_OP_cuMemMap;
	bool unmap = e->op == SV_OP_X_UNMAP || e->op == SV_OP_cuMemUnmap;

	if (va - h->window > h->window_len || len > h->window_len - (va - h->window))
		return -EBADMSG;
	v->item[i].memory = true;
	for (uint64_t g = (va - h->window) / SV_GRANULE; len >= SV_GRANULE; g++, len -= SV_GRANULE) {
		uint32_t was = v->owner[g];

		if (was && !map)
			v->item[group_of(v, was - 1)].group = group_of(v, i);
		if (map)
			v->owner[g] = i + 1;
		else if (unmap)
			v->owner[g] = 0;
	}
	return 0;
}

/* ------------------------------------------------------------------------------ the first walk */

static uint32_t item_of(const struct survey *v, uint64_t seq)
{
	uint32_t lo = 0, hi = v->n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (v->item[mid].seq < seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < v->n && v->item[lo].seq == seq ? lo : NONE;
}

static int refer_all(struct survey *v, struct item *it, const struct singvgpu_log_entry *e,
		     const void *data)
{
	const void *kept;
	uint64_t len;
	int rc = refer(v, it, data, e->len);

	if (rc || (e->op != SV_OP_X_GRAPH && e->op != SV_OP_X_GRAPH_UPDATE))
		return rc;
	kept = kept_find(it->seq, &len);
	return kept ? refer(v, it, kept, len) : 0;
}

/* The entry that this one changes or ends. */
static uint32_t target_of(struct survey *v, struct item *it, const struct singvgpu_log_entry *e,
			  const void *data)
{
	uint64_t h = ended_by(e, data);
	const struct pair *p;

	if (!h)
		h = changed_by(e, data);
	it->about = h || ends_texture(e->op) || e->op == SV_OP_cuGraphConditionalHandleCreate;
	if (h)
		return maker_of(v, h);
	p = ends_texture(e->op) ? list_find(&ends, it->seq) : NULL;
	if (p)
		return item_of(v, p->b);
	if (e->op == SV_OP_cuGraphConditionalHandleCreate)
		return maker_of(v, FIELD(sv_graph_cond, graph));
	return NONE;
}

static int bind_item(struct survey *v, uint32_t i, const struct singvgpu_log_entry *e,
		     const void *data)
{
	struct item *it = &v->item[i];
	uint64_t h = made_by(e, data);
	int rc = 0;

	it->target = target_of(v, it, e, data);
	if (e->op == SV_OP_cuGraphConditionalHandleCreate && it->target == NONE)
		h = FIELD(sv_graph_cond, graph);	/* the first of them makes the graph */
	if (h) {
		it->makes = true;
		it->handle = h;
		it->type = h & 1 ? 0 : h >> 32 & 255;
		rc = bind(v, h, i);
	} else if (is_texture(e->op)) {
		it->makes = true;
	} else if (it->target != NONE && (ended_by(e, data) || ends_texture(e->op))) {
		v->item[it->target].end = i;
		if (v->item[it->target].handle)
			rc = bind(v, v->item[it->target].handle, NONE);
	}
	it->ordered = it->makes && (is_texture(e->op) || e->op == SV_OP_cuLibraryLoadData ||
				    e->op == SV_OP_cuModuleLoadDataEx ||
				    e->op == SV_OP_cuGraphConditionalHandleCreate);
	if (!rc && of_memory(e->op))
		rc = touch_memory(v, i, e, data);
	return rc;
}

static int note(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct survey *v = arg;
	struct item *it;
	uint32_t i = v->n;
	int rc;

	if (v->n == v->cap) {
		uint32_t cap = v->cap ? v->cap * 2 : 4096;
		struct item *p = realloc(v->item, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		v->item = p;
		v->cap = cap;
	}
	it = &v->item[i];
	*it = (struct item){ .seq = journal_seq(e), .edges = v->nedges, .end = NONE, .target = NONE,
			     .group = i, .op = e->op };
	v->n++;
	it->drop = list_find(&failures, it->seq);
	if (it->drop)
		return 0;
	rc = refer_all(v, it, e, data);
	return rc ? rc : bind_item(v, i, e, data);
}

/* ------------------------------------------------------------------------------ the same again */

struct same {
	uint64_t a, b;		/* of all that makes it the same; 0: free */
};

struct fold {
	struct survey *v;
	struct same *t;
	uint32_t mask;
	uint32_t *place;	/* by entry: in t, + 1 */
};

static void hash_bytes(struct same *k, const void *p, uint64_t len)
{
	uint64_t w;

	for (uint64_t at = 0; at < len; at += sizeof(w)) {
		w = 0;
		memcpy(&w, (const uint8_t *)p + at, len - at < 8 ? len - at : 8);
		k->a = mix(k->a ^ w) + at;
		k->b = mix(k->b + w * 0x9e3779b97f4a7c15ull) ^ at;
	}
}

/* Of a graph's update: which nodes it is about. */
static bool hash_nodes(struct same *k, const struct item *it, const struct singvgpu_log_entry *e,
		       const void *data)
{
	const struct sv_graph_req *a = data;
	const uint8_t *p = (const uint8_t *)(a + 1);
	uint64_t len = e->len - sizeof(*a), at = sizeof(struct sv_graph);
	struct sv_graph_node n;

	if (a->off != SV_GRAPH_INLINE)
		p = kept_find(it->seq, &len);
	while (p && len >= at + sizeof(n)) {
		memcpy(&n, p + at, sizeof(n));
		if (n.size < sizeof(n) || n.size > len - at)
			return false;
		hash_bytes(k, &n.index, sizeof(n.index));
		at += n.size;
	}
	return p;
}

/* How many bytes of a record say what it sets, before those that say to what; 0: it sets nothing. */
static uint32_t key_bytes(const struct singvgpu_log_entry *e, bool *first)
{
	*first = false;
	switch (e->op) {
	case SV_OP_cuCtxSetCacheConfig:
	case SV_OP_cuCtxSetSharedMemConfig:
		return 8;
	case SV_OP_cuFuncSetCacheConfig:
	case SV_OP_cuFuncSetSharedMemConfig:
	case SV_OP_cuKernelSetCacheConfig:
	case SV_OP_cuMemSetAccess:
		return 16;
	case SV_OP_cuFuncSetAttribute:
	case SV_OP_cuKernelSetAttribute:
		return 20;
	case SV_OP_cuStreamSetAttribute:
		return 24;
	case SV_OP_cuFuncLoad:
	case SV_OP_X_PREPARE:
		*first = true;
		return e->len;
	}
	return 0;
}

static bool same_key(const struct item *it, const struct singvgpu_log_entry *e, const void *data,
		     struct same *k, bool *first)
{
	uint32_t n = key_bytes(e, first);

	*k = (struct same){ e->op + 1, (uint64_t)it->target << 16 | e->op };
	switch (e->op) {
	case SV_OP_cuCtxSetLimit:		/* ctx, value, limit */
		if (e->len < 24)
			return false;
		hash_bytes(k, data, 8);
		hash_bytes(k, (const uint8_t *)data + 16, 4);
		return true;
	case SV_OP_X_GRAPH_UPDATE:
		return e->len >= sizeof(struct sv_graph_req) && hash_nodes(k, it, e, data);
	case SV_OP_cuLibraryGetGlobal:
	case SV_OP_cuLibraryGetManaged:
	case SV_OP_cuModuleGetGlobal_v2:
		*first = true;
		if (e->len < sizeof(struct sv_by_name))
			return false;
		hash_bytes(k, data, offsetof(struct sv_by_name, info));
		hash_bytes(k, (const uint8_t *)data + sizeof(struct sv_by_name),
			   e->len - sizeof(struct sv_by_name));
		return true;
	}
	if (!n || n > e->len)
		return false;
	hash_bytes(k, data, n);
	return true;
}

/* The second walk: of entries that do the same to the same thing the last one counts, or the first. */
static int fold_one(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct fold *f = arg;
	struct survey *v = f->v;
	struct item *it = &v->item[v->at];
	struct same k;
	uint32_t i;
	bool first;

	if (v->at++ >= v->n || it->seq != journal_seq(e))
		return -EBADMSG;	/* the client has changed it meanwhile */
	if (it->drop || !same_key(it, e, data, &k, &first))
		return 0;
	if (it->memory)			/* what is mapped there may be another mapping by now */
		k.a = mix(k.a ^ v->owner[(word(data, e->len, 0) - v->s->hal.window) / SV_GRANULE]);
	k.a |= 1;
	for (i = k.b & f->mask; f->t[i].a && (f->t[i].a != k.a || f->t[i].b != k.b);
	     i = (i + 1) & f->mask)
		;
	if (f->t[i].a && first) {
		it->drop = true;
	} else {
		if (f->t[i].a)
			v->item[f->place[i]].drop = true;
		f->t[i] = k;
		f->place[i] = v->at - 1;
	}
	return 0;
}

static int fold(struct survey *v)
{
	struct fold f = { .v = v, .mask = 1023 };
	int rc = -ENOMEM;

	while (f.mask / 2 < v->n)
		f.mask = f.mask * 2 + 1;
	f.t = calloc(f.mask + 1ul, sizeof(*f.t));
	f.place = calloc(f.mask + 1ul, sizeof(*f.place));
	v->at = 0;
	if (f.t && f.place)
		rc = ring_log_walk(v->s->ring, fold_one, &f);
	free(f.t);
	free(f.place);
	return rc;
}

/* ------------------------------------------------------------------------------ what is needed */

/* Marks i and what it needs; the stack holds those whose edges are still to be followed. */
static void need(struct survey *v, uint32_t i, uint32_t *stack)
{
	uint32_t n = 0;

	if (v->item[i].need || v->item[i].drop)
		return;
	v->item[i].need = true;
	stack[n++] = i;
	while (n) {
		struct item *it = &v->item[stack[--n]];
		uint32_t more[2] = { it->end, it->target };

		for (uint32_t k = 0; k < it->nedges + 2; k++) {
			uint32_t to = k < it->nedges ? v->edge[it->edges + k] : more[k - it->nedges];

			if (to == NONE || v->item[to].need || v->item[to].drop)
				continue;
			v->item[to].need = true;
			stack[n++] = to;
		}
	}
}

static bool still_live(struct survey *v, const struct item *it)
{
	const struct hand *h = hand_find(it->op);

	if (it->end != NONE)
		return false;
	if (!it->handle || it->handle & 1 || it->op == SV_OP_cuGraphConditionalHandleCreate)
		return true;		/* textures, pins, graphs with conditions: their end is in the log */
	if (maker_of(v, it->handle) != (uint32_t)(it - v->item))
		return false;
	return handle_live(it->type, it->handle) || (v->busy && h && h->flags & HAND_WORKER);
}

/* Whole groups of memory, and entries that change something, follow what they belong to. */
static bool spread(struct survey *v, uint32_t *stack)
{
	bool more = false;

	for (uint32_t i = 0; i < v->n; i++) {
		struct item *it = &v->item[i];

		if (it->need || it->drop)
			continue;
		if ((it->memory && v->item[group_of(v, i)].live) ||
		    (!it->makes && !it->memory && it->target != NONE && v->item[it->target].need)) {
			need(v, i, stack);
			more = true;
		}
	}
	for (uint32_t i = 0; i < v->n; i++)
		if (v->item[i].memory && v->item[i].need && !v->item[group_of(v, i)].live) {
			v->item[group_of(v, i)].live = true;
			more = true;
		}
	return more;
}

/* What was made while something lived that has gone: see above. */
static bool keep_order(struct survey *v, uint32_t *stack)
{
	uint32_t next = NONE;	/* the first needed one behind */
	bool more = false;

	for (uint32_t i = v->n; i-- > 0;) {
		struct item *it = &v->item[i];

		if (!it->ordered || it->drop)
			continue;
		if (!it->need && it->end != NONE && next < it->end) {
			need(v, i, stack);
			more = true;
		}
		if (it->need)
			next = i;
	}
	return more;
}

static int decide(struct survey *v)
{
	uint64_t granules = v->s->hal.window_len / SV_GRANULE;
	uint32_t *stack = malloc((v->n + 1ul) * sizeof(*stack));

	if (!stack)
		return -ENOMEM;
	for (uint64_t g = 0; g < granules; g++)
		if (v->owner[g])
			v->item[group_of(v, v->owner[g] - 1)].live = true;
	for (uint32_t i = 0; i < v->n; i++) {
		struct item *it = &v->item[i];
		if (it->makes ? still_live(v, it) : !it->memory && !it->about)
			need(v, i, stack);
	}
	while (spread(v, stack) || keep_order(v, stack))
		;
	free(stack);
	return 0;
}

/* ------------------------------------------------------------------------------ compaction */

static int keep_entry(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct survey *v = arg;
	const struct item *it = v->at < v->n ? &v->item[v->at] : NULL;

	(void)data;
	v->at++;
	return !it || it->seq != journal_seq(e) || it->need;
}

static bool keep_bytes(void *arg, uint64_t seq)
{
	struct survey *v = arg;
	uint32_t i = item_of(v, seq);

	return i == NONE ? seq >= v->upto : v->item[i].need;
}

static void forget(struct survey *v, struct list *l, bool failed)
{
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++)
		if (l->p[i].a >= v->upto || (!failed && keep_bytes(v, l->p[i].a)))
			l->p[n++] = l->p[i];
	l->n = n;
}

static int look_through(struct survey *v)
{
	int rc;

	v->bound_mask = 4095;
	v->bound = calloc(v->bound_mask + 1ul, sizeof(*v->bound));
	v->owner = calloc(v->s->hal.window_len / SV_GRANULE + 1, sizeof(*v->owner));
	rc = v->bound && v->owner ? ring_log_walk(v->s->ring, note, v) : -ENOMEM;
	if (!rc)
		rc = fold(v);
	return rc ? rc : decide(v);
}

/* upto: the record that is being logged; nothing is known of it here. */
static int compact(struct sv_session *s, uint64_t upto)
{
	struct survey v = { .s = s, .busy = !worker_idle(), .upto = upto };
	size_t before = ring_log_bytes(s->ring);
	int rc;

	pthread_mutex_lock(&lock);
	if (failures.n)
		qsort(failures.p, failures.n, sizeof(*failures.p), by_a);
	if (ends.n)
		qsort(ends.p, ends.n, sizeof(*ends.p), by_a);
	rc = look_through(&v);
	v.at = 0;
	if (!rc)
		rc = ring_log_compact(s->ring, keep_entry, &v);
	if (!rc) {
		kept_sweep(keep_bytes, &v);
		forget(&v, &failures, true);
		forget(&v, &ends, false);
	}
	pthread_mutex_unlock(&lock);
	if (log_verbose())
		say("the log %s: %zu bytes in %u records, %zu are left",
		    upto == UINT64_MAX ? "was looked through" : "was full", before, v.n,
		    ring_log_bytes(s->ring));
	free(v.item);
	free(v.edge);
	free(v.bound);
	free(v.owner);
	return rc;
}

int journal_compact(struct sv_session *s)
{
	return compact(s, UINT64_MAX);
}

/* The handle that the record makes or ends; else its number. */
static uint64_t key_of(const struct ring_record *rec)
{
	const struct sv_op *op = rec->op < cuda_ops_count ? &cuda_ops[rec->op] : NULL;
	uint64_t key = rec->seq;

	if (op && op->handle && op->handle - 1u + sizeof(key) <= rec->len)
		memcpy(&key, (const uint8_t *)rec->data + op->handle - 1, sizeof(key));
	return key;
}

int journal_add(struct sv_session *s, const struct ring_record *rec)
{
	uint64_t key = key_of(rec);
	size_t before;
	int rc;

	rc = ring_log_append(s->ring, rec, rec->op, key, rec->data, rec->len);
	if (rc != -ENOSPC)
		return rc;
	before = ring_log_bytes(s->ring);
	rc = compact(s, rec->seq);
	/* Where it brings little it would be done again and again. */
	if (!rc && ring_log_bytes(s->ring) > before / 8 * 7)
		rc = -ENOSPC;
	return rc ? rc : ring_log_append(s->ring, rec, rec->op, key, rec->data, rec->len);
}
