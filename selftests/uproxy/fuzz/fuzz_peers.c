// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_peers.c - libFuzzer over the exchange of memory between proxies, peer.c and ipc.c
 *
 * An input is a program. It offers and hides memory; hostile peers connect to the real server with
 * messages that are nearly right, and leave at any moment; the session fetches memory from itself
 * and from a hostile server, which answers with other numbers, files and groups of files, and maps
 * what it has, or has not, fetched.
 *
 * Checked: who knows the secret of an offer gets its granules, in order, and nobody gets anything
 * else; each imported handle is released once; no descriptor is left over.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "peer.h"
#include "transfer.h"
#include "../../harness/fuzz.h"

#define WINDOW		0x200000000000ull
#define GRANULES	160u
#define OFFERS		16
#define FETCHES		32
#define PATIENCE_S	20
#define FDS		((int)GRANULES + 64)

/* As peer.c has them. */
struct ask {
	uint32_t magic, version;
	uint32_t kind, pad;
	uint8_t secret[16], key[16];
};
struct told {
	uint32_t magic, version;
	uint32_t status;
	uint32_t n;
	uint64_t at, len;
};
#define ASK_MAGIC	0x41475653u
#define TOLD_MAGIC	0x54475653u
#define PEER_VERSION	2u

static struct sv_session session;
static unsigned int fail;	/* bit n: the n-th kind of call fails */
enum { F_SHARE, F_RETAIN, F_EXPORT, F_IMPORT, F_MAP };

/* libFuzzer's timer interrupts any thread. */
static void wait_for(sem_t *s)
{
	while (sem_wait(s))
		;
}

/* ------------------------------------------------------------------------------ the device */

static int granule[GRANULES];	/* a file for each */
static ino_t ino[GRANULES];
static uint64_t handles;	/* that are not released; atomic */
static uint64_t imported[GRANULES];	/* by the fetch under way */
static unsigned int nimported;

static CUresult result(int what)
{
	return __atomic_load_n(&fail, __ATOMIC_RELAXED) & 1u << what ? CUDA_ERROR_UNKNOWN :
	       CUDA_SUCCESS;
}
static CUresult m_retain(CUmemGenericAllocationHandle *h, void *at)
{
	uint64_t g = ((uint64_t)at - WINDOW) / SV_GRANULE;

	MUST((uint64_t)at >= WINDOW && g < GRANULES && (uint64_t)at % SV_GRANULE == 0);
	if (result(F_RETAIN))
		return CUDA_ERROR_UNKNOWN;
	__atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED);
	*h = g + 1;
	return CUDA_SUCCESS;
}
static CUresult m_export(void *fd, CUmemGenericAllocationHandle h, CUmemAllocationHandleType t,
			 unsigned long long f)
{
	MUST(t == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !f && h && h <= GRANULES);
	if (result(F_EXPORT))
		return CUDA_ERROR_UNKNOWN;
	*(int *)fd = fcntl(granule[h - 1], F_DUPFD_CLOEXEC, 3);
	return CUDA_SUCCESS;
}
static CUresult m_release(CUmemGenericAllocationHandle h)
{
	MUST(h && h <= GRANULES + 1 && __atomic_fetch_sub(&handles, 1, __ATOMIC_RELAXED));
	return CUDA_SUCCESS;
}
static CUresult m_import(CUmemGenericAllocationHandle *h, void *fd, CUmemAllocationHandleType t)
{
	struct stat st;

	MUST(t == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !fstat((intptr_t)fd, &st));
	if (result(F_IMPORT))
		return CUDA_ERROR_UNKNOWN;
	__atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED);
	for (*h = 1; *h <= GRANULES && ino[*h - 1] != st.st_ino; ++*h)
		;
	MUST(nimported < GRANULES);
	imported[nimported++] = *h;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------ the window */

bool window_mapped(const struct sv_session *s, uint64_t va, uint64_t len)
{
	MUST(s == &session);
	return va >= WINDOW && va < WINDOW + GRANULES * SV_GRANULE &&
	       len <= WINDOW + GRANULES * SV_GRANULE - va;
}
CUresult window_shareable(struct sv_session *s, uint64_t va, uint64_t len)
{
	MUST(window_mapped(s, va, len) && len);
	return result(F_SHARE);
}

static const uint64_t *expected;	/* the handles that a map must be given */
static uint64_t nexpected;

CUresult window_map_peer(struct call *k, uint64_t va, uint64_t n, const uint64_t *handle)
{
	MUST(k && n && n == nexpected && !memcmp(handle, expected, n * sizeof(*handle)));
	for (uint64_t i = 0; i < n; i++)
		MUST(handle[i] && handle[i] <= GRANULES + 1);
	if (va % SV_GRANULE) {
		k->c.why = "an address";
		return CUDA_ERROR_INVALID_VALUE;
	}
	return result(F_MAP);
}
void uproxy_say(const char *fmt, ...)
{
	(void)fmt;
}

/* ------------------------------------------------------------------------------ the input */

/* Changes up to 3 bytes of p[len]. */
static void spoil(struct program *in, uint8_t how, void *p, size_t len)
{
	for (int i = how & 3; i; i--) {
		uint8_t at = byte(in);

		((uint8_t *)p)[at % len] ^= byte(in);
	}
}

static struct offer {
	struct sv_ipc_handle h;
	uint8_t key[16];
	uint64_t va;
	bool hidden;
} offers[OFFERS];
static unsigned int noffers;

static struct fetch {
	uint64_t id, n;
	uint64_t handle[GRANULES];
} fetches[FETCHES];
static unsigned int nfetches;

/* Calls fn with a[len]; the reply goes to *reply. */
static int call(int (*fn)(struct call *k), const void *a, uint32_t len, struct call *k)
{
	int rc;

	*k = (struct call){ .c = { .session = &session, .data = a, .len = len } };
	rc = fn(k);
	MUST(rc <= 0 && (!rc || k->c.why));
	return rc ?: k->c.status;
}

static void show(struct program *in, uint8_t n)
{
	struct sv_ipc_show a = { .va = WINDOW + SV_GRANULE * (n % 64) + 512 * (byte(in) & 3) };
	struct sv_ipc_shown out;
	struct offer *o = &offers[noffers];
	uint8_t how = byte(in);
	struct call k;

	if (noffers == OFFERS)
		return;
	a.len = SV_GRANULE * (1 + how % 80) - (how & 128 ? 4096 : 0);
	a.key[0] = n & 64 ? 1 + (n >> 7) : 0;
	if (n & 128)
		spoil(in, how >> 5, &a, sizeof(a));
	if (call(do_ipc_show, &a, sizeof(a), &k))
		return;
	MUST(k.c.reply_len == sizeof(out) && window_mapped(&session, a.va, a.len) && a.len);
	memcpy(&out, k.c.reply, sizeof(out));
	*o = (struct offer){ .h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
				    .kind = sv_zero(a.key, 16) ? SV_IPC_MEMORY : SV_IPC_POINTER,
				    .at = a.va & (SV_GRANULE - 1), .len = a.len }, .va = a.va };
	memcpy(o->h.server, out.server, 16);
	memcpy(o->h.secret, out.secret, 16);
	memcpy(o->key, a.key, 16);
	/* The same offer, shown once more, keeps its secret. */
	for (unsigned int i = 0; i < noffers; i++)
		if (!offers[i].hidden && offers[i].va == o->va && offers[i].h.len == o->h.len &&
		    !memcmp(offers[i].key, o->key, 16)) {
			MUST(!memcmp(&offers[i].h, &o->h, sizeof(o->h)));
			return;
		}
	noffers++;
}

static void hide(struct program *in, uint8_t n)
{
	uint64_t va = WINDOW + SV_GRANULE * (n % 64) + 512 * (byte(in) & 3);
	uint64_t len = SV_GRANULE * (1 + byte(in) % 4);
	struct call k;

	for (unsigned int i = 0; i < noffers; i++)
		if (n & 64 ? offers[i].va == va :
		    offers[i].va < va + len && va < offers[i].va + offers[i].h.len)
			offers[i].hidden = true;
	if (n & 64)
		MUST(!call(do_ipc_forget, &(struct sv_ipc_forget){ va },
			   sizeof(struct sv_ipc_forget), &k));
	else
		peer_hide(va, len);
}

/* ------------------------------------------------------------------------------ a hostile peer */

static int place(struct sockaddr_un *a, const uint8_t who[16])
{
	char hex[33];

	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", who[i]);
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	return offsetof(struct sockaddr_un, sun_path) + 1 +
	       snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "singvgpu-peer-%s", hex);
}

static int send_fds(int sock, const void *p, size_t len, const int *fd, int n)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(128 * sizeof(int))];
	} c = { .h = { .cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { (void *)p, len };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = n ? &c : NULL,
			    .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };

	memcpy(CMSG_DATA(&c.h), fd, n * sizeof(int));
	return sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Receives a group of files: their inodes. Returns how many, 0 at the end. */
static int take(int sock, ino_t *got, int room)
{
	char space[CMSG_SPACE(128 * sizeof(int))], byte_;
	struct iovec v = { &byte_, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space,
			    .msg_controllen = sizeof(space) };
	struct cmsghdr *h;
	struct stat st;
	int n, fd;

	do		/* libFuzzer has a timer */
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return 0;
	h = CMSG_FIRSTHDR(&m);
	MUST(h && h->cmsg_type == SCM_RIGHTS && !(m.msg_flags & MSG_CTRUNC));
	n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	MUST(n > 0 && n <= room);
	for (int i = 0; i < n; i++) {
		memcpy(&fd, CMSG_DATA(h) + i * sizeof(fd), sizeof(fd));
		MUST(!fstat(fd, &st));
		got[i] = st.st_ino;
		close(fd);
	}
	return n;
}

/* The offer that a question is for, or NULL. */
static const struct offer *offer_of(const struct ask *q)
{
	for (unsigned int i = 0; i < noffers; i++)
		if (!offers[i].hidden && offers[i].h.kind == q->kind &&
		    !memcmp(offers[i].h.secret, q->secret, 16) && !memcmp(offers[i].key, q->key, 16))
			return &offers[i];
	return NULL;
}

static void check_files(int sock, const struct offer *o, uint32_t want)
{
	uint64_t first = (o->va - WINDOW) / SV_GRANULE;
	ino_t got[GRANULES];
	uint32_t have = 0;
	int n;

	MUST(want == sv_ipc_room(&o->h) / SV_GRANULE && want <= GRANULES);
	while (have < want && (n = take(sock, got + have, want - have)))
		have += n;
	MUST(have == want || fail);
	for (uint32_t i = 0; i < have; i++)
		MUST(got[i] == ino[first + i]);
	MUST(have < want || !take(sock, got, 0));
}

static void ask(struct program *in, uint8_t n)
{
	struct ask q = { .magic = ASK_MAGIC, .version = PEER_VERSION, .kind = SV_IPC_MEMORY };
	const struct offer *o = noffers ? &offers[n % noffers] : NULL;
	struct timeval t = { .tv_sec = PATIENCE_S };
	int fds[4] = { 0 }, sock;
	struct sockaddr_un a;
	uint8_t how = byte(in);
	size_t len = sizeof(q);
	struct told told;
	ssize_t got;

	if (!o)
		return;
	q.kind = o->h.kind;
	memcpy(q.secret, o->h.secret, 16);
	memcpy(q.key, o->key, 16);
	spoil(in, how, &q, sizeof(q));
	if (how & 4)
		len = 1 + byte(in) % (2 * sizeof(q));
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	MUST(sock >= 0 && !connect(sock, (struct sockaddr *)&a, place(&a, o->h.server)));
	if (how & 8) {
		uint8_t longer[2 * sizeof(q) + 1] = { 0 };

		memcpy(longer, &q, sizeof(q));
		send_fds(sock, longer, len, fds, how >> 4 & 3);
	} else {
		len = sizeof(q);
		send_fds(sock, &q, len, fds, how >> 4 & 3);
	}
	if (how & 64) {		/* it does not wait, or not for the files */
		if (how & 128)
			recv(sock, &told, sizeof(told), 0);
		close(sock);
		return;
	}
	do
		got = recv(sock, &told, sizeof(told), 0);
	while (got < 0 && errno == EINTR);
	if (got <= 0) {
		MUST(len != sizeof(q) || q.magic != ASK_MAGIC || q.pad);
	} else {
		o = q.version == PEER_VERSION ? offer_of(&q) : NULL;
		MUST(got == sizeof(told) && told.magic == TOLD_MAGIC);
		MUST(told.version == PEER_VERSION && !told.status == !!o);
		if (o) {
			MUST(told.at == o->h.at && told.len == o->h.len);
			check_files(sock, o, told.n);
		} else {
			MUST(!told.n && !told.at && !told.len && recv(sock, &told, 1, 0) <= 0);
		}
	}
	close(sock);
}

/* ------------------------------------------------------------------------------ a hostile server */

static struct {
	int sock;
	uint8_t who[16];
	struct program *in;
	struct told truth;
	sem_t go, done;
} liar;

static void lie(int sock)
{
	struct program *in = liar.in;
	struct told t = liar.truth;
	struct ask q;
	uint8_t how = byte(in);
	int fds[128];

	if (recv(sock, &q, sizeof(q), 0) <= 0 || how == 255)
		return;
	spoil(in, how, &t, sizeof(t));
	send_fds(sock, &t, how & 4 ? byte(in) % sizeof(t) : sizeof(t), granule, how >> 3 & 3);
	for (int groups = 1 + byte(in) % 6; groups; groups--) {
		int n = byte(in) % 100;

		for (int i = 0; i < n; i++)
			fds[i] = how & 32 ? 0 : granule[i];
		if (send_fds(sock, "12345678", 1 + (how >> 6), fds, n) < 0)
			return;
	}
}

static void *liars_thread(void *arg)
{
	int sock;

	for (;;) {
		wait_for(&liar.go);
		sock = accept4(liar.sock, NULL, NULL, SOCK_CLOEXEC);
		MUST(sock >= 0);
		lie(sock);
		close(sock);
		sem_post(&liar.done);
	}
	return arg;
}

/* ------------------------------------------------------------------------------ fetching, mapping */

static int fetch(const struct sv_ipc_fetch *a)
{
	struct fetch *f = &fetches[nfetches];
	struct sv_ipc_fetched out;
	struct call k;
	int rc;

	nimported = 0;
	rc = call(do_ipc_fetch, a, sizeof(*a), &k);
	if (rc)
		return rc;
	MUST(k.c.reply_len == sizeof(out));
	memcpy(&out, k.c.reply, sizeof(out));
	f->id = out.id;
	f->n = sv_ipc_room(&a->h) / SV_GRANULE;
	MUST(f->n == nimported);
	memcpy(f->handle, imported, f->n * sizeof(*imported));
	nfetches++;
	return 0;
}

static void fetch_own(struct program *in, uint8_t n)
{
	const struct offer *o = noffers ? &offers[n % noffers] : NULL;
	struct ask q = { .kind = 0 };
	struct sv_ipc_fetch a;

	if (!o || nfetches == FETCHES)
		return;
	a.h = o->h;
	memcpy(a.key, o->key, 16);
	spoil(in, byte(in), &a, sizeof(a));
	if (memcmp(a.h.server, o->h.server, 16))	/* a name that nobody has */
		memset(a.h.server, 0xff, 16);
	if (fetch(&a))
		return;
	/* Nothing but what is offered comes. */
	q.kind = a.h.kind;
	memcpy(q.secret, a.h.secret, 16);
	memcpy(q.key, a.key, 16);
	o = offer_of(&q);
	MUST(o && o->h.kind == SV_IPC_POINTER && a.h.at == o->h.at && a.h.len == o->h.len);
	for (uint64_t i = 0; i < nimported; i++)
		MUST(imported[i] == (o->va - WINDOW) / SV_GRANULE + i + 1);
}

static void fetch_lies(struct program *in, uint8_t n)
{
	struct sv_ipc_fetch a = { .h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
		.kind = SV_IPC_MEMORY, .at = 512 * (n & 1), .len = SV_GRANULE * (1 + n / 2 % 80) } };

	if (nfetches == FETCHES)
		return;
	memcpy(a.h.server, liar.who, 16);
	liar.in = in;
	liar.truth = (struct told){ TOLD_MAGIC, PEER_VERSION, 0, sv_ipc_room(&a.h) / SV_GRANULE,
				    a.h.at, a.h.len };
	sem_post(&liar.go);
	fetch(&a);
	wait_for(&liar.done);
}

static void map(struct program *in, uint8_t n)
{
	struct fetch *f = nfetches ? &fetches[n % nfetches] : NULL;
	struct sv_ipc_map a = { WINDOW + (n == 255), SV_GRANULE, 1 + n };
	struct call k;

	if (f) {
		a.id = f->id;
		a.len = f->n * SV_GRANULE;
	}
	spoil(in, n >> 6, &a, sizeof(a));
	for (f = fetches; f < fetches + nfetches && f->id != a.id; f++)
		;
	nexpected = f < fetches + nfetches ? f->n : 0;
	expected = f->handle;
	call(do_ipc_map, &a, sizeof(a), &k);
	if (nexpected)		/* it can be mapped once, also in vain */
		*f = fetches[--nfetches];
}

static void step(struct program *in)
{
	uint8_t op = byte(in), n = byte(in);

	switch (op % 8) {
	case 0: case 1:
		show(in, n);
		break;
	case 2: case 3:
		ask(in, n);
		break;
	case 4:
		fetch_own(in, n);
		break;
	case 5:
		fetch_lies(in, n);
		break;
	case 6:
		map(in, n);
		break;
	case 7:
		if (n & 3)
			hide(in, n);
		else
			__atomic_store_n(&fail, n & 4 ? byte(in) : 0, __ATOMIC_RELAXED);
		break;
	}
}

/* ------------------------------------------------------------------------------ start and end */

static void begin(void)
{
	struct cuda_driver *d = &session.hal.drv;
	struct sockaddr_un a;
	struct stat st;
	pthread_t t;

	d->cuMemRetainAllocationHandle = m_retain;
	d->cuMemExportToShareableHandle = m_export;
	d->cuMemImportFromShareableHandle = m_import;
	d->cuMemRelease = m_release;
	session.hal.window = WINDOW;
	session.hal.window_len = GRANULES * SV_GRANULE;
	for (unsigned int i = 0; i < GRANULES; i++) {
		granule[i] = memfd_create("granule", MFD_CLOEXEC);
		MUST(granule[i] >= 0 && !fstat(granule[i], &st));
		ino[i] = st.st_ino;
	}
	memset(liar.who, 0xe0, sizeof(liar.who));
	memcpy(liar.who, &(pid_t){ getpid() }, sizeof(pid_t));
	liar.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	MUST(!bind(liar.sock, (struct sockaddr *)&a, place(&a, liar.who)));
	MUST(!listen(liar.sock, 8));
	sem_init(&liar.go, 0, 0);
	sem_init(&liar.done, 0, 0);
	MUST(!pthread_create(&t, NULL, liars_thread, NULL));
}

static uint8_t server[16];

/* The server takes one connection after the other, and closes each a moment after its peer. */
static void wait_for_closed(int fds)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un a;
	char none;

	MUST(sock >= 0 && !connect(sock, (struct sockaddr *)&a, place(&a, server)));
	MUST(send(sock, "?", 1, MSG_NOSIGNAL) == 1 && recv(sock, &none, 1, 0) <= 0);
	close(sock);
	for (int i = 0; i < 5000 && open_fds(FDS) != fds; i++)
		usleep(100);
	MUST(open_fds(FDS) == fds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };
	struct program none = { NULL, NULL };
	struct sv_ipc_show first = { .va = WINDOW, .len = SV_GRANULE };
	int fds;

	if (!session.hal.window) {
		struct call k;

		begin();
		/* The server comes with the first offer. */
		MUST(!call(do_ipc_show, &first, sizeof(first), &k));
		memcpy(server, ((struct sv_ipc_shown *)k.c.reply)->server, sizeof(server));
	}
	fds = open_fds(FDS);
	peer_hide(WINDOW, GRANULES * SV_GRANULE);
	while (in.p < in.end)
		step(&in);
	__atomic_store_n(&fail, 0, __ATOMIC_RELAXED);
	while (nfetches)
		map(&none, 0);
	noffers = 0;
	wait_for_closed(fds);
	MUST(!__atomic_load_n(&handles, __ATOMIC_RELAXED));
	return 0;
}
