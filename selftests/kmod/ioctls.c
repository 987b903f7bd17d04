// SPDX-License-Identifier: Apache-2.0
/*
 * ioctls.c - each ioctl of /dev/singvgpu: its effect, and every documented error
 */
#include "kmod.h"

#include <linux/capability.h>
#include <sys/mman.h>

TEST(unknown_ioctl_is_refused)
{
	int fd;

	REQUIRE_DEVICE();
	fd = open_device();
	ASSERT_LE(0, fd);
	EXPECT_EQ(-ENOTTY, SYS(ioctl(fd, _IO(SINGVGPU_IOC_MAGIC, 99))));
	EXPECT_EQ(-ENOTTY, SYS(ioctl(fd, _IO(0x12, 1))));
	/* Another size is another command. */
	EXPECT_EQ(-ENOTTY, SYS(ioctl(fd, _IOR(SINGVGPU_IOC_MAGIC, 0, char[8]), NULL)));
	close(fd);
}

TEST(file_that_is_no_end_is_not_connected)
{
	struct singvgpu_wake_wait ww = {};
	struct singvgpu_info info;
	char byte = 0;
	int fd;

	REQUIRE_DEVICE();
	fd = open_device();
	ASSERT_LE(0, fd);
	info = info_of(fd);
	EXPECT_EQ(SINGVGPU_API_VERSION, info.api_version);
	EXPECT_EQ(SINGVGPU_ROLE_NONE, info.role);
	EXPECT_EQ(0, info.length);
	EXPECT_EQ(0, info.geo.va);
	EXPECT_EQ(-ENOTCONN, wait_on(fd, 0, 0, 0));
	EXPECT_EQ(-ENOTCONN, wake(fd, 0, 1));
	EXPECT_EQ(-ENOTCONN, SYS(ioctl(fd, SINGVGPU_IOC_WAKE_WAIT, &ww)));
	EXPECT_EQ(-ENOTCONN, SYS(ioctl(fd, SINGVGPU_IOC_FREEZE)));
	EXPECT_EQ(-ENOTCONN, SYS(ioctl(fd, SINGVGPU_IOC_THAW)));
	EXPECT_EQ(-ENOTCONN, range(fd, SINGVGPU_IOC_COMMIT, 0, PAGE));
	EXPECT_EQ(-ENOTCONN, range(fd, SINGVGPU_IOC_DECOMMIT, 0, PAGE));
	EXPECT_EQ(-ENOTCONN, SYS(lseek(fd, 0, SEEK_END)));
	EXPECT_EQ(-ENOTCONN, SYS(pread(fd, &byte, 1, 0)));
	EXPECT_EQ(-ENOTCONN, SYS(pwrite(fd, &byte, 1, 0)));
	EXPECT_EQ(-ENOTCONN, SYS(map_at(fd, 0, PAGE)));
	close(fd);
}

TEST(bad_addresses_fault)
{
	void *bad = (void *)8;
	struct singvgpu_create c;
	unsigned long cmds[] = { SINGVGPU_IOC_WAIT, SINGVGPU_IOC_WAKE, SINGVGPU_IOC_WAKE_WAIT,
				 SINGVGPU_IOC_COMMIT, SINGVGPU_IOC_DECOMMIT,
				 SINGVGPU_IOC_GET_INFO, SINGVGPU_IOC_CREATE,
				 SINGVGPU_IOC_ATTACH };
	unsigned int i;
	int fd;

	REQUIRE_DEVICE();
	fd = open_device();
	ASSERT_LE(0, fd);
	c = default_create();
	EXPECT_EQ(-EFAULT, SYS(ioctl(fd, SINGVGPU_IOC_CREATE, bad)));
	ASSERT_EQ(0, create(fd, &c));
	for (i = 0; i < sizeof(cmds) / sizeof(cmds[0]); i++)
		EXPECT_EQ(-EFAULT, SYS(ioctl(fd, cmds[i], bad))) TH_LOG("command %u", i);
	close(fd);
}

FIXTURE(make) {
	int fd;
	struct singvgpu_create c;
	long channels;
};

FIXTURE_SETUP(make)
{
	REQUIRE_DEVICE();
	self->channels = total("channels");
	self->fd = open_device();
	ASSERT_LE(0, self->fd);
	self->c = default_create();
}

FIXTURE_TEARDOWN(make)
{
	close(self->fd);
	EXPECT_EQ(0, channels_left(self->channels));
}

#define REFUSED(error, change) do { \
	struct singvgpu_create c = self->c; \
	change; \
	EXPECT_EQ(-(error), create(self->fd, &c)) TH_LOG("%s", #change); \
	EXPECT_EQ(SINGVGPU_ROLE_NONE, info_of(self->fd).role); \
} while (0)

TEST_F(make, refuses_what_is_wrong)
{
	REFUSED(EPROTONOSUPPORT, c.api_version = 0);
	REFUSED(EPROTONOSUPPORT, c.api_version = SINGVGPU_API_VERSION + 1);
	REFUSED(EINVAL, c.flags = 1);
	REFUSED(EINVAL, c.reserved = 1);
	REFUSED(EINVAL, memset(c.id, 0, 16));
	REFUSED(EINVAL, memset(c.cookie, 0, 16));
	EXPECT_EQ(0, create(self->fd, &self->c));
}

TEST_F(make, refuses_wrong_geometry)
{
	REFUSED(EINVAL, c.geo.ring_units = 0);
	REFUSED(EINVAL, c.geo.ring_units = 63);
	REFUSED(EINVAL, c.geo.ring_units = 32);
	REFUSED(EINVAL, c.geo.ring_units = 1000);
	REFUSED(EINVAL, c.geo.ring_units = SINGVGPU_RING_UNITS_MAX * 2);
	REFUSED(EINVAL, c.geo.ring_units = 1U << 31);
	REFUSED(EINVAL, c.geo.cpl_slots = 0);
	REFUSED(EINVAL, c.geo.cpl_slots = SINGVGPU_CPL_SLOTS_MAX + 1);
	REFUSED(EINVAL, c.geo.cpl_slots = ~0U);
	REFUSED(EINVAL, c.geo.va = 0);
	REFUSED(EINVAL, c.geo.va = VA + 1);
	REFUSED(EINVAL, c.geo.va = 1ULL << 63);
	REFUSED(EINVAL, c.geo.va = 0x7ffffffff000ULL);
	REFUSED(EINVAL, c.geo.va = -PAGE);
	REFUSED(EINVAL, c.geo.arena_len = PAGE + 1);
	REFUSED(EINVAL, c.geo.arena_len = -PAGE);
	REFUSED(EINVAL, c.geo.arena_len = 1ULL << 63);
	REFUSED(EINVAL, c.geo.arena_len = 1ULL << 47);
	REFUSED(EINVAL, c.geo.log_len = 17);
	REFUSED(EINVAL, c.geo.log_len = -PAGE);
	REFUSED(EINVAL, (c.geo.log_len = 1ULL << 63, c.geo.arena_len = 1ULL << 63));
	EXPECT_EQ(0, create(self->fd, &self->c));
}

TEST_F(make, fills_the_control_page)
{
	struct singvgpu_ctl ctl;
	struct singvgpu_info info;

	self->c.generation = 0x123456;
	self->c.geo.cpl_slots = 65;
	ASSERT_EQ(0, create(self->fd, &self->c));
	memset(&ctl, 0xff, sizeof(ctl));
	ASSERT_EQ(sizeof(ctl), pread(self->fd, &ctl, sizeof(ctl), 0));
	EXPECT_EQ(SINGVGPU_MAGIC, ctl.magic);
	EXPECT_EQ(SINGVGPU_API_VERSION, ctl.api_version);
	EXPECT_EQ(1024, ctl.ring_units);
	EXPECT_EQ(0, memcmp(ctl.id, self->c.id, 16));
	EXPECT_EQ(VA, ctl.va);
	EXPECT_EQ(65, ctl.cpl_slots);
	EXPECT_EQ(PAGE, ctl.cpl_off);
	EXPECT_EQ(3 * PAGE, ctl.ring_off);
	EXPECT_EQ(3 * PAGE + 65536, ctl.arena_off);
	EXPECT_EQ(ARENA, ctl.arena_len);
	EXPECT_EQ(ctl.arena_off + ARENA, ctl.log_off);
	EXPECT_EQ(LOG, ctl.log_len);
	EXPECT_EQ(0x12345600, ctl.cons);
	EXPECT_EQ(0, ctl.life);
	EXPECT_EQ(0, ctl.client_life);

	info = info_of(self->fd);
	EXPECT_EQ(SINGVGPU_ROLE_PROXY, info.role);
	EXPECT_EQ(0, info.state);
	EXPECT_EQ(0, memcmp(info.id, self->c.id, 16));
	EXPECT_EQ(0, memcmp(&info.geo, &self->c.geo, sizeof(info.geo)));
	EXPECT_EQ(ctl.log_off + LOG, info.length);
	EXPECT_EQ(1, info.pages);
	EXPECT_EQ(0x123456, info.generation);
	EXPECT_EQ(0, info.reserved);
}

TEST_F(make, takes_the_extremes)
{
	self->c.geo.ring_units = SINGVGPU_RING_UNITS_MAX;
	self->c.geo.cpl_slots = SINGVGPU_CPL_SLOTS_MAX;
	self->c.geo.log_len = 0;
	self->c.geo.arena_len = 0;
	ASSERT_EQ(0, create(self->fd, &self->c));
	EXPECT_EQ(PAGE + (4ULL << 20) + (64ULL << 20), info_of(self->fd).length);
}

TEST_F(make, is_done_once_for_a_file_and_an_id)
{
	int other = open_device();

	ASSERT_LE(0, other);
	ASSERT_EQ(0, create(self->fd, &self->c));
	EXPECT_EQ(-EBUSY, create(self->fd, &self->c));
	EXPECT_EQ(-EEXIST, create(other, &self->c));
	EXPECT_EQ(SINGVGPU_ROLE_NONE, info_of(other).role);
	/* The id is free again once its proxy is gone. */
	close(self->fd);
	EXPECT_EQ(0, create(other, &self->c));
	EXPECT_EQ(-EBUSY, attach(other, &self->c));
	close(other);
	self->fd = open_device();
}

TEST_F(make, an_id_is_free_while_a_client_keeps_the_old_channel)
{
	int client = open_device(), again = open_device();

	ASSERT_EQ(0, create(self->fd, &self->c));
	ASSERT_EQ(0, attach(client, &self->c));
	close(self->fd);
	self->fd = open_device();
	EXPECT_EQ(-ENOENT, attach(again, &self->c));
	EXPECT_EQ(0, create(self->fd, &self->c));
	EXPECT_EQ(-EBUSY, attach(client, &self->c));
	EXPECT_EQ(0, attach(again, &self->c));
	close(again);
	close(client);
}

TEST_F(make, attach_refuses_what_is_wrong)
{
	struct singvgpu_attach a = attach_to(&self->c), b;
	int fd = open_device(), i;

	EXPECT_EQ(-ENOENT, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &a)));
	ASSERT_EQ(0, create(self->fd, &self->c));
	b = a;
	b.api_version++;
	EXPECT_EQ(-EPROTONOSUPPORT, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &b)));
	b = a;
	b.flags = 1;
	EXPECT_EQ(-EINVAL, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &b)));
	b = a;
	b.reserved = 1;
	EXPECT_EQ(-EINVAL, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &b)));
	for (i = 0; i < 128; i++) {
		b = a;
		b.cookie[i / 8] ^= 1 << i % 8;
		EXPECT_EQ(-ENOENT, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &b)));
		b = a;
		b.id[i / 8] ^= 1 << i % 8;
		EXPECT_EQ(-ENOENT, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &b)));
	}
	EXPECT_EQ(SINGVGPU_ROLE_NONE, info_of(fd).role);
	EXPECT_EQ(-EBUSY, SYS(ioctl(self->fd, SINGVGPU_IOC_ATTACH, &a)));
	memset(&a.geo, 0xee, sizeof(a.geo));
	ASSERT_EQ(0, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &a)));
	EXPECT_EQ(0, memcmp(&a.geo, &self->c.geo, sizeof(a.geo)));
	EXPECT_EQ(0, a.generation);
	EXPECT_EQ(-EBUSY, SYS(ioctl(fd, SINGVGPU_IOC_ATTACH, &a)));
	EXPECT_EQ(SINGVGPU_ROLE_CLIENT, info_of(fd).role);
	EXPECT_EQ(LOG_OFF, info_of(fd).length);
	EXPECT_EQ(SINGVGPU_STATE_PEER, info_of(fd).state);
	EXPECT_EQ(SINGVGPU_STATE_PEER, info_of(self->fd).state);
	close(fd);
	EXPECT_EQ(0, info_of(self->fd).state);
}

/* Runs in a child with another uid; returns what ATTACH did. */
static int attach_as(uid_t uid, const struct singvgpu_create *c)
{
	pid_t pid = fork();

	if (!pid) {
		int fd = open_device();

		if (setresuid(uid, uid, uid))
			_exit(100);
		_exit(-attach(fd, c));
	}
	return reap(pid);
}

/* The same in one of nobody's that has this capability alone. */
static int attach_with(int cap, const struct singvgpu_create *c)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
	pid_t pid = fork();

	if (!pid) {
		int fd = open_device();

		data[cap / 32].permitted = data[cap / 32].effective = 1U << cap % 32;
		if (prctl(PR_SET_KEEPCAPS, 1) || setresuid(65534, 65534, 65534) ||
		    syscall(SYS_capset, &head, data))
			_exit(100);
		_exit(-attach(fd, c));
	}
	return reap(pid);
}

TEST_F(make, only_its_user_and_root_attach)
{
	int fd;

	if (geteuid())
		SKIP(return, "needs root");
	ASSERT_EQ(0, create(self->fd, &self->c));
	EXPECT_EQ(ENOENT, attach_as(65534, &self->c));
	EXPECT_EQ(0, attach_as(0, &self->c));
	EXPECT_EQ(ENOENT, attach_with(CAP_SYS_RESOURCE, &self->c));
	EXPECT_EQ(0, attach_with(CAP_SYS_PTRACE, &self->c));
	EXPECT_EQ(0, attach_with(CAP_SYS_ADMIN, &self->c));
	close(self->fd);

	/* A channel of nobody's. */
	self->fd = open_device();
	ASSERT_EQ(0, seteuid(65534));
	EXPECT_EQ(0, create(self->fd, &self->c));
	ASSERT_EQ(0, seteuid(0));
	EXPECT_EQ(0, attach_as(65534, &self->c));
	EXPECT_EQ(ENOENT, attach_as(65533, &self->c));
	fd = open_device();
	EXPECT_EQ(0, attach(fd, &self->c));
	close(fd);
}

static void *race_main(void *p)
{
	struct { int fd; struct singvgpu_create *c; pthread_barrier_t *start; int attach; } *r = p;

	pthread_barrier_wait(r->start);
	return (void *)(r->attach ? attach(r->fd, r->c) : create(r->fd, r->c));
}

TEST_F(make, of_two_at_once_one_wins)
{
	pthread_barrier_t start;
	pthread_t thread[4];
	struct singvgpu_create c[4];
	struct { int fd; struct singvgpu_create *c; pthread_barrier_t *start; int attach; } arg[4];
	void *result;
	int round, i, won;

	pthread_barrier_init(&start, NULL, 4);
	for (round = 0; round < 200; round++) {
		int fd = open_device(), other = open_device();

		c[3] = default_create();
		ASSERT_EQ(0, create(other, &c[3]));
		for (i = 0; i < 4; i++) {
			if (i < 3)
				c[i] = default_create();
			arg[i].fd = fd;
			arg[i].c = &c[i];
			arg[i].start = &start;
			arg[i].attach = i == 3;
			ASSERT_EQ(0, pthread_create(&thread[i], NULL, race_main, &arg[i]));
		}
		for (i = won = 0; i < 4; i++) {
			pthread_join(thread[i], &result);
			won += !result;
			EXPECT_TRUE(!result || (long)result == -EBUSY);
		}
		EXPECT_EQ(1, won);
		close(fd);
		close(other);
	}
	pthread_barrier_destroy(&start);
}

struct closer {
	pthread_barrier_t turn;
	int fd;
};

static void *closer_main(void *p)
{
	struct closer *c = p;

	for (;;) {
		pthread_barrier_wait(&c->turn);
		if (c->fd < 0)
			return NULL;
		close(c->fd);
		pthread_barrier_wait(&c->turn);
	}
}

/* A client finds its channel, and the proxy hangs up before it is attached. */
TEST_F(make, attachment_races_with_the_proxys_end)
{
	int round, client, attached = 0;
	pthread_t thread;
	struct closer c;
	volatile int i;
	long r;

	pthread_barrier_init(&c.turn, NULL, 2);
	ASSERT_EQ(0, pthread_create(&thread, NULL, closer_main, &c));
	for (round = 0; round < 2000; round++) {
		c.fd = open_device();
		client = open_device();
		ASSERT_EQ(0, create(c.fd, &self->c));
		pthread_barrier_wait(&c.turn);
		for (i = 0; i < round % 50 * 4; i++)
			;
		r = attach(client, &self->c);
		pthread_barrier_wait(&c.turn);
		ASSERT_TRUE(r == 0 || r == -EPIPE || r == -ENOENT);
		attached += !r;
		close(client);
	}
	c.fd = -1;
	pthread_barrier_wait(&c.turn);
	pthread_join(thread, NULL);
	pthread_barrier_destroy(&c.turn);
	TH_LOG("attached in %d of %d rounds", attached, round);
}

TEST_F(channel, wake_refuses_what_is_wrong)
{
	struct singvgpu_wake w = { .off = DOORBELL, .nr = 1, .flags = 1 };

	EXPECT_EQ(-EINVAL, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE, &w)));
	EXPECT_EQ(-EINVAL, wake(self->proxy, 1, 1));
	EXPECT_EQ(-EINVAL, wake(self->proxy, 2, 1));
	EXPECT_EQ(-EINVAL, wake(self->proxy, RING_OFF, 1));
	EXPECT_EQ(-EINVAL, wake(self->proxy, LENGTH, 1));
	EXPECT_EQ(-EINVAL, wake(self->proxy, 1ULL << 32, 1));
	EXPECT_EQ(-EINVAL, wake(self->proxy, -4ULL, 1));
	EXPECT_EQ(0, wake(self->proxy, RING_OFF - 4, 1));
	EXPECT_EQ(0, wake(self->proxy, DOORBELL, 0));
	EXPECT_EQ(0, wake(self->client, DOORBELL, ~0U));
}

TEST_F(channel, wait_refuses_what_is_wrong)
{
	struct singvgpu_wake_wait ww = { .wake.off = DOORBELL, .wait.off = DOORBELL };
	struct singvgpu_wait w = { .off = DOORBELL, .flags = 1 };

	EXPECT_EQ(-EINVAL, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAIT, &w)));
	EXPECT_EQ(-EINVAL, wait_on(self->proxy, 1, 0, 0));
	EXPECT_EQ(-EINVAL, wait_on(self->proxy, RING_OFF, 0, 0));
	EXPECT_EQ(-EINVAL, wait_on(self->proxy, 1ULL << 32, 0, 0));
	EXPECT_EQ(-EINVAL, wait_on(self->proxy, -4ULL, 0, 0));
	EXPECT_EQ(-ETIME, wait_on(self->proxy, RING_OFF - 4, 0, 0));
	ww.wake.flags = 1;
	EXPECT_EQ(-EINVAL, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE_WAIT, &ww)));
	ww.wake.flags = 0;
	ww.wait.flags = 1;
	EXPECT_EQ(-EINVAL, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE_WAIT, &ww)));
	ww.wait.flags = 0;
	ww.wake.off = RING_OFF;
	EXPECT_EQ(-EINVAL, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE_WAIT, &ww)));
	ww.wake.off = DOORBELL;
	ww.wait.off = 3;
	EXPECT_EQ(-EINVAL, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE_WAIT, &ww)));
	ww.wait.off = DOORBELL;
	EXPECT_EQ(-ETIME, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE_WAIT, &ww)));
}

/* What a call has to tell must not be lost where it cannot be written. */
TEST_F(channel, arguments_that_cannot_be_written_fault)
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct singvgpu_attach *a = page;
	struct singvgpu_wait *w = page;
	struct singvgpu_wake_wait *ww = page;

	ASSERT_NE(MAP_FAILED, page);
	*w = (struct singvgpu_wait){ .off = DOORBELL };
	ASSERT_EQ(0, mprotect(page, PAGE, PROT_READ));
	EXPECT_EQ(-EFAULT, SYS(ioctl(self->proxy, SINGVGPU_IOC_GET_INFO, page)));
	EXPECT_EQ(-EFAULT, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAIT, w)));
	ASSERT_EQ(0, mprotect(page, PAGE, PROT_READ | PROT_WRITE));
	*ww = (struct singvgpu_wake_wait){ .wake.off = DOORBELL, .wait.off = DOORBELL };
	ASSERT_EQ(0, mprotect(page, PAGE, PROT_READ));
	EXPECT_EQ(-EFAULT, SYS(ioctl(self->proxy, SINGVGPU_IOC_WAKE_WAIT, ww)));

	/* A client that does not learn that it is attached is not. */
	close(self->client);
	self->client = open_device();
	ASSERT_EQ(0, mprotect(page, PAGE, PROT_READ | PROT_WRITE));
	*a = attach_to(&self->create);
	ASSERT_EQ(0, mprotect(page, PAGE, PROT_READ));
	EXPECT_EQ(-EFAULT, SYS(ioctl(self->client, SINGVGPU_IOC_ATTACH, a)));
	EXPECT_EQ(0, info_of(self->proxy).state);
	EXPECT_EQ(SINGVGPU_LIFE_DIED, self->ctl->client_life);
	EXPECT_EQ(0, attach(self->client, &self->create));
	EXPECT_EQ(SINGVGPU_STATE_PEER, info_of(self->proxy).state);
	munmap(page, PAGE);
}

TEST_F(channel, freezes_and_thaws)
{
	struct waiter w = { .fd = self->client, .off = offsetof(struct singvgpu_ctl, cons),
			    .expect = SINGVGPU_CONS_GATE | SINGVGPU_CONS_SLEEPS, .timeout = -1 };

	self->ctl->cons = SINGVGPU_CONS_SLEEPS;
	EXPECT_EQ(-EACCES, SYS(ioctl(self->client, SINGVGPU_IOC_FREEZE)));
	EXPECT_EQ(-EALREADY, SYS(ioctl(self->proxy, SINGVGPU_IOC_THAW)));
	EXPECT_EQ(SINGVGPU_CONS_SLEEPS, self->ctl->cons);
	EXPECT_EQ(0, SYS(ioctl(self->proxy, SINGVGPU_IOC_FREEZE)));
	EXPECT_EQ(SINGVGPU_CONS_SLEEPS | SINGVGPU_CONS_GATE, self->ctl->cons);
	EXPECT_EQ(-EALREADY, SYS(ioctl(self->proxy, SINGVGPU_IOC_FREEZE)));
	EXPECT_EQ(SINGVGPU_STATE_PEER | SINGVGPU_STATE_FROZEN, info_of(self->proxy).state);
	EXPECT_EQ(SINGVGPU_STATE_PEER | SINGVGPU_STATE_FROZEN, info_of(self->client).state);
	ASSERT_TRUE(waiter_start(&w));
	EXPECT_EQ(-EACCES, SYS(ioctl(self->client, SINGVGPU_IOC_THAW)));
	EXPECT_EQ(0, SYS(ioctl(self->proxy, SINGVGPU_IOC_THAW)));
	EXPECT_EQ(0, waiter_end(&w));
	EXPECT_EQ(SINGVGPU_CONS_SLEEPS, self->ctl->cons);
	EXPECT_EQ(SINGVGPU_STATE_PEER, info_of(self->proxy).state);
}

TEST_F(channel, fdinfo_tells_what_get_info_does)
{
	char path[64], text[2048] = "", line[128];
	FILE *f;
	size_t n;
	int i;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", self->client);
	f = fopen(path, "re");
	ASSERT_NE(NULL, f);
	n = fread(text, 1, sizeof(text) - 1, f);
	ASSERT_LT(0, n);
	fclose(f);
	EXPECT_NE(NULL, strstr(text, "singvgpu-role:\t2\n"));
	EXPECT_NE(NULL, strstr(text, "singvgpu-generation:\t0\n"));
	EXPECT_NE(NULL, strstr(text, "singvgpu-va:\t0x7e9000000000\n"));
	EXPECT_NE(NULL, strstr(text, "singvgpu-ring-units:\t1024\n"));
	n = sprintf(line, "singvgpu-id:\t");
	for (i = 0; i < 16; i++)
		n += sprintf(line + n, "%02x", self->create.id[i]);
	EXPECT_NE(NULL, strstr(text, line));
	snprintf(line, sizeof(line), "singvgpu-length:\t%llu\n", LOG_OFF);
	EXPECT_NE(NULL, strstr(text, line));
	/* The secret is not told. */
	EXPECT_EQ(NULL, strstr(text, "c0c0c0c0"));
}

TEST_HARNESS_MAIN
