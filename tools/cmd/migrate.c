// SPDX-License-Identifier: Apache-2.0
/*
 * migrate.c - `singvgpu migrate`: takes a checkpoint, which the job's own supervisor then restores
 * on another device here, or through ssh on another host
 *
 * Between the publication and the job's end (accept) the target checks whether it can restore the
 * checkpoint. If it cannot, the job runs on where it is.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_bring.h"
#include "ckpt_take.h"

#define BACK_MS		600000	/* for the job to be restored */

static const char help[] =
"Usage: singvgpu migrate [OPTION]... JOB --to DEVICE|HOST\n"
"Moves a running job to another device of this host (a number, counted from 0), or to\n"
"another host that reaches the store. Its `singvgpu run` stays: output, signals and\n"
"exit status go through it as before.\n"
"\n"
"      --to DEVICE|HOST   where to\n"
"      --store DIR        the way (see singvgpu checkpoint --help)\n"
TRUST_HELP
"      --ssh COMMAND      how a host is reached (default $SINGVGPU_SSH, else ssh); COMMAND\n"
"                         gets the host and a command line as its last arguments\n"
"      --there COMMAND    the singvgpu program on that host (default singvgpu)\n"
"      --timeout SECONDS, --freeze SECONDS, --criu PATH, -q, --quiet\n"
"                         as with singvgpu checkpoint\n"
"      --help             print this and exit\n"
"\n"
"If anything fails before the checkpoint is whole and the target has accepted it, the job\n"
"runs on where it is.\n";

enum { TO = 700, TRUST, SSH, THERE };

static const struct option longs[] = {
	{ "to", required_argument, NULL, TO },
	TAKE_LONG,
	{ "trust-owner", required_argument, NULL, TRUST },
	{ "ssh", required_argument, NULL, SSH },
	{ "there", required_argument, NULL, THERE },
	{ "quiet", no_argument, NULL, 'q' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

struct args {
	struct take_options take;
	const char *to, *job;
	char *ssh, *there;
	uid_t trust;
	long device;		/* -1: to is a host */
	bool quiet, help;
};

static int option(struct args *a, int c)
{
	switch (c) {
	case TO:
		a->to = optarg;
		return 0;
	case TRUST:
		return ckpt_trust_owner(optarg, &a->trust) ? -ENOENT : 0;
	case SSH:
		a->ssh = optarg;
		return 0;
	case THERE:
		a->there = optarg;
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

static int parse(struct args *a, int argc, char **argv)
{
	char *ssh = getenv("SINGVGPU_SSH");
	int c, bad;

	a->ssh = ssh && *ssh ? ssh : "ssh";
	a->there = "singvgpu";
	while ((c = getopt_long(argc, argv, "qh", longs, NULL)) != -1) {
		bad = option(a, c);
		if (bad == -ENOENT)
			return EXIT_OURS;
		if (bad > 0)
			return say_usage("migrate", "that option is not known, or lacks its value");
		if (bad)
			return say_usage("migrate", "'%s' is not a number of seconds", optarg);
	}
	if (a->help)
		return 0;
	if (optind + 1 != argc || !a->to)
		return say_usage("migrate", a->to ? "one job, please (singvgpu ps)" :
				 "where to? (--to DEVICE or --to HOST)");
	a->job = argv[optind];
	if (parse_int(a->to, 0, JOB_DEVICES_MAX - 1, &a->device))
		a->device = -1;
	if (a->device < 0 && (!*a->to || *a->to == '-'))
		return say_usage("migrate", "--to '%s' is neither a device nor a host", a->to);
	return 0;
}

/* -------------------------------------------------------------------------------- asking */

/* Asks the other host whether it can restore the checkpoint. Its messages go to our stderr. */
static int ask_host(const struct args *a, const char *store, const char *id, struct why *why)
{
	char trust[24], *command;
	int status;

	snprintf(trust, sizeof(trust), "%u", a->trust);
	command = ckpt_remote_command(a->there, store, trust, id, "--check");
	status = command ? ckpt_ssh(a->ssh, a->to, command) : -ENOMEM;
	free(command);
	return status ? why_set(why, -EHOSTUNREACH, "%s does not take the job (status %d of `%s %s …`)",
				a->to, status, a->ssh, a->to) : 0;
}

static int accept(void *arg, const char *store, const char *id, struct why *why)
{
	const struct args *a = arg;
	struct store *s;
	int err;

	if (a->device < 0)
		return ask_host(a, store, id, why);
	err = store_open_trusted(&s, store, STORE_WAIT, a->trust, why);
	store_close(s);
	return err;
}

/* ------------------------------------------------------------------------------ waiting */

/*
 * Restored on this host, the supervisor writes the note "restored". Before it becomes the
 * connection to another host, it removes the job's folder.
 */
static int wait_back(const struct rundir_job *job, const char *id, long device)
{
	uint64_t until = now_ms() + BACK_MS;
	char *word[4], *text;
	bool moved;
	int n;

	while (now_ms() < until) {
		if (access(job->path, F_OK) && device < 0)
			return 0;
		if (access(job->path, F_OK))
			break;
		n = ckpt_read_note(job->path, "restored", word, 4, &text);
		if (n >= 2 && !strcmp(word[0], id)) {
			moved = atol(word[1]) == device;
			free(text);
			if (!moved)
				say("job %s could not go to device %ld and runs on where it was",
				    job->id, device);
			return moved ? 0 : -ENODEV;
		}
		free(text);
		usleep(20000);
	}
	say("job %s has not come back; it is in checkpoint %s", job->id, id);
	return -ESRCH;
}

static int migrate(struct args *a, const struct rundir_job *job)
{
	char number[24], trust[24];
	char *host[] = { "host", a->to ? (char *)a->to : "", a->ssh, a->there, trust };
	char *device[] = { "device", number, trust };
	struct take_result r;
	struct phases ps;
	int err;

	snprintf(number, sizeof(number), "%ld", a->device);
	a->take.next = a->device < 0 ? host : device;
	snprintf(trust, sizeof(trust), "%u", a->trust);
	a->take.n_next = a->device < 0 ? 5 : 3;
	a->take.accept = accept;
	a->take.arg = a;
	phases_start(&ps, "migrate", job->id, a->quiet);
	err = ckpt_take(job, &a->take, &ps, &r);
	if (err)
		return EXIT_OURS;
	if (!a->quiet)
		phases_table(&ps, stderr);
	phases_clear(&ps);
	puts(r.id);
	return wait_back(job, r.id, a->device) ? EXIT_OURS : 0;
}

int migrate_main(int argc, char **argv)
{
	struct args a = { .take = TAKE_DEFAULT };
	int status = parse(&a, argc, argv);
	struct rundir_job *job;

	if (status || a.help) {
		if (!status)
			fputs(help, stdout);
		return status;
	}
	job = ckpt_find_job(a.job);
	if (!job)
		return EXIT_OURS;
	ckpt_heed_signals();
	status = migrate(&a, job);
	rundir_list_free(job, 1);
	return status;
}
