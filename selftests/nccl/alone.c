// SPDX-License-Identifier: Apache-2.0
/*
 * alone.c - what NCCL's calls say of their arguments: one process, communicators of one rank
 */

#include <limits.h>

#include "ranks.h"

static ncclComm_t comm;
static float *p;

static ncclComm_t one(void)
{
	ncclComm_t c = NULL;
	ncclUniqueId id;

	OK(ncclGetUniqueId(&id));
	OK(ncclCommInitRank(&c, 1, id, 0));
	return c;
}

static void queries(void)
{
	ncclResult_t rc = ncclInternalError;
	int v = 0;

	IS(ncclGetVersion(NULL), ncclInvalidArgument);
	OK(ncclGetVersion(&v));
	IS(v >= 22200, 1);
	IS(ncclCommUserRank(comm, NULL), ncclInvalidArgument);
	IS(ncclCommCuDevice(comm, NULL), ncclInvalidArgument);
	OK(strcmp(ncclGetErrorString(ncclSuccess), "no error"));
	OK(strcmp(ncclGetErrorString(77), "unknown result code"));
	IS(ncclCommCount(NULL, &v), ncclInvalidArgument);
	IS(ncclCommCount((ncclComm_t)&v, &v), ncclInvalidArgument);
	IS(ncclCommCount(comm, NULL), ncclInvalidArgument);
	OK(ncclCommCount(comm, &v));
	IS(v, 1);
	OK(ncclCommCuDevice(comm, &v));
	IS(v, 0);
	IS(ncclCommGetAsyncError(comm, NULL), ncclInvalidArgument);
	OK(ncclCommGetAsyncError(comm, &rc));
	OK(rc);
}

static void creation(void)
{
	ncclComm_t c = (ncclComm_t)1;
	ncclUniqueId id, other;

	IS(ncclGetUniqueId(NULL), ncclInvalidArgument);
	OK(ncclGetUniqueId(&id));
	OK(ncclGetUniqueId(&other));
	IS(!memcmp(&id, &other, sizeof(id)), 0);
	IS(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument);
	IS(ncclCommInitRank(&c, 0, id, 0), ncclInvalidArgument);
	IS(!c, 1);
	IS(ncclCommInitRank(&c, 1, id, 1), ncclInvalidArgument);
	says("rank 1 of 1");
	IS(ncclCommInitRank(&c, 1, id, -1), ncclInvalidArgument);
	says("rank -1 of 1");
	IS(ncclCommInitRankScalable(&c, 1, 0, 2, &id, NULL), ncclInvalidArgument);
	says("2 ids for 1 ranks");
	IS(ncclCommInitRankScalable(&c, 1, 0, 0, &id, NULL), ncclInvalidArgument);
	IS(ncclCommInitRankScalable(&c, 1, 0, 1, NULL, NULL), ncclInvalidArgument);
	/* devices that there are, each once */
	IS(ncclCommInitAll(&c, -1, NULL), ncclInvalidArgument);
	IS(ncclCommInitAll(NULL, 1, NULL), ncclInvalidArgument);
	IS(ncclCommInitAll(&c, 1, (int[]){ 99 }), ncclUnhandledCudaError);
	says("device 99 of 1");
	IS(ncclCommInitAll(&c, 1, (int[]){ -1 }), ncclUnhandledCudaError);
	IS(ncclCommInitAll(&c, 2, (int[]){ 0, 0 }), ncclInvalidUsage);
	says("device 0 is listed twice (Duplicate GPU)");
	/* an address that is an id, as far as there is room */
	setenv("NCCL_COMM_ID", "a name of more than a hundred characters, which no unique id has room for, as it is shorter "
	       "than that by some of them", 1);
	IS(ncclGetUniqueId(&other), ncclInvalidArgument);
	says("too long");
	unsetenv("NCCL_COMM_ID");
	/* an id is of one communicator alone */
	OK(ncclCommInitRank(&c, 1, id, 0));
	OK(ncclCommFinalize(c));
	IS(ncclCommFinalize(c), ncclInvalidArgument);
	says("finalized");
	OK(ncclCommDestroy(c));
	IS(ncclCommAbort(c), ncclInvalidArgument);
	IS(ncclCommDestroy(c), ncclInvalidArgument);
	OK(ncclCommDestroy(NULL));
	OK(ncclCommAbort(NULL));
}

/* An id is good as long as the process lives that made it, as NCCL's, whose ranks meet there. */
static void makers(void)
{
	int id_pipe[2], end_pipe[2];
	ncclComm_t c = (ncclComm_t)1;
	ncclUniqueId id, late;
	pid_t maker;
	char end;

	OK(pipe(id_pipe) || pipe(end_pipe));
	maker = fork();
	if (!maker) {
		close(end_pipe[1]);
		for (int i = 0; i < 2; i++)
			if (ncclGetUniqueId(&id) || write(id_pipe[1], &id, sizeof(id)) != sizeof(id))
				_exit(1);
		_exit(read(end_pipe[0], &end, 1) != 0);
	}
	IS(read(id_pipe[0], &id, sizeof(id)), sizeof(id));
	IS(read(id_pipe[0], &late, sizeof(late)), sizeof(late));
	OK(ncclCommInitRank(&c, 1, id, 0));
	close(end_pipe[1]);
	IS(waitpid(maker, NULL, 0), maker);
	OK(ncclCommDestroy(c));
	c = (ncclComm_t)1;
	IS(ncclCommInitRank(&c, 1, late, 0), ncclRemoteError);
	says("made its unique id, has ended");
	IS(!c, 1);
	IS(ncclCommInitRankScalable(&c, 1, 0, 1, &late, NULL), ncclRemoteError);
	close(id_pipe[0]);
	close(id_pipe[1]);
	close(end_pipe[0]);
}

/* A program of an older or newer NCCL: the struct is shorter or longer than the library's. */
static void configs(void)
{
	struct {
		ncclConfig_t c;
		char more[256];
	} newer = { .c = NCCL_CONFIG_INITIALIZER };
	ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
	ncclComm_t made = NULL;
	ncclUniqueId id;

	OK(ncclGetUniqueId(&id));
	c.magic = 0;
	IS(ncclCommInitRankConfig(&made, 1, id, 0, &c), ncclInvalidArgument);
	says("INITIALIZER");
	c = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
	c.blocking = 2;
	IS(ncclCommInitRankConfig(&made, 1, id, 0, &c), ncclInvalidArgument);
	says("blocking");
	c.blocking = NCCL_CONFIG_UNDEF_INT;
	c.minCTAs = 4;
	c.maxCTAs = 2;
	IS(ncclCommInitRankConfig(&made, 1, id, 0, &c), ncclInvalidArgument);
	says("minCTAs is 4, maxCTAs 2");
	c.minCTAs = NCCL_CONFIG_UNDEF_INT;
	c.maxCTAs = 0;
	IS(ncclCommInitRankConfig(&made, 1, id, 0, &c), ncclInvalidArgument);
	says("maxCTAs is 0");
	c.maxCTAs = NCCL_CONFIG_UNDEF_INT;
	c.cgaClusterSize = -1;
	IS(ncclCommInitRankConfig(&made, 1, id, 0, &c), ncclInvalidArgument);
	says("cgaClusterSize is -1");
	c.cgaClusterSize = 0;
	c.splitShare = 2;
	IS(ncclCommInitRankConfig(&made, 1, id, 0, &c), ncclInvalidArgument);
	says("splitShare is 2");
	c.splitShare = NCCL_CONFIG_UNDEF_INT;
	c.size = 8;
	IS(ncclCommInitRankConfig(&made, 1, id, 0, &c), ncclInvalidArgument);
	says("INITIALIZER");
	/* what lies behind the size of an older struct is not read */
	c.minCTAs = 4;
	c.maxCTAs = 2;
	c.size = offsetof(ncclConfig_t, cgaClusterSize);
	OK(ncclCommInitRankConfig(&made, 1, id, 0, &c));
	OK(ncclCommDestroy(made));
	memset(newer.more, 0xa5, sizeof(newer.more));
	newer.c.size = sizeof(newer);
	OK(ncclGetUniqueId(&id));
	OK(ncclCommInitRankConfig(&made, 1, id, 0, &newer.c));
	OK(ncclCommDestroy(made));
}

static void arguments(void)
{
	float *q = p + 512;

	IS(ncclAllReduce(p, q, 1, ncclFloat, ncclSum, NULL, 0), ncclInvalidArgument);
	IS(ncclAllReduce(p, q, 1, (ncclDataType_t)TYPES, ncclSum, comm, 0), ncclInvalidArgument);
	IS(ncclAllReduce(p, q, 1, (ncclDataType_t)-1, ncclSum, comm, 0), ncclInvalidArgument);
	IS(ncclAllReduce(p, q, 1, ncclFloat, (ncclRedOp_t)ncclNumOps, comm, 0), ncclInvalidArgument);
	IS(ncclAllReduce(p, q, 1, ncclFloat, (ncclRedOp_t)-1, comm, 0), ncclInvalidArgument);
	IS(ncclAllReduce(NULL, q, 1, ncclFloat, ncclSum, comm, 0), ncclInvalidArgument);
	says("sendbuff");
	IS(ncclAllReduce(p, NULL, 1, ncclFloat, ncclSum, comm, 0), ncclInvalidArgument);
	says("recvbuff");
	IS(ncclAllReduce(p, q, SIZE_MAX / 2, ncclFloat, ncclSum, comm, 0), ncclInvalidArgument);
	says("too large");
	/* in bytes it wraps, to something small */
	IS(ncclAllReduce(p, q, (1ull << 62) + 1, ncclFloat, ncclSum, comm, 0), ncclInvalidArgument);
	says("too large");
	IS(ncclReduce(p, q, 1, ncclFloat, ncclSum, 1, comm, 0), ncclInvalidArgument);
	says("root is 1 in");
	IS(ncclReduce(p, q, 1, ncclFloat, ncclSum, 2, comm, 0), ncclInvalidArgument);
	says("root is 2");
	IS(ncclBroadcast(p, q, 1, ncclFloat, -1, comm, 0), ncclInvalidArgument);
	IS(ncclSend(p, 1, ncclFloat, 1, comm, 0), ncclInvalidArgument);
	says("peer is 1");
	IS(ncclSend(p, 1, ncclFloat, 0, comm, 0), ncclInvalidUsage);
	IS(ncclAllReduce(p, q, 1, ncclFloat, ncclSum, comm, (cudaStream_t)0x1230), ncclUnhandledCudaError);
	/* nothing to do */
	OK(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comm, 0));
	OK(ncclSend(NULL, 0, ncclFloat, 0, comm, 0));
	/* a bad call of nothing is one, too */
	IS(ncclAllReduce(NULL, NULL, 0, (ncclDataType_t)TYPES, ncclSum, comm, 0), ncclInvalidArgument);
	OK(cudaDeviceSynchronize());
}

static double ones(size_t i, void *arg)
{
	(void)i;
	(void)arg;
	return 1;
}

static double zeros(size_t i, void *arg)
{
	(void)i;
	(void)arg;
	return 0;
}

static void groups(void)
{
	ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;

	IS(ncclGroupEnd(), ncclInvalidUsage);
	OK(ncclGroupStart());
	OK(ncclGroupEnd());
	/* sends to oneself: as many as receives */
	OK(ncclGroupStart());
	OK(ncclSend(p, 1, ncclFloat, 0, comm, 0));
	IS(ncclGroupEnd(), ncclInvalidUsage);
	says("1 times in a group, and receives 0");
	/* of groups in groups the outermost one's end sends */
	OK(cudaMemset(p + 512, 0, 4));
	OK(ncclGroupStart());
	OK(ncclGroupStart());
	OK(ncclAllReduce(p, p + 512, 1, ncclFloat, ncclSum, comm, 0));
	OK(ncclGroupEnd());
	EXPECT(p + 512, ncclFloat, 1, 0, zeros, NULL);
	OK(ncclGroupEnd());
	EXPECT(p + 512, ncclFloat, 1, 0, ones, NULL);
	OK(cudaMemset(p + 512, 0, 4));
	OK(ncclGroupStart());
	OK(ncclRecv(p + 512, 1, ncclFloat, 0, comm, 0));
	OK(ncclSend(p, 1, ncclFloat, 0, comm, 0));
	OK(ncclGroupEnd());
	EXPECT(p + 512, ncclFloat, 1, 0, ones, NULL);
	/* many calls, the last of which is the one that counts */
	OK(ncclGroupStart());
	for (int i = 0; i < 100; i++) {
		OK(ncclRecv(p + 512 + i, 1, ncclFloat, 0, comm, 0));
		OK(ncclSend(p + i, 1, ncclFloat, 0, comm, 0));
	}
	OK(ncclGroupEnd());
	EXPECT(p + 512, ncclFloat, 100, 0, ones, NULL);
	/* a simulation does nothing, and knows no time */
	info.magic++;
	IS(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
	info.magic--;
	info.size--;
	IS(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
	info.size++;
	OK(cudaMemset(p + 512, 0, 4));
	OK(ncclGroupStart());
	OK(ncclAllReduce(p, p + 512, 1, ncclFloat, ncclSum, comm, 0));
	OK(ncclGroupSimulateEnd(&info));
	IS(info.estimatedTime == NCCL_UNDEF_FLOAT, 1);
	EXPECT(p + 512, ncclFloat, 1, 0, zeros, NULL);
	IS(ncclGroupSimulateEnd(&info), ncclInvalidUsage);
	/* a group that fails makes no communicator */
	{
		ncclComm_t made = NULL;
		ncclUniqueId id;

		OK(ncclGetUniqueId(&id));
		OK(ncclGroupStart());
		OK(ncclCommInitRank(&made, 1, id, 0));
		IS(ncclSend(p, 1, ncclFloat, 7, comm, 0), ncclInvalidArgument);
		IS(ncclGroupEnd(), ncclInvalidArgument);
		IS(!made, 1);
		/* nor does the one after it fail */
		OK(ncclGroupStart());
		OK(ncclCommInitRank(&made, 1, id, 0));
		OK(ncclGroupEnd());
		OK(ncclCommDestroy(made));
	}
	/* streams of which one is captured */
	{
		cudaStream_t st, other;
		cudaGraph_t graph;

		OK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
		OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
		OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
		OK(ncclGroupStart());
		OK(ncclAllReduce(p, p, 1, ncclFloat, ncclMax, comm, other));
		OK(ncclAllReduce(p, p, 1, ncclFloat, ncclMax, comm, st));
		IS(ncclGroupEnd(), ncclInvalidUsage);
		says("others are not");
		OK(cudaStreamEndCapture(st, &graph));
		OK(cudaGraphDestroy(graph));
		OK(cudaStreamDestroy(st));
		OK(cudaStreamDestroy(other));
	}
	/* more calls than a record has */
	OK(ncclGroupStart());
	for (int i = 0; i < 1025; i++)
		OK(ncclAllReduce(p, p, 1, ncclFloat, ncclMax, comm, 0));
	IS(ncclGroupEnd(), ncclInvalidUsage);
	says("1025 calls");
}

static void memory(void)
{
	void *m = NULL, *h = (void *)1;

	IS(ncclMemAlloc(NULL, 4), ncclInvalidArgument);
	OK(ncclMemAlloc(&m, 1 << 20));
	OK(cudaMemset(m, 0, 1 << 20));
	OK(ncclCommRegister(comm, m, 1 << 20, &h));
	OK(ncclAllReduce(m, m, 1 << 18, ncclFloat, ncclSum, comm, 0));
	OK(ncclCommDeregister(comm, h));
	IS(ncclCommDeregister(comm, (void *)8), ncclInvalidArgument);
	IS(ncclCommRegister(comm, NULL, 4, &h), ncclInvalidArgument);
	IS(ncclCommRegister(comm, m, 4, NULL), ncclInvalidArgument);
	OK(cudaDeviceSynchronize());
	OK(ncclMemFree(m));
	OK(ncclMemFree(NULL));
	IS(ncclMemFree((void *)0x1234), ncclUnhandledCudaError);
}

static void operators(void)
{
	ncclRedOp_t op;
	float two = 2;

	IS(ncclRedOpCreatePreMulSum(NULL, &two, ncclFloat, ncclScalarHostImmediate, comm),
	   ncclInvalidArgument);
	IS(ncclRedOpCreatePreMulSum(&op, NULL, ncclFloat, ncclScalarHostImmediate, comm),
	   ncclInvalidArgument);
	IS(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat, (ncclScalarResidence_t)5, comm),
	   ncclInvalidArgument);
	IS(ncclRedOpCreatePreMulSum(&op, &two, (ncclDataType_t)TYPES, ncclScalarHostImmediate, comm), ncclInvalidArgument);
	IS(ncclRedOpCreatePreMulSum(&op, &two, (ncclDataType_t)-1, ncclScalarHostImmediate, comm), ncclInvalidArgument);
	IS(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
	says("built in");
	IS(ncclRedOpDestroy((ncclRedOp_t)(ncclNumOps + 1000), comm), ncclInvalidArgument);
	IS(ncclAllReduce(p, p, 1, ncclFloat, (ncclRedOp_t)(ncclNumOps + 1000), comm, 0), ncclInvalidArgument);
	OK(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat, ncclScalarHostImmediate, comm));
	IS(ncclAllReduce(p, p, 1, ncclDouble, op, comm, 0), ncclInvalidArgument);
	says("of datatype 7, the call of 8");
	OK(ncclRedOpDestroy(op, comm));
	IS(ncclRedOpDestroy(op, comm), ncclInvalidArgument);
	IS(ncclAllReduce(p, p, 1, ncclFloat, op, comm, 0), ncclInvalidArgument);
	/* as many as one likes; those that are gone make room */
	{
		ncclRedOp_t many[10], again;

		for (int i = 0; i < 10; i++) {
			two = i;
			OK(ncclRedOpCreatePreMulSum(&many[i], &two, ncclFloat, ncclScalarHostImmediate, comm));
		}
		OK(ncclRedOpDestroy(many[3], comm));
		two = 1;
		OK(ncclRedOpCreatePreMulSum(&again, &two, ncclFloat, ncclScalarHostImmediate, comm));
		IS(again, many[3]);
		OK(ncclAllReduce(p, p + 512, 1, ncclFloat, again, comm, 0));
		EXPECT(p + 512, ncclFloat, 1, 0, ones, NULL);
		OK(ncclAllReduce(p, p + 512, 1, ncclFloat, many[0], comm, 0));
		EXPECT(p + 512, ncclFloat, 1, 0, zeros, NULL);
		for (int i = 0; i < 10; i++)
			OK(ncclRedOpDestroy(many[i], comm));
	}
}

/* NCCL_COMM_BLOCKING counts more than the program; what is neither 0 nor 1 does not count. */
static void environment(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t c = NULL;
	ncclUniqueId id;

	OK(ncclGetUniqueId(&id));
	setenv("NCCL_COMM_BLOCKING", "0", 1);
	config.blocking = 1;
	IS(ncclCommInitRankConfig(&c, 2, id, 0, &config), ncclInProgress);	/* nobody else comes */
	OK(ncclCommAbort(c));
	for (int i = 0; i < 40; i++) {
		OK(ncclGetUniqueId(&id));
		setenv("NCCL_COMM_BLOCKING", i % 2 ? "2" : "1", 1);
		config.blocking = i % 2;
		OK(ncclCommInitRankConfig(&c, 1, id, 0, &config));
		OK(ncclCommDestroy(c));
	}
	unsetenv("NCCL_COMM_BLOCKING");
}

static void splits(void)
{
	ncclComm_t c = (ncclComm_t)1, ended = one();

	/* Refused at once, in a group, too. */
	OK(ncclCommFinalize(ended));
	OK(ncclGroupStart());
	IS(ncclCommSplit(ended, 0, 0, &c, NULL), ncclInvalidArgument);
	says("finalized");
	IS(!c, 1);
	IS(ncclGroupEnd(), ncclInvalidArgument);
	OK(ncclCommDestroy(ended));
	c = (ncclComm_t)1;
	IS(ncclCommSplit(comm, 0, 0, NULL, NULL), ncclInvalidArgument);
	IS(ncclCommSplit(comm, -2, 0, &c, NULL), ncclInvalidArgument);
	says("color is -2");
	IS(!c, 1);
	OK(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &c, NULL));
	IS(!c, 1);
	OK(ncclCommSplit(comm, INT_MAX, INT_MIN, &c, NULL));
	OK(ncclCommDestroy(c));
}

/* What is not supported says so by name. */
static void refused(void)
{
	IS(ncclCommRevoke(comm, 0), ncclInvalidUsage);
	says("ncclCommRevoke is not supported");
	IS(ncclCommShrink(comm, NULL, 0, NULL, NULL, 0), ncclInvalidUsage);
}

static void checked_pointers(void)
{
	ncclComm_t c;
	float host[4];

	setenv("NCCL_CHECK_POINTERS", "1", 1);
	c = one();
	IS(ncclAllReduce(host, p, 4, ncclFloat, ncclSum, c, 0), ncclInvalidArgument);
	says("can reach");
	OK(ncclAllReduce(p, p, 4, ncclFloat, ncclSum, c, 0));
	OK(ncclCommDestroy(c));
	unsetenv("NCCL_CHECK_POINTERS");
}

static const struct {
	const char *name;
	void (*fn)(void);
} tests[] = {
	{ "queries", queries }, { "creation", creation }, { "makers", makers },
	{ "configs", configs }, { "arguments", arguments }, { "groups", groups }, { "memory", memory },
	{ "operators", operators }, { "environment", environment }, { "splits", splits }, { "refused", refused }, { "checked_pointers", checked_pointers },
};

int main(void)
{
	p = device(ncclFloat, 1024, ones, NULL);
	comm = one();
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		tests[i].fn();
		printf("%s\n", tests[i].name);
		fflush(stdout);
	}
	OK(ncclCommDestroy(comm));
	return 0;
}
