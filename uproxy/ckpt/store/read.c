// SPDX-License-Identifier: Apache-2.0
/*
 * read.c - reads objects: up to 32 reads in flight, each page checked
 *
 * An input keeps the segments it reads from open and their indices pinned, 64 at a time. Requested
 * pages are sorted by place: pages near each other in a segment come with one request, together
 * with the pages between them. A read of many pages goes straight into the caller's memory; a
 * smaller one goes through windows, which are filled ahead of a sequential reader.
 *
 * A request with pages for many places is read into a staging buffer and copied: a disk's queue
 * limits the pieces of memory in all, not the requests, and each single page is a piece.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store_i.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451	/* since Linux 6.5 */
#endif

#define DEPTH	 32
#define PIECE	 256u	/* pages that one request brings, at most */
#define RUNS	 128	/* places that they go to, at most */
#define STRAIGHT 4	/* a request with more places is staged */
#define GAP	 8u	/* unneeded pages that are read rather than make two requests */
#define FEW	 16
#define SOURCES	 64
#define WINDOWS	 4
#define WINDOW	 512u	/* pages */
#define MAP_MAX	 (1ul << 32)
#define HUGE_PAGE (2ul << 20)

struct source {
	struct seg *seg;
	int fd;
	unsigned int flying;
	char name[SEG_NAME];
};

struct piece {
	struct io_req req;
	struct source *src;
	struct batch *batch;
	uint32_t slot;
	uint8_t *stage;			/* staging buffer of PIECE pages; NULL: none yet */
	unsigned int runs;
	struct iovec iov[RUNS];
	struct piece *next;
};

/* Requested pages: one row of slots, to one place. */
struct want {
	uint64_t seg;
	uint32_t slot, count;
	uint8_t *to;
};

struct input {
	struct store *s;
	struct io_lane lane;
	bool ready;			/* the lane is open; before, requests are synchronous */
	struct source src[SOURCES];
	struct piece pieces[DEPTH], *free;
	uint8_t *nowhere;		/* GAP pages */
	uint8_t *stages;		/* of all pieces; NULL until one is needed */
	struct want *wants;
	size_t nwants, wants_room;
	uint8_t *packed, *frame;	/* zstd: FRAME_SLOTS pages each; what `frame` holds: */
	uint64_t frame_seg;
	uint32_t frame_no;
	input_row row; /* store_input_walk: called with the rows that the object needs */
	void *row_arg;
};

struct window {
	uint8_t *mem;
	bool large;			/* of huge pages */
	uint64_t first, used;
	size_t n;
	struct batch batch;
};

struct store_reader {
	struct input *in;
	struct map map;
	struct window win[WINDOWS];
	uint64_t next, tick;		/* the page behind the windows; counts loads */
	size_t ahead;			/* pages in the next window */
};

int store_input_open(struct store *s, struct input **out)
{
	struct input *in = calloc(1, sizeof(*in));

	*out = in;
	if (!in || !(in->nowhere = aligned_alloc(STORE_PAGE, GAP * STORE_PAGE)))
		return store_fail(-ENOMEM, "out of memory");
	in->s = s;
	for (int i = 0; i < DEPTH; i++) {
		in->pieces[i].next = in->free;
		in->free = &in->pieces[i];
	}
	return 0;
}

/* Opens the lane, unless only a few pages are read: a ring costs more than that. */
static void get_ready(struct input *in)
{
	if (in->ready || in->lane.back || (in->nwants == 1 && in->wants[0].count <= FEW))
		return;
	in->ready = true;
	store_io_lane_init(&in->lane, DEPTH);
}

static void drop_source(struct input *in, struct source *src)
{
	if (!src->seg)
		return;
	close(src->fd);
	store_seg_unpin(in->s, src->seg);
	src->seg = NULL;
}

void store_input_close(struct input *in)
{
	if (!in)
		return;
	store_io_lane_exit(&in->lane);
	for (int i = 0; i < SOURCES; i++)
		drop_source(in, &in->src[i]);
	free(in->nowhere);
	free(in->stages);
	free(in->wants);
	free(in->packed);
	free(in->frame);
	free(in);
}

static int check_run(struct input *in, const struct piece *p, uint32_t slot, const uint8_t *data,
		     uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!digest_equal(store_hash(in->s, data + i * (size_t)STORE_PAGE),
				  p->src->seg->digests[slot + i]))
			return store_fail(-EBADMSG,
					  "%s is damaged at byte %" PRIu64
					  ": a page is not what was written",
					  p->src->name, (slot + i) * (uint64_t)STORE_PAGE);
	return 0;
}

/* Handles a completed request of any batch; false: there is none. */
static bool land(struct input *in, struct io_req *r)
{
	struct piece *p;
	uint32_t slot;
	int err = 0;

	if (!r)
		return false;
	p = r->owner;
	if (r->res == -ENODATA)
		err = store_fail(-EBADMSG, "%s is damaged: it is cut short", r->name);
	else if (r->res)
		err = store_fail_io(r->res, "read", r->name);
	slot = p->slot;
	for (unsigned int i = 0; i < p->runs && !err; i++) {
		const struct iovec *v = &p->iov[i];
		uint32_t n = v->iov_len / STORE_PAGE;

		if (v->iov_base != in->nowhere) {
			if (!r->iov)
				memcpy(v->iov_base, r->buf + (slot - p->slot) * (size_t)STORE_PAGE,
				       v->iov_len);
			err = check_run(in, p, slot, v->iov_base, n);
		}
		slot += n;
	}
	store_failed(&p->batch->why, err);
	p->batch->pending--;
	p->src->flying--;
	p->next = in->free;
	in->free = p;
	return true;
}

static bool take_piece(struct input *in)
{
	return land(in, store_io_lane_wait(&in->lane));
}

int store_input_finish(struct input *in, struct batch *b)
{
	while (b->pending && take_piece(in))
		;
	return b->why.err ? store_fail(b->why.err, "%s", b->why.text) : 0;
}

/* Is most of a segment in the page cache, for example after pull, push or verify? */
static bool is_cached(int fd)
{
	struct { uint64_t off, len; } all = { 0, 0 };
	struct { uint64_t there, dirty, writeback, evicted, lately; } pages = { 0 };
	struct stat st;

	/* The kernel reads ahead the part that it has dropped already. */
	return !fstat(fd, &st) && !syscall(SYS_cachestat, fd, &all, &pages, 0) &&
	       pages.there * STORE_PAGE >= (uint64_t)st.st_size / 4 * 3;
}

static int get_source(struct input *in, uint64_t id, struct source **out)
{
	struct source *src = &in->src[(id ^ id >> 32) % SOURCES];
	int err;

	*out = src;
	if (src->seg && src->seg->id == id)
		return 0;
	while (src->flying && take_piece(in))
		;
	drop_source(in, src);
	err = store_seg_pin(in->s, id, &src->seg);
	if (err)
		return err;
	store_seg_name(id, src->name);
	/* Compressed pages lie at any byte. */
	src->fd = store_seg_open(in->s, id, src->seg->zstd ? 0 : O_DIRECT);
	if (src->fd >= 0 && !src->seg->zstd && is_cached(src->fd))
		fcntl(src->fd, F_SETFL, 0);	/* read through the page cache */
	if (src->fd < 0) {
		store_seg_unpin(in->s, src->seg);
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
			return store_fail(-ENOMEM, "out of memory");
	}
	for (; n && !err; n--, slot++, to += STORE_PAGE) {
		uint32_t no = slot / FRAME_SLOTS;

		if (in->frame_seg != src->seg->id || in->frame_no != no) {
			in->frame_seg = 0;
			err = store_seg_read_frame(src->seg, src->fd, no, in->packed, in->frame);
			if (err)
				return err;
			in->frame_seg = src->seg->id;
			in->frame_no = no;
		}
		memcpy(to, in->frame + slot % FRAME_SLOTS * STORE_PAGE, STORE_PAGE);
		if (!digest_equal(store_hash(in->s, to), src->seg->digests[slot]))
			err = store_fail(-EBADMSG, "%s is damaged: page %u is not what was written",
					 src->name, slot);
	}
	return err;
}

static int check_slots(const struct source *src, const struct want *w)
{
	for (uint32_t i = 0; i < w->count; i++)
		if (w->slot + i >= src->seg->slots || digest_none(src->seg->digests[w->slot + i]))
			return store_fail(-ENODATA,
					  "%s has no page %u: it was cleaned away, or never there",
					  src->name, w->slot + i);
	return 0;
}

static void add_run(struct piece *p, void *to, uint32_t pages)
{
	p->iov[p->runs++] = (struct iovec){ to, pages * (size_t)STORE_PAGE };
	p->req.len += pages * (size_t)STORE_PAGE;
}

/* Sets the memory that a request is read into. Without memory for a stage it is read directly. */
static void set_target(struct input *in, struct piece *p)
{
	if (p->runs > STRAIGHT && !in->stages) {
		in->stages = store_buffer(DEPTH * PIECE * (size_t)STORE_PAGE);
		for (size_t i = 0; in->stages && i < DEPTH; i++)
			in->pieces[i].stage = in->stages + i * PIECE * STORE_PAGE;
	}
	if (p->runs > STRAIGHT && p->stage) {
		p->req.buf = p->stage;
		return;
	}
	p->req.iov = p->iov;
	p->req.niov = p->runs;
}

/* Makes one request for wants[0] and following ones that are near; returns how many it took. */
static size_t read_piece(struct input *in, struct source *src, const struct want *w, size_t n,
			 struct batch *b)
{
	uint32_t end = w->slot;
	struct piece *p;
	size_t i;

	if (!in->free)
		take_piece(in);
	p = in->free;
	in->free = p->next;
	p->src = src;
	p->batch = b;
	p->slot = w->slot;
	p->runs = 0;
	p->req = (struct io_req){ .op = IO_READ, .fd = src->fd, .name = src->name,
				  .off = w->slot * (uint64_t)STORE_PAGE, .owner = p };
	for (i = 0; i < n && w[i].seg == w->seg && p->runs + 2 <= RUNS; i++) {
		uint32_t gap = w[i].slot - end;

		/* If a slot is requested twice, gap wraps and is huge. */
		if (gap > GAP || w[i].slot + w[i].count - p->slot > PIECE || check_slots(src, &w[i]))
			break;
		if (gap)
			add_run(p, in->nowhere, gap);
		add_run(p, w[i].to, w[i].count);
		end = w[i].slot + w[i].count;
	}
	set_target(in, p);
	b->pending++;
	src->flying++;
	store_io_lane_add(&in->lane, &p->req);
	return i;
}

static int read_wants(struct input *in, struct batch *b)
{
	for (size_t i = 0; i < in->nwants;) {
		struct want *w = &in->wants[i];
		struct source *src;
		int err = get_source(in, w->seg, &src);

		if (!err)
			err = check_slots(src, w);
		if (err)
			return err;
		if (!src->seg->zstd) {
			i += read_piece(in, src, w, in->nwants - i, b);
			continue;
		}
		err = read_packed(in, src, w->slot, w->count, w->to);
		if (err)
			return err;
		i++;
	}
	store_io_lane_go(&in->lane);
	return 0;
}

static int add_want(struct input *in, struct want w)
{
	if (in->nwants == in->wants_room) {
		size_t room = in->wants_room * 2 + 64;
		struct want *p = realloc(in->wants, room * sizeof(*p));

		if (!p)
			return store_fail(-ENOMEM, "out of memory");
		in->wants = p;
		in->wants_room = room;
	}
	in->wants[in->nwants++] = w;
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct want *x = a, *y = b;

	if (x->seg != y->seg)
		return x->seg < y->seg ? -1 : 1;
	return x->slot < y->slot ? -1 : x->slot > y->slot;
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

/* Adds pages [first, end) to wants; fills holes at once. */
static int collect(struct input *in, const struct map *m, uint64_t first, uint64_t end, uint8_t *to)
{
	int err = 0;

	in->nwants = 0;
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
		while (first < last && !err) {
			uint32_t n = last - first < PIECE ? last - first : PIECE;

			err = add_want(in, (struct want){ m->ids[x->seg], x->slot + (first - x->page),
							  n, to });
			to += n * (size_t)STORE_PAGE;
			first += n;
		}
	}
	return err;
}

void store_input_start(struct input *in, const struct map *m, uint64_t first, size_t n, uint8_t *to,
		       struct batch *b)
{
	int err;

	b->pending = 0;
	why_clear(&b->why);
	err = collect(in, m, first, first + n, to);
	if (!err && in->nwants) {
		qsort(in->wants, in->nwants, sizeof(*in->wants), by_place);
		get_ready(in);
		err = read_wants(in, b);
	}
	store_failed(&b->why, err);
}

int store_input_pages(struct input *in, const struct map *m, uint64_t first, size_t n, uint8_t *to)
{
	struct batch b;

	store_input_start(in, m, first, n, to, &b);
	return store_input_finish(in, &b);
}

/* ------------------------------------------------------------------------------ maps */

static int tell_rows(struct input *in, const struct map *m)
{
	int err = 0;

	for (size_t i = 0; in->row && i < m->n && !err; i++)
		err = in->row(in->row_arg, m->ids[m->ext[i].seg], m->ext[i].slot, m->ext[i].count);
	return err;
}

/* Reads the page that a ref names, if its digest is the ref's. */
static int root_page(struct store *s, const struct disk_ref *r, uint8_t *page)
{
	uint32_t slot = r->slot & 0xffffff;
	struct seg *g;
	int err = store_seg_pin(s, r->seg, &g);

	if (err)
		return err;
	if (slot >= g->slots || memcmp(&g->digests[slot], r->digest, sizeof(r->digest)))
		err = store_fail(-ENODATA,
				 "segment %016" PRIx64
				 " does not have the object",
				 r->seg);
	if (!err)
		err = store_seg_read_page(s, g, slot, page);
	store_seg_unpin(s, g);
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
		store_map_free(m);
		return store_fail(-ENOMEM, "out of memory");
	}
	m->ids[m->nids++] = r->seg;
	m->ext[m->n++] = (struct extent){ 0, 1, 0, r->slot & 0xffffff };
	return 0;
}

/* Replaces `m`, a map of a map, by the map that it maps, of at most `most` bytes. */
static int step_down(struct input *in, struct map *m, uint64_t most)
{
	struct map upper = *m;
	size_t pages = upper.size / STORE_PAGE;
	uint8_t *p;
	int err;

	*m = (struct map){ 0 };
	if (upper.size % STORE_PAGE || !pages || upper.size > MAP_MAX)
		err = store_fail(-EBADMSG, "the map of an object makes no sense");
	else if (upper.size > most)
		err = store_fail(-EBADMSG, "an object has a map of %" PRIu64 " bytes: by its size it "
				 "needs %" PRIu64 " at most", upper.size, most);
	else if (!(p = aligned_alloc(STORE_PAGE, upper.size)))
		err = store_fail(-ENOMEM, "out of memory");
	else {
		err = tell_rows(in, &upper);
		if (!err)
			err = store_input_pages(in, &upper, 0, pages, p);
		if (!err)
			err = store_map_decode(p, upper.size, m);
		free(p);
	}
	store_map_free(&upper);
	return err;
}

int store_input_map(struct input *in, const struct store_ref *ref, struct map *m)
{
	struct disk_ref r = ref_get(ref);
	unsigned int depth = r.slot >> 24;
	uint64_t most[REF_DEPTH_MAX + 1] = { r.size };
	uint8_t page[STORE_PAGE];
	int err;

	*m = (struct map){ 0 };
	if (depth > REF_DEPTH_MAX || (!depth && r.seg && r.size > STORE_PAGE) || r.size > INT64_MAX)
		return store_fail(-EINVAL, "this is no reference to an object");
	if (!r.seg)
		return one_page_map(&r, m);
	err = in->row ? in->row(in->row_arg, r.seg, r.slot & 0xffffff, 1) : 0;
	if (!err)
		err = root_page(in->s, &r, page);
	if (err)
		return err;
	if (!depth)
		return one_page_map(&r, m);
	for (unsigned int i = 1; i < depth; i++)
		most[i] = store_map_most(most[i - 1]);
	err = store_map_decode(page, sizeof(page), m);
	while (--depth && !err)
		err = step_down(in, m, most[depth]);
	if (!err && m->size != r.size) {
		store_map_free(m);
		err = store_fail(-EBADMSG, "an object and its reference have different sizes");
	}
	return err;
}

int store_input_walk(struct input *in, const struct store_ref *ref, input_row row, void *arg)
{
	struct map m;
	int err;

	in->row = row;
	in->row_arg = arg;
	err = store_input_map(in, ref, &m);
	if (!err)
		err = tell_rows(in, &m);
	in->row = NULL;
	store_map_free(&m);
	return err;
}

/* ------------------------------------------------------------------------------ readers */

int store_object_open(struct store *s, const struct store_ref *ref, struct store_reader **out)
{
	struct store_reader *r = calloc(1, sizeof(*r));
	int err;

	*out = NULL;
	if (!r)
		return store_fail(-ENOMEM, "out of memory");
	err = store_input_open(s, &r->in);
	if (!err)
		err = store_input_map(r->in, ref, &r->map);
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
	for (int i = 0; i < WINDOWS; i++)
		if (r->win[i].batch.pending)
			store_input_finish(r->in, &r->win[i].batch);
	store_input_close(r->in);
	for (int i = 0; i < WINDOWS; i++)
		free(r->win[i].mem);
	store_map_free(&r->map);
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

static bool has_page(const struct window *w, uint64_t page)
{
	return page >= w->first && page < w->first + w->n;
}

static struct window *window_of(struct store_reader *r, uint64_t page)
{
	for (int i = 0; i < WINDOWS; i++)
		if (has_page(&r->win[i], page))
			return &r->win[i];
	return NULL;
}

/* Starts to read the next `ahead` pages into the least recently used window. */
static struct window *load(struct store_reader *r)
{
	struct window *w = &r->win[0];

	for (int i = 1; i < WINDOWS; i++)
		if (r->win[i].used < w->used)
			w = &r->win[i];
	if (w->batch.pending)
		store_input_finish(r->in, &w->batch);
	if (r->ahead == WINDOW && !w->large) {
		free(w->mem);
		w->mem = store_buffer(WINDOW * STORE_PAGE);
		w->large = true;
	}
	if (!w->mem && !(w->mem = aligned_alloc(STORE_PAGE, WINDOW * STORE_PAGE)))
		return NULL;
	w->used = ++r->tick;
	w->first = r->next;
	w->n = pages_of(r) - r->next < r->ahead ? pages_of(r) - r->next : r->ahead;
	r->next += w->n;
	store_input_start(r->in, &r->map, w->first, w->n, w->mem, &w->batch);
	return w;
}

/* Returns a window with `page`; the caller will read `want` pages. */
static struct window *move_window(struct store_reader *r, uint64_t page, size_t want)
{
	struct window *w = window_of(r, page);
	uint64_t newest;

	if (!w) {
		r->ahead = page == r->next ? r->ahead * 2 : 1;
		r->ahead = r->ahead < want ? want : r->ahead;
		r->ahead = r->ahead > WINDOW ? WINDOW : r->ahead;
		for (int i = 0; i < WINDOWS && page != r->next; i++)
			r->win[i].n = 0;
		r->next = page;
		w = load(r);
	}
	/* A sequential reader: all windows but this one get the next pages. */
	newest = w ? w->used + WINDOWS - 1 : 0;
	while (w && r->ahead == WINDOW && r->tick < newest && r->next < pages_of(r))
		if (!load(r))
			return NULL;
	return w;
}

static ssize_t read_window(struct store_reader *r, uint64_t off, uint8_t *to, size_t len)
{
	struct window *w = move_window(r, off / STORE_PAGE,
				       (off % STORE_PAGE + len + STORE_PAGE - 1) / STORE_PAGE);
	size_t part;
	int err = w ? store_input_finish(r->in, &w->batch) : store_fail(-ENOMEM, "out of memory");

	if (err) {
		if (w)
			w->n = 0;
		return err;
	}
	part = (w->first + w->n) * STORE_PAGE - off;
	part = part < len ? part : len;
	memcpy(to, w->mem + (off - w->first * STORE_PAGE), part);
	return part;
}

ssize_t store_read(struct store_reader *r, uint64_t off, void *buf, size_t len)
{
	uint8_t *to = buf;
	size_t left;
	ssize_t n;

	if (off >= r->map.size)
		return 0;
	if (len > r->map.size - off)
		len = r->map.size - off;
	for (left = len; left; to += n, off += n, left -= n) {
		bool whole = off % STORE_PAGE == 0 && (uintptr_t)to % STORE_PAGE == 0;

		if (whole && left >= (size_t)WINDOWS * WINDOW * STORE_PAGE) {
			n = left & ~(size_t)(STORE_PAGE - 1);
			int err = store_input_pages(r->in, &r->map, off / STORE_PAGE,
						    n / STORE_PAGE, to);

			if (err)
				return err;
		} else {
			n = read_window(r, off, to, left);
			if (n < 0)
				return n;
		}
	}
	return len;
}

struct store_fetch {
	struct batch batch;
};

int store_fetch(struct store_reader *r, uint64_t off, void *buf, size_t len, struct store_fetch **f)
{
	*f = NULL;
	if (off % STORE_PAGE || len % STORE_PAGE || (uintptr_t)buf % STORE_PAGE ||
	    off / STORE_PAGE > pages_of(r) || len / STORE_PAGE > pages_of(r) - off / STORE_PAGE)
		return store_fail(-EINVAL, "a fetch of what is not whole pages of the object");
	*f = malloc(sizeof(**f));
	if (!*f)
		return store_fail(-ENOMEM, "out of memory");
	store_input_start(r->in, &r->map, off / STORE_PAGE, len / STORE_PAGE, buf, &(*f)->batch);
	return 0;
}

int store_fetch_end(struct store_reader *r, struct store_fetch *f)
{
	int err = store_input_finish(r->in, &f->batch);

	free(f);
	return err;
}

bool store_fetch_there(struct store_reader *r, struct store_fetch *f)
{
	while (f->batch.pending && land(r->in, store_io_lane_poll(&r->in->lane)))
		;
	return !f->batch.pending;
}

void *store_buffer(size_t len)
{
	size_t size = (len + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	void *p = aligned_alloc(HUGE_PAGE, size);

	if (p)
		madvise(p, size, MADV_HUGEPAGE);
	return p;
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
		return store_fail(-EINVAL, "digests of pages that the object does not have");
	for (size_t i = 0; i < pages; i++)
		d[i] = s->zero;
	for (size_t i = find_extent(&r->map, page); i < r->map.n && r->map.ext[i].page < end; i++) {
		const struct extent *x = &r->map.ext[i];
		uint64_t from = x->page > page ? x->page : page;
		uint64_t to = x->page + x->count < end ? x->page + x->count : end;
		struct seg *g;
		int err = store_seg_pin(s, r->map.ids[x->seg], &g);

		if (err)
			return err;
		if (x->slot + (uint64_t)x->count > g->slots)
			err = store_fail(-ENODATA, "segment %016" PRIx64 " lacks pages", g->id);
		else
			memcpy(d + (from - page), g->digests + x->slot + (from - x->page),
			       (to - from) * sizeof(*d));
		store_seg_unpin(s, g);
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
		return store_fail(-EINVAL, "a reference has 64 hexadecimal digits");
	for (int i = 0; i < 32; i++) {
		sscanf(hex + 2 * i, "%2x", &v);
		ref->b[i] = v;
	}
	return 0;
}
