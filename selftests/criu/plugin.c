// SPDX-License-Identifier: Apache-2.0
/*
 * plugin.c - the CRIU plugin's refusals and their messages; data that its images must not contain
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kselftest_harness.h>

#include "../harness/patience.h"
#include "criu.h"

FIXTURE(plugin) {
	struct run run;
};

FIXTURE_SETUP(plugin)
{
	const char *missing = criu_missing(RING_KMOD);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN(plugin)
{
	if (self->run.sh)
		run_free(&self->run);
}

static int begin(struct run *r, const char *mode)
{
	return run_begin(r, RING_KMOD, mode) || start_client(r) || progress(r) ? -1 : 0;
}

/* The dump must be refused, saying why, and the client go on. */
static int dump_refused(struct run *r, const char *why)
{
	return dump(r, DUMP_FAILS) || !log_says(r, "dump.log", why) || progress(r) ? -1 : 0;
}

TEST_F(plugin, refuses_a_proxys_end)
{
	struct run *r = &self->run;

	ASSERT_EQ(begin(r, "x"), 0);
	EXPECT_EQ(dump_refused(r, "has a proxy's end of channel"), 0);
	EXPECT_EQ(run_end(r), 0);
}

/* A second channel for the client's fd 4, at that distance from its own. */
static struct ring *second_channel(struct run *r, uint64_t distance)
{
	struct ring_params p = { .backend = RING_KMOD, .id = "second", .cookie = "second's",
				 .geo = RING_GEOMETRY_DEFAULT };
	struct ring *second;

	p.geo.va += distance;
	if (ring_create(&second, &p))
		return NULL;
	r->other_fd = ring_client_fd(second);
	return second;
}

TEST_F(plugin, refuses_two_channels_side_by_side)
{
	struct run *r = &self->run;
	struct ring *second = second_channel(r, 1ull << 30);

	ASSERT_NE(second, NULL);
	ASSERT_EQ(begin(r, "t"), 0);
	EXPECT_EQ(dump_refused(r, "two channels side by side"), 0);
	EXPECT_EQ(run_end(r), 0);
	close(r->other_fd);
	ring_close(second);
}

/* As ranks have them that a careless launcher has started. */
TEST_F(plugin, refuses_two_channels_of_one_address)
{
	struct run *r = &self->run;
	struct ring *second = second_channel(r, 0);

	ASSERT_NE(second, NULL);
	ASSERT_EQ(begin(r, ""), 0);
	EXPECT_EQ(dump_refused(r, "has files of two channels at"), 0);
	EXPECT_EQ(run_end(r), 0);
	close(r->other_fd);
	ring_close(second);
}

/* Without the plugin nothing is dumped that could not come back. */
TEST_F(plugin, is_missed)
{
	struct run *r = &self->run;

	r->no_plugin = true;
	ASSERT_EQ(begin(r, ""), 0);
	EXPECT_EQ(dump_refused(r, "Error"), 0);
	EXPECT_EQ(run_end(r), 0);
}

TEST_F(plugin, refuses_to_dump_when_the_proxy_is_gone)
{
	struct run *r = &self->run;

	ASSERT_EQ(run_begin(r, RING_KMOD, "a"), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(close_proxy(r), 0);
	EXPECT_EQ(dump(r, DUMP_FAILS), 0);
	EXPECT_TRUE(log_says(r, "dump.log", "its proxy is gone"));
}

TEST_F(plugin, names_what_is_wrong_with_a_restore)
{
	struct run *r = &self->run;
	int fd = -1;

	ASSERT_EQ(begin(r, ""), 0);
	ASSERT_EQ(command(r, CMD_FREEZE, NULL), 0);
	ASSERT_EQ(dump(r, 0), 0);
	ASSERT_EQ(close_proxy(r), 0);
	EXPECT_EQ(restore_fails(r, "no such channel, its cookie is another"), 0);

	ASSERT_EQ(renew_proxy(r), 0);
	r->how = COOKIE_NONE;
	EXPECT_EQ(restore_fails(r, "no cookie for channel"), 0);
	r->how = COOKIE_FILE_OTHERS;
	EXPECT_EQ(restore_fails(r, "no cookie for channel"), 0);
	r->how = COOKIE_FILE_BROKEN;
	EXPECT_EQ(restore_fails(r, "cookies:2: not 'ID COOKIE'"), 0);
	r->how = COOKIE_WRONG;
	EXPECT_EQ(restore_fails(r, "no such channel, its cookie is another"), 0);
	r->how = COOKIE_FILE;

	ASSERT_EQ(proxy_send(r->dir, CMD_CLIENT_FD, NULL, &fd), 0);
	EXPECT_EQ(restore_fails(r, "another client is attached"), 0);
	close(fd);
	r->generation++;

	/* None of this has spoilt anything. */
	ASSERT_EQ(restore(r), 0);
	ASSERT_EQ(watch_client(r), 0);
	ASSERT_EQ(command(r, CMD_THAW, NULL), 0);
	ASSERT_EQ(progress(r), 0);
	EXPECT_EQ(run_end(r), 0);
}

/* Calls fn for each file of the last dump; the sum of what it returns. */
static int each_image(struct run *r, int (*fn)(struct run *r, const char *path))
{
	char dir[96], path[400];
	struct dirent *e;
	int sum = 0;
	DIR *d;

	image_dir(r, dir, sizeof(dir));
	d = opendir(dir);
	while (d && (e = readdir(d))) {
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		if (e->d_name[0] != '.')
			sum += fn(r, path);
	}
	if (d)
		closedir(d);
	return sum;
}

static int holds_cookie(struct run *r, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st = { 0 };
	char *data;
	bool found;

	if (fd < 0 || fstat(fd, &st))
		return 1;
	data = malloc(st.st_size + 1);
	found = read(fd, data, st.st_size) != st.st_size ||
		memmem(data, st.st_size, r->cookie, sizeof(r->cookie));
	free(data);
	close(fd);
	return found;
}

static int of_another_version(struct run *r, const char *path)
{
	uint32_t version = 12;
	int fd = strstr(path, "/singvgpu-") ? open(path, O_WRONLY | O_CLOEXEC) : -1, done;

	(void)r;
	done = fd >= 0 && pwrite(fd, &version, sizeof(version), 8) == sizeof(version);
	close(fd);
	return done;
}

static int cut_short(struct run *r, const char *path)
{
	(void)r;
	return strstr(path, "/singvgpu-") && !truncate(path, 50);
}

TEST_F(plugin, keeps_secrets_out_of_images_and_refuses_other_versions)
{
	struct run *r = &self->run;

	ASSERT_EQ(begin(r, "o"), 0);
	ASSERT_EQ(dump(r, DUMP_LEAVE), 0);
	ASSERT_EQ(command(r, CMD_GO, NULL), 0);
	EXPECT_EQ(each_image(r, holds_cookie), 0);
	EXPECT_EQ(each_image(r, of_another_version), 2);
	ASSERT_EQ(kill_client(r), 0);
	EXPECT_EQ(restore_fails(r, "is of version 12, this plugin reads version 1"), 0);
	EXPECT_EQ(each_image(r, cut_short), 2);
	EXPECT_EQ(restore_fails(r, "is of version 12, this plugin reads version 1"), 0);
}

TEST_F(plugin, refuses_damaged_images)
{
	struct run *r = &self->run;

	ASSERT_EQ(begin(r, "o"), 0);
	ASSERT_EQ(dump(r, DUMP_LEAVE), 0);
	ASSERT_EQ(command(r, CMD_GO, NULL), 0);
	EXPECT_EQ(each_image(r, cut_short), 2);
	ASSERT_EQ(kill_client(r), 0);
	EXPECT_EQ(restore_fails(r, "is damaged"), 0);
}

TEST_F(plugin, brings_back_a_file_that_is_no_end)
{
	struct run *r = &self->run;

	ASSERT_EQ(begin(r, "o"), 0);
	ASSERT_EQ(run_move(r, MOVE_DRAIN), 0);
	EXPECT_EQ(run_end(r), 0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--script"))
		return script_main(argv[2]);
	criu_look();
	return test_harness_run(argc, argv);
}
