// SPDX-License-Identifier: Apache-2.0
/*
 * nvjitlink.cu - nvJitLink: two sources, compiled by NVRTC and linked into one image with a call
 * between them, as PTX and as machine code for the present device.
 */
#include "lib.cuh"

#include <cuda.h>
#include <dlfcn.h>
#include <nvJitLink.h>
#include <nvrtc.h>

#include <string>

static const char polynomial[] =
	"extern \"C\" __device__ float bend(float x, int degree)\n"
	"{ float s = 1; for (int i = 0; i < degree; i++) s = s * x + 0.5f; return s; }\n";
static const char caller[] =
	"extern \"C\" __device__ float bend(float x, int degree);\n"
	"extern \"C\" __global__ void each(float *y, const float *x, int n, int degree)\n"
	"{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = bend(x[i], degree); }\n";

static std::string compile(const char *source, const char *option, bool ltoir)
{
	const char *options[] = { option, "-rdc=true", "-dlto" };
	nvrtcProgram p;
	size_t n;
	std::string out;

	LIB(nvrtcCreateProgram(&p, source, "source.cu", 0, NULL, NULL));
	LIB(nvrtcCompileProgram(p, ltoir ? 3 : 2, options));
	LIB(ltoir ? nvrtcGetLTOIRSize(p, &n) : nvrtcGetPTXSize(p, &n));
	out.resize(n);
	LIB(ltoir ? nvrtcGetLTOIR(p, &out[0]) : nvrtcGetPTX(p, &out[0]));
	LIB(nvrtcDestroyProgram(&p));
	return out;
}

/* As nvcc makes it, of one PTX text. */
static std::string fatbin(const std::string &ptx)
{
	size_t padded = (ptx.size() + 7) & ~(size_t)7;
	struct {
		unsigned int magic;
		unsigned short version, header;
		unsigned long long size;
		unsigned short kind, entry_version;
		unsigned int entry_header;
		unsigned long long padded;
		unsigned int packed, options;
		unsigned short minor, major;
		unsigned int arch, name, name_len;
		unsigned long long flags, zero, unpacked;
		unsigned int options_at, options_len;
		char text[24];
	} head = { 0xba55ed50, 1, 16, 96 + padded, 1, 0x101, 96, padded, 0, 64, 0, 9, 80, 0, 0, 0x11, 0,
		   0, 72, 16, "--compile-only  " };

	return std::string((const char *)&head, sizeof(head)) + ptx + std::string(padded - ptx.size(), 0);
}

struct part {
	nvJitLinkInputType type;
	std::string data;
};

static std::vector<struct part> both(bool first_ltoir, bool second_ltoir)
{
	return { { first_ltoir ? NVJITLINK_INPUT_LTOIR : NVJITLINK_INPUT_PTX,
		   compile(polynomial, "-arch=compute_80", first_ltoir) },
		 { second_ltoir ? NVJITLINK_INPUT_LTOIR : NVJITLINK_INPUT_PTX,
		   compile(caller, "-arch=compute_80", second_ltoir) } };
}

/* Parts as one image: PTX, or machine code. What is wrong is the result, and in *log. */
static nvJitLinkResult link(std::vector<const char *> options, const std::vector<struct part> &parts,
			    bool to_ptx, std::string *out, std::string *log)
{
	nvJitLinkHandle h;
	nvJitLinkResult r;
	size_t n = 0;

	r = nvJitLinkCreate(&h, options.size(), options.data());
	for (const struct part &p : parts)
		if (!r)
			r = nvJitLinkAddData(h, p.type, p.data.data(), p.data.size(), "part");
	if (!r)
		r = nvJitLinkComplete(h);
	LIB(nvJitLinkGetErrorLogSize(h, &n));
	log->assign(n, 0);
	if (n)
		LIB(nvJitLinkGetErrorLog(h, &(*log)[0]));
	if (!r) {
		LIB(to_ptx ? nvJitLinkGetLinkedPtxSize(h, &n) : nvJitLinkGetLinkedCubinSize(h, &n));
		out->assign(n + 1, '#');
		LIB(to_ptx ? nvJitLinkGetLinkedPtx(h, &(*out)[0]) :
			     nvJitLinkGetLinkedCubin(h, &(*out)[0]));
		EXPECT_EQ((*out)[n], '#');
		(*out)[n] = 0;
	}
	LIB(nvJitLinkDestroy(&h));
	return r;
}

/* A barrier of the whole grid, by the device runtime library, which is an archive of host objects. */
static const char meeting[] =
	"extern \"C\" __global__ void meet(int *sum, int *seen, int rounds)\n"
	"{ unsigned long long grid = cudaCGGetIntrinsicHandle(cudaCGScopeGrid); int wrong = 0;\n"
	"  for (int i = 1; i <= rounds; i++) { atomicAdd(sum, 1); wrong |= cudaCGSynchronize(grid, 0);\n"
	"    wrong |= *(volatile int *)sum != i * 256; wrong |= cudaCGSynchronizeGrid(grid, 0); }\n"
	"  atomicAdd(seen, !wrong && !cudaCGGetIntrinsicHandle(cudaCGScopeInvalid)); }\n";

static std::string with_archive(const char *arch)
{
	std::string ptx = compile(meeting, "-arch=compute_80", false), file, out;
	nvJitLinkHandle h;
	Dl_info info;
	size_t n;

	EXPECT(dladdr((void *)nvrtcVersion, &info));
	file = info.dli_fname;
	file.replace(file.rfind('/') + 1, std::string::npos, "libcudadevrt.a");
	LIB(nvJitLinkCreate(&h, 1, &arch));
	LIB(nvJitLinkAddData(h, NVJITLINK_INPUT_PTX, ptx.data(), ptx.size(), "meeting"));
	EXPECT(nvJitLinkAddFile(h, NVJITLINK_INPUT_LIBRARY, "/no/such/file") != NVJITLINK_SUCCESS);
	LIB(nvJitLinkAddFile(h, NVJITLINK_INPUT_LIBRARY, file.c_str()));
	LIB(nvJitLinkComplete(h));
	LIB(nvJitLinkGetLinkedCubinSize(h, &n));
	out.resize(n);
	LIB(nvJitLinkGetLinkedCubin(h, &out[0]));
	LIB(nvJitLinkDestroy(&h));
	return out;
}

/* The driver's functions, as the runtime finds them: programs need not be linked with it. */
static decltype(&cuModuleLoadData) module_load;
static decltype(&cuModuleUnload) module_unload;
static decltype(&cuModuleGetFunction) get_function;
static decltype(&cuLaunchKernel) launch;
static decltype(&cuLaunchCooperativeKernel) launch_together;

template <typename F> static void driver(const char *name, F *fn)
{
	cudaDriverEntryPointQueryResult found;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)fn, 13000, cudaEnableDefault, &found));
	EXPECT_EQ(found, cudaDriverEntryPointSuccess);
}

static void run(CUmodule module, int n, int degree)
{
	std::vector<float> x = random_values<float>(n), y(n);
	float *dx = to_device(x), *dy = to_device(y);
	void *args[] = { &dy, &dx, &n, &degree };
	CUfunction f;

	LIB(get_function(&f, module, "each"));
	LIB(launch(f, (n + 63) / 64, 1, 1, 64, 1, 1, 0, NULL, args, NULL));
	y = results(dy, n);
	for (int i = 0; i < n; i++) {
		double s = 1, mass = 1;

		for (int d = 0; d < degree; d++) {
			s = s * x[i] + 0.5;
			mass = mass * fabs(x[i]) + 0.5;
		}
		near_enough("bend", i, y[i], s, 2 * degree * 0x1p-24 * mass);
	}
	CHECK(cudaFree(dx));
	CHECK(cudaFree(dy));
}

static void meet(const std::string &image)
{
	std::vector<int> zeros(2);
	int *p = to_device(zeros), *seen = p + 1, rounds = 5;
	void *args[] = { &p, &seen, &rounds };
	CUmodule module;
	CUfunction f;

	LIB(module_load(&module, image.data()));
	LIB(get_function(&f, module, "meet"));
	LIB(launch_together(f, 2, 2, 1, 8, 4, 2, 0, NULL, args));
	std::vector<int> got = to_host(p, 2);
	EXPECT_EQ(got[0], 5 * 4 * 64);
	EXPECT_EQ(got[1], 4 * 64);
	CHECK(cudaFree(p));
	LIB(module_unload(module));
}

static void load_and_run(const std::string &image)
{
	CUmodule module;

	LIB(module_load(&module, image.data()));
	for (int degree = 1; degree < 6; degree++)
		run(module, 500, degree);
	LIB(module_unload(module));
}

int main(void)
{
	std::string out, log;
	std::vector<struct part> parts;
	int major, minor;
	char arch[32];

	driver("cuModuleLoadData", &module_load);
	driver("cuModuleUnload", &module_unload);
	driver("cuModuleGetFunction", &get_function);
	driver("cuLaunchKernel", &launch);
	driver("cuLaunchCooperativeKernel", &launch_together);
	CHECK(cudaSetDevice(0));
	CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
	CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
	snprintf(arch, sizeof(arch), "-arch=sm_%d%d", major, minor);

	/* intermediate code into PTX for an older device, and for the one that there is */
	LIB(link({ "-arch=sm_80", "-lto", "-ptx" }, both(true, true), true, &out, &log));
	load_and_run(out);
	LIB(link({ arch, "-lto", "-ptx" }, both(true, true), true, &out, &log));
	load_and_run(out);
	/* into its machine code: from intermediate code, PTX, and from code that calls PTX */
	LIB(link({ arch, "-lto" }, both(true, true), false, &out, &log));
	load_and_run(out);
	LIB(link({ arch }, both(false, false), false, &out, &log));
	load_and_run(out);
	LIB(link({ arch, "-lto" }, both(false, true), false, &out, &log));
	load_and_run(out);
	/* from a fatbin, and what was linked once more */
	parts = both(false, false);
	parts[0] = { NVJITLINK_INPUT_FATBIN, fatbin(parts[0].data) };
	parts[1].type = NVJITLINK_INPUT_ANY;
	LIB(link({ arch }, parts, false, &out, &log));
	load_and_run(out);

	meet(with_archive(arch));

	/* what is wrong is told as ever */
	parts = both(false, false);
	parts.erase(parts.begin());
	EXPECT(link({ arch }, parts, false, &out, &log) != NVJITLINK_SUCCESS);
	EXPECT(log.find("'bend'") != std::string::npos);
	EXPECT_EQ(link({ arch, "--no-such-option" }, parts, false, &out, &log),
		  NVJITLINK_ERROR_UNRECOGNIZED_OPTION);
	EXPECT(log.find("--no-such-option") != std::string::npos);
	EXPECT(link({ "-arch=sm_999" }, parts, false, &out, &log) != NVJITLINK_SUCCESS);
	EXPECT_EQ(link({ "-lto" }, parts, false, &out, &log), NVJITLINK_ERROR_MISSING_ARCH);
	parts[0].data = "nothing";
	EXPECT(link({ arch }, parts, false, &out, &log) != NVJITLINK_SUCCESS);
	EXPECT(!log.empty());
	return job_passed("nvjitlink");
}
