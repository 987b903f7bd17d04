/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outcome.h - what became of records that are in the log: a compaction drops those that failed, and what is ended
 */
#ifndef OUTCOME_H
#define OUTCOME_H

#include <stddef.h>
#include <stdint.h>

void journal_failed(uint64_t seq);	/* a record was logged before it failed; any thread */
void journal_ended(uint64_t made, uint64_t seq);	/* seq ends what the record `made` made */

struct outcome {
	uint64_t a, b;
};

struct outcome_list {
	struct outcome *p;
	size_t n, cap;
};

struct outcomes {
	struct outcome_list failures;	/* a: records that were logged before they failed */
	struct outcome_list ends;	/* a: record, b: the maker of what it ended, as the log lacks it */
};

/* Between outcomes_lock() and outcomes_unlock(); the lists are sorted by `a` then. */
extern struct outcomes outcomes;
void outcomes_lock(void);
void outcomes_unlock(void);
/* NULL: the record is not in the list. */
const struct outcome *outcome_find(const struct outcome_list *l, uint64_t a);

#endif
