// SPDX-License-Identifier: Apache-2.0
/*
 * pass.c - a channel's fd passed between processes through a unix socket; and bad messages on it
 */
#include "pair.h"

FIXTURE(pass) {
	struct zygote z;
	int s[2];
	int fd;			/* a memfd of known content */
	int none;		/* the lowest fd that is free */
};

FIXTURE_VARIANT(pass) {
	int type;
};

FIXTURE_VARIANT_ADD(pass, stream) {
	.type = SOCK_STREAM,
};

FIXTURE_VARIANT_ADD(pass, seqpacket) {
	.type = SOCK_SEQPACKET,
};

FIXTURE_VARIANT_ADD(pass, datagram) {
	.type = SOCK_DGRAM,
};

static int lowest_free(void)
{
	int fd = fcntl(0, F_DUPFD_CLOEXEC, 0);

	close(fd);
	return fd;
}

FIXTURE_SETUP(pass)
{
	ASSERT_EQ(0, zygote_start(&self->z));
	ASSERT_EQ(0, socketpair(AF_UNIX, variant->type | SOCK_CLOEXEC, 0, self->s));
	self->fd = memfd_create("passed", MFD_CLOEXEC);
	ASSERT_LE(0, self->fd);
	ASSERT_EQ(6, write(self->fd, "passed", 6));
	self->none = lowest_free();
}

FIXTURE_TEARDOWN(pass)
{
	close(self->fd);
	close(self->s[0]);
	close(self->s[1]);
	zygote_end(&self->z);
}

static bool is_it(int fd)
{
	char text[7] = "";

	return pread(fd, text, 6, 0) == 6 && !strcmp(text, "passed");
}

TEST_F(pass, arrives_as_another_fd_of_the_same_file)
{
	int fd;

	ASSERT_EQ(0, fcntl(self->fd, F_SETFD, 0));
	ASSERT_EQ(0, ring_pass_fd(self->s[0], self->fd));
	/* Still the caller's. */
	EXPECT_TRUE(is_it(self->fd));
	fd = ring_take_fd(self->s[1]);
	ASSERT_EQ(self->none, fd);
	EXPECT_TRUE(is_it(fd));
	/* Whatever it was on the other side. */
	EXPECT_EQ(FD_CLOEXEC, fcntl(fd, F_GETFD));
	EXPECT_EQ(0, fcntl(self->fd, F_GETFD));
	close(fd);
}

TEST_F(pass, keeps_several_apart)
{
	int other = memfd_create("other", MFD_CLOEXEC), fd[3], i;

	ASSERT_EQ(0, ring_pass_fd(self->s[0], self->fd));
	ASSERT_EQ(0, ring_pass_fd(self->s[0], other));
	ASSERT_EQ(0, ring_pass_fd(self->s[0], self->fd));
	for (i = 0; i < 3; i++)
		fd[i] = ring_take_fd(self->s[1]);
	for (i = 0; i < 3; i++) {
		EXPECT_EQ(i != 1, is_it(fd[i]));
		EXPECT_EQ(0, close(fd[i]));
	}
	close(other);
}

static void take_and_look(int sock, void *arg)
{
	int fd = ring_take_fd(sock);

	NEED(fd >= 0);
	NEED(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	NEED(is_it(fd));
	NEED(pwrite(fd, "PASSED", 6, 0) == 6);
}

TEST_F(pass, reaches_another_process)
{
	char text[7] = "";
	pid_t pid = spawn(&self->z, take_and_look, NULL, self->s[1]);

	ASSERT_LT(0, pid);
	/* It may have to wait for it. */
	sleep_ns(20 * MS);
	EXPECT_EQ(0, ring_pass_fd(self->s[0], self->fd));
	EXPECT_EQ(0, reap(&self->z, pid));
	EXPECT_EQ(6, pread(self->fd, text, 6, 0));
	EXPECT_STREQ("PASSED", text);
}

static void submit_three(int sock, void *arg)
{
	struct ring *r = NULL;
	uint64_t i;

	NEED_OK(ring_attach(&r, ring_take_fd(sock)));
	close(sock);
	for (i = 0; i < 3; i++)
		NEED_OK(ring_submit(r, 1, &i, sizeof(i), NULL, 0));
	ring_close(r);
}

TEST_F(pass, brings_a_channel_to_its_client)
{
	struct ring_params p = params_of(RING_MEMFD);
	struct ring_record rec;
	struct ring *r = NULL;
	int fd, rc;
	long n = 0;
	pid_t pid;

	ASSERT_EQ(0, ring_create(&r, &p));
	fd = ring_client_fd(r);
	ASSERT_LE(0, fd);
	pid = spawn(&self->z, submit_three, NULL, self->s[1]);
	ASSERT_LT(0, pid);
	EXPECT_EQ(0, ring_watch_peer(r, pidfd_of(pid)));
	EXPECT_EQ(0, ring_pass_fd(self->s[0], fd));
	close(fd);
	while ((rc = next(r, &rec)) == 1) {
		EXPECT_EQ(n++, (long)*(const uint64_t *)rec.data);
		ring_advance(r);
	}
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(3, n);
	EXPECT_EQ(0, reap(&self->z, pid));
	ring_close(r);
}

TEST_F(pass, refuses_what_is_no_fd)
{
	EXPECT_EQ(-EBADF, ring_pass_fd(self->s[0], -1));
	EXPECT_EQ(-EBADF, ring_pass_fd(self->s[0], self->none));
	EXPECT_EQ(-EBADF, ring_pass_fd(-1, self->fd));
	EXPECT_EQ(-ENOTSOCK, ring_pass_fd(self->fd, self->fd));
	EXPECT_EQ(-EBADF, ring_take_fd(-1));
	EXPECT_EQ(-ENOTSOCK, ring_take_fd(self->fd));
	/* Nothing has been sent by that. */
	ASSERT_EQ(0, fcntl(self->s[1], F_SETFL, O_NONBLOCK));
	EXPECT_EQ(-EAGAIN, ring_take_fd(self->s[1]));
	EXPECT_EQ(self->none, lowest_free());
}

/* A message with n copies of the fd. */
static long send_fds(int sock, int fd, int n, char byte)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(64 * sizeof(int))];
	} c = { .h = { .cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = n ? &c : NULL,
			    .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };
	int i;

	for (i = 0; i < n; i++)
		memcpy(CMSG_DATA(&c.h) + i * sizeof(fd), &fd, sizeof(fd));
	return sendmsg(sock, &m, MSG_NOSIGNAL);
}

/* And keeps nothing of it open. */
TEST_F(pass, refuses_none_and_too_many)
{
	static const int counts[] = { 0, 2, 3, 64 };
	unsigned int i;
	int fd;

	for (i = 0; i < ARRAY_SIZE(counts); i++) {
		ASSERT_EQ(1, send_fds(self->s[0], self->fd, counts[i], 'x'));
		EXPECT_EQ(-EPROTO, ring_take_fd(self->s[1])) TH_LOG("%d fds", counts[i]);
		EXPECT_EQ(self->none, lowest_free()) TH_LOG("%d fds", counts[i]);
	}
	/* What comes next is not spoilt. */
	ASSERT_EQ(0, ring_pass_fd(self->s[0], self->fd));
	fd = ring_take_fd(self->s[1]);
	EXPECT_TRUE(is_it(fd));
	close(fd);
}

/* There is room for one fd alone: the others of the message are lost, and so it is refused. */
TEST_F(pass, refuses_what_is_cut_off)
{
	struct rlimit was, now;

	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &was));
	now = (struct rlimit){ self->none + 1, was.rlim_max };
	ASSERT_EQ(1, send_fds(self->s[0], self->fd, 2, 'x'));
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &now));
	EXPECT_EQ(-EPROTO, ring_take_fd(self->s[1]));
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &was));
	EXPECT_EQ(self->none, lowest_free());
}

TEST_F(pass, refuses_other_messages)
{
	int on = 1;

	ASSERT_EQ(0, setsockopt(self->s[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)));
	ASSERT_EQ(1, send(self->s[0], "x", 1, 0));
	EXPECT_EQ(-EPROTO, ring_take_fd(self->s[1]));
	/* Even with an fd: not all of what came fits. */
	ASSERT_EQ(0, ring_pass_fd(self->s[0], self->fd));
	EXPECT_EQ(-EPROTO, ring_take_fd(self->s[1]));
	EXPECT_EQ(self->none, lowest_free());
}

TEST_F(pass, says_that_the_other_end_is_closed)
{
	if (variant->type == SOCK_DGRAM)
		SKIP(return, "a datagram socket has no end of file");
	/* What was sent before still arrives. */
	ASSERT_EQ(0, ring_pass_fd(self->s[0], self->fd));
	close(self->s[0]);
	self->s[0] = -1;
	EXPECT_EQ(0, close(ring_take_fd(self->s[1])));
	EXPECT_EQ(-EPIPE, ring_take_fd(self->s[1]));
	EXPECT_EQ(-EPIPE, ring_take_fd(self->s[1]));
	/* No SIGPIPE either. */
	EXPECT_EQ(-EPIPE, ring_pass_fd(self->s[1], self->fd));
}

static void die(int sock, void *arg)
{
	sleep_ns(20 * MS);
}

TEST_F(pass, says_that_the_sender_died)
{
	pid_t pid;

	if (variant->type == SOCK_DGRAM)
		SKIP(return, "a datagram socket has no end of file");
	pid = spawn(&self->z, die, NULL, self->s[0]);
	close(self->s[0]);
	self->s[0] = -1;
	ASSERT_LT(0, pid);
	EXPECT_EQ(-EPIPE, ring_take_fd(self->s[1]));
	EXPECT_EQ(0, reap(&self->z, pid));
}

static void nothing(int sig)
{
}

static void *interrupt(void *arg)
{
	int *s = arg, i;

	for (i = 0; i < 20; i++) {
		kill(getpid(), SIGUSR1);
		sleep_ns(MS);
	}
	return (void *)(long)ring_pass_fd(s[0], s[2]);
}

TEST_F(pass, goes_on_after_signals)
{
	struct sigaction a = { .sa_handler = nothing };
	int s[3] = { self->s[0], self->s[1], self->fd }, fd;
	pthread_t t;
	void *rc;

	ASSERT_EQ(0, sigaction(SIGUSR1, &a, NULL));
	ASSERT_EQ(0, pthread_create(&t, NULL, interrupt, s));
	fd = ring_take_fd(self->s[1]);
	pthread_join(t, &rc);
	EXPECT_EQ(NULL, rc);
	EXPECT_TRUE(is_it(fd));
	close(fd);
}

TEST_HARNESS_MAIN
