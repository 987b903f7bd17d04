/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_i.h - the soft device's transport: operations as flows of chunks between devices
 *
 *   start() ─► incoming ─► plan.c: flows and pieces ─► flow.c: chunks in and out ─► done()
 *    any thread  lock                                        │        ▲
 *                                                            ▼        │
 *                                                      wire.c: messages between processes
 *
 * Words. A *flow* is one ordered sequence of elements from a device to another one, in chunks; both
 * ends know its length from the operation. A *piece* is a range of a reduction's elements that one
 * device, its *owner*, finishes. A message that comes for an order that has not started here is
 * *early*, and kept.
 *
 * Everything but the two lists of struct transport that name its lock belongs to the thread that owns the
 * transport (drive.c).
 * Every message is packed into memory of the transport, and every buffer of the program is read and
 * written by the process that owns it: so an operation that is cancelled is over at once, and what
 * another device does, or fails to do, cannot touch a buffer.
 */
#ifndef TRANSPORT_I_H
#define TRANSPORT_I_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport.h"
#include "lock.h"
#include "tree.h"

#define CHUNK      32768u /* bytes of a message's data, at most */
#define EAGER      (4u * CHUNK) /* bytes of a flow that are sent before its receiver has started */
#define WINDOW     (32u * CHUNK) /* bytes of a flow that its receiver may have to keep */
#define EXCHANGE   4096u /* bytes up to which two devices send each other all that they have */
#define OP_ROOM    3072u
#define EARLY_MOST (1ull << 30) /* bytes of early messages of one device, */
#define EARLY_EACH 512u /* with so many more for each: so nobody can make the lists long */

enum msg_what {
	MSG_LEAVES = 1, /* a: piece, b: node's first rank; to the piece's owner */
	MSG_RESULT, /* a: piece; from its owner */
	MSG_COPY, /* a: source rank, b: destination rank, or device */
	MSG_GRANT, /* of a flow, back to its sender: it may be sent up to `first` */
	MSG_DROP, /* of an order: what came from this device may be forgotten */
};

#define MSG_MAGIC 0x31636773u /* "sgc1" */

/* A message: this, and the chunk's elements. */
struct msg {
	uint32_t magic;
	uint8_t what, flow; /* flow: what is granted */
	uint16_t zero;
	uint32_t from; /* device */
	uint32_t a, b;
	uint32_t len; /* bytes after this header */
	uint64_t order;
	uint64_t first; /* element of the flow */
	uint64_t factor; /* TREE_PREMULSUM, of a leaf: one element of the operation's type */
};

_Static_assert(sizeof(struct msg) == 48, "the message's header has no holes");

struct link;

/* A message that is kept: data lies in a link's memory until wire_release(), or was copied. */
struct kept {
	struct kept *next;
	struct msg msg;
	struct link *link; /* NULL: copied, and so its own */
	void *data;
};

/* The early messages of a device for an order. */
struct early {
	struct early *next; /* in the hash, by order */
	uint64_t order;
	uint32_t from;
	struct kept *first, **last;
};

struct flow_in {
	uint32_t from, a, b;
	uint8_t what;
	uint32_t size; /* of an element */
	uint32_t piece; /* MSG_LEAVES */
	uint64_t len, pos, granted; /* elements */
	uint64_t factor;
	struct kept *kept, *last; /* chunks that came too soon */
	const struct msg *now; /* the message at hand, its data behind it: MSG_LEAVES */
	const void *data;
	char *to; /* MSG_COPY, MSG_RESULT; NULL: to all local parts at `at` */
	uint64_t at; /* bytes */
};

struct flow_out {
	uint32_t device, a, b;
	uint8_t what;
	uint32_t size;
	uint64_t len, sent, granted;
	const char *base; /* the data, if it lies there */
	uint32_t piece; /* MSG_RESULT: no more than the piece's pos */
	uint32_t leaf, leaves; /* MSG_LEAVES of a node of several ranks: local leaves */
	uint64_t at; /* first element in the local leaves */
	uint64_t factor;
};

/* One part of what a piece is made of. */
struct share {
	struct tree_node node;
	struct flow_in *in; /* NULL: a local leaf */
	const char *base;
	const void *scale;
};

struct piece {
	uint64_t first, len, pos; /* elements */
	uint32_t share, shares; /* op->share[] */
	char *to; /* first element of the result; NULL: to all local parts */
};

struct copy {
	void *to;
	const void *from;
	uint64_t len;
};

struct part {
	struct transport_part p;
	uint64_t factor;
};

struct op {
	/* lock */
	struct op *next, **link; /* all operations */
	struct op *incoming;
	bool cancelled;

	struct op *hash;
	struct op *run;
	bool runnable, running;
	struct transport_start s;
	uint32_t *device; /* by rank */
	struct part *part; /* by rank */
	uint32_t devices, me; /* distinct ones, the index of ours */
	uint32_t *dev;
	uint32_t ranks_of_me;
	size_t leaf, partial;
	struct tree_reduction red;
	uint64_t chunk; /* elements */
	bool exchange; /* two devices have sent each other everything before one writes a result */
	uint32_t nin, nout, npieces, nshares, ncopies, turn;
	struct flow_in *in; /* sorted by key */
	struct flow_out *out;
	struct piece *piece;
	struct share *share;
	struct copy *copy;
	struct tree_part *tp; /* room for one reduction's parts */
	uint32_t ins_left, outs_left, pieces_left;
	enum step_code code;
	uint32_t used; /* of room */
	_Alignas(64) char room[OP_ROOM]; /* a small operation's arrays; last */
};

#define HASH 1024u
#define EARLY_HASH 8192u
#define SPARE_MOST 64u

struct wire;

/* An order that will not start here. */
struct withdrawn {
	struct withdrawn *next;
	uint64_t order;
};

struct transport {
	struct lock lock;
	struct op *all, *incoming, **incoming_end; /* lock */
	struct withdrawn *withdrawn; /* lock */
	struct op *spare; /* lock */
	uint32_t spares; /* lock */
	uint32_t news; /* something is incoming or cancelled; atomic */
	uint32_t owner; /* enum owner (drive.c); atomic */
	uint32_t attends; /* a thread that waits wants to be the owner; atomic */
	uint32_t turns; /* how often such a thread has been; atomic */
	uint32_t stop; /* atomic */
	int bell; /* eventfd: there is news */
	int call; /* eventfd, which the helper alone reads: the owner has changed */
	pthread_t helper;
	struct transport_open o;
	struct wire *wire;

	struct op *hash[HASH];
	struct op *run, **run_end;
	struct early **early; /* [EARLY_HASH] */
	uint64_t secret; /* odd: others do not know which orders have one hash */
	uint64_t *early_bytes; /* by device */
	uint64_t forgotten[HASH]; /* orders that were cancelled or withdrawn here, the last ones */
	struct transport_counters n; /* atomic */
};

/* plan.c: 0, -EINVAL, -ENOMEM. */
int plan(struct op *op, uint32_t self);
void op_clear(struct op *op); /* frees what it has */
struct flow_in *plan_in(struct op *op, uint32_t from, uint32_t what, uint32_t a, uint32_t b);
/* Reduces local leaves, from an element on, to the node that they are. */
void plan_leaves(struct op *op, uint32_t leaf, uint32_t leaves, uint64_t at, void *to, uint64_t n);

/* flow.c */
void flow_begin(struct transport *c, struct op *op);
void flow_run(struct transport *c, struct op *op);
/* Where a chunk of a flow lies; NULL: it must be made. */
const void *flow_data(struct op *op, const struct flow_out *out, uint64_t first);
/* Writes a chunk of a flow. */
void flow_pack(struct op *op, const struct flow_out *out, uint64_t first, void *to, uint64_t n);
bool flow_ended(const struct op *op);
/* Whether something is to come from a device, or to be sent to it. */
bool flow_needs(const struct op *op, uint32_t device);
void flow_forget(struct transport *c, struct op *op); /* cancelled: lets go of what it keeps */
/*
 * A message has come. Returns true if data stays where it is, in the memory of `link`, until
 * wire_release(); link NULL: it must not.
 */
bool flow_message(struct transport *c, const struct msg *m, void *data, struct link *link, size_t len);
void op_wake(struct transport *c, struct op *op);
void op_wake_all(struct transport *c);
/* Forgets early messages of an order; from UINT32_MAX: of all devices. */
void early_drop(struct transport *c, uint64_t order, uint32_t from);
struct op *op_find(struct transport *c, uint64_t order);

/* wire.c */
int wire_open(struct transport *c, struct why *why);
void wire_close(struct transport *c);
int wire_address(struct transport *c, void *to);
/* Moves messages; whether there were any. */
bool wire_progress(struct transport *c);
/*
 * wire_rest: tells the other ends to wake this one. true: it may sleep for *ms, -1 for ever; false: a
 * message has come meanwhile. wire_sleep: sleeps until a message comes, the bell rings, or the helper is
 * called; any thread. wire_rise: after wire_rest, and a sleep if there was one.
 */
bool wire_rest(struct transport *c, int *ms);
void wire_sleep(struct transport *c, int ms);
void wire_rise(struct transport *c);
/*
 * The thread waits for others. If more of them wait or work on its processor than on another one that it
 * may use, it goes there.
 */
void wire_part(struct transport *c);
/*
 * Sends a chunk of a flow, or (out NULL) a message without data. -EAGAIN: there is no room for the
 * chunk now, operations will be woken; -EHOSTUNREACH, -ENOMEM.
 */
int wire_send(struct transport *c, uint32_t device, const struct msg *m, struct op *op,
              const struct flow_out *out);
/* A device has sent nonsense, `what`: its link ends, and the user is told. */
void wire_refuse(struct transport *c, uint32_t device, const char *what);
void wire_release(struct transport *c, struct link *link, void *data);

/* drive.c */
uint64_t now_ns(void);
int drive_begin(struct transport *c); /* 0, or -errno of pthread_create() */
void drive_end(struct transport *c); /* ends the helper; no thread drives any more */
bool drive_mine(const struct transport *c); /* is this thread the owner? */
void drive_bell(struct transport *c); /* there is news; any thread */
/* struct transport_driver's. */
bool drive(struct transport *c, bool (*more)(void *arg), void *arg);

/* transport.c */
/* A turn of its owner: moves what can be moved. Whether there was anything. */
bool comm_turn(struct transport *c);
void device_lost(struct transport *c, uint32_t device);

#endif /* TRANSPORT_I_H */
