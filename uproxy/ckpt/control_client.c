// SPDX-License-Identifier: Apache-2.0
/*
 * control_client.c - the conductor's side of a proxy's control socket (uproxy/control.h)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control.h"

int ctl_connect(const char *path, char *why, uint64_t n)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd, rc;

	if (strlen(path) >= sizeof(a.sun_path)) {
		snprintf(why, n, "%s is too long for a socket's path", path);
		return -ENAMETOOLONG;
	}
	memcpy(a.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof(a)))
		return fd;
	rc = -errno;
	snprintf(why, n, "no proxy answers at %s: %s", path, strerror(-rc));
	if (fd >= 0)
		close(fd);
	return rc;
}

int ctl_send(int fd, struct ctl_head *req)
{
	ssize_t n;

	req->magic = CTL_MAGIC;
	req->version = CTL_VERSION;
	do {
		n = send(fd, req, req->size, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;
	return (uint32_t)n == req->size ? 0 : -EPROTO;
}

/* The fd that came with a message, or -1; there is room for one. */
static int fd_of(struct msghdr *m)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	int fd = -1;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/* One message of at most cap bytes; its length. The rest of a longer one is dropped. */
static ssize_t take(int fd, void *p, size_t cap, int *passed)
{
	char room[CMSG_SPACE(sizeof(int))];
	struct iovec v = { p, cap };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room,
			    .msg_controllen = sizeof(room) };
	ssize_t n;

	do {
		n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	*passed = n < 0 ? -1 : fd_of(&m);
	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;
	return n ? n : -EPIPE;
}

static int wait_for(int fd, int timeout_ms)
{
	struct pollfd p = { fd, POLLIN, 0 };
	int n;

	do {
		n = poll(&p, 1, timeout_ms);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n ? 0 : -ETIMEDOUT;
}

int ctl_receive(int fd, uint32_t op, struct ctl_reply *reply, uint32_t cap,
		struct ctl_progress *progress, int *passed, int timeout_ms)
{
	union {
		struct ctl_head h;
		struct ctl_reply r;
		struct ctl_progress p;
		char bytes[16384];
	} m;
	int got, rc = wait_for(fd, timeout_ms);
	ssize_t n;

	if (passed)
		*passed = -1;
	if (rc)
		return rc;
	memset(&m, 0, sizeof(m));
	n = take(fd, &m, sizeof(m), &got);
	if (n >= (ssize_t)sizeof(m.h) && m.h.magic == CTL_MAGIC && m.h.size == n) {
		if (m.h.op == op && n >= (ssize_t)sizeof(m.r)) {
			m.r.why[sizeof(m.r.why) - 1] = 0;
			memcpy(reply, &m, cap < sizeof(m) ? cap : sizeof(m));
			if (passed)
				*passed = got;
			else if (got >= 0)
				close(got);
			return 0;
		}
		if (m.h.op == CTL_PROGRESS && n >= (ssize_t)sizeof(m.p)) {
			m.p.phase[sizeof(m.p.phase) - 1] = 0;
			*progress = m.p;
			if (got >= 0)
				close(got);
			return 1;
		}
	}
	if (got >= 0)
		close(got);
	return n < 0 ? n : -EPROTO;
}

static const char *sentence(int rc)
{
	switch (rc) {
	case -EPIPE:
		return "the proxy is gone";
	case -ETIMEDOUT:
		return "the proxy says nothing any more";
	case -EPROTO:
		return "the proxy says what this program does not understand";
	}
	return strerror(-rc);
}

int ctl_call(int fd, struct ctl_head *req, struct ctl_reply *reply, uint32_t cap,
	     ctl_progress_fn progress, void *arg, int *passed, int timeout_ms)
{
	struct ctl_progress p;
	int rc;

	if (passed)
		*passed = -1;
	memset(reply, 0, cap);
	rc = ctl_send(fd, req);
	while (!rc) {
		rc = ctl_receive(fd, req->op, reply, cap, &p, passed, timeout_ms);
		if (!rc)
			return reply->status;
		if (rc > 0 && progress)
			progress(arg, &p);
		if (rc > 0)
			rc = 0;
	}
	reply->status = rc;
	snprintf(reply->why, sizeof(reply->why), "%s", sentence(rc));
	return rc;
}
