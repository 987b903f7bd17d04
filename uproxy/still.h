/* SPDX-License-Identifier: Apache-2.0 */
/*
 * still.h - whether a session stands still: all that its records have asked for has been done, or waits at parked records
 *
 * A freeze asks it, and whoever stops a session at a step. What is still open then is what is saved open: the thread that
 * asks for host functions, and calls that wait for what is parked.
 */
#ifndef STILL_H
#define STILL_H

#include "context.h"

/* Is all else answered, and nothing being loaded or compiled? unanswered: of the ring; more: requests that the caller holds. */
bool still_answered(uint64_t unanswered, uint64_t more);

/* The first busy stream; *r is the driver's answer. NULL: there is none. still_idle: there is none, and the driver is well. */
struct stream *still_busy(struct sv_session *s, CUresult *r);
bool still_idle(struct sv_session *s);

/* The streams of a context, one after the other: the legacy one, the client's, the one for destroyed ones. */
struct stream *still_first(struct context *c, struct stream **rest);
struct stream *still_next(struct context *c, struct stream *st, struct stream **rest);

/*
 * Of a busy stream. still_other: the one to name instead, as the legacy stream is busy when a blocking one is.
 * still_cause: what it waits for, perhaps in `text`. still_waits_for_program: may the device stay busy until the program
 * does something more? A stream waits for a host function that the program has not asked for, or is in, or may wait for a
 * value in memory; or the device has failed. Consumer.
 */
struct stream *still_other(struct sv_session *s, struct stream *st);
bool still_in_host_function(const struct sv_session *s, const struct stream *st);
bool still_waits_for_program(struct sv_session *s);
const char *still_cause(const struct sv_session *s, const struct stream *st, char *text, size_t n);
void still_name(const struct stream *st, char *text, size_t n);

/* Between two looks: the more there have been, the longer. *naps begins as 0. */
void still_nap(unsigned int *naps);

#endif
