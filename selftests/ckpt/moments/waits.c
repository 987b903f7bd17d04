// SPDX-License-Identifier: Apache-2.0
/*
 * waits.c - a job whose threads wait at a closed gate in calls of every kind, while its stream
 * needs others
 *
 *   gate closes ─► each change[] waits in its call; enqueuer calls cuLaunchHostFunc; asker queries
 *   stream: host functions, the one that is due ends when asker has had all of its answers
 *
 * So the device becomes idle, and the gate opens again, only if no thread waits with a lock that
 * the runner of host functions needs, or a query that is answered in this process.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CU(...) do {							\
	CUresult e_ = (__VA_ARGS__);					\
									\
	if (e_) {							\
		printf("FAIL %s:%d: %s: %d\n", __FILE__, __LINE__, #__VA_ARGS__, e_); \
		exit(1);						\
	}								\
} while (0)

#define MIB (1ull << 20)
#define QUEUE 60
#define load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

static CUcontext ctx;
static CUstream stream, fresh, other, capturing;
static CUdeviceptr device, pooled, window;
static CUmemGenericAllocationHandle physical, mapped;
static CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
static CUmemAccessDesc access_of = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
				     .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
static CUgraph graph;
static CUgraphNode node;
static CUgraphExec exec, doomed;
static int closed, asked, done;
static long long in_call;	/* since when main is in its call, or 0 */
static uint8_t *pageable;
static void *host;

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static void until(const int *flag)
{
	while (!load(flag))
		usleep(1000);
}

static void CUDA_CB nothing(void *arg)
{
	(void)arg;
}

/* Half a minute is more than the checkpoint waits. */
static void CUDA_CB due(void *arg)
{
	(void)arg;
	usleep(20000);
	for (int i = 0; i < 30000 && load(&closed) && !load(&asked); i++)
		usleep(1000);
	__atomic_add_fetch(&done, 1, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------- calls that change what there is */

static void pinned(void)
{
	void *p;

	CU(cuMemHostAlloc(&p, 80 * MIB, 0));
	CU(cuMemFreeHost(p));
}

static void plain(void)
{
	CUdeviceptr p;

	CU(cuMemAlloc(&p, 300 * MIB));
	CU(cuMemFree(p));
}

static void pool_grows(void)
{
	CUdeviceptr p;

	CU(cuMemAllocAsync(&p, 64 * MIB, other));
	CU(cuMemFreeAsync(p, other));
}

static void pool_frees(void)
{
	CU(cuMemFreeAsync(pooled, other));
}

static void maps(void)
{
	CU(cuMemMap(window + 2 * MIB, 2 * MIB, 0, physical, 0));
	CU(cuMemSetAccess(window + 2 * MIB, 2 * MIB, &access_of, 1));
	CU(cuMemUnmap(window + 2 * MIB, 2 * MIB));
}

static void makes(void)
{
	CUmemGenericAllocationHandle h;

	CU(cuMemCreate(&h, 64 * MIB, &prop, 0));
	CU(cuMemRelease(h));
}

static void instantiates(void)
{
	CUgraphExec x;

	CU(cuGraphInstantiateWithFlags(&x, graph, 0));
	CU(cuGraphExecDestroy(x));
}

static void updates(void)
{
	CUDA_HOST_NODE_PARAMS p = { nothing, &exec };

	CU(cuGraphExecHostNodeSetParams(exec, node, &p));
}

static void destroys(void)
{
	CU(cuGraphExecDestroy(doomed));
}

static void captures(void)
{
	CUdeviceptr p;
	CUgraph g;

	CU(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
	CU(cuMemAllocAsync(&p, 64 * MIB, capturing));
	CU(cuMemFreeAsync(p, capturing));
	CU(cuStreamEndCapture(capturing, &g));
	CU(cuGraphDestroy(g));
}

static void stages(void)
{
	CU(cuMemcpyHtoDAsync(device, pageable, 8 * MIB, other));
}

static void registers(void)
{
	void *p = aligned_alloc(4096, 16 * MIB);

	memset(p, 1, 16 * MIB);
	CU(cuMemHostRegister(p, 16 * MIB, 0));
	CU(cuMemHostUnregister(p));
	free(p);
}

static void (*const change[])(void) = {
	pinned, plain, pool_grows, pool_frees, maps, makes, instantiates, updates, destroys, captures,
	stages, registers,
};
#define CHANGES (sizeof(change) / sizeof(change[0]))

static void *changer(void *arg)
{
	void (*const *fn)(void) = arg;

	CU(cuCtxSetCurrent(ctx));
	until(&closed);
	(*fn)();
	return NULL;
}

/* ---------------------------------------------------- calls that the process answers by itself */

static void *asker(void *arg)
{
	CUdeviceptr of[] = { device, window, (CUdeviceptr)host, (CUdeviceptr)pageable };
	CUstreamCaptureStatus status;
	CUmemAllocationProp of_mapped;
	unsigned long long flags;
	unsigned int type;
	size_t n = 0;

	(void)arg;
	CU(cuCtxSetCurrent(ctx));
	until(&closed);
	usleep(300000);
	for (unsigned int i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, of[i]) && i < 3)
			exit(2);
	CU(cuMemHostGetFlags(&type, host));
	CU(cuMemGetAccess(&flags, &access_of.location, window));
	CU(cuMemGetAllocationPropertiesFromHandle(&of_mapped, mapped));
	CU(cuGraphGetNodes(graph, NULL, &n));
	CU(cuStreamIsCapturing(other, &status));
	if (n != 2 || status)
		exit(2);
	store(&asked, 1);
	return NULL;
}

static void *enqueuer(void *arg)
{
	(void)arg;
	CU(cuCtxSetCurrent(ctx));
	until(&closed);
	usleep(150000);
	CU(cuLaunchHostFunc(fresh, nothing, NULL));
	return NULL;
}

/* ----------------------------------------------------------------------------------- the gate */

/* It is closed when a call that enqueues and no more does not come back. */
static void *watcher(void *arg)
{
	(void)arg;
	while (!load(&closed)) {
		long long since = load(&in_call);

		usleep(10000);
		if (since && load(&in_call) == since && now_ms() - since > 300)
			store(&closed, 1);
	}
	return NULL;
}

static void set_up(void)
{
	CUDA_HOST_NODE_PARAMS first = { nothing, NULL };
	CUDA_MEMSET_NODE_PARAMS second = { .elementSize = 1, .width = 1, .height = 1 };
	CUgraphNode n;
	CUdevice dev;

	CU(cuInit(0));
	CU(cuDeviceGet(&dev, 0));
	CU(cuDevicePrimaryCtxRetain(&ctx, dev));
	CU(cuCtxSetCurrent(ctx));
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING));
	CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	CU(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
	CU(cuMemAlloc(&device, 8 * MIB));
	CU(cuMemAllocAsync(&pooled, MIB, other));
	CU(cuMemHostAlloc(&host, MIB, 0));
	CU(cuMemAddressReserve(&window, 4 * MIB, 0, 0, 0));
	CU(cuMemCreate(&mapped, 2 * MIB, &prop, 0));
	CU(cuMemCreate(&physical, 2 * MIB, &prop, 0));
	CU(cuMemMap(window, 2 * MIB, 0, mapped, 0));
	CU(cuMemSetAccess(window, 2 * MIB, &access_of, 1));
	second.dst = device;
	CU(cuGraphCreate(&graph, 0));
	CU(cuGraphAddHostNode(&node, graph, NULL, 0, &first));
	CU(cuGraphAddMemsetNode(&n, graph, &node, 1, &second, ctx));
	CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CU(cuGraphInstantiateWithFlags(&doomed, graph, 0));
	pageable = malloc(8 * MIB);
	memset(pageable, 7, 8 * MIB);
	CU(cuStreamSynchronize(other));
}

int main(void)
{
	pthread_t t[CHANGES + 3];
	uint8_t last = 0;
	int n = 0, saw;

	set_up();
	for (unsigned int i = 0; i < CHANGES; i++)
		pthread_create(&t[i], NULL, changer, (void *)&change[i]);
	pthread_create(&t[CHANGES], NULL, asker, NULL);
	pthread_create(&t[CHANGES + 1], NULL, enqueuer, NULL);
	pthread_create(&t[CHANGES + 2], NULL, watcher, NULL);
	while (!load(&closed)) {
		if (n - load(&done) >= QUEUE) {
			if (n == QUEUE)
				puts("under way");
			fflush(stdout);
			usleep(1000);
			continue;
		}
		store(&in_call, now_ms());
		CU(cuLaunchHostFunc(stream, due, NULL));
		store(&in_call, 0);
		n++;
	}
	saw = load(&asked);	/* when the gate has opened again */
	for (unsigned int i = 0; i < CHANGES + 3; i++)
		pthread_join(t[i], NULL);
	CU(cuStreamSynchronize(stream));
	CU(cuGraphLaunch(exec, other));
	CU(cuStreamSynchronize(other));
	CU(cuMemcpyDtoH(&last, device + 8 * MIB - 1, 1));
	if (!saw || last != 7 || load(&done) != n) {
		printf("FAIL asked %d, copied %d, ran %d of %d\n", saw, last, load(&done), n);
		return 1;
	}
	puts("PASS waits");
	return 0;
}
