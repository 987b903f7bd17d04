// SPDX-License-Identifier: Apache-2.0
/*
 * cusolver.cu - cuSOLVER's dense part: LU, Cholesky, QR, eigenvalues and singular values. Factors
 * are not unique in their last bits, so each is checked by multiplying them.
 */
#include "lib.cuh"

#include <cusolverDn.h>

static cusolverDnHandle_t solver;

#define BY_TYPE(NAME)							\
	template <typename... A> static cusolverStatus_t NAME(float, A... a)	\
	{ return cusolverDnS##NAME(solver, a...); }			\
	template <typename... A> static cusolverStatus_t NAME(double, A... a)	\
	{ return cusolverDnD##NAME(solver, a...); }
BY_TYPE(potrf_bufferSize)
BY_TYPE(potrf)
BY_TYPE(potrs)
BY_TYPE(getrf_bufferSize)
BY_TYPE(getrf)
BY_TYPE(getrs)
BY_TYPE(geqrf_bufferSize)
BY_TYPE(geqrf)
BY_TYPE(orgqr_bufferSize)
BY_TYPE(orgqr)
BY_TYPE(syevd_bufferSize)
BY_TYPE(syevd)
BY_TYPE(syevj_bufferSize)
BY_TYPE(syevj)
BY_TYPE(gesvdj_bufferSize)
BY_TYPE(gesvdj)

/* Device memory of a call, and its status word. */
template <typename E> struct work {
	E *p;
	int *info;

	work(int n)
	{
		CHECK(cudaMalloc(&p, (n + 1) * sizeof(E)));
		CHECK(cudaMalloc(&info, sizeof(int)));
	}
	~work()
	{
		EXPECT_EQ(to_host(info, 1)[0], 0);
		CHECK(cudaFree(p));
		CHECK(cudaFree(info));
	}
};

/* op(A) B of column-major matrices, in double. */
static std::vector<double> times(const std::vector<double> &a, const std::vector<double> &b, int m,
				 int k, int n, bool ta = false, bool tb = false)
{
	std::vector<double> c(m * n);

	for (int j = 0; j < n; j++)
		for (int p = 0; p < k; p++)
			for (int i = 0; i < m; i++)
				c[i + j * m] += (ta ? a[p + i * k] : a[i + p * m]) *
						(tb ? b[j + p * n] : b[p + j * k]);
	return c;
}

template <typename E> static std::vector<double> wide(const std::vector<E> &v)
{
	return std::vector<double>(v.begin(), v.end());
}

/* Backward stable: the product errs by a small multiple of n u times the norm of the matrix. */
template <typename E> static void same(const char *what, const std::vector<double> &got,
				       const std::vector<double> &want, int n, double norm)
{
	for (size_t i = 0; i < want.size(); i++)
		near_enough(what, i, got[i], want[i], 8 * n * type_of<E>::unit * norm);
}

static std::vector<double> identity(int n)
{
	std::vector<double> v(n * n);

	for (int i = 0; i < n; i++)
		v[i * (n + 1)] = 1;
	return v;
}

/* Symmetric, and positive definite if so wanted. */
template <typename E> static std::vector<E> symmetric(int n, double diagonal)
{
	std::vector<E> a = random_values<E>(n * n);

	for (int j = 0; j < n; j++) {
		for (int i = 0; i < j; i++)
			a[i + j * n] = a[j + i * n];
		a[j + j * n] += diagonal;
	}
	return a;
}

template <typename E> static void lu(int n, int rhs)
{
	std::vector<E> a = random_values<E>(n * n), b = random_values<E>(n * rhs), x;
	E *da = to_device(a), *db = to_device(b);
	int *pivots, size;

	CHECK(cudaMalloc(&pivots, n * sizeof(int)));
	LIB(getrf_bufferSize(E(0), n, n, da, n, &size));
	{
		work<E> w(size);

		LIB(getrf(E(0), n, n, da, n, w.p, pivots, w.info));
		LIB(getrs(E(0), CUBLAS_OP_N, n, rhs, da, n, pivots, db, n, w.info));
	}
	x = results(db, n * rhs);
	double largest = 1;
	for (E v : x)
		largest = fmax(largest, fabs((double)v));
	same<E>("lu", times(wide(a), wide(x), n, n, rhs), wide(b), n, n * largest);
	CHECK(cudaFree(da));
	CHECK(cudaFree(db));
	CHECK(cudaFree(pivots));
}

template <typename E> static void cholesky(int n, int rhs)
{
	std::vector<E> a = symmetric<E>(n, n), b = random_values<E>(n * rhs);
	E *da = to_device(a), *db = to_device(b);
	const cublasFillMode_t lower = CUBLAS_FILL_MODE_LOWER;
	int size;

	LIB(potrf_bufferSize(E(0), lower, n, da, n, &size));
	{
		work<E> w(size);

		LIB(potrf(E(0), lower, n, da, n, w.p, size, w.info));
		LIB(potrs(E(0), lower, n, rhs, da, n, db, n, w.info));
	}
	std::vector<double> l = wide(results(da, n * n));
	for (int j = 0; j < n; j++)
		for (int i = 0; i < j; i++)
			l[i + j * n] = 0;
	same<E>("cholesky", times(l, l, n, n, n, false, true), wide(a), n, 2 * n);
	same<E>("cholesky's solution", times(wide(a), wide(results(db, n * rhs)), n, n, rhs), wide(b),
		n, 4);
	CHECK(cudaFree(da));
	CHECK(cudaFree(db));
}

template <typename E> static void qr(int m, int n)
{
	std::vector<E> a = random_values<E>(m * n), tau(n);
	E *da = to_device(a), *dtau = to_device(tau);
	std::vector<double> r(n * n), q;
	int size;

	LIB(geqrf_bufferSize(E(0), m, n, da, m, &size));
	{
		work<E> w(size);

		LIB(geqrf(E(0), m, n, da, m, dtau, w.p, size, w.info));
	}
	std::vector<E> packed = results(da, m * n);
	for (int j = 0; j < n; j++)
		for (int i = 0; i <= j; i++)
			r[i + j * n] = packed[i + j * m];
	LIB(orgqr_bufferSize(E(0), m, n, n, da, m, dtau, &size));
	{
		work<E> w(size);

		LIB(orgqr(E(0), m, n, n, da, m, dtau, w.p, size, w.info));
	}
	q = wide(results(da, m * n));
	same<E>("q r", times(q, r, m, n, n), wide(a), m, sqrt(m));
	same<E>("q' q", times(q, q, n, m, n, true), identity(n), m, 1);
	CHECK(cudaFree(da));
	CHECK(cudaFree(dtau));
}

/* A V = V diag(w), by divide and conquer or by Jacobi's rotations. */
template <typename E> static void eigen(int n, bool jacobi)
{
	const cusolverEigMode_t vectors = CUSOLVER_EIG_MODE_VECTOR;
	const cublasFillMode_t lower = CUBLAS_FILL_MODE_LOWER;
	std::vector<E> a = symmetric<E>(n, 0), w(n);
	E *da = to_device(a), *dw = to_device(w);
	syevjInfo_t params;
	int size;

	LIB(cusolverDnCreateSyevjInfo(&params));
	if (jacobi)
		LIB(syevj_bufferSize(E(0), vectors, lower, n, da, n, dw, &size, params));
	else
		LIB(syevd_bufferSize(E(0), vectors, lower, n, da, n, dw, &size));
	{
		work<E> k(size);

		if (jacobi)
			LIB(syevj(E(0), vectors, lower, n, da, n, dw, k.p, size, k.info, params));
		else
			LIB(syevd(E(0), vectors, lower, n, da, n, dw, k.p, size, k.info));
	}
	std::vector<double> v = wide(results(da, n * n)), scaled = v;
	w = results(dw, n);
	for (int j = 0; j < n; j++) {
		EXPECT(!j || w[j] >= w[j - 1]);
		for (int i = 0; i < n; i++)
			scaled[i + j * n] *= w[j];
	}
	same<E>("eigenvectors", times(wide(a), v, n, n, n), scaled, n, n);
	same<E>("v' v", times(v, v, n, n, n, true), identity(n), n, 4);
	LIB(cusolverDnDestroySyevjInfo(params));
	CHECK(cudaFree(da));
	CHECK(cudaFree(dw));
}

template <typename E> static void singular(int m, int n)
{
	const cusolverEigMode_t vectors = CUSOLVER_EIG_MODE_VECTOR;
	std::vector<E> a = random_values<E>(m * n), s(n), u(m * n), v(n * n);
	E *da = to_device(a), *ds = to_device(s), *du = to_device(u), *dv = to_device(v);
	gesvdjInfo_t params;
	int size;

	LIB(cusolverDnCreateGesvdjInfo(&params));
	LIB(gesvdj_bufferSize(E(0), vectors, 1, m, n, da, m, ds, du, m, dv, n, &size, params));
	{
		work<E> k(size);

		LIB(gesvdj(E(0), vectors, 1, m, n, da, m, ds, du, m, dv, n, k.p, size, k.info, params));
	}
	std::vector<double> ud = wide(results(du, m * n)), vd = wide(results(dv, n * n)), us = ud;
	s = results(ds, n);
	for (int j = 0; j < n; j++) {
		EXPECT(s[j] >= 0 && (!j || s[j] <= s[j - 1]));
		for (int i = 0; i < m; i++)
			us[i + j * m] *= s[j];
	}
	same<E>("u s v'", times(us, vd, m, n, n, false, true), wide(a), m + n, m);
	same<E>("u' u", times(ud, ud, n, m, n, true), identity(n), m + n, 4);
	LIB(cusolverDnDestroyGesvdjInfo(params));
	CHECK(cudaFree(da));
	CHECK(cudaFree(ds));
	CHECK(cudaFree(du));
	CHECK(cudaFree(dv));
}

int main(int argc, char **argv)
{
	LIB(cusolverDnCreate(&solver));
	qr<float>(20, 12);
	if (!lib_arg(argc, argv, "fast")) {
		qr<double>(33, 33);
		eigen<float>(12, true);
		eigen<double>(20, false);
		eigen<float>(40, false);
		singular<float>(20, 9);
		singular<double>(16, 16);
		lu<float>(24, 3);
		lu<double>(50, 2);
		cholesky<float>(16, 2);
		cholesky<double>(40, 1);
	}
	LIB(cusolverDnDestroy(solver));
	return job_passed("cusolver");
}
