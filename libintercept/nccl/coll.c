// SPDX-License-Identifier: Apache-2.0
/*
 * coll.c - the collective calls: checked here, executed by the proxies
 *
 * Calls with a count of 0 are none, as in NCCL.
 */
#include "nccl_i.h"

LOCAL const uint8_t type_size[TYPES] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

/* Arguments of any of them; what a call lacks is 0. */
struct args {
	const char *name;
	enum sv_coll_kind kind;
	const void *send;
	void *recv;
	size_t count;
	int type, op, peer;
	bool reduces, pair;
};

/* Bytes of the call's buffers on this rank. ncclInvalidArgument: more than there can be. */
static ncclResult_t sizes(const struct ncclComm *c, const struct args *a, uint64_t *send,
			  uint64_t *recv)
{
	bool root = a->peer == c->rank;
	uint64_t n, all;

	if (unlikely(__builtin_mul_overflow(a->count, type_size[a->type], &n) ||
		     __builtin_mul_overflow(n, c->ranks, &all)))
		return failed(ncclInvalidArgument, "%s: a count of %zu is too large", a->name, a->count);
	*send = *recv = n;
	switch (a->kind) {
	case SV_COLL_REDUCE:
		*recv = root ? n : 0;
		break;
	case SV_COLL_BROADCAST:
		*send = root ? n : 0;
		break;
	case SV_COLL_ALLGATHER:
		*recv = all;
		break;
	case SV_COLL_REDUCESCATTER:
		*send = all;
		break;
	case SV_COLL_ALLTOALL:
		*send = *recv = all;
		break;
	case SV_COLL_GATHER:
		*recv = root ? all : 0;
		break;
	case SV_COLL_SCATTER:
		*send = root ? all : 0;
		break;
	case SV_COLL_SEND:
		*recv = 0;
		break;
	case SV_COLL_RECV:
		*send = 0;
		break;
	default:
		break;
	}
	return ncclSuccess;
}

static ncclResult_t buffer(const struct ncclComm *c, const struct args *a, const char *name,
			   const void *p, uint64_t len)
{
	if (!len)
		return ncclSuccess;
	TRY(given(p, a->name, name));
	if (unlikely(c->check) && core->range(&c->at, (uintptr_t)p, len))
		return failed(ncclInvalidArgument, "%s: %s is not %llu bytes that the device can reach",
			      a->name, name, (unsigned long long)len);
	return ncclSuccess;
}

static ncclResult_t check(struct ncclComm *c, const struct args *a, struct sv_coll_call *out)
{
	uint64_t send = 0, recv = 0;

	if (unlikely(a->type < 0 || a->type >= TYPES))
		return failed(ncclInvalidArgument, "%s: %d is no datatype", a->name, a->type);
	if (unlikely(a->peer < 0 || a->peer >= c->ranks))
		return failed(ncclInvalidArgument, "%s: %s is %d in a communicator of %d ranks", a->name,
			      a->pair ? "peer" : "root", a->peer, c->ranks);
	if (a->reduces)
		TRY(redop_get(c, a->name, a->op, a->type, out));
	TRY(sizes(c, a, &send, &recv));
	TRY(buffer(c, a, "sendbuff", a->send, send));
	TRY(buffer(c, a, "recvbuff", a->recv, recv));
	if (unlikely(a->pair && a->peer == c->rank && a->count && !group_open()))
		return failed(ncclInvalidUsage, "%s: a rank sends to itself in a group alone", a->name);
	out->kind = a->kind;
	out->type = a->type;
	out->peer = a->peer;
	out->count = a->count;
	out->send = send ? (uintptr_t)a->send : 0;
	out->recv = recv ? (uintptr_t)a->recv : 0;
	return ncclSuccess;
}

static inline ncclResult_t run(struct ncclComm *c, cudaStream_t stream, const struct args *a)
{
	struct coll k = { .comm = c, .stream = (CUstream)stream };

	TRY(comm_ready(c, a->name));
	TRY(check(c, a, &k.call));
	if (unlikely(!a->count))
		return ncclSuccess;
	return group_coll(&k);
}

#define RUN(comm, stream, ...) ({ \
	struct args args_ = { __VA_ARGS__ }; \
	ncclResult_t rc_ = run(comm, stream, &args_); \
	unlikely(rc_) ? group_note(rc_) : rc_; \
})

API ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
			       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclAllReduce", SV_COLL_ALLREDUCE, send, recv, count, type, op,
		   .reduces = true);
}

API ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
			    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclReduce", SV_COLL_REDUCE, send, recv, count, type, op, root,
		   .reduces = true);
}

API ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
				   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclReduceScatter", SV_COLL_REDUCESCATTER, send, recv, count, type, op,
		   .reduces = true);
}

API ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
			       ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclBroadcast", SV_COLL_BROADCAST, send, recv, count, type,
		   .peer = root);
}

API ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
			   cudaStream_t stream)
{
	return RUN(comm, stream, "ncclBcast", SV_COLL_BROADCAST, buff, buff, count, type, .peer = root);
}

API ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
			       ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclAllGather", SV_COLL_ALLGATHER, send, recv, count, type,
		   .peer = 0);
}

API ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type,
			      ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclAlltoAll", SV_COLL_ALLTOALL, send, recv, count, type,
		   .peer = 0);
}

API ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
			    ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclGather", SV_COLL_GATHER, send, recv, count, type, .peer = root);
}

API ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
			     ncclComm_t comm, cudaStream_t stream)
{
	return RUN(comm, stream, "ncclScatter", SV_COLL_SCATTER, send, recv, count, type, .peer = root);
}

API ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
			  cudaStream_t stream)
{
	return RUN(comm, stream, "ncclSend", SV_COLL_SEND, send, NULL, count, type, .peer = peer,
		   .pair = true);
}

API ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
			  cudaStream_t stream)
{
	return RUN(comm, stream, "ncclRecv", SV_COLL_RECV, NULL, recv, count, type, .peer = peer,
		   .pair = true);
}

/* ------------------------------------------------------------------------------ with a configuration */

API ncclResult_t ncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
				     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
				     const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclAllReduceConfig", config)));
	return ncclAllReduce(send, recv, count, type, op, comm, stream);
}

API ncclResult_t ncclBroadcastConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
				     int root, ncclComm_t comm, cudaStream_t stream,
				     const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclBroadcastConfig", config)));
	return ncclBroadcast(send, recv, count, type, root, comm, stream);
}

API ncclResult_t ncclReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
				  ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
				  const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclReduceConfig", config)));
	return ncclReduce(send, recv, count, type, op, root, comm, stream);
}

API ncclResult_t ncclAllGatherConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
				     ncclComm_t comm, cudaStream_t stream,
				     const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclAllGatherConfig", config)));
	return ncclAllGather(send, recv, count, type, comm, stream);
}

API ncclResult_t ncclReduceScatterConfig(const void *send, void *recv, size_t count,
					 ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
					 cudaStream_t stream, const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclReduceScatterConfig", config)));
	return ncclReduceScatter(send, recv, count, type, op, comm, stream);
}

API ncclResult_t ncclAlltoAllConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
				    ncclComm_t comm, cudaStream_t stream,
				    const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclAlltoAllConfig", config)));
	return ncclAlltoAll(send, recv, count, type, comm, stream);
}

API ncclResult_t ncclGatherConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
				  int root, ncclComm_t comm, cudaStream_t stream,
				  const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclGatherConfig", config)));
	return ncclGather(send, recv, count, type, root, comm, stream);
}

API ncclResult_t ncclScatterConfig(const void *send, void *recv, size_t count, ncclDataType_t type,
				   int root, ncclComm_t comm, cudaStream_t stream,
				   const ncclCollConfig_t *config)
{
	TRY(group_note(config_check_call("ncclScatterConfig", config)));
	return ncclScatter(send, recv, count, type, root, comm, stream);
}
