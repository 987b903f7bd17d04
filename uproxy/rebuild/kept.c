// SPDX-License-Identifier: Apache-2.0
/*
 * kept.c - keeps images and descriptions of graphs that logged records refer to
 *
 * The client may reuse the arena and change its files, so each is copied or held, under its record's number, and
 * lives as long as the log needs the record (journal.c).
 */
#include <stdlib.h>

#include "held.h"
#include "kept.h"

#define KEPT_MAX	(1u << 24)	/* entries */

struct kept {
	uint64_t seq, len;
	void *p;			/* a copy; or NULL, and one of these: */
	struct held *held;
	struct kept_digest *expected;
};

static struct kept *all;	/* ascending seq */
static size_t count, cap;
static struct lock lock = LOCK_INIT(PROXY_KEPT);

/* The first entry at or behind seq. lock is held. */
static size_t index_of(uint64_t seq)
{
	size_t lo = 0, hi = count;

	assert_held(&lock);
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

static void drop(struct kept *k)
{
	free(k->p);
	free(k->expected);
	held_put(k->held);
}

/* If that fails, what it refers to stays the caller's. */
static int put(const struct kept *k, bool instead)
{
	struct kept was = { 0 };
	size_t i;
	int rc = 0;

	lock_take(&lock);
	if (count == cap)
		rc = grow();
	i = index_of(k->seq);
	if (!rc && i < count && all[i].seq == k->seq) {
		if (instead) {
			was = all[i];
			all[i] = *k;
		} else {
			rc = -EEXIST;
		}
	} else if (!rc) {
		memmove(all + i + 1, all + i, (count - i) * sizeof(*all));
		all[i] = *k;
		count++;
	}
	lock_drop(&lock);
	drop(&was);
	return rc;
}

int kept_take(uint64_t seq, void *p, uint64_t len)
{
	return put(&(struct kept){ .seq = seq, .len = len, .p = p }, false);
}

int kept_hold(uint64_t seq, struct held *h)
{
	return put(&(struct kept){ .seq = seq, .len = held_len(h), .held = h }, true);
}

int kept_expect(uint64_t seq, uint64_t len, const struct kept_digest *d)
{
	struct kept k = { .seq = seq, .len = len, .expected = malloc(sizeof(*d)) };
	int rc = k.expected ? 0 : -ENOMEM;

	if (rc)
		return rc;
	*k.expected = *d;
	rc = put(&k, false);
	if (rc)
		free(k.expected);
	return rc;
}

struct held *kept_held(uint64_t seq)
{
	struct held *h = NULL;
	size_t i;

	lock_take(&lock);
	i = index_of(seq);
	if (i < count && all[i].seq == seq && all[i].held)
		h = held_get(all[i].held);
	lock_drop(&lock);
	return h;
}

bool kept_expected(uint64_t seq, uint64_t len, struct kept_digest *d)
{
	bool is;
	size_t i;

	lock_take(&lock);
	i = index_of(seq);
	is = i < count && all[i].seq == seq && all[i].expected && all[i].len == len;
	if (is)
		*d = *all[i].expected;
	lock_drop(&lock);
	return is;
}

/* The bytes of an entry, or NULL. */
static const void *bytes_of(const struct kept *k)
{
	return k->held ? held_bytes(k->held) : k->p;
}

int kept_add(uint64_t seq, const void *p, uint64_t len)
{
	void *copy = malloc(len + 1);
	int rc = copy ? 0 : -ENOMEM;

	if (rc)
		return rc;
	memcpy(copy, p, len);
	rc = kept_take(seq, copy, len);
	if (rc)
		free(copy);
	return rc;
}

const void *kept_find(uint64_t seq, uint64_t *len)
{
	const void *p = NULL;
	size_t i;

	lock_take(&lock);
	i = index_of(seq);
	if (i < count && all[i].seq == seq) {
		p = bytes_of(&all[i]);
		*len = all[i].len;
	}
	lock_drop(&lock);
	return p;
}

void kept_sweep(bool (*keep)(void *arg, uint64_t seq), void *arg)
{
	size_t n = 0;

	lock_take(&lock);
	for (size_t i = 0; i < count; i++) {
		if (keep(arg, all[i].seq))
			all[n++] = all[i];
		else
			drop(&all[i]);
	}
	count = n;
	lock_drop(&lock);
}

uint64_t kept_next(uint64_t seq, const void **p, uint64_t *len)
{
	uint64_t next = 0;
	size_t i;

	lock_take(&lock);
	i = index_of(seq + 1);
	if (i < count) {
		next = all[i].seq;
		*p = bytes_of(&all[i]);
		*len = all[i].len;
	}
	lock_drop(&lock);
	return next;
}
