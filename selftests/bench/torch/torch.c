// SPDX-License-Identifier: Apache-2.0
/*
 * torch.c - training in PyTorch through the proxy, against direct mode and against PyTorch's CPU backend
 *
 *   build/selftests/bench/torch [OUT.json]
 *
 * The character GPT of selftests/torch; runs of each kind take turns, and medians are compared. The start is
 * that of `import torch` and a first tensor on the device, kernels in the cache, beyond the import alone.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../report.h"

#define TURNS 5
#define STEPS 50
/* The first steps load kernels and make allocations. */
#define UNCOUNTED 10

enum how { PROXIED, DIRECT, CPU };

static const char *build;

/* Runs PyTorch's Python with arguments, and puts the times of steps that it prints into ms, behind the n there. */
static int run(enum how how, const char *args, double *ms, int n)
{
	char cmd[4096], line[1024];
	double v;
	FILE *f;
	int st, step;

	if (how == PROXIED)
		snprintf(cmd, sizeof(cmd), "%s/tools/singvgpu run -- ", build);
	else if (how == DIRECT)
		snprintf(cmd, sizeof(cmd), "env LD_PRELOAD=%s/uproxy/softgpu/direct/libcuda.so.1 ", build);
	else
		cmd[0] = 0;
	snprintf(cmd + strlen(cmd), sizeof(cmd) - strlen(cmd), "build/torch/python3 -W ignore %s", args);
	f = popen(cmd, "r");
	while (f && fgets(line, sizeof(line), f))
		if (ms && sscanf(line, "step %d %lf", &step, &v) == 2 && step >= UNCOUNTED)
			ms[n++] = v;
	st = f ? pclose(f) : -1;
	if (st)
		die("%s: status %d", cmd, st);
	return n;
}

static void steps(void)
{
	static const char *const name[] = { "proxied", "direct", "cpu" };
	static double ms[3][TURNS * STEPS];
	double m[3];
	int n[3] = { 0 };
	char args[128], metric_name[64];

	for (int turn = -1; turn < TURNS; turn++)
		for (enum how how = PROXIED; how <= CPU; how++) {
			snprintf(args, sizeof(args), "selftests/bench/torch/torch_steps.py %s %d",
				 how == CPU ? "cpu" : "cuda", STEPS);
			/* The first turn fills the compiler's cache. */
			n[how] = run(how, args, turn < 0 ? NULL : ms[how], n[how]);
		}
	for (enum how how = PROXIED; how <= CPU; how++) {
		m[how] = median(ms[how], n[how]);
		snprintf(metric_name, sizeof(metric_name), "torch.step_%s_ms", name[how]);
		metric(metric_name, m[how], "ms");
	}
	metric_bar("torch.step_ratio_proxied_direct", m[PROXIED] / m[DIRECT], NAN, 1.03);
	metric("torch.step_ratio_proxied_cpu", m[PROXIED] / m[CPU], "ratio");
}

static void start(void)
{
	double t[2][TURNS], t0;

	for (int turn = -1; turn < TURNS; turn++)
		for (int plain = 0; plain < 2; plain++) {
			t0 = now_s();
			if (plain)
				run(CPU, "-c 'import torch'", NULL, 0);
			else
				run(PROXIED, "-c 'import torch; torch.zeros(1, device=\"cuda\")'", NULL, 0);
			if (turn >= 0)
				t[plain][turn] = now_s() - t0;
		}
	metric("torch.start_proxied_s", median(t[0], TURNS), "s");
	metric("torch.import_s", median(t[1], TURNS), "s");
	metric("torch.start_extra_s", median(t[0], TURNS) - median(t[1], TURNS), "s");
}

int main(int argc, char **argv)
{
	char path[512];

	if (access("build/torch/python3", X_OK)) {
		printf("# torch: no PyTorch in build/torch (make torch): nothing is measured\n");
		return 0;
	}
	build = getenv("SINGVGPU_BUILD") ? getenv("SINGVGPU_BUILD") : "build";
	snprintf(path, sizeof(path), "%s/bench", build);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/bench/torch.json", build);
	start();
	steps();
	write_json(argc > 1 ? argv[1] : path);
	return 0;
}
