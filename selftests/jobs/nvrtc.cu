// SPDX-License-Identifier: Apache-2.0
/*
 * nvrtc.cu - kernels compiled while the program runs: NVRTC to PTX, loaded by the driver's module and
 * library calls and by the runtime's.
 */
#include "job.cuh"

#include <cuda.h>
#include <nvrtc.h>
#include <string>

#define NVRTC(...) EXPECT_EQ((__VA_ARGS__), NVRTC_SUCCESS)
#define CU(...) EXPECT_EQ((__VA_ARGS__), CUDA_SUCCESS)
#define DRIVER(_fn) static decltype(&_fn) p_##_fn
DRIVER(cuModuleLoadData);
DRIVER(cuModuleUnload);
DRIVER(cuModuleGetFunction);
DRIVER(cuModuleLoadDataEx);
DRIVER(cuLaunchKernel);
DRIVER(cuLibraryLoadData);
DRIVER(cuLibraryUnload);
DRIVER(cuLibraryGetKernel);
DRIVER(cuKernelGetFunction);
DRIVER(cuFuncGetAttribute);
DRIVER(cuFuncGetParamInfo);

DRIVER(cuModuleGetGlobal);

static void get(void *fn, const char *name)
{
	cudaDriverEntryPointQueryResult found;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)fn, 13000, cudaEnableDefault, &found));
	EXPECT_EQ(found, cudaDriverEntryPointSuccess);
}
#define GET(_fn) get((void *)&p_##_fn, #_fn)

static const char source[] =
	"extern \"C\" __global__ void saxpy(float a, const float *x, float *y, int n)\n"
	"{\n"
	"	int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
	"	if (i < n)\n"
	"		y[i] = a * x[i] + y[i];\n"
	"}\n"
	"__constant__ float scale[2] = { 1, FACTOR };\n"
	"__device__ int calls;\n"
	"template <typename T, int K> __global__ void power(T *p)\n"
	"{\n"
	"	extern __shared__ char raw[];\n"
	"	T *s = (T *)raw, v = 1;\n"
	"	s[threadIdx.x] = p[threadIdx.x];\n"
	"	__syncthreads();\n"
	"	for (int i = 0; i < K; i++)\n"
	"		v *= s[blockDim.x - 1 - threadIdx.x];\n"
	"	p[threadIdx.x] = v * (T)scale[1];\n"
	"	atomicAdd(&calls, 1);\n"
	"}\n";

static std::string compile(const char *text, std::string *name, const char *factor)
{
	std::string opt = std::string("-DFACTOR=") + factor, ptx;
	const char *opts[] = { "--gpu-architecture=compute_75", opt.c_str(), "--std=c++17" };
	const char *lowered;
	nvrtcProgram p;
	size_t n;

	NVRTC(nvrtcCreateProgram(&p, text, "job.cu", 0, NULL, NULL));
	if (name)
		NVRTC(nvrtcAddNameExpression(p, "power<double, 3>"));
	nvrtcResult r = nvrtcCompileProgram(p, 3, opts);
	if (r != NVRTC_SUCCESS) {
		NVRTC(nvrtcGetProgramLogSize(p, &n));
		ptx.resize(n);
		NVRTC(nvrtcGetProgramLog(p, &ptx[0]));
		printf("%s\n", ptx.c_str());
		exit(1);
	}
	if (name) {
		NVRTC(nvrtcGetLoweredName(p, "power<double, 3>", &lowered));
		*name = lowered;
	}
	NVRTC(nvrtcGetPTXSize(p, &n));
	ptx.resize(n);
	NVRTC(nvrtcGetPTX(p, &ptx[0]));
	NVRTC(nvrtcDestroyProgram(&p));
	return ptx;
}

static void use(CUmodule m, CUfunction saxpy, CUfunction power, double factor)
{
	const int n = 1000;
	std::vector<float> x(n), y(n);
	std::vector<double> d(64), want(64);
	unsigned int seed = 110;
	CUdeviceptr calls;
	size_t size, offset;
	int k = n;
	float a = 2.5f;

	for (int i = 0; i < n; i++) {
		x[i] = (int)(rnd(&seed) % 100);
		y[i] = i;
	}
	float *dx = to_device(x), *dy = to_device(y);
	void *args[] = { &a, &dx, &dy, &k };
	CU(p_cuLaunchKernel(saxpy, 8, 1, 1, 128, 1, 1, 0, 0, args, NULL));
	std::vector<float> got = to_host(dy, n);
	for (int i = 0; i < n; i++)
		EXPECT(got[i] == 2.5f * x[i] + i);
	sum_vector(got);
	/* the same parameters as one buffer */
	struct {
		float a;
		float *x, *y;
		int n;
	} buf = { 1.0f, dx, dy, n };
	size_t bytes = sizeof(buf);
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &buf, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
			  CU_LAUNCH_PARAM_END };
	CU(p_cuLaunchKernel(saxpy, 8, 1, 1, 128, 1, 1, 0, 0, NULL, extra));
	got = to_host(dy, n);
	for (int i = 0; i < n; i++)
		EXPECT(got[i] == 3.5f * x[i] + i);
	CU(p_cuFuncGetParamInfo(saxpy, 2, &offset, &size));
	EXPECT(offset == 16 && size == 8);
	EXPECT_EQ(p_cuFuncGetParamInfo(saxpy, 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);

	for (int i = 0; i < 64; i++)
		d[i] = i * 0.25;
	for (int i = 0; i < 64; i++)
		want[i] = d[63 - i] * d[63 - i] * d[63 - i] * factor;
	double *dd = to_device(d);
	void *pargs[] = { &dd };
	CU(p_cuLaunchKernel(power, 1, 1, 1, 64, 1, 1, 64 * 8, 0, pargs, NULL));
	EXPECT(to_host(dd, 64) == want);
	sum_vector(want);
	if (m) {
		CU(p_cuModuleGetGlobal(&calls, &size, m, "calls"));
		EXPECT_EQ(size, 4);
		EXPECT_EQ(to_host((int *)calls, 1)[0], 64);
		EXPECT_EQ(p_cuModuleGetGlobal(&calls, &size, m, "nothing"), CUDA_ERROR_NOT_FOUND);
	}
	CHECK(cudaFree(dx));
	CHECK(cudaFree(dy));
	CHECK(cudaFree(dd));
}

/* Machine code for the device that NVRTC knows last: it runs there, and elsewhere has no binary. */
static void machine_code(void)
{
	int n, v[2], archs[64];
	size_t size;
	nvrtcProgram prog;
	CUmodule m;
	CUfunction f;

	NVRTC(nvrtcGetNumSupportedArchs(&n));
	EXPECT(n > 0 && n <= 64);
	NVRTC(nvrtcGetSupportedArchs(archs));
	CHECK(cudaDeviceGetAttribute(&v[0], cudaDevAttrComputeCapabilityMajor, 0));
	CHECK(cudaDeviceGetAttribute(&v[1], cudaDevAttrComputeCapabilityMinor, 0));
	std::string arch = "-arch=sm_" + std::to_string(archs[n - 1]);
	const char *opts[] = { arch.c_str(), "-DFACTOR=3.0" };
	NVRTC(nvrtcCreateProgram(&prog, source, "job.cu", 0, NULL, NULL));
	NVRTC(nvrtcCompileProgram(prog, 2, opts));
	NVRTC(nvrtcGetCUBINSize(prog, &size));
	std::vector<char> cubin(size);
	NVRTC(nvrtcGetCUBIN(prog, cubin.data()));
	NVRTC(nvrtcDestroyProgram(&prog));
	CUresult r = p_cuModuleLoadData(&m, cubin.data());
	if (v[0] == archs[n - 1] / 10 && v[1] >= archs[n - 1] % 10) {
		EXPECT_EQ(r, CUDA_SUCCESS);
		CU(p_cuModuleGetFunction(&f, m, "saxpy"));
		CU(p_cuModuleUnload(m));
	} else {
		EXPECT_EQ(r, CUDA_ERROR_NO_BINARY_FOR_GPU);
	}
}

int main()
{
	std::string name, ptx, ptx5;
	CUmodule m;
	CUlibrary lib;
	CUkernel k1, k2;
	CUfunction saxpy, power;
	int v;

	CHECK(cudaFree(0));
	GET(cuModuleLoadData);
	GET(cuModuleUnload);
	GET(cuModuleGetFunction);
	GET(cuModuleGetGlobal);
	GET(cuModuleLoadDataEx);
	GET(cuLaunchKernel);
	GET(cuLibraryLoadData);
	GET(cuLibraryUnload);
	GET(cuLibraryGetKernel);
	GET(cuKernelGetFunction);
	GET(cuFuncGetAttribute);
	GET(cuFuncGetParamInfo);
	ptx = compile(source, &name, "2.0");
	ptx5 = compile(source, &name, "5.0");

	CU(p_cuModuleLoadData(&m, ptx.c_str()));
	CU(p_cuModuleGetFunction(&saxpy, m, "saxpy"));
	CU(p_cuModuleGetFunction(&power, m, name.c_str()));
	CU(p_cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, power));
	EXPECT(v >= 64 && v <= 1024);
	EXPECT_EQ(p_cuModuleGetFunction(&saxpy, m, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
	CU(p_cuModuleGetFunction(&saxpy, m, "saxpy"));
	use(m, saxpy, power, 2);

	/* another module with the same names beside it; then without the first */
	CUmodule m5;
	char log[4096] = "";
	CUjit_option opts[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *vals[] = { log, (void *)sizeof(log) };
	CU(p_cuModuleLoadDataEx(&m5, ptx5.c_str(), 2, opts, vals));
	CU(p_cuModuleUnload(m));
	CU(p_cuModuleGetFunction(&saxpy, m5, "saxpy"));
	CU(p_cuModuleGetFunction(&power, m5, name.c_str()));
	use(m5, saxpy, power, 5);
	CU(p_cuModuleUnload(m5));

	CU(p_cuLibraryLoadData(&lib, ptx5.c_str(), NULL, NULL, 0, NULL, NULL, 0));
	CU(p_cuLibraryGetKernel(&k1, lib, "saxpy"));
	CU(p_cuLibraryGetKernel(&k2, lib, name.c_str()));
	CU(p_cuKernelGetFunction(&saxpy, k1));
	use(NULL, saxpy, (CUfunction)k2, 5);
	CU(p_cuLibraryUnload(lib));

	machine_code();

	/* what is no image, and PTX that is wrong */
	CUresult r = p_cuModuleLoadData(&m, "this is neither an ELF file nor PTX");
	EXPECT(r == CUDA_ERROR_INVALID_IMAGE || r == CUDA_ERROR_INVALID_PTX ||
	       r == CUDA_ERROR_NO_BINARY_FOR_GPU);
	std::string bad = ptx;
	bad.insert(bad.find("ld.param"), "no.such.opcode %f1;\n");
	r = p_cuModuleLoadDataEx(&m, bad.c_str(), 2, opts, vals);
	if (r == CUDA_SUCCESS) {	/* a driver may compile as late as at the first use */
		r = p_cuModuleGetFunction(&saxpy, m, "saxpy");
		if (r == CUDA_SUCCESS) {
			unsigned long long zero = 0;
			void *none[] = { &zero, &zero, &zero, &zero };
			r = p_cuLaunchKernel(saxpy, 1, 1, 1, 1, 1, 1, 0, 0, none, NULL);
		}
	}
	EXPECT_EQ(r, CUDA_ERROR_INVALID_PTX);
	CHECK(cudaDeviceSynchronize());
	return job_passed("nvrtc");
}
