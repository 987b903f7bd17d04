// SPDX-License-Identifier: Apache-2.0
/*
 * peers.c - requests between proxies: guessed secrets are refused, and false answers do no harm
 *
 * The test is a client and also the other proxy: it sends requests to the proxy's socket, or
 * answers at a socket of its own, with the messages of the wire.
 */
#include "../client.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/un.h>

struct ask {
	uint32_t magic, version;
	uint32_t kind, pad;
	uint8_t secret[16], key[16];
};

struct told {
	uint32_t magic, version;
	uint32_t status, n;
	uint64_t at, len;
};

#define ASK	0x41475653u
#define TOLD	0x54475653u
#define VERSION	2
#define SEALED	(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static socklen_t place(struct sockaddr_un *a, const uint8_t who[16])
{
	int n;

	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "singvgpu-peer-");
	for (int i = 0; i < 16; i++)
		n += snprintf(a->sun_path + 1 + n, 3, "%02x", who[i]);
	return offsetof(struct sockaddr_un, sun_path) + 1 + n;
}

/* ------------------------------------------------------------------------------ who asks */

static int join(const uint8_t who[16])
{
	struct timeval t = { .tv_sec = 10 };
	struct sockaddr_un a;
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	if (connect(sock, (struct sockaddr *)&a, place(&a, who))) {
		close(sock);
		return -errno;
	}
	return sock;
}

/* The fds of a message: how many. */
static int fds_of(int sock, int *fd, int cap)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(64 * sizeof(int))];
	} c;
	char byte;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	struct cmsghdr *h;
	int n;

	if (recvmsg(sock, &m, 0) != 1)
		return 0;
	h = CMSG_FIRSTHDR(&m);
	n = h ? (h->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
	memcpy(fd, h ? CMSG_DATA(h) : (void *)fd, (n < cap ? n : cap) * sizeof(int));
	return n;
}

/* What it says to this: its status, or -1 nothing at all. t: all of it. */
static int asked(const uint8_t who[16], const struct ask *q, size_t len, struct told *t)
{
	int sock = join(who), rc = -1;

	if (sock < 0)
		return sock;
	memset(t, 0x77, sizeof(*t));
	if (send(sock, q, len, MSG_NOSIGNAL) == (ssize_t)len &&
	    recv(sock, t, sizeof(*t), 0) == sizeof(*t))
		rc = t->status;
	close(sock);
	return rc;
}

static int show(struct client *c, uint64_t va, uint64_t len, uint8_t key, struct sv_ipc_shown *out)
{
	struct sv_ipc_show a = { va, len, { key } };
	int rc;

	while ((rc = call2(c, SV_OP_cuIpcGetMemHandle, &a, sizeof(a), NULL, 0, out,
			   sizeof(*out))) == CUDA_ERROR_NOT_READY)
		usleep(100);
	return rc;
}

static int open_fds(pid_t pid)
{
	char path[64];
	struct stat st;
	int n = 0;

	for (int i = 0; i < 1024; i++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, i);
		n += !lstat(path, &st);
	}
	return n;
}

TEST(the_secret_gives_the_granules_and_nothing_else)
{
	struct ask q = { ASK, VERSION, SV_IPC_MEMORY, 0, { 0 }, { 0 } };
	struct sv_ipc_shown shown, again;
	struct client c;
	struct told t;
	uint8_t *p;
	int sock, fd[64], n;
	struct stat st;

	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	SEND(&c, SV_OP_X_MAP_PIECES, (struct sv_pieces){ c.window, 4 * GRANULE, 3 * GRANULE });
	SEND(&c, SV_OP_cuMemsetD8Async, (struct sv_cuMemsetD8Async){ .ctx = c.ctx, .uc = 0x5a,
		.dstDevice = c.window, .N = 4 * GRANULE, .hStream = SV_STREAM_LEGACY });
	/* the second half of the second granule and the third one */
	ASSERT_EQ(show(&c, c.window + GRANULE + MiB, MiB + GRANULE, 0, &shown), 0);
	ASSERT_EQ(show(&c, c.window + GRANULE + MiB, MiB + GRANULE, 0, &again), 0);
	EXPECT_EQ(memcmp(&shown, &again, sizeof(shown)), 0);

	memcpy(q.secret, shown.secret, 16);
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), 0);
	EXPECT_EQ(t.n, 2);
	EXPECT_EQ(t.at, MiB);
	EXPECT_EQ(t.len, MiB + GRANULE);
	sock = join(shown.server);
	ASSERT_EQ(send(sock, &q, sizeof(q), 0), sizeof(q));
	ASSERT_EQ(recv(sock, &t, sizeof(t), 0), sizeof(t));
	n = fds_of(sock, fd, 64);
	ASSERT_EQ(n, 2);
	EXPECT_EQ(fds_of(sock, fd + 2, 62), 0);
	close(sock);
	for (int i = 0; i < n; i++) {
		EXPECT_EQ(fstat(fd[i], &st), 0);
		EXPECT_EQ(st.st_size, GRANULE);		/* no more than this can be mapped */
		EXPECT_EQ(ftruncate(fd[i], 0), -1);	/* nor taken away */
		p = mmap(NULL, GRANULE, PROT_READ | PROT_WRITE, MAP_SHARED, fd[i], 0);
		ASSERT_NE(p, MAP_FAILED);
		EXPECT_EQ(p[0], 0x5a);
		EXPECT_EQ(p[GRANULE - 1], 0x5a);
		munmap(p, GRANULE);
		close(fd[i]);
	}

	/* nobody who does not know all of it */
	for (int bit = 0; bit < 128; bit++) {
		q.secret[bit / 8] ^= 1 << bit % 8;
		EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), CUDA_ERROR_MAP_FAILED);
		EXPECT_EQ(t.n, 0);
		q.secret[bit / 8] ^= 1 << bit % 8;
	}
	q.key[3] = 1;
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), CUDA_ERROR_MAP_FAILED);
	q.key[3] = 0;
	for (q.kind = 0; q.kind < 5; q.kind++)
		EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t),
			  q.kind == SV_IPC_MEMORY ? 0 : CUDA_ERROR_MAP_FAILED);
	q.kind = SV_IPC_MEMORY;
	q.magic++;
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), -1);
	q.magic--;
	q.pad = 1;
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), -1);
	q.pad = 0;
	for (size_t len = 0; len < sizeof(q); len++)
		EXPECT_EQ(asked(shown.server, &q, len, &t), -1);

	/* another version is told ours, however long its message is */
	q.version++;
	for (size_t len = 8; len <= sizeof(q); len += 8) {
		EXPECT_EQ(asked(shown.server, &q, len, &t), CUDA_ERROR_MAP_FAILED);
		EXPECT_EQ(t.magic, TOLD);
		EXPECT_EQ(t.version, VERSION);
		EXPECT_EQ(t.n, 0);
	}
	q.version--;

	/* who says nothing keeps others waiting for a second, no longer */
	sock = join(shown.server);
	ASSERT_GE(sock, 0);
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), 0);
	close(sock);

	/* what is a pool's wants its key */
	ASSERT_EQ(show(&c, c.window, 4096, 9, &again), 0);
	memcpy(q.secret, again.secret, 16);
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), CUDA_ERROR_MAP_FAILED);
	q.kind = SV_IPC_POINTER;
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), CUDA_ERROR_MAP_FAILED);
	q.key[0] = 9;
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), 0);

	/* what is forgotten, or unmapped, is not shown any more */
	SEND(&c, SV_OP_X_IPC_FORGET, (struct sv_ipc_forget){ c.window });
	EXPECT_EQ(ctx_sync(&c), 0);
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), CUDA_ERROR_MAP_FAILED);
	memcpy(q.secret, shown.secret, 16);
	q.kind = SV_IPC_MEMORY;
	q.key[0] = 0;
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), 0);
	SEND(&c, SV_OP_X_UNMAP, (struct sv_map){ c.window + 2 * GRANULE, GRANULE });
	EXPECT_EQ(ctx_sync(&c), 0);
	EXPECT_EQ(asked(shown.server, &q, sizeof(q), &t), CUDA_ERROR_MAP_FAILED);
	EXPECT_EQ(client_end(&c), 0);
}

/* In a child that is another user: what asked() says there. */
static int asked_as(uid_t uid, const uint8_t who[16], const struct ask *q)
{
	struct told t;
	int status;
	pid_t pid = fork();

	if (!pid) {
		if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
			_exit(3);
		_exit(asked(who, q, sizeof(*q), &t) == 0);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The name of a socket that has no file keeps nobody away: who asks is looked at. */
/* A stop interrupts a call on a socket with a timeout, also where no signal is handled. */
TEST(a_proxy_that_was_stopped_answers_all_the_same)
{
	struct ask q = { ASK, VERSION, SV_IPC_MEMORY, 0, { 0 }, { 0 } };
	struct sv_ipc_shown shown;
	struct client c;
	struct told t;

	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	SEND(&c, SV_OP_X_MAP, (struct sv_map){ c.window, GRANULE });
	ASSERT_EQ(show(&c, c.window, GRANULE, 0, &shown), 0);
	memcpy(q.secret, shown.secret, 16);
	for (int i = 0; i < 3; i++) {
		int sock = join(shown.server), status;

		ASSERT_GE(sock, 0);
		usleep(100000);		/* it waits for the question, a second at most */
		kill(c.proxy, SIGSTOP);
		ASSERT_EQ(waitpid(c.proxy, &status, WUNTRACED), c.proxy);
		ASSERT_TRUE(WIFSTOPPED(status));
		kill(c.proxy, SIGCONT);
		usleep(100000);
		EXPECT_EQ(send(sock, &q, sizeof(q), MSG_NOSIGNAL), sizeof(q));
		EXPECT_EQ(recv(sock, &t, sizeof(t), 0), sizeof(t));
		EXPECT_EQ(t.status, 0);
		close(sock);
	}
	EXPECT_EQ(client_end(&c), 0);
}

TEST(another_user_who_knows_the_secret_gets_nothing)
{
	struct ask q = { ASK, VERSION, SV_IPC_MEMORY, 0, { 0 }, { 0 } };
	struct sv_ipc_shown shown;
	struct client c;

	if (geteuid())
		SKIP(return, "only root can be another user");
	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	SEND(&c, SV_OP_X_MAP, (struct sv_map){ c.window, GRANULE });
	ASSERT_EQ(show(&c, c.window, GRANULE, 0, &shown), 0);
	memcpy(q.secret, shown.secret, 16);
	EXPECT_EQ(asked_as(0, shown.server, &q), 1);
	EXPECT_EQ(asked_as(65534, shown.server, &q), 0);
	EXPECT_EQ(asked_as(0, shown.server, &q), 1);
	EXPECT_EQ(client_end(&c), 0);
}

/* ------------------------------------------------------------------------------ who answers */

/* How a liar answers a request for n granules. */
struct lie {
	const char *what;
	int status, n;		/* as told; n is added to the truth */
	uint64_t at, len;	/* added, likewise */
	int fds;		/* how many come, in messages of group */
	int group;
	int (*make)(void);
	int silent;
	int version;		/* added */
};

static int sealed(uint64_t len, unsigned int seals)
{
	int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (ftruncate(fd, len) || (seals && fcntl(fd, F_ADD_SEALS, seals)))
		return -1;
	return fd;
}

static int good(void)
{
	return sealed(GRANULE, SEALED);
}

static int unsealed(void)
{
	return sealed(GRANULE, 0);
}

static int small(void)
{
	return sealed(4096, SEALED);
}

static int empty(void)
{
	return sealed(0, SEALED);
}

static int odd(void)
{
	return sealed(GRANULE + 4096, SEALED);
}

static int a_pipe(void)
{
	int fd[2];

	if (pipe(fd))
		return -1;
	close(fd[1]);
	return fd[0];
}

static int a_file(void)
{
	return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
}

static void send_fds(int sock, int (*make)(void), int n)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(128 * sizeof(int))];
	} c = { .h = { .cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { "", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = n ? &c : NULL,
			    .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };
	int fd[128];

	for (int i = 0; i < n; i++)
		fd[i] = make();
	memcpy(CMSG_DATA(&c.h), fd, n * sizeof(int));
	sendmsg(sock, &m, MSG_NOSIGNAL);
	for (int i = 0; i < n; i++)
		close(fd[i]);
}

struct liar {
	int listen;
	const struct lie *lie;
	struct told truth;
};

static void *answer(void *arg)
{
	struct liar *l = arg;
	const struct lie *lie = l->lie;
	struct told t = l->truth;
	struct ask q;
	int sock = accept4(l->listen, NULL, NULL, SOCK_CLOEXEC);

	if (recv(sock, &q, sizeof(q), 0) == sizeof(q) && !lie->silent) {
		t.version += lie->version;
		t.status = lie->status;
		t.n += lie->n;
		t.at += lie->at;
		t.len += lie->len;
		send(sock, &t, sizeof(t), MSG_NOSIGNAL);
		for (int i = 0; i < lie->fds; i += lie->group ?: 1)
			send_fds(sock, lie->make, lie->group);
	}
	if (lie->silent)
		recv(sock, &q, sizeof(q), 0);	/* until it has had enough of us */
	close(sock);
	return NULL;
}

/* What the client's request gets. */
static int lied(struct liar *l, struct client *c, uint16_t op, const void *a, uint32_t len,
		void *reply, uint32_t cap)
{
	pthread_t t;
	int rc;

	pthread_create(&t, NULL, answer, l);
	rc = call2(c, op, a, len, NULL, 0, reply, cap);
	pthread_join(t, NULL);
	return rc;
}

static int liars_place(uint8_t who[16])
{
	struct sockaddr_un a;
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memset(who, 0xe0, 16);
	memcpy(who, &(pid_t){ getpid() }, sizeof(pid_t));
	return bind(sock, (struct sockaddr *)&a, place(&a, who)) || listen(sock, 8) ? -1 : sock;
}

TEST(a_proxy_that_lies_is_not_believed)
{
	static const struct lie lies[] = {
		{ .what = "no", .status = CUDA_ERROR_UNKNOWN },
		{ .what = "more than was wanted", .n = 1, .fds = 4, .group = 4, .make = good },
		{ .what = "less", .n = -1, .fds = 2, .group = 2, .make = good },
		{ .what = "far more", .n = -4, .fds = 3, .group = 3, .make = good },
		{ .what = "another place", .at = 512, .fds = 3, .group = 3, .make = good },
		{ .what = "a wrapped length", .len = -1ull << 40, .fds = 3, .group = 3,
		  .make = good },
		{ .what = "none comes", .fds = 0, .make = good },
		{ .what = "messages without", .fds = 3, .group = 0, .make = good },
		{ .what = "one is missing", .fds = 2, .group = 1, .make = good },
		{ .what = "too many in a message", .fds = 100, .group = 100, .make = good },
		{ .what = "that can be cut off", .fds = 3, .group = 3, .make = unsealed },
		{ .what = "too small", .fds = 3, .group = 3, .make = small },
		{ .what = "empty", .fds = 3, .group = 3, .make = empty },
		{ .what = "no granules", .fds = 3, .group = 1, .make = odd },
		{ .what = "pipes", .fds = 3, .group = 3, .make = a_pipe },
		{ .what = "a program", .fds = 3, .group = 3, .make = a_file },
		{ .what = "another version", .version = 5, .fds = 3, .group = 3, .make = good },
		{ .what = "silence", .silent = 1 },
	};
	struct sv_ipc_fetch a = { .h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
					 .kind = SV_IPC_MEMORY, .len = 3 * GRANULE } };
	struct liar l = { .truth = { TOLD, VERSION, 0, 3, 0, 3 * GRANULE } };
	struct sv_ipc_fetched got = { 0 };
	struct client c;
	int before;

	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	l.listen = liars_place(a.h.server);
	ASSERT_GE(l.listen, 0);
	before = open_fds(c.proxy);
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		l.lie = &lies[i];
		EXPECT_GT(lied(&l, &c, SV_OP_cuIpcOpenMemHandle_v2, &a, sizeof(a), &got,
			       sizeof(got)), 0)
			TH_LOG("%s", lies[i].what);
		EXPECT_EQ(got.id, 0);
		EXPECT_EQ(ctx_sync(&c), 0);
		EXPECT_EQ(open_fds(c.proxy), before)
			TH_LOG("%s: files are left", lies[i].what);
	}

	/* and the truth, with more behind it, works */
	l.lie = &(struct lie){ .fds = 4, .group = 2, .make = good };
	ASSERT_EQ(lied(&l, &c, SV_OP_cuIpcOpenMemHandle_v2, &a, sizeof(a), &got, sizeof(got)), 0);
	ASSERT_EQ(CALL(&c, SV_OP_X_IPC_MAP, (struct sv_ipc_map){ c.window, 3 * GRANULE, got.id }), 0);
	EXPECT_EQ(CALL(&c, SV_OP_cuMemsetD8Async, (struct sv_cuMemsetD8Async){ .ctx = c.ctx,
		.uc = 1, .dstDevice = c.window, .N = 3 * GRANULE, .hStream = SV_STREAM_LEGACY }), 0);
	EXPECT_EQ(ctx_sync(&c), 0);
	EXPECT_EQ(CALL(&c, SV_OP_cuIpcCloseMemHandle, (struct sv_map){ c.window, 3 * GRANULE }), 0);
	EXPECT_EQ(open_fds(c.proxy), before);
	close(l.listen);
	EXPECT_EQ(CALL(&c, SV_OP_cuIpcOpenMemHandle_v2, a), CUDA_ERROR_MAP_FAILED);
	EXPECT_EQ(client_end(&c), 0);
}

/* Whoever was first to take a name may be anyone: only our own user's answers are taken. */
TEST(another_users_answers_are_not_taken)
{
	struct sv_ipc_fetch a = { .h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
					 .kind = SV_IPC_MEMORY, .len = GRANULE } };
	struct lie truth = { .fds = 1, .group = 1, .make = good };
	struct liar l = { .lie = &truth, .truth = { TOLD, VERSION, 0, 1, 0, GRANULE } };
	struct sv_ipc_fetched got = { 0 };
	struct client c;

	if (geteuid())
		SKIP(return, "only root can be another user");
	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	/* A socket's peer is who he was when he began to listen. */
	ASSERT_EQ(seteuid(65534), 0);
	l.listen = liars_place(a.h.server);
	ASSERT_EQ(seteuid(0), 0);
	ASSERT_GE(l.listen, 0);
	EXPECT_EQ(lied(&l, &c, SV_OP_cuIpcOpenMemHandle_v2, &a, sizeof(a), &got, sizeof(got)),
		  CUDA_ERROR_MAP_FAILED);
	EXPECT_EQ(got.id, 0);
	close(l.listen);
	l.listen = liars_place(a.h.server);
	ASSERT_GE(l.listen, 0);
	EXPECT_EQ(lied(&l, &c, SV_OP_cuIpcOpenMemHandle_v2, &a, sizeof(a), &got, sizeof(got)), 0);
	close(l.listen);
	EXPECT_EQ(client_end(&c), 0);
}

/* ------------------------------------------------------------------------------ random */

static uint64_t rnd(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return *seed >> 29;
}

static int scaled(int n)
{
	const char *s = getenv("SINGVGPU_SCALE");

	return s ? n * atoi(s) : n;
}

static int (*const makes[])(void) = { good, unsealed, small, empty, odd, a_pipe, a_file };

static int any(void)
{
	static uint64_t seed = 3;

	return makes[rnd(&seed) % 7]();
}

/* Asks of any length and content get nothing, unless one is right; answers of any kind do no harm. */
TEST(random_asks_and_answers_do_no_harm)
{
	struct sv_ipc_fetch a = { .h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
					 .kind = SV_IPC_MEMORY } };
	struct sv_ipc_fetched got;
	struct sv_ipc_shown shown;
	struct client c;
	uint64_t seed = 5;
	int before;

	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	SEND(&c, SV_OP_X_MAP, (struct sv_map){ c.window, 2 * GRANULE });
	ASSERT_EQ(show(&c, c.window, 2 * GRANULE, 0, &shown), 0);
	for (int i = 0; i < scaled(2000); i++) {
		struct ask q[2] = { { ASK, VERSION, SV_IPC_MEMORY, 0, { 0 }, { 0 } } };
		size_t len = rnd(&seed) % 8 ? sizeof(*q) : rnd(&seed) % sizeof(q);
		struct told t;
		bool right;

		memcpy(q->secret, shown.secret, 16);
		for (int k = rnd(&seed) % 4; k > 0; k--)
			((uint8_t *)q)[rnd(&seed) % sizeof(*q)] ^= 1 << rnd(&seed) % 8;
		right = len == sizeof(*q) && q->magic == ASK && q->version == VERSION && !q->pad &&
			q->kind == SV_IPC_MEMORY &&
			!memcmp(q->secret, shown.secret, 16) &&
			!memcmp(q->key, (uint8_t[16]){ 0 }, 16);
		ASSERT_EQ(asked(shown.server, q, len, &t) == 0, right) {
			TH_LOG("ask %d", i);
		}
	}
	before = open_fds(c.proxy);
	for (int i = 0; i < scaled(150); i++) {
		uint32_t n = 1 + rnd(&seed) % 5;
		struct lie lie = { .status = rnd(&seed) % 8 ? 0 : (int)rnd(&seed),
				   .n = rnd(&seed) % 8 ? 0 : (int)rnd(&seed),
				   .at = rnd(&seed) % 8 ? 0 : rnd(&seed),
				   .len = rnd(&seed) % 8 ? 0 : rnd(&seed) << rnd(&seed) % 40,
				   .fds = n, .group = rnd(&seed) % 8, .make = any };
		struct liar l = { .lie = &lie, .truth = { TOLD, VERSION, 0, n, 0, n * GRANULE } };

		if (i % 3 == 0)
			lie.make = good;
		a.h.len = n * GRANULE;
		l.listen = liars_place(a.h.server);
		ASSERT_GE(l.listen, 0);
		got.id = 0;
		if (!lied(&l, &c, SV_OP_cuIpcOpenMemHandle_v2, &a, sizeof(a), &got, sizeof(got))) {
			struct sv_map m = { c.window + 8 * GRANULE, n * GRANULE };

			ASSERT_EQ(CALL(&c, SV_OP_X_IPC_MAP, (struct sv_ipc_map){ m.va, m.len, got.id }),
				  0);
			ASSERT_EQ(CALL(&c, SV_OP_cuIpcCloseMemHandle, m), 0);
		}
		close(l.listen);
		ASSERT_EQ(ctx_sync(&c), 0);
		ASSERT_EQ(open_fds(c.proxy), before) {
			TH_LOG("answer %d", i);
		}
	}
	EXPECT_EQ(client_end(&c), 0);
}

/* ------------------------------------------------------------------------------ events */

#define PAGE 4096

static uint8_t scribble;
static int page_file = -1;

static int a_page(void)
{
	uint64_t *p;
	int fd = sealed(PAGE, SEALED);

	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(p, scribble, PAGE);
	munmap(p, PAGE);
	close(page_file);
	page_file = dup(fd);
	return fd;
}

static int an_unsealed_page(void)
{
	return sealed(PAGE, 0);
}

static int two_pages(void)
{
	return sealed(2 * PAGE, SEALED);
}

TEST(a_page_that_others_scribble_in_holds_up_its_events_alone)
{
	struct sv_ipc_event a = { .h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
					 .kind = SV_IPC_EVENT } };
	struct liar l = { .truth = { TOLD, VERSION, 0, 1, 0, 0 } };
	struct sv_cuEventCreate e = { .Flags = CU_EVENT_DISABLE_TIMING };
	struct lie lie = { .fds = 1, .group = 1 };
	struct sv_cuStreamCreate st = { .Flags = CU_STREAM_NON_BLOCKING };
	static int (*const bad[])(void) = { an_unsealed_page, two_pages, a_pipe, a_file, empty };
	struct client c;
	uint64_t *p;
	int rc;

	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	l.listen = liars_place(a.h.server);
	ASSERT_GE(l.listen, 0);
	l.lie = &lie;
	a.ctx = e.ctx = st.ctx = c.ctx;
	st.phStream = new_handle(&c, SV_T_CUstream);
	ring_submit(c.ring, SV_OP_cuStreamCreate, &st, sizeof(st), NULL, 0);
	a.event = e.phEvent = new_handle(&c, SV_T_CUevent);
	ring_submit(c.ring, SV_OP_cuEventCreate, &e, sizeof(e), NULL, 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		lie.make = bad[i];
		EXPECT_GT(lied(&l, &c, SV_OP_cuIpcOpenEventHandle, &a, sizeof(a), NULL, 0), 0);
	}
	lie.make = a_page;
	for (int i = 0; i < 64; i++) {
		const struct sv_ipc_on on = { c.ctx, a.event, i & 1 ? st.phStream : SV_STREAM_LEGACY };

		scribble = i < 2 ? 0xff : i * 37;
		ASSERT_EQ(lied(&l, &c, SV_OP_cuIpcOpenEventHandle, &a, sizeof(a), NULL, 0), 0);
		p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, page_file, 0);
		for (int k = 0; k < 8; k++) {
			rc = CALL(&c, SV_OP_X_IPC_RECORD, on);
			EXPECT_TRUE(rc == 0 || rc == CUDA_ERROR_NOT_READY);
			for (int j = 0; j < PAGE / 8; j += 1 + (k * 5 + i) % 7)
				p[j] = p[j] * 0x9e3779b97f4a7c15ull + i;
			rc = CALL(&c, SV_OP_X_IPC_QUERY, (struct sv_sync_on){ c.ctx, a.event });
			EXPECT_TRUE(rc == 0 || rc == CUDA_ERROR_NOT_READY);
		}
		/* The callbacks of our records write their numbers into the page: let them end. */
		EXPECT_EQ(CALL(&c, SV_OP_cuStreamSynchronize,
			       (struct sv_sync_on){ c.ctx, on.stream }), 0);
		/* a wait for a record of somebody who lives: until he says that it is done */
		memset(p, 0, PAGE);
		p[0] = 1;
		EXPECT_EQ(fcntl(page_file, F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK,
			  .l_start = 200, .l_len = 1 }), 0);
		/* (of a later one in its place: so it is over) */
		p[3] = 129 << 8 | 200;
		EXPECT_EQ(CALL(&c, SV_OP_X_IPC_QUERY, (struct sv_sync_on){ c.ctx, a.event }), 0);
		p[3] = 1 << 8 | 200;
		EXPECT_EQ(CALL(&c, SV_OP_X_IPC_QUERY, (struct sv_sync_on){ c.ctx, a.event }),
			  CUDA_ERROR_NOT_READY);
		EXPECT_EQ(CALL(&c, SV_OP_X_IPC_WAIT, (struct sv_ipc_on){ c.ctx, a.event,
			  st.phStream }), 0);
		EXPECT_EQ(CALL(&c, SV_OP_cuStreamQuery, (struct sv_sync_on){ c.ctx, st.phStream }),
			  CUDA_ERROR_NOT_READY);
		if (i & 1)
			p[4] = 1;
		else	/* or dies */
			fcntl(page_file, F_OFD_SETLK, &(struct flock){ .l_type = F_UNLCK,
			      .l_start = 200, .l_len = 1 });
		EXPECT_EQ(CALL(&c, SV_OP_cuStreamSynchronize,
			       (struct sv_sync_on){ c.ctx, st.phStream }), 0);
		EXPECT_EQ(CALL(&c, SV_OP_X_IPC_SYNC, (struct sv_sync_on){ c.ctx, a.event }), 0);
		munmap(p, PAGE);
		SEND(&c, SV_OP_X_IPC_END, (struct sv_ipc_end){ a.event });
	}
	close(l.listen);
	close(page_file);
	EXPECT_EQ(ctx_sync(&c), 0);
	EXPECT_EQ(client_end(&c), 0);
}

/* ------------------------------------------------------------------------------ rules */

static int begin(struct client *c)
{
	return client_start(c, NULL) ?: client_context(c);
}

static int ends_session(struct client *c, uint16_t op, const void *a, uint32_t len, const char *why)
{
	int ok, rc;

	ring_submit(c->ring, op, a, len, NULL, 0);
	for (int i = 0; i < 5000 && ctx_sync(c) >= 0; i++)
		usleep(1000);
	ok = ctx_sync(c) == -EPIPE && !!strstr((const char *)c->shared->why, why);
	if (!ok)
		fprintf(stderr, "# op %u, '%s': it says '%s'\n", op, why, c->shared->why);
	rc = client_end(c);
	return ok && rc == 1;
}

#define ENDS(why, op, ...) do { \
	__auto_type a_ = __VA_ARGS__; \
	ASSERT_EQ(begin(&c), 0); \
	EXPECT_TRUE(ends_session(&c, op, &a_, sizeof(a_), why)); \
} while (0)

TEST(a_client_that_breaks_rules_is_named)
{
	struct sv_ipc_handle h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
				   .kind = SV_IPC_MEMORY, .len = 4096 };
	struct client c;
	uint64_t w, ctx, ev = sv_handle(SV_T_CUevent, 77, 1);

	ASSERT_EQ(begin(&c), 0);
	w = c.window;
	ctx = c.ctx;
	EXPECT_EQ(client_end(&c), 0);
	ENDS("not mapped", SV_OP_cuIpcGetMemHandle, (struct sv_ipc_show){ w, 4096, { 0 } });
	ENDS("not mapped", SV_OP_cuIpcGetMemHandle, (struct sv_ipc_show){ w, 0, { 0 } });
	ENDS("not mapped", SV_OP_cuIpcGetMemHandle, (struct sv_ipc_show){ 0, 4096, { 0 } });
	ENDS("not mapped", SV_OP_cuIpcGetMemHandle, (struct sv_ipc_show){ w, ~0ull, { 0 } });
	ENDS("not fetched", SV_OP_X_IPC_MAP, (struct sv_ipc_map){ w, GRANULE, 1 });
	ENDS("whole granules", SV_OP_cuIpcCloseMemHandle, (struct sv_map){ w + 1, GRANULE });
	ENDS("another process", SV_OP_cuIpcCloseMemHandle, (struct sv_map){ w, GRANULE });
	ENDS("event", SV_OP_X_IPC_END, (struct sv_ipc_end){ ev });
	ENDS("event", SV_OP_X_IPC_RECORD, (struct sv_ipc_on){ ctx, ctx, 1 });
	ENDS("event", SV_OP_X_IPC_QUERY, (struct sv_sync_on){ ctx, 5 });
	ENDS("event", SV_OP_X_IPC_SYNC, (struct sv_sync_on){ 7, ev });
	/* An event that is another process's is not shown on, nor opened twice into one. */
	{
		struct sv_ipc_event a = { .ctx = ctx, .h = h };
		struct liar l = { .truth = { TOLD, VERSION, 0, 1, 0, 0 } };
		struct sv_cuEventCreate e = { .ctx = ctx, .Flags = CU_EVENT_DISABLE_TIMING };
		struct lie lie = { .fds = 1, .group = 1, .make = a_page };

		a.h.kind = SV_IPC_EVENT;
		a.h.len = 0;
		l.lie = &lie;
		l.listen = liars_place(a.h.server);
		ASSERT_GE(l.listen, 0);
		for (int i = 0; i < 2; i++) {
			struct sv_sync_on on;

			ASSERT_EQ(begin(&c), 0);
			a.ctx = e.ctx = c.ctx;
			a.event = e.phEvent = new_handle(&c, SV_T_CUevent);
			ring_submit(c.ring, SV_OP_cuEventCreate, &e, sizeof(e), NULL, 0);
			ASSERT_EQ(lied(&l, &c, SV_OP_cuIpcOpenEventHandle, &a, sizeof(a), NULL, 0), 0);
			on = (struct sv_sync_on){ c.ctx, a.event };
			EXPECT_TRUE(i ? ends_session(&c, SV_OP_cuIpcGetEventHandle, &on, sizeof(on),
						     "another process's") :
				    ends_session(&c, SV_OP_cuIpcOpenEventHandle, &a, sizeof(a),
						 "shared"));
		}
		close(l.listen);
		close(page_file);
	}
	for (int i = 0; i < 7; i++) {
		struct sv_ipc_fetch f = { .h = h };
		struct sv_ipc_event e = { .ctx = ctx, .event = ev, .h = h };

		e.h.kind = SV_IPC_EVENT;
		e.h.len = 0;
		switch (i) {
		case 0:
			f.h.magic++, e.h.magic++;
			break;
		case 1:
			f.h.version++, e.h.version++;
			break;
		case 2:
			f.h.kind = SV_IPC_EVENT, e.h.kind = SV_IPC_MEMORY;
			break;
		case 3:
			f.h.len = 0, e.h.len = 1;
			break;
		case 4:
			f.h.at = GRANULE, e.h.at = 1;
			break;
		case 5:
			f.h.kind = 0, e.h.device = 1;
			break;
		default:
			f.h.len = ~0ull, e.h.len = ~0ull;
		}
		ENDS("that is none", SV_OP_cuIpcOpenMemHandle_v2, f);
		ENDS("that is none", SV_OP_cuIpcOpenEventHandle, e);
	}
}

TEST_HARNESS_MAIN
