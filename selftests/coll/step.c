// SPDX-License-Identifier: Apache-2.0
/*
 * step.c - the step, asked wrong things first: refusals, full states, creations, sentences, many
 * ranks
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step.h"
#include "tree.h"

#include "kselftest_harness.h"
#include "../harness/patience.h"

#define SEEN_MAX 4096

/* What the last event told. */
static struct step_action said[SEEN_MAX];
static int nsaid;

static void note(void *ctx, const struct step_action *a)
{
	(void)ctx;
	if (nsaid < SEEN_MAX)
		said[nsaid++] = *a;
}

static int event(struct step *s, struct step_event e)
{
	nsaid = 0;
	return step(s, &e, note, NULL);
}

static int count(enum step_action_kind kind)
{
	int i, n = 0;

	for (i = 0; i < nsaid; i++)
		n += said[i].kind == kind;
	return n;
}

static const struct step_action *last(enum step_action_kind kind)
{
	static const struct step_action none = { .code = 99, .member = STEP_NONE };
	int i;

	for (i = nsaid; i--;)
		if (said[i].kind == kind)
			return &said[i];
	return &none;
}

static int enter(struct step *s, uint32_t proxy, uint32_t device)
{
	return event(s,
	             (struct step_event){ .kind = STEP_ENTER, .proxy = proxy, .device = device });
}

static int join(struct step *s, uint32_t proxy, uint64_t comm, uint32_t ranks, uint32_t rank)
{
	return event(s, (struct step_event){ .kind = STEP_JOIN,
	                                     .proxy = proxy,
	                                     .comm = comm,
	                                     .ranks = ranks,
	                                     .rank = rank });
}

static int post(struct step *s, uint32_t member, uint64_t cookie, const struct step_call *calls,
                uint32_t n)
{
	return event(s, (struct step_event){ .kind = STEP_POST,
	                                     .member = member,
	                                     .cookie = cookie,
	                                     .calls = calls,
	                                     .ncalls = n });
}

static int on(struct step *s, enum step_event_kind kind, uint32_t who)
{
	return event(
		s, (struct step_event){ .kind = kind, .proxy = who, .device = who, .member = who });
}

static int done(struct step *s, uint32_t device, uint64_t order, uint32_t code)
{
	return event(s,
	             (struct step_event){
			     .kind = STEP_DONE, .device = device, .order = order, .code = code });
}

static const struct step_call sum = { STEP_ALLREDUCE, TREE_F32, TREE_SUM, 0, 0, 8 };

FIXTURE(state)
{
	struct step_limits limits;
	struct step *s;
	char *was;
	size_t size;
};

/* Ranks 0, 1, 2 on devices 0, 1, 2, in communicator 7. */
FIXTURE_SETUP(state)
{
	uint32_t r;

	self->limits = (struct step_limits){ 4, 4, 2, 6, 4, 6, 4 };
	self->size = step_size(&self->limits);
	ASSERT_GT(self->size, 0);
	self->was = malloc(self->size);
	self->s = step_init(malloc(self->size), &self->limits);
	for (r = 0; r < 3; r++) {
		ASSERT_EQ(enter(self->s, r, r), 0);
	}
	for (r = 0; r < 3; r++) {
		ASSERT_EQ(join(self->s, r, 7, 3, r), (int)r);
	}
	EXPECT_EQ(count(STEP_JOINED), 3);
	memcpy(self->was, self->s, self->size);
}

FIXTURE_TEARDOWN(state)
{
	free(self->s);
	free(self->was);
}

#define REFUSED(code, call)                                           \
	do {                                                          \
		EXPECT_EQ(call, code);                                \
		EXPECT_EQ(nsaid, 0);                                  \
		EXPECT_EQ(memcmp(self->s, self->was, self->size), 0); \
	} while (0)

TEST_F(state, what_contradicts_it_is_refused_and_changes_nothing)
{
	struct step_call bad = sum;

	REFUSED(-EPROTO, enter(self->s, 1, 0));
	REFUSED(-ENOSPC, enter(self->s, 4, 0));
	REFUSED(-ENOSPC, enter(self->s, 3, 4));
	REFUSED(-EPROTO, join(self->s, 3, 8, 2, 0));
	REFUSED(-EPROTO, join(self->s, 0, 8, 0, 0));
	REFUSED(-EPROTO, join(self->s, 0, 8, 2, 2));
	REFUSED(-EPROTO, join(self->s, 0, 7, 3, 0));
	REFUSED(-ENOSPC, join(self->s, 0, 8, 4, 0));
	REFUSED(-ENOSPC, join(self->s, 0, 8, 1u << 20, 0));
	REFUSED(-EPROTO, post(self->s, 3, 1, &sum, 1));
	REFUSED(-EPROTO, post(self->s, STEP_NONE, 1, &sum, 1));
	REFUSED(-EPROTO, post(self->s, 0, 1, &sum, 0));
	bad.kind = STEP_KINDS;
	REFUSED(-EPROTO, post(self->s, 0, 1, &bad, 1));
	bad = sum;
	bad.type = TREE_TYPES;
	REFUSED(-EPROTO, post(self->s, 0, 1, &bad, 1));
	bad = sum;
	bad.op = TREE_OPS;
	REFUSED(-EPROTO, post(self->s, 0, 1, &bad, 1));
	bad = sum;
	bad.peer = 3;
	REFUSED(-EPROTO, post(self->s, 0, 1, &bad, 1));
	bad = sum;
	bad.zero = 1;
	REFUSED(-EPROTO, post(self->s, 0, 1, &bad, 1));
	REFUSED(-EPROTO, on(self->s, STEP_NEXT, 3));
	REFUSED(-EPROTO, on(self->s, STEP_NEXT, STEP_NONE));
	REFUSED(0, on(self->s, STEP_NEXT, 0));
	REFUSED(-EPROTO, done(self->s, 0, 1, 0));
	REFUSED(-EPROTO, done(self->s, 0, 0, 0));
	REFUSED(-EPROTO, on(self->s, STEP_LEAVE, 3));
	REFUSED(-EPROTO, on(self->s, STEP_EXIT, 3));
	REFUSED(-EPROTO, on(self->s, STEP_DIE, 3));
	REFUSED(0, on(self->s, STEP_DIE, STEP_NONE));
	REFUSED(-EPROTO, on(self->s, STEP_DIE + 1, 0));
	EXPECT_EQ(post(self->s, 0, 1, &sum, 1), 0);
	EXPECT_EQ(post(self->s, 1, 1, &sum, 1), 0);
	EXPECT_EQ(post(self->s, 2, 1, &sum, 1), 0);
	EXPECT_EQ(count(STEP_WAKE), 3);
	EXPECT_EQ(on(self->s, STEP_NEXT, 0), 1);
	memcpy(self->was, self->s, self->size);
	REFUSED(-EPROTO, done(self->s, 1, 1, 0));
	REFUSED(-EPROTO, done(self->s, 0, 2, 0));
	REFUSED(-EPROTO, done(self->s, 0, 1, 256));
	EXPECT_EQ(done(self->s, 0, 1, 0), 0);
	EXPECT_EQ(last(STEP_ENDED)->code, 0);
	memcpy(self->was, self->s, self->size);
	REFUSED(-EPROTO, done(self->s, 0, 1, 0));
}

TEST_F(state, a_full_one_goes_on_in_larger_memory)
{
	struct step_limits more = { 8, 8, 4, 12, 64, 64, 64 }, used;
	struct step_call calls[5] = { sum, sum, sum, sum, sum };
	struct step *s;
	uint32_t i;

	REFUSED(-ENOSPC, post(self->s, 0, 9, calls, 5));
	for (i = 0; i < 4; i++) {
		ASSERT_EQ(post(self->s, 0, i, &sum, 1), 0);
	}
	memcpy(self->was, self->s, self->size);
	REFUSED(-ENOSPC, post(self->s, 0, 4, &sum, 1));
	s = step_grow(self->s, malloc(step_size(&more)), &more);
	EXPECT_EQ(step_digest(s), step_digest(self->s));
	free(self->s);
	self->s = s;
	for (i = 4; i < 20; i++) {
		ASSERT_EQ(post(s, 0, i, &sum, 1), 0);
	}
	for (i = 0; i < 20; i++) {
		ASSERT_EQ(post(s, 1, 100 + i, &sum, 1), 0);
		ASSERT_EQ(post(s, 2, 200 + i, &sum, 1), 0);
		ASSERT_EQ(count(STEP_WAKE), 3);
	}
	for (i = 0; i < 20; i++) {
		ASSERT_EQ(on(s, STEP_NEXT, 0), 1);
		ASSERT_EQ(last(STEP_START)->cookie, i);
		ASSERT_EQ(last(STEP_START)->order, i + 1);
		ASSERT_EQ(last(STEP_START)->more, 0);
	}
	EXPECT_EQ(on(s, STEP_NEXT, 0), 0);
	step_used(s, &used);
	EXPECT_EQ(used.ops, 20);
	EXPECT_EQ(used.parts, 60);
	EXPECT_EQ(enter(s, 7, 7), 0);
}

/* One limit after the other is met first, by two ranks of three that post. */
TEST(each_limit_is_kept)
{
	static const struct step_limits tight[] = { { 3, 3, 1, 3, 3, 64, 64 },
		                                    { 3, 3, 1, 3, 64, 5, 64 },
		                                    { 3, 3, 1, 3, 64, 64, 5 } };
	size_t i, size;
	struct step *s;
	uint32_t r;
	void *was;
	int err;

	for (i = 0; i < 3; i++) {
		size = step_size(&tight[i]);
		was = malloc(size);
		s = step_init(malloc(size), &tight[i]);
		for (r = 0; r < 3; r++)
			enter(s, r, r);
		for (r = 0; r < 3; r++) {
			ASSERT_EQ(join(s, r, 1, 3, r), (int)r);
		}
		for (r = 0, err = 0; !err && r < 20; r++) {
			memcpy(was, s, size);
			err = post(s, r % 2, r, &sum, 1);
		}
		EXPECT_EQ(err, -ENOSPC);
		EXPECT_EQ(nsaid, 0);
		EXPECT_EQ(memcmp(s, was, size), 0);
		EXPECT_EQ(r, 6);
		free(s);
		free(was);
	}
}

TEST(limits_that_are_none_have_no_size)
{
	struct step_limits l = { 1, 1, 1, 1, 1, 1, 1 };

	EXPECT_GT(step_size(&l), 0);
	l.parts = 0;
	EXPECT_EQ(step_size(&l), 0);
	l.parts = (1u << 20) + 1;
	EXPECT_EQ(step_size(&l), 0);
	l.parts = 1u << 20;
	EXPECT_GT(step_size(&l), 1u << 20);
}

TEST_F(state, calls_of_count_0_are_no_operations)
{
	struct step_call none = sum, calls[2] = { sum, sum };

	none.count = 0;
	ASSERT_EQ(post(self->s, 1, 5, &none, 1), 0);
	EXPECT_EQ(nsaid, 2);
	EXPECT_EQ(last(STEP_BEGUN)->cookie, 5);
	EXPECT_EQ(last(STEP_ENDED)->cookie, 5);
	EXPECT_EQ(memcmp(self->s, self->was, self->size), 0);
	/* It takes no number: the next one of rank 1 belongs to the first of the others. */
	calls[0] = none;
	ASSERT_EQ(post(self->s, 1, 6, calls, 2), 0);
	ASSERT_EQ(post(self->s, 0, 6, &sum, 1), 0);
	ASSERT_EQ(post(self->s, 2, 6, &sum, 1), 0);
	EXPECT_EQ(count(STEP_WAKE), 3);
	EXPECT_EQ(on(self->s, STEP_NEXT, 1), 1);
	EXPECT_EQ(last(STEP_START)->call, 1);
}

TEST_F(state, calls_that_differ_are_named)
{
	static const struct {
		struct step_call first, second;
		const char *text;
	} cases[] = {
		{ { STEP_ALLREDUCE, TREE_F32, 0, 0, 0, 8 },
		  { STEP_ALLREDUCE, TREE_F32, 0, 0, 0, 9 },
		  "all-reduce, collective 0: rank 2 has a count of 9, rank 1 8" },
		{ { STEP_ALLREDUCE, TREE_F32, 0, 0, 0, 8 },
		  { STEP_ALLREDUCE, TREE_F64, 0, 0, 0, 8 },
		  "all-reduce, collective 0: rank 2 has the type 8, rank 1 7" },
		{ { STEP_REDUCE, TREE_F32, TREE_SUM, 0, 0, 8 },
		  { STEP_REDUCE, TREE_F32, TREE_MAX, 0, 0, 8 },
		  "reduce, collective 0: rank 2 has the operator 2, rank 1 0" },
		{ { STEP_BROADCAST, TREE_F32, 0, 0, 0, 8 },
		  { STEP_BROADCAST, TREE_F32, 0, 0, 2, 8 },
		  "broadcast, collective 0: rank 2 has the root 2, rank 1 0" },
		{ { STEP_BROADCAST, TREE_F32, 0, 0, 0, 8 },
		  { STEP_GATHER, TREE_F32, 0, 0, 0, 8 },
		  "collective 0: rank 2 calls gather, rank 1 broadcast" },
		{ { STEP_RECV, TREE_F32, 0, 0, 2, 8 },
		  { STEP_SEND, TREE_F32, 0, 0, 1, 9 },
		  "send from rank 2 to 1: rank 2 has a count of 9, rank 1 8" },
	};
	char text[200];
	unsigned int i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memcpy(self->s, self->was, self->size);
		ASSERT_EQ(post(self->s, 1, 11, &cases[i].first, 1), 0);
		EXPECT_EQ(nsaid, 0);
		ASSERT_EQ(post(self->s, 2, 22, &cases[i].second, 1), 0);
		EXPECT_EQ(count(STEP_ENDED), 2);
		EXPECT_EQ(last(STEP_ENDED)->code, STEP_INVALID_USAGE);
		EXPECT_EQ(last(STEP_FAILED)->comm, 7);
		step_sentence(&last(STEP_FAILED)->failure, text, sizeof(text));
		EXPECT_STREQ(text, cases[i].text);
	}
	/* The last rank of a collective learns of it, too, and the next one works. */
	memcpy(self->s, self->was, self->size);
	post(self->s, 1, 11, &cases[0].first, 1);
	post(self->s, 2, 22, &cases[0].second, 1);
	ASSERT_EQ(post(self->s, 0, 33, &sum, 1), 0);
	EXPECT_EQ(last(STEP_ENDED)->code, STEP_INVALID_USAGE);
	for (i = 0; i < 3; i++)
		post(self->s, i, 44, &sum, 1);
	EXPECT_EQ(count(STEP_WAKE), 3);
}

TEST_F(state, who_is_missing_is_named)
{
	struct step_failure f = { .kind = STEP_ALLREDUCE, .number = 3, .rank = 1 };
	char text[200];

	ASSERT_EQ(post(self->s, 0, 1, &sum, 1), 0);
	ASSERT_EQ(on(self->s, STEP_DIE, 2), 0);
	EXPECT_EQ(count(STEP_BROKEN), 2);
	EXPECT_EQ(last(STEP_ENDED)->code, STEP_REMOTE);
	step_sentence(&last(STEP_FAILED)->failure, text, sizeof(text));
	EXPECT_STREQ(text, "all-reduce, collective 0: rank 2 has died");
	step_sentence(&last(STEP_BROKEN)->failure, text, sizeof(text));
	EXPECT_STREQ(text, "rank 2 has died");
	/* Who posts later is told, too. */
	ASSERT_EQ(post(self->s, 1, 2, &sum, 1), 0);
	EXPECT_EQ(last(STEP_ENDED)->code, STEP_REMOTE);
	step_sentence(&last(STEP_ENDED)->failure, text, sizeof(text));
	EXPECT_STREQ(text, "all-reduce, collective 0: rank 2 has died");
	ASSERT_EQ(on(self->s, STEP_EXIT, 1), 0);
	EXPECT_EQ(last(STEP_RELEASE)->proxy, 1);
	f.reason = STEP_LEFT;
	step_sentence(&f, text, sizeof(text));
	EXPECT_STREQ(text, "all-reduce, collective 3: rank 1 has left");
	f.reason = STEP_TRANSPORT;
	step_sentence(&f, text, sizeof(text));
	EXPECT_STREQ(text, "all-reduce, collective 3: the transport of rank 1 failed");
	f.code = STEP_REMOTE;
	step_sentence(&f, text, sizeof(text));
	EXPECT_STREQ(text, "all-reduce, collective 3: rank 1 has lost another rank");
	EXPECT_STREQ(step_kind_name(99), "unknown call");
}

/* The device that has failed is named, though others have heard of it, and failed, before; the end is everybody's. */
TEST_F(state, a_device_that_fails_is_named)
{
	struct step_event broken = { .kind = STEP_DONE, .device = 1, .code = STEP_SYSTEM, .cause = 719 };
	char text[200];
	uint32_t i;

	for (i = 0; i < 3; i++)
		ASSERT_EQ(post(self->s, i, i, &sum, 1), 0);
	for (i = 0; i < 3; i++)
		ASSERT_EQ(on(self->s, STEP_NEXT, i), 1);
	broken.order = last(STEP_START)->order;
	ASSERT_EQ(done(self->s, 0, broken.order, STEP_REMOTE), 0);
	EXPECT_EQ(count(STEP_ENDED), 0);
	ASSERT_EQ(event(self->s, broken), 0);
	ASSERT_EQ(done(self->s, 2, broken.order, STEP_OK), 0);
	ASSERT_EQ(count(STEP_ENDED), 3);
	for (i = 0; i < (uint32_t)nsaid; i++) {
		if (said[i].kind != STEP_ENDED)
			continue;
		EXPECT_EQ(said[i].code, STEP_REMOTE);
		step_sentence(&said[i].failure, text, sizeof(text));
		EXPECT_STREQ(text, "all-reduce, collective 0: the device of rank 1 failed with CUDA error 719");
	}
}

/* Whether proxies 0, 1 and 2 owe something, as bits. */
static int owe(const struct step *s)
{
	return (step_owes(s, 0) != 0) | (step_owes(s, 1) != 0) << 1 | (step_owes(s, 2) != 0) << 2;
}

/* Which of them proxy `who` waits for. */
static int awaits(const struct step *s, uint32_t who)
{
	return step_waits(s, who, 0) | step_waits(s, who, 1) << 1 | step_waits(s, who, 2) << 2;
}

TEST_F(state, who_owes_is_known)
{
	const struct step_call send = { STEP_SEND, TREE_F32, 0, 0, 2, 1 << 20 };
	const struct step_call receive = { STEP_RECV, TREE_F32, 0, 0, 0, 1 << 20 };

	EXPECT_EQ(owe(self->s), 0);
	ASSERT_EQ(post(self->s, 1, 1, &sum, 1), 0);
	EXPECT_EQ(owe(self->s), 1 | 4);
	ASSERT_EQ(post(self->s, 0, 2, &sum, 1), 0);
	EXPECT_EQ(owe(self->s), 4);
	/* What has started is owed by nobody. */
	ASSERT_EQ(post(self->s, 2, 3, &sum, 1), 0);
	EXPECT_EQ(owe(self->s), 0);
	for (uint32_t i = 0; i < 3; i++) {
		on(self->s, STEP_NEXT, i);
		ASSERT_EQ(done(self->s, i, 1, STEP_OK), 0);
	}
	ASSERT_EQ(post(self->s, 0, 4, &send, 1), 0);
	EXPECT_EQ(owe(self->s), 4);
	ASSERT_EQ(post(self->s, 2, 5, &receive, 1), 0);
	EXPECT_EQ(owe(self->s), 0);
	for (uint32_t i = 0; i < 3; i += 2) {
		on(self->s, STEP_NEXT, i);
		ASSERT_EQ(done(self->s, i, 2, STEP_OK), 0);
	}
	ASSERT_EQ(post(self->s, 2, 6, &receive, 1), 0);
	EXPECT_EQ(owe(self->s), 1);
	EXPECT_FALSE(step_owes(self->s, 3));
	ASSERT_EQ(on(self->s, STEP_DIE, 0), 0);
	EXPECT_EQ(owe(self->s), 0);
}

TEST_F(state, what_is_owed_has_an_age_and_who_waits_for_it_is_known)
{
	const struct step_call send = { STEP_SEND, TREE_F32, 0, 0, 2, 1 << 20 };
	uint64_t first, second;

	EXPECT_EQ(awaits(self->s, 0), 0);
	ASSERT_EQ(post(self->s, 0, 1, &send, 1), 0);
	first = step_owes(self->s, 2);
	EXPECT_NE(first, 0);
	EXPECT_EQ(awaits(self->s, 0), 4);
	EXPECT_EQ(awaits(self->s, 1), 0);
	ASSERT_EQ(post(self->s, 1, 2, &sum, 1), 0);
	second = step_owes(self->s, 0);
	EXPECT_GT(second, first);
	EXPECT_EQ(step_owes(self->s, 2), first);	/* the oldest of two */
	EXPECT_EQ(awaits(self->s, 1), 1 | 4);
	EXPECT_EQ(awaits(self->s, 2), 0);
	/* In another communicator, of ranks 1 and 2, there is a later one. */
	ASSERT_EQ(join(self->s, 1, 8, 2, 0), 3);
	ASSERT_EQ(join(self->s, 2, 8, 2, 1), 4);
	ASSERT_EQ(post(self->s, 3, 7, &sum, 1), 0);
	EXPECT_EQ(step_owes(self->s, 2), first);
	ASSERT_EQ(on(self->s, STEP_LEAVE, 3), 0);
	ASSERT_EQ(on(self->s, STEP_LEAVE, 4), 0);
	ASSERT_EQ(post(self->s, 0, 3, &sum, 1), 0);
	EXPECT_EQ(awaits(self->s, 1), 4);
	EXPECT_EQ(awaits(self->s, 0), 4);
	EXPECT_EQ(step_owes(self->s, 0), 0);
	/* What all have posted waits for nobody. */
	ASSERT_EQ(post(self->s, 2, 4, &sum, 1), 0);
	EXPECT_EQ(awaits(self->s, 1), 0);
	EXPECT_EQ(awaits(self->s, 0), 4);
	EXPECT_EQ(step_owes(self->s, 2), first);
	ASSERT_EQ(on(self->s, STEP_DIE, 2), 0);
	EXPECT_EQ(awaits(self->s, 0), 0);
}

/* A creation with nobody missing, in every order; and with one that is wrong or dies. */
TEST_F(state, a_communicator_stands_when_all_have_joined)
{
	static const uint32_t orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
		                               { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
	int i, r, m[3];

	for (i = 0; i < 6; i++) {
		memcpy(self->s, self->was, self->size);
		for (r = 0; r < 3; r++) {
			m[orders[i][r]] = join(self->s, orders[i][r], 8, 3, orders[i][r]);
			ASSERT_EQ(count(STEP_JOINED), r == 2 ? 3 : 0);
		}
		ASSERT_EQ(m[1] - m[0], 1);
		ASSERT_EQ(m[2] - m[1], 1);
		for (r = 0; r < 3; r++) {
			ASSERT_EQ(on(self->s, STEP_LEAVE, m[r]), 0);
		}
		EXPECT_EQ(memcmp(self->s, self->was, self->size), 0);
	}
}

/* One may hear late that all have joined: when another has left already, and its process has gone. */
TEST_F(state, who_joined_is_known_after_it_has_gone)
{
	uint32_t r, proxy[3] = { 9, 9, 9 };

	ASSERT_EQ(on(self->s, STEP_LEAVE, 2), 0);
	ASSERT_EQ(on(self->s, STEP_EXIT, 2), 0);
	EXPECT_EQ(count(STEP_RELEASE), 1);
	EXPECT_EQ(step_proxy(self->s, 2), STEP_NONE);
	EXPECT_EQ(step_ranks(self->s, 0, proxy, 3), 3);
	for (r = 0; r < 3; r++)
		EXPECT_EQ(proxy[r], r);
	/* who has not joined yet is nobody */
	ASSERT_EQ(join(self->s, 0, 8, 2, 0), 3);
	EXPECT_EQ(step_ranks(self->s, 3, proxy, 2), 2);
	EXPECT_EQ(proxy[0], 0);
	EXPECT_EQ(proxy[1], STEP_NONE);
}

struct seen {
	uint32_t n, begun;
	uint64_t cookie;
};

static void see_record(void *ctx, uint32_t member, uint64_t cookie, bool begun)
{
	struct seen *seen = ctx;

	(void)member;
	seen->n++;
	seen->begun += begun;
	seen->cookie = cookie;
}

/* A restore compares what its session has with what is here. */
TEST_F(state, who_is_where_is_compared)
{
	const struct step_place at = { .key = 7, .member = 1, .rank = 1, .ranks = 3, .proxy = 1 };
	struct step_place other[6];
	struct seen seen = { 0 };
	bool stands = false;

	EXPECT_TRUE(step_is_at(self->s, &at, &stands));
	EXPECT_TRUE(stands);
	for (int i = 0; i < 6; i++)
		other[i] = at;
	other[0].key = 8;
	other[1].member = 2;
	other[2].rank = 2;
	other[3].ranks = 2;
	other[4].proxy = 2;
	other[5].member = 5;
	for (int i = 0; i < 6; i++) {
		EXPECT_FALSE(step_is_at(self->s, &other[i], &stands))
			TH_LOG("place %d", i);
	}
	/* One that forms, and a rank of it that has not joined. */
	ASSERT_EQ(join(self->s, 0, 8, 2, 0), 3);
	other[0] = (struct step_place){ .key = 8, .member = 3, .rank = 0, .ranks = 2, .proxy = 0 };
	other[1] = (struct step_place){ .key = 8, .member = 4, .rank = 1, .ranks = 2, .proxy = STEP_NONE };
	EXPECT_TRUE(step_is_at(self->s, &other[0], &stands));
	EXPECT_FALSE(stands);
	EXPECT_FALSE(step_is_at(self->s, &other[1], &stands));
	other[1].proxy = 0;
	EXPECT_FALSE(step_is_at(self->s, &other[1], &stands));
	/* Records are told to who has posted them, and whether they have begun. */
	ASSERT_EQ(post(self->s, 0, 11, &sum, 1), 0);
	ASSERT_EQ(post(self->s, 1, 12, &sum, 1), 0);
	step_records(self->s, 1, see_record, &seen);
	EXPECT_EQ(seen.n, 1);
	EXPECT_EQ(seen.cookie, 12);
	EXPECT_EQ(seen.begun, 0);
	ASSERT_EQ(post(self->s, 2, 13, &sum, 1), 0);
	for (uint32_t i = 0; i < 3; i++)
		on(self->s, STEP_NEXT, i);
	step_records(self->s, 1, see_record, &seen);
	EXPECT_EQ(seen.n, 2);
	EXPECT_EQ(seen.begun, 1);
}

TEST_F(state, a_creation_fails_for_all_or_none)
{
	int m;

	/* The same rank twice. */
	join(self->s, 0, 8, 3, 1);
	EXPECT_EQ(join(self->s, 1, 8, 3, 1), -EEXIST);
	EXPECT_EQ(count(STEP_JOINED), 1);
	EXPECT_EQ(last(STEP_JOINED)->code, STEP_INVALID_USAGE);
	EXPECT_EQ(join(self->s, 2, 8, 3, 2), -EINVAL);
	EXPECT_EQ(memcmp(self->s, self->was, self->size), 0);
	/* One proxy twice: NCCL's duplicate GPU. */
	join(self->s, 0, 8, 2, 1);
	EXPECT_EQ(join(self->s, 0, 8, 2, 0), -EEXIST);
	EXPECT_EQ(last(STEP_JOINED)->code, STEP_INVALID_USAGE);
	EXPECT_EQ(memcmp(self->s, self->was, self->size), 0);
	/* Another number of ranks. */
	join(self->s, 0, 8, 2, 1);
	EXPECT_EQ(join(self->s, 1, 8, 3, 0), -EINVAL);
	EXPECT_EQ(memcmp(self->s, self->was, self->size), 0);
	/* Its member leaves, exits; a stranger dies, who might have been about to join. */
	m = join(self->s, 0, 8, 2, 1);
	EXPECT_EQ(post(self->s, m, 1, &sum, 1), -EPROTO);
	/* Who had this number in a creation that has failed aborts that one, not this. */
	EXPECT_EQ(event(self->s, (struct step_event){ .kind = STEP_LEAVE, .member = m, .comm = 9 }), -EPROTO);
	EXPECT_EQ(event(self->s, (struct step_event){ .kind = STEP_LEAVE, .member = m, .comm = 8 }), 0);
	EXPECT_EQ(last(STEP_JOINED)->code, STEP_REMOTE);
	EXPECT_EQ(join(self->s, 1, 8, 2, 0), -ECONNRESET);
	EXPECT_EQ(memcmp(self->s, self->was, self->size), 0);
	/* One dies that has not even entered. */
	join(self->s, 0, 8, 2, 1);
	EXPECT_EQ(on(self->s, STEP_DIE, STEP_NONE), 0);
	EXPECT_EQ(last(STEP_JOINED)->code, STEP_REMOTE);
	EXPECT_EQ(join(self->s, 1, 8, 2, 0), -ECONNRESET);
	join(self->s, 0, 8, 3, 1);
	EXPECT_EQ(on(self->s, STEP_DIE, 2), 0);
	EXPECT_EQ(last(STEP_JOINED)->code, STEP_REMOTE);
	EXPECT_EQ(join(self->s, 1, 8, 3, 0), -ECONNRESET);
	join(self->s, 1, 9, 3, 0);
	EXPECT_EQ(on(self->s, STEP_EXIT, 1), 0);
	EXPECT_EQ(count(STEP_JOINED), 0);
}

/* A communicator that is split and whose rank dies between the votes and the joins. */
TEST_F(state, a_child_of_a_broken_communicator_is_refused_at_once)
{
	struct step_event e = { .kind = STEP_JOIN, .comm = 8, .ranks = 2, .parent = 1 };

	/* One of the parent's ranks has left: the others may go on. */
	EXPECT_EQ(on(self->s, STEP_LEAVE, 2), 0);
	EXPECT_GE(event(self->s, e), 0);
	e.proxy = e.rank = 1;
	EXPECT_GE(event(self->s, e), 0);
	memcpy(self->s, self->was, self->size);
	EXPECT_EQ(on(self->s, STEP_DIE, 2), 0);
	EXPECT_EQ(event(self->s, e), -ECONNRESET);
	EXPECT_EQ(count(STEP_JOINED), 0);
}

/* Many ranks that share devices, at random: everything ends, and nothing is left. */
TEST(many_ranks)
{
	enum { RANKS = 48, DEVICES = 12, ROUNDS = 40 };
	struct step_limits limits = { RANKS, DEVICES, 1, RANKS, 300, 9000, 3000 }, used;
	struct step *s = step_init(malloc(step_size(&limits)), &limits);
	int posted[RANKS] = { 0 }, ended = 0, starts = 0;
	uint32_t r, d, turn, i;

	for (r = 0; r < RANKS; r++) {
		ASSERT_EQ(enter(s, r, r % DEVICES), 0);
	}
	for (r = 0; r < RANKS; r++) {
		ASSERT_GE(join(s, r, 1, RANKS, RANKS - 1 - r), 0);
	}
	for (turn = 0; ended < RANKS * ROUNDS; turn++) {
		ASSERT_LT(turn, 1000000);
		r = turn * 2654435761u % RANKS;
		if (posted[r] < ROUNDS) {
			posted[r]++;
			ASSERT_EQ(post(s, RANKS - 1 - r, r, &sum, 1), 0);
		}
		d = turn * 40503u % DEVICES;
		if (on(s, STEP_NEXT, d) != 1)
			continue;
		ASSERT_EQ(count(STEP_START), RANKS / DEVICES);
		starts++;
		for (i = 0; i < RANKS / DEVICES; i++) {
			ASSERT_EQ(said[2 * i].more, RANKS / DEVICES - 1 - i);
		}
		ASSERT_EQ(done(s, d, last(STEP_START)->order, 0), 0);
		ended += count(STEP_ENDED);
	}
	EXPECT_EQ(starts, DEVICES * ROUNDS);
	for (r = 0; r < RANKS; r++) {
		ASSERT_EQ(on(s, STEP_EXIT, r), 0);
		ASSERT_EQ(count(STEP_RELEASE), 1);
	}
	step_used(s, &used);
	EXPECT_EQ(used.proxies + used.comms + used.members + used.ops + used.parts + used.records,
	          0);
	free(s);
}

/* A small send ends before its receiver comes, or waits like a large one if its rank has no room. */
TEST_F(state, a_small_send_without_room_waits)
{
	const struct step_call send = { STEP_SEND, TREE_F32, 0, 0, 1, 8 };
	struct step_event e = { .kind = STEP_POST, .member = 0, .cookie = 1, .calls = &send, .ncalls = 1 };

	ASSERT_EQ(event(self->s, e), 0);
	EXPECT_EQ(count(STEP_BUFFER), 1);
	EXPECT_EQ(count(STEP_ENDED), 1);
	e.full = true;
	e.cookie = 2;
	ASSERT_EQ(event(self->s, e), 0);
	EXPECT_EQ(nsaid, 0);
}

/*
 * A rank that leaves takes back the large sends that nobody has received, and not the small ones between them: the
 * receiver gets those, in the order in which they were sent.
 */
TEST(a_rank_that_leaves_takes_its_large_sends_from_among_small_ones)
{
	static const struct step_limits limits = { 2, 2, 1, 2, 16, 32, 32 };
	static const char sends[] = "slLsLslL"; /* s: small; large otherwise */
	const struct step_call small = { STEP_SEND, TREE_F32, 0, 0, 1, 8 };
	struct step_call big = { STEP_SEND, TREE_F32, 0, 0, 1, STEP_BUFFERED }, get = { STEP_RECV, TREE_F32, 0, 0, 0, 8 };
	struct step *s = step_init(malloc(step_size(&limits)), &limits);
	struct step_limits used;

	for (uint32_t r = 0; r < 2; r++)
		ASSERT_EQ(enter(s, r, r), 0);
	for (uint32_t r = 0; r < 2; r++)
		ASSERT_EQ(join(s, r, 1, 2, r), (int)r);
	for (uint32_t i = 0; sends[i]; i++)
		ASSERT_EQ(post(s, 0, i, sends[i] == 's' ? &small : &big, 1), 0);
	ASSERT_EQ(on(s, STEP_LEAVE, 0), 0);
	EXPECT_EQ(count(STEP_ENDED), 5);
	for (uint32_t i = 0, order = 0; sends[i]; i++) {
		if (sends[i] != 's')
			continue;
		ASSERT_EQ(post(s, 1, 100 + i, &get, 1), 0);
		ASSERT_EQ(count(STEP_WAKE), 2);
		for (uint32_t d = 0; d < 2; d++) {
			ASSERT_EQ(on(s, STEP_NEXT, d), 1);
			EXPECT_EQ(last(STEP_START)->cookie, d ? 100 + i : i);
		}
		order++;
		for (uint32_t d = 0; d < 2; d++)
			EXPECT_EQ(done(s, d, order, 0), 0);
	}
	/* There is no further one. */
	ASSERT_EQ(post(s, 1, 200, &get, 1), 0);
	EXPECT_EQ(count(STEP_WAKE), 0);
	EXPECT_EQ(last(STEP_ENDED)->code, STEP_REMOTE);
	step_used(s, &used);
	EXPECT_EQ(used.ops + used.parts + used.records, 0);
	free(s);
}

/* Sends to many ranks, two to each, which lie in few lists: each is found, whichever has gone before. */
TEST(sends_to_many_ranks_are_told_apart)
{
	enum { MANY = 400 };
	static const struct step_limits limits = { MANY, MANY, 1, MANY, 2 * MANY, 4 * MANY, 4 * MANY };
	const struct step_call get = { STEP_RECV, TREE_F32, 0, 0, 0, 8 };
	struct step_call send = { STEP_SEND, TREE_F32, 0, 0, 0, 8 };
	struct step *s = step_init(malloc(step_size(&limits)), &limits);

	for (uint32_t r = 0; r < MANY; r++)
		ASSERT_EQ(enter(s, r, r), 0);
	for (uint32_t r = 0; r < MANY; r++)
		ASSERT_EQ(join(s, r, 1, MANY, r), (int)r);
	for (uint32_t i = 0; i < 2; i++)
		for (uint32_t r = 1; r < MANY; r++) {
			send.peer = r;
			ASSERT_EQ(post(s, 0, 2 * r + i, &send, 1), 0);
		}
	/* The last one first. */
	for (uint32_t i = 0, order = 0; i < 2; i++)
		for (uint32_t r = MANY - 1; r; r--) {
			ASSERT_EQ(post(s, r, 1000 + r, &get, 1), 0);
			ASSERT_EQ(last(STEP_WAKE)->order, ++order) TH_LOG("rank %u", r);
			ASSERT_EQ(on(s, STEP_NEXT, 0), 1);
			EXPECT_EQ(last(STEP_START)->cookie, 2 * r + i);
		}
	free(s);
}

/* ---- what is looked at ---- */

#define AHEAD 4000u

static struct step *two_ranks(void)
{
	static const struct step_limits limits = { 3, 3, 3, 9, 4 * AHEAD, 8 * AHEAD, 4 * AHEAD };
	struct step *s = step_init(malloc(step_size(&limits)), &limits);

	for (uint32_t r = 0; r < 3; r++)
		enter(s, r, r);
	for (uint32_t r = 0; r < 3; r++)
		join(s, r, 1, 3, r);
	return s;
}

static const struct step_call large = { STEP_SEND, TREE_F32, 0, 0, 1, STEP_BUFFERED };

/* The i-th call of one way to run ahead; of rank 0, or of the one it waits for. */
static struct step_call ahead(int way, uint32_t i, bool other)
{
	struct step_call c = large;

	if (way == 0)
		return sum;
	/* Receives of rank 0: from rank 1 alone; or from both, and calls of all between them. */
	c.kind = other ? STEP_SEND : STEP_RECV;
	c.peer = other ? 0 : way == 1 ? 1 : 1 + i % 2;
	return way == 3 && i % 3 == 2 ? sum : c;
}

/*
 * Rank 0 has posted n calls when the others post theirs, one after the other; then all start, and end, the last
 * one first. How many entries are looked at.
 */
static uint64_t looks_of(struct __test_metadata *_metadata, int way, uint32_t n)
{
	struct step *s = two_ranks();
	struct step_limits used;
	uint64_t looks, orders = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct step_call c = ahead(way, i, false);

		ASSERT_EQ(post(s, 0, i, &c, 1), 0);
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct step_call c = ahead(way, i, true);
		bool all = c.kind < STEP_SEND;

		for (uint32_t r = 1; r < 3; r++) {
			if (!all && r != ahead(way, i, false).peer)
				continue;
			ASSERT_EQ(post(s, r, r * n + i, &c, 1), 0);
		}
		ASSERT_EQ(last(STEP_WAKE)->order, ++orders);
	}
	for (uint32_t d = 0; d < 3; d++)
		for (uint64_t seen = 0; on(s, STEP_NEXT, d) == 1; seen = last(STEP_START)->order) {
			ASSERT_GT(last(STEP_START)->order, seen);
			if (!d && way < 2)	/* each belongs to the earliest that waits for it */
				ASSERT_EQ(last(STEP_START)->cookie, seen);
		}
	for (uint64_t order = orders; order; order--)
		for (uint32_t d = 0; d < 3; d++)
			done(s, d, order, 0);
	step_used(s, &used);
	EXPECT_EQ(used.ops + used.parts + used.records, 0);
	looks = step_looks(s);
	free(s);
	return looks;
}

TEST(hosts_that_run_ahead_cost_in_proportion)
{
	for (int way = 0; way < 4; way++) {
		uint64_t one = looks_of(_metadata, way, AHEAD / 2);
		uint64_t two = looks_of(_metadata, way, AHEAD);

		TH_LOG("way %d: %llu entries looked at, and %llu for twice as many", way,
		       (unsigned long long)one, (unsigned long long)two);
		/* A few for each call, as many for each of twice as many. */
		EXPECT_LE(one, 40ull * AHEAD);
		EXPECT_LE(two, 3 * one + AHEAD);
	}
}

/*
 * Of a state that goes on, and of one that has its arrays and an index made from them, each event has the same
 * effect: whatever is in flight, both indices say the same.
 */
TEST(an_index_is_made_from_what_is_saved)
{
	static struct step_action did[SEEN_MAX];
	static bool runs[3][SEEN_MAX]; /* by device and order */
	struct step_limits limits = { 3, 3, 3, 9, 300, 600, 600 };
	size_t size = step_size(&limits), saved = step_saved_size(&limits);
	struct step *s = step_init(malloc(size), &limits), *copy;
	uint32_t seed = 1, turn, started = 0, failed = 0;

	ASSERT_LT(saved, size);
	for (uint32_t r = 0; r < 3; r++)
		ASSERT_EQ(enter(s, r, r), 0);
	for (turn = 0; turn < 30000; turn++) {
		uint32_t what = (seed = seed * 1664525 + 1013904223) >> 8, r = what % 3, kind = what / 3 % 8;
		struct step_call c = sum;
		struct step_event e = { .member = r, .device = r, .proxy = r, .cookie = turn, .calls = &c,
			                .ncalls = 1, .ranks = 3, .rank = r, .comm = turn / 2000 };
		int rc, n;

		if (what / 24 % 3) {
			c.kind = what / 72 % 2 ? STEP_SEND : STEP_RECV;
			c.peer = what / 144 % 3;
			c.op = 0;
			c.count = what / 432 % 8 ? STEP_BUFFERED : 8;
		}
		e.kind = turn % 2000 < 3 ? STEP_JOIN : kind < 3 ? STEP_POST : kind < 5 ? STEP_NEXT : STEP_DONE;
		if (turn % 2000 < 3)
			e.rank = e.proxy = turn % 2000;
		/* Each communicator ends with a rank that leaves; then all do. */
		if (turn % 2000 > 1900) {
			e.kind = turn % 2000 < 1904 ? STEP_LEAVE : e.kind == STEP_POST ? STEP_NEXT : e.kind;
			e.member = turn % 2000 - 1901;
		}
		if (e.kind == STEP_DONE) {
			e.order = started ? 1 + what / 432 % started : 0;
			e.code = what % 97 ? STEP_OK : STEP_SYSTEM;
		}
		copy = calloc(1, size);
		memcpy(copy, s, saved);
		step_index(copy);
		rc = event(copy, e);
		n = nsaid;
		memcpy(did, said, n * sizeof(did[0]));
		ASSERT_EQ(event(s, e), rc);
		ASSERT_EQ(nsaid, n);
		ASSERT_EQ(memcmp(did, said, n * sizeof(did[0])), 0);
		ASSERT_EQ(memcmp(copy, s, saved), 0);
		if (e.kind == STEP_DONE) {
			ASSERT_EQ(rc, runs[r][e.order] ? 0 : -EPROTO);
			runs[r][e.order] = false;
		}
		for (int i = 0; i < n; i++)
			if (said[i].kind == STEP_START)
				runs[said[i].device][said[i].order] = true;
		started += count(STEP_START);
		failed += count(STEP_CANCEL) + count(STEP_ENDED) > 2;
		free(copy);
	}
	EXPECT_GT(started, 500);
	EXPECT_GT(failed, 10);
	free(s);
}

TEST_HARNESS_MAIN
