// SPDX-License-Identifier: Apache-2.0
/*
 * board.c - several processes share a board: mail, deaths, and what breaks it
 *
 * Each rank is a process that posts collectives and says that they are done as soon as they are started.
 */
#include "board_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "killed.h"
#include "turns.h"

#define RANKS	4u

/* ------------------------------------------------------------------------------ one process */

TEST_F(board, a_file_that_is_none_is_refused)
{
	struct board *b;
	int fd = memfd_create("other", MFD_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct stat st;

	EXPECT_EQ(board_open(fd, &b), -EPROTO);
	ASSERT_EQ(fstat(self->fd, &st), 0);
	ASSERT_EQ(ftruncate(fd, st.st_size), 0);
	EXPECT_EQ(board_open(fd, &b), -EPROTO);
	EXPECT_EQ(board_open(null, &b), -EPROTO);
	EXPECT_EQ(board_open(-1, &b), -EBADF);
	/* The magic number, the version, the size, and where the step's state is. */
	for (int i = 0; i < 4; i++) {
		static const off_t at[] = { 0, 4, 8, 48 };
		uint32_t was, other;

		ASSERT_EQ(pread(self->fd, &was, sizeof(was), at[i]), sizeof(was));
		other = was + 1;
		ASSERT_EQ(pwrite(self->fd, &other, sizeof(other), at[i]), sizeof(other));
		EXPECT_EQ(board_open(self->fd, &b), -EPROTO)
			TH_LOG("%u instead of %u at %d", other, was, (int)at[i]);
		ASSERT_EQ(pwrite(self->fd, &was, sizeof(was), at[i]), sizeof(was));
	}
	ASSERT_EQ(board_open(self->fd, &b), 0);
	board_close(b);
	close(fd);
	close(null);
}

TEST_F(board, a_note_is_there_until_it_is_taken_away_or_its_seat_dies)
{
	uint8_t text[BOARD_NOTE_MAX + 1] = { 1, 2, 3 }, to[BOARD_NOTE_MAX];

	for (uint32_t seat = 0; seat < 3; seat++)
		ASSERT_EQ(board_enter(self->b, seat, text, 1), 0);
	EXPECT_EQ(board_noted(self->b, 7, to), -ENOENT);
	EXPECT_EQ(board_note(self->b, 0, 7, text, 3), 0);
	EXPECT_EQ(board_note(self->b, 0, 7, text, sizeof(text)), -EINVAL);
	EXPECT_EQ(board_note(self->b, BOARD_SEATS, 7, text, 3), -EINVAL);
	EXPECT_EQ(board_noted(self->b, 7, to), 3);
	EXPECT_EQ(memcmp(to, text, 3), 0);
	text[0] = 9;
	EXPECT_EQ(board_note(self->b, 0, 7, text, BOARD_NOTE_MAX), 0);
	EXPECT_EQ(board_noted(self->b, 7, to), BOARD_NOTE_MAX);
	EXPECT_EQ(memcmp(to, text, BOARD_NOTE_MAX), 0);
	EXPECT_EQ(board_note(self->b, 0, 7, NULL, 0), 0);
	EXPECT_EQ(board_note(self->b, 0, 8, NULL, 0), 0);
	EXPECT_EQ(board_noted(self->b, 7, to), -ENOENT);
	/* As many as there is room for, twice, under other keys. */
	for (int round = 0; round < 2; round++) {
		for (uint64_t k = 0; k < BOARD_NOTES; k++) {
			memcpy(text, &k, 8);
			ASSERT_EQ(board_note(self->b, 1 + k % 2, k * 4096 + round, text, 8), 0);
		}
		EXPECT_EQ(board_note(self->b, 0, 7, text, 8), -ENOSPC);
		for (uint64_t k = 0; k < BOARD_NOTES; k++) {
			ASSERT_EQ(board_noted(self->b, k * 4096 + round, to), 8);
			ASSERT_EQ(memcmp(to, &k, 8), 0);
		}
		board_die(self->b, 1);
		EXPECT_EQ(board_noted(self->b, round, to), -ENOENT);
		EXPECT_EQ(board_noted(self->b, 4096 + round, to), 8);
		board_die(self->b, 2);
		EXPECT_EQ(board_noted(self->b, 4096 + round, to), -ENOENT);
		ASSERT_EQ(board_enter(self->b, 1, text, 1), 0);
		ASSERT_EQ(board_enter(self->b, 2, text, 1), 0);
	}
	for (uint32_t seat = 0; seat < 3; seat++)
		board_die(self->b, seat);
}

TEST_F(board, a_seat_has_the_place_that_it_was_given_with)
{
	struct board_place at = { .rank = 7, .host = 3, .physical = { [1] = 5 } }, is;

	EXPECT_EQ(board_place(self->b, 5, &is), -ENOENT);
	board_reserve(self->b, BOARD_SEATS, &at);
	board_reserve(self->b, 5, &at);
	EXPECT_EQ(board_place(self->b, 4, &is), -ENOENT);
	EXPECT_EQ(board_place(self->b, BOARD_SEATS, &is), -ENOENT);
	EXPECT_EQ(board_place(self->b, 5, &is), 0);
	EXPECT_EQ(memcmp(&is, &at, sizeof(at)), 0);
	ASSERT_EQ(board_enter(self->b, 5, "", 0), 0);
	board_die(self->b, 5);
	EXPECT_EQ(board_place(self->b, 5, &is), 0);
	at.rank = 8;
	at.physical[1] = 6;
	board_reserve(self->b, 5, &at);
	EXPECT_EQ(board_place(self->b, 5, &is), 0);
	EXPECT_EQ(memcmp(&is, &at, sizeof(at)), 0);
}

TEST_F(board, sharers_of_a_device_have_so_much_together)
{
	EXPECT_TRUE(board_maps(self->b, 0, 7, 60, 100));
	EXPECT_TRUE(board_maps(self->b, 1, 7, 40, 100));
	EXPECT_TRUE(board_maps(self->b, 2, 8, 100, 100));	/* of another device */
	EXPECT_FALSE(board_maps(self->b, 1, 7, 1, 100));
	EXPECT_TRUE(board_maps(self->b, 1, 7, 0, 100));	/* it has as much as before */
	board_unmaps(self->b, 0, 10);
	EXPECT_TRUE(board_maps(self->b, 1, 7, 10, 100));
	EXPECT_TRUE(board_maps(self->b, 1, 7, 1, UINT64_MAX));
	EXPECT_FALSE(board_maps(self->b, 0, 7, 0, 100));
	board_unmaps(self->b, 1, 1);
	/* Who leaves has what it has until it is dead. */
	board_leave(self->b, 1);
	EXPECT_FALSE(board_maps(self->b, 0, 7, 1, 100));
	board_die(self->b, 1);
	EXPECT_TRUE(board_maps(self->b, 0, 7, 50, 100));
	EXPECT_FALSE(board_maps(self->b, 0, 7, 1, 100));
}

TEST_F(board, who_waits_for_memory_is_heard_until_nobody_can_help)
{
	EXPECT_FALSE(board_maps(self->b, 0, 7, 2, 1));
	EXPECT_FALSE(board_crowded(self->b));	/* it may have some to give up */
	EXPECT_TRUE(board_asks(self->b));
	EXPECT_TRUE(board_asks(self->b));
	EXPECT_TRUE(board_crowded(self->b));
	board_helpless(self->b);
	EXPECT_FALSE(board_crowded(self->b));
	EXPECT_FALSE(board_asks(self->b));
	EXPECT_FALSE(board_crowded(self->b));
}

TEST_F(board, a_seat_has_one_owner)
{
	uint8_t address[BOARD_ADDRESS_MAX + 1] = { 1, 2, 3 }, to[BOARD_ADDRESS_MAX];

	EXPECT_EQ(board_address(self->b, 5, to), -ENOENT);
	EXPECT_EQ(board_enter(self->b, 5, address, 3), 0);
	EXPECT_EQ(board_enter(self->b, 5, address, 3), -EBUSY);
	EXPECT_EQ(board_enter(self->b, BOARD_SEATS, address, 3), -EINVAL);
	EXPECT_EQ(board_enter(self->b, 6, address, sizeof(address)), -EINVAL);
	EXPECT_EQ(board_address(self->b, 5, to), 3);
	EXPECT_EQ(memcmp(to, address, 3), 0);
	EXPECT_EQ(board_address(self->b, BOARD_SEATS, to), -ENOENT);
	board_die(self->b, 5);
	EXPECT_EQ(board_address(self->b, 5, to), -ENOENT);
	EXPECT_EQ(board_enter(self->b, 5, address, BOARD_ADDRESS_MAX), 0);
	board_die(self->b, BOARD_SEATS);
	board_die(self->b, 999);	/* nobody's */
	/* One that has left, and has not been reaped. */
	EXPECT_EQ(board_step(self->b, 5, &(struct step_event){ .kind = STEP_EXIT, .proxy = 5 }, hear,
			     &(struct heard){ .b = self->b, .seat = 5 }), 0);
	EXPECT_EQ(board_enter(self->b, 5, address, 3), -EBUSY);
	EXPECT_EQ(board_address(self->b, 5, to), BOARD_ADDRESS_MAX);
	board_die(self->b, 5);
	EXPECT_EQ(board_enter(self->b, 5, address, 3), 0);
}

TEST_F(board, actions_for_others_are_mailed)
{
	struct heard h[2];
	uint32_t seats[2];

	two_seats(h, self->b);
	EXPECT_EQ(h[0].joined, 1);
	EXPECT_EQ(h[1].joined, 1);
	EXPECT_EQ(board_seats(self->b, h[0].member, seats, 2), 2);
	EXPECT_EQ(seats[0], 0);
	EXPECT_EQ(seats[1], 1);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(h[0].started, 0);
	EXPECT_FALSE(board_mailed(self->b, 0));
	EXPECT_EQ(post(&h[1], 2, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(h[1].started, 1);
	EXPECT_TRUE(board_mailed(self->b, 0));
	EXPECT_EQ(work(&h[0]), 0);
	EXPECT_EQ(h[0].started, 1);
	EXPECT_EQ(h[0].ended, 1);
	EXPECT_EQ(work(&h[1]), 0);
	EXPECT_EQ(h[1].ended, 1);
	/* Both learn why an operation has failed. */
	EXPECT_EQ(post(&h[0], 3, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(post(&h[1], 4, STEP_ALLREDUCE, 0, TREE_F64), 0);
	EXPECT_EQ(work(&h[0]), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(h[i].failed, 1);
		EXPECT_EQ(h[i].reason, STEP_DIFFERENT_TYPE);
	}
}

/* What it has sent into a buffer is still to be received. */
TEST_F(board, who_leaves_is_released_when_nothing_needs_it)
{
	struct heard h[2];

	two_seats(h, self->b);
	EXPECT_EQ(post_of(&h[1], 1, STEP_SEND, 0, 8), 0);
	EXPECT_EQ(board_step(self->b, 1, &(struct step_event){ .kind = STEP_EXIT, .proxy = 1 }, hear, &h[1]), 0);
	EXPECT_EQ(work(&h[1]), 0);
	EXPECT_EQ(h[1].released, 0);
	EXPECT_EQ(post_of(&h[0], 2, STEP_RECV, 1, 8), 0);
	EXPECT_EQ(work(&h[1]), 0);
	EXPECT_EQ(h[1].started, 1);
	EXPECT_EQ(work(&h[0]), 0);
	EXPECT_EQ(work(&h[1]), 0);
	EXPECT_EQ(h[1].released, 1);
	EXPECT_EQ(h[0].released, 0);
}

/* Of far seats, too: each sleep ends with one wake, and who is awake gets none. */
TEST_F(board, a_seat_that_sleeps_is_woken_once)
{
	const uint32_t seat[3] = { 65, 70, BOARD_SEATS - 1 };
	struct heard h[3];
	uint32_t word[3], seen = 0;

	for (uint32_t i = 0; i < 3; i++) {
		h[i] = (struct heard){ .b = self->b, .seat = seat[i] };
		ASSERT_EQ(board_enter(self->b, seat[i], "", 0), 0);
		ASSERT_GE(join(&h[i], 9, 3, i), 0);
	}
	for (uint32_t i = 0; i < 3; i++)
		ASSERT_EQ(work(&h[i]), 0);
	for (uint64_t round = 1; round <= 3; round++) {
		for (uint32_t i = 0; i < 3; i++) {
			word[i] = *board_word(self->b, seat[i]);
			board_sleeps(self->b, seat[i], i == round % 3 || round == 3);
		}
		for (uint32_t i = 0; i < 3; i++)
			ASSERT_EQ(post(&h[i], round, STEP_ALLREDUCE, 0, TREE_F32), 0);
		/* A second mail finds nobody who sleeps. */
		for (uint32_t i = 0; i < 3; i++)
			ASSERT_EQ(post(&h[i], 10 + round, STEP_ALLREDUCE, 0, TREE_F32), 0);
		/* Seat 2 has posted last. */
		for (uint32_t i = 0; i < 2; i++) {
			EXPECT_EQ(*board_word(self->b, seat[i]) - word[i], i == round % 3 || round == 3)
				TH_LOG("seat %u in round %llu", seat[i], (unsigned long long)round);
		}
		EXPECT_EQ(*board_word(self->b, seat[2]), word[2]);
		for (uint32_t n = 0; n < 9; n++) {
			board_sleeps(self->b, seat[n % 3], false);
			ASSERT_EQ(work(&h[n % 3]), 0);
		}
	}
	EXPECT_EQ(h[0].ended + h[1].ended + h[2].ended, 18);
	/* A wait ends with the wake that came before it, and says up to which one it has seen. */
	board_await(self->b, seat[0], &seen);
	EXPECT_EQ(seen, *board_word(self->b, seat[0]));
	/* A new owner does not sleep because the former one did. */
	board_sleeps(self->b, seat[1], true);
	board_die(self->b, seat[1]);
	word[1] = *board_word(self->b, seat[1]);
	ASSERT_EQ(board_enter(self->b, seat[1], "", 0), 0);
	ASSERT_GE(join(&h[1], 10, 2, 0), 0);
	ASSERT_GE(join(&h[0], 10, 2, 1), 0);
	EXPECT_TRUE(board_mailed(self->b, seat[1]));
	EXPECT_EQ(*board_word(self->b, seat[1]), word[1]);
}

struct seen {
	unsigned int comms, ops, waits;
	uint32_t first;
	bool die;
};

static void see_comm(void *ctx, const struct step *s, const struct step_comm_look *look)
{
	struct seen *seen = ctx;

	(void)s;
	(void)look;
	seen->comms++;
	if (seen->die)
		raise(SIGKILL);
}

static void see_op(void *ctx, const struct step *s, const struct step_comm_look *of,
		   const struct step_op_look *look)
{
	struct seen *seen = ctx;

	(void)s;
	(void)of;
	seen->ops++;
	seen->waits = look->waits;
	seen->first = look->rank[0];
}

TEST_F(board, a_look_tells_who_is_waited_for)
{
	struct seen seen = { 0 };
	struct step_looker looker = { see_comm, see_op, &seen };
	struct heard h[2];

	EXPECT_EQ(board_look(self->b, &looker), 0);
	EXPECT_EQ(seen.comms, 0);
	two_seats(h, self->b);
	EXPECT_EQ(board_look(self->b, &looker), 0);
	EXPECT_EQ(seen.comms, 1);
	EXPECT_EQ(seen.ops, 0);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(board_look(self->b, &looker), 0);
	EXPECT_EQ(seen.ops, 1);
	EXPECT_EQ(seen.waits, 1);
	EXPECT_EQ(seen.first, 1);
	EXPECT_EQ(post(&h[1], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(work(&h[1]), 0);
	EXPECT_EQ(board_look(self->b, &looker), 0);
	EXPECT_EQ(seen.ops, 2);
	EXPECT_EQ(seen.waits, 1);	/* it runs on the other device */
	EXPECT_EQ(seen.first, 0);
	EXPECT_EQ(work(&h[0]), 0);
	EXPECT_EQ(board_look(self->b, &looker), 0);
	EXPECT_EQ(seen.ops, 2);
}

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int turn(struct board *b, enum turns_event_kind kind, uint32_t seat, bool due)
{
	return board_turn(b, &(struct turns_event){ .kind = kind, .seat = seat, .device = 1, .due = due, .now = clock_ns() });
}

#define SLICE(seat) (board_slice(self->b, seat).state)

TEST_F(board, sharers_take_turns_and_one_that_dies_gives_its_own_up)
{
	uint32_t changes;

	EXPECT_EQ(board_slice_next(self->b, 1), TURNS_NEVER);
	EXPECT_EQ(turn(self->b, TURNS_SAYS, 4, true), -EPROTO);
	for (uint32_t seat = 4; seat < 7; seat++) {
		EXPECT_EQ(SLICE(seat), TURNS_ABSENT);
		ASSERT_EQ(turn(self->b, TURNS_ENTER, seat, false), 0);
		EXPECT_EQ(SLICE(seat), TURNS_OUT);
	}
	ASSERT_EQ(turn(self->b, TURNS_SAYS, 4, true), 0);
	EXPECT_EQ(SLICE(4), TURNS_COMING);
	EXPECT_EQ(board_slice(self->b, 4).last, TURNS_NONE);
	changes = board_slice(self->b, 4).changes;
	ASSERT_EQ(turn(self->b, TURNS_CAME, 4, false), 0);
	EXPECT_EQ(SLICE(4), TURNS_RESIDENT);
	EXPECT_EQ(board_slice(self->b, 4).changes, changes + 1);
	EXPECT_EQ(board_slice_next(self->b, 1), TURNS_NEVER);
	ASSERT_EQ(turn(self->b, TURNS_SAYS, 5, true), 0);
	EXPECT_NE(board_slice_next(self->b, 1), TURNS_NEVER);
	EXPECT_EQ(board_slice_next(self->b, 0), TURNS_NEVER);
	EXPECT_EQ(board_slice_next(self->b, 256), TURNS_NEVER);
	/* It had no seat of the step, and its memory is nobody's. */
	board_die(self->b, 4);
	EXPECT_EQ(SLICE(4), TURNS_ABSENT);
	EXPECT_EQ(SLICE(5), TURNS_COMING);
	EXPECT_EQ(board_slice(self->b, 5).last, TURNS_NONE);
	ASSERT_EQ(turn(self->b, TURNS_CAME, 5, false), 0);
	ASSERT_EQ(turn(self->b, TURNS_SAYS, 6, true), 0);
	/* With a seat of the step, too. */
	ASSERT_EQ(board_enter(self->b, 5, "", 0), 0);
	board_die(self->b, 5);
	EXPECT_EQ(SLICE(5), TURNS_ABSENT);
	EXPECT_EQ(SLICE(6), TURNS_COMING);
	ASSERT_EQ(turn(self->b, TURNS_ENTER, 5, false), 0);
}

TEST_F(board, a_slice_that_begins_or_ends_disturbs_a_cut)
{
	const uint64_t seats[BOARD_SEATS / 64] = { 1 << 4 | 1 << 5 };
	bool all;

	ASSERT_EQ(turn(self->b, TURNS_ENTER, 4, false), 0);
	ASSERT_EQ(turn(self->b, TURNS_ENTER, 5, false), 0);
	ASSERT_EQ(board_cut(self->b, 4, 7, seats, &all), 0);
	EXPECT_FALSE(all);
	ASSERT_EQ(turn(self->b, TURNS_SAYS, 5, true), 0);
	ASSERT_EQ(turn(self->b, TURNS_CAME, 5, false), 0);
	ASSERT_EQ(board_cut(self->b, 5, 7, seats, &all), 0);
	EXPECT_FALSE(all);
	ASSERT_EQ(board_cut(self->b, 4, 7, seats, &all), 0);
	EXPECT_TRUE(all);
	ASSERT_EQ(board_cut(self->b, 5, 7, seats, &all), 0);
	EXPECT_TRUE(all);
}

static int await_slice(struct board *b)
{
	uint32_t seen = 0;

	board_sleeps(b, 5, true);
	while (board_slice(b, 5).state != TURNS_COMING)
		board_await(b, 5, &seen);
	return 0;
}

TEST_F(board, a_sharer_that_sleeps_is_woken_for_its_slice)
{
	struct board *b;
	pid_t pid;
	int status;

	for (uint32_t seat = 4; seat < 6; seat++)
		ASSERT_EQ(turn(self->b, TURNS_ENTER, seat, false), 0);
	ASSERT_EQ(turn(self->b, TURNS_SAYS, 4, true), 0);
	ASSERT_EQ(turn(self->b, TURNS_SAYS, 5, true), 0);
	pid = fork();
	if (!pid)
		_exit(board_open(self->fd, &b) || await_slice(b));
	usleep(20000);
	ASSERT_EQ(turn(self->b, TURNS_CAME, 4, false), 0);
	ASSERT_EQ(turn(self->b, TURNS_LEFT, 4, false), 0);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

/* It was killed, perhaps, before it woke others. */
TEST_F(board, a_death_wakes_who_may_have_a_turn_from_the_dead_one)
{
	const uint32_t *word = board_word(self->b, 5);
	uint32_t before;

	for (uint32_t seat = 4; seat < 7; seat++)
		ASSERT_EQ(turn(self->b, TURNS_ENTER, seat, false), 0);
	ASSERT_EQ(turn(self->b, TURNS_SAYS, 5, true), 0);
	board_sleeps(self->b, 5, true);
	before = *word;
	board_die(self->b, 4);
	EXPECT_EQ(*word, before + 1);
	EXPECT_EQ(*board_word(self->b, 6), 0);
}

TEST_F(board, a_death_within_a_step_breaks_it)
{
	struct seen seen = { .die = true };
	struct step_looker looker = { see_comm, see_op, &seen };
	struct heard h[2];
	pid_t pid;

	two_seats(h, self->b);
	/* A sharer without a seat of the step. */
	ASSERT_EQ(turn(self->b, TURNS_ENTER, 9, false), 0);
	pid = fork();
	if (!pid) {
		board_look(self->b, &looker);
		_exit(0);
	}
	ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	EXPECT_FALSE(board_is_broken(self->b));
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), -ENOTRECOVERABLE);
	EXPECT_TRUE(board_is_broken(self->b));
	EXPECT_EQ(*board_word(self->b, 0), 1);
	EXPECT_EQ(*board_word(self->b, 9), 1);
	EXPECT_EQ(*board_word(self->b, 10), 0);
	EXPECT_TRUE(board_mailed(self->b, 0));
	EXPECT_TRUE(board_mailed(self->b, 1));
	EXPECT_EQ(board_mail(self->b, 1, hear, &h[1]), -ENOTRECOVERABLE);
	EXPECT_EQ(board_enter(self->b, 7, "", 0), -ENOTRECOVERABLE);
	EXPECT_EQ(board_look(self->b, &looker), -ENOTRECOVERABLE);
	board_die(self->b, 0);
}

static void die(void *ctx, uint32_t member, uint64_t cookie, bool begun)
{
	(void)ctx, (void)member, (void)cookie, (void)begun;
	raise(SIGKILL);
}

/* Who only reads has changed nothing when it dies. */
TEST_F(board, a_death_while_it_is_read_breaks_nothing)
{
	struct heard h[2];
	int status;
	pid_t pid;

	two_seats(h, self->b);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	pid = fork();
	if (!pid) {
		board_records(self->b, 0, die, NULL);
		_exit(0);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(post(&h[1], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(work(&h[0]), 0);
	EXPECT_EQ(work(&h[1]), 0);
	EXPECT_EQ(h[0].ended + h[1].ended, 2);
}

/* What is shut is said to be so; others use it. */
TEST_F(board, a_board_that_is_shut_says_so)
{
	struct heard h[2];
	struct board *b;
	bool all;

	two_seats(h, self->b);
	ASSERT_EQ(board_open(self->fd, &b), 0);
	board_shut(self->b);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), -ESHUTDOWN);
	EXPECT_EQ(board_enter(self->b, 7, "", 0), -ESHUTDOWN);
	EXPECT_EQ(board_cut(self->b, 0, 5, (const uint64_t[BOARD_SEATS / 64]){ 3 }, &all), -ESHUTDOWN);
	EXPECT_FALSE(board_mailed(self->b, 0));
	h[1].b = b;
	EXPECT_EQ(post(&h[1], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	board_close(b);
}

/*
 * A seat whose owner reads no mail, for thousands of operations that fail. It gets two mails for each; the board is
 * broken by the first that has no room, and by none before.
 */
TEST_F(board, a_full_mailbox_breaks_it)
{
	struct heard h[2];
	int rc = 0, i;

	two_seats(h, self->b);
	for (i = 0; i < 5000; i++)
		ASSERT_EQ(post(&h[1], i, STEP_RECV, 0, TREE_F32), 0);
	for (i = 0; i < (int)BOARD_MAILS / 2; i++)
		ASSERT_EQ(post(&h[0], i, STEP_SEND, 1, TREE_F64), 0);
	ASSERT_EQ(board_mail(self->b, 1, hear, &h[1]), 0);
	EXPECT_EQ(h[1].failed, BOARD_MAILS / 2);
	/* One mail of another kind: the last one of these is one too many. */
	ASSERT_GE(join(&h[1], 10, 2, 1), 0);
	ASSERT_GE(join(&(struct heard){ .b = self->b, .seat = 0 }, 10, 2, 0), 0);
	for (i = 0; i < 5000 && !rc; i++)
		rc = post(&h[0], i, STEP_SEND, 1, TREE_F64);
	EXPECT_EQ(rc, -ENOTRECOVERABLE);
	EXPECT_EQ(i, BOARD_MAILS / 2 + 1);
	EXPECT_EQ(board_mail(self->b, 1, hear, &h[1]), -ENOTRECOVERABLE);
}

/* As many calls in one record as a client may send, and more operations than a mailbox has room for. */
#define GROUP	1024u
#define GROUPS	5u

static int post_pairs(struct heard *h, uint64_t cookie, uint32_t kind, uint32_t peer)
{
	static struct step_call call[GROUP];
	struct step_event e = { .kind = STEP_POST, .member = h->member, .cookie = cookie, .ncalls = GROUP,
				.calls = call };

	for (uint32_t i = 0; i < GROUP; i++)
		call[i] = (struct step_call){ .kind = kind, .type = TREE_F64, .peer = peer,
					      .count = 1u << 20 };
	return board_step(h->b, h->seat, &e, hear, h);
}

/* One step cancels all that a seat has started: each is cancelled there once, and the board lives. */
TEST_F(board, a_step_cancels_more_than_a_mailbox_takes)
{
	static uint64_t started[GROUP * GROUPS + 1], cancelled[GROUP * GROUPS + 1];
	struct heard h[2];

	two_seats(h, self->b);
	h[0].orders_started = started;
	h[0].orders_cancelled = cancelled;
	for (uint32_t i = 0; i < GROUPS; i++) {
		ASSERT_EQ(post_pairs(&h[0], i, STEP_SEND, 1), 0);
		ASSERT_EQ(post_pairs(&h[1], i, STEP_RECV, 0), 0);
	}
	ASSERT_EQ(board_mail(self->b, 0, hear, &h[0]), 0);
	ASSERT_EQ(h[0].started, GROUP * GROUPS);
	/* One that ends before: it must not be cancelled. */
	ASSERT_EQ(board_step(self->b, 0, &(struct step_event){ .kind = STEP_DONE, .device = 0,
							       .order = started[0] }, hear, &h[0]), 0);
	board_die(self->b, 1);
	ASSERT_TRUE(board_mailed(self->b, 0));
	ASSERT_EQ(board_mail(self->b, 0, hear, &h[0]), 0);
	EXPECT_EQ(h[0].broken, 1);
	ASSERT_EQ(h[0].cancelled, GROUP * GROUPS - 1);
	for (uint32_t i = 1; i < GROUP * GROUPS; i++)
		ASSERT_EQ(cancelled[i - 1], started[i]);
	EXPECT_EQ(h[0].ended, 0);
	EXPECT_FALSE(board_mailed(self->b, 0));
	for (uint32_t i = 1; i < GROUP * GROUPS; i++)
		ASSERT_EQ(board_step(self->b, 0, &(struct step_event){ .kind = STEP_DONE, .device = 0,
								       .order = started[i] },
				     hear, &h[0]), 0);
	EXPECT_EQ(h[0].ended, GROUPS);
	EXPECT_EQ(h[0].failed, GROUPS);
	EXPECT_EQ(h[0].cancelled, GROUP * GROUPS - 1);
}

/* What has failed is cancelled, and what can start is started, though both became so before the mail was read. */
TEST_F(board, news_of_both_kinds_are_heard)
{
	struct heard h[RANKS], at[RANKS];

	for (uint32_t i = 0; i < RANKS; i++) {
		h[i] = (struct heard){ .b = self->b, .seat = i };
		at[i] = (struct heard){ .b = self->b };
		ASSERT_EQ(board_enter(self->b, i, "", 0), 0);
	}
	for (uint32_t i = 1; i < RANKS; i++) {
		ASSERT_GE(join(&at[i], 10 + i, 2, 0), 0);
		ASSERT_GE(join(&h[i], 10 + i, 2, 1), 0);
		ASSERT_EQ(board_mail(self->b, 0, hear, &at[i]), 0);
	}
	for (uint32_t i = 1; i < RANKS; i += 2) {
		ASSERT_EQ(post(&at[i], i, STEP_ALLREDUCE, 0, TREE_F32), 0);
		ASSERT_EQ(post(&h[i], i, STEP_ALLREDUCE, 0, TREE_F32), 0);
	}
	ASSERT_EQ(board_mail(self->b, 0, hear, &h[0]), 0);
	ASSERT_EQ(h[0].started, 2);
	for (uint32_t round = 0; round < 2; round++) {
		ASSERT_EQ(post(&at[2], round, STEP_ALLREDUCE, 0, TREE_F32), 0);
		if (!round)
			board_die(self->b, 1);
		ASSERT_EQ(post(&h[2], round, STEP_ALLREDUCE, 0, TREE_F32), 0);
		if (round)
			board_die(self->b, 3);
		ASSERT_EQ(board_mail(self->b, 0, hear, &h[0]), 0);
		/* What was cancelled before, and has not ended, is once more. */
		EXPECT_EQ(h[0].cancelled, round ? 3 : 1);
		EXPECT_EQ(h[0].started, round + 3);
	}
}

/* What was sent to the one before it, a seat's new owner does not get; nor is it woken for that. */
TEST_F(board, a_seats_new_owner_has_no_mail_of_the_former_one)
{
	struct heard h[2], new = { .b = self->b, .seat = 0 };

	two_seats(h, self->b);
	/* Both kinds, unread: what is to be started, and in the mailbox an end. */
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(post(&h[1], 2, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(post(&h[0], 3, STEP_RECV, 1, TREE_F32), 0);
	EXPECT_EQ(post(&h[1], 4, STEP_SEND, 0, TREE_F64), 0);
	EXPECT_EQ(h[1].failed, 1);
	EXPECT_TRUE(board_mailed(self->b, 0));
	board_die(self->b, 0);
	EXPECT_EQ(board_enter(self->b, 0, "new", 3), 0);
	EXPECT_FALSE(board_mailed(self->b, 0));
	EXPECT_EQ(board_mail(self->b, 0, hear, &new), 0);
	EXPECT_EQ(new.joined + new.started + new.cancelled + new.ended + new.failed, 0);
}

/* ------------------------------------------------------------------------------ processes */

struct common {
	uint32_t entered[RANKS], collectives[RANKS];
};

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

/* One rank: posts until something fails. Exit status 0: it was told of the death, not of the board's. */
static void rank_main(int fd, uint32_t seat, uint64_t comm, struct common *all)
{
	struct heard h = { .seat = seat };
	uint64_t until = now_ms() + 20000;
	int rc;

	if (board_open(fd, &h.b))
		_exit(2);
	rc = board_enter(h.b, seat, "", 0);
	if (rc)		/* the victim held the lock */
		_exit(rc == -ENOTRECOVERABLE ? 0 : 3);
	__atomic_store_n(&all->entered[seat], 1, __ATOMIC_RELEASE);
	rc = join(&h, comm, RANKS, seat);
	if (rc < 0)
		_exit(rc == -ECONNRESET || rc == -ENOTRECOVERABLE ? 0 : 7);
	while (!h.joined && now_ms() < until)
		if (work(&h))
			_exit(0);
	if (h.code)
		_exit(0);
	for (uint64_t n = 1; !h.failed && now_ms() < until; n++) {
		unsigned int before = h.ended;

		rc = post(&h, n, STEP_ALLREDUCE, 0, TREE_F32);

		if (rc == -ENOTRECOVERABLE)
			_exit(0);
		if (rc)
			_exit(4);
		while (h.ended == before && now_ms() < until) {
			rc = work(&h);
			if (rc == -ENOTRECOVERABLE)
				_exit(0);
			if (rc)
				_exit(5);
			if (h.ended == before)
				usleep(50);
		}
		__atomic_store_n(&all->collectives[seat], n, __ATOMIC_RELAXED);
	}
	_exit(h.failed ? 0 : 6);
}

static void *steps(void *arg)
{
	struct step_event e = { .kind = STEP_NEXT, .device = 0 };

	for (;;)
		board_step(arg, 0, &e, NULL, NULL);
	return NULL;
}

/* A process whose threads use the board exits. */
TEST_F(board, an_exit_breaks_nothing)
{
	for (int round = 0; round < 50; round++) {
		int fd = board_create(), status;
		const struct step_looker none = { 0 };
		struct board *b;
		pid_t pid;

		ASSERT_GE(fd, 0);
		ASSERT_EQ(board_open(fd, &b), 0);
		pid = fork();
		if (!pid) {
			struct board *own;
			pthread_t t;

			if (board_open(fd, &own) || board_enter(own, 0, "", 0))
				_exit(2);
			for (int i = 0; i < 2; i++)
				if (pthread_create(&t, NULL, steps, own))
					_exit(3);
			usleep(rand() % 2000);
			board_shut(own);
			_exit(0);
		}
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		ASSERT_EQ(status, 0);
		EXPECT_EQ(board_look(b, &none), 0);
		board_close(b);
		close(fd);
	}
}

/* Posts last, for another who sleeps. */
static void post_and_die(int fd)
{
	struct heard h = { .seat = 1 };

	if (board_open(fd, &h.b) || board_enter(h.b, 1, "", 0) || join(&h, 9, 2, 1) < 0)
		_exit(2);
	raise(SIGSTOP);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	raise(SIGSTOP);
	post(&h, 1, STEP_ALLREDUCE, 0, TREE_F32);
	_exit(0);
}

/* Between its wake of a seat and its note of that, the seat may have got up and gone to sleep again. */
TEST_F(board, a_wake_that_comes_late_leaves_the_next_sleep)
{
	struct heard h = { .b = self->b, .seat = 0 };
	const uint32_t *word = board_word(self->b, 0);
	uint32_t before;
	int status;
	pid_t pid;

	ASSERT_EQ(board_enter(self->b, 0, "", 0), 0);
	ASSERT_GE(join(&h, 9, 2, 0), 0);
	pid = fork();
	if (!pid)
		post_and_die(self->fd);
	ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
	ASSERT_EQ(work(&h), 0);
	ASSERT_EQ(post(&h, 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	board_sleeps(self->b, 0, true);
	before = *word;
	kill(pid, SIGCONT);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP(return, "this process may trace no child");
	while (*word == before) {
		ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		ASSERT_TRUE(WIFSTOPPED(status));
	}
	board_sleeps(self->b, 0, false);
	board_sleeps(self->b, 0, true);
	ptrace(PTRACE_CONT, pid, NULL, NULL);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(*word, before + 1);
	board_die(self->b, 1);
	EXPECT_EQ(*word, before + 2);
}

static void *await_wake(void *arg)
{
	struct heard *h = arg;
	uint32_t seen = 0;

	board_await(h->b, 0, &seen);
	return NULL;
}

/*
 * Of one board: the rank that is left has posted and sleeps. It is woken by whoever is killed, or by
 * who tells of its death, and gets an end. 1: the board is broken; 0: it is not; -1: neither.
 */
static int kill_at(int steps, int *status)
{
	struct heard h = { .seat = 0 };
	int fd = board_create(), rc = -1;
	struct timespec until;
	pthread_t t;
	pid_t pid;

	if (fd < 0 || board_open(fd, &h.b) || board_enter(h.b, 0, "", 0) || join(&h, 9, 2, 0) < 0)
		return -1;
	pid = fork();
	if (!pid)
		post_and_die(fd);
	waitpid(pid, status, WUNTRACED);
	if (WIFSTOPPED(*status) && !work(&h) && !post(&h, 1, STEP_ALLREDUCE, 0, TREE_F32)) {
		board_sleeps(h.b, 0, true);
		pthread_create(&t, NULL, await_wake, &h);
		kill(pid, SIGCONT);
		*status = step_and_kill(pid, steps);
		board_die(h.b, 1);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 2;
		if (!pthread_timedjoin_np(t, NULL, &until)) {
			rc = work(&h);
			rc = rc == -ENOTRECOVERABLE ? 1 : rc || h.failed != 1 ? -1 : 0;
		}
	}
	board_close(h.b);
	close(fd);
	return rc;
}

#ifdef __SANITIZE_ADDRESS__
#define APART	389	/* instructions: there are many more */
#define APART_IN_SHUT	997
#else
#define APART	17
#define APART_IN_SHUT	1
#endif

TEST_F(board, a_kill_at_any_instruction_of_a_post_is_heard_of)
{
	int status = SIGKILL, broken = 0, whole = 0, rc;

	for (int steps = 1; WIFSIGNALED(status); steps += APART) {
		rc = kill_at(steps, &status);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			SKIP(return, "this process may trace no child");
		ASSERT_GE(rc, 0) TH_LOG("after %d instructions", steps);
		ASSERT_LT(steps, 100000);
		broken += rc;
		whole += !rc;
	}
	EXPECT_EQ(status, 0);
	EXPECT_GT(broken, 10);
	EXPECT_GT(whole, 2);
	printf("# of %d kills %d broke the board\n", broken + whole - 1, broken);
}

static void shut_and_die(int fd)
{
	struct heard h = { .seat = 1 };

	if (board_open(fd, &h.b) || board_enter(h.b, 1, "", 0))
		_exit(2);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	raise(SIGSTOP);
	board_shut(h.b);
	_exit(0);
}

/* It changes nothing, and those who had the lock before it have changed nothing either. */
TEST_F(board, a_kill_at_any_instruction_of_a_shut_breaks_nothing)
{
	int status = SIGKILL;

	for (int steps = 1; WIFSIGNALED(status); steps += APART_IN_SHUT) {
		pid_t pid;

		ASSERT_LT(steps, 100000);
		pid = fork();
		if (!pid)
			shut_and_die(self->fd);
		status = step_and_kill(pid, steps);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			SKIP(return, "this process may trace no child");
		board_die(self->b, 1);
		ASSERT_EQ(board_look(self->b, &(struct step_looker){ 0 }), 0) TH_LOG("after %d instructions", steps);
	}
	EXPECT_EQ(status, 0);
}

#ifndef KILLS
#define KILLS	100
#endif

/* At any instruction of any of them, also with the lock held. */
TEST_F(board, survivors_of_a_kill_hear_of_it)
{
	struct common *all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned int collectives = 0, slow = 0;

	ASSERT_NE(all, MAP_FAILED);
	for (int round = 0; round < KILLS; round++) {
		int fd = board_create(), victim = round % RANKS, status;
		struct board *b;
		pid_t pid[RANKS];
		uint64_t killed;

		ASSERT_GE(fd, 0);
		ASSERT_EQ(board_open(fd, &b), 0);
		memset(all, 0, sizeof(*all));
		for (uint32_t i = 0; i < RANKS; i++) {
			pid[i] = fork();
			if (!pid[i])
				rank_main(fd, i, 1000 + round, all);
		}
		while (!__atomic_load_n(&all->entered[victim], __ATOMIC_ACQUIRE))
			usleep(100);
		usleep(rand() % 8000);
		kill(pid[victim], SIGKILL);
		ASSERT_EQ(waitpid(pid[victim], NULL, 0), pid[victim]);
		killed = now_ms();
		board_die(b, victim);
		for (uint32_t i = 0; i < RANKS; i++) {
			if ((int)i == victim)
				continue;
			while (waitpid(pid[i], &status, WNOHANG) == 0 && now_ms() < killed + 60000)
				usleep(500);
			if (now_ms() >= killed + 60000) {
				slow++;
				kill(pid[i], SIGKILL);
				waitpid(pid[i], &status, 0);
			} else {
				EXPECT_EQ(status, 0)
					TH_LOG("round %d, rank %u: %x", round, i, status);
			}
			collectives += all->collectives[i];
		}
		board_close(b);
		close(fd);
	}
	munmap(all, sizeof(*all));
	EXPECT_GT(collectives, KILLS);
	EXPECT_EQ(slow, 0)
		TH_LOG("%u of %u ranks had not heard of it in a minute", slow, 3 * KILLS);
}

TEST_HARNESS_MAIN
