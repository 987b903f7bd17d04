// SPDX-License-Identifier: Apache-2.0
/*
 * taking.c - what the commands that take a checkpoint print of it
 */
#include "taking.h"

struct rundir_job *take_find_job(const char *who)
{
	struct why why = { 0 };
	struct rundir_job *job = ckpt_find_job(who, &why);

	if (!job && why.err)
		say("%s", why.text);
	return job;
}

int take_job(const struct rundir_job *job, const struct take_options *o, struct phases *ps, struct take_result *r)
{
	struct why why = { 0 };
	int err = ckpt_take(job, o, ps, r, &why);

	if (err == -ECANCELED && !why.err)	/* it was only looked at */
		return 0;
	if (err) {
		say("%s", why.text);
		tell_lines(say, r->below);
	} else if (o->step_ms && !r->at_step) {
		phases_clear(ps);
		say("job %s is not saved at the end of a step, but where it was: %s", job->id, r->not_at_step);
	}
	return err;
}
