// SPDX-License-Identifier: Apache-2.0
/*
 * api_h100.c - the soft driver with SINGVGPU_SOFT_PROFILE=h100: attributes, choice of images,
 * machine code that is read and recorded, clusters, registered memory, the profile's options
 *
 * kernels.cu is built as
 *   kernels.cubin       sm_90
 *   both.fatbin         sm_90 and PTX for it
 *   older.fatbin        sm_80 and PTX for it
 *   foreign.fatbin      sm_80 alone
 *   special.fatbin      sm_90 and sm_90a
 *   special_ptx.fatbin  PTX for sm_90a
 */
#include "../softgpu/api/api.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <sys/mman.h>

#include "fatbin.h"

unsigned long long softcuda_recorded(void);

__attribute__((constructor)) static void as_h100(void)
{
	setenv("SINGVGPU_SOFT_PROFILE", "h100", 1);
}

/* A file beside this program, whole; *len may be NULL. */
static void *built(const char *name, size_t *len)
{
	char path[4096], self[4000];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *p = NULL;
	FILE *f;

	if (n <= 0)
		return NULL;
	self[n] = 0;
	snprintf(path, sizeof(path), "%s/%s", dirname(self), name);
	f = fopen(path, "r");
	if (!f || fseek(f, 0, SEEK_END))
		return NULL;
	n = ftell(f);
	rewind(f);
	p = malloc(n);
	if (p && fread(p, 1, n, f) != (size_t)n)
		p = NULL;
	fclose(f);
	if (len)
		*len = n;
	return p;
}

static int device_attribute(CUdevice_attribute a)
{
	int v = -1;

	return cuDeviceGetAttribute(&v, a, 0) ? -1 : v;
}

static int func_attribute(CUfunction f, CUfunction_attribute a)
{
	int v = -1;

	return cuFuncGetAttribute(&v, a, f) ? -1 : v;
}

static CUlaunchAttribute cluster(unsigned int x, unsigned int y, unsigned int z)
{
	return (CUlaunchAttribute){ .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
				    .value.clusterDim = { x, y, z } };
}

/* Clusters of x blocks at once, of so many threads and bytes; a negative CUresult. */
static int at_once(CUfunction f, unsigned int x, unsigned int threads, unsigned int bytes)
{
	CUlaunchAttribute a = cluster(x, 1, 1);
	CUlaunchConfig c = { .gridDimX = x, .gridDimY = 1, .gridDimZ = 1, .blockDimX = threads,
			     .blockDimY = 1, .blockDimZ = 1, .sharedMemBytes = bytes, .attrs = &a,
			     .numAttrs = x != 0 };
	int n = -1;
	CUresult r = cuOccupancyMaxActiveClusters(&n, f, &c);

	return r ? -(int)r : n;
}

TEST_F(gpu, attributes_are_those_of_an_h100)
{
	char name[128];
	size_t memory;

	EXPECT_EQ(9, device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
	EXPECT_EQ(0, device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
	EXPECT_EQ(132, device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
	EXPECT_EQ(1, device_attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH));
	EXPECT_EQ(232448, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
	EXPECT_EQ(50 << 20, device_attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
	EXPECT_EQ(4, device_attribute(CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT));
	OK(cuDeviceGetName(name, sizeof(name), 0));
	EXPECT_NE(NULL, strstr(name, "H100"));
	EXPECT_NE(NULL, strstr(name, "singvgpu"));
	OK(cuDeviceTotalMem(&memory, 0));
	EXPECT_EQ(79ull << 30, memory);
}

TEST(unknown_profiles_are_refused)
{
	setenv("SINGVGPU_SOFT_PROFILE", "h1000", 1);
	FAILS(CUDA_ERROR_SYSTEM_NOT_READY, cuInit(0));
	FAILS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&(int){ 0 }));
}

TEST(unknown_options_are_refused)
{
	setenv("SINGVGPU_SOFT_PROFILE", "h100,no-hints,fast", 1);
	FAILS(CUDA_ERROR_SYSTEM_NOT_READY, cuInit(0));
}

/* ------------------------------------------------------------------ machine code */

TEST_F(gpu, a_cubin_has_its_kernels_with_their_parameters)
{
	void *image = built("kernels.cubin", NULL);
	size_t off, size;
	unsigned int n;
	CUfunction f;

	ASSERT_NE(NULL, image);
	OK(cuModuleLoadData(&self->mod, image));
	free(image);		/* the driver has its own copy */
	OK(cuModuleGetFunctionCount(&n, self->mod));
	EXPECT_EQ(6, n);
	FAILS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, self->mod, "absent"));

	OK(cuModuleGetFunction(&f, self->mod, "simple"));
	OK(cuFuncGetParamInfo(f, 0, &off, &size));
	EXPECT_EQ(0, off);
	EXPECT_EQ(8, size);
	OK(cuFuncGetParamInfo(f, 1, &off, &size));
	EXPECT_EQ(8, off);
	EXPECT_EQ(1, size);
	OK(cuFuncGetParamInfo(f, 2, &off, &size));
	EXPECT_EQ(16, off);
	EXPECT_EQ(8, size);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 3, &off, &size));
	EXPECT_EQ(0, func_attribute(f, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
	EXPECT_EQ(0, func_attribute(f, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
	EXPECT_EQ(1024, func_attribute(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
	EXPECT_EQ(90, func_attribute(f, CU_FUNC_ATTRIBUTE_BINARY_VERSION));
	EXPECT_EQ(64, func_attribute(f, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
	EXPECT_GT(func_attribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS), 3);
	EXPECT_LT(func_attribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS), 64);

	OK(cuModuleGetFunction(&f, self->mod, "bounded"));
	OK(cuFuncGetParamInfo(f, 0, &off, &size));
	EXPECT_EQ(56, size);
	OK(cuFuncGetParamInfo(f, 1, &off, &size));
	EXPECT_EQ(56, off);
	EXPECT_EQ(256, func_attribute(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
	EXPECT_EQ(1200, func_attribute(f, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));

	OK(cuModuleGetFunction(&f, self->mod, "frame"));
	EXPECT_GE(func_attribute(f, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), 400);

	OK(cuModuleGetFunction(&f, self->mod, "pairs"));
	EXPECT_EQ(1, func_attribute(f, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET));
	EXPECT_EQ(2, func_attribute(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH));
	EXPECT_EQ(1, func_attribute(f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT));
}

TEST_F(gpu, large_parameters_of_machine_code)
{
	static char buf[32768];
	void *image = built("kernels.cubin", NULL);
	size_t off, size, bytes;
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, buf, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
			  CU_LAUNCH_PARAM_END };
	CUfunction f;

	ASSERT_NE(NULL, image);
	OK(cuModuleLoadData(&self->mod, image));
	free(image);
	OK(cuModuleGetFunction(&f, self->mod, "twenty_kb"));
	OK(cuFuncGetParamInfo(f, 0, &off, &size));
	EXPECT_EQ(0, off);
	EXPECT_EQ(20000, size);
	OK(cuFuncGetParamInfo(f, 1, &off, &size));
	EXPECT_EQ(20000, off);
	EXPECT_EQ(8, size);
	OK(cuFuncGetParamInfo(f, 2, &off, &size));
	EXPECT_EQ(20008, off);
	EXPECT_EQ(2, size);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 3, &off, &size));
	bytes = 20010;
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	bytes = 20016;		/* with the padding of a struct */
	FAILS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
	      cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	OK(cuCtxSynchronize());
}

TEST_F(gpu, a_cubin_has_its_variables_with_their_values)
{
	void *image = built("kernels.cubin", NULL);
	CUdeviceptr table, at;
	float c[16] = { 0 };
	uint64_t into = 0;
	size_t size;
	int v = 0;

	ASSERT_NE(NULL, image);
	OK(cuModuleLoadData(&self->mod, image));
	OK(cuModuleGetGlobal(&at, &size, self->mod, "plain"));
	EXPECT_EQ(4, size);
	OK(cuMemcpyDtoH(&v, at, 4));
	EXPECT_EQ(5, v);
	OK(cuModuleGetGlobal(&table, &size, self->mod, "table"));
	EXPECT_EQ(400, size);
	OK(cuMemcpyDtoH(&v, table + 396, 4));
	EXPECT_EQ(0, v);
	OK(cuModuleGetGlobal(&at, &size, self->mod, "into_table"));
	OK(cuMemcpyDtoH(&into, at, 8));
	EXPECT_EQ(table + 12, into);
	OK(cuModuleGetGlobal(&at, &size, self->mod, "constants"));
	EXPECT_EQ(64, size);
	OK(cuMemcpyDtoH(c, at, 64));
	EXPECT_EQ(3, c[2]);
	EXPECT_EQ(0, c[3]);
	OK(cuModuleGetGlobal(&at, &size, self->mod, "shared_with_host"));
	EXPECT_EQ(7, *(int *)at);
	FAILS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&at, &size, self->mod, "simple"));
	FAILS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&at, &size, self->mod, "only_sm_90a"));
}

/* Launches store() of an image. -1: an error; else what it has stored. */
static int stored(const char *file)
{
	void *image = built(file, NULL);
	CUdeviceptr p = 0;
	CUfunction f;
	CUmodule m;
	int v = -1;

	if (!image || cuModuleLoadData(&m, image) || cuModuleGetFunction(&f, m, "store") ||
	    cuMemAlloc(&p, 4) || cuMemsetD32(p, 1, 1) ||
	    launch1(f, 1, 1, NULL, (void *[]){ &p }) || cuCtxSynchronize() || cuMemcpyDtoH(&v, p, 4))
		v = -1;
	free(image);
	return v;
}

TEST_F(gpu, machine_code_is_preferred_and_recorded)
{
	EXPECT_EQ(1, stored("both.fatbin"));
	EXPECT_EQ(1, softcuda_recorded());
	EXPECT_EQ(1, stored("kernels.cubin"));
	EXPECT_EQ(2, softcuda_recorded());
}

TEST_F(gpu, ptx_runs_where_there_is_no_machine_code)
{
	EXPECT_EQ(77, stored("older.fatbin"));
	EXPECT_EQ(77, stored("special_ptx.fatbin"));
	setenv("CUDA_FORCE_PTX_JIT", "1", 1);
	EXPECT_EQ(77, stored("both.fatbin"));
	EXPECT_EQ(0, softcuda_recorded());
}

TEST_F(gpu, machine_code_for_another_device_is_refused)
{
	void *image = built("foreign.fatbin", NULL);
	uint8_t *cubin = built("kernels.cubin", NULL);

	ASSERT_NE(NULL, image);
	ASSERT_NE(NULL, cubin);
	FAILS(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&self->mod, image));
	ASSERT_EQ(90, cubin[49]);
	cubin[49] = 80;			/* the architecture in e_flags */
	FAILS(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&self->mod, cubin));
	cubin[49] = 90;
	OK(cuModuleLoadData(&self->mod, cubin));
}

TEST_F(gpu, code_for_this_part_alone_is_preferred)
{
	void *image = built("special.fatbin", NULL);
	CUdeviceptr at;

	ASSERT_NE(NULL, image);
	OK(cuModuleLoadData(&self->mod, image));
	OK(cuModuleGetGlobal(&at, NULL, self->mod, "only_sm_90a"));
}

static uint64_t random_state = 12345;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

TEST_F(gpu, damaged_machine_code_is_refused_or_harmless)
{
	static const char *const kernels[] = { "simple", "bounded", "pairs", "frame", "store" };
	size_t len, refused = 0;
	uint8_t *cubin = built("kernels.cubin", &len), *image;
	struct fatbin head = { FATBIN_MAGIC, FATBIN_VERSION, sizeof(head), 0 };
	struct fatbin_entry e = { .kind = FATBIN_KIND_ELF, .header = sizeof(e), .arch = 90 };

	ASSERT_NE(NULL, cubin);
	e.padded = len;
	head.size = sizeof(e) + len;
	image = malloc(sizeof(head) + sizeof(e) + len);
	ASSERT_NE(NULL, image);
	memcpy(image, &head, sizeof(head));
	memcpy(image + sizeof(head), &e, sizeof(e));
	for (int i = 0; i < 3000; i++) {
		uint8_t *to = image + sizeof(head) + sizeof(e);

		memcpy(to, cubin, len);
		/* one time in two within the tables: headers, symbols and attributes */
		for (int j = next_random() % 4; j >= 0; j--) {
			size_t at = next_random() & 1 ? 0xe00 + next_random() % 0x600 :
							next_random() % len;

			to[at % len] = next_random();
		}
		if (cuModuleLoadData(&self->mod, image)) {
			refused++;
			continue;
		}
		for (int k = 0; k < 5; k++) {
			CUfunction f;

			if (cuModuleGetFunction(&f, self->mod, kernels[k]))
				continue;
			for (int a = 0; a < CU_FUNC_ATTRIBUTE_MAX; a++)
				func_attribute(f, a);
			at_once(f, 2, 64, 0);
		}
		OK(cuModuleUnload(self->mod));
	}
	EXPECT_GT(refused, 100);
	EXPECT_LT(refused, 2990);
}

/* ---------------------------------------------------------------------- clusters */

static CUresult launch_at(CUdeviceptr p, CUfunction f, unsigned int grid, unsigned int x,
			  unsigned int y)
{
	CUlaunchAttribute a = cluster(x, y, 1);
	CUlaunchConfig c = { .gridDimX = grid, .gridDimY = y, .gridDimZ = 1, .blockDimX = 32,
			     .blockDimY = 1, .blockDimZ = 1, .attrs = &a, .numAttrs = x != 0 };

	return cuLaunchKernelEx(&c, f, (void *[]){ &p }, NULL);
}

/* Machine code, which does not run. */
static CUresult launch_in(CUfunction f, unsigned int grid, unsigned int x, unsigned int y)
{
	return launch_at(0, f, grid, x, y);
}

FIXTURE(code) {
	CUcontext ctx;
	CUmodule mod;
	CUfunction store, pairs;
};

FIXTURE_SETUP(code)
{
	void *image = built("kernels.cubin", NULL);

	ASSERT_NE(NULL, image);
	OK(cuInit(0));
	OK(cuCtxCreate(&self->ctx, NULL, 0, 0));
	OK(cuModuleLoadData(&self->mod, image));
	OK(cuModuleGetFunction(&self->store, self->mod, "store"));
	OK(cuModuleGetFunction(&self->pairs, self->mod, "pairs"));
}

FIXTURE_TEARDOWN(code)
{
	cuCtxDestroy(self->ctx);
}

TEST_F(code, launches_in_clusters_obey_hopper)
{
	OK(launch_in(self->store, 8, 8, 1));
	OK(launch_in(self->store, 8, 2, 4));
	OK(launch_in(self->store, 3, 0, 1));
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_in(self->store, 9, 2, 1));
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_in(self->store, 16, 16, 1));
	OK(cuFuncSetAttribute(self->store, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
	OK(launch_in(self->store, 16, 16, 1));
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_in(self->store, 32, 32, 1));
	/* a kernel with a size of its own */
	OK(launch_in(self->pairs, 4, 0, 1));
	OK(launch_in(self->pairs, 4, 2, 1));
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_in(self->pairs, 4, 4, 1));
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_in(self->pairs, 3, 0, 1));
	FAILS(CUDA_ERROR_NOT_PERMITTED,
	      cuFuncSetAttribute(self->pairs, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4));
	OK(cuFuncSetAttribute(self->store, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4));
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_in(self->store, 6, 0, 1));
	OK(launch_in(self->store, 8, 0, 1));
	OK(cuCtxSynchronize());
	EXPECT_EQ(7, softcuda_recorded());
}

TEST_F(code, occupancy_of_clusters_is_hoppers)
{
	int n = -1;
	CUlaunchConfig c = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1024,
			     .blockDimY = 1, .blockDimZ = 1 };

	OK(cuFuncSetAttribute(self->store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200000));
	/* with 200000 bytes a block has a multiprocessor for itself */
	EXPECT_EQ(132, at_once(self->store, 1, 128, 200000));
	EXPECT_EQ(66, at_once(self->store, 2, 128, 200000));
	EXPECT_EQ(32, at_once(self->store, 4, 128, 200000));
	EXPECT_EQ(16, at_once(self->store, 8, 128, 200000));
	EXPECT_EQ(132, at_once(self->store, 2, 1024, 0));
	EXPECT_EQ(-912, at_once(self->store, 0, 128, 0));
	EXPECT_EQ(-912, at_once(self->store, 16, 128, 0));
	EXPECT_EQ(-912, at_once(self->store, 3 * 8, 128, 0));
	EXPECT_EQ(-912, at_once(self->pairs, 4, 128, 0));
	EXPECT_EQ(132, at_once(self->pairs, 0, 1024, 0));
	EXPECT_EQ(132, at_once(self->pairs, 2, 1024, 0));
	EXPECT_EQ(0, at_once(self->store, 2, 1025, 0));

	OK(cuOccupancyMaxPotentialClusterSize(&n, self->store, &c));
	EXPECT_EQ(8, n);
	OK(cuOccupancyMaxPotentialClusterSize(&n, self->pairs, &c));
	EXPECT_EQ(2, n);
	OK(cuFuncSetAttribute(self->store, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
	OK(cuOccupancyMaxPotentialClusterSize(&n, self->store, &c));
	EXPECT_EQ(16, n);
	EXPECT_EQ(8, at_once(self->store, 16, 128, 200000));
}

TEST_F(gpu, kernels_that_run_have_clusters)
{
	void *image = built("older.fatbin", NULL);
	CUdeviceptr p;
	CUfunction f;
	int v = 0;

	ASSERT_NE(NULL, image);
	OK(cuModuleLoadData(&self->mod, image));
	OK(cuModuleGetFunction(&f, self->mod, "store"));
	EXPECT_EQ(132, at_once(f, 2, 1024, 0));
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_in(f, 3, 2, 1));
	OK(cuMemAlloc(&p, 4));
	OK(launch_at(p, f, 2, 2, 1));
	OK(cuMemcpyDtoH(&v, p, 4));
	EXPECT_EQ(77, v);
	EXPECT_EQ(0, softcuda_recorded());
}

TEST_F(code, a_graph_records_clusters)
{
	CUdeviceptr p = 0;
	CUDA_KERNEL_NODE_PARAMS k = { .func = self->store, .gridDimX = 8, .gridDimY = 1,
				      .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
				      .kernelParams = (void *[]){ &p } };
	CUlaunchAttributeValue v = cluster(4, 1, 1).value, got = { 0 };
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph graph;

	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &k));
	OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &v));
	OK(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &got));
	EXPECT_EQ(4, got.clusterDim.x);
	v.clusterDim.x = 3;
	FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE,
	      cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &v));
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphLaunch(exec, NULL));
	OK(cuCtxSynchronize());
	EXPECT_EQ(1, softcuda_recorded());
}

/* ------------------------------------------------------------------------ memory */

TEST_F(gpu, no_copy_leaves_a_registration)
{
	size_t half = 64 << 10, page = 4096;
	char *p = mmap(NULL, 3 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUDA_MEMCPY2D rows = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = p, .srcPitch = half,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstPitch = page,
			       .WidthInBytes = page, .Height = 2 };
	CUdeviceptr d;

	ASSERT_NE(MAP_FAILED, p);
	OK(cuMemAlloc(&d, 3 * half));
	rows.dstDevice = d;
	OK(cuMemcpyHtoD(d, p, 3 * half));		/* all pageable */
	OK(cuMemHostRegister(p, half, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(d, p, half + 1));
	OK(cuMemHostRegister(p + half, half, 0));
	OK(cuMemcpyHtoD(d, p, half));
	OK(cuMemcpyHtoD(d, p + half, half));
	OK(cuMemcpyHtoD(d, p + 2 * half, half));	/* pageable behind it */
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(d, p, 2 * half));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(d, p + half - 1, 2, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(p + half - 1, d, 2));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(p + 2 * half - 1, d, 2));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuMemcpyAsync(d, (CUdeviceptr)(uintptr_t)p, 2 * half, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&rows));
	OK(cuMemHostUnregister(p + half));
	OK(cuMemHostUnregister(p));
	OK(cuMemcpyHtoD(d, p, 2 * half));
	OK(cuMemcpy2D(&rows));
	OK(cuMemHostRegister(p, 2 * half, 0));
	OK(cuMemcpyHtoD(d, p, 2 * half));
}

TEST(reservations_take_their_hint_without_it)
{
	size_t len = 64 << 20;
	CUdeviceptr at, again;

	OK(cuInit(0));
	OK(cuMemAddressReserve(&at, len, 0, 0, 0));
	OK(cuMemAddressFree(at, len));
	OK(cuMemAddressReserve(&again, len, 0, at, 0));
	EXPECT_EQ(at, again);
}

TEST(reservations_ignore_their_hint_if_asked_to)
{
	size_t len = 64 << 20;
	CUdeviceptr at, again;

	setenv("SINGVGPU_SOFT_PROFILE", "h100,no-hints", 1);
	OK(cuInit(0));
	OK(cuMemAddressReserve(&at, len, 0, 0, 0));
	OK(cuMemAddressReserve(&again, len, 0, at - 2 * len, 0));
	EXPECT_NE(at - 2 * len, again);
	OK(cuMemAddressFree(again, len));
}

static CUdeviceptr variable(const char *name, CUlibrary *lib)
{
	CUdeviceptr at = 0;
	char text[256];

	snprintf(text, sizeof(text), ".version 8.0\n.target sm_75\n.address_size 64\n"
		 ".visible .global .u32 %s;\n", name);
	return cuLibraryLoadData(lib, text, NULL, NULL, 0, NULL, NULL, 0) ||
	       cuLibraryGetGlobal(&at, NULL, *lib, name) ? 0 : at;
}

TEST(variables_lie_in_the_order_of_loads_if_asked_to)
{
	CUlibrary lib[4];
	CUdeviceptr at[4];
	CUcontext ctx;

	setenv("SINGVGPU_SOFT_PROFILE", "h100,moved-variables", 1);
	OK(cuInit(0));
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	for (int i = 0; i < 3; i++) {
		at[i] = variable((const char *[]){ "x", "a", "m" }[i], &lib[i]);
		ASSERT_NE(0, at[i]);
		EXPECT_EQ(at[0] + i * 0x10000, at[i]);
	}
	OK(cuLibraryUnload(lib[1]));
	at[3] = variable("z", &lib[3]);
	EXPECT_EQ(at[1], at[3]);
}

static void CUDA_CB stamp(void *to)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	*(uint64_t *)to = ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* The shortest of 20 times from a stream without work to its host function. */
static uint64_t callback_ns(void)
{
	uint64_t begin, end, best = ~0ull;
	CUcontext ctx;

	if (cuInit(0) || cuCtxCreate(&ctx, NULL, 0, 0))
		return 0;
	for (int i = 0; i < 20; i++) {
		stamp(&begin);
		if (cuLaunchHostFunc(NULL, stamp, &end) || cuCtxSynchronize())
			return 0;
		if (end - begin < best)
			best = end - begin;
	}
	cuCtxDestroy(ctx);
	return best;
}

TEST(host_functions_come_late_if_asked_to)
{
	setenv("SINGVGPU_SOFT_PROFILE", "h100,late-callbacks", 1);
	EXPECT_GE(callback_ns(), 100000);
}

TEST_HARNESS_MAIN
