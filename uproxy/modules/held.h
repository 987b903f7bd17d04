/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held.h - the bytes that an image had in the program's file when it was loaded
 *
 * They stay the same until the last reference is dropped, whatever becomes of the file: replaced, moved,
 * removed, truncated, written to. Any thread may call these.
 */
#ifndef HELD_H
#define HELD_H

#include "call.h"

struct held;
struct kept_digest {
	uint64_t low, high;	/* XXH3-128 of the bytes */
};

#define HELD_BEHIND	64		/* zeros behind the bytes of a copy */

/*
 * Holds the bytes that the file at path has where a says. held_open: the file must be the one that a
 * describes, of any inode if that is so. held_open_again: any file with bytes of this digest.
 * 0; -ENOENT: it is another file, or there is none; -ENOMEM. The caller owns *h, one reference.
 */
int held_open(struct held **h, const struct sv_image *a, const char *path, bool any_inode);
int held_open_again(struct held **h, const struct sv_image *a, const char *path,
		    const struct kept_digest *digest);
/* The same for a copy of p, len bytes that the file at path once had. -ENOMEM */
int held_copy(struct held **h, const void *p, const struct sv_image *a, const char *path);

struct held *held_get(struct held *h);
void held_put(struct held *h);		/* NULL is ignored */

const void *held_bytes(const struct held *h);
uint64_t held_len(const struct held *h);

/*
 * The digest of bytes that are held; and whether the file that they are of still has them, or has
 * them again: false, too, if that cannot be read. May read both.
 */
void held_digest(struct held *h, struct kept_digest *d);
bool held_in_file(struct held *h);
/* Has the file been changed since then (CLOCK_REALTIME, ns), or has the checkpoint had the bytes? */
bool held_since(const struct held *h, uint64_t ns);
/* Blocks the signal by which the kernel tells of writers, before there are other threads. */
void held_begin(void);

#endif
