// SPDX-License-Identifier: Apache-2.0
/*
 * gc.c - frees the pages and segments that no checkpoint needs
 *
 * gc walks all checkpoints while others may write. Then it takes the lock exclusively, so that no
 * writer has unpublished refs, walks the checkpoints that were published meanwhile, and removes
 * pages that are still not marked. A segment of which little is needed is replaced by one of the
 * same name with holes, so that refs to its pages remain valid. The lock is released after HOLD_MS
 * and taken again if there is more to do.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "store_i.h"

#define HOLD_MS 1000

struct gc {
	struct store *s;
	struct marks live;
	void *seen;		/* tsearch: ids of checkpoints that have been walked */
	int keep;
	bool more;		/* HOLD_MS was too short for all work */
	uint64_t until;
	store_progress p;
	void *arg;
	uint64_t done, total;
	struct store_gc_stats *st;
};

static void tell(struct gc *g, const char *phase)
{
	if (g->p)
		g->p(g->arg, phase, g->done, g->total);
}

static int mark_row(void *arg, uint64_t seg, uint32_t slot, uint32_t count)
{
	return store_marks_set(&((struct gc *)arg)->live, seg, slot, count);
}

static int mark_checkpoint(struct gc *g, const char *id)
{
	struct store_checkpoint *c;
	const struct store_part *parts;
	struct input *in;
	size_t n;
	int err = store_cp_load(g->s, id, &c);

	if (err)
		return err;
	n = store_checkpoint_parts(c, &parts);
	err = store_input_open(g->s, &in);
	if (!err && store_cp_body(c))
		err = store_input_walk(in, store_cp_body(c), mark_row, g);
	for (size_t i = 0; i < n && !err; i++)
		err = store_input_walk(in, &parts[i].ref, mark_row, g);
	store_input_close(in);
	store_checkpoint_close(c);
	return err;
}

static int mark_all(struct gc *g)
{
	char (*ids)[STORE_ID], *id, **node;
	size_t n;
	int err = store_cp_ids(g->s, &ids, &n);

	g->done = 0;
	g->total = n;
	for (size_t i = 0; i < n && !err; i++, g->done++) {
		tell(g, "mark");
		if (tfind(ids[i], &g->seen, (int (*)(const void *, const void *))strcmp))
			continue;
		err = mark_checkpoint(g, ids[i]);
		id = err ? NULL : strdup(ids[i]);
		node = id ? tsearch(id, &g->seen, (int (*)(const void *, const void *))strcmp) : NULL;
		if (!err && !node)
			err = store_fail(-ENOMEM, "out of memory");
	}
	free(ids);
	if (err) {
		struct why why = { 0 };

		store_failed(&why, err);
		store_fail(err, "nothing was removed, since a checkpoint cannot be read: %s",
			   why.text);
	}
	return err;
}

/* ------------------------------------------------------------------------------ removing */

static uint64_t room_of(struct store *s, const char *name)
{
	struct stat st;

	return fstatat(s->dir, name, &st, 0) ? 0 : st.st_blocks * 512ull;
}

static int drop_tmp(void *arg, const char *file)
{
	struct gc *g = arg;
	char name[300];
	int err;

	snprintf(name, sizeof(name), "tmp/%s", file);
	g->st->freed += room_of(g->s, name);
	g->st->temporaries++;
	err = store_io_unlink(g->s->dir, name);
	return err ? store_fail_io(err, "remove", name) : 0;
}

static uint32_t count_live(const struct seg *seg, const struct mark *k, uint32_t *present)
{
	uint32_t live = 0;

	*present = 0;
	for (uint32_t i = 0; i < seg->slots; i++) {
		*present += !digest_none(seg->digests[i]);
		live += mark_has(k, i) && !digest_none(seg->digests[i]);
	}
	return live;
}

/* The number of needed pages in a row from `slot` on, up to `max`. */
static uint32_t live_run(const struct mark *k, uint32_t slot, uint32_t max)
{
	uint32_t n = 0;

	while (n < max && mark_has(k, slot + n))
		n++;
	return n;
}

static int copy(int from, int to, const char *name, const char *tmp, uint64_t at, uint64_t to_at,
		uint64_t len, uint8_t *buf)
{
	int err = store_io_read_exact(from, name, buf, len, at);

	return err ? err : store_io_write(to, tmp, buf, len, to_at);
}

#define COPY_PAGES 256u

static int copy_raw(struct gc *g, const struct seg *seg, const struct mark *k, int from, int to,
		    const char *name, const char *tmp, struct store_digest *d)
{
	uint8_t *buf = malloc(COPY_PAGES * STORE_PAGE);
	int err = buf ? 0 : -ENOMEM;

	(void)g;
	for (uint32_t i = 0, n; i < seg->slots && !err; i += n) {
		n = live_run(k, i, seg->slots - i < COPY_PAGES ? seg->slots - i : COPY_PAGES);
		if (n)
			err = copy(from, to, name, tmp, i * (uint64_t)STORE_PAGE,
				   i * (uint64_t)STORE_PAGE, n * (uint64_t)STORE_PAGE, buf);
		else
			d[i] = (struct store_digest){ 0 }, n = 1;
	}
	free(buf);
	return err;
}

/* Copies frames that have a needed page, whole; `*at` becomes the index's offset. */
static int copy_frames(const struct seg *seg, const struct mark *k, int from, int to,
		       const char *name, const char *tmp, struct store_digest *d,
		       struct disk_frame *f, uint64_t *at)
{
	uint32_t frames = (seg->slots + FRAME_SLOTS - 1) / FRAME_SLOTS;
	uint8_t *buf = malloc(FRAME_SLOTS * STORE_PAGE);
	uint64_t src = 0, dst = 0;
	int err = buf ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < frames && !err; src += seg->frames[i++].len) {
		uint32_t first = i * FRAME_SLOTS, n = FRAME_SLOTS, live = 0;

		n = n < seg->slots - first ? n : seg->slots - first;
		for (uint32_t j = 0; j < n; j++)
			live += mark_has(k, first + j);
		if (!live) {
			memset(d + first, 0, n * sizeof(*d));
			f[i] = (struct disk_frame){ 0 };
			continue;
		}
		err = copy(from, to, name, tmp, src, dst, f[i].len, buf);
		dst += f[i].len;
	}
	*at = (dst + STORE_PAGE - 1) / STORE_PAGE * STORE_PAGE;
	free(buf);
	return err;
}

static int write_copy(struct gc *g, const struct seg *seg, const struct mark *k, int from, int to,
		      const char *name, const char *tmp)
{
	uint32_t frames = seg->zstd ? (seg->slots + FRAME_SLOTS - 1) / FRAME_SLOTS : 0;
	size_t len = store_seg_index_len(seg->slots, frames),
	       n = seg->slots * sizeof(struct store_digest);
	struct store_digest *d = malloc(n + frames * sizeof(struct disk_frame));
	struct disk_frame *f = (struct disk_frame *)(d + seg->slots);
	uint64_t at = seg->index_off;
	uint8_t *index = malloc(len);
	struct stat st;
	int err = d && index ? 0 : -ENOMEM;

	if (!err)
		memcpy(d, seg->digests, n);
	if (!err && frames)
		memcpy(f, seg->frames, frames * sizeof(*f));
	if (!err)
		err = frames ? copy_frames(seg, k, from, to, name, tmp, d, f, &at) :
			       copy_raw(g, seg, k, from, to, name, tmp, d);
	if (!err) {
		store_seg_write_index(g->s, seg->id, seg->slots, at, d, f, frames, index);
		err = store_io_write(to, tmp, index, len, at);
	}
	/* The new file gets the old one's owner, by which its pages are trusted. */
	if (!err && (fstat(from, &st) || fchmod(to, st.st_mode & 0666) ||
		     (st.st_uid != geteuid() && fchown(to, st.st_uid, st.st_gid))))
		err = -errno;
	if (!err)
		err = store_io_sync(to, tmp);
	free(d);
	free(index);
	return err;
}

static int rewrite(struct gc *g, const struct seg *seg, const struct mark *k)
{
	char name[SEG_NAME], tmp[SEG_NAME];
	uint64_t before;
	int from, to, err;

	store_seg_name(seg->id, name);
	snprintf(tmp, sizeof(tmp), "tmp/%016" PRIx64, seg->id);
	before = room_of(g->s, name);
	from = store_seg_open(g->s, seg->id, 0);
	if (from < 0)
		return from;
	to = store_io_open(g->s->dir, tmp, O_CREAT | O_EXCL | O_RDWR, 0600);
	err = to < 0 ? to : write_copy(g, seg, k, from, to, name, tmp);
	if (!err)
		err = store_io_rename(g->s->dir, tmp, name);
	close(from);
	if (to >= 0)
		close(to);
	if (err) {
		store_io_unlink(g->s->dir, tmp);
		return store_fail_io(err, "rewrite", name);
	}
	g->st->segments_rewritten++;
	g->st->freed += before - room_of(g->s, name);
	return 0;
}

/* Removes a segment that is not needed; rewrites one of which less than `keep` percent is. */
static int sweep_one(void *arg, const char *file)
{
	struct gc *g = arg;
	struct mark *k;
	char name[300];
	struct seg *seg;
	uint32_t live, present;
	uint64_t id;
	int err = 0;

	if (!store_seg_parse(file, &id))
		return 0;
	g->done++;
	tell(g, "sweep");
	store_seg_name(id, name);
	k = store_marks_of(&g->live, id);
	if (!k) {
		uint64_t room = room_of(g->s, name);

		err = store_io_unlink(g->s->dir, name);
		if (err)
			return store_fail_io(err, "remove", name);
		g->st->freed += room;
		g->st->segments_removed++;
		return 0;
	}
	if (!g->keep)
		return 0;
	if (store_now_ns() > g->until) {
		g->more = true;
		return 0;
	}
	/* A segment that cannot be read stays as it is: verify reports it. */
	if (store_seg_pin(g->s, id, &seg))
		return 0;
	live = count_live(seg, k, &present);
	if ((uint64_t)live * 100 < (uint64_t)present * g->keep)
		err = rewrite(g, seg, k);
	store_seg_unpin(g->s, seg);
	return err;
}

static int add_kept(void *arg, const char *file)
{
	struct gc *g = arg;
	char name[SEG_NAME];
	uint64_t id;

	if (store_seg_parse(file, &id)) {
		store_seg_name(id, name);
		g->st->kept += room_of(g->s, name);
	}
	return 0;
}

static int one_hold(struct gc *g, int wait_ms)
{
	struct store_stats st;
	int err = store_lock(g->s, LOCK_EX, wait_ms), again;

	if (!err) {
		g->until = store_now_ns() + HOLD_MS * 1000000ull;
		g->more = false;
		err = mark_all(g);
		if (!err)
			err = store_dir_names(g->s, "tmp", drop_tmp, g);
		if (!err)
			err = store_stats(g->s, &st);
		g->done = 0;
		g->total = err ? 0 : st.segments;
		if (!err)
			err = store_dir_names(g->s, "seg", sweep_one, g);
		if (!err && (err = store_io_sync_dir(g->s->dir, "seg")))
			store_fail_io(err, "sync", "seg");
		/* Indices and hints in memory may be out of date. */
		lock_take(&g->s->mutex);
		store_lookup_drop(g->s);
		store_seg_forget_all(g->s);
		lock_drop(&g->s->mutex);
	}
	/* A failed attempt to make the lock exclusive may have lost it. */
	again = store_lock(g->s, LOCK_SH, -1);
	return err ? err : again;
}

int store_gc(struct store *s, int keep, int wait_ms, store_progress p, void *arg,
	     struct store_gc_stats *st)
{
	const struct timespec pause = { .tv_nsec = 50000000 };
	struct gc g = { .s = s, .keep = keep, .p = p, .arg = arg, .st = st };
	int err = store_need_rw(s);

	memset(st, 0, sizeof(*st));
	if (!err && atomic_load(&s->writers))
		err = store_fail(-EBUSY, "a writer of this handle is open");
	if (!err)
		err = mark_all(&g);
	if (!err)
		err = one_hold(&g, wait_ms);
	while (!err && g.more) {
		nanosleep(&pause, NULL);
		err = one_hold(&g, wait_ms);
	}
	store_dir_names(s, "seg", add_kept, &g);
	store_marks_free(&g.live);
	tdestroy(g.seen, free);
	return err;
}
