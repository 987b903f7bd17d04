/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - locks of the stand-ins and of the proxy: their order, and that none is held while a thread waits
 *
 * libintercept/process.h states the rule for the stand-in for libcuda.so.1, docs/locks.md for the proxy. A build
 * with DEBUG_LOCKS checks it: each thread remembers the locks that it holds, takes them in the order of enum
 * lock_rank, never two of one rank, and holds none where it may wait, but for turns (locks of the stand-in for whole
 * calls, process.h). A violation names the locks on stderr and aborts the program. In other builds a lock is a plain
 * mutex, and what is only checked costs nothing.
 *
 * A lock of another kind (of readers and a writer, or between processes) is told to the checker by lock_takes()
 * and lock_drops() of a constant struct lock, which has its rank and is never locked.
 */
#ifndef LOCK_H
#define LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

/* In the order in which they are taken. A process has locks of the stand-ins, or of the proxy. */
enum lock_rank {
	/* the stand-in for libcuda.so.1 */
	LOCK_SESSION = 1,	/* a turn */
	LOCK_MANAGEDVAR,	/* a turn */
	LOCK_SHARE,		/* a turn: vmm.c */
	LOCK_TURNS = LOCK_SHARE,
	LOCK_GRAPHS,
	LOCK_HOSTFUNC,
	LOCK_POOLS,
	LOCK_VMM,
	LOCK_IPC,
	LOCK_MEMORY,
	LOCK_REGISTERED,
	LOCK_ARENA,
	LOCK_STAGE,
	LOCK_IMAGES,
	LOCK_TEXTURES,
	LOCK_TENSOR_MAPS,
	LOCK_CROSSINGS,
	LOCK_OBJECTS,
	LOCK_SEEN,
	LOCK_WATCHES,
	LOCK_PRINTS,
	LOCK_BYPASS,
	LOCK_MAPPED,

	/* the stand-in for libnccl.so.2: none is taken under another one */
	NCCL_LEAF,
	NCCL_COMMS = NCCL_LEAF,
	NCCL_REDOPS = NCCL_LEAF,
	NCCL_LAST_ERROR = NCCL_LEAF,
	NCCL_LEAVE = NCCL_LEAF,

	/* the proxy: what locks are taken under which is in docs/locks.md */
	PROXY_OUTCOMES = 64,
	PROXY_KEPT,
	PROXY_ROOTS,
	PROXY_IMAGES,
	PROXY_WINDOW,
	PROXY_IPC_PINS,
	PROXY_COMMS,
	PROXY_STORE,
	/* under these no lock of this list is taken but the last one */
	PROXY_LEAF,
	PROXY_HANDLES = PROXY_LEAF,
	PROXY_ERROR = PROXY_LEAF,
	PROXY_ANSWER = PROXY_LEAF,
	PROXY_WORKERS = PROXY_LEAF,
	PROXY_TRACE = PROXY_LEAF,
	PROXY_CONTROL = PROXY_LEAF,
	PROXY_HELD = PROXY_LEAF,
	PROXY_PRINT = PROXY_LEAF,
	PROXY_IPC = PROXY_LEAF,
	PROXY_PEER = PROXY_LEAF,
	PROXY_IPC_EVENTS = PROXY_LEAF,
	PROXY_SPARE = PROXY_LEAF,
	PROXY_HOSTFUNC = PROXY_LEAF,
	PROXY_WORDS = PROXY_LEAF,
	PROXY_BOARD = PROXY_LEAF,
	PROXY_TRANSPORT = PROXY_LEAF,
	PROXY_WATCHES = PROXY_LEAF,
	PROXY_OUTSIDE = PROXY_LEAF,
	PROXY_LANES = PROXY_LEAF,
	PROXY_LOADERS = PROXY_LEAF,
	PROXY_HASHER = PROXY_LEAF,
	PROXY_SLICE = PROXY_LEAF,
	PROXY_WRITER = PROXY_LEAF,
	PROXY_MESSAGE,		/* lines for a person, which any thread may write */
};

struct lock {
	pthread_mutex_t mutex;
#ifdef DEBUG_LOCKS
	enum lock_rank rank;
	const char *name;
#endif
};

/* For a lock in a cache line of its own: threads that take different ones do not slow each other down. */
#define LOCK_APART __attribute__((aligned(64)))

#ifdef DEBUG_LOCKS
#define LOCK_INIT(_rank) { PTHREAD_MUTEX_INITIALIZER, _rank, #_rank }

/*
 * lock_check.c; the other libraries of the process find it, too. lock_may_wait: what the caller is about to wait for,
 * or to call that may take any lock; for the message. assert_held: the calling thread has it.
 */
#pragma GCC visibility push(default)
void lock_takes(const struct lock *l);
void lock_drops(const struct lock *l);
void lock_may_wait(const char *what);
void assert_held(const struct lock *l);
#pragma GCC visibility pop
#else
#define LOCK_INIT(_rank) { PTHREAD_MUTEX_INITIALIZER }

static inline void lock_takes(const struct lock *l)
{
	(void)l;
}

static inline void lock_drops(const struct lock *l)
{
	(void)l;
}

static inline void lock_may_wait(const char *what)
{
	(void)what;
}

static inline void assert_held(const struct lock *l)
{
	(void)l;
}
#endif

/* For a lock in memory of the heap. lock_end() when nobody takes it any more. */
#define lock_init(_l, _rank) lock_begin(_l, &(const struct lock)LOCK_INIT(_rank))

static inline void lock_begin(struct lock *l, const struct lock *as)
{
	(void)as;
#ifdef DEBUG_LOCKS
	*l = *as;
#endif
	pthread_mutex_init(&l->mutex, NULL);
}

static inline void lock_end(struct lock *l)
{
	pthread_mutex_destroy(&l->mutex);
}

static inline void lock_take(struct lock *l)
{
	lock_takes(l);
	pthread_mutex_lock(&l->mutex);
}

static inline void lock_drop(struct lock *l)
{
	lock_drops(l);
	pthread_mutex_unlock(&l->mutex);
}

/* Release the lock, wait for `changed`, take it again. The caller holds no other lock but turns. */
static inline void lock_wait(struct lock *l, pthread_cond_t *changed)
{
	lock_drops(l);
	lock_may_wait("another thread");
	pthread_cond_wait(changed, &l->mutex);
	lock_takes(l);
}

#ifdef _GNU_SOURCE
/* The same until a time of CLOCK_MONOTONIC at most: true if it has come. */
static inline bool lock_wait_until(struct lock *l, pthread_cond_t *changed, const struct timespec *until)
{
	int rc;

	lock_drops(l);
	lock_may_wait("another thread");
	rc = pthread_cond_clockwait(changed, &l->mutex, CLOCK_MONOTONIC, until);
	lock_takes(l);
	return rc != 0;
}
#endif

#endif
