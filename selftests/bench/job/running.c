// SPDX-License-Identifier: Apache-2.0
/*
 * running.c - a job that a bench starts, follows and ends; see running.h
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../report.h"
#include "running.h"

#define WAIT_S	300	/* only what hangs needs as long */

char build[256], dir[400], job_dir[500];
int turns = 3;
bool by_slices;
pid_t job;

int shell(const char *fmt, ...)
{
	char cmd[4096];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof(cmd), fmt, ap);
	va_end(ap);
	return system(cmd);
}

void new_folder(void)
{
	static int number;

	snprintf(job_dir, sizeof(job_dir), "%s/%d", dir, number++);
	if (mkdir(job_dir, 0700))
		die("%s: %s", job_dir, strerror(errno));
}

void start_script(const char *script)
{
	job = fork();
	if (job)
		return;
	setsid();
	if (chdir(job_dir))
		_exit(127);
	execl("/bin/sh", "sh", "-c", script, (char *)NULL);
	_exit(127);
}

void start(int ranks, int on, const char *fmt, ...)
{
	char command[1024], script[4096];
	va_list ap;

	new_folder();
	va_start(ap, fmt);
	vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	snprintf(script, sizeof(script), "exec %s/tools/singvgpu run --store store -n %d --devices %d --on %d%s -- "
		 "%s/%s >out 2>err </dev/null", build, ranks, ranks, on, by_slices ? " --share slices" : "", build, command);
	start_script(script);
}

int count_lines(const char *text)
{
	char path[600], line[512];
	int n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/out", job_dir);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return n;
}

void wait_lines(const char *text, int n)
{
	double end = now_s() + WAIT_S;

	while (count_lines(text) < n) {
		if (now_s() > end || waitpid(job, NULL, WNOHANG))
			die("the job ends, or stands still: see %s", job_dir);
		usleep(5000);
	}
}

void go(int stage)
{
	if (shell(": >%s/go.%d", job_dir, stage))
		die("%s: %s", job_dir, strerror(errno));
}

void end(int sig)
{
	int status = 0;

	if (job <= 0)
		return;
	if (sig)
		kill(job, sig);
	while (waitpid(job, &status, 0) < 0 && errno == EINTR)
		;
	job = 0;
	if (!sig && status)
		die("the job has failed: see %s", job_dir);
}

static void end_at_exit(void)
{
	end(SIGTERM);
}

/* ------------------------------------------------------------------------------------------- */

static const struct option longs[] = {
	{ "turns", required_argument, NULL, 't' },
	{ "dir", required_argument, NULL, 'd' },
	{ "only", required_argument, NULL, 'o' },
	{ 0 },
};

static void remove_work(void *arg)
{
	(void)arg;
	if (!getenv("SINGVGPU_KEEP"))
		shell("rm -rf %s", dir);
}

int run_parts(const char *name, const struct part *parts, size_t n, int argc, char **argv)
{
	const char *only = NULL, *at = NULL;
	char path[512];
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 't')
			turns = atoi(optarg) > 0 && atoi(optarg) < 16 ? atoi(optarg) : 1;
		else if (c == 'd')
			at = optarg;
		else if (c == 'o')
			only = optarg;
		else
			return 2;
	}
	if (geteuid())
		die("CRIU needs root");
	if (!realpath(getenv("SINGVGPU_BUILD") ?: "build", path) || strlen(path) > 200)
		die("there is no build");
	strcpy(build, path);
	shell("mkdir -p %s/bench", build);
	snprintf(dir, sizeof(dir), "%.200s%s/%s.XXXXXX", at ?: build, at ? "" : "/bench", name);
	if (!mkdtemp(dir) || !realpath(dir, path) || strlen(path) > 300)
		die("%s: %s", dir, strerror(errno));
	strcpy(dir, path);
	guard(remove_work, NULL);
	atexit(end_at_exit);
	for (size_t i = 0; i < n; i++)
		if (!only || !strcmp(only, parts[i].name))
			parts[i].run();
	snprintf(path, sizeof(path), "%s/bench/%s.json", build, name);
	write_json(optind < argc ? argv[optind] : path);
	return 0;
}
