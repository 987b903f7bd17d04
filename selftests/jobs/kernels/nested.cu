// SPDX-License-Identifier: Apache-2.0
/*
 * nested.cu - kernels that launch kernels: correct where supported, else refused by name.
 */
#include "../job.cuh"

__global__ void leaf(int *p, int v)
{
	p[blockIdx.x * blockDim.x + threadIdx.x] += v;
}

__global__ void tree(int *p, int n, int depth)
{
	if (threadIdx.x)
		return;
	if (!depth) {
		leaf<<<n / 32, 32>>>(p, 1);
		return;
	}
	tree<<<1, 32>>>(p, n / 2, depth - 1);
	tree<<<1, 32>>>(p + n / 2, n / 2, depth - 1);
}

int main()
{
	const int n = 1024;
	cudaFuncAttributes a;
	int *d, fit;

	/* What is asked of a kernel beforehand is told by the same error as its launch. */
	cudaError_t attributes = cudaFuncGetAttributes(&a, tree);
	cudaError_t occupancy = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, tree, 32, 0);
	cudaGetLastError();
	CHECK(cudaMalloc(&d, n * 4));
	CHECK(cudaMemset(d, 0, n * 4));
	tree<<<1, 32>>>(d, n, 3);
	cudaError_t e = cudaGetLastError();
	if (e != cudaSuccess) {
		/* no half-run, no other error later: the launch itself was refused */
		EXPECT(e == cudaErrorNotSupported || e == cudaErrorInvalidPtx);
		EXPECT_ERROR(e, attributes);
		EXPECT_ERROR(e, occupancy);
		CHECK(cudaDeviceSynchronize());
		for (int v : to_host(d, n))
			EXPECT_EQ(v, 0);
		printf("SKIP the device refuses kernels that launch kernels: %s\n",
		       cudaGetErrorName(e));
		return 4;
	}
	CHECK(attributes);
	CHECK(occupancy);
	CHECK(cudaDeviceSynchronize());
	for (int v : to_host(d, n))
		EXPECT_EQ(v, 1);
	return job_passed("nested");
}
