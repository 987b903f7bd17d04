/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_i.h - collectives over NVIDIA's NCCL: the transport's state
 *
 *   announce ─► op: announced ── start ──► started ── issue.c ──► issued ── the stream's end ──► done()
 *   join ──► group: nameless ── its id ──► init ──► ready ── leave ──► ending ──► gone
 *                       └──────────────────┴── an error, a cancel ──► broken: ncclCommAbort (reap.c)
 *
 * One thread calls NCCL and the driver, but for the two calls that end a communicator, since these wait (reap.c). It issues
 * operations in the order of the job's log, all of them in one stream: so no two devices issue two operations in opposite order, which would let kernels of NCCL
 * wait for each other for ever. Communicators of NCCL do not block (blocking = 0), since a peer may
 * never come: the thread polls them, and aborts them.
 *
 * A *group* is a communicator of NCCL: one for each communicator of the job, whose ranks are those of the
 * job. When an issued operation is cancelled, its group is aborted, and everything of it that is under
 * way ends with STEP_REMOTE; so does what comes later. NCCL requires that all ranks abort then. A note on the board tells the
 * ranks for which no operation fails.
 *
 * Nobody has run this on a GPU yet.
 */
#ifndef NCCL_I_H
#define NCCL_I_H

#include <pthread.h>
#include <stdbool.h>

#include "transport.h"
#include "hal.h"
#include "lock.h"
#include "nccl_driver.h"
#include "reduce.h"

enum op_state { OP_ANNOUNCED, OP_STARTED, OP_ISSUED };

struct op {
	struct transport *c;
	struct op *next;		/* by order; lock */
	uint64_t order;
	enum op_state state;		/* lock */
	bool cancelled;			/* lock */
	bool reached;			/* the stream has come to its end; lock */
	CUresult status;		/* of the stream */
	struct transport_start s;
	struct transport_part part;
	struct buffer *buffer;		/* part.send is in it */
	uint64_t factor;
	struct group *group;		/* as soon as it is issued */
	enum step_code code;
};

enum group_state { GROUP_NAMELESS, GROUP_INIT, GROUP_READY, GROUP_BROKEN, GROUP_ENDING };

struct group {
	struct group *next;		/* lock */
	uint64_t key;
	uint32_t ranks, rank;
	uint32_t *device;		/* by rank */
	bool left;			/* lock */
	bool noted;			/* our note is on the board */
	enum group_state state;
	enum step_code code;		/* of a broken one */
	ncclComm_t comm;		/* NULL: a single rank needs none, or it has been aborted */
	struct reap *reap;		/* for its end; NULL: that has begun */
	uint64_t aborted_ns;
	bool said;			/* that an abort does not end what is under way */
};

enum reap_state { REAP_DUE, REAP_CALLS, REAP_OVER };

/* A communicator that NCCL ends. The thread's, but for what is written during the call. */
struct reap {
	struct reap *next;		/* lock */
	struct transport *c;
	enum reap_state state;		/* lock */
	ncclComm_t comm;
	bool destroys;
	ncclResult_t result;		/* once it is over */
	uint64_t note;			/* the key of our note that it is broken; 0: none */
	uint32_t ranks, rank;
	uint64_t since_ns;		/* it began; in notes, it was over */
	bool said;			/* that it does not return */
	pthread_t thread;
};

/* What is sent before its receiver is there. Device memory is allocated by the thread. */
struct buffer {
	struct buffer *next;		/* in buffers, or in spare; lock */
	size_t size;
	CUdeviceptr at;
	size_t room;			/* of the device memory; 0: none */
	bool filling, dropped;		/* lock */
	bool failed;			/* it has not what is sent */
	const void *from;
	struct buffer *fill;		/* in fills; lock */
	void (*filled)(void *arg);
	void *arg;
};

struct transport {
	struct lock lock;
	pthread_cond_t news, idle;
	bool kicked, stop;		/* lock */
	bool resetting, forming;	/* lock; forming: a group that is not ready yet, or not broken */
	bool halted;			/* no end of a communicator begins; lock */
	bool departs;			/* the process ends; lock */
	int opened;			/* the thread has begun: 1, or -errno; lock */
	pthread_t thread;
	struct transport_open o;
	struct hal *h;
	struct nccl_driver nccl;
	struct op *ops;			/* by order; lock */
	struct group *groups;		/* lock */
	struct reap *reaps;		/* lock */
	struct reap *notes;		/* of calls that are over, whose notes stay for a while; the thread */
	uint64_t looked_ns;		/* for notes of broken communicators; the thread */
	struct buffer *buffers;		/* in use; lock */
	struct buffer *spare;		/* with device memory; lock */
	struct buffer *fills, **fills_end; /* lock */

	/* The device: the thread. Nothing of it is there before it is needed, and after a reset. */
	bool prepared;
	CUstream stream, copies;	/* of operations, of fills */
	struct reduce *reduce;
	CUdeviceptr scratch, factors;
	struct transport_counters n;		/* atomic */
};

/* Bytes of device memory for what comes from others: longer operations go through it in chunks. */
extern size_t nccl_scratch;
/* What NCCL or the device has not ended after so long is named; a reset or the end no longer waits for it. */
extern uint64_t nccl_patience_ns;
/* A note of a broken communicator stays so long behind our own abort: four looks of the other ranks. */
extern uint64_t nccl_note_ns;

/* nccl.c */
void nccl_say(struct transport *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Wakes the thread. lock */
void nccl_kick(struct transport *c);
/* A thread that leaves signals to the proxy's. 0, -errno. */
int nccl_thread(pthread_t *t, void *(*fn)(void *arg), void *arg, const char *name);
/* Aborts the groups of issued operations that have been cancelled. */
void break_cancelled(struct transport *c);
/* The stream, the kernels. 0, -errno: said. */
int device_prepare(struct transport *c);

/* reap.c */
uint64_t nccl_now_ns(void);
/* Ends the group's communicator: it is destroyed or aborted. note: see struct reap. */
void reap_begin(struct transport *c, struct group *g, bool destroys, uint64_t note);
/* Begins and finishes calls. Whether one is left. */
bool reaps_run(struct transport *c);
/* Takes away the notes that have been there long enough, or all. Whether one is left. */
bool notes_run(struct transport *c, bool all);
/* Calls under way. lock */
uint32_t reaps_count(struct transport *c);
bool nccl_halt(struct transport *c, bool on);

/* group.c */
/* Ends a group for good: NCCL gives back the device. Its operations under way get the code. */
void group_break(struct transport *c, struct group *g, enum step_code code);
void group_free(struct group *g);
/* Makes progress; whether it is to be called again soon. *looks: now and then. Frees groups that are gone. */
bool groups_run(struct transport *c, bool *looks);
/*
 * Waits for what an NCCL call of the group has begun, r: 0, or the code of the operation; the group is
 * broken then.
 */
enum step_code group_settle(struct transport *c, struct group *g, ncclResult_t r, const char *what);

/* issue.c: puts an operation into the stream. 0, or the code with which it ends. */
enum step_code issue(struct transport *c, struct op *op);

/* library.c: finds NCCL. -ENOENT, -ENOSYS. */
int library_load(struct transport *c, struct why *why);

/* together.c: what stands for NCCL where ranks share devices. */
void together_load(struct nccl_driver *d, struct hal *h);

#endif /* NCCL_I_H */
