// SPDX-License-Identifier: Apache-2.0
/*
 * link.c - links are made, greeted and ended
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire_i.h"

#define SILENT_MOST 64u

ssize_t fds_send(int fd, const void *from, size_t len, const int *fds, int n)
{
	union {
		char space[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} u = { 0 };
	struct iovec v = { (void *)from, len };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u,
		            .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	return sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t fds_recv(int fd, void *to, size_t len, int *fds, int n)
{
	union {
		char space[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec v = { to, len };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u,
		            .msg_controllen = sizeof(u) };
	ssize_t got = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int came[2], count = 0;

	for (int i = 0; i < n; i++)
		fds[i] = -1;
	for (struct cmsghdr *c = got < 0 ? NULL : CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(came, CMSG_DATA(c), count * sizeof(int));
	}
	for (int i = 0; i < count; i++) {
		if (i < n)
			fds[i] = came[i];
		else
			close(came[i]);
	}
	return got;
}

struct link *link_new(struct comm *c, int fd, bool out)
{
	struct link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->c = c;
	l->fd = fd;
	l->out = out;
	l->bell = -1;
	l->device = UINT32_MAX;
	l->later_end = &l->later;
	return l;
}

void link_free(struct link *l)
{
	struct later *k;

	while ((k = l->later)) {
		l->later = k->next;
		free(k);
	}
	if (l->fd >= 0)
		close(l->fd);
	if (l->bell >= 0)
		close(l->bell);
	if (l->mem)
		munmap(l->mem, sizeof(*l->mem));
	free(l->buffer);
	free(l);
}

static struct hello hello_to(const struct link *l)
{
	struct hello h = { .magic = HELLO_MAGIC, .from = l->c->o.self,
		           .size = sizeof(struct link_memory) };

	memcpy(h.key, l->peer.key, sizeof(h.key));
	return h;
}

static bool hello_is(const struct link *l, const struct hello *h)
{
	const struct address *self = &l->c->wire->self;

	return h->magic == HELLO_MAGIC && h->size == sizeof(struct link_memory) &&
	       h->from < COMM_DEVICES_MAX && h->from != l->c->o.self &&
	       !memcmp(h->key, self->key, sizeof(h->key));
}

static socklen_t name_of(const uint8_t *name, struct sockaddr_un *a)
{
	static const char hex[] = "0123456789abcdef";
	char *to = a->sun_path + 1;

	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(to, "singvgpu-comm-", 14);
	for (int i = 0; i < 16; i++) {
		to[14 + 2 * i] = hex[name[i] >> 4];
		to[15 + 2 * i] = hex[name[i] & 15];
	}
	return offsetof(struct sockaddr_un, sun_path) + 1 + 14 + 32;
}

/* ------------------------------------------------------------------------------ to another one */

static int connect_memory(struct link *l)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = l };
	struct hello h = hello_to(l);
	struct sockaddr_un a;
	socklen_t len = name_of(l->peer.name, &a);
	int fds[2], rc;

	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return -ENOMEM;
	if (connect(l->fd, (void *)&a, len))
		return errno == EAGAIN ? -EAGAIN : -EHOSTUNREACH;
	rc = memory_make(l, &fds[0]);
	if (rc)
		return rc;
	fds[1] = l->c->bell;
	rc = fds_send(l->fd, &h, sizeof(h), fds, 2) == sizeof(h) ? 0 : -EHOSTUNREACH;
	close(fds[0]);
	if (!rc && epoll_ctl(l->c->wire->epoll, EPOLL_CTL_ADD, l->fd, &e))
		rc = -ENOMEM;
	return rc;
}

static int connect_tcp(struct link *l)
{
	l->kind = LINK_TCP;
	l->buffer = malloc(FRAMES);
	if (!l->buffer)
		return -ENOMEM;
	l->c->wire->tcp++;
	return tcp_connect(l);
}

int link_connect(struct comm *c, uint32_t device, struct link **out)
{
	struct wire *w = c->wire;
	char raw[COMM_ADDRESS_MAX];
	struct link *l;
	int n, rc;

	n = c->o.address(c->o.arg, device, raw);
	if (n != sizeof(l->peer))
		return -EHOSTUNREACH;
	l = link_new(c, -1, true);
	if (!l)
		return -ENOMEM;
	memcpy(&l->peer, raw, sizeof(l->peer));
	l->device = device;
	if (l->peer.zero || l->peer.n > ADDRESSES)
		rc = -EHOSTUNREACH;
	else if (l->peer.host == w->self.host && l->peer.net == w->self.net) {
		l->kind = LINK_MEMORY;
		rc = connect_memory(l);
	} else {
		rc = connect_tcp(l);
	}
	if (rc) {
		w->tcp -= l->kind == LINK_TCP && l->buffer;
		link_free(l);
		return rc;
	}
	w->out[device] = *out = l;
	return 0;
}

/* An answer to hello, or the connection itself. */
static bool out_event(struct link *l, uint32_t events)
{
	socklen_t len = sizeof(int);
	struct hello h;
	int err = 0, bell;
	ssize_t n;

	if (l->kind == LINK_MEMORY) {
		n = fds_recv(l->fd, &h, sizeof(h), &bell, 1);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		if (bell >= 0 && !l->greeted && n == sizeof(h)) {
			l->bell = bell;
			l->greeted = true;
			return true;
		}
		if (bell >= 0)
			close(bell);
		return false;
	}
	if (!l->greeted) {
		getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &err, &len);
		if (err) {
			close(l->fd);
			l->fd = -1;
			return !tcp_connect(l);
		}
		if (!(events & EPOLLOUT))
			return true;
		l->greeted = true;
		h = hello_to(l);
		/* A new connection takes these few bytes. */
		if (send(l->fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(h))
			return false;
	}
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && recv(l->fd, &h, 1, MSG_DONTWAIT) >= 0)
		return false; /* the end; nobody says anything this way */
	return tcp_flush(l);
}

/* ------------------------------------------------------------------------------ from another one */

static bool in_hello(struct link *l)
{
	struct hello h, answer = { .magic = HELLO_MAGIC };
	struct wire *w = l->c->wire;
	int fds[2], rc;
	ssize_t n;

	n = fds_recv(l->fd, &h, sizeof(h), fds, 2);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	rc = n == sizeof(h) && hello_is(l, &h) && (fds[0] < 0) == (l->kind == LINK_TCP) ? 0 : -EPROTO;
	/* A device has one link here; a new one of its number comes after the old one's end. */
	for (uint32_t i = 0; !rc && i < w->nin; i++)
		if (w->in[i]->greeted && !w->in[i]->lost && w->in[i]->device == h.from)
			rc = -EEXIST;
	if (!rc && l->kind == LINK_MEMORY)
		rc = fds[1] < 0 ? -EPROTO : memory_map(l, fds[0]);
	if (fds[0] >= 0)
		close(fds[0]);
	if (rc) {
		if (fds[1] >= 0)
			close(fds[1]);
		return false;
	}
	l->bell = fds[1];
	l->device = h.from;
	l->greeted = true;
	return l->kind == LINK_TCP ||
	       fds_send(l->fd, &answer, sizeof(answer), &l->c->bell, 1) == sizeof(answer);
}

bool link_event(struct link *l, uint32_t events)
{
	char byte;

	if (l->out)
		return out_event(l, events);
	if (!l->greeted)
		return in_hello(l);
	if (l->kind == LINK_TCP)
		return true; /* read in its turn */
	return recv(l->fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
}

static bool mine(int fd)
{
	struct ucred u;
	socklen_t len = sizeof(u);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &len) && u.uid == geteuid();
}

/*
 * Whoever connects says hello at once. Of those who do not, the one that has been silent for the
 * longest goes: so strangers can neither fill the table nor use up descriptors.
 */
static void drop_silent(struct comm *c)
{
	struct wire *w = c->wire;
	struct link *first = NULL;
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->nin; i++) {
		struct link *l = w->in[i];

		if (l->greeted || l->lost || l->kind == LINK_MEMORY)	/* the same user's */
			continue;
		n++;
		if (!first || l->came < first->came)
			first = l;
	}
	if (n >= SILENT_MOST)
		first->lost = true;	/* wire_progress() ends it: there may be an event of it */
}

bool wire_accept(struct comm *c, int listener)
{
	struct epoll_event e = { .events = EPOLLIN };
	struct wire *w = c->wire;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct link *l = NULL, **more;
	int one = 1;

	if (fd < 0)
		return false;
	drop_silent(c);
	if (w->nin == w->room_in) {
		more = realloc(w->in, (w->room_in * 2 + 8) * sizeof(*w->in));
		if (more) {
			w->in = more;
			w->room_in = w->room_in * 2 + 8;
		}
	}
	if (w->nin < w->room_in && w->nin < 4 * COMM_DEVICES_MAX &&
	    (listener == w->tcp_fd || mine(fd)))
		l = link_new(c, fd, false);
	if (!l) {
		close(fd);
		return true;
	}
	l->kind = listener == w->unix_fd ? LINK_MEMORY : LINK_TCP;
	if (l->kind == LINK_TCP) {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		l->buffer = aligned_alloc(64, (FRAMES + 63) & ~63ul);
	}
	e.data.ptr = l;
	if ((l->kind == LINK_TCP && !l->buffer) || epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e)) {
		link_free(l);
		return true;
	}
	w->tcp += l->kind == LINK_TCP;
	l->came = ++w->came;
	w->in[w->nin++] = l;
	return true;
}

/* ------------------------------------------------------------------------------ the own address */

/* What tells this host and network namespace from others. */
static void where(struct address *a)
{
	char boot[64] = "";
	struct stat st;
	int fd;

	fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (read(fd, boot, sizeof(boot) - 1) < 0)
			*boot = 0;
		close(fd);
	}
	a->host = 14695981039346656037ull;
	for (const char *p = boot; *p; p++)
		a->host = (a->host ^ (unsigned char)*p) * 1099511628211ull;
	if (!stat("/proc/self/ns/net", &st))
		a->net = st.st_ino;
}

/* The host's addresses that others may reach. */
static void find_ips(struct address *a)
{
	struct ifaddrs *all, *i;

	if (getifaddrs(&all))
		return;
	for (i = all; i && a->n < ADDRESSES; i = i->ifa_next) {
		struct sockaddr_in *v4 = (void *)i->ifa_addr;
		struct sockaddr_in6 *v6 = (void *)i->ifa_addr;

		if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
			continue;
		if (v4->sin_family == AF_INET) {
			a->tcp[a->n].family = 4;
			memcpy(a->tcp[a->n++].ip, &v4->sin_addr, 4);
		} else if (v4->sin_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) {
			a->tcp[a->n].family = 6;
			memcpy(a->tcp[a->n++].ip, &v6->sin6_addr, 16);
		}
	}
	freeifaddrs(all);
}

static int listen_tcp(struct wire *w)
{
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in a4 = { .sin_family = AF_INET };
	socklen_t len = sizeof(a6);
	int off = 0;

	w->tcp_fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (w->tcp_fd < 0 || setsockopt(w->tcp_fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) ||
	    bind(w->tcp_fd, (void *)&a6, sizeof(a6))) {
		if (w->tcp_fd >= 0)
			close(w->tcp_fd);
		w->tcp_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (w->tcp_fd < 0 || bind(w->tcp_fd, (void *)&a4, sizeof(a4)))
			return -errno;
	}
	if (listen(w->tcp_fd, 1024) || getsockname(w->tcp_fd, (void *)&a6, &len))
		return -errno;
	w->self.port = a6.sin6_port; /* it is where sin_port is */
	return 0;
}

int wire_listen(struct comm *c, struct why *why)
{
	struct wire *w = c->wire;
	struct epoll_event e = { .events = EPOLLIN };
	struct sockaddr_un a;
	socklen_t len;

	where(&w->self);
	find_ips(&w->self);
	if (getrandom(w->self.name, sizeof(w->self.name), 0) != sizeof(w->self.name) ||
	    getrandom(w->self.key, sizeof(w->self.key), 0) != sizeof(w->self.key))
		return why_set(why, -EIO, "no random numbers for the transport");
	len = name_of(w->self.name, &a);
	w->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (w->unix_fd < 0 || bind(w->unix_fd, (void *)&a, len) || listen(w->unix_fd, 1024))
		return why_set(why, -errno, "the transport's socket: %s", strerror(errno));
	e.data.ptr = &w->unix_fd;
	if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->unix_fd, &e))
		return why_set(why, -errno, "the transport's socket: %s", strerror(errno));
	/* Without addresses that others can reach there is nobody to listen for. */
	if (!w->self.n)
		return 0;
	if (listen_tcp(w))
		return why_set(why, -errno, "the transport's port: %s", strerror(errno));
	e.data.ptr = &w->tcp_fd;
	if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->tcp_fd, &e))
		return why_set(why, -errno, "the transport's port: %s", strerror(errno));
	return 0;
}
