// SPDX-License-Identifier: Apache-2.0
/*
 * journal.c - adds records to the channel's log, and drops the entries that no restore needs
 *
 * The log is compacted when it is full, and when a dump freezes the session. Each entry is a node;
 * edges lead from it to the entries that made the objects that it refers to. An entry
 *
 *   makes    an object (a handle, mapped or pinned memory): needed as long as the object is live
 *   changes  an object: needed if its maker is, and if no later entry changes the same
 *   ends     an object: needed if its maker is
 *
 * If an entry is needed, so are all that it refers to, and the entry that ends its object. Values
 * that the driver chooses (addresses of variables, textures) depend on the objects that were there:
 * an unloaded image stays in the log if a needed one was loaded in its lifetime. A library comes
 * into a context when it is first used there, so the uses of images in contexts are kept likewise:
 * such a lifetime ends with the image or with the context.
 * An entry whose record is parked is kept, with all that it refers to: a restore runs it later.
 * Entries are only dropped, never changed or moved. An entry that cannot be understood is kept.
 */
#include <stdlib.h>

#include "graph.h"
#include "handle.h"
#include "journal.h"
#include "kept.h"
#include "log.h"
#include "outcome.h"
#include "park.h"
#include "records.h"
#include "worker.h"

#define NONE	UINT32_MAX

/* ------------------------------------------------------------------------------ entries */

struct item {
	uint64_t seq;
	uint32_t edges, nedges;	/* in survey.edge: the makers that it refers to */
	uint32_t end;		/* the entry that ends what this one makes, or NONE */
	uint32_t target;	/* what this one changes or ends, or NONE */
	uint32_t of, ctx;	/* the makers of what it uses, of its context; or NONE */
	uint32_t until;		/* the entry that ends what it makes or uses, or NONE */
	uint32_t group;		/* of memory: these entries are kept or dropped together */
	uint16_t op;
	uint8_t type;		/* of the handle that it makes */
	bool makes, memory, ordered;
	bool about;		/* changes or ends an object, whose maker may have left the log */
	bool live, need, drop;
	bool parked;		/* it has not run yet: it ends and changes nothing, and is kept */
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
	uint64_t mapped;	/* granules from this number on were never mapped */
	bool busy;		/* workers run: the objects that they make are not live yet */
	uint64_t upto;		/* kept bytes of later records are not swept */
	uint32_t at;		/* item of the second walk */
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

/* Notes the item that made the handle; NONE: the handle is free again. */
static int note_handle(struct survey *v, uint64_t handle, uint32_t item)
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

/* Adds edges for all words that are handles or window addresses, to their makers. */
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

/* --------------------------------------------------------------------------- names in records */

static uint64_t word(const void *data, uint32_t len, size_t at)
{
	uint64_t w = 0;

	if (at + sizeof(w) <= len)
		memcpy(&w, (const uint8_t *)data + at, sizeof(w));
	return w;
}

/* The name at `at` (record.makes, ends, changes); 0: none. Offsets become odd, as no handle is. */
static uint64_t named(const struct record *r, uint16_t at, const struct singvgpu_log_entry *e,
		      const void *data)
{
	uint64_t h = at ? word(data, e->len, at - 1) : 0;

	return at && r->flags & RECORD_RANGE ? h | 1 : h;
}

/* The name of the object changed; for the legacy stream the context, the record's first field. */
static uint64_t changed_by(const struct record *r, const struct singvgpu_log_entry *e,
			   const void *data)
{
	uint64_t h = named(r, r->changes, e, data);

	return h == SV_STREAM_LEGACY ? word(data, e->len, 0) : h;
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
 * A record (it begins with va and len) maps, unmaps or changes a range of whole granules. Entries
 * that touch one mapping are kept or dropped together.
 */
static int touch_memory(struct survey *v, uint32_t i, const struct record *r,
			const struct singvgpu_log_entry *e, const void *data)
{
	const struct hal *h = &v->s->hal;
	uint64_t va = word(data, e->len, 0), len = word(data, e->len, 8);
	bool map = r->flags & RECORD_MAPS, unmap = r->flags & RECORD_UNMAPS;

	if (va - h->window > h->window_len || len > h->window_len - (va - h->window))
		return -EBADMSG;
	for (uint64_t g = (va - h->window) / SV_GRANULE; len >= SV_GRANULE; g++, len -= SV_GRANULE) {
		uint32_t was = v->owner[g];

		if (was && !map)
			v->item[group_of(v, was - 1)].group = group_of(v, i);
		if (map) {
			v->owner[g] = i + 1;
			v->mapped = g < v->mapped ? v->mapped : g + 1;
		} else if (unmap) {
			v->owner[g] = 0;
		}
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

static int refer_all(struct survey *v, struct item *it, const struct record *r,
		     const struct singvgpu_log_entry *e, const void *data)
{
	const void *kept;
	uint64_t len;
	int rc = refer(v, it, data, e->len);

	if (rc || !(r->flags & RECORD_GRAPH))
		return rc;
	kept = kept_find(it->seq, &len);
	return kept ? refer(v, it, kept, len) : 0;
}

/* The maker of the object that this entry changes or ends. */
static uint32_t target_of(struct survey *v, struct item *it, const struct record *r,
			  const struct singvgpu_log_entry *e, const void *data)
{
	uint64_t h = named(r, r->ends, e, data) ?: changed_by(r, e, data);
	const struct outcome *p;

	it->about = h || r->flags & (RECORD_ENDS_VALUE | RECORD_COND);
	if (h)
		return maker_of(v, h);
	p = r->flags & RECORD_ENDS_VALUE ? outcome_find(&outcomes.ends, it->seq) : NULL;
	return p ? item_of(v, p->b) : NONE;
}

static int bind_item(struct survey *v, uint32_t i, const struct record *r,
		     const struct singvgpu_log_entry *e, const void *data)
{
	struct item *it = &v->item[i];
	uint64_t h = named(r, r->makes, e, data);
	int rc = 0;

	it->target = target_of(v, it, r, e, data);
	it->of = r->of ? maker_of(v, named(r, r->of, e, data)) : NONE;
	it->ctx = r->of || r->flags & RECORD_IMAGE ? maker_of(v, word(data, e->len, 0)) : NONE;
	if (r->flags & RECORD_COND && it->target == NONE)
		h = changed_by(r, e, data);	/* the first of them makes it */
	if (h) {
		it->makes = true;
		it->handle = h;
		it->type = h & 1 ? 0 : h >> 32 & 255;
		rc = note_handle(v, h, i);
	} else if (r->flags & RECORD_VALUE) {
		it->makes = true;
	} else if (it->target != NONE && (r->flags & RECORD_ENDS_VALUE ||
					  named(r, r->ends, e, data))) {
		v->item[it->target].end = i;
		if (v->item[it->target].handle)
			rc = note_handle(v, v->item[it->target].handle, NONE);
	}
	it->ordered = (it->makes || it->of != NONE) && r->flags & RECORD_ORDERED;
	it->memory = r->flags & RECORD_MEMORY;
	return !rc && it->memory ? touch_memory(v, i, r, e, data) : rc;
}

/* For an op without a row: the entry stays, and a replay reports it. */
static const struct record nothing;

static int note(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	const struct record *r = record_of(e->op) ?: &nothing;
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
			     .of = NONE, .ctx = NONE, .until = NONE, .group = i, .op = e->op };
	v->n++;
	it->drop = outcome_find(&outcomes.failures, it->seq);
	if (it->drop)
		return 0;
	rc = refer_all(v, it, r, e, data);
	it->parked = r->park && park_has(it->seq);
	if (it->parked)
		return rc;
	return rc ? rc : bind_item(v, i, r, e, data);
}

/* --------------------------------------------------------------------------- repeated changes */

struct same {
	uint64_t a, b;		/* hashes of op, object and key; a is 0: free */
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

/* Hashes the set of nodes that a graph's update changes. */
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

/* Hashes the bytes of the record's key. false: it has none, or is too short. */
static bool hash_key(struct same *k, const struct record *r, const struct singvgpu_log_entry *e,
		     const void *data)
{
	for (int i = 0; i < 2 && r->key[i].len; i++) {
		uint32_t at = r->key[i].at, len = r->key[i].len;

		if (at > e->len)
			return false;
		if (len == RECORD_REST)
			len = e->len - at;
		if (len > e->len - at)
			return false;
		hash_bytes(k, (const uint8_t *)data + at, len);
	}
	return r->key[0].len && e->len;
}

static bool same_key(const struct item *it, const struct record *r,
		     const struct singvgpu_log_entry *e, const void *data, struct same *k)
{
	*k = (struct same){ e->op + 1, (uint64_t)it->target << 16 | e->op };
	if (r->flags & RECORD_NODES)
		return e->len >= sizeof(struct sv_graph_req) && hash_nodes(k, it, e, data);
	return hash_key(k, r, e, data);
}

/* The second walk: of entries that change the same of an object, keeps the last, or the first. */
static int fold_one(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	const struct record *r = record_of(e->op) ?: &nothing;
	struct fold *f = arg;
	struct survey *v = f->v;
	struct item *it = &v->item[v->at];
	struct same k;
	uint32_t i;

	if (v->at++ >= v->n || it->seq != journal_seq(e))
		return -EBADMSG;	/* the client has changed it meanwhile */
	if (it->drop || it->parked || !same_key(it, r, e, data, &k))
		return 0;
	if (it->memory)			/* tells mappings of the same address apart */
		k.a = mix(k.a ^ v->owner[(word(data, e->len, 0) - v->s->hal.window) / SV_GRANULE]);
	k.a |= 1;
	for (i = k.b & f->mask; f->t[i].a && (f->t[i].a != k.a || f->t[i].b != k.b);
	     i = (i + 1) & f->mask)
		;
	if (f->t[i].a && r->flags & RECORD_FIRST) {
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

/* ------------------------------------------------------------------------------ needed entries */

/* Marks i and the entries that it needs; the stack has those whose edges are not followed yet. */
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
	const struct record *r = record_of(it->op);

	if (it->end != NONE)
		return false;
	if (!it->handle || it->handle & 1 || r->flags & RECORD_COND)
		return true;	/* textures, pins, graphs with conditions: the log has their end */
	if (maker_of(v, it->handle) != (uint32_t)(it - v->item))
		return false;
	return handle_live(it->type, it->handle) || (v->busy && r->flags & RECORD_WORKER);
}

/* Indices that are NONE are the largest. */
static uint32_t first_of(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void find_ends(struct survey *v)
{
	for (uint32_t i = 0; i < v->n; i++) {
		struct item *it = &v->item[i];
		uint32_t root = i;

		while (v->item[root].of != NONE && v->item[root].of < root)
			root = v->item[root].of;
		it->until = first_of(it->end, v->item[root].end);
		if (it->ctx != NONE)
			it->until = first_of(it->until, v->item[it->ctx].end);
	}
}

/* Groups are needed if one of their entries is; changes and ends, if their object's maker is. */
static bool spread(struct survey *v, uint32_t *stack)
{
	bool more = false;

	for (uint32_t i = 0; i < v->n; i++) {
		struct item *it = &v->item[i];

		if (it->need || it->drop)
			continue;
		if ((it->memory && v->item[group_of(v, i)].live) ||
		    (!it->makes && !it->memory && it->target != NONE && v->item[it->target].need &&
		     (it->of == NONE || it->until == NONE))) {
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

/* Keeps ordered entries in whose lifetime a needed one was made; see above. */
static bool keep_order(struct survey *v, uint32_t *stack)
{
	uint32_t next = NONE;	/* the next needed ordered entry */
	bool more = false;

	for (uint32_t i = v->n; i-- > 0;) {
		struct item *it = &v->item[i];

		if (!it->ordered || it->drop)
			continue;
		if (!it->need && it->until != NONE && next < it->until) {
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
	uint32_t *stack = malloc((v->n + 1ul) * sizeof(*stack));

	if (!stack)
		return -ENOMEM;
	find_ends(v);
	for (uint64_t g = 0; g < v->mapped; g++)
		if (v->owner[g])
			v->item[group_of(v, v->owner[g] - 1)].live = true;
	for (uint32_t i = 0; i < v->n; i++) {
		struct item *it = &v->item[i];
		if (it->parked || (it->makes ? still_live(v, it) : !it->memory && !it->about))
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

static void forget(struct survey *v, struct outcome_list *l, bool failed)
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

/* upto: the record that is being logged, which is not in the log yet. */
static int compact(struct sv_session *s, uint64_t upto)
{
	struct survey v = { .s = s, .busy = !worker_idle(), .upto = upto };
	size_t before = ring_log_bytes(s->ring);
	int rc;

	outcomes_lock();
	rc = look_through(&v);
	v.at = 0;
	if (!rc)
		rc = ring_log_compact(s->ring, keep_entry, &v);
	if (!rc) {
		kept_sweep(keep_bytes, &v);
		forget(&v, &outcomes.failures, true);
		forget(&v, &outcomes.ends, false);
	}
	outcomes_unlock();
	if (log_verbose())
		uproxy_say("the log %s: %zu bytes in %u records, %zu are left",
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
	const struct record *r = record_of(rec->op);
	uint16_t at = r ? r->makes ?: r->ends : 0;
	uint64_t key = rec->seq;

	if (at && at - 1u + sizeof(key) <= rec->len)
		memcpy(&key, (const uint8_t *)rec->data + at - 1, sizeof(key));
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
	/* If compaction frees little, it would be repeated for every record. */
	if (!rc && ring_log_bytes(s->ring) > before / 8 * 7)
		rc = -ENOSPC;
	return rc ? rc : ring_log_append(s->ring, rec, rec->op, key, rec->data, rec->len);
}
