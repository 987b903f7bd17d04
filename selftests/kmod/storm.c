// SPDX-License-Identifier: Apache-2.0
/*
 * storm.c - either side killed at 1000 random moments: the survivor is notified, nothing is leaked
 */
#include "kmod.h"

FIXTURE(storm) {
	unsigned int seed;
};

FIXTURE_SETUP(storm)
{
	const char *seed = getenv("SINGVGPU_SEED");

	REQUIRE_DEVICE();
	if (total("channels") < 0)
		SKIP(return, "needs root and debugfs to see what is left over");
	ASSERT_EQ(0, total_settles("channels", 0));
	self->seed = seed ? atoi(seed) : 20261121;
	TH_LOG("SINGVGPU_SEED=%u", self->seed);
}

FIXTURE_TEARDOWN(storm)
{
}

static void nap(unsigned int *seed, int max_us)
{
	struct timespec ts = { 0, rand_r(seed) % (max_us * 1000) };

	nanosleep(&ts, NULL);
}

/* Uses the channel in every way, until the peer is gone: then exits with 0. */
static void use_channel(int fd, int side, unsigned int seed)
{
	struct singvgpu_wake_wait arg = {
		.wake = { .off = side ? PAGE : DOORBELL, .nr = 1 },
		.wait = { .off = side ? DOORBELL : PAGE },
	};
	_Atomic uint32_t *mine = (void *)(VA + arg.wake.off);
	_Atomic uint32_t *theirs = (void *)(VA + arg.wait.off);
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	uint64_t page;
	long r;

	for (;;) {
		page = rand_r(&seed) % (ARENA / PAGE);
		*(volatile char *)(VA + ARENA_OFF + page * PAGE) = 1;
		(*mine)++;
		switch (rand_r(&seed) % 5) {
		case 0:
			r = range(fd, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, page * PAGE);
			break;
		case 1:
			poll(&pfd, 1, 2);
			r = pfd.revents & POLLHUP ? -EPIPE : 0;
			break;
		case 2:
			arg.wait.expect = *theirs;
			arg.wait.timeout_ns = 2 * MS;
			r = SYS(ioctl(fd, SINGVGPU_IOC_WAKE_WAIT, &arg));
			break;
		case 3:
			r = wait_on(fd, arg.wait.off, *theirs, 3 * MS);
			break;
		default:
			r = wake(fd, arg.wake.off, 2);
		}
		if (r == -EPIPE)
			_exit(0);
		if (r < 0 && r != -ETIME)
			_exit(-r);
	}
}

/* Side 1 is the proxy. They tell that they are up, and begin when they are told to. */
static pid_t start_side(int side, struct singvgpu_create *c, struct steps *steps, unsigned int seed)
{
	pid_t pid = fork();
	int fd;
	long r;

	if (pid)
		return pid;
	fd = open_device();
	if (side)
		r = create(fd, c);
	else
		while ((r = attach(fd, c)) == -ENOENT)
			sched_yield();
	if (r || map_at(fd, 0, LOG_OFF) != (void *)VA)
		_exit(200);
	tell_parent(steps);
	wait_parent(steps);
	use_channel(fd, side, seed);
	_exit(201);
}

/* What a process that should have gone on is doing. */
static void tell_state(pid_t pid, const char *who)
{
	static const char *const files[] = { "stat", "stack", "syscall" };
	char path[64], text[1024];
	unsigned int i;

	for (i = 0; i < 3; i++) {
		ssize_t n;
		int fd;

		snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i]);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n = read(fd, text, sizeof(text) - 1);
		text[n < 0 ? 0 : n] = '\0';
		close(fd);
		fprintf(stderr, "# %s %s: %s\n", who, files[i], text);
	}
}

/* Nobody runs until both are up, so that what hangs can be told from what is slow. */
static bool start_pair(struct singvgpu_create *c, pid_t pid[2], unsigned int seed)
{
	static const char *const who[] = { "client", "proxy" };
	struct steps steps;
	bool up = true;
	int side;

	pid[0] = 0;
	if (steps_open(&steps))
		return false;
	for (side = 1; up && side >= 0; side--) {
		pid[side] = start_side(side, c, &steps, seed + side);
		up = wait_child(&steps);
	}
	for (side = 0; side < 2; side++) {
		if (up) {
			tell_child(&steps);
		} else if (pid[side]) {
			tell_state(pid[side], who[side]);
			kill(pid[side], SIGKILL);
			fprintf(stderr, "# %s: %d\n", who[side], reap(pid[side]));
		}
	}
	steps_close(&steps);
	return up;
}

TEST_F_TIMEOUT(storm, survivors_are_told_and_nothing_is_left, 1000)
{
	int i;

	for (i = 0; i < 1000; i++) {
		struct singvgpu_create c = default_create();
		int victim = rand_r(&self->seed) % 2, status;
		pid_t pid[2];

		ASSERT_TRUE(start_pair(&c, pid, self->seed)) TH_LOG("round %d", i);
		nap(&self->seed, i % 4 ? 10000 : 1000);
		kill(pid[victim], SIGKILL);
		status = reap(pid[!victim]);
		ASSERT_EQ(0, status) TH_LOG("round %d, victim %d", i, victim);
		ASSERT_EQ(1000 + SIGKILL, reap(pid[victim]));
		ASSERT_EQ(0, total_settles("channels", 0)) TH_LOG("round %d", i);
		ASSERT_EQ(0, total("pages"));
	}
}

/* Both killed at any moment, also while they come up. */
TEST_F(storm, nothing_is_left_of_pairs_that_hardly_lived)
{
	struct steps steps;
	int i;

	ASSERT_EQ(0, steps_open(&steps));
	for (i = 0; i < 500; i++) {
		struct singvgpu_create c = default_create();
		pid_t pid[2];

		fcntl(steps.to_parent[1], F_SETPIPE_SZ, 65536);
		pid[0] = start_side(0, &c, &steps, self->seed);
		pid[1] = start_side(1, &c, &steps, self->seed + 1);
		tell_child(&steps);
		tell_child(&steps);
		nap(&self->seed, 8000);
		kill(pid[i & 1], SIGKILL);
		if (i & 2)
			nap(&self->seed, 2000);
		kill(pid[!(i & 1)], SIGKILL);
		reap(pid[0]);
		reap(pid[1]);
	}
	EXPECT_EQ(0, total_settles("channels", 0));
	EXPECT_EQ(0, total("pages"));
	EXPECT_LT(0, total("hangups"));
	steps_close(&steps);
}

TEST_HARNESS_MAIN
