// SPDX-License-Identifier: Apache-2.0
/*
 * kept_save.c - saves the copies of kept.c as one object of the store, and loads them
 *
 *   0       struct kept_head
 *   64      count struct kept_entry, ascending seq; off: where the bytes are, a multiple of 4096
 *   off     the bytes
 */
#include <stdio.h>
#include <stdlib.h>

#include "store.h"
#include "uproxy_i.h"

#define COUNT_MAX	(1u << 24)
#define KEPT_MAGIC	0x4b475653u	/* "SVGK" */
#define KEPT_VERSION	1u
#define BYTES_MAX	(8ull << 30)	/* of one copy */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct kept_head {
	uint32_t magic, version;
	uint64_t count;
	uint64_t zero[6];
};

struct kept_entry {
	uint64_t seq, off, len;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct kept_head) == 64, "file format");
_Static_assert(sizeof(struct kept_entry) == 24, "file format");

/* ------------------------------------------------------------------------------ dump */

static uint64_t page_up(uint64_t n)
{
	return (n + STORE_PAGE - 1) & ~(uint64_t)(STORE_PAGE - 1);
}

/* The copies do not change meanwhile: the session is frozen. */
static uint64_t count_all(void)
{
	uint64_t seq = 0, count = 0, len;
	const void *p;

	while ((seq = kept_next(seq, &p, &len)))
		count++;
	return count;
}

static int write_all(struct store_object *o, struct kept_entry *e, uint64_t count)
{
	struct kept_head h = { .magic = KEPT_MAGIC, .version = KEPT_VERSION, .count = count };
	uint64_t off = page_up(sizeof(h) + count * sizeof(*e)), seq = 0, len;
	const void *p;
	int rc;

	for (uint64_t i = 0; (seq = kept_next(seq, &p, &len)); i++) {
		e[i] = (struct kept_entry){ seq, off, len };
		off = page_up(off + len);
	}
	rc = store_object_write(o, 0, &h, sizeof(h));
	if (!rc && count)
		rc = store_object_write(o, sizeof(h), e, count * sizeof(*e));
	for (uint64_t i = 0; !rc && (seq = kept_next(seq, &p, &len)); i++)
		rc = store_object_write(o, e[i].off, p, len);
	return rc;
}

int kept_dump(struct store_writer *w, struct store_ref *ref, struct why *why)
{
	uint64_t count = count_all();
	struct kept_entry *e = calloc(count + 1, sizeof(*e));
	struct store_object *o = NULL;
	int rc = e ? store_object_begin(w, &o) : -ENOMEM;

	if (!rc)
		rc = write_all(o, e, count);
	if (!rc)
		rc = store_object_end(o, 0, ref);
	else if (o)
		store_object_abort(o);
	if (rc)
		why_set(why, rc, "images and graphs cannot be saved: %s", store_says(rc));
	free(e);
	return rc;
}

/* ------------------------------------------------------------------------------ restore */

/* -EUCLEAN: the object ends early, so kept_dump has not written it. */
static int read_at(struct store_reader *r, uint64_t off, void *to, uint64_t len)
{
	ssize_t got = store_read(r, off, to, len);

	return got < 0 ? got : (uint64_t)got == len ? 0 : -EUCLEAN;
}

static int read_one(struct store_reader *r, const struct kept_entry *e, uint64_t after)
{
	void *p;
	int rc;

	if (e->seq <= after || e->off % STORE_PAGE || !e->len || e->len > BYTES_MAX)
		return -EUCLEAN;
	p = malloc(e->len + 1);
	if (!p)
		return -ENOMEM;
	rc = read_at(r, e->off, p, e->len);
	if (!rc)
		rc = kept_take(e->seq, p, e->len);
	if (rc)
		free(p);
	return rc;
}

static int read_all(struct store_reader *r, struct why *why)
{
	struct kept_entry *e;
	struct kept_head h;
	int rc = read_at(r, 0, &h, sizeof(h));

	if (rc)
		return rc;
	if (h.magic == KEPT_MAGIC && h.version != KEPT_VERSION)
		return why_set(why, -EPROTONOSUPPORT, "what the log refers to was saved in version %u of "
			       "its format, this proxy reads version %u", h.version, KEPT_VERSION);
	if (h.magic != KEPT_MAGIC || h.count > COUNT_MAX ||
	    !sv_zero((const uint8_t *)h.zero, sizeof(h.zero)))
		return -EUCLEAN;
	e = calloc(h.count + 1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	if (h.count)
		rc = read_at(r, sizeof(h), e, h.count * sizeof(*e));
	for (uint64_t i = 0; i < h.count && !rc; i++)
		rc = read_one(r, &e[i], i ? e[i - 1].seq : 0);
	free(e);
	return rc;
}

int kept_restore(struct store *st, const struct store_ref *ref, struct why *why)
{
	struct store_reader *r;
	int rc = store_object_open(st, ref, &r);

	if (!rc) {
		rc = read_all(r, why);
		store_reader_close(r);
	}
	if (rc == -EUCLEAN)
		return why_set(why, -EBADMSG,
			       "what the log refers to cannot be read: the object is another one");
	return rc ? why_set(why, rc, "what the log refers to cannot be read: %s", store_says(rc)) :
		    0;
}
