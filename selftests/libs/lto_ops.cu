// SPDX-License-Identifier: Apache-2.0
/*
 * lto_ops.cu - functions of the program inside the libraries' kernels: NVRTC compiles them to intermediate
 * code, and cuSPARSE (sparse by dense with its own operators) and cuFFT (a callback) link it in.
 */
#include "lib.cuh"

#include <cufft.h>
#include <cufftXt.h>
#include <cusparse.h>
#include <nvrtc.h>

#include <string>

static std::string ltoir(const char *source, const std::string &arch)
{
	const char *options[] = { arch.c_str(), "-dlto", "-rdc=true" };
	nvrtcProgram p;
	std::string out;
	size_t n;

	LIB(nvrtcCreateProgram(&p, source, "op.cu", 0, NULL, NULL));
	LIB(nvrtcCompileProgram(p, 3, options));
	LIB(nvrtcGetLTOIRSize(p, &n));
	out.resize(n);
	LIB(nvrtcGetLTOIR(p, &out[0]));
	LIB(nvrtcDestroyProgram(&p));
	return out;
}

/* C[i, j] = 3 + the largest A[i, k] - B[k, j] of the A[i, k] that there are, at least 3. */
static void sparse(const std::string &arch)
{
	const int rows = 60, inner = 40, cols = 7;
	std::string add = ltoir("__device__ float add_op(float a, float b) { return a > b ? a : b; }", arch);
	std::string mul = ltoir("__device__ float mul_op(float a, float b) { return a - b; }", arch);
	std::string epilogue = ltoir("__device__ float epilogue(float sum, float c) { return sum + c; }", arch);
	std::vector<int> row(1), col;
	std::vector<float> val, b = random_values<float>(inner * cols), c(rows * cols, 3), want;
	unsigned int seed = 9;

	for (int i = 0; i < rows; i++) {
		for (int k = 0; k < inner; k++) {
			if (i % 5 && rnd(&seed) % 4 == 0) {
				col.push_back(k);
				val.push_back((int)(rnd(&seed) % 100) * 0.25f);
			}
		}
		row.push_back(col.size());
	}
	int *drow = to_device(row), *dcol = to_device(col);
	float *dval = to_device(val), *db = to_device(b), *dc = to_device(c);
	cusparseSpMatDescr_t ma;
	cusparseDnMatDescr_t mb, mc;
	cusparseSpMMOpPlan_t plan;
	cusparseHandle_t h;
	char *work;
	size_t n;

	LIB(cusparseCreate(&h));
	LIB(cusparseCreateCsr(&ma, rows, inner, col.size(), drow, dcol, dval, CUSPARSE_INDEX_32I,
			      CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
	LIB(cusparseCreateDnMat(&mb, inner, cols, inner, db, CUDA_R_32F, CUSPARSE_ORDER_COL));
	LIB(cusparseCreateDnMat(&mc, rows, cols, rows, dc, CUDA_R_32F, CUSPARSE_ORDER_COL));
	LIB(cusparseSpMMOp_createPlan(h, &plan, CUSPARSE_OPERATION_NON_TRANSPOSE,
				      CUSPARSE_OPERATION_NON_TRANSPOSE, ma, mb, mc, CUDA_R_32F,
				      CUSPARSE_SPMM_OP_ALG_DEFAULT, add.data(), add.size(), mul.data(),
				      mul.size(), epilogue.data(), epilogue.size(), &n));
	CHECK(cudaMalloc(&work, n + 16));
	LIB(cusparseSpMMOp(plan, work));
	std::vector<float> got = results(dc, rows * cols);
	for (int i = 0; i < rows; i++) {
		for (int j = 0; j < cols; j++) {
			float best = 0;		/* what the sum starts with */

			for (int k = row[i]; k < row[i + 1]; k++)
				best = std::max(best, val[k] - b[col[k] + j * inner]);
			near_enough("max-minus product", i * cols + j, got[i + j * rows], best + 3, 1e-5);
		}
	}
	LIB(cusparseSpMMOp_destroyPlan(plan));
	LIB(cusparseDestroySpMat(ma));
	LIB(cusparseDestroyDnMat(mb));
	LIB(cusparseDestroyDnMat(mc));
	LIB(cusparseDestroy(h));
	for (void *p : { (void *)drow, (void *)dcol, (void *)dval, (void *)db, (void *)dc, (void *)work })
		CHECK(cudaFree(p));
}

/* A transform that loads its input through us. cuFFT links for compute capability 7.5 where it knows none. */
static void transform(void)
{
	const int n = 64, batch = 3;
	std::string load = ltoir("struct complex { float x, y; };\n"
		"__device__ complex load(void *in, unsigned long long at, void *info, void *)\n"
		"{ complex v = ((complex *)in)[at]; float f = *(float *)info; v.x *= f; v.y *= f; return v; }",
		"-arch=compute_75");
	std::vector<float> x = random_values<float>(2 * n * batch), factor(1, 2.5f);
	float *in = to_device(x), *out = to_device(x), *info = to_device(factor);
	void *infos[] = { info };
	cufftHandle h;
	size_t size;

	LIB(cufftCreate(&h));
	LIB(cufftXtSetJITCallback(h, "load", load.data(), load.size(), CUFFT_CB_LD_COMPLEX, infos));
	LIB(cufftMakePlan1d(h, n, CUFFT_C2C, batch, &size));
	LIB(cufftExecC2C(h, (cufftComplex *)in, (cufftComplex *)out, CUFFT_FORWARD));
	std::vector<float> got = results(out, 2 * n * batch);
	for (int b = 0; b < batch; b++) {
		for (int k = 0; k < n; k++) {
			double re = 0, im = 0;

			for (int i = 0; i < n; i++) {
				double a = -2 * M_PI * (i * k % n) / n;
				float *v = &x[2 * (b * n + i)];

				re += 2.5 * (v[0] * cos(a) - v[1] * sin(a));
				im += 2.5 * (v[0] * sin(a) + v[1] * cos(a));
			}
			near_enough("real part", b * n + k, got[2 * (b * n + k)], re, 1e-4);
			near_enough("imaginary part", b * n + k, got[2 * (b * n + k) + 1], im, 1e-4);
		}
	}
	LIB(cufftDestroy(h));
	for (void *p : { in, out, info })
		CHECK(cudaFree(p));
}

int main(void)
{
	int major, minor;

	CHECK(cudaSetDevice(0));
	CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
	CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
	sparse("-arch=sm_" + std::to_string(major * 10 + minor));
	transform();
	return job_passed("lto_ops");
}
