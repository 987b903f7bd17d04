/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - locks of the interposer, and the rule that none of them is held while a call waits
 *
 * The head of client.h states the rule. A build with DEBUG_LOCKS checks it: each thread remembers
 * the locks that it holds, takes them in the order of enum lock_rank, and holds none but turns
 * where it may wait. A violation names the locks on stderr and aborts the program. In other
 * builds a lock is a plain mutex.
 */
#ifndef LOCK_H
#define LOCK_H

#include <pthread.h>

/* In the order in which they are taken. */
enum lock_rank {
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
	LOCK_PRINTS,
	LOCK_BYPASS,
	LOCK_MAPPED,
};

/* In a cache line of its own: threads that take different locks do not slow each other down. */
struct lock {
	pthread_mutex_t mutex;
#ifdef DEBUG_LOCKS
	enum lock_rank rank;
	const char *name;
#endif
} __attribute__((aligned(64)));

#ifdef DEBUG_LOCKS
#define LOCK_INIT(_rank) { PTHREAD_MUTEX_INITIALIZER, _rank, #_rank }

/* lock_check.c. lock_may_wait: what the caller is about to wait for, for the message. */
__attribute__((visibility("hidden"))) void lock_takes(const struct lock *l);
__attribute__((visibility("hidden"))) void lock_drops(const struct lock *l);
__attribute__((visibility("hidden"))) void lock_may_wait(const char *what);
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
#endif

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

#endif
