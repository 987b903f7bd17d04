// SPDX-License-Identifier: Apache-2.0
/*
 * repeat.c - the step of a training is found in streams of records: where it begins, and where none is
 */
#include "kselftest_harness.h"

#include <errno.h>
#include <stdlib.h>

#include "repeat.h"

#define MB	(1ull << 20)
#define NONE	UINT32_MAX

/*
 * A stream is a text: a letter is an item, and what else is said of it follows.
 *   H a copy from the host, D one to the host, A … C a collective of that communicator, other letters a kernel;
 *   + and - allocate and free 10 MB; | a step's end, which the detector does not see.
 */
struct stream {
	struct repeat *r;
	uint64_t bytes;
	uint32_t steps;		/* that have ended */
	uint32_t at;		/* items since the step's begin */
};

FIXTURE(repeat) {
	struct stream s;
};

FIXTURE_SETUP(repeat)
{
	self->s = (struct stream){ .r = repeat_new(false), .bytes = 100 * MB };
	ASSERT_NE(self->s.r, NULL);
}

FIXTURE_TEARDOWN(repeat)
{
	repeat_free(self->s.r);
}

static enum repeat_kind kind_of(char c)
{
	return c == 'H' ? REPEAT_TO_DEVICE : c == 'D' ? REPEAT_TO_HOST : c >= 'A' && c <= 'C' ? REPEAT_COLL :
		REPEAT_WORK;
}

/* Feeds a step: true: it is at a boundary, before text[s->at]. */
static bool feed(struct stream *s, const char *text)
{
	for (; text[s->at]; s->at++) {
		char c = text[s->at];

		if (c == '+') {
			if (repeat_here(s->r))
				return true;
			s->bytes += 10 * MB;
		} else if (c == '-') {
			s->bytes -= 10 * MB;
		} else {
			repeat_bytes(s->r, s->bytes);
			if (repeat_item(s->r, kind_of(c), (uint64_t)c))
				return true;
		}
		repeat_bytes(s->r, s->bytes);
	}
	s->at = 0;
	s->steps++;
	return false;
}

/* Feeds steps, the k-th of which is text[k % n], until it is at a boundary: steps that have ended, or NONE. */
static uint32_t run(struct stream *s, const char *const *text, uint32_t n, uint32_t most)
{
	while (s->steps < most)
		if (feed(s, text[s->steps % n]))
			return s->steps;
	return NONE;
}

#define RUN(most, ...) ({ const char *const text[] = { __VA_ARGS__ }; \
			  run(&self->s, text, sizeof(text) / sizeof(text[0]), most); })

TEST_F(repeat, a_step_with_collectives_is_known_after_two)
{
	uint32_t times;

	EXPECT_EQ(RUN(20, "HabcdAeBfD"), 2);
	EXPECT_EQ(self->s.at, 0);
	EXPECT_EQ(repeat_known(self->s.r, &times), 10);
	EXPECT_EQ(times, 2);
}

TEST_F(repeat, it_begins_anywhere)
{
	for (uint32_t from = 1; from < 10; from++) {
		struct repeat *r = repeat_new(false);

		repeat_free(self->s.r);
		self->s = (struct stream){ .r = r, .at = from };
		EXPECT_LE(RUN(20, "HabcdAeBfD"), 3);
		EXPECT_EQ(self->s.at, 0);
	}
}

TEST_F(repeat, without_collectives_after_three)
{
	EXPECT_EQ(RUN(20, "HabcdefD"), 3);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, the_boundary_is_where_the_least_memory_is_in_use)
{
	/* Something is allocated for the copy to the host. */
	EXPECT_LE(RUN(20, "H+a++bAcB--d--e+D"), 3);
	EXPECT_EQ(self->s.at, 14);
}

TEST_F(repeat, before_the_next_step_allocates)
{
	EXPECT_LE(RUN(20, "++HabAcD--"), 3);
	EXPECT_EQ(self->s.at, 0);
	EXPECT_EQ(self->s.bytes, 100 * MB);
}

TEST_F(repeat, before_it_allocates_and_waits)
{
	EXPECT_LE(RUN(20, "HabAcD-+D"), 3);
	EXPECT_EQ(self->s.at, 7);
	EXPECT_EQ(self->s.bytes, 90 * MB);
}

TEST_F(repeat, it_goes_past_a_boundary_to_the_next_one)
{
	uint32_t first = RUN(20, "++HabAcD--");

	ASSERT_NE(first, NONE);
	for (uint32_t i = 1; i < 5; i++) {
		repeat_pass(self->s.r);
		EXPECT_EQ(RUN(20, "++HabAcD--"), first + i);
		EXPECT_EQ(self->s.at, 0);
	}
}

TEST_F(repeat, at_an_item_too)
{
	uint32_t first = RUN(20, "HabAcD"), times, now;

	ASSERT_NE(first, NONE);
	repeat_known(self->s.r, &times);
	for (uint32_t i = 1; i < 5; i++) {
		repeat_pass(self->s.r);
		EXPECT_EQ(RUN(20, "HabAcD"), first + i);
		EXPECT_EQ(self->s.at, 0);
		repeat_known(self->s.r, &now);
		EXPECT_EQ(now, times + i);
	}
}

TEST_F(repeat, nothing_comes_at_the_boundary)
{
	uint32_t steps = 0;

	while (steps++ < 10 && !repeat_here(self->s.r))
		if (feed(&self->s, "Hab+AcD-"))
			break;
	/* Known with the item that begins a repetition, so it is passed once. */
	ASSERT_EQ(self->s.at, 0);
	repeat_pass(self->s.r);
	EXPECT_FALSE(repeat_here(self->s.r));
	EXPECT_FALSE(feed(&self->s, "Hab+AcD"));
	EXPECT_FALSE(repeat_here(self->s.r));
	EXPECT_FALSE(feed(&self->s, "-"));
	EXPECT_TRUE(repeat_here(self->s.r));
}

TEST_F(repeat, layers_are_no_steps)
{
	EXPECT_LE(RUN(20, "HxlmnlmnlmnlmnlmnlmnyvwAvwAvwAvwAvwAzD"), 3);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, nor_are_layers_that_sum_activations)
{
	EXPECT_LE(RUN(20, "HxlAmAlAmAlAmAlAmAlAmAyvAwBvAwBvAwBzD"), 3);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, nor_batches_whose_gradients_are_summed)
{
	/* Eight batches; then communicator A averages. */
	repeat_free(self->s.r);
	self->s.r = repeat_new(true);
	EXPECT_LE(RUN(20, "HabcHabcHabcHabcHabcHabcHabcHabcAuD"), 3);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, nor_batches_that_sum_activations)
{
	/* B is of tensor parallelism, A of data parallelism: seen in every step, not in every batch. */
	struct repeat *r = self->s.r;

	self->s.at = 20;
	EXPECT_LE(RUN(20, "HaBcHaBcHaBcHaBcHaBcAuD"), 3);
	EXPECT_EQ(self->s.at, 0);
	EXPECT_EQ(self->s.r, r);
}

TEST_F(repeat, batches_of_one_rank_that_end_are_no_steps)
{
	/* Three of four batches are seen; the fourth begins no further one. */
	self->s.at = 3;
	EXPECT_LE(RUN(20, "HabHabHabHabuvw"), 5);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, batches_while_more_memory_is_in_use)
{
	/* Gradients are allocated by the first batch, and freed by the update. */
	EXPECT_LE(RUN(20, "H+abHabHabHabuvw-"), 5);
	EXPECT_EQ(self->s.bytes, 100 * MB);
}

TEST_F(repeat, two_steps_that_alternate_are_one)
{
	EXPECT_LE(RUN(20, "HabAcD", "HxyAzwD"), 6);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, other_kernels_for_other_lengths)
{
	/* What is the same is copies and collectives. */
	EXPECT_LE(RUN(20, "HabcAdAeD", "HxyAzAwvuD", "HabxAvAqD", "HcbAfAgghD", "HtyAaAzhD"), 5);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, copies_in_pieces)
{
	EXPECT_LE(RUN(20, "HHHabAcD", "HabAcDD", "HHabAcD", "HHHHHabAcD"), 3);
	EXPECT_EQ(self->s.at, 0);
	/* The boundary is behind the last piece. */
	repeat_pass(self->s.r);
	EXPECT_NE(RUN(20, "HHabAcDDD"), NONE);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, a_line_in_the_log_now_and_then)
{
	EXPECT_LE(RUN(40, "HabAc", "HabAc", "HabAc", "HabAc", "HabAcD"), 10);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, data_that_lies_on_the_device)
{
	/* Nothing but a loss that is read. */
	EXPECT_LE(RUN(20, "lmnlmnlmnlmnlmnuD"), 4);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, no_pattern)
{
	uint64_t x = 1;
	uint32_t times;

	for (int i = 0; i < 20000; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		repeat_bytes(self->s.r, MB);
		ASSERT_FALSE(repeat_item(self->s.r, x >> 62, x >> 48));
	}
	EXPECT_FALSE(repeat_here(self->s.r));
	EXPECT_EQ(repeat_known(self->s.r, &times), 0);
	EXPECT_EQ(repeat_seen(self->s.r) > 10000, 1);
}

TEST_F(repeat, nothing_but_copies)
{
	for (int i = 0; i < 1000; i++)
		ASSERT_FALSE(repeat_item(self->s.r, REPEAT_TO_DEVICE, 0));
	EXPECT_EQ(repeat_seen(self->s.r), 1);
}

TEST_F(repeat, what_was_known_ends)
{
	uint32_t times;

	ASSERT_NE(RUN(20, "HabAcD"), NONE);
	repeat_pass(self->s.r);
	EXPECT_FALSE(feed(&self->s, "HvwxyzD"));
	EXPECT_EQ(repeat_known(self->s.r, &times), 0);
	/* and another training begins */
	EXPECT_NE(RUN(40, "HpqrAsD"), NONE);
	EXPECT_EQ(self->s.at, 0);
}

TEST_F(repeat, a_long_stream_is_given_up)
{
	uint64_t x = 1;

	for (uint32_t i = 0; i <= REPEAT_ITEMS; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		ASSERT_FALSE(repeat_item(self->s.r, REPEAT_WORK, x));
	}
	EXPECT_EQ(repeat_seen(self->s.r), -E2BIG);
}

TEST_HARNESS_MAIN
