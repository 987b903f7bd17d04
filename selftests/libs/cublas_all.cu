// SPDX-License-Identifier: Apache-2.0
/*
 * cublas_all.cu - each function of cuBLAS's three levels and of its extensions, for a type that is real and one that
 * is complex: banded, packed, symmetric, Hermitian and triangular matrices, arrays of pointers, groups, emulated
 * precision. The references are plain loops over full matrices in double precision.
 */
#include "lib.cuh"

#include <cublas_v2.h>

static cublasHandle_t blas;
static const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T, C = CUBLAS_OP_C;
static const cublasFillMode_t LOWER = CUBLAS_FILL_MODE_LOWER, UPPER = CUBLAS_FILL_MODE_UPPER;
static const cublasSideMode_t LEFT = CUBLAS_SIDE_LEFT, RIGHT = CUBLAS_SIDE_RIGHT;
static const cublasDiagType_t NON_UNIT = CUBLAS_DIAG_NON_UNIT;

/* A full matrix by columns. */
struct dense {
	int rows, cols;
	std::vector<cplx> v;

	dense(int r, int c) : rows(r), cols(c), v((size_t)r * c) { }
	cplx &operator()(int i, int j) { return v[i + (size_t)j * rows]; }
	cplx operator()(int i, int j) const { return v[i + (size_t)j * rows]; }
	dense op(cublasOperation_t o) const
	{
		dense t(cols, rows);

		if (o == CUBLAS_OP_N)
			return *this;
		for (int j = 0; j < cols; j++)
			for (int i = 0; i < rows; i++)
				t(j, i) = o == CUBLAS_OP_T ? (*this)(i, j) : std::conj((*this)(i, j));
		return t;
	}
};

static dense operator*(const dense &a, const dense &b)
{
	dense c(a.rows, b.cols);

	for (int j = 0; j < b.cols; j++)
		for (int p = 0; p < a.cols; p++)
			for (int i = 0; i < a.rows; i++)
				c(i, j) += a(i, p) * b(p, j);
	return c;
}

static dense operator*(cplx s, dense a)
{
	for (cplx &x : a.v)
		x *= s;
	return a;
}

static dense operator+(dense a, const dense &b)
{
	for (size_t i = 0; i < a.v.size(); i++)
		a.v[i] += b.v[i];
	return a;
}

/* Numbers on the device, with what they are on the host. */
template <typename E> struct array {
	std::vector<E> host;
	E *p;

	explicit array(const std::vector<E> &v) : host(v), p(to_device(v)) { }
	explicit array(size_t n) : array(random_values<E>(n)) { }
	~array() { CHECK(cudaFree(p)); }
	array(const array &) = delete;
	operator E *() const { return p; }
	dense full(int rows, int cols) const
	{
		dense d(rows, cols);

		for (size_t i = 0; i < d.v.size(); i++)
			d.v[i] = value(host[i]);
		return d;
	}
	dense now(int rows, int cols) const
	{
		std::vector<E> v = results(p, host.size());
		dense d(rows, cols);

		for (size_t i = 0; i < d.v.size(); i++)
			d.v[i] = value(v[i]);
		return d;
	}
};

/* All values are below 2 in size, so sums of so many products err by no more. */
template <typename E> static void same(const char *what, const dense &got, const dense &want, int terms)
{
	EXPECT(got.rows == want.rows && got.cols == want.cols);
	for (size_t i = 0; i < want.v.size(); i++)
		near_enough(what, i, got.v[i], want.v[i], 16 * (terms + 4) * type_of<E>::unit);
}

/* Of one half: the whole, symmetric or Hermitian; or the triangle alone. */
enum kind { SYMMETRIC, HERMITIAN, TRIANGLE };

static dense whole(const dense &a, cublasFillMode_t uplo, kind k)
{
	dense w(a.rows, a.cols);

	for (int j = 0; j < a.cols; j++)
		for (int i = 0; i < a.rows; i++) {
			bool given = uplo == CUBLAS_FILL_MODE_LOWER ? i >= j : i <= j;

			if (given)
				w(i, j) = a(i, j);
			else if (k != TRIANGLE)
				w(i, j) = k == SYMMETRIC ? a(j, i) : std::conj(a(j, i));
			if (i == j && k == HERMITIAN)
				w(i, j) = a(i, j).real();
		}
	return w;
}

/* what of a result was to be written: one half, with the other as it was */
static dense written(const dense &result, const dense &was, cublasFillMode_t uplo)
{
	dense h = was;

	for (int j = 0; j < h.cols; j++)
		for (int i = 0; i < h.rows; i++)
			if (uplo == CUBLAS_FILL_MODE_LOWER ? i >= j : i <= j)
				h(i, j) = result(i, j);
	return h;
}

/* One half by columns, without gaps. */
template <typename E> static std::vector<E> packed(const dense &a, cublasFillMode_t uplo)
{
	std::vector<E> v;

	for (int j = 0; j < a.cols; j++)
		for (int i = uplo == LOWER ? j : 0; i < (uplo == LOWER ? a.rows : j + 1); i++)
			v.push_back(nearest<E>(a(i, j)));
	return v;
}

static dense unpacked(const dense &v, int n, cublasFillMode_t uplo)
{
	dense a(n, n);
	size_t at = 0;

	for (int j = 0; j < n; j++)
		for (int i = uplo == LOWER ? j : 0; i < (uplo == LOWER ? n : j + 1); i++)
			a(i, j) = v.v[at++];
	return a;
}

/* kl diagonals below the main one and ku above, as rows of an array; what is outside of them becomes 0. */
template <typename E> static std::vector<E> banded(dense &a, int kl, int ku)
{
	std::vector<E> v((kl + ku + 1) * a.cols, nearest<E>(0.0));

	for (int j = 0; j < a.cols; j++)
		for (int i = 0; i < a.rows; i++)
			if (i - j <= kl && j - i <= ku)
				v[ku + i - j + j * (kl + ku + 1)] = nearest<E>(a(i, j));
			else
				a(i, j) = 0;
	return v;
}

/* Triangular and well conditioned. */
template <typename E> static std::vector<E> triangle(int n)
{
	std::vector<E> v = random_values<E>(n * n);

	for (int i = 0; i < n * n; i++)
		v[i] = nearest<E>(i % (n + 1) ? value(v[i]) * (1.0 / n) : value(v[i]) + 2.0);
	return v;
}

/* ------------------------------------------------------------ vectors */

static void rotations(int n)
{
	array<double> x(n), y(n);
	array<cuComplex> z(n);
	dense xs = x.full(n, 1), ys = y.full(n, 1), got(n, 1);
	double a = 3, b = 4, c, s, p[5], d1 = 2, d2 = 3, x1 = 1.5, y1 = -0.5;
	cuComplex dot;
	float norm;
	int at, want = 0;

	LIB(cublasDrotg(blas, &a, &b, &c, &s));
	near_enough("rotg", 0, cplx(c, s), cplx(0.6, 0.8), 1e-15);
	near_enough("rotg", 1, a, 5, 1e-14);
	LIB(cublasDrotmg(blas, &d1, &d2, &x1, &y1, p));
	EXPECT(p[0] == 0 || p[0] == 1 || p[0] == -1);
	p[0] = -1;
	p[1] = 0.5;
	p[2] = -0.25;
	p[3] = 2;
	p[4] = 1;
	LIB(cublasDrotm(blas, n, x, 1, y, 1, p));
	got = x.now(n, 1);
	same<double>("rotm", got, cplx(0.5) * xs + cplx(2.0) * ys, 1);
	got = y.now(n, 1);
	same<double>("rotm", got, cplx(-0.25) * xs + ys, 1);
	xs = x.now(n, 1);
	ys = y.now(n, 1);
	LIB(cublasRotEx(blas, n, x.p, CUDA_R_64F, 1, y.p, CUDA_R_64F, 1, &c, &s, CUDA_R_64F, CUDA_R_64F));
	got = x.now(n, 1);
	same<double>("RotEx", got, cplx(c) * xs + cplx(s) * ys, 4);
	got = y.now(n, 1);
	same<double>("RotEx", got, cplx(c) * ys + cplx(-s) * xs, 4);
	LIB(cublasDcopy(blas, n, x, 1, y, 1));
	same<double>("copy", y.now(n, 1), x.now(n, 1), 0);
	LIB(cublasCdotc(blas, n, z, 1, z, 1, &dot));
	LIB(cublasScnrm2(blas, n, z, 1, &norm));
	near_enough("dotc", 0, value(dot), norm * norm, 1e-4 * norm * norm);
	LIB(cublasDotcEx(blas, n, z.p, CUDA_C_32F, 1, z.p, CUDA_C_32F, 1, &dot, CUDA_C_32F, CUDA_C_32F));
	near_enough("DotcEx", 0, value(dot), norm * norm, 1e-4 * norm * norm);
	LIB(cublasIcamin(blas, n, z, 1, &at));
	for (int i = 0; i < n; i++)
		if (fabs(z.host[i].x) + fabs(z.host[i].y) < fabs(z.host[want].x) + fabs(z.host[want].y))
			want = i;
	EXPECT_EQ(at, want + 1);
}

/* ------------------------------------------------------------ by functions' names */

template <typename E> struct calls;
#define ANY(NAME) template <typename... A> static cublasStatus_t NAME(A &&...a)
#define CALLS(E, L, SY, HE)							\
template <> struct calls<E> {							\
	ANY(gbmv) { return cublas##L##gbmv(blas, a...); }			\
	ANY(hemv) { return cublas##L##HE##mv(blas, a...); }			\
	ANY(hbmv) { return cublas##L##SY##bmv(blas, a...); }			\
	ANY(hpmv) { return cublas##L##SY##pmv(blas, a...); }			\
	ANY(her) { return cublas##L##HE##r(blas, a...); }			\
	ANY(her2) { return cublas##L##HE##r2(blas, a...); }			\
	ANY(hpr) { return cublas##L##SY##pr(blas, a...); }			\
	ANY(hpr2) { return cublas##L##SY##pr2(blas, a...); }			\
	ANY(tbmv) { return cublas##L##tbmv(blas, a...); }			\
	ANY(tbsv) { return cublas##L##tbsv(blas, a...); }			\
	ANY(tpmv) { return cublas##L##tpmv(blas, a...); }			\
	ANY(tpsv) { return cublas##L##tpsv(blas, a...); }			\
	ANY(trmv) { return cublas##L##trmv(blas, a...); }			\
	ANY(trsv) { return cublas##L##trsv(blas, a...); }			\
	ANY(hemm) { return cublas##L##HE##mm(blas, a...); }			\
	ANY(symm) { return cublas##L##symm(blas, a...); }			\
	ANY(herk) { return cublas##L##HE##rk(blas, a...); }			\
	ANY(her2k) { return cublas##L##HE##r2k(blas, a...); }			\
	ANY(herkx) { return cublas##L##HE##rkx(blas, a...); }			\
	ANY(syrk) { return cublas##L##syrk(blas, a...); }			\
	ANY(trmm) { return cublas##L##trmm(blas, a...); }			\
	ANY(trsm) { return cublas##L##trsm(blas, a...); }			\
	ANY(trsm_batched) { return cublas##L##trsmBatched(blas, a...); }	\
	ANY(gemm_batched) { return cublas##L##gemmBatched(blas, a...); }	\
	ANY(gemv_batched) { return cublas##L##gemvStridedBatched(blas, a...); }	\
	ANY(dgmm) { return cublas##L##dgmm(blas, a...); }			\
	ANY(tpttr) { return cublas##L##tpttr(blas, a...); }			\
	ANY(trttp) { return cublas##L##trttp(blas, a...); }			\
	ANY(geqrf) { return cublas##L##geqrfBatched(blas, a...); }		\
	ANY(matinv) { return cublas##L##matinvBatched(blas, a...); }		\
}
CALLS(double, D, s, sy);
CALLS(cuDoubleComplex, Z, h, he);
CALLS(float, S, s, sy);
CALLS(cuComplex, C, h, he);

template <typename E> struct real_of { typedef E type; };
template <> struct real_of<cuComplex> { typedef float type; };
template <> struct real_of<cuDoubleComplex> { typedef double type; };

/* ------------------------------------------------------------ matrices and vectors */

template <typename E> static void level2(int n, cublasFillMode_t uplo)
{
	typedef calls<E> f;
	typedef typename real_of<E>::type R;
	const bool lower = uplo == LOWER;
	const E alpha = nearest<E>(cplx(0.75, type_of<E>::is_complex ? 0.5 : 0)), beta = nearest<E>(-0.5);
	const cplx va = value(alpha), vb = -0.5;
	const R re = R(0.75);
	const int k = 3;
	array<E> a(n * n), x(n), y(n);
	dense given = a.full(n, n), vx = x.full(n, 1), vy = y.full(n, 1);
	dense he = whole(given, uplo, HERMITIAN), band(n, n);
	auto fresh = [&]() {
		CHECK(cudaMemcpy(y, y.host.data(), n * sizeof(E), cudaMemcpyHostToDevice));
	};

	band = given;
	{
		array<E> g(banded<E>(band, 2, k));

		LIB(f::gbmv(N, n, n, 2, k, &alpha, g, k + 3, x, 1, &beta, y, 1));
		same<E>("gbmv", y.now(n, 1), va * (band * vx) + vb * vy, k + 3);
		fresh();
		LIB(f::gbmv(C, n, n, 2, k, &alpha, g, k + 3, x, 1, &beta, y, 1));
		same<E>("gbmv", y.now(n, 1), va * (band.op(C) * vx) + vb * vy, k + 3);
		fresh();
	}
	LIB(f::hemv(uplo, n, &alpha, a, n, x, 1, &beta, y, 1));
	same<E>("hemv", y.now(n, 1), va * (he * vx) + vb * vy, n);
	fresh();
	{
		dense b = whole(given, uplo, TRIANGLE);
		array<E> g(banded<E>(b, lower ? k : 0, lower ? 0 : k));

		LIB(f::hbmv(uplo, n, k, &alpha, g, k + 1, x, 1, &beta, y, 1));
		same<E>("hbmv", y.now(n, 1), va * (whole(b, uplo, HERMITIAN) * vx) + vb * vy, 2 * k);
		fresh();
	}
	{
		array<E> p(packed<E>(he, uplo));
		const int np = p.host.size();

		LIB(f::hpmv(uplo, n, &alpha, p, x, 1, &beta, y, 1));
		same<E>("hpmv", y.now(n, 1), va * (he * vx) + vb * vy, n);
		fresh();
		LIB(f::hpr(uplo, n, &re, x, 1, p));
		dense r1 = he + cplx(0.75) * (vx * vx.op(C));
		same<E>("hpr", unpacked(p.now(np, 1), n, uplo), whole(r1, uplo, TRIANGLE), 2);
		LIB(f::hpr2(uplo, n, &alpha, x, 1, y, 1, p));
		r1 = r1 + va * (vx * vy.op(C)) + std::conj(va) * (vy * vx.op(C));
		same<E>("hpr2", unpacked(p.now(np, 1), n, uplo), whole(r1, uplo, TRIANGLE), 4);
		array<E> full(n * n);
		LIB(f::tpttr(uplo, n, p, full, n));
		same<E>("tpttr", whole(full.now(n, n), uplo, TRIANGLE), unpacked(p.now(np, 1), n, uplo), 0);
		LIB(f::trttp(uplo, n, a, n, p));
		same<E>("trttp", unpacked(p.now(np, 1), n, uplo), whole(given, uplo, TRIANGLE), 0);
	}
	LIB(f::her(uplo, n, &re, x, 1, a, n));
	dense sum = he + cplx(0.75) * (vx * vx.op(C));
	same<E>("her", a.now(n, n), written(sum, given, uplo), 2);
	LIB(f::her2(uplo, n, &alpha, x, 1, y, 1, a, n));
	sum = sum + va * (vx * vy.op(C)) + std::conj(va) * (vy * vx.op(C));
	same<E>("her2", a.now(n, n), written(sum, given, uplo), 4);

	/* triangles: products, and systems that give back what there was */
	for (cublasOperation_t o : { N, C }) {
		array<E> t(triangle<E>(n)), v(n);
		dense tri = whole(t.full(n, n), uplo, TRIANGLE), was = v.full(n, 1), b = tri;
		array<E> tp(packed<E>(tri, uplo)), tb(banded<E>(b, lower ? k : 0, lower ? 0 : k));

		LIB(f::trmv(uplo, o, NON_UNIT, n, t, n, v, 1));
		same<E>("trmv", v.now(n, 1), tri.op(o) * was, 2 * n);
		LIB(f::trsv(uplo, o, NON_UNIT, n, t, n, v, 1));
		same<E>("trsv", v.now(n, 1), was, 4 * n);
		LIB(f::tpmv(uplo, o, NON_UNIT, n, tp, v, 1));
		same<E>("tpmv", v.now(n, 1), tri.op(o) * was, 8 * n);
		LIB(f::tpsv(uplo, o, NON_UNIT, n, tp, v, 1));
		same<E>("tpsv", v.now(n, 1), was, 12 * n);
		LIB(f::tbmv(uplo, o, NON_UNIT, n, k, tb, k + 1, v, 1));
		same<E>("tbmv", v.now(n, 1), b.op(o) * was, 16 * n);
		LIB(f::tbsv(uplo, o, NON_UNIT, n, k, tb, k + 1, v, 1));
		same<E>("tbsv", v.now(n, 1), was, 20 * n);
	}
}

/* ------------------------------------------------------------ matrices */

template <typename E> static void level3(int m, int n, int k, cublasFillMode_t uplo)
{
	typedef calls<E> f;
	typedef typename real_of<E>::type R;
	const E alpha = nearest<E>(cplx(0.75, type_of<E>::is_complex ? 0.5 : 0)), beta = nearest<E>(-0.5);
	const cplx va = value(alpha), vb = -0.5;
	const R re = R(0.75), rb = R(-0.5);
	array<E> a(m * m), b(m * n), c(m * n), d(n * n);
	dense given = a.full(m, m), gb = b.full(m, n), gc = c.full(m, n), gd = d.full(n, n);
	auto fresh = [&]() {
		CHECK(cudaMemcpy(c, c.host.data(), m * n * sizeof(E), cudaMemcpyHostToDevice));
	};

	LIB(f::hemm(LEFT, uplo, m, n, &alpha, a, m, b, m, &beta, c, m));
	same<E>("hemm", c.now(m, n), va * (whole(given, uplo, HERMITIAN) * gb) + vb * gc, m);
	fresh();
	LIB(f::symm(RIGHT, uplo, m, n, &alpha, d, n, b, m, &beta, c, m));
	same<E>("symm", c.now(m, n), va * (gb * whole(gd, uplo, SYMMETRIC)) + vb * gc, n);
	{
		array<E> p(m * k), q(m * k), s(m * m);
		dense vp = p.full(m, k), vq = q.full(m, k), vs = s.full(m, m), h = whole(vs, uplo, HERMITIAN);

		LIB(f::herk(uplo, N, m, k, &re, p, m, &rb, s, m));
		dense sum = cplx(0.75) * (vp * vp.op(C)) + vb * h;
		same<E>("herk", whole(s.now(m, m), uplo, HERMITIAN), whole(sum, uplo, HERMITIAN), k);
		LIB(f::her2k(uplo, N, m, k, &alpha, p, m, q, m, &rb, s, m));
		sum = va * (vp * vq.op(C)) + std::conj(va) * (vq * vp.op(C)) + vb * sum;
		same<E>("her2k", whole(s.now(m, m), uplo, HERMITIAN), whole(sum, uplo, HERMITIAN), 3 * k);
		/* for this one the program promises that the product is Hermitian: p times a real diagonal */
		const E ae = nearest<E>(0.75);
		std::vector<R> diag = random_values<R>(k);
		std::vector<E> scaled = p.host;
		for (int i = 0; i < m * k; i++)
			scaled[i] = nearest<E>(value(scaled[i]) * value(diag[i / m]));
		array<E> pd(scaled), t(m * m);
		dense ht = whole(t.full(m, m), uplo, HERMITIAN);
		LIB(f::herkx(uplo, N, m, k, &ae, p, m, pd, m, &rb, t, m));
		sum = cplx(0.75) * (vp * pd.full(m, k).op(C)) + vb * ht;
		same<E>("herkx", whole(t.now(m, m), uplo, TRIANGLE), whole(sum, uplo, TRIANGLE), 3 * k);
		array<E> u(m * m);
		LIB(f::syrk(uplo, T, m, k, &alpha, p, k, &beta, u, m));
		dense pt(k, m);
		pt.v = vp.v;
		same<E>("syrk", u.now(m, m), written(va * (pt.op(T) * pt) + vb * u.full(m, m), u.full(m, m), uplo), k);
	}
	for (cublasOperation_t o : { N, C }) {
		array<E> t(triangle<E>(m)), x(m * n), y(m * n);
		dense tri = whole(t.full(m, m), uplo, TRIANGLE), was = x.full(m, n);

		LIB(f::trmm(LEFT, uplo, o, NON_UNIT, m, n, &alpha, t, m, x, m, y, m));
		same<E>("trmm", y.now(m, n), va * (tri.op(o) * was), 2 * m);
		LIB(f::trsm(LEFT, uplo, o, NON_UNIT, m, n, &alpha, t, m, y, m));
		same<E>("trsm", y.now(m, n), va * va * was, 4 * m);
		array<E> r(triangle<E>(n));
		dense rt = whole(r.full(n, n), uplo, TRIANGLE);
		LIB(f::trmm(RIGHT, uplo, o, NON_UNIT, m, n, &alpha, r, n, x, m, y, m));
		same<E>("trmm", y.now(m, n), va * (was * rt.op(o)), 2 * n);
		LIB(f::trsm(RIGHT, uplo, o, NON_UNIT, m, n, &alpha, r, n, y, m));
		same<E>("trsm", y.now(m, n), va * va * was, 4 * n);
	}
	array<E> dx(m);
	LIB(f::dgmm(LEFT, m, n, b, m, dx, 1, c, m));
	dense diag(m, m);
	for (int i = 0; i < m; i++)
		diag(i, i) = value(dx.host[i]);
	same<E>("dgmm", c.now(m, n), diag * gb, 1);
}

/* Arrays of pointers, and strides. */
template <typename E> static void batches(int m, int n, int k, int batch)
{
	typedef calls<E> f;
	const E alpha = nearest<E>(cplx(0.75, type_of<E>::is_complex ? 0.5 : 0)), beta = nearest<E>(-0.5);
	std::vector<E *> pa, pb, pc, pt, pi;
	std::vector<std::vector<E>> tris;
	std::vector<E> all;
	array<E> a(m * k * batch), b(k * n * batch), c(m * n * batch), inv(m * m * batch), x(n * batch), y(m * batch);
	array<E> g(m * n * batch);
	array<int> info(std::vector<int>(batch, -1));

	for (int q = 0; q < batch; q++) {
		tris.push_back(triangle<E>(m));
		all.insert(all.end(), tris[q].begin(), tris[q].end());
	}
	array<E> t(all);
	for (int q = 0; q < batch; q++) {
		pa.push_back(a + q * m * k);
		pb.push_back(b + q * k * n);
		pc.push_back(c + q * m * n);
		pt.push_back(t + q * m * m);
		pi.push_back(inv + q * m * m);
	}
	array<E *> da(pa), db(pb), dc(pc), dt(pt), di(pi);
	auto part = [&](const std::vector<E> &v, int q, int r, int s) {
		dense d(r, s);

		for (int i = 0; i < r * s; i++)
			d.v[i] = value(v[q * r * s + i]);
		return d;
	};
	LIB(f::gemm_batched(N, N, m, n, k, &alpha, (const E **)da.p, m, (const E **)db.p, k, &beta, dc.p, m, batch));
	std::vector<E> cn = results(c.p, c.host.size());
	for (int q = 0; q < batch; q++)
		same<E>("gemmBatched", part(cn, q, m, n), value(alpha) * (part(a.host, q, m, k) * part(b.host, q, k, n)) +
			cplx(-0.5) * part(c.host, q, m, n), k);
	LIB(f::trsm_batched(LEFT, LOWER, N, NON_UNIT, m, n, &alpha, (const E **)dt.p, m, dc.p, m, batch));
	std::vector<E> solved = results(c.p, c.host.size());
	for (int q = 0; q < batch; q++)
		same<E>("trsmBatched", whole(part(t.host, q, m, m), LOWER, TRIANGLE) * part(solved, q, m, n),
			value(alpha) * part(cn, q, m, n), 8 * m);
	LIB(f::gemv_batched(N, m, n, &alpha, g.p, m, (long long)m * n, x.p, 1, (long long)n, &beta, y.p, 1, (long long)m,
			    batch));
	std::vector<E> yn = results(y.p, y.host.size());
	for (int q = 0; q < batch; q++)
		same<E>("gemvStridedBatched", part(yn, q, m, 1), value(alpha) * (part(g.host, q, m, n) *
			part(x.host, q, n, 1)) + cplx(-0.5) * part(y.host, q, m, 1), n);
	LIB(f::matinv(m, (const E **)dt.p, m, di.p, m, info.p, batch));
	std::vector<E> in = results(inv.p, inv.host.size());
	dense one(m, m);
	for (int i = 0; i < m; i++)
		one(i, i) = 1;
	for (int q = 0; q < batch; q++)
		same<E>("matinvBatched", part(t.host, q, m, m) * part(in, q, m, m), one, 16 * m);
	for (int i : to_host(info.p, batch))
		EXPECT_EQ(i, 0);
}

/* Groups of products: each has its own shape and number of matrices. */
static void groups()
{
	const int sizes[2] = { 2, 3 }, ms[2] = { 20, 33 }, ns[2] = { 17, 8 }, ks[2] = { 40, 12 };
	const cublasOperation_t ta[2] = { N, T }, tb[2] = { N, N };
	const double alphas[2] = { 1.5, 0.5 }, betas[2] = { -0.5, 1 };
	int lda[2], ldb[2], ldc[2];
	std::vector<array<double> *> as, bs, cs;
	std::vector<double *> pa, pb, pc;

	for (int g = 0; g < 2; g++) {
		lda[g] = ta[g] == N ? ms[g] : ks[g];
		ldb[g] = ks[g];
		ldc[g] = ms[g];
		for (int i = 0; i < sizes[g]; i++) {
			as.push_back(new array<double>(ms[g] * ks[g]));
			bs.push_back(new array<double>(ks[g] * ns[g]));
			cs.push_back(new array<double>(ms[g] * ns[g]));
			pa.push_back(*as.back());
			pb.push_back(*bs.back());
			pc.push_back(*cs.back());
		}
	}
	array<double *> da(pa), db(pb), dc(pc);
	for (int ex = 0; ex < 2; ex++) {
		if (ex)
			LIB(cublasGemmGroupedBatchedEx(blas, ta, tb, ms, ns, ks, alphas, (const void *const *)da.p, CUDA_R_64F,
						       lda, (const void *const *)db.p, CUDA_R_64F, ldb, betas,
						       (void *const *)dc.p, CUDA_R_64F, ldc, 2, sizes, CUBLAS_COMPUTE_64F));
		else
			LIB(cublasDgemmGroupedBatched(blas, ta, tb, ms, ns, ks, alphas, (const double *const *)da.p, lda,
						      (const double *const *)db.p, ldb, betas, dc.p, ldc, 2, sizes));
		for (size_t at = 0; at < as.size(); at++) {
			int g = at >= 2;
			array<double> &c = *cs[at];
			dense a = as[at]->full(lda[g], ta[g] == N ? ks[g] : ms[g]);

			same<double>("gemmGrouped", c.now(ms[g], ns[g]), cplx(alphas[g]) * (a.op(ta[g]) *
				     bs[at]->full(ks[g], ns[g])) + cplx(betas[g]) * c.full(ms[g], ns[g]), 2 * ks[g]);
			CHECK(cudaMemcpy(c, c.host.data(), c.host.size() * sizeof(double), cudaMemcpyHostToDevice));
		}
	}
	for (size_t at = 0; at < as.size(); at++) {
		delete as[at];
		delete bs[at];
		delete cs[at];
	}
}

/* Complex products by three real ones, and those that take other types. */
static void three(int m, int n, int k)
{
	const cuComplex alpha = { 0.75f, 0.5f }, beta = { -0.5f, 0 };
	const float re = 0.75f, rb = -0.5f;
	array<cuComplex> a(m * k), b(k * n), c(m * n);
	dense va = a.full(m, k);

	LIB(cublasCgemm3m(blas, N, N, m, n, k, &alpha, a, m, b, k, &beta, c, m));
	same<cuComplex>("gemm3m", c.now(m, n), value(alpha) * (va * b.full(k, n)) + cplx(-0.5) * c.full(m, n), 4 * k);
	array<cuComplex> h(m * m), w(m * m);
	dense hs = whole(h.full(m, m), UPPER, HERMITIAN), ws = w.full(m, m);
	LIB(cublasCherkEx(blas, UPPER, N, m, k, &re, a, CUDA_C_32F, m, &rb, h, CUDA_C_32F, m));
	same<cuComplex>("herkEx", whole(h.now(m, m), UPPER, TRIANGLE),
			whole(cplx(0.75) * (va * va.op(C)) + cplx(-0.5) * hs, UPPER, TRIANGLE), 4 * k);
	LIB(cublasCsyrkEx(blas, UPPER, N, m, k, &alpha, a, CUDA_C_32F, m, &beta, w, CUDA_C_32F, m));
	same<cuComplex>("syrkEx", w.now(m, m), written(value(alpha) * (va * va.op(T)) + cplx(-0.5) * ws, ws, UPPER), 4 * k);
}

/* Not part of the checksum: which algorithm is fastest is another one each time. */
static dense to_host_only(const array<double> &c, int rows, int cols)
{
	std::vector<double> v = to_host(c.p, c.host.size());
	dense d(rows, cols);

	for (size_t i = 0; i < d.v.size(); i++)
		d.v[i] = v[i];
	return d;
}

/* float by bf16 and double by integers, where a device has that; else the library takes the plain way. */
static void emulated(int m, int n, int k)
{
	const float one = 1, zero = 0;
	const double d1 = 1, d0 = 0;
	array<float> a(m * k), b(k * n), c(m * n);
	array<double> da(m * k), db(k * n), dc(m * n);

	LIB(cublasSetEmulationStrategy(blas, CUBLAS_EMULATION_STRATEGY_EAGER));
	LIB(cublasGemmEx(blas, N, N, m, n, k, &one, a, CUDA_R_32F, m, b, CUDA_R_32F, k, &zero, c, CUDA_R_32F, m,
			 CUBLAS_COMPUTE_32F_EMULATED_16BFX9, CUBLAS_GEMM_DEFAULT));
	same<float>("emulated float", c.now(m, n), a.full(m, k) * b.full(k, n), k);
	LIB(cublasSetMathMode(blas, CUBLAS_FP32_EMULATED_BF16X9_MATH));
	LIB(cublasSgemm(blas, N, N, m, n, k, &one, a, m, b, k, &zero, c, m));
	same<float>("emulated float", c.now(m, n), a.full(m, k) * b.full(k, n), k);
	LIB(cublasGemmEx(blas, N, N, m, n, k, &d1, da, CUDA_R_64F, m, db, CUDA_R_64F, k, &d0, dc, CUDA_R_64F, m,
			 CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT, CUBLAS_GEMM_DEFAULT));
	same<double>("emulated double", dc.now(m, n), da.full(m, k) * db.full(k, n), k);
	LIB(cublasSetMathMode(blas, CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH));
	LIB(cublasDgemm(blas, N, N, m, n, k, &d1, da, m, db, k, &d0, dc, m));
	same<double>("emulated double", dc.now(m, n), da.full(m, k) * db.full(k, n), k);
	LIB(cublasSetMathMode(blas, CUBLAS_DEFAULT_MATH));
	LIB(cublasGemmEx(blas, N, N, m, n, k, &d1, da, CUDA_R_64F, m, db, CUDA_R_64F, k, &d0, dc, CUDA_R_64F, m,
			 CUBLAS_COMPUTE_64F, CUBLAS_GEMM_AUTOTUNE));
	same<double>("autotuned", to_host_only(dc, m, n), da.full(m, k) * db.full(k, n), k);
}

int main(int argc, char **argv)
{
	auto part = [&](const char *name) { return lib_part(argc, argv, name); };

	LIB(cublasCreate(&blas));
	if (lib_arg(argc, argv, "fast"))
		rotations(300);
	if (part("rotations"))
		rotations(700);
	if (part("level2"))
		for (cublasFillMode_t uplo : { LOWER, UPPER }) {
			level2<double>(45, uplo);
			level2<cuDoubleComplex>(30, uplo);
		}
	if (part("level2_single")) {
		level2<float>(70, LOWER);
		level2<cuComplex>(33, UPPER);
	}
	if (part("level3"))
		for (cublasFillMode_t uplo : { LOWER, UPPER }) {
			level3<double>(40, 25, 33, uplo);
			level3<cuDoubleComplex>(24, 30, 17, uplo);
		}
	if (part("level3_single")) {
		level3<float>(70, 40, 50, UPPER);
		level3<cuComplex>(33, 21, 40, LOWER);
	}
	if (part("batches")) {
		batches<double>(12, 9, 20, 4);
		batches<cuComplex>(9, 10, 11, 3);
		batches<float>(16, 16, 16, 5);
	}
	if (part("groups"))
		groups();
	if (part("three"))
		three(33, 20, 27);
	if (part("emulated"))
		emulated(40, 24, 50);
	LIB(cublasDestroy(blas));
	return job_passed("cublas_all");
}
