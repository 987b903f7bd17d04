/* SPDX-License-Identifier: Apache-2.0 */
/*
 * taking.h - what the commands that take a checkpoint print of it
 */
#ifndef TAKING_H
#define TAKING_H

#include "ckpt_take.h"

/* As ckpt_find_job() and ckpt_take(), with the reason of a failure printed. look_only: 0 if all is well. */
struct rundir_job *take_find_job(const char *who);
int take_job(const struct rundir_job *job, const struct take_options *o, struct phases *ps, struct take_result *r);

#endif
