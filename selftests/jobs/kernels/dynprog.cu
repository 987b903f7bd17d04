// SPDX-License-Identifier: Apache-2.0
/*
 * dynprog.cu - dynamic programming: alignments, shortest paths, knapsacks, chains of matrices,
 * clusters; and votes and counts of whole blocks.
 */
#include "../job.cuh"

#include <algorithm>

/* Smith and Waterman: one block, a diagonal a step; cells of the last two diagonals in shared memory. */
__global__ void align(const char *a, const char *b, int n, int m, int *best, int *where)
{
	extern __shared__ int s[];
	int *prev2 = s, *prev = s + n + 1, *cur = s + 2 * (n + 1);
	int my_best = 0, my_where = 0;

	for (int i = threadIdx.x; i <= n; i += blockDim.x)
		prev2[i] = prev[i] = cur[i] = 0;
	__syncthreads();
	for (int d = 2; d <= n + m; d++) {
		for (int i = max(1, d - m) + threadIdx.x; i <= min(n, d - 1); i += blockDim.x) {
			int j = d - i, v = prev2[i - 1] + (a[i - 1] == b[j - 1] ? 3 : -2);

			v = max(max(v, 0), max(prev[i - 1], prev[i]) - 2);
			cur[i] = v;
			if (v > my_best || (v == my_best && i * (m + 1) + j < my_where)) {
				my_best = v;
				my_where = i * (m + 1) + j;
			}
		}
		__syncthreads();
		if (d <= n && !threadIdx.x)
			cur[d] = cur[0] = 0;
		int *t = prev2;
		prev2 = prev;
		prev = cur;
		cur = t;
		__syncthreads();
	}
	/* the greatest of all, and the first of those */
	__shared__ unsigned long long top;
	if (!threadIdx.x)
		top = 0;
	__syncthreads();
	atomicMax(&top, (unsigned long long)my_best << 32 | (0xffffffffu - my_where));
	__syncthreads();
	if (!threadIdx.x) {
		*best = top >> 32;
		*where = 0xffffffffu - (unsigned int)top;
	}
}

static void alignment(void)
{
	const int n = 230, m = 310;
	std::vector<char> a(n), b(m);
	std::vector<int> t((n + 1) * (m + 1));
	unsigned int seed = 190;
	int *out, best = 0, where = 0;

	for (char &c : a)
		c = "ACGT"[rnd(&seed) % 4];
	for (char &c : b)
		c = "ACGT"[rnd(&seed) % 4];
	std::copy(a.begin() + 50, a.begin() + 120, b.begin() + 90);
	for (int i = 1; i <= n; i++)
		for (int j = 1; j <= m; j++) {
			int v = t[(i - 1) * (m + 1) + j - 1] + (a[i - 1] == b[j - 1] ? 3 : -2);

			v = std::max(std::max(v, 0), std::max(t[(i - 1) * (m + 1) + j],
							      t[i * (m + 1) + j - 1]) - 2);
			t[i * (m + 1) + j] = v;
			if (v > best) {
				best = v;
				where = i * (m + 1) + j;
			}
		}
	CHECK(cudaMalloc(&out, 8));
	align<<<1, 128, 3 * (n + 1) * 4>>>(to_device(a), to_device(b), n, m, out, out + 1);
	CHECK(cudaGetLastError());
	std::vector<int> got = to_host(out, 2);
	EXPECT_EQ(got[0], best);
	EXPECT_EQ(got[1], where);
	EXPECT(best >= 150);
	sum_vector(got);
}

/* Floyd and Warshall, by blocks of 16 in three phases. */
#define T 16
__device__ void relax(int c[T][T], const int a[T][T], const int b[T][T], bool together)
{
	int x = threadIdx.x, y = threadIdx.y;

	for (int k = 0; k < T; k++) {
		int v = a[y][k] + b[k][x];

		if (v < c[y][x])
			c[y][x] = v;
		if (together)
			__syncthreads();
	}
}

__global__ void floyd(int *d, int n, int k, int phase)
{
	__shared__ int a[T][T], b[T][T], c[T][T];
	int bx = blockIdx.x, by = blockIdx.y, x = threadIdx.x, y = threadIdx.y;

	if (phase == 0) {
		bx = by = k;
	} else if (phase == 1) {
		if (bx == k)
			return;
		if (by) {
			by = bx;
			bx = k;
		} else {
			by = k;
		}
	} else if (bx == k || by == k) {
		return;
	}
	int *at = &d[(by * T + y) * n + bx * T + x];

	c[y][x] = *at;
	a[y][x] = d[(by * T + y) * n + k * T + x];
	b[y][x] = d[(k * T + y) * n + bx * T + x];
	__syncthreads();
	if (phase == 0)
		relax(c, c, c, true);
	else if (phase == 1)
		relax(c, bx == k ? c : a, by == k ? c : b, true);
	else
		relax(c, a, b, false);
	*at = c[y][x];
}

static void ways(void)
{
	const int n = 96, blocks = n / T;
	std::vector<int> d(n * n), w;
	unsigned int seed = 191;

	for (int i = 0; i < n * n; i++)
		d[i] = i % (n + 1) == 0 ? 0 : rnd(&seed) % 8 ? 1000000 : 1 + rnd(&seed) % 100;
	w = d;
	for (int k = 0; k < n; k++)
		for (int i = 0; i < n; i++)
			for (int j = 0; j < n; j++)
				w[i * n + j] = std::min(w[i * n + j], w[i * n + k] + w[k * n + j]);
	int *dd = to_device(d);
	for (int k = 0; k < blocks; k++) {
		floyd<<<1, dim3(T, T)>>>(dd, n, k, 0);
		floyd<<<dim3(blocks, 2), dim3(T, T)>>>(dd, n, k, 1);
		floyd<<<dim3(blocks, blocks), dim3(T, T)>>>(dd, n, k, 2);
	}
	CHECK(cudaGetLastError());
	EXPECT(to_host(dd, n * n) == w);
	sum_vector(w);
}

__global__ void pack(const int *prev, int *cur, int weight, int value, int cap)
{
	int c = blockIdx.x * blockDim.x + threadIdx.x;

	if (c <= cap)
		cur[c] = c >= weight ? max(prev[c], prev[c - weight] + value) : prev[c];
}

static void knapsack(void)
{
	const int items = 60, cap = 1500;
	std::vector<int> best(cap + 1);
	unsigned int seed = 192;
	int *a = to_device(best), *b = to_device(best);

	for (int i = 0; i < items; i++) {
		int w = 5 + rnd(&seed) % 90, v = 1 + rnd(&seed) % 1000;

		pack<<<(cap + 128) / 128, 128>>>(a, b, w, v, cap);
		std::swap(a, b);
		for (int c = cap; c >= w; c--)
			best[c] = std::max(best[c], best[c - w] + v);
	}
	EXPECT(to_host(a, cap + 1) == best);
	sum_vector(best);
}

/* Clusters: nearest centres, integer sums, new centres; until nothing moves. */
struct point {
	int x, y;
};

__global__ void assign(const point *p, const point *c, int *of, long long *sum, int n, int k, int *moved)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, best = 0;
	bool changes = false;

	if (i < n) {
		long long least = 1ll << 62;

		for (int q = 0; q < k; q++) {
			long long dx = p[i].x - c[q].x, dy = p[i].y - c[q].y, d = dx * dx + dy * dy;

			if (d < least) {
				least = d;
				best = q;
			}
		}
		changes = of[i] != best;
		of[i] = best;
		atomicAdd((unsigned long long *)&sum[3 * best], (unsigned long long)p[i].x);
		atomicAdd((unsigned long long *)&sum[3 * best + 1], (unsigned long long)p[i].y);
		atomicAdd((unsigned long long *)&sum[3 * best + 2], 1ull);
	}
	int all = __syncthreads_count(changes), any = __syncthreads_or(changes),
	    none = __syncthreads_and(!changes);

	if (!threadIdx.x) {
		atomicAdd(moved, all);
		if ((any != 0) == (none != 0) || (all == 0) != (none != 0))
			atomicAdd(moved, 1 << 20);
	}
}

__global__ void centres(point *c, long long *sum, int k)
{
	int q = threadIdx.x;

	if (q < k && sum[3 * q + 2])
		c[q] = { (int)(sum[3 * q] / sum[3 * q + 2]), (int)(sum[3 * q + 1] / sum[3 * q + 2]) };
	for (int i = 0; q < k && i < 3; i++)
		sum[3 * q + i] = 0;
}

static void clusters(void)
{
	const int n = 3000, k = 12;
	std::vector<point> p(n), c(k);
	std::vector<int> of(n, -1);
	unsigned int seed = 193;
	long long *sum;
	int *moved, rounds = 0;

	for (point &v : p)
		v = { (int)(rnd(&seed) % 100000) - 50000, (int)(rnd(&seed) % 100000) - 50000 };
	for (int q = 0; q < k; q++)
		c[q] = p[q * 7];
	point *dp = to_device(p), *dc = to_device(c);
	int *dof = to_device(of);
	CHECK(cudaMalloc(&sum, 3 * k * 8));
	CHECK(cudaMemset(sum, 0, 3 * k * 8));
	CHECK(cudaMallocManaged(&moved, 4));
	do {
		*moved = 0;
		assign<<<(n + 99) / 100, 100>>>(dp, dc, dof, sum, n, k, moved);
		centres<<<1, 32>>>(dc, sum, k);
		CHECK(cudaDeviceSynchronize());
		int here = 0;
		std::vector<long long> s(3 * k);
		for (int i = 0; i < n; i++) {
			long long least = 1ll << 62;
			int best = 0;

			for (int q = 0; q < k; q++) {
				long long dx = p[i].x - c[q].x, dy = p[i].y - c[q].y;

				if (dx * dx + dy * dy < least) {
					least = dx * dx + dy * dy;
					best = q;
				}
			}
			here += of[i] != best;
			of[i] = best;
			s[3 * best] += p[i].x;
			s[3 * best + 1] += p[i].y;
			s[3 * best + 2]++;
		}
		for (int q = 0; q < k; q++)
			if (s[3 * q + 2])
				c[q] = { (int)(s[3 * q] / s[3 * q + 2]), (int)(s[3 * q + 1] / s[3 * q + 2]) };
		EXPECT_EQ(*moved, here);
	} while (*moved && ++rounds < 100);
	EXPECT(to_host(dof, n) == of);
	sum_vector(of);
}

int main()
{
	alignment();
	ways();
	knapsack();
	clusters();
	return job_passed("dynprog");
}
