// SPDX-License-Identifier: Apache-2.0
/*
 * coop.cu - cooperative groups: grid barriers between dependent phases, tiles, partitions.
 */
#include "../job.cuh"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

/* Prefix sums over the whole grid, one launch: each phase needs all of the one before. */
__global__ void scan_all(const int *in, long long *out, long long *part, int n)
{
	cg::grid_group grid = cg::this_grid();
	__shared__ long long s[256];
	int per = (n + gridDim.x - 1) / gridDim.x, from = blockIdx.x * per, to = min(n, from + per);
	long long sum = 0;

	for (int i = from + threadIdx.x; i < to; i += blockDim.x)
		sum += in[i];
	s[threadIdx.x] = sum;
	__syncthreads();
	if (!threadIdx.x) {
		for (int t = 1; t < blockDim.x; t++)
			s[0] += s[t];
		part[blockIdx.x] = s[0];
	}
	grid.sync();
	if (grid.thread_rank() == 0)
		for (int b = 1; b < gridDim.x; b++)
			part[b] += part[b - 1];
	grid.sync();
	if (!threadIdx.x) {
		long long run = blockIdx.x ? part[blockIdx.x - 1] : 0;

		for (int i = from; i < to; i++) {
			run += in[i];
			out[i] = run;
		}
	}
}

/* Heat flows over a ring of cells, with a barrier of the grid for each step. */
__global__ void heat(float *a, float *b, int n, int steps)
{
	cg::grid_group grid = cg::this_grid();

	for (int s = 0; s < steps; s++) {
		for (int i = grid.thread_rank(); i < n; i += grid.size())
			b[i] = 0.25f * a[(i + n - 1) % n] + 0.5f * a[i] + 0.25f * a[(i + 1) % n];
		grid.sync();
		float *t = a;
		a = b;
		b = t;
	}
}

template <int SIZE> __device__ void tile(const int *in, int *out)
{
	cg::thread_block block = cg::this_thread_block();
	cg::thread_block_tile<SIZE> t = cg::tiled_partition<SIZE>(block);
	int v = in[block.thread_rank()];
	int sum = cg::reduce(t, v, cg::plus<int>()), top = cg::reduce(t, v, cg::greater<int>());
	int before = cg::exclusive_scan(t, v), with = cg::inclusive_scan(t, v);

	out += block.thread_rank() * 8;
	out[0] = sum;
	out[1] = top;
	out[2] = before;
	out[3] = with;
	out[4] = t.shfl(v, SIZE - 1);
	out[5] = t.any(v > 900) + 2 * t.all(v >= 0);
	out[6] = t.ballot(v & 1);
	out[7] = t.meta_group_rank() * 100 + t.thread_rank();
}

__global__ void tiles(const int *in, int *out, int size)
{
	switch (size) {
	case 4: tile<4>(in, out); break;
	case 8: tile<8>(in, out); break;
	case 16: tile<16>(in, out); break;
	case 32: tile<32>(in, out); break;
	}
}

/* Groups of those who came here, and of those with the same label. */
__global__ void gathered(const int *in, int *out)
{
	int i = threadIdx.x, v = in[i];

	out[i] = -1;
	if (v % 3 == 0) {
		cg::coalesced_group g = cg::coalesced_threads();

		out[i] = g.size() * 1000 + g.thread_rank() * 10 + (g.shfl(v, 0) % 10);
	}
	cg::coalesced_group w = cg::coalesced_threads();
	cg::coalesced_group same = cg::labeled_partition(w, v % 4);
	out[blockDim.x + i] = cg::reduce(same, v, cg::plus<int>());
	cg::coalesced_group half = cg::binary_partition(w, v > 500);
	out[2 * blockDim.x + i] = half.size();
}

static void whole_grid(void)
{
	int n = 20000, blocks, sms, steps = 12, m = 5000;
	std::vector<int> in(n);
	std::vector<float> a(m), b(m);
	unsigned int seed = 12;
	long long *out, *part, run = 0;

	for (int &x : in)
		x = (int)(rnd(&seed) % 2001) - 1000;
	for (float &x : a)
		x = rndf(&seed);
	int *d = to_device(in);
	float *da = to_device(a), *db = to_device(b);
	CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scan_all, 256, 0));
	blocks = std::min(blocks * sms, 24);
	CHECK(cudaMalloc(&out, n * 8));
	CHECK(cudaMalloc(&part, blocks * 8));
	void *args[] = { &d, &out, &part, &n };
	CHECK(cudaLaunchCooperativeKernel(scan_all, dim3(blocks), dim3(256), args, 0, 0));
	std::vector<long long> got = to_host(out, n);
	for (int i = 0; i < n; i++) {
		run += in[i];
		EXPECT_EQ(got[i], run);
	}
	sum_vector(got);
	void *heat_args[] = { &da, &db, &m, &steps };
	CHECK(cudaLaunchCooperativeKernel(heat, dim3(8), dim3(128), heat_args, 0, 0));
	std::vector<float> h = to_host(da, m);
	for (int s = 0; s < steps; s++) {
		for (int i = 0; i < m; i++)
			b[i] = fmaf(0.25f, a[(i + 1) % m], fmaf(0.25f, a[(i + m - 1) % m], 0.5f * a[i]));
		a.swap(b);
	}
	for (int i = 0; i < m; i++)
		EXPECT_NEAR(h[i], a[i], 1e-6);
	sum_vector(h);
	CHECK(cudaDeviceSynchronize());
}

static void small_groups(void)
{
	const int n = 128;
	std::vector<int> in(n);
	unsigned int seed = 13;
	int *out, *d;

	for (int &x : in)
		x = rnd(&seed) % 1000;
	d = to_device(in);
	CHECK(cudaMalloc(&out, n * 8 * 4));
	for (int size : { 4, 8, 16, 32 }) {
		tiles<<<1, n>>>(d, out, size);
		CHECK(cudaGetLastError());
		std::vector<int> got = to_host(out, n * 8);
		for (int i = 0; i < n; i++) {
			int from = i / size * size, sum = 0, top = 0, before = 0, any = 0, all = 1;
			unsigned int bits = 0;

			for (int k = from; k < from + size; k++) {
				sum += in[k];
				top = std::max(top, in[k]);
				if (k < i)
					before += in[k];
				any |= in[k] > 900;
				all &= in[k] >= 0;
				bits |= (in[k] & 1) << (k - from);
			}
			EXPECT_EQ(got[i * 8], sum);
			EXPECT_EQ(got[i * 8 + 1], top);
			EXPECT_EQ(got[i * 8 + 2], before);
			EXPECT_EQ(got[i * 8 + 3], before + in[i]);
			EXPECT_EQ(got[i * 8 + 4], in[from + size - 1]);
			EXPECT_EQ(got[i * 8 + 5], any + 2 * all);
			EXPECT_EQ((unsigned int)got[i * 8 + 6], bits);
			EXPECT_EQ(got[i * 8 + 7], i / size * 100 + i % size);
		}
		sum_vector(got);
	}
	gathered<<<1, n>>>(d, out);
	CHECK(cudaGetLastError());
	std::vector<int> got = to_host(out, 3 * n);
	for (int w = 0; w < n; w += 32) {
		int third = 0, first = -1, label[4] = {}, half[2] = {}, rank = 0;

		for (int i = w; i < w + 32; i++) {
			if (in[i] % 3 == 0) {
				third++;
				if (first < 0)
					first = in[i] % 10;
			}
			label[in[i] % 4] += in[i];
			half[in[i] > 500]++;
		}
		for (int i = w; i < w + 32; i++) {
			EXPECT_EQ(got[i], in[i] % 3 ? -1 : third * 1000 + rank++ * 10 + first);
			EXPECT_EQ(got[n + i], label[in[i] % 4]);
			EXPECT_EQ(got[2 * n + i], half[in[i] > 500]);
		}
	}
	sum_vector(got);
}

int main()
{
	int can;

	CHECK(cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, 0));
	EXPECT(can);
	whole_grid();
	small_groups();
	return job_passed("coop");
}
