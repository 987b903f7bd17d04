/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover.h - which collective operations a stream, an event or a wait covers, and which of them have failed
 *
 * A wait that covers a failed operation never succeeds (docs/ranks.md, Failure). The stream of such an operation stands
 * still, as with NCCL, until the program aborts or destroys the communicator; so does what waits for that
 * stream in the driver. This room says which streams these are, and ends their waits.
 *
 *   cover_coll ──► in the stream ── cover_done ──► over
 *                      └── cover_failed ──► the stream stands (park_fail) ── cover_mended ──► over
 *
 * A *chain* is the collectives of one stream, numbered in the order in which they are put there. What is put into
 * a stream covers a chain up to a number; an event takes that over from its stream when it is recorded, and a
 * stream from the event that it waits for.
 *
 * All functions: consumer, but where it says otherwise.
 */
#ifndef COVER_H
#define COVER_H

#include "answer.h"

struct context;
struct stream;

/* More streams than this with open collectives share chains: then a wait may cover more than it should. */
#define COVER_CHAINS 8

struct cover {
	uint64_t upto[COVER_CHAINS];	/* 0: nothing of the chain */
};

/* Has there been a collective in a stream of this proxy? Else nothing below need be called. */
extern bool cover_any;

/* A collective is about to be put into the stream: its place in *chain, and its number there. -ENOMEM. */
int cover_coll(struct sv_session *s, struct stream *st, uint32_t *chain, uint64_t *number);

/* It has ended well, or is no longer in the stream. Any thread. */
void cover_done(uint32_t chain);

/*
 * It has failed. What covers it stands, until cover_mended() of its communicator. -ENOMEM. The caller does not
 * call cover_done() for it. cause: what other proxies are told, the arena offset of the communicator's word, or 0.
 * A wait for another proxy (outside.h) is like a communicator of its own; cover_open_again(), before cover_mended(): it
 * waits on.
 */
int cover_failed(uint32_t chain, uint64_t number, uint64_t comm, uint64_t cause);
void cover_mended(uint64_t comm);
void cover_open_again(uint32_t chain);

/* Is there a failed operation whose communicator has not been ended? */
bool cover_fails(void);

/* Something is put into the stream, which waits there for what the streams in its order hold. */
void cover_use(struct stream *st);

/* The stream records the event, or waits for it; the event ends. */
void cover_record(const struct stream *st, uint64_t event);
void cover_wait(struct stream *st, uint64_t event);
void cover_event_gone(uint64_t event);

/* What is put into the stream from now on waits for what the other one has. */
void cover_follow(struct stream *st, const struct stream *after);

/*
 * Until the next call of this, the event that is recorded or waited for is a copy, whose cover is *c; NULL: it is
 * the event itself. cover_of_event: what the event has.
 */
void cover_instead(struct cover *c);
struct cover cover_of_event(uint64_t event);

/* What a wait for the stream, the event, or all of a context covers. */
struct cover cover_of_stream(const struct stream *st);
struct cover cover_of_context(const struct context *c);

/* Has an operation that is covered failed? *cause, if so: of one of these. Is one open? */
bool cover_bad(const struct cover *c);
bool cover_bad_by(const struct cover *c, uint64_t *cause);
bool cover_open(const struct cover *c);

/* The cause of any failure, for what is parked behind one. */
uint64_t cover_cause(void);

/* Does what is put into the stream stand? */
bool cover_stands(const struct stream *st);

/*
 * What a query says of a failed operation: NOT_READY, so that a program that asks NCCL for errors, too, hears of
 * the failure there; after QUERY_NS, COVER_FAILS, for one that does not.
 */
CUresult cover_query(void);
CUresult cover_query_since(uint64_t ns);	/* ns: when the failure was heard of, as now_ns() */

/*
 * A wait in the driver; zeros before watch_begin(). It is answered by whoever comes first: watch_end() says whether the
 * caller, whose notice has come, is to answer it; or a failed operation that it covers, after watch_begin(). Any thread may
 * end it.
 */
struct watch {
	struct watch *next, **at;	/* at NULL: not watched, or answered */
	struct cover cover;
	struct answer answer;
	bool answered;
};
void watch_begin(struct watch *w, const struct cover *c, const struct answer *a);
bool watch_end(struct watch *w);

/* Answers a wait that stands, now. Any thread. */
void cover_answer(const struct answer *a);

#endif /* COVER_H */
