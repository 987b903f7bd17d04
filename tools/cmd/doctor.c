// SPDX-License-Identifier: Apache-2.0
/*
 * doctor.c - `singvgpu doctor`: reports what is there and what is missing, each with its remedy
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor_i.h"
#include "rundir.h"

static const char help[] =
"Usage: singvgpu doctor [OPTION]...\n"
"Says what is there and what is missing for GPU jobs, and what to do about it.\n"
"\n"
"  -j, --json  the same as JSON\n"
"      --help  print this and exit\n"
"\n"
"The exit status is 0 if a job can run, 1 if none can.\n";

static const struct option longs[] = {
	{ "json", no_argument, NULL, 'j' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static const char *const words[] = { "ok", "warn", "missing" };

static void runtime_folder(struct doctor *d)
{
	struct rundir_job *jobs;
	struct why why = { 0 };
	struct rundir dir;
	int n, stale = 0, live = 0;

	n = rundir_list(&jobs, RUNDIR_HERE, NULL);
	for (int i = 0; i < n; i++) {
		live += jobs[i].live;
		stale += !jobs[i].live;
	}
	if (n >= 0)
		rundir_list_free(jobs, n);
	if (rundir_create(&dir, &why)) {
		say("%s", why.text);
		found_fatal(d, "runtime folder", "Make $XDG_RUNTIME_DIR, or /tmp, a folder that "
			    "you can write to.", "no folder for running jobs can be created");
		return;
	}
	if (stale)
		found(d, "runtime folder", WARN, "'singvgpu ps' removes them.",
		      "%d killed job%s left a folder behind", stale, stale > 1 ? "s have" : " has");
	else
		found(d, "runtime folder", OK, NULL, "%.*s, %d job%s running",
		      (int)(strrchr(dir.path, '/') - dir.path), dir.path, live,
		      live == 1 ? "" : "s");
	rundir_remove(&dir);
}

/* ------------------------------------------------------------------------------ report */

static void conclusion(const struct doctor *d, char *text, size_t size)
{
	if (d->cannot)
		snprintf(text, size, "no job can run: see '%s'", d->cannot);
	else
		snprintf(text, size, "a job can run on %s%s%s",
			 d->nvidia ? "NVIDIA's driver" : "", d->nvidia && d->soft ? " and on " : "",
			 d->soft ? "the soft device" : "");
}

static void table(const struct doctor *d)
{
	const char *const colour[] = { "\033[32m", "\033[33m", "\033[31m" };
	bool tty = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
	char text[160];

	for (int i = 0; i < d->n; i++) {
		const struct finding *f = &d->found[i];

		printf("%s%-7s%s %-15s %s\n", tty ? colour[f->verdict] : "", words[f->verdict],
		       tty ? "\033[0m" : "", f->name, f->detail);
		if (*f->remedy)
			printf("        %-15s remedy: %s\n", "", f->remedy);
	}
	conclusion(d, text, sizeof(text));
	printf("\n%s\n", text);
}

static void json(const struct doctor *d)
{
	struct json j = { .out = stdout };
	char text[160];

	conclusion(d, text, sizeof(text));
	json_open(&j, NULL, '{');
	json_int(&j, "version", 1);
	json_bool(&j, "can_run", !d->cannot);
	json_string(&j, "conclusion", text);
	json_open(&j, "findings", '[');
	for (int i = 0; i < d->n; i++) {
		json_open(&j, NULL, '{');
		json_string(&j, "name", d->found[i].name);
		json_string(&j, "verdict", words[d->found[i].verdict]);
		json_string(&j, "detail", d->found[i].detail);
		json_string(&j, "remedy", d->found[i].remedy);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
}

int doctor_main(int argc, char **argv)
{
	static struct doctor d;
	bool as_json = false;
	int c;

	while ((c = getopt_long(argc, argv, "jh", longs, NULL)) != -1) {
		switch (c) {
		case 'j':
			as_json = true;
			break;
		case 'h':
			fputs(help, stdout);
			return 0;
		default:
			return say_usage("doctor", "that option is not known");
		}
	}
	if (optind != argc)
		return say_usage("doctor", "'%s' is one argument too many", argv[optind]);
	if (places_find(&d.places))
		return 1;
	doctor_gpu(&d);
	runtime_folder(&d);
	doctor_host(&d);
	doctor_criu(&d);
	if (as_json)
		json(&d);
	else
		table(&d);
	places_free(&d.places);
	return d.cannot ? 1 : 0;
}
