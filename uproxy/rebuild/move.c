// SPDX-License-Identifier: Apache-2.0
/*
 * move.c - moves device memory to and from an object of the store
 *
 * Three ways for linear memory:
 *
 *   direct   the host may read and write it where it is: the store hashes it there
 *   staged   through pinned buffers: while the device fills some, the store takes others
 *   digests  the device computes the digests of its pages (hal/digest.c), a span ahead, and only
 *            those that the store lacks are staged; the host believes their digests, too
 *
 * The first way is used if the driver allows it, else the third, else the second; SINGVGPU_CONTENT
 * names a way, for tests and measurements.
 *
 * While another sharer has the device's memory (slice/common.h), that of the session is in the backing, where the store hashes it.
 *
 * The calling thread asks the device and the store, and hands batches of pages to lanes: threads
 * that store them, each in a part of the object of its own. A batch goes around:
 *
 *   free ── take_batch() ─► the device fills it ── give() ─► queue ── a lane, put_batch() ─► free
 *
 * Lanes are started as the bytes given grow; for a small dump the calling thread does their work
 * when it finds no free batch. Several threads load, too, each with a reader of its own and two
 * buffers, of which the device empties one while the store fills the other. If the job was moved, its former
 * proxy may still have the memory (handover.h): loaders read it there, and read the store for what they do not get.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "content_i.h"
#include "digest.h"
#include "handover.h"
#include "lock.h"
#include "peer.h"
#include "stat_i.h"
#include "table.h"

#define STAGE		(4ull << 20)	/* bytes of one pinned buffer */
#define STAGE_PAGES	(STAGE / STORE_PAGE)
#define BATCHES		3		/* as long as there are no lanes; then two for each, and one */
#define PIECE		(8ull << 20)	/* between two progress messages */
#define BUFFER		(1ull << 20)	/* small enough for the cache */
#define BUFFERS		4		/* reads under way in each thread */
#define LOADERS_MAX	16
#define LANES_MAX	16
#define LANE_MIN	(64ull << 20)	/* bytes given that are worth another lane */
#define SPAN		(256ull << 20)	/* digests computed at once */
#define GAP		4		/* known pages that are copied rather than skipped */
#define TELL_NS		200000000ull

enum way { AUTO, DIRECT, STAGED, DIGESTS };

/* Pages for the store: in a pinned buffer, or where the host reads them. */
struct batch {
	struct batch *next;
	uint8_t *buf;			/* NULL until it is needed */
	CUstream stream;		/* fills buf */
	bool staged, digested;		/* data is buf; d has the digests */
	const uint8_t *data;
	uint64_t used;			/* pages of buf */
	unsigned int runs;
	struct {
		uint64_t off;		/* in the object */
		uint64_t at, len;	/* in data */
	} run[STAGE_PAGES];
	struct store_digest d[STAGE_PAGES];
};

struct lane {
	struct mover *m;
	struct store_object *o;
	pthread_t t;
};

struct crew {
	struct lane lane[LANES_MAX];
	unsigned int lanes, most;	/* calling thread */
	unsigned int batches;		/* made; calling thread */
	uint64_t given, told;		/* bytes; calling thread */
	_Atomic uint64_t moved;		/* bytes that are stored */
	struct lock lock;		/* all below */
	pthread_cond_t work, back;	/* something in the queue, or the end; a batch is free */
	struct batch *free, *queue, **tail;
	unsigned int busy;		/* lanes at work */
	enum { GO, FLUSH, DROP } state;	/* at the end of the queue; now */
	struct why why;			/* the first error */
};

struct mover {
	struct sv_session *s;
	struct hal *h;
	struct store *st;
	const struct content_progress *progress;
	struct content_stats *stats;
	struct sparse *sparse;
	enum way way;
	uint8_t *buf;			/* pinned, for what is not handed to lanes; or NULL */
	CUstream stream;
	struct store_object *o;		/* that is saved */
	struct crew crew;
	struct hal_digests *digests;
	bool no_digests;		/* hal_digests_open has failed */
	uint64_t done, total, told_ns;
	const char *phase;
};

static int say_driver(CUresult r, const char *what, struct why *why)
{
	if (!r)
		return 0;
	return why_set(why, -EIO, "%s: the driver says error %d", what, r);
}

/* Reports the progress; the caller may ask to give up. */
static int tell_progress(struct mover *m, uint64_t done, struct why *why)
{
	uint64_t now = now_ns();

	m->done += done;
	if (!m->progress || !m->progress->fn || now - m->told_ns < TELL_NS)
		return 0;
	m->told_ns = now;
	if (!m->progress->fn(m->progress->arg, m->phase, m->done, m->total))
		return 0;
	return why_set(why, -ECANCELED, "given up in the phase \"%s\"", m->phase);
}

/* A pinned buffer of STAGE bytes, and a stream that copies to or from it. */
static int pin(struct mover *m, uint8_t **buf, CUstream *stream, struct why *why)
{
	uint8_t *p = aligned_alloc(2 << 20, STAGE);
	CUresult r;

	if (!p)
		return why_set(why, -ENOMEM, "out of memory");
	r = hal_pin(m->h, p, STAGE);
	if (!r) {
		r = m->h->drv.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
		if (r)
			hal_unpin(m->h, p);
	}
	if (r) {
		free(p);
		return say_driver(r, "pinned memory for the contents", why);
	}
	*buf = p;
	return 0;
}

static void unpin(struct mover *m, uint8_t *buf, CUstream stream)
{
	if (!buf)
		return;
	m->h->drv.cuStreamDestroy_v2(stream);
	hal_unpin(m->h, buf);
	free(buf);
}

static int own_buffer(struct mover *m, struct why *why)
{
	return m->buf ? 0 : pin(m, &m->buf, &m->stream, why);
}

/* ------------------------------------------------------------------------------ lanes */

static void crew_init(struct crew *c)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	c->most = cpus < 2 ? 0 : cpus < LANES_MAX ? cpus : LANES_MAX;
	c->tail = &c->queue;
	lock_init(&c->lock, PROXY_LANES);
	pthread_cond_init(&c->work, NULL);
	pthread_cond_init(&c->back, NULL);
}

/* Stores a batch, once the device has filled it. */
static int put_batch(struct mover *m, struct store_object *o, struct batch *b, struct why *why)
{
	int rc = 0;

	lock_may_wait("the device, and for the store");
	if (b->staged)
		rc = say_driver(m->h->drv.cuStreamSynchronize(b->stream), "copying device memory",
				why);
	for (unsigned int i = 0; i < b->runs && !rc; i++) {
		const uint8_t *data = b->data + b->run[i].at;
		uint64_t off = b->run[i].off, len = b->run[i].len;

		rc = b->digested ? store_object_put(o, off, data, len / STORE_PAGE,
						    b->d + b->run[i].at / STORE_PAGE) :
				   store_object_write(o, off, data, len);
		store_failed(why, rc);
		m->crew.moved += len;
	}
	return rc;
}

/* With the lock held. */
static struct batch *next_batch(struct crew *c)
{
	struct batch *b = c->queue;

	assert_held(&c->lock);
	if (b) {
		c->queue = b->next;
		if (!c->queue)
			c->tail = &c->queue;
	}
	return b;
}

static void free_batch(struct crew *c, struct batch *b)
{
	assert_held(&c->lock);
	b->next = c->free;
	c->free = b;
	pthread_cond_signal(&c->back);
}

/* With the lock held. */
static void note_error(struct crew *c, int rc, const struct why *why)
{
	assert_held(&c->lock);
	if (!c->why.err)
		why_text(&c->why, rc, why->text);
}

static void *lane(void *arg)
{
	struct lane *l = arg;
	struct crew *c = &l->m->crew;
	CUresult r = l->m->h->drv.cuCtxSetCurrent(l->m->h->primary);
	struct why why = { 0 };
	struct batch *b;
	int rc = say_driver(r, "entering a context", &why);

	lock_take(&c->lock);
	for (;;) {
		note_error(c, rc, &why);
		b = next_batch(c);
		if (!b && c->state != GO)
			break;
		if (!b) {
			lock_wait(&c->lock, &c->work);
			continue;
		}
		if (!c->why.err && c->state != DROP) {
			c->busy++;
			lock_drop(&c->lock);
			rc = put_batch(l->m, l->o, b, &why);
			lock_take(&c->lock);
			c->busy--;
		}
		free_batch(c, b);
	}
	if (c->state == FLUSH && !c->why.err) {
		lock_drop(&c->lock);
		rc = store_failed(&why, store_object_flush(l->o));
		lock_take(&c->lock);
		note_error(c, rc, &why);
	}
	lock_drop(&c->lock);
	return NULL;
}

/* Starts the lanes that the bytes given are worth: two at first, since one is no gain. */
static void start_lanes(struct mover *m)
{
	struct crew *c = &m->crew;
	uint64_t want = c->given < LANE_MIN ? 0 : c->given / LANE_MIN + 1;

	while (c->lanes < want && c->lanes < c->most) {
		struct lane *l = &c->lane[c->lanes];

		l->m = m;
		if ((!c->lanes && store_object_expect(m->o, m->total)) ||
		    store_object_lane(m->o, &l->o)) {
			c->most = c->lanes;	/* goes on with what there is */
		} else if (!pthread_create(&l->t, NULL, lane, l)) {
			c->lanes++;
		} else {
			store_object_abort(l->o);
			c->most = c->lanes;
		}
	}
}

static int tell_moved(struct mover *m, struct why *why)
{
	uint64_t moved = m->crew.moved, more = moved - m->crew.told;

	m->crew.told = moved;
	return tell_progress(m, more, why);
}

/*
 * Waits until a batch comes back, or does a lane's work. Called and returns with the lock held;
 * -EAGAIN: nothing is under way.
 */
static int help_or_wait(struct mover *m, struct why *why)
{
	struct crew *c = &m->crew;
	struct batch *b = c->lanes ? NULL : next_batch(c);
	struct timespec t;
	int rc = 0;

	assert_held(&m->crew.lock);
	if (c->why.err)
		return why_text(why, c->why.err, c->why.text);
	if (b) {
		lock_drop(&c->lock);
		rc = put_batch(m, m->o, b, why) ?: tell_moved(m, why);
		lock_take(&c->lock);
		free_batch(c, b);
		note_error(c, rc, why);
		return rc;
	}
	if (!c->queue && !c->busy)
		return -EAGAIN;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += TELL_NS;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	lock_wait_until(&c->lock, &c->back, &t);
	lock_drop(&c->lock);
	rc = tell_moved(m, why);
	lock_take(&c->lock);
	return rc;
}

/* An empty batch, or NULL. */
static struct batch *take_batch(struct mover *m, bool staged, struct why *why)
{
	unsigned int most = m->crew.lanes ? 2 * m->crew.lanes + 1 : BATCHES;
	struct crew *c = &m->crew;
	struct batch *b = NULL;
	int rc = 0;

	lock_take(&c->lock);
	while (!rc && !c->free && c->batches >= most)
		rc = help_or_wait(m, why);
	if (!rc && c->free) {
		b = c->free;
		c->free = b->next;
	}
	lock_drop(&c->lock);
	if (!rc && !b) {
		b = calloc(1, sizeof(*b));
		c->batches += b != NULL;
	}
	if (!rc && !b)
		why_set(why, -ENOMEM, "out of memory");
	if (b && staged && !b->buf && pin(m, &b->buf, &b->stream, why)) {
		lock_take(&c->lock);
		free_batch(c, b);
		lock_drop(&c->lock);
		return NULL;
	}
	if (b) {
		b->staged = staged;
		b->digested = false;
		b->runs = b->used = 0;
	}
	return b;
}

static void give(struct mover *m, struct batch *b, uint64_t bytes)
{
	struct crew *c = &m->crew;

	c->given += bytes;
	start_lanes(m);
	b->next = NULL;
	lock_take(&c->lock);
	*c->tail = b;
	c->tail = &b->next;
	pthread_cond_signal(&c->work);
	lock_drop(&c->lock);
}

/* Waits until all that was given is in the store's hands. */
int mover_settle(struct mover *m, struct why *why)
{
	struct crew *c = &m->crew;
	int rc;

	lock_take(&c->lock);
	do
		rc = help_or_wait(m, why);
	while (!rc);
	lock_drop(&c->lock);
	return rc == -EAGAIN ? 0 : rc;
}

static void end_lanes(struct mover *m, int state)
{
	struct crew *c = &m->crew;

	lock_take(&c->lock);
	c->state = state;
	pthread_cond_broadcast(&c->work);
	lock_drop(&c->lock);
	lock_may_wait("the lanes");
	for (unsigned int i = 0; i < c->lanes; i++)
		pthread_join(c->lane[i].t, NULL);
}

/* After a failure, or when there is nothing left to drop. */
static void crew_drop(struct mover *m)
{
	struct crew *c = &m->crew;
	struct batch *b;

	end_lanes(m, DROP);
	while (c->lanes)
		store_object_abort(c->lane[--c->lanes].o);
	lock_take(&c->lock);
	while ((b = next_batch(c)))
		free_batch(c, b);
	lock_drop(&c->lock);
	while ((b = c->free)) {
		c->free = b->next;
		if (b->buf)
			m->h->drv.cuStreamSynchronize(b->stream);
		unpin(m, b->buf, b->stream);
		free(b);
	}
	pthread_cond_destroy(&c->back);
	pthread_cond_destroy(&c->work);
	lock_end(&c->lock);
}

int mover_finish(struct mover *m, struct why *why)
{
	struct crew *c = &m->crew;
	int rc = mover_settle(m, why);

	if (rc)
		return rc;
	end_lanes(m, FLUSH);
	rc = why_text(why, c->why.err, c->why.text);
	while (!rc && c->lanes)
		rc = store_failed(why, store_object_join(m->o, c->lane[--c->lanes].o));
	return rc;
}

int mover_open(struct mover **out, struct sv_session *s, struct store *st,
	       const struct content_progress *p, uint64_t total, struct content_stats *stats)
{
	static const char *const ways[] = { "auto", "direct", "staged", "digests" };
	const char *env = getenv("SINGVGPU_CONTENT");
	struct mover *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	*m = (struct mover){ .s = s, .h = &s->hal, .st = st, .progress = p, .total = total,
			     .stats = stats, .sparse = sparse_open(-1), .phase = "contents" };
	for (unsigned int i = 0; env && i < 4; i++)
		if (!strcmp(env, ways[i]))
			m->way = i;
	if (!m->sparse) {
		free(m);
		return -ENOMEM;
	}
	crew_init(&m->crew);
	*out = m;
	return 0;
}

void mover_close(struct mover *m)
{
	if (!m)
		return;
	crew_drop(m);
	unpin(m, m->buf, m->stream);
	hal_digests_close(m->digests);
	sparse_close(m->sparse);
	free(m);
}

/* ------------------------------------------------------------------------------ saving */

static int write_out(struct mover *m, struct store_object *o, uint64_t off, const void *p,
		     uint64_t len, struct why *why)
{
	int rc = store_object_write(o, off, p, len);

	return store_failed(why, rc) ?: tell_progress(m, len, why);
}

/* Hands out `piece` bytes at data, for off of the object. */
static int give_piece(struct mover *m, const uint8_t *data, uint64_t off, uint64_t piece, struct why *why)
{
	struct batch *b = take_batch(m, false, why);

	if (!b)
		return why->err;
	b->data = data;
	b->run[0].off = off;
	b->run[0].at = 0;
	b->run[0].len = piece;
	b->runs = 1;
	give(m, b, piece);
	return 0;
}

static int save_direct(struct mover *m, uint64_t va, uint64_t len, uint64_t off, struct why *why)
{
	uint64_t end = va + len, at = va, from, to;

	m->stats->digests = "direct";
	while (sparse_next(m->sparse, at, end, &from, &to)) {
		m->done += from - at;
		for (at = from; at < to; at += PIECE)
			if (give_piece(m, (const uint8_t *)(uintptr_t)at, off + (at - va), to - at < PIECE ? to - at : PIECE, why))
				return why->err;
		at = to;
	}
	m->done += end - at;
	return 0;
}

/* Saves from the backing. Units that lie there one behind the other go together. */
static int save_kept(struct mover *m, uint64_t va, uint64_t len, uint64_t off, struct why *why)
{
	uint64_t at, size;

	m->stats->digests = "direct";
	for (at = 0; at < len; at += size) {
		const uint8_t *p = common_kept(va + at);

		for (size = TABLE_UNIT; p && at + size < len && size < PIECE && common_kept(va + at + size) == p + size;)
			size += TABLE_UNIT;
		if (!p)
			m->done += size;
		else if (give_piece(m, p, off + at, size, why))
			return why->err;
	}
	return 0;
}

/* Pages of linear memory at va, for off of the object; those with missing[i] are written. */
struct span {
	uint64_t va, off, pages;
	const struct store_digest *d;	/* NULL: not known */
	uint8_t *missing;
};

/* The next run to copy: its first page and length. Short gaps of known pages are copied along. */
static uint64_t next_copy(const struct span *sp, uint64_t from, uint64_t room, uint64_t *run)
{
	uint64_t i = from, end, j;

	while (i < sp->pages && !sp->missing[i])
		i++;
	for (end = j = i; j < sp->pages && j - i < room && j - end <= GAP; j++)
		if (sp->missing[j])
			end = j + 1;
	*run = end - i;
	return i;
}

/* The missing ones of `run` pages, which are copied behind those that are in the batch. */
static uint64_t note_missing(struct batch *b, const struct span *sp, uint64_t at, uint64_t run)
{
	uint64_t bytes = 0;

	for (uint64_t i = 0, n; i < run; i += n ?: 1) {
		for (n = 0; i + n < run && sp->missing[at + i + n]; n++)
			if (sp->d)
				b->d[b->used + i + n] = sp->d[at + i + n];
		if (!n)
			continue;
		b->run[b->runs].off = sp->off + (at + i) * STORE_PAGE;
		b->run[b->runs].at = (b->used + i) * STORE_PAGE;
		b->run[b->runs++].len = n * STORE_PAGE;
		bytes += n * STORE_PAGE;
	}
	return bytes;
}

/* Begins to copy what a batch has room for; returns the bytes that are missing, or the error. */
static int64_t batch_fill(struct mover *m, struct batch *b, const struct span *sp, uint64_t *from,
			  struct why *why)
{
	int64_t bytes = 0;
	int rc = 0;

	b->data = b->buf;
	b->digested = sp->d;
	while (!rc && b->used < STAGE_PAGES) {
		uint64_t run, at = next_copy(sp, *from, STAGE_PAGES - b->used, &run);

		*from = at + run;
		if (!run)
			break;
		rc = say_driver(m->h->drv.cuMemcpyDtoHAsync_v2(b->buf + b->used * STORE_PAGE,
							       sp->va + at * STORE_PAGE,
							       run * STORE_PAGE, b->stream),
				"copying device memory", why);
		bytes += note_missing(b, sp, at, run);
		b->used += run;
	}
	m->stats->copied += b->used * STORE_PAGE;
	return rc ?: bytes;
}

static int save_missing(struct mover *m, const struct span *sp, struct why *why)
{
	uint64_t from = 0;

	for (;;) {
		struct batch *b = take_batch(m, true, why);
		int64_t bytes = b ? batch_fill(m, b, sp, &from, why) : why->err;

		if (bytes > 0) {
			give(m, b, bytes);
			continue;
		}
		if (b) {
			lock_take(&m->crew.lock);
			free_batch(&m->crew, b);
			lock_drop(&m->crew.lock);
		}
		return bytes;
	}
}

/* Does the device compute digests? Otherwise the store hashes all pages. */
static bool digests(struct mover *m)
{
	if (!m->digests && !m->no_digests && m->way != STAGED)
		m->no_digests = hal_digests_open(&m->digests, m->h, store_seed(m->st));
	m->stats->digests = m->digests ? "device" : "host";
	return m->digests;
}

/* Which pages does the store lack? */
static int ask_store(struct mover *m, struct span *sp, unsigned int slot, struct why *why)
{
	CUresult r = hal_digests_wait(m->digests, slot, &sp->d);
	ssize_t lacks;

	if (r)
		return say_driver(r, "digests of device memory", why);
	lacks = store_object_digests(m->o, sp->off, sp->d, sp->pages, sp->missing);
	if (lacks < 0)
		return store_failed(why, lacks);
	m->stats->known += (sp->pages - lacks) * STORE_PAGE;
	return tell_progress(m, (sp->pages - lacks) * STORE_PAGE, why);
}

static uint64_t span_pages(uint64_t len, uint64_t at)
{
	return at >= len ? 0 : (len - at < SPAN ? len - at : SPAN) / STORE_PAGE;
}

static int save_spans(struct mover *m, uint64_t va, uint64_t len, uint64_t off, struct why *why)
{
	uint8_t *missing = malloc(SPAN / STORE_PAGE);
	bool digested = digests(m);
	unsigned int slot = 0;
	int rc = missing ? 0 : -ENOMEM;

	for (uint64_t at = 0; !rc && at < len; at += SPAN, slot ^= 1) {
		struct span sp = { va + at, off + at, span_pages(len, at), NULL, missing };
		CUresult r = CUDA_SUCCESS;

		memset(missing, 1, sp.pages);
		if (digested && !at)
			r = hal_digests_start(m->digests, slot, va, sp.pages);
		if (digested && !r)	/* the next span's, while this one is copied */
			r = hal_digests_start(m->digests, slot ^ 1, sp.va + SPAN,
					      span_pages(len, at + SPAN));
		rc = say_driver(r, "digests of device memory", why);
		if (!rc && digested)
			rc = ask_store(m, &sp, slot, why);
		if (!rc)
			rc = save_missing(m, &sp, why);
	}
	free(missing);
	return rc;
}

static bool is_direct(struct mover *m, uint64_t va)
{
	return (m->way == AUTO || m->way == DIRECT) && hal_host_reads(m->h, va);
}

int mover_save(struct mover *m, struct store_object *o, uint64_t va, uint64_t len, uint64_t off,
	       struct why *why)
{
	int rc;

	m->o = o;
	if (!common_here() && window_mapped(m->s, va, len))
		rc = save_kept(m, va, len, off, why);
	else
		rc = is_direct(m, va) ? save_direct(m, va, len, off, why) : save_spans(m, va, len, off, why);
	m->stats->bytes += len;
	return why_text(why, rc, "");
}

/* ------------------------------------------------------------------------------ loading */

struct loading {
	struct mover *m;
	const struct store_ref *ref;
	uint64_t va, off;
	bool direct;
	struct {
		uint64_t off, len;
	} *task;
	size_t tasks, cap;
	size_t next;		/* atomic */
	uint64_t moved;		/* bytes; atomic */
	unsigned int running;	/* lock */
	struct why *why;	/* the first error; lock */
	struct lock lock;
	pthread_cond_t over;
};

static int read_all(struct store_reader *r, uint64_t off, void *to, uint64_t len, struct why *why)
{
	ssize_t got = store_read(r, off, to, len);

	if (got >= 0 && (uint64_t)got != len)
		return why_set(why, -EBADMSG, "the object of the device's contents ends too early");
	return got < 0 ? store_failed(why, got) : 0;
}

/*
 * Loads directly into memory. New pages of a file cost half as much by a write as by a page fault.
 * Asks for nothing behind this task, which may be another thread's.
 */
static int load_direct(struct mover *m, struct store_reader *r, uint64_t va, uint64_t off,
		       uint64_t len, uint8_t *buf, struct why *why)
{
	struct store_fetch *f[BUFFERS] = { 0 };
	uint64_t at = 0, asked = 0;
	int fd = sparse_file(m->sparse, va, len, &at), rc = 0;

	if (fd < 0 || (off | len) % STORE_PAGE)
		return read_all(r, off, (void *)(uintptr_t)va, len, why);
	for (uint64_t done = 0; done < len && !rc; done += BUFFER) {
		uint64_t size = len - done < BUFFER ? len - done : BUFFER, k = done / BUFFER % BUFFERS;

		for (; asked < len && asked < done + BUFFERS * BUFFER && !rc; asked += BUFFER)
			rc = store_fetch(r, off + asked, buf + asked % (BUFFERS * BUFFER),
					 len - asked < BUFFER ? len - asked : BUFFER,
					 &f[asked / BUFFER % BUFFERS]);
		if (!rc) {
			rc = store_fetch_end(r, f[k]);
			f[k] = NULL;
		}
		if (rc)
			store_failed(why, rc);
		else if (pwrite(fd, buf + k * BUFFER, size, at + done) != (ssize_t)size)
			rc = why_set(why, -ENOMEM, "out of memory for the device: %s",
				     strerror(errno));
	}
	for (int k = 0; k < BUFFERS; k++)
		if (f[k])
			store_fetch_end(r, f[k]);
	return rc;
}

/* A thread's buffers, and the streams that empty them. */
struct load_buf {
	uint8_t *p[2];
	CUstream stream[2];
	struct takeover *former;	/* NULL: there is none, or not any more */
};

/* Writes a piece from the former proxy to our memory. */
static bool put_piece(const struct loading *l, const uint8_t *from, uint64_t va, uint64_t len, CUstream stream)
{
	struct cuda_driver *d = &l->m->h->drv;
	uint64_t at;
	int fd;

	if (!l->direct)
		return !d->cuMemcpyHtoDAsync_v2(va, from, len, stream) && !d->cuStreamSynchronize(stream);
	fd = sparse_file(l->m->sparse, va, len, &at);
	if (fd >= 0)
		return pwrite(fd, from, len, at) == (ssize_t)len;
	memcpy((void *)(uintptr_t)va, from, len);
	return true;
}

/* False: the store has to bring all of the range. */
static bool take_over(const struct loading *l, struct load_buf *b, uint64_t va, uint64_t len)
{
	const uint8_t *from;

	for (uint64_t done = 0, size; done < len && b->former; done += size) {
		size = len - done < HANDOVER_ROOM ? len - done : HANDOVER_ROOM;
		from = takeover_read(b->former, va + done, size);
		if (from && put_piece(l, from, va + done, size, b->stream[0]))
			continue;
		takeover_close(b->former);
		b->former = NULL;
	}
	if (!b->former)
		return false;
	__atomic_fetch_add(&l->m->stats->handed, len, __ATOMIC_RELAXED);
	__atomic_fetch_add(&l->m->stats->copied, len, __ATOMIC_RELAXED);
	return true;
}

/* The previous task of this buffer is over when the device has emptied it. */
static int load_task(struct loading *l, struct store_reader *r, size_t i, struct load_buf *b, int k)
{
	struct mover *m = l->m;
	uint64_t off = l->task[i].off, len = l->task[i].len, va = l->va + (off - l->off);
	struct why why = { 0 };
	int rc;

	lock_may_wait("the device, and for the store");
	if (take_over(l, b, va, len)) {
		rc = 0;
	} else if (l->direct) {
		rc = load_direct(m, r, va, off, len, b->p[0], &why);
	} else {
		rc = say_driver(m->h->drv.cuStreamSynchronize(b->stream[k]),
				"filling device memory", &why) ?:
		     read_all(r, off, b->p[k], len, &why) ?:
		     say_driver(m->h->drv.cuMemcpyHtoDAsync_v2(va, b->p[k], len, b->stream[k]),
				"filling device memory", &why);
		__atomic_fetch_add(&m->stats->copied, len, __ATOMIC_RELAXED);
	}
	if (rc) {
		lock_take(&l->lock);
		why_text(l->why, rc, why.text);
		lock_drop(&l->lock);
	}
	__atomic_fetch_add(&l->moved, len, __ATOMIC_RELAXED);
	return rc;
}

static int get_buffers(const struct loading *l, struct load_buf *b)
{
	struct hal *h = l->m->h;

	if (l->direct) {
		b->p[0] = store_buffer(BUFFERS * BUFFER);
		return b->p[0] ? 0 : -ENOMEM;
	}
	if (h->drv.cuCtxSetCurrent(h->primary))
		return -ENOMEM;
	for (int k = 0; k < 2; k++) {
		b->p[k] = store_buffer(PIECE);
		if (!b->p[k])
			return -ENOMEM;
		if (hal_pin(h, b->p[k], PIECE)) {
			free(b->p[k]);
			b->p[k] = NULL;
			return -ENOMEM;
		}
		if (h->drv.cuStreamCreate(&b->stream[k], CU_STREAM_NON_BLOCKING)) {
			b->stream[k] = NULL;
			return -ENOMEM;
		}
	}
	return 0;
}

/* The error of copies that were under way. */
static int put_buffers(const struct loading *l, struct load_buf *b)
{
	struct hal *h = l->m->h;
	CUresult r = CUDA_SUCCESS;

	for (int k = 0; k < 2; k++) {
		if (b->stream[k]) {
			r = h->drv.cuStreamSynchronize(b->stream[k]) ?: r;
			h->drv.cuStreamDestroy_v2(b->stream[k]);
		}
		if (b->p[k] && !l->direct)
			hal_unpin(h, b->p[k]);
		free(b->p[k]);
	}
	return r;
}

static void *loader(void *arg)
{
	struct loading *l = arg;
	struct store_reader *r = NULL;
	struct load_buf b = { 0 };
	struct why why = { 0 };
	size_t i;
	int rc, k = 0;

	rc = store_failed(&why, store_object_open(l->m->st, l->ref, &r));
	if (!rc && get_buffers(l, &b))
		rc = why_set(&why, -ENOMEM, "out of memory, or of pinned memory");
	if (!rc && window_mapped(l->m->s, l->va, 1))
		b.former = takeover_open(l->m->s, l->ref, !l->direct);
	for (; !rc && (i = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED)) < l->tasks; k ^= 1)
		rc = load_task(l, r, i, &b, k);
	rc = say_driver(put_buffers(l, &b), "filling device memory", &why) ?: rc;
	takeover_close(b.former);
	lock_take(&l->lock);
	if (rc) {	/* load_task() has told its own */
		why_text(l->why, rc, why.text);
		__atomic_store_n(&l->next, l->tasks, __ATOMIC_RELAXED);
	}
	l->running--;
	pthread_cond_signal(&l->over);
	lock_drop(&l->lock);
	store_reader_close(r);
	return NULL;
}

/* While the threads work, the calling thread reports their progress, and may stop them. */
static void watch(struct loading *l)
{
	uint64_t told = 0;

	lock_take(&l->lock);
	while (l->running) {
		struct timespec t;
		uint64_t moved = __atomic_load_n(&l->moved, __ATOMIC_RELAXED);
		struct why why = { 0 };

		clock_gettime(CLOCK_MONOTONIC, &t);
		t.tv_nsec += TELL_NS;
		t.tv_sec += t.tv_nsec / 1000000000;
		t.tv_nsec %= 1000000000;
		if (!lock_wait_until(&l->lock, &l->over, &t))
			continue;
		lock_drop(&l->lock);
		tell_progress(l->m, moved - told, &why);
		lock_take(&l->lock);
		told = moved;
		if (why_text(l->why, why.err, why.text))
			__atomic_store_n(&l->next, l->tasks, __ATOMIC_RELAXED);
	}
	l->m->done += l->moved - told;
	lock_drop(&l->lock);
}

static int run_loaders(struct loading *l)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned int want = cpus < LOADERS_MAX ? cpus : LOADERS_MAX;
	pthread_t t[LOADERS_MAX];
	unsigned int k = 0;

	if (want > l->tasks)
		want = l->tasks;
	lock_take(&l->lock);
	for (; k < want && !pthread_create(&t[k], NULL, loader, l); k++)
		l->running++;
	lock_drop(&l->lock);
	if (want && !k)
		return -EAGAIN;
	watch(l);
	while (k)
		pthread_join(t[--k], NULL);
	return l->why->err;
}

/* Writes zeros to a range, except where it is new memory without pages. */
static int clear(struct mover *m, bool direct, uint64_t va, uint64_t len, struct why *why)
{
	uint64_t at = va, from, to;

	if (!len)
		return 0;
	if (!direct)
		return say_driver(m->h->drv.cuMemsetD8Async(va, 0, len, m->stream) ?:
					  m->h->drv.cuStreamSynchronize(m->stream),
				  "clearing device memory", why);
	while (sparse_next(m->sparse, at, va + len, &from, &to)) {
		memset((void *)(uintptr_t)from, 0, to - from);
		at = to;
	}
	return 0;
}

static int add_task(struct loading *l, uint64_t off, uint64_t len)
{
	while (len) {
		uint64_t piece = len < PIECE ? len : PIECE;

		if (l->tasks == l->cap) {
			size_t cap = l->cap ? l->cap * 2 : 64;
			void *p = realloc(l->task, cap * sizeof(*l->task));

			if (!p)
				return -ENOMEM;
			l->task = p;
			l->cap = cap;
		}
		l->task[l->tasks].off = off;
		l->task[l->tasks++].len = piece;
		off += piece;
		len -= piece;
	}
	return 0;
}

/* Clears the holes and lists the data. */
static int survey(struct loading *l, uint64_t len, struct why *why)
{
	uint64_t at = l->off, end = l->off + len, from, to;
	struct store_reader *r;
	int rc = store_object_open(l->m->st, l->ref, &r);

	if (rc)
		return store_failed(why, rc);
	while (!rc && at < end) {
		rc = store_next_data(r, at, &from, &to);
		if (rc == -ENXIO || (!rc && from >= end)) {
			from = to = end;
			rc = 0;
		} else if (store_failed(why, rc)) {
			break;
		}
		to = to < end ? to : end;
		rc = clear(l->m, l->direct, l->va + (at - l->off), from - at, why);
		if (!rc)
			rc = add_task(l, from, to - from);
		l->m->done += from - at;
		at = to;
	}
	store_reader_close(r);
	return rc;
}

int mover_load(struct mover *m, const struct store_ref *ref, uint64_t va, uint64_t len,
	       uint64_t off, struct why *why)
{
	struct loading l = { .m = m, .ref = ref, .va = va, .off = off, .direct = is_direct(m, va),
			     .why = why };
	int rc;

	lock_init(&l.lock, PROXY_LOADERS);
	pthread_cond_init(&l.over, NULL);
	rc = l.direct ? 0 : own_buffer(m, why);
	if (!rc)
		rc = survey(&l, len, why);
	if (!rc)
		rc = run_loaders(&l);
	free(l.task);
	m->stats->bytes += len;
	return why_text(why, rc, "");
}

/* ------------------------------------------------------------------------------ packed regions */

/* Copies rows of one slice of an array, without padding between them. */
static CUresult copy_rows(struct mover *m, const struct planned *p, uint32_t slice, uint32_t row,
			  uint32_t rows, uint8_t *buf, bool save)
{
	CUDA_MEMCPY3D c = { .WidthInBytes = p->r.row, .Height = rows, .Depth = 1 };
	CUarray a;
	CUresult r = plan_array(m->h, p, &a);

	if (r)
		return r;
	c.srcMemoryType = save ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
	c.dstMemoryType = save ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
	if (save) {
		c.srcArray = a;
		c.srcY = row;
		c.srcZ = slice;
		c.dstHost = buf;
		c.dstPitch = p->r.row;
		c.dstHeight = rows;
	} else {
		c.dstArray = a;
		c.dstY = row;
		c.dstZ = slice;
		c.srcHost = buf;
		c.srcPitch = p->r.row;
		c.srcHeight = rows;
	}
	return m->h->drv.cuMemcpy3D_v2 ? m->h->drv.cuMemcpy3D_v2(&c) : CUDA_ERROR_NOT_SUPPORTED;
}

/* The bytes of a region, from `done` on, for one copy: what fits a buffer; rows of one slice. */
static uint64_t piece_len(const struct planned *p, uint64_t done)
{
	uint64_t left = p->r.len - done, rows;

	if (p->r.kind != REGION_ARRAY)
		return left < STAGE ? left : STAGE;
	rows = p->r.rows - done / p->r.row % p->r.rows;
	return (rows < STAGE / p->r.row ? rows : STAGE / p->r.row) * p->r.row;
}

static CUresult copy_piece(struct mover *m, const struct planned *p, uint64_t done, uint64_t len,
			   bool save)
{
	uint64_t row = done / (p->r.row ?: 1);

	if (p->r.kind == REGION_ARRAY)
		return copy_rows(m, p, row / p->r.rows, row % p->r.rows, len / p->r.row, m->buf,
				 save);
	return save ? m->h->drv.cuMemcpyDtoH_v2(m->buf, p->r.at + done, len) :
		      m->h->drv.cuMemcpyHtoD_v2(p->r.at + done, m->buf, len);
}

static int say_region(CUresult r, const struct planned *p, struct why *why)
{
	struct region where = p->r;
	char what[200];

	if (!r)
		return 0;
	where.name = 0;		/* the names are not here */
	region_say(&where, "of a module", what, sizeof(what));
	return say_driver(r, what, why);
}

static int begin_packed(struct mover *m, const struct planned *p, struct why *why)
{
	int rc = own_buffer(m, why);

	if (!rc && plan_enter(m->s, p->r.ctx))
		rc = say_driver(CUDA_ERROR_INVALID_CONTEXT, "entering a context", why);
	return rc;
}

int mover_save_packed(struct mover *m, struct store_object *o, const struct planned *p,
		      struct why *why)
{
	int rc = begin_packed(m, p, why);

	for (uint64_t done = 0; !rc && done < p->r.len; done += piece_len(p, done)) {
		uint64_t len = piece_len(p, done);

		rc = say_region(copy_piece(m, p, done, len, true), p, why);
		if (!rc)
			rc = write_out(m, o, p->r.off + done, m->buf, len, why);
		m->stats->copied += len;
	}
	m->stats->bytes += p->r.len;
	return rc;
}

int mover_load_packed(struct mover *m, struct store_reader *r, const struct planned *p,
		      struct why *why)
{
	int rc = begin_packed(m, p, why);

	for (uint64_t done = 0; !rc && done < p->r.len; done += piece_len(p, done)) {
		uint64_t len = piece_len(p, done);
		ssize_t got = store_read(r, p->r.off + done, m->buf, len);

		if (got < 0)
			return store_failed(why, got);
		if ((uint64_t)got < len)	/* zeros at the end are not stored */
			memset(m->buf + got, 0, len - got);
		rc = say_region(copy_piece(m, p, done, len, false), p, why) ?:
		     tell_progress(m, len, why);
		m->stats->copied += len;
	}
	m->stats->bytes += p->r.len;
	return rc;
}

/* ------------------------------------------------------------------------------ physical memory */

int mover_map(struct mover *m, const struct planned *p, uint64_t *va, struct why *why)
{
	const struct cuda_driver *d = &m->h->drv;
	CUmemGenericAllocationHandle handle = p->real;
	CUdeviceptr at = 0;
	CUresult r = CUDA_SUCCESS;

	if (p->r.at)		/* the handle is released: find it by an address */
		r = d->cuMemRetainAllocationHandle ?
			d->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p->r.at) :
			CUDA_ERROR_NOT_SUPPORTED;
	if (r)
		return say_driver(r, "memory of cuMemCreate whose handle is released", why);
	r = d->cuMemAddressReserve(&at, p->r.len, 0, 0, 0);
	if (!r) {
		r = d->cuMemMap(at, p->r.len, 0, handle, 0);
		if (!r && (r = hal_access(m->h, at, p->r.len, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)))
			hal_unmap(m->h, at, p->r.len);
		if (r)
			d->cuMemAddressFree(at, p->r.len);
	}
	if (p->r.at)
		d->cuMemRelease(handle);
	if (r)
		return say_driver(r, "mapping memory of cuMemCreate", why);
	sparse_close(m->sparse);	/* it lacks the new mapping */
	m->sparse = sparse_open(-1);
	*va = at;
	if (!m->sparse)
		mover_unmap(m, p, at);
	return why_text(why, m->sparse ? 0 : -ENOMEM, "");
}

void mover_unmap(struct mover *m, const struct planned *p, uint64_t va)
{
	hal_unmap(m->h, va, p->r.len);
	m->h->drv.cuMemAddressFree(va, p->r.len);
}
