// SPDX-License-Identifier: Apache-2.0
/*
 * note.c - turns what a program passes to libc into the path that the kernel knows
 *
 * An open is logged after it, by the fd's link in /proc, which has the file's name whatever
 * symbolic links, working folders and fds of folders have led to it. Operations on names are
 * logged before them, since a dump in between could not find them afterwards. Operations that
 * must fail (no such name, no permission) are not logged, else a checkpoint would include files
 * of others.
 *
 * The link in /proc costs more than an open. So a logged file is recognized by its inode, its
 * birth time and the name by which it is opened. That is exact: a birth time is used only when it
 * is so old that no other inode of this number can have the same, and later names of an inode are
 * logged as names.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "files_i.h"
#include "record.h"

/* What an open with these flags may do to a file. */
#define CHANGES(flags) (((flags) & O_ACCMODE) == O_WRONLY || ((flags) & O_ACCMODE) == O_RDWR || \
			((flags) & (O_CREAT | O_TRUNC)))
#define OLD_NS	100000000ll	/* longer than a tick of a file system's clock */
#define UNNAMED	(O_TMPFILE & ~O_DIRECTORY)

/* Writes the path of an fd to b; returns its length, or 0 if the file has no name any more. */
static size_t path_of_fd(struct log_buf *b, int fd)
{
	static const char deleted[] = " (deleted)";
	char link[40] = "/proc/thread-self/fd/", digits[12], *to = b->text + LOG_HEAD;
	size_t n = strlen(link), d = 0;
	unsigned int v = fd;
	struct stat st;
	long len;

	do {
		digits[d++] = '0' + v % 10;
		v /= 10;
	} while (v);
	while (d)
		link[n++] = digits[--d];
	link[n] = '\0';
	len = fd < 0 ? 0 : sys(SYS_readlinkat, AT_FDCWD, link, to, PATH_MAX - 1);
	if (len <= 0)
		return 0;
	n = sizeof(deleted) - 1;
	if (len > (long)n && !memcmp(to + len - n, deleted, n) &&
	    (sys(SYS_fstat, fd, &st) || !st.st_nlink))
		return 0;
	return len;
}

/* A hash of inode, birth time and name; 0: the inode is too young, or birth times are not known. */
static uint64_t born(int fd, const char *path)
{
	struct {
		uint64_t ino, path;
		int64_t ns;
		uint32_t major, minor;
	} key;
	struct timespec now;
	struct statx st;

	if (!path || sys(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &st) ||
	    !(st.stx_mask & STATX_BTIME))
		return 0;
	key.ino = st.stx_ino;
	key.path = XXH3_64bits(path, strlen(path));
	key.ns = st.stx_btime.tv_sec * 1000000000ll + st.stx_btime.tv_nsec;
	key.major = st.stx_dev_major;
	key.minor = st.stx_dev_minor;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	if (now.tv_sec * 1000000000ll + now.tv_nsec - key.ns < OLD_NS)
		return 0;
	return XXH3_64bits_withSeed(&key, sizeof(key), 1) | 1;
}

static void note_path_of(int fd, const char *path, char kind)
{
	uint64_t h = born(fd, path);
	struct log_buf *b;
	size_t len;

	if (h && log_knows(h))
		return;
	b = log_buf_get();
	if (!b)
		return;
	len = path_of_fd(b, fd);
	if (log_wanted(b, len)) {
		if (!log_known(b, len))
			log_add(b, len, kind);
		if (h && log_known(b, len))
			log_learn(h);
	}
	log_buf_put(b);
}

/* -------------------------------------------------------------------------------- opened */

/* For the effective user, as open() will look it up. */
static bool there(int dir, const char *path)
{
	return sys(SYS_faccessat2, dir, path, F_OK, AT_EACCESS) != -ENOENT;
}

bool note_before_open(int dir, const char *path, int flags)
{
	return !log_on() || !(flags & O_CREAT) || (!(flags & O_EXCL) && there(dir, path));
}

int note_opened(int fd, const char *path, int flags, bool existed)
{
	if (fd >= 0 && CHANGES(flags) && !(flags & UNNAMED) && !(flags & O_PATH) && log_on())
		note_path_of(fd, path, existed ? RECORD_CHANGED : RECORD_MADE);
	return fd;
}

static bool mode_changes(const char *mode)
{
	return *mode == 'w' || *mode == 'a' || memchr(mode, '+', strcspn(mode, ","));
}

bool note_before_fopen(const char *path, const char *mode)
{
	return !path || !mode_changes(mode) || *mode == 'r' || !log_on() || there(AT_FDCWD, path);
}

void note_fopened(FILE *file, const char *path, const char *mode, bool existed)
{
	int err = errno;

	if (file && mode_changes(mode) && log_on())
		note_path_of(fileno_unlocked(file), path,
			     existed ? RECORD_CHANGED : RECORD_MADE);
	errno = err;
}

void note_fd(int fd, char kind)
{
	if (log_on())
		note_path_of(fd, NULL, kind);
}

void note_file(int dir, const char *path, bool follow)
{
	int flags = O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW);
	long fd;

	if (!log_on())
		return;
	if (!path || !*path) {		/* the fd itself */
		note_path_of(dir, NULL, RECORD_CHANGED);
		return;
	}
	fd = sys(SYS_openat, dir, path, flags);
	if (fd >= 0) {
		note_path_of(fd, NULL, RECORD_CHANGED);
		sys(SYS_close, fd);
	} else if (fd == -EMFILE || fd == -ENFILE) {
		log_lose();
	}
}

/* ---------------------------------------------------------------------------------- names */

/* A name in its folder, whose fd is at; own: we close it. */
struct name {
	struct log_buf *b;
	size_t len;		/* of the whole path */
	const char *last;	/* within b */
	int at;
	bool own;
	bool exists, folder;
};

static void name_end(struct name *n)
{
	if (n->own)
		sys(SYS_close, n->at);
	log_buf_put(n->b);
}

/* Writes the path of the last component's folder; returns its length. */
static size_t folder_path(struct name *n, int dir, const char *path, size_t head)
{
	char *to = n->b->text + LOG_HEAD;
	long len;

	if (!head) {
		n->at = dir;
		if (dir != AT_FDCWD)
			return path_of_fd(n->b, dir);
		len = sys(SYS_getcwd, to, PATH_MAX);
		return len > 0 ? len - 1 : 0;
	}
	memcpy(to, path, head);
	to[head] = '\0';
	n->at = sys(SYS_openat, dir, to, O_PATH | O_DIRECTORY | O_CLOEXEC);
	n->own = n->at >= 0;
	if (n->at == -EMFILE || n->at == -ENFILE)
		log_lose();
	return n->own ? path_of_fd(n->b, n->at) : 0;
}

/* False: the name is impossible, or is not to be logged. Else name_end() must follow. */
static bool name_begin(struct name *n, int dir, const char *path)
{
	size_t end = path ? strnlen(path, PATH_MAX) : 0, head, len;
	char *to;

	*n = (struct name){ .b = NULL };
	while (end > 1 && path[end - 1] == '/')
		end--;
	for (head = end; head && path[head - 1] != '/';)
		head--;
	len = end - head;
	if (!len || end >= PATH_MAX || (len <= 2 && !memcmp(path + head, "..", len)))
		return false;
	n->b = log_buf_get();
	if (!n->b)
		return false;
	to = n->b->text + LOG_HEAD;
	n->len = folder_path(n, dir, path, head);
	if (n->len && n->len + 1 + len < PATH_MAX) {
		if (to[n->len - 1] != '/')
			to[n->len++] = '/';
		n->last = memcpy(to + n->len, path + head, len);
		n->len += len;
		to[n->len] = '\0';
		if (log_wanted(n->b, n->len))
			return true;
	}
	name_end(n);
	return false;
}

static void name_look(struct name *n)
{
	struct stat st;

	n->exists = !sys(SYS_newfstatat, n->at, n->last, &st, AT_SYMLINK_NOFOLLOW);
	n->folder = n->exists && S_ISDIR(st.st_mode);
}

static bool may_change_folder(const struct name *n)
{
	return !sys(SYS_faccessat2, n->at, n->at == AT_FDCWD ? "." : "", W_OK | X_OK,
		    AT_EACCESS | (n->at == AT_FDCWD ? 0 : AT_EMPTY_PATH));
}

static void name_add(struct name *n)
{
	if (!log_known(n->b, n->len))
		log_add(n->b, n->len, n->exists ? RECORD_CHANGED : RECORD_MADE);
}

/* Logged every time, since the folder may have other content than the last time. */
static void name_add_tree(struct name *n)
{
	log_add(n->b, n->len, RECORD_TREE);
}

static void note_name(int dir, const char *path, bool must_exist)
{
	struct name n;

	if (!log_on() || !name_begin(&n, dir, path))
		return;
	if (!log_known(n.b, n.len)) {
		name_look(&n);
		if (n.exists == must_exist && may_change_folder(&n))
			name_add(&n);
	}
	name_end(&n);
}

void note_make(int dir, const char *path)
{
	note_name(dir, path, false);
}

void note_remove(int dir, const char *path)
{
	note_name(dir, path, true);
}

void note_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags)
{
	struct name a, b;

	if (!log_on() || !name_begin(&a, from_dir, from))
		return;
	name_look(&a);
	if (a.exists && may_change_folder(&a)) {
		name_add(&a);
		if (name_begin(&b, to_dir, to)) {
			name_look(&b);
			name_add(&b);
			if (a.folder)
				name_add_tree(&b);
			if ((flags & RENAME_EXCHANGE) && b.folder)
				name_add_tree(&a);
			name_end(&b);
		}
	}
	name_end(&a);
}
