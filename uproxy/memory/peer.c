// SPDX-License-Identifier: Apache-2.0
/*
 * peer.c - exports memory and events to proxies of other processes, and imports theirs
 *
 *   peer_show ─► a secret ─► (a program, by any means) ─► peer_ask there ─► socket ─► here: fds
 *
 * The socket is abstract, with a name of 128 random bits, and is made at the first peer_show. A
 * process of our user in our network namespace that knows name and secret gets the memory or event
 * shown, and nothing else: memory is passed granule by granule. Pointers of pools need the pool's
 * key, too. The proxy keeps no list of peers: passed memory lives as long as any process holds it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "peer.h"

#define ASK_MAGIC	0x41475653u	/* "SVGA" */
#define TOLD_MAGIC	0x54475653u	/* "SVGT" */
#define PEER_VERSION	2u
#define GROUP		64		/* fds in a message */
#define TOLD		4		/* failures that are logged */
#define PATIENCE	5		/* seconds; timeout for a peer */

/*
 * Proxies of different versions may meet. magic and version have their places in all versions, and
 * are checked before anything else in a message. Messages of version 1 had no version field.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct ask {
	uint32_t magic, version;
	uint32_t kind, pad;
	uint8_t secret[16], key[16];
};

struct told {			/* the answer; then n fds, GROUP by GROUP, each with a byte */
	uint32_t magic, version;
	uint32_t status;	/* CUresult */
	uint32_t n;
	uint64_t at, len;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct ask) == 48, "wire");
_Static_assert(sizeof(struct told) == 32, "wire");

struct shown {
	struct shown *next;
	uint32_t kind;
	uint8_t secret[16], key[16];
	uint64_t va, len;	/* of memory */
	int fd;			/* of an event */
};

static struct lock lock = LOCK_INIT(PROXY_PEER);
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

/* A process that was stopped finds its calls on a socket with a timeout interrupted. */
#define AGAIN(call) ({ \
	ssize_t n_; \
	do { \
		n_ = (call); \
	} while (n_ < 0 && errno == EINTR); \
	n_; \
})

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

#define SHOWS	"another process cannot import what this one exports"
#define ASKS	"what another process exports cannot be imported"

/* Logs TOLD failures only: a program may try many handles. */
__attribute__((format(printf, 2, 3)))
static void cannot(const char *what, const char *fmt, ...)
{
	static unsigned int times;
	char text[128];
	va_list ap;

	if (__atomic_fetch_add(&times, 1, __ATOMIC_RELAXED) >= TOLD)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	uproxy_say("%s: %s", what, text);
}

/* ------------------------------------------------------------------------------ showing */

static struct shown *find_shown(const struct ask *q)
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

/* Exports the next files, from number `from` on, if they are still shown. Returns how many. */
static int take_group(const struct ask *q, uint32_t from, int fd[GROUP])
{
	struct shown *s;
	int n = 0;

	lock_take(&lock);
	s = find_shown(q);
	while (s && n < GROUP && from + n < (s->len ? granules(s) : 1)) {
		fd[n] = s->len ? granule_fd(first_granule(s) + (from + n) * SV_GRANULE) :
			fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
		if (fd[n] < 0)
			break;
		n++;
	}
	lock_drop(&lock);
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
	return AGAIN(sendmsg(sock, &m, MSG_NOSIGNAL)) == 1 ? 0 : -errno;
}

static void serve(int sock)
{
	struct told t = { .magic = TOLD_MAGIC, .version = PEER_VERSION,
			  .status = CUDA_ERROR_MAP_FAILED };
	struct shown *s;
	struct ask q;
	int fd[GROUP];
	ssize_t n;

	patience(sock, 1);
	if (!our_user(sock))
		return;
	n = AGAIN(recv(sock, &q, sizeof(q), MSG_TRUNC));
	if (n < (ssize_t)offsetof(struct ask, kind) || q.magic != ASK_MAGIC)
		return;
	if (q.version != PEER_VERSION) {	/* the answer has our version */
		cannot(SHOWS, "the other proxy is of version %u, this one of %u", q.version,
		       PEER_VERSION);
		AGAIN(send(sock, &t, sizeof(t), MSG_NOSIGNAL));
		return;
	}
	if (n != sizeof(q) || q.pad)
		return;
	lock_take(&lock);
	s = find_shown(&q);
	if (s) {
		t.status = CUDA_SUCCESS;
		t.n = s->len ? granules(s) : 1;
		t.at = s->va & (SV_GRANULE - 1);
		t.len = s->len;
	}
	lock_drop(&lock);
	lock_may_wait("another proxy");
	patience(sock, PATIENCE);
	if (AGAIN(send(sock, &t, sizeof(t), MSG_NOSIGNAL)) != sizeof(t))
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
			/* Too many open files, for example: try again. */
			usleep(10000);
		}
	}
	return arg;
}

/* Starts the server. lock is held. */
static int start(void)
{
	struct rlimit files;
	struct sockaddr_un a;
	pthread_t t;
	int rc, sock;

	assert_held(&lock);
	if (listening >= 0)
		return 0;
	if (getrandom(name, sizeof(name), 0) != sizeof(name))
		return -EIO;
	/* Each granule that we show, or that a peer shows us, takes a file descriptor. */
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

	lock_take(&lock);
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
	lock_drop(&lock);
	return rc;
}

static void hide(bool (*gone)(const struct shown *s, uint64_t a, uint64_t b), uint64_t a, uint64_t b)
{
	struct shown **p = &all, *s;

	lock_take(&lock);
	while ((s = *p)) {
		if (gone(s, a, b)) {
			*p = s->next;
			free(s);
		} else {
			p = &s->next;
		}
	}
	lock_drop(&lock);
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

/* ------------------------------------------------------------------------------ asking */

/* Receives the fds of one message, for the caller to close: their number, or -EPROTO. */
static int take(int sock, int fd[GROUP])
{
	union control c;
	char byte;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	struct cmsghdr *h;
	int n;

	if (AGAIN(recvmsg(sock, &m, MSG_CMSG_CLOEXEC)) != 1)
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

bool peer_is_us(const struct sv_ipc_handle *h)
{
	bool us;

	lock_take(&lock);
	us = listening >= 0 && !memcmp(h->server, name, sizeof(name));
	lock_drop(&lock);
	return us;
}

CUresult peer_ask(const struct sv_ipc_handle *h, const uint8_t key[16],
		  CUresult (*each)(void *arg, int fd), void *arg)
{
	uint32_t want = h->kind == SV_IPC_EVENT ? 1 : sv_ipc_room(h) / SV_GRANULE;
	struct ask q = { .magic = ASK_MAGIC, .version = PEER_VERSION, .kind = h->kind };
	CUresult r = CUDA_ERROR_MAP_FAILED;
	struct sockaddr_un a;
	struct told t;
	socklen_t len;
	ssize_t n;
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	lock_may_wait("another proxy");
	memcpy(q.secret, h->secret, sizeof(q.secret));
	memcpy(q.key, key, sizeof(q.key));
	patience(sock, PATIENCE);
	len = address(&a, h->server);
	if (AGAIN(connect(sock, (struct sockaddr *)&a, len)) || !our_user(sock)) {
		cannot(ASKS, "it has ended, or is not of this user and network namespace");
	} else if (AGAIN(send(sock, &q, sizeof(q), MSG_NOSIGNAL)) == sizeof(q)) {
		n = AGAIN(recv(sock, &t, sizeof(t), MSG_TRUNC));
		if (n < (ssize_t)offsetof(struct told, status) || t.magic != TOLD_MAGIC)
			cannot(ASKS, "this proxy does not understand its proxy's answer");
		else if (t.version != PEER_VERSION)
			cannot(ASKS, "its proxy is of version %u, this one of %u", t.version,
			       PEER_VERSION);
		else if (n != sizeof(t))
			cannot(ASKS, "its proxy has sent an answer of another size");
		else if (t.status)
			cannot(ASKS, "it does not export that any more, or never did");
		else if (t.n == want && t.at == h->at && t.len == h->len)
			r = take_all(sock, want, each, arg);
		else
			r = CUDA_ERROR_INVALID_VALUE;
	}
	close(sock);
	return r;
}
