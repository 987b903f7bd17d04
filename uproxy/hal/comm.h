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

#include <stddef.h>
#include <stdint.h>

#include "step.h"
#include "why.h"

#define COMM_VERSION     1u
#define COMM_DEVICES_MAX 1024u
#define COMM_ADDRESS_MAX 1024u

struct comm;

/* What one rank on this device gives and gets; NULL where the operation has no such buffer. */
struct comm_part {
	uint32_t rank;
	const void *send;
	void *recv;
	const void *factor; /* TREE_PREMULSUM: one element of the operation's type */
};

/*
 * An operation. call.peer is the root of a rooted collective, or of a pair the other rank; count is
 * NCCL's argument: elements that each rank sends (receives, for reduce-scatter), per pair of ranks
 * for all-to-all, gather and scatter. device[r] is where rank r is: the number of an end. Buffers
 * may overlap only as NCCL allows for operations in place. Everything but the parts' buffers is
 * copied.
 */
struct comm_start {
	uint64_t order;
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
	void *arg;
};

/*
 * A transport. open: -errno and *why. address: what others get for this end; its size. start: 0;
 * -EINVAL the operation is not well formed, -ENOMEM; then done is not called. cancel: ends what has
 * been started under an order, as soon as nobody touches its buffers: done gets STEP_REMOTE; an
 * order that has ended already is ignored. close: cancels everything, and waits for done.
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
};

/* What a transport's library, libsoftcomm.so for the soft device, exports. */
#define COMM_DRIVER_SYMBOL "singvgpu_comm_driver"

/* comm.c: loads the soft device's transport from beside this program. NULL and *why. */
const struct comm_driver *comm_load(struct why *why);

#endif /* HAL_COMM_H */
