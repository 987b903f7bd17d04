// SPDX-License-Identifier: Apache-2.0
/*
 * math.cu - functions of float and double against the host's within CUDA's documented bounds; rounding,
 * conversions and operations on integers bit by bit.
 */
#include "../job.cuh"

#include <cfenv>
#include <cfloat>
#include <climits>

#define N 2000

#define UNARY(X)						\
	X(sin, 2) X(cos, 2) X(tan, 4) X(exp, 2) X(exp2, 2)	\
	X(expm1, 1) X(log, 1) X(log2, 1) X(log10, 2) X(log1p, 1) \
	X(sqrt, 0) X(cbrt, 1) X(sinh, 3) X(cosh, 2) X(tanh, 2)	\
	X(asin, 2) X(acos, 2) X(atan, 2) X(asinh, 3) X(acosh, 4) \
	X(atanh, 3) X(erf, 2) X(erfc, 6) X(tgamma, 10) X(lgamma, 12) \
	X(floor, 0) X(ceil, 0) X(trunc, 0) X(rint, 0) X(round, 0)

enum {
#define X(f, u) F_##f,
	UNARY(X)
#undef X
	FUNCTIONS
};
static const char *const names[] = {
#define X(f, u) #f,
	UNARY(X)
#undef X
};
static const int ulps[] = {
#define X(f, u) u,
	UNARY(X)
#undef X
};

template <typename T> __device__ T call(int f, T x)
{
	switch (f) {
#define X(f, u) case F_##f: return f(x);
	UNARY(X)
#undef X
	}
	return 0;
}

/* The reference has 64 bits of fraction: glibc's functions of double err by several units themselves. */
static long double reference(int f, long double x)
{
	switch (f) {
#define X(f, u) case F_##f: return std::f(x);
	UNARY(X)
#undef X
	}
	return 0;
}

template <typename T> __global__ void unary(const T *x, T *y, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, f = blockIdx.y;

	if (i < n)
		y[f * n + i] = call<T>(f, x[i]);
}

/* A few numbers that are edges, and many of all sizes. */
template <typename T> static std::vector<T> inputs(void)
{
	std::vector<T> v = { 0, (T)-0.0, 1, -1, 0.5, -0.5, 2, 10, 100, (T)1e-30, (T)1e30, (T)INFINITY,
			     (T)-INFINITY, (T)NAN, (T)1e-42, (T)0.9999999, (T)1.0000001, (T)1.5, (T)2.5,
			     (T)-3.5, (T)88, (T)-87, (T)16777217 };
	unsigned int seed = 100;

	while (v.size() < N)
		v.push_back((T)ldexp(rndf(&seed) + rndf(&seed) / (1 << 24),
				     (int)(rnd(&seed) % 16) - 10));
	return v;
}

static double spacing(double x, bool dbl)
{
	int e;

	x = fabs(x);
	if (x < (dbl ? DBL_MIN : FLT_MIN))
		return dbl ? 4.9406564584124654e-324 : 1.4e-45;
	frexp(x, &e);
	return ldexp(1, e - (dbl ? 53 : 24));
}

template <typename T> static void check_unary(bool dbl)
{
	std::vector<T> x = inputs<T>(), y;
	T *d;

	CHECK(cudaMalloc(&d, FUNCTIONS * N * sizeof(T)));
	unary<T><<<dim3((N + 127) / 128, FUNCTIONS), 128>>>(to_device(x), d, N);
	CHECK(cudaGetLastError());
	y = to_host(d, FUNCTIONS * N);
	for (int f = 0; f < FUNCTIONS; f++)
		for (int i = 0; i < N; i++) {
			double in = x[i], got = y[f * N + i];
			long double want = reference(f, in);
			double w = dbl ? (double)want : (double)(float)want;

			/* near poles of lgamma and far out the bounds are others */
			if ((f == F_lgamma && in < 0) || (f == F_tgamma && in < -1))
				continue;
			bool ok = isnan(w) ? isnan(got) : isinf(w) || w == 0 ?
				  got == w || fabs(got - w) <= 2 * spacing(0, dbl) :
				  fabsl(got - want) <= (ulps[f] + 0.5) * spacing(w, dbl);
			if (isinf(w) && !dbl && fabs(got) > 3e38)
				ok = true;
			if (!ok) {
				printf("FAIL math: %s%s(%.17g) is %.17g, not %.17g\n", names[f],
				       dbl ? "" : "f", in, got, w);
				exit(1);
			}
		}
	sum_vector(y);
	CHECK(cudaFree(d));
}

/* The four roundings of + * / sqrt fma, and conversions. */
__global__ void rounded(const float *x, float *o, const double *xd, double *od, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	float a = x[i], b = x[(i + 1) % n], c = x[(i + 2) % n];
	double e = xd[i], f = xd[(i + 1) % n], g = xd[(i + 2) % n];

	o += i * 20;
	od += i * 20;
#define ALL(r, k)						\
	o[k] = __fadd_##r(a, b);				\
	o[4 + k] = __fmul_##r(a, b);				\
	o[8 + k] = __fdiv_##r(a, b);				\
	o[12 + k] = __fsqrt_##r(fabsf(a));			\
	o[16 + k] = __fmaf_##r(a, b, c);			\
	od[k] = __dadd_##r(e, f);				\
	od[4 + k] = __dmul_##r(e, f);				\
	od[8 + k] = __ddiv_##r(e, f);				\
	od[12 + k] = __dsqrt_##r(fabs(e));			\
	od[16 + k] = __fma_##r(e, f, g);
	ALL(rn, 0)
	ALL(rz, 1)
	ALL(ru, 2)
	ALL(rd, 3)
}

static volatile double vd1, vd2, vd3;
static volatile float vf1, vf2, vf3;

static void check_rounded(void)
{
	static const int modes[4] = { FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD };
	std::vector<float> x(N), o;
	std::vector<double> xd(N), od;
	unsigned int seed = 101;
	float *d;
	double *dd;

	for (int i = 0; i < N; i++) {
		x[i] = ldexpf(rndf(&seed), (int)(rnd(&seed) % 10) - 5);
		xd[i] = ldexp(rndf(&seed) + rndf(&seed) * 1e-9, (int)(rnd(&seed) % 10) - 5);
	}
	CHECK(cudaMalloc(&d, N * 80));
	CHECK(cudaMalloc(&dd, N * 160));
	rounded<<<(N + 127) / 128, 128>>>(to_device(x), d, to_device(xd), dd, N);
	CHECK(cudaGetLastError());
	o = to_host(d, N * 20);
	od = to_host(dd, N * 20);
	for (int k = 0; k < 4; k++) {
		fesetround(modes[k]);
		for (int i = 0; i < N; i++) {
			float w[5];
			double wd[5];

			vf1 = x[i], vf2 = x[(i + 1) % N], vf3 = x[(i + 2) % N];
			vd1 = xd[i], vd2 = xd[(i + 1) % N], vd3 = xd[(i + 2) % N];
			w[0] = vf1 + vf2;
			w[1] = vf1 * vf2;
			w[2] = vf1 / vf2;
			w[3] = sqrtf(fabsf(vf1));
			w[4] = fmaf(vf1, vf2, vf3);
			wd[0] = vd1 + vd2;
			wd[1] = vd1 * vd2;
			wd[2] = vd1 / vd2;
			wd[3] = sqrt(fabs(vd1));
			wd[4] = fma(vd1, vd2, vd3);
			for (int q = 0; q < 5; q++)
				if (o[i * 20 + q * 4 + k] != w[q] || od[i * 20 + q * 4 + k] != wd[q]) {
					fesetround(FE_TONEAREST);
					printf("FAIL math: rounding %d, operation %d of %.9g %.9g: "
					       "%.9g not %.9g, %.17g not %.17g\n", k, q, vf1, vf2,
					       o[i * 20 + q * 4 + k], w[q], od[i * 20 + q * 4 + k],
					       wd[q]);
					exit(1);
				}
		}
	}
	fesetround(FE_TONEAREST);
	sum_vector(o);
	sum_vector(od);
}

struct ints {
	int clz, popc, ffs, brev, mulhi, sad, hadd, rhadd, mul24, perm, abs, min;
	unsigned int umulhi, usad, shf_l, shf_r, dp4a, vadd, dp2a;
	int clzll, popcll, ffsll, div, rem, sh;
	unsigned long long brevll, mulhill, udiv, urem, shl, shr;
	long long sdiv, srem, asr, f2ll;
	int f2i_rn, f2i_rz, f2i_ru, f2i_rd, f2u, d2i, bits;
	unsigned int d2u, hi, lo;
	float i2f, u2f, ll2f, ll2f_rz, fromb;
	double ll2d, ull2d, i2d;
	short s;
	unsigned char c;
	signed char sc;
};

__global__ void integers(const unsigned long long *x, ints *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	unsigned long long a = x[i], b = x[(i + 1) % n];
	unsigned int u = a, v = b, w = a >> 32;
	int s = u, t = v;
	ints o;

	memset(&o, 0, sizeof(o));
	o.clz = __clz(s >> (t & 31));
	o.popc = __popc(u);
	o.ffs = __ffs(u << (v & 31));
	o.brev = __brev(u);
	o.mulhi = __mulhi(s, t);
	o.umulhi = __umulhi(u, v);
	o.sad = __sad(s, t, w);
	o.usad = __usad(u, v, w);
	o.hadd = __hadd(s, t);
	o.rhadd = __rhadd(s, t);
	o.mul24 = __mul24(s, t);
	o.perm = __byte_perm(u, v, w & 0x7777);
	o.abs = abs(s);
	o.min = min(s, t) ^ max(u, v);
	o.shf_l = __funnelshift_l(u, v, w);
	o.shf_r = __funnelshift_rc(u, v, w);
	o.dp4a = __dp4a(s, t, (int)w);
	o.dp2a = __dp2a_lo(s, t, (int)w);
	o.vadd = __vadd4(u, v);
	o.clzll = __clzll(a >> (v & 63));
	o.popcll = __popcll(a);
	o.ffsll = __ffsll(a << (v & 63));
	o.brevll = __brevll(a);
	o.mulhill = __umul64hi(a, b);
	o.div = t ? s / t : 0;
	o.rem = t ? s % t : 0;
	o.udiv = b >> 40 ? a / (b >> 40) : 0;
	o.urem = b ? a % b : 0;
	o.sdiv = (long long)a / ((long long)(b >> 33) + 1);
	o.srem = (long long)a % ((long long)(b >> 20) + 1);
	o.shl = a << (v & 63);
	o.shr = a >> (v & 63);
	o.asr = (long long)a >> (v & 63);
	o.sh = s >> (v & 31);
	float f = (float)(s >> 4) / 64;
	o.f2i_rn = __float2int_rn(f);
	o.f2i_rz = __float2int_rz(f);
	o.f2i_ru = __float2int_ru(f);
	o.f2i_rd = __float2int_rd(f);
	o.f2u = __float2uint_rz(f);		/* negative ones become 0 */
	o.f2ll = __float2ll_rn(f * 1e6f);
	double d = (double)(long long)a;
	o.d2i = __double2int_rz(d / 4e9);
	o.d2u = __double2uint_rn(d);		/* too large ones the largest */
	o.bits = __float_as_int(f);
	o.fromb = __int_as_float((u & 0x7fffff) | 0x3f800000);
	o.hi = __double2hiint(d);
	o.lo = __double2loint(d);
	o.i2f = (float)s;
	o.u2f = (float)u;
	o.ll2f = (float)(long long)a;
	o.ll2f_rz = __ll2float_rz((long long)a);
	o.ll2d = (double)(long long)a;
	o.ull2d = (double)a;
	o.i2d = s;
	o.s = (short)s;
	o.c = (unsigned char)(u + v);
	o.sc = (signed char)(u * v);
	out[i] = o;
}

static long long clamp_ll(double x, double lo, double hi)
{
	return x < lo ? (long long)lo : x > hi ? (long long)hi : (long long)x;
}

static void check_integers(void)
{
	std::vector<unsigned long long> x(N);
	unsigned int seed = 102;
	ints *d;

	for (int i = 0; i < N; i++)
		x[i] = ((unsigned long long)rnd(&seed) << 40 ^ (unsigned long long)rnd(&seed) << 20 ^
			rnd(&seed)) >> (i % 5 * 11);
	x[3] = 0;
	x[5] = ~0ull;
	x[7] = 1ull << 63;
	CHECK(cudaMalloc(&d, N * sizeof(ints)));
	integers<<<(N + 127) / 128, 128>>>(to_device(x), d, N);
	CHECK(cudaGetLastError());
	std::vector<ints> out = to_host(d, N);
	for (int i = 0; i < N; i++) {
		unsigned long long a = x[i], b = x[(i + 1) % N];
		unsigned int u = a, v = b, w = a >> 32, m;
		int s = u, t = v;
		const ints &o = out[i];

		m = (unsigned int)(s >> (t & 31));
		EXPECT_EQ(o.clz, m ? __builtin_clz(m) : 32);
		EXPECT_EQ(o.popc, __builtin_popcount(u));
		EXPECT_EQ(o.ffs, __builtin_ffs(u << (v & 31)));
		EXPECT_EQ(o.mulhi, (int)((long long)s * t >> 32));
		EXPECT_EQ(o.umulhi, (unsigned int)((unsigned long long)u * v >> 32));
		EXPECT_EQ((unsigned int)o.sad, (unsigned int)llabs((long long)s - t) + w);
		EXPECT_EQ(o.usad, (unsigned int)(u > v ? u - v : v - u) + w);
		EXPECT_EQ(o.hadd, (int)(((long long)s + t) >> 1));
		EXPECT_EQ(o.rhadd, (int)(((long long)s + t + 1) >> 1));
		EXPECT_EQ((unsigned int)o.mul24, (unsigned int)((long long)(s << 8 >> 8) * (t << 8 >> 8)));
		unsigned int perm = 0, vadd = 0, dp4a = w, rev = 0;
		for (int k = 0; k < 4; k++) {
			int sel = w >> (4 * k) & 7;

			perm |= ((sel < 4 ? u >> (8 * sel) : v >> (8 * (sel - 4))) & 255) << (8 * k);
			vadd |= ((u >> (8 * k)) + (v >> (8 * k)) & 255) << (8 * k);
			dp4a += (signed char)(u >> (8 * k)) * (signed char)(v >> (8 * k));
		}
		for (int k = 0; k < 32; k++)
			rev |= (u >> k & 1) << (31 - k);
		EXPECT_EQ((unsigned int)o.perm, perm);
		EXPECT_EQ(o.vadd, vadd);
		EXPECT_EQ(o.dp4a, dp4a);
		EXPECT_EQ(o.dp2a, w + (short)u * (signed char)v + (short)(u >> 16) * (signed char)(v >> 8));
		EXPECT_EQ((unsigned int)o.brev, rev);
		EXPECT_EQ((unsigned int)o.abs, s < 0 ? -(unsigned int)s : u);
		EXPECT_EQ((unsigned int)o.min, (unsigned int)std::min(s, t) ^ std::max(u, v));
		unsigned long long vu = (unsigned long long)v << 32 | u;
		EXPECT_EQ(o.shf_l, (unsigned int)(vu << (w & 31) >> 32));
		EXPECT_EQ(o.shf_r, (unsigned int)(vu >> (w > 32 ? 32 : w)));
		EXPECT_EQ(o.clzll, a >> (v & 63) ? __builtin_clzll(a >> (v & 63)) : 64);
		EXPECT_EQ(o.popcll, __builtin_popcountll(a));
		EXPECT_EQ(o.ffsll, __builtin_ffsll(a << (v & 63)));
		EXPECT_EQ(o.mulhill, (unsigned long long)((unsigned __int128)a * b >> 64));
		if (t && !(t == -1 && s == INT_MIN)) {
			EXPECT_EQ(o.div, s / t);
			EXPECT_EQ(o.rem, s % t);
		}
		EXPECT_EQ(o.udiv, b >> 40 ? a / (b >> 40) : 0);
		EXPECT_EQ(o.urem, b ? a % b : 0);
		EXPECT_EQ(o.sdiv, (long long)a / ((long long)(b >> 33) + 1));
		EXPECT_EQ(o.srem, (long long)a % ((long long)(b >> 20) + 1));
		EXPECT(o.shl == a << (v & 63) && o.shr == a >> (v & 63) &&
		       o.asr == (long long)a >> (v & 63) && o.sh == s >> (v & 31));
		float f = (float)(s >> 4) / 64;
		EXPECT_EQ(o.f2i_rn, (int)nearbyintf(f));
		EXPECT_EQ(o.f2i_rz, (int)f);
		EXPECT_EQ(o.f2i_ru, (int)ceilf(f));
		EXPECT_EQ(o.f2i_rd, (int)floorf(f));
		EXPECT_EQ(o.f2u, f < 0 ? 0 : (unsigned int)f);
		EXPECT_EQ(o.f2ll, (long long)nearbyintf(f * 1e6f));
		double dd = (double)(long long)a;
		EXPECT_EQ(o.d2i, (int)clamp_ll(dd / 4e9, -2147483648.0, 2147483647.0));
		EXPECT_EQ(o.d2u, (unsigned int)clamp_ll(dd, 0, 4294967295.0));
		int bits;
		unsigned long long dbits;
		memcpy(&bits, &f, 4);
		memcpy(&dbits, &dd, 8);
		EXPECT(o.bits == bits && o.hi == dbits >> 32 && o.lo == (unsigned int)dbits);
		EXPECT(o.fromb >= 1 && o.fromb < 2);
		EXPECT(o.i2f == (float)s && o.u2f == (float)u && o.ll2f == (float)(long long)a &&
		       fabs((double)o.ll2f_rz) <= fabs(dd) && o.ll2d == dd && o.ull2d == (double)a &&
		       o.i2d == s);
		EXPECT(o.s == (short)s && o.c == (unsigned char)(u + v) && o.sc == (signed char)(u * v));
	}
	sum_vector(out);
}

int main()
{
	check_unary<float>(false);
	check_unary<double>(true);
	check_rounded();
	check_integers();
	return job_passed("math");
}
