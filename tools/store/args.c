// SPDX-License-Identifier: Apache-2.0
/*
 * args.c - the store that a command's arguments mean, and how a checkpoint's id is shown
 */
#include "ckpt_where.h"
#include "store_tool_i.h"

struct store *store_args_open(const struct store_args *a, const char *path, unsigned int flags)
{
	struct why why = { 0 };
	char place[PATH_MAX];
	struct store *s;

	if (!path) {
		path = ckpt_store_path(a->store, place, &why) ? NULL : place;
	}
	if (path && !store_open(&s, path, flags, &why))
		return s;
	say("%s", why.text);
	return NULL;
}

const char *store_short(char *buf, const char *id)
{
	snprintf(buf, 13, "%s", id);
	return buf;
}
