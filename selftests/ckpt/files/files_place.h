/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_place.h - for tests of a job's files: a store, a job's folder and log, programs in it, and what came of them
 */
#ifndef SELFTESTS_CKPT_FILES_PLACE_H
#define SELFTESTS_CKPT_FILES_PLACE_H

#pragma GCC diagnostic ignored "-Wunused-function"

#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <linux/fs.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <sys/xattr.h>

#include "files.h"

#define STAMP "singvgpu-test"

/* ------------------------------------------------------------------------- trees of files */

struct node {
	char path[512];		/* below the root, with a slash in front */
	char target[256];
	mode_t mode;
	int64_t mtime, size;
	uint64_t hash, attr, ino;
	uid_t uid;
	gid_t gid;
};

struct tree {
	struct node *node;
	size_t n, root;
};

static struct tree *walked;

static uint64_t hash_file(const char *path)
{
	uint64_t h = 14695981039346656037ull;
	static unsigned char buf[1 << 16];
	int fd = open(path, O_RDONLY | O_NOFOLLOW);
	ssize_t n;

	while (fd >= 0 && (n = read(fd, buf, sizeof(buf))) > 0)
		for (ssize_t i = 0; i < n; i++)
			h = (h ^ buf[i]) * 1099511628211ull;
	close(fd);
	return h;
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	struct tree *t = walked;
	char names[256];
	struct node *n;
	ssize_t len;

	(void)type;
	if (!ftw->level)
		return 0;
	if (t->n % 256 == 0)
		t->node = realloc(t->node, (t->n + 256) * sizeof(*n));
	n = &t->node[t->n++];
	memset(n, 0, sizeof(*n));
	snprintf(n->path, sizeof(n->path), "%s", path + t->root);
	n->mode = st->st_mode;
	n->uid = st->st_uid;
	n->gid = st->st_gid;
	n->mtime = st->st_mtim.tv_sec * 1000000000ll + st->st_mtim.tv_nsec;
	n->ino = st->st_ino;
	if (S_ISREG(n->mode)) {
		n->size = st->st_size;
		n->hash = hash_file(path);
		for (int i = 0; i < 2; i++) {
			len = lgetxattr(path, i ? "user.b" : "user.a", names, sizeof(names));
			for (ssize_t j = 0; j < len; j++)
				n->attr = n->attr * 31 + names[j] + i;
			n->attr = n->attr * 31 + len + 2;
		}
	}
	if (S_ISLNK(n->mode) && readlink(path, n->target, sizeof(n->target) - 1) < 0)
		return -1;
	return 0;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct node *)a)->path, ((const struct node *)b)->path);
}

static struct tree tree_of(const char *root)
{
	struct tree t = { .root = strlen(root) };

	walked = &t;
	nftw(root, visit, 30, FTW_PHYS);
	if (t.n)
		qsort(t.node, t.n, sizeof(*t.node), by_path);
	return t;
}

static struct node *find(const struct tree *t, const char *path)
{
	struct node key;

	snprintf(key.path, sizeof(key.path), "%s", path);
	return t->n ? bsearch(&key, t->node, t->n, sizeof(key), by_path) : NULL;
}

/* Is a the same as b, both perhaps NULL? times: those of folders too. */
static bool same(const struct node *a, const struct node *b, bool times)
{
	if (!a || !b)
		return a == b;
	return a->mode == b->mode && a->uid == b->uid && a->gid == b->gid && !strcmp(a->target, b->target) &&
	       a->size == b->size && a->hash == b->hash && a->attr == b->attr &&
	       ((S_ISDIR(a->mode) && !times) || a->mtime == b->mtime);
}

/* ---------------------------------------------------------------------------- a test's place */

struct place {
	char dir[64], root[96], log[96], store[96], copy[96], preload[512], random[512];
	struct store *s;
};

static void place_open(struct place *p, const char *base)
{
	const char *b = getenv("SINGVGPU_BUILD");
	char *cwd = getcwd(NULL, 0);
	struct why why = { 0 };

	snprintf(p->dir, sizeof(p->dir), "%s/svback.XXXXXX", base);
	if (!mkdtemp(p->dir))
		exit(KSFT_FAIL);
	snprintf(p->root, sizeof(p->root), "%s/root", p->dir);
	snprintf(p->store, sizeof(p->store), "%s/store", p->dir);
	snprintf(p->log, sizeof(p->log), "%s/run", p->dir);
	mkdir(p->root, 0755);
	mkdir(p->log, 0755);
	strcat(p->log, "/files");
	close(open(p->log, O_CREAT | O_WRONLY, 0600));
	snprintf(p->preload, sizeof(p->preload), "%s/%s/lib/libsingvgpu-files.so", cwd,
		 b ? b : "build");
	/* A sanitizer's program does not go with the library; this one's has none. */
	snprintf(p->random, sizeof(p->random), "%s/build/selftests/ckpt/files-random", cwd);
	if (access(p->preload, R_OK))
		snprintf(p->preload, sizeof(p->preload), "%s/build/lib/libsingvgpu-files.so", cwd);
	free(cwd);
	if (store_create(p->store, NULL, &why) || store_open(&p->s, p->store, STORE_RW, &why)) {
		printf("# %s\n", why.text);
		exit(KSFT_FAIL);
	}
}

static int away(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path) && errno != ENOENT;
}

static void place_close(struct place *p)
{
	store_close(p->s);
	nftw(p->dir, away, 30, FTW_PHYS | FTW_DEPTH);
}

/* A program in the root, under the library (job) or not (the user). */
static void program(struct place *p, bool job, const char *fmt, ...)
{
	char command[1024];
	va_list ap;
	int status;
	pid_t pid;

	va_start(ap, fmt);
	vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		int null = open("/dev/null", O_RDWR);

		if (chdir(p->root))
			_exit(1);
		for (int i = 0; i < 3; i++)
			dup2(null, i);
		unsetenv("LD_PRELOAD");
		if (job) {
			setenv("LD_PRELOAD", p->preload, 1);
			setenv("SINGVGPU_FILES", p->log, 1);
		}
		setenv("RANDOM_JOB", p->random, 1);
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(1);
	}
	waitpid(pid, &status, 0);
}

static store_progress meanwhile;	/* of the next save; or NULL */

static int save_of(struct place *p, const char *former, const pid_t *pids, size_t n,
		   char id[STORE_ID], struct files_save *f)
{
	const char *skip[] = { "/tmp/missing", p->store, NULL };
	struct store_checkpoint *was = NULL;
	struct store_writer *w;
	int err;

	*f = (struct files_save){ .log = p->log, .pids = pids, .n_pids = n, .skip = skip, .progress = meanwhile, .arg = p };
	if (former && store_checkpoint_open(p->s, former, &was))
		return -ENOENT;
	f->former = was;
	err = store_writer_open(p->s, 0, &w);
	if (err)
		return err;
	err = files_save(f, p->s, w) ?: store_writer_flush(w) ?:
	      store_publish(p->s, f->parts, f->n_parts, "{}", id);
	if (err)
		printf("# save: %s; %s; %s\n", strerror(-err), f->why.text, store_why()->text);
	store_writer_close(w);
	files_save_free(f);
	store_checkpoint_close(was);
	return err;
}

static int save(struct place *p, const char *former, char id[STORE_ID])
{
	struct files_save f;

	return save_of(p, former, NULL, 0, id, &f);
}

/* The caller frees b. */
static int back(struct place *p, const char *id, struct files_back *b)
{
	int err;

	b->store = p->s;
	b->log = p->log;
	b->stamp = STAMP;
	if (store_checkpoint_open(p->s, id, &b->checkpoint))
		return -ENOENT;
	err = files_put_back(b);
	store_checkpoint_close(b->checkpoint);
	return err;
}

static int put_back(struct place *p, const char *id, bool later)
{
	struct files_back b = { .later = later ? p->log : NULL };
	int err = back(p, id, &b);

	if (err)
		printf("# put back: %s: %s\n", strerror(-err), b.why.text);
	files_back_free(&b);
	return err;
}

static void write_to(const struct place *p, const char *name, const char *text)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", p->root, name);
	fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		printf("# %s: %m\n", path);
	close(fd);
}

static bool has(const struct place *p, const char *name, const char *text)
{
	char path[512], got[256] = "";
	int fd;
	ssize_t n;

	snprintf(path, sizeof(path), "%s/%s", p->root, name);
	fd = open(path, O_RDONLY);
	n = fd < 0 ? -1 : read(fd, got, sizeof(got) - 1);
	close(fd);
	if (n < 0 || strcmp(got, text)) {
		printf("# %s has '%s'%s\n", name, got, n < 0 ? " (is not there)" : "");
		return false;
	}
	return true;
}

static bool is_there(const struct place *p, const char *name)
{
	struct stat st;
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", p->root, name);
	return !lstat(path, &st);
}

/* A process that has what we have open and mapped, but our stdout. The caller kills it. */
static pid_t holder(void)
{
	int ready[2];
	pid_t pid;
	char c;

	if (pipe(ready))
		abort();
	pid = fork();
	if (!pid) {
		int null = open("/dev/null", O_RDWR);

		for (int i = 0; i < 3; i++)
			dup2(null, i);	/* one may be a log, which is a file open for writing, too */
		close(ready[0]);
		close(ready[1]);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &c, 1))
		abort();
	close(ready[0]);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int open_in(const struct place *p, const char *name, int flags)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", p->root, name);
	return open(path, flags | O_CLOEXEC, 0644);
}

static struct node node_of(const struct place *p, const char *path)
{
	struct tree t = tree_of(p->root);
	struct node *n = find(&t, path), is = n ? *n : (struct node){ .size = -1 };

	free(t.node);
	return is;
}

#endif
