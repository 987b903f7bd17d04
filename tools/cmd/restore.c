// SPDX-License-Identifier: Apache-2.0
/*
 * restore.c - `singvgpu restore`: its options; the restored job then runs as under `run`
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_bring.h"
#include "ckpt_options.h"
#include "options.h"

static const char help[] =
"Usage: singvgpu restore [OPTION]... ID\n"
"Brings a job back from a checkpoint and stays with it, as `singvgpu run` does.\n"
"ID is what `singvgpu checkpoint` printed, its first digits, \"latest:JOB\", or \"latest\"\n"
"if the store has checkpoints of one job alone.\n"
"\n"
"      --store DIR        where it is (see singvgpu checkpoint --help)\n"
TRUST_HELP
"      --on M|A,B,...     on M devices, or on those that are named, as with singvgpu run\n"
"      --share WAY        how ranks share a device from now on (see singvgpu run --help);\n"
"                         auto decides anew what fits\n"
"      --device N         the device to use, counted from 0 (default: the one it had);\n"
"                         rank R of several gets device N + R\n"
"      --device A,B,…     the same as --on A,B,…; --devices with such a list, too\n"
"      --device OLD=NEW,… what had device OLD gets device NEW\n"
"      --devices N        N virtual devices on this CPU, whatever GPUs there are\n"
"      --driver PATH      the CUDA driver that the proxies load\n"
"      --log FILE         append the proxies' messages to FILE\n"
"      --criu PATH        the CRIU program, 4.2 or newer\n"
"      --check            say whether it can be restored here, and do no more\n"
"      --json FILE        write what was done to FILE, as JSON; -: to stdout\n"
"  -q, --quiet            no table of phases\n"
"      --help             print this and exit\n"
"\n"
"The exit status is the command's, as with `singvgpu run`. 125: it was not restored.\n"
"Other options are those that the job was started with. CRIU needs root.\n";

enum { STORE = 600, TRUST, DEVICE, CRIU, CHECK, JSON, ON, SHARE };

static const struct option longs[] = {
	{ "store", required_argument, NULL, STORE },
	{ "trust-owner", required_argument, NULL, TRUST },
	{ "device", required_argument, NULL, DEVICE },
	{ "devices", required_argument, NULL, OPTION_DEVICES },
	{ "on", required_argument, NULL, ON },
	{ "share", required_argument, NULL, SHARE },
	{ "driver", required_argument, NULL, OPTION_DRIVER },
	{ "log", required_argument, NULL, OPTION_LOG },
	{ "criu", required_argument, NULL, CRIU },
	{ "check", no_argument, NULL, CHECK },
	{ "json", required_argument, NULL, JSON },
	{ "quiet", no_argument, NULL, 'q' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

struct args {
	struct bring_options bring;
	struct job_options over;	/* the job's options on the command line */
	bool check, help;
};

/* One of --on and --device, once. */
static int where(struct args *a, int c, const char *text)
{
	enum seating_share share = a->bring.where.on.share;
	struct seating_on on;
	char *given = NULL;
	int status = 0;

	if (*a->bring.where.text)
		return say_usage("restore", "devices are given twice (--on, --device)");
	if (c == ON)
		status = options_on_where(text, &on, &given, "restore");
	if (!status && (!strncmp(text, BRING_SHARED, strlen(BRING_SHARED)) || bring_where_parse(given ?: text, &a->bring.where)))
		status = say_usage("restore", "--device '%s' is neither a number from 0 to 15, nor a list "
				   "of such, nor OLD=NEW,OLD=NEW", text);
	a->bring.where.on.share = share;
	free(given);
	return status;
}

static int option(struct args *a, int c)
{
	switch (c) {
	case STORE:
		a->bring.store = optarg;
		return 0;
	case TRUST:
		return options_trust_owner(optarg, &a->bring.trust);
	case OPTION_DEVICES:
		if (!strchr(optarg, ','))
			break;
		/* fall through */
	case DEVICE:
	case ON:
		return where(a, c, optarg);
	case SHARE:
		return options_share(optarg, &a->bring.where.on.share, "restore");
	case CRIU:
		a->bring.criu = optarg;
		return 0;
	case CHECK:
		a->check = true;
		return 0;
	case JSON:
		a->bring.json = optarg;
		return 0;
	case 'q':
		a->bring.quiet = true;
		return 0;
	case 'h':
		a->help = true;
		return 0;
	}
	return options_parse(&a->over, c, "restore");
}

static int parse_args(struct args *a, int argc, char **argv)
{
	int c, status;

	while ((c = getopt_long(argc, argv, "qh", longs, NULL)) != -1) {
		status = option(a, c);
		if (status)
			return status;
	}
	if (!a->help && optind + 1 != argc)
		return say_usage("restore", optind == argc ?
				 "which checkpoint? (singvgpu store ls)" : "one at a time");
	a->bring.id = argv[optind];
	return 0;
}

/* A driver that no longer exists is dropped: options_finish() finds another. */
static int job_options(struct bring *b, const struct args *a, struct job_options *opt)
{
	struct why why = { 0 };

	options_default(opt);
	if (bring_job_options(b, opt, &why)) {
		say("%s", why.text);
		return EXIT_OURS;
	}
	opt->trust_owner = a->bring.trust;
	if (a->over.devices)
		opt->devices = a->over.devices;
	if (a->over.driver || (opt->driver && access(opt->driver, R_OK))) {
		free(opt->driver);
		opt->driver = a->over.driver ? strdup(a->over.driver) : NULL;
	}
	if (a->over.log) {
		free(opt->log);
		opt->log = strdup(a->over.log);
	}
	return 0;
}

static int bring(const struct args *a)
{
	static struct bring b;
	struct places places = { 0 };
	struct job_options opt;
	struct why why = { 0 };
	int status;

	if (bring_open(&b, &a->bring, &why)) {
		say("%s", why.text);
		tell_lines(say, b.below);
		bring_close(&b);
		return EXIT_OURS;
	}
	if (bring_check(&b, &why)) {
		say("checkpoint %s cannot be restored here: %s", b.id, why.text);
		bring_close(&b);
		return EXIT_OURS;
	}
	status = job_options(&b, a, &opt);
	status = status ?: options_finish(&opt, &places);
	if (!status && b.facts.libdir) {
		free(places.libdir);
		places.libdir = strdup(b.facts.libdir);
	}
	if (a->check)
		bring_ask_only(&b);
	if (!status && (!a->check || b.facts.proxies))
		status = job_run(&opt, &places, &b.restore);
	options_free(&opt, &places);
	bring_close(&b);
	return status;
}

int restore_main(int argc, char **argv)
{
	struct args a = { .bring.tell = say };
	int status = parse_args(&a, argc, argv);

	if (!status && a.help)
		fputs(help, stdout);
	else if (!status)
		status = bring(&a);
	free(a.over.driver);
	free(a.over.log);
	return status;
}
