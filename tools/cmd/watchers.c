// SPDX-License-Identifier: Apache-2.0
/*
 * watchers.c - the table of what watches a job: the supervisor (job.c) calls it, and knows none by name
 *
 * A supervisor has one job, so there is one of each.
 */
#include "ckpt_own.h"
#include "jobboard.h"
#include "history.h"
#include "job.h"
#include "kernels.h"
#include "strays.h"
#include "watchers.h"

/* ------------------------------------------------------------- the job's own checkpoints */

static struct own own;

static int start_own(const struct job *job, struct why *why)
{
	return own_start(&own, job, why);
}

static int step_own(const struct job *job, bool runs)
{
	return runs ? own_step(&own, job->info) : -1;
}

static bool signal_own(int sig)
{
	return own_signal(&own, sig);
}

static pid_t child_of_own(void)
{
	return own.child;
}

static bool child_of_own_ended(pid_t pid, int status, int *forward)
{
	return own_ended(&own, pid, status, forward);
}

static void stop_own(bool taken)
{
	if (!taken)
		own_stop(&own);
}

static const struct job_watcher owns = { .start = start_own, .step = step_own, .signal = signal_own, .child = child_of_own,
					 .waited = true, .ended = child_of_own_ended, .ranks_ended = stop_own };

/* ------------------------------------------------------------------- what proxies compile */

static struct kernels kernels;

static int step_kernels(const struct job *job, bool runs)
{
	(void)runs;
	return kernels_step(&kernels, job->info);
}

static void hush_kernels(void)
{
	kernels_clear(&kernels);
}

static void add_kernels(const struct job *job, const struct rundir_proxy *p)
{
	kernels_ended(&kernels, job->info, p);
}

static void look_at_kernels(const struct job *job, int status, const char *how)
{
	(void)status;
	(void)how;
	kernels_look(&kernels, job->info);
}

static void report_kernels(const struct job *job, int status)
{
	kernels_report(&kernels, status, job->opt->warm);
}

static const struct job_watcher compiled = { .step = step_kernels, .hush = hush_kernels, .proxy_ended = add_kernels,
					     .close = look_at_kernels, .report = report_kernels };

/* --------------------------------------------------------------------------- the history */

static struct history history = { .off = true };

static void start_history(const struct job *job, bool lives)
{
	if (lives)
		history_start(&history, job->info);
	else
		history.off = true;
}

static int step_history(const struct job *job, bool runs)
{
	return runs ? history_step(&history, job->info, job->board->texts, job->board->text) : -1;
}

static void add_to_history(const struct job *job, const struct rundir_proxy *p)
{
	history_ended(&history, job->info, p);
}

static void flush_history(const struct job *job)
{
	history_flush(&history, job->info);
}

static void end_history(const struct job *job, int status, const char *how)
{
	history_stop(&history, job->info, status, how);
}

static const struct job_watcher past = { .started = start_history, .step = step_history, .proxy_ended = add_to_history,
					 .stop = flush_history, .close = end_history };

/* ----------------------------------------------------------- programs that are not in it */

static struct strays strays;

static int start_strays(const struct job *job, struct why *why)
{
	(void)why;
	strays_start(&strays, job);
	return 0;
}

static int step_strays(const struct job *job, bool runs)
{
	(void)job;
	return runs ? strays_step(&strays) : -1;
}

static int fd_of_strays(void)
{
	return strays.fifo;
}

static void hear_strays(void)
{
	strays_hear(&strays);
}

static pid_t child_of_strays(void)
{
	return strays.watcher;
}

static bool child_of_strays_ended(pid_t pid, int status, int *forward)
{
	(void)status;
	(void)forward;
	return strays_ended(&strays, pid);
}

static void finish_strays(bool taken)
{
	(void)taken;
	strays_finish(&strays);
}

static void stop_strays(const struct job *job)
{
	(void)job;
	strays_stop(&strays);
}

static const struct job_watcher outside = { .start = start_strays, .step = step_strays, .fd = fd_of_strays, .hear = hear_strays,
					    .child = child_of_strays, .ended = child_of_strays_ended,
					    .ranks_ended = finish_strays, .stop = stop_strays };

/* ------------------------------------------------------------------------------- the table */

const struct job_watcher *const *watchers_of_job(void)
{
	static const struct job_watcher *const all[] = { &owns, &compiled, &past, &outside, NULL };

	_Static_assert(sizeof(all) / sizeof(all[0]) <= JOB_WATCHERS_MAX + 1, "job.h");
	kernels_start(&kernels);
	return all;
}
