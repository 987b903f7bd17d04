// SPDX-License-Identifier: Apache-2.0
/*
 * control_client.c - the conductor's side of a proxy's control socket (uproxy/include/control.h)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "control.h"

#define CONNECT_MS	10000	/* timeout for a proxy that serves other conductors */
#define SEND_SECONDS	10

/* Connects with a timeout: connect() and send() would wait for ever for a peer that is stuck. */
static int reach(int fd, const struct sockaddr_un *a, long limit_ms)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	struct timeval limit = { .tv_sec = SEND_SECONDS };

	for (long ms = 0; connect(fd, (const struct sockaddr *)a, sizeof(*a)); ms += 10) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (ms >= limit_ms)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	if (fcntl(fd, F_SETFL, 0) || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)))
		return -errno;
	return 0;
}

/* Another user may have put a socket in the place of the proxy's, so its maker must be our user. */
static int is_ours(int fd)
{
	struct ucred u = { 0 };
	socklen_t len = sizeof(u);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &len))
		return -errno;
	return u.uid == geteuid() ? 0 : -EPERM;
}

int ctl_connect_within(const char *path, long ms, struct why *why)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd, rc;

	if (strlen(path) >= sizeof(a.sun_path))
		return why_set(why, -ENAMETOOLONG, "%s is too long for a socket's path", path);
	memcpy(a.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	rc = fd < 0 ? -errno : reach(fd, &a, ms < CONNECT_MS ? ms : CONNECT_MS);
	if (!rc)
		rc = is_ours(fd);
	if (!rc)
		return fd;
	if (fd >= 0)
		close(fd);
	return why_set(why, rc, "no proxy answers at %s: %s", path, rc == -EPERM ?
		       "the socket there belongs to another user" : strerror(-rc));
}

int ctl_connect(const char *path, struct why *why)
{
	return ctl_connect_within(path, CONNECT_MS, why);
}

int ctl_send(int fd, struct ctl_head *req)
{
	ssize_t n;

	req->magic = CTL_MAGIC;
	req->version = CTL_VERSION;
	do {
		n = send(fd, req, req->size, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return -ETIMEDOUT;
	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;
	return (uint32_t)n == req->size ? 0 : -EPROTO;
}

int ctl_give(int fd, int given)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { .h = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { "", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	ssize_t n;

	memcpy(CMSG_DATA(&c.h), &given, sizeof(given));
	do {
		n = sendmsg(fd, &m, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n == 1 ? 0 : errno == ECONNRESET ? -EPIPE : -errno;
}

/* The fd that came with a message, or -1. */
static int fd_of(struct msghdr *m)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	int fd = -1;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/* Receives at most cap bytes of one message, drops its rest. Returns the bytes received. */
static ssize_t take(int fd, void *p, size_t cap, int *passed)
{
	char room[CMSG_SPACE(sizeof(int))];
	struct iovec v = { p, cap };
	/* Room for one descriptor: CMSG_SPACE's padding would take a second one. */
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room,
			    .msg_controllen = CMSG_LEN(sizeof(int)) };
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
	if (n >= (ssize_t)sizeof(m.h) && m.h.magic == CTL_MAGIC && m.h.version != CTL_VERSION) {
		if (got >= 0)
			close(got);
		reply->h = m.h;
		return -EPROTONOSUPPORT;
	}
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
	struct why why = { 0 };
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
	if (rc == -EPROTONOSUPPORT)
		why_set(&why, rc, "the proxy speaks version %u of the protocol, this program version %u",
			reply->h.version, CTL_VERSION);
	else
		why_set(&why, rc, "%s", sentence(rc));
	ctl_reply_why(reply, &why);
	return rc;
}
