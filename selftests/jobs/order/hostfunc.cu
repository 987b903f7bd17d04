// SPDX-License-Identifier: Apache-2.0
/*
 * hostfunc.cu - host functions in stream order: the memory that they see, and what waits for them.
 */
#include "../job.cuh"

#include <atomic>
#include <pthread.h>
#include <unistd.h>

__global__ void set(int *p, int v)
{
	*p = v;
}

static int *mapped;
static std::vector<int> log_v;
static std::atomic<int> running;

/* Sees what the kernel before it has written, and nothing of the kernel behind it. */
static void CUDART_CB look(void *arg)
{
	log_v.push_back((int)(size_t)arg);
	log_v.push_back(+*(volatile int *)mapped);
}

static void CUDART_CB old_style(cudaStream_t s, cudaError_t status, void *arg)
{
	EXPECT(status == cudaSuccess);
	EXPECT(s == ((void **)arg)[0]);
	log_v.push_back((int)(size_t)((void **)arg)[1]);
	log_v.push_back(+*(volatile int *)mapped);
}

static void order(cudaStream_t s)
{
	static void *args[50][2];

	for (int i = 0; i < 100; i++) {
		set<<<1, 1, 0, s>>>(mapped, i * 3);
		if (i & 1) {
			CHECK(cudaLaunchHostFunc(s, look, (void *)(size_t)i));
		} else {
			args[i / 2][0] = s;
			args[i / 2][1] = (void *)(size_t)i;
			CHECK(cudaStreamAddCallback(s, old_style, args[i / 2], 0));
		}
	}
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(log_v.size(), 200);
	for (int i = 0; i < 100; i++)
		EXPECT(log_v[2 * i] == i && log_v[2 * i + 1] == i * 3);
	sum_vector(log_v);
	EXPECT_ERROR(cudaErrorInvalidValue, cudaLaunchHostFunc(s, NULL, NULL));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaStreamAddCallback(s, old_style, NULL, 1));
	cudaGetLastError();
}

/* It may write what the work behind it reads. */
struct feed {
	int *pinned;
	int value;
};

static void CUDART_CB write_input(void *arg)
{
	feed *f = (feed *)arg;

	usleep(2000);
	*f->pinned = f->value;
}

static void feeding(cudaStream_t s)
{
	int *pinned, *d, *out;
	feed f[20];

	CHECK(cudaMallocHost(&pinned, 4));
	CHECK(cudaMallocHost(&out, 20 * 4));
	CHECK(cudaMalloc(&d, 4));
	for (int i = 0; i < 20; i++) {
		f[i] = { pinned, i * i };
		CHECK(cudaLaunchHostFunc(s, write_input, &f[i]));
		CHECK(cudaMemcpyAsync(d, pinned, 4, cudaMemcpyHostToDevice, s));
		CHECK(cudaMemcpyAsync(out + i, d, 4, cudaMemcpyDeviceToHost, s));
	}
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < 20; i++)
		EXPECT_EQ(out[i], i * i);
	CHECK(cudaFreeHost(pinned));
	CHECK(cudaFreeHost(out));
	CHECK(cudaFree(d));
}

static std::atomic<int> gate;
static pthread_t host_thread;

static void CUDART_CB blocks(void *)
{
	host_thread = pthread_self();
	running = 1;
	while (!gate)
		usleep(100);
}

static void CUDART_CB tries_cuda(void *arg)
{
	void *p;

	host_thread = pthread_self();
	*(cudaError_t *)arg = cudaMalloc(&p, 4);
}

/* A function that waits holds its own stream up, not the host nor the kernels of other streams. */
static void waiting(cudaStream_t s, cudaStream_t t)
{
	int *d;

	CHECK(cudaMalloc(&d, 8));
	CHECK(cudaMemset(d, 0, 8));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaLaunchHostFunc(s, blocks, NULL));
	set<<<1, 1, 0, s>>>(d, 1);
	set<<<1, 1, 0, t>>>(d + 1, 2);
	CHECK(cudaStreamSynchronize(t));
	while (!running)
		usleep(100);
	EXPECT(!pthread_equal(host_thread, pthread_self()));	/* not in the caller's thread */
	int h[2];
	CHECK(cudaMemcpyAsync(h, d, 8, cudaMemcpyDeviceToHost, t));
	CHECK(cudaStreamSynchronize(t));
	EXPECT(h[0] == 0 && h[1] == 2);
	EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(s));
	gate = 1;
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemcpy(h, d, 8, cudaMemcpyDeviceToHost));
	EXPECT(h[0] == 1 && h[1] == 2);
	/* CUDA is forbidden inside; the driver says so */
	cudaError_t inside = cudaSuccess;
	CHECK(cudaLaunchHostFunc(s, tries_cuda, &inside));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(inside, cudaErrorNotPermitted);
	EXPECT(!pthread_equal(host_thread, pthread_self()));
	CHECK(cudaGetLastError());
	CHECK(cudaFree(d));
}

/* Thousands of small ones, in many streams at once. */
static void CUDART_CB count(void *arg)
{
	++*(std::atomic<int> *)arg;
}

static void many(void)
{
	std::atomic<int> n[8] = {};
	cudaStream_t s[8];

	for (cudaStream_t &x : s)
		CHECK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
	for (int i = 0; i < 500; i++)
		for (int k = 0; k < 8; k++)
			CHECK(cudaLaunchHostFunc(s[k], count, &n[k]));
	CHECK(cudaDeviceSynchronize());
	for (int k = 0; k < 8; k++)
		EXPECT_EQ(n[k], 500);
	for (cudaStream_t &x : s)
		CHECK(cudaStreamDestroy(x));
}

int main()
{
	cudaStream_t s, t;

	CHECK(cudaHostAlloc(&mapped, 4, cudaHostAllocMapped));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	order(s);
	feeding(s);
	waiting(s, t);
	many();
	return job_passed("hostfunc");
}
