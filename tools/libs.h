/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libs.h - the stand-ins that jobs preload, in a folder that never changes
 */
#ifndef LIBS_H
#define LIBS_H

#include "tool_i.h"

/*
 * Makes p's libdir and init those of a copy that is named after its contents, so that a checkpoint
 * can put the very same files back at the same place. Where the copy cannot be made (no cache
 * folder, noexec) and where $SINGVGPU_LIBDIR names another folder all stays as it is.
 */
void libs_keep(struct places *p);

/* The folder of all copies. 0, -ENOENT or -ENAMETOOLONG. */
int libs_base(char *path, size_t size);

#endif
