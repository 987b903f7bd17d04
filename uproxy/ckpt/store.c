// SPDX-License-Identifier: Apache-2.0
/*
 * store.c - the store's directory: made, opened, locked; errors with a sentence
 *
 *   DIR/store        64 bytes: version, seed, identity; never changed
 *   DIR/lock         empty; flock: shared by every handle, exclusive by gc
 *   DIR/seg/         segments            DIR/tmp/   what is being written
 *   DIR/cp/          checkpoints
 */
#include <fcntl.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "store_i.h"

static __thread char why[512] = "nothing went wrong";

const char *store_why(void)
{
	return why;
}

int fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return err;
}

int fail_io(int err, const char *doing, const char *name)
{
	const char *more = "";

	if (err == -ENOSPC || err == -EDQUOT)
		more = err == -EDQUOT ? "; the user's quota there is used up" :
					"; free some there, or run `singvgpu store gc`";
	else if (err == -EROFS)
		more = "; the store lies on a read-only file system";
	return fail(err, "cannot %s %s: %s%s", doing, name, strerror(-err), more);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

uint64_t random64(void)
{
	uint64_t r = 0;

	while (!r)
		if (getrandom(&r, sizeof(r), 0) != sizeof(r))
			r = 0;
	return r;
}

int need_rw(const struct store *s)
{
	if (s->flags & STORE_RW)
		return 0;
	return fail(-EBADF, "the store %s was opened for reading only", s->path);
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

/* ------------------------------------------------------------------------------ making one */

/* 0: nothing there but what an earlier attempt left. */
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

/* Root's files belong to the directory's owner. */
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
	int fd = io_open(dir, name, O_CREAT | O_RDWR | O_TRUNC, 0600), err;

	if (fd < 0)
		return fd;
	err = fchmod(fd, st->st_mode & 0666) ? -errno : give(fd, st);
	if (!err)
		err = io_write(fd, name, p, len, 0);
	if (!err)
		err = io_sync(fd, name);
	close(fd);
	return err;
}

static int make_all(int dir, const struct store_params *p)
{
	struct store s = { 0 };
	struct stat st;
	int err = must_be_empty(dir);

	if (!err && fstat(dir, &st))
		err = -errno;
	if (!err)
		err = make_dirs(dir, &st);
	if (!err)
		err = make_file(dir, "lock", &st, "", 0);
	s.super.a = p ? p->zstd : 0;
	s.super.b = p && p->seed ? p->seed : random64();
	s.super.c = random64();
	s.super.d = now_ns();
	head_seal(&s.super, SUPER_MAGIC, &s);
	if (!err)
		err = make_file(dir, "store.new", &st, &s.super, sizeof(s.super));
	if (!err)
		err = io_rename(dir, "store.new", "store");
	return err ? err : io_sync_dir(dir, ".");
}

int store_create(const char *path, const struct store_params *p, char *text, size_t n)
{
	int dir, err;

	if (p && (p->zstd < 0 || p->zstd > 19)) {
		snprintf(text, n, "zstd level %d is not 0 to 19", p->zstd);
		return -EINVAL;
	}
	if (mkdir(path, 0700) && errno != EEXIST) {
		err = -errno;
		snprintf(text, n, "cannot make the store %s: %s", path, strerror(-err));
		return err;
	}
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	err = dir < 0 ? -errno : make_all(dir, p);
	if (dir >= 0)
		close(dir);
	if (err == -EEXIST)
		snprintf(text, n, "%s is a store already", path);
	else if (err == -ENOTEMPTY)
		snprintf(text, n, "%s holds other files: a store needs an empty directory", path);
	else if (err)
		snprintf(text, n, "cannot make the store %s: %s", path, strerror(-err));
	return err;
}

/* ------------------------------------------------------------------------------ opening */

/* store_lock: LOCK_SH or LOCK_EX; one that waits looks again every 20 ms. */
int store_lock(struct store *s, int how, int wait_ms)
{
	const struct timespec pause = { .tv_nsec = 20000000 };

	if (s->lock < 0)
		return 0;
	for (int waited = 0; flock(s->lock, how | LOCK_NB); waited += 20) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return fail_io(-errno, "lock", s->path);
		if (wait_ms >= 0 && waited >= wait_ms)
			return fail(-EBUSY, how == LOCK_EX ?
				    "the store %s is in use: someone writes to it or reads from it" :
				    "the store %s is being cleaned up by `store gc`; try again later",
				    s->path);
		nanosleep(&pause, NULL);
	}
	return 0;
}

static int read_super(struct store *s)
{
	int fd = io_open(s->dir, "store", O_RDONLY, 0), err;

	if (fd == -ENOENT)
		return fail(-ENOENT, "%s is no store: `singvgpu store create` makes one", s->path);
	if (fd < 0)
		return fail_io(fd, "open the store's head in", s->path);
	err = io_read_exact(fd, "store", &s->super, sizeof(s->super), 0);
	close(fd);
	if (err == -ENODATA)
		return fail(-EBADMSG, "%s/store is damaged: it is cut short", s->path);
	if (err)
		return fail_io(err, "read the store's head in", s->path);
	err = head_check(&s->super, SUPER_MAGIC, "the store's head, file store,");
	if (!err && s->super.store != s->super.c && s->super.store)
		err = fail(-EBADMSG, "%s/store is damaged", s->path);
	return err;
}

static int open_lock(struct store *s)
{
	bool rw = s->flags & STORE_RW;

	s->lock = io_open(s->dir, "lock", rw ? O_RDWR : O_RDONLY, 0);
	if (s->lock == -ENOENT && rw)
		s->lock = io_open(s->dir, "lock", O_RDWR | O_CREAT, s->mode & 0666);
	if (s->lock >= 0)
		return store_lock(s, LOCK_SH, s->flags & STORE_WAIT ? -1 : 0);
	if (rw || s->lock != -ENOENT)
		return fail_io(s->lock, rw ? "write to the store" : "open the store", s->path);
	return 0;	/* a copy to read from */
}

static int open_all(struct store *s)
{
	static const uint8_t zeros[STORE_PAGE];
	struct stat st;
	int err;

	s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->dir < 0 && (errno == ENOENT || errno == ENOTDIR))
		return fail(-ENOENT, "there is no store at %s: `singvgpu store create` makes one",
			    s->path);
	if (s->dir < 0 || fstat(s->dir, &st))
		return fail_io(-errno, "open the store", s->path);
	s->owner = st.st_uid;
	s->mode = st.st_mode & 0666;
	err = read_super(s);
	if (!err)
		err = open_lock(s);
	if (err)
		return err;
	s->zero = store_hash(s, zeros);
	s->segs = calloc(1, sizeof(*s->segs));
	s->nsegs = s->segs_room = 1;
	return s->segs ? 0 : fail(-ENOMEM, "out of memory");
}

int store_open(struct store **out, const char *path, unsigned int flags, char *text, size_t n)
{
	struct store *s = calloc(1, sizeof(*s));
	int err;

	*out = NULL;
	if (!s || !(s->path = strdup(path))) {
		free(s);
		snprintf(text, n, "out of memory");
		return -ENOMEM;
	}
	s->flags = flags;
	s->dir = s->lock = -1;
	pthread_mutex_init(&s->mutex, NULL);
	err = open_all(s);
	if (err) {
		snprintf(text, n, "%s", why);
		store_close(s);
		return err;
	}
	*out = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	lookup_drop(s);
	seg_forget_all(s);
	free(s->segs);
	free(s->byid);
	if (s->lock >= 0)
		close(s->lock);
	if (s->dir >= 0)
		close(s->dir);
	pthread_mutex_destroy(&s->mutex);
	free(s->path);
	free(s);
}
