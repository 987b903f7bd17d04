// SPDX-License-Identifier: Apache-2.0
/*
 * sparse.c - finds the parts of a mapped file that hold data, by its holes
 *
 * Reading a hole of a shared mapping would fill it with pages. Memory that is not a mapping of a
 * file for which we have a descriptor counts as data.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "content_i.h"

struct file {
	dev_t dev;
	ino_t ino;
	int fd;
};

struct mapping {
	uint64_t at, end, off;
	int fd;
};

struct sparse {
	struct file *file;
	size_t files;
	struct mapping *map;	/* ascending */
	size_t maps;
};

static void *grow(void *p, size_t n, size_t size)
{
	return n & (n - 1) || (n && n < 16) ? p : realloc(p, (n ? n * 2 : 16) * size);
}

static int find_files(struct sparse *s, int own)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	struct stat st;
	void *p;

	if (!d)
		return -errno;
	while ((e = readdir(d))) {
		int fd = atoi(e->d_name);

		if (e->d_name[0] == '.' || fd == dirfd(d) || fstat(fd, &st) ||
		    (!S_ISREG(st.st_mode) && fd != own))
			continue;
		p = grow(s->file, s->files, sizeof(*s->file));
		if (!p)
			break;
		s->file = p;
		s->file[s->files++] = (struct file){ st.st_dev, st.st_ino, fd };
	}
	closedir(d);
	return e ? -ENOMEM : 0;
}

static int descriptor(const struct sparse *s, dev_t dev, ino_t ino)
{
	for (size_t i = 0; i < s->files; i++)
		if (s->file[i].ino == ino && s->file[i].dev == dev)
			return s->file[i].fd;
	return -1;
}

static int find_mappings(struct sparse *s)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char *line = NULL, shared;
	size_t cap = 0;
	int rc = 0;

	if (!f)
		return -errno;
	while (!rc && getline(&line, &cap, f) > 0) {
		unsigned long long at, end, off, ino;
		unsigned int major, minor;
		void *p;
		int fd;

		if (sscanf(line, "%llx-%llx %*c%*c%*c%c %llx %x:%x %llu", &at, &end, &shared, &off,
			   &major, &minor, &ino) != 7 || shared != 's')
			continue;
		fd = descriptor(s, makedev(major, minor), ino);
		if (fd < 0)
			continue;
		p = grow(s->map, s->maps, sizeof(*s->map));
		if (!p)
			rc = -ENOMEM;
		else
			(s->map = p)[s->maps++] = (struct mapping){ at, end, off, fd };
	}
	free(line);
	fclose(f);
	return rc;
}

struct sparse *sparse_open(int own)
{
	struct sparse *s = calloc(1, sizeof(*s));

	if (s && (find_files(s, own) || find_mappings(s)))
		s->maps = 0;		/* everything counts as data */
	return s;
}

void sparse_close(struct sparse *s)
{
	if (!s)
		return;
	free(s->file);
	free(s->map);
	free(s);
}

/* The first mapping that ends behind at. */
static const struct mapping *mapping_at(const struct sparse *s, uint64_t at)
{
	size_t lo = 0, hi = s->maps;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (s->map[mid].end <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < s->maps ? &s->map[lo] : NULL;
}

bool sparse_next(struct sparse *s, uint64_t va, uint64_t end, uint64_t *from, uint64_t *to)
{
	while (va < end) {
		const struct mapping *m = mapping_at(s, va);
		uint64_t stop;
		off_t data, hole;

		if (!m || m->at > va) {
			*from = va;
			*to = m && m->at < end ? m->at : end;
			return true;
		}
		stop = m->end < end ? m->end : end;
		data = lseek(m->fd, m->off + (va - m->at), SEEK_DATA);
		if (data < 0 && errno != ENXIO)
			data = m->off + (va - m->at);
		if (data < 0 || (uint64_t)data >= m->off + (stop - m->at)) {
			va = stop;
			continue;
		}
		hole = lseek(m->fd, data, SEEK_HOLE);
		*from = m->at + (data - m->off);
		*to = hole < 0 || (uint64_t)hole > m->off + (stop - m->at) ? stop :
		      m->at + (hole - m->off);
		return true;
	}
	return false;
}

int sparse_file(const struct sparse *s, uint64_t va, uint64_t len, uint64_t *off)
{
	const struct mapping *m = mapping_at(s, va);

	if (!m || m->at > va || m->end < va + len)
		return -1;
	*off = m->off + (va - m->at);
	return m->fd;
}
