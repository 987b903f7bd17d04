// SPDX-License-Identifier: Apache-2.0
/*
 * boardsaved.c - a board is cut where nothing is under way, saved, and read again, whatever has been written there
 */
#include "board_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "board_1.h"
#include "image.h"

static const uint64_t both[BOARD_SEATS / 64] = { 3 };

TEST_F(board, a_cut_needs_all_seats_at_one_event)
{
	struct heard h[2];
	bool all = true;

	two_seats(h, self->b);
	EXPECT_EQ(board_cut(self->b, 0, 0, both, &all), -EINVAL);
	EXPECT_FALSE(all);
	all = true;
	EXPECT_EQ(board_cut(self->b, BOARD_SEATS, 5, both, &all), -EINVAL);
	EXPECT_FALSE(all);
	EXPECT_EQ(board_cut(self->b, 0, 5, both, &all), 0);
	EXPECT_FALSE(all);
	/* Another cut's number, by the other seat. */
	EXPECT_EQ(board_cut(self->b, 1, 6, both, &all), 0);
	EXPECT_FALSE(all);
	EXPECT_EQ(board_cut(self->b, 1, 5, both, &all), 0);
	EXPECT_TRUE(all);
	EXPECT_EQ(board_cut(self->b, 0, 5, both, &all), 0);
	EXPECT_TRUE(all);
	/* One goes on, though it knows that all are quiet: this cut comes to nothing. */
	board_cut_ends(self->b, 1);
	all = true;
	EXPECT_EQ(board_cut(self->b, 0, 5, both, &all), -ESTALE);
	EXPECT_FALSE(all);
	/* An event after what the first has said. */
	EXPECT_EQ(board_cut(self->b, 0, 7, both, &all), 0);
	EXPECT_FALSE(all);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(board_cut(self->b, 1, 7, both, &all), 0);
	EXPECT_FALSE(all);
	EXPECT_EQ(board_cut(self->b, 0, 7, both, &all), 0);
	EXPECT_TRUE(all);
	/* An event, of whomever, when one knows and the other does not. */
	ASSERT_EQ(board_enter(self->b, 2, "", 0), 0);
	EXPECT_EQ(board_cut(self->b, 1, 7, both, &all), -ESTALE);
}

/* A seat that knew of all, and whose proxy has ended since, as one does that has been saved, has begun nothing. */
TEST_F(board, the_end_of_one_that_knew_is_no_event_of_its_own)
{
	static const uint64_t three[BOARD_SEATS / 64] = { 7 };
	struct heard h[2];
	bool all;

	two_seats(h, self->b);
	ASSERT_EQ(board_enter(self->b, 2, "", 0), 0);
	EXPECT_EQ(board_cut(self->b, 0, 5, three, &all), 0);
	EXPECT_EQ(board_cut(self->b, 1, 5, three, &all), 0);
	EXPECT_FALSE(all);
	EXPECT_EQ(board_cut(self->b, 2, 5, three, &all), 0);
	EXPECT_TRUE(all);
	board_die(self->b, 2);
	EXPECT_EQ(board_cut(self->b, 0, 5, three, &all), 0);
	EXPECT_FALSE(all);
	EXPECT_EQ(board_cut(self->b, 1, 5, three, &all), 0);
	EXPECT_TRUE(all);
	EXPECT_EQ(board_cut(self->b, 0, 5, three, &all), 0);
	EXPECT_TRUE(all);
}

TEST_F(board, a_seat_with_mail_is_not_quiet)
{
	struct heard h[2];
	bool all = true;

	two_seats(h, self->b);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(board_cut(self->b, 0, 5, both, &all), 0);
	EXPECT_EQ(post(&h[1], 2, STEP_ALLREDUCE, 0, TREE_F32), 0);
	/* To seat 0 there is something to start; what it has said before does not count. */
	EXPECT_TRUE(board_mailed(self->b, 0));
	EXPECT_EQ(board_cut(self->b, 1, 5, both, &all), 0);
	EXPECT_FALSE(all);
	all = true;
	EXPECT_EQ(board_cut(self->b, 0, 5, both, &all), -EAGAIN);
	EXPECT_FALSE(all);
	EXPECT_EQ(work(&h[0]), 0);
	EXPECT_EQ(board_cut(self->b, 0, 5, both, &all), 0);
	EXPECT_FALSE(all);
	EXPECT_EQ(work(&h[1]), 0);
	while (board_mailed(self->b, 0) || board_mailed(self->b, 1)) {
		EXPECT_EQ(work(&h[0]), 0);
		EXPECT_EQ(work(&h[1]), 0);
	}
	EXPECT_EQ(board_cut(self->b, 0, 5, both, &all), 0);
	EXPECT_FALSE(all);
	EXPECT_EQ(board_cut(self->b, 1, 5, both, &all), 0);
	EXPECT_TRUE(all);
}

TEST_F(board, a_seat_that_has_ended_counts_for_the_cut)
{
	static const uint64_t far[BOARD_SEATS / 64] = { 1, [BOARD_SEATS / 64 - 1] = 1ull << 63 };
	bool all;

	ASSERT_EQ(board_enter(self->b, 0, "", 0), 0);
	/* Nobody has ever had the other one. */
	EXPECT_EQ(board_cut(self->b, 0, 5, far, &all), 0);
	EXPECT_FALSE(all);
	/* It says so without a proxy on the board; then its proxy ends. */
	EXPECT_EQ(board_cut(self->b, BOARD_SEATS - 1, 5, far, &all), 0);
	EXPECT_TRUE(all);
	board_cut_ends(self->b, BOARD_SEATS - 1);
	EXPECT_EQ(board_cut(self->b, 0, 6, far, &all), 0);
	EXPECT_FALSE(all);
	board_die(self->b, BOARD_SEATS - 1);
	EXPECT_EQ(board_cut(self->b, 0, 6, far, &all), 0);
	EXPECT_TRUE(all);
	/* The next proxy of the seat has not. */
	board_reserve(self->b, BOARD_SEATS - 1, &(struct board_place){ .rank = 3 });
	EXPECT_EQ(board_cut(self->b, 0, 7, far, &all), 0);
	EXPECT_FALSE(all);
	ASSERT_EQ(board_enter(self->b, BOARD_SEATS - 1, "", 0), 0);
	board_die(self->b, BOARD_SEATS - 1);
	EXPECT_EQ(board_cut(self->b, 0, 7, far, &all), 0);
	EXPECT_TRUE(all);
	/* Nor has one that takes it unannounced. */
	ASSERT_EQ(board_enter(self->b, BOARD_SEATS - 1, "", 0), 0);
	EXPECT_EQ(board_cut(self->b, 0, 8, far, &all), 0);
	EXPECT_FALSE(all);
}

struct kept {
	void *p;
	size_t len;
};

static int save(struct board *b, struct kept *k)
{
	return board_save(b, &k->p, &k->len);
}

/* One operation is posted by one seat; the seats return to a board that was loaded, and the other posts. */
TEST_F(board, seats_return_to_what_was_saved)
{
	struct heard h[2], again[2];
	struct kept k = { 0 };
	struct board *b;
	int fd = board_create();

	ASSERT_GE(fd, 0);
	ASSERT_EQ(board_open(fd, &b), 0);
	two_seats(h, self->b);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	ASSERT_EQ(save(self->b, &k), 0);
	EXPECT_EQ(board_return(b, 0, "", 0), -ENOENT);
	ASSERT_EQ(board_load(b, k.p, k.len, NULL), 0);
	EXPECT_EQ(board_load(b, k.p, k.len, NULL), -EBUSY);
	EXPECT_EQ(board_return(b, 2, "", 0), -ENOENT);
	EXPECT_EQ(board_return(b, BOARD_SEATS, "", 0), -EINVAL);
	EXPECT_EQ(board_return(b, 0, k.p, BOARD_ADDRESS_MAX + 1), -EINVAL);
	for (int i = 0; i < 2; i++) {
		uint8_t to[BOARD_ADDRESS_MAX];

		EXPECT_EQ(board_enter(b, i, "x", 1), -EBUSY);	/* as a new one */
		EXPECT_EQ(board_return(b, i, "abc", 3), 0);
		EXPECT_EQ(board_return(b, i, "abc", 3), -EBUSY);
		EXPECT_EQ(board_address(b, i, to), 3);
		again[i] = (struct heard){ .b = b, .seat = i, .member = h[i].member };
	}
	EXPECT_EQ(post(&again[1], 2, STEP_ALLREDUCE, 0, TREE_F32), 0);
	for (int i = 0; i < 6; i++)
		EXPECT_EQ(work(&again[i % 2]), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(again[i].started, 1);
		EXPECT_EQ(again[i].ended, 1);
		EXPECT_EQ(again[i].failed, 0);
	}
	/* The board from which it was saved has not changed. */
	EXPECT_EQ(h[0].started, 0);
	free(k.p);
	board_close(b);
	close(fd);
}

TEST_F(board, a_seat_that_does_not_return_fails_the_others)
{
	struct heard h[2], one;
	struct kept k = { 0 };
	struct board *b;
	int fd = board_create();

	ASSERT_EQ(board_open(fd, &b), 0);
	two_seats(h, self->b);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	ASSERT_EQ(save(self->b, &k), 0);
	ASSERT_EQ(board_load(b, k.p, k.len, NULL), 0);
	ASSERT_EQ(board_return(b, 0, "", 0), 0);
	one = (struct heard){ .b = b, .seat = 0, .member = h[0].member };
	board_die(b, 1);
	EXPECT_EQ(work(&one), 0);
	EXPECT_EQ(one.failed, 1);
	free(k.p);
	board_close(b);
	close(fd);
}

/* Of two that do not return the second one waits for the first in more records than a mailbox has room for. */
TEST_F(board, those_that_do_not_return_get_no_mail)
{
	struct heard h[3], one;
	struct kept k = { 0 };
	struct board *b;
	int fd = board_create();

	ASSERT_EQ(board_open(fd, &b), 0);
	for (uint32_t i = 0; i < 3; i++) {
		h[i] = (struct heard){ .b = self->b, .seat = i };
		ASSERT_EQ(board_enter(self->b, i, "", 0), 0);
		ASSERT_GE(join(&h[i], 9, 3, i), 0);
	}
	for (uint32_t i = 0; i < 3; i++)
		ASSERT_EQ(work(&h[i]), 0);
	for (uint32_t i = 0; i < BOARD_MAILS; i++)
		ASSERT_EQ(post(&h[1], i, STEP_RECV, 0, TREE_F32), 0);
	ASSERT_EQ(save(self->b, &k), 0);
	ASSERT_EQ(board_load(b, k.p, k.len, NULL), 0);
	ASSERT_EQ(board_return(b, 2, "", 0), 0);
	board_returned(b);
	one = (struct heard){ .b = b, .seat = 2, .member = h[2].member };
	EXPECT_EQ(work(&one), 0);
	EXPECT_EQ(one.broken, 1);
	EXPECT_EQ(board_mail(b, 2, hear, &one), 0);
	EXPECT_FALSE(board_lives(b, 0));
	EXPECT_FALSE(board_lives(b, 1));
	EXPECT_TRUE(board_lives(b, 2));
	free(k.p);
	board_close(b);
	close(fd);
}

TEST_F(board, what_is_no_saved_board_is_refused)
{
	struct heard h[2];
	struct kept k = { 0 };
	struct board *b;
	int fd = board_create();
	uint8_t *p;

	ASSERT_EQ(board_open(fd, &b), 0);
	/* Of a board that nobody has entered there is nothing to load. */
	ASSERT_EQ(save(self->b, &k), 0);
	EXPECT_EQ(board_load(b, k.p, k.len, NULL), 0);
	free(k.p);
	two_seats(h, self->b);
	ASSERT_EQ(save(self->b, &k), 0);
	EXPECT_EQ(board_check(k.p, k.len, NULL), 0);
	for (size_t len = 0; len < k.len; len++) {
		EXPECT_EQ(board_load(b, k.p, len, NULL), -EBADMSG)
			TH_LOG("%zu bytes", len);
		EXPECT_EQ(board_check(k.p, len, NULL), -EBADMSG);
	}
	p = k.p;
	for (size_t at = 0; at < sizeof(struct image_head) - 16; at++) {
		p[at] ^= 0x40;
		EXPECT_EQ(board_load(b, p, k.len, NULL), at >= 4 && at < 8 ? -EPROTONOSUPPORT : -EBADMSG)
			TH_LOG("at %zu", at);
		p[at] ^= 0x40;
	}
	for (uint32_t seat = 0; seat < 3; seat++)
		EXPECT_EQ(board_return(b, seat, "", 0), -ENOENT);
	EXPECT_EQ(board_load(b, k.p, k.len, NULL), 0);
	free(k.p);
	board_close(b);
	close(fd);
}

/* The parts of an image, to lie about. */
struct forged {
	struct image_head *h;
	struct image_proxy *proxy;
	struct image_device *device;
	struct image_comm *comm;
	struct image_member *member;
	struct image_op *op;
	struct image_part *part;
	struct image_record *record;
};

static struct forged parts_of(void *p)
{
	struct forged f = { .h = p };

	f.proxy = (void *)(f.h + 1);
	f.device = (void *)(f.proxy + f.h->proxies);
	f.comm = (void *)(f.device + f.h->devices);
	f.member = (void *)(f.comm + f.h->comms);
	f.op = (void *)(f.member + f.h->members);
	f.part = (void *)(f.op + f.h->ops);
	f.record = (void *)(f.part + f.h->parts);
	return f;
}

/* The same state, in which each seat's operations are started by the other one. */
static void swap_devices(struct forged *f)
{
	struct image_device was = f->device[0];

	f->device[0].seen = f->device[1].seen;
	f->device[0].woken = f->device[1].woken;
	f->device[1].seen = was.seen;
	f->device[1].woken = was.woken;
	for (uint32_t i = 0; i < 2; i++)
		f->proxy[i].device ^= 1;
	for (uint32_t i = 0; i < f->h->parts; i++)
		f->part[i].device ^= 1;
}

/*
 * A board on which seat 0 has posted an all-reduce, a large send and a small one, and both seats a second large send
 * that is in the log: each sentence of the reader's is heard of at least one lie.
 */
TEST_F(board, each_lie_about_a_board_is_named)
{
	struct heard h[2];
	struct kept k = { 0 };
	struct forged f;
	const char *why;
	size_t refused = 0;
	void *was;

	two_seats(h, self->b);
	EXPECT_EQ(post(&h[0], 1, STEP_ALLREDUCE, 0, TREE_F32), 0);
	EXPECT_EQ(post_of(&h[0], 2, STEP_SEND, 1, 4 << 20), 0);
	EXPECT_EQ(post_of(&h[1], 3, STEP_RECV, 0, 4 << 20), 0);
	EXPECT_EQ(post_of(&h[0], 4, STEP_SEND, 1, 5 << 20), 0);
	EXPECT_EQ(post_of(&h[1], 5, STEP_SEND, 0, 64), 0);
	ASSERT_EQ(save(self->b, &k), 0);
	was = malloc(k.len);
	memcpy(was, k.p, k.len);
	f = parts_of(k.p);
	ASSERT_EQ(f.h->ops, 4);
	ASSERT_EQ(f.h->parts, 5);
	ASSERT_EQ(f.h->records, 4);	/* a small send's has ended */
	EXPECT_EQ(board_check(k.p, k.len, &why), 0)
		TH_LOG("%s", why);
#define LIE(what, said) do { \
	what; \
	why = NULL; \
	EXPECT_EQ(board_check(k.p, k.len, &why), -EBADMSG) \
		TH_LOG("%s", #what); \
	EXPECT_TRUE(why && !strcmp(why, said)) \
		TH_LOG("%s: %s instead of %s", #what, why ? why : "nothing", said); \
	EXPECT_EQ(board_load(self->b, k.p, k.len, NULL), -EBADMSG); \
	memcpy(k.p, was, k.len); \
	refused++; \
} while (0)
	LIE(f.h->zero = 1, "the head's padding");
	LIE(f.h->ops = 1 << 20, "more than a board has room for");
	LIE(f.h->records--, "its head");
	LIE(f.device[1].device = 0, "a device's number");
	LIE(f.device[1].device = BOARD_SEATS, "a device's number");
	LIE(f.device[0].zero = 1, "a device's number");
	LIE(f.device[0].seen = 1 << 20, "how far a device is");
	LIE(f.device[0].woken = 1 << 20, "how far a device is");
	LIE(f.device[0].woken = 0, "the state of a part");
	LIE(f.proxy[1].proxy = BOARD_SEATS, "a seat's number");
	LIE(f.proxy[1].proxy = 0, "a seat's number");
	LIE(f.proxy[0].zero[6] = 1, "a seat's number");
	LIE(f.proxy[0].state = 0, "a seat's state");
	LIE(f.proxy[0].state = 4, "a seat's state");
	LIE(f.proxy[0].device = BOARD_SEATS, "a seat's device");
	LIE(f.proxy[0].device = 1, "the device of a part");
	LIE(swap_devices(&f), "the device of a seat");
	LIE(f.proxy[0].state = 3, "a member's state");
	LIE(f.comm[0].zero[1] = 1, "a communicator's state");
	LIE(f.comm[0].state = 4, "a communicator's state");
	LIE(f.comm[0].code = 6, "a communicator's state");
	LIE(f.comm[0].state = 1, "what a member has posted");
	LIE(f.comm[0].ranks = 3, "a communicator's ranks");
	LIE(f.comm[0].ranks = 0, "a communicator's ranks");
	LIE(f.comm[0].first = 1 << 16, "a communicator's ranks");
	LIE(f.comm[0].first = (1 << 16) - 1, "a communicator's ranks");
	LIE(f.comm[0].ranks = 1, "how many have joined a communicator");
	LIE(f.comm[0].joined = 1, "how many have joined a communicator");
	LIE(f.member[0].zero[0] = 1, "a member's padding");
	LIE(f.member[0].state = 1, "a member that has not joined");
	LIE(f.member[0].state = 5, "a member's state");
	LIE(f.member[0].state = 4, "a member's state");
	LIE(f.member[0].joined = BOARD_SEATS, "the seat of a member");
	LIE(f.member[0].joined = 1, "the seat of a member");
	LIE(f.member[1].joined = f.member[1].proxy = 0, "the seat of a member");
	LIE(f.member[0].proxy = STEP_NONE, "a member's state");
	LIE(f.member[0].posted = 0, "who has posted an operation");
	LIE(f.member[0].posted = 3, "a collective that is not there");
	LIE(f.member[1].state = 3, "an operation that cannot come about");
	LIE(f.op[0].comm = 1, "the communicator of an operation");
	LIE(f.op[0].kind = STEP_KINDS, "the call of an operation");
	LIE(f.op[0].type = 200, "the call of an operation");
	LIE(f.op[0].op = 200, "the call of an operation");
	LIE(f.op[0].peer = 2, "the call of an operation");
	LIE(f.op[0].count = 0, "the call of an operation");
	LIE(f.op[0].code = 1, "the end of an operation");
	LIE(f.op[0].born = 0, "the place of an operation");
	LIE(f.op[0].born = 1 << 20, "the place of an operation");
	LIE(f.op[0].order = 1 << 20, "the place of an operation");
	LIE(f.op[0].order = 1, "an operation in the log too early");
	LIE((f.op[1].order = 0, f.part[2].state = 1, f.part[2].begun = 0), "an operation that all have posted");
	LIE(f.op[0].parts = 0, "how many have posted an operation");
	LIE(f.op[0].parts = 3, "how many have posted an operation");
	LIE(f.op[0].number = 5, "who has posted an operation");
	LIE(f.op[1].number = 5, "who has posted an operation");
	LIE((f.part[2].member = 0, f.part[2].proxy = 0), "the member of a part");
	LIE(f.part[0].member = 7, "the member of a part");
	LIE(f.part[0].member = 1, "the seat of a part");
	LIE(f.part[0].proxy = 9999, "the seat of a part");
	LIE(f.part[0].device = 1, "the device of a part");
	LIE(f.part[0].device = BOARD_SEATS, "the state of a part");
	LIE(f.part[0].state = 0, "the state of a part");
	LIE(f.part[0].state = 5, "the state of a part");
	LIE(f.part[0].state = 2, "the state of a part");
	LIE(f.part[0].begun = 2, "the state of a part");
	LIE(f.part[0].begun = 1, "the state of a part");
	LIE(f.part[0].zero[1] = 1, "the state of a part");
	LIE(f.part[0].state = 4, "a part that has ended");
	LIE(f.part[0].record = 9999, "the record of a part");
	LIE(f.part[0].record = 1, "the record of a part");
	LIE(f.part[0].cookie++, "the record of a part");
	LIE((f.part[0].record = STEP_NONE, f.part[0].begun = 1), "a part that has ended for its record");
	LIE(f.part[3].record = STEP_NONE, "a part that has ended for its record");
	LIE(f.op[1].code = 6, "the state of a part");
	LIE((f.op[0].code = 6, f.part[0].state = 3, f.part[0].begun = 1), "the state of a part");
	LIE(f.record[0].zero[0] = 1, "a record of no part");
	LIE(f.record[0].member = 1, "the record of a part");
	LIE((f.op[3].peer = 1, f.op[3].count = 6 << 20), "a part that has ended for its record");
#undef LIE
	EXPECT_EQ(board_check(k.p, k.len, &why), 0);
	TH_LOG("%zu lies", refused);
	free(was);
	free(k.p);
}

/* Two communicators with members of their own, two operations in the log. */
TEST_F(board, what_two_have_one_must_not_have)
{
	struct heard h[2], other[2];
	struct kept k = { 0 };
	struct forged f;
	const char *why;

	two_seats(h, self->b);
	memcpy(other, h, sizeof(other));
	for (uint32_t i = 0; i < 2; i++)
		EXPECT_GE(join(&other[i], 10, 2, i), 0);
	for (uint64_t n = 1; n < 3; n++)
		for (uint32_t i = 0; i < 2; i++)
			EXPECT_EQ(post_of(&h[i], 2 * n + i, STEP_SEND + i, 1 - i, 4 << 20), 0);
	ASSERT_EQ(save(self->b, &k), 0);
	f = parts_of(k.p);
	ASSERT_EQ(f.h->comms, 2);
	ASSERT_EQ(f.h->ops, 2);
	EXPECT_EQ(board_check(k.p, k.len, &why), 0)
		TH_LOG("%s", why);
	f.comm[1].key = f.comm[0].key;
	EXPECT_EQ(board_check(k.p, k.len, &why), -EBADMSG);
	EXPECT_STREQ(why, "two communicators with one key");
	f.comm[1].key ^= 1;
	f.comm[1].first = f.comm[0].first;
	EXPECT_EQ(board_check(k.p, k.len, &why), -EBADMSG);
	EXPECT_STREQ(why, "two communicators with one member");
	f.comm[1].first += 2;
	f.op[1].order = f.op[0].order;
	EXPECT_EQ(board_check(k.p, k.len, &why), -EBADMSG);
	EXPECT_STREQ(why, "two operations with one place in the log");
	free(k.p);
}

/* What may be there: 64 bits of all ranks' collectives, as many as there is room for. */
TEST_F(board, an_image_of_a_million_entries_is_refused_at_once)
{
	struct image_head h = { .magic = IMAGE_MAGIC, .version = IMAGE_VERSION, .size = sizeof(h),
				.parts = UINT32_MAX, .records = UINT32_MAX };
	const char *why = NULL;

	EXPECT_EQ(board_check(&h, sizeof(h), &why), -EBADMSG);
	EXPECT_STREQ(why, "more than a board has room for");
}

#define OP_1	1975688u	/* where its operation and its part are */
#define PART_1	13542792u

/* What commit 8f2437f saved: the memory of the step, behind a head. The caller frees it. */
static uint64_t *old_board(size_t *len)
{
	uint64_t *p = calloc(1, BOARD_1_SIZE);

	for (size_t i = 0; p && i < sizeof(board_1) / sizeof(board_1[0]); i++)
		p[board_1[i].at / 8] = board_1[i].word;
	*len = BOARD_1_SIZE;
	return p;
}

TEST_F(board, a_board_of_version_1_is_read)
{
	struct heard h[2], again[2];
	const char *why = NULL;
	size_t len;
	uint64_t *p = old_board(&len);
	struct board *b;
	int fd = board_create();

	ASSERT_NE(p, NULL);
	ASSERT_EQ(board_open(fd, &b), 0);
	two_seats(h, self->b);
	ASSERT_EQ(board_load(b, p, len, &why), 0)
		TH_LOG("%s", why);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(board_return(b, i, "", 0), 0);
		again[i] = (struct heard){ .b = b, .seat = i, .member = h[i].member };
	}
	/* Seat 0 had posted an all-reduce. */
	EXPECT_EQ(post(&again[1], 2, STEP_ALLREDUCE, 0, TREE_F32), 0);
	for (int i = 0; i < 6; i++)
		EXPECT_EQ(work(&again[i % 2]), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(again[i].started, 1);
		EXPECT_EQ(again[i].ended, 1);
	}
	/* Each word that is not zero, in turn: it is refused, or what is loaded is a state. */
	for (size_t at = 4096 / 8, changed = 0; at < len / 8 && changed < 400; at++) {
		uint64_t was = p[at];

		if (!was)
			continue;
		changed++;
		for (int bit = 0; bit < 64; bit += 13) {
			p[at] = was ^ 1ull << bit;
			board_check(p, len, NULL);
		}
		p[at] = was;
	}
	EXPECT_EQ(board_check(p, len - 8, NULL), -EBADMSG);
	p[1] -= 8;		/* its size */
	EXPECT_EQ(board_check(p, len - 8, &why), -EBADMSG);
	EXPECT_STREQ(why, "its head");
	p[1] += 8;
	EXPECT_EQ(board_check(p, len, NULL), 0);
	/* The operation that follows it is itself; its part's next is itself; it has a part that is not there. */
	((uint32_t *)p)[OP_1 / 4 + 7] = 1;
	EXPECT_EQ(board_check(p, len, &why), -EBADMSG);
	EXPECT_STREQ(why, "its lists");
	((uint32_t *)p)[OP_1 / 4 + 5] = 0;	/* no part is there a second time */
	EXPECT_EQ(board_check(p, len, &why), -EBADMSG);
	EXPECT_STREQ(why, "its lists");
	((uint32_t *)p)[OP_1 / 4 + 5] = 1;
	((uint32_t *)p)[OP_1 / 4 + 7] = 0;
	((uint32_t *)p)[PART_1 / 4 + 6] = 1;
	EXPECT_EQ(board_check(p, len, &why), -EBADMSG);
	EXPECT_STREQ(why, "its lists");
	((uint32_t *)p)[PART_1 / 4 + 6] = 0;
	((uint32_t *)p)[OP_1 / 4 + 5] = 0x7fffffff;
	EXPECT_EQ(board_check(p, len, &why), -EBADMSG);
	EXPECT_STREQ(why, "its lists");
	((uint32_t *)p)[OP_1 / 4 + 5] = 1;
	EXPECT_EQ(board_check(p, len, NULL), 0);
	free(p);
	board_close(b);
	close(fd);
}

TEST_HARNESS_MAIN
