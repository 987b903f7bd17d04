// SPDX-License-Identifier: Apache-2.0
/*
 * slices.c - what it costs to have fewer devices than ranks: a resize of a running job, and its steps afterwards
 *
 *   build/selftests/bench/slices [--turns N] [--dir DIR] [--only PART] [OUT.json]
 *
 * PART is resize, together, rounds or slices. resize: four ranks of job_work with 1 GiB each, of which all have a half in common, go from 4
 * devices to 2, to 4, to 1, once by `singvgpu resize` and once by a shell line that saves and restores them; the store has
 * their pages already. together: the step of the GPT of selftests/nccl, four ranks on one device and on four. rounds:
 * two ranks of job_work take turns with one device; of their memory it is known what differs. slices: a larger GPT, whose two and four
 * ranks take turns, beside what its parts cost alone.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../report.h"
#include "running.h"

#define HALF_MIB 512
#define UNIT	 (64 << 10)	/* uproxy/slice/table.h */

/* Seconds until the command ends, when the job runs again. stood: how long the job stood still, as the command says. */
static double resize(int on, double *stood)
{
	char path[600], line[256];
	double began = now_s(), s;
	FILE *f;

	if (shell("%s/tools/singvgpu resize --store %s/store --on %d %d >%s/resized 2>%s/said", build, job_dir, on, (int)job,
		  job_dir, job_dir))
		die("the job is not resized: see %s/said", job_dir);
	s = now_s() - began;
	snprintf(path, sizeof(path), "%s/said", job_dir);
	f = fopen(path, "r");
	*stood = NAN;
	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "the job stood still for %lf", stood);
	if (f)
		fclose(f);
	return s;
}

/* Seconds until the restore says that the job goes on. `job` is the restore command from then on. */
static double by_hand(int on)
{
	char script[4096];
	double began;
	pid_t was = job;

	shell("rm -f %s/back", job_dir);
	began = now_s();
	snprintf(script, sizeof(script), "id=$(%s/tools/singvgpu checkpoint -q --store store %d 2>>err) && exec "
		 "%s/tools/singvgpu restore --store store --on %d $id >>out 2>back </dev/null", build, (int)was, build, on);
	start_script(script);
	while (shell("grep -q 'goes on, from' %s/back 2>/dev/null", job_dir)) {
		if (now_s() - began > 120 || waitpid(job, NULL, WNOHANG))
			die("the job is not restored: see %s", job_dir);
		usleep(2000);
	}
	began = now_s() - began;
	waitpid(was, NULL, 0);
	return began;
}

static void part_resize(void)
{
	static const struct {
		int from, to;
	} maps[] = { { 4, 2 }, { 2, 4 }, { 4, 1 } };
	double ours[16], hand[16], stood[16], ratio[3], before;
	char name[64];

	start(4, 4, "selftests/bench/job_work id %d %d .", HALF_MIB, HALF_MIB);
	wait_lines("stage 0", 4);
	shell("rm -f %s/[0-9].0", job_dir);
	resize(4, &before);	/* its pages are in the store now */
	for (int m = 0; m < 3; m++) {
		for (int i = 0; i < turns; i++) {
			resize(maps[m].from, &before);
			ours[i] = resize(maps[m].to, &stood[i]);
			resize(maps[m].from, &before);
			hand[i] = by_hand(maps[m].to);
		}
		snprintf(name, sizeof(name), "resize.%dto%d_s", maps[m].from, maps[m].to);
		metric(name, median(ours, turns), "s");
		snprintf(name, sizeof(name), "resize.by_hand_%dto%d_s", maps[m].from, maps[m].to);
		metric(name, median(hand, turns), "s");
		snprintf(name, sizeof(name), "resize.stood_%dto%d_s", maps[m].from, maps[m].to);
		metric(name, median(stood, turns), "s");
		ratio[m] = median(ours, turns) / median(hand, turns);
	}
	printf("# the paper's jobs stood still for 31 to 228 s\n");
	metric_bar("resize.vs_by_hand", median(ratio, 3), NAN, 0.8);
	go(1);
	wait_lines("stage 1", 4);
	go(2);
	go(3);
	end(0);
	if (count_lines("stage 3") != 4)
		die("the job did not go on: see %s", job_dir);
}

/* Seconds for a step of four ranks. */
static double step(int on)
{
	const int first = 20, steps = 100;
	double began;

	start(4, on, "selftests/nccl/gpt id 4 1 1 --steps 1000000");
	wait_lines("", first);
	began = now_s();
	wait_lines("", first + steps);
	began = now_s() - began;
	end(15);
	return began / steps;
}

static void part_together(void)
{
	double four[16], one[16], ratio[16];

	for (int i = 0; i < turns; i++) {
		four[i] = step(4);
		one[i] = step(1);
		ratio[i] = one[i] / four[i];
	}
	metric("slice.step_4on4_s", median(four, turns), "s");
	metric("slice.step_4on1_s", median(one, turns), "s");
	metric_bar("slice.together_4on1", median(ratio, turns), NAN, 1.03);
}

/* ------------------------------------------------------------------------------ slices */

/* Figures of the job's proxies, summed (uproxy/include/stat.h). */
struct slices {
	double switches, switch_ns, drain_ns, digested, taken, brought, backing_peak;
	double us[1024];	/* of the last switches */
	int n;
};

/* The numbers behind "name": in a text of JSON, summed. */
static double figure(const char *text, const char *name)
{
	char key[64];
	double sum = 0;

	snprintf(key, sizeof(key), "\"%s\": ", name);
	for (const char *at = text; (at = strstr(at, key)); at++)
		sum += strtod(at + strlen(key), NULL);
	return sum;
}

static void read_slices(struct slices *s)
{
	static char text[1 << 20];
	char path[600], *at = text, *next;
	size_t n;
	FILE *f;

	if (shell("%s/tools/singvgpu ps --json >%s/ps", build, job_dir))
		die("ps fails");
	snprintf(path, sizeof(path), "%s/ps", job_dir);
	f = fopen(path, "r");
	n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
	text[n] = 0;
	if (f)
		fclose(f);
	*s = (struct slices){ .switches = figure(text, "switches"), .switch_ns = figure(text, "switch_ns"),
			      .drain_ns = figure(text, "drain_ns"), .digested = figure(text, "bytes_digested"),
			      .taken = figure(text, "bytes_taken"), .brought = figure(text, "bytes_brought"),
			      .backing_peak = figure(text, "backing_peak") };
	while ((at = strstr(at, "\"switch_us\": ["))) {
		at = strchr(at, '[') + 1;
		for (double v = strtod(at, &next); next != at && s->n < 1024; v = strtod(at, &next)) {
			s->us[s->n++] = v;
			at = next + strspn(next, ", \n");
		}
	}
}

static void copy_units(char *to, const char *from, size_t len)
{
	for (size_t at = 0; at < len; at += UNIT)
		memcpy(to + at, from + at, UNIT);
}

static void digest_units(char *to, const char *from, size_t len)
{
	for (size_t at = 0; at < len; at += UNIT) {
		XXH128_hash_t d = XXH3_128bits(from + at, UNIT);

		memcpy(to + at / UNIT * sizeof(d), &d, sizeof(d));
	}
}

/* Bytes a second of units beyond any cache. */
static double rate_of(void (*work)(char *to, const char *from, size_t len))
{
	size_t len = 512 << 20;
	char *from = malloc(len), *to = malloc(len);
	double took[5];

	if (!from || !to)
		die("no memory");
	memset(from, 1, len);
	memset(to, 2, len);
	for (int i = 0; i < 5; i++) {
		took[i] = now_s();
		work(to, from, len);
		took[i] = now_s() - took[i];
	}
	free(from);
	free(to);
	return len / median(took, 5);
}

static double digest_rate, copy_rate;

static void measure_rates(void)
{
	if (digest_rate)
		return;
	digest_rate = rate_of(digest_units);
	copy_rate = rate_of(copy_units);
	metric("slice.digest_GBps", digest_rate / 1e9, "GB/s");
	metric("slice.copy_GBps", copy_rate / 1e9, "GB/s");
	metric_bar("slice.digest_vs_memcpy", digest_rate / copy_rate, 0.5, NAN);
}

static void part_rounds(void)
{
	const int common = 64, own = 16, n = 40;
	double mib = 1 << 20, distinct = (common + 2 * own) * mib, differing;
	struct slices before, after;

	by_slices = true;
	start(2, 1, "selftests/bench/job_work id %d %d . %d", common, own, n);
	by_slices = false;
	go(0);
	wait_lines("stage 0", 2);
	usleep(200000);
	read_slices(&before);
	go(1);
	wait_lines("stage 1", 2);
	usleep(200000);
	read_slices(&after);
	go(2);
	end(0);
	differing = (after.switches - before.switches) * 2 * own * mib;
	metric_bar("slice.bytes_vs_differing", (after.taken + after.brought - before.taken - before.brought) / differing, NAN, 1.05);
	/* Each proxy says it of all. */
	metric_bar("slice.backing_vs_distinct", after.backing_peak / 2 / distinct, NAN, 1.10);
}

/* What trains: C++, and PyTorch. */
static const struct program {
	const char *prefix;	/* of its metrics */
	void (*start)(int ranks, bool exchange);	/* exchange: a step is its sums alone */
	int steps;
} *program;

static void start_gpt(int ranks, bool exchange)
{
	start(ranks, 1, "selftests/nccl/gpt id %d 1 1 --layers 2 --dim 480 --ctx 32 --batch 1 --steps 1000000%s", ranks,
	      exchange ? " --exchange 1" : "");
}

static char script[4096];

static void start_torch(int ranks, bool exchange)
{
	start(ranks, 1, "torch/python3 %s%s", script, exchange ? " --exchange" : "");
}

/* A step in seconds, and what the slices did in it; slices may be NULL. */
static double step_of(int ranks, bool exchange, struct slices *done)
{
	const int first = 3, steps = program->steps;
	struct slices before = { 0 };
	double began;

	program->start(ranks, exchange);
	wait_lines("step ", first);
	began = now_s();
	if (done)
		read_slices(&before);
	wait_lines("step ", first + steps);
	began = now_s() - began;
	if (done) {
		read_slices(done);
		done->switches = (done->switches - before.switches) / steps;
		done->switch_ns = (done->switch_ns - before.switch_ns) / steps;
		done->drain_ns = (done->drain_ns - before.drain_ns) / steps;
		done->digested = (done->digested - before.digested) / steps;
		done->taken = (done->taken - before.taken) / steps;
		done->brought = (done->brought - before.brought) / steps;
	}
	end(15);
	return began / steps;
}

static void named(const char *name, int n, double value, const char *unit)
{
	char text[64];

	snprintf(text, sizeof(text), "slice.%s%s_%don1", program->prefix, name, n);
	metric(text, value, unit);
}

/* n ranks take turns with one device. */
static void measure_step(int n)
{
	double alone[16], sums[16], ratio[16], bare[16], awaited[16], us[16], s, moving;
	struct slices done;
	char name[64];

	for (int i = 0; i < turns; i++) {
		alone[i] = step_of(1, false, NULL);
		sums[i] = step_of(n, true, NULL);
		by_slices = true;
		s = step_of(n, false, &done);
		by_slices = false;
		moving = done.digested / digest_rate + (done.taken + done.brought) / copy_rate;
		ratio[i] = s / (n * alone[i] + sums[i] + moving);
		bare[i] = s / (n * alone[i]);
		awaited[i] = done.switches / (n - 1);
		us[i] = median(done.us, done.n) - moving / done.switches * 1e6;
		printf("# %d on 1: a step of %.3f s, alone %.3f, sums %.3f; %.1f switches of %.1f ms, %.0f MiB digested, %.0f taken, "
		       "%.0f brought: %.3f s; drained for %.3f s\n", n, s, alone[i], sums[i], done.switches,
		       done.switch_ns / done.switches / 1e6, done.digested / (1 << 20), done.taken / (1 << 20),
		       done.brought / (1 << 20), moving, done.drain_ns / 1e9);
	}
	named("alone_s", n, median(alone, turns), "s");
	named("sums_s", n, median(sums, turns), "s");
	named("bare", n, median(bare, turns), "ratio");
	snprintf(name, sizeof(name), "slice.%sstep_%don1", program->prefix, n);
	metric_bar(name, median(ratio, turns), NAN, 1.03);
	snprintf(name, sizeof(name), "slice.%sswitches_vs_awaited_%don1", program->prefix, n);
	metric_bar(name, median(awaited, turns), NAN, 1.05);
	named("switch_us", n, median(us, turns), "us");
}

static void part_slices(void)
{
	program = &(const struct program){ "", start_gpt, 24 };
	measure_rates();
	measure_step(2);
	measure_step(4);
}

static void part_torch(void)
{
	char python[600];

	program = &(const struct program){ "torch.", start_torch, 12 };
	snprintf(python, sizeof(python), "%s/torch/python3", build);
	if (access(python, X_OK) || !realpath("selftests/bench/job/char_gpt.py", script)) {
		printf("# no PyTorch in %s/torch (make torch), or not in the tree's top: part torch is not measured\n", build);
		return;
	}
	measure_rates();
	measure_step(2);
	measure_step(4);
}

static const struct part parts[] = { { "resize", part_resize }, { "together", part_together }, { "rounds", part_rounds },
				     { "slices", part_slices }, { "torch", part_torch } };

int main(int argc, char **argv)
{
	return run_parts("slices", parts, sizeof(parts) / sizeof(parts[0]), argc, argv);
}
