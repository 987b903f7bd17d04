// SPDX-License-Identifier: Apache-2.0
/*
 * send.c - offers checkpoints to another store, and sends it the pages that it lacks
 *
 * The sender announces an object's pages by their digests, in batches. Up to WIRE_WINDOW batches
 * may be unanswered, which keeps a slow connection busy. Answers are so small that the receiver
 * never waits for us to read them while we write.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "store_move.h"

struct batch {
	struct wire_digests head;
	struct wire_run run[WIRE_BATCH];	/* sent together with head */
	struct store_digest digest[WIRE_BATCH];
};

struct sender {
	struct move *m;
	struct store_reader *r;
	uint64_t whole;			/* bytes of its whole pages; OBJECT_END has the rest */
	uint64_t from, to;		/* the data extent of which no batch has the pages yet */
	struct batch *window;		/* ring of WIRE_WINDOW batches */
	unsigned int first, n;		/* the oldest unanswered batch, and their number */
	uint8_t *pages;			/* WIRE_PAGES pages */
	struct phase *phase;
	uint64_t before, total;		/* bytes of the checkpoint before this object, and in all */
};

int move_why(struct move *m, int err)
{
	return store_failed(&m->w.why, err);
}

static int read_pages(struct sender *s, uint64_t off, uint8_t *to, size_t n)
{
	ssize_t got = store_read(s->r, off, to, n * STORE_PAGE);

	return got < 0 ? move_why(s->m, got) : 0;
}

/* Digests with the receiver's seed: those of our store if it has that seed, else computed. */
static int digests(struct sender *s, uint64_t off, struct store_digest *d, size_t n)
{
	int err = 0;

	if (s->m->seed == store_seed(s->m->s))
		return move_why(s->m, store_digests(s->r, off, d, n));
	while (n && !err) {
		size_t some = n < WIRE_PAGES ? n : WIRE_PAGES;

		err = read_pages(s, off, s->pages, some);
		for (size_t i = 0; i < some && !err; i++) {
			XXH128_hash_t h = XXH3_128bits_withSeed(s->pages + i * STORE_PAGE,
								STORE_PAGE, s->m->seed);

			d[i] = (struct store_digest){ h.low64, h.high64 };
		}
		d += some;
		n -= some;
		off += some * STORE_PAGE;
	}
	return err;
}

/* Fills the next batch; without pages: there is no more data. */
static int batch_fill(struct sender *s, struct batch *b)
{
	b->head = (struct wire_digests){ 0 };
	while (b->head.pages < WIRE_BATCH) {
		size_t n;
		int err;

		if (s->from >= s->to) {
			err = store_next_data(s->r, s->to, &s->from, &s->to);
			if (err == -ENXIO)
				return 0;
			if (err)
				return move_why(s->m, err);
			s->to = s->to < s->whole ? s->to : s->whole;
			if (s->from >= s->to)
				return 0;
		}
		n = (s->to - s->from) / STORE_PAGE;
		if (n > WIRE_BATCH - b->head.pages)
			n = WIRE_BATCH - b->head.pages;
		err = digests(s, s->from, b->digest + b->head.pages, n);
		if (err)
			return err;
		b->run[b->head.runs++] = (struct wire_run){ s->from, n };
		b->head.pages += n;
		s->from += n * STORE_PAGE;
	}
	return 0;
}

static int pages_out(struct sender *s, size_t *n)
{
	int err = *n ? wire_send(&s->m->w, WIRE_PAGES_ARE, s->pages, *n * STORE_PAGE, NULL, 0) : 0;

	*n = 0;
	return err;
}

/* Sends a run's missing pages. *n: the pages collected in s->pages. */
static int run_out(struct sender *s, const struct wire_run *run, const uint8_t *missing, size_t *n)
{
	int err = 0;

	for (uint64_t i = 0, k; i < run->pages && !err; i = k) {
		for (k = i; k < run->pages && missing[k] && *n + k - i < WIRE_PAGES; k++)
			;
		if (k == i) {
			k = i + !missing[i];
		} else {
			err = read_pages(s, run->off + i * STORE_PAGE,
					 s->pages + *n * STORE_PAGE, k - i);
			*n += k - i;
		}
		if (!err && *n == WIRE_PAGES)
			err = pages_out(s, n);
	}
	return err;
}

/* Receives the answer to the oldest batch, and sends the missing pages. */
static int batch_answer(struct sender *s)
{
	struct batch *b = &s->window[s->first];
	ssize_t len = wire_receive(&s->m->w, WIRE_MISSING);
	const uint8_t *missing = s->m->w.buf;
	size_t n = 0;
	int err = 0;

	if (len < 0)
		return len;
	if (len != b->head.pages)
		return why_set(&s->m->w.why, -EPROTO, "%s has answered what was not asked",
			       s->m->w.who);
	for (uint32_t i = 0; i < b->head.runs && !err; i++) {
		err = run_out(s, &b->run[i], missing, &n);
		missing += b->run[i].pages;
	}
	if (!err)
		err = pages_out(s, &n);
	phase_progress(&s->m->phases, s->phase, s->before + b->run[b->head.runs - 1].off, s->total);
	s->first = (s->first + 1) % WIRE_WINDOW;
	s->n--;
	return err;
}

static int object_batches(struct sender *s)
{
	bool more = true;
	int err = 0;

	s->from = s->to = 0;
	while ((more || s->n) && !err) {
		struct batch *b = &s->window[(s->first + s->n) % WIRE_WINDOW];

		if (!more || s->n == WIRE_WINDOW) {
			err = batch_answer(s);
			continue;
		}
		err = batch_fill(s, b);
		if (err)
			break;
		more = b->head.pages == WIRE_BATCH;
		if (!b->head.pages)
			continue;
		err = wire_send(&s->m->w, WIRE_DIGESTS, &b->head,
				sizeof(b->head) + b->head.runs * sizeof(b->run[0]), b->digest,
				b->head.pages * sizeof(b->digest[0]));
		s->n++;
	}
	return err;
}

static int object_send(struct sender *s, const struct store_part *part)
{
	uint64_t size = store_ref_size(&part->ref);
	int err = wire_send(&s->m->w, WIRE_OBJECT, &size, sizeof(size), part->name,
			    strlen(part->name));

	if (err)
		return err;
	err = store_object_open(s->m->s, &part->ref, &s->r);
	if (err)
		return move_why(s->m, err);
	s->whole = size - size % STORE_PAGE;
	err = object_batches(s);
	if (!err && s->whole < size)
		err = read_pages(s, s->whole, s->pages, 1);
	store_reader_close(s->r);
	s->before += size;
	return err ?: wire_send(&s->m->w, WIRE_OBJECT_END, s->pages, size - s->whole, NULL, 0);
}

/* Offers c. 1: the receiver wants it; 0: it has it; or -errno. */
static int offer(struct sender *s, const struct store_checkpoint *c)
{
	struct wire_offer o = { 0 };
	const struct store_part *part;
	size_t n = store_checkpoint_parts(c, &part);
	ssize_t len;

	for (size_t i = 0; i < n; i++)
		o.bytes += store_ref_size(&part[i].ref);
	s->before = 0;
	s->total = o.bytes;
	snprintf(o.id, sizeof(o.id), "%s", store_checkpoint_id(c));
	len = wire_send(&s->m->w, WIRE_OFFER, &o, sizeof(o), NULL, 0);
	if (!len)
		len = wire_receive(&s->m->w, WIRE_WANT);
	return len < 0 ? len : len == 1 && s->m->w.buf[0];
}

static int checkpoint_send(struct sender *s, const struct store_checkpoint *c)
{
	const char *json = store_checkpoint_json(c);
	const struct store_part *part;
	size_t n = store_checkpoint_parts(c, &part);
	int err = offer(s, c);

	if (err <= 0) {
		s->m->there += !err;
		return err;
	}
	s->phase = phase_begin(&s->m->phases, "%.12s", store_checkpoint_id(c));
	err = 0;
	for (size_t i = 0; i < n && !err; i++)
		err = object_send(s, &part[i]);
	if (!err)
		err = wire_send(&s->m->w, WIRE_PUBLISH, json, strlen(json), NULL, 0);
	if (!err) {
		ssize_t len = wire_receive(&s->m->w, WIRE_DONE);

		err = len < 0 ? len : 0;
	}
	s->m->copied += !err;
	s->m->bytes += err ? 0 : s->total;
	phase_end(&s->m->phases, s->phase, s->total, 0, err);
	return err;
}

/* ------------------------------------------------------------------------- which of them */

static int one(struct sender *s, const char *id)
{
	struct store_checkpoint *c;
	int err = store_checkpoint_open(s->m->s, id, &c);

	if (err)
		return move_why(s->m, err);
	err = checkpoint_send(s, c);
	store_checkpoint_close(c);
	return err;
}

static int each(void *arg, const char *id, uint64_t time)
{
	struct sender *s = arg;

	if (time)
		return one(s, id);
	phases_clear(&s->m->phases);
	say("%s: damaged, and not copied", id);
	s->m->damaged++;
	return 0;
}

int move_send(struct move *m, char *const ids[], int n)
{
	struct sender s = { .m = m };
	uint64_t stored = 0;
	ssize_t len = 0;

	s.window = calloc(WIRE_WINDOW, sizeof(*s.window));
	s.pages = aligned_alloc(STORE_PAGE, WIRE_PAGES * STORE_PAGE);
	if (!s.window || !s.pages)
		len = move_why(m, -ENOMEM);
	for (int i = 0; i < n && !len; i++)
		len = one(&s, ids[i]);
	if (!n && !len)
		len = move_why(m, store_list(m->s, each, &s));
	free(s.window);
	free(s.pages);
	if (!len)
		len = wire_send(&m->w, WIRE_BYE, &m->damaged, sizeof(m->damaged), NULL, 0);
	if (!len)
		len = wire_receive(&m->w, WIRE_BYE);
	if (len < 0)
		return len;
	memcpy(&stored, m->w.buf, len == sizeof(stored) ? sizeof(stored) : 0);
	m->stored = stored;
	return 0;
}
