// SPDX-License-Identifier: Apache-2.0
/*
 * nvjitlink.cu - nvJitLink: two sources, compiled by NVRTC and linked into one image with a call
 * across, as PTX (which stays PTX) and as code for one device, which a device that runs PTX refuses.
 */
#include "lib.cuh"

#include <cuda.h>
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

/* Both sources as one image: by their intermediate code into PTX, or by their PTX into machine code. */
static std::string link(const char *arch, bool to_ptx)
{
	const char *options[] = { arch, "-lto", "-ptx" };
	std::string parts[] = { compile(polynomial, "-arch=compute_80", to_ptx),
				compile(caller, "-arch=compute_80", to_ptx) };
	nvJitLinkHandle h;
	std::string out;
	size_t n;

	LIB(nvJitLinkCreate(&h, to_ptx ? 3 : 1, options));
	for (const std::string &p : parts)
		LIB(nvJitLinkAddData(h, to_ptx ? NVJITLINK_INPUT_LTOIR : NVJITLINK_INPUT_PTX, p.data(),
				     p.size(), "part"));
	LIB(nvJitLinkComplete(h));
	LIB(to_ptx ? nvJitLinkGetLinkedPtxSize(h, &n) : nvJitLinkGetLinkedCubinSize(h, &n));
	out.resize(n);
	LIB(to_ptx ? nvJitLinkGetLinkedPtx(h, &out[0]) : nvJitLinkGetLinkedCubin(h, &out[0]));
	LIB(nvJitLinkDestroy(&h));
	return out;
}

/* The driver's functions, as the runtime finds them: programs need not be linked with it. */
static decltype(&cuModuleLoadData) module_load;
static decltype(&cuModuleUnload) module_unload;
static decltype(&cuModuleGetFunction) get_function;
static decltype(&cuLaunchKernel) launch;

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

int main(void)
{
	std::string ptx = link("-arch=sm_80", true), code;
	CUmodule module;
	int major, minor;
	char arch[32];

	driver("cuModuleLoadData", &module_load);
	driver("cuModuleUnload", &module_unload);
	driver("cuModuleGetFunction", &get_function);
	driver("cuLaunchKernel", &launch);
	CHECK(cudaSetDevice(0));
	CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
	CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
	LIB(module_load(&module, ptx.c_str()));
	for (int degree = 1; degree < 6; degree++)
		run(module, 500, degree);
	LIB(module_unload(module));
	/* a device that this linker knows runs its machine code; any other refuses it by name */
	if (major <= 12)
		snprintf(arch, sizeof(arch), "-arch=sm_%d%d", major, minor);
	else
		snprintf(arch, sizeof(arch), "-arch=sm_80");
	code = link(arch, false);
	CUresult r = module_load(&module, code.data());
	if (major <= 12) {
		EXPECT_EQ(r, CUDA_SUCCESS);
		run(module, 500, 4);
	} else {
		EXPECT_EQ(r, CUDA_ERROR_NO_BINARY_FOR_GPU);
	}
	return job_passed("nvjitlink");
}
