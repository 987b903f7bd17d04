/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h - the state of the process, of its sessions and of its threads: what all rooms of the stand-in know
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
#ifndef PROCESS_H
#define PROCESS_H

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

struct context;
struct stream;

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
	uint64_t called;		/* host functions that have begun: streams/hostfunc.c, atomic */

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

/* Where an offset of the arena is. */
static inline void *arena_at(uint64_t off)
{
	return process.arena + off;
}

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
	struct watches *watches;	/* sync.c; locks.watches to set it; NULL: none yet */
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
		struct lock LOCK_APART watches;	/* sync.c */
	} locks;
};

extern LOCAL struct session sessions[SV_DEVICES_MAX];	/* by the program's ordinal */

static inline int device_of(const struct session *s)
{
	return s - sessions;
}

/* The connected session whose window holds addr, or NULL. */
LOCAL struct session *session_at(uint64_t addr);

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

#define CTX_STACK 64

struct thread {
	struct session *session;	/* that calls work with: the current context's */
	const struct context *named;	/* of a handle of the generated stub under way, or NULL: stub.c */
	struct context *ctx;		/* current: the top of the stack, or NULL */
	struct context *stack[CTX_STACK];
	int depth;
	int per_thread;			/* 0 means this thread's own stream in the call under way */
	unsigned int looks;		/* sync.c: at words of watches, without a request */
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
