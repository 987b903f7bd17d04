// SPDX-License-Identifier: Apache-2.0
/*
 * mem_full.cu - device memory allocated until it is exhausted: the free amount, effects of a failed
 * allocation, and whether everything can be freed.
 */
#include "../job.cuh"

static size_t left(void)
{
	size_t free, total;

	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemGetInfo(&free, &total));
	EXPECT(free <= total);
	return free;
}

static void until_full(void)
{
	const size_t size = 24 << 20;
	std::vector<char *> all;
	size_t before = left();
	char *p;

	while (cudaMalloc(&p, size) == cudaSuccess) {
		CHECK(cudaMemset(p, (int)all.size(), 4096));
		all.push_back(p);
		EXPECT(all.size() <= before / size);
	}
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
	EXPECT(all.size() + 3 >= before / size);
	EXPECT(left() < 3 * size);
	/* the device works on, and no two blocks are the same memory */
	for (size_t i = 0; i < all.size(); i++) {
		unsigned char c[2];

		CHECK(cudaMemcpy(c, all[i] + 4094, 2, cudaMemcpyDeviceToHost));
		EXPECT(c[0] == (unsigned char)i && c[1] == (unsigned char)i);
	}
	for (char *q : all)
		CHECK(cudaFree(q));
	EXPECT_EQ(left(), before);
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&p, (size_t)1 << 60));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&p, ~(size_t)0 - 100));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
	EXPECT_EQ(left(), before);
}

/* A failure that lay over memory that is kept for the next allocation takes nothing of it. */
static void fails_over_what_is_kept(void)
{
	size_t before = left();
	char *p, *q;

	CHECK(cudaMalloc(&p, 128 << 20));
	CHECK(cudaFree(p));
	EXPECT_EQ(left(), before);
	for (int i = 0; i < 20; i++)
		EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&q, before + (4 << 20)));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
	EXPECT_EQ(left(), before);
	CHECK(cudaMalloc(&q, before / 16 * 15));
	CHECK(cudaMemset(q, 3, 4096));
	CHECK(cudaFree(q));
	EXPECT_EQ(left(), before);
}

/* What stream-ordered allocations had is there again for others, once it has been freed. */
static void pool_until_full(void)
{
	const size_t size = 20 << 20;
	std::vector<void *> all;
	size_t before = left();
	cudaStream_t s;
	void *p;

	CHECK(cudaStreamCreate(&s));
	while (cudaMallocAsync(&p, size, s) == cudaSuccess) {
		CHECK(cudaMemsetAsync(p, 1, 4096, s));
		all.push_back(p);
		EXPECT(all.size() <= before / size);
	}
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
	EXPECT(all.size() + 4 >= before / size);
	for (void *q : all)
		CHECK(cudaFreeAsync(q, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMalloc(&p, before / 4 * 3));
	CHECK(cudaMemset(p, 2, 4096));
	CHECK(cudaFree(p));
	CHECK(cudaStreamDestroy(s));
}

/* Holes of one size are used for smaller pieces, and join to larger ones. */
static void holes(void)
{
	const size_t size = 1 << 20;
	size_t before = left(), n = before / size / 2;
	std::vector<char *> all(n), more;
	char *p;

	for (size_t i = 0; i < n; i++)
		CHECK(cudaMalloc(&all[i], size));
	for (size_t i = 0; i < n; i += 2)
		CHECK(cudaFree(all[i]));
	for (size_t i = 0; i < n; i++) {
		CHECK(cudaMalloc(&p, size / 3));
		CHECK(cudaMemset(p, 9, 64));
		more.push_back(p);
	}
	for (size_t i = 1; i < n; i += 2)
		CHECK(cudaFree(all[i]));
	for (char *q : more)
		CHECK(cudaFree(q));
	CHECK(cudaMalloc(&p, before / 10 * 9));
	CHECK(cudaFree(p));
	EXPECT_EQ(left(), before);
}

int main(void)
{
	/* what the soft device has in this process: filling more only takes time */
	setenv("SINGVGPU_SOFT_MEM", "1G", 0);
	fails_over_what_is_kept();	/* while all that is free is one piece */
	until_full();
	pool_until_full();
	holes();
	until_full();
	return job_passed("mem_full");
}
