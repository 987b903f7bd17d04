// SPDX-License-Identifier: Apache-2.0
/*
 * managed.c - rates of managed memory, beside memory of the device and pinned memory of the host
 *
 * Prints "NAME GB/s" lines. Like calls.c it calls the libcuda.so.1 that it finds. NVIDIA's driver moves
 * pages of managed memory to where they are used. Through singvgpu they are pinned memory of the
 * host, so each use by the device crosses the bus.
 */
#include <cuda.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEN (128u << 20)
#define ROUNDS 5
#define THREADS 256
#define BLOCKS 1024

/* Each thread adds up 16 bytes of every BLOCKS * THREADS * 16 and stores its sum. */
static const char ptx[] =
	".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry add_up(.param .u64 from, .param .u64 len, .param .u64 to)\n{\n"
	"	.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<9>;\n"
	"	ld.param.u64 %d1, [from]; ld.param.u64 %d2, [len]; ld.param.u64 %d3, [to];\n"
	"	mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
	"	mad.lo.u32 %r1, %r1, %r2, %r3;\n"
	"	mul.wide.u32 %d4, %r1, 4; add.u64 %d3, %d3, %d4;\n"
	"	mul.wide.u32 %d4, %r1, 16;\n"
	"	mov.u32 %r8, 0;\n"
	"next:	setp.ge.u64 %p, %d4, %d2;\n"
	"	@%p bra end;\n"
	"	add.u64 %d5, %d1, %d4;\n"
	"	ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d5];\n"
	"	add.u32 %r4, %r4, %r5; add.u32 %r6, %r6, %r7; add.u32 %r4, %r4, %r6;\n"
	"	add.u32 %r8, %r8, %r4;\n"
	"	add.u64 %d4, %d4, 4194304;\n"
	"	bra next;\n"
	"end:	st.global.u32 [%d3], %r8;\n"
	"	ret;\n}\n";
_Static_assert(BLOCKS * THREADS * 16 == 4194304, "the step in ptx");

static void *lib;
#define CU(f) ((__typeof__(&f))need(#f))
#define CU2(f) ((__typeof__(&f))need(#f "_v2"))

static void *need(const char *name)
{
	void *p = dlsym(lib, name);

	if (!p) {
		fprintf(stderr, "%s: not in libcuda.so.1\n", name);
		exit(1);
	}
	return p;
}

static void check(CUresult rc, const char *what)
{
	if (rc) {
		fprintf(stderr, "%s: %d\n", what, rc);
		exit(1);
	}
}
#define CHECK(x) check(x, #x)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static CUfunction add_up;
static CUdeviceptr sums;

static void device_reads(CUdeviceptr from)
{
	uint64_t len = LEN;
	void *params[] = { &from, &len, &sums };

	CHECK(CU(cuLaunchKernel)(add_up, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
	CHECK(CU(cuCtxSynchronize)());
}

static void device_writes(CUdeviceptr to)
{
	CHECK(CU2(cuMemsetD8)(to, 1, LEN));
	CHECK(CU(cuCtxSynchronize)());
}

static void host_reads(CUdeviceptr from)
{
	const volatile uint64_t *p = (const void *)(uintptr_t)from;
	uint64_t sum = 0;

	for (size_t i = 0; i < LEN / sizeof(*p); i++)
		sum += p[i];
	(void)sum;
}

static void host_writes(CUdeviceptr to)
{
	memset((void *)(uintptr_t)to, 1, LEN);
}

/* The median rate of `timed` behind `before`, which may be NULL. */
static void measure(const char *name, CUdeviceptr at, void (*before)(CUdeviceptr),
		    void (*timed)(CUdeviceptr))
{
	double t[ROUNDS];

	for (int i = -1; i < ROUNDS; i++) {
		double t0;

		if (before)
			before(at);
		t0 = now();
		timed(at);
		if (i >= 0)
			t[i] = now() - t0;
	}
	qsort(t, ROUNDS, sizeof(t[0]), by_value);
	printf("%s %.2f\n", name, LEN / t[ROUNDS / 2] * 1e-9);
}

int main(void)
{
	CUdeviceptr device, managed;
	CUcontext ctx;
	CUmodule m;
	void *pinned;

	lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 4;
	}
	CHECK(CU(cuInit)(0));
	CHECK(CU(cuDevicePrimaryCtxRetain)(&ctx, 0));
	CHECK(CU(cuCtxSetCurrent)(ctx));
	CHECK(CU(cuModuleLoadData)(&m, ptx));
	CHECK(CU(cuModuleGetFunction)(&add_up, m, "add_up"));
	CHECK(CU2(cuMemAlloc)(&device, LEN));
	CHECK(CU2(cuMemAlloc)(&sums, BLOCKS * THREADS * 4));
	CHECK(CU(cuMemAllocManaged)(&managed, LEN, CU_MEM_ATTACH_GLOBAL));
	CHECK(CU(cuMemHostAlloc)(&pinned, LEN, 0));
	host_writes((uintptr_t)pinned);
	device_writes(device);
	measure("device_reads_device", device, NULL, device_reads);
	measure("device_reads_pinned", (uintptr_t)pinned, NULL, device_reads);
	measure("device_reads_managed", managed, NULL, device_reads);
	measure("device_reads_managed_after_host", managed, host_writes, device_reads);
	measure("device_writes_managed_after_host", managed, host_writes, device_writes);
	measure("host_reads_managed_after_device", managed, device_writes, host_reads);
	measure("host_reads_managed", managed, NULL, host_reads);
	return 0;
}
