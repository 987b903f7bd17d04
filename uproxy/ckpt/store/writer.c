// SPDX-License-Identifier: Apache-2.0
/*
 * writer.c - writes new pages into segments, and segments to the disk
 *
 * A writer fills one segment at a time, through buffers of 1 MiB that are written as they fill:
 *
 *   FILLING ── all slots taken, or flush ─► CLOSING ── its writes are back ─► SYNCING
 *      begin_segment()           finish()                        settle()               │ fdatasync is back
 *   tmp/ID                                                                      ▼ publish_seg()
 *                                                                           seg/ID: durable
 *
 * Its pages are in the table of hints from the moment they have a slot, but marked as the writer's
 * own: another writer must not rely on them before they are durable. The lanes of a dump are the
 * exception: writers of one thread each, which rely on each other's pages, so that the failure of one
 * is the failure of all of them and of their root, the writer whose object they write. Writers with
 * claims rely on each other across processes; keep_promises() ends that.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <zstd.h>

#include "store_i.h"

#define BUFS	 8	/* keep a disk busy; memory that is touched first is slow, and more of it gains nothing */
#define LANE_BUFS 4	/* the other lanes keep it busy, too */
#define BUF_LEN	 (1u << 20)
#define RUN	 64	/* pages that a thread hashes in one step, and that are looked up at once */
#define SLICE	 4096	/* pages whose digests are held */
#define SEGS_OUT 4	/* segments that may be on their way to the disk */
#define REFRESH_NS 250000000ull	/* between two scans of the store by the lanes */

enum out_state { FILLING, CLOSING, SYNCING };

struct out {
	struct seg *seg;
	int fd;
	enum out_state state;
	char tmp[SEG_NAME];
	uint64_t len, room;	/* bytes given to buffers; allocated on disk */
	uint64_t pages_len;	/* of `len`: before the index */
	unsigned int writing;
	uint32_t nframes;
	struct disk_frame *frames;
	struct io_req sync;
	struct out *next;
};

struct buf {
	struct io_req req;
	size_t used;
	struct buf *next;	/* of those that are free */
};

struct hasher {
	pthread_t thread;
	bool runs, stop;
	enum { IDLE, ASKED, BUSY } state;
	struct lock mutex;
	pthread_cond_t wake, idle;
	const uint8_t *data;
	size_t pages;
	atomic_size_t next;			/* run to be hashed next */
	atomic_bool done[SLICE / RUN];
};

struct store_writer {
	struct store *s;
	struct store_writer *root;		/* itself, unless it is a lane */
	unsigned int flags, nout, nbufs;
	bool in_memory;				/* a lane whose segments lie in a tmpfs */
	struct why why;				/* the first error */
	struct lock shared;			/* of the root: guards the next two */
	struct why failed;			/* the first error that the root or a lane met */
	struct store_writer_stats lanes;	/* of those that are closed */
	atomic_bool fails;			/* `failed` is set */
	_Atomic uint64_t scanned;		/* of the root: when a lane last scanned the store */
	struct claims *claims;			/* of the root, or NULL */
	int (*wait)(void *arg);			/* store_writer_claims() */
	void *wait_arg;
	struct io_lane lane;
	uint8_t *mem;
	struct buf bufs[BUFS], *free, *buf;
	struct out *cur, *outs;			/* outs: CLOSING, SYNCING */
	uint8_t *frame;				/* zstd: an incomplete frame, then a packed one */
	uint32_t framed;
	ZSTD_CCtx *zstd;
	bool renamed;				/* seg/ is to be synced */
	uint64_t began;
	struct hasher hash;
	struct store_digest *digests;		/* SLICE of them */
	struct store_writer_stats st;
};

struct store *store_writer_store(struct store_writer *w)
{
	return w->s;
}

int store_writer_error(const struct store_writer *w)
{
	struct store_writer *root = w->root;
	int err;

	if (w->why.err)
		return store_fail(w->why.err, "%s", w->why.text);
	if (!atomic_load_explicit(&root->fails, memory_order_relaxed))
		return 0;
	lock_take(&root->shared);
	err = store_fail(root->failed.err, "%s", root->failed.text);
	lock_drop(&root->shared);
	return err;
}

/* Pages of this writer are lost, which the other lanes may rely on. */
static void fail_all(struct store_writer *w)
{
	struct store_writer *root = w->root;

	lock_take(&root->shared);
	if (!root->failed.err)
		root->failed = w->why;
	atomic_store(&root->fails, true);
	lock_drop(&root->shared);
}

void store_writer_count(struct store_writer *w, uint64_t zero, uint64_t known, uint64_t fresh)
{
	w->st.in += zero + known + fresh;
	w->st.zero += zero;
	w->st.known += known;
	w->st.fresh += fresh;
}

static int latch(struct store_writer *w, int err)
{
	if (store_failed(&w->why, err))
		fail_all(w);
	return err;
}

/* ------------------------------------------------------------------ segments on their way out */

static void free_out(struct store_writer *w, struct out *o)
{
	if (o->fd >= 0)
		close(o->fd);
	free(o->frames);
	free(o);
	w->nout--;
}

/* Drops a segment that could not be written; its pages are not found any more. */
static void drop_out(struct store_writer *w, struct out *o)
{
	store_io_unlink(w->s->dir, o->tmp);
	if (o->seg->slots && w->why.err)
		fail_all(w);
	lock_take(&w->s->mutex);
	o->seg->broken = true;
	lock_drop(&w->s->mutex);
	if (w->root->claims)
		store_claims_end(w->root->claims, o->seg->claim, false);
	free_out(w, o);
}

static int publish_seg(struct store_writer *w, struct out *o)
{
	char name[SEG_NAME];
	int err;

	store_seg_name(o->seg->id, name);
	err = store_io_rename(w->s->dir, o->tmp, name);
	if (err)
		return store_fail_io(err, "rename a segment to", name);
	w->renamed = true;
	w->st.stored += o->len;
	if (w->root->claims)
		store_claims_end(w->root->claims, o->seg->claim, true);
	lock_take(&w->s->mutex);
	o->seg->owner = NULL;
	if (o->nframes) {	/* compressed: the index must be read again, with its frames */
		free(o->seg->digests);
		o->seg->digests = NULL;
		w->s->loaded -= o->seg->slots * sizeof(struct store_digest);
	}
	lock_drop(&w->s->mutex);
	free_out(w, o);
	return 0;
}

static void unlink_out(struct store_writer *w, struct out *o)
{
	struct out **p = &w->outs;

	while (*p != o)
		p = &(*p)->next;
	*p = o->next;
}

/* All writes of a segment are complete: cuts it to its length, and begins to sync it. */
static void settle(struct store_writer *w, struct out *o)
{
	int err = w->why.err;

	if (o->state != CLOSING || o->writing)
		return;
	if (!err && o->room > o->len) {
		err = store_io_truncate(o->fd, o->tmp, o->len);
		if (err)
			store_fail_io(err, "write", o->tmp);
	}
	if (latch(w, err)) {
		unlink_out(w, o);
		drop_out(w, o);
		return;
	}
	o->state = SYNCING;
	o->sync = (struct io_req){ .op = IO_SYNC, .fd = o->fd, .name = o->tmp, .owner = o };
	store_io_lane_add(&w->lane, &o->sync);
	store_io_lane_go(&w->lane);
}

static void back(struct store_writer *w, struct io_req *r)
{
	struct out *o = r->owner;

	if (r->res)
		latch(w, store_fail_io(r->res, r->op == IO_SYNC ? "sync" : "write", o->tmp));
	if (r->op == IO_SYNC) {
		unlink_out(w, o);
		if (w->why.err || latch(w, publish_seg(w, o)))
			drop_out(w, o);
		return;
	}
	struct buf *b = (struct buf *)((char *)r - offsetof(struct buf, req));

	b->next = w->free;
	w->free = b;
	o->writing--;
	settle(w, o);
}

static bool reap(struct store_writer *w, bool wait)
{
	struct io_req *r = wait ? store_io_lane_wait(&w->lane) : store_io_lane_poll(&w->lane);

	if (r)
		back(w, r);
	return r;
}

static void send_buf(struct store_writer *w)
{
	struct buf *b = w->buf;
	struct out *o = w->cur;

	w->buf = NULL;
	b->req.op = IO_WRITE;
	b->req.fd = o->fd;
	b->req.name = o->tmp;
	b->req.off = o->len - b->used;
	b->req.len = b->used;
	b->req.owner = o;
	o->writing++;
	store_io_lane_add(&w->lane, &b->req);
	store_io_lane_go(&w->lane);
}

static int append(struct store_writer *w, const void *data, size_t len)
{
	while (len) {
		size_t part = len;

		while (!w->buf && !w->free && reap(w, true))
			;
		if (w->why.err)
			return store_writer_error(w);
		if (!w->buf) {
			w->buf = w->free;
			w->free = w->buf->next;
			w->buf->used = 0;
		}
		if (part > BUF_LEN - w->buf->used)
			part = BUF_LEN - w->buf->used;
		memcpy(w->buf->req.buf + w->buf->used, data, part);
		data = (const char *)data + part;
		len -= part;
		w->buf->used += part;
		w->cur->len += part;
		if (w->buf->used == BUF_LEN)
			send_buf(w);
	}
	return 0;
}

static int append_padding(struct store_writer *w)
{
	static const uint8_t zeros[STORE_PAGE];

	return append(w, zeros, -w->cur->len % STORE_PAGE);
}

/* ------------------------------------------------------------------ compressed pages */

static int pack_frame(struct store_writer *w)
{
	size_t len = w->framed * (size_t)STORE_PAGE, got;
	uint8_t *packed = w->frame + FRAME_SLOTS * STORE_PAGE;
	struct disk_frame *f = &w->cur->frames[w->cur->nframes++];

	got = ZSTD_compressCCtx(w->zstd, packed, ZSTD_compressBound(len), w->frame, len,
				w->s->super.a);
	if (ZSTD_isError(got) || got >= len) {
		packed = w->frame;
		got = len;
		f->flags = FRAME_RAW;
	}
	f->len = got;
	f->check = store_check64(packed, got);
	w->framed = 0;
	return append(w, packed, got);
}

/* A file system in memory copies before it returns: from where the pages are, then. */
static int write_now(struct store_writer *w, const uint8_t *data, size_t len)
{
	struct out *o = w->cur;
	int err = store_io_write(o->fd, o->tmp, data, len, o->len);

	o->len += len;
	return err ? store_fail_io(err, "write", o->tmp) : 0;
}

static int append_pages(struct store_writer *w, const uint8_t *data, unsigned int n)
{
	int err = 0;

	if (!w->zstd && w->in_memory)
		return write_now(w, data, n * (size_t)STORE_PAGE);
	if (!w->zstd)
		return append(w, data, n * (size_t)STORE_PAGE);
	for (; n && !err; n--, data += STORE_PAGE) {
		memcpy(w->frame + w->framed++ * STORE_PAGE, data, STORE_PAGE);
		err = w->framed == FRAME_SLOTS ? pack_frame(w) : 0;
	}
	return err;
}

/* ------------------------------------------------------------------ beginning and finishing */

static int open_tmp(struct store_writer *w, struct out *o)
{
	uint64_t room;
	int err;

	o->fd = store_io_open(w->s->dir, o->tmp, O_CREAT | O_EXCL | O_RDWR | O_DIRECT, 0600);
	if (o->fd == -EINVAL) {
		store_io_unlink(w->s->dir, o->tmp);
		o->fd = store_io_open(w->s->dir, o->tmp, O_CREAT | O_EXCL | O_RDWR, 0600);
	}
	if (o->fd < 0)
		return store_fail_io(o->fd, "make", o->tmp);
	err = fchmod(o->fd, w->s->mode & 0666) ? -errno : 0;
	if (!err && !geteuid() && w->s->owner && fchown(o->fd, w->s->owner, -1))
		err = -errno;
	if (err)
		return store_fail_io(err, "give away", o->tmp);
	/*
	 * The kernel serialises writes that extend a file, so allocate a whole segment. If there is
	 * no space for that, there may be enough for the pages that will come.
	 */
	room = SEG_SLOTS * (uint64_t)STORE_PAGE + store_seg_index_len(SEG_SLOTS, 0);
	err = store_io_allocate(o->fd, o->tmp, room);
	if (err < 0)
		return store_fail_io(err, "write", o->tmp);
	o->room = err ? room : 0;
	return 0;
}

/* Each segment that a lane publishes changes the folder, so that a scan lists all of it. */
static int refresh(struct store_writer *w)
{
	uint64_t now = store_now_ns(), last = atomic_load(&w->root->scanned);

	if (w->root != w && (now - last < REFRESH_NS ||
			     !atomic_compare_exchange_strong(&w->root->scanned, &last, now)))
		return 0;
	return store_lookup_refresh(w->s);
}

static int begin_segment(struct store_writer *w)
{
	struct out *o;
	struct seg *g;
	int err;

	while (w->nout >= SEGS_OUT && reap(w, true))
		;
	if (w->why.err)
		return store_writer_error(w);
	err = refresh(w);
	if (err)
		return err;
	o = calloc(1, sizeof(*o));
	if (!o)
		return store_fail(-ENOMEM, "out of memory");
	w->nout++;
	lock_take(&w->s->mutex);
	err = store_seg_add(w->s, store_random64(), &g);
	if (!err) {
		g->digests = malloc(SEG_SLOTS * sizeof(*g->digests));
		g->owner = w->root;
		g->known = true;
		g->claim = w->root->claims ? store_claims_begin(w->root->claims, g->id) : -1;
		err = g->digests ? 0 : store_fail(-ENOMEM, "out of memory");
	}
	lock_drop(&w->s->mutex);
	o->fd = -1;
	o->seg = g;
	if (!err && w->zstd && !(o->frames = calloc(SEG_SLOTS / FRAME_SLOTS, sizeof(*o->frames))))
		err = store_fail(-ENOMEM, "out of memory");
	if (err) {
		free_out(w, o);
		return err;
	}
	snprintf(o->tmp, sizeof(o->tmp), "tmp/%016" PRIx64, g->id);
	err = open_tmp(w, o);
	if (err) {
		drop_out(w, o);
		return err;
	}
	w->cur = o;
	return 0;
}

static int append_index(struct store_writer *w)
{
	struct out *o = w->cur;
	size_t len = store_seg_index_len(o->seg->slots, o->nframes);
	uint8_t *index = malloc(len);
	int err;

	if (!index)
		return store_fail(-ENOMEM, "out of memory");
	o->pages_len = o->len;
	store_seg_write_index(w->s, o->seg->id, o->seg->slots, o->len, o->seg->digests, o->frames,
			      o->nframes, index);
	err = append(w, index, len);
	free(index);
	return err;
}

/* Adds the index to the current segment and writes it out. */
static int finish(struct store_writer *w)
{
	struct out *o = w->cur;
	int err = 0;

	if (!o)
		return 0;
	if (!o->seg->slots) {	/* another writer has promised the page that it was begun for */
		w->cur = NULL;
		drop_out(w, o);
		return 0;
	}
	if (w->framed)
		err = pack_frame(w);
	if (!err)
		err = append_padding(w);
	if (!err)
		err = append_index(w);
	if (!err && w->buf)
		send_buf(w);
	if (w->buf) {
		w->buf->next = w->free;
		w->free = w->buf;
		w->buf = NULL;
	}
	latch(w, err);
	w->framed = 0;
	w->cur = NULL;
	lock_take(&w->s->mutex);
	o->seg->index_off = o->pages_len;
	o->seg->zstd = o->nframes != 0;
	w->s->loaded += o->seg->slots * sizeof(struct store_digest);
	lock_drop(&w->s->mutex);
	o->state = CLOSING;
	o->next = w->outs;
	w->outs = o;
	settle(w, o);
	return err;
}

/* ------------------------------------------------------------------ pages */

/* Another user's page is used only if it is the same byte for byte. */
static bool same_bytes(struct store *s, struct seg *g, uint32_t slot, const void *data)
{
	uint8_t page[STORE_PAGE];

	return data && store_seg_read_page(s, g, slot, page) == 0 &&
	       !memcmp(page, data, STORE_PAGE);
}

static bool usable(struct store *s, struct place p, const void *data)
{
	return p.seg && (!s->segs[p.seg]->foreign || same_bytes(s, s->segs[p.seg], p.slot, data));
}

/* Where the pages behind page `last`, found at `p`, are expected. */
static struct place move_on(struct store *s, struct place p, const struct store_digest *d,
			    unsigned int last, unsigned int n)
{
	while (++last < n)
		p.slot += !digest_equal(d[last], s->zero);
	return p;
}

/* Fetches the lines of the table that will be asked for, before the lock is taken. */
static void prefetch(struct store *s, const struct store_digest *d, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		store_lookup_prefetch(s, d[i]);
}

/* Notes that another writer has promised a page. False: this writer cannot rely on it. */
static bool note_promise(struct store_writer *w, struct store_digest d, const struct claim *c,
			 struct place *p)
{
	struct seg *g = store_seg_find(w->s, c->id);

	if (!g) {
		struct store_digest *room = calloc(SEG_SLOTS, sizeof(*room));

		if (!room || store_seg_add(w->s, c->id, &g)) {
			free(room);
			return false;
		}
		g->digests = room;
		g->slots = SEG_SLOTS;
		g->owner = w->root;
		g->promised = g->known = true;
		g->claim = c->n;
	}
	*p = (struct place){ g->index, c->slot };
	if (!g->promised || g->owner != w->root)
		return store_lookup_is(w->s, *p, d, w->root) && !g->foreign;
	if (!digest_none(g->digests[c->slot]))
		return digest_equal(g->digests[c->slot], d);
	g->digests[c->slot] = d;
	return !store_lookup_add(w->s, d, *p);
}

/* Whether another writer with the same claims stores the page; else it is ours, in slot `slot` of g. */
static bool promised(struct store_writer *w, struct store_digest d, const struct seg *g, struct place *p)
{
	struct claim c;

	if (w->root->claims &&
	    store_claims_take(w->root->claims, d, g ? g->claim : -1, g ? g->slots : 0, &c) &&
	    note_promise(w, d, &c, p))
		return true;
	*p = (struct place){ 0 };
	return false;
}

/*
 * The next slot of the open segment, or 1 for a page that another writer stores. -EAGAIN: it has none, or
 * there is no open segment.
 */
static int take_slot(struct store_writer *w, struct store_digest d, struct place *p)
{
	struct seg *g = w->cur ? w->cur->seg : NULL;

	if (!g || g->slots == SEG_SLOTS)
		return promised(w, d, NULL, p) ? 1 : -EAGAIN;
	if (promised(w, d, g, p))
		return 1;
	*p = (struct place){ g->index, g->slots };
	g->digests[g->slots++] = d;
	return store_lookup_add(w->s, d, *p);
}

/*
 * Finds the pages from *i on; with `fresh`, gives those that are not found a slot of the open segment
 * and marks them there. One critical section, so that no page gets two slots: -EAGAIN ends it if the
 * segment is full, and *i is the page that has no slot.
 */
static int find_run(struct store_writer *w, const struct store_digest *d, const uint8_t *data,
		    unsigned int n, struct place *at, struct place *p, unsigned int *i,
		    uint64_t *fresh)
{
	struct store *s = w->s;
	unsigned int expected = 0, last = n;
	int err = 0, got;

	prefetch(s, d + *i, n - *i);
	lock_take(&s->mutex);
	for (; *i < n && !err; *i += !err) {
		struct place *q = &p[*i];

		*q = (struct place){ 0 };
		if (digest_equal(d[*i], s->zero))
			continue;
		at->slot++;
		if (store_lookup_is(s, *at, d[*i], w->root)) {
			*q = *at;
			expected++;
		} else {
			*q = store_lookup_find(s, d[*i], w->root);
			last = q->seg ? *i : last;
		}
		if (usable(s, *q, data ? data + *i * (size_t)STORE_PAGE : NULL))
			continue;
		q->seg = 0;
		last = last == *i ? n : last;
		got = fresh ? take_slot(w, d[*i], q) : promised(w, d[*i], NULL, q);
		err = got < 0 ? got : 0;
		if (err)
			at->slot--;
		else if (got)
			last = *i;
		else if (fresh)
			*fresh |= 1ull << *i;
	}
	if (!expected && last < n)
		*at = move_on(s, p[last], d, last, *i);
	lock_drop(&s->mutex);
	return err;
}

void store_writer_known(struct store_writer *w, const struct store_digest *d, unsigned int n,
			struct place *at, struct place *p)
{
	unsigned int i = 0;

	find_run(w, d, NULL, n, at, p, &i, NULL);
}

/* The pages that have got a slot follow each other in the segment. */
static int append_fresh(struct store_writer *w, const uint8_t *data, uint64_t fresh)
{
	int err = 0;

	while (fresh && !err) {
		unsigned int first = __builtin_ctzll(fresh), n = 1;

		while (first + n < 64 && fresh >> (first + n) & 1)
			n++;
		err = append_pages(w, data + first * (size_t)STORE_PAGE, n);
		fresh &= first + n < 64 ? ~0ull << (first + n) : 0;
	}
	return err;
}

int store_writer_put(struct store_writer *w, const struct store_digest *d, const uint8_t *data,
		     unsigned int n, struct place *at, struct place *p, uint64_t *fresh)
{
	int err = store_writer_error(w), found = -EAGAIN;
	unsigned int i = 0;

	*fresh = 0;
	while (!err && found == -EAGAIN) {
		uint64_t now = 0;

		found = find_run(w, d, data, n, at, p, &i, &now);
		err = found == -EAGAIN ? 0 : found;
		*fresh |= now;
		if (!err)
			err = append_fresh(w, data, now);
		if (!err && w->cur && w->cur->seg->slots == SEG_SLOTS)
			err = finish(w);
		if (!err && found && !w->cur)
			err = begin_segment(w);
	}
	return latch(w, err);
}

/* ------------------------------------------------------------------ hashing with two threads */

/* Takes the next run and hashes it. */
static bool hash_one(struct store_writer *w)
{
	struct hasher *h = &w->hash;
	size_t run = atomic_fetch_add(&h->next, 1), first = run * RUN, n = RUN;

	if (first >= h->pages)
		return false;
	if (n > h->pages - first)
		n = h->pages - first;
	store_hash_pages(w->s, h->data + first * STORE_PAGE, n, w->digests + first);
	/* Pairs with the acquire in store_writer_hash: the digests are there. */
	atomic_store_explicit(&h->done[run], true, memory_order_release);
	return true;
}

static void *helper(void *arg)
{
	struct store_writer *w = arg;
	struct hasher *h = &w->hash;

	lock_take(&h->mutex);
	for (;;) {
		while (h->state != ASKED && !h->stop)
			lock_wait(&h->mutex, &h->wake);
		if (h->stop)
			break;
		h->state = BUSY;
		lock_drop(&h->mutex);
		while (hash_one(w))
			;
		lock_take(&h->mutex);
		h->state = IDLE;
		pthread_cond_signal(&h->idle);
	}
	lock_drop(&h->mutex);
	return NULL;
}

/* Waits until no helper hashes; one that has not woken up yet does not count. */
static void wait_idle(struct hasher *h)
{
	lock_take(&h->mutex);
	if (h->state == ASKED)
		h->state = IDLE;
	while (h->state == BUSY)
		lock_wait(&h->mutex, &h->idle);
	lock_drop(&h->mutex);
}

/* Starts the helper with all signals blocked. */
static void start_helper(struct store_writer *w)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	w->hash.runs = pthread_create(&w->hash.thread, NULL, helper, w) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void give_work(struct store_writer *w, const uint8_t *data, size_t pages)
{
	struct hasher *h = &w->hash;
	bool help = !(w->flags & STORE_ONE_THREAD) && pages >= 4 * RUN;

	if (help && !h->runs)
		start_helper(w);
	h->data = data;
	h->pages = pages;
	atomic_store(&h->next, 0);
	for (size_t i = 0; i * RUN < pages; i++)
		atomic_store_explicit(&h->done[i], false, memory_order_relaxed);
	if (!help || !h->runs)
		return;
	lock_take(&h->mutex);
	h->state = ASKED;
	pthread_cond_signal(&h->wake);
	lock_drop(&h->mutex);
}

int store_writer_hash(struct store_writer *w, const uint8_t *data, size_t pages,
		      int (*each)(void *arg, size_t first, size_t n, const struct store_digest *d),
		      void *arg)
{
	int err = 0;

	for (size_t at = 0; at < pages && !err; at += SLICE) {
		size_t slice = pages - at < SLICE ? pages - at : SLICE;

		give_work(w, data + at * STORE_PAGE, slice);
		for (size_t i = 0; i * RUN < slice && !err; i++) {
			size_t n = slice - i * RUN < RUN ? slice - i * RUN : RUN;

			/* pairs with hash_one() */
			while (!atomic_load_explicit(&w->hash.done[i], memory_order_acquire))
				if (!hash_one(w))
					wait_idle(&w->hash);
			err = each(arg, at + i * RUN, n, w->digests + i * RUN);
		}
		wait_idle(&w->hash);
	}
	return err;
}

static void stop_helper(struct hasher *h)
{
	if (!h->runs)
		return;
	lock_take(&h->mutex);
	h->stop = true;
	pthread_cond_signal(&h->wake);
	lock_drop(&h->mutex);
	pthread_join(h->thread, NULL);
}

/* ------------------------------------------------------------------ a writer */

static int get_memory(struct store_writer *w)
{
	w->mem = mmap(NULL, w->nbufs * BUF_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (w->mem == MAP_FAILED)
		w->mem = NULL;
	else	/* a fork during a dump would have each page copied */
		madvise(w->mem, w->nbufs * BUF_LEN, MADV_DONTFORK);
	if (w->mem)	/* see store_buffer() */
		madvise(w->mem, w->nbufs * BUF_LEN, MADV_HUGEPAGE);
	if (w->mem && w->flags & STORE_TOUCHED)
		madvise(w->mem, w->nbufs * BUF_LEN, MADV_POPULATE_WRITE);
	w->digests = malloc(SLICE * sizeof(*w->digests));
	if (w->s->super.a) {
		w->frame = malloc(FRAME_SLOTS * STORE_PAGE +
				  ZSTD_compressBound(FRAME_SLOTS * STORE_PAGE));
		w->zstd = ZSTD_createCCtx();
	}
	if (!w->mem || !w->digests || (w->s->super.a && (!w->frame || !w->zstd)))
		return store_fail(-ENOMEM, "out of memory");
	for (unsigned int i = 0; i < w->nbufs; i++) {
		w->bufs[i].req.buf = w->mem + i * (size_t)BUF_LEN;
		w->bufs[i].next = w->free;
		w->free = &w->bufs[i];
	}
	store_io_lane_init(&w->lane, 2 * w->nbufs);
	return 0;
}

static bool is_tmpfs(const struct store *s)
{
	struct statfs f;

	return !fstatfs(s->dir, &f) && f.f_type == TMPFS_MAGIC;
}

static int open_writer(struct store *s, struct store_writer *root, unsigned int flags,
		       struct store_writer **out)
{
	struct store_writer *w;
	int err = store_need_rw(s);

	*out = NULL;
	if (err)
		return err;
	w = calloc(1, sizeof(*w));
	if (!w)
		return store_fail(-ENOMEM, "out of memory");
	atomic_fetch_add(&s->writers, 1);
	w->s = s;
	w->root = root ?: w;
	w->nbufs = root ? LANE_BUFS : BUFS;
	w->in_memory = root && is_tmpfs(s);
	w->flags = flags;
	w->began = store_now_ns();
	lock_init(&w->shared, PROXY_WRITER);
	lock_init(&w->hash.mutex, PROXY_HASHER);
	pthread_cond_init(&w->hash.wake, NULL);
	pthread_cond_init(&w->hash.idle, NULL);
	err = get_memory(w);
	if (!err && !root)
		err = store_lookup_refresh(s);
	if (err) {
		store_writer_close(w);
		return err;
	}
	*out = w;
	return 0;
}

int store_writer_open(struct store *s, unsigned int flags, struct store_writer **out)
{
	return open_writer(s, NULL, flags, out);
}

int store_writer_lane(struct store_writer *w, struct store_writer **out)
{
	int err = store_writer_error(w);

	*out = NULL;
	return err ?: open_writer(w->s, w->root, STORE_ONE_THREAD, out);
}

int store_writer_claims(struct store_writer *w, int fd, int (*wait)(void *arg), void *arg)
{
	w->wait = wait;
	w->wait_arg = arg;
	return store_writer_error(w) ?: store_claims_open(w->s, fd, &w->claims);
}

static int wait_for(struct store_writer *w, const struct seg *g)
{
	const struct timespec pause = { .tv_nsec = 2000000 };
	int err;

	while ((err = store_claims_state(w->claims, g->claim)) == -EAGAIN) {
		err = w->wait ? w->wait(w->wait_arg) : 0;
		if (err)
			return store_fail(err, "another writer of the checkpoint has not ended yet");
		nanosleep(&pause, NULL);
	}
	if (!err)
		return 0;
	return store_fail(err, "another writer of the checkpoint has %s, which was to store pages of "
			  "this one, too", err == -EOWNERDEAD ? "died" : "failed");
}

/* Compares what was promised with the index of the durable segment; it is then one like others. */
static int check_promises(struct store_writer *w, struct seg *g)
{
	struct store_digest *want = g->digests;
	int err;

	g->digests = NULL;
	g->promised = false;
	err = store_seg_load(w->s, g);
	for (uint32_t i = 0; i < SEG_SLOTS && !err; i++)
		if (!digest_none(want[i]) &&
		    (i >= g->slots || !digest_equal(want[i], g->digests[i]) || g->foreign))
			err = store_fail(-EBADMSG, "segment %016" PRIx64 " of another writer has not "
					 "the pages that it promised", g->id);
	free(want);
	g->owner = NULL;
	g->broken = err;
	return err;
}

/* Waits for all pages that other writers have promised. Its own are durable, so nobody waits in a circle. */
static int keep_promises(struct store_writer *w)
{
	int err = 0;

	for (uint32_t i = 1; !err; i++) {
		struct seg *g;

		lock_take(&w->s->mutex);
		g = i < w->s->nsegs ? w->s->segs[i] : NULL;
		lock_drop(&w->s->mutex);
		if (!g)
			return 0;
		if (g->owner != w || !g->promised)
			continue;
		err = wait_for(w, g);
		lock_take(&w->s->mutex);
		err = err ?: check_promises(w, g);
		lock_drop(&w->s->mutex);
	}
	return latch(w, err);
}

/* What was promised to a writer that is closed concerns nobody any more. */
static void drop_promises(struct store_writer *w)
{
	if (!w->claims)
		return;
	lock_take(&w->s->mutex);
	for (uint32_t i = 1; i < w->s->nsegs; i++) {
		struct seg *g = w->s->segs[i];

		if (g->owner != w || !g->promised)
			continue;
		free(g->digests);
		g->digests = NULL;
		g->owner = NULL;
		g->slots = 0;
		g->promised = g->known = false;
	}
	lock_drop(&w->s->mutex);
	store_claims_close(w->claims);
}

int store_writer_flush(struct store_writer *w)
{
	int err;

	finish(w);
	while (reap(w, true))
		;
	err = store_writer_error(w);
	if (err)
		return err;
	if (w->renamed) {
		err = store_io_sync_dir(w->s->dir, "seg");
		if (err)
			return latch(w, store_fail_io(err, "sync", "seg"));
		w->renamed = false;
	}
	if (w->claims) {
		err = keep_promises(w);
		if (err)
			return err;
	}
	w->st.seconds = (store_now_ns() - w->began) * 1e-9;
	return 0;
}

static void add_stats(struct store_writer_stats *to, const struct store_writer_stats *st)
{
	to->in += st->in;
	to->zero += st->zero;
	to->known += st->known;
	to->fresh += st->fresh;
	to->stored += st->stored;
}

void store_writer_stats(const struct store_writer *w, struct store_writer_stats *st)
{
	*st = w->st;
	lock_take(&w->root->shared);
	if (w->root == w)
		add_stats(st, &w->lanes);
	lock_drop(&w->root->shared);
}

void store_writer_close(struct store_writer *w)
{
	if (!w)
		return;
	stop_helper(&w->hash);
	why_set(&w->why, -ECANCELED, "the writer is being closed");
	if (w->cur) {
		while (w->cur->writing && reap(w, true))
			;
		drop_out(w, w->cur);
	}
	while (reap(w, true))
		;
	drop_promises(w);
	store_io_lane_exit(&w->lane);
	if (w->mem)
		munmap(w->mem, w->nbufs * BUF_LEN);
	ZSTD_freeCCtx(w->zstd);
	free(w->frame);
	free(w->digests);
	if (w->root != w) {
		lock_take(&w->root->shared);
		add_stats(&w->root->lanes, &w->st);
		lock_drop(&w->root->shared);
	}
	lock_end(&w->shared);
	pthread_cond_destroy(&w->hash.idle);
	pthread_cond_destroy(&w->hash.wake);
	lock_end(&w->hash.mutex);
	atomic_fetch_sub(&w->s->writers, 1);
	free(w);
}
