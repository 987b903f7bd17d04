/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - opens a client's session, and fills in sv_shared
 */
#ifndef SESSION_H
#define SESSION_H

#include "call.h"
#include "why.h"
#include "windows.h"

struct session_options {
	const char *driver;
	uint64_t budget;
	struct sv_window window[SV_WINDOWS_MAX];	/* tried in turn; none: the usual ones */
	int windows;
	enum ring_backend backend;
	int device;			/* the logical device of a client that asks for none (-1) */
	/*
	 * From the table of tools/job/seating.h. map: the driver's device of each logical one. sharers: how many ranks
	 * share each of the driver's devices.
	 */
	uint16_t map[SV_DEVICES_MAX], sharers[SV_DEVICES_MAX];
	/* Of each of the driver's devices: a socket's first end (common.h), the second being the next number; 0: no slices. */
	uint16_t slices[SV_DEVICES_MAX];
	/* Sharers of a device may each have nearly all of it, as long as it fits together (slice/crowd.h); else equal parts. */
	bool whole;
	bool mapped;			/* map is set; else logical and driver's numbers are the same */
	uint32_t devices;		/* how many logical devices there are; 0: as many as the driver has */
};

/*
 * Opens the device and the channel, and fills in sv_shared. home: if the client has sessions already (con->others),
 * the fd of the first one's channel, which stays the caller's. -errno, also in *why.
 */
int uproxy_session_open(struct sv_session *s, const struct session_options *o,
			const struct sv_connect *con, int home, struct why *why);

/*
 * After uproxy_session_device: if the proxy shares that device by slices, says so to slice/common.h. Then s->budget is the
 * memory of all sharers. If it shares the device together and may be moved (o->whole), it tells slice/crowd.h. -errno and *why.
 */
int session_shares(struct sv_session *s, const struct session_options *o, struct why *why);

/*
 * The first part of uproxy_session_open: opens driver, window and device, but no channel. It tries the n windows in
 * turn, and takes the first that the driver reserves. anywhere: if the driver reserves none, it may choose one.
 */
int uproxy_session_device(struct sv_session *s, const struct session_options *o,
			  const struct sv_window *w, int n, bool anywhere, int device, struct why *why);

/* Is this process's address space randomised? Then a driver may place modules elsewhere each time. */
bool addresses_random(void);

/* "memfd" or "kmod". */
const char *session_backend(const struct sv_session *s);

/*
 * Sets s->arena, and makes the tables for the window. home: the fd of the channel whose arena the session uses, or -1:
 * its own channel's. Errors of ring_map_arena, -ENOMEM.
 */
int session_arena(struct sv_session *s, int home, struct why *why);

/* Describes the driver's device i in *d, a row of sv_shared. */
void session_describe(struct hal *h, int i, struct sv_device *d);

/* Has what kernels print go to the client. restored: sv_shared is that of a saved session. */
int session_print(struct sv_session *s, bool restored, struct why *why);

#endif
