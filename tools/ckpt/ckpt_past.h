/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_past.h - what checkpoints and restores add to a job's history (history.h)
 *
 * A job whose folder has no history gets none. Nothing here fails: what cannot be kept is not.
 */
#ifndef CKPT_PAST_H
#define CKPT_PAST_H

#include "ckpt_take.h"

#define PAST_PART	"history"	/* of a checkpoint */

/* A checkpoint has been taken, and the job goes on or (left: false) ends. */
void ckpt_past_take(const char *rundir, struct phases *ps, const struct take_result *r, bool left);
/* The same as text, with the phases up to now; malloc'ed, or NULL. */
char *ckpt_past_taken(struct phases *ps, const struct take_result *r, const char *id, bool left);
void ckpt_past_failed(const char *rundir, struct phases *ps, const char *reason);
/* where: the devices that were asked for, or "-" */
void ckpt_past_restored(const char *rundir, struct phases *ps, const char *id, const char *store,
			const char *where);

#endif
