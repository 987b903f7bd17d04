// SPDX-License-Identifier: Apache-2.0
/*
 * options.c - writes and reads a job's options for a restore
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_i.h"
#include "ckpt_options.h"
#include "passed.h"

enum kind { LONG, SIZE, FLAG, SIGNAL, TEXT };

#define OPTION(name, kind) { #name, kind, offsetof(struct job_options, name) }
static const struct {
	const char *name;
	enum kind kind;
	size_t at;
} table[] = {
	OPTION(ranks, LONG), OPTION(devices, LONG), OPTION(grace_ms, LONG), OPTION(memory, SIZE),
	OPTION(backend, TEXT), OPTION(driver, TEXT), OPTION(log, TEXT), OPTION(host_pids, FLAG),
	OPTION(store, TEXT), OPTION(criu, TEXT), OPTION(every_ms, LONG), OPTION(every_steps, LONG),
	OPTION(preempt_signal, SIGNAL), OPTION(preempt_ms, LONG), OPTION(restart, FLAG),
	OPTION(outside, FLAG),
	OPTION(at_step_ms, LONG), OPTION(collective_ms, LONG), OPTION(reduction, TEXT),
};

#define N_OPTIONS (sizeof(table) / sizeof(table[0]))

static void put_option(FILE *out, const char *name, const char *value)
{
	fprintf(out, "option %s ", name);
	facts_word(out, value);
	putc('\n', out);
}

int ckpt_options_write(const struct job *job)
{
	FILE *out = rundir_begin(job->dir.path, "options");
	char number[32], pipes[1024];

	if (!out)
		return -errno;
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const void *at = (const char *)job->opt + table[i].at;

		if (table[i].kind == TEXT) {
			if (*(char *const *)at)
				put_option(out, table[i].name, *(char *const *)at);
			continue;
		}
		if (table[i].kind == LONG)
			snprintf(number, sizeof(number), "%ld", *(const long *)at);
		else if (table[i].kind == SIZE)
			snprintf(number, sizeof(number), "%llu",
				 (unsigned long long)*(const uint64_t *)at);
		else if (table[i].kind == FLAG)
			snprintf(number, sizeof(number), "%d", *(const bool *)at);
		else
			snprintf(number, sizeof(number), "%d", *(const int *)at);
		put_option(out, table[i].name, number);
	}
	put_option(out, "libdir", job->places->libdir);
	if (!job->restore && passed_pipes(pipes, sizeof(pipes)))
		put_option(out, "pipes", pipes);
	return rundir_commit(job->dir.path, "options", out);
}

int ckpt_options_read(const struct ckpt_facts *f, struct job_options *opt, struct why *why)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		void *at = (char *)opt + table[i].at;
		const char *value = facts_option(f, table[i].name);

		if (!value)
			continue;
		switch (table[i].kind) {
		case TEXT:
			*(char **)at = strdup(value);
			break;
		case LONG:
			*(long *)at = strtol(value, NULL, 10);
			break;
		case SIZE:
			*(uint64_t *)at = strtoull(value, NULL, 10);
			break;
		case FLAG:
			*(bool *)at = atoi(value);
			break;
		case SIGNAL:
			*(int *)at = atoi(value);
			break;
		}
	}
	if (opt->ranks < 1 || opt->ranks > JOB_RANKS_MAX || opt->devices < 0 ||
	    opt->devices > JOB_DEVICES_MAX)
		return why_set(why, -EBADMSG, "the job's options in the checkpoint are damaged");
	return 0;
}
