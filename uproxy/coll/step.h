/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.h - decides when a collective operation starts, and how it ends
 *
 * step() is a pure function. It gets a state and one event, changes the state, and hands out actions. The caller
 * carries the actions out. The state is one block of memory without pointers: it can be copied, compared,
 * saved, or lie in memory that processes share. The step knows no transport, no stream and no thread.
 *
 * Words. A *proxy* serves one process on one device; several may share a *device*. A *communicator*
 * has a *member* for each of its ranks. A member *posts* a *record*: one call, or all calls of one group on
 * this communicator. An *operation* is what belongs together: the k-th collective of every member; or the
 * k-th send from one rank to another, and the k-th receive there.
 *
 *   posted by some ── the last one posts ──► in the log ── STEP_NEXT ──► started on a device
 *        │                                      │                            │ STEP_DONE
 *        └────────── fails (STEP_FAILED) ───────┴──► failed ◄── may fail ────┴──► ended there
 *
 * A member's records are posted in the order of its calls: each when nothing before it in its
 * stream is parked, and the one before it in its communicator has been posted.
 *
 * Rules, which selftests/coll/explore.c checks in every interleaving:
 *   1. An operation enters the log when all its members, or both ends of a pair, have posted it. It is
 *      started nowhere before that. Every device starts what concerns it in the order of the log.
 *   2. A record has *begun* when each of its calls has been started or has ended. It *ends* once, when each
 *      of its calls has ended, with the first error of any. Calls of count 0 are no operations.
 *   3. A send of up to STEP_BUFFERED bytes whose receiver has not posted ends at once (STEP_BUFFER),
 *      unless its rank has no room for it (step_event.full).
 *   4. If calls of one operation differ, the operation fails with STEP_INVALID_USAGE for all its members,
 *      those that post later included.
 *   5. A member leaves when it destroys or aborts its communicator, or when its process exits with 0. The
 *      operations that still need it fail: those that it has not posted, or not ended. If its process dies,
 *      all operations of its communicators that it has not ended fail, and so do all later ones.
 *   6. A failed operation is cancelled on the devices where it has started, and is started on no other.
 *      Members on those devices get their end when all of these devices have said STEP_DONE: so nobody's
 *      memory is touched after its end.
 *   7. The proxy of a process that has left stays until its buffered sends have been received or have
 *      failed; the last proxy on a device stays until all operations have ended there (STEP_RELEASE).
 *   8. A communicator *stands* for all its ranks when all have joined, or for none of them. If a proxy dies,
 *      all creations under way fail. A failed creation is forgotten when all ranks have tried to join.
 */
#ifndef UPROXY_COLL_STEP_H
#define UPROXY_COLL_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STEP_BUFFERED (1u << 20)
#define STEP_NONE     UINT32_MAX

/* The numbers are those of ncclResult_t. */
enum step_code {
	STEP_OK = 0,
	STEP_SYSTEM = 2,
	STEP_INVALID_USAGE = 5,
	STEP_REMOTE = 6,
};

enum step_kind {
	STEP_ALLREDUCE,
	STEP_REDUCE,
	STEP_BROADCAST,
	STEP_ALLGATHER,
	STEP_REDUCESCATTER,
	STEP_ALLTOALL,
	STEP_GATHER,
	STEP_SCATTER,
	STEP_SEND,
	STEP_RECV,
	STEP_KINDS,
};

/*
 * One call. type and op are those of tree.h; op is 0 if the call reduces nothing. peer is the other rank of a
 * pair, or the root of a rooted collective, else 0.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct step_call {
	uint8_t kind, type, op, zero;
	uint32_t peer;
	uint64_t count;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct step_call) == 16, "shared");

enum step_event_kind {
	STEP_ENTER, /* proxy, device: a proxy begins */
	STEP_JOIN, /* proxy, comm, ranks, rank, parent; returns the member's number */
	STEP_POST, /* member, cookie, calls, ncalls, full */
	STEP_NEXT, /* device: what is next in the log; returns 1 if something was started */
	STEP_DONE, /* device, order, code: the device's part is done or cancelled, and nobody's
		       memory there is touched any more; a code but STEP_OK fails the operation */
	STEP_LEAVE, /* member, comm (0: not compared): its communicator is destroyed or aborted */
	STEP_EXIT, /* proxy: its process has exited with 0 */
	STEP_DIE, /* proxy: it or its process is gone; STEP_NONE: one that had not entered yet */
};

struct step_event {
	enum step_event_kind kind;
	uint32_t proxy, device, member;
	uint32_t ranks, rank;
	uint32_t parent; /* a member, and 1, all of whose communicator's ranks live; 0: none */
	uint64_t comm; /* the communicator's key */
	uint64_t cookie; /* the record's name, which actions give back */
	uint64_t order; /* the operation's place in the log */
	uint32_t code;
	uint32_t cause; /* of STEP_DONE: the CUDA error of the device, or 0 */
	uint32_t ncalls;
	const struct step_call *calls;
	bool full; /* no send goes into a buffer: each waits for its receiver */
};

enum step_action_kind {
	STEP_JOINED, /* member, code: the communicator stands, or will not */
	STEP_WAKE, /* device, order: the log has grown by something of this device's */
	STEP_START, /* device, order, member, cookie, call; more: so many follow for this one */
	STEP_BUFFER, /* member, cookie, call: copy what is sent into a buffer; the sender goes on */
	STEP_CANCEL, /* device, order: end what has been started; STEP_DONE is still to come */
	STEP_BEGUN, /* member, cookie, code: nothing of the record is parked any more; code: it fails */
	STEP_ENDED, /* member, cookie, code; failure, if it was told of before: else its code is 0 */
	STEP_FAILED, /* comm, failure: why an operation ends; the members' ends follow */
	STEP_BROKEN, /* member, code, failure: what ncclCommGetAsyncError says from now on */
	STEP_RELEASE, /* proxy: nobody needs it any more */
};

enum step_reason {
	STEP_DIFFERENT_KIND,
	STEP_DIFFERENT_COUNT,
	STEP_DIFFERENT_TYPE,
	STEP_DIFFERENT_OP,
	STEP_DIFFERENT_ROOT,
	STEP_LEFT,
	STEP_DIED,
	STEP_TRANSPORT,
};

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
/*
 * Why an operation failed. rank: who has left or died, or whose call differs from that of rank `other`; with the
 * values that differ.
 */
struct step_failure {
	enum step_reason reason;
	enum step_code code;
	uint8_t kind, zero[3]; /* kind: STEP_KINDS: of no operation, since a rank has died */
	uint32_t rank, other;
	uint32_t pad;
	uint64_t value, other_value; /* of STEP_TRANSPORT: the CUDA error, or 0 */
	uint64_t number; /* of the collective in its communicator, from 0 */
	uint32_t source, destination; /* of a pair */
};

struct step_action {
	enum step_action_kind kind;
	uint32_t proxy, device, member;
	uint64_t comm, cookie, order;
	uint32_t call, more;
	enum step_code code;
	uint32_t pad;
	struct step_failure failure;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct step_failure) == 56, "shared");
_Static_assert(sizeof(struct step_action) == 112, "shared");

typedef void step_act(void *ctx, const struct step_action *action);

/* How many of each a state has room for. */
struct step_limits {
	uint32_t proxies, devices, comms, members, ops, parts, records;
};

struct step;

/* Bytes of a state with these limits, each of which must be at least 1 and at most 2^20; else 0. */
size_t step_size(const struct step_limits *limits);

/*
 * step_saved_size: the size of a state's head and arrays, with which it begins. Its index lies behind them, and is not
 * saved. step_index makes the index anew, in memory that is all zero, from a state that has been found good; until
 * then no event may come.
 */
size_t step_saved_size(const struct step_limits *limits);
void step_index(struct step *s);

/* How many entries all searches have looked at since step_init() or step_index(). For tests. */
uint64_t step_looks(const struct step *s);

/* Makes an empty state of step_size() bytes at mem, 8-aligned. It holds nothing outside of that. */
struct step *step_init(void *mem, const struct step_limits *limits);
/* The same in memory that is all zero, of which it touches only what is used. */
struct step *step_init_zeroed(void *mem, const struct step_limits *limits);

/*
 * Gives the state one event. act() is called for each action, in order, and must not call step().
 * Returns 0, or what the event's comment says, or an error. After an error act() has not been called, and the
 * state has not changed but for the last two:
 * -EPROTO: the event contradicts the state, or names what is not there; the session of its sender has to end.
 * -ECONNRESET: the parent of a new communicator is broken.
 * -ENOSPC: the state is full; continue in a larger one (step_grow()).
 * -EEXIST, -EINVAL: a join that other members of its communicator contradict. Its creation fails for all.
 */
int step(struct step *s, const struct step_event *event, step_act *act, void *ctx);

/*
 * Hands out STEP_CANCEL again for each operation that a device was told to cancel and has not said STEP_DONE
 * of. For a caller that does not keep these actions.
 */
void step_cancels(const struct step *s, uint32_t device, step_act *act, void *ctx);

/*
 * Continues a state in larger memory: limits must not be below those of s in any number. s stays
 * as it was.
 */
struct step *step_grow(const struct step *s, void *mem, const struct step_limits *limits);

/* The proxy of a member; STEP_NONE: it is gone, or there is no such member. */
uint32_t step_proxy(const struct step *s, uint32_t member);

/* The device of a proxy of which something is left; else STEP_NONE. */
uint32_t step_device(const struct step *s, uint32_t proxy);

/* Has the proxy entered, and neither left nor died? */
bool step_lives(const struct step *s, uint32_t proxy);

/*
 * step_save: the state as an image (image.h), which the caller frees. -ENOMEM.
 * step_load: fills an empty state from an image, which may be anybody's, 8-aligned; of this version, or of version 1. On
 * an error the state is still empty: -EBADMSG, and *why is what is wrong, a constant; -EPROTONOSUPPORT: the image is
 * of another version; -ENOMEM. why may be NULL.
 */
int step_save(const struct step *s, void **image, size_t *len);
int step_load(struct step *s, const void *image, size_t len, const char **why);

/*
 * Is there a communicator with the key `key` and `ranks` ranks, of which `proxy` is number `rank`, by its member
 * `member`? *stands: whether that communicator stands.
 */
struct step_place {
	uint64_t key;
	uint32_t member, rank, ranks, proxy;
};
bool step_is_at(const struct step *s, const struct step_place *p, bool *stands);

/* The records that a proxy has posted and that have not ended: each gets their cookies, and whether they have begun. */
void step_records(const struct step *s, uint32_t proxy, void (*each)(void *ctx, uint32_t member, uint64_t cookie, bool begun),
                  void *ctx);

/*
 * Stores the proxies of all ranks of a member's communicator, by rank, in proxy[0 … max-1]: the proxies that have
 * joined, some of which may have gone since; STEP_NONE for a rank that has not joined. Returns the number of
 * ranks, which may be above max; 0: there is no such member.
 */
uint32_t step_ranks(const struct step *s, uint32_t member, uint32_t *proxy, uint32_t max);

/*
 * step_owes: the oldest operation of which others have posted parts and that waits for this proxy to post its own: its age, which
 * is less than that of any later one; 0: there is none.
 * step_waits: has the proxy posted a part of an operation that waits for `other` to post its own?
 */
uint64_t step_owes(const struct step *s, uint32_t proxy);
bool step_waits(const struct step *s, uint32_t proxy, uint32_t other);

/* What the state holds; with everybody gone, nothing. */
void step_used(const struct step *s, struct step_limits *used);

/*
 * What is in flight, for people: communicators, each followed by its operations that have not ended, in the
 * order of their first posting. `waits` is the number of ranks that others wait for, and rank[] has up to
 * STEP_LOOK_RANKS of them: ranks that have not joined the communicator, that have not posted the operation or,
 * if it is in the log, that have not ended it.
 */
#define STEP_LOOK_RANKS 16u

struct step_comm_look {
	uint64_t key;
	uint32_t ranks, joined, member; /* member: of rank 0 */
	bool stands;
	uint32_t waits, rank[STEP_LOOK_RANKS];
};

struct step_op_look {
	uint64_t born; /* no other operation's */
	struct step_call call; /* as it was posted first */
	uint64_t number; /* of a collective, from 0 */
	uint32_t source, destination; /* of a pair */
	uint64_t order; /* in the log, from 1; 0: not all have posted it */
	bool failed;
	uint32_t waits, rank[STEP_LOOK_RANKS];
};

struct step_looker {
	void (*comm)(void *ctx, const struct step *s, const struct step_comm_look *look);
	void (*op)(void *ctx, const struct step *s, const struct step_comm_look *of,
	           const struct step_op_look *look);
	void *ctx;
};

void step_look(const struct step *s, const struct step_looker *looker);

/*
 * Equal for two states that go on alike: with the same members, records, operations and log,
 * whatever the order in which all that came about.
 */
uint64_t step_digest(const struct step *s);

/* Writes a sentence about a failure, as snprintf() does. */
int step_sentence(const struct step_failure *failure, char *text, size_t size);

/* A kind's name: "all-reduce". */
const char *step_kind_name(enum step_kind kind);

#endif /* UPROXY_COLL_STEP_H */
