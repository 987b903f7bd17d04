/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board.h - the state of a job's collective operations, in memory that all its proxies share
 *
 *   supervisor: board_create ── fd, seat ──► proxy: board_open ─► board_enter ─► board_step …
 *                                                                     │ actions for other seats
 *   another proxy: board_mail ◄── its mailbox, a wake if it sleeps ◄──┘
 *
 * A *seat* is a proxy's place on the board; its number is the step's number of the proxy. What the step calls a
 * device is whatever starts operations in the order of the log. Here that is a seat, too, even where several
 * seats share a device of the host (board_device()). The seat's row of the job's table of seating says which
 * device of the host it works on (struct board_place).
 *
 * A proxy that has an event takes the lock and runs the step. It gets the actions for its own seat back, and
 * puts those for others into their mailboxes. In the usual case no process sleeps, and a step costs no
 * system call, no mail, and one locked instruction, which takes the lock (robust.h).
 *
 * The proxies of a job trust what is on the board: they run the same program for the same user, and no client
 * can write there. The board is *broken* when a proxy dies while it changes the board, or when a mailbox has
 * no room. From then on all who use the board get -ENOTRECOVERABLE, and fail their operations.
 *
 * A seat may have at most BOARD_MAILS unread mails. Its proxy keeps below that: it counts two for each record that
 * has not ended, two for each communicator, and one for the seat. Starts and cancels are no mails: the seat's
 * proxy looks for them in the state.
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
#define BOARD_OPS	(1u << 17)	/* under way at once, of all ranks of the job */
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

/* What the step calls the device of a seat, and back: the numbers are the same. */
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

/* Copies the address of a seat to `to`, and returns its size. -ENOENT: nobody has the seat. */
int board_address(struct board *b, uint32_t seat, void *to);

/*
 * A note is what one end of a communicator tells the others, under the communicator's key: such as a name under
 * which they meet. A new note replaces the old one; size 0 takes it away. When a seat dies its notes go, too.
 * -EINVAL, -ENOSPC, -ENOTRECOVERABLE. board_noted: copies the note to `to` and returns its size; -ENOENT.
 */
int board_note(struct board *b, uint32_t seat, uint64_t key, const void *note, size_t size);
int board_noted(struct board *b, uint64_t key, void *to);

/*
 * Gives the step an event of `seat`. If that has put something of the seat's device into the log, it then asks for
 * all that is next there (STEP_NEXT). act() gets the actions for this seat after the lock has been dropped, and
 * may call board_step(). Returns what step() does for the event; -ENOTRECOVERABLE.
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
 * board_sleeps: true says that the seat's thread is about to sleep. The thread must look for mail once more after
 * that; from then on others wake it. false takes it back.
 * board_await: sleeps until somebody has woken the seat since `seen`, which begins as 0 and is updated.
 * board_word: the futex on which board_await sleeps. Each wake changes it first. It is mapped as long as the board.
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

/*
 * Who has the memory of a device that several seats share by slices. Seats are sharers, and devices are the host's.
 * board_turn: turns() of the board, which asks collectives itself; e->now is CLOCK_MONOTONIC's. A seat whose state changes is woken as
 * for mail; one that dies ends by itself. -EPROTO, -ENOTRECOVERABLE.
 * board_slice: a seat's state, as the last turn has left it; `changes` counts, modulo 2^24. Cheap.
 * board_slice_next, board_slice_began: turns_next() and turns_began() of a device.
 */
struct turns_event;
struct board_slice {
	uint32_t state; /* enum turns_state */
	uint32_t changes, last;
};
int board_turn(struct board *b, const struct turns_event *e);
struct board_slice board_slice(const struct board *b, uint32_t seat);
uint64_t board_slice_next(struct board *b, uint32_t device);
uint64_t board_slice_began(struct board *b, uint32_t device);

/*
 * What the sharers of a device have mapped there, each in memory of its own.
 * board_maps: the seat is about to map so many bytes more of a device, of which all may have `limit`. where: a number of the device,
 * and of its host; a seat has one. false: that is too much, and it has as much as before.
 * board_unmaps: the seat has so many bytes less. When its proxy ends it has none.
 * board_asks: somebody waits for such memory, which the supervisor gets to know (board_crowded); false: it has said that it cannot
 * help (board_helpless). All cheap.
 */
bool board_maps(struct board *b, uint32_t seat, uint64_t where, uint64_t bytes, uint64_t limit);
void board_unmaps(struct board *b, uint32_t seat, uint64_t bytes);
bool board_asks(struct board *b);
bool board_crowded(const struct board *b);
void board_helpless(struct board *b);

/* Is there an operation that others have posted, and that waits for this seat? */
bool board_owes(struct board *b, uint32_t seat);

/* step_lives() of a seat. */
bool board_lives(struct board *b, uint32_t seat);

/*
 * The owner of a seat is gone: what it has not ended fails for all others.
 * board_leave: its process still has its memory. board_die: whoever reaps the process calls this, also if nobody has the seat.
 */
void board_leave(struct board *b, uint32_t seat);
void board_die(struct board *b, uint32_t seat);

/* Is the board broken (see above)? It remains so. Cheap. */
bool board_is_broken(const struct board *b);

/*
 * To be called before this process exits. From then on no thread of it can change the board, so that the exit does not
 * break it; their calls return -ESHUTDOWN.
 */
void board_shut(struct board *b);

/* A process is gone that has never entered. It may have been about to join: all creations under way fail. */
void board_stranger_dies(struct board *b);

/*
 * The cut (docs/ranks.md, Cut): all proxies of the job freeze for the same `cut`, a number that no other cut
 * has and that is not 0. seats: a bitmap of their seats. A proxy calls this again and again as long as it has nothing
 * under way and takes no record from its client; it need not have entered. When all seats of `seats` have said so
 * and no event has come since, nothing can begin any more: *all becomes true, and stays so for every seat. A
 * seat whose proxy has ended counts as one that has said so.
 * -EAGAIN: there is mail for this seat. -ESTALE: the cut has failed: another seat was told that all are quiet, and
 * an event has come after that. -ENOTRECOVERABLE, -EINVAL.
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
 * All proxies of a saved state have returned to their seats that will. The others have died after the cut, unseen by
 * the board: what they have not ended fails for all.
 */
void board_returned(struct board *b);

/*
 * board_reserve: the supervisor is about to give the seat to a new proxy. Sets the seat's row of the table, and
 * forgets that an earlier proxy of the seat has ended. board_place: copies the row to *place. -ENOENT: the seat has
 * been given to nobody. -ENOTRECOVERABLE.
 */
void board_reserve(struct board *b, uint32_t seat, const struct board_place *place);
int board_place(struct board *b, uint32_t seat, struct board_place *place);

#endif /* UPROXY_COLL_BOARD_H */
