/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board.h - the state of a job's collective operations, in memory that all its proxies share
 *
 *   supervisor: board_create ── fd, seat ──► proxy: board_open ─► board_enter ─► board_step …
 *                                                                     │ actions for other seats
 *   another proxy: board_mail ◄── its mailbox, a wake if it sleeps ◄──┘
 *
 * A *seat* is a proxy's place on the board; its number is the step's number of the proxy. What the step
 * calls a device is whatever starts operations in the order of the log: that is a seat, too, also where
 * several seats share a device of the host (board_device()). Which device of the host a seat works on is
 * in its row of the job's table of seating (struct board_place). Whoever has an
 * event takes the lock, runs the step, gets the actions for its own seat back, and puts the others
 * into their seats' mailboxes. In the usual case no process sleeps, and a step costs no system call, no
 * mail, and one locked instruction, that which takes the lock (robust.h).
 *
 * The proxies of a job trust each other's board, as they run the same program for the same user; no
 * client can write it. If one dies while it changes it, or has more for another seat than its
 * mailbox takes, the board is broken: all who use it get -ENOTRECOVERABLE from then on, and fail
 * their operations. Starts and cancels take no room in a mailbox: its owner looks for them in the
 * state. For the rest, whoever uses a seat keeps what can end at once below BOARD_MAILS: two mails for
 * a record that has not ended, two for a communicator, one for the seat.
 */
#ifndef UPROXY_COLL_BOARD_H
#define UPROXY_COLL_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "step.h"

#define BOARD_SEATS       1024u
#define BOARD_ADDRESS_MAX 1024u
#define BOARD_MAILS       4096u
#define BOARD_NOTES       8192u
#define BOARD_NOTE_MAX    128u
#define BOARD_DEVICES     16u

struct board;

/* A seat's row of the job's table of seating (tools/job/seating.h), which the supervisor alone writes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct board_place {
	uint32_t rank; /* of the job */
	uint16_t host;
	uint16_t zero;
	uint8_t physical[BOARD_DEVICES]; /* the host's device of each logical one */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct board_place) == 24, "shared");

/* The step's device of a seat, and the seat of a device of the step's. */
static inline uint32_t board_device(uint32_t seat)
{
	return seat;
}

static inline uint32_t board_seat(uint32_t device)
{
	return device;
}

/* Makes a board: an empty file in memory, of which only what is used takes memory. fd or -errno. */
int board_create(void);

/* Maps the board of fd, which stays the caller's. -errno; -EPROTO: that is no board. */
int board_open(int fd, struct board **b);
void board_close(struct board *b);

/*
 * Takes a seat that nobody has: its owner is the calling process. address: what the transports of
 * others need to reach this one. -EBUSY, -ENOTRECOVERABLE, -EINVAL.
 */
int board_enter(struct board *b, uint32_t seat, const void *address, size_t len);

/* The address of a seat: its size, -ENOENT. */
int board_address(struct board *b, uint32_t seat, void *to);

/*
 * A note: what a communicator's ends tell each other under its key, such as a name under which they
 * meet. The newest counts; size 0 takes it away; at a seat's death its notes go, too. -EINVAL,
 * -ENOSPC, -ENOTRECOVERABLE. board_noted: copies it to `to`: its size; -ENOENT.
 */
int board_note(struct board *b, uint32_t seat, uint64_t key, const void *note, size_t size);
int board_noted(struct board *b, uint64_t key, void *to);

/*
 * One event of `seat`, then, if something of its device's is in the log, all that is next there
 * (STEP_NEXT). act() gets the actions for this seat, when the lock has been dropped; it may call
 * board_step(). Returns what step() does for the event; -ENOTRECOVERABLE.
 */
int board_step(struct board *b, uint32_t seat, const struct step_event *e, step_act *act, void *ctx);

/* Are there actions from others for this seat? Cheap. */
bool board_mailed(const struct board *b, uint32_t seat);

/* How many mails a seat has been sent, modulo 2^32. */
uint32_t board_mails(const struct board *b, uint32_t seat);

/*
 * Gives act() those actions; for a STEP_WAKE the log is looked through (STEP_NEXT), and act() gets
 * what is to be started; for a STEP_CANCEL it gets all that is to be cancelled there, some of it perhaps
 * again. -ENOTRECOVERABLE. One thread of a seat.
 */
int board_mail(struct board *b, uint32_t seat, step_act *act, void *ctx);

/*
 * Before its thread sleeps, a seat says so (true) and then looks for mail once more; others then
 * wake it: board_await returns. false takes it back. board_await waits until the seat has been
 * woken since `seen`, which begins as 0 and is updated. board_word: the word that each wake changes
 * before it wakes it as a futex; it stays mapped with the board.
 */
void board_sleeps(struct board *b, uint32_t seat, bool sleeps);
void board_await(struct board *b, uint32_t seat, uint32_t *seen);
const uint32_t *board_word(const struct board *b, uint32_t seat);
void board_wake(struct board *b, uint32_t seat);

/* The seats of a communicator's ranks, of which `member` is one: their number, at most max. */
uint32_t board_seats(struct board *b, uint32_t member, uint32_t *seat, uint32_t max);

/* step_is_at() and step_records() of the board, for what was saved of a seat. */
bool board_is_at(struct board *b, const struct step_place *p, bool *stands);
void board_records(struct board *b, uint32_t seat, void (*each)(void *ctx, uint32_t member, uint64_t cookie, bool begun),
		   void *ctx);

/*
 * step_look() of the board, for a process that has no seat: what it calls runs with the lock held.
 * Nothing is told of a board that nobody has entered. -ENOTRECOVERABLE.
 */
int board_look(struct board *b, const struct step_looker *looker);

/* step_owes() of a seat. */
bool board_owes(struct board *b, uint32_t seat);

/* step_lives() of a seat. */
bool board_lives(struct board *b, uint32_t seat);

/*
 * The owner of a seat is gone: what it has not ended fails for all others. For whoever reaps it; it
 * is no error if nobody has the seat.
 */
void board_die(struct board *b, uint32_t seat);

/*
 * Before this process exits: no thread of it changes the board any more, so that its exit does not break
 * it. What they call says -ESHUTDOWN.
 */
void board_shut(struct board *b);

/* A process is gone that had not entered, and may have been about to: creations under way fail. */
void board_stranger_dies(struct board *b);

/*
 * The cut (docs/ranks.md, Cut): all proxies of the job freeze for the same `cut`, a number that no other has
 * and not 0. A seat whose proxy has nothing under way, and takes no record from its client any more, says
 * so again and again; the seat may have no proxy on the board. When all have said it, and no event has come
 * since, nothing can begin any more: *all is true, for every seat from then on. A seat of `seats`, a
 * bitmap, whose proxy has ended counts as one that has said so.
 * -EAGAIN: there is mail for this seat. -ESTALE: another seat was told that all are quiet, and an event has come
 * after that: the cut has failed. -ENOTRECOVERABLE, -EINVAL.
 * board_cut_ends: this seat's proxy goes on.
 */
int board_cut(struct board *b, uint32_t seat, uint64_t cut, const uint64_t seats[BOARD_SEATS / 64],
	      bool *all);
void board_cut_ends(struct board *b, uint32_t seat);

/*
 * board_save: the state of the step as an image, which the caller frees. -ENOMEM, -ENOTRECOVERABLE.
 * board_check, board_load: as step_load(), for an image of malloc() in which each seat starts its own
 * operations. board_load: onto a board that nobody has entered,
 * -EBUSY; what is refused leaves it as it was. Of an image without a seat nothing is loaded.
 * board_return: takes the seat of a proxy that the saved state has, as board_enter does; -ENOENT: it has none.
 */
int board_save(struct board *b, void **image, size_t *len);
int board_check(const void *image, size_t len, const char **why);
int board_load(struct board *b, const void *image, size_t len, const char **why);
int board_return(struct board *b, uint32_t seat, const void *address, size_t len);

/*
 * When all proxies of a saved state have returned that will: the others died after the cut, unseen, and what
 * they have not ended fails for all.
 */
void board_returned(struct board *b);

/*
 * board_reserve: before a seat is given to a new proxy, no proxy of it has ended yet, and this is its row of the table.
 * board_place: copies the row to *place. -ENOENT: the seat has been given to nobody. -ENOTRECOVERABLE.
 */
void board_reserve(struct board *b, uint32_t seat, const struct board_place *place);
int board_place(struct board *b, uint32_t seat, struct board_place *place);

#endif /* UPROXY_COLL_BOARD_H */
