/* SPDX-License-Identifier: Apache-2.0 */
/*
 * modules.h - images, their kernels, functions and variables, and launches
 */
#ifndef MODULES_H
#define MODULES_H

#include "call.h"

int do_load_library(struct call *k);
int do_load_module(struct call *k);
int do_unload(struct call *k);
int do_link(struct call *k);
int do_get_kernel(struct call *k);
int do_get_function(struct call *k);
int do_get_global(struct call *k);
int do_derive(struct call *k);
int do_enumerate(struct call *k);
int do_func_info(struct call *k);
int do_prepare(struct call *k);
int do_clusters(struct call *k);
void images_ctx_gone(uint64_t ctx);
/* The file that a log's entry loads an image from, or NULL. */
const char *image_path(const struct singvgpu_log_entry *e, const void *data);

/* A kernel or function; it lives as long as its handle. */
struct func {
	struct image *image;
	uint32_t param_bytes;
	bool known;			/* param_bytes is */
	uint64_t seen;			/* the last context of func_seen(); atomic */
};
int func_find(struct sv_session *s, uint64_t handle, CUfunction *real, struct func **f);
/* Before it is launched in the context, or put into a graph there: image_i.h. Any thread. */
void func_seen(struct sv_session *s, uint64_t handle, uint64_t ctx);

int do_launch(struct call *k);

#endif
