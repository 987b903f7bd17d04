/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - the interposer inside: session, threads, and what lies behind virtual handles
 *
 *   cuX() ── stubs by hand or generated ──► records ──► ringbuf ──► proxy
 *              │ object.c   handle → struct        │ send.c
 *              │ space.c    addresses              │
 *              └ answers locally what it knows     └ staging and long replies: arena.c
 *
 * All of this is a cache: the truth lies in the channel (DESIGN 2). Functions return 0 or a CUresult
 * unless they say otherwise. Nothing here exits, aborts, or prints unless SINGVGPU_LOG asks for it.
 *
 * Locks, in the order in which they are taken: session.lock (connecting, contexts), object tables'
 * own (inside object.c), memory_lock (window and arena). None is held while waiting for the proxy,
 * except session.lock, which only cuInit and the life of contexts take.
 */
#ifndef CLIENT_H
#define CLIENT_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_ops.h"
#include "op.h"
#include "proto.h"
#include "ring.h"
#include "stub.h"

#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)
#define LOCAL __attribute__((visibility("hidden")))
#define API __attribute__((visibility("default")))

/* --------------------------------------------------------------------------- session: session.c */

enum session_state {
	SESSION_NONE,		/* cuInit has not been called */
	SESSION_OPEN,
	SESSION_FORKED,		/* a child of the process that called cuInit; it has no device */
};

struct session {
	enum session_state state;	/* lock to change it; read freely */
	pthread_mutex_t lock;
	struct ring *ring;
	const struct sv_shared *shared;
	uint8_t *arena;
	uint32_t late_seen;		/* count of shared->late that has been reported; atomic */
	int visible[SV_DEVICES_MAX];	/* the program's ordinal → the job's; set by cuInit */
	int devices;			/* as many */
	int device;			/* the program's ordinal of the session's device */
};

extern LOCAL struct session session;

/* cuInit's work. CUDA_ERROR_NO_DEVICE, CUDA_ERROR_SYSTEM_NOT_READY no proxy, … */
LOCAL CUresult session_open(void);

/* The first context is to be on another device of the job than the one connected to: reconnect. */
LOCAL CUresult session_move(int device);

/* Nothing of the program's own is mapped in [base, base + len) from here on; 0, -EEXIST or -errno. */
LOCAL int window_reserve(uint64_t base, uint64_t len);
/* A channel is about to be mapped: its place is no longer kept free. */
LOCAL void window_make_way(void);

/* Is there a session that works? NOT_INITIALIZED, or the latched error. */
LOCAL CUresult session_broken(void);
static inline CUresult session_check(void)
{
	if (likely(session.state == SESSION_OPEN))
		return 0;
	return session_broken();
}

/* A result of ringbuf's as a CUresult. */
LOCAL CUresult session_rc(int rc);

/* The description of one of the program's devices, NULL: no such device. */
LOCAL const struct sv_device *session_device(int device);

LOCAL void client_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* --------------------------------------------------------------------------- objects: object.c
 *
 * What a virtual handle stands for. Each kind of object has its struct, which begins with struct
 * obj; types without a struct of their own are plain struct obj. Freed objects are reused for
 * their type only, so a stale pointer never leads to foreign memory.
 */
struct context;

#define OBJ_PLAIN_MAX 192	/* bytes of an object whose type is not client.h's */

struct obj {
	uint64_t handle;	/* 0: free */
	struct context *ctx;	/* where it was made, or NULL */
	struct obj *next;	/* of ctx's objects of all types, or the free list; object.c's lock */
	struct obj **prev;
};

extern LOCAL struct obj **obj_chunks[SV_T_CUstream + 1][4096];

/* The object of a live handle of this type, or NULL. */
static inline void *obj_find(unsigned int type, uint64_t handle)
{
	uint32_t i = sv_handle_index(handle);
	struct obj **chunk, *o;

	if (unlikely(!sv_is_handle(type, handle)))
		return NULL;
	chunk = __atomic_load_n(&obj_chunks[type][i >> 12], __ATOMIC_ACQUIRE);
	if (unlikely(!chunk))
		return NULL;
	o = __atomic_load_n(&chunk[i & 4095], __ATOMIC_ACQUIRE);
	return likely(o && o->handle == handle) ? o : NULL;
}

/* A new object, zeroed but for its header; NULL: out of memory. */
LOCAL void *obj_new(unsigned int type, struct context *ctx);
LOCAL void obj_free(unsigned int type, struct obj *o);

/* Free all objects of a context, calling gone(o, type) for each first. */
LOCAL void obj_free_context(struct context *ctx, void (*gone)(struct obj *o, unsigned int type));

static inline unsigned int obj_type(const struct obj *o)
{
	return o->handle >> 32 & 255;
}

/* -------------------------------------------------------------------------- contexts: context.c */

#define STREAM_ATTRS 5

struct stream {
	struct obj o;
	uint64_t wire;			/* as records name it */
	unsigned int flags;		/* as cuStreamCreate */
	int priority;
	uint64_t id;			/* cuStreamGetId */
	struct capture *capture;	/* the stream is being captured into it; capture.c */
	void *capture_tail;		/* nodes that the next captured one depends on; capture.c */
	uint64_t calls;			/* host functions enqueued; hostfunc.c */
	uint64_t call_word;		/* arena offset of the word that acknowledges them, or 0 */
	struct pool_stream *pool;	/* stream-ordered memory freed here; pool.c */
	CUstreamAttrValue attr[STREAM_ATTRS];	/* streamops.c */
	unsigned int attr_set;		/* bit i: attr[i] is not the default */
	const void *owner;		/* the thread whose own stream this is; thread.c */
	struct stream *own_next;	/* of that thread's own streams */
};

struct context {
	struct obj o;
	unsigned int flags;
	unsigned int api_version;
	bool primary;
	CUdevice device;		/* the program's ordinal */
	int attached;			/* uses of a cuCtxAttach */
	uint64_t id;			/* cuCtxGetId */
	uint64_t limit[16];		/* cuCtxGetLimit, as far as set here; by CUlimit */
	bool live;			/* the proxy has it; not so a primary context nobody retains */
	struct stream legacy;		/* not in the object table; wire SV_STREAM_LEGACY */
};

struct event {
	struct obj o;
	unsigned int flags;		/* CU_EVENT_INTERPROCESS, or 0 */
	bool peers;			/* other processes have it, or may: ipc_event.c */
	bool recorded;
	struct capture *capture;	/* recorded in a capture; capture.c */
	void *capture_tail;
};

/* ---------------------------------------------------------------------------- threads: thread.c */

#define CTX_STACK 64

struct thread {
	struct context *ctx;		/* current: the top of the stack, or NULL */
	struct context *stack[CTX_STACK];
	int depth;
	int per_thread;			/* 0 means this thread's own stream in the call under way */
	bool in_callback;		/* a host function runs: CUDA is forbidden in it */
	int capture_mode;		/* cuThreadExchangeStreamCaptureMode */
	struct stream *own;		/* this thread's own streams, one a context; thread.c */
	void *scratch;
	size_t scratch_len;
};

extern LOCAL __thread struct thread thread __attribute__((tls_model("initial-exec")));

/* The context to work in, and the session is well. CUDA_ERROR_INVALID_CONTEXT, session errors. */
LOCAL CUresult context_current(struct context **out);
extern LOCAL int context_count;	/* live ones: session.lock; without it, a hint */

/* The stream that a handle means in this thread's current context, special values included. */
LOCAL CUresult stream_find(CUstream handle, struct stream **out);
LOCAL CUresult stream_own(struct context *ctx, struct stream **out);	/* the per-thread one */

/* All work of a context, or of a stream, that was enqueued before is done. */
LOCAL CUresult context_sync(struct context *ctx);
LOCAL CUresult stream_sync(struct context *ctx, struct stream *s);

/* Address and flags of a wait for a value, or of a write of one, as far as they can be wrong. */
LOCAL CUresult memop_wait(uint64_t addr, unsigned int size, unsigned int flags);
LOCAL CUresult memop_write(uint64_t addr, unsigned int size, unsigned int flags);

/* The primary context's handle, made if need be (whether it is retained or not). */
LOCAL CUresult context_primary(CUcontext *out, CUdevice dev);

/* -------------------------------------------------------------------------------- records: send.c
 *
 * send_async: a record that is not answered. send_sync: one that is; its status is returned. Both
 * give errors of the session and late errors of earlier records first.
 */
LOCAL CUresult send_async(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen);
LOCAL CUresult send_sync(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen,
			 void *reply, uint32_t cap);

/* The same in two steps, so that several can be under way. */
LOCAL CUresult send_request(struct ring_ticket *t, uint16_t op, const void *a, uint32_t alen,
			    const void *b, uint32_t blen);
LOCAL CUresult send_await(struct ring_ticket *t, void *reply, uint32_t cap);

/* In stream order: into the graph where the stream is captured, else send_async. */
LOCAL CUresult send_on(struct stream *s, uint16_t op, const void *a, uint32_t alen, const void *b,
		       uint32_t blen);

/* A failure that an earlier record's execution has left, reported once; or the latched one. */
LOCAL CUresult send_late(void);

/* Is the context beyond repair? The latched error then; late ones are left for send_late. */
LOCAL CUresult send_latched(void);
static inline CUresult send_broken(void)
{
	if (likely(__atomic_load_n(&session.shared->late, __ATOMIC_RELAXED) >> 32 ==
		   __atomic_load_n(&session.late_seen, __ATOMIC_RELAXED)))
		return CUDA_SUCCESS;
	return send_latched();
}

/* Write what kernels have printed to the program's stdout and stderr. */
LOCAL void send_prints(void);

/* ------------------------------------------------------------------------------ addresses: space.c
 *
 * An address range and the allocations in it. Not thread safe: memory_lock.
 */
struct space;

#define SPACE_HIGH 1u		/* at the high end of the range instead of the low one */

LOCAL struct space *space_new(uint64_t base, uint64_t len);
LOCAL void space_free(struct space *s);

/* A range of len bytes, a multiple of align (a power of two) from 0 on; 0: no room. */
LOCAL uint64_t space_alloc(struct space *s, uint64_t len, uint64_t align, unsigned int flags,
			   void *owner);

/* This very range. -EEXIST something in it is in use. */
LOCAL int space_take(struct space *s, uint64_t addr, uint64_t len, void *owner);

/* The allocation that holds addr: its base, length and owner. false: none. */
LOCAL bool space_find(struct space *s, uint64_t addr, uint64_t *base, uint64_t *len, void **owner);

/* Ask fn of each allocation in order of address until it says true; then true. fn changes nothing. */
LOCAL bool space_each(const struct space *s,
		      bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg);

/* Give the allocation that begins at base back. false: none begins there. */
LOCAL bool space_release(struct space *s, uint64_t base);

/* ------------------------------------------------------------------------------- memory: memory.c */

enum memory_kind {
	MEMORY_DEVICE = 1,	/* cuMemAlloc and the like: granules are mapped as needed */
	MEMORY_POOL,		/* stream ordered; pool.c */
	MEMORY_RESERVED,	/* cuMemAddressReserve; vmm.c says what is mapped */
	MEMORY_HOST,		/* pinned host memory in the arena */
	MEMORY_MANAGED,		/* cuMemAllocManaged, in the arena too */
	MEMORY_REGISTERED,	/* cuMemHostRegister; address is the program's own */
	MEMORY_GLOBAL,		/* a module's variable, in the driver's part of the window */
	MEMORY_GRAPH,		/* of an allocation node; graph_mem.c */
	MEMORY_PEER,		/* another process's; ipc.c */
};

/* An allocation: the owner in a space. */
struct memory {
	enum memory_kind kind;
	uint64_t base, len;	/* len as the program asked for it */
	struct context *ctx;
	unsigned int flags;	/* of the call that made it */
	uint64_t id;		/* CU_POINTER_ATTRIBUTE_BUFFER_ID */
	void *more;		/* of whoever made it */
	bool shown;		/* cuIpcGetMemHandle was asked for it */
};

extern LOCAL pthread_mutex_t memory_lock;
extern LOCAL struct space *memory_window;	/* device addresses of the client's choice */

/* The session has been opened (again): the window. */
LOCAL CUresult memory_init(void);

/*
 * memory_alloc: device memory of kind, mapped; memory_free: without waiting for anything.
 * CUDA_ERROR_OUT_OF_MEMORY by the budget.
 */
LOCAL CUresult memory_alloc(enum memory_kind kind, uint64_t len, uint64_t align, unsigned int place,
			    struct memory **out);
LOCAL void memory_free(struct memory *m);

/* Free all that a context has allocated, in window and arena. */
LOCAL void memory_context_gone(struct context *ctx);

/* Physical bytes that the session may still get: budget less what is mapped and in use. */
LOCAL uint64_t memory_left(void);

/* Charge or return physical memory that VMM calls create. CUDA_ERROR_OUT_OF_MEMORY. */
LOCAL CUresult memory_charge(uint64_t len);
LOCAL void memory_uncharge(uint64_t len);

/* What holds this address: a copy of its description. false: nothing that we know. */
LOCAL bool memory_find(uint64_t addr, struct memory *out);

/* Do len bytes at addr belong to one allocation that a device may use? INVALID_VALUE. */
LOCAL CUresult memory_range(uint64_t addr, uint64_t len);

/* A module's variable is at addr (again: allowed), or its module has gone. */
LOCAL CUresult memory_add_global(uint64_t addr, uint64_t len, void *module);
LOCAL void memory_drop_globals(void *module);

/* ---------------------------------------------------------------------------------- arena: arena.c
 *
 * The client's part of the arena. Ranges are backed, and pinned for the device, before they are
 * given out. Offsets are from the arena's start, as records have them.
 */
LOCAL CUresult arena_init(void);
LOCAL CUresult arena_alloc(uint64_t len, uint64_t align, void *owner, uint64_t *off);
LOCAL void arena_free(uint64_t off);
LOCAL bool arena_find(uint64_t off, uint64_t *base, uint64_t *len, void **owner);
LOCAL bool arena_each(bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg);
static inline void *arena_at(uint64_t off)
{
	return session.arena + off;
}

/* A piece of the arena for one reply or a short text; the same thread may hold several. */
LOCAL void *arena_reply(uint64_t len, uint64_t *off);
LOCAL void arena_reply_done(uint64_t off);

/* --------------------------------------------------------------------------------- staging: stage.c
 *
 * Pageable memory passes through slots of the arena. A slot is busy until the device has stored
 * `value` in its word, or its user gives it back.
 */
struct stage {
	uint64_t off, len;	/* the slot's place and size */
	uint64_t word;		/* arena offset */
	uint64_t value;		/* what the word becomes when the slot is free again */
	unsigned int slot;
};

#define STAGE_SMALL (64u << 10)
#define STAGE_LARGE (2u << 20)

LOCAL void stage_init(void);

/* A slot, perhaps smaller than wanted; waits for the device if all are busy. */
LOCAL CUresult stage_get(uint64_t want, struct stage *out);

/* A record on the stream has been sent that ends with the device's store into the slot's word. */
LOCAL void stage_sent(struct stage *s, const struct context *ctx, const struct stream *on);

/* Nothing that is under way uses the slot. */
LOCAL void stage_put(struct stage *s);

/* --------------------------------------------------------------------------- modules: module.c */

struct image {			/* a CUmodule or CUlibrary */
	struct obj o;
	uint64_t arena;		/* offset of its bytes, or 0 */
	struct function *functions;	/* got from here; module.c's lock */
	struct image *of;	/* a module's library, NULL: it has none */
	struct image *modules;	/* a library's, one for each context that asked; module.c's lock */
	struct image *next;	/* of the same library */
};

struct function {		/* a CUkernel or CUfunction */
	struct obj o;
	struct image *image;
	struct function *next;		/* of the same image, or of the same kernel */
	struct function *derived;	/* a kernel's, one for each context that asked */
	struct function *kernel;	/* what it was derived from, NULL: from nothing */
	const char *name;
	bool prepared;		/* compiled and loaded: a launch does not make the proxy wait */
	int max_threads;	/* CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
	int dynamic_shared;	/* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
	struct sv_func_info *info;
};

/* A CUfunction, or a CUkernel in its place; INVALID_HANDLE. */
static inline struct function *function_find(CUfunction f)
{
	struct function *fn = obj_find(SV_T_CUfunction, (uint64_t)(uintptr_t)f);

	return likely(fn) ? fn : obj_find(SV_T_CUkernel, (uint64_t)(uintptr_t)f);
}

/* Compiled and loaded by the proxy's worker, so that a launch does not make it wait. */
LOCAL CUresult function_prepare(struct context *ctx, struct function *fn);

/* The images, functions and variables of a context are gone with it. */
LOCAL void image_gone(struct image *im);
LOCAL void function_gone(struct function *f);

/* --------------------------------------------------------------------------- launches: launch.c */

#define LAUNCH_ATTRS_MAX 16

/*
 * Check a launch's arguments and lay out what follows the head in a record: attributes (virtual
 * handles in them), then parameters. tail points into the thread's scratch memory.
 */
struct launch {
	struct sv_launch head;
	const void *tail;
	uint32_t tail_len;
	struct function *fn;
};

LOCAL CUresult launch_layout(const CUlaunchConfig *c, struct context *ctx, CUfunction f,
			     void **params, void **extra, struct launch *out);

/* --------------------------------------------------------------------- capture: capture.c, graph.c */

/* Add a record to the graph that the stream is captured into. */
LOCAL CUresult capture_record(struct stream *s, uint16_t op, const void *a, uint32_t alen,
			      const void *b, uint32_t blen);

/* A call that is not allowed while a stream is captured. CUDA_ERROR_STREAM_CAPTURE_… */
LOCAL CUresult capture_unsafe(void);		/* may not be called: thread's capture mode */
LOCAL CUresult capture_sync(struct stream *s);	/* would wait for s (NULL: for everything) */
LOCAL CUresult capture_legacy(struct stream *s);	/* uses s: the legacy stream and captures */

/* Tell the proxy of mappings through which calls may bypass it; bypass.c. */
LOCAL void bypass_check(void);

/* ------------------------------------------------------------------------------ checked arguments */

#define TRY(x) \
	do { \
		CUresult try_ = (x); \
		if (unlikely(try_)) \
			return try_; \
	} while (0)

static inline uint64_t sv_u64(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

#endif
