// SPDX-License-Identifier: Apache-2.0
/*
 * hash.c - digests of pages and checks of everything else
 *
 * xxHash is compiled in: the shared library's XXH3 is slower by a third than what the compiler
 * makes of it here at -O3.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store_i.h"

/* A caller's data may have any alignment. */
typedef uint64_t __attribute__((aligned(1), may_alias)) word;

bool store_page_is_zero(const void *page)
{
	const word *w = page;

	if (w[0] | w[STORE_PAGE / 8 - 1])
		return false;
	for (size_t i = 0; i < STORE_PAGE / 8; i += 8)
		if (w[i] | w[i + 1] | w[i + 2] | w[i + 3] | w[i + 4] | w[i + 5] | w[i + 6] |
		    w[i + 7])
			return false;
	return true;
}

void store_hash_pages(const struct store *s, const uint8_t *data, size_t pages,
		      struct store_digest *d)
{
	for (size_t i = 0; i < pages; i++, data += STORE_PAGE)
		d[i] = store_page_is_zero(data) ? s->zero : store_hash(s, data);
}

struct store_digest store_hash(const struct store *s, const void *page)
{
	XXH128_hash_t h = XXH3_128bits_withSeed(page, STORE_PAGE, s->super.b);

	return (struct store_digest){ h.low64, h.high64 };
}

uint64_t store_check64(const void *data, size_t len)
{
	return XXH3_64bits(data, len);
}

struct store_digest store_check128(const void *data, size_t len)
{
	XXH128_hash_t h = XXH3_128bits(data, len);

	return (struct store_digest){ h.low64, h.high64 };
}

void store_head_seal(struct disk_head *h, const char *magic, const struct store *s)
{
	memcpy(h->magic, magic, 8);
	h->version = STORE_VERSION;
	h->store = s->super.c;
	h->check = store_check64(h, offsetof(struct disk_head, check));
}

int store_head_check(const struct disk_head *h, const char *magic, const char *what)
{
	if (memcmp(h->magic, magic, 8) ||
	    h->check != store_check64(h, offsetof(struct disk_head, check)))
		return store_fail(-EBADMSG, "%s is damaged: its head is not what was written",
				  what);
	if (h->version != STORE_VERSION)
		return store_fail(-EPROTONOSUPPORT,
				  "%s is of version %u, this program reads version %u", what,
				  h->version, STORE_VERSION);
	return 0;
}
