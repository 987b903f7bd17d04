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

/* ---------------------------------------------------------------------------- args.c */

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

struct sizes {
	uint64_t logical, data, distinct, alone;
};

/* A page, identified by half of its digest, which is enough for sizes. */
struct page {
	uint64_t key;		/* 0: none */
	uint32_t last;		/* the last owner that was found to have it */
	uint32_t shared;	/* another one has it, too */
};

struct pages {
	struct page *at;
	uint64_t room, n;	/* room: a power of two */
};

/* The page of that key, which is added if it is not there (*fresh); NULL: no memory. */
struct page *pages_get(struct pages *t, uint64_t key, bool *fresh);
/* Calls each with the keys of an object's pages until it returns not 0. */
int object_pages(struct store *s, const struct store_ref *ref,
		 int (*each)(void *arg, uint64_t key), void *arg);

/* ---------------------------------------------------------------------- kinds.c */

/* A row of `show`: what a rank, or the job as a whole (-1), has of a kind. */
struct kind_row {
	int rank;
	const char *kind;	/* "program", "device", "files", "communicators" */
	uint64_t data, distinct, shared;
	/* What distinct is the sum of: what earlier checkpoints had; of the rest, what other rows have, too. */
	uint64_t earlier, within, fresh;
};

struct kinds {
	struct kind_row *row;	/* sorted */
	size_t n;
};

/* The checkpoints before, whose pages are not new. All but `most` zero before the first one. */
struct kinds_past {
	struct pages pages;
	uint64_t walked, most;	/* pages; most 0: any number */
	uint32_t who, checkpoint;
};
/* kinds_count(), of one checkpoint after the other. -E2BIG: they have too many pages. */
int kinds_next(struct kinds_past *past, struct store *s, const struct store_checkpoint *c, struct kinds *k);
void kinds_past_free(struct kinds_past *past);

/* kinds_count: of a job's checkpoint; others have no rows. -ENOMEM, errors of the store. */
int kinds_count(struct store *s, const struct store_checkpoint *c, struct kinds *k);
void kinds_text(const struct kinds *k);
void kinds_json(const struct kinds *k, struct json *j);
void kinds_free(struct kinds *k);

/* ---------------------------------------------------------------------- move.c */

int store_push(const struct store_args *a);
int store_pull(const struct store_args *a);
/* The other side of both, on stdin and stdout. */
int store_serve(const struct store_args *a);

#endif
