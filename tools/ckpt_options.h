/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_options.h - what `run` was told, in a job's folder and in a checkpoint
 */
#ifndef CKPT_OPTIONS_H
#define CKPT_OPTIONS_H

#include "ckpt_facts.h"
#include "job.h"

/* RUNDIR/options: lines "option NAME VALUE". 0 or -errno, unsaid. */
int ckpt_options_write(const struct job *job);
/* Over the defaults in opt, whose texts are malloc'ed. 0 or -errno, said. */
int ckpt_options_read(const struct ckpt_facts *f, struct job_options *opt);

#endif
