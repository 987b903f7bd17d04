// SPDX-License-Identifier: Apache-2.0
/*
 * cublaslt.cu - cuBLASLt: products with an epilogue (bias, ReLU, GELU), row order, batches, 8-bit
 * integers and floats, by the heuristic's first algorithm, against references in double precision.
 */
#include "lib.cuh"

#include <cublasLt.h>

static cublasLtHandle_t lt;
static void *workspace;
static const size_t workspace_bytes = 4 << 20;

struct problem {
	int m, n, k;
	bool ta, tb;
	int batch;
	cublasLtEpilogue_t epilogue;
};

static cublasLtMatrixLayout_t layout(cudaDataType_t type, int rows, int cols, int batch)
{
	cublasLtMatrixLayout_t l;
	int64_t stride = (int64_t)rows * cols;

	LIB(cublasLtMatrixLayoutCreate(&l, type, rows, cols, rows));
	LIB(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
					     sizeof(batch)));
	LIB(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
					     sizeof(stride)));
	return l;
}

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* What an epilogue makes of a sum. */
static double epilogue(cublasLtEpilogue_t e, double v, double bias)
{
	switch (e) {
	case CUBLASLT_EPILOGUE_RELU:
		return fmax(v, 0);
	case CUBLASLT_EPILOGUE_BIAS:
		return v + bias;
	case CUBLASLT_EPILOGUE_RELU_BIAS:
		return fmax(v + bias, 0);
	case CUBLASLT_EPILOGUE_GELU:
		return gelu(v);
	case CUBLASLT_EPILOGUE_GELU_BIAS:
		return gelu(v + bias);
	default:
		return v;
	}
}

/* Prints what the library does not offer here; a program must know that it was not tried. */
static bool offered(cublasStatus_t s, int found, const char *what, const problem &p)
{
	if (s == CUBLAS_STATUS_SUCCESS && found)
		return true;
	printf("not offered: %s %dx%dx%d, status %d\n", what, p.m, p.n, p.k, s);
	return false;
}

/* A, D: types of factors and result; S: of the scalars; unit: what sums are kept to. */
template <typename A, typename D, typename S>
static void product(const problem &p, cublasComputeType_t compute, double unit, bool must = true)
{
	const cublasOperation_t ta = p.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
	const cublasOperation_t tb = p.tb ? CUBLAS_OP_T : CUBLAS_OP_N;
	const bool eight = sizeof(A) == 1 && !std::is_integral_v<A>;
	const S alpha = nearest<S>(std::is_integral_v<S> ? 1 : 1.5), beta = 0;
	std::vector<A> a = random_values<A>((size_t)p.m * p.k * p.batch);
	std::vector<A> b = random_values<A>((size_t)p.k * p.n * p.batch);
	std::vector<D> d((size_t)p.m * p.n * p.batch), bias = random_values<D>(p.m);
	std::vector<float> scale = { 0.5f, 2.0f };
	A *da = to_device(a), *db = to_device(b);
	D *dd = to_device(d), *dbias = to_device(bias);
	float *dscale = to_device(scale);
	cublasLtMatmulDesc_t op;
	cublasLtMatmulPreference_t pref;
	cublasLtMatmulHeuristicResult_t found;
	int n = 0;

	LIB(cublasLtMatmulDescCreate(&op, compute, type_of<S>::cuda));
	auto set = [&](cublasLtMatmulDescAttributes_t which, auto v) {
		LIB(cublasLtMatmulDescSetAttribute(op, which, &v, sizeof(v)));
	};
	set(CUBLASLT_MATMUL_DESC_TRANSA, ta);
	set(CUBLASLT_MATMUL_DESC_TRANSB, tb);
	set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
	if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
	    p.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS)
		set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)dbias);
	if (eight) {
		set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, (void *)&dscale[0]);
		set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (void *)&dscale[1]);
	}
	cublasLtMatrixLayout_t la = layout(type_of<A>::cuda, p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.batch);
	cublasLtMatrixLayout_t lb = layout(type_of<A>::cuda, p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.batch);
	cublasLtMatrixLayout_t ld = layout(type_of<D>::cuda, p.m, p.n, p.batch);
	LIB(cublasLtMatmulPreferenceCreate(&pref));
	LIB(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
						 &workspace_bytes, sizeof(workspace_bytes)));
	cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, ld, ld, pref, 1, &found, &n);
	if (!offered(s, n, type_of<A>::name, p)) {
		EXPECT(!must);
	} else {
		s = cublasLtMatmul(lt, op, &alpha, da, la, db, lb, &beta, dd, ld, dd, ld, &found.algo,
				   workspace, workspace_bytes, 0);
		if (s)
			printf("%s to %s, %dx%dx%d:\n", type_of<A>::name, type_of<D>::name, p.m, p.n,
			       p.k);
		LIB(s);
		d = results(dd, d.size());
		for (int q = 0; q < p.batch; q++)
			for (int j = 0; j < p.n; j++)
				for (int i = 0; i < p.m; i++) {
					double sum = 0, mass = 0, add = value(bias[i]).real(), t;
					size_t at = i + (size_t)p.m * (j + p.n * q);

					for (int k = 0; k < p.k; k++) {
						t = value(alpha).real() *
						    value(a[(size_t)q * p.m * p.k + (p.ta ?
							  k + i * p.k : i + k * p.m)]).real() *
						    value(b[(size_t)q * p.k * p.n + (p.tb ?
							  j + k * p.n : k + j * p.k)]).real();
						sum += t;
						mass += fabs(t);
					}
					/* GELU's slope is at most 1.13; its tanh may be the short one */
					near_enough("matmul", at, value(d[at]),
						    epilogue(p.epilogue, sum, add),
						    1.2 * (p.k + 4) * unit * mass +
						    3 * type_of<D>::unit * (mass + 1) +
						    (p.epilogue & 32 ? 0x1p-10 * (mass + 1) : 0));
				}
	}
	LIB(cublasLtMatmulPreferenceDestroy(pref));
	LIB(cublasLtMatmulDescDestroy(op));
	for (cublasLtMatrixLayout_t l : { la, lb, ld })
		LIB(cublasLtMatrixLayoutDestroy(l));
	for (void *q : { (void *)da, (void *)db, (void *)dd, (void *)dbias, (void *)dscale })
		CHECK(cudaFree(q));
}

int main(int argc, char **argv)
{
	const cublasLtEpilogue_t plain = CUBLASLT_EPILOGUE_DEFAULT;
	const cublasComputeType_t f32 = CUBLAS_COMPUTE_32F;
	static const cublasLtEpilogue_t epilogues[] = {
		CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS,
		CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
	};

	LIB(cublasLtCreate(&lt));
	CHECK(cudaMalloc(&workspace, workspace_bytes));
	product<__nv_bfloat16, __nv_bfloat16, float>({ 64, 64, 64, true, false, 1,
						     CUBLASLT_EPILOGUE_RELU_BIAS }, f32, 0x1p-23);
	if (!lib_arg(argc, argv, "fast")) {
		for (cublasLtEpilogue_t e : epilogues) {
			product<float, float, float>({ 48, 40, 56, false, false, 1, e }, f32, 0x1p-23);
			product<__half, __half, float>({ 64, 128, 32, true, false, 1, e }, f32, 0x1p-23);
			product<__nv_bfloat16, __nv_bfloat16, float>(
				{ 128, 64, 64, false, true, 1, e }, f32, 0x1p-23);
		}
		product<float, float, float>({ 33, 17, 65, true, true, 4, plain }, f32, 0x1p-23);
		product<double, double, double>({ 33, 48, 20, false, true, 2, plain },
						CUBLAS_COMPUTE_64F, 0x1p-53);
		product<float, float, float>({ 64, 64, 64, true, false, 1, plain },
					     CUBLAS_COMPUTE_32F_FAST_TF32, 0x1p-10);
		product<__half, __half, __half>({ 64, 64, 64, true, false, 1, plain },
						CUBLAS_COMPUTE_16F, 0x1p-10);
		product<__half, float, float>({ 64, 48, 64, true, false, 3, plain }, f32, 0x1p-23);
		product<__nv_fp8_e4m3, __nv_bfloat16, float>({ 64, 64, 64, true, false, 1, plain },
							     f32, 0x1p-13);
		product<__nv_fp8_e4m3, float, float>({ 128, 64, 128, true, false, 1, plain }, f32,
						     0x1p-13);
	}
	if (lib_arg(argc, argv, "all"))
		product<int8_t, int32_t, int32_t>({ 64, 64, 64, true, false, 1, plain },
						  CUBLAS_COMPUTE_32I, 0);
	CHECK(cudaFree(workspace));
	LIB(cublasLtDestroy(lt));
	return job_passed("cublaslt");
}
