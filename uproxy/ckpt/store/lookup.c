// SPDX-License-Identifier: Apache-2.0
/*
 * lookup.c - finds the place of a page by its digest, in a table of hints in memory for each handle
 *
 * A hint is 8 bytes: 26 bits of the digest, 24 of the segment's index in store.segs, 14 of the
 * slot. It is checked against the segment's index before it is used. The table has at most
 * HINTS_MAX entries (256 MiB). A store with more pages has hints for a sample of its digests only.
 * Runs of pages are found all the same, but for their beginnings: after a known page, the next one
 * is expected behind it (store_writer_known).
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "store_i.h"

#define HINTS_MIN  (1ul << 20)
#define HINTS_MAX  (1ul << 25)
#define SLOT_BITS  14
#define SEG_BITS   24
#define SLOT_MASK  ((1u << SLOT_BITS) - 1)
#define SEG_MASK   ((1u << SEG_BITS) - 1)

_Static_assert(SEG_SLOTS == 1u << SLOT_BITS, "a hint has room for every slot");

static uint64_t tag(struct store_digest d)
{
	return d.hi >> (SLOT_BITS + SEG_BITS);
}

static bool sampled(const struct store *s, struct store_digest d)
{
	return (d.hi & ((1u << s->sample) - 1)) == 0;
}

bool store_lookup_is(struct store *s, struct place p, struct store_digest d,
		     const struct store_writer *w)
{
	struct seg *g;

	if (!p.seg || p.seg >= s->nsegs)
		return false;
	g = s->segs[p.seg];
	if (g->broken || (g->owner && g->owner != w))
		return false;
	if (!g->digests && store_seg_load(s, g)) {
		g->broken = true;
		return false;
	}
	g->used = ++s->tick;
	return p.slot < g->slots && digest_equal(g->digests[p.slot], d);
}

void store_lookup_prefetch(const struct store *s, struct store_digest d)
{
	uint64_t *hints = atomic_load_explicit(&s->hints, memory_order_relaxed);
	uint64_t mask = atomic_load_explicit(&s->hints_mask, memory_order_relaxed);

	__builtin_prefetch(&hints[d.lo & mask]);
}

struct place store_lookup_find(struct store *s, struct store_digest d, const struct store_writer *w)
{
	uint64_t i = d.lo & s->hints_mask;

	for (; s->hints[i]; i = (i + 1) & s->hints_mask) {
		uint64_t h = s->hints[i];
		struct place p = { h >> SLOT_BITS & SEG_MASK, h & SLOT_MASK };

		if (h >> (SLOT_BITS + SEG_BITS) == tag(d) && store_lookup_is(s, p, d, w))
			return p;
	}
	return (struct place){ 0 };
}

static void insert(struct store *s, struct store_digest d, struct place p)
{
	uint64_t i = d.lo & s->hints_mask;

	if (digest_none(d) || !sampled(s, d))
		return;
	while (s->hints[i])
		i = (i + 1) & s->hints_mask;
	s->hints[i] = tag(d) << (SLOT_BITS + SEG_BITS) | (uint64_t)p.seg << SLOT_BITS | p.slot;
	s->hints_used++;
}

/* A segment whose index cannot be read gets no hints; reading it, or verify, reports the error. */
static void insert_seg(struct store *s, struct seg *g)
{
	g->known = true;
	if (!g->digests && store_seg_load(s, g)) {
		g->broken = true;
		return;
	}
	for (uint32_t i = 0; i < g->slots; i++)
		insert(s, g->digests[i], (struct place){ g->index, i });
}

/* Makes a table with room for twice `pages`, and fills it from the known segments. */
static int rebuild(struct store *s, uint64_t pages)
{
	uint64_t n = HINTS_MIN, *hints;

	while (n < HINTS_MAX && n < pages * 2)
		n *= 2;
	while (pages >> s->sample > n / 4 * 3)
		s->sample++;
	hints = calloc(n, sizeof(*hints));
	if (!hints)
		return store_fail(-ENOMEM, "out of memory");
	free(s->hints);
	s->hints = hints;
	s->hints_mask = n - 1;
	s->hints_used = 0;
	for (uint32_t i = 1; i < s->nsegs; i++)
		if (s->segs[i]->known)
			insert_seg(s, s->segs[i]);
	return 0;
}

static uint64_t pages_known(const struct store *s)
{
	uint64_t n = 0;

	for (uint32_t i = 1; i < s->nsegs; i++)
		n += s->segs[i]->known && !s->segs[i]->broken ? s->segs[i]->slots : 0;
	return n;
}

static int make_room(struct store *s)
{
	if (s->hints && s->hints_used < (s->hints_mask + 1) / 4 * 3)
		return 0;
	if (s->hints && s->hints_mask + 1 == HINTS_MAX)
		s->sample++;
	return rebuild(s, pages_known(s) + 1);
}

/* Only where the table would be made anew several times: that is done with the mutex held. */
int store_lookup_expect(struct store *s, uint64_t pages)
{
	uint64_t most = HINTS_MAX / 4 * 3, known;
	int err = 0;

	lock_take(&s->mutex);
	known = s->hints_used;
	pages = known + pages < most ? pages : most - (known < most ? known : most);
	if (s->hints && known < pages / 2 && (s->hints_mask + 1) / 4 * 3 < known + pages)
		err = rebuild(s, pages_known(s) + pages);
	lock_drop(&s->mutex);
	return err;
}

int store_lookup_add(struct store *s, struct store_digest d, struct place p)
{
	int err = make_room(s);

	if (!err)
		insert(s, d, p);
	return err;
}

void store_lookup_drop(struct store *s)
{
	free(s->hints);
	s->hints = NULL;
	s->hints_mask = s->hints_used = 0;
	s->sample = 0;
	for (uint32_t i = 1; i < s->nsegs; i++)
		s->segs[i]->known = false;
}

static uint64_t ns_of(struct timespec t)
{
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int take_in(struct store *s, const char *file)
{
	struct seg *g;
	uint64_t id;
	int err;

	if (!store_seg_parse(file, &id))
		return 0;
	g = store_seg_find(s, id);
	if (!g) {
		err = store_seg_add(s, id, &g);
		if (err)
			return err;
	}
	if (g->known || g->broken)
		return 0;
	if (!g->digests && store_seg_load(s, g)) {
		g->broken = true;
		return 0;
	}
	err = make_room(s);
	if (!err)
		insert_seg(s, g);
	return err;
}

int store_lookup_refresh(struct store *s)
{
	int fd = openat(s->dir, "seg", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	struct dirent *e;
	struct stat st;
	DIR *d = NULL;

	if (fd < 0 || fstat(fd, &st)) {
		err = store_fail_io(-errno, "list the segments of", s->path);
		if (fd >= 0)
			close(fd);
		return err;
	}
	lock_take(&s->mutex);
	if (s->hints && !memcmp(&st.st_mtim, &s->scanned, sizeof(s->scanned)))
		close(fd);
	else if (!(d = fdopendir(fd)))
		err = store_fail(-ENOMEM, "out of memory");
	if (!err)
		err = make_room(s);
	while (d && !err && (e = readdir(d)))
		err = take_in(s, e->d_name);
	if (d)
		closedir(d);
	/* A second change within a tick of the clock would not change the mtime. */
	if (!err && store_now_ns() - ns_of(st.st_mtim) > 50000000)
		s->scanned = st.st_mtim;
	lock_drop(&s->mutex);
	return err;
}
