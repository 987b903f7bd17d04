// SPDX-License-Identifier: Apache-2.0
/*
 * lock_check.c - with DEBUG_LOCKS, tracks each thread's locks and aborts on a violation (lock.h)
 */
#include "lock.h"

#include <stdio.h>
#include <stdlib.h>

#define HELD_MAX 8

static __thread struct {
	const struct lock *lock[HELD_MAX];
	unsigned int n;
} held __attribute__((tls_model("initial-exec")));

static _Noreturn void broken(const char *does, const char *what)
{
	fprintf(stderr, "singvgpu: a thread %s %s and holds", does, what);
	for (unsigned int i = 0; i < held.n; i++)
		fprintf(stderr, " %s", held.lock[i]->name);
	fprintf(stderr, "\n");
	abort();
}

void lock_takes(const struct lock *l)
{
	if (held.n == HELD_MAX || (held.n && held.lock[held.n - 1]->rank >= l->rank))
		broken("takes", l->name);
	held.lock[held.n++] = l;
}

void lock_drops(const struct lock *l)
{
	unsigned int i = held.n;

	while (i && held.lock[i - 1] != l)
		i--;
	if (!i)
		broken("drops, not having it,", l->name);
	for (held.n--; i <= held.n; i++)
		held.lock[i - 1] = held.lock[i];
}

void lock_may_wait(const char *what)
{
	if (held.n && held.lock[held.n - 1]->rank > LOCK_TURNS)
		broken("may wait for", what);
}

void assert_held(const struct lock *l)
{
	for (unsigned int i = 0; i < held.n; i++)
		if (held.lock[i] == l)
			return;
	broken("needs", l->name);
}
