// SPDX-License-Identifier: Apache-2.0
/*
 * stood.c - tells the processes of a frozen job for how long it has stood still
 *
 * libintercept/clock/stood.h has the variable. The file that a process has mapped says where it is: it may
 * be that of another version of singvgpu, and may be deleted. A process without it sees the time pass.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_i.h"
#include "stood.h"

#define LIBRARY_MAX	(64ul << 20)
#define UNSURE_NS	10000000

struct image {
	const uint8_t *at;
	size_t len;
};

/* len bytes at offset off of the file, or NULL. */
static const void *part(const struct image *im, uint64_t off, uint64_t len)
{
	return off <= im->len && len <= im->len - off ? im->at + off : NULL;
}

/* The variable's address relative to the file's mapping, or 0. */
static uint64_t variable_in(const struct image *im)
{
	const Elf64_Ehdr *e = part(im, 0, sizeof(*e));
	const Elf64_Shdr *s;

	if (!e || memcmp(e->e_ident, ELFMAG, SELFMAG) || e->e_ident[EI_CLASS] != ELFCLASS64)
		return 0;
	s = part(im, e->e_shoff, (uint64_t)e->e_shnum * sizeof(*s));
	for (int i = 0; s && i < e->e_shnum; i++) {
		const Elf64_Sym *sym = part(im, s[i].sh_offset, s[i].sh_size);
		const char *names;
		uint64_t room;

		if (s[i].sh_type != SHT_DYNSYM || !sym || s[i].sh_link >= e->e_shnum)
			continue;
		room = s[s[i].sh_link].sh_size;
		names = part(im, s[s[i].sh_link].sh_offset, room);
		for (size_t k = 0; names && k < s[i].sh_size / sizeof(*sym); k++)
			if (sym[k].st_name < room && room - sym[k].st_name >= sizeof(STOOD_VARIABLE) &&
			    !strcmp(names + sym[k].st_name, STOOD_VARIABLE) && sym[k].st_shndx != SHN_UNDEF)
				return sym[k].st_value;
	}
	return 0;
}

/* Read, not mapped: its owner, maybe not ours, can make it shorter meanwhile. */
static uint64_t variable_of(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint8_t *bytes = NULL;
	struct image im = { NULL, 0 };
	uint64_t at = 0;
	struct stat st;
	ssize_t n = 0;

	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= (off_t)LIBRARY_MAX)
		bytes = malloc(st.st_size);
	im.at = bytes;
	while (bytes && im.len < (size_t)st.st_size && (n = read(fd, bytes + im.len, st.st_size - im.len)) > 0)
		im.len += n;
	if (bytes)
		at = variable_in(&im);
	free(bytes);
	if (fd >= 0)
		close(fd);
	return at;
}

/* Where a process has the variable, or 0. */
static uint64_t find_variable(pid_t pid)
{
	char path[64], *line = NULL;
	unsigned long from, to, off;
	uint64_t at = 0;
	size_t room = 0;
	FILE *in;
	int end;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	in = fopen(path, "re");
	while (in && !at && getline(&line, &room, in) > 0) {
		end = 0;
		if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &from, &to, &off, &end) != 3 || !end || off ||
		    !strstr(line + end, "/" STOOD_LIBRARY))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/map_files/%lx-%lx", pid, from, to);
		at = variable_of(path);
		at = at ? from + at : 0;
	}
	free(line);
	if (in)
		fclose(in);
	return at;
}

static void add_to(pid_t pid, uint64_t ns)
{
	uint64_t at = find_variable(pid), all = 0;
	char path[32];
	int fd;

	if (!at)
		return;
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && pread(fd, &all, sizeof(all), at) == sizeof(all)) {
		all += ns;
		/* On failure its clock only sees the time pass. */
		(void)!pwrite(fd, &all, sizeof(all), at);
	}
	if (fd >= 0)
		close(fd);
}

/* A time, less what it may be too long by: no clock may go back. */
static uint64_t sure(uint64_t ns)
{
	return ns > UNSURE_NS ? ns - UNSURE_NS : 0;
}

void ckpt_stood(pid_t root, uint64_t since_ns, uint64_t before_ns)
{
	uint64_t now = now_ms() * 1000000, ns = sure(before_ns);
	pid_t *pids;
	int n;

	ns += since_ns && now > since_ns ? sure(now - since_ns) : 0;
	n = ns ? ckpt_tree(root, &pids) : 0;
	for (int i = 0; i < n; i++)
		add_to(pids[i], ns);
	if (n > 0)
		free(pids);
}
