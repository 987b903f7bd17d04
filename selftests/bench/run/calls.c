// SPDX-License-Identifier: Apache-2.0
/*
 * calls.c - what the most frequent driver calls cost the calling thread
 *
 * Prints "NAME NS" lines. It calls the libcuda.so.1 that it finds, so that the same program
 * measures the stand-in under `singvgpu run`, the soft driver in its own process, and NVIDIA's
 * driver.
 *
 * Calls that only enqueue are made in bursts. The synchronisation behind each burst is not timed.
 * Bursts are shorter than the channel's ring, so that the device's speed is not measured.
 */
#include <cuda.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BURST 200
#define ROUNDS 60

static const char ptx[] =
	".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry empty() { ret; }\n"
	".visible .entry eight(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d,\n"
	"	.param .u32 e, .param .u32 f, .param .f32 g, .param .f32 h) { ret; }\n";

#define FUNCTIONS(X) \
	X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxGetCurrent) \
	X(cuCtxGetDevice) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) \
	X(cuCtxSynchronize) X(cuStreamSynchronize) X(cuStreamQuery) X(cuEventQuery) \
	X(cuPointerGetAttribute)
#define VERSIONED(X) \
	X(cuMemAlloc, _v2) X(cuMemFree, _v2) X(cuMemcpyHtoDAsync, _v2) X(cuMemcpyDtoHAsync, _v2) \
	X(cuMemHostAlloc, )
#define TYPED(X) \
	X(cuStreamCreate) X(cuEventCreate) X(cuEventRecord) X(cuStreamWaitEvent) \
	X(cuMemsetD8Async) X(cuLaunchHostFunc)

#define DECLARE(f) static __typeof__(&f) p_##f;
#define DECLARE_V(f, v) static __typeof__(&f) p_##f;
FUNCTIONS(DECLARE)
TYPED(DECLARE)
VERSIONED(DECLARE_V)

static void *sym(void *lib, const char *name)
{
	void *p = dlsym(lib, name);

	if (!p) {
		fprintf(stderr, "%s: not in libcuda.so.1\n", name);
		exit(1);
	}
	return p;
}

static void load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);

	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(4);
	}
#define LOAD(f) p_##f = (__typeof__(p_##f))sym(lib, #f);
#define LOAD_V(f, v) p_##f = (__typeof__(p_##f))sym(lib, #f #v);
	FUNCTIONS(LOAD)
	TYPED(LOAD)
	VERSIONED(LOAD_V)
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
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct {
	CUdeviceptr d;
	void *pinned, *pageable;
	CUstream s;
	CUevent e;
	CUfunction empty, eight;
} x;

static void launch(CUfunction f, void **params)
{
	CHECK(p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, x.s, params, NULL));
}

static void one_launch0(void)
{
	launch(x.empty, NULL);
}

static void one_launch8(void)
{
	uint64_t a = x.d, b = 1, c = 2, d = 3;
	uint32_t e = 4, f = 5;
	float g = 6, h = 7;
	void *params[] = { &a, &b, &c, &d, &e, &f, &g, &h };

	launch(x.eight, params);
}

static void one_getctx(void)
{
	CUcontext c;

	CHECK(p_cuCtxGetCurrent(&c));
}

static void one_getdevice(void)
{
	CUdevice d;

	CHECK(p_cuCtxGetDevice(&d));
}

static void one_record(void)
{
	CHECK(p_cuEventRecord(x.e, x.s));
}

static void one_wait(void)
{
	CHECK(p_cuStreamWaitEvent(x.s, x.e, 0));
}

static void one_memset(void)
{
	CHECK(p_cuMemsetD8Async(x.d, 0, 64, x.s));
}

static void one_h2d_pinned(void)
{
	CHECK(p_cuMemcpyHtoDAsync(x.d, x.pinned, 1024, x.s));
}

static void one_h2d_64k(void)
{
	CHECK(p_cuMemcpyHtoDAsync(x.d, x.pageable, 65536, x.s));
}

/* Of a stream that has something: the record's time is in it. */
static void one_sync(void)
{
	one_record();
	CHECK(p_cuStreamSynchronize(x.s));
}

static void one_sync_idle(void)
{
	CHECK(p_cuStreamSynchronize(x.s));
}

static void one_query(void)
{
	CHECK(p_cuStreamQuery(x.s));
}

static void one_event_query(void)
{
	CHECK(p_cuEventQuery(x.e));
}

static void one_busy(void)
{
	if (p_cuStreamQuery(x.s) != CUDA_ERROR_NOT_READY)
		check(CUDA_ERROR_UNKNOWN, "cuStreamQuery of a busy stream");
}

static void one_event_busy(void)
{
	if (p_cuEventQuery(x.e) != CUDA_ERROR_NOT_READY)
		check(CUDA_ERROR_UNKNOWN, "cuEventQuery behind a busy stream");
}

static int held;

static void CUDA_CB hold(void *arg)
{
	while (__atomic_load_n((int *)arg, __ATOMIC_ACQUIRE))
		usleep(1000);
}

static void one_pointer(void)
{
	unsigned int kind;

	CHECK(p_cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x.d));
}

static void measure(const char *name, void (*one)(void), int burst)
{
	double t[ROUNDS], t0;
	bool busy = one == one_busy || one == one_event_busy;

	for (int r = -3; r < ROUNDS; r++) {
		t0 = now();
		for (int i = 0; i < burst; i++)
			one();
		if (r >= 0)
			t[r] = (now() - t0) / burst;
		if (!busy)
			CHECK(p_cuCtxSynchronize());
	}
	qsort(t, ROUNDS, sizeof(t[0]), by_value);
	printf("%s %.1f\n", name, t[ROUNDS / 2]);
}

/* ------------------------------------------------------------------------------ NCCL */

struct id {			/* ncclUniqueId */
	char internal[128];
};

static void *comm;
static int (*all_reduce)(const void *, void *, size_t, int, int, void *, CUstream);

static void one_all_reduce(void)
{
	check((CUresult)all_reduce((void *)x.d, (void *)x.d, 64, 7, 0, comm, x.s), "ncclAllReduce");
}

/* Of a communicator of one rank: what the call costs, whatever the operation does. */
static void nccl(void)
{
	void *lib = getenv("SINGVGPU_SOCKET") ? dlopen("libnccl.so.2", RTLD_NOW) : NULL;
	int (*unique_id)(struct id *), (*init)(void **, int, struct id, int);
	const char *(*last)(void *);
	struct id id;

	if (!lib)
		return;
	unique_id = (__typeof__(unique_id))sym(lib, "ncclGetUniqueId");
	init = (__typeof__(init))sym(lib, "ncclCommInitRank");
	last = (__typeof__(last))sym(lib, "ncclGetLastError");
	all_reduce = (__typeof__(all_reduce))sym(lib, "ncclAllReduce");
	if (unique_id(&id) || init(&comm, 1, id, 0)) {
		fprintf(stderr, "no communicator: %s\n", last(NULL));
		return;
	}
	measure("nccl_allreduce_ns", one_all_reduce, BURST);
}

/* 10,000 launches and a synchronisation, in ms. */
static void launch10k(void)
{
	double t[5], t0;

	for (int r = -1; r < 5; r++) {
		t0 = now();
		for (int i = 0; i < 10000; i++)
			one_launch0();
		CHECK(p_cuStreamSynchronize(x.s));
		if (r >= 0)
			t[r] = (now() - t0) / 1e6;
	}
	qsort(t, 5, sizeof(t[0]), by_value);
	printf("launch10k_ms %.3f\n", t[2]);
}

int main(void)
{
	CUcontext ctx;
	CUmodule m;

	load();
	CHECK(p_cuInit(0));
	CHECK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
	CHECK(p_cuCtxSetCurrent(ctx));
	CHECK(p_cuModuleLoadData(&m, ptx));
	CHECK(p_cuModuleGetFunction(&x.empty, m, "empty"));
	CHECK(p_cuModuleGetFunction(&x.eight, m, "eight"));
	CHECK(p_cuMemAlloc(&x.d, 1 << 20));
	CHECK(p_cuMemHostAlloc(&x.pinned, 1 << 20, 0));
	CHECK(p_cuStreamCreate(&x.s, CU_STREAM_NON_BLOCKING));
	CHECK(p_cuEventCreate(&x.e, 0));
	x.pageable = calloc(1, 1 << 20);
	launch10k();
	measure("getctx_ns", one_getctx, 10000);
	measure("getdevice_ns", one_getdevice, 10000);
	measure("launch0_ns", one_launch0, BURST);
	measure("launch8_ns", one_launch8, BURST);
	measure("event_record_ns", one_record, BURST);
	measure("stream_wait_event_ns", one_wait, BURST);
	measure("memset_async_ns", one_memset, BURST);
	measure("memcpy_h2d_pinned_1k_ns", one_h2d_pinned, BURST);
	measure("memcpy_h2d_64k_ns", one_h2d_64k, 40);
	measure("pointer_attribute_ns", one_pointer, BURST);
	measure("stream_query_ns", one_query, BURST);
	measure("event_query_ns", one_event_query, BURST);
	measure("sync_idle_ns", one_sync_idle, BURST);
	measure("sync_rtt_ns", one_sync, BURST);
	held = 1;
	CHECK(p_cuLaunchHostFunc(x.s, hold, &held));
	one_record();
	measure("stream_query_busy_ns", one_busy, BURST);
	measure("event_query_busy_ns", one_event_busy, BURST);
	__atomic_store_n(&held, 0, __ATOMIC_RELEASE);
	CHECK(p_cuStreamSynchronize(x.s));
	nccl();
	return 0;
}
