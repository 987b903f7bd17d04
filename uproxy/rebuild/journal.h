/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - adds records to the channel's log, and drops the entries that no restore needs
 */
#ifndef JOURNAL_H
#define JOURNAL_H

#include "call.h"

/* Logs a record and consumes it. -ENOSPC no room; what ring_log_append says. */
int journal_add(struct sv_session *s, const struct ring_record *rec);
int journal_compact(struct sv_session *s);	/* drops the entries that no restore needs */
uint64_t journal_seq(const struct singvgpu_log_entry *e);	/* of the entry's record */

#endif
