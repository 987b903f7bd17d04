// SPDX-License-Identifier: Apache-2.0
/*
 * devices_fault.cu - an error that breaks the context of one device leaves the other device alone; and
 * (devices_fault FILE) so does the end of its proxy, when FILE is there.
 */
#include "../job.cuh"

#include <unistd.h>

__global__ void store(int *p, int v)
{
	*p = v;
}

static void other_device_works(int *p)
{
	CHECK(cudaSetDevice(0));
	for (int k = 0, v; k < 100; k++) {
		int *more, *pinned;

		CHECK(cudaMalloc(&more, 1 << 20));
		CHECK(cudaMallocHost(&pinned, 8 << 20));	/* which the other device cannot pin */
		store<<<1, 1>>>(p, k);
		CHECK(cudaMemcpy(&v, p, 4, cudaMemcpyDefault));
		EXPECT_EQ(v, k);
		CHECK(cudaFreeHost(pinned));
		CHECK(cudaFree(more));
	}
}

int main(int argc, char **argv)
{
	int *p[2];

	for (int d = 0; d < 2; d++) {
		CHECK(cudaSetDevice(d));
		CHECK(cudaMalloc(&p[d], 4096));
	}
	if (argc > 1) {
		puts("ready");
		fflush(stdout);
		while (access(argv[1], F_OK))
			usleep(10000);
		EXPECT(cudaMemset(p[1], 0, 4) || cudaDeviceSynchronize());	/* the first may not wait */
	} else {
		store<<<1, 1>>>((int *)8, 1);
		EXPECT_ERROR(cudaErrorIllegalAddress, cudaDeviceSynchronize());
		EXPECT_ERROR(cudaErrorIllegalAddress, cudaMemset(p[1], 0, 4));
	}
	/* No copy to the other device is made, however many are tried. */
	CHECK(cudaSetDevice(0));
	for (int k = 0; k < 2000; k++)
		EXPECT(cudaMemcpyPeerAsync(p[1], 1, p[0], 0, 4096, 0) != cudaSuccess);
	other_device_works(p[0]);
	return job_passed("devices_fault");
}
