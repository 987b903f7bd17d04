// SPDX-License-Identifier: Apache-2.0
/*
 * held.c - holds the bytes of images that lie in the program's files; held.h
 *
 * Up to COPY_MAX bytes are copied. More are mapped from the file under a lease (F_SETLEASE): the kernel
 * stops whoever is about to write to the file or to truncate it, and sends a signal, upon which a thread
 * puts a copy in the mapping's place, at the same address, and ends the lease. Where there is no lease to be
 * had (the file of another user, one that is open for writing, NFS), a large image is copied at once, too.
 *
 *   mapped, leased ── a writer: watch() ─► copied
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "fatbin.h"
#include "held.h"
#include "log.h"

#define COPY_MAX	(64ull << 20)
#define LEASE_SIGNAL	(SIGRTMIN + 7)
#define CHUNK		(256u << 10)
#define SETTLED_NS	2000000000ll	/* coarser than any file system's times */

/* The file that had the bytes when it was last looked at. All zero: none had. */
struct identity {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec mtime, ctime;
};

struct held {
	unsigned int refs;	/* lock */
	struct held *next;	/* of those under a lease; lock */
	int lease;		/* its file, or -1; watch()'s, once there are others */
	uint8_t *map;		/* map_len bytes, or NULL */
	size_t map_len;
	void *copy;		/* or NULL */
	const uint8_t *bytes;
	uint64_t off, len;	/* in the file */
	bool digested;		/* from here on: the consumer's, or a replay's */
	struct kept_digest digest;
	struct identity file;
	uint64_t changed_ns;	/* of the file; UINT64_MAX: a checkpoint had the bytes */
	char path[];
};

static struct lock lock = LOCK_INIT(PROXY_HELD);
static struct held *leased;		/* lock */
static pid_t watcher;			/* atomic */

/* ------------------------------------------------------------------------------ files */

static int64_t ns_since(const struct timespec *t)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (now.tv_sec - t->tv_sec) * 1000000000ll + now.tv_nsec - t->tv_nsec;
}

/* A write in the same tick of the file system's clock leaves no trace: such an identity says nothing. */
static void identify(const struct stat *st, struct identity *id)
{
	memset(id, 0, sizeof(*id));
	if (ns_since(&st->st_ctim) < SETTLED_NS)
		return;
	id->dev = st->st_dev;
	id->ino = st->st_ino;
	id->size = st->st_size;
	id->mtime = st->st_mtim;
	id->ctime = st->st_ctim;
}

static int open_file(const char *path, struct stat *st)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd >= 0 && (fstat(fd, st) || !S_ISREG(st->st_mode))) {
		close(fd);
		fd = -1;
	}
	return fd < 0 ? -ENOENT : fd;
}

static int read_at(int fd, void *to, uint64_t len, uint64_t off)
{
	uint64_t done = 0;

	while (done < len) {
		ssize_t n = pread(fd, (char *)to + done, len - done, off + done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -ENOENT;
		done += n;
	}
	return 0;
}

static bool has_bytes(int fd, const struct held *h)
{
	uint8_t *buf = malloc(CHUNK);
	bool same = buf;

	for (uint64_t at = 0; same && at < h->len; at += CHUNK) {
		uint64_t n = h->len - at < CHUNK ? h->len - at : CHUNK;

		same = !read_at(fd, buf, n, h->off + at) && !memcmp(buf, h->bytes + at, n);
	}
	free(buf);
	return same;
}

bool held_in_file(struct held *h)
{
	static const struct identity none;
	struct identity is;
	struct stat st;
	int fd = open_file(h->path, &st);
	bool same;

	if (fd < 0)
		return false;
	identify(&st, &is);
	same = memcmp(&is, &none, sizeof(is)) && !memcmp(&is, &h->file, sizeof(is));
	if (!same && has_bytes(fd, h)) {
		h->file = is;
		same = true;
	}
	close(fd);
	return same;
}

bool held_since(const struct held *h, uint64_t ns)
{
	return h->changed_ns >= ns;
}

void held_digest(struct held *h, struct kept_digest *d)
{
	if (!h->digested) {
		XXH128_hash_t x = XXH3_128bits(h->bytes, h->len);

		h->digest = (struct kept_digest){ x.low64, x.high64 };
		h->digested = true;
	}
	*d = h->digest;
}

/* ------------------------------------------------------------------------------ leases */

/* Puts a copy in the mapping's place. The file cannot change before its lease is ended. */
static void own(struct held *h)
{
	uint8_t *copy = mmap(NULL, h->map_len, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED ||
	    read_at(h->lease, copy + (h->bytes - h->map), h->len, h->off) ||
	    mprotect(copy, h->map_len, PROT_READ) ||
	    mremap(copy, h->map_len, h->map_len, MREMAP_MAYMOVE | MREMAP_FIXED, h->map) != h->map) {
		uproxy_say("%s is being written to, and there is no memory for a copy of what was loaded "
			   "from it (%llu MiB): the session ends", h->path,
			   (unsigned long long)h->len >> 20);
		_exit(1);
	}
	fcntl(h->lease, F_SETLEASE, F_UNLCK);
	close(h->lease);
	h->lease = -1;
}

/* Takes one whose lease a writer waits for from the list, with a reference; NULL: there is none. */
static struct held *next_broken(void)
{
	struct held **p, *h;

	lock_take(&lock);
	for (p = &leased; *p && fcntl((*p)->lease, F_GETLEASE) == F_RDLCK; p = &(*p)->next)
		;
	h = *p;
	if (h) {
		*p = h->next;
		h->refs++;
	}
	lock_drop(&lock);
	return h;
}

static void *watch(void *arg)
{
	struct held *h;
	sigset_t set;

	(void)arg;
	sigemptyset(&set);
	sigaddset(&set, LEASE_SIGNAL);
	__atomic_store_n(&watcher, syscall(SYS_gettid), __ATOMIC_RELEASE);
	for (;;) {
		while ((h = next_broken())) {
			own(h);
			held_put(h);
		}
		sigwaitinfo(&set, NULL);
	}
	return NULL;
}

/* A thread that a library has made does not block the signal. */
static void pass_on(int sig)
{
	int e = errno;

	/* pairs with watch() */
	syscall(SYS_tgkill, getpid(), __atomic_load_n(&watcher, __ATOMIC_ACQUIRE), sig);
	errno = e;
}

void held_begin(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, LEASE_SIGNAL);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool watched;

static void start_watch(void)
{
	struct sigaction a = { .sa_handler = pass_on, .sa_flags = SA_RESTART };
	sigset_t all, old;
	pthread_t t;

	sigaction(LEASE_SIGNAL, &a, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	watched = !pthread_create(&t, NULL, watch, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (watched)
		pthread_detach(t);
	/* pairs with watch() */
	while (watched && !__atomic_load_n(&watcher, __ATOMIC_ACQUIRE))
		sched_yield();
}

/* ------------------------------------------------------------------------------ holding */

struct held *held_get(struct held *h)
{
	lock_take(&lock);
	h->refs++;
	lock_drop(&lock);
	return h;
}

static bool is_last(struct held *h)
{
	struct held **p;
	bool last;

	lock_take(&lock);
	last = !--h->refs;
	for (p = &leased; last && *p; p = &(*p)->next)
		if (*p == h) {
			*p = h->next;
			break;
		}
	lock_drop(&lock);
	return last;
}

void held_put(struct held *h)
{
	if (!h || !is_last(h))
		return;
	if (h->lease >= 0)
		close(h->lease);	/* which ends the lease */
	if (h->map)
		munmap(h->map, h->map_len);
	free(h->copy);
	free(h);
}

const void *held_bytes(const struct held *h)
{
	return h->bytes;
}

uint64_t held_len(const struct held *h)
{
	return h->len;
}

static struct held *new_held(const struct sv_image *a, const char *path)
{
	struct held *h = calloc(1, sizeof(*h) + strlen(path) + 1);

	if (!h)
		return NULL;
	strcpy(h->path, path);
	h->refs = 1;
	h->lease = -1;
	h->off = a->off;
	h->len = a->len;
	return h;
}

static int make_room(struct held *h)
{
	h->copy = calloc(1, h->len + HELD_BEHIND);
	h->bytes = h->copy;
	return h->copy ? 0 : -ENOMEM;
}

/* Only what says how long it is may be mapped, without zeros behind it. */
static bool is_binary(int fd, uint64_t off)
{
	uint32_t magic;

	return !read_at(fd, &magic, sizeof(magic), off) &&
	       (magic == FATBIN_MAGIC || !memcmp(&magic, ELFMAG, SELFMAG));
}

/* False: there is no lease to be had. fd becomes h's. */
static bool lease(struct held *h, int fd)
{
	uint64_t skip = h->off % 4096;
	void *map;

	pthread_once(&once, start_watch);
	if (!watched || !is_binary(fd, h->off) || fcntl(fd, F_SETSIG, LEASE_SIGNAL) ||
	    fcntl(fd, F_SETLEASE, F_RDLCK))
		return false;
	h->map_len = h->len + skip;
	map = mmap(NULL, h->map_len, PROT_READ, MAP_PRIVATE, fd, h->off - skip);
	if (map == MAP_FAILED) {
		fcntl(fd, F_SETLEASE, F_UNLCK);
		return false;
	}
	h->map = map;
	h->bytes = h->map + skip;
	h->lease = fd;
	return true;
}

/* From here on the watcher may change h->lease. */
static void list(struct held *h)
{
	lock_take(&lock);
	h->next = leased;
	leased = h;
	lock_drop(&lock);
	/* The signal of a writer that came before has found nothing. */
	pass_on(LEASE_SIGNAL);
}

static bool is_described(const struct stat *st, const struct sv_image *a, bool any_inode)
{
	return (any_inode || (st->st_dev == a->dev && st->st_ino == a->ino)) &&
	       (uint64_t)st->st_size == a->size &&
	       (uint64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec == a->mtime_ns;
}

static int hold(struct held **out, const struct sv_image *a, const char *path, bool any_inode,
		const struct kept_digest *digest)
{
	struct kept_digest d;
	struct held *h;
	struct stat st;
	int fd = open_file(path, &st), rc = 0;

	if (fd < 0)
		return fd;
	h = new_held(a, path);
	if (!h) {
		close(fd);
		return -ENOMEM;
	}
	if (h->len <= COPY_MAX || !lease(h, fd))
		rc = make_room(h) ?: read_at(fd, h->copy, h->len, h->off);
	/* What was read or leased is of the file that it is now. */
	if (!rc && (fstat(fd, &st) || a->off > (uint64_t)st.st_size ||
		    a->len > st.st_size - a->off ||
		    (!digest && !is_described(&st, a, any_inode))))
		rc = -ENOENT;
	identify(&st, &h->file);
	h->changed_ns = st.st_ctim.tv_sec * 1000000000ull + st.st_ctim.tv_nsec;
	if (h->lease < 0)
		close(fd);
	if (!rc && digest) {
		held_digest(h, &d);
		rc = memcmp(&d, digest, sizeof(d)) ? -ENOENT : 0;
	}
	if (rc) {
		held_put(h);
		return rc;
	}
	if (h->map)
		list(h);
	*out = h;
	return 0;
}

int held_open(struct held **h, const struct sv_image *a, const char *path, bool any_inode)
{
	return hold(h, a, path, any_inode, NULL);
}

int held_open_again(struct held **h, const struct sv_image *a, const char *path,
		    const struct kept_digest *digest)
{
	return hold(h, a, path, true, digest);
}

int held_copy(struct held **out, const void *p, const struct sv_image *a, const char *path)
{
	struct held *h = new_held(a, path);

	if (!h)
		return -ENOMEM;
	if (make_room(h)) {
		held_put(h);
		return -ENOMEM;
	}
	memcpy(h->copy, p, h->len);
	h->changed_ns = UINT64_MAX;
	*out = h;
	return 0;
}
