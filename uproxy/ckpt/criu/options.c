// SPDX-License-Identifier: Apache-2.0
/*
 * options.c - options of sockets that CRIU does not save
 *
 * Each is a line of the image "attributes", if it is not what a new socket of its kind has:
 *
 *   socket PID FD LEVEL NAME VALUE       VALUE: a number, or the name of TCP_CONGESTION
 *
 * A socket that several descriptors share is written once. Older images have it for each: it is set to the same again.
 *
 * The job stands still meanwhile. So a save looks at each socket once, and at a new socket of each kind once. A new socket's
 * options are settings of its network namespace. So it is made in the namespace of the tree's root, which is the only one of
 * the tree (tree.c).
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu_i.h"

#define TO_INET		1	/* IPv4 and IPv6 */
#define TO_SIX		2
#define TO_TCP		4
#define TO_UDP		8
#define TO_NETLINK	16
#define TO_UNIX		32
#define TO_GROUPS	64	/* no stream: it can send to groups */
#define TO_GROUPS_SIX	128
#define TO_ALL		(TO_INET | TO_NETLINK)

#ifndef SOL_UDP
#define SOL_UDP 17
#endif

/* Numbers, where older headers lack the name. */
static const struct option {
	int to, level, name;
} options[] = {
	{ TO_ALL, SOL_SOCKET, SO_DONTROUTE }, { TO_ALL, SOL_SOCKET, SO_OOBINLINE },
	{ TO_ALL | TO_UNIX, SOL_SOCKET, SO_RCVLOWAT }, { TO_ALL | TO_UNIX, SOL_SOCKET, SO_TIMESTAMP },
	{ TO_ALL | TO_UNIX, SOL_SOCKET, SO_TIMESTAMPNS }, { TO_INET, SOL_SOCKET, SO_TIMESTAMPING },
	{ TO_ALL, SOL_SOCKET, SO_RXQ_OVFL }, { TO_INET | TO_UNIX, SOL_SOCKET, SO_PEEK_OFF },
	{ TO_ALL, SOL_SOCKET, SO_SELECT_ERR_QUEUE }, { TO_INET, SOL_SOCKET, SO_BUSY_POLL },
	{ TO_INET, SOL_SOCKET, SO_ZEROCOPY }, { TO_INET, SOL_SOCKET, 74 /* SO_TXREHASH */ },
	{ TO_UNIX, SOL_SOCKET, 76 /* SO_PASSPIDFD */ },
	{ TO_INET, IPPROTO_IP, IP_TOS }, { TO_INET, IPPROTO_IP, IP_TTL }, { TO_INET, IPPROTO_IP, IP_PKTINFO },
	{ TO_INET, IPPROTO_IP, IP_MTU_DISCOVER }, { TO_INET, IPPROTO_IP, IP_RECVERR },
	{ TO_INET, IPPROTO_IP, IP_RECVTTL }, { TO_INET, IPPROTO_IP, IP_RECVTOS }, { TO_INET, IPPROTO_IP, IP_FREEBIND },
	{ TO_INET, IPPROTO_IP, IP_MINTTL }, { TO_INET, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT },
	{ TO_GROUPS, IPPROTO_IP, IP_MULTICAST_IF }, { TO_GROUPS, IPPROTO_IP, IP_MULTICAST_TTL },
	{ TO_GROUPS, IPPROTO_IP, IP_MULTICAST_LOOP }, { TO_GROUPS, IPPROTO_IP, IP_MULTICAST_ALL },
	{ TO_INET, IPPROTO_IP, IP_UNICAST_IF },
	{ TO_SIX, IPPROTO_IPV6, IPV6_UNICAST_HOPS }, { TO_GROUPS_SIX, IPPROTO_IPV6, IPV6_MULTICAST_IF },
	{ TO_GROUPS_SIX, IPPROTO_IPV6, IPV6_MULTICAST_HOPS }, { TO_GROUPS_SIX, IPPROTO_IPV6, IPV6_MULTICAST_LOOP },
	{ TO_GROUPS_SIX, IPPROTO_IPV6, IPV6_MULTICAST_ALL }, { TO_SIX, IPPROTO_IPV6, IPV6_MTU_DISCOVER },
	{ TO_SIX, IPPROTO_IPV6, IPV6_RECVERR }, { TO_SIX, IPPROTO_IPV6, IPV6_RECVPKTINFO },
	{ TO_SIX, IPPROTO_IPV6, IPV6_RECVHOPLIMIT }, { TO_SIX, IPPROTO_IPV6, IPV6_RECVTCLASS },
	{ TO_SIX, IPPROTO_IPV6, IPV6_TCLASS }, { TO_SIX, IPPROTO_IPV6, IPV6_DONTFRAG },
	{ TO_TCP, IPPROTO_TCP, TCP_NODELAY }, { TO_TCP, IPPROTO_TCP, TCP_KEEPIDLE },
	{ TO_TCP, IPPROTO_TCP, TCP_KEEPINTVL }, { TO_TCP, IPPROTO_TCP, TCP_KEEPCNT },
	{ TO_TCP, IPPROTO_TCP, TCP_SYNCNT }, { TO_TCP, IPPROTO_TCP, TCP_LINGER2 },
	{ TO_TCP, IPPROTO_TCP, TCP_DEFER_ACCEPT }, { TO_TCP, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS },
	{ TO_TCP, IPPROTO_TCP, TCP_USER_TIMEOUT }, { TO_TCP, IPPROTO_TCP, TCP_NOTSENT_LOWAT },
	{ TO_TCP, IPPROTO_TCP, TCP_SAVE_SYN }, { TO_TCP, IPPROTO_TCP, TCP_FASTOPEN_CONNECT },
	{ TO_TCP, IPPROTO_TCP, TCP_INQ }, { TO_TCP, IPPROTO_TCP, TCP_CONGESTION },
	{ TO_UDP, SOL_UDP, 101 /* UDP_NO_CHECK6_TX */ }, { TO_UDP, SOL_UDP, 102 /* UDP_NO_CHECK6_RX */ },
	{ TO_UDP, SOL_UDP, 103 /* UDP_SEGMENT */ }, { TO_UDP, SOL_UDP, 104 /* UDP_GRO */ },
	{ TO_NETLINK, SOL_NETLINK, NETLINK_PKTINFO }, { TO_NETLINK, SOL_NETLINK, NETLINK_BROADCAST_ERROR },
	{ TO_NETLINK, SOL_NETLINK, NETLINK_NO_ENOBUFS }, { TO_NETLINK, SOL_NETLINK, NETLINK_CAP_ACK },
	{ TO_NETLINK, SOL_NETLINK, NETLINK_EXT_ACK }, { TO_NETLINK, SOL_NETLINK, NETLINK_GET_STRICT_CHK },
};

#define OPTIONS ((int)(sizeof(options) / sizeof(options[0])))
#define VALUE	16		/* a number, or the kernel's longest name, with a NUL */
#define KINDS	16		/* whose new sockets are remembered */

struct kind {
	int domain, type, protocol;
	char usual[OPTIONS][VALUE];	/* "": it has no such option */
};

struct criu_sockets {
	pid_t root;
	struct kind kind[KINDS];
	unsigned int kinds;	/* that were read; the oldest ones make room */
	void *seen;		/* tree of the sockets' inodes */
};

/* "cubic", or a number. False: the socket has no such option. */
static bool read_option(int s, const struct option *o, char value[VALUE])
{
	socklen_t len = VALUE - 1;
	int n = 0;

	if (o->level == IPPROTO_TCP && o->name == TCP_CONGESTION) {
		memset(value, 0, VALUE);
		return !getsockopt(s, o->level, o->name, value, &len) && *value;
	}
	len = sizeof(n);
	if (getsockopt(s, o->level, o->name, &n, &len) || len != sizeof(n))
		return false;
	snprintf(value, VALUE, "%d", n);
	return true;
}

static int kinds_of(int domain, int type, int protocol)
{
	bool six = domain == AF_INET6, stream = type == SOCK_STREAM;

	if (domain == AF_UNIX)
		return TO_UNIX;
	if (domain == AF_NETLINK)
		return TO_NETLINK;
	if (domain != AF_INET && !six)
		return 0;
	return TO_INET | (six ? TO_SIX : 0) | (stream ? 0 : TO_GROUPS | (six ? TO_GROUPS_SIX : 0)) |
	       (stream && protocol == IPPROTO_TCP ? TO_TCP : 0) | (protocol == IPPROTO_UDP ? TO_UDP : 0);
}

static int number_of(int s, int name)
{
	socklen_t len = sizeof(int);
	int n = -1;

	return getsockopt(s, SOL_SOCKET, name, &n, &len) ? -1 : n;
}

static ino_t network_of(const char *path)
{
	struct stat st;

	return stat(path, &st) ? 0 : st.st_ino;
}

struct make {
	char network[32];
	const struct kind *kind;
	int socket;
};

/* A thread enters the network namespace, and does not leave it. */
static void *make_socket(void *arg)
{
	struct make *m = arg;
	int network = open(m->network, O_RDONLY | O_CLOEXEC);

	if (network >= 0 && !setns(network, CLONE_NEWNET))
		m->socket = socket(m->kind->domain, m->kind->type | SOCK_CLOEXEC, m->kind->protocol);
	if (network >= 0)
		close(network);
	return NULL;
}

/* -1: there can be none. */
static int new_socket(pid_t root, const struct kind *k)
{
	struct make m = { .kind = k, .socket = -1 };
	pthread_t t;

	snprintf(m.network, sizeof(m.network), "/proc/%d/ns/net", root);
	if (network_of(m.network) == network_of("/proc/self/ns/net"))
		return socket(k->domain, k->type | SOCK_CLOEXEC, k->protocol);
	if (!pthread_create(&t, NULL, make_socket, &m))
		pthread_join(t, NULL);
	return m.socket;
}

/* What a new socket of the kind has. NULL: there can be none. */
static const struct kind *kind_of(struct criu_sockets *all, const struct kind *want)
{
	struct kind *k = all->kind;
	int s;

	for (; k < all->kind + KINDS && k->domain; k++)
		if (k->domain == want->domain && k->type == want->type && k->protocol == want->protocol)
			return k;
	s = new_socket(all->root, want);
	if (s < 0)
		return NULL;
	k = &all->kind[all->kinds++ % KINDS];
	*k = *want;
	for (int i = 0; i < OPTIONS; i++)
		if (!(options[i].to & kinds_of(k->domain, k->type, k->protocol)) || !read_option(s, &options[i], k->usual[i]))
			*k->usual[i] = 0;
	close(s);
	return k;
}

static void put_socket(struct criu_sockets *all, FILE *out, int inner, int fd, int s)
{
	struct kind want = { number_of(s, SO_DOMAIN), number_of(s, SO_TYPE), number_of(s, SO_PROTOCOL), { "" } };
	const struct kind *k = kinds_of(want.domain, want.type, want.protocol) ? kind_of(all, &want) : NULL;
	char is[VALUE];

	for (int i = 0; k && i < OPTIONS; i++)
		if (*k->usual[i] && read_option(s, &options[i], is) && strcmp(is, k->usual[i]))
			fprintf(out, "socket %d %d %d %d %s\n", inner, fd, options[i].level, options[i].name, is);
}

static int compare_inodes(const void *a, const void *b)
{
	return (a > b) - (a < b);
}

/* The inode of a socket; NULL: it is none, or was looked at. */
static const void *unseen(const struct criu_sockets *all, DIR *d, const char *fd)
{
	char what[40] = "";
	const void *inode;
	unsigned long n;

	if (readlinkat(dirfd(d), fd, what, sizeof(what) - 1) < 0 || sscanf(what, "socket:[%lu]", &n) != 1)
		return NULL;
	inode = (const void *)n;
	return tfind(inode, &all->seen, compare_inodes) ? NULL : inode;
}

void criu_options_put(struct criu_sockets *all, FILE *out, pid_t pid, int inner)
{
	const void *inode;
	char path[32];
	struct dirent *e;
	DIR *d;
	int s;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		inode = *e->d_name == '.' ? NULL : unseen(all, d, e->d_name);
		s = inode ? criu_copy_fd(pid, atoi(e->d_name)) : -1;
		if (s < 0)
			continue;
		put_socket(all, out, inner, atoi(e->d_name), s);
		/* Without memory it is looked at again. */
		tsearch(inode, &all->seen, compare_inodes);
		close(s);
	}
	if (d)
		closedir(d);
}

struct criu_sockets *criu_options_begin(pid_t root)
{
	struct criu_sockets *all = calloc(1, sizeof(*all));

	if (all)
		all->root = root;
	return all;
}

static void keep(__attribute__((unused)) void *inode)
{
}

void criu_options_end(struct criu_sockets *all)
{
	if (all)
		tdestroy(all->seen, keep);
	free(all);
}

static const struct option *option_of(int level, int name)
{
	for (int i = 0; i < OPTIONS; i++)
		if (options[i].level == level && options[i].name == name)
			return &options[i];
	return NULL;
}

static bool set_option(int s, const struct option *o, const char *value)
{
	int n = atoi(value);

	if (o->level == IPPROTO_TCP && o->name == TCP_CONGESTION)
		return !setsockopt(s, o->level, o->name, value, strlen(value));
	return !setsockopt(s, o->level, o->name, &n, sizeof(n));
}

bool criu_options_set(pid_t pid, int fd, int level, int name, const char *value)
{
	const struct option *o = option_of(level, name);
	int s = o ? criu_copy_fd(pid, fd) : -1;
	char is[VALUE];
	bool set;

	set = s >= 0 && read_option(s, o, is) && (!strcmp(is, value) || set_option(s, o, value));
	if (s >= 0)
		close(s);
	return set;
}
