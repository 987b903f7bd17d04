// SPDX-License-Identifier: Apache-2.0
/*
 * d_streams.cu - copies and kernels of several streams, events, callbacks, both default streams.
 */
#include "direct.cuh"

#include <pthread.h>

__global__ void scale(float *p, int n, float f)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] *= f;
}

__global__ void wait_for(volatile int *flag)
{
	while (!*flag)
		;
}

__global__ void set(int *flag, int v)
{
	*flag = v;
}

static void pipelined(void)
{
	const int n = 1 << 16, chunks = 8;
	float *h, *d, ms;
	cudaStream_t s[4];
	cudaEvent_t start, stop;

	CHECK(cudaMallocHost(&h, n * chunks * 4));
	CHECK(cudaMalloc(&d, n * chunks * 4));
	CHECK(cudaEventCreate(&start));
	CHECK(cudaEventCreate(&stop));
	for (int i = 0; i < n * chunks; i++)
		h[i] = i;
	for (int i = 0; i < 4; i++)
		CHECK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
	CHECK(cudaEventRecord(start, s[0]));
	for (int c = 0; c < chunks; c++) {
		float *hp = h + c * n, *dp = d + c * n;
		cudaStream_t q = s[c % 4];

		CHECK(cudaMemcpyAsync(dp, hp, n * 4, cudaMemcpyHostToDevice, q));
		scale<<<16, 128, 0, q>>>(dp, n, 2.0f);
		CHECK(cudaMemcpyAsync(hp, dp, n * 4, cudaMemcpyDeviceToHost, q));
	}
	for (int i = 1; i < 4; i++) {
		cudaEvent_t e;

		CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
		CHECK(cudaEventRecord(e, s[i]));
		CHECK(cudaStreamWaitEvent(s[0], e, 0));
		CHECK(cudaEventDestroy(e));
	}
	CHECK(cudaEventRecord(stop, s[0]));
	CHECK(cudaEventSynchronize(stop));
	CHECK(cudaEventElapsedTime(&ms, start, stop));
	EXPECT(ms > 0);
	for (int i = 0; i < n * chunks; i++)
		EXPECT(h[i] == 2.0f * i);
	for (int i = 0; i < 4; i++)
		CHECK(cudaStreamDestroy(s[i]));
	CHECK(cudaFreeHost(h));
	CHECK(cudaFree(d));
}

static void spinning(void)
{
	cudaStream_t a, b;
	int *flag;

	CHECK(cudaMalloc(&flag, 4));
	CHECK(cudaMemset(flag, 0, 4));
	CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
	wait_for<<<1, 1, 0, a>>>(flag);
	EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(a));
	set<<<1, 1, 0, b>>>(flag, 1);
	CHECK(cudaStreamSynchronize(a));
	CHECK(cudaFree(flag));
}

static void CUDART_CB add_one(void *p)
{
	++*(int *)p;
}

static void CUDART_CB old_style(cudaStream_t, cudaError_t status, void *p)
{
	*(int *)p += status == cudaSuccess ? 10 : 1000;
}

static void callbacks(void)
{
	int n = 0;

	for (int i = 0; i < 5; i++)
		CHECK(cudaLaunchHostFunc(0, add_one, &n));
	CHECK(cudaStreamAddCallback(0, old_style, &n, 0));
	CHECK(cudaStreamSynchronize(0));
	EXPECT(n == 15);
}

static void *thread(void *arg)
{
	int id = (int)(size_t)arg, h;
	int *d;

	CHECK(cudaMalloc(&d, 4));
	for (int i = 0; i < 100; i++) {
		set<<<1, 1, 0, cudaStreamPerThread>>>(d, id * 1000 + i);
		CHECK(cudaMemcpyAsync(&h, d, 4, cudaMemcpyDeviceToHost, cudaStreamPerThread));
		CHECK(cudaStreamSynchronize(cudaStreamPerThread));
		EXPECT(h == id * 1000 + i);
	}
	CHECK(cudaFree(d));
	return NULL;
}

int main()
{
	pthread_t t[4];

	pipelined();
	spinning();
	callbacks();
	for (size_t i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, thread, (void *)i);
	for (size_t i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	printf("PASS\n");
	return 0;
}
