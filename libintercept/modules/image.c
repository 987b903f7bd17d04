// SPDX-License-Identifier: Apache-2.0
/*
 * image.c - finds the bytes of a module's image and hands them to the proxy
 *
 * A program hands over a pointer: to a fatbin's wrapper, a fatbin, an ELF image or PTX text. If those
 * bytes are mapped unchanged from a file, the proxy reads them there; else they are copied into the
 * arena, where they stay until the unload, so that a restore finds them.
 */
#include "arena.h"
#include "fatbin.h"
#include "image.h"
#include "send.h"
#include "session.h"

#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define IMAGE_MAX	(4ull << 30)

/* ----------------------------------------------------------------------------------- sizes */

static uint64_t elf_size(const Elf64_Ehdr *e)
{
	const Elf64_Shdr *sh = (const void *)((const char *)e + e->e_shoff);
	uint64_t end = e->e_shoff + (uint64_t)e->e_shnum * e->e_shentsize;
	uint64_t segments = e->e_phoff + (uint64_t)e->e_phnum * e->e_phentsize;

	if (e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_shentsize != sizeof(*sh))
		return 0;
	if (e->e_phnum && segments > end)	/* ptxas puts program headers last */
		end = segments;
	for (int i = 0; i < e->e_shnum; i++)
		if (sh[i].sh_type != SHT_NOBITS && sh[i].sh_offset + sh[i].sh_size > end)
			end = sh[i].sh_offset + sh[i].sh_size;
	return end;
}

/* Size of an image that is not a wrapper, with PTX's NUL; 0: not an image. */
static uint64_t plain_size(const void *image)
{
	const struct fatbin *f = image;
	uint32_t magic;

	for (int i = 0; i < 4; i++)
		if (!((const char *)image)[i])
			return i ? i + 1 : 0;	/* a text shorter than a magic number */
	memcpy(&magic, image, 4);
	if (magic == FATBIN_MAGIC)
		return f->size < IMAGE_MAX ? f->header + f->size : 0;
	if (!memcmp(image, ELFMAG, SELFMAG))
		return elf_size(image);
	return strlen(image) + 1;
}

/* ----------------------------------------------------------------------------------- in a file */

struct search {
	uintptr_t addr;
	uint64_t len, off;
	const char *path;
	unsigned long long adds, subs;	/* of objects: the generation of what is mapped */
};

static int in_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *s = arg;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t at = info->dlpi_addr + p->p_vaddr;

		if (p->p_type != PT_LOAD || s->addr < at || s->addr - at >= p->p_filesz)
			continue;
		/* A writable segment may differ from the file, by relocations if nothing else. */
		if (p->p_flags & PF_W || s->len > p->p_filesz - (s->addr - at))
			return -1;
		s->off = p->p_offset + (s->addr - at);
		s->path = *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
		s->adds = info->dlpi_adds;
		s->subs = info->dlpi_subs;
		return 1;
	}
	return 0;
}

struct mapping {
	unsigned long from, to, ino;
	unsigned long long adds, subs;
};

static bool find_mapping(uintptr_t addr, struct mapping *m)
{
	FILE *f = fopen("/proc/self/maps", "re");
	bool found = false;
	char line[4400];

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%lx-%lx %*s %*s %*s %lu", &m->from, &m->to, &m->ino) == 3 &&
			addr - m->from < m->to - m->from;
	if (f)
		fclose(f);
	return found;
}

/*
 * Is the file, which was found by its path, the one that is mapped? An upgrade may have put another one there. The
 * inode tells, since that of a mapped file is not used again; devices differ between maps and stat() on some file
 * systems.
 */
static bool is_mapped(const struct search *s, ino_t ino)
{
	static struct lock LOCK_APART lock = LOCK_INIT(LOCK_MAPPED);
	static struct mapping last;
	struct mapping m;
	bool known;

	lock_take(&lock);
	m = last;
	lock_drop(&lock);
	known = s->addr - m.from < m.to - m.from && s->adds == m.adds && s->subs == m.subs;
	if (!known) {
		if (!find_mapping(s->addr, &m))
			return false;
		m.adds = s->adds;
		m.subs = s->subs;
		lock_take(&lock);
		last = m;
		lock_drop(&lock);
	}
	return m.ino == ino;
}

/* Describe len bytes at image as part of a file; false: they are not unchanged file content. */
static bool by_file(const void *image, uint64_t len, struct sv_image *a, char *path)
{
	struct search s = { .addr = (uintptr_t)image, .len = len };
	struct stat st;

	if (dl_iterate_phdr(in_object, &s) != 1 || !realpath(s.path, path) || stat(path, &st) ||
	    s.off + len > (uint64_t)st.st_size || !is_mapped(&s, st.st_ino))
		return false;
	a->kind = SV_IMAGE_FILE;
	a->off = s.off;
	a->len = len;
	a->dev = st.st_dev;
	a->ino = st.st_ino;
	a->size = st.st_size;
	a->mtime_ns = st.st_mtim.tv_sec * 1000000000ull + st.st_mtim.tv_nsec;
	a->path_len = strlen(path) + 1;
	return true;
}

/* ---------------------------------------------------------------------------------- in the arena */

static CUresult by_content(const void *image, uint64_t len, struct sv_image *a)
{
	TRY(arena_alloc(len, 64, NULL, &a->off));
	memcpy(arena_at(a->off), image, len);
	a->kind = SV_IMAGE_ARENA;
	a->len = len;
	return CUDA_SUCCESS;
}

/* Part i of a wrapper of version 2: the linked image, which may be missing, then its inputs. */
static const void *part_of(const struct fatbin_wrapper *w, uint64_t i)
{
	return i ? w->fatbins[i - 1] : w->fatbin;
}

static CUresult by_parts(const struct fatbin_wrapper *w, struct sv_image *a)
{
	uint64_t n = 1, head, len;
	struct sv_part_of *to;
	uint8_t *at;

	while (part_of(w, n))
		n++;
	head = sizeof(n) + n * sizeof(*to);
	len = head;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t size = part_of(w, i) ? plain_size(part_of(w, i)) : 0;

		if (!size && i)
			return CUDA_ERROR_INVALID_IMAGE;
		len = ((len + 7) & -8ull) + size;
	}
	TRY(arena_alloc(len, 64, NULL, &a->off));
	at = arena_at(a->off);
	memcpy(at, &n, sizeof(n));
	to = (void *)(at + sizeof(n));
	len = head;
	for (uint64_t i = 0; i < n; i++) {
		const void *part = part_of(w, i);

		to[i].off = (len + 7) & -8ull;
		to[i].len = part ? plain_size(part) : 0;
		memcpy(at + to[i].off, part ?: at, to[i].len);
		len = to[i].off + to[i].len;
	}
	a->kind = SV_IMAGE_PARTS;
	a->len = len;
	return CUDA_SUCCESS;
}

static CUresult describe(const void *image, struct sv_image *a, char *path)
{
	const struct fatbin_wrapper *w = image;
	uint64_t len;
	uint32_t magic;

	memcpy(&magic, image, 1);
	if (!(magic & 255))
		return CUDA_ERROR_INVALID_IMAGE;
	if (((const char *)image)[1] && ((const char *)image)[2] && ((const char *)image)[3]) {
		memcpy(&magic, image, 4);
		if (magic == FATBIN_WRAPPER_MAGIC) {
			if (w->version == 2 && w->fatbins && *w->fatbins)
				return by_parts(w, a);
			if (w->version != 1 && w->version != 2)
				return CUDA_ERROR_INVALID_IMAGE;
			image = w->fatbin;
		}
	}
	len = plain_size(image);
	if (!len)
		return CUDA_ERROR_INVALID_IMAGE;
	if (by_file(image, len, a, path))
		return CUDA_SUCCESS;
	return by_content(image, len, a);
}

/* ------------------------------------------------------------------------------------- options */

#define LOG_MAX (1u << 20)

void image_options_sort(struct image_options *o, struct sv_jit_opt *to, struct sv_image *a)
{
	for (unsigned int i = 0; i < o->n; i++) {
		void **v = &o->values[i];

		switch (o->opt[i]) {
		case CU_JIT_WALL_TIME:
			o->wall = (float *)v;
			break;
		case CU_JIT_INFO_LOG_BUFFER:
			o->info = *v;
			break;
		case CU_JIT_ERROR_LOG_BUFFER:
			o->error = *v;
			break;
		case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
			o->info_size = (void *)v;
			a->info_cap = *(unsigned int *)v;
			break;
		case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			o->error_size = (void *)v;
			a->error_cap = *(unsigned int *)v;
			break;
		default:
			to[a->n_opt].opt = o->opt[i];
			to[a->n_opt++].value = sv_u64(*v);
		}
	}
	a->info_cap = o->info && o->info_size ? a->info_cap : 0;
	a->error_cap = o->error && o->error_size ? a->error_cap : 0;
	if (a->info_cap > LOG_MAX)
		a->info_cap = LOG_MAX;
	if (a->error_cap > LOG_MAX)
		a->error_cap = LOG_MAX;
}

static void give_log(char *to, unsigned int *size, const char *from, uint32_t cap)
{
	if (!cap)
		return;
	*size = strnlen(from, cap - 1);
	memcpy(to, from, *size);
	to[*size] = 0;
}

void image_options_done(struct image_options *o, const struct sv_image *a, double ms)
{
	const char *log = arena_at(a->log_off);

	if (o->wall)
		*o->wall = ms;
	give_log(o->info, o->info_size, log, a->info_cap);
	give_log(o->error, o->error_size, log + a->info_cap, a->error_cap);
}

/* ------------------------------------------------------------------------------------- loading */

/* What was sent when a library was loaded. */
struct image_source {
	struct sv_image a;
	uint32_t len;
	uint8_t tail[];
};

static struct image_source *keep_source(const struct sv_image *a, const struct sv_jit_opt *opt,
					const char *path)
{
	uint32_t olen = a->n_opt * sizeof(*opt);
	struct image_source *s = malloc(sizeof(*s) + olen + a->path_len);

	if (!s)
		return NULL;
	s->a = *a;
	s->a.info_cap = s->a.error_cap = 0;	/* the logs have been read */
	s->a.log_off = 0;
	s->len = olen + a->path_len;
	memcpy(s->tail, opt, olen);
	memcpy(s->tail + olen, path, a->path_len);
	return s;
}

CUresult image_load_again(const struct image *im)
{
	const struct image_source *s = im->source;

	return send_sync(SV_OP_cuLibraryLoadData, &s->a, sizeof(s->a), s->tail, s->len, NULL, 0);
}

static CUresult send_image(uint16_t op, struct sv_image *a, const struct sv_jit_opt *opt,
			   const char *path)
{
	uint32_t olen = a->n_opt * sizeof(*opt);
	uint8_t tail[64 * sizeof(*opt) + PATH_MAX];

	memcpy(tail, opt, olen);
	memcpy(tail + olen, path, a->path_len);
	return send_sync(op, a, sizeof(*a), tail, olen + a->path_len, NULL, 0);
}

CUresult image_load(uint16_t op, struct image *im, struct context *ctx, const void *image,
		    struct image_options *o)
{
	struct sv_image a = { .ctx = ctx ? ctx->o.handle : 0, .handle = im->o.handle };
	struct sv_jit_opt opt[64] = { 0 };
	struct timespec t0, t1;
	char path[PATH_MAX];
	CUresult rc;

	if (o->n + o->n_lib > 64)
		return CUDA_ERROR_INVALID_VALUE;
	image_options_sort(o, opt, &a);
	for (unsigned int i = 0; i < o->n_lib; i++) {
		opt[a.n_opt].opt = o->lib_opt[i] | 0x80000000u;
		opt[a.n_opt++].value = o->lib_values ? sv_u64(o->lib_values[i]) : 0;
	}
	TRY(describe(image, &a, path));
	bypass_check();
	if (a.kind != SV_IMAGE_FILE)
		im->arena = a.off;
	clock_gettime(CLOCK_MONOTONIC, &t0);
	rc = CUDA_SUCCESS;
	if (a.info_cap + a.error_cap && !arena_reply(a.info_cap + a.error_cap, &a.log_off))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc)
		rc = send_image(op, &a, opt, path);
	if (rc == CUDA_ERROR_FILE_NOT_FOUND && a.kind == SV_IMAGE_FILE) {
		/* The proxy cannot see that file, or sees another one: send the bytes. */
		uint64_t len = a.len;
		const void *from = a.len ? image : NULL;
		uint32_t magic;

		memcpy(&magic, image, 4);
		if (magic == FATBIN_WRAPPER_MAGIC)
			from = ((const struct fatbin_wrapper *)image)->fatbin;
		a.dev = a.ino = a.size = a.mtime_ns = 0;
		a.path_len = 0;
		rc = by_content(from, len, &a);
		if (!rc) {
			im->arena = a.off;
			rc = send_image(op, &a, opt, path);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &t1);
	image_options_done(o, &a,
			   (t1.tv_sec - t0.tv_sec) * 1e3 + (t1.tv_nsec - t0.tv_nsec) / 1e6);
	if (a.log_off)
		arena_reply_done(a.log_off);
	if (!rc && op == SV_OP_cuLibraryLoadData) {
		im->source = keep_source(&a, opt, path);
		im->in = 1u << device_of(here);
		__atomic_store_n(&process.used, true, __ATOMIC_RELAXED);
		if (!im->source)
			rc = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (rc && im->arena) {
		arena_free(im->arena);
		im->arena = 0;
	}
	return rc;
}
