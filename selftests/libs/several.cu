// SPDX-License-Identifier: Apache-2.0
/*
 * several.cu - NVIDIA's libraries on two devices, which pass rows to each other: an FFT against the same one on one
 * device, an LU factorisation against its equations.
 */
#include "../jobs/job.cuh"

#include <complex>
#include <cufftXt.h>
#include <cusolverMg.h>

typedef std::complex<float> number;

static void make_plan(cufftHandle p, int dims, size_t *work)
{
	if (dims == 1)
		EXPECT_EQ(cufftMakePlan1d(p, 4096, CUFFT_C2C, 1, work), CUFFT_SUCCESS);
	else
		EXPECT_EQ(cufftMakePlan2d(p, 64, 64, CUFFT_C2C, work), CUFFT_SUCCESS);
}

static void transform(int dims)
{
	const size_t n = 4096;
	std::vector<number> in(n), two(n), one(n);
	int devices[] = { 0, 1 };
	unsigned int seed = dims;
	size_t work[2];
	cudaLibXtDesc *d;
	cufftHandle p;
	number *x;

	for (number &c : in)
		c = number(rndf(&seed), rndf(&seed));
	CHECK(cudaSetDevice(0));
	EXPECT_EQ(cufftCreate(&p), CUFFT_SUCCESS);
	EXPECT_EQ(cufftXtSetGPUs(p, 2, devices), CUFFT_SUCCESS);
	make_plan(p, dims, work);
	EXPECT_EQ(cufftXtMalloc(p, &d, CUFFT_XT_FORMAT_INPLACE), CUFFT_SUCCESS);
	EXPECT_EQ(cufftXtMemcpy(p, d, in.data(), CUFFT_COPY_HOST_TO_DEVICE), CUFFT_SUCCESS);
	EXPECT_EQ(cufftXtExecDescriptorC2C(p, d, d, CUFFT_FORWARD), CUFFT_SUCCESS);
	EXPECT_EQ(cufftXtMemcpy(p, two.data(), d, CUFFT_COPY_DEVICE_TO_HOST), CUFFT_SUCCESS);
	EXPECT_EQ(cufftXtFree(d), CUFFT_SUCCESS);
	EXPECT_EQ(cufftDestroy(p), CUFFT_SUCCESS);

	CHECK(cudaSetDevice(0));
	x = to_device(in);
	EXPECT_EQ(cufftCreate(&p), CUFFT_SUCCESS);
	make_plan(p, dims, work);
	EXPECT_EQ(cufftExecC2C(p, (cufftComplex *)x, (cufftComplex *)x, CUFFT_FORWARD), CUFFT_SUCCESS);
	one = to_host(x, n);
	EXPECT_EQ(cufftDestroy(p), CUFFT_SUCCESS);
	CHECK(cudaFree(x));
	for (size_t i = 0; i < n; i++)
		EXPECT(std::abs(two[i] - one[i]) < 1e-3);
	sum_vector(two);
}

static void factorise(void)
{
	const int n = 96, tile = 16;
	std::vector<double> a(n * n), b(n, 1), x(n);
	cudaLibMgMatrixDesc_t da, db;
	cusolverMgHandle_t h;
	cudaLibMgGrid_t grid;
	int devices[] = { 0, 1 }, info = -1, *pivots[2];
	void *pa[2], *pb[2], *work[2];
	unsigned int seed = 9;
	int64_t len, more;

	for (int i = 0; i < n * n; i++)
		a[i] = rndf(&seed) + (i % (n + 1) ? 0 : n);
	EXPECT_EQ(cusolverMgCreate(&h), CUSOLVER_STATUS_SUCCESS);
	EXPECT_EQ(cusolverMgDeviceSelect(h, 2, devices), CUSOLVER_STATUS_SUCCESS);
	EXPECT_EQ(cusolverMgCreateDeviceGrid(&grid, 1, 2, devices, CUDALIBMG_GRID_MAPPING_COL_MAJOR),
		  CUSOLVER_STATUS_SUCCESS);
	EXPECT_EQ(cusolverMgCreateMatrixDesc(&da, n, n, n, tile, CUDA_R_64F, grid), CUSOLVER_STATUS_SUCCESS);
	EXPECT_EQ(cusolverMgCreateMatrixDesc(&db, n, 1, n, tile, CUDA_R_64F, grid), CUSOLVER_STATUS_SUCCESS);
	for (int d = 0; d < 2; d++) {
		CHECK(cudaSetDevice(d));
		CHECK(cudaMalloc(&pa[d], n * n * 8));
		CHECK(cudaMalloc(&pb[d], n * tile * 8));
		CHECK(cudaMalloc(&pivots[d], n * tile * 4));
	}
	for (int c = 0; c < n; c++)
		CHECK(cudaMemcpy((double *)pa[c / tile % 2] + (c / tile / 2 * tile + c % tile) * n, &a[c * n], n * 8,
				 cudaMemcpyDefault));
	CHECK(cudaMemcpy(pb[0], b.data(), n * 8, cudaMemcpyDefault));
	EXPECT_EQ(cusolverMgGetrf_bufferSize(h, n, n, pa, 1, 1, da, pivots, CUDA_R_64F, &len),
		  CUSOLVER_STATUS_SUCCESS);
	EXPECT_EQ(cusolverMgGetrs_bufferSize(h, CUBLAS_OP_N, n, 1, pa, 1, 1, da, pivots, pb, 1, 1, db, CUDA_R_64F,
					     &more), CUSOLVER_STATUS_SUCCESS);
	len = len > more ? len : more;
	for (int d = 0; d < 2; d++) {
		CHECK(cudaSetDevice(d));
		CHECK(cudaMalloc(&work[d], len * 8));
		CHECK(cudaDeviceSynchronize());
	}
	EXPECT_EQ(cusolverMgGetrf(h, n, n, pa, 1, 1, da, pivots, CUDA_R_64F, work, len, &info),
		  CUSOLVER_STATUS_SUCCESS);
	EXPECT_EQ(info, 0);
	EXPECT_EQ(cusolverMgGetrs(h, CUBLAS_OP_N, n, 1, pa, 1, 1, da, pivots, pb, 1, 1, db, CUDA_R_64F, work, len,
				  &info), CUSOLVER_STATUS_SUCCESS);
	EXPECT_EQ(info, 0);
	for (int d = 0; d < 2; d++) {
		CHECK(cudaSetDevice(d));
		CHECK(cudaDeviceSynchronize());
	}
	CHECK(cudaMemcpy(x.data(), pb[0], n * 8, cudaMemcpyDefault));
	for (int i = 0; i < n; i++) {
		double s = 0;

		for (int j = 0; j < n; j++)
			s += a[j * n + i] * x[j];
		EXPECT_NEAR(s, 1, 1e-12);
	}
	EXPECT_EQ(cusolverMgDestroy(h), CUSOLVER_STATUS_SUCCESS);
}

int main()
{
	int n;

	CHECK(cudaGetDeviceCount(&n));
	if (n < 2) {
		printf("SKIP one device\n");
		return 4;
	}
	transform(1);
	transform(2);
	factorise();
	return job_passed("several");
}
