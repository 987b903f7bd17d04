/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.h - the objects of virtual handles
 *
 * An object's struct begins with struct obj; types without a struct of their own are plain struct obj. Freed objects are
 * reused for their type only, so a stale pointer never leads to memory of another type.
 */
#ifndef OBJECT_H
#define OBJECT_H

#include "process.h"

#define OBJ_PLAIN_MAX 192	/* bytes of an object whose struct is not in object.h */

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

/* What answers to queries have said, and when by the clock of sync.c. Atomic. */
struct polled {
	uint64_t done_at, busy_at;
	uint64_t watch;			/* 0: none */
};

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

	struct polled polled;
	uint64_t synced_at;		/* when it had been waited for; sync.c, atomic */
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
	uint64_t synced_at;		/* as a stream's, of all of it */
};

struct event {
	struct obj o;
	unsigned int flags;		/* CU_EVENT_INTERPROCESS, or 0 */
	bool peers;			/* shared with other processes: ipc_event.c */
	bool recorded;
	bool elsewhere;			/* also recorded by graphs, or by attributes of a launch */
	uint64_t by;			/* the thread that has recorded it last, | EVENT_DONE; sync.c, atomic */
	struct polled polled;
	struct capture *capture;	/* recorded in a capture; captured.c */
	void *capture_tail;
};

#define EVENT_DONE 1u

/* The thread `by` is about to record the event. NULL: what queries hear of it is not remembered. */
static inline void event_begins(struct event *e, const struct thread *by)
{
	__atomic_store_n(&e->by, (uintptr_t)by, __ATOMIC_RELAXED);
	e->recorded = true;
}

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

#endif
