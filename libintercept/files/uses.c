// SPDX-License-Identifier: Apache-2.0
/*
 * uses.c - whether an ELF file uses CUDA (it has a section with kernels, or needs one of CUDA's libraries), and what is
 * said of a program that does, outside of the job
 *
 * nvcc links CUDA's runtime statically, and that looks for libcuda.so.1 by dlopen(): such a program needs no library,
 * but its kernels have a section of their own. The launcher has this file, too.
 */
#include <elf.h>
#include <string.h>

#include "files_i.h"
#include "stray.h"

#define SECTIONS	4096	/* that are looked at */
#define NAMES		1024	/* bytes of the sections' names; the names of a linked program take some 400 */
#define DYNAMIC		512	/* entries of the dynamic section */
#define AT_ONCE		16
#define ARGS		16	/* of a set-user-ID program */

bool stray_library(const char *base)
{
	static const char *const begin[] = { "libcuda.so", "libcudart.so", "libnccl.so", "libcublas", "libcudnn",
		"libcufft", "libcurand", "libcusolver", "libcusparse", "libnvrtc.so", "libnvJitLink.so", "libtorch_cuda" };

	for (size_t i = 0; i < sizeof(begin) / sizeof(begin[0]); i++)
		if (!strncmp(base, begin[i], strlen(begin[i])))
			return true;
	return false;
}

static bool get(int fd, void *to, size_t len, uint64_t at)
{
	return at <= INT64_MAX && sys(SYS_pread64, fd, to, len, at) == (long)len;
}

/* Of up to len bytes: the number that there are. The byte behind them is 0. */
static size_t get_text(int fd, char *to, size_t len, uint64_t at)
{
	long n = at <= INT64_MAX ? sys(SYS_pread64, fd, to, len, at) : 0;

	if (n < 0)
		n = 0;
	to[n] = 0;
	return n;
}

static bool has_kernels(int fd, const Elf64_Ehdr *e)
{
	char names[NAMES + 1];
	Elf64_Shdr s[AT_ONCE];
	size_t len;

	if (e->e_shentsize != sizeof(*s) || e->e_shstrndx >= e->e_shnum || e->e_shnum > SECTIONS ||
	    !get(fd, s, sizeof(*s), e->e_shoff + e->e_shstrndx * sizeof(*s)))
		return false;
	len = get_text(fd, names, s->sh_size < NAMES ? s->sh_size : NAMES, s->sh_offset);
	for (int i = 0; i < e->e_shnum; i += AT_ONCE) {
		int n = e->e_shnum - i < AT_ONCE ? e->e_shnum - i : AT_ONCE;

		if (!get(fd, s, n * sizeof(*s), e->e_shoff + i * sizeof(*s)))
			return false;
		for (int k = 0; k < n; k++)
			if (s[k].sh_name < len && (!strcmp(names + s[k].sh_name, ".nv_fatbin") ||
						   !strcmp(names + s[k].sh_name, ".nvFatBinSegment")))
				return true;
	}
	return false;
}

/* The place in the file of what is loaded at an address; 0: none. */
static uint64_t place_of(int fd, const Elf64_Ehdr *e, uint64_t addr)
{
	Elf64_Phdr p;

	for (int i = 0; i < e->e_phnum && i < 64; i++) {
		if (!get(fd, &p, sizeof(p), e->e_phoff + i * sizeof(p)))
			return 0;
		if (p.p_type == PT_LOAD && addr - p.p_vaddr < p.p_filesz)
			return p.p_offset + (addr - p.p_vaddr);
	}
	return 0;
}

/* Strings first: entries may come in any order. */
static bool needs(int fd, const Elf64_Ehdr *e, const Elf64_Phdr *p)
{
	uint64_t strings = 0;
	char name[32];
	Elf64_Dyn d;

	for (int pass = 0; pass < 2; pass++) {
		for (uint64_t i = 0; i < DYNAMIC && (i + 1) * sizeof(d) <= p->p_filesz; i++) {
			if (!get(fd, &d, sizeof(d), p->p_offset + i * sizeof(d)) || d.d_tag == DT_NULL)
				break;
			if (!pass && d.d_tag == DT_STRTAB)
				strings = place_of(fd, e, d.d_un.d_ptr);
			else if (pass && d.d_tag == DT_NEEDED &&
				 get_text(fd, name, sizeof(name) - 1, strings + d.d_un.d_val) &&
				 stray_library(name))
				return true;
		}
		if (!strings)
			return false;
	}
	return false;
}

/* stray_program(), of a file that is open for reading. */
static bool stray_image(int fd)
{
	Elf64_Ehdr e;
	Elf64_Phdr p;

	if (!get(fd, &e, sizeof(e), 0) || memcmp(e.e_ident, ELFMAG, SELFMAG) || e.e_ident[EI_CLASS] != ELFCLASS64)
		return false;
	if (has_kernels(fd, &e))
		return true;
	for (int i = 0; i < e.e_phnum && i < 64 && e.e_phentsize == sizeof(p); i++)
		if (get(fd, &p, sizeof(p), e.e_phoff + i * sizeof(p)) && p.p_type == PT_DYNAMIC)
			return needs(fd, &e, &p);
	return false;
}

bool stray_program(int dir, const char *path)
{
	long fd = sys(SYS_openat, dir, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	bool uses = fd >= 0 && stray_image(fd);

	if (fd >= 0)
		sys(SYS_close, fd);
	return uses;
}

bool stray_find(const char *name, char *path, size_t size)
{
	const char *dir = getenv("PATH") ?: "/bin:/usr/bin";
	size_t len = strlen(name), n;

	for (;; dir += n + 1) {
		n = strchrnul(dir, ':') - dir;
		if (n + len + 2 <= size) {
			memcpy(path, dir, n);
			path[n] = '/';
			memcpy(path + n + !!n, name, len + 1);
			if (!sys(SYS_faccessat, AT_FDCWD, path, X_OK))
				return true;
		}
		if (!dir[n])
			return false;
	}
}

/* The loader will ignore LD_PRELOAD. */
static bool is_set_user_id(int dir, const char *path)
{
	struct stat st;

	if (sys(SYS_newfstatat, dir, path, &st, 0) || !S_ISREG(st.st_mode))
		return false;
	return ((st.st_mode & S_ISUID) && st.st_uid != geteuid()) ||
	       ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getegid());
}

const char *stray_dropped(int dir, const char *path, char *const *argv)
{
	if (!is_set_user_id(dir, path))
		return NULL;
	if (stray_program(dir, path))
		return path;
	for (int i = 1; argv && argv[0] && i < ARGS && argv[i]; i++)
		if (*argv[i] != '-' && !sys(SYS_faccessat, AT_FDCWD, argv[i], X_OK) && stray_program(AT_FDCWD, argv[i]))
			return argv[i];
	return NULL;
}

size_t stray_record(char text[STRAY_RECORD], char kind, const char *name)
{
	size_t len = strlen(name);

	if (len > STRAY_NAME)
		name += len - STRAY_NAME;
	text[0] = 0;
	text[1] = kind;
	return stpcpy(text + 2, name) + 1 - text;
}

size_t stray_sentence(char *text, size_t size, char kind, const char *name)
{
	static const char out[] = "uses CUDA without singvgpu, gets no device of the job, and is in no checkpoint";
	static const char pass[] = "Pass LD_PRELOAD, LD_LIBRARY_PATH and SINGVGPU_* on (of LD_PRELOAD keep what it has)";
	static const char run[] = "Start `singvgpu run` as that user instead";
	int n = 0;

	switch (kind) {
	case STRAY_PRELOAD:
		n = snprintf(text, size, "%s %s: its environment has no LD_PRELOAD of singvgpu, as behind `env -i` and "
			     "sudo. %s", name, out, pass);
		break;
	case STRAY_SOCKET:
		n = snprintf(text, size, "%s %s: its environment has no SINGVGPU_SOCKET. %s", name, out, pass);
		break;
	case STRAY_SETUID:
		n = snprintf(text, size, "a set-user-ID program is started with %s, for which the loader drops "
			     "LD_PRELOAD: it %s. %s", name, out, run);
		break;
	case STRAY_USER:
		n = snprintf(text, size, "%s %s: it runs as another user, who may not open the job's folder. %s", name,
			     out, run);
		break;
	case STRAY_LOADED:
		n = snprintf(text, size, "%s %s: it has not loaded singvgpu's libraries (a static program has started it, "
			     "without the environment?). %s", name, out, pass);
		break;
	}
	return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}
