// SPDX-License-Identifier: Apache-2.0
/*
 * hostile.c - a client that writes anything anywhere, while the proxy consumes
 *
 * The proxy, which is this test, may detect a broken rule (-EPROTO) or the client's end (-EPIPE),
 * or go on. It neither crashes nor hangs, and its other channels keep working.
 */
#include "pair.h"

#define SCRIBBLERS 2

struct hostility {
	uint32_t how;		/* SCRIBBLE_* */
	uint64_t seed;
	atomic_uint stop;
	atomic_ulong writes;
};

enum { ANYWHERE, RECORDS, LENGTHS, CONTROL, HOLES, HOW_MANY };

static struct ring *target;
static struct hostility *plan;

static uint64_t interesting(uint64_t *seed)
{
	static const uint64_t values[] = { 0, 1, 2, 48, 49, 63, 64, 255, 256, 257, 4096, 65519, 65520,
					   65521, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff,
					   0x100000000, 1ull << 63, ~0ull };
	uint64_t x = rnd(seed);

	switch (x % 4) {
	case 0:
		return values[(x >> 8) % ARRAY_SIZE(values)];
	case 1:
		return load(&target->ctl->head) + (x >> 8) % 300;
	case 2:
		return (x >> 8) % 1000;
	default:
		return rnd(seed);
	}
}

/* A committed record that is right, or nearly so, where the consumer looks next. */
static void fake_record(uint64_t *seed)
{
	uint64_t pos = load(&target->ctl->head) + rnd(seed) % 64;
	struct singvgpu_rec *h = unit_at(target, pos);

	store(&h->op, rnd(seed) % 1024 ? 1 : SINGVGPU_OP_PAD);
	store(&h->cpl, rnd(seed) % 4 ? 0 : rnd(seed) % (rnd(seed) % 256 ? 65 : 70));
	store(&h->len, rnd(seed) % 1024 ? rnd(seed) % 200 : (uint32_t)interesting(seed));
	store_release(&h->seq, pos + 1);
}

static void scribble(uint64_t *seed)
{
	uint64_t len = target->map_len, off;
	uint32_t *word;
	struct singvgpu_rec *h;

	switch (plan->how) {
	case ANYWHERE:
		off = rnd(seed) % 4 ? rnd(seed) % (len / 8) * 8 : rnd(seed) % 80 * 8;
		store((uint64_t *)((uint8_t *)target->ctl + off), interesting(seed));
		break;
	case RECORDS:
		fake_record(seed);
		break;
	case LENGTHS:	/* of committed records, between the check and the use */
		fake_record(seed);
		h = unit_at(target, load(&target->ctl->head) + rnd(seed) % 8);
		store(&h->len, 100);
		if (rnd(seed) % 64 == 0)
			store(&h->len, (uint32_t)interesting(seed));
		store(&h->len, 300);
		store(&h->len, 100);
		break;
	case CONTROL:
		fake_record(seed);
		word = (uint32_t *)target->ctl + 32 + rnd(seed) % 128;
		/* Good-bye is said seldom. */
		if (rnd(seed) % 50000 == 0 ||
		    (word != &target->ctl->client_closed && word != &target->ctl->client_life))
			store(word, (uint32_t)interesting(seed));
		break;
	case HOLES:
		fake_record(seed);
		if (rnd(seed) % 256 == 0)
			fallocate(target->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				  rnd(seed) % (len / 4096) * 4096, 4096);
		break;
	}
	plan->writes++;
}

static void *scribbler(void *arg)
{
	uint64_t seed = plan->seed + 1 + (uintptr_t)arg;

	while (!plan->stop)
		scribble(&seed);
	return NULL;
}

/* Also through a mapping of its own: a memfd's log is in reach, and the seals must hold. It may be made larger. */
static void scribble_in_the_log(struct ring *r)
{
	uint64_t end = r->lay.end;
	uint8_t *p;

	NEED(ftruncate(r->fd, 4096));
	NEED(ftruncate(r->fd, end * 2) == 0 || r->ops->backend == RING_KMOD);
	p = mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (p == MAP_FAILED) {
		NEED(r->ops->backend == RING_KMOD);
		return;
	}
	NEED(r->ops->backend == RING_MEMFD);
	memset(p + r->lay.log_at, rnd(&plan->seed), end - r->lay.log_off);
	munmap(p, end);
}

static void hostile_client(int fd, void *arg)
{
	pthread_t t[SCRIBBLERS];
	uintptr_t i;

	plan = arg;
	target = attached(fd);
	scribble_in_the_log(target);
	for (i = 0; i < SCRIBBLERS; i++)
		NEED_OK(pthread_create(&t[i], NULL, scribbler, (void *)i));
	while (!plan->stop) {	/* The real thing goes on meanwhile, as far as it can. */
		ring_submit(target, 1, "0123456789", 10, NULL, 0);
		sleep_ns(10000);
	}
	_exit(0);
}

/* --------------------------------------------------------------------------------- the proxy */

static int keep_half(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	volatile uint8_t sum = 0;
	uint32_t i;

	for (i = 0; i < e->len; i++)
		sum += ((const uint8_t *)data)[i];
	return ++*(int *)arg % 2;
}

static int take_some(void *arg, struct ring *r, const struct ring_record *rec)
{
	(void)rec;
	ring_advance(r);
	return ++*(int *)arg > 100000 ? -EIO : 0;
}

static bool sane(struct ring *r, const struct ring_record *rec)
{
	volatile uint8_t sum = 0;
	uint32_t i;

	for (i = 0; i < rec->len; i++)
		sum += ((const uint8_t *)rec->data)[i];
	return rec->len <= r->payload_max && rec->cpl <= r->geo.cpl_slots &&
	       rec->op != SINGVGPU_OP_PAD && rec->seq - 1 - r->rx.pos < r->geo.ring_units;
}

/* One thing that a proxy does. What it returns ends the session if it is < 0. */
static int do_something(struct __test_metadata *_metadata, struct ring *r, uint64_t *seed,
			long *records)
{
	struct ring_record run[80], *rec;
	int rc, n = 0, i;

	switch (rnd(seed) % 64) {
	case 0:
		return ring_log_compact(r, keep_half, &n) == -ENOMEM ? -ENOMEM : 0;
	case 1:
		ring_log_walk(r, keep_half, &n);
		return 0;
	case 2:
		rc = ring_freeze(r, take_some, &n, 2 * MS);
		if (!rc)
			rc = ring_thaw(r);
		return rc == -ETIMEDOUT || rc == -EIO ? 0 : rc;
	case 3:
		ring_latch_error(r, 1, 2);
		ring_kick(r);
		return 0;
	}
	rc = rnd(seed) % 2 ? ring_peek(r, run) : ring_peek_run(r, run, ARRAY_SIZE(run));
	if (!rc) {
		rc = ring_wait(r, MS);
		return rc == -ETIMEDOUT || rc == -EINTR ? 0 : rc;
	}
	if (rc < 0)
		return rc;
	for (i = 0; i < rc; i++) {
		rec = &run[i];
		EXPECT_EQ(true, sane(r, rec));
		++*records;
		if (rec->cpl)
			EXPECT_EQ(0, ring_complete(r, rec->cpl, rec->seq, 1, "abc", 3));
		if (rnd(seed) % 2 || ring_log_append(r, rec, 1, 2, rec->data, rec->len))
			ring_advance_past(r, rec);
	}
	return 0;
}

static void session(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self, uint64_t *seed,
		    long counts[4], const char **whys)
{
	struct hostility *h = (void *)self->shm;
	unsigned long before = h->writes;
	bool begun = false;
	int64_t end;
	pid_t pid;
	int rc = 0, i;

	self->p.geo.log_len = 16 << 10;
	self->p.geo.arena_len = 0;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	pid = spawn_client(&self->z, self->r, hostile_client, h);
	ASSERT_LT(0, pid);
	end = now_ns() + 3 * PATIENCE;
	while (rc >= 0 && now_ns() < end) {
		rc = do_something(_metadata, self->r, seed, &counts[3]);
		if (h->writes - before > 100 && !begun) {
			begun = true;
			end = now_ns() + 15 * MS;
		}
	}
	EXPECT_EQ(true, rc == 0 || rc == -EPROTO || rc == -EPIPE) {
		TH_LOG("got %d", rc);
	}
	counts[rc == -EPROTO ? 0 : rc == -EPIPE ? 1 : 2]++;
	for (i = 0; rc == -EPROTO && i < 8 && whys[i] && whys[i] != ring_why(self->r);)
		i++;
	if (rc == -EPROTO)
		whys[i] = ring_why(self->r);
	if (rc == -EPROTO)
		EXPECT_LT(10, strlen(ring_why(self->r)));
	h->stop = 1;
	kill(pid, SIGKILL);
	reap(&self->z, pid);
	/* Its death is told even so. */
	if (!rc)
		while (now_ns() < end + 3 * PATIENCE) {
			rc = do_something(_metadata, self->r, seed, &counts[3]);
			if (rc < 0)
				break;
		}
	EXPECT_GT(0, rc);
	ring_close(self->r);
	self->r = NULL;
}

static void sessions(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self, uint32_t how)
{
	struct hostility *h = (void *)self->shm;
	const char *whys[9] = { NULL };
	long n = scaled(60), i, counts[4] = { 0 };
	uint64_t seed = 0xbad + how;
	bool caught = how == RECORDS || how == LENGTHS;

	/* On until it has been caught, where it will be in the end. */
	for (i = 0; i < n || (i < 50 * n && !(caught ? counts[0] : counts[3])); i++) {
		h->how = how;
		h->seed = rnd(&seed);
		h->stop = 0;
		session(_metadata, self, &seed, counts, whys);
	}
	TH_LOG("%ld ended by -EPROTO, %ld by -EPIPE, %ld went on; %ld records, %lu writes",
	       counts[0], counts[1], counts[2], counts[3], (unsigned long)h->writes);
	for (i = 0; whys[i]; i++)
		TH_LOG("  %s", whys[i]);
	EXPECT_LT(0, counts[3]);
	EXPECT_LT(100, (long)atomic_load(&h->writes));
	if (caught) {
		EXPECT_LT(0, counts[0]);
		EXPECT_NE(NULL, whys[0]);
	}
}

/* A record as a client could write it into the ring, at pos: its header, and that it is committed. */
static void commit(struct ring *r, uint64_t pos, uint16_t op, uint16_t cpl, uint32_t len)
{
	struct singvgpu_rec *h = unit_at(r, pos);

	h->op = op;
	h->cpl = cpl;
	h->len = len;
	store_release(&h->seq, pos + 1);
}

/* Each rule that a record must keep, broken by it alone; each is named. */
TEST_F(ring, a_record_that_breaks_one_rule_is_refused_by_name)
{
	const uint32_t units = 256, most = units * SINGVGPU_UNIT / 4 - sizeof(struct singvgpu_rec);
	const struct {
		uint32_t pos;		/* in the ring */
		uint16_t op, cpl;
		uint32_t len;
		const char *why;	/* NULL: it is right */
	} records[] = {
		{ 0, 1, 0, most, NULL },
		{ 0, 1, 0, most + 1, "longer" },
		{ 0, 1, 0, ~0u, "longer" },
		{ units - 2, 1, 0, 2 * SINGVGPU_UNIT - sizeof(struct singvgpu_rec), NULL },
		{ units - 2, 1, 0, 2 * SINGVGPU_UNIT - sizeof(struct singvgpu_rec) + 1, "over the end" },
		{ units - 1, 1, 0, most, "over the end" },
		{ 5, 1, 64, 8, NULL },
		{ 5, 1, 65, 8, "slot" },
		{ 5, 1, UINT16_MAX, most, "slot" },
		{ units - 1, SINGVGPU_OP_PAD, 1, SINGVGPU_UNIT - sizeof(struct singvgpu_rec), "padding" },
		{ units - 1, SINGVGPU_OP_PAD, 0, 0, "padding" },
		{ units - 3, SINGVGPU_OP_PAD, 0, SINGVGPU_UNIT - sizeof(struct singvgpu_rec), "padding" },
	};
	struct ring_record rec;

	for (size_t i = 0; i < ARRAY_SIZE(records); i++) {
		self->p = params_of(variant->backend);
		ASSERT_EQ(units, self->p.geo.ring_units);
		ASSERT_EQ(64, self->p.geo.cpl_slots);
		ASSERT_EQ(0, ring_create(&self->r, &self->p));
		for (uint64_t pos = 0; pos < records[i].pos; pos++) {
			commit(self->r, pos, 1, 0, 8);
			ASSERT_EQ(1, ring_peek(self->r, &rec));
			ring_advance(self->r);
		}
		commit(self->r, records[i].pos, records[i].op, records[i].cpl, records[i].len);
		EXPECT_EQ(records[i].why ? -EPROTO : 1, ring_peek(self->r, &rec)) {
			TH_LOG("record %zu", i);
		}
		if (!records[i].why) {
			EXPECT_EQ(records[i].len, rec.len);
		} else {
			EXPECT_NE(NULL, strstr(ring_why(self->r), records[i].why)) {
				TH_LOG("record %zu: '%s'", i, ring_why(self->r));
			}
		}
		ring_close(self->r);
		self->r = NULL;
	}
}

/* What is taken at once has room for one record of the largest size: the next one waits. */
TEST_F(ring, records_that_are_too_large_together_are_taken_one_by_one)
{
	const uint32_t len = SINGVGPU_RECORD_MAX - sizeof(struct singvgpu_rec), n = 3;
	uint64_t units = SINGVGPU_RECORD_MAX / SINGVGPU_UNIT;
	struct ring_record run[8];

	self->p.geo.ring_units = 4 * units;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	for (uint32_t i = 0; i < n; i++)
		commit(self->r, i * units, 1, 0, i == 1 ? len / 2 : len);
	commit(self->r, units + (len / 2 + 16 + 63) / 64, 1, 0, len);
	for (uint32_t i = 0; i < n; i++) {
		ASSERT_EQ(1, ring_peek_run(self->r, run, ARRAY_SIZE(run)));
		EXPECT_EQ(i == 1 ? len / 2 : len, run[0].len);
		ring_advance(self->r);
	}
}

TEST_F(ring, a_client_writes_anywhere)
{
	sessions(_metadata, self, ANYWHERE);
}

TEST_F(ring, a_client_makes_records_up)
{
	sessions(_metadata, self, RECORDS);
}

TEST_F(ring, a_client_changes_records_while_they_are_read)
{
	sessions(_metadata, self, LENGTHS);
}

TEST_F(ring, a_client_writes_into_the_control_page)
{
	sessions(_metadata, self, CONTROL);
}

TEST_F(ring, a_client_punches_holes)
{
	sessions(_metadata, self, HOLES);
}

TEST_HARNESS_MAIN
