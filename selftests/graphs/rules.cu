// SPDX-License-Identifier: Apache-2.0
/*
 * rules.cu - what may be captured, what invalidates a capture, and with which error
 *
 * Each step prints its result; the last line is PASS. All steps also pass without a proxy.
 */
#include "../jobs/job.cuh"

#include <thread>

__global__ void add(int *p, int v)
{
	p[threadIdx.x] += v;
}

static cudaStream_t s, t, other;
static cudaEvent_t e, f;
static int *d, *pinned;

static void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal)
{
	CHECK(cudaStreamBeginCapture(stream, mode));
}

/* The capture on stream has been spoilt, and ends so. */
static void spoilt(cudaStream_t stream)
{
	cudaStreamCaptureStatus st;
	cudaGraph_t g = (cudaGraph_t)1;

	cudaGetLastError();
	CHECK(cudaStreamIsCapturing(stream, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusInvalidated);
	EXPECT_ERROR(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(d, 0, 4, stream));
	EXPECT_ERROR(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &g));
	EXPECT(!g);
	cudaGetLastError();
	CHECK(cudaStreamIsCapturing(stream, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusNone);
}

static void ends(cudaStream_t stream)
{
	cudaGraph_t g;

	cudaGetLastError();
	CHECK(cudaStreamEndCapture(stream, &g));
	CHECK(cudaGraphDestroy(g));
}

static void waiting(void)
{
	begin(s);
	EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(s));
	spoilt(s);
	begin(s);
	EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
	spoilt(s);
	begin(s, cudaStreamCaptureModeRelaxed);
	EXPECT_ERROR(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
	spoilt(s);
	/* another stream is nobody's business */
	begin(s, cudaStreamCaptureModeRelaxed);
	CHECK(cudaStreamSynchronize(other));
	ends(s);
}

static void events(void)
{
	cudaGraph_t g;

	/* last recorded in a capture: not to be asked for, then or later */
	begin(s);
	CHECK(cudaEventRecord(e, s));
	EXPECT_ERROR(cudaErrorCapturedEvent, cudaEventQuery(e));
	cudaGetLastError();
	cudaStreamEndCapture(s, &g);
	cudaGetLastError();
	EXPECT_ERROR(cudaErrorCapturedEvent, cudaEventSynchronize(e));
	EXPECT_ERROR(cudaErrorCapturedEvent, cudaStreamWaitEvent(t, e, 0));
	cudaGetLastError();
	CHECK(cudaEventRecord(e, t));
	CHECK(cudaEventSynchronize(e));

	/* of work that is not captured */
	begin(s);
	EXPECT_ERROR(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(s, e, 0));
	spoilt(s);
	/* never recorded: nothing to wait for */
	CHECK(cudaEventDestroy(f));
	CHECK(cudaEventCreate(&f));
	begin(s);
	CHECK(cudaStreamWaitEvent(s, f, 0));
	ends(s);

	/* two captures cannot become one */
	begin(s);
	begin(t);
	CHECK(cudaEventRecord(e, s));
	EXPECT_ERROR(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(t, e, 0));
	spoilt(s);
	spoilt(t);

	/* an event that goes away in between, and a stream that joined */
	begin(s);
	CHECK(cudaEventRecord(f, s));
	CHECK(cudaStreamWaitEvent(t, f, 0));
	CHECK(cudaEventDestroy(f));
	CHECK(cudaEventCreate(&f));
	add<<<1, 32, 0, t>>>(d, 1);
	EXPECT_ERROR(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(t, &g));
	spoilt(s);
}

/* Which calls of which threads the modes forbid. */
static void modes(void)
{
	cudaError_t mine, theirs;
	cudaGraph_t g;
	void *p;
	const struct {
		cudaStreamCaptureMode mode;
		bool me, them;
	} rule[] = {
		{ cudaStreamCaptureModeGlobal, false, false },
		{ cudaStreamCaptureModeThreadLocal, false, true },
		{ cudaStreamCaptureModeRelaxed, true, true },
	};

	for (auto &r : rule) {
		begin(s, r.mode);
		std::thread([&] {
			void *q;

			theirs = cudaMalloc(&q, 64);
			if (!theirs)
				cudaFree(q);
		}).join();
		EXPECT_EQ(theirs, r.them ? cudaSuccess : cudaErrorStreamCaptureUnsupported);
		cudaStreamEndCapture(s, &g);
		cudaGetLastError();
		begin(s, r.mode);
		mine = cudaMalloc(&p, 64);
		EXPECT_EQ(mine, r.me ? cudaSuccess : cudaErrorStreamCaptureUnsupported);
		if (mine)
			spoilt(s);
		else
			ends(s);
	}
	/* a thread may say that it knows what it does */
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	begin(s);
	CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
	EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
	CHECK(cudaMalloc(&p, 64));
	CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
	EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
	ends(s);
	/* a capture that is not relaxed ends where it began */
	begin(s);
	std::thread([&] {
		EXPECT_ERROR(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(s, &g));
	}).join();
	ends(s);
	begin(s, cudaStreamCaptureModeRelaxed);
	std::thread([&] { CHECK(cudaStreamEndCapture(s, &g)); }).join();
	CHECK(cudaGraphDestroy(g));
}

/* The legacy stream waits for blocking ones, so it may not be used while one records. */
static void legacy(void)
{
	cudaStreamCaptureStatus st;

	EXPECT_ERROR(cudaErrorStreamCaptureUnsupported,
		     cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeRelaxed));
	cudaGetLastError();
	begin(s, cudaStreamCaptureModeRelaxed);
	EXPECT_ERROR(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(cudaStreamLegacy, &st));
	cudaGetLastError();
	CHECK(cudaStreamIsCapturing(s, &st));
	EXPECT_EQ(st, cudaStreamCaptureStatusActive);	/* asking does no harm */
	EXPECT_ERROR(cudaErrorStreamCaptureImplicit, cudaMemsetAsync(d, 0, 4, cudaStreamLegacy));
	spoilt(s);
	begin(s, cudaStreamCaptureModeRelaxed);
	EXPECT_ERROR(cudaErrorStreamCaptureImplicit, cudaMemcpy(pinned, d, 4, cudaMemcpyDefault));
	spoilt(s);
	begin(s, cudaStreamCaptureModeRelaxed);
	EXPECT_ERROR(cudaErrorStreamCaptureImplicit, cudaEventRecord(e, cudaStreamLegacy));
	spoilt(s);
	/* one that does not block does not care */
	begin(other, cudaStreamCaptureModeRelaxed);
	CHECK(cudaMemset(d, 0, 4));
	CHECK(cudaMemcpy(pinned, d, 4, cudaMemcpyDefault));
	ends(other);
}

/* cuDNN records its kernels with an address that is none, and never makes the graph executable. */
static void nowhere(void)
{
	void *none = (void *)0x80;
	cudaGraphExec_t x = NULL;
	cudaGraphNode_t node;
	cudaMemsetParams m = {};
	cudaGraph_t g;
	size_t n = 1;

	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemsetAsync(none, 0, 64, s));
	cudaGetLastError();
	begin(s);
	CHECK(cudaMemsetAsync(none, 0, 64, s));
	CHECK(cudaMemset2DAsync(none, 64, 1, 16, 2, s));
	EXPECT_ERROR(cudaErrorInvalidValue,
		     cudaMemcpyAsync(d, none, 4, cudaMemcpyDeviceToDevice, s));
	cudaGetLastError();
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphGetRootNodes(g, &node, &n));
	CHECK(cudaGraphMemsetNodeGetParams(node, &m));
	EXPECT(m.dst == none);
	EXPECT_ERROR(cudaErrorInvalidValue, cudaGraphInstantiate(&x, g, 0));
	cudaGetLastError();
	CHECK(cudaGraphDestroy(g));
}

/* A graph made half by hand and half by capture; what is known of a capture under way. */
static void by_hand(void)
{
	cudaGraphNode_t first, mine, nodes[8];
	const cudaGraphNode_t *deps;
	cudaStreamCaptureStatus st;
	cudaGraphExec_t x;
	cudaGraph_t g, got;
	cudaMemsetParams m = {};
	unsigned long long id = 0;
	size_t n = 8;

	CHECK(cudaGraphCreate(&g, 0));
	m.dst = d;
	m.elementSize = 4;
	m.width = 32;
	m.height = 1;
	m.value = 100;
	CHECK(cudaGraphAddMemsetNode(&first, g, NULL, 0, &m));
	CHECK(cudaStreamBeginCaptureToGraph(s, g, &first, NULL, 1, cudaStreamCaptureModeGlobal));
	add<<<1, 32, 0, s>>>(d, 1);
	CHECK(cudaStreamGetCaptureInfo(s, &st, &id, &got, &deps, NULL, &n));
	EXPECT(st == cudaStreamCaptureStatusActive && id && got == g && n == 1);
	/* one by hand behind it, and the stream goes on from there */
	m.dst = d + 16;
	m.width = 16;
	m.value = 7;
	CHECK(cudaGraphAddMemsetNode(&mine, g, deps, n, &m));
	CHECK(cudaStreamUpdateCaptureDependencies(s, &mine, NULL, 1,
						  cudaStreamSetCaptureDependencies));
	add<<<1, 32, 0, s>>>(d, 1);
	CHECK(cudaStreamEndCapture(s, &got));
	EXPECT(got == g);
	n = 8;
	CHECK(cudaGraphGetNodes(g, nodes, &n));
	EXPECT_EQ(n, 4);
	n = 0;
	CHECK(cudaGraphGetEdges(g, NULL, NULL, NULL, &n));
	EXPECT_EQ(n, 3);
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaMemcpyAsync(pinned, d, 128, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(pinned[0], 102);
	EXPECT_EQ(pinned[31], 8);
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
}

static void count(void *arg)
{
	++*(int *)arg;
}

/* Host functions, pageable copies, rows, allocations and graphs can be recorded, too. */
static void work(void)
{
	int in[32], out[32], calls = 0, *p;
	unsigned char from[40][50], to[40][60];
	cudaGraphExec_t x, y;
	cudaGraph_t g, h;

	memset(from, 0x31, sizeof(from));
	memset(to, 0, sizeof(to));
	begin(s);
	CHECK(cudaMallocAsync(&p, 4096, s));
	CHECK(cudaMemcpyAsync(p, in, sizeof(in), cudaMemcpyHostToDevice, s));
	add<<<1, 32, 0, s>>>(p, 5);
	CHECK(cudaLaunchHostFunc(s, count, &calls));
	CHECK(cudaMemcpyAsync(out, p, sizeof(out), cudaMemcpyDeviceToHost, s));
	CHECK(cudaMemcpy2DAsync(p, 64, from, 50, 50, 40, cudaMemcpyHostToDevice, s));
	CHECK(cudaMemset2DAsync(p, 64, 0x77, 8, 4, s));
	CHECK(cudaMemcpy2DAsync(to, 60, p, 64, 50, 40, cudaMemcpyDeviceToHost, s));
	CHECK(cudaFreeAsync(p, s));
	CHECK(cudaStreamEndCapture(s, &g));
	EXPECT_EQ(calls, 0);
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int round = 0; round < 3; round++) {
		in[3] = round * 10;
		CHECK(cudaGraphLaunch(x, s));
		CHECK(cudaStreamSynchronize(s));
		EXPECT_EQ(out[3], round * 10 + 5);
		EXPECT_EQ(calls, round + 1);
	}
	EXPECT(to[0][0] == 0x77 && to[3][7] == 0x77 && to[3][8] == 0x31 && to[39][49] == 0x31 &&
	       to[0][50] == 0);

	/* an executable graph launched while recording becomes a child graph */
	CHECK(cudaMemset(d, 0, 128));
	begin(s);
	add<<<1, 32, 0, s>>>(d, 3);
	CHECK(cudaStreamEndCapture(s, &h));
	CHECK(cudaGraphInstantiate(&y, h, 0));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaGraphDestroy(h));
	begin(s);
	CHECK(cudaGraphLaunch(y, s));
	add<<<1, 32, 0, s>>>(d, 20);
	CHECK(cudaGraphLaunch(y, s));
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphExecDestroy(y));
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphLaunch(x, s));
	CHECK(cudaMemcpyAsync(pinned, d, 128, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(pinned[31], 26);
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
}

/* What a graph has freed it allocates again: all of it at once would not fit. */
static void reuse(void)
{
	size_t all, left, high = 0;
	cudaGraphExec_t x;
	cudaGraph_t g;
	char *p, *q, *first = NULL;

	CHECK(cudaMemGetInfo(&left, &all));
	begin(s);
	for (int i = 0; i < 50; i++) {
		CHECK(cudaMallocAsync(&p, left / 8, s));
		if (!first)
			first = p;
		EXPECT(p == first);
		CHECK(cudaMemsetAsync(p, i, 64, s));
		CHECK(cudaMemcpyAsync(pinned, p, 64, cudaMemcpyDeviceToHost, s));
		CHECK(cudaFreeAsync(p, s));
	}
	/* not so what may be in use beside it */
	CHECK(cudaEventRecord(e, s));
	CHECK(cudaStreamWaitEvent(t, e, 0));
	CHECK(cudaMallocAsync(&p, left / 8, s));
	CHECK(cudaMallocAsync(&q, left / 8, t));
	EXPECT(p == first && q != first);
	CHECK(cudaMemsetAsync(p, 0x11, 64, s));
	CHECK(cudaMemsetAsync(q, 0x22, 64, t));
	CHECK(cudaFreeAsync(q, t));
	CHECK(cudaEventRecord(f, t));
	CHECK(cudaStreamWaitEvent(s, f, 0));
	CHECK(cudaMemcpyAsync(pinned + 16, p, 64, cudaMemcpyDeviceToHost, s));
	CHECK(cudaFreeAsync(p, s));
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	for (int i = 0; i < 2; i++) {
		memset(pinned, 0, 128);
		CHECK(cudaGraphLaunch(x, s));
		CHECK(cudaStreamSynchronize(s));
		EXPECT_EQ(pinned[0], 0x01010101 * 49);
		EXPECT_EQ(pinned[31], 0x11111111);
	}
	CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &high));
	EXPECT(high >= left / 4 && high < left / 2);
	CHECK(cudaGraphExecDestroy(x));
	CHECK(cudaGraphDestroy(g));
}

/* Destroyed in the middle of it. */
static void destroyed(void)
{
	cudaStream_t q;
	cudaGraph_t g;

	CHECK(cudaStreamCreate(&q));
	begin(q, cudaStreamCaptureModeRelaxed);
	add<<<1, 32, 0, q>>>(d, 1);
	CHECK(cudaStreamDestroy(q));		/* the capture ends with its stream */
	CHECK(cudaMemset(d, 0, 4));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaStreamCreate(&q));
	begin(s, cudaStreamCaptureModeRelaxed);
	CHECK(cudaEventRecord(e, s));
	CHECK(cudaStreamWaitEvent(q, e, 0));
	add<<<1, 32, 0, q>>>(d, 1);
	CHECK(cudaStreamDestroy(q));		/* its work can be joined no more */
	EXPECT(cudaStreamEndCapture(s, &g) != cudaSuccess);
	cudaGetLastError();
	CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CHECK(cudaEventCreate(&e));
	CHECK(cudaEventCreate(&f));
	CHECK(cudaMalloc(&d, 128));
	CHECK(cudaMallocHost(&pinned, 128));
	add<<<1, 32>>>(d, 0);
	CHECK(cudaDeviceSynchronize());
	struct { const char *name; void (*fn)(void); } all[] = {
		{ "waiting", waiting }, { "events", events }, { "modes", modes },
		{ "legacy", legacy }, { "nowhere", nowhere }, { "by_hand", by_hand },
		{ "work", work }, { "reuse", reuse }, { "destroyed", destroyed },
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
