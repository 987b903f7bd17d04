// SPDX-License-Identifier: Apache-2.0
/*
 * pass.c - hands a channel's fd to another process over a unix socket
 *
 * The socket is for the handshake only: it is closed afterwards, so that a dump of the client finds
 * no connection to the outside.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "ring.h"

union control {
	struct cmsghdr h;
	char room[CMSG_SPACE(sizeof(int))];
};

int ring_pass_fd(int sock, int fd)
{
	union control c = { .h = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
				   .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { "", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };

	memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
	return sendmsg(sock, &m, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

int ring_take_fd(int sock)
{
	union control c;
	char byte;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	struct cmsghdr *h;
	ssize_t n;
	int fd;

	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	h = n ? CMSG_FIRSTHDR(&m) : NULL;
	if (!n)
		return -EPIPE;
	if (!h || h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS ||
	    h->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(h), sizeof(fd));
	return fd;
}
