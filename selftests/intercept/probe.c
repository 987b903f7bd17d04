// SPDX-License-Identifier: Apache-2.0
/*
 * probe.c - makes one query of the stand-ins and prints the answer; started by test-intercept
 *
 *   probe devices            number of devices, and each one's PCI bus id
 *   probe context N          a context on device N: the CUresult
 *   probe two                contexts on device 0, then on 1: the second's CUresult
 *   probe moves              from device 0 to 1 and back, with a pool that keeps its memory; and to 1 once
 *                            more, when a host function has run: the CUresult
 *   probe handles            cudart's handles for devices 0 and 1 differ; the device in use is 1; is 0?
 *   probe nvml               NVML's answers
 *   probe images FILE        loads an image five times
 *   probe bypass PATH        cuInit, PATH loaded, a module loaded; all succeed
 *   probe fork               cuInit here, calls in a child: their CUresults; and the parent still works
 *   probe busy BYTES         memory, copies, launches for ever, from several threads
 *   probe symbols            a few cuGetProcAddress results
 *   probe taken ADDRESS      its own memory mapped there: whether that worked; cuInit's result
 *   probe link               PTX through cuLink, loaded and run; and PTX that does not compile
 */
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char ptx[] =
	".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry fill(.param .u64 p, .param .u32 n) {\n"
	" .reg .pred %q; .reg .b32 %r<6>; .reg .b64 %d<4>;\n"
	" mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
	" mad.lo.u32 %r4, %r1, %r2, %r3; ld.param.u32 %r5, [n]; setp.ge.u32 %q, %r4, %r5;\n"
	" @%q ret; ld.param.u64 %d1, [p]; mul.wide.u32 %d2, %r4, 4; add.u64 %d3, %d1, %d2;\n"
	" st.global.u32 [%d3], %r4; ret; }\n";

static void *lib;

/* A driver function by name, called as a function of whatever takes these arguments. */
#define CU(name) ((__typeof__(&name))need(#name))
#define CU2(name) ((__typeof__(&name))need(#name "_v2"))

static void *need(const char *name)
{
	void *p = dlsym(lib, name);

	if (!p) {
		fprintf(stderr, "probe: no %s\n", name);
		exit(1);
	}
	return p;
}

static void check(CUresult rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "probe: %s: %d\n", what, rc);
	exit(1);
}
#define CHECK(x) check(x, #x)

static CUresult context(int dev)
{
	CUcontext ctx;
	CUresult rc = CU(cuDevicePrimaryCtxRetain)(&ctx, dev);

	return rc ? rc : CU(cuCtxSetCurrent)(ctx);
}

static void add_one(void *n)
{
	++*(int *)n;
}

/* Device dev's pool, with memory left in it, gives memory that works. */
static void visit(CUdevice dev)
{
	unsigned long long all = ~0ull;
	uint8_t bytes[4096] = { 0 };
	CUmemoryPool pool;
	CUdeviceptr p;

	CHECK(context(dev));
	CHECK(CU(cuDeviceGetDefaultMemPool)(&pool, dev));
	CHECK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	for (int i = 0; i < 2; i++) {
		CHECK(CU(cuMemAllocAsync)(&p, sizeof(bytes), NULL));
		CHECK(CU2(cuMemsetD8)(p, 7 + i, sizeof(bytes)));
		CHECK(CU2(cuMemcpyDtoH)(bytes, p, sizeof(bytes)));
		CHECK(CU(cuMemFreeAsync)(p, NULL));
		printf("%d ", bytes[0] + bytes[sizeof(bytes) - 1]);
	}
	CHECK(CU(cuCtxSynchronize)());
}

static void leave(CUdevice dev)
{
	CHECK(CU(cuCtxSetCurrent)(NULL));
	CHECK(CU2(cuDevicePrimaryCtxRelease)(dev));
}

static int moves(void)
{
	int n = 0;

	CHECK(CU(cuInit)(0));
	for (int i = 0; i < 3; i++) {
		visit(i & 1);
		leave(i & 1);
	}
	CHECK(context(0));
	CHECK(CU(cuLaunchHostFunc)(NULL, add_one, &n));
	CHECK(CU(cuCtxSynchronize)());
	leave(0);
	printf("%d %d", n, context(1));
	printf(" %d\n", context(0));
	return 0;
}

/* The runtime asks for every device's primary context first, and then uses one. */
static int handles(void)
{
	static const CUuuid cudart = { "\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9" };
	CUresult (*primary)(CUcontext *ctx, CUdevice dev);
	CUcontext ctx[2], current;
	unsigned int flags;
	const void *table;
	CUdevice dev = -1;
	int active = -1;

	CHECK(CU(cuInit)(0));
	CHECK(CU(cuGetExportTable)(&table, &cudart));
	memcpy(&primary, (const char *)table + 2 * sizeof(void *), sizeof(primary));
	CHECK(primary(&ctx[0], 0));
	CHECK(primary(&ctx[1], 1));
	CHECK(context(1));
	CHECK(CU(cuCtxGetCurrent)(&current));
	CHECK(CU(cuCtxGetDevice)(&dev));
	CHECK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
	printf("%d %d %d %d\n", ctx[0] != ctx[1], current == ctx[1], dev, active);
	return 0;
}

static int devices(void)
{
	int n = -1;
	char id[32];

	printf("%d", CU(cuInit)(0));
	if (!CU(cuDeviceGetCount)(&n))
		printf(" %d", n);
	for (int i = 0; i < n; i++) {
		CHECK(CU(cuDeviceGetPCIBusId)(id, sizeof(id), i));
		printf(" %s", id);
	}
	puts("");
	return 0;
}

/* What PyTorch asks when memory has run out: the processes on the device, in NVML's first form. */
static void processes(void *m, void *d)
{
	struct { unsigned int pid; unsigned long long used; } one = { 0, 0 };
	int (*ask)(void *, unsigned int *, void *);
	unsigned int n = 0;
	CUdeviceptr a;

	*(void **)&ask = dlsym(m, "nvmlDeviceGetComputeRunningProcesses");
	printf(" %d", ask(d, &n, NULL));	/* 7: insufficient size */
	printf(":%u", n);
	if (CU(cuInit)(0) || context(0) || CU2(cuMemAlloc)(&a, 64 << 20))
		return;
	printf(":%d", ask(d, &n, &one));
	printf(":%d", one.pid == (unsigned int)getpid());
	printf(":%d", one.used >= 64 << 20 && one.used < 1 << 30);
}

static int nvml(void)
{
	void *m = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*init)(void), (*count)(unsigned int *), (*by_index)(unsigned int, void **);
	int (*name)(void *, char *, unsigned int), (*off)(void), (*affinity)(void *);
	int (*link)(void *, unsigned int *);
	unsigned int n = 0;
	char text[96];
	void *d;

	if (!m) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	*(void **)&init = dlsym(m, "nvmlInit_v2");
	*(void **)&count = dlsym(m, "nvmlDeviceGetCount_v2");
	*(void **)&by_index = dlsym(m, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&name = dlsym(m, "nvmlDeviceGetName");
	*(void **)&off = dlsym(m, "nvmlShutdown");
	*(void **)&affinity = dlsym(m, "nvmlDeviceSetCpuAffinity");
	printf("%d", count(&n));	/* before nvmlInit: 1, uninitialized */
	printf(" %d", init());
	printf(" %d", count(&n));
	printf(" %u", n);
	for (unsigned int i = 0; i < n; i++)
		if (!by_index(i, &d) && !name(d, text, sizeof(text)))
			printf(" '%s'", text);
	*(void **)&link = dlsym(m, "nvmlDeviceGetCurrPcieLinkGeneration");
	printf(" %d", link(d, &n));
	printf(" %u", n);
	count(&n);
	printf(" %d", by_index(n, &d));	/* 2: invalid argument */
	printf(" %d", affinity(d));	/* 3: not supported */
	processes(m, d);
	printf(" %d", off());
	printf(" %d\n", off());	/* 1: uninitialized */
	return 0;
}

/* Loads the image in a file five times; prints each result. */
static int images(const char *path)
{
	static char image[1 << 20] __attribute__((aligned(16)));
	FILE *f = fopen(path, "r");
	CUmodule m;

	if (!f || !fread(image, 1, sizeof(image), f))
		return 1;
	fclose(f);
	CHECK(CU(cuInit)(0));
	CHECK(context(0));
	for (int i = 0; i < 5; i++)
		printf("%d ", CU(cuModuleLoadData)(&m, image));
	puts("");
	return 0;
}

static int bypass(const char *path)
{
	CUmodule m;

	CHECK(CU(cuInit)(0));
	CHECK(context(0));
	if (!dlopen(path, RTLD_NOW)) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	CHECK(CU(cuModuleLoadData)(&m, ptx));
	CHECK(CU(cuCtxSynchronize)());
	puts("loaded");
	return 0;
}

static int forks(void)
{
	CUdeviceptr d;
	CUcontext c;
	int st;

	CHECK(CU(cuInit)(0));
	CHECK(context(0));
	CHECK(CU2(cuMemAlloc)(&d, 4096));
	fflush(stdout);
	if (!fork()) {
		printf("%d %d %d %d\n", CU(cuInit)(0), CU(cuCtxGetCurrent)(&c),
		       CU2(cuMemAlloc)(&d, 4096), CU(cuCtxSynchronize)());
		fflush(stdout);
		_exit(0);
	}
	wait(&st);
	CHECK(CU2(cuMemFree)(d));
	CHECK(CU(cuCtxSynchronize)());
	printf("%d\n", st);
	return 0;
}

struct job {
	CUfunction f;
	size_t bytes;
};

static void *toil(void *arg)
{
	struct job *j = arg;
	unsigned int n = j->bytes / 4;
	void *host = malloc(j->bytes), *pinned;
	CUdeviceptr d;
	CUstream s;

	CHECK(context(0));
	CHECK(CU(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING));
	for (;;) {
		void *params[] = { &d, &n };

		CHECK(CU2(cuMemAlloc)(&d, j->bytes));
		CHECK(CU(cuMemHostAlloc)(&pinned, j->bytes, 0));
		CHECK(CU2(cuMemcpyHtoDAsync)(d, host, j->bytes, s));
		CHECK(CU(cuLaunchKernel)(j->f, (n + 255) / 256, 1, 1, 256, 1, 1, 0, s, params, NULL));
		CHECK(CU2(cuMemcpyDtoHAsync)(pinned, d, j->bytes, s));
		CHECK(CU(cuStreamSynchronize)(s));
		CHECK(CU(cuMemFreeHost)(pinned));
		CHECK(CU2(cuMemFree)(d));
	}
	return NULL;
}

static int busy(size_t bytes)
{
	struct job j = { .bytes = bytes };
	pthread_t t[2];
	CUmodule m;

	CHECK(CU(cuInit)(0));
	CHECK(context(0));
	CHECK(CU(cuModuleLoadData)(&m, ptx));
	CHECK(CU(cuModuleGetFunction)(&j.f, m, "fill"));
	puts("busy");
	fflush(stdout);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, toil, &j);
	pthread_join(t[0], NULL);
	return 0;
}

static int linking(void)
{
	char log[1024] = "", bad[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
		".visible .entry f( {{\n";
	CUjit_option opt[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *values[] = { log, (void *)sizeof(log) }, *image;
	unsigned int n = 1000, out[1000];
	CUlinkState state;
	CUfunction f;
	CUmodule m;
	CUdeviceptr d;
	size_t len;
	int rc;

	CHECK(CU(cuInit)(0));
	CHECK(context(0));
	CHECK(CU2(cuLinkCreate)(0, NULL, NULL, &state));
	CHECK(CU2(cuLinkAddData)(state, CU_JIT_INPUT_PTX, (void *)ptx, sizeof(ptx), "p", 0, NULL,
				 NULL));
	CHECK(CU(cuLinkComplete)(state, &image, &len));
	CHECK(CU(cuModuleLoadData)(&m, image));
	CHECK(CU(cuLinkDestroy)(state));
	CHECK(CU(cuModuleGetFunction)(&f, m, "fill"));
	CHECK(CU2(cuMemAlloc)(&d, sizeof(out)));
	CHECK(CU(cuLaunchKernel)(f, 4, 1, 1, 256, 1, 1, 0, NULL, (void *[]){ &d, &n }, NULL));
	CHECK(CU2(cuMemcpyDtoH)(out, d, sizeof(out)));
	for (unsigned int i = 0; i < n; i++)
		if (out[i] != i)
			return 1;
	CHECK(CU2(cuLinkCreate)(2, opt, values, &state));
	rc = CU2(cuLinkAddData)(state, CU_JIT_INPUT_PTX, bad, sizeof(bad), "p", 0, NULL, NULL);
	if (!rc)
		rc = CU(cuLinkComplete)(state, &image, &len);
	if (!rc)	/* a driver may compile as late as that */
		rc = CU(cuModuleLoadData)(&m, image);
	CHECK(CU(cuLinkDestroy)(state));
	printf("%d %d\n", rc, CU(cuLinkDestroy)(state));
	return 0;
}

static int symbols(void)
{
	static const struct {
		const char *name;
		int version;
	} ask[] = {
		{ "cuMemAlloc", 3020 }, { "cuMemAlloc", 2000 }, { "cuInit", 13000 },
		{ "cuGetProcAddress", 12000 }, { "cuNoSuchThing", 13000 }, { "cuMemcpy", 3999 },
	};
	CUdriverProcAddressQueryResult why;
	void *p;

	for (unsigned int i = 0; i < sizeof(ask) / sizeof(ask[0]); i++) {
		CUresult rc = CU2(cuGetProcAddress)(ask[i].name, &p, ask[i].version, 0, &why);

		printf("%s%d,%d,%d", i ? " " : "", rc, why, !!p);
	}
	puts("");
	return 0;
}

static int taken(uint64_t address)
{
	void *at = (void *)address, *p;

	p = mmap(at, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	printf("%d %d\n", p == at, CU(cuInit)(0));
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	if (!strcmp(what, "devices"))
		return devices();
	if (!strcmp(what, "context") && argc > 2) {
		printf("%d ", CU(cuInit)(0));
		printf("%d\n", context(atoi(argv[2])));
		return 0;
	}
	if (!strcmp(what, "two")) {
		CHECK(CU(cuInit)(0));
		printf("%d ", context(0));
		printf("%d\n", context(1));
		return 0;
	}
	if (!strcmp(what, "moves"))
		return moves();
	if (!strcmp(what, "handles"))
		return handles();
	if (!strcmp(what, "images") && argc > 2)
		return images(argv[2]);
	if (!strcmp(what, "nvml"))
		return nvml();
	if (!strcmp(what, "bypass") && argc > 2)
		return bypass(argv[2]);
	if (!strcmp(what, "fork"))
		return forks();
	if (!strcmp(what, "busy") && argc > 2)
		return busy(strtoull(argv[2], NULL, 0));
	if (!strcmp(what, "symbols"))
		return symbols();
	if (!strcmp(what, "taken") && argc > 2)
		return taken(strtoull(argv[2], NULL, 0));
	if (!strcmp(what, "link"))
		return linking();
	fprintf(stderr, "probe: what?\n");
	return 2;
}
