// SPDX-License-Identifier: Apache-2.0
/*
 * trace.c - `singvgpu trace`: runs a job with a trace and summarises it
 */
#include <getopt.h>
#include <stdlib.h>

#include "job.h"
#include "options.h"

static const char help[] =
"Usage: singvgpu trace [OPTION]... [--] COMMAND [ARG]...\n"
"Runs a CUDA program as 'singvgpu run' does, writes what its proxies executed as JSON for\n"
"Perfetto (ui.perfetto.dev) or chrome://tracing, and prints calls, times and bytes by name\n"
"on stderr.\n"
"\n"
"  -o, --output FILE    the trace (default singvgpu-trace.json)\n"
"  -n, --ranks N        start the command N times, as torchrun does\n"
OPTIONS_HELP
"      --help           print this and exit\n"
"\n"
"The exit status is as that of 'singvgpu run'.\n";

static const struct option longs[] = {
	OPTIONS_LONG,
	{ "output", required_argument, NULL, 'o' },
	{ 0 },
};

static int parse_options(struct job_options *opt, int argc, char **argv)
{
	const char *output = "singvgpu-trace.json";
	int c, status = 0;

	while (!status &&
	       (c = getopt_long(argc, argv, "+" OPTIONS_SHORT "o:", longs, NULL)) != -1) {
		if (c == 'o')
			output = optarg;
		else
			status = options_parse(opt, c, "trace");
	}
	if (status || opt->help)
		return status;
	if (optind == argc)
		return say_usage("trace", "no command is given");
	opt->command = argv + optind;
	opt->summary = true;
	opt->trace = options_path(output);
	return opt->trace ? 0 : EXIT_OURS;
}

int trace_main(int argc, char **argv)
{
	return job_main(argc, argv, parse_options, help);
}
