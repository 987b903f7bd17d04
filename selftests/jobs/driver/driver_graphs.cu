// SPDX-License-Identifier: Apache-2.0
/*
 * driver_graphs.cu - graphs by the driver API: edges by node, changes of kernel nodes in graphs
 * and in executable graphs, flags of instantiation.
 */
#include "driver.cuh"

/* Since 12.0 the name means another; programs from before still call it. */
extern "C" CUresult cuGraphInstantiate_v2(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);

static CUstream s;
static CUdeviceptr d;

__global__ void add(int *p, int v)
{
	*p += v;
}

/* a before b and c, both before e: by nodes, both ways, into arrays of any size. */
static void edges(void)
{
	CUgraphNode a, b, c, e, two[2], out[4], both[2];
	size_t n = 0;
	CUgraph g = graph();

	CU(cuGraphAddEmptyNode(&a, g, NULL, 0));
	CU(cuGraphAddEmptyNode(&b, g, &a, 1));
	CU(cuGraphAddEmptyNode(&c, g, &a, 1));
	two[0] = b;
	two[1] = c;
	CU(cuGraphAddEmptyNode(&e, g, two, 2));
	EXPECT_EQ(type_of(e), CU_GRAPH_NODE_TYPE_EMPTY);
	CU(cuGraphNodeGetDependencies(e, NULL, NULL, &n));
	EXPECT_EQ(n, 2);
	CU(cuGraphNodeGetDependencies(e, both, NULL, &n));
	EXPECT(n == 2 && ((both[0] == b && both[1] == c) || (both[0] == c && both[1] == b)));
	n = 4;
	POISON(out);
	CU(cuGraphNodeGetDependentNodes(a, out, NULL, &n));
	EXPECT(n == 2 && out[0] != out[1] && !out[2] && !out[3]);
	n = 1;
	POISON(out);
	CU(cuGraphNodeGetDependentNodes(a, out, NULL, &n));
	EXPECT(n == 1 && (out[0] == b || out[0] == c) && (size_t)out[1] == 0x5a5a5a5a5a5a5a5a);
	n = 4;
	CU(cuGraphNodeGetDependencies(a, out, NULL, &n));
	EXPECT(n == 0 && !out[0]);
	CU_INVALID(cuGraphNodeGetDependencies(e, both, NULL, NULL));
	CU_INVALID(cuGraphNodeGetDependencies(NULL, both, NULL, &n));
	CU_INVALID(cuGraphNodeGetDependentNodes((CUgraphNode)0x1234, both, NULL, &n));
	CU_INVALID(cuGraphNodeGetType(a, NULL));
	CU(cuGraphDestroy(g));
}

static void kernels(void)
{
	CUgraphNode a, b;
	CUgraphExec x, old;
	CUgraph g = graph();
	CUgraphNodeParams all = {};
	CUDA_KERNEL_NODE_PARAMS k = {};
	CUlaunchAttributeValue v = {};
	char log[10] = "unchanged";
	int one = 1, ten = 10;
	CUgraphNode wrong = (CUgraphNode)1;
	void *args1[] = { &d, &one }, *args10[] = { &d, &ten };

	k.func = function_of((const void *)add);
	k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1;
	k.kernelParams = args1;
	CU(cuGraphAddKernelNode(&a, g, NULL, 0, &k));
	CU(cuGraphAddKernelNode(&b, g, &a, 1, &k));
	EXPECT_EQ(type_of(a), CU_GRAPH_NODE_TYPE_KERNEL);
	v.priority = -1;
	CU(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
	CU(cuGraphKernelNodeCopyAttributes(b, a));
	v.priority = 0;
	CU(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
	EXPECT_EQ(v.priority, -1);
	CU_INVALID(cuGraphKernelNodeCopyAttributes(b, NULL));
	CU_INVALID(cuGraphKernelNodeCopyAttributes(NULL, a));

	CU(cuMemsetD32(d, 0, 1));
	CU(cuGraphInstantiate_v2(&old, g, &wrong, log, sizeof(log)));
	EXPECT(!wrong || wrong == (CUgraphNode)1);
	run(old, s);
	EXPECT_EQ(fetch<int>(d, 1)[0], 2);
	CU_INVALID(cuGraphInstantiate_v2(NULL, g, NULL, NULL, 0));
	CU_INVALID(cuGraphInstantiate_v2(&x, NULL, NULL, NULL, 0));
	/* in the executable graph; then in the graph, for another one */
	x = exec(g);
	all.type = CU_GRAPH_NODE_TYPE_KERNEL;
	memcpy(&all.kernel, &k, sizeof(k));
	all.kernel.kernelParams = args10;
	CU(cuGraphExecNodeSetParams(x, b, &all));
	run(x, s);
	EXPECT_EQ(fetch<int>(d, 1)[0], 13);
	run(old, s);
	EXPECT_EQ(fetch<int>(d, 1)[0], 15);
	CU(cuGraphNodeSetParams(a, &all));
	CU(cuGraphKernelNodeGetParams(a, &k));
	EXPECT_EQ(*(int *)k.kernelParams[1], 10);
	run(x, s);
	EXPECT_EQ(fetch<int>(d, 1)[0], 26);
	CU(cuGraphExecDestroy(x));
	x = exec(g);
	run(x, s);
	EXPECT_EQ(fetch<int>(d, 1)[0], 37);
	CU_INVALID(cuGraphNodeSetParams(a, NULL));
	CU_INVALID(cuGraphNodeSetParams(NULL, &all));
	CU_INVALID(cuGraphExecNodeSetParams(NULL, a, &all));
	CU_INVALID(cuGraphExecNodeSetParams(x, NULL, &all));
	all.type = CU_GRAPH_NODE_TYPE_MEMSET;
	CU_INVALID(cuGraphNodeSetParams(a, &all));
	CU_INVALID(cuGraphExecNodeSetParams(x, a, &all));
	run(x, s);
	EXPECT_EQ(fetch<int>(d, 1)[0], 48);
	CU(cuGraphExecDestroy(old));
	end(x, g);
}

static void flags(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS how = {};
	CUgraph g = graph();
	CUgraphNode n;
	cuuint64_t f;
	CUgraphExec x;

	CU(cuGraphAddEmptyNode(&n, g, NULL, 0));
	for (cuuint64_t want : { 0, (int)CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
				 (int)CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY }) {
		x = exec(g, want);
		POISON(f);
		CU(cuGraphExecGetFlags(x, &f));
		EXPECT_EQ(f, want);
		CU(cuGraphExecDestroy(x));
	}
	/* the upload is done, and leaves nothing to tell */
	how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
	how.hUploadStream = s;
	CU(cuGraphInstantiateWithParams(&x, g, &how));
	CU(cuGraphExecGetFlags(x, &f));
	EXPECT_EQ(f, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
	CU_INVALID(cuGraphExecGetFlags(x, NULL));
	CU_INVALID(cuGraphExecGetFlags(NULL, &f));
	end(x, g);
}

int main()
{
	CHECK(cudaFree(0));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	d = room(256);
	edges();
	kernels();
	flags();
	std::vector<int> h = fetch<int>(d, 64);
	sum_vector(h);
	CU(cuStreamDestroy(s));
	return job_passed("driver_graphs");
}
