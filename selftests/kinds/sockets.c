// SPDX-License-Identifier: Apache-2.0
/*
 * sockets.c - sockets with what lies in their queues, their options, and connections at every stage
 */
#include <linux/if_alg.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "kinds.h"

static socklen_t name_of(struct sockaddr_un *a, const char *name, bool abstract)
{
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (abstract) {
		snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "%s-%d", name, getpid());
		return offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a->sun_path + 1);
	}
	snprintf(a->sun_path, sizeof(a->sun_path), "%s", name);
	return sizeof(*a);
}

static bool exchanges(int a, int b, const char *text)
{
	char is[64] = "";

	return send(a, text, strlen(text), 0) == (ssize_t)strlen(text) &&
	       recv(b, is, sizeof(is), 0) == (ssize_t)strlen(text) && same(is, text);
}

static void unix_pair(int type)
{
	char is[32] = "";
	int s[2];

	NEED(!socketpair(AF_UNIX, type, 0, s));
	NEED(send(s[0], "one", 3, 0) == 3 && send(s[0], "three", 5, 0) == 5);
	stand();
	if (type == SOCK_STREAM) {
		IS(recv(s[1], is, sizeof(is), 0) == 8 && same(is, "onethree"));
	} else {
		IS(recv(s[1], is, sizeof(is), MSG_DONTWAIT) == 3 && same(is, "one"));
		IS(recv(s[1], is, sizeof(is), MSG_DONTWAIT) == 5 && same(is, "three"));
	}
	IS(exchanges(s[1], s[0], "back"));
}

static void unix_stream(void)
{
	unix_pair(SOCK_STREAM);
}

static void unix_datagrams(void)
{
	unix_pair(SOCK_DGRAM);
}

static void unix_packets(void)
{
	unix_pair(SOCK_SEQPACKET);
}

static void unix_named(bool abstract)
{
	int s = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0), a;
	struct sockaddr_un at;
	socklen_t len = name_of(&at, "s", abstract);

	NEED(!bind(s, (void *)&at, len) && !listen(s, 8));
	stand();
	IS(!connect(c, (void *)&at, len));
	a = accept(s, NULL, NULL);
	IS(a >= 0 && exchanges(c, a, "hello"));
}

static void unix_listening(void)
{
	unix_named(false);
}

static void unix_abstract(void)
{
	unix_named(true);
}

static void unix_accepted(void)
{
	int s = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0), a;
	struct sockaddr_un at;
	socklen_t len = name_of(&at, "s", false);

	NEED(!bind(s, (void *)&at, len) && !listen(s, 8) && !connect(c, (void *)&at, len));
	a = accept(s, NULL, NULL);
	NEED(a >= 0 && send(c, "early", 5, 0) == 5);
	stand();
	IS(recv(a, &at, sizeof(at), 0) == 5 && same(&at, "early") && exchanges(a, c, "late"));
}

static void unix_pending(void)
{
	int s = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0), a;
	struct sockaddr_un at;
	socklen_t len = name_of(&at, "s", false);
	char is[8] = "";

	NEED(!bind(s, (void *)&at, len) && !listen(s, 8) && !connect(c, (void *)&at, len));
	NEED(send(c, "early", 5, 0) == 5);
	stand();
	a = accept(s, NULL, NULL);
	IS(a >= 0 && recv(a, is, sizeof(is), 0) == 5 && same(is, "early"));
}

static void unix_half(void)
{
	char is[8] = "";
	int s[2];

	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, s) && send(s[0], "last", 4, 0) == 4 && !shutdown(s[0], SHUT_WR));
	stand();
	IS(recv(s[1], is, sizeof(is), 0) == 4 && same(is, "last") && !recv(s[1], is, 1, 0));
	IS(exchanges(s[1], s[0], "back"));
}

static void unix_queue_named(void)
{
	int s = socket(AF_UNIX, SOCK_DGRAM, 0), c = socket(AF_UNIX, SOCK_DGRAM, 0);
	struct sockaddr_un at;
	socklen_t len = name_of(&at, "s", false);
	char is[8] = "";

	NEED(!bind(s, (void *)&at, len) && !connect(c, (void *)&at, len) && send(c, "first", 5, 0) == 5);
	stand();
	IS(recv(s, is, sizeof(is), MSG_DONTWAIT) == 5 && same(is, "first") && exchanges(c, s, "next"));
}

static void unix_descriptor(void)
{
	union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } u = { { 0 } };
	struct iovec v = { "x", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int s[2], p[2];
	char byte[2];

	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, s) && !pipe(p) && write(p[1], "passed", 6) == 6);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &p[0], sizeof(int));
	NEED(sendmsg(s[0], &m, 0) == 1 && !close(p[0]));
	stand();
	memset(&u, 0, sizeof(u));
	v.iov_base = byte;
	IS(recvmsg(s[1], &m, 0) == 1 && (c = CMSG_FIRSTHDR(&m)) && c->cmsg_type == SCM_RIGHTS);
	memcpy(&p[0], CMSG_DATA(c), sizeof(int));
	IS(read(p[0], u.room, 6) == 6 && same(u.room, "passed"));
}

static void socket_options(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 0), is = 0, yes = 1;
	struct timeval t = { 3, 500000 }, was = { 0 };
	socklen_t len = sizeof(is);

	NEED(!setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes)));
	NEED(!setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)));
	NEED(!setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)));
	stand();
	IS(!getsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &is, &len) && is);
	IS(!getsockopt(s, IPPROTO_TCP, TCP_NODELAY, &is, &len) && is);
	len = sizeof(was);
	IS(!getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &was, &len) && was.tv_sec == 3 && was.tv_usec);
}

static void socket_buffers(void)
{
	int s[2], was = 0, is = 0, want = 100000;
	socklen_t len = sizeof(is);

	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, s) && !setsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &want, sizeof(want)));
	NEED(!getsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &was, &len));
	stand();
	IS(!getsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &is, &len) && is == was);
}

struct tcp {
	int listens, from, to;
	struct sockaddr_in6 at;
	socklen_t len;
};

static int bound(int family, int type, struct sockaddr_in6 *at, socklen_t *len)
{
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int s = socket(family, type, 0);

	memset(at, 0, sizeof(*at));
	at->sin6_family = AF_INET6;
	at->sin6_addr = in6addr_loopback;
	*len = sizeof(*at);
	if (family == AF_INET) {
		memcpy(at, &four, sizeof(four));
		*len = sizeof(four);
	}
	NEED(s >= 0 && !bind(s, (void *)at, *len) && !getsockname(s, (void *)at, len));
	return s;
}

static void tcp_open(struct tcp *t, int family)
{
	t->listens = bound(family, SOCK_STREAM, &t->at, &t->len);
	NEED(!listen(t->listens, 8));
	t->from = socket(family, SOCK_STREAM, 0);
	NEED(!connect(t->from, (void *)&t->at, t->len));
}

static void tcp_listening(void)
{
	struct tcp t;

	t.listens = bound(AF_INET, SOCK_STREAM, &t.at, &t.len);
	NEED(!listen(t.listens, 8));
	stand();
	t.from = socket(AF_INET, SOCK_STREAM, 0);
	IS(!connect(t.from, (void *)&t.at, t.len));
	t.to = accept(t.listens, NULL, NULL);
	IS(t.to >= 0 && exchanges(t.from, t.to, "hello"));
}

static void tcp_established(int family)
{
	char is[16] = "";
	struct tcp t;

	tcp_open(&t, family);
	t.to = accept(t.listens, NULL, NULL);
	NEED(t.to >= 0 && send(t.from, "unread", 6, 0) == 6);
	stand();
	IS(recv(t.to, is, sizeof(is), 0) == 6 && same(is, "unread") && exchanges(t.to, t.from, "back"));
}

static void tcp_connected(void)
{
	tcp_established(AF_INET);
}

static void tcp_six(void)
{
	tcp_established(AF_INET6);
}

static void tcp_half(void)
{
	char is[16] = "";
	struct tcp t;

	tcp_open(&t, AF_INET);
	t.to = accept(t.listens, NULL, NULL);
	NEED(t.to >= 0 && send(t.from, "last", 4, 0) == 4 && !shutdown(t.from, SHUT_WR));
	stand();
	IS(recv(t.to, is, sizeof(is), 0) == 4 && same(is, "last") && !recv(t.to, is, 1, 0));
	IS(exchanges(t.to, t.from, "back"));
}

static void tcp_pending(void)
{
	char is[16] = "";
	struct tcp t;

	tcp_open(&t, AF_INET);
	NEED(send(t.from, "early", 5, 0) == 5);
	stand();
	t.to = accept(t.listens, NULL, NULL);
	IS(t.to >= 0 && recv(t.to, is, sizeof(is), 0) == 5 && same(is, "early"));
}

static void tcp_bound(void)
{
	struct sockaddr_in6 at, is;
	socklen_t len, l = sizeof(is);
	int s = bound(AF_INET, SOCK_STREAM, &at, &len);

	stand();
	IS(!getsockname(s, (void *)&is, &l) && !memcmp(&at, &is, len));
}

static void udp_bound(void)
{
	struct sockaddr_in6 at;
	socklen_t len;
	int s = bound(AF_INET, SOCK_DGRAM, &at, &len), c = socket(AF_INET, SOCK_DGRAM, 0);
	char is[8] = "";

	stand();
	IS(sendto(c, "hello", 5, 0, (void *)&at, len) == 5 && recv(s, is, sizeof(is), 0) == 5);
}

static void udp_connected(void)
{
	struct sockaddr_in6 a, b;
	socklen_t la, lb;
	int s = bound(AF_INET, SOCK_DGRAM, &a, &la), c = bound(AF_INET, SOCK_DGRAM, &b, &lb);

	NEED(!connect(s, (void *)&b, lb) && !connect(c, (void *)&a, la));
	stand();
	IS(exchanges(s, c, "there") && exchanges(c, s, "back"));
}

static void udp_queue(int family)
{
	struct sockaddr_in6 a, b, from;
	socklen_t la, lb, l = sizeof(from);
	int s = bound(family, SOCK_DGRAM, &a, &la), c = bound(family, SOCK_DGRAM, &b, &lb);
	char is[8] = "";

	NEED(sendto(c, "one", 3, 0, (void *)&a, la) == 3 && sendto(c, "three", 5, 0, (void *)&a, la) == 5);
	stand();
	IS(recvfrom(s, is, sizeof(is), MSG_DONTWAIT, (void *)&from, &l) == 3 && same(is, "one"));
	IS(l == lb && !memcmp(&from, &b, lb));
	IS(recv(s, is, sizeof(is), MSG_DONTWAIT) == 5 && same(is, "three"));
}

static void udp_queued(void)
{
	udp_queue(AF_INET);
}

static void udp_queued_six(void)
{
	udp_queue(AF_INET6);
}

static void udp_corked(void)
{
	struct sockaddr_in6 a;
	socklen_t la;
	int s = bound(AF_INET, SOCK_DGRAM, &a, &la), c = socket(AF_INET, SOCK_DGRAM, 0);
	char is[8] = "";

	NEED(!connect(c, (void *)&a, la) && send(c, "half", 4, MSG_MORE) == 4);
	stand();
	IS(send(c, "s", 1, 0) == 1 && recv(s, is, sizeof(is), MSG_DONTWAIT) == 5 && same(is, "halfs"));
}

static void multicast(void)
{
	struct sockaddr_in6 a;
	socklen_t la;
	struct ip_mreqn m = { .imr_multiaddr = { htonl(0xefffff01) }, .imr_address = { htonl(INADDR_LOOPBACK) } };
	int s = bound(AF_INET, SOCK_DGRAM, &a, &la);

	NEED(!setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof(m)));
	stand();
	IS(!setsockopt(s, IPPROTO_IP, IP_DROP_MEMBERSHIP, &m, sizeof(m)));
}

static void multicast_six(void)
{
	struct sockaddr_in6 a;
	socklen_t la;
	struct ipv6_mreq m = { .ipv6mr_interface = if_nametoindex("lo"),
			       .ipv6mr_multiaddr.s6_addr = { 0xff, 2, [14] = 0x12, [15] = 0x34 } };
	int s = bound(AF_INET6, SOCK_DGRAM, &a, &la);

	NEED(!setsockopt(s, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m, sizeof(m)));
	stand();
	IS(!setsockopt(s, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &m, sizeof(m)));
}

static void raw(void)
{
	int s = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), is = 0;
	socklen_t l = sizeof(is);

	NEED(s >= 0);
	stand();
	IS(!getsockopt(s, SOL_SOCKET, SO_TYPE, &is, &l) && is == SOCK_RAW);
}

static void packets(void)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(3), .sll_ifindex = 1 }, is = { 0 };
	int s = socket(AF_PACKET, SOCK_DGRAM, 0);
	socklen_t l = sizeof(is);

	NEED(s >= 0 && !bind(s, (void *)&at, sizeof(at)));
	stand();
	IS(!getsockname(s, (void *)&is, &l) && is.sll_ifindex == 1);
}

static void route_watch(void)
{
	struct sockaddr_nl at = { .nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK }, is = { 0 };
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	socklen_t l = sizeof(is);

	NEED(s >= 0 && !bind(s, (void *)&at, sizeof(at)));
	stand();
	IS(!getsockname(s, (void *)&is, &l) && is.nl_groups == RTMGRP_LINK);
}

static void route_queued(void)
{
	struct { struct nlmsghdr h; struct rtgenmsg g; } q = {
		{ .nlmsg_len = sizeof(q), .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP, .nlmsg_seq = 7 },
		{ AF_UNSPEC } };
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	char is[16384];

	NEED(s >= 0 && send(s, &q, sizeof(q), 0) == sizeof(q));
	stand();
	IS(recv(s, is, sizeof(is), MSG_DONTWAIT) > 0 && ((struct nlmsghdr *)is)->nlmsg_seq == 7);
}

static void cipher(void)
{
	struct sockaddr_alg at = { .salg_family = AF_ALG, .salg_type = "hash", .salg_name = "sha256" };
	int s = socket(AF_ALG, SOCK_SEQPACKET, 0);

	NEED(s >= 0 && !bind(s, (void *)&at, sizeof(at)));
	stand();
	IS(accept(s, NULL, NULL) >= 0);
}

static void virtual(void)
{
	struct sockaddr_vm at = { .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = VMADDR_PORT_ANY };
	int s = socket(AF_VSOCK, SOCK_STREAM, 0);

	NEED(s >= 0 && !bind(s, (void *)&at, sizeof(at)));
	stand();
	IS(!listen(s, 1));
}

struct option {
	int level, name, value;
};

static void set_options(int s, const struct option *o, int n)
{
	for (int i = 0; i < n; i++)
		NEED(!setsockopt(s, o[i].level, o[i].name, &o[i].value, sizeof(int)));
}

static bool has_options(int s, const struct option *o, int n)
{
	for (int i = 0; i < n; i++) {
		socklen_t len = sizeof(int);
		int is = -1;

		if (getsockopt(s, o[i].level, o[i].name, &is, &len) || is != o[i].value)
			return false;
	}
	return true;
}

static void tcp_options(void)
{
	static const struct option o[] = {
		{ IPPROTO_TCP, TCP_USER_TIMEOUT, 4321 }, { IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096 },
		{ IPPROTO_TCP, TCP_LINGER2, 5 }, { IPPROTO_IP, IP_TOS, 0x10 }, { SOL_SOCKET, SO_RCVLOWAT, 3 },
	};
	char name[16] = "", is[16] = "";
	socklen_t len = sizeof(name);
	struct sockaddr_in6 a;
	socklen_t la;
	int s = bound(AF_INET, SOCK_STREAM, &a, &la), c = socket(AF_INET, SOCK_STREAM, 0);

	NEED(!listen(s, 1) && !connect(c, (void *)&a, la) && (s = accept(s, NULL, NULL)) >= 0);
	set_options(c, o, 5);
	NEED(!getsockopt(c, IPPROTO_TCP, TCP_CONGESTION, name, &len));
	strcpy(name, strcmp(name, "reno") ? "reno" : "cubic");
	NEED(!setsockopt(c, IPPROTO_TCP, TCP_CONGESTION, name, strlen(name)));
	stand();
	IS(has_options(c, o, 5));
	len = sizeof(is);
	IS(!getsockopt(c, IPPROTO_TCP, TCP_CONGESTION, is, &len) && !strcmp(is, name));
}

static void udp_options(void)
{
	static const struct option o[] = {
		{ IPPROTO_IP, IP_MULTICAST_TTL, 9 }, { IPPROTO_IP, IP_MULTICAST_LOOP, 0 }, { IPPROTO_IP, IP_RECVERR, 1 },
		{ IPPROTO_IP, IP_TTL, 33 }, { SOL_SOCKET, SO_TIMESTAMP, 1 }, { SOL_SOCKET, SO_RXQ_OVFL, 1 },
		{ IPPROTO_UDP, 103 /* UDP_SEGMENT */, 100 },
	};
	struct sockaddr_in6 a;
	socklen_t la;
	int s = bound(AF_INET, SOCK_DGRAM, &a, &la);

	set_options(s, o, 7);
	stand();
	IS(has_options(s, o, 7));
}

static void netlink_options(void)
{
	static const struct option o = { SOL_NETLINK, NETLINK_EXT_ACK, 1 };
	struct sockaddr_nl a = { .nl_family = AF_NETLINK };
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	NEED(s >= 0 && !bind(s, (void *)&a, sizeof(a)));
	set_options(s, &o, 1);
	stand();
	IS(has_options(s, &o, 1));
}

static void peek_offset(void)
{
	int s[2], off = 2;
	char is;

	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, s) && write(s[1], "abc", 3) == 3);
	NEED(!setsockopt(s[0], SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off)));
	stand();
	IS(recv(s[0], &is, 1, MSG_PEEK) == 1 && is == 'c');
}

static const struct kind kinds[] = {
	{ "unix-stream", unix_stream, false }, { "unix-datagrams-queued", unix_datagrams, false },
	{ "unix-packets-queued", unix_packets, false }, { "unix-listening", unix_listening, false },
	{ "unix-abstract", unix_abstract, false }, { "unix-accepted", unix_accepted, false },
	{ "unix-not-yet-accepted", unix_pending, true }, { "unix-half-closed", unix_half, false },
	{ "unix-named-queue", unix_queue_named, false }, { "unix-descriptor-queued", unix_descriptor, false },
	{ "socket-options", socket_options, false }, { "socket-buffers", socket_buffers, false },
	{ "tcp-listening", tcp_listening, false }, { "tcp-connected", tcp_connected, false },
	{ "tcp6-connected", tcp_six, false }, { "tcp-half-closed", tcp_half, false },
	{ "tcp-not-yet-accepted", tcp_pending, true }, { "tcp-bound", tcp_bound, false },
	{ "udp-bound", udp_bound, false }, { "udp-connected", udp_connected, false },
	{ "udp-queued", udp_queued, true }, { "udp6-queued", udp_queued_six, true }, { "udp-corked", udp_corked, true },
	{ "multicast", multicast, true }, { "multicast6", multicast_six, true },
	{ "icmp-raw", raw, false }, { "packet", packets, false },
	{ "netlink-route", route_watch, false }, { "netlink-queued", route_queued, true },
	{ "tcp-options", tcp_options, false },
	{ "udp-options", udp_options, false }, { "netlink-options", netlink_options, false },
	{ "unix-peek-offset", peek_offset, false }, { "crypto-socket", cipher, true }, { "vsock", virtual, true }, { 0 }
};

const struct family sockets_family = { "sockets", kinds };
