// SPDX-License-Identifier: Apache-2.0
/*
 * variables.c - a job whose kernels have stored addresses of variables of modules
 *
 *   variables GO AGAIN    loads and uses libraries, prints "used", waits for the file GO, uses one
 *                         more, prints "again", waits for AGAIN, and follows the addresses
 *
 * Each library comes into a context when it is first used there; where its variables lie depends on
 * what came before it, by a launch, a graph, a question about clusters, or a launch in another
 * context; a library that is unloaded, or a context that is destroyed, leaves a hole. One library is
 * never used.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CU(...) do {							\
	CUresult e_ = (__VA_ARGS__);					\
									\
	if (e_) {							\
		printf("FAIL %s:%d: %s: %d\n", __FILE__, __LINE__, #__VA_ARGS__, e_); \
		exit(1);						\
	}								\
} while (0)

static const char text[] =
	".version 8.0\n.target sm_75\n.address_size 64\n"
	".visible .global .u32 counter = %u;\n"
	".visible .global .u64 other = counter;\n"
	/* stores the address of counter, and counts */
	".visible .entry keep(.param .u64 to)\n{\n.reg .b64 %%d, %%a; .reg .b32 %%r;\n"
	"ld.param.u64 %%d, [to]; mov.u64 %%a, counter; cvta.global.u64 %%a, %%a;\n"
	"st.global.u64 [%%d], %%a; ld.global.u32 %%r, [counter]; add.u32 %%r, %%r, 1;\n"
	"st.global.u32 [counter], %%r; ret;\n}\n"
	/* loads what the stored address and the pointer lead to */
	".visible .entry follow(.param .u64 to)\n{\n.reg .b64 %%d, %%a; .reg .b32 %%r;\n"
	"ld.param.u64 %%d, [to]; ld.global.u64 %%a, [%%d]; ld.u32 %%r, [%%a];\n"
	"st.global.u32 [%%d+8], %%r; ld.global.u64 %%a, [other]; ld.u32 %%r, [%%a];\n"
	"st.global.u32 [%%d+12], %%r; ret;\n}\n";

struct kept {
	uint64_t address;
	uint32_t counter, again;
};

struct lib {
	CUlibrary lib;
	CUkernel keep, follow;
};

static CUcontext first_ctx, second_ctx;

static struct lib load(unsigned int value)
{
	struct lib l;
	char ptx[sizeof(text) + 16];

	snprintf(ptx, sizeof(ptx), text, value);
	CU(cuLibraryLoadData(&l.lib, ptx, NULL, NULL, 0, NULL, NULL, 0));
	CU(cuLibraryGetKernel(&l.keep, l.lib, "keep"));
	CU(cuLibraryGetKernel(&l.follow, l.lib, "follow"));
	return l;
}

static void launch(CUcontext ctx, CUkernel k, CUdeviceptr to)
{
	void *params[] = { &to };

	CU(cuCtxSetCurrent(ctx));
	CU(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CU(cuCtxSynchronize());
}

static void ask_clusters(const struct lib *l)
{
	CUlaunchAttribute a = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION };
	CUlaunchConfig c = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
			     .blockDimY = 1, .blockDimZ = 1, .attrs = &a, .numAttrs = 1 };
	int n;

	a.value.clusterDim.x = a.value.clusterDim.y = a.value.clusterDim.z = 1;
	CU(cuOccupancyMaxActiveClusters(&n, (CUfunction)l->keep, &c));
}

static void draw(CUcontext ctx, CUkernel k, CUdeviceptr to)
{
	void *params[] = { &to };
	CUDA_KERNEL_NODE_PARAMS p = { .kern = k, .ctx = ctx, .gridDimX = 1, .gridDimY = 1,
				      .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
				      .blockDimZ = 1, .kernelParams = params };
	CUgraphNode node;
	CUgraphExec exec;
	CUgraph graph;

	CU(cuCtxSetCurrent(ctx));
	CU(cuGraphCreate(&graph, 0));
	CU(cuGraphAddKernelNode(&node, graph, NULL, 0, &p));
	CU(cuGraphInstantiate(&exec, graph, 0));
	CU(cuGraphLaunch(exec, NULL));
	CU(cuCtxSynchronize());
}

static void check(CUcontext ctx, const struct lib *l, CUdeviceptr at, uint32_t value)
{
	struct kept k;

	launch(ctx, l->follow, at);
	CU(cuMemcpyDtoH(&k, at, sizeof(k)));
	if (k.counter != value || k.again != value) {
		printf("FAIL the address leads to %u, the pointer to %u, not %u\n", k.counter,
		       k.again, value);
		exit(1);
	}
}

static void tell(const char *what, const char *go)
{
	puts(what);
	fflush(stdout);
	while (access(go, F_OK))
		usleep(10000);
}

/* Threads that use libraries for the first time at once. */
static struct crowd {
	struct lib lib;
	CUdeviceptr at;
	pthread_t thread;
} crowd[12];
static pthread_barrier_t together;

static void *join_in(void *arg)
{
	struct crowd *c = arg;

	CU(cuCtxSetCurrent(first_ctx));
	pthread_barrier_wait(&together);
	launch(first_ctx, c->lib.keep, c->at);
	return NULL;
}

#define CROWD (sizeof(crowd) / sizeof(*crowd))

static void use_at_once(CUdeviceptr at)
{
	pthread_barrier_init(&together, NULL, CROWD);
	for (size_t i = 0; i < CROWD; i++) {
		crowd[i].lib = load(1000 + 100 * i);
		crowd[i].at = at + 16 * i;
	}
	for (size_t i = 0; i < CROWD; i++)
		if (pthread_create(&crowd[i].thread, NULL, join_in, &crowd[i]))
			exit(1);
	for (size_t i = 0; i < CROWD; i++)
		pthread_join(crowd[i].thread, NULL);
}

int main(int argc, char **argv)
{
	struct lib gone, first, second, never, asked, drawn, late;
	CUcontext third_ctx;
	CUdeviceptr at;

	if (argc != 3)
		return 2;
	CU(cuInit(0));
	CU(cuDevicePrimaryCtxRetain(&first_ctx, 0));
	CU(cuCtxCreate(&second_ctx, NULL, 0, 0));
	CU(cuCtxCreate(&third_ctx, NULL, 0, 0));
	CU(cuCtxSetCurrent(first_ctx));
	CU(cuMemAlloc(&at, 4096));
	gone = load(100);
	first = load(200);
	second = load(300);
	never = load(400);
	asked = load(500);
	drawn = load(600);
	late = load(700);

	launch(first_ctx, gone.keep, at);
	ask_clusters(&asked);
	launch(third_ctx, second.keep, at);
	launch(first_ctx, first.keep, at);
	CU(cuCtxDestroy(third_ctx));
	launch(second_ctx, first.keep, at + 16);
	launch(second_ctx, second.keep, at + 32);
	CU(cuLibraryUnload(gone.lib));
	launch(first_ctx, second.keep, at + 48);
	launch(first_ctx, asked.keep, at + 64);
	draw(first_ctx, drawn.keep, at + 80);
	use_at_once(at + 256);
	tell("used", argv[1]);
	launch(first_ctx, late.keep, at + 96);
	tell("again", argv[2]);

	check(first_ctx, &first, at, 201);
	check(second_ctx, &first, at + 16, 201);
	check(second_ctx, &second, at + 32, 301);
	check(first_ctx, &second, at + 48, 301);
	check(first_ctx, &asked, at + 64, 501);
	check(first_ctx, &drawn, at + 80, 601);
	check(first_ctx, &late, at + 96, 701);
	launch(first_ctx, never.keep, at + 112);
	check(first_ctx, &never, at + 112, 401);
	for (size_t i = 0; i < CROWD; i++)
		check(first_ctx, &crowd[i].lib, crowd[i].at, 1001 + 100 * i);
	puts("PASS variables");
	return 0;
}
