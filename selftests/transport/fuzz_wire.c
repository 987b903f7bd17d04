// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_wire.c - libFuzzer over the soft device's transport: a peer that knows every key, and lies
 *
 * An input is a program for a small machine. Two honest ends, devices 0 and 1, run operations with
 * each other and with device 2, the liar. It connects to both by memory and by TCP with hellos that
 * are nearly right, sends messages that are nearly what comes next, changes a message and its data
 * while they are taken, writes what only the receiver may write, sends again what it has sent, and
 * leaves at any moment. All of it runs in one thread: the input says whose turn it is.
 *
 * Checked: what the honest ends do with each other ends well, with the right bytes; everything else
 * ends, too, and its buffers are not touched later; the liar is named, nobody else is; no descriptor
 * and no memory is left over.
 */
#define _GNU_SOURCE
#include <pthread.h>

#define pthread_create(t, a, f, arg)	((void)(f), *(t) = pthread_self(), 0)
#define pthread_join(t, r)		0
#include "transport.c"
#include "drive.c"
#undef pthread_create
#undef pthread_join

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "wire_i.h"
#include "../harness/fuzz.h"

#define HONEST	2u
#define LIAR	2u
#define OPS	12
#define FDS	64
#define TURNS	20000

bool fuzz_flow_message(struct transport *c, const struct msg *m, void *data, struct link *link, size_t len);

static struct program input;

/* A number near a border, or any. */
static uint64_t odd(void)
{
	static const uint64_t borders[] = { 0, 1, 63, 64, 65, CHUNK - 1, CHUNK, CHUNK + 1, EAGER, WINDOW,
		TRANSPORT_DEVICES_MAX - 1, TRANSPORT_DEVICES_MAX, UINT32_MAX, 1ull << 32, INT64_MAX, UINT64_MAX };
	uint8_t how = byte(&input);

	return how & 128 ? raw(&input, 1 + how % 8) : borders[how % 16];
}

/* ------------------------------------------------------------------------------ operations */

/* One end's part of an operation. */
struct side {
	struct doing *of;
	bool due, started, ended;
	char *send[4], *recv[4];
};

static struct doing {
	uint64_t order;
	struct step_call call;
	uint32_t ranks, source;		/* source: of a pair */
	uint32_t device[4];
	bool honest, cancelled;
	struct side side[HONEST];
} doing[OPS];
static unsigned int ndoing;
static struct transport *ends_of[HONEST];

static bool is_pair(const struct doing *d)
{
	return d->call.kind >= STEP_SEND;
}

/* Bytes of a rank's buffers; 0: it has none. */
static void sizes(const struct doing *d, uint32_t rank, size_t *send, size_t *recv)
{
	size_t n = d->call.count * tree_leaf_size(d->call.type), all = n * d->ranks;
	bool root = rank == d->call.peer;

	*send = *recv = n;
	switch (d->call.kind) {
	case STEP_REDUCE:
		*recv = root ? n : 0;
		break;
	case STEP_BROADCAST:
		*send = root ? n : 0;
		break;
	case STEP_ALLTOALL:
		*send = *recv = all;
		break;
	case STEP_REDUCESCATTER:
		*send = all;
		break;
	case STEP_ALLGATHER:
		*recv = all;
		break;
	case STEP_GATHER:
		*recv = root ? all : 0;
		break;
	case STEP_SCATTER:
		*send = root ? all : 0;
		break;
	case STEP_SEND:
	case STEP_RECV:
		*send = rank == d->source ? n : 0;
		*recv = rank == d->source ? 0 : n;
		break;
	}
}

static char *buffer(size_t size, int fill)
{
	char *p = size ? malloc(size) : NULL;

	if (p)
		memset(p, fill, size);
	return p;
}

/* All that honest ends send are ones, and so is all that they get. */
static void over(void *arg, enum step_code code)
{
	struct side *s = arg;
	struct doing *d = s->of;
	size_t send, recv;

	MUST(s->started && !s->ended);
	s->ended = true;
	MUST(!code || !d->honest || d->cancelled);
	for (uint32_t r = 0; r < d->ranks; r++) {
		sizes(d, r, &send, &recv);
		for (size_t i = 0; s->recv[r] && i < recv && d->honest && !code; i++)
			MUST(s->recv[r][i] == 1);
		free(s->send[r]);
		free(s->recv[r]);
		s->send[r] = s->recv[r] = NULL;
	}
}

static void start(struct doing *d, uint32_t e)
{
	struct side *s = &d->side[e];
	struct transport_part part[4];
	uint64_t factor = 1;
	struct transport_start o = { .order = d->order, .call = d->call, .ranks = d->ranks, .device = d->device,
				.part = part, .done = over, .arg = s };
	size_t send, recv;

	if (!s->due || s->started)
		return;
	s->started = true;
	for (uint32_t r = 0; r < d->ranks; r++) {
		if (d->device[r] != e)
			continue;
		sizes(d, r, &send, &recv);
		s->send[r] = buffer(send, 1);
		s->recv[r] = buffer(recv, 0xa5);
		part[o.nparts++] = (struct transport_part){ .rank = r, .send = s->send[r], .recv = s->recv[r],
						       .factor = &factor };
		if (is_pair(d))
			o.call.kind = r == d->source ? STEP_SEND : STEP_RECV;
		if (is_pair(d))
			o.call.peer = d->source ^ (r == d->source);
	}
	if (soft_start(ends_of[e], &o))
		over(s, STEP_SYSTEM);
}

static void propose(void)
{
	static const uint32_t counts[] = { 1, 2, 7, 16, 17, 700, 1025, 8200, 16390, 33000, 70000 };
	struct doing *d = &doing[ndoing];
	uint8_t how = byte(&input), what = byte(&input);

	if (ndoing == OPS)
		return;
	*d = (struct doing){ .order = ++ndoing, .ranks = 1 + how % 4 };
	d->call.kind = what % STEP_KINDS;
	d->call.type = byte(&input) % TREE_TYPES;
	d->call.count = counts[byte(&input) % 11];
	if (d->call.count > 300000 / tree_leaf_size(d->call.type))
		d->call.count = 8200;
	if (is_pair(d))
		d->ranks = 2;
	for (uint32_t r = 0; r < d->ranks; r++) {
		d->device[r] = (how >> (2 + r)) % 4 == 3 ? LIAR : how >> (2 + r) & 1;
	}
	if (is_pair(d) && d->device[0] == d->device[1])
		d->device[1] = (d->device[0] + 1) % 3;
	d->call.peer = is_pair(d) ? 1 : what / STEP_KINDS % d->ranks;
	d->source = what >> 7;
	d->honest = true;
	for (uint32_t r = 0; r < d->ranks; r++) {
		d->honest &= d->device[r] != LIAR;
		if (d->device[r] < HONEST)
			d->side[d->device[r]].due = true;
	}
	if (d->call.kind == STEP_ALLREDUCE || d->call.kind == STEP_REDUCE ||
	    d->call.kind == STEP_REDUCESCATTER)
		d->call.op = d->honest ? TREE_MAX : byte(&input) % TREE_OPS;
	for (uint32_t e = 0; e < HONEST; e++)
		d->side[e].of = d;
	if (how & 128)
		start(d, how >> 6 & 1);
}

/* What is withdrawn does not start any more. */
static void withdraw(struct doing *d, uint32_t e, uint8_t how)
{
	soft_withdraw(ends_of[e], d->honest ? OPS + 1 + how : d->order);
	d->side[e].due &= d->honest;
}

static void cancel(struct doing *d)
{
	d->cancelled = true;
	for (uint32_t e = 0; e < HONEST; e++)
		if (d->side[e].started)
			soft_cancel(ends_of[e], d->order);
}

/* ------------------------------------------------------------------------------ turns */

static void turn(uint32_t e)
{
	struct transport *c = ends_of[e];

	c->wire->polls = UINT32_MAX;	/* a look at the sockets, each time */
	comm_turn(c);
}

static void sleep_once(uint32_t e)
{
	uint64_t one = 1;

	MUST(write(ends_of[e]->bell, &one, sizeof(one)) == sizeof(one));
	helper_sleep(ends_of[e]);
}

static void named(void *arg, const char *text)
{
	(void)arg;
	MUST(strstr(text, "device ") && !strstr(text, "device 0 ") && !strstr(text, "device 1 "));
}

static struct address address_of[HONEST + 1];

static int address(void *arg, uint32_t device, void *to)
{
	(void)arg;
	if (device > HONEST)
		return -ENOENT;
	memcpy(to, &address_of[device], sizeof(address_of[0]));
	return sizeof(address_of[0]);
}

/* ------------------------------------------------------------------------------ the liar's links */

static struct {
	int memory, tcp;		/* its listeners */
	struct line {			/* a link to an honest end, or from it */
		int sock;
		struct link_memory *mem;
		uint32_t at;
		struct msg last;
	} to[HONEST], tcp_to[HONEST], from[HONEST];
	struct sudden {			/* what it writes while a message is taken */
		bool due;
		uint32_t offset;
		uint8_t bytes[8];
	} sudden;
} liar;

/* With a reset, so that no port of TCP stays occupied. */
static void shut(int sock)
{
	struct linger at_once = { .l_onoff = 1 };

	setsockopt(sock, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	close(sock);
}

static void hang_up(struct line *l)
{
	if (l->sock >= 0)
		shut(l->sock);
	if (l->mem)
		munmap(l->mem, sizeof(*l->mem));
	*l = (struct line){ .sock = -1 };
}

/* libFuzzer has a timer, which may interrupt a connect(). */
static int call(uint32_t e, bool tcp)
{
	const struct address *a = &address_of[e];
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = a->port,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int sock = -1, rc = -1;

	memcpy(un.sun_path + 1, "singvgpu-comm-", 14);
	for (int i = 0; i < 16; i++) {
		un.sun_path[15 + 2 * i] = "0123456789abcdef"[a->name[i] >> 4];
		un.sun_path[16 + 2 * i] = "0123456789abcdef"[a->name[i] & 15];
	}
	if (tcp && !a->port)
		return -1;
	while (rc) {
		if (sock >= 0)
			shut(sock);
		sock = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		MUST(sock >= 0);
		rc = tcp ? connect(sock, (void *)&in, sizeof(in)) :
			   connect(sock, (void *)&un, offsetof(struct sockaddr_un, sun_path) + 47);
		MUST(!rc || errno == EINTR);
	}
	return sock;
}

static void give(int sock, const void *p, size_t len, int fd, uint32_t n)
{
	union {
		char room[CMSG_SPACE(3 * sizeof(int))];
		struct cmsghdr h;
	} u = { .h = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
		       .cmsg_len = CMSG_LEN(n * sizeof(int)) } };
	struct iovec v = { (void *)p, len };
	struct msghdr h = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = n ? &u : NULL,
			    .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };

	for (uint32_t i = 0; i < n; i++)
		memcpy(CMSG_DATA(&u.h) + i * sizeof(int), &fd, sizeof(fd));
	sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A hello, right if `how` is 0. */
static void greet(uint32_t e, bool tcp, uint8_t how)
{
	struct line *l = tcp ? &liar.tcp_to[e] : &liar.to[e];
	struct hello h = { .magic = HELLO_MAGIC, .from = LIAR, .size = sizeof(struct link_memory) };
	size_t len = sizeof(h), size = sizeof(struct link_memory);
	int fd;

	hang_up(l);
	memcpy(h.key, address_of[e].key, sizeof(h.key));
	l->sock = call(e, tcp);
	if (l->sock < 0)
		return;
	if (how & 1)			/* it cannot say that it is the other honest one: see the docs */
		h.from = e + (HONEST + 1) * (byte(&input) & 1 ? odd() % 8 : odd());
	if (how & 2)
		h.key[byte(&input) % 16] ^= 1u << byte(&input) % 8;
	if (how & 4)
		len = byte(&input) % (2 * sizeof(h));
	if (how & 8)
		size = byte(&input) & 1 ? odd() % (1u << 20) : size + byte(&input);
	if (h.from < HONEST && h.from != e)
		h.from = LIAR;
	if (tcp) {
		uint8_t longer[2 * sizeof(h)] = { 0 };

		memcpy(longer, &h, sizeof(h));
		send(l->sock, longer, len, MSG_NOSIGNAL | MSG_DONTWAIT);
		return;
	}
	fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	MUST(fd >= 0 && !ftruncate(fd, size));
	if (!(how & 16))
		fcntl(fd, F_ADD_SEALS, how & 32 ? F_SEAL_SHRINK : F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	if (size == sizeof(*l->mem))
		l->mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(l->mem != MAP_FAILED);
	give(l->sock, &h, len < sizeof(h) ? len : sizeof(h), fd, how & 64 ? byte(&input) % 4 : 1);
	close(fd);
}

/* An honest end connects: its hello may bring memory. */
static void take_call(bool tcp)
{
	int sock = accept4(tcp ? liar.tcp : liar.memory, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), fd = -1;
	char room[CMSG_SPACE(sizeof(int))];
	struct hello h;
	struct iovec v = { &h, sizeof(h) };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };

	if (sock < 0)
		return;
	if (recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(h)) {
		shut(sock);
		return;
	}
	if (!tcp && CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	MUST(h.magic == HELLO_MAGIC && h.from < HONEST && (fd < 0) == tcp);
	hang_up(&liar.from[h.from]);
	liar.from[h.from].sock = sock;
	if (fd < 0)
		return;
	liar.from[h.from].mem = mmap(NULL, sizeof(struct link_memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(liar.from[h.from].mem != MAP_FAILED);
	close(fd);
}

/* ------------------------------------------------------------------------------ messages */

/* What an honest device 2 would send first, to an end that has not started. */
static struct msg early_one(const struct doing *d, uint8_t k)
{
	static const uint8_t whats[] = { MSG_LEAVES, MSG_COPY, MSG_RESULT, MSG_GRANT };
	size_t size = tree_leaf_size(d->call.type);
	struct msg m = { .magic = MSG_MAGIC, .from = LIAR, .order = d->order, .what = whats[k & 3] };
	bool liars[4] = { false };

	for (uint32_t r = 0; r < d->ranks; r++)
		liars[r] = d->device[r] == LIAR;
	m.a = liars[1] ? 1 : liars[2] ? 2 : liars[3] ? 3 : 0;
	m.b = k >> 2 & 3;
	if (k & 16)
		m.a = k >> 5 & 3;
	if (m.what == MSG_RESULT)
		m.b = 0;
	m.len = size * (d->call.count < CHUNK / size ? d->call.count : CHUNK / size);
	if (m.what == MSG_GRANT)
		m.len = 0;
	return m;
}

/* What an honest device 2 would send next to an end, as far as the end knows. */
static struct msg likely(struct transport *c)
{
	struct doing *d = &doing[byte(&input) % (ndoing ?: 1)];
	struct op *op = op_find(c, d->order);
	struct msg m = { .magic = MSG_MAGIC, .from = LIAR, .what = MSG_COPY, .order = 1 };
	uint8_t k = byte(&input);

	if (!op)
		return ndoing ? early_one(d, k) : m;
	m.order = op->s.order;
	if (k & 128 && op->nout) {
		struct flow_out *f = &op->out[k % op->nout];

		m.what = MSG_GRANT;
		m.flow = f->what;
		m.a = f->a;
		m.b = f->b;
		m.first = k & 64 ? f->len : f->sent + WINDOW / f->size;
	} else if (op->nin) {
		struct flow_in *f = &op->in[k % op->nin];
		uint64_t next, left;

		for (uint32_t i = 0; i < op->nin && f->from != LIAR && !(k & 64); i++)
			f = &op->in[i];
		next = f->kept ? f->last->msg.first + op->chunk : f->pos;
		left = next < f->len ? f->len - next : 0;

		m.what = f->what;
		m.a = f->a;
		m.b = f->b;
		m.first = next;
		m.len = (left < op->chunk ? left : op->chunk) * f->size;
		m.factor = 1;
	}
	return m;
}

static struct msg message(struct transport *c, struct line *l)
{
	uint8_t how = byte(&input);
	struct msg m = how & 64 ? l->last : likely(c);

	if (how & 1)
		m.first = odd();
	if (how & 2)
		m.len = odd();
	if (how & 4)
		m.order = odd();
	if (how & 8) {
		m.a = odd();
		m.b = odd();
	}
	if (how & 16)
		m.what = byte(&input);
	if (how & 32)
		((uint8_t *)&m)[byte(&input) % sizeof(m)] ^= 1u << byte(&input) % 8;
	l->last = m;
	return m;
}

/* how: 0 a likely slot, and its place in the queue. */
static void say_by_memory(uint32_t e, uint8_t how)
{
	struct line *l = &liar.to[e];
	struct entry *q;
	struct msg m = message(ends_of[e], l);

	if (!l->mem) {
		greet(e, false, 0);
		turn(e);
		l->last = m;
	}
	q = &l->mem->entry[l->at % ENTRIES];
	q->msg = m;
	q->slot = how & 1 ? odd() : byte(&input) % SLOTS;
	memset(q->data, 0xee, sizeof(q->data));
	if (m.len > INLINE && q->slot < SLOTS) {
		memset(l->mem->slot[q->slot], 0xee, m.len < CHUNK ? m.len : CHUNK);
		l->mem->busy[q->slot] = 1;
	}
	l->at += how & 2 ? byte(&input) : 1;
	__atomic_store_n(&q->seq, l->at, __ATOMIC_RELEASE);
	if (how & 4)
		send(l->sock, "ring", 1 + byte(&input) % 4, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_by_tcp(uint32_t e, uint8_t how)
{
	static uint8_t frame[sizeof(struct msg) + CHUNK];
	struct line *l = &liar.tcp_to[e];
	struct msg m = message(ends_of[e], l);
	size_t len = sizeof(m) + (m.len <= CHUNK ? m.len : 0);

	if (l->sock < 0) {
		greet(e, true, 0);
		turn(e);
		l->last = m;
	}
	memset(frame, 0xee, sizeof(frame));
	memcpy(frame, &m, sizeof(m));
	if (how & 1)
		len = odd() % sizeof(frame);
	if (l->sock >= 0)
		send(l->sock, frame, len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Anything, anywhere in the memory of a link; mostly where it matters. */
static void scribble(struct link_memory *mem, uint64_t offset, const uint8_t *bytes, size_t n)
{
	if (mem && offset < sizeof(*mem) - n)
		memcpy((char *)mem + offset, bytes, n);
}

static uint64_t offset(void)
{
	uint8_t how = byte(&input);

	if (how & 1)
		return offsetof(struct link_memory, entry) + byte(&input) % 4 * sizeof(struct entry) +
		       byte(&input) % sizeof(struct entry);
	return how & 2 ? raw(&input, 3) : raw(&input, 1);
}

/* For memlink.c: the sender writes where the message lies that is being taken. */
bool fuzz_flow_message(struct transport *c, const struct msg *m, void *data, struct link *link, size_t len)
{
	if (liar.sudden.due && m->from == LIAR) {
		liar.sudden.due = false;
		for (uint32_t e = 0; e < HONEST; e++)
			scribble(liar.to[e].mem, liar.sudden.offset, liar.sudden.bytes, 8);
	}
	return flow_message(c, m, data, link, len);
}

/* An honest end's link to the liar: takes what it sends, and writes what only a receiver may. */
static void receive(uint32_t e, uint8_t how)
{
	struct line *l = &liar.from[e];
	char junk[4096];

	if (l->sock < 0)
		take_call(how & 8);
	if (l->sock >= 0 && how & 1 && recv(l->sock, junk, sizeof(junk), MSG_DONTWAIT) < 0)
		return;
	if (l->sock >= 0 && how & 2)
		send(l->sock, junk, 1 + how % 8, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (!l->mem)
		return;
	if (how & 4)
		l->mem->taken = how & 8 ? odd() : l->mem->taken + byte(&input);
	if (how & 16)
		memset(l->mem->busy, how & 32 ? byte(&input) : 0, sizeof(l->mem->busy));
	l->mem->sleeps = how >> 6 & 1;
	l->mem->waits = how >> 7;
}

/* ------------------------------------------------------------------------------ the input */

static void sudden(void)
{
	liar.sudden.due = true;
	liar.sudden.offset = offset();
	for (int i = 0; i < 8; i++)
		liar.sudden.bytes[i] = byte(&input);
}

static void one_step(void)
{
	uint8_t op = byte(&input), how = byte(&input);
	uint32_t e = op >> 7;
	struct doing *d = &doing[how % (ndoing ?: 1)];
	uint8_t bytes[8];

	switch (op % 16) {
	case 0: case 1:
		propose();
		break;
	case 2:
		start(d, e);
		break;
	case 3: case 4:
		for (uint32_t n = 1 + how % 8; n; n--)
			turn(e);
		break;
	case 5: case 6: case 7:
		say_by_memory(e, how);
		break;
	case 8:
		say_by_tcp(e, how);
		break;
	case 9:
		greet(e, how & 128, how & 128 ? how & 7 : how & 1 ? byte(&input) : 0);
		break;
	case 10:
		take_call(how & 1);
		break;
	case 11:
		receive(e, how);
		break;
	case 12:
		for (uint32_t i = 0; i < 8; i++)
			bytes[i] = byte(&input);
		scribble(how & 1 ? liar.to[e].mem : liar.from[e].mem, offset(), bytes, 1 + how % 8);
		break;
	case 13:
		sudden();
		break;
	case 14:
		if (how & 64)
			sleep_once(e);
		else if (how & 128 && ndoing && !d->side[e].started)
			withdraw(d, e, how);
		else if (how & 32)
			hang_up(how & 1 ? &liar.to[e] : how & 2 ? &liar.tcp_to[e] : &liar.from[e]);
		else if (ndoing)
			cancel(d);
		break;
	case 15:
		for (uint32_t n = 1 + how % 32; n; n--)
			say_by_memory(e, 0);
		break;
	}
}

/* ------------------------------------------------------------------------------ start and end */

static void listen_once(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(in);

	memset(address_of[LIAR].name, 0xe0, 16);
	memcpy(address_of[LIAR].name, &(pid_t){ getpid() }, sizeof(pid_t));
	memcpy(un.sun_path + 1, "singvgpu-comm-", 14);
	for (int i = 0; i < 16; i++)
		snprintf(un.sun_path + 15 + 2 * i, 3, "%02x", address_of[LIAR].name[i]);
	liar.memory = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	liar.tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	MUST(!bind(liar.memory, (void *)&un, offsetof(struct sockaddr_un, sun_path) + 47));
	MUST(!bind(liar.tcp, (void *)&in, sizeof(in)) && !listen(liar.memory, 2) && !listen(liar.tcp, 8));
	MUST(!getsockname(liar.tcp, (void *)&in, &len));
	address_of[LIAR].port = in.sin_port;
	address_of[LIAR].n = 1;
	address_of[LIAR].tcp[0].family = 4;
	memcpy(address_of[LIAR].tcp[0].ip, &in.sin_addr, 4);
}

static void open_ends(bool by_tcp)
{
	for (uint32_t e = 0; e < HONEST; e++) {
		struct transport_open o = { .self = e, .address = address, .say = named };
		struct why why = { 0 };

		MUST(!soft_open(&ends_of[e], &o, &why));
		MUST(wire_address(ends_of[e], &address_of[e]) == sizeof(address_of[e]));
		liar.to[e].sock = liar.tcp_to[e].sock = liar.from[e].sock = -1;
	}
	address_of[LIAR].host = address_of[0].host;
	address_of[LIAR].net = address_of[0].net + by_tcp;
	ndoing = 0;
	liar.sudden.due = false;
}

static bool all_ended(bool honest)
{
	for (unsigned int i = 0; i < ndoing; i++)
		for (uint32_t e = 0; e < HONEST; e++)
			if (doing[i].side[e].started && !doing[i].side[e].ended &&
			    (!honest || (doing[i].honest && !doing[i].cancelled)))
				return false;
	return true;
}

static void run_until_all_ended(bool honest)
{
	for (int n = 0; n < TURNS && !all_ended(honest); n++)
		for (uint32_t e = 0; e < HONEST; e++)
			turn(e);
	MUST(all_ended(honest));
}

static void finish(void)
{
	/* The liar stays while the honest ends go on. */
	for (unsigned int i = 0; i < ndoing; i++)
		for (uint32_t e = 0; e < HONEST; e++)
			start(&doing[i], e);
	run_until_all_ended(true);
	for (uint32_t e = 0; e < HONEST; e++) {
		hang_up(&liar.to[e]);
		hang_up(&liar.tcp_to[e]);
		hang_up(&liar.from[e]);
	}
	for (unsigned int i = 0; i < ndoing; i++)
		cancel(&doing[i]);
	run_until_all_ended(false);
	for (int sock; (sock = accept4(liar.memory, NULL, NULL, SOCK_NONBLOCK)) >= 0;)
		shut(sock);
	for (int sock; (sock = accept4(liar.tcp, NULL, NULL, SOCK_NONBLOCK)) >= 0;)
		shut(sock);
	for (uint32_t e = 0; e < HONEST; e++)
		soft_close(ends_of[e]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fds;

	if (!liar.memory)
		listen_once();
	fds = open_fds(FDS);
	input = (struct program){ data, data + size };
	open_ends(byte(&input) & 1);
	while (input.p < input.end)
		one_step();
	finish();
	MUST(open_fds(FDS) == fds);
	return 0;
}
