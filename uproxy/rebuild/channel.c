// SPDX-License-Identifier: Apache-2.0
/*
 * channel.c - saves a channel in the store, and restores it: ring_save's image, the arena's pages
 *
 * The arena is a range of the channel's memory object. Only its data is read where the object has
 * holes (SEEK_DATA); the module's object is read as a whole, through the mapping.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"
#include "content_i.h"

#define PIECE (8ull << 20)

static int tell_progress(const struct content_progress *p, const char *phase, uint64_t done,
			 uint64_t total, struct why *why)
{
	if (!p || !p->fn || !p->fn(p->arg, phase, done, total))
		return 0;
	return why_set(why, -ECANCELED, "given up in the phase \"%s\"", phase);
}

/* Saves a whole memfd. */
static int save_file(struct store_writer *w, int fd, struct store_ref *ref, struct why *why)
{
	off_t len = lseek(fd, 0, SEEK_END);
	void *p;
	int rc;

	p = len > 0 ? mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
	if (p == MAP_FAILED) {
		rc = len > 0 ? -errno : -EIO;
		return why_set(why, rc, "the image of the channel cannot be read: %s",
			       strerror(-rc));
	}
	rc = store_object_whole(w, p, len, ref);
	munmap(p, len);
	return store_failed(why, rc);
}

static int save_channel(struct sv_session *s, struct store_writer *w, struct store_ref *ref,
			struct why *why)
{
	int fd = memfd_create("channel", MFD_CLOEXEC), rc;

	if (fd < 0)
		return why_set(why, -errno, "no memory file for the channel: %s", strerror(errno));
	rc = ring_save(s->ring, fd, RING_SAVE_NO_ARENA);
	if (rc)
		why_set(why, rc, "the channel cannot be saved: %s", ring_strerror(rc));
	else
		rc = save_file(w, fd, ref, why);
	close(fd);
	return rc;
}

/* The arena of the session's own channel: a guest's has only what it shares with its client. */
static uint64_t own_arena(const struct sv_session *s, uint64_t *len)
{
	*len = s->guest ? ring_geometry(s->ring)->arena_len : s->arena_len;
	return (uintptr_t)s->shared;
}

static int save_arena(struct sv_session *s, struct store_object *o,
		      const struct content_progress *p, struct why *why)
{
	uint64_t len, va = own_arena(s, &len), end = va + len, at = va, from, to, done = 0;
	struct sparse *sp = sparse_open(ring_fd(s->ring));
	int rc = why_text(why, sp ? 0 : -ENOMEM, "");

	while (!rc && sparse_next(sp, at, end, &from, &to)) {
		for (at = from; at < to && !rc; at += PIECE) {
			uint64_t n = to - at < PIECE ? to - at : PIECE;

			rc = store_object_write(o, at - va, (void *)(uintptr_t)at, n);
			rc = store_failed(why, rc);
			if (!rc)
				rc = tell_progress(p, "arena", done += n, 0, why);
		}
		at = to;
	}
	sparse_close(sp);
	return rc;
}

int content_channel(struct sv_session *s, struct store_writer *w, struct store_ref *channel,
		    struct store_ref *arena, const struct content_progress *p, struct why *why)
{
	struct store_object *o;
	uint64_t len;
	int rc;

	own_arena(s, &len);
	rc = save_channel(s, w, channel, why);
	if (rc)
		return rc;
	rc = store_failed(why, store_object_begin(w, &o));
	if (rc)
		return rc;
	rc = save_arena(s, o, p, why);
	if (rc) {
		store_object_abort(o);
		return rc;
	}
	return store_failed(why, store_object_end(o, len, arena));
}

/* ------------------------------------------------------------------------------ restoring */

int content_channel_image(struct store *st, const struct store_ref *channel, int *fd,
			  struct why *why)
{
	struct store_reader *r;
	uint8_t *buf = NULL;
	uint64_t at = 0;
	int rc = store_failed(why, store_object_open(st, channel, &r)), file;

	if (rc)
		return rc;
	file = memfd_create("channel", MFD_CLOEXEC);
	buf = malloc(PIECE);
	rc = file < 0 || !buf ? -ENOMEM : 0;
	while (!rc && at < store_size(r)) {
		ssize_t got = store_read(r, at, buf, PIECE);

		if (got <= 0)
			rc = store_failed(why, got ?: -EBADMSG);
		else if (pwrite(file, buf, got, at) != got)
			rc = -ENOMEM;
		else
			at += got;
	}
	if (rc == -ENOMEM)
		why_set(why, rc, "out of memory for the image of the channel");
	free(buf);
	store_reader_close(r);
	if (rc && file >= 0)
		close(file);
	*fd = rc ? -1 : file;
	return rc;
}

/* Frees the arena's pages in [from, to), which become zeros. */
static int punch(struct sv_session *s, struct sparse *sp, uint64_t from, uint64_t to)
{
	uint64_t len, va = own_arena(s, &len), a, b;

	while (sparse_next(sp, va + from, va + to, &a, &b)) {
		if (ring_decommit(s->ring, a - va, b - a))
			memset((void *)(uintptr_t)a, 0, b - a);
		from = b - va;
	}
	return 0;
}

static int read_range(struct sv_session *s, struct store_reader *r, uint64_t from, uint64_t to)
{
	uint64_t len, va = own_arena(s, &len);

	while (from < to) {
		ssize_t got = store_read(r, from, (void *)(uintptr_t)(va + from),
					 to - from < PIECE ? to - from : PIECE);

		if (got <= 0)
			return got ?: -EBADMSG;
		from += got;
	}
	return 0;
}

/* What is to have data must be there first. */
static int fill_range(struct sv_session *s, struct store_reader *r, uint64_t from, uint64_t to)
{
	uint64_t page = from & -4096ull, end = (to + 4095) & -4096ull;

	return from < to ? ring_commit(s->ring, page, end - page) ?: read_range(s, r, from, to) : 0;
}

int content_arena_restore(struct sv_session *s, struct store *st, const struct store_ref *arena,
			  const struct content_progress *p, struct why *why)
{
	struct sparse *sp = sparse_open(ring_fd(s->ring));
	uint64_t at = 0, from, to, len;
	struct store_reader *r;
	int rc = store_failed(why, sp ? store_object_open(st, arena, &r) : -ENOMEM);

	if (rc) {
		sparse_close(sp);
		return rc;
	}
	own_arena(s, &len);
	if (store_size(r) != len)
		rc = why_set(why, -ESTALE, "the arena had %llu bytes, and has %llu",
			     (unsigned long long)store_size(r), (unsigned long long)len);
	while (!rc && at < len) {
		rc = store_next_data(r, at, &from, &to);
		if (rc == -ENXIO) {
			from = to = len;
			rc = 0;
		} else if (store_failed(why, rc)) {
			break;
		}
		punch(s, sp, at, from);
		rc = store_failed(why, fill_range(s, r, from, to));
		if (!rc)
			rc = tell_progress(p, "arena", to, len, why);
		at = to;
	}
	store_reader_close(r);
	sparse_close(sp);
	return rc;
}
