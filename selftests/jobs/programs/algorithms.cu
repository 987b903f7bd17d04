// SPDX-License-Identifier: Apache-2.0
/*
 * algorithms.cu - classic parallel algorithms: histograms, a radix sort, transposition, breadth-first
 * search, sparse products and a Fourier transform, made by hand.
 */
#include "../job.cuh"

#include <algorithm>
#include <complex>

/* Bins in shared memory, one set for each warp. */
__global__ void by_warps(const unsigned char *in, unsigned int *bins, int n)
{
	__shared__ unsigned int s[8][256];
	int w = threadIdx.x / 32;

	for (int i = threadIdx.x; i < 8 * 256; i += blockDim.x)
		s[i / 256][i % 256] = 0;
	__syncthreads();
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
		uchar4 c = ((const uchar4 *)in)[i];

		atomicAdd(&s[w][c.x], 1);
		atomicAdd(&s[w][c.y], 1);
		atomicAdd(&s[w][c.z], 1);
		atomicAdd(&s[w][c.w], 1);
	}
	__syncthreads();
	for (int b = threadIdx.x; b < 256; b += blockDim.x) {
		unsigned int sum = 0;

		for (int k = 0; k < 8; k++)
			sum += s[k][b];
		atomicAdd(&bins[b], sum);
	}
}

static void histogram(void)
{
	const int n = 1 << 20;
	std::vector<unsigned char> in(n);
	std::vector<unsigned int> want(256), got;
	unsigned int seed = 80, *bins;

	for (unsigned char &c : in)
		want[c = (rnd(&seed) & rnd(&seed)) & 255]++;
	CHECK(cudaMalloc(&bins, 1024));
	CHECK(cudaMemset(bins, 0, 1024));
	by_warps<<<20, 256>>>(to_device(in), bins, n);
	CHECK(cudaGetLastError());
	got = to_host(bins, 256);
	EXPECT(got == want);
	sum_vector(got);
}

/* One bit a pass: each block counts its zeros, one thread adds up, all scatter. */
#define CHUNK 512
__global__ void count_zeros(const unsigned int *in, int *zeros, int n, int bit)
{
	__shared__ int c;
	int i = blockIdx.x * CHUNK + threadIdx.x;

	if (!threadIdx.x)
		c = 0;
	__syncthreads();
	unsigned int b = __ballot_sync(~0u, i < n && !(in[i] >> bit & 1));
	if (!(threadIdx.x & 31))
		atomicAdd(&c, __popc(b));
	__syncthreads();
	if (!threadIdx.x)
		zeros[blockIdx.x] = c;
}

__global__ void offsets(int *zeros, int blocks)
{
	int run = 0;

	for (int b = 0; b < blocks; b++) {
		int z = zeros[b];

		zeros[b] = run;
		run += z;
	}
	zeros[blocks] = run;
}

__global__ void scatter(const unsigned int *in, unsigned int *out, const int *zeros, int blocks, int n,
			int bit)
{
	__shared__ int per_warp[CHUNK / 32];
	int i = blockIdx.x * CHUNK + threadIdx.x, w = threadIdx.x / 32, lane = threadIdx.x & 31;
	bool valid = i < n, zero = valid && !(in[i] >> bit & 1);
	unsigned int b = __ballot_sync(~0u, zero);

	if (!lane)
		per_warp[w] = __popc(b);
	__syncthreads();
	int before = __popc(b & ((1u << lane) - 1));
	for (int k = 0; k < w; k++)
		before += per_warp[k];
	if (!valid)
		return;
	if (zero)
		out[zeros[blockIdx.x] + before] = in[i];
	else
		out[zeros[blocks] + (i - zeros[blockIdx.x] - before)] = in[i];
}

static void radix_sort(void)
{
	const int n = 20000, blocks = (n + CHUNK - 1) / CHUNK;
	std::vector<unsigned int> v(n), got;
	unsigned int seed = 81;
	int *zeros;

	for (unsigned int &x : v)
		x = rnd(&seed) * 2654435761u;
	unsigned int *a = to_device(v), *b = to_device(v);
	CHECK(cudaMalloc(&zeros, (blocks + 1) * 4));
	for (int bit = 0; bit < 32; bit++) {
		count_zeros<<<blocks, CHUNK>>>(a, zeros, n, bit);
		offsets<<<1, 1>>>(zeros, blocks);
		scatter<<<blocks, CHUNK>>>(a, b, zeros, blocks, n, bit);
		std::swap(a, b);
	}
	CHECK(cudaGetLastError());
	got = to_host(a, n);
	std::sort(v.begin(), v.end());
	EXPECT(got == v);
	sum_vector(got);
}

__global__ void transpose(const double *in, double *out, int w, int h)
{
	__shared__ double s[32][33];
	int x = blockIdx.x * 32 + threadIdx.x, y0 = blockIdx.y * 32;

	for (int j = threadIdx.y; j < 32; j += 8)
		if (x < w && y0 + j < h)
			s[j][threadIdx.x] = in[(y0 + j) * w + x];
	__syncthreads();
	int ox = y0 + threadIdx.x, oy0 = blockIdx.x * 32;
	for (int j = threadIdx.y; j < 32; j += 8)
		if (ox < h && oy0 + j < w)
			out[(oy0 + j) * h + ox] = s[threadIdx.x][j];
}

static void transposition(void)
{
	const int w = 203, h = 119;
	std::vector<double> in(w * h), got;
	double *out;

	for (int i = 0; i < w * h; i++)
		in[i] = i * 0.5;
	CHECK(cudaMalloc(&out, w * h * 8));
	transpose<<<dim3((w + 31) / 32, (h + 31) / 32), dim3(32, 8)>>>(to_device(in), out, w, h);
	CHECK(cudaGetLastError());
	got = to_host(out, w * h);
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			EXPECT(got[x * h + y] == in[y * w + x]);
}

__global__ void frontier(const int *row, const int *col, int *level, int depth, int n, int *more)
{
	int v = blockIdx.x * blockDim.x + threadIdx.x;

	if (v >= n || level[v] != depth)
		return;
	for (int e = row[v]; e < row[v + 1]; e++)
		if (atomicCAS(&level[col[e]], -1, depth + 1) == -1)
			*more = 1;
}

__global__ void spmv(const int *row, const int *col, const float *x, float *y, int n)
{
	int r = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
	float s = 0;

	if (r >= n)
		return;
	for (int e = row[r] + lane; e < row[r + 1]; e += 32)
		s += x[col[e]] * (1.0f + (e & 3));
	for (int d = 16; d; d >>= 1)
		s += __shfl_down_sync(~0u, s, d);
	if (!lane)
		y[r] = s;
}

static void sparse(void)
{
	const int n = 5000;
	std::vector<int> row(1), col, level(n, -1), want(n, -1), queue(1, 0);
	std::vector<float> x(n), got;
	unsigned int seed = 82;
	int *more, rounds = 0;
	float *y;

	for (int v = 0; v < n; v++) {
		for (int k = rnd(&seed) % (v % 50 == 0 ? 90 : 4); k >= 0; k--)
			col.push_back(rnd(&seed) % n);
		row.push_back(col.size());
		x[v] = rndf(&seed);
	}
	level[0] = want[0] = 0;
	for (size_t q = 0; q < queue.size(); q++)
		for (int e = row[queue[q]]; e < row[queue[q] + 1]; e++)
			if (want[col[e]] < 0) {
				want[col[e]] = want[queue[q]] + 1;
				queue.push_back(col[e]);
			}
	int *dr = to_device(row), *dc = to_device(col), *dl = to_device(level);
	CHECK(cudaHostAlloc(&more, 4, cudaHostAllocMapped));
	do {
		*more = 0;
		frontier<<<(n + 127) / 128, 128>>>(dr, dc, dl, rounds, n, more);
		CHECK(cudaDeviceSynchronize());
		rounds++;
	} while (*more);
	EXPECT(to_host(dl, n) == want);
	sum_vector(want);
	CHECK(cudaMalloc(&y, n * 4));
	spmv<<<(n + 7) / 8, 256>>>(dr, dc, to_device(x), y, n);
	CHECK(cudaGetLastError());
	got = to_host(y, n);
	for (int r = 0; r < n; r++) {
		double s = 0;

		for (int e = row[r]; e < row[r + 1]; e++)
			s += x[col[e]] * (1.0 + (e & 3));
		EXPECT_NEAR(got[r], s, 1e-4);
	}
	sum_vector(got);
}

/* Radix 2, in shared memory, one block a transform. */
__global__ void fft(float2 *data, int bits)
{
	extern __shared__ float2 s[];
	int n = 1 << bits;
	float2 *d = data + blockIdx.x * n;

	for (int i = threadIdx.x; i < n; i += blockDim.x)
		s[__brev(i) >> (32 - bits)] = d[i];
	__syncthreads();
	for (int half = 1; half < n; half *= 2) {
		for (int t = threadIdx.x; t < n / 2; t += blockDim.x) {
			int k = t % half, i = t / half * 2 * half + k;
			float c, sn;

			sincospif(-(float)k / half, &sn, &c);
			float2 a = s[i], b = s[i + half];
			float2 w = make_float2(b.x * c - b.y * sn, b.x * sn + b.y * c);

			s[i] = make_float2(a.x + w.x, a.y + w.y);
			s[i + half] = make_float2(a.x - w.x, a.y - w.y);
		}
		__syncthreads();
	}
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		d[i] = s[i];
}

static void fourier(void)
{
	const int bits = 9, n = 1 << bits, batch = 6;
	std::vector<float2> v(n * batch), got;
	unsigned int seed = 83;

	for (float2 &x : v)
		x = make_float2(rndf(&seed), rndf(&seed));
	float2 *d = to_device(v);
	fft<<<batch, 128, n * sizeof(float2)>>>(d, bits);
	CHECK(cudaGetLastError());
	got = to_host(d, n * batch);
	for (int b = 0; b < batch; b++)
		for (int k = 0; k < n; k += 7) {
			std::complex<double> s = 0;

			for (int i = 0; i < n; i++)
				s += std::complex<double>(v[b * n + i].x, v[b * n + i].y) *
				     std::polar(1.0, -2 * M_PI * (i * k % n) / n);
			EXPECT_NEAR(got[b * n + k].x, s.real(), 1e-4);
			EXPECT_NEAR(got[b * n + k].y, s.imag(), 1e-4);
		}
	sum_vector(got);
}

int main()
{
	histogram();
	radix_sort();
	transposition();
	sparse();
	fourier();
	return job_passed("algorithms");
}
