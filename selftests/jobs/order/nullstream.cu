// SPDX-License-Identifier: Apache-2.0
/*
 * nullstream.cu - implicit synchronisation of the default stream: the legacy one, or each thread's
 * own when compiled with --default-stream per-thread.
 */
#include "../job.cuh"

#include <atomic>
#include <pthread.h>
#include <unistd.h>

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define NAME "nullstream-per-thread"
static const bool per_thread = true;
#else
#define NAME "nullstream"
static const bool per_thread = false;
#endif

static std::atomic<int> gate;

static void CUDART_CB wait_gate(void *)
{
	while (!gate)
		usleep(100);
}

__global__ void append(int *log, int what)
{
	log[1 + log[0]++] = what;
}

static int *log_d;
static cudaStream_t blocking, lonely;

static std::vector<int> take_log(void)
{
	CHECK(cudaDeviceSynchronize());
	std::vector<int> v = to_host(log_d, 64);

	CHECK(cudaMemset(log_d, 0, 64 * sizeof(int)));
	CHECK(cudaDeviceSynchronize());
	sum_vector(v);
	return v;
}

static bool held(cudaStream_t s)
{
	usleep(30000);
	cudaError_t e = cudaStreamQuery(s);

	EXPECT(e == cudaSuccess || e == cudaErrorNotReady);
	return e == cudaErrorNotReady;
}

/* A blocking stream is at the gate: the legacy stream waits for it, a thread's own does not. */
static void default_behind_blocking(void)
{
	gate = 0;
	CHECK(cudaLaunchHostFunc(blocking, wait_gate, NULL));
	append<<<1, 1, 0, blocking>>>(log_d, 1);
	if (per_thread) {
		append<<<1, 1>>>(log_d + 32, 2);
		CHECK(cudaStreamSynchronize(0));
		EXPECT(held(blocking));
	} else {
		append<<<1, 1>>>(log_d, 2);
		EXPECT(held(0));
		EXPECT(held(cudaStreamLegacy));
	}
	gate = 1;
	std::vector<int> v = take_log();
	if (per_thread)
		EXPECT(v[0] == 1 && v[1] == 1 && v[32] == 1 && v[33] == 2);
	else
		EXPECT(v[0] == 2 && v[1] == 1 && v[2] == 2);
}

/* The default stream is at the gate: a blocking stream waits for the legacy one. */
static void blocking_behind_default(void)
{
	gate = 0;
	CHECK(cudaLaunchHostFunc(0, wait_gate, NULL));
	append<<<1, 1>>>(log_d, 1);
	append<<<1, 1, 0, blocking>>>(log_d + 32, 2);
	if (per_thread)
		CHECK(cudaStreamSynchronize(blocking));
	else
		EXPECT(held(blocking));
	EXPECT(held(0));
	gate = 1;
	std::vector<int> v = take_log();

	EXPECT(v[0] == 1 && v[1] == 1 && v[32] == 1 && v[33] == 2);
}

/* A non-blocking stream waits for nobody, nobody waits for it. */
static void lonely_stream(void)
{
	gate = 0;
	CHECK(cudaLaunchHostFunc(lonely, wait_gate, NULL));
	append<<<1, 1, 0, lonely>>>(log_d, 1);
	append<<<1, 1>>>(log_d + 32, 2);
	CHECK(cudaStreamSynchronize(0));
	append<<<1, 1, 0, cudaStreamLegacy>>>(log_d + 32, 3);
	CHECK(cudaStreamSynchronize(cudaStreamLegacy));
	EXPECT(held(lonely));
	gate = 1;
	take_log();
	gate = 0;
	CHECK(cudaLaunchHostFunc(cudaStreamLegacy, wait_gate, NULL));
	append<<<1, 1, 0, lonely>>>(log_d, 1);
	CHECK(cudaStreamSynchronize(lonely));
	EXPECT(held(cudaStreamLegacy));
	gate = 1;
	std::vector<int> v = take_log();

	EXPECT(v[0] == 1 && v[1] == 1);
}

/* Both default streams by their names: a thread's own waits for the legacy one, and it for that. */
static void by_name(void)
{
	gate = 0;
	CHECK(cudaLaunchHostFunc(cudaStreamPerThread, wait_gate, NULL));
	append<<<1, 1, 0, cudaStreamPerThread>>>(log_d, 1);
	append<<<1, 1, 0, cudaStreamLegacy>>>(log_d, 2);
	append<<<1, 1, 0, cudaStreamPerThread>>>(log_d, 3);
	EXPECT(held(cudaStreamLegacy));
	append<<<1, 1, 0, lonely>>>(log_d + 32, 4);
	CHECK(cudaStreamSynchronize(lonely));
	gate = 1;
	std::vector<int> v = take_log();

	EXPECT(v[0] == 3 && v[1] == 1 && v[2] == 2 && v[3] == 3 && v[33] == 4);
}

/* A chain through several blocking streams, joined only by launches into the legacy stream. */
static void implicit_chain(void)
{
	cudaStream_t s[8];

	for (cudaStream_t &x : s)
		CHECK(cudaStreamCreate(&x));
	for (int i = 0; i < 8; i++) {
		append<<<1, 1, 0, s[i]>>>(log_d, 2 * i);
		append<<<1, 1, 0, cudaStreamLegacy>>>(log_d, 2 * i + 1);
	}
	std::vector<int> v = take_log();

	EXPECT_EQ(v[0], 16);
	for (int i = 0; i < 16; i++)
		EXPECT_EQ(v[1 + i], i);
	for (cudaStream_t &x : s)
		CHECK(cudaStreamDestroy(x));
}

static void *other_thread(void *arg)
{
	bool *finished = (bool *)arg;

	append<<<1, 1>>>(log_d + 32, 2);
	if (per_thread) {
		CHECK(cudaStreamSynchronize(0));
		*finished = true;
	} else {
		*finished = !held(0);
	}
	return NULL;
}

/* Two threads: one default stream for both, or one each. */
static void threads(void)
{
	bool finished = false;
	pthread_t t;

	gate = 0;
	CHECK(cudaLaunchHostFunc(0, wait_gate, NULL));
	append<<<1, 1>>>(log_d, 1);
	EXPECT(!pthread_create(&t, NULL, other_thread, &finished));
	pthread_join(t, NULL);
	EXPECT_EQ(finished, per_thread);
	gate = 1;
	std::vector<int> v = take_log();

	EXPECT(v[1] == 1 && v[33] == 2);
}

/* A plain cudaMemcpy waits for what the default stream waits for. */
static void copy_waits(void)
{
	int v[2] = { 0, 0 };

	append<<<1, 1, 0, per_thread ? cudaStreamPerThread : blocking>>>(log_d, 5);
	CHECK(cudaMemcpy(v, log_d, sizeof(v), cudaMemcpyDeviceToHost));
	EXPECT(v[0] == 1 && v[1] == 5);
	take_log();
}

int main()
{
	CHECK(cudaMalloc(&log_d, 64 * sizeof(int)));
	CHECK(cudaMemset(log_d, 0, 64 * sizeof(int)));
	CHECK(cudaStreamCreate(&blocking));
	CHECK(cudaStreamCreateWithFlags(&lonely, cudaStreamNonBlocking));
	take_log();	/* and load the kernel, which some drivers do lazily and wait for */
	append<<<1, 1>>>(log_d, 0);
	take_log();
	default_behind_blocking();
	blocking_behind_default();
	lonely_stream();
	by_name();
	implicit_chain();
	threads();
	copy_waits();
	return job_passed(NAME);
}
