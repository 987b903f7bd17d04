/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_cache.h - a file of a compiled kernel, and the caches that have such files
 */
#ifndef RT_CACHE_H
#define RT_CACHE_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "rt_i.h"

#define CACHE_MAGIC "softgpu object\n"

struct cache_head {
	char magic[16];			/* CACHE_MAGIC */
	XXH128_hash_t key;
	XXH128_hash_t sum;		/* of everything behind this field, with the object */
	struct ptx_kernel_info info;
	uint8_t spins, calls, pad[6];
	uint64_t len;
};

/* The file, checked, with its object behind it; the caller frees it. NULL: there is none. */
struct cache_head *cache_read(XXH128_hash_t key);
/* False: it could not be written, or there is no cache to write to. */
bool cache_write(XXH128_hash_t key, const struct ptx_kernel *k, const void *obj, size_t len);

#endif
