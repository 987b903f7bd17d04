// SPDX-License-Identifier: Apache-2.0
/*
 * migrate.c - `singvgpu migrate` and `singvgpu resize`: takes a checkpoint, which the job's own supervisor then
 * restores on other devices here, or through ssh on another host
 *
 * Between the publication and the job's end (ask_target) the target checks whether it can restore the
 * checkpoint. If it cannot, the job runs on where it is.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_bring.h"
#include "ckpt_places.h"
#include "ckpt_take.h"
#include "options.h"
#include "taking.h"

#define BACK_MS		600000	/* for the job to be restored */

#define HELP_FIT \
"      --share WAY        how ranks share a device from now on (see singvgpu run --help);\n" \
"                         auto decides anew what fits\n" \
"      --dry-run          only print which rank would be on which device, and its memory\n" \
"      --below-peak       allow a device that could not hold the most that its ranks had,\n" \
"                         if it holds what they have now\n"

#define HELP_TAKE \
"      --at-step[=SECONDS], --timeout SECONDS, --freeze SECONDS, --outside,\n" \
"      --criu PATH, -q, --quiet\n" \
"                         as with singvgpu checkpoint\n" \
"      --no-wait          do not wait until the job runs again\n" \
"      --help             print this and exit\n"

static const char migrate_help[] =
"Usage: singvgpu migrate [OPTION]... JOB --to DEVICE|DEVICE,...|OLD=NEW,...|HOST\n"
"Moves a running job to another device of this host (a number, counted from 0), to several\n"
"(a list as with --on, or what had device OLD gets device NEW), or to another host that\n"
"reaches the store. Its\n"
"`singvgpu run` stays: output, signals and exit status go through it as before.\n"
"\n"
"      --to WHERE         where to\n"
"      --on M|A,B,...     to devices of this host, as with singvgpu resize\n"
HELP_FIT
"      --store DIR        the way (see singvgpu checkpoint --help)\n"
TRUST_HELP
"      --ssh COMMAND      how a host is reached (default $SINGVGPU_SSH, else ssh); COMMAND\n"
"                         gets the host and a command line as its last arguments\n"
"      --there COMMAND    the singvgpu program on that host (default singvgpu)\n"
HELP_TAKE
"\n"
"If anything fails before the checkpoint is whole and the target has accepted it, the job\n"
"runs on where it is.\n";

static const char resize_help[] =
"Usage: singvgpu resize [OPTION]... JOB --on M|A,B,...\n"
"Gives a running job more or fewer devices of this host. The job does not notice: it sees\n"
"as many devices as before, has as many ranks, and computes the same bits. Its\n"
"`singvgpu run` stays. With --share alone, the ranks of a device share it in another way.\n"
"\n"
"      --on M             on the first M devices\n"
"      --on A,B,...       device 0 of the job is device A of this host, 1 is B, and so on;\n"
"                         A, with a comma alone: all are device A\n"
HELP_FIT
"      --store DIR        where the job lies meanwhile (see singvgpu checkpoint --help)\n"
TRUST_HELP
HELP_TAKE
"\n"
"If anything fails before the checkpoint is whole, the job runs on where it is.\n";

enum { TO = 700, ON, SHARE, TRUST, SSH, THERE, DRY, BELOW_PEAK, NO_WAIT };

#define LONG_BOTH \
	TAKE_LONG, \
	{ "on", required_argument, NULL, ON }, \
	{ "share", required_argument, NULL, SHARE }, \
	{ "dry-run", no_argument, NULL, DRY }, \
	{ "below-peak", no_argument, NULL, BELOW_PEAK }, \
	{ "no-wait", no_argument, NULL, NO_WAIT }, \
	{ "trust-owner", required_argument, NULL, TRUST }, \
	{ "quiet", no_argument, NULL, 'q' }, \
	{ "help", no_argument, NULL, 'h' }

static const struct option migrate_longs[] = {
	LONG_BOTH,
	{ "to", required_argument, NULL, TO },
	{ "ssh", required_argument, NULL, SSH },
	{ "there", required_argument, NULL, THERE },
	{ 0 },
};

static const struct option resize_longs[] = { LONG_BOTH, { 0 } };

static const struct command {
	const char *name, *help, *where;
	const struct option *longs;
} migrate_command = { "migrate", migrate_help, "where to? (--to DEVICE or --to HOST)", migrate_longs },
  resize_command = { "resize", resize_help, "on how many devices? (--on M)", resize_longs };

struct args {
	const struct command *command;
	struct take_options take;
	const char *to, *job;	/* to: as bring_where_parse() takes it, or a host */
	char *on_text;		/* `to`, if --on is given */
	char supervisor[1100];	/* the same for the job's supervisor, with how its ranks share a device; or a host */
	enum seating_share share;
	char *ssh, *there;
	uid_t trust;
	struct bring_where where;	/* if it is here: */
	bool here;		/* not to another host */
	bool below_peak, no_wait, quiet, help;
};

/* --to or --on: one of them, once. */
static int where(struct args *a, int c)
{
	struct seating_on on;
	int status = 0;

	if (a->to)
		return say_usage(a->command->name, "where to is given twice");
	if (c == ON)
		status = options_on_where(optarg, &on, &a->on_text, a->command->name);
	a->to = a->on_text ?: optarg;
	if (!strncmp(a->to, BRING_SHARED, strlen(BRING_SHARED)))
		return say_usage(a->command->name, "--to '%s' is no device", a->to);
	return status;
}

/* 0, or an exit status with the reason printed. */
static int option(struct args *a, int c)
{
	int bad;

	switch (c) {
	case TO:
	case ON:
		return where(a, c);
	case SHARE:
		return options_share(optarg, &a->share, a->command->name);
	case TRUST:
		return options_trust_owner(optarg, &a->trust);
	case SSH:
		a->ssh = optarg;
		return 0;
	case THERE:
		a->there = optarg;
		return 0;
	case DRY:
		a->take.look_only = true;
		return 0;
	case BELOW_PEAK:
		a->below_peak = true;
		return 0;
	case NO_WAIT:
		a->no_wait = true;
		return 0;
	case 'q':
		a->quiet = true;
		return 0;
	case 'h':
		a->help = true;
		return 0;
	}
	bad = take_option(&a->take, c);
	if (bad > 0)
		return say_usage(a->command->name, "that option is not known, or lacks its value");
	return bad ? say_usage(a->command->name, "'%s' is not a number of seconds", optarg) : 0;
}

static int parse_args(struct args *a, int argc, char **argv)
{
	char *ssh = getenv("SINGVGPU_SSH");
	int c, status;

	a->ssh = ssh && *ssh ? ssh : "ssh";
	a->there = "singvgpu";
	while ((c = getopt_long(argc, argv, "qh", a->command->longs, NULL)) != -1) {
		status = option(a, c);
		if (status)
			return status;
	}
	if (a->help)
		return 0;
	if (optind + 1 != argc || (!a->to && !a->share))
		return say_usage(a->command->name, "%s", a->to || a->share ? "one job, please (singvgpu ps)" : a->command->where);
	a->job = argv[optind];
	a->here = !a->to || !bring_where_parse(a->to, &a->where);
	/* CRIU keeps connections that lead out of the job from breaking until it is back, soon. */
	a->take.outside |= a->here;
	if (!a->here && (!*a->to || *a->to == '-' || strchr(a->to, '=')))
		return say_usage(a->command->name, "--to '%s' is neither a device, nor OLD=NEW,OLD=NEW, "
				 "nor a host", a->to);
	if (!a->here && (a->take.look_only || a->below_peak || a->share))
		return say_usage(a->command->name, "--dry-run, --below-peak and --share are for devices of this host");
	snprintf(a->supervisor, sizeof(a->supervisor), "%s", a->to ?: "");
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

/* ------------------------------------------------------------------------------ memory */

static void print_places(const struct ckpt_facts *f, const struct seating *t)
{
	struct places_device d[SEATING_DEVICES];
	const struct ckpt_proxy *p;
	bool shared = false;
	int next = 0;

	printf("%-6s%-8s%-8s%-10s%10s%10s\n", "rank", "number", "device", "would be", "MiB now", "at most");
	while ((p = places_next(f, t, &next)))
		printf("%-6d%-8d%-8d%-10d%10llu%10llu\n", p->rank, facts_logical(p), p->info.device.ordinal,
		       seating_physical(t, p->rank, facts_logical(p)), (unsigned long long)p->info.mapped >> 20,
		       (unsigned long long)places_most(p) >> 20);
	places_memory(f, t, d);
	for (int i = 0; i < SEATING_DEVICES; i++) {
		shared |= d[i].sessions > 1;
		if (d[i].sessions)
			printf("device %d: %llu MiB now, at most %llu, of %llu\n", i, (unsigned long long)d[i].now >> 20,
			       (unsigned long long)d[i].most >> 20, (unsigned long long)d[i].total >> 20);
	}
	if (shared)
		puts(t->slices ? "shared by slices" : "shared together");
}

static int look(void *arg, const struct rundir_job *job, const struct ckpt_facts *facts, struct why *why)
{
	struct args *a = arg;
	struct seating t;
	int err;

	if (!a->here)
		return 0;
	if (a->share && !job->seating.share)
		return why_set(why, -ENOTSUP, "--share: the job's `singvgpu run` is older than this option");
	a->where.on.share = a->share;
	err = places_make(facts, job, &a->where.on, a->below_peak, &t, why);
	if (err)
		return err;
	if (a->take.look_only)
		print_places(facts, &t);
	else if (!a->to && t.slices == job->seating.slices && t.share == job->seating.share)
		return why_set(why, -EALREADY, "its ranks share devices so already");
	if (t.share)
		snprintf(a->supervisor, sizeof(a->supervisor), BRING_SHARE "%s", seating_share_word(t.share),
			 seating_share_word(t.slices ? SHARE_SLICES : SHARE_TOGETHER), a->where.text);
	a->take.keep = places_twice(facts, job, &t);
	return places_fit(facts, &t, !a->below_peak, why);
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
			moved = !a->here || !strcmp(word[1], a->supervisor);	/* the other host may be this one */
			if (moved && n > 2 && !a->quiet)
				say_text(word[2], strlen(word[2]));
			free(text);
			if (!moved)
				say(a->to ? "job %s could not go to %s and runs on where it was" :
				    "the ranks of job %s could not share devices otherwise%s, and it runs on as before", job->id,
				    a->on_text ? "the devices of --on" : a->to ?: "");
			return moved ? 0 : -ENODEV;
		}
		free(text);
		usleep(5000);
	}
	say("job %s has not come back; it is in checkpoint %s", job->id, id);
	return -ESRCH;
}

/*
 * Refuses what does not fit the job before the job is touched. How many devices another driver than the soft one has, the
 * proxies find out.
 */
static int check_on(const struct args *a, const struct rundir_job *job)
{
	uint8_t map[SEATING_DEVICES];
	struct why why = { 0 };

	if (!a->where.on.logical.given || !seating_on_map(&a->where.on.logical, job->seating.devices, job->devices, map, &why))
		return 0;
	say("%s", why.text);
	return -EINVAL;
}

static int migrate(struct args *a, const struct rundir_job *job)
{
	char trust[24];
	char *host[] = { "host", (char *)a->to, a->ssh, a->there, trust };
	char *device[] = { "device", a->supervisor, trust };
	struct take_result r;
	struct phases ps;
	uint64_t ended;
	int err;

	if (check_on(a, job))
		return EXIT_OURS;
	a->take.next = a->here ? device : host;
	snprintf(trust, sizeof(trust), "%u", a->trust);
	a->take.n_next = a->here ? 3 : 5;
	a->take.look = look;
	a->take.accept = ask_target;
	a->take.arg = a;
	phases_start(&ps, a->command->name, job->id, a->quiet);
	err = take_job(job, &a->take, &ps, &r);
	if (err)
		return EXIT_OURS;
	if (a->take.look_only)
		return 0;
	if (!a->quiet)
		phases_table(&ps);
	phases_clear(&ps);
	puts(r.id);
	fflush(stdout);
	ended = now_ms();
	if (a->no_wait)
		return 0;
	if (wait_back(job, r.id, a))
		return EXIT_OURS;
	if (!a->quiet && a->here)
		fprintf(stderr, "the job stood still for %.2f s\n", r.stood_ns / 1e9 + (now_ms() - ended) / 1e3);
	return 0;
}

static int command_main(const struct command *command, int argc, char **argv)
{
	struct args a = { .command = command, .take = TAKE_DEFAULT };
	int status = parse_args(&a, argc, argv);
	struct rundir_job *job = NULL;

	if (!status && a.help) {
		fputs(command->help, stdout);
	} else if (!status) {
		job = take_find_job(a.job);
		status = EXIT_OURS;
	}
	if (job) {
		ckpt_heed_signals();
		status = migrate(&a, job);
		rundir_list_free(job, 1);
	}
	free(a.on_text);
	return status;
}

int migrate_main(int argc, char **argv)
{
	return command_main(&migrate_command, argc, argv);
}

int resize_main(int argc, char **argv)
{
	return command_main(&resize_command, argc, argv);
}
