// SPDX-License-Identifier: Apache-2.0
/*
 * cuts.cu - ranks that stand in a named moment until a file is there, for tests that save them meanwhile:
 * cuts FILE MOMENT GO
 *
 * In each moment some rank is late: it says "there" and waits for the file GO. The others say so and then
 * do what they can do without it. Afterwards each rank checks what it has, and prints it.
 */
#include "ranks.h"

#include <pthread.h>
#include <vector>

#define N	5000
#define LARGE	(1 << 19)	/* floats: more than what is sent before its receiver is there */

static const char *go;
static ncclComm_t everyone;
static cudaStream_t st[4];
static float *buf[4];

__global__ void fill(float *p, int n, float v)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = v + i % 7;
}

__global__ void change(float *p, int n, float by, float plus)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = p[i] * by + plus;
}

static void put_values(int b, float v, cudaStream_t s, int n = N)
{
	fill<<<(n + 255) / 256, 256, 0, s>>>(buf[b], n, v);
	OK(cudaGetLastError());
}

static void scale(int b, float by, float plus, cudaStream_t s, int n = N)
{
	change<<<(n + 255) / 256, 256, 0, s>>>(buf[b], n, by, plus);
	OK(cudaGetLastError());
}

static void there(void)
{
	printf("there\n");
	fflush(stdout);
}

static bool may_go(void)
{
	return !access(go, F_OK);
}

static void late(void)
{
	there();
	while (!may_go())
		usleep(5000);
}

static void show(const char *what, double v)
{
	printf("%s %a\n", what, v);
	fflush(stdout);
}

/* Elements 0, 1, and n-1 of what is at p; each is a * (v + i % 7) + c. */
static void shows(const char *what, const float *p, double a, double v, double c, int n = N)
{
	std::vector<float> h(n);

	OK(cudaMemcpy(h.data(), p, n * sizeof(float), cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++)
		if (h[i] != a * (v + i % 7) + c) {
			printf("rank %d: %s: element %d is %g, not %g\n", rank, what, i, h[i], a * (v + i % 7) + c);
			fflush(stdout);
			_exit(1);
		}
	show(what, h[0] + h[1] + h[n - 1]);
}

static void sum(int from, int to, cudaStream_t s, int n = N)
{
	OK(ncclAllReduce(buf[from], buf[to], n, ncclFloat, ncclSum, everyone, s));
}

/* What a sum over all ranks of values (v * (rank + 1) + i % 7) is: (v * sum + ranks * (i % 7)). */
static double total(void)
{
	return ranks * (ranks + 1) / 2;
}

static void *in_thread(void *(*fn)(void *), void *arg, pthread_t *t)
{
	OK(pthread_create(t, NULL, fn, arg));
	return NULL;
}

/* ------------------------------------------------------------------------------ moments */

/* Rank 0 alone computes, and uses the device; the others wait for it. */
static void barrier(void)
{
	put_values(0, 0, st[0]);
	if (!rank) {
		int rounds = 0;

		put_values(2, 3, st[1]);
		there();
		do {
			scale(2, 1, 0, st[1]);
			OK(cudaStreamSynchronize(st[1]));
			usleep(2000);
		} while (rounds++, !may_go());
	} else {
		there();
	}
	sum(0, 1, st[0]);
	OK(cudaStreamSynchronize(st[0]));
	shows("barrier", buf[1], ranks, 0, 0);
}

static void create(void)
{
	ncclUniqueId id = shared_id(1);
	ncclComm_t more = NULL;

	if (!rank)
		late();
	else
		there();
	OK(ncclCommInitRank(&more, ranks, id, rank));
	put_values(0, 1, st[0]);
	OK(ncclAllReduce(buf[0], buf[1], N, ncclFloat, ncclSum, more, st[0]));
	OK(cudaStreamSynchronize(st[0]));
	shows("created", buf[1], ranks, 1, 0);
	OK(ncclCommDestroy(more));
}

/* One that does not block, and others ask how far it is. */
static void progress(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id = shared_id(1);
	ncclComm_t more = NULL;
	ncclResult_t rc;

	config.blocking = 0;
	if (!rank)
		late();
	rc = ncclCommInitRankConfig(&more, ranks, id, rank, &config);
	if (rank)
		there();
	while (rc == ncclInProgress) {
		usleep(1000);
		OK(ncclCommGetAsyncError(more, &rc));
	}
	OK(rc);
	put_values(0, 1, st[0]);
	rc = ncclAllReduce(buf[0], buf[1], N, ncclFloat, ncclSum, more, st[0]);
	while (rc == ncclInProgress)
		OK(ncclCommGetAsyncError(more, &rc));
	OK(rc);
	OK(cudaStreamSynchronize(st[0]));
	shows("in progress", buf[1], ranks, 1, 0);
	rc = ncclCommFinalize(more);
	while (rc == ncclInProgress)
		OK(ncclCommGetAsyncError(more, &rc));
	OK(rc);
	OK(ncclCommDestroy(more));
}

static void split(void)
{
	ncclComm_t more = NULL;

	if (!rank)
		late();
	else
		there();
	OK(ncclCommSplit(everyone, 0, ranks - rank, &more, NULL));
	put_values(0, 1, st[0]);
	OK(ncclBroadcast(buf[0], buf[1], N, ncclFloat, 0, more, st[0]));
	OK(cudaStreamSynchronize(st[0]));
	shows("split", buf[1], 1, 1, 0);
	OK(ncclCommDestroy(more));
}

/* Of a group's pairs some have ended: the last rank receives from all, and rank 0 is late. */
static void group(void)
{
	int last = ranks - 1;

	put_values(0, 10 * rank, st[0], LARGE);
	if (rank != last) {
		if (!rank)
			late();
		else
			there();
		OK(ncclSend(buf[0], LARGE, ncclFloat, last, everyone, st[0]));
		OK(cudaStreamSynchronize(st[0]));
		show("sent", rank);
		return;
	}
	std::vector<float *> to(ranks);
	for (int r = 0; r < last; r++)
		OK(cudaMalloc(&to[r], LARGE * sizeof(float)));
	OK(ncclGroupStart());
	for (int r = 0; r < last; r++)
		OK(ncclRecv(to[r], LARGE, ncclFloat, r, everyone, st[0]));
	OK(ncclGroupEnd());
	change<<<(LARGE + 255) / 256, 256, 0, st[0]>>>(to[0], LARGE, 2, 1);
	there();
	OK(cudaStreamSynchronize(st[0]));
	for (int r = 0; r < last; r++)
		shows("received", to[r], r ? 1 : 2, 10 * r, r ? 0 : 1, LARGE);
}

#define SENDS	600	/* more than a proxy posts at a time */

/* Small sends complete before their receivers post: their memory is written again and freed. */
static void sends(void)
{
	if (rank == 1) {
		for (int i = 0; i < SENDS; i++) {
			put_values(0, i, st[0], 64);
			OK(ncclSend(buf[0], 64, ncclFloat, 0, everyone, st[0]));
			/* Beyond what can be posted these wait. */
			if (i == 100) {
				OK(cudaStreamSynchronize(st[0]));
				show("sent so far", i);
			}
		}
		put_values(0, -1, st[0]);
		there();
		OK(cudaStreamSynchronize(st[0]));
		shows("after sends", buf[0], 1, -1, 0);
	} else if (!rank) {
		late();
		for (int i = 0; i < SENDS; i++) {
			OK(ncclRecv(buf[1], 64, ncclFloat, 1, everyone, st[1]));
			if (i % 50 == 7) {
				OK(cudaStreamSynchronize(st[1]));
				shows("got", buf[1], 1, i, 0, 64);
			}
		}
		OK(cudaStreamSynchronize(st[1]));
		shows("got last", buf[1], 1, SENDS - 1, 0, 64);
	} else {
		there();
	}
}

/* Of a group a small send is in a buffer, and the receive has ended: the other rank has sent, and receives later. */
static void exchange(void)
{
	if (rank > 1) {
		there();
		return;
	}
	put_values(0, 10 * rank, st[0], 64);
	if (rank) {
		OK(ncclGroupStart());
		OK(ncclSend(buf[0], 64, ncclFloat, 0, everyone, st[0]));
		OK(ncclRecv(buf[1], 64, ncclFloat, 0, everyone, st[0]));
		OK(ncclGroupEnd());
		there();
	} else {
		usleep(300000);
		put_values(0, 1, st[0], 64);
		OK(ncclSend(buf[0], 64, ncclFloat, 1, everyone, st[0]));
		late();
		OK(ncclRecv(buf[1], 64, ncclFloat, 1, everyone, st[0]));
	}
	OK(cudaStreamSynchronize(st[0]));
	shows("exchanged", buf[1], 1, rank ? 1 : 10, 0, 64);
}

/*
 * Three sums in one stream, each behind an event that another one records anew; rank 0 is late for all of them. By slices they are
 * posted at once.
 */
static void chain(void)
{
	cudaEvent_t filled;

	OK(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
	if (!rank)
		late();
	for (int k = 0; k < 3; k++) {
		put_values(k, (k + 1) * (rank + 1), st[1]);
		OK(cudaEventRecord(filled, st[1]));
		OK(cudaStreamWaitEvent(st[0], filled, 0));
		sum(k, k, st[0]);
	}
	if (rank)
		there();
	OK(cudaStreamSynchronize(st[0]));
	for (int k = 0; k < 3; k++)
		shows("of a chain", buf[k], ranks, (k + 1) * total() / ranks, 0);
}

/* The sender's process has ended, and its proxy keeps what was sent: this is refused. */
static void sent(void)
{
	if (rank == 1) {
		for (int i = 0; i < 5; i++) {
			put_values(0, i, st[0], 64);
			OK(ncclSend(buf[0], 64, ncclFloat, 0, everyone, st[0]));
		}
		OK(cudaStreamSynchronize(st[0]));
		there();
		exit(0);
	}
	if (!rank)
		late();
	else
		there();
	for (int i = 0; i < 5 && !rank; i++) {
		OK(ncclRecv(buf[1], 64, ncclFloat, 1, everyone, st[1]));
		OK(cudaStreamSynchronize(st[1]));
		shows("from one that left", buf[1], 1, i, 0, 64);
	}
	exit(0);
}

/* An operation has failed, and its stream stands until the abort: this is refused. */
static void stands(void)
{
	put_values(0, 1, st[0], 64);
	OK(ncclAllReduce(buf[0], buf[0], 64 - (rank == 1), ncclFloat, ncclSum, everyone, st[0]));
	IS(cudaStreamSynchronize(st[0]), cudaErrorExternalDevice);
	late();
	OK(ncclCommAbort(everyone));
	OK(cudaStreamSynchronize(st[0]));
	show("after the abort", rank);
	exit(0);
}

/* The program keeps communicators that could not be made: more of them, and with more ranks, than a job can have. */
static void failed(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	std::vector<ncclComm_t> kept(2000);
	ncclUniqueId id = shared_id(1);

	config.blocking = 0;
	for (size_t i = 0; i < kept.size();) {
		ncclResult_t rc = ncclCommInitRankConfig(&kept[i], 2000, id, rank, &config);

		/* One that has failed by the end of the call is no communicator. */
		while (rc == ncclInProgress) {
			usleep(100);
			OK(ncclCommGetAsyncError(kept[i], &rc));
		}
		IS(!rc, 0);
		i += !!kept[i];
	}
	late();
	for (auto c : kept) {
		ncclResult_t rc;

		OK(ncclCommGetAsyncError(c, &rc));
		IS(!rc, 0);
		OK(ncclCommAbort(c));
	}
	show("kept", kept.size());
}

static int handed;

static void *hands_in(void *arg)
{
	OK(cudaSetDevice(*(int *)arg));
	for (int i = 1; i <= 80000; i++) {
		OK(cudaMemsetAsync(buf[2], i, 4, st[0]));
		__atomic_store_n(&handed, i, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Behind a rank that is late a stream has as much as it may, and a thread waits for room there. */
static void crowded(void)
{
	pthread_t thread;
	int device, before;
	float last;

	put_values(0, rank, st[0]);
	if (!rank)
		late();
	sum(0, 1, st[0]);
	OK(cudaGetDevice(&device));
	OK((cudaError_t)pthread_create(&thread, NULL, hands_in, &device));
	do {
		before = __atomic_load_n(&handed, __ATOMIC_RELAXED);
		usleep(200000);
	} while (rank && (before < 60000 || before != __atomic_load_n(&handed, __ATOMIC_RELAXED)));
	if (rank)
		there();
	OK((cudaError_t)pthread_join(thread, NULL));
	OK(cudaMemcpyAsync(&last, buf[2], 4, cudaMemcpyDeviceToHost, st[0]));
	OK(cudaStreamSynchronize(st[0]));
	shows("behind it", buf[1], ranks, (total() - ranks) / ranks, 0);
	show("the last one", last);
}

/* A rank has ended, and nobody needs it any more. The others have a communicator without it. */
static void left(void)
{
	ncclComm_t two = NULL;

	OK(ncclCommSplit(everyone, rank == 1 ? NCCL_SPLIT_NOCOLOR : 0, rank, &two, NULL));
	if (rank == 1) {
		OK(ncclCommDestroy(everyone));
		there();
		exit(0);
	}
	put_values(0, rank, st[0]);
	if (!rank)
		late();
	else
		there();
	OK(ncclAllReduce(buf[0], buf[1], N, ncclFloat, ncclSum, two, st[0]));
	OK(cudaStreamSynchronize(st[0]));
	shows("of two", buf[1], 2, 1, 0);
	OK(ncclCommDestroy(two));
	OK(ncclCommDestroy(everyone));
	exit(0);
}

/* Events behind what is parked, recorded again and again; a stream and an event are destroyed meanwhile. */
static void events(void)
{
	cudaStream_t gone;
	cudaEvent_t e, f, dead;

	put_values(0, 1, st[0]);
	if (!rank)
		late();
	OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	OK(cudaEventCreateWithFlags(&f, cudaEventDisableTiming));
	OK(cudaEventCreateWithFlags(&dead, cudaEventDisableTiming));
	OK(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
	OK(cudaEventRecord(f, st[3]));			/* runs at once */
	OK(cudaStreamSynchronize(st[3]));
	sum(0, 1, st[0]);
	OK(cudaStreamWaitEvent(st[0], f, 0));		/* the recording above */
	OK(cudaEventRecord(e, st[0]));			/* 1 */
	OK(cudaStreamWaitEvent(st[1], e, 0));
	OK(cudaMemcpyAsync(buf[2], buf[1], N * sizeof(float), cudaMemcpyDeviceToDevice, st[1]));
	scale(2, 2, 1, st[1]);
	OK(cudaEventRecord(e, st[1]));			/* 2 */
	OK(cudaStreamWaitEvent(st[2], e, 0));
	OK(cudaMemcpyAsync(buf[3], buf[2], N * sizeof(float), cudaMemcpyDeviceToDevice, st[2]));
	OK(cudaEventRecord(e, st[2]));			/* 3 */
	OK(cudaStreamWaitEvent(gone, e, 0));
	OK(cudaEventRecord(e, st[3]));			/* 4 runs at once: st[3] is idle */
	OK(cudaStreamWaitEvent(st[2], e, 0));
	OK(cudaEventRecord(f, st[1]));			/* parked; the wait of st[0] is for the earlier one */
	OK(cudaStreamWaitEvent(gone, f, 0));
	OK(cudaEventRecord(dead, st[1]));
	OK(cudaStreamWaitEvent(gone, dead, 0));
	OK(cudaEventDestroy(dead));
	change<<<(N + 255) / 256, 256, 0, gone>>>(buf[2], N, 3, 0);
	OK(cudaEventRecord(f, gone));
	OK(cudaStreamWaitEvent(st[1], f, 0));
	scale(2, 1, 5, st[1]);
	OK(cudaStreamDestroy(gone));
	OK(cudaStreamSynchronize(st[3]));
	OK(cudaEventQuery(e));				/* 4 */
	if (rank && !may_go())
		IS(cudaEventQuery(f), cudaErrorNotReady);
	if (rank)
		there();
	OK(cudaEventSynchronize(f));
	OK(cudaStreamSynchronize(st[1]));
	OK(cudaStreamSynchronize(st[2]));
	shows("before it was changed", buf[3], 2 * ranks, 1, 1);
	shows("by the stream that is gone", buf[2], 6 * ranks, 1, 8);
	OK(cudaEventDestroy(e));
	OK(cudaEventDestroy(f));
}

struct wait {
	int how, rc;
	cudaEvent_t e;
	float *host;
	pthread_t thread;
};

static void *waits(void *arg)
{
	struct wait *w = (struct wait *)arg;

	OK(cudaSetDevice(0 + rank));
	switch (w->how) {
	case 0: w->rc = cudaStreamSynchronize(st[0]); break;
	case 1: w->rc = cudaDeviceSynchronize(); break;
	case 2: w->rc = cudaEventSynchronize(w->e); break;
	case 3: w->rc = cudaMemcpy(w->host, buf[1], N * sizeof(float), cudaMemcpyDeviceToHost); break;
	case 4: w->rc = cudaStreamSynchronize(0); break;
	}
	return NULL;
}

/* All ways to wait are open, several times each. st[0] blocks with the legacy stream here. */
static void syncs(void)
{
	struct wait w[10] = {};
	std::vector<float> host(N);
	cudaEvent_t e, b;

	OK(cudaStreamDestroy(st[0]));
	OK(cudaStreamCreate(&st[0]));
	OK(cudaEventCreate(&e));
	OK(cudaEventCreateWithFlags(&b, cudaEventBlockingSync));
	put_values(0, 2, st[0]);
	if (!rank)
		late();
	sum(0, 1, st[0]);
	OK(cudaEventRecord(e, st[0]));
	OK(cudaEventRecord(b, st[0]));
	for (int i = 0; i < 10; i++) {
		w[i].how = i % 5;
		w[i].host = i == 3 ? host.data() : (float *)malloc(N * sizeof(float));
		w[i].e = i < 5 ? e : b;
		in_thread(waits, &w[i], &w[i].thread);
	}
	if (rank) {
		usleep(200000);
		there();
	}
	for (int i = 0; i < 10; i++) {
		OK(pthread_join(w[i].thread, NULL));
		OK(w[i].rc);
	}
	for (int i = 0; i < N; i++)
		IS(host[i], ranks * (2 + i % 7));
	shows("synchronised", buf[1], ranks, 2, 0);
}

/* Communicators end while operations of theirs wait. */
static void ends(void)
{
	ncclComm_t x = world(1), y = world(2), z = NULL;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclResult_t rc;

	config.blocking = 0;
	rc = ncclCommInitRankConfig(&z, ranks, shared_id(3), rank, &config);
	while (rc == ncclInProgress)
		OK(ncclCommGetAsyncError(z, &rc));
	OK(rc);
	put_values(0, 1, st[0]);
	OK(cudaStreamSynchronize(st[0]));
	if (!rank)
		late();
	OK(ncclAllReduce(buf[0], buf[1], N, ncclFloat, ncclSum, x, st[0]));
	OK(ncclAllReduce(buf[0], buf[2], N, ncclFloat, ncclSum, y, st[1]));
	do
		rc = ncclAllReduce(buf[0], buf[3], N, ncclFloat, ncclSum, z, st[2]);
	while (rc == ncclInProgress && !ncclCommGetAsyncError(z, &rc) && false);
	rc = ncclCommFinalize(z);
	if (rank)
		there();
	OK(ncclCommFinalize(x));
	OK(ncclCommDestroy(x));
	OK(ncclCommDestroy(y));
	while (rc == ncclInProgress)
		OK(ncclCommGetAsyncError(z, &rc));
	OK(rc);
	OK(ncclCommDestroy(z));
	OK(cudaDeviceSynchronize());
	shows("finalised", buf[1], ranks, 1, 0);
	shows("destroyed", buf[2], ranks, 1, 0);
	shows("finalised, not blocking", buf[3], ranks, 1, 0);
}

/* One rank aborts what it has posted, when the file is there; the others fail. */
static void aborted(void)
{
	ncclComm_t more = world(1);
	ncclResult_t rc = ncclSuccess;

	put_values(0, 1, st[0]);
	if (!rank) {
		late();
		OK(ncclCommAbort(more));
	} else {
		OK(ncclAllReduce(buf[0], buf[1], N, ncclFloat, ncclSum, more, st[0]));
		scale(0, 2, 0, st[0]);
		there();
		for (int i = 0; i < 60000 && !rc; i++) {
			OK(ncclCommGetAsyncError(more, &rc));
			usleep(1000);
		}
		show("failed", rc != ncclSuccess);
		OK(ncclCommAbort(more));
	}
	OK(cudaDeviceSynchronize());
	put_values(0, 1, st[0]);
	sum(0, 1, st[0]);
	OK(cudaStreamSynchronize(st[0]));
	shows("and on", buf[1], ranks, 1, 0);
}

/* A rank aborts its own operation, which waits, after it has been saved with it. */
static void abandons(void)
{
	ncclComm_t more = world(1);

	put_values(0, 1, st[0]);
	if (rank) {
		OK(ncclAllReduce(buf[0], buf[1], N, ncclFloat, ncclSum, more, st[0]));
		scale(0, 2, 0, st[0]);
		late();
	} else {
		late();
	}
	OK(ncclCommAbort(more));
	OK(cudaStreamSynchronize(st[0]));
	put_values(0, 1, st[0]);
	sum(0, 1, st[0]);
	OK(cudaStreamSynchronize(st[0]));
	shows("abandoned", buf[1], ranks, 1, 0);
}

/* Launches of a graph with two collectives: of the first launch one has been done. */
static void graph(void)
{
	cudaGraph_t g;
	cudaGraphExec_t x;

	OK(cudaStreamBeginCapture(st[0], cudaStreamCaptureModeGlobal));
	put_values(0, 1, st[0]);
	sum(0, 1, st[0]);
	scale(1, 2, 1, st[0]);
	sum(1, 2, st[0]);
	scale(2, 1, 3, st[0]);
	OK(cudaMemcpyAsync(buf[3], buf[2], N * sizeof(float), cudaMemcpyDeviceToDevice, st[0]));
	OK(cudaStreamEndCapture(st[0], &g));
	OK(cudaGraphInstantiate(&x, g, 0));
	OK(cudaGraphDestroy(g));
	if (rank) {
		for (int i = 0; i < 3; i++)
			OK(cudaGraphLaunch(x, st[0]));
		OK(cudaGraphExecDestroy(x));
		there();
	} else {
		/* The same operations, not in a graph. */
		put_values(0, 1, st[0]);
		sum(0, 1, st[0]);
		scale(1, 2, 1, st[0]);
		OK(cudaStreamSynchronize(st[0]));
		show("half", 1);
		late();
		sum(1, 2, st[0]);
		scale(2, 1, 3, st[0]);
		for (int i = 0; i < 2; i++)
			OK(cudaGraphLaunch(x, st[0]));
		OK(cudaGraphExecDestroy(x));
		OK(cudaMemcpyAsync(buf[3], buf[2], N * sizeof(float), cudaMemcpyDeviceToDevice, st[0]));
	}
	OK(cudaStreamSynchronize(st[0]));
	shows("graph", buf[3], 2 * ranks * ranks, 1, ranks + 3);
}

static int called;

static void on_host(void *arg)
{
	called += *(int *)arg;
}

/* Copies, host functions, memory of a pool, and destroyed memory behind a collective. */
static void parked(void)
{
	static int one = 1, ten = 10;
	std::vector<float> host(3 * LARGE), back(3 * LARGE);
	float *big, *pool, *pinned;

	for (int i = 0; i < 3 * LARGE; i++)
		host[i] = i;
	OK(cudaMalloc(&big, 3 * LARGE * sizeof(float)));
	OK(cudaMallocHost(&pinned, LARGE * sizeof(float)));
	for (int i = 0; i < LARGE; i++)
		pinned[i] = 5;
	put_values(0, 1, st[0]);
	if (!rank)
		late();
	OK(cudaLaunchHostFunc(st[0], on_host, &one));
	sum(0, 1, st[0]);
	OK(cudaLaunchHostFunc(st[0], on_host, &ten));
	for (int i = 0; i < 3; i++)
		OK(cudaMemcpyAsync(big + i * LARGE, host.data() + i * LARGE, LARGE * sizeof(float),
				   cudaMemcpyHostToDevice, st[0]));
	OK(cudaMallocAsync(&pool, N * sizeof(float), st[0]));
	OK(cudaMemcpyAsync(pool, buf[1], N * sizeof(float), cudaMemcpyDeviceToDevice, st[0]));
	change<<<(N + 255) / 256, 256, 0, st[0]>>>(pool, N, 3, 1);
	OK(cudaMemcpyAsync(buf[2], pool, N * sizeof(float), cudaMemcpyDeviceToDevice, st[0]));
	OK(cudaFreeAsync(pool, st[0]));
	OK(cudaMemcpyAsync(buf[3], pinned, N * sizeof(float), cudaMemcpyHostToDevice, st[0]));
	OK(cudaMemcpyAsync(pinned, big, LARGE * sizeof(float), cudaMemcpyDeviceToHost, st[0]));
	if (rank) {
		usleep(100000);
		there();
	}
	OK(cudaMemcpyAsync(back.data(), big, 3 * LARGE * sizeof(float), cudaMemcpyDeviceToHost, st[0]));
	OK(cudaStreamSynchronize(st[0]));
	IS(called, 11);
	IS(memcmp(host.data(), back.data(), 3 * LARGE * sizeof(float)), 0);
	IS(memcmp(host.data(), pinned, LARGE * sizeof(float)), 0);
	shows("pool", buf[2], 3 * ranks, 1, 1);
	shows("pinned", buf[3], 0, 0, 5);
}

/* All that can be posted at a time: each of many streams holds one, and one more of each is parked. */
static void many(void)
{
	std::vector<cudaStream_t> s(40);
	std::vector<ncclComm_t> c(4);

	for (auto &x : s)
		OK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
	for (int i = 0; i < 4; i++)
		OK(ncclCommSplit(everyone, 0, rank, &c[i], NULL));
	put_values(0, 1, st[0]);
	put_values(1, 0, st[0]);
	OK(cudaStreamSynchronize(st[0]));
	if (!rank)
		late();
	for (int k = 0; k < 3; k++)
		for (size_t i = 0; i < s.size(); i++)
			OK(ncclAllReduce(buf[0] + 64 * i, buf[1] + 64 * i, 64, ncclFloat, k ? ncclMax : ncclSum, c[i % 4], s[i]));
	if (rank)
		there();
	for (auto &x : s)
		OK(cudaStreamDestroy(x));
	OK(cudaDeviceSynchronize());
	put_values(2, 1, st[0]);
	OK(cudaMemcpyAsync(buf[1] + 40 * 64, buf[0] + 40 * 64, (N - 40 * 64) * sizeof(float), cudaMemcpyDeviceToDevice, st[0]));
	OK(cudaStreamSynchronize(st[0]));
	shows("many", buf[1], 1, 1, 0);
	for (auto x : c)
		OK(ncclCommDestroy(x));
}

/* Rank 0 has done nothing on a device yet. */
static void nothing_yet(void)
{
}

static const struct {
	const char *name;
	void (*fn)(void);
} moments[] = {
	{ "barrier", barrier }, { "create", create }, { "progress", progress }, { "split", split },
	{ "group", group }, { "sends", sends }, { "exchange", exchange }, { "chain", chain }, { "sent", sent }, { "stands", stands }, { "crowded", crowded },
	{ "failed", failed },
	{ "left", left }, { "events", events }, { "syncs", syncs },
	{ "ends", ends }, { "aborted", aborted }, { "abandons", abandons }, { "graph", graph },
	{ "parked", parked }, { "many", many }, { "first", nothing_yet },
};

int main(int argc, char **argv)
{
	size_t i;

	if (argc == 2 && !strcmp(argv[1], "moments"))
		for (const auto &m : moments)
			printf("%s\n", m.name);
	if (argc != 4)
		return argc != 2;
	go = argv[3];
	for (i = 0; strcmp(moments[i].name, argv[2]);)
		if (++i == sizeof(moments) / sizeof(moments[0]))
			return 2;
	if (!strcmp(argv[2], "first") && !strcmp(getenv("RANK"), "0"))
		late();
	begin(argc, argv);
	if (!strcmp(argv[2], "first") && rank)
		there();
	for (int k = 0; k < 4; k++) {
		OK(cudaStreamCreateWithFlags(&st[k], cudaStreamNonBlocking));
		OK(cudaMalloc(&buf[k], LARGE * sizeof(float)));
	}
	everyone = world(0);
	moments[i].fn();
	put_values(0, rank, st[0]);
	sum(0, 1, st[0]);
	OK(cudaStreamSynchronize(st[0]));
	shows("all", buf[1], ranks, (total() - ranks) / ranks, 0);
	OK(ncclCommDestroy(everyone));
	show("end", rank);
	return 0;
}
