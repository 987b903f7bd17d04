/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board_test.h - a board of its own for each test, and seats that note what they are told
 */
#ifndef COLL_BOARD_TEST_H
#define COLL_BOARD_TEST_H

#include "../harness/leaks.h"
#include "../harness/patience.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "board.h"
#include "tree.h"

FIXTURE(board) {
	int fd;
	struct board *b;
};

FIXTURE_SETUP(board)
{
	self->fd = board_create();
	ASSERT_GE(self->fd, 0);
	ASSERT_EQ(board_open(self->fd, &self->b), 0);
}

FIXTURE_TEARDOWN(board)
{
	board_close(self->b);
	close(self->fd);
}

/* What a rank has been told. */
struct heard {
	struct board *b;
	uint32_t seat, member, code;
	unsigned int joined, started, cancelled, broken, ended, failed, released;
	uint32_t reason;		/* of the last failure */
	uint64_t order[64];		/* of what is to be done */
	unsigned int orders;
	uint64_t *orders_started, *orders_cancelled;	/* all of them; NULL: not noted */
};

static inline void hear(void *ctx, const struct step_action *a)
{
	struct heard *h = ctx;

	switch (a->kind) {
	case STEP_JOINED:
		h->joined++;
		h->member = a->member;
		h->code = a->code;
		break;
	case STEP_START:
		if (h->orders_started)
			h->orders_started[h->started] = a->order;
		h->started++;
		if (h->orders < 64)
			h->order[h->orders++] = a->order;
		break;
	case STEP_BROKEN:
		h->broken++;
		break;
	case STEP_CANCEL:
		if (h->orders_cancelled)
			h->orders_cancelled[h->cancelled] = a->order;
		h->cancelled++;
		if (h->orders < 64)
			h->order[h->orders++] = a->order;
		break;
	case STEP_ENDED:
		h->ended++;
		h->failed += !!a->code;
		if (a->code)
			h->reason = a->failure.reason;
		break;
	case STEP_RELEASE:
		h->released++;
		break;
	default:
		break;
	}
}

static inline int join(struct heard *h, uint64_t comm, uint32_t ranks, uint32_t rank)
{
	struct step_event e = { .kind = STEP_JOIN, .proxy = h->seat, .comm = comm, .ranks = ranks,
				.rank = rank };

	return board_step(h->b, h->seat, &e, hear, h);
}

static inline int post(struct heard *h, uint64_t cookie, uint32_t kind, uint32_t peer, uint32_t type)
{
	struct step_call call = { .kind = kind, .type = type, .peer = peer, .count = 1u << 20 };
	struct step_event e = { .kind = STEP_POST, .member = h->member, .cookie = cookie, .ncalls = 1,
				.calls = &call };

	return board_step(h->b, h->seat, &e, hear, h);
}

static inline int post_of(struct heard *h, uint64_t cookie, uint32_t kind, uint32_t peer, uint64_t count)
{
	struct step_call call = { .kind = kind, .type = TREE_UINT8, .peer = peer, .count = count };
	struct step_event e = { .kind = STEP_POST, .member = h->member, .cookie = cookie, .ncalls = 1,
				.calls = &call };

	return board_step(h->b, h->seat, &e, hear, h);
}

/* Reads the mail, and says of all that has been started that it is done. */
static inline int work(struct heard *h)
{
	int rc = board_mailed(h->b, h->seat) ? board_mail(h->b, h->seat, hear, h) : 0;

	while (!rc && h->orders) {
		struct step_event e = { .kind = STEP_DONE, .device = h->seat, .order = h->order[0] };

		memmove(h->order, h->order + 1, --h->orders * sizeof(h->order[0]));
		rc = board_step(h->b, h->seat, &e, hear, h);
		rc = rc == -EPROTO ? 0 : rc;	/* it was cancelled after it had ended */
	}
	return rc;
}

static inline void two_seats(struct heard h[2], struct board *b)
{
	for (uint32_t i = 0; i < 2; i++) {
		h[i] = (struct heard){ .b = b, .seat = i };
		if (board_enter(b, i, "", 0) || join(&h[i], 9, 2, i) < 0)
			abort();
	}
	if (board_mail(b, 0, hear, &h[0]))
		abort();
}

#endif
