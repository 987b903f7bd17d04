// SPDX-License-Identifier: Apache-2.0
/*
 * d_coop.cu - cooperative groups: tiles, and barriers of a whole grid.
 */
#include "direct.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

__global__ void rounds(int *a, int *b, int n, int times)
{
	cg::grid_group grid = cg::this_grid();
	int *from = a, *to = b;

	for (int t = 0; t < times; t++) {
		for (int i = grid.thread_rank(); i < n; i += grid.size())
			to[i] = from[(i + 1) % n] + 1;
		grid.sync();
		int *tmp = from;
		from = to;
		to = tmp;
	}
}

__global__ void tiles(int *out)
{
	cg::thread_block b = cg::this_thread_block();
	cg::thread_block_tile<8> t = cg::tiled_partition<8>(b);
	int v = b.thread_rank();

	for (int d = 4; d; d >>= 1)
		v += t.shfl_xor(v, d);
	out[b.thread_rank()] = v;
	b.sync();
	if (t.thread_rank() == 0)
		out[b.thread_rank()] += 1000;
}

int main()
{
	int n = 4096, times = 20, *a, *b, *o, got[64], blocks;
	std::vector<int> h(n), back(n);
	void *args[] = { &a, &b, &n, &times };
	cudaDeviceProp p;

	CHECK(cudaGetDeviceProperties(&p, 0));
	EXPECT(p.cooperativeLaunch && p.major == 13);
	for (int i = 0; i < n; i++)
		h[i] = i * 7;
	CHECK(cudaMalloc(&a, n * 4));
	CHECK(cudaMalloc(&b, n * 4));
	CHECK(cudaMalloc(&o, 256));
	CHECK(cudaMemcpy(a, h.data(), n * 4, cudaMemcpyHostToDevice));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, rounds, 128, 0));
	EXPECT(blocks > 0);
	CHECK(cudaLaunchCooperativeKernel((void *)rounds, 8, 128, args, 0, 0));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpy(back.data(), a, n * 4, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++)
		EXPECT(back[i] == h[(i + times) % n] + times);
	EXPECT_ERROR(cudaErrorCooperativeLaunchTooLarge,
		     cudaLaunchCooperativeKernel((void *)rounds, 100000, 128, args, 0, 0));
	cudaGetLastError();
	tiles<<<1, 64>>>(o);
	CHECK(cudaMemcpy(got, o, 256, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 64; i++)
		EXPECT(got[i] == (i / 8) * 64 + 28 + (i % 8 ? 0 : 1000));
	printf("PASS\n");
	return 0;
}
