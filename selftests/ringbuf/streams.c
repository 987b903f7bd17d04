// SPDX-License-Identifier: Apache-2.0
/*
 * streams.c - short records posted without a call, records taken in runs, and handlers that submit at
 *             each instruction of a restartable sequence
 */
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#include "pair.h"

#define THREADS_MAX 4

/* In self->shm. */
struct stream {
	uint32_t n;			/* records of each producer; 0: until told to stop */
	uint32_t threads;
	uint32_t max;			/* bytes of payload */
	uint32_t rseq;			/* the client uses restartable sequences */
	atomic_uint said, stop, attached, handled;
	uint32_t total[2];
};

/* As ring_submit, by the way of the stubs if the record is short enough. */
static int post(struct ring *r, uint16_t op, const void *data, uint32_t len)
{
	uint64_t w[RING_POST_MAX / 8] = { 0 };

	if (len > RING_POST_MAX)
		return ring_submit(r, op, data, len, NULL, 0);
	memcpy(w, data, len);
	return ring_post(r, op, len, w[0], w[1], w[2], w[3], w[4], w[5]);
}

static int take_run(struct ring *r, struct ring_record *rec, unsigned int max)
{
	int rc;

	while (!(rc = ring_peek_run(r, rec, max))) {
		rc = ring_wait(r, 20 * SEC);
		if (rc && rc != -EINTR)
			return rc;
	}
	return rc;
}

/* --------------------------------------------------------------------------- lengths and runs */

struct producer {
	pthread_t thread;
	struct ring *r;
	struct stream *s;
	uint32_t id;
};

static uint32_t any_length(const struct stream *s, uint64_t *seed)
{
	uint32_t len = sizeof(struct mark) + rnd(seed) % (RING_POST_MAX - sizeof(struct mark) + 1);

	/* Mostly short ones, so that there are streams of them. */
	if (rnd(seed) % 50 == 0)
		len = sizeof(struct mark) + rnd(seed) % (s->max - sizeof(struct mark) + 1);
	return len;
}

static void *send_marked(void *arg)
{
	struct producer *p = arg;
	uint64_t seed = 0x9e3779b97f4a7c15ull * (p->id + 1);
	uint8_t *data = malloc(p->s->max);
	uint32_t i, len;

	NEED(data);
	for (i = 0; i < p->s->n; i++) {
		len = any_length(p->s, &seed);
		mark(data, p->id, i, len);
		if (rnd(&seed) % 8)
			NEED_OK(post(p->r, 1 + p->id, data, len));
		else if (rnd(&seed) % 64)
			NEED_OK(ring_submit(p->r, 1 + p->id, data, len, NULL, 0));
		else
			NEED_OK(ring_call(p->r, 1 + p->id, data, len, NULL, 0, NULL, NULL, 0, NULL));
	}
	free(data);
	return NULL;
}

static void send_together(int fd, void *arg)
{
	struct producer p[THREADS_MAX];
	struct stream *s = arg;
	struct ring *r = attached(fd);
	uint32_t i;

	for (i = 0; i < s->threads; i++) {
		p[i] = (struct producer){ .r = r, .s = s, .id = i };
		NEED_OK(pthread_create(&p[i].thread, NULL, send_marked, &p[i]));
	}
	for (i = 0; i < s->threads; i++)
		pthread_join(p[i].thread, NULL);
	ring_close(r);
}

struct taken {
	uint64_t seq, seed, total;
	uint32_t next_of[THREADS_MAX];
	uint32_t runs, longest;
};

/* Takes a run, and all of it or some; those that we do not advance past must come again. */
static int take_some(struct ring *r, struct taken *k)
{
	unsigned int most = rnd(&k->seed) % 4 ? 1 + rnd(&k->seed) % 100 : 1;
	struct ring_record run[100];
	int got = take_run(r, run, most), keep, i;
	uint64_t seq = k->seq;
	struct mark m;

	if (got < 0)
		return got;
	if (!got || got > (int)most)
		return -ERANGE;
	keep = rnd(&k->seed) % 4 ? got : (int)(rnd(&k->seed) % (got + 1));
	for (i = 0; i < got; i++) {
		if (!marked(&run[i], &m) || m.producer >= THREADS_MAX ||
		    run[i].op != 1 + m.producer || run[i].seq <= seq)
			return -EBADMSG;
		seq = run[i].seq;
		if (i >= keep)
			continue;
		if (m.n != k->next_of[m.producer]++)
			return -EILSEQ;
		if (run[i].cpl)
			ring_complete(r, run[i].cpl, run[i].seq, 0, NULL, 0);
		k->seq = seq;
		k->total++;
	}
	if (keep == got)
		ring_advance(r);
	else if (keep)
		ring_advance_past(r, &run[keep - 1]);
	k->runs++;
	if (k->longest < (uint32_t)got)
		k->longest = got;
	return got;
}

static void take_all(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self,
		     enum ring_backend backend, uint32_t threads, uint32_t units)
{
	struct stream *s = (void *)self->shm;
	struct taken k = { .seed = units + threads };
	pid_t pid;
	int rc;

	self->p = params_of(backend);
	self->p.geo.ring_units = units;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	s->n = scaled(100000) / threads;
	s->threads = threads;
	s->max = units == 64 ? 500 : 2000;
	pid = spawn_client(&self->z, self->r, send_together, s);
	ASSERT_LT(0, pid);
	while ((rc = take_some(self->r, &k)) > 0)
		;
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ((uint64_t)threads * s->n, k.total);
	EXPECT_EQ(self->r->rx.requested, self->r->rx.answered);
	/* Runs are more than one record long, and each did not wait for the ring to fill. */
	EXPECT_LT(3, k.longest);
	EXPECT_LT(k.total / 100, k.runs);
	EXPECT_EQ(0, reap(&self->z, pid));
	ring_close(self->r);
	self->r = NULL;
}

TEST_F_TIMEOUT(ring, posted_records_come_in_runs_whole_and_in_order, 900)
{
	uint32_t threads, units;

	for (threads = 1; threads <= THREADS_MAX; threads *= 4)
		for (units = 64; units <= 4096; units *= 4)
			take_all(_metadata, self, variant->backend, threads, units);
}

/* ------------------------------------------------------------------------------- visibility */

static void post_then_say(int fd, void *arg)
{
	struct stream *s = arg;
	struct ring *r = attached(fd);
	uint8_t data[RING_POST_MAX];
	uint32_t i;

	for (i = 0; i < s->n; i++) {
		mark(data, 0, i, sizeof(data));
		NEED_OK(post(r, 1, data, sizeof(data)));
		s->said = 2 * i + 1;
		while (s->said != 2 * i + 2)
			sched_yield();
	}
	ring_close(r);
}

TEST_F_TIMEOUT(ring, a_record_is_there_when_post_returns, 900)
{
	struct stream *s = (void *)self->shm;
	struct ring_record run[2];
	struct mark m;
	uint32_t i;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	s->n = scaled(3000);
	pid = spawn_client(&self->z, self->r, post_then_say, s);
	ASSERT_LT(0, pid);
	for (i = 0; i < s->n; i++) {
		while (s->said != 2 * i + 1)
			sched_yield();
		/* Once, without waiting; and again, the same. */
		ASSERT_EQ(1, ring_peek_run(self->r, run, 2));
		ASSERT_EQ(1, ring_peek(self->r, run));
		ASSERT_EQ(true, marked(run, &m));
		ASSERT_EQ(i, m.n);
		ring_advance(self->r);
		ASSERT_EQ(0, ring_peek_run(self->r, run, 2));
		s->said = 2 * i + 2;
	}
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(-EPIPE, take_run(self->r, run, 2));
}

/* -------------------------------------------------------------------------- what is refused */

static void post_badly(int fd, void *arg)
{
	struct ring *r = attached(fd);
	pid_t pid;
	int status;

	(void)arg;
	NEED(ring_post(r, SINGVGPU_OP_PAD, 48, 0, 0, 0, 0, 0, 0) == -EINVAL);
	NEED(ring_post(r, 1, RING_POST_MAX + 1, 0, 0, 0, 0, 0, 0) == -EMSGSIZE);
	NEED_OK(ring_post(r, 1, 48, 1, 2, 3, 4, 5, 6));
	NEED_OK(ring_post(r, 1, 8, 1, 0, 0, 0, 0, 0));
	pid = fork();
	if (!pid)
		_exit(ring_post(r, 1, 8, 1, 0, 0, 0, 0, 0) != -ECHILD);
	NEED(waitpid(pid, &status, 0) == pid && !status);
	NEED_OK(ring_post(r, 1, 0, 0, 0, 0, 0, 0, 0));
	NEED_OK(ring_call(r, 2, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	/* The proxy hangs up now. */
	while (!ring_post(r, 3, 0, 0, 0, 0, 0, 0, 0))
		sched_yield();
	NEED(ring_post(r, 3, 0, 0, 0, 0, 0, 0, 0) == -EPIPE);
	ring_close(r);
}

TEST_F(ring, post_refuses_what_submit_refuses)
{
	static const uint32_t len[] = { 48, 8, 0, 0 };
	struct ring_record rec;
	uint32_t i;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, post_badly, NULL);
	ASSERT_LT(0, pid);
	for (i = 0; i < ARRAY_SIZE(len); i++) {
		ASSERT_EQ(1, take_run(self->r, &rec, 1));
		EXPECT_EQ(len[i], rec.len);
		EXPECT_EQ(i == 3 ? 2 : 1, rec.op);
		if (rec.cpl)
			ring_complete(self->r, rec.cpl, rec.seq, 0, NULL, 0);
		ring_advance(self->r);
	}
	ring_close(self->r);
	self->r = NULL;
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* ------------------------------------------------------- a handler at each instruction, by debugger */

static struct stream *shared;
static struct ring *client_ring;
static uint32_t sent[2];

/* Short ones, which a credit is for, and long ones, which end it, in any order. */
static void submit_one(uint32_t producer)
{
	static const uint32_t lens[] = { 48, 40, 48, 300, 48, 16 };
	static uint64_t seeds[2] = { 11, 12 };
	uint64_t how = rnd(&seeds[producer]);
	uint32_t len = lens[how % ARRAY_SIZE(lens)];
	uint8_t data[300];

	mark(data, producer, sent[producer], len);
	if (how >> 40 & 1)
		NEED_OK(ring_submit(client_ring, 1 + producer, data, len, NULL, 0));
	else
		NEED_OK(post(client_ring, 1 + producer, data, len));
	sent[producer]++;
}

static void on_signal(int sig)
{
	uint32_t i, n = 1 + shared->handled % 3;

	(void)sig;
	for (i = 0; i < n; i++)
		submit_one(1);
	shared->handled++;
}

static void submit_for_ever(int fd, void *arg)
{
	struct sigaction sa = { .sa_handler = on_signal };

	shared = arg;
	client_ring = attached(fd);
	shared->rseq = client_ring->tx.rseq;
	sigaction(SIGUSR1, &sa, NULL);
	shared->attached = 1;
	while (!shared->stop)
		submit_one(0);
	shared->total[0] = sent[0];
	shared->total[1] = sent[1];
	ring_close(client_ring);
}

/* One descriptor of a restartable sequence, as RSEQ_ENTER makes them. */
struct sequence {
	uint32_t version, flags;
	uint64_t start, len, abort;
} __attribute__((aligned(32)));

extern const struct sequence __start___rseq_cs[] __attribute__((weak));
extern const struct sequence __stop___rseq_cs[] __attribute__((weak));

static int take_both(struct ring *r, struct taken *k)
{
	struct ring_record rec;
	int rc;

	while ((rc = ring_peek(r, &rec)) > 0) {
		rc = take_some(r, k);
		if (rc < 0)
			break;
	}
	return rc;
}

static long set_debug(pid_t pid, int reg, unsigned long value)
{
	return ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[reg]), value);
}

/* The consumer, and the debugger of a client that has stopped. */
struct debugger {
	struct ring *r;
	pid_t pid;
	int rc;			/* what took the last records */
	int64_t patience;
	struct taken taken;
};

/* Stops the running client, after a while; true: it has stopped at the breakpoint before. */
static bool halt(struct debugger *d, int64_t patience)
{
	int64_t end = now_ns() + patience;
	int status;

	while (now_ns() < end && d->rc >= 0) {
		if (waitpid(d->pid, &status, WNOHANG | __WALL) == d->pid)
			return WIFSTOPPED(status) && status >> 8 == SIGTRAP;
		d->rc = take_both(d->r, &d->taken);
	}
	ptrace(PTRACE_INTERRUPT, d->pid, 0, 0);
	waitpid(d->pid, &status, __WALL);
	return WIFSTOPPED(status) && status >> 8 == SIGTRAP;
}

/* Runs the handler as if it had interrupted the instruction at this address. Is there one? */
static bool interrupt_at(struct debugger *d, uint64_t address)
{
	if (set_debug(d->pid, 0, address) || set_debug(d->pid, 7, 1) ||
	    ptrace(PTRACE_CONT, d->pid, 0, 0)) {
		d->rc = -errno;
		return false;
	}
	if (!halt(d, d->patience))
		return false;
	set_debug(d->pid, 7, 0);
	ptrace(PTRACE_CONT, d->pid, 0, SIGUSR1);
	halt(d, MS / 10);
	return true;
}

TEST_F_TIMEOUT(ring, a_handler_submits_at_each_instruction_of_a_sequence, 600)
{
	struct debugger d = { .patience = getenv("SINGVGPU_VM") ? 20 * MS : 4 * MS };
	struct stream *s = (void *)self->shm;
	uint32_t hits = 0, in_this, most = 0, reached = 0;
	struct taken *k = &d.taken;
	const struct sequence *q;
	int rc, status, again;
	uint64_t at;
	pid_t pid;

	self->p.geo.ring_units = 256;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, submit_for_ever, s);
	ASSERT_LT(0, pid);
	d.r = self->r;
	d.pid = pid;
	d.taken.seed = 7;
	while (!s->attached)
		sched_yield();
	if (!s->rseq || ptrace(PTRACE_SEIZE, pid, 0, 0)) {
		s->stop = 1;
		while (take_some(self->r, k) > 0)
			;
		reap(&self->z, pid);
		SKIP(return, s->rseq ? "no permission to trace" : "no restartable sequences here");
	}
	ASSERT_EQ(0, ptrace(PTRACE_INTERRUPT, pid, 0, 0));
	ASSERT_EQ(pid, waitpid(pid, &status, __WALL));
	for (q = __start___rseq_cs; q < __stop___rseq_cs; q++) {
		in_this = 0;
		for (at = q->start; at < q->start + q->len && d.rc >= 0; at++) {
			if (!interrupt_at(&d, at))
				continue;
			in_this++;
			for (again = scaled(20); again && d.rc >= 0; again--)
				interrupt_at(&d, at);
		}
		hits += in_this;
		reached += in_this > 0;
		most = most < in_this ? in_this : most;
	}
	EXPECT_EQ(0, d.rc);
	set_debug(pid, 7, 0);
	s->stop = 1;
	ptrace(PTRACE_DETACH, pid, 0, 0);
	while ((rc = take_some(self->r, k)) > 0)
		;
	EXPECT_EQ(-EPIPE, rc);
	if (rc != -EPIPE)	/* a hole: it will wait for room for ever */
		kill(pid, SIGKILL);
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(s->total[0], k->next_of[0]);
	EXPECT_EQ(s->total[1], k->next_of[1]);
	TH_LOG("%u records, %u of them by %u handlers at %u instructions of %u sequences",
	       s->total[0] + s->total[1], s->total[1], s->handled, hits, reached);
	EXPECT_LE(hits, atomic_load(&s->handled));
	EXPECT_LT(1, reached);
	EXPECT_LT(20, most);
}

TEST_HARNESS_MAIN
