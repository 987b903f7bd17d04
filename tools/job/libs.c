// SPDX-License-Identifier: Apache-2.0
/*
 * libs.c - copies of the stand-ins that jobs preload, in folders that never change: CACHE/lib/HASH
 *
 * A restore needs the libraries that a job has mapped, byte for byte, whatever has been installed
 * or built since. So jobs get a copy that is named after its contents. CACHE is
 * $XDG_CACHE_HOME/singvgpu, else /var/cache/singvgpu (root) or ~/.cache/singvgpu.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "libs.h"

/* Files to copy, as far as they exist, with init beside them; and links to make. */
static const char *const names[] = { "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2",
	"libsingvgpu-files.so", "libsingvgpu-rtc.so", "libsingvgpu-clock.so" };
static const char *const links[] = { "libcuda.so", "libnvidia-ml.so", "libnccl.so" };

#define INIT_NAME "singvgpu-init"
#define SOURCES	(sizeof(names) / sizeof(names[0]) + 1)

/* The folder of all copies. 0, -ENOENT or -ENAMETOOLONG. */
static int libs_base(char *path, size_t size)
{
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	int n;

	if (xdg && *xdg == '/')
		n = snprintf(path, size, "%s/singvgpu/lib", xdg);
	else if (!geteuid())
		n = snprintf(path, size, "/var/cache/singvgpu/lib");
	else if (home && *home == '/')
		n = snprintf(path, size, "%s/.cache/singvgpu/lib", home);
	else
		return -ENOENT;
	return n < (int)size ? 0 : -ENAMETOOLONG;
}

/* Makes path and its parents; only we may have the right to write to path. */
static int make_dirs(const char *path)
{
	char at[PATH_MAX];
	struct stat st;

	snprintf(at, sizeof(at), "%s", path);
	for (char *p = at + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = 0;
		if (mkdir(at, 0755) && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	if (mkdir(at, 0755) && errno != EEXIST)
		return -errno;
	if (stat(at, &st))
		return -errno;
	return st.st_uid != geteuid() || st.st_mode & 022 ? -EPERM : 0;
}

static int hash_file(XXH3_state_t *h, const char *path)
{
	char buf[65536];
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		XXH3_128bits_update(h, buf, n);
	close(fd);
	return n < 0 ? -EIO : 0;
}

struct source {
	char path[PATH_MAX];
	const char *name;
};

/* Hashes the name and the contents of each source, with a 0 byte behind each. */
static int hash_all(const struct source *s, int n, char hex[33])
{
	XXH3_state_t *h = XXH3_createState();
	XXH128_canonical_t c;
	int err = h ? 0 : -ENOMEM;

	if (h)
		XXH3_128bits_reset(h);
	for (int i = 0; i < n && !err; i++) {
		XXH3_128bits_update(h, s[i].name, strlen(s[i].name) + 1);
		err = hash_file(h, s[i].path);
		XXH3_128bits_update(h, "", 1);
	}
	if (!err) {
		XXH128_canonicalFromHash(&c, XXH3_128bits_digest(h));
		for (int i = 0; i < 16; i++)
			sprintf(hex + 2 * i, "%02x", c.digest[i]);
	}
	XXH3_freeState(h);
	return err;
}

static int sources(const struct places *p, const char *dir, struct source *s)
{
	int n = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		s[n].name = names[i];
		snprintf(s[n].path, PATH_MAX, "%s/%s", dir ?: p->libdir, names[i]);
		n += !access(s[n].path, R_OK);
	}
	s[n].name = INIT_NAME;
	if (dir)
		snprintf(s[n].path, PATH_MAX, "%s/" INIT_NAME, dir);
	else
		snprintf(s[n].path, PATH_MAX, "%s", p->init);
	return n + !access(s[n].path, R_OK);
}

static int copy(const char *from, int dir, const char *name)
{
	int in = open(from, O_RDONLY | O_CLOEXEC), out = -1, err = 0;
	struct stat st;
	off_t at = 0;

	if (in >= 0)
		out = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
	if (in < 0 || out < 0 || fstat(in, &st))
		err = -errno;
	while (!err && at < st.st_size)
		if (sendfile(out, in, &at, st.st_size - at) <= 0)
			err = -errno ?: -EIO;
	if (!err && fsync(out))
		err = -errno;
	if (in >= 0)
		close(in);
	if (out >= 0)
		close(out);
	return err;
}

static void remove_flat(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(path);
}

static int fill(const char *path, const struct source *s, int n)
{
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	char target[64];

	if (dir < 0)
		return -errno;
	for (int i = 0; i < n && !err; i++)
		err = copy(s[i].path, dir, s[i].name);
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]) && !err; i++) {
		snprintf(target, sizeof(target), "%s.1", links[i]);
		if (!faccessat(dir, target, F_OK, 0) && symlinkat(target, dir, links[i]))
			err = -errno;
	}
	close(dir);
	return err;
}

/* Copies the sources to path, all or nothing. */
static int install(const char *path, const struct source *s, int n)
{
	char fresh[PATH_MAX];
	int err;

	if (snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path) >= (int)sizeof(fresh))
		return -ENAMETOOLONG;
	if (!mkdtemp(fresh) || chmod(fresh, 0755))
		return -errno;
	err = fill(fresh, s, n);
	if (!err && rename(fresh, path))
		err = errno == ENOTEMPTY || errno == EEXIST ? 0 : -errno;
	if (err || !access(fresh, F_OK))
		remove_flat(fresh);
	return err;
}

/* Renames a damaged copy, which jobs may have mapped. */
static int put_aside(const char *path)
{
	char aside[PATH_MAX];

	if (snprintf(aside, sizeof(aside), "%s.damaged.XXXXXX", path) >= (int)sizeof(aside))
		return -ENAMETOOLONG;
	if (!mkdtemp(aside) || rmdir(aside) || rename(path, aside))
		return -errno;
	return 0;
}

static int make(const struct places *p, char *path, size_t size)
{
	struct source s[SOURCES], mine[SOURCES];
	char base[PATH_MAX - 64], hex[33], have[33] = "";
	struct statvfs fs;
	int n, err = libs_base(base, sizeof(base));

	n = sources(p, NULL, s);
	err = err ?: make_dirs(base);
	err = err ?: hash_all(s, n, hex);
	if (err)
		return err;
	if (strpbrk(base, " :;") || statvfs(base, &fs) || fs.f_flag & ST_NOEXEC)
		return -EACCES;
	snprintf(path, size, "%s/%s", base, hex);
	if (access(path, F_OK))
		return install(path, s, n);
	if (!hash_all(mine, sources(p, path, mine), have) && !strcmp(have, hex))
		return 0;
	return put_aside(path) ?: install(path, s, n);
}

/* ---------------------------------------------------------------------------- put back */

int libs_may_put(const char *dir, const char *name)
{
	const char *hash = strrchr(dir, '/');
	char base[PATH_MAX];
	bool known = !strcmp(name, INIT_NAME);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		known |= !strcmp(name, names[i]);
	if (!known || !hash || strlen(hash + 1) != 32 ||
	    strspn(hash + 1, "0123456789abcdef") != 32 || libs_base(base, sizeof(base)) ||
	    strlen(base) != (size_t)(hash - dir) || strncmp(base, dir, hash - dir))
		return -EPERM;
	return 0;
}

/* Opens the folder of a copy, made if it is missing. Only we may have the right to write there. */
static int open_copy(const char *dir)
{
	char base[PATH_MAX];
	struct stat st;
	int all, fd, err = libs_base(base, sizeof(base)) ?: make_dirs(base);

	if (err)
		return err;
	all = open(base, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (all < 0)
		return -errno;
	dir = strrchr(dir, '/') + 1;
	if (mkdirat(all, dir, 0755) && errno != EEXIST)
		err = -errno;
	fd = err ?: openat(all, dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (!err && (fd < 0 || fstat(fd, &st)))
		err = -errno;
	else if (!err && (st.st_uid != geteuid() || st.st_mode & 022))
		err = -EPERM;
	close(all);
	if (err && fd >= 0)
		close(fd);
	return err ?: fd;
}

static int write_new(int dir, const char *name, const char *data, size_t len)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0755);
	int err = fd < 0 ? -errno : 0;

	for (ssize_t n; !err && len; data += n, len -= n) {
		n = write(fd, data, len);
		if (n <= 0)
			err = n ? -errno : -ENOSPC;
	}
	if (!err && fchmod(fd, 0755))
		err = -errno;
	if (fd >= 0 && close(fd) && !err)
		err = -errno;
	return err;
}

int libs_put(const char *dir, const char *name, const void *data, size_t len)
{
	int fd, err = libs_may_put(dir, name);
	char fresh[64];

	if (err)
		return err;
	fd = open_copy(dir);
	if (fd < 0)
		return fd;
	snprintf(fresh, sizeof(fresh), "%s.new", name);
	unlinkat(fd, fresh, 0);
	err = write_new(fd, fresh, data, len);
	if (!err && renameat(fd, fresh, fd, name))
		err = -errno;
	close(fd);
	return err;
}

void libs_keep(struct places *p)
{
	char path[PATH_MAX], init[PATH_MAX + 16];
	char *libdir, *prog;

	if (p->given || make(p, path, sizeof(path)))
		return;
	snprintf(init, sizeof(init), "%s/" INIT_NAME, path);
	libdir = strdup(path);
	prog = strdup(init);
	if (!libdir || !prog || access(init, X_OK)) {
		free(libdir);
		free(prog);
		return;
	}
	free(p->libdir);
	free(p->init);
	p->libdir = libdir;
	p->init = prog;
}
