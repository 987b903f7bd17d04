// SPDX-License-Identifier: Apache-2.0
/*
 * store_claims.c - writers of one checkpoint store each page once, and rely on nothing that is lost
 */
#include "store_test.h"

#include <sys/syscall.h>

#define COMMON 20000ul	/* pages that all have: more than a segment */
#define OWN    300ul	/* pages that one has */
#define RANKS  4

FIXTURE(claims)
{
	char dir[256];
	struct store *s;	/* the conductor's: opened first, publishes */
	int table;		/* of the claims */
};

FIXTURE_VARIANT(claims)
{
	int zstd;
};

FIXTURE_VARIANT_ADD(claims, raw)
{
	.zstd = 0,
};

FIXTURE_VARIANT_ADD(claims, zstd)
{
	.zstd = 1,
};

FIXTURE_SETUP(claims)
{
	snprintf(self->dir, sizeof(self->dir), "%s/s", new_scratch());
	make_store(self->dir, variant->zstd);
	self->s = open_store(self->dir, STORE_RW);
	ASSERT_EQ(0, store_claims_make(self->s, COMMON * PAGE, &self->table));
}

FIXTURE_TEARDOWN(claims)
{
	close(self->table);
	store_close(self->s);
	drop_scratch();
}

/* Results of a forked writer. */
struct result {
	struct store_ref ref;
	uint64_t fresh;
	int err;
};

/* Rank r's memory: its own pages in the middle of the common ones, which each has in another order. */
static uint8_t *memory_of(int r)
{
	uint8_t *p = malloc((COMMON + OWN) * PAGE), *all = malloc(COMMON * PAGE);
	size_t shift = r * 5001 % COMMON;

	fill(all, COMMON * PAGE, 77);
	memcpy(p, all + shift * PAGE, (COMMON - shift) * PAGE);
	fill(p + (COMMON - shift) * PAGE, OWN * PAGE, 100 + r);
	memcpy(p + (COMMON - shift + OWN) * PAGE, all, shift * PAGE);
	free(all);
	return p;
}

static int write_parts(struct store_writer *w, const uint8_t *p, bool lanes, struct store_ref *ref)
{
	const size_t half = (COMMON + OWN) / 2 * PAGE, len = (COMMON + OWN) * PAGE;
	struct store_object *o, *lane;
	int err = store_object_begin(w, &o);

	if (err || !lanes) {
		err = err ?: store_object_write(o, 0, p, len);
	} else {
		err = store_object_lane(o, &lane) ?: store_object_write(lane, half, p + half, len - half);
		err = err ?: store_object_write(o, 0, p, half) ?: store_object_flush(lane);
		err = err ?: store_object_join(o, lane);
	}
	return err ?: store_object_end(o, 0, ref);
}

/* In a child. Rank r writes its memory; the others begin when all have been forked. */
static void write_rank(const char *dir, int table, int r, int start, struct result *to)
{
	uint8_t *p = memory_of(r);
	struct store *s = open_store(dir, STORE_RW);
	struct store_writer_stats st;
	struct store_writer *w;
	char c;

	NEED_OK(store_writer_open(s, 0, &w));
	if (table >= 0)
		NEED_OK(store_writer_claims(w, table, NULL, NULL));
	NEED(read(start, &c, 1) == 0);
	to->err = write_parts(w, p, r % 2, &to->ref) ?: store_writer_flush(w);
	store_writer_stats(w, &st);
	to->fresh = st.fresh;
	store_writer_close(w);
	store_close(s);
	free(p);
}

static struct result *shared_results(void)
{
	struct result *r = mmap(NULL, RANKS * sizeof(*r), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NEED(r != MAP_FAILED);
	return r;
}

TEST_F(claims, ranks_that_dump_at_once_store_each_page_once)
{
	struct result *r = shared_results();
	struct store_part part[RANKS];
	uint64_t fresh = 0;
	char id[STORE_ID];
	pid_t pid[RANKS];
	int start[2], status;

	ASSERT_EQ(0, pipe(start));
	for (int i = 0; i < RANKS; i++) {
		pid[i] = fork();
		if (!pid[i]) {
			close(start[1]);
			write_rank(self->dir, self->table, i, start[0], &r[i]);
			_exit(0);
		}
	}
	close(start[0]);
	close(start[1]);
	for (int i = 0; i < RANKS; i++) {
		ASSERT_EQ(pid[i], waitpid(pid[i], &status, 0));
		ASSERT_EQ(0, status);
		ASSERT_EQ(0, r[i].err);
		fresh += r[i].fresh;
	}
	/* An entry that is being written for too long costs a page. */
	EXPECT_LE((COMMON + RANKS * OWN) * PAGE, fresh);
	EXPECT_GE((COMMON + RANKS * OWN + 100) * PAGE, fresh);
	for (int i = 0; i < RANKS; i++) {
		uint8_t *p = memory_of(i);

		EXPECT_EQ(0, compare(self->s, &r[i].ref, p, (COMMON + OWN) * PAGE));
		part[i] = (struct store_part){ .name = (const char *[]){ "a", "b", "c", "d" }[i],
					       .ref = r[i].ref };
		free(p);
	}
	ASSERT_EQ(0, store_publish(self->s, part, RANKS, "", id));
	ASSERT_EQ(0, verify(self->s, true));
	munmap(r, RANKS * sizeof(*r));
}

/* ------------------------------------------------------------------------------ two by turns */

struct writer {
	struct store *s;
	struct store_writer *w;
	struct store_ref ref;
};

static int give_up(void *arg)
{
	int *left = arg;

	return (*left)-- ? 0 : -EINTR;
}

static struct writer writer_open(const char *dir, int table, int *patience)
{
	struct writer a = { .s = open_store(dir, STORE_RW) };

	NEED_OK(store_writer_open(a.s, STORE_ONE_THREAD, &a.w));
	NEED_OK(store_writer_claims(a.w, table, patience ? give_up : NULL, patience));
	return a;
}

static void writer_close(struct writer *a)
{
	store_writer_close(a->w);
	store_close(a->s);
}

static uint64_t fresh_of(const struct writer *a)
{
	struct store_writer_stats st;

	store_writer_stats(a->w, &st);
	return st.fresh;
}

TEST_F(claims, a_flush_waits_for_what_another_writer_promised)
{
	int patience = 5;
	struct writer a = writer_open(self->dir, self->table, NULL),
		      b = writer_open(self->dir, self->table, &patience);
	struct store_part part = { .name = "b" };
	uint8_t *p = malloc(2 * MB);
	char id[STORE_ID];

	fill(p, 2 * MB, 1);
	ASSERT_EQ(0, put_at(a.w, p, 2 * MB, &a.ref));
	ASSERT_EQ(0, put_at(b.w, p, 2 * MB, &b.ref));
	EXPECT_EQ(0, fresh_of(&b));
	/* Not durable: neither flushed nor published. */
	EXPECT_EQ(-EINTR, store_writer_flush(b.w));
	part.ref = b.ref;
	EXPECT_NE(0, store_publish(self->s, &part, 1, "", id));
	writer_close(&b);
	ASSERT_EQ(0, store_writer_flush(a.w));
	patience = 5;
	b = writer_open(self->dir, self->table, &patience);
	ASSERT_EQ(0, put_at(b.w, p, 2 * MB, &b.ref));
	EXPECT_EQ(0, fresh_of(&b));
	ASSERT_EQ(0, store_writer_flush(b.w));
	part.ref = b.ref;
	writer_close(&a);
	writer_close(&b);
	ASSERT_EQ(0, store_publish(self->s, &part, 1, "", id));
	ASSERT_EQ(0, compare(self->s, &part.ref, p, 2 * MB));
	ASSERT_EQ(0, verify(self->s, true));
	free(p);
}

/* Digests of a device: the other writer's pages are not missing. */
TEST_F(claims, digests_link_what_another_writer_promised)
{
	struct writer a = writer_open(self->dir, self->table, NULL),
		      b = writer_open(self->dir, self->table, NULL);
	struct store_digest d[512];
	struct store_object *o;
	uint8_t *p = malloc(2 * MB), missing[512];

	fill(p, 2 * MB, 2);
	for (size_t i = 0; i < 512; i++)
		d[i] = store_hash(self->s, p + i * PAGE);
	ASSERT_EQ(0, put_at(a.w, p, 1 * MB, &a.ref));
	ASSERT_EQ(0, store_object_begin(b.w, &o));
	ASSERT_EQ(256, store_object_digests(o, 0, d, 512, missing));
	EXPECT_EQ(0, missing[0]);
	EXPECT_EQ(0, missing[255]);
	EXPECT_EQ(1, missing[256]);
	ASSERT_EQ(0, store_object_put(o, 1 * MB, p + MB, 256, d + 256));
	ASSERT_EQ(0, store_object_end(o, 0, &b.ref));
	ASSERT_EQ(0, store_writer_flush(a.w));
	ASSERT_EQ(0, store_writer_flush(b.w));
	ASSERT_EQ(0, compare(b.s, &b.ref, p, 2 * MB));
	writer_close(&a);
	writer_close(&b);
	free(p);
}

TEST_F(claims, a_writer_that_is_closed_ends_the_others)
{
	struct writer a = writer_open(self->dir, self->table, NULL),
		      b = writer_open(self->dir, self->table, NULL);
	uint8_t *p = malloc(2 * MB);

	fill(p, 2 * MB, 3);
	ASSERT_EQ(0, put_at(a.w, p, 2 * MB, &a.ref));
	ASSERT_EQ(0, put_at(b.w, p, 2 * MB, &b.ref));
	writer_close(&a);
	EXPECT_EQ(-ECANCELED, store_writer_flush(b.w));
	EXPECT_NE(NULL, strstr(store_why()->text, "has failed"));
	writer_close(&b);
	/* Nobody relies on its claims from then on. */
	b = writer_open(self->dir, self->table, NULL);
	ASSERT_EQ(0, put_at(b.w, p, 2 * MB, &b.ref));
	ASSERT_EQ(0, store_writer_flush(b.w));
	ASSERT_EQ(0, compare(b.s, &b.ref, p, 2 * MB));
	writer_close(&b);
	free(p);
}

TEST_F(claims, a_writer_that_is_killed_ends_the_others)
{
	uint8_t *p = malloc(2 * MB);
	struct writer b;
	int up[2], status;
	pid_t pid;
	char c;

	fill(p, 2 * MB, 4);
	ASSERT_EQ(0, pipe(up));
	pid = fork();
	if (!pid) {
		struct writer a = writer_open(self->dir, self->table, NULL);

		NEED_OK(put_at(a.w, p, 2 * MB, &a.ref));
		NEED(write(up[1], "", 1) == 1);
		for (;;)
			pause();
	}
	ASSERT_EQ(1, read(up[0], &c, 1));
	b = writer_open(self->dir, self->table, NULL);
	ASSERT_EQ(0, put_at(b.w, p, 2 * MB, &b.ref));
	EXPECT_EQ(0, fresh_of(&b));
	kill(pid, SIGKILL);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(-EOWNERDEAD, store_writer_flush(b.w));
	EXPECT_NE(NULL, strstr(store_why()->text, "has died"));
	writer_close(&b);
	close(up[0]);
	close(up[1]);
	free(p);
}

/* ------------------------------------------------------------------------------ a table that lies */

/* Where the table's parts are (claims.c). */
#define SEGS_AT	   4096ul
#define ENTRIES_AT (SEGS_AT + 65536 * 16)

static uint64_t *map_table(int fd, size_t *len)
{
	struct stat st;
	uint64_t *t;

	NEED_OK(fstat(fd, &st));
	*len = st.st_size;
	t = mmap(NULL, *len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(t != MAP_FAILED);
	return t;
}

TEST_F(claims, what_others_promise_is_compared)
{
	struct writer a = writer_open(self->dir, self->table, NULL),
		      b = writer_open(self->dir, self->table, NULL);
	uint8_t *p = malloc(2 * MB);
	uint64_t *t, moved = 0;
	size_t len;

	fill(p, 2 * MB, 5);
	ASSERT_EQ(0, put_at(a.w, p, 2 * MB, &a.ref));
	ASSERT_EQ(0, store_writer_flush(a.w));
	t = map_table(self->table, &len);
	/* Each page in the slot of another one. */
	for (size_t i = ENTRIES_AT / 8; i < len / 8; i += 2)
		if (t[i] && ++moved)
			t[i + 1] ^= 1;
	EXPECT_LE(512, moved);
	ASSERT_EQ(0, put_at(b.w, p, 2 * MB, &b.ref));
	EXPECT_EQ(-EBADMSG, store_writer_flush(b.w));
	EXPECT_NE(NULL, strstr(store_why()->text, "promised"));
	munmap(t, len);
	writer_close(&a);
	writer_close(&b);
	free(p);
}

/* An entry whose digest only begins like the page's, and segments without number: each writer stores its own. */
TEST_F(claims, what_is_not_promised_is_stored)
{
	uint8_t *p = malloc(2 * MB);
	uint64_t *t;
	size_t len;

	t = map_table(self->table, &len);
	for (int turn = 0; turn < 3; turn++) {
		struct writer a = writer_open(self->dir, self->table, NULL), b;

		fill(p, 2 * MB, 50 + turn);
		if (turn == 2)
			t[3] = 65536;	/* all that there can be have been begun */
		ASSERT_EQ(0, put_at(a.w, p, 2 * MB, &a.ref));
		/* Not durable: a page that is known to the store is stored by nobody. */
		for (size_t i = ENTRIES_AT / 8; i < len / 8 && turn < 2; i += 2)
			if (t[i])
				t[i + 1] = turn ? 0 : t[i + 1] ^ 1ull << 40;
		b = writer_open(self->dir, self->table, NULL);
		ASSERT_EQ(0, put_at(b.w, p, 2 * MB, &b.ref));
		EXPECT_EQ(2 * MB, fresh_of(&b));
		EXPECT_EQ(0, store_writer_flush(b.w));
		EXPECT_EQ(0, compare(b.s, &b.ref, p, 2 * MB));
		if (!turn)
			ASSERT_EQ(0, store_writer_flush(a.w));	/* the first segment is there */
		writer_close(&a);
		writer_close(&b);
	}
	munmap(t, len);
	ASSERT_EQ(0, verify(self->s, true));
	free(p);
}

/* Either the flush fails, or the object is what was written. */
TEST_F(claims, tables_of_any_bytes_do_no_harm)
{
	uint8_t *p = malloc(1 * MB);
	uint64_t *t;
	size_t len;

	t = map_table(self->table, &len);
	for (int turn = 0; turn < 60; turn++) {
		int patience = 2;
		struct writer a = writer_open(self->dir, self->table, NULL),
			      b = writer_open(self->dir, self->table, &patience);
		int err;

		fill(p, MB, 1000 + turn);
		ASSERT_EQ(0, put_at(a.w, p, MB, &a.ref));
		if (turn % 2)
			ASSERT_EQ(0, store_writer_flush(a.w));
		for (int i = 0; i < 1 << turn % 12; i++) {
			size_t at = turn % 3 ? ENTRIES_AT / 8 + rnd() % ((len - ENTRIES_AT) / 8) :
					       3 + rnd() % (SEGS_AT / 8 + 2 * 100);

			if (turn % 3 == 1 && !t[at])
				continue;
			t[at] ^= turn % 4 ? 1ull << rnd() % 64 : rnd();
		}
		err = put_at(b.w, p, MB, &b.ref) ?: store_writer_flush(b.w);
		if (!err)
			EXPECT_EQ(0, compare(b.s, &b.ref, p, MB));
		writer_close(&a);
		writer_close(&b);
	}
	munmap(t, len);
	ASSERT_EQ(0, verify(self->s, true));
	free(p);
}

TEST_F(claims, what_is_no_table_is_refused)
{
	int fd = memfd_create("none", MFD_ALLOW_SEALING), other;
	struct store_writer *w;
	struct store *s;
	char dir[300];
	size_t len;
	uint64_t *t;

	ASSERT_EQ(0, store_writer_open(self->s, 0, &w));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, fd, NULL, NULL));
	ASSERT_EQ(0, ftruncate(fd, ENTRIES_AT + 65536 * 16));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, fd, NULL, NULL));
	/* The first page of one that is right, in a file that its maker could cut, or of another size. */
	t = map_table(self->table, &len);
	ASSERT_EQ(4096, pwrite(fd, t, 4096, 0));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, fd, NULL, NULL));
	EXPECT_NE(NULL, strstr(store_why()->text, "could be cut"));
	ASSERT_EQ(0, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, fd, NULL, NULL));
	ASSERT_EQ(0, ftruncate(fd, ENTRIES_AT + 3 * 65536 * 16));
	t[2] = 3 * 65536;	/* no power of two */
	ASSERT_EQ(4096, pwrite(fd, t, 4096, 0));
	t[2] = 65536;
	munmap(t, len);
	ASSERT_EQ(0, fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, fd, NULL, NULL));
	EXPECT_NE(NULL, strstr(store_why()->text, "wrong size"));
	ASSERT_EQ(4, pwrite(fd, "none", 4, 0));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, fd, NULL, NULL));
	EXPECT_NE(NULL, strstr(store_why()->text, "is none"));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, open("/dev/null", O_RDWR), NULL, NULL));
	t = map_table(self->table, &len);
	t[2] *= 2;
	EXPECT_EQ(-EINVAL, store_writer_claims(w, self->table, NULL, NULL));
	munmap(t, len);
	/* A store of its own has other segments. */
	snprintf(dir, sizeof(dir), "%s2", self->dir);
	make_store(dir, 0);
	s = open_store(dir, STORE_RW);
	ASSERT_EQ(0, store_claims_make(s, MB, &other));
	EXPECT_EQ(-EINVAL, store_writer_claims(w, other, NULL, NULL));
	EXPECT_NE(NULL, strstr(store_why()->text, "another store"));
	close(other);
	close(fd);
	store_close(s);
	store_writer_close(w);
}

/* ------------------------------------------------------------------------------ the table itself */

/* What the table's locks are asked by: a test may do something in between. */
static void (*at_look)(void);

int fcntl(int fd, int cmd, ...)
{
	va_list ap;
	void *arg;
	int rc;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	rc = syscall(SYS_fcntl, fd, cmd, arg);
	if (cmd == F_OFD_GETLK && at_look)
		at_look();
	return rc;
}

static struct store_digest digest(uint64_t hi, uint64_t lo)
{
	return (struct store_digest){ .hi = hi, .lo = lo };
}

FIXTURE(table)
{
	char dir[256];
	struct store *s;
	int fd;
	struct claims *a, *b;
	uint64_t *t;
	size_t len;
};

FIXTURE_SETUP(table)
{
	snprintf(self->dir, sizeof(self->dir), "%s/s", new_scratch());
	make_store(self->dir, 0);
	self->s = open_store(self->dir, STORE_RW);
	ASSERT_EQ(0, store_claims_make(self->s, 0, &self->fd));
	ASSERT_EQ(0, store_claims_open(self->s, self->fd, &self->a));
	ASSERT_EQ(0, store_claims_open(self->s, self->fd, &self->b));
	self->t = map_table(self->fd, &self->len);
}

FIXTURE_TEARDOWN(table)
{
	at_look = NULL;
	munmap(self->t, self->len);
	store_claims_close(self->a);
	store_claims_close(self->b);
	close(self->fd);
	store_close(self->s);
	drop_scratch();
}

static size_t entries_taken(const uint64_t *t, size_t len)
{
	size_t n = 0;

	for (size_t i = ENTRIES_AT / 8; i < len / 8; i += 2)
		n += t[i] != 0;
	return n;
}

TEST_F(table, a_page_is_the_first_ones)
{
	struct claim other;
	int64_t n;

	for (int i = 0; i < 3; i++)
		store_claims_begin(self->a, 100 + i);
	n = store_claims_begin(self->a, 5);
	EXPECT_EQ(3, n);
	EXPECT_EQ(4, store_claims_begin(self->b, 6));
	EXPECT_FALSE(store_claims_take(self->a, digest(1ull << 40, 9), n, SEG_SLOTS - 1, &other));
	ASSERT_TRUE(store_claims_take(self->b, digest(1ull << 40, 9), 4, 7, &other));
	EXPECT_EQ(5, other.id);
	EXPECT_EQ(3, other.n);
	EXPECT_EQ(SEG_SLOTS - 1, other.slot);
	/* Who only looks finds it, too, and takes none. */
	EXPECT_TRUE(store_claims_take(self->b, digest(1ull << 40, 9), -1, 0, &other));
	EXPECT_FALSE(store_claims_take(self->b, digest(1ull << 40, 10), -1, 0, &other));
	EXPECT_FALSE(store_claims_take(self->b, digest(0, 0), 4, 7, &other));
	EXPECT_EQ(1, entries_taken(self->t, self->len));
	EXPECT_EQ(0, self->t[ENTRIES_AT / 8 + 3]);	/* of the second entry */
	/* The first slot of the first segment, and a digest of few bits. */
	EXPECT_FALSE(store_claims_take(self->a, digest(0, 1), 0, 0, &other));
	ASSERT_TRUE(store_claims_take(self->b, digest(0, 1), 4, 7, &other));
	EXPECT_EQ(100, other.id);
	EXPECT_EQ(0, other.n);
	EXPECT_EQ(0, other.slot);
}

/* Its entry, and those behind that, belong to others. */
TEST_F(table, a_page_may_be_in_an_entry_behind)
{
	const uint64_t lo = 3000ull << 32 | 9, hi[] = { 0, 1ull << 31, 1ull << 63 };
	uint64_t *entry = self->t + ENTRIES_AT / 8;
	int64_t n = store_claims_begin(self->a, 5);
	struct claim other;

	store_claims_begin(self->b, 6);
	/* Those that differ in the bits that an entry has are others, and come behind it. */
	for (int i = 0; i < 3; i++)
		EXPECT_FALSE(store_claims_take(self->a, digest(hi[i], lo), n, 1 + i, &other));
	for (int i = 0; i < 3; i++) {
		ASSERT_TRUE(store_claims_take(self->b, digest(hi[i], lo), 1, 7, &other));
		EXPECT_EQ(1u + i, other.slot);
	}
	/* So are those that differ in the other bits, and a segment that nobody has begun is none. */
	EXPECT_FALSE(store_claims_take(self->b, digest(0, lo + 1), 1, 7, &other));
	entry[2 * 4000] = 5;
	entry[2 * 4000 + 1] = 1ull << 30 | 1000 << 14;
	EXPECT_FALSE(store_claims_take(self->b, digest(4000, 5), -1, 0, &other));
	entry[2 * 4000] = entry[2 * 3003] = 0;
	/* The first entry is behind the last; 128 are looked at. */
	for (int i = 0; i < 200; i++) {
		entry[2 * ((65500 + i) % 65536)] = 77;
		if (i == 35)
			EXPECT_FALSE(store_claims_take(self->a, digest(65535, 4), n, 8, &other));
		if (i == 35)
			EXPECT_EQ(4, entry[0]);
	}
	EXPECT_FALSE(store_claims_take(self->a, digest(65536 + 36, 6), n, 5, &other));
	EXPECT_FALSE(store_claims_take(self->b, digest(65536 + 36, 6), 1, 7, &other));
	EXPECT_EQ(203, entries_taken(self->t, self->len));
	EXPECT_FALSE(store_claims_take(self->a, digest(65536 + 37, 8), n, 4, &other));
	ASSERT_TRUE(store_claims_take(self->b, digest(65536 + 37, 8), 1, 7, &other));
	EXPECT_EQ(4, other.slot);
	EXPECT_EQ(204, entries_taken(self->t, self->len));
}

TEST_F(table, who_has_begun_a_segment_ends_it)
{
	struct claim other;
	int64_t n = store_claims_begin(self->a, 5), m = store_claims_begin(self->a, 6), last = store_claims_begin(self->a, 7);

	EXPECT_EQ(-EAGAIN, store_claims_state(self->b, n));
	EXPECT_EQ(-EAGAIN, store_claims_state(self->b, m));
	EXPECT_FALSE(store_claims_take(self->a, digest(0, 1), n, 1, &other));
	EXPECT_FALSE(store_claims_take(self->a, digest(0, 2), m, 1, &other));
	store_claims_end(self->a, -1, true);
	EXPECT_EQ(0, self->t[SEGS_AT / 8 - 1]);
	store_claims_end(self->a, n, true);
	EXPECT_EQ(0, store_claims_state(self->b, n));
	EXPECT_EQ(-EAGAIN, store_claims_state(self->b, m));
	EXPECT_TRUE(store_claims_take(self->b, digest(0, 1), last, 1, &other));
	store_claims_end(self->a, m, false);
	EXPECT_EQ(-ECANCELED, store_claims_state(self->b, m));
	EXPECT_FALSE(store_claims_take(self->b, digest(0, 2), last, 1, &other));
	EXPECT_EQ(-EAGAIN, store_claims_state(self->b, last));
	store_claims_close(self->a);
	self->a = NULL;
	EXPECT_EQ(-EOWNERDEAD, store_claims_state(self->b, last));
	EXPECT_EQ(0, store_claims_state(self->b, n));
	/* One that nobody has begun has no owner, nor has a state that is none. */
	EXPECT_EQ(-EOWNERDEAD, store_claims_state(self->b, 1000));
	self->t[(SEGS_AT + 1000 * 16) / 8 + 1] = 7;
	EXPECT_EQ(-ECANCELED, store_claims_state(self->b, 1000));
}

static struct claims *ending;
static bool ends_durable;

static void end_it(void)
{
	at_look = NULL;
	store_claims_end(ending, 0, ends_durable);
}

/* It ends while another one looks whether its writer is still there. */
TEST_F(table, a_segment_that_ends_meanwhile_has_not_lost_its_writer)
{
	for (int i = 0; i < 2; i++) {
		struct store *s = self->s;
		int fd;

		ASSERT_EQ(0, store_claims_make(s, 0, &fd));
		store_claims_close(self->a);
		store_claims_close(self->b);
		ASSERT_EQ(0, store_claims_open(s, fd, &self->a));
		ASSERT_EQ(0, store_claims_open(s, fd, &self->b));
		close(fd);
		EXPECT_EQ(0, store_claims_begin(self->a, 5));
		ending = self->a;
		ends_durable = i;
		at_look = end_it;
		EXPECT_EQ(i ? 0 : -ECANCELED, store_claims_state(self->b, 0));
		EXPECT_TRUE(!at_look);
	}
}

TEST_F(table, there_are_so_many_segments)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 65536, .l_len = 1 };

	self->t[3] = 65534;
	EXPECT_EQ(65534, store_claims_begin(self->a, 5));
	EXPECT_EQ(65535, store_claims_begin(self->a, 6));
	EXPECT_EQ(-1, store_claims_begin(self->a, 7));
	EXPECT_EQ(-1, store_claims_begin(self->a, 8));
	EXPECT_EQ(0, fcntl(self->fd, F_OFD_GETLK, &l));
	EXPECT_EQ(F_UNLCK, l.l_type);
	EXPECT_EQ(-EAGAIN, store_claims_state(self->b, 65535));
	/* A number that another one has already. */
	self->t[3] = 65534;
	EXPECT_EQ(-1, store_claims_begin(self->b, 9));
	EXPECT_EQ(5, self->t[(SEGS_AT + 65534 * 16) / 8]);
}

TEST_F(table, it_has_room_for_a_third_more_than_is_written)
{
	static const struct { uint64_t pages, entries; } sizes[] = {
		{ 0, 65536 }, { 49152, 65536 }, { 49153, 131072 }, { 98304, 131072 }, { 98305, 262144 },
	};
	struct stat st;
	int fd;

	for (int i = 0; i < 5; i++) {
		ASSERT_EQ(0, store_claims_make(self->s, sizes[i].pages * PAGE, &fd));
		ASSERT_EQ(0, fstat(fd, &st));
		EXPECT_EQ(ENTRIES_AT + sizes[i].entries * 16, (uint64_t)st.st_size);
		/* Nobody can cut it, or keep the others from writing. */
		EXPECT_NE(0, ftruncate(fd, 4096));
		EXPECT_NE(0, ftruncate(fd, st.st_size + 4096));
		EXPECT_NE(0, fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
		EXPECT_EQ(FD_CLOEXEC, fcntl(fd, F_GETFD));
		close(fd);
	}
}

TEST_HARNESS_MAIN
