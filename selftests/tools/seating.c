// SPDX-License-Identifier: Apache-2.0
/*
 * seating.c - the table of who sits where: as `run` makes it, as its text is read, and as a restore changes it
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "seating.h"

#include "kselftest_harness.h"

static struct seating t, u;
static union {
	struct seating t;
	bool flag[offsetof(struct seating, taken) + SEATING_SEATS + 1];	/* the last one is behind the table */
} behind;

TEST(ranks_are_spread_over_the_devices)
{
	char text[64];

	seating_make(&t, 5, 2);
	ASSERT_EQ(t.ranks, 5);
	for (int r = 0; r < 5; r++) {
		EXPECT_EQ(t.rank[r].host, 0);
		EXPECT_EQ(t.rank[r].local, r);
		EXPECT_EQ(t.rank[r].first, r % 2);
		EXPECT_TRUE(seating_is_plain(&t, r));
		EXPECT_EQ(seating_local_size(&t, r), 5);
		for (int l = 0; l < SEATING_DEVICES; l++)
			EXPECT_EQ(seating_physical(&t, r, l), l);
	}
	EXPECT_EQ(seating_sharers(&t, 0, 0), 3);
	EXPECT_EQ(seating_sharers(&t, 0, 1), 2);
	EXPECT_EQ(seating_sharers(&t, 0, 2), 0);
	EXPECT_EQ(seating_sharers(&t, 1, 0), 0);
	seating_sharers_text(&t, 0, text, sizeof(text));
	EXPECT_STREQ(text, "3,2,0,0,0,0,0,0,0,0,0,0,0,0,0,0");
	EXPECT_STREQ(seating_master(&t), "127.0.0.1");
}

/* "0,0,1,1": the map of four devices; or "", and *why. */
static const char *map_of(const char *text, int devices, int here, struct why *why)
{
	uint8_t map[SEATING_DEVICES];
	static char out[64];
	struct seating_on on;

	*out = '\0';
	*why = (struct why){ 0 };
	if (seating_on_parse(text, &on))
		return "none";
	if (!seating_on_map(&on, devices, here, map, why))
		for (int l = 0; l < devices && l < SEATING_DEVICES; l++)
			snprintf(out + strlen(out), sizeof(out) - strlen(out), l ? ",%d" : "%d", map[l]);
	return out;
}

TEST(on_says_where_devices_are)
{
	static const char *const none[] = { "", ",", "x", "1x", "-1", "1.5", "1,,2", ",1", "1,2,", "16,", "1,16", "17", "99", "1 ",
		" 1", "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,0" };
	struct seating_on on = { .count = 7 };
	struct why why = { 0 };

	EXPECT_STREQ(map_of("1", 4, 4, &why), "0,0,0,0");
	EXPECT_STREQ(map_of("2", 4, 4, &why), "0,0,1,1");
	EXPECT_STREQ(map_of("3", 4, 4, &why), "0,0,1,2");
	EXPECT_STREQ(map_of("4", 4, 4, &why), "0,1,2,3");
	EXPECT_STREQ(map_of("16", 16, 16, &why), "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15");
	EXPECT_STREQ(map_of("3,", 4, 4, &why), "3,3,3,3");
	EXPECT_STREQ(map_of("0,", 1, 1, &why), "0");
	EXPECT_STREQ(map_of("15,0", 2, 0, &why), "15,0");
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		EXPECT_EQ(seating_on_parse(none[i], &on), -EINVAL) {
			TH_LOG("%s", none[i]);
		}
	}
	EXPECT_EQ(seating_on_parse("0", &on), -ERANGE);
	EXPECT_EQ(on.count, 7);
	EXPECT_STREQ(map_of("5", 4, 8, &why), "");
	EXPECT_NE(strstr(why.text, "the job has 4 devices"), NULL);
	EXPECT_STREQ(map_of("0,1", 4, 8, &why), "");
	EXPECT_NE(strstr(why.text, "a list of 2 devices, and the job has 4"), NULL);
	EXPECT_STREQ(map_of("4,", 4, 4, &why), "");
	EXPECT_NE(strstr(why.text, "no device 4 here, there are 4"), NULL);
	EXPECT_STREQ(map_of("2", 4, 1, &why), "");
	EXPECT_NE(strstr(why.text, "no device 1 here, there is 1"), NULL);
	EXPECT_STREQ(map_of("1", 0, 0, &why), "");
	EXPECT_STREQ(map_of("1", SEATING_DEVICES + 1, 0, &why), "");
}

TEST(a_map_is_that_of_all_ranks)
{
	static const uint8_t map[SEATING_DEVICES] = { 3, 1 };

	seating_make(&t, 3, 2);
	seating_put(&t, map);
	for (int r = 0; r < 3; r++) {
		EXPECT_EQ(seating_physical(&t, r, 0), 3);
		EXPECT_EQ(seating_physical(&t, r, 1), 1);
	}
	EXPECT_EQ(seating_sharers(&t, 0, 3), 2);
	EXPECT_EQ(seating_sharers(&t, 0, 1), 1);
}

TEST(ranks_of_several_hosts_are_told_apart)
{
	seating_make(&t, 4, 2);
	EXPECT_EQ(t.devices, 2);
	EXPECT_TRUE(seating_one_host(&t));
	t.rank[2].host = t.rank[3].host = 7;
	EXPECT_FALSE(seating_one_host(&t));
	EXPECT_EQ(seating_host(&t, 1), 0);
	EXPECT_EQ(seating_host(&t, 2), 7);
	EXPECT_EQ(seating_local_size(&t, 0), 2);
	EXPECT_EQ(seating_sharers(&t, 0, 0), 1);
	EXPECT_EQ(seating_sharers(&t, 7, 1), 1);
	/* by the physical number alone, whatever the program calls the device */
	seating_move(&t, 3, 1, 9);
	EXPECT_EQ(seating_sharers(&t, 7, 1), 0);
	EXPECT_EQ(seating_sharers(&t, 7, 9), 1);
	memset(&t, 0, sizeof(t));
	EXPECT_TRUE(seating_one_host(&t));
}

TEST(seats_are_given_once)
{
	seating_make(&t, 1, 1);
	EXPECT_EQ(seating_seat(&t, -1), 0);
	EXPECT_EQ(seating_seat(&t, -1), 1);
	EXPECT_EQ(seating_seat(&t, 1), -EAGAIN);
	EXPECT_EQ(seating_seat(&t, 7), 7);
	/* What is behind the table is nobody's seat. */
	memset(&behind, 0, sizeof(behind));
	EXPECT_EQ(seating_seat(&behind.t, SEATING_SEATS), -EAGAIN);
	behind.flag[sizeof(behind.flag) - 1] = true;
	seating_leave(&behind.t, SEATING_SEATS);
	EXPECT_TRUE(behind.flag[sizeof(behind.flag) - 1]);
	seating_leave(&t, 0);
	seating_leave(&t, -1);
	seating_leave(&t, SEATING_SEATS);
	EXPECT_EQ(seating_seat(&t, -1), 0);
	for (int i = 2; i < SEATING_SEATS; i++)
		if (i != 7)
			EXPECT_EQ(seating_seat(&t, -1), i);
	EXPECT_EQ(seating_seat(&t, -1), -EAGAIN);
	EXPECT_EQ(seating_seat(&t, SEATING_SEATS), -EAGAIN);
}

TEST(a_restore_changes_the_map)
{
	struct seating_where all = { .all = true, .first = 3 }, some = { .first = -1 };	/* what lies before `instead` is not 0 */

	/* rank R on first + R */
	EXPECT_EQ(seating_device(&all, 2, 0), 5);
	some.instead[0] = 1 + 2;
	EXPECT_EQ(seating_device(&some, 0, 0), 2);
	EXPECT_EQ(seating_device(&some, 0, 1), 1);
	EXPECT_EQ(seating_device(&some, 0, -1), -1);
	EXPECT_EQ(seating_device(&some, 0, SEATING_DEVICES), SEATING_DEVICES);
	/* what no session is on follows, for a list of devices alone */
	seating_make(&t, 2, 2);
	seating_instead(&t, &all);
	EXPECT_TRUE(seating_is_plain(&t, 0));
	seating_instead(&t, &some);
	EXPECT_EQ(seating_physical(&t, 0, 0), 2);
	EXPECT_EQ(seating_physical(&t, 1, 0), 2);
	EXPECT_EQ(seating_physical(&t, 1, 1), 1);
	EXPECT_FALSE(seating_is_plain(&t, 1));
	EXPECT_EQ(seating_sharers(&t, 0, 2), 1);
	EXPECT_EQ(seating_sharers(&t, 0, 0), 0);
	seating_move(&t, 1, 1, 2);
	EXPECT_EQ(seating_sharers(&t, 0, 2), 2);
	seating_move(&t, 1, 1, SEATING_DEVICES);	/* there is none */
	seating_move(&t, 1, SEATING_DEVICES, 1);
	seating_move(&t, 2, 0, 1);
	seating_move(&t, 1, -1, 1);
	EXPECT_EQ(seating_physical(&t, 1, 1), 2);
	EXPECT_EQ(seating_physical(&t, 2, 0), 0);
	/* nor does it reach what is beside the map */
	u = t;
	for (int n = SEATING_DEVICES; n < SEATING_DEVICES + 4; n++)
		seating_move(&t, 0, n, 1);
	EXPECT_EQ(memcmp(&t, &u, sizeof(t)), 0);
}

TEST(ranks_share_as_they_are_told)
{
	static const struct {
		enum seating_share share, how;
		bool slices;
	} is[] = {
		{ SHARE_AUTO, SHARE_UNSAID, false }, { SHARE_AUTO, SHARE_TOGETHER, false }, { SHARE_AUTO, SHARE_SLICES, true },
		{ SHARE_TOGETHER, SHARE_SLICES, false }, { SHARE_SLICES, SHARE_UNSAID, true }, { SHARE_NEVER, SHARE_SLICES, false },
	};

	seating_make(&t, 2, 1);
	for (size_t i = 0; i < sizeof(is) / sizeof(is[0]); i++) {
		seating_let_share(&t, is[i].share, is[i].how);
		EXPECT_EQ(t.share, is[i].share);
		EXPECT_EQ(t.slices, is[i].slices);
		EXPECT_EQ(seating_share_parse(seating_share_word(is[i].share)), is[i].share);
	}
	EXPECT_EQ(seating_share_parse(""), SHARE_UNSAID);
	EXPECT_EQ(seating_share_parse("Auto"), SHARE_UNSAID);
	EXPECT_EQ(seating_share_parse("autos"), SHARE_UNSAID);
}

TEST(its_text_is_read_or_refused)
{
	static const char *const bad[] = {
		"place", "place 0", "place 1 0 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"place 0 -1 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"place 0 1024 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"place 0 0 -1 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"place 0 0 256 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"place 0 0 0 16 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"place 0 0 0 -1 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"place 0 0 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14",
		"place 0 0 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,16",
		"place 0 0 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,-1",
		"place 0 0 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16",
		"place 0 0 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 ",
		"place 0 0 0 0 0;1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
		"logical ", "logical 0", "logical 17", "logical -1", "logical 2 ", "logical 2,3",
		"share ", "share auto", "share auto auto", "share auto never", "share some slices", "share auto slices ", "share  together",
	};
	char *text = NULL, *line, *save = NULL, again[128];
	size_t len;
	FILE *out;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		memset(&u, 0, sizeof(u));
		EXPECT_EQ(seating_read(&u, bad[i]), -EBADMSG)
			TH_LOG("%s", bad[i]);
		EXPECT_EQ(u.ranks, 0);
		EXPECT_EQ(u.devices, 0);
	}
	EXPECT_TRUE(seating_has("place 0") && seating_has("logical 0") && seating_has("share a b"));
	EXPECT_FALSE(seating_has("places 0") || seating_has("logic 0") || seating_has("shared"));
	seating_make(&t, 3, 2);
	seating_let_share(&t, SHARE_AUTO, SHARE_SLICES);
	seating_move(&t, 2, 1, 9);
	out = open_memstream(&text, &len);
	seating_write(&t, out);
	fclose(out);
	memset(&u, 0, sizeof(u));
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		snprintf(again, sizeof(again), "%s", line);
		ASSERT_TRUE(seating_has(line));
		EXPECT_EQ(seating_read(&u, line), 0);
		EXPECT_EQ(seating_read(&u, again), -EBADMSG);	/* twice */
	}
	EXPECT_EQ(memcmp(&t, &u, sizeof(t)), 0);
	/* Two ranks in one place. */
	EXPECT_EQ(seating_read(&u, "place 3 0 1 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"), -EBADMSG);
	EXPECT_EQ(seating_read(&u, "place 3 1 1 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"), 0);
	EXPECT_EQ(seating_local_size(&u, 3), 1);
	EXPECT_EQ(seating_local_size(&u, 0), 3);
	/* One rank too many. */
	u.ranks = SEATING_RANKS;
	EXPECT_EQ(seating_read(&u, "place 256 2 0 0 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"), -EBADMSG);
	EXPECT_EQ(u.ranks, SEATING_RANKS);
	free(text);
}

TEST_HARNESS_MAIN
