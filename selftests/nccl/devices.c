// SPDX-License-Identifier: Apache-2.0
/*
 * devices.c - one process with several devices: ncclCommInitAll, and groups of calls for all of them
 */
#include <pthread.h>

#include "ranks.h"

#define MAX	8
#define COUNT	1000

static int n;

static double sum_of_all(size_t i, void *arg)
{
	double v = 0;

	(void)arg;
	for (int r = 0; r < n; r++)
		v += value(r, i);
	return v;
}

static double of(size_t i, void *arg)
{
	return value(*(int *)arg, i);
}

static void all_reduce(ncclComm_t *comm, int ncomms, size_t count, void **p, cudaStream_t *st)
{
	OK(ncclGroupStart());
	for (int d = 0; d < ncomms; d++)
		OK(ncclAllReduce(p[d], p[d], count, ncclFloat, ncclSum, comm[d], st[d]));
	OK(ncclGroupEnd());
}

/* Graphs of all devices are instantiated and launched while one device is current. */
static void captured(ncclComm_t *comm, const int *list, void **p, cudaStream_t *st, size_t count)
{
	cudaGraph_t graph[MAX];
	cudaGraphExec_t exec[MAX];
	void *to[MAX];

	for (int d = 0; d < n; d++) {
		OK(cudaSetDevice(list[d]));
		to[d] = device(ncclFloat, COUNT, of, &d);
	}
	for (int d = 0; d < n; d++) {
		OK(cudaSetDevice(list[d]));
		OK(cudaStreamBeginCapture(st[d], cudaStreamCaptureModeThreadLocal));
		if (count)
			OK(cudaMemcpyAsync(to[d], p[d], count * 4, cudaMemcpyDeviceToDevice, st[d]));
	}
	all_reduce(comm, n, count, to, st);
	for (int d = 0; d < n; d++)
		OK(cudaStreamEndCapture(st[d], &graph[d]));
	for (int d = 0; d < n; d++)
		OK(cudaGraphInstantiate(&exec[d], graph[d], 0));
	for (int d = 0; d < n; d++) {
		OK(cudaGraphUpload(exec[d], st[d]));
		OK(cudaGraphLaunch(exec[d], st[d]));
	}
	for (int d = 0; d < n; d++) {
		OK(cudaSetDevice(list[d]));
		if (count)
			EXPECT(to[d], ncclFloat, COUNT, st[d], sum_of_all, NULL);
		OK(cudaStreamSynchronize(st[d]));
		OK(cudaGraphExecDestroy(exec[d]));
		OK(cudaGraphDestroy(graph[d]));
		OK(cudaFree(to[d]));
	}
}

static void refusals(void)
{
	ncclComm_t comm[MAX];
	int twice[] = { 0, 0 }, beyond[] = { 99 };

	IS(ncclCommInitAll(NULL, n, NULL), ncclInvalidArgument);
	IS(ncclCommInitAll(comm, -1, NULL), ncclInvalidArgument);
	IS(ncclCommInitAll(comm, 2, twice), ncclInvalidUsage);
	says("Duplicate GPU");
	IS(ncclCommInitAll(comm, 1, beyond), ncclUnhandledCudaError);
	IS(ncclCommInitAll(comm, 99, NULL), ncclInvalidArgument);
}

#define STANDS(x)	IS(x, cudaErrorExternalDevice)
#define BYTES		(COUNT * 4)

struct waiting {
	cudaStream_t st;
	int device;
	cudaError_t rc;
};

static void *waits(void *arg)
{
	struct waiting *w = arg;

	OK(cudaSetDevice(w->device));
	w->rc = cudaStreamSynchronize(w->st);
	return NULL;
}

static cudaStream_t stream_on(int d)
{
	cudaStream_t st;

	OK(cudaSetDevice(d));
	OK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	return st;
}

static bool untouched(const uint8_t *p)
{
	for (size_t i = 0; i < BYTES; i++)
		if (p[i] != 0x33)
			return false;
	return true;
}

/* Device 0's operation fails: with two devices one that cannot be posted, else one whose ranks differ, later. */
static void fails(ncclComm_t *comm, void **p, cudaStream_t *st, cudaEvent_t e, bool now)
{
	int both = n > 2;
	cudaError_t rc;

	OK(cudaSetDevice(0));
	if (!both && now) {
		OK(ncclAllReduce((void *)0x1000, p[0], COUNT, ncclFloat, ncclSum, comm[0], st[0]));
		/* the first call that hears of the address tells of it, once */
		rc = cudaDeviceSynchronize();
		if (rc == cudaErrorInvalidValue)
			rc = cudaDeviceSynchronize();
		else
			IS(cudaStreamWaitEvent(st[0], e, 0), cudaErrorInvalidValue);
		STANDS(rc);
		cudaGetLastError();
	}
	if (both)
		OK(ncclAllReduce(p[!now], p[!now], COUNT - !now, ncclFloat, ncclSum, comm[!now], st[!now]));
}

/*
 * The last device, which has no part in a communicator, waits for device 0's stream by an event, and for a copy behind
 * it; another stream of device 0 waits for that. The operation in device 0's stream fails: all these waits do.
 */
static void stands(void)
{
	static uint8_t pageable[BYTES];
	int list[] = { 0, 1 }, last = n - 1;
	cudaStream_t st[2], by, back, beside;
	struct waiting w[2];
	ncclComm_t comm[2];
	void *p[2], *q, *r, *pinned;
	cudaEvent_t e, f;
	pthread_t t[2];
	cudaError_t rc;

	for (int d = 0; d < 2; d++) {
		st[d] = stream_on(d);
		p[d] = device(ncclFloat, COUNT, of, &d);
	}
	back = stream_on(0);
	OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	by = stream_on(last);
	beside = stream_on(last);
	OK(cudaEventCreateWithFlags(&f, cudaEventDisableTiming));
	q = device(ncclFloat, COUNT, of, &last);
	r = device(ncclFloat, COUNT, of, &last);
	OK(cudaMallocHost(&pinned, 2 * BYTES));
	memset(pinned, 0x33, BYTES);
	memset(pageable, 0x33, BYTES);
	OK(ncclCommInitAll(comm, n > 2 ? 2 : 1, list));
	fails(comm, p, st, e, true);
	OK(cudaSetDevice(0));
	OK(cudaEventRecord(e, st[0]));
	OK(cudaMemcpyPeerAsync(r, last, p[0], 0, BYTES, st[0]));
	OK(cudaSetDevice(last));
	OK(cudaStreamWaitEvent(by, e, 0));
	OK(cudaMemcpyAsync(pinned, q, BYTES, cudaMemcpyDeviceToHost, by));
	OK(cudaEventRecord(f, by));
	OK(cudaSetDevice(0));
	OK(cudaStreamWaitEvent(back, f, 0));
	w[0] = (struct waiting){ .st = by, .device = last };
	w[1] = (struct waiting){ .st = back, .device = 0 };
	for (int i = 0; i < 2; i++)
		OK(pthread_create(&t[i], NULL, waits, &w[i]));
	usleep(50000);
	fails(comm, p, st, e, false);
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i], NULL);
		STANDS(w[i].rc);
	}
	STANDS(cudaStreamSynchronize(back));
	STANDS(cudaStreamSynchronize(st[0]));
	OK(cudaSetDevice(last));
	STANDS(cudaStreamSynchronize(by));
	STANDS(cudaEventSynchronize(f));
	STANDS(cudaMemcpyAsync(pageable, q, BYTES, cudaMemcpyDeviceToHost, by));
	STANDS(cudaDeviceSynchronize());
	while ((rc = cudaStreamQuery(by)) == cudaErrorNotReady)
		usleep(10000);
	STANDS(rc);
	cudaGetLastError();
	OK(cudaMemcpyAsync((char *)pinned + BYTES, r, BYTES, cudaMemcpyDeviceToHost, beside));
	OK(cudaStreamSynchronize(beside));
	OK(!untouched(pinned) || !untouched(pageable));
	for (int i = 0; i < COUNT; i++)
		IS(get((char *)pinned + BYTES, i, ncclFloat), bits_of(ncclFloat, value(last, i)));
	for (int i = 0; i < (n > 2 ? 2 : 1); i++)
		OK(ncclCommAbort(comm[i]));
	OK(cudaStreamSynchronize(back));
	OK(cudaStreamSynchronize(by));
	OK(cudaDeviceSynchronize());
	OK(cudaSetDevice(0));
	OK(cudaStreamSynchronize(st[0]));
	OK(cudaDeviceSynchronize());
	for (int i = 0; i < COUNT; i++)
		IS(get(pinned, i, ncclFloat), bits_of(ncclFloat, value(last, i)));
	OK(untouched(pageable) - 1);
}

int main(void)
{
	ncclComm_t comm[MAX], half[MAX];
	cudaStream_t st[MAX];
	void *p[MAX];
	int list[MAX], v;

	OK(cudaGetDeviceCount(&n));
	IS(n >= 2 && n <= MAX, 1);
	refusals();
	for (int d = 0; d < n; d++) {
		list[d] = n - 1 - d;
		OK(cudaSetDevice(list[d]));
		OK(cudaStreamCreateWithFlags(&st[d], cudaStreamNonBlocking));
		p[d] = device(ncclFloat, COUNT, of, &d);
	}
	OK(cudaSetDevice(0));
	OK(ncclCommInitAll(comm, n, list));
	captured(comm, list, p, st, COUNT);
	captured(comm, list, p, st, 0);
	OK(cudaSetDevice(0));
	for (int d = 0; d < n; d++) {
		OK(ncclCommCuDevice(comm[d], &v));
		IS(v, list[d]);
		OK(ncclCommUserRank(comm[d], &v));
		IS(v, d);
	}
	/* the current device does not matter, and stays */
	all_reduce(comm, n, COUNT, p, st);
	OK(cudaGetDevice(&v));
	IS(v, 0);
	for (int d = 0; d < n; d++) {
		OK(cudaSetDevice(list[d]));
		EXPECT(p[d], ncclFloat, COUNT, st[d], sum_of_all, NULL);
	}
	/* a stream of another device */
	IS(ncclAllReduce(p[0], p[0], COUNT, ncclFloat, ncclSum, comm[0], st[1]), ncclUnhandledCudaError);
	/* splits of all in one group, then as many communicators as ranks */
	OK(ncclGroupStart());
	for (int d = 0; d < n; d++)
		OK(ncclCommSplit(comm[d], d % 2, 0, &half[d], NULL));
	OK(ncclGroupEnd());
	for (int d = 0; d < n; d++) {
		OK(ncclCommCount(half[d], &v));
		IS(v, (n + (d % 2 == 0)) / 2);
	}
	all_reduce(half, n, COUNT, p, st);
	for (int d = 0; d < n; d++) {
		OK(cudaSetDevice(list[d]));
		OK(cudaStreamSynchronize(st[d]));
		OK(ncclCommDestroy(half[d]));
	}
	for (int d = 0; d < n; d++)
		OK(ncclCommDestroy(comm[d]));
	/* the same by ids in a group */
	{
		ncclUniqueId id;

		OK(ncclGetUniqueId(&id));
		OK(ncclGroupStart());
		for (int d = 0; d < n; d++) {
			OK(cudaSetDevice(d));
			OK(ncclCommInitRank(&comm[d], n, id, d));
		}
		OK(ncclGroupEnd());
	}
	for (int d = 0; d < n; d++)
		OK(ncclCommFinalize(comm[d]));
	for (int d = 0; d < n; d++)
		OK(ncclCommDestroy(comm[d]));
	stands();
	return 0;
}
