// SPDX-License-Identifier: Apache-2.0
/*
 * wire.c - all links of an end: polled, and slept on
 *
 * Before the thread sleeps it says so in the memory of its links, and has a memory barrier executed
 * on all processors that run an end of the transport (membarrier); then it looks once more. So a
 * sender, which stores a message and then looks whether its receiver sleeps, needs no barrier of its
 * own. Where the kernel has no such barrier the thread sleeps for a millisecond at most.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "wire_i.h"

#define EVENTS 16
#define LAST_NS 5000000000ull
#define PART_NS 1000000ull /* between two moves to another processor, at least */
#define SELDOM 256u /* polls of links in memory between looks at the sockets */

int wire_open(struct transport *c, struct why *why)
{
	struct wire *w = calloc(1, sizeof(*w));
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = &c->bell };
	struct rlimit files;
	int rc;

	if (!w)
		return why_set(why, -ENOMEM, "no memory for the transport");
	/* Each peer takes two descriptors. */
	if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	c->wire = w;
	w->unix_fd = w->tcp_fd = -1;
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	w->barrier = !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
	if (w->epoll < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, c->bell, &e))
		rc = why_set(why, -errno, "the transport's sockets: %s", strerror(errno));
	else
		rc = wire_listen(c, why);
	if (rc)
		wire_close(c);
	return rc;
}

int wire_address(struct transport *c, void *to)
{
	memcpy(to, &c->wire->self, sizeof(c->wire->self));
	return sizeof(c->wire->self);
}

/* ------------------------------------------------------------------------------ ends of links */

static void link_end(struct transport *c, struct link *l)
{
	struct wire *w = c->wire;
	uint32_t device = l->device;

	if (l->kind == LINK_TCP)
		w->tcp--;
	if (l->out) {
		w->out[device] = NULL;
	} else {
		for (uint32_t i = 0; i < w->nin; i++)
			if (w->in[i] == l) {
				w->in[i] = w->in[--w->nin];
				break;
			}
	}
	if (l->fd >= 0)
		epoll_ctl(w->epoll, EPOLL_CTL_DEL, l->fd, NULL);
	l->lost = true;
	if (l->held) { /* freed with the last slot */
		close(l->fd);
		l->fd = -1;
	} else {
		link_free(l);
	}
	if (device < TRANSPORT_DEVICES_MAX)
		device_lost(c, device);
}

void wire_refuse(struct transport *c, uint32_t device, const char *what)
{
	struct wire *w = c->wire;
	char text[160];

	for (uint32_t i = 0; i < w->nin; i++)
		if (w->in[i]->greeted && w->in[i]->device == device)
			w->in[i]->lost = w->in[i]->refused = true;
	if (!w->told[device] && c->o.say) {
		w->told[device] = true;
		snprintf(text, sizeof(text), "the transport of device %u has sent %s: nothing more of it is "
		         "taken, and operations that need it end", device, what);
		c->o.say(c->o.arg, text);
	}
	device_lost(c, device);
}

void wire_release(struct transport *c, struct link *l, void *data)
{
	(void)c;
	memory_release(l, data);
	if (!--l->held && l->lost && l->fd < 0)
		link_free(l);
}

/* ------------------------------------------------------------------------------ sending */

static bool room(struct link *l, uint32_t len)
{
	/* What waits has come first. */
	if (l->later || !l->greeted)
		return false;
	return l->kind == LINK_MEMORY ? memory_room(l, len) : tcp_room(l);
}

static void put(struct link *l, const struct msg *m, struct op *op, const struct flow_out *out)
{
	if (l->kind == LINK_MEMORY)
		memory_put(l, m, op, out);
	else
		tcp_put(l, m, op, out);
}

static int link_to(struct transport *c, uint32_t device, struct link **l)
{
	*l = c->wire->out[device];
	return *l ? (*l)->lost ? -EHOSTUNREACH : 0 : link_connect(c, device, l);
}

int wire_send(struct transport *c, uint32_t device, const struct msg *head, struct op *op,
              const struct flow_out *out)
{
	struct wire *w = c->wire;
	struct msg m = *head;
	struct later *k;
	struct link *l;
	int rc;

	rc = link_to(c, device, &l);
	if (rc)
		return rc;
	m.magic = MSG_MAGIC;
	m.from = c->o.self;
	if (room(l, m.len)) {
		put(l, &m, op, out);
		return 0;
	}
	if (m.len) {
		l->wants = true;
		w->wants = 1;
		return -EAGAIN;
	}
	k = malloc(sizeof(*k));
	if (!k)
		return -ENOMEM;
	k->next = NULL;
	k->msg = m;
	*l->later_end = k;
	l->later_end = &k->next;
	w->wants = 1;
	return 0;
}

/* Sends what had to wait, and lets operations try again. */
static bool make_room(struct transport *c)
{
	struct wire *w = c->wire;
	bool any = false;

	w->wants = 0;
	for (uint32_t i = 0; i < TRANSPORT_DEVICES_MAX; i++) {
		struct link *l = w->out[i];

		if (!l || l->lost || (!l->wants && !l->later))
			continue;
		if (!l->greeted && l->kind == LINK_MEMORY && link_again(l) != -EAGAIN && !l->greeted) {
			l->lost = w->lost = true;
			continue;
		}
		while (l->later && l->greeted &&
		       (l->kind == LINK_MEMORY ? memory_room(l, 0) : tcp_room(l))) {
			struct later *k = l->later;

			put(l, &k->msg, NULL, NULL);
			l->later = k->next;
			if (!l->later)
				l->later_end = &l->later;
			free(k);
		}
		if (l->wants && room(l, CHUNK)) {
			l->wants = false;
			any = true;
		}
		w->wants |= l->wants || l->later;
	}
	if (any)
		op_wake_all(c);
	return any;
}

/* ------------------------------------------------------------------------------ what comes */

static bool sockets(struct transport *c, int ms)
{
	struct wire *w = c->wire;
	struct epoll_event e[EVENTS];
	int n = epoll_wait(w->epoll, e, EVENTS, ms);
	uint64_t rings;
	bool any = false;

	for (int i = 0; i < n; i++) {
		void *of = e[i].data.ptr;

		if (of == &w->unix_fd || of == &w->tcp_fd) {
			any |= wire_accept(c, *(int *)of);
		} else if (of == &c->bell) {
			any |= read(c->bell, &rings, sizeof(rings)) > 0;
		} else {
			struct link *l = of;
			bool was = l->greeted;

			if (!link_event(l, e[i].events))
				l->lost = w->lost = true;
			else if (l->greeted && !was) {
				any = true;
				w->wants = 1;
			}
		}
	}
	return any;
}

/* Takes what a link has; whether it had something. At its end, too: what was sent is there. */
static bool take(struct link *l)
{
	bool any = false;
	int most = 8;

	if (!l->greeted || l->refused)
		return false;
	if (l->kind == LINK_TCP) {
		if (!l->lost && !tcp_read(l, &any))
			l->lost = true;
		return any;
	}
	/* What a killed process has stored last is seen by now. */
	while (most-- && !l->refused && memory_take(l))
		any = true;
	return any;
}

/*
 * Ends links to devices that have gone. What such a device sent before is taken first: it may have
 * exited because its part was done.
 */
static void ends(struct transport *c)
{
	struct wire *w = c->wire;
	int most = 64;		/* strangers may come all the time */

	while (most-- && sockets(c, 0))
		;
	w->lost = false;
	for (uint32_t i = 0; i < TRANSPORT_DEVICES_MAX; i++) {
		bool more = false;

		if (!w->out[i] || !w->out[i]->lost)
			continue;
		if (!w->out[i]->since)
			w->out[i]->since = now_ns();
		for (uint32_t k = 0; k < w->nin; k++) {
			struct link *l = w->in[k];

			if (!l->greeted || l->device != i)
				continue;
			more = l->kind == LINK_TCP ? !l->lost : take(l);
		}
		/* A device that ends one of its links keeps what is in the other one for a while only. */
		if (more && now_ns() - w->out[i]->since < LAST_NS)
			w->lost = true;
		else
			link_end(c, w->out[i]);
	}
}

bool wire_progress(struct transport *c)
{
	struct wire *w = c->wire;
	bool any = false;

	if (w->tcp || ++w->polls % SELDOM == 0)
		any = sockets(c, 0);
	for (uint32_t i = 0; i < w->nin;) {
		struct link *l = w->in[i];
		bool some = take(l);

		any |= some;
		if (l->lost && (!some || l->kind == LINK_TCP))
			link_end(c, l);
		else
			i++;
	}
	if (w->lost)
		ends(c);
	if (w->wants)
		any |= make_room(c);
	return any;
}

/* ------------------------------------------------------------------------------ processors */

/*
 * Ends that wait for each other on one processor take turns there while another one has nothing to
 * do, or does other people's work: the kernel leaves, and puts, threads that wake each other together. So each end
 * says where it is, and leaves a processor that has two more ends than another one.
 */
static void say_cpu(struct wire *w)
{
	uint32_t cpu = (uint32_t)sched_getcpu() + 1;

	if (cpu == w->cpu)
		return;
	w->cpu = cpu;
	for (uint32_t i = 0; i < TRANSPORT_DEVICES_MAX; i++)
		if (w->out[i] && w->out[i]->mem)
			__atomic_store_n(&w->out[i]->mem->cpu, cpu, __ATOMIC_RELAXED);
}

void wire_part(struct transport *c)
{
	struct wire *w = c->wire;
	uint16_t ends[CPU_SETSIZE] = { 0 };
	uint32_t there, others = 0;
	cpu_set_t all, better;
	uint64_t now;

	say_cpu(w);
	for (uint32_t i = 0; i < w->nin; i++) {
		if (!w->in[i]->mem || w->in[i]->lost)
			continue;
		there = __atomic_load_n(&w->in[i]->mem->cpu, __ATOMIC_RELAXED) - 1;
		if (there < CPU_SETSIZE)
			ends[there]++;
		others += there + 1 == w->cpu;
	}
	if (!others)
		return;
	now = now_ns();
	if (now - w->parted < PART_NS || sched_getaffinity(0, sizeof(all), &all))
		return;
	w->parted = now;
	CPU_ZERO(&better);
	for (uint32_t i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all) && ends[i] < others)
			CPU_SET(i, &better);
	if (!CPU_COUNT(&better) || sched_setaffinity(0, sizeof(better), &better))
		return;
	sched_setaffinity(0, sizeof(all), &all);
	say_cpu(w);
}

/* ------------------------------------------------------------------------------ sleep */

/*
 * In poll(): a byte on a local socket has epoll_wait() woken with the hint that whoever sent it is
 * about to sleep, so the kernel would put this thread on that processor.
 */
void wire_sleep(struct transport *c, int ms)
{
	struct pollfd p[] = { { .fd = c->wire->epoll, .events = POLLIN }, { .fd = c->call, .events = POLLIN } };

	poll(p, 2, ms);
}

/* Says in all links that the thread sleeps, or no longer. */
static void say(struct wire *w, uint32_t sleeps)
{
	for (uint32_t i = 0; i < w->nin; i++)
		if (w->in[i]->mem)
			__atomic_store_n(&w->in[i]->mem->sleeps, sleeps, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < TRANSPORT_DEVICES_MAX && w->wants; i++)
		if (w->out[i] && w->out[i]->mem && (w->out[i]->wants || w->out[i]->later))
			__atomic_store_n(&w->out[i]->mem->waits, sleeps, __ATOMIC_RELAXED);
}

bool wire_rest(struct transport *c, int *ms)
{
	struct wire *w = c->wire;
	bool awake = false;

	say(w, 1);
	if (w->barrier)
		syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
	for (uint32_t i = 0; i < w->nin && !awake; i++)
		awake = w->in[i]->mem && memory_has(w->in[i]);
	if (!awake)
		awake = w->wants && make_room(c);
	*ms = w->barrier && !w->wants ? -1 : 1;
	return !awake && !w->lost;
}

void wire_rise(struct transport *c)
{
	say(c->wire, 0);
	c->wire->polls = -1u; /* the next turn looks at the sockets */
}

void wire_close(struct transport *c)
{
	struct wire *w = c->wire;
	struct timespec t = { .tv_nsec = 100000 };

	if (!w)
		return;
	/* What TCP has not taken yet goes first; others may be gone, so not for ever. */
	for (int ms = 0; ms < 10000; ms++) {
		bool left = false;

		if (w->wants)
			make_room(c);
		for (uint32_t i = 0; i < TRANSPORT_DEVICES_MAX; i++) {
			struct link *l = w->out[i];

			if (!l || l->lost || (l->kind == LINK_MEMORY && !l->greeted))
				continue;
			if (l->later || (l->kind == LINK_TCP && !tcp_room(l))) {
				left = true;
				l->lost = l->kind == LINK_TCP && !tcp_flush(l);
			}
		}
		if (!left)
			break;
		nanosleep(&t, NULL);
		sockets(c, 0);
	}
	for (uint32_t i = 0; i < TRANSPORT_DEVICES_MAX; i++)
		if (w->out[i])
			link_free(w->out[i]);
	for (uint32_t i = 0; i < w->nin; i++)
		link_free(w->in[i]);
	free(w->in);
	if (w->unix_fd >= 0)
		close(w->unix_fd);
	if (w->tcp_fd >= 0)
		close(w->tcp_fd);
	if (w->epoll >= 0)
		close(w->epoll);
	free(w);
	c->wire = NULL;
}
