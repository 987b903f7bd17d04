// SPDX-License-Identifier: Apache-2.0
/*
 * failures.c - cancelled operations, killed ends, ends that leave, messages that are nonsense, and
 * the bytes that are sent; between processes, without proxies
 *
 * failures [long]: more kills. failures NAME: one test alone, by its name in main().
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer.h"
#include "tree.h"
#include "world.h"

static int kills = 12;

/* An all-reduce of ones, ranks 0 … n-1 on devices of that number, or all but one. */
static int begin(uint64_t order, uint32_t self, uint32_t n, uint64_t count, const float *send,
                 float *recv, struct ended *e)
{
	struct transport_part p = { .rank = self, .send = send, .recv = recv };
	struct transport_start s = { .order = order, .ranks = n, .nparts = 1, .device = world_devices,
		                .part = &p, .done = on_end, .arg = e };

	s.call = (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = count };
	return driver->start(end, &s);
}

static float *ones(uint64_t count)
{
	float *f = malloc(count * sizeof(*f));

	for (uint64_t i = 0; i < count; i++)
		f[i] = 1;
	return f;
}

static void expect(const float *got, uint64_t count, float want, const char *what)
{
	for (uint64_t i = 0; i < count; i++)
		if (got[i] != want)
			world_fail("%s: element %lu is %f, not %f", what, (unsigned long)i, got[i], want);
}

static void sum(uint64_t order, uint32_t self, uint32_t n, uint64_t count, const char *what)
{
	float *send = ones(count), *recv = calloc(count, sizeof(*recv));
	struct ended e = { 0 };
	int rc = begin(order, self, n, count, send, recv, &e);

	if (rc || (rc = await(&e, 20000)))
		world_fail("%s: device %u: %d", what, self, rc);
	expect(recv, count, n, what);
	free(send);
	free(recv);
}

/* ------------------------------------------------------------------------------ bytes */

static void bytes_body(uint32_t self, void *arg)
{
	uint64_t count = *(uint64_t *)arg;

	sum(1, self, world->n, count, "bytes");
	sum(2, self, world->n, count + 1, "bytes");
}

static bool bytes(void)
{
	static const uint64_t counts[] = { 1, 1000, 100000, 3000001 };

	for (uint32_t n = 2; n <= 8; n++)
		for (uint32_t i = 0; i < 4; i++) {
			uint64_t count = counts[i], sent = 0, received = 0, ideal;

			world_begin(n, bytes_body, &count);
			if (world_end())
				return false;
			for (uint32_t k = 0; k < n; k++) {
				sent += world->count[k].sent;
				received += world->count[k].received;
			}
			ideal = 2 * (n - 1) * (2 * count + 1) * sizeof(float);
			if (sent == ideal && received == ideal)
				continue;
			printf("# %u devices: %lu sent, %lu received, not %lu\n", n,
			       (unsigned long)sent, (unsigned long)received, (unsigned long)ideal);
			return false;
		}
	return true;
}

/* ------------------------------------------------------------------------------ cancel */

static void cancel_one(uint32_t self, uint64_t order, uint64_t count, uint32_t late, double after)
{
	float *send = ones(count), *recv = ones(count);
	struct ended e = { 0 };
	double since;
	int rc = 0;

	if (self != late)
		rc = begin(order, self, world->n, count, send, recv, &e);
	usleep(after * 1e6);
	since = seconds();
	if (self != late && !rc) {
		driver->cancel(end, order);
		rc = await(&e, 5000);
		if (rc != STEP_REMOTE && !(rc == STEP_OK && late >= world->n))
			world_fail("a cancelled operation ended with %d", rc);
		if (seconds() - since > 2)	/* of a loaded machine */
			world_fail("cancel took %.0f ms", (seconds() - since) * 1e3);
		for (uint64_t i = 0; i < count; i++)
			recv[i] = -5;
	}
	world_barrier();
	/* The late one's data comes now, and must go nowhere. */
	if (self == late) {
		rc = begin(order, self, world->n, count, send, recv, &e);
		usleep(20000);
		driver->cancel(end, order);
		if (rc || await(&e, 5000) != STEP_REMOTE)
			world_fail("the late one did not end by cancel");
	}
	world_barrier();
	if (self != late)
		expect(recv, count, -5, "a buffer after cancel");
	free(send);
	free(recv);
}

static void cancel_body(uint32_t self, void *arg)
{
	uint64_t order = 1;

	(void)arg;
	sum(order++, self, world->n, 1000, "before a cancel");
	for (uint32_t i = 0; i < 8; i++) {
		cancel_one(self, order++, 1 + i * 90000, i % world->n, 0.01);
		sum(order++, self, world->n, 70000, "after a cancel");
	}
	/* In the middle of something. */
	for (uint32_t i = 0; i < 4; i++) {
		cancel_one(self, order++, 4 << 20, WORLD_MAX, i * 0.003);
		sum(order++, self, world->n, 1000, "after a cancel in the middle");
	}
	driver->cancel(end, 12345);
}

/* ------------------------------------------------------------------------------ order */

/* Two operations whose starts come in different order, and messages for what has not started. */
static void order_body(uint32_t self, void *arg)
{
	uint64_t count = 200000;
	float *send = ones(count), *recv[2] = { ones(count), ones(count) };
	struct ended e[2] = { 0 };

	(void)arg;
	for (uint64_t turn = 0; turn < 20; turn++) {
		e[0].code = e[1].code = 0;
		world_barrier();
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t k = self & 1 ? i : 1 - i;

			if (begin(2 * turn + k + 1, self, world->n, turn & 1 ? 10 : count, send,
			          recv[k], &e[k]))
				world_fail("start");
			usleep(self * 1000);
		}
		for (uint32_t k = 0; k < 2; k++) {
			if (await(&e[k], 20000))
				world_fail("an operation started in another order");
			expect(recv[k], turn & 1 ? 10 : count, world->n, "another order");
		}
	}
}

/* ------------------------------------------------------------------------------ leaving */

/* Device 0 sends, and exits at once when that has ended; the others receive later. */
static void leave_body(uint32_t self, void *arg)
{
	uint64_t count = 30000;
	float *f = self ? calloc(count, sizeof(*f)) : ones(count);
	struct ended e[WORLD_MAX] = { 0 };

	(void)arg;
	if (self)
		usleep(200000);
	for (uint32_t d = 1; d < world->n; d++) {
		struct transport_part p = { .rank = self, .send = self ? NULL : f, .recv = self ? f : NULL };
		struct transport_start s = { .order = d, .ranks = world->n, .nparts = 1,
			                .device = world_devices, .part = &p, .done = on_end, .arg = &e[d] };

		s.call = (struct step_call){ .kind = self ? STEP_RECV : STEP_SEND,
			                     .type = TREE_F32, .peer = self ? 0 : d, .count = count };
		if (self && self != d)
			continue;
		if (driver->start(end, &s))
			world_fail("start of a pair");
	}
	for (uint32_t d = 1; d < world->n; d++)
		if (!self || self == d) {
			int rc = await(&e[d], 5000);

			if (rc)
				world_fail("device %u: a pair with one that left: %d", self, rc);
		}
	if (self)
		expect(f, count, 1, "from one that left");
}

/* ------------------------------------------------------------------------------ kills */

static void kill_body(uint32_t self, void *arg)
{
	static const uint64_t counts[] = { 2, 5000, 300000, 3 << 20 };
	uint32_t turn = *(uint32_t *)arg, n = world->n, victim = n - 1;
	uint64_t count = counts[turn % 4], order = 1;
	float *send = ones(count), *recv = ones(count);
	struct ended e;
	int rc = 0;

	world->victim = victim;
	/* The last device is killed while all are at it. */
	if (self == 0 && fork() == 0) {
		usleep(1000 + turn * 7919 % 20000);
		kill(world->pid[victim], SIGKILL);
		_exit(0);
	}
	while (!rc) {
		e.code = 0;
		rc = begin(order++, self, n, count, send, recv, &e);
		if (rc)
			world_fail("start beside a dead one: %d", rc);
		rc = await(&e, 2000);
		if (rc < 0) {
			/* Nobody told us: the board's turn. */
			driver->cancel(end, order - 1);
			rc = await(&e, 100);
		}
		if (rc < 0)
			world_fail("device %u hangs beside a dead one", self);
	}
	/* The survivors go on, each after its own last order. */
	sum(1ull << 40, self, n - 1, 100000, "survivors");
}

static int names(const char *dir, const char *prefix)
{
	struct dirent *e;
	int n = 0;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d)))
		n += !strncmp(e->d_name, prefix, strlen(prefix));
	if (d)
		closedir(d);
	return n;
}

static bool killed(void)
{
	for (uint32_t turn = 0; turn < (uint32_t)kills; turn++) {
		world_begin(2 + turn % 4 + 1, kill_body, &turn);
		if (world_end()) {
			printf("# turn %u\n", turn);
			return false;
		}
	}
	return true;
}

/* ------------------------------------------------------------------------------ nonsense */

static uint32_t any(uint64_t *x, uint32_t n)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return (*x >> 33) % n;
}

/* Fills a queue with messages, some of them nearly right. */
static void scribble(struct link_memory *mem, uint64_t *x, uint32_t from)
{
	for (uint32_t i = 0; i < ENTRIES; i++) {
		struct entry *e = &mem->entry[i];

		for (uint32_t k = 0; k < sizeof(*e) / 4; k++)
			((uint32_t *)e)[k] = any(x, UINT32_MAX);
		if (any(x, 8)) {
			e->msg = (struct msg){ .magic = MSG_MAGIC, .what = any(x, 7), .from = from,
				               .order = 1 + any(x, 4), .a = any(x, 3), .b = any(x, 3),
				               .first = any(x, 2) ? 0 : any(x, UINT32_MAX),
				               .len = any(x, 2) ? any(x, 2 * CHUNK) : any(x, 32) };
			e->slot = any(x, 2) ? any(x, SLOTS) : any(x, UINT32_MAX);
		}
		__atomic_store_n(&e->seq, i + 1, __ATOMIC_RELEASE);
	}
}

/* Takes a connection, and waits in its memory for the grant of a flow. */
static void await_grant(int listener)
{
	struct link_memory *mem;
	struct hello hello;
	int sock = peer_accept(listener, &hello, &mem, NULL);

	for (int i = 0; !__atomic_load_n(&mem->entry[0].seq, __ATOMIC_ACQUIRE); i++) {
		if (i == 10000)
			world_fail("no grant comes");
		usleep(1000);
	}
	if (mem->entry[0].msg.what != MSG_GRANT || mem->entry[0].msg.order != 1)
		world_fail("a message of kind %u, not a grant", mem->entry[0].msg.what);
	munmap(mem, sizeof(*mem));
	close(sock);
}

/* Whether the other end closes a connection on which it sends nothing; waits for it. */
static bool hung_up(int fd)
{
	struct timeval patience = { .tv_sec = 60 };
	ssize_t got;
	char c;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	got = recv(fd, &c, 1, 0);
	return !got || (got < 0 && errno != EAGAIN);
}

static int descriptors(void)
{
	struct dirent *e;
	int n = 0;
	DIR *d = opendir("/proc/self/fd");

	while (d && (e = readdir(d)))
		n++;
	closedir(d);
	return n;
}

/* A device has one link: a second one is not taken, and the first one goes on. */
static void twice(int first, const struct address *a, const struct hello *h, const int *fds)
{
	int fd = peer_dial(a);
	char c;

	if (fd < 0)
		world_fail("nobody listens for a second link");
	peer_give(fd, h, sizeof(*h), fds, 2);
	if (!hung_up(fd))
		world_fail("a device has two links");
	if (recv(first, &c, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN)
		world_fail("a second link has ended the first one");
	close(fd);
}

/* The last device of the world is none: it knows the keys, and sends nonsense to the others. */
static void liar(uint32_t self)
{
	uint64_t x = 88172645463325252ull + self;
	char junk[4096];

	for (int turn = 0; turn < 132; turn++) {
		enum { SMALL, UNSEALED, WRONG_KEY, JUNK, QUEUE, FILE_ON_DISK, WRONG_MAGIC, WRONG_SIZE, OWN_NUMBER,
		       NO_NUMBER, TWICE, KINDS } kind = turn % KINDS;
		uint32_t to = turn / KINDS % self;
		struct address a;
		struct hello h = { .magic = HELLO_MAGIC, .from = self,
			           .size = sizeof(struct link_memory) };
		char name[] = "/tmp/lie.XXXXXX";
		int fds[2], fd;
		void *mem;

		memcpy(&a, world->address[to], sizeof(a));
		memcpy(h.key, a.key, sizeof(h.key));
		fd = peer_dial(&a);
		if (fd < 0)
			world_fail("device %u does not listen any more", to);
		for (uint32_t i = 0; i < sizeof(junk); i++)
			junk[i] = any(&x, 256);
		fds[0] = kind == FILE_ON_DISK ? mkstemp(name) : memfd_create("lie", MFD_ALLOW_SEALING);
		if (kind == FILE_ON_DISK)
			unlink(name);
		fds[1] = memfd_create("bell", 0);
		if (ftruncate(fds[0], kind == SMALL ? 4096 : sizeof(struct link_memory)))
			world_fail("memory");
		if (kind != UNSEALED && kind != FILE_ON_DISK)
			fcntl(fds[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
		if (kind == WRONG_KEY)
			h.key[3] ^= 1;
		h.magic ^= kind == WRONG_MAGIC;
		h.size += kind == WRONG_SIZE;
		if (kind == OWN_NUMBER)
			h.from = to;
		if (kind == NO_NUMBER)
			h.from = TRANSPORT_DEVICES_MAX;
		if (kind == JUNK) {
			send(fd, junk, 1 + any(&x, sizeof(junk) - 1), MSG_NOSIGNAL);
		} else {
			mem = mmap(NULL, sizeof(struct link_memory), PROT_READ | PROT_WRITE,
			           MAP_SHARED, fds[0], 0);
			if (kind == QUEUE)
				scribble(mem, &x, self);
			peer_give(fd, &h, sizeof(h), fds, 2);
			munmap(mem, sizeof(struct link_memory));
		}
		if (kind == QUEUE)
			usleep(3000);
		else if (kind == TWICE)
			twice(fd, &a, &h, fds);
		else if (!hung_up(fd))
			world_fail("device %u keeps a link of kind %d", to, kind);
		close(fds[0]);
		close(fds[1]);
		close(fd);
	}
}

static void lies_body(uint32_t self, void *arg)
{
	uint32_t n = world->n, left = n - 1;
	struct ended e = { 0 };
	int before = descriptors();
	float f = 1, g;

	(void)arg;
	if (self == left) {
		liar(self);
		world_barrier();
		return;
	}
	/* An operation with the liar, and others without it meanwhile. */
	if (begin(1, self, n, 1, &f, &g, &e))
		world_fail("start");
	for (uint64_t order = 10; order < 400; order++)
		sum(order, self, left, order * 37, "beside a liar");
	world_barrier();
	driver->cancel(end, 1);
	/* Which end it comes to, OK among them, depends on the lies; that it comes does not. */
	if (await(&e, 100) < 0)
		world_fail("an operation with a liar does not end");
	sum(1000, self, left, 100000, "after the lies");
	/* Links to the other two, and from them, are all that is left. */
	for (int i = 0; descriptors() > before + 12; i++) {
		if (i == 10000)
			world_fail("device %u: %d descriptors, %d before", self, descriptors(), before);
		usleep(1000);
	}
}

/* ------------------------------------------------------------------------------ strangers */

#define STRANGERS 300 /* for each device */

/* Many connections: two of three silent, ones that begin a hello and go no further, and garbage. */
static void stranger(uint32_t self)
{
	uint64_t x = 88172645463325252ull;
	char junk[4096];

	for (uint32_t i = 0; i < sizeof(junk); i++)
		junk[i] = any(&x, 256);
	for (uint32_t i = 0; i < STRANGERS * self + self; i++) {
		const struct hello h = { .magic = HELLO_MAGIC, .size = sizeof(struct link_memory) };
		uint32_t how = i / self % 9;
		struct address a;
		int fd;

		if (i == STRANGERS * self) /* the last ones, when the others have been silent for long */
			usleep(200000);
		memcpy(&a, world->address[i % self], sizeof(a));
		fd = peer_dial_tcp(&a);
		if (fd < 0)
			world_fail("device %u does not listen any more", i % self);
		if (how == 6)
			send(fd, &h, 8 + i % 16, MSG_NOSIGNAL);
		else if (how == 7)
			send(fd, junk, sizeof(junk), MSG_NOSIGNAL);
		else if (how == 8)	/* all but the key */
			send(fd, &h, sizeof(h), MSG_NOSIGNAL);
	}
}

/* An honest end's hello comes a moment after its connection, among a crowd of silent strangers. */
static void crowd(uint32_t self)
{
	struct hello h = { .magic = HELLO_MAGIC, .from = self, .size = sizeof(struct link_memory) };
	int fd, silent[100];
	struct address a;
	double since;
	char byte;

	memcpy(&a, world->address[0], sizeof(a));
	memcpy(h.key, a.key, sizeof(h.key));
	for (int turn = 0; turn < 50; turn++) {
		since = seconds();
		fd = peer_dial_tcp(&a);
		for (int i = 0; i < 100; i++)
			silent[i] = peer_dial_tcp(&a);
		usleep(10000);		/* so that they are all accepted */
		if (send(fd, &h, sizeof(h), MSG_NOSIGNAL) == sizeof(h) && seconds() - since < 0.08) {
			usleep(50000);
			if (recv(fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN)
				world_fail("an honest end lost its connection to a crowd");
			turn = 50;
		}
		close(fd);
		for (int i = 0; i < 100; i++)
			close(silent[i]);
		usleep(20000);
	}
}

static void strangers_body(uint32_t self, void *arg)
{
	uint32_t left = world->n - 1;
	int before = descriptors();

	(void)arg;
	if (self == left)
		crowd(self);
	if (self == left)
		stranger(self);
	world_barrier();
	/* Links are made only now, beside those who are still connected. */
	if (self != left) {
		sum(1, self, left, 100000, "beside strangers");
		/* 64 of them may stay; of the others the transport's thread gets rid soon. */
		for (int i = 0; descriptors() > before + 64 + 10; i++) {
			struct address own;

			/* Who was accepted late goes at a later connection. */
			memcpy(&own, world->address[self], sizeof(own));
			if (i % 300 == 299)
				close(peer_dial_tcp(&own));
			if (i == 10000)
				world_fail("device %u: %d descriptors, %d before", self, descriptors(),
				           before);
			usleep(1000);
		}
	}
	world_barrier();
}

/* ------------------------------------------------------------------------------ no place at once */

/* Device 1 is none: its queue of connections is full, and then it takes them after all. */
static void full_body(uint32_t self, void *arg)
{
	struct address *a = (struct address *)world->address[1];
	uint64_t count = 2 << 20;
	float *f = malloc(count * sizeof(*f));
	struct transport_part p = { .rank = 0, .recv = f };
	struct ended e = { 0 };
	struct transport_start s = { .order = 1, .ranks = 2, .nparts = 1, .device = world_devices, .part = &p, .done = on_end,
		                .arg = &e, .call = { .kind = STEP_RECV, .type = TREE_F32, .peer = 1, .count = count } };
	int listener = -1, first = -1;

	(void)arg;
	if (self) {
		listener = peer_listen(a, 0);
		first = peer_dial(a);
	}
	world_barrier();
	if (!self && driver->start(end, &s))
		world_fail("start");
	usleep(50000);
	world_barrier();
	if (self) {
		close(accept(listener, NULL, NULL));
		close(first);
		await_grant(listener);
	}
	world_barrier();
	if (!self) {
		driver->cancel(end, 1);
		if (await(&e, 5000) != STEP_REMOTE)
			world_fail("what waits for a connection is not cancelled");
	}
	free(f);
	close(listener);
}

/* An end needs two descriptors for each of the others, more than the job's limit lets it have at first. */
static void many_body(uint32_t self, void *arg)
{
	(void)arg;
	sum(1, self, world->n, 1000, "with few descriptors");
}

static bool many(void)
{
	struct rlimit was, few;
	bool good;

	getrlimit(RLIMIT_NOFILE, &was);
	few = was;
	few.rlim_cur = 24;
	setrlimit(RLIMIT_NOFILE, &few);
	world_begin(WORLD_MAX, many_body, NULL);
	good = !world_end();
	setrlimit(RLIMIT_NOFILE, &was);
	return good;
}

/* ------------------------------------------------------------------------------ withdrawn */

#define ROUNDS 400u
#define EACH   4u

/* AddressSanitizer keeps what is freed, 256 MiB of it, which would be taken for messages that are kept. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "quarantine_size_mb=8";
}

static unsigned long resident(void)
{
	unsigned long size = 0, pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%lu %lu", &size, &pages) != 2)
		world_fail("statm");
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE) >> 20;
}

/* A sender is no further ahead of a receiver that has not started than that one keeps for it. */
static void ahead(uint32_t self)
{
	uint64_t count = 8 * WINDOW;
	char *bytes = calloc(1, count);
	struct ended e = { 0 };
	struct transport_part p = { .rank = self, .send = self ? bytes : NULL, .recv = self ? NULL : bytes };
	struct transport_start s = { .order = 1u << 29, .ranks = 2, .nparts = 1, .device = world_devices, .part = &p,
		                .done = on_end, .arg = &e,
		                .call = { .kind = self ? STEP_SEND : STEP_RECV, .type = TREE_UINT8,
		                          .peer = 1 - self, .count = count } };

	memset(bytes, 1 + self, count);
	if (self && driver->start(end, &s))
		world_fail("start");
	usleep(50000);
	world_barrier();
	if (__atomic_load_n(&e.code, __ATOMIC_ACQUIRE))
		world_fail("a send has ended before its receiver was there");
	world_barrier();
	if (!self && driver->start(end, &s))
		world_fail("start");
	if (await(&e, 20000) || bytes[count - 1] != 2)
		world_fail("device %u: what was sent ahead has not come", self);
	free(bytes);
}

/* Device 1 has sent, and is done; on device 0 the receive is taken back. What has come is let go. */
static void withdraw_body(uint32_t self, void *arg)
{
	uint64_t count = EAGER;
	char *bytes = calloc(1, count);
	unsigned long before = resident();
	struct transport_part p = { .rank = 1, .send = bytes };
	struct transport_start s = { .ranks = 2, .nparts = 1, .device = world_devices, .part = &p, .done = on_end,
		                .call = { .kind = STEP_SEND, .type = TREE_UINT8, .peer = 0, .count = count } };

	(void)arg;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		bool first = i & 1;

		for (uint32_t k = 1; !self && first && k <= EACH; k++)
			driver->withdraw(end, i * EACH + k);
		world_barrier();
		for (uint32_t k = 1; self && k <= EACH; k++) {
			struct ended e = { 0 };

			s.order = i * EACH + k;
			s.arg = &e;
			if (driver->start(end, &s) || await(&e, 20000))
				world_fail("a send whose receive is withdrawn");
		}
		world_barrier();
		for (uint32_t k = 1; !self && !first && k <= EACH; k++)
			driver->withdraw(end, i * EACH + k);
	}
	sum(1u << 30, self, 2, 1000, "after what was withdrawn");
	if (resident() > before + 32)
		world_fail("device %u has kept %lu MiB", self, resident() - before);
	free(bytes);
	ahead(self);
}

/* ------------------------------------------------------------------------------ bad calls */

/* The transport takes no such operation. */
static void refused(struct transport_start s, const char *what)
{
	if (driver->start(end, &s) != -EINVAL)
		world_fail("%s was taken", what);
}

/* Parts that do not fit their operation. */
static void bad_parts(uint32_t self)
{
	static uint32_t many[TREE_RANKS_MAX + 1];
	const uint32_t here[3] = { self, self, self }, far[2] = { self, TRANSPORT_DEVICES_MAX },
		       apart[2] = { self, 1 - self };
	float f = 1, g = 0;
	struct transport_part p[3] = { { .rank = 0, .send = &f, .recv = &g }, { .rank = 1, .send = &f, .recv = &g },
		                       { .rank = 2, .send = &f, .recv = &g } };
	struct ended e = { 0 };
	struct transport_start one = { .order = 1, .ranks = 2, .nparts = 1, .device = here, .part = p, .done = on_end,
		                       .arg = &e, .call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = 1 } }, s;

	refused(one, "a collective without one of this device's parts");
	s = one;
	s.ranks = 0;
	refused(s, "an operation of no ranks");
	s.device = far;
	s.ranks = 2;
	refused(s, "an end beyond all numbers");
	for (uint32_t i = 1; i <= TREE_RANKS_MAX; i++)
		many[i] = 1 - self;
	many[0] = self;
	s.device = many;
	s.ranks = TREE_RANKS_MAX + 1;
	refused(s, "an operation of too many ranks");
	s = one;
	s.device = world_devices;
	s.part = &p[2];
	for (p[2].rank = 2; p[2].rank < 100; p[2].rank++)
		refused(s, "a part of a rank that there is not");
	p[2].rank = 2;
	s.part = NULL;
	refused(s, "parts that are nowhere");
	s.part = &p[self];
	s.done = NULL;
	refused(s, "an operation whose end nobody hears of");
	p[0].send = NULL;
	p[1].send = NULL;
	s.done = on_end;
	refused(s, "a part that has nothing to send");
	p[0].send = p[1].send = &f;
	s = one;
	s.nparts = 2;
	p[1].rank = 0;
	refused(s, "two parts of one rank");
	p[1].rank = 1;
	s.nparts = 3;
	refused(s, "more parts than ranks");
	/* Pairs. */
	s = one;
	s.call = (struct step_call){ .kind = STEP_SEND, .type = TREE_F32, .count = 1, .peer = 1 };
	refused(s, "one end of a pair, of which both are here");
	s.ranks = s.nparts = 3;
	refused(s, "a pair of three");
	s.ranks = s.nparts = 2;
	p[1].send = NULL;
	refused(s, "an end of a pair that sends and receives");
	s.nparts = 0;
	refused(s, "a pair without an end");
	s.nparts = 1;
	s.call.peer = 0;
	p[0].recv = NULL;
	s.device = apart;
	refused(s, "a send to itself that nobody receives");
	if (e.code)
		world_fail("what was refused has ended");
}

static void bad_body(uint32_t self, void *arg)
{
	float f = 1, g = 0;
	struct transport_part p = { .rank = self, .send = &f, .recv = &g };
	struct ended e = { 0 };
	struct transport_start s = { .order = 1, .ranks = 2, .nparts = 1, .device = world_devices, .part = &p,
		                .done = on_end, .arg = &e };
	const struct step_call good = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = 1 };
	const struct step_call bad[] = {
		{ .kind = STEP_KINDS, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_ALLREDUCE, .type = TREE_TYPES, .count = 1 },
		{ .kind = STEP_ALLREDUCE, .op = TREE_OPS, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_REDUCE, .peer = 2, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_ALLREDUCE, .type = TREE_F64, .count = 1ull << 60 },
		{ .kind = STEP_ALLREDUCE, .type = TREE_F64, .count = 1ull << 59 },
		{ .kind = STEP_ALLREDUCE, .op = TREE_PREMULSUM, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_BROADCAST, .op = TREE_MAX, .type = TREE_F32, .count = 1 },
	};

	(void)arg;
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		s.call = bad[i];
		if (driver->start(end, &s) != -EINVAL)
			world_fail("bad call %u was taken", i);
	}
	s.call = good;
	p.rank = 1 - self;
	if (driver->start(end, &s) != -EINVAL)
		world_fail("another one's part was taken");
	p.rank = self;
	p.recv = NULL;
	if (driver->start(end, &s) != -EINVAL)
		world_fail("a part without a buffer was taken");
	s.nparts = 0;
	if (driver->start(end, &s) != -EINVAL || e.code)
		world_fail("an operation without a part was taken");
	bad_parts(self);
	sum(2, self, 2, 10, "after bad calls");
}

/* Two ranks of a communicator whose third one had left before they knew where it was. */
static void left_body(uint32_t self, void *arg)
{
	static const uint32_t device[4] = { STEP_NONE, 0, 1, STEP_NONE };
	uint64_t number = 0;
	struct transport_part p = { .rank = 1 + self, .send = self ? NULL : &number, .recv = self ? &number : NULL };
	struct ended e = { 0 };
	struct transport_start s = { .order = 1, .ranks = 4, .nparts = 1, .device = device, .part = &p,
		                .done = on_end, .arg = &e };

	(void)arg;
	number = self ? 0 : 4711;
	s.call = (struct step_call){ .kind = self ? STEP_RECV : STEP_SEND, .type = TREE_INT64, .count = 1,
		                     .peer = 2 - self };
	if (driver->start(end, &s) || await(&e, 20000) || number != 4711)
		world_fail("device %u: %u, %lu", self, e.code, (unsigned long)number);
	s.call.peer = 3;
	if (driver->start(end, &s) != -EINVAL)
		world_fail("a pair with a rank that has left was taken");
	s.call = (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_INT64, .count = 1 };
	p.send = p.recv = &number;
	if (driver->start(end, &s) != -EINVAL)
		world_fail("a collective with a rank that has left was taken");
}

static bool in_world(uint32_t n, void (*body)(uint32_t, void *))
{
	world_begin(n, body, NULL);
	return !world_end();
}

static const char *only;
static int bad;

/* Whether the test of this name is to run. */
static bool asked(const char *name)
{
	return !only || !strcmp(only, name);
}

#define RUN(name, is_good, says) \
	do { \
		if (asked(name)) \
			bad += world_result(is_good, says); \
	} while (0)

int main(int argc, char **argv)
{
	int shm = names("/dev/shm", "singvgpu");

	if (argc > 1 && !strcmp(argv[1], "long"))
		kills = 500;
	else if (argc > 1)
		only = argv[1];
	printf("TAP version 13\n1..%d\n", only ? 1 : 15);
	RUN("bad", in_world(2, bad_body), "bad calls are refused");
	RUN("order", in_world(4, order_body), "operations start in any order");
	RUN("left", in_world(2, left_body), "pairs go on without a rank that has left");
	RUN("leave", in_world(4, leave_body), "what one that has left had sent is received");
	RUN("bytes", bytes(), "an all-reduce sends 2 (n-1) S bytes");
	RUN("cancel", in_world(2, cancel_body) && in_world(4, cancel_body),
	    "a cancelled operation ends at once, and its buffers are let alone");
	RUN("full", in_world(2, full_body), "a link that cannot be made at once loses nothing");
	RUN("many", many(), "more devices than the limit of descriptors lets in at first");
	RUN("withdraw", in_world(2, withdraw_body), "what comes for a withdrawn operation is let go");
	RUN("lies", in_world(4, lies_body), "nonsense ends its sender's operations alone");
	RUN("kills", killed(), "the others go on when one is killed");
	world_tcp = true;
	if (world_has_ip()) {
		RUN("tcp", in_world(4, leave_body) && in_world(4, cancel_body) && in_world(3, order_body),
		    "the same over TCP");
		RUN("tcp_kills", killed(), "the others go on over TCP when one is killed");
		RUN("strangers", in_world(3, strangers_body), "strangers at the port keep nobody out");
	} else {
		RUN("tcp", true, "# SKIP this host has no IP address but loopback");
		RUN("tcp_kills", true, "# SKIP");
		RUN("strangers", true, "# SKIP");
	}
	RUN("shm", names("/dev/shm", "singvgpu") == shm, "nothing is left in /dev/shm");
	return !!bad;
}
