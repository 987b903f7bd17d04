/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fatbin_unpack.h - decompresses the data of a fatbin's entry (liblz4, libzstd)
 */
#ifndef SV_FATBIN_UNPACK_H
#define SV_FATBIN_UNPACK_H

#include <lz4.h>
#include <stdlib.h>
#include <zstd.h>

#include "fatbin.h"

#define FATBIN_UNPACKED_MAX	((uint64_t)1 << 30)	/* bytes of an entry */

/* *len bytes with a NUL behind them, which the caller frees. NULL: damaged, too large, no memory. */
static inline void *fatbin_unpack(const struct fatbin_entry *e, const uint8_t *data, size_t *len)
{
	size_t n = e->flags & (FATBIN_LZ4 | FATBIN_ZSTD) ? e->unpacked : e->padded;
	char *out = NULL;

	if (n && n <= FATBIN_UNPACKED_MAX && e->packed <= e->padded)
		out = malloc(n + 1);
	if (!out)
		return NULL;
	if (e->flags & FATBIN_ZSTD) {
		*len = ZSTD_decompress(out, n, data, e->packed);
		if (ZSTD_isError(*len))
			goto bad;
	} else if (e->flags & FATBIN_LZ4) {
		int r = LZ4_decompress_safe((const char *)data, out, e->packed, n);

		if (r < 0)
			goto bad;
		*len = r;
	} else {
		memcpy(out, data, n);
		*len = n;
	}
	out[*len] = 0;
	return out;
bad:
	free(out);
	return NULL;
}

#endif
