// SPDX-License-Identifier: Apache-2.0
/*
 * table.c - versions of units: who has which, what lies in the memory, and their bytes
 *
 *   head │ the device's version of each unit │ TABLE_ROWS rows: a version for each unit │ versions │ backing
 *
 * The file is sparse: what has not been used takes no memory. The number of a version is the place of its bytes in the
 * backing. It is free when neither a row nor the device has the version; the bytes stay until the number is used again.
 *
 * Three numbers have no bytes. ZEROS: the unit is zeros. NONE: the sharer has none of the unit; of the device: nobody has
 * used the unit yet. UNKNOWN: nobody knows what lies in the unit of the device.
 */
#define _GNU_SOURCE
#include "table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TABLE_MAGIC   0x54534753u	/* "SGST" */
#define TABLE_VERSION 1
#define PAGE	      4096ull

#define NONE	0u
#define ZEROS	1u
#define UNKNOWN UINT32_MAX

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct row {
	uint64_t process;	/* 0: the row is free */
	uint32_t seat;
	uint32_t zero;
};

struct version {
	struct table_digest digest;
	uint32_t refs;		/* rows that have it, and the device */
	uint32_t next;		/* of those that are free; NONE: the last */
};

struct head {
	uint32_t magic, version;
	uint64_t units, size;
	uint32_t changing;	/* between table_change() and table_changed() */
	uint32_t free;		/* the first free version; NONE: those above `highest` alone */
	uint32_t clean;		/* units that nobody has used are zeros */
	uint32_t zero;
	uint64_t highest;	/* version that has been used */
	uint64_t versions, most;
	struct row row[TABLE_ROWS];
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct row) == 16, "shared");
_Static_assert(sizeof(struct version) == 24, "shared");
_Static_assert(sizeof(struct head) == 1088, "shared");

struct table {
	struct head *head;
	uint32_t *device;
	uint32_t *rows;		/* by row, then by unit */
	struct version *version;
	uint8_t *backing;
	uint64_t versions;	/* there is room for: as many as rows and device can have at once, and the first two */
};

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) & -PAGE;
}

static uint64_t versions_of(uint64_t units)
{
	return (TABLE_ROWS + 1) * units + 2;
}

/* Where the parts begin: the device's, rows, versions, backing; the end. */
static void lay(uint64_t units, uint64_t at[5])
{
	at[0] = pages(sizeof(struct head));
	at[1] = at[0] + pages(units * sizeof(uint32_t));
	at[2] = at[1] + TABLE_ROWS * pages(units * sizeof(uint32_t));
	at[3] = (at[2] + versions_of(units) * sizeof(struct version) + TABLE_UNIT - 1) & -TABLE_UNIT;
	at[4] = at[3] + versions_of(units) * TABLE_UNIT;
}

int table_lay_out(int fd, uint64_t units, const struct table_digest *zeros, bool clean)
{
	struct head h = { .magic = TABLE_MAGIC, .version = TABLE_VERSION, .units = units, .clean = clean, .highest = ZEROS };
	struct version first = { .digest = *zeros, .refs = 1 };
	uint64_t at[5];
	off_t of_zeros;

	if (!units || units > TABLE_UNITS)
		return -EINVAL;
	lay(units, at);
	h.size = at[4];
	of_zeros = (off_t)(at[2] + ZEROS * sizeof(first));
	if (ftruncate(fd, (off_t)at[4]))
		return -errno;
	if (pwrite(fd, &first, sizeof(first), of_zeros) != sizeof(first))
		return -EIO;
	return pwrite(fd, &h, sizeof(h), 0) == sizeof(h) ? 0 : -EIO;
}

int table_open(int fd, struct table **out, bool *is_new)
{
	struct table *t;
	struct head h;
	struct stat st;
	uint64_t at[5];
	uint8_t *p;

	*is_new = false;
	if (fstat(fd, &st))
		return -errno;
	*is_new = !st.st_size;
	if (*is_new)
		return 0;
	if (pread(fd, &h, sizeof(h), 0) != sizeof(h) || h.magic != TABLE_MAGIC || h.version != TABLE_VERSION || !h.units ||
	    h.units > TABLE_UNITS)
		return -EPROTO;
	lay(h.units, at);
	if (h.size != at[4] || (uint64_t)st.st_size != at[4])
		return -EPROTO;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	p = mmap(NULL, at[4], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED) {
		free(t);
		return -errno;
	}
	*t = (struct table){ .head = (void *)p, .device = (void *)(p + at[0]), .rows = (void *)(p + at[1]),
			     .version = (void *)(p + at[2]), .backing = p + at[3], .versions = versions_of(h.units) };
	*out = t;
	return 0;
}

void table_close(struct table *t)
{
	munmap(t->head, t->head->size);
	free(t);
}

uint64_t table_units(const struct table *t)
{
	return t->head->units;
}

int table_change(struct table *t)
{
	if (t->head->changing)
		return -ENOTRECOVERABLE;
	t->head->changing = 1;
	/* A process that dies from here on leaves the mark, whatever of its changes is there. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return 0;
}

void table_changed(struct table *t)
{
	__atomic_store_n(&t->head->changing, 0, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------------------ versions */

static uint32_t *row_at(const struct table *t, uint32_t row, uint64_t unit)
{
	return t->rows + row * (pages(t->head->units * sizeof(uint32_t)) / sizeof(uint32_t)) + unit;
}

static void *bytes_at(const struct table *t, uint32_t version)
{
	return t->backing + version * TABLE_UNIT;
}

static uint32_t version_new(struct table *t, const struct table_digest *d)
{
	struct head *h = t->head;
	uint32_t v = h->free;

	if (v)
		h->free = t->version[v].next;
	else if (h->highest + 1 < t->versions)
		v = (uint32_t)++h->highest;
	else
		return NONE;
	t->version[v] = (struct version){ .digest = *d };
	if (++h->versions > h->most)
		h->most = h->versions;
	return v;
}

static bool is_counted(uint32_t v)
{
	return v != NONE && v != UNKNOWN;
}

/* A row or the device gets another version. */
static void put(struct table *t, uint32_t *at, uint32_t v)
{
	struct version *old = &t->version[*at];

	if (is_counted(v))
		t->version[v].refs++;
	if (is_counted(*at) && !--old->refs) {
		old->next = t->head->free;
		t->head->free = *at;
		t->head->versions--;
	}
	*at = v;
}

static bool is_version(const struct table *t, uint32_t v, const struct table_digest *d)
{
	return v != NONE && !memcmp(&t->version[v].digest, d, sizeof(*d));
}

/* The version with the digest that a sharer has of the unit, or NONE. */
static uint32_t version_of(const struct table *t, uint64_t unit, const struct table_digest *d)
{
	if (is_version(t, ZEROS, d))
		return ZEROS;
	for (uint32_t r = 0; r < TABLE_ROWS; r++)
		if (t->head->row[r].process && is_version(t, *row_at(t, r, unit), d))
			return *row_at(t, r, unit);
	return NONE;
}

int table_left(struct table *t, uint32_t row, uint64_t unit, const struct table_digest *d, void **backing)
{
	uint32_t v = *row_at(t, row, unit);
	bool is_new;

	if (!is_version(t, v, d))
		v = version_of(t, unit, d);
	is_new = v == NONE;
	if (is_new)
		v = version_new(t, d);
	if (v == NONE)
		return -ENOSPC;
	put(t, row_at(t, row, unit), v);
	put(t, &t->device[unit], v);
	if (is_new)
		*backing = bytes_at(t, v);
	return is_new;
}

void table_freed(struct table *t, uint32_t row, uint64_t unit, bool resident)
{
	put(t, row_at(t, row, unit), NONE);
	if (resident)
		put(t, &t->device[unit], UNKNOWN);
}

enum table_brings table_brings(const struct table *t, uint32_t row, uint64_t unit, const void **from)
{
	uint32_t v = *row_at(t, row, unit), there = t->device[unit];

	if (there == NONE && t->head->clean)
		there = ZEROS;
	v = v == NONE ? ZEROS : v;
	*from = bytes_at(t, v);
	return v == there ? TABLE_NOTHING : v == ZEROS ? TABLE_ZEROS : TABLE_COPY;
}

void table_brought(struct table *t, uint32_t row, uint64_t unit)
{
	uint32_t v = *row_at(t, row, unit);

	put(t, &t->device[unit], v == NONE ? ZEROS : v);
}

const void *table_bytes(const struct table *t, uint32_t row, uint64_t unit)
{
	uint32_t v = *row_at(t, row, unit);

	return v == NONE || v == ZEROS ? NULL : bytes_at(t, v);
}

void table_forget(struct table *t)
{
	for (uint64_t u = 0; u < t->head->units; u++)
		put(t, &t->device[u], UNKNOWN);
}

uint64_t table_versions(const struct table *t, uint64_t *most)
{
	*most = t->head->most;
	return t->head->versions;
}

/* ------------------------------------------------------------------------------ rows */

static void empty(struct table *t, uint32_t row)
{
	for (uint64_t u = 0; u < t->head->units; u++)
		if (*row_at(t, row, u) != NONE)
			put(t, row_at(t, row, u), NONE);
	t->head->row[row] = (struct row){ 0 };
}

static uint32_t row_of(const struct table *t, uint32_t seat)
{
	uint32_t r;

	for (r = 0; r < TABLE_ROWS && !(t->head->row[r].process && t->head->row[r].seat == seat); r++)
		;
	return r;
}

int table_row(struct table *t, uint32_t seat, uint64_t process)
{
	uint32_t r = row_of(t, seat);

	if (r < TABLE_ROWS && t->head->row[r].process != process)
		empty(t, r);
	if (r == TABLE_ROWS)
		for (r = 0; r < TABLE_ROWS && t->head->row[r].process; r++)
			;
	if (r == TABLE_ROWS)
		return -ENOSPC;
	t->head->row[r] = (struct row){ .process = process, .seat = seat };
	return (int)r;
}

void table_drop(struct table *t, uint32_t seat)
{
	uint32_t r = row_of(t, seat);

	if (r < TABLE_ROWS)
		empty(t, r);
}

void table_rows(const struct table *t, void (*seat)(void *ctx, uint32_t seat), void *ctx)
{
	for (uint32_t r = 0; r < TABLE_ROWS; r++)
		if (t->head->row[r].process)
			seat(ctx, t->head->row[r].seat);
}
