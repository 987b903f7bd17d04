// SPDX-License-Identifier: Apache-2.0
/*
 * log.c - the log, and the table of paths that this process has logged; see record.h
 *
 * The table holds 64-bit hashes, without locks. A path enters it only after its record has been
 * written: a thread that finds it there may change the file. The table is a cache: it never
 * fills, and a path that was evicted is logged again. A fork's child continues with a copy.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>

#include "files_i.h"
#include "record.h"

#define SLOTS	16384		/* a power of two */
#define PROBES	8
#define BUFFERS	32
#define SEEN	16384		/* bytes of the log that the constructor reads */

int log_state;
static char log_path[PATH_MAX];
static char log_dir[PATH_MAX + 1];	/* with a slash at its end; files in it are not the job's */
static bool log_lost;		/* a record could not be written, nor a record 'L' since */
static uint64_t known[SLOTS];
static struct log_buf pool[BUFFERS];
static uint32_t pool_used;	/* a bit per buffer; forks may leave some set for good */

/* ----------------------------------------------------------------------------- buffers */

struct log_buf *log_buf_get(void)
{
	uint32_t used = __atomic_load_n(&pool_used, __ATOMIC_RELAXED);
	long p;

	while (used != UINT32_MAX) {
		int i = __builtin_ctz(~used);

		/* pairs with log_buf_put() */
		if (__atomic_compare_exchange_n(&pool_used, &used, used | 1u << i, false,
						__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return &pool[i];
	}
	p = sys(SYS_mmap, 0, sizeof(struct log_buf), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p < 0 && p > -4096 ? NULL : (struct log_buf *)p;
}

void log_buf_put(struct log_buf *b)
{
	if (b >= pool && b < pool + BUFFERS)
		__atomic_fetch_and(&pool_used, ~(1u << (b - pool)), __ATOMIC_RELEASE);
	else
		sys(SYS_munmap, b, sizeof(*b));
}

/* --------------------------------------------------------------------------- the table */

static uint64_t hash(const struct log_buf *b, size_t len)
{
	return XXH3_64bits(b->text + LOG_HEAD, len) | 1;
}

bool log_knows(uint64_t h)
{
	for (unsigned int i = 0; i < PROBES; i++) {
		uint64_t k = __atomic_load_n(&known[((h >> 40) + i) % SLOTS], __ATOMIC_RELAXED);

		if (k == h)
			return true;
		if (!k)
			return false;
	}
	return false;
}

bool log_known(const struct log_buf *b, size_t len)
{
	return log_knows(hash(b, len));
}

void log_learn(uint64_t h)
{
	uint64_t *slot;

	for (unsigned int i = 0; i < PROBES; i++) {
		uint64_t none = 0;

		slot = &known[((h >> 40) + i) % SLOTS];
		if (__atomic_compare_exchange_n(slot, &none, h, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED) || none == h)
			return;
	}
	__atomic_store_n(&known[((h >> 40) + h % PROBES) % SLOTS], h, __ATOMIC_RELAXED);
}

/* ----------------------------------------------------------------------------- the log */

static bool starts(const char *path, size_t len, const char *with)
{
	size_t n = strlen(with);

	return len >= n && !memcmp(path, with, n);
}

bool log_wanted(const struct log_buf *b, size_t len)
{
	const char *path = b->text + LOG_HEAD;

	if (!len || *path != '/')
		return false;	/* pipe:[…], (unreachable)… */
	if (starts(path, len, "/dev/"))
		return starts(path, len, "/dev/shm/");
	return !starts(path, len, "/proc/") && !starts(path, len, "/sys/") &&
	       !starts(path, len, log_dir);
}

/*
 * A log over the program's RLIMIT_FSIZE, or a FIFO without a reader, gives us an error, and must not kill the program
 * (SIGXFSZ, SIGPIPE).
 */
static long write_quietly(long fd, const char *text, size_t len)
{
	const unsigned long xfsz = 1ul << (SIGXFSZ - 1), pipe = 1ul << (SIGPIPE - 1), both = xfsz | pipe;
	const struct timespec now = { 0 };
	unsigned long was, ours;
	long n;

	sys(SYS_rt_sigprocmask, SIG_BLOCK, &both, &was, sizeof(was));
	n = sys(SYS_write, fd, text, len);
	ours = (n == -EFBIG ? xfsz : n == -EPIPE ? pipe : 0) & ~was;
	if (ours)
		sys(SYS_rt_sigtimedwait, &ours, NULL, &now, sizeof(ours));
	sys(SYS_rt_sigprocmask, SIG_SETMASK, &was, NULL, sizeof(was));
	return n;
}

/*
 * A thread that calls dup2() with a number that it does not own may replace our fd; any function of
 * libc that opens a file for a moment has the same weakness.
 */
static bool append(const char *text, size_t len)
{
	long fd = sys(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
	long n;

	if (fd == -ENOENT) {
		log_state = LOG_OFF;	/* the job has ended; this process outlived it */
		return true;
	}
	if (fd < 0)
		return false;
	n = write_quietly(fd, text, len);
	sys(SYS_close, fd);
	return n == (long)len;
}

void log_aside(const char *name, const char *text, size_t len)
{
	struct log_buf *b = log_buf_get();
	long fd = -1;
	struct stat st;

	if (b && strlen(log_dir) + strlen(name) < sizeof(b->text)) {
		stpcpy(stpcpy(b->text, log_dir), name);
		fd = sys(SYS_openat, AT_FDCWD, b->text,
			 O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	}
	if (b)
		log_buf_put(b);
	if (fd < 0)
		return;
	if (!sys(SYS_fstat, fd, &st) && S_ISFIFO(st.st_mode))
		write_quietly(fd, text, len);
	sys(SYS_close, fd);
}

void log_lose(void)
{
	__atomic_store_n(&log_lost, true, __ATOMIC_RELAXED);
}

void log_add(struct log_buf *b, size_t len, char kind)
{
	static const char lost[] = { 0, RECORD_LOST, '/', 0 };

	b->text[0] = '\0';
	b->text[1] = kind;
	b->text[LOG_HEAD + len] = '\0';
	if (__atomic_load_n(&log_lost, __ATOMIC_RELAXED) && append(lost, sizeof(lost)))
		__atomic_store_n(&log_lost, false, __ATOMIC_RELAXED);
	if (append(b->text, LOG_HEAD + len + 1))
		log_learn(hash(b, len));
	else
		log_lose();
}

/* --------------------------------------------------------------------------------- start */

/*
 * Whether the log's first bytes have the path, so that not every child logs the job's own stdout.
 */
static bool log_begins_with(const struct log_buf *b, size_t len)
{
	long fd = sys(SYS_openat, AT_FDCWD, log_path, O_RDONLY | O_CLOEXEC | O_NOCTTY), n;
	char *seen = (char *)sys(SYS_mmap, 0, SEEN, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool found = false;

	n = fd < 0 || seen == (char *)-ENOMEM ? 0 : sys(SYS_read, fd, seen, SEEN);
	if (n > 0)
		found = memmem(seen, n, b->text + LOG_HEAD, len + 1);
	if (seen != (char *)-ENOMEM)
		sys(SYS_munmap, seen, SEEN);
	if (fd >= 0)
		sys(SYS_close, fd);
	return found;
}

static void inherited_fd(int fd)
{
	struct log_buf *b;
	char link[48];
	struct stat st;
	long flags = sys(SYS_fcntl, fd, F_GETFL), n;

	if (flags < 0 || (flags & O_PATH) || (flags & O_ACCMODE) == O_RDONLY ||
	    sys(SYS_fstat, fd, &st) || !S_ISREG(st.st_mode) || !st.st_nlink)
		return;
	b = log_buf_get();
	if (!b)
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = sys(SYS_readlinkat, AT_FDCWD, link, b->text + LOG_HEAD, PATH_MAX - 1);
	if (n > 0 && log_wanted(b, n)) {
		b->text[LOG_HEAD + n] = '\0';
		if (!log_begins_with(b, n))
			log_add(b, n, RECORD_CHANGED);
	}
	log_buf_put(b);
}

/* Logs files that a parent without this library has opened for us, such as the job's stdout. */
static void inherited(void)
{
	char buf[1024] __attribute__((aligned(8)));
	long dir = sys(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n;

	while (dir >= 0 && (n = sys(SYS_getdents64, dir, buf, sizeof(buf))) > 0) {
		for (long at = 0; at < n;) {
			const struct dirent64 *d = (const void *)(buf + at);
			int fd = atoi(d->d_name);

			if (d->d_name[0] != '.' && fd != dir)
				inherited_fd(fd);
			at += d->d_reclen;
		}
	}
	if (dir >= 0)
		sys(SYS_close, dir);
}

/* The constructor; an earlier constructor that opens a file calls it first. */
void __attribute__((constructor)) log_begin(void)
{
	const char *env = getenv(RECORD_ENV);
	char dir[PATH_MAX], *slash;
	int err = errno;

	if (log_state != LOG_UNKNOWN)
		return;
	real();
	log_state = LOG_OFF;
	if (env && *env == '/' && strlen(env) < sizeof(log_path) && !access(env, F_OK)) {
		strcpy(log_path, env);
		strcpy(dir, env);
		slash = strrchr(dir, '/');
		*slash = '\0';
		/*
		 * The kernel's name of the folder, as logged paths have it; the log itself may be a
		 * link.
		 */
		if (realpath(dir, log_dir) && strlen(log_dir) > 1) {
			strcat(log_dir, "/");
			log_state = LOG_ON;
			inherited();
		}
	}
	errno = err;
}
