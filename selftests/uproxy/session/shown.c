// SPDX-License-Identifier: Apache-2.0
/*
 * shown.c - the file of a proxy's figures, which its user may cut off at any moment
 */
#include "../client.h"

#include <sys/mman.h>
#include <sys/stat.h>

static char path[64];

static int begin(struct client *c)
{
	snprintf(path, sizeof(path), "/tmp/uproxy-shown-%d", getpid());
	return client_start(c, (const char *[]){ "--stat", path, NULL }) ?: client_context(c);
}

/* Records, answers at once and answers by a callback of the driver: all of them are counted. */
static void work(struct __test_metadata *_metadata, struct client *c)
{
	EXPECT_EQ(CALL(c, SV_OP_X_MAP, (struct sv_map){ c->window, 2 * GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ c->window, 2 * GRANULE }), 0);
	for (int i = 0; i < 10; i++)
		EXPECT_EQ(ctx_sync(c), 0);
}

TEST(a_file_that_is_cut_off_ends_no_session)
{
	struct client c;

	ASSERT_EQ(begin(&c), 0);
	work(_metadata, &c);
	ASSERT_EQ(truncate(path, 0), 0);
	work(_metadata, &c);
	/* A file that is long enough again is not the one that is written to. */
	ASSERT_EQ(truncate(path, 4096), 0);
	work(_metadata, &c);
	EXPECT_EQ(client_end(&c), 0);
	unlink(path);
}

/* The first figure after the cut is stored by whatever thread comes to it first. */
TEST(it_may_be_cut_off_while_the_device_works)
{
	struct client c;

	for (int i = 0; i < 8; i++) {
		uint64_t at, len = 4 * GRANULE;

		ASSERT_EQ(begin(&c), 0);
		ASSERT_EQ(CALL(&c, SV_OP_X_MAP, (struct sv_map){ c.window, len }), 0);
		at = arena_take(&c, 4096);
		ASSERT_EQ(CALL(&c, SV_OP_X_PIN, (struct sv_pin){ at, 4096 }), 0);
		for (int n = 0; n < 20; n++)
			EXPECT_EQ(copy(&c, SV_STREAM_LEGACY, c.window, c.window + len / 2, len / 2), 0);
		ASSERT_EQ(truncate(path, 0), 0);
		EXPECT_EQ(ctx_sync(&c), 0);
		EXPECT_EQ(late_count(&c), 0);
		EXPECT_EQ(client_end(&c), 0);
	}
	unlink(path);
}

/* A fault elsewhere still ends the process: the handler is for that page alone. */
TEST(another_fault_is_none_of_its_business)
{
	struct client c;

	ASSERT_EQ(begin(&c), 0);
	EXPECT_EQ(kill(c.proxy, SIGBUS), 0);
	EXPECT_EQ(client_wait(&c), -SIGBUS);
	client_end(&c);
	unlink(path);
}

TEST_HARNESS_MAIN
