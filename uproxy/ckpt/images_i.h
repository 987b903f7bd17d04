/* SPDX-License-Identifier: Apache-2.0 */
/*
 * images_i.h - pages that go straight into a restored process, past CRIU
 */
#ifndef UPROXY_CKPT_IMAGES_I_H
#define UPROXY_CKPT_IMAGES_I_H

#include <stdbool.h>

#include "images.h"

struct direct;

/* An image that is packed: NULL if there is none of that name. */
typedef const char *(*direct_small)(const void *arg, const char *name, uint64_t *len);

/*
 * What can go past CRIU. NULL: nothing, also when the images are not understood. mm is called with
 * the pid in each mm-PID.img that there is.
 */
struct direct *direct_plan(const struct images_source *source, direct_small small, const void *arg,
			   const int *pid, size_t n);
void direct_free(struct direct *d);

/* A pagemap without those pages, in place of the image of that name; NULL: it is as it was. */
const char *direct_pagemap(const struct direct *d, const char *name, uint64_t *len);

/* Of pages-N.img: the next part at or behind off that is CRIU's. False: none up to its end. */
bool direct_keep(const struct direct *d, const char *name, uint64_t size, uint64_t *off,
		 uint64_t *end);

/* Begins to read what direct_fill is going to write. */
void direct_begin(struct direct *d);

/* Writes them all. find gives the pid here of one in the images. 0 or -errno. */
int direct_fill(struct direct *d, pid_t (*find)(void *arg, int pid), void *arg, uint64_t *bytes);

#endif
