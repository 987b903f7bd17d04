/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phase.h - the phases of a checkpoint or a restore, as the user sees them
 *
 *   phase_begin ─► phase_progress … ─► phase_end
 *
 * Several phases may run at once, in several threads: all functions take the lock. A terminal shows
 * a running one in a line, several in a table, a row for each rank, that is written over; at the end
 * there is a table, or JSON. A phase of a rank is called "KIND RANK-PROXY".
 */
#ifndef PHASE_H
#define PHASE_H

#include <pthread.h>

#include "tool_i.h"

#define PHASES_MAX	1024

struct phase {
	char name[40];
	uint64_t begun_ns, ended_ns;	/* CLOCK_MONOTONIC; ended_ns 0: it runs */
	uint64_t moved_ns;		/* its last progress */
	uint64_t done, total;		/* in unit; total 0: unknown */
	const char *unit;		/* NULL: bytes */
	uint64_t stored;		/* bytes that were new to the store */
	int err;
};

struct phases {
	pthread_mutex_t lock;
	const char *verb;		/* "checkpoint"; static */
	char subject[40];		/* the job or the checkpoint */
	bool live;			/* progress is shown */
	int rows;			/* that it has now, on the terminal */
	FILE *picture;			/* in memory: it is shown in one piece, or left out */
	uint64_t begun_ns, shown_ns;
	uint64_t early_ns;		/* before all gates were closed a rank has stood for so long */
	struct phase phase[PHASES_MAX];
	int n;
};

/* quiet: no progress is shown, whatever stderr is. */
void phases_start(struct phases *ps, const char *verb, const char *subject, bool quiet);
/* fmt makes the name. Never NULL: after PHASES_MAX the last phase is used again. */
struct phase *phase_begin(struct phases *ps, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void phase_progress(struct phases *ps, struct phase *p, uint64_t done, uint64_t total);
/* The same in another unit than bytes; unit is static. phase_end still takes bytes. */
void phase_counts(struct phases *ps, struct phase *p, uint64_t done, uint64_t total,
		  const char *unit);
/* bytes: handled in all; stored: new to the store; err: 0 or -errno. */
void phase_end(struct phases *ps, struct phase *p, uint64_t bytes, uint64_t stored, int err);
/* Progress of running phases, "freeze 0-1 1.2k of 4k operations, 40/s, 70 s left"; its length. */
int phases_line(struct phases *ps, char *to, size_t size);
/* Removes what is shown, before another message. */
void phases_clear(struct phases *ps);

/* The first phase that failed, else the last one begun; "start" if there is none. */
const char *phases_failed(struct phases *ps);
/*
 * When the job's gates were closed, or the first of its ranks came to the end of its step, since phases_start(),
 * and how long ago that is; ns.
 */
uint64_t phases_still_from(const struct phases *ps);
uint64_t phases_still(const struct phases *ps);
double phases_seconds(const struct phases *ps);	/* from phases_start until now */
/* Each kind of phases as one, named "device of 4 ranks": their number. With the lock. */
int phases_kinds(const struct phases *ps, struct phase *sum, int room);
/* One row for each phase, of very many ranks one for each kind; and their sum. phases_text: the same, malloc'ed, or NULL. */
void phases_table(struct phases *ps);
char *phases_text(struct phases *ps);
/* An array of objects: phase, start_s, seconds, bytes, stored_bytes, error (if it failed). */
void phases_json(struct phases *ps, struct json *j, const char *key);

#endif
