// SPDX-License-Identifier: Apache-2.0
/*
 * waiting.c - WAIT, WAKE and WAKE_WAIT: who is woken, timeouts and their remainders, signals
 */
#include "kmod.h"

#define SLOT(n) (PAGE + 64ULL * (n))

TEST_F(channel, wait_returns_at_once_when_the_word_differs)
{
	self->ctl->doorbell = 7;
	EXPECT_EQ(0, wait_on(self->proxy, DOORBELL, 6, -1));
	EXPECT_EQ(0, wait_on(self->client, DOORBELL, 8, -1));
	EXPECT_EQ(0, wait_on(self->client, DOORBELL, 8, 0));
	EXPECT_EQ(-ETIME, wait_on(self->client, DOORBELL, 7, 0));
	EXPECT_EQ(-ETIME, wait_on(self->client, DOORBELL, 7, 1));
}

TEST_F(channel, timeout_is_relative_and_what_is_left_is_told)
{
	struct singvgpu_wait w = { .off = SLOT(3), .timeout_ns = 50 * MS };
	int64_t start = now_ns(), took;

	EXPECT_EQ(-ETIME, SYS(ioctl(self->client, SINGVGPU_IOC_WAIT, &w)));
	took = now_ns() - start;
	EXPECT_LE(50 * MS, took);
	EXPECT_GT(PATIENCE_S * 1000 * MS, took);
	EXPECT_EQ(0, w.timeout_ns);
	/* A wait that ends otherwise leaves the time alone. */
	w.timeout_ns = 123;
	w.expect = 1;
	EXPECT_EQ(0, SYS(ioctl(self->client, SINGVGPU_IOC_WAIT, &w)));
	EXPECT_EQ(123, w.timeout_ns);
}

TEST_F(channel, huge_and_negative_timeouts_wait)
{
	int64_t timeouts[] = { -1, INT64_MIN, INT64_MAX, INT64_MAX - 1, 1LL << 62 };
	unsigned int i;

	for (i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
		struct waiter w = { .fd = self->client, .off = DOORBELL, .timeout = timeouts[i] };

		ASSERT_TRUE(waiter_start(&w));
		EXPECT_EQ(1, wake(self->proxy, DOORBELL, 1));
		EXPECT_EQ(0, waiter_end(&w)) TH_LOG("time-out %u", i);
		EXPECT_EQ(timeouts[i], w.left);
	}
}

TEST_F(channel, wake_wakes_as_many_as_told_in_order_and_only_that_word)
{
	struct waiter w[5], other = { .fd = self->proxy, .off = SLOT(16), .timeout = -1 };
	int i;

	/* SLOT(0) and SLOT(16) share a list in the module. */
	ASSERT_TRUE(waiter_start(&other));
	for (i = 0; i < 5; i++) {
		w[i] = (struct waiter){ .fd = i & 1 ? self->proxy : self->client, .off = SLOT(0),
					.timeout = -1 };
		ASSERT_TRUE(waiter_start(&w[i]));
	}
	EXPECT_EQ(0, wake(self->proxy, SLOT(0), 0));
	EXPECT_EQ(0, wake(self->proxy, SLOT(0) + 4, 9));
	EXPECT_EQ(0, wake(self->proxy, SLOT(1), 9));
	EXPECT_EQ(1, wake(self->proxy, SLOT(0), 1));
	EXPECT_EQ(0, waiter_end(&w[0]));
	EXPECT_EQ(2, wake(self->client, SLOT(0), 2));
	EXPECT_EQ(0, waiter_end(&w[1]));
	EXPECT_EQ(0, waiter_end(&w[2]));
	EXPECT_EQ(12345, w[3].result);
	EXPECT_EQ(2, wake(self->client, SLOT(0), ~0U));
	EXPECT_EQ(0, waiter_end(&w[3]));
	EXPECT_EQ(0, waiter_end(&w[4]));
	EXPECT_EQ(0, wake(self->client, SLOT(0), ~0U));
	EXPECT_EQ(12345, other.result);
	EXPECT_EQ(1, wake(self->client, SLOT(16), ~0U));
	EXPECT_EQ(0, waiter_end(&other));
}

TEST_F(channel, wait_works_on_every_page_below_the_ring)
{
	struct waiter w = { .fd = self->client, .off = RING_OFF - 4, .timeout = -1 };

	ASSERT_TRUE(waiter_start(&w));
	*(volatile uint32_t *)(VA + RING_OFF - 4) = 5;
	EXPECT_EQ(1, wake(self->proxy, RING_OFF - 4, 1));
	EXPECT_EQ(0, waiter_end(&w));
	EXPECT_EQ(0, wait_on(self->client, RING_OFF - 4, 4, -1));
}

static void on_signal(int sig)
{
	(void)sig;
}

static void catch_signal(int flags)
{
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = flags };

	sigaction(SIGUSR1, &act, NULL);
}

TEST_F(channel, signal_interrupts_and_the_rest_of_the_time_is_told)
{
	struct waiter w = { .fd = self->client, .off = DOORBELL, .timeout = 100000 * MS };

	catch_signal(0);
	ASSERT_TRUE(waiter_start(&w));
	sleep_ms(30);
	pthread_kill(w.thread, SIGUSR1);
	EXPECT_EQ(-EINTR, waiter_end(&w));
	EXPECT_GE(99970 * MS, w.left);
	EXPECT_LT(40000 * MS, w.left);
	EXPECT_EQ(0, wake(self->proxy, DOORBELL, 1));

	/* A wait without end has no rest. */
	w.timeout = -5;
	ASSERT_TRUE(waiter_start(&w));
	pthread_kill(w.thread, SIGUSR1);
	EXPECT_EQ(-EINTR, waiter_end(&w));
	EXPECT_EQ(-5, w.left);
}

TEST_F(channel, restarted_wait_goes_on_with_the_rest_of_its_time)
{
	struct waiter w = { .fd = self->client, .off = DOORBELL, .timeout = 2000 * MS };
	int64_t start;
	long now;
	int i;

	catch_signal(SA_RESTART);
	start = now_ns();
	ASSERT_TRUE(waiter_start(&w));
	for (i = 0; i < 20; i++) {
		pthread_kill(w.thread, SIGUSR1);
		sleep_ms(10);
	}
	now = w.result;
	if (now_ns() - start < 2000 * MS)
		EXPECT_EQ(12345, now);
	EXPECT_EQ(-ETIME, waiter_end(&w));
	EXPECT_LE(2000 * MS, now_ns() - start);
	EXPECT_GT(PATIENCE_S * 1000 * MS, now_ns() - start);

	/* Restarted and then woken. */
	w.timeout = -1;
	ASSERT_TRUE(waiter_start(&w));
	pthread_kill(w.thread, SIGUSR1);
	ASSERT_TRUE(sleeps(w.tid));
	self->ctl->doorbell = 1;
	while (wake(self->proxy, DOORBELL, 1) == 0)
		sched_yield();
	EXPECT_EQ(0, waiter_end(&w));
}

static void *wake_waiter_main(void *p)
{
	struct waiter *w = p;
	struct singvgpu_wake_wait arg = {
		.wake = { .off = SLOT(1), .nr = 1 },
		.wait = { .off = w->off, .expect = w->expect, .timeout_ns = w->timeout },
	};

	w->tid = gettid();
	w->result = SYS(ioctl(w->fd, SINGVGPU_IOC_WAKE_WAIT, &arg));
	w->left = arg.wait.timeout_ns;
	return NULL;
}

TEST_F(channel, restarted_wake_wait_wakes_once)
{
	struct waiter a = { .fd = self->client, .off = SLOT(1), .timeout = -1 };
	struct waiter b = a, w = { .fd = self->proxy, .off = SLOT(2), .timeout = -1,
				   .result = 12345 };

	catch_signal(SA_RESTART);
	ASSERT_TRUE(waiter_start(&a));
	ASSERT_TRUE(waiter_start(&b));
	ASSERT_EQ(0, pthread_create(&w.thread, NULL, wake_waiter_main, &w));
	EXPECT_EQ(0, waiter_end(&a));
	while (!w.tid)
		sched_yield();
	ASSERT_TRUE(sleeps(w.tid));
	pthread_kill(w.thread, SIGUSR1);
	sleep_ms(50);
	ASSERT_TRUE(sleeps(w.tid));
	EXPECT_EQ(12345, b.result);
	EXPECT_EQ(1, wake(self->proxy, SLOT(1), 1));
	EXPECT_EQ(0, waiter_end(&b));
	EXPECT_EQ(1, wake(self->client, SLOT(2), 1));
	EXPECT_EQ(0, waiter_end(&w));
}

TEST_F(channel, wake_wait_wakes_even_when_it_need_not_wait)
{
	struct waiter a = { .fd = self->client, .off = SLOT(1), .timeout = -1 };
	struct singvgpu_wake_wait arg = {
		.wake = { .off = SLOT(1), .nr = 5 },
		.wait = { .off = SLOT(2), .expect = 1, .timeout_ns = -1 },
	};

	ASSERT_TRUE(waiter_start(&a));
	EXPECT_EQ(0, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE_WAIT, &arg)));
	EXPECT_EQ(0, waiter_end(&a));
	EXPECT_EQ(5, arg.wake.nr);
}

/* Two threads hand the turn to each other; a lost wake-up would leave both asleep. */
#define TURNS 20000

struct turns {
	int fd;
	uint32_t me;
	int mode;
	long error;
};

static void *turns_main(void *p)
{
	struct turns *t = p;
	_Atomic uint32_t *turn = (void *)(VA + SLOT(4));
	long r = 0;
	uint32_t now;

	while (!r && (now = *turn) < TURNS) {
		if (now % 2 != t->me) {
			r = wait_on(t->fd, SLOT(4), now, 3 * PATIENCE_S * 1000 * MS);
			continue;
		}
		*turn = now + 1;
		if (t->mode) {
			struct singvgpu_wake_wait arg = {
				.wake = { .off = SLOT(4), .nr = 1 },
				.wait = { .off = SLOT(4), .expect = now + 1,
					  .timeout_ns = 3 * PATIENCE_S * 1000 * MS },
			};

			if (now + 1 < TURNS)
				r = SYS(ioctl(t->fd, SINGVGPU_IOC_WAKE_WAIT, &arg));
			else
				wake(t->fd, SLOT(4), 1);
		} else {
			r = wake(t->fd, SLOT(4), 1);
			r = r < 0 ? r : 0;
		}
	}
	t->error = r;
	return NULL;
}

static void turns(struct __test_metadata *_metadata, FIXTURE_DATA(channel) *self, int mode)
{
	struct turns t[2] = { { self->proxy, 0, mode, 1 }, { self->client, 1, mode, 1 } };
	pthread_t thread[2];
	int i;

	for (i = 0; i < 2; i++)
		ASSERT_EQ(0, pthread_create(&thread[i], NULL, turns_main, &t[i]));
	for (i = 0; i < 2; i++) {
		pthread_join(thread[i], NULL);
		EXPECT_EQ(0, t[i].error);
	}
	EXPECT_EQ(TURNS, *(uint32_t *)(VA + SLOT(4)));
}

TEST_F(channel, no_wake_up_is_lost_by_wake)
{
	turns(_metadata, self, 0);
}

TEST_F(channel, no_wake_up_is_lost_by_wake_wait)
{
	turns(_metadata, self, 1);
}

/* Wake-ups, time-outs and signals of many at once: each wake-up that was counted arrived. */
static _Atomic int storm_over;
static _Atomic long storm_woken, storm_other;

static void *storm_main(void *p)
{
	int fd = *(int *)p;
	long r;

	while (!storm_over) {
		r = wait_on(fd, SLOT(5), 0, (1 + (now_ns() >> 4) % 3) * MS);
		if (r == 0)
			storm_woken++;
		else if (r == -ETIME || r == -EINTR)
			storm_other++;
		else
			abort();
	}
	return NULL;
}

TEST_F(channel, every_counted_wake_up_ends_one_wait)
{
	pthread_t thread[8];
	int64_t end = now_ns() + 3000 * MS;
	long sent = 0, r;
	int i = 0;

	catch_signal(0);
	for (i = 0; i < 8; i++)
		ASSERT_EQ(0, pthread_create(&thread[i], NULL, storm_main,
					    i & 1 ? &self->proxy : &self->client));
	while (now_ns() < end) {
		r = wake(self->proxy, SLOT(5), 1 + i % 3);
		ASSERT_LE(0, r);
		sent += r;
		pthread_kill(thread[i++ % 8], SIGUSR1);
	}
	storm_over = 1;
	for (i = 0; i < 8; i++)
		pthread_join(thread[i], NULL);
	EXPECT_EQ(sent, storm_woken);
	EXPECT_LT(20, storm_woken);
	EXPECT_LT(20, storm_other);
}

static int epoll_of(int fd, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.fd = fd };
	int ep = epoll_create1(EPOLL_CLOEXEC);

	return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) ? -1 : ep;
}

static uint32_t events_of(int ep, int timeout)
{
	struct epoll_event ev = {};
	int n = epoll_wait(ep, &ev, 1, timeout);

	return n == 1 ? ev.events : 0;
}

TEST_F(channel, poll_tells_of_the_doorbell_until_the_proxy_waits_on_it)
{
	struct pollfd pfd = { .fd = self->proxy, .events = POLLIN };
	struct pollfd client = { .fd = self->client, .events = POLLIN };

	EXPECT_EQ(0, poll(&pfd, 1, 0));
	self->ctl->doorbell = 1;
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(POLLIN, pfd.revents);
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(0, wait_on(self->proxy, DOORBELL, 0, 0));
	EXPECT_EQ(0, poll(&pfd, 1, 0));
	/* A time-out has seen what it expected, no more. */
	EXPECT_EQ(-ETIME, wait_on(self->proxy, DOORBELL, 1, 0));
	EXPECT_EQ(0, poll(&pfd, 1, 0));
	/* The client's waits say nothing about what the proxy has seen. */
	self->ctl->doorbell = 2;
	EXPECT_EQ(0, wait_on(self->client, DOORBELL, 1, 0));
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(0, poll(&client, 1, 0));
}

TEST_F(channel, wake_on_the_doorbell_ends_epoll)
{
	int ep = epoll_of(self->proxy, EPOLLIN | EPOLLET), i;

	ASSERT_LE(0, ep);
	EXPECT_EQ(0, events_of(ep, 0));
	for (i = 0; i < 3; i++) {
		self->ctl->doorbell++;
		EXPECT_EQ(0, wake(self->client, DOORBELL, 1));
		EXPECT_EQ(EPOLLIN, events_of(ep, 3 * PATIENCE_S * 1000));
		EXPECT_EQ(0, events_of(ep, 0));
	}
	/* Other words are not the doorbell. */
	EXPECT_EQ(0, wake(self->client, SLOT(0), 1));
	EXPECT_EQ(0, events_of(ep, 0));
	close(ep);
}

static void *ring_main(void *p)
{
	int fd = *(int *)p, i;

	for (i = 0; i < 2000; i++) {
		__atomic_add_fetch(&ctl_of()->doorbell, 1, __ATOMIC_SEQ_CST);
		if (wake(fd, DOORBELL, 1) < 0)
			abort();
	}
	return NULL;
}

TEST_F(channel, no_ring_of_the_doorbell_is_missed_by_epoll)
{
	int ep = epoll_of(self->proxy, EPOLLIN);
	uint32_t seen = 0;
	pthread_t thread;
	long r;

	ASSERT_LE(0, ep);
	ASSERT_EQ(0, pthread_create(&thread, NULL, ring_main, &self->client));
	while (seen < 2000) {
		ASSERT_EQ(EPOLLIN, events_of(ep, 3 * PATIENCE_S * 1000));
		/* It may have rung between the last wait and our look at it. */
		r = wait_on(self->proxy, DOORBELL, seen, 0);
		ASSERT_TRUE(r == 0 || r == -ETIME);
		seen = __atomic_load_n(&self->ctl->doorbell, __ATOMIC_SEQ_CST);
	}
	pthread_join(thread, NULL);
	close(ep);
}

TEST_F(channel, proxy_is_told_of_its_client_until_it_asks)
{
	struct pollfd pfd = { .fd = self->proxy, .events = POLLPRI };
	int ep = epoll_of(self->proxy, EPOLLPRI);

	ASSERT_LE(0, ep);
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(POLLPRI, pfd.revents);
	EXPECT_EQ(EPOLLPRI, events_of(ep, 0));
	EXPECT_EQ(SINGVGPU_STATE_PEER, info_of(self->proxy).state);
	EXPECT_EQ(0, poll(&pfd, 1, 0));
	EXPECT_EQ(0, events_of(ep, 0));
	close(ep);
}

/* Edge-triggered: only a wake-up reports anything after the first look. */
TEST_F(channel, attachment_wakes_the_proxys_pollers)
{
	int ep;

	close(self->client);
	self->client = open_device();
	info_of(self->proxy);
	ep = epoll_of(self->proxy, EPOLLPRI | EPOLLET);
	ASSERT_LE(0, ep);
	EXPECT_EQ(EPOLLHUP | EPOLLERR, events_of(ep, 0));
	EXPECT_EQ(0, events_of(ep, 0));
	ASSERT_EQ(0, attach(self->client, &self->create));
	EXPECT_EQ(EPOLLPRI, events_of(ep, 0));
	close(ep);
}

TEST_HARNESS_MAIN
