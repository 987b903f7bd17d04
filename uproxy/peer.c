// SPDX-License-Identifier: Apache-2.0
/*
 * peer.c - what a session shows to proxies of other processes, and what it gets of theirs
 *
 *   peer_show ─► a secret ─► (a program, by any means) ─► peer_ask there ─► socket ─► here: fds
 *
 * The socket is abstract, with a name of 128 random bits, and is made when something is shown for the first
 * time. Who knows name and secret, runs as our user and is in our network namespace gets what is shown, and
 * nothing else: memory is passed granule by granule. Pointers of pools need the pool's key, too.
 * Nothing is kept of who has asked; what was passed lives as long as anyone holds it, whoever dies.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "peer.h"

#define ASK_MAGIC	0x41475653u	/* "SVGA" */
#define GROUP		64		/* fds in a message */
#define TOLD		4		/* failures that the log has */
#define PATIENCE	5		/* seconds that a peer may keep us */

struct ask {
	uint32_t magic, kind;
	uint8_t secret[16], key[16];
};

struct told {			/* the answer; then n fds, GROUP by GROUP, each with a byte */
	uint32_t status;	/* CUresult */
	uint32_t n;
	uint64_t at, len;
};

struct shown {
	struct shown *next;
	uint32_t kind;
	uint8_t secret[16], key[16];
	uint64_t va, len;	/* of memory */
	int fd;			/* of an event */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shown *all;
static struct hal *hal;
static uint8_t name[16];
static int listening = -1;

static int address(struct sockaddr_un *a, const uint8_t who[16])
{
	char hex[33];

	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", who[i]);
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	return offsetof(struct sockaddr_un, sun_path) + 1 +
		snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "singvgpu-peer-%s", hex);
}

static void patience(int sock, int seconds)
{
	struct timeval t = { .tv_sec = seconds };

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

static bool our_user(int sock)
{
	struct ucred c;
	socklen_t n = sizeof(c);

	return !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &c, &n) && c.uid == geteuid();
}

static bool same(const uint8_t a[16], const uint8_t b[16])
{
	uint8_t d = 0;

	for (int i = 0; i < 16; i++)	/* as long for any guess */
		d |= a[i] ^ b[i];
	return !d;
}

/* ------------------------------------------------------------------------------ who shows */

static struct shown *find(const struct ask *q)
{
	for (struct shown *s = all; s; s = s->next)
		if (s->kind == q->kind && same(s->secret, q->secret) && same(s->key, q->key))
			return s;
	return NULL;
}

static uint64_t first_granule(const struct shown *s)
{
	return s->va & ~(SV_GRANULE - 1);
}

static uint32_t granules(const struct shown *s)
{
	return (s->va + s->len - first_granule(s) + SV_GRANULE - 1) / SV_GRANULE;
}

static int granule_fd(uint64_t va)
{
	CUmemGenericAllocationHandle h;
	CUresult r = hal->drv.cuMemRetainAllocationHandle(&h, (void *)va);
	int fd = -1;

	if (r)
		return -1;
	r = hal->drv.cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
						  0);
	hal->drv.cuMemRelease(h);
	return r ? -1 : fd;
}

/* Some of what is asked for, if it is still shown: their number, or -1. */
static int take_group(const struct ask *q, uint32_t from, int fd[GROUP])
{
	struct shown *s;
	int n = 0;

	pthread_mutex_lock(&lock);
	s = find(q);
	while (s && n < GROUP && from + n < (s->len ? granules(s) : 1)) {
		fd[n] = s->len ? granule_fd(first_granule(s) + (from + n) * SV_GRANULE) :
			fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
		if (fd[n] < 0)
			break;
		n++;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

union control {
	struct cmsghdr h;
	char room[CMSG_SPACE(GROUP * sizeof(int))];
};

static int send_group(int sock, const int *fd, int n)
{
	union control c = { .h = { .cmsg_len = CMSG_LEN(n * sizeof(int)),
				   .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { "", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = CMSG_SPACE(n * sizeof(int)) };

	memcpy(CMSG_DATA(&c.h), fd, n * sizeof(int));
	return sendmsg(sock, &m, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

static void serve(int sock)
{
	struct told t = { .status = CUDA_ERROR_MAP_FAILED };
	struct shown *s;
	struct ask q;
	int fd[GROUP];

	patience(sock, 1);
	if (!our_user(sock) || recv(sock, &q, sizeof(q), 0) != sizeof(q) || q.magic != ASK_MAGIC)
		return;
	pthread_mutex_lock(&lock);
	s = find(&q);
	if (s) {
		t.status = CUDA_SUCCESS;
		t.n = s->len ? granules(s) : 1;
		t.at = s->va & (SV_GRANULE - 1);
		t.len = s->len;
	}
	pthread_mutex_unlock(&lock);
	patience(sock, PATIENCE);
	if (send(sock, &t, sizeof(t), MSG_NOSIGNAL) != sizeof(t))
		return;
	for (uint32_t from = 0; from < t.n;) {
		int n = take_group(&q, from, fd), rc = n > 0 ? send_group(sock, fd, n) : -ENOENT;

		for (int i = 0; i < n; i++)
			close(fd[i]);
		if (rc)
			return;
		from += n;
	}
}

static void *server(void *arg)
{
	int sock;

	for (;;) {
		sock = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		if (sock >= 0) {
			serve(sock);
			close(sock);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			/* Too many files, say: that may pass. */
			usleep(10000);
		}
	}
	return arg;
}

/* lock is held. */
static int start(void)
{
	struct rlimit files;
	struct sockaddr_un a;
	pthread_t t;
	int rc, sock;

	if (listening >= 0)
		return 0;
	if (getrandom(name, sizeof(name), 0) != sizeof(name))
		return -EIO;
	/* A file stands for each granule that is shown, or that another process shows us. */
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -errno;
	rc = bind(sock, (struct sockaddr *)&a, address(&a, name)) || listen(sock, 64) ? -errno : 0;
	if (!rc) {
		listening = sock;
		rc = -pthread_create(&t, NULL, server, NULL);
		if (!rc)
			pthread_detach(t);
	}
	if (rc) {
		listening = -1;
		close(sock);
	}
	return rc;
}

int peer_show(struct sv_session *s, uint32_t kind, uint64_t va, uint64_t len, int fd,
	      const uint8_t key[16], struct sv_ipc_shown *out)
{
	struct shown *x;
	int rc;

	pthread_mutex_lock(&lock);
	hal = &s->hal;
	rc = start();
	for (x = all; x && !rc; x = x->next)
		if (x->kind == kind && x->va == va && x->len == len && x->fd == fd &&
		    same(x->key, key))
			break;
	if (!x && !rc) {
		x = calloc(1, sizeof(*x));
		rc = x ? 0 : -ENOMEM;
		if (x && getrandom(x->secret, sizeof(x->secret), 0) != sizeof(x->secret)) {
			free(x);
			rc = -EIO;
		}
		if (!rc) {
			x->kind = kind;
			x->va = va;
			x->len = len;
			x->fd = fd;
			memcpy(x->key, key, sizeof(x->key));
			x->next = all;
			all = x;
		}
	}
	if (!rc) {
		memcpy(out->server, name, sizeof(name));
		memcpy(out->secret, x->secret, sizeof(x->secret));
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static void hide(bool (*gone)(const struct shown *s, uint64_t a, uint64_t b), uint64_t a, uint64_t b)
{
	struct shown **p = &all, *s;

	pthread_mutex_lock(&lock);
	while ((s = *p)) {
		if (gone(s, a, b)) {
			*p = s->next;
			free(s);
		} else {
			p = &s->next;
		}
	}
	pthread_mutex_unlock(&lock);
}

static bool overlaps(const struct shown *s, uint64_t va, uint64_t len)
{
	return s->len && s->va < va + len && va < s->va + s->len;
}

static bool begins(const struct shown *s, uint64_t va, uint64_t zero)
{
	return s->len && s->va == va + zero;
}

static bool of_event(const struct shown *s, uint64_t fd, uint64_t zero)
{
	return !s->len && s->fd == (int)(fd + zero);
}

void peer_hide(uint64_t va, uint64_t len)
{
	hide(overlaps, va, len);
}

void peer_hide_at(uint64_t va)
{
	hide(begins, va, 0);
}

void peer_hide_event(int fd)
{
	hide(of_event, fd, 0);
}

/* ------------------------------------------------------------------------------ who asks */

/* The fds of one message, which are ours then: their number, or -EPROTO. */
static int take(int sock, int fd[GROUP])
{
	union control c;
	char byte;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	struct cmsghdr *h;
	int n;

	if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != 1)
		return -EPROTO;
	h = CMSG_FIRSTHDR(&m);
	if (!h || h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
		return -EPROTO;
	n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);	/* at most GROUP: there is no room for more */
	memcpy(fd, CMSG_DATA(h), n * sizeof(int));
	if (!(m.msg_flags & MSG_CTRUNC))
		return n;
	while (n)
		close(fd[--n]);
	return -EPROTO;
}

static CUresult take_all(int sock, uint32_t want, CUresult (*each)(void *arg, int fd), void *arg)
{
	CUresult r = CUDA_SUCCESS;
	int fd[GROUP], n;

	for (uint32_t got = 0; got < want && !r; got += n) {
		n = take(sock, fd);
		if (n <= 0)
			return CUDA_ERROR_MAP_FAILED;
		for (int i = 0; i < n; i++) {
			if (!r && got + i < want)
				r = each(arg, fd[i]);
			close(fd[i]);
		}
	}
	return r;
}

/* A program may try many handles. */
static void cannot(const char *why)
{
	static unsigned int times;

	if (__atomic_fetch_add(&times, 1, __ATOMIC_RELAXED) < TOLD)
		say("what another process shows cannot be had: %s", why);
}

bool peer_is_us(const struct sv_ipc_handle *h)
{
	bool us;

	pthread_mutex_lock(&lock);
	us = listening >= 0 && !memcmp(h->server, name, sizeof(name));
	pthread_mutex_unlock(&lock);
	return us;
}

CUresult peer_ask(const struct sv_ipc_handle *h, const uint8_t key[16],
		  CUresult (*each)(void *arg, int fd), void *arg)
{
	uint32_t want = h->kind == SV_IPC_EVENT ? 1 : sv_ipc_room(h) / SV_GRANULE;
	struct ask q = { .magic = ASK_MAGIC, .kind = h->kind };
	CUresult r = CUDA_ERROR_MAP_FAILED;
	struct sockaddr_un a;
	struct told t;
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	memcpy(q.secret, h->secret, sizeof(q.secret));
	memcpy(q.key, key, sizeof(q.key));
	patience(sock, PATIENCE);
	if (connect(sock, (struct sockaddr *)&a, address(&a, h->server)) || !our_user(sock)) {
		cannot("it has ended, or is not of this user and network namespace");
	} else if (send(sock, &q, sizeof(q), MSG_NOSIGNAL) == sizeof(q) &&
		   recv(sock, &t, sizeof(t), 0) == sizeof(t)) {
		if (t.status)
			cannot("it shows that no more, or never did");
		else if (t.n == want && t.at == h->at && t.len == h->len)
			r = take_all(sock, want, each, arg);
		else
			r = CUDA_ERROR_INVALID_VALUE;
	}
	close(sock);
	return r;
}
