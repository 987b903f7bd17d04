/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - the transport below collective operations: moves their data between the devices of a job
 *
 *   uproxy/comm/ ── comm_start: an operation that all its members have posted ──► a comm_driver
 *        ▲                                                                          │ other devices'
 *        └──────────────── done(arg, code): this device's part has ended ◄──────────┘ ends
 *
 * A transport has one end, a struct comm, in each proxy. All devices that an operation concerns start
 * it, each when its own data is there, under the same order. An order is used once in a job; devices
 * start those that concern them in ascending order, and may get another device's message for an
 * order before they have started it. The addresses of other ends come from the job's board, never
 * from a message.
 *
 * Reductions follow the tree of docs/collectives.md (uproxy/coll/tree.h).
 */
#ifndef HAL_COMM_H
#define HAL_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "step.h"
#include "why.h"

#define COMM_VERSION     3u
#define COMM_DEVICES_MAX 1024u
#define COMM_ADDRESS_MAX 1024u
#define COMM_NOTE_MAX    128u

struct comm;
struct hal;

/* Whose order of addition reductions have. */
enum comm_order {
	COMM_TREE, /* docs/collectives.md: the same bits over any devices */
	COMM_NCCL, /* NCCL's own */
};

/* What one rank on this device gives and gets; NULL where the operation has no such buffer. */
struct comm_part {
	uint32_t rank;
	const void *send;
	void *recv;
	const void *factor; /* TREE_PREMULSUM: one element of the operation's type */
	bool factor_there; /* it is in the device's memory; otherwise copied by start */
};

/*
 * An operation. call.peer is the root of a rooted collective, or of a pair the other rank; count is
 * NCCL's argument: elements that each rank sends (receives, for reduce-scatter), per pair of ranks
 * for all-to-all, gather and scatter. device[r] is where rank r is: the number of an end; STEP_NONE
 * if it has left already, which no pair of others minds. Buffers
 * may overlap only as NCCL allows for operations in place. Everything but the parts' buffers is
 * copied.
 */
struct comm_start {
	uint64_t order;
	uint64_t comm; /* the communicator's key */
	struct step_call call;
	uint32_t ranks;
	uint32_t nparts;
	const uint32_t *device;
	const struct comm_part *part;
	/*
	 * Called once, by a thread of the transport, when this device's part has ended or is
	 * cancelled; from then on its buffers are not touched, by other devices neither. It may call
	 * start and cancel.
	 */
	void (*done)(void *arg, enum step_code code);
	void *arg;
};

/* Bytes of messages since open: of data (partials and leaves, without headers), and their number. */
struct comm_counters {
	uint64_t sent, received, messages;
};

struct comm_open {
	uint32_t self; /* number of this end, below COMM_DEVICES_MAX */
	/*
	 * Copies the address of end `device` to `to`, and returns its size, at most COMM_ADDRESS_MAX;
	 * -ENOENT: there is no such end (any more). Any thread.
	 */
	int (*address)(void *arg, uint32_t device, void *to);
	/*
	 * note: leaves up to COMM_NOTE_MAX bytes about a communicator for all its ends; size 0 takes
	 * them away. 0, -ENOSPC, -ENOTRECOVERABLE. noted: copies them to `to`: their size, or -ENOENT.
	 * say: a sentence for the user. Any thread. NULL: the transport does without them.
	 */
	int (*note)(void *arg, uint64_t comm, const void *p, size_t size);
	int (*noted)(void *arg, uint64_t comm, void *to);
	void (*say)(void *arg, const char *text);
	void *arg;
	struct hal *hal; /* the device; NULL: buffers are this process's memory */
	enum comm_order order;
};

/* A communicator, as a transport gets to know it. */
struct comm_group {
	uint64_t comm; /* its key: no other one's in a job */
	uint32_t ranks, rank;
	const uint32_t *device; /* by rank */
};

/*
 * A transport. open: -errno and *why. address: what others get for this end; its size. start: 0;
 * -EINVAL the operation is not well formed, -ENOMEM; then done is not called. cancel: ends what has
 * been started under an order, as soon as nobody touches its buffers: done gets STEP_REMOTE; an
 * order that has ended already is ignored. close: cancels everything, and waits for done.
 *
 * NULL for a transport that does without them:
 * join, leave: a communicator stands, before anything of it is announced or started: 0, -ENOMEM,
 * -ENOTSUP and *why; has ended here, when nothing of it is under way any more.
 * announce, withdraw: this order will be started, or will not after all. Orders are announced in
 * ascending order, but started when their streams have come so far: for transports that must start
 * in one order on all devices.
 * buffer, unbuffer: memory for what is sent before its receiver is there: from it `start` sends. fill:
 * copies the device's memory to it; start sends it if called later, and filled() is called when the
 * source is not needed any more, also if unbuffer has come before that. Without them malloc() and memcpy() do.
 * reset: the device's primary context is about to go: what is under way ends with STEP_SYSTEM, so does
 * everything later of communicators that stand. Returns when nothing of the context is used any more.
 * depart: this process is about to end, but not others. Returns when their communicators can do without
 * it, or after some seconds.
 * drive: the calling thread, always the same one, has nothing to do but wait: it makes operations
 * progress, and calls done. true: more(arg) was true. false: there was no progress for a while, so the
 * thread may sleep; the transport makes progress without it.
 */
struct comm_driver {
	uint32_t version;
	const char *name;
	int (*open)(struct comm **c, const struct comm_open *o, struct why *why);
	int (*address)(struct comm *c, void *to);
	int (*start)(struct comm *c, const struct comm_start *op);
	void (*cancel)(struct comm *c, uint64_t order);
	void (*counters)(struct comm *c, struct comm_counters *n);
	void (*close)(struct comm *c);
	int (*join)(struct comm *c, const struct comm_group *g, struct why *why);
	void (*leave)(struct comm *c, uint64_t comm);
	void (*announce)(struct comm *c, uint64_t order);
	void (*withdraw)(struct comm *c, uint64_t order);
	void *(*buffer)(struct comm *c, size_t size);
	void (*unbuffer)(struct comm *c, void *buffer);
	int (*fill)(struct comm *c, void *buffer, const void *from, size_t size,
	            void (*filled)(void *arg), void *arg);
	void (*reset)(struct comm *c);
	void (*depart)(struct comm *c);
	bool (*drive)(struct comm *c, bool (*more)(void *arg), void *arg);
};

/* What a transport's library exports. */
#define COMM_DRIVER_SYMBOL "singvgpu_comm_driver"

/*
 * comm.c: the transport of the driver in use: of the library that the driver names, from beside it,
 * or NCCL's. SINGVGPU_COMM=nccl: NCCL's, for tests. NULL and *why.
 */
const struct comm_driver *comm_load(struct hal *h, struct why *why);

/* nccl/nccl.c: over NVIDIA's libnccl.so.2, or the file that SINGVGPU_NCCL names. */
extern const struct comm_driver comm_nccl;

#endif /* HAL_COMM_H */
