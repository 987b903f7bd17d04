/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worlds.h - what tests have in common that explore every world which events can lead to
 */
#ifndef SELFTESTS_COLL_WORLDS_H
#define SELFTESTS_COLL_WORLDS_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../harness/random.h"

static char wrong[256]; /* the first rule that was broken, if any */

static inline void __attribute__((format(printf, 1, 2))) broke(const char *fmt, ...)
{
	va_list ap;

	if (*wrong)
		return;
	va_start(ap, fmt);
	vsnprintf(wrong, sizeof(wrong), fmt, ap);
	va_end(ap);
}

/* The digest of whole words, which goes on from h. */
static inline uint64_t mix(uint64_t h, const void *data, size_t size)
{
	const char *p = data;
	uint64_t word;

	for (; size >= 8; p += 8, size -= 8) {
		memcpy(&word, p, 8);
		h = (h ^ word) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	return h;
}

#endif /* SELFTESTS_COLL_WORLDS_H */
