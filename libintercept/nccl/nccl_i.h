/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_i.h - the stand-in for libnccl.so.2: NCCL's calls become records to the ranks' proxies
 *
 *   ncclAllReduce ── check ──► group.c: a group's queue, or at once ──► core.h: SV_OP_X_COLL ──► proxy
 *   ncclCommInit… ── a communicator, SV_OP_X_COMM_NEW ──► its word in the arena: stands, failed
 *
 * Nothing of NCCL is in the process: no socket, no thread, no device memory. What is known of a
 * communicator is in struct ncclComm; whether it stands or has failed is in its word, which the proxy
 * writes. Sessions, contexts and streams are libcuda.so.1's (core.h).
 *
 * Functions return ncclSuccess or an ncclResult_t; failed() notes its sentence for ncclGetLastError.
 * Nothing here exits, aborts, or prints unless NCCL_DEBUG or SINGVGPU_LOG asks for it. No lock is
 * held where a call may wait.
 */
#ifndef NCCL_I_H
#define NCCL_I_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <nccl.h>

#include <pthread.h>
#include <stdbool.h>

#include "core.h"
#include "cuda_ops.h"
#include "lock.h"
#include "proto.h"

#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)
#define LOCAL __attribute__((visibility("hidden")))
#define API __attribute__((visibility("default")))

#define TRY(x) \
	do { \
		ncclResult_t try_ = (x); \
		if (unlikely(try_)) \
			return try_; \
	} while (0)

/* NCCL's version whose functions work here; names of newer ones are refused (docs/nccl.md). */
#define VERSION_MAJOR	2
#define VERSION_MINOR	28
#define VERSION_PATCH	9

#define TYPES		12	/* of ncclDataType_t: with fp8, which older headers lack */
#define API_MAGIC	0xcafebeefu

/* -------------------------------------------------------------------------------- error.c */

/* Notes a sentence for ncclGetLastError, and returns rc. */
LOCAL ncclResult_t failed(ncclResult_t rc, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* A result of libcuda.so.1 while doing `what`. */
LOCAL ncclResult_t cuda_failed(CUresult rc, const char *what);
static inline ncclResult_t cuda(CUresult rc, const char *what)
{
	return likely(!rc) ? ncclSuccess : cuda_failed(rc, what);
}

/* ncclInvalidArgument if p is NULL. */
static inline ncclResult_t given(const void *p, const char *call, const char *name)
{
	return likely(p) ? ncclSuccess : failed(ncclInvalidArgument, "%s: %s is NULL", call, name);
}

/* -------------------------------------------------------------------------------- core.c */

/* What libcuda.so.1 lends; NULL: it is not singvgpu's. */
extern LOCAL const struct singvgpu_core *core;

/* Finds it. ncclSystemError. */
LOCAL ncclResult_t core_find(void);

/* ------------------------------------------------------------------------------- config.c */

/* What is read of an ncclConfig_t of any version. */
struct config {
	int blocking;			/* 0, 1 */
	int split_share;
};

/* NULL stands for `of`. ncclInvalidArgument: its magic or a value is wrong. */
LOCAL ncclResult_t config_read(const ncclConfig_t *c, const struct config *of, struct config *out);

/* Of a per-call configuration; NULL is none. */
LOCAL ncclResult_t config_check_call(const char *call, const ncclCollConfig_t *c);

extern LOCAL const struct config config_default;

/* --------------------------------------------------------------------------------- comm.c */

#define COMM_MAGIC	0x6d6f63766773ull

struct redop {			/* ncclRedOpCreatePreMulSum; op number ncclNumOps + index */
	bool live;
	uint8_t type, scale;	/* SV_COLL_FACTOR… */
	uint64_t factor;
};

/* Freed ones are kept for reuse, so that a stale handle never leads to other memory. */
struct ncclComm {
	uint64_t magic;			/* COMM_MAGIC; 0: free */
	const struct sv_comm_word *word;
	struct core_place at;
	uint64_t number;		/* its name in records */
	struct core_comm in_graphs;	/* the same, for graphs, as long as it can be used */
	uint64_t word_off;
	int ranks, rank;
	struct config config;
	bool check;			/* NCCL_CHECK_POINTERS */
	bool finalized;			/* SV_OP_X_COMM_END is sent, and nobody waits for its answer */
	bool ending;			/* ncclCommDestroy or ncclCommAbort has begun; atomic */
	bool told;			/* its failure has been noted by ncclCommGetAsyncError; atomic */
	uint64_t hash;			/* of its id */
	struct lock lock;		/* redop, redops */
	struct redop *redop;
	int redops;
	struct ncclComm *next;		/* free ones; comm.c's lock, like all */
	struct ncclComm *all;
};

/* ncclInvalidArgument: it is none. */
static inline ncclResult_t comm_check(const struct ncclComm *c, const char *call)
{
	if (unlikely(!c))
		return failed(ncclInvalidArgument, "%s: comm is NULL", call);
	if (unlikely(c->magic != COMM_MAGIC))
		return failed(ncclInvalidArgument, "%s: comm is no communicator, or has been destroyed",
			      call);
	return ncclSuccess;
}

/* Why it cannot be used: its failure, or ncclInvalidArgument while it is in progress. */
LOCAL ncclResult_t comm_not_ready(const struct ncclComm *c, const char *call);
static inline ncclResult_t comm_ready(const struct ncclComm *c, const char *call)
{
	TRY(comm_check(c, call));
	/* pairs with created() of the proxy */
	if (likely(__atomic_load_n((const uint64_t *)c->word, __ATOMIC_ACQUIRE) == SV_COMM_STANDS &&
		   !c->finalized))
		return ncclSuccess;
	return comm_not_ready(c, call);
}

/* A creation under way. */
struct creation {
	struct ncclComm *comm;
	ncclComm_t *out;
	struct core_ticket ticket;
	bool asked;			/* a request with this ticket is open */
	struct sv_comm_new record;
};

/*
 * comm_new: a communicator that no proxy knows yet, on the device of a place that it takes over.
 * comm_create: has the proxies create all of them, and waits for those that are blocking: all are begun
 * first, so that ranks of one process meet. Those that fail are freed, and their *out is NULL.
 */
LOCAL ncclResult_t comm_new(const char *call, struct core_place *at, int ranks, int rank,
			    const struct config *config, const ncclUniqueId *id, struct creation *out);
LOCAL ncclResult_t comm_create(struct creation *c, int n);

/* Frees one that the proxy does not know, or no longer. */
LOCAL void comm_forget(struct ncclComm *c);

/* ------------------------------------------------------------------------------- leave.c */

/* The process has a communicator on this place's device: its exit with 0 is to be told there. */
LOCAL void leave_watch(const struct core_place *at);

/* ------------------------------------------------------------------------------- split.c */

struct split {
	struct ncclComm *comm;
	int color, key;
	ncclComm_t *out;
	struct config config;
	CUstream stream;		/* of the exchange; NULL: it has not begun */
	uint64_t off;			/* arena: the ranks' votes */
	struct vote *votes;
};

/* Exchanges the votes of all ranks, then creates the new communicators. */
LOCAL ncclResult_t split_all(struct split *s, int n);

/* -------------------------------------------------------------------------------- group.c */

/* A call that has been checked. */
struct coll {
	struct ncclComm *comm;
	CUstream stream;
	struct sv_coll_call call;
};

/* Does it, or adds it to the thread's group, which takes creations over. */
LOCAL ncclResult_t group_coll(const struct coll *c);
LOCAL ncclResult_t group_create(struct creation *c, int n);
LOCAL ncclResult_t group_split(struct split *s);

LOCAL bool group_open(void);	/* is the thread in a group? */

/* A call of the thread has ended with rc; an error makes its group fail. Returns rc. */
LOCAL ncclResult_t group_note(ncclResult_t rc);

/* --------------------------------------------------------------------------------- coll.c */

extern LOCAL const uint8_t type_size[TYPES];	/* bytes of an element */

/* -------------------------------------------------------------------------------- redop.c */

/* The operator and factor of a reduction of this type. ncclInvalidArgument. */
LOCAL ncclResult_t redop_get(struct ncclComm *c, const char *call, int op, int type,
			     struct sv_coll_call *out);

/* ---------------------------------------------------------------------------------- id.c */

LOCAL ncclResult_t id_fresh(ncclUniqueId *out);

/* Whether ranks can meet by an id. ncclRemoteError: the process that made it has ended. */
LOCAL ncclResult_t id_check(const ncclUniqueId *id, const char *call);

/* The id of a record. One that NCCL_COMM_ID made names another communicator at each use by a device. */
LOCAL void id_use(const ncclUniqueId *id, int device, uint8_t out[SV_NCCL_ID_BYTES]);

#endif
