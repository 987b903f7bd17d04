// SPDX-License-Identifier: Apache-2.0
/*
 * hangup.c - the end of either side, in any manner, is reported to the other at once; re-attachment
 */
#include "kmod.h"

#include <sys/wait.h>

/* What ends a process's end of the channel. */
enum manner { KILL, EXIT, EXEC, MUNMAP, MUNMAP_PARTS, CLOSE_ALL, KILL_DUPED, KILL_FORKED };

FIXTURE(pair) {
	struct singvgpu_create create;
	struct steps steps;
	int fd;
	pid_t child;
	pid_t grandchild;
};

FIXTURE_VARIANT(pair) {
	int child_is_proxy;
	enum manner manner;
};

#define VARIANTS(name, m) \
	FIXTURE_VARIANT_ADD(pair, client_##name) { 0, m }; \
	FIXTURE_VARIANT_ADD(pair, proxy_##name) { 1, m }

VARIANTS(killed, KILL);
VARIANTS(exits, EXIT);
VARIANTS(execs, EXEC);
VARIANTS(unmaps, MUNMAP);
VARIANTS(unmaps_in_parts, MUNMAP_PARTS);
VARIANTS(unmaps_and_closes, CLOSE_ALL);
VARIANTS(killed_while_another_has_the_file, KILL_DUPED);
VARIANTS(killed_while_its_child_lives, KILL_FORKED);

static void die(enum manner manner)
{
	uint64_t off;

	switch (manner) {
	case EXIT:
		_exit(0);
	case EXEC:
		execl("/bin/sleep", "sleep", "1000", NULL);
		_exit(97);
	case MUNMAP_PARTS:
		for (off = 0; off < LOG_OFF; off += LOG_OFF / 4 / PAGE * PAGE)
			munmap((void *)(VA + off), LOG_OFF / 4 / PAGE * PAGE);
		munmap((void *)VA, LENGTH);
		break;
	case CLOSE_ALL:
		close_range(3, ~0U, 0);
		munmap((void *)VA, LENGTH);
		break;
	case MUNMAP:
		munmap((void *)VA, LENGTH);
		break;
	default:
		break;
	}
	for (;;)
		pause();
}

/* The child's side: makes its end of the channel, says so, and goes when it is told to. */
static void child_main(FIXTURE_DATA(pair) *self, const FIXTURE_VARIANT(pair) *variant, int dup_to)
{
	int fd = open_device();
	long r;

	r = variant->child_is_proxy ? create(fd, &self->create) : attach(fd, &self->create);
	if (r || map_at(fd, 0, LOG_OFF) != (void *)VA)
		_exit(96);
	memset((void *)(VA + ARENA_OFF), 1, 8 * PAGE);
	if (variant->manner == KILL_DUPED && ring_pass_fd(dup_to, fd))
		_exit(95);
	if (variant->manner == KILL_FORKED) {
		self->grandchild = fork();
		if (!self->grandchild)
			for (;;)
				pause();
	}
	if (write(self->steps.to_parent[1], &self->grandchild, sizeof(pid_t)) != sizeof(pid_t))
		_exit(94);
	wait_parent(&self->steps);
	die(variant->manner);
}

FIXTURE_SETUP(pair)
{
	int socks[2];

	REQUIRE_DEVICE();
	self->create = default_create();
	ASSERT_EQ(0, steps_open(&self->steps));
	/* The passed file stays in the socket: nobody ever receives it. */
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, socks));
	self->fd = open_device();
	ASSERT_LE(0, self->fd);
	if (!variant->child_is_proxy)
		ASSERT_EQ(0, create(self->fd, &self->create));
	self->child = fork();
	ASSERT_LE(0, self->child);
	if (!self->child) {
		if (!variant->child_is_proxy)
			close(self->fd);
		child_main(self, variant, socks[1]);
	}
	ASSERT_EQ(sizeof(pid_t), read(self->steps.to_parent[0], &self->grandchild,
				      sizeof(pid_t)));
	if (variant->child_is_proxy)
		ASSERT_EQ(0, attach(self->fd, &self->create));
	ASSERT_EQ((void *)VA, map_at(self->fd, 0, LOG_OFF));
	close(socks[1]);
	self->steps.to_child[0] = dup3(socks[0], self->steps.to_child[0], O_CLOEXEC);
	close(socks[0]);
}

FIXTURE_TEARDOWN(pair)
{
	kill(self->child, SIGKILL);
	reap(self->child);
	if (self->grandchild)
		kill(self->grandchild, SIGKILL);
	munmap((void *)VA, LENGTH);
	close(self->fd);
	steps_close(&self->steps);
}

static void end_child(FIXTURE_DATA(pair) *self, const FIXTURE_VARIANT(pair) *variant)
{
	if (variant->manner == KILL || variant->manner == KILL_DUPED ||
	    variant->manner == KILL_FORKED)
		kill(self->child, SIGKILL);
	else
		tell_child(&self->steps);
}

static uint32_t *life_of_peer(const FIXTURE_VARIANT(pair) *variant)
{
	return variant->child_is_proxy ? &ctl_of()->life : &ctl_of()->client_life;
}

TEST_F(pair, ends_waits_and_polls)
{
	struct waiter w[3] = {
		{ .fd = self->fd, .off = DOORBELL, .timeout = -1 },
		{ .fd = self->fd, .off = PAGE + 64, .timeout = 60000 * MS },
		{ .fd = self->fd, .off = RING_OFF - 64, .timeout = -1 },
	};
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	struct pollfd pfd = { .fd = self->fd, .events = POLLIN };
	int ep = epoll_create1(EPOLL_CLOEXEC), i;
	int64_t start;

	ASSERT_EQ(0, epoll_ctl(ep, EPOLL_CTL_ADD, self->fd, &ev));
	EXPECT_EQ(0, epoll_wait(ep, &ev, 1, 0));
	EXPECT_EQ(0, *life_of_peer(variant));
	for (i = 0; i < 3; i++)
		ASSERT_TRUE(waiter_start(&w[i]));
	start = now_ns();
	end_child(self, variant);
	for (i = 0; i < 3; i++)
		EXPECT_EQ(-EPIPE, waiter_end(&w[i]));
	EXPECT_GT(PATIENCE_S * 1000 * MS, now_ns() - start);
	EXPECT_EQ(SINGVGPU_LIFE_DIED, *life_of_peer(variant));
	EXPECT_EQ(1, epoll_wait(ep, &ev, 1, 3 * PATIENCE_S * 1000));
	EXPECT_EQ(EPOLLHUP | EPOLLERR, ev.events);
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(POLLHUP | POLLERR, pfd.revents);
	EXPECT_EQ(0, info_of(self->fd).state);
	/* Later waits too, save those that have nothing to wait for. */
	EXPECT_EQ(-EPIPE, wait_on(self->fd, DOORBELL, 0, -1));
	EXPECT_EQ(-EPIPE, wait_on(self->fd, DOORBELL, 0, 0));
	EXPECT_EQ(0, wait_on(self->fd, DOORBELL, 1, -1));
	EXPECT_EQ(0, wake(self->fd, DOORBELL, 1));
	/* The memory is still there. */
	EXPECT_EQ(1, *(char *)(VA + ARENA_OFF + PAGE));
	*(char *)(VA + ARENA_OFF + 100 * PAGE) = 1;
	close(ep);
}

TEST_F(pair, frees_the_place)
{
	int fd = open_device();
	struct pollfd pfd = { .fd = self->fd };

	ASSERT_LE(0, fd);
	end_child(self, variant);
	ASSERT_EQ(1, poll(&pfd, 1, 3 * PATIENCE_S * 1000));
	if (variant->child_is_proxy) {
		EXPECT_EQ(-ENOENT, attach(fd, &self->create));
		EXPECT_EQ(0, create(fd, &self->create));
		EXPECT_EQ(0, info_of(fd).state);
	} else {
		EXPECT_EQ(0, attach(fd, &self->create));
		EXPECT_EQ(1, info_of(fd).generation);
		EXPECT_EQ(1 << SINGVGPU_CONS_GEN_SHIFT, ctl_of()->cons);
		EXPECT_EQ(0, ctl_of()->client_life);
		EXPECT_EQ(SINGVGPU_STATE_PEER, info_of(self->fd).state);
		EXPECT_EQ(0, poll(&pfd, 1, 0));
		EXPECT_EQ(-ETIME, wait_on(self->fd, DOORBELL, 0, 1));
	}
	close(fd);
}

TEST_F(channel, an_end_that_nobody_mapped_hangs_up_with_its_last_file)
{
	struct waiter w = { .fd = self->proxy, .off = DOORBELL, .timeout = -1 };
	int copy = dup(self->client);

	ASSERT_TRUE(waiter_start(&w));
	close(self->client);
	sleep_ms(20);
	EXPECT_EQ(12345, w.result);
	close(copy);
	EXPECT_EQ(-EPIPE, waiter_end(&w));
	self->client = open_device();
}

/* Closing a file that a thread waits on in the kernel. */
TEST_F(channel, close_while_waiting)
{
	struct waiter w = { .fd = self->client, .off = DOORBELL, .timeout = 4000 * MS };

	ASSERT_TRUE(waiter_start(&w));
	close(self->client);
	EXPECT_EQ(-ETIME, waiter_end(&w));
	EXPECT_EQ(-EPIPE, wait_on(self->proxy, DOORBELL, 0, -1));
	self->client = open_device();
}

TEST_F(channel, what_was_said_before_the_end_counts)
{
	struct waiter w = { .fd = self->client, .off = PAGE + 64, .timeout = -1 };

	ASSERT_TRUE(waiter_start(&w));
	/* Dies between the answer and the wake-up. */
	*(volatile uint32_t *)(VA + PAGE + 64) = 1;
	munmap((void *)VA, LENGTH);
	EXPECT_EQ(0, waiter_end(&w));
	EXPECT_EQ(-EPIPE, wait_on(self->client, PAGE + 64, 1, -1));
}

TEST_F(channel, an_end_that_has_hung_up_knows_it)
{
	struct pollfd pfd = { .fd = self->proxy };
	struct waiter w = { .fd = self->proxy, .off = DOORBELL, .timeout = -1 };
	struct waiter c = { .fd = self->client, .off = DOORBELL, .timeout = -1 };
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int ep = epoll_create1(EPOLL_CLOEXEC);

	ASSERT_TRUE(waiter_start(&w));
	ASSERT_TRUE(waiter_start(&c));
	ASSERT_EQ(0, epoll_ctl(ep, EPOLL_CTL_ADD, self->proxy, &ev));
	ASSERT_EQ(0, epoll_wait(ep, &ev, 1, 0));
	munmap((void *)VA, LENGTH);
	EXPECT_EQ(1, epoll_wait(ep, &ev, 1, 0));
	EXPECT_EQ(EPOLLHUP | EPOLLERR, ev.events);
	close(ep);
	EXPECT_EQ(-EPIPE, waiter_end(&w));
	EXPECT_EQ(-EPIPE, waiter_end(&c));
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(POLLHUP | POLLERR, pfd.revents);
	EXPECT_EQ(0, info_of(self->proxy).state);
	EXPECT_EQ(0, info_of(self->client).state);
	EXPECT_EQ(-EPIPE, wait_on(self->proxy, DOORBELL, 0, -1));
	EXPECT_EQ(-EPIPE, SYS(ioctl(self->proxy, SINGVGPU_IOC_FREEZE)));
	EXPECT_EQ(-EPIPE, SYS(map_at(self->proxy, 0, LENGTH)));
	EXPECT_EQ(-EBUSY, create(self->proxy, &self->create));
	EXPECT_EQ(-ENOENT, attach(self->client, &self->create));
}

TEST_F(channel, parts_come_and_go_while_one_is_left)
{
	struct pollfd pfd = { .fd = self->client };
	int i;

	for (i = 0; i < 10; i++) {
		ASSERT_EQ(0, munmap((void *)(VA + RING_OFF), LENGTH - RING_OFF));
		ASSERT_EQ((void *)(VA + RING_OFF), map_at(self->proxy, RING_OFF, ARENA));
		ASSERT_EQ(0, munmap((void *)(VA + RING_OFF + ARENA / 2 / PAGE * PAGE), PAGE));
		ASSERT_EQ(0, mprotect((void *)(VA + RING_OFF + PAGE), PAGE, PROT_READ));
		EXPECT_EQ(0, poll(&pfd, 1, 0));
	}
	ASSERT_EQ(0, munmap((void *)(VA + PAGE), LENGTH));
	EXPECT_EQ(0, poll(&pfd, 1, 0));
	EXPECT_EQ(SINGVGPU_MAGIC, self->ctl->magic);
	ASSERT_EQ(0, munmap((void *)VA, PAGE));
	EXPECT_EQ(1, poll(&pfd, 1, 0));
}

#define REATTACHMENTS 10000

TEST_F(channel, reattaches_10000_times)
{
	struct singvgpu_attach arg;
	struct pollfd pfd = { .fd = self->proxy };
	int i, fd = self->client;

	for (i = 1; i <= REATTACHMENTS; i++) {
		arg = attach_to(&self->create);
		if (i % 2) {
			close(fd);
			fd = open_device();
			ASSERT_LE(0, fd);
			ASSERT_EQ(0, poll(&pfd, 1, 0) != 1);
			ASSERT_EQ(POLLHUP | POLLERR, pfd.revents & ~POLLPRI);
		} else {
			int other = open_device();

			ASSERT_EQ(-EBUSY, SYS(ioctl(other, SINGVGPU_IOC_ATTACH, &arg)));
			close(fd);
			fd = other;
		}
		ASSERT_EQ(0, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &arg)));
		ASSERT_EQ(i, arg.generation);
		ASSERT_EQ((uint32_t)i << 8, self->ctl->cons);
		ASSERT_EQ(0, self->ctl->client_life);
	}
	self->client = fd;
	EXPECT_EQ(REATTACHMENTS, info_of(self->proxy).generation);
}

/* The same file, mapped by one process after the other. */
TEST_F(channel, reattaches_the_same_file)
{
	struct singvgpu_attach arg;
	int i;

	for (i = 1; i <= 300; i++) {
		pid_t child = fork();

		ASSERT_LE(0, child);
		if (!child) {
			if (map_at(self->client, 0, LOG_OFF) != (void *)VA)
				_exit(1);
			*(uint32_t *)(VA + ARENA_OFF) = i;
			if (i % 3 == 0)
				_exit(*(uint32_t *)(VA + ARENA_OFF) != (uint32_t)i);
			kill(getpid(), SIGKILL);
		}
		ASSERT_EQ(i % 3 ? 1000 + SIGKILL : 0, reap(child));
		ASSERT_EQ(SINGVGPU_LIFE_DIED, self->ctl->client_life);
		ASSERT_EQ(i, *(uint32_t *)(VA + ARENA_OFF));
		ASSERT_EQ(-EPIPE, wait_on(self->client, DOORBELL, 0, -1));
		arg = attach_to(&self->create);
		ASSERT_EQ(0, SYS(ioctl(self->client, SINGVGPU_IOC_ATTACH, &arg)));
		ASSERT_EQ(i, arg.generation);
	}
}

TEST_F(channel, generation_wraps_in_the_control_page_only)
{
	struct singvgpu_attach arg = attach_to(&self->create);
	struct singvgpu_create c = default_create();
	int proxy = open_device(), client = open_device();

	c.generation = 0xffffff;
	ASSERT_EQ(0, create(proxy, &c));
	ASSERT_EQ(0, attach(client, &c));
	close(client);
	client = open_device();
	arg = attach_to(&c);
	ASSERT_EQ(0, SYS(ioctl(client, SINGVGPU_IOC_ATTACH, &arg)));
	EXPECT_EQ(0x1000000, arg.generation);
	close(client);
	close(proxy);
}

/* The proxy's flags in the same word survive what the module writes there. */
static _Atomic int flip_over;

static void *flip_main(void *p)
{
	(void)p;
	while (!flip_over) {
		__atomic_or_fetch(&ctl_of()->cons, SINGVGPU_CONS_SLEEPS, __ATOMIC_SEQ_CST);
		if (!(__atomic_fetch_and(&ctl_of()->cons, ~SINGVGPU_CONS_SLEEPS,
					 __ATOMIC_SEQ_CST) & SINGVGPU_CONS_SLEEPS))
			return (void *)1;
	}
	return NULL;
}

TEST_F(channel, reattachment_keeps_the_proxys_flags)
{
	pthread_t thread;
	void *lost;
	int i;

	ASSERT_EQ(0, pthread_create(&thread, NULL, flip_main, NULL));
	for (i = 1; i <= 500; i++) {
		close(self->client);
		self->client = open_device();
		ASSERT_EQ(0, attach(self->client, &self->create));
		ASSERT_EQ(i, self->ctl->cons >> 8);
	}
	flip_over = 1;
	pthread_join(thread, &lost);
	EXPECT_EQ(NULL, lost);
}

/* How long it takes until a client's death is told, and until it is over. */
static int time_death(int client, int proxy, int64_t *told, int64_t *gone)
{
	struct waiter w = { .fd = proxy, .off = DOORBELL, .timeout = -1 };
	size_t size = 300UL << 20;
	struct steps steps;
	int64_t start;
	pid_t child;

	if (steps_open(&steps))
		return -1;
	child = fork();
	if (!child) {
		char *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED || map_at(client, 0, PAGE) != (void *)VA)
			_exit(1);
		madvise(p, size, MADV_NOHUGEPAGE);
		memset(p, 1, size);
		tell_parent(&steps);
		for (;;)
			pause();
	}
	if (!wait_child(&steps) || !waiter_start(&w))
		return -1;
	start = now_ns();
	kill(child, SIGKILL);
	if (waiter_end(&w) != -EPIPE)
		return -1;
	*told = now_ns() - start;
	reap(child);
	*gone = now_ns() - start;
	steps_close(&steps);
	return 0;
}

/*
 * A process with much memory takes long to free it; its end must not wait for that. The machine
 * may have other things to do just then: once in a few times it must show.
 */
TEST_F(channel, death_is_told_before_the_memory_is_freed)
{
	int64_t told = 0, gone = 0;
	int i;

	for (i = 0; i < 5; i++) {
		ASSERT_EQ(0, time_death(self->client, self->proxy, &told, &gone));
		if (told * 4 < gone)
			break;
		ASSERT_EQ(0, attach(self->client, &self->create));
	}
	TH_LOG("told after %lld us, gone after %lld us", (long long)told / 1000,
	       (long long)gone / 1000);
	EXPECT_GT(5, i);
}

TEST_HARNESS_MAIN
