// SPDX-License-Identifier: Apache-2.0
/*
 * slices.c - what it costs to have fewer devices than ranks: a resize of a running job, and its steps afterwards
 *
 *   build/selftests/bench/slices [--turns N] [--dir DIR] [--only PART] [OUT.json]
 *
 * PART is resize or together. resize: four ranks of job_work with 1 GiB each, of which all have a half in common, go from 4
 * devices to 2, to 4, to 1, once by `singvgpu resize` and once by a shell line that saves and restores them; the store has
 * their pages already. together: the step of the GPT of selftests/nccl, four ranks on one device and on four.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../report.h"
#include "running.h"

#define HALF_MIB 512

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

static const struct part parts[] = { { "resize", part_resize }, { "together", part_together } };

int main(int argc, char **argv)
{
	return run_parts("slices", parts, sizeof(parts) / sizeof(parts[0]), argc, argv);
}
