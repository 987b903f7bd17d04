/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handover.h - device memory of a session whose job is moved, for the session that a restore makes of it
 *
 *   the former proxy   its client is killed ─► CTL_STAY ─► handover_offer ─► handover_stay, until it is killed
 *   the new proxy      content_restore ─► takeover_open ─► takeover_read, 1 MiB at a time ─► takeover_close
 *
 * The store has the same bytes, and is read if the former proxy does not answer. The former proxy copies from its device
 * into memory that the new one has made: that works between any two devices of a host, and needs no exported memory. Both
 * derive the socket's path from the path of the control socket, which is the same in both lives of the job. The new proxy
 * names the device object that it restores by its ref, which contains a digest of all contents; another object is refused.
 *
 * A proxy of another version of this protocol is refused.
 */
#ifndef HANDOVER_H
#define HANDOVER_H

#include "call.h"
#include "store.h"

#define HANDOVER_ROOM (1ull << 20)	/* bytes of one piece: small enough for the cache */

/* control: the path of the proxy's control socket; before all others. */
void handover_at(const char *control);

/* ------------------------------------------------------------------------------ the former proxy; consumer */

/*
 * From now on whoever knows the ref may read mapped memory of the window, until the process ends; the session stays frozen.
 * -errno: nobody can, and the store will do.
 */
int handover_offer(struct sv_session *s, const struct store_ref *device);

/* Stays until the supervisor is gone, and ends the process; the supervisor kills it before. */
void handover_stay(void) __attribute__((noreturn));

/* ------------------------------------------------------------------------------ the new proxy; any thread */

struct takeover;

/* NULL: no former proxy has this object. pin: a device copies from the memory of the pieces. */
struct takeover *takeover_open(struct sv_session *s, const struct store_ref *device, bool pin);
/* The len bytes that were at va, at most HANDOVER_ROOM, until the next call; NULL: they cannot be had. */
const uint8_t *takeover_read(struct takeover *t, uint64_t va, uint64_t len);
void takeover_close(struct takeover *t);

#endif
