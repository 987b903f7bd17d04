// SPDX-License-Identifier: Apache-2.0
/*
 * driver_modules.cu - code by the driver API: modules and libraries from files and from the
 * program's own fat binary, their contents, functions' attributes and states, the linker, block
 * sizes by occupancy.
 */
#include "driver.cuh"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <string>

#define PTX_HEAD ".version 8.0\n.target sm_75\n.address_size 64\n"

/* put(p, v): *p = v */
#define PTX_PUT								\
	".visible .entry put(.param .u64 p, .param .u32 v)\n{\n"	\
	".reg .b32 %r<2>; .reg .b64 %d<3>;\n"				\
	"ld.param.u64 %d1, [p]; ld.param.u32 %r1, [v];\n"		\
	"cvta.to.global.u64 %d2, %d1; st.global.u32 [%d2], %r1; ret;\n}\n"
/* bump(p): *p += 1 */
#define PTX_BUMP							\
	".visible .entry bump(.param .u64 p)\n{\n"			\
	".reg .b32 %r<3>; .reg .b64 %d<3>;\n"				\
	"ld.param.u64 %d1, [p]; cvta.to.global.u64 %d2, %d1;\n"		\
	"ld.global.u32 %r1, [%d2]; add.u32 %r2, %r1, 1; st.global.u32 [%d2], %r2; ret;\n}\n"
#define PTX_TWICE_DECL ".extern .func (.param .b32 r) twice(.param .b32 x);\n"
#define PTX_TWICE							\
	".visible .func (.param .b32 r) twice(.param .b32 x)\n{\n"	\
	".reg .b32 %r<3>; ld.param.u32 %r1, [x]; shl.b32 %r2, %r1, 1;\n"	\
	"st.param.b32 [r], %r2; ret;\n}\n"
/* doubled(p): *p = twice(*p), which is in another file */
#define PTX_DOUBLED							\
	".visible .entry doubled(.param .u64 p)\n{\n"			\
	".reg .b32 %r<3>; .reg .b64 %d<3>;\n"				\
	"ld.param.u64 %d1, [p]; cvta.to.global.u64 %d2, %d1; ld.global.u32 %r1, [%d2];\n"	\
	"{ .param .b32 x0; .param .b32 r0; st.param.b32 [x0], %r1;\n"	\
	"call.uni (r0), twice, (x0); ld.param.b32 %r2, [r0]; }\n"	\
	"st.global.u32 [%d2], %r2; ret;\n}\n"

__global__ void sums(int *out)
{
	extern __shared__ int s[];

	s[threadIdx.x * 256] = threadIdx.x;
	__syncthreads();
	if (!threadIdx.x) {
		int sum = 0;

		for (unsigned int i = 0; i < blockDim.x; i++)
			sum += s[i * 256];
		*out = sum;
	}
}

static std::string file_of(const std::string &text)
{
	char name[] = "/tmp/driver_modules-XXXXXX";
	int fd = mkstemp(name);

	EXPECT(fd >= 0 && write(fd, text.data(), text.size()) == (ssize_t)text.size());
	close(fd);
	return name;
}

static CUdeviceptr d;

static int run(CUfunction f, int v = 0)
{
	void *args[] = { &d, &v };
	int got;

	CU(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
	CU(cuMemcpyDtoH(&got, d, 4));
	return got;
}

/* Both functions of a module are there once, by name. */
static void contents(CUmodule m)
{
	CUfunction f[3], put, one;
	CUfunctionLoadingState state;
	const char *name;
	unsigned int n;
	CUmodule of;
	int seen = 0;

	CU(cuModuleGetFunctionCount(&n, m));
	EXPECT_EQ(n, 2);
	CU_INVALID(cuModuleGetFunctionCount(NULL, m));
	POISON(f);
	CU(cuModuleEnumerateFunctions(f, 2, m));
	EXPECT(f[2] == (CUfunction)0x5a5a5a5a5a5a5a5a);
	CU_INVALID(cuModuleEnumerateFunctions(NULL, 2, m));
	CU(cuModuleGetFunction(&put, m, "put"));
	for (int i = 0; i < 2; i++) {
		CU(cuFuncGetName(&name, f[i]));
		seen |= !strcmp(name, "put") ? 1 : !strcmp(name, "bump") ? 2 : 4;
		EXPECT_EQ(!strcmp(name, "put"), f[i] == put);
		CU(cuFuncGetModule(&of, f[i]));
		EXPECT(of == m);
		CU(cuFuncLoad(f[i]));
		CU(cuFuncIsLoaded(&state, f[i]));
		EXPECT_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
	}
	EXPECT_EQ(seen, 3);
	CU(cuModuleEnumerateFunctions(&one, 1, m));
	EXPECT(one == f[0] || one == f[1]);
	CU_ERROR(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&put, m, "puts"));
	CU_INVALID(cuFuncGetName(NULL, f[0]));
	CU_INVALID(cuFuncGetModule(NULL, f[0]));
	CU_INVALID(cuFuncIsLoaded(NULL, f[0]));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuFuncLoad(NULL));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuFuncGetName(&name, NULL));
	EXPECT_EQ(run(f[0] == put ? f[0] : f[1], 40), 40);
	EXPECT_EQ(run(f[0] == put ? f[1] : f[0]), 41);
}

static void modules(const char *path, const char *broken)
{
	CUmodule m;

	CU(cuModuleLoad(&m, path));
	contents(m);
	CU(cuModuleUnload(m));
	CU_ERROR(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/nonexistent/file.ptx"));
	CU_ERROR(CUDA_ERROR_INVALID_PTX, cuModuleLoad(&m, broken));
	CU_INVALID(cuModuleLoad(&m, NULL));
	CU_INVALID(cuModuleLoad(NULL, path));
	CU_INVALID(cuModuleLoadFatBinary(&m, NULL));
}

static void libraries(const char *path)
{
	CUfunction f, put;
	CUlibrary l, of;
	const char *name;
	unsigned int n;
	CUkernel k[2];
	CUmodule m, again;
	int v;

	CU(cuLibraryLoadFromFile(&l, path, NULL, NULL, 0, NULL, NULL, 0));
	CU(cuLibraryGetKernelCount(&n, l));
	EXPECT_EQ(n, 2);
	CU(cuLibraryEnumerateKernels(k, 2, l));
	EXPECT(k[0] != k[1]);
	CU(cuLibraryGetModule(&m, l));
	contents(m);
	CU(cuLibraryGetModule(&again, l));
	EXPECT(again == m);
	CU(cuModuleGetFunction(&put, m, "put"));
	for (int i = 0; i < 2; i++) {
		CU(cuKernelGetName(&name, k[i]));
		EXPECT(!strcmp(name, "put") || !strcmp(name, "bump"));
		CU(cuKernelGetLibrary(&of, k[i]));
		EXPECT(of == l);
		CU(cuKernelGetFunction(&f, k[i]));
		v = fetch<int>(d, 1)[0];
		EXPECT_EQ(run(f, 12), !strcmp(name, "put") ? 12 : v + 1);
		v = fetch<int>(d, 1)[0];
		EXPECT_EQ(run((CUfunction)k[i], 13), !strcmp(name, "put") ? 13 : v + 1);
		CU(cuKernelSetCacheConfig(k[i], CU_FUNC_CACHE_PREFER_SHARED, 0));
		CU(cuKernelGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, k[i], 0));
		EXPECT(v >= 32);
	}
	CU_INVALID(cuLibraryGetKernelCount(NULL, l));
	CU_INVALID(cuLibraryEnumerateKernels(NULL, 2, l));
	CU_INVALID(cuLibraryGetModule(NULL, l));
	CU_INVALID(cuKernelGetLibrary(NULL, k[0]));
	CU_INVALID(cuKernelGetName(NULL, k[0]));
	CU_INVALID(cuKernelSetCacheConfig(k[0], (CUfunc_cache)17, 0));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuKernelGetLibrary(&of, NULL));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetKernelCount(&n, NULL));
	CU(cuLibraryUnload(l));
	CU_ERROR(CUDA_ERROR_FILE_NOT_FOUND,
		 cuLibraryLoadFromFile(&l, "/nonexistent/file", NULL, NULL, 0, NULL, NULL, 0));
	CU_INVALID(cuLibraryLoadFromFile(NULL, path, NULL, NULL, 0, NULL, NULL, 0));
	CU_INVALID(cuLibraryLoadFromFile(&l, NULL, NULL, NULL, 0, NULL, NULL, 0));
}

struct fat_header {
	unsigned int magic;
	unsigned short version, size;
	unsigned long long len;
};

/* nvcc puts fat binaries into a section of the program; one of them is this file's. */
static void fat_binary(void)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	const unsigned char *p, *fat = NULL, *end = NULL;
	void *args[] = { &d };
	unsigned int n;
	CUfunction f = NULL;
	CUmodule m = NULL;
	struct stat st;

	EXPECT(fd >= 0 && !fstat(fd, &st));
	p = (const unsigned char *)mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	EXPECT(p != MAP_FAILED);
	const Elf64_Ehdr *e = (const Elf64_Ehdr *)p;
	const Elf64_Shdr *s = (const Elf64_Shdr *)(p + e->e_shoff);
	for (int i = 0; i < e->e_shnum; i++)
		if (!strcmp((const char *)p + s[e->e_shstrndx].sh_offset + s[i].sh_name, ".nv_fatbin")) {
			fat = p + s[i].sh_offset;
			end = fat + s[i].sh_size;
		}
	while (fat < end && !f) {
		const fat_header *h = (const fat_header *)fat;

		EXPECT_EQ(h->magic, 0xba55ed50);
		if (!cuModuleLoadFatBinary(&m, fat) && cuModuleGetFunction(&f, m, "_Z4sumsPi"))
			CU(cuModuleUnload(m));
		fat += (h->size + h->len + 7) & ~7ull;
	}
	EXPECT(f);
	CU(cuModuleGetFunctionCount(&n, m));
	EXPECT_EQ(n, 1);
	CU(cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, 8192, NULL, args, NULL));
	EXPECT_EQ(fetch<int>(d, 1)[0], 28);
	CU(cuModuleUnload(m));
	munmap((void *)p, st.st_size);
	close(fd);
}

/* More shared memory than by default is to be had only after asking for it. */
static void functions(void)
{
	CUfunction f = function_of((const void *)sums);
	void *args[] = { &d };
	int v;

	CU(cuFuncSetCacheConfig(f, CU_FUNC_CACHE_PREFER_SHARED));
	CU(cuFuncSetSharedMemConfig(f, CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
	CU_INVALID(cuFuncSetCacheConfig(f, (CUfunc_cache)17));
	CU_INVALID(cuFuncSetSharedMemConfig(f, (CUsharedconfig)17));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuFuncSetCacheConfig(NULL, CU_FUNC_CACHE_PREFER_L1));
	CU_INVALID(cuLaunchKernel(f, 1, 1, 1, 60, 1, 1, 60 * 1024, NULL, args, NULL));
	CU(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60 * 1024));
	CU(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
	EXPECT_EQ(v, 60 * 1024);
	CU(cuLaunchKernel(f, 1, 1, 1, 60, 1, 1, 60 * 1024, NULL, args, NULL));
	EXPECT_EQ(fetch<int>(d, 1)[0], 60 * 59 / 2);
	CU(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
	CU_INVALID(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101));
	CU_INVALID(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30));
	CU_INVALID(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));	/* to be read alone */
	CU_INVALID(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX, 1));
}

static void linking(const char *caller)
{
	char error[4096] = "";
	CUjit_option opt[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *val[] = { error, (void *)(uintptr_t)sizeof(error) };
	static char callee[] = PTX_HEAD PTX_TWICE;
	CUfunction f;
	CUlinkState l;
	CUmodule m;
	void *image;
	size_t len;

	CU(cuLinkCreate(2, opt, val, &l));
	CU(cuLinkAddFile(l, CU_JIT_INPUT_PTX, caller, 0, NULL, NULL));
	CU(cuLinkAddData(l, CU_JIT_INPUT_PTX, callee, sizeof(callee), "callee", 0, NULL, NULL));
	CU_ERROR(CUDA_ERROR_FILE_NOT_FOUND,
		 cuLinkAddFile(l, CU_JIT_INPUT_PTX, "/nonexistent/file.ptx", 0, NULL, NULL));
	CU_INVALID(cuLinkAddFile(l, CU_JIT_INPUT_PTX, NULL, 0, NULL, NULL));
	CU_INVALID(cuLinkAddData(l, CU_JIT_INPUT_PTX, NULL, 10, NULL, 0, NULL, NULL));
	CU_INVALID(cuLinkComplete(l, NULL, &len));
	CU(cuLinkComplete(l, &image, &len));
	EXPECT(len > 0);
	CU(cuModuleLoadData(&m, image));
	CU(cuLinkDestroy(l));
	CU(cuModuleGetFunction(&f, m, "doubled"));
	CU(cuMemsetD32(d, 21, 1));
	EXPECT_EQ(run(f), 42);
	EXPECT_EQ(run(f), 84);
	CU(cuModuleUnload(m));
	CU_INVALID(cuLinkCreate(0, NULL, NULL, NULL));
	CU_INVALID(cuLinkCreate(2, NULL, NULL, &l));

	/* without the other half it does not run; a driver may say so as late as that */
	void *args[] = { &d };
	CU(cuLinkCreate(0, NULL, NULL, &l));
	CU(cuLinkAddFile(l, CU_JIT_INPUT_PTX, caller, 0, NULL, NULL));
	EXPECT(cuLinkComplete(l, &image, NULL) || cuModuleLoadData(&m, image) ||
	       cuModuleGetFunction(&f, m, "doubled") ||
	       cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
	EXPECT_EQ(fetch<int>(d, 1)[0], 84);
	CU(cuLinkDestroy(l));
}

static size_t a_kilobyte_each(int threads)
{
	return threads * 1024ul;
}

/* A grid of that many blocks of that size is what fits at once; no other size of block fits more threads. */
static void occupancy(void)
{
	CUfunction f = function_of((const void *)sums);
	int grid, block, g, b, n, best = 0, sms;
	CUlaunchConfig c = {};
	CUlaunchAttribute a = {};
	CUdevice dev;
	int has;

	CU(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, -1));
	CU(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, a_kilobyte_each, 0, 0));
	for (int size = 32; size <= 1024; size += 32) {
		CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, f, size, size * 1024ul));
		best = n * size > best ? n * size : best;
	}
	EXPECT(best > 0);
	EXPECT_EQ(grid / sms * block, best);
	CU(cuOccupancyMaxPotentialBlockSizeWithFlags(&g, &b, f, a_kilobyte_each, 0, 0,
						     CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
	EXPECT(g == grid && b == block);
	CU(cuOccupancyMaxPotentialBlockSize(&g, &b, f, NULL, 0, 100));
	EXPECT(b > 0 && b <= 100);
	CU_INVALID(cuOccupancyMaxPotentialBlockSizeWithFlags(&g, &b, f, NULL, 0, 0, 1 << 20));
	CU_INVALID(cuOccupancyMaxPotentialBlockSize(NULL, &b, f, NULL, 0, 0));
	CU_INVALID(cuOccupancyMaxPotentialBlockSize(&g, NULL, f, NULL, 0, 0));
	sum_bytes(&grid, 4);
	sum_bytes(&block, 4);

	c.gridDimX = 16;
	c.gridDimY = c.gridDimZ = c.blockDimY = c.blockDimZ = 1;
	c.blockDimX = 64;
	CU(cuOccupancyMaxPotentialClusterSize(&n, f, &c));
	EXPECT(n >= 1 && n <= 16);
	CU_INVALID(cuOccupancyMaxPotentialClusterSize(NULL, f, &c));
	CU_INVALID(cuOccupancyMaxPotentialClusterSize(&n, f, NULL));
	sum_bytes(&n, 4);
	CU(cuOccupancyMaxActiveClusters(&n, f, &c));
	EXPECT(n >= 1);
	CU_INVALID(cuOccupancyMaxActiveClusters(NULL, f, &c));
	CU_INVALID(cuOccupancyMaxActiveClusters(&n, f, NULL));
	sum_bytes(&n, 4);
	/* how many clusters of 32 blocks fit, with all shared memory: where there are none, none */
	a.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
	a.value.clusterDim.x = 32;
	a.value.clusterDim.y = a.value.clusterDim.z = 1;
	c.gridDimX = 32;
	c.attrs = &a;
	c.numAttrs = 1;
	n = -1;
	CU(cuCtxGetDevice(&dev));
	CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, dev));
	if (!has) {
		CU(cuOccupancyMaxActiveClusters(&n, f, &c));
		EXPECT_EQ(n, 0);
	}
}

int main()
{
	std::string both = file_of(PTX_HEAD PTX_PUT PTX_BUMP), broken = file_of(PTX_HEAD "bad\n"),
		    caller = file_of(PTX_HEAD PTX_TWICE_DECL PTX_DOUBLED);

	CHECK(cudaFree(0));
	d = room(4096);
	modules(both.c_str(), broken.c_str());
	libraries(both.c_str());
	fat_binary();
	functions();
	linking(caller.c_str());
	occupancy();
	unlink(both.c_str());
	unlink(broken.c_str());
	unlink(caller.c_str());
	CU(cuCtxSynchronize());
	return job_passed("driver_modules");
}
