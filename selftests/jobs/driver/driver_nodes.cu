// SPDX-License-Identifier: Apache-2.0
/*
 * driver_nodes.cu - graph nodes by the driver API: queries return the parameters that were set;
 * changes in a graph apply to the next instantiation, changes in an executable graph to its next
 * launch.
 */
#include "driver.cuh"

#include <atomic>

static CUcontext ctx;
static CUstream s;
static CUdeviceptr d;

static CUDA_MEMCPY3D copies(CUdeviceptr to, CUdeviceptr from, size_t len)
{
	CUDA_MEMCPY3D c = {};

	c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = from;
	c.dstDevice = to;
	c.WidthInBytes = len;
	c.Height = c.Depth = 1;
	return c;
}

/* Nodes of a byte more than the memory has. */
static void beyond_their_memory(CUgraph g)
{
	size_t len = 3 << 20;
	CUDA_MEMSET_NODE_PARAMS m = {};
	CUDA_MEMCPY3D c;
	CUdeviceptr own;
	CUgraphNode n;

	CU(cuMemAlloc(&own, len));
	m.dst = own + len - 16;
	m.elementSize = m.height = 1;
	m.width = 17;
	CU_INVALID(cuGraphAddMemsetNode(&n, g, NULL, 0, &m, ctx));
	c = copies(d, own + len - 16, 17);
	CU_INVALID(cuGraphAddMemcpyNode(&n, g, NULL, 0, &c, ctx));
	c = copies(own + len - 16, d, 17);
	CU_INVALID(cuGraphAddMemcpyNode(&n, g, NULL, 0, &c, ctx));
	CU(cuMemFree(own));
}

static void copies_and_sets(void)
{
	CUDA_MEMSET_NODE_PARAMS m = {}, got;
	CUDA_MEMCPY3D c = copies(d + 64, d, 16), back;
	CUgraphNode set, copy;
	CUgraphExec x;
	CUgraph g = graph();

	m.dst = d;
	m.value = 0x1111;
	m.elementSize = 2;
	m.width = 8;
	m.height = 1;
	CU(cuGraphAddMemsetNode(&set, g, NULL, 0, &m, ctx));
	CU(cuGraphAddMemcpyNode(&copy, g, &set, 1, &c, ctx));
	EXPECT_EQ(type_of(set), CU_GRAPH_NODE_TYPE_MEMSET);
	EXPECT_EQ(type_of(copy), CU_GRAPH_NODE_TYPE_MEMCPY);
	POISON(got);
	CU(cuGraphMemsetNodeGetParams(set, &got));
	EXPECT(got.dst == d && got.value == 0x1111 && got.elementSize == 2 && got.width == 8 &&
	       got.height == 1);
	x = exec(g);
	m.value = 0x2222;
	CU(cuGraphMemsetNodeSetParams(set, &m));
	CU(cuGraphMemsetNodeGetParams(set, &got));
	EXPECT_EQ(got.value, 0x2222);
	c = copies(d + 128, d, 8);
	CU(cuGraphMemcpyNodeSetParams(copy, &c));
	CU(cuGraphMemcpyNodeGetParams(copy, &back));
	EXPECT(back.dstDevice == d + 128 && back.WidthInBytes == 8);
	CU(cuMemsetD8(d, 0, 256));
	run(x, s);
	std::vector<unsigned int> h = fetch<unsigned int>(d, 64);
	EXPECT(h[0] == 0x11111111 && h[16] == 0x11111111 && h[19] == 0x11111111 && !h[32]);
	CU(cuGraphExecDestroy(x));
	x = exec(g);
	CU(cuMemsetD8(d, 0, 256));
	run(x, s);
	h = fetch<unsigned int>(d, 64);
	EXPECT(h[0] == 0x22222222 && !h[16] && h[32] == 0x22222222 && h[33] == 0x22222222 && !h[34]);
	CU_INVALID(cuGraphMemsetNodeGetParams(set, NULL));
	CU_INVALID(cuGraphMemsetNodeGetParams(copy, &got));
	CU_INVALID(cuGraphMemsetNodeSetParams(copy, &m));
	m.elementSize = 3;
	CU_INVALID(cuGraphMemsetNodeSetParams(set, &m));
	CU_INVALID(cuGraphMemcpyNodeSetParams(copy, NULL));
	CU_INVALID(cuGraphMemcpyNodeSetParams(set, &c));
	c.dstDevice = 0;
	CU_INVALID(cuGraphMemcpyNodeSetParams(copy, &c));
	beyond_their_memory(g);
	end(x, g);
}

static void plus(void *arg)
{
	++*(std::atomic<int> *)arg;
}

static void minus(void *arg)
{
	--*(std::atomic<int> *)arg;
}

static void host_functions(void)
{
	std::atomic<int> up(0), down(0);
	CUDA_HOST_NODE_PARAMS h = { plus, &up }, got;
	CUgraphNode n;
	CUgraphExec x;
	CUgraph g = graph();

	CU(cuGraphAddHostNode(&n, g, NULL, 0, &h));
	POISON(got);
	CU(cuGraphHostNodeGetParams(n, &got));
	EXPECT(got.fn == plus && got.userData == &up);
	x = exec(g);
	h = { minus, &down };
	CU(cuGraphHostNodeSetParams(n, &h));
	CU(cuGraphHostNodeGetParams(n, &got));
	EXPECT(got.fn == minus && got.userData == &down);
	run(x, s);
	EXPECT(up == 1 && down == 0);
	CU(cuGraphExecDestroy(x));
	x = exec(g);
	run(x, s);
	EXPECT(up == 1 && down == -1);
	CU_INVALID(cuGraphHostNodeGetParams(n, NULL));
	CU_INVALID(cuGraphHostNodeSetParams(n, NULL));
	h.fn = NULL;
	CU_INVALID(cuGraphHostNodeSetParams(n, &h));
	CU_INVALID(cuGraphHostNodeGetParams(NULL, &got));
	end(x, g);
}

/* Which event a node records or waits for shows in what another stream can know or do. */
static void events(void)
{
	CUgraphNode rec, wait;
	CUevent a, b, got;
	CUgraphExec x;
	CUgraph g = graph(), w = graph();
	CUstream t;
	gate open;

	CU(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	CU(cuEventCreate(&a, CU_EVENT_DISABLE_TIMING));
	CU(cuEventCreate(&b, CU_EVENT_DISABLE_TIMING));
	CU(cuGraphAddEventRecordNode(&rec, g, NULL, 0, a));
	CU(cuGraphEventRecordNodeGetEvent(rec, &got));
	EXPECT(got == a);
	x = exec(g);
	CU(cuGraphExecEventRecordNodeSetEvent(x, rec, b));
	CU(cuGraphEventRecordNodeGetEvent(rec, &got));
	EXPECT(got == a);			/* the graph's has not changed */
	open.close(s);
	CU(cuGraphLaunch(x, s));
	CU(cuEventQuery(a));
	open.open();
	CU(cuStreamSynchronize(s));
	CU(cuEventSynchronize(b));
	CU(cuGraphEventRecordNodeSetEvent(rec, b));
	CU(cuGraphEventRecordNodeGetEvent(rec, &got));
	EXPECT(got == b);
	CU_INVALID(cuGraphEventRecordNodeGetEvent(rec, NULL));
	CU_INVALID(cuGraphEventRecordNodeSetEvent(NULL, a));
	CU_INVALID(cuGraphExecEventRecordNodeSetEvent(NULL, rec, a));
	CU_INVALID(cuGraphExecEventRecordNodeSetEvent(x, NULL, a));
	end(x, g);

	/* a waits behind the gate, b does not */
	CU(cuGraphAddEventWaitNode(&wait, w, NULL, 0, a));
	CU(cuGraphEventWaitNodeGetEvent(wait, &got));
	EXPECT(got == a);
	open.close(s);
	CU(cuEventRecord(a, s));
	x = exec(w);
	CU(cuGraphLaunch(x, t));
	usleep(20000);
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(t));
	open.open();
	CU(cuStreamSynchronize(t));
	open.close(s);
	CU(cuEventRecord(a, s));
	CU(cuGraphExecEventWaitNodeSetEvent(x, wait, b));
	CU(cuGraphLaunch(x, t));
	CU(cuStreamSynchronize(t));
	CU(cuGraphEventWaitNodeSetEvent(wait, b));
	CU(cuGraphEventWaitNodeGetEvent(wait, &got));
	EXPECT(got == b);
	CU_INVALID(cuGraphEventWaitNodeGetEvent(wait, NULL));
	CU_INVALID(cuGraphEventWaitNodeGetEvent(NULL, &got));
	CU_INVALID(cuGraphEventRecordNodeGetEvent(wait, &got));
	CU_INVALID(cuGraphEventRecordNodeSetEvent(wait, a));
	CU_INVALID(cuGraphExecEventWaitNodeSetEvent(NULL, wait, a));
	open.open();
	CU(cuStreamSynchronize(s));
	end(x, w);
	CU(cuEventDestroy(a));
	CU(cuEventDestroy(b));
	CU(cuStreamDestroy(t));
}

static void memory_operations(void)
{
	CUstreamBatchMemOpParams op[2];
	CUDA_BATCH_MEM_OP_NODE_PARAMS p = {}, got;
	CUgraphNode n;
	CUgraphExec x;
	CUgraph g = graph();

	memset(op, 0, sizeof(op));
	for (int i = 0; i < 2; i++) {
		op[i].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
		op[i].writeValue.address = d + 4 * i;
		op[i].writeValue.value = 5 + i;
	}
	p.ctx = ctx;
	p.count = 2;
	p.paramArray = op;
	CU(cuGraphAddBatchMemOpNode(&n, g, NULL, 0, &p));
	EXPECT_EQ(type_of(n), CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
	POISON(got);
	CU(cuGraphBatchMemOpNodeGetParams(n, &got));
	EXPECT(got.count == 2 && got.flags == 0 && got.paramArray != op &&
	       got.paramArray[1].writeValue.value == 6 && got.ctx == ctx);
	x = exec(g);
	CU(cuMemsetD8(d, 0, 64));
	run(x, s);
	EXPECT(fetch<int>(d, 2)[0] == 5 && fetch<int>(d, 2)[1] == 6);
	op[0].writeValue.value = 7;
	op[1].writeValue.address = d + 8;
	CU(cuGraphExecBatchMemOpNodeSetParams(x, n, &p));
	CU(cuMemsetD8(d, 0, 64));
	run(x, s);
	std::vector<int> h = fetch<int>(d, 3);
	EXPECT(h[0] == 7 && h[1] == 0 && h[2] == 6);
	CU(cuGraphBatchMemOpNodeGetParams(n, &got));
	EXPECT_EQ(got.paramArray[0].writeValue.value, 5);
	CU(cuGraphBatchMemOpNodeSetParams(n, &p));
	CU(cuGraphBatchMemOpNodeGetParams(n, &got));
	EXPECT(got.paramArray[0].writeValue.value == 7 && got.paramArray[1].writeValue.address == d + 8);
	CU_INVALID(cuGraphBatchMemOpNodeGetParams(n, NULL));
	CU_INVALID(cuGraphBatchMemOpNodeSetParams(n, NULL));
	CU_INVALID(cuGraphBatchMemOpNodeSetParams(NULL, &p));
	CU_INVALID(cuGraphExecBatchMemOpNodeSetParams(x, n, NULL));
	op[0].writeValue.address = d + 2;
	CU_INVALID(cuGraphBatchMemOpNodeSetParams(n, &p));
	op[0].operation = (CUstreamBatchMemOpType)4711;
	CU_INVALID(cuGraphBatchMemOpNodeSetParams(n, &p));
	end(x, g);
}

static cuuint64_t used(CUgraphMem_attribute a)
{
	cuuint64_t v;

	CU(cuDeviceGetGraphMemAttribute(0, a, &v));
	return v;
}

static void memory(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {}, got;
	CUgraphNode a, f;
	CUdeviceptr at;
	CUgraphExec x;
	CUgraph g = graph();
	cuuint64_t zero = 0, one = 1;

	CU(cuDeviceGraphMemTrim(0));
	CU(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
	CU(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
	EXPECT_EQ(used(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0);
	p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.bytesize = 1 << 20;
	CU(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
	CU(cuGraphAddMemFreeNode(&f, g, &a, 1, p.dptr));
	EXPECT_EQ(type_of(a), CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	EXPECT_EQ(type_of(f), CU_GRAPH_NODE_TYPE_MEM_FREE);
	POISON(got);
	CU(cuGraphMemAllocNodeGetParams(a, &got));
	EXPECT(got.dptr == p.dptr && got.bytesize == 1 << 20 &&
	       got.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
	CU(cuGraphMemFreeNodeGetParams(f, &at));
	EXPECT(at == p.dptr);
	CU_INVALID(cuGraphMemAllocNodeGetParams(a, NULL));
	CU_INVALID(cuGraphMemAllocNodeGetParams(f, &got));
	CU_INVALID(cuGraphMemFreeNodeGetParams(f, NULL));
	CU_INVALID(cuGraphMemFreeNodeGetParams(a, &at));

	/* the most that there was stays known until it is asked to be forgotten */
	x = exec(g);
	run(x, s);
	EXPECT_EQ(used(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
	EXPECT(used(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= 1 << 20);
	EXPECT(used(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) >= 1 << 20);
	CU(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
	EXPECT_EQ(used(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0);
	CU_INVALID(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &one));
	CU_INVALID(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero));
	CU_INVALID(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, NULL));
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE,
		 cuDeviceSetGraphMemAttribute(4711, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
	end(x, g);
}

int main()
{
	CHECK(cudaFree(0));
	CU(cuCtxGetCurrent(&ctx));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	d = room(256);
	copies_and_sets();
	host_functions();
	events();
	memory_operations();
	memory();
	std::vector<int> h = fetch<int>(d, 64);
	sum_vector(h);
	CU(cuStreamDestroy(s));
	return job_passed("driver_nodes");
}
