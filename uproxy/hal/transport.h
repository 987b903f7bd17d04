/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport.h - the transport below collective operations: moves their data between the devices of a job
 *
 *   uproxy/comm/ ── transport_start: an operation that all its members have posted ──► a transport_driver
 *        ▲                                                                               │ other devices'
 *        └────────────────── done(arg, code): this device's part has ended ◄─────────────┘ ends
 *
 * Each proxy has one end of a transport, a struct transport. An *order* is an operation's number in the job's log,
 * which no other operation has. Each end that an operation concerns starts it under that order, when the data
 * of its own device is there, and starts its operations in ascending order. A message for an order may come
 * before this end has started it. The addresses of other ends come from the job's board, never from a
 * message.
 *
 * "device" in this header is the number of an end, not a device of the host (board_device()).
 *
 * Reductions follow the tree of docs/collectives.md (uproxy/coll/tree.h).
 */
#ifndef HAL_TRANSPORT_H
#define HAL_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "step.h"
#include "why.h"

#define TRANSPORT_VERSION     5u
#define TRANSPORT_DEVICES_MAX 1024u
#define TRANSPORT_ADDRESS_MAX 1024u
#define TRANSPORT_NOTE_MAX    128u

struct transport;
struct hal;

/* In which order a reduction adds. */
enum transport_order {
	TRANSPORT_TREE, /* docs/collectives.md: the same bits over any devices */
	TRANSPORT_NCCL, /* NCCL's own */
};

/* What one rank on this device gives and gets; NULL where the operation has no such buffer. */
struct transport_part {
	uint32_t rank;
	const void *send;
	void *recv;
	const void *factor; /* TREE_PREMULSUM: one element of the operation's type */
	bool factor_there; /* the factor is in the device's memory; else start copies it */
};

/*
 * An operation. call.peer is the root of a rooted collective, or the other rank of a pair. call.count is
 * NCCL's argument: the elements that each rank sends; that it receives, for reduce-scatter; per pair of ranks,
 * for all-to-all, gather and scatter. device[r] is the end of rank r; STEP_NONE: rank r has left, which
 * concerns no pair of other ranks. Buffers may overlap only as NCCL allows for operations in place.
 * start() copies all of this but the contents of the parts' buffers.
 */
struct transport_start {
	uint64_t order;
	uint64_t comm; /* the communicator's key */
	struct step_call call;
	uint32_t ranks;
	uint32_t nparts;
	const uint32_t *device;
	const struct transport_part *part;
	/*
	 * Called once, by a thread of the transport, when this device's part has ended or has been
	 * cancelled. From then on neither this nor another device touches its buffers. It may call
	 * start() and cancel().
	 */
	void (*done)(void *arg, enum step_code code);
	void *arg;
};

/* Bytes of messages since open: of data (partials and leaves, without headers), and their number. */
struct transport_counters {
	uint64_t sent, received, messages;
};

struct transport_open {
	uint32_t self; /* number of this end, below TRANSPORT_DEVICES_MAX */
	/*
	 * Copies the address of end `device` to `to`, and returns its size, at most TRANSPORT_ADDRESS_MAX;
	 * -ENOENT: there is no such end (any more). Any thread.
	 */
	int (*address)(void *arg, uint32_t device, void *to);
	/*
	 * note: leaves up to TRANSPORT_NOTE_MAX bytes about a communicator on the board, for all its ends; size 0
	 * takes them away. 0, -ENOSPC, -ENOTRECOVERABLE. noted: copies them to `to` and returns their size, or
	 * -ENOENT. say: tells the user a sentence. Any thread. A transport that needs none of the three takes NULL.
	 */
	int (*note)(void *arg, uint64_t comm, const void *p, size_t size);
	int (*noted)(void *arg, uint64_t comm, void *to);
	void (*say)(void *arg, const char *text);
	void *arg;
	struct hal *hal; /* the device; NULL: buffers are this process's memory */
	enum transport_order order;
	bool together; /* several ends of the job share a device; TRANSPORT_TREE */
};

/* A communicator, as a transport gets to know it. */
struct transport_group {
	uint64_t comm; /* its key: no other one's in a job */
	uint32_t ranks, rank;
	const uint32_t *device; /* by rank */
};

/*
 * The functions of a transport.
 *
 * open: 0, or -errno and *why.
 * address: copies to `to` what other ends need to reach this one, and returns its size.
 * start: 0. -EINVAL: the operation is not well formed; -ENOMEM. After an error done() is not called.
 * cancel: ends what has been started under an order, as soon as nobody touches its buffers: done() gets
 * STEP_REMOTE. Does nothing if that has ended already.
 * close: cancels everything, and waits until each done() has been called.
 *
 * A transport that does without one of these has NULL there:
 *
 * join: a communicator stands; nothing of it has been announced or started. 0, -ENOMEM, -ENOTSUP and *why.
 * leave: the communicator has ended here, and nothing of it is under way.
 * announce: this order will be started. For transports that must start in one order on all devices: orders
 * are announced in ascending order, while start() comes when the order's streams have come so far.
 * withdraw: an announced order will not be started after all.
 * buffer, unbuffer: allocate and free memory for what is sent before its receiver is there; start() sends
 * from it. fill: copies the device's memory there; a later start() sends the copy, also one that comes before
 * filled(). filled() is called when the source is not needed any more, also if unbuffer() has come before
 * that. With NULL, malloc() and memcpy() do.
 * reset: the device's primary context is about to go. What is under way ends with STEP_SYSTEM, and so does
 * all that comes later of the communicators that stand. Returns when nothing of the context is in use.
 * depart: this process is about to end, and the others are not. Returns when their communicators can do
 * without this one, or after some seconds.
 * drive: a thread that has nothing to do but wait, always the same one, makes operations progress and calls
 * done(). true: more(arg) was true. false: there was no progress for a while; the thread may sleep, since
 * the transport makes progress without it.
 * halt: with on, the transport begins no call that ends a communicator until halt is called with off. Returns false if such a
 * call is under way; then nothing is halted.
 */
struct transport_driver {
	uint32_t version;
	const char *name;
	int (*open)(struct transport **c, const struct transport_open *o, struct why *why);
	int (*address)(struct transport *c, void *to);
	int (*start)(struct transport *c, const struct transport_start *op);
	void (*cancel)(struct transport *c, uint64_t order);
	void (*counters)(struct transport *c, struct transport_counters *n);
	void (*close)(struct transport *c);
	int (*join)(struct transport *c, const struct transport_group *g, struct why *why);
	void (*leave)(struct transport *c, uint64_t comm);
	void (*announce)(struct transport *c, uint64_t order);
	void (*withdraw)(struct transport *c, uint64_t order);
	void *(*buffer)(struct transport *c, size_t size);
	void (*unbuffer)(struct transport *c, void *buffer);
	int (*fill)(struct transport *c, void *buffer, const void *from, size_t size,
	            void (*filled)(void *arg), void *arg);
	void (*reset)(struct transport *c);
	void (*depart)(struct transport *c);
	bool (*drive)(struct transport *c, bool (*more)(void *arg), void *arg);
	bool (*halt)(struct transport *c, bool on);
};

/* What a transport's library exports. */
#define TRANSPORT_DRIVER_SYMBOL "singvgpu_transport"

/*
 * transport.c: the transport for the driver in use. It is in a library that the driver names, in the driver's
 * folder; for a driver that names none it is NCCL's. SINGVGPU_COMM=nccl takes NCCL's, for tests. NULL and *why.
 */
const struct transport_driver *transport_load(struct hal *h, struct why *why);

/* nccl/nccl.c: over NVIDIA's libnccl.so.2, or the file that SINGVGPU_NCCL names. */
extern const struct transport_driver transport_nccl;

#endif /* HAL_TRANSPORT_H */
