/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge.h - one trace for people out of the proxies' raw ones (uproxy/trace.h)
 */
#ifndef MERGE_H
#define MERGE_H

#include "job.h"

/*
 * Merges the job's raw traces into its trace file and removes them; with table, tells the sums by
 * name on stderr. proxies[r]: how many rank r had. 0, or -errno and the user knows why.
 */
int merge_traces(const struct job *job, int ranks, const int *proxies, bool table);

#endif
