// SPDX-License-Identifier: Apache-2.0
/*
 * flows.c - what an end sends, grants, keeps and lets go, seen by devices that the test plays
 *
 * flows NAME: one test alone, by its name in main().
 *
 * Device 0 is an end. The test is the other devices: it has their sides of the links in its hands, so it
 * sees each message and each slot. settle() returns when the end has had a whole turn: what it would do
 * of its own accord is done by then. So no test waits for a time to see that nothing happens.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer.h"
#include "tree.h"
#include "world.h"

#define PLAYED 4 /* devices 1, 2, 3 */
#define LONG   (4ul * WINDOW)
#define CHUNKS(n) ((uint64_t)(n) * CHUNK)

#define UNTIL(is, what) \
	for (double until = seconds() + 60; !(is);) { \
		if (seconds() > until) \
			world_fail("%s:%d: in vain: %s", __func__, __LINE__, what); \
		usleep(100); \
	}

#define MUST(is) \
	do { \
		if (!(is)) \
			world_fail("%s:%d: not so: %s", __func__, __LINE__, #is); \
	} while (0)

static struct played {
	struct address address;
	int listener;
	int to, from; /* sockets of its link to the end, and of the end's to it; -1: none */
	struct link_memory *out, *in;
	uint32_t said, heard, slot;
} played[PLAYED];

static struct address end_address;
static char said[256]; /* by the end, to the user */
static uint32_t has_said; /* atomic */

static int address(void *arg, uint32_t device, void *to)
{
	(void)arg;
	if (!device || device >= PLAYED)
		return -ENOENT;
	memcpy(to, &played[device].address, sizeof(end_address));
	return sizeof(end_address);
}

static void say_to_user(void *arg, const char *text)
{
	(void)arg;
	snprintf(said, sizeof(said), "%s", text);
	__atomic_store_n(&has_said, 1, __ATOMIC_RELEASE);
}

static void open_end(void)
{
	struct transport_open o = { .self = 0, .address = address, .say = say_to_user };
	struct why why = { 0 };

	if (driver->open(&end, &o, &why))
		world_fail("open: %s", why.text);
	MUST(driver->address(end, &end_address) == sizeof(end_address));
	for (uint32_t d = 1; d < PLAYED; d++) {
		played[d] = (struct played){ .address = end_address, .to = -1, .from = -1 };
		played[d].listener = peer_listen(&played[d].address, 8);
	}
}

/* ------------------------------------------------------------------------------ operations */

static const uint32_t devices[] = { 0, 1, 2, 3 };

/* Starts the end's part, rank 0 on device 0, with ranks on the devices given. */
static void start_on(uint64_t order, const uint32_t *device, uint32_t ranks, struct step_call call, const void *send,
                     void *recv, struct ended *e)
{
	struct transport_part p = { .rank = 0, .send = send, .recv = recv };
	struct transport_start s = { .order = order, .ranks = ranks, .nparts = 1, .device = device, .part = &p,
		                .done = on_end, .arg = e, .call = call };
	int rc;

	*e = (struct ended){ 0 };
	rc = driver->start(end, &s);
	if (rc)
		world_fail("start: %s", strerror(-rc));
}

/* A pair of bytes with a device. */
static void start_pair(uint64_t order, uint32_t with, uint64_t count, const void *send, void *recv, struct ended *e)
{
	const uint32_t device[2] = { 0, with };

	start_on(order, device, 2, (struct step_call){ .kind = send ? STEP_SEND : STEP_RECV, .type = TREE_UINT8,
	                                               .peer = 1, .count = count }, send, recv, e);
}

static void ends_with(struct ended *e, int code)
{
	int rc = await(e, 60000);

	if (rc != code)
		world_fail("an operation has ended with %d, not %d", rc, code);
}

/* An operation of device 0 alone. */
static void settle(void)
{
	static uint64_t order = 1ull << 40;
	struct ended e;
	char from = 1, to = 0;

	start_on(order++, devices, 1, (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_UINT8, .count = 1 }, &from,
	         &to, &e);
	ends_with(&e, STEP_OK);
	MUST(to == 1);
}

/* ------------------------------------------------------------------------------ links to the end */

static void greet(uint32_t d)
{
	struct hello h = { .magic = HELLO_MAGIC, .from = d, .size = sizeof(struct link_memory) };
	int fd = memfd_create("played", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct played *p = &played[d];

	memcpy(h.key, end_address.key, sizeof(h.key));
	MUST(!ftruncate(fd, sizeof(*p->out)) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	p->out = mmap(NULL, sizeof(*p->out), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(p->out != MAP_FAILED);
	p->to = peer_dial(&end_address);
	MUST(p->to >= 0 && peer_give(p->to, &h, sizeof(h), &fd, 1));
	close(fd);
}

/* Writes a message into the queue, its data bytes of one value. */
static void say(uint32_t d, struct msg m, int value)
{
	struct played *p = &played[d];
	struct entry *q;

	if (!p->out)
		greet(d);
	m.magic = MSG_MAGIC;
	m.from = d;
	q = &p->out->entry[p->said % ENTRIES];
	q->msg = m;
	if (m.len <= sizeof(q->word)) {
		memset(&q->word, value, m.len);
	} else if (m.len <= INLINE) {
		memset(q->data, value, m.len);
	} else {
		q->slot = p->slot++ % SLOTS;
		UNTIL(!__atomic_load_n(&p->out->busy[q->slot], __ATOMIC_ACQUIRE), "a free slot");
		__atomic_store_n(&p->out->busy[q->slot], 1, __ATOMIC_RELAXED);
		memset(p->out->slot[q->slot], value, m.len);
	}
	__atomic_store_n(&q->seq, ++p->said, __ATOMIC_RELEASE);
	send(p->to, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* What is sent and its answer are there together: the end has taken everything. */
static void said_all(uint32_t d)
{
	UNTIL(__atomic_load_n(&played[d].out->taken, __ATOMIC_ACQUIRE) == played[d].said, "messages are taken");
}

static struct msg copy_of(uint64_t order, uint64_t first, uint32_t len)
{
	return (struct msg){ .what = MSG_COPY, .a = 1, .b = 0, .order = order, .first = first, .len = len };
}

static struct msg grant_of(uint64_t order, uint64_t first)
{
	return (struct msg){ .what = MSG_GRANT, .flow = MSG_COPY, .a = 0, .b = 1, .order = order, .first = first };
}

static struct msg drop_of(uint64_t order)
{
	return (struct msg){ .what = MSG_DROP, .order = order };
}

/* Slots of the device's link that the end keeps. */
static uint32_t kept(uint32_t d)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < SLOTS; i++)
		n += __atomic_load_n(&played[d].out->busy[i], __ATOMIC_ACQUIRE);
	return n;
}

static void hang_up(uint32_t d)
{
	close(played[d].to);
	munmap(played[d].out, sizeof(*played[d].out));
	played[d].to = -1;
	played[d].out = NULL;
	played[d].said = played[d].slot = 0;
}

/* ------------------------------------------------------------------------------ links from the end */

/* The end's next message, whose room it keeps until give_room(). */
static struct entry *hear(uint32_t d)
{
	struct played *p = &played[d];
	struct entry *q;
	struct hello h;

	if (!p->in) {
		p->from = peer_accept(p->listener, &h, &p->in, NULL);
		MUST(h.magic == HELLO_MAGIC && !h.from && h.size == sizeof(*p->in) &&
		     !memcmp(h.key, p->address.key, sizeof(h.key)));
	}
	q = &p->in->entry[p->heard % ENTRIES];
	UNTIL(__atomic_load_n(&q->seq, __ATOMIC_ACQUIRE) == p->heard + 1, "a message from the end");
	p->heard++;
	MUST(q->msg.magic == MSG_MAGIC && !q->msg.from && !q->msg.zero);
	return q;
}

/* Whether there is another message. */
static bool hears(uint32_t d)
{
	struct played *p = &played[d];

	return p->in && __atomic_load_n(&p->in->entry[p->heard % ENTRIES].seq, __ATOMIC_ACQUIRE) == p->heard + 1;
}

static void ring(uint32_t d)
{
	send(played[d].from, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void give_room(uint32_t d)
{
	struct played *p = &played[d];

	for (uint32_t i = 0; i < SLOTS; i++)
		__atomic_store_n(&p->in->busy[i], 0, __ATOMIC_RELEASE);
	__atomic_store_n(&p->in->taken, p->heard, __ATOMIC_RELEASE);
	ring(d);
}

static void hears_chunk(uint32_t d, uint64_t order, uint64_t first, uint32_t len)
{
	const struct msg *m = &hear(d)->msg;

	if (m->what != MSG_COPY || m->order != order || m->first != first || m->len != len || m->a || m->b != 1)
		world_fail("kind %u, order %lu, element %lu, %u bytes, not a chunk of order %lu, element %lu, %u bytes", m->what,
		           (unsigned long)m->order, (unsigned long)m->first, m->len, (unsigned long)order,
		           (unsigned long)first, len);
}

/* Whether a socket of the test's gets a byte, which wakes a transport. */
static bool rung(int sock)
{
	struct timeval patience = { .tv_sec = 60 };
	char c;

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return recv(sock, &c, 1, 0) == 1;
}

/* ------------------------------------------------------------------------------ tests: what is granted */

static void grants_body(uint32_t self, void *arg)
{
	char *bytes = calloc(1, LONG + 5);
	uint64_t granted = WINDOW;
	struct ended e;

	(void)self;
	(void)arg;
	open_end();
	start_pair(7, 1, LONG + 5, NULL, bytes, &e);
	for (uint64_t at = 0; at < LONG + 5; at += CHUNK) {
		uint64_t len = LONG + 5 - at < CHUNK ? LONG + 5 - at : CHUNK;

		/* At half of the window, until all is granted. */
		if (at % (WINDOW / 2) == 0 && granted < LONG + 5) {
			const struct msg *m = &hear(1)->msg;

			MUST(m->what == MSG_GRANT && m->flow == MSG_COPY && m->order == 7 && m->a == 1 && !m->b && !m->len);
			granted = at + WINDOW;
			MUST(m->first == granted);
		}
		MUST(!hears(1));
		say(1, copy_of(7, at, len), 1 + at / CHUNK % 100);
		said_all(1);
	}
	ends_with(&e, STEP_OK);
	MUST(!hears(1) && !kept(1));
	for (uint64_t at = 0; at < LONG + 5; at++)
		MUST(bytes[at] == (char)(1 + at / CHUNK % 100));
	free(bytes);
	driver->close(end);
}

static void ahead_body(uint32_t self, void *arg)
{
	char *bytes = calloc(1, LONG + 5);
	struct msg m = grant_of(7, CHUNKS(5));
	struct ended e, more;
	uint64_t at;

	(void)self;
	(void)arg;
	open_end();
	start_pair(7, 1, LONG + 5, bytes, NULL, &e);
	for (at = 0; at < EAGER; at += CHUNK)
		hears_chunk(1, 7, at, CHUNK);
	settle();
	MUST(!hears(1));

	/* What is granted of other flows, or by other devices, grants nothing. */
	m.a = 1;
	say(1, m, 0);
	m = grant_of(7, CHUNKS(5));
	m.b = 0;
	say(1, m, 0);
	m = grant_of(7, CHUNKS(5));
	m.flow = MSG_RESULT;
	say(1, m, 0);
	say(2, grant_of(7, CHUNKS(5)), 0);
	said_all(1);
	said_all(2);
	settle();
	MUST(!hears(1));

	say(1, grant_of(7, CHUNKS(5)), 0);
	hears_chunk(1, 7, at, CHUNK);
	at += CHUNK;
	settle();
	MUST(!hears(1));
	/* Part of a chunk is no chunk. */
	say(1, grant_of(7, CHUNKS(7) - 1), 0);
	hears_chunk(1, 7, at, CHUNK);
	at += CHUNK;
	said_all(1);
	settle();
	MUST(!hears(1));
	give_room(1);
	say(1, grant_of(7, UINT64_MAX), 0);
	for (; at < LONG + 5; at += CHUNK) {
		hears_chunk(1, 7, at, LONG + 5 - at < CHUNK ? LONG + 5 - at : CHUNK);
		give_room(1);
	}
	ends_with(&e, STEP_OK);
	start_pair(8, 1, 1, bytes, NULL, &more);
	hears_chunk(1, 8, 0, 1);
	ends_with(&more, STEP_OK);
	MUST(!hears(1));
	free(bytes);
	driver->close(end);
}

/* ------------------------------------------------------------------------------ tests: what is kept */

/* Messages for an order that has not started: they stay, and go where that is due. */
static void early_body(uint32_t self, void *arg)
{
	char *bytes = calloc(1, CHUNKS(14));
	struct ended e;

	(void)self;
	(void)arg;
	open_end();
	/* One device takes back what it has sent; what another one has sent for the same order stays. */
	say(1, copy_of(7, 0, CHUNK), 1);
	say(2, copy_of(7, 0, CHUNK), 2);
	say(1, copy_of(8, 0, CHUNK), 3);
	said_all(1);
	said_all(2);
	MUST(kept(1) == 2 && kept(2) == 1);
	say(1, drop_of(7), 0);
	said_all(1);
	MUST(kept(1) == 1 && kept(2) == 1);
	start_pair(7, 2, CHUNK, NULL, bytes, &e);
	ends_with(&e, STEP_OK);
	MUST(bytes[0] == 2 && bytes[CHUNK - 1] == 2 && !kept(2) && kept(1) == 1);
	driver->withdraw(end, 8);
	UNTIL(!kept(1), "what is withdrawn is let go");

	/* Half of the slots are kept, the rest is copied; each chunk once. */
	for (uint32_t i = 0; i < 14; i++)
		say(1, copy_of(9, CHUNKS(i), CHUNK), 10 + i);
	said_all(1);
	MUST(kept(1) == SLOTS / 2);
	start_pair(9, 1, CHUNKS(14), NULL, bytes, &e);
	ends_with(&e, STEP_OK);
	for (uint64_t i = 0; i < CHUNKS(14); i++)
		MUST(bytes[i] == (char)(10 + i / CHUNK));
	MUST(!kept(1));
	/* Again: the slots count as free. */
	for (uint32_t i = 0; i < 14; i++)
		say(1, copy_of(10, CHUNKS(i), CHUNK), 0);
	said_all(1);
	MUST(kept(1) == SLOTS / 2);
	say(1, drop_of(10), 0);
	said_all(1);
	MUST(!kept(1));
	/* What comes for an operation that was cancelled is not kept. */
	start_pair(11, 1, CHUNKS(2), NULL, bytes, &e);
	driver->cancel(end, 11);
	ends_with(&e, STEP_REMOTE);
	say(1, copy_of(11, 0, CHUNK), 0);
	said_all(1);
	MUST(!kept(1));
	free(bytes);
	driver->close(end);
}

/* A sum at rank 0 of three: what one device has sent waits for the other one's. */
static void start_sum(uint64_t order, uint64_t count, const char *send, char *recv, struct ended *e)
{
	start_on(order, devices, 3, (struct step_call){ .kind = STEP_REDUCE, .type = TREE_UINT8, .count = count }, send,
	         recv, e);
}

static struct msg leaf_of(uint32_t d, uint64_t order, uint64_t first, uint32_t len)
{
	return (struct msg){ .what = MSG_LEAVES, .b = d, .order = order, .first = first, .len = len };
}

static void leaves_body(uint32_t self, void *arg)
{
	char *ones = malloc(CHUNKS(3)), *sum = calloc(1, CHUNKS(3));
	struct ended e;

	(void)self;
	(void)arg;
	open_end();
	memset(ones, 1, CHUNKS(3));
	start_sum(7, CHUNKS(3), ones, sum, &e);
	for (uint32_t i = 0; i < 3; i++)
		say(1, leaf_of(1, 7, CHUNKS(i), CHUNK), 10 + i);
	settle();
	said_all(1);
	MUST(kept(1) == 3);
	/* Each chunk of the other one lets one go. */
	for (uint32_t i = 0; i < 3; i++) {
		say(2, leaf_of(2, 7, CHUNKS(i), CHUNK), 20 + i);
		said_all(2);
		MUST(kept(1) == 2 - i && !kept(2));
	}
	ends_with(&e, STEP_OK);
	for (uint64_t i = 0; i < CHUNKS(3); i++)
		MUST(sum[i] == (char)(31 + 2 * (i / CHUNK)));

	start_sum(8, CHUNKS(3), ones, sum, &e);
	say(1, leaf_of(1, 8, 0, CHUNK), 1);
	settle();
	said_all(1);
	MUST(kept(1) == 1);
	driver->cancel(end, 8);
	ends_with(&e, STEP_REMOTE);
	MUST(!kept(1));
	free(ones);
	free(sum);
	driver->close(end);
}

/* ------------------------------------------------------------------------------ tests: who is needed */

static void needs_body(uint32_t self, void *arg)
{
	char *to = calloc(1, CHUNKS(8)), from[3][64] = { { 0 } }, sum[8] = { 0 }, got[64] = { 0 };
	struct ended all, receive, ahead, waits, reduce, rest;
	struct msg m;

	(void)self;
	(void)arg;
	open_end();
	start_on(7, devices, 3, (struct step_call){ .kind = STEP_ALLTOALL, .type = TREE_UINT8, .count = 64 }, to, from, &all);
	start_pair(8, 1, 64, NULL, got, &receive);	/* needs device 1: */
	start_pair(9, 1, CHUNKS(8), to, NULL, &ahead);	/* this, too */
	start_pair(10, 2, CHUNKS(8), to, NULL, &waits);
	start_sum(11, 8, to, sum, &reduce);
	start_pair(12, 2, 64, NULL, got, &rest);
	say(1, copy_of(7, 0, 64), 1);
	say(1, leaf_of(1, 11, 0, 8), 1);
	settle();
	said_all(1);
	/* Its entries are its own again. */
	memset(played[1].out->entry, 0, sizeof(played[1].out->entry));
	/* Device 1's part of the all-to-all has come and gone, and its leaf is kept: then it leaves. */
	MUST(hear(1)->msg.order == 7 && hear(2)->msg.order == 7);
	for (uint64_t at = 0; at < EAGER; at += CHUNK) {
		MUST(hear(1)->msg.order == 9);
		MUST(hear(2)->msg.order == 10);
	}
	settle();
	MUST(!hears(1) && !hears(2));
	hang_up(1);
	ends_with(&receive, STEP_REMOTE);
	ends_with(&ahead, STEP_REMOTE);
	settle();
	m = copy_of(7, 0, 64);
	m.a = 2;
	say(2, m, 2);
	say(2, leaf_of(2, 11, 0, 8), 2);
	say(2, grant_of(10, CHUNKS(8)), 0);
	say(2, copy_of(12, 0, 64), 5);
	ends_with(&waits, STEP_OK);
	ends_with(&reduce, STEP_OK);
	ends_with(&rest, STEP_OK);
	ends_with(&all, STEP_OK);
	MUST(from[1][0] == 1 && from[1][63] == 1 && from[2][0] == 2 && from[2][63] == 2);
	MUST(sum[0] == 3 && sum[7] == 3 && got[0] == 5 && got[63] == 5);
	/* A device that has ended the link to itself gets nothing more. */
	start_pair(13, 3, CHUNKS(8), to, NULL, &ahead);
	start_pair(14, 2, CHUNKS(8), to, NULL, &waits);
	hear(3);
	close(played[3].from);
	ends_with(&ahead, STEP_REMOTE);
	say(2, grant_of(14, CHUNKS(8)), 0);
	ends_with(&waits, STEP_OK);
	free(to);
	driver->close(end);
}

/* Mappings of a link that the test has made. */
static int mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += !!strstr(line, "memfd:played");
	if (f)
		fclose(f);
	return n;
}

/* What a device has sent before it left stays in its memory until it is taken. */
static void left_body(uint32_t self, void *arg)
{
	char *bytes = calloc(1, CHUNKS(2)), got[8];
	struct ended e, gone;

	(void)self;
	(void)arg;
	open_end();
	start_pair(7, 1, 8, NULL, got, &gone);
	say(1, copy_of(8, 0, CHUNK), 4);
	say(1, copy_of(8, CHUNK, CHUNK), 5);
	said_all(1);
	hang_up(1);
	ends_with(&gone, STEP_REMOTE);
	settle();
	MUST(mapped() == 1);
	start_pair(8, 1, CHUNKS(2), NULL, bytes, &e);
	ends_with(&e, STEP_OK);
	MUST(bytes[0] == 4 && bytes[CHUNK] == 5 && bytes[2 * CHUNK - 1] == 5);
	MUST(!mapped());

	/* If that fits no operation, the one that needs the device ends. */
	start_pair(9, 1, 8, NULL, got, &gone);
	say(1, copy_of(10, 1, CHUNK), 6);
	said_all(1);
	hang_up(1);
	ends_with(&gone, STEP_REMOTE);
	start_pair(10, 1, CHUNKS(2), NULL, bytes, &e);
	ends_with(&e, STEP_REMOTE);
	MUST(!mapped() && strstr(said, "device 1 "));
	free(bytes);
	driver->close(end);
}

/* Nothing more is read of a device that sends nonsense. What it sent before is let go with its operations. */
static void refused_body(uint32_t self, void *arg)
{
	char ones[2 * CHUNK], sum[2 * CHUNK], got[8];
	struct played *p = &played[1];
	struct ended e, other;

	(void)self;
	(void)arg;
	open_end();
	memset(ones, 1, sizeof(ones));
	start_sum(7, sizeof(ones), ones, sum, &e);
	start_pair(8, 2, 8, NULL, got, &other);
	say(2, copy_of(9, 0, 8), 0);
	say(1, leaf_of(1, 7, 0, CHUNK), 1);
	settle();
	said_all(1);
	said_all(2);
	MUST(kept(1) == 1);
	/* The message behind it is there first. */
	p->said++;
	say(1, drop_of(10), 0);
	p->said -= 2;
	say(1, (struct msg){ .what = MSG_DROP + 1 }, 0);
	ends_with(&e, STEP_REMOTE);
	UNTIL(!recv(p->to, got, 1, MSG_DONTWAIT) || errno == ECONNRESET, "its link ends");
	settle();
	MUST(!kept(1) && p->out->taken == 2 && strstr(said, "device 1 "));
	say(2, copy_of(8, 0, 8), 2);
	ends_with(&other, STEP_OK);
	driver->close(end);
}

/* ------------------------------------------------------------------------------ tests: links in memory */

/* Messages lie where their length says; no entry and no slot is used twice. */
static void room_body(uint32_t self, void *arg)
{
	static const uint32_t lens[] = { 1, sizeof(uint64_t), sizeof(uint64_t) + 1, INLINE, INLINE + 1 };
	static struct ended e[ENTRIES + 40];
	char *bytes = malloc(LONG);
	struct link_memory *in;
	uint64_t order = 1;
	struct ended many;

	(void)self;
	(void)arg;
	open_end();
	memset(bytes, 3, LONG);
	for (uint32_t i = 0; i < 5; i++) {
		struct entry *q;

		start_pair(order, 1, lens[i], bytes, NULL, &e[i]);
		q = hear(1);
		in = played[1].in;
		MUST(q->msg.order == order++ && q->msg.len == lens[i]);
		const char *data = lens[i] <= sizeof(q->word) ? (char *)&q->word : lens[i] <= INLINE ? q->data : in->slot[q->slot];
		MUST(data[0] == 3 && data[lens[i] - 1] == 3);
		MUST(in->busy[0] == (lens[i] > INLINE));
		ends_with(&e[i], STEP_OK);
	}
	give_room(1);

	/* All slots, and then those alone that are free; what needs none goes on. */
	start_pair(order, 1, LONG, bytes, NULL, &many);
	say(1, grant_of(order, LONG), 0);
	for (uint32_t i = 0; i < SLOTS; i++)
		hears_chunk(1, order, CHUNKS(i), CHUNK);
	start_pair(1000, 1, INLINE, bytes, NULL, &e[0]);
	hears_chunk(1, 1000, 0, INLINE);
	ends_with(&e[0], STEP_OK);
	settle();
	MUST(!hears(1));
	__atomic_store_n(&in->busy[5], 0, __ATOMIC_RELEASE);
	ring(1);
	MUST(hear(1)->slot == 5);
	settle();
	MUST(!hears(1));
	for (uint64_t i = SLOTS + 1; i < LONG / CHUNK; i++) {
		give_room(1);
		hears_chunk(1, order, CHUNKS(i), CHUNK);
	}
	ends_with(&many, STEP_OK);
	give_room(1);

	/* All entries. */
	for (uint32_t i = 0; i < ENTRIES + 40; i++)
		start_pair(++order, 1, 1, bytes, NULL, &e[i]);
	for (uint32_t i = 0; i < ENTRIES; i++)
		MUST(hear(1)->msg.order == order - ENTRIES - 39 + i);
	settle();
	MUST(!hears(1));
	for (uint32_t i = 0; i < ENTRIES; i++)
		MUST(in->entry[i].seq > played[1].heard - ENTRIES && in->entry[i].seq <= played[1].heard);
	give_room(1);
	for (uint32_t i = 0; i < ENTRIES + 40; i++)
		ends_with(&e[i], STEP_OK);
	for (uint32_t i = 0; i < 40; i++)
		hear(1);
	MUST(!hears(1));
	free(bytes);
	driver->close(end);
}

static uint32_t is_held, may_go; /* atomic */
static char byte_of_last = 1;
static struct ended last;

/* done() of an operation: keeps the end from going on, and then starts another one. */
static void hold(void *arg, enum step_code code)
{
	(void)code;
	__atomic_store_n(&is_held, 1, __ATOMIC_RELEASE);
	UNTIL(__atomic_exchange_n(&may_go, 0, __ATOMIC_ACQUIRE), "to be let go");
	start_pair(*(uint64_t *)arg, 1, 1, &byte_of_last, NULL, &last);
}

/* Messages without data wait for room, too, and go before what comes later. */
static void later_body(uint32_t self, void *arg)
{
	static struct ended e[ENTRIES], receive[2];
	char *bytes = calloc(1, LONG), one = 1, to;
	uint64_t order = 1, of_last;

	(void)self;
	(void)arg;
	open_end();
	for (int round = 0; round < 3; round++) {
		struct transport_part p = { .rank = 0, .send = &one, .recv = &to };
		struct transport_start s = { .order = order + 1000, .ranks = 1, .nparts = 1, .device = devices, .part = &p,
			                .done = hold, .arg = &of_last,
			                .call = { .kind = STEP_ALLREDUCE, .type = TREE_UINT8, .count = 1 } };

		for (uint32_t i = 0; i < ENTRIES; i++)
			start_pair(order++, 1, 1, bytes, NULL, &e[i]);
		start_pair(order++, 1, LONG, NULL, bytes, &receive[0]);
		start_pair(order++, 1, LONG, NULL, bytes, &receive[1]);
		for (uint32_t i = 0; i < ENTRIES; i++)
			MUST(hear(1)->msg.what == MSG_COPY);
		of_last = order++;
		MUST(!driver->start(end, &s));
		UNTIL(__atomic_exchange_n(&is_held, 0, __ATOMIC_ACQUIRE), "the end is held");
		MUST(!hears(1));
		give_room(1);
		__atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
		MUST(hear(1)->msg.order == of_last - 2);
		MUST(hear(1)->msg.order == of_last - 1);
		MUST(hear(1)->msg.order == of_last);
		give_room(1);
		ends_with(&last, STEP_OK);
		for (int i = 0; i < 2; i++) {
			driver->cancel(end, of_last - 2 + i);
			ends_with(&receive[i], STEP_REMOTE);
			MUST(hear(1)->msg.what == MSG_DROP);
		}
		give_room(1);
	}
	free(bytes);
	driver->close(end);
}

/* Whoever sleeps, or waits for room, is woken by a byte, once. */
static void rings_body(uint32_t self, void *arg)
{
	char *bytes = calloc(1, CHUNK);
	struct ended e;

	(void)self;
	(void)arg;
	open_end();
	start_pair(7, 1, 1, bytes, NULL, &e);
	hear(1);
	ends_with(&e, STEP_OK);
	__atomic_store_n(&played[1].in->sleeps, 1, __ATOMIC_SEQ_CST);
	settle();	/* the end's processor has seen it */
	start_pair(8, 1, 1, bytes, NULL, &e);
	hear(1);
	MUST(rung(played[1].from) && !played[1].in->sleeps);
	ends_with(&e, STEP_OK);

	/* A message that is taken makes room, and so does a slot that was kept. */
	say(1, copy_of(9, 0, CHUNK), 7);
	said_all(1);
	__atomic_store_n(&played[1].out->waits, 1, __ATOMIC_SEQ_CST);
	say(1, drop_of(77), 0);
	said_all(1);
	MUST(rung(played[1].to) && !played[1].out->waits && kept(1) == 1);
	__atomic_store_n(&played[1].out->waits, 1, __ATOMIC_SEQ_CST);
	start_pair(9, 1, CHUNK, NULL, bytes, &e);
	ends_with(&e, STEP_OK);
	MUST(rung(played[1].to) && !played[1].out->waits && !kept(1));
	free(bytes);
	driver->close(end);
}

/* A hello that is one byte too short, whose last byte is 0, is none. */
static void short_body(uint32_t self, void *arg)
{
	struct hello h = { .magic = HELLO_MAGIC, .from = 1, .size = sizeof(struct link_memory) };
	int fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char c;

	(void)self;
	(void)arg;
	open_end();
	memcpy(h.key, end_address.key, sizeof(h.key));
	MUST(!((char *)&h)[sizeof(h) - 1]);
	MUST(!ftruncate(fd, sizeof(struct link_memory)) &&
	     !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	for (int i = 0; i < 2; i++) {
		int sock = peer_dial(&end_address);

		h.key[0] ^= !i;	/* the first one is refused as a whole, and says what was there before */
		MUST(sock >= 0 && peer_give(sock, &h, sizeof(h) - i, &fd, 1));
		h.key[0] ^= !i;
		UNTIL(!recv(sock, &c, 1, MSG_DONTWAIT) || errno == ECONNRESET, "a wrong hello ends its connection");
		close(sock);
	}
	close(fd);
	driver->close(end);
}

/* ------------------------------------------------------------------------------ tests: over TCP */

/* Device 1 is on another host, which is this one by loopback. */
static int listen_tcp(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct address *a = &played[1].address;
	socklen_t len = sizeof(in);
	int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;

	setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	MUST(!bind(sock, (void *)&in, len) && !listen(sock, 8) && !getsockname(sock, (void *)&in, &len));
	a->net = ~a->net;
	a->port = in.sin_port;
	a->n = 2;
	/* Nobody is at the first address. */
	a->tcp[0].family = a->tcp[1].family = 4;
	memcpy(a->tcp[0].ip, &(uint32_t){ htonl(INADDR_LOOPBACK + 1) }, 4);
	memcpy(a->tcp[1].ip, &in.sin_addr, 4);
	return sock;
}

static void get(int sock, void *to, size_t len)
{
	if (recv(sock, to, len, MSG_WAITALL) != (ssize_t)len)
		world_fail("nothing more comes over TCP");
}

/* A frame of this order, or of any: which. */
static uint64_t get_frame(int sock, uint64_t order, uint64_t first, uint32_t len, const char *from)
{
	static char data[CHUNK];
	struct msg m;

	get(sock, &m, sizeof(m));
	if (m.magic != MSG_MAGIC || m.from || (order && m.order != order) || m.first != first || m.len != len)
		world_fail("order %lu, element %lu, %u bytes, not order %lu, element %lu, %u bytes", (unsigned long)m.order,
		           (unsigned long)m.first, m.len, (unsigned long)order, (unsigned long)first, len);
	get(sock, data, len);
	MUST(!memcmp(data, from + first, len));
	return m.order;
}

/* The end's socket at the other side of one of the test's. */
static int other_side(int sock)
{
	struct sockaddr_in peer, a;
	socklen_t len = sizeof(peer);

	MUST(!getpeername(sock, (void *)&peer, &len));
	for (int fd = 3; fd < 1024; fd++) {
		len = sizeof(a);
		if (!getsockname(fd, (void *)&a, &len) && a.sin_family == AF_INET && a.sin_port == peer.sin_port &&
		    !getpeername(fd, (void *)&a, &len))
			return fd;
	}
	world_fail("no socket of the end's");
}

/* Whether the end has nothing to do: no event waits for it. */
static bool is_quiet(void)
{
	char path[32], of[64];

	for (int fd = 3; fd < 1024; fd++) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, of, sizeof(of) - 1);
		of[n < 0 ? 0 : n] = 0;
		if (strstr(of, "[eventpoll]"))
			return !poll(&p, 1, 0);
	}
	world_fail("no epoll of the end's");
}

/* A reader that stops: what the kernel does not take is sent later, in order, from a copy. */
static void tcp_out_body(uint32_t self, void *arg)
{
	struct timeval patience = { .tv_sec = 60 };
	int listener, sock, least = 1;
	static struct ended e, other[300];
	char *bytes = malloc(LONG), seen[300] = { 0 };
	struct hello h;
	uint64_t at;

	(void)self;
	(void)arg;
	open_end();
	listener = listen_tcp();
	for (at = 0; at < LONG / sizeof(uint32_t); at++)
		((uint32_t *)bytes)[at] = at * 2654435761u;
	start_pair(7, 1, LONG, bytes, NULL, &e);
	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(listener);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	get(sock, &h, sizeof(h));
	MUST(h.magic == HELLO_MAGIC && !h.from && !memcmp(h.key, played[1].address.key, sizeof(h.key)));
	for (at = 0; at < EAGER; at += CHUNK)
		get_frame(sock, 7, at, CHUNK, bytes);
	UNTIL(is_quiet(), "the end rests");

	/* The kernel takes parts of messages alone. */
	MUST(!setsockopt(other_side(sock), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)));
	for (uint32_t size = 8; size <= 8000; size += 7992) {
		for (uint32_t i = 0; i < 300; i++)
			start_pair(8 + size + i, 1, size, bytes, NULL, &other[i]);
		settle();
		for (uint32_t i = 0; i < 300; i++) {	/* in any order: each waits for room */
			uint64_t order = get_frame(sock, 0, 0, size, bytes) - 8 - size;

			MUST(order < 300 && !seen[order]++);
		}
		memset(seen, 0, sizeof(seen));
		for (uint32_t i = 0; i < 300; i++)
			ends_with(&other[i], STEP_OK);
	}
	say(1, grant_of(7, LONG), 0);
	said_all(1);
	settle();
	for (; at < LONG; at += CHUNK)
		get_frame(sock, 7, at, CHUNK, bytes);
	ends_with(&e, STEP_OK);
	UNTIL(is_quiet(), "the end rests");

	/* The end hears that its reader has gone, although it may not send. */
	start_pair(9000, 1, LONG, bytes, NULL, &e);
	for (at = 0; at < EAGER; at += CHUNK)
		get_frame(sock, 9000, at, CHUNK, bytes);
	shutdown(sock, SHUT_WR);
	ends_with(&e, STEP_REMOTE);
	close(sock);
	free(bytes);
	driver->close(end);
}

static void put_bytes(int sock, const void *from, size_t len)
{
	MUST(send(sock, from, len, MSG_NOSIGNAL) == (ssize_t)len);
}

/* A link to the end from a device on another host. */
static int greet_tcp(uint32_t d)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		                  .sin_port = end_address.port };
	struct hello h = { .magic = HELLO_MAGIC, .from = d, .size = sizeof(struct link_memory) };
	int one = 1, sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval patience = { .tv_sec = 60 };

	memcpy(h.key, end_address.key, sizeof(h.key));
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	MUST(!connect(sock, (void *)&in, sizeof(in)));
	put_bytes(sock, &h, sizeof(h));
	return sock;
}

#define ODD 3001u

struct frame {
	struct msg m;
	char data[ODD];
} __attribute__((packed));

static struct frame frame_of(uint32_t d, uint64_t order)
{
	struct frame f = { .m = copy_of(order, 0, ODD) };

	f.m.magic = MSG_MAGIC;
	f.m.from = d;
	for (uint32_t i = 0; i < ODD; i++)
		f.data[i] = order * 7 + i;
	return f;
}

static void has_come(struct ended *e, uint64_t order, const char *got)
{
	ends_with(e, STEP_OK);
	for (uint32_t i = 0; i < ODD; i++)
		MUST(got[i] == (char)(order * 7 + i));
}

/* Its link is closed, and the user is told; nobody else's operation ends. */
static void is_refused(int sock, uint32_t d)
{
	char c, name[32];

	MUST(!recv(sock, &c, 1, 0) || errno == ECONNRESET);
	close(sock);
	UNTIL(__atomic_exchange_n(&has_said, 0, __ATOMIC_ACQUIRE), "a word to the user");
	snprintf(name, sizeof(name), "device %u ", d);
	MUST(strstr(said, name));
}

/* Frames that come in any parts. */
static void tcp_in_body(uint32_t self, void *arg)
{
	static const uint64_t ways[] = { 1, 0, 17, sizeof(struct msg), sizeof(struct msg) + 1, ODD, sizeof(struct frame) - 1 };
	char got[ODD], more[ODD];
	struct ended e, next;
	struct frame f[2];
	int sock, other;
	uint64_t order;

	(void)self;
	(void)arg;
	open_end();
	if (!end_address.port) {	/* a host without addresses: nobody listens */
		driver->close(end);
		return;
	}
	sock = greet_tcp(1);
	for (order = 1; order <= 7; order++) {
		f[0] = frame_of(1, order);
		start_pair(order, 1, ODD, NULL, got, &e);
		put_bytes(sock, f, ways[order - 1]);
		for (int i = 0; i < 4; i++)
			settle();
		put_bytes(sock, (char *)f + ways[order - 1], sizeof(f[0]) - ways[order - 1]);
		has_come(&e, order, got);
	}
	/* The part that is there already stays when what is before it has been taken. */
	f[0] = frame_of(1, 8);
	f[1] = frame_of(1, 9);
	start_pair(8, 1, ODD, NULL, got, &e);
	start_pair(9, 1, ODD, NULL, more, &next);
	put_bytes(sock, f, sizeof(f[0]) + 100);
	has_come(&e, 8, got);
	put_bytes(sock, (char *)&f[1] + 100, sizeof(f[1]) - 100);
	has_come(&next, 9, more);

	/* A device that says that it is another one, and one whose message is too long. */
	other = greet_tcp(2);
	start_pair(10, 2, ODD, NULL, got, &e);
	f[0] = frame_of(2, 10);
	put_bytes(other, f, 100);
	put_bytes(sock, f, sizeof(f[0]));
	is_refused(sock, 1);
	sock = greet_tcp(3);
	f[0] = frame_of(3, 11);
	f[0].m.len = CHUNK + 1;
	put_bytes(sock, f, sizeof(f[0].m));
	is_refused(sock, 3);
	settle();
	MUST(!__atomic_load_n(&e.code, __ATOMIC_ACQUIRE));
	f[0] = frame_of(2, 10);
	put_bytes(other, (char *)f + 100, sizeof(f[0]) - 100);
	has_come(&e, 10, got);
	close(other);
	driver->close(end);
}

static const char *only;
static int bad;

static void run(const char *name, void (*body)(uint32_t, void *), const char *says)
{
	if (only && strcmp(only, name))
		return;
	world_begin_as(1, TRANSPORT_TREE, true, body, NULL);
	bad += world_result(!world_end(), says);
}

int main(int argc, char **argv)
{
	only = argc > 1 ? argv[1] : NULL;
	printf("TAP version 13\n1..%d\n", only ? 1 : 13);
	run("grants", grants_body, "a receiver grants more when half of its window has come");
	run("ahead", ahead_body, "a sender goes no further than it was granted");
	run("early", early_body, "what comes too soon is kept for its sender and order, and let go");
	run("leaves", leaves_body, "what another device is missing for is kept, and let go");
	run("needs", needs_body, "a device that leaves ends what needs it, and nothing else");
	run("left", left_body, "what a device sent before it left is there until it is taken");
	run("refused", refused_body, "what a device sends behind nonsense is not read");
	run("room", room_body, "no slot and no entry of a link is used twice");
	run("later", later_body, "what waits for room goes in order");
	run("rings", rings_body, "who sleeps or waits for room is woken");
	run("short", short_body, "a short hello is refused");
	run("tcp_out", tcp_out_body, "what the kernel does not take at once goes over TCP in order");
	run("tcp_in", tcp_in_body, "frames come over TCP in any parts");
	return !!bad;
}
