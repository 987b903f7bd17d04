// SPDX-License-Identifier: Apache-2.0
/*
 * coll.c - all-reduces over the soft device's transport, beside Open MPI and gloo
 *
 *   build/selftests/bench/coll [OUT.json [ROUNDS [two | four | tcp | call]]]
 *
 * Each round measures everything once, one after the other; reported are medians over rounds, of
 * times and of ratios within a round. A time is the best of ten means within the round, for all alike.
 * Here an operation's end starts the next one, as a proxy's stream does: the transport's own thread,
 * with its own way of waiting.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../limits.h"
#include "../report.h"
#include "tree.h"
#include "world.h"

#define ROUNDS_MAX 31
#define WINDOWS    10
#define SIZES      4

struct job {
	uint32_t ranks;
	bool apart; /* device 1 is in another network namespace */
	uint32_t n;
	long bytes[SIZES], times[SIZES];
};

static struct { /* by job and size */
	const char *name;
	struct job job;
} jobs[] = {
	{ "two", { 2, false, 3, { 8, 65536, 16 << 20 }, { 20000, 1000, 6 } } },
	{ "four", { 4, false, 2, { 8, 65536 }, { 500, 200 } } },
	{ "tcp", { 2, true, 1, { 16 << 20 }, { 6 } } },
	{ "call", { 2, false, 3, { 1 << 20, 4 << 20, 16 << 20 }, { 100, 25, 6 } } },
};

enum { TWO, FOUR, TCP, CALL, JOBS };
enum { OURS, MPI, GLOO, EACH, QUEUED, MAKERS };

static const char *const makers[MAKERS] = { "ours", "ompi", "gloo", "each", "queued" };
static double us[JOBS][MAKERS][SIZES][ROUNDS_MAX];
static int rounds = 7;

/* ------------------------------------------------------------------------------ ours */

static struct transport_part part;
static struct transport_start start;
static struct ended finished;
static long left;

static void next(void *arg, enum step_code code)
{
	(void)arg;
	if (code)
		world_fail("an operation ended with %d", code);
	if (!left--) {
		on_end(&finished, STEP_OK);
		return;
	}
	start.order++;
	if (driver->start(end, &start))
		world_fail("start");
}

static double mean(long times)
{
	double begin;

	left = times;
	finished.code = 0;
	world_barrier();
	begin = seconds();
	next(NULL, STEP_OK);
	await(&finished, 100000);
	return (seconds() - begin) / times * 1e6;
}

static void body(uint32_t self, void *arg)
{
	const struct job *j = arg;

	part.rank = self;
	start = (struct transport_start){ .ranks = j->ranks, .nparts = 1, .device = world_devices, .part = &part,
		                     .done = next };
	for (uint32_t i = 0; i < j->n; i++) {
		double best = INFINITY;

		/* Written to: otherwise all of it were one page of zeros. */
		part.send = memset(malloc(j->bytes[i]), 1, j->bytes[i]);
		part.recv = memset(malloc(j->bytes[i]), 1, j->bytes[i]);
		start.call = (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_F32,
			                         .count = j->bytes[i] / 4 };
		for (int w = 0; w <= WINDOWS; w++) {
			double took = mean(j->times[i]);

			best = w && took < best ? took : best;
		}
		if (!self)
			world->figure[i] = best;
	}
}

static void ours(const struct job *j, int job, int round)
{
	world_apart = j->apart;
	world_begin(j->ranks, body, (void *)j);
	if (world_end())
		die("the transport: %s", world->text);
	for (uint32_t i = 0; i < j->n; i++)
		us[job][OURS][i][round] = world->figure[i];
	munmap(world, sizeof(*world));
}

/* ------------------------------------------------------------------------------ the peers */

static void numbers(const char *cmd, const struct job *j, int job, int maker, int round)
{
	FILE *f = popen(cmd, "r");

	for (uint32_t i = 0; i < j->n; i++)
		if (!f || fscanf(f, "%lf", &us[job][maker][i][round]) != 1)
			us[job][maker][i][round] = NAN;
	if (f && pclose(f))
		printf("# failed: %s\n", cmd);
}

static size_t sizes(const struct job *j, char *to, size_t size)
{
	size_t n = 0;

	for (uint32_t i = 0; i < j->n; i++)
		n += snprintf(to + n, size - n, " %ld:%ld", j->bytes[i], j->times[i]);
	return n;
}

static void mpi(const struct job *j, int job, int round, const char *build)
{
	const char *how = "";
	char cmd[4096], list[256];

	sizes(j, list, sizeof(list));
	if (j->apart)
		how = "-H 10.213.0.1:1,10.213.0.2:1 --mca plm_rsh_agent selftests/bench/coll/coll-apart"
		      " --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include 10.213.0.0/24"
		      " --mca oob_tcp_if_include 10.213.0.0/24";
	else if (j->ranks > 2)
		how = "--mca mpi_yield_when_idle 1";
	snprintf(cmd, sizeof(cmd),
	         "%sOMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe "
	         "%s -n %u %s/selftests/bench/coll-mpi%s",
	         j->apart ? "ip netns exec svcolla env " : "", how, j->ranks, build, list);
	numbers(cmd, j, job, MPI, round);
}

static void gloo(const struct job *j, int job, int round)
{
	char cmd[4096], list[256];
	int port = 20000 + (getpid() * 7 + round) % 20000;

	sizes(j, list, sizeof(list));
	snprintf(cmd, sizeof(cmd),
	         "build/torch/python3 -W ignore selftests/bench/coll/coll_gloo.py 1 2 %d%s & "
	         "build/torch/python3 -W ignore selftests/bench/coll/coll_gloo.py 0 2 %d%s; wait",
	         port, list, port, list);
	numbers(cmd, j, job, GLOO, round);
}

/* The same through a job: from NCCL's call to the result in a synchronized stream. */
static void by_calls(const struct job *j, int job, int maker, int round, const char *build)
{
	char dir[] = "/tmp/svcoll.XXXXXX", cmd[4096], list[256];

	if (!mkdtemp(dir))
		die("no folder in /tmp");
	sizes(j, list, sizeof(list));
	snprintf(cmd, sizeof(cmd),
	         "%s/tools/singvgpu run -n %u -- %s/selftests/bench/coll-call %s/id %s%s 2>/dev/null | "
	         "sed 's/^\\[0\\] //'; rm -r %s",
	         build, j->ranks, build, dir, makers[maker], list, dir);
	numbers(cmd, j, job, maker, round);
	if (isnan(us[job][maker][0][round]))
		printf("# failed: %s\n", cmd);
}

/* The size at which calls cost most, beside the bare transport in the same round. */
static double call_ratio(int maker)
{
	double worst = NAN;

	for (uint32_t i = 0; i < jobs[CALL].job.n; i++) {
		double r[ROUNDS_MAX], m;
		int n = 0;

		for (int k = 0; k < rounds; k++)
			if (us[CALL][maker][i][k] > 0)
				r[n++] = us[CALL][maker][i][k] / us[CALL][OURS][i][k];
		m = n ? median(r, n) : NAN;
		worst = isnan(worst) || m > worst ? m : worst;
	}
	return worst;
}

/* ------------------------------------------------------------------------------ bytes */

static void bytes_body(uint32_t self, void *arg)
{
	struct job j = { .ranks = world->n, .n = 1, .bytes = { 4 << 20 }, .times = { 1 } };

	(void)arg;
	body(self, &j);
}

/* Of what goes over all links, the worst of 2 … 8 devices. */
static double bytes(void)
{
	double worst = 0;

	for (uint32_t n = 2; n <= 8; n++) {
		uint64_t sent = 0;
		double ideal = 2.0 * (n - 1) * (4 << 20) * (WINDOWS + 1);

		world_apart = false;
		world_begin(n, bytes_body, NULL);
		if (world_end())
			die("the transport: %s", world->text);
		for (uint32_t i = 0; i < n; i++)
			sent += world->count[i].sent;
		worst = sent / ideal > worst ? sent / ideal : worst;
		munmap(world, sizeof(*world));
	}
	return worst;
}

/* ------------------------------------------------------------------------------ the report */

/* Rounds in which all that was to be measured was: the ratio of times, theirs by ours. */
static double ratio(int job, int size, int last)
{
	double r[ROUNDS_MAX];
	int n = 0;

	for (int i = 0; i < rounds; i++) {
		double best = us[job][MPI][size][i];

		if (last == GLOO && us[job][GLOO][size][i] < best)
			best = us[job][GLOO][size][i];
		if (!isnan(best) && best > 0)
			r[n++] = best / us[job][OURS][size][i];
	}
	return n ? median(r, n) : NAN;
}

static void figures(void)
{
	for (int job = 0; job < JOBS; job++)
		for (uint32_t i = 0; i < jobs[job].job.n; i++)
			for (int m = 0; m < MAKERS; m++) {
				char name[64];
				double v[ROUNDS_MAX];
				int n = 0;

				for (int r = 0; r < rounds; r++)
					if (us[job][m][i][r] > 0)
						v[n++] = us[job][m][i][r];
				if (!n)
					continue;
				snprintf(name, sizeof(name), "coll.%s_%ld_%s_ns", jobs[job].name,
				         jobs[job].job.bytes[i], makers[m]);
				metric(name, median(v, n) * 1e3, "ns");
			}
}

int main(int argc, char **argv)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	bool has_mpi, has_gloo, has_net, has_call;
	char path[4096];

	if (argc > 2)
		rounds = atoi(argv[2]);
	if (argc > 4 || rounds < 1 || rounds > ROUNDS_MAX)
		die("usage: coll [OUT.json [ROUNDS [JOB]]]");
	snprintf(path, sizeof(path), "%s/selftests/bench/coll-mpi", build);
	has_mpi = !access(path, X_OK);
	snprintf(path, sizeof(path), "%s/selftests/bench/coll-call", build);
	has_call = !access(path, X_OK);
	has_gloo = !access("build/torch/python3", X_OK);
	has_net = !system("selftests/bench/coll/coll-apart begin 2>/dev/null");
	if (!has_mpi)
		printf("# no Open MPI (openmpi-bin, libopenmpi-dev): nothing to compare with\n");
	if (!has_gloo)
		printf("# no PyTorch in build/torch (make torch): not compared with gloo\n");
	if (!has_net)
		printf("# no network namespaces (they need root): TCP is not measured\n");
	if (!has_call)
		printf("# no NCCL 2.22 or newer in the CUDA toolkit: calls of a job are not measured\n");
	for (int r = 0; r < rounds; r++)
		for (int job = 0; job < JOBS; job++) {
			const struct job *j = &jobs[job].job;

			if (argc > 3 && strcmp(argv[3], jobs[job].name))
				continue;
			if ((job == TCP && !has_net) || (job == CALL && !has_call))
				continue;
			ours(j, job, r);
			if (job == CALL) {
				by_calls(j, job, EACH, r, build);
				by_calls(j, job, QUEUED, r, build);
				continue;
			}
			if (has_mpi)
				mpi(j, job, r, build);
			if (has_gloo && job == TWO)
				gloo(j, job, r);
		}
	if (has_net && system("selftests/bench/coll/coll-apart end"))
		printf("# the namespaces svcolla and svcollb are still there\n");
	figures();
	metric("limit.bounce_ns", limit_bounce_ns(), "ns");
	if (argc < 4)
		metric_bar("coll.bytes_vs_ideal", bytes(), NAN, 1.001);
	metric_bar("coll.allreduce_64k_vs_best", ratio(TWO, 1, GLOO), 1.0, NAN);
	metric_bar("coll.allreduce_16m_vs_best", ratio(TWO, 2, GLOO), 1.0, NAN);
	metric_bar("coll.latency8_vs_ompi", 1 / ratio(TWO, 0, MPI), NAN, 1.5);
	metric_bar("coll.oversub8_vs_ompi", ratio(FOUR, 0, MPI), 1.0, NAN);
	metric_bar("coll.oversub_vs_ompi", ratio(FOUR, 1, MPI), 1.0, NAN);
	metric_bar("coll.tcp_16m_vs_ompi", ratio(TCP, 0, MPI), 0.9, NAN);
	metric_bar("coll.call_vs_transport", call_ratio(EACH), NAN, 1.25);
	metric_bar("coll.queued_vs_transport", call_ratio(QUEUED), NAN, 1.25);
	if (argc > 1)
		snprintf(path, sizeof(path), "%s", argv[1]);
	else
		snprintf(path, sizeof(path), "%s/bench/coll.json", build);
	write_json(path);
	return 0;
}
