// SPDX-License-Identifier: Apache-2.0
/*
 * group.c - ncclGroupStart … ncclGroupEnd: the calls of a thread, done together
 *
 * The end of the outermost group creates communicators, splits, then sends one record for each communicator
 * with all its calls. If one of the calls has failed, nothing is done, and the end says the same. A call
 * outside of a group is sent at once.
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_i.h"

struct group {
	int depth;
	ncclResult_t failed;
	struct coll *coll;
	struct creation *create;
	struct split *split;
	int colls, creates, splits;	/* the arrays double when these are powers of two */
};

static __thread struct group group __attribute__((tls_model("initial-exec")));

bool group_open(void)
{
	return group.depth;
}

ncclResult_t group_note(ncclResult_t rc)
{
	if (unlikely(rc && rc != ncclInProgress && group.depth && !group.failed))
		group.failed = rc;
	return rc;
}

/* Room for one more behind n elements. NULL: none. */
static void *grow(void *array, int n, size_t size)
{
	if (n && (n & (n - 1)))
		return array;
	return realloc(array, (n ? 2 * n : 1) * size);
}

#define ADD(array, n, element) ({ \
	void *more_ = grow(group.array, group.n, sizeof(*group.array)); \
	if (more_) { \
		group.array = more_; \
		group.array[group.n++] = (element); \
	} \
	more_ ? ncclSuccess : failed(ncclSystemError, "a group: out of memory"); \
})

static ncclResult_t send_one(const struct coll *c)
{
	struct sv_coll head = { .comm = c->comm->number, .calls = 1 };
	CUresult rc = core->coll(&c->comm->at, &c->comm->in_graphs, c->stream, &head, &c->call);

	return likely(!rc) ? ncclSuccess : cuda_failed(rc, "a collective operation");
}

ncclResult_t group_coll(const struct coll *c)
{
	return likely(!group.depth) ? send_one(c) : ADD(coll, colls, *c);
}

ncclResult_t group_create(struct creation *c, int n)
{
	ncclResult_t rc = ncclSuccess;

	if (!group.depth)
		return comm_create(c, n);
	for (int i = 0; i < n && !rc; i++)
		rc = ADD(create, creates, c[i]);
	return rc;
}

ncclResult_t group_split(struct split *s)
{
	return group.depth ? ADD(split, splits, *s) : split_all(s, 1);
}

/* ------------------------------------------------------------------------------ the end of a group */

/* Stream `on` goes on when `after` has come so far. */
static ncclResult_t follow(CUstream on, CUstream after)
{
	CUevent e;
	CUresult rc = cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);

	if (rc)
		return cuda_failed(rc, "the streams of a group");
	rc = cuEventRecord(e, after);
	if (!rc)
		rc = cuStreamWaitEvent(on, e, 0);
	cuEventDestroy_v2(e);
	return cuda(rc, "the streams of a group");
}

/* All streams of a group are in one capture, or none of them is. c[0…n-1] are one communicator's. */
static ncclResult_t check_captures(const struct coll *c, int n)
{
	CUstreamCaptureStatus status;
	cuuint64_t id, first = 0;
	ncclResult_t rc = ncclSuccess;
	CUcontext was;

	for (int i = 1; i < n && c[i].stream == c->stream; i++)
		if (i == n - 1)
			return ncclSuccess;
	if (n == 1)
		return ncclSuccess;
	TRY(cuda(cuCtxPushCurrent_v2((CUcontext)c->comm->at.handle), "the streams of a group"));
	for (int i = 0; i < n && !rc; i++) {
		id = 0;
		rc = cuda(cuStreamGetCaptureInfo_v3(c[i].stream, &status, &id, NULL, NULL, NULL, NULL),
			  "the streams of a group");
		if (!i)
			first = id;
		if (!rc && id != first)
			rc = failed(ncclInvalidUsage, "a group: some of its streams are being captured, and "
				    "others are not, or by another capture");
	}
	cuCtxPopCurrent_v2(&was);
	return rc;
}

/*
 * NCCL orders all streams of a group's calls on one communicator before and after them. c[0…n-1] are
 * this communicator's.
 */
static ncclResult_t join_streams(const struct coll *c, int n, bool before)
{
	ncclResult_t rc = ncclSuccess;
	CUcontext was;

	for (int i = 1; i < n && !rc; i++) {
		bool seen = false;

		for (int k = 0; k < i && !seen; k++)
			seen = c[k].stream == c[i].stream;
		if (seen)
			continue;
		TRY(cuda(cuCtxPushCurrent_v2((CUcontext)c->comm->at.handle), "the streams of a group"));
		rc = before ? follow(c->stream, c[i].stream) : follow(c[i].stream, c->stream);
		cuCtxPopCurrent_v2(&was);
	}
	return rc;
}

static ncclResult_t send_calls(const struct coll *c, int n)
{
	struct sv_coll head = { .comm = c->comm->number, .calls = n };
	struct sv_coll_call *calls;
	CUresult rc;

	if (n == 1)
		return send_one(c);
	if (n > (int)SV_COLL_CALLS_MAX)
		return failed(ncclInvalidUsage, "a group with %d calls on one communicator: at most %u are "
			      "supported", n, SV_COLL_CALLS_MAX);
	calls = malloc(n * sizeof(*calls));
	if (!calls)
		return failed(ncclSystemError, "a group: out of memory");
	for (int i = 0; i < n; i++)
		calls[i] = c[i].call;
	rc = core->coll(&c->comm->at, &c->comm->in_graphs, c->stream, &head, calls);
	free(calls);
	return cuda(rc, "a group of collective operations");
}

/* A rank's sends to itself must have their receives in the group. */
static ncclResult_t check_self(const struct coll *c, int n)
{
	uint64_t sent = 0, received = 0;

	for (int i = 0; i < n; i++) {
		if ((int)c[i].call.peer != c[i].comm->rank)
			continue;
		sent += c[i].call.kind == SV_COLL_SEND;
		received += c[i].call.kind == SV_COLL_RECV;
	}
	return sent == received ? ncclSuccess :
		failed(ncclInvalidUsage, "a rank sends to itself %llu times in a group, and receives %llu "
		       "times", (unsigned long long)sent, (unsigned long long)received);
}

/* Calls of one communicator stand together, in the order of its first call. */
static ncclResult_t send_colls(struct coll *all, int n)
{
	struct coll *sorted = n ? malloc(n * sizeof(*sorted)) : NULL;
	ncclResult_t rc = ncclSuccess;

	if (n && !sorted)
		return failed(ncclSystemError, "a group: out of memory");
	for (int i = 0; i < n && !rc; i++) {
		struct ncclComm *comm = all[i].comm;
		int k = 0;

		for (int j = i; j < n && comm; j++)
			if (all[j].comm == comm) {
				sorted[k++] = all[j];
				all[j].comm = NULL;
			}
		if (!k)
			continue;
		rc = check_self(sorted, k);
		if (!rc)
			rc = check_captures(sorted, k);
		if (!rc)
			rc = join_streams(sorted, k, true);
		if (!rc)
			rc = send_calls(sorted, k);
		if (!rc)
			rc = join_streams(sorted, k, false);
	}
	free(sorted);
	return rc;
}

static ncclResult_t finish(struct group *g)
{
	ncclResult_t rc = ncclSuccess, next;

	if (g->creates)
		rc = comm_create(g->create, g->creates);
	if (g->splits && (!rc || rc == ncclInProgress)) {
		next = split_all(g->split, g->splits);
		rc = next ?: rc;
	}
	if (!rc || rc == ncclInProgress) {
		next = send_colls(g->coll, g->colls);
		rc = next ?: rc;
	}
	return rc;
}

/* Nothing of the group is done; its communicators go, which no proxy knows. */
static void drop(struct group *g)
{
	for (int i = 0; i < g->creates; i++) {
		*g->create[i].out = NULL;
		comm_forget(g->create[i].comm);
	}
}

static ncclResult_t group_end(const char *call, bool simulate)
{
	struct group g = group;
	ncclResult_t rc;

	if (!group.depth)
		return failed(ncclInvalidUsage, "%s: not in a group", call);
	if (--group.depth)
		return ncclSuccess;
	group = (struct group){ 0 };
	rc = g.failed;
	if (rc || simulate)
		drop(&g);
	else
		rc = finish(&g);
	free(g.coll);
	free(g.create);
	free(g.split);
	return rc;
}

API ncclResult_t ncclGroupStart(void)
{
	group.depth++;
	return ncclSuccess;
}

API ncclResult_t ncclGroupEnd(void)
{
	return group_end("ncclGroupEnd", false);
}

/* No time is estimated: the struct's says so, with NCCL's value for that. */
API ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	if (info && (info->magic != 0x74685283 || info->size < sizeof(*info)))
		return failed(ncclInvalidArgument, "ncclGroupSimulateEnd: simInfo was not initialized with "
			      "NCCL_SIM_INFO_INITIALIZER");
	if (info)
		info->estimatedTime = NCCL_UNDEF_FLOAT;
	return group_end("ncclGroupSimulateEnd", true);
}
