// SPDX-License-Identifier: Apache-2.0
/*
 * records.c - submitted records arrive whole, once and in order, at any length and place
 */
#include "pair.h"

#define MAX_THREADS 16

/* ------------------------------------------------------------------------------- lengths */

static int submit_split(struct ring *r, const uint8_t *all, uint32_t len, uint32_t alen)
{
	return ring_submit(r, 1 + len % 60000, alen ? all : NULL, alen,
			   alen < len ? all + alen : NULL, len - alen);
}

static const uint32_t cuts[] = { 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 111,
				 112, 113 };

/* Each length; the short ones and some others with every interesting place between a and b. */
static void send_lengths(int fd, void *arg)
{
	uint32_t len, i, step = *(uint32_t *)arg, max, seed = 0;
	struct ring *r = attached(fd);
	uint8_t *all = malloc(SINGVGPU_RECORD_MAX);

	NEED(all);
	max = ring_payload_max(r);
	for (len = 0; len <= max; len = len < 300 || len + step > max ? len + 1 : len + step) {
		fill(all, len, seed++);
		NEED_OK(submit_split(r, all, len, len));
		fill(all, len, seed++);
		NEED_OK(submit_split(r, all, len, 0));
		for (i = 0; len < 300 && i < ARRAY_SIZE(cuts) && cuts[i] < len; i++) {
			fill(all, len, seed++);
			NEED_OK(submit_split(r, all, len, cuts[i]));
			fill(all, len, seed++);
			NEED_OK(submit_split(r, all, len, len - cuts[i]));
		}
	}
	memset(all, 0, 64);
	NEED(ring_submit(r, 1, all, max + 1, NULL, 0) == -EMSGSIZE);
	NEED(ring_submit(r, 1, NULL, 0, all, max + 1) == -EMSGSIZE);
	NEED(ring_submit(r, 1, all, max, all, 1) == -EMSGSIZE);
	NEED(ring_submit(r, 1, all, ~0u, all, ~0u) == -EMSGSIZE);
	NEED(ring_submit(r, 1, all, ~0u, all, 49) == -EMSGSIZE);
	NEED(ring_submit(r, SINGVGPU_OP_PAD, all, 48, NULL, 0) == -EINVAL);
	NEED(ring_submit(r, SINGVGPU_OP_PAD, all, 1, all, 1) == -EINVAL);
	NEED(ring_call(r, SINGVGPU_OP_PAD, all, 1, NULL, 0, NULL, NULL, 0, NULL) == -EINVAL);
	NEED(ring_call(r, 1, all, max, all, 1, NULL, NULL, 0, NULL) == -EMSGSIZE);
	NEED_OK(submit_split(r, all, 0, 0));
	ring_close(r);
	free(all);
}

static void take_lengths(struct __test_metadata *_metadata, struct ring *r, uint32_t step)
{
	uint32_t len, i, n, max = r->payload_max, seed = 0, left;
	struct ring_record rec;

	for (len = 0; len <= max; len = len < 300 || len + step > max ? len + 1 : len + step) {
		n = 2;
		for (i = 0; len < 300 && i < ARRAY_SIZE(cuts) && cuts[i] < len; i++)
			n += 2;
		while (n--) {
			memset(&rec, 0xaa, sizeof(rec));
			ASSERT_EQ(1, next(r, &rec));
			ASSERT_EQ(len, rec.len);
			ASSERT_EQ(1 + len % 60000, rec.op);
			ASSERT_EQ(0, rec.cpl);
			ASSERT_EQ(true, filled(rec.data, len, seed++)) {
				TH_LOG("length %u, %u more of it", len, n);
			}
			/* A record shows nothing of the producer's stack behind its end. */
			left = 48 - (len < 48 ? len : 48);
			ASSERT_EQ(true, !memcmp((const uint8_t *)rec.data + len,
						(uint8_t[48]){ 0 }, left));
			ring_advance(r);
		}
	}
	ASSERT_EQ(1, next(r, &rec));
	EXPECT_EQ(0, rec.len);
	ring_advance(r);
	EXPECT_EQ(-EPIPE, next(r, &rec));
}

static void lengths(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self, uint32_t units,
		    uint32_t step)
{
	pid_t pid;

	self->p.geo.ring_units = units;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*(uint32_t *)self->shm = step;
	pid = spawn_client(&self->z, self->r, send_lengths, self->shm);
	ASSERT_LT(0, pid);
	take_lengths(_metadata, self->r, step);
	EXPECT_EQ(0, reap(&self->z, pid));
}

TEST_F(ring, every_length_in_one_page)
{
	lengths(_metadata, self, 64, 1);
}

TEST_F(ring, every_length_in_64_kib)
{
	lengths(_metadata, self, 1024, getenv("SINGVGPU_SCALE") ? 1 : 7);
}

TEST_F(ring, lengths_up_to_the_record_limit)
{
	lengths(_metadata, self, 4096, getenv("SINGVGPU_SCALE") ? 1 : 173);
}

/* ----------------------------------------------------------------- wrap, and large positions */

struct stream {
	uint32_t n;
	uint32_t max;
	uint32_t threads;
	atomic_uint sent;
};

/* Marked records of random lengths. */
static void send_random(struct ring *r, const struct stream *s, uint32_t producer)
{
	uint64_t seed = 0x9e3779b97f4a7c15ull * (producer + 1);
	uint8_t *data = malloc(s->max);
	uint32_t i, len, cut;

	NEED(data);
	for (i = 0; i < s->n; i++) {
		len = sizeof(struct mark) + rnd(&seed) % (s->max - sizeof(struct mark) + 1);
		if (rnd(&seed) % 2)
			len = sizeof(struct mark) + len % 112;
		if (len > s->max)
			len = s->max;
		cut = rnd(&seed) % 4 ? len : rnd(&seed) % (len + 1);
		mark(data, producer, i, len);
		NEED_OK(ring_submit(r, 1 + producer, data, cut, data + cut, len - cut));
	}
	free(data);
}

static void send_alone(int fd, void *arg)
{
	struct ring *r = attached(fd);

	send_random(r, arg, 0);
	ring_close(r);
}

static void take_random(struct __test_metadata *_metadata, struct ring *r, uint32_t threads,
			uint32_t n)
{
	uint32_t next_of[MAX_THREADS] = { 0 };
	uint64_t total = (uint64_t)threads * n, seq = 0;
	struct ring_record rec;
	struct mark m;

	while (total--) {
		ASSERT_EQ(1, next(r, &rec));
		ASSERT_EQ(true, marked(&rec, &m));
		ASSERT_GT(threads, m.producer);
		ASSERT_EQ(next_of[m.producer], m.n);
		ASSERT_EQ(1 + m.producer, rec.op);
		ASSERT_LT(seq, rec.seq);
		seq = rec.seq;
		next_of[m.producer]++;
		ring_advance(r);
	}
	EXPECT_EQ(-EPIPE, next(r, &rec));
}

TEST_F(ring, random_lengths_wrap_with_padding)
{
	struct stream *s = (void *)self->shm;
	pid_t pid;

	self->p.geo.ring_units = 64;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	s->n = scaled(200000);
	s->max = self->r->payload_max;
	pid = spawn_client(&self->z, self->r, send_alone, s);
	ASSERT_LT(0, pid);
	take_random(_metadata, self->r, 1, s->n);
	EXPECT_EQ(0, reap(&self->z, pid));
	/* Each lap but the last ended somehow. */
	EXPECT_LT(s->n * 4ull / 64, self->r->rx.pos / 64);
}

/* A new channel whose positions begin at pos: an image of an empty one, with another position. */
static int create_at(struct ring **out, const struct ring_params *p, uint64_t pos)
{
	int fd = memfd_create("image", MFD_CLOEXEC), rc;
	struct ring *r;

	rc = ring_create(&r, p);
	if (rc)
		return rc;
	rc = ring_save(r, fd, 0);
	ring_close(r);
	if (!rc && pwrite(fd, &pos, sizeof(pos), 72) != sizeof(pos))
		rc = -errno;
	lseek(fd, 0, SEEK_SET);
	if (!rc)
		rc = ring_restore(out, fd, p);
	close(fd);
	return rc ? rc : ring_thaw(*out);
}

static void send_and_call(int fd, void *arg)
{
	struct stream *s = arg;
	struct ring *r = attached(fd);
	int32_t status;
	uint32_t i;

	for (i = 0; i < 200; i++) {
		status = -1;
		NEED_OK(ring_call(r, 60000, &i, sizeof(i), NULL, 0, &status, NULL, 0, NULL));
		NEED(status == (int32_t)i);
	}
	send_random(r, s, 0);
	ring_close(r);
}

TEST_F(ring, positions_pass_all_powers)
{
	static const uint64_t at[] = { (1ull << 16) - 100, (1ull << 31) - 100, (1ull << 32) - 100,
				       (1ull << 48) - 64, (1ull << 62) - 333 };
	struct stream *s = (void *)self->shm;
	struct ring_record rec;
	unsigned int i, k;
	pid_t pid;

	for (i = 0; i < ARRAY_SIZE(at); i++) {
		self->p = params_of(variant->backend);
		self->p.geo.ring_units = 64;
		ASSERT_EQ(0, create_at(&self->r, &self->p, at[i]));
		s->n = 2000;
		s->max = 700;
		pid = spawn_client(&self->z, self->r, send_and_call, s);
		ASSERT_LT(0, pid);
		for (k = 0; k < 200; k++) {
			ASSERT_EQ(1, next(self->r, &rec));
			EXPECT_EQ(at[i] + k + 1, rec.seq);
			EXPECT_EQ(60000, rec.op);
			ASSERT_EQ(0, ring_complete(self->r, rec.cpl, rec.seq, k, NULL, 0));
			ring_advance(self->r);
		}
		take_random(_metadata, self->r, 1, s->n);
		EXPECT_EQ(0, reap(&self->z, pid));
		ring_close(self->r);
		self->r = NULL;
	}
}

/* ----------------------------------------------------------- payload that looks like records */

static void send_fakes(int fd, void *arg)
{
	struct stream *s = arg;
	struct ring *r = attached(fd);
	uint64_t seed = 12345, most;
	uint8_t *data = calloc(1, s->max);
	struct mark m = { 0 };
	uint32_t i, len;

	NEED(data);
	for (i = 0; i < s->n; i++) {
		/* Long ones, alone or several together, between short ones. */
		most = rnd(&seed) % (i / 1000 % 2 ? 40 : 3) ? 48 : s->max;
		len = 48 + rnd(&seed) % (most - 47);
		m.n = i;
		m.len = len;
		memset(data, 0, len);
		poison(r, data, len, rnd(&seed) % 4 != 0);
		memcpy(data, &m, sizeof(m));
		NEED_OK(ring_submit(r, 1, data, len, NULL, 0));
	}
	ring_close(r);
	free(data);
}

TEST_F(ring, payload_is_never_taken_for_a_record)
{
	struct stream *s = (void *)self->shm;
	struct ring_record rec;
	uint32_t units, i;
	struct mark m;
	pid_t pid;

	for (units = 64; units <= 256; units *= 2) {
		self->p = params_of(variant->backend);
		self->p.geo.ring_units = units;
		ASSERT_EQ(0, ring_create(&self->r, &self->p));
		s->n = scaled(200000);
		s->max = self->r->payload_max;
		pid = spawn_client(&self->z, self->r, send_fakes, s);
		ASSERT_LT(0, pid);
		for (i = 0; i < s->n; i++) {
			ASSERT_EQ(1, next(self->r, &rec));
			ASSERT_EQ(1, rec.op);
			memcpy(&m, rec.data, sizeof(m));
			ASSERT_EQ(i, m.n);
			ASSERT_EQ(rec.len, m.len);
			ring_advance(self->r);
		}
		EXPECT_EQ(-EPIPE, next(self->r, &rec));
		EXPECT_EQ(0, reap(&self->z, pid));
		ring_close(self->r);
		self->r = NULL;
	}
}

/* --------------------------------------------------------------------------- many producers */

struct producer {
	struct ring *r;
	struct stream *s;
	uint32_t id;
};

static void *producer_main(void *arg)
{
	struct producer *p = arg;

	send_random(p->r, p->s, p->id);
	return NULL;
}

static void send_together(int fd, void *arg)
{
	struct producer p[MAX_THREADS];
	pthread_t t[MAX_THREADS];
	struct stream *s = arg;
	struct ring *r = attached(fd);
	uint32_t i;

	for (i = 0; i < s->threads; i++) {
		p[i] = (struct producer){ r, s, i };
		NEED_OK(pthread_create(&t[i], NULL, producer_main, &p[i]));
	}
	for (i = 0; i < s->threads; i++)
		pthread_join(t[i], NULL);
	ring_close(r);
}

TEST_F(ring, threads_share_the_ring)
{
	struct stream *s = (void *)self->shm;
	uint32_t threads, units;
	pid_t pid;

	for (threads = 1; threads <= MAX_THREADS; threads = threads == 1 ? 2 : threads * 2)
		for (units = 64; units <= 1024; units *= 16) {
			self->p = params_of(variant->backend);
			self->p.geo.ring_units = units;
			ASSERT_EQ(0, ring_create(&self->r, &self->p));
			s->n = scaled(40000) / threads;
			s->max = units == 64 ? 500 : 2000;
			s->threads = threads;
			pid = spawn_client(&self->z, self->r, send_together, s);
			ASSERT_LT(0, pid);
			take_random(_metadata, self->r, threads, s->n);
			EXPECT_EQ(0, reap(&self->z, pid));
			ring_close(self->r);
			self->r = NULL;
		}
}

/* ----------------------------------------------------------------------------- backpressure */

static void *push(void *arg)
{
	struct producer *p = arg;
	uint8_t data[16];
	uint32_t i;

	for (i = 0; i < p->s->n; i++) {
		mark(data, p->id, i, sizeof(data));
		NEED_OK(ring_submit(p->r, 1 + p->id, data, sizeof(data), NULL, 0));
		p->s->sent++;
	}
	return NULL;
}

static void push_together(int fd, void *arg)
{
	struct producer p[MAX_THREADS];
	pthread_t t[MAX_THREADS];
	struct stream *s = arg;
	struct ring *r = attached(fd);
	uint32_t i;

	for (i = 0; i < s->threads; i++) {
		p[i] = (struct producer){ r, s, i };
		NEED_OK(pthread_create(&t[i], NULL, push, &p[i]));
	}
	for (i = 0; i < s->threads; i++)
		pthread_join(t[i], NULL);
	ring_close(r);
}

static bool becomes(atomic_uint *v, uint32_t want)
{
	struct patience p = { 0 };

	while (*v != want && be_patient(&p))
		;
	return *v == want;
}

TEST_F(ring, a_full_ring_makes_producers_sleep)
{
	struct stream *s = (void *)self->shm;
	uint32_t threads;
	pid_t pid;

	for (threads = 1; threads <= MAX_THREADS; threads *= 4) {
		self->p = params_of(variant->backend);
		self->p.geo.ring_units = 64;
		ASSERT_EQ(0, ring_create(&self->r, &self->p));
		memset(s, 0, sizeof(*s));
		s->n = 100;
		s->threads = threads;
		pid = spawn_client(&self->z, self->r, push_together, s);
		ASSERT_LT(0, pid);
		/* One unit stays free; each thread is then in its next submission. */
		EXPECT_EQ(true, becomes(&s->sent, 63));
		EXPECT_EQ(true, becomes((atomic_uint *)&self->r->ctl->space_waiters, threads));
		sleep_ns(20 * MS);
		EXPECT_EQ(63, atomic_load(&s->sent));
		take_random(_metadata, self->r, threads, s->n);
		EXPECT_EQ(0, reap(&self->z, pid));
		EXPECT_EQ(threads * s->n, atomic_load(&s->sent));
		EXPECT_EQ(0, self->r->ctl->space_waiters);
		ring_close(self->r);
		self->r = NULL;
	}
}

/* ------------------------------------------------------------------------------- visibility */

static void submit_then_say(int fd, void *arg)
{
	atomic_uint *said = arg;
	struct ring *r = attached(fd);
	uint8_t data[300];
	uint32_t i;

	for (i = 0; i < 3000; i++) {
		mark(data, 0, i, i % 2 ? 48 : sizeof(data));
		NEED_OK(ring_submit(r, 1, data, i % 2 ? 48 : sizeof(data), NULL, 0));
		*said = 2 * i + 1;
		while (*said != 2 * i + 2)
			sched_yield();
	}
	ring_close(r);
}

TEST_F(ring, a_record_is_there_when_submit_returns)
{
	atomic_uint *said = (void *)self->shm;
	struct ring_record rec;
	struct mark m;
	uint32_t i;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, submit_then_say, said);
	ASSERT_LT(0, pid);
	for (i = 0; i < 3000; i++) {
		while (*said != 2 * i + 1)
			sched_yield();
		/* Once, without waiting; and again, the same. */
		ASSERT_EQ(1, ring_peek(self->r, &rec));
		ASSERT_EQ(1, ring_peek(self->r, &rec));
		ASSERT_EQ(true, marked(&rec, &m));
		ASSERT_EQ(i, m.n);
		ring_advance(self->r);
		ASSERT_EQ(0, ring_peek(self->r, &rec));
		*said = 2 * i + 2;
	}
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(-EPIPE, next(self->r, &rec));
}

TEST_HARNESS_MAIN
