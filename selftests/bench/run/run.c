// SPDX-License-Identifier: Apache-2.0
/*
 * run.c - the cost of running through the proxy, against the same programs in direct mode
 *
 *   build/selftests/bench/run [OUT.json]
 *
 * Direct mode is the soft driver in the program's own process: the same device without client, ring
 * and proxy. Runs of both kinds take turns, since machines are noisy; medians are compared.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../report.h"

#define TURNS 5
#define SAMPLES_MAX 4096

static const char *build;

/* How a program is started: through the proxy, or with the soft driver in its own process. */
static void command(char *to, size_t n, bool proxied, const char *more, const char *prog)
{
	if (proxied)
		snprintf(to, n, "%s/tools/singvgpu run %s -- %s", build, more, prog);
	else
		snprintf(to, n, "env LD_PRELOAD=%s/uproxy/softgpu/direct/libcuda.so.1 %s", build, prog);
}

/* Runs it and gives each line of its output to fn. */
static void run(bool proxied, const char *more, const char *prog,
		void (*fn)(const char *line, void *arg), void *arg)
{
	char cmd[4096], line[1024];
	FILE *f;
	int st;

	command(cmd, sizeof(cmd), proxied, more, prog);
	f = popen(cmd, "r");
	while (f && fgets(line, sizeof(line), f))
		if (fn)
			fn(line, arg);
	st = f ? pclose(f) : -1;
	if (st)
		die("%s: status %d", cmd, st);
}

/* ------------------------------------------------------------------------------- single calls */

struct calls {
	char name[32][32];
	double value[2][32][TURNS];
	int n, turn;
	bool proxied;
};

static void call_line(const char *line, void *arg)
{
	struct calls *c = arg;
	char name[32];
	double v;
	int i;

	if (sscanf(line, "%31s %lf", name, &v) != 2)
		return;
	for (i = 0; i < c->n && strcmp(c->name[i], name); i++)
		;
	if (i == 32)
		return;
	if (i == c->n)
		strcpy(c->name[c->n++], name);
	c->value[c->proxied][i][c->turn] = v;
}

static void calls(void)
{
	static struct calls c;
	char prog[512], name[64];

	snprintf(prog, sizeof(prog), "%s/selftests/bench/calls", build);
	for (c.turn = 0; c.turn < TURNS; c.turn++)
		for (int p = 0; p < 2; p++) {
			c.proxied = p;
			run(p, "", prog, call_line, &c);
		}
	for (int i = 0; i < c.n; i++) {
		double direct = median(c.value[0][i], TURNS);
		double proxied = median(c.value[1][i], TURNS);

		if (!strcmp(c.name[i], "launch10k_ms")) {
			metric("launch10k.ratio_proxied_direct", proxied / direct, "ratio");
			metric("launch10k.proxied_ms", proxied, "ms");
			metric("launch10k.direct_ms", direct, "ms");
			continue;
		}
		snprintf(name, sizeof(name), "call.%s", c.name[i]);
		metric(name, proxied, "ns");
		if (!direct)		/* NCCL has no direct mode */
			continue;
		snprintf(name, sizeof(name), "direct.%s", c.name[i]);
		metric(name, direct, "ns");
	}
}

/* ----------------------------------------------------------------------------- training steps */

struct steps {
	double ms[SAMPLES_MAX];
	int n;
};

static void step_line(const char *line, void *arg)
{
	struct steps *s = arg;
	const char *ms = strstr(line, " ms");
	int step, of;
	double v;

	if (!ms || sscanf(line, "step %d/%d", &step, &of) != 2 || step < 4 || s->n == SAMPLES_MAX)
		return;
	while (ms > line && ms[-1] != ' ')
		ms--;
	if (sscanf(ms, "%lf", &v) == 1)
		s->ms[s->n++] = v;
}

static void training(void)
{
	static struct steps s[2];
	char prog[512];
	double m[2];

	snprintf(prog, sizeof(prog), "%s/selftests/jobs/gpt --steps 12 --every 1 --sample 0", build);
	run(false, "", prog, NULL, NULL);	/* the compiler's cache */
	for (int turn = 0; turn < 4; turn++)
		for (int p = 0; p < 2; p++)
			run(p, "", prog, step_line, &s[p]);
	for (int p = 0; p < 2; p++)
		m[p] = median(s[p].ms, s[p].n);
	metric("step.ratio_proxied_direct", m[1] / m[0], "ratio");
	metric("step.proxied_ms", m[1], "ms");
	metric("step.direct_ms", m[0], "ms");
}

/* ------------------------------------------------------------------------------ start, compiler */

static void start(void)
{
	double t[2][15], t0;
	char prog[512];

	snprintf(prog, sizeof(prog), "%s/selftests/softgpu/d_vector", build);
	for (int i = 0; i < 15; i++)
		for (int p = 0; p < 2; p++) {
			t0 = now_s();
			run(p, "", prog, NULL, NULL);
			t[p][i] = (now_s() - t0) * 1e3;
		}
	metric("start.extra_ms", median(t[1], 15) - median(t[0], 15), "ms");
	metric("start.proxied_ms", median(t[1], 15), "ms");
}

/*
 * The longest time that the proxy took to load or prepare a kernel, in s, from its trace: a driver may
 * compile when a kernel is asked for by name, or when it is to be launched.
 */
static double longest_prepare(const char *path)
{
	double worst = 0, dur;
	char *line = NULL, *at;
	size_t cap = 0;
	FILE *f = fopen(path, "r");

	if (!f)
		die("%s: %s", path, strerror(errno));
	while (getline(&line, &cap, f) > 0) {
		at = strstr(line, "\"name\":\"X_PREPARE\"");
		if (!at)
			at = strstr(line, "\"name\":\"cuLibraryGetKernel\"");
		at = at ? strstr(at, "\"dur\":") : NULL;
		if (at && sscanf(at, "\"dur\":%lf", &dur) == 1 && dur / 1e6 > worst)
			worst = dur / 1e6;
	}
	free(line);
	fclose(f);
	if (!worst)
		die("%s: the trace has no event of a kernel's preparation", path);
	return worst;
}

static const char *const sample[] = {
	"algorithms", "atomics", "calls", "coop", "half", "nbody", "rdc", "sgemm", "stencil", "warp",
	"gpt --tiny",
};

static void compiler(void)
{
	double cold = 0, cached = 0, s;
	char dir[] = "/tmp/singvgpu-bench-XXXXXX", more[128], prog[512], cmd[160];

	if (!mkdtemp(dir))
		die("%s: %s", dir, strerror(errno));
	setenv("SINGVGPU_SOFT_CACHE", dir, 1);
	snprintf(more, sizeof(more), "--trace %s/trace", dir);
	for (unsigned int i = 0; i < sizeof(sample) / sizeof(sample[0]); i++) {
		snprintf(prog, sizeof(prog), "%s/selftests/jobs/%s", build, sample[i]);
		for (int warm = 0; warm < 2; warm++) {
			char trace[64];

			run(true, more, prog, NULL, NULL);
			snprintf(trace, sizeof(trace), "%s/trace", dir);
			s = longest_prepare(trace);
			if (warm && s > cached)
				cached = s;
			if (!warm && s > cold)
				cold = s;
		}
	}
	unsetenv("SINGVGPU_SOFT_CACHE");
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	if (system(cmd))
		fprintf(stderr, "run: %s stays\n", dir);
	metric("jit.cold_max_s", cold, "s");
	metric("jit.cached_max_ms", cached * 1e3, "ms");
}

int main(int argc, char **argv)
{
	char path[512];

	build = getenv("SINGVGPU_BUILD") ? getenv("SINGVGPU_BUILD") : "build";
	snprintf(path, sizeof(path), "%s/bench", build);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/bench/run.json", build);
	calls();
	start();
	training();
	compiler();
	write_json(argc > 1 ? argv[1] : path);
	return 0;
}
