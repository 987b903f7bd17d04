/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - a session, and a record of it that is executed: what all rooms of the proxy know
 *
 *   ring ─► loop.c ─► serve.c ─┬─► cuda_dispatch (generated) ──┬─► answer_call ─► ring_complete, late, latch
 *                 (consumer)   └─► by hand (records.c) ────────┤
 *                                    │ RECORD_WORKER           │
 *                                    ├─► worker.c ─────────────┤     loading, compiling, ending
 *                                    │ CALL_LATER              │
 *                                    └─► a stream ─► callback ─┘     synchronisations, answered copies
 *
 * The consumer is the main thread. It alone reads the ring. It alone decides about the session's addresses
 * (window.c), and workers then call the driver for them. Any thread looks up handles (handle.c), and a lock guards
 * their changes; docs/locks.md has all threads and locks. Data of the client is read once: records are private
 * copies, and parts of the arena are copied before they are used.
 *
 * A handler returns 0: the record has been executed, and call.c.status is its result. CALL_LATER: another thread
 * answers it. -errno: the client has broken a rule, which call.c.why names, and the session ends. Whatever an
 * honest client can cause, by a mistake of its program too, is no broken rule but a CUresult in call.c.status.
 */
#ifndef CALL_H
#define CALL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "cuda_dispatch.h"
#include "cuda_ops.h"
#include "hal.h"
#include "lock.h"
#include "proto.h"
#include "ring.h"

#define CALL_LATER 1		/* a worker or a callback answers the record */

struct call {
	struct sv_call c;	/* first member: all that the generated code knows */
	uint64_t seq;
	uint16_t cpl;
	uint16_t lane;		/* of the trace */
	uint64_t begin_ns;	/* if traced */
	uint64_t bytes;		/* for the trace */
};

struct replay_answer;
struct uproxy_stat;

struct sv_session {
	struct hal hal;
	struct ring *ring;
	uint8_t *arena;			/* the channel's, or the one of the client's first session */
	uint64_t arena_len, arena_first;
	bool guest;			/* the arena is that of the client's first session, whose proxy saves it */
	struct ring_guest home;		/* of a guest: the channel that the arena belongs to */
	struct sv_shared *shared;	/* the beginning of the channel's own arena */
	struct uproxy_stat *stat;	/* never NULL. Others can write it: nothing may be decided by what it says */
	uint32_t state;			/* enum uproxy_stat_state; atomic, stat_state() */
	pid_t client;			/* consumer */
	uint64_t budget;		/* bytes that may be mapped */
	/* Each of the next three forbids a checkpoint. */
	bool log_full;			/* the log lacks a record */
	bool bypassed;			/* the client has mapped a driver of its own */
	bool shares;			/* the client has shared memory or events with another process */
	int client_pidfd;
	bool restored;			/* from a dump, maybe on another host */
	struct replay_answer *replay;	/* not NULL: the log is executed again, and answers go here */

	int32_t failed;			/* -errno: the session is to end; atomic */
	const char *failed_rule;	/* static text, stored before failed */
	uint64_t failed_seq;
	uint16_t failed_op;
	uint32_t late;		/* number of deferred errors; error_lock */
	uint32_t late_error;	/* the newest one; error_lock */
	bool full;		/* too much is parked: SV_LATE_FULL; error_lock */
	bool latched;		/* there was a sticky error; error_lock */
	uint32_t told;		/* deferred errors; log.c gets LATE_TOLD of them; atomic */
	struct lock error_lock;
};

/* "unknown" of what is no operation. */
const char *op_name(uint16_t op);		/* op.c */

/* Is the record's tail, from `at` on, `want` bytes and at most 7 zeros? */
static inline bool tail_is(const struct sv_call *c, uint64_t at, uint64_t want)
{
	if (c->len < at || c->len - at < want || c->len - at - want > 7)
		return false;
	return sv_zero((const uint8_t *)c->data + at + want, c->len - at - want);
}

/* Copies to and from the arena are ordinary loads and stores; the client may race with them. */
static inline uint8_t *arena_at(const struct sv_session *s, uint64_t off)
{
	return s->arena + off;
}

/* The call failed with an error of CUDA. */
static inline int fails(struct call *k, CUresult r)
{
	k->c.status = r;
	return 0;
}

#endif
