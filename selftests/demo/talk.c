// SPDX-License-Identifier: Apache-2.0
/*
 * talk.c - a demonstration: a client and a proxy talk through a channel, and one of them is killed
 *
 * Every line is printed by the process that it is about, from data that came through the channel.
 * Exits non-zero if anything differs from what the lines claim.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

enum { OP_SAY = 1, OP_ADD, OP_SLEEP };

static const char *who;
static uint64_t *killed_at;	/* shared */

static void say(const char *format, ...)
{
	va_list ap;

	printf("  %-7s %6d  ", who, getpid());
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

static int failed(const char *what, int rc)
{
	fprintf(stderr, "talk: %s: %s\\n", what, ring_strerror(rc));
	return 1;
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

/* Talks until the proxy dies under it. */
static int client(int sock)
{
	static const char *const lines[] = { "a record is visible when submit returns",
		"many threads may submit, nobody holds a lock", "and nobody waits for an answer" };
	uint64_t numbers[2] = { 20, 22 }, sum = 0;
	uint32_t len = 0;
	struct ring *r;
	size_t i;
	int rc;

	who = "client";
	rc = ring_attach(&r, ring_take_fd(sock));
	if (rc)
		return failed("attach", rc);
	say("attached at %p, the same address as the proxy's", (void *)ring_geometry(r)->va);
	for (i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
		rc = ring_submit(r, OP_SAY, lines[i], strlen(lines[i]) + 1, NULL, 0);
		if (rc)
			return failed("submit", rc);
	}
	rc = ring_call(r, OP_ADD, numbers, sizeof(numbers), NULL, 0, NULL, &sum, sizeof(sum), &len);
	if (rc || len != sizeof(sum) || sum != numbers[0] + numbers[1])
		return failed("call", rc ? rc : EPROTO);
	say("asked for %lu + %lu, was answered %lu", numbers[0], numbers[1], sum);
	say("asks for an answer that will never come, and sleeps");
	rc = ring_call(r, OP_SLEEP, NULL, 0, NULL, 0, NULL, NULL, 0, NULL);
	if (rc != -EPIPE)
		return failed("the proxy's death went unnoticed", rc);
	say("woken %.0f us after the kill: %s", (now() - *killed_at) / 1e3, ring_strerror(rc));
	ring_close(r);
	return 0;
}

static int serve(struct ring *r)
{
	struct ring_record rec;
	uint64_t numbers[2];
	int rc;

	for (;;) {
		rc = ring_peek(r, &rec);
		if (!rc) {
			rc = ring_wait(r, -1);
			if (!rc)
				continue;
		}
		if (rc < 0)
			return failed("the client", rc);
		if (rec.op == OP_SAY) {
			say("record %lu says: %.*s", rec.seq, (int)rec.len, (const char *)rec.data);
		} else if (rec.op == OP_ADD && rec.len == sizeof(numbers)) {
			memcpy(numbers, rec.data, sizeof(numbers));
			numbers[0] += numbers[1];
			ring_complete(r, rec.cpl, rec.seq, 0, numbers, sizeof(*numbers));
		} else {
			say("has a request that it does not answer");
			raise(SIGSTOP);	/* the demonstration kills it now */
		}
		ring_advance(r);
	}
}

static int proxy(int sock, pid_t pid, const struct ring_params *p)
{
	struct ring *r;
	int fd, rc;

	who = "proxy";
	rc = ring_create(&r, p);
	if (rc)
		return failed("create", rc);
	say("channel over %s: %u units of 64 bytes, %u answers, %lu KiB of log, %lu MiB of arena",
	    ring_backend(r) == RING_KMOD ? SINGVGPU_DEV_PATH : "memfd and futex, no module",
	    p->geo.ring_units, p->geo.cpl_slots, p->geo.log_len >> 10, p->geo.arena_len >> 20);
	ring_watch_peer(r, syscall(SYS_pidfd_open, pid, 0));
	fd = ring_client_fd(r);
	if (fd < 0)
		return failed("client fd", fd);
	rc = ring_pass_fd(sock, fd);
	close(fd);
	return rc ? failed("pass fd", rc) : serve(r);
}

static pid_t start(int (*run)(int, pid_t, const struct ring_params *), int sock, int other,
		   pid_t peer, const struct ring_params *p)
{
	pid_t pid = fork();

	if (!pid) {
		close(other);
		_exit(run(sock, peer, p));
	}
	return pid;
}

static int run_client(int sock, pid_t peer, const struct ring_params *p)
{
	(void)peer;
	(void)p;
	return client(sock);
}

int main(void)
{
	struct ring_params p = { .backend = RING_AUTO, .geo = RING_GEOMETRY_DEFAULT };
	pid_t of_client, of_proxy;
	int sock[2], status;

	killed_at = mmap(NULL, sizeof(*killed_at), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (killed_at == MAP_FAILED || getentropy(p.id, sizeof(p.id)) || getentropy(p.cookie, sizeof(p.cookie)) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))
		return failed("start", errno);
	printf("Two processes talk through a channel; then one of them is killed.\n\n");
	fflush(stdout);
	of_client = start(run_client, sock[1], sock[0], 0, &p);
	of_proxy = start(proxy, sock[0], sock[1], of_client, &p);
	close(sock[0]);
	close(sock[1]);
	if (waitpid(of_proxy, &status, WUNTRACED) != of_proxy || !WIFSTOPPED(status)) {
		kill(of_client, SIGKILL);
		return failed("the proxy", EPROTO);
	}
	usleep(20000);	/* until the client is asleep */
	who = "demo";
	say("kill -9 %d", of_proxy);
	*killed_at = now();
	kill(of_proxy, SIGKILL);
	waitpid(of_proxy, &status, 0);
	waitpid(of_client, &status, 0);
	if (status)
		return 1;
	printf("\nWhat that costs, beside what the machine allows and others need:\n\n");
	return 0;
}
