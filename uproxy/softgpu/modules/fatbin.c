/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fatbin.c - finds the PTX in the images that programs pass to the driver (fatbin.h)
 *
 * A wrapper of version 2 has a fatbin of linked SASS, which is ignored, and a list of fatbins of
 * relocatable code, whose PTX is linked.
 *
 * With a profile that has machine code (profile.c) images are chosen as NVIDIA's driver does: SASS
 * of the device's own major version, the newest that it can run and that for it alone (sm_90a)
 * first, before PTX; CUDA_FORCE_PTX_JIT=1 has it take PTX.
 */
#include "module_i.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "fatbin_unpack.h"

#define ELF_MAGIC 0x464c457fu

/* The text of an entry, which ends at its first NUL. */
static char *unpack(const struct fatbin_entry *e, const uint8_t *data, size_t *len)
{
	char *text = fatbin_unpack(e, data, len);

	if (text)
		*len = strlen(text);
	return text;
}

/* Not PTX for one part (sm_90a) or one family (sm_100f). */
static bool portable(const char *text)
{
	const char *t = strstr(text, ".target"), *end;

	if (!t)
		return true;	/* the parser reports the error */
	end = strchr(t, '\n');
	t = strstr(t, "sm_");
	if (!t || (end && t > end))
		return true;
	t += 3;
	t += strspn(t, "0123456789");
	return *t != 'a' && *t != 'f';
}

/* The PTX of an sm_90a for a device that is one. */
static bool ours(const char *text)
{
	const char *t = strstr(text, ".target sm_");

	return profile->machine_code && t && strtoul(t + 11, NULL, 10) == profile->cc;
}

/* The best PTX of one fatbin: the highest architecture that this device can run. */
static char *pick(const struct fatbin *f, size_t *len, bool *corrupt)
{
	uint32_t limit = profile->cc + 1;

	for (;;) {
		const uint8_t *p = (const uint8_t *)f + f->header, *end = p + f->size, *data, *at = NULL;
		struct fatbin_entry e, best = { 0 };
		char *text;
		int rc;

		while ((rc = fatbin_next(&p, end, &e, &data)) > 0) {
			if (e.kind == FATBIN_KIND_PTX && e.arch < limit && (!at || e.arch > best.arch)) {
				best = e;
				at = data;
			}
		}
		if (!rc && !at)
			return NULL;
		text = rc ? NULL : unpack(&best, at, len);
		if (!text) {
			*corrupt = true;
			return NULL;
		}
		if (portable(text) || ours(text))
			return text;
		free(text);
		limit = best.arch;
	}
}

static CUresult add_text(void ***texts, size_t **lens, unsigned int *n, char *text, size_t len)
{
	void **t = realloc(*texts, (*n + 1) * sizeof(**texts));
	size_t *l;

	if (t)
		*texts = t;
	l = realloc(*lens, (*n + 1) * sizeof(**lens));
	if (l)
		*lens = l;
	if (!t || !l) {
		free(text);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	t[*n] = text;
	l[(*n)++] = len;
	return CUDA_SUCCESS;
}

static CUresult add_fatbin(const struct fatbin *f, void ***texts, size_t **lens, unsigned int *n);

/* A fatbin in a linked image, of len bytes at most; it must not be a linked image itself. */
static CUresult add_inner(const void *data, size_t len, void ***texts, size_t **lens, unsigned int *n)
{
	struct fatbin f;

	if (fatbin_head(data, len, &f) || f.version == FATBIN_LINKED)
		return CUDA_ERROR_INVALID_IMAGE;
	return add_fatbin(data, texts, lens, n);
}

/* An image of cuLinkComplete or of libintercept/rtc: its entries are linked texts or fatbins. */
static CUresult add_linked(const struct fatbin *f, void ***texts, size_t **lens, unsigned int *n)
{
	const uint8_t *p = (const uint8_t *)f + f->header, *end = p + f->size, *data;
	CUresult r = CUDA_SUCCESS;
	struct fatbin_entry e;
	size_t len;
	char *text;
	int rc;

	while (!r && (rc = fatbin_next(&p, end, &e, &data))) {
		if (rc < 0)
			return CUDA_ERROR_INVALID_IMAGE;
		if (e.kind == FATBIN_KIND_FATBIN) {
			r = add_inner(data, e.padded, texts, lens, n);
		} else {
			text = unpack(&e, data, &len);
			r = text ? add_text(texts, lens, n, text, len) : CUDA_ERROR_INVALID_IMAGE;
		}
	}
	return r;
}

static CUresult add_fatbin(const struct fatbin *f, void ***texts, size_t **lens, unsigned int *n)
{
	bool corrupt = false;
	size_t len;
	char *text;

	if (f && f->magic == FATBIN_MAGIC && f->version == FATBIN_LINKED)
		return add_linked(f, texts, lens, n);
	if (!f || f->magic != FATBIN_MAGIC || f->version != FATBIN_VERSION || f->header < sizeof(*f))
		return CUDA_ERROR_INVALID_IMAGE;
	text = pick(f, &len, &corrupt);
	if (!text)
		return corrupt ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_NO_BINARY_FOR_GPU;
	return add_text(texts, lens, n, text, len);
}

static CUresult add_raw(const void *image, size_t size, void ***texts, size_t **lens,
			unsigned int *n)
{
	size_t len = size ? strnlen(image, size) : strlen(image);
	const char *s = image;
	char *text;

	for (size_t i = 0; i < len && i < 64; i++)
		if ((unsigned char)s[i] < ' ' && !strchr("\t\n\v\f\r", s[i]))
			return CUDA_ERROR_INVALID_IMAGE;
	if (!len)
		return CUDA_ERROR_INVALID_IMAGE;
	text = malloc(len + 1);
	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(text, image, len);
	text[len] = 0;
	return add_text(texts, lens, n, text, len);
}

CUresult fatbin_texts(const void *image, size_t size, void ***texts, size_t **lens, unsigned int *n)
{
	const struct fatbin_wrapper *w = image;
	uint32_t magic = 0;
	CUresult r;

	for (size_t i = 0; i < 4 && (!size || i < size) && ((const uint8_t *)image)[i]; i++)
		magic |= (uint32_t)((const uint8_t *)image)[i] << 8 * i;	/* texts may be short */
	if (magic == ELF_MAGIC)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	if (magic == FATBIN_MAGIC)
		return add_fatbin(image, texts, lens, n);
	if (magic != FATBIN_WRAPPER_MAGIC)
		return add_raw(image, size, texts, lens, n);
	if (w->version == 2 && w->fatbins && *w->fatbins) {
		for (const void *const *f = w->fatbins; *f; f++) {
			r = add_fatbin(*f, texts, lens, n);
			if (r)
				return r;
		}
		return CUDA_SUCCESS;
	}
	if (w->version != 1 && w->version != 2)
		return CUDA_ERROR_INVALID_IMAGE;
	memcpy(&magic, w->fatbin, 4);
	if (magic == ELF_MAGIC)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return add_fatbin(w->fatbin, texts, lens, n);
}

/* --------------------------------------------------------------- machine code */

#define FOR_ONE_PART 0x100000u	/* flag of an entry: sm_90a, not sm_90 */

static bool is_elf(const void *image, size_t size)
{
	return (!size || size >= 4) && !memcmp(image, &(uint32_t){ ELF_MAGIC }, 4);
}

static bool runs_here(const struct fatbin_entry *e)
{
	return e->kind == FATBIN_KIND_ELF && e->arch / 10 == profile->cc / 10 &&
	       e->arch <= profile->cc && (!(e->flags & FOR_ONE_PART) || e->arch == profile->cc);
}

static CUresult pick_cubin(const struct fatbin *f, void **elf, size_t *len)
{
	const uint8_t *p = (const uint8_t *)f + f->header, *end = p + f->size, *data, *at = NULL;
	struct fatbin_entry e, best = { 0 };
	int rc;

	if (f->version != FATBIN_VERSION || f->header < sizeof(*f))
		return CUDA_ERROR_NOT_FOUND;
	while ((rc = fatbin_next(&p, end, &e, &data)) > 0) {
		if (!runs_here(&e) || (at && (e.arch < best.arch ||
		    (e.arch == best.arch && (best.flags & FOR_ONE_PART || !(e.flags & FOR_ONE_PART))))))
			continue;
		best = e;
		at = data;
	}
	if (rc || !at)
		return rc ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_NOT_FOUND;
	*elf = fatbin_unpack(&best, at, len);
	return *elf && is_elf(*elf, *len) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

static CUresult copy_cubin(const void *image, size_t size, void **elf, size_t *len)
{
	Elf64_Ehdr e;

	if (size && size < sizeof(e))
		return CUDA_ERROR_INVALID_IMAGE;
	*len = sass_size(image);
	if (size && *len > size)
		return CUDA_ERROR_INVALID_IMAGE;
	*elf = malloc(*len);
	if (!*elf)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(*elf, image, *len);
	return CUDA_SUCCESS;
}

CUresult fatbin_cubin(const void *image, size_t size, void **elf, size_t *len)
{
	const struct fatbin_wrapper *w = image;
	const char *force = getenv("CUDA_FORCE_PTX_JIT");
	uint32_t magic = 0;

	if (!profile->machine_code || (size && size < 4))
		return CUDA_ERROR_NOT_FOUND;
	for (size_t i = 0; i < 4 && ((const uint8_t *)image)[i]; i++)
		magic |= (uint32_t)((const uint8_t *)image)[i] << 8 * i;	/* texts may be short */
	if (magic == ELF_MAGIC)
		return copy_cubin(image, size, elf, len);
	if (force && !strcmp(force, "1"))
		return CUDA_ERROR_NOT_FOUND;
	if (magic == FATBIN_MAGIC)
		return pick_cubin(image, elf, len);
	if (magic != FATBIN_WRAPPER_MAGIC || (w->version != 1 && w->version != 2) || !w->fatbin)
		return CUDA_ERROR_NOT_FOUND;
	memcpy(&magic, w->fatbin, 4);
	if (magic == ELF_MAGIC)
		return copy_cubin(w->fatbin, 0, elf, len);
	return magic == FATBIN_MAGIC ? pick_cubin(w->fatbin, elf, len) : CUDA_ERROR_NOT_FOUND;
}
