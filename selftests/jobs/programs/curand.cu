// SPDX-License-Identifier: Apache-2.0
/*
 * curand.cu - random numbers made by kernels with the toolkit's headers, and Monte Carlo with them.
 */
#include "../job.cuh"

#include <curand_kernel.h>

__global__ void philox(unsigned long long seed, uint4 *out, int per)
{
	int id = blockIdx.x * blockDim.x + threadIdx.x;
	curandStatePhilox4_32_10_t s;

	curand_init(seed, id, 0, &s);
	for (int i = 0; i < per; i++)
		out[id * per + i] = curand4(&s);
}

__global__ void start(curandState *s, unsigned long long seed)
{
	int id = blockIdx.x * blockDim.x + threadIdx.x;

	curand_init(seed, id, 0, &s[id]);
}

/* States live in memory from launch to launch. */
__global__ void draw(curandState *s, float *uniform, float *normal, unsigned int *bits, int n)
{
	int id = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
	curandState mine = s[id];

	for (int i = id; i < n; i += all) {
		uniform[i] = curand_uniform(&mine);
		normal[i] = curand_normal(&mine);
		bits[i] = curand(&mine);
	}
	s[id] = mine;
}

__global__ void pi(curandStateMRG32k3a *s, unsigned int *in, int tries)
{
	int id = blockIdx.x * blockDim.x + threadIdx.x;
	unsigned int hits = 0;

	curand_init(7, id, 0, &s[id]);
	for (int i = 0; i < tries; i++) {
		float x = curand_uniform(&s[id]), y = curand_uniform(&s[id]);

		hits += x * x + y * y <= 1.0f;
	}
	atomicAdd(in, hits);
}

/* Philox 4x32-10 as its authors give it. */
static void host_philox(unsigned int c[4], unsigned int k0, unsigned int k1)
{
	for (int r = 0; r < 10; r++) {
		unsigned long long a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
		unsigned int n[4] = { (unsigned int)(b >> 32) ^ c[1] ^ k0, (unsigned int)b,
				      (unsigned int)(a >> 32) ^ c[3] ^ k1, (unsigned int)a };

		memcpy(c, n, sizeof(n));
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
}

int main()
{
	const int threads = 128, per = 5, n = 40000;
	const unsigned long long seed = 0x123456789abcull;
	curandState *s;
	curandStateMRG32k3a *m;
	uint4 *d;
	float *u, *g;
	unsigned int *b, *in;

	CHECK(cudaMalloc(&d, threads * per * sizeof(*d)));
	philox<<<2, threads / 2>>>(seed, d, per);
	CHECK(cudaGetLastError());
	std::vector<uint4> p = to_host(d, threads * per);
	for (int id = 0; id < threads; id++)
		for (int i = 0; i < per; i++) {
			unsigned int c[4] = { (unsigned int)i, 0, (unsigned int)id, 0 };
			uint4 v = p[id * per + i];

			host_philox(c, (unsigned int)seed, (unsigned int)(seed >> 32));
			EXPECT(v.x == c[0] && v.y == c[1] && v.z == c[2] && v.w == c[3]);
		}
	sum_vector(p);

	CHECK(cudaMalloc(&s, 256 * sizeof(*s)));
	CHECK(cudaMalloc(&u, n * 4));
	CHECK(cudaMalloc(&g, n * 4));
	CHECK(cudaMalloc(&b, n * 4));
	start<<<4, 64>>>(s, 99);
	for (int round = 0; round < 2; round++) {
		double mu = 0, mg = 0, vu = 0, vg = 0;
		int ones = 0;

		draw<<<4, 64>>>(s, u, g, b, n);
		CHECK(cudaGetLastError());
		std::vector<float> hu = to_host(u, n), hg = to_host(g, n);
		std::vector<unsigned int> hb = to_host(b, n);
		for (int i = 0; i < n; i++) {
			EXPECT(hu[i] > 0 && hu[i] <= 1);
			mu += hu[i] / n;
			vu += hu[i] * hu[i] / n;
			mg += hg[i] / n;
			vg += hg[i] * hg[i] / n;
			ones += __builtin_popcount(hb[i]);
		}
		/* five standard deviations */
		EXPECT(fabs(mu - 0.5) < 0.0075 && fabs(vu - 1.0 / 3) < 0.0075);
		EXPECT(fabs(mg) < 0.025 && fabs(vg - 1) < 0.036);
		EXPECT(fabs(ones / (32.0 * n) - 0.5) < 0.0023);
		sum_vector(hb);
	}
	CHECK(cudaMalloc(&m, 64 * sizeof(*m)));
	CHECK(cudaMalloc(&in, 4));
	CHECK(cudaMemset(in, 0, 4));
	pi<<<1, 64>>>(m, in, 300);
	CHECK(cudaGetLastError());
	EXPECT(fabs(to_host(in, 1)[0] * 4.0 / (64 * 300) - M_PI) < 0.06);
	return job_passed("curand");
}
