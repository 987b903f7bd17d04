/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_places.h - where a job's ranks are to be, and whether the memory that they have fits there
 *
 * A running job's facts are its proxies' answers (resize, migrate). A saved job's facts are in its checkpoint (restore).
 */
#ifndef CKPT_PLACES_H
#define CKPT_PLACES_H

#include "ckpt_facts.h"
#include "rundir.h"
#include "seating.h"

/*
 * The job's table with the devices that w asks for. Of a checkpoint without a table, as 8f2437f wrote it, all numbers are the
 * driver's, and a rank's first session is on its first device. Whether ranks take turns is decided anew if w says how they
 * shall share, or puts the job elsewhere; below_peak: it then counts what they have now, and not what they once had. -EBADMSG,
 * -EINVAL (w does not fit the job, or its ranks would share a device that may not), -ENOTSUP (several hosts): *why.
 */
int places_make(const struct ckpt_facts *f, const struct rundir_job *job, const struct seating_where *w, bool below_peak,
		struct seating *t, struct why *why);

/* What the job would have on one physical device, bytes. */
struct places_device {
	int sessions;		/* 0: none of the job's */
	uint64_t now, most;	/* mapped now; the most that each had at once, added up */
	uint64_t total;		/* of the device, or of the largest that the job is on; 0: the driver does not tell */
};

/* The most that the session had mapped at once, bytes; of a saved one what it has. */
uint64_t places_most(const struct ckpt_proxy *p);

/*
 * The next session by rank, or NULL; *at is 0 at the first call. The facts have sessions in the order in which these began.
 */
const struct ckpt_proxy *places_next(const struct ckpt_facts *f, const struct seating *t, int *at);

/* Adds up what the sessions would have on each device of the table. */
void places_memory(const struct ckpt_facts *f, const struct seating *t, struct places_device d[SEATING_DEVICES]);

/*
 * 0, or -ENOSPC: *why names the first device that has too little memory, and what its ranks have. most: what they once had
 * must fit, too. A context's own memory is the driver's, and is not counted.
 */
int places_fit(const struct ckpt_facts *f, const struct seating *t, bool most, struct why *why);

/*
 * Is there room for what the job's sessions have where they are, and again where they would be? An eighth of each device is left
 * for what drivers need for contexts. The host must have as much memory available, since the soft device's and pinned
 * memory are its own.
 */
bool places_twice(const struct ckpt_facts *f, const struct rundir_job *job, const struct seating *t);

#endif
