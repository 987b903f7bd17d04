// SPDX-License-Identifier: Apache-2.0
/*
 * locks.c - a build with DEBUG_LOCKS: what threads may do with locks, and what aborts
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>

#include "kselftest_harness.h"
#include "lock.h"

static struct lock turn = LOCK_INIT(LOCK_SESSION), other_turn = LOCK_INIT(LOCK_SHARE);
static struct lock first = LOCK_INIT(LOCK_GRAPHS), second = LOCK_INIT(LOCK_ARENA);
static struct lock as_second = LOCK_INIT(LOCK_ARENA);

/* Does fn end its process by abort(), with these words on stderr? */
static bool ends(void (*fn)(void), const char *words)
{
	char text[256] = "";
	ssize_t n = 0, r;
	int fd[2], status;
	pid_t pid;

	if (pipe(fd))
		return false;
	pid = fork();
	if (!pid) {
		dup2(fd[1], 2);
		fn();
		_exit(0);
	}
	close(fd[1]);
	while ((r = read(fd[0], text + n, sizeof(text) - 1 - n)) > 0)
		n += r;
	close(fd[0]);
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, words))
		return true;
	fprintf(stderr, "# status %#x, \"%s\"\n", status, text);
	return false;
}

static void wait_with_one(void)
{
	lock_take(&second);
	lock_may_wait("an answer");
}

static void wait_with_a_turn_and_one(void)
{
	lock_take(&turn);
	lock_take(&first);
	lock_may_wait("an answer");
}

static void take_in_another_order(void)
{
	lock_take(&second);
	lock_take(&first);
}

static void take_two_of_a_rank(void)
{
	lock_take(&second);
	lock_take(&as_second);
}

static void drop_what_is_not_held(void)
{
	lock_take(&first);
	lock_drop(&second);
}

static void wait_for_a_thread_with_another(void)
{
	pthread_cond_t never = PTHREAD_COND_INITIALIZER;

	lock_take(&first);
	lock_take(&second);
	lock_wait(&second, &never);
}

static void needs_what_another_has(void)
{
	lock_take(&first);
	assert_held(&second);
}

static void take_two_leaves(void)
{
	static struct lock handles = LOCK_INIT(PROXY_HANDLES), errors = LOCK_INIT(PROXY_ERROR);

	lock_take(&handles);
	lock_take(&errors);
}

static void wait_until_then_with_another(void)
{
	pthread_cond_t never = PTHREAD_COND_INITIALIZER;

	lock_take(&first);
	lock_take(&second);
	lock_wait_until(&second, &never, &(struct timespec){ 0 });
}

TEST(who_waits_with_a_lock_is_ended_and_the_lock_named)
{
	EXPECT_TRUE(ends(wait_with_one, "may wait for an answer and holds LOCK_ARENA\n"));
	EXPECT_TRUE(ends(wait_with_a_turn_and_one, "and holds LOCK_SESSION LOCK_GRAPHS\n"));
	EXPECT_TRUE(ends(wait_for_a_thread_with_another, "and holds LOCK_GRAPHS\n"));
	EXPECT_TRUE(ends(wait_until_then_with_another, "and holds LOCK_GRAPHS\n"));
}

TEST(locks_are_taken_in_one_order)
{
	EXPECT_TRUE(ends(take_in_another_order, "takes LOCK_GRAPHS and holds LOCK_ARENA\n"));
	EXPECT_TRUE(ends(take_two_of_a_rank, "takes LOCK_ARENA and holds LOCK_ARENA\n"));
	EXPECT_TRUE(ends(take_two_leaves, "takes PROXY_ERROR and holds PROXY_HANDLES\n"));
	EXPECT_TRUE(ends(needs_what_another_has, "needs LOCK_ARENA and holds LOCK_GRAPHS\n"));
	EXPECT_TRUE(ends(drop_what_is_not_held, "LOCK_ARENA and holds LOCK_GRAPHS\n"));
}

/* Not ended: that is all. */
TEST(turns_are_held_while_waiting_and_locks_are_not)
{
	lock_take(&turn);
	lock_take(&other_turn);
	lock_may_wait("an answer");
	lock_take(&first);
	lock_take(&second);
	lock_drop(&first);	/* not the last one that was taken */
	lock_drop(&second);
	lock_may_wait("an answer");
	lock_drop(&other_turn);
	lock_drop(&turn);
	lock_may_wait("an answer");
}

TEST(a_lock_that_is_held_satisfies_who_needs_it)
{
	pthread_cond_t never = PTHREAD_COND_INITIALIZER;
	struct lock of_heap;

	lock_init(&of_heap, LOCK_STAGE);
	lock_take(&of_heap);
	assert_held(&of_heap);
	EXPECT_TRUE(lock_wait_until(&of_heap, &never, &(struct timespec){ 0 }));
	assert_held(&of_heap);
	lock_drop(&of_heap);
	lock_end(&of_heap);
}

TEST_HARNESS_MAIN
