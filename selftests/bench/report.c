// SPDX-License-Identifier: Apache-2.0
/*
 * report.c - stores and prints a bench's metrics
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "report.h"

#define METRICS_MAX 128

static struct {
	char name[64];
	double value;
	const char *unit;
} metrics[METRICS_MAX];
static int n_metrics;

void die(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

void guard(void (*clean)(void *arg), void *arg)
{
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("fork: %s", strerror(errno));
	if (!pid)
		return;
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	clean(arg);
	exit(status ? 1 : 0);
}

void metric(const char *name, double value, const char *unit)
{
	if (n_metrics == METRICS_MAX)
		die("more than %d metrics", METRICS_MAX);
	snprintf(metrics[n_metrics].name, sizeof(metrics[0].name), "%s", name);
	metrics[n_metrics].value = value;
	metrics[n_metrics++].unit = unit;
	printf("%-34s %12.*f %s\n", name, strcmp(unit, "B") ? 3 : 0, value, unit);
	fflush(stdout);
}

void metric_bar(const char *name, double value, double least, double most)
{
	bool low = !isnan(least);

	if (isnan(value)) {
		printf("# %s: there is nothing to compare with\n", name);
		return;
	}
	metric(name, value, "ratio");
	printf("# goal: at %s %.3f: %s\n", low ? "least" : "most", low ? least : most,
	       (low ? value >= least : value <= most) ? "met" : "NOT met");
}

double metric_get(const char *name)
{
	for (int i = 0; i < n_metrics; i++)
		if (!strcmp(metrics[i].name, name))
			return metrics[i].value;
	return NAN;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *v, int n)
{
	if (!n)
		die("nothing was measured");
	qsort(v, n, sizeof(*v), by_value);
	return v[n / 2];
}

double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

void write_json(const char *path)
{
	FILE *f = fopen(path, "w");

	if (!f)
		die("%s: %s", path, strerror(errno));
	fprintf(f, "[\n");
	for (int i = 0; i < n_metrics; i++)
		fprintf(f, "  {\"metric\": \"%s\", \"value\": %.4f, \"unit\": \"%s\"}%s\n",
			metrics[i].name, metrics[i].value, metrics[i].unit,
			i + 1 < n_metrics ? "," : "");
	fprintf(f, "]\n");
	if (fclose(f))
		die("%s: %s", path, strerror(errno));
}
