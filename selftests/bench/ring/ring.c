// SPDX-License-Identifier: Apache-2.0
/*
 * ring.c - times the channel beside the machine's limits and its peers, in one run
 *
 * Machines are noisy: every round measures everything once, one after the other. Reported are
 * medians over rounds, of figures and of ratios within a round.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../limits.h"
#include "peers.h"
#include "ring.h"
#include "ring_post.h"

#define ROUNDS_MAX	101
#define COMMANDS	400000
#define BURSTS		2000
#define BURST		64
#define CALLS		20000
#define SLEEPS		1500
#define OP		1
#define RUN		64

/* ---------------------------------------------------------------------------- statistics */

struct metric {
	const char *name, *unit;
	double v[ROUNDS_MAX];
	int n;
};

static struct metric metrics[64];
static int nmetrics;

static void note(const char *name, const char *unit, double v)
{
	int i;

	for (i = 0; i < nmetrics; i++)
		if (!strcmp(metrics[i].name, name))
			break;
	if (i == nmetrics)
		metrics[nmetrics++] = (struct metric){ .name = name, .unit = unit };
	if (metrics[i].n < ROUNDS_MAX)
		metrics[i].v[metrics[i].n++] = v;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(struct metric *m)
{
	qsort(m->v, m->n, sizeof(*m->v), by_value);
	return m->v[m->n / 2];
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void die(const char *what, int err)
{
	fprintf(stderr, "bench: %s: %s\n", what, ring_strerror(err));
	_exit(1);
}

/* ------------------------------------------------------------------------ the client's part */

/* Written by the client, read by the parent when the client has ended. */
struct result {
	double async64, async256, async4k, async64x4, burst64, p50, p99, sleep_p50;
};

/* What a stub does: a call with six arguments or so, inlined. */
static double stream64(struct ring *r, long n)
{
	uint64_t begin = now();
	int32_t status;
	long i;
	int rc;

	for (i = 0; i < n; i++) {
		rc = ring_post(r, OP, RING_POST_MAX, i, i + 1, i + 2, i + 3, i + 4, i + 5);
		if (rc)
			die("post", rc);
	}
	rc = ring_call(r, OP, NULL, 0, NULL, 0, &status, NULL, 0, NULL);
	if (rc)
		die("call", rc);
	return (double)(now() - begin) / n;
}

static double stream_of(struct ring *r, uint32_t len, long n)
{
	uint8_t payload[4096] = { 0 };
	uint64_t begin = now();
	int32_t status;
	long i;
	int rc;

	for (i = 0; i < n; i++) {
		memcpy(payload, &i, sizeof(i));
		rc = ring_submit(r, OP, payload, len - sizeof(struct singvgpu_rec), NULL, 0);
		if (rc)
			die("submit", rc);
	}
	rc = ring_call(r, OP, NULL, 0, NULL, 0, &status, NULL, 0, NULL);
	if (rc)
		die("call", rc);
	return (double)(now() - begin) / n;
}

static void *producer(void *arg)
{
	stream64(arg, COMMANDS / 4);
	return NULL;
}

static double four_producers(struct ring *r)
{
	pthread_t t[4];
	uint64_t begin = now();
	int i;

	for (i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, producer, r);
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	return (double)(now() - begin) / COMMANDS;
}

static double bursts(struct ring *r)
{
	uint64_t took = 0, begin;
	int i, k;

	for (i = 0; i < BURSTS; i++) {
		ring_call(r, OP, NULL, 0, NULL, 0, NULL, NULL, 0, NULL);
		begin = now();
		for (k = 0; k < BURST; k++)
			ring_post(r, OP, RING_POST_MAX, k, 0, 0, 0, 0, 0);
		took += now() - begin;
	}
	return (double)took / BURSTS / BURST;
}

static void round_trips(struct ring *r, int n, double *p50, double *p99)
{
	static double took[CALLS];
	uint64_t begin = now(), t0 = __builtin_ia32_rdtsc(), t;
	uint8_t payload[48] = { 0 };
	double ns;
	int i, rc;

	for (i = 0; i < n; i++) {
		t = __builtin_ia32_rdtsc();
		rc = ring_call(r, OP, payload, sizeof(payload), NULL, 0, NULL, NULL, 0, NULL);
		took[i] = __builtin_ia32_rdtsc() - t;
		if (rc)
			die("call", rc);
	}
	ns = (double)(now() - begin) / (__builtin_ia32_rdtsc() - t0);
	qsort(took, n, sizeof(*took), by_value);
	*p50 = took[n / 2] * ns;
	*p99 = took[n * 99 / 100] * ns;
}

static void measure(struct ring *r, struct result *res)
{
	double unused;

	stream64(r, 10000);	/* touches all pages */
	res->async64 = stream64(r, COMMANDS);
	res->burst64 = bursts(r);
	round_trips(r, CALLS, &res->p50, &res->p99);
	res->async256 = stream_of(r, 256, COMMANDS / 4);
	res->async4k = stream_of(r, 4096, COMMANDS / 64);
	ring_set_spin(r, 0);
	ring_submit(r, OP + 1, NULL, 0, NULL, 0);	/* the other side likewise */
	round_trips(r, SLEEPS, &res->sleep_p50, &unused);
	ring_submit(r, OP + 2, NULL, 0, NULL, 0);
	ring_set_spin(r, 10000);
	res->async64x4 = four_producers(r);
}

static void client(int sock, struct result *res)
{
	struct ring *r;
	int rc;

	pin(limit_cpu(0));
	rc = ring_attach(&r, ring_take_fd(sock));
	if (rc)
		die("attach", rc);
	measure(r, res);
	ring_close(r);
	_exit(0);
}

/* ------------------------------------------------------------------------- the proxy's part */

static uint64_t payloads;

static void serve_one(struct ring *r, const struct ring_record *rec)
{
	uint64_t first;

	if (rec->op == OP + 1)
		ring_set_spin(r, 0);
	else if (rec->op == OP + 2)
		ring_set_spin(r, 10000);
	if (rec->len) {		/* the payload is wanted, too */
		memcpy(&first, rec->data, sizeof(first));
		payloads += first;
	}
	if (rec->cpl)
		ring_complete(r, rec->cpl, rec->seq, 0, NULL, 0);
}

static void serve(struct ring *r)
{
	struct ring_record rec[RUN];
	int rc, i;

	for (;;) {
		rc = ring_peek_run(r, rec, RUN);
		if (!rc) {
			rc = ring_wait(r, -1);
			if (rc == -EPIPE)
				return;
			continue;
		}
		if (rc < 0)
			return;
		for (i = 0; i < rc; i++)
			serve_one(r, &rec[i]);
		ring_advance(r);
	}
}

static int one_channel(enum ring_backend backend, struct result *res)
{
	struct ring_params p = { .backend = backend, .id = { 1 }, .cookie = { 1 },
				 .geo = RING_GEOMETRY_DEFAULT };
	int sock[2], fd, rc, status;
	struct ring *r;
	cpu_set_t was;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
		return -errno;
	pid = fork();
	if (!pid)
		client(sock[1], res);
	p.id[1] = pid;
	p.id[2] = pid >> 8;
	rc = ring_create(&r, &p);
	if (rc)
		die("create", rc);
	ring_watch_peer(r, syscall(SYS_pidfd_open, pid, 0));
	fd = ring_client_fd(r);
	if (fd < 0)
		die("client fd", fd);
	rc = ring_pass_fd(sock[0], fd);
	if (rc)
		die("pass fd", rc);
	close(fd);
	sched_getaffinity(0, sizeof(was), &was);
	pin(limit_cpu(1));
	serve(r);
	sched_setaffinity(0, sizeof(was), &was);
	waitpid(pid, &status, 0);
	ring_close(r);
	close(sock[0]);
	close(sock[1]);
	return status ? -EPROTO : 0;
}

/* ------------------------------------------------------------------------------ the table */

static void round_once(struct result *res)
{
	double stream = limit_stream_ns(), bounce = limit_bounce_ns(), v;
	int rc;

	rc = one_channel(RING_MEMFD, res);
	if (rc)
		die("memfd channel", rc);
	note("limit.stream_ns", "ns", stream);
	note("limit.bounce_ns", "ns", bounce);
	note("ring.async64_ns", "ns", res->async64);
	note("ring.async64_ratio", "x limit.stream", res->async64 / stream);
	note("ring.burst64_ns", "ns", res->burst64);
	note("ring.rtt_awake_p50_ns", "ns", res->p50);
	note("ring.rtt_awake_p99_ns", "ns", res->p99);
	note("ring.rtt_awake_ratio", "x limit.bounce", res->p50 / bounce);
	note("ring.rtt_asleep_p50_ns", "ns", res->sleep_p50);
	note("ring.async256_ns", "ns", res->async256);
	note("ring.async4096_ns", "ns", res->async4k);
	note("ring.async64_4producers_ns", "ns", res->async64x4);
	if (!access(SINGVGPU_DEV_PATH, R_OK | W_OK) && !one_channel(RING_KMOD, res)) {
		note("ring.kmod_async64_ns", "ns", res->async64);
		note("ring.kmod_rtt_awake_p50_ns", "ns", res->p50);
		note("ring.kmod_rtt_asleep_p50_ns", "ns", res->sleep_p50);
	}
	note("peer.futex_rtt_ns", "ns", peer_futex_ns());
	note("peer.eventfd_rtt_ns", "ns", peer_eventfd_ns());
	note("peer.pipe_rtt_ns", "ns", peer_pipe_ns());
	note("peer.unix_rtt_ns", "ns", peer_unix_ns());
	v = peer_rte_ring_ns();
	if (v > 0) {
		note("peer.rte_ring64_ns", "ns", v);
		note("ring.async64_vs_rte_ring", "x peer", res->async64 / v);
	}
}

static int report(const char *path)
{
	FILE *f = fopen(path, "w");
	int i;

	if (!f) {
		fprintf(stderr, "bench: %s: %m\n", path);
		return 1;
	}
	fprintf(f, "[");
	printf("%-28s %12s %12s %12s  %s\n", "metric", "median", "least", "most", "unit");
	for (i = 0; i < nmetrics; i++) {
		struct metric *m = &metrics[i];
		double mid = median(m);

		printf("%-28s %12.2f %12.2f %12.2f  %s\n", m->name, mid, m->v[0],
		       m->v[m->n - 1], m->unit);
		fprintf(f, "%s\n{\"metric\": \"%s\", \"value\": %.3f, \"unit\": \"%s\"}",
			i ? "," : "", m->name, mid, m->unit);
	}
	fprintf(f, "\n]\n");
	return fclose(f) != 0;
}

int main(int argc, char **argv)
{
	const char *out = argc > 1 ? argv[1] : "build/bench/ring.json";
	int rounds = argc > 2 ? atoi(argv[2]) : 15, i;
	struct result *res;

	if (argc > 3 || rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: %s [OUT.json [ROUNDS]]\n", argv[0]);
		return 2;
	}
	res = mmap(NULL, sizeof(*res), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (res == MAP_FAILED)
		return 1;
	for (i = 0; i < rounds; i++)
		round_once(res);
	return report(out);
}
