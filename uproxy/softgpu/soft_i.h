/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soft_i.h - private header of libsoftcuda: the objects behind CUDA's handles and who guards them.
 *
 * One lock, `big`, guards every object, table and queue here. Work of a device (kernels, copies,
 * host functions) runs without it. A handle is the address of its object; obj_live() checks value
 * and type before anything is read through it.
 *
 *   stream_submit() --> op at its stream's tail      dependencies: events, and the legacy stream's
 *           |                                           implicit synchronisation
 *           v  it is the head, no dependency is open
 *        runnable --> stream_run(), by a worker or by a thread that waits
 *           |
 *           v  op_complete() wakes waiters and dependants
 *         done
 */
#ifndef SOFT_I_H
#define SOFT_I_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define SOFT_MAX_DEVICES 16
#define SOFT_CC_MAJOR 13
#define SOFT_CC_MINOR 0
#define SOFT_DRIVER_VERSION CUDA_VERSION	/* at least: SINGVGPU_SOFT_DRIVER */
int soft_driver_version(void);
#define PAGE_2M ((size_t)2 << 20)
#define ROUND_UP(x, a) (((x) + ((a) - 1)) / (a) * (a))

enum obj_type {
	OBJ_CTX = 1, OBJ_STREAM, OBJ_EVENT, OBJ_MODULE, OBJ_FUNC, OBJ_LIB, OBJ_KERNEL, OBJ_GRAPH,
	OBJ_NODE, OBJ_EXEC, OBJ_POOL, OBJ_PHYS, OBJ_ARRAY, OBJ_MIPMAP, OBJ_USER, OBJ_LINK,
	OBJ_TEX, OBJ_SURF,
};

struct obj {
	enum obj_type type;
};

struct ctx;
struct desc;
struct device;
struct event;
struct func;
struct graph;
struct mem;
struct module;
struct node;
struct op;
struct pool;
struct stream;

/* ------------------------------------------------------------------ state.c */

struct tls {
	struct ctx **stack;		/* current context is stack[depth - 1] */
	unsigned int depth, cap;
	bool ptds;			/* inside a _ptsz/_ptds call: stream 0 is this thread's */
	bool in_callback;		/* a host function runs on this thread */
	CUstreamCaptureMode mode;	/* cuThreadExchangeStreamCaptureMode */
	unsigned int captures;		/* non-relaxed captures that began on this thread */
	bool registered;		/* with the key whose destructor ends them */
};

extern __thread struct tls tls;
extern pthread_mutex_t big;

void obj_add(void *obj, enum obj_type type);	/* big */
void obj_del(void *obj);			/* big */
bool obj_live(const void *obj, enum obj_type type);	/* big */
extern bool program_ending;	/* what runs now is ended */
uint64_t next_id(void);
uint64_t now_ns(void);
void tls_register(void);

/* Starts an API call: initialised, not in a forked child, not in a callback. */
CUresult api_enter(void);
/* The same, and the current context, alive and without a latched error. Returns with big held. */
CUresult api_lock_ctx(struct ctx **ctx);
/* The same without a context. Returns with big held. */
CUresult api_lock(void);
static inline CUresult api_unlock(CUresult r)
{
	pthread_mutex_unlock(&big);
	return r;
}

/* ------------------------------------------------------------------ error.c */

bool log_on(void);
void soft_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
CUresult api_unsupported(const char *name, const char *why);

/* ----------------------------------------------------------------- device.c */

struct device {
	int ordinal;
	int slot;			/* which device it is, whatever is visible */
	CUuuid uuid;
	size_t total, used;		/* bytes of memory: used is a multiple of 2 MiB */
	struct ctx *primary;
	struct pool *pool_default, *pool;
	struct heap *heap;		/* memory.c */
};

extern struct device devices[SOFT_MAX_DEVICES];
extern int ndevices;

void device_init(void);
int device_attr(int attr, int dev, int *value);	/* 0, or -EINVAL: no such attribute */

/* ---------------------------------------------------------------- context.c */

#define LIMITS 16

struct ctx {
	struct obj o;
	struct device *dev;
	unsigned int flags;
	bool primary, active;
	unsigned int refs;		/* retains of a primary context */
	unsigned int attached;		/* cuCtxAttach of any other */
	unsigned int place;		/* 0: primary; else the lowest that was free */
	uint64_t id;
	CUresult sticky;		/* the error that ended this context's use of the device */
	struct stream *legacy, *streams;
	struct module *modules;
	size_t limits[LIMITS];
	int cache_config, shared_config;
	uint32_t peers;			/* devices whose memory this context may reach */
	volatile int stop;		/* ends running kernels */
	struct dheap *dheap;		/* launch.c: malloc() in kernels */
	struct ctx *next;
};

extern struct ctx *contexts;

/* For work, which runs without big: has it become pointless? */
static inline CUresult ctx_latched(const struct ctx *ctx)
{
	return __atomic_load_n(&ctx->sticky, __ATOMIC_RELAXED);
}

static inline bool ctx_over(const struct ctx *ctx)
{
	return ctx_latched(ctx) || __atomic_load_n(&ctx->stop, __ATOMIC_RELAXED);
}

struct ctx *ctx_current(void);
CUresult ctx_check(struct ctx *ctx);	/* alive and active? */
CUresult ctx_drain(struct ctx *ctx);	/* waits for all its work; big held, dropped meanwhile */
CUresult ctx_primary_active(struct device *dev, struct ctx **out);
void ctx_fail(struct ctx *ctx, CUresult err);

/* ----------------------------------------------------------------- memory.c */

enum mem_kind {
	MEM_DEVICE, MEM_MANAGED, MEM_HOST, MEM_REGISTERED, MEM_VMM, MEM_POOL, MEM_ARRAY, MEM_MODULE,
	MEM_POOL_FREE, MEM_GRAPH,
};

struct mem {
	uint64_t va;
	size_t len;			/* as asked for */
	size_t span;			/* of address space taken */
	enum mem_kind kind;
	struct device *dev;
	struct ctx *ctx;
	unsigned int flags;
	int prot;			/* PROT_* the device has */
	uint64_t id;
	void *owner;			/* pool, physical memory or module */
	size_t off;			/* of a mapping within its physical memory */
	bool sync_memops;
	void *hints;			/* of its pages, if it is managed: managed.c */
};

struct ext {
	uint64_t va;
	size_t len;
};

struct extents {			/* sorted, disjoint, merged address ranges */
	struct ext *e;
	size_t n, cap;
};

extern uint64_t window_base;
extern size_t window_len;

void memory_init(void);
int ext_put(struct extents *x, uint64_t va, size_t len);
uint64_t ext_take(struct extents *x, size_t len, size_t align);
bool ext_take_at(struct extents *x, uint64_t va, size_t len);
bool in_window(uint64_t va, size_t len);
struct mem *mem_find(uint64_t va);
struct mem *mem_insert(uint64_t va, size_t len, enum mem_kind kind, struct ctx *ctx);
void mem_remove(struct mem *m);
size_t mem_next(uint64_t from, struct mem **out);
CUresult mem_alloc(struct device *dev, struct ctx *ctx, size_t len, size_t align,
		   enum mem_kind kind, struct mem **out);
/* The same at an address that the key says, where there is room. */
CUresult mem_place(struct device *dev, struct ctx *ctx, size_t len, size_t align,
		   enum mem_kind kind, uint64_t key, struct mem **out);
void mem_free(struct mem *m);
void mem_free_ctx(struct ctx *ctx);
extern uint64_t mem_host_gen;		/* changes with the known host memory */
bool mem_device_ok(uint64_t va, size_t len, int prot);
bool mem_is_pageable(uint64_t va, size_t len);
uint64_t window_take(size_t len, size_t align, uint64_t hint);	/* for a caller */
uint64_t window_take_own(size_t len, size_t align);
void window_put(uint64_t va, size_t len);
unsigned long long vmm_handle_types(const struct mem *m);

/* ------------------------------------------------------------------ place.c */

void place_init(void);		/* once there is a window, before anything is taken from it */
uint64_t place_hash(uint64_t seed, const void *p, size_t n);
/* Memory of span bytes where the key says, for a device. 0: no room. big, as all of these. */
uint64_t place_take(struct device *dev, uint64_t key, size_t len, size_t align, size_t *span);
void place_put(struct device *dev, uint64_t va, size_t span);
bool place_is(uint64_t va);
uint64_t place_key(uint64_t va);	/* of what lies at an address */
uint64_t place_textures(void);		/* 2 MiB of addresses for values; 0: none */
uint64_t place_wanted(void);		/* the value that the next handle is to have, or 0 */

/* ------------------------------------------------------------------- pool.c */

void pool_init(struct device *dev);
CUresult pool_alloc(struct pool *p, struct stream *st, size_t len, struct mem **out);
void pool_freed(struct mem *m, struct op *op);		/* a free was put on a stream */
void pool_drained(struct device *dev);			/* trims what a synchronise may trim */
struct pool *pool_of(const struct mem *m);
void pool_mem_graph_free(struct mem *m);
CUresult graph_mem_alloc(struct ctx *ctx, struct desc *d);

/* ------------------------------------------------------------------- desc.c */

enum desc_kind {
	D_EMPTY, D_KERNEL, D_MEMCPY, D_MEMSET, D_HOST, D_CALLBACK, D_CHILD, D_RECORD, D_WAIT,
	D_ALLOC, D_FREE, D_MEMOPS, D_COND, D_GRAPH,
};

struct launch {
	struct func *fn;
	unsigned int grid[3], block[3], cluster[3];
	unsigned int smem;
	bool cooperative;
	void *params;			/* packed as the kernel's parameter space */
	size_t params_len;
	int priority;
};

struct desc {
	enum desc_kind kind;
	union {
		struct launch k;
		struct {
			CUDA_MEMCPY3D c;
			void *staging;		/* copy of a pageable source */
		} copy;
		struct {
			uint64_t dst;
			size_t pitch, width, height;
			unsigned int elem, value;
		} set;
		struct {
			CUhostFn fn;
			void *user;
		} host;
		struct {
			CUstreamCallback fn;
			void *user;
			CUstream stream;
		} cb;
		struct {
			struct graph *child;	/* of a child node, or what a launch runs */
			struct mark *marks;	/* of a launch: its event nodes, in order */
			size_t nmarks, mark;	/* next to run */
		};
		struct event *event;
		struct {
			CUDA_MEM_ALLOC_NODE_PARAMS p;
			struct gmem *gm;
		} alloc;
		struct {
			uint64_t va;
		} free;
		struct {
			unsigned int n, flags;
			CUstreamBatchMemOpParams *ops;
		} memops;
		struct {
			uint64_t handle;	/* address of the value */
			int type;
			unsigned int size;
			struct graph **body;
		} cond;

	};
};

/* What an event node of a graph that has been launched records, or waits for. */
struct mark {
	struct op *op;			/* NULL: nothing to wait for */
	bool record;
};

/* Runs one piece of work, without big. The result latches in the context unless it is 0. */
CUresult desc_run(struct ctx *ctx, struct stream *st, struct op *op, struct desc *d);
void desc_free(struct desc *d);
int desc_copy(struct desc *to, const struct desc *from);	/* 0 or -ENOMEM */
CUresult copy_run(const CUDA_MEMCPY3D *c, const void *staging);
/* Checks everything that NVIDIA checks before a copy or a memset is put on a stream. */
CUresult copy_check(const CUDA_MEMCPY3D *c);
CUresult set_check(const struct desc *d);
CUresult memop_check(const CUstreamBatchMemOpParams *p);

/* ----------------------------------------------------------------- stream.c */

struct op {
	struct op *next;
	struct stream *st;
	struct op **waiters;
	unsigned int nwaiters, cap;
	unsigned int refs, deps;
	bool done, started;
	uint64_t ns;			/* of completion */
	struct desc d;
};

struct stream {
	struct obj o;
	struct ctx *ctx;
	unsigned int flags;
	int priority;
	uint64_t id;
	bool legacy, per_thread, destroyed;
	bool running;			/* somebody executes its head */
	bool queued;			/* on the ready list */
	struct op *head, *tail;
	struct stream *next;		/* of its context */
	struct stream *ready_next;
	struct tls *owner;		/* of a per-thread stream */
	struct capture *cap;		/* graph_capture.c */
	struct node **cap_deps;
	CUgraphEdgeData *cap_edges;
	size_t ncap_deps;
	bool cap_origin;
	CUstreamAttrValue attr[16];
};

struct stream *stream_new(struct ctx *ctx, unsigned int flags, int priority);
void stream_free(struct stream *st);
/* Any CUstream, with the special values 0, 1 and 2, in the current context. */
CUresult stream_get(CUstream h, struct stream **out);
/* stream_get() for work: latched errors, capture state; takes big as api_lock_ctx() does. */
CUresult api_lock_stream(CUstream h, struct stream **out);
/*
 * Puts work on a stream, or into the graph that the stream records. Owns what d points to in any
 * case. With `out`, the caller gets a reference to the op.
 */
CUresult stream_submit(struct stream *st, struct desc *d, struct op **out);
CUresult stream_submit_after(struct stream *st, struct desc *d, struct op **after, size_t n,
			     struct op **out);
CUresult op_wait(struct op *op);	/* drops big while it waits; returns the context's error */
void op_put(struct op *op);
CUresult stream_wait(struct stream *st);
int op_add_dep(struct op *op, struct op *on);
struct op *op_completed(uint64_t ns);	/* an op that is already done */
/* An op outside of any queue: done when somebody says so, which an op of st must do. */
struct op *op_pending(struct stream *st);
void op_finish(struct op *op);
bool stream_idle(struct stream *st);
void stream_flush_dead(struct ctx *ctx);
CUresult capture_context(struct ctx *ctx);
CUresult capture_event_live(struct event *ev);
/* Device printf: kept until the next synchronisation. */
void print_text(const char *text, size_t len);
void print_flush(void);
void print_error(const char *line);	/* to stderr */

/* ------------------------------------------------------------------ event.c */

struct event {
	struct obj o;
	struct ctx *ctx;
	unsigned int flags;
	struct op *rec;			/* the latest record */
	uint64_t cap_id;		/* of the capture it was last recorded in, or 0 */
	struct node **cap_deps;
	size_t ncap_deps;
	unsigned int refs;		/* handle, queued work and graph nodes */
};

void event_put(struct event *ev);
void event_record_op(struct event *ev, struct op *op);
void event_clear_capture(struct event *ev);

/* ----------------------------------------------------------- graph_capture.c */

/* Is this call forbidden on this thread while something records? Ends that recording if so. */
CUresult capture_forbids(void);
CUresult capture_asked(struct stream *st);
CUresult capture_submit(struct stream *st, struct desc *d);
CUresult capture_record(struct stream *st, struct event *ev);
CUresult capture_wait(struct stream *st, struct event *ev);
CUresult capture_legacy(struct ctx *ctx);	/* 906 when a blocking stream of ctx records */
void capture_abandon(struct stream *st);
CUresult capture_state(struct stream *st);	/* 901 when invalidated */

/* ------------------------------------------------------------------ graph.c */

CUresult graph_run(struct ctx *ctx, struct stream *st, struct op *op, struct graph *g);
/* A launch: what its event nodes record is recorded from now on. */
int graph_marks(struct graph *g, struct stream *st, struct desc *d);
CUresult graph_run_marked(struct ctx *ctx, struct stream *st, struct op *op, struct graph *g);
void graph_marks_free(struct desc *d);
void graph_put_ref(struct graph *g);
bool graph_calls_host(const struct graph *g);

/* ----------------------------------------------------------------- module.c */

void module_free_ctx(struct ctx *ctx);

/* ----------------------------------------------------------------- launch.c */

CUresult func_resolve(CUfunction h, struct ctx *ctx, struct func **out);
/*
 * A configuration that does not fit device or kernel. cudart, which launches CUkernels, gets its own
 * cudaErrorInvalidConfiguration (it passes results on as they are), others CUDA_ERROR_INVALID_VALUE.
 */
#define BAD_CONFIG ((CUresult)9)

CUresult launch_run(struct ctx *ctx, struct launch *k);
int launch_params(struct func *f, struct launch *k, void **params, void **extra, CUresult *err);
CUresult launch_check(struct ctx *ctx, struct launch *k);
/* Locks, finds the function and sees that it is compiled, or described; big held on success. */
CUresult api_lock_func(CUfunction h, struct func **out, struct ctx **ctx);
CUresult api_lock_described(CUfunction h, struct func **out, struct ctx **ctx);
void dheap_free(struct ctx *ctx);
bool conds_own(unsigned int i, struct mem **m);	/* graph_cond.c: the value of the i-th handle */
int occupancy(struct func *f, unsigned int threads, size_t smem);	/* blocks on one SM */

/* --------------------------------------------------------------- symbols.c */

void *proc_lookup(const char *name, int version, bool ptsz, bool *known);

#endif
