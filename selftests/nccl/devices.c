// SPDX-License-Identifier: Apache-2.0
/*
 * devices.c - one process with several devices: ncclCommInitAll, and groups of calls for all of them
 */
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
	return 0;
}
