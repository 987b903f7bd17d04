// SPDX-License-Identifier: Apache-2.0
/*
 * launches.cu - launches that have an attribute or are cooperative
 *
 * launches N: N of each kind, of a kernel that is given other limits now and then.
 * launches reset BLOCKS: one of one block, a reset, which a library's kernel survives, and one of BLOCKS.
 * Then it waits for the end of its input, while test-hopper counts how often the proxy has answered.
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call) do {									\
	cudaError_t _r = (call);								\
	if (_r) {										\
		printf("launches.cu:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(_r));	\
		exit(1);									\
	}											\
} while (0)

__global__ void plain(int *p, int v)
{
	extern __shared__ int s[];

	s[threadIdx.x] = v;
	*p = s[0];
}

static cudaError_t launch(cudaLaunchAttributeID id, unsigned int blocks, unsigned int shared, int *p, int i)
{
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute a;

	memset(&a, i, sizeof(a));	/* the rest of a value means nothing */
	a.id = id;
	if (id == cudaLaunchAttributeClusterDimension)
		a.val.clusterDim = { 2, 1, 1 };
	else if (id == cudaLaunchAttributePriority)
		a.val.priority = 0;
	else
		a.val.cooperative = 1;
	c.gridDim = dim3(blocks);
	c.blockDim = dim3(32);
	c.dynamicSmemBytes = shared;
	c.attrs = &a;
	c.numAttrs = 1;
	return cudaLaunchKernelEx(&c, plain, p, i);
}

template <typename F> static F driver(F, const char *name)
{
	cudaDriverEntryPointQueryResult found;
	void *f;

	CHECK(cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found));
	return (F)f;
}
#define DRIVER(call) driver((decltype(&call))NULL, #call)

static CUresult launch_kernel(CUkernel k, unsigned int blocks)
{
	CUlaunchAttribute a = {};
	CUlaunchConfig c = {};

	a.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
	a.value.cooperative = 1;
	c.gridDimX = blocks;
	c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1;
	c.attrs = &a;
	c.numAttrs = 1;
	return DRIVER(cuLaunchKernelEx)(&c, (CUfunction)k, NULL, NULL);
}

static bool across_reset(unsigned int blocks)
{
	static const char ptx[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
				  ".visible .entry empty() { ret; }\n";
	CUcontext ctx;
	CUlibrary l;
	CUkernel k;

	CHECK(cudaFree(0));
	return !DRIVER(cuLibraryLoadData)(&l, ptx, NULL, NULL, 0, NULL, NULL, 0) &&
	       !DRIVER(cuLibraryGetKernel)(&k, l, "empty") && !launch_kernel(k, 1) &&
	       !DRIVER(cuDevicePrimaryCtxReset)(0) &&
	       !DRIVER(cuDevicePrimaryCtxRetain)(&ctx, 0) && !DRIVER(cuCtxSetCurrent)(ctx) &&
	       !launch_kernel(k, blocks) && !DRIVER(cuCtxSynchronize)();
}

static int end(void)
{
	printf("PASS\n");
	fflush(stdout);
	return getchar() != EOF;
}

int main(int argc, char **argv)
{
	if (argc > 2)
		return across_reset(atoi(argv[2])) ? end() : 1;

	int n = argc > 1 ? atoi(argv[1]) : 1, *p;
	void *f = (void *)plain;

	CHECK(cudaMalloc(&p, 4));
	for (int i = 0; i < n; i++) {
		/* As cuBLAS does before each launch. */
		CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
		CHECK(launch(cudaLaunchAttributeClusterDimension, 4, 1024, p, i));
		CHECK(launch(cudaLaunchAttributePriority, 4, 1024, p, i));
		CHECK(launch(cudaLaunchAttributeCooperative, 4, 1024, p, i));
	}
	/* What is not remembered: errors, and what was true with other limits. */
	for (int i = 0; i < 2; i++)
		if (launch(cudaLaunchAttributeCooperative, 100000, 1024, p, i) != cudaErrorCooperativeLaunchTooLarge ||
		    cudaGetLastError() != cudaErrorCooperativeLaunchTooLarge)
			printf("a cooperative launch of too many blocks\n");
	CHECK(launch(cudaLaunchAttributeCooperative, 132 * 3, 65536, p, 1));
	CHECK(cudaFuncSetAttribute(f, cudaFuncAttributePreferredSharedMemoryCarveout, 50));
	if (launch(cudaLaunchAttributeCooperative, 132 * 3, 65536, p, 1) == cudaErrorCooperativeLaunchTooLarge)
		printf("forgotten\n");
	cudaGetLastError();
	CHECK(cudaDeviceSynchronize());
	return end();
}
