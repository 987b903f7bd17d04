// SPDX-License-Identifier: Apache-2.0
/*
 * hostmem.cu - host memory that kernels access: mapped, registered, written by both sides at once.
 */
#include "../job.cuh"

#include <sys/mman.h>
#include <unistd.h>

__global__ void add_index(int *p, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] += i;
}

/* A call and an answer, many times, with a kernel that runs all the while. */
__global__ void answer(volatile int *call, volatile int *reply, int times)
{
	for (int i = 1; i <= times; i++) {
		while (*call != i)
			;
		__threadfence_system();
		*reply = i * i;
		__threadfence_system();
	}
}

static void mapped(unsigned int flags)
{
	const int n = 10000;
	int *h, *d;
	unsigned int got;
	cudaPointerAttributes a;

	CHECK(cudaHostAlloc(&h, n * sizeof(int), flags));
	CHECK(cudaHostGetDevicePointer(&d, h, 0));
	EXPECT(d == h);				/* unified addresses */
	CHECK(cudaHostGetFlags(&got, h));
	EXPECT_EQ(got & cudaHostAllocMapped, cudaHostAllocMapped);
	CHECK(cudaPointerGetAttributes(&a, h + 5));
	EXPECT(a.type == cudaMemoryTypeHost && a.hostPointer == h + 5 && a.devicePointer == d + 5);
	for (int i = 0; i < n; i++)
		h[i] = 100;
	add_index<<<(n + 255) / 256, 256>>>(d, n);
	add_index<<<(n + 255) / 256, 256>>>(d, n);
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < n; i++)
		EXPECT_EQ(h[i], 100 + 2 * i);
	sum_bytes(h, n * sizeof(int));
	CHECK(cudaFreeHost(h));
	CHECK(cudaPointerGetAttributes(&a, h));	/* forgotten: like any memory of the host */
	EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
}

static void conversation(void)
{
	const int times = 200;
	volatile int *h;

	CHECK(cudaHostAlloc((void **)&h, 4096, cudaHostAllocMapped));
	h[0] = h[64] = 0;
	answer<<<1, 1>>>(h, h + 64, times);
	CHECK(cudaGetLastError());
	for (int i = 1; i <= times; i++) {
		__sync_synchronize();
		h[0] = i;
		while (h[64] != i * i)
			;
	}
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaFreeHost((void *)h));
}

/* Pages of the program's own, registered: copies, and access by kernels. */
static void registered(void)
{
	const size_t n = 1 << 20;
	int *p = (int *)mmap(NULL, n * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int *d, *dev;
	cudaStream_t s;

	EXPECT(p != MAP_FAILED);
	for (size_t i = 0; i < n; i++)
		p[i] = i;
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaMalloc(&dev, n * 4));
	CHECK(cudaHostRegister(p, n * 4, cudaHostRegisterMapped));
	for (size_t i = 0; i < n; i += 1000)
		EXPECT_EQ(p[i], i);		/* its contents have stayed */
	EXPECT_ERROR(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(p, 4096, 0));
	EXPECT_ERROR(cudaErrorHostMemoryAlreadyRegistered, cudaGetLastError());
	CHECK(cudaHostGetDevicePointer(&d, p, 0));
	add_index<<<n / 256, 256, 0, s>>>(d, n);
	CHECK(cudaMemcpyAsync(dev, p, n * 4, cudaMemcpyHostToDevice, s));
	add_index<<<n / 256, 256, 0, s>>>(dev, n);
	CHECK(cudaMemcpyAsync(p, dev, n * 4, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	for (size_t i = 0; i < n; i++)
		EXPECT_EQ(p[i], 3 * i);
	p[0] = 77;
	CHECK(cudaHostUnregister(p));
	EXPECT_ERROR(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(p));
	EXPECT_ERROR(cudaErrorHostMemoryNotRegistered, cudaGetLastError());
	EXPECT(p[0] == 77 && p[n - 1] == (int)(3 * (n - 1)));
	sum_bytes(p, n * 4);
	munmap(p, n * 4);

	/* memory of malloc, at no page's edge: it serves copies; a mapped view may be refused */
	char *m = (char *)malloc(300001);
	memset(m, 5, 300001);
	CHECK(cudaHostRegister(m + 1, 300000, cudaHostRegisterDefault));
	CHECK(cudaMemcpyAsync(dev, m + 1, 300000, cudaMemcpyHostToDevice, s));
	CHECK(cudaMemsetAsync((char *)dev + 10, 6, 10, s));
	CHECK(cudaMemcpyAsync(m + 1, dev, 300000, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < 300001; i++)
		EXPECT_EQ(m[i], i >= 11 && i < 21 ? 6 : 5);
	CHECK(cudaHostUnregister(m + 1));
	free(m);
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(dev));
}

/* Device to pinned memory of another size, in the middle; many blocks come and go. */
static void many(void)
{
	std::vector<char *> all;
	unsigned int seed = 4;

	for (int i = 0; i < 400; i++) {
		size_t n = 1 + rnd(&seed) % 100000;
		char *p;

		CHECK(cudaMallocHost(&p, n));
		p[0] = p[n - 1] = (char)i;
		all.push_back(p);
		if (i % 3 == 2) {
			size_t k = rnd(&seed) % all.size();

			CHECK(cudaFreeHost(all[k]));
			all.erase(all.begin() + k);
		}
	}
	for (char *p : all)
		CHECK(cudaFreeHost(p));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaFreeHost((void *)&seed));
	cudaGetLastError();
}

int main()
{
	mapped(cudaHostAllocMapped);
	mapped(cudaHostAllocMapped | cudaHostAllocPortable);
	mapped(cudaHostAllocMapped | cudaHostAllocWriteCombined);
	conversation();
	registered();
	many();
	return job_passed("hostmem");
}
