// SPDX-License-Identifier: Apache-2.0
/*
 * kept.c - what records of the log refer to in the arena, which the client may use otherwise since
 *
 * Images and descriptions of graphs, each by the number of its record. They live as long as the log
 * needs the record (journal.c), and go into a dump as one object:
 *
 *   0       struct head
 *   64      count struct entry, ascending seq; off: where the bytes are, a multiple of 4096
 *   off     the bytes
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/store.h"
#include "missing.h"
#include "uproxy_i.h"

#define KEPT_MAGIC	0x4b475653u	/* "SVGK" */
#define KEPT_VERSION	1u
#define KEPT_MAX	(1u << 24)	/* entries */
#define BYTES_MAX	(8ull << 30)	/* of one */

struct head {
	uint32_t magic, version;
	uint64_t count;
	uint64_t zero[6];
};

struct entry {
	uint64_t seq, off, len;
};

struct kept {
	uint64_t seq, len;
	void *p;
};

static struct kept *all;	/* ascending seq */
static size_t count, cap;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The first that is not before seq. lock held. */
static size_t index_of(uint64_t seq)
{
	size_t lo = 0, hi = count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (all[mid].seq < seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int grow(void)
{
	size_t n = cap ? cap * 2 : 64;
	struct kept *k = n <= KEPT_MAX ? realloc(all, n * sizeof(*k)) : NULL;

	if (!k)
		return -ENOMEM;
	all = k;
	cap = n;
	return 0;
}

/* Takes ownership of p if it succeeds. */
static int put(uint64_t seq, void *p, uint64_t len)
{
	size_t i;
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (count == cap)
		rc = grow();
	i = index_of(seq);
	if (!rc && i < count && all[i].seq == seq)
		rc = -EEXIST;
	if (!rc) {
		memmove(all + i + 1, all + i, (count - i) * sizeof(*all));
		all[i] = (struct kept){ seq, len, p };
		count++;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

int kept_add(uint64_t seq, const void *p, uint64_t len)
{
	void *copy = malloc(len + 1);
	int rc = copy ? 0 : -ENOMEM;

	if (rc)
		return rc;
	memcpy(copy, p, len);
	rc = put(seq, copy, len);
	if (rc)
		free(copy);
	return rc;
}

const void *kept_find(uint64_t seq, uint64_t *len)
{
	const void *p = NULL;
	size_t i;

	pthread_mutex_lock(&lock);
	i = index_of(seq);
	if (i < count && all[i].seq == seq) {
		p = all[i].p;
		*len = all[i].len;
	}
	pthread_mutex_unlock(&lock);
	return p;
}

void kept_sweep(bool (*keep)(void *arg, uint64_t seq), void *arg)
{
	size_t n = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count; i++) {
		if (keep(arg, all[i].seq))
			all[n++] = all[i];
		else
			free(all[i].p);
	}
	count = n;
	pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------ dump */

static uint64_t page_up(uint64_t n)
{
	return (n + STORE_PAGE - 1) & ~(uint64_t)(STORE_PAGE - 1);
}

/* Nobody changes them meanwhile: the session is frozen. */
static int write_all(struct store_object *o, struct entry *e)
{
	struct head h = { .magic = KEPT_MAGIC, .version = KEPT_VERSION, .count = count };
	uint64_t off = page_up(sizeof(h) + count * sizeof(*e));
	int rc;

	for (size_t i = 0; i < count; i++) {
		e[i] = (struct entry){ all[i].seq, off, all[i].len };
		off = page_up(off + all[i].len);
	}
	rc = store_object_write(o, 0, &h, sizeof(h));
	if (!rc && count)
		rc = store_object_write(o, sizeof(h), e, count * sizeof(*e));
	for (size_t i = 0; i < count && !rc; i++)
		rc = store_object_write(o, e[i].off, all[i].p, all[i].len);
	return rc;
}

int kept_dump(struct store_writer *w, struct store_ref *ref, char *why, size_t n)
{
	struct entry *e = calloc(count + 1, sizeof(*e));
	struct store_object *o = NULL;
	int rc = e ? store_object_begin(w, &o) : -ENOMEM;

	if (!rc)
		rc = write_all(o, e);
	if (!rc)
		rc = store_object_end(o, 0, ref);
	else if (o)
		store_object_abort(o);
	if (rc)
		snprintf(why, n, "images and graphs are not saved: %s",
			 rc == -ENOMEM ? "out of memory" : store_why());
	free(e);
	return rc;
}

/* ------------------------------------------------------------------------------ restore */

static int read_at(struct store_reader *r, uint64_t off, void *to, uint64_t len)
{
	ssize_t got = store_read(r, off, to, len);

	return got < 0 ? got : (uint64_t)got == len ? 0 : -EBADMSG;
}

static int read_one(struct store_reader *r, const struct entry *e, uint64_t after)
{
	void *p;
	int rc;

	if (e->seq <= after || e->off % STORE_PAGE || !e->len || e->len > BYTES_MAX)
		return -EBADMSG;
	p = malloc(e->len + 1);
	if (!p)
		return -ENOMEM;
	rc = read_at(r, e->off, p, e->len);
	if (!rc)
		rc = put(e->seq, p, e->len);
	if (rc)
		free(p);
	return rc;
}

static int read_all(struct store_reader *r)
{
	struct entry *e;
	struct head h;
	int rc = read_at(r, 0, &h, sizeof(h));

	if (rc)
		return rc;
	if (h.magic != KEPT_MAGIC || h.count > KEPT_MAX)
		return -EBADMSG;
	if (h.version != KEPT_VERSION)
		return -EPROTONOSUPPORT;
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

int kept_restore(struct store *st, const struct store_ref *ref, char *why, size_t n)
{
	struct store_reader *r;
	int rc = store_object_open(st, ref, &r);

	if (!rc) {
		rc = read_all(r);
		store_reader_close(r);
	}
	if (rc == -EPROTONOSUPPORT)
		snprintf(why, n, "what the log refers to was saved by a newer singvgpu: update this one");
	else if (rc)
		snprintf(why, n, "what the log refers to cannot be read: %s",
			 rc == -ENOMEM ? "out of memory" : *store_why() ? store_why() : "damaged");
	return rc;
}
