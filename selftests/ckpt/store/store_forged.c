// SPDX-License-Identifier: Apache-2.0
/*
 * store_forged.c - maps of objects that nobody has written, in a store that is sealed correctly
 *
 * Who writes a store's files can make them say anything. What such an object costs its reader must
 * stay within what the object's size allows: each test reads it with little memory.
 */
#include "store_test.h"

#include <sys/resource.h>

#define ID 0x1234ull
#define ROOM_MB 512

static uint8_t pages[4096][4096] __attribute__((aligned(4096)));
static uint32_t npages;
static char dir[256];
static struct store *s;

static uint32_t add_bytes(const struct bytes *b)
{
	uint32_t first = npages;

	memset(pages[first], 0, (b->len + PAGE - 1) / PAGE * PAGE);
	memcpy(pages[first], b->p, b->len);
	npages += (b->len + PAGE - 1) / PAGE;
	return first;
}

/* The head of a map. */
static struct bytes map_of(uint64_t size, unsigned int nids)
{
	struct bytes b = { 0 };
	uint64_t id = ID;

	NEED_OK(store_bytes_add(&b, "\1", 1));
	NEED_OK(store_bytes_varint(&b, size));
	NEED_OK(store_bytes_varint(&b, nids));
	for (unsigned int i = 0; i < nids; i++, id++)
		NEED_OK(store_bytes_add(&b, &id, sizeof(id)));
	return b;
}

static void run(struct bytes *b, uint64_t count, unsigned int kind)
{
	NEED_OK(store_bytes_varint(b, count << 2 | kind));
}

/* A run of kind 3: its place lies `far` behind the end of the last run. */
static void jump(struct bytes *b, uint64_t count, int64_t far)
{
	run(b, count, 3);
	NEED_OK(store_bytes_varint(b, (uint64_t)far << 1 ^ (uint64_t)(far >> 63)));
}

/* Writes the pages as one segment and returns a ref to one of them. */
static struct store_ref forge(uint64_t size, uint32_t slot, unsigned int depth)
{
	static struct store_digest digest[4096];
	static uint8_t index[128 * 1024];
	struct disk_ref r = { .size = size, .seg = ID, .slot = slot | depth << 24 };
	size_t len = store_seg_index_len(npages, 0);
	struct store_ref ref;
	char name[SEG_NAME], path[400];
	int fd;

	for (uint32_t i = 0; i < npages; i++)
		digest[i] = store_hash(s, pages[i]);
	store_seg_write_index(s, ID, npages, npages * PAGE, digest, NULL, 0, index);
	store_seg_name(ID, name);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	NEED(write(fd, pages, npages * PAGE) == (ssize_t)(npages * PAGE));
	NEED(write(fd, index, len) == (ssize_t)len);
	close(fd);
	memcpy(r.digest, &digest[slot], sizeof(r.digest));
	memcpy(&ref, &r, sizeof(ref));
	return ref;
}

/* Opens the object with ROOM_MB of memory; *why gets the failure. */
static int open_with_little(const struct store_ref *ref, struct why *why)
{
	struct rlimit all, little;
	struct store_reader *r = NULL;
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long used = 0;
	int err;

	NEED(f && fscanf(f, "%lu", &used) == 1);
	fclose(f);
	NEED_OK(getrlimit(RLIMIT_AS, &all));
	little = all;
	little.rlim_cur = used * PAGE + ROOM_MB * MB;
	NEED_OK(setrlimit(RLIMIT_AS, &little));
	err = store_object_open(s, ref, &r);
	*why = err ? *store_why() : (struct why){ 0 };
	store_reader_close(r);
	NEED_OK(setrlimit(RLIMIT_AS, &all));
	return err;
}

static void begin(void)
{
	snprintf(dir, sizeof(dir), "%s/s", new_scratch());
	make_store(dir, 0);
	s = open_store(dir, 0);
	npages = 0;
}

static void end(void)
{
	store_close(s);
	drop_scratch();
}

/* Two pages, whose map is said to be of 2 GiB: one page of it, over and over. */
TEST(a_small_object_has_no_large_map)
{
	struct bytes b = map_of(2048 * MB, 1);
	struct store_ref ref;
	uint32_t top;
	struct why why;

	begin();
	npages = 1;
	memset(pages[0], 0, PAGE);
	for (int i = 0; i < 1000; i++)
		jump(&b, 1, i ? -1 : 0);
	run(&b, 2048 * MB / PAGE - 1000, 0);
	top = add_bytes(&b);
	ref = forge(2 * PAGE, top, 2);
	EXPECT_EQ(-EBADMSG, open_with_little(&ref, &why));
	EXPECT_TRUE(!!strstr(why.text, "has a map of 2147483648 bytes: by its size it needs 4096 at most")) {
		printf("# %s\n", why.text);
	}
	free(b.p);
	end();
}

/* A map of a page in which few bytes stand for many rows: each run goes through all segments. */
TEST(runs_stand_for_no_more_data_than_there_can_be)
{
	unsigned int nids = 100000, i;
	uint64_t count = nids * (uint64_t)SEG_SLOTS, runs = 4000;
	struct bytes b = map_of(count * runs * PAGE, nids), up = { 0 };
	struct store_ref ref;
	uint32_t first, top, n;
	struct why why;

	begin();
	for (i = 0; i < runs; i++)
		jump(&b, count, i ? -(int64_t)count : 0);
	first = add_bytes(&b);
	n = npages - first;
	up = map_of(n * PAGE, 1);
	jump(&up, n, first);
	top = add_bytes(&up);
	ref = forge(count * runs * PAGE, top, 2);
	EXPECT_EQ(-EFBIG, open_with_little(&ref, &why));
	EXPECT_TRUE(!!strstr(why.text, "stands for more data than an object can have")) {
		printf("# %s\n", why.text);
	}
	free(b.p);
	free(up.p);
	end();
}

/* The worst that an honest writer can have: no two pages lie together, each in its own segment. */
TEST(an_honest_map_is_never_too_long)
{
	static const unsigned int sizes[] = { 1, 2, 3, 15, 16, 200, 5000 };
	struct extent *x = calloc(5000, sizeof(*x));
	uint64_t *ids = calloc(5000, sizeof(*ids));

	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++)
		for (int how = 0; how < 4; how++) {
			struct map m = { .ids = ids, .nids = sizes[k], .ext = x };
			struct bytes b = { 0 };

			for (unsigned int i = 0; i < sizes[k]; i++)
				x[m.n++] = (struct extent){ i * (how & 1 ? 2 : 1), 1, how & 2 ?
					(i * 2654435761u) % sizes[k] : i, i * 40503u % SEG_SLOTS };
			m.size = (x[m.n - 1].page + 1) * PAGE;
			NEED_OK(store_map_encode(&m, &b));
			EXPECT_LE(b.len, store_map_most(m.size));
			free(b.p);
		}
	free(x);
	free(ids);
	/* It grows with the size, and does not wrap at the largest. */
	EXPECT_EQ(PAGE, store_map_most(1));
	EXPECT_GT(store_map_most(INT64_MAX), INT64_MAX / PAGE);
}

/* Of sparse objects only the data counts. */
TEST(a_large_hole_is_no_data)
{
	uint64_t size = 1ull << 62;
	struct bytes b = map_of(size, 1);
	struct store_ref ref;
	uint32_t top;
	struct why why;

	begin();
	npages = 1;
	memset(pages[0], 7, PAGE);
	jump(&b, 1, 0);
	run(&b, size / PAGE - 1, 0);
	top = add_bytes(&b);
	ref = forge(size, top, 1);
	EXPECT_EQ(0, open_with_little(&ref, &why)) {
		printf("# %s\n", why.text);
	}
	free(b.p);
	end();
}

TEST_HARNESS_MAIN
