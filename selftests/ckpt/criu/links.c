// SPDX-License-Identifier: Apache-2.0
/*
 * links.c - what links.c reads of CRIU's images: names in them become private; forged images are refused
 */
#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "criu_i.h"
#include "images.h"

static char small[4096];
static size_t small_len;
static char dir[64];

/* ------------------------------------------------------------------------ images in memory */

static int open_small(void *arg, const char *name, void **object, uint64_t *size)
{
	*object = arg;
	*size = small_len;
	return strcmp(name, "small") ? -ENOENT : 0;
}

static int read_small(void *object, uint64_t off, void *data, size_t len)
{
	(void)object;
	memcpy(data, small + off, len);
	return 0;
}

static void close_small(void *object)
{
	(void)object;
}

static void add(const char *name, const char *image, size_t len)
{
	uint32_t head[2] = { strlen(name), 0 };
	uint64_t size = len;

	memcpy(small + small_len, head, 8);
	memcpy(small + small_len + 8, &size, 8);
	memcpy(small + small_len + 16, name, head[0]);
	memcpy(small + small_len + 16 + head[0], image, len);
	small_len += 16 + head[0] + len;
}

static size_t put_entry(char *to, const char *entry, uint8_t len)
{
	const uint32_t n = len;

	memcpy(to, &n, 4);
	memcpy(to + 4, entry, len);
	return 4 + len;
}

/* A regular file: { 1: 1, 2: id, 3: { 1: id, 6: name } }. */
static size_t put_file(char *to, int id, const char *name)
{
	char entry[256];
	int n = strlen(name);

	sprintf(entry, "%c%c%c%c%c%c%c%c%c%c%s", 8, 1, 16, id, 26, n + 4, 8, id, 50, n, name);
	return put_entry(to, entry, strlen(entry));
}

/* A file, one whose link is 3, that link, a ghost, and a pipe. */
static void fill(char *files, size_t *files_len, char *remaps, size_t *remaps_len)
{
	size_t n = 8, r = 8;

	memset(files, 1, 8);
	memset(remaps, 2, 8);
	n += put_file(files + n, 1, "/tmp/plain");
	n += put_file(files + n, 2, "/dev/shm/sem.x");
	n += put_file(files + n, 3, "/dev/shm/link_remap.3");
	n += put_file(files + n, 4, "tmp/.singvgpu-older.ghost");
	n += put_entry(files + n, "\x08\x02\x10\x05\x32\x01x", 7);
	r += put_entry(remaps + r, "\x08\x02\x10\x03\x18\x00", 6);
	r += put_entry(remaps + r, "\x08\x04\x10\x01\x18\x01", 6);
	*files_len = n;
	*remaps_len = r;
}

/* criu_links_rename(), and the names that it made, one behind the other. */
static int renamed(const struct criu_links *links, char *names)
{
	struct images_source source = { .open = open_small, .read = read_small,
					.close = close_small };
	struct criu_links made = { NULL, 0 };
	struct images *images;
	int err = images_serve(&images, dir, &source);

	if (err)
		return err;
	err = criu_links_rename(images, links, "tag", &made);
	for (size_t i = 0; names && i < made.n; i++)
		names = stpcpy(stpcpy(names, made.link[i].path), " ");
	criu_links_free(&made);
	images_close(images);
	unlink("streamer-serve.sock");
	return err;
}

FIXTURE(links) {
	char files[1024], remaps[256];
	size_t files_len, remaps_len;
	struct criu_link one;
	struct criu_links all;
};

FIXTURE_SETUP(links)
{
	strcpy(dir, "/tmp/svlinks.XXXXXX");
	ASSERT_NE(NULL, mkdtemp(dir));
	ASSERT_EQ(0, chdir(dir));
	fill(self->files, &self->files_len, self->remaps, &self->remaps_len);
	self->one = (struct criu_link){ .path = "/dev/shm/link_remap.3",
					.instead = "/dev/shm/.singvgpu-tag.link_remap.3" };
	self->all = (struct criu_links){ &self->one, 1 };
}

FIXTURE_TEARDOWN(links)
{
	ASSERT_EQ(0, chdir("/"));
	EXPECT_EQ(0, rmdir(dir));
}

static void pack(const char *files, size_t n, const char *remaps, size_t r)
{
	small_len = 0;
	add("files.img", files, n);
	add("remap-fpath.img", remaps, r);
}

TEST_F(links, only_names_that_are_gone_become_private)
{
	char names[512] = "";

	pack(self->files, self->files_len, self->remaps, self->remaps_len);
	EXPECT_EQ(0, renamed(&self->all, names));
	EXPECT_STREQ("/dev/shm/.singvgpu-tag.sem.x /dev/shm/.singvgpu-tag.link_remap.3 "
		     "/tmp/.singvgpu-tag.ghost ", names);
}

TEST_F(links, a_link_that_was_not_placed_keeps_its_name)
{
	static const struct criu_links none;
	char names[512] = "";

	pack(self->files, self->files_len, self->remaps, self->remaps_len);
	EXPECT_EQ(0, renamed(&none, names));
	EXPECT_STREQ("/dev/shm/.singvgpu-tag.sem.x /tmp/.singvgpu-tag.ghost ", names);
}

TEST_F(links, images_that_end_too_early_are_refused)
{
	int refused = 0;

	for (size_t n = 0; n < self->files_len; n++) {
		pack(self->files, n, self->remaps, self->remaps_len);
		refused += renamed(&self->all, NULL) == -EBADMSG;
	}
	/* All but those that end behind an entry. */
	EXPECT_EQ((int)self->files_len - 5, refused);
	small_len = 0;
	EXPECT_EQ(-EBADMSG, renamed(&self->all, NULL));
}

TEST_F(links, forged_images_reach_no_other_memory)
{
	char files[1024], remaps[256];
	int err;

	srand(1);
	for (int i = 0; i < 3000; i++) {
		memcpy(files, self->files, self->files_len);
		memcpy(remaps, self->remaps, self->remaps_len);
		for (int k = rand() % 4; k >= 0; k--) {
			files[8 + rand() % (self->files_len - 8)] = rand();
			if (!k)
				remaps[8 + rand() % (self->remaps_len - 8)] = rand();
		}
		pack(files, self->files_len, remaps, self->remaps_len);
		err = renamed(&self->all, NULL);
		EXPECT_TRUE(err == 0 || err == -EBADMSG);
	}
}

TEST_HARNESS_MAIN
