// SPDX-License-Identifier: Apache-2.0
/*
 * split.c - ncclCommSplit: all ranks tell theirs color and key by an all-gather, then those of a color meet
 *
 * The all-gather is of the parent communicator, on a stream of its own, between buffers in the arena: no
 * device memory is allocated, and nothing waits for other streams. Each vote carries an id; that of a
 * color's first rank is the new communicator's.
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_i.h"

struct vote {
	int32_t color, key;
	ncclUniqueId id;
};

static ncclResult_t push(const struct split *s)
{
	return cuda(cuCtxPushCurrent_v2((CUcontext)s->comm->at.handle), "ncclCommSplit");
}

static void pop(void)
{
	CUcontext was;

	cuCtxPopCurrent_v2(&was);
}

/* Sends the all-gather. */
static ncclResult_t send_vote(struct split *s)
{
	struct ncclComm *c = s->comm;
	struct sv_coll head = { .comm = c->number, .calls = 1 };
	struct sv_coll_call call = { .kind = SV_COLL_ALLGATHER, .type = ncclUint8,
				     .count = sizeof(struct vote) };
	struct vote *mine;
	void *at;

	TRY(cuda(core->arena_new(&c->at, c->ranks * sizeof(struct vote), &s->off, &at), "ncclCommSplit"));
	s->votes = at;
	mine = &s->votes[c->rank];
	mine->color = s->color;
	mine->key = s->key;
	TRY(id_fresh(&mine->id));
	TRY(cuda(cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING), "ncclCommSplit"));
	call.send = (uintptr_t)mine;
	call.recv = (uintptr_t)s->votes;
	return cuda(core->coll(&c->at, &c->in_graphs, s->stream, &head, &call), "ncclCommSplit");
}

static ncclResult_t begin(struct split *s)
{
	ncclResult_t rc;

	TRY(push(s));
	rc = send_vote(s);
	pop();
	return rc;
}

/* Waits for all votes. */
static ncclResult_t await_votes(struct split *s)
{
	ncclResult_t rc;
	CUresult waits;

	TRY(push(s));
	waits = cuStreamSynchronize(s->stream);
	pop();
	/* A failure has a sentence of its own. */
	rc = waits == CUDA_ERROR_EXTERNAL_DEVICE ? ncclSuccess : cuda(waits, "ncclCommSplit");
	rc = rc ?: comm_ready(s->comm, "ncclCommSplit");
	return rc ?: cuda(waits, "ncclCommSplit");
}

static void end(struct split *s)
{
	bool stands = false;

	if (s->stream && !push(s)) {
		/* Nobody writes the votes once the stream is done; if it stands, they stay. */
		stands = cuStreamSynchronize(s->stream) == CUDA_ERROR_EXTERNAL_DEVICE;
		cuStreamDestroy_v2(s->stream);
		pop();
	}
	if (s->votes && !stands)
		core->arena_free(&s->comm->at, s->off);
}

/* Does rank a come before rank b in the new communicator? */
static bool before(const struct vote *v, int a, int b)
{
	return v[a].key != v[b].key ? v[a].key < v[b].key : a < b;
}

/* What the votes make of this rank. */
static ncclResult_t prepare(const struct split *s, struct creation *out)
{
	int me = s->comm->rank, rank = 0, ranks = 0, first = me;
	struct core_place at = s->comm->at;

	for (int i = 0; i < s->comm->ranks; i++) {
		if (s->votes[i].color != s->color)
			continue;
		ranks++;
		rank += before(s->votes, i, me);
		if (before(s->votes, i, first))
			first = i;
	}
	if (at.retained)
		TRY(cuda(core->enter(at.device, &at), "ncclCommSplit"));
	TRY(comm_new("ncclCommSplit", &at, ranks, rank, &s->config, &s->votes[first].id, out));
	out->record.parent = s->comm->number;
	*s->out = out->comm;
	out->out = s->out;
	return ncclSuccess;
}

ncclResult_t split_all(struct split *s, int n)
{
	struct creation *c = calloc(n, sizeof(*c));
	ncclResult_t rc = c ? ncclSuccess : failed(ncclSystemError, "ncclCommSplit: out of memory");
	int made = 0;

	for (int i = 0; i < n && !rc; i++)
		rc = begin(&s[i]);
	for (int i = 0; i < n && !rc; i++)
		rc = await_votes(&s[i]);
	for (int i = 0; i < n && !rc; i++) {
		if (s[i].color == NCCL_SPLIT_NOCOLOR)
			continue;
		rc = prepare(&s[i], &c[made]);
		made += !rc;
	}
	for (int i = 0; i < n; i++)
		end(&s[i]);
	if (!rc && made)
		rc = comm_create(c, made);
	else
		for (int i = 0; i < made; i++) {
			*c[i].out = NULL;
			comm_forget(c[i].comm);
		}
	free(c);
	return rc;
}

static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *out,
			  const ncclConfig_t *config)
{
	struct split s = { .comm = comm, .color = color, .key = key, .out = out };

	TRY(given(out, "ncclCommSplit", "newcomm"));
	*out = NULL;
	TRY(comm_ready(comm, "ncclCommSplit"));
	if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
		return failed(ncclInvalidArgument, "ncclCommSplit: color is %d", color);
	TRY(config_read(config, &comm->config, &s.config));
	return group_split(&s);
}

API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
			       ncclConfig_t *config)
{
	return group_note(split(comm, color, key, out, config));
}
