/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fatbin.h - the formats of images that programs pass to a driver: wrappers, fatbins, entries
 *
 *   wrapper (in memory)   struct fatbin_wrapper ─► a fatbin, or (version 2) an array of fatbins of
 *                         relocatable code, ended by NULL, which are linked
 *   fatbin                struct fatbin, then entries up to its size
 *   entry                 a header of `header` bytes that begins with struct fatbin_entry, then
 *                         `padded` bytes of data
 *
 * All little-endian. Linked images are a format of singvgpu's own: a fatbin of version
 * FATBIN_LINKED, whose entries are all linked; an entry of kind FATBIN_KIND_FATBIN holds a
 * fatbin. jitlink.c and the soft device's linker make such images.
 */
#ifndef SV_FATBIN_H
#define SV_FATBIN_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FATBIN_WRAPPER_MAGIC	0x466243b1u
#define FATBIN_MAGIC		0xba55ed50u
#define FATBIN_VERSION		1
#define FATBIN_LINKED		0x8001

enum { FATBIN_KIND_PTX = 1, FATBIN_KIND_ELF = 2, FATBIN_KIND_LTOIR = 8, FATBIN_KIND_FATBIN = 0x8001 };

#define FATBIN_LZ4		0x2000u		/* flags of an entry: compression of its data */
#define FATBIN_ZSTD		0x8000u

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct fatbin_wrapper {
	uint32_t magic, version;
	const void *fatbin;
	const void *const *fatbins;	/* version 2 */
};

struct fatbin {
	uint32_t magic;
	uint16_t version, header;	/* header: bytes of this struct or of a later, longer one */
	uint64_t size;			/* bytes behind the header */
};

struct fatbin_entry {
	uint16_t kind, version;
	uint32_t header;		/* bytes */
	uint64_t padded;		/* bytes of data behind it */
	uint32_t packed, options;	/* packed: bytes of compressed data, without padding */
	uint16_t minor, major;
	uint32_t arch, name, name_len;
	uint64_t flags, zero, unpacked;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct fatbin_wrapper) == 24, "file format");
_Static_assert(sizeof(struct fatbin) == 16, "file format");
_Static_assert(sizeof(struct fatbin_entry) == 64, "file format");

/* Copies the header of a fatbin that lies whole within the len bytes at p. -EBADMSG: none does. */
static inline int fatbin_head(const void *p, uint64_t len, struct fatbin *f)
{
	if (len < sizeof(*f))
		return -EBADMSG;
	memcpy(f, p, sizeof(*f));
	return f->magic == FATBIN_MAGIC && f->header >= sizeof(*f) && f->header <= len &&
	       f->size <= len - f->header ? 0 : -EBADMSG;
}

/*
 * fatbin_next: reads the entry at *at of a fatbin whose entries end at end, and advances *at past
 * it. 1: *data are its e->padded bytes. 0: there are no more. -EBADMSG: it extends past the end.
 */
static inline int fatbin_next(const uint8_t **at, const uint8_t *end, struct fatbin_entry *e,
			      const uint8_t **data)
{
	uint64_t left = end - *at;

	if (*at >= end)
		return 0;
	if (left < sizeof(*e))
		return -EBADMSG;
	memcpy(e, *at, sizeof(*e));
	if (e->header < sizeof(*e) || e->header > left || e->padded > left - e->header)
		return -EBADMSG;
	*data = *at + e->header;
	*at = *data + e->padded;
	return 1;
}

#endif
