// SPDX-License-Identifier: Apache-2.0
/*
 * icount_handoff.c - the cost of one round trip between two sleeping processes, in instructions
 *
 * Meant for QEMU with one processor and -icount shift=0: there the time stamp counter counts
 * guest instructions, the kernel's included, and a run gives the same numbers each time. One
 * round trip is two hand-offs: each side sets its own word, wakes the peer and waits for the
 * peer's word. By futex that is FUTEX_WAKE and FUTEX_WAIT on shared memory; by the module it is
 * WAKE_WAIT, and, for comparison, WAKE and WAIT. The module's must be below the futex pair.
 *
 * Prints lines `metric value unit` after "# vm: " for selftests/kmod/icount.
 */
#include "kmod.h"

#include <linux/futex.h>
#include <sys/wait.h>

#define ROUNDS 2000

/* Two words on lines of their own: completion slots 0 and 1 of a channel, or of a memfd. */
struct words {
	_Atomic uint32_t ping;
	char pad[60];
	_Atomic uint32_t pong;
};

typedef void (*handoff_fn)(int fd, struct words *w, int side, uint32_t turn);

static uint64_t instructions(void)
{
	uint32_t lo, hi;

	__asm__ volatile("lfence; rdtsc" : "=a"(lo), "=d"(hi) : : "memory");
	return lo | (uint64_t)hi << 32;
}

static _Atomic uint32_t *mine(struct words *w, int side)
{
	return side ? &w->pong : &w->ping;
}

static void check(long r, long also)
{
	if (r < 0 && r != also) {
		printf("# failed: %s\n", strerror(-r));
		_exit(1);
	}
}

static void by_futex(int fd, struct words *w, int side, uint32_t turn)
{
	_Atomic uint32_t *peer = mine(w, !side);

	(void)fd;
	check(SYS(syscall(SYS_futex, mine(w, side), FUTEX_WAKE, 1, NULL, NULL, 0)), 0);
	while (*peer == turn)
		check(SYS(syscall(SYS_futex, peer, FUTEX_WAIT, turn, NULL, NULL, 0)), -EAGAIN);
}

#define OFF(w, p) (PAGE + (uint64_t)((char *)(p) - (char *)(w)))

static void by_wake_wait(int fd, struct words *w, int side, uint32_t turn)
{
	_Atomic uint32_t *peer = mine(w, !side);
	struct singvgpu_wake_wait arg = {
		.wake = { .off = OFF(w, mine(w, side)), .nr = 1 },
		.wait = { .off = OFF(w, peer), .expect = turn, .timeout_ns = -1 },
	};

	check(SYS(syscall(SYS_ioctl, fd, SINGVGPU_IOC_WAKE_WAIT, &arg)), 0);
	while (*peer == turn)
		check(SYS(syscall(SYS_ioctl, fd, SINGVGPU_IOC_WAIT, &arg.wait)), 0);
}

static void by_wake_and_wait(int fd, struct words *w, int side, uint32_t turn)
{
	_Atomic uint32_t *peer = mine(w, !side);
	struct singvgpu_wake wk = { .off = OFF(w, mine(w, side)), .nr = 1 };
	struct singvgpu_wait wt = { .off = OFF(w, peer), .expect = turn, .timeout_ns = -1 };

	check(SYS(syscall(SYS_ioctl, fd, SINGVGPU_IOC_WAKE, &wk)), 0);
	while (*peer == turn)
		check(SYS(syscall(SYS_ioctl, fd, SINGVGPU_IOC_WAIT, &wt)), 0);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The peer answers each turn; it ends with the last. */
static void answer(int fd, struct words *w, handoff_fn handoff)
{
	uint32_t turn;

	for (turn = 0; turn < ROUNDS; turn++) {
		while (w->ping == turn) {
			if (handoff == by_futex)
				syscall(SYS_futex, &w->ping, FUTEX_WAIT, turn, NULL, NULL, 0);
			else
				wait_on(fd, OFF(w, &w->ping), turn, -1);
		}
		w->pong = turn + 1;
		if (turn + 1 < ROUNDS) {
			handoff(fd, w, 1, turn + 1);
		} else if (handoff == by_futex) {
			syscall(SYS_futex, &w->pong, FUTEX_WAKE, 1, NULL, NULL, 0);
		} else {
			wake(fd, OFF(w, &w->pong), 1);
		}
	}
}

/* Median of the round trips, in instructions. */
static uint64_t ask(int fd, struct words *w, handoff_fn handoff)
{
	static uint64_t took[ROUNDS];
	uint64_t start;
	uint32_t turn;

	for (turn = 0; turn < ROUNDS; turn++) {
		start = instructions();
		w->ping = turn + 1;
		handoff(fd, w, 0, turn);
		took[turn] = instructions() - start;
	}
	qsort(took, ROUNDS, sizeof(took[0]), by_value);
	return took[ROUNDS / 2];
}

static void pin(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static uint64_t measure_futex(void)
{
	struct words *w = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);
	uint64_t n;
	pid_t child;

	child = fork();
	if (!child) {
		answer(-1, w, by_futex);
		_exit(0);
	}
	n = ask(-1, w, by_futex);
	if (reap(child))
		n = 0;
	munmap(w, PAGE);
	return n;
}

static uint64_t measure_kmod(handoff_fn handoff)
{
	struct singvgpu_create c = default_create();
	struct words *w = (void *)(VA + PAGE);
	int fd = open_device();
	struct steps steps;
	uint64_t n;
	pid_t child;

	if (create(fd, &c) || steps_open(&steps))
		return 0;
	child = fork();
	if (!child) {
		fd = open_device();
		if (attach(fd, &c) || map_at(fd, 0, LOG_OFF) != (void *)VA)
			_exit(1);
		tell_parent(&steps);
		answer(fd, w, handoff);
		wait_parent(&steps);
		_exit(0);
	}
	if (map_at(fd, 0, LOG_OFF) != (void *)VA || !wait_child(&steps))
		return 0;
	n = ask(fd, w, handoff);
	tell_child(&steps);
	if (reap(child))
		n = 0;
	steps_close(&steps);
	munmap((void *)VA, LENGTH);
	close(fd);
	return n;
}

TEST(hand_off_takes_fewer_instructions_than_futexes)
{
	uint64_t futex = UINT64_MAX, kmod = 0, both = 0, n;
	int run;

	REQUIRE_DEVICE();
	if (sysconf(_SC_NPROCESSORS_ONLN) > 1 || !getenv("SINGVGPU_ICOUNT"))
		SKIP(return, "counts instructions only under selftests/kmod/icount");
	pin();
	/* Who is preempted where differs from run to run: the worst of ours, the best of theirs. */
	for (run = 0; run < 3; run++) {
		n = measure_futex();
		ASSERT_NE(0, n);
		futex = n < futex ? n : futex;
		n = measure_kmod(by_wake_wait);
		ASSERT_NE(0, n);
		kmod = n > kmod ? n : kmod;
		n = measure_kmod(by_wake_and_wait);
		ASSERT_NE(0, n);
		both = n > both ? n : both;
	}
	printf("# vm: vm.icount_futex %lu instructions\n", futex);
	printf("# vm: vm.icount_kmod %lu instructions\n", kmod);
	printf("# vm: vm.icount_kmod_wake_then_wait %lu instructions\n", both);
	fflush(stdout);
	EXPECT_LT(kmod, futex);
}

TEST_HARNESS_MAIN
