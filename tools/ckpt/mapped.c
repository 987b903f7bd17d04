// SPDX-License-Identifier: Apache-2.0
/*
 * mapped.c - records the programs, libraries and data files that a job has mapped, and checks that
 * they are the same at the restore
 *
 * CRIU maps them again from their paths. A file's identity is the linker's build id; without one,
 * the hash of its contents if it is mapped executable, else its size alone.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

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

static bool build_id(const uint8_t *file, uint64_t len, char *id, size_t size)
{
	Elf64_Ehdr e;
	Elf64_Phdr p;

	if (len < sizeof(e) || memcmp(file, ELFMAG, SELFMAG) || file[EI_CLASS] != ELFCLASS64)
		return false;
	memcpy(&e, file, sizeof(e));
	for (int i = 0; i < e.e_phnum; i++) {
		if (e.e_phoff > len || (i + 1ull) * sizeof(p) > len - e.e_phoff)
			return false;
		memcpy(&p, file + e.e_phoff + i * sizeof(p), sizeof(p));
		if (p.p_type == PT_NOTE && p.p_offset <= len && p.p_filesz <= len - p.p_offset &&
		    note_id(file + p.p_offset, p.p_filesz, id, size))
			return true;
	}
	return false;
}

/* The size and identity of the file at path; the identity is of like's kind unless like is NULL. */
static int identify(const char *path, bool code, const char *like, struct ckpt_mapped *m)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), err = 0;
	const uint8_t *at = MAP_FAILED;
	struct stat s;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &s))
		err = -errno;
	else if (!S_ISREG(s.st_mode))
		err = -ENOENT;
	m->size = err ? 0 : s.st_size;
	if (!err && s.st_size) {
		at = mmap(NULL, s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (at == MAP_FAILED)
			err = -errno;
	}
	close(fd);
	if (err)
		return err;
	strcpy(m->identity, "size");
	if (at == MAP_FAILED)
		return 0;
	if (!build_id(at, s.st_size, m->identity, sizeof(m->identity)) &&
	    (like ? !strncmp(like, "xxh3:", 5) : code)) {
		XXH128_hash_t h = XXH3_128bits(at, s.st_size);

		snprintf(m->identity, sizeof(m->identity), "xxh3:%016llx%016llx",
			 (unsigned long long)h.high64, (unsigned long long)h.low64);
	}
	munmap((void *)at, s.st_size);
	return 0;
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

/* True: path names a file that a restore can find again. */
static bool lasting(const char *path)
{
	static const char *const not[] = { "/memfd:", "/SYSV", "/dev/", "/proc/", "/anon_hugepage" };
	static const char deleted[] = " (deleted)";
	size_t n = strlen(path);

	if (*path != '/')
		return false;
	for (size_t i = 0; i < sizeof(not) / sizeof(not[0]); i++)
		if (!strncmp(path, not[i], strlen(not[i])))
			return false;
	return n < sizeof(deleted) || strcmp(path + n - sizeof(deleted) + 1, deleted);
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

int ckpt_mapped(const pid_t *pids, int n, struct ckpt_facts *f, struct why *why)
{
	struct seen *list = NULL;
	int seen = 0, err = 0;

	for (int i = 0; i < n && !err; i++)
		err = see_process(&list, &seen, pids[i]);
	f->mapped = err ? NULL : calloc(seen + 1, sizeof(*f->mapped));
	if (!err && !f->mapped)
		err = -ENOMEM;
	for (int i = 0; i < seen; i++) {
		struct ckpt_mapped *m = err ? NULL : &f->mapped[f->mappeds];

		/* A file that cannot be read was replaced while it was mapped: CRIU decides. */
		if (m && !list[i].shared && !identify(list[i].path, list[i].code, NULL, m)) {
			m->path = list[i].path;
			f->mappeds++;
		} else {
			free(list[i].path);
		}
	}
	free(list);
	return err ? why_set(why, err, "what the job's processes have mapped cannot be read: %s",
			     strerror(-err)) : 0;
}

int ckpt_mapped_check(const struct ckpt_facts *f, struct why *why)
{
	size_t own = f->libdir ? strlen(f->libdir) : 0;

	for (int i = 0; i < f->mappeds; i++) {
		const struct ckpt_mapped *was = &f->mapped[i];
		struct ckpt_mapped is = { 0 };
		int err;

		if (own && !strncmp(was->path, f->libdir, own) && was->path[own] == '/')
			continue;	/* the checkpoint contains it */
		err = identify(was->path, false, was->identity, &is);
		if (err)
			return why_set(why, -ENOENT, "%s, which the job has mapped, is not here (%s): "
				       "install what it belongs to, at the same path", was->path,
				       strerror(-err));
		if (is.size != was->size || strcmp(is.identity, was->identity))
			return why_set(why, -ESTALE, "%s is not the file that the job has mapped (%llu "
				       "bytes, %s; it was %llu, %s): put that version back", was->path,
				       (unsigned long long)is.size, is.identity,
				       (unsigned long long)was->size, was->identity);
	}
	return 0;
}
