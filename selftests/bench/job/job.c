// SPDX-License-Identifier: Apache-2.0
/*
 * job.c - what checkpoints of a job of several ranks cost: how soon it stands still, what is stored of the
 * devices' memory, how fast
 *
 *   build/selftests/bench/job [--turns N] [--dir DIR] [--only PART] [OUT.json]
 *
 * PART is cut, bytes, step, rate or frozen; the last one, beside stock CRIU, needs PyTorch (`make torch`). The jobs
 * are the GPT of selftests/nccl and job_work. The ranks of job_work save their memory themselves, so that its pages
 * are counted without a look at the store. DIR is on the disk to measure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../report.h"
#include "running.h"

#define PAGE	4096u
#define SAVES	8	/* of a training */

/* ---------------------------------------------------------------------------- a checkpoint */

/* All phases of one kind, one for each rank. */
struct kind {
	double begin, end;	/* s since the checkpoint began */
	double bytes, stored;
	int n;
};

struct saved {
	struct kind freeze, device;
	double frozen_s, all_s;
};

static double number_after(const char *text, const char *end, const char *key)
{
	const char *at = strstr(text, key);

	return at && at < end ? strtod(at + strlen(key), NULL) : NAN;
}

static void add_kinds(const char *text, const char *phase, struct kind *k)
{
	char key[64];

	*k = (struct kind){ .begin = INFINITY };
	snprintf(key, sizeof(key), "\"phase\": \"%s ", phase);
	for (const char *at = text; (at = strstr(at, key)); at++) {
		const char *close = strchr(at, '}');
		double begin, seconds;

		if (!close)
			break;
		begin = number_after(at, close, "\"start_s\": ");
		seconds = number_after(at, close, "\"seconds\": ");
		k->begin = begin < k->begin ? begin : k->begin;
		k->end = begin + seconds > k->end ? begin + seconds : k->end;
		k->bytes += number_after(at, close, "\"bytes\": ");
		k->stored += number_after(at, close, "\"stored_bytes\": ");
		k->n++;
	}
	if (!k->n || isnan(k->end + k->bytes + k->stored))
		die("the checkpoint has no phase '%s'", phase);
}

/* option: of the command's, or "". */
static struct saved checkpoint(const char *store, const char *option)
{
	char path[600], *text;
	struct saved s;
	struct stat st;
	double began = now_s();
	int fd;

	if (shell("%s/tools/singvgpu checkpoint --quiet --json=- --leave-running --store %s/%s %s %d >%s/saved 2>>%s/err",
		  build, job_dir, store, option, (int)job, job_dir, job_dir))
		die("singvgpu cannot checkpoint: see %s/err", job_dir);
	s.all_s = now_s() - began;
	snprintf(path, sizeof(path), "%s/saved", job_dir);
	fd = open(path, O_RDONLY);
	if (fd < 0 || fstat(fd, &st))
		die("%s: %s", path, strerror(errno));
	text = calloc(1, st.st_size + 1);
	if (!text || read(fd, text, st.st_size) != st.st_size)
		die("%s cannot be read", path);
	close(fd);
	if (*option && !strstr(text, "\"at_step\": true"))
		die("no step's end was found: see %s/err", job_dir);
	add_kinds(text, "freeze", &s.freeze);
	add_kinds(text, "device", &s.device);
	s.frozen_s = number_after(text, text + st.st_size, "\"frozen_s\": ");
	free(text);
	return s;
}

/* ------------------------------------------------------------------------- a: the cut */

/*
 * From the first gate that is asked to close until all ranks stand still. It contains the drain, so it is
 * more than what the goal is about.
 */
static double cut_ms(const struct saved *s)
{
	return (s->freeze.end - s->freeze.begin) * 1e3;
}

static void report_cuts(const char *what, struct saved *s, int n)
{
	double cut[SAVES], request[SAVES], most = 0;
	char name[64];

	for (int i = 0; i < n; i++) {
		cut[i] = cut_ms(&s[i]);
		request[i] = s[i].freeze.end * 1e3;
		most = cut[i] > most ? cut[i] : most;
	}
	snprintf(name, sizeof(name), "job.cut%s_ms", what);
	metric(name, median(cut, n), "ms");
	snprintf(name, sizeof(name), "job.request_to_idle%s_ms", what);
	metric(name, median(request, n), "ms");
	snprintf(name, sizeof(name), "job.cut_extra%s_ms", what);
	metric(name, most, "ms");
	printf("# goal: at most 100: %s\n", most <= 100 ? "met" : "NOT met");
}

static void part_cut(void)
{
	struct saved s[SAVES];

	start(4, 4, "selftests/nccl/gpt id 4 1 1 --steps 1000000");
	wait_lines("", 20);
	for (int i = 0; i < SAVES; i++) {
		s[i] = checkpoint("store", "");
		wait_lines("", count_lines("") + 3);
	}
	end(SIGTERM);
	report_cuts("", s, SAVES);

	/* Three ranks wait in an all-reduce that the fourth, asleep, has not posted. */
	start(4, 4, "selftests/bench/job_work id 1 1 .");
	wait_lines("stage 0", 4);
	go(1);
	wait_lines("stage 1", 4);
	go(2);
	wait_lines("stage 2", 4);
	usleep(500000);
	for (int i = 0; i < SAVES; i++)
		s[i] = checkpoint("store", "");
	if (count_lines("stage 3"))
		die("an all-reduce has ended without a rank");
	go(3);
	end(0);
	if (count_lines("stage 3") != 4)
		die("the job did not go on: see %s", job_dir);
	report_cuts("_asleep", s, SAVES);
}

/* --------------------------------------------------------------------- b: bytes and pages */

static int by_bytes(const void *a, const void *b)
{
	return memcmp(*(uint8_t *const *)a, *(uint8_t *const *)b, PAGE);
}

struct pages {
	uint8_t *mem, **p;
	size_t n, room;
};

/* Adds the pages of what a rank has saved of its memory, but zeros. */
static void pages_add(struct pages *t, int rank, int stage)
{
	static const uint8_t zeros[PAGE];
	char path[600];
	struct stat st;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "%s/%d.%d", job_dir, rank, stage);
	fd = open(path, O_RDONLY);
	if (fd < 0 || fstat(fd, &st) || st.st_size % PAGE || t->n + st.st_size / PAGE > t->room)
		die("%s cannot be read", path);
	for (off_t at = 0; at < st.st_size; at += PAGE) {
		uint8_t *p = t->mem + t->n * PAGE;

		got = read(fd, p, PAGE);
		if (got != PAGE)
			die("%s is cut short", path);
		if (memcmp(p, zeros, PAGE))
			t->p[t->n++] = p;
	}
	close(fd);
}

/* Distinct pages of all ranks up to a stage, by sorting. */
static double distinct_bytes(int ranks, int stages)
{
	struct pages t = { .room = 1 << 18 };
	double n = 0;

	t.mem = malloc(t.room * PAGE);
	t.p = malloc(t.room * sizeof(*t.p));
	if (!t.mem || !t.p)
		die("no memory");
	for (int r = 0; r < ranks; r++)
		for (int s = 0; s < stages; s++)
			pages_add(&t, r, s);
	qsort(t.p, t.n, sizeof(*t.p), by_bytes);
	for (size_t i = 0; i < t.n; i++)
		n += !i || memcmp(t.p[i], t.p[i - 1], PAGE);
	free(t.mem);
	free(t.p);
	return n * PAGE;
}

/* A training that frees what a step needs when the step ends, cut in it or at its end. */
static double gpt_device_bytes(int ranks, const char *option, double *seconds)
{
	struct saved s;

	start(ranks, ranks, "selftests/nccl/gpt id %d 1 1 --free 1 --layers 2 --dim 128 --steps 1000000", ranks);
	wait_lines("", 20);
	s = checkpoint("store", option);
	end(SIGTERM);
	*seconds = s.freeze.begin;
	return s.device.stored;
}

static void part_step(void)
{
	double four[3], one[3], plain[3], s[3], unused;

	for (int i = 0; i < 3; i++) {
		plain[i] = gpt_device_bytes(4, "", &unused);
		four[i] = gpt_device_bytes(4, "--at-step", &s[i]);
		one[i] = gpt_device_bytes(1, "--at-step", &unused);
	}
	metric("job.gpt_device_stored_4", median(four, 3), "B");
	metric("job.gpt_device_stored_1", median(one, 3), "B");
	metric("job.gpt_device_stored_4_plain", median(plain, 3), "B");
	metric_bar("job.device_bytes_4_vs_1", median(four, 3) / median(one, 3), NAN, 1.1);
	/* At a cut anywhere in a step gradients and activations are alive, and differ between the ranks. */
	metric("job.device_bytes_4_vs_1_plain", median(plain, 3) / median(one, 3), "ratio");
	/* Until all stand at a step's end, from the command's start. */
	metric("job.step_s", median(s, 3), "s");
}

static void part_bytes(void)
{
	double distinct, changed;
	struct saved first, second;

	start(4, 4, "selftests/bench/job_work id 80 20 .");
	wait_lines("stage 0", 4);
	first = checkpoint("store", "");
	go(1);
	wait_lines("stage 1", 4);
	second = checkpoint("store", "");
	end(SIGTERM);
	distinct = distinct_bytes(4, 1);
	changed = distinct_bytes(4, 2) - distinct;
	metric("job.device_bytes", first.device.bytes, "B");
	metric("job.device_stored", first.device.stored, "B");
	metric("job.device_distinct", distinct, "B");
	metric_bar("job.device_bytes_vs_distinct", first.device.stored / distinct, NAN, 1.03);
	metric("job.second_stored", second.device.stored, "B");
	metric("job.second_changed", changed, "B");
	metric_bar("job.second_vs_changed", second.device.stored / changed, NAN, 1.03);
}

/* --------------------------------------------------------------------------------- c: rate */

/* Of new pages, which no two ranks share. */
static double rate(int ranks, int mib)
{
	struct saved s;

	start(ranks, ranks, "selftests/bench/job_work id 0 %d .", mib);
	wait_lines("stage 0", ranks);
	s = checkpoint("store", "");
	end(SIGTERM);
	shell("rm -rf %s", job_dir);
	return s.device.bytes / (s.device.end - s.device.begin);
}

static void part_rate(void)
{
	double four[16], one[16], ratio[16];

	for (int i = 0; i < turns; i++) {
		one[i] = rate(1, 256);
		four[i] = rate(4, 256);
		ratio[i] = four[i] / one[i];
	}
	metric("job.dump_gbs_1", median(one, turns) / 1e9, "GB/s");
	metric("job.dump_gbs_4", median(four, turns) / 1e9, "GB/s");
	metric_bar("job.dump_rate_4_vs_1", median(ratio, turns), 0.9, NAN);
}

/* ------------------------------------------------------------- d: beside stock CRIU and torch.save */

/* The largest "KEY SECONDS" that a rank has printed behind the last "mark". */
static double largest(const char *key)
{
	char path[600], line[512], *at;
	double most = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/out", job_dir);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (strstr(line, "mark "))
			most = 0;
		at = strstr(line, key);
		if (at && strtod(at + strlen(key), NULL) > most)
			most = strtod(at + strlen(key), NULL);
	}
	if (f)
		fclose(f);
	return most;
}

static void stock_checkpoint(void)
{
	if (shell("rm -rf %s/img && mkdir %s/img && %s/criu/criu dump -t %d -D %s/img -o dump.log -v1 "
		  "--tcp-established --network-lock skip --leave-running 2>>%s/err || "
		  "{ tail -n 5 %s/img/dump.log; false; }", job_dir, job_dir, build, (int)job, job_dir, job_dir,
		  job_dir))
		die("CRIU cannot dump");
}

static void own_checkpoint(void)
{
	static int number;
	char store[32];

	/* A store of its own: stock CRIU has nothing to compare with, either. */
	snprintf(store, sizeof(store), "fresh.%d", number++);
	checkpoint(store, "");
}

/* Seconds that the job's ranks stood still for a first checkpoint, each time. */
static void measure_gaps(void (*save)(void), double *s)
{
	char text[32];

	wait_lines("ready", 2);
	for (int i = 0; i < turns; i++) {
		if (shell(": >%s/mark.%d", job_dir, i))
			die("%s: %s", job_dir, strerror(errno));
		snprintf(text, sizeof(text), "mark %d", i);
		wait_lines(text, 2);
		usleep(500000);
		save();
		sleep(2);
		s[i] = largest("gap ");
	}
	shell(": >%s/save", job_dir);
	wait_lines("saved", 2);
}

/* A shell's wait may end when CRIU lets the shell go on. */
static void start_stock(int mib)
{
	char script[4096];

	new_folder();
	snprintf(script, sizeof(script), "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 "
		 "MASTER_ADDR=127.0.0.1 MASTER_PORT=%d CUDA_VISIBLE_DEVICES= %s/torch/python3 "
		 "%s/job_state.py gloo %d %s >>out 2>>err </dev/null & p=\"$p $!\"; done; "
		 "for p in $p; do while kill -0 $p 2>/dev/null; do wait $p; done; done",
		 20000 + getpid() % 10000, build, dir, mib, job_dir);
	start_script(script);
}

static void name_metric(const char *what, int mib, double value, const char *unit)
{
	char name[64];

	snprintf(name, sizeof(name), "job.%s_%dm", what, mib);
	metric(name, value, unit);
}

static void frozen(int mib)
{
	double stock[16], ours[16], save;
	char name[64];

	start_stock(mib);
	measure_gaps(stock_checkpoint, stock);
	shell(": >%s/end", job_dir);
	end(0);
	start(2, 2, "torch/python3 %s/job_state.py nccl %d .", dir, mib);
	measure_gaps(own_checkpoint, ours);
	save = largest("saved ");
	shell(": >%s/end", job_dir);
	end(0);
	shell("rm -rf %s", job_dir);	/* the log of the job's files is in its last store */
	name_metric("frozen_criu", mib, median(stock, turns), "s");
	name_metric("frozen", mib, median(ours, turns), "s");
	name_metric("torch_save", mib, save, "s");
	snprintf(name, sizeof(name), "job.frozen_vs_criu_%dm", mib);
	metric_bar(name, median(ours, turns) / median(stock, turns), NAN, 1.2);
}

static void part_frozen(void)
{
	static const int mib[] = { 10, 300, 1000 };
	char path[600];

	snprintf(path, sizeof(path), "%s/torch/python3", build);
	if (access(path, X_OK) || shell("%s/criu/criu check >/dev/null 2>&1", build)) {
		printf("# frozen: there is no PyTorch, or no CRIU that works here\n");
		return;
	}
	if (shell("cp selftests/bench/job/job_state.py %s", dir))
		die("there is no selftests/bench/job/job_state.py");
	for (int i = 0; i < 3; i++)
		frozen(mib[i]);
}

/* ------------------------------------------------------------------------------------------- */

static const struct part parts[] = { { "cut", part_cut }, { "bytes", part_bytes }, { "step", part_step },
	{ "rate", part_rate }, { "frozen", part_frozen } };

int main(int argc, char **argv)
{
	return run_parts("job", parts, sizeof(parts) / sizeof(parts[0]), argc, argv);
}
