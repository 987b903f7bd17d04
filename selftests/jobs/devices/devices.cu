// SPDX-License-Identifier: Apache-2.0
/*
 * devices.cu - a process works on two devices: memory, kernels, variables, streams and events of each,
 * pinned memory that both use, copies and waits from one to the other.
 */
#include "../job.cuh"

#include <pthread.h>

#define N (1 << 20)

__device__ int counter;
__constant__ int scale;

__global__ void fill(int *p, int n, int first)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = (first + i) * scale;
	if (!i)
		counter++;
}

__global__ void add(int *p, const int *q, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] += q[i];
}

/* Takes its time, so that what does not wait for it comes too early. */
__global__ void slowly(int *p, int n, int v)
{
	int x = v;

	for (int i = 0; i < n; i++)
		x = x * 1664525 + 1013904223;
	*p = v + (x == 1 ? 1 : 0);
}

__global__ void big_shared(int *p)
{
	extern __shared__ int s[];

	s[threadIdx.x * 256] = threadIdx.x;
	__syncthreads();
	p[threadIdx.x] = s[(63 - threadIdx.x) * 256];
}

static int *mem[2], *host;
static cudaStream_t stream[2];

static void on(int d)
{
	CHECK(cudaSetDevice(d));
}

static void begin(void)
{
	int three = 3, five = 5, now, n;

	CHECK(cudaGetDeviceCount(&n));
	EXPECT(n >= 2);
	CHECK(cudaHostAlloc(&host, 4 * N * sizeof(*host), cudaHostAllocPortable));
	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaGetDevice(&now));
		EXPECT_EQ(now, d);
		CHECK(cudaMalloc(&mem[d], N * sizeof(int)));
		CHECK(cudaStreamCreateWithFlags(&stream[d], cudaStreamNonBlocking));
		CHECK(cudaMemcpyToSymbol(scale, d ? &five : &three, sizeof(int)));
	}
}

static void check(int d, int first, int times)
{
	on(d);
	CHECK(cudaMemcpy(host, mem[d], N * sizeof(int), cudaMemcpyDefault));
	for (int i = 0; i < N; i++)
		EXPECT_EQ(host[i], (first + i) * times);
}

/* Both devices run at once, and each has variables of its own. */
static void own_things(void)
{
	int count;

	for (int k = 0; k < 20; k++)
		for (int d = 0; d < 2; d++) {
			on(d);
			if (d || k < 10)
				fill<<<N / 256, 256, 0, stream[d]>>>(mem[d], N, k);
		}
	for (int d = 0; d < 2; d++)
		CHECK(cudaStreamSynchronize(stream[d]));	/* of a device that is not current */
	check(0, 9, 3);
	check(1, 19, 5);
	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaMemcpyFromSymbol(&count, counter, sizeof(count)));
		EXPECT_EQ(count, d ? 20 : 10);
	}
	sum_bytes(host, N * sizeof(int));
}

/*
 * A stream of another device than the current one: waited for, and launched on, since a kernel runs in
 * its stream's context. An event of the current device cannot be recorded there.
 */
static void wrong_device(void)
{
	cudaPointerAttributes a;
	cudaEvent_t e;

	on(1);
	CHECK(cudaStreamQuery(stream[0]));
	fill<<<N / 256, 256, 0, stream[0]>>>(mem[0], N, 77);
	CHECK(cudaGetLastError());
	CHECK(cudaStreamSynchronize(stream[0]));
	check(0, 77, 3);
	on(1);
	CHECK(cudaEventCreate(&e));
	EXPECT_ERROR(cudaErrorInvalidResourceHandle, cudaEventRecord(e, stream[0]));
	(void)cudaGetLastError();
	CHECK(cudaEventDestroy(e));
	for (int d = 0; d < 2; d++) {
		CHECK(cudaPointerGetAttributes(&a, mem[d] + 5));
		EXPECT_EQ(a.device, d);
		EXPECT_EQ(a.type, cudaMemoryTypeDevice);
	}
	CHECK(cudaPointerGetAttributes(&a, host));
	EXPECT_EQ(a.type, cudaMemoryTypeHost);
}

/* Pinned memory: allocated before and after the second device came, read and written by both. */
static void pinned(void)
{
	int *later, *mapped;

	on(0);
	CHECK(cudaHostAlloc(&later, N * sizeof(int), cudaHostAllocPortable | cudaHostAllocMapped));
	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaHostGetDevicePointer(&mapped, later, 0));
		fill<<<N / 256, 256>>>(d ? host : mapped, N, 7);
		CHECK(cudaDeviceSynchronize());
	}
	for (int i = 0; i < N; i++)
		EXPECT(later[i] == (7 + i) * 3 && host[i] == (7 + i) * 5);
	on(1);
	add<<<N / 256, 256>>>(host, later, N);
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < N; i++)
		EXPECT_EQ(host[i], (7 + i) * 8);
	on(0);
	CHECK(cudaFreeHost(later));
}

/* Each way to copy from one device to the other, in pieces and sizes that do not fit. */
static void copies(void)
{
	size_t sizes[] = { 4, 4096 * 3 + 4, (2 << 20) + 40, N * sizeof(int) };

	for (int way = 0; way < 5; way++)
		for (size_t bytes : sizes) {
			int n = bytes / sizeof(int), d = way & 1;

			on(d);
			fill<<<N / 256, 256, 0, stream[d]>>>(mem[d], N, way);
			CHECK(cudaStreamSynchronize(stream[d]));
			on(!d);
			CHECK(cudaMemset(mem[!d], 0x5a, N * sizeof(int)));
			CHECK(cudaDeviceSynchronize());
			if (way == 0)
				CHECK(cudaMemcpy(mem[!d], mem[d], bytes, cudaMemcpyDefault));
			else if (way == 1)
				CHECK(cudaMemcpyPeer(mem[!d], !d, mem[d], d, bytes));
			else if (way == 2)
				CHECK(cudaMemcpyPeerAsync(mem[!d], !d, mem[d], d, bytes, stream[!d]));
			else if (way == 3)
				CHECK(cudaMemcpyAsync(mem[!d], mem[d], bytes, cudaMemcpyDefault,
						      stream[d]));
			else
				CHECK(cudaMemcpyAsync(mem[!d], mem[d], bytes, cudaMemcpyDeviceToDevice,
						      stream[!d]));
			CHECK(cudaStreamSynchronize(stream[way == 3 ? d : !d]));
			CHECK(cudaMemcpy(host, mem[!d], N * sizeof(int), cudaMemcpyDeviceToHost));
			for (int i = 0; i < N; i++)
				EXPECT_EQ(host[i], i < n ? (way + i) * (d ? 5 : 3) : 0x5a5a5a5a);
		}
	/* The host's memory, on a stream of a device that has nothing to do with it. */
	std::vector<int> v(N, 4711);

	on(0);
	CHECK(cudaMemcpyAsync(mem[1], v.data(), N * sizeof(int), cudaMemcpyDefault, stream[0]));
	CHECK(cudaMemcpyAsync(host, mem[1], N * sizeof(int), cudaMemcpyDefault, stream[0]));
	CHECK(cudaStreamSynchronize(stream[0]));
	for (int i = 0; i < N; i++)
		EXPECT_EQ(host[i], 4711);
}

/* cudaMemcpyPeer comes after what the default streams of both devices have. */
static void behind_default_streams(void)
{
	for (int k = 1; k <= 5; k++) {
		on(0);
		slowly<<<1, 1>>>(mem[0], 3000000, k);
		on(1);
		CHECK(cudaMemcpyPeer(mem[1], 1, mem[0], 0, 4));
		CHECK(cudaMemcpy(host, mem[1], 4, cudaMemcpyDefault));
		EXPECT_EQ(*host, k);
	}
}

/* A long copy: more pieces than there are slots, behind slow work and before the next one. */
static void in_order(void)
{
	const size_t big = 48 << 20;
	int *p[2], *flag;
	cudaEvent_t e;

	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaMalloc(&p[d], big));
	}
	on(0);
	CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	flag = host;
	*flag = 0;
	for (int k = 1; k <= 5; k++) {
		on(0);
		CHECK(cudaMemsetAsync(p[0], k, big, stream[0]));
		slowly<<<1, 1, 0, stream[0]>>>(p[0] + 100, 2000000, k * 1000);
		CHECK(cudaMemcpyAsync(p[1], p[0], big, cudaMemcpyDefault, stream[0]));
		CHECK(cudaMemsetAsync(p[0], 0, big, stream[0]));
		CHECK(cudaEventRecord(e, stream[0]));
		on(1);
		CHECK(cudaStreamWaitEvent(stream[1], e, 0));
		add<<<1, 1, 0, stream[1]>>>(flag, p[1] + 100, 1);
		CHECK(cudaMemcpyAsync(host + 16, p[1] + (big / 4 - 1), 4, cudaMemcpyDeviceToHost,
				      stream[1]));
		CHECK(cudaStreamSynchronize(stream[1]));
		EXPECT_EQ(*flag, 1000 * k * (k + 1) / 2);
		EXPECT_EQ(host[16], k * 0x01010101);
	}
	for (int d = 0; d < 2; d++)
		CHECK(cudaFree(p[d]));		/* the first one's device is not the current one */
	CHECK(cudaEventDestroy(e));
}

/* Waits from one device to the other and back, thousands of them. */
static void ping_pong(void)
{
	cudaEvent_t e[2];

	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaEventCreateWithFlags(&e[d], cudaEventDisableTiming));
	}
	host[0] = 0;
	host[1] = 1;
	for (int k = 0; k < 2000; k++) {
		int d = k & 1;

		on(d);
		CHECK(cudaStreamWaitEvent(stream[d], e[!d], 0));
		add<<<1, 1, 0, stream[d]>>>(host, host + 1, 1);
		CHECK(cudaEventRecord(e[d], stream[d]));
	}
	CHECK(cudaStreamSynchronize(stream[1]));
	EXPECT_EQ(host[0], 2000);
	for (int d = 0; d < 2; d++)
		CHECK(cudaEventDestroy(e[d]));
}

/* An attribute that a kernel gets on one device does not keep it from the other one. */
static void attributes(void)
{
	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaFuncSetAttribute(big_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
					   65536));
		big_shared<<<1, 64, 65536>>>(mem[d]);
		CHECK(cudaMemcpy(host, mem[d], 256, cudaMemcpyDefault));
		for (int i = 0; i < 64; i++)
			EXPECT_EQ(host[i], 63 - i);
	}
}

static int called[2];

static void CUDART_CB call(void *arg)
{
	++*(int *)arg;
}

static void *thread(void *arg)
{
	int d = (int)(size_t)arg, *p, *q = host + (2 + d) * N;
	cudaStream_t s;

	on(d);
	CHECK(cudaStreamCreate(&s));
	for (int k = 0; k < 50; k++) {
		CHECK(cudaMallocAsync(&p, 65536 * sizeof(int), s));
		fill<<<256, 256, 0, s>>>(p, 65536, k);
		CHECK(cudaMemcpyAsync(q, p, 65536 * sizeof(int), cudaMemcpyDeviceToHost, s));
		CHECK(cudaFreeAsync(p, s));
		CHECK(cudaLaunchHostFunc(s, call, &called[d]));
		CHECK(cudaStreamSynchronize(s));
		for (int i = 0; i < 65536; i++)
			EXPECT_EQ(q[i], (k + i) * (d ? 5 : 3));
	}
	CHECK(cudaStreamDestroy(s));
	return NULL;
}

/* A thread for each device, with pools, host functions and the memory of both. */
static void threads(void)
{
	pthread_t t[2];

	for (size_t d = 0; d < 2; d++)
		EXPECT(!pthread_create(&t[d], NULL, thread, (void *)d));
	for (int d = 0; d < 2; d++) {
		EXPECT(!pthread_join(t[d], NULL));
		EXPECT_EQ(called[d], 50);
	}
}

static void graphs(void)
{
	cudaGraphExec_t x[2];
	cudaGraph_t g;

	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaStreamBeginCapture(stream[d], cudaStreamCaptureModeGlobal));
		fill<<<N / 256, 256, 0, stream[d]>>>(mem[d], N, 50);
		CHECK(cudaStreamEndCapture(stream[d], &g));
		CHECK(cudaGraphInstantiate(&x[d], g, 0));
		CHECK(cudaGraphDestroy(g));
	}
	for (int d = 0; d < 2; d++)
		CHECK(cudaGraphLaunch(x[d], stream[d]));
	for (int d = 0; d < 2; d++)
		CHECK(cudaStreamSynchronize(stream[d]));
	for (int d = 0; d < 2; d++) {
		check(d, 50, d ? 5 : 3);
		CHECK(cudaGraphExecDestroy(x[d]));
	}
}

/* A reset ends what one device has; the other goes on. */
static void reset(void)
{
	int one = 1;

	on(1);
	CHECK(cudaDeviceReset());
	on(0);
	fill<<<N / 256, 256, 0, stream[0]>>>(mem[0], N, 1);
	CHECK(cudaStreamSynchronize(stream[0]));
	check(0, 1, 3);
	on(1);
	CHECK(cudaMalloc(&mem[1], N * sizeof(int)));
	CHECK(cudaStreamCreateWithFlags(&stream[1], cudaStreamNonBlocking));
	CHECK(cudaMemcpyToSymbol(scale, &one, sizeof(int)));
	fill<<<N / 256, 256, 0, stream[1]>>>(mem[1], N, 1);
	CHECK(cudaStreamSynchronize(stream[1]));
	check(1, 1, 1);
}

int main()
{
	begin();
	own_things();
	wrong_device();
	pinned();
	copies();
	behind_default_streams();
	in_order();
	ping_pong();
	attributes();
	threads();
	graphs();
	reset();
	return job_passed("devices");
}
