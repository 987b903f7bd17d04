// SPDX-License-Identifier: Apache-2.0
/*
 * clusters.cu - blocks in clusters: each reads shared memory of the cluster's next block; or, on a
 * device without them, the launch is refused and nothing runs. Clusters of one block work everywhere.
 */
#include "../job.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

/* Each block leaves its number in shared memory, for the next of its cluster; and the cluster's size. */
static __device__ void swap_numbers(int *out)
{
	cg::cluster_group c = cg::this_cluster();
	__shared__ int mine;

	if (!threadIdx.x)
		mine = 100 + blockIdx.x;
	c.sync();
	out[blockIdx.x * blockDim.x + threadIdx.x] = c.num_blocks() * 1000 +
		*c.map_shared_rank(&mine, (c.block_rank() + 1) % c.num_blocks());
	c.sync();
}

__global__ void __cluster_dims__(2, 1, 1) pairs(int *out)
{
	swap_numbers(out);
}

__global__ void __cluster_dims__(1, 1, 1) ones(int *out)
{
	swap_numbers(out);
}

__global__ void as_launched(int *out)
{
	swap_numbers(out);
}

enum { BLOCKS = 8, THREADS = 64 };

static int *d;

/* All blocks have run in clusters of `size`; 0: none has. */
static void check(unsigned int size)
{
	std::vector<int> h = to_host(d, BLOCKS * THREADS);

	for (int i = 0; i < BLOCKS * THREADS; i++) {
		int b = i / THREADS, next = b / (size ?: 1) * size + (b + 1) % (size ?: 1);

		EXPECT_EQ(h[i], size ? (int)size * 1000 + 100 + next : 0);
	}
	sum_bytes(h.data(), h.size() * sizeof(h[0]));
	CHECK(cudaMemset(d, 0, BLOCKS * THREADS * sizeof(int)));
}

/* @e is of the launch: it worked, or was refused then and there. */
static void in_pairs(const char *what, cudaError_t e)
{
	if (e == cudaSuccess) {
		check(2);
		return;
	}
	EXPECT_ERROR(cudaErrorInvalidClusterSize, e);
	cudaGetLastError();
	CHECK(cudaDeviceSynchronize());
	check(0);
	printf("refused: %s: %s\n", what, cudaGetErrorName(e));
}

static cudaError_t launch(void (*kernel)(int *), unsigned int size)
{
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute a = {};

	c.gridDim = dim3(BLOCKS);
	c.blockDim = dim3(THREADS);
	a.id = cudaLaunchAttributeClusterDimension;
	a.val.clusterDim = { size, 1, 1 };
	c.attrs = &a;
	c.numAttrs = 1;
	return cudaLaunchKernelEx(&c, kernel, d);
}

int main()
{
	CHECK(cudaMalloc(&d, BLOCKS * THREADS * sizeof(int)));
	CHECK(cudaMemset(d, 0, BLOCKS * THREADS * sizeof(int)));
	for (int again = 0; again < 2; again++) {
		pairs<<<BLOCKS, THREADS>>>(d);
		in_pairs("a kernel that requires clusters", cudaGetLastError());
		in_pairs("a launch in clusters", launch(as_launched, 2));
		ones<<<BLOCKS, THREADS>>>(d);
		CHECK(cudaGetLastError());
		check(1);
		CHECK(launch(as_launched, 1));
		check(1);
		as_launched<<<BLOCKS, THREADS>>>(d);
		CHECK(cudaGetLastError());
		check(1);
	}
	return job_passed("clusters");
}
