/* SPDX-License-Identifier: Apache-2.0 */
/*
 * content_i.h - the device object of a dump, and the functions that write and read it
 *
 *   plan.c     asks the session and its driver what there is to save ─► regions
 *   move.c     device ─► object and back: directly, through pinned buffers, or by digests first
 *   content.c  check, dump, restore; channel.c the channel and its arena; observe.c what programs see
 *
 * The object is a sparse array of bytes, little endian:
 *
 *   0                     struct content_head
 *   4096                  head.regions × struct region, sorted; then head.names bytes of names
 *   CONTENT_MEMORY + x    byte x of the device window, where SV_OP_X_MAP has mapped memory
 *   CONTENT_OTHER …       physical memory of cuMemCreate, page-aligned; then, packed, variables,
 *                         arrays row by row (levels, slices), the driver's own memory
 *
 * Window memory has a fixed place in the object, so that the store's maps of two dumps are alike.
 */
#ifndef CONTENT_I_H
#define CONTENT_I_H

#include "call.h"
#include "content.h"

#define CONTENT_MAGIC	0x544e4f43u	/* "CONT" */
#define CONTENT_VERSION	1u
#define CONTENT_TABLE	4096ull
#define CONTENT_MEMORY	(1ull << 36)
#define CONTENT_OTHER	(1ull << 47)

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct content_head {
	uint32_t magic, version;
	uint64_t window, window_len;
	uint64_t regions, names;
	uint64_t bytes;		/* of contents */
};

enum region_kind {
	REGION_MEMORY = 1,	/* at, len: of the window */
	REGION_PHYSICAL,	/* handle, len: whether it is mapped or not */
	REGION_VARIABLE,	/* handle of the image, ctx, name, at, len */
	REGION_ARRAY,		/* handle, level: row bytes × rows × slices */
	REGION_DRIVER,		/* name, at, len: hal_own_memory */
	REGION_EVENT,		/* handle, ctx; row: the float of event_before */
};

struct region {
	uint32_t kind, level;
	uint64_t handle, ctx;
	uint64_t at, len;
	uint64_t off;		/* in the object */
	uint32_t name;		/* in the names; 0: "" */
	uint32_t row, rows, slices;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct content_head) == 48, "file format");
_Static_assert(sizeof(struct region) == 64, "file format");

struct planned {		/* a region of this session */
	struct region r;
	uint64_t real;		/* the driver's handle */
};

struct plan {
	struct planned *p;	/* sorted */
	size_t n, cap;
	char *names;		/* begin with a NUL */
	size_t names_len, names_cap;
	uint64_t bytes;
};

/*
 * plan_make: lists the session's regions; if it is not idle, without those that only an idle device
 * can list. -ENOTSUP one cannot be saved, -EIO … plan_free frees the list.
 */
int plan_make(struct sv_session *s, struct plan *p, bool idle, struct why *why);
void plan_free(struct plan *p);

/* Orders two regions; 0: they are the same one. an and bn are the names that each refers to. */
int region_compare(const struct region *a, const char *an, const struct region *b, const char *bn);
void region_say(const struct region *r, const char *names, char *text, size_t n);

/* Enters a region's context; 0: the primary one. 0 or -EIO. */
int plan_enter(struct sv_session *s, uint64_t ctx);

/* The array of a region, or the level of a mipmapped one. */
CUresult plan_array(struct hal *h, const struct planned *p, CUarray *array);

/* ------------------------------------------------------------------------------ move.c */

struct mover;

int mover_open(struct mover **m, struct sv_session *s, struct store *st,
	       const struct content_progress *p, uint64_t total, struct content_stats *stats);
void mover_close(struct mover *m);

/*
 * mover_save: saves linear memory of the device to o at off, a multiple of a page; one o for all
 * calls. Threads of the mover read the memory until mover_settle, and hold a part of o until
 * mover_finish; mover_close drops what is not finished.
 */
int mover_save(struct mover *m, struct store_object *o, uint64_t va, uint64_t len, uint64_t off,
	       struct why *why);

int mover_settle(struct mover *m, struct why *why);
int mover_finish(struct mover *m, struct why *why);

/* Save, load a packed region of CONTENT_OTHER. */
int mover_save_packed(struct mover *m, struct store_object *o, const struct planned *p,
		      struct why *why);
int mover_load_packed(struct mover *m, struct store_reader *r, const struct planned *p,
		      struct why *why);

/* Loads len bytes at off of the object to va, with several threads. Holes become zeros. */
int mover_load(struct mover *m, const struct store_ref *ref, uint64_t va, uint64_t len,
	       uint64_t off, struct why *why);

/* Maps physical memory at *va, outside the window, until mover_unmap. */
int mover_map(struct mover *m, const struct planned *p, uint64_t *va, struct why *why);
void mover_unmap(struct mover *m, const struct planned *p, uint64_t va);

/*
 * sparse.c. sparse_next: the first part of [va, end) of our own memory that may have data; false:
 * none. own: the descriptor of a device that supports SEEK_DATA, or -1 (regular files alone).
 */
struct sparse;
struct sparse *sparse_open(int own);
bool sparse_next(struct sparse *s, uint64_t va, uint64_t end, uint64_t *from, uint64_t *to);
void sparse_close(struct sparse *s);
/* The descriptor of the file that is mapped at all of [va, va + len), and the offset; -1: none. */
int sparse_file(const struct sparse *s, uint64_t va, uint64_t len, uint64_t *off);

#endif
