// SPDX-License-Identifier: Apache-2.0
/*
 * migrate.c - `singvgpu migrate`: takes a checkpoint, which the job's own supervisor then restores
 * on another device here, or through ssh on another host
 *
 * Between the publication and the job's end (ask_target) the target checks whether it can restore the
 * checkpoint. If it cannot, the job runs on where it is.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_bring.h"
#include "ckpt_take.h"
#include "options.h"
#include "taking.h"

#define BACK_MS		600000	/* for the job to be restored */

static const char help[] =
"Usage: singvgpu migrate [OPTION]... JOB --to DEVICE|DEVICE,...|OLD=NEW,...|HOST\n"
"Moves a running job to another device of this host (a number, counted from 0), to several\n"
"(one for each rank, or what had device OLD gets device NEW), or to another host that\n"
"reaches the store. Its\n"
"`singvgpu run` stays: output, signals and exit status go through it as before.\n"
"\n"
"      --to WHERE         where to\n"
"      --store DIR        the way (see singvgpu checkpoint --help)\n"
TRUST_HELP
"      --ssh COMMAND      how a host is reached (default $SINGVGPU_SSH, else ssh); COMMAND\n"
"                         gets the host and a command line as its last arguments\n"
"      --there COMMAND    the singvgpu program on that host (default singvgpu)\n"
"      --at-step[=SECONDS], --timeout SECONDS, --freeze SECONDS, --outside,\n"
"      --criu PATH, -q, --quiet\n"
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
	bool here;		/* not to another host */
	bool quiet, help;
};

static int option(struct args *a, int c)
{
	switch (c) {
	case TO:
		a->to = optarg;
		return 0;
	case TRUST:
		return options_trust_owner(optarg, &a->trust) ? -ENOENT : 0;
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

static int parse_args(struct args *a, int argc, char **argv)
{
	char *ssh = getenv("SINGVGPU_SSH");
	struct bring_where where;
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
	a->here = !bring_where_parse(a->to, &where);
	/* CRIU keeps connections that lead out of the job from breaking until it is back, soon. */
	a->take.outside |= a->here;
	if (!a->here && (!*a->to || *a->to == '-' || strchr(a->to, '=')))
		return say_usage("migrate", "--to '%s' is neither a device, nor OLD=NEW,OLD=NEW, "
				 "nor a host", a->to);
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
	status = command ? ckpt_ssh(a->ssh, a->to, command, say) : -ENOMEM;
	free(command);
	return status ? why_set(why, -EHOSTUNREACH, "%s does not take the job (status %d of `%s %s …`)",
				a->to, status, a->ssh, a->to) : 0;
}

static int ask_target(void *arg, const char *store, const char *id, struct why *why)
{
	const struct args *a = arg;
	struct store *s;
	int err;

	if (!a->here)
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
static int wait_back(const struct rundir_job *job, const char *id, const struct args *a)
{
	uint64_t until = now_ms() + BACK_MS;
	char *word[4], *text;
	bool moved;
	int n;

	while (now_ms() < until) {
		if (access(job->path, F_OK) && !a->here)
			return 0;
		if (access(job->path, F_OK))
			break;
		n = ckpt_read_note(job->path, "restored", word, 4, &text);
		if (n >= 2 && !strcmp(word[0], id)) {
			moved = !a->here || !strcmp(word[1], a->to);	/* the other host may be this one */
			free(text);
			if (!moved)
				say("job %s could not go to device %s and runs on where it was",
				    job->id, a->to);
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
	char trust[24];
	char *host[] = { "host", (char *)a->to, a->ssh, a->there, trust };
	char *device[] = { "device", (char *)a->to, trust };
	struct take_result r;
	struct phases ps;
	int err;

	a->take.next = a->here ? device : host;
	snprintf(trust, sizeof(trust), "%u", a->trust);
	a->take.n_next = a->here ? 3 : 5;
	a->take.accept = ask_target;
	a->take.arg = a;
	phases_start(&ps, "migrate", job->id, a->quiet);
	err = take_job(job, &a->take, &ps, &r);
	if (err)
		return EXIT_OURS;
	if (!a->quiet)
		phases_table(&ps);
	phases_clear(&ps);
	puts(r.id);
	return wait_back(job, r.id, a) ? EXIT_OURS : 0;
}

int migrate_main(int argc, char **argv)
{
	struct args a = { .take = TAKE_DEFAULT };
	int status = parse_args(&a, argc, argv);
	struct rundir_job *job;

	if (status || a.help) {
		if (!status)
			fputs(help, stdout);
		return status;
	}
	job = take_find_job(a.job);
	if (!job)
		return EXIT_OURS;
	ckpt_heed_signals();
	status = migrate(&a, job);
	rundir_list_free(job, 1);
	return status;
}
