/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - which bytes each sharer of a device has, while one of them has the device's memory
 *
 * A device's memory is divided into *units* of 64 KiB. A *version* is the contents of a unit at some time: a digest, and the
 * bytes in the *backing*. The table has the version of each unit of each sharer, and the version that lies in each unit of
 * the device. So a switch moves only the units whose versions differ, and a version that several sharers have is stored
 * once (RANKS.md, R12).
 *
 *   resident's unit ── table_left(digest) ──► the version it had │ one of another sharer │ a new one: copy it to the backing
 *   next one's unit ── table_brings ────────► nothing to do │ zeros │ copy it from the backing ── table_brought
 *
 * A unit that a sharer has *none* of shows zeros, never another's bytes.
 *
 * The table is a file in memory, which all sharers map. Only the sharer whose turn it is changes it, between table_change()
 * and table_changed(). If its process dies in between, the table is *torn*, and every later table_change() fails. Each
 * sharer has a row, which belongs to a seat and to one process there.
 */
#ifndef UPROXY_SLICE_TABLE_H
#define UPROXY_SLICE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TABLE_UNIT    (64ull << 10)
#define TABLE_ROWS    64u		/* sharers of one device */
#define TABLE_UNITS   (1u << 24)	/* 1 TiB of memory */

struct table;

struct table_digest {
	uint64_t word[2];
};

/*
 * table_lay_out: makes an empty file in memory a table for `units` units, at most TABLE_UNITS, of which
 * nothing takes memory yet.
 * zeros: the digest of a unit of zeros. clean: the memory of units that nobody has used is known to be zeros.
 * table_open: maps the table of fd, which stays the caller's; *is_new: it is empty, and has to be laid out.
 * -errno; -EPROTO: that is no table; -EINVAL.
 */
int table_lay_out(int fd, uint64_t units, const struct table_digest *zeros, bool clean);
int table_open(int fd, struct table **t, bool *is_new);
void table_close(struct table *t);
uint64_t table_units(const struct table *t);

/*
 * table_change: the caller is about to change the table. -ENOTRECOVERABLE: it is torn. table_changed: it is
 * whole again.
 */
int table_change(struct table *t);
void table_changed(struct table *t);

/*
 * table_row: the row of a seat; `process` names the process there, and is not 0. A row of an earlier
 * process is emptied first. -ENOSPC: there are TABLE_ROWS others. table_drop: empties the row of a seat
 * whose process has ended, if it has one. table_rows: calls seat() for the seat of each row.
 */
int table_row(struct table *t, uint32_t seat, uint64_t process);
void table_drop(struct table *t, uint32_t seat);
void table_rows(const struct table *t, void (*seat)(void *ctx, uint32_t seat), void *ctx);

/*
 * table_left: what a row's unit holds in the device's memory, as the digest says. Returns 0: the table has
 * it; 1: it is a new version, and *backing is where its bytes have to be copied before the memory goes to
 * another; -ENOSPC: there is no room for it.
 * table_freed: the row has none of the unit any more. resident: so what lies in the memory is nobody's.
 */
int table_left(struct table *t, uint32_t row, uint64_t unit, const struct table_digest *d, void **backing);
void table_freed(struct table *t, uint32_t row, uint64_t unit, bool resident);

/*
 * What has to be done so that the memory has the row's unit, or zeros if it has none of it. *from: the
 * backing of TABLE_COPY.
 * table_brought: it has been done.
 */
enum table_brings { TABLE_NOTHING, TABLE_ZEROS, TABLE_COPY };
enum table_brings table_brings(const struct table *t, uint32_t row, uint64_t unit, const void **from);
void table_brought(struct table *t, uint32_t row, uint64_t unit);

/* Where the backing has the row's unit, which stays until the row's next change; NULL: it is zeros. */
const void *table_bytes(const struct table *t, uint32_t row, uint64_t unit);

/* What lies in the memory is not known any more: a sharer that had it has ended. */
void table_forget(struct table *t);

/*
 * Versions that there are, without that of zeros, and how many of them there have been at most; each takes
 * TABLE_UNIT bytes.
 */
uint64_t table_versions(const struct table *t, uint64_t *most);

#endif /* UPROXY_SLICE_TABLE_H */
