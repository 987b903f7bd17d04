// SPDX-License-Identifier: Apache-2.0
/*
 * store_read.c - objects while they are read: up to 32 reads in flight, each page checked
 *
 * An input keeps the segments it reads from open and their indices pinned, 64 at a time. Pages go
 * straight into the caller's memory where its alignment allows that, else through a window.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store_i.h"

#define DEPTH	 32
#define PIECE	 256u	/* pages read by one request, and in the window */
#define SOURCES	 64
#define MAP_MAX	 (1ul << 32)

struct source {
	struct seg *seg;
	int fd;
	char name[SEG_NAME];
};

struct piece {
	struct io_req req;
	struct source *src;
	uint32_t slot;
	struct piece *next;
};

struct input {
	struct store *s;
	struct io_lane lane;
	struct source src[SOURCES];
	struct piece pieces[DEPTH], *free;
	uint8_t *packed, *frame;	/* zstd: FRAME_SLOTS pages each; what `frame` holds: */
	uint64_t frame_seg;
	uint32_t frame_no;
	input_row row;			/* input_walk: told of what is needed on the way */
	void *row_arg;
};

struct store_reader {
	struct input *in;
	struct map map;
	uint8_t *window;		/* PIECE pages, of which it holds [first, first + n) */
	uint64_t first;
	size_t n, ahead;
};

int input_open(struct store *s, struct input **out)
{
	struct input *in = calloc(1, sizeof(*in));

	*out = in;
	if (!in)
		return fail(-ENOMEM, "out of memory");
	in->s = s;
	for (int i = 0; i < DEPTH; i++) {
		in->pieces[i].next = in->free;
		in->free = &in->pieces[i];
	}
	return io_lane_init(&in->lane, DEPTH, NULL, 0);
}

static void drop_source(struct input *in, struct source *src)
{
	if (!src->seg)
		return;
	close(src->fd);
	seg_unpin(in->s, src->seg);
	src->seg = NULL;
}

void input_close(struct input *in)
{
	if (!in)
		return;
	io_lane_exit(&in->lane);
	for (int i = 0; i < SOURCES; i++)
		drop_source(in, &in->src[i]);
	free(in->packed);
	free(in->frame);
	free(in);
}

/* Checks the pages of one request that is back. */
static int take_piece(struct input *in, struct io_req *r)
{
	struct piece *p = r->owner;
	int err = r->res ? fail_io(r->res, "read", r->name) : 0;

	if (r->res == -ENODATA)
		err = fail(-EBADMSG, "%s is damaged: it is cut short", r->name);
	for (size_t i = 0; i < r->len / STORE_PAGE && !err; i++)
		if (!digest_equal(store_hash(in->s, r->buf + i * STORE_PAGE),
				  p->src->seg->digests[p->slot + i]))
			err = fail(-EBADMSG, "%s is damaged at byte %" PRIu64
				   ": a page is not what was written", r->name,
				   r->off + i * STORE_PAGE);
	p->next = in->free;
	in->free = p;
	return err;
}

static int drain(struct input *in, int err)
{
	struct io_req *r;

	while ((r = io_lane_wait(&in->lane))) {
		int bad = take_piece(in, r);

		err = err ? err : bad;
	}
	return err;
}

static int get_source(struct input *in, uint64_t id, struct source **out)
{
	struct source *src = &in->src[(id ^ id >> 32) % SOURCES];
	int err;

	*out = src;
	if (src->seg && src->seg->id == id)
		return 0;
	err = drain(in, 0);
	if (err)
		return err;
	drop_source(in, src);
	err = seg_pin(in->s, id, &src->seg);
	if (err)
		return err;
	seg_name(id, src->name);
	/* Compressed pages lie at any byte. */
	src->fd = seg_open(in->s, id, src->seg->zstd ? 0 : O_DIRECT);
	if (src->fd < 0) {
		seg_unpin(in->s, src->seg);
		src->seg = NULL;
	}
	return src->fd < 0 ? src->fd : 0;
}

static int read_packed(struct input *in, struct source *src, uint32_t slot, uint32_t n, uint8_t *to)
{
	const size_t len = FRAME_SLOTS * STORE_PAGE;
	int err = 0;

	if (!in->frame) {
		in->packed = aligned_alloc(STORE_PAGE, len);
		in->frame = aligned_alloc(STORE_PAGE, len);
		if (!in->packed || !in->frame)
			return fail(-ENOMEM, "out of memory");
	}
	for (; n && !err; n--, slot++, to += STORE_PAGE) {
		uint32_t no = slot / FRAME_SLOTS;

		if (in->frame_seg != src->seg->id || in->frame_no != no) {
			in->frame_seg = 0;
			err = seg_read_frame(src->seg, src->fd, no, in->packed, in->frame);
			if (err)
				return err;
			in->frame_seg = src->seg->id;
			in->frame_no = no;
		}
		memcpy(to, in->frame + slot % FRAME_SLOTS * STORE_PAGE, STORE_PAGE);
		if (!digest_equal(store_hash(in->s, to), src->seg->digests[slot]))
			err = fail(-EBADMSG, "%s is damaged: page %u is not what was written",
				   src->name, slot);
	}
	return err;
}

static int read_piece(struct input *in, struct source *src, uint32_t slot, uint32_t n, uint8_t *to)
{
	struct piece *p;
	int err = 0;

	for (uint32_t i = 0; i < n; i++)
		if (slot + i >= src->seg->slots || digest_none(src->seg->digests[slot + i]))
			return fail(-ENODATA, "%s has no page %u: it was cleaned away, or never there",
				    src->name, slot + i);
	if (src->seg->zstd)
		return read_packed(in, src, slot, n, to);
	if (!in->free) {
		io_lane_go(&in->lane);
		err = take_piece(in, io_lane_wait(&in->lane));
	}
	if (err)
		return err;
	p = in->free;
	in->free = p->next;
	p->src = src;
	p->slot = slot;
	p->req = (struct io_req){ .op = IO_READ, .fd = src->fd, .name = src->name, .buf = to,
				  .fixed = -1, .off = (uint64_t)slot * STORE_PAGE,
				  .len = n * (size_t)STORE_PAGE, .owner = p };
	io_lane_add(&in->lane, &p->req);
	return 0;
}

static int read_extent(struct input *in, uint64_t id, uint32_t slot, uint32_t n, uint8_t *to)
{
	struct source *src;
	int err = get_source(in, id, &src);

	while (n && !err) {
		uint32_t part = n < PIECE ? n : PIECE;

		err = read_piece(in, src, slot, part, to);
		slot += part;
		to += part * (size_t)STORE_PAGE;
		n -= part;
	}
	return err;
}

/* The first extent that ends behind `page`. */
static size_t find_extent(const struct map *m, uint64_t page)
{
	size_t lo = 0, hi = m->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (m->ext[mid].page + m->ext[mid].count > page)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

int input_pages(struct input *in, const struct map *m, uint64_t first, size_t n, uint8_t *to)
{
	uint64_t end = first + n;
	int err = 0;

	for (size_t i = find_extent(m, first); first < end && !err; i++) {
		const struct extent *x = i < m->n ? &m->ext[i] : NULL;
		uint64_t from = x && x->page < end ? x->page : end, last;

		if (from > first) {
			memset(to, 0, (from - first) * STORE_PAGE);
			to += (from - first) * STORE_PAGE;
			first = from;
		}
		if (first >= end)
			break;
		last = x->page + x->count < end ? x->page + x->count : end;
		err = read_extent(in, m->ids[x->seg], x->slot + (first - x->page), last - first,
				  to);
		to += (last - first) * STORE_PAGE;
		first = last;
	}
	return drain(in, err);
}

/* ------------------------------------------------------------------------------ maps */

static int tell_rows(struct input *in, const struct map *m)
{
	int err = 0;

	for (size_t i = 0; in->row && i < m->n && !err; i++)
		err = in->row(in->row_arg, m->ids[m->ext[i].seg], m->ext[i].slot, m->ext[i].count);
	return err;
}

/* The page that a ref names, after a look whether it is the one meant. */
static int root_page(struct store *s, const struct disk_ref *r, uint8_t *page)
{
	uint32_t slot = r->slot & 0xffffff;
	struct seg *g;
	int err = seg_pin(s, r->seg, &g);

	if (err)
		return err;
	if (slot >= g->slots || memcmp(&g->digests[slot], r->digest, sizeof(r->digest)))
		err = fail(-ENODATA, "segment %016" PRIx64 " does not have the object that is looked for",
			   r->seg);
	if (!err)
		err = seg_read_page(s, g, slot, page);
	seg_unpin(s, g);
	return err;
}

static int one_page_map(const struct disk_ref *r, struct map *m)
{
	*m = (struct map){ .size = r->size };
	if (!r->seg)
		return 0;
	m->ids = malloc(sizeof(*m->ids));
	m->ext = malloc(sizeof(*m->ext));
	if (!m->ids || !m->ext) {
		map_free(m);
		return fail(-ENOMEM, "out of memory");
	}
	m->ids[m->nids++] = r->seg;
	m->ext[m->n++] = (struct extent){ 0, 1, 0, r->slot & 0xffffff };
	return 0;
}

/* `m`, a map of a map, becomes what it maps. */
static int step_down(struct input *in, struct map *m)
{
	struct map upper = *m;
	size_t pages = upper.size / STORE_PAGE;
	uint8_t *p;
	int err;

	*m = (struct map){ 0 };
	if (upper.size % STORE_PAGE || !pages || upper.size > MAP_MAX)
		err = fail(-EBADMSG, "the map of an object makes no sense");
	else if (!(p = aligned_alloc(STORE_PAGE, upper.size)))
		err = fail(-ENOMEM, "out of memory");
	else {
		err = tell_rows(in, &upper);
		if (!err)
			err = input_pages(in, &upper, 0, pages, p);
		if (!err)
			err = map_decode(p, upper.size, m);
		free(p);
	}
	map_free(&upper);
	return err;
}

int input_map(struct input *in, const struct store_ref *ref, struct map *m)
{
	struct disk_ref r = ref_get(ref);
	unsigned int depth = r.slot >> 24;
	uint8_t page[STORE_PAGE];
	int err;

	*m = (struct map){ 0 };
	if (depth > REF_DEPTH_MAX || (!depth && r.seg && r.size > STORE_PAGE) || r.size > INT64_MAX)
		return fail(-EINVAL, "this is no reference to an object");
	if (!r.seg)
		return one_page_map(&r, m);
	err = in->row ? in->row(in->row_arg, r.seg, r.slot & 0xffffff, 1) : 0;
	if (!err)
		err = root_page(in->s, &r, page);
	if (err)
		return err;
	if (!depth)
		return one_page_map(&r, m);
	err = map_decode(page, sizeof(page), m);
	while (--depth && !err)
		err = step_down(in, m);
	if (!err && m->size != r.size) {
		map_free(m);
		err = fail(-EBADMSG, "an object and its reference have different sizes");
	}
	return err;
}

int input_walk(struct input *in, const struct store_ref *ref, input_row row, void *arg)
{
	struct map m;
	int err;

	in->row = row;
	in->row_arg = arg;
	err = input_map(in, ref, &m);
	if (!err)
		err = tell_rows(in, &m);
	in->row = NULL;
	map_free(&m);
	return err;
}

/* ------------------------------------------------------------------------------ readers */

int store_object_open(struct store *s, const struct store_ref *ref, struct store_reader **out)
{
	struct store_reader *r = calloc(1, sizeof(*r));
	int err;

	*out = NULL;
	if (!r)
		return fail(-ENOMEM, "out of memory");
	err = input_open(s, &r->in);
	if (!err)
		err = input_map(r->in, ref, &r->map);
	if (err)
		store_reader_close(r);
	else
		*out = r;
	return err;
}

void store_reader_close(struct store_reader *r)
{
	if (!r)
		return;
	input_close(r->in);
	map_free(&r->map);
	free(r->window);
	free(r);
}

uint64_t store_size(const struct store_reader *r)
{
	return r->map.size;
}

static uint64_t pages_of(const struct store_reader *r)
{
	return r->map.size / STORE_PAGE + (r->map.size % STORE_PAGE != 0);
}

/* Brings `page` into the window, and what lies behind it if that is how it goes on. */
static int move_window(struct store_reader *r, uint64_t page, size_t want)
{
	int err;

	if (page >= r->first && page < r->first + r->n)
		return 0;
	if (!r->window && !(r->window = aligned_alloc(STORE_PAGE, PIECE * STORE_PAGE)))
		return fail(-ENOMEM, "out of memory");
	r->ahead = page == r->first + r->n ? r->ahead * 2 : 1;
	if (r->ahead < want)
		r->ahead = want;
	if (r->ahead > PIECE)
		r->ahead = PIECE;
	r->first = page;
	r->n = pages_of(r) - page < r->ahead ? pages_of(r) - page : r->ahead;
	err = input_pages(r->in, &r->map, r->first, r->n, r->window);
	if (err)
		r->n = 0;
	return err;
}

ssize_t store_read(struct store_reader *r, uint64_t off, void *buf, size_t len)
{
	uint8_t *to = buf;
	size_t left;
	int err = 0;

	if (off >= r->map.size)
		return 0;
	if (len > r->map.size - off)
		len = r->map.size - off;
	for (left = len; left && !err;) {
		uint64_t page = off / STORE_PAGE;
		size_t in = off % STORE_PAGE, part;

		if (!in && (uintptr_t)to % STORE_PAGE == 0 && left >= 16 * STORE_PAGE) {
			part = left & ~(size_t)(STORE_PAGE - 1);
			err = input_pages(r->in, &r->map, page, part / STORE_PAGE, to);
		} else {
			err = move_window(r, page, (in + left + STORE_PAGE - 1) / STORE_PAGE);
			if (err)
				break;
			part = (r->first + r->n) * STORE_PAGE - off;
			part = part < left ? part : left;
			memcpy(to, r->window + (off - r->first * STORE_PAGE), part);
		}
		to += part;
		off += part;
		left -= part;
	}
	return err ? err : (ssize_t)len;
}

int store_next_data(struct store_reader *r, uint64_t off, uint64_t *from, uint64_t *to)
{
	size_t i = find_extent(&r->map, off / STORE_PAGE);
	uint64_t start, end;

	if (i >= r->map.n || off >= r->map.size)
		return -ENXIO;
	start = r->map.ext[i].page * STORE_PAGE;
	*from = start > off ? start : off;
	do
		end = r->map.ext[i].page + r->map.ext[i].count;
	while (++i < r->map.n && r->map.ext[i].page == end);
	*to = end * STORE_PAGE < r->map.size ? end * STORE_PAGE : r->map.size;
	return 0;
}

int store_digests(struct store_reader *r, uint64_t off, struct store_digest *d, size_t pages)
{
	uint64_t page = off / STORE_PAGE, end = page + pages;
	struct store *s = r->in->s;

	if (off % STORE_PAGE || page > pages_of(r) || pages > pages_of(r) - page)
		return fail(-EINVAL, "digests of pages that the object does not have");
	for (size_t i = 0; i < pages; i++)
		d[i] = s->zero;
	for (size_t i = find_extent(&r->map, page); i < r->map.n && r->map.ext[i].page < end; i++) {
		const struct extent *x = &r->map.ext[i];
		uint64_t from = x->page > page ? x->page : page;
		uint64_t to = x->page + x->count < end ? x->page + x->count : end;
		struct seg *g;
		int err = seg_pin(s, r->map.ids[x->seg], &g);

		if (err)
			return err;
		if (x->slot + (uint64_t)x->count > g->slots)
			err = fail(-ENODATA, "segment %016" PRIx64 " lacks pages", g->id);
		else
			memcpy(d + (from - page), g->digests + x->slot + (from - x->page),
			       (to - from) * sizeof(*d));
		seg_unpin(s, g);
		if (err)
			return err;
	}
	return 0;
}

/* ------------------------------------------------------------------------------ refs */

uint64_t store_ref_size(const struct store_ref *ref)
{
	return ref_get(ref).size;
}

void store_ref_hex(const struct store_ref *ref, char hex[65])
{
	for (int i = 0; i < 32; i++)
		snprintf(hex + 2 * i, 3, "%02x", ref->b[i]);
}

int store_ref_parse(const char *hex, struct store_ref *ref)
{
	unsigned int v;

	if (strlen(hex) != 64 || strspn(hex, "0123456789abcdef") != 64)
		return fail(-EINVAL, "a reference has 64 hexadecimal digits");
	for (int i = 0; i < 32; i++) {
		sscanf(hex + 2 * i, "%2x", &v);
		ref->b[i] = v;
	}
	return 0;
}
