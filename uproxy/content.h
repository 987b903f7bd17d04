/* SPDX-License-Identifier: Apache-2.0 */
/*
 * content.h - what a dump saves of a session's device and channel, and how it comes back
 *
 *   dump:     content_check ─► gate, idle ─► content_dump, observe_dump ─► tree frozen ─► content_channel
 *   restore:  content_channel_image ─► ring_restore ─► content_arena_restore ─► observe_expect
 *             ─► the log is replayed ─► observe_compare ─► content_restore ─► thaw
 *
 * All are called by one thread, which has the session for itself: the consumer takes no records, no
 * worker runs, the device is idle. They enter contexts of the session; the caller's thread is in the
 * primary context afterwards. Errors: -errno and a sentence in why[n], which names what was refused.
 * Common to all: -ENOMEM, -ECANCELED (progress said so), what the store says, -EIO the driver failed.
 */
#ifndef CONTENT_H
#define CONTENT_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/store.h"

struct sv_session;

/* Called some times a second, by the calling thread. Bytes. Not 0: give up (-ECANCELED). NULL: none. */
struct content_progress {
	int (*fn)(void *arg, const char *phase, uint64_t done, uint64_t total);
	void *arg;
};

/* What it took. Bytes and seconds. */
struct content_stats {
	uint64_t bytes;		/* of the device that were looked at */
	uint64_t zero;		/* of these, pages of zeros */
	uint64_t known;		/* pages that the store had and that were not copied to the host */
	uint64_t copied;	/* moved between device and host */
	double seconds;
	const char *digests;	/* who computed them: "device", "host", "direct"; static */
};

/*
 * content_check: can all of the device's state be reached? Before anything is touched; the session
 * need not be idle, but the consumer calls it. -ENOTSUP: no, and why[n] says what and what to do.
 */
int content_check(struct sv_session *s, char *why, size_t n);

/*
 * content_dump: memory, variables of images, arrays: one object of the store. Nothing of the
 * session is changed. The caller flushes the writer. -ENOTSUP as content_check.
 */
int content_dump(struct sv_session *s, struct store *st, struct store_writer *w,
		 struct store_ref *device, const struct content_progress *p,
		 struct content_stats *stats, char *why, size_t n);

/*
 * content_restore: after the replay, the same bytes at the same addresses. -EBADMSG the object is
 * damaged, -ESTALE it does not fit what the replay has made (why names the first difference).
 */
int content_restore(struct sv_session *s, struct store *st, const struct store_ref *device,
		    const struct content_progress *p, struct content_stats *stats, char *why,
		    size_t n);

/*
 * observe_expect: before the replay: textures, surfaces and conditional handles are to be what they
 * were, where the driver lets itself be asked for that.
 *
 * What programs can observe of the driver: addresses of variables, values of texture and surface
 * objects, conditional handles, attributes and parameters of functions. Text, one line each, sorted.
 * observe_compare: -ESTALE, and why names the first line that differs.
 */
int observe_dump(struct sv_session *s, struct store_writer *w, struct store_ref *observed,
		 char *why, size_t n);
int observe_expect(struct store *st, const struct store_ref *observed, char *why, size_t n);
int observe_compare(struct sv_session *s, struct store *st, const struct store_ref *observed,
		    char *why, size_t n);

/*
 * content_channel: once the client is stopped: the channel without its arena, and the arena's pages
 * that have data. Nothing is changed.
 */
int content_channel(struct sv_session *s, struct store_writer *w, struct store_ref *channel,
		    struct store_ref *arena, const struct content_progress *p, char *why, size_t n);

/* content_channel_image: a memfd with what ring_restore reads; the caller owns *fd. */
int content_channel_image(struct store *st, const struct store_ref *channel, int *fd, char *why,
			  size_t n);

/* content_arena_restore: into the arena of s->ring, which becomes what it was, holes included. */
int content_arena_restore(struct sv_session *s, struct store *st, const struct store_ref *arena,
			  const struct content_progress *p, char *why, size_t n);

#endif
