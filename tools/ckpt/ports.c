// SPDX-License-Identifier: Apache-2.0
/*
 * ports.c - records a job's TCP ports and connections; checks at a restore that they fit this host
 *
 * CRIU binds them all again, and fails late if another process listens on a port, or if an address is
 * not one of this host. The job's own socket, known by its inode, is no obstacle: `migrate` checks
 * while the job still runs.
 *
 * A connection has two ends. One whose other end is outside of the job is refused at a checkpoint,
 * since that end is not saved: unless the job is the server of it, whose clients come again.
 *
 * The kernel keeps the connections of a killed job for a minute (TIME_WAIT), and they occupy the
 * port unless the job had set SO_REUSEADDR. So a restore waits for them.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ckpt_i.h"

/* A line of /proc/net/tcp or tcp6. IPv4's addresses are dotted in both. */
struct line {
	unsigned int state;	/* TCP_ESTABLISHED and so on */
	struct ckpt_port local, remote;	/* local: with the inode, 0: no process has it */
};

static bool parse_end(const char *hex, unsigned int port, bool six, struct ckpt_port *p)
{
	uint32_t word[4] = { 0 };
	const void *address = word;

	for (int i = 0; i < (six ? 4 : 1); i++) {
		char part[9] = "";

		memcpy(part, hex + 8 * i, 8);
		word[i] = strtoul(part, NULL, 16);	/* in the host's byte order */
	}
	if (six && IN6_IS_ADDR_V4MAPPED((struct in6_addr *)word)) {
		six = false;
		address = &word[3];
	}
	p->port = port;
	return inet_ntop(six ? AF_INET6 : AF_INET, address, p->address, sizeof(p->address));
}

static bool parse_socket(const char *text, bool six, struct line *l)
{
	unsigned int port, remote;
	char from[40] = "", to[40] = "";

	memset(l, 0, sizeof(*l));
	return sscanf(text, " %*d: %36[0-9A-F]:%x %36[0-9A-F]:%x %x %*x:%*x %*x:%*x %*x %*u %*d %lu", from,
		      &port, to, &remote, &l->state, &l->local.inode) == 6 &&
	       parse_end(from, port, six, &l->local) && parse_end(to, remote, six, &l->remote);
}

/* Calls each for the sockets in pid's network until it returns other than 0. */
static int each_socket(pid_t pid, int (*each)(void *arg, const struct line *l), void *arg)
{
	static const char *const names[] = { "tcp", "tcp6" };
	int rc = 0;

	for (int six = 0; six < 2 && !rc; six++) {
		char path[40], text[512];
		struct line l;
		FILE *in;

		snprintf(path, sizeof(path), "/proc/%d/net/%s", pid, names[six]);
		in = fopen(path, "re");
		while (in && !rc && fgets(text, sizeof(text), in))
			if (parse_socket(text, six, &l))
				rc = each(arg, &l);
		if (in)
			fclose(in);
	}
	return rc;
}

static bool is_loopback(const char *address)
{
	return !strncmp(address, "127.", 4) || !strcmp(address, "::1");
}

static bool is_any(const char *address)
{
	return !strcmp(address, "0.0.0.0") || !strcmp(address, "::");
}

/* "10.0.0.1:80", "[fd00::1]:80" */
static const char *show(const struct ckpt_port *p, char text[64])
{
	snprintf(text, 64, strchr(p->address, ':') ? "[%s]:%d" : "%s:%d", p->address, p->port);
	return text;
}

/* The inode of the socket to which an entry of /proc/PID/fd leads, or 0. */
static unsigned long socket_of(DIR *d, const char *name)
{
	unsigned long inode = 0;
	char what[64];
	ssize_t n = readlinkat(dirfd(d), name, what, sizeof(what) - 1);

	what[n < 0 ? 0 : n] = 0;
	return sscanf(what, "socket:[%lu]", &inode) == 1 ? inode : 0;
}

static DIR *open_fds(pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	return opendir(path);
}

static bool has_socket(pid_t pid, unsigned long inode)
{
	struct dirent *e;
	bool found = false;
	DIR *d = open_fds(pid);

	while (d && !found && (e = readdir(d)))
		found = socket_of(d, e->d_name) == inode;
	if (d)
		closedir(d);
	return found;
}

static void process_name(pid_t pid, char name[32])
{
	char path[32];
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	in = fopen(path, "re");
	if (!in || fscanf(in, "%31[^\n]", name) != 1)
		strcpy(name, "?");
	if (in)
		fclose(in);
}

/* --------------------------------------------------------------------------- collecting */

struct owned {
	unsigned long inode;
	pid_t pid;
};

struct table {
	struct owned *own;	/* the sockets of the job's processes, by inode */
	size_t owns;
	struct line *line;	/* of the network */
	size_t lines;
};

static int by_inode(const void *a, const void *b)
{
	const struct owned *x = a, *y = b;

	return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static pid_t owner(const struct table *t, unsigned long inode)
{
	struct owned key = { .inode = inode }, *found;

	found = inode && t->owns ? bsearch(&key, t->own, t->owns, sizeof(key), by_inode) : NULL;
	return found ? found->pid : 0;
}

/* The list of n elements with room for one more, or NULL. It grows at powers of two. */
static void *room(void *list, size_t n, size_t size)
{
	return n & (n - 1) ? list : realloc(list, (n ? 2 * n : 1) * size);
}

static int add_line(void *arg, const struct line *l)
{
	struct table *t = arg;
	struct line *more = room(t->line, t->lines, sizeof(*l));

	if (!more)
		return -ENOMEM;
	t->line = more;
	more[t->lines++] = *l;
	return 0;
}

static int add_owned(struct table *t, pid_t pid)
{
	DIR *d = open_fds(pid);
	struct dirent *e;
	int err = 0;

	while (d && !err && (e = readdir(d))) {
		unsigned long inode = socket_of(d, e->d_name);
		struct owned *more;

		if (!inode)
			continue;
		more = room(t->own, t->owns, sizeof(*more));
		err = more ? 0 : -ENOMEM;
		if (err)
			continue;
		t->own = more;
		more[t->owns++] = (struct owned){ inode, pid };
	}
	if (d)
		closedir(d);
	return err;
}

static int read_table(struct table *t, const pid_t *pids, int n)
{
	int err = 0;

	for (int i = 0; i < n && !err; i++)
		err = add_owned(t, pids[i]);
	if (t->owns)
		qsort(t->own, t->owns, sizeof(*t->own), by_inode);
	return err ?: each_socket(pids[0], add_line, t);
}

static bool same_end(const struct ckpt_port *a, const struct ckpt_port *b)
{
	return a->port == b->port && !strcmp(a->address, b->address);
}

/* The job listens where this end is: it is the server. */
static bool is_server(const struct ckpt_facts *f, const struct line *l)
{
	for (int i = 0; i < f->ports; i++)
		if (f->port[i].port == l->local.port &&
		    (is_any(f->port[i].address) || !strcmp(f->port[i].address, l->local.address)))
			return true;
	return false;
}

/*
 * The other end of a connection is a process outside of the job, or on another host. An end that no
 * process has is one that has been closed, or one that its server has not accepted yet.
 */
static bool is_outside(const struct table *t, const struct line *l)
{
	if (l->state != TCP_ESTABLISHED && l->state != TCP_SYN_SENT && l->state != TCP_FIN_WAIT1 &&
	    l->state != TCP_FIN_WAIT2)
		return false;	/* the other end has sent its last byte */
	for (size_t i = 0; i < t->lines; i++) {
		const struct line *o = &t->line[i];

		/* A socket that listens has no other end. */
		if (!same_end(&o->local, &l->remote) || !same_end(&o->remote, &l->local))
			continue;
		return o->local.inode && !owner(t, o->local.inode);
	}
	return !is_loopback(l->remote.address);
}

static int collect_ports(const struct table *t, struct ckpt_facts *f)
{
	int err = 0;

	for (size_t i = 0; i < t->lines && !err; i++)
		if (t->line[i].state == TCP_LISTEN && owner(t, t->line[i].local.inode))
			err = facts_add_port(f, &t->line[i].local);
	return err;
}

static int collect_connections(const struct table *t, const struct rundir_job *job, bool outside,
			       struct ckpt_facts *f, struct why *why)
{
	char from[64], to[64], name[32];
	int err = 0;

	for (size_t i = 0; i < t->lines && !err; i++) {
		const struct line *l = &t->line[i];
		pid_t pid = owner(t, l->local.inode);
		struct ckpt_connection c = { .from = l->local, .to = l->remote };

		if (!pid || l->state == TCP_LISTEN || l->state == TCP_CLOSE)
			continue;
		c.rank = ckpt_rank_of(job, pid);
		err = facts_add_connection(f, &c);
		if (err || outside || !is_outside(t, l) || is_server(f, l))
			continue;
		process_name(pid, name);
		err = why_set(why, -ENOTSUP, "process %d (%s) of rank %d is connected from %s to %s, which is "
			      "outside of the job and would not be saved: close that connection, or save with "
			      "--outside and have it broken after a restore", pid, name, c.rank,
			      show(&c.from, from), show(&c.to, to));
	}
	return err;
}

static bool same_network(pid_t pid)
{
	char path[40], theirs[64] = "", ours[64] = "";

	snprintf(path, sizeof(path), "/proc/%d/ns/net", pid);
	return readlink(path, theirs, sizeof(theirs) - 1) > 0 &&
	       readlink("/proc/self/ns/net", ours, sizeof(ours) - 1) > 0 && !strcmp(theirs, ours);
}

int ckpt_ports(const struct rundir_job *job, const pid_t *pids, int n, bool outside, struct ckpt_facts *f,
	       struct why *why)
{
	struct table t = { 0 };
	int err;

	/* A network namespace of its own is restored new, where all ports are free. */
	if (n < 1 || !same_network(pids[0]))
		return 0;
	err = read_table(&t, pids, n) ?: collect_ports(&t, f) ?: collect_connections(&t, job, outside, f, why);
	free(t.own);
	free(t.line);
	return err && !why->err ? why_set(why, err, "the job's TCP sockets: %s", strerror(-err)) : err;
}

/* ----------------------------------------------------------------------------- checking */

static void name_owner(unsigned long inode, char *text, size_t size)
{
	DIR *d = opendir("/proc");
	struct dirent *e;
	char name[32];

	snprintf(text, size, "another process");
	while (d && (e = readdir(d))) {
		if (!isdigit(*e->d_name) || !has_socket(atoi(e->d_name), inode))
			continue;
		process_name(atoi(e->d_name), name);
		snprintf(text, size, "process %d (%s)", atoi(e->d_name), name);
		break;
	}
	if (d)
		closedir(d);
}

static bool collide(const struct ckpt_port *was, const struct ckpt_port *is)
{
	bool six = strchr(was->address, ':');

	/* /proc does not show whether "::" occupies IPv4's port, too; CRIU finds out. */
	if (was->port != is->port || was->inode == is->inode || six != !!strchr(is->address, ':'))
		return false;
	return is_any(was->address) || is_any(is->address) || !strcmp(was->address, is->address);
}

/* Binds an address, to a port or to none in particular, as CRIU will: 0, or the errno. */
static int try_bind(const char *address, int port)
{
	bool six = strchr(address, ':');
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, err = 0;

	if (fd < 0)
		return errno;
	inet_pton(six ? AF_INET6 : AF_INET, address, six ? (void *)&a6.sin6_addr : (void *)&a4.sin_addr);
	if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
	    !(six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one))) &&
	    bind(fd, six ? (void *)&a6 : (void *)&a4, six ? sizeof(a6) : sizeof(a4)))
		err = errno;
	close(fd);
	return err;
}

static bool is_here(const char *address)
{
	int err = try_bind(address, 0);

	/* A host may have no IPv6 at all. */
	return err != EAFNOSUPPORT && (err != EADDRNOTAVAIL || is_loopback(address) || is_any(address));
}

struct check {
	const struct ckpt_facts *f;
	tell_line *tell;
	int found;
	struct why first;
};

/* Something that does not fit. Of several all are told, and the first one is the reason. */
static void misfit(struct check *c, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void misfit(struct check *c, int err, const char *fmt, ...)
{
	struct why it = { 0 };
	va_list ap;

	va_start(ap, fmt);
	why_vset(&it, err, fmt, ap);
	va_end(ap);
	if (!c->found++) {
		c->first = it;
		return;
	}
	if (c->found == 2)
		c->tell("%s", c->first.text);
	c->tell("%s", it.text);
}

static int check_port(void *arg, const struct line *is)
{
	struct check *c = arg;
	char owner[80];

	for (int i = 0; is->state == TCP_LISTEN && i < c->f->ports; i++) {
		const struct ckpt_port *was = &c->f->port[i];

		if (!collide(was, &is->local))
			continue;
		name_owner(is->local.inode, owner, sizeof(owner));
		misfit(c, -EADDRINUSE, "TCP port %d of the job (%s) is in use by %s: end that, or wait until it "
		       "has ended", was->port, was->address, owner);
	}
	return 0;
}

#define ELSEWHERE "which is no address of this host: restore it on a host that has it, or give it to this one " \
		  "(`ip address add %s dev lo`)"

static void check_addresses(struct check *c)
{
	const struct ckpt_facts *f = c->f;
	char from[64], to[64];

	for (int i = 0; i < f->ports; i++)
		if (!is_here(f->port[i].address))
			misfit(c, -EADDRNOTAVAIL, "the job listens on %s, " ELSEWHERE, show(&f->port[i], from),
			       f->port[i].address);
	for (int i = 0; i < f->connections; i++) {
		const struct ckpt_connection *n = &f->connection[i];

		if (!is_here(n->from.address))
			misfit(c, -EADDRNOTAVAIL, "rank %d has a connection to %s from %s, " ELSEWHERE, n->rank,
			       show(&n->to, to), show(&n->from, from), n->from.address);
	}
}

int ckpt_ports_check(const struct ckpt_facts *f, tell_line *tell, struct why *why)
{
	struct check c = { .f = f, .tell = tell };

	if (f->ports)	/* else the tables of the host, which may be long, are read for nothing */
		each_socket(getpid(), check_port, &c);
	check_addresses(&c);
	if (!c.found)
		return 0;
	return why_set(why, c.first.err, c.found > 1 ? "%.1000s; and %d more of its TCP sockets, as said above" :
		       "%s", c.first.text, c.found - 1);
}

/* -------------------------------------------------------------------------------- waiting */

/* A socket that does not listen has this port. */
static int has_port(void *arg, const struct line *l)
{
	return l->state != TCP_LISTEN && l->local.port == *(const int *)arg;
}

int ckpt_ports_passing(const struct ckpt_facts *f)
{
	for (int i = 0; i < f->ports; i++) {
		int port = f->port[i].port;

		if (try_bind(f->port[i].address, port) == EADDRINUSE && each_socket(getpid(), has_port, &port))
			return port;
	}
	return 0;
}
