/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_options.h - the options of `run`, as a job's folder and a checkpoint keep them
 */
#ifndef CKPT_OPTIONS_H
#define CKPT_OPTIONS_H

#include "ckpt_facts.h"
#include "job.h"

/* RUNDIR/options: lines "option NAME VALUE". 0 or -errno, unsaid. */
int ckpt_options_write(const struct job *job);
/* Overrides the defaults in opt with malloc'ed texts. 0, -EBADMSG. */
int ckpt_options_read(const struct ckpt_facts *f, struct job_options *opt, struct why *why);

#endif
