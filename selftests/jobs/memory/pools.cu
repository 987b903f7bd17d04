// SPDX-License-Identifier: Apache-2.0
/*
 * pools.cu - memory allocated and freed in stream order: reuse, pools of the program's own, limits.
 */
#include "../job.cuh"

__global__ void fill(unsigned int *p, unsigned int v, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = v + i;
}

__global__ void add(unsigned int *out, const unsigned int *a, const unsigned int *b, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = a[i] + b[i];
}

/* Random allocations, each filled with its own pattern and checked before it goes. */
static void random_use(cudaStream_t *s, int streams)
{
	struct block {
		unsigned int *p;
		int n;
		unsigned int v;
		cudaStream_t s;
	};
	std::vector<block> all;
	std::vector<unsigned int> host(40000);
	unsigned int seed = 6;

	for (int i = 0; i < 400; i++) {
		if (rnd(&seed) % 5 < 3 || all.empty()) {
			block b = { NULL, (int)(1 + rnd(&seed) % 40000), rnd(&seed),
				    s[rnd(&seed) % streams] };

			CHECK(cudaMallocAsync(&b.p, b.n * 4, b.s));
			fill<<<(b.n + 255) / 256, 256, 0, b.s>>>(b.p, b.v, b.n);
			all.push_back(b);
		} else {
			size_t k = rnd(&seed) % all.size();
			block b = all[k];

			CHECK(cudaMemcpyAsync(host.data(), b.p, b.n * 4, cudaMemcpyDeviceToHost, b.s));
			CHECK(cudaFreeAsync(b.p, b.s));
			CHECK(cudaStreamSynchronize(b.s));
			for (int j = 0; j < b.n; j++)
				EXPECT_EQ(host[j], b.v + j);
			sum_bytes(host.data(), 4);
			all.erase(all.begin() + k);
		}
	}
	for (block &b : all)
		CHECK(cudaFreeAsync(b.p, b.s));
	CHECK(cudaDeviceSynchronize());
}

/* Nothing waits for the host: temporaries come and go in the order of the stream. */
static void temporaries(cudaStream_t s)
{
	const int n = 10000, rounds = 200;
	unsigned int *out, *a, *b, want = 0;

	CHECK(cudaMallocAsync(&out, n * 4, s));
	CHECK(cudaMemsetAsync(out, 0, n * 4, s));
	for (int i = 0; i < rounds; i++) {
		CHECK(cudaMallocAsync(&a, n * 4, s));
		CHECK(cudaMallocAsync(&b, n * 4, s));
		fill<<<(n + 255) / 256, 256, 0, s>>>(a, i, n);
		add<<<(n + 255) / 256, 256, 0, s>>>(b, a, out, n);
		CHECK(cudaMemcpyAsync(out, b, n * 4, cudaMemcpyDeviceToDevice, s));
		CHECK(cudaFreeAsync(a, s));
		CHECK(cudaFreeAsync(b, s));
		want += i;
	}
	std::vector<unsigned int> h(n);
	CHECK(cudaMemcpyAsync(h.data(), out, n * 4, cudaMemcpyDeviceToHost, s));
	CHECK(cudaFreeAsync(out, s));
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < n; i++)
		EXPECT_EQ(h[i], want + (unsigned int)i * rounds);
	sum_vector(h);
}

/* Freed in one stream, used in another: only behind an event. cudaFree of such memory waits. */
static void across_streams(cudaStream_t s, cudaStream_t t)
{
	unsigned int *p;
	cudaEvent_t e;

	CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	for (int i = 0; i < 50; i++) {
		CHECK(cudaMallocAsync(&p, 4096 * 4, s));
		fill<<<16, 256, 0, s>>>(p, i, 4096);
		CHECK(cudaEventRecord(e, s));
		CHECK(cudaStreamWaitEvent(t, e, 0));
		std::vector<unsigned int> h(4096);
		CHECK(cudaMemcpyAsync(h.data(), p, 4096 * 4, cudaMemcpyDeviceToHost, t));
		if (i & 1)
			CHECK(cudaFreeAsync(p, t));
		CHECK(cudaStreamSynchronize(t));
		EXPECT(h[0] == (unsigned int)i && h[4095] == i + 4095u);
		if (!(i & 1))
			CHECK(cudaFree(p));
	}
	/* and the other way: memory of cudaMalloc, freed in stream order */
	CHECK(cudaMalloc(&p, 1000));
	CHECK(cudaFreeAsync(p, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaEventDestroy(e));
}

static unsigned long long attribute(cudaMemPool_t pool, cudaMemPoolAttr a)
{
	unsigned long long v = ~0ull;

	CHECK(cudaMemPoolGetAttribute(pool, a, &v));
	return v;
}

/* A pool of our own: its counters, what it keeps, and trimming. */
static void own_pool(cudaStream_t s)
{
	const size_t size = 8 << 20;
	cudaMemPoolProps props = {};
	cudaMemPool_t pool, def, now;
	unsigned long long keep = ~0ull, zero = 0;
	void *p, *q;

	props.allocType = cudaMemAllocationTypePinned;
	props.handleTypes = cudaMemHandleTypeNone;
	props.location.type = cudaMemLocationTypeDevice;
	props.location.id = 0;
	CHECK(cudaMemPoolCreate(&pool, &props));
	EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), 0);
	CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
	CHECK(cudaMallocFromPoolAsync(&p, size, pool, s));
	CHECK(cudaMemsetAsync(p, 1, size, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(attribute(pool, cudaMemPoolAttrUsedMemCurrent) >= size);
	EXPECT(attribute(pool, cudaMemPoolAttrReservedMemCurrent) >= size);
	CHECK(cudaFreeAsync(p, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0);
	EXPECT(attribute(pool, cudaMemPoolAttrReservedMemCurrent) >= size);	/* kept */
	EXPECT(attribute(pool, cudaMemPoolAttrUsedMemHigh) >= size);
	CHECK(cudaMallocFromPoolAsync(&q, size, pool, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(attribute(pool, cudaMemPoolAttrReservedMemCurrent) < 2 * size);	/* and reused */
	CHECK(cudaFreeAsync(q, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemPoolTrimTo(pool, 0));
	EXPECT_EQ(attribute(pool, cudaMemPoolAttrReservedMemCurrent), 0);
	CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
	EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemHigh), 0);

	/* as the device's current pool it serves cudaMallocAsync */
	CHECK(cudaDeviceGetDefaultMemPool(&def, 0));
	CHECK(cudaDeviceGetMemPool(&now, 0));
	EXPECT(now == def && def != pool);
	CHECK(cudaDeviceSetMemPool(0, pool));
	CHECK(cudaMallocAsync(&p, 1000, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(attribute(pool, cudaMemPoolAttrUsedMemCurrent) >= 1000);
	CHECK(cudaFreeAsync(p, s));
	CHECK(cudaDeviceSetMemPool(0, def));
	cudaMemAccessFlags flags;
	cudaMemLocation here = {};
	here.type = cudaMemLocationTypeDevice;
	CHECK(cudaMemPoolGetAccess(&flags, pool, &here));
	EXPECT_EQ(flags, cudaMemAccessFlagsProtReadWrite);
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaMemPoolDestroy(pool));
}

/* Too much is refused at once, and nothing is the worse for it. */
static void too_much(cudaStream_t s)
{
	size_t free, total;
	void *p;

	CHECK(cudaMemGetInfo(&free, &total));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMallocAsync(&p, total * 2, s));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
	CHECK(cudaMallocAsync(&p, 100, s));
	CHECK(cudaMemsetAsync(p, 0, 100, s));
	CHECK(cudaFreeAsync(p, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaGetLastError());
}

/* Allocations inside a graph: made when it runs, and at the same address each time. */
static void in_graphs(cudaStream_t s)
{
	const int n = 1000;
	unsigned int *a, *b, h[n];
	cudaGraphExec_t e;
	cudaGraph_t g;

	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaMallocAsync(&a, n * 4, s));
	CHECK(cudaMallocAsync(&b, n * 4, s));
	fill<<<4, 256, 0, s>>>(a, 5, n);
	add<<<4, 256, 0, s>>>(b, a, a, n);
	CHECK(cudaMemcpyAsync(h, b, n * 4, cudaMemcpyDeviceToHost, s));
	CHECK(cudaFreeAsync(b, s));
	CHECK(cudaFreeAsync(a, s));
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&e, g, 0));
	for (int i = 0; i < 20; i++) {
		memset(h, 0, sizeof(h));
		CHECK(cudaGraphLaunch(e, s));
		CHECK(cudaStreamSynchronize(s));
		EXPECT(h[0] == 10 && h[n - 1] == 2 * (5 + n - 1));
	}
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaDeviceGraphMemTrim(0));
}

int main()
{
	cudaStream_t s[3];
	int supported;

	CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
	EXPECT(supported);
	for (cudaStream_t &x : s)
		CHECK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
	CHECK(cudaFreeAsync(NULL, s[0]));	/* nothing, like cudaFree */
	random_use(s, 3);
	temporaries(s[0]);
	across_streams(s[0], s[1]);
	own_pool(s[0]);
	too_much(s[0]);
	in_graphs(s[1]);
	return job_passed("pools");
}
