/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge.h - merges the proxies' raw traces (uproxy/include/trace.h) into one
 */
#ifndef MERGE_H
#define MERGE_H

#include "job.h"

/*
 * Merges the job's raw traces into its trace file and removes them; with table, prints the sums by
 * name on stderr. proxies[r]: how many rank r had. 0, or -errno with the reason printed.
 */
int merge_traces(const struct job *job, int ranks, const int *proxies, bool table);

#endif
