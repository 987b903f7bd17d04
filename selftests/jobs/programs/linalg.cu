// SPDX-License-Identifier: Apache-2.0
/*
 * linalg.cu - systems of equations: LU with pivots, Cholesky, QR, eigenvalues, conjugate gradients and
 * tridiagonal systems; solutions are checked by substitution.
 */
#include "../job.cuh"

#define N 72

static std::vector<double> random_matrix(int n, unsigned int seed)
{
	std::vector<double> a(n * n);

	for (double &x : a)
		x = rndf(&seed);
	return a;
}

/* One block, one column a step: the pivot by a reduction of the block, rows swapped in place. */
__global__ void lu(double *a, int *perm, int n)
{
	__shared__ double best[128];
	__shared__ int row[128];
	int t = threadIdx.x;

	for (int k = 0; k < n; k++) {
		best[t] = -1;
		row[t] = k;
		for (int i = k + t; i < n; i += blockDim.x)
			if (fabs(a[i * n + k]) > best[t]) {
				best[t] = fabs(a[i * n + k]);
				row[t] = i;
			}
		__syncthreads();
		for (int s = blockDim.x / 2; s; s >>= 1) {
			if (t < s && (best[t + s] > best[t] ||
				      (best[t + s] == best[t] && row[t + s] < row[t]))) {
				best[t] = best[t + s];
				row[t] = row[t + s];
			}
			__syncthreads();
		}
		int p = row[0];

		if (p != k)
			for (int j = t; j < n; j += blockDim.x) {
				double x = a[k * n + j];

				a[k * n + j] = a[p * n + j];
				a[p * n + j] = x;
			}
		if (!t)
			perm[k] = p;
		__syncthreads();
		for (int i = k + 1 + t; i < n; i += blockDim.x)
			a[i * n + k] /= a[k * n + k];
		__syncthreads();
		for (int e = t; e < (n - k - 1) * (n - k - 1); e += blockDim.x) {
			int i = k + 1 + e / (n - k - 1), j = k + 1 + e % (n - k - 1);

			a[i * n + j] -= a[i * n + k] * a[k * n + j];
		}
		__syncthreads();
	}
}

static void gauss(void)
{
	std::vector<double> a = random_matrix(N, 200), f;
	std::vector<int> perm;
	double *d = to_device(a);
	int *p;

	CHECK(cudaMalloc(&p, N * 4));
	lu<<<1, 128>>>(d, p, N);
	CHECK(cudaGetLastError());
	f = to_host(d, N * N);
	perm = to_host(p, N);
	for (int k = 0; k < N; k++) {
		EXPECT(perm[k] >= k && perm[k] < N);
		for (int j = 0; j < N && perm[k] != k; j++)
			std::swap(a[k * N + j], a[perm[k] * N + j]);
	}
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			double s = 0;

			for (int k = 0; k <= std::min(i, j); k++)
				s += (k == i ? 1 : f[i * N + k]) * f[k * N + j];
			EXPECT_NEAR(s, a[i * N + j], 1e-11);
			EXPECT(i <= j || fabs(f[i * N + j]) <= 1);
		}
	sum_vector(f);
}

/* By launches: a column, then all that is right of it. */
__global__ void chol_column(double *a, int n, int k)
{
	double d = sqrt(a[k * n + k]);

	__syncthreads();
	for (int i = k + threadIdx.x; i < n; i += blockDim.x)
		a[i * n + k] = i == k ? d : a[i * n + k] / d;
}

__global__ void chol_rest(double *a, int n, int k)
{
	int j = k + 1 + blockIdx.x * blockDim.x + threadIdx.x, i = k + 1 + blockIdx.y;

	if (j <= i && i < n)
		a[i * n + j] -= a[i * n + k] * a[j * n + k];
}

static void cholesky(void)
{
	std::vector<double> b = random_matrix(N, 201), a(N * N), l;

	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			a[i * N + j] = i == j ? 1 : 0;
			for (int k = 0; k < N; k++)
				a[i * N + j] += b[i * N + k] * b[j * N + k];
		}
	double *d = to_device(a);
	for (int k = 0; k < N; k++) {
		chol_column<<<1, 64>>>(d, N, k);
		if (k + 1 < N)
			chol_rest<<<dim3((N - k - 1 + 31) / 32, N - k - 1), 32>>>(d, N, k);
	}
	CHECK(cudaGetLastError());
	l = to_host(d, N * N);
	for (int i = 0; i < N; i++)
		for (int j = 0; j <= i; j++) {
			double s = 0;

			for (int k = 0; k <= j; k++)
				s += l[i * N + k] * l[j * N + k];
			EXPECT_NEAR(s, a[i * N + j], 1e-11);
		}
	sum_vector(l);
}

template <int BLOCK> __device__ double block_sum(double v)
{
	__shared__ double s[BLOCK / 32];

	for (int d = 16; d; d >>= 1)
		v += __shfl_down_sync(~0u, v, d);
	__syncthreads();
	if (!(threadIdx.x & 31))
		s[threadIdx.x / 32] = v;
	__syncthreads();
	double sum = 0;
	for (int w = 0; w < BLOCK / 32; w++)
		sum += s[w];
	return sum;
}

/* Householder's reflections, one block for the whole; q starts as the unit. */
__global__ void householder(double *a, double *q, int n)
{
	__shared__ double v[N];

	for (int k = 0; k < n - 1; k++) {
		double x = 0;

		for (int i = k + threadIdx.x; i < n; i += blockDim.x)
			x += a[i * n + k] * a[i * n + k];
		double norm = sqrt(block_sum<128>(x)), akk = a[k * n + k];
		double alpha = akk > 0 ? -norm : norm, vv = 2 * (norm * norm - akk * alpha);

		__syncthreads();
		for (int i = threadIdx.x; i < n; i += blockDim.x)
			v[i] = i < k ? 0 : i == k ? akk - alpha : a[i * n + k];
		__syncthreads();
		for (int j = threadIdx.x; j < n; j += blockDim.x) {
			double s = 0, t = 0;

			for (int i = k; i < n; i++)
				s += v[i] * a[i * n + j];
			for (int i = k; i < n; i++)
				t += q[j * n + i] * v[i];
			for (int i = k; i < n; i++) {
				a[i * n + j] -= 2 * s / vv * v[i];
				q[j * n + i] -= 2 * t / vv * v[i];
			}
		}
		__syncthreads();
	}
}

static void orthogonal(void)
{
	std::vector<double> a = random_matrix(N, 202), one(N * N), q, r;

	for (int i = 0; i < N; i++)
		one[i * N + i] = 1;
	double *da = to_device(a), *dq = to_device(one);
	householder<<<1, 128>>>(da, dq, N);
	CHECK(cudaGetLastError());
	q = to_host(dq, N * N);
	r = to_host(da, N * N);
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			double s = 0, u = 0;

			for (int k = 0; k < N; k++) {
				s += q[i * N + k] * (k <= j ? r[k * N + j] : 0);
				u += q[i * N + k] * q[j * N + k];
			}
			EXPECT_NEAR(s, a[i * N + j], 1e-11);
			EXPECT_NEAR(u, i == j, 1e-11);
			EXPECT(i <= j || fabs(r[i * N + j]) < 1e-11);
		}
	sum_vector(r);
}

/* Jacobi's rotations of a symmetric matrix, a block for each of many small ones. */
#define E 12
__global__ void jacobi(const double *in, double *values)
{
	__shared__ double a[E][E];
	int i = threadIdx.x, j = threadIdx.y;

	a[i][j] = in[blockIdx.x * E * E + i * E + j];
	__syncthreads();
	for (int sweep = 0; sweep < 10; sweep++)
		for (int p = 0; p < E; p++)
			for (int q = p + 1; q < E; q++) {
				double apq = a[p][q], c = 1, s = 0;

				if (fabs(apq) > 1e-300) {
					double th = (a[q][q] - a[p][p]) / (2 * apq);
					double t = copysign(1.0, th) / (fabs(th) + sqrt(th * th + 1));

					c = rsqrt(t * t + 1);
					s = t * c;
				}
				__syncthreads();
				if (i == 0) {
					double x = a[j][p], y = a[j][q];

					a[j][p] = c * x - s * y;
					a[j][q] = s * x + c * y;
				}
				__syncthreads();
				if (i == 0) {
					double x = a[p][j], y = a[q][j];

					a[p][j] = c * x - s * y;
					a[q][j] = s * x + c * y;
				}
				__syncthreads();
			}
	if (i == j)
		values[blockIdx.x * E + i] = a[i][i];
}

static void eigenvalues(void)
{
	const int count = 10;
	std::vector<double> a, v;
	double *out;

	for (int m = 0; m < count; m++) {
		std::vector<double> r = random_matrix(E, 210 + m);

		for (int i = 0; i < E; i++)
			for (int j = 0; j < E; j++)
				a.push_back(r[std::min(i, j) * E + std::max(i, j)]);
	}
	CHECK(cudaMalloc(&out, count * E * 8));
	jacobi<<<count, dim3(E, E)>>>(to_device(a), out);
	CHECK(cudaGetLastError());
	v = to_host(out, count * E);
	for (int m = 0; m < count; m++) {
		double t1 = 0, t2 = 0, s1 = 0, s2 = 0, det = 1, lam = 1;

		for (int i = 0; i < E; i++) {
			t1 += a[m * E * E + i * E + i];
			s1 += v[m * E + i];
			s2 += v[m * E + i] * v[m * E + i];
			lam *= v[m * E + i];
		}
		std::vector<double> g(a.begin() + m * E * E, a.begin() + (m + 1) * E * E);
		for (double x : g)
			t2 += x * x;
		for (int k = 0; k < E; k++) {
			int p = k;

			for (int i = k; i < E; i++)
				if (fabs(g[i * E + k]) > fabs(g[p * E + k]))
					p = i;
			if (p != k) {
				det = -det;
				for (int j = 0; j < E; j++)
					std::swap(g[k * E + j], g[p * E + j]);
			}
			det *= g[k * E + k];
			for (int i = k + 1; i < E; i++)
				for (int j = E - 1; j >= k; j--)
					g[i * E + j] -= g[i * E + k] / g[k * E + k] * g[k * E + j];
		}
		EXPECT_NEAR(s1, t1, 1e-11);	/* trace, norm and determinant are those of the matrix */
		EXPECT_NEAR(s2, t2, 1e-11);
		EXPECT_NEAR(lam, det, 1e-9);
	}
	sum_vector(v);
}

/* Poisson's equation on a square by conjugate gradients, all of it in one block but the matrix. */
#define G 30
__global__ void gradients(const double *b, double *x, double *r, double *p, int *steps)
{
	const int n = G * G;
	double rr = 0, pq, rr2;
	int k = 0;

	for (int i = threadIdx.x; i < n; i += blockDim.x) {
		x[i] = 0;
		r[i] = p[i] = b[i];
		rr += b[i] * b[i];
	}
	rr = block_sum<256>(rr);
	__syncthreads();
	for (; k < 500 && rr > 1e-20; k++) {
		double q[(n + 255) / 256];

		pq = 0;
		for (int i = threadIdx.x, c = 0; i < n; i += blockDim.x, c++) {
			int u = i % G, v = i / G;

			q[c] = 4 * p[i] - (u ? p[i - 1] : 0) - (u < G - 1 ? p[i + 1] : 0) -
			       (v ? p[i - G] : 0) - (v < G - 1 ? p[i + G] : 0);
			pq += p[i] * q[c];
		}
		pq = block_sum<256>(pq);
		double alpha = rr / pq;

		rr2 = 0;
		for (int i = threadIdx.x, c = 0; i < n; i += blockDim.x, c++) {
			x[i] += alpha * p[i];
			r[i] -= alpha * q[c];
			rr2 += r[i] * r[i];
		}
		rr2 = block_sum<256>(rr2);
		for (int i = threadIdx.x; i < n; i += blockDim.x)
			p[i] = r[i] + rr2 / rr * p[i];
		rr = rr2;
		__syncthreads();
	}
	if (!threadIdx.x)
		*steps = k;
}

static void poisson(void)
{
	const int n = G * G;
	std::vector<double> b(n), x;
	unsigned int seed = 220;
	double *d;
	int *steps;

	for (double &v : b)
		v = rndf(&seed);
	CHECK(cudaMalloc(&d, 3 * n * 8));
	CHECK(cudaMallocManaged(&steps, 4));
	gradients<<<1, 256>>>(to_device(b), d, d + n, d + 2 * n, steps);
	CHECK(cudaDeviceSynchronize());
	x = to_host(d, n);
	for (int i = 0; i < n; i++) {
		int u = i % G, v = i / G;
		double s = 4 * x[i] - (u ? x[i - 1] : 0) - (u < G - 1 ? x[i + 1] : 0) -
			   (v ? x[i - G] : 0) - (v < G - 1 ? x[i + G] : 0);

		EXPECT(fabs(s - b[i]) < 1e-8);
	}
	EXPECT(*steps > 20 && *steps < 200);
	sum_vector(x);
}

int main()
{
	gauss();
	cholesky();
	orthogonal();
	eigenvalues();
	poisson();
	return job_passed("linalg");
}
