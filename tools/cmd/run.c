// SPDX-License-Identifier: Apache-2.0
/*
 * run.c - `singvgpu run`: its options, and the front process, which forwards signals
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt_own.h"
#include "history.h"
#include "job.h"
#include "libs.h"
#include "options.h"
#include "own_options.h"
#include "passed.h"
#include "watchers.h"

/* -------------------------------------------------------------------------------- front */

/* Blocks the signals to forward. Ignored ones (nohup) stay ignored, by us and by our children. */
static void set_signals(struct job *job, sigset_t *handled)
{
	static const int list[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP,
				    SIGCONT, SIGWINCH };
	struct sigaction was;

	sigemptyset(handled);
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		if (!sigaction(list[i], NULL, &was) && was.sa_handler != SIG_IGN)
			sigaddset(handled, list[i]);
	sigaddset(handled, SIGCHLD);
	sigaction(SIGCHLD, NULL, &job->was.chld);
	sigaction(SIGPIPE, NULL, &job->was.pipe);
	sigaction(SIGTTOU, NULL, &job->was.ttou);
	for (int i = 0; i < JOB_LIMITS; i++)
		getrlimit(job_limits[i], &job->was.limit[i]);
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, handled, &job->was.mask);
}

/*
 * A single rank that reads a terminal stays in our process group, so that the terminal's keys and
 * job control reach it as without us.
 */
static bool has_terminal(void)
{
	int fd = isatty(STDIN_FILENO) ? open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY) : -1;

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

static int end_of(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The supervisor was killed, so its children are ours: ends them and removes the folder. */
static void take_over(struct job *job)
{
	for (int i = 0; i < 500 && family_kill(NULL, 0, SIGKILL); i++) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		usleep(10000);
	}
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	history_close(job->dir.path, EXIT_OURS, "its supervisor was killed");
	rundir_remove(&job->dir);
}

static int front(struct job *job, pid_t supervisor, const sigset_t *handled)
{
	siginfo_t si;
	int status;

	for (;;) {
		if (sigwaitinfo(handled, &si) < 0)
			continue;
		if (si.si_signo == SIGCHLD) {
			if (waitpid(supervisor, &status, WNOHANG) == supervisor)
				break;
			continue;
		}
		/* The kernel has sent a key's signal to a rank in our group already. */
		if (si.si_code != SI_KERNEL || !job->terminal)
			kill(supervisor, si.si_signo);
		if (si.si_signo == SIGTSTP)
			raise(SIGSTOP);
	}
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	say("the supervisor %d was killed by SIG%s; the job is ended", supervisor,
	    sigabbrev_np(WTERMSIG(status)) ?: "?");
	take_over(job);
	return end_of(status);
}

/* The number of devices that the proxies will find; ranks are spread over them. */
static int devices(const struct job_options *opt)
{
	const char *soft = getenv("SINGVGPU_SOFT_DEVICES");
	long n = opt->devices ?: places_nvidia_devices();

	if (!n && (!soft || parse_int(soft, 1, JOB_DEVICES_MAX, &n)))
		n = 1;
	return n;
}

/*
 * Finds the physical devices that --on gives the job. -EINVAL: they do not fit, or ranks would share one that may not. A
 * restore's are in its checkpoint (places_make()).
 */
static int place(struct job *job, struct why *why)
{
	const struct job_options *opt = job->opt;
	struct seating t;
	int err = 0;

	if (job->restore)
		return 0;
	if (opt->share == SHARE_SLICES && opt->ranks < 2)
		return why_set(why, -EINVAL, "--share slices is for ranks, which --ranks starts: processes that the command starts itself "
			       "share a device together");
	if (opt->on.given)
		err = seating_on_map(&opt->on, opt->sees, job->devices, job->map, why);
	if (err)
		return err;
	job_seating(job, &t);
	if (opt->share == SHARE_NEVER && seating_crowded(&t) >= 0)
		return why_set(why, -EINVAL, "--share never: there would be several ranks on device %d", seating_crowded(&t));
	if (!opt->on.given || !opt->reduction || strcmp(opt->reduction, "nccl"))
		return 0;
	for (int l = 1; l < opt->sees; l++)
		if (memchr(job->map, job->map[l], l))
			return why_set(why, -EINVAL, "--reduction nccl: NCCL takes no two ranks on one device, and --on puts "
				       "several on device %d", job->map[l]);
	return 0;
}

static int run(struct job *job)
{
	struct why why = { 0 };
	sigset_t handled;
	int end[2], status;
	pid_t pid;

	job->devices = devices(job->opt);
	if (place(job, &why)) {
		say("%s", why.text);
		return EXIT_OURS;
	}
	if (job->opt->close_fds || job->restore)
		passed_close();
	else
		passed_tell();
	job->front = getpid();
	job->group = getpgrp();
	/* Histories that a limit of files leaves no room for are lost, and the job runs. */
	sigaction(SIGXFSZ, NULL, &job->was.xfsz);
	signal(SIGXFSZ, SIG_IGN);
	rundir_sweep();
	if (job->restore && job->restore->tree ?
	    rundir_create_as(&job->dir, job->restore->was->path, &why) : rundir_create(&job->dir, &why)) {
		say("%s", why.text);
		return EXIT_OURS;
	}
	set_signals(job, &handled);
	job->terminal = job->restore ? job->restore->was->terminal :
				       job->opt->ranks == 1 && has_terminal();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (pipe2(end, O_CLOEXEC)) {
		say_errno(errno, "a pipe");
		rundir_remove(&job->dir);
		return EXIT_OURS;
	}
	pid = fork();
	if (!pid) {
		close(end[1]);
		job->front_pipe = end[0];
		job->watchers = watchers_of_job();
		status = job_supervise(job, &handled);
		say_finish();
		_exit(status);
	}
	if (pid < 0) {
		say_errno(errno, "the supervisor cannot be started");
		rundir_remove(&job->dir);
		return EXIT_OURS;
	}
	passed_close();
	if (job->restore && job->restore->leave)
		job->restore->leave(job->restore->arg);
	close(end[0]);
	status = front(job, pid, &handled);
	close(end[1]);
	return status;
}

int job_run(const struct job_options *opt, const struct places *places,
	    const struct job_restore *restore)
{
	struct job job = { .opt = opt, .places = places, .restore = restore, .again = own_again, .tell = say };

	return run(&job);
}

/* ------------------------------------------------------------------------------ options */

int job_main(int argc, char **argv, job_parse parse, const char *help)
{
	struct places places = { 0 };
	struct job_options opt;
	int status;

	options_default(&opt);
	status = parse(&opt, argc, argv);
	if (!status && opt.help)
		fputs(help, stdout);
	else if (!status)
		status = options_finish(&opt, &places);
	if (!status && !opt.help) {
		libs_keep(&places);
		status = job_run(&opt, &places, NULL);
	}
	options_free(&opt, &places);
	return status;
}

static const char help[] =
"Usage: singvgpu run [OPTION]... [--] COMMAND [ARG]...\n"
"Runs a CUDA program, unchanged, with its GPU calls executed by a proxy process.\n"
"\n"
"  -n, --ranks N        start the command N times, as torchrun does\n"
OPTIONS_HELP
"  -t, --trace FILE     write what the proxies executed to FILE, as JSON for Perfetto\n"
OWN_HELP
"      --help           print this and exit\n"
"\n"
"With -n each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR\n"
"and MASTER_PORT in its environment. Output of several ranks has \"[rank] \" before each\n"
"line; the first one reads stdin. SIZE is bytes, or has a unit K, M, G or T.\n"
"\n"
"The exit status is the command's, or 128 + the signal that killed it; of several\n"
"ranks that of the first to fail. 125: singvgpu itself failed, 126: the command\n"
"cannot be executed, 127: it was not found, 75: it was checkpointed and ended.\n";

static const struct option longs[] = {
	OPTIONS_LONG,
	{ "trace", required_argument, NULL, 't' },
	OWN_LONG,
	{ 0 },
};

static int parse_options(struct job_options *opt, int argc, char **argv)
{
	struct why why = { 0 };
	int c, status = 0;

	while (!status &&
	       (c = getopt_long(argc, argv, "+" OPTIONS_SHORT "t:", longs, NULL)) != -1) {
		if (c == 't') {
			free(opt->trace);
			opt->trace = options_path(optarg);
			status = opt->trace ? 0 : EXIT_OURS;
		} else {
			status = own_option(opt, c, "run");
			if (status < 0)
				status = options_parse(opt, c, "run");
		}
	}
	if (!status && !opt->help && optind == argc)
		status = say_usage("run", "no command is given");
	if (!status && !opt->help && own_check(opt, &why)) {
		say("%s", why.text);
		status = EXIT_OURS;
	}
	opt->command = argv + optind;
	return status;
}

int run_main(int argc, char **argv)
{
	return job_main(argc, argv, parse_options, help);
}
