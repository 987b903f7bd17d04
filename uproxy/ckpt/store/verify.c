// SPDX-License-Identifier: Apache-2.0
/*
 * verify.c - reads everything in a store, reports damage and the checkpoints that it touches
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store_i.h"

#define CHUNK 256u	/* pages read at once */

struct verify {
	struct store *s;
	void (*bad)(void *arg, const char *file, uint64_t at, const char *what);
	void (*hurt)(void *arg, const char *id, const char *part);
	store_progress p;
	void *arg;
	struct store_verify_stats *st;
	struct marks broken;	/* pages that are missing or damaged */
	uint8_t *buf;		/* CHUNK pages */
	uint64_t total;
};

static void problem(struct verify *v, const char *file, uint64_t at, const char *what)
{
	v->st->problems++;
	if (v->bad)
		v->bad(v->arg, file, at, what);
}

static bool is_zero(const uint8_t *p, size_t len)
{
	while (len && !*p)
		p++, len--;
	return !len;
}

/* ------------------------------------------------------------------------------ segments */

static int check_slot(struct verify *v, const struct seg *g, const char *name, uint32_t slot,
		      const uint8_t *page, uint64_t at)
{
	v->st->pages++;
	if (digest_none(g->digests[slot])) {
		if (!store_page_is_zero(page))
			problem(v, name, at, "there is something where pages were cleaned away");
		return 0;
	}
	if (digest_equal(store_hash(v->s, page), g->digests[slot]))
		return 0;
	problem(v, name, at, "a page is not what was written");
	return store_marks_set(&v->broken, g->id, slot, 1);
}

static int check_raw(struct verify *v, const struct seg *g, int fd, const char *name)
{
	int err = 0;

	for (uint32_t slot = 0, n; slot < g->slots && !err; slot += n) {
		uint64_t at = slot * (uint64_t)STORE_PAGE;

		n = g->slots - slot < CHUNK ? g->slots - slot : CHUNK;
		/* If a chunk cannot be read, its pages are tried one by one. */
		if (store_io_read_exact(fd, name, v->buf, n * (size_t)STORE_PAGE, at)) {
			n = 1;
			err = store_io_read_exact(fd, name, v->buf, STORE_PAGE, at);
			if (err) {
				problem(v, name, at, "a page cannot be read");
				err = store_marks_set(&v->broken, g->id, slot, 1);
				continue;
			}
		}
		for (uint32_t i = 0; i < n && !err; i++)
			err = check_slot(v, g, name, slot + i, v->buf + i * (size_t)STORE_PAGE,
					 at + i * (uint64_t)STORE_PAGE);
		v->st->bytes += n * (uint64_t)STORE_PAGE;
		if (v->p)
			v->p(v->arg, "pages", v->st->bytes, v->total);
	}
	return err;
}

static int check_padding(struct verify *v, const struct seg *g, int fd, const char *name,
			 uint64_t at)
{
	if (at > g->index_off || g->index_off - at >= STORE_PAGE) {
		problem(v, name, at, "the index lies elsewhere than behind the pages");
		return 0;
	}
	if (store_io_read_exact(fd, name, v->buf, g->index_off - at, at) ||
	    !is_zero(v->buf, g->index_off - at))
		problem(v, name, at, "what should be zeros is not");
	return 0;
}

static int check_frames(struct verify *v, const struct seg *g, int fd, const char *name)
{
	uint32_t frames = (g->slots + FRAME_SLOTS - 1) / FRAME_SLOTS;
	uint8_t *out = v->buf + FRAME_SLOTS * STORE_PAGE;
	uint64_t at = 0;
	int err = 0;

	for (uint32_t i = 0; i < frames && !err; at += g->frames[i++].len) {
		uint32_t first = i * FRAME_SLOTS, n = FRAME_SLOTS;

		n = n < g->slots - first ? n : g->slots - first;
		v->st->bytes += g->frames[i].len;
		if (!g->frames[i].len)
			continue;
		err = store_seg_read_frame(g, fd, i, v->buf, out);
		if (err) {
			problem(v, name, at, store_why()->text);
			err = store_marks_set(&v->broken, g->id, first, n);
			continue;
		}
		for (uint32_t j = 0; j < n && !err; j++)
			err = check_slot(v, g, name, first + j, out + j * (size_t)STORE_PAGE, at);
		if (v->p)
			v->p(v->arg, "pages", v->st->bytes, v->total);
	}
	return err ? err : check_padding(v, g, fd, name, at);
}

/* Checks a segment by the index on the disk, not by the one in memory. */
static int check_segment(struct verify *v, const char *name, uint64_t id)
{
	struct seg g = { .id = id };
	struct disk_head foot;
	int err, fd = store_seg_open(v->s, id, 0);

	if (fd < 0) {
		problem(v, name, UINT64_MAX, store_why()->text);
		return store_marks_set(&v->broken, id, 0, SEG_SLOTS);
	}
	err = store_seg_read_index(v->s, fd, id, &foot, &g.digests, &g.frames);
	if (err) {
		problem(v, name, UINT64_MAX, store_why()->text);
		err = store_marks_set(&v->broken, id, 0, SEG_SLOTS);
	} else {
		g.slots = foot.a;
		g.index_off = foot.c;
		posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
		err = foot.d ? check_frames(v, &g, fd, name) : check_raw(v, &g, fd, name);
		/* Slots that the segment does not have. */
		if (!err && g.slots < SEG_SLOTS)
			err = store_marks_set(&v->broken, id, g.slots, SEG_SLOTS - g.slots);
		for (uint32_t i = 0; i < g.slots && !err; i++)
			if (digest_none(g.digests[i]))
				err = store_marks_set(&v->broken, id, i, 1);
	}
	close(fd);
	free(g.digests);
	return err;
}

static int each_segment(void *arg, const char *file)
{
	struct verify *v = arg;
	char name[300];
	uint64_t id;

	snprintf(name, sizeof(name), "seg/%s", file);
	if (!store_seg_parse(file, &id)) {
		problem(v, name, UINT64_MAX, "this is no file of the store");
		return 0;
	}
	v->st->segments++;
	return check_segment(v, name, id);
}

/* ------------------------------------------------------------------------------ checkpoints */

struct walk {
	struct verify *v;
	bool hurt;
};

static int check_row(void *arg, uint64_t seg, uint32_t slot, uint32_t count)
{
	struct walk *w = arg;
	char name[SEG_NAME];

	store_seg_name(seg, name);
	if (!store_marks_of(&w->v->broken, seg) && faccessat(w->v->s->dir, name, F_OK, 0)) {
		problem(w->v, name, UINT64_MAX, "the segment is missing");
		w->hurt = true;
		return store_marks_set(&w->v->broken, seg, 0, SEG_SLOTS);
	}
	if (store_marks_any(&w->v->broken, seg, slot, count) || slot + (uint64_t)count > SEG_SLOTS)
		w->hurt = true;
	return 0;
}

static int check_object(struct verify *v, struct input *in, const struct store_ref *ref, bool *hurt)
{
	struct walk w = { .v = v };
	int err = store_input_walk(in, ref, check_row, &w);

	v->st->objects++;
	*hurt = w.hurt || err;
	return err == -ENOMEM ? err : 0;
}

static int check_parts(struct verify *v, struct store_checkpoint *c)
{
	const struct store_part *parts;
	size_t n = store_checkpoint_parts(c, &parts);
	struct input *in;
	bool hurt;
	int err = store_input_open(v->s, &in);

	if (!err && store_cp_body(c))
		err = check_object(v, in, store_cp_body(c), &hurt);
	for (size_t i = 0; i < n && !err; i++) {
		err = check_object(v, in, &parts[i].ref, &hurt);
		if (!err && hurt) {
			v->st->problems++;
			if (v->hurt)
				v->hurt(v->arg, c ? store_checkpoint_id(c) : "", parts[i].name);
		}
	}
	store_input_close(in);
	return err;
}

static int each_checkpoint(void *arg, const char *file)
{
	struct verify *v = arg;
	struct store_checkpoint *c;
	char name[300];
	int err;

	snprintf(name, sizeof(name), "cp/%s", file);
	if (strlen(file) != 32 || strspn(file, "0123456789abcdef") != 32) {
		problem(v, name, UINT64_MAX, "this is no file of the store");
		return 0;
	}
	v->st->checkpoints++;
	if (v->p)
		v->p(v->arg, "checkpoints", v->st->checkpoints, 0);
	err = store_cp_load(v->s, file, &c);
	if (err == -ENOMEM)
		return err;
	if (err) {
		problem(v, name, UINT64_MAX, store_why()->text);
		if (v->hurt)
			v->hurt(v->arg, file, "(all)");
		return 0;
	}
	err = check_parts(v, c);
	store_checkpoint_close(c);
	return err;
}

/* ------------------------------------------------------------------------------ the store */

static int each_top(void *arg, const char *file)
{
	/* logs: files that jobs have changed after their checkpoints, files/logs.c */
	static const char *const ours[] = { "store", "lock", "seg", "tmp", "cp", "logs" };
	struct verify *v = arg;

	for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
		if (!strcmp(file, ours[i]))
			return 0;
	problem(v, file, UINT64_MAX, "this is no file of the store");
	return 0;
}

static void check_super(struct verify *v)
{
	struct disk_head h;
	struct stat st;
	int fd = store_io_open(v->s->dir, "store", O_RDONLY, 0);
	bool good = fd >= 0 && fstat(fd, &st) == 0 && st.st_size == sizeof(h) &&
		    store_io_read_exact(fd, "store", &h, sizeof(h), 0) == 0 &&
		    !memcmp(&h, &v->s->super, sizeof(h));

	if (fd >= 0)
		close(fd);
	if (!good)
		problem(v, "store", UINT64_MAX, "the store's head is not what was written");
	if (fstatat(v->s->dir, "lock", &st, 0) == 0 && st.st_size)
		problem(v, "lock", UINT64_MAX, "should be empty");
}

int store_verify(struct store *s,
		 void (*bad)(void *arg, const char *file, uint64_t at, const char *what),
		 void (*hurt)(void *arg, const char *id, const char *part), store_progress p,
		 void *arg, struct store_verify_stats *st)
{
	struct verify v = { .s = s, .bad = bad, .hurt = hurt, .p = p, .arg = arg, .st = st };
	struct store_stats all;
	int err;

	memset(st, 0, sizeof(*st));
	v.buf = aligned_alloc(STORE_PAGE, CHUNK * STORE_PAGE);
	if (!v.buf)
		return store_fail(-ENOMEM, "out of memory");
	err = store_stats(s, &all);
	v.total = err ? 0 : all.segment_bytes;
	if (!err)
		check_super(&v);
	if (!err)
		err = store_dir_names(s, ".", each_top, &v);
	if (!err)
		err = store_dir_names(s, "seg", each_segment, &v);
	if (!err)
		err = store_dir_names(s, "cp", each_checkpoint, &v);
	free(v.buf);
	store_marks_free(&v.broken);
	if (!err && st->problems)
		err = store_fail(-EBADMSG, "%" PRIu64 " problems in the store %s", st->problems,
				 s->path);
	return err;
}

/* ------------------------------------------------------------------------------ figures */

struct totals {
	struct store *s;
	const char *dir;
	struct store_stats *st;
};

static int add_file(void *arg, const char *file)
{
	struct totals *t = arg;
	char name[300];
	struct stat st;

	snprintf(name, sizeof(name), "%s/%s", t->dir, file);
	if (fstatat(t->s->dir, name, &st, 0))
		return 0;
	if (t->dir[0] == 't') {
		t->st->temporary_bytes += st.st_blocks * 512ull;
	} else if (t->dir[0] == 'c') {
		t->st->checkpoints++;
	} else {
		t->st->segments++;
		t->st->segment_bytes += st.st_blocks * 512ull;
	}
	return 0;
}

static int add_pages(void *arg, const char *file)
{
	struct totals *t = arg;
	struct disk_head h;
	char name[SEG_NAME];
	struct stat st;
	uint64_t id;
	int fd;

	if (!store_seg_parse(file, &id))
		return 0;
	store_seg_name(id, name);
	fd = store_io_open(t->s->dir, name, O_RDONLY, 0);
	if (fd < 0)
		return 0;
	if (!fstat(fd, &st) && st.st_size > (off_t)sizeof(h) &&
	    !store_io_read_exact(fd, name, &h, sizeof(h), st.st_size - sizeof(h)) &&
	    !store_head_check(&h, SEG_MAGIC, name))
		t->st->pages += h.a;
	close(fd);
	return 0;
}

int store_stats(struct store *s, struct store_stats *st)
{
	static const char *const dirs[] = { "seg", "tmp", "cp" };
	struct totals t = { s, NULL, st };
	int err = 0;

	memset(st, 0, sizeof(*st));
	for (int i = 0; i < 3 && !err; i++) {
		t.dir = dirs[i];
		err = store_dir_names(s, dirs[i], add_file, &t);
	}
	return err ? err : store_dir_names(s, "seg", add_pages, &t);
}
