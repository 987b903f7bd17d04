// SPDX-License-Identifier: Apache-2.0
/*
 * threads.cu - eight concurrent host threads, each with streams, memory and kernels of its own.
 */
#include "../job.cuh"

#include <atomic>
#include <pthread.h>

#define THREADS 8
#define ROUNDS 40
#define N 5000

__device__ unsigned int shared_total;

__global__ void step(unsigned int *p, unsigned int k, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = p[i] * 69069u + k;
}

__global__ void total(const unsigned int *p, unsigned int *sum, int n)
{
	unsigned int s = 0;

	for (int i = threadIdx.x; i < n; i += blockDim.x)
		s += p[i];
	for (int d = 16; d; d >>= 1)
		s += __shfl_xor_sync(~0u, s, d);
	if (!(threadIdx.x & 31))
		atomicAdd(sum, s);
	if (!threadIdx.x)
		atomicAdd(&shared_total, 1u);
}

static pthread_barrier_t gather;
static unsigned int sums[THREADS];
static cudaEvent_t passed[THREADS];
static unsigned int *ring;

/* One thread's work: in turn through its own stream, the per-thread stream, and pools. */
static void *worker(void *arg)
{
	int id = (int)(size_t)arg;
	std::vector<unsigned int> h(N, id), got(N);
	unsigned int *d, *sum, seen;
	cudaStream_t own;

	pthread_barrier_wait(&gather);
	CHECK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
	for (int r = 0; r < ROUNDS; r++) {
		cudaStream_t s = r & 1 ? own : cudaStreamPerThread;

		if (r % 4 == 0)
			CHECK(cudaMalloc(&d, N * 4));
		else
			CHECK(cudaMallocAsync(&d, N * 4, s));
		CHECK(cudaMallocAsync(&sum, 4, s));
		CHECK(cudaMemcpyAsync(d, h.data(), N * 4, cudaMemcpyHostToDevice, s));
		CHECK(cudaMemsetAsync(sum, 0, 4, s));
		for (int k = 0; k < 5; k++) {
			step<<<(N + 127) / 128, 128, 0, s>>>(d, id + r + k, N);
			for (unsigned int &v : h)
				v = v * 69069u + (id + r + k);
		}
		total<<<1, 256, 0, s>>>(d, sum, N);
		CHECK(cudaGetLastError());
		CHECK(cudaMemcpyAsync(got.data(), d, N * 4, cudaMemcpyDeviceToHost, s));
		CHECK(cudaMemcpyAsync(&seen, sum, 4, cudaMemcpyDeviceToHost, s));
		CHECK(cudaFreeAsync(sum, s));
		if (r % 4)
			CHECK(cudaFreeAsync(d, s));
		CHECK(cudaStreamSynchronize(s));
		if (r % 4 == 0)
			CHECK(cudaFree(d));
		unsigned int want = 0;

		for (int i = 0; i < N; i++) {
			EXPECT_EQ(got[i], h[i]);
			want += h[i];
		}
		EXPECT_EQ(seen, want);
		sums[id] = sums[id] * 31 + want;
	}
	CHECK(cudaStreamDestroy(own));
	/* an error of this thread is this thread's alone */
	if (id & 1) {
		EXPECT_ERROR(cudaErrorInvalidDevice, cudaSetDevice(99));
		pthread_barrier_wait(&gather);
		EXPECT_ERROR(cudaErrorInvalidDevice, cudaGetLastError());
	} else {
		pthread_barrier_wait(&gather);
		EXPECT_ERROR(cudaSuccess, cudaGetLastError());
	}
	return NULL;
}

/* A token goes round: each thread launches behind the event that the one before has recorded. */
static std::atomic<int> turn;

static void *relay(void *arg)
{
	int id = (int)(size_t)arg;
	cudaStream_t s;

	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	for (int r = 0; r < 20; r++) {
		while (turn != r * THREADS + id)
			sched_yield();
		if (r || id)
			CHECK(cudaStreamWaitEvent(s, passed[(id + THREADS - 1) % THREADS], 0));
		step<<<1, 32, 0, s>>>(ring, r * THREADS + id, 32);
		CHECK(cudaEventRecord(passed[id], s));
		turn++;
	}
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaStreamDestroy(s));
	return NULL;
}

static void start(void *(*fn)(void *))
{
	pthread_t t[THREADS];

	for (size_t i = 0; i < THREADS; i++)
		EXPECT(!pthread_create(&t[i], NULL, fn, (void *)i));
	for (pthread_t &x : t)
		pthread_join(x, NULL);
}

/* Threads that come and go, each with a little work: nothing of them may stay. */
static void *brief(void *arg)
{
	unsigned int *d, v;

	CHECK(cudaMallocAsync(&d, 4, cudaStreamPerThread));
	CHECK(cudaMemsetAsync(d, 0, 4, cudaStreamPerThread));
	step<<<1, 1, 0, cudaStreamPerThread>>>(d, (unsigned int)(size_t)arg, 1);
	CHECK(cudaMemcpyAsync(&v, d, 4, cudaMemcpyDeviceToHost, cudaStreamPerThread));
	CHECK(cudaFreeAsync(d, cudaStreamPerThread));
	CHECK(cudaStreamSynchronize(cudaStreamPerThread));
	EXPECT_EQ(v, (unsigned int)(size_t)arg);
	return NULL;
}

int main()
{
	unsigned int v, want = 0;

	/* the first calls of all come from eight threads at once: initialisation is theirs, too */
	pthread_barrier_init(&gather, NULL, THREADS);
	start(worker);
	CHECK(cudaMemcpyFromSymbol(&v, shared_total, 4));
	EXPECT_EQ(v, THREADS * ROUNDS);
	sum_bytes(sums, sizeof(sums));
	for (cudaEvent_t &e : passed)
		CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	CHECK(cudaMalloc(&ring, 128));
	CHECK(cudaMemset(ring, 0, 128));
	CHECK(cudaDeviceSynchronize());
	start(relay);
	for (int i = 0; i < 20 * THREADS; i++)
		want = want * 69069u + i;
	EXPECT_EQ(to_host(ring, 32)[31], want);
	sum_bytes(&want, 4);
	for (size_t i = 0; i < 100; i++) {
		pthread_t t;

		EXPECT(!pthread_create(&t, NULL, brief, (void *)i));
		pthread_join(t, NULL);
	}
	return job_passed("threads");
}
