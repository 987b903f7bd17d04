// SPDX-License-Identifier: Apache-2.0
/*
 * soft.c - how fast the soft device computes, beside this CPU's own code in the same run
 *
 *   build/selftests/bench/soft [OUT.json]
 *
 * soft_work runs both, in turns; this program reports the medians and their ratios. Kernels are
 * compiled before the first counted turn. On processors with AVX-512 the same is also measured with
 * code for processors without it (soft_v3), and steps of the gpt job with both.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../report.h"

#define TURNS 7
#define STEP_TURNS 3
#define SLOWER 2.5		/* without AVX-512: at most */

/* By the clock; with _cpu, for each second of processors' time. */
static struct {
	const char *name, *as, *unit;
	double v[2][TURNS];		/* [1]: limited to AVX2 */
	int n[2];
} figures[] = {
	{ "cpu.sgemm", "cpu.sgemm_gflops", "GFLOP/s", { { 0 } }, { 0 } },
	{ "soft.sgemm", "soft.sgemm_gflops", "GFLOP/s", { { 0 } }, { 0 } },
	{ "soft.bf16", "soft.bf16_gflops", "GFLOP/s", { { 0 } }, { 0 } },
	{ "soft.conv", "soft.conv_gflops", "GFLOP/s", { { 0 } }, { 0 } },
	{ "cpu.triad", "cpu.triad_gbs", "GB/s", { { 0 } }, { 0 } },
	{ "soft.triad", "soft.triad_gbs", "GB/s", { { 0 } }, { 0 } },
	{ "cpu.sgemm_cpu", "cpu.sgemm_gflop_per_cpu_s", "GFLOP/s", { { 0 } }, { 0 } },
	{ "soft.sgemm_cpu", "soft.sgemm_gflop_per_cpu_s", "GFLOP/s", { { 0 } }, { 0 } },
	{ "soft.bf16_cpu", "soft.bf16_gflop_per_cpu_s", "GFLOP/s", { { 0 } }, { 0 } },
	{ "soft.conv_cpu", "soft.conv_gflop_per_cpu_s", "GFLOP/s", { { 0 } }, { 0 } },
	{ "cpu.triad_cpu", "cpu.triad_gb_per_cpu_s", "GB/s", { { 0 } }, { 0 } },
	{ "soft.triad_cpu", "soft.triad_gb_per_cpu_s", "GB/s", { { 0 } }, { 0 } },
};
#define NFIGURES (sizeof(figures) / sizeof(figures[0]))

static double steps[2][STEP_TURNS * 16];	/* by gpt: ms of the clock, natively and without AVX-512 */
static int nsteps[2];

static void keep(const char *line, bool limited)
{
	char name[64];
	double v;

	if (sscanf(line, "%63s %lf", name, &v) != 2) {
		fputs(line, stderr);
		return;
	}
	for (size_t i = 0; i < NFIGURES; i++)
		if (!strcmp(figures[i].name, name) && figures[i].n[limited] < TURNS)
			figures[i].v[limited][figures[i].n[limited]++] = v;
}

static void keep_step(const char *line, bool limited)
{
	const char *ms = strstr(line, " ms");
	int step, of;

	if (!ms || sscanf(line, "step %d/%d", &step, &of) != 2 || step < 4 ||
	    nsteps[limited] == STEP_TURNS * 16)
		return;
	while (ms > line && ms[-1] != ' ')
		ms--;
	steps[limited][nsteps[limited]++] = atof(ms);
}

static const char *build;

/* Runs @prog in direct mode, @limited to AVX2, and gives each line of its output to @fn. */
static void run(const char *prog, bool limited, void (*fn)(const char *line, bool limited))
{
	char cmd[2048], line[512];
	FILE *f;
	int st;

	snprintf(cmd, sizeof(cmd), "SINGVGPU_SOFT_CPU=%s LD_PRELOAD=%s/uproxy/softgpu/direct/libcuda.so.1 "
		 "%s/selftests/%s", limited ? "x86-64-v3" : "native", build, build, prog);
	f = popen(cmd, "r");
	while (f && fgets(line, sizeof(line), f))
		if (fn)
			fn(line, limited);
	st = f ? pclose(f) : -1;
	if (st)
		die("%s: status %d", cmd, WIFEXITED(st) ? WEXITSTATUS(st) : st);
}

static void without_avx512(const char *work)
{
	static const char gpt[] = "jobs/gpt --steps 12 --every 1 --sample 0";
	char name[80];
	int k;

	run(work, true, keep);
	for (size_t i = 0; i < NFIGURES; i++) {
		double v;

		if (strncmp(figures[i].name, "soft.", 5) || !strstr(figures[i].name, "_cpu"))
			continue;
		v = median(figures[i].v[1], figures[i].n[1]);
		snprintf(name, sizeof(name), "soft_v3.%s", figures[i].as + 5);
		metric(name, v, figures[i].unit);
		snprintf(name, sizeof(name), "soft_v3.%s_slower", figures[i].name + 5);
		metric_bar(name, metric_get(figures[i].as) / v, NAN, SLOWER);
	}
	for (k = 0; k < 2; k++)		/* compiles */
		run(gpt, k, NULL);
	for (k = 0; k < 2 * STEP_TURNS; k++)
		run(gpt, k % 2, keep_step);
	metric("soft.step_ms", median(steps[0], nsteps[0]), "ms");
	metric("soft_v3.step_ms", median(steps[1], nsteps[1]), "ms");
	metric_bar("soft_v3.step_slower", metric_get("soft_v3.step_ms") / metric_get("soft.step_ms"),
		   NAN, SLOWER);
}

int main(int argc, char **argv)
{
	char path[512], work[64];

	build = getenv("SINGVGPU_BUILD") ? getenv("SINGVGPU_BUILD") : "build";
	snprintf(work, sizeof(work), "bench/soft_work %d", TURNS);
	run(work, false, keep);
	for (size_t i = 0; i < NFIGURES; i++)
		metric(figures[i].as, median(figures[i].v[0], figures[i].n[0]), figures[i].unit);
	metric_bar("soft.sgemm_ratio", metric_get("soft.sgemm_gflops") /
		   metric_get("cpu.sgemm_gflops"), 0.15, NAN);
	metric_bar("soft.triad_ratio", metric_get("soft.triad_gbs") /
		   metric_get("cpu.triad_gbs"), 0.6, NAN);
	metric("soft.sgemm_cpu_ratio", metric_get("soft.sgemm_gflop_per_cpu_s") /
	       metric_get("cpu.sgemm_gflop_per_cpu_s"), "ratio");
	metric("soft.triad_cpu_ratio", metric_get("soft.triad_gb_per_cpu_s") /
	       metric_get("cpu.triad_gb_per_cpu_s"), "ratio");
	if (__builtin_cpu_supports("x86-64-v4"))
		without_avx512(work);
	snprintf(path, sizeof(path), "%s/bench", build);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/bench/soft.json", build);
	write_json(argc > 1 ? argv[1] : path);
	return 0;
}
