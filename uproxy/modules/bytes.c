// SPDX-License-Identifier: Apache-2.0
/*
 * bytes.c - the bytes of an image, and the options that it is loaded with
 *
 * A driver gets a pointer without a length and trusts the headers that it reads there. So it gets
 * bytes that the client can not change, with zeros behind them unless they say how long they are, whose headers
 * have been checked against their length: a copy, or what held.c holds of the program's file. A checkpoint needs
 * the latter when the file has become another one, so they stay as long as the log has the record (kept.c).
 */
#define _GNU_SOURCE
#include <elf.h>
#include <stdlib.h>

#include "device_memory.h"
#include "fatbin.h"
#include "held.h"
#include "image_i.h"
#include "kept.h"
#include "log.h"
#include "modules.h"
#include "records.h"

#define IMAGE_MAX	(8ull << 30)
#define BEHIND		HELD_BEHIND	/* zeros */
#define LOGS_MAX	(16u << 20)
#define PARTS_MAX	4096

/* ------------------------------------------------------------------------------ lengths */

static bool inside(uint64_t off, uint64_t len, uint64_t all)
{
	return off <= all && len <= all - off;
}

static int elf_whole(const uint8_t *p, uint64_t len)
{
	Elf64_Ehdr e;

	if (len < sizeof(e))
		return CUDA_ERROR_INVALID_IMAGE;
	memcpy(&e, p, sizeof(e));
	if (e.e_ident[EI_CLASS] != ELFCLASS64 || e.e_ident[EI_DATA] != ELFDATA2LSB ||
	    (e.e_shnum && e.e_shentsize != sizeof(Elf64_Shdr)) ||
	    (e.e_phnum && e.e_phentsize != sizeof(Elf64_Phdr)) ||
	    !inside(e.e_shoff, (uint64_t)e.e_shnum * sizeof(Elf64_Shdr), len) ||
	    !inside(e.e_phoff, (uint64_t)e.e_phnum * sizeof(Elf64_Phdr), len))
		return CUDA_ERROR_INVALID_IMAGE;
	for (unsigned int i = 0; i < e.e_shnum; i++) {
		Elf64_Shdr s;

		memcpy(&s, p + e.e_shoff + i * sizeof(s), sizeof(s));
		if (s.sh_type != SHT_NOBITS && !inside(s.sh_offset, s.sh_size, len))
			return CUDA_ERROR_INVALID_IMAGE;
	}
	for (unsigned int i = 0; i < e.e_phnum; i++) {
		Elf64_Phdr s;

		memcpy(&s, p + e.e_phoff + i * sizeof(s), sizeof(s));
		if (!inside(s.p_offset, s.p_filesz, len))
			return CUDA_ERROR_INVALID_IMAGE;
	}
	return 0;
}

static int fatbin_whole(const uint8_t *p, uint64_t len)
{
	struct fatbin f;

	return fatbin_head(p, len, &f) ? CUDA_ERROR_INVALID_IMAGE : 0;
}

int image_whole(const uint8_t *p, uint64_t len)
{
	uint32_t magic = 0;

	memcpy(&magic, p, len < 4 ? len : 4);
	if (!len || magic == FATBIN_WRAPPER_MAGIC)		/* has pointers */
		return CUDA_ERROR_INVALID_IMAGE;
	if (magic == FATBIN_MAGIC)
		return fatbin_whole(p, len);
	if (!memcmp(&magic, ELFMAG, SELFMAG))
		return elf_whole(p, len);
	return 0;			/* text: the zeros behind it end it */
}

/* ------------------------------------------------------------------------------ the record */

static const char *path_of(const struct sv_image *a)
{
	return (const char *)(a + 1) + a->n_opt * sizeof(struct sv_jit_opt);
}

const char *image_path(const struct singvgpu_log_entry *e, const void *data)
{
	const struct record *r = record_of(e->op);
	const struct sv_image *a = data;
	uint64_t at = sizeof(*a);

	if (!r || !(r->flags & RECORD_IMAGE) ||
	    e->len < sizeof(*a) || a->kind != SV_IMAGE_FILE || a->n_opt > 32)
		return NULL;
	at += a->n_opt * sizeof(struct sv_jit_opt);
	return at <= e->len && a->path_len && a->path_len <= e->len - at &&
	       !((const char *)data)[at + a->path_len - 1] ? path_of(a) : NULL;
}

int image_check_record(struct call *k, const struct sv_image *a)
{
	uint64_t opts = (uint64_t)a->n_opt * sizeof(struct sv_jit_opt);
	uint64_t logs = (uint64_t)a->info_cap + a->error_cap;
	const char *path = path_of(a);

	if (a->pad || a->n_opt > 32 || !tail_is(&k->c, sizeof(*a) + opts, a->path_len))
		return sv_bad(&k->c, "size or padding of an image's record");
	if (logs > LOGS_MAX ||
	    (a->log_off ? !arena_client(k->c.session, a->log_off, logs) : logs != 0))
		return sv_bad(&k->c, "place of the logs of an image");
	if (!a->len || a->len > IMAGE_MAX)
		return sv_bad(&k->c, "length of an image");
	switch (a->kind) {
	case SV_IMAGE_FILE:
		if (!a->path_len || path[0] != '/' ||
		    strnlen(path, a->path_len) != a->path_len - 1)
			return sv_bad(&k->c, "path of an image");
		return 0;
	case SV_IMAGE_LINK:
		if (a->path_len || a->handle || a->size || a->mtime_ns ||
		    !arena_client(k->c.session, a->off, a->len) ||
		    !arena_client(k->c.session, a->dev, a->ino))
			return sv_bad(&k->c, "place of what is to be linked");
		return 0;
	case SV_IMAGE_ARENA:
	case SV_IMAGE_PARTS:
		if (a->path_len || a->dev || a->ino || a->size || a->mtime_ns ||
		    !arena_client(k->c.session, a->off, a->len))
			return sv_bad(&k->c, "place of an image");
		return 0;
	}
	return sv_bad(&k->c, "kind of an image");
}

/* ------------------------------------------------------------------------------ the bytes */

void image_release_bytes(struct image *im)
{
	free(im->copy);
	im->copy = NULL;
	held_put(im->held);
	im->held = NULL;
	im->image = NULL;
}

/* What a dump has kept of the file, or the file that has the bytes which the dump has seen. */
static int hold_again(struct call *k, const struct sv_image *a, struct held **h)
{
	struct kept_digest d;
	uint64_t n = 0;
	const void *kept = kept_find(k->seq, &n);

	if (kept)
		return n == a->len ? held_copy(h, kept, a, path_of(a)) : -ENOENT;
	if (kept_expected(k->seq, a->len, &d))
		return held_open_again(h, a, path_of(a), &d);
	return held_open(h, a, path_of(a), true);	/* saved before there were digests */
}

static unsigned int other_files;

static int read_file(struct call *k, const struct sv_image *a, struct image *im)
{
	struct sv_session *s = k->c.session;
	int rc;

	im->held = kept_held(k->seq);
	if (!im->held) {
		if (!inside(a->off, a->len, a->size))
			return CUDA_ERROR_FILE_NOT_FOUND;
		/* After a restore on another host the file has another inode. */
		rc = s->replay ? hold_again(k, a, &im->held) :
				 held_open(&im->held, a, path_of(a), s->restored);
		if (rc == -ENOENT && !s->replay &&
		    !__atomic_fetch_add(&other_files, 1, __ATOMIC_RELAXED))
			uproxy_say("%s is not the file that the client has mapped; the bytes of it and "
				   "of others like it are sent", path_of(a));
		if (rc)
			return rc == -ENOENT ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_OUT_OF_MEMORY;
		rc = kept_hold(k->seq, held_get(im->held));
		if (rc) {
			held_put(im->held);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	im->image = held_bytes(im->held);
	return 0;
}

/* Copies from the arena and keeps a copy for a restore; if there is a kept copy, uses that. */
static int copy_arena(struct call *k, uint64_t off, uint64_t len, void *to)
{
	uint64_t n = 0;
	const void *kept = kept_find(k->seq, &n);

	if (kept && n == len) {
		memcpy(to, kept, len);
		return 0;
	}
	if (k->c.session->replay)
		return sv_bad(&k->c, "bytes of an image that were not kept");
	memcpy(to, arena_at(k->c.session, off), len);
	return k->c.op == SV_OP_cuLinkComplete || !kept_add(k->seq, to, len) ?
		0 : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A wrapper with pointers to the parts, which lies before the bytes. */
struct wrapped {
	struct fatbin_wrapper head;
	const void *part[];
};

static int wrap_parts(struct call *k, uint64_t len, struct image *im)
{
	const uint8_t *bytes = im->copy;
	const void *linked = NULL;
	struct wrapped *w;
	uint64_t n;

	if (len < sizeof(n))
		return sv_bad(&k->c, "parts of an image");
	memcpy(&n, bytes, sizeof(n));
	if (n < 2 || n > PARTS_MAX || n > (len - sizeof(n)) / sizeof(struct sv_part_of))
		return sv_bad(&k->c, "parts of an image");
	w = malloc(sizeof(*w) + n * sizeof(w->part[0]) + len + BEHIND);
	if (!w)
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = memcpy(&w->part[n], im->copy, len + BEHIND);
	free(im->copy);
	im->copy = w;
	im->image = w;
	for (uint64_t i = 0; i < n; i++) {
		struct sv_part_of p;

		memcpy(&p, bytes + sizeof(n) + i * sizeof(p), sizeof(p));
		if (p.off % 8 || !inside(p.off, p.len, len))
			return sv_bad(&k->c, "parts of an image");
		if (i ? fatbin_whole(bytes + p.off, p.len) :
			p.len && image_whole(bytes + p.off, p.len))
			return CUDA_ERROR_INVALID_IMAGE;
		if (i)
			w->part[i - 1] = bytes + p.off;
		else
			linked = p.len ? bytes + p.off : NULL;
	}
	w->part[n - 1] = NULL;
	/* Without a linked image, what a driver looks at first is relocatable code, as nvcc has it. */
	w->head = (struct fatbin_wrapper){ FATBIN_WRAPPER_MAGIC, 2, linked ?: w->part[0], w->part };
	return 0;
}

int image_read(struct call *k, const struct sv_image *a, struct image *im)
{
	int rc;

	if (a->kind == SV_IMAGE_FILE) {
		rc = read_file(k, a, im);
		return rc ?: image_whole(im->image, a->len);
	}
	im->copy = malloc(a->len + BEHIND);
	if (!im->copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = copy_arena(k, a->off, a->len, im->copy);
	if (rc)
		return rc;
	memset((char *)im->copy + a->len, 0, BEHIND);
	im->image = im->copy;
	return a->kind == SV_IMAGE_PARTS ? wrap_parts(k, a->len, im) :
					   image_whole(im->copy, a->len);
}

/* ------------------------------------------------------------------------------ options */

/* Is the option's value a number? Other values are pointers, which are not valid here. */
static bool is_number(uint32_t opt)
{
	switch (opt) {
	case CU_JIT_MAX_REGISTERS:
	case CU_JIT_THREADS_PER_BLOCK:
	case CU_JIT_OPTIMIZATION_LEVEL:
	case CU_JIT_TARGET_FROM_CUCONTEXT:
	case CU_JIT_TARGET:
	case CU_JIT_FALLBACK_STRATEGY:
	case CU_JIT_GENERATE_DEBUG_INFO:
	case CU_JIT_LOG_VERBOSE:
	case CU_JIT_GENERATE_LINE_INFO:
	case CU_JIT_CACHE_MODE:
	case CU_JIT_NEW_SM3X_OPT:
	case CU_JIT_FAST_COMPILE:
	case CU_JIT_LTO:
	case CU_JIT_FTZ:
	case CU_JIT_PREC_DIV:
	case CU_JIT_PREC_SQRT:
	case CU_JIT_FMA:
	case CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES:
	case CU_JIT_POSITION_INDEPENDENT_CODE:
	case CU_JIT_MIN_CTA_PER_SM:
	case CU_JIT_MAX_THREADS_PER_BLOCK:
	case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
	case 34:	/* CU_JIT_SPLIT_COMPILE, 12.7 */
		return true;
	}
	return false;
}

static void add_option(struct jit *j, uint32_t opt, void *value)
{
	j->opt[j->n] = opt;
	j->value[j->n++] = value;
}

int jit_begin(struct call *k, const struct sv_image *a, struct jit *j)
{
	const struct sv_jit_opt *o = (const void *)(a + 1);
	uint64_t caps = (uint64_t)a->info_cap + a->error_cap;

	*j = (struct jit){ .n = 0 };
	for (uint32_t i = 0; i < a->n_opt; i++) {
		if (o[i].pad)
			return sv_bad(&k->c, "padding of an option");
		/* Options of libraries: they tell where the program's own bytes are. */
		if (o[i].opt >> 31)
			continue;
		if (!is_number(o[i].opt))
			return CUDA_ERROR_NOT_SUPPORTED;
		add_option(j, o[i].opt, (void *)(uintptr_t)o[i].value);
	}
	if (!caps)
		return 0;
	j->info = calloc(1, caps);
	if (!j->info)
		return CUDA_ERROR_OUT_OF_MEMORY;
	j->error = j->info + a->info_cap;
	if (a->info_cap) {
		add_option(j, CU_JIT_INFO_LOG_BUFFER, j->info);
		add_option(j, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, (void *)(uintptr_t)a->info_cap);
	}
	if (a->error_cap) {
		add_option(j, CU_JIT_ERROR_LOG_BUFFER, j->error);
		add_option(j, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, (void *)(uintptr_t)a->error_cap);
	}
	return 0;
}

void jit_end(struct sv_session *s, const struct sv_image *a, struct jit *j)
{
	/* In a replay nobody reads the logs, and the client has reused their place. */
	if (s->replay) {
		free(j->info);
		j->info = NULL;
		return;
	}
	if (a->info_cap) {
		j->info[a->info_cap - 1] = 0;
		memcpy(arena_at(s, a->log_off), j->info, strlen(j->info) + 1);
	}
	if (a->error_cap) {
		j->error[a->error_cap - 1] = 0;
		memcpy(arena_at(s, a->log_off + a->info_cap), j->error, strlen(j->error) + 1);
	}
	free(j->info);
	j->info = NULL;
}
