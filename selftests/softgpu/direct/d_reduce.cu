// SPDX-License-Identifier: Apache-2.0
/*
 * d_reduce.cu - sums by shared memory, shuffles, votes and atomics, against the host's.
 */
#include "direct.cuh"

__global__ void tree(const int *in, long long *out, int n)
{
	extern __shared__ long long part[];
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	part[threadIdx.x] = i < n ? in[i] : 0;
	__syncthreads();
	for (int s = blockDim.x / 2; s; s >>= 1) {
		if (threadIdx.x < s)
			part[threadIdx.x] += part[threadIdx.x + s];
		__syncthreads();
	}
	if (!threadIdx.x)
		out[blockIdx.x] = part[0];
}

__global__ void warps(const int *in, unsigned long long *sum, unsigned int *even, int *top, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	int v = i < n ? in[i] : 0;
	unsigned int ballot = __ballot_sync(~0u, i < n && !(v & 1));
	long long s = v;

	for (int d = 16; d; d >>= 1)
		s += __shfl_down_sync(~0u, s, d);
	int m = v;

	for (int d = 16; d; d >>= 1)
		m = max(m, __shfl_xor_sync(~0u, m, d));
	if (!(threadIdx.x & 31)) {
		atomicAdd(sum, (unsigned long long)s);
		atomicAdd(even, __popc(ballot));
		atomicMax(top, m);
	}
}

__global__ void histogram(const int *in, unsigned int *bins, int n)
{
	__shared__ unsigned int own[64];

	for (int b = threadIdx.x; b < 64; b += blockDim.x)
		own[b] = 0;
	__syncthreads();
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		atomicAdd(&own[in[i] & 63], 1u);
	__syncthreads();
	for (int b = threadIdx.x; b < 64; b += blockDim.x)
		atomicAdd(&bins[b], own[b]);
}

int main()
{
	const int n = 1 << 18;
	std::vector<int> v(n);
	std::vector<long long> part(n / 256);
	unsigned int seed = 7, even = 0, got_even, bins[64] = { 0 }, got_bins[64], *deven, *dbins;
	long long sum = 0, got = 0, *dpart;
	unsigned long long *dsum, gsum;
	int max = 0, gmax, *dv, *dmax;

	for (int &x : v) {
		x = (int)rnd(&seed) - (1 << 23);
		sum += x;
		even += !(x & 1);
		if (x > max)
			max = x;
		bins[x & 63]++;
	}
	CHECK(cudaMalloc(&dv, n * 4));
	CHECK(cudaMalloc(&dpart, n / 256 * 8));
	CHECK(cudaMalloc(&dsum, 8));
	CHECK(cudaMalloc(&deven, 4));
	CHECK(cudaMalloc(&dmax, 4));
	CHECK(cudaMalloc(&dbins, 256));
	CHECK(cudaMemset(dsum, 0, 8));
	CHECK(cudaMemset(deven, 0, 4));
	CHECK(cudaMemset(dmax, 0, 4));
	CHECK(cudaMemset(dbins, 0, 256));
	CHECK(cudaMemcpy(dv, v.data(), n * 4, cudaMemcpyHostToDevice));
	tree<<<n / 256, 256, 256 * 8>>>(dv, dpart, n);
	warps<<<n / 128, 128>>>(dv, dsum, deven, dmax, n);
	histogram<<<16, 96>>>(dv, dbins, n);
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpy(part.data(), dpart, n / 256 * 8, cudaMemcpyDeviceToHost));
	for (long long p : part)
		got += p;
	EXPECT(got == sum);
	CHECK(cudaMemcpy(&gsum, dsum, 8, cudaMemcpyDeviceToHost));
	EXPECT((long long)gsum == sum);
	CHECK(cudaMemcpy(&got_even, deven, 4, cudaMemcpyDeviceToHost));
	EXPECT(got_even == even);
	CHECK(cudaMemcpy(&gmax, dmax, 4, cudaMemcpyDeviceToHost));
	EXPECT(gmax == max);
	CHECK(cudaMemcpy(got_bins, dbins, 256, cudaMemcpyDeviceToHost));
	EXPECT(!memcmp(bins, got_bins, 256));
	printf("PASS\n");
	return 0;
}
