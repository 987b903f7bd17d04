// SPDX-License-Identifier: Apache-2.0
/*
 * main.c - `singvgpu`: selects the subcommand
 */
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "passed.h"
#include "tool_i.h"

static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *what;
} commands[] = {
	{ "run", run_main, "run a CUDA program through proxies" },
	{ "warm", warm_main, "run one so that its kernels are compiled and kept" },
	{ "trace", trace_main, "run one and write what its proxies executed" },
	{ "ps", ps_main, "list jobs, ranks and proxies" },
	{ "top", top_main, "watch them" },
	{ "report", report_main, "write a page about a job: its speed, checkpoints and waits" },
	{ "checkpoint", checkpoint_main, "save a running job, so that it can be brought back" },
	{ "restore", restore_main, "bring a job back" },
	{ "migrate", migrate_main, "move a running job to another device or host" },
	{ "resize", resize_main, "give a running job more or fewer devices" },
	{ "store", store_main, "look after checkpoints: list, check, tidy, copy" },
	{ "doctor", doctor_main, "say what is there, what is missing, and what to do about it" },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *out)
{
	fputs("Usage: singvgpu COMMAND [OPTION]... [ARG]...\n"
	      "GPU jobs whose device lives in another process.\n\n", out);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].what);
	fputs("\n  --help     print this and exit; after a command: its options\n"
	      "  --version  print the version and exit\n", out);
}

static int flush(int status)
{
	atexit(say_finish);
	if (fflush(stdout) || ferror(stdout)) {
		say("the output cannot be written");
		return status ?: EXIT_OURS;
	}
	return status;
}

int main(int argc, char **argv)
{
	passed_find();
	/* No file that we open later may become stdin, stdout or stderr. */
	for (int fd = 0; fd >= 0 && fd < 3;)
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	unsetenv("SINGVGPU_NODES");	/* within a job: a GPU's own nodes alone count */
	opterr = 0;
	if (argc < 2) {
		usage(stderr);
		return EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		usage(stdout);
		return flush(0);
	}
	if (!strcmp(argv[1], "--version")) {
		puts("singvgpu " SINGVGPU_VERSION);
		return flush(0);
	}
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name))
			return flush(commands[i].main(argc - 1, argv + 1));
	return say_usage(NULL, "there is no command '%s'", argv[1]);
}
