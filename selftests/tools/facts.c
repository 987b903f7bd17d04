// SPDX-License-Identifier: Apache-2.0
/*
 * facts.c - the part "job" of a checkpoint, with lies in it
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt_facts.h"
#include "job.h"

#include "kselftest_harness.h"

static struct ckpt_proxy proxy[2] = {
	{ .rank = 0, .client = 2, .info = { .window = 1 << 20, .window_len = 1 << 20 } },
	{ .rank = 1, .client = 3, .info = { .window = 1 << 20, .window_len = 1 << 20, .seat = 1 } },
};

/* What is read of the facts that are written. */
static int again(int ranks, struct why *why)
{
	struct ckpt_connection c = { .rank = 1 };
	struct ckpt_facts f = { .job = "job", .proxy = proxy, .proxies = 2, .connection = &c, .connections = 1 }, to;
	struct rundir_job job = { .ranks = ranks };
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
#undef LIE
	EXPECT_EQ(again(1, &why), -EBADMSG);
	EXPECT_EQ(again(0, &why), -EBADMSG);
	EXPECT_EQ(again(JOB_RANKS_MAX, &why), 0);
	EXPECT_EQ(again(JOB_RANKS_MAX + 1, &why), -EBADMSG);
	EXPECT_EQ(again(2, &why), 0);
}

TEST_HARNESS_MAIN
