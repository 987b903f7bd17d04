// SPDX-License-Identifier: Apache-2.0
/*
 * cusolver_eigen.cu - eigenvalues and singular values by each of cuSOLVER's interfaces (64-bit,
 * ranges, pairs of matrices, batches, approximations), checked by multiplying the decomposition.
 */
#include "solver.cuh"

#include <cusolverDn.h>

static cusolverDnHandle_t solver;
static cusolverDnParams_t params;
static const cusolverEigMode_t VECTORS = CUSOLVER_EIG_MODE_VECTOR;
static const cublasFillMode_t LOWER = CUBLAS_FILL_MODE_LOWER;

typedef std::vector<cplx> dense;	/* by columns */

template <typename E> static dense wide(const std::vector<E> &v)
{
	dense w;

	for (const E &e : v)
		w.push_back(value(e));
	return w;
}

/* A B, or A' B, or A B' */
static dense times(const dense &a, const dense &b, int m, int k, int n, bool ta = false, bool tb = false)
{
	dense c(m * n);

	for (int j = 0; j < n; j++)
		for (int p = 0; p < k; p++)
			for (int i = 0; i < m; i++)
				c[i + j * m] += (ta ? std::conj(a[p + i * k]) : a[i + p * m]) *
						(tb ? std::conj(b[j + p * n]) : b[p + j * k]);
	return c;
}

static dense identity(int n)
{
	dense v(n * n);

	for (int i = 0; i < n; i++)
		v[i * (n + 1)] = 1;
	return v;
}

/* Symmetric, or Hermitian; a large diagonal makes it positive definite. */
template <typename E> static std::vector<E> symmetric(int n, double diagonal, int count = 1)
{
	std::vector<E> a = random_values<E>((size_t)n * n * count);

	for (int q = 0; q < count; q++)
		for (int j = 0; j < n; j++) {
			E *m = &a[(size_t)q * n * n];

			m[j + j * n] = nearest<E>(value(m[j + j * n]).real() + diagonal);
			for (int i = 0; i < j; i++)
				m[i + j * n] = nearest<E>(std::conj(value(m[j + i * n])));
		}
	return a;
}

template <typename E> struct real_of { typedef E type; };
template <> struct real_of<cuComplex> { typedef float type; };
template <> struct real_of<cuDoubleComplex> { typedef double type; };
template <typename E> using real = typename real_of<E>::type;

/* A V = B V diag(w) with V' B V = 1 for the first m pairs; B is 1 if there is none */
template <typename E> static void pairs(const char *what, const dense &a, const dense &v, const dense &w, int n, int m,
					const dense *b = NULL)
{
	const double bound = 16 * n * type_of<E>::unit * n;
	dense vm(v.begin(), v.begin() + n * m), bv = b ? times(*b, vm, n, n, m) : vm, scaled = bv;

	for (int j = 0; j < m; j++) {
		EXPECT(!j || w[j].real() >= w[j - 1].real());
		for (int i = 0; i < n; i++)
			scaled[i + j * n] *= w[j];
	}
	same(what, times(a, vm, n, n, m), scaled, bound);
	same(what, times(vm, bv, m, n, m, true), identity(m), bound);
}

/* U diag(s) V' = A, for orthogonal U and V, V by columns */
template <typename E> static void singular(const char *what, const dense &a, const dense &u, const dense &s,
					   const dense &v, int m, int n)
{
	const double bound = 16 * (m + n) * type_of<E>::unit * m;
	int k = std::min(m, n);
	dense us(u.begin(), u.begin() + m * k), uk = us, vk(v.begin(), v.begin() + n * k);

	for (int j = 0; j < k; j++) {
		EXPECT(s[j].real() >= 0 && (!j || s[j].real() <= s[j - 1].real()));
		for (int i = 0; i < m; i++)
			us[i + j * m] *= s[j];
	}
	same(what, times(us, vk, m, k, n, false, true), a, bound);
	same(what, times(uk, uk, k, m, k, true), identity(k), bound);
	same(what, times(vk, vk, k, n, k, true), identity(k), bound);
}

static dense adjoint(const dense &a, int m, int n)	/* m x n becomes n x m */
{
	dense t(m * n);

	for (int j = 0; j < n; j++)
		for (int i = 0; i < m; i++)
			t[j + i * n] = std::conj(a[i + j * m]);
	return t;
}

/* ------------------------------------------------------------ eigenvalues */

template <typename E> static void xsyevd(int n)
{
	const cudaDataType_t t = type_of<E>::cuda, tw = type_of<real<E>>::cuda;
	std::vector<E> a = symmetric<E>(n, 0);
	array<E> da(a);
	array<real<E>> dw(n);
	work k;

	LIB(cusolverDnXsyevd_bufferSize(solver, params, VECTORS, LOWER, n, t, da, n, tw, dw, t, &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXsyevd(solver, params, VECTORS, LOWER, n, t, da, n, tw, dw, t, k.d, k.dev, k.h, k.host, k.info));
	pairs<E>("Xsyevd", wide(a), wide(da.now()), wide(dw.now()), n, n);
}

/* The third to the seventh of them. */
template <typename E> static void xsyevdx(int n)
{
	const cudaDataType_t t = type_of<E>::cuda, tw = type_of<real<E>>::cuda;
	const cusolverEigRange_t range = CUSOLVER_EIG_RANGE_I;
	std::vector<E> a = symmetric<E>(n, 0);
	array<E> da(a);
	array<real<E>> dw(n);
	int64_t found = 0;
	double vl = 0, vu = 0;
	work k;

	LIB(cusolverDnXsyevdx_bufferSize(solver, params, VECTORS, range, LOWER, n, t, da, n, &vl, &vu, 3, 7, &found, tw,
					 dw, t, &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXsyevdx(solver, params, VECTORS, range, LOWER, n, t, da, n, &vl, &vu, 3, 7, &found, tw, dw, t,
			      k.d, k.dev, k.h, k.host, k.info));
	EXPECT_EQ(found, 5);
	pairs<E>("Xsyevdx", wide(a), wide(da.now()), wide(dw.now()), n, 5);
}

static void xsyev_batched(int n, int batch)
{
	const cudaDataType_t t = CUDA_R_64F;
	std::vector<double> a = symmetric<double>(n, 0, batch);
	array<double> da(a), dw(n * batch);
	work k(batch);

	LIB(cusolverDnXsyevBatched_bufferSize(solver, params, VECTORS, LOWER, n, t, da, n, t, dw, t, &k.dev, &k.host,
					      batch));
	k.take();
	LIB(cusolverDnXsyevBatched(solver, params, VECTORS, LOWER, n, t, da, n, t, dw, t, k.d, k.dev, k.h, k.host,
				   k.info, batch));
	dense all = wide(a), v = wide(da.now()), w = wide(dw.now());
	for (int q = 0; q < batch; q++)
		pairs<double>("XsyevBatched", dense(&all[q * n * n], &all[0] + (q + 1) * n * n),
			      dense(&v[q * n * n], &v[0] + (q + 1) * n * n), dense(&w[q * n], &w[0] + (q + 1) * n), n, n);
}

static void syevj_batched(int n, int batch)
{
	std::vector<double> a = symmetric<double>(n, 0, batch);
	array<double> da(a), dw(n * batch);
	syevjInfo_t info;
	int size;
	work k(batch);

	LIB(cusolverDnCreateSyevjInfo(&info));
	LIB(cusolverDnXsyevjSetTolerance(info, 1e-15));
	LIB(cusolverDnXsyevjSetSortEig(info, 1));
	LIB(cusolverDnDsyevjBatched_bufferSize(solver, VECTORS, LOWER, n, da, n, dw, &size, info, batch));
	k.dev = size * sizeof(double);
	k.take();
	LIB(cusolverDnDsyevjBatched(solver, VECTORS, LOWER, n, da, n, dw, (double *)k.d, size, k.info, info, batch));
	dense all = wide(a), v = wide(da.now()), w = wide(dw.now());
	for (int q = 0; q < batch; q++)
		pairs<double>("syevjBatched", dense(&all[q * n * n], &all[0] + (q + 1) * n * n),
			      dense(&v[q * n * n], &v[0] + (q + 1) * n * n), dense(&w[q * n], &w[0] + (q + 1) * n), n, n);
	LIB(cusolverDnDestroySyevjInfo(info));
}

/* A v = w B v, by divide and conquer, for a range, and by rotations. */
static void sygv(int n, int way)
{
	const cusolverEigType_t type = CUSOLVER_EIG_TYPE_1;
	const cusolverEigRange_t range = CUSOLVER_EIG_RANGE_V;
	std::vector<double> a = symmetric<double>(n, 0), b = symmetric<double>(n, 2 * n);
	array<double> da(a), db(b), dw(n);
	syevjInfo_t info;
	int size, found = n;
	work k;

	LIB(cusolverDnCreateSyevjInfo(&info));
	if (way == 0)
		LIB(cusolverDnDsygvd_bufferSize(solver, type, VECTORS, LOWER, n, da, n, db, n, dw, &size));
	else if (way == 1)
		LIB(cusolverDnDsygvdx_bufferSize(solver, type, VECTORS, range, LOWER, n, da, n, db, n, 0, 100, 0, 0, &found,
						 dw, &size));
	else
		LIB(cusolverDnDsygvj_bufferSize(solver, type, VECTORS, LOWER, n, da, n, db, n, dw, &size, info));
	k.dev = size * sizeof(double);
	k.take();
	if (way == 0)
		LIB(cusolverDnDsygvd(solver, type, VECTORS, LOWER, n, da, n, db, n, dw, (double *)k.d, size, k.info));
	else if (way == 1)
		LIB(cusolverDnDsygvdx(solver, type, VECTORS, range, LOWER, n, da, n, db, n, 0, 100, 0, 0, &found, dw,
				      (double *)k.d, size, k.info));
	else
		LIB(cusolverDnDsygvj(solver, type, VECTORS, LOWER, n, da, n, db, n, dw, (double *)k.d, size, k.info, info));
	EXPECT(found > 0);
	dense bb = wide(b);
	pairs<double>("sygv", wide(a), wide(da.now()), wide(dw.now()), n, found, &bb);
	LIB(cusolverDnDestroySyevjInfo(info));
}

/* Not symmetric: eigenvalues are complex, vectors of a real matrix in pairs of columns. */
template <typename E, typename W> static void xgeev(int n)
{
	const cudaDataType_t t = type_of<E>::cuda, tw = type_of<W>::cuda;
	const cusolverEigMode_t none = CUSOLVER_EIG_MODE_NOVECTOR;
	std::vector<E> a = random_values<E>(n * n);
	array<E> da(a), dv(n * n);
	array<W> dw(n);
	work k;

	LIB(cusolverDnXgeev_bufferSize(solver, params, none, VECTORS, n, t, da, n, tw, dw, t, NULL, 1, t, dv, n, t,
				       &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXgeev(solver, params, none, VECTORS, n, t, da, n, tw, dw, t, NULL, 1, t, dv, n, t, k.d, k.dev, k.h,
			    k.host, k.info));
	dense w = wide(dw.now()), packed = wide(dv.now()), v(n * n), scaled;
	for (int j = 0; j < n; j++)
		for (int i = 0; i < n; i++) {
			bool pair = !type_of<E>::is_complex && w[j].imag() != 0;

			if (!pair)
				v[i + j * n] = packed[i + j * n];
			else if (w[j].imag() > 0)
				v[i + j * n] = cplx(packed[i + j * n].real(), packed[i + (j + 1) * n].real());
			else
				v[i + j * n] = std::conj(v[i + (j - 1) * n]);
		}
	scaled = v;
	for (int j = 0; j < n; j++) {
		double norm = 0;

		for (int i = 0; i < n; i++) {
			scaled[i + j * n] *= w[j];
			norm += std::norm(v[i + j * n]);
		}
		near_enough("Xgeev's norm", j, norm, 1.0, n * 32 * type_of<E>::unit);
	}
	same("Xgeev", times(wide(a), v, n, n, n), scaled, 32 * n * type_of<E>::unit * n);
}

/* ------------------------------------------------------------ singular values */

template <typename E> static void xgesvd(int m, int n)
{
	const cudaDataType_t t = type_of<E>::cuda, ts = type_of<real<E>>::cuda;
	std::vector<E> a = random_values<E>(m * n);
	array<E> da(a), du(m * m), dvt(n * n);
	array<real<E>> ds(n);
	work k;

	LIB(cusolverDnXgesvd_bufferSize(solver, params, 'A', 'A', m, n, t, da, m, ts, ds, t, du, m, t, dvt, n, t, &k.dev,
					&k.host));
	k.take();
	LIB(cusolverDnXgesvd(solver, params, 'A', 'A', m, n, t, da, m, ts, ds, t, du, m, t, dvt, n, t, k.d, k.dev, k.h,
			     k.host, k.info));
	singular<E>("Xgesvd", wide(a), wide(du.now()), wide(ds.now()), adjoint(wide(dvt.now()), n, n), m, n);
}

static void gesvd(int m, int n)
{
	std::vector<double> a = random_values<double>(m * n);
	array<double> da(a), du(m * m), dvt(n * n), ds(n), rwork(n);
	int size;
	work k;

	LIB(cusolverDnDgesvd_bufferSize(solver, m, n, &size));
	k.dev = size * sizeof(double);
	k.take();
	LIB(cusolverDnDgesvd(solver, 'A', 'A', m, n, da, m, ds, du, m, dvt, n, (double *)k.d, size, rwork, k.info));
	singular<double>("gesvd", wide(a), wide(du.now()), wide(ds.now()), adjoint(wide(dvt.now()), n, n), m, n);
}

/* By polar decomposition. */
static void xgesvdp(int m, int n)
{
	const cudaDataType_t t = CUDA_R_64F;
	std::vector<double> a = random_values<double>(m * n);
	array<double> da(a), du(m * n), dv(n * n), ds(n);
	double perturbed = -1;
	work k;

	LIB(cusolverDnXgesvdp_bufferSize(solver, params, VECTORS, 1, m, n, t, da, m, t, ds, t, du, m, t, dv, n, t, &k.dev,
					 &k.host));
	k.take();
	LIB(cusolverDnXgesvdp(solver, params, VECTORS, 1, m, n, t, da, m, t, ds, t, du, m, t, dv, n, t, k.d, k.dev, k.h,
			      k.host, k.info, &perturbed));
	EXPECT(perturbed >= 0 && perturbed < 1e-10);
	singular<double>("Xgesvdp", wide(a), wide(du.now()), wide(ds.now()), wide(dv.now()), m, n);
}

/* By random projections: exact for a matrix of the rank that is asked for. */
static void xgesvdr(int m, int n, int rank)
{
	const cudaDataType_t t = CUDA_R_64F;
	std::vector<double> l = random_values<double>(m * rank), r = random_values<double>(rank * n), a;
	dense product = times(wide(l), wide(r), m, rank, n);
	work k;

	for (cplx v : product)
		a.push_back(v.real());
	array<double> da(a), du(m * m), dv(n * n), ds(n);
	LIB(cusolverDnXgesvdr_bufferSize(solver, params, 'S', 'S', m, n, rank, 2, 2, t, da, m, t, ds, t, du, m, t, dv, n,
					 t, &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXgesvdr(solver, params, 'S', 'S', m, n, rank, 2, 2, t, da, m, t, ds, t, du, m, t, dv, n, t, k.d,
			      k.dev, k.h, k.host, k.info));
	dense u = wide(du.now()), s = wide(ds.now()), v = wide(dv.now());
	u.resize(m * rank);
	v.resize(n * rank);
	same("Xgesvdr u", times(u, u, rank, m, rank, true), identity(rank), 1e-11);
	same("Xgesvdr v", times(v, v, rank, n, rank, true), identity(rank), 1e-11);
	for (int j = 0; j < rank; j++)
		for (int i = 0; i < m; i++)
			u[i + j * m] *= s[j];
	same("Xgesvdr", times(u, v, m, rank, n, false, true), product, 1e-10);
}

static void gesvda_batched(int m, int n, int batch)
{
	std::vector<double> a = random_values<double>(m * n * batch), left(batch);
	array<double> da(a), ds(n * batch), du(m * n * batch), dv(n * n * batch);
	int size;
	work k(batch);

	LIB(cusolverDnDgesvdaStridedBatched_bufferSize(solver, VECTORS, n, m, n, da, m, m * n, ds, n, du, m, m * n, dv, n,
						       n * n, &size, batch));
	k.dev = size * sizeof(double);
	k.take();
	LIB(cusolverDnDgesvdaStridedBatched(solver, VECTORS, n, m, n, da, m, m * n, ds, n, du, m, m * n, dv, n, n * n,
					    (double *)k.d, size, k.info, left.data(), batch));
	dense u = wide(du.now()), s = wide(ds.now()), v = wide(dv.now()), all = wide(a);
	for (int q = 0; q < batch; q++) {
		/* through A'A, so half of the digits are lost for small values */
		dense us(&u[q * m * n], &u[0] + (q + 1) * m * n), vq(&v[q * n * n], &v[0] + (q + 1) * n * n);

		for (int j = 0; j < n; j++)
			for (int i = 0; i < m; i++)
				us[i + j * m] *= s[j + q * n];
		same("gesvda", times(us, vq, m, n, n, false, true),
		     dense(&all[q * m * n], &all[0] + (q + 1) * m * n), 1e-7);
		EXPECT(left[q] >= 0 && left[q] < 1e-6);
	}
}

static void gesvdj_batched(int m, int n, int batch)
{
	std::vector<double> a = random_values<double>(m * n * batch);
	array<double> da(a), ds(n * batch), du(m * m * batch), dv(n * n * batch);
	gesvdjInfo_t info;
	int size;
	work k(batch);

	LIB(cusolverDnCreateGesvdjInfo(&info));
	LIB(cusolverDnXgesvdjSetTolerance(info, 1e-15));
	LIB(cusolverDnDgesvdjBatched_bufferSize(solver, VECTORS, m, n, da, m, ds, du, m, dv, n, &size, info, batch));
	k.dev = size * sizeof(double);
	k.take();
	LIB(cusolverDnDgesvdjBatched(solver, VECTORS, m, n, da, m, ds, du, m, dv, n, (double *)k.d, size, k.info, info,
				     batch));
	dense u = wide(du.now()), s = wide(ds.now()), v = wide(dv.now()), all = wide(a);
	for (int q = 0; q < batch; q++)
		singular<double>("gesvdjBatched", dense(&all[q * m * n], &all[0] + (q + 1) * m * n),
				 dense(&u[q * m * m], &u[0] + (q + 1) * m * m), dense(&s[q * n], &s[0] + (q + 1) * n),
				 dense(&v[q * n * n], &v[0] + (q + 1) * n * n), m, n);
	LIB(cusolverDnDestroyGesvdjInfo(info));
}

int main(int argc, char **argv)
{
	auto part = [&](const char *name) { return lib_part(argc, argv, name); };
	cudaStream_t stream;

	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	LIB(cusolverDnCreate(&solver));
	LIB(cusolverDnSetStream(solver, stream));
	LIB(cusolverDnCreateParams(&params));
	if (lib_arg(argc, argv, "fast"))
		syevj_batched(7, 3);
	if (part("xsyevd")) {
		xsyevd<double>(21);
		xsyevd<float>(40);
		xsyevd<cuDoubleComplex>(17);
	}
	if (part("xsyevdx")) {
		xsyevdx<double>(24);
		xsyevdx<cuDoubleComplex>(18);
	}
	if (part("xsyev_batched"))
		xsyev_batched(14, 4);
	if (part("syevj_batched"))
		syevj_batched(20, 4);
	if (part("sygv"))
		for (int way = 0; way < 3; way++)
			sygv(16 + 5 * way, way);
	if (part("xgeev")) {
		xgeev<double, cuDoubleComplex>(15);
		xgeev<cuDoubleComplex, cuDoubleComplex>(12);
		xgeev<float, cuComplex>(40);
	}
	if (part("xgesvd")) {
		xgesvd<double>(20, 12);
		xgesvd<float>(33, 33);
		xgesvd<cuDoubleComplex>(14, 11);
	}
	if (part("gesvd"))
		gesvd(24, 15);
	if (part("xgesvdp"))
		xgesvdp(24, 15);
	if (part("xgesvdr"))
		xgesvdr(30, 25, 6);
	if (part("gesvda_batched"))
		gesvda_batched(20, 9, 3);
	if (part("gesvdj_batched"))
		gesvdj_batched(18, 12, 3);
	LIB(cusolverDnDestroyParams(params));
	LIB(cusolverDnDestroy(solver));
	CHECK(cudaStreamDestroy(stream));
	return job_passed("cusolver_eigen");
}
