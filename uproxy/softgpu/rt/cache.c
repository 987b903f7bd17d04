// SPDX-License-Identifier: Apache-2.0
/*
 * cache.c - files of compiled kernels: the user's cache, and the machine's beside it
 *
 * A file is a struct cache_head, then the object; an invalid one is ignored, and replaced. The machine's
 * cache is written by root alone. It is read only while its folder and the file belong to root and
 * nobody else may write to them: its objects run in every user's proxies.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ptx_i.h"
#include "rt_cache.h"

#define NAME 48

struct cache {
	char *path;		/* NULL: none */
	bool machine;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cache written;	/* lock; read first */
static struct cache beside;	/* lock; read if the kernel is not in the other */

static int set(struct cache *c, const char *dir, bool machine)
{
	char *path = dir ? strdup(dir) : NULL;

	if (dir && !path)
		return -ENOMEM;
	pthread_mutex_lock(&lock);
	free(c->path);
	*c = (struct cache){ path, machine };
	pthread_mutex_unlock(&lock);
	return 0;
}

int ptx_set_cache(const char *dir)
{
	if (dir && mkdir(dir, 0700) && errno != EEXIST)
		return -errno;
	return set(&written, dir, false);
}

int ptx_set_machine_cache(const char *dir, bool write)
{
	char *user;
	int err;

	if (!write)
		return set(&beside, dir, true);
	if (mkdir(dir, 0755) && errno != EEXIST)
		return -errno;
	if (chmod(dir, 0755))
		return -errno;
	pthread_mutex_lock(&lock);
	user = written.path;
	written.path = NULL;
	pthread_mutex_unlock(&lock);
	err = set(&written, dir, true) ?: set(&beside, user, false);
	free(user);
	return err;
}

static bool roots_alone(int fd, mode_t type)
{
	struct stat st;

	return !fstat(fd, &st) && (st.st_mode & S_IFMT) == type && !st.st_uid &&
	       !(st.st_mode & (S_IWGRP | S_IWOTH));
}

/* The folder, or -1: there is none, or it is not to be trusted. */
static int open_folder(const struct cache *which, bool *machine)
{
	int fd = -1;

	pthread_mutex_lock(&lock);
	*machine = which->machine;
	if (which->path)
		fd = open(which->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (*machine ? O_NOFOLLOW : 0));
	pthread_mutex_unlock(&lock);
	if (fd >= 0 && *machine && !roots_alone(fd, S_IFDIR)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void file_name(XXH128_hash_t key, char name[NAME])
{
	snprintf(name, NAME, "%016llx%016llx.o", (unsigned long long)key.high64,
		 (unsigned long long)key.low64);
}

static XXH128_hash_t sum_of(const struct cache_head *h, size_t total)
{
	size_t off = offsetof(struct cache_head, info);

	return XXH3_128bits((const char *)h + off, total - off);
}

static struct cache_head *read_file(int fd, XXH128_hash_t key)
{
	struct cache_head *h = NULL;
	struct stat st;

	if (!fstat(fd, &st) && st.st_size >= (off_t)sizeof(*h) && st.st_size < 1 << 30)
		h = malloc(st.st_size);
	if (h && (read(fd, h, st.st_size) != st.st_size ||
		  memcmp(h->magic, CACHE_MAGIC, sizeof(h->magic)) || !XXH128_isEqual(h->key, key) ||
		  h->len != st.st_size - sizeof(*h) ||
		  !XXH128_isEqual(h->sum, sum_of(h, st.st_size)))) {
		free(h);
		h = NULL;
	}
	return h;
}

static struct cache_head *read_from(const struct cache *which, XXH128_hash_t key)
{
	struct cache_head *h = NULL;
	char name[NAME];
	bool machine;
	int dir = open_folder(which, &machine), fd;

	if (dir < 0)
		return NULL;
	file_name(key, name);
	fd = openat(dir, name, O_RDONLY | O_CLOEXEC | (machine ? O_NOFOLLOW | O_NONBLOCK : 0));
	if (fd >= 0 && (!machine || roots_alone(fd, S_IFREG)))
		h = read_file(fd, key);
	if (fd >= 0)
		close(fd);
	close(dir);
	return h;
}

static struct cache_head *make_head(XXH128_hash_t key, const struct ptx_kernel *k, const void *obj,
				    size_t len)
{
	struct cache_head *h = calloc(1, sizeof(*h) + len);

	if (!h)
		return NULL;
	memcpy(h->magic, CACHE_MAGIC, sizeof(h->magic));
	h->key = key;
	h->info = k->info;
	h->spins = k->spins;
	h->calls = k->calls;
	h->len = len;
	memcpy(h + 1, obj, len);
	h->sum = sum_of(h, sizeof(*h) + len);
	return h;
}

static bool write_file(XXH128_hash_t key, const struct cache_head *h)
{
	size_t total = sizeof(*h) + h->len;
	char name[NAME], fresh[NAME + 48];
	bool machine, ok = false;
	int dir = open_folder(&written, &machine), fd = -1;

	file_name(key, name);
	snprintf(fresh, sizeof(fresh), "%s.%d.%lx.tmp", name, getpid(),
		 (unsigned long)pthread_self());
	if (dir >= 0)
		fd = openat(dir, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd >= 0) {
		ok = write(fd, h, total) == (ssize_t)total && (!machine || !fchmod(fd, 0644));
		ok = !close(fd) && ok && !renameat(dir, fresh, dir, name);
		if (!ok)
			unlinkat(dir, fresh, 0);
	}
	if (dir >= 0)
		close(dir);
	return ok;
}

bool cache_write(XXH128_hash_t key, const struct ptx_kernel *k, const void *obj, size_t len)
{
	struct cache_head *h = make_head(key, k, obj, len);
	bool ok = h && write_file(key, h);

	free(h);
	return ok;
}

/* What root's own cache has is kept for all users, too. */
struct cache_head *cache_read(XXH128_hash_t key)
{
	struct cache_head *h = read_from(&written, key);
	bool machine;

	if (h)
		return h;
	h = read_from(&beside, key);
	pthread_mutex_lock(&lock);
	machine = written.machine;
	pthread_mutex_unlock(&lock);
	if (h && machine)
		write_file(key, h);
	return h;
}
