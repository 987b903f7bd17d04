// SPDX-License-Identifier: Apache-2.0
/*
 * memory.cu - many small allocations, all of the memory, and more than there is.
 */
#include "../job.cuh"

__global__ void stamp(unsigned int *p, unsigned int v, size_t n)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] = v ^ (unsigned int)i;
}

__global__ void verify(const unsigned int *p, unsigned int v, size_t n, int *bad)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		if (p[i] != (v ^ (unsigned int)i))
			atomicAdd(bad, 1);
}

struct block {
	unsigned int *p;
	size_t n;
	unsigned int v;
};

/* Sizes from bytes to megabytes, in any order; no two overlap, none loses its contents. */
static void churn(void)
{
	std::vector<block> all;
	unsigned int seed = 50;
	size_t free0, free1, total, most = 0, now = 0;
	int *bad;

	CHECK(cudaMalloc(&bad, 4));
	CHECK(cudaMemset(bad, 0, 4));
	CHECK(cudaMemGetInfo(&free0, &total));
	for (int i = 0; i < 3000; i++) {
		if (rnd(&seed) % 5 < 3 || all.empty()) {
			int kind = rnd(&seed) % 20;
			size_t n = kind < 15 ? 1 + rnd(&seed) % 200 : kind < 19 ? 1 + rnd(&seed) % 20000 :
										  1 + rnd(&seed) % 400000;
			block b = { NULL, n, rnd(&seed) };

			CHECK(cudaMalloc(&b.p, n * 4));
			EXPECT((uintptr_t)b.p % 256 == 0);
			stamp<<<(int)std::min(n / 256 + 1, (size_t)16), 64>>>(b.p, b.v, n);
			now += n * 4;
			most = std::max(most, now);
			all.push_back(b);
		} else {
			size_t k = rnd(&seed) % all.size();

			verify<<<4, 64>>>(all[k].p, all[k].v, all[k].n, bad);
			CHECK(cudaFree(all[k].p));
			now -= all[k].n * 4;
			all[k] = all.back();
			all.pop_back();
		}
	}
	/* disjoint: sorted by address none reaches into the next */
	for (size_t i = 0; i < all.size(); i++)
		for (size_t k = i + 1; k < all.size(); k++)
			EXPECT(all[i].p + all[i].n <= all[k].p || all[k].p + all[k].n <= all[i].p);
	for (block &b : all) {
		verify<<<4, 64>>>(b.p, b.v, b.n, bad);
		CHECK(cudaFree(b.p));
	}
	EXPECT_EQ(to_host(bad, 1)[0], 0);
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemGetInfo(&free1, &total));
	/* what is free again may be kept in part, but not all of it */
	EXPECT(free1 + most / 2 + (64 << 20) >= free0);
	CHECK(cudaFree(bad));
	sum_bytes(&most, sizeof(most));
}

static void figures(void)
{
	size_t free0, free1, free2, total, size = 64 << 20;
	cudaDeviceProp p;
	void *d;

	CHECK(cudaMemGetInfo(&free0, &total));
	CHECK(cudaGetDeviceProperties(&p, 0));
	EXPECT(total == p.totalGlobalMem && free0 <= total && free0 > total / 10);
	CHECK(cudaMalloc(&d, size));
	CHECK(cudaMemGetInfo(&free1, &total));
	EXPECT(free1 < free0 && free0 - free1 >= size - (2 << 20) && free0 - free1 <= size + (64 << 20));
	CHECK(cudaFree(d));
	CHECK(cudaMemGetInfo(&free2, &total));
	EXPECT(free2 >= free1 + size / 2);
	/* nothing is an allocation of its own kind */
	d = (void *)1;
	CHECK(cudaMalloc(&d, 0));
	EXPECT(!d);
	CHECK(cudaFree(d));
}

/* More than there is: refused, again and again, and all else goes on. Nothing of it is touched. */
static void exhaustion(void)
{
	size_t free, total, step;
	std::vector<void *> all;
	unsigned int *small, *d;
	int *bad;

	CHECK(cudaMemGetInfo(&free, &total));
	CHECK(cudaMalloc(&small, 4000));
	CHECK(cudaMalloc(&bad, 4));
	CHECK(cudaMemset(bad, 0, 4));
	stamp<<<1, 128>>>(small, 99, 1000);
	for (int i = 0; i < 5; i++) {
		EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&d, total + 1));
		EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
		EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&d, ~(size_t)0 - 4096));
		EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
		CHECK(cudaDeviceSynchronize());
	}
	/* piece by piece until no more comes; each piece is real */
	step = total / 16;
	for (;;) {
		void *p;
		cudaError_t e = cudaMalloc(&p, step);

		if (e != cudaSuccess) {
			EXPECT_ERROR(cudaErrorMemoryAllocation, e);
			EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
			break;
		}
		all.push_back(p);
		EXPECT(all.size() <= 16);
	}
	EXPECT(all.size() >= 4);
	for (size_t i = 0; i < all.size(); i++)
		stamp<<<1, 128>>>((unsigned int *)((char *)all[i] + step - 4096), i, 1024);
	for (size_t i = 0; i < all.size(); i++)
		verify<<<1, 128>>>((unsigned int *)((char *)all[i] + step - 4096), i, 1024, bad);
	verify<<<1, 128>>>(small, 99, 1000, bad);
	EXPECT_EQ(to_host(bad, 1)[0], 0);
	size_t left;
	CHECK(cudaMemGetInfo(&left, &total));
	EXPECT(left < step + (64 << 20));
	for (void *p : all)
		CHECK(cudaFree(p));
	CHECK(cudaMalloc(&d, step));		/* it is all there again */
	CHECK(cudaFree(d));
	verify<<<1, 128>>>(small, 99, 1000, bad);
	EXPECT_EQ(to_host(bad, 1)[0], 0);
	CHECK(cudaFree(small));
	CHECK(cudaFree(bad));
}

int main()
{
	CHECK(cudaFree(0));
	figures();
	churn();
	exhaustion();
	figures();
	return job_passed("memory");
}
