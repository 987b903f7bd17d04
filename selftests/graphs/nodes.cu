// SPDX-License-Identifier: Apache-2.0
/*
 * nodes.cu - graphs whose nodes involve the program: pageable memory, host functions, updates
 *
 * Each step prints its result; the last line is PASS. All steps also pass without a proxy.
 */
#include "../jobs/job.cuh"

#include <atomic>
#include <thread>

__global__ void add(int *p, int v, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] += v;
}

static cudaStream_t s, t;

static cudaKernelNodeParams adds(void **args, int n)
{
	cudaKernelNodeParams k = {};

	k.func = (void *)add;
	k.gridDim = (n + 127) / 128;
	k.blockDim = 128;
	k.kernelParams = args;
	return k;
}

static void fill(void *arg)
{
	int *p = (int *)arg;

	for (int i = 0; i < 1000; i++)
		p[i] = p[1000] + i;
	p[1000] += 5000;
}

/* A copy reads and writes the program's memory when the graph comes to it, not before or after. */
static void pageable(void)
{
	std::vector<int> in(1001), out(1000), last(1000);
	int *d, one = 1, n = 1000;
	void *args[] = { &d, &one, &n };
	cudaKernelNodeParams k = adds(args, n);
	cudaHostNodeParams host = { fill, in.data() };
	cudaGraphNode_t f, up, add1, down, again;
	cudaGraphExec_t x;
	cudaGraph_t g;

	CHECK(cudaMalloc(&d, n * 4));
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddHostNode(&f, g, NULL, 0, &host));
	CHECK(cudaGraphAddMemcpyNode1D(&up, g, &f, 1, d, in.data(), n * 4, cudaMemcpyHostToDevice));
	CHECK(cudaGraphAddKernelNode(&add1, g, &up, 1, &k));
	CHECK(cudaGraphAddMemcpyNode1D(&down, g, &add1, 1, out.data(), d, n * 4,
				       cudaMemcpyDeviceToHost));
	CHECK(cudaGraphAddMemcpyNode1D(&again, g, &down, 1, last.data(), out.data(), n * 4,
				       cudaMemcpyHostToHost));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int round = 0; round < 5; round++) {
		CHECK(cudaGraphLaunch(x, round & 1 ? s : t));
		CHECK(cudaStreamSynchronize(round & 1 ? s : t));
		for (int i = 0; i < n; i++)
			EXPECT_EQ(last[i], round * 5000 + i + 1);
	}
	/* several under way */
	for (int round = 0; round < 20; round++)
		CHECK(cudaGraphLaunch(x, round & 1 ? s : t));
	CHECK(cudaDeviceSynchronize());
	EXPECT_EQ(out[999], 24 * 5000 + 999 + 1);

	/* to other memory, pageable and pinned, and switched off */
	std::vector<int> other(1000, -1);
	int *pinned;
	CHECK(cudaMallocHost(&pinned, n * 4));
	pinned[7] = -1;
	CHECK(cudaGraphExecMemcpyNodeSetParams1D(x, down, other.data(), d, n * 4,
						 cudaMemcpyDeviceToHost));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(other[7], 25 * 5000 + 8);
	EXPECT_EQ(out[7], 24 * 5000 + 8);
	CHECK(cudaGraphExecMemcpyNodeSetParams1D(x, down, pinned, d, n * 4,
						 cudaMemcpyDeviceToHost));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(pinned[7], 26 * 5000 + 8);
	EXPECT_EQ(other[7], 25 * 5000 + 8);
	CHECK(cudaGraphNodeSetEnabled(x, down, 0));
	CHECK(cudaGraphNodeSetEnabled(x, add1, 0));
	pinned[7] = -2;
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(pinned[7], -2);
	unsigned int on = 9;
	CHECK(cudaGraphNodeGetEnabled(x, down, &on));
	EXPECT_EQ(on, 0);
	CHECK(cudaGraphNodeSetEnabled(x, down, 1));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(pinned[7], 28 * 5000 + 7);	/* without the 1 */
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaFreeHost(pinned));
	CHECK(cudaFree(d));
}

/* Rows of pageable memory, with pitches on both sides. */
static void rows(void)
{
	std::vector<unsigned char> in(64 * 40), out(50 * 30, 0xee);
	cudaMemcpy3DParms p = {};
	cudaGraphNode_t up, down;
	cudaGraphExec_t x;
	cudaGraph_t g;
	size_t pitch;
	void *d;

	for (size_t i = 0; i < in.size(); i++)
		in[i] = i * 7;
	CHECK(cudaMallocPitch(&d, &pitch, 48, 30));
	CHECK(cudaGraphCreate(&g, 0));
	p.srcPtr = make_cudaPitchedPtr(in.data(), 64, 64, 40);
	p.srcPos = make_cudaPos(3, 5, 0);
	p.dstPtr = make_cudaPitchedPtr(d, pitch, 48, 30);
	p.extent = make_cudaExtent(48, 30, 1);
	p.kind = cudaMemcpyHostToDevice;
	CHECK(cudaGraphAddMemcpyNode(&up, g, NULL, 0, &p));
	p = {};
	p.srcPtr = make_cudaPitchedPtr(d, pitch, 48, 30);
	p.dstPtr = make_cudaPitchedPtr(out.data(), 50, 50, 30);
	p.dstPos = make_cudaPos(1, 0, 0);
	p.extent = make_cudaExtent(48, 30, 1);
	p.kind = cudaMemcpyDeviceToHost;
	CHECK(cudaGraphAddMemcpyNode(&down, g, &up, 1, &p));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	for (int y = 0; y < 30; y++) {
		EXPECT_EQ(out[y * 50], 0xee);
		EXPECT_EQ(out[y * 50 + 49], 0xee);
		for (int i = 0; i < 48; i++)
			EXPECT_EQ(out[y * 50 + 1 + i], in[(y + 5) * 64 + 3 + i]);
	}
	cudaMemcpy3DParms got;
	CHECK(cudaGraphMemcpyNodeGetParams(up, &got));
	EXPECT(got.srcPtr.ptr == in.data() && got.srcPos.x == 3 && got.extent.height == 30);
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaFree(d));
}

static void slowly(void *arg)
{
	std::this_thread::sleep_for(std::chrono::milliseconds(50));
	++*(std::atomic<int> *)arg;
}

static void quickly(void *arg)
{
	*(std::atomic<int> *)arg += 100;
}

/* What is destroyed while it runs ends as it would; a changed function is not the one under way. */
static void under_way(void)
{
	std::atomic<int> ran(0);
	cudaHostNodeParams host = { slowly, &ran };
	cudaGraphNode_t n;
	cudaGraphExec_t x;
	cudaGraph_t g;

	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddHostNode(&n, g, NULL, 0, &host));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaGraphLaunch(x, s));
	host.fn = quickly;
	CHECK(cudaGraphExecHostNodeSetParams(x, n, &host));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(ran, 102);
	host.fn = slowly;
	CHECK(cudaGraphExecHostNodeSetParams(x, n, &host));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(ran, 104);
}

/* A child graph, cloned into its node; empty ones; changed as a whole. */
static void children(void)
{
	int *d, one = 1, ten = 10, n = 64, h[64];
	void *a1[] = { &d, &one, &n }, *a10[] = { &d, &ten, &n };
	cudaKernelNodeParams k1 = adds(a1, n), k10 = adds(a10, n);
	cudaGraph_t g, child, other, empty, got;
	cudaGraphNode_t c, e, last, node;
	cudaGraphExec_t x;
	size_t count = 0;

	CHECK(cudaMalloc(&d, n * 4));
	CHECK(cudaMemset(d, 0, n * 4));
	CHECK(cudaGraphCreate(&child, 0));
	CHECK(cudaGraphAddKernelNode(&node, child, NULL, 0, &k1));
	CHECK(cudaGraphAddKernelNode(&node, child, &node, 1, &k1));
	CHECK(cudaGraphCreate(&empty, 0));
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddChildGraphNode(&c, g, NULL, 0, child));
	CHECK(cudaGraphAddChildGraphNode(&e, g, &c, 1, empty));
	CHECK(cudaGraphAddKernelNode(&last, g, &e, 1, &k10));
	CHECK(cudaGraphAddKernelNode(&node, child, NULL, 0, &k10));	/* too late for the clone */
	CHECK(cudaGraphDestroy(child));
	CHECK(cudaGraphChildGraphNodeGetGraph(c, &got));
	CHECK(cudaGraphGetNodes(got, NULL, &count));
	EXPECT_EQ(count, 2);
	EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphDestroy(got));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemcpy(h, d, sizeof(h), cudaMemcpyDeviceToHost));
	EXPECT_EQ(h[63], 12);

	CHECK(cudaGraphCreate(&other, 0));
	CHECK(cudaGraphAddKernelNode(&node, other, NULL, 0, &k10));
	EXPECT(cudaGraphExecChildGraphNodeSetParams(x, c, other) != cudaSuccess);
	CHECK(cudaGraphAddKernelNode(&node, other, &node, 1, &k10));
	CHECK(cudaGraphExecChildGraphNodeSetParams(x, c, other));
	CHECK(cudaMemset(d, 0, n * 4));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemcpy(h, d, sizeof(h), cudaMemcpyDeviceToHost));
	EXPECT_EQ(h[63], 30);
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaGraphDestroy(other));
	CHECK(cudaGraphDestroy(empty));
	CHECK(cudaFree(d));
}

/* Allocation nodes: addresses stay, what is left allocated forbids the next launch or is freed. */
static void allocations(void)
{
	cudaMemAllocNodeParams a = {};
	cudaGraphNode_t alloc, set, down, freed;
	cudaGraphExec_t x, y;
	cudaGraph_t g, h;
	cudaMemsetParams m = {};
	int got[16];

	a.poolProps.allocType = cudaMemAllocationTypePinned;
	a.poolProps.location.type = cudaMemLocationTypeDevice;
	a.bytesize = 1 << 20;
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddMemAllocNode(&alloc, g, NULL, 0, &a));
	m.dst = a.dptr;
	m.elementSize = 4;
	m.width = 16;
	m.height = 1;
	m.value = 77;
	CHECK(cudaGraphAddMemsetNode(&set, g, &alloc, 1, &m));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphLaunch(x, s));
	cudaGetLastError();
	CHECK(cudaMemcpyAsync(got, a.dptr, sizeof(got), cudaMemcpyDeviceToHost, s));
	CHECK(cudaFreeAsync(a.dptr, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(got[15], 77);
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaFree(a.dptr));
	CHECK(cudaGraphInstantiate(&y, g, cudaGraphInstantiateFlagAutoFreeOnLaunch));
	for (int i = 0; i < 3; i++)
		CHECK(cudaGraphLaunch(y, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_ERROR(cudaErrorNotSupported, cudaGraphClone(&h, g));
	EXPECT_ERROR(cudaErrorNotSupported, cudaGraphDestroyNode(alloc));
	CHECK(cudaFree(a.dptr));
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphExecDestroy(y));
	CHECK(cudaGraphDestroy(g));

	size_t used = 1, reserved = 1;
	CHECK(cudaDeviceGraphMemTrim(0));
	CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
	CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
	EXPECT_EQ(used, 0);
	EXPECT_EQ(reserved, 0);

	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddMemAllocNode(&alloc, g, NULL, 0, &a));
	m.dst = a.dptr;
	CHECK(cudaGraphAddMemsetNode(&set, g, &alloc, 1, &m));
	CHECK(cudaGraphAddMemcpyNode1D(&down, g, &set, 1, got, a.dptr, sizeof(got),
				       cudaMemcpyDeviceToHost));
	CHECK(cudaGraphAddMemFreeNode(&freed, g, &down, 1, a.dptr));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int i = 0; i < 3; i++) {
		memset(got, 0, sizeof(got));
		CHECK(cudaGraphLaunch(x, s));
		CHECK(cudaStreamSynchronize(s));
		EXPECT_EQ(got[0], 77);
	}
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
}

/* Until the number is not 0 any more; it is 2 if that has taken too long. */
static void held(void *arg)
{
	std::atomic<int> *go = (std::atomic<int> *)arg;

	for (int ms = 0; ms < 5000 && !*go; ms++)
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	*go = *go ? 1 : 2;
}

static void allocate(cudaGraph_t *g, void **d)
{
	cudaMemAllocNodeParams a = {};
	cudaGraphNode_t alloc;

	a.poolProps.allocType = cudaMemAllocationTypePinned;
	a.poolProps.location.type = cudaMemLocationTypeDevice;
	a.bytesize = 1 << 20;
	CHECK(cudaGraphCreate(g, 0));
	CHECK(cudaGraphAddMemAllocNode(&alloc, *g, NULL, 0, &a));
	*d = a.dptr;
}

/* A graph's memory is freed while a stream works with it: nobody else has it before. What no graph has used is free at once. */
static void freed_in_use(void)
{
	std::atomic<int> ran(0), go(0);
	std::vector<char> got(1 << 20);
	cudaGraphExec_t x;
	cudaGraph_t g;
	void *d, *e;

	allocate(&g, &d);
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaLaunchHostFunc(s, slowly, &ran));
	CHECK(cudaMemsetAsync(d, 1, got.size(), s));
	CHECK(cudaFreeAsync(d, s));
	CHECK(cudaMalloc(&e, got.size()));
	CHECK(cudaMemsetAsync(e, 2, got.size(), t));
	CHECK(cudaStreamSynchronize(t));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemcpy(got.data(), e, got.size(), cudaMemcpyDeviceToHost));
	EXPECT_EQ(got[0], 2);
	EXPECT_EQ(got.back(), 2);
	CHECK(cudaFree(e));
	CHECK(cudaLaunchHostFunc(t, held, &go));
	allocate(&g, &d);
	CHECK(cudaGraphDestroy(g));
	EXPECT_EQ(go, 0);
	go = 1;
	CHECK(cudaStreamSynchronize(t));
}

static void gone(void *arg)
{
	++*(int *)arg;
}

/* User objects live as long as a graph, its clones and what was made of them. */
static void users(void)
{
	cudaUserObject_t u;
	cudaGraphExec_t x;
	cudaGraph_t g, c;
	int count = 0;

	CHECK(cudaUserObjectCreate(&u, &count, gone, 1, cudaUserObjectNoDestructorSync));
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphRetainUserObject(g, u, 1, cudaGraphUserObjectMove));
	CHECK(cudaGraphClone(&c, g));
	CHECK(cudaGraphInstantiate(&x, c, 0));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaGraphDestroy(c));
	EXPECT_EQ(count, 0);
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaGraphExecDestroy(x));
	for (int i = 0; i < 1000 && !count; i++)
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	EXPECT_EQ(count, 1);
}

/* Thousands of nodes: the description is large, and so is an update of all of it. */
static cudaGraph_t many(int *d, int v, int n)
{
	cudaEvent_t e[2];
	cudaGraph_t g;

	CHECK(cudaEventCreate(&e[0]));
	CHECK(cudaEventCreate(&e[1]));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
	for (int i = 0; i < n; i++) {
		CHECK(cudaEventRecord(e[0], s));
		CHECK(cudaStreamWaitEvent(t, e[0], 0));
		add<<<1, 32, 0, s>>>(d, v, 32);
		add<<<1, 32, 0, t>>>(d + 32, v, 32);
		CHECK(cudaEventRecord(e[1], t));
		CHECK(cudaStreamWaitEvent(s, e[1], 0));
	}
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaEventDestroy(e[0]));
	CHECK(cudaEventDestroy(e[1]));
	return g;
}

static void large(void)
{
	cudaGraphExecUpdateResultInfo info;
	cudaGraph_t g, h;
	cudaGraphExec_t x;
	int *d, got[64];

	CHECK(cudaMalloc(&d, 256));
	CHECK(cudaMemset(d, 0, 256));
	g = many(d, 1, 1000);
	h = many(d, 3, 1000);
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaGraphExecUpdate(x, h, &info));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaGraphExecUpdate(x, g, &info));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemcpy(got, d, 256, cudaMemcpyDeviceToHost));
	EXPECT_EQ(got[0], 5000);
	EXPECT_EQ(got[63], 5000);
	CHECK(cudaGraphDestroy(h));
	h = many(d, 3, 999);
	EXPECT_ERROR(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(x, h, &info));
	EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaGraphDestroy(h));
	CHECK(cudaFree(d));
}

__global__ void next(cudaGraphConditionalHandle loop, cudaGraphConditionalHandle which, int *d)
{
	int left = --d[0];

	cudaGraphSetConditional(loop, left > 0);
	cudaGraphSetConditional(which, left % 3);
}

/* A loop whose body chooses one of three; bodies filled by hand and by capture. */
static void conditional(void)
{
	cudaGraphConditionalHandle loop, which;
	cudaGraphNodeParams p = {}, q = {};
	cudaGraphNode_t again, choice, step;
	int *d, h[4];
	cudaGraphExec_t x;
	cudaGraph_t g, body, c;

	CHECK(cudaMalloc(&d, 16));
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphConditionalHandleCreate(&loop, g, 1, cudaGraphCondAssignDefault));
	CHECK(cudaGraphConditionalHandleCreate(&which, g, 0, 0));
	p.type = q.type = cudaGraphNodeTypeConditional;
	p.conditional.handle = loop;
	p.conditional.type = cudaGraphCondTypeWhile;
	p.conditional.size = 1;
	CHECK(cudaGraphAddNode(&again, g, NULL, NULL, 0, &p));
	body = p.conditional.phGraph_out[0];
	EXPECT(cudaGraphDestroy(body) != cudaSuccess);
	void *args[] = { &loop, &which, &d };
	cudaKernelNodeParams k = {};
	k.func = (void *)next;
	k.gridDim = k.blockDim = 1;
	k.kernelParams = args;
	CHECK(cudaGraphAddKernelNode(&step, body, NULL, 0, &k));
	q.conditional.handle = which;
	q.conditional.type = cudaGraphCondTypeSwitch;
	q.conditional.size = 3;
	CHECK(cudaGraphAddNode(&choice, body, &step, NULL, 1, &q));
	for (int i = 0; i < 3; i++) {
		CHECK(cudaStreamBeginCaptureToGraph(s, q.conditional.phGraph_out[i], NULL, NULL, 0,
						    cudaStreamCaptureModeRelaxed));
		add<<<1, 1, 0, s>>>(d + 1 + i, 1, 1);
		CHECK(cudaStreamEndCapture(s, i ? NULL : &c));	/* whose graph it is is known */
	}
	EXPECT_ERROR(cudaErrorNotSupported, cudaGraphClone(&c, g));
	cudaGetLastError();
	for (int round = 0; round < 3; round++) {
		CHECK(cudaGraphInstantiate(&x, g, 0));
		for (int i = 0; i < 2; i++) {
			int start[4] = { 10 };

			CHECK(cudaMemcpy(d, start, 16, cudaMemcpyHostToDevice));
			CHECK(cudaGraphLaunch(x, s));
			CHECK(cudaStreamSynchronize(s));
			CHECK(cudaMemcpy(h, d, 16, cudaMemcpyDeviceToHost));
			EXPECT_EQ(h[0], 0);
			EXPECT_EQ(h[1], 4);	/* 9 6 3 0 */
			EXPECT_EQ(h[2], 3);	/* 7 4 1 */
			EXPECT_EQ(h[3], 3);	/* 8 5 2 */
		}
		CHECK(cudaGraphExecDestroy(x));
	}
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaFree(d));
}

/* Made, launched and destroyed again and again: nothing is used up. */
static void again(void)
{
	std::vector<char> from(1 << 20), to(1 << 20);
	cudaGraphNode_t up, down;
	cudaGraphExec_t x;
	cudaGraph_t g;
	void *d;

	CHECK(cudaMalloc(&d, from.size()));
	CHECK(cudaGraphCreate(&g, 0));
	CHECK(cudaGraphAddMemcpyNode1D(&up, g, NULL, 0, d, from.data(), from.size(),
				       cudaMemcpyHostToDevice));
	CHECK(cudaGraphAddMemcpyNode1D(&down, g, &up, 1, to.data(), d, to.size(),
				       cudaMemcpyDeviceToHost));
	for (int i = 0; i < 200; i++) {
		from[i] = i;
		CHECK(cudaGraphInstantiate(&x, g, 0));
		CHECK(cudaGraphLaunch(x, s));
		if (i % 3 == 0)
			CHECK(cudaStreamSynchronize(s));
		CHECK(cudaGraphExecDestroy(x));
	}
	CHECK(cudaStreamSynchronize(s));
	EXPECT(from == to);
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaFree(d));
}

int main(int argc, char **argv)
{
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	struct { const char *name; void (*fn)(void); } all[] = {
		{ "pageable", pageable }, { "rows", rows }, { "under_way", under_way },
		{ "children", children }, { "allocations", allocations },
		{ "freed_in_use", freed_in_use }, { "users", users }, { "large", large },
		{ "conditional", conditional }, { "again", again },
	};
	for (auto &step : all) {
		if (argc > 1 && strcmp(argv[1], step.name))
			continue;
		step.fn();
		printf("%s\n", step.name);
	}
	printf("PASS\n");
	return 0;
}
