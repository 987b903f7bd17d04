// SPDX-License-Identifier: Apache-2.0
/*
 * digests.c - digests of pages computed by the device are those of libxxhash, bit for bit
 */
#include "local.h"

#include <xxhash.h>

#include "digest.h"

#define PAGES 1024u

static uint64_t next_random(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

/* Zeros, ones, counting, noise, and a single bit at each place. */
static void fill(uint64_t *p, unsigned int page, uint64_t *random)
{
	memset(p, page == 1 ? 0xff : 0, STORE_PAGE);
	for (unsigned int i = 0; page > 2 && i < STORE_PAGE / 8; i++)
		p[i] = page % 2 ? next_random(random) : page * 512ull + i;
	if (page >= 512)
		memset(p, 0, STORE_PAGE);
	if (page >= 512)
		p[page - 512] = 1ull << page % 64;
}

static CUresult run(struct hal_digests *h, unsigned int slot, uint64_t va, uint64_t pages,
		    const struct store_digest **d)
{
	return hal_digests_start(h, slot, va, pages) ?: hal_digests_wait(h, slot, d);
}

static void compare(void *arg)
{
	static const uint64_t seeds[] = { 0, 1, 0x0123456789abcdef, UINT64_MAX };
	struct local *l = local_open();
	uint64_t va = l->window, random = 88172645463325252ull;
	uint8_t *p = malloc(PAGES * STORE_PAGE);

	(void)arg;
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ va, 2 * SV_GRANULE }), 0);
	for (unsigned int i = 0; i < PAGES; i++)
		fill((uint64_t *)(p + i * STORE_PAGE), i, &random);
	CHECK_EQ(l->s.hal.drv.cuMemcpyHtoD_v2(va, p, PAGES * STORE_PAGE), 0);
	for (unsigned int i = 0; i < 4; i++) {
		const struct store_digest *d;
		struct hal_digests *h;

		CHECK_EQ(hal_digests_open(&h, &l->s.hal, seeds[i]), 0);
		/* Numbers of pages that leave threads over, growing and shrinking. */
		for (unsigned int n = PAGES - i; n; n = n / 3) {
			unsigned int from = PAGES - n;

			CHECK_EQ(run(h, n % HAL_DIGESTS, va + from * STORE_PAGE, n, &d), 0);
			for (unsigned int k = 0; k < n; k++) {
				XXH128_hash_t want = XXH3_128bits_withSeed(
					p + (from + k) * STORE_PAGE, STORE_PAGE, seeds[i]);

				CHECK_EQ(d[k].lo, want.low64);
				CHECK_EQ(d[k].hi, want.high64);
			}
		}
		CHECK_EQ(run(h, 0, va, 0, &d), 0);
		hal_digests_close(h);
	}
	hal_digests_close(NULL);
	free(p);
}

TEST(device_digests_are_those_of_xxhash)
{
	EXPECT_EQ(local_child(compare, NULL), 0);
}

/* Nothing that a program could observe is left behind: addresses go on as if nothing had been. */
static void leaves_no_trace(void *arg)
{
	struct local *l = local_open();
	const struct store_digest *d;
	struct hal_digests *h;
	size_t before, after, all;
	CUdeviceptr a, b;

	(void)arg;
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window, SV_GRANULE }), 0);
	CHECK_EQ(l->s.hal.drv.cuMemAlloc_v2(&a, 1000), 0);
	CHECK_EQ(l->s.hal.drv.cuMemFree_v2(a), 0);
	CHECK_EQ(l->s.hal.drv.cuMemGetInfo_v2(&before, &all), 0);
	CHECK_EQ(hal_digests_open(&h, &l->s.hal, 7), 0);
	CHECK_EQ(run(h, 0, l->window, 512, &d), 0);
	hal_digests_close(h);
	CHECK_EQ(l->s.hal.drv.cuMemGetInfo_v2(&after, &all), 0);
	CHECK_EQ(after, before);
	CHECK_EQ(l->s.hal.drv.cuMemAlloc_v2(&b, 1000), 0);
	CHECK_EQ(b, a);
}

TEST(device_digests_leave_no_trace)
{
	EXPECT_EQ(local_child(leaves_no_trace, NULL), 0);
}

TEST_HARNESS_MAIN
