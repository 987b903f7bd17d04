// SPDX-License-Identifier: Apache-2.0
/*
 * d_graphs.cu - captured and hand-made graphs, updates of them, memory nodes, pools.
 */
#include "direct.cuh"

__global__ void add(int *p, int v, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] += v;
}

static void captured(void)
{
	const int n = 1000;
	cudaStream_t s, t;
	cudaEvent_t fork, join;
	cudaGraphExec_t x;
	cudaGraph_t g;
	int *d, *h;

	CHECK(cudaMalloc(&d, n * 4));
	CHECK(cudaMallocHost(&h, n * 4));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaMemsetAsync(d, 0, n * 4, s));
	CHECK(cudaEventRecord(fork, s));
	CHECK(cudaStreamWaitEvent(t, fork, 0));
	add<<<2, 256, 0, s>>>(d, 1, 500);
	add<<<2, 256, 0, t>>>(d + 500, 2, 500);
	CHECK(cudaEventRecord(join, t));
	CHECK(cudaStreamWaitEvent(s, join, 0));
	CHECK(cudaMemcpyAsync(h, d, n * 4, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int i = 0; i < 10; i++) {
		memset(h, 0, n * 4);
		CHECK(cudaGraphLaunch(x, s));
		CHECK(cudaStreamSynchronize(s));
		EXPECT(h[0] == 1 && h[499] == 1 && h[500] == 2 && h[999] == 2);
	}
	/* the same work with another value, into the same executable graph */
	cudaGraph_t g2;
	cudaGraphExecUpdateResultInfo info;
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaMemsetAsync(d, 0, n * 4, s));
	CHECK(cudaEventRecord(fork, s));
	CHECK(cudaStreamWaitEvent(t, fork, 0));
	add<<<2, 256, 0, s>>>(d, 10, 500);
	add<<<2, 256, 0, t>>>(d + 500, 20, 500);
	CHECK(cudaEventRecord(join, t));
	CHECK(cudaStreamWaitEvent(s, join, 0));
	CHECK(cudaMemcpyAsync(h, d, n * 4, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamEndCapture(s, &g2));
	CHECK(cudaGraphExecUpdate(x, g2, &info));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(h[0] == 10 && h[999] == 20);
	EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, ({
		cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
		cudaDeviceSynchronize();
	}));
	EXPECT_ERROR(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(s, &g2));
	cudaGetLastError();
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
}

static void by_hand(void)
{
	int n = 64, v = 3, *d, got[64];
	void *args[] = { &d, &v, &n };
	cudaGraphNode_t k, m, c;
	cudaGraphExec_t x;
	cudaGraph_t g;

	CHECK(cudaMalloc(&d, 256));
	CHECK(cudaGraphCreate(&g, 0));
	cudaMemsetParams mp = {};
	mp.dst = d;
	mp.elementSize = 4;
	mp.width = 64;
	mp.height = 1;
	mp.value = 100;
	CHECK(cudaGraphAddMemsetNode(&m, g, NULL, 0, &mp));
	cudaKernelNodeParams kp = {};
	kp.func = (void *)add;
	kp.gridDim = 1;
	kp.blockDim = 64;
	kp.kernelParams = args;
	CHECK(cudaGraphAddKernelNode(&k, g, &m, 1, &kp));
	CHECK(cudaGraphAddMemcpyNode1D(&c, g, &k, 1, got, d, 256, cudaMemcpyDeviceToHost));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, 0));
	CHECK(cudaStreamSynchronize(0));
	EXPECT(got[0] == 103 && got[63] == 103);
	v = 7;
	CHECK(cudaGraphExecKernelNodeSetParams(x, k, &kp));
	CHECK(cudaGraphLaunch(x, 0));
	CHECK(cudaStreamSynchronize(0));
	EXPECT(got[0] == 107);
}

static void pools(void)
{
	cudaMemPool_t pool;
	cudaStream_t s;
	int *a, *b, h[100];

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
	for (int i = 0; i < 100; i++) {
		CHECK(cudaMallocAsync(&a, 400, s));
		CHECK(cudaMallocAsync(&b, 4 << 20, s));
		CHECK(cudaMemsetAsync(a, 0, 400, s));
		add<<<1, 128, 0, s>>>(a, i, 100);
		CHECK(cudaMemcpyAsync(h, a, 400, cudaMemcpyDeviceToHost, s));
		CHECK(cudaFreeAsync(a, s));
		CHECK(cudaFreeAsync(b, s));
		CHECK(cudaStreamSynchronize(s));
		EXPECT(h[0] == i && h[99] == i);
	}
	/* allocations while a stream records become nodes */
	cudaGraphExec_t x;
	cudaGraph_t g;
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaMallocAsync(&a, 400, s));
	CHECK(cudaMemsetAsync(a, 1, 400, s));
	add<<<1, 128, 0, s>>>(a, 1, 100);
	CHECK(cudaMemcpyAsync(h, a, 400, cudaMemcpyDeviceToHost, s));
	CHECK(cudaFreeAsync(a, s));
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int i = 0; i < 3; i++)
		CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(h[0] == 0x01010102 && h[99] == 0x01010102);
}

__global__ void count_down(cudaGraphConditionalHandle h, int *n)
{
	int left = --*n;

	cudaGraphSetConditional(h, left > 0);
}

static void conditional(void)
{
	cudaGraphConditionalHandle again, which;
	cudaGraphNode_t loop, choice, node;
	cudaGraphNodeParams p = {};
	cudaGraphExec_t x;
	cudaGraph_t g;
	int *d, h[2] = { 5, 0 }, one = 1, n1 = 1;

	CHECK(cudaMalloc(&d, 8));
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphConditionalHandleCreate(&again, g, 1, cudaGraphCondAssignDefault));
	CHECK(cudaGraphConditionalHandleCreate(&which, g, 0, cudaGraphCondAssignDefault));
	p.type = cudaGraphNodeTypeConditional;
	p.conditional.handle = again;
	p.conditional.type = cudaGraphCondTypeWhile;
	p.conditional.size = 1;
	CHECK(cudaGraphAddNode(&loop, g, NULL, NULL, 0, &p));
	cudaGraph_t body = p.conditional.phGraph_out[0];

	int *second = d + 1;
	void *count_args[] = { &again, &d }, *add_args[] = { &second, &one, &n1 };
	cudaKernelNodeParams k = {};
	k.func = (void *)count_down;
	k.gridDim = k.blockDim = 1;
	k.kernelParams = count_args;
	CHECK(cudaGraphAddKernelNode(&node, body, NULL, 0, &k));
	k.func = (void *)add;
	k.kernelParams = add_args;
	CHECK(cudaGraphAddKernelNode(&node, body, &node, 1, &k));

	p = {};
	p.type = cudaGraphNodeTypeConditional;
	p.conditional.handle = which;
	p.conditional.type = cudaGraphCondTypeIf;
	p.conditional.size = 1;
	CHECK(cudaGraphAddNode(&choice, g, &loop, NULL, 1, &p));
	CHECK(cudaGraphAddKernelNode(&node, p.conditional.phGraph_out[0], NULL, 0, &k));

	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int i = 1; i <= 3; i++) {
		CHECK(cudaMemcpy(d, h, 4, cudaMemcpyHostToDevice));
		CHECK(cudaMemset(d + 1, 0, 4));
		CHECK(cudaGraphLaunch(x, 0));
		CHECK(cudaMemcpy(h + 1, d + 1, 4, cudaMemcpyDeviceToHost));
		EXPECT(h[1] == 5);	/* five rounds; the other body never */
	}
}

/* A node says which function it was made with, and it may be changed with what it says. */
static void parameters(void)
{
	int *d, v = 3, n = 32, h;
	void *args[] = { &d, &v, &n };
	cudaKernelNodeParams k = {}, back;
	cudaGraphNode_t node;
	cudaGraphExec_t x;
	cudaGraph_t g;

	CHECK(cudaMalloc(&d, n * 4));
	CHECK(cudaMemset(d, 0, n * 4));
	CHECK(cudaGraphCreate(&g, 0));
	k.func = (void *)add;
	k.gridDim = 1;
	k.blockDim = 32;
	k.kernelParams = args;
	CHECK(cudaGraphAddKernelNode(&node, g, NULL, 0, &k));
	CHECK(cudaGraphKernelNodeGetParams(node, &back));
	EXPECT(back.func == (void *)add && back.blockDim.x == 32);
	EXPECT(*(int *)back.kernelParams[1] == 3);
	CHECK(cudaGraphKernelNodeSetParams(node, &back));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphExecKernelNodeSetParams(x, node, &back));
	CHECK(cudaGraphLaunch(x, 0));
	CHECK(cudaMemcpy(&h, d, 4, cudaMemcpyDeviceToHost));
	EXPECT(h == 3);
}

/* Two branches that meet, recorded twice: the nodes' dependencies are the same set. */
static cudaGraph_t branches(int *d, int v, cudaStream_t s, cudaStream_t t, cudaStream_t u)
{
	cudaEvent_t fork, a, b;
	cudaGraph_t g;

	CHECK(cudaEventCreate(&fork));
	CHECK(cudaEventCreate(&a));
	CHECK(cudaEventCreate(&b));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaEventRecord(fork, s));
	CHECK(cudaStreamWaitEvent(u, fork, 0));
	CHECK(cudaStreamWaitEvent(t, fork, 0));
	add<<<1, 32, 0, t>>>(d, v, 32);
	add<<<1, 32, 0, t>>>(d, v, 32);
	add<<<1, 32, 0, u>>>(d + 32, v, 32);
	CHECK(cudaEventRecord(a, t));
	CHECK(cudaEventRecord(b, u));
	CHECK(cudaStreamWaitEvent(s, b, 0));
	CHECK(cudaStreamWaitEvent(s, a, 0));
	add<<<1, 64, 0, s>>>(d, v, 64);
	CHECK(cudaStreamEndCapture(s, &g));
	return g;
}

static void same_shape(void)
{
	cudaGraphExecUpdateResultInfo info;
	cudaStream_t s, t, u;
	cudaGraphExec_t x;
	int *d, h[64];

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaStreamCreate(&u));
	CHECK(cudaMalloc(&d, 64 * 4));
	CHECK(cudaMemset(d, 0, 64 * 4));
	CHECK(cudaGraphInstantiate(&x, branches(d, 1, s, t, u), 0));
	CHECK(cudaGraphExecUpdate(x, branches(d, 5, s, t, u), &info));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemcpy(h, d, sizeof(h), cudaMemcpyDeviceToHost));
	EXPECT(h[0] == 15 && h[63] == 10);
}

static void slowly(void *arg)
{
	for (volatile int i = 0; i < 20000000; i++)
		;
	*(int *)arg = 1;
}

/* An event that a graph records is recorded when the graph is launched: others wait for it. */
static void event_nodes(void)
{
	cudaHostNodeParams host = {};
	cudaGraphNode_t slow, record;
	cudaGraphExec_t x;
	cudaStream_t s, t;
	cudaEvent_t after;
	cudaGraph_t g;
	int done = 0;

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaEventCreate(&after));
	CHECK(cudaGraphCreate(&g, 0));
	host.fn = slowly;
	host.userData = &done;
	CHECK(cudaGraphAddHostNode(&slow, g, NULL, 0, &host));
	CHECK(cudaGraphAddEventRecordNode(&record, g, &slow, 1, after));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int i = 0; i < 3; i++) {
		done = 0;
		CHECK(cudaGraphLaunch(x, t));
		EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(after));
		CHECK(cudaStreamWaitEvent(s, after, 0));
		CHECK(cudaStreamSynchronize(s));
		EXPECT(done == 1);
	}
	CHECK(cudaGraphLaunch(x, t));
	CHECK(cudaEventSynchronize(after));
	CHECK(cudaGraphLaunch(x, t));
	CHECK(cudaGraphExecDestroy(x));		/* while it runs */
	CHECK(cudaStreamWaitEvent(s, after, 0));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(done == 1);
}

int main()
{
	parameters();
	same_shape();
	event_nodes();
	conditional();
	captured();
	by_hand();
	pools();
	printf("PASS\n");
	return 0;
}
