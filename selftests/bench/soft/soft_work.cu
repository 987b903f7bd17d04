// SPDX-License-Identifier: Apache-2.0
/*
 * soft_work.cu - the work of the soft device's bench: products, a convolution and a triad, in turns
 * on the device and by this CPU's own code
 *
 *   soft_work TURNS OPENBLAS
 *
 * Prints a line "NAME value" for each turn. It runs in direct mode, so that device and CPU code run
 * in one process on the same processors. Results are compared: a fast but wrong result does not
 * count.
 */
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cudnn.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sched.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#define CHECK(...) do {							\
	int _s = (int)(__VA_ARGS__);					\
	if (_s) {							\
		printf("%s:%d: %s: status %d\n", __FILE__, __LINE__, #__VA_ARGS__, _s); \
		exit(1);						\
	}								\
} while (0)

#define N 1024			/* of a product */
#define TRIAD (8 << 20)		/* elements of a vector: three of 64 MiB, more than any cache */
#define C_IN 64			/* the convolution: 64 to 64 channels, 3 x 3, on 8 pictures of 32 x 32 */
#define C_PIC 32
#define C_BATCH 8

/* cblas.h's, so that the library is needed only when the bench runs. */
typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
			 int lda, const float *b, int ldb, float beta, float *c, int ldc);

struct spent {			/* seconds of the clock, and of all threads' processors */
	double wall, cpu;
};

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* What f takes, on the device or off it. */
template <typename F> static spent timed(F f)
{
	spent s;

	CHECK(cudaDeviceSynchronize());
	s = { seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID) };
	f();
	CHECK(cudaDeviceSynchronize());
	return { seconds(CLOCK_MONOTONIC) - s.wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - s.cpu };
}

/* @work in 1e9: by the clock; and by processors' time, which others on the machine do not take away. */
static void tell(const char *name, double work, spent s)
{
	printf("%s %g\n%s_cpu %g\n", name, work / s.wall, name, work / s.cpu);
	fflush(stdout);
}

template <typename T> static T *on_device(const std::vector<T> &v)
{
	T *p;

	CHECK(cudaMalloc(&p, v.size() * sizeof(T)));
	CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
	return p;
}

static std::vector<float> noise(size_t n, unsigned int seed)
{
	std::vector<float> v(n);

	for (auto &x : v) {
		seed = seed * 1664525 + 1013904223;
		x = (int)(seed >> 8) / 8388608.f - 1;
	}
	return v;
}

static void close_to(const char *what, const std::vector<float> &want, const float *dev, double tol)
{
	std::vector<float> got(want.size());
	double worst = 0;

	CHECK(cudaMemcpy(got.data(), dev, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < want.size(); i++)
		worst = fmax(worst, fabs(want[i] - got[i]));
	if (!(worst <= tol)) {
		printf("%s: off by %g\n", what, worst);
		exit(1);
	}
}

__global__ void triad(double *a, const double *b, const double *c, double s, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		a[i] = b[i] + s * c[i];
}

/* STREAM's triad, on as many threads as there are processors for us. */
static void host_triad(std::vector<double> &a, const std::vector<double> &b,
			 const std::vector<double> &c, double s)
{
	std::vector<std::thread> threads;
	cpu_set_t set;
	int n;

	sched_getaffinity(0, sizeof(set), &set);
	n = CPU_COUNT(&set);
	for (int k = 0; k < n; k++)
		threads.emplace_back([&, k] {
			double *__restrict x = a.data();
			const double *y = b.data(), *z = c.data();
			size_t end = a.size() * (k + 1) / n;

			for (size_t i = a.size() * k / n; i < end; i++)
				x[i] = y[i] + s * z[i];
		});
	for (auto &th : threads)
		th.join();
}

static void products(cublasHandle_t blas, sgemm_fn sgemm, int turns)
{
	std::vector<float> a = noise(N * N, 1), b = noise(N * N, 2), c(N * N);
	std::vector<__nv_bfloat16> ha(N * N), hb(N * N);
	float *da = on_device(a), *db = on_device(b), *dc = on_device(c);
	const float one = 1, zero = 0;
	const double flop = 2.0 * N * N * N / 1e9;
	__nv_bfloat16 *xa, *xb;

	for (int i = 0; i < N * N; i++) {
		ha[i] = a[i];
		hb[i] = b[i];
	}
	xa = on_device(ha);
	xb = on_device(hb);
	for (int t = -1; t < turns; t++) {	/* the first one compiles */
		spent s[3];

		s[0] = timed([&] {
			sgemm(102, 111, 111, N, N, N, 1, a.data(), N, b.data(), N, 0, c.data(), N);
		});
		usleep(100000);		/* its threads look for more work for a while */
		s[1] = timed([&] {
			CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, da, N, db, N,
					  &zero, dc, N));
		});
		if (t < 0)
			close_to("sgemm", c, dc, 1e-2);
		s[2] = timed([&] {
			CHECK(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, xa,
					   CUDA_R_16BF, N, xb, CUDA_R_16BF, N, &zero, dc, CUDA_R_32F, N,
					   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
		});
		if (t < 0) {
			close_to("bf16 product", c, dc, 2);
			continue;
		}
		tell("cpu.sgemm", flop, s[0]);
		tell("soft.sgemm", flop, s[1]);
		tell("soft.bf16", flop, s[2]);
	}
}

static void convolution(int turns)
{
	const int pic = C_PIC * C_PIC, size = C_BATCH * C_IN * pic;
	std::vector<float> x = noise(size, 3), w = noise(C_IN * C_IN * 9, 4);
	float *dx = on_device(x), *dw = on_device(w), *dy = on_device(x);
	const float one = 1, zero = 0;
	cudnnConvolutionDescriptor_t conv;
	cudnnTensorDescriptor_t t;
	cudnnFilterDescriptor_t f;
	cudnnHandle_t dnn;
	size_t bytes;
	void *space;
	const cudnnConvolutionFwdAlgo_t algo = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

	CHECK(cudnnCreate(&dnn));
	CHECK(cudnnCreateTensorDescriptor(&t));
	CHECK(cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, C_BATCH, C_IN, C_PIC,
					 C_PIC));
	CHECK(cudnnCreateFilterDescriptor(&f));
	CHECK(cudnnSetFilter4dDescriptor(f, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, C_IN, C_IN, 3, 3));
	CHECK(cudnnCreateConvolutionDescriptor(&conv));
	CHECK(cudnnSetConvolution2dDescriptor(conv, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
					      CUDNN_DATA_FLOAT));
	CHECK(cudnnSetConvolutionMathType(conv, CUDNN_FMA_MATH));
	CHECK(cudnnGetConvolutionForwardWorkspaceSize(dnn, t, f, conv, t, algo, &bytes));
	CHECK(cudaMalloc(&space, bytes + 1));
	for (int i = -1; i < turns; i++) {
		spent s = timed([&] {
			CHECK(cudnnConvolutionForward(dnn, &one, t, dx, f, dw, conv, algo, space, bytes,
						      &zero, t, dy));
		});

		if (i >= 0)
			tell("soft.conv", 2.0 * size * C_IN * 9 / 1e9, s);
	}
	/* one element of the middle, by hand */
	{
		float got;
		double want = 0;
		int at = (C_PIC / 2) * C_PIC + C_PIC / 2;

		for (int c = 0; c < C_IN; c++)
			for (int k = 0; k < 9; k++)
				want += (double)w[c * 9 + k] *
					x[c * pic + at + (k / 3 - 1) * C_PIC + k % 3 - 1];
		CHECK(cudaMemcpy(&got, dy + at, sizeof(got), cudaMemcpyDeviceToHost));
		if (!(fabs(got - want) < 1e-2)) {
			printf("convolution: %g, not %g\n", got, want);
			exit(1);
		}
	}
}

static void triads(int turns)
{
	std::vector<double> a(TRIAD), b(TRIAD, 2), c(TRIAD, 3);
	double *da = on_device(a), *db = on_device(b), *dc = on_device(c), last;

	for (int t = -1; t < turns; t++) {
		spent host = timed([&] {
			host_triad(a, b, c, 0.5);
		});
		spent dev = timed([&] {
			triad<<<TRIAD / 256, 256>>>(da, db, dc, 0.5, TRIAD);
		});

		if (t < 0)
			continue;
		tell("cpu.triad", 24e-9 * TRIAD, host);
		tell("soft.triad", 24e-9 * TRIAD, dev);
	}
	CHECK(cudaMemcpy(&last, da + TRIAD - 1, sizeof(last), cudaMemcpyDeviceToHost));
	if (last != 3.5 || a[TRIAD - 1] != 3.5) {
		printf("triad: %g and %g, not 3.5\n", last, a[TRIAD - 1]);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : 3;
	const char *path = argc > 2 ? argv[2] : "libopenblas.so.0";
	void *lib = dlopen(path, RTLD_NOW);
	sgemm_fn sgemm = lib ? (sgemm_fn)dlsym(lib, "cblas_sgemm") : NULL;
	cublasHandle_t blas;

	if (!sgemm) {
		printf("%s: no cblas_sgemm: install libopenblas-dev\n", path);
		return 1;
	}
	triads(turns);
	CHECK(cublasCreate(&blas));
	products(blas, sgemm, turns);
	convolution(turns);
	return 0;
}
