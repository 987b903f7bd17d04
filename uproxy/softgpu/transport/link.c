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

#define SILENT_MOST 64u         /* connections without a hello, of each kind */
#define CROWD_MOST  512u        /* of which some have been silent for less than */
#define SILENT_NS   100000000ull

/* Sends hello, with a descriptor. */
static bool hello_send(int sock, const struct hello *hello, int fd)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} u = { 0 };
	struct iovec v = { (void *)hello, sizeof(*hello) };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u,
		            .msg_controllen = sizeof(u.space) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	return sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(*hello);
}

/* recv() of a hello, and of one descriptor (or -1): of more the kernel closes those without room. */
static ssize_t hello_recv(int sock, struct hello *hello, int *fd)
{
	union {
		char space[CMSG_LEN(sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec v = { hello, sizeof(*hello) };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u,
		            .msg_controllen = sizeof(u.space) };
	ssize_t got = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = got < 0 ? NULL : CMSG_FIRSTHDR(&h);

	*fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(c), sizeof(int));
	return got;
}

static struct link *link_new(struct transport *c, int fd, bool out)
{
	struct link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->c = c;
	l->fd = fd;
	l->out = out;
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
	       h->from < TRANSPORT_DEVICES_MAX && h->from != l->c->o.self &&
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
	int fd, rc;

	l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return -ENOMEM;
	if (connect(l->fd, (void *)&a, len)) {
		rc = errno == EAGAIN ? -EAGAIN : -EHOSTUNREACH;
		close(l->fd);
		l->fd = -1;
		return rc;
	}
	rc = memory_make(l, &fd);
	if (rc)
		return rc;
	l->mem->cpu = l->c->wire->cpu;
	l->greeted = hello_send(l->fd, &h, fd);
	close(fd);
	if (!l->greeted)
		return -EHOSTUNREACH;
	return epoll_ctl(l->c->wire->epoll, EPOLL_CTL_ADD, l->fd, &e) ? -ENOMEM : 0;
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

int link_connect(struct transport *c, uint32_t device, struct link **out)
{
	struct wire *w = c->wire;
	char raw[TRANSPORT_ADDRESS_MAX];
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
		if (rc == -EAGAIN)	/* so many connect at once: make_room() tries again */
			rc = 0;
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

int link_again(struct link *l)
{
	return connect_memory(l);
}

/* Reads the bytes that have woken this thread. false: the socket has ended. */
static bool woken(const struct link *l)
{
	char bytes[64];
	ssize_t n = recv(l->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

	return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* The connection is there, or has ended. */
static bool out_event(struct link *l, uint32_t events)
{
	socklen_t len = sizeof(int);
	struct hello h;
	int err = 0;

	if (l->kind == LINK_MEMORY)
		return woken(l);
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
	struct wire *w = l->c->wire;
	struct hello h;
	int fd, rc;
	ssize_t n;

	n = hello_recv(l->fd, &h, &fd);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	rc = n == sizeof(h) && hello_is(l, &h) ? 0 : -EPROTO;
	/* A device has one link here; a new one of its number comes after the old one's end. */
	for (uint32_t i = 0; !rc && i < w->nin; i++)
		if (w->in[i]->greeted && !w->in[i]->lost && w->in[i]->device == h.from)
			rc = -EEXIST;
	if (!rc && l->kind == LINK_MEMORY)
		rc = memory_map(l, fd);
	if (fd >= 0)
		close(fd);
	if (rc)
		return false;
	l->device = h.from;
	l->greeted = true;
	return true;
}

bool link_event(struct link *l, uint32_t events)
{
	if (l->out)
		return out_event(l, events);
	if (!l->greeted)
		return in_hello(l);
	/* TCP is read in its turn. */
	return l->kind == LINK_TCP || woken(l);
}

static bool mine(int fd)
{
	struct ucred u;
	socklen_t len = sizeof(u);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &len) && u.uid == geteuid();
}

/*
 * Whoever connects says hello at once. Of those who have not, the one that has been silent for the
 * longest goes, if that is long enough: so strangers can neither fill the table nor use up descriptors.
 */
static bool drop_silent(struct transport *c, enum link_kind kind)
{
	struct wire *w = c->wire;
	struct link *first = NULL;
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->nin; i++) {
		struct link *l = w->in[i];

		if (l->greeted || l->lost || l->kind != kind)
			continue;
		n++;
		if (!first || l->since < first->since)
			first = l;
	}
	if (n < SILENT_MOST || (n < CROWD_MOST && now_ns() - first->since < SILENT_NS))
		return false;
	/* wire_progress() ends it, since there may be an event of it. Its hello may lie there unread. */
	if (!in_hello(first) || !first->greeted)
		first->lost = true;
	return true;
}

bool wire_accept(struct transport *c, int listener)
{
	struct epoll_event e = { .events = EPOLLIN };
	struct wire *w = c->wire;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	enum link_kind kind = listener == w->unix_fd ? LINK_MEMORY : LINK_TCP;
	struct link *l = NULL, **more;
	int one = 1;

	if (fd < 0)
		return false;
	while (drop_silent(c, kind))
		;
	if (w->nin == w->room_in) {
		more = realloc(w->in, (w->room_in * 2 + 8) * sizeof(*w->in));
		if (more) {
			w->in = more;
			w->room_in = w->room_in * 2 + 8;
		}
	}
	if (w->nin < w->room_in && w->nin < 4 * TRANSPORT_DEVICES_MAX &&
	    (listener == w->tcp_fd || mine(fd)))
		l = link_new(c, fd, false);
	if (!l) {
		close(fd);
		return true;
	}
	l->kind = kind;
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
	l->since = now_ns();
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

int wire_listen(struct transport *c, struct why *why)
{
	struct wire *w = c->wire;
	struct epoll_event e = { .events = EPOLLIN };
	struct sockaddr_un a;
	socklen_t len;

	where(&w->self);
	find_ips(&w->self);
	if (getrandom(w->self.name, sizeof(w->self.name), 0) != sizeof(w->self.name) ||
	    getrandom(w->self.key, sizeof(w->self.key), 0) != sizeof(w->self.key) ||
	    getrandom(&c->secret, sizeof(c->secret), 0) != sizeof(c->secret))
		return why_set(why, -EIO, "no random numbers for the transport");
	c->secret |= 1;
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
