// SPDX-License-Identifier: Apache-2.0
/*
 * store.c - the store keeps each page once, whoever writes it, until no checkpoint needs it
 */
#include "store_test.h"

FIXTURE(store)
{
	char dir[256];
	int zstd;
	struct store *s;
	struct store_writer *w;
};

FIXTURE_VARIANT(store)
{
	int zstd;
};

FIXTURE_VARIANT_ADD(store, raw)
{
	.zstd = 0,
};

FIXTURE_VARIANT_ADD(store, zstd)
{
	.zstd = 1,
};

FIXTURE_SETUP(store)
{
	snprintf(self->dir, sizeof(self->dir), "%s/s", new_scratch());
	make_store(self->dir, variant->zstd);
	self->s = open_store(self->dir, STORE_RW);
	ASSERT_EQ(0, store_writer_open(self->s, 0, &self->w));
}

FIXTURE_TEARDOWN(store)
{
	store_writer_close(self->w);
	store_close(self->s);
	drop_scratch();
}

static uint64_t stored(struct store_writer *w)
{
	struct store_writer_stats st;

	store_writer_stats(w, &st);
	return st.stored;
}

static uint64_t fresh(struct store_writer *w)
{
	struct store_writer_stats st;

	store_writer_stats(w, &st);
	return st.fresh;
}

TEST_F(store, objects_of_all_sizes_come_back)
{
	static const size_t sizes[] = { 0, 1, 4095, 4096, 4097, 8191, 8192, 20481, 262144, 262145,
					3 * MB + 5, 70 * MB + 77 };
	const size_t n = sizeof(sizes) / sizeof(*sizes);
	struct store_ref refs[sizeof(sizes) / sizeof(*sizes)];
	uint8_t *p = malloc(sizes[n - 1]);

	for (size_t i = 0; i < n; i++) {
		fill(p, sizes[i], i);
		ASSERT_EQ(0, put_at(self->w, p, sizes[i], &refs[i]));
		ASSERT_EQ(sizes[i], store_ref_size(&refs[i]));
	}
	ASSERT_EQ(0, store_writer_flush(self->w));
	for (size_t i = 0; i < n; i++) {
		fill(p, sizes[i], i);
		ASSERT_EQ(0, compare(self->s, &refs[i], p, sizes[i]));
	}
	ASSERT_EQ(0, verify(self->s, true));
	free(p);
}

/* Several fetches at once, of which one is asked again and again whether it is there. */
TEST_F(store, what_is_fetched_comes_by_itself)
{
	const size_t size = 24 * MB, part = 2 * MB, n = size / part;
	uint8_t *p = malloc(size), *q = store_buffer(size);
	struct store_fetch *f[size / part];
	struct store_reader *r;
	struct store_ref ref;
	time_t end = time(NULL) + 60;

	ASSERT_NE(NULL, q);
	ASSERT_EQ(0, (uintptr_t)q % part);
	fill(p, size, 12);
	ASSERT_EQ(0, put_at(self->w, p, size, &ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_object_open(self->s, &ref, &r));
	memset(q, 0xee, size);
	for (size_t i = 0; i < n; i++)
		ASSERT_EQ(0, store_fetch(r, i * part, q + i * part, part, &f[i]));
	while (!store_fetch_there(r, f[n - 1]) && time(NULL) < end)
		usleep(100);
	ASSERT_TRUE(store_fetch_there(r, f[n - 1]));
	ASSERT_EQ(0, memcmp(q + size - part, p + size - part, part));
	for (size_t i = n; i--;)
		ASSERT_EQ(0, store_fetch_end(r, f[i]));
	ASSERT_EQ(0, memcmp(p, q, size));
	/* A page that is damaged is there, too, and its fetch says so. */
	shell("for f in '%s'/seg/*; do printf x | dd of=$f bs=1 seek=5000 conv=notrunc 2>/dev/null; done",
	      self->dir);
	ASSERT_EQ(0, store_fetch(r, 0, q, part, &f[0]));
	while (!store_fetch_there(r, f[0]) && time(NULL) < end)
		usleep(100);
	ASSERT_TRUE(store_fetch_there(r, f[0]));
	ASSERT_EQ(-EBADMSG, store_fetch_end(r, f[0]));
	store_reader_close(r);
	free(p);
	free(q);
}

/* What was written in pieces, with gaps, out of order; read in pieces, too. */
struct model {
	uint8_t *p;
	size_t size;
	struct store_ref ref;
};

static void write_sparse(struct store_writer *w, struct model *m, int which)
{
	struct store_object *o;
	size_t off = 0, end = 0;

	seed(which);
	m->p = calloc(1, m->size);
	NEED_OK(store_object_begin(w, &o));
	while (off < m->size) {
		size_t len = 1 + rnd() % (rnd() % 4 ? 9000 : 600000);

		if (rnd() % 3)	/* right behind, at whatever byte */
			off = end;
		else
			off = (off + PAGE - 1) / PAGE * PAGE + rnd() % 40 * PAGE;
		if (off >= m->size)
			break;
		len = len < m->size - off ? len : m->size - off;
		if (rnd() % 5)
			for (size_t i = 0; i < len; i++)
				m->p[off + i] = rnd() >> 20;
		NEED_OK(store_object_write(o, off, m->p + off, len));
		end = off += len;
	}
	NEED_OK(store_object_end(o, m->size, &m->ref));
}

static void read_in_pieces(struct store *s, const struct model *m)
{
	uint8_t *q = malloc(300000);
	struct store_reader *r;
	uint64_t from, to, next = 0;

	NEED_OK(store_object_open(s, &m->ref, &r));
	for (int i = 0; i < 60; i++) {
		size_t off = i % 3 ? next : rnd() % m->size, len = 1 + rnd() % (rnd() % 3 ? 99 : 299999);
		ssize_t n = store_read(r, off, q, len);

		if (off >= m->size)
			off = m->size;
		NEED(n == (ssize_t)(len < m->size - off ? len : m->size - off));
		NEED(!memcmp(q, m->p + off, n));
		next = off + n;
	}
	/* Between the ranges of data there are zeros alone. */
	for (next = 0; store_next_data(r, next, &from, &to) == 0; next = to) {
		for (; next < from; next++)
			NEED(!m->p[next]);
		NEED(to > from && to <= m->size);
	}
	for (; next < m->size; next++)
		NEED(!m->p[next]);
	store_reader_close(r);
	free(q);
}

TEST_F(store, sparse_objects_come_back_in_any_pieces)
{
	struct model m[24];

	for (int i = 0; i < 24; i++) {
		seed(1000 + i);
		m[i].size = 1 + rnd() % (i % 2 ? 3000000 : 60000);
		write_sparse(self->w, &m[i], i);
	}
	ASSERT_EQ(0, store_writer_flush(self->w));
	for (int i = 0; i < 24; i++) {
		ASSERT_EQ(0, compare(self->s, &m[i].ref, m[i].p, m[i].size));
		read_in_pieces(self->s, &m[i]);
		free(m[i].p);
	}
	ASSERT_EQ(0, verify(self->s, true));
}

TEST_F(store, pages_may_come_in_any_order_but_once)
{
	size_t n = 300;
	uint8_t *p = malloc(n * PAGE);
	struct store_object *o;
	struct store_ref ref;

	fill(p, n * PAGE, 5);
	ASSERT_EQ(0, store_object_begin(self->w, &o));
	for (size_t i = 0; i < n; i++) {
		size_t page = (i * 7) % n;	/* 7 and 300 have no common divisor */

		ASSERT_EQ(0, store_object_write(o, page * PAGE, p + page * PAGE, PAGE));
	}
	ASSERT_EQ(-EINVAL, store_object_write(o, 17, p, 1));
	ASSERT_EQ(0, store_object_end(o, 0, &ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, compare(self->s, &ref, p, n * PAGE));

	ASSERT_EQ(0, store_object_begin(self->w, &o));
	ASSERT_EQ(0, store_object_write(o, 0, p, 4 * PAGE));
	ASSERT_EQ(0, store_object_write(o, 2 * PAGE, p, PAGE));
	ASSERT_EQ(-EINVAL, store_object_end(o, 0, &ref));
	ASSERT_EQ(0, store_object_begin(self->w, &o));
	ASSERT_EQ(0, store_object_write(o, 0, p, 4 * PAGE));
	ASSERT_EQ(-EINVAL, store_object_end(o, 3 * PAGE, &ref));
	/* The writer goes on. */
	ASSERT_EQ(0, put_at(self->w, p, PAGE, &ref));
	free(p);
}

TEST_F(store, nothing_is_stored_twice_and_zeros_not_at_all)
{
	size_t n = 1000;
	uint8_t *p = malloc(n * PAGE);
	struct store_writer_stats st;
	struct store_ref ref, again;

	fill(p, n * PAGE, 9);
	memset(p + 10 * PAGE, 0, 90 * PAGE);
	memcpy(p + 500 * PAGE, p + 400 * PAGE, 100 * PAGE);
	memcpy(p + 601 * PAGE, p + 600 * PAGE, PAGE);
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &ref));
	store_writer_stats(self->w, &st);
	EXPECT_EQ(n * PAGE, st.in);
	EXPECT_EQ(90 * PAGE, st.zero);
	EXPECT_EQ(101 * PAGE, st.known);
	EXPECT_EQ((n - 191) * PAGE, st.fresh);
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &again));
	EXPECT_EQ((n - 191) * PAGE, fresh(self->w));
	EXPECT_EQ(0, memcmp(&ref, &again, sizeof(ref)));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, compare(self->s, &again, p, n * PAGE));

	/* By another handle, later. */
	uint64_t before = stored(self->w);
	struct store *s = open_store(self->dir, STORE_RW);
	struct store_writer *w;

	ASSERT_EQ(0, store_writer_open(s, STORE_ONE_THREAD, &w));
	ASSERT_EQ(0, put_at(w, p, n * PAGE, &again));
	ASSERT_EQ(0, store_writer_flush(w));
	EXPECT_EQ(0, fresh(w));
	EXPECT_EQ(0, stored(w));
	EXPECT_EQ(0, memcmp(&ref, &again, sizeof(ref)));
	/* Index, map and foot; or less than what went in. */
	EXPECT_GE(variant->zstd ? (n - 191) * PAGE * 7 / 8 : (n - 191 + 6) * PAGE, before);
	store_writer_close(w);
	store_close(s);
	free(p);
}

/* The figure of performance.md §3, on a smaller dump: all that is added, by the files' sizes. */
TEST_F(store, a_second_dump_costs_what_has_changed)
{
	size_t n = 16384, changed = 0;
	uint8_t *p = malloc(n * PAGE);
	struct store_part part = { .name = "memory" };
	struct store_stats before, after;
	char id[STORE_ID];

	fill(p, n * PAGE, 77);
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &part.ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "{}", id));
	ASSERT_EQ(0, store_stats(self->s, &before));
	for (size_t i = 0; i < n; i++)
		if (rnd() % 100 < 3) {
			for (size_t j = 0; j < PAGE; j++)
				p[i * PAGE + j] = rnd() >> 17;
			changed += PAGE;
		}
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &part.ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "{}", id));
	ASSERT_EQ(0, store_stats(self->s, &after));
	EXPECT_EQ(after.checkpoints, 2);
	/* And a block for the second checkpoint's file. */
	EXPECT_GE(changed * 103 / 100, after.segment_bytes - before.segment_bytes + PAGE);
	ASSERT_EQ(0, compare(self->s, &part.ref, p, n * PAGE));
	free(p);
}

TEST_F(store, digests_link_what_is_there)
{
	size_t n = 500;
	struct store_digest *d = malloc(n * sizeof(*d)), *e = malloc(n * sizeof(*e));
	uint8_t *p = malloc(n * PAGE), *missing = malloc(n);
	struct store_object *o;
	struct store_reader *r;
	struct store_ref ref;

	fill(p, n * PAGE, 3);
	ASSERT_EQ(0, put_at(self->w, p, 200 * PAGE, &ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	memset(p + 50 * PAGE, 0, 10 * PAGE);
	for (size_t i = 0; i < n; i++)
		d[i] = store_hash(self->s, p + i * PAGE);
	ASSERT_EQ(0, store_object_begin(self->w, &o));
	memset(missing, 0xee, n);
	ASSERT_EQ(300, store_object_digests(o, 0, d, n, missing));
	for (size_t i = 0; i < n; i++) {
		EXPECT_EQ(i >= 200, missing[i]);
		if (missing[i])
			ASSERT_EQ(0, store_object_write(o, i * PAGE, p + i * PAGE, PAGE));
	}
	ASSERT_EQ(0, store_object_end(o, n * PAGE, &ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, compare(self->s, &ref, p, n * PAGE));
	ASSERT_EQ(0, store_object_open(self->s, &ref, &r));
	ASSERT_EQ(0, store_digests(r, 7 * PAGE, e, n - 7));
	EXPECT_EQ(0, memcmp(d + 7, e, (n - 7) * sizeof(*d)));
	ASSERT_EQ(-EINVAL, store_digests(r, 7 * PAGE, e, n));
	store_reader_close(r);
	free(d);
	free(e);
	free(p);
	free(missing);
}

/* Pages from everywhere: the map has no rows, and is longer than a page. */
TEST_F(store, maps_of_any_disorder_come_back)
{
	size_t n = 20000;
	uint8_t *p = malloc(n * PAGE), *q = malloc(n * PAGE);
	struct store_ref ref;

	fill(p, n * PAGE, 31);
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &ref));
	for (size_t i = 0; i < n; i++) {
		size_t from = rnd() % n;

		if (rnd() % 7)
			memcpy(q + i * PAGE, p + from * PAGE, PAGE);
		else
			memset(q + i * PAGE, 0, PAGE);
	}
	ASSERT_EQ(0, put_at(self->w, q, n * PAGE, &ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, compare(self->s, &ref, q, n * PAGE));
	free(p);
	free(q);
}

/* ------------------------------------------------------------------------------ checkpoints */

static int count_one(void *arg, const char *id, uint64_t time)
{
	char (*ids)[STORE_ID] = arg;

	NEED(time);
	while (**ids)
		ids++;
	memcpy(*ids, id, STORE_ID);
	return 0;
}

TEST_F(store, checkpoints_are_found_by_id_and_time)
{
	char id[3][STORE_ID], listed[8][STORE_ID] = { "" };
	struct store_part parts[3] = { { .name = "b" }, { .name = "a/x" }, { .name = "c" } };
	const struct store_part *got;
	struct store_checkpoint *c;

	ASSERT_EQ(-ENOENT, store_checkpoint_open(self->s, "latest", &c));
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, put_at(self->w, &"hello"[i], 5 - i, &parts[i].ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, store_publish(self->s, parts, i + 1, "{\"a\": 1}", id[i]));
	ASSERT_EQ(0, store_list(self->s, count_one, listed));
	ASSERT_EQ(0, memcmp(listed, id, sizeof(id)));
	ASSERT_EQ(0, store_checkpoint_open(self->s, "latest", &c));
	EXPECT_STREQ(id[2], store_checkpoint_id(c));
	EXPECT_STREQ("{\"a\": 1}", store_checkpoint_json(c));
	ASSERT_EQ(3, store_checkpoint_parts(c, &got));
	EXPECT_STREQ("a/x", got[0].name);
	EXPECT_STREQ("b", got[1].name);
	ASSERT_EQ(0, compare(self->s, store_checkpoint_find(c, "a/x"), "ello", 4));
	EXPECT_EQ(NULL, store_checkpoint_find(c, "a"));
	store_checkpoint_close(c);
	id[1][8] = 0;
	ASSERT_EQ(0, store_checkpoint_open(self->s, id[1], &c));
	ASSERT_EQ(2, store_checkpoint_parts(c, &got));
	store_checkpoint_close(c);
	ASSERT_EQ(-ENOENT, store_checkpoint_open(self->s, "abc", &c));
	ASSERT_EQ(-ENOENT, store_checkpoint_open(self->s, "nothing", &c));
	ASSERT_EQ(0, store_remove(self->s, id[2]));
	ASSERT_EQ(-ENOENT, store_remove(self->s, id[2]));
	ASSERT_EQ(-ENOENT, store_checkpoint_open(self->s, id[2], &c));
	parts[2].name = "b";
	ASSERT_EQ(-EEXIST, store_publish(self->s, parts, 3, "", id[2]));
	parts[2].name = "two\nlines";
	ASSERT_EQ(-EINVAL, store_publish(self->s, parts, 3, "", id[2]));
}

/* ------------------------------------------------------------------------------ forged files */

static long scaled(long n)
{
	const char *s = getenv("SINGVGPU_SCALE");

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
	n /= 20;	/* one thread forges and reads */
#endif
#endif
	return s ? n * atol(s) : n;
}

/* Whoever can write to a store can write what has right checks, too: head and body, sealed. */
static void forge(struct store *s, const char *id, struct disk_head head, const void *body, size_t len,
		  bool check)
{
	char name[64];
	int fd;

	head.e = check ? store_check64(body, len) : head.e;
	store_head_seal(&head, CP_MAGIC, s);
	snprintf(name, sizeof(name), "cp/%s", id);
	fd = openat(s->dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	NEED(fd >= 0);
	NEED(write(fd, &head, sizeof(head)) == sizeof(head));
	NEED(write(fd, body, len) == (ssize_t)len);
	close(fd);
}

/* Reads all of a checkpoint that there is. */
static int use_checkpoint(struct store *s, const char *id)
{
	struct store_checkpoint *c;
	const struct store_part *got;
	volatile size_t sum = 0;
	int err = store_cp_load(s, id, &c);
	size_t n;

	if (err)
		return err;
	n = store_checkpoint_parts(c, &got);
	for (size_t i = 0; i < n; i++) {
		struct store_reader *r;
		char page[64];

		sum += strlen(got[i].name);
		store_checkpoint_find(c, got[i].name);
		if (!store_object_open(s, &got[i].ref, &r)) {
			sum += store_read(r, 0, page, sizeof(page));
			store_reader_close(r);
		}
	}
	sum += strlen(store_checkpoint_json(c));
	store_checkpoint_close(c);
	return 0;
}

/* One thing after the other that a manifest says and that is not so. */
TEST_F(store, a_manifest_that_lies_is_refused)
{
	char id[STORE_ID], other[STORE_ID] = "0123456789abcdef0123456789abcdef", name[64];
	struct store_part parts[2] = { { .name = "first" }, { .name = "second" } };
	struct store_ref body_ref;
	struct disk_head good, h;
	uint8_t file[4096], *body = file + sizeof(good), b[4096];
	size_t len;
	int fd;

	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, put_at(self->w, &"hello"[i], 5 - i, &parts[i].ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, parts, 2, "{}", id));
	snprintf(name, sizeof(name), "cp/%s", id);
	fd = openat(self->s->dir, name, O_RDONLY | O_CLOEXEC);
	len = read(fd, file, sizeof(file)) - sizeof(good);
	close(fd);
	memcpy(&good, file, sizeof(good));
	ASSERT_EQ(34 + 5 + 34 + 6 + 2, len);
	forge(self->s, id, good, body, len, true);
	ASSERT_EQ(0, use_checkpoint(self->s, id));

	edges_begin();
	/* Under another name; of another store; of another length; of another check. */
	forge(self->s, other, good, body, len, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, other));
	ASSERT_EQ(0, store_remove(self->s, other));
	self->s->super.c++;
	forge(self->s, id, good, body, len, true);
	self->s->super.c--;
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h = good;
	h.d++;
	forge(self->s, id, h, body, len, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h.d = 1ull << 32;
	forge(self->s, id, h, body, len, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h = good;
	h.e++;
	forge(self->s, id, h, body, len, false);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	/* More parts than there are; a name that is longer than the rest; half of a part. */
	h = good;
	h.a = 4 << 8;
	forge(self->s, id, h, body, len, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h.a = 0xffffff00;
	forge(self->s, id, h, body, len, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	memcpy(b, body, len);
	memcpy(b + 34 + 5 + 32, &(uint16_t){ 9 }, 2);
	forge(self->s, id, good, b, len, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	memcpy(b + 32, &(uint16_t){ 0xffff }, 2);
	forge(self->s, id, good, b, len, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	for (size_t l = 0; l < 34 + 5 + 34 + 6; l++) {
		h = good;
		h.d = l;
		forge(self->s, id, h, body, l, true);
		EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	}
	/* Cut short in the head, and too long for a manifest. */
	forge(self->s, id, good, body, 0, true);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	fd = openat(self->s->dir, name, O_WRONLY | O_CLOEXEC);
	for (int n = 63; n >= 0; n -= 21) {
		ASSERT_EQ(0, ftruncate(fd, n));
		EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	}
	ASSERT_EQ(0, ftruncate(fd, 1ll << 40));
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	close(fd);

	/* The body as an object: of another length, of another content, of a part of it, or none. */
	ASSERT_EQ(0, put_at(self->w, body, len, &body_ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	h = good;
	h.a |= CP_OBJECT;
	h.e = store_check64(body, len);
	forge(self->s, id, h, &body_ref, sizeof(body_ref), false);
	EXPECT_EQ(0, use_checkpoint(self->s, id));
	forge(self->s, id, h, &body_ref, sizeof(body_ref) - 1, false);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	memcpy(b, &body_ref, sizeof(body_ref));
	memset(b + sizeof(body_ref), 0, 8);
	forge(self->s, id, h, b, sizeof(body_ref) + 8, false);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h.d--;
	forge(self->s, id, h, &body_ref, sizeof(body_ref), false);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h.e = store_check64(body, len - 1);
	forge(self->s, id, h, &body_ref, sizeof(body_ref), false);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h.e = store_check64(body, len);
	h.d += 2;
	forge(self->s, id, h, &body_ref, sizeof(body_ref), false);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	h.d--;
	h.e++;
	forge(self->s, id, h, &body_ref, sizeof(body_ref), false);
	EXPECT_EQ(-EBADMSG, use_checkpoint(self->s, id));
	forge(self->s, id, good, body, len, true);
	EXPECT_EQ(0, use_checkpoint(self->s, id));
	edges_end();
}

/* Manifests with right checks and any content are refused, or can be read. */
TEST_F(store, manifests_of_any_content_do_no_harm)
{
	char id[STORE_ID], names[40][24];
	struct store_part parts[40];
	long refused = 0, n = scaled(3000);
	struct disk_head good, h;
	uint8_t file[16384], *body = file + sizeof(good), b[16384];
	size_t len;
	int fd, rc;

	for (int i = 0; i < 40; i++) {
		snprintf(names[i], sizeof(names[i]), "part/%d", i);
		parts[i].name = names[i];
		ASSERT_EQ(0, put_at(self->w, names[i], i % 3 ? 5 : 0, &parts[i].ref));
	}
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, parts, 40, "{\"a\": 1}", id));
	fd = openat(self->s->dir, "cp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	rc = openat(fd, id, O_RDONLY | O_CLOEXEC);
	len = read(rc, file, sizeof(file)) - sizeof(good);
	close(rc);
	close(fd);
	memcpy(&good, file, sizeof(good));
	seed(4);
	for (long i = 0; i < n; i++) {
		size_t l = i % 5 ? len : rnd() % (len + 1);

		h = good;
		memcpy(b, body, len);
		for (uint64_t k = rnd() % 4; k; k--) {
			size_t at = rnd() % (l + 1);

			b[at] = rnd() % 3 ? b[at] ^ 1u << rnd() % 8 : (uint8_t)rnd();
		}
		if (i % 4 == 0)
			h.a = (rnd() % 64) << 8 | (rnd() % 8 == 0);
		h.d = i % 7 ? l : rnd() % (l + 2);
		forge(self->s, id, h, b, l, true);
		if (i % 16 == 0)
			edges_begin();
		rc = use_checkpoint(self->s, id);
		edges_end();
		ASSERT_GE(0, rc);
		refused += rc < 0;
	}
	EXPECT_LT(n / 10, refused);
	EXPECT_GT(n, refused);
}

/* A map of any bytes is refused, or is one: its extents go up, and lie in its segments. */
TEST_F(store, maps_of_any_bytes_do_no_harm)
{
	struct map m = { .size = 40000 * PAGE + 77 }, got;
	long refused = 0, n = scaled(100000);
	struct bytes out = { 0 };
	uint64_t page = 0;
	uint8_t *b;

	m.ids = calloc(3, 8);
	m.nids = 3;
	m.ext = calloc(60, sizeof(*m.ext));
	seed(9);
	for (m.n = 0; m.n < 60; m.n++) {
		page += rnd() % 3;
		m.ext[m.n] = (struct extent){ page, 1 + rnd() % 600, rnd() % 3, rnd() % 15000 };
		page += m.ext[m.n].count;
	}
	ASSERT_EQ(0, store_map_encode(&m, &out));
	ASSERT_EQ(0, store_map_decode(out.p, out.len, &got));
	ASSERT_EQ(60, got.n);
	store_map_free(&got);
	b = malloc(out.len);
	for (long i = 0; i < n; i++) {
		size_t len = i % 5 ? out.len : rnd() % (out.len + 1);
		uint64_t before = 0, pages;
		uint8_t *exact;
		int rc;

		memcpy(b, out.p, out.len);
		for (uint64_t k = rnd() % 5; k; k--)
			b[rnd() % (i % 2 ? 40 : out.len)] = rnd() % 4 ? (uint8_t)rnd() : 0xff;
		if (i % 16 == 0)	/* it takes the time of ten without */
			edges_begin();
		exact = malloc(len);
		memcpy(exact, b, len);
		rc = store_map_decode(exact, len, &got);
		edges_end();
		ASSERT_EQ(true, rc == 0 || rc == -EBADMSG);
		refused += rc != 0;
		pages = rc ? 0 : got.size / PAGE + !!(got.size % PAGE);
		for (size_t k = 0; !rc && k < got.n; k++) {
			ASSERT_GE(got.ext[k].page, before);
			ASSERT_LT(0, got.ext[k].count);
			before = got.ext[k].page + got.ext[k].count;
			ASSERT_GE(pages, before);
			ASSERT_LT(got.ext[k].seg, got.nids);
			ASSERT_GE(SEG_SLOTS, got.ext[k].slot + (uint64_t)got.ext[k].count);
		}
		if (!rc)
			store_map_free(&got);
		free(exact);
	}
	EXPECT_LT(n / 10, refused);
	EXPECT_GT(n, refused);
	/* What lies behind the last run is zeros. */
	b = realloc(b, out.len + 2);
	memcpy(b, out.p, out.len);
	b[out.len] = 0;
	b[out.len + 1] = 0;
	EXPECT_EQ(0, store_map_decode(b, out.len + 2, &got));
	store_map_free(&got);
	b[out.len + 1] = 1;
	EXPECT_EQ(-EBADMSG, store_map_decode(b, out.len + 2, &got));
	b[0]++;		/* of another version */
	EXPECT_EQ(-EBADMSG, store_map_decode(b, out.len, &got));
	free(b);
	free(out.p);
	store_map_free(&m);
}

/* References that no writer gives. */
TEST_F(store, references_that_are_none_are_refused)
{
	static const int errors[9] = { -EINVAL, -EINVAL, -EINVAL, -EBADMSG, -EBADMSG, -ENODATA, -ENODATA,
				       -ENODATA, -ENODATA };
	struct store_ref ref, bad;
	struct store_reader *r;
	uint8_t *p = malloc(3 * MB);
	struct disk_ref d;

	fill(p, 3 * MB, 5);
	ASSERT_EQ(0, put_at(self->w, p, 3 * MB, &ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, compare(self->s, &ref, p, 3 * MB));
	for (int i = 0; i < 9; i++) {
		d = ref_get(&ref);
		switch (i) {
		case 0:		/* deeper than maps go */
			d.slot |= 0xffu << 24;
			break;
		case 1:		/* one page that is more than one */
			d.slot &= 0xffffff;
			break;
		case 2:
			d.size = 1ull << 63;
			break;
		case 3:		/* the map says another size */
			d.size -= 1;
			break;
		case 4:
			d.size += 4096;
			break;
		case 5:
			d.digest[0] ^= 1;
			break;
		case 6:
			d.digest[11] ^= 0x80;
			break;
		case 7:
			d.slot = (d.slot & 0xff000000) | 0xffffff;
			break;
		default:
			d.seg ^= 1;
		}
		memcpy(&bad, &d, sizeof(bad));
		r = NULL;
		EXPECT_EQ(errors[i], store_object_open(self->s, &bad, &r)) {
			TH_LOG("reference %d", i);
		}
	}
	free(p);
}

enum { RIGHT, WRONG_CHECK, OTHER_STORE };

/* A segment's file of `size` bytes that has this foot, sealed, and an index of zeros at h.c. */
static int use_segment(struct store *s, uint64_t id, struct disk_head h, uint64_t size, int what)
{
	size_t len = store_seg_index_len(h.a, h.d);
	uint8_t *index = calloc(1, len);
	int fd = memfd_create("segment", MFD_CLOEXEC), err;
	struct store_digest *d;
	struct disk_frame *f;
	struct disk_head foot;

	h.e = store_check64(index, len - sizeof(h)) + (what == WRONG_CHECK);
	s->super.c += what == OTHER_STORE;
	store_head_seal(&h, SEG_MAGIC, s);
	s->super.c -= what == OTHER_STORE;
	NEED(fd >= 0 && !ftruncate(fd, size));
	NEED(size < sizeof(h) || pwrite(fd, &h, sizeof(h), size - sizeof(h)) == sizeof(h));
	err = store_seg_read_index(s, fd, id, &foot, &d, &f);
	if (!err)
		free(d);
	close(fd);
	free(index);
	return err;
}

/* One thing after the other that a segment's foot says and that is not so. */
TEST_F(store, a_segment_that_lies_is_refused)
{
	const struct disk_head good = { .a = 3, .b = 77, .c = 3 * PAGE };
	const uint64_t size = 4 * PAGE;
	struct disk_head h = good;

	ASSERT_EQ(0, use_segment(self->s, 77, h, size, RIGHT));
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, size, WRONG_CHECK));
	EXPECT_NE(NULL, strstr(store_why()->text, "the index of"));
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 78, h, size, RIGHT));
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, size, OTHER_STORE));
	/* Cut short; one page longer. */
	for (uint64_t cut = 0; cut < PAGE; cut += 64) {
		EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, cut, RIGHT));
		EXPECT_NE(NULL, strstr(store_why()->text, "it is cut short"));
	}
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, size + 64, RIGHT));
	EXPECT_NE(NULL, strstr(store_why()->text, "it is cut short"));
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, size + PAGE, RIGHT));
	/* Without pages, and with more than any has. */
	h.a = 0;
	h.c = 0;
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, PAGE, RIGHT));
	h.a = SEG_SLOTS;
	h.c = h.a * PAGE;
	EXPECT_EQ(0, use_segment(self->s, 77, h, h.c + store_seg_index_len(h.a, 0), RIGHT));
	h.a++;
	h.c += PAGE;
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, h.c + store_seg_index_len(h.a, 0), RIGHT));
	/* Pages that are not all there; other frames than theirs; an index before the file. */
	h = good;
	h.c -= PAGE;
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, size - PAGE, RIGHT));
	h.d = 1;
	EXPECT_EQ(0, use_segment(self->s, 77, h, size - PAGE, RIGHT));
	h.d = 2;
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, size - PAGE, RIGHT));
	h = (struct disk_head){ .a = 1024, .b = 77, .d = 1024 / FRAME_SLOTS };
	h.c = PAGE - store_seg_index_len(h.a, h.d);
	EXPECT_EQ(-EBADMSG, use_segment(self->s, 77, h, PAGE, RIGHT));
	EXPECT_NE(NULL, strstr(store_why()->text, "or another file under its name"));
}

/* What did not change in a checkpoint of many parts is not stored again either. */
TEST_F(store, long_checkpoints_are_incremental)
{
	enum { N = 5000 };
	struct store_part *parts = calloc(N, sizeof(*parts));
	struct store_stats one, two;
	struct store_checkpoint *c;
	const struct store_part *got;
	char (*names)[24] = malloc(N * 24), id[STORE_ID];

	for (int i = 0; i < N; i++) {
		snprintf(names[i], 24, "files/%06d.data", (i * 7) % N);
		parts[i].name = names[i];
		ASSERT_EQ(0, put_at(self->w, &i, sizeof(i), &parts[i].ref));
	}
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, parts, N, "one", id));
	ASSERT_EQ(0, store_stats(self->s, &one));
	parts[77].ref = parts[78].ref;
	ASSERT_EQ(0, store_publish(self->s, parts, N, "two", id));
	ASSERT_EQ(0, store_stats(self->s, &two));
	EXPECT_GE(8 * PAGE, two.segment_bytes - one.segment_bytes);
	ASSERT_EQ(0, store_checkpoint_open(self->s, id, &c));
	ASSERT_EQ((size_t)N, store_checkpoint_parts(c, &got));
	for (int i = 0; i < N; i++)
		ASSERT_EQ(0, memcmp(store_checkpoint_find(c, names[i]), &parts[i].ref, 32));
	EXPECT_STREQ("two", store_checkpoint_json(c));
	store_checkpoint_close(c);
	ASSERT_EQ(0, verify(self->s, true));
	free(parts);
	free(names);
}

TEST_F(store, what_is_not_durable_is_not_published)
{
	struct store_part part = { .name = "a" };
	char id[STORE_ID];

	ASSERT_EQ(0, put_at(self->w, "x", 1, &part.ref));
	ASSERT_EQ(-ENODATA, store_publish(self->s, &part, 1, "", id));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "", id));
	part.ref.b[20] ^= 1;
	ASSERT_EQ(-ENODATA, store_publish(self->s, &part, 1, "", id));
	memset(&part.ref, 0x55, sizeof(part.ref));
	ASSERT_GT(0, store_publish(self->s, &part, 1, "", id));
}

/* A map that is durable, though what it maps is not: another writer has these pages. */
TEST_F(store, maps_of_what_is_not_durable_are_not_published)
{
	struct store_part part = { .name = "a" };
	struct map m = { .size = PAGE };
	struct bytes out = { 0 };
	uint8_t page[4096] = { 0 };
	struct store_writer *w;
	struct disk_ref d;
	char id[STORE_ID];

	ASSERT_EQ(0, put_at(self->w, "x", 1, &part.ref));
	d = ref_get(&part.ref);
	m.ids = &(uint64_t){ d.seg };
	m.nids = 1;
	m.ext = &(struct extent){ 0, 1, 0, d.slot & 0xffffff };
	m.n = 1;
	ASSERT_EQ(0, store_map_encode(&m, &out));
	memcpy(page, out.p, out.len);
	free(out.p);
	ASSERT_EQ(0, store_writer_open(self->s, STORE_ONE_THREAD, &w));
	ASSERT_EQ(0, put_at(w, page, sizeof(page), &part.ref));
	ASSERT_EQ(0, store_writer_flush(w));
	store_writer_close(w);
	d = ref_get(&part.ref);
	d.slot |= 1u << 24;		/* as a map */
	memcpy(&part.ref, &d, sizeof(d));
	EXPECT_EQ(-ENODATA, store_publish(self->s, &part, 1, "", id));
	EXPECT_NE(NULL, strstr(store_why()->text, "it was not flushed"));
	ASSERT_EQ(0, store_writer_flush(self->w));
	EXPECT_EQ(0, store_publish(self->s, &part, 1, "", id));
	/* And one that maps more than the segment has. */
	m.ids = &(uint64_t){ d.seg };
	m.ext = &(struct extent){ 0, 1, 0, 12345 };
	out = (struct bytes){ 0 };
	ASSERT_EQ(0, store_map_encode(&m, &out));
	memset(page, 0, sizeof(page));
	memcpy(page, out.p, out.len);
	free(out.p);
	ASSERT_EQ(0, put_at(self->w, page, sizeof(page), &part.ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	d = ref_get(&part.ref);
	d.slot |= 1u << 24;
	memcpy(&part.ref, &d, sizeof(d));
	EXPECT_EQ(-ENODATA, store_publish(self->s, &part, 1, "", id));
	EXPECT_NE(NULL, strstr(store_why()->text, "lacks pages"));
}


TEST_F(store, a_missing_segment_is_named)
{
	struct store_part part = { .name = "a" };
	struct store_verify_stats st;
	struct store *s;
	char id[STORE_ID];

	ASSERT_EQ(0, put_at(self->w, "x", 1, &part.ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "", id));
	shell("rm %s/seg/*", self->dir);
	s = open_store(self->dir, 0);
	ASSERT_EQ(-ENODATA, compare(s, &part.ref, "x", 1));
	ASSERT_NE(NULL, strstr(store_why()->text, "is missing"));
	ASSERT_EQ(-EBADMSG, store_verify(s, NULL, NULL, NULL, NULL, &st));
	ASSERT_EQ(2, st.problems);	/* the segment, and the part that needs it */
	store_close(s);
}

/* ------------------------------------------------------------------------------ several at once */

/* One of several processes: the same pages as the others', and some of its own. */
static void write_beside(const char *dir, int me, int rounds)
{
	size_t n = 3000;
	uint8_t *p = malloc(n * PAGE);
	struct store_part part = { .name = "a" };
	char id[STORE_ID];

	for (int i = 0; i < rounds; i++) {
		struct store *s = open_store(dir, STORE_RW | STORE_WAIT);
		struct store_writer *w;

		fill(p, n * PAGE, 100 + i);
		fill(p + n / 2 * PAGE, 100 * PAGE, me * 1000 + i);
		NEED_OK(store_writer_open(s, 0, &w));
		NEED_OK(put_at(w, p, n * PAGE, &part.ref));
		NEED_OK(store_writer_flush(w));
		NEED_OK(store_publish(s, &part, 1, "", id));
		store_writer_close(w);
		NEED(compare(s, &part.ref, p, n * PAGE) == 0);
		store_close(s);
	}
	free(p);
}

static pid_t start(void (*fn)(const char *, int, int), const char *dir, int me, int rounds)
{
	pid_t pid = fork();

	if (!pid) {
		fn(dir, me, rounds);
		_exit(0);
	}
	return pid;
}

static void finish(pid_t pid)
{
	int status;

	NEED(waitpid(pid, &status, 0) == pid);
	NEED(WIFEXITED(status) && !WEXITSTATUS(status));
}

TEST_F(store, two_processes_write_at_once)
{
	pid_t a = start(write_beside, self->dir, 1, 5), b = start(write_beside, self->dir, 2, 5);
	struct store_stats st;

	finish(a);
	finish(b);
	ASSERT_EQ(0, store_stats(self->s, &st));
	EXPECT_EQ(10, st.checkpoints);
	EXPECT_EQ(0, st.temporary_bytes);
	/* Neither saw all of the other's, but nothing of its own twice. */
	EXPECT_GE(10 * 3010, st.pages);
	ASSERT_EQ(0, verify(self->s, true));
}

TEST_F(store, a_writer_sees_what_others_finished)
{
	size_t n = SEG_SLOTS + 100;
	uint8_t *p = malloc(n * PAGE);
	struct store *s = open_store(self->dir, STORE_RW);
	struct store_writer *w;
	struct store_ref ref;

	/* Not what is under way: */
	fill(p, n * PAGE, 1);
	ASSERT_EQ(0, store_writer_open(s, 0, &w));
	ASSERT_EQ(0, put_at(self->w, p, 100 * PAGE, &ref));
	ASSERT_EQ(0, put_at(w, p, 100 * PAGE, &ref));
	EXPECT_EQ(100 * PAGE, fresh(w));
	ASSERT_EQ(0, store_writer_flush(w));
	/* But what is finished, from the next segment on that is begun. */
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, put_at(w, "new", 3, &ref));
	ASSERT_EQ(0, put_at(w, p, n * PAGE, &ref));
	EXPECT_EQ(101 * PAGE, fresh(w));
	ASSERT_EQ(0, store_writer_flush(w));
	ASSERT_EQ(0, compare(self->s, &ref, p, n * PAGE));
	store_writer_close(w);
	store_close(s);
	free(p);
}

TEST_F(store, what_was_not_flushed_leaves_nothing)
{
	struct store_stats st;
	struct store_writer *w;
	struct store_ref ref;
	uint8_t *p = malloc(2 * MB);

	fill(p, 2 * MB, 4);
	ASSERT_EQ(0, store_writer_open(self->s, 0, &w));
	ASSERT_EQ(0, put_at(w, p, 2 * MB, &ref));
	store_writer_close(w);
	ASSERT_EQ(0, store_stats(self->s, &st));
	EXPECT_EQ(0, st.segments);
	EXPECT_EQ(0, st.temporary_bytes);
	/* The same handle's next writer does not rely on it. */
	ASSERT_EQ(0, put_at(self->w, p, 2 * MB, &ref));
	EXPECT_EQ(2 * MB, fresh(self->w));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, compare(self->s, &ref, p, 2 * MB));
	free(p);
}

TEST_F(store, a_writer_does_not_rely_on_what_its_neighbour_may_drop)
{
	struct store_part part = { .name = "a" };
	struct store_writer *w;
	uint8_t *p = malloc(2 * MB);
	char id[STORE_ID];

	fill(p, 2 * MB, 14);
	ASSERT_EQ(0, store_writer_open(self->s, 0, &w));
	ASSERT_EQ(0, put_at(w, p, 2 * MB, &part.ref));
	ASSERT_EQ(0, put_at(self->w, p, 2 * MB, &part.ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	store_writer_close(w);
	ASSERT_EQ(0, compare(self->s, &part.ref, p, 2 * MB));
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "", id));
	ASSERT_EQ(0, verify(self->s, true));
	free(p);
}

/* ------------------------------------------------------------------------------ lanes */

#define LANES	 4
#define PART	 128		/* pages that a lane writes at once */
#define ALL	 24000ul	/* pages: more than a segment */
#define DISTINCT 17000ul	/* of them; each lane writes some that others write, too */

struct lane_work {
	struct store_object *o;
	const uint8_t *p;
	const struct store_digest *d;	/* NULL: the store hashes */
	size_t first;
	int err;
};

static void *write_lane(void *arg)
{
	struct lane_work *l = arg;

	for (size_t at = l->first; at < ALL && !l->err; at += LANES * PART) {
		size_t n = ALL - at < PART ? ALL - at : PART;

		l->err = l->d ? store_object_put(l->o, at * PAGE, l->p + at * PAGE, n, l->d + at) :
				store_object_write(l->o, at * PAGE, l->p + at * PAGE, n * PAGE);
	}
	l->err = l->err ?: store_object_flush(l->o);
	return NULL;
}

static void write_in_lanes(struct store_object *o, const uint8_t *p, const struct store_digest *d)
{
	struct lane_work l[LANES];
	pthread_t t[LANES];

	for (size_t i = 0; i < LANES; i++) {
		l[i] = (struct lane_work){ .p = p, .d = d, .first = i * PART };
		NEED_OK(store_object_lane(o, &l[i].o));
	}
	for (size_t i = 0; i < LANES; i++)
		NEED(pthread_create(&t[i], NULL, write_lane, &l[i]) == 0);
	for (size_t i = 0; i < LANES; i++) {
		NEED(pthread_join(t[i], NULL) == 0);
		NEED_OK(l[i].err);
	}
	for (size_t i = LANES; i--;)
		NEED_OK(store_object_join(o, l[i].o));
}

/* Written by the host's digests into a new store, and again by given ones. */
TEST_F(store, lanes_store_what_one_thread_stores)
{
	uint8_t *p = malloc(ALL * PAGE);
	struct store_digest *d = malloc(ALL * sizeof(*d));
	struct store_part part = { .name = "a" };
	struct store_object *o;
	char id[STORE_ID];

	fill(p, DISTINCT * PAGE, 21);
	memset(p + 300 * PAGE, 0, 10 * PAGE);
	/* The first of these follow their originals closely: lanes meet the same page at once. */
	for (size_t i = 0; i < PART; i++)
		memcpy(p + (PART + i) * PAGE, p + i * PAGE, PAGE);
	memcpy(p + DISTINCT * PAGE, p, (ALL - DISTINCT) * PAGE);
	for (size_t i = 0; i < ALL; i++)
		d[i] = store_hash(self->s, p + i * PAGE);
	for (int again = 0; again < 2; again++) {
		ASSERT_EQ(0, store_object_begin(self->w, &o));
		write_in_lanes(o, p, again ? d : NULL);
		ASSERT_EQ(0, store_object_end(o, 0, &part.ref));
		ASSERT_EQ(0, store_writer_flush(self->w));
		EXPECT_EQ((DISTINCT - 10 - PART) * PAGE, fresh(self->w));
		ASSERT_EQ(0, compare(self->s, &part.ref, p, ALL * PAGE));
	}
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "", id));
	ASSERT_EQ(0, verify(self->s, true));
	free(d);
	free(p);
}

TEST_F(store, digests_that_are_given_are_looked_at)
{
	struct store_digest d[64];
	struct store_object *o;
	uint8_t *p = malloc(64 * PAGE);

	fill(p, 64 * PAGE, 22);
	for (size_t i = 0; i < 64; i++)
		d[i] = store_hash(self->s, p + i * PAGE);
	d[0].lo++;
	ASSERT_EQ(0, store_object_begin(self->w, &o));
	ASSERT_EQ(-EINVAL, store_object_put(o, 17, p, 64, d));
	ASSERT_EQ(-EBADMSG, store_object_put(o, PAGE, p, 64, d));
	EXPECT_EQ(0, fresh(self->w));
	store_object_abort(o);
	free(p);
}

/* The object has linked its lane's pages, and the lane ends without making them durable. */
TEST_F(store, a_lane_that_is_dropped_ends_the_object)
{
	struct store_object *o, *lane;
	struct store_ref ref;
	uint8_t *p = malloc(2 * MB);

	fill(p, 2 * MB, 23);
	ASSERT_EQ(0, store_object_begin(self->w, &o));
	ASSERT_EQ(0, store_object_lane(o, &lane));
	ASSERT_EQ(0, store_object_write(lane, 0, p, 2 * MB));
	ASSERT_EQ(0, store_object_write(o, 2 * MB, p, 2 * MB));
	EXPECT_EQ(0, fresh(self->w));
	store_object_abort(lane);
	ASSERT_EQ(-ECANCELED, store_object_end(o, 0, &ref));
	ASSERT_EQ(-ECANCELED, store_writer_flush(self->w));
	free(p);
}

static _Atomic bool lane_fails;

static int fail_one_file(struct io_event *e)
{
	bool yes = true;

	return e->op == IO_CREATE && atomic_compare_exchange_strong(&lane_fails, &yes, false) ?
		-ENOSPC : 0;
}

TEST_F(store, what_a_lane_meets_ends_all)
{
	struct store_object *o, *lane[2];
	struct store_ref ref;
	uint8_t *p = malloc(4 * MB);

	fill(p, 4 * MB, 24);
	ASSERT_EQ(0, store_object_begin(self->w, &o));
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, store_object_lane(o, &lane[i]));
	store_io_hook = fail_one_file;
	lane_fails = true;
	ASSERT_EQ(-ENOSPC, store_object_write(lane[1], 0, p, PAGE));
	store_io_hook = NULL;
	EXPECT_EQ(false, atomic_load(&lane_fails));
	EXPECT_EQ(-ENOSPC, store_object_write(lane[0], 2 * MB, p, 2 * MB));
	EXPECT_NE(NULL, strstr(store_why()->text, "cannot make tmp/"));
	EXPECT_EQ(-ENOSPC, store_object_join(o, lane[0]));
	EXPECT_EQ(-ENOSPC, store_object_join(o, lane[1]));
	EXPECT_EQ(-ENOSPC, store_object_end(o, 0, &ref));
	EXPECT_EQ(-ENOSPC, store_writer_flush(self->w));
	free(p);
}

/* ------------------------------------------------------------------------------ gc */

TEST_F(store, gc_takes_what_nobody_needs)
{
	size_t n = 2000;
	uint8_t *p = malloc(n * PAGE);
	struct store_part part[2] = { { .name = "a" }, { .name = "b" } };
	struct store_gc_stats st;
	struct store_stats before, after;
	struct store *other;
	char id[2][STORE_ID];

	fill(p, n * PAGE, 1);
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &part[0].ref));
	ASSERT_EQ(0, put_at(self->w, p + n / 2 * PAGE, 400 * PAGE, &part[1].ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, part, 1, "", id[0]));
	ASSERT_EQ(0, store_publish(self->s, part + 1, 1, "", id[1]));
	fill(p, n * PAGE, 2);
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &part[0].ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(-EBUSY, store_gc(self->s, 75, 0, NULL, NULL, &st));
	store_writer_close(self->w);
	self->w = NULL;
	other = open_store(self->dir, 0);
	ASSERT_EQ(-EBUSY, store_gc(self->s, 75, 0, NULL, NULL, &st));
	store_close(other);
	shell("echo rest >%s/tmp/0123456789abcdef", self->dir);

	ASSERT_EQ(0, store_stats(self->s, &before));
	ASSERT_EQ(0, store_gc(self->s, 75, 0, NULL, NULL, &st));
	EXPECT_EQ(1, st.segments_removed);
	EXPECT_EQ(0, st.segments_rewritten);
	EXPECT_EQ(1, st.temporaries);
	ASSERT_EQ(0, store_remove(self->s, id[0]));
	ASSERT_EQ(0, store_gc(self->s, 75, 0, NULL, NULL, &st));
	EXPECT_EQ(1, st.segments_rewritten);
	ASSERT_EQ(0, store_stats(self->s, &after));
	EXPECT_GE(before.segment_bytes / 3, after.segment_bytes);
	EXPECT_EQ(after.segment_bytes, st.kept);
	fill(p, n * PAGE, 1);
	ASSERT_EQ(0, compare(self->s, &part[1].ref, p + n / 2 * PAGE, 400 * PAGE));
	ASSERT_EQ(0, verify(self->s, true));

	/* Nobody links what is gone, and what is there is found as ever. */
	ASSERT_EQ(0, store_gc(self->s, 75, 0, NULL, NULL, &st));
	EXPECT_EQ(0, st.segments_rewritten);
	ASSERT_EQ(0, store_writer_open(self->s, 0, &self->w));
	ASSERT_EQ(0, put_at(self->w, p, n * PAGE, &part[0].ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	EXPECT_LE((n - 400 - 2 * FRAME_SLOTS) * PAGE, fresh(self->w));
	EXPECT_GE((n - 400) * PAGE, fresh(self->w));
	ASSERT_EQ(0, compare(self->s, &part[0].ref, p, n * PAGE));
	free(p);
}

TEST_F(store, gc_touches_nothing_while_a_checkpoint_cannot_be_read)
{
	struct store_part part = { .name = "a" };
	struct store_gc_stats st;
	struct store_stats all;
	char id[STORE_ID], name[64];

	ASSERT_EQ(0, put_at(self->w, "x", 1, &part.ref));
	ASSERT_EQ(0, store_writer_flush(self->w));
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "", id));
	ASSERT_EQ(0, put_at(self->w, "y", 1, &part.ref));
	store_writer_close(self->w);
	self->w = NULL;
	snprintf(name, sizeof(name), "cp/%s", id);
	poke(self->dir, name, 70, "!", 1);
	ASSERT_EQ(-EBADMSG, store_gc(self->s, 75, 0, NULL, NULL, &st));
	ASSERT_EQ(0, store_stats(self->s, &all));
	ASSERT_EQ(1, all.segments);
	ASSERT_EQ(0, store_remove(self->s, id));
	ASSERT_EQ(0, store_gc(self->s, 75, 0, NULL, NULL, &st));
	ASSERT_EQ(1, st.segments_removed);
}

static void gc_beside(const char *dir, int me, int rounds)
{
	struct store_gc_stats st;

	(void)me;
	for (int i = 0; i < rounds; i++) {
		struct store *s = open_store(dir, STORE_RW | STORE_WAIT);

		NEED_OK(store_gc(s, 90, -1, NULL, NULL, &st));
		store_close(s);
	}
}

/* Removes the oldest checkpoints, so that there is something to clean up. */
static int remove_some(void *arg, const char *id, uint64_t time)
{
	int *n = arg;

	(void)time;
	if ((*n)++ % 2 == 0)
		NEED_OK(store_remove(*(struct store **)(n + 2), id));
	return 0;
}

static void remove_beside(const char *dir, int me, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		struct {
			int n[2];
			struct store *s;
		} a = { { me, 0 }, open_store(dir, STORE_RW | STORE_WAIT) };

		NEED_OK(store_list(a.s, remove_some, &a));
		store_close(a.s);
		usleep(20000);
	}
}

TEST_F(store, gc_races_with_writers_and_loses_nothing)
{
	pid_t pid[5];

	store_writer_close(self->w);
	self->w = NULL;
	store_close(self->s);
	pid[0] = start(write_beside, self->dir, 1, 6);
	pid[1] = start(write_beside, self->dir, 2, 6);
	pid[2] = start(gc_beside, self->dir, 0, 8);
	pid[3] = start(gc_beside, self->dir, 0, 8);
	pid[4] = start(remove_beside, self->dir, 0, 5);
	for (int i = 0; i < 5; i++)
		finish(pid[i]);
	self->s = open_store(self->dir, STORE_RW);
	ASSERT_EQ(0, verify(self->s, true));
}

/* ------------------------------------------------------------------------------ other users */

/* As another user in a store for both; a page that only pretends to be the same is not linked. */
TEST(another_users_pages_are_compared)
{
	struct store_digest d;
	struct store_writer *w;
	struct store_object *o;
	struct store_ref ref;
	struct place at = { 0 }, place;
	uint64_t new;
	struct store *s;
	uint8_t p[2 * 4096], missing[2];
	char dir[256];
	int status;

	if (geteuid())
		SKIP(return, "needs root, to be two users");
	snprintf(dir, sizeof(dir), "%s/s", new_scratch());
	ASSERT_EQ(0, chmod(scratch, 0755));
	ASSERT_EQ(0, mkdir(dir, 0755));
	ASSERT_EQ(0, chmod(dir, 0777));
	make_store(dir, 0);
	fill(p, sizeof(p), 6);
	if (!fork()) {
		NEED(setresuid(12345, 12345, 12345) == 0);
		s = open_store(dir, STORE_RW);
		NEED_OK(store_writer_open(s, 0, &w));
		NEED_OK(put_at(w, p, PAGE, &ref));
		/* A page under the digest of another. */
		d = store_hash(s, p + PAGE);
		memset(p + PAGE, 'f', PAGE);
		NEED(store_writer_put(w, &d, p + PAGE, 1, &at, &place, &new) == 0 && new == 1);
		NEED_OK(store_writer_flush(w));
		store_writer_close(w);
		store_close(s);
		_exit(0);
	}
	ASSERT_LT(0, wait(&status));
	ASSERT_EQ(0, status);
	s = open_store(dir, STORE_RW);
	s->owner = 54321;	/* root's store would trust root and its owner alone */
	ASSERT_EQ(0, store_writer_open(s, 0, &w));
	ASSERT_EQ(0, store_object_begin(w, &o));
	d = store_hash(s, p);
	ASSERT_EQ(1, store_object_digests(o, 0, &d, 1, missing));
	store_object_abort(o);
	ASSERT_EQ(0, put_at(w, p, 2 * PAGE, &ref));
	EXPECT_EQ(PAGE, fresh(w));
	ASSERT_EQ(0, store_writer_flush(w));
	ASSERT_EQ(0, compare(s, &ref, p, 2 * PAGE));
	store_writer_close(w);
	store_close(s);
	drop_scratch();
}

TEST_HARNESS_MAIN
