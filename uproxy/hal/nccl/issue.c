// SPDX-License-Identifier: Apache-2.0
/*
 * issue.c - what an operation puts into the stream: NCCL's sends and receives, our kernels
 *
 * A reduction's *piece* is the range of elements that one rank finishes (docs/collectives.md, "Who does
 * what"). Others send it their leaves, chunk by chunk, into scratch memory; a kernel follows the tree;
 * an all-reduce sends the result to all, together with the next chunk's leaves:
 *
 *   leaves 0 │ kernel 0 │ results 0, leaves 1 │ kernel 1 │ … │ results n
 *
 * With all operands of an element read before its result is written, operations in place are right: an
 * element belongs to one chunk, and its leaves are sent before that.
 */
#include <string.h>

#include "nccl_i.h"

/* Up to so many bytes that it would send, each rank finishes an all-reduce for itself: one latency. */
#define EXCHANGE (32u << 10)

size_t nccl_scratch = 32u << 20;

/* One operation on its way. Calls after the first failure do nothing. */
struct at_work {
	struct transport *c;
	struct op *op;
	struct group *g;
	const struct step_call *call;
	uint32_t n, me;
	size_t leaf;
	const char *send;
	char *recv;
	uint64_t chunk; /* elements */
	bool whole; /* every rank finishes everything */
	ncclResult_t failed; /* within a group of calls */
	const char *what;
	enum step_code code;
};

static void driver(struct at_work *w, CUresult r)
{
	if (r && !w->code) {
		nccl_say(w->c, "NCCL, rank %u of %u: CUDA error %d on the way to %s", w->me, w->n, r,
			 step_kind_name(w->call->kind));
		w->code = STEP_SYSTEM;
	}
}

static void copy(struct at_work *w, void *to, const void *from, size_t size)
{
	if (!w->code && to != from && size)
		driver(w, w->c->h->drv.cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, size,
						     w->c->stream));
}

/* ------------------------------------------------------------------------------ groups of calls */

static void call(struct at_work *w, ncclResult_t r, const char *what)
{
	if (!r || r == ncclInProgress || w->failed)
		return;
	w->failed = r;
	w->what = what;
}

static void group_begin(struct at_work *w)
{
	w->failed = ncclSuccess;
	if (!w->code)
		call(w, w->c->nccl.ncclGroupStart(), "ncclGroupStart");
}

/* Also behind a call that failed, since NCCL counts the beginnings of its groups. */
static void group_end(struct at_work *w)
{
	ncclResult_t r;

	if (w->code)
		return;
	r = w->c->nccl.ncclGroupEnd();
	if (w->failed)
		r = w->failed;
	w->code = group_settle(w->c, w->g, r, w->failed ? w->what : "ncclGroupEnd");
}

static void put(struct at_work *w, const void *from, size_t size, uint32_t to)
{
	if (w->code || w->failed || !size)
		return;
	call(w, w->c->nccl.ncclSend(from, size, ncclInt8, (int)to, w->g->comm, (cudaStream_t)w->c->stream),
	     "ncclSend");
	__atomic_add_fetch(&w->c->n.sent, size, __ATOMIC_RELAXED);
	__atomic_add_fetch(&w->c->n.messages, 1, __ATOMIC_RELAXED);
}

static void get(struct at_work *w, void *to, size_t size, uint32_t from)
{
	if (w->code || w->failed || !size)
		return;
	call(w, w->c->nccl.ncclRecv(to, size, ncclInt8, (int)from, w->g->comm, (cudaStream_t)w->c->stream),
	     "ncclRecv");
	__atomic_add_fetch(&w->c->n.received, size, __ATOMIC_RELAXED);
}

/* A single collective call. */
#define ALONE(w, name, ...) do { \
	if (!(w)->code) \
		(w)->code = group_settle((w)->c, (w)->g, (w)->c->nccl.name(__VA_ARGS__, (w)->g->comm, \
					 (cudaStream_t)(w)->c->stream), #name); \
} while (0)

/* ------------------------------------------------------------------------------ reductions */

/* What rank i finishes. */
static void piece(const struct at_work *w, uint32_t i, uint64_t *first, uint64_t *len)
{
	uint64_t count = w->call->count;

	*first = 0;
	*len = count;
	if (w->whole)
		return;
	if (w->call->kind == STEP_REDUCE)
		*len = i == w->call->peer ? count : 0;
	else if (w->call->kind == STEP_REDUCESCATTER)
		*first = i * count;
	else
		tree_slice(count, w->n, i, first, len);
}

/* The part of rank i's piece in the chunk that begins at `at`: its length, *first. */
static uint64_t part(const struct at_work *w, uint32_t i, uint64_t at, uint64_t *first)
{
	uint64_t len;

	piece(w, i, first, &len);
	*first += at;
	if (at >= len)
		return 0;
	return len - at < w->chunk ? len - at : w->chunk;
}

/* Where the leaves of rank r come to lie. */
static char *scratch_of(const struct at_work *w, uint32_t r)
{
	return (char *)w->c->scratch + (r - (r > w->me)) * w->chunk * w->leaf;
}

static char *result_of(const struct at_work *w, uint64_t first)
{
	return w->recv + (w->call->kind == STEP_REDUCESCATTER ? first - w->me * w->call->count : first) * w->leaf;
}

static void leaves(struct at_work *w, uint64_t at)
{
	uint64_t first, mine = part(w, w->me, at, &first), len;

	for (uint32_t k = 1; k < w->n; k++) {
		uint32_t to = (w->me + k) % w->n, from = (w->me + w->n - k) % w->n;

		len = part(w, to, at, &first);
		put(w, w->send + first * w->leaf, len * w->leaf, to);
		get(w, scratch_of(w, from), mine * w->leaf, from);
	}
}

static void results(struct at_work *w, uint64_t at)
{
	uint64_t first, mine = part(w, w->me, at, &first), theirs, len;

	for (uint32_t k = 1; k < w->n; k++) {
		uint32_t to = (w->me + k) % w->n, from = (w->me + w->n - k) % w->n;

		put(w, result_of(w, first), mine * w->leaf, to);
		len = part(w, from, at, &theirs);
		get(w, result_of(w, theirs), len * w->leaf, from);
	}
}

static void kernel(struct at_work *w, uint64_t at)
{
	struct tree_reduction red = { w->call->type, w->call->op, w->n };
	uint64_t first, len = part(w, w->me, at, &first);
	struct tree_part parts[TRANSPORT_DEVICES_MAX];
	int rc;

	if (w->code || !len)
		return;
	for (uint32_t r = 0; r < w->n; r++)
		parts[r] = (struct tree_part){
			.node = { r, r + 1 },
			.data = r == w->me ? w->send + first * w->leaf : scratch_of(w, r),
			.scale = red.op == TREE_PREMULSUM ? (void *)(w->c->factors + 8 * r) : NULL,
		};
	rc = reduce_queue(w->c->reduce, w->c->stream, &red, parts, w->n, result_of(w, first), len);
	if (rc)
		driver(w, CUDA_ERROR_LAUNCH_FAILED);
}

/* All ranks' factors, each 8 bytes. */
static void factors(struct at_work *w)
{
	const struct transport_part *p = &w->op->part;
	CUdeviceptr mine = w->c->factors + 8 * w->me;

	if (w->call->op != TREE_PREMULSUM || w->code)
		return;
	if (p->factor_there)
		copy(w, (void *)mine, p->factor, w->leaf);
	else	/* no copy from memory that is not pinned: it might wait for the stream */
		driver(w, w->c->h->drv.cuStreamWriteValue64_v2(w->c->stream, mine, w->op->factor,
							       CU_STREAM_WRITE_VALUE_DEFAULT));
	if (w->n > 1)
		ALONE(w, ncclAllGather, (void *)mine, (void *)w->c->factors, 8, ncclInt8);
}

static bool ready_scratch(struct at_work *w)
{
	struct transport *c = w->c;

	if (w->n > 1 && !c->scratch)
		driver(w, c->h->drv.cuMemAlloc_v2(&c->scratch, nccl_scratch));
	w->chunk = w->n > 1 ? nccl_scratch / ((w->n - 1) * w->leaf) & ~63ull : UINT64_MAX;
	if (!w->chunk && !w->code)
		w->code = STEP_SYSTEM;
	return !w->code;
}

static void tree(struct at_work *w)
{
	bool gives = w->call->kind == STEP_ALLREDUCE && w->n > 1;
	uint64_t longest = 0, first, len;

	if (w->n > REDUCE_PARTS || !ready_scratch(w))
		return;
	w->whole = gives && (w->n - 1) * w->call->count <= EXCHANGE / w->leaf && w->call->count <= w->chunk;
	gives &= !w->whole;
	factors(w);
	for (uint32_t i = 0; i < w->n; i++) {
		piece(w, i, &first, &len);
		longest = len > longest ? len : longest;
	}
	for (uint64_t at = 0; !w->code; at += w->chunk) {
		bool more = at < longest;

		if (w->n > 1 && (more || gives)) {
			group_begin(w);
			if (at && gives)
				results(w, at - w->chunk);
			if (more)
				leaves(w, at);
			group_end(w);
		}
		if (!more)
			return;
		kernel(w, at);
		if (longest - at <= w->chunk && !gives)
			return;
	}
}

/* NCCL's own reduction, in its own order. */
static void theirs(struct at_work *w)
{
	ncclDataType_t type = (ncclDataType_t)w->call->type;
	const struct transport_part *p = &w->op->part;
	ncclRedOp_t op = (ncclRedOp_t)w->call->op;
	bool made = false;
	ncclResult_t r;

	if (w->call->op == TREE_PREMULSUM) {
		r = w->c->nccl.ncclRedOpCreatePreMulSum(
			&op, p->factor_there ? (void *)p->factor : &w->op->factor, type,
			p->factor_there ? ncclScalarDevice : ncclScalarHostImmediate, w->g->comm);
		w->code = group_settle(w->c, w->g, r, "ncclRedOpCreatePreMulSum");
		made = !w->code;
	}
	if (w->call->kind == STEP_ALLREDUCE)
		ALONE(w, ncclAllReduce, w->send, w->recv, w->call->count, type, op);
	else if (w->call->kind == STEP_REDUCE)
		ALONE(w, ncclReduce, w->send, w->recv, w->call->count, type, op, (int)w->call->peer);
	else
		ALONE(w, ncclReduceScatter, w->send, w->recv, w->call->count, type, op);
	if (made && !w->code)
		w->c->nccl.ncclRedOpDestroy(op, w->g->comm);
}

/* ------------------------------------------------------------------------------ copies */

/* A block for each rank, or for the root: sent, received. */
static void blocks(struct at_work *w)
{
	uint64_t size = w->call->count * w->leaf;
	bool root = w->me == w->call->peer, all = w->call->kind == STEP_ALLTOALL;
	bool out = all || (w->call->kind == STEP_SCATTER && root);
	bool in = all || (w->call->kind == STEP_GATHER && root);

	if (all)
		copy(w, w->recv + w->me * size, w->send + w->me * size, size);
	else if (root)
		copy(w, w->recv + (in ? w->me * size : 0), w->send + (out ? w->me * size : 0), size);
	if (w->n == 1)
		return;
	group_begin(w);
	for (uint32_t k = 1; k < w->n; k++) {
		uint32_t to = (w->me + k) % w->n, from = (w->me + w->n - k) % w->n;

		if (out)
			put(w, w->send + to * size, size, to);
		if (in)
			get(w, w->recv + from * size, size, from);
	}
	if (!all && !root && w->call->kind == STEP_GATHER)
		put(w, w->send, size, w->call->peer);
	if (!all && !root && w->call->kind == STEP_SCATTER)
		get(w, w->recv, size, w->call->peer);
	group_end(w);
}

static void pair(struct at_work *w)
{
	uint64_t size = w->call->count * w->leaf;

	if (w->call->peer == w->me) {
		copy(w, w->recv, w->send, size);
		return;
	}
	group_begin(w);
	if (w->call->kind == STEP_SEND)
		put(w, w->send, size, w->call->peer);
	else
		get(w, w->recv, size, w->call->peer);
	group_end(w);
}

enum step_code issue(struct transport *c, struct op *op)
{
	struct at_work w = { .c = c, .op = op, .g = op->group, .call = &op->s.call,
			     .n = op->group->ranks, .me = op->group->rank };
	uint64_t size;

	w.leaf = tree_leaf_size(w.call->type);
	w.send = op->buffer ? (char *)op->buffer->at : op->part.send;
	w.recv = op->part.recv;
	size = w.call->count * w.leaf;
	if (op->buffer && op->buffer->failed)
		return STEP_SYSTEM;
	switch (w.call->kind) {
	case STEP_ALLREDUCE:
	case STEP_REDUCE:
	case STEP_REDUCESCATTER:
		if (c->o.order == TRANSPORT_NCCL && w.n > 1)
			theirs(&w);
		else
			tree(&w);
		break;
	case STEP_BROADCAST:
		if (w.n == 1)
			copy(&w, w.recv, w.send, size);
		else
			ALONE(&w, ncclBroadcast, w.me == w.call->peer ? w.send : w.recv, w.recv, size, ncclInt8,
			      (int)w.call->peer);
		break;
	case STEP_ALLGATHER:
		if (w.n == 1)
			copy(&w, w.recv, w.send, size);
		else
			ALONE(&w, ncclAllGather, w.send, w.recv, size, ncclInt8);
		break;
	case STEP_SEND:
	case STEP_RECV:
		pair(&w);
		break;
	default:
		blocks(&w);
	}
	return w.code;
}
