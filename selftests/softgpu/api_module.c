// SPDX-License-Identifier: Apache-2.0
/*
 * api_module.c - images, libraries, the linker, launches, occupancy, and the errors of kernels.
 */
#include "api.h"

TEST_F(gpu, images_that_are_not_ptx_are_refused)
{
	static const char elf[64] = "\x7f" "ELF";
	static const char junk[64] = "\1\2\3\4junk";
	CUjit_option opt[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	char log[500] = "";
	void *val[] = { log, (void *)(uintptr_t)sizeof(log) };
	CUmodule m = POISON;

	FAILS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(NULL, elf));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&m, NULL));
	FAILS(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, elf));
	FAILS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, junk));
	FAILS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, ""));
	FAILS(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/nonexistent"));
	FAILS(CUDA_ERROR_INVALID_PTX,
	      cuModuleLoadDataEx(&m, PTX_HEAD ".visible .entry k( {", 2, opt, val));
	EXPECT_NE(0, strlen(log));
	EXPECT_EQ(strlen(log) + 1, (uintptr_t)val[1]);
	EXPECT_EQ(POISON, m);
}

TEST_F(gpu, functions_and_variables_are_found_by_name)
{
	CUdeviceptr p = 77;
	size_t bytes = 77, off = 77, size = 77;
	const char *name = POISON;
	unsigned int n = 77, v[4] = { 9, 9, 9, 9 };
	CUfunction f, fs[2];
	CUmodule m;

	OK(cuModuleLoadData(&m, PTX_HEAD ".visible .global .align 4 .u32 table[4] = {1, 2, 3, 4};\n"
				PTX_ADD1 PTX_POKE));
	OK(cuModuleGetFunction(&f, m, "add1"));
	OK(cuFuncGetName(&name, f));
	EXPECT_STREQ("add1", name);
	FAILS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, m, "nothing"));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&f, POISON, "add1"));
	OK(cuModuleGetFunctionCount(&n, m));
	EXPECT_EQ(2, n);
	OK(cuModuleEnumerateFunctions(fs, 2, m));
	OK(cuFuncGetParamInfo(f, 1, &off, &size));
	EXPECT_EQ(8, off);
	EXPECT_EQ(4, size);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 2, &off, &size));
	OK(cuModuleGetGlobal(&p, &bytes, m, "table"));
	EXPECT_EQ(16, bytes);
	OK(cuMemcpyDtoH(v, p, 16));
	EXPECT_EQ(1, v[0]);
	EXPECT_EQ(4, v[3]);
	FAILS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&p, &bytes, m, "nothing"));
	OK(cuModuleUnload(m));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(m));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuFuncGetName(&name, f));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(v, p, 16));
}

TEST_F(gpu, a_kernel_runs_over_its_grid)
{
	unsigned int n = 100000, *h = malloc(n * 4);
	CUdeviceptr p;
	void *params[] = { &p, &n };

	LOAD_KERNELS();
	OK(cuMemAlloc(&p, n * 4));
	for (unsigned int i = 0; i < n; i++)
		h[i] = i * 3;
	OK(cuMemcpyHtoD(p, h, n * 4));
	for (int i = 0; i < 5; i++)
		OK(launch1(self->add1, (n + 255) / 256, 256, NULL, params));
	OK(cuMemcpyDtoH(h, p, n * 4));
	for (unsigned int i = 0; i < n; i++)
		ASSERT_EQ(i * 3 + 5, h[i]);
	free(h);
}

TEST_F(gpu, parameters_may_come_packed)
{
	struct { CUdeviceptr p; unsigned int v; } buf = { 0, 4711 };
	size_t size = sizeof(buf);
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &buf, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
			  CU_LAUNCH_PARAM_END };
	void *params[] = { &buf.p, &buf.v };
	unsigned int v = 0;

	LOAD_KERNELS();
	OK(cuMemAlloc(&buf.p, 4));
	OK(cuLaunchKernel(self->poke, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	OK(cuMemcpyDtoH(&v, buf.p, 4));
	EXPECT_EQ(4711, v);
	size = 8;
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->poke, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->poke, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->poke, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

TEST_F(gpu, dimensions_are_checked)
{
	CUdeviceptr p = 0;
	unsigned int n = 0;
	void *params[] = { &p, &n };

	LOAD_KERNELS();
	FAILS(CUDA_ERROR_INVALID_VALUE, launch1(self->add1, 0, 1, NULL, params));
	FAILS(CUDA_ERROR_INVALID_VALUE, launch1(self->add1, 1, 0, NULL, params));
	FAILS(CUDA_ERROR_INVALID_VALUE, launch1(self->add1, 1, 1025, NULL, params));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 65536, 1, 1, 1, 1, 0, NULL, params, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 1, 1, 1, 1, 65, 0, NULL, params, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 1, 1, 1, 1, 1, 50000, NULL, params, NULL));
	FAILS(CUDA_ERROR_INVALID_HANDLE, launch1(POISON, 1, 1, NULL, params));
	FAILS(CUDA_ERROR_INVALID_HANDLE, launch1(self->add1, 1, 1, POISON, params));
	FAILS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
	      cuLaunchCooperativeKernel(self->add1, 100000, 1, 1, 1, 1, 1, 0, NULL, params));
	OK(launch1(self->add1, 1, 1, NULL, params));
	OK(cuCtxSynchronize());
}

TEST_F(gpu, libraries_work_in_every_context)
{
	unsigned int v = 7, count = 77, managed;
	CUdeviceptr p, q;
	void *params[] = { &p, &v };
	size_t bytes;
	CUcontext other;
	CUlibrary lib, back;
	CUkernel k;
	CUfunction f1, f2;

	OK(cuLibraryLoadData(&lib, PTX_HEAD ".visible .global .u32 word;\n" PTX_POKE, NULL, NULL, 0,
			     NULL, NULL, 0));
	OK(cuLibraryGetKernelCount(&count, lib));
	EXPECT_EQ(1, count);
	FAILS(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&k, lib, "nothing"));
	OK(cuLibraryGetKernel(&k, lib, "poke"));
	OK(cuKernelGetLibrary(&back, k));
	EXPECT_EQ(lib, back);
	OK(cuKernelGetFunction(&f1, k));
	OK(cuLibraryGetGlobal(&p, &bytes, lib, "word"));
	EXPECT_EQ(4, bytes);
	FAILS(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&q, &bytes, lib, "word"));
	OK(launch1((CUfunction)k, 1, 1, NULL, params));	/* a kernel stands for its function */
	OK(cuMemcpyDtoH(&managed, p, 4));
	EXPECT_EQ(7, managed);
	OK(cuCtxCreate(&other, NULL, 0, 0));
	OK(cuKernelGetFunction(&f2, k));
	EXPECT_NE(f1, f2);
	OK(cuLibraryGetGlobal(&q, &bytes, lib, "word"));
	EXPECT_NE(p, q);
	FAILS(CUDA_ERROR_INVALID_HANDLE, launch1(f1, 1, 1, NULL, params));	/* other context's */
	OK(cuLibraryUnload(lib));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(lib));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuKernelGetFunction(&f1, k));
	OK(cuCtxDestroy(other));
}

TEST_F(gpu, attributes_bound_shared_memory_and_occupancy)
{
	int v = 77, blocks = 77, grid = 77, block = 77;
	size_t smem = 77;

	LOAD_KERNELS();
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, self->add1));
	EXPECT_EQ(1024, v);
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self->add1));
	EXPECT_EQ(0, v);
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_PTX_VERSION, self->add1));
	EXPECT_EQ(75, v);
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_NUM_REGS, self->add1));
	EXPECT_GT(v, 0);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&v, 1000, self->add1));
	FAILS(CUDA_ERROR_INVALID_HANDLE,
	      cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_NUM_REGS, POISON));
	OK(cuFuncSetAttribute(self->add1, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200000));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuFuncSetAttribute(self->add1, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				 300000));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuFuncSetAttribute(self->add1, CU_FUNC_ATTRIBUTE_NUM_REGS, 10));
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, self->add1, 1024, 0));
	EXPECT_EQ(2, blocks);
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, self->add1, 1024, 200000));
	EXPECT_EQ(1, blocks);
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, self->add1, 32, 0));
	EXPECT_EQ(32, blocks);
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, self->add1, 0, 0));
	OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, self->add1, NULL, 0, 0));
	EXPECT_EQ(1024, block);
	EXPECT_EQ(0, grid % 16);
	OK(cuOccupancyAvailableDynamicSMemPerBlock(&smem, self->add1, 2, 128));
	EXPECT_GT(smem, 100000);
}

TEST_F(gpu, the_linker_joins_texts)
{
	static const char a[] = PTX_HEAD
		".extern .func (.param .b32 r) twice(.param .b32 x);\n"
		".visible .entry k(.param .u64 p)\n{\n"
		".reg .b32 %r<3>; .reg .b64 %d<2>;\n"
		"ld.param.u64 %d1, [p]; cvta.to.global.u64 %d1, %d1; ld.global.u32 %r1, [%d1];\n"
		"{ .param .b32 x; .param .b32 r; st.param.b32 [x], %r1;\n"
		"call.uni (r), twice, (x); ld.param.b32 %r2, [r]; }\n"
		"st.global.u32 [%d1], %r2; ret;\n}\n";
	static const char b[] = PTX_HEAD
		".visible .func (.param .b32 r) twice(.param .b32 x)\n{\n"
		".reg .b32 %r<3>; ld.param.b32 %r1, [x]; add.u32 %r2, %r1, %r1;\n"
		"st.param.b32 [r], %r2; ret;\n}\n";
	unsigned int v = 21;
	CUdeviceptr p;
	void *params[] = { &p }, *image;
	size_t size;
	CUlinkState l;
	CUmodule m;
	CUfunction f;

	OK(cuLinkCreate(0, NULL, NULL, &l));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(l, &image, &size));
	OK(cuLinkAddData(l, CU_JIT_INPUT_PTX, (void *)a, sizeof(a), "a", 0, NULL, NULL));
	OK(cuLinkAddData(l, CU_JIT_INPUT_PTX, (void *)b, sizeof(b), "b", 0, NULL, NULL));
	OK(cuLinkComplete(l, &image, &size));
	OK(cuModuleLoadData(&m, image));
	OK(cuLinkDestroy(l));
	OK(cuModuleGetFunction(&f, m, "k"));
	OK(cuMemAlloc(&p, 4));
	OK(cuMemcpyHtoD(p, &v, 4));
	OK(launch1(f, 1, 1, NULL, params));
	OK(cuMemcpyDtoH(&v, p, 4));
	EXPECT_EQ(42, v);
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(l));
}

/* Faults of kernels are signals that are left by a jump, which thread sanitizer cannot follow. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_FAULTS() SKIP(return, "thread sanitizer defers signals")
#endif
#endif
#ifndef NO_FAULTS
#define NO_FAULTS() do { } while (0)
#endif

TEST_F(gpu, an_illegal_address_ends_the_context_and_no_more)
{
	CUdeviceptr p = 0x10, q;
	unsigned int v = 1;
	void *params[] = { &p, &v };
	CUcontext other;
	CUstream s;

	NO_FAULTS();
	LOAD_KERNELS();
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(launch1(self->poke, 1, 1, s, params));
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&q, 16));
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, launch1(self->poke, 1, 1, s, params));
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
	OK(cuCtxCreate(&other, NULL, 0, 0));
	OK(cuMemAlloc(&q, 16));
	OK(cuMemsetD8(q, 0, 16));
	OK(cuCtxDestroy(other));
}

TEST_F(gpu, freed_and_unmapped_memory_is_illegal)
{
	unsigned int v = 1;
	CUdeviceptr p;
	void *params[] = { &p, &v };

	NO_FAULTS();
	LOAD_KERNELS();
	OK(cuMemAlloc(&p, 4 << 20));
	OK(launch1(self->poke, 1, 1, NULL, params));
	OK(cuCtxSynchronize());
	OK(cuMemFree(p));
	OK(launch1(self->poke, 1, 1, NULL, params));
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

TEST_F(gpu, host_memory_that_cuda_does_not_know_is_illegal)
{
	unsigned int on_stack = 5, v = 1;
	unsigned int *pinned;
	CUdeviceptr p;
	void *params[] = { &p, &v };

	NO_FAULTS();
	LOAD_KERNELS();
	OK(cuMemHostAlloc((void **)&pinned, 4, 0));
	p = (CUdeviceptr)pinned;
	OK(launch1(self->poke, 1, 1, NULL, params));
	OK(cuCtxSynchronize());
	EXPECT_EQ(1, *pinned);
	p = (CUdeviceptr)&on_stack;
	OK(launch1(self->poke, 1, 1, NULL, params));
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
	EXPECT_EQ(5, on_stack);
}

TEST_F(gpu, a_trap_is_a_launch_failure)
{
	CUmodule m;
	CUfunction f;

	OK(cuModuleLoadData(&m, PTX_HEAD PTX_TRAP));
	OK(cuModuleGetFunction(&f, m, "die"));
	OK(launch1(f, 1, 1, NULL, NULL));
	FAILS(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
}

TEST_F(gpu, an_opcode_that_is_not_known_is_invalid_ptx)
{
	CUmodule m;
	CUfunction f;
	CUresult r;

	r = cuModuleLoadData(&m, PTX_HEAD ".visible .entry k()\n{\nfrobnicate.u32 %r1;\nret;\n}\n");
	if (!r) {
		OK(cuModuleGetFunction(&f, m, "k"));
		/* more shared memory is allowed without compiling: libraries do that for all they have */
		OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
		FAILS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f,
			CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0x7fffffff));
		r = launch1(f, 1, 1, NULL, NULL);
	}
	EXPECT_EQ(CUDA_ERROR_INVALID_PTX, r);
	OK(cuCtxSynchronize());
}

TEST_F(gpu, kernels_of_different_streams_run_at_once)
{
	CUdeviceptr p;
	unsigned int v = 1;
	void *spin_params[] = { &p }, *poke_params[] = { &p, &v };
	CUstream a, b;

	LOAD_KERNELS();
	OK(cuMemAlloc(&p, 4));
	OK(cuMemsetD32(p, 0, 1));
	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(launch1(self->spin, 1, 1, a, spin_params));
	nap_ms(5);
	FAILS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
	OK(launch1(self->poke, 1, 1, b, poke_params));
	OK(cuStreamSynchronize(a));
}

TEST_HARNESS_MAIN
