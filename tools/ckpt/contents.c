// SPDX-License-Identifier: Apache-2.0
/*
 * contents.c - digests of whole files, kept from one checkpoint or restore to the next
 *
 * A job has mapped up to gigabytes of libraries, all of which are read for their digests. So a digest is
 * kept as long as the file is the same: device, inode, size and both times, of which no user can set the second.
 * A file that was written less than two seconds ago is not kept,
 * since a file system's times are coarse. Only root has kept_path, and believes it;
 * others read the files each time. The file is in /run, since numbers of devices are a boot's.
 *
 *     singvgpu-contents 1
 *     DEV INODE SIZE MTIME CTIME DIGEST      one line a file, the newest last; times in ns
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "ckpt_i.h"

static const char kept_path[] = "/run/singvgpu.contents";
static const char title[] = "singvgpu-contents 1\n";

#define CHUNK		(1u << 20)
#define FILES_MAX	8192
#define KEPT_MAX	(2l << 20)	/* bytes of kept_path */
#define SETTLED_NS	2000000000ll

struct file {
	uint64_t dev, ino, size;
	int64_t mtime, ctime;
	char digest[CKPT_DIGEST];
};

struct ckpt_contents {
	struct file *file;
	int n, kept;		/* the first `kept` were in kept_path */
	bool (*stop)(void *arg);	/* or NULL */
	void *arg;
};

static int64_t ns(const struct timespec *t)
{
	return t->tv_sec * 1000000000ll + t->tv_nsec;
}

static void identify(const struct stat *st, struct file *f)
{
	memset(f, 0, sizeof(*f));
	f->dev = st->st_dev;
	f->ino = st->st_ino;
	f->size = st->st_size;
	f->mtime = ns(&st->st_mtim);
	f->ctime = ns(&st->st_ctim);
}

static bool same(const struct file *a, const struct file *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime == b->mtime &&
	       a->ctime == b->ctime;
}

/* ------------------------------------------------------------------------------ kept */

static void add(struct ckpt_contents *c, const struct file *f)
{
	struct file *more = realloc(c->file, (c->n + 1) * sizeof(*more));

	if (!more)
		return;		/* it is read again, then */
	c->file = more;
	more[c->n++] = *f;
}

static FILE *open_kept(void)
{
	int fd = geteuid() ? -1 : open(kept_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	FILE *in = NULL;

	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && !st.st_uid &&
	    !(st.st_mode & 022) && st.st_size <= KEPT_MAX)
		in = fdopen(fd, "r");
	if (!in && fd >= 0)
		close(fd);
	return in;
}

/* A line of kept_path. sscanf would take five times as long, for thousands of them at each checkpoint. */
static bool parse_file(const char *line, struct file *f)
{
	char *end;

	f->dev = strtoul(line, &end, 10);
	f->ino = strtoul(end, &end, 10);
	f->size = strtoul(end, &end, 10);
	f->mtime = strtol(end, &end, 10);
	f->ctime = strtol(end, &end, 10);
	if (*end != ' ' || strlen(end + 1) != CKPT_DIGEST || end[CKPT_DIGEST] != '\n')
		return false;
	memcpy(f->digest, end + 1, CKPT_DIGEST - 1);
	f->digest[CKPT_DIGEST - 1] = 0;
	return true;
}

struct ckpt_contents *ckpt_contents_open(bool (*stop)(void *arg), void *arg)
{
	struct ckpt_contents *c = calloc(1, sizeof(*c));
	FILE *in = c ? open_kept() : NULL;
	char line[256];
	struct file f;

	if (in && fgets(line, sizeof(line), in) && !strcmp(line, title))
		while (c->n < FILES_MAX && fgets(line, sizeof(line), in) && parse_file(line, &f))
			add(c, &f);
	if (in)
		fclose(in);
	if (c) {
		c->kept = c->n;
		c->stop = stop;
		c->arg = arg;
	}
	return c;
}

/* Two at once: the last one's remains, and the other's is read again. */
static void keep(const struct ckpt_contents *c)
{
	char fresh[sizeof(kept_path) + 8];
	int fd, from = c->n > FILES_MAX ? c->n - FILES_MAX : 0;
	FILE *out;

	snprintf(fresh, sizeof(fresh), "%s.XXXXXX", kept_path);
	fd = mkostemp(fresh, O_CLOEXEC);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out) {
		if (fd >= 0)
			close(fd);
		return;
	}
	fputs(title, out);
	for (int i = from; i < c->n; i++)
		fprintf(out, "%lu %lu %lu %ld %ld %s\n", c->file[i].dev, c->file[i].ino,
			c->file[i].size, c->file[i].mtime, c->file[i].ctime, c->file[i].digest);
	if (fclose(out) || rename(fresh, kept_path))
		unlink(fresh);
}

void ckpt_contents_close(struct ckpt_contents *c)
{
	if (c && c->n > c->kept && !geteuid())
		keep(c);
	if (c)
		free(c->file);
	free(c);
}

/* ------------------------------------------------------------------------------ digests */

static int read_all(const struct ckpt_contents *c, int fd, char digest[CKPT_DIGEST])
{
	XXH3_state_t *x = XXH3_createState();
	uint8_t *buf = malloc(CHUNK);
	XXH128_hash_t h;
	ssize_t n = x && buf ? 1 : -1;
	off_t at = 0;
	int err = n < 0 ? -ENOMEM : 0;

	if (!err)
		XXH3_128bits_reset(x);
	while (!err && (n = pread(fd, buf, CHUNK, at)) != 0) {
		if (n < 0 && errno != EINTR)
			err = -errno;
		if (n < 0)
			continue;
		XXH3_128bits_update(x, buf, n);
		at += n;
		if (c->stop && c->stop(c->arg))
			err = -ECANCELED;
	}
	if (!err) {
		h = XXH3_128bits_digest(x);
		snprintf(digest, CKPT_DIGEST, "xxh3:%016llx%016llx", (unsigned long long)h.high64,
			 (unsigned long long)h.low64);
	}
	XXH3_freeState(x);
	free(buf);
	return err;
}

int ckpt_contents_digest(struct ckpt_contents *c, int fd, char digest[CKPT_DIGEST])
{
	struct timespec now;
	struct stat st;
	struct file f, after;
	int err;

	if (fstat(fd, &st))
		return -errno;
	identify(&st, &f);
	for (int i = c->n - 1; i >= 0; i--)
		if (same(&c->file[i], &f)) {
			strcpy(digest, c->file[i].digest);
			return 0;
		}
	clock_gettime(CLOCK_REALTIME, &now);
	err = read_all(c, fd, f.digest);
	if (err)
		return err;
	strcpy(digest, f.digest);
	if (!fstat(fd, &st)) {
		identify(&st, &after);
		if (same(&f, &after) && ns(&now) - f.ctime > SETTLED_NS)
			add(c, &f);
	}
	return 0;
}
