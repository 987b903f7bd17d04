// SPDX-License-Identifier: Apache-2.0
/*
 * peer.c - a device's side of links in memory; see peer.h
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "peer.h"
#include "world.h"

static socklen_t name_of(const struct address *a, struct sockaddr_un *u)
{
	*u = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(u->sun_path + 1, "singvgpu-comm-", 14);
	for (int i = 0; i < 16; i++)
		snprintf(u->sun_path + 15 + 2 * i, 3, "%02x", a->name[i]);
	return offsetof(struct sockaddr_un, sun_path) + 47;
}

int peer_dial(const struct address *a)
{
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un u;
	socklen_t len = name_of(a, &u);

	if (connect(sock, (void *)&u, len)) {
		close(sock);
		return -1;
	}
	return sock;
}

int peer_dial_tcp(const struct address *a)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = a->port };
	int fd = -1;

	for (uint32_t i = 0; i < a->n && fd < 0; i++) {
		if (a->tcp[i].family != 4)
			continue;
		memcpy(&in.sin_addr, a->tcp[i].ip, 4);
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (!connect(fd, (void *)&in, sizeof(in)))
			break;
		close(fd);
		fd = -1;
	}
	return fd;
}

bool peer_give(int sock, const void *from, size_t len, const int *fds, uint32_t n)
{
	_Alignas(struct cmsghdr) char space[CMSG_SPACE(2 * sizeof(int))] = { 0 };
	struct iovec v = { (void *)from, len };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space,
		            .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	return sendmsg(sock, &h, MSG_NOSIGNAL) == (ssize_t)len;
}

int peer_listen(struct address *a, int backlog)
{
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un u;
	socklen_t len;

	if (getrandom(a->name, sizeof(a->name), 0) != sizeof(a->name))
		world_fail("no random name");
	len = name_of(a, &u);
	if (bind(listener, (void *)&u, len) || listen(listener, backlog))
		world_fail("a listener: %s", strerror(errno));
	return listener;
}

int peer_accept(int listener, struct hello *hello, struct link_memory **mem, int *keep)
{
	_Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof(int))];
	struct iovec v = { hello, sizeof(*hello) };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct timeval patience = { .tv_sec = 60 };
	int sock, fd;

	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (sock < 0 || recvmsg(sock, &h, MSG_CMSG_CLOEXEC) != sizeof(*hello) || !CMSG_FIRSTHDR(&h))
		world_fail("nobody connects");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(fd));
	*mem = mmap(NULL, sizeof(**mem), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*mem == MAP_FAILED)
		world_fail("the memory of a link: %s", strerror(errno));
	if (keep)
		*keep = fd;
	else
		close(fd);
	return sock;
}
