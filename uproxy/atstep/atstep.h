/* SPDX-License-Identifier: Apache-2.0 */
/*
 * atstep.h - has a session run on to the end of a step, where activations are dead (docs/ranks.md, Cut)
 *
 *   serving ── at_step: looks at each record ─► at a boundary: takes no further record ─► its work is done: stands
 *      ▲                                              │                                      │ all stand
 *      │            others have gone further ◄────────┴───── somebody has gone further ◄─────┤
 *      │                   └─► on to the next boundary                                       ▼
 *      └── the time is over, or another proxy gives up ───────── failed             it waits for CTL_FREEZE
 *
 * A proxy at its boundary has decoded, and posted, all that its client has asked for before it; nobody waits for
 * more of it but in a later step. So those that are late finish theirs. If one is in a later step already, it
 * waits there for an operation that this one owes: then this one goes on to the next boundary, until all stand at
 * the same one. What the client has asked for after the boundary stays in the ring, and is saved with it.
 *
 * Meanwhile the client gives back what it frees (sv_shared.at_step), so that dead memory is not in use.
 */
#ifndef ATSTEP_H
#define ATSTEP_H

#include "call.h"
#include "control.h"

/*
 * fd: the meeting's (meeting.h); it stays the caller's. tell: as freeze()'s. 0: it stands, and takes no
 * record until the session is frozen or goes on. -ECANCELED: nobody waits for it, or another proxy has given up;
 * -ETIMEDOUT and other -errno: *why says what this one lacks. Consumer.
 */
int at_step(struct sv_session *s, const struct ctl_step *how, int fd,
	    int (*tell)(uint64_t done, uint64_t total), struct ctl_stepped *to, struct why *why);

/* Of a session that stands: the number of requests that it has seen, and has left in the ring: 0 or 1. */
uint64_t at_step_held(void);

#endif /* ATSTEP_H */
