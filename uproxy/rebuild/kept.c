// SPDX-License-Identifier: Apache-2.0
/*
 * kept.c - copies of images and descriptions of graphs in the arena that logged records refer to
 *
 * The client may reuse the arena, so each is copied, under its record's number. A copy lives as
 * long as the log needs the record (journal.c).
 */
#include <stdlib.h>

#include "uproxy_i.h"

#define KEPT_MAX	(1u << 24)	/* entries */

struct kept {
	uint64_t seq, len;
	void *p;
};

static struct kept *all;	/* ascending seq */
static size_t count, cap;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The first entry at or behind seq. lock is held. */
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

int kept_take(uint64_t seq, void *p, uint64_t len)
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
	rc = kept_take(seq, copy, len);
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

uint64_t kept_next(uint64_t seq, const void **p, uint64_t *len)
{
	uint64_t next = 0;
	size_t i;

	pthread_mutex_lock(&lock);
	i = index_of(seq + 1);
	if (i < count) {
		next = all[i].seq;
		*p = all[i].p;
		*len = all[i].len;
	}
	pthread_mutex_unlock(&lock);
	return next;
}
