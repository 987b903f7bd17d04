// SPDX-License-Identifier: Apache-2.0
/*
 * mem_reset.cu - repeated resets of a device with everything allocated free all of it
 */
#include "../job.cuh"

#include <sys/mman.h>

__global__ void touch(int *p)
{
	p[threadIdx.x] += threadIdx.x;
}

static void round_of(int i, size_t *left)
{
	cudaChannelFormatDesc f = cudaCreateChannelDesc<float>();
	const size_t n = 40 << 20;
	cudaResourceDesc res = {};
	cudaTextureDesc tex = {};
	cudaTextureObject_t object;
	cudaArray_t array;
	cudaStream_t s;
	size_t total, now;
	int *d, *a, *h, *m, *r, *dev;

	CHECK(cudaMemGetInfo(&now, &total));
	if (i == 1)
		*left = now;
	if (i > 1)
		EXPECT_EQ(now, *left);
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaMalloc(&d, n));
	CHECK(cudaMallocAsync(&a, n, s));
	CHECK(cudaHostAlloc(&h, 1 << 20, 0));
	CHECK(cudaMallocManaged(&m, 1 << 20));
	r = (int *)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(r != MAP_FAILED);
	r[5] = i;
	CHECK(cudaHostRegister(r, 1 << 20, 0));
	CHECK(cudaHostGetDevicePointer(&dev, r, 0));
	CHECK(cudaMallocArray(&array, &f, 64, 64));
	res.resType = cudaResourceTypeArray;
	res.res.array.array = array;
	CHECK(cudaCreateTextureObject(&object, &res, &tex, NULL));
	CHECK(cudaMemsetAsync(d, 0, 4096, s));
	CHECK(cudaMemsetAsync(a, 0, 4096, s));
	memset(h, 0, 4096);
	memset(m, 0, 4096);
	touch<<<1, 32, 0, s>>>(d);
	touch<<<1, 32, 0, s>>>(a);
	touch<<<1, 32, 0, s>>>(h);
	touch<<<1, 32, 0, s>>>(m);
	touch<<<1, 32, 0, s>>>(dev);
	CHECK(cudaFreeAsync(a, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(h[31] == 31 && m[31] == 31 && r[31] == 31 && r[5] == i + 5);
	if (i % 3 == 0)		/* work is under way, and memory freed in order is not yet free */
		for (int k = 0; k < 20; k++) {
			CHECK(cudaMallocAsync(&a, n, s));
			touch<<<1, 32, 0, s>>>(a);
			if (k % 2)
				CHECK(cudaFreeAsync(a, s));
		}
	CHECK(cudaDeviceReset());
	/* the program's own memory is as it was */
	EXPECT(r[31] == 31 && r[5] == i + 5);
	r[6] = 1;
	munmap(r, 1 << 20);
}

int main(void)
{
	size_t left = 0;

	/* what the soft device has in this process */
	setenv("SINGVGPU_SOFT_MEM", "2G", 0);
	for (int i = 0; i < 12; i++)
		round_of(i, &left);
	return job_passed("mem_reset");
}
