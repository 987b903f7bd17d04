// SPDX-License-Identifier: Apache-2.0
/*
 * idle.c - the cost of an idle channel, and how waits end
 */
#include <linux/futex.h>

#include "pair.h"

struct idle {
	atomic_uint step;
	int64_t cpu_ns;		/* the client's, while it slept */
	int64_t cpu_per_call;
	long switches;		/* of the CPU, in all calls */
	uint32_t n;
	uint32_t spin;
};

static int64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * SEC + t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	NEED_OK(sched_setaffinity(0, sizeof(set), &set));
}

/* ------------------------------------------------------------------------------- footprint */

static int64_t resident(struct ring *r)
{
	struct singvgpu_info i;
	struct stat st;

	if (ring_backend(r) == RING_KMOD)
		return ioctl(ring_fd(r), SINGVGPU_IOC_GET_INFO, &i) ? -1 : (int64_t)i.pages * 4096;
	return fstat(ring_fd(r), &st) ? -1 : st.st_blocks * 512;
}

static void many_calls(int fd, void *arg)
{
	struct idle *c = arg;
	struct ring *r = attached(fd);
	uint8_t data[4000];
	uint32_t i;

	memset(data, 5, sizeof(data));
	for (i = 0; i < c->n; i++)
		NEED_OK(ring_call(r, 1, data, sizeof(data), NULL, 0, NULL, NULL, 0, NULL));
	c->step = 1;
	while (c->step != 2)
		sleep_ns(MS);
	ring_close(r);
}

TEST_F(ring, a_default_channel_holds_2_mib_at_most)
{
	struct idle *c = (void *)self->shm;
	struct ring_record rec;
	int64_t bytes;
	pid_t pid;
	int i;

	self->p.geo = RING_GEOMETRY_DEFAULT;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	EXPECT_LE(0, resident(self->r));
	EXPECT_GE(2 << 20, resident(self->r));
	c->n = 100;
	pid = spawn_client(&self->z, self->r, many_calls, c);
	ASSERT_LT(0, pid);
	for (i = 0; i < 100; i++) {
		ASSERT_EQ(1, next(self->r, &rec));
		ring_complete(self->r, rec.cpl, rec.seq, 0, NULL, 0);
		if (ring_log_append(self->r, &rec, 1, 1, rec.data, rec.len))
			ring_advance(self->r);
	}
	while (c->step != 1)
		sleep_ns(MS);
	/* The object, and both ends' own memory. */
	bytes = resident(self->r) + self->r->self_len * 2;
	TH_LOG("%lld bytes", (long long)bytes);
	EXPECT_LT(100 * 64, bytes);
	EXPECT_GE(2 << 20, bytes);
	c->step = 2;
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* --------------------------------------------------------------------------------- no CPU */

static void call_and_sleep(int fd, void *arg)
{
	struct idle *c = arg;
	struct ring *r = attached(fd);
	int64_t begin = cpu_ns();

	c->step = 1;
	NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	c->cpu_ns = cpu_ns() - begin;
	ring_close(r);
}

TEST_F(ring, both_ends_sleep_without_using_cpu)
{
	struct idle *c = (void *)self->shm;
	struct ring_record rec;
	int64_t begin, most;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, call_and_sleep, c);
	ASSERT_LT(0, pid);
	ASSERT_EQ(1, next(self->r, &rec));
	ring_advance(self->r);
	begin = cpu_ns();
	/* The client waits for the answer, we for the next record. */
	EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, 2 * SEC));
	begin = cpu_ns() - begin;
	EXPECT_EQ(0, ring_complete(self->r, rec.cpl, rec.seq, 0, NULL, 0));
	EXPECT_EQ(0, reap(&self->z, pid));
	TH_LOG("2 s cost the proxy %lld us, the client %lld us", (long long)begin / 1000,
	       (long long)c->cpu_ns / 1000);
	/* In the VM, time that the host gave to others while one of them ran counts as its own. */
	most = getenv("SINGVGPU_VM") ? 700 * MS : 20 * MS;
	EXPECT_GE(most, begin);
	EXPECT_LT(0, c->cpu_ns);
	EXPECT_GE(most, c->cpu_ns);
}

static void calls_on_cpu(int fd, void *arg)
{
	struct idle *c = arg;
	struct rusage before, after;
	struct ring *r = attached(fd);
	int64_t begin;
	uint32_t i;

	pin(0);
	ring_set_spin(r, c->spin);
	for (i = 0; i < 20; i++)
		NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	getrusage(RUSAGE_SELF, &before);
	begin = cpu_ns();
	for (i = 0; i < c->n; i++)
		NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	c->cpu_per_call = (cpu_ns() - begin) / c->n;
	getrusage(RUSAGE_SELF, &after);
	c->switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw;
	NEED(!c->spin || !ring_spin_useful(r));
	ring_close(r);
}

/* CPU time of both sides for one call, both on one CPU. */
static int64_t same_cpu(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self,
			enum ring_backend backend, uint32_t spin)
{
	struct idle *c = (void *)self->shm;
	cpu_set_t was;
	int64_t cost;
	pid_t pid;

	memset(c, 0, sizeof(*c));
	c->n = scaled(2000) < 20000 ? scaled(2000) : 20000;
	c->spin = spin;
	self->p = params_of(backend);
	if (ring_create(&self->r, &self->p))
		return -1;
	ring_set_spin(self->r, spin);
	sched_getaffinity(0, sizeof(was), &was);
	pid = spawn_client(&self->z, self->r, calls_on_cpu, c);
	pin(0);
	cost = cpu_ns();
	EXPECT_EQ(c->n + 20, serve_all(self->r));
	cost = (cpu_ns() - cost) / c->n + c->cpu_per_call;
	EXPECT_EQ(false, spin && ring_spin_useful(self->r));
	sched_setaffinity(0, sizeof(was), &was);
	EXPECT_EQ(0, reap(&self->z, pid));
	/* Each call gave the CPU away. */
	EXPECT_LE(c->n * 9 / 10, c->switches);
	ring_close(self->r);
	self->r = NULL;
	return cost;
}

TEST_F(ring, nobody_spins_on_the_peer_s_cpu)
{
	int64_t with, without;

	without = same_cpu(_metadata, self, variant->backend, 0);
	with = same_cpu(_metadata, self, variant->backend, 1000000);
	TH_LOG("a call on one CPU costs %lld ns of it; where spinning is allowed for 1 ms, %lld",
	       (long long)without, (long long)with);
	EXPECT_LT(0, without);
	/* Time that a machine below this one takes away while a call runs counts as the call's. */
	for (int again = 0; again < 5 && without + 500000 <= with; again++)
		with = same_cpu(_metadata, self, variant->backend, 1000000);
	if (!getenv("SINGVGPU_VM"))	/* an emulator has other times */
		EXPECT_GT(without + 500000, with);
}

/* ------------------------------------------------------------------------------- the bell */

#define TO_A_SLEEPER 20

static void to_a_sleeper(int fd, void *arg)
{
	static const uint8_t data[200];
	struct idle *c = arg;
	struct ring *r = attached(fd);
	uint32_t i, before;

	for (c->step = 1; ; c->step = 1) {
		while (c->step == 1)
			sleep_ns(MS);
		if (c->step == 3)
			break;
		before = load(&r->ctl->doorbell);
		for (i = 0; i < TO_A_SLEEPER / 2; i++) {
			NEED_OK(ring_submit(r, 1, data, 8, NULL, 0));
			NEED_OK(ring_submit(r, 1, data, sizeof(data), NULL, 0));
		}
		c->n = load(&r->ctl->doorbell) - before;
	}
	ring_close(r);
}

/* It takes its time to get up: CONS_SLEEPS stays. A nap of 0: it does not count its naps. */
TEST_F(ring, the_bell_is_rung_once_a_nap)
{
	static const uint32_t naps[] = { 0, 1, 1, 2, UINT32_MAX, 1, 0 };
	static const uint32_t rung[] = { TO_A_SLEEPER, 1, 0, 1, 1, 1, TO_A_SLEEPER };
	struct idle *c = (void *)self->shm;
	struct ring_record rec;
	unsigned int i;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, to_a_sleeper, c);
	ASSERT_LT(0, pid);
	for (i = 0; i < sizeof(naps) / sizeof(naps[0]); i++) {
		while (c->step != 1)
			sleep_ns(MS);
		self->r->ctl->naps = naps[i];
		__atomic_fetch_or(&self->r->ctl->cons, SINGVGPU_CONS_SLEEPS, __ATOMIC_SEQ_CST);
		c->n = 1000;
		c->step = 2;
		while (c->step != 1)
			sleep_ns(MS);
		EXPECT_EQ(rung[i], c->n);
		EXPECT_TRUE(ring_due(self->r));
		while (ring_peek(self->r, &rec) == 1)
			ring_advance(self->r);
		EXPECT_FALSE(ring_due(self->r));
		EXPECT_EQ(self->r->rx.pos, self->r->ctl->head);
	}
	c->step = 3;
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* --------------------------------------------------------------------- a forgotten barrier */

#define LINES 64	/* which the consumer has written: stores to them hold the record up in the store buffer */

static uint64_t *lines_of(struct idle *c)
{
	return (uint64_t *)((uintptr_t)c + 4096);
}

static void *nothing_to_do(void *arg)
{
	return arg;
}

/*
 * A thread ends on this processor before every 50th record, and records come when the consumer is about to sleep. They are
 * not answered, so nothing that this process does later wakes the consumer.
 */
static void behind_an_end(int fd, void *arg)
{
	struct idle *c = arg;
	struct ring *r = attached(fd);
	uint64_t seed = 88172645463325252ull;
	struct patience p = { 0 };
	pthread_t t;

	pin(0);
	for (uint32_t i = 1; i <= c->n; i++) {
		int64_t from;

		if (i % 50 == 1) {
			NEED_OK(pthread_create(&t, NULL, nothing_to_do, NULL));
			NEED_OK(pthread_join(t, NULL));
		}
		for (from = now_ns() + rnd(&seed) % 12000; now_ns() < from;)
			;
		for (int line = 0; line < LINES; line++)
			store(&lines_of(c)[8 * line], i);
		NEED_OK(ring_submit(r, 1, &i, sizeof(i), NULL, 0));
		for (from = now_ns(); c->step != i && now_ns() - from < 20 * MS;)
			;
		while (c->step != i)
			NEED(be_patient(&p));
	}
	ring_close(r);
}

TEST_F(ring, a_record_is_seen_whatever_the_kernel_has_forgotten)
{
	struct idle *c = (void *)self->shm;
	struct ring_record rec;
	cpu_set_t all;
	pid_t pid;
	int rc;

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(all), &all));
	if (CPU_COUNT(&all) < 2 || !CPU_ISSET(0, &all) || !CPU_ISSET(1, &all))
		SKIP(return, "two processors are needed");
	c->n = scaled(300000);
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, behind_an_end, c);
	ASSERT_LT(0, pid);
	pin(1);
	while (c->step < c->n && !(rc = ring_wait(self->r, -1)))
		while (ring_peek(self->r, &rec) == 1) {
			c->step++;
			for (int line = 0; line < LINES; line++)
				store(&lines_of(c)[8 * line], 0);
			ring_advance(self->r);
		}
	sched_setaffinity(0, sizeof(all), &all);
	EXPECT_EQ(c->n, (uint32_t)c->step);
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* ------------------------------------------------------------------------- the position */

static void gives_up(int fd, void *arg)
{
	struct ring *r = attached(fd);
	uint64_t at;

	NEED_OK(ring_submit(r, 1, &fd, sizeof(fd), NULL, 0));
	at = ring_position(r);
	NEED_OK(ring_submit(r, 1, &fd, sizeof(fd), NULL, 0));
	NEED(ring_position(r) == at + 1);
	/* As an attempt leaves it that is interrupted before its record is committed. */
	if (!r->tx.end)
		r->tx.pos = r->tx.next;
	r->tx.next++;
	NEED(ring_position(r) == at + 1);
	NEED_OK(ring_submit(r, 1, &fd, sizeof(fd), NULL, 0));
	NEED(ring_position(r) == at + 2);
	ring_close(r);
	NEED(arg);
}

TEST_F(ring, the_position_does_not_count_an_attempt_that_is_given_up)
{
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, gives_up, self->shm);
	ASSERT_LT(0, pid);
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* ------------------------------------------------------------------------- how waits end */

TEST_F(ring, a_wait_ends_in_time)
{
	static const int64_t times[] = { 0, 1, 1000, MS, 50 * MS, 200 * MS };
	struct ring_record rec;
	int64_t took;
	unsigned int i;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	for (i = 0; i < ARRAY_SIZE(times); i++) {
		took = now_ns();
		EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, times[i]));
		took = now_ns() - took;
		EXPECT_LE(times[i], took);
		EXPECT_GE(times[i] + PATIENCE, took);
		memset(&rec, 0xaa, sizeof(rec));
		EXPECT_EQ(0, ring_peek(self->r, &rec));
		EXPECT_EQ(0xaaaa, rec.op);
	}
}

static int64_t asked[4];
static unsigned int asks;

/* All of the time passes. */
static int passes(struct ring *r, uint32_t *word, uint32_t expect, int64_t *ns)
{
	(void)r, (void)word, (void)expect;
	asked[asks++ % ARRAY_SIZE(asked)] = *ns;
	*ns = 0;
	return -ETIMEDOUT;
}

TEST_F(ring, a_second_look_takes_none_of_the_time)
{
	const struct ring_ops *ops;
	struct ring_ops own;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	ops = self->r->ops;
	own = *ops;
	own.wait = passes;
	self->r->ops = &own;
	EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, 50 * MS));
	self->r->ops = ops;
	ASSERT_EQ(2, asks);
	EXPECT_EQ(50 * MS, asked[0] + asked[1]);
}

/* A record whose producer did not see the consumer go to sleep: it rings no bell. */
static void comes_unheard(int fd, void *arg)
{
	struct idle *c = arg;
	struct ring *r = attached(fd);
	struct patience p = { 0 };

	c->step = 1;
	while (c->step != 2)
		NEED(be_patient(&p));
	NEED_OK(ring_submit(r, 1, &fd, sizeof(fd), NULL, 0));
	c->step = 3;
	ring_close(r);
}

static struct idle *unheard;

static int hears_nothing(struct ring *r, uint32_t *word, uint32_t expect, int64_t *ns)
{
	struct patience p = { 0 };

	(void)word, (void)expect;
	if (!asks++) {
		__atomic_fetch_and(&r->ctl->cons, ~SINGVGPU_CONS_SLEEPS, __ATOMIC_SEQ_CST);
		unheard->step = 2;
		while (unheard->step != 3 && be_patient(&p))
			;
	}
	*ns = 0;
	return -ETIMEDOUT;
}

TEST_F(ring, what_came_without_a_bell_is_seen_at_a_second_look)
{
	struct patience p = { 0 };
	const struct ring_ops *ops;
	struct ring_record rec;
	struct ring_ops own;
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	SKIP(return, "the channel's thread reads the operations that this test replaces");
#endif
	unheard = (void *)self->shm;
	asks = 0;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, comes_unheard, unheard);
	ASSERT_LT(0, pid);
	while (unheard->step != 1)
		ASSERT_TRUE(be_patient(&p));
	ops = self->r->ops;
	own = *ops;
	own.wait = hears_nothing;
	self->r->ops = &own;
	EXPECT_EQ(0, ring_wait(self->r, 50 * MS));
	self->r->ops = ops;
	EXPECT_EQ(1, asks);
	EXPECT_EQ(1, ring_peek(self->r, &rec));
	EXPECT_EQ(0, reap(&self->z, pid));
}

static struct ring *kicked;

static void kick(int sig)
{
	(void)sig;
	ring_kick(kicked);
}

static void nothing(int sig)
{
	(void)sig;
}

static void *kick_later(void *arg)
{
	sleep_ns(20 * MS);
	ring_kick(arg);
	return NULL;
}

static void arm(void (*fn)(int), int flags)
{
	struct sigaction sa = { .sa_handler = fn, .sa_flags = flags };
	struct itimerval t = { .it_value = { .tv_usec = 20000 } };

	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &t, NULL);
}

TEST_F(ring, a_kick_ends_one_wait)
{
	pthread_t t;
	int i;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	kicked = self->r;
	/* Before the wait, twice for one. */
	ring_kick(self->r);
	ring_kick(self->r);
	EXPECT_EQ(-EINTR, wait_patiently(self->r));
	EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, MS));
	/* During it, by a thread, spinning or asleep. */
	for (i = 0; i < 4; i++) {
		ring_set_spin(self->r, i % 2 ? 0 : 40 * MS);
		ASSERT_EQ(0, pthread_create(&t, NULL, kick_later, self->r));
		EXPECT_EQ(-EINTR, wait_patiently(self->r));
		pthread_join(t, NULL);
		EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, MS));
	}
	/* By a handler in the waiting thread, restarting or not. */
	arm(kick, 0);
	EXPECT_EQ(-EINTR, wait_patiently(self->r));
	arm(kick, SA_RESTART);
	EXPECT_EQ(-EINTR, wait_patiently(self->r));
	arm(nothing, 0);
	EXPECT_EQ(-EINTR, wait_patiently(self->r));
	EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, MS));
}

TEST_F(ring, a_wait_that_would_end_at_once_is_due)
{
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	EXPECT_FALSE(ring_due(self->r));
	ring_kick(self->r);
	EXPECT_TRUE(ring_due(self->r));
	EXPECT_EQ(-EINTR, wait_patiently(self->r));
	EXPECT_FALSE(ring_due(self->r));
}

static uint32_t call;

static void *call_later(void *arg)
{
	(void)arg;
	sleep_ns(20 * MS);
	__atomic_add_fetch(&call, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &call, FUTEX_WAKE, 1, NULL, NULL, 0);
	return NULL;
}

TEST_F(ring, a_heeded_word_ends_one_wait_for_each_change)
{
	pthread_t t;
	int i;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	if (ring_backend(self->r) == RING_KMOD) {
		EXPECT_EQ(-ENOTSUP, ring_heed(self->r, &call));
		return;
	}
	call = 7;
	ASSERT_EQ(0, ring_heed(self->r, &call));
	EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, MS));
	call = 6;
	EXPECT_EQ(-EINTR, wait_patiently(self->r));
	EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, MS));
	EXPECT_EQ(-ETIMEDOUT, ring_wait_yielding(self->r, MS));
	/* During the wait: spinning or asleep, and without the spins. */
	for (i = 0; i < 3; i++) {
		ring_set_spin(self->r, i % 2 ? 0 : 40 * MS);
		ASSERT_EQ(0, pthread_create(&t, NULL, call_later, NULL));
		EXPECT_EQ(-EINTR, i < 2 ? wait_patiently(self->r) :
				  ring_wait_yielding(self->r, PATIENCE));
		pthread_join(t, NULL);
		EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, MS));
	}
	/* It hides neither kicks nor the doorbell. */
	ASSERT_EQ(0, pthread_create(&t, NULL, kick_later, self->r));
	EXPECT_EQ(-EINTR, ring_wait_yielding(self->r, PATIENCE));
	pthread_join(t, NULL);
}

static void interrupted_call(int fd, void *arg)
{
	struct sigaction sa = { .sa_handler = nothing };
	struct itimerval t = { { 0, 500 }, { 0, 500 } };
	struct ring *r = attached(fd);
	struct ring_ticket k;
	int32_t status = 1;
	int64_t begin;

	(void)arg;
	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &t, NULL);
	/* Interrupted by hundreds of signals, a call goes on; its time is not stretched by them. */
	NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, &status, NULL, 0, NULL));
	NEED(status == 5);
	NEED_OK(ring_request(r, &k, 2, NULL, 0, NULL, 0));
	begin = now_ns();
	NEED(ring_await(r, &k, &status, NULL, 0, NULL, 100 * MS) == -ETIMEDOUT);
	NEED(now_ns() - begin >= 100 * MS);
	NEED(now_ns() - begin < PATIENCE);
	ring_close(r);
}

TEST_F(ring, signals_neither_end_nor_stretch_a_call)
{
	struct ring_record rec;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, interrupted_call, NULL);
	ASSERT_LT(0, pid);
	ASSERT_EQ(1, next(self->r, &rec));
	sleep_ns(200 * MS);
	ring_complete(self->r, rec.cpl, rec.seq, 5, NULL, 0);
	ring_advance(self->r);
	ASSERT_EQ(1, next(self->r, &rec));
	ring_advance(self->r);
	EXPECT_EQ(-EPIPE, next(self->r, &rec));
	EXPECT_EQ(0, reap(&self->z, pid));
}

TEST_HARNESS_MAIN
