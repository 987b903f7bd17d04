/* SPDX-License-Identifier: Apache-2.0 */
/*
 * park.h - records that wait in the proxy for something other than the device
 *
 * A collective operation starts when all ranks have posted it (docs/ranks.md, Start). Until then the stream
 * that it is in is *held*: what comes behind it there, or depends on that by an event, the legacy
 * stream or an object's end, is parked, and runs later as if it had come then. All other records
 * run on.
 *
 *   serve.c ── park_take ──► run now
 *                 │ parked: a copy, behind positions of queues
 *                 ▼
 *           a queue for each stream (park_hold … park_release) ── park_run ──► its handler
 *
 * All functions: consumer.
 */
#ifndef PARK_H
#define PARK_H

#include "call.h"

struct record;
struct stream;

/* What a record waits for: struct record.park. */
enum park {
	PARK_NEVER,	/* makes or asks something that no parked record changes */
	PARK_STREAM,	/* is in its stream's order; may record an event or wait for one */
	PARK_POST,	/* the same, and behind earlier ones with the same number: a collective */
	PARK_ALONE,	/* in no stream: waits for what concerns the same event or graph */
	PARK_ALL,	/* waits for all that is parked */
	PARK_ORDER,	/* the same, and what comes later waits for it */
	PARK_BUSY,	/* a query: not ready as long as its stream is held or its event parked */
	PARK_ROOM,	/* asks for room: parked where too much is, until half of that has run */
};

/*
 * How much a stream may have parked, in records and in bytes of them, and a session in all: from there on a
 * client waits before it hands in more (SV_OP_X_ROOM), until half of it is left.
 */
#define PARK_RECORDS_MAX	(64u << 10)
#define PARK_BYTES_MAX		(64ull << 20)
#define PARK_STREAMS_MAX	16u		/* the session: so many times as much */

/* Is the record, if it is parked, answered at once? */
bool park_answered(const struct ring_record *rec, const struct record *r);

/* What park_take says about a record. PARK_FAILED: its answer would wait for an operation that has failed. */
enum park_answer { PARK_RUN, PARK_PARKED, PARK_NOT_READY, PARK_FAILED, PARK_NO_MEMORY };

/* Is anything held or parked? Else park_take need not be asked. */
extern bool park_any;

enum park_answer park_take(struct sv_session *s, const struct ring_record *rec, const struct record *r);

/*
 * park_hold: what is put into the stream from now on waits. From a handler of the stream's record,
 * once for each; -ENOMEM. park_release: no longer; park_run() then runs what can run.
 */
int park_hold(struct stream *st);
void park_release(struct stream *st);
void park_run(struct sv_session *s);

/*
 * The stream stands, since it covers a failed operation (cover.h): nothing that is put into it runs until
 * park_mend(), which lets all go on that do not stand any more. park_fail: -ENOMEM. park_spread, after one or
 * more of these: ends the parked waits that depend on what stands.
 */
int park_fail(struct stream *st);
void park_mend(void);
void park_spread(struct sv_session *s);

/*
 * Collectives are not posted now, but for those that may(), by their communicator and their number; they wait as if they were parked. When
 * that changes for one of them, park_run() is due. NULL: all are posted again. Any thread; may(): consumer.
 */
void park_posts(bool (*may)(uint64_t comm, uint64_t seq));

/*
 * park_away(true): the session's memory is elsewhere (slice/slice.h). Records that touch it (struct record.touches) are parked,
 * but for collectives that only receive. park_away(false): it is back, and park_run() is due.
 * park_waits: could a parked record run if the memory were back? Call it after park_run().
 */
void park_away(bool away);
bool park_waits(void);

/*
 * Parked collectives before which nothing is in their streams but other collectives, recordings of events, and waits for events
 * that are there. post() gets them, those of a stream and those of a communicator in their order; held: the stream is.
 * true: the record counts as posted, and the next one may follow. It stays parked all the same.
 */
typedef bool park_post(void *ctx, struct stream *st, bool held, const struct ring_record *rec);
void park_ahead(park_post *post, void *ctx);

/* The stream is being destroyed: nothing that is parked is in it any more. */
void park_stream_gone(struct stream *st);

/* Is a collective of this communicator parked? */
bool park_posting(uint64_t comm);

/* The number of records that are parked, and of these that are requests, whose answers are open. */
uint64_t park_count(void);
uint64_t park_open(void);

/*
 * For a dump: what is parked, in the order of the records. fn() gets a record; or with op PARK_RECORDED and
 * `event`: the event was recorded there by a record that has run, which waits behind it refer to. It returns
 * 0 or an errno, which ends it. A session that parks these again, each by park_again() in this order, with
 * park_hold() for streams between them as it was called, waits for the same. Nothing runs until park_run().
 */
#define PARK_RECORDED	UINT16_MAX
int park_each(int (*fn)(void *arg, const struct ring_record *rec, uint64_t event), void *arg);
int park_again(struct sv_session *s, const struct ring_record *rec, uint64_t event);

/*
 * park_has: is the record with this number parked? Those of a saved session are before park_again(), too:
 * park_expect() gets their numbers, ascending; -ENOMEM. park_expect_none: no longer.
 */
bool park_has(uint64_t seq);
int park_expect(uint64_t seq);
void park_expect_none(void);

int do_seen(struct call *k);
int do_room(struct call *k);

#endif /* PARK_H */
