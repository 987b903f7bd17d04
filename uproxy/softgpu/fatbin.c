/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fatbin.c - finds the PTX in what programs hand to the driver.
 *
 *   wrapper  0 u32 0x466243b1  4 u32 version  8 ptr fatbin  16 ptr (v2: fatbins of relocatable
 *            code, ended by NULL; their PTX is linked, since `fatbin` holds only linked SASS)
 *   fatbin   0 u32 0xba55ed50  4 u16 1  6 u16 16 (header)  8 u64 bytes that follow
 *   entry    0 u16 kind (1 PTX, 2 ELF, 8 LTO)  4 u32 header  8 u64 padded size  16 u32 packed size
 *            28 u32 arch  40 u64 flags (0x2000 LZ4, 0x8000 ZSTD)  56 u64 unpacked size
 */
#include "module_i.h"

#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define ELF_MAGIC 0x464c457fu
#define KIND_PTX 1
#define FLAG_LZ4 0x2000
#define FLAG_ZSTD 0x8000
#define LINKED_VERSION 0x8001	/* of cuLinkComplete: see module.c */
#define LINKED_FATBIN 0x8001	/* an entry's kind in such an image */
#define MAX_TEXT ((size_t)1 << 30)

struct wrapper {
	uint32_t magic, version;
	const void *fatbin;
	const void *const *fatbins;
};

struct fatbin {
	uint32_t magic;
	uint16_t version, header;
	uint64_t size;
};

struct entry {
	uint16_t kind, version;
	uint32_t header;
	uint64_t padded;
	uint32_t packed, options;
	uint16_t minor, major;
	uint32_t arch, name, name_len;
	uint64_t flags, zero, unpacked;
};

_Static_assert(sizeof(struct entry) == 64, "an entry's fixed part is 64 bytes");

static char *unpack(const struct entry *e, const uint8_t *data, size_t *len)
{
	size_t n = e->flags & (FLAG_LZ4 | FLAG_ZSTD) ? e->unpacked : e->padded;
	char *text;

	if (!n || n > MAX_TEXT || (e->packed && e->packed > e->padded))
		return NULL;
	text = malloc(n + 1);
	if (!text)
		return NULL;
	if (e->flags & FLAG_ZSTD) {
		size_t r = ZSTD_decompress(text, n, data, e->packed);

		if (ZSTD_isError(r))
			goto bad;
		n = r;
	} else if (e->flags & FLAG_LZ4) {
		int r = LZ4_decompress_safe((const char *)data, text, e->packed, n);

		if (r < 0)
			goto bad;
		n = r;
	} else {
		memcpy(text, data, n);
	}
	text[n] = 0;
	*len = strlen(text);
	return text;
bad:
	free(text);
	return NULL;
}

/* PTX for sm_90a or sm_100f runs on that part or family alone. */
static bool portable(const char *text)
{
	const char *t = strstr(text, ".target"), *end;

	if (!t)
		return true;	/* the parser will say */
	end = strchr(t, '\n');
	t = strstr(t, "sm_");
	if (!t || (end && t > end))
		return true;
	t += 3;
	t += strspn(t, "0123456789");
	return *t != 'a' && *t != 'f';
}

/* The best PTX of one fatbin: the highest architecture that this device can run. */
static char *pick(const struct fatbin *f, size_t *len, bool *corrupt)
{
	uint32_t limit = SOFT_CC_MAJOR * 10 + SOFT_CC_MINOR + 1;

	for (;;) {
		const uint8_t *p = (const uint8_t *)f + f->header, *end = p + f->size;
		const struct entry *best = NULL;
		char *text;

		while (p < end) {
			const struct entry *e = (const struct entry *)p;

			if ((size_t)(end - p) < sizeof(*e) || e->header < sizeof(*e) ||
			    e->header > (size_t)(end - p) ||
			    e->padded > (size_t)(end - p) - e->header) {
				*corrupt = true;
				return NULL;
			}
			if (e->kind == KIND_PTX && e->arch < limit &&
			    (!best || e->arch > best->arch))
				best = e;
			p += e->header + e->padded;
		}
		if (!best)
			return NULL;
		text = unpack(best, (const uint8_t *)best + best->header, len);
		if (!text) {
			*corrupt = true;
			return NULL;
		}
		if (portable(text))
			return text;
		free(text);
		limit = best->arch;
	}
}

static CUresult add(void ***texts, size_t **lens, unsigned int *n, char *text, size_t len)
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

/* A fatbin that was linked, of len bytes at most; not a linked image again. */
static CUresult add_inner(const void *data, size_t len, void ***texts, size_t **lens, unsigned int *n)
{
	const struct fatbin *f = data;

	if (len < sizeof(*f) || f->magic != FATBIN_MAGIC || f->version == LINKED_VERSION ||
	    f->header > len || f->size > len - f->header)
		return CUDA_ERROR_INVALID_IMAGE;
	return add_fatbin(f, texts, lens, n);
}

/* An image of cuLinkComplete, or of libintercept/rtc: every entry is one of the linked texts, or a fatbin. */
static CUresult add_linked(const struct fatbin *f, void ***texts, size_t **lens, unsigned int *n)
{
	const uint8_t *p = (const uint8_t *)f + f->header, *end = p + f->size;
	CUresult r = CUDA_SUCCESS;

	while (p < end && !r) {
		const struct entry *e = (const struct entry *)p;
		size_t len;
		char *text;

		if ((size_t)(end - p) < sizeof(*e) || e->header < sizeof(*e) ||
		    e->header > (size_t)(end - p) || e->padded > (size_t)(end - p) - e->header)
			return CUDA_ERROR_INVALID_IMAGE;
		if (e->kind == LINKED_FATBIN) {
			r = add_inner(p + e->header, e->padded, texts, lens, n);
		} else {
			text = unpack(e, p + e->header, &len);
			r = text ? add(texts, lens, n, text, len) : CUDA_ERROR_INVALID_IMAGE;
		}
		p += e->header + e->padded;
	}
	return r;
}

static CUresult add_fatbin(const struct fatbin *f, void ***texts, size_t **lens, unsigned int *n)
{
	bool corrupt = false;
	size_t len;
	char *text;

	if (f && f->magic == FATBIN_MAGIC && f->version == LINKED_VERSION)
		return add_linked(f, texts, lens, n);
	if (!f || f->magic != FATBIN_MAGIC || f->version != 1 || f->header < sizeof(*f))
		return CUDA_ERROR_INVALID_IMAGE;
	text = pick(f, &len, &corrupt);
	if (!text)
		return corrupt ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_NO_BINARY_FOR_GPU;
	return add(texts, lens, n, text, len);
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
	return add(texts, lens, n, text, len);
}

CUresult fatbin_texts(const void *image, size_t size, void ***texts, size_t **lens, unsigned int *n)
{
	const struct wrapper *w = image;
	uint32_t magic = 0;
	CUresult r;

	for (size_t i = 0; i < 4 && (!size || i < size) && ((const uint8_t *)image)[i]; i++)
		magic |= (uint32_t)((const uint8_t *)image)[i] << 8 * i;	/* texts may be short */
	if (magic == ELF_MAGIC)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	if (magic == FATBIN_MAGIC)
		return add_fatbin(image, texts, lens, n);
	if (magic != WRAPPER_MAGIC)
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
