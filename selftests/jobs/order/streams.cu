// SPDX-License-Identifier: Apache-2.0
/*
 * streams.cu - a wavefront over many streams that only events synchronise; events and their times.
 */
#include "../job.cuh"

#include <atomic>
#include <chrono>
#include <unistd.h>

#define STREAMS 24
#define LAYERS 20
#define N 2000

__global__ void mix(unsigned int *out, const unsigned int *a, const unsigned int *b, int layer)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < N)
		out[i] = a[i] * 1664525u + b[i] + layer;
}

/* out[layer][s] needs [layer-1][s] and [layer-1][s+1], and overwrites what [layer-1][s-1] reads. */
static void wavefront(void)
{
	cudaStream_t s[STREAMS];
	cudaEvent_t done[2][STREAMS];
	unsigned int *d[2][STREAMS], seed = 3;
	std::vector<unsigned int> h[2][STREAMS];

	for (int i = 0; i < STREAMS; i++) {
		h[0][i].resize(N);
		h[1][i].resize(N);
		for (unsigned int &v : h[0][i])
			v = rnd(&seed);
		d[0][i] = to_device(h[0][i]);
		d[1][i] = to_device(h[1][i]);
		CHECK(cudaStreamCreateWithFlags(&s[i], i & 1 ? cudaStreamNonBlocking :
							       cudaStreamDefault));
		for (int k = 0; k < 2; k++)
			CHECK(cudaEventCreateWithFlags(&done[k][i], cudaEventDisableTiming));
	}
	CHECK(cudaDeviceSynchronize());
	for (int l = 0; l < LAYERS; l++) {
		int from = l & 1, to = !from;

		for (int i = 0; i < STREAMS; i++) {
			int next = (i + 1) % STREAMS, before = (i + STREAMS - 1) % STREAMS;

			if (l) {
				CHECK(cudaStreamWaitEvent(s[i], done[from][next], 0));
				CHECK(cudaStreamWaitEvent(s[i], done[from][before], 0));
			}
			mix<<<(N + 127) / 128, 128, 0, s[i]>>>(d[to][i], d[from][i], d[from][next], l);
			/* one layer's events are recorded only after all waits for the last use */
		}
		for (int i = 0; i < STREAMS; i++)
			CHECK(cudaEventRecord(done[to][i], s[i]));
		for (int i = 0; i < STREAMS; i++)
			for (int k = 0; k < N; k++)
				h[to][i][k] = h[from][i][k] * 1664525u +
					      h[from][(i + 1) % STREAMS][k] + l;
	}
	for (int i = 0; i < STREAMS; i++) {
		std::vector<unsigned int> got(N);

		CHECK(cudaStreamSynchronize(s[i]));
		got = to_host(d[LAYERS & 1][i], N);
		for (int k = 0; k < N; k++)
			EXPECT_EQ(got[k], h[LAYERS & 1][i][k]);
		sum_vector(got);
	}
	for (int i = 0; i < STREAMS; i++) {
		CHECK(cudaStreamDestroy(s[i]));
		CHECK(cudaEventDestroy(done[0][i]));
		CHECK(cudaEventDestroy(done[1][i]));
		CHECK(cudaFree(d[0][i]));
		CHECK(cudaFree(d[1][i]));
	}
}

static std::atomic<int> gate;

static void CUDART_CB wait_gate(void *)
{
	while (!gate)
		usleep(100);
}

__global__ void work(unsigned int *p, int rounds)
{
	unsigned int v = *p;

	for (int i = 0; i < rounds; i++)
		v = v * 1664525u + 1013904223u;
	*p = v;
}

/* What events say before, while and after the work before them is done. */
static void events(void)
{
	cudaEvent_t start, middle, stop, quiet, never;
	cudaStream_t s, t;
	unsigned int *d;
	float a, b, all;

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaEventCreate(&start));
	CHECK(cudaEventCreateWithFlags(&middle, cudaEventBlockingSync));
	CHECK(cudaEventCreate(&stop));
	CHECK(cudaEventCreate(&never));
	CHECK(cudaEventCreateWithFlags(&quiet, cudaEventDisableTiming));
	CHECK(cudaMalloc(&d, 4));
	CHECK(cudaMemset(d, 0, 4));
	CHECK(cudaDeviceSynchronize());

	CHECK(cudaEventQuery(never));			/* never recorded: done */
	CHECK(cudaStreamWaitEvent(s, never, 0));
	auto wall = std::chrono::steady_clock::now();
	CHECK(cudaEventRecord(start, s));
	gate = 0;
	CHECK(cudaLaunchHostFunc(s, wait_gate, NULL));
	work<<<1, 1, 0, s>>>(d, 1000);
	CHECK(cudaEventRecord(middle, s));
	CHECK(cudaEventRecord(quiet, s));
	CHECK(cudaStreamWaitEvent(t, middle, 0));
	work<<<1, 1, 0, t>>>(d, 100000);
	CHECK(cudaEventRecord(stop, t));
	usleep(30000);
	EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(middle));
	EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(stop));
	EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(s));
	EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(t));
	EXPECT_ERROR(cudaErrorNotReady, cudaEventElapsedTime(&a, start, stop));
	EXPECT_ERROR(cudaSuccess, cudaPeekAtLastError());	/* not ready is no error to keep */
	gate = 1;
	CHECK(cudaEventSynchronize(middle));
	CHECK(cudaEventSynchronize(stop));
	double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() -
							       wall).count();
	CHECK(cudaEventQuery(stop));
	CHECK(cudaStreamQuery(t));
	CHECK(cudaEventElapsedTime(&a, start, middle));
	CHECK(cudaEventElapsedTime(&b, middle, stop));
	CHECK(cudaEventElapsedTime(&all, start, stop));
	EXPECT(a >= 29 && b >= 0 && fabs(a + b - all) < 0.01f + all * 1e-3f);
	EXPECT(all <= ms + 1);
	EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&a, start, quiet));
	EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaGetLastError());
	EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&a, start, never));
	cudaGetLastError();

	unsigned int want = 0, got;

	for (int i = 0; i < 101000; i++)
		want = want * 1664525u + 1013904223u;
	CHECK(cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(got, want);
	sum_bytes(&got, 4);
	/* an event recorded again: what waits before is for the first, after it for the second */
	gate = 0;
	CHECK(cudaEventRecord(quiet, s));
	CHECK(cudaStreamWaitEvent(t, quiet, 0));
	CHECK(cudaLaunchHostFunc(s, wait_gate, NULL));
	CHECK(cudaEventRecord(quiet, s));
	CHECK(cudaStreamSynchronize(t));
	EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(quiet));
	/* a stream and an event may be destroyed while they are in use */
	CHECK(cudaStreamWaitEvent(t, quiet, 0));
	CHECK(cudaEventDestroy(quiet));
	work<<<1, 1, 0, t>>>(d, 1);
	CHECK(cudaStreamDestroy(t));
	gate = 1;
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(got, want * 1664525u + 1013904223u);
}

static void properties(void)
{
	int least, greatest, p;
	unsigned int flags;
	unsigned long long id1, id2;
	cudaStream_t s, t;

	CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	EXPECT(greatest <= least);
	CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest));
	CHECK(cudaStreamGetPriority(s, &p));
	EXPECT_EQ(p, greatest);
	CHECK(cudaStreamGetFlags(s, &flags));
	EXPECT_EQ(flags, cudaStreamNonBlocking);
	CHECK(cudaStreamCreateWithPriority(&t, cudaStreamDefault, greatest - 100));	/* clamped */
	CHECK(cudaStreamGetPriority(t, &p));
	EXPECT_EQ(p, greatest);
	CHECK(cudaStreamGetFlags(t, &flags));
	EXPECT_EQ(flags, cudaStreamDefault);
	CHECK(cudaStreamGetId(s, &id1));
	CHECK(cudaStreamGetId(t, &id2));
	EXPECT(id1 != id2);
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaStreamDestroy(t));
}

int main()
{
	wavefront();
	events();
	properties();
	return job_passed("streams");
}
