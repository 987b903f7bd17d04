// SPDX-License-Identifier: Apache-2.0
/*
 * probe_device.c - probes of attributes, addresses, reset, clusters and tensor maps
 */
#define _GNU_SOURCE
#include "probe.h"
#include "windows.h"

#include <stdio.h>
#include <string.h>
#include <sys/personality.h>
#include <unistd.h>

/* Keeps a context, so that the driver stays initialised, until its stdin ends. */
int probe_hold(int argc, char **argv)
{
	char byte;

	(void)argc, (void)argv;
	begin_context();
	puts("ready");
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}

/* ---------------------------------------------------------------------------- attributes */

static const struct {
	CUdevice_attribute a;
	const char *name;
} attributes[] = {
#define ATTRIBUTE(name) { name, #name },
#include "attributes.h"	/* made from cuda.h */
};

static const struct {
	CUlimit limit;
	const char *name;
} limits[] = {
#define LIMIT(name) { name, #name }
	LIMIT(CU_LIMIT_STACK_SIZE), LIMIT(CU_LIMIT_PRINTF_FIFO_SIZE),
	LIMIT(CU_LIMIT_MALLOC_HEAP_SIZE), LIMIT(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH),
	LIMIT(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT), LIMIT(CU_LIMIT_MAX_L2_FETCH_GRANULARITY),
	LIMIT(CU_LIMIT_PERSISTING_L2_CACHE_SIZE),
};

/* Lines as in uproxy/softgpu/api/profile.c, and what is no attribute as comments. */
int probe_attrs(int argc, char **argv)
{
	char name[256];
	size_t total, least = 0, best = 0, value;
	int version, low = 0, high = 0, n = 0;
	CUmemAllocationProp prop = device_memory();

	(void)argc, (void)argv;
	begin_context();
	CHECK(cuDeviceGetName, name, sizeof(name), 0);
	CHECK(cuDeviceTotalMem, &total, 0);
	CHECK(cuDriverGetVersion, &version);
	for (size_t i = 0; i < COUNT(attributes); i++) {
		int v;
		CUresult rc = DRIVER(cuDeviceGetAttribute)(&v, attributes[i].a, 0);

		if (rc)
			printf("\t/* %s: %s */\n", attributes[i].name, code(rc));
		else
			printf("\t{ %s, %d },\n", attributes[i].name, v);
		n += !rc;
	}
	for (int a = CU_DEVICE_ATTRIBUTE_MAX; a < CU_DEVICE_ATTRIBUTE_MAX + 64; a++) {
		int v;

		if (!DRIVER(cuDeviceGetAttribute)(&v, a, 0))
			printf("\t{ %d, %d },\t/* newer than cuda.h */\n", a, v);
	}
	for (size_t i = 0; i < COUNT(limits); i++) {
		CUresult rc = DRIVER(cuCtxGetLimit)(&value, limits[i].limit);

		printf("\t/* %s: %s %zu */\n", limits[i].name, code(rc), rc ? 0 : value);
	}
	CHECK(cuMemGetAllocationGranularity, &least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	CHECK(cuMemGetAllocationGranularity, &best, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	CHECK(cuCtxGetStreamPriorityRange, &low, &high);
	printf("\t/* granularity %zu, recommended %zu; priorities %d to %d; free memory %zu */\n",
	       least, best, low, high, free_memory());
	printf("%s, %zu bytes, CUDA %d.%d, %d attributes\n", name, total, version / 1000,
	       version % 1000 / 10, n);
	return 0;
}

/* ----------------------------------------------------------------------------- addresses */

/* BASE:LEN[,...]: a line for each, "BASE:LEN 1|0 1|0": honoured before and with a context. */
int probe_windows(int argc, char **argv)
{
	struct sv_window w[SV_WINDOWS_MAX];
	CUdeviceptr at;
	int n = argc == 1 ? sv_windows_parse(argv[0], w) : -1;
	bool honoured[SV_WINDOWS_MAX][2] = { 0 };

	if (n < 0)
		leave(2, "usage: probe DRIVER windows BASE:LEN[,...]");
	for (int turn = 0; turn < 2; turn++) {
		turn ? begin_context() : begin();
		for (int i = 0; i < n; i++) {
			CUresult rc = DRIVER(cuMemAddressReserve)(&at, w[i].len, 0, w[i].base, 0);

			if (rc)
				fprintf(stderr, "%#lx:%#lx: %s\n", w[i].base, w[i].len, code(rc));
			else
				CHECK(cuMemAddressFree, at, w[i].len);
			honoured[i][turn] = !rc && at == w[i].base;
		}
	}
	for (int i = 0; i < n; i++)
		printf("%#lx:%ldG %d %d\n", w[i].base, w[i].len >> 30, honoured[i][0], honoured[i][1]);
	return 0;
}

/* Where things are in this process. "fixed": without address randomisation. */
int probe_variables(int argc, char **argv)
{
	CUdeviceptr word[2], room[2], small, large;
	CUmodule m[2];
	void *host;

	if (argc && !strcmp(argv[0], "fixed") && !(personality(-1) & ADDR_NO_RANDOMIZE)) {
		if (personality(personality(-1) | ADDR_NO_RANDOMIZE) < 0)
			leave(4, "personality: %m");
		execv("/proc/self/exe", argv - 3);
	}
	begin_context();
	for (int i = 0; i < 2; i++) {
		m[i] = load_kernels();
		CHECK(cuModuleGetGlobal, &word[i], NULL, m[i], "word");
		CHECK(cuModuleGetGlobal, &room[i], NULL, m[i], "room");
	}
	CHECK(cuMemAlloc, &small, 4096);
	CHECK(cuMemAlloc, &large, 64 * MIB);
	CHECK(cuMemHostAlloc, &host, 4096, CU_MEMHOSTALLOC_PORTABLE);
	printf("variables %#llx %#llx %#llx %#llx memory %#llx %#llx host %p\n", word[0], word[1],
	       room[0], room[1], small, large, host);
	return 0;
}

/* ------------------------------------------------------------------------------- context */

int probe_reset(int argc, char **argv)
{
	CUcontext ctx[3];
	CUdeviceptr p;
	unsigned int flags;
	int active = -1;
	CUresult set, alloc, sync;

	(void)argc, (void)argv;
	begin();
	CHECK(cuDevicePrimaryCtxRetain, &ctx[0], 0);
	CHECK(cuDevicePrimaryCtxRetain, &ctx[1], 0);
	CHECK(cuCtxSetCurrent, ctx[0]);
	printf("reset while retained twice: %s\n", code(DRIVER(cuDevicePrimaryCtxReset)(0)));
	CHECK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
	sync = DRIVER(cuCtxSynchronize)();
	alloc = DRIVER(cuMemAlloc)(&p, 4096);
	set = DRIVER(cuCtxSetCurrent)(ctx[0]);
	printf("after it: active %d, synchronise %s, allocate %s, set current %s\n", active, code(sync),
	       code(alloc), code(set));
	CHECK(cuDevicePrimaryCtxRetain, &ctx[2], 0);
	set = DRIVER(cuCtxSetCurrent)(ctx[2]);
	alloc = DRIVER(cuMemAlloc)(&p, 4096);
	printf("retained again: set current %s, allocate %s\n", code(set), code(alloc));
	for (int i = 0; i < 4; i++)
		printf("release %d: %s\n", i + 1, code(DRIVER(cuDevicePrimaryCtxRelease)(0)));
	printf("after a reset: active %d; retained: %s context, allocate %s\n", active,
	       ctx[2] == ctx[0] ? "the same" : "another", code(alloc));
	return alloc != 0;
}

/* ------------------------------------------------------------------------------ clusters */

static const char hopper_kernel[] =
	".version 8.0\n.target sm_90\n.address_size 64\n"
	".visible .entry nothing()\n{\n\tret;\n}\n";

int probe_clusters(int argc, char **argv)
{
	static const unsigned int sizes[] = { 0, 1, 2, 3, 4, 8, 16, 32 };
	CUlaunchAttribute attr = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION };
	CUlaunchConfig c = { .gridDimX = 96, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128,
			     .blockDimY = 1, .blockDimZ = 1, .attrs = &attr };
	CUfunction f;
	CUmodule m;
	int most = -1, n;

	(void)argc, (void)argv;
	begin_context();
	if (attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) <= 0)
		leave(4, "the device has no clusters");
	CHECK(cuModuleLoadData, &m, hopper_kernel);
	for (int k = 0; k < 3; k++) {
		static const char *const how[] = { "for 7.5", "for 9.0", "for 9.0, not portable" };

		if (k)
			CHECK(cuModuleGetFunction, &f, m, "nothing");
		else
			f = function("nothing");
		if (k == 2)
			check(DRIVER(cuFuncSetAttribute)(f,
				CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), how[k]);
		for (size_t i = 0; i < COUNT(sizes); i++) {
			CUresult rc, launched;

			attr.value.clusterDim.x = sizes[i];
			attr.value.clusterDim.y = attr.value.clusterDim.z = 1;
			c.numAttrs = sizes[i] != 0;
			n = -1;
			rc = DRIVER(cuOccupancyMaxActiveClusters)(&n, f, &c);
			launched = DRIVER(cuLaunchKernelEx)(&c, f, NULL, NULL);
			printf("%s, clusters of %u: %s %d; launch %s, end %s\n", how[k], sizes[i],
			       code(rc), n, code(launched), code(DRIVER(cuCtxSynchronize)()));
			if (!rc && k == 2)
				most = sizes[i];
		}
	}
	c.numAttrs = 0;
	n = -1;
	printf("cuOccupancyMaxPotentialClusterSize: %s ",
	       code(DRIVER(cuOccupancyMaxPotentialClusterSize)(&n, f, &c)));
	printf("%d; largest cluster that fits: %d\n", n, most);
	return 0;
}

/* --------------------------------------------------------------------------- tensor maps */

int probe_tensormap(int argc, char **argv)
{
	static const struct {
		CUtensorMapDataType type;
		unsigned int rank, bytes, box;
		CUtensorMapSwizzle swizzle;
	} maps[] = {
		{ CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, 2, 64, CU_TENSOR_MAP_SWIZZLE_128B },
		{ CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, 4, 256, CU_TENSOR_MAP_SWIZZLE_NONE },
		{ CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, 1, 32, CU_TENSOR_MAP_SWIZZLE_32B },
		{ CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, 2, 8, CU_TENSOR_MAP_SWIZZLE_NONE },
		{ CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, 2, 512, CU_TENSOR_MAP_SWIZZLE_NONE },
	};
	union {
		CUtensorMap map;
		unsigned char byte[sizeof(CUtensorMap)];
	} u;
	CUdeviceptr at;
	CUresult rc;
	int made = 0;

	(void)argc, (void)argv;
	begin_context();
	CHECK(cuMemAlloc, &at, 64 * MIB);
	printf("address %#llx\n", at);
	for (size_t i = 0; i < COUNT(maps); i++) {
		cuuint64_t dims[5] = { 512, 64, 8, 4, 2 }, strides[4];
		cuuint32_t box[5] = { maps[i].box, 8, 2, 1, 1 }, steps[5] = { 1, 1, 1, 1, 1 };

		strides[0] = dims[0] * maps[i].bytes;
		for (int d = 1; d < 4; d++)
			strides[d] = strides[d - 1] * dims[d];
		memset(&u, 0, sizeof(u));
		rc = DRIVER(cuTensorMapEncodeTiled)(&u.map, maps[i].type, maps[i].rank, (void *)at,
			dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, maps[i].swizzle,
			CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
		printf("type %d rank %u box %u swizzle %d: %s ", maps[i].type, maps[i].rank,
		       maps[i].box, maps[i].swizzle, code(rc));
		for (size_t b = 0; !rc && b < sizeof(u); b++)
			printf("%02x", u.byte[b]);
		putchar('\n');
		made += !rc;
	}
	if (!made)
		leave(4, "cuTensorMapEncodeTiled: %s", code(rc));
	printf("%d of %zu maps are encoded\n", made, COUNT(maps));
	return 0;
}
