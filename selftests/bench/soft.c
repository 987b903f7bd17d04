// SPDX-License-Identifier: Apache-2.0
/*
 * soft.c - how fast the soft device computes, beside this CPU's own code in the same run
 *
 *   build/selftests/bench/soft [OUT.json]
 *
 * soft_work does both, in turns; here are the medians and their ratios. Nothing is cached from
 * elsewhere: kernels are compiled before the first turn that counts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "report.h"

#define TURNS 7

/* By the clock; with _cpu, for each second of processors' time. */
static struct {
	const char *name, *as, *unit;
	double v[TURNS];
	int n;
} figures[] = {
	{ "cpu.sgemm", "cpu.sgemm_gflops", "GFLOP/s", { 0 }, 0 },
	{ "soft.sgemm", "soft.sgemm_gflops", "GFLOP/s", { 0 }, 0 },
	{ "soft.bf16", "soft.bf16_gflops", "GFLOP/s", { 0 }, 0 },
	{ "soft.conv", "soft.conv_gflops", "GFLOP/s", { 0 }, 0 },
	{ "cpu.triad", "cpu.triad_gbs", "GB/s", { 0 }, 0 },
	{ "soft.triad", "soft.triad_gbs", "GB/s", { 0 }, 0 },
	{ "cpu.sgemm_cpu", "cpu.sgemm_gflop_per_cpu_s", "GFLOP/s", { 0 }, 0 },
	{ "soft.sgemm_cpu", "soft.sgemm_gflop_per_cpu_s", "GFLOP/s", { 0 }, 0 },
	{ "soft.bf16_cpu", "soft.bf16_gflop_per_cpu_s", "GFLOP/s", { 0 }, 0 },
	{ "soft.conv_cpu", "soft.conv_gflop_per_cpu_s", "GFLOP/s", { 0 }, 0 },
	{ "cpu.triad_cpu", "cpu.triad_gb_per_cpu_s", "GB/s", { 0 }, 0 },
	{ "soft.triad_cpu", "soft.triad_gb_per_cpu_s", "GB/s", { 0 }, 0 },
};
#define NFIGURES (sizeof(figures) / sizeof(figures[0]))

static void keep(const char *line)
{
	char name[64];
	double v;

	if (sscanf(line, "%63s %lf", name, &v) != 2) {
		fputs(line, stderr);
		return;
	}
	for (size_t i = 0; i < NFIGURES; i++)
		if (!strcmp(figures[i].name, name) && figures[i].n < TURNS)
			figures[i].v[figures[i].n++] = v;
}

int main(int argc, char **argv)
{
	const char *build = getenv("SINGVGPU_BUILD") ? getenv("SINGVGPU_BUILD") : "build";
	char cmd[2048], path[512], line[512];
	FILE *f;
	int st;

	snprintf(cmd, sizeof(cmd), "LD_PRELOAD=%s/uproxy/softgpu/direct/libcuda.so.1 "
		 "%s/selftests/bench/soft_work %d", build, build, TURNS);
	f = popen(cmd, "r");
	while (f && fgets(line, sizeof(line), f))
		keep(line);
	st = f ? pclose(f) : -1;
	if (st)
		die("%s: status %d", cmd, WIFEXITED(st) ? WEXITSTATUS(st) : st);
	for (size_t i = 0; i < NFIGURES; i++)
		metric(figures[i].as, median(figures[i].v, figures[i].n), figures[i].unit);
	metric_bar("soft.sgemm_ratio", metric_get("soft.sgemm_gflops") /
		   metric_get("cpu.sgemm_gflops"), 0.15, NAN);
	metric_bar("soft.triad_ratio", metric_get("soft.triad_gbs") /
		   metric_get("cpu.triad_gbs"), 0.6, NAN);
	metric("soft.sgemm_cpu_ratio", metric_get("soft.sgemm_gflop_per_cpu_s") /
	       metric_get("cpu.sgemm_gflop_per_cpu_s"), "ratio");
	metric("soft.triad_cpu_ratio", metric_get("soft.triad_gb_per_cpu_s") /
	       metric_get("cpu.triad_gb_per_cpu_s"), "ratio");
	snprintf(path, sizeof(path), "%s/bench", build);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/bench/soft.json", build);
	write_json(argc > 1 ? argv[1] : path);
	return 0;
}
