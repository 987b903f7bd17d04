// SPDX-License-Identifier: Apache-2.0
/*
 * finance.cu - option prices by formula, by a binomial tree and by Monte Carlo.
 */
#include "../job.cuh"

#define N 4000
#define STEPS 256

struct option {
	float s, x, t;
};

static const float rate = 0.02f, vola = 0.30f;

__device__ float cnd(float d)
{
	float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
	float c = 0.39894228040143267794f * __expf(-0.5f * d * d) *
		  (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f +
		   k * (-1.821255978f + k * 1.330274429f)))));

	return d > 0 ? 1.0f - c : c;
}

__global__ void formula(const option *o, float2 *price, int n, float r, float v)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	float s = o[i].s, x = o[i].x, t = o[i].t, q = __fsqrt_rn(t);
	float d1 = __fdividef(__logf(s / x) + (r + 0.5f * v * v) * t, v * q), d2 = d1 - v * q;
	float e = __expf(-r * t), c1 = cnd(d1), c2 = cnd(d2);

	price[i] = make_float2(s * c1 - x * e * c2, x * e * (1.0f - c2) - s * (1.0f - c1));
}

/* One block for each option, the tree's level in shared memory. */
__global__ void tree(const option *o, float *price, float r, float v)
{
	__shared__ double level[2][STEPS + 2];
	option op = o[blockIdx.x];
	double dt = (double)op.t / STEPS, u = exp(v * sqrt(dt)), d = 1 / u, e = exp(r * dt);
	double pu = (e - d) / (u - d) / e, pd = (u - e) / (u - d) / e;
	int from = 0;

	for (int i = threadIdx.x; i <= STEPS; i += blockDim.x)
		level[0][i] = fmax(op.s * exp(v * sqrt(dt) * (2.0 * i - STEPS)) - op.x, 0.0);
	__syncthreads();
	for (int n = STEPS; n > 0; n--, from ^= 1) {
		for (int i = threadIdx.x; i < n; i += blockDim.x)
			level[from ^ 1][i] = pu * level[from][i + 1] + pd * level[from][i];
		__syncthreads();
	}
	if (!threadIdx.x)
		price[blockIdx.x] = level[from][0];
}

__device__ unsigned int hash(unsigned int x)
{
	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	x *= 0x846ca68bu;
	return x ^ x >> 16;
}

/* Paths in pairs of opposite luck; sums by a tree of shuffles, in the same order always. */
__global__ void chance(const option *o, float *price, float r, float v, int paths)
{
	__shared__ double part[8];
	option op = o[blockIdx.x];
	float mu = (r - 0.5f * v * v) * op.t, sd = v * sqrtf(op.t);
	double sum = 0;

	for (int p = threadIdx.x; p < paths; p += blockDim.x) {
		float a = (hash(p * 2 + 1) >> 8) / 16777216.0f + 3e-8f;
		float b = (hash(p * 2 + 0x1000001) >> 8) / 16777216.0f;
		float z = sqrtf(-2.0f * logf(a)) * cospif(2.0f * b);

		sum += fmaxf(op.s * expf(mu + sd * z) - op.x, 0.0f) +
		       fmaxf(op.s * expf(mu - sd * z) - op.x, 0.0f);
	}
	for (int k = 16; k; k >>= 1)
		sum += __shfl_down_sync(~0u, sum, k);
	if (!(threadIdx.x & 31))
		part[threadIdx.x / 32] = sum;
	__syncthreads();
	if (!threadIdx.x) {
		for (int w = 1; w < 8; w++)
			part[0] += part[w];
		price[blockIdx.x] = expf(-r * op.t) * part[0] / (2 * paths);
	}
}

static double host_cnd(double d)
{
	return 0.5 * erfc(-d / sqrt(2.0));
}

static double call_price(const option &o)
{
	double q = vola * sqrt(o.t), d1 = (log((double)o.s / o.x) + (rate + 0.5 * vola * vola) * o.t) / q;

	return o.s * host_cnd(d1) - o.x * exp(-rate * o.t) * host_cnd(d1 - q);
}

int main()
{
	std::vector<option> o(N);
	unsigned int seed = 160;
	float2 *p;
	float *q;

	for (option &x : o) {
		x.s = 5 + (rndf(&seed) + 1) * 12.5f;
		x.x = 1 + (rndf(&seed) + 1) * 49.5f;
		x.t = 0.25f + (rndf(&seed) + 1) * 4.8f;
	}
	option *d = to_device(o);
	CHECK(cudaMalloc(&p, N * 8));
	CHECK(cudaMalloc(&q, N * 4));
	formula<<<(N + 127) / 128, 128>>>(d, p, N, rate, vola);
	CHECK(cudaGetLastError());
	std::vector<float2> got = to_host(p, N);
	for (int i = 0; i < N; i++) {
		double c = call_price(o[i]);

		EXPECT(fabs(got[i].x - c) < 1e-4 + 1e-4 * c);
		EXPECT(fabs(got[i].y - (c + o[i].x * exp(-rate * o[i].t) - o[i].s)) < 1e-3);
	}
	sum_vector(got);
	tree<<<40, 128>>>(d, q, rate, vola);
	CHECK(cudaGetLastError());
	std::vector<float> t = to_host(q, 40);
	for (int i = 0; i < 40; i++)
		EXPECT(fabs(t[i] - call_price(o[i])) < 0.02 + 0.002 * call_price(o[i]));
	sum_vector(t);
	chance<<<10, 256>>>(d, q, rate, vola, 1 << 13);
	CHECK(cudaGetLastError());
	t = to_host(q, 10);
	for (int i = 0; i < 10; i++)
		EXPECT(fabs(t[i] - call_price(o[i])) < 0.05 + 0.05 * call_price(o[i]));
	sum_vector(t);
	return job_passed("finance");
}
