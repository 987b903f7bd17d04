// SPDX-License-Identifier: Apache-2.0
/*
 * answers.c - answers reach the requesting thread, and errors are latched
 */
#include "pair.h"

#define THREADS 16

static int submit_op(struct ring *r, uint16_t op)
{
	return ring_submit(r, op, NULL, 0, NULL, 0);
}

/* ------------------------------------------------------------------------------- one caller */

static void call_with_data(int fd, void *arg)
{
	struct ring *r = attached(fd);
	uint8_t data[64];
	uint32_t len, want, cap;
	int32_t status;

	(void)arg;
	for (want = 0; want <= SINGVGPU_CPL_DATA; want++)
		for (cap = 0; cap <= SINGVGPU_CPL_DATA; cap += want ? 11 : 44) {
			memset(data, 0xee, sizeof(data));
			status = 12345;
			len = 12345;
			NEED_OK(ring_call(r, 1, &want, sizeof(want), NULL, 0, &status, data, cap,
					  &len));
			NEED(status == -(int32_t)want);
			NEED(len == (want < cap ? want : cap));
			NEED(filled(data, len, want));
			NEED(data[len] == 0xee && data[63] == 0xee);
		}
	NEED_OK(ring_call(r, 1, &want, sizeof(want), NULL, 0, NULL, NULL, 0, NULL));
	ring_close(r);
}

TEST_F(ring, status_and_data_come_back)
{
	struct ring_record rec;
	uint8_t data[64];
	uint32_t want;
	pid_t pid;
	int rc;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, call_with_data, NULL);
	ASSERT_LT(0, pid);
	while ((rc = next(self->r, &rec)) == 1) {
		ASSERT_NE(0, rec.cpl);
		memcpy(&want, rec.data, sizeof(want));
		fill(data, want % 45, want);
		EXPECT_EQ(-EINVAL, ring_complete(self->r, 0, rec.seq, 0, NULL, 0));
		EXPECT_EQ(-EINVAL, ring_complete(self->r, 65, rec.seq, 0, NULL, 0));
		EXPECT_EQ(-EINVAL, ring_complete(self->r, 65535, rec.seq, 0, NULL, 0));
		EXPECT_EQ(-EINVAL, ring_complete(self->r, rec.cpl, rec.seq, 0, data, 45));
		EXPECT_EQ(-EINVAL, ring_complete(self->r, rec.cpl, rec.seq, 0, data, ~0u));
		ASSERT_EQ(0, ring_complete(self->r, rec.cpl, rec.seq, -(int32_t)want, data,
					   want % 45));
		ring_advance(self->r);
	}
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* -------------------------------------------------------------------- slots, and late answers */

static void use_all_slots(int fd, void *arg)
{
	struct ring *r = attached(fd);
	struct ring_ticket t[4], late;
	int32_t status;
	uint64_t begin;
	int i;

	(void)arg;
	for (i = 0; i < 4; i++) {
		memset(&t[i], 0xaa, sizeof(t[i]));
		NEED_OK(ring_request(r, &t[i], 2, &i, sizeof(i), NULL, 0));
		NEED(t[i].slot < 4);
	}
	/* The 5th has no slot, and puts nothing into the ring. */
	NEED(ring_request(r, &late, 3, NULL, 0, NULL, 0) == -EBUSY);
	NEED(ring_call(r, 3, NULL, 0, NULL, 0, NULL, NULL, 0, NULL) == -EBUSY);
	/* No answer in time: no time at all, and some. */
	NEED(ring_await(r, &t[0], &status, NULL, 0, NULL, 0) == -ETIMEDOUT);
	begin = now_ns();
	NEED(ring_await(r, &t[1], &status, NULL, 0, NULL, 30 * MS) == -ETIMEDOUT);
	NEED(now_ns() - begin >= 30 * MS);
	NEED(now_ns() - begin < PATIENCE);
	/* Who only expects the answer can still await it. */
	NEED(ring_expect(r, &t[3], 30 * MS) == -ETIMEDOUT);
	/* Their slots are not free: the answers may still come. */
	NEED(ring_request(r, &late, 3, NULL, 0, NULL, 0) == -EBUSY);

	NEED_OK(submit_op(r, 4));	/* answers all four, t[0] twice */
	status = 1;
	NEED_OK(ring_expect(r, &t[3], 3 * PATIENCE));
	NEED(ring_taken(r, &t[3]));
	/* Two slots had late answers, and are free; what is still to be awaited keeps the others. */
	for (i = 0; i < 2; i++)
		NEED_OK(ring_request(r, &t[i], 5, &i, sizeof(i), NULL, 0));
	NEED(ring_request(r, &late, 3, NULL, 0, NULL, 0) == -EBUSY);
	NEED_OK(ring_await(r, &t[3], &status, NULL, 0, NULL, 3 * PATIENCE));
	NEED(status == 1003);
	status = 1;
	NEED_OK(ring_await(r, &t[2], &status, NULL, 0, NULL, 3 * PATIENCE));
	NEED(status == 1002);
	/* All are free again, and what comes now is not taken from the late answers. */
	for (i = 2; i < 4; i++)
		NEED_OK(ring_request(r, &t[i], 5, &i, sizeof(i), NULL, 0));
	for (i = 0; i < 4; i++) {
		status = 1;
		NEED_OK(ring_await(r, &t[i], &status, NULL, 0, NULL, 3 * PATIENCE));
		NEED(status == 2000 + i);
	}
	ring_close(r);
}

TEST_F(ring, slots_are_lent_and_late_answers_dropped)
{
	struct ring_record rec, kept[4];
	int rc, i, n = 0, value;
	pid_t pid;

	self->p.geo.cpl_slots = 4;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, use_all_slots, NULL);
	ASSERT_LT(0, pid);
	while ((rc = next(self->r, &rec)) == 1) {
		ASSERT_NE(3, rec.op);
		if (rec.op == 2) {
			ASSERT_GT(4, n);
			kept[n++] = rec;
		}
		for (i = 0; rec.op == 4 && i < 4; i++)
			EXPECT_EQ(0, ring_complete(self->r, kept[i].cpl, kept[i].seq, 1000 + i,
						   NULL, 0));
		if (rec.op == 5) {
			memcpy(&value, rec.data, sizeof(value));
			EXPECT_EQ(0, ring_complete(self->r, rec.cpl, rec.seq, 2000 + value,
						   NULL, 0));
		}
		ring_advance(self->r);
	}
	EXPECT_EQ(4, n);
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* ---------------------------------------------------------------------------- many callers */

struct calls {
	struct ring *r;
	uint32_t n;
	uint32_t id;
	uint32_t spin;
};

static void *call_main(void *arg)
{
	struct calls *c = arg;
	uint32_t i, len, q[2], a[2];
	int32_t status;

	for (i = 0; i < c->n; i++) {
		q[0] = c->id;
		q[1] = i;
		memset(a, 0xee, sizeof(a));
		status = -1;
		NEED_OK(ring_call(c->r, 1, q, sizeof(q), NULL, 0, &status, a, sizeof(a), &len));
		NEED(status == (int32_t)(c->id ^ i) && len == sizeof(a));
		NEED(a[0] == ~q[0] && a[1] == ~q[1]);
	}
	return NULL;
}

static void call_together(int fd, void *arg)
{
	struct calls *c = arg, each[THREADS];
	struct ring *r = attached(fd);
	pthread_t t[THREADS];
	int i;

	ring_set_spin(r, c->spin);
	for (i = 0; i < THREADS; i++) {
		each[i] = (struct calls){ r, c->n, i, 0 };
		NEED_OK(pthread_create(&t[i], NULL, call_main, &each[i]));
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	ring_close(r);
}

struct pending {
	uint16_t cpl;
	uint64_t seq;
	uint32_t q[2];
};

/* Answered by two threads, from one bag, in no order. */
struct bag {
	pthread_mutex_t lock;
	struct ring *r;
	struct pending of[64];
	uint32_t n, answered, most;
	uint64_t seed;
	bool end;
};

static int answer_one(struct bag *b)
{
	uint32_t a[2], i;
	struct pending p;
	int rc;

	pthread_mutex_lock(&b->lock);
	if (!b->n) {
		pthread_mutex_unlock(&b->lock);
		return 0;
	}
	if (b->n > b->most)
		b->most = b->n;
	i = rnd(&b->seed) % b->n;
	p = b->of[i];
	b->of[i] = b->of[--b->n];
	b->answered++;
	a[0] = ~p.q[0];
	a[1] = ~p.q[1];
#ifdef __SANITIZE_THREAD__	/* does not see what orders two answers in a slot: the other process */
	rc = ring_complete(b->r, p.cpl, p.seq, p.q[0] ^ p.q[1], a, sizeof(a));
	pthread_mutex_unlock(&b->lock);
#else
	pthread_mutex_unlock(&b->lock);
	rc = ring_complete(b->r, p.cpl, p.seq, p.q[0] ^ p.q[1], a, sizeof(a));
#endif
	return rc ? rc : 1;
}

static void *answer_main(void *arg)
{
	struct bag *b = arg;
	int rc;

	while (!__atomic_load_n(&b->end, __ATOMIC_ACQUIRE)) {
		rc = answer_one(b);
		if (rc < 0)
			return (void *)-1l;
		if (!rc)
			sched_yield();
	}
	return NULL;
}

static void many_callers(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self,
			 uint32_t spin)
{
	struct bag b = { .lock = PTHREAD_MUTEX_INITIALIZER, .seed = 99 };
	struct calls *c = (void *)self->shm;
	struct ring_record rec;
	void *result = NULL;
	pthread_t helper;
	pid_t pid;
	int rc;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	ring_set_spin(self->r, spin);
	c->n = scaled(800);
	c->spin = spin;
	b.r = self->r;
	pid = spawn_client(&self->z, self->r, call_together, c);
	ASSERT_LT(0, pid);
	ASSERT_EQ(0, pthread_create(&helper, NULL, answer_main, &b));
	while ((rc = next(self->r, &rec)) == 1) {
		pthread_mutex_lock(&b.lock);
		b.of[b.n] = (struct pending){ .cpl = rec.cpl, .seq = rec.seq };
		memcpy(b.of[b.n++].q, rec.data, 8);
		pthread_mutex_unlock(&b.lock);
		ring_advance(self->r);
		if (rec.seq % 3 == 0)
			ASSERT_LE(0, answer_one(&b));
	}
	__atomic_store_n(&b.end, true, __ATOMIC_RELEASE);
	pthread_join(helper, &result);
	EXPECT_EQ(NULL, result);
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(THREADS * c->n, b.answered);
	EXPECT_LT(1, b.most);
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(0, self->r->ctl->cpl_waiters);
}

TEST_F(ring, sixteen_threads_get_their_own_answers)
{
	many_callers(_metadata, self, 10000);
}

TEST_F(ring, sixteen_threads_get_them_asleep)
{
	many_callers(_metadata, self, 0);
}

/* ------------------------------------------------------------------------- latched errors */

static void watch_error(int fd, void *arg)
{
	struct ring *r = attached(fd);
	struct patience p = { 0 };
	uint64_t seq = 77;

	(void)arg;
	NEED(ring_error(r, &seq) == 0 && seq == 77);
	NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	NEED(ring_error(r, NULL) == 0);
	NEED_OK(submit_op(r, 2));	/* latches -700 */
	while (!ring_error(r, &seq) && be_patient(&p))
		;
	NEED(ring_error(r, &seq) == -700 && seq == 2);
	NEED(ring_error(r, NULL) == -700);
	/* The next one is not the first. Records and answers go on. */
	NEED_OK(submit_op(r, 3));
	NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	NEED(ring_error(r, &seq) == -700 && seq == 2);
	ring_close(r);
}

TEST_F(ring, the_first_error_stays)
{
	struct ring_record rec;
	pid_t pid;
	int rc;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, watch_error, NULL);
	ASSERT_LT(0, pid);
	while ((rc = next(self->r, &rec)) == 1) {
		if (rec.op > 1)
			ring_latch_error(self->r, rec.seq, rec.op == 2 ? -700 : -800);
		if (rec.cpl)
			ring_complete(self->r, rec.cpl, rec.seq, 0, NULL, 0);
		ring_advance(self->r);
	}
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(0, reap(&self->z, pid));
}

struct latcher {
	struct ring *r;
	int n;
};

static void *latch_main(void *arg)
{
	struct latcher *l = arg;

	ring_latch_error(l->r, 100 + l->n, 1 + l->n);
	return NULL;
}

static void read_error(int fd, void *arg)
{
	struct ring *r = attached(fd);
	uint64_t seq = 0;
	int32_t err = ring_error(r, &seq);

	(void)arg;
	NEED(err > 0 && seq == 99 + (uint64_t)err);
	ring_close(r);
}

TEST_F(ring, of_errors_at_once_one_stays_whole)
{
	struct latcher l[THREADS];
	pthread_t t[THREADS];
	int round, i;
	pid_t pid;

	for (round = 0; round < 5; round++) {
		self->p = params_of(variant->backend);
		ASSERT_EQ(0, ring_create(&self->r, &self->p));
		for (i = 0; i < THREADS; i++) {
			l[i] = (struct latcher){ self->r, i };
			ASSERT_EQ(0, pthread_create(&t[i], NULL, latch_main, &l[i]));
		}
		for (i = 0; i < THREADS; i++)
			pthread_join(t[i], NULL);
		pid = spawn_client(&self->z, self->r, read_error, NULL);
		ASSERT_LT(0, pid);
		EXPECT_EQ(0, reap(&self->z, pid));
		ring_close(self->r);
		self->r = NULL;
	}
}

TEST_HARNESS_MAIN
