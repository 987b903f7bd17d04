// SPDX-License-Identifier: Apache-2.0
/*
 * api_graph.c - graphs built by hand and by capture, their rules, updates and launches.
 */
#include "api.h"

#include <pthread.h>

static int order[16], norder;

static void note(void *arg)
{
	order[norder++ & 15] = (int)(intptr_t)arg;
}

TEST_F(gpu, nodes_and_edges_are_what_was_added)
{
	CUDA_HOST_NODE_PARAMS hp = { .fn = note, .userData = (void *)1 }, got;
	CUgraphNode a, b, c, list[4], from[4], to[4];
	CUgraphNodeType type;
	CUgraphExec x;
	CUgraph g;
	size_t n;

	OK(cuGraphCreate(&g, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&g, 1));
	OK(cuGraphAddHostNode(&a, g, NULL, 0, &hp));
	hp.userData = (void *)2;
	OK(cuGraphAddHostNode(&b, g, &a, 1, &hp));
	OK(cuGraphAddEmptyNode(&c, g, NULL, 0));
	OK(cuGraphNodeGetType(b, &type));
	EXPECT_EQ(CU_GRAPH_NODE_TYPE_HOST, type);
	OK(cuGraphHostNodeGetParams(b, &got));
	EXPECT_EQ((void *)2, got.userData);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphHostNodeGetParams(c, &got));
	OK(cuGraphGetNodes(g, NULL, &n));
	EXPECT_EQ(3, n);
	n = 4;
	OK(cuGraphGetRootNodes(g, list, &n));
	EXPECT_EQ(2, n);
	EXPECT_EQ(NULL, list[2]);
	OK(cuGraphAddDependencies(g, &c, &a, NULL, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &c, &c, NULL, 1));
	n = 4;
	OK(cuGraphGetEdges(g, from, to, NULL, &n));
	EXPECT_EQ(2, n);
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphLaunch(x, NULL));
	OK(cuCtxSynchronize());
	EXPECT_EQ(2, norder);
	EXPECT_EQ(1, order[0]);
	EXPECT_EQ(2, order[1]);
	OK(cuGraphAddDependencies(g, &b, &c, NULL, 1));
	CUgraphExec none = POISON;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&none, g, 0));	/* a cycle */
	OK(cuGraphRemoveDependencies(g, &b, &c, NULL, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(g, &b, &c, NULL, 1));
	OK(cuGraphDestroyNode(a));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetType(a, &type));
	OK(cuGraphDestroy(g));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g));
	OK(cuGraphLaunch(x, NULL));		/* does not need its graph */
	OK(cuCtxSynchronize());
	EXPECT_EQ(4, norder);
	OK(cuGraphExecDestroy(x));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(x, NULL));
}

TEST_F(gpu, a_captured_stream_becomes_a_graph)
{
	unsigned int n = 1000, *h;
	CUstreamCaptureStatus status = 77;
	CUdeviceptr p;
	void *params[] = { &p, &n };
	CUgraphExec x;
	CUgraph g = POISON;
	CUstream s, t;
	CUevent fork_ev, join_ev;
	size_t count;

	LOAD_KERNELS();
	OK(cuMemHostAlloc((void **)&h, n * 4, 0));
	OK(cuMemAlloc(&p, n * 4));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&fork_ev, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&join_ev, CU_EVENT_DISABLE_TIMING));
	FAILS(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s, &g));
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	FAILS(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamIsCapturing(s, &status));
	EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
	OK(cuMemsetD32Async(p, 5, n, s));
	OK(cuEventRecord(fork_ev, s));
	OK(cuStreamWaitEvent(t, fork_ev, 0));
	OK(launch1(self->add1, 4, 256, t, params));
	OK(cuEventRecord(join_ev, t));
	OK(cuStreamWaitEvent(s, join_ev, 0));
	OK(launch1(self->add1, 4, 256, s, params));
	OK(cuMemcpyDtoHAsync(h, p, n * 4, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuStreamIsCapturing(t, &status));
	EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status);
	OK(cuGraphGetNodes(g, NULL, &count));
	EXPECT_EQ(4, count);
	memset(h, 0, n * 4);
	OK(cuGraphInstantiate(&x, g, 0));
	EXPECT_EQ(0, h[0]);
	for (int i = 0; i < 3; i++) {
		OK(cuGraphLaunch(x, s));
		OK(cuStreamSynchronize(s));
		EXPECT_EQ(7, h[0]);
		EXPECT_EQ(7, h[n - 1]);
		memset(h, 0, n * 4);
	}
}

TEST_F(gpu, kernel_nodes_are_changed_in_graph_and_exec)
{
	unsigned int v = 1, w = 2, got = 0;
	CUdeviceptr p;
	void *params[] = { &p, &v }, *other[] = { &p, &w };
	CUDA_KERNEL_NODE_PARAMS kp = { 0 }, back;
	CUgraphExecUpdateResultInfo info;
	CUgraphNode node;
	CUgraphExec x;
	CUgraph g;

	LOAD_KERNELS();
	OK(cuMemAlloc(&p, 4));
	kp.func = self->poke;
	kp.gridDimX = kp.gridDimY = kp.gridDimZ = 1;
	kp.blockDimX = kp.blockDimY = kp.blockDimZ = 1;
	kp.kernelParams = params;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddKernelNode(&node, g, NULL, 0, &kp));
	v = 99;		/* parameters have been copied */
	OK(cuGraphKernelNodeGetParams(node, &back));
	EXPECT_EQ(self->poke, back.func);
	EXPECT_EQ(1, *(unsigned int *)back.kernelParams[1]);
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphLaunch(x, NULL));
	OK(cuMemcpyDtoH(&got, p, 4));
	EXPECT_EQ(1, got);
	kp.kernelParams = other;
	OK(cuGraphExecKernelNodeSetParams(x, node, &kp));
	OK(cuGraphLaunch(x, NULL));
	w = 3;
	OK(cuGraphExecKernelNodeSetParams(x, node, &kp));	/* not seen by the launch above */
	OK(cuMemcpyDtoH(&got, p, 4));
	EXPECT_EQ(2, got);
	OK(cuGraphLaunch(x, NULL));
	OK(cuMemcpyDtoH(&got, p, 4));
	EXPECT_EQ(3, got);
	w = 8;
	OK(cuGraphKernelNodeSetParams(node, &kp));
	OK(cuGraphExecUpdate(x, g, &info));
	EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_SUCCESS, info.result);
	OK(cuGraphLaunch(x, NULL));
	OK(cuMemcpyDtoH(&got, p, 4));
	EXPECT_EQ(8, got);
	OK(cuMemsetD32(p, 0, 1));
	OK(cuGraphNodeSetEnabled(x, node, 0));
	OK(cuGraphLaunch(x, NULL));
	OK(cuMemcpyDtoH(&got, p, 4));
	EXPECT_EQ(0, got);
	OK(cuGraphAddEmptyNode(&node, g, NULL, 0));
	FAILS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(x, g, &info));
	EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.result);
}

TEST_F(gpu, a_capture_forbids_what_would_not_be_recorded)
{
	CUdeviceptr p, q;
	CUgraph g = POISON;
	CUstream s, blocking;
	CUevent ev;

	OK(cuMemAlloc(&p, 64));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&blocking, 0));
	OK(cuEventCreate(&ev, 0));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	      cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
	/* unsafe calls in the default mode */
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&q, 64));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD8Async(p, 0, 64, s));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
	EXPECT_EQ(NULL, g);
	OK(cuMemAlloc(&q, 64));
	/* the same in relaxed mode */
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuMemAlloc(&q, 64));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(s));
	cuStreamEndCapture(s, &g);
	/* an event of work outside */
	OK(cuEventRecord(ev, NULL));
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(s, ev, 0));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
	/* an event that was recorded while recording can be waited for by streams alone */
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuEventRecord(ev, s));
	FAILS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(ev));
	FAILS(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(ev));
	/* a stream that joined must be joined again */
	OK(cuStreamWaitEvent(blocking, ev, 0));
	OK(cuMemsetD8Async(p, 0, 64, blocking));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(blocking, &g));
	cuStreamEndCapture(s, &g);
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuEventRecord(ev, s));
	OK(cuStreamWaitEvent(blocking, ev, 0));
	OK(cuMemsetD8Async(p, 0, 64, blocking));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(s, &g));
	/* the legacy stream would wait for a blocking stream that records */
	OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD8Async(p, 0, 64, NULL));
	FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &g));
	OK(cuMemsetD8Async(p, 0, 64, NULL));
	OK(cuCtxSynchronize());
}

/* Each of the calls that a capture in the default mode forbids, to any thread. */
TEST_F(gpu, a_capture_forbids_each_unsafe_call)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 4, .Height = 4, .Format = CU_AD_FORMAT_FLOAT,
				      .NumChannels = 1 };
	char host[64], *room = aligned_alloc(4096, 4096);
	void *pinned = POISON;
	CUdeviceptr p, q;
	CUgraph g;
	CUmodule m, made;
	CUarray a, b;
	CUstream s;
	CUevent ev;

	OK(cuMemAlloc(&p, 64));
	OK(cuModuleLoadData(&m, PTX_HEAD PTX_ADD1));
	OK(cuArray3DCreate(&a, &d));
	OK(cuEventCreate(&ev, 0));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
#define UNSAFE(call) do { \
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL)); \
	FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call) TH_LOG("%s", #call); \
	FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g)); \
} while (0)
	UNSAFE(cuMemAlloc(&q, 64));
	UNSAFE(cuMemFree(p));
	UNSAFE(cuMemcpyHtoD(p, host, 64));
	UNSAFE(cuMemHostAlloc(&pinned, 64, 0));
	UNSAFE(cuMemHostRegister(room, 4096, 0));
	UNSAFE(cuArray3DCreate(&b, &d));
	UNSAFE(cuArrayDestroy(a));
	UNSAFE(cuModuleLoadData(&made, PTX_HEAD PTX_ADD1));
	UNSAFE(cuModuleUnload(m));
	UNSAFE(cuEventQuery(ev));
	UNSAFE(cuEventSynchronize(ev));
	UNSAFE(cuCtxSynchronize());
	EXPECT_EQ(POISON, pinned);
	/* all that they named is still there */
	OK(cuMemcpyHtoD(p, host, 64));
	OK(cuMemFree(p));
	OK(cuArrayDestroy(a));
	OK(cuModuleUnload(m));
	OK(cuMemHostRegister(room, 4096, 0));
	OK(cuMemHostUnregister(room));
	OK(cuEventDestroy(ev));
	OK(cuStreamDestroy(s));
	free(room);
}

static void *end_elsewhere(void *arg)
{
	CUcontext ctx = ((void **)arg)[0];
	CUgraph g;

	if (cuCtxSetCurrent(ctx))
		return (void *)-1;
	return (void *)(intptr_t)cuStreamEndCapture(((void **)arg)[1], &g);
}

TEST_F(gpu, a_capture_ends_on_its_thread)
{
	void *arg[2] = { self->ctx }, *ret = POISON;
	pthread_t t;
	CUstream s;
	CUgraph g;

	OK(cuStreamCreate(&s, 0));
	arg[1] = s;
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	ASSERT_EQ(0, pthread_create(&t, NULL, end_elsewhere, arg));
	pthread_join(t, &ret);
	EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, (intptr_t)ret);
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphDestroy(g));
}

static int destroyed;

static void CUDA_CB destroy_user(void *p)
{
	destroyed += p == (void *)0x77;
}

TEST_F(gpu, user_objects_live_as_long_as_their_graphs)
{
	CUuserObject u;
	CUgraphExec x;
	CUgraph g;

	OK(cuUserObjectCreate(&u, (void *)0x77, destroy_user, 1,
			      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&u, NULL, destroy_user, 1, 0));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphRetainUserObject(g, u, 1, CU_GRAPH_USER_OBJECT_MOVE));
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphDestroy(g));
	EXPECT_EQ(0, destroyed);
	OK(cuGraphExecDestroy(x));
	EXPECT_EQ(1, destroyed);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(u, 1));
}

TEST_F(gpu, children_memory_and_events_are_nodes)
{
	CUDA_MEM_ALLOC_NODE_PARAMS ap = { 0 };
	CUDA_MEMSET_NODE_PARAMS mp = { .elementSize = 4, .width = 16, .height = 1, .value = 5 };
	CUgraphNode alloc, set, child, release, rec;
	unsigned int got[16] = { 0 };
	CUgraph g, inner, seen;
	CUevent ev;
	CUgraphExec x;
	CUdeviceptr p;

	OK(cuEventCreate(&ev, 0));
	OK(cuMemAlloc(&p, 64));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphCreate(&inner, 0));
	mp.dst = p;
	OK(cuGraphAddMemsetNode(&set, inner, NULL, 0, &mp, self->ctx));
	ap.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	ap.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	ap.bytesize = 64;
	OK(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &ap));
	ASSERT_NE(0, ap.dptr);
	mp.dst = ap.dptr;
	mp.value = 9;
	OK(cuGraphAddMemsetNode(&set, g, &alloc, 1, &mp, self->ctx));
	OK(cuGraphAddChildGraphNode(&child, g, &set, 1, inner));
	OK(cuGraphChildGraphNodeGetGraph(child, &seen));
	EXPECT_NE(inner, seen);
	OK(cuGraphDestroy(inner));
	OK(cuGraphAddMemFreeNode(&release, g, &child, 1, ap.dptr));
	OK(cuGraphAddEventRecordNode(&rec, g, &release, 1, ev));
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphLaunch(x, NULL));
	OK(cuGraphLaunch(x, NULL));
	OK(cuEventSynchronize(ev));
	OK(cuMemcpyDtoH(got, p, 64));
	EXPECT_EQ(5, got[0]);
	EXPECT_EQ(5, got[15]);
	OK(cuGraphExecDestroy(x));
	OK(cuGraphDestroy(g));
}

TEST_HARNESS_MAIN
