// SPDX-License-Identifier: Apache-2.0
/*
 * told.c - what a conductor takes from a proxy that sends more than it was asked for
 */
#include "../../harness/leaks.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"

/* Sends a reply to CTL_RESTORE, or a progress message, with n descriptors. */
static void send_reply(int sock, uint32_t op, int n)
{
	union { struct ctl_progress p; struct ctl_restored r; } m = { 0 };
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(8 * sizeof(int))];
	} c = { .h = { .cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS } };
	size_t len = op == CTL_PROGRESS ? sizeof(m.p) : sizeof(m.r);
	struct iovec v = { &m, len };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = n ? &c : NULL,
			    .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };
	int fds[8] = { 0 };

	m.p.h = (struct ctl_head){ CTL_MAGIC, CTL_VERSION, op, len };
	memcpy(CMSG_DATA(&c.h), fds, n * sizeof(int));
	sendmsg(sock, &h, 0);
}

static int lowest_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	close(fd);
	return fd;
}

TEST(of_several_descriptors_one_is_taken_and_none_is_left_over)
{
	for (int n = 0; n < 8; n++) {
		struct ctl_head req = { .op = CTL_RESTORE, .size = sizeof(req) };
		struct ctl_restored r;
		int sv[2], fd = -1, before;

		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv));
		before = lowest_fd();
		send_reply(sv[1], CTL_PROGRESS, n);
		send_reply(sv[1], CTL_RESTORE, n);
		EXPECT_EQ(0, ctl_call(sv[0], &req, &r.r, sizeof(r), NULL, NULL, &fd, 1000));
		EXPECT_EQ(n ? before : -1, fd);
		if (fd >= 0)
			close(fd);
		EXPECT_EQ(before, lowest_fd()) {
			printf("# with %d descriptors\n", n);
		}
		/* Nobody asked for a descriptor. */
		send_reply(sv[1], CTL_RESTORE, n);
		EXPECT_EQ(0, ctl_call(sv[0], &req, &r.r, sizeof(r), NULL, NULL, NULL, 1000));
		EXPECT_EQ(before, lowest_fd());
		close(sv[0]);
		close(sv[1]);
	}
}

TEST_HARNESS_MAIN
