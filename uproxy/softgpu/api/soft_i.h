/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soft_i.h - private header of libsoftcuda: the objects behind CUDA's handles, and their lock
 *
 * One lock, `big`, guards every object, table and queue here; "big" beside a prototype: the caller
 * holds it. Device work (kernels, copies, host functions) runs without it. A handle is the address
 * of its object; obj_live() checks value and type before anything is read through a handle.
 *
 *   stream_submit() --> op at its stream's tail      dependencies: events, and the legacy stream's
 *           |                                           implicit synchronisation
 *           v  it is the head, all its dependencies are done
 *        runnable --> stream_run(), by a worker or by a waiting thread
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
/* Functions of cuda.h are called soft_X, behind those that programs call: trace.c. */
#ifndef SOFT_PUBLIC_NAMES
#include "api_names.h"
#endif
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
#define SOFT_DRIVER_VERSION CUDA_VERSION	/* default and minimum of SINGVGPU_SOFT_DRIVER */
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
	bool registered;		/* with the key whose destructor is thread_exit() */
};

extern __thread struct tls tls;
extern pthread_mutex_t big;

void obj_add(void *obj, enum obj_type type);	/* big */
void obj_del(void *obj);			/* big */
bool obj_live(const void *obj, enum obj_type type);	/* big */
extern bool program_ending;	/* the program exits: running kernels are stopped */
uint64_t next_id(void);
uint64_t soft_now_ns(void);
void tls_register(void);

/* Checks at the start of an API call: initialised, not in a forked child, not in a callback. */
CUresult api_enter(void);
/* The same, and the current context must be alive, without a sticky error. Success: big is held. */
CUresult api_lock_ctx(struct ctx **ctx);
/* api_enter(). Success: big is held. */
CUresult api_lock(void);
/* The same, for a question about a kernel: with profile_context_first the thread must have a current context. */
CUresult api_lock_asked(void);
static inline CUresult api_unlock(CUresult r)
{
	pthread_mutex_unlock(&big);
	return r;
}

/* ---------------------------------------------------------------- profile.c */

struct profile_attr {
	int attr, value;
};

/* What the device shows of itself. */
struct profile {
	const char *name;
	unsigned int cc;		/* compute capability: 90 is 9.0 */
	size_t memory;			/* bytes, unless SINGVGPU_SOFT_MEM says otherwise */
	const struct profile_attr *attrs;	/* where they differ from device.c's, ended by 0; or NULL */
	unsigned char gpcs[8];		/* multiprocessors of each */
	bool strict_clusters;		/* asked how many fit, it demands a size that is allowed */
	bool machine_code;		/* SASS is loaded, and its launches are recorded */
	bool pins_apart;		/* no copy may leave the registration in which it begins */
	bool reset_ends;		/* a context that was reset is gone until it is retained again */
};

extern const struct profile *profile;
/* Options. The first three concern cuMemAddressReserve. */
extern bool profile_no_hints;		/* it ignores the address that it is asked for */
extern bool profile_window_taken;	/* it ignores a request for the first address */
extern bool profile_late_window;	/* it fails without a context */
extern bool profile_late_callbacks;	/* host functions wait 100 us */
/* Microseconds that a call costs, for each handle and each MiB; 0: nothing. */
extern unsigned int profile_slow_maps;	/* cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap */
extern unsigned int profile_slow_pins;	/* cuMemHostRegister */
extern unsigned int profile_slow_reset;	/* cuDevicePrimaryCtxReset */
/* Operations that a stream holds; a call with one more waits. 0: any number */
extern unsigned int profile_queue;
/* Processes with the same file share the device's memory, as far as cuMemCreate goes. "": none */
extern char profile_neighbours[256];

/* Sleeps n times us microseconds; calls that do so wait for each other. Without the lock. */
void profile_cost(unsigned int us, uint64_t n);
extern bool profile_moved_variables;	/* of modules: place_variables() */
extern bool profile_context_first;	/* api_lock_asked() needs a context */
extern bool profile_pageable_waits;	/* copies from host memory that is not pinned wait for their stream */

bool profile_init(void);	/* false: SINGVGPU_SOFT_PROFILE names no profile */

/* ------------------------------------------------------------------ trace.c */

extern int trace_fd;			/* -1: calls are not written down */

/* Says more about the call that this thread is in. */
void trace_detail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
CUresult trace_call(const char *name, CUresult r);	/* returns r; only if trace_fd >= 0 */

/* ------------------------------------------------------------------ error.c */

bool log_on(void);
void soft_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
CUresult api_unsupported(const char *name, const char *why);

/* ----------------------------------------------------------------- device.c */

struct device {
	int ordinal;
	int slot;			/* its number before CUDA_VISIBLE_DEVICES */
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
	unsigned int attached;		/* if not primary: references of cuCtxAttach, and one */
	unsigned int place;		/* 0: primary; else the lowest free number */
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

/* The sticky error, for running work, which does not hold big. */
static inline CUresult ctx_latched(const struct ctx *ctx)
{
	return __atomic_load_n(&ctx->sticky, __ATOMIC_RELAXED);
}

/* Whether running work shall end. */
static inline bool ctx_over(const struct ctx *ctx)
{
	return ctx_latched(ctx) || __atomic_load_n(&ctx->stop, __ATOMIC_RELAXED);
}

struct ctx *ctx_current(void);
CUresult ctx_check(struct ctx *ctx);	/* alive and active? */
CUresult ctx_drain(struct ctx *ctx);	/* waits for all its work; big, dropped while it waits */
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
	int prot;			/* the device's access: PROT_* */
	uint64_t id;
	void *owner;			/* pool, physical memory or module */
	size_t off;			/* of a mapping within its physical memory */
	bool sync_memops;
	void *hints;			/* of managed memory, by page: managed.c */
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

void soft_memory_init(void);
int ext_put(struct extents *x, uint64_t va, size_t len);
uint64_t ext_take(struct extents *x, size_t len, size_t align);
bool ext_take_at(struct extents *x, uint64_t va, size_t len);
bool in_window(uint64_t va, size_t len);
struct mem *mem_find(uint64_t va);
struct mem *mem_insert(uint64_t va, size_t len, enum mem_kind kind, struct ctx *ctx);
void mem_remove(struct mem *m);
size_t mem_next(uint64_t from, struct mem **out);
uint64_t device_room(struct device *dev);	/* what cuMemCreate can have; vmm.c */
CUresult mem_alloc(struct device *dev, struct ctx *ctx, size_t len, size_t align,
		   enum mem_kind kind, struct mem **out);
/* The same, at the address that the key selects (place_take()) if there is room. */
CUresult mem_place(struct device *dev, struct ctx *ctx, size_t len, size_t align,
		   enum mem_kind kind, uint64_t key, struct mem **out);
void mem_free(struct mem *m);
void mem_free_ctx(struct ctx *ctx);
extern uint64_t mem_host_gen;		/* counts changes of the known host memory */
bool mem_device_ok(uint64_t va, size_t len, int prot);
bool mem_is_pageable(uint64_t va, size_t len);
/* Host memory that lies in one pinned or registered allocation as a whole, or in none at all. */
bool mem_pins_whole(uint64_t va, size_t len);
uint64_t window_take(size_t len, size_t align, uint64_t hint);	/* from the low end */
uint64_t window_take_own(size_t len, size_t align);		/* from the high end */
void window_put(uint64_t va, size_t len);
unsigned long long vmm_handle_types(const struct mem *m);

/* ------------------------------------------------------------------ place.c */

void place_init(void);		/* after the window is reserved, before anything is taken from it */
uint64_t place_hash(uint64_t seed, const void *p, size_t n);
/* A device's memory at the address that the key selects; *span: its size. 0: no room. All: big. */
uint64_t place_take(struct device *dev, uint64_t key, size_t len, size_t align, size_t *span);
void place_put(struct device *dev, uint64_t va, size_t span);
bool place_is(uint64_t va);
/* The key for a module's variables, of which hash names the module. */
uint64_t place_variables(uint64_t hash);
uint64_t place_key(uint64_t va);	/* the key that selects va */
uint64_t place_textures(void);		/* 2 MiB of addresses for texture handles; 0: none */
uint64_t place_wanted(void);		/* value requested for the next handle, once; 0: any */

/* ------------------------------------------------------------------- pool.c */

void pool_init(struct device *dev);
void pool_freed(struct mem *m, struct op *op);		/* op frees m; NULL: it is free now */
void pool_drained(struct device *dev);			/* trims to the thresholds */
struct pool *soft_pool_of(const struct mem *m);
void pool_mem_graph_free(struct mem *m);
CUresult graph_mem_alloc(struct ctx *ctx, struct desc *d);

/* ------------------------------------------------------------------- desc.c */

enum desc_kind {
	D_EMPTY, D_KERNEL, D_MEMCPY, D_MEMSET, D_HOST, D_CALLBACK, D_CHILD, D_RECORD, D_WAIT,
	D_ALLOC, D_FREE, D_MEMOPS, D_COND, D_GRAPH,
};

struct launch {
	struct func *fn;
	unsigned int grid[3], block[3];
	unsigned int cluster[3];	/* that the launch gives; 0: none */
	unsigned int clusters_of[3];	/* blocks, found by cluster_launch(); 0: nobody asks for any */
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

/* One launch's event node: the op that it completes (record) or waits for. */
struct mark {
	struct op *op;			/* NULL: nothing to wait for */
	bool record;
};

/* Runs one piece of work, without big. An error becomes the context's sticky error (stream.c). */
CUresult desc_run(struct ctx *ctx, struct stream *st, struct op *op, struct desc *d);
void desc_free(struct desc *d);
/* Whether all that d does is to wait for one word; then *word is its address. */
bool desc_waits(const struct desc *d, uint64_t *word);
bool desc_wait_met(const struct desc *d);	/* of such a one: reads the word */
int desc_copy(struct desc *to, const struct desc *from);	/* 0 or -ENOMEM */
CUresult copy_run(const CUDA_MEMCPY3D *c, const void *staging);
/* The checks of NVIDIA's driver before a copy or a memset is put on a stream. */
CUresult copy_check(const CUDA_MEMCPY3D *c);
/* Checks all but the address; *len: the bytes that it reaches over. */
CUresult set_span(const struct desc *d, size_t *len);
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
	bool running;			/* a thread executes its head */
	bool queued;			/* on the ready list */
	bool held;			/* on the list of those whose heads wait for told words */
	struct op *head, *tail;
	struct stream *next;		/* of its context */
	struct stream *ready_next, *held_next;
	struct tls *owner;		/* of a per-thread stream */
	struct capture *cap;		/* graph/capture.c */
	struct node **cap_deps;
	CUgraphEdgeData *cap_edges;
	size_t ncap_deps;
	bool cap_origin;
	CUstreamAttrValue attr[16];
};

struct stream *soft_stream_new(struct ctx *ctx, unsigned int flags, int priority);
void stream_free(struct stream *st);
/* Any CUstream, with the special values 0, 1 and 2, in the current context. */
CUresult stream_get(CUstream h, struct stream **out);
/* stream_get() for new work: also checks sticky error and capture state. Success: big is held. */
CUresult api_lock_stream(CUstream h, struct stream **out);
/*
 * Puts work on a stream, or into the graph that the stream captures. Takes over what d points to,
 * also on error. If `out` is not NULL, the caller gets a reference to the op.
 */
CUresult stream_submit(struct stream *st, struct desc *d, struct op **out);
CUresult stream_submit_after(struct stream *st, struct desc *d, struct op **after, size_t n,
			     struct op **out);
CUresult op_wait(struct op *op);	/* drops big while it waits; returns the context's error */
void op_put(struct op *op);
CUresult stream_wait(struct stream *st);
struct op *op_completed(uint64_t ns);	/* an op that is already done */
/* An op outside of any queue, done by op_finish(), which an op of st must call. */
struct op *op_pending(struct stream *st);
void op_finish(struct op *op);
bool stream_idle(struct stream *st);
void stream_flush_dead(struct ctx *ctx);
void stream_let_go(void);		/* contexts are over: nothing in them waits for words any more; big */
CUresult capture_context(struct ctx *ctx);
CUresult capture_event_live(struct event *ev);
/* Device printf: buffered until the next synchronisation. */
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

/* ----------------------------------------------------------- graph/capture.c */

/* Fails if captures forbid the call on this thread, and invalidates these captures. */
CUresult capture_forbids(void);
CUresult capture_asked(struct stream *st);
CUresult capture_submit(struct stream *st, struct desc *d);
CUresult soft_capture_record(struct stream *st, struct event *ev);
CUresult capture_wait(struct stream *st, struct event *ev);
CUresult soft_capture_legacy(struct ctx *ctx); /* 906 if a blocking stream of ctx captures */
void capture_abandon(struct stream *st);

/* ------------------------------------------------------------------ graph.c */

CUresult graph_run(struct ctx *ctx, struct stream *st, struct op *op, struct graph *g);
CUresult graph_run_marked(struct ctx *ctx, struct stream *st, struct op *op, struct graph *g);
void graph_marks_free(struct desc *d);
void graph_put_ref(struct graph *g);
bool graph_calls_host(const struct graph *g);

/* ----------------------------------------------------------------- module.c */

void module_free_ctx(struct ctx *ctx);

/* ----------------------------------------------------------------- launch.c */

CUresult func_resolve(CUfunction h, struct ctx *ctx, struct func **out);
/*
 * A configuration that does not fit device or kernel. Launches of a CUkernel return it: cudart
 * passes results on unchanged, and 9 is its cudaErrorInvalidConfiguration. Launches of a CUfunction
 * return CUDA_ERROR_INVALID_VALUE.
 */
#define BAD_CONFIG ((CUresult)9)

CUresult launch_run(struct ctx *ctx, struct launch *k);
int launch_params(struct func *f, struct launch *k, void **params, void **extra, CUresult *err);
CUresult launch_check(struct ctx *ctx, struct launch *k);
/* Find the function and have it compiled, or described. Success: big is held. */
CUresult api_lock_func(CUfunction h, struct func **out, struct ctx **ctx);
CUresult api_lock_described(CUfunction h, struct func **out, struct ctx **ctx);
void dheap_free(struct ctx *ctx);
bool conds_own(unsigned int i, struct mem **m);	/* graph/cond.c: memory of the i-th value */
int occupancy(struct func *f, unsigned int threads, size_t smem);	/* blocks on one SM */

/* ----------------------------------------------------------------- procs.c */


#endif
