// SPDX-License-Identifier: Apache-2.0
/*
 * library.cu - libraries in contexts that are made and destroyed: each context has its own module
 * and variables, and a library outlives them (runtimes before CUDA 13 keep theirs across a device
 * reset).
 */
#include "../job.cuh"

#include <cuda.h>
#include <dlfcn.h>

#define DRIVER(_fn) static decltype(&_fn) p_##_fn
DRIVER(cuInit);
static CUresult (*p_cuCtxCreate_v2)(CUcontext *, unsigned int, CUdevice);
DRIVER(cuCtxDestroy);
DRIVER(cuCtxSetCurrent);
DRIVER(cuDevicePrimaryCtxRetain);
DRIVER(cuDevicePrimaryCtxReset);
DRIVER(cuLibraryLoadData);
DRIVER(cuLibraryUnload);
DRIVER(cuLibraryGetKernel);
DRIVER(cuLibraryGetModule);
DRIVER(cuKernelGetFunction);
DRIVER(cuModuleGetFunction);
DRIVER(cuFuncGetModule);
DRIVER(cuModuleGetGlobal);
DRIVER(cuLaunchKernel);
DRIVER(cuMemAlloc);
DRIVER(cuMemcpyDtoH);

static void get(void *fn, const char *name)
{
	cudaDriverEntryPointQueryResult found;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)fn, CUDA_VERSION, cudaEnableDefault,
					       &found));
	EXPECT_EQ(found, cudaDriverEntryPointSuccess);
}
#define GET(_fn) get((void *)&p_##_fn, #_fn)
#define CU(...) EXPECT_EQ((__VA_ARGS__), CUDA_SUCCESS)

/* Counts up, from 3 on, and stores the count. */
static const char ptx[] =
	".version 6.4\n.target sm_52\n.address_size 64\n"
	".visible .global .align 4 .u32 counter = 3;\n"
	".visible .entry count(.param .u64 to)\n{\n"
	".reg .b32 %r<3>;\n.reg .b64 %rd<3>;\n"
	"ld.param.u64 %rd1, [to];\n"
	"ld.global.u32 %r1, [counter];\n"
	"add.u32 %r2, %r1, 1;\n"
	"st.global.u32 [counter], %r2;\n"
	"st.global.u32 [%rd1], %r2;\n"
	"ret;\n}\n";

static CUlibrary lib;
static CUkernel kernel;

struct place {
	CUmodule module;
	CUfunction function, derived;
	CUdeviceptr counter, to;
};

/* All that the context which is current has of the library, asked for twice. */
static struct place look(void)
{
	struct place p, again;
	size_t size;

	CU(p_cuLibraryGetModule(&p.module, lib));
	CU(p_cuModuleGetFunction(&p.function, p.module, "count"));
	CU(p_cuKernelGetFunction(&p.derived, kernel));
	CU(p_cuModuleGetGlobal(&p.counter, &size, p.module, "counter"));
	EXPECT_EQ(size, 4);
	CU(p_cuMemAlloc(&p.to, 4));
	CU(p_cuLibraryGetModule(&again.module, lib));
	CU(p_cuKernelGetFunction(&again.derived, kernel));
	EXPECT(again.module == p.module && again.derived == p.derived);
	CU(p_cuFuncGetModule(&again.module, p.function));
	EXPECT(again.module == p.module);
	CU(p_cuFuncGetModule(&again.module, p.derived));
	EXPECT(again.module == p.module);
	return p;
}

static int launched(CUfunction f, struct place *p)
{
	void *args[] = { &p->to };
	int count = 0, variable;

	CU(p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
	CU(p_cuMemcpyDtoH(&count, p->to, 4));
	CU(p_cuMemcpyDtoH(&variable, p->counter, 4));
	EXPECT_EQ(count, variable);
	return count;
}

/* @p is new; three ways to launch it, all with its own variable. */
static void counts(struct place *p)
{
	EXPECT_EQ(launched(p->function, p), 4);
	EXPECT_EQ(launched(p->derived, p), 5);
	EXPECT_EQ(launched((CUfunction)kernel, p), 6);
}

int main(void)
{
	CUcontext primary, own;
	struct place a, b;

	GET(cuInit);
	/* The form of all toolkits, whatever this one means by the name. */
	*(void **)&p_cuCtxCreate_v2 = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuCtxCreate_v2");
	EXPECT(p_cuCtxCreate_v2);
	GET(cuCtxDestroy);
	GET(cuCtxSetCurrent);
	GET(cuDevicePrimaryCtxRetain);
	GET(cuDevicePrimaryCtxReset);
	GET(cuLibraryLoadData);
	GET(cuLibraryUnload);
	GET(cuLibraryGetKernel);
	GET(cuLibraryGetModule);
	GET(cuKernelGetFunction);
	GET(cuModuleGetFunction);
	GET(cuFuncGetModule);
	GET(cuModuleGetGlobal);
	GET(cuLaunchKernel);
	GET(cuMemAlloc);
	GET(cuMemcpyDtoH);
	CU(p_cuInit(0));
	CU(p_cuLibraryLoadData(&lib, ptx, NULL, NULL, 0, NULL, NULL, 0));
	CU(p_cuLibraryGetKernel(&kernel, lib, "count"));
	for (int round = 0; round < 3; round++) {
		CU(p_cuDevicePrimaryCtxRetain(&primary, 0));
		CU(p_cuCtxSetCurrent(primary));
		a = look();
		counts(&a);
		for (int i = 0; i < 2; i++) {
			CU(p_cuCtxCreate_v2(&own, 0, 0));
			b = look();
			EXPECT(b.module != a.module && b.counter != a.counter);
			counts(&b);
			CU(p_cuCtxSetCurrent(primary));
			EXPECT_EQ(launched(a.function, &a), 7 + i);
			CU(p_cuCtxDestroy(own));
		}
		CU(p_cuCtxSetCurrent(primary));
		EXPECT_EQ(launched(a.derived, &a), 9);
		if (round < 2)
			CU(p_cuDevicePrimaryCtxReset(0));
	}
	CU(p_cuLibraryUnload(lib));
	EXPECT_EQ(p_cuModuleGetFunction(&a.function, a.module, "count"), CUDA_ERROR_INVALID_HANDLE);
	sum_bytes("library", 7);
	return job_passed("library");
}
