// SPDX-License-Identifier: Apache-2.0
/*
 * pass.c - hands a channel's fd to another process over a unix socket
 *
 * The socket is closed after the handshake, so that a dump of the client finds no connection to
 * other processes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

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
	ssize_t n;

	memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
	do
		n = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n == 1 ? 0 : -errno;
}

/* The message's only fd; else -EPROTO, and all are closed: padding leaves room for a second one. */
static int only_fd(struct msghdr *m)
{
	struct cmsghdr *h = CMSG_FIRSTHDR(m);
	size_t n, i;
	int fd;

	if (!h || h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
		return -EPROTO;
	n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	for (i = 0; i < n; i++) {
		memcpy(&fd, CMSG_DATA(h) + i * sizeof(fd), sizeof(fd));
		if (n == 1 && !(m->msg_flags & MSG_CTRUNC))
			return fd;
		close(fd);
	}
	return -EPROTO;
}

int ring_take_fd(int sock)
{
	union control c;
	char byte;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	ssize_t n;

	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n ? -errno : -EPIPE;
	return only_fd(&m);
}
