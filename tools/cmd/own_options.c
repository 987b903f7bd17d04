// SPDX-License-Identifier: Apache-2.0
/*
 * own_options.c - reads the options of a job's own checkpoints
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_i.h"
#include "ckpt_take.h"
#include "options.h"
#include "own_options.h"

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
		return options_trust_owner(optarg, &opt->trust_owner);
	case OWN_HOST_PIDS:
		opt->host_pids = true;
		return 0;
	default:
		return -1;
	}
	return is ? say_usage(command, "'%s' is not %s", optarg, is) : 0;
}
