// SPDX-License-Identifier: Apache-2.0
/*
 * capture.cu - stream capture, with forks and joins; captured graphs launched and updated.
 */
#include "../job.cuh"

#include <pthread.h>

#define N 3000

__global__ void axpb(unsigned int *p, unsigned int a, unsigned int b, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = p[i] * a + b;
}

__global__ void join2(unsigned int *out, const unsigned int *x, const unsigned int *y, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = x[i] ^ (y[i] << 1);
}

static const int grid = (N + 127) / 128;
static cudaStream_t s, t, u;
static cudaEvent_t fork_e, join_t, join_u;
static unsigned int *x, *y, *z, *host;
static int calls;

static void CUDART_CB count(void *p)
{
	++*(int *)p;
}

/* x and y on branches of their own, z from both; then back to the host. */
static cudaGraph_t record(unsigned int a, unsigned int b)
{
	cudaGraph_t g;

	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	CHECK(cudaEventRecord(fork_e, s));
	CHECK(cudaStreamWaitEvent(t, fork_e, 0));
	CHECK(cudaStreamWaitEvent(u, fork_e, 0));
	axpb<<<grid, 128, 0, t>>>(x, a, b, N);
	axpb<<<grid, 128, 0, t>>>(x, 3, 1, N);
	axpb<<<grid, 128, 0, u>>>(y, b, a, N);
	CHECK(cudaMemsetAsync(z, 0, N * 4, s));
	CHECK(cudaEventRecord(join_t, t));
	CHECK(cudaEventRecord(join_u, u));
	CHECK(cudaStreamWaitEvent(s, join_t, 0));
	CHECK(cudaStreamWaitEvent(s, join_u, 0));
	join2<<<grid, 128, 0, s>>>(z, x, y, N);
	CHECK(cudaMemcpyAsync(host, z, N * 4, cudaMemcpyDeviceToHost, s));
	CHECK(cudaLaunchHostFunc(s, count, &calls));
	CHECK(cudaStreamEndCapture(s, &g));
	return g;
}

static void step(std::vector<unsigned int> &hx, std::vector<unsigned int> &hy, unsigned int a,
		 unsigned int b)
{
	for (int i = 0; i < N; i++) {
		hx[i] = (hx[i] * a + b) * 3 + 1;
		hy[i] = hy[i] * b + a;
	}
}

static void compare(const std::vector<unsigned int> &hx, const std::vector<unsigned int> &hy)
{
	for (int i = 0; i < N; i++)
		EXPECT_EQ(host[i], hx[i] ^ (hy[i] << 1));
	sum_bytes(host, N * 4);
}

static void replay(void)
{
	std::vector<unsigned int> hx(N), hy(N);
	cudaGraphExecUpdateResultInfo info;
	cudaGraphExec_t e;
	cudaGraph_t g, g2;
	size_t nodes;
	unsigned int seed = 5;

	for (int i = 0; i < N; i++) {
		hx[i] = rnd(&seed);
		hy[i] = rnd(&seed);
	}
	x = to_device(hx);
	y = to_device(hy);
	z = to_device(hx);
	CHECK(cudaMallocHost(&host, N * 4));
	g = record(5, 7);
	CHECK(cudaDeviceSynchronize());
	EXPECT_EQ(calls, 0);			/* recorded, not run */
	CHECK(cudaGraphGetNodes(g, NULL, &nodes));
	EXPECT_EQ(nodes, 7);
	CHECK(cudaGraphGetRootNodes(g, NULL, &nodes));
	EXPECT_EQ(nodes, 3);
	CHECK(cudaGraphInstantiate(&e, g, 0));
	for (int i = 0; i < 200; i++) {
		CHECK(cudaGraphLaunch(e, i & 1 ? s : t));
		if (i % 50 == 49)
			CHECK(cudaDeviceSynchronize());
		else
			CHECK(cudaStreamSynchronize(i & 1 ? s : t));
		step(hx, hy, 5, 7);
	}
	compare(hx, hy);
	EXPECT_EQ(calls, 200);
	/* back to back in one stream: a graph does not overtake itself */
	for (int i = 0; i < 100; i++) {
		CHECK(cudaGraphLaunch(e, s));
		step(hx, hy, 5, 7);
	}
	CHECK(cudaStreamSynchronize(s));
	compare(hx, hy);
	/* other parameters, same shape */
	g2 = record(11, 13);
	CHECK(cudaGraphExecUpdate(e, g2, &info));
	EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
	CHECK(cudaGraphLaunch(e, s));
	step(hx, hy, 11, 13);
	CHECK(cudaStreamSynchronize(s));
	compare(hx, hy);
	/* another shape is refused, and the executable graph stays as it was */
	cudaGraph_t other;
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
	axpb<<<1, 32, 0, s>>>(x, 1, 0, 32);
	CHECK(cudaStreamEndCapture(s, &other));
	EXPECT_ERROR(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(e, other, &info));
	cudaGetLastError();
	EXPECT(info.result != cudaGraphExecUpdateSuccess);
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaGraphDestroy(g2));
	CHECK(cudaGraphDestroy(other));
	CHECK(cudaGraphLaunch(e, s));		/* it needs the graph it came from no more */
	step(hx, hy, 11, 13);
	CHECK(cudaGraphExecDestroy(e));		/* nor need it wait for its own end */
	CHECK(cudaStreamSynchronize(s));
	compare(hx, hy);
}

/* What a stream says of itself while it records, and what is forbidden meanwhile. */
static void states(void)
{
	cudaStreamCaptureStatus st;
	cudaGraph_t g;
	unsigned long long id;
	int *p;

	CHECK(cudaStreamIsCapturing(s, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusNone);
	EXPECT_ERROR(cudaErrorIllegalState, cudaStreamEndCapture(s, &g));
	cudaGetLastError();
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaStreamIsCapturing(s, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusActive);
	CHECK(cudaStreamGetCaptureInfo(s, &st, &id));
	EXPECT(st == cudaStreamCaptureStatusActive && id);
	CHECK(cudaStreamIsCapturing(t, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusNone);
	EXPECT_ERROR(cudaErrorIllegalState, cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	cudaGetLastError();
	axpb<<<1, 32, 0, s>>>(x, 1, 0, 32);
	/* a synchronisation cannot be recorded: it spoils the capture */
	EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(s));
	CHECK(cudaStreamIsCapturing(s, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusInvalidated);
	cudaGetLastError();
	EXPECT_ERROR(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(s, &g));
	cudaGetLastError();
	CHECK(cudaStreamIsCapturing(s, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusNone);

	/* a branch that is not joined again */
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaEventRecord(fork_e, s));
	CHECK(cudaStreamWaitEvent(t, fork_e, 0));
	axpb<<<1, 32, 0, t>>>(x, 1, 0, 32);
	EXPECT_ERROR(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(s, &g));
	cudaGetLastError();
	CHECK(cudaStreamSynchronize(t));

	/* the legacy stream may not be used from a thread that captures globally */
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	axpb<<<1, 32>>>(x, 1, 0, 32);
	EXPECT_ERROR(cudaErrorStreamCaptureImplicit, cudaGetLastError());
	EXPECT(cudaStreamEndCapture(s, &g) != cudaSuccess);
	cudaGetLastError();

	/* relaxed: memory may be allocated meanwhile */
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
	CHECK(cudaMalloc(&p, 400));
	CHECK(cudaMemsetAsync(p, 1, 400, s));
	CHECK(cudaStreamEndCapture(s, &g));
	cudaGraphExec_t e;
	CHECK(cudaGraphInstantiate(&e, g, 0));
	CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(to_host(p, 100)[99], 0x01010101);
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaFree(p));
	/* nothing at all was recorded */
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaStreamEndCapture(s, &g));
	size_t nodes;
	CHECK(cudaGraphGetNodes(g, NULL, &nodes));
	EXPECT_EQ(nodes, 0);
	CHECK(cudaGraphInstantiate(&e, g, 0));
	CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(g));
}

/* A stream that took part and gave its work back may go before the end; so may its events. */
static void passing_by(void)
{
	cudaStream_t q;
	cudaEvent_t there, back;
	cudaGraph_t g = NULL;
	cudaGraphExec_t e;
	std::vector<unsigned int> got(N);

	for (int give_back = 1; give_back >= 0; give_back--) {
		CHECK(cudaStreamCreateWithFlags(&q, cudaStreamNonBlocking));
		CHECK(cudaEventCreate(&there));
		CHECK(cudaEventCreate(&back));
		CHECK(cudaMemset(x, 0, N * 4));
		CHECK(cudaStreamBeginCapture(u, cudaStreamCaptureModeGlobal));
		axpb<<<grid, 128, 0, u>>>(x, 5, 7, N);
		CHECK(cudaEventRecord(there, u));
		CHECK(cudaStreamWaitEvent(q, there, 0));
		axpb<<<grid, 128, 0, q>>>(x, 3, 2, N);
		CHECK(cudaEventRecord(back, q));
		if (give_back)
			CHECK(cudaStreamWaitEvent(u, back, 0));
		CHECK(cudaStreamDestroy(q));
		CHECK(cudaEventDestroy(there));
		CHECK(cudaEventDestroy(back));
		if (!give_back) {
			cudaError_t r = cudaStreamEndCapture(u, &g);

			EXPECT(r == cudaErrorStreamCaptureUnjoined ||
			       r == cudaErrorStreamCaptureInvalidated);
			EXPECT_EQ(cudaGetLastError(), r);
			break;
		}
		CHECK(cudaStreamEndCapture(u, &g));
		CHECK(cudaGraphInstantiate(&e, g, 0));
		CHECK(cudaGraphLaunch(e, u));
		CHECK(cudaMemcpyAsync(got.data(), x, N * 4, cudaMemcpyDeviceToHost, u));
		CHECK(cudaStreamSynchronize(u));
		for (unsigned int v : got)
			EXPECT_EQ(v, 7u * 3 + 2);
		CHECK(cudaGraphExecDestroy(e));
		CHECK(cudaGraphDestroy(g));
	}
}

/* Four threads record and replay their own graphs at the same time. */
static void *recorder(void *arg)
{
	int id = (int)(size_t)arg;
	cudaStream_t q;
	cudaGraph_t g;
	cudaGraphExec_t e;
	unsigned int *d, want = 1;

	CHECK(cudaStreamCreateWithFlags(&q, cudaStreamNonBlocking));
	CHECK(cudaMalloc(&d, 256 * 4));
	CHECK(cudaMemsetAsync(d, 0, 256 * 4, q));
	axpb<<<2, 128, 0, q>>>(d, 0, 1, 256);
	CHECK(cudaStreamSynchronize(q));
	for (int round = 0; round < 5; round++) {
		CHECK(cudaStreamBeginCapture(q, cudaStreamCaptureModeThreadLocal));
		for (int i = 0; i < 10; i++)
			axpb<<<2, 128, 0, q>>>(d, id + 2, i, 256);
		CHECK(cudaStreamEndCapture(q, &g));
		CHECK(cudaGraphInstantiate(&e, g, 0));
		CHECK(cudaGraphDestroy(g));
		for (int k = 0; k < 5; k++) {
			CHECK(cudaGraphLaunch(e, q));
			for (int i = 0; i < 10; i++)
				want = want * (id + 2) + i;
		}
		CHECK(cudaStreamSynchronize(q));
		CHECK(cudaGraphExecDestroy(e));
	}
	std::vector<unsigned int> got(256);
	CHECK(cudaMemcpyAsync(got.data(), d, 1024, cudaMemcpyDeviceToHost, q));
	CHECK(cudaStreamSynchronize(q));
	for (unsigned int v : got)
		EXPECT_EQ(v, want);
	CHECK(cudaFree(d));
	CHECK(cudaStreamDestroy(q));
	return NULL;
}

int main()
{
	pthread_t th[4];

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaStreamCreateWithFlags(&u, cudaStreamNonBlocking));
	CHECK(cudaEventCreateWithFlags(&fork_e, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&join_t, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&join_u, cudaEventDisableTiming));
	replay();
	states();
	passing_by();
	for (size_t i = 0; i < 4; i++)
		EXPECT(!pthread_create(&th[i], NULL, recorder, (void *)i));
	for (int i = 0; i < 4; i++)
		pthread_join(th[i], NULL);
	return job_passed("capture");
}
