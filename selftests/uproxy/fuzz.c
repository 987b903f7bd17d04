// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz.c - a hostile client's records, over a driver that is as strict as a driver can be
 *
 * An input is a program for a small machine: it says which records come, made of words that are
 * likely to mean something (a handle, an address, a size) or not, what is written into the arena
 * meanwhile, and when the device makes progress. Workers run at once.
 *
 * The driver here aborts when it is given a handle that is not live, an address that is not mapped
 * or pinned, or memory mapped twice: whatever a client does, the proxy must not let that happen.
 * Before each input everything is as at the start: the core's data lies in sections that are copied
 * back, and its memory is freed.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef malloc
#undef calloc
#undef realloc
#undef free

#include "graph.h"
#include "image_i.h"
#include "peer.h"

#define ARENA_LEN	(16u << 20)
#define ARENA_FIRST	(8u << 20)
#define WINDOW		0x200000000000ull
#define GRANULES	64u
#define GLOBALS		0x300000000000ull
#define SPARE		0x310000000000ull	/* what is reserved besides */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(c) do { \
	if (!(c)) { \
		fprintf(stderr, "the driver was given what it must not get: %s (line %d)\n", #c, \
			__LINE__); \
		abort(); \
	} \
} while (0)

/* ---------------------------------------------------------------- memory of the core */

struct block {
	struct block *next, *prev;
	size_t len;
	uint64_t pad;
};

static struct block blocks = { &blocks, &blocks, 0, 0 };

void *fuzz_malloc(size_t len);
void *fuzz_calloc(size_t n, size_t len);
void *fuzz_realloc(void *p, size_t len);
void fuzz_free(void *p);

void *fuzz_malloc(size_t len)
{
	struct block *b = len > 64u << 20 ? NULL : malloc(sizeof(*b) + len);

	if (!b)
		return NULL;
	*b = (struct block){ blocks.next, &blocks, len, 0 };
	b->next->prev = b;
	blocks.next = b;
	return b + 1;
}

void *fuzz_calloc(size_t n, size_t len)
{
	void *p = fuzz_malloc(n * len);

	return p ? memset(p, 0, n * len) : NULL;
}

void fuzz_free(void *p)
{
	struct block *b;

	if (!p)
		return;
	b = (struct block *)p - 1;
	b->next->prev = b->prev;
	b->prev->next = b->next;
	free(b);
}

void *fuzz_realloc(void *p, size_t len)
{
	void *n = fuzz_malloc(len);

	if (n && p) {
		size_t was = ((struct block *)p - 1)->len;

		memcpy(n, p, was < len ? was : len);
	}
	if (n)
		fuzz_free(p);
	return n;
}

/* The map of the window: the same page each time. */
void *fuzz_mmap(void *at, size_t len, int prot, int flags, int fd, off_t off);

void *fuzz_mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
	static uint8_t page[GRANULES];

	(void)at, (void)prot, (void)flags, (void)off;
	if (fd >= 0 || len > sizeof(page))
		return MAP_FAILED;
	return memset(page, 0, sizeof(page));
}

/* ---------------------------------------------------------------- the strict driver */

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
		for (uint64_t g = (at - WINDOW) / SV_GRANULE;
		     g <= (at + len - 1 - WINDOW) / SV_GRANULE; g++)
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
	MUST(in_pins(at, len));
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

/* Reads an image as a driver would: by what it says of itself. */
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
		{ "cuGraphCreate", m_graph }, { "cuGraphDestroy", m_graph_end },
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

/* ---------------------------------------------------------------- the ring's place */

static unsigned int unanswered;

int ring_complete(struct ring *r, uint16_t cpl, uint64_t seq, int32_t status, const void *data,
		  uint32_t len)
{
	(void)r, (void)seq, (void)status;
	MUST(cpl && len <= SINGVGPU_CPL_DATA && (!len || data));
	unanswered--;
	return 0;
}
int ring_log_append(struct ring *r, const struct ring_record *rec, uint16_t op, uint64_t key,
		    const void *data, uint32_t len)
{
	(void)r, (void)rec, (void)op, (void)key, (void)data, (void)len;
	return 0;
}
int ring_log_compact(struct ring *r, ring_log_keep keep, void *arg)
{
	(void)r, (void)keep, (void)arg;
	return 0;
}
size_t ring_log_bytes(const struct ring *r)
{
	(void)r;
	return 0;
}
void ring_advance(struct ring *r)
{
	(void)r;
}
void ring_latch_error(struct ring *r, uint64_t seq, int32_t err)
{
	(void)r, (void)seq;
	MUST(err);
}
void ring_kick(struct ring *r)
{
	(void)r;
}
int ring_peek(struct ring *r, struct ring_record *rec)
{
	(void)r, (void)rec;
	return -EPIPE;
}
int ring_peek_run(struct ring *r, struct ring_record *rec, unsigned int max)
{
	(void)r, (void)rec, (void)max;
	return -EPIPE;
}
void ring_advance_past(struct ring *r, const struct ring_record *rec)
{
	(void)r, (void)rec;
}
int ring_wait(struct ring *r, int64_t ns)
{
	(void)r, (void)ns;
	return -EPIPE;
}
int ring_log_walk(struct ring *r, ring_log_fn fn, void *arg)
{
	(void)r, (void)fn, (void)arg;
	return 0;
}
const char *ring_why(const struct ring *r)
{
	(void)r;
	return "";
}
const char *ring_strerror(int err)
{
	(void)err;
	return "";
}

/* Of files that are not here: session.c, worker.c, log.c, print.c, control.c, replay.c. */
bool control_posted(void)
{
	return false;
}
void control_run(struct sv_session *s)
{
	(void)s;
}
void replay_answer(struct sv_session *s, CUresult status)
{
	(void)s, (void)status;
	MUST(0);
}
int replay_wait(struct sv_session *s, CUresult *status)
{
	(void)s, (void)status;
	MUST(0);
	return -EINVAL;
}
bool worker_idle(void)
{
	return true;
}
void session_fail(struct sv_session *s, int err, const char *why, uint16_t op, uint64_t seq)
{
	(void)seq;
	if (!why)
		fprintf(stderr, "%s ends a session without a name (%d)\n", op_name(op), err);
	MUST(err < 0 && why);
	s->failed = err;
}
void session_error(struct sv_session *s, CUresult r, uint16_t op, uint64_t seq)
{
	(void)s, (void)op, (void)seq;
	MUST(r > 0);
}
int worker_run(void (*fn)(void *arg), void *arg)
{
	fn(arg);
	return 0;
}
int worker_call(const struct hand *h, const struct call *k)
{
	uint8_t *copy = malloc(k->c.len + 1);
	struct call own = *k;
	int rc;

	memcpy(copy, k->c.data, k->c.len);
	own.c.data = copy;
	rc = h->fn ? h->fn(&own) : cuda_dispatch(&own.c);
	if (rc < 0)
		session_fail(own.c.session, rc, own.c.why, own.c.op, own.seq);
	else if (!rc)
		answer_call(&own);
	free(copy);
	return 0;
}
void say(const char *fmt, ...)
{
	(void)fmt;
}
void tell(const char *fmt, ...)
{
	(void)fmt;
}
int peer_show(struct sv_session *s, uint32_t kind, uint64_t va, uint64_t len, int fd,
	      const uint8_t key[16], struct sv_ipc_shown *out)
{
	MUST(kind != SV_IPC_EVENT && len && window_mapped(s, va, len) && fd < 0 && key);
	memset(out, 0x33, sizeof(*out));
	return refuse() ? -ENOMEM : 0;
}
void peer_hide(uint64_t va, uint64_t len)
{
	MUST(va >= WINDOW && len);
}
void peer_hide_at(uint64_t va)
{
	(void)va;
}
bool peer_is_us(const struct sv_ipc_handle *h)
{
	return h->server[0] == 0x33;
}
CUresult peer_ask(const struct sv_ipc_handle *h, const uint8_t key[16],
		  CUresult (*each)(void *arg, int fd), void *arg)
{
	CUresult r = CUDA_SUCCESS;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	(void)key;
	for (uint64_t i = 0; i < sv_ipc_room(h) / SV_GRANULE && !r; i++)
		r = h->secret[0] && i == 2 ? CUDA_ERROR_MAP_FAILED : each(arg, fd);
	close(fd);
	return r;
}
bool freeze_idle(struct sv_session *s)
{
	(void)s;
	return !refuse();
}
void ipc_repin(struct sv_session *s)
{
	(void)s;
}
#define NOT_HERE(_name) \
int _name(struct call *k) \
{ \
	return fails(k, CUDA_ERROR_NOT_SUPPORTED); \
}
NOT_HERE(do_ipc_event_get)
NOT_HERE(do_ipc_event_open)
NOT_HERE(do_ipc_event_end)
NOT_HERE(do_ipc_record)
NOT_HERE(do_ipc_wait)
NOT_HERE(do_ipc_query)
NOT_HERE(do_ipc_sync)
int ring_pass_fd(int sock, int fd)
{
	MUST(fcntl(sock, F_GETFD) >= 0 && fcntl(fd, F_GETFD) >= 0);
	return sock & 1 ? 0 : -EPIPE;
}
bool log_verbose(void)
{
	return false;
}
int do_bypass(struct call *k)
{
	(void)k;
	return 0;
}
void print_pump(struct sv_session *s)
{
	(void)s;
}

/* ------------------------------------------------------------------------------ the machine */

struct program {
	const uint8_t *p, *end;
};

static uint8_t byte(struct program *in)
{
	return in->p < in->end ? *in->p++ : 0;
}

static uint64_t raw(struct program *in, int n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | byte(in);
	return v;
}

static struct sv_session session;
static int pidfd;
static struct uproxy_stat stats;
static uint64_t ctx;

static uint64_t word(struct program *in)
{
	uint8_t what = byte(in), b;
	uint64_t text = 0;

	switch (what & 15) {
	case 0:
		return 0;
	case 1:
		return raw(in, 8);
	case 2:
		return byte(in);
	case 3:
		b = byte(in);
		return sv_handle(b & 31, b >> 5, what >> 7 & 1);
	case 4:
		return WINDOW + SV_GRANULE * (what >> 4) + byte(in);
	case 5:
		return (uintptr_t)session.arena + ARENA_FIRST + 64 * raw(in, 2);
	case 6:
		return ARENA_FIRST + 4096 * byte(in);
	case 7:
		return SV_GRANULE * (what >> 4);
	case 8:
		return what >> 4;
	case 9:
		return 4096ull * (what >> 4);
	case 10:
		text = byte(in);
		return text | (uint64_t)byte(in) << 32;
	case 11:
		return ctx;
	case 12:
		memcpy(&text, "kernel\0", 8);
		return text >> 8 * (what >> 4 & 3);
	case 13:
		return raw(in, 2);
	case 14:
		return ~0ull << (what >> 2 & 60);
	default:
		return ARENA_FIRST + 64 * raw(in, 2);
	}
}

static const uint16_t ops[] = {
	SV_OP_cuDevicePrimaryCtxRetain, SV_OP_cuCtxCreate_v4, SV_OP_cuDevicePrimaryCtxReset_v2,
	SV_OP_cuCtxDestroy_v2, SV_OP_cuStreamSynchronize, SV_OP_cuEventSynchronize,
	SV_OP_cuCtxSynchronize, SV_OP_cuStreamQuery, SV_OP_cuEventQuery, SV_OP_cuStreamDestroy_v2,
	SV_OP_cuMemcpyAsync, SV_OP_cuMemcpy3DAsync_v2, SV_OP_cuLibraryLoadData,
	SV_OP_cuModuleLoadDataEx, SV_OP_cuLibraryUnload, SV_OP_cuModuleUnload,
	SV_OP_cuLibraryGetKernel, SV_OP_cuModuleGetFunction, SV_OP_cuLibraryGetGlobal,
	SV_OP_cuLibraryGetManaged, SV_OP_cuModuleGetGlobal_v2, SV_OP_cuKernelGetFunction,
	SV_OP_cuLibraryGetModule, SV_OP_cuLibraryEnumerateKernels, SV_OP_cuFuncLoad,
	SV_OP_cuLaunchKernel, SV_OP_cuLaunchHostFunc, SV_OP_cuMemCreate, SV_OP_cuMemRelease,
	SV_OP_cuMemMap, SV_OP_cuMemUnmap, SV_OP_cuMemSetAccess, SV_OP_X_MAP, SV_OP_X_UNMAP,
	SV_OP_X_PIN, SV_OP_X_UNPIN, SV_OP_X_PREPARE, SV_OP_X_NEXT_CALL, SV_OP_X_FUNC_INFO,
	SV_OP_X_GRAPH, SV_OP_X_GRAPH_UPDATE, SV_OP_cuGraphLaunch, SV_OP_cuGraphExecDestroy,
	SV_OP_cuStreamCreate, SV_OP_cuEventCreate, SV_OP_cuEventRecord, SV_OP_cuEventDestroy_v2,
	SV_OP_cuEventElapsedTime_v2, SV_OP_cuStreamWaitEvent, SV_OP_cuMemsetD8Async,
	SV_OP_cuMemsetD2D32Async, SV_OP_cuMemcpyDtoDAsync_v2, SV_OP_cuStreamWaitValue64_v2,
	SV_OP_cuStreamWriteValue64_v2, SV_OP_cuArrayCreate_v2, SV_OP_cuArrayDestroy,
	SV_OP_cuTexObjectCreate, SV_OP_cuTexObjectDestroy, SV_OP_cuStreamSetAttribute,
	SV_OP_cuMemExportToShareableHandle, SV_OP_cuMemImportFromShareableHandle,
	SV_OP_cuIpcGetMemHandle, SV_OP_cuIpcOpenMemHandle_v2, SV_OP_X_IPC_MAP,
	SV_OP_cuIpcCloseMemHandle, SV_OP_X_IPC_FORGET,
};

#define NOPS (sizeof(ops) / sizeof(*ops))

static void send(uint16_t op, int answered, const void *data, uint32_t len)
{
	static uint64_t seq;
	struct ring_record rec = { .seq = ++seq, .op = op, .cpl = answered ? 1 : 0, .len = len,
				   .data = data };

	unanswered += answered;
	serve_record(&session, &rec);
}

#define SEND(op, ...) do { \
	__auto_type a_ = __VA_ARGS__; \
	send(op, 1, &a_, sizeof(a_)); \
} while (0)

/* What any client has, so that inputs need not begin with it. */
static void prologue(void)
{
	uint64_t at = ARENA_FIRST;
	struct { struct sv_by_name a; char name[8]; } n = {
		{ .from = sv_handle(SV_T_CUlibrary, 0, 0), .handle = sv_handle(SV_T_CUkernel, 0, 0),
		  .info = at + 8192, .cap = 4096, .name_len = 2 }, "k" };

	ctx = sv_handle(SV_T_CUcontext, 0, 0);
	n.a.ctx = ctx;
	SEND(SV_OP_cuDevicePrimaryCtxRetain, (struct sv_ctx_new){ ctx, 0, 0 });
	SEND(SV_OP_X_MAP, (struct sv_map){ WINDOW, 4 * SV_GRANULE });
	SEND(SV_OP_X_PIN, (struct sv_pin){ at, 65536 });
	SEND(SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){ .ctx = ctx,
		.phStream = sv_handle(SV_T_CUstream, 0, 0) });
	SEND(SV_OP_cuEventCreate, (struct sv_cuEventCreate){ .ctx = ctx,
		.phEvent = sv_handle(SV_T_CUevent, 0, 0) });
	memcpy(session.arena + at, "text", 5);
	SEND(SV_OP_cuLibraryLoadData, (struct sv_image){ .handle = n.a.from, .off = at, .len = 5,
		.kind = SV_IMAGE_ARENA });
	SEND(SV_OP_cuLibraryGetKernel, n);
	MUST(!session.failed && !unanswered);
}

static void device_runs(CUresult status)
{
	struct queued *q = queue;

	queue = NULL;
	queue_end = &queue;
	while (q) {
		struct queued *next = q->next;

		q->fn((CUstream)1, status, q->arg);
		free(q);
		q = next;
	}
}

/* A record that an honest client could send: a and b choose handles and places. Its bytes. */
static uint32_t likely(uint16_t op, uint64_t *data, uint8_t a, uint8_t b)
{
	uint64_t stream = a & 8 ? SV_STREAM_LEGACY : sv_handle(SV_T_CUstream, a & 3, 0);
	uint64_t lib = sv_handle(SV_T_CUlibrary, b & 3, 0);
	uint64_t mod = sv_handle(SV_T_CUmodule, b & 3, 0);
	uint64_t kernel = sv_handle(SV_T_CUkernel, a & 3, 0);
	uint64_t f = sv_handle(SV_T_CUfunction, a & 3, 0);
	uint64_t event = sv_handle(SV_T_CUevent, b & 3, 0), arena = ARENA_FIRST + 4096 * (a & 15);
	uint64_t dev = WINDOW + SV_GRANULE * (a & 15), host = (uintptr_t)session.arena + arena;
	uint64_t phys = sv_handle(SV_T_CUmemGenericAllocationHandle_v1, b & 3, 0);
	uint64_t array = sv_handle(SV_T_CUarray, b & 3, 0);
	uint64_t exec = sv_handle(SV_T_CUgraphExec, b & 3, 0);
	uint64_t none = sv_handle(SV_T_CUcontext, 1 + (a & 1), 0);
	struct sv_by_name named = { ctx, lib, 0, arena, 2048, 3 };

#define IS(...) ({ \
	__auto_type a_ = __VA_ARGS__; \
	memcpy(data, &a_, sizeof(a_)); \
	return sizeof(a_); \
})
	switch (op) {
	case SV_OP_cuDevicePrimaryCtxRetain:
		IS((struct sv_ctx_new){ ctx, 0, 0 });
	case SV_OP_cuCtxCreate_v4:
		IS((struct sv_ctx_new){ none, 0, 0 });
	case SV_OP_cuDevicePrimaryCtxReset_v2:
		IS((struct sv_ctx_end){ ctx });
	case SV_OP_cuCtxDestroy_v2:
		IS((struct sv_ctx_end){ none });
	case SV_OP_cuStreamSynchronize:
	case SV_OP_cuStreamQuery:
		IS((struct sv_sync_on){ ctx, stream });
	case SV_OP_cuEventSynchronize:
	case SV_OP_cuEventQuery:
		IS((struct sv_sync_on){ ctx, event });
	case SV_OP_cuCtxSynchronize:
		IS((struct sv_sync_on){ ctx, 0 });
	case SV_OP_cuStreamDestroy_v2:
		IS((struct sv_stream_end){ stream });
	case SV_OP_cuMemcpyAsync:
		IS((struct sv_copy){ ctx, stream, dev, host, 4096, b & 8 ? arena : 0, b });
	case SV_OP_cuMemcpyDtoDAsync_v2:
		IS((struct sv_cuMemcpyDtoDAsync_v2){ .ctx = ctx, .dstDevice = dev,
			.srcDevice = WINDOW, .ByteCount = 4096, .hStream = stream });
	case SV_OP_cuMemcpy3DAsync_v2:
		IS((struct sv_copy3d){ .ctx = ctx, .stream = stream,
			.dst = { .addr = b & 8 ? 0 : dev, .array = b & 8 ? array : 0, .pitch = 512,
				 .height = 8 },
			.src = { .addr = host, .pitch = 64, .height = 8, .y = 1 },
			.width = 64, .height = 4, .depth = 2 });
	case SV_OP_cuLibraryLoadData:
		IS((struct sv_image){ .handle = lib,
			.kind = b & 8 ? SV_IMAGE_PARTS : SV_IMAGE_ARENA, .off = arena,
			.len = 256, .log_off = ARENA_FIRST + 60000, .info_cap = 64,
			.error_cap = 64 });
	case SV_OP_cuModuleLoadDataEx:
		IS((struct { struct sv_image a; struct sv_jit_opt o; }){
			{ .ctx = ctx, .handle = mod, .kind = SV_IMAGE_ARENA, .n_opt = 1,
			  .off = arena, .len = 256 }, { CU_JIT_MAX_REGISTERS, 0, 32 } });
	case SV_OP_cuLibraryUnload:
		IS((struct sv_image_end){ lib });
	case SV_OP_cuModuleUnload:
		IS((struct sv_image_end){ mod });
	case SV_OP_cuLibraryGetKernel:
		named.handle = kernel;
		IS((struct { struct sv_by_name a; char t[8]; }){ named, "kk" });
	case SV_OP_cuModuleGetFunction:
		named.handle = f;
		named.from = mod;
		IS((struct { struct sv_by_name a; char t[8]; }){ named, "kk" });
	case SV_OP_cuLibraryGetGlobal:
	case SV_OP_cuModuleGetGlobal_v2:
		named.from = op == SV_OP_cuLibraryGetGlobal ? lib : mod;
		named.info = named.cap = 0;
		IS((struct { struct sv_by_name a; char t[8]; }){ named, "gg" });
	case SV_OP_cuKernelGetFunction:
		IS((struct sv_derive){ ctx, kernel, f });
	case SV_OP_cuLibraryGetModule:
		IS((struct sv_derive){ ctx, lib, mod });
	case SV_OP_cuFuncLoad:
		IS((struct sv_cuFuncLoad){ .function = f });
	case SV_OP_X_PREPARE:
		IS((struct sv_prepare){ ctx, b & 8 ? f : kernel });
	case SV_OP_X_FUNC_INFO:
		IS((struct sv_func_info_req){ ctx, b & 8 ? f : kernel, arena, 2048, 0 });
	case SV_OP_cuLaunchKernel:
		IS((struct { struct sv_launch a; CUlaunchAttribute at; uint64_t p[3]; }){
			{ .ctx = ctx, .stream = stream, .function = b & 8 ? f : kernel,
			  .grid = { 1, 1, 1 }, .block = { 32, 1, 1 }, .attrs = 1,
			  .param_bytes = 24 },
			{ .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
			  .value.programmaticEvent = { .event = (CUevent)event } },
			{ dev, host } });
	case SV_OP_cuLaunchHostFunc:
		IS((struct sv_host_func){ ctx, stream, 1 + b, arena });
	case SV_OP_cuMemCreate:
		IS((struct sv_mem_create){ phys, 2 * SV_GRANULE, b & 1 });
	case SV_OP_cuMemRelease:
		IS((struct sv_mem_release){ phys });
	case SV_OP_cuMemExportToShareableHandle:
	case SV_OP_cuMemImportFromShareableHandle:
		IS((struct sv_mem_share){ phys, b, 0 });
	case SV_OP_cuIpcGetMemHandle:
		IS((struct sv_ipc_show){ dev + 512 * (b & 1), SV_GRANULE * (1 + (b >> 6)), { b & 2 } });
	case SV_OP_cuIpcOpenMemHandle_v2:
		IS((struct sv_ipc_fetch){ { SV_IPC_MAGIC, SV_IPC_VERSION, 1 + (b & 1), { 0 }, { b & 4 },
					    512 * (b >> 4), SV_GRANULE * (1 + (a & 3)), 0 }, { 0 } });
	case SV_OP_X_IPC_MAP:
		IS((struct sv_ipc_map){ dev, SV_GRANULE * (1 + (b & 3)), 1 + (a & 3) });
	case SV_OP_X_IPC_FORGET:
		IS((struct sv_ipc_forget){ dev });
	case SV_OP_cuMemMap:
		IS((struct sv_mem_map){ dev, 2 * SV_GRANULE, phys, 0 });
	case SV_OP_cuMemSetAccess:
		IS((struct sv_mem_access){ dev, 2 * SV_GRANULE, 3, 0 });
	case SV_OP_cuMemUnmap:
	case SV_OP_cuIpcCloseMemHandle:
	case SV_OP_X_MAP:
	case SV_OP_X_UNMAP:
		IS((struct sv_map){ dev, SV_GRANULE * (1 + (b & 3)) });
	case SV_OP_X_PIN:
	case SV_OP_X_UNPIN:
		IS((struct sv_pin){ ARENA_FIRST + 65536 + 8192 * (a & 3), 8192 });
	case SV_OP_X_GRAPH:
		IS((struct sv_graph_req){ ctx, exec, arena, 16 + 8 * b, 0 });
	case SV_OP_X_GRAPH_UPDATE:
		IS((struct { struct sv_graph_req a; struct sv_graph g; struct sv_graph_node n; }){
			{ ctx, exec, SV_GRAPH_INLINE, sizeof(struct sv_graph) +
			  sizeof(struct sv_graph_node), 0 }, { .nodes = 1 },
			{ .size = sizeof(struct sv_graph_node), .type = SV_NODE_EMPTY } });
	case SV_OP_cuStreamCreate:
		IS((struct sv_cuStreamCreate){ .ctx = ctx,
			.phStream = sv_handle(SV_T_CUstream, a & 3, 0) });
	case SV_OP_cuEventCreate:
		IS((struct sv_cuEventCreate){ .ctx = ctx, .phEvent = event });
	case SV_OP_cuEventRecord:
		IS((struct sv_cuEventRecord){ .ctx = ctx, .hEvent = event, .hStream = stream });
	case SV_OP_cuEventDestroy_v2:
		IS((struct sv_cuEventDestroy_v2){ .hEvent = event });
	case SV_OP_cuStreamWaitEvent:
		IS((struct sv_cuStreamWaitEvent){ .ctx = ctx, .hStream = stream, .hEvent = event });
	case SV_OP_cuMemsetD8Async:
		IS((struct sv_cuMemsetD8Async){ .ctx = ctx, .dstDevice = dev, .N = 4096,
			.hStream = stream });
	case SV_OP_cuArrayCreate_v2:
		IS((struct sv_cuArrayCreate_v2){ .ctx = ctx, .pHandle = array });
	case SV_OP_cuArrayDestroy:
		IS((struct sv_cuArrayDestroy){ ctx, array });
	case SV_OP_cuTexObjectCreate:
		IS((struct { struct sv_tex_new a; CUDA_RESOURCE_DESC r; CUDA_TEXTURE_DESC t; }){
			{ ctx, 0, 0 }, { .res.array.hArray = (CUarray)array }, { .flags = 0 } });
	default:
		return 0;
	}
}

/* A graph of three nodes into the arena. */
static void write_graph(uint64_t off, uint8_t a, uint8_t b)
{
	struct {
		struct sv_graph g;
		struct sv_graph_node n0;
		struct sv_graph_set set;
		struct sv_graph_node n1;
		struct sv_graph_dep d1;
		struct sv_copy3d copy;
		struct sv_graph_node n2;
		struct sv_launch launch;
		uint64_t p[3];
	} g = {
		.g = { .nodes = 3 },
		.n0 = { .size = sizeof(g.n0) + sizeof(g.set), .index = 0, .type = SV_NODE_SET,
			.ctx = ctx },
		.set = { .dst = WINDOW + a * 16, .width = 64, .height = 1, .elem = 1 },
		.n1 = { .size = sizeof(g.n1) + sizeof(g.d1) + sizeof(g.copy), .index = 1,
			.type = SV_NODE_COPY, .deps = 1, .ctx = ctx },
		.copy = { .dst = { .addr = WINDOW, .pitch = 64, .height = 1 },
			  .src = { .addr = WINDOW + 4096, .pitch = 64, .height = 1 },
			  .width = 64, .height = 1, .depth = 1 },
		.n2 = { .size = sizeof(g.n2) + sizeof(g.launch) + 24, .index = 2,
			.type = SV_NODE_KERNEL, .ctx = ctx },
		.launch = { .ctx = ctx, .function = sv_handle(SV_T_CUkernel, b & 3, 0),
			    .grid = { 1, 1, 1 }, .block = { 1, 1, 1 }, .param_bytes = 24 },
	};

	memcpy(session.arena + ARENA_FIRST + off, &g, sizeof(g));
}

static void write_arena(struct program *in, uint8_t n)
{
	uint64_t off = raw(in, 2) * 8 % (65536 - 1024);
	uint8_t *p = session.arena + ARENA_FIRST + off;

	if (n >> 5 == 7) {
		write_graph(off, byte(in), byte(in));
	} else if (n >> 5 == 6) {	/* a fatbin; parts of one */
		memcpy(p, "\x50\xed\x55\xba\1\0\x10\0\x20\0\0\0\0\0\0\0", 16);
		memcpy(p + 64, (uint64_t[]){ 1, 128, 48 }, 24);
		memcpy(p + 192, p, 16);
	}
	for (int i = 0; i < n % 32; i++) {
		uint8_t at = byte(in);

		((uint64_t *)p)[at % 64] = word(in);
	}
}

static void run(struct program *in)
{
	uint64_t data[128];
	uint8_t op, n, at;
	uint32_t len;

	while (in->p < in->end && !session.failed) {
		op = byte(in);
		n = byte(in);
		if (op == 255) {
			device_runs(n & 1 ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
			continue;
		}
		if (op == 254) {
			fail_with = n;
			continue;
		}
		if (op == 253) {	/* the client writes into its arena */
			write_arena(in, n);
			continue;
		}
		memset(data, 0, sizeof(data));
		len = likely(ops[op % NOPS], data, byte(in), byte(in));
		for (int i = 0; i < n % 8; i++) {
			at = byte(in);
			data[at % 64] = word(in);
		}
		if (n >> 6 & 1)
			len = byte(in) * 8 % sizeof(data) + (n >> 5 & 1) * (byte(in) % 8);
		send(op == 252 ? raw(in, 2) : ops[op % NOPS], n >> 7, data, len);
	}
}

/* ------------------------------------------------------------------------------ from the start */

extern uint8_t __start_svbss[], __stop_svbss[], __start_svdata[], __stop_svdata[];
static uint8_t *saved_bss, *saved_data;
static struct cuda_driver driver;

__attribute__((no_sanitize("address"))) static void move(uint8_t *to, const uint8_t *from, size_t n)
{
	for (; n >= 8; n -= 8, to += 8, from += 8)
		*(volatile uint64_t *)to = *(const uint64_t *)from;
	while (n--)
		*(volatile uint8_t *)to++ = *from++;
}

static void restart(void)
{
	size_t bss = __stop_svbss - __start_svbss, data = __stop_svdata - __start_svdata;

	if (!saved_bss) {
		saved_bss = malloc(bss);
		saved_data = malloc(data);
		move(saved_bss, __start_svbss, bss);
		move(saved_data, __start_svdata, data);
		session.arena = mmap((void *)0x1e0000000000, ARENA_LEN, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		MUST(session.arena != MAP_FAILED);
		cuda_driver_load(&driver, symbol, NULL);
	}
	move(__start_svbss, saved_bss, bss);
	move(__start_svdata, saved_data, data);
	while (blocks.next != &blocks)
		fuzz_free(blocks.next + 1);
	while (queue) {
		struct queued *q = queue;

		queue = q->next;
		free(q);
	}
	queue_end = &queue;
	while (things) {
		struct thing *t = things;

		things = t->next;
		free(t);
	}
	memset(mapped, 0, sizeof(mapped));
	npinned = spare = 0;
	fail_with = 0;
	unanswered = 0;
	current = NULL;
	context_forget();
	memset(session.arena, 0, sizeof(struct sv_shared));
	memset(session.arena + ARENA_FIRST, 0, 65536);
	session = (struct sv_session){ .arena = session.arena, .arena_len = ARENA_LEN,
		.arena_first = ARENA_FIRST, .shared = (void *)session.arena, .stat = &stats,
		.budget = 32 * SV_GRANULE, .client_pidfd = pidfd };
	session.hal.primary = (CUcontext)&primary;
	session.hal.window = WINDOW;
	session.hal.window_len = GRANULES * SV_GRANULE;
	session.hal.drv = driver;
	MUST(!window_init(&session));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };

	if (pidfd <= 0)		/* the client's fds are our own */
		pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	restart();
	prologue();
	run(&in);
	/* Whatever was asked is answered once the device has done all, but host functions. */
	for (int i = 0; i < 8 && queue; i++)
		device_runs(CUDA_SUCCESS);
	hostfunc_release(&session);
	MUST(!unanswered || session.failed);
	return 0;
}
