/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.h - TCP sockets of tests: at addresses of their own choice, and connections of which both ends are here
 */
#ifndef SELFTESTS_TOOLS_TCP_H
#define SELFTESTS_TOOLS_TCP_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static union address {
	struct sockaddr any;
	struct sockaddr_in a4;
	struct sockaddr_in6 a6;
} address_of(const char *text, int port)
{
	union address a = { 0 };

	if (strchr(text, ':')) {
		a.a6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port) };
		inet_pton(AF_INET6, text, &a.a6.sin6_addr);
	} else {
		a.a4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
		inet_pton(AF_INET, text, &a.a4.sin_addr);
	}
	return a;
}

/* Bound there, and connected or listening. */
static inline int tcp(const char *from, int port, const char *to, int to_port, bool reuse)
{
	union address a = address_of(from, port);
	socklen_t len = a.any.sa_family == AF_INET6 ? sizeof(a.a6) : sizeof(a.a4);
	int s = socket(a.any.sa_family, SOCK_STREAM, 0), one = 1;

	if (reuse)
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (s < 0 || bind(s, &a.any, len))
		return -1;
	if (!to)
		return listen(s, 8) ? -1 : s;
	a = address_of(to, to_port);
	return connect(s, &a.any, len) ? -1 : s;
}

static inline bool tcp_is(int s, int state)
{
	struct tcp_info i;
	socklen_t len = sizeof(i);

	return getsockopt(s, IPPROTO_TCP, TCP_INFO, &i, &len) || i.tcpi_state == state;
}

#define LIKE	8	/* the kernel's table has them in any order */

/* Connections of which both ends are here. */
static inline bool have_like(const char *from, const char *to, int port)
{
	int s = tcp(to, port, NULL, 0, true);

	for (int i = 0; i < LIKE; i++)
		if (tcp(from, 4300 + i, to, port, true) < 0 || accept(s, NULL, NULL) < 0)
			return false;
	return !close(s);
}

/* A connection to the server at this port is closed from its side first: the kernel keeps that end for a while. */
static inline bool close_first(int server, int port, int from)
{
	int end = tcp("127.0.0.1", from, "127.0.0.1", port, true), accepted = accept(server, NULL, NULL);
	char c;

	shutdown(accepted, SHUT_WR);
	return !read(end, &c, 1) && !close(end) && !close(accepted) && !close(server);
}

#endif
