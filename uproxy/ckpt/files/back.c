// SPDX-License-Identifier: Apache-2.0
/*
 * back.c - puts a job's files back as they were at the cut; see files.h
 *
 * The first pass plans for each path of the list whether the file there stays, is kept aside or is
 * made. The second pass executes the plan with a journal, from which it is undone in reverse. Only
 * files that this run has made are ever removed or overwritten: a file that is in the way is
 * renamed, and new files get their names by calls that do not replace.
 *
 * All calls work in folders opened by files_open_above(): a user who may write to one of them can
 * put a symbolic link there at any time, which must not lead us elsewhere.
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
#include "record.h"

#define CHUNK	(1u << 20)
#define SMALL	65536u

struct plan {
	bool gone;		/* it is moved aside with a folder above it */
	bool aside, make, fix;
	bool linked;		/* the file has a name of CRIU's, too */
	bool ours;		/* it differs by b->ours alone */
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
	struct files links;	/* the list's entries c */
	struct step *step;
	size_t steps;
	uint8_t *buf;
	char *log;		/* as it was at the cut */
	size_t log_len;
	bool kept;		/* the store has the log, with the records after the cut */
	struct files trees;	/* folders that came by renames after the cut */
};

static int fail(struct back *k, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct back *k, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	why_vset(&k->b->why, err, fmt, ap);
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

/* ------------------------------------------------------------------ calls that follow no link */

/* Opens the path; does not follow a link there. */
static int open_at(const char *path, int flags)
{
	const char *name;
	int dir = files_open_above(path, &name), fd;

	if (dir < 0)
		return dir;
	fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC);
	fd = fd < 0 ? -errno : fd;
	close(dir);
	return fd;
}

static int unlink_at(const char *path, int flags)
{
	const char *name;
	int dir = files_open_above(path, &name), err;

	if (dir < 0)
		return dir;
	err = unlinkat(dir, name, flags) ? -errno : 0;
	close(dir);
	return err;
}

static int mkdir_at(const char *path)
{
	const char *name;
	int dir = files_open_above(path, &name), err;

	if (dir < 0)
		return dir;
	err = mkdirat(dir, name, 0700) ? -errno : 0;
	close(dir);
	return err;
}

/* Renames a path, or links it; never replaces a file. */
static int move_at(const char *from, const char *to, bool link)
{
	const char *old, *new;
	int a = files_open_above(from, &old), b = files_open_above(to, &new);
	int err = a < 0 ? a : b < 0 ? b : 0;

	if (!err && (link ? linkat(a, old, b, new, 0) :
			    renameat2(a, old, b, new, RENAME_NOREPLACE)))
		err = -errno;
	if (a >= 0)
		close(a);
	if (b >= 0)
		close(b);
	return err;
}

/* -------------------------------------------------------------------------- the plan */

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
			    ref ? store_says(err) : "it is not in the checkpoint");
	return 0;	/* of the size that the list says: files_check() */
}

/* 1: the file at w's path has w's content; 0: not. */
static int same_content(struct back *k, const struct file *w)
{
	int fd = open_at(w->path, O_RDONLY | O_NONBLOCK), err;
	struct store_digest d[CHUNK / STORE_PAGE], h;
	struct store_reader *r = NULL;
	int same = 1, bad;

	if (fd < 0)
		return fail(k, fd, "%s cannot be read: %s", w->path, strerror(-fd));
	err = open_content(k, w, &r);
	for (uint64_t off = 0; off < w->size && same && !err; off += CHUNK) {
		uint64_t len = w->size - off < CHUNK ? w->size - off : CHUNK;
		size_t pages = (len + STORE_PAGE - 1) / STORE_PAGE;

		memset(k->buf, 0, CHUNK);
		same = pread(fd, k->buf, len, off) == (ssize_t)len;
		bad = store_digests(r, off, d, pages);
		if (bad)
			err = fail(k, -EIO, "the content of %s cannot be read: %s", w->path,
				   store_says(bad));
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

/* Set-user-ID and set-group-ID bits are never restored; an existing file keeps its own. */
static bool same_meta(const struct file *w, const struct file *n)
{
	return w->mode == (n->mode & 01777) && w->uid == n->uid && w->gid == n->gid &&
	       w->mtime == n->mtime && files_same_attrs(w, n);
}

/* 1: the existing file may stay; 0: not. */
static int may_stay(struct back *k, size_t i)
{
	const struct file *w = &k->want.file[i], *n = &k->now.file[i], *first;

	switch (w->kind) {
	case 'p':
		if (n->kind == 'l')
			return fail(k, -ELOOP, "%s was a folder at the checkpoint and is a symbolic link "
				    "now: nothing is put back through links", w->path);
		return n->kind == 'd';
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
	if (n->kind != 'r' || n->size != w->size)
		return 0;
	/* What is replaced must be known to have the same content. */
	if (untouched(k, w, n) && !k->plan[i].linked)
		return 1;
	/* A file that has got another name since must not change its owner or mode. */
	if (n->links > 1 && !same_meta(w, n) && (w->dev != n->dev || w->ino != n->ino))
		return 0;
	return same_content(k, w);
}

/* 1: what is there has w's content, and behind that what singvgpu has written since; 0: not. */
static int only_ours(struct back *k, const struct file *w, const struct file *n)
{
	size_t len = k->b->ours ? strlen(k->b->ours) : 0;
	char tail[1024];
	bool same;
	int fd;

	if (!len || len > sizeof(tail) || w->kind != 'r' || n->kind != 'r' || n->size != w->size + len)
		return 0;
	fd = open_at(w->path, O_RDONLY | O_NONBLOCK);
	same = fd >= 0 && pread(fd, tail, len, w->size) == (ssize_t)len && !memcmp(tail, k->b->ours, len);
	if (fd >= 0)
		close(fd);
	return same ? same_content(k, w) : 0;
}

/* Is a folder above it moved aside? Folders come before their contents in the list. */
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
	/* What has a name of CRIU's is replaced by its like, see make_link(). */
	stays = n->kind == 'a' ? 0 : p->linked && !same_meta(w, n) ? 0 : may_stay(k, i);
	if (stays < 0)
		return stays;
	p->make = !stays;
	p->aside = !stays && n->kind != 'a';
	p->ours = p->aside && only_ours(k, w, n) == 1;
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

/* Two files that have since become one inode must be two again, even with the same content. */
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
	/* Hard links to such files are made anew, too. */
	for (size_t i = 0; i < k->want.n; i++) {
		const struct file *w = &k->want.file[i];

		if (w->kind == 'h' && !k->plan[i].make &&
		    k->plan[files_find(&k->want, w->target) - k->want.file].make)
			k->plan[i] = (struct plan){ .aside = true, .make = true };
	}
	return 0;
}

/* ---------------------------------------------------------------------- CRIU's links */

/* The file of the list, or (links) of the links before it, that a link is a name of; NULL: none. */
static const struct file *same_file(const struct back *k, const struct file *c, bool links)
{
	const struct files *l = links ? &k->links : &k->want;

	for (size_t i = 0; i < l->n && &l->file[i] != c; i++)
		if ((links || l->file[i].kind == 'r') && l->file[i].dev == c->dev &&
		    l->file[i].ino == c->ino)
			return &l->file[i];
	return NULL;
}

/* The path of the same file, if this restore makes that before the link. */
static const char *made_before(const struct back *k, const struct file *c)
{
	const struct file *w = same_file(k, c, false), *first = same_file(k, c, true);

	return first ? first->path : w && k->plan[w - k->want.file].make ? w->path : NULL;
}

/* Moves the links to a list of their own, with their private names. */
static int part_off_links(struct back *k)
{
	struct files_back *b = k->b;
	size_t left = 0;
	int err = 0;

	b->link = calloc(k->want.n + 1, sizeof(*b->link));
	b->at = calloc(k->want.n + 1, sizeof(*b->at));
	if (!b->link || !b->at)
		return -ENOMEM;
	for (size_t i = 0; i < k->want.n; i++) {
		struct file *w = &k->want.file[i], *c;
		size_t n = files_folder(w->path, strlen(w->path));
		char *at;

		if (w->kind != 'c' || err) {
			k->want.file[left++] = *w;
			continue;
		}
		if (asprintf(&at, "%.*s/.singvgpu-%s.%s", (int)n, w->path, b->tag, w->path + n + 1) < 0)
			at = NULL;
		c = at ? files_add(&k->links, at) : NULL;
		if (!c) {
			free(at);
			k->want.file[left++] = *w;
			err = -ENOMEM;
			continue;
		}
		b->link[b->n_links] = w->path;
		b->at[b->n_links++] = at;
		w->path = c->path;
		*c = *w;
		c->kind = 'r';
	}
	k->want.n = left;
	return err;
}

static void mark_linked(struct back *k)
{
	for (size_t i = 0; i < k->links.n; i++) {
		const struct file *w = same_file(k, &k->links.file[i], false);

		if (w)
			k->plan[w - k->want.file].linked = true;
	}
}

void files_remove_links(struct files_back *b)
{
	for (size_t i = 0; i < b->n_links; i++)
		unlink_at(b->at[i], 0);
}

/* ------------------------------------------------------------------------- checks */

/* Opens the nearest folder above that exists and stays. -errno: `why` has a sentence. */
static int standing_above(struct back *k, const char *path, char above[PATH_MAX])
{
	size_t n = strlen(path);
	const struct file *f;
	int fd;

	memcpy(above, path, n + 1);
	do {
		n = files_folder(above, n);
		strcpy(above + n, n ? "" : "/");
		f = files_find(&k->want, above);
		fd = f && k->plan[f - k->want.file].make ? -ENOENT : files_open_folder(above);
	} while (n && fd == -ENOENT);
	if (fd < 0)
		fail(k, fd, "%s cannot be put back: the folder %s: %s", path, above, strerror(-fd));
	return fd;
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
		/* Only the time of another user's folder would change: leave it. */
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

/* now: what is there and has to be moved aside, or NULL. */
static int check_place(struct back *k, const struct file *w, const struct file *now)
{
	char above[PATH_MAX];
	struct stat st;
	int fd = standing_above(k, w->path, above), err = 0;

	if (fd < 0)
		return fd;
	if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS))
		err = fail(k, -errno, "%s cannot be put back: the folder %s: %s", w->path, above,
			   strerror(errno));
	else if (now && now->kind == 'd' && !fstat(fd, &st) && st.st_dev != now->dev)
		err = fail(k, -EBUSY, "%s cannot be moved aside: something is mounted there",
			   w->path);
	close(fd);
	return err;
}

struct need {
	uint64_t dev, bytes;
};

/* Adds up the space that contents need on each file system, without holes. */
static int check_room(struct back *k, const struct file *w, struct need *need, size_t *n)
{
	uint64_t from, to = 0, bytes = w->size;
	struct store_reader *r;
	char above[PATH_MAX];
	struct statvfs fs;
	struct stat st;
	size_t j = 0;
	int fd, err;

	if (bytes > SMALL) {		/* holes of small files are not worth a look */
		err = open_content(k, w, &r);
		if (err)
			return err;
		for (bytes = 0; !store_next_data(r, to, &from, &to);)
			bytes += to - from;
		store_reader_close(r);
	}
	fd = standing_above(k, w->path, above);
	if (fd < 0)
		return fd;
	err = fstat(fd, &st) || fstatvfs(fd, &fs) ? -errno : 0;
	close(fd);
	if (err)
		return fail(k, err, "%s: %s", above, strerror(-err));
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

	mark_linked(k);
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
			err = check_place(k, &k->want.file[i], p->aside ? &k->now.file[i] : NULL);
		if (!err && (p->make || p->fix))
			err = check_owner(k, i);
		if (!err && p->make && k->want.file[i].kind == 'r')
			err = check_room(k, &k->want.file[i], need, &needs);
		k->b->kept += !p->aside && !p->make && k->want.file[i].kind != 'p';
	}
	for (size_t i = 0; i < k->links.n && !err; i++) {
		const struct file *c = &k->links.file[i];

		err = check_place(k, c, NULL);
		if (!err && !made_before(k, c))
			err = check_room(k, c, need, &needs);
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

static int set_open(const struct file *f, int fd)
{
	struct timespec t[2] = { { .tv_nsec = UTIME_OMIT },
		{ f->mtime / 1000000000, f->mtime % 1000000000 } };
	char path[40];
	struct stat st;
	bool given;

	if (t[1].tv_nsec < 0) {
		t[1].tv_nsec += 1000000000;
		t[1].tv_sec--;
	}
	if (fstat(fd, &st))
		return -errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	given = st.st_uid != f->uid || st.st_gid != f->gid;
	if (given && fchownat(fd, "", f->uid, f->gid, AT_EMPTY_PATH))
		return -errno;
	/* Set-user-ID and set-group-ID bits stay, unless a file gets another owner. */
	if (f->kind != 'l' && chmod(path, f->mode | (given && !S_ISDIR(st.st_mode) ? 0 :
						    st.st_mode & 06000)))
		return -errno;
	for (size_t i = 0; i < f->attrs && f->kind != 'l'; i++)
		if (setxattr(path, f->attr[i].name, f->attr[i].value, f->attr[i].len, 0) &&
		    errno != ENOTSUP)
			return -errno;
	return utimensat(fd, "", t, AT_EMPTY_PATH) ? -errno : 0;
}

static int set_meta(const struct file *f)
{
	int fd = open_at(f->path, O_PATH), err;

	if (fd < 0)
		return fd;
	err = set_open(f, fd);
	close(fd);
	return err;
}

static void undo(struct back *k)
{
	bool left = false;

	while (k->steps) {
		struct step *s = &k->step[--k->steps];
		int err = 0;

		if (s->what == 'm')
			err = move_at(s->to, s->path, false);
		else if (s->what == 't')
			err = set_meta(&s->was);
		else
			err = unlink_at(s->path, s->what == 'd' ? AT_REMOVEDIR : 0);
		if (err == -ENOENT && s->what != 'm' && s->what != 't')
			err = 0;
		if (err && !left)
			why_add(&k->b->why, "; what had been done could not be undone at %s%s%s",
				s->path, s->to ? ", which is " : "", s->to ?: "");
		left |= !!err;
		free(s->path);
		free(s->to);
		s->was.path = NULL;
		files_drop(&s->was);
	}
}

/* ------------------------------------------------------------------------------ execution */

/* The path length of the outermost folder above that the job made and that stays; 0: none. */
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

/* Can files be renamed from path's folder to the folder above its first n bytes? */
static bool one_place(const char *path, size_t n)
{
	char above[PATH_MAX];
	const char *name;
	struct stat sa, sb;
	int a, b = files_open_above(path, &name);
	bool one;

	snprintf(above, sizeof(above), "%.*s", (int)n, path);
	a = files_open_above(above, &name);
	one = a >= 0 && b >= 0 && !faccessat(a, ".", W_OK | X_OK, AT_EACCESS) && !fstat(a, &sa) &&
	      !fstat(b, &sb) && sa.st_dev == sb.st_dev;
	if (a >= 0)
		close(a);
	if (b >= 0)
		close(b);
	return one;
}

static int make_folders(struct back *k, char *path, size_t from)
{
	for (char *s = path + from; (s = strchr(s, '/')); s++) {
		int err;

		*s = '\0';
		err = mkdir_at(path);
		err = err == -EEXIST ? 0 : err ?: did(k, 'd', path, NULL);
		*s = '/';
		if (err)
			return err;
	}
	return 0;
}

static int will_drop(struct files_back *b, const char *path)
{
	char **more = realloc(b->drop, (b->n_drop + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	b->drop = more;
	b->drop[b->n_drop] = strdup(path);
	return b->drop[b->n_drop] ? b->n_drop++, 0 : -ENOMEM;
}

static int move_aside(struct back *k, const struct file *w)
{
	size_t own = own_folder(k, w->path), at;
	char to[PATH_MAX + 512], number[16] = "";
	int err = -EEXIST;

	if (own && !one_place(w->path, own))
		own = 0;
	at = own ?: strlen(w->path);
	/* A long name is cut, so that the stamp fits. */
	if (at - files_folder(w->path, at) - 1 + strlen(k->b->stamp) + 5 > NAME_MAX)
		at = files_folder(w->path, at) + 1 + NAME_MAX - strlen(k->b->stamp) - 5;
	for (int i = 2; err == -EEXIST && i < 100; i++) {
		snprintf(to, sizeof(to), "%.*s.%s%s%s", (int)at, w->path, k->b->stamp, number,
			 own ? w->path + own : "");
		snprintf(number, sizeof(number), ".%d", i);
		err = own ? make_folders(k, to, files_folder(w->path, own) + 1) : 0;
		err = err ?: move_at(w->path, to, false);
	}
	if (err)
		return fail(k, err, "%s cannot be moved aside to %s: %s", w->path, to,
			    strerror(-err));
	err = did(k, 'm', w->path, to);
	k->b->aside++;
	if (!err && k->plan[w - k->want.file].ours)
		return will_drop(k->b, to);
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
					   w->path, store_says(n ?: -EBADMSG));
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

/* The file has no name until it is complete, if the file system has O_TMPFILE. Meta data follow. */
static int make_regular(struct back *k, const struct file *w)
{
	const char *name;
	int dir = files_open_above(w->path, &name), fd, err;
	char path[40];
	bool named;

	if (dir < 0)
		return dir;
	fd = openat(dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	named = fd < 0;
	if (named)
		fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	err = fd < 0 ? -errno : fill(k, w, fd);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (!err && !named && linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW))
		err = -errno;
	if (fd >= 0 && close(fd) && !err)
		err = -errno;
	if (err && named && fd >= 0)
		unlinkat(dir, name, 0);
	close(dir);
	return err;
}

static int make_special(const struct file *w)
{
	const char *name;
	int dir = files_open_above(w->path, &name), err;

	if (dir < 0)
		return dir;
	err = (w->kind == 'l' ? symlinkat(w->target, dir, name) : mkfifoat(dir, name, 0600)) ?
	      -errno : 0;
	close(dir);
	return err;
}

static int make(struct back *k, const struct file *w)
{
	bool folder = strchr("pdD", w->kind);
	int err = 0;

	if (folder)
		err = mkdir_at(w->path);
	else if (w->kind == 'l' || w->kind == 'f')
		err = make_special(w);
	else if (w->kind == 'h')
		err = move_at(w->target, w->path, true);
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
	int err = did(k, 't', w->path, NULL), fd = -1;
	struct file *was;
	char path[40];

	if (err)
		return err;
	was = &k->step[k->steps - 1].was;
	was->path = k->step[k->steps - 1].path;
	err = files_look(was);
	if (!err) {
		fd = open_at(w->path, O_PATH);
		err = fd < 0 ? fd : 0;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	for (size_t i = 0; i < was->attrs && !err; i++) {
		bool stays = false;

		for (size_t j = 0; j < w->attrs; j++)
			stays |= !strcmp(w->attr[j].name, was->attr[i].name);
		if (!stays && removexattr(path, was->attr[i].name))
			err = -errno;
	}
	if (fd >= 0)
		close(fd);
	if (!err)
		err = set_meta(w);
	if (!err && (w->mode != (was->mode & 01777) || w->uid != was->uid || w->gid != was->gid ||
		     !files_same_attrs(w, was)))
		err = note(k->b, "%s has its mode, owner and attributes of the checkpoint again",
			   w->path);
	return err ? fail(k, err, "mode, owner or times of %s cannot be set: %s", w->path,
			  strerror(-err)) : 0;
}

/* Folders come last, inner ones first, as their times change with their contents. */
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
	/* The log stays in the store, with later records, for other restores of the cut. */
	if (strcmp(k->want.log, "-") && !files_log_link(k->b->store, k->want.log, path,
							 k->kept ? NULL : k->log, k->log_len))
		return 0;
	snprintf(temp, sizeof(temp), "%s.new", path);
	fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	err = fd < 0 ? -errno : write_all(fd, (uint8_t *)k->log, k->log_len, 0);
	/* The owner of the folder is the job's user. */
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

/* Gives file another name, in place of its like that has the name. */
static int replace(const char *file, const char *name)
{
	const char *last, *from;
	char fresh[PATH_MAX];
	int above, dir, err;

	if (snprintf(fresh, sizeof(fresh), "%.*s/.new%s", (int)files_folder(name, strlen(name)), name,
		     strrchr(file, '/') + 1) >= (int)sizeof(fresh))
		return -ENAMETOOLONG;
	err = move_at(file, fresh, true);
	if (err)
		return err;
	above = files_open_above(name, &last);
	dir = files_open_above(fresh, &from);
	if (above < 0 || dir < 0)
		err = above < 0 ? above : dir;
	else if (renameat(dir, from, above, last))
		err = -errno;
	if (above >= 0)
		close(above);
	if (dir >= 0)
		close(dir);
	if (err)
		unlink_at(fresh, 0);
	return err;
}

/* Makes a link, of what was made already or of a new file. */
static int make_link(struct back *k, const struct file *c)
{
	const struct file *w = same_file(k, c, false);
	const char *of = made_before(k, c);
	int err = of ? move_at(of, c->path, true) : make_regular(k, c);

	err = err ?: did(k, 'c', c->path, NULL);
	if (!err && !of)
		err = set_meta(c);
	for (size_t i = 0; i < k->want.n && !err && !of && w; i++) {
		const struct file *g = &k->want.file[i];

		if (g == w || (g->kind == 'h' && !strcmp(g->target, w->path)))
			err = replace(c->path, g->path);
	}
	return err ? fail(k, err, "%s cannot be made: %s", c->path, strerror(-err)) : 0;
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
	for (size_t i = 0; i < k->links.n && !err; i++)
		err = make_link(k, &k->links.file[i]);
	for (size_t i = 0; i < k->want.n && !err; i++)
		if (k->plan[i].fix && !strchr("dDp", k->want.file[i].kind))
			err = fix(k, &k->want.file[i]);
	return err ?: fix_folders(k) ?: write_log(k);
}

/* ------------------------------------------------------------------------------- the cut */

/* Adds a path that the log has after the cut and the list has not; k->now holds it for now. */
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

/* A folder has come by a rename after the cut: its contents were not at this path. */
static int tree_later(struct back *k, const char *top)
{
	struct dirent *e;
	char path[PATH_MAX];
	int err = 0, fd = open_at(top, O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (fd >= 0 && !dir)
		close(fd);
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

	if (!files_is_plain(path))
		return fail(k, -EPROTO, "the log of the job's files is refused: %.500s is no "
			    "absolute path without . and ..", path);
	if (files_is_system(path))
		return 0;
	if (kind == RECORD_TREE)
		return files_add(&k->trees, path) ? tree_later(k, path) : -ENOMEM;
	/* The file existed when it was changed, but had come with its folder after the cut. */
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

/* The first record of each path after the cut tells its state at the cut. */
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

/* Reads the log in the store, or the caller's, if it begins with the log of the cut. */
static int read_later(struct back *k)
{
	char kept[PATH_MAX], *log;
	const char *path[2] = { kept, k->b->later };
	size_t len;
	int err;

	files_log_path(kept, k->b->store, k->want.log);
	for (int i = 0; i < 2; i++) {
		bool ours;

		err = path[i] ? files_read(path[i], 0, k->b->store, &log, &len) : -ENOENT;
		if (err == -EPERM)
			return fail(k, err, "%s", store_says(err));
		if (err)
			continue;
		ours = len >= k->log_len && !memcmp(log, k->log, k->log_len);
		k->kept |= ours && !i;
		if (ours)
			err = files_records(log + k->log_len, len - k->log_len, later, k);
		free(log);
		if (err)
			return err;
		if (ours)
			break;
	}
	return add_later(k);
}

static int begin_back(struct back *k)
{
	struct store_checkpoint *c = k->b->checkpoint;
	const struct store_ref *list = store_checkpoint_find(c, FILES_PART);
	const struct store_ref *log = store_checkpoint_find(c, FILES_LOG);
	struct why why = { 0 };
	char *text;
	size_t len;
	int err;

	err = log ? files_read_object(k->b->store, log, &k->log, &k->log_len) : -ENODATA;
	err = err ?: files_read_object(k->b->store, list, &text, &len);
	if (err)
		return fail(k, err, "the list of the job's files cannot be read: %s", !log ?
			    "its log is missing" : err == -EFBIG ? "it is larger than any job's" :
			    store_says(err));
	err = strlen(text) == len ? files_parse(&k->want, text, &why) :
	      why_set(&why, -EPROTO, "there is a NUL in it");
	free(text);
	err = err ?: files_check(&k->want, c, &why);
	if (err == -EPROTO || err == -EPROTONOSUPPORT)
		return fail(k, err, "the list of the job's files is refused, it %s: %s",
			    err == -EPROTO ? "is broken or forged" : "has another format", why.text);
	err = err ?: part_off_links(k) ?: read_later(k);
	files_boot(k->now.boot);
	k->plan = calloc(k->want.n + 1, sizeof(*k->plan));
	k->buf = aligned_alloc(STORE_PAGE, CHUNK);
	return err ?: k->plan && k->buf ? 0 : -ENOMEM;
}

int files_put_back(struct files_back *b)
{
	struct back k = { .b = b };
	bool acted = false;
	int err;

	b->said = b->link = b->at = NULL;
	b->n_said = b->n_links = 0;
	b->made = b->kept = b->aside = 0;
	why_clear(&b->why);
	if (!store_checkpoint_find(b->checkpoint, FILES_PART))
		return 0;
	err = begin_back(&k) ?: b->list_only ? 0 : look(&k);
	if (!err && !b->look_only && !b->list_only) {
		err = act(&k);
		acted = true;
	}
	if (err)
		fail(&k, err, "the job's files cannot be put back: %s", strerror(-err));
	if (err && acted)
		undo(&k);
	for (size_t i = 0; i < k.steps; i++) {
		free(k.step[i].path);
		free(k.step[i].to);
		files_drop(&k.step[i].was);
	}
	free(k.step);
	files_free(&k.want);
	files_free(&k.now);
	files_free(&k.trees);
	files_free(&k.links);
	free(k.plan);
	free(k.buf);
	free(k.log);
	return err;
}

void files_drop_ours(struct files_back *b)
{
	size_t len = b->ours ? strlen(b->ours) : 0;

	for (size_t i = 0; i < b->n_drop; i++) {
		int fd = open_at(b->drop[i], O_RDONLY | O_NONBLOCK), err = fd < 0 ? fd : 0;
		char tail[1024];
		struct stat st;

		/* A lease is to be had while nobody has the file open: what a shell still writes stays. */
		if (!err && (fcntl(fd, F_SETLEASE, F_WRLCK) || fstat(fd, &st) ||
			     pread(fd, tail, sizeof(tail), st.st_size - len) != (ssize_t)len ||
			     memcmp(tail, b->ours, len)))
			err = -EBUSY;
		if (err || unlink_at(b->drop[i], 0))
			note(b, "what singvgpu wrote behind the checkpoint's end of a file is kept, with the rest "
			     "of it, as %s", b->drop[i]);
		else
			b->aside--;
		if (fd >= 0)
			close(fd);
	}
}

void files_back_free(struct files_back *b)
{
	for (size_t i = 0; i < b->n_drop; i++)
		free(b->drop[i]);
	free(b->drop);
	b->drop = NULL;
	b->n_drop = 0;
	for (size_t i = 0; i < b->n_said; i++)
		free(b->said[i]);
	for (size_t i = 0; i < b->n_links; i++) {
		free(b->link[i]);
		free(b->at[i]);
	}
	free(b->said);
	free(b->link);
	free(b->at);
	b->said = b->link = b->at = NULL;
	b->n_said = b->n_links = 0;
}
