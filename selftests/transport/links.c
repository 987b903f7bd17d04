// SPDX-License-Identifier: Apache-2.0
/*
 * links.c - to whom an end of the soft device's transport makes a link, and whom it lets in
 *
 * links NAME: one test alone, by its name in main().
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peer.h"
#include "world.h"

#define SILENT	64u	/* connections without a hello that an end lets be, of each kind */
#define PATIENCE_MS	30000

/* Both ends add up this many ones: there is a link both ways. */
static void both_add(uint64_t order, uint32_t self, uint64_t count, const char *what)
{
	float *send = calloc(count, sizeof(*send)), *recv = calloc(count, sizeof(*recv));
	struct transport_part p = { .rank = self, .send = send, .recv = recv };
	struct ended e = { 0 };
	struct transport_start s = { .order = order, .ranks = 2, .nparts = 1, .device = world_devices, .part = &p,
		.done = on_end, .arg = &e, .call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = count } };
	int rc;

	for (uint64_t i = 0; i < count; i++)
		send[i] = 1;
	rc = driver->start(end, &s);
	if (rc || (rc = await(&e, PATIENCE_MS)))
		world_fail("%s: device %u: %d", what, self, rc);
	for (uint64_t i = 0; i < count; i++)
		if (recv[i] != 2)
			world_fail("%s: device %u: element %lu is %f", what, self, (unsigned long)i, recv[i]);
	free(send);
	free(recv);
}

static void both(uint64_t order, uint32_t self, const char *what)
{
	both_add(order, self, 1, what);
}

/* ------------------------------------------------------------------------------ addresses */

/* Device 0 sends a one to device 1, or both are to add up theirs. */
static void start_one(uint64_t order, enum step_kind kind, struct ended *e)
{
	static float one = 1, sum;
	struct transport_part p = { .rank = 0, .send = &one, .recv = kind == STEP_SEND ? NULL : &sum };
	struct transport_start s = { .order = order, .ranks = 2, .nparts = 1, .device = world_devices, .part = &p,
		.done = on_end, .arg = e, .call = { .kind = kind, .type = TREE_F32, .peer = 1, .count = 1 } };
	int rc = driver->start(end, &s);

	if (rc)
		world_fail("an operation does not begin: %d", rc);
}

/* Device 0 sends to device 1, whose address leads nowhere: the operation fails. */
static void leads_nowhere(uint64_t order, const char *what)
{
	struct ended e = { 0 };
	int rc;

	start_one(order, STEP_SEND, &e);
	rc = await(&e, PATIENCE_MS);
	if (rc <= 0)
		world_fail("%s: %d", what, rc);
}

static void addresses_body(uint32_t self, void *arg)
{
	struct address *a = (struct address *)world->address[1];
	const struct address good = *a;

	(void)arg;
	for (uint32_t i = 0; i < good.n; i++)
		if (good.tcp[i].ip[0] == (good.tcp[i].family == 4 ? 127 : 0xfe) || (good.tcp[i].family == 6 && !good.tcp[i].ip[0]))
			world_fail("an address that no other host reaches");
	if (!self) {
		world->len[1]--;
		leads_nowhere(1, "an address that is short");
		world->len[1] += 2;
		leads_nowhere(2, "an address that is long");
		world->len[1]--;
		a->zero = 1;
		leads_nowhere(3, "an address of another version");
		*a = good;
		a->n = ADDRESSES + 1;
		leads_nowhere(4, "an address with too many of TCP");
		*a = good;
		/* Who is on another host, or in another network namespace, and has no address there. */
		a->n = 0;
		a->host ^= 1;
		leads_nowhere(5, "another host");
		a->host = good.host;
		a->net ^= 1;
		leads_nowhere(6, "another network namespace");
		*a = good;
	}
	world_barrier();
	both(7, self, "a good address");
}

/*
 * Nobody listens at the first of the peer's two addresses, so the hello must arrive at the second one. The peer
 * then closes the connection, and the operation must end.
 */
static void second_body(uint32_t self, void *arg)
{
	struct address *a = (struct address *)world->address[1];
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), sock, rc;
	socklen_t len = sizeof(in);
	struct ended e = { 0 };
	struct hello h;

	(void)arg;
	if (!self) {
		if (bind(listener, (void *)&in, len) || getsockname(listener, (void *)&in, &len) || listen(listener, 8))
			world_fail("a listener: %s", strerror(errno));
		a->net ^= 1;
		a->port = in.sin_port;
		a->n = 2;
		a->tcp[0].family = a->tcp[1].family = 4;
		memcpy(a->tcp[1].ip, &in.sin_addr, 4);
		memcpy(a->tcp[0].ip, &in.sin_addr, 4);
		a->tcp[0].ip[3]++;	/* 127.0.0.2 */
		start_one(1, STEP_ALLREDUCE, &e);
		setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (sock < 0 || recv(sock, &h, sizeof(h), MSG_WAITALL) != sizeof(h) || h.magic != HELLO_MAGIC || h.from)
			world_fail("no hello at the second address");
		if (await(&e, 20) >= 0)
			world_fail("an operation without the other device has ended");
		close(sock);
		rc = await(&e, PATIENCE_MS);
		if (rc <= 0)
			world_fail("a connection that has ended: %d", rc);
	}
	world_barrier();
}

/* ------------------------------------------------------------------------------ a socket without room */

/* Enters a network namespace whose sockets have send buffers of 4096 bytes. false: that is not possible here. */
static bool few_bytes(void)
{
	const char *make = "ip link set lo up && ip link add one type veth peer name two && ip link set two up && "
			   "ip addr add 10.77.0.1/24 dev one && ip link set one up && "
			   "echo 4096 4096 4096 >/proc/sys/net/ipv4/tcp_wmem";

	return !unshare(CLONE_NEWNET) && !system(make);
}

static void narrow_body(uint32_t self, void *arg)
{
	(void)arg;
	both_add(1, self, 1 << 20, "few bytes at a time");
}

/* ------------------------------------------------------------------------------ who is let in */

/* Has the other side ended this connection, on which it sends nothing? */
static bool is_over(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);

	return !n || (n < 0 && errno != EAGAIN);
}

static bool comes_to_its_end(int fd)
{
	double until = seconds() + PATIENCE_MS / 1000.;

	while (!is_over(fd) && seconds() < until)
		usleep(1000);
	return is_over(fd);
}

/* What has connected before has been accepted: so has this one, whose hello is refused. */
static void catch_up(int fd)
{
	static const struct hello none;

	if (fd < 0 || send(fd, &none, sizeof(none), MSG_NOSIGNAL) != sizeof(none) || !comes_to_its_end(fd))
		world_fail("a hello that is none is not refused");
	close(fd);
}

static void dial_some(const struct address *a, int *fd, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		fd[i] = peer_dial_tcp(a);
		if (fd[i] < 0)
			world_fail("nobody listens: %s", strerror(errno));
	}
}

/* Connections are made until the first one has ended: by then all of these have been silent for long enough. */
static uint32_t crowd_out(const struct address *a, int first, int *more, uint32_t most)
{
	uint32_t n;

	for (n = 0; n < most && !is_over(first); n++) {
		dial_some(a, &more[n], 1);
		usleep(50000);
	}
	if (!is_over(first))
		world_fail("who is silent stays");
	return n;
}

static uint32_t over(const int *fd)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < SILENT; i++)
		n += is_over(fd[i]);
	return n;
}

static void silent_body(uint32_t self, void *arg)
{
	struct hello h = { .magic = HELLO_MAGIC, .from = 5, .size = sizeof(struct link_memory) };
	int fd[SILENT], more[400], stranger;
	struct address a;
	uint32_t n, before;

	(void)arg;
	both(1, self, "a link");
	world_barrier();
	if (self) {
		memcpy(&a, world->address[0], sizeof(a));
		dial_some(&a, fd, SILENT);
		n = crowd_out(&a, fd[0], more, 400);
		if (is_over(more[n - 1]))
			world_fail("of those who are silent another one goes than the first");
		/* Connections in memory do not count among those of TCP. */
		usleep(50000);
		before = over(fd);
		catch_up(peer_dial(&a));
		usleep(50000);
		if (over(fd) != before)
			world_fail("a connection in memory ends one of TCP");
		for (uint32_t i = 0; i < SILENT; i++)
			close(fd[i]);
		for (uint32_t i = 0; i < n; i++)
			close(more[i]);
		/* One that has been silent for as long says hello, which is not read before the next one comes. */
		memcpy(h.key, a.key, sizeof(h.key));
		dial_some(&a, fd, SILENT - 1);
		catch_up(peer_dial_tcp(&a));
		dial_some(&a, &fd[SILENT - 1], 1);
		usleep(200000);
		kill(world->pid[0], SIGSTOP);
		if (waitid(P_PID, world->pid[0], &(siginfo_t){ 0 }, WSTOPPED | WNOWAIT) && errno != ECHILD)
			world_fail("device 0 does not stop");
		usleep(20000);
		stranger = peer_dial_tcp(&a);
		if (send(fd[0], &h, sizeof(h), MSG_NOSIGNAL) != sizeof(h))
			world_fail("no hello");
		kill(world->pid[0], SIGCONT);
		catch_up(peer_dial_tcp(&a));
		usleep(50000);
		if (is_over(fd[0]))
			world_fail("who has said hello goes as one who is silent");
		close(stranger);
		for (uint32_t i = 0; i < SILENT; i++)
			close(fd[i]);
	}
	world_barrier();
	both(2, self, "a link that is not silent");
}

/* Of another user, in memory. */
static void users_body(uint32_t self, void *arg)
{
	struct address a;
	int fd, status;
	pid_t pid;

	(void)arg;
	if (self) {
		memcpy(&a, world->address[0], sizeof(a));
		fd = peer_dial(&a);
		pid = fork();
		if (!pid) {
			if (setresuid(65534, 65534, 65534))
				_exit(2);
			_exit(!comes_to_its_end(peer_dial(&a)));
		}
		if (waitpid(pid, &status, 0) != pid || status)
			world_fail("another user's connection stays: %d", status);
		if (is_over(fd))
			world_fail("a connection of this user's does not stay");
		close(fd);
	}
	world_barrier();
	both(1, self, "a link");
}

static bool in_world(void (*body)(uint32_t, void *), bool tcp)
{
	world_tcp = tcp;
	world_begin(2, body, NULL);
	return !world_end();
}

static int narrow(void)
{
	int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), bad;

	if (!few_bytes())
		bad = world_result(true, "# SKIP needs root, and a network namespace with veth");
	else
		bad = world_result(in_world(narrow_body, true), "what a socket has no room for comes later");
	if (setns(home, CLONE_NEWNET) && !geteuid())
		bad = world_result(false, "the way back into the network namespace");
	close(home);
	return bad;
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : "";
	int bad = 0;

	printf("TAP version 13\n1..%d\n", *only ? 1 : 5);
	if (!*only || !strcmp(only, "addresses"))
		bad += world_result(in_world(addresses_body, false), "an address that is none leads nowhere");
	if (!*only || !strcmp(only, "second"))
		bad += world_result(in_world(second_body, false), "a second address is tried, and a connection's end is seen");
	if (!*only || !strcmp(only, "narrow"))
		bad += narrow();
	if (!*only || !strcmp(only, "silent"))
		bad += !world_has_ip() ? world_result(true, "# SKIP this host has no IP address but loopback") :
		       world_result(in_world(silent_body, true), "of those who are silent the first one goes");
	if (!*only || !strcmp(only, "users"))
		bad += geteuid() ? world_result(true, "# SKIP needs root") :
		       world_result(in_world(users_body, false), "another user is not let in");
	return !!bad;
}
