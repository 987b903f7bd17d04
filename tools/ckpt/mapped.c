// SPDX-License-Identifier: Apache-2.0
/*
 * mapped.c - records the programs, libraries and data files that a job has mapped, and checks that
 * they are the same at the restore
 *
 * CRIU maps them again from their paths. The identity of a program or library is the digest of its contents: two
 * builds may have one build id. That of data is its size, since some of it changes while it is mapped (the caches
 * of name services). Files that the job itself has changed are in the checkpoint (files/), and not here. Older
 * checkpoints have the build id, where there is one.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_i.h"

/* ---------------------------------------------------------------------------- identity */

static bool note_id(const uint8_t *at, uint64_t len, char *id, size_t size)
{
	while (len >= sizeof(Elf64_Nhdr)) {
		Elf64_Nhdr n;
		uint64_t name, all;

		memcpy(&n, at, sizeof(n));
		name = (n.n_namesz + 3ull) & ~3ull;
		all = sizeof(n) + name + ((n.n_descsz + 3ull) & ~3ull);
		if (all > len)
			return false;
		if (n.n_type == NT_GNU_BUILD_ID && n.n_namesz == 4 &&
		    !memcmp(at + sizeof(n), "GNU", 4) && n.n_descsz >= 8 && n.n_descsz <= 20) {
			int used = snprintf(id, size, "build:");

			for (uint32_t i = 0; i < n.n_descsz; i++)
				used += snprintf(id + used, size - used, "%02x",
						 at[sizeof(n) + name + i]);
			return true;
		}
		at += all;
		len -= all;
	}
	return false;
}

static bool read_at(int fd, void *to, size_t len, uint64_t off)
{
	return pread(fd, to, len, off) == (ssize_t)len;
}

static bool is_elf(int fd, Elf64_Ehdr *e)
{
	return read_at(fd, e, sizeof(*e), 0) && !memcmp(e->e_ident, ELFMAG, SELFMAG) &&
	       e->e_ident[EI_CLASS] == ELFCLASS64;
}

static bool build_id(int fd, char *id, size_t size)
{
	uint8_t note[4096];
	Elf64_Ehdr e;
	Elf64_Phdr p;

	if (!is_elf(fd, &e))
		return false;
	for (int i = 0; i < e.e_phnum; i++) {
		if (!read_at(fd, &p, sizeof(p), e.e_phoff + i * sizeof(p)))
			return false;
		if (p.p_type == PT_NOTE && p.p_filesz <= sizeof(note) &&
		    read_at(fd, note, p.p_filesz, p.p_offset) &&
		    note_id(note, p.p_filesz, id, size))
			return true;
	}
	return false;
}

/* The identity of an open file, of like's kind unless like is NULL. */
static int identity_of(int fd, bool code, const char *like, struct ckpt_contents *c, char *id,
		       size_t size)
{
	_Static_assert(sizeof(((struct ckpt_mapped *)0)->identity) >= CKPT_DIGEST, "room");
	Elf64_Ehdr e;

	strcpy(id, "size");
	if (like && !strncmp(like, "build:", 6) && build_id(fd, id, size))
		return 0;
	if (like ? !strncmp(like, "xxh3:", 5) : code || is_elf(fd, &e))
		return ckpt_contents_digest(c, fd, id);
	return 0;
}

static int identify(const char *path, bool code, const char *like, struct ckpt_contents *c,
		    struct ckpt_mapped *m)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), err = 0;
	struct stat s;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &s))
		err = -errno;
	else if (!S_ISREG(s.st_mode))
		err = -ENOENT;
	m->size = err ? 0 : s.st_size;
	err = err ?: identity_of(fd, code, like, c, m->identity, sizeof(m->identity));
	close(fd);
	return err;
}

/* --------------------------------------------------------------------------- collecting */

struct seen {
	char *path;
	bool code, shared;	/* a mapping is executable; a mapping is shared and writable */
};

static int see(struct seen **list, int *n, char *path, const char *perms)
{
	struct seen *more;
	int i;

	for (i = *n - 1; i >= 0 && strcmp((*list)[i].path, path); i--)
		;
	if (i < 0) {
		more = realloc(*list, (*n + 1) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		*list = more;
		i = (*n)++;
		more[i] = (struct seen){ .path = strdup(path) };
		if (!more[i].path)
			return -ENOMEM;
	}
	(*list)[i].code |= perms[2] == 'x';
	(*list)[i].shared |= perms[1] == 'w' && perms[3] == 's';
	return 0;
}

/* True: path names a file that a restore can find again. The kernel shows a memfd as deleted. */
static bool lasting(const char *path)
{
	const char *end = strrchr(path, ' ');

	if (*path != '/' || !strncmp(path, "/dev/", 5))
		return false;
	return !end || strcmp(end, " (deleted)");
}

static int see_process(struct seen **list, int *n, pid_t pid)
{
	char name[32], perms[8], *line = NULL;
	size_t size = 0;
	ssize_t len;
	int err = 0, at;
	FILE *in;

	snprintf(name, sizeof(name), "/proc/%d/maps", pid);
	in = fopen(name, "re");
	if (!in)
		return errno == ENOENT ? 0 : -errno;	/* the process has ended */
	while (!err && (len = getline(&line, &size, in)) > 0) {
		if (line[len - 1] == '\n')
			line[len - 1] = 0;
		at = 0;
		if (sscanf(line, "%*x-%*x %7s %*x %*s %*u %n", perms, &at) == 1 && at &&
		    lasting(line + at))
			err = see(list, n, line + at, perms);
	}
	free(line);
	fclose(in);
	return err;
}

int ckpt_mapped(const pid_t *pids, int n, struct ckpt_facts *f, bool (*stop)(void *arg), void *arg, struct why *why)
{
	struct ckpt_contents *c = ckpt_contents_open(stop, arg);
	struct seen *list = NULL;
	int seen = 0, err = c ? 0 : -ENOMEM;

	for (int i = 0; i < n && !err; i++)
		err = see_process(&list, &seen, pids[i]);
	f->mapped = err ? NULL : calloc(seen + 1, sizeof(*f->mapped));
	if (!err && !f->mapped)
		err = -ENOMEM;
	for (int i = 0; i < seen; i++) {
		struct ckpt_mapped *m = err ? NULL : &f->mapped[f->mappeds];
		int found = m && !list[i].shared ? identify(list[i].path, list[i].code, NULL, c, m) : -ENOENT;

		if (found == -ECANCELED)
			err = found;
		/* A file that cannot be read was replaced while it was mapped: CRIU decides. */
		if (!found) {
			m->path = list[i].path;
			f->mappeds++;
		} else {
			free(list[i].path);
		}
	}
	free(list);
	ckpt_contents_close(c);
	return err ? why_set(why, err, "what the job's processes have mapped cannot be read: %s",
			     strerror(-err)) : 0;
}

static int check_one(const struct ckpt_mapped *was, struct ckpt_contents *c, struct why *why)
{
	struct ckpt_mapped is = { 0 };
	int err = identify(was->path, false, was->identity, c, &is);

	if (err)
		return why_set(why, -ENOENT, "%s, which the job has mapped, is not here (%s): "
			       "install what it belongs to, at the same path", was->path,
			       strerror(-err));
	if (is.size != was->size || strcmp(is.identity, was->identity))
		return why_set(why, -ESTALE, "%s is not the file that the job has mapped (%llu "
			       "bytes, %s; it was %llu, %s): put that version back", was->path,
			       (unsigned long long)is.size, is.identity,
			       (unsigned long long)was->size, was->identity);
	return 0;
}

int ckpt_mapped_check(const struct ckpt_facts *f, struct why *why)
{
	struct ckpt_contents *c = ckpt_contents_open(NULL, NULL);
	size_t own = f->libdir ? strlen(f->libdir) : 0;
	int err = c ? 0 : why_set(why, -ENOMEM, "no memory");

	for (int i = 0; i < f->mappeds && !err; i++) {
		const struct ckpt_mapped *was = &f->mapped[i];

		if (own && !strncmp(was->path, f->libdir, own) && was->path[own] == '/')
			continue;	/* the checkpoint contains it */
		err = check_one(was, c, why);
	}
	ckpt_contents_close(c);
	return err;
}
