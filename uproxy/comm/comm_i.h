/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_i.h - collective operations in a proxy: from the client's records to the transport and back
 *
 *   SV_OP_X_COLL ─► do_coll ─ posts ─► the board (coll/board.h) ─► START ─► a notice at the stream's
 *                      │ not all have posted: park_hold                 end, and a wait for a word
 *                      ▼                                                            │ reached
 *              BEGUN: park_release        ENDED: the word is stored ◄── DONE ◄── the transport
 *
 * Three kinds of threads. The consumer posts, and does what the board's mail says. A thread of the driver calls
 * reached() when a stream has come to a record. A thread of the transport, or the consumer in comm_drive(),
 * calls done() when an operation has ended. The last two make no call of the driver but that of post_tell(),
 * and one for the text of an error.
 *
 * Stored words. The end of a record is a store to the word for which its stream waits. A driver that listens to
 * such words (hal_told_words) has no thread at that wait: it runs what comes next in the stream in the thread
 * that tells it of the store. So each store, under comm_lock, is followed by a post_tell() of the same thread
 * without that lock. done() tells once, at its end, for all that has been stored within it. There the
 * driver's callbacks run at once, those of synchronisations among them: so a result goes from the thread
 * that drives the transport to the client without another thread between.
 *
 * comm_lock is comms.lock.
 */
#ifndef COMM_I_H
#define COMM_I_H

#include "answer.h"
#include "board.h"
#include "transport.h"

int do_comm_new(struct call *k);
int do_comm_end(struct call *k);
int do_comm_leave(struct call *k);
int do_coll(struct call *k);

/*
 * Sets the job's board (--board) and this proxy's seat. fd -1: the job has no board. Before the first record.
 */
void comm_board(int fd, uint32_t seat);

/* Sets the order in which reductions add. Before the first record. */
void comm_order(enum transport_order order);
/*
 * sharers: how many ranks of the job are on each of n devices. If a device has several, the transport is opened with
 * `together`. Call it before the first communicator.
 */
void comm_together(const uint16_t *sharers, int n);

/*
 * The primary context is about to be reset. true: the transport does not use it any more. false: it must stay, since
 * the client is leaving, and others may still receive what the client has sent.
 */
bool comm_reset(void);

/* Is there work for comm_run(), which the consumer calls between two records? Cheap. */
bool comm_posted(void);
void comm_run(struct sv_session *s);

/* Are there operations that have not ended? Then other threads of this device need the processors. */
bool comm_busy(void);

/*
 * The consumer calls this while it waits for such operations: it makes them progress until more(arg) is true. false:
 * there was no progress for a while, and the consumer may sleep.
 */
bool comm_drive(bool (*more)(void *arg), void *arg);

/* Before the consumer sleeps, and after. */
void comm_sleeps(bool sleeps);

/*
 * The client has gone, or the session has failed. If the client has exited with 0 (SV_OP_X_COMM_LEAVE), this returns
 * when others have received all that it has sent. Else the board is told that this proxy has died.
 */
void comm_leave(bool failed);

/*
 * Instead of comm_leave(), for a proxy that still has its slice: the board must not hear of its end before that. No thread of
 * this process changes the board any more, so that its end does not break it.
 */
void comm_shut(void);

/* Communicators that exist. */
unsigned int comm_count(void);

/*
 * save.c, for a freeze and its dump. comm_seat: our seat; false: the job has no board. comm_open: requests that
 * stay open at a cut, since what they wait for is parked or concerns other ranks. comm_step_aside: lets
 * streams pass their groups of which nothing is under way, as these would not get idle. comm_cut: when nothing is under
 * way here, says so on the board; *all: nothing is under way in the whole job, see board_cut(). 0 or -errno
 * and *why. comm_halt: with on, the transport ends no communicator until it is called with off; false if
 * it is ending one. comm_cut_ends: the session runs on.
 */
bool comm_seat(uint32_t *seat);
/*
 * comm_finished: all that has been posted here has ended. comm_owes: another rank has posted an operation that
 * waits for this session's client.
 */
bool comm_finished(void);
bool comm_owes(void);
bool comm_talks(void);		/* is there a communicator of several ranks? */
bool comm_there(void);		/* has there been a communicator? Else there is nothing to save */
uint64_t comm_open(void);
void comm_step_aside(void);
int comm_cut(uint64_t cut, const uint64_t *seats, bool *all, struct why *why);
bool comm_halt(bool on);
void comm_cut_ends(void);
/* post.c: the session is frozen, or not yet thawed after a restore, which no wait for another rank counts. */
void comm_stands(struct sv_session *s, bool still);

/*
 * comm_save: all that this proxy has of communicators, and what is parked; the caller frees *bytes. -ENOMEM;
 * -ENOTSUP: a restore's reader, which has read them, does not take them.
 * comm_save_board: board_save(); *image is NULL if there is none. comm_expect: before the log is replayed. comm_rebuild:
 * when the session's objects and arena are there. Both: 0, or -errno and *why.
 */
int comm_save(struct sv_session *s, void **bytes, size_t *len, struct why *why);
int comm_save_board(void **image, size_t *len);
int comm_expect(const void *bytes, size_t len, struct why *why);
int comm_rebuild(struct sv_session *s, const void *bytes, size_t len, struct why *why);

void comm_repin(struct sv_session *s);	/* the primary context is a new one */

/*
 * For a session that shares its device by slices (slice/slice.h). Consumer.
 * comm_attach: opens the job's board before there is a communicator, and has its wakes end the consumer's waits. *fd: the
 * board's file, which stays comm's. -errno and *why.
 * comm_exited: has the client, which has used collectives, exited with 0 (SV_OP_X_COMM_LEAVE)?
 * comm_in_memory: does an operation work in the session's memory?
 * comm_ahead: the memory is about to go, and the device is idle. Posts collectives that are parked behind others, so that these need
 * no slice between them (docs/ranks.md, Slices). An operation may start by that.
 * comm_capture: after that, if the device is still idle. Copies what posted calls send that have not started. What starts from now
 * on works with copies. -ENOMEM.
 * comm_return: the memory is back. comm_arrived: do results wait to be written there? comm_write: writes them.
 */
int comm_attach(struct sv_session *s, struct board **board, int *fd, uint32_t *seat, struct why *why);
bool comm_exited(void);
bool comm_in_memory(void);
void comm_ahead(struct sv_session *s);
int comm_capture(void);
void comm_return(void);
bool comm_arrived(void);
void comm_write(void);

#ifdef COMM_PRIVATE		/* between the files of this folder */

/*
 * Records that have been posted and are needed yet: with as many as POSTED_SHARED, or as many calls as a rank may have
 * of the board's, further ones are parked, but for those of communicators that have none. So what nobody receives keeps no
 * other communicator waiting.
 */
#define POSTED_MAX	512u
#define POSTED_SHARED	384u
#define CALLS_MAX	(1u << 15)	/* of all ranks of a communicator together */
#define COMMS_MAX	1024	/* communicators of a session */
#define BUFFERED_MAX	(256ull << 20)	/* bytes of small sends whose receivers are not there; further ones wait */
#define STARTS_LISTS	4096u	/* of starts, by the end of their order: these are consecutive */

_Static_assert(2 * POSTED_MAX + 2 * COMMS_MAX < BOARD_MAILS, "a mailbox has room for all that may end at once");

struct communicator {
	struct communicator *next;
	uint32_t refs;			/* the list's, and posted records'; comm_lock */
	uint64_t number;		/* the client's */
	uint64_t key;			/* the board's */
	uint32_t member, ranks, rank;
	uint32_t *end;			/* of the transport, by rank; STEP_NONE: gone */
	struct sv_comm_word *word;	/* NULL: the client has none any more; comm_lock */
	bool joined, stands, aborted, ending;
	bool grouped;			/* the transport knows it */
	bool refused;			/* a record was not posted: nor are later ones */
	uint32_t open;			/* records that have not ended; comm_lock */
	uint32_t told;			/* a failure has been reported; comm_lock */
	struct answer created, ended, abort;	/* open calls; op 0: none */
};

struct start;

/* One call of a record. */
struct coll_call {
	struct step_call call;
	uint64_t send, recv, factor;
	uint8_t scale;
	void *buffer;			/* a copy of what is sent (STEP_BUFFER), or NULL; the transport's */
	struct start *start;		/* not NULL: waits for the stream; comm_lock */
	/* In a session that shares its device by slices; see comm_capture(). comm_lock */
	void *sent, *received;		/* copies of what is sent, and for what is received; malloc()'s */
	uint64_t scaled;		/* a copy of the factor */
	bool kept;			/* it was started while the memory was elsewhere: works with these two */
	bool arrived;			/* what it receives has, and waits to be written */
};

/* A record that has been posted. */
struct posted {
	struct communicator *comm;
	struct stream *st;
	uint64_t seq;			/* the record's */
	uint64_t ctx, number;		/* number: of the records of its slot */
	uint64_t wait;			/* if it is queued: the value of its word for which its stream waits */
	uint64_t posted_ns;		/* for the trace */
	uint32_t slot, calls;
	uint32_t buffers;		/* calls whose buffers are not filled, or not started; comm_lock */
	bool queued;			/* the stream has its notice and its wait; consumer */
	bool covered;			/* it may fail yet, and has a number (chain, nth) in cover.h; consumer */
	uint32_t chain;
	uint64_t nth;
	bool ahead;			/* comm_ahead() has posted it: it is still parked, too; changed by the consumer, with comm_lock */
	bool held;			/* it holds its stream (park_hold); consumer */
	bool begun;			/* all of its calls have started or ended; consumer */
	bool reached, ended;		/* its stream has come to it; its calls have ended; comm_lock */
	uint32_t filling;		/* buffers that are being filled; comm_lock */
	uint32_t starts;		/* parts of starts that name it; comm_lock */
	bool failed;			/* its stream, or the filling of a buffer; comm_lock */
	bool stands;			/* has failed: its stream waits until its communicator ends; comm_lock */
	bool known;			/* post_stand() has told cover.h that it stands; consumer */
	bool to_release;		/* has ended while it held its stream: post_stand() releases that; comm_lock */
	bool cut;			/* the board is broken: the record ends with its last start; comm_lock */
	uint32_t kept;			/* calls that are: its stream is held until none is; comm_lock */
	enum step_code code;
	struct coll_call call[];
};

/* An operation that has been started here: one part, or both ends of a pair. comm_lock */
struct start {
	struct start *next, **prev;	/* in comms.starts, until its end */
	struct start *other;		/* in its list of comms.by_order, until its end */
	struct start *ready;		/* in a list of its own thread's */
	uint64_t order, started_ns;	/* started_ns: for the trace */
	uint32_t holds;			/* references: of whoever starts it, and of its end */
	uint32_t parts, left;		/* left: parts whose streams have not come so far, + 1 */
	struct {
		struct posted *p;
		uint32_t call;
	} part[2];
	bool gone;			/* all streams have come so far */
	bool running;			/* the transport knows it: it can be cancelled there */
	bool cancelled;
	enum step_code code;
	uint32_t cause;			/* the CUDA error of a stream, or 0 */
};

extern struct comms {
	struct lock lock;
	struct sv_session *s;
	struct board *board;
	uint32_t seat;
	int fd;
	bool heeded;		/* the board's wakes end the consumer's waits */
	enum transport_order order;
	bool together;		/* several ranks of the job share a device */
	const struct transport_driver *driver;
	struct transport *transport;
	struct communicator *all;	/* changed by the consumer, with the lock */
	struct communicator *joining;	/* does not know its member yet; consumer */
	struct posted *posted[POSTED_MAX];
	uint32_t in_use;		/* of these; changed with comm_lock */
	uint32_t calls, most_ranks;	/* of these; of a communicator; comm_lock */
	uint32_t ahead;			/* of these; changed by the consumer, with comm_lock */
	bool crowded;			/* further ones are parked; comm_lock */
	uint32_t waiting, running;	/* of these, have not begun; of `starts`, have gone; comm_lock */
	bool still;			/* the session is frozen: nobody waits, nothing runs; comm_lock */
	uint64_t *word;			/* by slot; a page, pinned, of told words (hal.h) */
	bool stored;			/* to a word, and it has not been told yet; comm_lock */
	uint64_t numbers[POSTED_MAX], waits[POSTED_MAX];
	uint64_t buffered;		/* bytes; comm_lock */
	struct start *starts, *by_order[STARTS_LISTS];
	uint32_t telling;		/* ends of which the board has not heard yet; comm_lock */
	uint32_t errand;		/* a communicator may have come to its end; atomic */
	uint32_t stands;		/* a record stands that is not known; atomic */
	bool sliced;			/* comm_attach() */
	bool away;			/* comm_capture(); consumer */
	uint32_t arrived;		/* calls that have; atomic */
	bool left;			/* SV_OP_X_COMM_LEAVE */
	bool cut;			/* a cut is agreed on, after which the ranks may be ended; atomic */
	bool lost;			/* the board is of no more use */
	uint32_t broken;		/* the error that has broken the context; atomic */
	uint32_t released;		/* nobody needs this proxy any more; atomic */
} comms;

/* A proxy's end of the transport is its seat. */
static inline uint32_t comm_end_of(uint32_t seat)
{
	return seat;
}

static inline uint32_t comm_seat_of(uint32_t end)
{
	return end;
}

struct communicator *comm_find(uint64_t number);
bool comm_ends(struct communicator *c);	/* asks the board where its ranks are; false: it does not know */
void comm_failed(struct communicator *c, enum step_code code, const struct step_failure *f);
void comm_failed_for(struct communicator *c, enum step_code code, const char *why);
int comm_event(const struct step_event *e);
void comm_errand(void);		/* has the consumer run comm_run() */

void post_start(const struct step_action *a);
void post_begun(const struct step_action *a);
void post_ended(const struct step_action *a);
void post_buffer(const struct step_action *a);
void post_cancel(const struct step_action *a);
/* away.c. call_sizes: bytes of a call's buffers on this rank; false: too much. comm_lock, but for call_sizes and call_keep. */
bool call_sizes(const struct communicator *c, const struct step_call *a, uint64_t *send, uint64_t *recv);
int call_keep(struct posted *p, struct coll_call *c);	/* it works with copies; -ENOMEM */
void call_ends(struct posted *p, struct coll_call *c, enum step_code code);
void copy_free(void *bytes);

void posted_settle(struct posted *p);	/* frees it if it has ended and nothing refers to it any more; comm_lock */
void post_let_go(struct posted *p);	/* its stream goes on if nothing keeps it; comm_lock */
void posted_enter(struct posted *p);	/* into its slot, when all of it is set; comm_lock */
void post_store(struct posted *p);	/* lets its stream go on; a post_tell() must follow; comm_lock */
void post_tell(bool here);		/* tells the driver of stores; without comm_lock; here: see hal_told() */
void post_broken(void);		/* the board is broken: everything ends */
void post_uncover(struct posted *p);	/* nothing of it can fail in its stream any more; comm_lock */
void post_stand(void);		/* streams of failed records stand from now on, those of other records are released; consumer */
void post_mend(struct sv_session *s, struct communicator *c);	/* c ends: its streams go on; consumer */
void post_forget(struct communicator *c);	/* nobody receives any more what it has sent into buffers */
void comm_put(struct communicator *c);		/* comm_lock */
void post_all_up(void);		/* the client is gone: what was posted ahead need not wait for its turn */
uint32_t post_ahead_of(const struct communicator *c);	/* records that were posted ahead, and have not ended; comm_lock */
int post_init(struct sv_session *s, struct why *why);
void *post_buffer_new(size_t size);	/* for what is sent before its receiver is there */

/* Checks a call, which the client has chosen at will, or a saved one. 0, a CUresult, -EPROTO. */
int post_check(struct sv_session *s, const struct communicator *c, const struct sv_coll_call *a);
int comm_again(struct sv_session *s, struct why *why);	/* set up in a restored session */

#endif /* COMM_PRIVATE */
#endif /* COMM_I_H */
