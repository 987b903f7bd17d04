/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge.h - one trace for people out of the proxies' raw ones (uproxy/trace.h)
 */
#ifndef MERGE_H
#define MERGE_H

#include "job.h"

/* Merges and removes the job's raw traces. Says what is wrong with them. 0 or -errno. */
int merge_traces(const struct job *job, int ranks, int serials);

#endif
