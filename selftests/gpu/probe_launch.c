// SPDX-License-Identifier: Apache-2.0
/*
 * probe_launch.c - probes of waiting, of callbacks after a fault, and of kernel parameters
 */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --------------------------------------------------------------------------------- waits */

static CUstream stream;
static CUevent spinning, blocking;
static volatile uint32_t *word;	/* host memory that the device writes */
static CUdeviceptr word_there, source;
static uint32_t number;

static void await_word(void)
{
	while (*word != number)
		;
}

static void CUDA_CB on_host(void *data)
{
	(void)data;
	__atomic_store_n(word, number, __ATOMIC_RELEASE);
}

static void CUDA_CB on_stream(CUstream s, CUresult rc, void *data)
{
	(void)s, (void)rc;
	on_host(data);
}

static void by_stream(void) { CHECK(cuStreamSynchronize, stream); }

static void by_event(CUevent e)
{
	CHECK(cuEventRecord, e, stream);
	CHECK(cuEventSynchronize, e);
}

static void by_spinning(void) { by_event(spinning); }
static void by_blocking(void) { by_event(blocking); }

static void by_callback(void)
{
	CHECK(cuStreamAddCallback, stream, on_stream, NULL, 0);
	await_word();
}

static void by_host_function(void)
{
	CHECK(cuLaunchHostFunc, stream, on_host, NULL);
	await_word();
}

static void by_written_value(void)
{
	CHECK(cuStreamWriteValue32, stream, word_there, number, 0);
	await_word();
}

static void by_kernel_store(void)
{
	uint64_t params[] = { word_there, number };

	check(launch(function("store"), stream, 2, params), "store");
	await_word();
}

static void by_copy(void)
{
	CHECK(cuMemsetD32Async, source, number, 1, stream);
	CHECK(cuMemcpyDtoHAsync, (void *)word, source, 4, stream);
	await_word();
}

static void by_event_query(void)
{
	CHECK(cuEventRecord, spinning, stream);
	while (DRIVER(cuEventQuery)(spinning) == CUDA_ERROR_NOT_READY)
		;
}

static void by_stream_query(void)
{
	while (DRIVER(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY)
		;
}

static const struct {
	const char *name;
	void (*wait)(void);
} waits[] = {
	{ "stream", by_stream }, { "stream-query", by_stream_query },
	{ "event", by_spinning }, { "event-blocking", by_blocking },
	{ "event-query", by_event_query }, { "callback", by_callback },
	{ "host-function", by_host_function }, { "written-value", by_written_value },
	{ "kernel-store", by_kernel_store }, { "copy", by_copy },
};

/* Median us from the launch of a kernel to the end of the wait for it. */
static double waited(void (*wait)(void), double kernel_us, int n)
{
	double t[200];

	for (int i = 0; i < n; i++) {
		number++;
		t[i] = now_us();
		check(kernel_us ? spin(stream, kernel_us) :
		      launch(function("nothing"), stream, 0, NULL), "launch");
		wait();
		t[i] = now_us() - t[i];
		CHECK(cuStreamSynchronize, stream);
	}
	return median(t, n);
}

/* spin, yield, block: how the context waits; else the driver's choice. */
int probe_waits(int argc, char **argv)
{
	static const struct {
		const char *name;
		unsigned int flags;
	} how[] = { { "spin", CU_CTX_SCHED_SPIN }, { "yield", CU_CTX_SCHED_YIELD },
		    { "block", CU_CTX_SCHED_BLOCKING_SYNC } };

	begin();
	for (size_t i = 0; argc && i < COUNT(how); i++)
		if (!strcmp(argv[0], how[i].name))
			CHECK(cuDevicePrimaryCtxSetFlags, 0, how[i].flags);
	begin_context();
	CHECK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	CHECK(cuEventCreate, &spinning, CU_EVENT_DISABLE_TIMING);
	CHECK(cuEventCreate, &blocking, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
	CHECK(cuMemHostAlloc, (void **)&word, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	CHECK(cuMemHostGetDevicePointer, &word_there, (void *)word, 0);
	CHECK(cuMemAlloc, &source, 4096);
	waited(by_stream, 0, 50);
	printf("us after an empty kernel/beyond 200:");
	for (size_t i = 0; i < COUNT(waits); i++)
		printf(" %s %.1f/%.1f", waits[i].name, waited(waits[i].wait, 0, 200),
		       waited(waits[i].wait, 200, 50) - 200);
	putchar('\n');
	return 0;
}

/* --------------------------------------------------------------- callbacks after a fault */

static volatile int called[3], told[3];

static void CUDA_CB note_host(void *data)
{
	called[(uintptr_t)data] = 1;
}

static void CUDA_CB note_stream(CUstream s, CUresult rc, void *data)
{
	(void)s;
	told[(uintptr_t)data] = rc;
	called[(uintptr_t)data] = 1;
}

int probe_callbacks(int argc, char **argv)
{
	uint64_t params[] = { 16, 1 };
	CUdeviceptr p;
	CUresult rc[4];
	CUstream s;
	double t;

	(void)argc, (void)argv;
	begin_context();
	CHECK(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
	check(spin(s, 10000), "spin");
	check(launch(function("store"), s, 2, params), "store");
	rc[0] = DRIVER(cuStreamAddCallback)(s, note_stream, (void *)0, 0);
	rc[1] = DRIVER(cuLaunchHostFunc)(s, note_host, (void *)1);
	printf("behind the fault: add callback %s, launch host function %s\n", code(rc[0]), code(rc[1]));
	t = now_us();
	rc[0] = DRIVER(cuStreamSynchronize)(s);
	printf("synchronise: %s after %.0f us\n", code(rc[0]), now_us() - t);
	usleep(500000);
	rc[1] = DRIVER(cuStreamAddCallback)(s, note_stream, (void *)2, 0);
	rc[2] = DRIVER(cuMemAlloc)(&p, 4096);
	rc[3] = DRIVER(cuStreamQuery)(s);
	usleep(200000);
	printf("later: add callback %s (called: %d), allocate %s, query %s\n", code(rc[1]), called[2],
	       code(rc[2]), code(rc[3]));
	rc[1] = DRIVER(cuDevicePrimaryCtxReset)(0);
	rc[2] = DRIVER(cuMemAlloc)(&p, 4096);
	printf("reset %s, then allocate %s\n", code(rc[1]), code(rc[2]));
	printf("fault: %s; callback called: %d (told %s), host function called: %d\n", code(rc[0]),
	       called[0], code(told[0]), called[1]);
	return 0;
}

/* ---------------------------------------------------------------------------- parameters */

int probe_extra(int argc, char **argv)
{
	static const size_t sizes[] = { 0, 8, 12, 15, 16, 17, 24, 64, 4096, 8192 };
	static char buffer[8192];
	uint64_t params[2];
	CUdeviceptr p;
	uint32_t seen;

	(void)argc, (void)argv;
	begin_context();
	CHECK(cuMemAlloc, &p, 4096);
	printf("store's parameters need 16 bytes;");
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t size = sizes[i];
		void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE,
				  &size, CU_LAUNCH_PARAM_END };
		CUresult rc;

		params[0] = p, params[1] = 1000 + i;
		memcpy(buffer, params, sizeof(params));
		rc = DRIVER(cuLaunchKernel)(function("store"), 1, 1, 1, 1, 1, 1, 0, 0, NULL, extra);
		CHECK(cuCtxSynchronize, );
		CHECK(cuMemcpyDtoH, &seen, p, sizeof(seen));
		printf(" %zu %s%s", size, code(rc), rc ? "" : seen == 1000 + i ? " stored" : " other");
	}
	putchar('\n');
	return 0;
}

static void ask_params(CUlibrary lib, const char *name, const char *where)
{
	size_t n = 0, off, size;
	CUkernel k;
	CUresult rc;
	int threads = 0;

	CHECK(cuLibraryGetKernel, &k, lib, name);
	while (!(rc = DRIVER(cuKernelGetParamInfo)(k, n, &off, &size)))
		n++;
	printf("%s %s: %zu parameters, then %s;", name, where, n, code(rc));
	rc = DRIVER(cuKernelGetAttribute)(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, k, 0);
	printf(" max threads %d %s\n", threads, code(rc));
}

/* The proxy asks on threads that may have had no context yet. */
int probe_params(int argc, char **argv)
{
	CUlibrary lib;
	CUcontext ctx;

	(void)argc, (void)argv;
	begin_context();
	lib = load_library();
	CHECK(cuCtxGetCurrent, &ctx);
	CHECK(cuCtxSetCurrent, NULL);
	ask_params(lib, "store", "without a context");
	ask_params(lib, "nothing", "without a context");
	CHECK(cuCtxSetCurrent, ctx);
	ask_params(lib, "store", "in a context");
	ask_params(lib, "nothing", "in a context");
	return 0;
}

int probe_bignodes(int argc, char **argv)
{
	static char many[8000];
	CUDA_KERNEL_NODE_PARAMS k = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
				      .blockDimY = 1, .blockDimZ = 1 };
	uint32_t value = 4711, seen = 0, again = 0;
	void *params[2] = { NULL, many };
	CUgraphNode node;
	CUgraphExec exec;
	CUgraph graph;
	CUdeviceptr p;
	CUresult rc[3];

	(void)argc, (void)argv;
	begin_context();
	CHECK(cuMemAlloc, &p, 4096);
	k.func = function("big");
	k.kernelParams = params;
	params[0] = &p;
	memcpy(many + 7996, &value, sizeof(value));
	CHECK(cuGraphCreate, &graph, 0);
	rc[0] = DRIVER(cuGraphAddKernelNode)(&node, graph, NULL, 0, &k);
	if (rc[0])
		leave(1, "a node with 8008 bytes of parameters: %s", code(rc[0]));
	CHECK(cuGraphInstantiate, &exec, graph, 0);
	CHECK(cuGraphLaunch, exec, 0);
	CHECK(cuCtxSynchronize, );
	CHECK(cuMemcpyDtoH, &seen, p, sizeof(seen));
	rc[1] = DRIVER(cuGraphKernelNodeGetParams)(node, &k);
	k.kernelParams = params;
	k.extra = NULL;
	value = 4712;
	memcpy(many + 7996, &value, sizeof(value));
	rc[2] = DRIVER(cuGraphExecKernelNodeSetParams)(exec, node, &k);
	CHECK(cuGraphLaunch, exec, 0);
	CHECK(cuCtxSynchronize, );
	CHECK(cuMemcpyDtoH, &again, p, sizeof(again));
	printf("8008 bytes: add %s, read back %s, set %s; results %s\n", code(rc[0]), code(rc[1]),
	       code(rc[2]), seen == 4711 && again == 4712 ? "right" : "wrong");
	return seen != 4711 || again != 4712;
}
