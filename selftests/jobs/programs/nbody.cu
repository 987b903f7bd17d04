// SPDX-License-Identifier: Apache-2.0
/*
 * nbody.cu - bodies that attract each other, by tiles in shared memory: leapfrog in float and double.
 */
#include "../job.cuh"

#define SOFT 0.01

template <typename T> struct vec4;
template <> struct vec4<float> { typedef float4 t; };
template <> struct vec4<double> { typedef double4_16a t; };

__device__ float root(float x) { return rsqrtf(x); }
__device__ double root(double x) { return rsqrt(x); }

/* p.w is the mass; one thread for each body, tiles of as many as the block has threads */
template <typename T> __global__ void kick(const typename vec4<T>::t *p, typename vec4<T>::t *v, int n,
					   T dt)
{
	extern __shared__ double4_16a raw[];
	typename vec4<T>::t *tile = (typename vec4<T>::t *)raw, me = {}, a = {};
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		me = p[i];
	for (int from = 0; from < n; from += blockDim.x) {
		int j = from + threadIdx.x;

		tile[threadIdx.x] = j < n ? p[j] : typename vec4<T>::t{};
		__syncthreads();
#pragma unroll 4
		for (int k = 0; k < blockDim.x; k++) {
			T x = tile[k].x - me.x, y = tile[k].y - me.y, z = tile[k].z - me.z;
			T inv = root(x * x + y * y + z * z + (T)SOFT), f = tile[k].w * inv * inv * inv;

			a.x += f * x;
			a.y += f * y;
			a.z += f * z;
		}
		__syncthreads();
	}
	if (i < n) {
		v[i].x += a.x * dt;
		v[i].y += a.y * dt;
		v[i].z += a.z * dt;
	}
}

template <typename T> __global__ void drift(typename vec4<T>::t *p, const typename vec4<T>::t *v, int n,
					    T dt)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		p[i].x += v[i].x * dt;
		p[i].y += v[i].y * dt;
		p[i].z += v[i].z * dt;
	}
}

struct state {
	std::vector<double> p, v, m;
};

static state start(int n)
{
	state s;
	unsigned int seed = 60;

	for (int i = 0; i < n; i++) {
		for (int k = 0; k < 3; k++) {
			s.p.push_back(rndf(&seed));
			s.v.push_back(rndf(&seed) * 0.1f);
		}
		s.m.push_back(1.0 / 1024 * (1 + rnd(&seed) % 4));
	}
	return s;
}

static void host_step(state &s, int n, double dt)
{
	std::vector<double> a(3 * n);

	for (int i = 0; i < n; i++)
		for (int j = 0; j < n; j++) {
			double d[3], r = SOFT;

			for (int k = 0; k < 3; k++) {
				d[k] = s.p[3 * j + k] - s.p[3 * i + k];
				r += d[k] * d[k];
			}
			for (int k = 0; k < 3; k++)
				a[3 * i + k] += s.m[j] * d[k] / (r * sqrt(r));
		}
	for (int i = 0; i < 3 * n; i++) {
		s.v[i] += a[i] * dt;
		s.p[i] += s.v[i] * dt;
	}
}

template <typename T> static void run(int n, int steps, double tol)
{
	typedef typename vec4<T>::t V;
	state s = start(n);
	std::vector<V> p(n), v(n);
	const double dt = 0.01;
	const int block = 64, grid = (n + block - 1) / block;

	for (int i = 0; i < n; i++) {
		p[i] = { (T)s.p[3 * i], (T)s.p[3 * i + 1], (T)s.p[3 * i + 2], (T)s.m[i] };
		v[i] = { (T)s.v[3 * i], (T)s.v[3 * i + 1], (T)s.v[3 * i + 2], 0 };
	}
	V *dp = to_device(p), *dv = to_device(v);
	for (int k = 0; k < steps; k++) {
		kick<T><<<grid, block, block * sizeof(V)>>>(dp, dv, n, (T)dt);
		drift<T><<<grid, block>>>(dp, dv, n, (T)dt);
		host_step(s, n, dt);
	}
	CHECK(cudaGetLastError());
	p = to_host(dp, n);
	for (int i = 0; i < n; i++) {
		EXPECT_NEAR(p[i].x, s.p[3 * i], tol);
		EXPECT_NEAR(p[i].y, s.p[3 * i + 1], tol);
		EXPECT_NEAR(p[i].z, s.p[3 * i + 2], tol);
	}
	sum_vector(p);
	CHECK(cudaFree(dp));
	CHECK(cudaFree(dv));
}

int main()
{
	run<float>(700, 20, 1e-3);
	run<double>(300, 10, 1e-10);
	return job_passed("nbody");
}
