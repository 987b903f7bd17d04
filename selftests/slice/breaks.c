// SPDX-License-Identifier: Apache-2.0
/*
 * breaks.c - kills a process while it changes a job's board
 *
 * breaks FILE: the board's, of /proc. 0: it is broken now.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "board.h"
#include "turns.h"

#define TRIES 10000

/* Nobody shares that device. */
static int touch(struct board *b)
{
	return board_turn(b, &(struct turns_event){ .kind = TURNS_TICK, .device = 255 });
}

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1, i;
	struct board *b;
	pid_t pid;

	if (fd < 0 || board_open(fd, &b)) {
		fprintf(stderr, "breaks: no board\n");
		return 2;
	}
	for (i = 0; i < TRIES && touch(b) != -ENOTRECOVERABLE; i++) {
		pid = fork();
		while (!pid)
			touch(b);
		usleep(500 + i);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return touch(b) != -ENOTRECOVERABLE;
}
