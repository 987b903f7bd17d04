// SPDX-License-Identifier: Apache-2.0
/*
 * plan.c - from an operation to its flows, pieces and copies, as one device sees them
 *
 * Each device makes its own plan from the same operation, so that both ends of a flow agree on its
 * name and length. Who finishes what: docs/collectives.md, "Who does what".
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport_i.h"

static bool is_reduction(uint32_t kind)
{
	return kind == STEP_ALLREDUCE || kind == STEP_REDUCE || kind == STEP_REDUCESCATTER;
}

/* The partials of all devices: a node for each, sorted by device. */
struct nodes {
	struct tree_node *node;
	uint32_t *of; /* index in op->dev */
	uint32_t n;
};

static uint64_t in_key(const struct flow_in *f)
{
	return (uint64_t)f->from << 40 | (uint64_t)f->what << 36;
}

static int by_key(const void *a, const void *b)
{
	const struct flow_in *l = a, *r = b;
	uint64_t x = in_key(l), y = in_key(r);

	if (x != y)
		return x < y ? -1 : 1;
	if (l->a != r->a)
		return l->a < r->a ? -1 : 1;
	return l->b < r->b ? -1 : l->b > r->b;
}

struct flow_in *plan_in(struct op *op, uint32_t from, uint32_t what, uint32_t a, uint32_t b)
{
	struct flow_in key = { .from = from, .what = what, .a = a, .b = b };

	return op->nin ? bsearch(&key, op->in, op->nin, sizeof(key), by_key) : NULL;
}

/* ------------------------------------------------------------------------------ memory */

/* Memory for an operation's life: its own room, or malloc()'s. */
static void *take(struct op *op, size_t size)
{
	size_t at = (op->used + 15u) & ~15u;

	if (size > OP_ROOM || at + size > OP_ROOM)
		return malloc(size);
	op->used = at + size;
	return op->room + at;
}

static void give_back(struct op *op, void *p)
{
	if ((char *)p < op->room || (char *)p >= op->room + OP_ROOM)
		free(p);
}

void op_clear(struct op *op)
{
	give_back(op, op->device);
	give_back(op, op->part);
	give_back(op, op->dev);
	give_back(op, op->in);
	give_back(op, op->out);
	give_back(op, op->piece);
	give_back(op, op->share);
	give_back(op, op->copy);
	give_back(op, op->tp);
}

/* An array that grows, at powers of two: NULL if there is no memory. */
static void *one_more(struct op *op, void *array, uint32_t *n, size_t size)
{
	char **a = array;

	if (!*n || (*n > 1 && !(*n & (*n - 1)))) {
		char *more = take(op, (*n ? *n * 2ul : 2) * size);

		if (!more)
			return NULL;
		if (*n)
			memcpy(more, *a, *n * size);
		give_back(op, *a);
		*a = more;
	}
	memset(*a + *n * size, 0, size);
	return *a + (*n)++ * size;
}

static int add_copy(struct op *op, void *to, const void *from, uint64_t len)
{
	struct copy *c;

	if (to == from || !len)
		return 0;
	c = one_more(op, &op->copy, &op->ncopies, sizeof(*c));
	if (!c)
		return -ENOMEM;
	*c = (struct copy){ to, from, len };
	return 0;
}

static int add_out(struct op *op, const struct flow_out *f)
{
	struct flow_out *o;

	if (!f->len)
		return 0;
	o = one_more(op, &op->out, &op->nout, sizeof(*o));
	if (!o)
		return -ENOMEM;
	*o = *f;
	return 0;
}

static int add_in(struct op *op, const struct flow_in *f)
{
	struct flow_in *i;

	if (!f->len)
		return 0;
	i = one_more(op, &op->in, &op->nin, sizeof(*i));
	if (!i)
		return -ENOMEM;
	*i = *f;
	return 0;
}

/* ------------------------------------------------------------------------------ devices */

/* Copies parts to their ranks; finds the distinct devices, by their first rank. */
static int find_devices(struct op *op, uint32_t self)
{
	uint64_t seen[TRANSPORT_DEVICES_MAX / 64] = { 0 };
	struct transport_start *s = &op->s;
	bool pair = s->call.kind >= STEP_SEND;

	op->me = UINT32_MAX;
	for (uint32_t r = 0; r < s->ranks; r++) {
		uint32_t d = op->device[r];

		if (pair && d == STEP_NONE && r != s->call.peer)
			continue;
		if (d >= TRANSPORT_DEVICES_MAX)
			return -EINVAL;
		op->ranks_of_me += d == self;
		if (seen[d / 64] >> d % 64 & 1)
			continue;
		seen[d / 64] |= 1ull << d % 64;
		if (d == self)
			op->me = op->devices;
		op->dev[op->devices++] = d;
	}
	for (uint32_t i = 0; i < s->nparts; i++) {
		const struct transport_part *p = &s->part[i];
		struct part *mine = p->rank < s->ranks ? &op->part[p->rank] : NULL;

		if (!mine || op->device[p->rank] != self || mine->p.rank != UINT32_MAX)
			return -EINVAL;
		mine->p = *p;
		if (s->call.op == TREE_PREMULSUM && is_reduction(s->call.kind)) {
			if (!p->factor)
				return -EINVAL;
			memcpy(&mine->factor, p->factor, op->leaf);
		}
	}
	return !pair && s->nparts != op->ranks_of_me ? -EINVAL : 0;
}

static bool has(const struct op *op, uint32_t rank)
{
	return op->part[rank].p.rank != UINT32_MAX;
}

/* ------------------------------------------------------------------------------ reductions */

static int find_nodes(struct op *op, struct nodes *n)
{
	uint32_t words = (op->s.ranks + 63) / 64;
	uint64_t *set;

	n->node = take(op, op->s.ranks * sizeof(*n->node));
	n->of = take(op, op->s.ranks * sizeof(*n->of));
	if (!n->node || !n->of)
		return -ENOMEM;
	if (op->devices == op->s.ranks) {
		for (uint32_t r = 0; r < op->s.ranks; r++) {
			n->node[r] = (struct tree_node){ r, r + 1 };
			n->of[r] = r;
		}
		n->n = op->s.ranks;
		return 0;
	}
	set = malloc(words * sizeof(*set));
	if (!set)
		return -ENOMEM;
	for (uint32_t d = 0; d < op->devices; d++) {
		uint32_t was = n->n;

		memset(set, 0, words * sizeof(*set));
		for (uint32_t r = 0; r < op->s.ranks; r++)
			if (op->device[r] == op->dev[d])
				set[r >> 6] |= 1ull << (r & 63);
		n->n += tree_cover(op->s.ranks, set, n->node + was, op->s.ranks - was);
		for (uint32_t i = was; i < n->n; i++)
			n->of[i] = d;
	}
	free(set);
	return 0;
}

void plan_leaves(struct op *op, uint32_t leaf, uint32_t leaves, uint64_t at, void *to, uint64_t n)
{
	for (uint32_t i = 0; i < leaves; i++) {
		const struct part *p = &op->part[leaf + i];

		op->tp[i] = (struct tree_part){
			.node = { leaf + i, leaf + i + 1 },
			.data = (const char *)p->p.send + at * op->leaf,
			.scale = op->red.op == TREE_PREMULSUM ? &p->factor : NULL,
		};
	}
	tree_reduce(&op->red, op->tp, leaves, to, n);
}

static int by_node(const void *a, const void *b)
{
	const struct share *l = a, *r = b;

	return l->node.lo < r->node.lo ? -1 : l->node.lo > r->node.lo;
}

/* What the owner of a piece puts together. Flows in are found again when they are sorted. */
static int own(struct op *op, uint32_t number, const struct nodes *n, uint64_t first, uint64_t len,
               char *to)
{
	uint32_t share = op->nshares;
	struct piece *p;

	for (uint32_t i = 0; i < n->n; i++) {
		uint32_t ranks = n->node[i].hi - n->node[i].lo;
		struct share *s;

		if (n->of[i] != op->me) {
			struct flow_in f = { .from = op->dev[n->of[i]], .what = MSG_LEAVES,
				             .a = number, .b = n->node[i].lo, .piece = op->npieces,
				             .size = ranks > 1 ? op->partial : op->leaf,
				             .len = len };

			if (add_in(op, &f))
				return -ENOMEM;
		}
		for (uint32_t k = 0; k < (n->of[i] == op->me ? ranks : 1); k++) {
			uint32_t r = n->node[i].lo + k;

			s = one_more(op, &op->share, &op->nshares, sizeof(*s));
			if (!s)
				return -ENOMEM;
			s->node = n->node[i];
			if (n->of[i] != op->me)
				continue;
			s->node = (struct tree_node){ r, r + 1 };
			s->base = (const char *)op->part[r].p.send + first * op->leaf;
			s->scale = op->red.op == TREE_PREMULSUM ? &op->part[r].factor : NULL;
		}
	}
	/* With a rank for each device, nodes come by rank. */
	if (op->devices < op->s.ranks)
		qsort(op->share + share, op->nshares - share, sizeof(*op->share), by_node);
	p = one_more(op, &op->piece, &op->npieces, sizeof(*p));
	if (!p)
		return -ENOMEM;
	*p = (struct piece){ .first = first, .len = len, .share = share,
		             .shares = op->nshares - share, .to = to };
	return 0;
}

/* What another device finishes. */
static int give(struct op *op, uint32_t number, const struct nodes *n, uint32_t owner,
                uint64_t first, uint64_t len)
{
	for (uint32_t i = 0; i < n->n; i++) {
		struct flow_out f = { .device = op->dev[owner], .what = MSG_LEAVES, .a = number,
			              .b = n->node[i].lo, .len = len, .at = first };

		if (n->of[i] != op->me)
			continue;
		f.leaf = n->node[i].lo;
		f.leaves = n->node[i].hi - n->node[i].lo;
		f.size = f.leaves > 1 ? op->partial : op->leaf;
		f.factor = f.leaves > 1 ? 0 : op->part[f.leaf].factor;
		if (f.leaves == 1)
			f.base = (const char *)op->part[f.leaf].p.send + first * op->leaf;
		if (add_out(op, &f))
			return -ENOMEM;
	}
	return 0;
}

/* The way back of an all-reduce's piece. */
static int results(struct op *op, uint32_t number, uint32_t owner, uint64_t first, uint64_t len)
{
	struct flow_in in = { .from = op->dev[owner], .what = MSG_RESULT, .a = number,
		              .size = op->leaf, .len = len, .at = first * op->leaf };
	int rc = 0;

	if (owner != op->me)
		return add_in(op, &in);
	for (uint32_t k = 1; k < op->devices && !rc; k++) {
		uint32_t d = (op->me + k) % op->devices;
		struct flow_out out = { .device = op->dev[d], .what = MSG_RESULT, .a = number,
			                .size = op->leaf, .len = len, .piece = op->npieces - 1 };

		rc = add_out(op, &out);
	}
	return rc;
}


static int piece(struct op *op, uint32_t number, const struct nodes *n, uint32_t owner,
                 uint64_t first, uint64_t len, char *to)
{
	if (!len)
		return 0;
	return owner == op->me ? own(op, number, n, first, len, to) :
	                         give(op, number, n, owner, first, len);
}

static int index_of(const struct op *op, uint32_t device)
{
	uint32_t i;

	for (i = 0; op->dev[i] != device; i++)
		;
	return i;
}

static int allreduce(struct op *op, const struct nodes *n)
{
	uint64_t count = op->s.call.count, first, len;
	bool exchange = op->devices == 2 && n->n == 2 && count * op->leaf <= EXCHANGE;
	int rc = 0;

	op->exchange = exchange;
	for (uint32_t k = 0; k < op->devices && !rc; k++) {
		/* Each device begins with another one's piece. */
		uint32_t i = (op->me + 1 + k) % op->devices;

		first = 0;
		len = count;
		if (!exchange)
			tree_slice(count, op->devices, i, &first, &len);
		rc = piece(op, i, n, i, first, len, NULL);
		if (!rc && len && !exchange && op->devices > 1)
			rc = results(op, i, i, first, len);
	}
	return rc;
}

static int reduction(struct op *op)
{
	const struct step_call *c = &op->s.call;
	struct nodes n = { 0 };
	uint32_t owner;
	int rc;

	rc = find_nodes(op, &n);
	if (!rc && c->kind == STEP_ALLREDUCE)
		rc = allreduce(op, &n);
	else if (!rc && c->kind == STEP_REDUCE)
		rc = piece(op, 0, &n, index_of(op, op->device[c->peer]), 0, c->count,
		           has(op, c->peer) ? op->part[c->peer].p.recv : NULL);
	for (uint32_t r = 0; !rc && c->kind == STEP_REDUCESCATTER && r < op->s.ranks; r++) {
		owner = index_of(op, op->device[r]);
		rc = piece(op, r, &n, owner, r * c->count, c->count,
		           has(op, r) ? op->part[r].p.recv : NULL);
	}
	give_back(op, n.node);
	give_back(op, n.of);
	return rc;
}

/* ------------------------------------------------------------------------------ copies */

/* A block that goes from a rank to another. */
static int block(struct op *op, uint32_t source, uint64_t from, uint32_t destination, uint64_t to)
{
	const struct part *s = &op->part[source], *d = &op->part[destination];
	uint64_t len = op->s.call.count * op->leaf;

	if (has(op, source) && has(op, destination))
		return add_copy(op, (char *)d->p.recv + to, (const char *)s->p.send + from, len);
	if (has(op, source)) {
		struct flow_out f = { .device = op->device[destination], .what = MSG_COPY, .a = source,
			              .b = destination, .size = op->leaf, .len = op->s.call.count,
			              .base = (const char *)s->p.send + from };

		return add_out(op, &f);
	}
	if (has(op, destination)) {
		struct flow_in f = { .from = op->device[source], .what = MSG_COPY, .a = source,
			             .b = destination, .size = op->leaf, .len = op->s.call.count,
			             .to = (char *)d->p.recv + to };

		return add_in(op, &f);
	}
	return 0;
}

/* A rank's block that goes to all others: once to each device. */
static int to_all(struct op *op, uint32_t source, uint64_t at)
{
	const struct part *s = &op->part[source];
	uint32_t owner = index_of(op, op->device[source]);
	uint64_t count = op->s.call.count;
	int rc = 0;

	if (!has(op, source)) {
		struct flow_in f = { .from = op->dev[owner], .what = MSG_COPY, .a = source,
			             .b = op->dev[op->me], .size = op->leaf, .len = count, .at = at };

		return add_in(op, &f);
	}
	for (uint32_t r = 0; r < op->s.ranks && !rc; r++)
		if (has(op, r))
			rc = add_copy(op, (char *)op->part[r].p.recv + at, s->p.send, count * op->leaf);
	for (uint32_t k = 1; k < op->devices && !rc; k++) {
		uint32_t d = op->dev[(op->me + k) % op->devices];
		struct flow_out f = { .device = d, .what = MSG_COPY, .a = source, .b = d,
			              .size = op->leaf, .len = count, .base = s->p.send };

		rc = add_out(op, &f);
	}
	return rc;
}

static int all_pairs(struct op *op)
{
	uint64_t size = op->s.call.count * op->leaf;
	int rc = 0;

	for (uint32_t r = 0; r < op->s.ranks && !rc; r++)
		for (uint32_t k = 0; has(op, r) && k < op->s.ranks && !rc; k++) {
			uint32_t other = (r + k) % op->s.ranks;

			rc = block(op, r, other * size, other, r * size);
			if (!rc && !has(op, other))
				rc = block(op, other, r * size, r, other * size);
		}
	return rc;
}

/* Both ends of a pair may be here, in one part or two. */
static int pair(struct op *op)
{
	const struct step_call *c = &op->s.call;
	const struct transport_part *p = op->s.part;
	uint32_t source, destination;

	if (op->s.nparts > 2)
		return -EINVAL;
	if (op->s.nparts == 1 && op->device[c->peer] == op->dev[op->me] && p->rank != c->peer)
		return -EINVAL;
	if (op->s.nparts == 2) {
		source = p[0].send && !p[0].recv ? p[0].rank : p[1].rank;
		destination = source == p[0].rank ? p[1].rank : p[0].rank;
	} else {
		source = c->kind == STEP_SEND ? p->rank : c->peer;
		destination = c->kind == STEP_SEND ? c->peer : p->rank;
	}
	return block(op, source, 0, destination, 0);
}

static int copies(struct op *op)
{
	const struct step_call *c = &op->s.call;
	uint64_t size = c->count * op->leaf;
	int rc = 0;

	if (c->kind == STEP_BROADCAST)
		return to_all(op, c->peer, 0);
	if (c->kind == STEP_ALLTOALL)
		return all_pairs(op);
	if (c->kind >= STEP_SEND)
		return pair(op);
	for (uint32_t r = 0; r < op->s.ranks && !rc; r++) {
		if (c->kind == STEP_ALLGATHER)
			rc = to_all(op, r, r * size);
		else if (c->kind == STEP_GATHER)
			rc = block(op, r, 0, c->peer, r * size);
		else
			rc = block(op, c->peer, r * size, r, 0);
	}
	return rc;
}

/* ------------------------------------------------------------------------------ the plan */

/* Which buffers there must be. */
static bool has_buffers(const struct op *op)
{
	const struct step_call *c = &op->s.call;

	for (uint32_t i = 0; i < op->s.nparts; i++) {
		const struct transport_part *p = &op->s.part[i];
		bool root = p->rank == c->peer;
		bool send = c->kind != STEP_RECV &&
		            ((c->kind != STEP_BROADCAST && c->kind != STEP_SCATTER) || root);
		bool recv = c->kind != STEP_SEND &&
		            ((c->kind != STEP_REDUCE && c->kind != STEP_GATHER) || root);

		if (c->kind >= STEP_SEND && op->s.nparts == 2) {
			send = recv = false;
			if (!p->send == !p->recv)
				return false;
		} else if (c->kind >= STEP_SEND && root) {
			send = recv = true;
		}
		if ((send && !p->send) || (recv && !p->recv))
			return false;
	}
	return true;
}

static int link_up(struct op *op)
{
	uint32_t most = 1;

	if (op->nin > 1)
		qsort(op->in, op->nin, sizeof(*op->in), by_key);
	for (uint32_t i = 0; i < op->npieces; i++) {
		const struct piece *p = &op->piece[i];

		most = p->shares > most ? p->shares : most;
	}
	most = op->ranks_of_me > most ? op->ranks_of_me : most;
	/* A flow knows its piece; its share is the one of its node. */
	for (uint32_t i = 0; i < op->nin; i++) {
		struct flow_in *f = &op->in[i];
		struct piece *p;

		if (f->what != MSG_LEAVES)
			continue;
		p = &op->piece[f->piece];
		for (uint32_t k = p->share; k < p->share + p->shares; k++)
			if (op->share[k].node.lo == f->b) {
				op->share[k].in = f;
				if (op->red.op == TREE_PREMULSUM &&
				    op->share[k].node.hi - op->share[k].node.lo == 1)
					op->share[k].scale = &f->factor;
			}
	}
	op->ins_left = op->nin;
	op->outs_left = op->nout;
	op->pieces_left = op->npieces;
	op->tp = take(op, most * sizeof(*op->tp));
	return op->tp ? 0 : -ENOMEM;
}

int plan(struct op *op, uint32_t self)
{
	struct transport_start *s = &op->s;
	const struct step_call *c = &s->call;
	uint64_t bytes;
	int rc;

	op->leaf = tree_leaf_size(c->type);
	op->partial = tree_partial_size(c->type);
	if (c->kind >= STEP_KINDS || !op->leaf || c->op >= TREE_OPS ||
	    s->ranks > TREE_RANKS_MAX || c->peer >= s->ranks || !s->nparts ||
	    !s->part || !s->done ||
	    __builtin_mul_overflow(c->count, op->leaf * (uint64_t)s->ranks, &bytes) ||
	    bytes > INT64_MAX)
		return -EINVAL;
	if (!is_reduction(c->kind) && c->op)
		return -EINVAL;
	op->red = (struct tree_reduction){ c->type, c->op, s->ranks };
	op->device = take(op, s->ranks * sizeof(*op->device));
	op->dev = take(op, s->ranks * sizeof(*op->dev));
	op->part = take(op, s->ranks * sizeof(*op->part));
	if (!op->device || !op->dev || !op->part)
		return -ENOMEM;
	memcpy(op->device, s->device, s->ranks * sizeof(*op->device));
	for (uint32_t r = 0; r < s->ranks; r++)
		op->part[r] = (struct part){ .p.rank = UINT32_MAX };
	rc = find_devices(op, self);
	if (!rc && !has_buffers(op))
		rc = -EINVAL;
	if (rc)
		return rc;
	/* All devices come to the same size: partials are wider than leaves where ranks share. */
	op->chunk = CHUNK / (is_reduction(c->kind) && op->devices < s->ranks ? op->partial : op->leaf);
	rc = is_reduction(c->kind) ? reduction(op) : copies(op);
	if (!rc)
		rc = link_up(op);
	s->part = NULL;
	s->device = NULL;
	return rc;
}
