// SPDX-License-Identifier: Apache-2.0
/*
 * attach.c - channels are created, attached and refused as ring.h says, with each documented error
 */
#include "pair.h"

#define POISON ((struct ring *)0xdead)

/* What a spawned process tried, and what it got. */
struct attempt_result {
	int rc;
	int fd_open;	/* after a refusal the fd is still the caller's */
	int touched;	/* *out was written */
	uint64_t va;
};

static void try_attach(int fd, void *arg)
{
	struct attempt_result *res = arg;
	struct ring *r = POISON;

	res->rc = ring_attach(&r, fd);
	res->touched = r != POISON;
	res->fd_open = fcntl(fd, F_GETFD) >= 0;
	if (!res->rc)
		ring_close(r);
}

static int attach_elsewhere(struct zygote *z, int fd, struct attempt_result *res)
{
	pid_t pid;

	memset(res, 0xaa, sizeof(*res));
	pid = spawn(z, try_attach, res, fd);
	return pid < 0 ? pid : reap(z, pid);
}

TEST_F(ring, bad_geometry_is_refused)
{
	const struct singvgpu_geometry good = self->p.geo;
	struct singvgpu_geometry bad[] = {
		{ .ring_units = 0 }, { .ring_units = 32 }, { .ring_units = 96 },
		{ .ring_units = 2u << 20 }, { .ring_units = ~0u }, { .cpl_slots = 0 },
		{ .cpl_slots = SINGVGPU_CPL_SLOTS_MAX + 1 }, { .cpl_slots = ~0u }, { .va = 0 },
		{ .va = RING_VA_BASE + 1 }, { .va = 1ull << 47 }, { .va = (1ull << 47) - 4096 },
		{ .va = ~0xfffull }, { .arena_len = 1 }, { .arena_len = 1ull << 47 },
		{ .arena_len = ~0xfffull }, { .log_len = 1 }, { .log_len = ~0x1fffull },
		{ .log_len = 1ull << 47 },
	};
	const struct singvgpu_geometry none = { 0 };
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		struct ring *r = POISON;

		/* What is not mentioned is good; the first and some others mean the zero. */
		if (i != 0 && !bad[i].ring_units)
			bad[i].ring_units = good.ring_units;
		if (i != 5 && !bad[i].cpl_slots)
			bad[i].cpl_slots = good.cpl_slots;
		if (i != 8 && !bad[i].va)
			bad[i].va = good.va;
		self->p.geo = bad[i];
		EXPECT_EQ(-EINVAL, ring_create(&r, &self->p)) {
			TH_LOG("geometry %u", i);
		}
		EXPECT_EQ(POISON, r);
	}
	self->p.geo = none;
	EXPECT_EQ(-EINVAL, ring_create(&self->r, &self->p));
	self->p.geo = good;
	memset(self->p.id, 0, 16);
	EXPECT_EQ(-EINVAL, ring_create(&self->r, &self->p));
	EXPECT_EQ(NULL, self->r);
}

TEST_F(ring, a_taken_address_is_left_alone)
{
	uint8_t *there = mmap((void *)RING_VA_BASE + 8 * 4096, 4096, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	struct ring *r = POISON;

	ASSERT_EQ((uint8_t *)RING_VA_BASE + 8 * 4096, there);
	memset(there, 0x77, 4096);
	EXPECT_EQ(-EEXIST, ring_create(&r, &self->p));
	EXPECT_EQ(POISON, r);
	EXPECT_EQ(0x77, there[0]);
	EXPECT_EQ(0x77, there[4095]);
	munmap(there, 4096);
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
}

static void attach_at_taken(int fd, void *arg)
{
	uint64_t va = *(uint64_t *)arg;
	uint8_t *there = mmap((void *)va, 4096, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	struct ring *r = POISON;

	fd = passed(fd);
	NEED(there == (uint8_t *)va);
	memset(there, 0x66, 4096);
	NEED(ring_attach(&r, fd) == -EEXIST);
	NEED(r == POISON);
	NEED(there[0] == 0x66 && there[4095] == 0x66);
	NEED(fcntl(fd, F_GETFD) >= 0);
	munmap(there, 4096);
	/* It was only the address. */
	NEED_OK(ring_attach(&r, fd));
	NEED_OK(ring_submit(r, 1, "x", 1, NULL, 0));
	ring_close(r);
	NEED(fcntl(fd, F_GETFD) < 0);
}

TEST_F(ring, an_address_taken_in_the_client_is_left_alone)
{
	uint64_t *va = (uint64_t *)self->shm;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*va = RING_VA_BASE + 4096;
	pid = spawn_client(&self->z, self->r, attach_at_taken, va);
	ASSERT_LT(0, pid);
	EXPECT_EQ(1, serve_all(self->r));
	EXPECT_EQ(0, reap(&self->z, pid));
}

TEST_F(ring, what_is_no_channel_is_refused)
{
	struct attempt_result *res = (void *)self->shm;
	int fds[6], i, pipes[2];

	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	fds[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
	fds[1] = open("/dev/zero", O_RDWR | O_CLOEXEC);
	fds[2] = memfd_create("empty", MFD_CLOEXEC);
	fds[3] = memfd_create("zeros", MFD_CLOEXEC);
	ASSERT_EQ(0, ftruncate(fds[3], 1 << 20));
	fds[4] = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	fds[5] = pipes[0];
	for (i = 0; i < 6; i++) {
		ASSERT_LE(0, fds[i]);
		EXPECT_EQ(0, attach_elsewhere(&self->z, fds[i], res));
		EXPECT_EQ(-EPROTO, res->rc) {
			TH_LOG("fd %d", i);
		}
		EXPECT_EQ(0, res->touched);
		EXPECT_EQ(1, res->fd_open);
		close(fds[i]);
	}
	close(pipes[1]);
	EXPECT_EQ(-EBADF, ring_attach(&self->r, -1));
	EXPECT_EQ(-EBADF, ring_attach(&self->r, 4000));
	EXPECT_EQ(NULL, self->r);
}

/* A memfd that says what we like. */
static int crafted(const struct singvgpu_ctl *c, uint64_t len)
{
	int fd = memfd_create("crafted", MFD_CLOEXEC);

	if (fd >= 0 && (ftruncate(fd, len) || pwrite(fd, c, sizeof(*c), 0) != sizeof(*c))) {
		close(fd);
		return -1;
	}
	return fd;
}

TEST_F(ring, a_control_page_that_does_not_fit_is_refused)
{
	struct attempt_result *res = (void *)self->shm;
	struct singvgpu_ctl good, c;
	struct stat st;
	int i, fd;

	if (variant->backend == RING_KMOD)
		SKIP(return, "the module tells the geometry itself");
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	ASSERT_EQ(sizeof(good), pread(ring_fd(self->r), &good, sizeof(good), 0));
	ASSERT_EQ(0, fstat(ring_fd(self->r), &st));

	for (i = 0; i < 14; i++) {
		int want = -EPROTO;

		c = good;
		switch (i) {
		case 0: c.magic++; break;
		case 1: c.api_version++; want = -EPROTONOSUPPORT; break;
		case 2: c.api_version = 0; want = -EPROTONOSUPPORT; break;
		case 3: c.ring_units *= 2; break;
		case 4: c.ring_units = 3; break;
		case 5: c.cpl_slots = 65535; break;
		case 6: c.va = 5; break;
		case 7: c.cpl_off += 4096; break;
		case 8: c.ring_off -= 4096; break;
		case 9: c.arena_off = 0; break;
		case 10: c.arena_len = 1ull << 46; break;
		case 11: c.log_off++; break;
		case 12: c.log_len = 4096; break;
		case 13: c.va = 1ull << 47; break;
		}
		fd = crafted(&c, st.st_size);
		ASSERT_LE(0, fd);
		EXPECT_EQ(0, attach_elsewhere(&self->z, fd, res));
		EXPECT_EQ(want, res->rc) {
			TH_LOG("case %d", i);
		}
		EXPECT_EQ(0, res->touched);
		EXPECT_EQ(1, res->fd_open);
		close(fd);
	}
	fd = crafted(&good, st.st_size);
	EXPECT_EQ(0, attach_elsewhere(&self->z, fd, res));
	EXPECT_EQ(0, res->rc);
	close(fd);
}

/* The ring may hold records of an earlier client; they must be ones. */
TEST_F(ring, nonsense_behind_the_head_is_refused)
{
	struct attempt_result *res = (void *)self->shm;
	struct singvgpu_rec *rec;
	uint32_t len;
	int fd, i;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	for (i = 0; i < 3; i++) {
		len = (uint32_t[]){ ~0u, 64 * 256, 0x7fffffff }[i];
		rec = unit_at(self->r, 0);
		*rec = (struct singvgpu_rec){ .seq = 1, .op = 1, .len = len };
		fd = ring_client_fd(self->r);
		ASSERT_LE(0, fd);
		EXPECT_EQ(0, attach_elsewhere(&self->z, fd, res));
		EXPECT_EQ(-EPROTO, res->rc);
		EXPECT_EQ(0, res->touched);
		close(fd);
	}
}

static void one_call(int fd, void *arg)
{
	uint32_t *payload_max = arg;
	struct ring *r = attached(fd);
	uint8_t *data = calloc(1, SINGVGPU_RECORD_MAX);
	int32_t status = -1;
	int i;

	*payload_max = ring_payload_max(r);
	NEED(data);
	for (i = 0; i < 9; i++) {
		mark(data, 0, i, ring_payload_max(r));
		NEED_OK(ring_submit(r, 3, data, 100, data + 100, ring_payload_max(r) - 100));
	}
	NEED_OK(ring_call(r, 4, NULL, 0, NULL, 0, &status, NULL, 0, NULL));
	NEED(status == 9);
	ring_close(r);
	free(data);
}

TEST_F(ring, every_size_from_a_page_to_64_mib_works)
{
	uint32_t units, slots, *payload_max = (void *)self->shm, want;
	struct ring_record rec;
	struct mark m;
	pid_t pid;
	int n;

	for (units = SINGVGPU_RING_UNITS_MIN; units <= SINGVGPU_RING_UNITS_MAX; units *= 2) {
		slots = units == 128 ? SINGVGPU_CPL_SLOTS_MAX : units == 64 ? 1 : 65;
		self->p = params_of(variant->backend);
		self->p.geo = (struct singvgpu_geometry){ .va = RING_VA_BASE, .ring_units = units,
							  .cpl_slots = slots };
		ASSERT_EQ(0, ring_create(&self->r, &self->p));
		EXPECT_EQ(NULL, ring_arena(self->r));
		EXPECT_EQ(units, ring_geometry(self->r)->ring_units);
		EXPECT_EQ(0, memcmp(ring_id(self->r), self->p.id, 16));
		EXPECT_EQ(variant->backend, ring_backend(self->r));
		pid = spawn_client(&self->z, self->r, one_call, payload_max);
		ASSERT_LT(0, pid);
		for (n = 0; n < 9; n++) {
			ASSERT_EQ(1, next(self->r, &rec));
			EXPECT_EQ(true, marked(&rec, &m));
			EXPECT_EQ(n, (int)m.n);
			EXPECT_EQ(3, rec.op);
			ring_advance(self->r);
		}
		ASSERT_EQ(1, next(self->r, &rec));
		EXPECT_EQ(4, rec.op);
		EXPECT_EQ(0, ring_complete(self->r, rec.cpl, rec.seq, 9, NULL, 0));
		ring_advance(self->r);
		EXPECT_EQ(-EPIPE, next(self->r, &rec));
		EXPECT_EQ(0, reap(&self->z, pid));
		want = units * 64 / 4 < SINGVGPU_RECORD_MAX ? units * 64 / 4 : SINGVGPU_RECORD_MAX;
		EXPECT_EQ(want - 16, *payload_max);
		ring_close(self->r);
		self->r = NULL;
	}
}

static void late_submit(int fd, void *arg)
{
	atomic_int *step = arg;
	struct ring *r = attached(fd);
	uint64_t seq = 5;

	*step = 1;
	while (*step != 2)
		sched_yield();
	NEED(ring_submit(r, 1, NULL, 0, NULL, 0) == -EPIPE);
	NEED(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL) == -EPIPE);
	NEED(ring_error(r, &seq) == 0 && seq == 5);
	ring_close(r);
}

TEST_F(ring, a_closed_channel_is_a_pipe_without_a_reader)
{
	struct attempt_result *res = (void *)self->shm;
	atomic_int *step = (void *)(self->shm + 4096);
	pid_t pid;
	int fd;

	ring_close(NULL);
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	fd = variant->backend == RING_MEMFD ? ring_client_fd(self->r) : -1;
	pid = spawn_client(&self->z, self->r, late_submit, step);
	ASSERT_LT(0, pid);
	while (*step != 1)
		sched_yield();
	ring_close(self->r);
	self->r = NULL;
	*step = 2;
	EXPECT_EQ(0, reap(&self->z, pid));
	if (fd >= 0) {	/* Who comes too late can still map it, and is told. */
		EXPECT_EQ(0, attach_elsewhere(&self->z, fd, res));
		EXPECT_EQ(0, res->rc);
		close(fd);
	}
}

/* --- what only the module can refuse */

TEST_F(ring, without_the_module_the_reason_is_named)
{
	struct ring *r = POISON;

	if (!access(SINGVGPU_DEV_PATH, F_OK))
		SKIP(return, "the module is loaded");
	self->p.backend = RING_KMOD;
	EXPECT_EQ(-ENODEV, ring_create(&r, &self->p));
	EXPECT_EQ(POISON, r);
	EXPECT_EQ(-ENODEV, ring_attach_id(&r, self->p.id, self->p.cookie));
	EXPECT_EQ(POISON, r);
	self->p.backend = RING_AUTO;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	EXPECT_EQ(RING_MEMFD, ring_backend(self->r));
}

static void as_nobody(int fd, void *arg)
{
	struct ring_params *p = arg;
	struct ring *r = POISON;

	NEED(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
	close(fd);
	NEED(ring_create(&r, p) == -EACCES);
	NEED(ring_attach_id(&r, p->id, p->cookie) == -EACCES);
	NEED(r == POISON);
	p->backend = RING_AUTO;
	NEED_OK(ring_create(&r, p));
	NEED(ring_backend(r) == RING_MEMFD);
	ring_close(r);
}

/* The device may be open to all; the identity is its user's even so. */
static void as_another_user(int fd, void *arg)
{
	struct ring_params *p = arg;
	struct ring *r = POISON;

	close(fd);
	NEED(!chmod(SINGVGPU_DEV_PATH, 0666));
	NEED(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
	NEED(ring_attach_id(&r, p->id, p->cookie) == -ENOENT);
	NEED(r == POISON);
	p->geo.va += 1ull << 32;
	NEED(ring_create(&r, p) == -EEXIST);
	NEED(r == POISON);
}

TEST_F(ring, permission_is_by_user)
{
	struct ring_params *p = (void *)self->shm;
	struct stat st;
	pid_t pid;

	if (variant->backend != RING_KMOD || geteuid())
		SKIP(return, "needs the module and root");
	ASSERT_EQ(0, stat(SINGVGPU_DEV_PATH, &st));
	*p = self->p;
	pid = spawn(&self->z, as_nobody, p, 2);
	EXPECT_EQ(0, reap(&self->z, pid));
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*p = self->p;
	pid = spawn(&self->z, as_another_user, p, 2);
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(0, chmod(SINGVGPU_DEV_PATH, st.st_mode & 07777));
}

static void by_identity(int fd, void *arg)
{
	struct ring_params *p = arg;
	struct ring *r = POISON;
	uint8_t wrong[16];

	close(fd);
	memcpy(wrong, p->cookie, 16);
	wrong[15]++;
	NEED(ring_attach_id(&r, p->id, wrong) == -ENOENT);
	NEED(ring_attach_id(&r, wrong, p->cookie) == -ENOENT);
	NEED(r == POISON);
	NEED_OK(ring_attach_id(&r, p->id, p->cookie));
	NEED(!memcmp(ring_id(r), p->id, 16));
	NEED_OK(ring_call(r, 1, "x", 1, NULL, 0, NULL, NULL, 0, NULL));
	ring_close(r);
}

TEST_F(ring, attach_by_identity)
{
	struct ring_params *p = (void *)self->shm, other;
	struct ring *r = POISON;
	int fd, round;
	pid_t pid;

	if (variant->backend != RING_KMOD)
		SKIP(return, "only the module finds channels");
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	*p = self->p;
	other = self->p;
	other.geo.va += 1ull << 32;
	EXPECT_EQ(-EEXIST, ring_create(&r, &other));
	EXPECT_EQ(POISON, r);

	fd = ring_client_fd(self->r);
	ASSERT_LE(0, fd);
	EXPECT_EQ(-EBUSY, ring_client_fd(self->r));
	EXPECT_EQ(-EBUSY, ring_attach_id(&r, self->p.id, self->p.cookie));
	EXPECT_EQ(POISON, r);
	close(fd);
	for (round = 1; round < 4; round++) {
		pid = spawn(&self->z, by_identity, p, 2);
		ASSERT_LT(0, pid);
		while (ring_generation(self->r) != (uint32_t)round)
			sleep_ns(MS);
		EXPECT_EQ(0, ring_watch_peer(self->r, -1));
		EXPECT_EQ(1, serve_all(self->r));
		EXPECT_EQ(0, reap(&self->z, pid));
	}
	ring_close(self->r);
	self->r = NULL;
	EXPECT_EQ(-ENOENT, ring_attach_id(&r, self->p.id, self->p.cookie));
}

static void second_mapper(int fd, void *arg)
{
	struct ring *r = POISON;

	(void)arg;
	NEED(ring_attach(&r, fd) == -EBUSY);
	NEED(r == POISON && fcntl(fd, F_GETFD) >= 0);
}

struct two {
	atomic_int step;
};

static void first_mapper(int fd, void *arg)
{
	struct two *t = arg;
	struct ring *r = attached(fd);

	t->step = 1;
	while (t->step != 2)
		sched_yield();
	NEED_OK(ring_submit(r, 1, NULL, 0, NULL, 0));
	ring_close(r);
}

TEST_F(ring, one_process_has_the_client_end)
{
	struct two *t = (void *)self->shm;
	pid_t one, two;
	int fd;

	if (variant->backend != RING_KMOD)
		SKIP(return, "only the module knows who has mapped it");
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	fd = ring_client_fd(self->r);
	ASSERT_LE(0, fd);
	one = spawn(&self->z, first_mapper, t, fd);
	while (t->step != 1)
		sched_yield();
	two = spawn(&self->z, second_mapper, NULL, fd);
	EXPECT_EQ(0, reap(&self->z, two));
	close(fd);
	t->step = 2;
	EXPECT_EQ(1, serve_all(self->r));
	EXPECT_EQ(0, reap(&self->z, one));
}

static int set_limit(const char *name, const char *value)
{
	char path[128];
	int fd, rc;

	snprintf(path, sizeof(path), "/sys/module/singvgpu/parameters/%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = write(fd, value, strlen(value)) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

TEST_F(ring, limits_are_named)
{
	struct ring *r = POISON;

	if (variant->backend != RING_KMOD || geteuid())
		SKIP(return, "needs the module and root");
	ASSERT_EQ(0, set_limit("user_channels", "1"));
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	self->p = params_of(variant->backend);
	self->p.geo.va += 1ull << 32;
	EXPECT_EQ(-EDQUOT, ring_create(&r, &self->p));
	EXPECT_EQ(0, set_limit("user_channels", "1024"));
	self->p.geo.arena_len = 1ull << 42;
	EXPECT_EQ(-EDQUOT, ring_create(&r, &self->p));
	EXPECT_EQ(POISON, r);
	EXPECT_EQ(0, set_limit("user_mib", "1"));
	EXPECT_EQ(-EDQUOT, ring_commit(self->r, 0, 1 << 20));
	EXPECT_EQ(0, set_limit("user_mib", "0"));
	EXPECT_EQ(0, ring_commit(self->r, 0, 1 << 20));
}

TEST_F(ring, every_error_has_a_sentence)
{
	static const int errs[] = { EPIPE, ECHILD, EPROTO, EPROTONOSUPPORT, EEXIST, ENODEV, EACCES,
				    EPERM, EDQUOT, ENOMEM, EINVAL, ENOENT, EBUSY, EMSGSIZE,
				    ETIMEDOUT, EINTR, ENOSPC, EBADMSG, EALREADY, ENOSYS, EMFILE };
	unsigned int i, k;

	for (i = 0; i < ARRAY_SIZE(errs); i++) {
		const char *s = ring_strerror(errs[i]);

		ASSERT_NE(NULL, s);
		EXPECT_LT(5, strlen(s));
		EXPECT_EQ(s, ring_strerror(-errs[i]));
		for (k = 0; k < i; k++)
			if (errs[i] != EPERM)
				EXPECT_NE(0, strcmp(s, ring_strerror(errs[k])));
	}
	EXPECT_NE(NULL, ring_strerror(12345678));
	EXPECT_NE(NULL, ring_strerror(-2147483647 - 1));
}

TEST_HARNESS_MAIN
