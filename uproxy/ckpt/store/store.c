// SPDX-License-Identifier: Apache-2.0
/*
 * store.c - the store's directory: made, opened, locked; errors with a sentence
 *
 *   DIR/store        64 bytes: version, seed, identity; never changed
 *   DIR/lock         empty; flock: shared by every handle, exclusive by gc
 *   DIR/seg/         segments            DIR/tmp/   files that are being written
 *   DIR/cp/          checkpoints
 */
#include <fcntl.h>
#include <dirent.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "store_i.h"

#define STOP_MS 100	/* between two questions whether a wait is to end */

/* The thread's last failure. Each one replaces the former, so a writer or a batch copies its own. */
static __thread struct why last;

const struct why *store_why(void)
{
	return &last;
}

const char *store_says(int err)
{
	return last.err == err ? last.text : err_text(err);
}

int store_failed(struct why *why, int err)
{
	return err ? why_set(why, err, "%s", store_says(err)) : 0;
}

int store_fail(int err, const char *fmt, ...)
{
	va_list ap;

	why_clear(&last);
	va_start(ap, fmt);
	why_vset(&last, err, fmt, ap);
	va_end(ap);
	return err;
}

int store_fail_io(int err, const char *doing, const char *name)
{
	const char *more = "";

	if (err == -ENOSPC || err == -EDQUOT)
		more = err == -EDQUOT ? "; the user's quota there is used up" :
					"; free some there, or run `singvgpu store gc`";
	else if (err == -EROFS)
		more = "; the store lies on a read-only file system";
	return store_fail(err, "cannot %s %s: %s%s", doing, name, strerror(-err), more);
}

uint64_t store_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

uint64_t store_random64(void)
{
	uint64_t r = 0;

	while (!r)
		if (getrandom(&r, sizeof(r), 0) != sizeof(r))
			r = 0;
	return r;
}

int store_need_rw(const struct store *s)
{
	if (s->flags & STORE_RW)
		return 0;
	return store_fail(-EBADF, "the store %s was opened for reading only", s->path);
}

const char *store_dir(const struct store *s)
{
	return s->path;
}

uint64_t store_seed(const struct store *s)
{
	return s->super.b;
}

struct store_digest store_zero(const struct store *s)
{
	return s->zero;
}

/* ------------------------------------------------------------------------------ making a store */

/* 0: the directory is empty, or has only files of an earlier or concurrent store_create. */
static int must_be_empty(int dir)
{
	static const char *const ours[] = { ".", "..", "lock", "seg", "tmp", "cp", "store.new" };
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d)
		return -errno;
	while (!err && (e = readdir(d))) {
		bool known = false;

		for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
			known = known || !strcmp(e->d_name, ours[i]);
		if (!strcmp(e->d_name, "store"))
			err = -EEXIST;
		else if (!known)
			err = -ENOTEMPTY;
	}
	closedir(d);
	return err;
}

/* Gives files that root makes to the directory's owner. */
static int give(int fd, const struct stat *dir)
{
	if (geteuid() || !dir->st_uid)
		return 0;
	return fchown(fd, dir->st_uid, dir->st_gid) ? -errno : 0;
}

static int make_dirs(int dir, const struct stat *st)
{
	static const char *const names[] = { "seg", "tmp", "cp" };
	int err = 0;

	for (int i = 0; i < 3 && !err; i++) {
		int fd = -1;

		if (mkdirat(dir, names[i], st->st_mode & 0777) && errno != EEXIST)
			return -errno;
		fd = openat(dir, names[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 || fchmod(fd, st->st_mode & 07777))
			err = -errno;
		else
			err = give(fd, st);
		close(fd);
	}
	return err;
}

static int make_file(int dir, const char *name, const struct stat *st, const void *p, size_t len)
{
	int fd = store_io_open(dir, name, O_CREAT | O_RDWR | O_TRUNC, 0600), err;

	if (fd < 0)
		return fd;
	err = fchmod(fd, st->st_mode & 0666) ? -errno : give(fd, st);
	if (!err)
		err = store_io_write(fd, name, p, len, 0);
	if (!err)
		err = store_io_sync(fd, name);
	close(fd);
	return err;
}

static int make_all(int dir, const struct store_params *p)
{
	struct store s = { 0 };
	char fresh[32];
	struct stat st;
	int err = must_be_empty(dir);

	if (!err && fstat(dir, &st))
		err = -errno;
	if (!err)
		err = make_dirs(dir, &st);
	if (!err)
		err = make_file(dir, "lock", &st, "", 0);
	s.super.a = p ? p->zstd : 0;
	s.super.b = p && p->seed ? p->seed : store_random64();
	s.super.c = store_random64();
	s.super.d = store_now_ns();
	store_head_seal(&s.super, SUPER_MAGIC, &s);
	snprintf(fresh, sizeof(fresh), "tmp/store-%016llx", (unsigned long long)s.super.c);
	if (!err)
		err = make_file(dir, fresh, &st, &s.super, sizeof(s.super));
	if (err)
		return err;
	/* Of several concurrent makers the first wins; the others use its file. */
	err = io_rename_new(dir, fresh, "store");
	if (err)
		unlinkat(dir, fresh, 0);
	return err ?: store_io_sync_dir(dir, ".");
}

int store_create(const char *path, const struct store_params *p, struct why *why)
{
	int dir, err;

	if (p && (p->zstd < 0 || p->zstd > 19))
		return why_set(why, -EINVAL, "zstd level %d is not 0 to 19", p->zstd);
	err = mkdir(path, 0700) && errno != EEXIST ? -errno : 0;
	dir = err ? err : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!err)
		err = dir < 0 ? -errno : make_all(dir, p);
	if (dir >= 0)
		close(dir);
	if (err == -EEXIST)
		return why_set(why, err, "%s is a store already", path);
	if (err == -ENOTEMPTY)
		return why_set(why, err, "%s holds other files: a store needs an empty directory",
			       path);
	return err ? why_set(why, err, "cannot make the store %s: %s", path, strerror(-err)) : 0;
}

/* ------------------------------------------------------------------------------ trust */

static bool is_trusted(const struct store *s, uid_t uid)
{
	return !uid || uid == geteuid() || uid == s->also;
}

/* Fails because `what` belongs to an untrusted user. */
static int foreign(const struct store *s, const char *what, uid_t uid)
{
	struct passwd *pw = getpwuid(uid);
	char name[64];

	if (pw)
		snprintf(name, sizeof(name), "%s", pw->pw_name);
	else
		snprintf(name, sizeof(name), "%u", uid);
	return store_fail(
		-EPERM,
		"the store %s is not trusted: %s belongs to user %s, who could make a "
		"restore do anything with your rights. `singvgpu store pull` copies a "
		"checkpoint into a store of yours; --trust-owner %s takes the store as it is",
		s->path, what, name, name);
}

static int writable(const struct store *s, const char *what)
{
	return store_fail(-EPERM,
			  "the store %s is not trusted: other users may write to %s, and could "
			  "make a restore do anything with your rights (chmod go-w)",
			  s->path, what);
}

static int trust_file(const struct store *s, const struct stat *st, const char *what)
{
	if (!is_trusted(s, st->st_uid))
		return foreign(s, what, st->st_uid);
	return st->st_mode & 022 ? writable(s, what) : 0;
}

int store_trusts(const struct store *s, int fd, const char *what)
{
	struct stat st;

	if (!s->trusted)
		return 0;
	return fstat(fd, &st) ? store_fail_io(-errno, "look at", what) : trust_file(s, &st, what);
}

int store_file(const struct store *s, const char *name, int flags)
{
	int fd = store_io_open(s->dir, name, flags | (s->trusted ? O_NOFOLLOW : 0), 0);
	int err;

	if (fd == -ELOOP && s->trusted)
		return store_fail(-EPERM, "the store %s is not trusted: %s is a symbolic link",
				  s->path, name);
	if (fd < 0)
		return fd == -EPERM ? store_fail_io(fd, "open", name) : fd;
	err = store_trusts(s, fd, name);
	if (err)
		close(fd);
	return err ?: fd;
}

struct inside {
	struct store *s;
	const char *dir;
};

static int trust_name(void *arg, const char *file)
{
	const struct inside *in = arg;
	char name[NAME_MAX + 8];
	struct stat st;

	snprintf(name, sizeof(name), "%s/%s", in->dir, file);
	if (fstatat(in->s->dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : store_fail_io(-errno, "look at", name);
	if (S_ISLNK(st.st_mode))
		return store_fail(-EPERM, "the store %s is not trusted: %s is a symbolic link",
				  in->s->path, name);
	return trust_file(in->s, &st, name);
}

/*
 * Checks the store's directories and all files in them, so that a restore is refused before it does
 * anything.
 */
static int trust_inside(struct store *s)
{
	static const char *const names[] = { "seg", "cp", "tmp", "logs" };
	int err = 0;

	for (int i = 0; i < 4 && !err; i++) {
		struct inside in = { s, names[i] };
		int fd = openat(s->dir, names[i], O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0)
			return store_fail(-EPERM,
					  "the store %s is not trusted: %s in it is no directory",
					  s->path, names[i]);
		err = store_trusts(s, fd, names[i]);
		close(fd);
		if (!err && i < 2)
			err = store_dir_names(s, names[i], trust_name, &in);
	}
	return err;
}

/* Checks one of the directories above the store. */
static int trust_above(const struct store *s, int fd, const struct stat *st)
{
	char link[40], path[PATH_MAX];
	ssize_t n;

	if (is_trusted(s, st->st_uid) && (!(st->st_mode & 022) || st->st_mode & S_ISVTX))
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	return is_trusted(s, st->st_uid) ? writable(s, path) : foreign(s, path, st->st_uid);
}

/* Checks all directories above the open store: links in its path do not matter. */
static int trust_place(const struct store *s)
{
	int fd = fcntl(s->dir, F_DUPFD_CLOEXEC, 0), up, err = fd < 0 ? -errno : 0;
	struct stat at, above;

	if (!err && fstat(fd, &at))
		err = -errno;
	while (!err) {
		up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (up < 0 || fstat(up, &above)) {
			err = store_fail_io(-errno, "look at the directories above", s->path);
			break;
		}
		close(fd);
		fd = up;
		if (above.st_dev == at.st_dev && above.st_ino == at.st_ino)
			break;
		at = above;
		err = trust_above(s, fd, &at);
	}
	if (fd >= 0)
		close(fd);
	return err;
}

static int trust(struct store *s)
{
	return store_trusts(s, s->dir, "its directory") ?: trust_inside(s) ?: trust_place(s);
}

uid_t store_owner(const struct store *s)
{
	return s->owner;
}

/* ------------------------------------------------------------------------------ opening */

/* store_lock: LOCK_SH or LOCK_EX; tries every 20 ms while it waits. */
int store_lock(struct store *s, int how, int wait_ms)
{
	const struct timespec pause = { .tv_nsec = 20000000 };

	if (s->lock < 0)
		return 0;
	for (int waited = 0; flock(s->lock, how | LOCK_NB); waited += 20) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return store_fail_io(-errno, "lock", s->path);
		if (wait_ms >= 0 && waited >= wait_ms)
			return store_fail(
				-EBUSY,
				how == LOCK_EX ?
					"the store %s is in use: someone writes to it or reads from it" :
					"the store %s is being cleaned up by `store gc`; try again later",
				s->path);
		nanosleep(&pause, NULL);
	}
	return 0;
}

static int read_super(struct store *s)
{
	int fd = store_file(s, "store", O_RDONLY), err;

	if (fd == -EPERM)
		return fd;
	if (fd == -ENOENT)
		return store_fail(-ENOENT, "%s is no store: `singvgpu store create` makes one",
				  s->path);
	if (fd < 0)
		return store_fail_io(fd, "open the store's head in", s->path);
	err = store_io_read_exact(fd, "store", &s->super, sizeof(s->super), 0);
	close(fd);
	if (err == -ENODATA)
		return store_fail(-EBADMSG, "%s/store is damaged: it is cut short", s->path);
	if (err)
		return store_fail_io(err, "read the store's head in", s->path);
	err = store_head_check(&s->super, SUPER_MAGIC, "the store's head, file store,");
	if (!err && s->super.store != s->super.c && s->super.store)
		err = store_fail(-EBADMSG, "%s/store is damaged", s->path);
	return err;
}

/* No, if another user can open the lock, and so hold it for ever. */
static bool may_wait(const struct store *s)
{
	struct stat st;

	return s->flags & STORE_WAIT && !fstat(s->lock, &st) && st.st_uid == geteuid() &&
	       !(st.st_mode & 066);
}

static int wait_for_lock(struct store *s)
{
	int err;

	do {
		err = store_lock(s, LOCK_SH, s->stop ? STOP_MS : -1);
	} while (err == -EBUSY && s->stop && !s->stop(s->stop_arg));
	return err;
}

static int open_lock(struct store *s)
{
	bool rw = s->flags & STORE_RW;

	s->lock = store_file(s, "lock", rw ? O_RDWR : O_RDONLY);
	if (s->lock == -EPERM)
		return s->lock;
	if (s->lock == -ENOENT && rw)
		s->lock = store_io_open(s->dir, "lock", O_RDWR | O_CREAT, s->mode & 0666);
	if (s->lock >= 0)
		return may_wait(s) ? wait_for_lock(s) : store_lock(s, LOCK_SH, 0);
	if (rw || s->lock != -ENOENT)
		return store_fail_io(s->lock, rw ? "write to the store" : "open the store",
				     s->path);
	return 0;	/* a read-only copy */
}

static int open_all(struct store *s)
{
	static const uint8_t zeros[STORE_PAGE];
	struct stat st;
	int err;

	s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->dir < 0 && (errno == ENOENT || errno == ENOTDIR))
		return store_fail(-ENOENT,
				  "there is no store at %s: `singvgpu store create` makes one",
				  s->path);
	if (s->dir < 0 || fstat(s->dir, &st))
		return store_fail_io(-errno, "open the store", s->path);
	s->owner = st.st_uid;
	s->mode = st.st_mode & 0666;
	err = s->trusted ? trust(s) : 0;
	if (!err)
		err = read_super(s);
	if (!err)
		err = open_lock(s);
	if (err)
		return err;
	s->zero = store_hash(s, zeros);
	s->segs = calloc(1, sizeof(*s->segs));
	s->nsegs = s->segs_room = 1;
	return s->segs ? 0 : store_fail(-ENOMEM, "out of memory");
}

struct opening {
	unsigned int flags;
	bool trusted;
	uid_t also;
	bool (*stop)(void *arg);
	void *arg;
};

static int open_as(struct store **out, const char *path, const struct opening *o, struct why *why)
{
	struct store *s = calloc(1, sizeof(*s));
	int err;

	*out = NULL;
	if (!s || !(s->path = strdup(path))) {
		free(s);
		return why_set(why, -ENOMEM, "out of memory");
	}
	s->flags = o->flags;
	s->trusted = o->trusted;
	s->also = o->also;
	s->stop = o->stop;
	s->stop_arg = o->arg;
	s->dir = s->lock = -1;
	lock_init(&s->mutex, PROXY_STORE);
	err = open_all(s);
	if (err) {
		store_failed(why, err);
		store_close(s);
		return err;
	}
	*out = s;
	return 0;
}

int store_open(struct store **out, const char *path, unsigned int flags, struct why *why)
{
	return open_as(out, path, &(struct opening){ .flags = flags }, why);
}

int store_open_unless(struct store **out, const char *path, unsigned int flags, bool (*stop)(void *arg), void *arg,
		      struct why *why)
{
	return open_as(out, path, &(struct opening){ .flags = flags, .stop = stop, .arg = arg }, why);
}

int store_open_trusted(struct store **out, const char *path, unsigned int flags, uid_t also,
		       struct why *why)
{
	return open_as(out, path, &(struct opening){ .flags = flags, .trusted = true, .also = also }, why);
}

void store_close(struct store *s)
{
	if (!s)
		return;
	store_lookup_drop(s);
	store_seg_forget_all(s);
	free(s->segs);
	free(s->byid);
	if (s->lock >= 0)
		close(s->lock);
	if (s->dir >= 0)
		close(s->dir);
	lock_end(&s->mutex);
	free(s->path);
	free(s);
}
