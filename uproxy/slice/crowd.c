// SPDX-License-Identifier: Apache-2.0
/*
 * crowd.c - does what a session is about to map fit beside what the device's other sharers have?
 */
#include <errno.h>

#include "board.h"
#include "crowd.h"

bool crowd_on;

static struct {
	int fd;
	uint32_t seat;
	uint64_t where, limit;
	struct board *board;
	bool refused, waited;	/* the last time; ever. consumer */
} crowd = { .fd = -1 };

void crowd_board(int fd, uint32_t seat)
{
	crowd.fd = fd;
	crowd.seat = seat;
}

int crowd_limit(uint32_t device, uint64_t bytes)
{
	int rc = crowd.fd < 0 ? -ENOENT : board_open(crowd.fd, &crowd.board);
	struct board_place at;

	rc = rc ?: board_place(crowd.board, crowd.seat, &at);
	if (rc)
		return rc;
	crowd.where = (uint64_t)at.host << 32 | device;
	crowd.limit = bytes;
	crowd_on = true;
	return 0;
}

bool crowd_comes(uint64_t bytes)
{
	crowd.refused = crowd_on && !board_maps(crowd.board, crowd.seat, crowd.where, bytes, crowd.limit);
	return !crowd.refused;
}

void crowd_has(uint64_t bytes)
{
	if (crowd_on)
		board_maps(crowd.board, crowd.seat, crowd.where, bytes, UINT64_MAX);
}

void crowd_leaves(uint64_t bytes)
{
	if (crowd_on)
		board_unmaps(crowd.board, crowd.seat, bytes);
}

bool crowd_waits(void)
{
	bool waits = crowd.refused && board_asks(crowd.board);

	crowd.waited |= waits;
	return waits;
}

bool crowd_waited(void)
{
	return crowd.waited;
}
