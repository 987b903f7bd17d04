// SPDX-License-Identifier: Apache-2.0
/*
 * tcplink.c - links over TCP: a hello, then frames of a message's header and its data
 *
 * Data goes from its buffer to the kernel; what the kernel does not take is copied, so that a buffer
 * is never needed later.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "wire_i.h"

/* Asks for an event when the socket takes more, while something waits for that. */
static void watch(struct link *l)
{
	struct epoll_event e = { .data.ptr = l };

	e.events = EPOLLIN | (l->to > l->from || !l->greeted ? EPOLLOUT : 0);
	epoll_ctl(l->c->wire->epoll, EPOLL_CTL_MOD, l->fd, &e);
}

bool tcp_room(const struct link *l)
{
	return l->from == l->to;
}

static void keep_rest(struct link *l, const void *data, size_t len)
{
	if (l->from == l->to)
		l->from = l->to = 0;
	if (l->to + len > FRAMES) {
		memmove(l->buffer, l->buffer + l->from, l->to - l->from);
		l->to -= l->from;
		l->from = 0;
	}
	if (l->to + len > FRAMES) {
		l->lost = true; /* so many messages without data mean that nobody reads */
		return;
	}
	memcpy(l->buffer + l->to, data, len);
	l->to += len;
}

bool tcp_flush(struct link *l)
{
	while (l->greeted && l->from < l->to) {
		ssize_t n = send(l->fd, l->buffer + l->from, l->to - l->from,
		                 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		l->from += n;
	}
	watch(l);
	return true;
}

void tcp_put(struct link *l, const struct msg *m, struct op *op, const struct flow_out *out)
{
	static __thread _Alignas(64) char made[CHUNK];
	const void *data = made;
	struct iovec v[2] = { { (void *)m, sizeof(*m) } };
	struct msghdr h = { .msg_iov = v, .msg_iovlen = m->len ? 2 : 1 };
	ssize_t n = 0;

	if (m->len) {
		data = flow_data(op, out, m->first);
		if (!data) {
			flow_pack(op, out, m->first, made, m->len / out->size);
			data = made;
		}
		v[1] = (struct iovec){ (void *)data, m->len };
	}
	if (tcp_room(l)) {
		do
			n = sendmsg(l->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
		while (n < 0 && errno == EINTR);
		if (n < 0 && errno != EAGAIN)
			l->lost = true;
		n = n < 0 ? 0 : n;
	}
	if ((size_t)n < sizeof(*m)) {
		keep_rest(l, (const char *)m + n, sizeof(*m) - n);
		n = sizeof(*m);
	}
	n -= sizeof(*m);
	if (n < m->len)
		keep_rest(l, (const char *)data + n, m->len - n);
	if (l->lost)
		l->c->wire->lost = true;
	if (l->from < l->to)
		watch(l);
}

/* Moves what has come to the buffer's front, which is aligned. */
static void to_front(struct link *l)
{
	memmove(l->buffer, l->buffer + l->from, l->to - l->from);
	l->to -= l->from;
	l->from = 0;
}

/* Takes what frames there are. */
static bool frames(struct link *l, bool *any)
{
	while (l->to - l->from >= sizeof(struct msg) && !l->lost) {
		struct msg m;

		memcpy(&m, l->buffer + l->from, sizeof(m));
		if (m.len > CHUNK || m.from != l->device) {
			wire_refuse(l->c, l->device, "a frame with a wrong length or sender");
			return false;
		}
		if (l->to - l->from < sizeof(m) + m.len)
			break;
		*any = true;
		/* Behind a frame of an odd length the elements would lie where none may. */
		if (l->from % 8)
			to_front(l);
		flow_message(l->c, &m, l->buffer + l->from + sizeof(m), NULL, m.len);
		l->from += sizeof(m) + m.len;
	}
	if (l->from)
		to_front(l);
	return !l->lost;
}

bool tcp_read(struct link *l, bool *any)
{
	ssize_t n;

	do
		n = recv(l->fd, l->buffer + l->to, FRAMES - l->to, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN;
	if (!n)
		return false;
	l->to += n;
	return frames(l, any);
}

int tcp_connect(struct link *l)
{
	while (l->tried < l->peer.n) {
		uint32_t i = l->tried++;
		bool v4 = l->peer.tcp[i].family == 4;
		struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_port = l->peer.port };
		struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_port = l->peer.port };
		struct epoll_event e = { .events = EPOLLIN | EPOLLOUT, .data.ptr = l };
		int one = 1, fd, rc;

		memcpy(v4 ? (void *)&a4.sin_addr : &a6.sin6_addr, l->peer.tcp[i].ip, v4 ? 4 : 16);
		fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd < 0)
			continue;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		rc = connect(fd, v4 ? (void *)&a4 : (void *)&a6, v4 ? sizeof(a4) : sizeof(a6));
		if ((rc && errno != EINPROGRESS) ||
		    epoll_ctl(l->c->wire->epoll, EPOLL_CTL_ADD, fd, &e)) {
			close(fd);
			continue;
		}
		l->fd = fd;
		return 0;
	}
	return -EHOSTUNREACH;
}
