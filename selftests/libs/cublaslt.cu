// SPDX-License-Identifier: Apache-2.0
/*
 * cublaslt.cu - cuBLASLt: products with an epilogue (bias, ReLU, GELU), row order, batches, 8-bit
 * integers and floats, by the heuristic's first algorithm or by a searched one, arrays of
 * pointers, other orders, against references in double precision.
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

/* ------------------------------------------------------------ without the heuristic's first algorithm */

static cublasLtMatmulDesc_t operation(cublasComputeType_t compute, cudaDataType_t scale, bool ta)
{
	const cublasOperation_t t = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtMatmulDesc_t op;

	LIB(cublasLtMatmulDescCreate(&op, compute, scale));
	LIB(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof(t)));
	return op;
}

/*
 * Of all algorithms for these types the first that runs. The heuristic knows no better for a device that is newer
 * than the library than an algorithm of which the library has machine code of older devices only.
 */
static void integers(int m, int n, int k)
{
	const cublasComputeType_t compute = CUBLAS_COMPUTE_32I;
	const cudaDataType_t i8 = CUDA_R_8I, i32 = CUDA_R_32I;
	std::vector<int8_t> a = random_values<int8_t>(m * k), b = random_values<int8_t>(k * n);
	int8_t *da = to_device(a), *db = to_device(b);
	std::vector<int> d(m * n);
	int *dd = to_device(d), ids[100], count, ran = -1;
	const int one = 1, zero = 0;
	cublasLtMatmulDesc_t op = operation(compute, i32, true);
	cublasLtMatrixLayout_t la = layout(i8, k, m, 1), lb = layout(i8, k, n, 1), ld = layout(i32, m, n, 1);

	LIB(cublasLtMatmulAlgoGetIds(lt, compute, i32, i8, i8, i32, i32, 100, ids, &count));
	for (int i = 0; i < count && ran < 0; i++) {
		cublasLtMatmulAlgo_t algo;
		cublasLtMatmulHeuristicResult_t r;
		int tiles[100] = { 0 }, stages[100] = { 0 };
		size_t nt = 0, ns = 0;

		if (cublasLtMatmulAlgoInit(lt, compute, i32, i8, i8, i32, i32, ids[i], &algo))
			continue;
		(void)cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_TILE_IDS, tiles, sizeof(tiles), &nt);
		(void)cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_STAGES_IDS, stages, sizeof(stages),
							&ns);
		LIB(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, tiles, sizeof(int)));
		LIB(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, stages, sizeof(int)));
		if (!cublasLtMatmulAlgoCheck(lt, op, la, lb, ld, ld, &algo, &r) && r.workspaceSize <= workspace_bytes &&
		    !cublasLtMatmul(lt, op, &one, da, la, db, lb, &zero, dd, ld, dd, ld, &algo, workspace,
				    workspace_bytes, 0))
			ran = ids[i];
	}
	printf("8-bit integers: algorithm %d\n", ran);
	EXPECT(ran >= 0);
	d = results(dd, m * n);
	for (int j = 0; j < n; j++)
		for (int i = 0; i < m; i++) {
			int sum = 0;

			for (int p = 0; p < k; p++)
				sum += a[p + i * k] * b[p + j * k];
			EXPECT_EQ(d[i + j * m], sum);
		}
	LIB(cublasLtMatmulDescDestroy(op));
	for (cublasLtMatrixLayout_t l : { la, lb, ld })
		LIB(cublasLtMatrixLayoutDestroy(l));
	for (void *q : { (void *)da, (void *)db, (void *)dd })
		CHECK(cudaFree(q));
}

/* An algorithm that is named, with a long sum in many parts. */
static void preset(int m, int n, int k)
{
	const cudaDataType_t t = CUDA_R_64F;
	std::vector<double> a = random_values<double>(m * k), b = random_values<double>(k * n), d(m * n);
	double *da = to_device(a), *db = to_device(b), *dd = to_device(d);
	const double alpha = 2, beta = 0;
	const int tile = CUBLASLT_MATMUL_TILE_16x16, parts = 256, scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
	cublasLtMatmulDesc_t op = operation(CUBLAS_COMPUTE_64F, t, false);
	cublasLtMatrixLayout_t la = layout(t, m, k, 1), lb = layout(t, k, n, 1), ld = layout(t, m, n, 1);
	cublasLtMatmulAlgo_t algo;

	LIB(cublasLtMatmulAlgoInit(lt, CUBLAS_COMPUTE_64F, t, t, t, t, t, 10, &algo));
	LIB(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile)));
	LIB(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme)));
	LIB(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts)));
	LIB(cublasLtMatmul(lt, op, &alpha, da, la, db, lb, &beta, dd, ld, dd, ld, &algo, workspace, workspace_bytes, 0));
	d = to_host(dd, m * n);		/* the parts are added in any order */
	for (int j = 0; j < n; j++)
		for (int i = 0; i < m; i++) {
			double sum = 0;

			for (int p = 0; p < k; p++)
				sum += 2 * a[i + p * m] * b[p + j * k];
			near_enough("preset", i + j * m, d[i + j * m], sum, 1e-11);
		}
	LIB(cublasLtMatmulDescDestroy(op));
	for (cublasLtMatrixLayout_t l : { la, lb, ld })
		LIB(cublasLtMatrixLayoutDestroy(l));
	for (void *q : { (void *)da, (void *)db, (void *)dd })
		CHECK(cudaFree(q));
}

/* Batches by arrays of pointers, and no algorithm given. */
static void pointers(int m, int n, int k)
{
	const cublasLtBatchMode_t mode = CUBLASLT_BATCH_MODE_POINTER_ARRAY;
	const int batch = 3;
	const float alpha = 1.5f, beta = 0;
	std::vector<__half> a[batch], b[batch], d(m * n);
	std::vector<__half *> pa, pb, pd;
	cublasLtMatmulDesc_t op = operation(CUBLAS_COMPUTE_32F, CUDA_R_32F, false);
	cublasLtMatrixLayout_t la = layout(CUDA_R_16F, m, k, batch), lb = layout(CUDA_R_16F, k, n, batch);
	cublasLtMatrixLayout_t ld = layout(CUDA_R_16F, m, n, batch);

	for (cublasLtMatrixLayout_t l : { la, lb, ld })
		LIB(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, &mode, sizeof(mode)));
	for (int q = 0; q < batch; q++) {
		a[q] = random_values<__half>(m * k);
		b[q] = random_values<__half>(k * n);
		pa.push_back(to_device(a[q]));
		pb.push_back(to_device(b[q]));
		pd.push_back(to_device(d));
	}
	__half **da = to_device(pa), **db = to_device(pb), **dd = to_device(pd);
	LIB(cublasLtMatmul(lt, op, &alpha, da, la, db, lb, &beta, dd, ld, dd, ld, NULL, workspace, workspace_bytes, 0));
	for (int q = 0; q < batch; q++) {
		d = results(pd[q], m * n);
		for (int j = 0; j < n; j++)
			for (int i = 0; i < m; i++) {
				cplx sum = 0;

				for (int p = 0; p < k; p++)
					sum += 1.5 * value(a[q][i + p * m]) * value(b[q][p + j * k]);
				near_enough("pointers", i + j * m, value(d[i + j * m]), sum, 0x1p-9 * (std::abs(sum) + 1));
			}
		for (void *p : { (void *)pa[q], (void *)pb[q], (void *)pd[q] })
			CHECK(cudaFree(p));
	}
	LIB(cublasLtMatmulDescDestroy(op));
	for (cublasLtMatrixLayout_t l : { la, lb, ld })
		LIB(cublasLtMatrixLayoutDestroy(l));
	for (void *q : { (void *)da, (void *)db, (void *)dd })
		CHECK(cudaFree(q));
}

/* D of 8 bits, too, scaled, and the largest of its values before they are rounded. */
static void eight_bits_out(int m, int n, int k)
{
	const cudaDataType_t e4m3 = CUDA_R_8F_E4M3;
	std::vector<__nv_fp8_e4m3> a = random_values<__nv_fp8_e4m3>(m * k), b = random_values<__nv_fp8_e4m3>(k * n);
	std::vector<__nv_fp8_e4m3> d(m * n);
	std::vector<__nv_bfloat16> c = random_values<__nv_bfloat16>(m * n);
	std::vector<float> numbers = { 0.5f, 2, 4, -1 };	/* scales of A, B and D; the maximum */
	__nv_fp8_e4m3 *da = to_device(a), *db = to_device(b), *dd = to_device(d);
	__nv_bfloat16 *dc = to_device(c);
	float *df = to_device(numbers);
	const float alpha = 2, beta = 1;
	double largest = 0;
	cublasLtMatmulDesc_t op = operation(CUBLAS_COMPUTE_32F, CUDA_R_32F, true);
	cublasLtMatrixLayout_t la = layout(e4m3, k, m, 1), lb = layout(e4m3, k, n, 1), ld = layout(e4m3, m, n, 1);
	cublasLtMatrixLayout_t lc = layout(CUDA_R_16BF, m, n, 1);
	cublasLtMatmulPreference_t pref;
	cublasLtMatmulHeuristicResult_t found;
	int count;

	for (int i = 0; i < 4; i++) {
		static const cublasLtMatmulDescAttributes_t which[] = {
			CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
			CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
		};
		float *p = df + i;

		LIB(cublasLtMatmulDescSetAttribute(op, which[i], &p, sizeof(p)));
	}
	LIB(cublasLtMatmulPreferenceCreate(&pref));
	LIB(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
						 sizeof(workspace_bytes)));
	LIB(cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, lc, ld, pref, 1, &found, &count));
	EXPECT_EQ(count, 1);
	LIB(cublasLtMatmul(lt, op, &alpha, da, la, db, lb, &beta, dc, lc, dd, ld, &found.algo, workspace, workspace_bytes,
			   0));
	d = results(dd, m * n);
	numbers = results(df, 4);
	for (int j = 0; j < n; j++)
		for (int i = 0; i < m; i++) {
			double sum = value(c[i + j * m]).real(), want;

			for (int p = 0; p < k; p++)
				sum += 2 * value(a[p + i * k]).real() * value(b[p + j * k]).real();
			largest = fmax(largest, fabs(sum));
			want = fmax(-448, fmin(448, 4 * sum));
			near_enough("e4m3", i + j * m, value(d[i + j * m]), want, 0x1p-4 * fabs(want) + 0x1p-4);
		}
	near_enough("amax", 0, numbers[3], largest, 1e-2 * largest);
	LIB(cublasLtMatmulPreferenceDestroy(pref));
	LIB(cublasLtMatmulDescDestroy(op));
	for (cublasLtMatrixLayout_t l : { la, lb, lc, ld })
		LIB(cublasLtMatrixLayoutDestroy(l));
	for (void *q : { (void *)da, (void *)db, (void *)dc, (void *)dd, (void *)df })
		CHECK(cudaFree(q));
}

/* To an order of tiles and back: transposed once, nothing is lost. */
static void transforms(int m, int n)
{
	const cublasLtOrder_t tiles = CUBLASLT_ORDER_COL32;
	const cublasOperation_t t = CUBLAS_OP_T;
	const float one = 1, zero = 0;
	const int64_t wide = 32 * m;
	std::vector<int8_t> a = random_values<int8_t>(m * n), back(m * n);
	int8_t *da = to_device(a), *dback = to_device(back), *dt;
	cublasLtMatrixTransformDesc_t how;
	cublasLtMatrixLayout_t la = layout(CUDA_R_8I, m, n, 1), lt1, lb = layout(CUDA_R_8I, n, m, 1);

	CHECK(cudaMalloc(&dt, wide * ((n + 31) / 32)));
	LIB(cublasLtMatrixLayoutCreate(&lt1, CUDA_R_8I, m, n, wide));
	LIB(cublasLtMatrixLayoutSetAttribute(lt1, CUBLASLT_MATRIX_LAYOUT_ORDER, &tiles, sizeof(tiles)));
	LIB(cublasLtMatrixTransformDescCreate(&how, CUDA_R_32F));
	LIB(cublasLtMatrixTransform(lt, how, &one, da, la, &zero, NULL, NULL, dt, lt1, 0));
	LIB(cublasLtMatrixTransformDescSetAttribute(how, CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, &t, sizeof(t)));
	LIB(cublasLtMatrixTransform(lt, how, &one, dt, lt1, &zero, NULL, NULL, dback, lb, 0));
	back = results(dback, m * n);
	for (int j = 0; j < n; j++)
		for (int i = 0; i < m; i++)
			EXPECT_EQ(back[j + i * n], a[i + j * m]);
	LIB(cublasLtMatrixTransformDescDestroy(how));
	for (cublasLtMatrixLayout_t l : { la, lt1, lb })
		LIB(cublasLtMatrixLayoutDestroy(l));
	for (void *q : { (void *)da, (void *)dback, (void *)dt })
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
	integers(64, 48, 64);
	if (!lib_arg(argc, argv, "fast")) {
		integers(96, 64, 160);
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
		preset(4, 4, 20000);
		pointers(64, 40, 24);
		eight_bits_out(64, 128, 256);
		transforms(40, 75);
	}
	if (lib_arg(argc, argv, "all"))
		product<int8_t, int32_t, int32_t>({ 64, 64, 64, true, false, 1, plain },
						  CUBLAS_COMPUTE_32I, 0);
	CHECK(cudaFree(workspace));
	LIB(cublasLtDestroy(lt));
	return job_passed("cublaslt");
}
