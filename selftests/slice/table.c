// SPDX-License-Identifier: Apache-2.0
/*
 * table.c - sharers that take turns with one memory: each finds its own bytes there, and nothing is copied that need not be
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "table.h"

#include "kselftest_harness.h"
#include "../harness/patience.h"
#include "../harness/random.h"

#define UNITS  6u
#define RANKS  3u
#define VALUES 3u	/* that a unit may hold, and zeros */
#define FOREIGN 0xee	/* what lies in memory that is not clean */

/* A unit's bytes are all `value`, so that its digest is that, too. */
static struct table_digest digest_of(uint8_t value)
{
	return (struct table_digest){ { value, ~(uint64_t)value } };
}

FIXTURE(table)
{
	struct table *t;
	int fd;
	uint8_t memory[UNITS];		/* the device's: a byte for all of a unit */
	uint8_t own[RANKS][UNITS];	/* what each rank has written last */
	bool live[RANKS][UNITS];
	bool freed[RANKS][UNITS];	/* while another was resident */
	int row[RANKS];
	uint64_t process[RANKS];
	uint64_t copied, brought;	/* units */
};

FIXTURE_VARIANT(table)
{
	bool clean;
};

FIXTURE_VARIANT_ADD(table, of_clean_memory)
{
	.clean = true,
};

FIXTURE_VARIANT_ADD(table, of_other_memory)
{
	.clean = false,
};

FIXTURE_SETUP(table)
{
	struct table_digest zeros = digest_of(0);
	bool is_new;

	self->fd = memfd_create("table", MFD_CLOEXEC);
	ASSERT_GE(self->fd, 0);
	ASSERT_EQ(table_open(self->fd, &self->t, &is_new), 0);
	ASSERT_TRUE(is_new);
	ASSERT_EQ(table_lay_out(self->fd, UNITS, &zeros, variant->clean), 0);
	ASSERT_EQ(table_open(self->fd, &self->t, &is_new), 0);
	ASSERT_FALSE(is_new);
	memset(self->memory, variant->clean ? 0 : FOREIGN, UNITS);
	for (uint32_t r = 0; r < RANKS; r++)
		self->process[r] = 100 + r;
}

FIXTURE_TEARDOWN(table)
{
	table_close(self->t);
	close(self->fd);
}

#define SELF FIXTURE_DATA(table) *self

/* What a proxy does for a unit that its rank begins to have in its slice. */
static void bring(SELF, uint32_t r, uint32_t u)
{
	const void *from;

	switch (table_brings(self->t, self->row[r], u, &from)) {
	case TABLE_NOTHING:
		return;
	case TABLE_ZEROS:
		self->memory[u] = 0;
		break;
	case TABLE_COPY:
		self->memory[u] = *(const uint8_t *)from;
		break;
	}
	self->brought++;
	table_brought(self->t, self->row[r], u);
}

static int comes(SELF, uint32_t r)
{
	if (table_change(self->t))
		return -1;
	self->row[r] = table_row(self->t, r, self->process[r]);
	for (uint32_t u = 0; u < UNITS; u++) {
		if (self->freed[r][u])
			table_freed(self->t, self->row[r], u, false);
		self->freed[r][u] = false;
		if (self->live[r][u])
			bring(self, r, u);
	}
	table_changed(self->t);
	return self->row[r];
}

static int leaves(SELF, uint32_t r)
{
	void *backing;
	int rc = table_change(self->t);

	for (uint32_t u = 0; u < UNITS && rc >= 0; u++) {
		struct table_digest d = digest_of(self->memory[u]);

		if (!self->live[r][u])
			continue;
		rc = table_left(self->t, self->row[r], u, &d, &backing);
		if (rc > 0) {
			*(uint8_t *)backing = self->memory[u];
			self->copied++;
		}
	}
	table_changed(self->t);
	return rc < 0 ? rc : 0;
}

static void begins_unit(SELF, uint32_t r, uint32_t u)
{
	table_change(self->t);
	bring(self, r, u);
	table_changed(self->t);
	self->live[r][u] = true;
	self->own[r][u] = 0;
}

static void frees(SELF, uint32_t r, uint32_t u)
{
	table_change(self->t);
	table_freed(self->t, self->row[r], u, true);
	table_changed(self->t);
	self->live[r][u] = false;
}

/* The same of a rank that is out. */
static void frees_elsewhere(SELF, uint32_t r, uint32_t u)
{
	self->live[r][u] = false;
	self->freed[r][u] = true;
}

static void writes(SELF, uint32_t r, uint32_t u, uint8_t value)
{
	self->memory[u] = self->own[r][u] = value;
}

static bool sees_its_own(SELF, uint32_t r)
{
	for (uint32_t u = 0; u < UNITS; u++)
		if (self->live[r][u] && self->memory[u] != self->own[r][u])
			return false;
	return true;
}

/* How many values of units other than zeros there are: each sharer's, and what lies in the memory. */
static uint64_t distinct(SELF)
{
	uint64_t n = 0;

	for (uint32_t u = 0; u < UNITS; u++)
		for (uint8_t v = 1; v <= VALUES; v++) {
			bool is = false;

			for (uint32_t r = 0; r < RANKS; r++)
				is |= self->live[r][u] && self->own[r][u] == v;
			n += is;
		}
	return n;
}

static uint64_t versions(SELF)
{
	uint64_t most;

	return table_versions(self->t, &most);
}

TEST_F(table, what_is_no_table_is_refused)
{
	struct table_digest zeros = digest_of(0);
	int fd = memfd_create("other", MFD_CLOEXEC), end;
	uint32_t wrong[] = { 0, UINT32_MAX };
	struct table *t;
	bool is_new;

	EXPECT_EQ(table_lay_out(fd, 0, &zeros, true), -EINVAL);
	EXPECT_EQ(table_lay_out(fd, TABLE_UNITS + 1, &zeros, true), -EINVAL);
	ASSERT_EQ(ftruncate(fd, 100), 0);
	EXPECT_EQ(table_open(fd, &t, &is_new), -EPROTO);
	ASSERT_EQ(ftruncate(fd, 0), 0);
	ASSERT_EQ(table_lay_out(fd, UNITS, &zeros, true), 0);
	for (end = 0; end < 3; end++) {		/* magic, version, units */
		uint32_t was;

		ASSERT_EQ(pread(fd, &was, 4, 4 * end), 4);
		for (int i = 0; i < 2; i++) {
			ASSERT_EQ(pwrite(fd, &wrong[i], 4, 4 * end), 4);
			EXPECT_EQ(table_open(fd, &t, &is_new), -EPROTO);
		}
		ASSERT_EQ(pwrite(fd, &was, 4, 4 * end), 4);
	}
	ASSERT_EQ(table_open(fd, &t, &is_new), 0);
	EXPECT_EQ(table_units(t), UNITS);
	table_close(t);
	ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
	EXPECT_EQ(table_open(fd, &t, &is_new), -EPROTO);
	close(fd);
}

TEST_F(table, a_unit_that_a_sharer_has_none_of_shows_zeros)
{
	ASSERT_EQ(comes(self, 0), 0);
	begins_unit(self, 0, 1);
	EXPECT_EQ(self->memory[1], 0);
	writes(self, 0, 1, 1);
	ASSERT_EQ(leaves(self, 0), 0);
	ASSERT_EQ(comes(self, 1), 1);
	begins_unit(self, 1, 1);
	EXPECT_EQ(self->memory[1], 0);
	/* Nobody has used it, so its memory is as it was. */
	begins_unit(self, 1, 2);
	EXPECT_EQ(self->memory[2], 0);
	EXPECT_EQ(self->brought, variant->clean ? 1 : 3);
}

TEST_F(table, only_versions_that_differ_move_and_each_is_kept_once)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		ASSERT_EQ(comes(self, r), (int)r);
		for (uint32_t u = 0; u < 4; u++) {
			begins_unit(self, r, u);
			writes(self, r, u, u < 3 ? 1 : 1 + r);	/* the last one is each one's own */
		}
		ASSERT_EQ(leaves(self, r), 0);
	}
	EXPECT_EQ(self->copied, 3 + RANKS);
	EXPECT_EQ(versions(self), 3 + RANKS);
	self->brought = self->copied = 0;
	for (uint32_t r = 0; r < RANKS; r++) {
		ASSERT_EQ(comes(self, r), (int)r);
		EXPECT_TRUE(sees_its_own(self, r));
		ASSERT_EQ(leaves(self, r), 0);
	}
	EXPECT_EQ(self->brought, RANKS);
	EXPECT_EQ(self->copied, 0);
}

TEST_F(table, zeros_that_have_been_brought_are_there)
{
	const void *from;

	ASSERT_EQ(comes(self, 0), 0);
	begins_unit(self, 0, 1);
	writes(self, 0, 1, 1);
	ASSERT_EQ(leaves(self, 0), 0);
	ASSERT_EQ(comes(self, 1), 1);
	EXPECT_EQ(table_brings(self->t, 1, 1, &from), TABLE_ZEROS);
	table_brought(self->t, 1, 1);
	EXPECT_EQ(table_brings(self->t, 1, 1, &from), TABLE_NOTHING);
	table_brought(self->t, 1, 2);
	EXPECT_EQ(table_brings(self->t, 1, 2, &from), TABLE_NOTHING);
}

TEST_F(table, zeros_have_no_bytes_in_the_backing)
{
	ASSERT_EQ(comes(self, 0), 0);
	for (uint32_t u = 0; u < UNITS; u++)
		begins_unit(self, 0, u);
	ASSERT_EQ(leaves(self, 0), 0);
	EXPECT_EQ(self->copied, 0);
	EXPECT_EQ(versions(self), 0);
	self->brought = 0;
	ASSERT_EQ(comes(self, 1), 1);
	begins_unit(self, 1, 0);
	EXPECT_EQ(self->brought, 0);
}

TEST_F(table, a_unit_that_was_freed_in_the_slice_is_nobodys)
{
	ASSERT_EQ(comes(self, 0), 0);
	begins_unit(self, 0, 3);
	ASSERT_EQ(leaves(self, 0), 0);
	ASSERT_EQ(comes(self, 1), 1);
	begins_unit(self, 1, 3);
	writes(self, 1, 3, 2);
	frees(self, 1, 3);
	begins_unit(self, 1, 3);
	EXPECT_EQ(self->memory[3], 0);
	writes(self, 1, 3, 2);
	frees(self, 1, 3);
	ASSERT_EQ(leaves(self, 1), 0);
	ASSERT_EQ(comes(self, 0), 0);
	EXPECT_TRUE(sees_its_own(self, 0));
	EXPECT_EQ(versions(self), 0);
}

TEST_F(table, a_unit_that_was_freed_while_another_was_resident_begins_with_zeros)
{
	ASSERT_EQ(comes(self, 0), 0);
	begins_unit(self, 0, 3);
	writes(self, 0, 3, 1);
	ASSERT_EQ(leaves(self, 0), 0);
	frees_elsewhere(self, 0, 3);
	self->live[0][3] = true;		/* and is had again */
	self->own[0][3] = 0;
	ASSERT_EQ(comes(self, 0), 0);
	EXPECT_TRUE(sees_its_own(self, 0));
}

TEST_F(table, the_row_of_an_earlier_process_is_emptied)
{
	ASSERT_EQ(comes(self, 0), 0);
	begins_unit(self, 0, 0);
	writes(self, 0, 0, 1);
	ASSERT_EQ(leaves(self, 0), 0);
	EXPECT_EQ(versions(self), 1);
	self->process[0]++;
	self->live[0][0] = false;
	ASSERT_EQ(comes(self, 0), 0);
	begins_unit(self, 0, 0);
	EXPECT_EQ(self->memory[0], 0);
	ASSERT_EQ(leaves(self, 0), 0);
	EXPECT_EQ(versions(self), 0);
}

static void count_seat(void *ctx, uint32_t seat)
{
	*(uint64_t *)ctx += 1ull << seat;
}

TEST_F(table, a_seat_that_has_ended_gives_its_row_and_versions_back)
{
	uint64_t seats = 0;

	for (uint32_t r = 0; r < RANKS; r++) {
		ASSERT_EQ(comes(self, r), (int)r);
		begins_unit(self, r, 0);
		writes(self, r, 0, 1 + r);
		ASSERT_EQ(leaves(self, r), 0);
	}
	table_drop(self->t, 1);
	table_drop(self->t, 7);
	table_rows(self->t, count_seat, &seats);
	EXPECT_EQ(seats, 5);
	EXPECT_EQ(versions(self), 2);
	for (uint32_t seat = 0; seat < TABLE_ROWS - 2; seat++)
		EXPECT_GE(table_row(self->t, 10 + seat, 1), 0);
	EXPECT_EQ(table_row(self->t, 9, 1), -ENOSPC);
}

TEST_F(table, what_lies_in_the_memory_is_forgotten_with_a_resident_that_ends)
{
	for (uint32_t r = 0; r < 2; r++) {
		ASSERT_EQ(comes(self, r), (int)r);
		begins_unit(self, r, 0);
		begins_unit(self, r, 1);
		writes(self, r, 0, 1);
		ASSERT_EQ(leaves(self, r), 0);
	}
	ASSERT_EQ(comes(self, 1), 1);
	writes(self, 1, 0, 3);			/* and dies */
	writes(self, 1, 1, 2);
	table_drop(self->t, 1);
	table_forget(self->t);
	ASSERT_EQ(comes(self, 0), 0);
	EXPECT_TRUE(sees_its_own(self, 0));
	begins_unit(self, 0, 2);
	EXPECT_EQ(self->memory[2], 0);
}

TEST_F(table, a_table_whose_changer_was_killed_is_not_used_again)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		table_change(self->t);
		_exit(0);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(table_change(self->t), -ENOTRECOVERABLE);
}

/* What a rank does in its slice. */
static void slice(SELF, uint32_t r)
{
	for (uint32_t i = rnd(8); i--;) {
		uint32_t u = rnd(UNITS);

		if (!self->live[r][u])
			begins_unit(self, r, u);
		else if (rnd(4))
			writes(self, r, u, rnd(VALUES + 1));
		else
			frees(self, r, u);
	}
	for (uint32_t i = rnd(4); i--;) {
		uint32_t o = rnd(RANKS), u = rnd(UNITS);

		if (o == r)
			continue;
		if (self->live[o][u])
			frees_elsewhere(self, o, u);
		else {
			self->live[o][u] = true;
			self->own[o][u] = 0;
		}
	}
}

TEST_F(table, random_slices_show_each_rank_its_own_bytes)
{
	for (int i = 0; i < 40000; i++) {
		uint32_t r = rnd(RANKS);

		ASSERT_GE(comes(self, r), 0);
		for (uint32_t u = 0; u < UNITS; u++)
			ASSERT_TRUE(!self->live[r][u] || self->memory[u] == self->own[r][u]);
		slice(self, r);
		if (!rnd(20)) {			/* it dies, and another process takes its place */
			memset(self->live[r], 0, sizeof(self->live[r]));
			memset(self->freed[r], 0, sizeof(self->freed[r]));
			self->process[r] += 100;
			table_drop(self->t, r);
			table_forget(self->t);
			continue;
		}
		for (uint32_t u = 0; u < UNITS; u++)	/* what was begun anew shows zeros, and what stays its bytes */
			ASSERT_TRUE(!self->live[r][u] || self->memory[u] == self->own[r][u]);
		ASSERT_EQ(leaves(self, r), 0);
		/* The memory may have the last bytes of a version that no sharer has any more. */
		ASSERT_LE(versions(self), distinct(self) + RANKS * UNITS);
	}
}

TEST_HARNESS_MAIN
