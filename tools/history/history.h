/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - what a job has done over time: kept by its supervisor, read by `singvgpu report`
 *
 *   supervisor ── samples ─► history.samples ┐ in the job's folder
 *   supervisor, conductors ─► history.events ┴─► a checkpoint's part "history", or, at the job's
 *                                                end, a file of the kept histories (keep.c)
 *   a restore puts the part back into the new folder, where the supervisor goes on with both files
 *
 * history.events is text, and only grows, each event by one write. Words are those of facts
 * (ckpt_facts.h); times are ns, TIME since 1970, all others since the event's TIME:
 *
 *   begin TIME VERSION HOST ID RANKS COMMAND          the command is started
 *   device TIME RANK PROXY ORDINAL NAME               a session begins
 *   comm TIME KEY RANKS LIST                          a communicator; LIST: the job's ranks, R,R,…
 *   checkpoint TIME NS STILL NS LEFT BYTES ZEROS STORED ID STORE
 *                                                     STILL: when the gates closed; then for how long,
 *                                                     0: until a restore. ID "-": the one that has this
 *                                                     history
 *   failed TIME NS PHASE REASON                       a checkpoint that was not taken
 *   restore TIME NS ID STORE HOST VERSION DEVICES     brought back, onto DEVICES as on the command line
 *   phase NAME START NS BYTES STORED                  of the event above
 *   end TIME STATUS HOW                               run's exit status
 *
 * Readers skip unknown keys and words behind those that they know. history.samples is a struct
 * history_head and frames of equal size, native byte order: a time, and HISTORY_COUNTERS numbers
 * for each rank. The last frame is replaced until it is as late as frames are to be apart.
 */
#ifndef HISTORY_H
#define HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rundir.h"
#include "why.h"

#define HISTORY_MAGIC	0x48475653u	/* "SVGH" */
#define HISTORY_VERSION	1u
#define HISTORY_RANKS	256u		/* JOB_RANKS_MAX */
#define HISTORY_MAX	(8u << 20)	/* bytes of a whole history */
#define HISTORY_EVENTS	"history.events"
#define HISTORY_SAMPLES	"history.samples"
#define HISTORY_PHASES	64		/* of an event */

/* Each of a rank, and all but the last since the job's start. */
enum history_counter {
	HISTORY_LAUNCHES,
	HISTORY_CALLS,
	HISTORY_COLLECTIVES,
	HISTORY_LAST,		/* collectives that this rank was the last to post */
	HISTORY_WAIT_NS,	/* while a collective waited for other ranks to post it */
	HISTORY_RUN_NS,		/* while one ran, or waited for other devices */
	HISTORY_TO_DEVICE,	/* bytes */
	HISTORY_TO_HOST,
	HISTORY_MEMORY,		/* bytes of device memory, now */
	HISTORY_COUNTERS,
};

struct history_head {
	uint32_t magic, version;
	uint32_t ranks, counters;
	uint64_t apart_ns;	/* between two frames that stay */
	uint64_t pad;
};
_Static_assert(sizeof(struct history_head) == 32, "file format");

/* --------------------------------------------------------------------------- sample.c */

/* The supervisor's. Nothing here waits for anybody; what cannot be written is not kept. */
struct history {
	bool off;
	uint64_t next;		/* now_ms() of the next sample; 0: at once */
	unsigned int ranks;
	uint64_t apart_ms;
	uint64_t last_ms;	/* of the last frame that stays */
	size_t kept, most;	/* frames that stay; at which they are thinned out */
	uint64_t *frame;	/* the current one */
	uint64_t *ended;	/* by rank: what proxies have counted that are gone */
	unsigned int comms;	/* as history_step() was told last */
	struct history_seen {
		int rank, serial;
	} *seen;		/* proxies whose devices are noted */
	size_t n_seen;
	uint64_t key[64];	/* of communicators that are noted */
	size_t keys;
};

/* A new life of the job, in its folder. A second one there, or a restored one, goes on with the files. */
void history_start(struct history *h, const struct rundir_job *job);
/*
 * Takes a sample, if it is time to. comms: how many texts of communicators (jobboard.h) the supervisor has written; text: the
 * newest one, or NULL. Returns the milliseconds until it is time again; -1: never.
 */
int history_step(struct history *h, const struct rundir_job *job, unsigned int comms, const char *text);
/* Before the figures of a proxy that has ended are removed. */
void history_ended(struct history *h, const struct rundir_job *job, const struct rundir_proxy *p);
/* Takes the last sample of a life of the job. */
void history_flush(struct history *h, const struct rundir_job *job);
/* The job is over; keeps its history. */
void history_stop(struct history *h, const struct rundir_job *job, int status, const char *how);

/* ----------------------------------------------------------------------------- keep.c */

/*
 * Appends an event, one or more whole lines, to a folder's file. 0, -EFBIG: it is full, which it is later for
 * the restores and the end; -errno.
 */
int history_append(const char *dir, const char *text, size_t len);
/* The whole history of a folder, with more events behind it, or NULL; malloc'ed; NULL: it has none. */
char *history_pack(const char *dir, uid_t owner, const char *more, size_t *len);
/*
 * Puts a whole history, which may be anybody's, into a job's folder; id: that of the checkpoint that had it. 0;
 * -EBADMSG, -EPROTONOSUPPORT: it is none; -errno: it cannot be written.
 */
int history_unpack(const char *dir, const char *data, size_t len, const char *id);
/* Notes a job's end, and keeps its history. */
void history_close(const char *dir, int status, const char *how);
/* Adds a job's whole history to the kept ones, and removes those that are too many or too old. May wait for a disk. */
void history_keep(const char *id, const char *all, size_t len);
/*
 * The kept history of a job that has ended, the latest with this id ("1234", or "1234-SECONDS" as the
 * file is called); malloc'ed. -ENOENT; other errors with *why.
 */
int history_kept(const char *id, char **data, size_t *len, struct why *why);
/* The folder of kept histories: 0; 1: histories are off; -ENAMETOOLONG. */
int history_place(char path[PATH_MAX]);

/* ---------------------------------------------------------------------------- parse.c */

enum past_kind { PAST_BEGIN, PAST_DEVICE, PAST_COMM, PAST_CHECKPOINT, PAST_FAILED, PAST_RESTORE, PAST_END };

struct past_phase {
	char name[40];
	uint64_t start_ns, ns, bytes, stored;
};

struct past_event {
	enum past_kind kind;
	uint64_t time_ns, ns;
	uint64_t still_ns, stood_ns;	/* PAST_CHECKPOINT: STILL, and for how long */
	bool left;			/* the job ran on */
	uint64_t bytes, zeros, stored;
	uint64_t key;			/* PAST_COMM */
	int number, rank, serial;	/* ranks, status; PAST_DEVICE: number is the ordinal */
	const char *id, *store, *host, *version, *text;	/* text: command, name, list, reason, devices, how */
	const char *at;			/* PAST_FAILED: the phase */
	struct past_phase *phase;
	int phases;
};

struct past {
	struct past_event *event;
	size_t events;
	unsigned int ranks;		/* 0: there are no samples */
	size_t frames;
	uint64_t apart_ns;
	uint64_t *time;			/* of each frame; ascending */
	uint64_t *count;		/* [frame][rank][HISTORY_COUNTERS] */
	bool full;			/* events were left out, for room */
	char *text;			/* of the events */
	size_t head, events_len, samples_len;	/* the three parts of the data, one behind the other */
};

/*
 * Reads a whole history, which may be anybody's. 0; -ENOMEM; -EBADMSG, -EPROTONOSUPPORT: *why says what
 * is wrong with it. past_free() frees *p in any case.
 */
int past_read(struct past *p, const char *data, size_t len, struct why *why);
void past_free(struct past *p);
/* A rank's counter in a frame. */
uint64_t past_count(const struct past *p, size_t frame, unsigned int rank, enum history_counter c);

#endif
