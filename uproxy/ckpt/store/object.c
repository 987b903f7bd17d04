// SPDX-License-Identifier: Apache-2.0
/*
 * object.c - writes objects: pages become extents, extents a map, a map a ref
 *
 * An object of one page is that page. A longer one has a map. A map longer than a page is stored
 * like an object, with a map of its own, until a map fits in a page: the ref names that page.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "store_i.h"

struct store_object {
	struct store_writer *w;
	struct extent *ext;
	size_t n, room;
	uint64_t end;		/* behind the last byte written */
	uint64_t high;		/* the largest `end` so far */
	struct place at;	/* where the next page is expected */
	uint8_t *tail;		/* a page that is being filled, up to `end` */
	bool lane;		/* w is its own */
	uint64_t first;		/* first page of the call under way */
	const uint8_t *data;
};

int store_object_begin(struct store_writer *w, struct store_object **out)
{
	struct store_object *o;
	int err = store_writer_error(w);

	*out = NULL;
	if (err)
		return err;
	o = calloc(1, sizeof(*o));
	if (!o)
		return store_fail(-ENOMEM, "out of memory");
	o->w = w;
	*out = o;
	return 0;
}

int store_object_expect(struct store_object *o, uint64_t bytes)
{
	return store_lookup_expect(store_writer_store(o->w), bytes / STORE_PAGE);
}

int store_object_lane(struct store_object *o, struct store_object **out)
{
	struct store_writer *w;
	int err = store_writer_lane(o->w, &w);

	*out = NULL;
	if (err)
		return err;
	err = store_object_begin(w, out);
	if (err)
		store_writer_close(w);
	else
		(*out)->lane = true;
	return err;
}

void store_object_abort(struct store_object *o)
{
	if (!o)
		return;
	if (o->lane)
		store_writer_close(o->w);
	free(o->tail);
	free(o->ext);
	free(o);
}

static int link_page(struct store_object *o, uint64_t page, struct place p)
{
	struct extent *x = o->n ? &o->ext[o->n - 1] : NULL;

	if (x && x->page + x->count == page && x->seg == p.seg && x->slot + x->count == p.slot) {
		x->count++;
		return 0;
	}
	if (o->n == o->room) {
		size_t room = o->room * 2 + 64;

		x = realloc(o->ext, room * sizeof(*x));
		if (!x)
			return store_fail(-ENOMEM, "out of memory");
		o->ext = x;
		o->room = room;
	}
	o->ext[o->n++] = (struct extent){ page, 1, p.seg, p.slot };
	return 0;
}

/* Stores a run of up to 64 pages, whose digests are d. */
static int put_run(void *arg, size_t first, size_t n, const struct store_digest *d)
{
	struct store_object *o = arg;
	struct store_digest zero = store_zero(store_writer_store(o->w));
	unsigned int zeros = 0, new;
	struct place p[64];
	uint64_t fresh;
	int err = store_writer_put(o->w, d, o->data + first * STORE_PAGE, n, &o->at, p, &fresh);

	for (size_t i = 0; i < n && !err; i++) {
		if (digest_equal(d[i], zero))
			zeros++;
		else
			err = link_page(o, o->first + first + i, p[i]);
	}
	new = __builtin_popcountll(fresh);
	if (!err)
		store_writer_count(o->w, zeros * (uint64_t)STORE_PAGE,
				   (n - zeros - new) * STORE_PAGE, new * (uint64_t)STORE_PAGE);
	return err;
}

static int put_pages(struct store_object *o, uint64_t page, const uint8_t *data, size_t n)
{
	o->first = page;
	o->data = data;
	return store_writer_hash(o->w, data, n, put_run, o);
}

/* Stores the page that was being filled, padded with zeros. */
static int put_tail(struct store_object *o)
{
	size_t used = o->end % STORE_PAGE;

	if (!used)
		return 0;
	memset(o->tail + used, 0, STORE_PAGE - used);
	return put_pages(o, o->end / STORE_PAGE, o->tail, 1);
}

/* Fills the page that `end` lies in; returns how much of it was taken. */
static ssize_t fill_tail(struct store_object *o, const void *data, size_t len)
{
	size_t used = o->end % STORE_PAGE;
	int err;

	if (!o->tail && !(o->tail = malloc(STORE_PAGE)))
		return store_fail(-ENOMEM, "out of memory");
	if (len > STORE_PAGE - used)
		len = STORE_PAGE - used;
	memcpy(o->tail + used, data, len);
	o->end += len;
	if (o->end % STORE_PAGE == 0) {
		err = put_pages(o, o->end / STORE_PAGE - 1, o->tail, 1);
		if (err)
			return err;
	}
	return len;
}

static int write_some(struct store_object *o, uint64_t off, const uint8_t *data, size_t len)
{
	size_t whole;
	ssize_t n;
	int err;

	if (off == o->end && off % STORE_PAGE) {
		n = fill_tail(o, data, len);
		if (n < 0)
			return n;
		data += n;
		len -= n;
	} else {
		err = put_tail(o);
		if (err)
			return err;
		o->end = off;
	}
	whole = len / STORE_PAGE;
	if (whole) {
		err = put_pages(o, o->end / STORE_PAGE, data, whole);
		if (err)
			return err;
		o->end += whole * STORE_PAGE;
	}
	n = len % STORE_PAGE ? fill_tail(o, data + whole * STORE_PAGE, len % STORE_PAGE) : 0;
	return n < 0 ? n : 0;
}

int store_object_write(struct store_object *o, uint64_t off, const void *data, size_t len)
{
	int err = store_writer_error(o->w);

	if (err)
		return err;
	if (off % STORE_PAGE && off != o->end)
		return store_fail(-EINVAL,
				  "a write at byte %" PRIu64
				  " is neither at the beginning of a page nor behind the last one",
				  off);
	if (off + len < off || off + len > INT64_MAX)
		return store_fail(-EINVAL, "an object of more than 2^63 bytes");
	if (!len)
		return 0;
	err = write_some(o, off, data, len);
	if (o->end > o->high)
		o->high = o->end;
	return err;
}

ssize_t store_object_digests(struct store_object *o, uint64_t off, const struct store_digest *d,
			     size_t pages, uint8_t *missing)
{
	struct store_digest zero = store_zero(store_writer_store(o->w));
	struct place p[64];
	ssize_t count = 0;
	uint64_t zeros = 0;
	int err = store_writer_error(o->w);

	if (!err && (off % STORE_PAGE || off / STORE_PAGE + pages > INT64_MAX / STORE_PAGE))
		err = store_fail(-EINVAL, "digests of pages at byte %" PRIu64, off);
	for (size_t at = 0; at < pages && !err; at += 64) {
		size_t n = pages - at < 64 ? pages - at : 64;

		store_writer_known(o->w, d + at, n, &o->at, p);
		for (size_t i = 0; i < n && !err; i++) {
			bool nothing = digest_equal(d[at + i], zero);

			missing[at + i] = !nothing && !p[i].seg;
			count += missing[at + i];
			zeros += nothing;
			if (p[i].seg)
				err = link_page(o, off / STORE_PAGE + at + i, p[i]);
		}
	}
	if (err)
		return err;
	store_writer_count(o->w, zeros * STORE_PAGE, (pages - zeros - count) * STORE_PAGE, 0);
	if (off + pages * STORE_PAGE > o->high)
		o->high = off + pages * STORE_PAGE;
	return count;
}

/* A page in 64 is hashed here, so that a device whose digests are wrong is found out. */
static int check_digest(const struct store_object *o, uint64_t off, const uint8_t *data,
			struct store_digest d)
{
	if (digest_equal(store_hash(store_writer_store(o->w), data), d))
		return 0;
	return store_fail(-EBADMSG, "the digest given for the page at byte %" PRIu64
			  " is not that of its bytes", off);
}

int store_object_put(struct store_object *o, uint64_t off, const void *data, size_t pages,
		     const struct store_digest *d)
{
	int err = store_writer_error(o->w) ?: put_tail(o);

	if (!err && (off % STORE_PAGE || off / STORE_PAGE + pages > INT64_MAX / STORE_PAGE))
		err = store_fail(-EINVAL, "pages at byte %" PRIu64, off);
	o->first = off / STORE_PAGE;
	o->data = data;
	for (size_t at = 0; at < pages && !err; at += 64) {
		size_t n = pages - at < 64 ? pages - at : 64;

		err = check_digest(o, off + at * STORE_PAGE, o->data + at * STORE_PAGE, d[at]) ?:
		      put_run(o, at, n, d + at);
	}
	if (err)
		return err;
	o->end = off + pages * STORE_PAGE;
	if (o->end > o->high)
		o->high = o->end;
	return 0;
}

int store_object_flush(struct store_object *o)
{
	int err = store_writer_error(o->w) ?: put_tail(o);

	o->end += -o->end % STORE_PAGE;
	return err ?: store_writer_flush(o->w);
}

int store_object_join(struct store_object *o, struct store_object *lane)
{
	int err = store_object_flush(lane);
	struct extent *x = err ? NULL : realloc(o->ext, (o->n + lane->n) * sizeof(*x) ?: 1);

	if (!err && !x)
		err = store_fail(-ENOMEM, "out of memory");
	if (!err) {
		memcpy(x + o->n, lane->ext, lane->n * sizeof(*x));
		o->ext = x;
		o->n = o->room = o->n + lane->n;
		o->high = lane->high > o->high ? lane->high : o->high;
	}
	store_object_abort(lane);
	return err;
}

/* ------------------------------------------------------------------------------ the end */

static int by_page(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;

	return x->page < y->page ? -1 : x->page > y->page;
}

static int sort_extents(struct store_object *o, uint64_t size)
{
	bool sorted = true;

	for (size_t i = 1; i < o->n && sorted; i++)
		sorted = o->ext[i].page >= o->ext[i - 1].page + o->ext[i - 1].count;
	if (!sorted)
		qsort(o->ext, o->n, sizeof(*o->ext), by_page);
	for (size_t i = 1; i < o->n; i++)
		if (o->ext[i].page < o->ext[i - 1].page + o->ext[i - 1].count)
			return store_fail(-EINVAL, "page %" PRIu64 " of an object was given twice",
					  o->ext[i].page);
	if (o->high > size)
		return store_fail(-EINVAL, "an object of %" PRIu64 " bytes was given %" PRIu64,
				  size, o->high);
	return 0;
}

/* Numbers the segments of `ext` in the order in which they appear; m->ids gets their ids. */
static int number_segs(struct store *s, struct extent *ext, size_t n, struct map *m)
{
	uint32_t *number = NULL, segs;
	int err = 0;

	lock_take(&s->mutex);
	segs = s->nsegs;
	number = calloc(segs, sizeof(*number));
	m->ids = malloc(segs * sizeof(*m->ids));
	if (!number || !m->ids)
		err = store_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < n && !err; i++) {
		uint32_t g = ext[i].seg;

		if (!number[g]) {
			m->ids[m->nids++] = s->segs[g]->id;
			number[g] = m->nids;
		}
		ext[i].seg = number[g] - 1;
	}
	lock_drop(&s->mutex);
	free(number);
	return err;
}

static void make_ref(struct store *s, struct store_ref *ref, uint64_t size, unsigned int depth,
		     struct place p, struct store_digest d)
{
	struct disk_ref r = { .size = size };

	if (p.seg) {
		lock_take(&s->mutex);
		r.seg = s->segs[p.seg]->id;
		lock_drop(&s->mutex);
		r.slot = p.slot | depth << 24;
		memcpy(r.digest, &d, sizeof(r.digest));
	}
	memcpy(ref, &r, sizeof(r));
}

/* Stores a page of a map: it counts in no statistics but the bytes stored. */
static int put_own(struct store_writer *w, const uint8_t *page, struct place *p,
		   struct store_digest *d)
{
	struct place at = { 0 };
	uint64_t fresh;

	*d = store_hash(store_writer_store(w), page);
	return store_writer_put(w, d, page, 1, &at, p, &fresh);
}

/* Stores a map that is longer than a page; `m` becomes the map of the map. */
static int store_map(struct store_writer *w, struct bytes *b, struct map *m)
{
	size_t pages = (b->len + STORE_PAGE - 1) / STORE_PAGE;
	struct store_digest d;
	struct place p;
	int err = 0;

	store_map_free(m);
	m->size = b->len;
	m->ext = calloc(pages, sizeof(*m->ext));
	if (!m->ext)
		return store_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < pages && !err; i++) {
		err = put_own(w, b->p + i * STORE_PAGE, &p, &d);
		m->ext[m->n++] = (struct extent){ i, 1, p.seg, p.slot };
	}
	return err ? err : number_segs(store_writer_store(w), m->ext, m->n, m);
}

static int encode_padded(const struct map *m, struct bytes *b)
{
	static const uint8_t zeros[STORE_PAGE];
	int err;

	b->len = 0;
	err = store_map_encode(m, b);
	return err ? err : store_bytes_add(b, zeros, -b->len % STORE_PAGE);
}

static int finish_object(struct store_object *o, uint64_t size, struct store_ref *ref)
{
	struct store *s = store_writer_store(o->w);
	struct store_digest d = { 0 };
	struct map m = { .size = size };
	struct place p = { 0 };
	struct bytes b = { 0 };
	unsigned int depth = 1;
	int err = 0;

	if (!o->n || size <= STORE_PAGE) {
		if (o->n) {
			p = (struct place){ o->ext[0].seg, o->ext[0].slot };
			lock_take(&s->mutex);
			err = store_seg_load(s, s->segs[p.seg]);
			if (!err)
				d = s->segs[p.seg]->digests[p.slot];
			lock_drop(&s->mutex);
		}
		make_ref(s, ref, size, 0, p, d);
		return err;
	}
	err = number_segs(s, o->ext, o->n, &m);
	m.ext = o->ext;
	m.n = o->n;
	o->ext = NULL;
	if (!err)
		err = encode_padded(&m, &b);
	for (; !err && b.len > STORE_PAGE; depth++) {
		err = store_map(o->w, &b, &m);
		if (!err)
			err = encode_padded(&m, &b);
	}
	if (!err)
		err = put_own(o->w, b.p, &p, &d);
	if (!err)
		make_ref(s, ref, size, depth, p, d);
	store_map_free(&m);
	free(b.p);
	return err;
}

int store_object_end(struct store_object *o, uint64_t size, struct store_ref *ref)
{
	int err = store_writer_error(o->w);

	memset(ref, 0, sizeof(*ref));
	if (!err)
		err = put_tail(o);
	if (!size)
		size = o->high;
	if (!err)
		err = sort_extents(o, size);
	if (!err)
		err = finish_object(o, size, ref);
	store_object_abort(o);
	return err;
}

int store_object_whole(struct store_writer *w, const void *data, size_t len, struct store_ref *ref)
{
	struct store_object *o;
	int err = store_object_begin(w, &o);

	if (err)
		return err;
	err = len ? store_object_write(o, 0, data, len) : 0;
	if (!err)
		return store_object_end(o, len, ref);
	store_object_abort(o);
	return err;
}
