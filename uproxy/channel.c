// SPDX-License-Identifier: Apache-2.0
/*
 * channel.c - a channel in the store: what ring_save writes, and the pages of its arena
 *
 * The arena is a range of the channel's object. Where that is a file with holes only its data is
 * read (SEEK_DATA); the module's object is read as a whole, through the mapping.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "content_i.h"

#define PIECE (8ull << 20)

static int of_store(int rc, char *why, size_t n)
{
	snprintf(why, n, "%s", store_why());
	return rc;
}

static int tell_progress(const struct content_progress *p, const char *phase, uint64_t done,
			 uint64_t total, char *why, size_t n)
{
	if (!p || !p->fn || !p->fn(p->arg, phase, done, total))
		return 0;
	snprintf(why, n, "given up in the phase \"%s\"", phase);
	return -ECANCELED;
}

/* All of a file that is in memory. */
static int save_file(struct store_writer *w, int fd, struct store_ref *ref, char *why, size_t n)
{
	off_t len = lseek(fd, 0, SEEK_END);
	struct store_object *o;
	void *p;
	int rc;

	p = len > 0 ? mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
	if (p == MAP_FAILED) {
		snprintf(why, n, "the image of the channel cannot be read: %s", strerror(errno));
		return -errno;
	}
	rc = store_object_begin(w, &o);
	if (!rc) {
		rc = store_object_write(o, 0, p, len);
		if (rc)
			store_object_abort(o);
		else
			rc = store_object_end(o, 0, ref);
	}
	munmap(p, len);
	return rc ? of_store(rc, why, n) : 0;
}

static int save_channel(struct sv_session *s, struct store_writer *w, struct store_ref *ref,
			char *why, size_t n)
{
	int fd = memfd_create("channel", MFD_CLOEXEC), rc;

	if (fd < 0) {
		snprintf(why, n, "no memory file for the channel: %s", strerror(errno));
		return -errno;
	}
	rc = ring_save(s->ring, fd, RING_SAVE_NO_ARENA);
	if (rc)
		snprintf(why, n, "the channel cannot be saved: %s", ring_strerror(rc));
	else
		rc = save_file(w, fd, ref, why, n);
	close(fd);
	return rc;
}

static int save_arena(struct sv_session *s, struct store_object *o,
		      const struct content_progress *p, char *why, size_t n)
{
	uint64_t va = (uintptr_t)s->arena, end = va + s->arena_len, at = va, from, to, done = 0;
	struct sparse *sp = sparse_open(ring_fd(s->ring));
	int rc = sp ? 0 : -ENOMEM;

	while (!rc && sparse_next(sp, at, end, &from, &to)) {
		for (at = from; at < to && !rc; at += PIECE) {
			uint64_t len = to - at < PIECE ? to - at : PIECE;

			rc = store_object_write(o, at - va, (void *)(uintptr_t)at, len);
			if (rc)
				of_store(rc, why, n);
			else
				rc = tell_progress(p, "arena", done += len, 0, why, n);
		}
		at = to;
	}
	sparse_close(sp);
	return rc;
}

int content_channel(struct sv_session *s, struct store_writer *w, struct store_ref *channel,
		    struct store_ref *arena, const struct content_progress *p, char *why, size_t n)
{
	struct store_object *o;
	int rc;

	snprintf(why, n, "out of memory");
	rc = save_channel(s, w, channel, why, n);
	if (rc)
		return rc;
	rc = store_object_begin(w, &o);
	if (rc)
		return of_store(rc, why, n);
	rc = save_arena(s, o, p, why, n);
	if (rc) {
		store_object_abort(o);
		return rc;
	}
	rc = store_object_end(o, s->arena_len, arena);
	return rc ? of_store(rc, why, n) : 0;
}

/* ------------------------------------------------------------------------------ restoring */

int content_channel_image(struct store *st, const struct store_ref *channel, int *fd, char *why,
			  size_t n)
{
	struct store_reader *r;
	uint8_t *buf = NULL;
	uint64_t at = 0;
	int rc = store_object_open(st, channel, &r), file;

	if (rc)
		return of_store(rc, why, n);
	file = memfd_create("channel", MFD_CLOEXEC);
	buf = malloc(PIECE);
	rc = file < 0 || !buf ? -ENOMEM : 0;
	while (!rc && at < store_size(r)) {
		ssize_t got = store_read(r, at, buf, PIECE);

		if (got <= 0)
			rc = of_store(got ?: -EBADMSG, why, n);
		else if (pwrite(file, buf, got, at) != got)
			rc = -ENOMEM;
		else
			at += got;
	}
	if (rc == -ENOMEM)
		snprintf(why, n, "out of memory for the image of the channel");
	free(buf);
	store_reader_close(r);
	if (rc && file >= 0)
		close(file);
	*fd = rc ? -1 : file;
	return rc;
}

/* Give back the arena's pages in [from, to), which are to be zeros. */
static int punch(struct sv_session *s, struct sparse *sp, uint64_t from, uint64_t to)
{
	uint64_t va = (uintptr_t)s->arena, a, b;

	while (sparse_next(sp, va + from, va + to, &a, &b)) {
		if (ring_decommit(s->ring, a - va, b - a))
			memset((void *)(uintptr_t)a, 0, b - a);
		from = b - va;
	}
	return 0;
}

static int read_range(struct sv_session *s, struct store_reader *r, uint64_t from, uint64_t to)
{
	while (from < to) {
		ssize_t got = store_read(r, from, arena_at(s, from),
					 to - from < PIECE ? to - from : PIECE);

		if (got <= 0)
			return got ?: -EBADMSG;
		from += got;
	}
	return 0;
}

int content_arena_restore(struct sv_session *s, struct store *st, const struct store_ref *arena,
			  const struct content_progress *p, char *why, size_t n)
{
	struct sparse *sp = sparse_open(ring_fd(s->ring));
	uint64_t at = 0, from, to;
	struct store_reader *r;
	int rc = sp ? store_object_open(st, arena, &r) : -ENOMEM;

	if (rc) {
		sparse_close(sp);
		return of_store(rc, why, n);
	}
	if (store_size(r) != s->arena_len) {
		snprintf(why, n, "the arena had %llu bytes, and has %llu",
			 (unsigned long long)store_size(r), (unsigned long long)s->arena_len);
		rc = -ESTALE;
	}
	while (!rc && at < s->arena_len) {
		rc = store_next_data(r, at, &from, &to);
		if (rc == -ENXIO) {
			from = to = s->arena_len;
			rc = 0;
		} else if (rc) {
			of_store(rc, why, n);
			break;
		}
		punch(s, sp, at, from);
		rc = read_range(s, r, from, to);
		if (rc)
			of_store(rc, why, n);
		else
			rc = tell_progress(p, "arena", to, s->arena_len, why, n);
		at = to;
	}
	store_reader_close(r);
	sparse_close(sp);
	return rc;
}
