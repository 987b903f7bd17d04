// SPDX-License-Identifier: Apache-2.0
/*
 * stencil.cu - neighbours on grids of one, two and three dimensions: with halos in shared memory, with
 * coefficients in constant memory, and the game of life.
 */
#include "../job.cuh"

#define R 3

__constant__ float coeff[R + 1];

__global__ void line(const float *in, float *out, int n)
{
	__shared__ float s[256 + 2 * R];
	int i = blockIdx.x * blockDim.x + threadIdx.x, l = threadIdx.x + R;

	s[l] = i < n ? in[i] : 0;
	if (threadIdx.x < R) {
		s[l - R] = i >= R ? in[i - R] : 0;
		s[l + blockDim.x] = i + (int)blockDim.x < n ? in[i + blockDim.x] : 0;
	}
	__syncthreads();
	if (i >= n)
		return;
	float v = coeff[0] * s[l];
	for (int r = 1; r <= R; r++)
		v += coeff[r] * (s[l - r] + s[l + r]);
	out[i] = v;
}

/* Each block walks up a column of the volume and keeps the planes around it in registers. */
__global__ void volume(const float *in, float *out, int nx, int ny, int nz)
{
	__shared__ float s[8 + 2][32 + 2];
	int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
	int lx = threadIdx.x + 1, ly = threadIdx.y + 1;
	bool in_grid = x < nx && y < ny;
	auto at = [&](int i, int j, int k) {
		return i >= 0 && i < nx && j >= 0 && j < ny && k >= 0 && k < nz ?
		       in[(k * ny + j) * nx + i] : 0.0f;
	};
	float below = 0, here = at(x, y, 0), above;

	for (int z = 0; z < nz; z++) {
		above = at(x, y, z + 1);
		__syncthreads();
		s[ly][lx] = here;
		if (threadIdx.x == 0)
			s[ly][0] = at(x - 1, y, z);
		if (threadIdx.x == 31)
			s[ly][33] = at(x + 1, y, z);
		if (threadIdx.y == 0)
			s[0][lx] = at(x, y - 1, z);
		if (threadIdx.y == 7)
			s[9][lx] = at(x, y + 1, z);
		__syncthreads();
		if (in_grid)
			out[(z * ny + y) * nx + x] = 0.4f * here +
				0.1f * (s[ly][lx - 1] + s[ly][lx + 1] + s[ly - 1][lx] +
					s[ly + 1][lx] + below + above);
		below = here;
		here = above;
	}
}

__global__ void life(const unsigned char *in, unsigned char *out, int w, int h)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, n = 0;

	if (x >= w || y >= h)
		return;
	for (int dy = -1; dy <= 1; dy++)
		for (int dx = -1; dx <= 1; dx++)
			if (dx || dy)
				n += in[(y + dy + h) % h * w + (x + dx + w) % w];
	out[y * w + x] = n == 3 || (n == 2 && in[y * w + x]);
}

static void one(void)
{
	const int n = 10007;
	float c[R + 1] = { 0.5f, 0.25f, -0.125f, 0.0625f };
	std::vector<float> in(n), got;
	unsigned int seed = 70;
	float *out;

	for (float &x : in)
		x = rndf(&seed);
	CHECK(cudaMemcpyToSymbol(coeff, c, sizeof(c)));
	CHECK(cudaMalloc(&out, n * 4));
	line<<<(n + 255) / 256, 256>>>(to_device(in), out, n);
	CHECK(cudaGetLastError());
	got = to_host(out, n);
	for (int i = 0; i < n; i++) {
		double v = c[0] * in[i];

		for (int r = 1; r <= R; r++)
			v += c[r] * ((i >= r ? in[i - r] : 0.0) + (i + r < n ? in[i + r] : 0.0));
		EXPECT_NEAR(got[i], v, 1e-6);
	}
	sum_vector(got);
}

static void three(void)
{
	const int nx = 70, ny = 37, nz = 20, n = nx * ny * nz;
	std::vector<float> a(n), b(n), got;
	unsigned int seed = 71;

	for (float &x : a)
		x = rndf(&seed);
	float *da = to_device(a), *db = to_device(a);
	for (int s = 0; s < 6; s++) {
		volume<<<dim3((nx + 31) / 32, (ny + 7) / 8), dim3(32, 8)>>>(da, db, nx, ny, nz);
		std::swap(da, db);
		auto at = [&](int i, int j, int k) {
			return i >= 0 && i < nx && j >= 0 && j < ny && k >= 0 && k < nz ?
			       a[(k * ny + j) * nx + i] : 0.0f;
		};
		for (int k = 0; k < nz; k++)
			for (int j = 0; j < ny; j++)
				for (int i = 0; i < nx; i++)
					b[(k * ny + j) * nx + i] = 0.4f * at(i, j, k) +
						0.1f * (at(i - 1, j, k) + at(i + 1, j, k) +
							at(i, j - 1, k) + at(i, j + 1, k) +
							at(i, j, k - 1) + at(i, j, k + 1));
		a.swap(b);
	}
	CHECK(cudaGetLastError());
	got = to_host(da, n);
	for (int i = 0; i < n; i++)
		EXPECT_NEAR(got[i], a[i], 1e-5);
	sum_vector(got);
}

static void cells(void)
{
	const int w = 150, h = 90, n = w * h;
	std::vector<unsigned char> a(n), b(n), got;
	unsigned int seed = 72;

	for (unsigned char &c : a)
		c = rnd(&seed) % 3 == 0;
	unsigned char *da = to_device(a), *db = to_device(a);
	for (int s = 0; s < 40; s++) {
		life<<<dim3((w + 15) / 16, (h + 15) / 16), dim3(16, 16)>>>(da, db, w, h);
		std::swap(da, db);
		for (int y = 0; y < h; y++)
			for (int x = 0; x < w; x++) {
				int k = -a[y * w + x];

				for (int d = 0; d < 9; d++)
					k += a[(y + d / 3 - 1 + h) % h * w + (x + d % 3 - 1 + w) % w];
				b[y * w + x] = k == 3 || (k == 2 && a[y * w + x]);
			}
		a.swap(b);
	}
	got = to_host(da, n);
	EXPECT(got == a);
	sum_vector(got);
}

int main()
{
	one();
	three();
	cells();
	return job_passed("stencil");
}
