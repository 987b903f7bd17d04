// SPDX-License-Identifier: Apache-2.0
/*
 * sgemm.cu - textbook matrix products: plain, tiled, with registers, in float and double; and by
 * tensor cores through wmma.
 */
#include "../job.cuh"

#include <cuda_fp16.h>
#include <mma.h>

#define TILE 16

template <typename T> __global__ void plain(const T *a, const T *b, T *c, int m, int n, int k)
{
	int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
	T s = 0;

	if (row >= m || col >= n)
		return;
	for (int i = 0; i < k; i++)
		s += a[row * k + i] * b[i * n + col];
	c[row * n + col] = s;
}

template <typename T> __global__ void tiled(const T *a, const T *b, T *c, int m, int n, int k)
{
	__shared__ T as[TILE][TILE], bs[TILE][TILE];
	int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
	T s = 0;

	for (int k0 = 0; k0 < k; k0 += TILE) {
		as[ty][tx] = row < m && k0 + tx < k ? a[row * k + k0 + tx] : 0;
		bs[ty][tx] = col < n && k0 + ty < k ? b[(k0 + ty) * n + col] : 0;
		__syncthreads();
		for (int i = 0; i < TILE; i++)
			s += as[ty][i] * bs[i][tx];
		__syncthreads();
	}
	if (row < m && col < n)
		c[row * n + col] = s;
}

/* 64x64 of a block, 4x4 of a thread, loads of four floats at once; sizes are multiples of 64. */
__global__ __launch_bounds__(256) void blocked(const float *a, const float *b, float *c, int m, int n,
					       int k)
{
	__shared__ float as[16][64], bs[16][64];
	int t = threadIdx.x, tx = t % 16, ty = t / 16;
	float acc[4][4] = {};

	a += blockIdx.y * 64 * k;
	b += blockIdx.x * 64;
	for (int k0 = 0; k0 < k; k0 += 16) {
		float4 va = *(const float4 *)&a[(t / 4) * k + k0 + t % 4 * 4];

		as[t % 4 * 4][t / 4] = va.x;
		as[t % 4 * 4 + 1][t / 4] = va.y;
		as[t % 4 * 4 + 2][t / 4] = va.z;
		as[t % 4 * 4 + 3][t / 4] = va.w;
		*(float4 *)&bs[ty][tx * 4] = *(const float4 *)&b[(k0 + ty) * n + tx * 4];
		__syncthreads();
#pragma unroll
		for (int i = 0; i < 16; i++) {
			float4 x = *(float4 *)&as[i][ty * 4], y = *(float4 *)&bs[i][tx * 4];
			float xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };

			for (int r = 0; r < 4; r++)
				for (int s = 0; s < 4; s++)
					acc[r][s] += xs[r] * ys[s];
		}
		__syncthreads();
	}
	for (int r = 0; r < 4; r++)
		*(float4 *)&c[(blockIdx.y * 64 + ty * 4 + r) * n + blockIdx.x * 64 + tx * 4] =
			make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

/* One warp for each 16x16 of c. */
__global__ void tensor(const __half *a, const __half *b, float *c, int n, int k)
{
	using namespace nvcuda::wmma;
	fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
	fragment<matrix_b, 16, 16, 16, __half, row_major> fb;
	fragment<accumulator, 16, 16, 16, float> fc;

	fill_fragment(fc, 0.0f);
	for (int k0 = 0; k0 < k; k0 += 16) {
		load_matrix_sync(fa, a + blockIdx.y * 16 * k + k0, k);
		load_matrix_sync(fb, b + k0 * n + blockIdx.x * 16, n);
		mma_sync(fc, fa, fb, fc);
	}
	store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, fc, n, mem_row_major);
}

template <typename T> static std::vector<T> random_of(size_t n, unsigned int seed)
{
	std::vector<T> v(n);

	for (T &x : v)
		x = (T)rndf(&seed);
	return v;
}

template <typename T> static std::vector<double> reference(const std::vector<T> &a,
							   const std::vector<T> &b, int m, int n, int k)
{
	std::vector<double> c(m * n);

	for (int i = 0; i < m; i++)
		for (int l = 0; l < k; l++)
			for (int j = 0; j < n; j++)
				c[i * n + j] += (double)a[i * k + l] * (double)b[l * n + j];
	return c;
}

template <typename T> static void compare(const T *d, const std::vector<double> &want, double tol)
{
	std::vector<T> got = to_host(d, want.size());

	for (size_t i = 0; i < want.size(); i++)
		EXPECT_NEAR(got[i], want[i], tol);
	sum_vector(got);
}

template <typename T> static void odd_sizes(int m, int n, int k, double tol)
{
	std::vector<T> a = random_of<T>(m * k, 1), b = random_of<T>(k * n, 2);
	std::vector<double> want = reference(a, b, m, n, k);
	T *da = to_device(a), *db = to_device(b), *dc;
	dim3 block(TILE, TILE), grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);

	CHECK(cudaMalloc(&dc, m * n * sizeof(T)));
	plain<T><<<grid, block>>>(da, db, dc, m, n, k);
	CHECK(cudaGetLastError());
	compare(dc, want, tol);
	CHECK(cudaMemset(dc, 0, m * n * sizeof(T)));
	tiled<T><<<grid, block>>>(da, db, dc, m, n, k);
	CHECK(cudaGetLastError());
	compare(dc, want, tol);
	CHECK(cudaFree(da));
	CHECK(cudaFree(db));
	CHECK(cudaFree(dc));
}

int main()
{
	const int m = 192, n = 256, k = 320;

	odd_sizes<float>(100, 77, 131, 1e-4);
	odd_sizes<double>(65, 33, 129, 1e-12);
	odd_sizes<float>(1, 1, 1000, 1e-4);

	std::vector<float> a = random_of<float>(m * k, 3), b = random_of<float>(k * n, 4);
	float *c;
	CHECK(cudaMalloc(&c, m * n * 4));
	blocked<<<dim3(n / 64, m / 64), 256>>>(to_device(a), to_device(b), c, m, n, k);
	CHECK(cudaGetLastError());
	compare(c, reference(a, b, m, n, k), 1e-4);

	std::vector<__half> ha(m * k), hb(k * n);
	for (size_t i = 0; i < a.size(); i++)
		a[i] = __half2float(ha[i] = __float2half(a[i]));
	for (size_t i = 0; i < b.size(); i++)
		b[i] = __half2float(hb[i] = __float2half(b[i]));
	CHECK(cudaMemset(c, 0, m * n * 4));
	tensor<<<dim3(n / 16, m / 16), 32>>>(to_device(ha), to_device(hb), c, n, k);
	CHECK(cudaGetLastError());
	compare(c, reference(a, b, m, n, k), 1e-3);
	return job_passed("sgemm");
}
