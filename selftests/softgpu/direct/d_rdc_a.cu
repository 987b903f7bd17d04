// SPDX-License-Identifier: Apache-2.0
/*
 * d_rdc_a.cu - relocatable device code: a kernel that calls a function of d_rdc_b.cu.
 */
#include "direct.cuh"

extern __device__ int shared_counter;
extern __device__ int triple(int x);

__global__ void use(int *out)
{
	out[threadIdx.x] = triple(threadIdx.x) + shared_counter;
}

int main()
{
	int *d, got[32];

	CHECK(cudaMalloc(&d, sizeof(got)));
	use<<<1, 32>>>(d);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(got, d, sizeof(got), cudaMemcpyDeviceToHost));
	for (int i = 0; i < 32; i++)
		EXPECT(got[i] == 3 * i + 1000);
	printf("PASS\n");
	return 0;
}
