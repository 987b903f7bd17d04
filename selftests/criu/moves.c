// SPDX-License-Identifier: Apache-2.0
/*
 * moves.c - a client is dumped, killed and restored in mid-stream, again and again, over both
 * backends: no item is lost, none seen twice, each answer finds its caller
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kselftest_harness.h>

#include "../harness/patience.h"
#include "criu.h"

static int moments(void)
{
	const char *n = getenv("SINGVGPU_MOMENTS");

	return n ? atoi(n) : getenv("SINGVGPU_VM") ? 3 : 20;
}

FIXTURE(criu) {
	struct run run;
};

FIXTURE_VARIANT(criu) {
	enum ring_backend backend;
};

FIXTURE_VARIANT_ADD(criu, memfd) {
	.backend = RING_MEMFD,
};

FIXTURE_VARIANT_ADD(criu, kmod) {
	.backend = RING_KMOD,
};

FIXTURE_SETUP(criu)
{
	const char *missing = criu_missing(variant->backend);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN(criu)
{
	if (self->run.sh)
		run_free(&self->run);
}

TEST_F_TIMEOUT(criu, goes_on_after_each_move, 3000)
{
	struct run *r = &self->run;
	int i;

	ASSERT_EQ(run_begin(r, variant->backend, ""), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);
	for (i = 0; i < moments(); i++) {
		pause_us(run_random(r, 100000));
		ASSERT_EQ(run_move(r, i ? run_random(r, 4) : MOVE_FULL), 0);
	}
	ASSERT_EQ(run_end(r), 0);
	TH_LOG("%d moves, %lu with records left in the ring; %lu records, %lu calls, %lu children",
	       i, r->sh->left, r->sh->served, r->sh->end.calls, r->sh->end.forks);
	EXPECT_TRUE(r->sh->end.rseq);
	EXPECT_NE(r->sh->left, 0);
}

TEST_F(criu, goes_on_without_rseq)
{
	struct run *r = &self->run;
	int i;

	r->no_rseq = true;
	ASSERT_EQ(run_begin(r, variant->backend, ""), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);
	for (i = 0; i < (moments() + 3) / 4; i++)
		ASSERT_EQ(run_move(r, run_random(r, 4)), 0);
	ASSERT_EQ(run_end(r), 0);
	EXPECT_FALSE(r->sh->end.rseq);
}

/* A wake-up that is lost is not made good by a signal. */
TEST_F(criu, goes_on_without_signals)
{
	struct run *r = &self->run;
	int i;

	ASSERT_EQ(run_begin(r, variant->backend, "q"), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);
	for (i = 0; i < (moments() + 1) / 2; i++)
		ASSERT_EQ(run_move(r, run_random(r, 4)), 0);
	ASSERT_EQ(run_end(r), 0);
}

TEST_F(criu, goes_on_below_a_launcher_that_keeps_the_fd)
{
	struct run *r = &self->run;

	ASSERT_EQ(run_begin(r, variant->backend, "l"), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);
	ASSERT_EQ(run_move(r, MOVE_DRAIN), 0);
	ASSERT_EQ(run_move(r, 0), 0);
	ASSERT_EQ(run_end(r), 0);
}

/* A snapshot of a job that runs on: restored later, when job and proxy are lost. */
TEST_F(criu, is_left_running_and_restored_later)
{
	struct run *r = &self->run;

	ASSERT_EQ(run_begin(r, variant->backend, ""), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);
	ASSERT_EQ(run_move(r, MOVE_LEAVE | MOVE_DRAIN | MOVE_KILL), 0);
	ASSERT_EQ(run_move(r, MOVE_LEAVE), 0);
	ASSERT_EQ(run_end(r), 0);
}

/* First CRIU itself refuses, then saving the channel fails, when all else is done. */
TEST_F(criu, runs_on_after_a_dump_that_failed)
{
	struct run *r = &self->run;
	char path[96];

	ASSERT_EQ(run_begin(r, variant->backend, ""), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);

	kill(r->client, SIGUSR1);
	ASSERT_TRUE(has_file(r, "userfaultfd", true));
	ASSERT_EQ(command(r, CMD_FREEZE, NULL), 0);
	ASSERT_EQ(dump(r, DUMP_FAILS), 0);
	EXPECT_TRUE(log_says(r, "dump.log", "userfaultfd"));
	ASSERT_EQ(command(r, CMD_THAW, NULL), 0);
	ASSERT_EQ(progress(r), 0);
	kill(r->client, SIGUSR1);
	ASSERT_TRUE(has_file(r, "userfaultfd", false));

	snprintf(path, sizeof(path), "%s/fail", r->dir);
	ASSERT_EQ(close(creat(path, 0600)), 0);
	ASSERT_EQ(command(r, CMD_FREEZE, NULL), 0);
	ASSERT_EQ(dump(r, DUMP_FAILS), 0);
	ASSERT_EQ(command(r, CMD_THAW, NULL), 0);
	ASSERT_EQ(progress(r), 0);
	ASSERT_EQ(unlink(path), 0);

	ASSERT_EQ(run_move(r, MOVE_DRAIN), 0);
	ASSERT_EQ(run_end(r), 0);
}

/* One of the points in a start-up; then any. */
static int move_at_start(struct run *r, enum ring_backend backend, const char *mode, uint64_t us)
{
	if (run_begin(r, backend, mode) || start_client(r))
		return -1;
	/* SIGUSR2 ends it before. */
	if (mode[0] && !catches(r, SIGUSR2))
		return -1;
	pause_us(us);
	if (command(r, CMD_FREEZE, NULL) || dump(r, 0) || kill_proxy(r))
		return -1;
	if (renew_proxy(r) || restore(r) || watch_client(r) || command(r, CMD_THAW, NULL))
		return -1;
	if (mode[0]) {
		pause_us(5000);
		kill(r->client, SIGUSR2);
	}
	return progress(r) || run_end(r) ? -1 : 0;
}

TEST_F(criu, starts_up_across_a_move_before_it_attaches)
{
	ASSERT_EQ(move_at_start(&self->run, variant->backend, "a", 200000), 0);
}

TEST_F(criu, starts_up_across_a_move_when_it_has_attached)
{
	ASSERT_EQ(move_at_start(&self->run, variant->backend, "b", 200000), 0);
}

TEST_F(criu, starts_up_across_a_move_at_any_time)
{
	struct run *r = &self->run;
	int i;

	for (i = 0; i < (moments() + 3) / 4; i++) {
		ASSERT_EQ(move_at_start(r, variant->backend, "", mix(i, getpid()) % 4000), 0);
		run_free(r);
		memset(r, 0, sizeof(*r));
	}
}

TEST_F(criu, learns_of_its_proxys_death_after_a_move)
{
	struct run *r = &self->run;
	int status = 0;

	ASSERT_EQ(run_begin(r, variant->backend, ""), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);
	ASSERT_EQ(run_move(r, MOVE_DRAIN), 0);
	ASSERT_EQ(kill_proxy(r), 0);
	ASSERT_EQ(wait_client(r, &status), 0);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(WEXITSTATUS(status), EXIT_PEER_DIED);
}

TEST_F(criu, has_its_death_noticed_after_a_move)
{
	struct run *r = &self->run;

	ASSERT_EQ(run_begin(r, variant->backend, ""), 0);
	ASSERT_EQ(start_client(r), 0);
	ASSERT_EQ(progress(r), 0);
	ASSERT_EQ(run_move(r, MOVE_DRAIN), 0);
	EXPECT_EQ(__atomic_load_n(&r->sh->peer_gone, __ATOMIC_ACQUIRE), 0);
	ASSERT_EQ(kill_client(r), 0);
	EXPECT_TRUE(comes_true(&r->sh->peer_gone));
}

/*
 * Kernels before 6.3 do not say which membarriers a process has registered for. CRIU tries out the
 * private ones there, and brings those back; the global one (bit 2) must be registered again.
 */
TEST_F(criu, has_its_membarriers_again)
{
	struct run *r = &self->run;
	struct probe *p;

	ASSERT_EQ(run_begin(r, variant->backend, "p"), 0);
	ASSERT_EQ(start_client(r), 0);
	p = &r->sh->probe;
	ASSERT_TRUE(catches(r, SIGUSR2));
	pause_us(200000);
	ASSERT_EQ(command(r, CMD_FREEZE, NULL), 0);
	ASSERT_EQ(dump(r, 0), 0);
	ASSERT_EQ(close_proxy(r), 0);
	ASSERT_EQ(renew_proxy(r), 0);
	ASSERT_EQ(restore(r), 0);
	ASSERT_EQ(watch_client(r), 0);
	ASSERT_EQ(command(r, CMD_THAW, NULL), 0);
	kill(r->client, SIGUSR2);
	ASSERT_TRUE(comes_true(&r->sh->probed));
	TH_LOG("membarrier(RSEQ): at first %d, restored %d, then %d; registrations %#x, %#x",
	       p->rseq[0], p->rseq[1], p->rseq[2], p->registered[0], p->registered[1]);
	EXPECT_EQ(p->rseq[0], 0);
	EXPECT_EQ(p->rseq[2], 0);
	EXPECT_STREQ(r->sh->wrong, "");
	if (p->registered[0] >= 0) {
		EXPECT_EQ(p->registered[0] & 0x104, 0x104);
		EXPECT_EQ(p->registered[1], p->registered[0]);
	}
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--script"))
		return script_main(argv[2]);
	criu_look();
	return test_harness_run(argc, argv);
}
