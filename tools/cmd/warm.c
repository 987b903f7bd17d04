// SPDX-License-Identifier: Apache-2.0
/*
 * warm.c - `singvgpu warm`: runs a job so that its kernels are compiled, and counts them
 */
#include <getopt.h>
#include <stdlib.h>

#include "job.h"
#include "options.h"

static const char help[] =
"Usage: singvgpu warm [OPTION]... [--] COMMAND [ARG]...\n"
"Runs a CUDA program as 'singvgpu run' does, so that the soft device's kernels that it\n"
"launches are compiled and kept; then says how many. Root's are kept for all users of\n"
"this machine.\n"
"\n"
"  -n, --ranks N        start the command N times, as torchrun does\n"
OPTIONS_HELP
"      --help           print this and exit\n"
"\n"
"The exit status is as that of 'singvgpu run'.\n";

static const struct option longs[] = {
	OPTIONS_LONG,
	{ 0 },
};

static int parse_options(struct job_options *opt, int argc, char **argv)
{
	int c, status = 0;

	while (!status && (c = getopt_long(argc, argv, "+" OPTIONS_SHORT, longs, NULL)) != -1)
		status = options_parse(opt, c, "warm");
	if (status || opt->help)
		return status;
	if (optind == argc)
		return say_usage("warm", "no command is given");
	opt->command = argv + optind;
	opt->warm = true;
	return 0;
}

int warm_main(int argc, char **argv)
{
	return job_main(argc, argv, parse_options, help);
}
