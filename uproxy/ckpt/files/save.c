// SPDX-License-Identifier: Apache-2.0
/*
 * save.c - finds the files that a job has changed and saves them as they are at the cut; see
 * files.h
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "files_i.h"
#include "record.h"

#define CHUNK	(1u << 20)
#define TRIES	3		/* to read a file that changes meanwhile */
#define RACY_NS	2000000000ll

struct saving {
	struct files_save *f;
	struct store *s;
	struct store_writer *w;
	struct files list, mapped, former;
	uint8_t *buf;
	char *log;
	size_t log_len;
	char **skip;		/* canonical paths */
	size_t skips;
	bool lost;		/* the log is not complete */
	struct why store;	/* the store's first failure */
};

static int stored(struct saving *sv, int err)
{
	return store_failed(&sv->store, err);
}

static const char *cause(const struct saving *sv, int err)
{
	return sv->store.err ? sv->store.text : strerror(-err);
}

/* ---------------------------------------------------------------------------- which paths */

static int add_path(struct saving *sv, const char *path, char kind)
{
	struct file *f = files_add(&sv->list, path);

	if (f)
		f->kind = kind;
	return f ? 0 : -ENOMEM;
}

/* Adds all paths below a folder that came by a rename, except mounts, which did not come along. */
static int add_tree(struct saving *sv, const char *top)
{
	char path[PATH_MAX];
	DIR *dir = opendir(top);
	struct dirent *e;
	struct stat st, at;
	int err = 0;

	if (!dir)
		return errno == ENOMEM || errno == EMFILE ? -errno : 0;
	if (fstat(dirfd(dir), &at))
		err = -errno;
	while (!err && (e = readdir(dir))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    snprintf(path, sizeof(path), "%s/%s", top, e->d_name) >= (int)sizeof(path) ||
		    lstat(path, &st) || st.st_dev != at.st_dev)
			continue;
		err = add_path(sv, path, S_ISDIR(st.st_mode) ? 'D' : 'r');
		if (!err && S_ISDIR(st.st_mode))
			err = add_tree(sv, path);
	}
	closedir(dir);
	return err;
}

static int record(void *arg, char kind, const char *path)
{
	struct saving *sv = arg;
	struct stat st;

	if (kind == RECORD_LOST)
		sv->lost = true;
	if (kind == RECORD_TREE)	/* the path may be a link now, which is not followed */
		return lstat(path, &st) || !S_ISDIR(st.st_mode) ? 0 : add_tree(sv, path);
	return kind == RECORD_LOST ? 0 : add_path(sv, path, kind == RECORD_MADE ? 'D' : 'r');
}

/* Adds a file that a process has open for writing. */
static int add_fd(struct saving *sv, pid_t pid, const char *fd)
{
	char at[64], line[128], path[PATH_MAX];
	unsigned int flags = 0;
	struct stat st;
	ssize_t n;
	FILE *info;

	snprintf(at, sizeof(at), "/proc/%d/fd/%.20s", pid, fd);
	if (stat(at, &st) || !S_ISREG(st.st_mode) || !st.st_nlink)
		return 0;
	n = readlink(at, path, sizeof(path) - 1);
	snprintf(at, sizeof(at), "/proc/%d/fdinfo/%.20s", pid, fd);
	info = fopen(at, "re");
	while (info && fgets(line, sizeof(line), info))
		if (sscanf(line, "flags: %o", &flags) == 1)
			break;
	if (info)
		fclose(info);
	if (n <= 0 || *path != '/' || (flags & O_ACCMODE) == O_RDONLY)	/* of O_PATH, too */
		return 0;
	path[n] = '\0';
	return add_path(sv, path, 'r');
}

static int add_fds(struct saving *sv, pid_t pid)
{
	struct dirent *e;
	char path[64];
	int err = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? 0 : why_set(&sv->f->why, -errno,
			"the files that process %d has open cannot be seen (%s: %s)", pid, path,
			strerror(errno));
	while (!err && (e = readdir(dir)))
		if (isdigit(e->d_name[0]))
			err = add_fd(sv, pid, e->d_name);
	closedir(dir);
	return err;
}

/* Adds files that a process has mapped shared and for writing. */
static int add_maps(struct saving *sv, pid_t pid)
{
	char at[64], perms[8], *line = NULL, *path;
	size_t room = 0;
	struct file *f;
	struct stat st;
	int err = 0;
	FILE *maps;

	snprintf(at, sizeof(at), "/proc/%d/maps", pid);
	maps = fopen(at, "re");
	while (maps && !err && getline(&line, &room, maps) > 0) {
		path = strchr(line, '/');
		if (!path || sscanf(line, "%*s %7s", perms) != 1 || perms[1] != 'w' || perms[3] != 's')
			continue;
		path[strcspn(path, "\n")] = '\0';
		if (lstat(path, &st) || !S_ISREG(st.st_mode))
			continue;	/* deleted, or a memfd */
		f = files_add(&sv->mapped, path);
		if (f) {
			f->dev = st.st_dev;
			f->ino = st.st_ino;
		}
		err = f ? add_path(sv, path, 'r') : -ENOMEM;
	}
	free(line);
	if (maps)
		fclose(maps);
	return err;
}

static bool below(const char *path, const char *folder)
{
	size_t n = strlen(folder);

	return !strncmp(path, folder, n) && (!path[n] || path[n] == '/');
}

static bool wanted(const struct saving *sv, const char *path)
{
	for (size_t i = 0; i < sv->skips; i++)
		if (below(path, sv->skip[i]))
			return false;
	return !files_is_system(path);
}

/* Resolves the path if a folder in it has become a link since the log was written. */
static int true_name(struct file *f, char *dir, char *real)
{
	size_t n = files_folder(f->path, strlen(f->path));
	char *path;

	if (!n)
		return 0;
	if (strncmp(dir, f->path, n) || dir[n]) {	/* not the same folder as the last time */
		memcpy(dir, f->path, n);
		dir[n] = '\0';
		if (!realpath(dir, real))
			strcpy(real, dir);	/* absent, with its contents */
	}
	if (!strcmp(dir, real))
		return 0;
	if (asprintf(&path, "%s%s", strcmp(real, "/") ? real : "", f->path + n) < 0)
		return -ENOMEM;
	free(f->path);
	f->path = path;
	return 0;
}

/* Adds all folders above a path; strcmp's order puts them before it. */
static int add_above(struct saving *sv, const char *path)
{
	char above[PATH_MAX];
	size_t n = strlen(path);
	int err = 0;

	memcpy(above, path, n + 1);
	while (!err && (n = files_folder(above, n)) > 0) {
		above[n] = '\0';
		err = add_path(sv, above, 'p');
	}
	return err;
}

static int gather(struct saving *sv)
{
	char dir[PATH_MAX] = "", real[PATH_MAX] = "";
	struct files all;
	int err = files_records(sv->log, sv->log_len, record, sv);

	for (size_t i = 0; i < sv->f->n_pids && !err; i++)
		err = add_fds(sv, sv->f->pids[i]) ?: add_maps(sv, sv->f->pids[i]);
	for (size_t i = 0; i < sv->f->n_links && !err; i++)
		err = add_path(sv, sv->f->links[i], 'c');
	all = sv->list;
	sv->list.file = NULL;
	sv->list.n = sv->list.room = 0;
	files_sort(&all);
	for (size_t i = 0; i < all.n && !err; i++) {
		struct file *f = &all.file[i];
		struct stat st;

		err = true_name(f, dir, real);
		if (err || (f->kind != 'c' && !wanted(sv, f->path)) || strlen(f->path) >= PATH_MAX)
			continue;
		err = add_path(sv, f->path, f->kind);
		if (!err && !lstat(f->path, &st))
			err = add_above(sv, f->path);
	}
	files_free(&all);
	files_sort(&sv->list);
	files_sort(&sv->mapped);
	if (!err && sv->lost)
		err = why_set(&sv->f->why, -ENODATA, "the log of changed files (%s) is not complete: "
			      "a process of the job could not write to it (disk full, or out of "
			      "file descriptors?)", sv->f->log);
	return err;
}

/* ------------------------------------------------------------------------------- contents */

/* Is this a file system on which every change of a content changes the times, mappings included? */
static bool local_times(const char *path)
{
	struct statfs fs;

	if (statfs(path, &fs))
		return false;
	switch ((unsigned int)fs.f_type) {
	case 0xef53:		/* ext2, 3, 4 */
	case 0x58465342:	/* xfs */
	case 0x9123683e:	/* btrfs */
	case 0xf2f52010:	/* f2fs */
		return true;
	}
	return false;
}

static int copy_in(struct saving *sv, int fd, struct store_object *o, uint64_t size)
{
	uint64_t done = 0;
	int err = 0;

	while (done < size && !err) {
		off_t from = lseek(fd, done, SEEK_DATA), to;

		if (from < 0)	/* a hole up to the end, or SEEK_DATA is not supported */
			from = errno == ENXIO ? (off_t)size : (off_t)done;
		from -= from % STORE_PAGE;
		if ((uint64_t)from < done)
			from = done;
		to = lseek(fd, from, SEEK_HOLE);
		to = to <= from ? (off_t)size : (to + STORE_PAGE - 1) / STORE_PAGE * STORE_PAGE;
		if ((uint64_t)to > size)
			to = size;
		while (from < to && !err) {
			size_t len = to - from < CHUNK ? to - from : CHUNK;
			ssize_t n = pread(fd, sv->buf, len, from);

			err = n < 0 ? -errno : (size_t)n < len ? -EAGAIN :
				stored(sv, store_object_write(o, from, sv->buf, len));
			from += len;
			sv->f->bytes += len;
			if (sv->f->progress)
				sv->f->progress(sv->f->arg, "files", sv->f->bytes, 0);
		}
		done = to;
	}
	return err;
}

static bool same_times(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
	       files_ns(a->st_mtim) == files_ns(b->st_mtim) &&
	       files_ns(a->st_ctim) == files_ns(b->st_ctim);
}

/* -EAGAIN: it changed while it was read. */
static int read_content(struct saving *sv, struct file *f, struct store_ref *ref)
{
	int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, err;
	int fd = open(f->path, flags | O_NOATIME);
	struct store_object *o = NULL;
	struct stat a, b;

	if (fd < 0 && errno == EPERM)
		fd = open(f->path, flags);
	if (fd < 0)
		return errno == ENOENT || errno == ELOOP ? -EAGAIN : -errno;
	err = fstat(fd, &a) ? -errno : a.st_ino == f->ino && a.st_dev == f->dev &&
		(uint64_t)a.st_size == f->size && files_ns(a.st_mtim) == f->mtime ? 0 : -EAGAIN;
	if (!err)
		err = stored(sv, store_object_begin(sv->w, &o));
	if (!err)
		err = copy_in(sv, fd, o, f->size);
	if (!err && (fstat(fd, &b) || !same_times(&a, &b)))
		err = -EAGAIN;
	if (!err)
		err = stored(sv, store_object_end(o, f->size, ref));
	else if (o)
		store_object_abort(o);
	close(fd);
	return err;
}

/* The former checkpoint's part with the file's content, if that is unchanged, or NULL. */
static const struct store_ref *unchanged(struct saving *sv, const struct file *f)
{
	const struct file *was = files_find(&sv->former, f->path);
	char name[FILES_NAME];

	if (!was || was->kind != 'r' || !was->trust || strcmp(sv->former.boot, sv->list.boot) ||
	    was->size != f->size || was->dev != f->dev || was->ino != f->ino ||
	    was->mtime != f->mtime || was->ctime != f->ctime)
		return NULL;
	files_name(name, was->hash);
	return store_checkpoint_find(sv->f->former, name);
}

static int add_part(struct saving *sv, const char *name, const struct store_ref *ref)
{
	struct files_save *f = sv->f;
	struct store_part *more = realloc(f->parts, (f->n_parts + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	f->parts = more;
	more[f->n_parts] = (struct store_part){ strdup(name), *ref };
	f->n_parts += !!more[f->n_parts].name;
	return more[f->n_parts - 1].name ? 0 : -ENOMEM;
}

static bool is_mapped(const struct saving *sv, const struct file *f)
{
	for (size_t i = 0; i < sv->mapped.n; i++)
		if (sv->mapped.file[i].dev == f->dev && sv->mapped.file[i].ino == f->ino)
			return true;
	return false;
}

static int save_content(struct saving *sv, struct file *f)
{
	const struct store_ref *old = unchanged(sv, f);
	char name[FILES_NAME];
	struct store_ref ref;
	int err = -EAGAIN;

	for (int i = 0; !old && i < TRIES && err == -EAGAIN; i++)
		err = i && files_look(f) ? -EAGAIN : f->kind != 'r' ? -EBUSY :
			read_content(sv, f, &ref);
	if (err == -EAGAIN && !old)
		err = -EBUSY;
	if (!old && err)
		return why_set(&sv->f->why, err, err == -EBUSY ?
			       "%s is being changed by another program while the job stands still" :
			       "%s cannot be saved: %s", f->path, cause(sv, err));
	sv->f->files++;
	sv->f->unread += !!old;
	/* The next checkpoint uses the same name, so the store knows most of its list of parts. */
	f->hash = XXH3_64bits(f->path, strlen(f->path));
	f->trust = local_times(f->path) && !is_mapped(sv, f) &&
		   (f->mtime > f->ctime ? f->mtime : f->ctime) + RACY_NS < sv->list.taken;
	files_name(name, f->hash);
	return add_part(sv, name, old ?: &ref);
}

/* ------------------------------------------------------------------------------- the list */

static struct files *sorting;

static int by_inode(const void *a, const void *b)
{
	const struct file *x = &sorting->file[*(const size_t *)a];
	const struct file *y = &sorting->file[*(const size_t *)b];

	return x->dev != y->dev ? (x->dev < y->dev ? -1 : 1) :
	       x->ino != y->ino ? (x->ino < y->ino ? -1 : 1) : strcmp(x->path, y->path);
}

/* Turns further names of one file into entries h. */
static int find_links(struct files *l)
{
	size_t *at = malloc((l->n + 1) * sizeof(*at)), n = 0;
	int err = at ? 0 : -ENOMEM;

	for (size_t i = 0; at && i < l->n; i++)
		if (l->file[i].kind == 'r')
			at[n++] = i;
	sorting = l;
	if (n)
		qsort(at, n, sizeof(*at), by_inode);
	for (size_t i = 1, first = 0; i < n && !err; i++) {
		struct file *f = &l->file[at[first]], *g = &l->file[at[i]];

		if (f->dev != g->dev || f->ino != g->ino) {
			first = i;
			continue;
		}
		g->kind = 'h';
		g->target = strdup(f->path);
		err = g->target ? 0 : -ENOMEM;
	}
	free(at);
	return err;
}

/* A name of CRIU's has the content of the file that it is a name of. */
static int save_link(struct saving *sv, struct file *f)
{
	for (size_t i = 0; i < sv->list.n; i++) {
		const struct file *g = &sv->list.file[i];

		if (g->dev != f->dev || g->ino != f->ino ||
		    (g->kind != 'r' && (g->kind != 'c' || g >= f)))
			continue;
		f->hash = g->hash;
		f->size = g->size;
		return 0;
	}
	f->kind = 'r';
	return save_content(sv, f);
}

static int look_link(struct saving *sv, struct file *f)
{
	if (files_is_system(f->path))
		return why_set(&sv->f->why, -ENOTSUP, "%s: a file of the job, which was opened there by a "
			       "name that is gone, cannot be saved", f->path);
	if (f->kind != 'r')
		return why_set(&sv->f->why, -ENOTSUP, "%s: what the job has opened there by a name that "
			       "is gone %s", f->path, f->kind == 'a' ? "has been removed" :
			       "is no regular file, which cannot be saved");
	f->kind = 'c';
	return 0;
}

static int look_all(struct saving *sv)
{
	int err = 0;

	for (size_t i = 0; i < sv->list.n && !err; i++) {
		struct file *f = &sv->list.file[i];
		char kind = f->kind;

		err = files_look(f);
		if (err)
			return why_set(&sv->f->why, err, "%s cannot be looked at: %s", f->path,
				       strerror(-err));
		if (f->kind == 'd' && (kind == 'D' || kind == 'p'))
			f->kind = kind;
		if (kind == 'c')
			err = look_link(sv, f);
		sv->f->paths += f->kind != 'p';
	}
	err = err ?: find_links(&sv->list);
	for (size_t i = 0; i < sv->list.n && !err; i++)
		if (sv->list.file[i].kind == 'r')
			err = save_content(sv, &sv->list.file[i]);
	for (size_t i = 0; i < sv->list.n && !err; i++) {
		struct file *f = &sv->list.file[i];

		if (f->kind != 'c')
			continue;
		err = save_link(sv, f);
		f->kind = 'c';
	}
	return err;
}

static int save_text(struct saving *sv, const char *name, const char *text, size_t len)
{
	struct store_ref ref;
	int err = stored(sv, store_object_whole(sv->w, text, len, &ref));

	return err ?: add_part(sv, name, &ref);
}

/*
 * Moves the log into the store; it is no error if that fails. (A process that was stopped between
 * the open and the write of a record writes to the old log, and the record is lost.)
 */
static void keep_log(struct saving *sv)
{
	char path[PATH_MAX], now[PATH_MAX];
	uint64_t v;

	files_log_path(path, sv->s, "");
	if (realpath(path, now) && realpath(sv->f->log, path) && below(path, now) &&
	    strlen(path + strlen(now)) == 17) {
		strcpy(sv->list.log, path + strlen(now) + 1);
		return;
	}
	if (getrandom(&v, sizeof(v), 0) != sizeof(v))
		return;
	snprintf(sv->list.log, sizeof(sv->list.log), "%016llx", (unsigned long long)v);
	if (files_log_link(sv->s, sv->list.log, sv->f->log, sv->log, sv->log_len)) {
		files_log_path(path, sv->s, sv->list.log);
		unlink(path);
		strcpy(sv->list.log, "-");
	}
}

static int save_list(struct saving *sv)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	int err;

	keep_log(sv);
	err = out ? files_write(&sv->list, out) : -ENOMEM;
	if (out && fclose(out))
		err = -ENOMEM;
	if (!err && len > FILES_TEXT_MAX)
		err = -EFBIG;
	if (!err)
		err = save_text(sv, FILES_PART, text, len) ?:
		      save_text(sv, FILES_LOG, sv->log, sv->log_len);
	free(text);
	return err;
}

static int true_skips(struct saving *sv)
{
	const char *const *s = sv->f->skip;
	size_t n = 0;

	while (s && s[n])
		n++;
	sv->skip = calloc(n + 1, sizeof(*sv->skip));
	for (size_t i = 0; sv->skip && i < n; i++) {
		sv->skip[sv->skips] = realpath(s[i], NULL);
		sv->skips += !!sv->skip[sv->skips];	/* a missing folder needs no skipping */
	}
	return sv->skip ? 0 : -ENOMEM;
}

static int begin_saving(struct saving *sv)
{
	const struct store_ref *ref = sv->f->former ?
		store_checkpoint_find(sv->f->former, FILES_PART) : NULL;
	struct why why = { 0 };
	struct timespec now;
	char *text;
	size_t len;
	int err;

	clock_gettime(CLOCK_REALTIME, &now);
	sv->list.taken = files_ns(now);
	files_boot(sv->list.boot);
	if (ref) {
		err = store_failed(&why, files_read_object(sv->s, ref, &text, &len));
		if (!err) {
			err = files_parse(&sv->former, text, &why);
			free(text);
		}
		if (err)
			return why_set(&sv->f->why, err, "the list of files of checkpoint %s: %s",
				       store_checkpoint_id(sv->f->former), why.text);
	}
	err = files_read(sv->f->log, 0, NULL, &sv->log, &sv->log_len);
	if (err)
		return why_set(&sv->f->why, err, "the log of the job's files, %s: %s", sv->f->log,
			       strerror(-err));
	sv->buf = aligned_alloc(STORE_PAGE, CHUNK);
	return sv->buf ? true_skips(sv) : -ENOMEM;
}

int files_save(struct files_save *f, struct store *s, struct store_writer *w)
{
	struct saving sv = { .f = f, .s = s, .w = w };
	int err;

	f->parts = NULL;
	f->n_parts = 0;
	f->paths = f->files = f->bytes = f->unread = 0;
	why_clear(&f->why);
	err = begin_saving(&sv) ?: gather(&sv) ?: look_all(&sv) ?: save_list(&sv);
	if (err) {
		why_set(&f->why, err, "the job's files cannot be saved: %s", cause(&sv, err));
		files_save_free(f);
	}
	files_free(&sv.list);
	files_free(&sv.mapped);
	files_free(&sv.former);
	for (size_t i = 0; i < sv.skips; i++)
		free(sv.skip[i]);
	free(sv.skip);
	free(sv.log);
	free(sv.buf);
	return err;
}

bool files_saved(const struct files_save *f, const char *path)
{
	char name[FILES_NAME];

	files_name(name, XXH3_64bits(path, strlen(path)));
	for (size_t i = 0; i < f->n_parts; i++)
		if (!strcmp(f->parts[i].name, name))
			return true;
	return false;
}

void files_save_free(struct files_save *f)
{
	for (size_t i = 0; i < f->n_parts; i++)
		free((char *)f->parts[i].name);
	free(f->parts);
	f->parts = NULL;
	f->n_parts = 0;
}
