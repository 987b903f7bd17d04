/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watchers.h - the watchers of every job (struct job_watcher)
 */
#ifndef WATCHERS_H
#define WATCHERS_H

#include "job.h"

/* Those of this process, which supervises one job; for struct job. */
const struct job_watcher *const *watchers_of_job(void);

#endif
