// SPDX-License-Identifier: Apache-2.0
/*
 * ampere.cu - instructions of compute capability 8.0: reductions of warps in one instruction,
 * asynchronous copies to shared memory, matrix products of bf16 and tf32, min and max of three.
 */
#include "../job.cuh"

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>

__global__ void redux(const int *in, int *out)
{
	int lane = threadIdx.x & 31, v = in[threadIdx.x];
	unsigned int u = v;

	out += threadIdx.x * 8;
	out[0] = __reduce_add_sync(~0u, v);
	out[1] = __reduce_min_sync(~0u, v);
	out[2] = __reduce_max_sync(~0u, v);
	out[3] = __reduce_max_sync(~0u, u);
	out[4] = __reduce_and_sync(~0u, u | 0xff00);
	out[5] = __reduce_or_sync(~0u, u & 0xf0f);
	out[6] = __reduce_xor_sync(~0u, u);
	/* each half with its own mask */
	out[7] = __reduce_add_sync(lane < 16 ? 0xffffu : 0xffff0000u, v);
}

__global__ void copied(const int *in, int *out, int tiles)
{
	__shared__ __align__(16) int buf[2][256];
	int t = threadIdx.x, sum = 0;

	__pipeline_memcpy_async(&buf[0][t * 4], in + t * 4, 16);
	__pipeline_commit();
	for (int k = 0; k < tiles; k++) {
		if (k + 1 < tiles) {
			__pipeline_memcpy_async(&buf[(k + 1) & 1][t * 4], in + (k + 1) * 256 + t * 4, 16);
			__pipeline_commit();
			__pipeline_wait_prior(1);
		} else {
			__pipeline_wait_prior(0);
		}
		__syncthreads();
		for (int i = 0; i < 4; i++)
			sum += buf[k & 1][255 - t * 4 - i] * (k + i);
		__syncthreads();
	}
	/* part of it from memory, zeros behind */
	__pipeline_memcpy_async(&buf[0][t * 4], in + t * 4, 16, t & 1 ? 12 : 0);
	__pipeline_commit();
	__pipeline_wait_prior(0);
	__syncthreads();
	out[t] = sum + buf[0][(t ^ 1) * 4] + buf[0][(t ^ 1) * 4 + 3];
}

__global__ void bf16_product(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c)
{
	using namespace nvcuda::wmma;
	fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> fa;
	fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major> fb;
	fragment<accumulator, 16, 16, 16, float> fc;

	fill_fragment(fc, 1.0f);
	load_matrix_sync(fa, a, 16);
	load_matrix_sync(fb, b, 16);
	mma_sync(fc, fa, fb, fc);
	for (int i = 0; i < fc.num_elements; i++)
		fc.x[i] *= 2;
	store_matrix_sync(c, fc, 16, mem_row_major);
}

__global__ void tf32_product(const float *a, const float *b, float *c)
{
	using namespace nvcuda::wmma;
	fragment<matrix_a, 16, 16, 8, precision::tf32, row_major> fa;
	fragment<matrix_b, 16, 16, 8, precision::tf32, row_major> fb;
	fragment<accumulator, 16, 16, 8, float> fc;

	fill_fragment(fc, 0.0f);
	load_matrix_sync(fa, a, 8);
	load_matrix_sync(fb, b, 16);
	for (int i = 0; i < fa.num_elements; i++)
		fa.x[i] = __float_to_tf32(fa.x[i]);
	for (int i = 0; i < fb.num_elements; i++)
		fb.x[i] = __float_to_tf32(fb.x[i]);
	mma_sync(fc, fa, fb, fc);
	store_matrix_sync(c, fc, 16, mem_row_major);
}

__global__ void double_product(const double *a, const double *b, double *c)
{
	using namespace nvcuda::wmma;
	fragment<matrix_a, 8, 8, 4, double, row_major> fa;
	fragment<matrix_b, 8, 8, 4, double, col_major> fb;
	fragment<accumulator, 8, 8, 4, double> fc;

	fill_fragment(fc, 0.5);
	load_matrix_sync(fa, a, 4);
	load_matrix_sync(fb, b, 4);
	mma_sync(fc, fa, fb, fc);
	store_matrix_sync(c, fc, 8, mem_row_major);
}

__global__ void byte_product(const signed char *a, const signed char *b, int *c)
{
	using namespace nvcuda::wmma;
	fragment<matrix_a, 16, 16, 16, signed char, row_major> fa;
	fragment<matrix_b, 16, 16, 16, signed char, col_major> fb;
	fragment<accumulator, 16, 16, 16, int> fc;

	fill_fragment(fc, 3);
	load_matrix_sync(fa, a, 16);
	load_matrix_sync(fb, b, 16);
	mma_sync(fc, fa, fb, fc);
	store_matrix_sync(c, fc, 16, mem_row_major);
}

__global__ void bf16_math(const float *in, float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	__nv_bfloat16 x = __float2bfloat16(in[i]), y = __float2bfloat16(in[(i + 1) % n]);
	__nv_bfloat162 p = __halves2bfloat162(x, y), q = __hfma2(p, p, p);

	out[4 * i] = __bfloat162float(__hfma(x, y, x));
	out[4 * i + 1] = __low2float(q) + __high2float(q);
	out[4 * i + 2] = __bfloat162float(__hmax(x, y));
	out[4 * i + 3] = __bfloat162float(__hmin_nan(x, y));
}

static void warps(void)
{
	std::vector<int> in(64), got;
	unsigned int seed = 140;
	int *out;

	for (int &v : in)
		v = (int)(rnd(&seed) * 2654435761u) >> 3;
	CHECK(cudaMalloc(&out, 64 * 8 * 4));
	redux<<<1, 64>>>(to_device(in), out);
	CHECK(cudaGetLastError());
	got = to_host(out, 64 * 8);
	for (int t = 0; t < 64; t++) {
		unsigned int sum = 0, half = 0, umax = 0, band = ~0u, bor = 0, bxor = 0;
		int lo = 0x7fffffff, hi = ~lo;

		for (int k = t & ~31; k < (t & ~31) + 32; k++) {
			sum += in[k];
			half += (k & 16) == (t & 16) ? in[k] : 0;
			umax = std::max(umax, (unsigned int)in[k]);
			lo = std::min(lo, in[k]);
			hi = std::max(hi, in[k]);
			band &= in[k] | 0xff00;
			bor |= in[k] & 0xf0f;
			bxor ^= in[k];
		}
		int want[8] = { (int)sum, lo, hi, (int)umax, (int)band, (int)bor, (int)bxor, (int)half };

		for (int k = 0; k < 8; k++)
			EXPECT_EQ(got[t * 8 + k], want[k]);
	}
	sum_vector(got);
}

static void copies(void)
{
	const int tiles = 7;
	std::vector<int> in(tiles * 256), got;
	unsigned int seed = 141;
	int *out;

	for (int &v : in)
		v = rnd(&seed) % 1000;
	CHECK(cudaMalloc(&out, 256));
	copied<<<1, 64>>>(to_device(in), out, tiles);
	CHECK(cudaGetLastError());
	got = to_host(out, 64);
	for (int t = 0; t < 64; t++) {
		int sum = 0, o = t ^ 1;

		for (int k = 0; k < tiles; k++)
			for (int i = 0; i < 4; i++)
				sum += in[k * 256 + 255 - t * 4 - i] * (k + i);
		sum += o & 1 ? in[o * 4] : in[o * 4] + in[o * 4 + 3];
		EXPECT_EQ(got[t], sum);
	}
	sum_vector(got);
}

template <typename T> static double at(const std::vector<T> &v, int i) { return (double)(float)v[i]; }

static void products(void)
{
	std::vector<__nv_bfloat16> a(256), b(256);
	std::vector<float> fa(128), fb(128), got;
	std::vector<double> da(32), db(32), dgot;
	std::vector<signed char> ba(256), bb(256);
	unsigned int seed = 142;
	float *c;
	double *dc;
	int *ic;

	for (int i = 0; i < 256; i++) {
		a[i] = __float2bfloat16(rndf(&seed));
		b[i] = __float2bfloat16(rndf(&seed));
		ba[i] = rnd(&seed);
		bb[i] = rnd(&seed);
	}
	for (int i = 0; i < 128; i++) {		/* as tf32 has them: ten bits of fraction */
		fa[i] = floorf(rndf(&seed) * 1024) / 1024;
		fb[i] = floorf(rndf(&seed) * 1024) / 1024;
	}
	for (int i = 0; i < 32; i++) {
		da[i] = rndf(&seed);
		db[i] = rndf(&seed);
	}
	CHECK(cudaMalloc(&c, 1024));
	CHECK(cudaMalloc(&dc, 512));
	CHECK(cudaMalloc(&ic, 1024));
	bf16_product<<<1, 32>>>(to_device(a), to_device(b), c);
	CHECK(cudaGetLastError());
	got = to_host(c, 256);
	for (int i = 0; i < 256; i++) {
		double s = 1;

		for (int k = 0; k < 16; k++)
			s += at(a, i / 16 * 16 + k) * at(b, i % 16 * 16 + k);
		EXPECT_NEAR(got[i], 2 * s, 1e-4);
	}
	sum_vector(got);
	tf32_product<<<1, 32>>>(to_device(fa), to_device(fb), c);
	CHECK(cudaGetLastError());
	got = to_host(c, 256);
	for (int i = 0; i < 256; i++) {
		double s = 0;

		for (int k = 0; k < 8; k++)
			s += (double)fa[i / 16 * 8 + k] * fb[k * 16 + i % 16];
		EXPECT_NEAR(got[i], s, 1e-4);
	}
	sum_vector(got);
	double_product<<<1, 32>>>(to_device(da), to_device(db), dc);
	CHECK(cudaGetLastError());
	dgot = to_host(dc, 64);
	for (int i = 0; i < 64; i++) {
		double s = 0.5;

		for (int k = 0; k < 4; k++)
			s += da[i / 8 * 4 + k] * db[i % 8 * 4 + k];
		EXPECT_NEAR(dgot[i], s, 1e-14);
	}
	byte_product<<<1, 32>>>(to_device(ba), to_device(bb), ic);
	CHECK(cudaGetLastError());
	std::vector<int> igot = to_host(ic, 256);
	for (int i = 0; i < 256; i++) {
		int s = 3;

		for (int k = 0; k < 16; k++)
			s += ba[i / 16 * 16 + k] * bb[i % 16 * 16 + k];
		EXPECT_EQ(igot[i], s);
	}
	sum_vector(igot);
}

static double bf(double x)
{
	int e;

	if (x == 0)
		return x;
	frexp(x, &e);
	return ldexp(nearbyint(ldexp(x, 8 - e)), e - 8);
}

static void small_floats(void)
{
	const int n = 1000;
	std::vector<float> in(n), got;
	unsigned int seed = 143;
	float *out;

	for (float &v : in)
		v = rndf(&seed) * 8;
	CHECK(cudaMalloc(&out, n * 16));
	bf16_math<<<(n + 127) / 128, 128>>>(to_device(in), out, n);
	CHECK(cudaGetLastError());
	got = to_host(out, 4 * n);
	for (int i = 0; i < n; i++) {
		double x = bf(in[i]), y = bf(in[(i + 1) % n]);

		EXPECT(got[4 * i] == (float)bf(x * y + x));
		EXPECT(got[4 * i + 1] == (float)bf(x * x + x) + (float)bf(y * y + y));
		EXPECT(got[4 * i + 2] == fmax(x, y) && got[4 * i + 3] == fmin(x, y));
	}
	sum_vector(got);
}

int main()
{
	cudaDeviceProp p;

	CHECK(cudaGetDeviceProperties(&p, 0));
	if (p.major < 8) {
		printf("SKIP compute capability %d.%d: this is for 8.0\n", p.major, p.minor);
		return 4;
	}
	warps();
	copies();
	products();
	small_floats();
	return job_passed("ampere");
}
