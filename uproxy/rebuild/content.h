/* SPDX-License-Identifier: Apache-2.0 */
/*
 * content.h - what a dump saves of a session's device and channel, and how it comes back
 *
 *   dump:     content_check ─► gate, idle ─► content_dump, observe_dump ─► tree frozen ─► content_channel
 *   restore:  content_channel_image ─► ring_restore ─► content_arena_restore ─► observe_expect
 *             ─► the log is replayed ─► observe_compare ─► content_restore ─► thaw
 *
 * One thread calls them all and has the session to itself: the consumer takes no records, no worker
 * runs, the device is idle. They enter contexts of the session; the primary one is current
 * afterwards. Errors: -errno, and *why names what was refused. Common to all:
 * -ENOMEM, -ECANCELED (progress asked for it), errors of the store, -EIO the driver failed.
 */
#ifndef CONTENT_H
#define CONTENT_H

#include <stddef.h>
#include <stdint.h>

#include "store.h"

struct sv_session;

/* The calling thread calls fn some times a second, with bytes. Not 0: give up (-ECANCELED). */
struct content_progress {
	int (*fn)(void *arg, const char *phase, uint64_t done, uint64_t total);
	void *arg;
};

/* Bytes and seconds. */
struct content_stats {
	uint64_t bytes;		/* of device contents that were saved or restored */
	uint64_t zero;		/* of these, in pages of zeros */
	uint64_t known;		/* of these, in pages that the store had and nobody copied */
	uint64_t copied;	/* moved between device and host */
	uint64_t handed;	/* of these, by the former proxy (handover.h) */
	double seconds;
	const char *digests;	/* who computed them: "device", "host", "direct"; static */
};

/*
 * content_check: can all of the device's state be saved? Changes nothing. The session need not be
 * idle, but the consumer calls it. -ENOTSUP: no; *why names the obstacle and the remedy.
 */
int content_check(struct sv_session *s, struct why *why);

/*
 * content_dump: saves memory, variables of images and arrays as one object of the store. Changes
 * nothing in the session. The caller flushes the writer. -ENOTSUP as content_check.
 */
int content_dump(struct sv_session *s, struct store *st, struct store_writer *w,
		 struct store_ref *device, const struct content_progress *p,
		 struct content_stats *stats, struct why *why);

/*
 * content_restore: after the replay, writes the same bytes to the same addresses. -EBADMSG the
 * object is damaged, -ESTALE the replay has made other regions (*why names the first difference).
 */
int content_restore(struct sv_session *s, struct store *st, const struct store_ref *device,
		    const struct content_progress *p, struct content_stats *stats, struct why *why);

/*
 * What programs can observe of the driver's choices: addresses of variables, values of texture and
 * surface objects, conditional handles, attributes and parameters of functions. They are saved as
 * text, a line each, sorted.
 * observe_expect, before the replay: asks the driver for the same values of textures, surfaces and
 * conditional handles again (hal_next_value).
 * observe_compare, after it: -ESTALE, and why names the first line that differs.
 */
int observe_dump(struct sv_session *s, struct store_writer *w, struct store_ref *observed,
		 struct why *why);
int observe_expect(struct store *st, const struct store_ref *observed, struct why *why);
int observe_compare(struct sv_session *s, struct store *st, const struct store_ref *observed,
		    struct why *why);

/*
 * content_channel: once the client is stopped, saves the channel without its arena, and the arena's
 * pages that have data. Changes nothing.
 */
int content_channel(struct sv_session *s, struct store_writer *w, struct store_ref *channel,
		    struct store_ref *arena, const struct content_progress *p, struct why *why);

/* content_channel_image: makes a memfd with the image for ring_restore; the caller owns *fd. */
int content_channel_image(struct store *st, const struct store_ref *channel, int *fd,
			  struct why *why);

/* content_arena_restore: restores the arena of s->ring, holes included. */
int content_arena_restore(struct sv_session *s, struct store *st, const struct store_ref *arena,
			  const struct content_progress *p, struct why *why);

#endif
