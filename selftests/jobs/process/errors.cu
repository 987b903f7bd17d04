// SPDX-License-Identifier: Apache-2.0
/*
 * errors.cu - host errors: which error is returned, where it is kept, and that work continues.
 */
#include "../job.cuh"

#include <pthread.h>

__global__ void fill(int *p, int v)
{
	p[threadIdx.x] = v;
}

__global__ __launch_bounds__(128) void bounded(int *p)
{
	p[threadIdx.x] = 1;
}

__global__ void wants_shared(int *p)
{
	extern __shared__ int s[];

	s[threadIdx.x] = p[threadIdx.x];
	p[threadIdx.x] = s[threadIdx.x];
}

static int *d;

static void works(int v)
{
	int got[32];

	fill<<<1, 32>>>(d, v);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(got, d, sizeof(got), cudaMemcpyDeviceToHost));
	for (int x : got)
		EXPECT_EQ(x, v);
}

#define LAUNCH_ERROR(_want, ...) do {			\
	__VA_ARGS__;					\
	EXPECT_ERROR(_want, cudaPeekAtLastError());	\
	EXPECT_ERROR(_want, cudaGetLastError());	\
	EXPECT_ERROR(cudaSuccess, cudaGetLastError());	\
	works(__LINE__);				\
} while (0)

static void launches(void)
{
	LAUNCH_ERROR(cudaErrorInvalidConfiguration, (fill<<<1, 1025>>>(d, 1)));
	LAUNCH_ERROR(cudaErrorInvalidConfiguration, (fill<<<0, 1>>>(d, 1)));
	LAUNCH_ERROR(cudaErrorInvalidConfiguration, (fill<<<1, 0>>>(d, 1)));
	LAUNCH_ERROR(cudaErrorInvalidConfiguration, (fill<<<dim3(1, 65536), 1>>>(d, 1)));
	LAUNCH_ERROR(cudaErrorInvalidConfiguration, (fill<<<dim3(1, 1, 65536), 1>>>(d, 1)));
	LAUNCH_ERROR(cudaErrorInvalidConfiguration, (fill<<<1, dim3(1, 1, 65)>>>(d, 1)));
	LAUNCH_ERROR(cudaErrorInvalidConfiguration, (fill<<<1, dim3(64, 64)>>>(d, 1)));
	LAUNCH_ERROR(cudaErrorInvalidValue, (wants_shared<<<1, 1, 1 << 20>>>(d)));
	LAUNCH_ERROR(cudaErrorInvalidValue, (wants_shared<<<1, 1, (48 << 10) + 4>>>(d)));
	bounded<<<1, 256>>>(d);		/* more threads than it was compiled for */
	cudaError_t e = cudaGetLastError();
	EXPECT(e == cudaErrorInvalidValue || e == cudaErrorLaunchOutOfResources ||
	       e == cudaErrorInvalidConfiguration);
	works(3);
	/* a function of the host: cudart takes what it does not know for a handle of a kernel */
	e = cudaLaunchKernel((const void *)&launches, dim3(1), dim3(1), NULL, 0, 0);
	EXPECT(e == cudaErrorInvalidDeviceFunction || e == cudaErrorInvalidResourceHandle);
	EXPECT_ERROR(e, cudaGetLastError());
}

/* An error stays until it is asked for; a later success does not hide it; a later error does. */
static void keeping(void)
{
	void *p;
	int n;

	EXPECT_ERROR(cudaErrorInvalidValue, cudaMalloc((void **)NULL, 4));
	CHECK(cudaGetDeviceCount(&n));

	CHECK(cudaMalloc(&p, 4));
	CHECK(cudaFree(p));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaPeekAtLastError());
	EXPECT_ERROR(cudaErrorInvalidDevice, cudaSetDevice(77));
	EXPECT_ERROR(cudaErrorInvalidDevice, cudaGetLastError());
	EXPECT_ERROR(cudaSuccess, cudaPeekAtLastError());
	CHECK(cudaSetDevice(0));
}

static void *other(void *)
{
	EXPECT_ERROR(cudaSuccess, cudaPeekAtLastError());
	EXPECT_ERROR(cudaErrorInvalidDevice, cudaSetDevice(-5));
	return NULL;
}

/* Each thread has its own last error. */
static void per_thread(void)
{
	pthread_t t;

	EXPECT_ERROR(cudaErrorInvalidValue, cudaMalloc((void **)NULL, 4));
	EXPECT(!pthread_create(&t, NULL, other, NULL));
	pthread_join(t, NULL);
	EXPECT_ERROR(cudaErrorInvalidValue, cudaGetLastError());
}

static void copies(void)
{
	int h[32], *inner = d + 8;
	char *past;

	EXPECT_ERROR(cudaErrorInvalidMemcpyDirection,
		     cudaMemcpy(h, d, 4, (cudaMemcpyKind)77));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpy(NULL, d, 4, cudaMemcpyDeviceToHost));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpy(h, NULL, 4, cudaMemcpyDeviceToHost));
	/* a device pointer that no allocation has, and one that runs over its end */
	EXPECT_ERROR(cudaErrorInvalidValue,
		     cudaMemcpy(h, (void *)0x100, 4, cudaMemcpyDeviceToHost));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpy((void *)0x100, h, 4, cudaMemcpyHostToDevice));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemset((void *)0x100, 0, 4));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaFree(inner));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaFree(h));
	CHECK(cudaFree(NULL));
	CHECK(cudaMalloc(&past, 1 << 21));
	EXPECT_ERROR(cudaErrorInvalidValue,
		     cudaMemset(past + (1 << 21) - 4, 0, (size_t)1 << 40));
	CHECK(cudaFree(past));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaFree(past));	/* twice */
	cudaGetLastError();
	works(4);
}

static void handles(void)
{
	cudaStream_t s;
	cudaEvent_t e;
	cudaFuncAttributes a;
	void *p;
	size_t n;

	EXPECT_ERROR(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&s, 0x80));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaEventCreateWithFlags(&e, 0x100));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaEventCreate(NULL));
	EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaEventRecord(NULL, 0));
	EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaEventQuery(NULL));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaEventCreateWithFlags(&e, cudaEventInterprocess));
	CHECK(cudaEventCreate(&e));
	CHECK(cudaEventRecord(e, 0));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaEventRecordWithFlags(e, 0, 0x10));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaStreamWaitEvent(0, e, 0x10));
	CHECK(cudaEventSynchronize(e));		/* none of these comes late */
	CHECK(cudaEventDestroy(e));
	EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaStreamDestroy(0));
	EXPECT(cudaFuncGetAttributes(&a, (void *)handles) != cudaSuccess);
	EXPECT_ERROR(cudaErrorInvalidSymbol, cudaGetSymbolAddress(&p, (void *)&n));
	EXPECT_ERROR(cudaErrorInvalidSymbol, cudaGetSymbolSize(&n, (void *)&n));
	EXPECT_ERROR(cudaErrorInvalidSymbol, cudaMemcpyToSymbol((const void *)&n, &n, 4));
	EXPECT_ERROR(cudaErrorInvalidSymbol, cudaGetLastError());
	int v;
	EXPECT_ERROR(cudaErrorInvalidValue, cudaDeviceGetAttribute(&v, (cudaDeviceAttr)9999, 0));
	EXPECT_ERROR(cudaErrorInvalidDevice,
		     cudaDeviceGetAttribute(&v, cudaDevAttrWarpSize, 500));
	cudaDeviceProp prop;
	EXPECT_ERROR(cudaErrorInvalidDevice, cudaGetDeviceProperties(&prop, 500));
	EXPECT_ERROR(cudaErrorInvalidDevice, cudaGetLastError());
	works(5);
}

static void words(void)
{
	EXPECT(!strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress"));
	EXPECT(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
	EXPECT(!strcmp(cudaGetErrorString(cudaSuccess), "no error"));
	EXPECT(!strcmp(cudaGetErrorName((cudaError_t)12345), "unrecognized error code"));
}

int main()
{
	CHECK(cudaMalloc(&d, 4096));
	works(1);
	launches();
	keeping();
	per_thread();
	copies();
	handles();
	words();
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaFree(d));
	sum_bytes("errors", 6);
	return job_passed("errors");
}
