// SPDX-License-Identifier: Apache-2.0
/*
 * driver_contexts.cu - devices and contexts by the driver API: properties, identities, flags,
 * reference counts, cache settings; events of whole contexts, which order work of all their
 * streams.
 */
#include "driver.cuh"

static CUdevice dev;
static CUcontext primary;

static int attribute(CUdevice_attribute a)
{
	int v;

	CU(cuDeviceGetAttribute(&v, a, dev));
	return v;
}

static void errors(void)
{
	const char *s;

	CU(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &s));
	EXPECT(!strcmp(s, "invalid argument"));
	CU(cuGetErrorString(CUDA_SUCCESS, &s));
	EXPECT(!strcmp(s, "no error"));
	CU_INVALID(cuGetErrorString((CUresult)4711, &s));
	EXPECT(!s);
	CU_INVALID(cuGetErrorString(CUDA_SUCCESS, NULL));
}

static void devices(void)
{
	CUatomicOperation ops[2] = { CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS };
	unsigned int caps[2];
	int major, minor, v;
	CUdevprop p;
	size_t n;

	CU(cuDeviceComputeCapability(&major, &minor, dev));
	EXPECT_EQ(major, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
	EXPECT_EQ(minor, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE, cuDeviceComputeCapability(&major, &minor, 4711));
	CU_INVALID(cuDeviceComputeCapability(NULL, &minor, dev));
	POISON(p);
	CU(cuDeviceGetProperties(&p, dev));
	EXPECT_EQ(p.maxThreadsPerBlock, attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
	EXPECT_EQ(p.maxThreadsDim[2], attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z));
	EXPECT_EQ(p.maxGridSize[0], attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X));
	EXPECT_EQ(p.SIMDWidth, attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
	EXPECT_EQ(p.memPitch, attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH));
	EXPECT_EQ(p.clockRate, attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE));
	EXPECT_EQ(p.textureAlign, attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
	CU_INVALID(cuDeviceGetProperties(NULL, dev));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetProperties(&p, -1));

	CU(cuDeviceGetTexture1DLinearMaxWidth(&n, CU_AD_FORMAT_FLOAT, 1, dev));
	EXPECT(n >= 1 << 16);
	CU_INVALID(cuDeviceGetTexture1DLinearMaxWidth(NULL, CU_AD_FORMAT_FLOAT, 1, dev));
	CU_INVALID(cuDeviceGetTexture1DLinearMaxWidth(&n, CU_AD_FORMAT_FLOAT, 3, dev));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE,
		 cuDeviceGetTexture1DLinearMaxWidth(&n, CU_AD_FORMAT_FLOAT, 4, 4711));
	CU(cuDeviceGetExecAffinitySupport(&v, CU_EXEC_AFFINITY_TYPE_SM_COUNT, dev));
	EXPECT(v == 0 || v == 1);
	CU_INVALID(cuDeviceGetExecAffinitySupport(&v, CU_EXEC_AFFINITY_TYPE_MAX, dev));
	CU_INVALID(cuDeviceGetExecAffinitySupport(NULL, CU_EXEC_AFFINITY_TYPE_SM_COUNT, dev));

	/* What the link does natively is the device's; what there is no room for is not written. */
	POISON(caps);
	CU(cuDeviceGetHostAtomicCapabilities(caps, ops, 1, dev));
	EXPECT(caps[0] < 2 * CU_ATOMIC_CAPABILITY_VECTOR_32x4 && caps[1] == 0x5a5a5a5a);
	CU(cuDeviceGetHostAtomicCapabilities(caps, ops, 2, dev));
	EXPECT(caps[1] < 2 * CU_ATOMIC_CAPABILITY_VECTOR_32x4);
	CU_INVALID(cuDeviceGetHostAtomicCapabilities(caps, ops, 0, dev));
	CU_INVALID(cuDeviceGetHostAtomicCapabilities(caps, NULL, 2, dev));
	ops[1] = (CUatomicOperation)4711;
	CU_INVALID(cuDeviceGetHostAtomicCapabilities(caps, ops, 2, dev));
	ops[1] = ops[0];
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetHostAtomicCapabilities(caps, ops, 2, 4711));

	/* A device is no peer of itself. */
	CU(cuDeviceCanAccessPeer(&v, dev, dev));
	EXPECT_EQ(v, 0);
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&v, dev, 4711));
	CU_INVALID(cuDeviceCanAccessPeer(NULL, dev, dev));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE,
		 cuDeviceGetP2PAttribute(&v, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, dev, dev));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAtomicCapabilities(caps, ops, 2, dev, dev));
	CU_INVALID(cuDeviceGetP2PAtomicCapabilities(caps, ops, 0, dev, dev));
	sum_bytes(&n, sizeof(n));
	sum_bytes(&p, sizeof(p));
}

/* What a second device says of itself and the first: a number each, and the same about access. */
static void two_devices(void)
{
	CUatomicOperation ops[2] = { CU_ATOMIC_OPERATION_FLOAT_ADD, CU_ATOMIC_OPERATION_CAS };
	unsigned int caps[2];
	int n, can, v;

	CU(cuDeviceGetCount(&n));
	if (n < 2)
		return;
	CU(cuDeviceCanAccessPeer(&can, 0, 1));
	EXPECT(can == 0 || can == 1);
	for (int a = CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
	     a <= CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED; a++) {
		POISON(v);
		CU(cuDeviceGetP2PAttribute(&v, (CUdevice_P2PAttribute)a, 0, 1));
		EXPECT(v >= 0 && v < 100);
		if (a == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)
			EXPECT_EQ(v, can);
	}
	CU_INVALID(cuDeviceGetP2PAttribute(&v, (CUdevice_P2PAttribute)0, 0, 1));
	CU_INVALID(cuDeviceGetP2PAttribute(NULL, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
	POISON(caps);
	CU(cuDeviceGetP2PAtomicCapabilities(caps, ops, 1, 0, 1));
	EXPECT(caps[0] < 2 * CU_ATOMIC_CAPABILITY_VECTOR_32x4 && caps[1] == 0x5a5a5a5a);
	ops[0] = (CUatomicOperation)4711;
	CU_INVALID(cuDeviceGetP2PAtomicCapabilities(caps, ops, 1, 0, 1));
}

static void contexts(void)
{
	unsigned long long id, ids[3];
	CUctxCreateParams none = {};
	CUcontext a, b, c;
	unsigned int flags;
	CUdevice d;

	CU(cuCtxCreate(&a, NULL, CU_CTX_SCHED_SPIN, dev));
	CU(cuCtxGetFlags(&flags));
	EXPECT_EQ(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_SPIN);
	CU(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
	CU(cuCtxGetFlags(&flags));
	EXPECT_EQ(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_BLOCKING_SYNC);
	CU_INVALID(cuCtxSetFlags(CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD));
	CU_INVALID(cuCtxSetFlags(1 << 20));
	CU(cuCtxGetFlags(&flags));
	EXPECT_EQ(flags & CU_CTX_SCHED_MASK, CU_CTX_SCHED_BLOCKING_SYNC);
	CU(cuCtxCreate(&b, &none, 0, dev));
	CU_INVALID(cuCtxCreate(&c, NULL, 1 << 20, dev));
	CU_INVALID(cuCtxCreate(NULL, NULL, 0, dev));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate(&c, NULL, 0, 4711));

	/* identities */
	CU(cuCtxGetId(a, &ids[0]));
	CU(cuCtxGetId(b, &ids[1]));
	CU(cuCtxGetId(primary, &ids[2]));
	EXPECT(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
	CU(cuCtxGetId(NULL, &id));
	EXPECT_EQ(id, ids[1]);
	CU_INVALID(cuCtxGetId(a, NULL));
	CU(cuCtxGetDevice_v2(&d, a));
	EXPECT_EQ(d, dev);
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(b, 0));	/* itself */
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(NULL, 0));
	CU_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(a));

	/* counts of use: the last one ends it, and must be the current one's */
	CU(cuCtxAttach(&c, 0));
	EXPECT(c == b);
	CU_INVALID(cuCtxAttach(&c, 1));
	CU_INVALID(cuCtxAttach(NULL, 0));
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(a));
	CU(cuCtxDetach(b));
	CU(cuCtxGetCurrent(&c));
	EXPECT(c == b);
	CU(cuCtxSynchronize());
	CU(cuCtxDetach(b));
	CU(cuCtxGetCurrent(&c));
	EXPECT(c == a);
	CU(cuCtxGetId(NULL, &id));
	EXPECT_EQ(id, ids[0]);
	CU(cuCtxDestroy(a));
	CU(cuCtxGetCurrent(&c));
	EXPECT(c == primary);
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(NULL));
}

static void settings(void)
{
	CUsharedconfig shared;
	CUfunc_cache cache;

	CU(cuCtxGetCacheConfig(&cache));
	EXPECT_EQ(cache, CU_FUNC_CACHE_PREFER_NONE);
	CU(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
	CU(cuCtxGetCacheConfig(&cache));
	EXPECT(cache == CU_FUNC_CACHE_PREFER_L1 || cache == CU_FUNC_CACHE_PREFER_NONE);
	CU_INVALID(cuCtxSetCacheConfig((CUfunc_cache)17));
	CU_INVALID(cuCtxGetCacheConfig(NULL));
	CU(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_NONE));
	CU(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
	CU(cuCtxGetSharedMemConfig(&shared));
	EXPECT(shared == CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE ||
	       shared == CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
	CU_INVALID(cuCtxSetSharedMemConfig((CUsharedconfig)17));
	CU_INVALID(cuCtxGetSharedMemConfig(NULL));
	CU(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
	CU(cuCtxSynchronize());
}

/* What a context's event has seen is all that its streams had to do; what waits for it are all of them. */
static void order(CUcontext ctx, gate &g, CUstream s, CUstream t)
{
	CUdeviceptr d = room(64);
	CUevent e;

	CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	CU(cuEventQuery(e));
	g.close(s);
	CU(cuMemsetD32Async(d, 41, 1, s));
	CU(cuCtxRecordEvent(ctx, e));
	CU_ERROR(CUDA_ERROR_NOT_READY, cuEventQuery(e));
	CU(cuCtxWaitEvent(ctx, e));
	CU(cuMemcpyDtoDAsync(d + 4, d, 4, t));
	usleep(20000);
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(t));
	g.open();
	CU(cuEventSynchronize(e));
	CU(cuStreamSynchronize(t));
	CU(cuEventQuery(e));
	EXPECT_EQ(fetch<int>(d, 2)[1], 41);

	/* later work is not in it, and it can be recorded anew */
	CU(cuCtxRecordEvent(ctx, e));
	g.close(s);
	CU(cuEventSynchronize(e));
	g.open();
	CU(cuStreamSynchronize(s));
	CU(cuEventDestroy(e));
	CU(cuMemFree(d));
}

/* A recording stream forbids both, and does not survive the attempt. */
static void capturing(CUcontext ctx, CUstream s, CUevent e)
{
	CUgraph graph = NULL;

	for (int wait = 0; wait < 2; wait++) {
		CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
		CU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
			 wait ? cuCtxWaitEvent(ctx, e) : cuCtxRecordEvent(ctx, e));
		CU_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &graph));
		EXPECT(!graph);
	}
	/* an event of a capture is one of the context again */
	CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	CU(cuEventRecord(e, s));
	CU(cuStreamEndCapture(s, &graph));
	CU_ERROR(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e));
	CU(cuCtxRecordEvent(ctx, e));
	CU(cuEventSynchronize(e));
	CU(cuGraphDestroy(graph));
}

static void events(void)
{
	CUcontext a, b;
	CUstream s, t, u;
	CUevent e, f;
	gate g;

	CU(cuCtxCreate(&a, NULL, 0, dev));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	order(a, g, s, t);
	CU(cuEventCreate(&e, 0));
	capturing(a, s, e);

	/* another context waits for this one's event, but cannot record it */
	CUdeviceptr d = room(64);
	CU(cuCtxCreate(&b, NULL, 0, dev));
	CU(cuStreamCreate(&u, CU_STREAM_NON_BLOCKING));
	CU(cuEventCreate(&f, 0));
	g.close(s);
	CU(cuCtxRecordEvent(a, e));
	CU(cuCtxWaitEvent(b, e));
	CU(cuMemsetD32Async(d, 7, 1, u));
	usleep(20000);
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(u));
	g.open();
	CU(cuCtxSynchronize_v2(b));
	EXPECT_EQ(fetch<int>(d, 1)[0], 7);
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(e, u));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(e, NULL));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuEventRecordWithFlags(f, s, 0));
	CU(cuEventRecord(f, NULL));
	CU(cuEventRecord(e, s));
	CU(cuStreamWaitEvent(u, e, 0));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(b, e));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(a, f));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(a, NULL));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuCtxWaitEvent(a, NULL));
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuCtxRecordEvent((CUcontext)0x1234, e));
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuCtxWaitEvent((CUcontext)0x1234, e));
	CU(cuCtxSynchronize_v2(a));
	CU(cuCtxDestroy(b));
	CU(cuCtxDestroy(a));
}

int main()
{
	CUstream s, t;
	CUcontext now;
	gate *g;

	CHECK(cudaSetDevice(0));
	CHECK(cudaFree(0));
	CU(cuDeviceGet(&dev, 0));
	CU(cuCtxGetCurrent(&primary));
	errors();
	devices();
	two_devices();
	contexts();
	settings();
	events();
	g = new gate;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	order(primary, *g, s, t);
	delete g;
	CU(cuCtxGetCurrent(&now));
	EXPECT(now == primary);
	CHECK(cudaDeviceSynchronize());
	return job_passed("driver_contexts");
}
