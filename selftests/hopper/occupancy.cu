// SPDX-License-Identifier: Apache-2.0
/*
 * occupancy.cu - how many clusters fit, asked again and again: the answers, one a line
 *
 * test-hopper compares them between direct mode and the proxy, and counts in the proxy's log how
 * often the driver was asked what it refuses.
 */
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call) do {									\
	cudaError_t _r = (call);								\
	if (_r) {										\
		printf("occupancy.cu:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(_r));	\
		exit(1);									\
	}											\
} while (0)

__global__ void plain(int *p)
{
	extern __shared__ int s[];

	s[threadIdx.x] = *p;
	__syncthreads();
	*p = s[0];
}

__global__ void __cluster_dims__(2, 1, 1) pairs(int *p)
{
	*p = 1;
}

template <typename K>
static void ask(const char *what, K *kernel, unsigned int cluster, unsigned int threads, size_t bytes)
{
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute a[2];
	int n = -1, size = -1;
	cudaError_t r;

	memset(a, 0x5a, sizeof(a));		/* the rest of a value means nothing */
	a[0].id = cudaLaunchAttributeClusterDimension;
	a[0].val.clusterDim = { cluster, 1, 1 };
	a[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
	a[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
	c.gridDim = dim3(cluster ? cluster : 1);
	c.blockDim = dim3(threads);
	c.dynamicSmemBytes = bytes;
	c.attrs = a;
	c.numAttrs = cluster ? 2 : 0;
	r = cudaOccupancyMaxActiveClusters(&n, kernel, &c);
	printf("%s, clusters of %u, %u threads, %zu bytes: %d, %d", what, cluster, threads, bytes, r, n);
	r = cudaOccupancyMaxPotentialClusterSize(&size, kernel, &c);
	printf("; at most %d, %d\n", r, size);
	cudaGetLastError();
}

static void round_of(const char *what)
{
	printf("%s\n", what);
	for (unsigned int cluster = 0; cluster <= 16; cluster = cluster ? cluster * 2 : 1) {
		ask("plain", plain, cluster, 1024, 0);
		ask("plain", plain, cluster, 128, 40000);
		ask("pairs", pairs, cluster, 256, 0);
	}
}

static void set(cudaFuncAttribute attr, int value)
{
	CHECK(cudaFuncSetAttribute(plain, attr, value));
	printf("plain has changed\n");
}

int main(void)
{
	round_of("first");
	for (int i = 0; i < 50; i++)
		round_of("again");
	set(cudaFuncAttributeMaxDynamicSharedMemorySize, 200000);
	ask("plain", plain, 2, 128, 200000);
	ask("plain", plain, 16, 128, 200000);
	set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
	ask("plain", plain, 16, 128, 200000);
	round_of("beyond what is portable");
	set(cudaFuncAttributeNonPortableClusterSizeAllowed, 0);
	ask("plain", plain, 16, 128, 200000);
	printf("PASS occupancy\n");
	return 0;
}
