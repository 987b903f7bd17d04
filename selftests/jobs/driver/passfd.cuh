/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passfd.cuh - a file descriptor from one process of a job to another, over a Unix socket
 */
#ifndef PASSFD_CUH
#define PASSFD_CUH

#include "../job.cuh"

#include <sys/socket.h>

union control {
	cmsghdr h;
	char room[CMSG_SPACE(sizeof(int))];
};

static inline void pass(int sock, int fd)
{
	iovec v = { (void *)"", 1 };
	control c = {};
	msghdr m = {};

	m.msg_iov = &v;
	m.msg_iovlen = 1;
	m.msg_control = &c;
	m.msg_controllen = sizeof(c);
	c.h.cmsg_len = CMSG_LEN(sizeof(int));
	c.h.cmsg_level = SOL_SOCKET;
	c.h.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
	EXPECT_EQ(sendmsg(sock, &m, 0), 1);
}

static inline int passed(int sock)
{
	char byte;
	iovec v = { &byte, 1 };
	control c;
	msghdr m = {};
	int fd;

	m.msg_iov = &v;
	m.msg_iovlen = 1;
	m.msg_control = &c;
	m.msg_controllen = sizeof(c);
	EXPECT_EQ(recvmsg(sock, &m, 0), 1);
	memcpy(&fd, CMSG_DATA(&c.h), sizeof(fd));
	return fd;
}

#endif
