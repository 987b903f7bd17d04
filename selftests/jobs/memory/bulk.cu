// SPDX-License-Identifier: Apache-2.0
/*
 * bulk.cu - copies in bulk between global and shared memory that complete on barriers, or in groups:
 * a ring of tiles that one thread fills, sums that go back, and CUB's transformations.
 */
#include "../job.cuh"

#include <cub/cub.cuh>
#include <cuda/barrier>
#include <cuda/ptx>

#pragma nv_diag_suppress static_var_with_dynamic_init

namespace ptx = cuda::ptx;
typedef cuda::barrier<cuda::thread_scope_block> barrier;

enum { THREADS = 128, TILE = 256, STAGES = 4, BLOCKS = 6 };

/* One thread keeps STAGES tiles on their way; all scale a tile, and one thread sends it back. */
__global__ void scale(const float *in, float *out, int tiles, float by)
{
	alignas(128) __shared__ float tile[STAGES][TILE], ready[2][TILE];
	__shared__ barrier full[STAGES];
	int t = threadIdx.x, mine = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;

	if (t < STAGES)
		init(&full[t], 1);
	ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
	__syncthreads();
	auto fetch = [&](int k) {
		if (k < mine) {
			cuda::device::memcpy_async_tx(tile[k % STAGES],
				in + (size_t)(blockIdx.x + k * gridDim.x) * TILE,
				cuda::aligned_size_t<16>(sizeof(tile[0])), full[k % STAGES]);
			(void)cuda::device::barrier_arrive_tx(full[k % STAGES], 1, sizeof(tile[0]));
		}
	};
	for (int k = 0; k < STAGES && !t; k++)
		fetch(k);
	for (int k = 0; k < mine; k++) {
		full[k % STAGES].wait_parity(k / STAGES & 1);
		if (!t)
			ptx::cp_async_bulk_wait_group_read(ptx::n32_t<1>());
		__syncthreads();
		for (int i = t; i < TILE; i += THREADS)
			ready[k & 1][i] = tile[k % STAGES][i] * by;
		ptx::fence_proxy_async(ptx::space_shared);
		__syncthreads();
		if (!t) {
			ptx::cp_async_bulk(ptx::space_global, ptx::space_shared,
				out + (size_t)(blockIdx.x + k * gridDim.x) * TILE, ready[k & 1],
				sizeof(ready[0]));
			ptx::cp_async_bulk_commit_group();
			fetch(k + STAGES);
		}
	}
	if (!t)
		ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

/* The library's own choice: cp.async, or a bulk copy, by the alignment that it is told. */
template <int ALIGN> __global__ void by_block(const int *in, int *out, int n)
{
	alignas(16) __shared__ int tile[TILE];
	__shared__ barrier bar;
	int t = threadIdx.x, sum = 0;

	if (!t)
		init(&bar, THREADS);
	__syncthreads();
	for (int at = 0; at < n; at += TILE) {
		cuda::memcpy_async(tile, in + at, cuda::aligned_size_t<ALIGN>(sizeof(tile)), bar);
		bar.arrive_and_wait();
		sum = sum * 3 + tile[(t * 5) % TILE] - tile[TILE - 1 - t];
		bar.arrive_and_wait();
	}
	out[t] = sum;
}

__global__ void by_thread(const int *in, int *out)
{
	__shared__ int tile[TILE];
	__shared__ barrier bar;
	int t = threadIdx.x;

	if (!t)
		init(&bar, THREADS);
	__syncthreads();
	for (int i = t; i < TILE; i += THREADS)
		cuda::memcpy_async(&tile[i], &in[i], sizeof(int), bar);
	bar.arrive_and_wait();
	out[t] = tile[TILE - 1 - t] - tile[t];
}

/* Each block adds its numbers to all; integers, so that the order does not matter. */
__global__ void add_up(int *sums, uint64_t *most)
{
	alignas(16) __shared__ int v[TILE];
	alignas(16) __shared__ uint64_t m[TILE];
	int t = threadIdx.x;

	for (int i = t; i < TILE; i += THREADS) {
		v[i] = (blockIdx.x + 1) * i;
		m[i] = (blockIdx.x * 37ull + i * 11ull) % 101;
	}
	ptx::fence_proxy_async(ptx::space_shared);
	__syncthreads();
	if (t)
		return;
	ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, sums, v, sizeof(v));
	ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_max, most, m, sizeof(m));
	ptx::cp_async_bulk_commit_group();
	ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

struct axpy {
	float a;
	__host__ __device__ float operator()(float x, float y) const { return fmaf(a, x, y); }
};
struct mix {
	__host__ __device__ short operator()(short x, signed char y) const { return x * 3 - y; }
};

static void transform(size_t n, size_t shift)
{
	std::vector<float> x(n + shift), y(n + shift), z;
	std::vector<short> s(n + shift), r;
	std::vector<signed char> c(n + shift);
	unsigned int seed = 17 + n;
	float *dx, *dy, *dz;
	signed char *dc;
	short *ds, *dr;

	for (size_t i = 0; i < n + shift; i++) {
		x[i] = rndf(&seed);
		y[i] = rndf(&seed);
		s[i] = rnd(&seed);
		c[i] = rnd(&seed);
	}
	dx = to_device(x);
	dy = to_device(y);
	ds = to_device(s);
	dc = to_device(c);
	CHECK(cudaMalloc(&dz, n * sizeof(float)));
	CHECK(cudaMalloc(&dr, n * sizeof(short)));
	CHECK(cub::DeviceTransform::Transform(cuda::std::make_tuple(dx + shift, dy + shift), dz, n,
					      axpy{ 1.5f }));
	CHECK(cub::DeviceTransform::Transform(cuda::std::make_tuple(ds + shift, dc + shift), dr, n,
					      mix()));
	z = to_host(dz, n);
	r = to_host(dr, n);
	for (size_t i = 0; i < n; i++) {
		EXPECT(z[i] == fmaf(1.5f, x[i + shift], y[i + shift]));
		EXPECT_EQ(r[i], (short)(s[i + shift] * 3 - c[i + shift]));
	}
	sum_vector(z);
	sum_vector(r);
	for (void *p : { (void *)dx, (void *)dy, (void *)dz, (void *)ds, (void *)dc, (void *)dr })
		CHECK(cudaFree(p));
}

template <typename K> static void sums(K kernel, const std::vector<int> &in, const int *d_in, int *d)
{
	kernel<<<1, THREADS>>>(d_in, d, (int)in.size());
	CHECK(cudaGetLastError());
	std::vector<int> h = to_host(d, THREADS);
	for (int t = 0; t < THREADS; t++) {
		unsigned int want = 0;

		for (size_t at = 0; at < in.size(); at += TILE)
			want = want * 3 + in[at + t * 5 % TILE] - in[at + TILE - 1 - t];
		EXPECT_EQ(h[t], (int)want);
	}
	sum_vector(h);
}

int main()
{
	int tiles = 29;
	std::vector<float> in(tiles * TILE), out;
	std::vector<int> ints(10 * TILE), h(TILE);
	std::vector<uint64_t> m(TILE);
	unsigned int seed = 3;
	float *d_in, *d_out;

	for (float &f : in)
		f = rndf(&seed);
	for (int &i : ints)
		i = rnd(&seed) % 100000;
	d_in = to_device(in);
	CHECK(cudaMalloc(&d_out, in.size() * sizeof(float)));
	scale<<<BLOCKS, THREADS>>>(d_in, d_out, tiles, 0.75f);
	CHECK(cudaGetLastError());
	out = to_host(d_out, in.size());
	for (size_t i = 0; i < in.size(); i++)
		EXPECT(out[i] == in[i] * 0.75f);
	sum_vector(out);

	int *d_ints = to_device(ints), *d = to_device(h);
	sums(by_block<16>, ints, d_ints, d);
	sums(by_block<4>, ints, d_ints, d);
	by_thread<<<1, THREADS>>>(d_ints, d);
	CHECK(cudaGetLastError());
	h = to_host(d, THREADS);
	for (int t = 0; t < THREADS; t++)
		EXPECT_EQ(h[t], ints[TILE - 1 - t] - ints[t]);

	CHECK(cudaMemset(d, 0, TILE * sizeof(int)));
	uint64_t *d_m = to_device(m);
	add_up<<<BLOCKS, THREADS>>>(d, d_m);
	CHECK(cudaGetLastError());
	h = to_host(d, TILE);
	m = to_host(d_m, TILE);
	for (int i = 0; i < TILE; i++) {
		uint64_t most = 0;

		for (int b = 0; b < BLOCKS; b++)
			most = std::max(most, (uint64_t)(b * 37 + i * 11) % 101);
		EXPECT_EQ(h[i], i * BLOCKS * (BLOCKS + 1) / 2);
		EXPECT_EQ(m[i], most);
	}
	sum_vector(h);
	for (size_t n : { 1, 31, 1000, 123457 })
		for (size_t shift : { 0, 1, 5 })
			transform(n, shift);
	return job_passed("bulk");
}
