// SPDX-License-Identifier: Apache-2.0
/*
 * memfd.c - the backend without a kernel module: a sealed memfd, futexes, and two watches
 *
 * The client notices the proxy's death through `life`, a robust futex that a thread of the proxy
 * holds: the client sleeps on it and on its own word at once (futex_waitv). The kernel wakes one
 * sleeper, which wakes the others. The thread's robust list is private to the proxy: at the proxy's
 * exit the kernel follows no pointer that the client can write. The same thread polls the client's
 * pidfd. CRIU can dump such a client, which has only a mapping and perhaps an fd.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring_i.h"

#define NS_PER_S 1000000000ll

/* ------------------------------------------------------------------------- the life thread */

struct life {
	pthread_t thread;
	int event;			/* stop or pidfd has changed */
	int pidfd;			/* owned by the thread */
	pthread_mutex_t lock;
	int fresh;			/* lock: a pidfd to watch from now on, or -1 */
	uint32_t stop;
	uint32_t ready;			/* futex: tid, when the robust list is set */
	struct robust_list_head head;
	struct robust_list node;
};

/* live() holds the lock, so that the next client is not marked as dead instead of this one. */
static void peer_died(struct ring *r)
{
	store_release(&r->rx.peer_gone, 1);
	__atomic_fetch_or(&r->ctl->client_life, SINGVGPU_LIFE_DIED, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&r->ctl->doorbell, 1, __ATOMIC_SEQ_CST);
	r->ops->wake(r, &r->ctl->doorbell, 1);
}

static void *live(void *arg)
{
	struct ring *r = arg;
	struct life *l = r->life;
	struct pollfd p[2] = { { .fd = l->event, .events = POLLIN }, { .fd = -1 } };
	uint32_t tid = syscall(SYS_gettid);
	uint64_t n;

	l->head.list.next = &l->node;
	l->node.next = &l->head.list;
	l->head.futex_offset = (long)&r->ctl->life - (long)&l->node;
	syscall(SYS_set_robust_list, &l->head, sizeof(l->head));
	swap(&r->ctl->life, tid);
	store_release(&l->ready, 1);
	syscall(SYS_futex, &l->ready, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	while (!load_acquire(&l->stop)) {
		p[1] = (struct pollfd){ .fd = l->pidfd, .events = POLLIN };
		if (poll(p, 2, -1) < 0)
			continue;
		if (p[0].revents && read(l->event, &n, sizeof(n)) < 0)
			continue;
		pthread_mutex_lock(&l->lock);
		if (l->fresh >= 0) {
			if (l->pidfd >= 0)
				close(l->pidfd);
			l->pidfd = l->fresh;
			l->fresh = -1;
		} else if (p[1].revents) {
			close(l->pidfd);
			l->pidfd = -1;
			peer_died(r);
		}
		pthread_mutex_unlock(&l->lock);
	}
	l->head.list.next = &l->head.list;	/* a thread that exits by itself is not a death */
	return NULL;
}

static void life_end(struct ring *r)
{
	struct life *l = r->life;

	if (!l)
		return;
	r->life = NULL;
	if (l->thread) {
		store_release(&l->stop, 1);
		eventfd_write(l->event, 1);
		pthread_join(l->thread, NULL);
	}
	if (l->event >= 0)
		close(l->event);
	if (l->pidfd >= 0)
		close(l->pidfd);
	if (l->fresh >= 0)
		close(l->fresh);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static int life_begin(struct ring *r)
{
	struct life *l = calloc(1, sizeof(*l));
	sigset_t all, old;
	int rc;

	if (!l)
		return -ENOMEM;
	l->pidfd = -1;
	l->fresh = -1;
	pthread_mutex_init(&l->lock, NULL);
	l->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->event < 0) {
		rc = -errno;
		free(l);
		return rc;
	}
	r->life = l;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = -pthread_create(&l->thread, NULL, live, r);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		l->thread = 0;
		life_end(r);
		return rc;
	}
	while (!load_acquire(&l->ready))
		syscall(SYS_futex, &l->ready, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	return 0;
}

static int watch_peer(struct ring *r, int pidfd)
{
	struct life *l = r->life;

	if (pidfd < 0)
		return -EINVAL;
	pthread_mutex_lock(&l->lock);
	if (load_acquire(&r->rx.peer_gone) || load(&r->ctl->client_closed)) {
		/* The last client has gone: another one follows. */
		__atomic_fetch_add(&r->rx.cons, 1u << SINGVGPU_CONS_GEN_SHIFT, __ATOMIC_RELAXED);
		__atomic_fetch_add(&r->ctl->cons, 1u << SINGVGPU_CONS_GEN_SHIFT, __ATOMIC_SEQ_CST);
		store(&r->ctl->client_closed, 0);
	}
	store(&r->ctl->client_life, 0);
	store_release(&r->rx.peer_gone, 0);
	if (l->fresh >= 0)
		close(l->fresh);
	l->fresh = pidfd;
	pthread_mutex_unlock(&l->lock);
	return eventfd_write(l->event, 1) ? -errno : 0;
}

/* --------------------------------------------------------------------------------- futexes */

static void wake(struct ring *r, uint32_t *word, uint32_t nr)
{
	(void)r;
	syscall(SYS_futex, word, FUTEX_WAKE, nr > INT32_MAX ? INT32_MAX : nr, NULL, NULL, 0);
}

/* An absolute time for a relative one; NULL for ever. */
static struct timespec *until(struct timespec *t, int64_t ns)
{
	if (ns < 0)
		return NULL;
	clock_gettime(CLOCK_MONOTONIC, t);
	t->tv_sec += ns / NS_PER_S;
	t->tv_nsec += ns % NS_PER_S;
	if (t->tv_nsec >= NS_PER_S) {
		t->tv_nsec -= NS_PER_S;
		t->tv_sec++;
	}
	return t;
}

/* Sleeps on the word, and on the one that ring_heed() has named. */
static int proxy_sleep(struct ring *r, uint32_t *word, uint32_t expect, const struct timespec *end)
{
	struct futex_waitv w[2] = {
		{ .val = expect, .uaddr = (uintptr_t)word, .flags = FUTEX_32 },
		{ .val = r->rx.heard, .uaddr = (uintptr_t)r->rx.heeded, .flags = FUTEX_32 },
	};

	if (r->rx.heeded)
		return syscall(SYS_futex_waitv, w, 2, 0, end, CLOCK_MONOTONIC) < 0 ? -errno : 0;
	return syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expect, end, NULL,
		       FUTEX_BITSET_MATCH_ANY) ? -errno : 0;
}

/* Sleeps on the word and on `life`. */
static int client_sleep(struct ring *r, uint32_t *word, uint32_t expect,
			const struct timespec *end)
{
	uint32_t *life = &r->ctl->life;
	uint32_t tid = load_acquire(life);
	struct futex_waitv w[2] = {
		{ .val = expect, .uaddr = (uintptr_t)word, .flags = FUTEX_32 },
		{ .uaddr = (uintptr_t)life, .flags = FUTEX_32 },
	};

	if (tid & SINGVGPU_LIFE_DIED)
		return -EPIPE;
	/* Without this bit the kernel wakes nobody. */
	if (!(tid & SINGVGPU_LIFE_WAITERS) &&
	    !__atomic_compare_exchange_n(life, &tid, tid | SINGVGPU_LIFE_WAITERS, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return -EINTR;
	w[1].val = tid | SINGVGPU_LIFE_WAITERS;
	return syscall(SYS_futex_waitv, w, 2, 0, end, CLOCK_MONOTONIC) < 0 ? -errno : 0;
}

/* Whether the proxy is dead or has said good-bye; then wakes the other sleepers on `life`. */
static bool proxy_gone(struct ring *r)
{
	if (!(load_acquire(&r->ctl->life) & SINGVGPU_LIFE_DIED) &&
	    !(load_acquire(&r->ctl->cons) & SINGVGPU_CONS_CLOSED))
		return false;
	wake(r, &r->ctl->life, UINT32_MAX);
	return true;
}

static int wait_word(struct ring *r, uint32_t *word, uint32_t expect, int64_t *ns)
{
	struct timespec t, *end = until(&t, *ns);
	uint64_t start = end ? ring_now() : 0, spent;
	int rc;

	if (r->client && proxy_gone(r))
		return -EPIPE;
	rc = r->client ? client_sleep(r, word, expect, end) : proxy_sleep(r, word, expect, end);
	if (end) {
		spent = ring_now() - start;
		*ns = spent < (uint64_t)*ns ? *ns - (int64_t)spent : 0;
	}
	/*
	 * The word or `life` differs, or a hostile client punches holes there: the caller checks
	 * again.
	 */
	if (rc == -EAGAIN || rc == -EFAULT)
		rc = 0;
	if (r->client && proxy_gone(r) && load_acquire(word) == expect)
		return -EPIPE;
	return rc;
}

static int wake_wait(struct ring *r, uint32_t *wake_word, uint32_t *word, uint32_t expect,
		     int64_t *ns)
{
	wake(r, wake_word, 1);
	return wait_word(r, word, expect, ns);
}

/* ---------------------------------------------------------------------------------- object */

static int gate(struct ring *r, bool closed)
{
	if (closed)
		__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_GATE, __ATOMIC_SEQ_CST);
	else
		__atomic_fetch_and(&r->ctl->cons, ~SINGVGPU_CONS_GATE, __ATOMIC_SEQ_CST);
	return 0;
}

int ring_memfd_commit(int fd, uint64_t at, uint64_t len)
{
	while (fallocate(fd, 0, at, len))
		if (errno != EINTR)
			return -errno;
	return 0;
}

static int commit(struct ring *r, size_t at, size_t len)
{
	return ring_memfd_commit(r->fd, at, len);
}

static int decommit(struct ring *r, size_t at, size_t len)
{
	return fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len) ? -errno : 0;
}

static int client_fd(struct ring *r)
{
	int fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 3);

	return fd < 0 ? -errno : fd;
}

static uint32_t generation(const struct ring *r)
{
	return load(r->client ? &r->ctl->cons : &r->rx.cons) >> SINGVGPU_CONS_GEN_SHIFT;
}

static void hang_up(struct ring *r)
{
	if (r->client) {
		store_release(&r->ctl->client_closed, 1);
		__atomic_fetch_add(&r->ctl->doorbell, 1, __ATOMIC_SEQ_CST);
		wake(r, &r->ctl->doorbell, 1);
		return;
	}
	__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_CLOSED, __ATOMIC_SEQ_CST);
	life_end(r);
	swap(&r->ctl->life, SINGVGPU_LIFE_DIED);
	wake(r, &r->ctl->life, UINT32_MAX);
}

const struct ring_ops ring_memfd_ops = {
	.backend = RING_MEMFD,
	.wait = wait_word,
	.wake = wake,
	.wake_wait = wake_wait,
	.gate = gate,
	.commit = commit,
	.decommit = decommit,
	.client_fd = client_fd,
	.watch_peer = watch_peer,
	.lose_peer = peer_died,
	.generation = generation,
	.hang_up = hang_up,
};

/*
 * The arena comes last in the object, which grows with what of it is committed: who looks at each page of an object, as
 * CRIU does, does not meet gigabytes of holes.
 */
static void order(struct layout *l)
{
	l->log_at = l->arena_off;
	l->arena_at = l->arena_off + (l->end - l->log_off);
}

/* The size of the object at first. */
static uint64_t least(const struct layout *l)
{
	uint64_t arena = l->log_off - l->arena_off;

	return l->arena_at + (arena < RING_ARENA_LEAST ? arena : RING_ARENA_LEAST);
}

/* "singvgpu-" and the identity's 32 digits, by which CRIU finds the object. */
static void object_name(char *name, size_t size, const uint8_t *id)
{
	int n = snprintf(name, size, "singvgpu-"), i;

	for (i = 0; i < 16; i++)
		n += snprintf(name + n, size - n, "%02x", id[i]);
}

int ring_memfd_create(struct ring *r, uint32_t generation)
{
	char name[64];
	int rc;

	object_name(name, sizeof(name), r->id);
	order(&r->lay);
	r->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (r->fd < 0)
		return -errno;
	/* Is so large a file allowed? Sealed: a client that shrank the object could kill the proxy by SIGBUS. */
	if (ftruncate(r->fd, r->lay.end) || ftruncate(r->fd, least(&r->lay)) ||
	    fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL))
		return -errno;
	rc = ring_map(r);
	if (rc)
		return rc;
	r->ctl->cons = generation << SINGVGPU_CONS_GEN_SHIFT;
	ring_init_ctl(r);
	rc = life_begin(r);
	if (!rc)
		r->ops = &ring_memfd_ops;
	return rc;
}

/* The control page of the channel behind fd, its geometry and layout. -EPROTO, -EPROTONOSUPPORT. */
static int read_ctl(int fd, struct singvgpu_ctl *c, struct singvgpu_geometry *g, struct layout *lay)
{
	if (pread(fd, c, sizeof(*c), 0) != sizeof(*c) || c->magic != SINGVGPU_MAGIC)
		return -EPROTO;
	if (c->api_version != SINGVGPU_API_VERSION)
		return -EPROTONOSUPPORT;
	*g = (struct singvgpu_geometry){ .va = c->va, .arena_len = c->arena_len,
					 .log_len = c->log_len, .ring_units = c->ring_units,
					 .cpl_slots = c->cpl_slots };
	if (ring_layout(g, lay) || lay->cpl_off != c->cpl_off || lay->ring_off != c->ring_off ||
	    lay->arena_off != c->arena_off || lay->log_off != c->log_off)
		return -EPROTO;
	order(lay);
	return 0;
}

int ring_memfd_attach(int fd, struct ring **out)
{
	struct singvgpu_geometry g;
	struct singvgpu_ctl c;
	struct layout lay;
	struct ring *r;
	int rc;

	rc = read_ctl(fd, &c, &g, &lay);
	if (!rc)
		rc = ring_new(&r, &g, true);
	if (rc)
		return rc;
	memcpy(r->id, c.id, 16);
	r->lay = lay;
	r->fd = fd;
	r->ops = &ring_memfd_ops;
	rc = ring_map(r);
	if (rc) {
		r->fd = -1;
		ring_free(r);
		return rc;
	}
	*out = r;
	return 0;
}

int ring_memfd_look(int fd, struct singvgpu_geometry *g, struct layout *lay, uint8_t id[16])
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct singvgpu_ctl c;
	struct stat st;
	int rc = read_ctl(fd, &c, g, lay);

	if (rc)
		return rc;
	/* A client that shrank the object could kill this process by SIGBUS. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) ||
	    (uint64_t)st.st_size < least(lay))
		return -EPROTO;
	memcpy(id, c.id, 16);
	return 0;
}
