// SPDX-License-Identifier: Apache-2.0
/*
 * idioms.cu - various idioms of CUDA programs: cache hints, counting barriers, copies and fills
 * inside kernels, function objects, kernels of many shapes from templates, extended lambdas.
 */
#include "../job.cuh"

#define N 1000

__global__ void hints(const int *__restrict__ in, int *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	int a = __ldg(in + i), b = __ldcg(in + i), c = __ldca(in + i), d = __ldcs(in + i), e = __ldcv(in + i);
	int4 v = __ldg((const int4 *)in + i / 4);

	__stwb(out + i, a + b);
	__stcg(out + n + i, c + d);
	__stcs(out + 2 * n + i, e + v.x);
	__stwt(out + 3 * n + i, v.y ^ v.z ^ v.w);
}

__global__ void counting(const int *in, int *out)
{
	int v = in[blockIdx.x * blockDim.x + threadIdx.x];
	int n = __syncthreads_count(v % 3 == 0), all = __syncthreads_and(v < 1000), any = __syncthreads_or(v == 7);

	out[blockIdx.x * blockDim.x + threadIdx.x] = n * 4 + all * 2 + any;
}

struct record {
	char name[13];
	short s;
	int v[5];
};

/* memcpy, memset and a variable array inside of a kernel, at any alignment. */
__global__ void inside(const record *in, char *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	char buf[100];
	record r;

	memset(buf, i, sizeof(buf));
	memcpy(buf + 3, &in[i], sizeof(record));
	memcpy(&r, buf + 3, sizeof(record));
	r.v[i % 5] += r.s;
	for (int k = 0; k < 12; k++)
		r.name[k] = r.name[k] >= 'a' ? r.name[k] - 32 : r.name[k];
	memcpy(buf + 50, &r, sizeof(record));
	memcpy(out + i * 97, buf, 97);
}

template <int UNROLL, typename T, bool REVERSE> __global__ void templated(const T *in, T *out, int n)
{
	int base = (blockIdx.x * blockDim.x + threadIdx.x) * UNROLL;

#pragma unroll
	for (int u = 0; u < UNROLL; u++)
		if (base + u < n)
			out[REVERSE ? n - 1 - base - u : base + u] = in[base + u] * (T)(u + 1);
}

__global__ void functions(const int *in, int *out, int n, int which)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	int (*f)(int, int);

	if (i >= n)
		return;
	if ((i + which) % 3 == 0)
		f = [](int x, int) { return x + 10; };
	else if ((i + which) % 3 == 1)
		f = [](int x, int i) { return x * 2 - i; };
	else
		f = [](int x, int) { return -x; };
	out[i] = f(f(in[i], i), i);
}

template <typename F> __global__ void for_each(int n, F f)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		f(i);
}

template <typename T, int D> struct small_vector {
	T v[D];
	__host__ __device__ T &operator[](int i) { return v[i]; }
	__host__ __device__ const T &operator[](int i) const { return v[i]; }
	__host__ __device__ small_vector operator+(const small_vector &o) const
	{
		small_vector r;

		for (int i = 0; i < D; i++)
			r[i] = v[i] + o[i];
		return r;
	}
};

template <int D> static void dimension(void)
{
	typedef small_vector<short, D> V;
	std::vector<V> h(100);
	unsigned int seed = D;

	for (V &x : h)
		for (int i = 0; i < D; i++)
			x[i] = (short)rnd(&seed);
	V *d = to_device(h);
	for_each<<<2, 32>>>(50, [=] __device__(int i) { d[i] = d[i] + d[99 - i]; });
	CHECK(cudaGetLastError());
	std::vector<V> got = to_host(d, 100);
	for (int k = 0; k < 50; k++)
		for (int i = 0; i < D; i++)
			EXPECT_EQ(got[k][i], (short)(h[k][i] + h[99 - k][i]));
	sum_vector(got);
	CHECK(cudaFree(d));
}

template <int U, typename T, bool R> static void one_template(void)
{
	std::vector<T> in(N), got;
	T *out;

	for (int i = 0; i < N; i++)
		in[i] = (T)(i % 100);
	CHECK(cudaMalloc(&out, N * sizeof(T)));
	templated<U, T, R><<<(N + 63) / 64, 64>>>(to_device(in), out, N);
	CHECK(cudaGetLastError());
	got = to_host(out, N);
	for (int i = 0; i < N; i++)
		EXPECT(got[R ? N - 1 - i : i] == (T)(in[i] * (T)(i % U + 1)));
	sum_vector(got);
}

int main()
{
	std::vector<int> in(N), got;
	std::vector<record> rec(N);
	unsigned int seed = 250;
	int *out;
	char *bytes;

	for (int i = 0; i < N; i++) {
		in[i] = rnd(&seed) % 1000;
		memset(&rec[i], 0, sizeof(record));
		snprintf(rec[i].name, sizeof(rec[i].name), "Item %d", i * 37);
		rec[i].s = (short)rnd(&seed);
		for (int &v : rec[i].v)
			v = rnd(&seed);
	}
	int *d = to_device(in);
	CHECK(cudaMalloc(&out, 4 * N * 4));
	hints<<<(N + 127) / 128, 128>>>(d, out, N);
	CHECK(cudaGetLastError());
	got = to_host(out, 4 * N);
	for (int i = 0; i < N; i++) {
		int q = i / 4 * 4;

		EXPECT(got[i] == 2 * in[i] && got[N + i] == 2 * in[i] && got[2 * N + i] == in[i] + in[q] &&
		       got[3 * N + i] == (in[q + 1] ^ in[q + 2] ^ in[q + 3]));
	}
	sum_vector(got);
	counting<<<8, 125>>>(d, out);
	CHECK(cudaGetLastError());
	got = to_host(out, N);
	for (int b = 0; b < 8; b++) {
		int n = 0, any = 0;

		for (int i = b * 125; i < b * 125 + 125; i++) {
			n += in[i] % 3 == 0;
			any |= in[i] == 7;
		}
		for (int i = b * 125; i < b * 125 + 125; i++)
			EXPECT_EQ(got[i], n * 4 + 2 + any);
	}
	CHECK(cudaMalloc(&bytes, N * 97));
	inside<<<(N + 127) / 128, 128>>>(to_device(rec), bytes, N);
	CHECK(cudaGetLastError());
	std::vector<char> back = to_host(bytes, N * 97);
	for (int i = 0; i < N; i++) {
		record r = rec[i];

		r.v[i % 5] += r.s;
		for (char *c = r.name; *c; c++)
			*c = *c >= 'a' ? *c - 32 : *c;
		EXPECT(back[i * 97] == (char)i && back[i * 97 + 96] == (char)i);
		EXPECT(!memcmp(&back[i * 97 + 3], &rec[i], sizeof(record)));
		record q;
		memcpy(&q, &back[i * 97 + 50], sizeof(q));
		EXPECT(!strcmp(q.name, r.name) && q.s == r.s && !memcmp(q.v, r.v, sizeof(r.v)));
	}
	sum_vector(back);
	for (int w = 0; w < 3; w++) {
		functions<<<(N + 127) / 128, 128>>>(d, out, N, w);
		CHECK(cudaGetLastError());
		got = to_host(out, N);
		for (int i = 0; i < N; i++) {
			int x = in[i];

			for (int k = 0; k < 2; k++)
				x = (i + w) % 3 == 0 ? x + 10 : (i + w) % 3 == 1 ? x * 2 - i : -x;
			EXPECT_EQ(got[i], x);
		}
	}
	one_template<1, float, false>();
	one_template<2, double, true>();
	one_template<3, unsigned char, false>();
	one_template<4, int, true>();
	one_template<8, short, true>();
	one_template<7, long long, false>();
	dimension<1>();
	dimension<3>();
	dimension<5>();
	dimension<16>();
	return job_passed("idioms");
}
