// SPDX-License-Identifier: Apache-2.0
/*
 * files_back.c - puts a job's files back as they were at the cut; see files.h
 *
 * First a plan: for each path of the list what is there now, and whether that stays, is kept aside
 * or is made. Then the deed, with a journal from which it is undone in reverse. Nothing is ever
 * removed or overwritten but what this run has made: what is in the way is renamed, and new files
 * get their names by calls that do not replace.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "files_i.h"
#include "files/record.h"

#define CHUNK	(1u << 20)
#define SMALL	65536u

struct plan {
	bool gone;		/* a folder above it is moved aside, and it with that */
	bool aside, make, fix;
};

struct step {
	char what;		/* m: moved, c: made, d: folder made, t: other owner, mode, times */
	char *path, *to;
	struct file was;	/* t */
};

struct back {
	struct files_back *b;
	struct files want, now;	/* the same paths at the same places */
	struct plan *plan;
	struct step *step;
	size_t steps;
	uint8_t *buf;
	char *log;		/* as it was at the cut */
	size_t log_len;
	bool kept;		/* the store has the log, and what came later */
	struct files trees;	/* folders that came by renames behind the cut */
};

static int fail(struct back *k, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct back *k, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (!*k->b->why)
		vsnprintf(k->b->why, FILES_WHY, fmt, ap);
	va_end(ap);
	return err;
}

static int note(struct files_back *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int note(struct files_back *b, const char *fmt, ...)
{
	char **more = realloc(b->said, (b->n_said + 1) * sizeof(*more));
	va_list ap;

	if (!more)
		return -ENOMEM;
	b->said = more;
	va_start(ap, fmt);
	b->n_said += vasprintf(&more[b->n_said], fmt, ap) >= 0;
	va_end(ap);
	return 0;
}

/* -------------------------------------------------------------------------- what to do */

static int open_content(struct back *k, const struct file *w, struct store_reader **r)
{
	const struct store_ref *ref;
	char name[FILES_NAME];
	int err;

	files_name(name, w->hash);
	ref = store_checkpoint_find(k->b->checkpoint, name);
	err = ref ? store_object_open(k->b->store, ref, r) : -ENODATA;
	if (err)
		return fail(k, err, "the content of %s cannot be read: %s", w->path,
			    ref ? store_why() : "it is not in the checkpoint");
	if (store_size(*r) != w->size) {
		store_reader_close(*r);
		*r = NULL;
		return fail(k, -EPROTO, "the content of %s has another size than the list says",
			    w->path);
	}
	return 0;
}

/* 1: the file of w's path has w's content; 0: not. */
static int same_content(struct back *k, const struct file *w)
{
	int fd = open(w->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK), err;
	struct store_digest d[CHUNK / STORE_PAGE], h;
	struct store_reader *r = NULL;
	int same = 1;

	if (fd < 0)
		return fail(k, -errno, "%s cannot be read: %s", w->path, strerror(errno));
	err = open_content(k, w, &r);
	for (uint64_t off = 0; off < w->size && same && !err; off += CHUNK) {
		uint64_t len = w->size - off < CHUNK ? w->size - off : CHUNK;
		size_t pages = (len + STORE_PAGE - 1) / STORE_PAGE;

		memset(k->buf, 0, CHUNK);
		same = pread(fd, k->buf, len, off) == (ssize_t)len;
		if (store_digests(r, off, d, pages))
			err = fail(k, -EIO, "the content of %s cannot be read: %s", w->path,
				   store_why());
		for (size_t i = 0; i < pages && same && !err; i++) {
			h = store_hash(k->b->store, k->buf + i * STORE_PAGE);
			same = h.lo == d[i].lo && h.hi == d[i].hi;
		}
	}
	if (r)
		store_reader_close(r);
	close(fd);
	return err ?: same;
}

static bool untouched(const struct back *k, const struct file *w, const struct file *n)
{
	return w->trust && !strcmp(k->want.boot, k->now.boot) && w->dev == n->dev &&
	       w->ino == n->ino && w->mtime == n->mtime && w->ctime == n->ctime &&
	       w->size == n->size;
}

static bool same_meta(const struct file *w, const struct file *n)
{
	return w->mode == n->mode && w->uid == n->uid && w->gid == n->gid &&
	       w->mtime == n->mtime && files_same_attrs(w, n);
}

static bool leads_to_folder(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* 1: what is there may stay; 0: not. */
static int may_stay(struct back *k, size_t i)
{
	const struct file *w = &k->want.file[i], *n = &k->now.file[i], *first;

	switch (w->kind) {
	case 'p':
		return n->kind == 'd' || (n->kind == 'l' && leads_to_folder(w->path));
	case 'd':
	case 'D':
		return n->kind == 'd';
	case 'l':
		return n->kind == 'l' && !strcmp(n->target, w->target);
	case 'f':
		return n->kind == 'f';
	case 'h':
		first = files_find(&k->want, w->target);
		return n->kind == 'r' && !k->plan[first - k->want.file].make &&
		       k->now.file[first - k->want.file].ino == n->ino &&
		       k->now.file[first - k->want.file].dev == n->dev;
	}
	return n->kind == 'r' && (untouched(k, w, n) ||
				  (n->size == w->size ? same_content(k, w) : 0));
}

/* Is a folder above it moved aside? What is above comes first in the list. */
static bool is_gone(const struct back *k, const char *path)
{
	char above[PATH_MAX];
	size_t n = strlen(path);

	memcpy(above, path, n + 1);
	while ((n = files_folder(above, n)) > 0) {
		const struct file *f;

		above[n] = '\0';
		f = files_find(&k->want, above);
		if (f && k->plan[f - k->want.file].aside)
			return true;
	}
	return false;
}

static int decide(struct back *k, size_t i)
{
	struct file *w = &k->want.file[i], *n = &k->now.file[i];
	struct plan *p = &k->plan[i];
	int stays, err = 0;

	p->gone = is_gone(k, w->path);
	if (p->gone)
		n->kind = 'a';
	else
		err = files_look(n);
	if (err)
		return fail(k, err, "%s cannot be looked at: %s", w->path, strerror(-err));
	if (w->kind == 's')
		return 0;
	if (w->kind == 'a') {
		p->aside = n->kind != 'a';
		return 0;
	}
	stays = n->kind == 'a' ? 0 : may_stay(k, i);
	if (stays < 0)
		return stays;
	p->make = !stays;
	p->aside = !stays && n->kind != 'a';
	p->fix = stays && w->kind != 'p' && w->kind != 'h' && !same_meta(w, n);
	return 0;
}

struct inode {
	uint64_t dev, ino;
	size_t at;
};

static int by_inode(const void *a, const void *b)
{
	const struct inode *x = a, *y = b;

	return x->dev != y->dev ? (x->dev < y->dev ? -1 : 1) :
	       x->ino != y->ino ? (x->ino < y->ino ? -1 : 1) :
	       x->at < y->at ? -1 : x->at > y->at;
}

/* Two files that have since become one must be two again, even if they have the same content. */
static int part_links(struct back *k)
{
	struct inode *v = malloc((k->want.n + 1) * sizeof(*v));
	size_t n = 0;

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < k->want.n; i++)
		if (k->want.file[i].kind == 'r' && !k->plan[i].make)
			v[n++] = (struct inode){ k->now.file[i].dev, k->now.file[i].ino, i };
	qsort(v, n, sizeof(*v), by_inode);
	for (size_t i = 1; i < n; i++)
		if (v[i].dev == v[i - 1].dev && v[i].ino == v[i - 1].ino)
			k->plan[v[i].at] = (struct plan){ .aside = true, .make = true };
	free(v);
	/* Links to those are made anew, too. */
	for (size_t i = 0; i < k->want.n; i++) {
		const struct file *w = &k->want.file[i];

		if (w->kind == 'h' && !k->plan[i].make &&
		    k->plan[files_find(&k->want, w->target) - k->want.file].make)
			k->plan[i] = (struct plan){ .aside = true, .make = true };
	}
	return 0;
}

/* ------------------------------------------------------------------------- may it be done */

/* The nearest folder above that is there and stays. */
static void standing_above(const struct back *k, const char *path, char above[PATH_MAX])
{
	size_t n = strlen(path);
	const struct file *f;
	struct stat st;

	memcpy(above, path, n + 1);
	do {
		n = files_folder(above, n);
		above[n] = '\0';
		f = files_find(&k->want, above);
	} while (n && ((f && k->plan[f - k->want.file].make) || stat(above, &st)));
	if (!n)
		strcpy(above, "/");
}

static bool in_group(gid_t gid)
{
	gid_t list[NGROUPS_MAX > 1024 ? 1024 : NGROUPS_MAX];
	int n = getgroups(sizeof(list) / sizeof(list[0]), list);

	for (int i = 0; i < n; i++)
		if (list[i] == gid)
			return true;
	return gid == getegid();
}

static int check_owner(struct back *k, size_t i)
{
	const struct file *w = &k->want.file[i], *n = &k->now.file[i];

	if (!geteuid())
		return 0;
	if (k->plan[i].fix && n->uid != geteuid()) {
		/* The time of a folder that others have written to, too. */
		if (n->kind == 'd' && w->mode == n->mode && w->uid == n->uid && w->gid == n->gid) {
			k->plan[i].fix = false;
			return 0;
		}
		return fail(k, -EPERM, "mode, owner or times of %s cannot be set: it belongs to user %u "
			    "(restore as root)", w->path, n->uid);
	}
	if ((k->plan[i].make || k->plan[i].fix) && (w->uid != geteuid() || !in_group(w->gid)))
		return fail(k, -EPERM, "%s cannot be given to user %u, group %u, as it was "
			    "(restore as root)", w->path, w->uid, w->gid);
	return 0;
}

static int check_place(struct back *k, size_t i)
{
	const struct file *w = &k->want.file[i];
	char above[PATH_MAX];
	struct stat a, b;

	standing_above(k, w->path, above);
	if (faccessat(AT_FDCWD, above, W_OK | X_OK, AT_EACCESS))
		return fail(k, -errno, "%s cannot be put back: the folder %s: %s", w->path, above,
			    strerror(errno));
	if (k->plan[i].aside && k->now.file[i].kind == 'd' && !lstat(w->path, &a) &&
	    !stat(above, &b) && a.st_dev != b.st_dev)
		return fail(k, -EBUSY, "%s cannot be moved aside: something is mounted there",
			    w->path);
	return 0;
}

struct need {
	uint64_t dev, bytes;
};

/* Room for contents, holes not counted, on each file system. */
static int check_room(struct back *k, size_t i, struct need *need, size_t *n)
{
	const struct file *w = &k->want.file[i];
	uint64_t from, to = 0, bytes = w->size;
	struct store_reader *r;
	char above[PATH_MAX];
	struct statvfs fs;
	struct stat st;
	size_t j = 0;

	if (bytes > SMALL) {		/* small ones are many, and have no holes to speak of */
		int err = open_content(k, w, &r);

		if (err)
			return err;
		for (bytes = 0; !store_next_data(r, to, &from, &to);)
			bytes += to - from;
		store_reader_close(r);
	}
	standing_above(k, w->path, above);
	if (stat(above, &st) || statvfs(above, &fs))
		return fail(k, -errno, "%s: %s", above, strerror(errno));
	while (j < *n && need[j].dev != st.st_dev)
		j++;
	if (j == *n && j < 63)
		need[(*n)++] = (struct need){ st.st_dev, 0 };
	need[j].bytes += bytes;
	if (need[j].bytes > (uint64_t)fs.f_bavail * fs.f_frsize)
		return fail(k, -ENOSPC, "no room for the job's files in %s: %" PRIu64 " MiB are there",
			    above, ((uint64_t)fs.f_bavail * fs.f_frsize) >> 20);
	return 0;
}

static int look(struct back *k)
{
	struct need need[64] = { { 0, 0 } };
	size_t needs = 0;
	int err = 0;

	for (size_t i = 0; i < k->want.n && !err; i++)
		if (!files_add(&k->now, k->want.file[i].path))
			err = -ENOMEM;
	for (size_t i = 0; i < k->want.n && !err; i++)
		err = decide(k, i);
	if (!err)
		err = part_links(k);
	for (size_t i = 0; i < k->want.n && !err; i++) {
		const struct plan *p = &k->plan[i];

		if (p->aside || p->make)
			err = check_place(k, i);
		if (!err && (p->make || p->fix))
			err = check_owner(k, i);
		if (!err && p->make && k->want.file[i].kind == 'r')
			err = check_room(k, i, need, &needs);
		k->b->kept += !p->aside && !p->make && k->want.file[i].kind != 'p';
	}
	return err;
}

/* --------------------------------------------------------------------------- the journal */

static int did(struct back *k, char what, const char *path, const char *to)
{
	struct step *more = realloc(k->step, (k->steps + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	k->step = more;
	more += k->steps;
	*more = (struct step){ what, strdup(path), to ? strdup(to) : NULL, { .kind = 0 } };
	k->steps += !!more->path;
	return more->path && (!to || more->to) ? 0 : -ENOMEM;
}

static int set_meta(const struct file *f)
{
	struct timespec t[2] = { { .tv_nsec = UTIME_OMIT },
		{ f->mtime / 1000000000, f->mtime % 1000000000 } };
	int err = 0;

	if (t[1].tv_nsec < 0) {
		t[1].tv_nsec += 1000000000;
		t[1].tv_sec--;
	}
	if (fchownat(AT_FDCWD, f->path, f->uid, f->gid, AT_SYMLINK_NOFOLLOW) ||
	    (f->kind != 'l' && fchmodat(AT_FDCWD, f->path, f->mode, 0)))
		err = -errno;
	for (size_t i = 0; i < f->attrs && !err && f->kind != 'l'; i++)
		if (lsetxattr(f->path, f->attr[i].name, f->attr[i].value, f->attr[i].len, 0))
			err = errno == ENOTSUP ? 0 : -errno;
	if (!err && utimensat(AT_FDCWD, f->path, t, AT_SYMLINK_NOFOLLOW))
		err = -errno;
	return err;
}

static void undo(struct back *k)
{
	char left[256] = "";
	size_t n;

	while (k->steps) {
		struct step *s = &k->step[--k->steps];
		int err = 0;

		if (s->what == 'm')
			err = renameat2(AT_FDCWD, s->to, AT_FDCWD, s->path, RENAME_NOREPLACE);
		else if (s->what == 't')
			err = set_meta(&s->was);
		else if (unlinkat(AT_FDCWD, s->path, s->what == 'd' ? AT_REMOVEDIR : 0))
			err = errno == ENOENT ? 0 : -1;
		if (err && !*left)
			snprintf(left, sizeof(left), "; what had been done could not be undone at %s%s%s",
				 s->path, s->to ? ", which is " : "", s->to ?: "");
		free(s->path);
		free(s->to);
		s->was.path = NULL;
		files_drop(&s->was);
	}
	n = strlen(k->b->why);
	snprintf(k->b->why + n, FILES_WHY - n, "%s", left);
}

/* ------------------------------------------------------------------------------ the deed */

/* The outermost folder above it that the job made and that stays: its length, 0 for none. */
static size_t own_folder(const struct back *k, const char *path)
{
	char above[PATH_MAX];
	size_t n = strlen(path), own = 0;

	memcpy(above, path, n + 1);
	while ((n = files_folder(above, n)) > 0) {
		const struct file *f;

		above[n] = '\0';
		f = files_find(&k->want, above);
		if (f && f->kind == 'D' && !k->plan[f - k->want.file].make)
			own = n;
	}
	return own;
}

/* May things from path's folder be renamed into the one that its first n bytes lie in? */
static bool one_place(const char *path, size_t n)
{
	char a[PATH_MAX], b[PATH_MAX];
	struct stat sa, sb;

	snprintf(a, sizeof(a), "%.*s/", (int)files_folder(path, n), path);
	snprintf(b, sizeof(b), "%.*s/", (int)files_folder(path, strlen(path)), path);
	return !faccessat(AT_FDCWD, a, W_OK | X_OK, AT_EACCESS) && !stat(a, &sa) &&
	       !stat(b, &sb) && sa.st_dev == sb.st_dev;
}

static int make_folders(struct back *k, char *path, size_t from)
{
	for (char *s = path + from; (s = strchr(s, '/')); s++) {
		int err = 0;

		*s = '\0';
		if (!mkdir(path, 0700))
			err = did(k, 'd', path, NULL);
		else if (errno != EEXIST)
			err = -errno;
		*s = '/';
		if (err)
			return err;
	}
	return 0;
}

static int move_aside(struct back *k, const struct file *w)
{
	size_t own = own_folder(k, w->path), at;
	char to[PATH_MAX + 512], number[16] = "";
	int err = -EEXIST;

	if (own && !one_place(w->path, own))
		own = 0;
	at = own ?: strlen(w->path);
	/* A name that is full already gets shorter. */
	if (at - files_folder(w->path, at) - 1 + strlen(k->b->stamp) + 5 > NAME_MAX)
		at = files_folder(w->path, at) + 1 + NAME_MAX - strlen(k->b->stamp) - 5;
	for (int i = 2; err == -EEXIST && i < 100; i++) {
		snprintf(to, sizeof(to), "%.*s.%s%s%s", (int)at, w->path, k->b->stamp, number,
			 own ? w->path + own : "");
		snprintf(number, sizeof(number), ".%d", i);
		err = own ? make_folders(k, to, files_folder(w->path, own) + 1) : 0;
		if (!err && renameat2(AT_FDCWD, w->path, AT_FDCWD, to, RENAME_NOREPLACE))
			err = -errno;
	}
	if (err)
		return fail(k, err, "%s cannot be moved aside to %s: %s", w->path, to,
			    strerror(-err));
	err = did(k, 'm', w->path, to);
	k->b->aside++;
	return err ?: note(k->b, w->kind == 'a' ?
			   "%s was not there at the checkpoint: it is kept as %s" :
			   "%s was different at the checkpoint: what was there now is kept as %s",
			   w->path, to);
}

static int write_all(int fd, const uint8_t *buf, size_t len, uint64_t off)
{
	ssize_t n;

	for (; len; len -= n, buf += n, off += n) {
		n = pwrite(fd, buf, len, off);
		if (n <= 0)
			return n ? -errno : -ENOSPC;
	}
	return 0;
}

static int fill(struct back *k, const struct file *w, int fd)
{
	uint64_t from, to = 0;
	struct store_reader *r;
	int err = open_content(k, w, &r);
	ssize_t n;

	if (err)
		return err;
	while (!err && !store_next_data(r, to, &from, &to)) {
		for (uint64_t off = from; off < to && !err; off += n) {
			n = store_read(r, off, k->buf, to - off < CHUNK ? to - off : CHUNK);
			if (n <= 0)
				err = fail(k, n ?: -EBADMSG, "the content of %s cannot be read: %s",
					   w->path, store_why());
			else
				err = write_all(fd, k->buf, n, off);
		}
		if (k->b->progress)
			k->b->progress(k->b->arg, "files", to, w->size);
	}
	store_reader_close(r);
	if (!err && ftruncate(fd, w->size))
		err = -errno;
	return err;
}

/* Without a name until it is whole, where the file system can do that. Meta data come later. */
static int make_regular(struct back *k, const struct file *w)
{
	char path[PATH_MAX];
	int n = files_folder(w->path, strlen(w->path)), fd, err;
	bool named;

	snprintf(path, sizeof(path), "%.*s/", n, w->path);
	fd = open(path, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	named = fd < 0;
	if (named)
		fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	err = fill(k, w, fd);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (!err && !named && linkat(AT_FDCWD, path, AT_FDCWD, w->path, AT_SYMLINK_FOLLOW))
		err = -errno;
	if (close(fd) && !err)
		err = -errno;
	if (err && named)
		unlink(w->path);
	return err;
}

static int make(struct back *k, const struct file *w)
{
	bool folder = strchr("pdD", w->kind);
	int err = 0;

	if (folder)
		err = mkdir(w->path, 0700) ? -errno : 0;
	else if (w->kind == 'l')
		err = symlink(w->target, w->path) ? -errno : 0;
	else if (w->kind == 'f')
		err = mkfifo(w->path, 0600) ? -errno : 0;
	else if (w->kind == 'h')
		err = linkat(AT_FDCWD, w->target, AT_FDCWD, w->path, 0) ? -errno : 0;
	else
		err = make_regular(k, w);
	if (!err)
		err = did(k, folder ? 'd' : 'c', w->path, NULL);
	if (!err && strchr("lfr", w->kind))
		err = set_meta(w);
	k->b->made++;
	return err ? fail(k, err, "%s cannot be made: %s", w->path, strerror(-err)) : 0;
}

static int fix(struct back *k, const struct file *w)
{
	struct file *was;
	int err = did(k, 't', w->path, NULL);

	if (err)
		return err;
	was = &k->step[k->steps - 1].was;
	was->path = k->step[k->steps - 1].path;
	err = files_look(was);
	for (size_t i = 0; i < was->attrs && !err; i++) {
		bool stays = false;

		for (size_t j = 0; j < w->attrs; j++)
			stays |= !strcmp(w->attr[j].name, was->attr[i].name);
		if (!stays && lremovexattr(w->path, was->attr[i].name))
			err = -errno;
	}
	if (!err)
		err = set_meta(w);
	if (!err && (w->mode != was->mode || w->uid != was->uid || w->gid != was->gid ||
		     !files_same_attrs(w, was)))
		err = note(k->b, "%s has its mode, owner and attributes of the checkpoint again",
			   w->path);
	return err ? fail(k, err, "mode, owner or times of %s cannot be set: %s", w->path,
			  strerror(-err)) : 0;
}

/* Folders last and from within, as their times change with what is in them. */
static int fix_folders(struct back *k)
{
	int err = 0;

	for (size_t i = k->want.n; i-- && !err;) {
		const struct file *w = &k->want.file[i];
		struct file n = { .path = w->path };

		if (!strchr("dDp", w->kind) || (w->kind == 'p' && !k->plan[i].make))
			continue;
		err = files_look(&n);
		if (!err && !same_meta(w, &n) && (!geteuid() || n.uid == geteuid()))
			err = k->plan[i].make ? set_meta(w) : fix(k, w);
		files_drop(&n);
		if (err)
			err = fail(k, err, "mode, owner or times of %s cannot be set: %s", w->path,
				   strerror(-err));
	}
	return err;
}

static int write_log(struct back *k)
{
	const char *path = k->b->log;
	char temp[PATH_MAX + 16], *slash;
	struct stat st;
	int fd, err;

	if (!path)
		return 0;
	/* It stays where it was, for another restore of this checkpoint, with all that came later. */
	if (strcmp(k->want.log, "-") && !files_log_link(k->b->store, k->want.log, path,
							 k->kept ? NULL : k->log, k->log_len))
		return 0;
	snprintf(temp, sizeof(temp), "%s.new", path);
	fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	err = fd < 0 ? -errno : write_all(fd, (uint8_t *)k->log, k->log_len, 0);
	/* The job's processes belong to whom the folder belongs to. */
	slash = strrchr(temp, '/');
	*slash = '\0';
	if (!err && !stat(temp, &st) && fchown(fd, st.st_uid, st.st_gid) && !geteuid())
		err = -errno;
	*slash = '/';
	if (fd >= 0)
		close(fd);
	if (!err && rename(temp, path))
		err = -errno;
	return err ? fail(k, err, "the log of the job's files, %s, cannot be written: %s", path,
			  strerror(-err)) : 0;
}

static int act(struct back *k)
{
	int err = 0;

	for (size_t i = 0; i < k->want.n && !err; i++)
		if (k->plan[i].aside)
			err = move_aside(k, &k->want.file[i]);
	for (size_t i = 0; i < k->want.n && !err; i++)
		if (k->plan[i].make)
			err = make(k, &k->want.file[i]);
	for (size_t i = 0; i < k->want.n && !err; i++)
		if (k->plan[i].fix && !strchr("dDp", k->want.file[i].kind))
			err = fix(k, &k->want.file[i]);
	return err ?: fix_folders(k) ?: write_log(k);
}

/* ------------------------------------------------------------------------------- the cut */

/* A path that the log has behind the cut and the list has not; in k->now for the time being. */
static int add_to_later(struct back *k, const char *path, char kind)
{
	struct file *f;

	if (files_find(&k->want, path))
		return 0;
	f = files_add(&k->now, path);
	if (!f)
		return -ENOMEM;
	f->kind = kind;
	f->ino = k->now.n;
	return 0;
}

/* A folder has come by a rename behind the cut: what is in it now was not there. */
static int tree_later(struct back *k, const char *top)
{
	struct dirent *e;
	char path[PATH_MAX];
	struct stat st;
	int err = 0;
	DIR *dir;

	if (lstat(top, &st) || !S_ISDIR(st.st_mode))
		return 0;
	dir = opendir(top);
	while (dir && !err && (e = readdir(dir))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    snprintf(path, sizeof(path), "%s/%s", top, e->d_name) >= (int)sizeof(path))
			continue;
		err = files_find(&k->want, path) ? tree_later(k, path) : add_to_later(k, path, 'a');
	}
	if (dir)
		closedir(dir);
	return err;
}

static int later(void *arg, char kind, const char *path)
{
	struct back *k = arg;

	if (kind == RECORD_TREE)
		return files_add(&k->trees, path) ? tree_later(k, path) : -ENOMEM;
	/* What was there when it was changed, but had come with its folder. */
	for (size_t i = 0; i < k->trees.n && kind == RECORD_CHANGED; i++) {
		size_t n = strlen(k->trees.file[i].path);

		if (!strncmp(path, k->trees.file[i].path, n) && path[n] == '/')
			kind = RECORD_MADE;
	}
	return kind == RECORD_LOST ? 0 : add_to_later(k, path, kind == RECORD_MADE ? 'a' : 's');
}

static int by_path_and_turn(const void *a, const void *b)
{
	const struct file *x = a, *y = b;

	return strcmp(x->path, y->path) ?: x->ino < y->ino ? -1 : 1;
}

/* What the first record of each path says about the cut. */
static int add_later(struct back *k)
{
	size_t listed = k->want.n;
	int err = 0;

	if (k->now.n)
		qsort(k->now.file, k->now.n, sizeof(*k->now.file), by_path_and_turn);
	for (size_t i = 0; i < k->now.n && !err; i++) {
		const struct file *n = &k->now.file[i];
		struct file *f;

		if (i && !strcmp(n->path, n[-1].path))
			continue;
		if (n->kind == 'a') {
			f = files_add(&k->want, n->path);
			err = f ? 0 : -ENOMEM;
			if (f)
				f->kind = 'a';
		} else {
			err = note(k->b, "%s was there at the checkpoint, which does not have it: the job "
				   "changed it for the first time later; it is left as it is", n->path);
		}
	}
	if (k->want.n > listed)
		files_sort(&k->want);
	files_free(&k->now);
	return err;
}

/* The log in the store, or the one that we were given: what begins as it did at the cut. */
static int read_later(struct back *k)
{
	char kept[PATH_MAX], *log;
	const char *path[2] = { kept, k->b->later };
	size_t len;
	int err = 0;

	files_log_path(kept, k->b->store, k->want.log);
	for (int i = 0; i < 2; i++) {
		bool ours;

		if (!path[i] || files_read(path[i], &log, &len))
			continue;
		ours = len >= k->log_len && !memcmp(log, k->log, k->log_len);
		k->kept |= ours && !i;
		if (ours)
			err = files_records(log + k->log_len, len - k->log_len, later, k);
		free(log);
		if (ours)
			break;
	}
	return err ?: add_later(k);
}

static int begin(struct back *k)
{
	struct store_checkpoint *c = k->b->checkpoint;
	const struct store_ref *list = store_checkpoint_find(c, FILES_PART);
	const struct store_ref *log = store_checkpoint_find(c, FILES_LOG);
	char *text;
	size_t len;
	int err;

	err = log ? files_read_object(k->b->store, log, &k->log, &k->log_len) : -ENODATA;
	if (!err)
		err = files_read_object(k->b->store, list, &text, &len);
	if (err)
		return fail(k, err, "the list of the job's files cannot be read: %s",
			    log ? store_why() : "its log is missing");
	err = strlen(text) == len ? files_parse(&k->want, text) : -EPROTO;
	free(text);
	if (err)
		return fail(k, err, "the list of the job's files is broken, or of another version");
	err = read_later(k);
	files_boot(k->now.boot);
	k->plan = calloc(k->want.n + 1, sizeof(*k->plan));
	k->buf = aligned_alloc(STORE_PAGE, CHUNK);
	return err ?: k->plan && k->buf ? 0 : -ENOMEM;
}

int files_put_back(struct files_back *b)
{
	struct back k = { .b = b };
	int err;

	b->said = NULL;
	b->n_said = 0;
	b->made = b->kept = b->aside = 0;
	*b->why = '\0';
	if (!store_checkpoint_find(b->checkpoint, FILES_PART))
		return 0;
	err = begin(&k) ?: look(&k);
	if (!err && !b->look_only) {
		err = act(&k);
		if (err)
			undo(&k);
	}
	if (err && !*b->why)
		fail(&k, err, "the job's files cannot be put back: %s", strerror(-err));
	for (size_t i = 0; i < k.steps; i++) {
		free(k.step[i].path);
		free(k.step[i].to);
		files_drop(&k.step[i].was);
	}
	free(k.step);
	files_free(&k.want);
	files_free(&k.now);
	files_free(&k.trees);
	free(k.plan);
	free(k.buf);
	free(k.log);
	return err;
}

void files_back_free(struct files_back *b)
{
	for (size_t i = 0; i < b->n_said; i++)
		free(b->said[i]);
	free(b->said);
	b->said = NULL;
	b->n_said = 0;
}
