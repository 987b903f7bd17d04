// SPDX-License-Identifier: Apache-2.0
/*
 * kernels.cu - what api_h100 looks for in machine code: parameters, limits, variables
 */
struct large {
	int a[10];
	double d;
	char c;
};

__device__ int plain = 5;
__device__ int table[100];
__device__ int *into_table = &table[3];
__constant__ float constants[16] = { 1, 2, 3 };
__managed__ int shared_with_host = 7;

#if __CUDA_ARCH__ >= 900
#define PAIRS __cluster_dims__(2, 1, 1)
#else
#define PAIRS
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ int only_sm_90a;
#endif

extern "C" __global__ void simple(int *p, char c, double d)
{
	extern __shared__ int s[];

	s[threadIdx.x] = c;
	__syncthreads();
	*p = s[0] + (int)d + (int)constants[2] + plain;
}

extern "C" __global__ void __launch_bounds__(256, 2) bounded(large l, int *p)
{
	__shared__ int s[300];

	s[threadIdx.x] = l.a[2];
	__syncthreads();
	p[0] = s[3] + shared_with_host + *into_table;
}

extern "C" __global__ void PAIRS pairs(int *p)
{
	*p = 1;
}

extern "C" __global__ void frame(int *p, int n)
{
	int a[100];

	for (int i = 0; i < n; i++)
		a[p[i] % 100] = i;
	*p = a[p[n] % 100];
}

extern "C" __global__ void store(int *p)
{
	*p = 77;
}

struct larger {
	int a[5000];
};

extern "C" __global__ void twenty_kb(larger l, int *p, short n)
{
	*p = l.a[n];
}
