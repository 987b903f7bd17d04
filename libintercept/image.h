/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - the options that come with an image, and its loading
 */
#ifndef IMAGE_H
#define IMAGE_H

#include "client.h"

struct image_options {
	unsigned int n;			/* of the JIT's */
	const CUjit_option *opt;
	void **values;			/* some are written: sizes of logs, the time taken */
	unsigned int n_lib;
	const CUlibraryOption *lib_opt;
	void **lib_values;

	/* Found among the JIT's. */
	char *info, *error;
	unsigned int *info_size, *error_size;
	float *wall;
};

/*
 * image_options_sort: the JIT's options that are plain numbers to `to` (64 of them) and a->n_opt, what
 * is wanted of logs to a; image_options_done: logs and time back to the program.
 */
LOCAL void image_options_sort(struct image_options *o, struct sv_jit_opt *to, struct sv_image *a);
LOCAL void image_options_done(struct image_options *o, const struct sv_image *a, double ms);

/*
 * Load what image points to as im, by SV_OP_cuModuleLoadDataEx or SV_OP_cuLibraryLoadData. Nothing
 * of image is used after the return.
 */
LOCAL CUresult image_load(uint16_t op, struct image *im, struct context *ctx, const void *image,
			  struct image_options *o);

#endif
