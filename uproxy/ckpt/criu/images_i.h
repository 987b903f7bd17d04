/* SPDX-License-Identifier: Apache-2.0 */
/*
 * images_i.h - pages that are written into a restored process without CRIU
 */
#ifndef UPROXY_CKPT_IMAGES_I_H
#define UPROXY_CKPT_IMAGES_I_H

#include <stdbool.h>

#include "images.h"

struct direct;

/* Returns the packed image of that name; NULL: none. */
typedef const char *(*direct_small)(const void *arg, const char *name, uint64_t *len);

/*
 * Finds the pages that can bypass CRIU. NULL: none, also if an image is not as expected. pid[n] are
 * the pids of all mm-PID.img.
 */
struct direct *direct_plan(const struct images_source *source, direct_small small, const void *arg,
			   const int *pid, size_t n);
void direct_free(struct direct *d);

/* The pagemap without those pages, which replaces the image of that name; NULL: unchanged. */
const char *direct_pagemap(const struct direct *d, const char *name, uint64_t *len);

/* The next range [*off, *end) of pages-N.img that CRIU gets. False: none behind off. */
bool direct_keep(const struct direct *d, const char *name, uint64_t size, uint64_t *off,
		 uint64_t *end);

/* Begins to read the pages that direct_fill will write. */
void direct_begin(struct direct *d);

/* Writes all pages. find returns our pid of a process by its pid in the images. 0 or -errno. */
int direct_fill(struct direct *d, pid_t (*find)(void *arg, int pid), void *arg, uint64_t *bytes);

#endif
