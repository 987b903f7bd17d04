// SPDX-License-Identifier: Apache-2.0
/*
 * rare.cu - rare calls that a device may not support: each works or returns the right error, and
 * everything else still works afterwards.
 */
#include "../job.cuh"

#include <cuda_profiler_api.h>
#include <sys/stat.h>
#include <unistd.h>

__global__ void fill(int *p, int v)
{
	p[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

static int *d;
static int value = 1;

/* A refusal has a name that fits; and the device is as well as before. */
static bool done(const char *what, cudaError_t e)
{
	int got[64];

	if (e != cudaSuccess && e != cudaErrorNotSupported && e != cudaErrorInvalidValue &&
	    e != cudaErrorInvalidClusterSize && e != cudaErrorInvalidConfiguration &&
	    e != cudaErrorCallRequiresNewerDriver && e != cudaErrorNotPermitted &&
	    e != cudaErrorInvalidResourceHandle && e != cudaErrorOperatingSystem) {
		printf("FAIL rare: %s: %s\n", what, cudaGetErrorName(e));
		exit(1);
	}
	cudaGetLastError();
	value++;
	fill<<<2, 32>>>(d, value);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(got, d, sizeof(got), cudaMemcpyDeviceToHost));
	for (int v : got)
		EXPECT_EQ(v, value);
	if (e != cudaSuccess)
		printf("refused: %s: %s\n", what, cudaGetErrorName(e));
	return e == cudaSuccess;
}

static void clusters(void)
{
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute a[2] = {};
	int *out;

	CHECK(cudaMalloc(&out, 8 * 32 * 4));
	CHECK(cudaMemset(out, 0, 8 * 32 * 4));
	c.gridDim = dim3(8);
	c.blockDim = dim3(32);
	a[0].id = cudaLaunchAttributeClusterDimension;
	a[0].val.clusterDim = { 2, 1, 1 };
	c.attrs = a;
	c.numAttrs = 1;
	if (done("a launch in clusters", cudaLaunchKernelEx(&c, fill, out, 9)))
		for (int v : to_host(out, 256))
			EXPECT_EQ(v, 9);
	a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	a[0].val.programmaticStreamSerializationAllowed = 1;
	if (done("a launch that may begin early", cudaLaunchKernelEx(&c, fill, out, 10)))
		for (int v : to_host(out, 256))
			EXPECT_EQ(v, 10);
	CHECK(cudaFree(out));
}

static void mipmaps(void)
{
	cudaChannelFormatDesc f = cudaCreateChannelDesc<float>();
	cudaMipmappedArray_t m;
	cudaArray_t level;
	cudaExtent size;
	unsigned int flags;

	if (!done("mipmapped arrays", cudaMallocMipmappedArray(&m, &f, make_cudaExtent(64, 32, 0), 4)))
		return;
	CHECK(cudaGetMipmappedArrayLevel(&level, m, 2));
	CHECK(cudaArrayGetInfo(&f, &size, &flags, level));
	EXPECT(size.width == 16 && size.height == 8);
	CHECK(cudaFreeMipmappedArray(m));
}

static void graph_extras(void)
{
	cudaGraphNode_t a, b;
	cudaGraphExec_t e;
	cudaGraph_t g;
	cudaStream_t s;
	cudaGraphNodeParams p = {};
	char name[] = "/tmp/graph-XXXXXX";
	struct stat st;
	int v = 77, *out;
	void *args[] = { &out, &v };
	unsigned int enabled;

	CHECK(cudaMalloc(&out, 256));
	CHECK(cudaMemset(out, 0, 256));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaGraphCreate(&g, 0));
	p.type = cudaGraphNodeTypeKernel;
	p.kernel.func = (void *)fill;
	p.kernel.gridDim = dim3(1);
	p.kernel.blockDim = dim3(32);
	p.kernel.kernelParams = args;
	CHECK(cudaGraphAddNode(&a, g, NULL, NULL, 0, &p));
	v = 78;
	int *second = out + 32;
	args[0] = &second;
	CHECK(cudaGraphAddNode(&b, g, &a, NULL, 1, &p));
	CHECK(cudaGraphInstantiate(&e, g, 0));
	if (done("nodes that are switched off", cudaGraphNodeSetEnabled(e, b, 0))) {
		CHECK(cudaGraphNodeGetEnabled(e, b, &enabled));
		EXPECT_EQ(enabled, 0);
	}
	CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	std::vector<int> h = to_host(out, 64);
	EXPECT(h[0] == 77 && h[31] == 77 && (h[32] == 0 || h[32] == 78));
	close(mkstemp(name));
	if (done("a graph as text", cudaGraphDebugDotPrint(g, name, 0)))
		EXPECT(!stat(name, &st) && st.st_size > 20);
	unlink(name);
	CHECK(cudaGraphExecDestroy(e));
	done("a graph for launches by the device",
	     cudaGraphInstantiate(&e, g, cudaGraphInstantiateFlagDeviceLaunch));
	CHECK(cudaStreamBeginCaptureToGraph(s, g, &b, NULL, 1, cudaStreamCaptureModeGlobal));
	fill<<<1, 32, 0, s>>>(out, 79);
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&e, g, 0));
	CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	h = to_host(out, 64);
	EXPECT(h[0] == 79 && h[32] == 78);
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(out));
}

static void batches(void)
{
	std::vector<int> a(100, 5), b(50, 6), ga(100), gb(50);
	int *da, *db;
	cudaStream_t s;

	CHECK(cudaMalloc(&da, 400));
	CHECK(cudaMalloc(&db, 200));
	CHECK(cudaStreamCreate(&s));
	void *dst[] = { da, db };
	const void *src[] = { a.data(), b.data() };
	size_t sizes[] = { 400, 200 }, at[] = { 0 };
	cudaMemcpyAttributes attr[1] = {};
	attr[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
	if (done("a batch of copies",
		 cudaMemcpyBatchAsync(dst, src, sizes, 2, attr, at, 1, s))) {
		CHECK(cudaStreamSynchronize(s));
		EXPECT(to_host(da, 100) == a && to_host(db, 50) == b);
	}
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(da));
	CHECK(cudaFree(db));
}

static void ranges(void)
{
	int *m, advice = -1;
	cudaStream_t s;

	CHECK(cudaMallocManaged(&m, 1 << 16));
	CHECK(cudaStreamCreate(&s));
	done("attributes of a range", cudaMemRangeGetAttribute(&advice, 4, cudaMemRangeAttributeReadMostly, m,
								1 << 16));
	done("memory attached to a stream", cudaStreamAttachMemAsync(s, m, 0, cudaMemAttachSingle));
	CHECK(cudaStreamSynchronize(s));
	m[5] = 3;
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(m));
}

static void names(void)
{
	const char *name;
	size_t offset, size;
	cudaFunction_t f;
	cudaKernel_t k;

	CHECK(cudaFuncGetName(&name, (const void *)fill));
	EXPECT(!strcmp(name, "_Z4fillPii"));
	if (done("a function's handle", cudaGetFuncBySymbol(&f, (const void *)fill)))
		EXPECT(f);
	if (done("a kernel's handle", cudaGetKernel(&k, (const void *)fill)))
		EXPECT(k);
	if (done("a parameter's place", cudaFuncGetParamInfo((const void *)fill, 1, &offset, &size)))
		EXPECT(offset == 8 && size == 4);
}

static void limits(void)
{
	size_t v;

	for (cudaLimit l : { cudaLimitDevRuntimeSyncDepth, cudaLimitDevRuntimePendingLaunchCount,
			     cudaLimitMaxL2FetchGranularity, cudaLimitPersistingL2CacheSize }) {
		cudaError_t e = cudaDeviceGetLimit(&v, l);

		EXPECT(e == cudaSuccess || e == cudaErrorUnsupportedLimit);
		cudaGetLastError();
	}
	done("resetting the cache that persists", cudaCtxResetPersistingL2Cache());
	done("starting the profiler", cudaProfilerStart());
	done("stopping the profiler", cudaProfilerStop());
	done("flushing writes of others", cudaDeviceFlushGPUDirectRDMAWrites(
						cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
						cudaFlushGPUDirectRDMAWritesToOwner));
	cudaExternalMemoryHandleDesc x = {};
	cudaExternalMemory_t em;
	x.type = cudaExternalMemoryHandleTypeOpaqueFd;
	x.handle.fd = -1;
	x.size = 4096;
	EXPECT(!done("memory of another API", cudaImportExternalMemory(&em, &x)));
}

int main()
{
	CHECK(cudaMalloc(&d, 256));
	clusters();
	mipmaps();
	graph_extras();
	batches();
	ranges();
	names();
	limits();
	sum_bytes(&value, sizeof(value));
	return job_passed("rare");
}
