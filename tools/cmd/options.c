// SPDX-License-Identifier: Apache-2.0
/*
 * options.c - reads and checks the options that `run` and `trace` share
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <getopt.h>

#include "ckpt_bring.h"
#include "ckpt_i.h"
#include "options.h"
#include "windows.h"

void options_default(struct job_options *opt)
{
	memset(opt, 0, sizeof(*opt));
	opt->ranks = 1;
	opt->grace_ms = 10000;
	opt->collective_ms = 600000;
	opt->preempt_ms = 30000;
	opt->share = SHARE_AUTO;
}

static int bad(const char *command, const char *what, const char *is)
{
	return say_usage(command, "%s '%s' is not %s", what, optarg, is);
}

static int parse_on(const char *text, struct seating_on *on, const char *command)
{
	int err = seating_on_parse(text, on);

	if (err == -ERANGE)
		return say_usage(command, "--on 0 says that the job is to have no device; --on 0, with a comma puts all on "
				 "device 0");
	return !err ? 0 : say_usage(command, "--on '%s' is neither a number of devices, nor a list of such, nor a device "
				    "with a comma", text);
}

int options_share(const char *text, enum seating_share *share, const char *command)
{
	*share = seating_share_parse(text);
	return *share ? 0 : say_usage(command, "--share '%s' is not auto, together, slices or never", text);
}

int options_on_where(const char *text, struct seating_on *on, char **where, const char *command)
{
	int status = parse_on(text, on, command);

	*where = NULL;
	if (status)
		return status;
	if (asprintf(where, BRING_ON "%s", text) >= 0)
		return 0;
	*where = NULL;
	return EXIT_OURS;
}

int options_parse(struct job_options *opt, int c, const char *command)
{
	struct sv_window windows[SV_WINDOWS_MAX];

	switch (c) {
	case 'h':
		opt->help = true;
		return 0;
	case 'n':
		if (parse_int(optarg, 1, JOB_RANKS_MAX, &opt->ranks))
			return bad(command, "--ranks", "a number from 1 to 256");
		opt->ranked = true;
		return 0;
	case OPTION_DEVICES:
		if (parse_int(optarg, 1, JOB_DEVICES_MAX, &opt->devices))
			return bad(command, "--devices", "a number from 1 to 16");
		return 0;
	case OPTION_ON:
		return parse_on(optarg, &opt->on, command);
	case OPTION_DRIVER:
		free(opt->driver);
		opt->driver = realpath(optarg, NULL);
		if (!opt->driver) {
			say_errno(errno, "--driver %s", optarg);
			return EXIT_OURS;
		}
		return 0;
	case OPTION_MEMORY:
		if (parse_size(optarg, &opt->memory) || !opt->memory)
			return bad(command, "--memory", "a size, such as 512M or 4G");
		return 0;
	case OPTION_WINDOW:
		if (sv_windows_parse(optarg, windows) < 1)
			return bad(command, "--window", "BASE:LEN, multiples of 2 MiB, such as "
				   "0x300000000000:512G, or several behind commas");
		opt->window = optarg;
		return 0;
	case OPTION_BACKEND:
		if (strcmp(optarg, "auto") && strcmp(optarg, "kmod") && strcmp(optarg, "memfd"))
			return bad(command, "--backend", "auto, kmod or memfd");
		opt->backend = optarg;
		return 0;
	case OPTION_LOG:
		free(opt->log);
		opt->log = options_path(optarg);
		return opt->log ? 0 : EXIT_OURS;
	case OPTION_GRACE:
		if (parse_seconds(optarg, &opt->grace_ms))
			return bad(command, "--grace", "a number of seconds");
		return 0;
	case OPTION_REDUCTION:
		if (strcmp(optarg, "tree") && strcmp(optarg, "nccl"))
			return bad(command, "--reduction", "tree or nccl");
		opt->reduction = optarg;
		return 0;
	case OPTION_SHARE:
		return options_share(optarg, &opt->share, command);
	case OPTION_CLOSE_FDS:
		opt->close_fds = true;
		return 0;
	case OPTION_COLLECTIVE:
		if (parse_seconds(optarg, &opt->collective_ms))
			return bad(command, "--collective-timeout", "a number of seconds");
		return 0;
	}
	return say_usage(command, "that option is not known, or lacks its value");
}

char *options_path(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	char *real;

	if (fd < 0) {
		say_errno(errno, "%s cannot be written", path);
		return NULL;
	}
	close(fd);
	real = realpath(path, NULL);
	if (!real)
		say_errno(errno, "%s", path);
	return real;
}

int options_trust_owner(const char *text, uid_t *uid)
{
	struct why why = { 0 };

	if (!ckpt_trust_owner(text, uid, &why))
		return 0;
	say("%s", why.text);
	return EXIT_OURS;
}

void options_free(struct job_options *opt, struct places *places)
{
	free(opt->driver);
	free(opt->log);
	free(opt->trace);
	free(opt->store);
	free(opt->criu);
	places_free(places);
}

int options_finish(struct job_options *opt, struct places *places)
{
	char path[PATH_MAX];

	if (places_find(places))
		return EXIT_OURS;
	if (strpbrk(places->libdir, ":;")) {
		say("%s: libraries in a folder with ':' or ';' in its name cannot be preloaded",
		    places->libdir);
		return EXIT_OURS;
	}
	snprintf(path, sizeof(path), "%s/libcuda.so.1", places->libdir);
	if (access(path, R_OK)) {
		say_errno(errno, "the stand-in %s", path);
		return EXIT_OURS;
	}
	if (!opt->driver && !opt->devices && places_nvidia_devices()) {
		opt->driver = places_nvidia(places);
		if (!opt->driver) {
			say("a GPU is here (/dev/nvidia* or /dev/dxg), but the libcuda.so.1 of its driver was "
			    "not found: --driver PATH names it, --devices 1 uses the soft device");
			return EXIT_OURS;
		}
	}
	opt->sees = opt->devices ?: opt->ranks;
	/* Unless somebody has said how many virtual devices there are, --on gets those that it needs. */
	if (!opt->driver && opt->on.given && !opt->devices && !getenv("SINGVGPU_SOFT_DEVICES")) {
		opt->devices = opt->ranks > seating_on_end(&opt->on) ? opt->ranks : seating_on_end(&opt->on);
		if (opt->devices > JOB_DEVICES_MAX)
			opt->devices = JOB_DEVICES_MAX;
	}
	if (!opt->driver)
		opt->driver = strdup(places->softcuda);
	if (!opt->driver)
		return EXIT_OURS;
	if (opt->reduction && !strcmp(opt->reduction, "nccl"))
		say("--reduction nccl: sums follow NCCL's own order, so their bits may change with the devices, and "
		    "from one run to the next");
	return 0;
}
