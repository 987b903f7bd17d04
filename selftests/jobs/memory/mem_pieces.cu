// SPDX-License-Identifier: Apache-2.0
/*
 * mem_pieces.cu - allocations that reuse parts of freed ones: contents, and the last granule of memory
 *
 * Three threads allocate and free blocks of 1 KB to 90 MB in random order, mark both ends and the
 * middle of each, and find the marks when they free it. Then all free memory is allocated, as
 * one block and in granules: what was freed in one size is there in another, to the last granule.
 */
#include "../job.cuh"

#include <pthread.h>

#define MIB (1ull << 20)
#define BLOCKS 24
#define ROUNDS 400
#define THREADS 3

static unsigned long long sums[THREADS];

struct block {
	char *at;
	size_t len;
	unsigned char mark;
};

static const size_t sizes[] = { 1000, 300000, 2 * MIB, 3 * MIB - 512, 7 * MIB, 20 * MIB, 20 * MIB + 700,
				64 * MIB, 90 * MIB - 4 };

static void mark(const struct block *b, cudaStream_t s)
{
	size_t at[3] = { 0, b->len / 2, b->len - 8 };

	for (int i = 0; i < 3; i++)
		CHECK(cudaMemsetAsync(b->at + at[i], b->mark + i, 8, s));
}

static void look(const struct block *b, cudaStream_t s, unsigned long long *sum)
{
	size_t at[3] = { 0, b->len / 2, b->len - 8 };
	unsigned char got[24];

	for (int i = 0; i < 3; i++)
		CHECK(cudaMemcpyAsync(got + 8 * i, b->at + at[i], 8, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < 24; i++)
		EXPECT_EQ(got[i], (unsigned char)(b->mark + i / 8));
	*sum = *sum * 31 + b->len + b->mark;
}

static void *churn(void *arg)
{
	unsigned int id = (unsigned int)(size_t)arg, state = 77 + id;
	struct block blocks[BLOCKS] = {};
	cudaStream_t s;

	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	for (int i = 0; i < ROUNDS; i++) {
		struct block *b = &blocks[rnd(&state) % BLOCKS];

		if (b->at) {
			look(b, s, &sums[id]);
			CHECK(cudaFree(b->at));
			b->at = NULL;
			continue;
		}
		b->len = sizes[rnd(&state) % (sizeof(sizes) / sizeof(*sizes))];
		b->mark = rnd(&state);
		CHECK(cudaMalloc((void **)&b->at, b->len));
		mark(b, s);
	}
	for (int i = 0; i < BLOCKS; i++)
		if (blocks[i].at) {
			look(&blocks[i], s, &sums[id]);
			CHECK(cudaFree(blocks[i].at));
		}
	CHECK(cudaStreamDestroy(s));
	return NULL;
}

/* Allocate all granules that are left. Returns how many. */
static size_t fill(std::vector<void *> &p)
{
	void *at;
	cudaError_t r;

	while (!(r = cudaMalloc(&at, 2 * MIB)))
		p.push_back(at);
	EXPECT_EQ(r, cudaErrorMemoryAllocation);
	cudaGetLastError();
	return p.size();
}

static void drop(std::vector<void *> &p)
{
	for (void *at : p)
		CHECK(cudaFree(at));
	p.clear();
}

int main()
{
	/* what the soft device has in this process: filling more only takes time */
	setenv("SINGVGPU_SOFT_MEM", "4G", 0);
	pthread_t t[THREADS];
	std::vector<void *> p;
	size_t left, total, n, keep;
	char *big, *small, byte;

	for (size_t i = 0; i < THREADS; i++)
		EXPECT_EQ(pthread_create(&t[i], NULL, churn, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);

	CHECK(cudaMemGetInfo(&left, &total));
	n = fill(p);
	EXPECT(n >= left / (2 * MIB));
	drop(p);
	CHECK(cudaMalloc((void **)&big, n * 2 * MIB));
	CHECK(cudaMemset(big + n * 2 * MIB - 1, 9, 1));
	CHECK(cudaFree(big));
	/* A small block, where the large one was, keeps no more than its granule. */
	CHECK(cudaMalloc((void **)&small, 100));
	CHECK(cudaMemset(small, 6, 100));
	keep = fill(p);
	EXPECT(keep == n - 1 || keep == n);
	drop(p);
	CHECK(cudaMalloc((void **)&big, (n - 1) * 2 * MIB));
	CHECK(cudaMemcpy(&byte, small + 99, 1, cudaMemcpyDeviceToHost));
	EXPECT_EQ(byte, 6);
	CHECK(cudaFree(big));
	CHECK(cudaFree(small));
	sum_bytes(sums, sizeof(sums));
	return job_passed("mem_pieces");
}
