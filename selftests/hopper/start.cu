// SPDX-License-Identifier: Apache-2.0
/*
 * start.cu - NVIDIA's libraries from their start-up to their first kernels, with machine code
 *
 * start LIBRARY...	cublas cublaslt cusolver cudnn, in this order
 *
 * For a device whose kernels are recorded, not run (SINGVGPU_SOFT_PROFILE): each call must succeed;
 * results are not looked at. A line for each library, then PASS.
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CUDNN
#include <cudnn.h>
#endif

#define CHECK(call) do {									\
	long _r = (long)(call);									\
	if (_r) {										\
		printf("start.cu:%d: %s: %ld\n", __LINE__, #call, _r);				\
		exit(1);									\
	}											\
} while (0)

#define N 512

static void *zeros(size_t bytes)
{
	void *p;

	CHECK(cudaMalloc(&p, bytes));
	CHECK(cudaMemset(p, 0, bytes));
	return p;
}

static void cublas(void)
{
	float one = 1, zero = 0, *a = (float *)zeros(3 * N * N * 4);
	cublasHandle_t h;

	CHECK(cublasCreate(&h));
	CHECK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_T, N, N, N, &one, a, N, a + N * N, N, &zero,
			  a + 2 * N * N, N));
	CHECK(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, a, CUDA_R_16BF, N, a + N * N,
			   CUDA_R_16BF, N, &zero, a + 2 * N * N, CUDA_R_16BF, N,
			   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
	CHECK(cudaDeviceSynchronize());
	CHECK(cublasDestroy(h));
	CHECK(cudaFree(a));
}

static void cublaslt(void)
{
	char *a = (char *)zeros(3 * N * N * 2), *work = (char *)zeros(32 << 20);
	float one = 1, zero = 0;
	size_t most = 32 << 20;
	cublasLtMatmulHeuristicResult_t best;
	cublasLtMatmulPreference_t pref;
	cublasLtMatrixLayout_t layout;
	cublasLtMatmulDesc_t desc;
	cublasLtHandle_t h;
	int n = 0;

	CHECK(cublasLtCreate(&h));
	CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	CHECK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16F, N, N, N));
	CHECK(cublasLtMatmulPreferenceCreate(&pref));
	CHECK(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
						   &most, sizeof(most)));
	CHECK(cublasLtMatmulAlgoGetHeuristic(h, desc, layout, layout, layout, layout, pref, 1, &best,
					     &n));
	CHECK(n != 1);
	CHECK(cublasLtMatmul(h, desc, &one, a, layout, a + N * N * 2, layout, &zero, a + N * N * 4,
			     layout, a + N * N * 4, layout, &best.algo, work, most, 0));
	CHECK(cudaDeviceSynchronize());
	CHECK(cublasLtMatmulPreferenceDestroy(pref));
	CHECK(cublasLtMatrixLayoutDestroy(layout));
	CHECK(cublasLtMatmulDescDestroy(desc));
	CHECK(cublasLtDestroy(h));
	CHECK(cudaFree(a));
	CHECK(cudaFree(work));
}

static void cusolver(void)
{
	double *a = (double *)zeros(N * N * 8), *work;
	int *info = (int *)zeros(4 + N * 4), need;
	cusolverDnHandle_t h;

	CHECK(cusolverDnCreate(&h));
	CHECK(cusolverDnDgetrf_bufferSize(h, N, N, a, N, &need));
	work = (double *)zeros((size_t)need * 8);
	CHECK(cusolverDnDgetrf(h, N, N, a, N, work, info + 1, info));
	CHECK(cudaDeviceSynchronize());
	CHECK(cusolverDnDestroy(h));
	CHECK(cudaFree(a));
	CHECK(cudaFree(work));
	CHECK(cudaFree(info));
}

static void cudnn(void)
{
#ifdef HAVE_CUDNN
	float one = 1, zero = 0, *x = (float *)zeros(1 << 20), *y = (float *)zeros(1 << 20);
	cudnnTensorDescriptor_t d;
	cudnnHandle_t h;

	CHECK(cudnnCreate(&h));
	CHECK(cudnnCreateTensorDescriptor(&d));
	CHECK(cudnnSetTensor4dDescriptor(d, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 8, 32, 32));
	CHECK(cudnnSoftmaxForward(h, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one, d, x,
				  &zero, d, y));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudnnDestroyTensorDescriptor(d));
	CHECK(cudnnDestroy(h));
	CHECK(cudaFree(x));
	CHECK(cudaFree(y));
#endif
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "cublas", cublas }, { "cublaslt", cublaslt }, { "cusolver", cusolver },
		{ "cudnn", cudnn },
	};
	int sms;

	CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	printf("%d multiprocessors\n", sms);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		for (int j = 1; j < argc; j++)
			if (!strcmp(argv[j], all[i].name)) {
				all[i].run();
				printf("%s\n", all[i].name);
			}
	printf("PASS start\n");
	return 0;
}
