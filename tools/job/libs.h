/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libs.h - copies of the stand-ins that jobs preload, in folders that never change
 */
#ifndef LIBS_H
#define LIBS_H

#include "tool_i.h"

/*
 * Sets p's libdir and init to a copy that is named after its contents, so that a restore can put
 * the same files back at the same paths. p stays as it is if the copy cannot be made (no cache
 * folder, noexec) and if $SINGVGPU_LIBDIR names another folder.
 */
void libs_keep(struct places *p);

/*
 * libs_may_put: 0 if name is that of a stand-in and dir the path of a copy, which need not exist;
 * else -EPERM. libs_put: writes or replaces that file. -EPERM also if anybody else may write to the
 * folder.
 */
int libs_may_put(const char *dir, const char *name);
int libs_put(const char *dir, const char *name, const void *data, size_t len);

#endif
