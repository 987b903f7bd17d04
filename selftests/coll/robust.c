// SPDX-License-Identifier: Apache-2.0
/*
 * robust.c - the lock of a board: who has it, who waits for it, and who dies with it
 */
#include "../harness/leaks.h"
#include "../harness/patience.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "killed.h"
#include "robust.h"

#define PROCESSES 3
#define THREADS   2
#define TURNS     40000u

struct common {
	struct robust lock;
	volatile uint64_t a, b; /* of who has the lock */
	volatile uint32_t wrong, inside, ready;
};

FIXTURE(robust) {
	struct common *all;
};

FIXTURE_SETUP(robust)
{
	self->all = mmap(NULL, sizeof(*self->all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);
	ASSERT_NE(self->all, MAP_FAILED);
	ASSERT_EQ(robust_init(), 0);
}

FIXTURE_TEARDOWN(robust)
{
	munmap(self->all, sizeof(*self->all));
}

/* A child that does not outlive a test that has failed. */
static pid_t child(void)
{
	pid_t pid = fork();

	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

/* ------------------------------------------------------------------------------ who has it */

static void *turns(void *arg)
{
	struct common *all = arg;

	for (uint32_t i = 0; i < TURNS; i++) {
		if (robust_take(&all->lock))
			all->wrong = 1;
		if (all->inside++)
			all->wrong = 1;
		all->a++;
		for (volatile int k = 0; k < 30; k++)	/* so that two are seen */
			;
		if (i % 512 == 0)	/* so that others come to sleep */
			sched_yield();
		all->b++;
		if (--all->inside || all->a != all->b)
			all->wrong = 1;
		robust_give(&all->lock);
	}
	return NULL;
}

TEST_F(robust, one_thread_at_a_time_has_it)
{
	pid_t pid[PROCESSES];
	int status;

	for (int i = 0; i < PROCESSES; i++) {
		pid[i] = child();
		if (!pid[i]) {
			pthread_t t[THREADS];

			for (int k = 0; k < THREADS; k++)
				if (pthread_create(&t[k], NULL, turns, self->all))
					_exit(1);
			for (int k = 0; k < THREADS; k++)
				pthread_join(t[k], NULL);
			_exit(0);
		}
	}
	for (int i = 0; i < PROCESSES; i++) {
		ASSERT_EQ(waitpid(pid[i], &status, 0), pid[i]);
		EXPECT_EQ(status, 0);
	}
	EXPECT_EQ(self->all->wrong, 0);
	EXPECT_EQ(self->all->a, (uint64_t)PROCESSES * THREADS * TURNS);
}

#define HANDOVERS 200u

/* Takes it behind each holder, who has it for longer than others spin. */
static void follow(struct common *all)
{
	for (uint32_t i = 1; i <= HANDOVERS; i++) {
		while (all->ready < i)
			sched_yield();
		if (robust_take(&all->lock))
			all->wrong = 1;
		all->b += now_us() - all->a > 5000;
		robust_give(&all->lock);
		all->inside = i;
	}
}

TEST_F(robust, who_waits_is_woken)
{
	pid_t pid = child();
	int status;

	if (!pid) {
		follow(self->all);
		_exit(0);
	}
	for (uint32_t i = 1; i <= HANDOVERS; i++) {
		EXPECT_EQ(robust_take(&self->all->lock), 0);
		self->all->ready = i;
		usleep(300);
		self->all->a = now_us();
		robust_give(&self->all->lock);
		while (self->all->inside < i)
			sched_yield();
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(self->all->wrong, 0);
	/* Nobody waits any more, and whoever gives it back knows that. */
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(robust_take(&self->all->lock), 0);
		robust_give(&self->all->lock);
	}
	EXPECT_EQ(self->all->lock.waits, 0);
	/* Without a wake each would sleep for ten milliseconds. */
	EXPECT_LT(self->all->b, HANDOVERS / 2);
}

/* The state of a process's only thread: S while it sleeps. */
static char state_of(pid_t pid)
{
	char path[64], line[512] = "", *name;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (f && !fgets(line, sizeof(line), f))
		*line = 0;
	if (f)
		fclose(f);
	name = strrchr(line, ')');
	return name && name[1] ? name[2] : 0;
}

/* One give wakes one of two who sleep. That one leaves a mark, so that its own give wakes the other. */
TEST_F(robust, who_is_woken_answers_for_the_others)
{
	pid_t pid[2];
	int status;

	ASSERT_EQ(robust_take(&self->all->lock), 0);
	for (int i = 0; i < 2; i++) {
		pid[i] = child();
		if (!pid[i]) {
			if (robust_take(&self->all->lock))
				_exit(1);
			self->all->inside += self->all->lock.waits;
			robust_give(&self->all->lock);
			_exit(0);
		}
	}
	for (int i = 0; i < 2; i++)
		while (!self->all->lock.waits || state_of(pid[i]) != 'S')
			usleep(1000);
	robust_give(&self->all->lock);
	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(waitpid(pid[i], &status, 0), pid[i]);
		EXPECT_EQ(status, 0);
	}
	EXPECT_EQ(self->all->inside, 2);
}

static void take_and_give_once(struct common *all)
{
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	robust_init();
	raise(SIGSTOP);
	robust_take(&all->lock);
	robust_give(&all->lock);
	all->inside = 1;
	_exit(0);
}

/* Whether a traced child calls the kernel for a wake before it says that it is through. */
static bool wakes(pid_t pid, struct common *all, int *status)
{
	bool calls = false;

	while (!all->inside) {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) || waitpid(pid, status, 0) != pid || !WIFSTOPPED(*status))
			return calls;
		calls |= !all->inside;
	}
	kill(pid, SIGKILL);
	waitpid(pid, status, 0);
	return calls;
}

/*
 * A mark that is left at any instruction while another one has the lock leads to a wake: the holder looks once more when
 * it has given it back.
 */
TEST_F(robust, a_mark_at_any_instruction_leads_to_a_wake)
{
	int steps, status, held = 0, through = 0;

	for (steps = 1; !through; steps++) {
		bool has;
		pid_t pid;

		ASSERT_LT(steps, 3000);
		memset(self->all, 0, sizeof(*self->all));
		pid = child();
		if (!pid)
			take_and_give_once(self->all);
		for (int i = 0; i <= steps; i++) {
			ASSERT_EQ(waitpid(pid, &status, 0), pid);
			if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
				SKIP(return, "this process may trace no child");
			if (!WIFSTOPPED(status))
				break;
			if (i < steps)
				ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
		}
		ASSERT_TRUE(WIFSTOPPED(status));
		through = self->all->inside;
		has = self->all->lock.word & FUTEX_TID_MASK;
		held += has;
		self->all->lock.waits = 1;
		if (has)
			EXPECT_TRUE(wakes(pid, self->all, &status)) TH_LOG("after %d instructions", steps);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	EXPECT_GT(held, 5);
}

/* ------------------------------------------------------------------------------ who dies with it */

static void take_for_ever(struct common *all)
{
	robust_take(&all->lock);
	all->inside = 1;
	for (;;)
		pause();
}

TEST_F(robust, who_waits_for_the_dead_gets_it)
{
	uint64_t killed;
	int status;
	pid_t dead = child(), heir;

	if (!dead)
		take_for_ever(self->all);
	while (!self->all->inside)
		usleep(100);
	heir = child();
	if (!heir) {
		int rc = robust_take(&self->all->lock);

		robust_give(&self->all->lock);
		_exit(rc);
	}
	usleep(30000);
	killed = now_us();
	kill(dead, SIGKILL);
	waitpid(dead, NULL, 0);
	ASSERT_EQ(waitpid(heir, &status, 0), heir);
	EXPECT_EQ(WEXITSTATUS(status), EOWNERDEAD);
	/* A waiter that was not woken looks again much later than a busy machine lets it run. */
	EXPECT_LT(now_us() - killed, 60000000);
	EXPECT_EQ(robust_take(&self->all->lock), 0);
	robust_give(&self->all->lock);
}

static void *end_with_it(void *arg)
{
	robust_take(arg);
	return NULL;
}

TEST_F(robust, a_thread_that_ends_with_it_is_dead)
{
	pthread_t t;

	ASSERT_EQ(pthread_create(&t, NULL, end_with_it, &self->all->lock), 0);
	pthread_join(t, NULL);
	EXPECT_EQ(robust_take(&self->all->lock), EOWNERDEAD);
	robust_give(&self->all->lock);
}

/* A child has a number of its own: with its parent's its death would go unnoticed. */
TEST_F(robust, a_fork_takes_it_for_itself)
{
	int status;
	pid_t pid;

	EXPECT_EQ(robust_take(&self->all->lock), 0);
	robust_give(&self->all->lock);
	pid = child();
	if (!pid) {
		int rc = robust_take(&self->all->lock);

		_exit(rc ?: (self->all->lock.word & FUTEX_TID_MASK) == (uint32_t)getpid() ? 0 : 99);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(robust_take(&self->all->lock), EOWNERDEAD);
	robust_give(&self->all->lock);
}

/* The thread's list of pthread's robust mutexes is as before. */
TEST_F(robust, robust_mutexes_of_pthread_work_beside_it)
{
	pthread_mutex_t *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				  -1, 0);
	pthread_mutexattr_t a;
	pid_t pid;

	ASSERT_NE(m, MAP_FAILED);
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(m, &a);
	pid = child();
	if (!pid) {
		pthread_mutex_lock(m);
		robust_take(&self->all->lock);
		robust_give(&self->all->lock);
		robust_take(&self->all->lock);
		_exit(0);
	}
	ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	EXPECT_EQ(pthread_mutex_lock(m), EOWNERDEAD);
	EXPECT_EQ(robust_take(&self->all->lock), EOWNERDEAD);
	robust_give(&self->all->lock);
	munmap(m, sizeof(*m));
}

/* ------------------------------------------------------------------------------ at each instruction */

/* How often the lock is waited for meanwhile: by nobody; by one who sleeps. */
static void victim(struct common *all, bool waited)
{
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	robust_init();
	raise(SIGSTOP);
	robust_take(&all->lock);
	all->inside = 1;
	if (waited) {
		all->ready = 1;
		__atomic_store_n(&all->lock.waits, 1, __ATOMIC_SEQ_CST);
	}
	all->inside = 0;
	robust_give(&all->lock);
	_exit(0);
}

static void *take_and_give(void *arg)
{
	struct common *all = arg;
	intptr_t rc = robust_take(&all->lock);

	robust_give(&all->lock);
	return (void *)rc;
}

static void killed_everywhere(struct __test_metadata *_metadata, struct common *all, bool waited)
{
	int status = SIGKILL, dead = 0, alive = 0, steps;

	for (steps = 1; WIFSIGNALED(status); steps++) {
		uint64_t began;
		pthread_t waiter;
		void *rc = NULL;
		bool had, waits = false;
		pid_t pid;

		ASSERT_LT(steps, 3000);
		memset(all, 0, sizeof(*all));
		pid = child();
		if (!pid)
			victim(all, waited);
		if (waited && steps % 8 == 0) {
			/* A second thread that waits, most of the time. */
			waits = !pthread_create(&waiter, NULL, take_and_give, all);
		}
		status = step_and_kill(pid, steps);
		began = now_us();
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			SKIP(return, "this process may trace no child");
		had = all->inside;
		if (waits)
			pthread_join(waiter, &rc);
		if (robust_take(&all->lock) == EOWNERDEAD)
			rc = (void *)(intptr_t)EOWNERDEAD;
		robust_give(&all->lock);
		if (had)
			ASSERT_EQ((intptr_t)rc, EOWNERDEAD) TH_LOG("after %d instructions", steps);
		dead += (intptr_t)rc == EOWNERDEAD;
		alive += !rc;
		ASSERT_LT(now_us() - began, 10000000) TH_LOG("after %d instructions", steps);
	}
	EXPECT_EQ(status, 0);
	EXPECT_GT(dead, 5);
	EXPECT_GT(alive, 10);
}

TEST_F(robust, a_kill_at_any_instruction_leaves_it_to_others)
{
	killed_everywhere(_metadata, self->all, false);
}

TEST_F(robust, a_kill_at_any_instruction_leaves_it_to_those_who_wait)
{
	killed_everywhere(_metadata, self->all, true);
}

TEST_HARNESS_MAIN
