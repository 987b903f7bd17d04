// SPDX-License-Identifier: Apache-2.0
/*
 * cufft.cu - cuFFT: transforms of one to three dimensions, real and complex, of lengths with small
 * and large prime factors, in batches and with strides, of 16-bit types, and with functions of the
 * program linked into them, against sums in double precision.
 */
#include "lib.cuh"

#include <cufftXt.h>
#include <nvrtc.h>

/* A complex value of a precision, the type of a plan and the calls that run it. */
template <typename R> struct precision;
template <> struct precision<float> {
	typedef cufftComplex value;
	static constexpr cufftType c2c = CUFFT_C2C, r2c = CUFFT_R2C, c2r = CUFFT_C2R;
	static cufftResult forth(cufftHandle p, value *i, value *o, int d)
	{
		return cufftExecC2C(p, i, o, d);
	}
	static cufftResult real(cufftHandle p, float *i, value *o) { return cufftExecR2C(p, i, o); }
	static cufftResult back(cufftHandle p, value *i, float *o) { return cufftExecC2R(p, i, o); }
};
template <> struct precision<double> {
	typedef cufftDoubleComplex value;
	static constexpr cufftType c2c = CUFFT_Z2Z, r2c = CUFFT_D2Z, c2r = CUFFT_Z2D;
	static cufftResult forth(cufftHandle p, value *i, value *o, int d)
	{
		return cufftExecZ2Z(p, i, o, d);
	}
	static cufftResult real(cufftHandle p, double *i, value *o) { return cufftExecD2Z(p, i, o); }
	static cufftResult back(cufftHandle p, value *i, double *o) { return cufftExecZ2D(p, i, o); }
};

/* The discrete Fourier transform along one axis of a box n[0] x n[1] x n[2], by its definition. */
static void axis(std::vector<cplx> &v, const int n[3], int which, int sign)
{
	int len = n[which], stride = which == 2 ? 1 : which == 1 ? n[2] : n[1] * n[2];
	std::vector<cplx> w(len), line(len);

	for (int k = 0; k < len; k++)
		w[k] = std::polar(1.0, sign * 2 * M_PI * k / len);
	for (int at = 0; at < (int)v.size(); at++) {
		if (at / stride % len)
			continue;
		for (int k = 0; k < len; k++) {
			cplx s = 0;

			for (int j = 0; j < len; j++)
				s += v[at + j * stride] * w[(long long)j * k % len];
			line[k] = s;
		}
		for (int k = 0; k < len; k++)
			v[at + k * stride] = line[k];
	}
}

static std::vector<cplx> transform(std::vector<cplx> v, const int n[3], int sign)
{
	for (int i = 0; i < 3; i++)
		if (n[i] > 1)
			axis(v, n, i, sign);
	return v;
}

/*
 * A transform errs by about u log2(n) times the root mean square of its results; 8 of those are
 * allowed, which a prime length (by Bluestein's or Rader's way, which transforms three times) needs.
 */
template <typename R> static double allowed(const std::vector<cplx> &want)
{
	double squares = 0;

	for (const cplx &c : want)
		squares += std::norm(c);
	return 8 * type_of<R>::unit * (2 + log2(want.size())) * sqrt(squares / want.size()) + 1e-300;
}

template <typename R> static std::vector<cplx> wide(const R *v, size_t n)
{
	std::vector<cplx> w(n);

	for (size_t i = 0; i < n; i++)
		w[i] = value(v[i]);
	return w;
}

/* Complex to complex, forward and back, batch boxes one behind the other. */
template <typename R> static void complex_box(int nx, int ny, int nz, int batch)
{
	typedef precision<R> P;
	int n[3] = { nx, ny, nz }, rank = nx > 1 ? 3 : ny > 1 ? 2 : 1, box = nx * ny * nz;
	std::vector<typename P::value> x = random_values<typename P::value>(box * batch), got, back;
	typename P::value *in = to_device(x), *out = to_device(x);
	cufftHandle plan;

	LIB(cufftPlanMany(&plan, rank, n + 3 - rank, NULL, 1, box, NULL, 1, box, P::c2c, batch));
	LIB(P::forth(plan, in, out, CUFFT_FORWARD));
	got = results(out, x.size());
	LIB(P::forth(plan, out, out, CUFFT_INVERSE));
	back = results(out, x.size());
	for (int b = 0; b < batch; b++) {
		std::vector<cplx> from = wide(&x[b * box], box), want = transform(from, n, -1);
		double bound = allowed<R>(want);

		for (int i = 0; i < box; i++)
			near_enough("forward", b * box + i, value(got[b * box + i]), want[i], bound);
		bound = 2 * allowed<R>(from) * box;
		for (int i = 0; i < box; i++)
			near_enough("inverse", b * box + i, value(back[b * box + i]),
				    (double)box * from[i], bound);
	}
	LIB(cufftDestroy(plan));
	CHECK(cudaFree(in));
	CHECK(cudaFree(out));
}

/* Real to half a spectrum, and back. */
template <typename R> static void real_box(int nx, int ny, int nz)
{
	typedef precision<R> P;
	int n[3] = { nx, ny, nz }, rank = nx > 1 ? 3 : ny > 1 ? 2 : 1, box = nx * ny * nz;
	int half = nz / 2 + 1, spectrum = nx * ny * half;
	std::vector<R> x = random_values<R>(box), back;
	std::vector<typename P::value> got(spectrum);
	R *in = to_device(x);
	typename P::value *out = to_device(got);
	cufftHandle there, again;

	LIB(cufftPlanMany(&there, rank, n + 3 - rank, NULL, 1, 0, NULL, 1, 0, P::r2c, 1));
	LIB(cufftPlanMany(&again, rank, n + 3 - rank, NULL, 1, 0, NULL, 1, 0, P::c2r, 1));
	LIB(P::real(there, in, out));
	got = results(out, spectrum);
	LIB(P::back(again, out, in));
	back = results(in, box);
	std::vector<cplx> from = wide(x.data(), box), want = transform(from, n, -1);
	double bound = allowed<R>(want);
	for (int i = 0; i < spectrum; i++)
		near_enough("real", i, value(got[i]), want[i / half * nz + i % half], bound);
	bound = 2 * allowed<R>(from) * box;
	for (int i = 0; i < box; i++)
		near_enough("real back", i, back[i], (double)box * x[i], bound);
	LIB(cufftDestroy(there));
	LIB(cufftDestroy(again));
	CHECK(cudaFree(in));
	CHECK(cudaFree(out));
}

/* Columns of a matrix: elements stride apart, one transform for each column. */
static void columns(int len, int count)
{
	std::vector<cufftComplex> x = random_values<cufftComplex>(len * count), got;
	cufftComplex *d = to_device(x);
	cufftHandle plan;
	int n[3] = { 1, 1, len };

	LIB(cufftPlanMany(&plan, 1, &len, &len, count, 1, &len, count, 1, CUFFT_C2C, count));
	LIB(cufftExecC2C(plan, d, d, CUFFT_FORWARD));
	got = results(d, x.size());
	for (int c = 0; c < count; c++) {
		std::vector<cplx> from(len), want;

		for (int i = 0; i < len; i++)
			from[i] = value(x[i * count + c]);
		want = transform(from, n, -1);
		for (int i = 0; i < len; i++)
			near_enough("column", i * count + c, value(got[i * count + c]), want[i],
				    allowed<float>(want));
	}
	LIB(cufftDestroy(plan));
	CHECK(cudaFree(d));
}

/* Complex numbers of 16-bit halves: lengths are powers of two. */
template <typename E> static void narrow(int nx, int len, int batch, cudaDataType_t type)
{
	int n[3] = { 1, nx, len }, box = nx * len;
	long long dims[2] = { nx, len };
	std::vector<E> x = random_values<E>(2 * box * batch), got, back;
	E *in = to_device(x), *out = to_device(x);
	cufftHandle plan;
	size_t work;

	LIB(cufftCreate(&plan));
	LIB(cufftXtMakePlanMany(plan, nx > 1 ? 2 : 1, dims + (nx == 1), NULL, 1, box, type, NULL, 1, box,
				type, batch, &work, type));
	LIB(cufftXtExec(plan, in, out, CUFFT_FORWARD));
	got = results(out, x.size());
	for (int b = 0; b < batch; b++) {
		std::vector<cplx> from(box), want;

		for (int i = 0; i < box; i++)
			from[i] = cplx(value(x[2 * (b * box + i)]).real(), value(x[2 * (b * box + i) + 1]).real());
		want = transform(from, n, -1);
		for (int i = 0; i < box; i++) {
			E *at = &got[2 * (b * box + i)];

			near_enough("narrow", b * box + i, cplx(value(at[0]).real(), value(at[1]).real()),
				    want[i], allowed<E>(want));
		}
	}
	LIB(cufftDestroy(plan));
	CHECK(cudaFree(in));
	CHECK(cudaFree(out));
}

#if CUFFT_VERSION >= 12000	/* before, the call took no name */
/*
 * Functions that cuFFT links into its kernels: one scales what is loaded, one conjugates what is stored.
 * Each is a program of its own, as cuFFT links both.
 */
static const char scaled[] =
	"__device__ float2 scaled(void *in, unsigned long long at, void *info, void *)\n"
	"{ float2 v = ((float2 *)in)[at]; float s = *(float *)info; v.x *= s; v.y *= s; return v; }\n";
static const char conjugate[] =
	"__device__ void conjugate(void *out, unsigned long long at, float2 v, void *, void *)\n"
	"{ v.y = -v.y; ((float2 *)out)[at] = v; }\n";

static std::vector<char> intermediate(const char *text)
{
	const char *opts[] = { "-dlto", "--relocatable-device-code=true", "-arch=compute_75" };
	std::vector<char> code;
	nvrtcProgram p;
	size_t n;

	LIB(nvrtcCreateProgram(&p, text, "callbacks.cu", 0, NULL, NULL));
	LIB(nvrtcCompileProgram(p, 3, opts));
	LIB(nvrtcGetLTOIRSize(p, &n));
	code.resize(n);
	LIB(nvrtcGetLTOIR(p, code.data()));
	LIB(nvrtcDestroyProgram(&p));
	return code;
}

static void with_callbacks(int len, int batch)
{
	std::vector<cufftComplex> x = random_values<cufftComplex>(len * batch), got;
	std::vector<char> load = intermediate(scaled), store = intermediate(conjugate);
	cufftComplex *in = to_device(x), *out = to_device(x);
	std::vector<float> half(1, 0.5f);
	float *scale = to_device(half);
	int n[3] = { 1, 1, len };
	cufftHandle plan;
	size_t work;

	LIB(cufftCreate(&plan));
	LIB(cufftXtSetJITCallback(plan, "scaled", load.data(), load.size(), CUFFT_CB_LD_COMPLEX,
				  (void **)&scale));
	LIB(cufftXtSetJITCallback(plan, "conjugate", store.data(), store.size(), CUFFT_CB_ST_COMPLEX,
				  NULL));
	LIB(cufftMakePlan1d(plan, len, CUFFT_C2C, batch, &work));
	LIB(cufftExecC2C(plan, in, out, CUFFT_FORWARD));
	got = results(out, x.size());
	for (int b = 0; b < batch; b++) {
		std::vector<cplx> want = transform(wide(&x[b * len], len), n, -1);
		double bound = allowed<float>(want);

		for (int i = 0; i < len; i++)
			near_enough("callbacks", b * len + i, value(got[b * len + i]),
				    0.5 * std::conj(want[i]), bound);
	}
	LIB(cufftDestroy(plan));
	CHECK(cudaFree(in));
	CHECK(cudaFree(out));
	CHECK(cudaFree(scale));
}

#else
static void with_callbacks(int, int) { }
#endif

int main(int argc, char **argv)
{
	static const int lengths[] = { 2, 7, 16, 60, 97, 128, 210, 343, 1000, 1009, 2048, 2187 };

	complex_box<float>(1, 1, 256, 3);
	real_box<float>(1, 1, 128);
	narrow<__half>(1, 64, 2, CUDA_C_16F);
	if (!lib_arg(argc, argv, "fast")) {
		for (int n : lengths)
			complex_box<float>(1, 1, n, 2);
		for (int n : { 64, 100, 101, 1024 })
			complex_box<double>(1, 1, n, 2);
		for (int n : { 30, 96, 121, 512 })
			real_box<float>(1, 1, n);
		real_box<double>(1, 1, 200);
		complex_box<float>(1, 24, 32, 2);
		complex_box<double>(1, 15, 16, 1);
		complex_box<float>(8, 12, 10, 1);
		real_box<float>(1, 20, 36);
		real_box<double>(6, 10, 16);
		columns(48, 5);
		narrow<__half>(1, 256, 3, CUDA_C_16F);
		narrow<__half>(16, 32, 1, CUDA_C_16F);
		narrow<__nv_bfloat16>(1, 128, 2, CUDA_C_16BF);
		with_callbacks(64, 2);
		with_callbacks(1000, 1);
	}
	return job_passed("cufft");
}
