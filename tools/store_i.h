/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_i.h - what the commands of `singvgpu store` share
 */
#ifndef STORE_I_H
#define STORE_I_H

#include <limits.h>

#include "store.h"
#include "tool_i.h"

struct store_args {
	const char *command;	/* "ls" … */
	const char *store;	/* --store, or NULL */
	bool json, sizes, create;
	long zstd, keep, wait_ms;
	const char *remote;	/* the program on the other host */
	int argc;		/* what is behind the command */
	char **argv;
};

/* --------------------------------------------------------------------------- store.c */

/* Opens what --store says, or path if that is not NULL; NULL: the user knows why. */
struct store *store_args_open(const struct store_args *a, const char *path, unsigned int flags);
/* "0123…" of a checkpoint's id as it is shown: the first digits; buf[13]. */
const char *store_short(char *buf, const char *id);

/* ---------------------------------------------------------------------- store_list.c */

/* Exit statuses, as all commands return them. */
int store_ls(const struct store_args *a);
int store_show(const struct store_args *a);
/* The value of a top-level string member of a JSON object; malloc'ed, or NULL. */
char *store_json_string(const char *json, const char *key);

/* ---------------------------------------------------------------------- store_move.c */

int store_push(const struct store_args *a);
int store_pull(const struct store_args *a);
/* The other side of both, on stdin and stdout. */
int store_serve(const struct store_args *a);

#endif
