// SPDX-License-Identifier: Apache-2.0
/*
 * tiles.cu - groups of several warps: barriers, reductions, scans and broadcasts of 64 to 512 threads.
 *
 * Also built for compute capability 8.0, where the groups' scratch memory is not the program's,
 * but a region of shared memory that is reserved for the system.
 */
#include "../job.cuh"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

/* out: of each thread the sum of its tile, the sum up to itself, and the number of one for all. */
template <int SIZE> __global__ void tiles(const int *in, int3 *out)
{
	__shared__ cg::block_tile_memory<1024> scratch;
	__shared__ int last[1024 / SIZE];
	extern __shared__ int own[];
	cg::thread_block block = cg::this_thread_block(scratch);
	auto tile = cg::tiled_partition<SIZE>(block);
	int i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], sum, upto, one;

	own[threadIdx.x] = v;
	if (tile.thread_rank() == SIZE - 1)
		last[tile.meta_group_rank()] = v;
	tile.sync();
	sum = cg::reduce(tile, v, cg::plus<int>());
	upto = cg::inclusive_scan(tile, v);
	one = tile.shfl(v, 33);
	/* what the program keeps in shared memory is not the tile's */
	if (own[threadIdx.x] != v || (tile.all(1) && last[threadIdx.x / SIZE] !=
				      own[threadIdx.x / SIZE * SIZE + SIZE - 1]))
		sum = -1;
	out[i] = make_int3(sum, upto, one);
}

template <int SIZE> static void try_size(const std::vector<int> &in, int *d_in, int3 *d_out)
{
	const int threads = 512;
	int n = in.size();

	tiles<SIZE><<<n / threads, threads, threads * sizeof(int)>>>(d_in, d_out);
	CHECK(cudaGetLastError());
	std::vector<int3> got = to_host(d_out, n);
	for (int t = 0; t < n; t += SIZE) {
		int sum = 0;

		for (int i = 0; i < SIZE; i++) {
			sum += in[t + i];
			EXPECT_EQ(got[t + i].y, sum);
			EXPECT_EQ(got[t + i].z, in[t + 33]);
		}
		for (int i = 0; i < SIZE; i++)
			EXPECT_EQ(got[t + i].x, sum);
	}
}

int main()
{
	std::vector<int> in(8192);
	unsigned int seed = 60;
	int3 *out;

	for (int &v : in)
		v = rnd(&seed) % 1000;
	int *d = to_device(in);
	CHECK(cudaMalloc(&out, in.size() * sizeof(*out)));
	try_size<64>(in, d, out);
	try_size<128>(in, d, out);
	try_size<256>(in, d, out);
	try_size<512>(in, d, out);
	sum_vector(to_host(out, in.size()));
	CHECK(cudaFree(d));
	CHECK(cudaFree(out));
	return job_passed("tiles");
}
