// SPDX-License-Identifier: Apache-2.0
/*
 * cub.cu - reductions, scans, sorts and selections by the toolkit's CUB.
 */
#include "../job.cuh"

#include <algorithm>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_run_length_encode.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <numeric>

#define N 30000

static void *temp;
static size_t temp_size;

/* Asks for the room first and then runs, as all device-wide algorithms of CUB want it. */
#define CUB(_fn, ...) do {						\
	size_t _n = 0;							\
	CHECK(_fn(NULL, _n, __VA_ARGS__));				\
	if (_n > temp_size) {						\
		CHECK(cudaFree(temp));					\
		CHECK(cudaMalloc(&temp, _n));				\
		temp_size = _n;						\
	}								\
	_n = temp_size;							\
	CHECK(_fn(temp, _n, __VA_ARGS__));				\
} while (0)

struct is_third {
	__host__ __device__ bool operator()(int x) const { return x % 3 == 0; }
};

__global__ void in_block(const int *in, int *sorted, int *sums)
{
	typedef cub::BlockRadixSort<int, 128, 4> sort_t;
	typedef cub::BlockScan<int, 128> scan_t;
	__shared__ union {
		sort_t::TempStorage sort;
		scan_t::TempStorage scan;
	} s;
	int v[4], total;

	for (int i = 0; i < 4; i++)
		v[i] = in[threadIdx.x * 4 + i];
	sort_t(s.sort).Sort(v);
	for (int i = 0; i < 4; i++)
		sorted[threadIdx.x * 4 + i] = v[i];
	__syncthreads();
	scan_t(s.scan).InclusiveSum(v, v, total);
	for (int i = 0; i < 4; i++)
		sums[threadIdx.x * 4 + i] = v[i] - total;
}

int main()
{
	std::vector<int> v(N), got;
	std::vector<unsigned int> keys(N);
	std::vector<float> f(N);
	unsigned int seed = 90;
	int *d_out, *d_n;
	unsigned int *d_keys2;

	for (int i = 0; i < N; i++) {
		v[i] = (int)(rnd(&seed) % 20001) - 10000;
		keys[i] = rnd(&seed) * 2654435761u;
		f[i] = rndf(&seed);
	}
	int *d = to_device(v);
	unsigned int *d_keys = to_device(keys);
	float *d_f = to_device(f), *d_f_out;
	CHECK(cudaMalloc(&d_out, 4 * N));
	CHECK(cudaMalloc(&d_n, 8));
	CHECK(cudaMalloc(&d_keys2, 4 * N));
	CHECK(cudaMalloc(&d_f_out, 4 * N));

	CUB(cub::DeviceReduce::Sum, d, d_n, N);
	EXPECT_EQ(to_host(d_n, 1)[0], std::accumulate(v.begin(), v.end(), 0));
	CUB(cub::DeviceReduce::Max, d, d_n, N);
	EXPECT_EQ(to_host(d_n, 1)[0], *std::max_element(v.begin(), v.end()));
	CUB(cub::DeviceReduce::Sum, d_f, d_f_out, N);
	float sum = to_host(d_f_out, 1)[0];
	EXPECT_NEAR(sum, std::accumulate(f.begin(), f.end(), 0.0), 1e-3);
	sum_bytes(&sum, 4);

	CUB(cub::DeviceScan::ExclusiveSum, d, d_out, N);
	got = to_host(d_out, N);
	int run = 0;
	for (int i = 0; i < N; i++) {
		EXPECT_EQ(got[i], run);
		run += v[i];
	}
	sum_vector(got);

	std::vector<int> order(N), want;
	std::iota(order.begin(), order.end(), 0);
	CHECK(cudaMemcpy(d_out, order.data(), 4 * N, cudaMemcpyHostToDevice));
	int *d_out2;
	CHECK(cudaMalloc(&d_out2, 4 * N));
	CUB(cub::DeviceRadixSort::SortPairs, d_keys, d_keys2, d_out, d_out2, N);
	std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
	EXPECT(to_host(d_out2, N) == order);
	sum_vector(order);

	CUB(cub::DeviceSelect::If, d, d_out, d_n, N, is_third());
	std::copy_if(v.begin(), v.end(), std::back_inserter(want), is_third());
	EXPECT_EQ(to_host(d_n, 1)[0], want.size());
	EXPECT(to_host(d_out, want.size()) == want);
	sum_vector(want);

	std::vector<int> runs(N);
	for (int i = 0; i < N; i++) {
		runs[i] = i * i / 700000 % 50;
	}
	CHECK(cudaMemcpy(d, runs.data(), 4 * N, cudaMemcpyHostToDevice));
	CUB(cub::DeviceRunLengthEncode::Encode, d, d_out, d_out2, d_n, N);
	int n = to_host(d_n, 1)[0], at = 0;
	std::vector<int> value = to_host(d_out, n), length = to_host(d_out2, n);
	for (int i = 0; i < n; i++)
		for (int k = 0; k < length[i]; k++)
			EXPECT(at < N && runs[at++] == value[i]);
	EXPECT_EQ(at, N);

	in_block<<<1, 128>>>(to_device(v), d_out, d_out2);
	CHECK(cudaGetLastError());
	got = to_host(d_out, 512);
	value = to_host(d_out2, 512);
	want.assign(v.begin(), v.begin() + 512);
	std::sort(want.begin(), want.end());
	int total = std::accumulate(want.begin(), want.end(), 0);
	run = 0;
	for (int i = 0; i < 512; i++) {
		run += want[i];
		EXPECT_EQ(got[i], want[i]);
		EXPECT_EQ(value[i], run - total);
	}
	return job_passed("cub");
}
