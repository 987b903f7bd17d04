// SPDX-License-Identifier: Apache-2.0
/*
 * cublas.cu - cuBLAS: vectors, matrices and vectors, products of all types and layouts, batches,
 * triangular systems and factorisations, each against a reference in double precision.
 */
#include "lib.cuh"

#include <cublas_v2.h>

static cublasHandle_t blas;
static const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T, C = CUBLAS_OP_C;

/* A column-major matrix on the host and on the device; a vector has one column. */
template <typename E> struct matrix {
	int rows, cols, ld;
	std::vector<E> host;
	E *dev;

	matrix(int r, int c = 1, int pad = 0) : rows(r), cols(c), ld(r + pad),
		host(random_values<E>((size_t)(r + pad) * c)), dev(to_device(host)) { }
	~matrix() { CHECK(cudaFree(dev)); }
	matrix(const matrix &) = delete;

	cplx at(int i, int j = 0) const { return value(host[i + (size_t)j * ld]); }
	/* element i, j as an operation sees it, of the matrix that begins in this column */
	cplx op(cublasOperation_t o, int i, int j, int first = 0) const
	{
		if (o == CUBLAS_OP_N)
			return at(i, first + j);
		return o == CUBLAS_OP_T ? at(j, first + i) : std::conj(at(j, first + i));
	}
	/* what the device has; the host's copy stays what it was */
	std::vector<E> now() const { return results(dev, host.size()); }
	void upload()
	{
		CHECK(cudaMemcpy(dev, host.data(), host.size() * sizeof(E),
				 cudaMemcpyHostToDevice));
	}
};

/* ------------------------------------------------------------------ vectors */

/* X: what the vectors are made of; S: what scalars and sums are computed in. */
template <typename X, typename S> static void vectors(int n, int step)
{
	const cudaDataType_t xt = type_of<X>::cuda, st = type_of<S>::cuda;
	const double u = type_of<X>::unit, us = type_of<S>::unit;
	matrix<X> x(n * step), y(n * step);
	S alpha = nearest<S>(cplx(0.75, type_of<S>::is_complex ? -0.5 : 0));
	cplx sum = 0;
	double mass = 0, squares = 0;
	std::vector<X> got;
	X dot;

	LIB(cublasAxpyEx(blas, n, &alpha, st, x.dev, xt, step, y.dev, xt, step, st));
	got = y.now();
	for (int i = 0; i < n * step; i++) {
		cplx ax = i % step ? 0 : value(alpha) * x.at(i);

		near_enough("axpy", i, value(got[i]), ax + y.at(i),
			    4 * u * (std::abs(ax) + std::abs(y.at(i))));
	}
	LIB(cublasScalEx(blas, n, &alpha, st, y.dev, xt, step, st));
	std::vector<X> scaled = y.now();
	for (int i = 0; i < n * step; i++)
		near_enough("scal", i, value(scaled[i]), value(got[i]) *
			    (i % step ? 1.0 : value(alpha)), 4 * u * std::abs(value(got[i])));
	y.upload();
	LIB(cublasDotEx(blas, n, x.dev, xt, step, y.dev, xt, step, &dot, xt, st));
	for (int i = 0; i < n * step; i += step) {
		sum += x.at(i) * y.at(i);
		mass += std::abs(x.at(i) * y.at(i));
		squares += std::norm(x.at(i));
	}
	near_enough("dot", 0, value(dot), sum, (n * us + 2 * u) * mass);
	sum_bytes(&dot, sizeof(dot));
	if constexpr (!type_of<X>::is_complex) {
		X norm;

		LIB(cublasNrm2Ex(blas, n, x.dev, xt, step, &norm, xt, st));
		near_enough("nrm2", 0, value(norm), sqrt(squares), (n * us + 4 * u) * sqrt(squares));
		sum_bytes(&norm, sizeof(norm));
	}
}

static void extremes(int n)
{
	matrix<float> x(n), y(n);
	float total, c = 0.6f, s = 0.8f;
	int at, want = 0;
	double sum = 0;

	LIB(cublasIsamax(blas, n, x.dev, 1, &at));
	LIB(cublasSasum(blas, n, x.dev, 1, &total));
	for (int i = 0; i < n; i++) {
		sum += std::abs(x.at(i));
		if (std::abs(x.at(i)) > std::abs(x.at(want)))
			want = i;
	}
	EXPECT_EQ(at, want + 1);
	near_enough("asum", 0, total, sum, n * 0x1p-24 * sum);
	LIB(cublasSrot(blas, n, x.dev, 1, y.dev, 1, &c, &s));
	LIB(cublasSswap(blas, n, x.dev, 1, y.dev, 1));
	std::vector<float> gx = x.now(), gy = y.now();
	for (int i = 0; i < n; i++) {
		near_enough("rot", i, gy[i], 0.6 * x.at(i) + 0.8 * y.at(i), 0x1p-21);
		near_enough("rot", i, gx[i], 0.6 * y.at(i) - 0.8 * x.at(i), 0x1p-21);
	}
}

/* ------------------------------------------------- matrices and vectors */

#define BY_TYPE(NAME)							\
	template <typename... A> static cublasStatus_t NAME(float, A... a)	\
	{ return cublasS##NAME(blas, a...); }				\
	template <typename... A> static cublasStatus_t NAME(double, A... a)	\
	{ return cublasD##NAME(blas, a...); }
BY_TYPE(gemv)
BY_TYPE(ger)
BY_TYPE(symv)
BY_TYPE(trsv)
BY_TYPE(trsm)
BY_TYPE(syrk)
BY_TYPE(geam)
BY_TYPE(getrfBatched)
BY_TYPE(getrsBatched)
BY_TYPE(getriBatched)

template <typename E> static void matrix_vector(int m, int n, cublasOperation_t op)
{
	matrix<E> a(m, n, 3), x(op == N ? n : m), y(op == N ? m : n);
	const E alpha = 1.25, beta = -0.5;
	std::vector<E> got;

	LIB(gemv(alpha, op, m, n, &alpha, a.dev, a.ld, x.dev, 1, &beta, y.dev, 1));
	got = y.now();
	for (int i = 0; i < y.rows; i++) {
		cplx sum = -0.5 * y.at(i);
		double mass = std::abs(sum);

		for (int j = 0; j < x.rows; j++) {
			cplx t = 1.25 * a.op(op, i, j) * x.at(j);

			sum += t;
			mass += std::abs(t);
		}
		near_enough("gemv", i, got[i], sum, (x.rows + 4) * type_of<E>::unit * mass);
	}
	LIB(ger(alpha, m, n, &alpha, op == N ? y.dev : x.dev, 1, op == N ? x.dev : y.dev, 1,
		a.dev, a.ld));
	std::vector<E> u = op == N ? got : x.host, v = op == N ? x.host : got, rank1 = a.now();
	for (int j = 0; j < n; j++)
		for (int i = 0; i < m; i++) {
			double t = 1.25 * (double)u[i] * (double)v[j];

			near_enough("ger", i + j * m, rank1[i + j * a.ld], a.at(i, j) + t,
				    4 * type_of<E>::unit * (std::abs(a.at(i, j)) + fabs(t)));
		}
}

/* Triangular systems, checked by what the solution gives back. */
template <typename E> static void triangular(int n, int rhs)
{
	matrix<E> a(n, n), b(n, rhs);
	const E alpha = 1;
	std::vector<E> x;

	for (int i = 0; i < n; i++)
		a.host[i + i * n] = 4 + i % 3;
	for (int j = 0; j < n; j++)
		for (int i = 0; i < n; i++)
			a.host[i + j * n] *= i == j ? 1 : E(2) / n;
	a.upload();
	LIB(trsm(alpha, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, N, CUBLAS_DIAG_NON_UNIT, n, rhs,
		 &alpha, a.dev, n, b.dev, n));
	x = b.now();
	for (int r = 0; r < rhs; r++)
		for (int i = 0; i < n; i++) {
			double sum = 0, mass = 0;

			for (int j = 0; j <= i; j++) {
				sum += (double)x[j + r * n] * a.at(i, j).real();
				mass += fabs((double)x[j + r * n] * a.at(i, j).real());
			}
			near_enough("trsm", i + r * n, sum, b.at(i, r), 4 * n * type_of<E>::unit * (mass + 1));
		}
}

/* ------------------------------------------------------------------ products */

struct shape {
	int m, n, k;
	cublasOperation_t ta, tb;
};

/* A, B: types of the factors; D: of the result; S: of the scalars; unit: what sums are kept to. */
template <typename A, typename D, typename S>
static void gemm(const shape &s, cublasComputeType_t compute, double unit, int batch = 1)
{
	matrix<A> a(s.ta == N ? s.m : s.k, (s.ta == N ? s.k : s.m) * batch, 8);
	matrix<A> b(s.tb == N ? s.k : s.n, (s.tb == N ? s.n : s.k) * batch, 8);
	matrix<D> c(s.m, s.n * batch, 4);
	S alpha = nearest<S>(cplx(std::is_integral_v<S> ? 1 : 1.5, type_of<S>::is_complex ? 0.25 : 0));
	S beta = nearest<S>(cplx(std::is_integral_v<S> ? 1 : -0.5, 0));
	long long sa = (long long)a.ld * a.cols / batch, sb = (long long)b.ld * b.cols / batch;
	long long sc = (long long)c.ld * s.n;
	std::vector<D> got;

	if (batch == 1)
		LIB(cublasGemmEx(blas, s.ta, s.tb, s.m, s.n, s.k, &alpha, a.dev, type_of<A>::cuda,
				 a.ld, b.dev, type_of<A>::cuda, b.ld, &beta, c.dev,
				 type_of<D>::cuda, c.ld, compute, CUBLAS_GEMM_DEFAULT));
	else
		LIB(cublasGemmStridedBatchedEx(blas, s.ta, s.tb, s.m, s.n, s.k, &alpha, a.dev,
				type_of<A>::cuda, a.ld, sa, b.dev, type_of<A>::cuda, b.ld, sb,
				&beta, c.dev, type_of<D>::cuda, c.ld, sc, batch, compute,
				CUBLAS_GEMM_DEFAULT));
	got = c.now();
	for (int p = 0; p < batch; p++)
		for (int j = 0; j < s.n; j++)
			for (int i = 0; i < s.m; i++) {
				cplx sum = value(beta) * c.at(i, j + p * s.n), t;
				double mass = std::abs(sum);

				for (int k = 0; k < s.k; k++) {
					t = value(alpha) * a.op(s.ta, i, k, p * a.cols / batch) *
					    b.op(s.tb, k, j, p * b.cols / batch);
					sum += t;
					mass += std::abs(t);
				}
				near_enough("gemm", i + (j + p * s.n) * c.ld,
					    value(got[i + (size_t)(j + p * s.n) * c.ld]), sum,
					    ((s.k + 4) * unit + 2 * type_of<D>::unit) * mass);
			}
}

/* What the types allow, over a few shapes each. */
template <typename A, typename D, typename S>
static void gemm_shapes(cublasComputeType_t compute, double unit, bool fast)
{
	static const shape shapes[] = {
		{ 64, 64, 64, N, N }, { 40, 24, 72, T, N }, { 128, 96, 32, N, T },
		{ 16, 16, 256, T, T }, { 8, 200, 48, N, N }, { 1, 64, 64, T, N },
		{ 130, 66, 98, N, N },
	};

	for (const shape &s : shapes) {
		gemm<A, D, S>(s, compute, unit);
		if (fast)
			return;
	}
	gemm<A, D, S>({ 32, 32, 32, N, N }, compute, unit, 5);
	gemm<A, D, S>({ 24, 40, 16, T, N }, compute, unit, 3);
	if (type_of<A>::is_complex)
		gemm<A, D, S>({ 32, 48, 40, C, N }, compute, unit);
}

static void syrk_geam(int n, int k)
{
	matrix<double> a(n, k), b(k, n), c(n, n);
	const double alpha = 0.5, beta = 2;
	std::vector<double> got;

	LIB(geam(alpha, N, T, n, k, &alpha, a.dev, n, &beta, b.dev, k, a.dev, n));
	got = a.now();
	for (int j = 0; j < k; j++)
		for (int i = 0; i < n; i++)
			near_enough("geam", i + j * n, got[i + j * n],
				    0.5 * a.at(i, j) + 2.0 * b.at(j, i), 0x1p-50);
	a.host = got;
	LIB(syrk(alpha, CUBLAS_FILL_MODE_UPPER, N, n, k, &alpha, a.dev, n, &beta, c.dev, n));
	got = c.now();
	for (int j = 0; j < n; j++)
		for (int i = 0; i < n; i++) {
			cplx want = c.at(i, j);
			double mass = 4;

			if (i <= j)
				want *= 2;
			for (int p = 0; i <= j && p < k; p++) {
				want += 0.5 * a.at(i, p) * a.at(j, p);
				mass += std::abs(a.at(i, p) * a.at(j, p));
			}
			near_enough("syrk", i + j * n, got[i + j * n], want, (k + 4) * 0x1p-53 * mass);
		}
}

/* LU of many small matrices at once, and systems solved with it: A x = b again. */
template <typename E> static void batched_lu(int n, int batch)
{
	matrix<E> a(n, n * batch), b(n, batch);
	std::vector<E *> pa, pb;
	std::vector<int> info(batch, -1);
	int *dinfo, *pivots, solved;
	E **da, **db;

	for (int p = 0; p < batch; p++) {
		pa.push_back(a.dev + p * n * n);
		pb.push_back(b.dev + p * n);
	}
	da = to_device(pa);
	db = to_device(pb);
	dinfo = to_device(info);
	CHECK(cudaMalloc(&pivots, sizeof(int) * n * batch));
	LIB(getrfBatched(E(0), n, da, n, pivots, dinfo, batch));
	for (int i : to_host(dinfo, batch))
		EXPECT_EQ(i, 0);
	LIB(getrsBatched(E(0), N, n, 1, (const E **)da, n, pivots, db, n, &solved, batch));
	EXPECT_EQ(solved, 0);
	std::vector<E> x = b.now();
	for (int p = 0; p < batch; p++)
		for (int i = 0; i < n; i++) {
			double sum = 0, mass = 1;

			for (int j = 0; j < n; j++) {
				sum += (double)x[p * n + j] * a.at(i, p * n + j).real();
				mass += fabs((double)x[p * n + j]) * n;	/* growth of the factors */
			}
			near_enough("getrs", p * n + i, sum, b.at(i, p),
				    4 * n * type_of<E>::unit * mass);
		}
	CHECK(cudaFree(da));
	CHECK(cudaFree(db));
	CHECK(cudaFree(dinfo));
	CHECK(cudaFree(pivots));
}

int main(int argc, char **argv)
{
	bool fast = lib_arg(argc, argv, "fast");

	LIB(cublasCreate(&blas));
	vectors<float, float>(1000, 1);
	extremes(777);
	matrix_vector<float>(70, 45, N);
	gemm_shapes<float, float, float>(CUBLAS_COMPUTE_32F, 0x1p-24, fast);
	gemm_shapes<__half, __half, float>(CUBLAS_COMPUTE_32F, 0x1p-23, fast);
	if (!fast) {
		vectors<double, double>(333, 3);
		vectors<cuComplex, cuComplex>(200, 2);
		vectors<__half, float>(500, 1);
		vectors<__nv_bfloat16, float>(500, 1);
		matrix_vector<float>(45, 130, T);
		matrix_vector<double>(33, 65, N);
		gemm_shapes<double, double, double>(CUBLAS_COMPUTE_64F, 0x1p-53, fast);
		gemm_shapes<cuComplex, cuComplex, cuComplex>(CUBLAS_COMPUTE_32F, 0x1p-22, fast);
		gemm_shapes<cuDoubleComplex, cuDoubleComplex, cuDoubleComplex>(
			CUBLAS_COMPUTE_64F, 0x1p-51, fast);
		gemm_shapes<__half, __half, __half>(CUBLAS_COMPUTE_16F, 0x1p-11, fast);
		gemm_shapes<__half, float, float>(CUBLAS_COMPUTE_32F, 0x1p-23, fast);
		gemm_shapes<__nv_bfloat16, __nv_bfloat16, float>(CUBLAS_COMPUTE_32F, 0x1p-23, fast);
		gemm_shapes<__nv_bfloat16, float, float>(CUBLAS_COMPUTE_32F, 0x1p-23, fast);
		gemm_shapes<float, float, float>(CUBLAS_COMPUTE_32F_FAST_TF32, 0x1p-10, fast);
		gemm_shapes<float, float, float>(CUBLAS_COMPUTE_32F_FAST_16BF, 0x1p-7, fast);
		triangular<float>(40, 9);
		triangular<double>(33, 4);
		syrk_geam(37, 21);
		batched_lu<float>(12, 7);
		batched_lu<double>(24, 3);
		gemm<int8_t, int32_t, int32_t>({ 96, 64, 128, T, N }, CUBLAS_COMPUTE_32I, 0);
		gemm<int8_t, int32_t, int32_t>({ 16, 16, 64, T, N }, CUBLAS_COMPUTE_32I, 0);
		gemm<int8_t, int32_t, int32_t>({ 32, 96, 128, N, N }, CUBLAS_COMPUTE_32I, 0);
		gemm<int8_t, float, float>({ 40, 48, 64, T, N }, CUBLAS_COMPUTE_32F, 0x1p-23);
	}
	if (lib_arg(argc, argv, "all"))
		gemm<int8_t, int32_t, int32_t>({ 64, 64, 64, T, N }, CUBLAS_COMPUTE_32I, 0);
	LIB(cublasDestroy(blas));
	return job_passed("cublas");
}
