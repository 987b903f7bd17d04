// SPDX-License-Identifier: Apache-2.0
/*
 * half.cu - arithmetic of f16 and bf16, single and in pairs, and vector types of all widths.
 *
 * The host's reference computes in double and rounds once to the small type, which is exact for
 * + - * and for the products and sums of fma here (double has more than twice the bits and two).
 */
#include "../job.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define N 4096

/* Rounds to nearest even with the given bits of fraction and range of exponents. */
static double round_to(double x, int bits, int emin, double top)
{
	int e;

	if (x == 0 || !isfinite(x))
		return x;
	frexp(x, &e);
	e = std::max(e - 1, emin) - bits;
	double r = ldexp(nearbyint(ldexp(x, -e)), e);

	return fabs(r) > top ? copysign(INFINITY, x) : r;
}

static double h(double x) { return round_to(x, 10, -14, 65504); }
static double b(double x) { return round_to(x, 7, -126, 3.3895313892515355e38); }

struct results {
	float add, sub, mul, fma, neg, abs, min, max, div;
	int lt, ge, eq, to_int, un;
};

__device__ float up(__half x) { return __half2float(x); }
__device__ float up(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void down(__half *t, float x) { *t = __float2half(x); }
__device__ void down(__nv_bfloat16 *t, float x) { *t = __float2bfloat16(x); }

/* bf16 has an fma of its own from compute capability 8.0 on */
__device__ __half fma_of(__half x, __half y, __half z) { return __hfma(x, y, z); }
__device__ __nv_bfloat16 fma_of(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z)
{
#if __CUDA_ARCH__ >= 800
	return __hfma(x, y, z);
#else
	return __float2bfloat16(fmaf(up(x), up(y), up(z)));
#endif
}

template <typename T> __global__ void singles(const float *in, results *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	results r;
	T x, y, z;

	if (i >= n)
		return;
	down(&x, in[i]);
	down(&y, in[(i + 1) % n]);
	down(&z, in[(i + 2) % n]);
	r.add = up(__hadd(x, y));
	r.sub = up(x - y);
	r.mul = up(x * y);
	r.fma = up(fma_of(x, y, z));
	r.neg = up(-x);
	r.abs = up(__habs(x));
	r.min = up(__hmin(x, y));
	r.max = up(__hmax(x, y));
	r.div = up(x / y);
	r.lt = x < y;
	r.ge = __hge(x, y);
	r.eq = x == y;
	r.un = __hisnan(x);
	r.to_int = (int)up(x);
	out[i] = r;
}

__global__ void pairs(const __half2 *a, const __half2 *c, __half2 *o, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		__half2 s = __hadd2(a[i], c[i]), p = __hmul2(a[i], c[i]), f = __hfma2(a[i], c[i], s);

		o[4 * i] = s;
		o[4 * i + 1] = p;
		o[4 * i + 2] = f;
		o[4 * i + 3] = __halves2half2(__high2half(a[i]), __low2half(c[i]));
	}
}

__global__ void bpairs(const __nv_bfloat162 *a, const __nv_bfloat162 *c, __nv_bfloat162 *o, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		o[3 * i] = __hadd2(a[i], c[i]);
		o[3 * i + 1] = __hmul2(a[i], c[i]);
		o[3 * i + 2] = __halves2bfloat162(fma_of(a[i].x, c[i].x, a[i].x),
						  fma_of(a[i].y, c[i].y, a[i].y));
	}
}

/* All 65536 patterns to float and back; floats to half by every rounding. */
__global__ void patterns(unsigned short *back, float *f, unsigned short *bback, float *bf)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	f[i] = __half2float(__ushort_as_half(i));
	back[i] = __half_as_ushort(__float2half(f[i]));
	bf[i] = __bfloat162float(__ushort_as_bfloat16(i));
	bback[i] = __bfloat16_as_ushort(__float2bfloat16(bf[i]));
}

__global__ void roundings(const float *in, float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		out[4 * i] = __half2float(__float2half_rn(in[i]));
		out[4 * i + 1] = __half2float(__float2half_rz(in[i]));
		out[4 * i + 2] = __half2float(__float2half_ru(in[i]));
		out[4 * i + 3] = __half2float(__float2half_rd(in[i]));
	}
}

struct alignas(16) mixed {
	short4 s;
	uchar4 c;
	float f;
};

__global__ void vectors(const float4 *a, const double2 *d, const uchar4 *c, const mixed *m, float4 *oa,
			double2 *od, uchar4 *oc, mixed *om, longlong2 *ol)
{
	int i = threadIdx.x;
	float4 v = a[i];

	oa[i] = make_float4(v.w, v.z + v.y, v.y * 2, -v.x);
	od[i] = make_double2(d[i].y - d[i].x, d[i].x * d[i].y);
	oc[i] = make_uchar4(c[i].w, c[i].x + c[i].y, c[i].z >> 1, ~c[i].x);
	mixed x = m[i];

	x.s.w += x.s.x;
	x.c.y ^= 0xff;
	x.f *= 3;
	om[i] = x;
	ol[i] = make_longlong2(i * 10000000000ll, -i);
}

static std::vector<float> numbers(void)
{
	std::vector<float> v(N);
	unsigned int seed = 30;

	for (int i = 0; i < N; i++)
		v[i] = ldexpf(rndf(&seed), (int)(rnd(&seed) % 12) - 6);
	v[0] = 0;
	v[1] = -0.0f;
	v[2] = 1;
	v[3] = 6e-8f;		/* the smallest half */
	v[4] = 60000;
	v[5] = 70000;
	v[6] = 1e-5f;
	return v;
}

template <typename T> static void check_singles(const char *what, double (*r)(double))
{
	std::vector<float> in = numbers();
	results *d;

	CHECK(cudaMalloc(&d, N * sizeof(results)));
	singles<T><<<N / 128, 128>>>(to_device(in), d, N);
	CHECK(cudaGetLastError());
	std::vector<results> out = to_host(d, N);
	for (int i = 0; i < N; i++) {
		double x = r(in[i]), y = r(in[(i + 1) % N]), z = r(in[(i + 2) % N]);
		const results &o = out[i];

		if (!isfinite(x) || !isfinite(y) || !isfinite(z))
			continue;
		if (o.add != r(x + y) || o.sub != r(x - y) || o.mul != r(x * y) ||
		    o.neg != -x || o.abs != fabs(x) || o.min != fmin(x, y) || o.max != fmax(x, y)) {
			printf("FAIL half: %s of %.9g %.9g: + %.9g - %.9g * %.9g\n", what, x, y, o.add,
			       o.sub, o.mul);
			exit(1);
		}
		EXPECT(o.fma == r(x * y + z) || (r == b && o.fma == b((float)(x * y + z))));
		/* division need not be rounded right: one unit of 2^-9 or 2^-6 */
		if (y != 0 && fabs(x / y) > 1e-3 && fabs(x / y) < 60000)
			EXPECT(fabs(o.div - x / y) <= fabs(x / y) * (r == h ? 0.002 : 0.016));
		EXPECT(o.lt == (x < y) && o.ge == (x >= y) && o.eq == (x == y) && !o.un);
		EXPECT_EQ(o.to_int, (int)x);
	}
	sum_vector(out);
}

static void check_pairs(void)
{
	std::vector<__half2> a(N), c(N);
	std::vector<__nv_bfloat162> ba(N), bc(N);
	std::vector<float> in = numbers();
	__half2 *o;
	__nv_bfloat162 *bo;

	for (int i = 0; i < N; i++) {
		a[i] = __floats2half2_rn(in[i], in[(i + 7) % N]);
		c[i] = __floats2half2_rn(in[(i + 11) % N], in[(i + 50) % N]);
		ba[i] = __floats2bfloat162_rn(in[i], in[(i + 7) % N]);
		bc[i] = __floats2bfloat162_rn(in[(i + 11) % N], in[(i + 50) % N]);
	}
	CHECK(cudaMalloc(&o, N * 4 * sizeof(*o)));
	CHECK(cudaMalloc(&bo, N * 3 * sizeof(*bo)));
	pairs<<<N / 128, 128>>>(to_device(a), to_device(c), o, N);
	bpairs<<<N / 128, 128>>>(to_device(ba), to_device(bc), bo, N);
	CHECK(cudaGetLastError());
	std::vector<__half2> got = to_host(o, 4 * N);
	std::vector<__nv_bfloat162> bgot = to_host(bo, 3 * N);
	for (int i = 0; i < N; i++)
		for (int k = 0; k < 2; k++) {
			auto of = [&](__half2 v) {
				return (double)(k ? __high2float(v) : __low2float(v));
			};
			auto ofb = [&](__nv_bfloat162 v) {
				return (double)(k ? __high2float(v) : __low2float(v));
			};
			double x = of(a[i]), y = of(c[i]), s = h(x + y);

			if (isfinite(x) && isfinite(y)) {
				EXPECT(of(got[4 * i]) == s && of(got[4 * i + 1]) == h(x * y));
				if (isfinite(s))
					EXPECT(of(got[4 * i + 2]) == h(x * y + s));
			}
			x = ofb(ba[i]), y = ofb(bc[i]);
			EXPECT(ofb(bgot[3 * i]) == b(x + y) && ofb(bgot[3 * i + 1]) == b(x * y) &&
			       (ofb(bgot[3 * i + 2]) == b(x * y + x) ||
				ofb(bgot[3 * i + 2]) == b((float)(x * y + x))));
		}
	for (int i = 0; i < N; i++)
		if (isfinite(__high2float(a[i])) && isfinite(__low2float(c[i])))
			EXPECT(__low2float(got[4 * i + 3]) == __high2float(a[i]) &&
			       __high2float(got[4 * i + 3]) == __low2float(c[i]));
	sum_vector(got);
	sum_vector(bgot);
}

static double half_value(int i)
{
	double m = i & 0x3ff;
	int e = i >> 10 & 31;
	double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

	return i & 0x8000 ? -v : v;
}

static void check_patterns(void)
{
	unsigned short *d;
	float *f;

	CHECK(cudaMalloc(&d, 2 * 65536 * 2));
	CHECK(cudaMalloc(&f, 2 * 65536 * 4));
	patterns<<<256, 256>>>(d, f, d + 65536, f + 65536);
	CHECK(cudaGetLastError());
	std::vector<unsigned short> back = to_host(d, 2 * 65536);
	std::vector<float> v = to_host(f, 2 * 65536);
	for (int i = 0; i < 65536; i++) {
		unsigned int w = (unsigned int)i << 16;
		float bf;

		memcpy(&bf, &w, 4);
		if (isnan(half_value(i))) {
			EXPECT(isnan(v[i]));
		} else {
			EXPECT(v[i] == half_value(i));
			EXPECT_EQ(back[i], i);
		}
		if (isnan(bf)) {
			EXPECT(isnan(v[65536 + i]));
		} else {
			EXPECT(v[65536 + i] == bf);
			EXPECT_EQ(back[65536 + i], i);
		}
	}
	std::vector<float> in = numbers(), out;
	float *o;
	CHECK(cudaMalloc(&o, N * 16));
	roundings<<<N / 128, 128>>>(to_device(in), o, N);
	out = to_host(o, 4 * N);
	for (int i = 0; i < N; i++) {
		float rn = out[4 * i], rz = out[4 * i + 1], ru = out[4 * i + 2], rd = out[4 * i + 3];

		if (fabs(in[i]) > 65504)
			continue;
		EXPECT(rn == h(in[i]) && fabs(rz) <= fabs(in[i]) && ru >= in[i] && rd <= in[i]);
		EXPECT((rn == ru || rn == rd) && (rz == ru || rz == rd));
		EXPECT(h(in[i]) != in[i] || (ru == in[i] && rd == in[i]));
	}
	sum_vector(out);
}

static void check_vectors(void)
{
	std::vector<float4> a(64);
	std::vector<double2> d(64);
	std::vector<uchar4> c(64);
	std::vector<mixed> m(64);
	unsigned int seed = 31;

	for (int i = 0; i < 64; i++) {
		a[i] = make_float4(rndf(&seed), rndf(&seed), rndf(&seed), rndf(&seed));
		d[i] = make_double2(rndf(&seed), rndf(&seed));
		c[i] = make_uchar4(rnd(&seed), rnd(&seed), rnd(&seed), rnd(&seed));
		m[i] = { make_short4(i, 2, 3, -i * 5), c[i], rndf(&seed) };
	}
	float4 *oa = to_device(a), *da = to_device(a);
	double2 *od = to_device(d), *dd = to_device(d);
	uchar4 *oc = to_device(c), *dc = to_device(c);
	mixed *om = to_device(m), *dm = to_device(m);
	longlong2 *ol;
	CHECK(cudaMalloc(&ol, 64 * 16));
	vectors<<<1, 64>>>(da, dd, dc, dm, oa, od, oc, om, ol);
	CHECK(cudaGetLastError());
	std::vector<float4> ga = to_host(oa, 64);
	std::vector<double2> gd = to_host(od, 64);
	std::vector<uchar4> gc = to_host(oc, 64);
	std::vector<mixed> gm = to_host(om, 64);
	std::vector<longlong2> gl = to_host(ol, 64);
	for (int i = 0; i < 64; i++) {
		EXPECT(ga[i].x == a[i].w && ga[i].y == a[i].z + a[i].y && ga[i].z == a[i].y * 2 &&
		       ga[i].w == -a[i].x);
		EXPECT(gd[i].x == d[i].y - d[i].x && gd[i].y == d[i].x * d[i].y);
		EXPECT(gc[i].x == c[i].w && gc[i].y == (unsigned char)(c[i].x + c[i].y) &&
		       gc[i].z == c[i].z >> 1 && gc[i].w == (unsigned char)~c[i].x);
		EXPECT(gm[i].s.w == -4 * i && gm[i].s.z == 3 && gm[i].c.y == (c[i].y ^ 0xff) &&
		       gm[i].f == m[i].f * 3);
		EXPECT(gl[i].x == i * 10000000000ll && gl[i].y == -i);
	}
	sum_vector(ga);
	sum_vector(gm);
}

int main()
{
	check_singles<__half>("f16", h);
	check_singles<__nv_bfloat16>("bf16", b);
	check_pairs();
	check_patterns();
	check_vectors();
	return job_passed("half");
}
