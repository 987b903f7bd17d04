// SPDX-License-Identifier: Apache-2.0
/*
 * tensor_tiles.cu - kernels that copy boxes of tensors by tensor maps: with each swizzle, beyond the
 * tensor's edges, with steps, in one to five dimensions; stores, sums, and a product of matrices.
 */
#include "../job.cuh"

#include <cuda.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda_fp16.h>

#pragma nv_diag_suppress static_var_with_dynamic_init

namespace ptx = cuda::ptx;
typedef cuda::barrier<cuda::thread_scope_block> barrier;

static decltype(&cuTensorMapEncodeTiled) encode_tiled;

struct shape {
	CUtensorMapDataType type;
	cuuint32_t rank;
	cuuint64_t dim[5];
	cuuint32_t box[5], step[5];
	CUtensorMapSwizzle swizzle;
	CUtensorMapFloatOOBfill fill;
	size_t size;		/* of an element */
};

/* Rows are 16 bytes longer than they need be. */
static size_t row_of(const shape &s)
{
	return (s.dim[0] * s.size + 31) / 16 * 16;
}

static CUtensorMap map_of(void *at, const shape &s)
{
	cuuint64_t stride[5] = { row_of(s) };
	CUtensorMap map;

	for (cuuint32_t i = 1; i < s.rank; i++)
		stride[i] = stride[i - 1] * s.dim[i];
	CUresult r = encode_tiled(&map, s.type, s.rank, at, s.dim, stride, s.box, s.step,
				  CU_TENSOR_MAP_INTERLEAVE_NONE, s.swizzle,
				  CU_TENSOR_MAP_L2_PROMOTION_NONE, s.fill);
	EXPECT_EQ(r, CUDA_SUCCESS);
	return map;
}

static size_t elements(const shape &s)		/* with the ends of rows */
{
	size_t n = row_of(s) / s.size;

	for (cuuint32_t i = 1; i < s.rank; i++)
		n *= s.dim[i];
	return n;
}

struct coordinates {
	int c[5];
};

/* Fetches a box, and writes its bytes out as they lie in shared memory. */
template <int RANK>
__global__ void fetch(const __grid_constant__ CUtensorMap map, char *out, coordinates at, int bytes)
{
	extern __shared__ __align__(1024) char box[];
	__shared__ barrier bar;
	int t = threadIdx.x, c[RANK];

	if (!t)
		init(&bar, 1);
	__syncthreads();
	for (int i = 0; i < RANK; i++)
		c[i] = at.c[i];
	if (!t) {
		ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, &map, c,
					  cuda::device::barrier_native_handle(bar));
		(void)cuda::device::barrier_arrive_tx(bar, 1, bytes);
	}
	bar.wait_parity(0);
	for (int i = t; i < bytes; i += blockDim.x)
		out[i] = box[i];
}

/* Where byte @b of row @r lies: pieces of 16 bytes change places within 128 bytes. */
static size_t swizzled(const shape &s, size_t r, size_t b)
{
	size_t piece = b / 16;

	switch (s.swizzle) {
	case CU_TENSOR_MAP_SWIZZLE_128B:
		return r * 128 + (piece ^ r % 8) * 16 + b % 16;
	case CU_TENSOR_MAP_SWIZZLE_64B:
		return r * 64 + (piece ^ r / 2 % 4) * 16 + b % 16;
	case CU_TENSOR_MAP_SWIZZLE_32B:
		return r * 32 + (piece ^ r / 4 % 2) * 16 + b % 16;
	default:
		return r * s.box[0] * s.size + b;
	}
}

template <int RANK> static void fetches(const shape &s, coordinates at)
{
	std::vector<unsigned char> in(elements(s) * s.size), out;
	unsigned int seed = 9, n[5], rows = 1, bytes;
	char *d;

	for (unsigned char &c : in)
		c = rnd(&seed);
	unsigned char *d_in = to_device(in);
	for (int i = 0; i < RANK; i++) {
		n[i] = i ? (s.box[i] + s.step[i] - 1) / s.step[i] : s.box[0];
		rows *= i ? n[i] : 1;
	}
	bytes = rows * n[0] * s.size;
	CHECK(cudaMalloc(&d, bytes));
	CHECK(cudaFuncSetAttribute(fetch<RANK>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
	fetch<RANK><<<1, 128, bytes>>>(map_of(d_in, s), d, at, bytes);
	CHECK(cudaGetLastError());
	out.resize(bytes);
	CHECK(cudaMemcpy(out.data(), d, bytes, cudaMemcpyDeviceToHost));
	for (unsigned int r = 0; r < rows; r++)
		for (unsigned int x = 0; x < n[0]; x++) {
			long long c = at.c[0] + (int)x;
			size_t from = 0, step = row_of(s), left = r;
			bool inside = c >= 0 && c < (long long)s.dim[0];

			for (int i = 1; i < RANK; i++) {
				long long e = at.c[i] + (long long)(left % n[i]) * s.step[i];

				inside &= e >= 0 && e < (long long)s.dim[i];
				from += e * step;
				step *= s.dim[i];
				left /= n[i];
			}
			for (size_t b = 0; b < s.size; b++) {
				unsigned char got = out[swizzled(s, r, x * s.size + b)];

				if (inside)
					EXPECT_EQ(got, in[from + c * s.size + b]);
				else if (!s.fill)
					EXPECT_EQ(got, 0);
				else if (b + 1 == s.size)	/* a NaN's exponent is all ones */
					EXPECT_EQ(got & 127, 127);
			}
		}
	sum_vector(out);
	CHECK(cudaFree(d_in));
	CHECK(cudaFree(d));
}

/* Stores a box of numbers, then adds it again. */
__global__ void store(const __grid_constant__ CUtensorMap map, int x, int y, int cols, int rows)
{
	__shared__ alignas(128) int box[32 * 16];
	int c[2] = { x, y };

	for (int i = threadIdx.x; i < cols * rows; i += blockDim.x)
		box[i] = 1000 + i;
	ptx::fence_proxy_async(ptx::space_shared);
	__syncthreads();
	if (threadIdx.x)
		return;
	ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, c, box);
	ptx::cp_reduce_async_bulk_tensor(ptx::space_global, ptx::space_shared, ptx::op_add, &map, c, box);
	ptx::cp_async_bulk_commit_group();
	ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

static void stores(int x, int y)
{
	shape s = { CU_TENSOR_MAP_DATA_TYPE_INT32, 2, { 50, 30 }, { 32, 16 }, { 1, 1 },
		    CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, 4 };
	int pitch = row_of(s) / 4;
	std::vector<int> h(elements(s), -1);
	int *d = to_device(h);

	store<<<1, 64>>>(map_of(d, s), x, y, 32, 16);
	CHECK(cudaGetLastError());
	h = to_host(d, h.size());
	for (int r = 0; r < 30; r++)
		for (int c = 0; c < pitch; c++) {
			bool in = c < 50 && c >= x && c < x + 32 && r >= y && r < y + 16;

			EXPECT_EQ(h[r * pitch + c], in ? 2 * (1000 + (r - y) * 32 + c - x) : -1);
		}
	sum_vector(h);
	CHECK(cudaFree(d));
}

enum { TILE = 64, STAGES = 3 };

/* C = A B of halves: one thread keeps tiles of both on their way, swizzled in 128 bytes. */
__global__ void product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
			float *c, int n, int k)
{
	extern __shared__ __align__(1024) char tiles[];
	half (*as)[TILE * TILE] = (half (*)[TILE * TILE])tiles, (*bs)[TILE * TILE] = as + STAGES;
	__shared__ barrier full[STAGES];
	int t = threadIdx.x, row = blockIdx.y * TILE, col = blockIdx.x * TILE, parts = (k + TILE - 1) / TILE;
	float sum[TILE * TILE / 256] = {};

	if (t < STAGES)
		init(&full[t], 1);
	__syncthreads();
	auto get = [&](int p) {
		uint64_t *bar = cuda::device::barrier_native_handle(full[p % STAGES]);
		int at_a[2] = { p * TILE, row }, at_b[2] = { col, p * TILE };

		if (t || p >= parts)
			return;
		ptx::fence_proxy_async();
		(void)cuda::device::barrier_arrive_tx(full[p % STAGES], 1, 2 * sizeof(as[0]));
		ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, as[p % STAGES], &a, at_a, bar);
		ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, bs[p % STAGES], &b, at_b, bar);
	};
	auto at = [](int r, int x) { return r * TILE + ((x / 8) ^ (r % 8)) * 8 + x % 8; };
	for (int p = 0; p < STAGES; p++)
		get(p);
	for (int p = 0; p < parts; p++) {
		full[p % STAGES].wait_parity(p / STAGES & 1);
		for (int i = 0; i < TILE * TILE / 256; i++) {
			int e = i * 256 + t, r = e / TILE, x = e % TILE;

			for (int j = 0; j < TILE; j++)
				sum[i] += __half2float(as[p % STAGES][at(r, j)]) *
					  __half2float(bs[p % STAGES][at(j, x)]);
		}
		__syncthreads();
		get(p + STAGES);
	}
	for (int i = 0; i < TILE * TILE / 256; i++) {
		int e = i * 256 + t, r = row + e / TILE, x = col + e % TILE;

		if (x < n)
			c[(size_t)r * n + x] = sum[i];
	}
}

static void products(int m, int n, int k)
{
	shape sa = { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, { (cuuint64_t)k, (cuuint64_t)m }, { TILE, TILE },
		     { 1, 1 }, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, 2 }, sb = sa;
	unsigned int seed = 4;

	sb.dim[0] = n;
	sb.dim[1] = k;
	int pa = row_of(sa) / 2, pb = row_of(sb) / 2;
	std::vector<half> a(elements(sa)), b(elements(sb));
	for (half &h : a)
		h = __float2half(rndf(&seed));
	for (half &h : b)
		h = __float2half(rndf(&seed));
	half *da = to_device(a), *db = to_device(b);
	float *dc;

	CHECK(cudaMalloc(&dc, (size_t)m * n * 4));
	CHECK(cudaFuncSetAttribute(product, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
	product<<<dim3((n + TILE - 1) / TILE, m / TILE), 256, 2 * STAGES * TILE * TILE * 2>>>(
		map_of(da, sa), map_of(db, sb), dc, n, k);
	CHECK(cudaGetLastError());
	std::vector<float> c = to_host(dc, (size_t)m * n);
	for (int i = 0; i < m; i++)
		for (int j = 0; j < n; j++) {
			double want = 0;

			for (int l = 0; l < k; l++)
				want += (double)__half2float(a[i * pa + l]) * __half2float(b[l * pb + j]);
			EXPECT_NEAR(c[(size_t)i * n + j], want, 1e-4);
		}
	sum_vector(c);
}

int main()
{
	const CUtensorMapFloatOOBfill zero = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
				      nan = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
	const CUtensorMapSwizzle plain = CU_TENSOR_MAP_SWIZZLE_NONE, by32 = CU_TENSOR_MAP_SWIZZLE_32B,
				 by64 = CU_TENSOR_MAP_SWIZZLE_64B, by128 = CU_TENSOR_MAP_SWIZZLE_128B;
	const CUtensorMapDataType f16 = CU_TENSOR_MAP_DATA_TYPE_FLOAT16, u8 = CU_TENSOR_MAP_DATA_TYPE_UINT8,
				  f32 = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, u64 = CU_TENSOR_MAP_DATA_TYPE_UINT64;
	cudaDriverEntryPointQueryResult how;
	int has = 0;

	CHECK(cudaDeviceGetAttribute(&has, (cudaDeviceAttr)CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0));
	if (!has) {
		printf("SKIP kernels of this device use no tensor maps\n");
		return 4;
	}
	CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode_tiled, 12000,
					       cudaEnableDefault, &how));
	fetches<1>({ f32, 1, { 100 }, { 64 }, { 1 }, plain, zero, 4 }, { { 20 } });
	fetches<1>({ f32, 1, { 100 }, { 64 }, { 1 }, plain, zero, 4 }, { { 60 } });
	fetches<2>({ f16, 2, { 200, 90 }, { 64, 40 }, { 1, 1 }, by128, zero, 2 }, { { 64, 8 } });
	fetches<2>({ f16, 2, { 200, 90 }, { 64, 40 }, { 1, 1 }, by128, nan, 2 }, { { 160, 70 } });
	fetches<2>({ f16, 2, { 200, 90 }, { 32, 40 }, { 1, 1 }, by64, zero, 2 }, { { -5, -7 } });
	fetches<2>({ u8, 2, { 333, 90 }, { 32, 64 }, { 1, 1 }, by32, zero, 1 }, { { 17, 30 } });
	fetches<2>({ f32, 2, { 70, 20 }, { 32, 9 }, { 1, 2 }, by128, nan, 4 }, { { 50, 3 } });
	fetches<2>({ u64, 2, { 70, 20 }, { 10, 16 }, { 1, 1 }, plain, zero, 8 }, { { 1000, -100 } });
	fetches<3>({ f32, 3, { 40, 12, 10 }, { 16, 5, 7 }, { 1, 3, 2 }, by64, zero, 4 }, { { 30, 4, -3 } });
	fetches<4>({ u8, 4, { 50, 6, 5, 4 }, { 16, 4, 3, 2 }, { 1, 1, 1, 1 }, plain, zero, 1 },
		   { { 3, 1, -1, 3 } });
	fetches<5>({ f16, 5, { 30, 5, 4, 3, 6 }, { 16, 3, 2, 2, 4 }, { 1, 2, 1, 1, 3 }, by32, nan, 2 },
		   { { 20, 1, 3, -1, 2 } });
	stores(8, 5);
	stores(40, 20);
	stores(-10, -3);
	stores(100, 0);
	products(64, 128, 192);
	products(128, 100, 150);
	return job_passed("tensor_tiles");
}
