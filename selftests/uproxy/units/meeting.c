// SPDX-License-Identifier: Apache-2.0
/*
 * meeting.c - proxies that meet at the end of a step: sealed once, or failed once, however they race
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "kselftest_harness.h"
#include "meeting.h"

#define MEMBERS	4
#define ROUNDS	200

TEST(all_must_stand)
{
	struct meeting m = { MEETING_MAGIC, 2, 0 };

	EXPECT_EQ(meeting_state(&m), MEETING_OPEN);
	EXPECT_EQ(meeting_arrive(&m), MEETING_OPEN);
	EXPECT_EQ(meeting_leave(&m), MEETING_OPEN);
	EXPECT_EQ(meeting_arrive(&m), MEETING_OPEN);
	EXPECT_EQ(meeting_arrive(&m), MEETING_SEALED);
	EXPECT_EQ(meeting_leave(&m), MEETING_SEALED);
	EXPECT_EQ(meeting_fail(&m), MEETING_SEALED);
	EXPECT_EQ(meeting_state(&m), MEETING_SEALED);
}

TEST(a_failure_stays)
{
	struct meeting m = { MEETING_MAGIC, 2, 0 };

	EXPECT_EQ(meeting_arrive(&m), MEETING_OPEN);
	EXPECT_EQ(meeting_fail(&m), MEETING_LOST);
	EXPECT_EQ(meeting_arrive(&m), MEETING_LOST);
	EXPECT_EQ(meeting_leave(&m), MEETING_LOST);
	EXPECT_EQ(meeting_fail(&m), MEETING_LOST);
	EXPECT_EQ(meeting_state(&m), MEETING_LOST);
}

struct member {
	struct meeting *m;
	unsigned int seed;
	bool sure;			/* never gives up */
	enum meeting_state end;		/* as it saw it */
};

static void *attend(void *arg)
{
	struct member *me = arg;
	bool stands = false;

	while (meeting_state(me->m) == MEETING_OPEN) {
		int r = rand_r(&me->seed) % 64;

		sched_yield();
		if (!r && !me->sure)
			meeting_fail(me->m);
		else if (!stands)
			stands = meeting_arrive(me->m) != MEETING_LOST;
		else if (r < 16 && meeting_leave(me->m) == MEETING_OPEN)
			stands = false;
	}
	me->end = meeting_state(me->m);
	return NULL;
}

/* Members come and go. All see the same end, and the count is right. */
static uint32_t sealed(struct __test_metadata *_metadata, bool sure)
{
	uint32_t n = 0;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		struct meeting m = { MEETING_MAGIC, MEMBERS, 0 };
		struct member who[MEMBERS];
		pthread_t t[MEMBERS];

		for (int i = 0; i < MEMBERS; i++) {
			who[i] = (struct member){ &m, 1 + round * MEMBERS + i, sure, MEETING_OPEN };
			ASSERT_EQ(pthread_create(&t[i], NULL, attend, &who[i]), 0);
		}
		for (int i = 0; i < MEMBERS; i++)
			pthread_join(t[i], NULL);
		for (int i = 0; i < MEMBERS; i++)
			ASSERT_EQ(who[i].end, meeting_state(&m));
		n += meeting_state(&m) == MEETING_SEALED;
		ASSERT_LE((uint32_t)m.word, (uint32_t)MEMBERS);
	}
	return n;
}

TEST(they_race)
{
	EXPECT_EQ(sealed(_metadata, true), ROUNDS);
}

TEST(they_race_and_give_up)
{
	uint32_t n = sealed(_metadata, false);

	EXPECT_GT(n, 0);
	EXPECT_LT(n, ROUNDS);
}

TEST_HARNESS_MAIN
