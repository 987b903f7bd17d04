// SPDX-License-Identifier: Apache-2.0
/*
 * symbols.cu - variables of the module: copied to and from by name, by address, by kernels.
 */
#include "../job.cuh"

#define BIG (1 << 18)

struct item {
	char name[12];
	double value;
	int *where;
};

__device__ int plain = 42;
__device__ double halves[4] = { 0.5, 1.5, 2.5 };
__device__ item items[3] = { { "one", 1.25, &plain }, { "two", 2.5, NULL }, { "three", 5, &plain } };
__device__ unsigned int big[BIG];		/* a megabyte of zeros */
__device__ float4 vectors[2] = { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } };
__constant__ int table[1024];
__constant__ float weights[5] = { 0.1f, 0.2f, 0.4f, 0.2f, 0.1f };
static __device__ int hidden = 9;
namespace inner { __device__ short hidden = 10; }
template <typename T> __device__ T of_type = T(3);
__device__ const char words[] = "of the device";
__device__ volatile int seen;
__device__ __align__(256) char aligned[10];

__global__ void use(int *out)
{
	int t = threadIdx.x;

	if (t == 0) {
		plain += 1;
		*items[0].where += 10;		/* the same variable */
		halves[3] = halves[0] + halves[1] + halves[2];
		items[1].where = items[2].where;
		items[1].value *= 2;
		hidden++;
		inner::hidden += 5;
		of_type<int> *= 7;
		of_type<double> /= 2;
		seen = (unsigned long long)aligned % 256 == 0;
		vectors[1].w += vectors[0].w;
	}
	for (int i = t; i < BIG; i += blockDim.x)
		big[i] += i * 3;
	if (t < 14)
		out[t] = words[t];
	out[32 + t] = table[t * 3 % 1024] + (int)(weights[t % 5] * 10 + 0.5f);
}

int main()
{
	int *out, t[1024], v, *where;
	short sh;
	double h[4], dv;
	item it[3];
	void *p, *q;
	size_t n;

	CHECK(cudaGetSymbolSize(&n, plain));
	EXPECT_EQ(n, 4);
	CHECK(cudaGetSymbolSize(&n, items));
	EXPECT_EQ(n, sizeof(items));
	CHECK(cudaGetSymbolSize(&n, big));
	EXPECT_EQ(n, BIG * 4);
	CHECK(cudaGetSymbolAddress(&p, aligned));
	EXPECT((uintptr_t)p % 256 == 0);
	CHECK(cudaGetSymbolAddress(&p, plain));
	CHECK(cudaGetSymbolAddress(&q, table));
	EXPECT(p && q && p != q);
	cudaPointerAttributes a;
	CHECK(cudaPointerGetAttributes(&a, p));
	EXPECT_EQ(a.type, cudaMemoryTypeDevice);

	for (int i = 0; i < 1024; i++)
		t[i] = i * i;
	CHECK(cudaMemcpyToSymbol(table, t, 512 * 4));
	CHECK(cudaMemcpyToSymbolAsync(table, t + 512, 512 * 4, 512 * 4, cudaMemcpyHostToDevice, 0));
	CHECK(cudaMalloc(&out, 1000));
	for (int round = 1; round <= 3; round++) {
		use<<<1, 128>>>(out);
		CHECK(cudaGetLastError());
		CHECK(cudaMemcpyFromSymbol(&v, plain, 4));
		EXPECT_EQ(v, 42 + 11 * round);
		CHECK(cudaMemcpyFromSymbol(&v, hidden, 4));
		EXPECT_EQ(v, 9 + round);
		CHECK(cudaMemcpyFromSymbol(&sh, inner::hidden, 2));
		EXPECT_EQ(sh, 10 + 5 * round);
	}
	CHECK(cudaMemcpyFromSymbol(h, halves, sizeof(h)));
	EXPECT(h[0] == 0.5 && h[3] == 4.5);
	CHECK(cudaMemcpyFromSymbol(it, items, sizeof(it)));
	EXPECT(!strcmp(it[1].name, "two") && it[1].value == 20 && it[1].where == p &&
	       it[0].where == p);
	CHECK(cudaMemcpyFromSymbol(&where, items, sizeof(where),
				   sizeof(item) + offsetof(item, where)));
	EXPECT(where == p);
	CHECK(cudaMemcpyFromSymbol(&v, of_type<int>, 4));
	EXPECT_EQ(v, 3 * 343);
	CHECK(cudaMemcpyFromSymbol(&dv, of_type<double>, 8));
	EXPECT(dv == 3.0 / 8);
	CHECK(cudaMemcpyFromSymbol(&v, seen, 4));
	EXPECT_EQ(v, 1);
	float4 f4[2];
	CHECK(cudaMemcpyFromSymbol(f4, vectors, sizeof(f4)));
	EXPECT(f4[1].w == 8 + 3 * 4 && f4[1].x == 5);
	std::vector<int> o = to_host(out, 32 + 128);
	for (int i = 0; i < 14; i++)
		EXPECT_EQ(o[i], "of the device"[i]);
	static const int w[5] = { 1, 2, 4, 2, 1 };
	for (int i = 0; i < 128; i++)
		EXPECT_EQ(o[32 + i], t[i * 3 % 1024] + w[i % 5]);
	std::vector<unsigned int> b(BIG);
	CHECK(cudaMemcpyFromSymbol(b.data(), big, BIG * 4));
	for (unsigned int i = 0; i < BIG; i++)
		EXPECT_EQ(b[i], i * 9);
	sum_vector(b);

	/* by address: the runtime's copies do not know that it has a name */
	v = 7;
	CHECK(cudaMemcpy(p, &v, 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemset((char *)q + 4, 0, 4));
	use<<<1, 128>>>(out);
	CHECK(cudaMemcpyFromSymbol(&v, plain, 4));
	EXPECT_EQ(v, 18);
	/* beyond its end */
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpyToSymbol(plain, t, 8));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpyFromSymbol(t, halves, 16, 24));
	cudaGetLastError();
	/* after a reset everything is as it was in the file */
	CHECK(cudaDeviceReset());
	CHECK(cudaMemcpyFromSymbol(&v, plain, 4));
	EXPECT_EQ(v, 42);
	CHECK(cudaMemcpyFromSymbol(&v, big, 4, 400));
	EXPECT_EQ(v, 0);
	return job_passed("symbols");
}
