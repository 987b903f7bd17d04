// SPDX-License-Identifier: Apache-2.0
/*
 * tree.c - the reduction tree: its nodes, any map from ranks to devices, in place, in hostile modes
 */
#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <time.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "maps.h"
#include "types.h"

#include "kselftest_harness.h"
#include "../harness/patience.h"

#define COUNT 1100 /* blocks of the library, and a rest; a block is 4 KiB of partial results */

static void *random_leaves(const struct tree_reduction *red, struct tree_part *parts, size_t count,
                           uint64_t *factors)
{
	size_t size = tree_leaf_size(red->type), i;
	char *data = malloc(red->ranks * count * size);
	uint32_t r;

	for (i = 0; i < red->ranks * count * size; i++)
		data[i] = (char)rnd(256);
	for (r = 0; r < red->ranks; r++) {
		factors[r] = (uint64_t)rnd(UINT32_MAX) << 32 | rnd(UINT32_MAX);
		parts[r] = (struct tree_part){ { r, r + 1 },
			                       data + r * count * size,
			                       red->op == TREE_PREMULSUM ? &factors[r] : NULL };
	}
	return data;
}

TEST(nodes_split_at_the_largest_power_of_two)
{
	EXPECT_EQ(tree_split(0, 2), 1);
	EXPECT_EQ(tree_split(0, 3), 2);
	EXPECT_EQ(tree_split(0, 4), 2);
	EXPECT_EQ(tree_split(0, 5), 4);
	EXPECT_EQ(tree_split(4, 7), 6);
	EXPECT_EQ(tree_split(0, TREE_RANKS_MAX), TREE_RANKS_MAX / 2);
	EXPECT_TRUE(tree_has(7, 0, 7) && tree_has(7, 0, 4) && tree_has(7, 4, 7) &&
	            tree_has(7, 4, 6));
	EXPECT_TRUE(tree_has(7, 6, 7) && tree_has(7, 3, 4) && tree_has(1, 0, 1));
	EXPECT_FALSE(tree_has(7, 1, 3) || tree_has(7, 0, 3) || tree_has(7, 5, 7) ||
	             tree_has(7, 0, 8));
	EXPECT_FALSE(tree_has(7, 2, 2) || tree_has(7, 3, 2) || tree_has(0, 0, 0) ||
	             tree_has(6, 4, 7));
}

TEST(a_cover_has_the_largest_nodes_of_any_set)
{
	struct tree_node nodes[16];
	uint32_t ranks, n, i, r;
	uint64_t has, seen;

	for (ranks = 1; ranks <= 10; ranks++)
		for (has = 0; has < 1ull << ranks; has++) {
			n = tree_cover(ranks, &has, nodes, 16);
			for (i = seen = 0; i < n; i++) {
				ASSERT_TRUE(tree_has(ranks, nodes[i].lo, nodes[i].hi));
				for (r = nodes[i].lo; r < nodes[i].hi; r++)
					seen |= 1ull << r;
				/* Two children would have been their parent. */
				for (r = i + 1; r < n; r++) {
					ASSERT_FALSE(tree_has(ranks, nodes[i].lo, nodes[r].hi) &&
					             tree_split(nodes[i].lo, nodes[r].hi) ==
					                     nodes[i].hi &&
					             nodes[r].lo == nodes[i].hi);
				}
			}
			ASSERT_EQ(seen, has);
		}
	has = 0x15;
	EXPECT_EQ(tree_cover(5, &has, nodes, 1), 3);
}

/* What an all-reduce moves if each device gives its parts of every slice, and gets all results. */
static uint64_t bytes_moved(const struct tree_reduction *red, const struct map *m, uint32_t devices,
                            size_t count)
{
	size_t leaf = tree_leaf_size(red->type), partial = tree_partial_size(red->type), first, len;
	struct tree_node nodes[MAPS_RANKS];
	uint32_t from, to, r, i, n;
	uint64_t bytes = 0;

	for (from = 0; from < devices; from++) {
		uint64_t has = 0;

		for (r = 0; r < red->ranks; r++)
			has |= (uint64_t)(m->device[r] == from) << r;
		n = tree_cover(red->ranks, &has, nodes, MAPS_RANKS);
		for (to = 0; to < devices; to++) {
			if (to == from)
				continue;
			tree_slice(count, devices, to, &first, &len);
			for (i = 0; i < n; i++)
				bytes += len * (nodes[i].hi - nodes[i].lo == 1 ? leaf : partial);
			tree_slice(count, devices, from, &first, &len);
			bytes += len * leaf;
		}
	}
	return bytes;
}

TEST(as_many_bytes_move_as_in_a_ring)
{
	const size_t count = 1 << 16;
	uint32_t devices, each, r;
	struct map m;

	for (devices = 2; devices <= 8; devices++) {
		struct tree_reduction red = { TREE_BF16, TREE_SUM, devices };

		for (r = 0; r < devices; r++)
			m.device[r] = r;
		EXPECT_EQ(bytes_moved(&red, &m, devices, count), 2 * (devices - 1) * count * 2);
		/* Sharers in aligned blocks: one f32 partial for each device. */
		for (each = 2; each * devices <= MAPS_RANKS; each *= 2) {
			red = (struct tree_reduction){ TREE_F32, TREE_SUM, devices * each };
			for (r = 0; r < red.ranks; r++)
				m.device[r] = r / each;
			EXPECT_EQ(bytes_moved(&red, &m, devices, count),
			          2 * (devices - 1) * count * 4);
		}
	}
}

TEST(wrong_parts_are_refused_and_nothing_is_written)
{
	struct tree_reduction red = { TREE_F32, TREE_SUM, 4 };
	float in[4] = { 1, 2, 3, 4 }, out = 77, two = 2;
	struct tree_part p[4] = { { { 0, 1 }, &in[0], NULL },
		                  { { 1, 2 }, &in[1], NULL },
		                  { { 2, 3 }, &in[2], NULL },
		                  { { 3, 4 }, &in[3], NULL } };

	EXPECT_EQ(tree_reduce(&red, p, 0, &out, 1), -EINVAL);
	EXPECT_EQ(tree_reduce(&red, p, 3, &out, 1), -EINVAL);
	EXPECT_EQ(tree_reduce(&red, p, 1, &out, 1), -EINVAL);
	EXPECT_EQ(tree_reduce(&red, p + 1, 2, &out, 1), -EINVAL);
	p[1].node.lo = 0;
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), -EINVAL);
	p[1].node = (struct tree_node){ 2, 3 };
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), -EINVAL);
	p[1].node = (struct tree_node){ 1, 2 };
	p[2].scale = &two;
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), -EINVAL);
	red.op = TREE_PREMULSUM;
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), -EINVAL);
	p[2].scale = NULL;
	red.op = TREE_OPS;
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), -EINVAL);
	red.op = TREE_SUM;
	red.type = TREE_TYPES;
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), -EINVAL);
	red.type = TREE_F32;
	red.ranks = TREE_RANKS_MAX + 1;
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), -EINVAL);
	red.ranks = 4;
	EXPECT_EQ(out, 77);
	EXPECT_EQ(tree_reduce(&red, p, 4, &out, 1), 0);
	EXPECT_EQ(out, 10);
	EXPECT_EQ(tree_leaf_size(TREE_TYPES), 0);
}

/* All types, operations and 1 … 16 ranks, each over several maps and every level of processors. */
TEST(any_map_from_ranks_to_devices_gives_the_same_bits)
{
	struct tree_part parts[MAPS_RANKS];
	char *want = malloc(COUNT * 8), *got = malloc(COUNT * 8);
	uint64_t factors[MAPS_RANKS];
	unsigned int level;
	int type, op, i;
	struct map m;
	void *data;
	size_t len;

	for (type = 0; type < TREE_TYPES; type++)
		for (op = 0; op < TREE_OPS; op++) {
			struct tree_reduction red = { type, op, 0 };

			for (red.ranks = 1; red.ranks <= 16; red.ranks++) {
				data = random_leaves(&red, parts, COUNT, factors);
				len = COUNT * tree_leaf_size(type);
				tree_use_level(0);
				ASSERT_EQ(tree_reduce(&red, parts, red.ranks, want, COUNT), 0);
				for (i = 0; i < 6; i++) {
					level = rnd(3);
					tree_use_level(level);
					map_random(&m, red.ranks);
					memset(got, 0xa5, len);
					ASSERT_GT(map_reduce(&red, &m, parts, got, COUNT), 0);
					ASSERT_EQ(memcmp(want, got, len), 0)
					{
						TH_LOG("%s %s of %u ranks", type_names[type],
						       op_names[op], red.ranks);
					}
				}
				free(data);
			}
		}
	free(want);
	free(got);
}

TEST(the_result_may_replace_any_leaf)
{
	struct tree_part parts[MAPS_RANKS];
	uint64_t factors[MAPS_RANKS];
	char *want = malloc(COUNT * 8), *data;
	int type, op;
	size_t len;
	uint32_t r;

	for (type = 0; type < TREE_TYPES; type++)
		for (op = 0; op < TREE_OPS; op++) {
			struct tree_reduction red = { type, op, 1 + rnd(9) };

			data = random_leaves(&red, parts, COUNT, factors);
			len = COUNT * tree_leaf_size(type);
			ASSERT_EQ(tree_reduce(&red, parts, red.ranks, want, COUNT), 0);
			r = rnd(red.ranks);
			ASSERT_EQ(tree_reduce(&red, parts, red.ranks, data + r * len, COUNT), 0);
			EXPECT_EQ(memcmp(want, data + r * len, len), 0)
			{
				TH_LOG("%s %s in place of %u of %u", type_names[type], op_names[op],
				       r, red.ranks);
			}
			free(data);
		}
	free(want);
}

TEST(slices_of_elements_change_no_bit)
{
	struct tree_reduction red = { TREE_BF16, TREE_AVG, 5 };
	struct tree_part parts[MAPS_RANKS], cut[MAPS_RANKS];
	uint16_t want[COUNT], got[COUNT];
	uint64_t factors[MAPS_RANKS];
	size_t first, len, end, count;
	uint32_t n, i, r;
	void *data = random_leaves(&red, parts, COUNT, factors);

	ASSERT_EQ(tree_reduce(&red, parts, red.ranks, want, COUNT), 0);
	for (n = 1; n < 40; n++) {
		count = rnd(COUNT + 1);
		memset(got, 0, sizeof(got));
		for (i = end = 0; i < n; i++) {
			tree_slice(count, n, i, &first, &len);
			ASSERT_EQ(first, end);
			ASSERT_TRUE(first % 64 == 0 || first == count);
			ASSERT_LE(len, count / n + 64);
			end = first + len;
			for (r = 0; r < red.ranks; r++) {
				cut[r] = parts[r];
				cut[r].data = (const uint16_t *)parts[r].data + first;
			}
			ASSERT_EQ(tree_reduce(&red, cut, red.ranks, got + first, len), 0);
		}
		ASSERT_EQ(end, count);
		ASSERT_EQ(memcmp(want, got, count * 2), 0);
	}
	free(data);
}

TEST(the_threads_modes_do_not_matter_and_stay)
{
	struct tree_reduction red = { TREE_F32, TREE_SUM, 2 };
	uint32_t a = 0x00000003, b = 0x00000001, out;
	struct tree_part p[2] = { { { 0, 1 }, &a, NULL }, { { 1, 2 }, &b, NULL } };

	fesetround(FE_UPWARD);
#if defined(__SSE__)
	_mm_setcsr(_mm_getcsr() | 0x8040);
#endif
	ASSERT_EQ(tree_reduce(&red, p, 2, &out, 1), 0);
	EXPECT_EQ(out, 4);
	a = 0x3f800000;
	ASSERT_EQ(tree_reduce(&red, p, 2, &out, 1), 0);
	EXPECT_EQ(out, 0x3f800000);
	EXPECT_EQ(fegetround(), FE_UPWARD);
#if defined(__SSE__)
	EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040);
	_mm_setcsr(0x1f80);
#endif
	fesetround(FE_TONEAREST);
}

/* Each narrow type has few enough values that all can be tried: what is exact stays as it is. */
TEST(a_lone_rank_keeps_every_number)
{
	static const int narrow[] = { TREE_F16, TREE_BF16, TREE_E4M3, TREE_E5M2 };
	struct tree_part p = { { 0, 1 }, NULL, NULL };
	uint16_t *in = malloc(65536 * 2), *out = malloc(65536 * 2);
	unsigned int i, t, bits, changed;

	for (t = 0; t < 4; t++) {
		struct tree_reduction red = { narrow[t], TREE_MAX, 1 };
		bool is_byte = tree_leaf_size(red.type) == 1;

		for (i = 0; i < 65536; i++)
			in[i] = is_byte ? i % 256 * 257 : i;
		p.data = in;
		bits = is_byte ? 131072 : 65536;
		ASSERT_EQ(tree_reduce(&red, &p, 1, out, bits), 0);
		for (i = changed = 0; i < (is_byte ? 256 : bits); i++)
			changed += is_byte ? ((uint8_t *)in)[2 * i] != ((uint8_t *)out)[2 * i] :
			                     in[i] != out[i];
		/* NaN become the canonical one; e5m2's infinities become the largest numbers. */
		EXPECT_EQ(changed, (red.type == TREE_F16  ? 2046 - 1 :
		                    red.type == TREE_BF16 ? 254 - 1 :
		                    red.type == TREE_E4M3 ? 1 :
		                                            5 + 2));
	}
	free(in);
	free(out);
}

/* Shown, not judged: what the machine does at this moment is no property of the code. */
TEST(speed_of_a_sum)
{
	const size_t n = 4 << 20;
	struct tree_reduction red = { TREE_F32, TREE_SUM, 2 };
	float *a = malloc(n * 4), *b = malloc(n * 4), *c = malloc(n * 4);
	struct tree_part p[2] = { { { 0, 1 }, a, NULL }, { { 1, 2 }, b, NULL } };
	struct timespec t0, t1, t2;
	double sum = 1e9, copy = 1e9, s;
	int i;

	memset(a, 0, n * 4);
	memset(b, 0, n * 4);
	memset(c, 0, n * 4);
	for (i = 0; i < 10; i++) {
		clock_gettime(CLOCK_MONOTONIC, &t0);
		ASSERT_EQ(tree_reduce(&red, p, 2, c, n), 0);
		clock_gettime(CLOCK_MONOTONIC, &t1);
		memcpy(c, a, n * 4);
		clock_gettime(CLOCK_MONOTONIC, &t2);
		s = (t1.tv_sec - t0.tv_sec) + (t1.tv_nsec - t0.tv_nsec) * 1e-9;
		sum = s < sum ? s : sum;
		s = (t2.tv_sec - t1.tv_sec) + (t2.tv_nsec - t1.tv_nsec) * 1e-9;
		copy = s < copy ? s : copy;
	}
	printf("# f32 sum of two times 16 MiB: %.1f GB/s read and written; memcpy: %.1f GB/s\n",
	       n * 12 / sum * 1e-9, n * 8 / copy * 1e-9);
	free(a);
	free(b);
	free(c);
}

TEST_HARNESS_MAIN
