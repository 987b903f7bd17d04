// SPDX-License-Identifier: Apache-2.0
/*
 * kept_save.c - saves what kept.c keeps as one object of the store, and loads it
 *
 *   0       struct kept_head
 *   64      count struct kept_entry, ascending seq; off: where the bytes are, a multiple of 4096
 *   off     the bytes
 *
 * Of an image that the program's file still has, there is the digest alone, and off is 0: the file must be there at
 * the restore, since CRIU maps it too, and is found by its path in the log. If the file is another one by now, or the
 * job may have written it, so that a restore puts it back after the sessions, the bytes are saved.
 *
 * Version 2 has the digests; version 1 says nothing about images in files, which a restore then takes for the same
 * if size and time are.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "held.h"
#include "kept.h"
#include "rebuild.h"
#include "store.h"

#define COUNT_MAX	(1u << 24)
#define KEPT_MAGIC	0x4b475653u	/* "SVGK" */
#define KEPT_VERSION	2u
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
	struct kept_digest digest;	/* if off is 0; else 0. Not in version 1 */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct kept_head) == 64, "file format");
_Static_assert(sizeof(struct kept_entry) == 40, "file format");
#define ENTRY_1		offsetof(struct kept_entry, digest)

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

/* Are the bytes in the program's file, or have not been needed since a restore? */
static bool by_digest(uint64_t seq, uint64_t len, uint64_t since_ns, struct kept_digest *d)
{
	struct held *h = kept_held(seq);
	bool is = h && (!since_ns || !held_since(h, since_ns)) && held_in_file(h);

	if (!h)
		return kept_expected(seq, len, d);
	if (is)
		held_digest(h, d);
	held_put(h);
	return is;
}

static int write_all(struct store_object *o, struct kept_entry *e, uint64_t count, uint64_t since_ns)
{
	struct kept_head h = { .magic = KEPT_MAGIC, .version = KEPT_VERSION, .count = count };
	uint64_t off = page_up(sizeof(h) + count * sizeof(*e)), seq = 0, len;
	const void *p;
	int rc;

	for (uint64_t i = 0; (seq = kept_next(seq, &p, &len)); i++) {
		e[i] = (struct kept_entry){ .seq = seq, .len = len };
		if (by_digest(seq, len, since_ns, &e[i].digest))
			continue;
		e[i].off = off;
		off = page_up(off + len);
	}
	rc = store_object_write(o, 0, &h, sizeof(h));
	if (!rc && count)
		rc = store_object_write(o, sizeof(h), e, count * sizeof(*e));
	for (uint64_t i = 0; !rc && (seq = kept_next(seq, &p, &len)); i++)
		rc = e[i].off ? store_object_write(o, e[i].off, p, len) : 0;
	return rc;
}

int kept_dump(struct store_writer *w, uint64_t since_ns, struct store_ref *ref, struct why *why)
{
	uint64_t count = count_all();
	struct kept_entry *e = calloc(count + 1, sizeof(*e));
	struct store_object *o = NULL;
	int rc = e ? store_object_begin(w, &o) : -ENOMEM;

	if (!rc)
		rc = write_all(o, e, count, since_ns);
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

static int read_one(struct store_reader *r, const struct kept_entry *e, uint64_t after, bool has_digests)
{
	void *p;
	int rc;

	if (e->seq <= after || e->off % STORE_PAGE || !e->len || e->len > BYTES_MAX ||
	    (e->off && (e->digest.low || e->digest.high)))
		return -EUCLEAN;
	if (!e->off && has_digests)
		return kept_expect(e->seq, e->len, &e->digest);
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

static int read_entries(struct store_reader *r, struct kept_entry *e, uint64_t n, uint32_t version)
{
	int rc = 0;

	if (version > 1)
		return n ? read_at(r, sizeof(struct kept_head), e, n * sizeof(*e)) : 0;
	for (uint64_t i = 0; i < n && !rc; i++)
		rc = read_at(r, sizeof(struct kept_head) + i * ENTRY_1, &e[i], ENTRY_1);
	return rc;
}

static int read_all(struct store_reader *r, struct why *why)
{
	struct kept_entry *e;
	struct kept_head h;
	int rc = read_at(r, 0, &h, sizeof(h));

	if (rc)
		return rc;
	if (h.magic == KEPT_MAGIC && (!h.version || h.version > KEPT_VERSION))
		return why_set(why, -EPROTONOSUPPORT, "what the log refers to was saved in version %u of "
			       "its format, this proxy reads version %u", h.version,
			       KEPT_VERSION);
	if (h.magic != KEPT_MAGIC || h.count > COUNT_MAX ||
	    !sv_zero((const uint8_t *)h.zero, sizeof(h.zero)))
		return -EUCLEAN;
	e = calloc(h.count + 1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	rc = read_entries(r, e, h.count, h.version);
	for (uint64_t i = 0; i < h.count && !rc; i++)
		rc = read_one(r, &e[i], i ? e[i - 1].seq : 0, h.version > 1);
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
