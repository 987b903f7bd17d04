// SPDX-License-Identifier: Apache-2.0
/*
 * driver_objects.cu - streams, events, texture, surface and user objects by the driver API:
 * queries return the parameters that were given, and changes take effect.
 */
#include "driver.cuh"

#include <atomic>

static CUcontext ctx;

__global__ void look(cudaTextureObject_t t, float *out)
{
	out[threadIdx.x] = tex1D<float>(t, threadIdx.x + 0.5f);
}

__global__ void look_words(cudaTextureObject_t t, unsigned int *out)
{
	out[threadIdx.x] = tex1D<unsigned int>(t, threadIdx.x + 0.5f);
}

__global__ void look_layers(cudaTextureObject_t t, float *out)
{
	out[blockIdx.x * 16 + threadIdx.x] = tex1DLayered<float>(t, threadIdx.x + 0.5f, blockIdx.x);
}

/* NULL and the special handles are streams of the current context. */
static void streams(void)
{
	const CUstream special[] = { NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD };
	CUgreenCtx green;
	CUcontext other, c;
	CUdevice d, dev;
	CUstream s;

	CU(cuCtxGetDevice_v2(&dev, ctx));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuCtxCreate(&other, NULL, 0, dev));
	POISON(green);
	CU(cuStreamGetCtx_v2(s, &c, &green));
	EXPECT(c == ctx && !green);
	POISON(green);
	CU(cuStreamGetGreenCtx(s, &green));
	EXPECT(!green);
	CU(cuStreamGetDevice(s, &d));
	EXPECT_EQ(d, dev);
	for (CUstream t : special) {
		POISON(green);
		POISON(d);
		CU(cuStreamGetCtx_v2(t, &c, &green));
		EXPECT(c == other && !green);
		POISON(green);
		CU(cuStreamGetGreenCtx(t, &green));
		EXPECT(!green);
		CU(cuStreamGetDevice(t, &d));
		EXPECT_EQ(d, dev);
	}
	CU_INVALID(cuStreamGetCtx_v2(s, NULL, &green));
	CU_INVALID(cuStreamGetGreenCtx(s, NULL));
	CU_INVALID(cuStreamGetDevice(s, NULL));
	CU(cuCtxDestroy(other));
	CU(cuStreamDestroy(s));
}

/* The whole device; no part of it can be taken. */
static void resources(void)
{
	CUdevResource of_device, of_context;
	CUdevice dev;
	int count;

	CU(cuCtxGetDevice_v2(&dev, ctx));
	CU(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev));
	POISON(of_device);
	POISON(of_context);
	CU(cuDeviceGetDevResource(dev, &of_device, CU_DEV_RESOURCE_TYPE_SM));
	CU(cuCtxGetDevResource(ctx, &of_context, CU_DEV_RESOURCE_TYPE_SM));
	for (const CUdevResource &r : { of_device, of_context }) {
		EXPECT_EQ(r.type, CU_DEV_RESOURCE_TYPE_SM);
		EXPECT_EQ((int)r.sm.smCount, count);
		EXPECT(r.sm.minSmPartitionSize >= 2);
		EXPECT(r.sm.smCoscheduledAlignment >= 2);
	}
	CU_INVALID(cuDeviceGetDevResource(dev, NULL, CU_DEV_RESOURCE_TYPE_SM));
	CU_ERROR(CUDA_ERROR_INVALID_RESOURCE_TYPE,
		 cuDeviceGetDevResource(dev, &of_device, CU_DEV_RESOURCE_TYPE_INVALID));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE,
		 cuDeviceGetDevResource(99, &of_device, CU_DEV_RESOURCE_TYPE_SM));
}

static void attributes(void)
{
	CUstreamAttrValue v, w;
	CUstream s, t;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	CU(cuStreamGetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	EXPECT_EQ(v.syncPolicy, CU_SYNC_POLICY_AUTO);
	CU(cuStreamGetAttribute(s, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &v));
	EXPECT(v.memSyncDomainMap.default_ == 0 && v.memSyncDomainMap.remote == 1);
	memset(&v, 0, sizeof(v));
	v.syncPolicy = CU_SYNC_POLICY_YIELD;
	CU(cuStreamSetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	memset(&w, 0, sizeof(w));
	w.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
	CU(cuStreamSetAttribute(t, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &w));
	/* a copy is of all of them, also of those that the other has never been told */
	CU(cuStreamCopyAttributes(t, s));
	CU(cuStreamGetAttribute(t, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	EXPECT_EQ(v.syncPolicy, CU_SYNC_POLICY_YIELD);
	CU(cuStreamGetAttribute(t, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &v));
	EXPECT_EQ(v.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT);
	CU(cuStreamGetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	EXPECT_EQ(v.syncPolicy, CU_SYNC_POLICY_YIELD);

	v.syncPolicy = (CUsynchronizationPolicy)17;
	CU_INVALID(cuStreamSetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	CU(cuStreamGetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	EXPECT_EQ(v.syncPolicy, CU_SYNC_POLICY_YIELD);
	CU_INVALID(cuStreamGetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, NULL));
	CU_INVALID(cuStreamSetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, NULL));
	CU_INVALID(cuStreamGetAttribute(s, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &v));
	CU_INVALID(cuStreamSetAttribute(s, (CUstreamAttrID)4711, &v));
	CU(cuStreamDestroy(s));
	CU(cuStreamDestroy(t));
}

/* An external event is a node, which each launch of the graph records. */
static void events(void)
{
	CUgraphNodeType type;
	CUgraphNode node;
	CUgraphExec x;
	CUgraph graph;
	CUevent e;
	CUstream s;
	size_t n = 1;
	gate g;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuEventCreate(&e, 0));
	g.close(s);
	CU(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_DEFAULT));
	CU_ERROR(CUDA_ERROR_NOT_READY, cuEventQuery(e));
	g.open();
	CU(cuEventSynchronize(e));
	CU_INVALID(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
	CU_INVALID(cuEventRecordWithFlags(e, s, 17));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuEventRecordWithFlags(NULL, s, 0));

	CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	CU(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
	CU(cuStreamEndCapture(s, &graph));
	CU(cuGraphGetNodes(graph, &node, &n));
	EXPECT_EQ(n, 1);
	CU(cuGraphNodeGetType(node, &type));
	EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
	CU(cuGraphInstantiateWithFlags(&x, graph, 0));
	CU(cuEventQuery(e));
	g.close(s);
	CU(cuGraphLaunch(x, s));
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	g.open();
	CU(cuStreamSynchronize(s));
	CU(cuEventQuery(e));
	CU(cuGraphExecDestroy(x));
	CU(cuGraphDestroy(graph));
	CU(cuEventDestroy(e));
	CU(cuStreamDestroy(s));
}

/* Values of eight bytes: both halves count. */
static void words(void)
{
	const cuuint64_t big = 0x100000005ull;
	CUdeviceptr d = room(64);
	CUstream s, t;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	CU(cuCtxSynchronize());
	CU(cuStreamWaitValue64(s, d, big, CU_STREAM_WAIT_VALUE_EQ));
	CU(cuStreamWriteValue64(s, d + 8, ~big, CU_STREAM_WRITE_VALUE_DEFAULT));
	CU(cuStreamWriteValue32(t, d, 5, CU_STREAM_WRITE_VALUE_DEFAULT));
	CU(cuStreamSynchronize(t));
	usleep(20000);
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	EXPECT_EQ(fetch<cuuint64_t>(d, 2)[1], 0);
	CU(cuStreamWriteValue64(t, d, big, CU_STREAM_WRITE_VALUE_DEFAULT));
	CU(cuStreamSynchronize(s));
	EXPECT_EQ(fetch<cuuint64_t>(d, 2)[1], ~big);
	/* at least, by the difference; some bit of it */
	CU(cuStreamWaitValue64(s, d, big - 1, CU_STREAM_WAIT_VALUE_GEQ));
	CU(cuStreamWaitValue64(s, d, 1ull << 32, CU_STREAM_WAIT_VALUE_AND));
	CU(cuStreamSynchronize(s));
	CU(cuStreamWaitValue64(s, d, 1ull << 40, CU_STREAM_WAIT_VALUE_AND));
	usleep(20000);
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	CU(cuStreamWriteValue64(t, d, 3ull << 40, CU_STREAM_WRITE_VALUE_DEFAULT));
	CU(cuStreamSynchronize(s));
	CU_INVALID(cuStreamWaitValue64(s, d + 4, 1, CU_STREAM_WAIT_VALUE_EQ));
	CU_INVALID(cuStreamWriteValue64(s, d + 4, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
	CU_INVALID(cuStreamWriteValue64(s, 0, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
	CU_INVALID(cuStreamWriteValue64(s, d, 1, 1 << 20));
	CU_INVALID(cuStreamWaitValue64(s, d, 1, 1 << 20));
	CU(cuStreamSynchronize(s));
	CU(cuStreamDestroy(s));
	CU(cuStreamDestroy(t));
	CU(cuMemFree(d));
}

/* The same bytes as texels of another kind; some layers of an array, counted from the first of them. */
static void views(CUarray a, const std::vector<float> &h, CUdeviceptr out)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = { 16, 0, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED };
	CUDA_RESOURCE_VIEW_DESC view = {}, got;
	CUDA_RESOURCE_DESC res = {};
	CUDA_TEXTURE_DESC tex = {};
	CUDA_MEMCPY3D c = {};
	std::vector<float> all(48);
	CUtexObject t;
	CUarray l;

	res.resType = CU_RESOURCE_TYPE_ARRAY;
	res.res.array.hArray = a;
	tex.flags = CU_TRSF_READ_AS_INTEGER;
	view.format = CU_RES_VIEW_FORMAT_UINT_1X32;
	view.width = 32;
	CU(cuTexObjectCreate(&t, &res, &tex, &view));
	POISON(got);
	CU(cuTexObjectGetResourceViewDesc(&got, t));
	EXPECT(got.format == view.format && got.width == 32 && !got.lastLayer);
	CU_INVALID(cuTexObjectGetResourceViewDesc(NULL, t));
	look_words<<<1, 32>>>((cudaTextureObject_t)t, (unsigned int *)out);
	EXPECT(fetch<float>(out, 32) == h);
	CU(cuTexObjectDestroy(t));
	view.format = CU_RES_VIEW_FORMAT_UINT_1X8;		/* a quarter of a texel */
	CU_INVALID(cuTexObjectCreate(&t, &res, &tex, &view));

	CU(cuArray3DCreate(&l, &desc));
	for (int i = 0; i < 48; i++)
		all[i] = i;
	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = all.data();
	c.srcPitch = c.WidthInBytes = 64;
	c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	c.dstArray = l;
	c.srcHeight = c.Height = 1;
	c.Depth = 3;
	CU(cuMemcpy3D(&c));
	res.res.array.hArray = l;
	view.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
	view.width = 16;
	view.firstLayer = 1;
	view.lastLayer = 2;
	tex.flags = 0;
	CU(cuTexObjectCreate(&t, &res, &tex, &view));
	look_layers<<<2, 16>>>((cudaTextureObject_t)t, (float *)out);
	EXPECT(fetch<float>(out, 32) == std::vector<float>(all.begin() + 16, all.end()));
	CU(cuTexObjectDestroy(t));
	view.lastLayer = 3;
	CU_INVALID(cuTexObjectCreate(&t, &res, &tex, &view));
	CU(cuArrayDestroy(l));
}

static void textures(void)
{
	CUDA_ARRAY_DESCRIPTOR desc = { 32, 0, CU_AD_FORMAT_FLOAT, 1 };
	CUDA_ARRAY3D_DESCRIPTOR desc3 = { 32, 0, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST };
	CUDA_RESOURCE_DESC res = {}, r;
	CUDA_RESOURCE_VIEW_DESC u;
	CUDA_TEXTURE_DESC tex = {}, q;
	std::vector<float> h(32);
	CUdeviceptr out = room(128);
	CUtexObject t;
	CUsurfObject f;
	CUarray a, b;

	for (int i = 0; i < 32; i++)
		h[i] = i * 1.5f;
	CU(cuArrayCreate(&a, &desc));
	CU(cuArray3DCreate(&b, &desc3));
	CU(cuMemcpyHtoA(a, 0, h.data(), 128));
	res.resType = CU_RESOURCE_TYPE_ARRAY;
	res.res.array.hArray = a;
	tex.addressMode[0] = tex.addressMode[1] = tex.addressMode[2] = CU_TR_ADDRESS_MODE_CLAMP;
	tex.filterMode = CU_TR_FILTER_MODE_POINT;
	tex.maxAnisotropy = 3;
	CU(cuTexObjectCreate(&t, &res, &tex, NULL));
	POISON(r);
	CU(cuTexObjectGetResourceDesc(&r, t));
	EXPECT(r.resType == CU_RESOURCE_TYPE_ARRAY && r.res.array.hArray == a);
	POISON(q);
	CU(cuTexObjectGetTextureDesc(&q, t));
	EXPECT(q.addressMode[0] == CU_TR_ADDRESS_MODE_CLAMP && q.filterMode == CU_TR_FILTER_MODE_POINT);
	CU_INVALID(cuTexObjectGetResourceViewDesc(&u, t));	/* there is none */
	look<<<1, 32>>>((cudaTextureObject_t)t, (float *)out);
	EXPECT(fetch<float>(out, 32) == h);
	views(a, h, out);
	res.res.array.hArray = b;
	CU(cuSurfObjectCreate(&f, &res));
	POISON(r);
	CU(cuSurfObjectGetResourceDesc(&r, f));
	EXPECT(r.resType == CU_RESOURCE_TYPE_ARRAY && r.res.array.hArray == b);
	CU_INVALID(cuTexObjectGetResourceDesc(NULL, t));
	CU_INVALID(cuTexObjectGetTextureDesc(NULL, t));
	CU_INVALID(cuSurfObjectGetResourceDesc(NULL, f));
	CU_INVALID(cuTexObjectGetTextureDesc(&q, 0));
	CU_INVALID(cuSurfObjectGetResourceDesc(&r, 0));
	CU(cuTexObjectDestroy(t));
	CU(cuSurfObjectDestroy(f));
	CU(cuArrayDestroy(a));
	CU(cuArrayDestroy(b));
	CU(cuMemFree(out));
	sum_vector(h);
}

static void gone(void *arg)
{
	++*(std::atomic<int> *)arg;
}

static bool soon(const std::atomic<int> &count, int want)
{
	for (int i = 0; i < 1000 && count < want; i++)
		usleep(1000);
	return count == want;
}

/* The destructor is called once, when the last of all references goes, whoever had it. */
static void users(void)
{
	std::atomic<int> count(0);
	CUuserObject u;
	CUgraph g;

	CU(cuUserObjectCreate(&u, &count, gone, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	CU(cuUserObjectRetain(u, 3));
	CU(cuUserObjectRelease(u, 4));
	CU(cuGraphCreate(&g, 0));
	CU(cuGraphRetainUserObject(g, u, 2, 0));
	CU(cuUserObjectRelease(u, 1));
	EXPECT_EQ(count, 0);
	CU(cuGraphReleaseUserObject(g, u, 1));
	EXPECT_EQ(count, 0);
	CU_INVALID(cuUserObjectRetain(u, 0));
	CU_INVALID(cuUserObjectRelease(u, 0));
	CU_INVALID(cuUserObjectRetain(u, 0x80000000u));
	CU_INVALID(cuUserObjectRelease(NULL, 1));
	CU_INVALID(cuGraphReleaseUserObject(g, u, 0));
	CU_INVALID(cuGraphReleaseUserObject(g, NULL, 1));
	CU_INVALID(cuUserObjectCreate(&u, &count, NULL, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	CU(cuGraphReleaseUserObject(g, u, 1));
	EXPECT(soon(count, 1));
	CU(cuGraphDestroy(g));
	usleep(20000);
	EXPECT_EQ(count, 1);

	CU(cuUserObjectCreate(&u, &count, gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	CU(cuUserObjectRelease(u, 1));
	EXPECT(soon(count, 2));
}

int main()
{
	CHECK(cudaFree(0));
	CU(cuCtxGetCurrent(&ctx));
	streams();
	resources();
	attributes();
	events();
	words();
	textures();
	users();
	CU(cuCtxSynchronize());
	return job_passed("driver_objects");
}
