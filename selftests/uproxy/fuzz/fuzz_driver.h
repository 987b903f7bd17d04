/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_driver.h - the driver below the fuzzed core, which aborts on misuse; a part of fuzz.c
 */
#ifndef UPROXY_FUZZ_DRIVER_H
#define UPROXY_FUZZ_DRIVER_H

enum { CTX = 0xc7, STREAM, EVENT, LIB, KERNEL, MODULE, FUNC, PHYS, ARRAY, MIPMAP, TEX, GRAPH, NODE,
       EXEC };

struct thing {
	struct thing *next;
	int kind, live;
	struct thing *of;	/* a kernel's library, a function's module or library */
	uint64_t len;
};

static struct thing *things, primary = { .kind = CTX, .live = 1 };
static struct thing *current;
static uint8_t mapped[GRANULES];
static struct { uint64_t at, len; } pinned[256];
static int npinned;
static int spare;		/* 1: reserved, 2: mapped */
static CUresult fail_with;	/* the next creation's result */

static struct queued {
	struct queued *next;
	CUstreamCallback fn;
	void *arg;
} *queue, **queue_end;

static void *thing_new(int kind, struct thing *of)
{
	struct thing *t = calloc(1, sizeof(*t));

	*t = (struct thing){ things, kind, 1, of, 0 };
	things = t;
	return t;
}

static struct thing *check(const void *p, int kind)
{
	struct thing *t = (struct thing *)(uintptr_t)p;

	MUST(p && t->kind == kind && t->live);
	MUST(!t->of || t->of->live);
	return t;
}

static void gone(const void *p, int kind)
{
	check(p, kind)->live = 0;
}

static void stream_ok(CUstream s)
{
	if ((uintptr_t)s == 1)
		MUST(current && current->live);
	else
		check(s, STREAM);
}

static int in_pins(uint64_t at, uint64_t len)
{
	while (len) {
		int i = 0;

		while (i < npinned && !(at >= pinned[i].at && at - pinned[i].at < pinned[i].len))
			i++;
		if (i == npinned)
			return 0;
		if (pinned[i].at + pinned[i].len - at >= len)
			return 1;
		len -= pinned[i].at + pinned[i].len - at;
		at = pinned[i].at + pinned[i].len;
	}
	return 1;
}

static void memory_ok(uint64_t at, uint64_t len)
{
	if (!len)
		return;
	MUST(at + len > at);
	if (at >= WINDOW && at < WINDOW + GRANULES * SV_GRANULE) {
		MUST(len <= WINDOW + GRANULES * SV_GRANULE - at);
		/* What a log names was mapped once, and is asked for while graphs are made again. */
		for (uint64_t g = (at - WINDOW) / SV_GRANULE;
		     g <= (at + len - 1 - WINDOW) / SV_GRANULE && !session.replay; g++)
			MUST(mapped[g]);
		return;
	}
	if (at == SPARE) {
		MUST(spare == 2 && len <= SV_GRANULE);
		return;
	}
	if (at >= GLOBALS && at < GLOBALS + 4096) {
		MUST(len <= GLOBALS + 4096 - at);
		return;
	}
	MUST(in_pins(at, len) || (session.replay && arena_client(&session, at - (uint64_t)session.arena,
								 len)));
}

static CUresult refuse(void)
{
	CUresult r = fail_with;

	fail_with = CUDA_SUCCESS;
	return r;
}

#define MAKE(kind, of) ({ \
	CUresult r_ = refuse(); \
	if (!r_) \
		*out = (void *)thing_new(kind, of); \
	r_; \
})

static CUresult m_set_current(CUcontext c)
{
	current = check(c, CTX);
	return CUDA_SUCCESS;
}
static CUresult m_ctx_create(CUcontext *out, unsigned int f, CUdevice d)
{
	(void)f, (void)d;
	return MAKE(CTX, NULL);
}
static CUresult m_ctx_destroy(CUcontext c)
{
	MUST((struct thing *)c != &primary);
	gone(c, CTX);
	for (struct thing *t = things; t; t = t->next)
		if (t->of == (struct thing *)c)
			t->live = 0;
	return CUDA_SUCCESS;
}
static CUresult m_reset(CUdevice d)
{
	(void)d;
	npinned = 0;		/* pinned memory is the context's */
	for (struct thing *t = things; t; t = t->next)
		if (t->of == &primary)
			t->live = 0;
	primary.live = 0;	/* until it is retained again */
	return CUDA_SUCCESS;
}
static CUresult m_primary(CUcontext *c, CUdevice d)
{
	(void)d;
	primary.live = 1;
	*c = (CUcontext)&primary;
	return CUDA_SUCCESS;
}
static CUresult m_create(CUmemGenericAllocationHandle *h, size_t len, const CUmemAllocationProp *p,
			 unsigned long long f)
{
	struct thing *t;
	CUresult r = refuse();

	(void)p, (void)f;
	MUST(len && len % SV_GRANULE == 0 && len <= GRANULES * SV_GRANULE);
	if (r)
		return r;
	t = thing_new(PHYS, NULL);
	t->len = len;
	*h = (uintptr_t)t;
	return CUDA_SUCCESS;
}
static CUresult m_release(CUmemGenericAllocationHandle h)
{
	gone((void *)h, PHYS);
	return CUDA_SUCCESS;
}
static CUresult m_export(void *fd, CUmemGenericAllocationHandle h, CUmemAllocationHandleType t,
			 unsigned long long f)
{
	MUST(t == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !f);
	check((void *)h, PHYS);
	if (refuse())
		return CUDA_ERROR_OUT_OF_MEMORY;
	*(int *)fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return *(int *)fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
static CUresult m_import(CUmemGenericAllocationHandle *h, void *fd, CUmemAllocationHandleType t)
{
	MUST(t == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && fcntl((intptr_t)fd, F_GETFD) >= 0);
	return m_create(h, SV_GRANULE, NULL, 0);
}
static CUresult m_map(CUdeviceptr at, size_t len, size_t off, CUmemGenericAllocationHandle h,
		      unsigned long long f)
{
	(void)f;
	if (off || len > check((void *)h, PHYS)->len)
		return CUDA_ERROR_INVALID_VALUE;
	if (at == SPARE) {
		MUST(spare == 1 && len == SV_GRANULE);
		spare = 2;
		return CUDA_SUCCESS;
	}
	MUST(at >= WINDOW && len && at % SV_GRANULE == 0 && len % SV_GRANULE == 0);
	MUST(at + len <= WINDOW + GRANULES * SV_GRANULE);
	for (uint64_t g = (at - WINDOW) / SV_GRANULE; len; g++, len -= SV_GRANULE) {
		MUST(!mapped[g]);
		mapped[g] = 1;
	}
	return CUDA_SUCCESS;
}
static CUresult m_unmap(CUdeviceptr at, size_t len)
{
	memory_ok(at, len);
	if (at == SPARE) {
		spare = 1;
		return CUDA_SUCCESS;
	}
	MUST(at >= WINDOW && at < WINDOW + GRANULES * SV_GRANULE);
	memset(mapped + (at - WINDOW) / SV_GRANULE, 0, len / SV_GRANULE);
	return CUDA_SUCCESS;
}
static CUresult m_retain(CUmemGenericAllocationHandle *h, void *at)
{
	memory_ok((uint64_t)at, SV_GRANULE);
	return m_create(h, SV_GRANULE, NULL, 0);
}
static CUresult m_reserve(CUdeviceptr *at, size_t len, size_t align, CUdeviceptr hint,
			  unsigned long long f)
{
	MUST(!spare && len == SV_GRANULE && !align && !hint && !f);
	if (refuse())
		return CUDA_ERROR_OUT_OF_MEMORY;
	spare = 1;
	*at = SPARE;
	return CUDA_SUCCESS;
}
static CUresult m_unreserve(CUdeviceptr at, size_t len)
{
	MUST(at == SPARE && len == SV_GRANULE && spare == 1);
	spare = 0;
	return CUDA_SUCCESS;
}
static CUresult m_copy_now(CUdeviceptr to, CUdeviceptr from, size_t len)
{
	MUST(current && current->live);
	memory_ok(to, len);
	memory_ok(from, len);
	return refuse();
}
static CUresult m_access(CUdeviceptr at, size_t len, const CUmemAccessDesc *d, size_t n)
{
	(void)d, (void)n;
	memory_ok(at, len);
	return refuse();
}
static CUresult m_pin(void *p, size_t len, unsigned int f)
{
	CUresult r = refuse();

	(void)f;
	if (r || npinned == 256)
		return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
	for (int i = 0; i < npinned; i++)
		MUST((uintptr_t)p >= pinned[i].at + pinned[i].len ||
		     (uintptr_t)p + len <= pinned[i].at);
	pinned[npinned].at = (uintptr_t)p;
	pinned[npinned++].len = len;
	return CUDA_SUCCESS;
}
static CUresult m_unpin(void *p)
{
	for (int i = 0; i < npinned; i++)
		if (pinned[i].at == (uintptr_t)p) {
			pinned[i] = pinned[--npinned];
			return CUDA_SUCCESS;
		}
	MUST(!"unpinned");
	return 0;
}
static CUresult m_copy(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream st)
{
	stream_ok(st);
	memory_ok(d, n);
	memory_ok(s, n);
	return CUDA_SUCCESS;
}
static CUresult m_copy3d(const CUDA_MEMCPY3D *p, CUstream st)
{
	stream_ok(st);
	if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY)
		check(p->srcArray, ARRAY);
	else if (p->WidthInBytes && p->Height && p->Depth)
		memory_ok((p->srcMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)p->srcHost :
			   p->srcDevice) + p->srcXInBytes + p->srcPitch * p->srcY +
			  p->srcPitch * p->srcHeight * p->srcZ,
			  p->WidthInBytes + p->srcPitch * (p->Height - 1) +
			  p->srcPitch * p->srcHeight * (p->Depth - 1));
	if (p->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		check(p->dstArray, ARRAY);
	return CUDA_SUCCESS;
}
static CUresult m_set8(CUdeviceptr d, unsigned char v, size_t n, CUstream st)
{
	(void)v;
	stream_ok(st);
	memory_ok(d, n);
	return CUDA_SUCCESS;
}
static CUresult m_set2d32(CUdeviceptr d, size_t pitch, unsigned int v, size_t w, size_t h,
			  CUstream st)
{
	(void)v;
	stream_ok(st);
	if (w && h)
		memory_ok(d, pitch * (h - 1) + w * 4);
	return CUDA_SUCCESS;
}
static CUresult m_callback(CUstream st, CUstreamCallback fn, void *arg, unsigned int f)
{
	struct queued *q = malloc(sizeof(*q));

	(void)f;
	stream_ok(st);
	*q = (struct queued){ NULL, fn, arg };
	if (session.replay) {	/* where nothing else will happen while it waits for that */
		free(q);
		fn(st, CUDA_SUCCESS, arg);
		return CUDA_SUCCESS;
	}
	*queue_end = q;
	queue_end = &q->next;
	return CUDA_SUCCESS;
}
static CUresult m_query(CUstream st)
{
	stream_ok(st);
	return queue ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
static CUresult m_sync(CUstream st)
{
	stream_ok(st);
	MUST(!queue);
	return CUDA_SUCCESS;
}
static CUresult m_stream(CUstream *out, unsigned int f)
{
	(void)f;
	MUST(current && current->live);
	return MAKE(STREAM, current);
}
static CUresult m_stream_end(CUstream st)
{
	gone(st, STREAM);
	return CUDA_SUCCESS;
}
static CUresult m_stream_flags(CUstream st, unsigned int *f)
{
	check(st, STREAM);
	*f = (uintptr_t)st >> 5 & 1;
	return CUDA_SUCCESS;
}
static CUresult m_wait(CUstream st, CUevent e, unsigned int f)
{
	(void)f;
	stream_ok(st);
	check(e, EVENT);
	return CUDA_SUCCESS;
}
static CUresult m_value64(CUstream st, CUdeviceptr at, cuuint64_t v, unsigned int f)
{
	(void)v, (void)f;
	stream_ok(st);
	memory_ok(at, 8);
	return CUDA_SUCCESS;
}
static CUresult m_event(CUevent *out, unsigned int f)
{
	(void)f;
	MUST(current && current->live);
	return MAKE(EVENT, current);
}
static CUresult m_event_end(CUevent e)
{
	gone(e, EVENT);
	return CUDA_SUCCESS;
}
static CUresult m_record(CUevent e, CUstream st)
{
	check(e, EVENT);
	stream_ok(st);
	return CUDA_SUCCESS;
}
static CUresult m_event_query(CUevent e)
{
	check(e, EVENT);
	return queue ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
static CUresult m_event_sync(CUevent e)
{
	check(e, EVENT);
	MUST(!queue);
	return CUDA_SUCCESS;
}
static CUresult m_elapsed(float *ms, CUevent a, CUevent b)
{
	check(a, EVENT);
	check(b, EVENT);
	*ms = 1;
	return CUDA_SUCCESS;
}

/* Reads an image as a driver does, by the sizes in its headers. */
static void read_image(const void *p)
{
	uint32_t magic, sum = 0;
	uint16_t header;
	uint64_t size;

	memcpy(&magic, p, 4);
	if (magic == 0xba55ed50u) {
		memcpy(&header, (const char *)p + 6, 2);
		memcpy(&size, (const char *)p + 8, 8);
		for (uint64_t i = 0; i < header + size; i++)
			sum += ((const volatile uint8_t *)p)[i];
	} else if (magic == 0x466243b1u) {
		struct { uint32_t m, v; const void *f; const void *const *all; } w;

		memcpy(&w, p, sizeof(w));
		MUST(w.v == 2);
		for (; *w.all; w.all++)
			read_image(*w.all);
	} else {
		sum += strlen(p);
	}
	(void)sum;
}
static CUresult m_load(CUlibrary *out, const void *image, CUjit_option *o, void **v, unsigned int n,
		       CUlibraryOption *lo, void **lv, unsigned int ln)
{
	(void)lo, (void)lv, (void)ln;
	read_image(image);
	for (unsigned int i = 0; i < n; i++)
		if (o[i] == CU_JIT_ERROR_LOG_BUFFER || o[i] == CU_JIT_INFO_LOG_BUFFER)
			memset(v[i], 'x', (size_t)(uintptr_t)v[i + 1]);
	return MAKE(LIB, NULL);
}
static CUresult m_module(CUmodule *out, const void *image, unsigned int n, CUjit_option *o,
			 void **v)
{
	(void)n, (void)o, (void)v;
	MUST(current && current->live);
	read_image(image);
	return MAKE(MODULE, current);
}
static CUresult m_unload(CUlibrary l)
{
	gone(l, LIB);
	return CUDA_SUCCESS;
}
static CUresult m_module_unload(CUmodule m)
{
	gone(m, MODULE);
	return CUDA_SUCCESS;
}
static CUresult m_kernel(CUkernel *out, CUlibrary l, const char *name)
{
	MUST(strlen(name) < 65536);
	return MAKE(KERNEL, check(l, LIB));
}
static CUresult m_function(CUfunction *out, CUmodule m, const char *name)
{
	MUST(strlen(name) < 65536);
	return MAKE(FUNC, check(m, MODULE));
}
static CUresult m_derive(CUfunction *out, CUkernel k)
{
	return MAKE(FUNC, check(k, KERNEL)->of);
}
static CUresult m_lib_module(CUmodule *out, CUlibrary l)
{
	return MAKE(MODULE, check(l, LIB));
}
static CUresult m_params(CUfunction f, size_t i, size_t *off, size_t *size)
{
	MUST(((struct thing *)f)->live);
	*off = i * 8;
	*size = 8;
	return i < 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult m_global(CUdeviceptr *at, size_t *len, void *from, const char *name)
{
	MUST(((struct thing *)from)->live);
	*at = GLOBALS + strlen(name) % 8 * 512;
	*len = 512;
	return refuse();
}
static void function_ok(CUfunction f)
{
	struct thing *t = (struct thing *)f;

	MUST(t && t->live && (t->kind == FUNC || t->kind == KERNEL) && (!t->of || t->of->live));
}
static CUresult m_func_load(CUfunction f)
{
	function_ok(f);
	return CUDA_SUCCESS;
}
static CUresult m_launch(CUfunction f, unsigned int a, unsigned int b, unsigned int c,
			 unsigned int d, unsigned int e, unsigned int g, unsigned int shared,
			 CUstream st, void **params, void **extra)
{
	uint32_t sum = 0;

	(void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)shared, (void)params;
	stream_ok(st);
	function_ok(f);
	for (size_t i = 0; i < *(size_t *)extra[3]; i++)
		sum += ((volatile uint8_t *)extra[1])[i];
	(void)sum;
	return CUDA_SUCCESS;
}
static CUresult m_launch_ex(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	for (unsigned int i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT &&
		    c->attrs[i].value.programmaticEvent.event)
			check(c->attrs[i].value.programmaticEvent.event, EVENT);
	return m_launch(f, 1, 1, 1, 1, 1, 1, 0, c->hStream, params, extra);
}
static CUresult m_tensor_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at,
			       const cuuint64_t *dim, const cuuint64_t *stride,
			       const cuuint32_t *box, const cuuint32_t *step,
			       CUtensorMapInterleave i, CUtensorMapSwizzle s,
			       CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill)
{
	(void)type, (void)at, (void)dim, (void)stride, (void)box, (void)step, (void)i, (void)s;
	(void)l2, (void)fill;
	MUST(current && current->live && rank <= 5 && (uintptr_t)map % 64 == 0);
	memset(map, rank, sizeof(*map));
	return CUDA_SUCCESS;
}
static CUresult m_tensor_address(CUtensorMap *map, void *at)
{
	(void)at;
	MUST(current && current->live && (uintptr_t)map % 64 == 0);
	return CUDA_SUCCESS;
}
static CUresult m_array(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	(void)d;
	MUST(current && current->live);
	return MAKE(ARRAY, current);
}
static CUresult m_array_end(CUarray a)
{
	gone(a, ARRAY);
	return CUDA_SUCCESS;
}
static CUresult m_mipmap_end(CUmipmappedArray a)
{
	gone(a, MIPMAP);
	return CUDA_SUCCESS;
}
static void resource_ok(const CUDA_RESOURCE_DESC *r)
{
	if (r->resType == CU_RESOURCE_TYPE_ARRAY)
		check(r->res.array.hArray, ARRAY);
	else if (r->resType == CU_RESOURCE_TYPE_LINEAR)
		memory_ok(r->res.linear.devPtr, r->res.linear.sizeInBytes);
	else
		MUST(r->resType == CU_RESOURCE_TYPE_PITCH2D ||
		     r->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
}
static CUresult m_tex(CUtexObject *o, const CUDA_RESOURCE_DESC *r, const CUDA_TEXTURE_DESC *t,
		      const CUDA_RESOURCE_VIEW_DESC *v)
{
	(void)t, (void)v;
	resource_ok(r);
	*o = (uintptr_t)thing_new(TEX, current);
	return CUDA_SUCCESS;
}
static CUresult m_tex_end(CUtexObject o)
{
	gone((void *)o, TEX);
	return CUDA_SUCCESS;
}
static CUresult m_graph(CUgraph *out, unsigned int f)
{
	(void)f;
	return MAKE(GRAPH, NULL);
}
static CUresult m_graph_end(CUgraph g)
{
	gone(g, GRAPH);
	return CUDA_SUCCESS;
}
static CUresult m_node_empty(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n)
{
	check(g, GRAPH);
	for (size_t i = 0; i < n; i++)
		check(deps[i], NODE);
	return MAKE(NODE, NULL);
}
static CUresult m_node_kernel(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
			      const CUDA_KERNEL_NODE_PARAMS *p)
{
	function_ok(p->func ? p->func : (CUfunction)p->kern);
	return m_node_empty(out, g, deps, n);
}
static CUresult m_node_copy(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
			    const CUDA_MEMCPY3D *p, CUcontext c)
{
	check(c, CTX);
	m_copy3d(p, (CUstream)1);
	return m_node_empty(out, g, deps, n);
}
static CUresult m_node_set(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
			   const CUDA_MEMSET_NODE_PARAMS *p, CUcontext c)
{
	check(c, CTX);
	if (p->width && p->height)
		memory_ok(p->dst, (p->height > 1 ? p->pitch * (p->height - 1) : 0) +
			  p->width * p->elementSize);
	return m_node_empty(out, g, deps, n);
}
static CUresult m_instantiate(CUgraphExec *out, CUgraph g, unsigned long long f)
{
	(void)f;
	check(g, GRAPH);
	return MAKE(EXEC, NULL);
}
static CUresult m_exec_launch(CUgraphExec x, CUstream st)
{
	check(x, EXEC);
	stream_ok(st);
	return CUDA_SUCCESS;
}
static CUresult m_exec_end(CUgraphExec x)
{
	gone(x, EXEC);
	return CUDA_SUCCESS;
}
static CUresult m_ok(void)
{
	return CUDA_SUCCESS;
}

static void *symbol(void *arg, const char *name)
{
	static const struct { const char *name; void *fn; } have[] = {
		{ "cuCtxSetCurrent", m_set_current }, { "cuCtxCreate_v2", m_ctx_create },
		{ "cuCtxDestroy_v2", m_ctx_destroy }, { "cuDevicePrimaryCtxReset_v2", m_reset },
		{ "cuDevicePrimaryCtxRetain", m_primary },
		{ "cuMemCreate", m_create }, { "cuMemRelease", m_release }, { "cuMemMap", m_map },
		{ "cuMemExportToShareableHandle", m_export },
		{ "cuMemImportFromShareableHandle", m_import },
		{ "cuMemRetainAllocationHandle", m_retain },
		{ "cuMemAddressReserve", m_reserve }, { "cuMemAddressFree", m_unreserve },
		{ "cuMemcpyDtoD_v2", m_copy_now }, { "cuCtxSynchronize", m_ok },
		{ "cuMemUnmap", m_unmap }, { "cuMemSetAccess", m_access },
		{ "cuMemHostRegister_v2", m_pin }, { "cuMemHostUnregister", m_unpin },
		{ "cuMemcpyAsync", m_copy }, { "cuMemcpy3DAsync_v2", m_copy3d },
		{ "cuMemcpyDtoDAsync_v2", m_copy }, { "cuMemsetD8Async", m_set8 },
		{ "cuMemsetD2D32Async", m_set2d32 },
		{ "cuStreamAddCallback", m_callback }, { "cuStreamQuery", m_query },
		{ "cuStreamSynchronize", m_sync }, { "cuStreamCreate", m_stream },
		{ "cuStreamDestroy_v2", m_stream_end }, { "cuStreamGetFlags", m_stream_flags },
		{ "cuStreamWaitEvent", m_wait }, { "cuStreamWaitValue64_v2", m_value64 },
		{ "cuStreamWriteValue64_v2", m_value64 }, { "cuEventCreate", m_event },
		{ "cuEventDestroy_v2", m_event_end }, { "cuEventRecord", m_record },
		{ "cuEventQuery", m_event_query }, { "cuEventSynchronize", m_event_sync },
		{ "cuEventElapsedTime_v2", m_elapsed },
		{ "cuLibraryLoadData", m_load }, { "cuLibraryUnload", m_unload },
		{ "cuLibraryGetKernel", m_kernel }, { "cuModuleLoadDataEx", m_module },
		{ "cuModuleUnload", m_module_unload }, { "cuModuleGetFunction", m_function },
		{ "cuKernelGetFunction", m_derive }, { "cuLibraryGetModule", m_lib_module },
		{ "cuKernelGetParamInfo", m_params }, { "cuFuncGetParamInfo", m_params },
		{ "cuLibraryGetGlobal", m_global }, { "cuModuleGetGlobal_v2", m_global },
		{ "cuFuncLoad", m_func_load }, { "cuLaunchKernel", m_launch },
		{ "cuLaunchKernelEx", m_launch_ex }, { "cuArrayCreate_v2", m_array },
		{ "cuArrayDestroy", m_array_end }, { "cuMipmappedArrayDestroy", m_mipmap_end },
		{ "cuTexObjectCreate", m_tex }, { "cuTexObjectDestroy", m_tex_end },
		{ "cuTensorMapEncodeTiled", m_tensor_tiled },
		{ "cuTensorMapReplaceAddress", m_tensor_address }, { "cuGraphCreate", m_graph }, { "cuGraphDestroy", m_graph_end },
		{ "cuGraphAddEmptyNode", m_node_empty },
		{ "cuGraphAddKernelNode_v2", m_node_kernel },
		{ "cuGraphAddMemcpyNode", m_node_copy }, { "cuGraphAddMemsetNode", m_node_set },
		{ "cuGraphInstantiateWithFlags", m_instantiate },
		{ "cuGraphLaunch", m_exec_launch }, { "cuGraphUpload", m_exec_launch },
		{ "cuGraphExecDestroy", m_exec_end },
		{ "cuGraphKernelNodeSetAttribute", m_ok },
	};

	(void)arg;
	for (size_t i = 0; i < sizeof(have) / sizeof(*have); i++)
		if (!strcmp(have[i].name, name))
			return have[i].fn;
	return NULL;
}

#endif
