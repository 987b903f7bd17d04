// SPDX-License-Identifier: Apache-2.0
/*
 * freeze.c - the gate, the drain, and a channel that is saved and restored
 */
#include <sys/resource.h>

#include "pair.h"

struct gate {
	atomic_uint sent;
	atomic_uint go;
	uint32_t n;
	uint32_t threads;
	uint32_t first;		/* number of this client's first record */
	atomic_int refused;
};

static int serve(void *arg, struct ring *r, const struct ring_record *rec)
{
	long *n = arg;

	if (rec->cpl)
		ring_complete(r, rec->cpl, rec->seq, 0, NULL, 0);
	ring_advance(r);
	++*n;
	return 0;
}

struct counts {
	uint32_t next_of[4];
	uint32_t total;
};

/* Takes a record of push_all's, which must be its thread's next. */
static int count(void *arg, struct ring *r, const struct ring_record *rec)
{
	struct counts *c = arg;
	struct mark m;

	if (!marked(rec, &m) || m.producer > 3 || m.n != c->next_of[m.producer]++)
		return -EBADMSG;
	ring_advance(r);
	c->total++;
	return 0;
}

static int serve_none(void *arg, struct ring *r, const struct ring_record *rec)
{
	(void)arg;
	(void)r;
	(void)rec;
	return -EAGAIN;
}

static int serve_unanswered(void *arg, struct ring *r, const struct ring_record *rec)
{
	struct ring_record *kept = arg;

	if (rec->cpl)
		*kept = *rec;
	ring_advance(r);
	return 0;
}

static int serve_badly(void *arg, struct ring *r, const struct ring_record *rec)
{
	(void)arg;
	(void)r;
	(void)rec;
	return -EIO;
}

/* As a bystander sees it. */
static bool committed_for_test(struct ring *r, uint64_t n)
{
	return load_acquire(&unit_at(r, n - 1)->seq) == n;
}

static int32_t ring_error_of(struct ring *r)
{
	return ring_error(r, NULL);
}

/* ---------------------------------------------------------------------------------- the gate */

struct pusher {
	struct ring *r;
	struct gate *g;
	uint32_t id;
};

static void *push(void *arg)
{
	struct pusher *p = arg;
	uint8_t data[80];
	uint32_t i;

	for (i = 0; i < p->g->n; i++) {
		mark(data, p->id, i, sizeof(data));
		NEED_OK(ring_submit(p->r, 1, data, sizeof(data), NULL, 0));
		p->g->sent++;
	}
	return NULL;
}

static void push_all(int fd, void *arg)
{
	struct gate *g = arg;
	struct ring *r = attached(fd);
	struct pusher p[16];
	pthread_t t[16];
	uint32_t i;

	for (i = 0; i < g->threads; i++) {
		p[i] = (struct pusher){ r, g, i };
		NEED_OK(pthread_create(&t[i], NULL, push, &p[i]));
	}
	for (i = 0; i < g->threads; i++)
		pthread_join(t[i], NULL);
	ring_close(r);
}

/* Until nobody submits any more: the count has not moved for 20 ms. */
static uint32_t settled(atomic_uint *sent)
{
	uint32_t was;

	do {
		was = *sent;
		sleep_ns(20 * MS);
	} while (was != *sent);
	return was;
}

/* Waits until so many are submitted: a client may be slow to begin. Returns what there is. */
static uint32_t reached(atomic_uint *sent, uint32_t want)
{
	int64_t end = now_ns() + 3 * PATIENCE;

	while (*sent != want && now_ns() < end)
		sleep_ns(MS);
	return *sent;
}

TEST_F(ring, the_gate_stops_all_producers_until_thaw)
{
	struct gate *g = (void *)self->shm;
	struct counts c = { 0 };
	struct ring_record rec;
	uint32_t round, i, stopped, before;
	pid_t pid;
	int rc = 1;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	EXPECT_EQ(-EALREADY, ring_thaw(self->r));
	g->n = scaled(20000);
	g->threads = 4;
	pid = spawn_client(&self->z, self->r, push_all, g);
	ASSERT_LT(0, pid);
	for (round = 0; round < 10; round++) {
		for (i = 0; i < g->n / 20; i++) {
			ASSERT_EQ(1, next(self->r, &rec));
			ASSERT_EQ(0, count(&c, self->r, &rec));
		}
		ASSERT_EQ(0, ring_freeze(self->r, count, &c, 3 * PATIENCE));
		EXPECT_EQ(-EALREADY, ring_freeze(self->r, count, &c, 0));
		stopped = settled(&g->sent);
		/* Who had passed the gate may have committed since; nobody else has. */
		before = c.total;
		while ((rc = ring_peek(self->r, &rec)) == 1)
			ASSERT_EQ(0, count(&c, self->r, &rec));
		EXPECT_EQ(0, rc);
		EXPECT_GE(before + 4, c.total);
		EXPECT_EQ(c.total, stopped);
		sleep_ns(5 * MS);
		EXPECT_EQ(stopped, atomic_load(&g->sent));
		EXPECT_EQ(0, ring_peek(self->r, &rec));
		EXPECT_EQ(0, ring_thaw(self->r));
		EXPECT_EQ(-EALREADY, ring_thaw(self->r));
	}
	while ((rc = next(self->r, &rec)) == 1)
		ASSERT_EQ(0, count(&c, self->r, &rec));
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(4 * g->n, c.total);
	EXPECT_EQ(0, reap(&self->z, pid));
}

static int try_one(struct ring *r, struct gate *g)
{
	uint8_t data[40];
	int rc;

	mark(data, 0, g->sent, sizeof(data));
	rc = ring_try_submit(r, 1, data, sizeof(data), NULL, 0);
	if (!rc)
		g->sent++;
	return rc;
}

/* Fills the ring; then each record is tried, or waited for, until it is in. */
static void try_all(int fd, void *arg)
{
	struct gate *g = arg;
	struct ring *r = attached(fd);
	int rc;

	while (!(rc = try_one(r, g)))
		;
	NEED(rc == -EAGAIN);
	/* For the consumer, which has not begun, and then for the gate. */
	do {
		NEED_OK(ring_wait_room(r, 40));
	} while ((rc = try_one(r, g)) == -EAGAIN);
	NEED_OK(rc);
	while (!g->go)
		sched_yield();
	g->refused = try_one(r, g);
	while (g->sent < g->n) {
		rc = try_one(r, g);
		if (rc == -EAGAIN)
			rc = ring_wait_room(r, 40);
		NEED_OK(rc);
	}
	ring_close(r);
}

TEST_F(ring, who_only_tries_waits_neither_for_room_nor_at_the_gate)
{
	struct gate *g = (void *)self->shm;
	struct ring_record rec;
	struct counts c = { 0 };
	pid_t pid;
	int rc;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	g->n = 20000;
	g->refused = 1;
	pid = spawn_client(&self->z, self->r, try_all, g);
	ASSERT_LT(0, pid);
	EXPECT_EQ(self->p.geo.ring_units - 1, reached(&g->sent, self->p.geo.ring_units - 1));
	ASSERT_EQ(0, ring_freeze(self->r, count, &c, 3 * PATIENCE));
	/* There is room now, and the gate is closed. */
	sleep_ns(5 * MS);
	EXPECT_EQ(c.total, atomic_load(&g->sent));
	EXPECT_EQ(0, ring_thaw(self->r));
	ASSERT_EQ(1, next(self->r, &rec));
	ASSERT_EQ(0, ring_freeze(self->r, count, &c, 3 * PATIENCE));
	g->go = 1;
	for (int i = 0; i < 1000 && g->refused == 1; i++)
		sleep_ns(5 * MS);
	EXPECT_EQ(-EAGAIN, atomic_load(&g->refused));
	sleep_ns(5 * MS);
	EXPECT_EQ(c.total, atomic_load(&g->sent));
	EXPECT_EQ(0, ring_thaw(self->r));
	while ((rc = next(self->r, &rec)) == 1)
		ASSERT_EQ(0, count(&c, self->r, &rec));
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(g->n, c.total);
	EXPECT_EQ(0, reap(&self->z, pid));
}

static void call_once(int fd, void *arg)
{
	struct gate *g = arg;
	struct ring *r = attached(fd);
	int32_t status = 1;

	NEED_OK(ring_submit(r, 1, "x", 1, NULL, 0));
	g->sent = 1;
	NEED_OK(ring_call(r, 2, "y", 1, NULL, 0, &status, NULL, 0, NULL));
	NEED(status == 0);
	g->sent = 2;
	while (!g->go)
		sched_yield();
	ring_close(r);
}

TEST_F(ring, a_drain_that_fails_says_why_and_opens_the_gate)
{
	struct gate *g = (void *)self->shm;
	struct ring_record kept = { 0 };
	int64_t begin;
	long served = 0;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, call_once, g);
	ASSERT_LT(0, pid);
	while (!committed_for_test(self->r, 2))
		sched_yield();
	begin = now_ns();
	EXPECT_EQ(-ETIMEDOUT, ring_freeze(self->r, serve_none, NULL, 30 * MS));
	EXPECT_LE(30 * MS, now_ns() - begin);
	EXPECT_GE(PATIENCE, now_ns() - begin);
	EXPECT_STREQ("records are left in the ring", ring_why(self->r));
	EXPECT_EQ(-EALREADY, ring_thaw(self->r));
	EXPECT_EQ(-EIO, ring_freeze(self->r, serve_badly, NULL, SEC));
	EXPECT_EQ(-EALREADY, ring_thaw(self->r));

	EXPECT_EQ(-ETIMEDOUT, ring_freeze(self->r, serve_unanswered, &kept, 30 * MS));
	EXPECT_STREQ("requests are not answered yet", ring_why(self->r));
	EXPECT_EQ(-EALREADY, ring_thaw(self->r));
	EXPECT_EQ(2, kept.op);
	EXPECT_EQ(1, atomic_load(&g->sent));
	EXPECT_EQ(0, ring_complete(self->r, kept.cpl, kept.seq, 0, NULL, 0));
	EXPECT_EQ(0, ring_freeze(self->r, serve, &served, 3 * PATIENCE));
	EXPECT_EQ(0, served);
	EXPECT_EQ(0, ring_thaw(self->r));
	g->go = 1;
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(2, atomic_load(&g->sent));
}

/* One thread asks all the time, though the gate is closed; the other may not get through. */
static void *ask_anyway(void *arg)
{
	struct pusher *p = arg;
	struct ring_ticket t;
	uint32_t next;

	do {
		NEED_OK(ring_request_anyway(p->r, &t, 7, NULL, 0, NULL, 0));
		NEED_OK(ring_await(p->r, &t, NULL, &next, sizeof(next), NULL, PATIENCE));
	} while (next);
	return NULL;
}

static void push_and_ask(int fd, void *arg)
{
	struct gate *g = arg;
	struct pusher p = { attached(fd), g, 0 };
	pthread_t t[2];

	NEED_OK(pthread_create(&t[0], NULL, ask_anyway, &p));
	NEED_OK(pthread_create(&t[1], NULL, push, &p));
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
	ring_close(p.r);
}

struct asked {
	struct ring_record open;	/* the request that is not answered */
	uint32_t times, pushed;
	uint32_t unanswered;		/* as it was at the end */
};

static int serve_asked(void *arg, struct ring *r, const struct ring_record *rec)
{
	struct asked *a = arg;

	if (rec->op == 7)
		a->open = *rec;
	else
		a->pushed++;
	ring_advance(r);
	return 0;
}

static int when_asked_often(void *arg, struct ring *r, uint64_t unanswered)
{
	struct asked *a = arg;
	uint32_t next = 1;

	if (unanswered != 1) {
		sched_yield();
		return 0;
	}
	if (a->times++ == 100) {
		a->unanswered = unanswered;
		return 1;
	}
	ring_complete(r, a->open.cpl, a->open.seq, 0, &next, sizeof(next));
	return 0;
}

static int answer_and_stop(void *arg, struct ring *r, uint64_t unanswered)
{
	(void)arg;
	(void)r;
	(void)unanswered;
	return -ECANCELED;
}

TEST_F(ring, a_drain_can_wait_for_requests_that_pass_the_gate)
{
	struct gate *g = (void *)self->shm;
	struct asked a = { 0 };
	uint32_t stop = 0, pushed;
	pid_t pid;

	g->n = 1000000;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, push_and_ask, g);
	ASSERT_LT(0, pid);
	while (!committed_for_test(self->r, 1))
		sched_yield();
	ASSERT_EQ(0, ring_freeze_when(self->r, serve_asked, when_asked_often, &a, 3 * PATIENCE));
	EXPECT_EQ(101, a.times);
	EXPECT_EQ(1, a.unanswered);
	/* The other thread stands at the gate meanwhile, but for what it had begun. */
	pushed = settled(&g->sent);
	EXPECT_GE(pushed, a.pushed);
	EXPECT_LE(pushed, a.pushed + 1);
	EXPECT_EQ(pushed, settled(&g->sent));
	/* What comes behind the drain stays in the ring. */
	ring_complete(self->r, a.open.cpl, a.open.seq, 0, &stop, sizeof(stop));
	EXPECT_EQ(0, ring_thaw(self->r));
	EXPECT_EQ(-ECANCELED, ring_freeze_when(self->r, serve_asked, answer_and_stop, &a, SEC));
	EXPECT_EQ(-EALREADY, ring_thaw(self->r));
	EXPECT_EQ(0, ring_peer_gone(self->r));
	kill(pid, SIGKILL);
	EXPECT_NE(0, reap(&self->z, pid));
}

static int when_seen(void *arg, struct ring *r, uint64_t unanswered)
{
	uint64_t *seen = arg;

	(void)r;
	*seen = unanswered;
	return 1;
}

/* A request is seen, which is not served before the freeze nor in it. */
TEST_F(ring, a_freeze_can_leave_all_records_in_the_ring)
{
	struct gate *g = (void *)self->shm;
	struct ring_record first, again;
	uint64_t unanswered = 99;
	uint32_t stop = 0;
	pid_t pid;

	g->n = 4;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, push_and_ask, g);
	ASSERT_LT(0, pid);
	do {
		ASSERT_EQ(1, next(self->r, &first));
		if (first.op != 7)
			ring_advance(self->r);
	} while (first.op != 7);
	EXPECT_EQ(1, ring_unanswered(self->r));
	ASSERT_EQ(0, ring_freeze_when(self->r, NULL, when_seen, &unanswered, SEC));
	EXPECT_EQ(1, unanswered);
	EXPECT_EQ(0, ring_thaw(self->r));
	ASSERT_EQ(1, ring_peek(self->r, &again));
	EXPECT_EQ(first.seq, again.seq);
	EXPECT_EQ(1, ring_unanswered(self->r));
	ring_advance(self->r);
	ring_complete(self->r, again.cpl, again.seq, 0, &stop, sizeof(stop));
	EXPECT_EQ(0, ring_unanswered(self->r));
	while (atomic_load(&g->sent) < 4 && next(self->r, &again) == 1)
		ring_advance(self->r);
	EXPECT_EQ(0, reap(&self->z, pid));
	/* Nobody waits for a drain of a client that has gone. */
	EXPECT_EQ(-EPIPE, ring_freeze_when(self->r, NULL, when_seen, &unanswered, SEC));
}

static void wait_at_gate(int fd, void *arg)
{
	struct gate *g = arg;
	struct ring *r = attached(fd);

	g->go = 1;
	NEED(ring_submit(r, 1, NULL, 0, NULL, 0) == -EPIPE);
	ring_close(r);
}

TEST_F(ring, a_proxy_that_closes_behind_its_gate_tells_those_who_wait)
{
	struct gate *g = (void *)self->shm;
	long served = 0;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	ASSERT_EQ(0, ring_freeze(self->r, serve, &served, 3 * PATIENCE));
	pid = spawn_client(&self->z, self->r, wait_at_gate, g);
	ASSERT_LT(0, pid);
	while (!g->go)
		sched_yield();
	sleep_ns(20 * MS);
	ring_close(self->r);
	self->r = NULL;
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* ------------------------------------------------------------------------------------ arena */

static void write_arena(int fd, void *arg)
{
	struct ring *r = attached(fd);
	uint8_t *a = ring_arena(r);

	(void)arg;
	NEED(a == (uint8_t *)RING_VA_BASE + r->lay.arena_off);
	NEED(a[0] == 1 && a[4096] == 0);
	fill(a + 8192, 60000, 5);
	NEED_OK(ring_call(r, 1, &a, sizeof(a), NULL, 0, NULL, NULL, 0, NULL));
	NEED(a[0] == 0 && a[8192] == 0);
	ring_close(r);
}

TEST_F(ring, the_arena_is_one_memory_at_one_address)
{
	struct ring_record rec;
	uint8_t *a;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	a = ring_arena(self->r);
	EXPECT_EQ(-EINVAL, ring_commit(self->r, 1, 4096));
	EXPECT_EQ(-EINVAL, ring_commit(self->r, 0, 1));
	EXPECT_EQ(-EINVAL, ring_commit(self->r, 0, (1 << 20) + 4096));
	EXPECT_EQ(-EINVAL, ring_commit(self->r, (1 << 20), 4096));
	EXPECT_EQ(-EINVAL, ring_commit(self->r, ~0xfffull, 8192));
	EXPECT_EQ(-EINVAL, ring_decommit(self->r, 1, 4096));
	EXPECT_EQ(-EINVAL, ring_decommit(self->r, 4096, ~0xfffull));
	EXPECT_EQ(0, ring_commit(self->r, 0, 1 << 20));
	a[0] = 1;
	pid = spawn_client(&self->z, self->r, write_arena, NULL);
	ASSERT_LT(0, pid);
	ASSERT_EQ(1, next(self->r, &rec));
	EXPECT_EQ(0, memcmp(rec.data, &a, sizeof(a)));
	EXPECT_EQ(true, filled(a + 8192, 60000, 5));
	EXPECT_EQ(0, ring_decommit(self->r, 0, 1 << 20));
	EXPECT_EQ(0, a[0]);
	EXPECT_EQ(true, !a[8192] && !a[8193] && !a[60000]);
	EXPECT_EQ(0, ring_complete(self->r, rec.cpl, rec.seq, 0, NULL, 0));
	ring_advance(self->r);
	EXPECT_EQ(-EPIPE, next(self->r, &rec));
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* -------------------------------------------------------------------------- save and restore */

static void push_some(int fd, void *arg)
{
	struct gate *g = arg;
	struct ring *r = attached(fd);
	uint8_t data[300];
	uint32_t i, len;

	for (i = g->first; i < g->first + g->n; i++) {
		len = 16 + i * 31 % 280;
		mark(data, 0, i, len);
		NEED_OK(ring_submit(r, 1, data, len, NULL, 0));
	}
	ring_close(r);
}

static int count_entry(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	uint32_t *n = arg;
	struct ring_record rec = { .len = e->len, .data = data };
	struct mark m;

	if (!marked(&rec, &m) || m.n != *n || e->op != 9)
		return -EBADMSG;
	++*n;
	return 0;
}

static int take(struct ring *r, uint32_t from, uint32_t to, bool log)
{
	struct ring_record rec;
	struct mark m;
	int rc;

	for (; from < to; from++) {
		rc = next(r, &rec);
		if (rc != 1)
			return rc;
		if (!marked(&rec, &m) || m.n != from)
			return -EBADMSG;
		if (log)
			rc = ring_log_append(r, &rec, 9, m.n, rec.data, rec.len);
		else
			ring_advance(r);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int saved(struct ring *r, unsigned int flags)
{
	int fd = memfd_create("image", MFD_CLOEXEC);
	int rc = ring_save(r, fd, flags);

	if (rc) {
		close(fd);
		return rc;
	}
	lseek(fd, 0, SEEK_SET);
	return fd;
}

TEST_F(ring, saved_and_restored_everything_is_there)
{
	struct gate *g = (void *)self->shm;
	uint32_t round, logged;
	struct ring *r = NULL;
	uint8_t *arena;
	pid_t pid;
	int fd;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	EXPECT_EQ(0, ring_generation(self->r));
	EXPECT_EQ(-EINVAL, ring_save(self->r, -1, 8));
	EXPECT_EQ(-EBADF, ring_save(self->r, -1, 0));
	arena = ring_arena(self->r);
	fill(arena + 40960, 5000, 3);
	ring_latch_error(self->r, 7, -7);
	for (round = 0; round < 5; round++) {
		/* 15 submitted, 5 logged, 5 consumed, 5 left in the ring, and a client that goes. */
		g->first = round * 15;
		g->n = 15;
		pid = spawn_client(&self->z, self->r, push_some, g);
		ASSERT_LT(0, pid);
		EXPECT_EQ(0, reap(&self->z, pid));
		ASSERT_EQ(0, take(self->r, round ? round * 15 - 5 : 0, round * 15, false));
		ASSERT_EQ(0, take(self->r, round * 15, round * 15 + 5, true));
		ASSERT_EQ(0, take(self->r, round * 15 + 5, round * 15 + 10, false));
		/* The numbers of the second five do not follow on the first: the walk ends there. */
		logged = 0;
		EXPECT_EQ(-EBADMSG * !!round, ring_log_walk(self->r, count_entry, &logged));
		EXPECT_EQ(5, logged);

		fd = saved(self->r, round % 2 ? RING_SAVE_NO_ARENA : 0);
		ASSERT_LE(0, fd);
		r = (void *)0xdead;
		/* Not beside the old one. */
		EXPECT_EQ(-EEXIST, ring_restore(&r, fd, &self->p));
		EXPECT_EQ((void *)0xdead, r);
		ring_close(self->r);
		self->r = NULL;
		lseek(fd, 0, SEEK_SET);
		memset(self->p.id, 0x55, 16);	/* is not looked at */
		ASSERT_EQ(0, ring_restore(&self->r, fd, &self->p));
		close(fd);
		EXPECT_EQ(round + 1, ring_generation(self->r));
		EXPECT_EQ(-EALREADY, ring_freeze(self->r, serve, NULL, 0));
		EXPECT_EQ(arena, ring_arena(self->r));
		EXPECT_EQ(round == 0, filled(arena + 40960, 5000, 3));
		EXPECT_EQ(0, arena[0]);
		EXPECT_EQ(-7, ring_error_of(self->r));
		EXPECT_EQ(0x7e, ring_id(self->r)[0]);
		logged = 0;
		ring_log_walk(self->r, count_entry, &logged);
		EXPECT_EQ(5, logged);
		EXPECT_EQ(0, ring_thaw(self->r));
		EXPECT_EQ(-EALREADY, ring_thaw(self->r));
	}
	ASSERT_EQ(0, take(self->r, 70, 75, false));
}

TEST_F(ring, an_image_through_a_pipe_is_one)
{
	struct gate *g = (void *)self->shm;
	int pipes[2];
	pid_t pid;

	self->p.geo.ring_units = 64;
	self->p.geo.log_len = 0;
	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	g->n = 5;
	pid = spawn_client(&self->z, self->r, push_some, g);
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(0, ring_save(self->r, pipes[1], RING_SAVE_NO_ARENA));
	close(pipes[1]);
	ring_close(self->r);
	self->r = NULL;
	ASSERT_EQ(0, ring_restore(&self->r, pipes[0], &self->p));
	close(pipes[0]);
	ASSERT_EQ(0, ring_thaw(self->r));
	EXPECT_EQ(0, take(self->r, 0, 5, false));
}

#define MIB (1ull << 20)

/* A client whose files may have a page. */
static void use_far_arena(int fd, void *arg)
{
	struct rlimit page = { 4096, 4096 };
	struct ring *r = attached(fd);
	uint8_t *a = ring_arena(r);

	(void)arg;
	NEED(!setrlimit(RLIMIT_FSIZE, &page));
	NEED(ring_commit(r, 252 * MIB, 8192) == -EINVAL);
	NEED(a[200 * MIB] == 7);
	a[100 * MIB] = 9;
	NEED_OK(ring_decommit(r, 200 * MIB, 4096));
	a[200 * MIB] = 10;
	ring_close(r);
}

static void use_as_guest(int fd, void *arg)
{
	struct ring_guest g;

	(void)arg;
	fd = passed(fd);
	NEED_OK(ring_map_arena(fd, &g));
	close(fd);
	NEED(g.len == 256 * MIB && ((uint8_t *)g.arena)[200 * MIB] == 7);
	NEED(ring_guest_commit(&g, 256 * MIB, 4096) == -EINVAL && ring_guest_commit(&g, 1, 4096) == -EINVAL);
	NEED_OK(ring_guest_commit(&g, 250 * MIB, 4096));
	((uint8_t *)g.arena)[250 * MIB] = 8;
}

static void touch(void *at)
{
	signal(SIGBUS, SIG_DFL);
	*(volatile uint8_t *)at = 1;
	_exit(0);
}

static uint64_t object_size(const struct ring *r)
{
	struct stat st;

	return fstat(ring_fd(r), &st) ? 0 : st.st_size;
}

TEST_F(ring, an_arena_grows_with_what_is_committed)
{
	bool memfd = variant->backend == RING_MEMFD;
	uint64_t before;
	int status, fd;
	uint8_t *a;
	pid_t pid;

	self->p.geo.arena_len = 256 * MIB;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	a = ring_arena(self->r);
	before = object_size(self->r);
	EXPECT_EQ(memfd, before > 64 * MIB && before < 80 * MIB);
	a[64 * MIB - 1] = 6;
	ASSERT_EQ(0, ring_commit(self->r, 200 * MIB, 4096));
	EXPECT_EQ(memfd, object_size(self->r) == before + 136 * MIB + 4096);
	a[200 * MIB] = 7;
	pid = spawn_client(&self->z, self->r, use_far_arena, NULL);
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(9, a[100 * MIB]);
	EXPECT_EQ(10, a[200 * MIB]);
	a[200 * MIB] = 7;
	if (memfd) {
		pid = spawn_client(&self->z, self->r, use_as_guest, NULL);
		EXPECT_EQ(0, reap(&self->z, pid));
		EXPECT_EQ(8, a[250 * MIB]);
		pid = fork();
		if (!pid)
			touch(a + 251 * MIB);
		EXPECT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(SIGBUS, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
		EXPECT_EQ(0, ring_decommit(self->r, 250 * MIB, 4096));	/* a page that is read would be there again */
	}
	fd = saved(self->r, 0);
	ASSERT_LE(0, fd);
	ring_close(self->r);
	self->r = NULL;
	ASSERT_EQ(0, ring_restore(&self->r, fd, &self->p));
	close(fd);
	EXPECT_EQ(6, a[64 * MIB - 1]);
	EXPECT_EQ(9, a[100 * MIB]);
	EXPECT_EQ(7, a[200 * MIB]);
	if (memfd)
		EXPECT_EQ(before + 136 * MIB + 4096, object_size(self->r));
}

/* ------------------------------------------------------------------------- damaged images */

/* A small image with records and log entries in it. */
static int make_image(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self, uint8_t **image,
		      size_t *len)
{
	struct gate *g = (void *)self->shm;
	pid_t pid;
	int fd;

	self->p.geo = (struct singvgpu_geometry){ .va = RING_VA_BASE, .arena_len = 8192,
						  .log_len = 8192, .ring_units = 64,
						  .cpl_slots = 4 };
	if (ring_create(&self->r, &self->p))
		return -1;
	g->n = 15;
	pid = spawn_client(&self->z, self->r, push_some, g);
	if (reap(&self->z, pid) || take(self->r, 0, 5, true) || take(self->r, 5, 8, false))
		return -1;
	fd = saved(self->r, 0);
	ring_close(self->r);
	self->r = NULL;
	if (fd < 0)
		return -1;
	*len = lseek(fd, 0, SEEK_END);
	*image = malloc(*len + 1);
	TH_LOG("an image of %zu bytes", *len);
	return pread(fd, *image, *len, 0) == (ssize_t)*len ? fd : -1;
}

static int restore_bytes(struct ring **out, int fd, const uint8_t *image, size_t len,
			 const struct ring_params *p)
{
	if (ftruncate(fd, 0) || pwrite(fd, image, len, 0) != (ssize_t)len)
		return 1;
	lseek(fd, 0, SEEK_SET);
	return ring_restore(out, fd, p);
}

TEST_F(ring, a_truncated_image_is_refused)
{
	struct ring *r = (void *)0xdead;
	size_t len, cut, step = getenv("SINGVGPU_SCALE") ? 1 : 37;
	uint8_t *image;
	int fd;

	fd = make_image(_metadata, self, &image, &len);
	ASSERT_LE(0, fd);
	for (cut = 0; cut < len; cut = cut < 200 || cut + 60 > len ? cut + 1 : cut + step) {
		ASSERT_EQ(-EBADMSG, restore_bytes(&r, fd, image, cut, &self->p)) {
			TH_LOG("cut at %zu of %zu", cut, len);
		}
		ASSERT_EQ((void *)0xdead, r);
	}
	EXPECT_EQ(0, restore_bytes(&self->r, fd, image, len, &self->p));
	close(fd);
	free(image);
}

/* Of another version nothing else is looked at: what would be damage here may be right there. */
TEST_F(ring, an_image_of_another_version_is_refused_with_it)
{
	uint32_t version = SINGVGPU_API_VERSION + 1, flags = 0x80;
	struct ring *r = (void *)0xdead;
	uint8_t *image;
	size_t len;
	int fd;

	fd = make_image(_metadata, self, &image, &len);
	ASSERT_LE(0, fd);
	EXPECT_EQ(SINGVGPU_API_VERSION, ring_version_of(fd));
	memcpy(image + 8, &version, sizeof(version));
	memcpy(image + 12, &flags, sizeof(flags));
	EXPECT_EQ(-EPROTONOSUPPORT, restore_bytes(&r, fd, image, len, &self->p));
	EXPECT_EQ(version, ring_version_of(fd));
	version = SINGVGPU_API_VERSION;
	memcpy(image + 8, &version, sizeof(version));
	EXPECT_EQ(-EBADMSG, restore_bytes(&r, fd, image, len, &self->p));
	EXPECT_EQ(0, ring_version_of(open("/dev/null", O_RDONLY | O_CLOEXEC)));
	close(fd);
	free(image);
}

/* Each field of an image that can be wrong by itself; offsets as in save.c. */
TEST_F(ring, an_image_with_one_wrong_field_is_refused)
{
	enum { MAGIC = 0, API = 8, FLAGS = 12, PAD = 68, EXTENT_OFF = 88, EXTENT_LEN = 96 };
	const struct {
		size_t at, size;
		uint64_t value;
		int rc;
	} wrong[] = {
		{ MAGIC, 8, 0, -EBADMSG },
		{ API, 4, SINGVGPU_API_VERSION + 1, -EPROTONOSUPPORT },
		{ FLAGS, 4, RING_SAVE_NO_ARENA << 1, -EBADMSG },
		{ FLAGS, 4, 1u << 31, -EBADMSG },
		{ PAD, 4, 1, -EBADMSG },
		{ EXTENT_OFF, 8, 1ull << 40, -EBADMSG },
		{ EXTENT_OFF, 8, ~0ull, -EBADMSG },
	};
	struct ring *r = (void *)0xdead;
	uint64_t total, last[2];
	uint8_t *image, *damaged;
	size_t len;
	int fd;

	fd = make_image(_metadata, self, &image, &len);
	ASSERT_LE(0, fd);
	damaged = malloc(len + (1 << 20));
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		memcpy(damaged, image, len);
		memcpy(damaged + wrong[i].at, &wrong[i].value, wrong[i].size);
		EXPECT_EQ(wrong[i].rc, restore_bytes(&r, fd, damaged, len, &self->p)) {
			TH_LOG("field %zu", i);
		}
		ASSERT_EQ((void *)0xdead, r);
	}
	/* An extent that begins in the channel and goes on behind it, though the file has its bytes. */
	memcpy(damaged, image, len);
	memset(damaged + len, 0, 1 << 20);
	total = 1 << 20;
	memcpy(damaged + EXTENT_LEN, &total, 8);
	EXPECT_EQ(-EBADMSG, restore_bytes(&r, fd, damaged, len + (1 << 20), &self->p));
	ASSERT_EQ((void *)0xdead, r);
	/* The end says how many bytes there were. */
	memcpy(damaged, image, len);
	memcpy(last, image + len - 16, 16);
	EXPECT_EQ(0, last[1]);
	last[0]++;
	memcpy(damaged + len - 16, last, 16);
	EXPECT_EQ(-EBADMSG, restore_bytes(&r, fd, damaged, len, &self->p));
	ASSERT_EQ((void *)0xdead, r);
	EXPECT_EQ(0, restore_bytes(&self->r, fd, image, len, &self->p));
	/* It is the proxy's to save. */
	EXPECT_EQ(-EINVAL, ring_save(self->r, fd, RING_SAVE_NO_ARENA << 1));
	close(fd);
	free(damaged);
	free(image);
}

static void save_as_client(int fd, void *arg)
{
	struct ring *r = attached(fd);
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	NEED(ring_save(r, null, 0) == -EINVAL);
	ring_close(r);
}

TEST_F(ring, a_client_cannot_save)
{
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, save_as_client, NULL);
	ASSERT_LT(0, pid);
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* A log said to be so long would make pages as it is read, until there is no memory left. */
TEST_F(ring, a_log_of_zeros_is_refused_at_once)
{
	const uint64_t log_len = 4ull << 30, state = log_len / 4;
	struct ring *r = (void *)0xdead;
	uint8_t *image;
	size_t len;
	int fd;

	fd = make_image(_metadata, self, &image, &len);
	ASSERT_LE(0, fd);
	memcpy(image + 48, &log_len, sizeof(log_len));	/* geometry, log_state: see save.c */
	memcpy(image + 80, &state, sizeof(state));
	EXPECT_EQ(-EBADMSG, restore_bytes(&r, fd, image, len, &self->p));
	close(fd);
	free(image);
}

/* Whatever comes of it, it is an error or a channel that can be served. */
static void use_damaged(struct __test_metadata *_metadata, struct ring *r)
{
	struct ring_record rec;
	uint32_t n = 0, from = 3;
	int rc, i;

	ring_thaw(r);
	for (i = 0; i < 100; i++) {
		rc = ring_peek(r, &rec);
		if (rc != 1)
			break;
		if (rec.cpl)
			ring_complete(r, rec.cpl, rec.seq, 0, NULL, 0);
		if (i % 2 || ring_log_append(r, &rec, 1, 1, rec.data, rec.len))
			ring_advance(r);
	}
	EXPECT_EQ(true, rc == 0 || rc == -EPROTO || rc == -EPIPE);
	ring_log_walk(r, count_entry, &n);
	ring_log_compact(r, (ring_log_keep)count_entry, &from);
}

TEST_F(ring, flipped_bits_never_crash)
{
	size_t len, at;
	uint8_t *image, *damaged;
	uint64_t seed = 31337;
	long refused = 0, i, n = scaled(4000);
	int fd, rc, k;

	fd = make_image(_metadata, self, &image, &len);
	ASSERT_LE(0, fd);
	damaged = malloc(len);
	for (i = 0; i < n; i++) {
		struct ring *r = (void *)0xdead;

		memcpy(damaged, image, len);
		for (k = i % 3; k >= 0; k--) {
			/* Half of them where the structure is: image header, control page, extents. */
			at = rnd(&seed) % (i % 2 ? 120 + 640 : len);
			damaged[at] ^= 1 << rnd(&seed) % 8;
		}
#ifdef __SANITIZE_THREAD__	/* maps at 0 what is asked for elsewhere */
		memcpy(damaged + 32, image + 32, 8);
#endif
		rc = restore_bytes(&r, fd, damaged, len, &self->p);
		ASSERT_GE(0, rc);
		if (rc) {
			ASSERT_EQ((void *)0xdead, r);
			refused++;
			continue;
		}
		use_damaged(_metadata, r);
		ring_close(r);
	}
	TH_LOG("%ld of %ld refused", refused, n);
	EXPECT_LT(n / 20, refused);
	EXPECT_GT(n, refused);
	free(damaged);
	free(image);
	close(fd);
}

/* ------------------------------------------------------------------------------ generations */

TEST_F(ring, generations_count_clients)
{
	struct gate *g = (void *)self->shm;
	uint32_t i;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	for (i = 0; i < 20; i++) {
		g->first = i * 3;
		g->n = 3;
		pid = spawn_client(&self->z, self->r, push_some, g);
		ASSERT_LT(0, pid);
		EXPECT_EQ(i, ring_generation(self->r));
		ASSERT_EQ(0, take(self->r, i * 3, i * 3 + 3, false));
		EXPECT_EQ(-EPIPE, wait_patiently(self->r));
		EXPECT_EQ(0, reap(&self->z, pid));
	}
}

TEST_HARNESS_MAIN
