// SPDX-License-Identifier: Apache-2.0
/*
 * nvrtc.cu - kernels compiled by NVRTC at run time, to PTX and to machine code for the present
 * device, and loaded by the driver's module and library calls and by the runtime's.
 */
#include "../job.cuh"

#include <cuda.h>
#include <algorithm>
#include <dlfcn.h>
#include <nvrtc.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

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
	size_t bytes = offsetof(decltype(buf), n) + sizeof(n);	/* without the padding */
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

/* Machine code for the device that NVRTC knows last. */
static std::vector<char> machine_code(int *arch)
{
	int n, archs[64];
	size_t size;
	nvrtcProgram prog;

	NVRTC(nvrtcGetNumSupportedArchs(&n));
	EXPECT(n > 0 && n <= 64);
	NVRTC(nvrtcGetSupportedArchs(archs));
	*arch = archs[n - 1];
	std::string option = "-arch=sm_" + std::to_string(*arch);
	const char *opts[] = { option.c_str(), "-DFACTOR=3.0" };
	NVRTC(nvrtcCreateProgram(&prog, source, "job.cu", 0, NULL, NULL));
	NVRTC(nvrtcCompileProgram(prog, 2, opts));
	NVRTC(nvrtcGetCUBINSize(prog, &size));
	std::vector<char> cubin(size);
	NVRTC(nvrtcGetCUBIN(prog, cubin.data()));
	NVRTC(nvrtcDestroyProgram(&prog));
	EXPECT(!memcmp(cubin.data(), "\177ELF", 4));
	return cubin;
}

/* The same, by a process that has no device: whatever there is, it is not compiled for. */
static std::vector<char> foreign_code(int *arch)
{
	std::vector<char> cubin;
	int to[2], status;
	char part[4096];
	ssize_t n;
	pid_t pid;

	EXPECT(!pipe(to));
	pid = fork();
	if (!pid) {
		setenv("CUDA_VISIBLE_DEVICES", "", 1);
		cubin = machine_code(arch);
		EXPECT_EQ(write(to[1], arch, sizeof(*arch)), (ssize_t)sizeof(*arch));
		for (size_t at = 0; at < cubin.size(); at += n) {
			n = write(to[1], &cubin[at], cubin.size() - at);
			EXPECT(n > 0);
		}
		_exit(0);
	}
	EXPECT(pid > 0);
	close(to[1]);
	EXPECT_EQ(read(to[0], arch, sizeof(*arch)), (ssize_t)sizeof(*arch));
	while ((n = read(to[0], part, sizeof(part))) > 0)
		cubin.insert(cubin.end(), part, part + n);
	close(to[0]);
	EXPECT(waitpid(pid, &status, 0) == pid && !status);
	return cubin;
}

/* It runs there, and elsewhere has no binary. */
static void load_foreign(const std::vector<char> &cubin, int arch)
{
	int v[2];
	CUmodule m;
	CUfunction f;

	CHECK(cudaDeviceGetAttribute(&v[0], cudaDevAttrComputeCapabilityMajor, 0));
	CHECK(cudaDeviceGetAttribute(&v[1], cudaDevAttrComputeCapabilityMinor, 0));
	CUresult r = p_cuModuleLoadData(&m, cubin.data());
	if (v[0] == arch / 10 && v[1] >= arch % 10) {
		EXPECT_EQ(r, CUDA_SUCCESS);
		CU(p_cuModuleGetFunction(&f, m, "saxpy"));
		CU(p_cuModuleUnload(m));
	} else {
		EXPECT_EQ(r, CUDA_ERROR_NO_BINARY_FOR_GPU);
	}
}

/* NVRTC as a program has it that opens it, or is linked with it. */
struct nvrtc {
#define NVRTC_FUNCTIONS(X) X(CreateProgram) X(CompileProgram) X(DestroyProgram) X(GetPTXSize) X(GetPTX) \
	X(GetCUBINSize) X(GetCUBIN) X(GetNumSupportedArchs) X(GetSupportedArchs) X(GetLTOIRSize) X(GetProgramLogSize) X(GetProgramLog)
#define X(name) decltype(&nvrtc##name) name;
	NVRTC_FUNCTIONS(X)
#undef X
};

static const struct nvrtc linked = {
#define X(name) nvrtc##name,
	NVRTC_FUNCTIONS(X)
#undef X
};

static struct nvrtc opened(void *lib)
{
	struct nvrtc n;

#define X(name) n.name = (decltype(n.name))dlsym(lib, "nvrtc" #name); EXPECT(n.name);
	NVRTC_FUNCTIONS(X)
#undef X
	return n;
}

struct outcome {
	nvrtcResult result;
	std::string ptx, cubin, log;
	size_t ltoir;
};

static struct outcome build(const struct nvrtc &n, const char *text, std::vector<const char *> options)
{
	struct outcome o;
	nvrtcProgram p;
	size_t size;

	options.push_back("-DFACTOR=4.0");
	NVRTC(n.CreateProgram(&p, text, "job.cu", 0, NULL, NULL));
	NVRTC(nvrtcAddNameExpression(p, "power<double, 3>"));
	o.result = n.CompileProgram(p, options.size(), options.data());
	NVRTC(n.GetProgramLogSize(p, &size));
	o.log.resize(size);
	NVRTC(n.GetProgramLog(p, &o.log[0]));
	if (!o.result) {
		/* the byte behind it stays as it is */
		NVRTC(n.GetPTXSize(p, &size));
		o.ptx.assign(size + 1, '#');
		NVRTC(n.GetPTX(p, &o.ptx[0]));
		EXPECT_EQ(o.ptx[size], '#');
		o.ptx.resize(size);
		NVRTC(n.GetCUBINSize(p, &size));
		o.cubin.assign(size + 1, '#');
		if (size)
			NVRTC(n.GetCUBIN(p, &o.cubin[0]));
		EXPECT_EQ(o.cubin[size], '#');
		o.cubin.resize(size);
		NVRTC(n.GetLTOIRSize(p, &o.ltoir));
	}
	NVRTC(n.DestroyProgram(&p));
	EXPECT(!p);
	return o;
}

static void load(const std::string &image, const char *power_name)
{
	CUfunction saxpy, power;
	CUmodule m;

	CU(p_cuModuleLoadData(&m, image.data()));
	CU(p_cuModuleGetFunction(&saxpy, m, "saxpy"));
	CU(p_cuModuleGetFunction(&power, m, power_name));
	use(m, saxpy, power, 4);
	CU(p_cuModuleUnload(m));
}

/* What is compiled for the device itself runs on it, by both names of its architecture. */
static void own_architecture(const struct nvrtc &n, const char *power_name)
{
	std::string text = source, number, sm, compute;
	struct outcome o;
	int v[2], count;

	CHECK(cudaDeviceGetAttribute(&v[0], cudaDevAttrComputeCapabilityMajor, 0));
	CHECK(cudaDeviceGetAttribute(&v[1], cudaDevAttrComputeCapabilityMinor, 0));
	number = std::to_string(v[0] * 10 + v[1]);
	text += "#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 750 || __CUDA_ARCH__ > " + number +
		"0)\n#error of another device\n#endif\n";
	NVRTC(n.GetNumSupportedArchs(&count));
	std::vector<int> archs(count + 1, -1);
	NVRTC(n.GetSupportedArchs(archs.data()));
	EXPECT_EQ(archs[count], -1);
	EXPECT(std::is_sorted(archs.begin(), archs.end() - 1));
	EXPECT(std::find(archs.begin(), archs.end(), v[0] * 10 + v[1]) != archs.end());
	sm = "--gpu-architecture=sm_" + number;
	compute = "-arch=compute_" + number;

	o = build(n, text.c_str(), { sm.c_str() });
	EXPECT_EQ(o.result, NVRTC_SUCCESS);
	EXPECT(!o.cubin.empty() && o.ptx.find(".entry saxpy") != std::string::npos);
	load(o.cubin, power_name);
	load(o.ptx, power_name);
	o = build(n, text.c_str(), { "-arch", sm.c_str() + sm.find("sm_"), "-lineinfo" });
	EXPECT_EQ(o.result, NVRTC_SUCCESS);
	load(o.cubin, power_name);
	o = build(n, text.c_str(), { (sm + "a").c_str() });
	EXPECT_EQ(o.result, v[0] < 9 ? NVRTC_ERROR_INVALID_OPTION : NVRTC_SUCCESS);
	o = build(n, text.c_str(), { compute.c_str() });
	EXPECT_EQ(o.result, NVRTC_SUCCESS);
	EXPECT(o.cubin.empty());
	load(o.ptx, power_name);
	o = build(n, text.c_str(), { sm.c_str(), "-dlto", "-rdc=true" });
	EXPECT_EQ(o.result, NVRTC_SUCCESS);
	EXPECT(o.ltoir > 0 && o.cubin.empty());

	/* what is wrong is told as ever */
	o = build(n, (text + "int x = nothing;\n").c_str(), { sm.c_str() });
	EXPECT_EQ(o.result, NVRTC_ERROR_COMPILATION);
	EXPECT(o.log.find("identifier \"nothing\" is undefined") != std::string::npos);
	o = build(n, text.c_str(), { sm.c_str(), "--no-such-option" });
	EXPECT_EQ(o.result, NVRTC_ERROR_INVALID_OPTION);
	EXPECT(o.log.find("--no-such-option") != std::string::npos);
	for (const char *wrong : { "-arch=sm_999", "-arch=sm_", "-arch=sm_75x", "-arch=", "-arch" })
		EXPECT_EQ(build(n, text.c_str(), { wrong }).result, NVRTC_ERROR_INVALID_OPTION);
	EXPECT_EQ(n.CompileProgram(NULL, 0, NULL), NVRTC_ERROR_INVALID_PROGRAM);
	EXPECT_EQ(n.GetCUBINSize(NULL, NULL), NVRTC_ERROR_INVALID_PROGRAM);
	EXPECT_EQ(n.DestroyProgram(NULL), NVRTC_ERROR_INVALID_PROGRAM);
}

/* The library that we are linked with, by its file; names of others are not there. */
static struct nvrtc by_dlsym(void)
{
	Dl_info info;
	void *lib;

	EXPECT(dladdr((void *)nvrtcVersion, &info));
	lib = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL);
	EXPECT(lib);
	EXPECT(!dlsym(lib, "nvrtcNothing") && dlerror());
	EXPECT(!dlsym(lib, "nvJitLinkCreate") && dlerror());
	EXPECT(!dlsym(RTLD_DEFAULT, "nvJitLinkCreate") && dlerror());
	EXPECT(dlsym(RTLD_DEFAULT, "nvrtcGetCUBIN"));
	EXPECT(dlsym(RTLD_NEXT, "malloc") && dlsym(NULL, "main") == dlsym(RTLD_DEFAULT, "main"));
	return opened(lib);
}

int main()
{
	std::string name, ptx, ptx5;
	CUmodule m;
	CUlibrary lib;
	CUkernel k1, k2;
	CUfunction saxpy, power;
	int v, arch;
	std::vector<char> cubin = foreign_code(&arch);

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

	load_foreign(cubin, arch);
	own_architecture(linked, name.c_str());
	own_architecture(by_dlsym(), name.c_str());

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
