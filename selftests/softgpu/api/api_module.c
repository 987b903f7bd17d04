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

/* A fatbin of one entry, as nvcc writes it: see fatbin.c. */
struct fat {
	uint32_t magic;
	uint16_t version, header;
	uint64_t size;
	struct {
		uint16_t kind, version;
		uint32_t header;
		uint64_t padded;
		uint32_t packed, options;
		uint16_t minor, major;
		uint32_t arch, name, name_len;
		uint64_t flags, zero, unpacked;
	} e;
	char text[1024];
};

#define FAT_LZ4	 0x2000
#define FAT_ZSTD 0x8000

static struct fat fatbin(void)
{
	struct fat f = { .magic = 0xba55ed50, .version = 1, .header = 16,
			 .size = sizeof(f) - 16,
			 .e = { .kind = 1, .header = sizeof(f.e), .padded = sizeof(f.text),
				.arch = 75 } };

	strcpy(f.text, PTX_HEAD PTX_ADD1);
	return f;
}

TEST_F(gpu, fatbins_that_lie_are_refused)
{
	struct {
		struct fat f;
		uint8_t behind[4096];
	} x = { .f = fatbin() };
	CUmodule m = POISON;

	memset(x.behind, 'x', sizeof(x.behind));
	OK(cuModuleLoadData(&m, &x.f));
	OK(cuModuleUnload(m));
	m = POISON;
	for (int i = 0; i < 12; i++) {
		x.f = fatbin();
		switch (i) {
		case 0:		/* more than there is, packed */
			x.f.e.packed = sizeof(x.f.text) + 1;
			break;
		case 1:
			x.f.e.flags = FAT_LZ4;
			x.f.e.packed = sizeof(x.f.text) + 4096;
			x.f.e.unpacked = 1 << 20;
			break;
		case 2:		/* what is no compressed text */
			x.f.e.flags = FAT_LZ4;
			x.f.e.packed = 100;
			x.f.e.unpacked = 16;
			memset(x.f.text, 0xff, 100);
			break;
		case 3:
			x.f.e.flags = FAT_ZSTD;
			x.f.e.packed = 100;
			x.f.e.unpacked = 1000;
			break;
		case 4:
			x.f.e.flags = FAT_ZSTD;
			x.f.e.packed = 5;
			x.f.e.unpacked = 1000;
			break;
		case 5:		/* sizes that leave the fatbin */
			x.f.e.padded = sizeof(x.f.text) + 8;
			break;
		case 6:
			x.f.e.padded = ~0ull - 32;
			break;
		case 7:
			x.f.e.header = sizeof(x.f.e) - 8;
			break;
		case 8:
			x.f.e.header = sizeof(x.f.e) + sizeof(x.f.text) + 8;
			break;
		case 9:
			x.f.e.header = 0;
			break;
		case 10:	/* less than an entry */
			x.f.size = sizeof(x.f.e) - 1;
			break;
		default:
			x.f.header = 8;
		}
		FAILS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, &x.f));
		EXPECT_EQ(POISON, m) {
			TH_LOG("fatbin %d", i);
		}
	}
	/* None that this device runs is another thing. */
	x.f = fatbin();
	x.f.e.kind = 2;
	FAILS(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, &x.f));
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
	size_t size = 12;	/* without the padding */
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
	FAILS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
	      cuLaunchKernel(self->poke, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	size = sizeof(buf);
	FAILS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
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
	FAILS(CUDA_ERROR_INVALID_VALUE, launch1(self->add1, 0x80000000, 1, NULL, params));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 0, 1, 1, 1, 1, 0, NULL, params, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 1, 0, 1, 1, 1, 0, NULL, params, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 1, 65536, 1, 1, 1, 0, NULL, params, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 1, 1, 1, 0, 1, 0, NULL, params, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 1, 1, 1, 1, 0, 0, NULL, params, NULL));
	/* 2^64 + 4 threads */
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(self->add1, 1, 1, 1, 2147549185, 4294836226, 2, 0, NULL, params, NULL));
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

TEST_F(gpu, kernels_say_how_many_threads_they_take)
{
	CUfunction fixed, most, large;
	CUmodule m;

	OK(cuModuleLoadData(&m, PTX_HEAD
			    ".visible .entry fixed() .reqntid 32, 2\n{ ret; }\n"
			    ".visible .entry most() .maxntid 16, 4\n{ ret; }\n"
			    ".visible .entry large()\n{ .reg .b32 %r<2>; .shared .align 4 .b8 s[40000];\n"
			    "mov.u32 %r1, 1; st.volatile.shared.u32 [s], %r1; ret; }\n"));
	OK(cuModuleGetFunction(&fixed, m, "fixed"));
	OK(cuModuleGetFunction(&most, m, "most"));
	OK(cuModuleGetFunction(&large, m, "large"));
	OK(cuLaunchKernel(fixed, 1, 1, 1, 32, 2, 1, 0, NULL, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(fixed, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(fixed, 1, 1, 1, 16, 2, 1, 0, NULL, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(fixed, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(fixed, 1, 1, 1, 32, 2, 2, 0, NULL, NULL, NULL));
	OK(cuLaunchKernel(most, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(most, 1, 1, 1, 65, 1, 1, 0, NULL, NULL, NULL));
	/* what a block has at least and what it asks for are one memory */
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuFuncSetAttribute(large, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200000));
	OK(cuFuncSetAttribute(large, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 190000));
	OK(cuLaunchKernel(large, 1, 1, 1, 1, 1, 1, 190000, NULL, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuLaunchKernel(large, 1, 1, 1, 1, 1, 1, 190001, NULL, NULL, NULL));
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

#define PTX_HEAD_90 ".version 8.0\n.target sm_90\n.address_size 64\n"
/* Stores how many blocks a cluster has. */
#define PTX_CLUSTER(_name, _how)					\
	".visible .entry " _name "(.param .u64 p)\n" _how "\n{\n"	\
	".reg .b32 %r<3>; .reg .b64 %d<3>;\n"				\
	"ld.param.u64 %d1, [p]; mov.u32 %r1, %cluster_nctarank;\n"	\
	"cvta.to.global.u64 %d1, %d1; st.global.u32 [%d1], %r1; ret;\n}\n"

/* The lines that the driver has logged since log_to_file(). */
static FILE *log_to_file(void)
{
	FILE *f = tmpfile();

	setenv("SINGVGPU_LOG", "1", 1);
	if (f)
		dup2(fileno(f), 2);
	return f;
}

static int log_has(FILE *f, const char *a, const char *b)
{
	char line[4096];
	int n = 0;

	rewind(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, a) && strstr(line, b);
	return n;
}

static CUresult launch_cluster(CUfunction f, unsigned int x, unsigned int y, unsigned int z,
			       void **params)
{
	CUlaunchAttribute a = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
				.value.clusterDim = { x, y, z } };
	CUlaunchConfig c = { 4, 2, 2, 1, 1, 1, 0, NULL, &a, 1 };

	return cuLaunchKernelEx(&c, f, params, NULL);
}

/* All clusters are of a size that kernel, launch and function agree on; else the log has the reason. */
TEST_F(gpu, clusters_have_the_size_that_kernel_and_launch_agree_on)
{
	static const char image[] = PTX_HEAD_90
		PTX_CLUSTER("plain", "")
		PTX_CLUSTER("pair", ".explicitcluster\n.reqnctapercluster 2, 1, 1")
		PTX_CLUSTER("deep", ".maxclusterrank 8\n.reqnctapercluster 1, 1, 2")
		PTX_CLUSTER("mapped", ".blocksareclusters\n.reqntid 1\n.reqnctapercluster 2, 2")
		PTX_CLUSTER("any", ".explicitcluster\n.maxclusterrank 4");
	static const struct {
		const char *name;
		unsigned int size[3], want;	/* want 0: refused */
		const char *why;
	} is[] = {
		{ "plain", { 1, 1, 1 }, 1, NULL }, { "plain", { 4, 2, 1 }, 8, NULL },
		{ "plain", { 4, 2, 2 }, 0, "4x2x2" }, { "plain", { 3, 1, 1 }, 0, "3x1x1" },
		{ "plain", { 1, 1, 4 }, 0, "1x1x4" }, { "pair", { 2, 1, 1 }, 2, NULL },
		{ "pair", { 1, 1, 1 }, 0, "2x1x1" }, { "deep", { 1, 1, 2 }, 2, NULL },
		{ "deep", { 2, 1, 1 }, 0, "1x1x2" }, { "mapped", { 2, 2, 1 }, 0, ".blocksareclusters" },
		{ "any", { 4, 1, 1 }, 4, NULL }, { "any", { 4, 2, 1 }, 0, "4x2x1" },
	};
	CUfunction f;
	FILE *log = log_to_file();
	CUdeviceptr p;
	void *params[] = { &p };
	CUmodule m;
	int w = 77;

	ASSERT_NE(NULL, log);
	OK(cuModuleLoadData(&m, image));
	OK(cuMemAlloc(&p, 4));
	for (unsigned int i = 0; i < sizeof(is) / sizeof(is[0]); i++) {
		unsigned int v = 77;

		OK(cuModuleGetFunction(&f, m, is[i].name));
		OK(cuMemcpyHtoD(p, &v, 4));
		EXPECT_EQ(is[i].want ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE,
			  launch_cluster(f, is[i].size[0], is[i].size[1], is[i].size[2], params))
			TH_LOG("%s, %ux%ux%u", is[i].name, is[i].size[0], is[i].size[1], is[i].size[2]);
		OK(cuMemcpyDtoH(&v, p, 4));
		EXPECT_EQ(is[i].want ? is[i].want : 77, v);
		if (is[i].why)
			EXPECT_EQ(1, log_has(log, is[i].name, is[i].why)) TH_LOG("%s", is[i].why);
	}
	/* sizes that no launch gives: the kernel's, the function's, and none where one is needed */
	OK(cuModuleGetFunction(&f, m, "deep"));
	OK(cuFuncGetAttribute(&w, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, f));
	EXPECT_EQ(2, w);
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch1(f, 4, 1, NULL, params));
	OK(cuModuleGetFunction(&f, m, "pair"));
	OK(launch1(f, 4, 1, NULL, params));
	OK(cuMemcpyDtoH(&w, p, 4));
	EXPECT_EQ(2, w);
	OK(cuModuleGetFunction(&f, m, "any"));
	OK(cuFuncGetAttribute(&w, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, f));
	EXPECT_EQ(1, w);
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch1(f, 4, 1, NULL, params));
	EXPECT_EQ(1, log_has(log, "any", ".explicitcluster"));
	OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4));
	OK(launch1(f, 4, 1, NULL, params));
	OK(cuMemcpyDtoH(&w, p, 4));
	EXPECT_EQ(4, w);
	OK(cuModuleGetFunction(&f, m, "plain"));
	OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
	OK(launch_cluster(f, 4, 2, 2, params));
	OK(cuMemcpyDtoH(&w, p, 4));
	EXPECT_EQ(16, w);
	fclose(log);
}

/* A node keeps its clusters when it gets other parameters. */
TEST_F(gpu, a_graphs_node_runs_in_clusters)
{
	unsigned int v = 0;
	CUdeviceptr p;
	void *params[] = { &p };
	CUDA_KERNEL_NODE_PARAMS k = { .gridDimX = 8, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
				      .blockDimY = 1, .blockDimZ = 1, .kernelParams = params };
	CUlaunchAttributeValue size = { .clusterDim = { 4, 1, 1 } };
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph g;
	CUmodule m;

	OK(cuModuleLoadData(&m, PTX_HEAD_90 PTX_CLUSTER("plain", "")));
	OK(cuModuleGetFunction(&k.func, m, "plain"));
	OK(cuMemAlloc(&p, 4));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddKernelNode(&node, g, NULL, 0, &k));
	OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &size));
	k.gridDimX = 6;
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, cuGraphKernelNodeSetParams(node, &k));
	k.gridDimX = 16;
	OK(cuGraphKernelNodeSetParams(node, &k));
	OK(cuGraphInstantiate(&exec, g, 0));
	OK(cuGraphLaunch(exec, NULL));
	OK(cuMemcpyDtoH(&v, p, 4));
	EXPECT_EQ(4, v);
}

/* Each thread stores 100 more than what a thread of the other warp has, which that does likewise. */
#define PTX_EXCHANGE							\
	".visible .entry exchange(.param .u64 p)\n{\n"			\
	".reg .b32 %r<8>; .reg .b64 %d<3>; .shared .align 4 .b32 s[64];\n" \
	"mov.u32 %r1, %tid.x; mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;\n" \
	"st.shared.u32 [%r4], %r1; bar.sync 0;\n"			\
	"xor.b32 %r5, %r3, 128; add.u32 %r5, %r5, %r2; ld.shared.u32 %r6, [%r5];\n" \
	"add.u32 %r6, %r6, 100; st.shared.u32 [%r4], %r6; bar.sync 0; ld.shared.u32 %r6, [%r4];\n" \
	"ld.param.u64 %d1, [p]; cvta.to.global.u64 %d1, %d1; mul.wide.u32 %d2, %r1, 4;\n" \
	"add.s64 %d1, %d1, %d2; st.global.u32 [%d1], %r6; ret;\n}\n"

TEST_F(gpu, stores_come_late_where_that_is_asked_for)
{
	unsigned int v[64];
	CUdeviceptr p;
	void *params[] = { &p };
	CUfunction f;
	CUmodule m;

	setenv("SINGVGPU_SOFT_ORDER", "late-store", 1);
	OK(cuModuleLoadData(&m, PTX_HEAD PTX_EXCHANGE));
	OK(cuModuleGetFunction(&f, m, "exchange"));
	OK(cuMemAlloc(&p, sizeof(v)));
	OK(launch1(f, 1, 64, NULL, params));
	OK(cuMemcpyDtoH(v, p, sizeof(v)));
	for (unsigned int i = 0; i < 64; i++)
		EXPECT_EQ((i ^ 32) + 100, v[i]);
}

TEST_F(gpu, kernels_that_launch_kernels_are_refused_by_name)
{
	FILE *log = log_to_file();
	CUfunction f;
	CUmodule m;

	ASSERT_NE(NULL, log);
	OK(cuModuleLoadData(&m, PTX_HEAD
		".extern .func (.param .b64 r) __cuda_syscall_cnpv2GetParameterBufferV2(.param .b64 p);\n"
		".extern .func (.param .b64 r) another(.param .b64 p);\n"
		".visible .entry nests()\n{\n.param .b64 p; .param .b64 r;\n"
		"call (r), __cuda_syscall_cnpv2GetParameterBufferV2, (p);\nret;\n}\n"
		".visible .entry calls()\n{\n.param .b64 p; .param .b64 r;\n"
		"call (r), another, (p);\nret;\n}\n"));
	OK(cuModuleGetFunction(&f, m, "nests"));
	FAILS(CUDA_ERROR_INVALID_PTX, launch1(f, 1, 1, NULL, NULL));
	EXPECT_EQ(1, log_has(log, "kernel nests ", "kernels that launch kernels"));
	OK(cuModuleGetFunction(&f, m, "calls"));
	FAILS(CUDA_ERROR_INVALID_PTX, launch1(f, 1, 1, NULL, NULL));
	EXPECT_EQ(1, log_has(log, "kernel calls ", "another has no definition"));
	EXPECT_EQ(0, log_has(log, "kernel calls ", "launch kernels"));
	fclose(log);
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
