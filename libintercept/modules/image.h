/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - the options that come with an image, its loading, and its end
 */
#ifndef IMAGE_H
#define IMAGE_H

#include "object.h"

struct image_options {
	unsigned int n;			/* number of JIT options */
	const CUjit_option *opt;
	void **values;			/* some are written: sizes of logs, the time taken */
	unsigned int n_lib;
	const CUlibraryOption *lib_opt;
	void **lib_values;

	/* Outputs found among the JIT options. */
	char *info, *error;
	unsigned int *info_size, *error_size;
	float *wall;
};

/*
 * image_options_sort: copies JIT options that are plain numbers to `to` (64 entries) and
 * a->n_opt, and the sizes of wanted logs to a. image_options_done: copies logs and time back to
 * the program.
 */
LOCAL void image_options_sort(struct image_options *o, struct sv_jit_opt *to, struct sv_image *a);
LOCAL void image_options_done(struct image_options *o, const struct sv_image *a, double ms);

/*
 * Load the image as im, by SV_OP_cuModuleLoadDataEx or SV_OP_cuLibraryLoadData. The caller's
 * bytes are not used after the return.
 */
LOCAL CUresult image_load(uint16_t op, struct image *im, struct context *ctx, const void *image,
			  struct image_options *o);

/* Load a library for the device of `here`, too; with the options that it came with. */
LOCAL CUresult image_load_again(const struct image *im);

/* Forget an image, or a function, that has ended with its context (hooks.h). */
LOCAL void module_object_gone(struct obj *o, unsigned int type);

#endif
