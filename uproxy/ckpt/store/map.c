// SPDX-License-Identifier: Apache-2.0
/*
 * map.c - maps: the places of an object's pages, in a compact form for rows of pages
 *
 *   1 byte    version, 1
 *   varint    bytes of what it maps            (varint: 7 bits a byte, lowest first, bit 7: more)
 *   varint    n, then n segment ids of 8 bytes
 *   runs for all pages; each: varint count << 2 | kind, and for kind 3 a zigzag varint
 *     0 hole
 *     1 behind the run before the last, after a gap of the last run's count (an old run goes on
 *       behind changed pages)
 *     2 right behind the run before the last (more changed pages)
 *     3 elsewhere: distance from the end of the last run
 *
 * A place is a number: index of the segment's id * SEG_SLOTS + slot, so that a run may go on in the
 * next segment.
 *
 * A map may be forged. Two bounds keep what it costs to read it to what its object would cost: its
 * own length (store_map_most), and the data that runs can stand for (DATA_MAX).
 */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "store_i.h"

#define VARINT_MAX 10u
#define DATA_MAX   (1ull << 47)	/* bytes: the addresses of a process. Holes do not count */

enum kind { HOLE, RESUME, CONTINUE, ELSEWHERE };

/* The ends of the last run and the one before it. */
struct ends {
	uint64_t last, before, count;
};

int store_bytes_add(struct bytes *b, const void *p, size_t n)
{
	if (b->len + n > b->room) {
		size_t room = (b->len + n) * 2 + 256;
		uint8_t *q = realloc(b->p, room);

		if (!q)
			return store_fail(-ENOMEM, "out of memory");
		b->p = q;
		b->room = room;
	}
	if (n)
		memcpy(b->p + b->len, p, n);
	b->len += n;
	return 0;
}

int store_bytes_varint(struct bytes *b, uint64_t v)
{
	uint8_t out[10];
	int n = 0;

	do
		out[n++] = (v & 127) | (v > 127 ? 128 : 0);
	while (v >>= 7);
	return store_bytes_add(b, out, n);
}

static void run_done(struct ends *e, uint64_t at, uint64_t count)
{
	e->before = e->last;
	e->last = at + count;
	e->count = count;
}

static int encode_run(struct bytes *out, struct ends *e, uint64_t at, uint64_t count)
{
	int64_t far = at - e->last;
	enum kind k = at == e->before + e->count ? RESUME : at == e->before ? CONTINUE : ELSEWHERE;
	int err = store_bytes_varint(out, count << 2 | k);

	if (!err && k == ELSEWHERE)
		err = store_bytes_varint(out, (uint64_t)far << 1 ^ (uint64_t)(far >> 63));
	run_done(e, at, count);
	return err;
}

static uint64_t place_of(const struct extent *e)
{
	return (uint64_t)e->seg * SEG_SLOTS + e->slot;
}

int store_map_encode(const struct map *m, struct bytes *out)
{
	uint64_t pages = (m->size + STORE_PAGE - 1) / STORE_PAGE, page = 0, count;
	struct ends e = { 0 };
	uint8_t version = 1;
	int err = store_bytes_add(out, &version, 1);

	if (!err)
		err = store_bytes_varint(out, m->size);
	if (!err)
		err = store_bytes_varint(out, m->nids);
	if (!err)
		err = store_bytes_add(out, m->ids, m->nids * sizeof(*m->ids));
	for (size_t i = 0; i < m->n && !err; i++) {
		const struct extent *x = &m->ext[i];

		if (x->page > page)
			err = store_bytes_varint(out, (x->page - page) << 2 | HOLE);
		count = x->count;
		/* A run may go on in the next segment. */
		while (i + 1 < m->n && m->ext[i + 1].page == x->page + count &&
		       place_of(&m->ext[i + 1]) == place_of(x) + count)
			count += m->ext[++i].count;
		if (!err)
			err = encode_run(out, &e, place_of(x), count);
		page = x->page + count;
	}
	if (!err && page < pages)
		err = store_bytes_varint(out, (pages - page) << 2 | HOLE);
	return err;
}

/* ------------------------------------------------------------------------------ decoding */

/* A page takes at most an id and a run; a hole no more bytes than it has pages. */
uint64_t store_map_most(uint64_t size)
{
	uint64_t pages = size / STORE_PAGE + (size % STORE_PAGE != 0);
	uint64_t len = 1 + 2 * VARINT_MAX + pages * (8 + 1 + VARINT_MAX);

	return (len + STORE_PAGE - 1) & ~(uint64_t)(STORE_PAGE - 1);
}

/* The extents of a map that fit in half of this machine's memory. */
static size_t extents_max(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	return pages > 0 && size > 0 ? (size_t)pages * size / 2 / sizeof(struct extent) : SIZE_MAX;
}

static bool get_varint(const uint8_t **p, const uint8_t *end, uint64_t *v)
{
	*v = 0;
	for (int shift = 0; *p < end && shift < 64; shift += 7) {
		uint8_t b = *(*p)++;

		*v |= (uint64_t)(b & 127) << shift;
		if (!(b & 128))
			return true;
	}
	return false;
}

static int add_extent(struct map *m, size_t *room, struct extent x)
{
	if (m->n == *room) {
		size_t more = *room * 2 + 16;
		struct extent *e;

		if (more > 1u << 20 && more > extents_max())
			return store_fail(-EFBIG, "the map of an object of %" PRIu64
					  " bytes takes more memory than this machine can spare",
					  m->size);
		e = realloc(m->ext, more * sizeof(*e));
		if (!e)
			return store_fail(-ENOMEM, "out of memory");
		m->ext = e;
		*room = more;
	}
	m->ext[m->n++] = x;
	return 0;
}

/* Adds a run, cut where segments end. */
static int add_run(struct map *m, size_t *room, uint64_t page, uint64_t at, uint64_t count)
{
	while (count) {
		uint64_t slot = at % SEG_SLOTS, part = SEG_SLOTS - slot;
		int err;

		if (at / SEG_SLOTS >= m->nids)
			return -EBADMSG;
		part = part < count ? part : count;
		err = add_extent(m, room, (struct extent){ page, part, at / SEG_SLOTS, slot });
		if (err)
			return err;
		page += part;
		at += part;
		count -= part;
	}
	return 0;
}

static int decode_runs(const uint8_t *p, const uint8_t *end, struct map *m)
{
	uint64_t pages = m->size / STORE_PAGE + (m->size % STORE_PAGE != 0), page = 0, v, far, at;
	uint64_t data = DATA_MAX / STORE_PAGE;
	struct ends e = { 0 };
	size_t room = 0;

	while (page < pages) {
		uint64_t count;
		int err;

		if (!get_varint(&p, end, &v) || !(count = v >> 2) || count > pages - page)
			return -EBADMSG;
		switch ((enum kind)(v & 3)) {
		case HOLE:
			page += count;
			continue;
		case RESUME:
			at = e.before + e.count;
			break;
		case CONTINUE:
			at = e.before;
			break;
		default:
			if (!get_varint(&p, end, &far))
				return -EBADMSG;
			at = e.last + (far >> 1 ^ -(far & 1));
		}
		if (count > data)
			return store_fail(-EFBIG, "the map of an object of %" PRIu64
					  " bytes stands for more data than an object can have",
					  m->size);
		data -= count;
		err = add_run(m, &room, page, at, count);
		if (err)
			return err;
		run_done(&e, at, count);
		page += count;
	}
	for (; p < end; p++)
		if (*p)
			return -EBADMSG;
	return 0;
}

int store_map_decode(const uint8_t *p, size_t len, struct map *m)
{
	const uint8_t *end = p + len;
	uint64_t n;
	int err = -EBADMSG;

	*m = (struct map){ 0 };
	if (!len || *p++ != 1 || !get_varint(&p, end, &m->size) || !get_varint(&p, end, &n) ||
	    n > (size_t)(end - p) / 8)
		goto bad;
	m->nids = n;
	m->ids = malloc(n * 8 + 8);
	if (!m->ids)
		return store_fail(-ENOMEM, "out of memory");
	memcpy(m->ids, p, n * 8);
	err = decode_runs(p + n * 8, end, m);
	if (!err)
		return 0;
bad:
	store_map_free(m);
	return err == -EBADMSG ? store_fail(err, "the map of an object makes no sense") : err;
}

void store_map_free(struct map *m)
{
	free(m->ids);
	free(m->ext);
	*m = (struct map){ 0 };
}
