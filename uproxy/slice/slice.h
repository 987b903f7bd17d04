/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.h - a session that shares its device by slices: it takes its turns
 *
 *   board (turns.h): COMING ──► the worker brings the session's bytes ──► results are written, and what waited runs: RESIDENT
 *                    LEAVING ─► what touches memory is parked, the device runs dry, inputs of collectives are copied
 *                               ──► the worker takes the bytes away ──► OUT
 *
 * While it is out, its records are decoded: those that touch memory are parked, all others run
 * (park_away()). Collectives that all ranks have posted run with copies (comm_capture()). All functions:
 * consumer.
 */
#ifndef UPROXY_SLICE_SLICE_H
#define UPROXY_SLICE_SLICE_H

#include "call.h"
#include "why.h"

/*
 * The session, which common_open() was called for, takes its place among the device's sharers. -errno and *why.
 */
int slice_start(struct sv_session *s, struct why *why);

/* Is there work for slice_run(), which the consumer calls between two records? Cheap. */
bool slice_due(void);
void slice_run(struct sv_session *s);

/*
 * The ring is empty, and the consumer is about to wait: what is true of the session is said. Returns for how
 * long it may wait; -1: for ever.
 */
int64_t slice_idle(struct sv_session *s);

/*
 * slice_run() and slice_idle() in one, for a consumer that is not in its loop: it waits for a cut (rebuild/freeze.c) or the end of
 * a step. Returns whether the session *rests*: it neither comes nor leaves, and nothing of it could run in a slice.
 * *turn: it waits for a slice, or its bytes are being moved; turn may be NULL.
 */
bool slice_rests(struct sv_session *s, bool *turn);

/*
 * For a restore, whose consumer serves nothing yet. -errno and *why; -ECANCELED: given_up(), which is asked some times a
 * second, is true.
 * slice_take: waits for a slice, and brings what is mapped: zeros, in a new process.
 * slice_give: ends the slice; what collectives send has been copied then.
 */
int slice_take(struct sv_session *s, bool (*given_up)(void *arg), void *arg, struct why *why);
int slice_give(struct sv_session *s, bool (*given_up)(void *arg), void *arg, struct why *why);

/*
 * The client is gone. If it has exited with 0, then as soon as nothing works in the session's memory, that is
 * the others'; what others receive of it is copied before. false: the memory is free when this process has
 * ended, which it shall at once.
 */
bool slice_leave(struct sv_session *s);

#endif /* UPROXY_SLICE_SLICE_H */
