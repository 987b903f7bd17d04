/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comms.h - the collective operations of a job, as its supervisor sees them
 *
 * The supervisor makes the board (uproxy/coll/board.h), gives each proxy a seat, tells the board who
 * is dead, and looks at it once a second: for the file `comms`, which ps and top read, and to name
 * what stands for too long. It takes no part in an operation.
 */
#ifndef COMMS_H
#define COMMS_H

#include "rundir.h"

#define COMMS_SEATS	1024	/* BOARD_SEATS */
#define COMMS_LISTED	16	/* STEP_LOOK_RANKS */

struct board;
struct comms_stood;

struct comms {
	int fd;			/* the board's, which proxies get; negative: there is none */
	struct board *board;	/* NULL: there is none */
	long timeout_ms;	/* --collective-timeout; 0: none */
	uint64_t next;		/* look */
	bool broken;
	char *text;		/* of the file; NULL: there is none */
	unsigned int texts;	/* how many there were */
	struct comms_stood *stood;	/* what was in flight at the last look, by name */
	size_t n_stood;
};

/*
 * A new board for the job's ranks, in place of any that *c has; *c is all zero before the first. If
 * a limit of the user's prevents it, there is none, and proxies refuse communicators by name.
 * comms_stop: *c is all zero again.
 */
void comms_start(struct comms *c, const struct rundir_job *job, long timeout_ms);
void comms_stop(struct comms *c, const struct rundir_job *job);

/*
 * comms_seat: a seat gets a new proxy of this rank, and its row of the table is on the board from then on. comms_load: the
 * board as a checkpoint has it, before any proxy is on it; as board_load(), -ENODEV. comms_check: could it be loaded? comms_returned: its proxies
 * have taken their seats, see board_returned(). comms_ended: its proxy has ended, however.
 */
void comms_seat(struct comms *c, const struct seating *t, int rank, int seat);
int comms_check(const void *image, size_t len, const char **why);
int comms_load(struct comms *c, const void *image, size_t len, const char **why);
void comms_returned(struct comms *c);
void comms_ended(struct comms *c, int seat);

/* Has this proxy taken part in collectives, and left the board or died? Before its stat file goes. */
bool comms_left(struct comms *c, const struct rundir_job *job, const struct rundir_proxy *p);
/* A rank or a proxy has failed: others may wait for it in the creation of a communicator. */
void comms_lost(struct comms *c);

/* Looks, if it is time to. Returns the milliseconds until it is again; -1: not needed. */
int comms_step(struct comms *c, const struct rundir_job *job);

/* ------------------------------------------------------- the file `comms`, for ps and top */

struct comms_op {
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
	} wait[COMMS_LISTED];
};

struct comms_comm {
	uint64_t key;
	unsigned int ranks;
	bool stands;
	pid_t *pid;		/* by rank; 0: gone, or has not joined yet */
	unsigned int ops;
	struct comms_op *op;
};

/*
 * Reads a job's file. 0, with *n = 0 for a job that has no communicator; -errno; -EBADMSG.
 * comms_free frees what it gave.
 */
int comms_read(const struct rundir_job *job, struct comms_comm **comm, size_t *n);
void comms_free(struct comms_comm *comm, size_t n);

/*
 * "all-reduce 17 of 1024 f32, posted by some, 12 s: waits for rank 2 (4711) and rank 3 (4712)", as
 * snprintf() does.
 */
int comms_sentence(const struct comms_op *op, uint64_t now_ns, char *text, size_t size);

const char *comms_type_name(uint8_t type);	/* "f32", of an enum tree_type */

#endif
