// SPDX-License-Identifier: Apache-2.0
/*
 * cusparse_solve.cu - cuSPARSE except products: sparse vectors, sorting and conversions, systems
 * of three and five diagonals, incomplete factorisations, and solvers built on them (conjugate
 * gradients, alone and as a captured graph; stabilised biconjugate gradients), checked by their
 * results.
 */
#include "lib.cuh"

#include <algorithm>
#include <cublas_v2.h>
#define DISABLE_CUSPARSE_DEPRECATED
#include <cusparse.h>

static cusparseHandle_t sparse;
static cublasHandle_t blas;
static const cusparseOperation_t N = CUSPARSE_OPERATION_NON_TRANSPOSE;
static const cusparseIndexType_t I32 = CUSPARSE_INDEX_32I;
static const cusparseIndexBase_t BASE = CUSPARSE_INDEX_BASE_ZERO;

/* Device memory of the part under way. */
static std::vector<void *> held;

template <typename E> static E *device(const std::vector<E> &v)
{
	E *p = to_device(v);

	held.push_back(p);
	return p;
}

static void *space(size_t bytes)
{
	void *p;

	CHECK(cudaMalloc(&p, bytes + 16));
	held.push_back(p);
	return p;
}

static void release()
{
	CHECK(cudaDeviceSynchronize());
	for (void *p : held)
		CHECK(cudaFree(p));
	held.clear();
}

/* The 5-point Laplacian of a grid of side x side points, with a slope: not symmetric unless it is 0. */
struct laplacian {
	int n, nnz;
	std::vector<int> row, col;
	std::vector<double> val;
	int *drow, *dcol;
	double *dval;
	cusparseMatDescr_t descr;
	cusparseSpMatDescr_t mat;

	laplacian(int side, double slope) : n(side * side), row(1, 0)
	{
		for (int i = 0; i < n; i++) {
			auto put = [&](bool there, int j, double v) {
				if (there) {
					col.push_back(j);
					val.push_back(v);
				}
			};

			put(i >= side, i - side, -1);
			put(i % side, i - 1, -1 - slope);
			put(true, i, 4.5);
			put(i % side != side - 1, i + 1, -1 + slope);
			put(i < n - side, i + side, -1);
			row.push_back(col.size());
		}
		nnz = col.size();
		drow = device(row);
		dcol = device(col);
		dval = device(val);
		LIB(cusparseCreateMatDescr(&descr));
		LIB(cusparseCreateCsr(&mat, n, n, nnz, drow, dcol, dval, I32, I32, BASE, CUDA_R_64F));
	}
	~laplacian()
	{
		LIB(cusparseDestroyMatDescr(descr));
		LIB(cusparseDestroySpMat(mat));
	}
	std::vector<double> times(const std::vector<double> &x) const
	{
		std::vector<double> y(n);

		for (int i = 0; i < n; i++)
			for (int p = row[i]; p < row[i + 1]; p++)
				y[i] += val[p] * x[col[p]];
		return y;
	}
};

/* ------------------------------------------------------------ sparse vectors */

template <typename E> static void vectors(int n, int nnz)
{
	std::vector<int> at(n);
	std::vector<E> x = random_values<E>(nnz), y = random_values<E>(n), got, gx;
	const E alpha = nearest<E>(1.5), beta = nearest<E>(-0.5), c = nearest<E>(0.6), s = nearest<E>(0.8);
	const double u = 4 * type_of<E>::unit;
	cusparseSpVecDescr_t vx;
	cusparseDnVecDescr_t vy;
	size_t bytes;
	cplx sum = 0;
	double mass = 0;
	E dot;

	for (int i = 0; i < n; i++)
		at[i] = i;
	for (int i = 0; i < nnz; i++)
		std::swap(at[i], at[i + rnd(&lib_seed) % (n - i)]);
	at.resize(nnz);
	std::sort(at.begin(), at.end());
	E *dx = device(x), *dy = device(y);
	LIB(cusparseCreateSpVec(&vx, n, nnz, device(at), dx, I32, BASE, type_of<E>::cuda));
	LIB(cusparseCreateDnVec(&vy, n, dy, type_of<E>::cuda));
	LIB(cusparseSpVV_bufferSize(sparse, N, vx, vy, &dot, type_of<E>::cuda, &bytes));
	LIB(cusparseSpVV(sparse, N, vx, vy, &dot, type_of<E>::cuda, space(bytes)));
	for (int i = 0; i < nnz; i++) {
		sum += value(x[i]) * value(y[at[i]]);
		mass += std::abs(value(x[i]) * value(y[at[i]]));
	}
	near_enough("spvv", 0, value(dot), sum, nnz * u * mass);
	LIB(cusparseAxpby(sparse, &alpha, vx, &beta, vy));
	got = results(dy, n);
	for (int i = 0, p = 0; i < n; i++) {
		cplx want = -0.5 * value(y[i]);

		if (p < nnz && at[p] == i)
			want += 1.5 * value(x[p++]);
		near_enough("axpby", i, value(got[i]), want, 2 * u);
	}
	y = got;
	LIB(cusparseRot(sparse, &c, &s, vx, vy));
	got = results(dy, n);
	gx = results(dx, nnz);
	for (int p = 0; p < nnz; p++) {
		near_enough("rot x", p, value(gx[p]), 0.6 * value(x[p]) + 0.8 * value(y[at[p]]), 2 * u);
		near_enough("rot y", p, value(got[at[p]]), 0.6 * value(y[at[p]]) - 0.8 * value(x[p]), 2 * u);
	}
	LIB(cusparseGather(sparse, vy, vx));
	gx = results(dx, nnz);
	for (int p = 0; p < nnz; p++)
		near_enough("gather", p, value(gx[p]), value(got[at[p]]), 0);
	CHECK(cudaMemset(dy, 0, n * sizeof(E)));
	LIB(cusparseScatter(sparse, vx, vy));
	y = results(dy, n);
	for (int i = 0, p = 0; i < n; i++)
		near_enough("scatter", i, value(y[i]), p < nnz && at[p] == i ? value(gx[p++]) : 0.0, 0);
	LIB(cusparseDestroySpVec(vx));
	LIB(cusparseDestroyDnVec(vy));
	release();
}

/* ------------------------------------------------------------ sorting, conversions */

static void sorting(int rows, int cols, int nnz)
{
	std::vector<int> row(nnz), col(nnz), perm(nnz), want(nnz), first(rows + 1);
	size_t bytes;

	for (int i = 0; i < nnz; i++) {	/* distinct places, out of order */
		int at = (int)(i * 7919LL % (rows * cols));

		row[i] = at / cols;
		col[i] = at % cols;
		want[i] = i;
	}
	auto by_row = [&](int a, int b) {
		return row[a] * cols + col[a] < row[b] * cols + col[b];
	};
	std::sort(want.begin(), want.end(), by_row);
	int *dr = device(row), *dc = device(col), *dp = (int *)space(nnz * sizeof(int));
	int *df = (int *)space((rows + 1) * sizeof(int));
	LIB(cusparseXcoosort_bufferSizeExt(sparse, rows, cols, nnz, dr, dc, &bytes));
	LIB(cusparseCreateIdentityPermutation(sparse, nnz, dp));
	LIB(cusparseXcoosortByRow(sparse, rows, cols, nnz, dr, dc, dp, space(bytes)));
	std::vector<int> sr = results(dr, nnz), sc = results(dc, nnz);
	perm = results(dp, nnz);
	for (int i = 0; i < nnz; i++) {
		EXPECT_EQ(perm[i], want[i]);
		EXPECT(sr[i] == row[want[i]] && sc[i] == col[want[i]]);
	}
	LIB(cusparseXcoo2csr(sparse, dr, nnz, rows, df, BASE));
	first = results(df, rows + 1);
	for (int i = 0; i < rows; i++)
		for (int p = first[i]; p < first[i + 1]; p++)
			EXPECT_EQ(sr[p], i);
	EXPECT_EQ(first[rows], nnz);
	/* each row the other way round, then sorted again */
	for (int i = 0; i < rows; i++)
		std::reverse(sc.begin() + first[i], sc.begin() + first[i + 1]);
	CHECK(cudaMemcpy(dc, sc.data(), nnz * sizeof(int), cudaMemcpyHostToDevice));
	cusparseMatDescr_t descr;
	LIB(cusparseCreateMatDescr(&descr));
	LIB(cusparseXcsrsort_bufferSizeExt(sparse, rows, cols, nnz, df, dc, &bytes));
	LIB(cusparseCreateIdentityPermutation(sparse, nnz, dp));
	LIB(cusparseXcsrsort(sparse, rows, cols, nnz, descr, df, dc, dp, space(bytes)));
	std::vector<int> again = results(dc, nnz);
	perm = results(dp, nnz);
	for (int i = 0; i < nnz; i++)
		EXPECT(again[i] == col[want[i]] && sc[perm[i]] == again[i]);
	LIB(cusparseDestroyMatDescr(descr));
	release();
}

/* Rows to columns, blocks and back, a sum, and what is left of small elements. */
static void conversions(int side)
{
	laplacian a(side, 0.25);
	const int n = a.n, b = 3, nb = (n + b - 1) / b;
	const double alpha = 2, beta = -0.5;
	size_t bytes;
	int nnzb, nnz, *dr = (int *)space((n + 1) * sizeof(int)), *dper = (int *)space(n * sizeof(int));
	auto dense = [&](const std::vector<int> &r, const std::vector<int> &c, const std::vector<double> &v) {
		std::vector<double> d(n * n);

		for (int i = 0; i < n; i++)
			for (int p = r[i]; p < r[i + 1]; p++)
				d[i * n + c[p]] += v[p];
		return d;
	};
	std::vector<double> full = dense(a.row, a.col, a.val), got;

	double *cv = (double *)space(a.nnz * sizeof(double));
	int *cc = (int *)space((n + 1) * sizeof(int)), *cr = (int *)space(a.nnz * sizeof(int));
	LIB(cusparseCsr2cscEx2_bufferSize(sparse, n, n, a.nnz, a.dval, a.drow, a.dcol, cv, cc, cr, CUDA_R_64F,
					  CUSPARSE_ACTION_NUMERIC, BASE, CUSPARSE_CSR2CSC_ALG1, &bytes));
	LIB(cusparseCsr2cscEx2(sparse, n, n, a.nnz, a.dval, a.drow, a.dcol, cv, cc, cr, CUDA_R_64F,
			       CUSPARSE_ACTION_NUMERIC, BASE, CUSPARSE_CSR2CSC_ALG1, space(bytes)));
	got = dense(results(cc, n + 1), results(cr, a.nnz), results(cv, a.nnz));
	for (int i = 0; i < n * n; i++)
		near_enough("csr2csc", i, got[i], full[i % n * n + i / n], 0);

	/* 2 A - 0.5 A' */
	LIB(cusparseDcsrgeam2_bufferSizeExt(sparse, n, n, &alpha, a.descr, a.nnz, a.dval, a.drow, a.dcol, &beta,
					    a.descr, a.nnz, cv, cc, cr, a.descr, NULL, dr, NULL, &bytes));
	void *work = space(bytes);
	LIB(cusparseXcsrgeam2Nnz(sparse, n, n, a.descr, a.nnz, a.drow, a.dcol, a.descr, a.nnz, cc, cr, a.descr, dr,
				 &nnz, work));
	double *gv = (double *)space(nnz * sizeof(double));
	int *gc = (int *)space(nnz * sizeof(int));
	LIB(cusparseDcsrgeam2(sparse, n, n, &alpha, a.descr, a.nnz, a.dval, a.drow, a.dcol, &beta, a.descr, a.nnz,
			      cv, cc, cr, a.descr, gv, dr, gc, work));
	got = dense(results(dr, n + 1), results(gc, nnz), results(gv, nnz));
	for (int i = 0; i < n * n; i++)
		near_enough("geam", i, got[i], 2 * full[i] - 0.5 * full[i % n * n + i / n], 1e-15);

	/* without the elements of up to 2; the library counts absolute values, and then takes positive ones */
	LIB(cusparseDnnz_compress(sparse, n, a.descr, a.dval, a.drow, dper, &nnz, 2.0));
	EXPECT_EQ(nnz, n);
	LIB(cusparseDcsr2csr_compress(sparse, n, n, a.descr, a.dval, a.dcol, a.drow, a.nnz, dper, gv, gc, dr, 2.0));
	got = dense(results(dr, n + 1), results(gc, nnz), results(gv, nnz));
	for (int i = 0; i < n * n; i++)
		near_enough("compress", i, got[i], full[i] > 2 ? full[i] : 0, 0);

	int *br = (int *)space((nb + 1) * sizeof(int));
	LIB(cusparseXcsr2bsrNnz(sparse, CUSPARSE_DIRECTION_ROW, n, n, a.descr, a.drow, a.dcol, b, a.descr, br, &nnzb));
	int *bc = (int *)space(nnzb * sizeof(int));
	double *bv = (double *)space(nnzb * b * b * sizeof(double));
	LIB(cusparseDcsr2bsr(sparse, CUSPARSE_DIRECTION_ROW, n, n, a.descr, a.dval, a.drow, a.dcol, b, a.descr, bv,
			     br, bc));
	std::vector<int> hr = results(br, nb + 1), hc = results(bc, nnzb);
	std::vector<double> hv = results(bv, nnzb * b * b);
	got.assign(n * n, 0);
	for (int i = 0; i < nb; i++)
		for (int p = hr[i]; p < hr[i + 1]; p++)
			for (int e = 0; e < b * b; e++)
				if (i * b + e / b < n && hc[p] * b + e % b < n)
					got[(i * b + e / b) * n + hc[p] * b + e % b] = hv[p * b * b + e];
	for (int i = 0; i < n * n; i++)
		near_enough("csr2bsr", i, got[i], full[i], 0);
	release();
}

/* ------------------------------------------------------------ few diagonals */

/* Solutions of systems with these diagonals, outermost lower one first, give back what was on the right. */
static void diagonals_give(const char *what, const std::vector<std::vector<double>> &d,
			   const std::vector<double> &x, const std::vector<double> &b, int n, int systems, int step,
			   int stride)
{
	int half = d.size() / 2;

	for (int s = 0; s < systems; s++)
		for (int i = 0; i < n; i++) {
			double sum = 0;

			for (int o = -half; o <= half; o++)
				if (i + o >= 0 && i + o < n)
					sum += d[o + half][s * stride + i * step] * x[s * stride + (i + o) * step];
			near_enough(what, s * n + i, sum, b[s * stride + i * step], 1e-10);
		}
}

static void few_diagonals(int n, int systems)
{
	std::vector<std::vector<double>> d;
	std::vector<double> b = random_values<double>(n * systems);
	size_t bytes;

	auto fresh = [&](int count, int step, int stride) {
		d.clear();
		for (int o = 0; o < count; o++) {
			d.push_back(random_values<double>(n * systems));
			for (int s = 0; s < systems; s++)
				for (int i = 0; i < n; i++) {
					double &v = d[o][s * stride + i * step];

					if (o == count / 2)
						v += v < 0 ? -5 : 5;
					if (i + o - count / 2 < 0 || i + o - count / 2 >= n)
						v = 0;
				}
		}
	};
	double *x = device(b);
	auto solved = [&](const char *what, int count, int step, int stride) {
		diagonals_give(what, d, results(x, n * systems), b, n, count, step, stride);
		CHECK(cudaMemcpy(x, b.data(), b.size() * sizeof(double), cudaMemcpyHostToDevice));
	};

	fresh(3, 1, n);
	double *l = device(d[0]), *m = device(d[1]), *u = device(d[2]);
	LIB(cusparseDgtsv2_bufferSizeExt(sparse, n, 1, l, m, u, x, n, &bytes));
	LIB(cusparseDgtsv2(sparse, n, 1, l, m, u, x, n, space(bytes)));
	solved("gtsv2", 1, 1, n);
	LIB(cusparseDgtsv2_nopivot_bufferSizeExt(sparse, n, 1, l, m, u, x, n, &bytes));
	LIB(cusparseDgtsv2_nopivot(sparse, n, 1, l, m, u, x, n, space(bytes)));
	solved("gtsv2_nopivot", 1, 1, n);
	LIB(cusparseDgtsv2StridedBatch_bufferSizeExt(sparse, n, l, m, u, x, systems, n, &bytes));
	LIB(cusparseDgtsv2StridedBatch(sparse, n, l, m, u, x, systems, n, space(bytes)));
	solved("gtsv2StridedBatch", systems, 1, n);
	for (int alg = 0; alg < 3; alg++) {
		fresh(3, systems, 1);
		l = device(d[0]);
		m = device(d[1]);
		u = device(d[2]);
		LIB(cusparseDgtsvInterleavedBatch_bufferSizeExt(sparse, alg, n, l, m, u, x, systems, &bytes));
		LIB(cusparseDgtsvInterleavedBatch(sparse, alg, n, l, m, u, x, systems, space(bytes)));
		solved("gtsvInterleaved", systems, systems, 1);
	}
	fresh(5, systems, 1);
	double *p[5];
	for (int i = 0; i < 5; i++)
		p[i] = device(d[i]);
	LIB(cusparseDgpsvInterleavedBatch_bufferSizeExt(sparse, 0, n, p[0], p[1], p[2], p[3], p[4], x, systems,
							&bytes));
	LIB(cusparseDgpsvInterleavedBatch(sparse, 0, n, p[0], p[1], p[2], p[3], p[4], x, systems, space(bytes)));
	solved("gpsvInterleaved", systems, systems, 1);
	release();
}

/* ------------------------------------------------------------ solvers */

/* A triangle of a factorisation in compressed rows, ready to be solved with. */
struct triangle {
	cusparseSpMatDescr_t mat;
	cusparseSpSVDescr_t plan;
	cusparseOperation_t op;
	const double one = 1;

	triangle(const laplacian &a, double *val, bool lower, bool unit, cusparseOperation_t o,
		 cusparseDnVecDescr_t x, cusparseDnVecDescr_t y) : op(o)
	{
		const cusparseFillMode_t fill = lower ? CUSPARSE_FILL_MODE_LOWER : CUSPARSE_FILL_MODE_UPPER;
		const cusparseDiagType_t diag = unit ? CUSPARSE_DIAG_TYPE_UNIT : CUSPARSE_DIAG_TYPE_NON_UNIT;
		size_t bytes;

		LIB(cusparseCreateCsr(&mat, a.n, a.n, a.nnz, a.drow, a.dcol, val, I32, I32, BASE, CUDA_R_64F));
		LIB(cusparseSpMatSetAttribute(mat, CUSPARSE_SPMAT_FILL_MODE, (void *)&fill, sizeof(fill)));
		LIB(cusparseSpMatSetAttribute(mat, CUSPARSE_SPMAT_DIAG_TYPE, (void *)&diag, sizeof(diag)));
		LIB(cusparseSpSV_createDescr(&plan));
		LIB(cusparseSpSV_bufferSize(sparse, op, &one, mat, x, y, CUDA_R_64F, CUSPARSE_SPSV_ALG_DEFAULT, plan,
					    &bytes));
		LIB(cusparseSpSV_analysis(sparse, op, &one, mat, x, y, CUDA_R_64F, CUSPARSE_SPSV_ALG_DEFAULT, plan,
					  space(bytes)));
	}
	~triangle()
	{
		LIB(cusparseSpSV_destroyDescr(plan));
		LIB(cusparseDestroySpMat(mat));
	}
	void solve(cusparseDnVecDescr_t x, cusparseDnVecDescr_t y)
	{
		LIB(cusparseSpSV_solve(sparse, op, &one, mat, x, y, CUDA_R_64F, CUSPARSE_SPSV_ALG_DEFAULT, plan));
	}
};

struct dnvec {
	double *p;
	cusparseDnVecDescr_t d;

	explicit dnvec(int n) : p(device(std::vector<double>(n)))
	{
		LIB(cusparseCreateDnVec(&d, n, p, CUDA_R_64F));
	}
	~dnvec() { LIB(cusparseDestroyDnVec(d)); }
	dnvec(const dnvec &) = delete;
};

static double dot(int n, const dnvec &x, const dnvec &y)
{
	double r;

	LIB(cublasDdot(blas, n, x.p, 1, y.p, 1, &r));
	return r;
}

static void axpy(int n, double a, const dnvec &x, const dnvec &y)
{
	LIB(cublasDaxpy(blas, n, &a, x.p, 1, y.p, 1));
}

/* y = A x */
struct product {
	const laplacian &a;
	void *buf;
	const double one = 1, zero = 0;

	product(const laplacian &m, const dnvec &x, const dnvec &y) : a(m)
	{
		size_t bytes;

		LIB(cusparseSpMV_bufferSize(sparse, N, &one, a.mat, x.d, &zero, y.d, CUDA_R_64F,
					    CUSPARSE_SPMV_ALG_DEFAULT, &bytes));
		buf = space(bytes);
	}
	void operator()(const dnvec &x, const dnvec &y) const
	{
		LIB(cusparseSpMV(sparse, N, &one, a.mat, x.d, &zero, y.d, CUDA_R_64F, CUSPARSE_SPMV_ALG_DEFAULT,
				 buf));
	}
};

static void gives_back(const char *what, const laplacian &a, const dnvec &x, const std::vector<double> &b)
{
	std::vector<double> got = a.times(results(x.p, a.n));

	for (int i = 0; i < a.n; i++)
		near_enough(what, i, got[i], b[i], 1e-9);
}

/* Conjugate gradients with an incomplete Cholesky factorisation. */
static void cg(int side)
{
	laplacian a(side, 0);
	const int n = a.n;
	std::vector<double> b = random_values<double>(n);
	dnvec x(n), r(n), z(n), t(n), p(n), q(n);
	product times(a, p, q);
	csric02Info_t info;
	int bytes, pivot, steps = 0;
	double *ic = device(a.val), rz, next;

	LIB(cusparseCreateCsric02Info(&info));
	LIB(cusparseDcsric02_bufferSize(sparse, n, a.nnz, a.descr, ic, a.drow, a.dcol, info, &bytes));
	void *buf = space(bytes);
	LIB(cusparseDcsric02_analysis(sparse, n, a.nnz, a.descr, ic, a.drow, a.dcol, info,
				      CUSPARSE_SOLVE_POLICY_NO_LEVEL, buf));
	EXPECT_EQ(cusparseXcsric02_zeroPivot(sparse, info, &pivot), CUSPARSE_STATUS_SUCCESS);
	LIB(cusparseDcsric02(sparse, n, a.nnz, a.descr, ic, a.drow, a.dcol, info, CUSPARSE_SOLVE_POLICY_NO_LEVEL,
			     buf));
	EXPECT_EQ(cusparseXcsric02_zeroPivot(sparse, info, &pivot), CUSPARSE_STATUS_SUCCESS);
	triangle lower(a, ic, true, false, N, r.d, t.d);
	triangle upper(a, ic, true, false, CUSPARSE_OPERATION_TRANSPOSE, t.d, z.d);
	CHECK(cudaMemcpy(r.p, b.data(), n * sizeof(double), cudaMemcpyHostToDevice));
	lower.solve(r.d, t.d);
	upper.solve(t.d, z.d);
	CHECK(cudaMemcpy(p.p, z.p, n * sizeof(double), cudaMemcpyDeviceToDevice));
	for (rz = dot(n, r, z); dot(n, r, r) > 1e-24 && steps < 100; steps++) {
		times(p, q);
		double step = rz / dot(n, p, q);
		axpy(n, step, p, x);
		axpy(n, -step, q, r);
		lower.solve(r.d, t.d);
		upper.solve(t.d, z.d);
		next = dot(n, r, z);
		double turn = next / rz;
		LIB(cublasDscal(blas, n, &turn, p.p, 1));
		axpy(n, 1, z, p);
		rz = next;
	}
	printf("cg: %d steps\n", steps);
	EXPECT(steps < 40);
	gives_back("cg", a, x, b);
	LIB(cusparseDestroyCsric02Info(info));
	release();
}

/* Stabilised biconjugate gradients with an incomplete LU factorisation. */
static void bicgstab(int side)
{
	laplacian a(side, 0.4);
	const int n = a.n;
	std::vector<double> b = random_values<double>(n);
	dnvec x(n), r(n), r0(n), p(n), v(n), s(n), t(n), y(n), z(n), tmp(n);
	product times(a, p, v);
	csrilu02Info_t info;
	int bytes, pivot, steps = 0;
	double *lu = device(a.val), rho = 1, alpha = 1, omega = 1;

	LIB(cusparseCreateCsrilu02Info(&info));
	LIB(cusparseDcsrilu02_bufferSize(sparse, n, a.nnz, a.descr, lu, a.drow, a.dcol, info, &bytes));
	void *buf = space(bytes);
	LIB(cusparseDcsrilu02_analysis(sparse, n, a.nnz, a.descr, lu, a.drow, a.dcol, info,
				       CUSPARSE_SOLVE_POLICY_USE_LEVEL, buf));
	LIB(cusparseDcsrilu02(sparse, n, a.nnz, a.descr, lu, a.drow, a.dcol, info, CUSPARSE_SOLVE_POLICY_USE_LEVEL,
			      buf));
	EXPECT_EQ(cusparseXcsrilu02_zeroPivot(sparse, info, &pivot), CUSPARSE_STATUS_SUCCESS);
	triangle lower(a, lu, true, true, N, p.d, tmp.d), upper(a, lu, false, false, N, tmp.d, y.d);
	for (const dnvec *d : { &r, &r0 })
		CHECK(cudaMemcpy(d->p, b.data(), n * sizeof(double), cudaMemcpyHostToDevice));
	for (; dot(n, r, r) > 1e-24 && steps < 100; steps++) {
		double next = dot(n, r0, r), beta = next / rho * alpha / omega;

		rho = next;
		axpy(n, -omega, v, p);
		LIB(cublasDscal(blas, n, &beta, p.p, 1));
		axpy(n, 1, r, p);
		lower.solve(p.d, tmp.d);
		upper.solve(tmp.d, y.d);
		times(y, v);
		alpha = rho / dot(n, r0, v);
		LIB(cublasDcopy(blas, n, r.p, 1, s.p, 1));
		axpy(n, -alpha, v, s);
		lower.solve(s.d, tmp.d);
		upper.solve(tmp.d, z.d);
		times(z, t);
		omega = dot(n, t, s) / dot(n, t, t);
		axpy(n, alpha, y, x);
		axpy(n, omega, z, x);
		LIB(cublasDcopy(blas, n, s.p, 1, r.p, 1));
		axpy(n, -omega, t, r);
	}
	printf("bicgstab: %d steps\n", steps);
	EXPECT(steps < 40);
	gives_back("bicgstab", a, x, b);
	LIB(cusparseDestroyCsrilu02Info(info));
	release();
}

/* A captured product, launched again and again: powers of A, with new vectors in between. */
static void captured(int side)
{
	laplacian a(side, 0.25);
	const int n = a.n;
	dnvec x(n), y(n);
	product times(a, x, y);
	std::vector<double> v = random_values<double>(n), got;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	LIB(cusparseSetStream(sparse, stream));
	LIB(cusparseSpMV_preprocess(sparse, N, &times.one, a.mat, x.d, &times.zero, y.d, CUDA_R_64F,
				    CUSPARSE_SPMV_ALG_DEFAULT, times.buf));
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	times(x, y);
	CHECK(cudaMemcpyAsync(x.p, y.p, n * sizeof(double), cudaMemcpyDeviceToDevice, stream));
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaMemcpyAsync(x.p, v.data(), n * sizeof(double), cudaMemcpyHostToDevice, stream));
	for (int i = 0; i < 4; i++) {
		CHECK(cudaGraphLaunch(exec, stream));
		v = a.times(v);
	}
	CHECK(cudaStreamSynchronize(stream));
	got = results(x.p, n);
	for (int i = 0; i < n; i++)
		near_enough("captured", i, got[i], v[i], 1e-10);
	LIB(cusparseSetStream(sparse, NULL));
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaStreamDestroy(stream));
	release();
}

int main(int argc, char **argv)
{
	bool fast = lib_arg(argc, argv, "fast");

	LIB(cusparseCreate(&sparse));
	LIB(cublasCreate(&blas));
	vectors<float>(500, 60);
	captured(9);
	if (!fast) {
		vectors<double>(400, 33);
		vectors<cuComplex>(300, 50);
		sorting(40, 50, 600);
		conversions(7);
		few_diagonals(50, 3);
		few_diagonals(600, 17);
		cg(20);
		bicgstab(20);
	}
	LIB(cublasDestroy(blas));
	LIB(cusparseDestroy(sparse));
	return job_passed("cusparse_solve");
}
