// SPDX-License-Identifier: Apache-2.0
/*
 * scopes.cu - the toolkit's C++ library on the device: atomics with orders and scopes, barriers, latches,
 * pipelines; threads that wait for each other in and across blocks, and the host that waits for them.
 */
#include "../job.cuh"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/std/complex>
#include <cuda/std/tuple>

namespace cg = cooperative_groups;

/* Messages from block to block: data, then a flag that is released and acquired. */
__global__ void relay(int *data, cuda::atomic<int, cuda::thread_scope_device> *flag, int n)
{
	int me = blockIdx.x;

	if (me) {
		if (!threadIdx.x)
			while (flag[me - 1].load(cuda::memory_order_acquire) != n)
				;
		__syncthreads();
	}
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[me * n + i] = me ? data[(me - 1) * n + i] * 3 + me : i;
	__syncthreads();
	if (!threadIdx.x) {
		flag[me].fetch_add(n - 1, cuda::memory_order_relaxed);
		flag[me].fetch_add(1, cuda::memory_order_release);
	}
}

__global__ void all_widths(int *i, long long *l, unsigned int *u, float *f, double *d, short *h)
{
	cuda::atomic_ref<int, cuda::thread_scope_device> ai(*i);
	cuda::atomic_ref<long long, cuda::thread_scope_system> al(*l);
	cuda::atomic_ref<unsigned int, cuda::thread_scope_block> au(*u);
	cuda::atomic_ref<float, cuda::thread_scope_device> af(*f);
	cuda::atomic_ref<double> ad(*d);
	cuda::atomic_ref<short, cuda::thread_scope_device> ah(*h);
	int t = blockIdx.x * blockDim.x + threadIdx.x;

	ai.fetch_add(t, cuda::memory_order_relaxed);
	al.fetch_max((long long)t << 33, cuda::memory_order_acq_rel);
	if (!blockIdx.x)
		au.fetch_xor(t * 2654435761u, cuda::memory_order_relaxed);
	af.fetch_add(0.25f);
	ad.fetch_sub(0.5);
	short old = ah.load();
	while (!ah.compare_exchange_weak(old, (short)(old + 3)))
		;
}

/* Producers and consumers in one block, through two buffers and barriers of arrival. */
__global__ void two_buffers(const int *in, long long *out, int rounds)
{
	typedef cuda::barrier<cuda::thread_scope_block> barrier;
	__shared__ int buf[2][32];
	__shared__ alignas(barrier) char raw[4][sizeof(barrier)];
	barrier *full = (barrier *)raw[0], *empty = (barrier *)raw[2];
	bool producer = threadIdx.x < 32;
	int lane = threadIdx.x & 31;
	long long sum = 0;

	if (!threadIdx.x)
		for (int i = 0; i < 2; i++) {
			init(&full[i], blockDim.x);
			init(&empty[i], blockDim.x);
		}
	__syncthreads();
	if (producer) {
		for (int r = 0; r < rounds; r++) {
			if (r >= 2)
				empty[r & 1].arrive_and_wait();
			buf[r & 1][lane] = in[r * 32 + lane];
			(void)full[r & 1].arrive();
		}
	} else {
		for (int r = 0; r < rounds; r++) {
			full[r & 1].arrive_and_wait();
			sum += (long long)buf[r & 1][(lane + r) & 31] * (r + 1);
			if (r + 2 < rounds)
				(void)empty[r & 1].arrive();
		}
		out[lane] = sum;
	}
}

/* Copies to shared memory that run ahead of their use by two stages. */
__global__ void staged(const float *in, float *out, int tiles)
{
	__shared__ float buf[3][128];
	cg::thread_block block = cg::this_thread_block();
#pragma nv_diag_suppress static_var_with_dynamic_init
	__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> state;
	auto pipe = cuda::make_pipeline(block, &state);
	float sum = 0;

	for (int t = 0, ahead = 0; t < tiles; t++) {
		for (; ahead < tiles && ahead < t + 3; ahead++) {
			pipe.producer_acquire();
			cuda::memcpy_async(block, buf[ahead % 3], in + ahead * 128,
					   sizeof(float) * 128, pipe);
			pipe.producer_commit();
		}
		pipe.consumer_wait();
		sum += buf[t % 3][127 - threadIdx.x] * (t + 1);
		pipe.consumer_release();
	}
	out[threadIdx.x] = sum;
	block.sync();			/* buf[0] may still be read */
	cg::memcpy_async(block, buf[0], in, sizeof(float) * 128);
	cg::wait(block);
	out[threadIdx.x] += buf[0][threadIdx.x ^ 1];
}

__global__ void latched(int *out)
{
	__shared__ cuda::latch<cuda::thread_scope_block> *l;
	__shared__ alignas(16) char raw[sizeof(cuda::latch<cuda::thread_scope_block>)];
	__shared__ int v[64];

	if (!threadIdx.x)
		l = new (raw) cuda::latch<cuda::thread_scope_block>(blockDim.x);
	__syncthreads();
	v[threadIdx.x] = threadIdx.x * 2;
	l->arrive_and_wait();
	out[threadIdx.x] = v[63 - threadIdx.x];
}

__global__ void library(float *out)
{
	cuda::std::complex<float> z(0, 0), c(0.1f * threadIdx.x - 1.5f, 0.3f);
	int n = 0;

	for (; n < 50 && cuda::std::norm(z) < 4; n++)
		z = z * z + c;
	auto t = cuda::std::make_tuple(n, z.real(), z.imag());
	out[threadIdx.x] = cuda::std::get<0>(t);
}

/* The host and a kernel take turns through an atomic of system scope. */
__global__ void answers(cuda::atomic<int, cuda::thread_scope_system> *turn, int *value, int times)
{
	for (int i = 0; i < times; i++) {
		while (turn->load(cuda::memory_order_acquire) != 2 * i + 1)
			;
		*value = *value * 2 + 1;
		turn->store(2 * i + 2, cuda::memory_order_release);
	}
}

int main()
{
	const int blocks = 10, n = 200;
	int *data;
	cuda::atomic<int, cuda::thread_scope_device> *flag;

	CHECK(cudaMalloc(&data, blocks * n * 4));
	CHECK(cudaMalloc(&flag, blocks * sizeof(*flag)));
	CHECK(cudaMemset(flag, 0, blocks * sizeof(*flag)));
	relay<<<blocks, 64>>>(data, flag, n);
	CHECK(cudaGetLastError());
	std::vector<int> got = to_host(data, blocks * n);
	for (int b = 0; b < blocks; b++)
		for (int i = 0; i < n; i++)
			EXPECT_EQ(got[b * n + i], b ? got[(b - 1) * n + i] * 3 + b : i);
	sum_vector(got);

	struct {
		long long l;
		double d;
		int i;
		unsigned int u;
		float f;
		short h;
	} *m;
	CHECK(cudaMallocManaged(&m, sizeof(*m)));
	memset(m, 0, sizeof(*m));
	all_widths<<<6, 100>>>(&m->i, &m->l, &m->u, &m->f, &m->d, &m->h);
	CHECK(cudaDeviceSynchronize());
	unsigned int x = 0;
	for (int i = 0; i < 100; i++)
		x ^= i * 2654435761u;
	EXPECT(m->i == 599 * 300 && m->l == 599ll << 33 && m->u == x && m->f == 150 && m->d == -300 &&
	       m->h == 1800);

	const int rounds = 40;
	std::vector<int> in(rounds * 32);
	std::vector<float> fin(20 * 128);
	unsigned int seed = 120;
	long long *out;
	float *fout;
	for (int &v : in)
		v = rnd(&seed);
	for (float &v : fin)
		v = rnd(&seed) % 1000;
	CHECK(cudaMalloc(&out, 32 * 8));
	CHECK(cudaMalloc(&fout, 128 * 4));
	two_buffers<<<1, 64>>>(to_device(in), out, rounds);
	CHECK(cudaGetLastError());
	std::vector<long long> sums = to_host(out, 32);
	for (int l = 0; l < 32; l++) {
		long long s = 0;

		for (int r = 0; r < rounds; r++)
			s += (long long)in[r * 32 + ((l + r) & 31)] * (r + 1);
		EXPECT_EQ(sums[l], s);
	}
	sum_vector(sums);
	staged<<<1, 128>>>(to_device(fin), fout, 20);
	CHECK(cudaGetLastError());
	std::vector<float> f = to_host(fout, 128);
	for (int t = 0; t < 128; t++) {
		float s = 0;

		for (int k = 0; k < 20; k++)
			s += fin[k * 128 + 127 - t] * (k + 1);
		EXPECT(f[t] == s + fin[t ^ 1]);
	}
	sum_vector(f);
	latched<<<1, 64>>>(data);
	CHECK(cudaGetLastError());
	got = to_host(data, 64);
	for (int i = 0; i < 64; i++)
		EXPECT_EQ(got[i], (63 - i) * 2);
	library<<<1, 32>>>(fout);
	CHECK(cudaGetLastError());
	f = to_host(fout, 32);
	EXPECT(f[0] >= 1 && f[0] <= 50);

	cuda::atomic<int, cuda::thread_scope_system> *turn;
	CHECK(cudaHostAlloc(&turn, 256, cudaHostAllocMapped));
	new (turn) cuda::atomic<int, cuda::thread_scope_system>(0);
	int *value = (int *)turn + 32, want = 1;
	*value = 1;
	answers<<<1, 1>>>(turn, value, 50);
	for (int i = 0; i < 50; i++) {
		*value += i;
		turn->store(2 * i + 1, cuda::memory_order_release);
		while (turn->load(cuda::memory_order_acquire) != 2 * i + 2)
			;
		want = (want + i) * 2 + 1;
	}
	EXPECT_EQ(*value, want);
	CHECK(cudaDeviceSynchronize());
	return job_passed("scopes");
}
