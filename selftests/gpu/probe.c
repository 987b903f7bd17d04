// SPDX-License-Identifier: Apache-2.0
/*
 * probe.c - asks a CUDA driver, by itself, what singvgpu has to know of it: `probe DRIVER NAME [ARG]...`
 *
 * The driver is loaded by dlopen, so that only a libc is needed.
 */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char kernels[] =
	".version 8.1\n.target sm_75\n.address_size 64\n"
	".visible .global .align 4 .u32 word = 7;\n"
	".visible .global .align 8 .u64 room[131072];\n"
	".visible .entry nothing()\n{\n\tret;\n}\n"
	".visible .entry spin(.param .u64 ns)\n{\n"
	"	.reg .pred %p;\n	.reg .b64 %r<4>;\n"
	"	ld.param.u64 %r0, [ns];\n	mov.u64 %r1, %globaltimer;\n"
	"again:\n"
	"	mov.u64 %r2, %globaltimer;\n	sub.u64 %r3, %r2, %r1;\n"
	"	setp.lt.u64 %p, %r3, %r0;\n	@%p bra again;\n	ret;\n}\n"
	".visible .entry store(.param .u64 to, .param .u64 value)\n{\n"
	"	.reg .b64 %r<2>;\n	.reg .b32 %v;\n"
	"	ld.param.u64 %r0, [to];\n	ld.param.u32 %v, [value];\n"
	"	st.volatile.global.u32 [%r0], %v;\n	ret;\n}\n"
	".visible .entry big(.param .u64 to, .param .align 8 .b8 many[8000])\n{\n"
	"	.reg .b64 %r<2>;\n	.reg .b32 %v;\n"
	"	ld.param.u64 %r0, [to];\n	ld.param.u32 %v, [many+7996];\n"
	"	st.global.u32 [%r0], %v;\n	ret;\n}\n";

static void *driver;
static CUmodule module;

void leave(int status, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	exit(status);
}

void *symbol(const char *name)
{
	void *f = dlsym(driver, name);

	if (!f)
		leave(4, "the driver has no %s", name);
	return f;
}

const char *code(CUresult rc)
{
	const char *name = NULL;

	if (!rc)
		return "ok";
	if (DRIVER(cuGetErrorName)(rc, &name) || !name)
		return "unknown";
	return strncmp(name, "CUDA_ERROR_", 11) ? name : name + 11;
}

void check(CUresult rc, const char *what)
{
	if (rc)
		leave(1, "%s: %s (%d)", what, code(rc), rc);
}

volatile uint64_t *host_words(CUdeviceptr *there)
{
	void *words;

	CHECK(cuMemHostAlloc, &words, 4096, CU_MEMHOSTALLOC_DEVICEMAP);
	CHECK(cuMemHostGetDevicePointer, there, words, 0);
	return words;
}

CUstream new_stream(void)
{
	CUstream s;

	CHECK(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
	return s;
}

double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *v, int n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[n / 2];
}

void begin(void)
{
	CUresult rc = DRIVER(cuInit)(0);
	int n = 0;

	if (rc || DRIVER(cuDeviceGetCount)(&n) || !n)
		leave(4, "no device: cuInit: %s", code(rc));
}

void begin_context(void)
{
	CUcontext ctx;

	begin();
	CHECK(cuDevicePrimaryCtxRetain, &ctx, 0);
	CHECK(cuCtxSetCurrent, ctx);
}

int attribute(CUdevice_attribute a)
{
	int v = 0;

	return DRIVER(cuDeviceGetAttribute)(&v, a, 0) ? -1 : v;
}

CUmodule load_kernels(void)
{
	CUmodule m;

	CHECK(cuModuleLoadData, &m, kernels);
	return m;
}

CUlibrary load_library(void)
{
	CUlibrary l;

	CHECK(cuLibraryLoadData, &l, kernels, NULL, NULL, 0, NULL, NULL, 0);
	return l;
}

CUfunction function(const char *name)
{
	CUfunction f;

	if (!module)
		module = load_kernels();
	CHECK(cuModuleGetFunction, &f, module, name);
	return f;
}

CUresult launch(CUfunction f, CUstream s, int n, const uint64_t *params)
{
	void *p[4];

	for (int i = 0; i < n; i++)
		p[i] = (void *)&params[i];
	return DRIVER(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, s, p, NULL);
}

CUresult spin(CUstream s, double us)
{
	uint64_t ns = us * 1e3;

	return launch(function("spin"), s, 1, &ns);
}

size_t free_memory(void)
{
	size_t free, total;

	CHECK(cuMemGetInfo, &free, &total);
	return free;
}

CUmemAllocationProp device_memory(void)
{
	return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
}

void allow(CUdeviceptr at, size_t len)
{
	CUmemAccessDesc rw = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
			       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	CHECK(cuMemSetAccess, at, len, &rw, 1);
}

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} probes[] = {
	{ "attrs", probe_attrs },
	{ "behind", probe_behind },
	{ "bignodes", probe_bignodes },
	{ "callbacks", probe_callbacks },
	{ "clusters", probe_clusters },
	{ "driver-checkpoint", probe_driver_checkpoint },
	{ "extra", probe_extra },
	{ "hold", probe_hold },
	{ "link", probe_link },
	{ "params", probe_params },
	{ "queue", probe_queue },
	{ "register", probe_register },
	{ "reset", probe_reset },
	{ "share", probe_share },
	{ "tensormap", probe_tensormap },
	{ "variables", probe_variables },
	{ "vmm", probe_vmm },
	{ "waits", probe_waits },
	{ "windows", probe_windows },
};

int main(int argc, char **argv)
{
	if (argc < 3)
		leave(2, "usage: probe DRIVER NAME [ARG]...");
	driver = dlopen(argv[1], RTLD_NOW);
	if (!driver)
		leave(4, "%s", dlerror());
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < COUNT(probes); i++)
		if (!strcmp(argv[2], probes[i].name))
			return probes[i].run(argc - 3, argv + 3);
	leave(2, "no probe is called %s", argv[2]);
}
