// SPDX-License-Identifier: Apache-2.0
/*
 * move.c - moves device memory to and from an object of the store
 *
 * Three ways for linear memory:
 *
 *   direct   the host may read and write it where it is: the store hashes it there
 *   staged   through pinned buffers: while the device fills one, the store hashes another
 *   digests  the device computes the digests of its pages (hal/digest.c) and only those that the
 *            store lacks are staged
 *
 * The first way is used if the driver allows it, else the third, else the second; SINGVGPU_CONTENT
 * names a way, for tests and measurements. Several threads load, each with a reader of its own,
 * since checking the pages costs more than moving them.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "content_i.h"
#include "digest.h"

#define STAGE		(16ull << 20)	/* bytes of one pinned buffer */
#define STAGES		3
#define PIECE		(8ull << 20)	/* between two progress messages */
#define BUFFER		(1ull << 20)	/* small enough for the cache */
#define BUFFERS		4		/* reads under way in each thread */
#define LOADERS_MAX	8
#define SPAN		(256ull << 20)	/* digests computed at once */
#define GAP		4		/* known pages that are copied rather than skipped */
#define TELL_NS		200000000ull

enum way { AUTO, DIRECT, STAGED, DIGESTS };

struct mover {
	struct sv_session *s;
	struct hal *h;
	struct store *st;
	const struct content_progress *progress;
	struct content_stats *stats;
	struct sparse *sparse;
	enum way way;
	uint8_t *buf[STAGES];		/* NULL until the first is needed */
	CUstream stream[STAGES];
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
	*out = m;
	return 0;
}

void mover_close(struct mover *m)
{
	if (!m)
		return;
	for (int i = 0; i < STAGES; i++)
		if (m->buf[i]) {
			m->h->drv.cuStreamDestroy_v2(m->stream[i]);
			hal_unpin(m->h, m->buf[i]);
			free(m->buf[i]);
		}
	hal_digests_close(m->digests);
	sparse_close(m->sparse);
	free(m);
}

static int stages(struct mover *m, struct why *why)
{
	for (int i = 0; i < STAGES && !m->buf[i]; i++) {
		uint8_t *p = aligned_alloc(2 << 20, STAGE);
		CUresult r;

		if (!p)
			return why_set(why, -ENOMEM, "out of memory");
		r = hal_pin(m->h, p, STAGE);
		if (!r) {
			r = m->h->drv.cuStreamCreate(&m->stream[i], CU_STREAM_NON_BLOCKING);
			if (r)
				hal_unpin(m->h, p);
		}
		if (r) {
			free(p);
			return say_driver(r, "pinned memory for the contents", why);
		}
		m->buf[i] = p;
	}
	return 0;
}

/* Waits for the work in one of our streams. */
static int settle(struct mover *m, int i, struct why *why)
{
	return say_driver(m->h->drv.cuStreamSynchronize(m->stream[i]), "copying device memory",
			  why);
}

/* ------------------------------------------------------------------------------ saving */

static int write_out(struct mover *m, struct store_object *o, uint64_t off, const void *p,
		     uint64_t len, struct why *why)
{
	int rc = store_object_write(o, off, p, len);

	return store_failed(why, rc) ?: tell_progress(m, len, why);
}

static int save_direct(struct mover *m, struct store_object *o, uint64_t va, uint64_t len,
		       uint64_t off, struct why *why)
{
	uint64_t end = va + len, at = va, from, to;
	int rc = 0;

	m->stats->digests = "direct";
	while (!rc && sparse_next(m->sparse, at, end, &from, &to)) {
		m->done += from - at;
		for (at = from; at < to && !rc; at += PIECE)
			rc = write_out(m, o, off + (at - va), (void *)(uintptr_t)at,
				       to - at < PIECE ? to - at : PIECE, why);
		at = to;
	}
	m->done += rc ? 0 : end - at;
	return rc;
}

/* Pages of linear memory at va, for off of the object; those with missing[i] are written. */
struct span {
	uint64_t va, off, pages;
	const uint8_t *missing;
};

/* The runs of a span that one buffer holds, back to back. */
struct batch {
	struct {
		uint64_t at, run;	/* pages of the span */
	} job[1024];
	unsigned int jobs;
	uint64_t used;			/* pages */
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

static int batch_fill(struct mover *m, struct batch *b, int k, const struct span *sp,
		      uint64_t *from, struct why *why)
{
	int rc = 0;

	b->jobs = 0;
	b->used = 0;
	while (!rc && b->jobs < 1024 && b->used < STAGE / STORE_PAGE) {
		uint64_t run, at = next_copy(sp, *from, STAGE / STORE_PAGE - b->used, &run);

		*from = at + run;
		if (!run)
			break;
		rc = say_driver(m->h->drv.cuMemcpyDtoHAsync_v2(m->buf[k] + b->used * STORE_PAGE,
							       sp->va + at * STORE_PAGE,
							       run * STORE_PAGE, m->stream[k]),
				"copying device memory", why);
		b->job[b->jobs].at = at;
		b->job[b->jobs++].run = run;
		b->used += run;
	}
	m->stats->copied += b->used * STORE_PAGE;
	return rc;
}

static int batch_drain(struct mover *m, struct store_object *o, const struct batch *b, int k,
		       const struct span *sp, struct why *why)
{
	const uint8_t *data = m->buf[k];
	int rc = b->jobs ? settle(m, k, why) : 0;

	for (unsigned int j = 0; j < b->jobs; j++) {
		uint64_t at = b->job[j].at, end = at + b->job[j].run;

		while (!rc && at < end) {
			uint64_t w = 0;

			while (at + w < end && sp->missing[at + w])
				w++;
			if (w)
				rc = write_out(m, o, sp->off + at * STORE_PAGE, data,
					       w * STORE_PAGE, why);
			w += !w;
			at += w;
			data += w * STORE_PAGE;
		}
	}
	return rc;
}

static int save_missing(struct mover *m, struct store_object *o, const struct span *sp,
			struct why *why)
{
	struct batch *b = calloc(STAGES, sizeof(*b));
	uint64_t from = 0;
	int rc = b ? stages(m, why) : -ENOMEM, k = 0;

	do {
		if (!rc)
			rc = batch_fill(m, &b[k], k, sp, &from, why);
		k = (k + 1) % STAGES;
		if (!rc)
			rc = batch_drain(m, o, &b[k], k, sp, why);
	} while (!rc && (b[0].jobs || b[1].jobs || b[2].jobs));
	for (int i = 0; b && rc && i < STAGES; i++)
		if (m->buf[i])
			m->h->drv.cuStreamSynchronize(m->stream[i]);
	free(b);
	return rc;
}

_Static_assert(STAGES == 3, "as save_missing has them");

/* Which pages does the store lack? All, if the device cannot compute their digests. */
static int ask_store(struct mover *m, struct store_object *o, struct span *sp, uint8_t *missing,
		     struct why *why)
{
	struct store_digest *d;
	ssize_t lacks;
	CUresult r;

	if (!m->digests && !m->no_digests && m->way != STAGED)
		m->no_digests = hal_digests_open(&m->digests, m->h, store_seed(m->st));
	if (!m->digests || m->way == STAGED) {
		m->stats->digests = "host";
		memset(missing, 1, sp->pages);
		return 0;
	}
	m->stats->digests = "device";
	r = hal_digests_run(m->digests, sp->va, sp->pages, &d);
	if (r)
		return say_driver(r, "digests of device memory", why);
	lacks = store_object_digests(o, sp->off, d, sp->pages, missing);
	if (lacks < 0)
		return store_failed(why, lacks);
	m->stats->known += (sp->pages - lacks) * STORE_PAGE;
	return tell_progress(m, (sp->pages - lacks) * STORE_PAGE, why);
}

static int save_spans(struct mover *m, struct store_object *o, uint64_t va, uint64_t len,
		      uint64_t off, struct why *why)
{
	uint8_t *missing = malloc(SPAN / STORE_PAGE);
	int rc = missing ? 0 : -ENOMEM;

	for (uint64_t at = 0; !rc && at < len; at += SPAN) {
		uint64_t size = len - at < SPAN ? len - at : SPAN;
		struct span sp = { va + at, off + at, size / STORE_PAGE, missing };

		rc = ask_store(m, o, &sp, missing, why);
		if (!rc)
			rc = save_missing(m, o, &sp, why);
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

	rc = is_direct(m, va) ? save_direct(m, o, va, len, off, why) :
				save_spans(m, o, va, len, off, why);
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
	pthread_mutex_t lock;
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

static int load_task(struct loading *l, struct store_reader *r, size_t i, uint8_t *buf, CUstream st)
{
	struct mover *m = l->m;
	uint64_t off = l->task[i].off, len = l->task[i].len, va = l->va + (off - l->off);
	struct why why = { 0 };
	int rc;

	if (l->direct) {
		rc = load_direct(m, r, va, off, len, buf, &why);
	} else {
		rc = read_all(r, off, buf, len, &why);
		if (!rc)
			rc = say_driver(m->h->drv.cuMemcpyHtoDAsync_v2(va, buf, len, st) ?:
						m->h->drv.cuStreamSynchronize(st),
					"filling device memory", &why);
		__atomic_fetch_add(&m->stats->copied, len, __ATOMIC_RELAXED);
	}
	if (rc) {
		pthread_mutex_lock(&l->lock);
		why_text(l->why, rc, why.text);
		pthread_mutex_unlock(&l->lock);
	}
	__atomic_fetch_add(&l->moved, len, __ATOMIC_RELAXED);
	return rc;
}

static void *loader(void *arg)
{
	struct loading *l = arg;
	struct store_reader *r = NULL;
	struct hal *h = l->m->h;
	uint8_t *buf = NULL;
	CUstream st = NULL;
	size_t i;
	int rc;

	rc = store_object_open(l->m->st, l->ref, &r);
	if (!rc) {
		buf = store_buffer(l->direct ? BUFFERS * BUFFER : PIECE);
		rc = buf ? 0 : -ENOMEM;
	}
	if (!rc && !l->direct) {
		rc = h->drv.cuCtxSetCurrent(h->primary) || hal_pin(h, buf, PIECE) ? -ENOMEM : 0;
		if (!rc && h->drv.cuStreamCreate(&st, CU_STREAM_NON_BLOCKING)) {
			hal_unpin(h, buf);
			rc = -ENOMEM;
		}
	}
	while (!rc && (i = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED)) < l->tasks)
		rc = load_task(l, r, i, buf, st);
	if (st) {
		h->drv.cuStreamDestroy_v2(st);
		hal_unpin(h, buf);
	}
	free(buf);
	pthread_mutex_lock(&l->lock);
	if (rc) {	/* load_task() has told its own */
		why_set(l->why, rc, "%s",
			r ? "out of memory, or of pinned memory" : store_says(rc));
		l->next = l->tasks;
	}
	l->running--;
	pthread_cond_signal(&l->over);
	pthread_mutex_unlock(&l->lock);
	store_reader_close(r);
	return NULL;
}

/* While the threads work, the calling thread reports their progress, and may stop them. */
static void watch(struct loading *l)
{
	uint64_t told = 0;

	pthread_mutex_lock(&l->lock);
	while (l->running) {
		struct timespec t;
		uint64_t moved = __atomic_load_n(&l->moved, __ATOMIC_RELAXED);
		struct why why = { 0 };

		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += TELL_NS;
		t.tv_sec += t.tv_nsec / 1000000000;
		t.tv_nsec %= 1000000000;
		if (pthread_cond_timedwait(&l->over, &l->lock, &t) != ETIMEDOUT)
			continue;
		pthread_mutex_unlock(&l->lock);
		tell_progress(l->m, moved - told, &why);
		pthread_mutex_lock(&l->lock);
		told = moved;
		if (why_text(l->why, why.err, why.text))
			__atomic_store_n(&l->next, l->tasks, __ATOMIC_RELAXED);
	}
	l->m->done += l->moved - told;
	pthread_mutex_unlock(&l->lock);
}

static int run_loaders(struct loading *l)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned int want = cpus < LOADERS_MAX ? cpus : LOADERS_MAX;
	pthread_t t[LOADERS_MAX];
	unsigned int k = 0;

	if (want > l->tasks)
		want = l->tasks;
	pthread_mutex_lock(&l->lock);
	for (; k < want && !pthread_create(&t[k], NULL, loader, l); k++)
		l->running++;
	pthread_mutex_unlock(&l->lock);
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
		return say_driver(m->h->drv.cuMemsetD8Async(va, 0, len, m->stream[0]) ?:
					  m->h->drv.cuStreamSynchronize(m->stream[0]),
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

	pthread_mutex_init(&l.lock, NULL);
	pthread_cond_init(&l.over, NULL);
	rc = l.direct ? 0 : stages(m, why);
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
		return copy_rows(m, p, row / p->r.rows, row % p->r.rows, len / p->r.row, m->buf[0],
				 save);
	return save ? m->h->drv.cuMemcpyDtoH_v2(m->buf[0], p->r.at + done, len) :
		      m->h->drv.cuMemcpyHtoD_v2(p->r.at + done, m->buf[0], len);
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
	int rc = stages(m, why);

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
			rc = write_out(m, o, p->r.off + done, m->buf[0], len, why);
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
		ssize_t got = store_read(r, p->r.off + done, m->buf[0], len);

		if (got < 0)
			return store_failed(why, got);
		if ((uint64_t)got < len)	/* zeros at the end are not stored */
			memset(m->buf[0] + got, 0, len - got);
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
