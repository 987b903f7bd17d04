// SPDX-License-Identifier: Apache-2.0
/*
 * graphs.cu - graphs built node by node: changed parameters, children, clones, a thousand launches.
 */
#include "../job.cuh"

#define N 1024

__global__ void scale_add(float *p, float a, float b, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = p[i] * a + b;
}

struct pair {
	int from, to;
};

__global__ void swap(float *p, pair w)
{
	float x = p[w.from];

	p[w.from] = p[w.to];
	p[w.to] = x;
}

static void CUDART_CB add_ten(void *p)
{
	*(int *)p += 10;
}

static void CUDART_CB double_it(void *p)
{
	*(int *)p *= 2;
}

static cudaKernelNodeParams kernel(const void *f, int blocks, int threads, void **args)
{
	cudaKernelNodeParams k = {};

	k.func = (void *)f;
	k.gridDim = dim3(blocks);
	k.blockDim = dim3(threads);
	k.kernelParams = args;
	return k;
}

/* memset -> kernel -> host function -> memcpy, then all parameters changed in the executable. */
static void line_of_all(cudaStream_t s)
{
	int n = N, value = 1;
	float a = 2, b = 3, *d, *d2, out[N];
	void *args[] = { &d, &a, &b, &n };
	cudaGraphNode_t set, k, call, copy;
	cudaGraphExec_t e;
	cudaGraph_t g;
	cudaMemsetParams m = {};
	cudaHostNodeParams h = { add_ten, &value };

	CHECK(cudaMalloc(&d, N * 4));
	CHECK(cudaMalloc(&d2, N * 4));
	CHECK(cudaGraphCreate(&g, 0));
	m.dst = d;
	m.elementSize = 1;
	m.width = N * 4;
	m.height = 1;
	m.value = 0;
	CHECK(cudaGraphAddMemsetNode(&set, g, NULL, 0, &m));
	cudaKernelNodeParams kp = kernel((void *)scale_add, N / 128, 128, args);
	CHECK(cudaGraphAddKernelNode(&k, g, &set, 1, &kp));
	a = 100;		/* parameters were copied: this changes nothing */
	CHECK(cudaGraphAddHostNode(&call, g, &k, 1, &h));
	CHECK(cudaGraphAddMemcpyNode1D(&copy, g, &call, 1, out, d, N * 4, cudaMemcpyDeviceToHost));
	CHECK(cudaGraphInstantiate(&e, g, 0));
	CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(out[0] == 3 && out[N - 1] == 3 && value == 11);

	b = 8;
	CHECK(cudaGraphExecKernelNodeSetParams(e, k, &kp));
	m.elementSize = 4;
	m.width = N;
	m.value = 0x40a00000;	/* 5.0f */
	CHECK(cudaGraphExecMemsetNodeSetParams(e, set, &m));
	h.fn = double_it;
	CHECK(cudaGraphExecHostNodeSetParams(e, call, &h));
	CHECK(cudaGraphExecMemcpyNodeSetParams1D(e, copy, out + 1, d, (N - 1) * 4,
						 cudaMemcpyDeviceToHost));
	CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(out[0] == 3 && out[1] == 508 && out[N - 1] == 508 && value == 22);
	sum_bytes(out, sizeof(out));

	/* the graph itself still has the old ones; its copy is independent */
	cudaGraph_t twin;
	cudaGraphNode_t k2;
	cudaKernelNodeParams back;
	CHECK(cudaGraphClone(&twin, g));
	CHECK(cudaGraphNodeFindInClone(&k2, k, twin));
	CHECK(cudaGraphKernelNodeGetParams(k2, &back));
	EXPECT(back.func == (void *)scale_add && back.gridDim.x == N / 128 &&
	       back.blockDim.x == 128 && *(float *)back.kernelParams[1] == 2.0f &&
	       *(float **)back.kernelParams[0] == d);
	CHECK(cudaGraphDestroy(g));
	cudaGraphExec_t e2;
	CHECK(cudaGraphInstantiate(&e2, twin, 0));
	memset(out, 0, sizeof(out));
	CHECK(cudaGraphLaunch(e2, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(out[0] == 3 && out[N - 1] == 3 && value == 32);
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphExecDestroy(e2));
	CHECK(cudaGraphDestroy(twin));
	CHECK(cudaFree(d));
	CHECK(cudaFree(d2));
}

/* A random order of swaps, given only by edges: a permutation that must come out right. */
static void permutation(cudaStream_t s)
{
	const int nodes = 300;
	std::vector<float> want(N);
	std::vector<int> last(N, -1);
	std::vector<cudaGraphNode_t> node(nodes);
	cudaGraph_t g;
	cudaGraphExec_t e;
	unsigned int seed = 2;
	float *d;

	for (int i = 0; i < N; i++)
		want[i] = i;
	d = to_device(want);
	CHECK(cudaGraphCreate(&g, 0));
	for (int i = 0; i < nodes; i++) {
		pair w = { (int)(rnd(&seed) % 64), (int)(rnd(&seed) % 64) };
		std::vector<cudaGraphNode_t> deps;
		void *args[] = { &d, &w };

		if (w.from == w.to)
			w.to = (w.to + 1) % 64;
		for (int p : { w.from, w.to })
			if (last[p] >= 0 && (deps.empty() || deps[0] != node[last[p]]))
				deps.push_back(node[last[p]]);
		cudaKernelNodeParams kp = kernel((void *)swap, 1, 1, args);
		CHECK(cudaGraphAddKernelNode(&node[i], g, deps.data(), deps.size(), &kp));
		last[w.from] = last[w.to] = i;
		std::swap(want[w.from], want[w.to]);
	}
	CHECK(cudaGraphInstantiate(&e, g, 0));
	CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	std::vector<float> got = to_host(d, N);
	for (int i = 0; i < N; i++)
		EXPECT_EQ(got[i], want[i]);
	sum_vector(got);
	/* edges can be taken away and asked for */
	size_t edges, found;
	CHECK(cudaGraphGetEdges(g, NULL, NULL, NULL, &edges));
	EXPECT(edges > 200);
	std::vector<cudaGraphNode_t> from(edges), to(edges);
	CHECK(cudaGraphGetEdges(g, from.data(), to.data(), NULL, &edges));
	CHECK(cudaGraphRemoveDependencies(g, from.data(), to.data(), NULL, 1));
	CHECK(cudaGraphGetEdges(g, NULL, NULL, NULL, &found));
	EXPECT_EQ(found, edges - 1);
	CHECK(cudaGraphAddDependencies(g, from.data(), to.data(), NULL, 1));
	CHECK(cudaGraphDestroyNode(node[nodes - 1]));
	CHECK(cudaGraphGetNodes(g, NULL, &found));
	EXPECT_EQ(found, nodes - 1);
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaFree(d));
}

/* A cycle must not be accepted. */
static void cycle(void)
{
	cudaGraphNode_t a, b;
	cudaGraphExec_t e;
	cudaGraph_t g;

	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddEmptyNode(&a, g, NULL, 0));
	CHECK(cudaGraphAddEmptyNode(&b, g, &a, 1));
	cudaError_t r = cudaGraphAddDependencies(g, &b, &a, NULL, 1);
	if (r == cudaSuccess)
		r = cudaGraphInstantiate(&e, g, 0);
	EXPECT(r != cudaSuccess);
	cudaGetLastError();
	CHECK(cudaGraphDestroy(g));
}

/* A graph as a node of another, twice; launched a thousand times. */
static void nested(cudaStream_t s)
{
	int n = N;
	float a = 0.5f, b = 1, *d;
	void *args[] = { &d, &a, &b, &n };
	cudaGraphNode_t k, c1, c2;
	cudaGraph_t inner, outer;
	cudaGraphExec_t e;
	cudaEvent_t start, stop;
	float ms, want = 0;

	CHECK(cudaMalloc(&d, N * 4));
	CHECK(cudaMemset(d, 0, N * 4));
	CHECK(cudaGraphCreate(&inner, 0));
	cudaKernelNodeParams kp = kernel((void *)scale_add, N / 128, 128, args);
	CHECK(cudaGraphAddKernelNode(&k, inner, NULL, 0, &kp));
	CHECK(cudaGraphCreate(&outer, 0));
	CHECK(cudaGraphAddChildGraphNode(&c1, outer, NULL, 0, inner));
	CHECK(cudaGraphAddChildGraphNode(&c2, outer, &c1, 1, inner));
	CHECK(cudaGraphDestroy(inner));
	CHECK(cudaGraphInstantiate(&e, outer, 0));
	CHECK(cudaGraphUpload(e, s));
	CHECK(cudaEventCreate(&start));
	CHECK(cudaEventCreate(&stop));
	CHECK(cudaEventRecord(start, s));
	for (int i = 0; i < 1000; i++)
		CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaEventRecord(stop, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaEventElapsedTime(&ms, start, stop));
	EXPECT(ms > 0);
	for (int i = 0; i < 2000; i++)
		want = want * 0.5f + 1;
	std::vector<float> got = to_host(d, N);
	for (float v : got)
		EXPECT(v == want);
	sum_vector(got);
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(outer));
	CHECK(cudaFree(d));
}

/* Events as nodes: a graph and a stream that wait for each other's. */
static void event_nodes(cudaStream_t s, cudaStream_t t)
{
	int n = N;
	float a = 3, b = 0, *d;
	void *args[] = { &d, &a, &b, &n };
	cudaGraphNode_t wait, k, rec;
	cudaEvent_t before, after;
	cudaGraphExec_t e;
	cudaGraph_t g;

	CHECK(cudaMalloc(&d, N * 4));
	CHECK(cudaEventCreate(&before));
	CHECK(cudaEventCreate(&after));
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddEventWaitNode(&wait, g, NULL, 0, before));
	cudaKernelNodeParams kp = kernel((void *)scale_add, N / 128, 128, args);
	CHECK(cudaGraphAddKernelNode(&k, g, &wait, 1, &kp));
	CHECK(cudaGraphAddEventRecordNode(&rec, g, &k, 1, after));
	CHECK(cudaGraphInstantiate(&e, g, 0));
	CHECK(cudaMemsetAsync(d, 0, N * 4, s));
	scale_add<<<N / 128, 128, 0, s>>>(d, 1, 2, N);
	CHECK(cudaEventRecord(before, s));
	CHECK(cudaGraphLaunch(e, t));
	CHECK(cudaStreamWaitEvent(s, after, 0));
	scale_add<<<N / 128, 128, 0, s>>>(d, 1, 1, N);
	CHECK(cudaStreamSynchronize(s));
	std::vector<float> got = to_host(d, N);
	for (float v : got)
		EXPECT(v == 7);
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaFree(d));
}

int main()
{
	cudaStream_t s, t;

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	line_of_all(s);
	permutation(s);
	cycle();
	nested(s);
	event_nodes(s, t);
	return job_passed("graphs");
}
