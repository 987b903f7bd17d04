/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - internal interfaces of the interposer: session, threads, objects of virtual handles
 *
 *   cuX() ── stubs by hand or generated ──► records ──► ringbuf ──► proxy
 *              │ object.c   handle → struct        │ send.c
 *              │ space.c    addresses              │
 *              └ queries: answered locally         └ staging and long replies: arena.c
 *
 * All of this is a cache: the truth lies in the channel. Functions return 0 or a CUresult unless
 * they say otherwise. Nothing here exits, aborts, or prints unless SINGVGPU_LOG asks for it, but for one
 * line on stderr for each function that is refused (log.h).
 *
 * Locks are struct lock (lock.h), taken in the order of enum lock_rank. They are in the `locks` of
 * the process or of a session; a thread never holds locks of two sessions. No lock is held where a
 * call may wait: for an answer, for room in the ring, or at the gate, which a checkpoint closes
 * until the device is idle. The device may itself wait for a thread of this process: for the one
 * that runs host functions, or for one in a call that is answered locally. A lock held across the
 * wait would stop that thread. So records are sent under a lock by send_try() alone, memory is
 * allocated before the lock is taken, and cleanup that may wait runs after it is dropped. A build
 * with DEBUG_LOCKS aborts a program that breaks this rule.
 *
 * Turns are the exceptions: locks that may be held during a wait. They are taken before all other
 * locks, and only by calls that wait for the proxy anyway; host functions and local answers take
 * none:
 *   process.lock       connecting, and contexts: their objects are made and ended with the proxy's
 *   locks.managedvars  bytes of __managed__ variables: a launch waits until they have been copied
 *   LOCK_SHARE         one call at a time lets the proxy take a file descriptor of this process
 * export_tables.c, which direct mode uses too, has two locks of its own and makes no calls under
 * them.
 */
#ifndef CLIENT_H
#define CLIENT_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attrs.h"
#include "cuda_ops.h"
#include "lock.h"
#include "op.h"
#include "proto.h"
#include "ring.h"
#include "stub.h"

#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)
#define LOCAL __attribute__((visibility("hidden")))
#define API __attribute__((visibility("default")))

/* ---------------------------------------------------------------- session: process.c, session.c */

enum session_state {
	SESSION_NONE,		/* cuInit has not been called */
	SESSION_OPEN,
	SESSION_FORKED,		/* a child of the process that called cuInit; it has no device */
};

/*
 * All state is in struct process or in a struct session, of which the process has one for each
 * device that it works on. Statics of files are the process's, too. These are all of them, each
 * with its reason; test-statics compares the list with the
 * objects:
 *
 *   process.c: process sessions - what this comment is about
 *   process.c: thread - a thread is the program's
 *   session.c: said - as send.c's
 *   object.c: obj_chunks lists used lock - a handle names one object in the process
 *   streams/own.c: key once - threads are the program's
 *   context.c: context_count ids - cuCtxGetId's answer is unique in the process; the count says
 *	whether a call can mix two contexts
 *   graphs/graph.c: changed tables doomed forgotten calls execs - a graph has no device
 *   streams/captured.c: captures capture_live me threads - a capture may reach several devices
 *   graphs/capture.c: ids - as captured.c's
 *   graphs/capture.c: seq - collectives of a graph are posted in the order in which they were captured
 *   modules/module.c: lock - a library is loaded for all devices
 *   modules/image.c: last lock - what is mapped is mapped in the process
 *   memory/host.c: ids - CU_POINTER_ATTRIBUTE_BUFFER_ID is unique in the process
 *   memory/vmm.c: one - who may trace the process is a setting of all of it
 *   bypass.c: lock seen found n_found - what is mapped is mapped in the process
 *   symbols.c: self once tables_once - the library is there once
 *   tables/export_tables.c: drv host hook_bytes hook_words identity_table - its own functions
 *   tables/export_tables.c: locals locals_lock - by handles of contexts
 *   tables/export_tables.c: lock nseen seen - each refused table is reported once
 *   send.c: said - a refusal is told of once in the process
 *   memory/copy.c: failed - who knows of failures is the other library, which is there once
 *   nccl/core.c: core - the other library is there once
 *   nccl/comm.c: lock all unused numbers once - a communicator's number is unique in the process
 *   nccl/group.c: group - a group is a thread's
 *   nccl/error.c: lock last said - ncclGetLastError is the process's; as send.c's
 *   nccl/id.c: used - by device
 *   nccl/leave.c: lock places watched process - by device; a process exits once
 *   nccl/param.c: keys - constants
 *   lock_check.c: held - the locks of a thread, whatever their sessions
 *   ringbuf/produce.c: last - a thread's guess, which is checked with each channel
 */
struct process {
	enum session_state state;	/* lock to change it; read freely */
	int devices;			/* number of entries in visible */
	int visible[SV_DEVICES_MAX];	/* the program's ordinal → the job's; set by cuInit */
	struct sv_device *dev;		/* the job's devices; set by cuInit */
	int driver_version;		/* like dev */
	bool used;			/* a context or an image was made: home stays; atomic */
	bool several;			/* there has been a second session; atomic */
	bool posts;			/* there has been a communicator: core.c; atomic */
	uint64_t seen;			/* the last stamp of seen_ask(); locks.seen */

	/* The arena is in the first session's channel; the proxies of the others map it, too. */
	struct session *home;		/* the first session */
	uint8_t *arena;
	uint64_t arena_len;
	struct chunks *chunks;		/* memory/arena.c */
	struct pools *pools;		/* memory/pool.c: each is on one device */
	struct crossings *crossings;	/* memory/cross.c; NULL: none yet */
	struct calls *calls;		/* streams/hostfunc.c; NULL: none yet */
	struct regions {		/* memory/host.c: registered memory */
		struct memory *at;	/* sorted by address, not overlapping */
		size_t n, room;		/* n: stored atomically, and first read without the lock */
		char arena[80];		/* the file of the arena, as /proc/self/maps names it */
	} regions;
	struct reserved {		/* memory/window.c; len 0: nothing is reserved */
		uint64_t base, len;
	} channel_at, window_at;	/* for the next session */

	struct {			/* graphs/; graph_lock() */
		struct exec *live;
		struct exec *gone;	/* destroyed, but launches may be in flight */
	} execs;

	/* context.c; lock */
	struct context *primary[SV_DEVICES_MAX];	/* by device, like the next; NULL: none yet */
	unsigned int primary_flags[SV_DEVICES_MAX];

	struct lock LOCK_APART lock;
	struct {
		struct lock LOCK_APART memory;	/* windows, granules; owners of allocations in the arena */
		struct lock LOCK_APART registered;	/* memory/host.c */
		struct lock LOCK_APART arena;	/* memory/arena.c */
		struct lock LOCK_APART graphs;	/* captures, and graph_lock() */
		struct lock LOCK_APART pools, crossings, hostfunc, vmm, seen;
	} locks;
};

extern LOCAL struct process process;

/* What the process has of one device: a channel, a proxy behind it, and what is known of both. */
struct session {
	/* What nearly every call reads, in one cache line. */
	struct ring *ring;		/* NULL: not connected; process.lock, and read freely */
	const struct sv_shared *shared;
	uint64_t late_seen;		/* shared->late without SV_LATE_FULL, as it has been reported; atomic */
	struct managedvars *managedvars;	/* modules/managedvar.c; NULL: none yet */

	/* State that each file keeps for the session. */
	struct reserved window_at;	/* memory/window.c */
	struct space *window;		/* device addresses of the client's choice: locks.memory */
	struct granules *granules;	/* memory/memory.c */
	struct stages *stages;		/* memory/stage.c */
	struct peer *peers;		/* memory/ipc.c */
	struct texture **textures;	/* memory/texture.c; NULL: none yet */
	unsigned int limit_changes;	/* of contexts' limits and preferences; atomic */
	struct tensor_maps *tensor_maps;	/* memory/tensor_map.c; NULL: none yet */
	bool calling;			/* its runner is there: streams/hostfunc.c */
	uint64_t seen_word;		/* seen.c; an arena offset, 0: none yet; locks.seen, and read freely */
	int retained;			/* uses of the primary context: context.c, process.lock */

	struct {			/* graphs/; graph_lock() */
		struct graph_mem *all;	/* with nodes, or allocated */
		struct graph_mem *dead;	/* to be freed by graph_mem_sweep() */
		uint64_t used_high, reserved_high;
	} graph_mem;

	/* Each guards the state of one file, which is named unless its name says it. */
	struct {
		struct lock LOCK_APART managedvars, ipc;
		struct lock LOCK_APART stage, textures, tensor_maps;
		struct lock LOCK_APART prints;	/* send.c */
	} locks;
};

extern LOCAL struct session sessions[SV_DEVICES_MAX];	/* by the program's ordinal */

/* Implements cuInit. CUDA_ERROR_NO_DEVICE, CUDA_ERROR_SYSTEM_NOT_READY no proxy, … */
LOCAL CUresult session_open(void);

/*
 * The session of one of the program's devices, connected now if it was not. The first one moves
 * there as long as the process has nothing on its device. process.lock is held. DEVICE_UNAVAILABLE.
 */
LOCAL CUresult session_on(int device, struct session **out);

static inline int device_of(const struct session *s)
{
	return s - sessions;
}

/* The same for a caller without process.lock. A host function may only ask for `here`. NOT_PERMITTED. */
LOCAL CUresult session_make(int device, struct session **out);

/* The connected session whose window holds addr, or NULL. */
LOCAL struct session *session_at(uint64_t addr);

/*
 * window_reserve: keeps the program from mapping anything in [base, base + len). 0, -EEXIST or -errno.
 * window_leave: keeps a window reserved for the next session, which probably has the same one.
 */
LOCAL int window_reserve(struct reserved *window, uint64_t base, uint64_t len);
LOCAL void window_leave(struct reserved *window);
/* Release the addresses reserved for a channel, which is about to be mapped there. */
LOCAL void window_make_way(void);

/* Has there been a communicator? Then collectives may fail, and the proxy parks what waits for them. */
static inline bool process_has_posted(void)
{
	return __atomic_load_n(&process.posts, __ATOMIC_RELAXED);
}

/* 0 after cuInit, or NOT_INITIALIZED. */
static inline CUresult process_check(void)
{
	return likely(process.state == SESSION_OPEN) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* A result of ringbuf as a CUresult. */
LOCAL CUresult session_rc(int rc);

/* The description of one of the program's devices, NULL: no such device. */
LOCAL const struct sv_device *session_device(int device);

LOCAL void client_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* --------------------------------------------------------------------------- objects: object.c
 *
 * The objects of virtual handles. An object's struct begins with struct obj; types without a
 * struct of their own are plain struct obj. Freed objects are reused for their type only, so a
 * stale pointer never leads to memory of another type.
 */
struct context;

#define OBJ_PLAIN_MAX 192	/* bytes of an object whose struct is not in client.h */

struct obj {
	uint64_t handle;	/* 0: free */
	struct context *ctx;	/* where it was made, or NULL */
	struct obj *next;	/* in ctx's list of objects, if any, or the free list; object.c's lock */
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
	/* pairs with fresh() in object.c */
	chunk = __atomic_load_n(&obj_chunks[type][i >> 12], __ATOMIC_ACQUIRE);
	if (unlikely(!chunk))
		return NULL;
	o = __atomic_load_n(&chunk[i & 4095], __ATOMIC_ACQUIRE);
	return likely(o && o->handle == handle) ? o : NULL;
}

/* A new object, zeroed except for its header; NULL: out of memory. */
LOCAL void *obj_new(unsigned int type, struct context *ctx);
LOCAL void obj_free(unsigned int type, struct obj *o);

/* Free all objects of a context, calling gone(o, type) for each first. */
LOCAL void obj_free_context(struct context *ctx, void (*gone)(struct obj *o, unsigned int type));

/*
 * seen.c. The proxy has one object for each index of a type, and parks the end of an object while a collective
 * operation waits for other ranks. So a process that has had a communicator uses an index again when the
 * proxy has seen that end. seen_ask: a stamp for all ends that have been sent so far; 0: it cannot be had now. It may be
 * called with locks held. seen_is: have all proxies seen what the stamp stands for?
 */
LOCAL uint64_t seen_ask(void);
LOCAL bool seen_is(uint64_t stamp);

#define SEEN_AFTER 64	/* ends that are worth a record */

static inline unsigned int obj_type(const struct obj *o)
{
	return o->handle >> 32 & 255;
}

/* -------------------------------------------------------------------------- contexts: context.c */

struct stream {
	struct obj o;
	uint64_t wire;			/* its name in records */
	unsigned int flags;		/* as cuStreamCreate */
	int priority;
	uint64_t id;			/* cuStreamGetId */
	struct capture *capture;	/* the capture that the stream is part of; captured.c */
	void *capture_tail;		/* nodes that the next captured one depends on; captured.c */
	uint64_t calls;			/* host functions enqueued; hostfunc.c */
	uint64_t call_word;		/* arena offset of the word that acknowledges them, or 0 */
	struct pool_stream *pool;	/* stream-ordered memory freed here; pool.c */
	CUstreamAttrValue attr[SV_ATTR_STREAM_IDS];	/* by id; streamops.c */
	unsigned int attr_set;		/* bit i: attr[i] is not the default */
	const void *owner;		/* the thread whose own stream this is; streams/own.c */
	struct stream *own_next;	/* in that thread's list of own streams */
};

struct context {
	struct obj o;
	unsigned int flags;
	unsigned int api_version;
	bool primary;
	struct session *session;	/* its device's, which may not be connected yet */
	int attached;			/* uses of a cuCtxAttach */
	uint64_t id;			/* cuCtxGetId */
	uint64_t limit[16];		/* limits set by the program; by CUlimit */
	bool live;			/* the proxy has it; not so an unretained primary context */
	struct stream legacy;		/* not in the object table; wire SV_STREAM_LEGACY */
};

struct event {
	struct obj o;
	unsigned int flags;		/* CU_EVENT_INTERPROCESS, or 0 */
	bool peers;			/* shared with other processes: ipc_event.c */
	bool recorded;
	struct capture *capture;	/* recorded in a capture; captured.c */
	void *capture_tail;
};

/* --------------------------------------------------------------------------- threads: process.c */

#define CTX_STACK 64

struct thread {
	struct session *session;	/* that calls work with: the current context's */
	const struct context *named;	/* of a handle of the generated stub under way, or NULL: stub.c */
	struct context *ctx;		/* current: the top of the stack, or NULL */
	struct context *stack[CTX_STACK];
	int depth;
	int per_thread;			/* 0 means this thread's own stream in the call under way */
	bool in_callback;		/* a host function runs: CUDA is forbidden in it */
	int capture_mode;		/* cuThreadExchangeStreamCaptureMode */
	struct stream *own;		/* this thread's own streams, one per context; streams/own.c */
	void *scratch;
	size_t scratch_len;
	struct {			/* send.c: send_try() has found no room for this record */
		uint32_t len;
		bool granted;		/* since then: the next one goes */
		struct sv_room a;
		uint8_t head[SV_ROOM_BYTES];
	} room;
};

extern LOCAL __thread struct thread thread __attribute__((tls_model("initial-exec")));

/*
 * The session that the call under way works with: the current context's, or that of the object that
 * the call names (ON). A thread without a context has the first one.
 */
#define here (thread.session)

/* 0 if `here` is connected; NOT_INITIALIZED, CONTEXT_IS_DESTROYED. */
LOCAL CUresult session_find(void);
static inline CUresult session_check(void)
{
	if (likely(process.state == SESSION_OPEN && here && here->ring))
		return CUDA_SUCCESS;
	return session_find();
}

/* Does the proxy of this session look for the end of a step? Then what is free does not stay mapped. */
static inline bool session_at_step(void)
{
	return here && __atomic_load_n(&here->shared->at_step, __ATOMIC_RELAXED);
}

/* The rest of the block works with this session. */
#define ON(_session) \
	__attribute__((cleanup(session_leave), unused)) struct session *before_ = \
		session_enter(_session)
static inline struct session *session_enter(struct session *s)
{
	struct session *before = here;

	here = s;
	return before;
}
static inline void session_leave(struct session **before)
{
	here = *before;
}

/* The current context, if the session works. CUDA_ERROR_INVALID_CONTEXT, session errors. */
LOCAL CUresult context_current(struct context **out);
/*
 * Live contexts of the process: while there is one, a call cannot name objects of two. Exact under
 * process.lock, else a hint.
 */
extern LOCAL int context_count;

/* The stream that a handle stands for in the current context, special values included. */
LOCAL CUresult stream_find(CUstream handle, struct stream **out);
LOCAL CUresult stream_own(struct context *ctx, struct stream **out);	/* the per-thread one */

/* A new stream with flags as of cuStreamCreate; `here` is the context's session. */
LOCAL CUresult stream_new(struct context *ctx, unsigned int flags, struct stream **out);

/*
 * Wait until the work enqueued so far in a context, or on a stream, is done (sync.c). sync_ask: sends a record that asks
 * whether it is, or waits for it; its answer.
 */
LOCAL CUresult context_sync(struct context *ctx);
LOCAL CUresult stream_sync(struct context *ctx, struct stream *s);
LOCAL CUresult sync_ask(uint16_t op, struct context *ctx, uint64_t on);

/* Check address and flags of a wait for a value, or of a write of one. */
LOCAL CUresult memop_wait(uint64_t addr, unsigned int size, unsigned int flags);
LOCAL CUresult memop_write(uint64_t addr, unsigned int size, unsigned int flags);

/* The primary context's handle, which exists even while the context is not retained. */
LOCAL CUresult context_primary(CUcontext *out, CUdevice dev);

/* -------------------------------------------------------------------------------- records: send.c
 *
 * send_async sends a record without an answer; send_sync waits for the answer and returns its
 * status. If the session is broken, or an earlier record has left a deferred error, both return
 * that error and send nothing.
 */
LOCAL CUresult send_async(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen);
LOCAL CUresult send_sync(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen,
			 void *reply, uint32_t cap);

/* send_sync in two steps, so that several requests can be in flight. */
LOCAL CUresult send_request(struct ring_ticket *t, uint16_t op, const void *a, uint32_t alen,
			    const void *b, uint32_t blen);
LOCAL CUresult send_await(struct ring_ticket *t, void *reply, uint32_t cap);

/*
 * send_async for a caller that holds a lock. Where send_async would wait, send_try sends nothing
 * and returns SEND_AGAIN. The caller then drops the lock and calls send_again(), which waits for
 * room for a record of len bytes; where it returns true the caller starts over.
 *
 *	do {
 *		lock_take(&lock);
 *		rc = … send_try(…) …;
 *		lock_drop(&lock);
 *	} while (send_again(&rc, sizeof(a)));
 */
#define SEND_AGAIN ((CUresult)(CUDA_ERROR_UNKNOWN + 1))	/* never returned to a program */
LOCAL CUresult send_try(uint16_t op, const void *a, uint32_t alen);
LOCAL bool send_again_slow(CUresult *rc, uint32_t len);
static inline bool send_again(CUresult *rc, uint32_t len)
{
	return unlikely(*rc == SEND_AGAIN) && send_again_slow(rc, len);
}

/* The sticky error, or a deferred error of an earlier record, which is reported once. */
LOCAL CUresult send_late(void);

/* The sticky error, or 0; deferred errors are left for send_late. */
LOCAL CUresult send_latched(void);
static inline CUresult send_broken(void)
{
	if (likely(__atomic_load_n(&here->shared->late, __ATOMIC_RELAXED) >> 32 ==
		   __atomic_load_n(&here->late_seen, __ATOMIC_RELAXED)))
		return CUDA_SUCCESS;
	return send_latched();
}

/* ------------------------------------------------------------------------------ addresses: space.c
 *
 * An address range and the allocations in it. Not thread safe: the caller holds its own lock.
 */
struct space;

#define SPACE_HIGH 1u		/* allocate at the high end of the range */

LOCAL struct space *space_new(uint64_t base, uint64_t len);
LOCAL void space_free(struct space *s);

/* Allocate len bytes at a multiple of align (a power of two). 0: no room. */
LOCAL uint64_t space_alloc(struct space *s, uint64_t len, uint64_t align, unsigned int flags,
			   void *owner);

/* Allocate exactly this range. -EEXIST something in it is in use. */
LOCAL int space_take(struct space *s, uint64_t addr, uint64_t len, void *owner);

/* The allocation that holds addr: its base, length and owner. false: none. */
LOCAL bool space_find(struct space *s, uint64_t addr, uint64_t *base, uint64_t *len, void **owner);

/* Call fn for each allocation, by address, until it returns true: then true. fn changes nothing. */
LOCAL bool space_each(const struct space *s,
		      bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg);

/* Change the owner of the allocation that begins at base. */
LOCAL void space_own(struct space *s, uint64_t base, void *owner);

/* Free the allocation that begins at base. false: none begins there. */
LOCAL bool space_release(struct space *s, uint64_t base);

/* ------------------------------------------------------------------------------- memory: memory.c */

enum memory_kind {
	MEMORY_DEVICE = 1,	/* cuMemAlloc and the like: granules are mapped as needed */
	MEMORY_POOL,		/* stream ordered; pool.c */
	MEMORY_RESERVED,	/* cuMemAddressReserve; vmm.c has the mappings in it */
	MEMORY_HOST,		/* pinned host memory in the arena */
	MEMORY_MANAGED,		/* cuMemAllocManaged, in the arena too */
	MEMORY_REGISTERED,	/* cuMemHostRegister; address is the program's own */
	MEMORY_GLOBAL,		/* a module's variable, in the driver's part of the window */
	MEMORY_GRAPH,		/* of an allocation node; graphs/mem.c */
	MEMORY_PEER,		/* of another process; ipc.c */
};

/* An allocation: the owner in a space. */
struct memory {
	enum memory_kind kind;
	uint64_t base, len;	/* len as the program asked for it */
	struct context *ctx;
	struct session *session;	/* the device that has it; NULL: it is in the arena */
	unsigned int flags;	/* of the call that made it */
	uint64_t id;		/* CU_POINTER_ATTRIBUTE_BUFFER_ID */
	void *more;		/* private data of the file that made it */
	bool shown;		/* exported by cuIpcGetMemHandle */
};

/*
 * memory_alloc: mapped device memory of this kind; CUDA_ERROR_OUT_OF_MEMORY over the budget.
 * memory_free: does not wait for work on the device that uses it.
 */
LOCAL CUresult memory_alloc(enum memory_kind kind, uint64_t len, uint64_t align, unsigned int place,
			    struct memory **out);
LOCAL void memory_free(struct memory *m);

/* Bytes of physical memory that the session may still use: budget minus memory in use. */
LOCAL uint64_t memory_left(void);

/* Charge to the budget, or return, physical memory of VMM calls. CUDA_ERROR_OUT_OF_MEMORY. */
LOCAL CUresult memory_charge(uint64_t len);
LOCAL void memory_uncharge(uint64_t len);

/* A copy of the description of the allocation that holds addr. false: none known. */
LOCAL bool memory_find(uint64_t addr, struct memory *out);

/* Can the device of `here` reach it? */
static inline bool memory_is_here(const struct memory *m)
{
	return !m->session || m->session == here;
}

/* 0 if len bytes at addr lie in one allocation that the device can reach, else INVALID_VALUE. */
LOCAL CUresult memory_range(uint64_t addr, uint64_t len);

/* Register a module's variable at addr (again: allowed), or forget all variables of a module. */
LOCAL CUresult memory_add_global(uint64_t addr, uint64_t len, void *module);
LOCAL void memory_drop_globals(void *module);

/* ---------------------------------------------------------------------------------- arena: arena.c
 *
 * The client's part of the arena. Ranges are backed, and pinned for the device, before they are
 * allocated: allocating and freeing may wait. Offsets count from the arena's start, as in records.
 */
LOCAL CUresult arena_alloc(uint64_t len, uint64_t align, void *owner, uint64_t *off);
LOCAL CUresult arena_zeroed(uint64_t len, uint64_t align, uint64_t *off);	/* the bytes are 0 */
LOCAL void arena_free(uint64_t off);
LOCAL void arena_own(uint64_t off, void *owner);	/* new owner of the allocation at off */
LOCAL bool arena_find(uint64_t off, uint64_t *base, uint64_t *len, void **owner);
LOCAL bool arena_each(bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg);
static inline void *arena_at(uint64_t off)
{
	return process.arena + off;
}

/* Zeroed arena memory for one reply or a short text; a thread may hold several. */
LOCAL void *arena_reply(uint64_t len, uint64_t *off);
LOCAL void arena_reply_done(uint64_t off);

/* --------------------------------------------------------------------------------- staging: stage.c
 *
 * Copies of pageable memory pass through staging slots in the arena. A slot is busy until the
 * device has stored `value` in the slot's word, or its user calls stage_put().
 */
struct stage {
	uint64_t off, len;	/* the slot's place and size */
	uint64_t word;		/* arena offset */
	uint64_t value;		/* the word has this value when the slot is free again */
	unsigned int slot;
	struct stages *set;
};

#define STAGE_SMALL (64u << 10)
#define STAGE_LARGE (2u << 20)

/* A slot of want bytes or fewer; waits for the device if all are busy. */
LOCAL CUresult stage_get(uint64_t want, struct stage *out);

/* Called after sending, on this stream, the record that stores into the slot's word. */
LOCAL void stage_sent(struct stage *s, const struct context *ctx, const struct stream *on);

/* Free a slot that no record in flight uses. */
LOCAL void stage_put(struct stage *s);

/* Its copy to the host was answered with an error, and may come yet: its stream frees it behind that. */
LOCAL void stage_give_up(struct stage *s, const struct context *ctx, uint64_t stream);

/* --------------------------------------------------------------------------- modules: module.c */

struct image {			/* a CUmodule or CUlibrary */
	struct obj o;
	uint32_t in;		/* sessions that have a library, by device; process.lock, read freely */
	struct image_source *source;	/* a library's, to load it for another device: image.c */
	uint64_t arena;		/* offset of its bytes, or 0 */
	struct function *functions;	/* looked up in this image; module.c's lock */
	struct image *of;	/* a module's library, or NULL */
	struct image *modules;	/* a library's modules, at most one per context; module.c's lock */
	struct image *next;	/* module of the same library */
};

#define VERDICT_LISTS 4u

struct function {		/* a CUkernel or CUfunction */
	struct obj o;
	struct image *image;
	struct function *next;		/* of the same image, or of the same kernel */
	struct function *derived;	/* a kernel's functions, at most one per context */
	struct function *kernel;	/* the kernel that it was derived from, or NULL */
	const char *name;
	uint64_t prepared;	/* the last context in which it was prepared: its handle */
	uint32_t in;		/* sessions that have a kernel; like its library's */
	uint64_t set;		/* attributes that the program has set; module.c's lock */
	int max_threads;	/* CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
	int dynamic_shared;	/* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
	struct sv_func_info *info;
	struct verdict_entry *verdicts[VERDICT_LISTS];	/* what the driver has answered: verdict.c */
	unsigned int changes;		/* of its attributes, or of its functions' */
};

/* An answer of the driver about a function; `about`, of len bytes, is what was asked. */
struct verdict {
	uint64_t changes;
	const void *about;
	uint32_t len;
	uint16_t op, list;
	CUresult rc;
	int value;
};

/*
 * verdict_about: a question, to be made before the driver is asked. verdict_find: fills in the
 * answer, if it is known. verdict_keep: copies both. verdict_free: when the function ends.
 * verdict_limits_change: makes all answers void.
 */
LOCAL struct verdict verdict_about(const struct function *f, uint16_t op, const void *about,
				   uint32_t len);
LOCAL bool verdict_find(const struct function *f, struct verdict *v);
LOCAL void verdict_keep(struct function *f, const struct verdict *v);
LOCAL void verdict_free(struct function *f);
static inline void verdict_limits_change(void)
{
	__atomic_add_fetch(&here->limit_changes, 1, __ATOMIC_RELEASE);
}

/* The function of a CUfunction, or of a CUkernel passed in its place. NULL: neither. */
static inline struct function *function_find(CUfunction f)
{
	struct function *fn = obj_find(SV_T_CUfunction, (uint64_t)(uintptr_t)f);

	return likely(fn) ? fn : obj_find(SV_T_CUkernel, (uint64_t)(uintptr_t)f);
}

/*
 * Before a launch in the context: has the proxy's worker compile and load it, so that the launch does
 * not block the proxy, and the log knows when its library came into the context. function_load: the
 * latter alone.
 */
LOCAL CUresult function_prepare(struct context *ctx, struct function *fn);
LOCAL CUresult function_load(struct context *ctx, struct function *fn);
static inline CUresult function_ready(struct context *ctx, struct function *fn)
{
	return likely(fn->prepared == ctx->o.handle) ? CUDA_SUCCESS : function_prepare(ctx, fn);
}

/*
 * Libraries and kernels have no context. If o is one, image_here loads it for the device of `here`,
 * unless that device has it. Objects of other types are left alone.
 */
LOCAL CUresult image_here(const struct obj *o);

/* --------------------------------------------------------------------------- launches: launch.c */

#define LAUNCH_ATTRS_MAX 16

/*
 * Check a launch's arguments and lay out the record's tail, which follows its head: attributes
 * (with virtual handles), then parameters. tail points into the thread's scratch memory.
 */
struct launch {
	struct sv_launch head;
	const void *tail;
	uint32_t tail_len;
	struct function *fn;
};

LOCAL CUresult launch_layout(const CUlaunchConfig *c, struct context *ctx, CUfunction f,
			     void **params, void **extra, struct launch *out);

/* Report to the proxy the mappings through which calls may bypass it; bypass.c. */
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
