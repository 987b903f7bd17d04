// SPDX-License-Identifier: Apache-2.0
/*
 * death.c - one side is killed at any moment: the other is notified soon, and nothing is leaked
 */
#include "pair.h"

#define THREADS 16

/* What the proxy does when it has answered the first request. */
enum proxy_does { SERVE, NOTHING, CLOSE_GATE };
/* What the client does then. */
enum client_does { SUBMIT, CALL, BOTH, REST };

struct scene {
	const char *name;
	bool kill_proxy;
	enum proxy_does proxy;
	enum client_does client;
	uint32_t threads;
	uint32_t spin;		/* of the survivor */
};

static const struct scene scenes[] = {
	{ "proxy, client submits", true, SERVE, SUBMIT, 1, 10000 },
	{ "proxy, client calls", true, SERVE, CALL, 1, 10000 },
	{ "proxy, client calls, never spins", true, SERVE, CALL, 1, 0 },
	{ "proxy, client waits for room", true, NOTHING, SUBMIT, 1, 0 },
	{ "proxy, client spins for room", true, NOTHING, SUBMIT, 1, 3000000 },
	{ "proxy, client waits at the gate", true, CLOSE_GATE, SUBMIT, 1, 0 },
	{ "proxy, client waits for an answer", true, NOTHING, CALL, 1, 0 },
	{ "proxy, client spins for an answer", true, NOTHING, CALL, 1, 3000000 },
	{ "proxy, 16 threads wait for answers", true, NOTHING, CALL, THREADS, 0 },
	{ "proxy, 16 threads wait for room", true, NOTHING, SUBMIT, THREADS, 0 },
	{ "proxy, 16 threads wait at the gate", true, CLOSE_GATE, BOTH, THREADS, 0 },
	{ "proxy, 16 threads of both kinds", true, SERVE, BOTH, THREADS, 10000 },
	{ "client while it submits", false, SERVE, SUBMIT, 1, 10000 },
	{ "client while it calls", false, SERVE, CALL, 1, 10000 },
	{ "client with 16 busy threads", false, SERVE, BOTH, THREADS, 10000 },
	{ "client at rest, proxy sleeps", false, SERVE, REST, 1, 0 },
	{ "client at rest, proxy spins", false, SERVE, REST, 1, 3000000 },
	{ "client that waits for room", false, NOTHING, SUBMIT, 1, 0 },
};

struct stage {
	struct ring_params p;
	struct scene scene;
	pid_t client;
	atomic_uint proxy_ready, client_ready;
	atomic_uint told;		/* threads */
	_Atomic int64_t told_at;	/* the last of them */
	atomic_uint submitted;
};

static void tell(struct stage *s)
{
	s->told_at = now_ns();
	s->told++;
}

/* ----------------------------------------------------------------------------------- proxy */

static void answer_one(struct ring *r)
{
	struct ring_record rec;

	NEED(next(r, &rec) == 1);
	NEED_OK(ring_complete(r, rec.cpl, rec.seq, 0, NULL, 0));
	ring_advance(r);
}

static int freeze_nothing(void *arg, struct ring *r, const struct ring_record *rec)
{
	(void)arg;
	(void)r;
	(void)rec;
	return -EAGAIN;
}

static void proxy_main(int sock, void *arg)
{
	struct stage *s = arg;
	struct ring *r;
	int fd;

	NEED_OK(ring_create(&r, &s->p));
	NEED_OK(ring_watch_peer(r, pidfd_of(s->client)));
	fd = ring_client_fd(r);
	NEED(fd >= 0);
	NEED_OK(ring_pass_fd(sock, fd));
	close(fd);
	close(sock);
	answer_one(r);
	if (s->scene.proxy == CLOSE_GATE)
		NEED_OK(ring_freeze(r, freeze_nothing, NULL, PATIENCE));
	if (!s->scene.kill_proxy)
		ring_set_spin(r, s->scene.spin);
	s->proxy_ready = 1;
	if (s->scene.proxy == SERVE) {
		NEED(serve_all(r) >= 0);
		tell(s);
	} else if (!s->scene.kill_proxy) {
		struct ring_record rec;

		/* It takes nothing until the client has been killed, then all there is. */
		while (!load(&r->rx.peer_gone) && !(load(&r->ctl->client_life)))
			sched_yield();
		while (ring_peek(r, &rec) == 1)
			ring_advance(r);
		NEED(wait_patiently(r) == -EPIPE);
		NEED(wait_patiently(r) == -EPIPE);
		tell(s);
	} else {
		for (;;)
			pause();
	}
	ring_close(r);
}

/* ---------------------------------------------------------------------------------- client */

struct actor {
	struct stage *s;
	struct ring *r;
	uint32_t id;
};

static void *act(void *arg)
{
	struct actor *a = arg;
	struct stage *s = a->s;
	uint8_t data[100];
	uint32_t i;
	int rc;

	for (i = 0;; i++) {
		mark(data, a->id, i, sizeof(data));
		if (s->scene.client == CALL || (s->scene.client == BOTH && a->id % 2))
			rc = ring_call(a->r, 1, data, sizeof(data), NULL, 0, NULL, NULL, 0, NULL);
		else
			rc = ring_submit(a->r, 1, data, sizeof(data), NULL, 0);
		if (rc)
			break;
		s->submitted++;
	}
	if (rc != -EPIPE)
		fprintf(stderr, "# %s: got %d\n", s->scene.name, rc);
	NEED(rc == -EPIPE);
	tell(s);
	/* It stays so, whatever is tried. */
	NEED(ring_submit(a->r, 1, data, sizeof(data), NULL, 0) == -EPIPE);
	NEED(ring_call(a->r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL) == -EPIPE);
	return NULL;
}

static void client_main(int sock, void *arg)
{
	struct actor a[THREADS];
	struct stage *s = arg;
	struct ring *r = attached(sock);
	pthread_t t[THREADS];
	uint32_t i;

	NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	while (!s->proxy_ready)
		sched_yield();
	if (s->scene.kill_proxy)
		ring_set_spin(r, s->scene.spin);
	s->client_ready = 1;
	while (s->scene.client == REST)
		pause();
	for (i = 0; i < s->scene.threads; i++) {
		a[i] = (struct actor){ s, r, i };
		if (i)
			NEED_OK(pthread_create(&t[i], NULL, act, &a[i]));
	}
	act(&a[0]);
	for (i = 1; i < s->scene.threads; i++)
		pthread_join(t[i], NULL);
	ring_close(r);
}

/* ---------------------------------------------------------------------------------- tester */

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* Not before the scene is set; then at any moment. */
static void wait_for_the_moment(const struct stage *s, uint64_t *seed, long i)
{
	struct patience p = { 0 };

	while ((!s->proxy_ready || !s->client_ready) && be_patient(&p))
		;
	/* Sometimes at once; sometimes when all that can sleep does. */
	if (i % 4)
		sleep_ns(rnd(seed) % (i % 4 == 1 ? 50000 : i % 4 == 2 ? 300000 : 3 * MS));
}

static bool childless(pid_t pid)
{
	char path[64], line[64] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (!fgets(line, sizeof(line), f))
		line[0] = '\0';
	fclose(f);
	return !line[0];
}

/* A line of the module's totals; 0 without it. */
static long total(const char *name)
{
	FILE *f = fopen("/sys/kernel/debug/singvgpu/totals", "re");
	long value, found = 0;
	char key[32];

	while (f && fscanf(f, "%31s %ld", key, &value) == 2)
		if (!strcmp(key, name))
			found = value;
	if (f)
		fclose(f);
	return found;
}

static long settled(const char *name, long want)
{
	int i;

	for (i = 0; i < 3 * PATIENCE_S * 1000 && total(name) != want; i++)
		sleep_ns(MS);
	return total(name);
}

/* One pair, one kill. Returns how long it took until the last one was told. */
static int64_t kill_one(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self,
			const struct scene *scene, uint64_t *seed, long i)
{
	struct stage *s = (void *)self->shm;
	pid_t proxy, victim, survivor;
	int64_t at;
	int sv[2];

	memset(s, 0, sizeof(*s));
	s->p = self->p;		/* the same identity each time */
	s->scene = *scene;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv))
		return -errno;
	s->client = spawn(&self->z, client_main, s, sv[1]);
	proxy = spawn(&self->z, proxy_main, s, sv[0]);
	close(sv[0]);
	close(sv[1]);
	if (s->client <= 0 || proxy <= 0)
		return -ECHILD;
	wait_for_the_moment(s, seed, i);
	victim = scene->kill_proxy ? proxy : s->client;
	survivor = scene->kill_proxy ? s->client : proxy;
	at = now_ns();
	kill(victim, SIGKILL);
	EXPECT_EQ(1000 + SIGKILL, reap(&self->z, victim));
	EXPECT_EQ(0, reap(&self->z, survivor)) {
		TH_LOG("%s", scene->name);
	}
	EXPECT_EQ(scene->kill_proxy ? scene->threads : 1, atomic_load(&s->told)) {
		TH_LOG("%s", scene->name);
	}
	return s->told_at - at;
}

TEST_F(ring, killed_at_random_moments_the_other_is_told)
{
	long each = getenv("SINGVGPU_VM") ? 3 : scaled(56), i, channels, pages;
	uint64_t seed = 0xdeadbeef;
	int64_t *took = calloc(each, sizeof(*took)), worst = 0;
	unsigned int k;

	/* 18 scenes of 56 are 1,008 kills. */
	ASSERT_NE(NULL, took);
	self->p.geo.ring_units = 64;
	channels = total("channels");
	pages = total("pages");
	for (k = 0; k < ARRAY_SIZE(scenes); k++) {
		for (i = 0; i < each; i++) {
			took[i] = kill_one(_metadata, self, &scenes[k], &seed, i);
			ASSERT_LE(0, took[i]);
		}
		qsort(took, each, sizeof(*took), by_value);
		TH_LOG("%-36s told after %7.3f ms (median), %7.3f ms (most)", scenes[k].name,
		       took[each / 2] / 1e6, took[each - 1] / 1e6);
		if (took[each - 1] > worst)
			worst = took[each - 1];
	}
	free(took);
	EXPECT_GT(PATIENCE, worst);
	EXPECT_EQ(true, childless(self->z.pid));
	EXPECT_EQ(channels, settled("channels", channels));
	EXPECT_EQ(pages, settled("pages", pages));
}

/* Whether process pid has a thread in this state; its count. */
static int threads_in(pid_t pid, char state)
{
	char path[300], line[512], *p;
	struct dirent *e;
	DIR *dir;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", pid, e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
		p = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
		n += p && p[2] == state;
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* The waits are real ones: when the proxy is killed, all threads sleep in the kernel. */
TEST_F(ring, sixteen_sleeping_threads_are_all_told)
{
	static const struct scene asleep[] = {
		{ "answers", true, NOTHING, CALL, THREADS, 0 },
		{ "room", true, NOTHING, SUBMIT, THREADS, 0 },
		{ "gate", true, CLOSE_GATE, BOTH, THREADS, 0 },
	};
	struct stage *s = (void *)self->shm;
	unsigned int k;
	long round;

	for (round = 0; round < scaled(16); round++)
		for (k = 0; k < ARRAY_SIZE(asleep); k++) {
			struct patience p = { 0 };
			pid_t proxy;
			int sv[2], n;

			memset(s, 0, sizeof(*s));
			s->p = self->p;
			s->p.geo.ring_units = 64;
			s->scene = asleep[k];
			ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv));
			s->client = spawn(&self->z, client_main, s, sv[1]);
			proxy = spawn(&self->z, proxy_main, s, sv[0]);
			close(sv[0]);
			close(sv[1]);
			/* Looked at once: a thread may wake for a moment, and sleep again. */
			while (((n = threads_in(s->client, 'S')) < THREADS || !s->client_ready) &&
			       be_patient(&p))
				;
			EXPECT_LE(THREADS, n);
			EXPECT_EQ(0, atomic_load(&s->told));
			kill(proxy, SIGKILL);
			EXPECT_EQ(1000 + SIGKILL, reap(&self->z, proxy));
			EXPECT_EQ(0, reap(&self->z, s->client));
			EXPECT_EQ(THREADS, atomic_load(&s->told));
		}
}

/* --------------------------------------------------------------------- again and again */

static void attach_again(int sock, void *arg)
{
	long n = *(long *)arg, i;
	uint8_t data[64];
	struct ring *r;
	int fd;

	for (i = 0; i < n; i++) {
		fd = ring_take_fd(sock);
		NEED(fd >= 0);
		NEED_OK(ring_attach(&r, fd));
		mark(data, 0, i, sizeof(data));
		NEED_OK(ring_submit(r, 1, data, sizeof(data), NULL, 0));
		ring_close(r);
	}
}

TEST_F(ring, attached_again_ten_thousand_times)
{
	struct ring_record rec;
	long *n = (void *)self->shm, i;
	int sv[2], fd;
	struct mark m;
	pid_t pid;

	*n = getenv("SINGVGPU_VM") ? 400 : scaled(10000);
	self->p.geo.ring_units = 64;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv));
	pid = spawn(&self->z, attach_again, n, sv[1]);
	close(sv[1]);
	ASSERT_LT(0, pid);
	for (i = 0; i < *n; i++) {
		fd = ring_client_fd(self->r);
		ASSERT_LE(0, fd);
		ASSERT_EQ(0, ring_watch_peer(self->r, pidfd_of(pid)));
		ASSERT_EQ(0, ring_pass_fd(sv[0], fd));
		close(fd);
		ASSERT_EQ(1, next(self->r, &rec));
		ASSERT_EQ(true, marked(&rec, &m));
		ASSERT_EQ(i, m.n);
		ring_advance(self->r);
		ASSERT_EQ(-EPIPE, next(self->r, &rec));
		ASSERT_EQ((uint32_t)i, ring_generation(self->r));
	}
	close(sv[0]);
	EXPECT_EQ(0, reap(&self->z, pid));
}

static int own_threads(void)
{
	return threads_in(getpid(), 'R') + threads_in(getpid(), 'S');
}

TEST_F(ring, created_again_and_again)
{
	long n = scaled(2000), i, channels = total("channels");
	int threads = own_threads();

	for (i = 0; i < n; i++) {
		ASSERT_EQ(0, ring_create(&self->r, &self->p));
		ring_close(self->r);
		self->r = NULL;
	}
	/* A sanitizer may have a thread of its own. */
	EXPECT_GE(threads + 1, own_threads());
	EXPECT_EQ(channels, settled("channels", channels));
}

/* A second client process takes over from one that was killed, on the same channel. */
static void client_of_many(int fd, void *arg)
{
	atomic_uint *n = arg;
	struct ring *r = attached(fd);
	uint8_t data[300];

	for (;;) {
		uint32_t i = (*n)++;

		mark(data, 0, i, 16 + i % 280);
		NEED_OK(ring_submit(r, 1, data, 16 + i % 280, NULL, 0));
		NEED_OK(ring_call(r, 2, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	}
}

TEST_F(ring, the_next_client_goes_on_behind_a_killed_one)
{
	atomic_uint *n = (void *)self->shm;
	long rounds = scaled(300), i, cut = 0;
	struct ring_record rec;
	uint64_t seed = 8;
	uint32_t want = 0;
	struct mark m;
	pid_t pid;
	int rc;

	self->p.geo.ring_units = 64;
	self->p.geo.cpl_slots = 3;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	for (i = 0; i < rounds; i++) {
		int64_t end;

		pid = spawn_client(&self->z, self->r, client_of_many, n);
		ASSERT_LT(0, pid);
		end = now_ns() + 100000 + rnd(&seed) % MS;
		while ((rc = next(self->r, &rec)) == 1) {
			if (rec.op == 1) {
				ASSERT_EQ(true, marked(&rec, &m));
				/* At most the one that it was killed in is missing. */
				ASSERT_LE(want, m.n);
				ASSERT_GE(want + 1, m.n);
				cut += m.n - want;
				want = m.n + 1;
			}
			if (rec.cpl)
				ring_complete(self->r, rec.cpl, rec.seq, 0, NULL, 0);
			ring_advance(self->r);
			if (now_ns() > end)
				kill(pid, SIGKILL);
		}
		ASSERT_EQ(-EPIPE, rc);
		EXPECT_EQ(1000 + SIGKILL, reap(&self->z, pid));
	}
	TH_LOG("%u records of %ld clients, %ld cut off", want, rounds, cut);
	EXPECT_LE(rounds, want);
}

TEST_HARNESS_MAIN
