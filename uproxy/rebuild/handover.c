// SPDX-License-Identifier: Apache-2.0
/*
 * handover.c - hands device memory of a frozen session over to the session that a restore makes of it; handover.h
 *
 *   new proxy    connect ─► hello, a memfd of HANDOVER_ROOM ─► (ask: va, len ◄─► told: the bytes are in the memfd) …
 *   old proxy    a thread accepts, and has a thread for each connection
 *
 * Each thread of a restore has a connection of its own. A peer is of our user or root; whatever it says, it reads
 * mapped memory of the window, and nothing is written but its own memfd.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "handover.h"
#include "lock.h"
#include "peer.h"
#include "ring.h"

#define MAGIC		0x4f485653u	/* "SVHO" */
#define VERSION		1u
#define READERS_MAX	64
#define LOOK_MS		20		/* between two looks at whether the supervisor is there */
#define PATIENCE	2		/* seconds for an answer */
#define SEALS		(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct hello {
	uint32_t magic, version;
	struct store_ref device;
};

struct ask {
	uint64_t va, len;
};

struct told {			/* the answer to either */
	uint32_t magic;
	int32_t status;		/* 0, or -errno */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct hello) == 40, "wire");
_Static_assert(sizeof(struct ask) == 16, "wire");
_Static_assert(sizeof(struct told) == 8, "wire");

static struct sockaddr_un at;	/* of both; no path: none */
static pid_t parent;		/* the job's supervisor */
static bool silent;		/* the former proxy has not answered once: it is not asked again; atomic */

static struct {
	struct sv_session *s;
	struct store_ref device;
	int listen;
	int readers;		/* atomic */
} offer;

void handover_at(const char *control)
{
	at.sun_family = AF_UNIX;
	parent = getppid();
	__atomic_store_n(&silent, false, __ATOMIC_RELAXED);
	if (snprintf(at.sun_path, sizeof(at.sun_path), "%s" CTL_KEPT, control) >= (int)sizeof(at.sun_path))
		*at.sun_path = 0;
}

static bool our_user(int sock)
{
	struct ucred c;
	socklen_t n = sizeof(c);

	return !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &c, &n) && (!c.uid || c.uid == geteuid());
}

static void patience(int sock)
{
	struct timeval t = { .tv_sec = PATIENCE };

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

/* Messages are small: where there is no room for one, the other end does not take any. */
static bool send_all(int sock, const void *p, size_t n)
{
	return send(sock, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

/* A message of exactly n bytes. */
static bool receive(int sock, void *p, size_t n)
{
	ssize_t got;

	do
		got = recv(sock, p, n, MSG_TRUNC);
	while (got < 0 && errno == EINTR);
	return got == (ssize_t)n;
}

/* ------------------------------------------------------------------------------ the former proxy */

static bool tell_reader(int sock, int status)
{
	struct told t = { MAGIC, status };

	return send_all(sock, &t, sizeof(t));
}

/* The reader's memory for the pieces; it cannot be cut short below us. */
static void *map_room(int sock)
{
	int fd = ring_take_fd(sock), seals;
	void *p = MAP_FAILED;
	struct stat st;

	if (fd < 0)
		return MAP_FAILED;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals >= 0 && (seals & F_SEAL_SHRINK) && !fstat(fd, &st) && st.st_size == HANDOVER_ROOM)
		p = mmap(NULL, HANDOVER_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return p;
}

static int copy_out(const struct ask *q, void *room)
{
	struct sv_session *s = offer.s;

	if (!q->len || q->len > HANDOVER_ROOM || !window_mapped(s, q->va, q->len))
		return -EINVAL;
	return s->hal.drv.cuMemcpyDtoH_v2(room, q->va, q->len) ? -EIO : 0;
}

static void serve(int sock)
{
	struct hal *h = &offer.s->hal;
	struct hello hello;
	struct ask ask;
	void *room;
	bool good;

	if (!our_user(sock) || !receive(sock, &hello, sizeof(hello)))
		return;
	good = hello.magic == MAGIC && hello.version == VERSION &&
	       !memcmp(&hello.device, &offer.device, sizeof(hello.device)) && !h->drv.cuCtxSetCurrent(h->primary);
	if (!tell_reader(sock, good ? 0 : -ENOENT) || !good)
		return;
	room = map_room(sock);
	if (room == MAP_FAILED)
		return;
	good = !hal_pin(h, room, HANDOVER_ROOM);
	lock_may_wait("the device, and for a new proxy");
	while (receive(sock, &ask, sizeof(ask)) && tell_reader(sock, copy_out(&ask, room)))
		;
	if (good)
		hal_unpin(h, room);
	munmap(room, HANDOVER_ROOM);
}

static void *reader(void *arg)
{
	int sock = (int)(intptr_t)arg;

	serve(sock);
	close(sock);
	__atomic_sub_fetch(&offer.readers, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void *server(void *arg)
{
	pthread_t t;
	int sock;

	for (;;) {
		sock = accept4(offer.listen, NULL, NULL, SOCK_CLOEXEC);
		if (sock < 0) {
			nanosleep(&(struct timespec){ 0, LOOK_MS * 1000000l }, NULL);
			continue;
		}
		patience(sock);
		if (__atomic_add_fetch(&offer.readers, 1, __ATOMIC_RELAXED) <= READERS_MAX &&
		    !pthread_create(&t, NULL, reader, (void *)(intptr_t)sock)) {
			pthread_detach(t);
			continue;
		}
		__atomic_sub_fetch(&offer.readers, 1, __ATOMIC_RELAXED);
		close(sock);
	}
	return arg;
}

int handover_offer(struct sv_session *s, const struct store_ref *device)
{
	pthread_t t;
	int rc, sock;

	if (!*at.sun_path)
		return -ENAMETOOLONG;
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -errno;
	offer.s = s;
	offer.device = *device;
	offer.listen = sock;
	unlink(at.sun_path);	/* of a proxy that was killed */
	/* Nobody can connect before listen(), and the mode is set before that. */
	rc = bind(sock, (struct sockaddr *)&at, sizeof(at)) || chmod(at.sun_path, 0600) || listen(sock, READERS_MAX) ?
	     -errno : -pthread_create(&t, NULL, server, NULL);
	if (rc) {
		close(sock);
		unlink(at.sun_path);
	}
	return rc;
}

void handover_stay(void)
{
	/* The new proxy's sockets are at the same paths by now: nothing is removed. */
	while (getppid() == parent)
		nanosleep(&(struct timespec){ 0, LOOK_MS * 1000000l }, NULL);
	_exit(0);
}

/* ------------------------------------------------------------------------------ the new proxy */

struct takeover {
	struct hal *h;
	int sock;
	uint8_t *room;
	bool pinned;
};

/* The pieces' memory, which the former proxy gets. */
static bool make_room(struct takeover *t, bool pin)
{
	int fd = memfd_create("singvgpu-handover", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *p = MAP_FAILED;
	bool given;

	if (fd < 0)
		return false;
	if (!ftruncate(fd, HANDOVER_ROOM) && !fcntl(fd, F_ADD_SEALS, SEALS))
		p = mmap(NULL, HANDOVER_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		t->room = p;
	if (t->room && pin)
		t->pinned = !hal_pin(t->h, t->room, HANDOVER_ROOM);
	given = t->room && t->pinned == pin && !ring_pass_fd(t->sock, fd);
	close(fd);
	return given;
}

static bool is_told(const struct takeover *t)
{
	struct told told = { 0 };

	if (!receive(t->sock, &told, sizeof(told)))
		__atomic_store_n(&silent, true, __ATOMIC_RELAXED);
	return told.magic == MAGIC && !told.status;
}

struct takeover *takeover_open(struct sv_session *s, const struct store_ref *device, bool pin)
{
	struct hello hello = { .magic = MAGIC, .version = VERSION, .device = *device };
	struct takeover *t;

	if (!*at.sun_path || access(at.sun_path, F_OK) || __atomic_load_n(&silent, __ATOMIC_RELAXED))
		return NULL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->h = &s->hal;
	t->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	lock_may_wait("the former proxy");
	patience(t->sock);
	if (t->sock >= 0 && !connect(t->sock, (struct sockaddr *)&at, sizeof(at)) && our_user(t->sock) &&
	    send_all(t->sock, &hello, sizeof(hello)) && is_told(t) && make_room(t, pin))
		return t;
	takeover_close(t);
	return NULL;
}

const uint8_t *takeover_read(struct takeover *t, uint64_t va, uint64_t len)
{
	struct ask q = { va, len };

	lock_may_wait("the former proxy");
	return send_all(t->sock, &q, sizeof(q)) && is_told(t) ? t->room : NULL;
}

void takeover_close(struct takeover *t)
{
	if (!t)
		return;
	if (t->pinned)
		hal_unpin(t->h, t->room);
	if (t->room)
		munmap(t->room, HANDOVER_ROOM);
	if (t->sock >= 0)
		close(t->sock);
	free(t);
}
