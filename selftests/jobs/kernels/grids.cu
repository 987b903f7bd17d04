// SPDX-License-Identifier: Apache-2.0
/*
 * grids.cu - launches of every shape: all dimensions, many blocks, large parameters, clocks.
 */
#include "../job.cuh"

/* Each thread marks its own place, from all of its indices. */
__global__ void mark(unsigned int *p, unsigned long long *sum)
{
	unsigned long long block = blockIdx.x + (unsigned long long)gridDim.x *
				   (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
	unsigned int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	unsigned long long i = block * blockDim.x * blockDim.y * blockDim.z + thread;

	p[i] += (unsigned int)i * 2654435761u + 1;
	if (!thread)
		atomicAdd(sum, block);
}

__global__ void count(unsigned long long *n)
{
	if (!threadIdx.x)
		atomicAdd(n, 1ull + (blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1));
}

static void shape(dim3 g, dim3 b)
{
	unsigned long long blocks = (unsigned long long)g.x * g.y * g.z, sum;
	size_t n = blocks * b.x * b.y * b.z;
	unsigned int *d;
	unsigned long long *s;

	CHECK(cudaMalloc(&d, n * 4));
	CHECK(cudaMalloc(&s, 8));
	CHECK(cudaMemset(d, 0, n * 4));
	CHECK(cudaMemset(s, 0, 8));
	mark<<<g, b>>>(d, s);
	CHECK(cudaGetLastError());
	std::vector<unsigned int> got = to_host(d, n);
	for (size_t i = 0; i < n; i++)
		EXPECT_EQ(got[i], (unsigned int)i * 2654435761u + 1);
	sum = to_host(s, 1)[0];
	EXPECT_EQ(sum, blocks * (blocks - 1) / 2);
	sum_bytes(&sum, 8);
	CHECK(cudaFree(d));
	CHECK(cudaFree(s));
}

static void far_dimensions(void)
{
	unsigned long long *n;

	CHECK(cudaMalloc(&n, 8));
	for (dim3 g : { dim3(1, 65535), dim3(1, 1, 65535), dim3(200000), dim3(3, 100, 100) }) {
		unsigned long long blocks = (unsigned long long)g.x * g.y * g.z;

		CHECK(cudaMemset(n, 0, 8));
		count<<<g, 1>>>(n);
		CHECK(cudaGetLastError());
		EXPECT_EQ(to_host(n, 1)[0], blocks + g.x);
	}
	CHECK(cudaFree(n));
}

/* Parameters beyond 4 KB, as they may be since CUDA 12.1. */
struct large {
	int v[5000];
};

__global__ void many(const large l, int *out)
{
	for (int i = threadIdx.x; i < 5000; i += blockDim.x)
		out[i] = l.v[i] + l.v[4999 - i];
}

static void large_parameters(void)
{
	static large l;
	int *out;

	for (int i = 0; i < 5000; i++)
		l.v[i] = i * i;
	CHECK(cudaMalloc(&out, 20000));
	many<<<1, 64>>>(l, out);
	CHECK(cudaGetLastError());
	memset(&l, 0, sizeof(l));
	std::vector<int> got = to_host(out, 5000);
	for (int i = 0; i < 5000; i++)
		EXPECT_EQ(got[i], i * i + (4999 - i) * (4999 - i));
	sum_vector(got);
	CHECK(cudaFree(out));
}

__device__ unsigned long long global_ns(void)
{
	unsigned long long t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

__device__ unsigned int special(int what)
{
	unsigned int v = 0;

	switch (what) {
	case 0: asm volatile("mov.u32 %0, %%laneid;" : "=r"(v)); break;
	case 1: asm volatile("mov.u32 %0, %%warpid;" : "=r"(v)); break;
	case 2: asm volatile("mov.u32 %0, %%smid;" : "=r"(v)); break;
	case 3: asm volatile("mov.u32 %0, %%nsmid;" : "=r"(v)); break;
	case 4: asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(v)); break;
	case 5: asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(v)); break;
	}
	return v;
}

struct seen {
	long long cycles, ns;
	unsigned int s[6];
};

__global__ void clocks(seen *o)
{
	long long c0 = clock64();
	unsigned long long t0 = global_ns();
	seen r;

	__nanosleep(200000);
	r.cycles = clock64() - c0;
	r.ns = global_ns() - t0;
	for (int i = 0; i < 6; i++)
		r.s[i] = special(i);
	o[blockIdx.x * blockDim.x + threadIdx.x] = r;
}

/* A kernel that watches the clock, as programs do to keep the device busy. */
__global__ void busy(long long cycles, int *done)
{
	long long from = clock64();

	while (clock64() - from < cycles)
		;
	*done = 1;
}

static void time_passes(void)
{
	seen *d;
	int *done, sms;

	CHECK(cudaMalloc(&d, 128 * sizeof(seen)));
	CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	clocks<<<2, 64>>>(d);
	CHECK(cudaGetLastError());
	std::vector<seen> s = to_host(d, 128);
	for (int i = 0; i < 128; i++) {
		unsigned int lane = i & 31;

		EXPECT(s[i].cycles > 0 && s[i].ns >= 0 && s[i].ns < 10000000000ll);
		EXPECT_EQ(s[i].s[0], lane);
		EXPECT(s[i].s[1] < 64 && s[i].s[2] < s[i].s[3] && s[i].s[3] >= (unsigned int)sms);
		EXPECT(s[i].s[4] == (1u << lane) - 1 && s[i].s[5] == ~((1u << lane) - 1));
	}
	CHECK(cudaMalloc(&done, 4));
	CHECK(cudaMemset(done, 0, 4));
	busy<<<1, 1>>>(2000000, done);
	EXPECT_EQ(to_host(done, 1)[0], 1);
	CHECK(cudaFree(d));
	CHECK(cudaFree(done));
}

int main()
{
	shape(dim3(1), dim3(1));
	shape(dim3(7, 5, 3), dim3(4, 8, 2));
	shape(dim3(3, 1, 9), dim3(33, 1, 31));
	shape(dim3(100), dim3(1024));
	shape(dim3(2, 2, 2), dim3(2, 2, 64));
	shape(dim3(5000), dim3(7));
	shape(dim3(11, 13), dim3(1, 1000));
	far_dimensions();
	large_parameters();
	time_passes();
	return job_passed("grids");
}
