// SPDX-License-Identifier: Apache-2.0
/*
 * outcome.c - notes what became of records that are in the log
 */
#include <stdlib.h>

#include "lock.h"
#include "outcome.h"

struct outcomes outcomes;
static struct lock lock = LOCK_INIT(PROXY_OUTCOMES);

static int by_a(const void *x, const void *y)
{
	const struct outcome *p = x, *q = y;

	return p->a < q->a ? -1 : p->a > q->a;
}

static void sort(struct outcome_list *l)
{
	if (l->n)
		qsort(l->p, l->n, sizeof(*l->p), by_a);
}

void outcomes_lock(void)
{
	lock_take(&lock);
	sort(&outcomes.failures);
	sort(&outcomes.ends);
}

void outcomes_unlock(void)
{
	lock_drop(&lock);
}

const struct outcome *outcome_find(const struct outcome_list *l, uint64_t a)
{
	struct outcome key = { a, 0 };

	return l->n ? bsearch(&key, l->p, l->n, sizeof(key), by_a) : NULL;
}

static void add(struct outcome_list *l, uint64_t a, uint64_t b)
{
	lock_take(&lock);
	if (l->n == l->cap) {
		size_t n = l->cap ? l->cap * 2 : 64;
		struct outcome *p = realloc(l->p, n * sizeof(*p));

		if (!p) {	/* the entry stays, and a restore reports it */
			lock_drop(&lock);
			return;
		}
		l->p = p;
		l->cap = n;
	}
	l->p[l->n++] = (struct outcome){ a, b };
	lock_drop(&lock);
}

void journal_failed(uint64_t seq)
{
	add(&outcomes.failures, seq, 0);
}

void journal_ended(uint64_t made, uint64_t seq)
{
	add(&outcomes.ends, seq, made);
}
