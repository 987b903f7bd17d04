// SPDX-License-Identifier: Apache-2.0
/*
 * checkpoint.c - `singvgpu checkpoint`: its options, and how it reports the result
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_take.h"
#include "taking.h"

static const char help[] =
"Usage: singvgpu checkpoint [OPTION]... JOB\n"
"Saves a running job so that it can be brought back, here or elsewhere, and ends it.\n"
"JOB is its id, as `singvgpu ps` shows it, or the pid of a process of it.\n"
"\n"
"      --leave-running    let the job run on\n"
"      --store DIR        where to save it (default $SINGVGPU_STORE, else\n"
"                         /var/lib/singvgpu/store, for others than root\n"
"                         ~/.local/share/singvgpu/store); it is created if need be\n"
"      --timeout SECONDS  give up after that time; 0: never (default 600)\n"
"      --at-step[=SECONDS]\n"
"                         save it at the end of a training step, which shows by itself:\n"
"                         less is stored. If none shows in SECONDS (default 30), it is\n"
"                         saved where it is, and a line says why\n"
"      --freeze SECONDS   give up if a busy GPU completes nothing for so long (default 30)\n"
"      --outside          save it although it has a TCP connection to a process outside of\n"
"                         it, which a restore may find broken\n"
"      --criu PATH        the CRIU program, 4.2 or newer\n"
"      --json FILE        write what was done to FILE, as JSON; -: to stdout\n"
"  -q, --quiet            no table of phases\n"
"      --help             print this and exit\n"
"\n"
"Prints the checkpoint's id. If anything fails before it is whole, the job runs on as\n"
"if nothing had been asked. CRIU needs root.\n";

enum { LEAVE = 256, JSON };

static const struct option longs[] = {
	{ "leave-running", no_argument, NULL, LEAVE },
	TAKE_LONG,
	{ "json", required_argument, NULL, JSON },
	{ "quiet", no_argument, NULL, 'q' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

struct args {
	struct take_options take;
	const char *json, *job;
	bool quiet, help;
};

static int option(struct args *a, int c)
{
	switch (c) {
	case LEAVE:
		a->take.leave_running = true;
		return 0;
	case JSON:
		a->json = optarg;
		return 0;
	case 'q':
		a->quiet = true;
		return 0;
	case 'h':
		a->help = true;
		return 0;
	}
	return take_option(&a->take, c);
}

static int parse_args(struct args *a, int argc, char **argv)
{
	int c, bad;

	while ((c = getopt_long(argc, argv, "qh", longs, NULL)) != -1) {
		bad = option(a, c);
		if (bad > 0)
			return say_usage("checkpoint", "that option is not known, or lacks its value");
		if (bad)
			return say_usage("checkpoint", "'%s' is not a number of seconds", optarg);
	}
	if (a->help)
		return 0;
	if (optind + 1 != argc)
		return say_usage("checkpoint", optind == argc ? "which job? (singvgpu ps)" :
				 "one job at a time");
	a->job = argv[optind];
	return 0;
}

static int write_json(const struct args *a, const struct rundir_job *job, struct phases *ps,
		      const struct take_result *r, int err)
{
	struct why why = { 0 };
	struct json j = { .out = ckpt_json_open(a->json, &why) };

	if (!j.out) {
		say("%s", why.text);
		return EXIT_OURS;
	}
	json_open(&j, NULL, '{');
	json_int(&j, "version", 1);
	json_string(&j, "job", job->id);
	json_string(&j, "store", r->store);
	if (*r->id)
		json_string(&j, "checkpoint", r->id);
	json_bool(&j, "left_running", err || a->take.leave_running);
	json_number(&j, "seconds", phases_seconds(ps));
	json_number(&j, "frozen_s", r->frozen_ns / 1e9);
	if (a->take.step_ms) {
		json_bool(&j, "at_step", r->at_step);
		if (!r->at_step)
			json_string(&j, "not_at_step", r->not_at_step);
	}
	json_uint(&j, "bytes", r->bytes);
	json_uint(&j, "stored_bytes", r->stored);
	json_uint(&j, "shared_bytes", r->bytes - r->zeros - r->fresh);
	json_uint(&j, "zero_bytes", r->zeros);
	json_number(&j, "stood_still_s", r->stood_ns / 1e9);
	if (err)
		json_string(&j, "failed_phase", phases_failed(ps));
	phases_json(ps, &j, "phases");
	json_close(&j, '}');
	if (!ckpt_json_close(a->json, j.out, &why))
		return 0;
	say("%s", why.text);
	return EXIT_OURS;
}

static void print_result(const struct args *a, struct phases *ps, const struct take_result *r)
{
	char bytes[16], stored[16], shared[16], zeros[16], line[256];
	int n;

	phases_clear(ps);
	if (!a->quiet) {
		phases_table(ps);
		n = snprintf(line, sizeof(line), "%s of state: %s new, %s shared, %s zeros; the job stood "
			     "still for %.3f s\n", show_size(bytes, r->bytes), show_size(stored, r->fresh),
			     show_size(shared, r->bytes - r->zeros - r->fresh),
			     show_size(zeros, r->zeros), r->stood_ns / 1e9);
		say_text(line, n);
	}
	if (!a->json || strcmp(a->json, "-"))
		puts(r->id);
}

int checkpoint_main(int argc, char **argv)
{
	struct args a = { .take = TAKE_DEFAULT };
	struct rundir_job *job;
	struct take_result r;
	struct phases ps;
	int status = parse_args(&a, argc, argv), err;

	if (status)
		return status;
	if (a.help) {
		fputs(help, stdout);
		return 0;
	}
	job = take_find_job(a.job);
	if (!job)
		return EXIT_OURS;
	ckpt_heed_signals();
	phases_start(&ps, "checkpoint", job->id, a.quiet);
	err = take_job(job, &a.take, &ps, &r);
	if (!err)
		print_result(&a, &ps, &r);
	if (a.json)
		status = write_json(&a, job, &ps, &r, err);
	rundir_list_free(job, 1);
	return err ? EXIT_OURS : status;
}
