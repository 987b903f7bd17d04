// SPDX-License-Identifier: Apache-2.0
/*
 * patience.c - others_go_on() distinguishes hung processes from slow ones
 */
#include "pair.h"

static void runs(int fd, void *arg)
{
	volatile uint32_t *stop = arg;

	while (!*stop)
		;
}

static void ticks(int fd, void *arg)
{
	volatile uint32_t *stop = arg;

	while (!*stop)
		sleep_ns(MS);
}

static void *sleeps(void *arg)
{
	return pause() ? arg : NULL;
}

/* All of its threads sleep. */
static void hangs(int fd, void *arg)
{
	pthread_t t;

	NEED_OK(pthread_create(&t, NULL, sleeps, NULL));
	*(volatile uint32_t *)arg = 1;
	sleeps(NULL);
}

FIXTURE(patience) {
	struct zygote z;
	uint32_t *word;
};

FIXTURE_SETUP(patience)
{
	self->word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->word);
	ASSERT_EQ(0, zygote_start(&self->z));
}

FIXTURE_TEARDOWN(patience)
{
	zygote_end(&self->z);
	munmap(self->word, 4096);
}

/* Whether it goes on, asked several times; by the last one it has settled down. */
static bool goes_on(void)
{
	uint64_t mark = 0;
	bool on = true;
	int i;

	for (i = 0; i < 5; i++) {
		on = others_go_on(&mark);
		sleep_ns(300 * MS);
	}
	return on;
}

TEST_F(patience, lasts_while_another_process_runs)
{
	pid_t pid = spawn(&self->z, runs, self->word, -1);

	ASSERT_LT(0, pid);
	EXPECT_TRUE(goes_on());
	*self->word = 1;
	EXPECT_EQ(0, reap(&self->z, pid));
}

TEST_F(patience, lasts_while_another_process_wakes_up_now_and_then)
{
	pid_t pid = spawn(&self->z, ticks, self->word, -1);

	ASSERT_LT(0, pid);
	EXPECT_TRUE(goes_on());
	*self->word = 1;
	EXPECT_EQ(0, reap(&self->z, pid));
}

TEST_F(patience, ends_when_all_others_sleep)
{
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	SKIP(return, "each process has a thread of the sanitizer that never rests");
#endif
	pid = spawn(&self->z, hangs, self->word, -1);
	ASSERT_LT(0, pid);
	while (!*(volatile uint32_t *)self->word)
		sleep_ns(MS);
	EXPECT_FALSE(goes_on());
	kill(pid, SIGKILL);
	EXPECT_EQ(1000 + SIGKILL, reap(&self->z, pid));
	/* And when there is none, but the zygote. */
	EXPECT_FALSE(goes_on());
}

TEST_HARNESS_MAIN
