// SPDX-License-Identifier: Apache-2.0
/*
 * cusparse.cu - cuSPARSE: sparse matrices by vectors and matrices, by each other, conversions of
 * their formats, triangular systems and sampled products, against references in double precision.
 */
#include "lib.cuh"

#include <cusparse.h>

static cusparseHandle_t sparse;
static const cusparseOperation_t N = CUSPARSE_OPERATION_NON_TRANSPOSE;
static const cusparseOperation_t T = CUSPARSE_OPERATION_TRANSPOSE;

template <typename F> static char *scratch(F size)
{
	size_t bytes = 0;
	char *p;

	LIB(size(&bytes));
	CHECK(cudaMalloc(&p, bytes + 16));
	return p;
}

/* A random sparse matrix in compressed rows, on the host, dense, and on the device. */
template <typename E> struct csr {
	int rows, cols;
	std::vector<int> row, col;
	std::vector<E> val;
	std::vector<double> dense;
	int *drow, *dcol;
	E *dval;
	cusparseSpMatDescr_t desc;

	csr(int r, int c, int one_in, bool lower = false) : rows(r), cols(c), row(1, 0), dense(r * c)
	{
		for (int i = 0; i < r; i++) {
			for (int j = 0; j < (lower ? i + 1 : c); j++) {
				bool diagonal = lower && i == j;

				/* a row without elements, and one that is full */
				if (!diagonal && (i == 3 || (rnd(&lib_seed) % one_in && i != 5)))
					continue;
				val.push_back(nearest<E>(diagonal ? 3.0 : rndf(&lib_seed)));
				col.push_back(j);
				dense[i * c + j] = value(val.back()).real();
			}
			row.push_back(col.size());
		}
		drow = to_device(row);
		dcol = to_device(col);
		dval = to_device(val);
		LIB(cusparseCreateCsr(&desc, r, c, val.size(), drow, dcol, dval, CUSPARSE_INDEX_32I,
				      CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, type_of<E>::cuda));
	}
	~csr()
	{
		LIB(cusparseDestroySpMat(desc));
		CHECK(cudaFree(drow));
		CHECK(cudaFree(dcol));
		CHECK(cudaFree(dval));
	}
	csr(const csr &) = delete;
	double at(cusparseOperation_t op, int i, int j) const
	{
		return op == N ? dense[i * cols + j] : dense[j * cols + i];
	}
};

/* C = 1.5 A B - 0.5 C for a dense B of n columns, which is what a vector is, too. */
template <typename E> static void check(const char *what, const csr<E> &a, cusparseOperation_t op,
					const std::vector<E> &b, const std::vector<E> &c,
					const std::vector<E> &got, int n, double unit)
{
	int m = op == N ? a.rows : a.cols, k = op == N ? a.cols : a.rows;

	for (int j = 0; j < n; j++)
		for (int i = 0; i < m; i++) {
			double sum = -0.5 * value(c[i + j * m]).real(), mass = fabs(sum);

			for (int p = 0; p < k; p++) {
				double t = 1.5 * a.at(op, i, p) * value(b[p + j * k]).real();

				sum += t;
				mass += fabs(t);
			}
			near_enough(what, i + j * m, value(got[i + j * m]), sum,
				    ((k + 4) * unit + 2 * type_of<E>::unit) * mass);
		}
}

/* S: what is computed in. */
template <typename E, typename S>
static void by_vector(int rows, int cols, cusparseOperation_t op, cusparseSpMVAlg_t alg)
{
	csr<E> a(rows, cols, 6);
	int m = op == N ? rows : cols, k = op == N ? cols : rows;
	std::vector<E> x = random_values<E>(k), y = random_values<E>(m);
	E *dx = to_device(x), *dy = to_device(y);
	const S alpha = nearest<S>(1.5), beta = nearest<S>(-0.5);
	cusparseDnVecDescr_t vx, vy;
	char *buf;

	LIB(cusparseCreateDnVec(&vx, k, dx, type_of<E>::cuda));
	LIB(cusparseCreateDnVec(&vy, m, dy, type_of<E>::cuda));
	buf = scratch([&](size_t *n) { return cusparseSpMV_bufferSize(sparse, op, &alpha, a.desc, vx,
			&beta, vy, type_of<S>::cuda, alg, n); });
	LIB(cusparseSpMV(sparse, op, &alpha, a.desc, vx, &beta, vy, type_of<S>::cuda, alg, buf));
	check("spmv", a, op, x, y, results(dy, m), 1, type_of<S>::unit);
	LIB(cusparseDestroyDnVec(vx));
	LIB(cusparseDestroyDnVec(vy));
	CHECK(cudaFree(dx));
	CHECK(cudaFree(dy));
	CHECK(cudaFree(buf));
}

template <typename E, typename S>
static void by_matrix(int rows, int cols, int n, cusparseOperation_t op)
{
	csr<E> a(rows, cols, 5);
	int m = op == N ? rows : cols, k = op == N ? cols : rows;
	std::vector<E> b = random_values<E>(k * n), c = random_values<E>(m * n);
	E *db = to_device(b), *dc = to_device(c);
	const S alpha = nearest<S>(1.5), beta = nearest<S>(-0.5);
	cusparseDnMatDescr_t mb, mc;
	char *buf;

	LIB(cusparseCreateDnMat(&mb, k, n, k, db, type_of<E>::cuda, CUSPARSE_ORDER_COL));
	LIB(cusparseCreateDnMat(&mc, m, n, m, dc, type_of<E>::cuda, CUSPARSE_ORDER_COL));
	buf = scratch([&](size_t *s) { return cusparseSpMM_bufferSize(sparse, op, N, &alpha, a.desc,
			mb, &beta, mc, type_of<S>::cuda, CUSPARSE_SPMM_ALG_DEFAULT, s); });
	LIB(cusparseSpMM(sparse, op, N, &alpha, a.desc, mb, &beta, mc, type_of<S>::cuda,
			 CUSPARSE_SPMM_ALG_DEFAULT, buf));
	check("spmm", a, op, b, c, results(dc, m * n), n, type_of<S>::unit);
	LIB(cusparseDestroyDnMat(mb));
	LIB(cusparseDestroyDnMat(mc));
	CHECK(cudaFree(db));
	CHECK(cudaFree(dc));
	CHECK(cudaFree(buf));
}

/* Lower triangular systems: L x = b again. */
template <typename E> static void triangular(int n)
{
	csr<E> a(n, n, 8, true);
	std::vector<E> b = random_values<E>(n), x(n);
	E *db = to_device(b), *dx = to_device(x);
	const E one = 1;
	const cusparseFillMode_t fill = CUSPARSE_FILL_MODE_LOWER;
	const cusparseSpSVAlg_t alg = CUSPARSE_SPSV_ALG_DEFAULT;
	cusparseSpSVDescr_t plan;
	cusparseDnVecDescr_t vb, vx;
	char *buf;

	LIB(cusparseSpMatSetAttribute(a.desc, CUSPARSE_SPMAT_FILL_MODE, (void *)&fill, sizeof(fill)));
	LIB(cusparseCreateDnVec(&vb, n, db, type_of<E>::cuda));
	LIB(cusparseCreateDnVec(&vx, n, dx, type_of<E>::cuda));
	LIB(cusparseSpSV_createDescr(&plan));
	buf = scratch([&](size_t *s) { return cusparseSpSV_bufferSize(sparse, N, &one, a.desc, vb, vx,
			type_of<E>::cuda, alg, plan, s); });
	LIB(cusparseSpSV_analysis(sparse, N, &one, a.desc, vb, vx, type_of<E>::cuda, alg, plan, buf));
	LIB(cusparseSpSV_solve(sparse, N, &one, a.desc, vb, vx, type_of<E>::cuda, alg, plan));
	x = results(dx, n);
	for (int i = 0; i < n; i++) {
		double sum = 0, mass = 1;

		for (int j = 0; j <= i; j++) {
			sum += a.at(N, i, j) * (double)x[j];
			mass += fabs(a.at(N, i, j) * (double)x[j]);
		}
		near_enough("spsv", i, sum, (double)b[i], 2 * n * type_of<E>::unit * mass);
	}
	LIB(cusparseSpSV_destroyDescr(plan));
	LIB(cusparseDestroyDnVec(vb));
	LIB(cusparseDestroyDnVec(vx));
	CHECK(cudaFree(db));
	CHECK(cudaFree(dx));
	CHECK(cudaFree(buf));
}

/* The product of two sparse matrices, whose size is known only when it has been computed. */
static void sparse_product(int m, int k, int n)
{
	csr<float> a(m, k, 6), b(k, n, 6);
	const float one = 1, zero = 0;
	cusparseSpGEMMDescr_t plan;
	cusparseSpMatDescr_t c;
	size_t n1 = 0, n2 = 0;
	int64_t rows, cols, nnz;
	int *row, *col;
	float *val;
	char *buf1, *buf2;
	const cusparseSpGEMMAlg_t alg = CUSPARSE_SPGEMM_DEFAULT;

	CHECK(cudaMalloc(&row, (m + 1) * sizeof(int)));
	LIB(cusparseCreateCsr(&c, m, n, 0, row, NULL, NULL, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
			      CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
	LIB(cusparseSpGEMM_createDescr(&plan));
	LIB(cusparseSpGEMM_workEstimation(sparse, N, N, &one, a.desc, b.desc, &zero, c, CUDA_R_32F,
					  alg, plan, &n1, NULL));
	CHECK(cudaMalloc(&buf1, n1 + 16));
	LIB(cusparseSpGEMM_workEstimation(sparse, N, N, &one, a.desc, b.desc, &zero, c, CUDA_R_32F,
					  alg, plan, &n1, buf1));
	LIB(cusparseSpGEMM_compute(sparse, N, N, &one, a.desc, b.desc, &zero, c, CUDA_R_32F, alg,
				   plan, &n2, NULL));
	CHECK(cudaMalloc(&buf2, n2 + 16));
	LIB(cusparseSpGEMM_compute(sparse, N, N, &one, a.desc, b.desc, &zero, c, CUDA_R_32F, alg,
				   plan, &n2, buf2));
	LIB(cusparseSpMatGetSize(c, &rows, &cols, &nnz));
	CHECK(cudaMalloc(&col, nnz * sizeof(int) + 4));
	CHECK(cudaMalloc(&val, nnz * sizeof(float) + 4));
	LIB(cusparseCsrSetPointers(c, row, col, val));
	LIB(cusparseSpGEMM_copy(sparse, N, N, &one, a.desc, b.desc, &zero, c, CUDA_R_32F, alg, plan));

	std::vector<int> hr = results(row, m + 1), hc = results(col, nnz);
	std::vector<float> hv = results(val, nnz);
	std::vector<double> got(m * n);
	for (int i = 0; i < m; i++)
		for (int p = hr[i]; p < hr[i + 1]; p++)
			got[i * n + hc[p]] += hv[p];
	for (int i = 0; i < m; i++)
		for (int j = 0; j < n; j++) {
			double sum = 0, mass = 0;

			for (int p = 0; p < k; p++) {
				sum += a.at(N, i, p) * b.at(N, p, j);
				mass += fabs(a.at(N, i, p) * b.at(N, p, j));
			}
			near_enough("spgemm", i * n + j, got[i * n + j], sum, (k + 4) * 0x1p-24 * mass);
		}
	LIB(cusparseSpGEMM_destroyDescr(plan));
	LIB(cusparseDestroySpMat(c));
	for (void *p : { (void *)row, (void *)col, (void *)val, (void *)buf1, (void *)buf2 })
		CHECK(cudaFree(p));
}

/* Sparse to dense and back: nothing may change. */
static void conversions(int m, int n)
{
	csr<float> a(m, n, 4);
	cusparseDnMatDescr_t d;
	cusparseSpMatDescr_t again;
	std::vector<float> zeros(m * n), full;
	float *dd = to_device(zeros), *val;
	int *row, *col;
	char *buf, *buf2;
	int64_t rows, cols, nnz;

	LIB(cusparseCreateDnMat(&d, m, n, n, dd, CUDA_R_32F, CUSPARSE_ORDER_ROW));
	buf = scratch([&](size_t *s) { return cusparseSparseToDense_bufferSize(sparse, a.desc, d,
			CUSPARSE_SPARSETODENSE_ALG_DEFAULT, s); });
	LIB(cusparseSparseToDense(sparse, a.desc, d, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, buf));
	full = results(dd, m * n);
	for (int i = 0; i < m * n; i++)
		near_enough("to dense", i, full[i], a.dense[i], 0);
	CHECK(cudaMalloc(&row, (m + 1) * sizeof(int)));
	LIB(cusparseCreateCsr(&again, m, n, 0, row, NULL, NULL, CUSPARSE_INDEX_32I,
			      CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
	buf2 = scratch([&](size_t *s) { return cusparseDenseToSparse_bufferSize(sparse, d, again,
			CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, s); });
	LIB(cusparseDenseToSparse_analysis(sparse, d, again, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT,
					   buf2));
	LIB(cusparseSpMatGetSize(again, &rows, &cols, &nnz));
	EXPECT_EQ(nnz, a.val.size());
	CHECK(cudaMalloc(&col, nnz * sizeof(int)));
	CHECK(cudaMalloc(&val, nnz * sizeof(float)));
	LIB(cusparseCsrSetPointers(again, row, col, val));
	LIB(cusparseDenseToSparse_convert(sparse, d, again, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, buf2));
	EXPECT(results(row, m + 1) == a.row);
	EXPECT(results(col, nnz) == a.col);
	EXPECT(results(val, nnz) == a.val);
	LIB(cusparseDestroyDnMat(d));
	LIB(cusparseDestroySpMat(again));
	for (void *p : { (void *)dd, (void *)row, (void *)col, (void *)val, (void *)buf, (void *)buf2 })
		CHECK(cudaFree(p));
}

int main(int argc, char **argv)
{
	LIB(cusparseCreate(&sparse));
	by_vector<float, float>(60, 50, N, CUSPARSE_SPMV_ALG_DEFAULT);
	conversions(23, 31);
	if (!lib_arg(argc, argv, "fast")) {
		by_vector<float, float>(301, 257, N, CUSPARSE_SPMV_CSR_ALG1);
		by_vector<float, float>(301, 257, N, CUSPARSE_SPMV_CSR_ALG2);
		by_vector<float, float>(60, 70, T, CUSPARSE_SPMV_ALG_DEFAULT);
		by_vector<double, double>(90, 110, N, CUSPARSE_SPMV_ALG_DEFAULT);
		by_vector<__half, float>(64, 64, N, CUSPARSE_SPMV_ALG_DEFAULT);
		by_vector<__nv_bfloat16, float>(64, 64, N, CUSPARSE_SPMV_ALG_DEFAULT);
		by_matrix<float, float>(60, 50, 8, N);
		by_matrix<float, float>(50, 70, 17, T);
		by_matrix<double, double>(33, 45, 5, N);
		by_matrix<__half, float>(48, 64, 16, N);
		triangular<float>(40);
		triangular<double>(100);
		sparse_product(30, 40, 35);
	}
	LIB(cusparseDestroy(sparse));
	return job_passed("cusparse");
}
