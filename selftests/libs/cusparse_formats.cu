// SPDX-License-Identifier: Apache-2.0
/*
 * cusparse_formats.cu - cuSPARSE's formats (compressed rows and columns, coordinates, blocks, sliced and
 * blocked ELL), each by vectors, matrices and batches, sampled products, triangular systems, and products
 * of two sparse matrices by each algorithm, against references in double precision.
 */
#include "lib.cuh"

#include <string>
#include <cusparse.h>
#include <nvrtc.h>

static cusparseHandle_t sparse;
static const cusparseOperation_t N = CUSPARSE_OPERATION_NON_TRANSPOSE;
static const cusparseOperation_t T = CUSPARSE_OPERATION_TRANSPOSE;
static const cusparseIndexType_t I32 = CUSPARSE_INDEX_32I;
static const cusparseIndexBase_t BASE = CUSPARSE_INDEX_BASE_ZERO;

enum format { CSR, CSC, COO, BSR, SELL, ELL };
static const char *const names[] = { "csr", "csc", "coo", "bsr", "sell", "ell" };

/* Memory that a call asks for, freed with it. */
struct scratch {
	void *p = NULL;

	template <typename F> explicit scratch(F size)
	{
		size_t bytes = 0;

		LIB(size(&bytes));
		CHECK(cudaMalloc(&p, bytes + 16));
	}
	~scratch() { CHECK(cudaFree(p)); }
	scratch(const scratch &) = delete;
	operator void *() const { return p; }
};

/* A random sparse matrix: dense on the host, by rows, and in one of the formats on the device. */
template <typename E> struct matrix {
	const format f;
	const int rows, cols, block;
	std::vector<E> dense;
	std::vector<char> there;
	std::vector<int> first, index;	/* as the format has them */
	std::vector<E> val;
	int *dfirst = NULL, *dindex = NULL;
	E *dval = NULL;
	cusparseSpMatDescr_t desc;

	/* one of `in` blocks of block x block elements is there; lower triangles have a full diagonal */
	matrix(format fmt, int r, int c, int in, int b = 1, bool lower = false) : f(fmt), rows(r), cols(c),
		block(b), dense((size_t)r * c), there((size_t)r * c)
	{
		for (int i = 0; i < r; i += b)
			for (int j = 0; j < c; j += b) {
				bool diagonal = lower && i == j;

				if (!diagonal && (rnd(&lib_seed) % in || (lower && j > i)))
					continue;
				for (int p = 0; p < b * b; p++)
					put(i + p / b, j + p % b, diagonal ? 3.0 : rndf(&lib_seed));
			}
		build();
	}
	~matrix()
	{
		LIB(cusparseDestroySpMat(desc));
		for (void *p : { (void *)dfirst, (void *)dindex, (void *)dval })
			CHECK(cudaFree(p));
	}
	matrix(const matrix &) = delete;

	void put(int i, int j, cplx v)
	{
		dense[i * cols + j] = nearest<E>(v);
		there[i * cols + j] = 1;
	}
	void take(int i, int j, int at)
	{
		index.push_back(at);
		val.push_back(dense[i * cols + j]);
	}
	cplx at(cusparseOperation_t op, int i, int j) const
	{
		return value(op == N ? dense[i * cols + j] : dense[j * cols + i]);
	}
	/* by_cols: compressed columns */
	void compress(bool by_cols)
	{
		int outer = by_cols ? cols : rows, inner = by_cols ? rows : cols;

		first.push_back(0);
		for (int o = 0; o < outer; o++) {
			for (int n = 0; n < inner; n++) {
				int i = by_cols ? n : o, j = by_cols ? o : n;

				if (there[i * cols + j])
					take(i, j, n);
			}
			first.push_back(index.size());
		}
	}
	void coordinates()
	{
		for (int i = 0; i < rows; i++)
			for (int j = 0; j < cols; j++)
				if (there[i * cols + j]) {
					first.push_back(i);
					take(i, j, j);
				}
	}
	void blocks()
	{
		first.push_back(0);
		for (int i = 0; i < rows; i += block) {
			for (int j = 0; j < cols; j += block) {
				if (!there[i * cols + j])
					continue;
				index.push_back(j / block);
				for (int p = 0; p < block * block; p++)
					val.push_back(dense[(i + p / block) * cols + j + p % block]);
			}
			first.push_back(index.size());
		}
	}
	/* slices of four rows, padded to the longest, the elements of a slice by columns */
	void sliced()
	{
		first.push_back(0);
		for (int s = 0; s < rows; s += 4) {
			std::vector<int> in[4];
			size_t width = 0;

			for (int i = 0; i < 4; i++) {
				for (int j = 0; s + i < rows && j < cols; j++)
					if (there[(s + i) * cols + j])
						in[i].push_back(j);
				width = std::max(width, in[i].size());
			}
			for (size_t w = 0; w < width; w++)
				for (int i = 0; i < 4; i++)
					if (w < in[i].size()) {
						take(s + i, in[i][w], in[i][w]);
					} else {
						index.push_back(-1);
						val.push_back(nearest<E>(0.0));
					}
			first.push_back(index.size());
		}
	}
	int width_of_blocks() const
	{
		int width = 0;

		for (int i = 0; i < rows; i += block) {
			int n = 0;

			for (int j = 0; j < cols; j += block)
				n += there[i * cols + j];
			width = std::max(width, n);
		}
		return width;
	}
	void blocked_ell(int width)
	{
		index.assign(rows / block * width, -1);
		val.assign(rows * width * block, nearest<E>(0.0));
		for (int i = 0; i < rows; i += block)
			for (int j = 0, n = 0; j < cols; j += block) {
				if (!there[i * cols + j])
					continue;
				index[i / block * width + n] = j / block;
				for (int p = 0; p < block * block; p++)
					val[(i + p / block) * width * block + n * block + p % block] =
						dense[(i + p / block) * cols + j + p % block];
				n++;
			}
	}
	void build()
	{
		const cudaDataType_t t = type_of<E>::cuda;
		int width = width_of_blocks(), nnz = 0;

		for (char c : there)
			nnz += c;
		if (f == CSR || f == CSC)
			compress(f == CSC);
		else if (f == COO)
			coordinates();
		else if (f == BSR)
			blocks();
		else if (f == SELL)
			sliced();
		else
			blocked_ell(width);
		first.push_back(0);	/* blocked ELL has none, and no array may be empty */
		dfirst = to_device(first);
		dindex = to_device(index);
		dval = to_device(val);
		if (f == CSR)
			LIB(cusparseCreateCsr(&desc, rows, cols, nnz, dfirst, dindex, dval, I32, I32, BASE, t));
		else if (f == CSC)
			LIB(cusparseCreateCsc(&desc, rows, cols, nnz, dfirst, dindex, dval, I32, I32, BASE, t));
		else if (f == COO)
			LIB(cusparseCreateCoo(&desc, rows, cols, nnz, dfirst, dindex, dval, I32, BASE, t));
		else if (f == BSR)
			LIB(cusparseCreateBsr(&desc, rows / block, cols / block, index.size(), block, block,
					      dfirst, dindex, dval, I32, I32, BASE, t, CUSPARSE_ORDER_ROW));
		else if (f == SELL)
			LIB(cusparseCreateSlicedEll(&desc, rows, cols, nnz, val.size(), 4, dfirst, dindex, dval,
						    I32, I32, BASE, t));
		else
			LIB(cusparseCreateBlockedEll(&desc, rows, cols, block, width * block, dindex, dval, I32,
						     BASE, t));
	}
};

/* A dense matrix by columns, or a vector; several of them one after the other. */
template <typename E> struct dense {
	int rows, cols, batch;
	std::vector<E> host;
	E *dev;
	cusparseDnMatDescr_t mat;
	cusparseDnVecDescr_t vec;

	dense(int r, int c = 1, int n = 1, cusparseOrder_t order = CUSPARSE_ORDER_COL) : rows(r), cols(c), batch(n),
		host(random_values<E>((size_t)r * c * n)), dev(to_device(host))
	{
		LIB(cusparseCreateDnMat(&mat, r, c, order == CUSPARSE_ORDER_COL ? r : c, dev, type_of<E>::cuda,
					order));
		if (n > 1)
			LIB(cusparseDnMatSetStridedBatch(mat, n, (int64_t)r * c));
		LIB(cusparseCreateDnVec(&vec, r, dev, type_of<E>::cuda));
	}
	~dense()
	{
		LIB(cusparseDestroyDnMat(mat));
		LIB(cusparseDestroyDnVec(vec));
		CHECK(cudaFree(dev));
	}
	dense(const dense &) = delete;
	cplx at(int i, int j = 0, int n = 0) const { return value(host[i + (size_t)rows * (j + cols * n)]); }
	std::vector<E> now() const { return results(dev, host.size()); }
};

/* got = 1.5 A b - 0.5 c, for each of c's matrices */
template <typename E> static void check(const char *what, const matrix<E> &a, cusparseOperation_t op,
					const dense<E> &b, const dense<E> &c, double unit)
{
	std::vector<E> got = c.now();
	int k = op == N ? a.cols : a.rows;

	for (int q = 0; q < c.batch; q++)
		for (int j = 0; j < c.cols; j++)
			for (int i = 0; i < c.rows; i++) {
				cplx sum = -0.5 * c.at(i, j, q);
				double mass = std::abs(sum);

				for (int p = 0; p < k; p++) {
					cplx t = 1.5 * a.at(op, i, p) * b.at(p, j, q);

					sum += t;
					mass += std::abs(t);
				}
				size_t at = i + (size_t)c.rows * (j + c.cols * q);
				near_enough(what, at, value(got[at]), sum,
					    ((k + 4) * unit + 2 * type_of<E>::unit) * mass);
			}
}

template <typename E, typename S>
static void by_vector(format f, int rows, int cols, cusparseOperation_t op, cusparseSpMVAlg_t alg, int block = 1)
{
	matrix<E> a(f, rows, cols, 5, block);
	dense<E> x(op == N ? cols : rows), y(op == N ? rows : cols);
	const S alpha = nearest<S>(1.5), beta = nearest<S>(-0.5);
	const cudaDataType_t t = type_of<S>::cuda;
	scratch buf([&](size_t *n) { return cusparseSpMV_bufferSize(sparse, op, &alpha, a.desc, x.vec, &beta,
								   y.vec, t, alg, n); });

	LIB(cusparseSpMV_preprocess(sparse, op, &alpha, a.desc, x.vec, &beta, y.vec, t, alg, buf));
	LIB(cusparseSpMV(sparse, op, &alpha, a.desc, x.vec, &beta, y.vec, t, alg, buf));
	check(names[f], a, op, x, y, type_of<S>::unit);
}

template <typename E, typename S>
static void by_matrix(format f, int rows, int cols, int n, cusparseOperation_t op, cusparseSpMMAlg_t alg,
		      int block = 1, int batch = 1, double unit = type_of<S>::unit)
{
	matrix<E> a(f, rows, cols, 5, block);
	dense<E> b(op == N ? cols : rows, n, batch), c(op == N ? rows : cols, n, batch);
	const S alpha = nearest<S>(1.5), beta = nearest<S>(-0.5);
	const cudaDataType_t t = type_of<S>::cuda;

	if (batch > 1 && f == CSR)
		LIB(cusparseCsrSetStridedBatch(a.desc, batch, 0, 0));
	else if (batch > 1)
		LIB(cusparseCooSetStridedBatch(a.desc, batch, 0));
	scratch buf([&](size_t *s) { return cusparseSpMM_bufferSize(sparse, op, N, &alpha, a.desc, b.mat, &beta,
								   c.mat, t, alg, s); });
	LIB(cusparseSpMM_preprocess(sparse, op, N, &alpha, a.desc, b.mat, &beta, c.mat, t, alg, buf));
	LIB(cusparseSpMM(sparse, op, N, &alpha, a.desc, b.mat, &beta, c.mat, t, alg, buf));
	check(names[f], a, op, b, c, unit);
}

/* C = 1.5 (A B) where C has elements, - 0.5 C */
template <typename E> static void sampled(format f, int m, int k, int n, int block = 1, int batch = 1)
{
	const cusparseOrder_t order = f == BSR ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL;
	const bool by_rows = order == CUSPARSE_ORDER_ROW;
	matrix<E> c(f, m, n, 3, block);
	dense<E> a(m, k, batch, order), b(k, n, batch, order);
	const E alpha = nearest<E>(1.5), beta = nearest<E>(-0.5);
	const cusparseSDDMMAlg_t alg = CUSPARSE_SDDMM_ALG_DEFAULT;
	std::vector<E> was, got;
	size_t nnz = c.val.size();

	for (int q = 0; q < batch; q++)
		was.insert(was.end(), c.val.begin(), c.val.end());
	if (batch > 1) {
		std::vector<int> first, index;

		for (int q = 0; q < batch; q++) {
			first.insert(first.end(), c.first.begin(), c.first.end() - 1);
			index.insert(index.end(), c.index.begin(), c.index.end());
		}
		for (void *p : { (void *)c.dfirst, (void *)c.dindex, (void *)c.dval })
			CHECK(cudaFree(p));
		c.dfirst = to_device(first);
		c.dindex = to_device(index);
		c.dval = to_device(was);
		LIB(cusparseCsrSetPointers(c.desc, c.dfirst, c.dindex, c.dval));
		LIB(cusparseCsrSetStridedBatch(c.desc, batch, m + 1, nnz));
	}
	scratch buf([&](size_t *s) { return cusparseSDDMM_bufferSize(sparse, N, N, &alpha, a.mat, b.mat, &beta,
			c.desc, type_of<E>::cuda, alg, s); });
	LIB(cusparseSDDMM_preprocess(sparse, N, N, &alpha, a.mat, b.mat, &beta, c.desc, type_of<E>::cuda, alg, buf));
	LIB(cusparseSDDMM(sparse, N, N, &alpha, a.mat, b.mat, &beta, c.desc, type_of<E>::cuda, alg, buf));
	got = results(c.dval, was.size());
	/* where each stored element is: the format is filled again with places instead of values */
	std::vector<size_t> place;
	if (f == CSR) {
		for (int at = 0; at < m * n; at++)
			if (c.there[at])
				place.push_back(at);
	} else {
		for (int i = 0; i < m; i += block)
			for (int j = 0; j < n; j += block)
				for (int p = 0; c.there[i * n + j] && p < block * block; p++)
					place.push_back((i + p / block) * n + j + p % block);
	}
	EXPECT_EQ(place.size(), nnz);
	for (size_t e = 0; e < was.size(); e++) {
		int i = place[e % nnz] / n, j = place[e % nnz] % n, q = e / nnz;
		cplx sum = -0.5 * value(was[e]);
		double mass = std::abs(sum);

		for (int p = 0; p < k; p++) {
			cplx t = 1.5 * value(a.host[q * m * k + (by_rows ? i * k + p : i + p * m)]) *
				 value(b.host[q * k * n + (by_rows ? p * n + j : p + j * k)]);

			sum += t;
			mass += std::abs(t);
		}
		near_enough("sddmm", e, value(got[e]), sum, (k + 6) * type_of<E>::unit * mass);
	}
}

/* L X = B again: by vectors for one column, else by matrices. */
template <typename E> static void triangular(format f, int n, int cols)
{
	matrix<E> a(f, n, n, 6, 1, true);
	dense<E> b(n, cols), x(n, cols);
	const E one = nearest<E>(1.0);
	const cudaDataType_t t = type_of<E>::cuda;
	const cusparseFillMode_t fill = CUSPARSE_FILL_MODE_LOWER;
	const cusparseDiagType_t diag = CUSPARSE_DIAG_TYPE_NON_UNIT;

	LIB(cusparseSpMatSetAttribute(a.desc, CUSPARSE_SPMAT_FILL_MODE, (void *)&fill, sizeof(fill)));
	LIB(cusparseSpMatSetAttribute(a.desc, CUSPARSE_SPMAT_DIAG_TYPE, (void *)&diag, sizeof(diag)));
	if (cols == 1) {
		const cusparseSpSVAlg_t alg = CUSPARSE_SPSV_ALG_DEFAULT;
		cusparseSpSVDescr_t plan;

		LIB(cusparseSpSV_createDescr(&plan));
		scratch buf([&](size_t *s) { return cusparseSpSV_bufferSize(sparse, N, &one, a.desc, b.vec, x.vec,
				t, alg, plan, s); });
		LIB(cusparseSpSV_analysis(sparse, N, &one, a.desc, b.vec, x.vec, t, alg, plan, buf));
		LIB(cusparseSpSV_solve(sparse, N, &one, a.desc, b.vec, x.vec, t, alg, plan));
		CHECK(cudaDeviceSynchronize());
		LIB(cusparseSpSV_destroyDescr(plan));
	} else {
		const cusparseSpSMAlg_t alg = CUSPARSE_SPSM_ALG_DEFAULT;
		cusparseSpSMDescr_t plan;

		LIB(cusparseSpSM_createDescr(&plan));
		scratch buf([&](size_t *s) { return cusparseSpSM_bufferSize(sparse, N, N, &one, a.desc, b.mat, x.mat,
				t, alg, plan, s); });
		LIB(cusparseSpSM_analysis(sparse, N, N, &one, a.desc, b.mat, x.mat, t, alg, plan, buf));
		LIB(cusparseSpSM_solve(sparse, N, N, &one, a.desc, b.mat, x.mat, t, alg, plan));
		CHECK(cudaDeviceSynchronize());
		LIB(cusparseSpSM_destroyDescr(plan));
	}
	std::vector<E> got = x.now();
	for (int j = 0; j < cols; j++)
		for (int i = 0; i < n; i++) {
			cplx sum = 0;
			double mass = 1;

			for (int p = 0; p <= i; p++) {
				sum += a.at(N, i, p) * value(got[p + j * n]);
				mass += std::abs(a.at(N, i, p) * value(got[p + j * n]));
			}
			near_enough(names[f], i + j * n, sum, b.at(i, j), 2 * n * type_of<E>::unit * mass);
		}
}

/* C = A B of sparse matrices; reuse: the pattern first, then the numbers, twice */
static void sparse_product(int m, int k, int n, cusparseSpGEMMAlg_t alg, bool reuse)
{
	matrix<float> a(CSR, m, k, 5), b(CSR, k, n, 5);
	const float one = 1, zero = 0;
	const cudaDataType_t t = CUDA_R_32F;
	cusparseSpGEMMDescr_t plan;
	cusparseSpMatDescr_t c;
	std::vector<void *> bufs;
	int64_t rows, cols, nnz;
	size_t n1 = 0, n2 = 0, n3 = 0;
	int *row, *col;
	float *val;

	auto take = [&](size_t bytes) {
		void *p;

		CHECK(cudaMalloc(&p, bytes + 16));
		bufs.push_back(p);
		return p;
	};
	auto pointers = [&]() {
		LIB(cusparseSpMatGetSize(c, &rows, &cols, &nnz));
		col = (int *)take(nnz * sizeof(int));
		val = (float *)take(nnz * sizeof(float));
		LIB(cusparseCsrSetPointers(c, row, col, val));
	};
	row = (int *)take((m + 1) * sizeof(int));
	LIB(cusparseCreateCsr(&c, m, n, 0, row, NULL, NULL, I32, I32, BASE, t));
	LIB(cusparseSpGEMM_createDescr(&plan));
	if (reuse) {
		size_t n4 = 0, n5 = 0;

		LIB(cusparseSpGEMMreuse_workEstimation(sparse, N, N, a.desc, b.desc, c, alg, plan, &n1, NULL));
		LIB(cusparseSpGEMMreuse_workEstimation(sparse, N, N, a.desc, b.desc, c, alg, plan, &n1, take(n1)));
		LIB(cusparseSpGEMMreuse_nnz(sparse, N, N, a.desc, b.desc, c, alg, plan, &n2, NULL, &n3, NULL, &n4,
					    NULL));
		LIB(cusparseSpGEMMreuse_nnz(sparse, N, N, a.desc, b.desc, c, alg, plan, &n2, take(n2), &n3,
					    take(n3), &n4, take(n4)));
		pointers();
		LIB(cusparseSpGEMMreuse_copy(sparse, N, N, a.desc, b.desc, c, alg, plan, &n5, NULL));
		LIB(cusparseSpGEMMreuse_copy(sparse, N, N, a.desc, b.desc, c, alg, plan, &n5, take(n5)));
		for (int i = 0; i < 2; i++)
			LIB(cusparseSpGEMMreuse_compute(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan));
	} else {
		LIB(cusparseSpGEMM_workEstimation(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan, &n1,
						  NULL));
		LIB(cusparseSpGEMM_workEstimation(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan, &n1,
						  take(n1)));
		if (alg == CUSPARSE_SPGEMM_ALG2 || alg == CUSPARSE_SPGEMM_ALG3) {
			int64_t products;

			LIB(cusparseSpGEMM_getNumProducts(plan, &products));
			EXPECT(products > 0);
			LIB(cusparseSpGEMM_estimateMemory(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan,
							  0.2f, &n3, NULL, NULL));
			LIB(cusparseSpGEMM_estimateMemory(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan,
							  0.2f, &n3, take(n3), &n2));
		} else {
			LIB(cusparseSpGEMM_compute(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan, &n2,
						   NULL));
		}
		LIB(cusparseSpGEMM_compute(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan, &n2, take(n2)));
		pointers();
		LIB(cusparseSpGEMM_copy(sparse, N, N, &one, a.desc, b.desc, &zero, c, t, alg, plan));
	}
	std::vector<int> hr = results(row, m + 1), hc = results(col, nnz);
	std::vector<float> hv = results(val, nnz);
	std::vector<double> got(m * n);
	for (int i = 0; i < m; i++)
		for (int p = hr[i]; p < hr[i + 1]; p++)
			got[i * n + hc[p]] += hv[p];
	for (int i = 0; i < m; i++)
		for (int j = 0; j < n; j++) {
			cplx sum = 0;
			double mass = 0;

			for (int p = 0; p < k; p++) {
				sum += a.at(N, i, p) * b.at(N, p, j);
				mass += std::abs(a.at(N, i, p) * b.at(N, p, j));
			}
			near_enough("spgemm", i * n + j, got[i * n + j], sum, (k + 4) * 0x1p-24 * mass);
		}
	LIB(cusparseSpGEMM_destroyDescr(plan));
	LIB(cusparseDestroySpMat(c));
	for (void *p : bufs)
		CHECK(cudaFree(p));
}

/* What is dense becomes blocked ELL, of the pattern that is given. */
static void to_ell(int rows, int cols, int block)
{
	matrix<float> a(ELL, rows, cols, 3, block);
	float *d = to_device(a.dense);
	cusparseDnMatDescr_t from;
	const cusparseDenseToSparseAlg_t alg = CUSPARSE_DENSETOSPARSE_ALG_DEFAULT;

	CHECK(cudaMemset(a.dval, 0xff, a.val.size() * sizeof(float)));
	LIB(cusparseCreateDnMat(&from, rows, cols, cols, d, CUDA_R_32F, CUSPARSE_ORDER_ROW));
	scratch buf([&](size_t *s) { return cusparseDenseToSparse_bufferSize(sparse, from, a.desc, alg, s); });
	LIB(cusparseDenseToSparse_analysis(sparse, from, a.desc, alg, buf));
	LIB(cusparseDenseToSparse_convert(sparse, from, a.desc, alg, buf));
	std::vector<float> got = results(a.dval, a.val.size());
	for (size_t i = 0; i < got.size(); i++)
		if (a.index[i / (got.size() / rows * block) * (got.size() / rows / block) +
			    i % (got.size() / rows) / block] >= 0)
			near_enough("to ell", i, got[i], a.val[i], 0);
	LIB(cusparseDestroyDnMat(from));
	CHECK(cudaFree(d));
}

/* Products and sums by functions of the program, which the library links into its kernels. */
static std::vector<char> function(const std::string &arch, const char *source)
{
	const char *options[] = { arch.c_str(), "-rdc=true", "-dlto" };
	nvrtcProgram program;
	size_t bytes;

	LIB(nvrtcCreateProgram(&program, source, NULL, 0, NULL, NULL));
	LIB(nvrtcCompileProgram(program, 3, options));
	LIB(nvrtcGetLTOIRSize(program, &bytes));
	std::vector<char> code(bytes);
	LIB(nvrtcGetLTOIR(program, code.data()));
	LIB(nvrtcDestroyProgram(&program));
	return code;
}

/* C = 2 times the sum of min(a, b) where A has elements, + C */
static void by_functions(int rows, int cols, int n)
{
	matrix<float> a(CSR, rows, cols, 4);
	dense<float> b(cols, n, 1, CUSPARSE_ORDER_ROW), c(rows, n, 1, CUSPARSE_ORDER_ROW);
	cusparseSpMMOpPlan_t plan;
	cudaDeviceProp prop;
	size_t bytes = 0;
	void *buf;

	CHECK(cudaGetDeviceProperties(&prop, 0));
	std::string arch = "-arch=compute_" + std::to_string(prop.major * 10 + prop.minor);
	std::vector<char> add = function(arch, "__device__ float add_op(float x, float y) { return x + y; }");
	std::vector<char> mul = function(arch, "__device__ float mul_op(float x, float y) { return x < y ? x : y; }");
	std::vector<char> end = function(arch, "__device__ float epilogue(float x, float y) { return 2 * x + y; }");
	LIB(cusparseSpMMOp_createPlan(sparse, &plan, N, N, a.desc, b.mat, c.mat, CUDA_R_32F,
				      CUSPARSE_SPMM_OP_ALG_DEFAULT, add.data(), add.size(), mul.data(), mul.size(),
				      end.data(), end.size(), &bytes));
	CHECK(cudaMalloc(&buf, bytes + 16));
	LIB(cusparseSpMMOp(plan, buf));
	std::vector<float> got = c.now();
	for (int i = 0; i < rows; i++)
		for (int j = 0; j < n; j++) {
			double sum = 0;

			for (int p = 0; p < cols; p++)
				if (a.there[i * cols + p])
					sum += fmin(a.dense[i * cols + p], b.host[p * n + j]);
			near_enough("spmmop", i * n + j, got[i * n + j], 2 * sum + c.host[i * n + j], 1e-4);
		}
	LIB(cusparseSpMMOp_destroyPlan(plan));
	CHECK(cudaFree(buf));
}

int main(int argc, char **argv)
{
	const cusparseSpMVAlg_t mv = CUSPARSE_SPMV_ALG_DEFAULT;
	const cusparseSpMMAlg_t mm = CUSPARSE_SPMM_ALG_DEFAULT;
	auto part = [&](const char *name) { return lib_part(argc, argv, name); };

	LIB(cusparseCreate(&sparse));
	if (lib_arg(argc, argv, "fast")) {
		by_vector<float, float>(COO, 61, 50, N, mv);
		by_vector<float, float>(SELL, 61, 50, N, CUSPARSE_SPMV_SELL_ALG1);
	}
	if (part("spmv")) {
		for (format f : { CSR, CSC, COO }) {
			by_vector<float, float>(f, 203, 157, N, mv);
			by_vector<double, double>(f, 64, 99, T, mv);
		}
		by_vector<cuComplex, cuComplex>(CSR, 70, 80, N, mv);
		by_vector<float, float>(COO, 100, 90, N, CUSPARSE_SPMV_COO_ALG1);
		by_vector<float, float>(COO, 100, 90, N, CUSPARSE_SPMV_COO_ALG2);
	}
	if (part("sell")) {
		by_vector<float, float>(SELL, 203, 157, N, CUSPARSE_SPMV_SELL_ALG1);
		by_vector<double, double>(SELL, 64, 64, N, CUSPARSE_SPMV_SELL_ALG1);
	}
	if (part("bsr"))
		by_vector<float, float>(BSR, 64, 48, N, mv, 4);
	if (part("spmm")) {
		for (format f : { CSR, CSC, COO })
			by_matrix<float, float>(f, 100, 80, 12, N, mm);
		by_matrix<float, float>(COO, 100, 80, 12, N, CUSPARSE_SPMM_COO_ALG1);
		by_matrix<float, float>(COO, 100, 80, 12, N, CUSPARSE_SPMM_COO_ALG2);
		by_matrix<float, float>(COO, 100, 80, 12, N, CUSPARSE_SPMM_COO_ALG3);
		by_matrix<float, float>(CSR, 100, 80, 12, N, CUSPARSE_SPMM_CSR_ALG1);
		by_matrix<float, float>(CSR, 100, 80, 12, N, CUSPARSE_SPMM_CSR_ALG3);
	}
	if (part("spmm_batched")) {
		by_matrix<float, float>(CSR, 60, 50, 7, N, CUSPARSE_SPMM_CSR_ALG2, 1, 3);
		by_matrix<float, float>(COO, 60, 50, 7, N, CUSPARSE_SPMM_COO_ALG4, 1, 3);
	}
	if (part("spmm_bsr"))
		by_matrix<float, float>(BSR, 64, 48, 16, N, CUSPARSE_SPMM_BSR_ALG1, 8);
	if (part("spmm_ell")) {
		by_matrix<__half, float>(ELL, 64, 96, 16, N, CUSPARSE_SPMM_BLOCKED_ELL_ALG1, 16);
		by_matrix<__half, float>(ELL, 64, 64, 32, N, CUSPARSE_SPMM_BLOCKED_ELL_ALG1, 32);
		/* by tf32 */
		by_matrix<float, float>(ELL, 64, 64, 16, N, CUSPARSE_SPMM_BLOCKED_ELL_ALG1, 16, 1, 0x1p-10);
		by_matrix<double, double>(ELL, 48, 64, 16, N, CUSPARSE_SPMM_BLOCKED_ELL_ALG1, 16);
	}
	if (part("functions"))
		by_functions(40, 50, 12);
	if (part("to_ell"))
		to_ell(12, 18, 3);
	if (part("sddmm")) {
		sampled<float>(CSR, 40, 30, 50);
		sampled<double>(CSR, 33, 64, 20);
	}
	if (part("sddmm_batched"))
		sampled<float>(CSR, 30, 20, 24, 1, 3);
	if (part("sddmm_bsr"))
		sampled<float>(BSR, 32, 24, 48, 8);
	if (part("spsv")) {
		triangular<float>(CSR, 70, 1);
		triangular<float>(COO, 70, 1);
		triangular<double>(SELL, 64, 1);
	}
	if (part("spsm")) {
		triangular<float>(CSR, 60, 9);
		triangular<double>(COO, 60, 5);
	}
	if (part("spgemm")) {
		sparse_product(30, 40, 35, CUSPARSE_SPGEMM_DEFAULT, false);
		sparse_product(30, 40, 35, CUSPARSE_SPGEMM_ALG1, false);
	}
	if (part("spgemm_mem")) {
		sparse_product(30, 40, 35, CUSPARSE_SPGEMM_ALG2, false);
		sparse_product(30, 40, 35, CUSPARSE_SPGEMM_ALG3, false);
	}
	if (part("spgemm_reuse"))
		sparse_product(30, 40, 35, CUSPARSE_SPGEMM_DEFAULT, true);
	LIB(cusparseDestroy(sparse));
	return job_passed("cusparse_formats");
}
