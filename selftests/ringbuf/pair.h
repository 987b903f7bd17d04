/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pair.h - helpers of the ring's tests: both ends of a channel in processes of their own
 *
 * Both ends have the same address, so they need two processes, and the client must not be forked
 * from a process that has a channel mapped. Therefore each test starts a zygote first, which forks
 * on demand: it has no channel and no threads. Arguments and results pass through self->shm.
 */
#ifndef SELFTESTS_RINGBUF_PAIR_H
#define SELFTESTS_RINGBUF_PAIR_H

#include "../harness/leaks.h"
#include "../harness/patience.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "ring_i.h"

#ifdef __SANITIZE_THREAD__
/*
 * ring_save writes the control page while the watch over the client may atomically change a word in
 * it, which a restore does not use.
 */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
	return "race:ring_save\n";
}
#endif

#define MS	1000000ll
#define SEC	1000000000ll
#define SHM	(8u << 20)

/* Timeout for an event that always comes unless something hangs. */
#define PATIENCE	(PATIENCE_S * SEC)

/* For the processes other than the test's own, which the harness's macros do not know. */
#define NEED(c) do { \
	if (!(c)) { \
		fprintf(stderr, "# %s:%d: needed %s (errno %d)\n", __FILE__, __LINE__, #c, errno); \
		_exit(1); \
	} \
} while (0)

#define NEED_OK(call) do { \
	long ok_ = (call); \
	if (ok_) { \
		fprintf(stderr, "# %s:%d: %s gave %ld: %s\n", __FILE__, __LINE__, #call, ok_, \
			ring_strerror(ok_)); \
		_exit(1); \
	} \
} while (0)

/*
 * The number of a test's repetitions: n in `make check`, fewer where each step is slow (in the VM,
 * under a sanitizer); times SINGVGPU_SCALE in `make check-long`.
 */
static inline long scaled(long n)
{
	const char *s = getenv("SINGVGPU_SCALE");

	if (s)
		return n * atol(s);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	return n / 4 ? n / 4 : 1;
#endif
	if (getenv("SINGVGPU_VM"))
		return n / 8 ? n / 8 : 1;
	return n;
}

static inline int64_t now_ns(void)
{
	return ring_now();
}

static inline void sleep_ns(int64_t ns)
{
	struct timespec t = { ns / SEC, ns % SEC };

	nanosleep(&t, NULL);
}

/* A random number generator; *s is the state, not 0. */
static inline uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * 0x2545f4914f6cdd1dull;
}

/* while (!condition && be_patient(&p)): sleeps a little; false: all others hang. */
struct patience {
	int64_t since;		/* of the last look; 0: none yet */
	uint64_t mark;
};

static inline bool be_patient(struct patience *p)
{
	sleep_ns(MS / 10);
	if (!p->since)
		p->since = now_ns();
	if (now_ns() - p->since < PATIENCE)
		return true;
	p->since = 0;
	return others_go_on(&p->mark);
}

/* ------------------------------------------------------------------------------ the zygote */

typedef void (*child_fn)(int fd, void *arg);

struct zygote {
	int sock;
	pid_t pid;
};

struct order {
	child_fn fn;
	void *arg;
	pid_t reap;		/* or 0: fork, and run fn */
};

static inline int send_fd(int sock, int fd, const void *data, size_t len)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { .h = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { (void *)data, len };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	if (fd >= 0) {
		m.msg_control = &c;
		m.msg_controllen = sizeof(c);
		memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -errno;
}

/* -1: no fd came; -2: nothing came. */
static inline int receive_fd(int sock, void *data, size_t len)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct iovec v = { data, len };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	int fd;

	if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != (ssize_t)len)
		return -2;
	if (!CMSG_FIRSTHDR(&m))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

static inline pid_t zygote_fork(int sock, int fd, const struct order *o)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(sock);
	o->fn(fd, o->arg);
	_exit(0);
}

static inline void zygote_main(int sock)
{
	int fd, answer, status;
	struct order o;

	for (;;) {
		fd = receive_fd(sock, &o, sizeof(o));
		if (fd == -2)
			_exit(0);
		if (!o.reap) {
			answer = zygote_fork(sock, fd, &o);
			if (fd >= 0)
				close(fd);
		} else if (waitpid(o.reap, &status, 0) != o.reap) {
			answer = -errno;
		} else {
			answer = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
		}
		NEED(write(sock, &answer, sizeof(answer)) == sizeof(answer));
	}
}

static inline int zygote_start(struct zygote *z)
{
	int s[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s))
		return -errno;
	z->sock = s[0];
	z->pid = fork();
	if (!z->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(s[0]);
		zygote_main(s[1]);
	}
	close(s[1]);
	return 0;
}

static inline int order(struct zygote *z, const struct order *o, int fd)
{
	int answer, rc = send_fd(z->sock, fd, o, sizeof(*o));

	if (rc)
		return rc;
	return read(z->sock, &answer, sizeof(answer)) == sizeof(answer) ? answer : -EPIPE;
}

/* Starts a process that runs fn(fd, arg) with a copy of our fd, and exits with 0. */
static inline pid_t spawn(struct zygote *z, child_fn fn, void *arg, int fd)
{
	return order(z, &(struct order){ .fn = fn, .arg = arg }, fd);
}

/* Its exit status; 1000 + signal if one killed it. */
static inline int reap(struct zygote *z, pid_t pid)
{
	return order(z, &(struct order){ .reap = pid }, -1);
}

static inline void zygote_end(struct zygote *z)
{
	if (z->pid <= 0)
		return;
	close(z->sock);
	waitpid(z->pid, NULL, 0);
}

/* ------------------------------------------------------------------------------- a channel */

static inline struct ring_params params_of(enum ring_backend backend)
{
	static uint32_t count;
	uint32_t pid = getpid();
	struct ring_params p = {
		.backend = backend, .id = { 0x7e }, .cookie = { 0xc0, 1 },
		.geo = { .va = RING_VA_BASE, .arena_len = 1 << 20, .log_len = 64 << 10,
			 .ring_units = 256, .cpl_slots = 64 },
	};

	count++;
	memcpy(p.id + 4, &pid, sizeof(pid));
	memcpy(p.id + 8, &count, sizeof(count));
	return p;
}

static inline int pidfd_of(pid_t pid)
{
	return syscall(SYS_pidfd_open, pid, 0);
}

/*
 * Starts fn with a client fd of r, watched. fn gets a socket through which the fd is sent, so that
 * the client is watched before it can attach.
 */
static inline pid_t spawn_client(struct zygote *z, struct ring *r, child_fn fn, void *arg)
{
	int s[2], fd = ring_client_fd(r), rc;
	pid_t pid;

	if (fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s))
		return fd < 0 ? fd : -errno;
	pid = spawn(z, fn, arg, s[1]);
	close(s[1]);
	rc = pid > 0 ? ring_watch_peer(r, pidfd_of(pid)) : pid;
	if (!rc)
		rc = ring_pass_fd(s[0], fd);
	close(s[0]);
	close(fd);
	return rc ? rc : pid;
}

/* fd, or if it is spawn_client's socket, the client fd from it. */
static inline int passed(int fd)
{
	struct stat st;
	int got;

	NEED(!fstat(fd, &st));
	if (!S_ISSOCK(st.st_mode))
		return fd;
	got = ring_take_fd(fd);
	NEED(got >= 0);
	close(fd);
	return got;
}

static inline struct ring *attached(int fd)
{
	struct ring *r = NULL;

	NEED_OK(ring_attach(&r, passed(fd)));
	return r;
}

/* ring_wait for a record, repeated while others run. -ETIMEDOUT: all others hang. */
static inline int wait_patiently(struct ring *r)
{
	uint64_t mark = 0;
	int rc;

	do
		rc = ring_wait(r, PATIENCE);
	while (rc == -ETIMEDOUT && others_go_on(&mark));
	return rc;
}

/* The next record: 1; or wait_patiently's result. */
static inline int next(struct ring *r, struct ring_record *rec)
{
	int rc;

	for (;;) {
		rc = ring_peek(r, rec);
		if (rc)
			return rc;
		rc = wait_patiently(r);
		if (rc && rc != -EINTR)
			return rc;
	}
}

/* Answers all requests until the client is gone; returns the number of records. */
static inline long serve_all(struct ring *r)
{
	struct ring_record rec;
	long n = 0;
	int rc;

	while ((rc = next(r, &rec)) == 1) {
		if (rec.cpl && ring_complete(r, rec.cpl, rec.seq, 0, NULL, 0))
			return -EINVAL;
		ring_advance(r);
		n++;
	}
	return rc == -EPIPE ? n : rc;
}

/* -------------------------------------------------------------------------------- payloads */

/* The payload of record number n of a producer begins with these 16 bytes. */
struct mark {
	uint32_t producer;
	uint32_t n;
	uint32_t len;		/* of all of it */
	uint32_t check;
};

static uint8_t noise[SINGVGPU_RECORD_MAX + 1024];

static void __attribute__((constructor)) make_noise(void)
{
	uint64_t seed = 0x123456789;
	size_t i;

	for (i = 0; i < sizeof(noise); i++)
		noise[i] = rnd(&seed) >> 32;
}

static inline void fill(uint8_t *p, uint32_t len, uint32_t seed)
{
	NEED(len <= SINGVGPU_RECORD_MAX);
	memcpy(p, noise + seed % 1021, len);
}

static inline bool filled(const uint8_t *p, uint32_t len, uint32_t seed)
{
	return len <= SINGVGPU_RECORD_MAX && !memcmp(p, noise + seed % 1021, len);
}

static inline uint32_t seed_of(uint32_t producer, uint32_t n)
{
	return (producer * 2654435761u) ^ (n * 40503u) ^ n >> 16;
}

/* len >= sizeof(struct mark) */
static inline void mark(uint8_t *p, uint32_t producer, uint32_t n, uint32_t len)
{
	uint32_t seed = seed_of(producer, n);
	struct mark m = { producer, n, len, seed ^ len };

	memcpy(p, &m, sizeof(m));
	fill(p + sizeof(m), len - sizeof(m), seed);
}

/* Whether the record is intact; *m: which record it is. */
static inline bool marked(const struct ring_record *rec, struct mark *m)
{
	uint32_t seed;

	if (rec->len < sizeof(*m))
		return false;
	memcpy(m, rec->data, sizeof(*m));
	seed = seed_of(m->producer, m->n);
	return m->len == rec->len && m->check == (seed ^ m->len) &&
	       filled((const uint8_t *)rec->data + sizeof(*m), rec->len - sizeof(*m), seed);
}

/*
 * A payload that resembles records at each place where the ring could take it for one: each unit
 * behind the first has the seq that a record there would have, in this lap or in the next, and a
 * header that no test submits. The record is assumed to be at pos.
 */
#define FAKE_OP 0xfa4e

static inline void poison(struct ring *r, uint8_t *p, uint32_t len, uint64_t lap)
{
	uint64_t pos = load(&r->tx.next), fake[2], off;

	if ((pos & r->mask) + rec_units(len) > r->geo.ring_units)
		pos = (pos | r->mask) + 1;
	for (off = SINGVGPU_UNIT; off <= len; off += SINGVGPU_UNIT) {
		fake[0] = pos + off / SINGVGPU_UNIT + 1 + lap * r->geo.ring_units;
		fake[1] = FAKE_OP;
		memcpy(p + off - sizeof(struct singvgpu_rec), fake, sizeof(fake));
	}
}

/* ----------------------------------------------------------------------------- the fixture */

FIXTURE(ring) {
	struct zygote z;
	struct ring_params p;
	struct ring *r;		/* the proxy's end: ring_create(&self->r, &self->p) */
	uint8_t *shm;		/* shared with all that the zygote forks; zeros */
};

FIXTURE_VARIANT(ring) {
	enum ring_backend backend;
};

FIXTURE_VARIANT_ADD(ring, memfd) {
	.backend = RING_MEMFD,
};

FIXTURE_VARIANT_ADD(ring, kmod) {
	.backend = RING_KMOD,
};

FIXTURE_SETUP(ring)
{
	if (variant->backend == RING_KMOD && access(SINGVGPU_DEV_PATH, F_OK))
		SKIP(return, "no " SINGVGPU_DEV_PATH ": the module is not loaded");
	self->p = params_of(variant->backend);
	self->shm = mmap(NULL, SHM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->shm);
	ASSERT_EQ(0, zygote_start(&self->z));
}

FIXTURE_TEARDOWN(ring)
{
	ring_close(self->r);
	zygote_end(&self->z);
	munmap(self->shm, SHM);
}

#endif
