// SPDX-License-Identifier: Apache-2.0
/*
 * barriers.cu - barriers in shared memory: a block's threads arrive and wait apart, warps hand each
 * other buffers round a ring, lanes of one warp wait for each other, and threads leave.
 */
#include "../job.cuh"

#include <cuda/barrier>

#pragma nv_diag_suppress static_var_with_dynamic_init

typedef cuda::barrier<cuda::thread_scope_block> barrier;

enum { THREADS = 192, BLOCKS = 5, ROUNDS = 9 };

/* Each round adds what another thread wrote in the round before. */
__global__ void neighbours(int *out)
{
	__shared__ barrier bar;
	__shared__ int v[2][THREADS];
	int t = threadIdx.x, sum = t;

	if (!t)
		init(&bar, THREADS);
	__syncthreads();
	for (int r = 0; r < ROUNDS; r++) {
		v[r & 1][t] = sum + r;
		barrier::arrival_token token = bar.arrive();
		int own = sum * 3;
		bar.wait(std::move(token));
		sum = own + v[r & 1][(t * 7 + r) % THREADS];
	}
	out[blockIdx.x * THREADS + t] = sum;
}

static int neighbours_want(int t)
{
	int s[THREADS], next[THREADS];

	for (int i = 0; i < THREADS; i++)
		s[i] = i;
	for (int r = 0; r < ROUNDS; r++) {
		for (int i = 0; i < THREADS; i++)
			next[i] = (int)(3u * s[i] + s[(i * 7 + r) % THREADS] + r);
		memcpy(s, next, sizeof(s));
	}
	return s[t];
}

enum { STAGES = 3, PART = 64 };

/*
 * The first warps fill a ring of buffers, the others empty it.  Producers arrive in each phase of
 * `full` and wait for `empty`, consumers the reverse; both sides wait by parity.
 */
__global__ void ring(const int *in, int *out, int parts)
{
	__shared__ barrier full[STAGES], empty[STAGES];
	__shared__ int buf[STAGES][PART];
	int t = threadIdx.x;

	if (t < STAGES) {
		init(&full[t], PART);
		init(&empty[t], THREADS - PART);
	}
	__syncthreads();
	if (t < PART) {
		for (int p = 0; p < parts; p++) {
			int s = p % STAGES, turn = p / STAGES;

			if (turn)
				empty[s].wait_parity((turn - 1) & 1);
			buf[s][t] = in[p * PART + t] * 2;
			(void)full[s].arrive();
		}
	} else {
		int c = t - PART, sum = 0;

		for (int p = 0; p < parts; p++) {
			int s = p % STAGES;

			full[s].wait_parity(p / STAGES & 1);
			sum += buf[s][c % PART] * (p + 1 + c / PART);
			(void)empty[s].arrive();
		}
		out[c] = sum;
	}
}

/* Every lane waits for the lane before it, which may be one of its own warp. */
__global__ void chain(int *out, int n)
{
	__shared__ barrier bar[64];
	__shared__ int v;
	int t = threadIdx.x;

	if (t < n)
		init(&bar[t], 1);
	if (!t)
		v = 1;
	__syncthreads();
	if (t >= n)
		return;
	if (t)
		bar[t - 1].wait_parity(0);
	v = v * 3 + t;
	out[t] = v;
	(void)bar[t].arrive();
}

/* A thread leaves in each round, and those that stay go on. */
__global__ void leaving(int *out)
{
	__shared__ barrier bar;
	__shared__ int left[THREADS / 8];
	int t = threadIdx.x, r;

	if (!t)
		init(&bar, THREADS);
	left[t / 8] = 0;
	__syncthreads();
	for (r = 0; r < THREADS / 8; r++) {
		if (t / 8 == r) {
			atomicAdd(&left[r], 1);
			bar.arrive_and_drop();
			break;
		}
		bar.arrive_and_wait();
		if (left[r] != 8)
			break;
	}
	out[t] = r;
}

/* Arrivals for several threads at once: the first of each warp does it for all. */
__global__ void by_warps(int *out)
{
	__shared__ barrier bar;
	__shared__ int sum[THREADS / 32];
	int t = threadIdx.x, all = 0;

	if (!t)
		init(&bar, THREADS);
	__syncthreads();
	int s = __reduce_add_sync(~0u, t * t);
	if (t % 32 == 0) {
		sum[t / 32] = s;
		(void)bar.arrive(32);
	}
	bar.wait_parity(0);
	for (int i = 0; i < THREADS / 32; i++)
		all += sum[i];
	out[t] = all;
}

int main()
{
	int parts = 50;
	std::vector<int> in(parts * PART), h;
	unsigned int seed = 5;
	int *d, *d_in, want;

	for (int &v : in)
		v = rnd(&seed) % 1000;
	d_in = to_device(in);
	CHECK(cudaMalloc(&d, BLOCKS * THREADS * sizeof(int)));

	neighbours<<<BLOCKS, THREADS>>>(d);
	CHECK(cudaGetLastError());
	h = to_host(d, BLOCKS * THREADS);
	for (int t = 0; t < THREADS; t++) {
		want = neighbours_want(t);
		for (int b = 0; b < BLOCKS; b++)
			EXPECT_EQ(h[b * THREADS + t], want);
	}
	sum_vector(h);

	ring<<<1, THREADS>>>(d_in, d, parts);
	CHECK(cudaGetLastError());
	h = to_host(d, THREADS - PART);
	for (int c = 0; c < THREADS - PART; c++) {
		want = 0;
		for (int p = 0; p < parts; p++)
			want += in[p * PART + c % PART] * 2 * (p + 1 + c / PART);
		EXPECT_EQ(h[c], want);
	}
	sum_vector(h);

	chain<<<1, 64>>>(d, 64);
	CHECK(cudaGetLastError());
	h = to_host(d, 64);
	want = 1;
	for (int t = 0; t < 64; t++) {
		want = (int)(3u * want + t);
		EXPECT_EQ(h[t], want);
	}
	sum_vector(h);

	leaving<<<1, THREADS>>>(d);
	CHECK(cudaGetLastError());
	h = to_host(d, THREADS);
	for (int t = 0; t < THREADS; t++)
		EXPECT_EQ(h[t], t / 8);
	sum_vector(h);

	by_warps<<<1, THREADS>>>(d);
	CHECK(cudaGetLastError());
	h = to_host(d, THREADS);
	want = 0;
	for (int t = 0; t < THREADS; t++)
		want += t * t;
	for (int t = 0; t < THREADS; t++)
		EXPECT_EQ(h[t], want);
	sum_vector(h);
	return job_passed("barriers");
}
