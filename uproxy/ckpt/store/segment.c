// SPDX-License-Identifier: Apache-2.0
/*
 * segment.c - segments: their files, their index on disk and in memory
 *
 * store.segs has every segment that this handle has ever found. An index is read when it is needed;
 * above INDEX_ROOM the least recently used indices are dropped.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zstd.h>

#include "store_i.h"

#define INDEX_ROOM (64u << 20)

void store_seg_name(uint64_t id, char name[SEG_NAME])
{
	snprintf(name, SEG_NAME, "seg/%016" PRIx64, id);
}

bool store_seg_parse(const char *file, uint64_t *id)
{
	char *end;

	if (strlen(file) != 16 || strspn(file, "0123456789abcdef") != 16)
		return false;
	*id = strtoull(file, &end, 16);
	return *id != 0;
}

int store_seg_open(struct store *s, uint64_t id, int flags)
{
	char name[SEG_NAME];
	int fd;

	store_seg_name(id, name);
	fd = store_file(s, name, O_RDONLY | flags);
	if (fd == -EINVAL && flags & O_DIRECT)
		fd = store_file(s, name, O_RDONLY | (flags & ~O_DIRECT));
	if (fd == -EPERM)
		return fd;
	if (fd == -ENOENT)
		return store_fail(-ENODATA, "the segment %s of the store %s is missing", name,
				  s->path);
	return fd < 0 ? store_fail_io(fd, "open", name) : fd;
}

/* ------------------------------------------------------------------------------ on disk */

size_t store_seg_index_len(uint32_t slots, uint32_t frames)
{
	size_t len = (slots + frames) * 16ul + sizeof(struct disk_head);

	return (len + STORE_PAGE - 1) & ~(size_t)(STORE_PAGE - 1);
}

void store_seg_write_index(const struct store *s, uint64_t id, uint32_t slots, uint64_t at,
			   const struct store_digest *d, const struct disk_frame *f,
			   uint32_t frames, uint8_t *out)
{
	size_t len = store_seg_index_len(slots, frames), body = len - sizeof(struct disk_head);
	struct disk_head foot = { .a = slots, .b = id, .c = at, .d = frames };

	memset(out, 0, len);
	memcpy(out, d, slots * sizeof(*d));
	if (frames)
		memcpy(out + slots * sizeof(*d), f, frames * sizeof(*f));
	foot.e = store_check64(out, body);
	store_head_seal(&foot, SEG_MAGIC, s);
	memcpy(out + body, &foot, sizeof(foot));
}

static bool foot_fits(const struct store *s, const struct disk_head *h, uint64_t id, uint64_t size)
{
	uint32_t frames = (h->a + FRAME_SLOTS - 1) / FRAME_SLOTS;

	return h->b == id && h->store == s->super.c && h->a && h->a <= SEG_SLOTS &&
	       h->c % STORE_PAGE == 0 && (h->d == 0 || h->d == frames) && h->c <= size &&
	       (h->d || h->c == (uint64_t)h->a * STORE_PAGE) &&
	       h->c + store_seg_index_len(h->a, h->d) == size;
}

static int read_foot(const struct store *s, int fd, uint64_t id, const char *name,
		     struct disk_head *foot)
{
	struct stat st;
	int err;

	if (fstat(fd, &st))
		return store_fail_io(-errno, "look at", name);
	if (st.st_size < STORE_PAGE || st.st_size % STORE_PAGE)
		return store_fail(-EBADMSG, "%s is damaged: it is cut short", name);
	err = store_io_read_exact(fd, name, foot, sizeof(*foot), st.st_size - sizeof(*foot));
	if (err)
		return store_fail_io(err, "read", name);
	err = store_head_check(foot, SEG_MAGIC, name);
	if (!err && !foot_fits(s, foot, id, st.st_size))
		err = store_fail(-EBADMSG, "%s is damaged, or another file under its name", name);
	return err;
}

int store_seg_read_index(const struct store *s, int fd, uint64_t id, struct disk_head *foot,
			 struct store_digest **d, struct disk_frame **f)
{
	char name[SEG_NAME];
	size_t len;
	uint8_t *p;
	int err;

	store_seg_name(id, name);
	err = read_foot(s, fd, id, name, foot);
	if (err)
		return err;
	len = store_seg_index_len(foot->a, foot->d) - sizeof(*foot);
	p = malloc(len);
	if (!p)
		return store_fail(-ENOMEM, "out of memory");
	err = store_io_read_exact(fd, name, p, len, foot->c);
	if (err)
		err = store_fail_io(err, "read", name);
	else if (store_check64(p, len) != foot->e)
		err = store_fail(-EBADMSG, "the index of %s is damaged", name);
	if (err) {
		free(p);
		return err;
	}
	*d = (struct store_digest *)p;
	*f = foot->d ? (struct disk_frame *)(p + foot->a * sizeof(**d)) : NULL;
	return 0;
}

/* ------------------------------------------------------------------------------ in memory */

static uint32_t id_bucket(const struct store *s, uint64_t id)
{
	return (id ^ id >> 32) & s->byid_mask;
}

struct seg *store_seg_find(struct store *s, uint64_t id)
{
	if (!s->byid)
		return NULL;
	for (uint32_t i = id_bucket(s, id); s->byid[i]; i = (i + 1) & s->byid_mask)
		if (s->segs[s->byid[i]]->id == id)
			return s->segs[s->byid[i]];
	return NULL;
}

static void id_insert(struct store *s, uint32_t index)
{
	uint32_t i = id_bucket(s, s->segs[index]->id);

	while (s->byid[i])
		i = (i + 1) & s->byid_mask;
	s->byid[i] = index;
}

static int more_room(struct store *s)
{
	uint32_t room = s->segs_room < 128 ? 256 : s->segs_room * 2;
	struct seg **segs = realloc(s->segs, room * sizeof(*segs));
	uint32_t *byid;

	if (!segs)
		return store_fail(-ENOMEM, "out of memory");
	s->segs = segs;
	byid = calloc(room * 2, sizeof(*byid));
	if (!byid)
		return store_fail(-ENOMEM, "out of memory");
	free(s->byid);
	s->byid = byid;
	s->byid_mask = room * 2 - 1;
	s->segs_room = room;
	for (uint32_t i = 1; i < s->nsegs; i++)
		id_insert(s, i);
	return 0;
}

int store_seg_add(struct store *s, uint64_t id, struct seg **out)
{
	struct seg *g;
	int err = s->nsegs < s->segs_room && s->byid ? 0 : more_room(s);

	if (err)
		return err;
	g = calloc(1, sizeof(*g));
	if (!g)
		return store_fail(-ENOMEM, "out of memory");
	g->id = id;
	g->index = s->nsegs++;
	s->segs[g->index] = g;
	id_insert(s, g->index);
	*out = g;
	return 0;
}

static size_t index_bytes(const struct seg *g)
{
	return g->slots * sizeof(struct store_digest);
}

/* Drops indices until a quarter of INDEX_ROOM is free. */
static void evict(struct store *s)
{
	while (s->loaded > INDEX_ROOM) {
		struct seg *old = NULL;

		for (uint32_t i = 1; i < s->nsegs; i++) {
			struct seg *g = s->segs[i];

			if (g->digests && !g->pins && !g->owner && (!old || g->used < old->used))
				old = g;
		}
		if (!old)
			return;
		free(old->digests);
		old->digests = NULL;
		old->frames = NULL;
		s->loaded -= index_bytes(old);
	}
}

int store_seg_load(struct store *s, struct seg *g)
{
	struct disk_head foot;
	struct stat st;
	int fd, err;

	g->used = ++s->tick;
	if (g->digests)
		return 0;
	fd = store_seg_open(s, g->id, 0);
	if (fd < 0)
		return fd;
	err = store_seg_read_index(s, fd, g->id, &foot, &g->digests, &g->frames);
	if (!err && fstat(fd, &st))
		err = store_fail_io(-errno, "look at a segment of", s->path);
	close(fd);
	if (err)
		return err;
	g->slots = foot.a;
	g->index_off = foot.c;
	g->zstd = foot.d != 0;
	g->foreign = st.st_uid != geteuid() && st.st_uid && st.st_uid != s->owner;
	s->loaded += index_bytes(g);
	g->pins++;
	evict(s);
	g->pins--;
	return 0;
}

int store_seg_pin(struct store *s, uint64_t id, struct seg **out)
{
	struct seg *g;
	int err = 0;

	lock_take(&s->mutex);
	g = store_seg_find(s, id);
	if (!g)
		err = store_seg_add(s, id, &g);
	if (!err)
		err = store_seg_load(s, g);
	if (!err) {
		g->pins++;
		*out = g;
	}
	lock_drop(&s->mutex);
	return err;
}

void store_seg_unpin(struct store *s, struct seg *g)
{
	lock_take(&s->mutex);
	g->pins--;
	lock_drop(&s->mutex);
}

void store_seg_forget_all(struct store *s)
{
	for (uint32_t i = 1; i < s->nsegs; i++) {
		free(s->segs[i]->digests);
		free(s->segs[i]);
	}
	s->nsegs = 1;
	s->loaded = 0;
	s->scanned = (struct timespec){ 0 };
	if (s->byid)
		memset(s->byid, 0, (s->byid_mask + 1ul) * sizeof(*s->byid));
}

/* ------------------------------------------------------------------------------ pages */

static uint64_t frame_at(const struct seg *g, uint32_t frame)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < frame; i++)
		at += g->frames[i].len;
	return at;
}

int store_seg_read_frame(const struct seg *g, int fd, uint32_t frame, void *packed, void *out)
{
	uint32_t pages = g->slots - frame * FRAME_SLOTS;
	const struct disk_frame *f = &g->frames[frame];
	uint64_t at = frame_at(g, frame);
	char name[SEG_NAME];
	size_t want, got;
	int err;

	store_seg_name(g->id, name);
	want = (pages < FRAME_SLOTS ? pages : FRAME_SLOTS) * (size_t)STORE_PAGE;
	if (!f->len)
		return store_fail(-ENODATA, "%s: the pages at slot %u were cleaned away", name,
				  frame * FRAME_SLOTS);
	if (f->len > want || at + f->len > g->index_off || (f->flags & FRAME_RAW && f->len != want))
		return store_fail(-EBADMSG, "%s is damaged at byte %" PRIu64, name, at);
	err = store_io_read_exact(fd, name, packed, f->len, at);
	if (err)
		return store_fail_io(err, "read", name);
	if (store_check64(packed, f->len) != f->check)
		return store_fail(-EBADMSG, "%s is damaged between bytes %" PRIu64 " and %" PRIu64,
				  name, at, at + f->len);
	if (f->flags & FRAME_RAW) {
		memcpy(out, packed, want);
		return 0;
	}
	got = ZSTD_decompress(out, want, packed, f->len);
	if (got != want)
		return store_fail(-EBADMSG, "%s does not unpack at byte %" PRIu64, name, at);
	return 0;
}

static int check_page(struct store *s, const struct seg *g, uint32_t slot, const void *page)
{
	char name[SEG_NAME];

	if (digest_equal(store_hash(s, page), g->digests[slot]))
		return 0;
	store_seg_name(g->id, name);
	return store_fail(-EBADMSG, "%s is damaged: page %u is not what was written", name, slot);
}

int store_seg_read_page(struct store *s, const struct seg *g, uint32_t slot, void *page)
{
	uint8_t *two = NULL;
	char name[SEG_NAME];
	int fd, err;

	store_seg_name(g->id, name);
	if (slot >= g->slots || digest_none(g->digests[slot]))
		return store_fail(-ENODATA, "%s has no page %u", name, slot);
	fd = store_seg_open(s, g->id, 0);
	if (fd < 0)
		return fd;
	if (!g->zstd) {
		err = store_io_read_exact(fd, name, page, STORE_PAGE, (uint64_t)slot * STORE_PAGE);
		if (err)
			store_fail_io(err, "read", name);
	} else {
		two = malloc(2 * FRAME_SLOTS * STORE_PAGE);
		err = !two ? store_fail(-ENOMEM, "out of memory") :
			     store_seg_read_frame(g, fd, slot / FRAME_SLOTS, two,
						  two + FRAME_SLOTS * STORE_PAGE);
		if (!err)
			memcpy(page, two + (FRAME_SLOTS + slot % FRAME_SLOTS) * STORE_PAGE,
			       STORE_PAGE);
		free(two);
	}
	close(fd);
	return err ? err : check_page(s, g, slot, page);
}
