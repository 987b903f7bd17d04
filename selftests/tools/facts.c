// SPDX-License-Identifier: Apache-2.0
/*
 * facts.c - the part "job" of a checkpoint, with lies in it; the devices that a restore is given
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt_bring.h"
#include "ckpt_facts.h"
#include "job.h"

#include "kselftest_harness.h"

static struct ckpt_proxy proxy[2] = {
	{ .rank = 0, .client = 2, .info = { .window = 1 << 20, .window_len = 1 << 20 } },
	{ .rank = 1, .client = 3, .info = { .window = 1 << 20, .window_len = 1 << 20, .seat = 1 } },
};

static struct rundir_proxy of_job[2] = { { .rank = 0 }, { .rank = 1, .seat = 1 } };

/* What is read of the facts that are written. */
static int again(int ranks, struct why *why)
{
	struct ckpt_connection c = { .rank = 1 };
	struct ckpt_facts f = { .job = "job", .proxy = proxy, .proxies = 2, .connection = &c, .connections = 1 }, to;
	struct rundir_job job = { .ranks = ranks, .proxies = 2, .proxy = of_job };
	size_t len;
	char *text = facts_write(&f, &len);
	int rc = text ? facts_read(&to, text, len) : -ENOMEM;

	why_clear(why);
	free(text);
	if (rc)
		return rc;
	rc = facts_check(&to, &job, why);
	facts_free(&to);
	return rc;
}

TEST(what_does_not_belong_together_is_named)
{
	struct why why = { 0 };

	EXPECT_EQ(again(2, &why), 0)
		TH_LOG("%s", why.text);
#define LIE(member, value) do { \
	__typeof__(member) was = member; \
	member = value; \
	EXPECT_EQ(again(2, &why), -EBADMSG) \
		TH_LOG("%s = %s", #member, #value); \
	EXPECT_NE(*why.text, 0); \
	member = was; \
} while (0)
	LIE(proxy[0].rank, -1);
	LIE(proxy[0].rank, -2000000000);
	LIE(proxy[0].rank, 2);
	LIE(proxy[1].rank, 0);		/* with the other's serial */
	LIE(proxy[0].serial, -1);
	LIE(proxy[0].client, 0);
	LIE(proxy[0].info.seat, -2);
	LIE(proxy[0].info.seat, 1024);
	LIE(proxy[0].info.seat, 1);
	LIE(proxy[0].info.device.ordinal, -1);
	LIE(proxy[0].info.window_len, UINT64_MAX);
	LIE(proxy[0].info.seat, 2);	/* another one than in the job's file */
	LIE(of_job[1].seat, 0);
#undef LIE
	of_job[0].seat = of_job[1].seat = -1;	/* an older file does not say */
	EXPECT_EQ(again(2, &why), 0);
	proxy[0].info.seat = 1;
	EXPECT_EQ(again(2, &why), -EBADMSG);
	proxy[0].info.seat = of_job[0].seat = 0;
	of_job[1].seat = 1;
	EXPECT_EQ(again(1, &why), -EBADMSG);
	EXPECT_EQ(again(0, &why), -EBADMSG);
	EXPECT_EQ(again(JOB_RANKS_MAX, &why), 0);
	EXPECT_EQ(again(JOB_RANKS_MAX + 1, &why), -EBADMSG);
	EXPECT_EQ(again(2, &why), 0);
}

TEST(the_file_job_has_the_seats_of_its_proxies)
{
	static const char text[] = "version 1\npid 5\ncommand ./a\nfolder /run/5\nrank 0 6 0 0 0\nproxy 0 0 7 6 12\nproxy 0 1 8 6\nproxy 0 2 9 6 -1\n";
	static const char *const bad[] = { "proxy 0 0 7 6 1024\n", "proxy 0 0 7 6 -2\n" };
	struct rundir_job *job = calloc(1, sizeof(*job)), *none;
	char lie[200];

	ASSERT_EQ(rundir_parse(job, text, strlen(text)), 0);
	ASSERT_EQ(job->proxies, 3);
	EXPECT_EQ(job->proxy[0].seat, 12);
	EXPECT_EQ(job->proxy[1].seat, -1);
	EXPECT_EQ(job->proxy[2].seat, -1);
	for (int i = 0; i < 2; i++) {
		none = calloc(1, sizeof(*none));
		snprintf(lie, sizeof(lie), "%s%s", text, bad[i]);
		EXPECT_EQ(rundir_parse(none, lie, strlen(lie)), -EBADMSG);
		rundir_list_free(none, 1);
	}
	rundir_list_free(job, 1);
}

TEST(names_in_a_jobs_folder)
{
	static const char *const others[] = { "3-4.stat", "3.sock", "3-4.ctlx", "3-4.ct", "-3-4.ctl", "03-4.ctl", "3-.ctl" };
	char name[RUNDIR_NAME], path[16];
	int rank, serial;

	EXPECT_STREQ(rundir_name(name, RUNDIR_SOCKET, 3, 0), "3.sock");
	EXPECT_STREQ(rundir_name(name, RUNDIR_GATE, 3, 0), "3.sock.gate");
	EXPECT_STREQ(rundir_name(name, RUNDIR_STAT, 3, 4), "3-4.stat");
	EXPECT_STREQ(rundir_name(name, RUNDIR_CONTROL, 3, 4), "3-4.ctl");
	EXPECT_TRUE(rundir_is_control(name, &rank, &serial));
	EXPECT_EQ(rank, 3);
	EXPECT_EQ(serial, 4);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		EXPECT_FALSE(rundir_is_control(others[i], &rank, &serial))
			TH_LOG("%s", others[i]);
	}
	EXPECT_EQ(rundir_path(path, sizeof(path), "/run/12", RUNDIR_STAT, 3, 4), -ENAMETOOLONG);
	EXPECT_EQ(rundir_path(path, sizeof(path), "/run/1", RUNDIR_STAT, 3, 4), 0);
	EXPECT_STREQ(path, "/run/1/3-4.stat");
}

TEST(devices_are_read)
{
	static const char *const wrong[] = { "", "a", "-1", " 1", "1 ", "16", "100", "1,", ",1", "1,,2", "1,a", "1;2", "1,16",
					     "=", "1=", "=1", "1=2,", "1=2,,3=4", "1=2;3=4", "1=2,1=3", "16=1", "1=16",
					     "1=2=3", "a=b", "1=-2", "-1=2", "1,2=3", "1=2,3" };
	struct bring_where w, was;
	char text[2000] = "";

	ASSERT_EQ(bring_where_parse("15", &w), 0);
	EXPECT_TRUE(w.on.all);
	EXPECT_EQ(w.on.first, 15);
	EXPECT_STREQ(w.text, "15");
	EXPECT_EQ(w.on.ranks, 0);
	ASSERT_EQ(bring_where_parse("3,0,15", &w), 0);
	EXPECT_FALSE(w.on.all);
	EXPECT_EQ(w.on.ranks, 3);
	EXPECT_EQ(w.on.rank[0], 3);
	EXPECT_EQ(w.on.rank[1], 0);
	EXPECT_EQ(w.on.rank[2], 15);
	ASSERT_EQ(bring_where_parse("0=15,15=0,3=3", &w), 0);
	EXPECT_FALSE(w.on.all);
	EXPECT_EQ(w.on.ranks, 0);
	EXPECT_EQ(w.on.instead[0], 16);
	EXPECT_EQ(w.on.instead[15], 1);
	EXPECT_EQ(w.on.instead[3], 4);
	EXPECT_EQ(w.on.instead[1], 0);
	was = w;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		EXPECT_EQ(bring_where_parse(wrong[i], &w), -EINVAL)
			TH_LOG("%s", wrong[i]);
		EXPECT_EQ(memcmp(&w, &was, sizeof(w)), 0);
	}
	for (int i = 0; i < JOB_RANKS_MAX; i++)
		strcat(text, i ? ",1" : "1");
	ASSERT_EQ(bring_where_parse(text, &w), 0);
	EXPECT_EQ(w.on.ranks, JOB_RANKS_MAX);
	strcat(text, ",1");
	EXPECT_EQ(bring_where_parse(text, &w), -EINVAL);
	for (int i = 0; i < 300; i++)
		strcat(text, ",1");
	EXPECT_EQ(bring_where_parse(text, &w), -EINVAL);
}

TEST_HARNESS_MAIN
