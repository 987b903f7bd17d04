// SPDX-License-Identifier: Apache-2.0
/*
 * ranks.c - NCCL's calls by several ranks, one process each: ranks FILE TEST
 */
#define _GNU_SOURCE
#include "ranks.h"

#include <dlfcn.h>
#include <pthread.h>

#define COUNT	1000

/* ------------------------------------------------------------------------------ every call and type */

static double reduced(size_t i, void *arg)
{
	int op = *(int *)arg;
	double v = value(0, i);

	for (int r = 1; r < ranks; r++) {
		double w = value(r, i);

		v = op == ncclProd ? v * w : op == ncclMin ? fmin(v, w) : op == ncclMax ? fmax(v, w) : v + w;
	}
	return op >= ncclNumOps ? 2 * v : v;
}

static double three(size_t i, void *arg)
{
	(void)i;
	(void)arg;
	return 3;
}

static double of_rank(size_t i, void *arg)
{
	return value(*(int *)arg, i);
}

static double gathered(size_t i, void *arg)
{
	(void)arg;
	return value(i / COUNT, i % COUNT);
}

/* Of block r's elements rank q has value(r + q, …). */
static double blocks(size_t i, void *arg)
{
	return value(i / COUNT + *(int *)arg, i % COUNT);
}

static double block_sum(size_t i, void *arg)
{
	double v = 0;

	(void)arg;
	for (int q = 0; q < ranks; q++)
		v += value(rank + q, i);
	return v;
}

static double exchanged(size_t i, void *arg)
{
	(void)arg;
	return value(rank + i / COUNT, i % COUNT);
}

static double scattered(size_t i, void *arg)
{
	return value(rank + *(int *)arg, i);
}

static void reductions(ncclComm_t comm, int type, cudaStream_t st)
{
	void *send = device(type, COUNT, mine, NULL), *recv = device(type, COUNT, NULL, NULL), *factor;
	double two = 2;
	uint64_t bits = bits_of(type, 2);
	ncclRedOp_t host, dev;
	int op;

	for (op = ncclSum; op <= ncclMin; op++) {
		OK(ncclAllReduce(send, recv, COUNT, type, op, comm, st));
		EXPECT(recv, type, COUNT, st, reduced, &op);
	}
	OK(ncclRedOpCreatePreMulSum(&host, &bits, type, ncclScalarHostImmediate, comm));
	factor = device(type, 1, NULL, NULL);
	OK(cudaMemcpy(factor, &bits, size_of[type], cudaMemcpyHostToDevice));
	OK(ncclRedOpCreatePreMulSum(&dev, factor, type, ncclScalarDevice, comm));
	(void)two;
	for (int k = 0; k < 2; k++) {
		OK(cudaMemset(recv, 0xa5, COUNT * size_of[type]));
		OK(ncclAllReduce(send, recv, COUNT, type, k ? dev : host, comm, st));
		op = ncclNumOps;
		EXPECT(recv, type, COUNT, st, reduced, &op);
	}
	IS(ncclAllReduce(send, recv, COUNT, (type + 1) % TYPES, host, comm, st), ncclInvalidArgument);
	OK(ncclRedOpDestroy(host, comm));
	OK(ncclRedOpDestroy(dev, comm));
	IS(ncclRedOpDestroy(dev, comm), ncclInvalidArgument);
	/* in place */
	op = ncclSum;
	OK(ncclAllReduce(send, send, COUNT, type, ncclSum, comm, st));
	EXPECT(send, type, COUNT, st, reduced, &op);
	OK(cudaFree(send));
	send = device(type, COUNT, three, NULL);
	OK(ncclAllReduce(send, recv, COUNT, type, ncclAvg, comm, st));
	EXPECT(recv, type, COUNT, st, three, NULL);
	OK(cudaFree(send));
	OK(cudaFree(recv));
	OK(cudaFree(factor));
}

static void rooted(ncclComm_t comm, int type, cudaStream_t st, int root)
{
	void *all = device(type, (size_t)ranks * COUNT, blocks, &rank), *one = device(type, COUNT, mine, NULL);
	void *recv = device(type, (size_t)ranks * COUNT, NULL, NULL);
	int op = ncclSum;

	OK(ncclReduce(one, rank == root ? recv : NULL, COUNT, type, ncclSum, root, comm, st));
	if (rank == root)
		EXPECT(recv, type, COUNT, st, reduced, &op);
	OK(ncclBroadcast(rank == root ? one : NULL, recv, COUNT, type, root, comm, st));
	EXPECT(recv, type, COUNT, st, of_rank, &root);
	OK(ncclGather(one, rank == root ? recv : NULL, COUNT, type, root, comm, st));
	if (rank == root)
		EXPECT(recv, type, (size_t)ranks * COUNT, st, gathered, NULL);
	OK(ncclScatter(rank == root ? all : NULL, recv, COUNT, type, root, comm, st));
	EXPECT(recv, type, COUNT, st, scattered, &root);
	OK(ncclBcast(one, COUNT, type, root, comm, st));
	EXPECT(one, type, COUNT, st, of_rank, &root);
	OK(cudaFree(all));
	OK(cudaFree(one));
	OK(cudaFree(recv));
}

static void spread(ncclComm_t comm, int type, cudaStream_t st)
{
	void *all = device(type, (size_t)ranks * COUNT, blocks, &rank), *one = device(type, COUNT, mine, NULL);
	void *recv = device(type, (size_t)ranks * COUNT, NULL, NULL);
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	OK(ncclAllGather(one, recv, COUNT, type, comm, st));
	EXPECT(recv, type, (size_t)ranks * COUNT, st, gathered, NULL);
	OK(ncclReduceScatter(all, recv, COUNT, type, ncclSum, comm, st));
	EXPECT(recv, type, COUNT, st, block_sum, NULL);
	OK(ncclAlltoAll(all, recv, COUNT, type, comm, st));
	EXPECT(recv, type, (size_t)ranks * COUNT, st, exchanged, NULL);
	OK(ncclGroupStart());
	OK(ncclSend(one, COUNT, type, next, comm, st));
	OK(ncclRecv(recv, COUNT, type, before, comm, st));
	OK(ncclGroupEnd());
	EXPECT(recv, type, COUNT, st, of_rank, &before);
	OK(cudaFree(all));
	OK(cudaFree(one));
	OK(cudaFree(recv));
}

static void types(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st;
	int n = -1;

	OK(ncclCommCount(comm, &n));
	IS(n, ranks);
	OK(ncclCommUserRank(comm, &n));
	IS(n, rank);
	OK(cudaStreamCreate(&st));
	for (int type = 0; type < TYPES; type++) {
		cudaStream_t on[] = { st, 0, cudaStreamPerThread };

		reductions(comm, type, on[type % 3]);
		rooted(comm, type, on[type % 3], type % ranks);
		spread(comm, type, on[type % 3]);
	}
	OK(ncclCommDestroy(comm));
}

/* ------------------------------------------------------------------------------ groups */

/* Pairs in groups whose order differs between ranks; more than one stream; two communicators. */
static void groups(void)
{
	ncclComm_t comm = world(0), other = world(1);
	void *send = device(ncclFloat, COUNT, mine, NULL), *recv[8], *sum = device(ncclFloat, COUNT, NULL, NULL);
	void *sum2 = device(ncclFloat, COUNT, NULL, NULL);
	cudaStream_t st[2];
	int op = ncclSum;

	OK(cudaStreamCreateWithFlags(&st[0], cudaStreamNonBlocking));
	OK(cudaStreamCreateWithFlags(&st[1], cudaStreamNonBlocking));
	for (int r = 0; r < ranks; r++)
		recv[r] = device(ncclFloat, COUNT, NULL, NULL);
	OK(ncclGroupStart());
	for (int i = 0; i < ranks; i++)
		OK(ncclSend(send, COUNT, ncclFloat, (rank + ranks - i) % ranks, comm, st[i % 2]));
	OK(ncclGroupStart());
	for (int i = ranks; i--;)
		OK(ncclRecv(recv[i], COUNT, ncclFloat, i, comm, st[i % 2]));
	OK(ncclGroupEnd());
	OK(ncclAllReduce(send, sum, COUNT, ncclFloat, ncclSum, comm, st[0]));
	OK(ncclAllReduce(send, sum2, COUNT, ncclFloat, ncclSum, other, st[1]));
	OK(ncclGroupEnd());
	for (int r = 0; r < ranks; r++)
		EXPECT(recv[r], ncclFloat, COUNT, st[r % 2], of_rank, &r);
	EXPECT(sum, ncclFloat, COUNT, st[1], reduced, &op);
	EXPECT(sum2, ncclFloat, COUNT, st[1], reduced, &op);
	/* an error drops the whole group, and its end says so */
	OK(cudaMemset(sum, 0, COUNT * 4));
	OK(cudaDeviceSynchronize());
	OK(ncclGroupStart());
	OK(ncclAllReduce(send, sum, COUNT, ncclFloat, ncclSum, comm, st[0]));
	IS(ncclSend(send, COUNT, ncclFloat, ranks, comm, st[0]), ncclInvalidArgument);
	IS(ncclGroupEnd(), ncclInvalidArgument);
	OK(ncclGroupStart());
	OK(ncclAllReduce(send, sum, COUNT, ncclFloat, ncclProd, comm, st[0]));
	OK(ncclGroupEnd());
	op = ncclProd;
	EXPECT(sum, ncclFloat, COUNT, st[0], reduced, &op);
	IS(ncclGroupEnd(), ncclInvalidUsage);
	/* two communicators in opposite order, on two streams */
	for (int k = 0; k < 20; k++) {
		bool first = (rank + k) % 2;

		OK(ncclAllReduce(send, first ? sum : sum2, COUNT, ncclFloat, ncclSum, first ? comm : other,
				 st[first]));
		OK(ncclAllReduce(send, first ? sum2 : sum, COUNT, ncclFloat, ncclSum, first ? other : comm,
				 st[!first]));
	}
	op = ncclSum;
	EXPECT(sum, ncclFloat, COUNT, st[1], reduced, &op);
	EXPECT(sum2, ncclFloat, COUNT, st[0], reduced, &op);
	OK(ncclCommDestroy(other));
	OK(ncclCommDestroy(comm));
}

/* Small sends complete though nobody receives yet. */
static void eager(void)
{
	ncclComm_t comm = world(0);
	void *send = device(ncclFloat, COUNT, mine, NULL), *recv = device(ncclFloat, COUNT, NULL, NULL);
	int other = rank ^ 1;

	if (other < ranks) {
		OK(ncclSend(send, COUNT, ncclFloat, other, comm, 0));
		OK(cudaStreamSynchronize(0));
		OK(ncclRecv(recv, COUNT, ncclFloat, other, comm, 0));
		EXPECT(recv, ncclFloat, COUNT, 0, of_rank, &other);
	}
	OK(ncclCommDestroy(comm));
}

/* ------------------------------------------------------------------------------ communicators */

/* Halves by parity, the ranks of which are in opposite order; and one without rank 0. */
static void split(void)
{
	ncclComm_t comm = world(0), half = NULL, rest = NULL, again = NULL;
	void *p = device(ncclInt, 1, mine, NULL);
	int n, r, v = rank, sum = 0, members = 0;

	OK(ncclCommSplit(comm, rank % 2, -rank, &half, NULL));
	OK(ncclCommCount(half, &n));
	OK(ncclCommUserRank(half, &r));
	for (int i = rank % 2; i < ranks; i += 2) {
		members++;
		sum += i;
	}
	IS(n, members);
	IS(r, (ranks - 1 - rank) / 2);
	OK(cudaMemcpy(p, &v, 4, cudaMemcpyHostToDevice));
	OK(ncclAllReduce(p, p, 1, ncclInt, ncclSum, half, 0));
	OK(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost));
	IS(v, sum);
	OK(ncclCommSplit(comm, rank ? 7 : NCCL_SPLIT_NOCOLOR, 0, &rest, NULL));
	IS(!rest, !rank);
	if (rest) {
		OK(ncclCommUserRank(rest, &r));
		IS(r, rank - 1);
	}
	/* a child of a child, and the parent's end before the child's */
	OK(ncclCommSplit(half, 0, 0, &again, NULL));
	OK(ncclCommDestroy(half));
	OK(ncclAllReduce(p, p, 1, ncclInt, ncclMax, again, 0));
	OK(cudaStreamSynchronize(0));
	OK(ncclCommDestroy(again));
	if (rest)
		OK(ncclCommDestroy(rest));
	OK(ncclCommDestroy(comm));
}

static void wait_for(ncclComm_t comm)
{
	ncclResult_t state = ncclInProgress;

	for (int i = 0; state == ncclInProgress; i++) {
		IS(i < 30000, 1);
		OK(ncclCommGetAsyncError(comm, &state));
		usleep(1000);
	}
	IS(state, ncclSuccess);
}

static void nonblocking(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id = shared_id(0);
	ncclComm_t comm = NULL, child = NULL;
	ncclResult_t rc, state;
	void *p = device(ncclFloat, COUNT, mine, NULL);
	int op = ncclSum;

	config.blocking = 0;
	if (!rank)
		usleep(300000);	/* the others see it in progress */
	rc = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
	if (rank) {
		IS(rc, ncclInProgress);
		OK(ncclCommGetAsyncError(comm, &state));
		IS(state, ncclInProgress);
		IS(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0), ncclInvalidArgument);
		says("in progress");
	} else {
		IS(rc == ncclInProgress || !rc, 1);
	}
	wait_for(comm);
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	EXPECT(p, ncclFloat, COUNT, 0, reduced, &op);
	/* inherited */
	rc = ncclCommSplit(comm, 0, rank, &child, NULL);
	IS(rc == ncclInProgress || !rc, 1);
	wait_for(child);
	rc = ncclCommFinalize(child);
	IS(rc == ncclInProgress || !rc, 1);
	wait_for(child);
	OK(ncclCommDestroy(child));
	OK(ncclCommAbort(comm));
}

/* An abort that meets an end: the session goes on. */
static void crossed(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	void *p = device(ncclFloat, COUNT, mine, NULL);
	int op = ncclSum, id;
	ncclComm_t comm;
	ncclResult_t rc;

	config.blocking = 0;
	for (id = 0; id < 10; id++) {
		comm = NULL;
		rc = ncclCommInitRankConfig(&comm, ranks, shared_id(id), rank, &config);
		IS(rc == ncclInProgress || !rc, 1);
		wait_for(comm);
		rc = ncclCommFinalize(comm);
		IS(rc == ncclInProgress || !rc, 1);
		OK(ncclCommAbort(comm));
	}
	comm = world(id);
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	EXPECT(p, ncclFloat, COUNT, 0, reduced, &op);
	OK(ncclCommDestroy(comm));
}

/* Finalised, used after that, freed. */
static void finalize(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);
	int op = ncclSum;

	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	OK(ncclCommFinalize(comm));
	IS(ncclCommFinalize(comm), ncclInvalidArgument);
	IS(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0), ncclInvalidArgument);
	says("finalized");
	EXPECT(p, ncclFloat, COUNT, 0, reduced, &op);
	OK(ncclCommDestroy(comm));
	IS(ncclCommDestroy(comm), ncclInvalidArgument);
}

/* An end waits for what the program has enqueued, also for what is parked behind something else. */
static void flushes(void)
{
	ncclComm_t comm = world(0), other = world(1);
	void *p = device(ncclFloat, COUNT, mine, NULL), *q = device(ncclFloat, COUNT, mine, NULL);
	cudaStream_t st;
	int op = ncclSum;

	OK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	if (rank)
		usleep(200000);
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, st));
	OK(ncclAllReduce(q, q, COUNT, ncclFloat, ncclSum, other, st));
	OK(ncclCommDestroy(other));
	OK(ncclCommDestroy(comm));
	EXPECT(p, ncclFloat, COUNT, st, reduced, &op);
	EXPECT(q, ncclFloat, COUNT, st, reduced, &op);
}

/* NCCL_COMM_ID: every rank makes the id itself, and may use it again. */
static void comm_id(void)
{
	for (int k = 0; k < 2; k++) {
		ncclComm_t comm = NULL;
		ncclUniqueId id;
		void *p = device(ncclFloat, COUNT, mine, NULL);
		int op = ncclSum;

		OK(ncclGetUniqueId(&id));
		OK(ncclCommInitRank(&comm, ranks, id, rank));
		OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
		EXPECT(p, ncclFloat, COUNT, 0, reduced, &op);
		OK(ncclCommDestroy(comm));
	}
}

static void scalable(void)
{
	ncclUniqueId ids[2] = { shared_id(0), shared_id(1) };	/* of 2 ranks or more */
	ncclComm_t comm = NULL;
	void *p = device(ncclFloat, COUNT, mine, NULL);
	int op = ncclSum;

	OK(ncclCommInitRankScalable(&comm, ranks, rank, 2, ids, NULL));
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	EXPECT(p, ncclFloat, COUNT, 0, reduced, &op);
	OK(ncclCommDestroy(comm));
}

/* ------------------------------------------------------------------------------ failures */

static ncclResult_t async_error(ncclComm_t comm)
{
	ncclResult_t rc = ncclSuccess;

	for (int i = 0; i < 5000 && !rc; i++) {
		OK(ncclCommGetAsyncError(comm, &rc));
		usleep(1000);
	}
	return rc;
}

/* Counts that differ are an error with a sentence. */
static void differ(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);

	OK(ncclAllReduce(p, p, COUNT - (rank == 1), ncclFloat, ncclSum, comm, 0));
	IS(cudaStreamSynchronize(0), cudaErrorExternalDevice);
	IS(async_error(comm), ncclInvalidUsage);
	IS(strstr(ncclGetLastError(comm), "999") || strstr(ncclGetLastError(comm), "differ"), 1);
	IS(strcmp(ncclGetLastError(NULL), ncclGetLastError(comm)), 0);	/* as PyTorch asks */
	IS(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0), ncclInvalidUsage);
	sleep(1);	/* until all know, who would hear of the abort else */
	OK(ncclCommAbort(comm));
}

/* A call that cannot be posted: the next one of its rank does not take its place on the others. */
static void refused(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);

	if (!rank) {
		OK(ncclAllReduce((void *)0x1000, p, COUNT, ncclFloat, ncclSum, comm, 0));
		ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0);
		IS(async_error(comm), ncclInvalidUsage);
	} else {
		OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
		IS(async_error(comm), ncclRemoteError);
	}
	OK(ncclCommAbort(comm));
}

/* Two ranks of one communicator on one device of a process. */
static void duplicate(void)
{
	ncclUniqueId id;
	ncclComm_t c[2] = { NULL, NULL };

	OK(ncclGetUniqueId(&id));
	OK(ncclGroupStart());
	OK(ncclCommInitRank(&c[0], 2, id, 0));
	OK(ncclCommInitRank(&c[1], 2, id, 1));
	IS(ncclGroupEnd(), ncclInvalidUsage);
	says("Duplicate GPU");
	IS(!c[0] && !c[1], 1);
}

/* An abort ends what waits for others, at once. */
static void *destroys(void *comm)
{
	return (void *)(intptr_t)ncclCommDestroy(comm);
}

/* A thread waits in ncclCommDestroy, and another one aborts: one of them frees the communicator. */
static void aborts_what_is_destroyed(ncclComm_t comm, void *p)
{
	ncclComm_t one, two;
	ncclUniqueId id;
	pthread_t t;
	void *rc;

	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	OK(pthread_create(&t, NULL, destroys, comm));
	usleep(200000);
	OK(ncclCommAbort(comm));
	OK(pthread_join(t, &rc));
	OK((intptr_t)rc);
	OK(cudaStreamSynchronize(0));
	OK(ncclGetUniqueId(&id));
	OK(ncclCommInitRank(&one, 1, id, 0));
	OK(ncclGetUniqueId(&id));
	OK(ncclCommInitRank(&two, 1, id, 0));
	IS(one != two, 1);
	OK(ncclCommDestroy(one));
	OK(ncclCommDestroy(two));
}

static void aborted(void)
{
	ncclComm_t comm = world(0), other = world(1), all = world(2);
	void *p = device(ncclFloat, COUNT, mine, NULL);

	if (!rank) {
		OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
		usleep(200000);
		IS(cudaStreamQuery(0), cudaErrorNotReady);
		OK(ncclCommAbort(comm));
		OK(cudaStreamSynchronize(0));
		aborts_what_is_destroyed(other, p);
	} else {
		usleep(600000);
		OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
		IS(cudaStreamSynchronize(0), cudaErrorExternalDevice);
		IS(async_error(comm), ncclRemoteError);
		OK(ncclCommAbort(comm));
	}
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, all, 0));
	OK(cudaStreamSynchronize(0));
	OK(ncclCommDestroy(all));
}

/*
 * Rank 1 dies in the middle: its status is the job's, and the others hear of it. A child that has left, in the same memory,
 * has not left for it.
 */
static void dies(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);
	ncclResult_t rc;

	signal(SIGTERM, SIG_IGN);	/* the supervisor ends who is left */
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	OK(cudaStreamSynchronize(0));
	if (rank == 1) {
		if (!vfork())
			_exit(0);
		_exit(3);
	}
	/* it may have heard already */
	rc = ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0);
	IS(!rc || rc == ncclRemoteError, 1);
	IS(cudaStreamSynchronize(0), rc ? cudaSuccess : cudaErrorExternalDevice);
	IS(async_error(comm), ncclRemoteError);
	says("rank 1 has died");
	OK(ncclCommAbort(comm));
	printf("rank %d has heard of it\n", rank);
}

/* Rank 1 dies while the others wait for its vote: they are told by NCCL, not by CUDA. */
static void votes(void)
{
	ncclComm_t comm = world(0), half;
	ncclResult_t rc;

	signal(SIGTERM, SIG_IGN);
	if (rank == 1) {
		usleep(300000);
		_exit(3);
	}
	rc = ncclCommSplit(comm, 0, rank, &half, NULL);
	IS(rc, ncclRemoteError);
	says("rank 1 has died");
	OK(ncclCommAbort(comm));
	OK(cudaDeviceSynchronize());
	printf("rank %d has heard of it\n", rank);
}

/* The stand-in calls this one when all have voted, and before it creates the new communicator. */
static void (*voted)(void);

int cuStreamDestroy_v2(void *stream)
{
	int (*real)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "cuStreamDestroy_v2");

	if (voted)
		voted();
	return real(stream);
}

static ncclComm_t parent;

static void rank_1_dies(void)
{
	if (rank == 1)
		_exit(3);
	for (int i = 0; async_error(parent) != ncclRemoteError; i++) {
		IS(i < 30000, 1);
		usleep(1000);
	}
}

/* Rank 1 has voted, and dies before anybody has joined: the others do not wait for it. */
static void orphans(void)
{
	ncclComm_t half;

	signal(SIGTERM, SIG_IGN);
	parent = world(0);
	voted = rank_1_dies;
	IS(ncclCommSplit(parent, 0, rank, &half, NULL), ncclRemoteError);
	voted = NULL;
	OK(ncclCommAbort(parent));
	printf("rank %d has heard of it\n", rank);
}

#define BYTES		(COUNT * sizeof(float))
#define STANDS(x)	IS(x, cudaErrorExternalDevice)

static void called(void *arg)
{
	*(volatile int *)arg = 1;
}

/* Are all of these bytes 0x33? */
static bool untouched(const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (((const uint8_t *)p)[i] != 0x33)
			return false;
	return true;
}

/* What waits behind a failed operation: none of it may succeed, write to the host, or call something there. */
static void all_stand(cudaStream_t st, cudaStream_t after, cudaEvent_t event, void *p, void *q, void *pinned)
{
	static uint8_t pageable[BYTES];
	cudaError_t rc;

	memset(pageable, 0x33, BYTES);
	STANDS(cudaStreamSynchronize(st));
	IS(cudaGetLastError(), cudaErrorExternalDevice);
	OK(cudaGetLastError());			/* it does not stick */
	STANDS(cudaStreamSynchronize(after));
	STANDS(cudaEventSynchronize(event));
	STANDS(cudaDeviceSynchronize());
	STANDS(cudaMemcpy(pageable, p, BYTES, cudaMemcpyDeviceToHost));
	STANDS(cudaMemcpy(pinned, p, BYTES, cudaMemcpyDeviceToHost));
	STANDS(cudaMemcpy(q, pageable, BYTES, cudaMemcpyHostToDevice));
	STANDS(cudaMemcpy(q, pinned, BYTES, cudaMemcpyHostToDevice));
	STANDS(cudaMemcpy(q, p, BYTES, cudaMemcpyDeviceToDevice));
	STANDS(cudaMemcpy2D(pageable, 40, p, 40, 40, 8, cudaMemcpyDeviceToHost));
	STANDS(cudaMemcpy2D(pinned, 40, p, 40, 40, 8, cudaMemcpyDeviceToHost));
	STANDS(cudaMemcpy2D(q, 40, pageable, 40, 40, 8, cudaMemcpyHostToDevice));
	STANDS(cudaMemcpyAsync(pageable, p, BYTES, cudaMemcpyDeviceToHost, st));
	STANDS(cudaMemcpyAsync(pageable, p, BYTES, cudaMemcpyDeviceToHost, after));
	STANDS(cudaMemcpy2DAsync(pageable, 40, p, 40, 40, 8, cudaMemcpyDeviceToHost, st));
	STANDS(cudaFree(q));
	STANDS(cudaFreeHost(pinned));
	STANDS(cudaDeviceReset());
	while ((rc = cudaStreamQuery(st)) == cudaErrorNotReady)
		usleep(10000);
	STANDS(rc);
	STANDS(cudaEventQuery(event));
	OK(!untouched(pageable, BYTES) || !untouched(pinned, BYTES));
	cudaGetLastError();
}

/*
 * Rank 1 dies while the others wait for it in an all-reduce: nothing that waits for its sum succeeds before the
 * abort, what does not wait for it does, and after the abort all is as usual.
 */
static void stands(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL), *q = device(ncclFloat, COUNT, mine, NULL), *pinned, *own;
	cudaStream_t st, after, beside;
	cudaEvent_t event, before;
	volatile int call = 0;
	ncclResult_t rc;

	signal(SIGTERM, SIG_IGN);	/* which the job's other ranks get then */
	OK(cudaStreamCreate(&st));
	OK(cudaStreamCreateWithFlags(&after, cudaStreamNonBlocking));
	OK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
	OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	OK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
	OK(cudaMallocHost(&pinned, BYTES));
	OK(cudaMallocHost(&own, BYTES));
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, st));
	OK(cudaStreamSynchronize(st));
	if (rank == 1) {
		usleep(500000);
		_exit(3);
	}
	memset(pinned, 0x33, BYTES);
	OK(cudaEventRecord(before, st));
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, st));
	OK(cudaMemcpyAsync(pinned, p, BYTES, cudaMemcpyDeviceToHost, st));
	OK(cudaLaunchHostFunc(st, called, (void *)&call));
	OK(cudaEventRecord(event, st));
	OK(cudaStreamWaitEvent(after, event, 0));
	OK(cudaMemcpyAsync(q, p, BYTES, cudaMemcpyDeviceToDevice, after));
	OK(cudaLaunchHostFunc(after, called, (void *)&call));
	OK(ncclCommGetAsyncError(comm, &rc));
	IS(rc, ncclSuccess);
	all_stand(st, after, event, p, q, pinned);
	OK(cudaEventSynchronize(before));
	OK(cudaMemsetAsync(own, 7, BYTES, beside));
	OK(cudaStreamSynchronize(beside));
	IS(((uint8_t *)own)[BYTES - 1], 7);
	OK(call);
	OK(ncclCommGetAsyncError(comm, &rc));
	IS(rc, ncclRemoteError);
	if (rank & 2)
		OK(ncclCommDestroy(comm));
	else
		OK(ncclCommAbort(comm));
	OK(cudaStreamSynchronize(st));
	OK(cudaStreamSynchronize(after));
	OK(cudaEventQuery(event));
	OK(cudaDeviceSynchronize());
	IS(call, 1);
	OK(cudaMemcpy(own, q, BYTES, cudaMemcpyDeviceToHost));
	OK(cudaFree(q));
	OK(cudaFreeHost(pinned));
	OK(cudaGetLastError());
	printf("rank %d has heard of it\n", rank);
}

/* Rank 1's host function: its all-reduce has been posted, and waits for this. */
static void sleeps(void *arg)
{
	(void)arg;
	sleep(30);
}

/* A file by which rank 0 gives the others something. */
static void pass(const char *name, void *p, size_t size)
{
	char path[4096], fresh[4200];
	FILE *f;

	snprintf(path, sizeof(path), "%s.%s", id_file, name);
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	f = rank ? NULL : fopen(fresh, "w");
	if (!rank) {
		IS(f && fwrite(p, size, 1, f) == 1, 1);
		fclose(f);
		OK(rename(fresh, path));
		return;
	}
	while (!(f = fopen(path, "r")))
		usleep(1000);
	IS(fread(p, size, 1, f), 1);
	fclose(f);
}

static cudaError_t soon(cudaError_t (*ask)(cudaStream_t), cudaStream_t st)
{
	cudaError_t rc = cudaErrorExternalDevice;

	for (int i = 0; i < 5000 && rc == cudaErrorExternalDevice; i++) {
		usleep(1000);
		rc = ask(st);
	}
	cudaGetLastError();
	return rc;
}

/*
 * An event of rank 0 is behind an all-reduce that has begun, and fails when rank 1 dies: who waits for it in another
 * process gets the error, too, until rank 0 has aborted.
 */
static void shares(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);
	cudaIpcEventHandle_t handle;
	cudaStream_t st, by;
	cudaEvent_t event, own;
	cudaError_t rc;
	void *pinned;

	signal(SIGTERM, SIG_IGN);
	OK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	OK(cudaStreamCreateWithFlags(&by, cudaStreamNonBlocking));
	OK(cudaEventCreateWithFlags(&own, cudaEventDisableTiming));
	OK(cudaMallocHost(&pinned, BYTES));
	memset(pinned, 0x33, BYTES);
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, st));
	OK(cudaStreamSynchronize(st));
	if (rank == 1) {
		OK(cudaLaunchHostFunc(st, sleeps, NULL));
		OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, st));
		usleep(800000);
		_exit(3);
	}
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, st));
	if (!rank) {
		OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
		OK(cudaIpcGetEventHandle(&handle, event));
		OK(cudaEventRecord(event, st));		/* which returns when all have posted */
	}
	pass("event", &handle, sizeof(handle));
	if (rank)
		OK(cudaIpcOpenEventHandle(&event, handle));
	OK(cudaStreamWaitEvent(by, event, 0));
	OK(cudaMemcpyAsync(pinned, p, BYTES, cudaMemcpyDeviceToHost, by));
	OK(cudaEventRecord(own, by));
	STANDS(cudaStreamSynchronize(by));
	STANDS(cudaEventSynchronize(own));
	STANDS(cudaEventSynchronize(event));
	STANDS(cudaMemcpyAsync(&handle, p, 4, cudaMemcpyDeviceToHost, by));
	while ((rc = cudaEventQuery(event)) == cudaErrorNotReady)
		usleep(10000);
	STANDS(rc);
	OK(!untouched(pinned, BYTES));
	cudaGetLastError();
	sleep(1);			/* until all have been told */
	OK(ncclCommAbort(comm));
	OK(soon(cudaStreamSynchronize, by));
	OK(cudaEventSynchronize(own));
	OK(cudaDeviceSynchronize());
	printf("rank %d has heard of it\n", rank);
}

/* Rank 0 leaves with 0, by exit() or _exit(), with a communicator; its small send is still received. */
static void leaves(int how)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);
	ncclResult_t rc;
	int from = 0;

	if (!rank) {
		OK(ncclSend(p, COUNT, ncclFloat, 1, comm, 0));
		OK(cudaStreamSynchronize(0));
		if (how)
			_exit(0);
		exit(0);
	}
	usleep(700000);
	if (rank == 1) {
		OK(ncclRecv(p, COUNT, ncclFloat, 0, comm, 0));
		EXPECT(p, ncclFloat, COUNT, 0, of_rank, &from);
	}
	OK(ncclCommGetAsyncError(comm, &rc));
	OK(rc);
	OK(ncclCommDestroy(comm));
}

static void exits(void)
{
	leaves(0);
}

static void underscore_exits(void)
{
	leaves(1);
}

/* The child of a fork has no communicator, as it has no device. */
static void forks(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);
	int op = ncclSum, status = -1;
	pid_t pid = fork();

	if (!pid) {
		ncclResult_t rc = ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0);

		_exit(rc == ncclUnhandledCudaError ? 0 : 9);
	}
	IS(waitpid(pid, &status, 0), pid);
	OK(status);
	OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	EXPECT(p, ncclFloat, COUNT, 0, reduced, &op);
	OK(ncclCommDestroy(comm));
}

/* Rank 0's proxy is killed by the test while rank 1 waits: both hear of it soon. */
static void lost(void)
{
	ncclComm_t comm = world(0);
	void *p = device(ncclFloat, COUNT, mine, NULL);
	char path[4096];

	OK(cudaDeviceSynchronize());
	if (rank)
		OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
	if (!rank) {
		snprintf(path, sizeof(path), "%s.ready", id_file);
		fclose(fopen(path, "w"));
		while (!access(path, F_OK))	/* until it is done */
			usleep(1000);
	}
	IS(async_error(comm), rank ? ncclRemoteError : ncclSystemError);
	if (rank)
		IS(cudaDeviceSynchronize(), cudaErrorExternalDevice);
	OK(ncclCommAbort(comm));
	if (rank)
		OK(cudaDeviceSynchronize());
}

/* Sums alone: small whole numbers, which any order of addition gets right. */
static void sums(void)
{
	ncclComm_t comm = world(0);
	int op = ncclSum;

	for (int i = 0; i < 2; i++) {
		void *p = device(ncclFloat, COUNT, mine, NULL);

		OK(ncclAllReduce(p, p, COUNT, ncclFloat, ncclSum, comm, 0));
		EXPECT(p, ncclFloat, COUNT, 0, reduced, &op);
	}
}

static void until_gone(const char *what)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s.%s", id_file, what);
	while (!access(path, F_OK))
		usleep(1000);
}

/* Rank 2 comes late: to the creation, to an all-reduce, and to a receive of what is no small send. */
static void late(void)
{
	size_t n = 1 << 20;
	void *p, *q;
	ncclComm_t comm;

	if (rank == 2)
		until_gone("creation");
	comm = world(0);
	p = device(ncclFloat, n, mine, NULL);
	q = device(ncclFloat, n, NULL, NULL);
	OK(ncclAllReduce(p, q, 1, ncclFloat, ncclMax, comm, 0));
	OK(cudaStreamSynchronize(0));
	if (rank == 2)
		until_gone("reduction");
	OK(ncclAllReduce(p, q, COUNT, ncclFloat, ncclMax, comm, 0));
	OK(cudaStreamSynchronize(0));
	if (rank == 2)
		until_gone("receive");
	if (rank == 0)
		OK(ncclSend(p, n, ncclFloat, 2, comm, 0));
	if (rank == 2)
		OK(ncclRecv(q, n, ncclFloat, 0, comm, 0));
	OK(cudaStreamSynchronize(0));
	OK(ncclCommDestroy(comm));
}

static const struct {
	const char *name;
	void (*fn)(void);
} tests[] = {
	{ "types", types }, { "groups", groups }, { "eager", eager }, { "split", split },
	{ "nonblocking", nonblocking }, { "finalize", finalize }, { "flushes", flushes },
	{ "comm_id", comm_id }, { "scalable", scalable }, { "differ", differ },
	{ "crossed", crossed }, { "refused", refused },
	{ "duplicate", duplicate }, { "aborted", aborted }, { "dies", dies }, { "exits", exits },
	{ "stands", stands }, { "votes", votes }, { "orphans", orphans }, { "shares", shares },
	{ "_exits", underscore_exits }, { "lost", lost }, { "forks", forks },
	{ "sums", sums }, { "late", late },
};

int main(int argc, char **argv)
{
	begin(argc, argv);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (argc == 3 && !strcmp(argv[2], tests[i].name)) {
			tests[i].fn();
			return 0;
		}
	return 2;
}
