// SPDX-License-Identifier: Apache-2.0
/*
 * receive.c - receives checkpoints from another store, and checks all data before it writes them
 *
 * The sender is not trusted: lengths, offsets and order are checked, and each page is compared with
 * the digest that announced it. A checkpoint that is unpublished when the connection ends does not
 * exist; the next copy reuses the pages in segments that were finished by then.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "store_move.h"

/* A batch of digests whose missing pages are still to come. */
struct due {
	struct wire_digests head;
	struct wire_run run[WIRE_BATCH];
	struct store_digest digest[WIRE_BATCH];
	uint8_t missing[WIRE_BATCH];
	uint32_t at_run, at_page;	/* the next page to receive or skip: run, index there … */
	uint32_t at;			/* … and its index in the batch */
	uint32_t left;			/* missing pages that have not come yet */
};

struct receiver {
	struct move *m;
	struct store_writer *writer;
	struct store_object *o;		/* the open object, or NULL */
	uint64_t size;			/* of that object */
	struct due *due;		/* ring of WIRE_WINDOW batches */
	unsigned int first, n;		/* the oldest batch in it, and their number */
	struct wire_offer offer;
	struct store_part *part;	/* we free the names */
	size_t parts;
	struct phase *phase;
	uint64_t before;
};

static int refuse(struct receiver *r, const char *fmt, ...)
{
	char what[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return why_set(&r->m->w.why, -EPROTO, "%s sent %s", r->m->w.who, what);
}

/* ----------------------------------------------------------------------------- objects */

static int object_begin(struct receiver *r, size_t len)
{
	struct store_part *more;
	const char *name = (const char *)r->m->w.buf + 8;

	if (r->o || len <= 8 || strlen(name) != len - 8)
		return refuse(r, "an object that begins wrongly");
	more = realloc(r->part, (r->parts + 1) * sizeof(*more));
	if (!more)
		return move_why(r->m, -ENOMEM);
	r->part = more;
	memcpy(&r->size, r->m->w.buf, 8);
	if (r->size > INT64_MAX)
		return refuse(r, "an object of %llu bytes", (unsigned long long)r->size);
	more[r->parts].name = strdup(name);
	if (!more[r->parts].name)
		return move_why(r->m, -ENOMEM);
	r->parts++;
	return move_why(r->m, store_object_begin(r->writer, &r->o));
}

static int object_end(struct receiver *r, size_t len)
{
	struct store_object *o = r->o;

	int err = 0;

	if (!o || len != r->size % STORE_PAGE || r->n)
		return refuse(r, "an object's end too early");
	if (len)
		err = store_object_write(o, r->size - len, r->m->w.buf, len);
	if (err)
		return move_why(r->m, err);
	r->o = NULL;
	r->before += r->size;
	return move_why(r->m, store_object_end(o, r->size, &r->part[r->parts - 1].ref));
}

/* Runs ascend, lie within the object's whole pages, and have one page for each digest. */
static bool runs_fit(const struct due *d, uint64_t size)
{
	uint64_t end = 0, most = size / STORE_PAGE, pages = 0;

	for (uint32_t i = 0; i < d->head.runs; i++) {
		uint64_t page = d->run[i].off / STORE_PAGE;

		if (d->run[i].off % STORE_PAGE || page < end || !d->run[i].pages ||
		    d->run[i].pages > WIRE_BATCH || page >= most ||
		    d->run[i].pages > most - page)
			return false;
		end = page + d->run[i].pages;
		pages += d->run[i].pages;
	}
	return pages == d->head.pages;
}

static int digests_take(struct receiver *r, struct due *d, size_t len)
{
	const uint8_t *in = r->m->w.buf;
	size_t runs;

	if (!r->o || r->n == WIRE_WINDOW || len < sizeof(d->head))
		return refuse(r, "digests where none were due");
	memcpy(&d->head, in, sizeof(d->head));
	if (!d->head.pages || d->head.pages > WIRE_BATCH || d->head.runs > WIRE_BATCH)
		return refuse(r, "a batch of %u pages", d->head.pages);
	runs = d->head.runs * sizeof(d->run[0]);
	if (len != sizeof(d->head) + runs + d->head.pages * sizeof(d->digest[0]))
		return refuse(r, "a batch of a wrong length");
	memcpy(d->run, in + sizeof(d->head), runs);
	memcpy(d->digest, in + sizeof(d->head) + runs, d->head.pages * sizeof(d->digest[0]));
	return runs_fit(d, r->size) ? 0 : refuse(r, "pages that do not fit the object");
}

static int digests(struct receiver *r, size_t len)
{
	struct due *d = &r->due[(r->first + r->n) % WIRE_WINDOW];
	uint32_t page = 0;
	int err = digests_take(r, d, len);

	d->at_run = d->at_page = d->at = d->left = 0;
	for (uint32_t i = 0; i < d->head.runs && !err; i++) {
		ssize_t n = store_object_digests(r->o, d->run[i].off, d->digest + page,
						 d->run[i].pages, d->missing + page);

		if (n < 0)
			return move_why(r->m, n);
		d->left += n;
		page += d->run[i].pages;
	}
	if (err)
		return err;
	r->n += d->left != 0;
	phase_progress(&r->m->phases, r->phase, r->before + d->run[d->head.runs - 1].off,
		       r->offer.bytes);
	return wire_send(&r->m->w, WIRE_MISSING, d->missing, d->head.pages, NULL, 0);
}

/* The offset in the object of the next missing page. */
static uint64_t due_next(struct due *d)
{
	for (;;) {
		if (d->at_page == d->run[d->at_run].pages) {
			d->at_run++;
			d->at_page = 0;
		}
		if (d->missing[d->at])
			return d->run[d->at_run].off + (uint64_t)d->at_page * STORE_PAGE;
		d->at++;
		d->at_page++;
	}
}

/* Writes adjacent pages. */
static int write_run(struct receiver *r, uint64_t off, const uint8_t *from, size_t pages)
{
	return pages ? move_why(r->m, store_object_write(r->o, off, from, pages * STORE_PAGE)) : 0;
}

static int pages(struct receiver *r, size_t len)
{
	const uint8_t *in = r->m->w.buf;
	size_t n = len / STORE_PAGE, begun = 0;
	uint64_t off = 0;
	int err = 0;

	if (!r->o || len % STORE_PAGE || !n)
		return refuse(r, "pages where none were due");
	for (size_t i = 0; i < n && !err; i++) {
		struct due *d = &r->due[r->first];
		struct store_digest got = store_hash(r->m->s, in + i * STORE_PAGE);
		uint64_t at;

		if (!r->n)
			return refuse(r, "more pages than were asked for");
		at = due_next(d);
		if (got.lo != d->digest[d->at].lo || got.hi != d->digest[d->at].hi)
			return refuse(r, "a page of '%.200s' whose content is not the announced one",
				      r->part[r->parts - 1].name);
		if (at != off + (i - begun) * STORE_PAGE) {
			err = write_run(r, off, in + begun * STORE_PAGE, i - begun);
			begun = i;
			off = at;
		}
		d->at++;
		d->at_page++;
		if (!--d->left) {
			r->first = (r->first + 1) % WIRE_WINDOW;
			r->n--;
		}
	}
	return err ?: write_run(r, off, in + begun * STORE_PAGE, n - begun);
}

/* ------------------------------------------------------------------------- checkpoints */

static void parts_free(struct receiver *r)
{
	store_object_abort(r->o);
	r->o = NULL;
	while (r->parts)
		free((char *)r->part[--r->parts].name);
	r->first = r->n = 0;
}

static bool is_there(struct receiver *r)
{
	struct store_checkpoint *c;

	if (!store_checkpoint_open(r->m->s, r->offer.id, &c)) {
		store_checkpoint_close(c);
		return true;
	}
	return false;
}

static int publish(struct receiver *r, size_t len)
{
	const char *json = (const char *)r->m->w.buf;
	int err;

	if (r->o || strlen(json) != len)
		return refuse(r, "a checkpoint's end too early");
	err = store_writer_flush(r->writer);
	if (!err)
		err = store_publish_as(r->m->s, r->part, r->parts, json, r->offer.id);
	move_why(r->m, err);
	if (err == -EEXIST && is_there(r))	/* a concurrent copy has published it */
		why_clear(&r->m->w.why);
	else if (err)
		return err;
	parts_free(r);
	r->m->copied++;
	r->m->bytes += r->offer.bytes;
	phase_end(&r->m->phases, r->phase, r->offer.bytes, 0, 0);
	return wire_send(&r->m->w, WIRE_DONE, NULL, 0, NULL, 0) ?: 1;
}

/* Handles one message of a checkpoint; 1: it was the last one. */
static int message(struct receiver *r)
{
	uint32_t type;
	ssize_t len = wire_any(&r->m->w, &type);

	if (len < 0)
		return len;
	switch (type) {
	case WIRE_OBJECT:
		return object_begin(r, len);
	case WIRE_DIGESTS:
		return digests(r, len);
	case WIRE_PAGES_ARE:
		return pages(r, len);
	case WIRE_OBJECT_END:
		return object_end(r, len);
	case WIRE_PUBLISH:
		return publish(r, len);
	}
	return refuse(r, "message %u in the middle of a checkpoint", type);
}

static int is_id(const char id[40])
{
	return strspn(id, "0123456789abcdef") == STORE_ID - 1 && !id[STORE_ID - 1];
}

static int offered(struct receiver *r, size_t len)
{
	struct store_checkpoint *c;
	uint8_t want;
	int err;

	if (len != sizeof(r->offer))
		return refuse(r, "an offer of a wrong length");
	memcpy(&r->offer, r->m->w.buf, len);
	if (!is_id(r->offer.id))
		return refuse(r, "an offer without a proper id");
	err = store_checkpoint_open(r->m->s, r->offer.id, &c);
	if (!err)
		store_checkpoint_close(c);
	else if (err != -ENOENT)
		return move_why(r->m, err);
	want = err == -ENOENT;
	r->m->there += !want;
	err = wire_send(&r->m->w, WIRE_WANT, &want, 1, NULL, 0);
	if (err || !want)
		return err;
	r->before = 0;
	r->phase = phase_begin(&r->m->phases, "%.12s", r->offer.id);
	while (!err)
		err = message(r);
	return err < 0 ? err : 0;
}

static int until_bye(struct receiver *r)
{
	struct store_writer_stats st;
	uint32_t type;
	ssize_t len = 0;
	int err = 0;

	while (!err) {
		len = wire_any(&r->m->w, &type);
		if (len < 0)
			return len;
		if (type == WIRE_BYE)
			break;
		err = type == WIRE_OFFER ? offered(r, len) :
					   refuse(r, "message %u where an offer was due", type);
	}
	if (err || len != sizeof(r->m->damaged))
		return err ?: refuse(r, "an end of a wrong length");
	memcpy(&r->m->damaged, r->m->w.buf, len);
	store_writer_stats(r->writer, &st);
	r->m->stored = st.stored;
	return wire_send(&r->m->w, WIRE_BYE, &st.stored, sizeof(st.stored), NULL, 0);
}

int move_receive(struct move *m)
{
	struct receiver r = { .m = m };
	int err = move_why(m, store_writer_open(m->s, 0, &r.writer));

	r.due = calloc(WIRE_WINDOW, sizeof(*r.due));
	if (!r.due)
		err = move_why(m, -ENOMEM);
	if (!err)
		err = until_bye(&r);
	if (r.writer)
		parts_free(&r);
	free(r.part);
	free(r.due);
	store_writer_close(r.writer);
	return err;
}
