// SPDX-License-Identifier: Apache-2.0
/*
 * driver.cu - calls that the runtime lacks: parameters in a buffer, memory operations, attributes
 *
 * Functions come from cudaGetDriverEntryPoint. The last line is PASS.
 */
#include <cuda.h>

#include "../jobs/job.cuh"

__global__ void add(int *p, int v)
{
	*p += v;
}

template<class T> static T driver(const char *name)
{
	cudaDriverEntryPointQueryResult result;
	void *p = NULL;

	CHECK(cudaGetDriverEntryPointByVersion(name, &p, 13000, cudaEnableDefault, &result));
	EXPECT(p);
	return (T)p;
}

#define GET(name) static_cast<decltype(&name)>((decltype(&name))driver<void *>(#name))

static CUgraphNode kernels(CUgraph g, cudaFunction_t f, int *d, CUDA_KERNEL_NODE_PARAMS_v2 *p,
			   CUgraphNode *first)
{
	auto add_kernel = (CUresult(*)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
				       const CUDA_KERNEL_NODE_PARAMS_v2 *))
			  driver<void *>("cuGraphAddKernelNode");
	struct { int *p; int v; } buf = { d, 7 };
	size_t n = 12;
	int v = 5;
	void *args[] = { &d, &v };
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &buf, CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
			  CU_LAUNCH_PARAM_END };
	CUgraphNode second;

	*p = {};
	p->func = (CUfunction)f;
	p->gridDimX = p->gridDimY = p->gridDimZ = 1;
	p->blockDimX = p->blockDimY = p->blockDimZ = 1;
	p->kernelParams = args;
	EXPECT_EQ(add_kernel(first, g, NULL, 0, p), CUDA_SUCCESS);
	p->kernelParams = NULL;
	p->extra = extra;
	EXPECT_EQ(add_kernel(&second, g, first, 1, p), CUDA_SUCCESS);
	p->extra = NULL;
	return second;
}

static void attributes(CUgraphNode n)
{
	CUlaunchAttributeValue v;

	memset(&v, 0, sizeof(v));
	v.priority = -1;
	EXPECT_EQ(GET(cuGraphKernelNodeSetAttribute)(n, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v),
		  CUDA_SUCCESS);
	v.priority = 0;
	EXPECT_EQ(GET(cuGraphKernelNodeGetAttribute)(n, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v),
		  CUDA_SUCCESS);
	EXPECT_EQ(v.priority, -1);
	EXPECT_EQ(GET(cuGraphKernelNodeSetAttribute)(n, (CUlaunchAttributeID)99, &v),
		  CUDA_ERROR_INVALID_VALUE);
}

static void memops(CUgraph g, CUgraphNode after, int *d)
{
	CUstreamBatchMemOpParams op[2];
	CUDA_BATCH_MEM_OP_NODE_PARAMS p = {};
	CUgraphNode n;

	memset(op, 0, sizeof(op));
	op[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	op[0].writeValue.address = (CUdeviceptr)(d + 4);
	op[0].writeValue.value = 77;
	op[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	op[1].waitValue.address = (CUdeviceptr)(d + 4);
	op[1].waitValue.value = 77;
	op[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
	p.count = 2;
	p.paramArray = op;
	EXPECT_EQ(GET(cuCtxGetCurrent)(&p.ctx), CUDA_SUCCESS);
	EXPECT_EQ(GET(cuGraphAddBatchMemOpNode)(&n, g, &after, 1, &p), CUDA_SUCCESS);
	p.count = 0;
	EXPECT_EQ(GET(cuGraphAddBatchMemOpNode)(&n, g, &after, 1, &p), CUDA_ERROR_INVALID_VALUE);
}

int main()
{
	auto set = (CUresult(*)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2 *))
		   driver<void *>("cuGraphExecKernelNodeSetParams");
	CUDA_GRAPH_INSTANTIATE_PARAMS how = {};
	CUDA_KERNEL_NODE_PARAMS_v2 p;
	CUgraphNode first, second;
	cudaFunction_t f;
	CUgraphExec x, y;
	CUgraph g;
	int *d, h[5], v = 100;
	void *args[] = { &d, &v };

	CHECK(cudaMalloc(&d, 64));
	CHECK(cudaMemset(d, 0, 64));
	CHECK(cudaGetFuncBySymbol(&f, (void *)add));
	EXPECT_EQ(GET(cuGraphCreate)(&g, 0), CUDA_SUCCESS);
	second = kernels(g, f, d, &p, &first);
	attributes(first);
	memops(g, second, d);
	how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
		    CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
	EXPECT_EQ(GET(cuGraphInstantiateWithParams)(&x, g, &how), CUDA_SUCCESS);
	EXPECT_EQ(how.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
	EXPECT_EQ(GET(cuGraphLaunch)(x, 0), CUDA_SUCCESS);
	CHECK(cudaMemcpy(h, d, sizeof(h), cudaMemcpyDeviceToHost));
	EXPECT_EQ(h[0], 12);
	EXPECT_EQ(h[4], 77);
	p.kernelParams = args;
	EXPECT_EQ(set(x, second, &p), CUDA_SUCCESS);
	EXPECT_EQ(GET(cuGraphLaunch)(x, 0), CUDA_SUCCESS);
	CHECK(cudaMemcpy(h, d, sizeof(h), cudaMemcpyDeviceToHost));
	EXPECT_EQ(h[0], 117);
	auto instantiate = (CUresult(*)(CUgraphExec *, CUgraph, unsigned long long))
			   driver<void *>("cuGraphInstantiateWithFlags");
	EXPECT_EQ(instantiate(&y, g, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH),
		  CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_EQ(instantiate(&y, (CUgraph)0x1234, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(instantiate(&y, g, 1ull << 40), CUDA_ERROR_INVALID_VALUE);
	printf("PASS\n");
	return 0;
}
