// SPDX-License-Identifier: Apache-2.0
/*
 * window.c - whether a driver places the device window as asked, and the cost of its VMM calls
 *
 * window DRIVER BASE LENGTH: reserves LENGTH bytes at BASE (both hexadecimal) in a new process, maps
 * CHUNKS granules in it and unmaps them. Prints "base ADDRESS" and "NAME MICROSECONDS" lines. Exit
 * status 0: the hint was honoured; 1: it was not; 4: no driver or device.
 */
#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHUNKS 256
#define GRANULE (2ull << 20)

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

#define FUNCTIONS(X) \
	X(cuInit, "cuInit") X(cuDeviceGetCount, "cuDeviceGetCount") \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain") \
	X(cuCtxSetCurrent, "cuCtxSetCurrent") X(cuMemAddressReserve, "cuMemAddressReserve") \
	X(cuMemCreate, "cuMemCreate") X(cuMemMap, "cuMemMap") X(cuMemSetAccess, "cuMemSetAccess") \
	X(cuMemUnmap, "cuMemUnmap") X(cuMemRelease, "cuMemRelease")

#define DECLARE(f, name) static __typeof__(&f) p_##f;
FUNCTIONS(DECLARE)

static void check(CUresult rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "%s: %d\n", what, rc);
	exit(1);
}
#define CHECK(x) check(x, #x)

static void load(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW);

	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(4);
	}
#define LOAD(f, name) \
	p_##f = (__typeof__(p_##f))dlsym(lib, name); \
	if (!p_##f) { \
		fprintf(stderr, "%s: no %s\n", path, name); \
		exit(4); \
	}
	FUNCTIONS(LOAD)
}

static void chunks(CUdeviceptr base)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemAccessDesc access = { .location = prop.location,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	static CUmemGenericAllocationHandle h[CHUNKS];
	double t[6];

	t[0] = now_us();
	for (int i = 0; i < CHUNKS; i++)
		CHECK(p_cuMemCreate(&h[i], GRANULE, &prop, 0));
	t[1] = now_us();
	for (int i = 0; i < CHUNKS; i++)
		CHECK(p_cuMemMap(base + i * GRANULE, GRANULE, 0, h[i], 0));
	t[2] = now_us();
	for (int i = 0; i < CHUNKS; i++)
		CHECK(p_cuMemSetAccess(base + i * GRANULE, GRANULE, &access, 1));
	t[3] = now_us();
	for (int i = 0; i < CHUNKS; i++)
		CHECK(p_cuMemUnmap(base + i * GRANULE, GRANULE));
	t[4] = now_us();
	for (int i = 0; i < CHUNKS; i++)
		CHECK(p_cuMemRelease(h[i]));
	t[5] = now_us();
	printf("create_us %.1f\nmap_us %.1f\nset_access_us %.1f\nunmap_us %.1f\nrelease_us %.1f\n",
	       (t[1] - t[0]) / CHUNKS, (t[2] - t[1]) / CHUNKS, (t[3] - t[2]) / CHUNKS,
	       (t[4] - t[3]) / CHUNKS, (t[5] - t[4]) / CHUNKS);
}

int main(int argc, char **argv)
{
	CUdeviceptr base, at = 0;
	CUcontext ctx;
	double t;
	int n = 0;

	if (argc != 4) {
		fprintf(stderr, "usage: window DRIVER BASE LENGTH\n");
		return 2;
	}
	load(argv[1]);
	base = strtoull(argv[2], NULL, 16);
	t = now_us();
	if (p_cuInit(0) || p_cuDeviceGetCount(&n) || !n)
		return 4;
	CHECK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
	CHECK(p_cuCtxSetCurrent(ctx));
	printf("init_us %.0f\n", now_us() - t);
	t = now_us();
	CHECK(p_cuMemAddressReserve(&at, strtoull(argv[3], NULL, 16), 0, base, 0));
	printf("reserve_us %.1f\nbase %#llx\n", now_us() - t, (unsigned long long)at);
	if (at == base)
		chunks(base);
	return at != base;
}
