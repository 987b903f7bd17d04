// SPDX-License-Identifier: Apache-2.0
/*
 * progress.cu - work that waits for other work: kernels for kernels, for copies and for the host, blocks for
 * blocks, lanes for lanes. If anything that can run does not run, the program never ends.
 */
#include "../job.cuh"

#include <pthread.h>
#include <unistd.h>

#define RING 8

__global__ void link(volatile int *flag, int me, int *order)
{
	if (me)
		while (!flag[me - 1])
			;
	__threadfence();
	order[me] = atomicAdd(&order[RING], 1);
	__threadfence();
	flag[me] = 1;
}

/* Launched last to first: each waits for one that is launched behind it. */
static void reversed(void)
{
	cudaStream_t s[RING];
	int *d;

	CHECK(cudaMalloc(&d, 256));
	CHECK(cudaMemset(d, 0, 256));
	CHECK(cudaDeviceSynchronize());
	for (cudaStream_t &x : s)
		CHECK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
	for (int i = RING - 1; i >= 0; i--)
		link<<<1, 1, 0, s[i]>>>(d, i, d + 32);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
	std::vector<int> got = to_host(d + 32, RING);
	for (int i = 0; i < RING; i++)
		EXPECT_EQ(got[i], i);
	for (cudaStream_t &x : s)
		CHECK(cudaStreamDestroy(x));
	CHECK(cudaFree(d));
}

/* A kernel that stays, and is fed by copies and memsets of another stream. */
__global__ void server(volatile int *box, int *out, int requests)
{
	for (int i = 1; i <= requests; i++) {
		while (box[0] != i)
			;
		__threadfence();
		out[i] = box[1] * 2 + i;
		__threadfence();
		box[2] = i;
	}
}

static void mailbox(void)
{
	const int requests = 40;
	cudaStream_t s, t;
	int *box, *out, *h;

	CHECK(cudaMalloc(&box, 64));
	CHECK(cudaMalloc(&out, (requests + 1) * 4));
	CHECK(cudaMemset(box, 0, 64));
	CHECK(cudaMallocHost(&h, 16));
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	CHECK(cudaDeviceSynchronize());
	server<<<1, 1, 0, s>>>(box, out, requests);
	CHECK(cudaGetLastError());
	for (int i = 1; i <= requests; i++) {
		h[0] = i;
		h[1] = i * 100;
		CHECK(cudaMemcpyAsync(box + 1, h + 1, 4, cudaMemcpyHostToDevice, t));
		CHECK(cudaMemcpyAsync(box, h, 4, cudaMemcpyHostToDevice, t));
		do {
			CHECK(cudaMemcpyAsync(h + 2, box + 2, 4, cudaMemcpyDeviceToHost, t));
			CHECK(cudaStreamSynchronize(t));
		} while (h[2] != i);
	}
	CHECK(cudaStreamSynchronize(s));
	std::vector<int> got = to_host(out, requests + 1);
	for (int i = 1; i <= requests; i++)
		EXPECT_EQ(got[i], i * 201);
	sum_vector(std::vector<int>(got.begin() + 1, got.end()));
	CHECK(cudaFreeHost(h));
	CHECK(cudaFree(box));
	CHECK(cudaFree(out));
}

/* Every block waits for the one behind it; every warp for the next; every lane for the one before. */
__global__ void blocks_back(volatile int *flag, int *seen)
{
	int b = blockIdx.x;

	if (!threadIdx.x) {
		if (b + 1 < gridDim.x)
			while (!flag[b + 1])
				;
		__threadfence();
		seen[b] = b + 1 < gridDim.x ? seen[b + 1] + 1 : 1;
		__threadfence();
		flag[b] = 1;
	}
}

__global__ void warps_back(int *out)
{
	__shared__ volatile int turn;
	int w = threadIdx.x / 32;

	if (!threadIdx.x)
		turn = blockDim.x / 32;
	__syncthreads();
	if (threadIdx.x % 32 == 0) {
		while (turn != w + 1)
			;
		out[blockIdx.x * 32 + w] = turn;
		__threadfence_block();
		turn = w;
	}
}

__global__ void lanes(volatile int *next, int *out)
{
	int l = threadIdx.x;

	for (bool waits = true; waits;)
		if (*next == l) {
			out[l] = l ? out[l - 1] + l : 0;
			__threadfence();
			*next = l + 1;
			waits = false;
		}
}

/* A barrier of the whole grid made by hand: the others of its warp are at the block's barrier already. */
__global__ void meet(volatile unsigned int *come, int *met)
{
	if (!threadIdx.x) {
		atomicAdd((unsigned int *)come, 1);
		while (*come < gridDim.x)
			;
	}
	__syncthreads();
	if (threadIdx.x == blockDim.x - 1)
		atomicAdd(met, *come >= gridDim.x);
}

/* Everything goes around the loop, with a barrier in it, until the number behind one's own is there. */
__global__ void in_turn(volatile int *number, int n)
{
	int k = threadIdx.x + blockIdx.x * blockDim.x;

	while (k < n) {
		int v = number[k + 1];

		if (v) {
			number[k] = v + 1;
			k = n;
		}
		__syncthreads();
	}
}

static void at_barriers(void)
{
	int per_sm, sms, blocks, n = 24 * 96 - 10, *d;

	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, meet, 64, 0));
	CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	blocks = std::min(per_sm * sms, 200);
	CHECK(cudaMalloc(&d, (n + 1) * 4));
	CHECK(cudaMemset(d, 0, 8));
	meet<<<blocks, 64>>>((unsigned int *)d, d + 1);
	CHECK(cudaGetLastError());
	EXPECT_EQ(to_host(d, 2)[1], blocks);
	CHECK(cudaMemset(d, 0, n * 4));
	CHECK(cudaMemset(d + n, 1, 1));
	in_turn<<<24, 96>>>(d, n);
	CHECK(cudaGetLastError());
	std::vector<int> got = to_host(d, n + 1);
	for (int i = 0; i <= n; i++)
		EXPECT_EQ(got[i], n - i + 1);
	CHECK(cudaFree(d));
}

/* The lock is taken inside the loop by a compare and swap, by every lane of every warp. */
__global__ void locks(int *lock, volatile long long *value, int rounds, bool sleep)
{
	for (int i = 0; i < rounds; i++) {
		while (atomicCAS(lock, 0, 1))
			if (sleep)
				__nanosleep(20);
		__threadfence();
		*value = *value * 3 % 1000003 + 1;
		__threadfence();
		atomicExch(lock, 0);
	}
}

/*
 * Lanes that are in loops for long while the others are at a join: loops of different lengths, one
 * for a part of the warp, and one that waits for the other part.  All then meet.
 */
__global__ void meet_lengths(int *count, int *out, int rounds)
{
	__shared__ int s[64];
	int t = threadIdx.x, v = t * 97;

	for (int r = 0; r < rounds; r++) {
		int n = v & 8191;

#pragma unroll 1
		while (n)
			v = v * 5 + n--;
		s[t] = v;
		__syncthreads();
		v += s[63 - t];
		__syncthreads();
		if (!t)
			atomicAdd(count, 1);
	}
	out[t] = v;
}

__global__ void meet_part(int *count, int *out, int n)
{
	int t = threadIdx.x;

	if (t % 32 < 11)
		for (int i = 0; i < n; i++)
			atomicAdd(count, i & 3);
	out[t] = t;
	__syncthreads();
	out[t] += __shfl_xor_sync(~0u, t, 31);
}

__global__ void meet_sides(volatile int *flag, int *out)
{
	int t = threadIdx.x, v;

	flag += t / 32 * 2;
	if (t & 1) {
		v = t;
		flag[0] = 1;
		while (!flag[1])
			;
	} else {
		v = -t;
		while (!flag[0])
			;
		flag[1] = 1;
	}
	out[t] = v + __shfl_xor_sync(~0u, v, 1);
}

static void meeting(void)
{
	std::vector<int> v(64), old, got;
	int *d, *out;

	CHECK(cudaMalloc(&d, 64));
	CHECK(cudaMalloc(&out, 256));
	CHECK(cudaMemset(d, 0, 64));
	for (int t = 0; t < 64; t++)
		v[t] = t * 97;
	meet_lengths<<<1, 64>>>(d, out, 3);
	CHECK(cudaGetLastError());
	for (int r = 0; r < 3; r++) {
		for (int t = 0; t < 64; t++)
			for (int n = v[t] & 8191; n; n--)
				v[t] = (int)(v[t] * 5u + n);
		old = v;
		for (int t = 0; t < 64; t++)
			v[t] = (int)((unsigned)old[t] + old[63 - t]);
	}
	got = to_host(out, 64);
	for (int t = 0; t < 64; t++)
		EXPECT_EQ(got[t], v[t]);
	EXPECT_EQ(to_host(d, 1)[0], 3);
	meet_part<<<1, 64>>>(d + 1, out, 16000);
	CHECK(cudaGetLastError());
	got = to_host(out, 64);
	for (int t = 0; t < 64; t++)
		EXPECT_EQ(got[t], t + (t ^ 31));
	EXPECT_EQ(to_host(d + 1, 1)[0], 2 * 11 * 16000 / 4 * 6);
	meet_sides<<<1, 64>>>(d + 2, out);
	CHECK(cudaGetLastError());
	got = to_host(out, 64);
	for (int t = 0; t < 64; t++)
		EXPECT_EQ(got[t], 1);
	CHECK(cudaFree(d));
	CHECK(cudaFree(out));
}

/* The same by plain loads: behind fences and barriers, or of a kind that no cache answers. */
__global__ void plain_blocks(int *flag, int *seen, int how)
{
	int b = blockIdx.x, *next = flag + b + 1;

	if (how == 2) {
		while (!__syncthreads_or(*next))
			;
	} else if (!threadIdx.x) {
		if (how)
			while (!__ldcg(next))
				;
		else
			while (!*next)
				__threadfence();
	}
	if (!threadIdx.x) {
		seen[b] = seen[b + 1] + 1;
		__threadfence();
		flag[b] = 1;
	}
}

__global__ void plain_warps(int *out)
{
	__shared__ int done[17];
	int w = threadIdx.x / 32, found;

	if (threadIdx.x < 17)
		done[threadIdx.x] = threadIdx.x == 16;
	__syncthreads();
	do {
		__syncwarp();
		found = done[w + 1];
	} while (!__any_sync(~0u, found));
	__syncwarp();
	if (threadIdx.x % 32 == 0) {
		out[w] = found + 1;
		done[w] = found + 1;
	}
}

__global__ void plain_lanes(int *flag, int *out)
{
	int l = threadIdx.x;

	while (!flag[l + 1])
		__threadfence();
	out[l] = flag[l + 1] + 1;
	__threadfence();
	flag[l] = flag[l + 1] + 1;
}

static void plainly(void)
{
	const int blocks = 30;
	int *flag, *out, one = 1;
	std::vector<int> got;

	CHECK(cudaMalloc(&flag, 256));
	CHECK(cudaMalloc(&out, 256));
	for (int how = 0; how < 3; how++) {
		CHECK(cudaMemset(flag, 0, 256));
		CHECK(cudaMemset(out, 0, 256));
		CHECK(cudaMemcpy(flag + blocks, &one, 4, cudaMemcpyHostToDevice));
		plain_blocks<<<blocks, 64>>>(flag, out, how);
		CHECK(cudaGetLastError());
		got = to_host(out, blocks);
		for (int i = 0; i < blocks; i++)
			EXPECT_EQ(got[i], blocks - i);
	}
	plain_warps<<<1, 512>>>(out);
	CHECK(cudaGetLastError());
	got = to_host(out, 16);
	for (int w = 0; w < 16; w++)
		EXPECT_EQ(got[w], 17 - w);
	CHECK(cudaMemset(flag, 0, 256));
	CHECK(cudaMemcpy(flag + 32, &one, 4, cudaMemcpyHostToDevice));
	plain_lanes<<<1, 32>>>(flag, out);
	CHECK(cudaGetLastError());
	got = to_host(out, 32);
	for (int l = 0; l < 32; l++)
		EXPECT_EQ(got[l], 33 - l);
	CHECK(cudaFree(flag));
	CHECK(cudaFree(out));
}

static void inside(void)
{
	int *d, *out;
	long long *v, want = 0;

	CHECK(cudaMalloc(&d, 4096));
	CHECK(cudaMalloc(&out, 4096));
	CHECK(cudaMalloc(&v, 8));
	CHECK(cudaMemset(d, 0, 4096));
	CHECK(cudaMemset(v, 0, 8));
	blocks_back<<<30, 32>>>(d, out);
	CHECK(cudaGetLastError());
	std::vector<int> got = to_host(out, 30);
	for (int i = 0; i < 30; i++)
		EXPECT_EQ(got[i], 30 - i);
	warps_back<<<3, 512>>>(out);
	CHECK(cudaGetLastError());
	got = to_host(out, 96);
	for (int b = 0; b < 3; b++)
		for (int w = 0; w < 16; w++)
			EXPECT_EQ(got[b * 32 + w], w + 1);
	CHECK(cudaMemset(d, 0, 4));
	lanes<<<1, 64>>>(d, out);
	CHECK(cudaGetLastError());
	got = to_host(out, 64);
	for (int i = 0; i < 64; i++)
		EXPECT_EQ(got[i], i * (i + 1) / 2);
	CHECK(cudaMemset(d, 0, 4));
	locks<<<4, 40>>>(d, v, 3, false);
	locks<<<4, 40>>>(d, v, 3, true);
	CHECK(cudaGetLastError());
	for (int i = 0; i < 2 * 4 * 40 * 3; i++)
		want = want * 3 % 1000003 + 1;
	EXPECT_EQ(to_host(v, 1)[0], want);
	CHECK(cudaFree(d));
	CHECK(cudaFree(out));
	CHECK(cudaFree(v));
}

/* A thread that waits in the driver holds no other up, and is let go by what that one does. */
static cudaStream_t blocked_stream;

static void *waits(void *)
{
	CHECK(cudaStreamSynchronize(blocked_stream));
	return NULL;
}

__global__ void until(volatile int *flag)
{
	while (!*flag)
		;
}

__global__ void raise_flag(int *flag)
{
	*flag = 1;
}

static void threads(void)
{
	pthread_t t[3];
	cudaStream_t s;
	cudaEvent_t e;
	int *d, *p;

	CHECK(cudaMalloc(&d, 4));
	CHECK(cudaMemset(d, 0, 4));
	CHECK(cudaStreamCreateWithFlags(&blocked_stream, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaEventCreate(&e));
	CHECK(cudaDeviceSynchronize());
	/* both are loaded before: a driver may wait for the device when it loads a kernel lazily */
	raise_flag<<<1, 1, 0, s>>>(d);
	until<<<1, 1, 0, s>>>(d);
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemset(d, 0, 4));
	CHECK(cudaDeviceSynchronize());
	until<<<1, 1, 0, blocked_stream>>>(d);
	CHECK(cudaEventRecord(e, blocked_stream));
	for (pthread_t &x : t)
		EXPECT(!pthread_create(&x, NULL, waits, NULL));
	usleep(20000);
	EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e));
	/* allocations, queries and new streams go on meanwhile */
	CHECK(cudaMallocAsync(&p, 1000, s));
	CHECK(cudaMemsetAsync(p, 0, 1000, s));
	CHECK(cudaFreeAsync(p, s));
	CHECK(cudaStreamSynchronize(s));
	raise_flag<<<1, 1, 0, s>>>(d);
	for (pthread_t &x : t)
		pthread_join(x, NULL);
	CHECK(cudaEventQuery(e));
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaStreamDestroy(blocked_stream));
	CHECK(cudaFree(d));
}

int main()
{
	reversed();
	mailbox();
	inside();
	meeting();
	plainly();
	at_barriers();
	threads();
	return job_passed("progress");
}
