/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobboard.h - the collective operations of a job, as its supervisor sees them
 *
 * The supervisor makes the board (uproxy/coll/board.h), gives each proxy a seat, tells the board who
 * is dead, and looks at it once a second: for the file `comms`, which ps and top read, and to name
 * what stands for too long. It takes no part in an operation.
 */
#ifndef JOBBOARD_H
#define JOBBOARD_H

#include "rundir.h"

#define JOBBOARD_SEATS	1024	/* BOARD_SEATS */
#define JOBBOARD_LISTED	16	/* STEP_LOOK_RANKS */

struct board;
struct jobboard_stood;

struct jobboard {
	int fd;			/* the board's, which proxies get; negative: there is none */
	struct board *board;	/* NULL: there is none */
	long timeout_ms;	/* --collective-timeout; 0: none */
	uint64_t next;		/* look */
	bool broken;
	char *text;		/* of the file; NULL: there is none */
	unsigned int texts;	/* how many there were */
	struct jobboard_stood *stood;	/* what was in flight at the last look, by name */
	size_t n_stood;
};

/*
 * A new board for the job's ranks, in place of any that *c has; *c is all zero before the first. If
 * a limit of the user's prevents it, there is none, and proxies refuse communicators by name.
 * jobboard_stop: *c is all zero again.
 */
void jobboard_start(struct jobboard *c, const struct rundir_job *job, long timeout_ms);
void jobboard_stop(struct jobboard *c, const struct rundir_job *job);

/*
 * jobboard_seat: a seat gets a new proxy of this rank, and its row of the table is on the board from then on. jobboard_load: the
 * board as a checkpoint has it, before any proxy is on it; as board_load(), -ENODEV. jobboard_check: could it be loaded? jobboard_returned: its proxies
 * have taken their seats, see board_returned(). jobboard_ended: its proxy has ended, however.
 */
void jobboard_seat(struct jobboard *c, const struct seating *t, int rank, int seat);
int jobboard_check(const void *image, size_t len, const char **why);
int jobboard_load(struct jobboard *c, const void *image, size_t len, const char **why);
void jobboard_returned(struct jobboard *c);
void jobboard_ended(struct jobboard *c, int seat);

/* Has this proxy taken part in collectives, and left the board or died? Before its stat file goes. */
bool jobboard_left(struct jobboard *c, const struct rundir_job *job, const struct rundir_proxy *p);
/* A rank or a proxy has failed: others may wait for it in the creation of a communicator. */
void jobboard_lost(struct jobboard *c);

/* Does a client wait for memory that other sharers of its device have? jobboard_helpless: such allocations fail from now on. */
bool jobboard_crowded(const struct jobboard *c);
void jobboard_helpless(struct jobboard *c);

/* Looks, if it is time to. Returns the milliseconds until it is again; -1: not needed. */
int jobboard_step(struct jobboard *c, const struct rundir_job *job);

/* ------------------------------------------------------- the file `comms`, for ps and top */

struct jobboard_op {
	char kind[24], type[8];	/* "all-reduce", "f32"; "creation" of the communicator, "-" */
	uint64_t count, number;	/* number: of a collective, from 0 */
	long source, destination;	/* of a pair; -1: a collective */
	bool started;		/* all have posted it */
	uint64_t since_ns;	/* CLOCK_REALTIME, to a second */
	unsigned int waits;	/* ranks of the communicator that are waited for */
	unsigned int listed;
	struct {
		unsigned int rank;
		pid_t pid;	/* its process; 0: gone */
	} wait[JOBBOARD_LISTED];
};

struct jobboard_comm {
	uint64_t key;
	unsigned int ranks;
	bool stands;
	pid_t *pid;		/* by rank; 0: gone, or has not joined yet */
	unsigned int ops;
	struct jobboard_op *op;
};

/*
 * Reads a job's file. 0, with *n = 0 for a job that has no communicator; -errno; -EBADMSG.
 * jobboard_free frees what it gave.
 */
int jobboard_read(const struct rundir_job *job, struct jobboard_comm **comm, size_t *n);
void jobboard_free(struct jobboard_comm *comm, size_t n);

/*
 * "all-reduce 17 of 1024 f32, posted by some, 12 s: waits for rank 2 (4711) and rank 3 (4712)", as
 * snprintf() does.
 */
int jobboard_sentence(const struct jobboard_op *op, uint64_t now_ns, char *text, size_t size);

const char *jobboard_type_name(uint8_t type);	/* "f32", of an enum tree_type */

#endif
