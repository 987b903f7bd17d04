// SPDX-License-Identifier: Apache-2.0
/*
 * logs.c - the folder "logs" of a store: logs of changed files that go on after a checkpoint
 *
 * A log lies there from its job's first checkpoint on, under the name that the checkpoints record.
 * NAME.of identifies the job: a line with the boot of its machine, one with the path in the job's
 * folder that is a link to the log. A log is removed when no checkpoint has its name and its job
 * has ended: on this boot of this machine the link shows that; of other jobs it is assumed when
 * nothing has been written for STALE_S.
 *
 * The folder belongs to the store's owner, who may put a link or a FIFO where root writes or reads.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "files_i.h"

#define OWNER	".of"
#define STALE_S	(30ll * 24 * 3600)

void files_log_path(char path[PATH_MAX], const struct store *s, const char *name)
{
	snprintf(path, PATH_MAX, "%s/logs%s%s", store_dir(s), *name ? "/" : "", name);
}

/* Can a process of that user reach the folder? Root always can. */
static bool can_reach(const char *dir, uid_t uid)
{
	char path[PATH_MAX];
	struct stat st;
	size_t n;

	if (!uid)
		return true;
	if (!realpath(dir, path))
		return false;
	for (n = strlen(path); n; n = files_folder(path, n)) {
		path[n] = '\0';
		if (stat(path, &st) || !(st.st_mode & (st.st_uid == uid ? 0100 : 01)))
			return false;
	}
	return true;
}

/* Writes NAME.of for files_gc(). Without it, the log only stays longer. */
static void note_owner(const struct store *s, const char *name, const char *log)
{
	char path[PATH_MAX + 8], boot[64];
	FILE *out;
	int fd;

	files_log_path(path, s, name);
	strcat(path, OWNER);
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out) {
		if (fd >= 0)
			close(fd);
		return;
	}
	files_boot(boot);
	fprintf(out, "%s\n%s\n", boot, log);
	fclose(out);
}

/* Opens a log for writing, if it is an ordinary file with no other name. -errno. */
static int open_log(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink == 1)
		return fd;
	close(fd);
	return -EPERM;
}

int files_log_link(const struct store *s, const char *name, const char *log, const char *text,
		   size_t len)
{
	char path[PATH_MAX], dir[PATH_MAX], temp[PATH_MAX + 8], *slash;
	struct stat st;
	int fd, err = 0;

	snprintf(dir, sizeof(dir), "%s", log);
	slash = strrchr(dir, '/');
	if (!slash)
		return -EINVAL;
	*slash = '\0';
	if (stat(dir, &st))
		return -errno;
	files_log_path(path, s, "");
	/* It belongs to the store's owner: others could give a restore another log. */
	if (!mkdir(path, 0711) && !geteuid() && chown(path, store_owner(s), -1))
		return -errno;
	if (!realpath(path, dir) || !can_reach(dir, st.st_uid))
		return -EACCES;
	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = open_log(path);
	if (fd < 0)
		return fd;
	errno = 0;
	if (fchown(fd, st.st_uid, st.st_gid) ||
	    (text && (ftruncate(fd, 0) || write(fd, text, len) != (ssize_t)len)))
		err = errno ? -errno : -ENOSPC;
	close(fd);
	snprintf(temp, sizeof(temp), "%s.new", log);
	if (!err && (unlink(temp), symlink(path, temp)))
		err = -errno;
	if (!err && rename(temp, log))
		err = -errno;
	if (!err)
		note_owner(s, name, log);
	return err;
}

/* -------------------------------------------------------------------------------- clean-up */

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

struct names {
	struct store *s;
	void *tree;
	int err;
};

/* The list begins "singvgpu-files 1\nboot …\nlog NAME\n". */
static int note_name(void *arg, const char *id, uint64_t time)
{
	struct names *n = arg;
	struct store_checkpoint *c = NULL;
	const struct store_ref *ref;
	struct store_reader *r = NULL;
	char text[512], name[32], *at, *copy, **node;
	ssize_t len = 0;

	(void)time;
	n->err = store_checkpoint_open(n->s, id, &c);
	ref = n->err ? NULL : store_checkpoint_find(c, FILES_PART);
	if (ref)
		n->err = store_object_open(n->s, ref, &r);
	if (r) {
		uint64_t size = store_size(r);

		len = store_read(r, 0, text, size < sizeof(text) - 1 ? size : sizeof(text) - 1);
		n->err = len < 0 ? len : 0;
		store_reader_close(r);
	}
	text[len > 0 ? len : 0] = '\0';
	at = strstr(text, "\nlog ");
	if (!n->err && at && sscanf(at, "\nlog %31[0-9a-f]", name) == 1) {
		copy = strdup(name);
		node = copy ? tsearch(copy, &n->tree, compare) : NULL;
		if (!node)
			n->err = -ENOMEM;
		if (!node || *node != copy)
			free(copy);
	}
	if (c)
		store_checkpoint_close(c);
	return n->err;
}

/* May a job still write to the log? */
static bool in_use(const struct store *s, const char *path)
{
	char owner[PATH_MAX + 8], boot[64], there[PATH_MAX], own[PATH_MAX], *note, *link = NULL;
	bool used = true;
	struct stat st;
	size_t len;

	snprintf(owner, sizeof(owner), "%s" OWNER, path);
	files_boot(boot);
	if (files_read(owner, O_NOFOLLOW, s, &note, &len))
		note = NULL;
	else
		link = strchr(note, '\n');
	if (link) {
		*link++ = '\0';
		link[strcspn(link, "\n")] = '\0';
	}
	if (link && *link && !strcmp(note, boot))
		used = realpath(path, own) && realpath(link, there) && !strcmp(own, there);
	else if (!lstat(path, &st))
		used = time(NULL) - st.st_mtim.tv_sec < STALE_S;
	free(note);
	return used;
}

static void drop(const char *path, struct files_gc_stats *st)
{
	char owner[PATH_MAX + 8];
	struct stat is;

	if (stat(path, &is) || unlink(path))
		return;		/* another user's, perhaps */
	st->freed += is.st_blocks * 512ull;
	st->logs++;
	snprintf(owner, sizeof(owner), "%s" OWNER, path);
	unlink(owner);
}

/* Collects the logs that no job writes to any more in a tree. -errno. */
static int collect(const struct store *s, void **idle)
{
	char dir[PATH_MAX], path[PATH_MAX], *copy, **node;
	struct dirent *e;
	int err = 0;
	DIR *d;

	files_log_path(dir, s, "");
	d = opendir(dir);
	if (!d)
		return errno == ENOENT ? 0 : -errno;
	while (!err && (e = readdir(d))) {
		if (strlen(e->d_name) != 16 || strspn(e->d_name, "0123456789abcdef") != 16)
			continue;
		files_log_path(path, s, e->d_name);
		if (in_use(s, path))
			continue;
		copy = strdup(e->d_name);
		node = copy ? tsearch(copy, idle, compare) : NULL;
		if (!node)
			err = -ENOMEM;
		if (!node || *node != copy)
			free(copy);
	}
	closedir(d);
	return err;
}

/* Jobs are checked first: one that has ended by then has all its checkpoints in the list. */
int files_gc(struct store *s, struct files_gc_stats *st)
{
	struct names n = { .s = s };
	char path[PATH_MAX], *name;
	void *idle = NULL;
	int err;

	memset(st, 0, sizeof(*st));
	err = collect(s, &idle);
	if (!err && idle)
		err = store_list(s, note_name, &n);
	err = n.err ?: err;
	while (idle) {
		name = *(char **)idle;
		files_log_path(path, s, name);
		if (!err && !tfind(name, &n.tree, compare))
			drop(path, st);
		tdelete(name, &idle, compare);
		free(name);
	}
	tdestroy(n.tree, free);
	return err;
}
