/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.h - streams, events and host functions: order, and what is known to be done
 */
#ifndef STREAMS_H
#define STREAMS_H

#include "call.h"
#include "context.h"

/* ------------------------------------------------------------------------------ stream.c */

/*
 * uproxy_stream_find: the stream of a handle; SV_STREAM_LEGACY is the current context's. stream_use
 * marks it and counts a use, too. 0, a CUresult, or -EPROTO with *st NULL. Consumer.
 */
int uproxy_stream_find(struct sv_session *s, uint64_t handle, struct stream **st);
int stream_use(struct sv_session *s, uint64_t handle, struct stream **st);
struct stream *uproxy_stream_new(struct context *c, uint64_t handle, CUstream real, bool blocking);
void stream_used(struct stream *st);
void stream_put(struct stream *st);

/* All uses up to number `upto` are done. Any thread. */
void stream_reached(struct stream *st, uint64_t upto);

/* Is all work known to be done? (The driver counts a callback as work until it has returned.) */
bool stream_known_idle(const struct stream *st);

int do_stream_destroy(struct call *k);
int do_stream_wait(struct call *k);
int do_stream_attr(struct call *k);

/* ------------------------------------------------------------------------------ mark.c */

/*
 * stream_mark comes before an operation is put into a stream; its context is current.
 * stream_left: how many of a stream's operations may not be done yet; the context is current.
 * stream_unmark: before the stream goes. Consumer.
 */
void stream_mark(struct sv_session *s, struct stream *st);
uint64_t stream_left(struct sv_session *s, struct stream *st);
void stream_unmark(struct sv_session *s, struct stream *st);

/* ------------------------------------------------------------------------------ sync.c */

/* Answers k when the work queued in the stream is done: 0 or CALL_LATER. */
int sync_stream(struct call *k, struct stream *st);
int do_stream_sync(struct call *k);
int do_event_sync(struct call *k);
int do_event_record(struct call *k);
int do_event_wait(struct call *k);
int do_event_destroy(struct call *k);
int do_ctx_sync(struct call *k);
int do_stream_query(struct call *k);
int do_event_query(struct call *k);
int do_stream_watch(struct call *k);
int do_event_watch(struct call *k);

/* Called before a stream is destroyed: synchronising its context still waits for its work. */
CUresult sync_orphan(struct sv_session *s, struct stream *st);

/* Makes an event that is complete when this one's last recording is; the context is current. */
CUresult event_copy(struct sv_session *s, CUevent event, CUevent *copy);

/* ------------------------------------------------------------------------------ event.c */

/*
 * The event's context is current. event_mark records the event *now, whose time is the present one.
 * event_before: the ms from the event's recording to `now`; -ENOENT it was never recorded, keeps no
 * time, or is another context's. event_restore records it anew, as of `before` ms before the dump.
 */
int event_mark(struct sv_session *s, CUevent *now);
void event_unmark(struct sv_session *s, CUevent now);
int event_before(struct sv_session *s, uint64_t handle, uint64_t real, CUevent now, float *ms);
int event_restore(struct sv_session *s, uint64_t ctx, uint64_t handle, float before);
int do_event_elapsed(struct call *k);

/* ------------------------------------------------------------------------------ hostfunc.c */

int do_host_func(struct call *k);
int do_next_call(struct call *k);
void hostfunc_begin(struct sv_session *s);	/* its shared state is mapped */
void hostfunc_due(uint64_t id);		/* a graph has reached it; a thread of the driver */
void hostfunc_release(struct sv_session *s);	/* answers open requests with id 0 */
/*
 * For a session that shares its device by slices; consumer. hostfunc_holds: is a stream held until a host function returns?
 * hostfunc_returned: releases the streams whose functions have returned. If there were any, park_run() is due.
 */
bool hostfunc_holds(void);
bool hostfunc_returned(const struct sv_session *s);
unsigned int hostfunc_open(void);		/* their number */

#endif
