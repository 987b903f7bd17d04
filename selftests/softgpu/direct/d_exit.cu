// SPDX-License-Identifier: Apache-2.0
/*
 * d_exit.cu - main returns while a kernel runs: destructors of global objects still get its result.
 * With an argument the kernel never ends, but the program must.
 */
#include "direct.cuh"

__global__ void count(int *p, int n)
{
	for (int i = 0; i < n; i++)
		atomicAdd(p, 1);
}

__global__ void forever(volatile int *p)
{
	while (*p >= 0)
		;
}

static const int rounds = 500000;

struct global {
	int *d = NULL;
	bool endless = false;

	~global()
	{
		cudaError_t copy, gone;
		int h = -1;

		copy = cudaMemcpy(&h, d, sizeof(h), cudaMemcpyDeviceToHost);
		gone = cudaFree(d);
		if (endless) {
			EXPECT(copy == cudaErrorCudartUnloading && h == -1);
		} else {
			CHECK(copy);
			CHECK(gone);
			EXPECT(h == rounds);
		}
		printf("PASS\n");
		fflush(stdout);
	}
} global;

int main(int argc, char **argv)
{
	(void)argv;
	CHECK(cudaMalloc(&global.d, sizeof(int)));
	CHECK(cudaMemset(global.d, 0, sizeof(int)));
	global.endless = argc > 1;
	if (global.endless)
		forever<<<1, 1>>>(global.d);
	else
		count<<<1, 1>>>(global.d, rounds);
	CHECK(cudaGetLastError());
	return 0;
}
