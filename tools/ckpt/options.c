// SPDX-License-Identifier: Apache-2.0
/*
 * options.c - writes and reads a job's options for a restore; parses those of its own checkpoints
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_i.h"
#include "ckpt_options.h"
#include "ckpt_own.h"
#include "ckpt_take.h"
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
	OPTION(at_step_ms, LONG),
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

int ckpt_options_read(const struct ckpt_facts *f, struct job_options *opt)
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
	    opt->devices > JOB_DEVICES_MAX) {
		say("the job's options in the checkpoint are damaged");
		return -EBADMSG;
	}
	return 0;
}

/* ---------------------------------------------------------------------- options of run */

/* "90", "90s", "30m", "2h", "1d" */
static int parse_time(const char *text, long *ms)
{
	static const struct {
		char unit;
		long seconds;
	} units[] = { { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
	char number[32];
	size_t n = strlen(text);
	long by = 1;

	if (!n || n >= sizeof(number))
		return -EINVAL;
	strcpy(number, text);
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (number[n - 1] == units[i].unit) {
			by = units[i].seconds;
			number[n - 1] = 0;
			break;
		}
	if (by > 1 && strchr(number, 's'))
		return -EINVAL;
	if (parse_seconds(number, ms) || *ms < 1 || *ms > LONG_MAX / by)
		return -EINVAL;
	*ms *= by;
	return 0;
}

/* "USR1", "SIGUSR1" or "10": a signal that the front forwards. */
static int parse_signal(const char *text, int *sig)
{
	static const int list[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 };
	long number = 0;

	if (!strncmp(text, "SIG", 3))
		text += 3;
	parse_int(text, 1, 64, &number);
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		if (number == list[i] || !strcmp(text, sigabbrev_np(list[i]))) {
			*sig = list[i];
			return 0;
		}
	return -EINVAL;
}

static char *absolute(const char *path)
{
	struct why why = { 0 };
	char whole[PATH_MAX];

	if (!ckpt_store_path(path, whole, &why))
		return strdup(whole);
	say("%s", why.text);
	return NULL;
}

int own_option(struct job_options *opt, int c, const char *command)
{
	const char *is;

	switch (c) {
	case OWN_STORE:
	case OWN_CRIU:
		free(c == OWN_STORE ? opt->store : opt->criu);
		*(c == OWN_STORE ? &opt->store : &opt->criu) = absolute(optarg);
		return (c == OWN_STORE ? opt->store : opt->criu) ? 0 : EXIT_OURS;
	case OWN_EVERY:
		is = parse_time(optarg, &opt->every_ms) ? "a time, such as 90s, 30m or 2h" : NULL;
		break;
	case OWN_STEPS:
		is = parse_int(optarg, 1, LONG_MAX, &opt->every_steps) ? "a number of launches" :
		     NULL;
		break;
	case OWN_AT_STEP:
		opt->at_step_ms = TAKE_STEP_MS;
		is = optarg && (parse_seconds(optarg, &opt->at_step_ms) || !opt->at_step_ms) ?
		     "a number of seconds" : NULL;
		break;
	case OWN_SIGNAL:
		is = parse_signal(optarg, &opt->preempt_signal) ?
		     "INT, TERM, HUP, QUIT, USR1 or USR2" : NULL;
		break;
	case OWN_GRACE:
		is = parse_seconds(optarg, &opt->preempt_ms) ? "a number of seconds" : NULL;
		break;
	case OWN_RESTART:
		opt->restart = true;
		return 0;
	case OWN_OUTSIDE:
		opt->outside = true;
		return 0;
	case OWN_TRUST:
		return ckpt_trust_owner(optarg, &opt->trust_owner);
	case OWN_HOST_PIDS:
		opt->host_pids = true;
		return 0;
	default:
		return -1;
	}
	return is ? say_usage(command, "'%s' is not %s", optarg, is) : 0;
}
