/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_tool_i.h - what the commands of `singvgpu store` share
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
	int argc;		/* arguments behind the command */
	char **argv;
};

/* --------------------------------------------------------------------------- store.c */

/* Opens path, or --store if path is NULL. NULL: the reason is printed. */
struct store *store_args_open(const struct store_args *a, const char *path, unsigned int flags);
/* The first digits of a checkpoint's id, for display; buf[13]. */
const char *store_short(char *buf, const char *id);

/* ---------------------------------------------------------------------- list.c */

/* Exit statuses, as all commands return them. */
int store_ls(const struct store_args *a);
int store_show(const struct store_args *a);
/* The value of a top-level string member of a JSON object; malloc'ed, or NULL. */
char *store_json_string(const char *json, const char *key);

/* ---------------------------------------------------------------------- move.c */

int store_push(const struct store_args *a);
int store_pull(const struct store_args *a);
/* The other side of both, on stdin and stdout. */
int store_serve(const struct store_args *a);

#endif
