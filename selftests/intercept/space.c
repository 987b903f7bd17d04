// SPDX-License-Identifier: Apache-2.0
/*
 * space.c - the address allocator behaves like a model: a table of bytes
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "space.h"

#include "kselftest_harness.h"
#include "../harness/patience.h"
#include "../harness/random.h"

#define UNITS 1024
#define UNIT 256ull
#define BASE 0x200000000000ull
#define STEPS 100000

/* The model: which allocation has each unit, 0 for none. */
struct model {
	uint32_t owner[UNITS];
	uint32_t last;
};

static bool is_free(const struct model *m, int64_t at, uint32_t n)
{
	uint32_t i;

	if (at < 0 || at + n > UNITS)
		return false;
	for (i = 0; i < n; i++)
		if (m->owner[at + i])
			return false;
	return true;
}

/* The lowest or highest aligned place with n free units, or -1. */
static int64_t place(const struct model *m, uint32_t n, uint32_t align, bool high)
{
	int64_t i;

	if (high) {
		for (i = (UNITS - n) / align * align; i >= 0; i -= align)
			if (is_free(m, i, n))
				return i;
		return -1;
	}
	for (i = 0; i + n <= UNITS; i += align)
		if (is_free(m, i, n))
			return i;
	return -1;
}

static bool has_place(const struct model *m, uint32_t n, uint32_t align)
{
	return place(m, n, align, false) >= 0;
}

static void mark(struct model *m, uint32_t at, uint32_t n, uint32_t owner)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		m->owner[at + i] = owner;
}

static uint32_t first_of(const struct model *m, uint32_t i)
{
	while (i && m->owner[i - 1] == m->owner[i])
		i--;
	return i;
}

static uint32_t count_of(const struct model *m, uint32_t i)
{
	uint32_t n = 0, o = m->owner[i];

	while (i + n < UNITS && m->owner[i + n] == o)
		n++;
	return n;
}

static bool same(struct space *s, const struct model *m)
{
	uint64_t base, len;
	uint32_t i, first;
	void *owner;

	for (i = 0; i < UNITS; i++) {
		bool used = space_find(s, BASE + i * UNIT + rnd(UNIT), &base, &len, &owner);

		if (used != !!m->owner[i])
			return false;
		if (!used)
			continue;
		first = first_of(m, i);
		if (base != BASE + first * UNIT || len != count_of(m, first) * UNIT ||
		    (uintptr_t)owner != m->owner[i])
			return false;
	}
	return true;
}

TEST(agrees_with_a_table)
{
	struct space *s = space_new(BASE, UNITS * UNIT);
	struct model m = { .last = 0 };
	uint32_t step, n, i, align, failed = 0;
	uint64_t addr;
	bool high;

	ASSERT_NE(NULL, s);
	for (step = 0; step < STEPS; step++) {
		switch (rnd(5)) {
		case 0:
		case 1:		/* allocate: any place is right that the model says is free */
			n = 1 + rnd(rnd(4) ? 12 : 100);
			align = 1u << rnd(6);
			high = rnd(2);
			addr = space_alloc(s, n * UNIT, align * UNIT, high ? SPACE_HIGH : 0,
					   (void *)(uintptr_t)(m.last + 1));
			if (!addr) {
				ASSERT_FALSE(has_place(&m, n, align));
				failed++;
				break;
			}
			ASSERT_EQ(0, (addr - BASE) % (align * UNIT));
			i = (addr - BASE) / UNIT;
			ASSERT_TRUE(is_free(&m, i, n));
			/* without alignment it is the very first one */
			if (align == 1)
				ASSERT_EQ(place(&m, n, 1, high), i);
			mark(&m, i, n, ++m.last);
			break;
		case 2:		/* this very range */
			i = rnd(UNITS);
			n = 1 + rnd(8);
			if (i + n > UNITS)
				break;
			ASSERT_EQ(is_free(&m, i, n) ? 0 : -EEXIST,
				  space_take(s, BASE + i * UNIT, n * UNIT,
					     (void *)(uintptr_t)(m.last + 1)));
			if (is_free(&m, i, n))
				mark(&m, i, n, ++m.last);
			break;
		default:	/* release: only what begins there */
			i = rnd(UNITS);
			if (m.owner[i] && rnd(8))
				i = first_of(&m, i);
			if (m.owner[i] && first_of(&m, i) == i) {
				ASSERT_TRUE(space_release(s, BASE + i * UNIT));
				mark(&m, i, count_of(&m, i), 0);
			} else {
				ASSERT_FALSE(space_release(s, BASE + i * UNIT));
			}
		}
		if (step % 500 == 0)
			ASSERT_TRUE(same(s, &m));
	}
	EXPECT_TRUE(same(s, &m));
	EXPECT_LT(0, failed);
	space_free(s);
}

TEST(bad_arguments)
{
	struct space *s;

	EXPECT_EQ(NULL, space_new(0, 4096));
	EXPECT_EQ(NULL, space_new(4096, 0));
	EXPECT_EQ(NULL, space_new(UINT64_MAX - 4095, 8192));
	s = space_new(BASE, UNITS * UNIT);
	ASSERT_NE(NULL, s);
	EXPECT_EQ(0, space_alloc(s, 0, 1, 0, NULL));
	EXPECT_EQ(0, space_alloc(s, UNIT, 3, 0, NULL));
	EXPECT_EQ(0, space_alloc(s, UINT64_MAX, 1, 0, NULL));
	EXPECT_EQ(0, space_alloc(s, UINT64_MAX, 1ull << 63, SPACE_HIGH, NULL));
	EXPECT_EQ(0, space_alloc(s, UNIT, 1ull << 63, SPACE_HIGH, NULL));
	EXPECT_EQ(-EINVAL, space_take(s, BASE, 0, NULL));
	EXPECT_EQ(-EINVAL, space_take(s, BASE - 1, 1, NULL));
	EXPECT_EQ(-EINVAL, space_take(s, BASE, UNITS * UNIT + 1, NULL));
	EXPECT_EQ(-EINVAL, space_take(s, BASE + 1, UINT64_MAX, NULL));
	EXPECT_FALSE(space_find(s, BASE, NULL, NULL, NULL));
	EXPECT_FALSE(space_find(s, 0, NULL, NULL, NULL));
	EXPECT_FALSE(space_find(s, UINT64_MAX, NULL, NULL, NULL));
	EXPECT_FALSE(space_release(s, BASE));
	EXPECT_EQ(BASE, space_alloc(s, UNITS * UNIT, 1, 0, NULL));
	EXPECT_EQ(0, space_alloc(s, 1, 1, 0, NULL));
	EXPECT_TRUE(space_find(s, BASE + UNITS * UNIT - 1, NULL, NULL, NULL));
	EXPECT_TRUE(space_release(s, BASE));
	EXPECT_EQ(BASE + (UNITS - 1) * UNIT, space_alloc(s, UNIT, UNIT, SPACE_HIGH, NULL));
	space_free(s);
}

TEST(many_extents_cost_little)
{
	struct space *s = space_new(BASE, 1ull << 40);
	const uint32_t n = 200000;
	struct timespec a, b;
	uint64_t *addr = calloc(n, sizeof(*addr)), ns;
	uint32_t i;

	ASSERT_NE(NULL, s);
	ASSERT_NE(NULL, addr);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	for (i = 0; i < n; i++) {
		addr[i] = space_alloc(s, 512 * (1 + rnd(8)), 512, 0, NULL);
		ASSERT_NE(0, addr[i]);
	}
	for (i = 0; i < n; i += 2)
		ASSERT_TRUE(space_release(s, addr[i]));
	/* every free piece is too short or lies badly for these, and there are 100,000 */
	for (i = 0; i < n; i += 2) {
		addr[i] = space_alloc(s, 1024, 1 << 20, 0, NULL);
		ASSERT_NE(0, addr[i]);
	}
	for (i = 0; i < n; i++)
		ASSERT_TRUE(space_release(s, addr[i]));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	ns = (b.tv_sec - a.tv_sec) * 1000000000ull + b.tv_nsec - a.tv_nsec;
	TH_LOG("%.0f ns an operation", (double)ns / (3 * n));
	/* one look at each of 100,000 extents would take more than 100 us */
	EXPECT_GT(30000ull * 3 * n, ns);
	EXPECT_EQ(BASE, space_alloc(s, 1ull << 40, 1, 0, NULL));
	space_free(s);
	free(addr);
}

TEST_HARNESS_MAIN
