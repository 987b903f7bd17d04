// SPDX-License-Identifier: Apache-2.0
/*
 * ports.c - records the TCP ports on which a job listens; checks at a restore that they are free
 *
 * CRIU binds them again, and fails late if another process listens on one of them. The job's own
 * socket, known by its inode, is no obstacle: `migrate` checks while the job still runs.
 *
 * The kernel keeps the connections of a killed job for a minute (TIME_WAIT), and they occupy the
 * port unless the job had set SO_REUSEADDR. So a restore waits for them.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ckpt_i.h"

#define LISTENING 0x0a	/* TCP_LISTEN, as /proc/net/tcp has it */

/* A line of /proc/net/tcp or tcp6: the socket's local address; returns its state, 0: no socket. */
static unsigned int parse(const char *line, bool six, struct ckpt_port *p)
{
	unsigned int port, state;
	uint32_t word[4] = { 0 };
	char address[40];

	if (sscanf(line, " %*d: %36[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %*u %*d %lu",
		   address, &port, &state, &p->inode) != 4)
		return 0;
	for (int i = 0; i < (six ? 4 : 1); i++) {
		char part[9] = "";

		memcpy(part, address + 8 * i, 8);
		word[i] = strtoul(part, NULL, 16);	/* in the host's byte order */
	}
	p->port = port;
	return inet_ntop(six ? AF_INET6 : AF_INET, word, p->address, sizeof(p->address)) ? state : 0;
}

/* Calls each for sockets in pid's network that listen, or do not, until it returns other than 0. */
static int each_socket(pid_t pid, bool listening, int (*each)(void *arg, const struct ckpt_port *p),
		       void *arg)
{
	static const char *const names[] = { "tcp", "tcp6" };
	int rc = 0;

	for (int six = 0; six < 2 && !rc; six++) {
		struct ckpt_port p = { .port = -1 };
		char path[40], line[512];
		FILE *in;

		snprintf(path, sizeof(path), "/proc/%d/net/%s", pid, names[six]);
		in = fopen(path, "re");
		while (in && !rc && fgets(line, sizeof(line), in))
			if ((parse(line, six, &p) == LISTENING) == listening)
				rc = each(arg, &p);
		if (in)
			fclose(in);
	}
	return rc;
}

static bool has_socket(pid_t pid, unsigned long inode)
{
	char path[32], what[64], want[64];
	struct dirent *e;
	bool found = false;
	ssize_t n;
	DIR *d;

	snprintf(want, sizeof(want), "socket:[%lu]", inode);
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	d = opendir(path);
	while (d && !found && (e = readdir(d))) {
		n = readlinkat(dirfd(d), e->d_name, what, sizeof(what) - 1);
		what[n < 0 ? 0 : n] = 0;
		found = !strcmp(what, want);
	}
	if (d)
		closedir(d);
	return found;
}

/* --------------------------------------------------------------------------- collecting */

struct collect {
	const pid_t *pids;
	int n;
	struct ckpt_facts *f;
};

static int collect_one(void *arg, const struct ckpt_port *p)
{
	struct collect *c = arg;

	for (int i = 0; i < c->n; i++)
		if (has_socket(c->pids[i], p->inode))
			return facts_add_port(c->f, p);
	return 0;
}

static bool same_network(pid_t pid)
{
	char path[40], theirs[64] = "", ours[64] = "";

	snprintf(path, sizeof(path), "/proc/%d/ns/net", pid);
	return readlink(path, theirs, sizeof(theirs) - 1) > 0 &&
	       readlink("/proc/self/ns/net", ours, sizeof(ours) - 1) > 0 && !strcmp(theirs, ours);
}

int ckpt_ports(const pid_t *pids, int n, struct ckpt_facts *f, struct why *why)
{
	struct collect c = { pids, n, f };
	int err = 0;

	/* A network namespace of its own is restored new, where all ports are free. */
	if (n > 0 && same_network(pids[0]))
		err = each_socket(pids[0], true, collect_one, &c);
	return err ? why_set(why, err, "the job's TCP ports: %s", strerror(-err)) : 0;
}

/* ----------------------------------------------------------------------------- checking */

static void name_owner(unsigned long inode, char *text, size_t size)
{
	DIR *d = opendir("/proc");
	char path[300], name[32] = "";
	struct dirent *e;
	FILE *in;

	snprintf(text, size, "another process");
	while (d && (e = readdir(d))) {
		if (!isdigit(*e->d_name) || !has_socket(atoi(e->d_name), inode))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
		in = fopen(path, "re");
		if (in && fscanf(in, "%31[^\n]", name) == 1)
			snprintf(text, size, "process %d (%s)", atoi(e->d_name), name);
		if (in)
			fclose(in);
		break;
	}
	if (d)
		closedir(d);
}

static bool is_any(const char *address)
{
	return !strcmp(address, "0.0.0.0") || !strcmp(address, "::");
}

static bool collide(const struct ckpt_port *was, const struct ckpt_port *is)
{
	bool six = strchr(was->address, ':');

	/* /proc does not show whether "::" occupies IPv4's port, too; CRIU finds out. */
	if (was->port != is->port || was->inode == is->inode || six != !!strchr(is->address, ':'))
		return false;
	return is_any(was->address) || is_any(is->address) || !strcmp(was->address, is->address);
}

struct check {
	const struct ckpt_facts *f;
	struct why *why;
};

static int check_one(void *arg, const struct ckpt_port *is)
{
	struct check *c = arg;
	char owner[80];

	for (int i = 0; i < c->f->ports; i++) {
		const struct ckpt_port *was = &c->f->port[i];

		if (!collide(was, is))
			continue;
		name_owner(is->inode, owner, sizeof(owner));
		return why_set(c->why, -EADDRINUSE, "TCP port %d of the job (%s) is in use by %s: end "
			       "that, or wait until it has ended", was->port, was->address, owner);
	}
	return 0;
}

int ckpt_ports_check(const struct ckpt_facts *f, struct why *why)
{
	struct check c = { f, why };

	return f->ports ? each_socket(getpid(), true, check_one, &c) : 0;
}

/* -------------------------------------------------------------------------------- waiting */

/* Binds the port as CRIU will. */
static bool can_bind(const struct ckpt_port *p)
{
	bool six = strchr(p->address, ':');
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_port = htons(p->port) };
	struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_port = htons(p->port) };
	int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	bool can = true;

	inet_pton(six ? AF_INET6 : AF_INET, p->address,
		  six ? (void *)&a6.sin6_addr : (void *)&a4.sin_addr);
	if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
	    !(six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one))) &&
	    bind(fd, six ? (void *)&a6 : (void *)&a4, six ? sizeof(a6) : sizeof(a4)))
		can = errno != EADDRINUSE;
	if (fd >= 0)
		close(fd);
	return can;
}

static int has_port(void *arg, const struct ckpt_port *p)
{
	return p->port == *(const int *)arg;
}

int ckpt_ports_passing(const struct ckpt_facts *f)
{
	for (int i = 0; i < f->ports; i++) {
		int port = f->port[i].port;

		if (!can_bind(&f->port[i]) && each_socket(getpid(), false, has_port, &port))
			return port;
	}
	return 0;
}
