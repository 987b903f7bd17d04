// SPDX-License-Identifier: Apache-2.0
/*
 * cusolver_systems.cu - linear systems by each of cuSOLVER's interfaces: 64-bit, symmetric
 * indefinite matrices, inverses, batches, factors of lower precision with refinement, least
 * squares, the interface for several devices (here one), and sparse matrices; solutions are
 * checked by substitution.
 */
#include "solver.cuh"

#define DISABLE_CUSOLVER_DEPRECATED
#define DISABLE_CUSOLVERMG_DEPRECATED
#define DISABLE_CUSPARSE_DEPRECATED
#include <cusolverDn.h>
#include <cusolverMg.h>
#include <cusolverRf.h>
#include <cusolverSp.h>
#include <cusolverSp_LOWLEVEL_PREVIEW.h>

static cusolverDnHandle_t solver;
static cusolverDnParams_t params;
static const cublasFillMode_t LOWER = CUBLAS_FILL_MODE_LOWER;
static const cudaDataType_t R64 = CUDA_R_64F;

typedef std::vector<double> dense;	/* by columns */

static dense times(const dense &a, const dense &b, int m, int k, int n, bool ta = false)
{
	dense c(m * n);

	for (int j = 0; j < n; j++)
		for (int p = 0; p < k; p++)
			for (int i = 0; i < m; i++)
				c[i + j * m] += (ta ? a[p + i * k] : a[i + p * m]) * b[p + j * k];
	return c;
}

/* General matrices of good condition: the diagonal is large, but rows are out of order. */
static dense general(int n, double diagonal)
{
	dense a = random_values<double>(n * n);

	for (int j = 0; j < n; j++)
		a[(j * 7 + 3) % n + j * n] += diagonal;
	return a;
}

static dense symmetric(int n, double diagonal, int count = 1)
{
	dense a = random_values<double>((size_t)n * n * count);

	for (int q = 0; q < count; q++)
		for (int j = 0; j < n; j++) {
			double *m = &a[(size_t)q * n * n];

			m[j + j * n] += diagonal;
			for (int i = 0; i < j; i++)
				m[i + j * n] = m[j + i * n];
		}
	return a;
}

/* ------------------------------------------------------------ dense */

static void xgetrf(int n, int rhs)
{
	dense a = general(n, 4), b = random_values<double>(n * rhs);
	array<double> da(a), db(b);
	array<int64_t> pivots(n);
	work k;

	LIB(cusolverDnSetAdvOptions(params, CUSOLVERDN_GETRF, CUSOLVER_ALG_0));
	LIB(cusolverDnXgetrf_bufferSize(solver, params, n, n, R64, da, n, R64, &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXgetrf(solver, params, n, n, R64, da, n, pivots, R64, k.d, k.dev, k.h, k.host, k.info));
	LIB(cusolverDnXgetrs(solver, params, CUBLAS_OP_N, n, rhs, R64, da, n, pivots, R64, db, n, k.info));
	same("Xgetrf", times(a, db.now(), n, n, rhs), b, 1e-11);
}

static void xpotrf(int n, int rhs)
{
	dense a = symmetric(n, n), b = random_values<double>(n * rhs);
	array<double> da(a), db(b);
	work k, ki;
	int size;

	LIB(cusolverDnXpotrf_bufferSize(solver, params, LOWER, n, R64, da, n, R64, &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXpotrf(solver, params, LOWER, n, R64, da, n, R64, k.d, k.dev, k.h, k.host, k.info));
	LIB(cusolverDnXpotrs(solver, params, LOWER, n, rhs, R64, da, n, R64, db, n, k.info));
	same("Xpotrf", times(a, db.now(), n, n, rhs), b, 1e-11);
	/* and the inverse, of which the lower half is given */
	LIB(cusolverDnDpotri_bufferSize(solver, LOWER, n, da, n, &size));
	ki.dev = size * sizeof(double);
	ki.take();
	LIB(cusolverDnDpotri(solver, LOWER, n, da, n, (double *)ki.d, size, ki.info));
	dense inverse = da.now(), one(n * n);
	for (int j = 0; j < n; j++) {
		one[j + j * n] = 1;
		for (int i = 0; i < j; i++)
			inverse[i + j * n] = inverse[j + i * n];
	}
	same("potri", times(a, inverse, n, n, n), one, 1e-11);
}

/* Least squares: A' A x = A' b, by Q and R. */
static void xgeqrf(int m, int n, int rhs)
{
	dense a = random_values<double>(m * n), b = random_values<double>(m * rhs);
	array<double> da(a), db(b), dtau(n);
	work k, ko;
	int size;

	LIB(cusolverDnXgeqrf_bufferSize(solver, params, m, n, R64, da, m, R64, dtau, R64, &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXgeqrf(solver, params, m, n, R64, da, m, R64, dtau, R64, k.d, k.dev, k.h, k.host, k.info));
	LIB(cusolverDnDormqr_bufferSize(solver, CUBLAS_SIDE_LEFT, CUBLAS_OP_T, m, rhs, n, da, m, dtau, db, m, &size));
	ko.dev = size * sizeof(double);
	ko.take();
	LIB(cusolverDnDormqr(solver, CUBLAS_SIDE_LEFT, CUBLAS_OP_T, m, rhs, n, da, m, dtau, db, m, (double *)ko.d, size,
			     ko.info));
	dense r = da.now(), qb = db.now(), x(n * rhs), residual;
	for (int c = 0; c < rhs; c++)
		for (int i = n - 1; i >= 0; i--) {
			double v = qb[i + c * m];

			for (int j = i + 1; j < n; j++)
				v -= r[i + j * m] * x[j + c * n];
			x[i + c * n] = v / r[i + i * m];
		}
	residual = times(a, x, m, n, rhs);
	for (int i = 0; i < m * rhs; i++)
		residual[i] -= b[i];
	same("Xgeqrf", times(a, residual, n, m, rhs, true), dense(n * rhs), 1e-10);
}

static void xsytrs(int n, int rhs)
{
	dense a = symmetric(n, 0), b = random_values<double>(n * rhs);
	array<double> da(a), db(b);
	array<int> pivots(n);
	work k, ks;
	int size;

	LIB(cusolverDnDsytrf_bufferSize(solver, n, da, n, &size));
	k.dev = size * sizeof(double);
	k.take();
	LIB(cusolverDnDsytrf(solver, LOWER, n, da, n, pivots, (double *)k.d, size, k.info));
	std::vector<int> p = pivots.now();
	array<int64_t> wide(std::vector<int64_t>(p.begin(), p.end()));
	LIB(cusolverDnXsytrs_bufferSize(solver, LOWER, n, rhs, R64, da, n, wide, R64, db, n, &ks.dev, &ks.host));
	ks.take();
	LIB(cusolverDnXsytrs(solver, LOWER, n, rhs, R64, da, n, wide, R64, db, n, ks.d, ks.dev, ks.h, ks.host, ks.info));
	same("Xsytrs", times(a, db.now(), n, n, rhs), b, 1e-9);
}

static void xtrtri(int n)
{
	dense a = random_values<double>(n * n), one(n * n), inverse;
	work k;

	for (int j = 0; j < n; j++) {
		a[j + j * n] += a[j + j * n] < 0 ? -4 : 4;
		one[j + j * n] = 1;
		for (int i = 0; i < j; i++)
			a[i + j * n] = 0;
	}
	array<double> da(a);
	LIB(cusolverDnXtrtri_bufferSize(solver, LOWER, CUBLAS_DIAG_NON_UNIT, n, R64, da, n, &k.dev, &k.host));
	k.take();
	LIB(cusolverDnXtrtri(solver, LOWER, CUBLAS_DIAG_NON_UNIT, n, R64, da, n, k.d, k.dev, k.h, k.host, k.info));
	same("Xtrtri", times(a, da.now(), n, n, n), one, 1e-9);
}

static void potrf_batched(int n, int batch)
{
	dense a = symmetric(n, n, batch), b = random_values<double>(n * batch);
	array<double> da(a), db(b);
	std::vector<double *> pa, pb;
	work k(batch), ks;

	for (int q = 0; q < batch; q++) {
		pa.push_back(da + q * n * n);
		pb.push_back(db + q * n);
	}
	array<double *> dpa(pa), dpb(pb);
	LIB(cusolverDnDpotrfBatched(solver, LOWER, n, dpa, n, k.info, batch));
	LIB(cusolverDnDpotrsBatched(solver, LOWER, n, 1, dpa, n, dpb, n, ks.info, batch));
	dense x = db.now();
	for (int q = 0; q < batch; q++)
		same("potrfBatched", times(dense(&a[q * n * n], &a[0] + (q + 1) * n * n),
					   dense(&x[q * n], &x[0] + (q + 1) * n), n, n, 1),
		     dense(&b[q * n], &b[0] + (q + 1) * n), 1e-11);
}

/* ------------------------------------------------------------ factors of lower precision */

#define REFINED(NAME)								\
	{ #NAME, cusolverDn##NAME##_bufferSize, cusolverDn##NAME }

static void refined(int n)
{
	static const struct {
		const char *name;
		cusolverStatus_t (*size)(cusolverDnHandle_t, int, int, double *, int, int *, double *, int, double *, int,
					 void *, size_t *);
		cusolverStatus_t (*solve)(cusolverDnHandle_t, int, int, double *, int, int *, double *, int, double *, int,
					  void *, size_t, int *, int *);
	} ways[] = { REFINED(DDgesv), REFINED(DSgesv), REFINED(DHgesv), REFINED(DBgesv), REFINED(DXgesv) };

	for (const auto &w : ways) {
		dense a = general(n, n), b = random_values<double>(n);
		array<double> da(a), db(b), dx(n);
		array<int> pivots(n);
		int steps = -1000;
		work k;

		LIB(w.size(solver, n, 1, da, n, pivots, db, n, dx, n, NULL, &k.dev));
		k.take();
		LIB(w.solve(solver, n, 1, da, n, pivots, db, n, dx, n, k.d, k.dev, &steps, k.info));
		printf("%s: %d steps\n", w.name, steps);
		EXPECT(steps >= 0);	/* below, the library has given up and solved in double */
		same(w.name, times(a, dx.now(), n, n, 1), b, 1e-10);
	}
}

static void expert(int n, cusolverPrecType_t low, cusolverIRSRefinement_t how)
{
	dense a = general(n, n), b = random_values<double>(n);
	array<double> da(a), db(b), dx(n);
	cusolverDnIRSParams_t p;
	cusolverDnIRSInfos_t infos;
	int steps = -1000, counted;
	work k;

	LIB(cusolverDnIRSParamsCreate(&p));
	LIB(cusolverDnIRSInfosCreate(&infos));
	LIB(cusolverDnIRSParamsSetSolverPrecisions(p, CUSOLVER_R_64F, low));
	LIB(cusolverDnIRSParamsSetRefinementSolver(p, how));
	LIB(cusolverDnIRSXgesv_bufferSize(solver, p, n, 1, &k.dev));
	k.take();
	LIB(cusolverDnIRSXgesv(solver, p, infos, n, 1, da, n, db, n, dx, n, k.d, k.dev, &steps, k.info));
	LIB(cusolverDnIRSInfosGetNiters(infos, &counted));
	EXPECT(steps >= 0);
	EXPECT_EQ(counted, steps);
	same("IRSXgesv", times(a, dx.now(), n, n, 1), b, 1e-10);
	LIB(cusolverDnIRSInfosDestroy(infos));
	LIB(cusolverDnIRSParamsDestroy(p));
}

static void gels(int m, int n)
{
	dense a = random_values<double>(m * n), b = random_values<double>(m), residual;
	array<double> da(a), db(b), dx(n);
	int steps = -1000;
	work k;

	LIB(cusolverDnDSgels_bufferSize(solver, m, n, 1, da, m, db, m, dx, n, NULL, &k.dev));
	k.take();
	LIB(cusolverDnDSgels(solver, m, n, 1, da, m, db, m, dx, n, k.d, k.dev, &steps, k.info));
	residual = times(a, dx.now(), m, n, 1);
	for (int i = 0; i < m; i++)
		residual[i] -= b[i];
	same("DSgels", times(a, residual, n, m, 1, true), dense(n), 1e-9);
}

/* ------------------------------------------------------------ several devices, of which there is one */

struct many {
	cusolverMgHandle_t handle;
	cudaLibMgGrid_t grid;
	std::vector<cudaLibMgMatrixDesc_t> descs;
	int device = 0;

	many()
	{
		LIB(cusolverMgCreate(&handle));
		LIB(cusolverMgDeviceSelect(handle, 1, &device));
		LIB(cusolverMgCreateDeviceGrid(&grid, 1, 1, &device, CUDALIBMG_GRID_MAPPING_COL_MAJOR));
	}
	~many()
	{
		for (cudaLibMgMatrixDesc_t d : descs)
			LIB(cusolverMgDestroyMatrixDesc(d));
		LIB(cusolverMgDestroyGrid(grid));
		LIB(cusolverMgDestroy(handle));
	}
	cudaLibMgMatrixDesc_t desc(int rows, int cols, int tile)
	{
		cudaLibMgMatrixDesc_t d;

		LIB(cusolverMgCreateMatrixDesc(&d, rows, cols, rows, tile, R64, grid));
		descs.push_back(d);
		return d;
	}
};

/* A tile's columns are whole, so a device that has all tiles has the matrix, up to the last tile. */
static void mg(int n, int tile, int what)
{
	const int padded = (n + tile - 1) / tile * tile;
	dense a = what == 0 ? general(n, 4) : symmetric(n, what == 1 ? n : 0), b = random_values<double>(n), w(n);
	dense wider = a;
	many m;
	cudaLibMgMatrixDesc_t ma = m.desc(n, n, tile), mb = m.desc(n, 1, tile);
	int64_t size, more = 0;
	int info = -1;

	wider.resize((size_t)n * padded);
	array<double> da(wider), db(n * tile);
	array<int> pivots(padded);
	void *pa[1] = { da.p }, *pb[1] = { db.p }, *pw[1];
	int *pp[1] = { pivots.p };
	const cudaDataType_t t = R64;
	CHECK(cudaMemcpy(db, b.data(), n * sizeof(double), cudaMemcpyHostToDevice));
	if (what == 0) {
		LIB(cusolverMgGetrf_bufferSize(m.handle, n, n, pa, 1, 1, ma, pp, t, &size));
		LIB(cusolverMgGetrs_bufferSize(m.handle, CUBLAS_OP_N, n, 1, pa, 1, 1, ma, pp, pb, 1, 1, mb, t, &more));
	} else if (what == 1) {
		LIB(cusolverMgPotrf_bufferSize(m.handle, LOWER, n, pa, 1, 1, ma, t, &size));
		LIB(cusolverMgPotrs_bufferSize(m.handle, LOWER, n, 1, pa, 1, 1, ma, pb, 1, 1, mb, t, &more));
	} else {
		LIB(cusolverMgSyevd_bufferSize(m.handle, CUSOLVER_EIG_MODE_VECTOR, LOWER, n, pa, 1, 1, ma, w.data(), t, t,
					       &size));
	}
	size = std::max(size, more);
	array<double> work(size);
	pw[0] = work.p;
	if (what == 0) {
		LIB(cusolverMgGetrf(m.handle, n, n, pa, 1, 1, ma, pp, t, pw, size, &info));
		CHECK(cudaDeviceSynchronize());
		EXPECT_EQ(info, 0);
		LIB(cusolverMgGetrs(m.handle, CUBLAS_OP_N, n, 1, pa, 1, 1, ma, pp, pb, 1, 1, mb, t, pw, size, &info));
	} else if (what == 1) {
		LIB(cusolverMgPotrf(m.handle, LOWER, n, pa, 1, 1, ma, t, pw, size, &info));
		CHECK(cudaDeviceSynchronize());
		EXPECT_EQ(info, 0);
		LIB(cusolverMgPotrs(m.handle, LOWER, n, 1, pa, 1, 1, ma, pb, 1, 1, mb, t, pw, size, &info));
	} else {
		LIB(cusolverMgSyevd(m.handle, CUSOLVER_EIG_MODE_VECTOR, LOWER, n, pa, 1, 1, ma, w.data(), t, t, pw, size,
				    &info));
	}
	CHECK(cudaDeviceSynchronize());
	EXPECT_EQ(info, 0);
	if (what < 2) {
		dense x = results(db.p, n);

		same(what ? "MgPotrs" : "MgGetrs", times(a, x, n, n, 1), b, 1e-10);
		return;
	}
	dense v = results(da.p, (size_t)n * n), scaled = v;
	for (int j = 0; j < n; j++)
		for (int i = 0; i < n; i++)
			scaled[i + j * n] *= w[j];
	same("MgSyevd", times(a, v, n, n, n), scaled, 1e-10);
}

/* ------------------------------------------------------------ sparse */

/* The 5-point Laplacian with a slope, and with its rows moved if they are to need pivots. */
struct grid {
	int n, nnz;
	std::vector<int> row, col;
	dense val;
	cusparseMatDescr_t descr;

	grid(int side, double slope) : n(side * side), row(1, 0)
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
			put(true, i, 4.5 + 0.1 * (i % 3));
			put(i % side != side - 1, i + 1, -1 + slope);
			put(i < n - side, i + side, -1);
			row.push_back(col.size());
		}
		nnz = col.size();
		LIB(cusparseCreateMatDescr(&descr));
	}
	~grid() { LIB(cusparseDestroyMatDescr(descr)); }
	dense by(const dense &x, const double *v = NULL) const
	{
		dense y(n);

		v = v ? v : val.data();
		for (int i = 0; i < n; i++)
			for (int p = row[i]; p < row[i + 1]; p++)
				y[i] += v[p] * x[col[p]];
		return y;
	}
};

static void sparse_solvers(int side)
{
	cusolverSpHandle_t h;
	grid a(side, 0.25), s(side, 0);
	const int n = a.n;
	dense b = random_values<double>(n), x(n), ones(n, 1);
	array<double> da(a.val), ds(s.val), db(b), dx(n), d1(ones);
	array<int> row(a.row), col(a.col);
	array<double> mu(1);
	int singular = 0;

	LIB(cusolverSpCreate(&h));
	for (int reorder = 0; reorder < 4; reorder++) {
		LIB(cusolverSpDcsrlsvqr(h, n, a.nnz, a.descr, da, row, col, db, 1e-12, reorder, dx, &singular));
		EXPECT_EQ(singular, -1);
		same("csrlsvqr", a.by(dx.now()), b, 1e-11);
		LIB(cusolverSpDcsrlsvchol(h, n, s.nnz, s.descr, ds, row, col, db, 1e-12, reorder, dx, &singular));
		EXPECT_EQ(singular, -1);
		same("csrlsvchol", s.by(dx.now()), b, 1e-11);
		LIB(cusolverSpDcsrlsvluHost(h, n, a.nnz, a.descr, a.val.data(), a.row.data(), a.col.data(), b.data(),
					    1e-12, reorder, x.data(), &singular));
		EXPECT_EQ(singular, -1);
		same("csrlsvluHost", a.by(x), b, 1e-11);
	}
	/* the eigenvalue nearest to 0.6 */
	LIB(cusolverSpDcsreigvsi(h, n, s.nnz, s.descr, ds, row, col, 0.6, d1, 200, 1e-10, mu, dx));
	x = dx.now();
	dense ax = s.by(x);
	double value = mu.now()[0], norm = 0;
	for (int i = 0; i < n; i++) {
		norm += x[i] * x[i];
		near_enough("csreigvsi", i, ax[i], value * x[i], 1e-5);
	}
	EXPECT(norm > 0.5);
	LIB(cusolverSpDestroy(h));
}

/* One pattern with several matrices of values. */
static void sparse_batch(int side, int batch)
{
	cusolverSpHandle_t h;
	csrqrInfo_t info;
	grid a(side, 0.25);
	const int n = a.n;
	dense v, b = random_values<double>(n * batch);
	size_t inside, outside;

	for (int q = 0; q < batch; q++)
		for (double e : a.val)
			v.push_back(e + 0.1 * rndf(&lib_seed));
	array<double> dv(v), db(b), dx(n * batch);
	array<int> row(a.row), col(a.col);
	LIB(cusolverSpCreate(&h));
	LIB(cusolverSpCreateCsrqrInfo(&info));
	LIB(cusolverSpXcsrqrAnalysisBatched(h, n, n, a.nnz, a.descr, row, col, info));
	LIB(cusolverSpDcsrqrBufferInfoBatched(h, n, n, a.nnz, a.descr, dv, row, col, batch, info, &inside, &outside));
	array<char> buf(outside + 16);
	LIB(cusolverSpDcsrqrsvBatched(h, n, n, a.nnz, a.descr, dv, row, col, db, dx, batch, info, buf));
	dense x = dx.now();
	for (int q = 0; q < batch; q++)
		same("csrqrsvBatched", a.by(dense(&x[q * n], &x[0] + (q + 1) * n), &v[q * a.nnz]),
		     dense(&b[q * n], &b[0] + (q + 1) * n), 1e-10);
	LIB(cusolverSpDestroyCsrqrInfo(info));
	LIB(cusolverSpDestroy(h));
}

/* Factors from the host, used again on the device for other values of the same pattern. */
static void refactor(int side)
{
	cusolverSpHandle_t h;
	cusolverRfHandle_t rf;
	csrluInfoHost_t info;
	grid a(side, 0.25);
	const int n = a.n;
	dense b = random_values<double>(n), x(n);
	std::vector<int> p(n), q(n), rowl(n + 1), rowu(n + 1);
	size_t inside, outside;
	int nl, nu;

	LIB(cusolverSpCreate(&h));
	LIB(cusolverSpCreateCsrluInfoHost(&info));
	LIB(cusolverSpXcsrluAnalysisHost(h, n, a.nnz, a.descr, a.row.data(), a.col.data(), info));
	LIB(cusolverSpDcsrluBufferInfoHost(h, n, a.nnz, a.descr, a.val.data(), a.row.data(), a.col.data(), info, &inside,
					   &outside));
	std::vector<char> buf(outside + 16);
	LIB(cusolverSpDcsrluFactorHost(h, n, a.nnz, a.descr, a.val.data(), a.row.data(), a.col.data(), info, 1.0,
				       buf.data()));
	LIB(cusolverSpXcsrluNnzHost(h, &nl, &nu, info));
	std::vector<int> coll(nl), colu(nu);
	dense l(nl), u(nu);
	LIB(cusolverSpDcsrluExtractHost(h, p.data(), q.data(), a.descr, l.data(), rowl.data(), coll.data(), a.descr,
					u.data(), rowu.data(), colu.data(), info, buf.data()));
	LIB(cusolverRfCreate(&rf));
	LIB(cusolverRfSetNumericProperties(rf, 0, 0));
	LIB(cusolverRfSetAlgs(rf, CUSOLVERRF_FACTORIZATION_ALG0, CUSOLVERRF_TRIANGULAR_SOLVE_ALG1));
	LIB(cusolverRfSetMatrixFormat(rf, CUSOLVERRF_MATRIX_FORMAT_CSR, CUSOLVERRF_UNIT_DIAGONAL_ASSUMED_L));
	LIB(cusolverRfSetResetValuesFastMode(rf, CUSOLVERRF_RESET_VALUES_FAST_MODE_ON));
	LIB(cusolverRfSetupHost(n, a.nnz, a.row.data(), a.col.data(), a.val.data(), nl, rowl.data(), coll.data(),
				l.data(), nu, rowu.data(), colu.data(), u.data(), p.data(), q.data(), rf));
	CHECK(cudaDeviceSynchronize());
	LIB(cusolverRfAnalyze(rf));
	for (double &v : a.val)
		v *= 1 + 0.1 * rndf(&lib_seed);
	array<double> dv(a.val), dx(b), temp(n);
	array<int> row(a.row), col(a.col), dp(p), dq(q);
	LIB(cusolverRfResetValues(n, a.nnz, row, col, dv, dp, dq, rf));
	LIB(cusolverRfRefactor(rf));
	LIB(cusolverRfSolve(rf, dp, dq, 1, temp, n, dx, n));
	same("RfSolve", a.by(dx.now()), b, 1e-11);
	LIB(cusolverRfDestroy(rf));
	LIB(cusolverSpDestroyCsrluInfoHost(info));
	LIB(cusolverSpDestroy(h));
}

int main(int argc, char **argv)
{
	auto part = [&](const char *name) { return lib_part(argc, argv, name); };

	LIB(cusolverDnCreate(&solver));
	LIB(cusolverDnCreateParams(&params));
	if (lib_arg(argc, argv, "fast")) {
		xtrtri(20);
		potrf_batched(9, 5);
	}
	if (part("xgetrf"))
		xgetrf(30, 3);
	if (part("xpotrf"))
		xpotrf(28, 2);
	if (part("xgeqrf"))
		xgeqrf(30, 17, 3);
	if (part("xsytrs"))
		xsytrs(24, 2);
	if (part("xtrtri")) {
		xtrtri(20);
		xtrtri(140);
	}
	if (part("potrf_batched")) {
		potrf_batched(9, 5);
		potrf_batched(40, 3);
	}
	if (part("refined"))
		refined(64);
	if (part("expert")) {
		expert(64, CUSOLVER_R_16F, CUSOLVER_IRS_REFINE_GMRES);
		expert(64, CUSOLVER_R_32F, CUSOLVER_IRS_REFINE_CLASSICAL_GMRES);
		expert(64, CUSOLVER_R_TF32, CUSOLVER_IRS_REFINE_GMRES_GMRES);
	}
	if (part("gels"))
		gels(48, 20);
	if (part("mg_getrf"))
		mg(61, 16, 0);
	if (part("mg_potrf"))
		mg(61, 16, 1);
	if (part("mg_syevd"))
		mg(61, 16, 2);
	if (part("sparse"))
		sparse_solvers(9);
	if (part("sparse_batch"))
		sparse_batch(8, 3);
	if (part("refactor"))
		refactor(9);
	LIB(cusolverDnDestroyParams(params));
	LIB(cusolverDnDestroy(solver));
	return job_passed("cusolver_systems");
}
