// SPDX-License-Identifier: Apache-2.0
/*
 * journal.c - the log and the consumed position change atomically, even if the proxy is killed
 */
#include "pair.h"

static void submit_n(int fd, void *arg)
{
	uint32_t n = *(uint32_t *)arg, i;
	struct ring *r = attached(fd);
	uint8_t data[200];
	int rc;

	for (i = 0; i < n; i++) {
		uint32_t len = 16 + i * 37 % 180;

		mark(data, 0, i, len);
		rc = ring_submit(r, 5, data, len, NULL, 0);
		if (rc == -EPIPE)
			break;
		NEED_OK(rc);
	}
	ring_close(r);
}

/* What a walk must find: entries [from, to) of submit_n's, all of them, in order. */
struct walk {
	uint32_t next;
	uint32_t stop_at;
	int bad;
};

static int check_entry(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct walk *w = arg;
	struct ring_record rec = { .len = e->len, .data = data };
	struct mark m = { 0 };

	if (!marked(&rec, &m) || m.n != w->next || e->key != 1000 + m.n || e->op != 6 || e->flags)
		w->bad++;
	w->next++;
	return w->next == w->stop_at ? 42 : 0;
}

static int keep_from(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	(void)data;
	return e->key >= 1000 + *(uint32_t *)arg;
}

static int append(struct ring *r, const struct ring_record *rec)
{
	struct mark m;

	if (!marked(rec, &m))
		return -EBADMSG;
	return ring_log_append(r, rec, 6, 1000 + m.n, rec->data, rec->len);
}

TEST_F(ring, the_log_fills_compacts_and_is_walked)
{
	uint32_t *n = (void *)self->shm, i, from;
	struct ring_record rec;
	struct walk w = { 0 };
	size_t bytes;
	pid_t pid;
	int rc;

	self->p.geo.log_len = 8 << 10;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*n = 200;
	pid = spawn_client(&self->z, self->r, submit_n, n);
	ASSERT_LT(0, pid);
	EXPECT_EQ(0, ring_log_bytes(self->r));
	EXPECT_EQ(0, ring_log_walk(self->r, check_entry, &w));
	EXPECT_EQ(0, w.next);

	for (i = 0;; i++) {
		ASSERT_EQ(1, next(self->r, &rec));
		rc = append(self->r, &rec);
		if (rc)
			break;
		/* It has advanced: not a second time. */
		EXPECT_NE(0, append(self->r, &rec));
	}
	ASSERT_EQ(-ENOSPC, rc);
	EXPECT_LT(10, i);
	EXPECT_GE(4096, ring_log_bytes(self->r));
	/* Nothing has moved: the same record is there, and the log is what it was. */
	ASSERT_EQ(1, ring_peek(self->r, &rec));
	EXPECT_EQ(-ENOSPC, append(self->r, &rec));
	EXPECT_EQ(0, ring_log_walk(self->r, check_entry, &w));
	EXPECT_EQ(i, w.next);
	EXPECT_EQ(0, w.bad);
	w = (struct walk){ .stop_at = 3 };
	EXPECT_EQ(42, ring_log_walk(self->r, check_entry, &w));
	EXPECT_EQ(3, w.next);

	/* Keep all: no room still. Drop some: room. Drop all. */
	from = 0;
	bytes = ring_log_bytes(self->r);
	EXPECT_EQ(0, ring_log_compact(self->r, keep_from, &from));
	EXPECT_EQ(bytes, ring_log_bytes(self->r));
	EXPECT_EQ(-ENOSPC, append(self->r, &rec));
	from = i - 4;
	EXPECT_EQ(0, ring_log_compact(self->r, keep_from, &from));
	EXPECT_GT(bytes, ring_log_bytes(self->r));
	ASSERT_EQ(0, append(self->r, &rec));
	w = (struct walk){ .next = from };
	EXPECT_EQ(0, ring_log_walk(self->r, check_entry, &w));
	EXPECT_EQ(i + 1, w.next);
	EXPECT_EQ(0, w.bad);
	from = 1000000;
	EXPECT_EQ(0, ring_log_compact(self->r, keep_from, &from));
	EXPECT_EQ(0, ring_log_bytes(self->r));
	EXPECT_EQ(0, ring_log_walk(self->r, check_entry, &w));
	for (i++; i < *n; i++) {
		ASSERT_EQ(1, next(self->r, &rec));
		ring_advance(self->r);
	}
	EXPECT_EQ(-EPIPE, next(self->r, &rec));
	EXPECT_EQ(0, reap(&self->z, pid));
}

TEST_F(ring, a_channel_without_a_log_has_no_space_in_it)
{
	uint32_t *n = (void *)self->shm;
	struct ring_record rec;
	struct walk w = { 0 };
	pid_t pid;

	self->p.geo.log_len = 0;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*n = 1;
	pid = spawn_client(&self->z, self->r, submit_n, n);
	ASSERT_LT(0, pid);
	ASSERT_EQ(1, next(self->r, &rec));
	EXPECT_EQ(-ENOSPC, append(self->r, &rec));
	EXPECT_EQ(0, ring_log_walk(self->r, check_entry, &w));
	ring_advance(self->r);
	EXPECT_EQ(-EPIPE, next(self->r, &rec));
	EXPECT_EQ(0, reap(&self->z, pid));
}

/* ---------------------------------------------------------------- a proxy killed at random */

struct crash {
	struct ring_params p;
	uint32_t n;		/* records that the client would like to submit */
	pid_t client;
	int object;		/* the proxy's fd, for the tester to keep */
	atomic_uint started;
	atomic_uint served;	/* as the proxy counts them: after the append has returned */
	atomic_uint compacting;
	atomic_ulong compacted;
	uint32_t every;		/* one of so many is appended, the others only consumed */
};

static void append_for_ever(int sock, void *arg)
{
	struct crash *c = arg;
	struct ring_record rec;
	struct ring *r;
	struct mark m;
	uint32_t from;
	int rc, fd;

	NEED_OK(ring_create(&r, &c->p));
	NEED_OK(ring_watch_peer(r, pidfd_of(c->client)));
	fd = ring_client_fd(r);
	NEED(fd >= 0);
	NEED_OK(ring_pass_fd(sock, fd));
	close(fd);
	c->object = ring_fd(r);
	c->started = 1;
	while ((rc = next(r, &rec)) == 1) {
		NEED(marked(&rec, &m));
		if (m.n % c->every) {
			ring_advance(r);
			continue;
		}
		rc = append(r, &rec);
		if (rc == -ENOSPC) {
			from = m.n - 20 * c->every;
			c->compacting = 1;
			NEED_OK(ring_log_compact(r, keep_from, &from));
			c->compacting = 0;
			c->compacted++;
			rc = append(r, &rec);
		}
		NEED_OK(rc);
		c->served = m.n + 1;
	}
	NEED(rc == -EPIPE);
	ring_close(r);
}

static void submit_by_socket(int sock, void *arg)
{
	struct crash *c = arg;

	submit_n(sock, &c->n);
}

/* A copy of the dead proxy's object, as a memfd, with a new consumer: what a successor sees. */
static int successor(struct ring **out, int object, const struct singvgpu_geometry *g)
{
	struct ring *r;
	uint8_t *page;
	uint64_t off;
	ssize_t n;
	int rc;

	rc = ring_new(&r, g, false);
	if (rc)
		return rc;
	r->fd = memfd_create("successor", MFD_CLOEXEC);
	r->ops = &ring_memfd_ops;
	pthread_mutex_init(&r->rx.lock, NULL);
	page = malloc(1 << 16);
	if (fcntl(object, F_GET_SEALS) >= 0) {	/* a memory file has its log before the arena */
		r->lay.log_at = r->lay.arena_off;
		r->lay.arena_at = r->lay.arena_off + g->log_len;
	}
	rc = ftruncate(r->fd, r->lay.end) ? -errno : 0;
	for (off = 0; !rc && off < r->lay.end; off += n) {
		n = pread(object, page, 1 << 16, off);
		if (n <= 0 || pwrite(r->fd, page, n, off) != n)
			rc = n < 0 ? -errno : -EIO;
	}
	free(page);
	if (!rc)
		rc = ring_map(r);
	if (!rc) {
		store(&r->ctl->client_life, SINGVGPU_LIFE_DIED);
		rc = ring_consume_init(r);
	}
	if (rc)
		ring_free(r);
	else
		*out = r;
	return rc;
}

struct entries {
	uint32_t first, next, every;
	int bad, n;
};

static int follow(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct entries *s = arg;
	struct ring_record rec = { .len = e->len, .data = data };
	struct mark m = { 0 };

	if (!marked(&rec, &m) || e->key != 1000 + m.n)
		s->bad++;
	if (!s->n++)
		s->first = m.n;
	else if (m.n != s->next)
		s->bad++;
	s->next = m.n + s->every;
	return 0;
}

/*
 * Those that were to be logged are in the log up to some place and in the ring behind it. Those
 * that were not may be seen once more: head is published every now and then.
 */
static void check_content(struct __test_metadata *_metadata, struct ring *r,
			  const struct crash *c, uint32_t served)
{
	struct entries s = { .every = c->every };
	struct ring_record rec;
	uint32_t want = 0;
	bool first = true;
	struct mark m;
	int rc;

	ASSERT_EQ(0, ring_log_walk(r, follow, &s));
	EXPECT_EQ(0, s.bad);
	/* What append has returned for is in the log; one more may be. */
	if (served) {
		EXPECT_LE(served, s.next);
		EXPECT_GE(served - 1 + 2 * c->every, s.next);
	}
	while ((rc = ring_peek(r, &rec)) == 1) {
		ASSERT_EQ(true, marked(&rec, &m));
		if (first) {
			/* Nothing logged is seen again, nothing unlogged is missing. */
			EXPECT_LT(s.n ? s.next - c->every : 0, m.n + (s.n ? 0 : 1));
			EXPECT_GE(s.next, m.n);
		} else {
			EXPECT_EQ(want, m.n);
		}
		first = false;
		want = m.n + 1;
		ring_advance(r);
	}
	EXPECT_EQ(-EPIPE, rc);
}

static void kill_proxies(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self,
			 uint32_t every, long rounds)
{
	uint64_t seed = 4711 + every;
	struct crash *c = (void *)self->shm;
	long midway = 0, compacted = 0, in_compaction = 0, logged = 0, i;

	for (i = 0; i < rounds; i++) {
		int s[2], object, fd;
		struct ring *r = NULL;
		pid_t proxy;

		memset(c, 0, sizeof(*c));
		c->p = params_of(self->p.backend);
		c->p.geo.log_len = 8 << 10;
		c->n = ~0u;
		c->every = every;
		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s));
		c->client = spawn(&self->z, submit_by_socket, c, s[1]);
		ASSERT_LT(0, c->client);
		proxy = spawn(&self->z, append_for_ever, c, s[0]);
		ASSERT_LT(0, proxy);
		close(s[0]);
		close(s[1]);
		while (!c->started)
			sched_yield();
		fd = pidfd_of(proxy);
		object = syscall(SYS_pidfd_getfd, fd, c->object, 0);
		close(fd);
		ASSERT_LE(0, object);
		while (!c->served && kill(proxy, 0) == 0 && i % 4)
			sched_yield();
		sleep_ns(rnd(&seed) % (2 * MS));
		ASSERT_EQ(0, kill(proxy, SIGKILL));
		EXPECT_EQ(1000 + SIGKILL, reap(&self->z, proxy));
		EXPECT_EQ(0, reap(&self->z, c->client));
		midway += c->served != 0;
		logged += c->served;
		compacted += c->compacted;
		in_compaction += c->compacting;
		ASSERT_EQ(0, successor(&r, object, &c->p.geo));
		close(object);
		check_content(_metadata, r, c, c->served);
		ring_free(r);
	}
	TH_LOG("%ld proxies killed, %ld had logged (%ld records, %ld compactions), %ld in one",
	       rounds, midway, logged, compacted, in_compaction);
	EXPECT_LE(rounds / 2, midway);
	if (every == 1)
		EXPECT_LT(0, compacted);
}

TEST_F(ring, killed_at_random_each_record_is_in_log_or_ring)
{
	kill_proxies(_metadata, self, 1, scaled(150));
}

TEST_F(ring, killed_at_random_between_records_that_are_not_logged)
{
	kill_proxies(_metadata, self, 3, scaled(100));
}

/* What a hostile client or a bad disk left there is found when the log is read again. */
TEST_F(ring, a_damaged_log_is_refused)
{
	uint32_t *n = (void *)self->shm, i;
	struct singvgpu_log_entry *e;
	struct ring_record rec;
	struct walk w = { 0 };
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*n = 10;
	pid = spawn_client(&self->z, self->r, submit_n, n);
	ASSERT_LT(0, pid);
	for (i = 0; i < 10; i++) {
		ASSERT_EQ(1, next(self->r, &rec));
		ASSERT_EQ(0, append(self->r, &rec));
	}
	EXPECT_EQ(0, reap(&self->z, pid));
	e = (struct singvgpu_log_entry *)self->r->log;
	e->len = ~0u;
	EXPECT_EQ(-EBADMSG, ring_log_walk(self->r, check_entry, &w));
	EXPECT_EQ(-EBADMSG, ring_log_compact(self->r, keep_from, n));
	EXPECT_EQ(-EBADMSG, ring_log_init(self->r));
	e->len = ring_log_bytes(self->r);
	EXPECT_EQ(-EBADMSG, ring_log_walk(self->r, check_entry, &w));
	e->len = 16;
	e->flags = 1;
	EXPECT_EQ(-EBADMSG, ring_log_walk(self->r, check_entry, &w));
	EXPECT_EQ(0, w.next);
	/* The state word itself is never read back, until a successor does. */
	e->flags = 0;
	store(&self->r->ctl->log_state, ~0ull >> 1);
	EXPECT_EQ(0, ring_log_walk(self->r, check_entry, &w));
	EXPECT_EQ(10, w.next);
	EXPECT_EQ(-EBADMSG, ring_log_init(self->r));
}

/* An entry at off, as it would have to be; where the next one goes. */
static uint64_t write_entry(struct ring *r, uint64_t off, uint64_t end, uint64_t whole)
{
	struct singvgpu_log_entry e = { .end = end, .key = 1, .op = 6, .len = whole - sizeof(e) };

	memcpy(r->log + off, &e, sizeof(e));
	return off + whole;
}

/* The word that says how long the log is, and how far the ring was consumed, is checked before it is believed. */
TEST_F(ring, a_log_that_says_too_much_is_refused)
{
	const uint64_t half = 4096, top = SINGVGPU_LOG_HALF;
	uint64_t units, off;

	self->p.geo.log_len = 2 * half;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	units = self->p.geo.ring_units;
	/* What is right to the last byte, in either half. */
	write_entry(self->r, 0, 1, half);
	store(&self->r->ctl->log_state, half);
	EXPECT_EQ(0, ring_log_init(self->r));
	EXPECT_EQ(1, self->r->rx.pos);
	write_entry(self->r, half, 2, half);
	store(&self->r->ctl->log_state, half | top);
	EXPECT_EQ(0, ring_log_init(self->r));
	EXPECT_EQ(2, self->r->rx.pos);
	/* Longer than a half, though it is an entry. */
	write_entry(self->r, 0, 3, half + 64);
	store(&self->r->ctl->log_state, half + 64);
	EXPECT_EQ(-EBADMSG, ring_log_init(self->r));
	/* The rest of the second half, and of the mapping, is too short for an entry. */
	write_entry(self->r, half, 3, half - 8);
	store(&self->r->ctl->log_state, half | top);
	EXPECT_EQ(-EBADMSG, ring_log_init(self->r));
	/* Entries go up. */
	off = write_entry(self->r, 0, 3, 64);
	write_entry(self->r, off, 3, 64);
	store(&self->r->ctl->log_state, 128);
	EXPECT_EQ(-EBADMSG, ring_log_init(self->r));
	EXPECT_EQ(2, self->r->rx.pos);
	/* No further than a ring that was full. */
	write_entry(self->r, 0, 2 + units + 1, 64);
	store(&self->r->ctl->log_state, 64);
	EXPECT_EQ(-EBADMSG, ring_log_init(self->r));
	EXPECT_EQ(2, self->r->rx.pos);
	write_entry(self->r, 0, 2 + units, 64);
	EXPECT_EQ(0, ring_log_init(self->r));
	EXPECT_EQ(2 + units, self->r->rx.pos);
	EXPECT_EQ(2 + units, load(&self->r->ctl->head));
}

/* With the last entry goes what says how far the ring was consumed, unless it is shown before. */
TEST_F(ring, a_log_without_entries_does_not_forget_the_position)
{
	uint32_t *n = (void *)self->shm, from = 1000000;
	struct ring_record rec;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*n = 3;
	pid = spawn_client(&self->z, self->r, submit_n, n);
	ASSERT_LT(0, pid);
	for (uint32_t i = 0; i < *n; i++) {
		ASSERT_EQ(1, next(self->r, &rec));
		ASSERT_EQ(0, append(self->r, &rec));
	}
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_GT(self->r->rx.pos, load(&self->r->ctl->head));
	EXPECT_EQ(0, ring_log_compact(self->r, keep_from, &from));
	EXPECT_EQ(0, ring_log_bytes(self->r));
	EXPECT_EQ(self->r->rx.pos, load(&self->r->ctl->head));
}

TEST_HARNESS_MAIN
