// SPDX-License-Identifier: Apache-2.0
/*
 * occupancy.cu - kernels' resources and how many blocks fit; more shared memory than by default;
 * launches with attributes; parameters of every size and alignment.
 */
#include "../job.cuh"

__global__ void plain(int *p)
{
	p[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
}

__global__ __launch_bounds__(256) void bounded(int *p)
{
	p[threadIdx.x] = 1;
}

__global__ void static_shared(int *p)
{
	__shared__ int s[3000];

	for (int i = threadIdx.x; i < 3000; i += blockDim.x)
		s[i] = i * p[0];
	__syncthreads();
	p[threadIdx.x] = s[(threadIdx.x * 37) % 3000];
}

__constant__ int table[100];

__global__ void uses_local(int *p, int n)
{
	int big[500];

	for (int i = 0; i < 500; i++)
		big[i] = i * n + table[i % 100];
	for (int i = 0; i < n; i++)
		big[(i * 7) % 500] += big[(i * 11) % 500];
	p[threadIdx.x] = big[threadIdx.x];
}

/* Every byte of a large array in shared memory is written by one thread and read by another. */
__global__ void large_shared(unsigned int *out, int words)
{
	extern __shared__ unsigned int s[];
	unsigned int sum = 0;

	for (int i = threadIdx.x; i < words; i += blockDim.x)
		s[i] = i * 2654435761u;
	__syncthreads();
	for (int i = threadIdx.x; i < words; i += blockDim.x)
		sum ^= s[words - 1 - i] + i;
	atomicXor(out, sum);
}

static void attributes(void)
{
	cudaFuncAttributes a;

	CHECK(cudaFuncGetAttributes(&a, plain));
	EXPECT(a.maxThreadsPerBlock == 1024 && a.numRegs > 0 && a.sharedSizeBytes == 0);
	EXPECT(a.binaryVersion >= 70 && a.ptxVersion >= 70);
	CHECK(cudaFuncGetAttributes(&a, bounded));
	EXPECT_EQ(a.maxThreadsPerBlock, 256);
	CHECK(cudaFuncGetAttributes(&a, static_shared));
	EXPECT_EQ(a.sharedSizeBytes, 12000);
	CHECK(cudaFuncGetAttributes(&a, uses_local));
	EXPECT(a.localSizeBytes >= 2000);
	EXPECT_EQ(a.maxDynamicSharedSizeBytes, 48 << 10);
}

struct per_thread {
	__host__ __device__ size_t operator()(int threads) const { return threads * 16; }
};

static void how_many(void)
{
	int blocks, fewer, grid, block;
	cudaDeviceProp p;
	size_t dynamic;

	CHECK(cudaGetDeviceProperties(&p, 0));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 1024, 0));
	EXPECT(blocks >= 1 && blocks <= p.maxThreadsPerMultiProcessor / 1024);
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 32, 0));
	EXPECT(blocks >= 8 && blocks <= p.maxBlocksPerMultiProcessor);
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 128, 0));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fewer, plain, 128, 40 << 10));
	EXPECT(fewer >= 1 && fewer < blocks);
	EXPECT(fewer <= (int)(p.sharedMemPerMultiprocessor / (40 << 10)));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, 2048, 0));
	EXPECT_EQ(blocks, 0);
	CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 0));
	EXPECT(block >= 32 && block <= 1024 && block % 32 == 0);
	EXPECT(grid >= p.multiProcessorCount);
	CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, bounded, 0, 0));
	EXPECT(block <= 256);
	CHECK(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&grid, &block, large_shared,
							     per_thread(), 512));
	EXPECT(block >= 32 && block <= 512);
	CHECK(cudaOccupancyAvailableDynamicSMemPerBlock(&dynamic, plain, 1, 128));
	EXPECT(dynamic >= 48 << 10);
}

static unsigned int large_sum(int words)
{
	unsigned int sum = 0;

	for (int i = 0; i < words; i++)
		sum ^= (words - 1 - i) * 2654435761u + i;
	return sum;
}

static void more_shared(void)
{
	unsigned int *d, got;
	int most;

	CHECK(cudaMalloc(&d, 4));
	CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
	EXPECT(most >= 48 << 10);
	for (int size : { 1024, 48 << 10, 56 << 10, most & ~3 }) {
		if (size > most)
			continue;
		CHECK(cudaMemset(d, 0, 4));
		if (size > 48 << 10) {
			large_shared<<<2, 256, size>>>(d, size / 4);
			EXPECT(cudaGetLastError() != cudaSuccess || size <= 48 << 10);
		}
		CHECK(cudaFuncSetAttribute(large_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
					   size));
		large_shared<<<3, 256, size>>>(d, size / 4);
		CHECK(cudaGetLastError());
		CHECK(cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost));
		EXPECT_EQ(got, large_sum(size / 4));
		cudaFuncAttributes a;
		CHECK(cudaFuncGetAttributes(&a, large_shared));
		EXPECT_EQ(a.maxDynamicSharedSizeBytes, size);
	}
	EXPECT_ERROR(cudaErrorInvalidValue,
		     cudaFuncSetAttribute(large_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
					  most + 1024));
	cudaGetLastError();
	CHECK(cudaFuncSetAttribute(large_shared, cudaFuncAttributePreferredSharedMemoryCarveout, 50));
	CHECK(cudaFuncSetCacheConfig(large_shared, cudaFuncCachePreferShared));
	CHECK(cudaFree(d));
}

struct odd {
	char a;
	double b;
	short c[3];
	char d[5];
};

struct big {
	int v[1000];
};

__global__ void many_parameters(long long *out, char a, double b, short c, float d, odd e, const int *f,
				unsigned char g, long long h, big i, bool j, float3 k, double2 l)
{
	long long s = a + (long long)b + c + (long long)d + e.a + (long long)e.b + e.c[2] + e.d[4] +
		      *f + g + h + j + (long long)(k.x + k.y + k.z) + (long long)(l.x + l.y);

	for (int n = threadIdx.x; n < 1000; n += 32)
		s += i.v[n];
	out[threadIdx.x] = s;
}

struct nothing {
};

__global__ void empty_parameter(nothing, int *out, int v)
{
	*out = v;
}

static void parameters(void)
{
	std::vector<int> five(1, 5);
	int *f = to_device(five);
	long long *out;
	odd e = { 1, 2000.0, { 3, 4, 5 }, { 1, 2, 3, 4, 5 } };
	big b;

	for (int i = 0; i < 1000; i++)
		b.v[i] = i * i;
	CHECK(cudaMalloc(&out, 32 * 8));
	many_parameters<<<1, 32>>>(out, -1, 1e6, -300, 2.5f, e, f, 200, 1ll << 40, b, true,
				   make_float3(1, 2, 3), make_double2(10, 20));
	CHECK(cudaGetLastError());
	std::vector<long long> got = to_host(out, 32);
	for (int t = 0; t < 32; t++) {
		long long want = -1 + 1000000 - 300 + 2 + 1 + 2000 + 5 + 5 + 5 + 200 + (1ll << 40) + 1 +
				 6 + 30;

		for (int n = t; n < 1000; n += 32)
			want += b.v[n];
		EXPECT_EQ(got[t], want);
	}
	sum_vector(got);
	empty_parameter<<<1, 1>>>(nothing(), f, 77);
	EXPECT_EQ(to_host(f, 1)[0], 77);
	/* the arguments are taken at the launch */
	int v = 1, *p = f;
	nothing no;
	void *args[] = { &no, &p, &v };
	CHECK(cudaLaunchKernel(empty_parameter, dim3(1), dim3(1), args, 0, 0));
	v = 2;
	EXPECT_EQ(to_host(f, 1)[0], 1);
	/* and with attributes, which a device without them ignores or has */
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute attr[1];
	cudaStream_t s;
	CHECK(cudaStreamCreate(&s));
	c.gridDim = dim3(2);
	c.blockDim = dim3(64);
	c.stream = s;
	attr[0].id = cudaLaunchAttributePriority;
	attr[0].val.priority = 0;
	c.attrs = attr;
	c.numAttrs = 1;
	int *w;
	CHECK(cudaMalloc(&w, 128 * 4));
	CHECK(cudaLaunchKernelEx(&c, plain, w));
	CHECK(cudaStreamSynchronize(s));
	std::vector<int> h = to_host(w, 128);
	for (int i = 0; i < 128; i++)
		EXPECT_EQ(h[i], i % 64);
	CHECK(cudaFree(w));
	CHECK(cudaFree(out));
	CHECK(cudaFree(f));
}

/* Arrays of each thread, indexed by what only the run knows. */
static void locals(void)
{
	int *d, t[100];
	std::vector<int> big(500);

	for (int i = 0; i < 100; i++)
		t[i] = i * 5 - 3;
	CHECK(cudaMemcpyToSymbol(table, t, sizeof(t)));
	CHECK(cudaMalloc(&d, 4 * 3000));
	uses_local<<<1, 128>>>(d, 777);
	for (int i = 0; i < 500; i++)
		big[i] = i * 777 + t[i % 100];
	for (int i = 0; i < 777; i++)
		big[(i * 7) % 500] += big[(i * 11) % 500];
	std::vector<int> got = to_host(d, 128);
	for (int i = 0; i < 128; i++)
		EXPECT_EQ(got[i], big[i]);
	sum_vector(got);
	std::vector<int> three(1, 3);
	CHECK(cudaMemcpy(d, three.data(), 4, cudaMemcpyHostToDevice));
	static_shared<<<1, 1>>>(d);
	EXPECT_EQ(to_host(d, 1)[0], 0);
	CHECK(cudaFree(d));
}

int main()
{
	attributes();
	how_many();
	more_shared();
	parameters();
	locals();
	return job_passed("occupancy");
}
