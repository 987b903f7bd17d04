// SPDX-License-Identifier: Apache-2.0
/*
 * handover.c - device memory goes from a former proxy to the new one, and what cannot be had there comes from the store
 *
 * The former session changes its memory after the dump, which a frozen one does not: so one sees whence bytes come.
 */
#include "local.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "content.h"
#include "control.h"
#include "handover.h"
#include "ring.h"
#include "stat_i.h"

#define MiB	(1ull << 20)
#define BIG	(24 * MiB)
#define AT(l)	((l)->window + 64 * MiB)
#define HOLE	(8 * MiB)	/* in BIG: where the hole begins, of 2 MiB */

/* What lives on between the children. */
struct shared {
	char dir[64], control[96], kept[104];
	struct store_ref device;
	struct content_stats stats;
	int ready, regions;	/* more of them, of 2 MiB each, without data but for a word */
};

static struct shared *sh;

/* A message as handover.c has it. */
struct hello {
	uint32_t magic, version;
	struct store_ref device;
};

struct told {
	uint32_t magic;
	int32_t status;
};

#define MAGIC 0x4f485653u

FIXTURE(handover) {
	int unused;
};

FIXTURE_SETUP(handover)
{
	struct why why = { 0 };

	self->unused = 0;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE((void *)sh, MAP_FAILED);
	strcpy(sh->dir, "/tmp/uproxy-handover-XXXXXX");
	ASSERT_NE(mkdtemp(sh->dir), NULL);
	snprintf(sh->control, sizeof(sh->control), "%s/control", sh->dir);
	snprintf(sh->kept, sizeof(sh->kept), "%s" CTL_KEPT, sh->control);
	ASSERT_EQ(store_create(sh->dir, NULL, &why), 0) {
		TH_LOG("%s", why.text);
	}
}

FIXTURE_TEARDOWN(handover)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", sh->dir);
	EXPECT_EQ(system(cmd), 0);
}

/* ------------------------------------------------------------------------------ two lives */

/* The word at `at` of the memory, with salt 1 as dumped and 2 as changed after that. */
static uint64_t word(uint64_t at, int salt)
{
	return (at + 1) * 0x9e3779b97f4a7c15ull * (unsigned int)salt;
}

static struct store *open_store(int flags)
{
	struct why why = { 0 };
	struct store *st;

	CHECK_EQ(store_open(&st, sh->dir, flags, &why), 0);
	return st;
}

static struct local *make(void)
{
	struct local *l = local_open();

	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ AT(l), BIG }), 0);
	for (int i = 1; i <= sh->regions; i++) {
		CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ AT(l) + i * 64 * MiB, 2 * MiB }), 0);
		CHECK_EQ(l->s.hal.drv.cuMemcpyHtoD_v2(AT(l) + i * 64 * MiB, "a word.", 8), 0);
	}
	handover_at(sh->control);
	return l;
}

static void fill(struct local *l, int salt)
{
	uint64_t *p = malloc(BIG);

	for (uint64_t i = 0; i < BIG / 8; i++)
		p[i] = word(i, salt);
	CHECK_EQ(l->s.hal.drv.cuMemcpyHtoD_v2(AT(l), p, HOLE), 0);
	CHECK_EQ(l->s.hal.drv.cuMemcpyHtoD_v2(AT(l) + HOLE + 2 * MiB, p + (HOLE + 2 * MiB) / 8, BIG - HOLE - 2 * MiB), 0);
	free(p);
}

/* Is the word at i the one with this salt, or 0 in the hole? */
static void look(struct local *l, int salt)
{
	uint64_t *p = malloc(BIG);

	CHECK_EQ(l->s.hal.drv.cuMemcpyDtoH_v2(p, AT(l), BIG), 0);
	for (uint64_t i = 0; i < BIG / 8; i++)
		CHECK_EQ(p[i], i * 8 >= HOLE && i * 8 < HOLE + 2 * MiB ? 0 : word(i, salt));
	free(p);
}

static void dump(struct local *l)
{
	struct store *st = open_store(STORE_RW);
	struct why why = { 0 };
	struct store_writer *w;

	CHECK_EQ(store_writer_open(st, 0, &w), 0);
	CHECK_EQ(content_dump(&l->s, st, w, &sh->device, NULL, NULL, &why), 0);
	CHECK_EQ(store_writer_flush(w), 0);
	store_writer_close(w);
	store_close(st);
}

/* The former proxy: offers what it has, changed, and stays. */
static void former(bool offers)
{
	struct local *l = make();

	fill(l, 1);
	dump(l);
	fill(l, 2);
	if (offers)
		CHECK_EQ(handover_offer(&l->s, &sh->device), 0);
	__atomic_store_n(&sh->ready, 1, __ATOMIC_RELEASE);
	handover_stay();
}

static pid_t start_former(bool offers)
{
	pid_t p = fork();

	if (!p)
		former(offers);
	for (int i = 0; i < 60000 && !__atomic_load_n(&sh->ready, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	return sh->ready ? p : -1;
}

static int end_former(pid_t p)
{
	int status = -1;

	kill(p, SIGKILL);
	waitpid(p, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
}


static int progress(void *arg, const char *phase, uint64_t done, uint64_t total)
{
	(void)arg;
	(void)phase;
	(void)done;
	(void)total;
	return 0;
}

/* arg: the salt that is expected. */
static void restore(void *arg)
{
	static const struct content_progress p = { .fn = progress };
	struct store *st = open_store(0);
	struct local *l = make();
	struct why why = { 0 };

	fill(l, 3);	/* a replay may leave something */
	CHECK_EQ(l->s.hal.drv.cuMemsetD8Async(AT(l) + HOLE, 7, 2 * MiB, NULL), 0);
	CHECK_EQ(l->s.hal.drv.cuCtxSynchronize(), 0);
	CHECK_EQ(content_restore(&l->s, st, &sh->device, &p, &sh->stats, &why), 0);
	store_close(st);
	look(l, *(int *)arg);
}

TEST_F(handover, memory_comes_from_the_former_proxy)
{
	pid_t p = start_former(true);
	int two = 2;

	ASSERT_GT(p, 0);
	EXPECT_EQ(local_child(restore, &two), 0);
	EXPECT_EQ(sh->stats.handed, BIG - 2 * MiB);
	EXPECT_EQ(end_former(p), SIGKILL);
}

TEST_F(handover, and_through_pinned_memory)
{
	pid_t p = start_former(true);
	int two = 2;

	ASSERT_GT(p, 0);
	setenv("SINGVGPU_CONTENT", "staged", 1);
	EXPECT_EQ(local_child(restore, &two), 0);
	unsetenv("SINGVGPU_CONTENT");
	EXPECT_EQ(sh->stats.handed, BIG - 2 * MiB);
	EXPECT_EQ(end_former(p), SIGKILL);
}

TEST_F(handover, without_an_offer_the_store_brings_it)
{
	pid_t p = start_former(false);
	int one = 1;

	ASSERT_GT(p, 0);
	EXPECT_EQ(local_child(restore, &one), 0);
	EXPECT_EQ(sh->stats.handed, 0);
	EXPECT_EQ(end_former(p), SIGKILL);
}

TEST_F(handover, a_former_proxy_that_was_killed_is_not_waited_for)
{
	pid_t p = start_former(true);
	int one = 1, status;

	ASSERT_GT(p, 0);
	kill(p, SIGKILL);
	waitpid(p, &status, 0);
	ASSERT_EQ(access(sh->kept, F_OK), 0);	/* its socket is there still */
	EXPECT_EQ(local_child(restore, &one), 0);
	EXPECT_EQ(sh->stats.handed, 0);
}

/* A former proxy that answers so many pieces, wrongly, and is gone then; or whose answers have another magic. */
static void bad_former(int pieces, uint32_t magic)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int listening = socket(AF_UNIX, SOCK_SEQPACKET, 0), sock, fd;
	struct told t = { magic, 0 };
	struct hello h;
	uint64_t ask[2];
	void *room;

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", sh->kept);
	CHECK_EQ(bind(listening, (void *)&a, sizeof(a)) || listen(listening, 64), 0);
	__atomic_store_n(&sh->ready, 2, __ATOMIC_RELEASE);
	for (;;) {
		sock = accept(listening, NULL, NULL);
		CHECK_EQ(recv(sock, &h, sizeof(h), 0), sizeof(h));
		CHECK_EQ(send(sock, &t, sizeof(t), MSG_NOSIGNAL), sizeof(t));
		fd = ring_take_fd(sock);
		if (fd < 0) {
			close(sock);
			continue;
		}
		room = mmap(NULL, HANDOVER_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(room != MAP_FAILED);
		memset(room, 0x55, HANDOVER_ROOM);
		for (int i = 0; i < pieces && recv(sock, ask, sizeof(ask), 0) == sizeof(ask); i++)
			send(sock, &t, sizeof(t), MSG_NOSIGNAL);
		munmap(room, HANDOVER_ROOM);
		close(fd);
		close(sock);
	}
}

static void with_bad_former(struct __test_metadata *_metadata, int pieces, uint32_t magic)
{
	pid_t p = start_former(false), bad;
	int one = 1;

	ASSERT_GT(p, 0);
	bad = fork();
	if (!bad) {
		bad_former(pieces, magic);
		_exit(1);
	}
	for (int i = 0; i < 60000 && __atomic_load_n(&sh->ready, __ATOMIC_ACQUIRE) != 2; i++)
		usleep(1000);
	EXPECT_EQ(local_child(restore, &one), 0);
	EXPECT_EQ(sh->stats.handed, 0);
	EXPECT_EQ(end_former(bad), SIGKILL);
	EXPECT_EQ(end_former(p), SIGKILL);
}

TEST_F(handover, what_was_begun_there_the_store_brings_whole)
{
	with_bad_former(_metadata, 3, MAGIC);
}

TEST_F(handover, one_that_is_no_proxy_is_not_asked)
{
	with_bad_former(_metadata, 1000, MAGIC + 1);
}

/* However many regions there are, one that does not answer is asked once by each loader of the first. */
TEST_F(handover, a_former_proxy_that_does_not_answer_is_not_asked_again)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0), one = 1, asked = 0;
	pid_t p;

	sh->regions = 20;
	p = start_former(false);
	ASSERT_GT(p, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", sh->kept);
	ASSERT_EQ(bind(listening, (void *)&a, sizeof(a)) || listen(listening, 64), 0);
	EXPECT_EQ(local_child(restore, &one), 0);
	while (accept(listening, NULL, NULL) >= 0)
		asked++;
	EXPECT_GT(asked, 0);
	EXPECT_LE(asked, 4);	/* 24 MiB have no more tasks */
	EXPECT_EQ(sh->stats.handed, 0);
	EXPECT_EQ(end_former(p), SIGKILL);
}

/* Its parent is the job's supervisor. */
TEST_F(handover, nobody_stays_behind_when_the_supervisor_is_gone)
{
	int end[2], status;
	pid_t parent;
	char byte;

	ASSERT_EQ(pipe(end), 0);
	parent = fork();
	if (!parent) {
		close(end[0]);
		_exit(start_former(true) < 0);
	}
	close(end[1]);
	ASSERT_EQ(waitpid(parent, &status, 0), parent);
	EXPECT_EQ(status, 0);
	/* The end of the last process that has it. */
	EXPECT_EQ(read(end[0], &byte, 1), 0);
	close(end[0]);
}

/* ------------------------------------------------------------------------------ one process has both ends */

static struct local *both(void)
{
	struct local *l = make();

	fill(l, 1);
	dump(l);
	CHECK_EQ(handover_offer(&l->s, &sh->device), 0);
	return l;
}

static void no_other_object(void *arg)
{
	struct local *l = both();
	struct takeover *t = takeover_open(&l->s, &sh->device, false);
	struct store_ref other = sh->device;

	(void)arg;
	CHECK(t);
	takeover_close(t);
	other.b[31] ^= 1;
	CHECK(!takeover_open(&l->s, &other, false));
}

TEST_F(handover, another_object_is_not_handed_over)
{
	EXPECT_EQ(local_child(no_other_object, NULL), 0);
}

static void bounds(void *arg)
{
	struct local *l = both();
	struct takeover *t = takeover_open(&l->s, &sh->device, false);
	const uint8_t *p = takeover_read(t, AT(l) + BIG - 8, 8);
	const struct { uint64_t va, len; } bad[] = {
		{ AT(l) + BIG - 8, 16 }, { AT(l) - 8, 16 }, { AT(l), 0 }, { AT(l), HANDOVER_ROOM + 1 },
		{ l->window - 8, 8 }, { UINT64_MAX - 8, 8 }, { UINT64_MAX, UINT64_MAX }, { (uintptr_t)sh, 8 },
		{ (uintptr_t)arena_at(&l->s, l->arena), 8 },	/* pinned: the device reads it */
	};

	(void)arg;
	CHECK_EQ(SEND(l, SV_OP_X_PIN, (struct sv_pin){ l->arena, MiB }), 0);
	CHECK(p);
	CHECK_EQ(*(const uint64_t *)p, word(BIG / 8 - 1, 1));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		CHECK(!takeover_read(t, bad[i].va, bad[i].len));
	CHECK(takeover_read(t, AT(l), HANDOVER_ROOM));	/* it is served still */
	takeover_close(t);
}

TEST_F(handover, nothing_but_mapped_memory_is_read)
{
	EXPECT_EQ(local_child(bounds, NULL), 0);
}

static void left_behind(void *arg)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	struct takeover *t;
	struct local *l;

	(void)arg;
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", sh->kept);
	CHECK_EQ(bind(sock, (void *)&a, sizeof(a)), 0);
	close(sock);
	l = both();
	t = takeover_open(&l->s, &sh->device, false);
	CHECK(t);
	takeover_close(t);
}

TEST_F(handover, a_socket_that_was_left_behind_is_replaced)
{
	EXPECT_EQ(local_child(left_behind, NULL), 0);
}

/* ------------------------------------------------------------------------------ hostile peers */

static int reach(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", sh->kept);
	CHECK_EQ(connect(sock, (void *)&a, sizeof(a)), 0);
	return sock;
}

/* The status of its answer; 1: it has hung up. */
static int answer(int sock)
{
	struct told t;

	return recv(sock, &t, sizeof(t), 0) == sizeof(t) && t.magic == MAGIC ? t.status : 1;
}

static int says(const void *hello, size_t n)
{
	int sock = reach(), status;

	CHECK_EQ(send(sock, hello, n, MSG_NOSIGNAL), n);
	status = answer(sock);
	close(sock);
	return status;
}

/* A peer with a good hello and this memfd; asks for the first bytes. */
static int with_room(int fd)
{
	struct hello h = { MAGIC, 1, sh->device };
	uint64_t ask[2] = { 0x200000000000ull + 64 * MiB, 8 };
	int sock = reach(), status = 1;

	CHECK_EQ(send(sock, &h, sizeof(h), MSG_NOSIGNAL), sizeof(h));
	CHECK_EQ(answer(sock), 0);
	if (fd < 0)
		send(sock, "", 1, MSG_NOSIGNAL);
	else
		ring_pass_fd(sock, fd);
	if (send(sock, ask, sizeof(ask), MSG_NOSIGNAL) == sizeof(ask))
		status = answer(sock);
	close(sock);
	return status;
}

static int room(uint64_t len, int seals)
{
	int fd = memfd_create("room", MFD_ALLOW_SEALING), status;

	CHECK_EQ(ftruncate(fd, len), 0);
	if (seals)
		CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
	status = with_room(fd);
	close(fd);
	return status;
}

static void hostile(void *arg)
{
	struct local *l = both();
	struct hello good = { MAGIC, 1, sh->device }, h = good;
	int idle[80], file = open("/etc/passwd", O_RDONLY);

	(void)arg;
	CHECK_EQ(says(&h, sizeof(h)), 0);
	h.magic++;
	CHECK(says(&h, sizeof(h)));
	h = good;
	h.version++;
	CHECK(says(&h, sizeof(h)));
	h = good;
	h.device.b[0] ^= 0x80;
	CHECK(says(&h, sizeof(h)));
	CHECK(says(&good, sizeof(good) - 1));
	CHECK(says("", 1));
	CHECK_EQ(room(HANDOVER_ROOM, F_SEAL_SHRINK), 0);
	CHECK(room(HANDOVER_ROOM, 0));			/* it could be cut short */
	CHECK(room(HANDOVER_ROOM - 4096, F_SEAL_SHRINK));
	CHECK(room(2 * HANDOVER_ROOM, F_SEAL_SHRINK));
	CHECK(room(HANDOVER_ROOM, F_SEAL_SHRINK | F_SEAL_WRITE));
	CHECK(with_room(file));
	CHECK(with_room(-1));
	/* Whoever only connects is no obstacle to the others, up to a number, nor to the end. */
	for (int i = 0; i < 80; i++)
		idle[i] = reach();
	for (int i = 0; i < 80; i++)
		close(idle[i]);
	for (int i = 0; i < 5000 && says(&good, sizeof(good)); i++)
		usleep(1000);
	CHECK_EQ(says(&good, sizeof(good)), 0);
	for (int i = 0; i < 8; i++)
		idle[i] = reach();
	CHECK_EQ(says(&good, sizeof(good)), 0);
	look(l, 1);
}

TEST_F(handover, peers_may_say_anything)
{
	EXPECT_EQ(local_child(hostile, NULL), 0);
}

TEST_HARNESS_MAIN
