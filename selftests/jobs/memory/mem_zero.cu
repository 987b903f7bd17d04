// SPDX-License-Identifier: Apache-2.0
/*
 * mem_zero.cu - pinned and managed memory is zero, also where it was used before, and has no pages until somebody
 * touches it.
 */
#include "../job.cuh"

#include <sys/mman.h>
#include <sys/resource.h>

static bool proxied;	/* what is freed stays mapped there, so a stray write is no crash */
static bool zero;	/* the soft device alone has managed memory that was used before */

static void *take(bool managed, size_t len)
{
	void *p;

	if (managed)
		CHECK(cudaMallocManaged(&p, len));
	else
		CHECK(cudaMallocHost(&p, len));
	return p;
}

static void give(bool managed, void *p)
{
	CHECK(managed ? cudaFree(p) : cudaFreeHost(p));
}

/* Bytes of whole pages that there are, whoever has made them. */
static size_t there(void *p, size_t len)
{
	std::vector<unsigned char> in(len / 4096);
	size_t n = 0;

	EXPECT(!mincore(p, len, in.data()));
	for (unsigned char c : in)
		n += c & 1;
	return n * 4096;
}

static void expect_zero(const void *p, size_t len)
{
	const unsigned char *c = (const unsigned char *)p;

	EXPECT(!zero || (!c[0] && !memcmp(c, c + 1, len - 1)));
}

__global__ void count(const unsigned char *p, size_t n, unsigned int *out)
{
	for (size_t i = threadIdx.x; i < n; i += blockDim.x)
		if (p[i])
			atomicAdd(out, 1);
}

static void untouched(bool managed)
{
	const size_t len = 512 << 20;
	struct rusage a, b;
	void *p;

	CHECK(cudaDeviceSynchronize());
	getrusage(RUSAGE_SELF, &a);
	for (int k = 0; k < 3; k++) {
		p = take(managed, len);
		EXPECT(there(p, len) < len / 16);
		memset((char *)p + len / 2, 1, 4096);
		give(managed, p);
	}
	getrusage(RUSAGE_SELF, &b);
	EXPECT(b.ru_minflt - a.ru_minflt < (long)(len / 4096 / 4));
	p = take(managed, len);
	expect_zero((char *)p + len / 2 - 8192, 16384);
	give(managed, p);
}

/* Sizes of a part of a chunk, of several, of more than is kept pinned; each is written, freed and taken again. */
static void used(bool managed)
{
	const size_t sizes[] = { 40, 5000, 1 << 20, (2 << 20) + 4096, 9 << 20, 40 << 20, 72 << 20 };
	unsigned int *bad;

	CHECK(cudaMallocHost(&bad, sizeof(*bad)));
	for (size_t len : sizes)
		for (int k = 0; k < 3; k++) {
			void *p = take(managed, len);

			*bad = 0;
			count<<<1, 1024>>>((unsigned char *)p, len > 3 << 20 ? 3 << 20 : len, bad);
			CHECK(cudaDeviceSynchronize());
			EXPECT(!zero || !*bad);
			expect_zero(p, len);
			if (k & 1)
				memset(p, 0xff, len);
			else
				CHECK(cudaMemset(p, 0xee, len));
			CHECK(cudaDeviceSynchronize());
			give(managed, p);
			if (proxied && len > 64 << 20)
				memset((char *)p + (20 << 20), 0xdd, 8192);	/* after the pages have gone */
		}
	CHECK(cudaFreeHost(bad));
}

/* What comes lies between others that stay, in the place of one that was freed. */
static void between(bool managed)
{
	void *p[24];
	size_t len[24];

	for (int i = 0; i < 72; i++) {
		int k = i * 7 % 24;

		if (i >= 24)
			give(managed, p[k]);
		len[k] = (i * 37 % 24 * 300ul) << 10 | 64;
		p[k] = take(managed, len[k]);
		expect_zero(p[k], len[k]);
		memset(p[k], 0xa5, len[k]);
	}
	for (int k = 0; k < 24; k++)
		give(managed, p[k]);
}

int main()
{
	void *p;

	proxied = getenv("SINGVGPU_SOCKET");
	CHECK(cudaFree(NULL));
	for (int managed = 0; managed < 2; managed++) {
		zero = proxied || !managed;
		untouched(managed);
		used(managed);
		between(managed);
	}
	/* more than any host has */
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMallocHost(&p, 1ull << 47));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMallocManaged(&p, 1ull << 47));
	return job_passed("mem_zero");
}
