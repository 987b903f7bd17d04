// SPDX-License-Identifier: Apache-2.0
/*
 * reduces.c - the kernels of hal/nccl/reduce.cu, on the soft device, give tree_reduce()'s bits
 */
#include "local.h"

#include "reduce.h"
#include "types.h"

#include "../../harness/random.h"

#define RANKS 64u
#define ROOM (2ull << 20) /* of device memory, for each rank and for results */

static struct reduce *kernels;
static struct local *l;
static char host[RANKS][ROOM / 4], want[ROOM], got[ROOM];
static uint64_t factor[RANKS];

static uint64_t device(uint32_t rank)
{
	return l->window + rank * ROOM;
}

/* Behind the ranks' memory: factors, and results. */
#define FACTORS device(RANKS)
#define RESULT device(RANKS + 1)
#define PARTIALS device(RANKS + 2)

static void begin(void)
{
	struct why why = { 0 };

	l = local_open();
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window, (RANKS + 10) * ROOM }), 0);
	CHECK_EQ(reduce_open(&kernels, &l->s.hal, &why), 0);
}

static void up(uint64_t to, const void *from, size_t len)
{
	CHECK_EQ(l->s.hal.drv.cuMemcpyHtoD_v2(to, from, len), 0);
}

static void down(void *to, uint64_t from, size_t len)
{
	CHECK_EQ(l->s.hal.drv.cuStreamSynchronize(NULL), 0);
	CHECK_EQ(l->s.hal.drv.cuMemcpyDtoH_v2(to, from, len), 0);
}

/* The words that arithmetic goes wrong with, and noise. */
static void fill(enum tree_type type, char *to, size_t count)
{
	static const uint32_t f32s[] = { 0, 1u << 31, 1, 0x80000001, 0x007fffff, 0x00800000, 0x7f800000,
					 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001, 0x7f7fffff,
					 0xff7fffff, 0x3f800000, 0xbf800000, 0x33800000, 0x38d1b717 };
	static const uint64_t f64s[] = { 0, 1ull << 63, 1, 0x000fffffffffffff, 0x0010000000000000,
					 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000,
					 0xfff0000000000001, 0x7fefffffffffffff, 0x3ff0000000000000 };
	size_t size = tree_leaf_size(type);

	for (size_t i = 0; i < count; i++) {
		uint64_t word = (uint64_t)rnd(1u << 31) << 33 ^ rnd(1u << 31);

		if (type == TREE_F32 && !rnd(4))
			word = f32s[rnd(sizeof(f32s) / sizeof(f32s[0]))];
		if (type == TREE_F32 && !rnd(4))	/* sums that are not all the larger one */
			word = 0x3f000000 + (word & 0x80ffffff);
		if (type == TREE_F64 && !rnd(4))
			word = f64s[rnd(sizeof(f64s) / sizeof(f64s[0]))];
		if (type == TREE_F64 && !rnd(4))
			word = 0x3fe0000000000000 + (word & 0x800fffffffffffff);
		memcpy(to + i * size, &word, size);
	}
}

static void differ(const struct tree_reduction *red, size_t count, const char *what)
{
	size_t size = tree_leaf_size(red->type);

	for (size_t i = 0; i < count * size; i++)
		if (got[i] != want[i]) {
			dprintf(local_err, "# %s %s of %u ranks, %s: byte %zu of element %zu is %02x, not %02x\n",
				type_names[red->type], op_names[red->op], red->ranks, what, i % size, i / size,
				got[i] & 0xff, want[i] & 0xff);
			_exit(1);
		}
}

/* Leaves of all ranks, on the host and, off bytes behind the beginning, on the device. */
static void leaves(const struct tree_reduction *red, size_t count, size_t off, struct tree_part *h,
		   struct tree_part *d)
{
	size_t size = tree_leaf_size(red->type);

	for (uint32_t r = 0; r < red->ranks; r++) {
		fill(red->type, host[r], count);
		fill(red->type, (char *)&factor[r], 1);
		up(device(r) + off, host[r], count * size);
		h[r] = (struct tree_part){ { r, r + 1 }, host[r], NULL };
		d[r] = (struct tree_part){ { r, r + 1 }, (void *)(device(r) + off), NULL };
		if (red->op == TREE_PREMULSUM) {
			h[r].scale = &factor[r];
			d[r].scale = (void *)(FACTORS + 8 * r);
		}
	}
	up(FACTORS, factor, sizeof(factor));
}

static int queue(const struct tree_reduction *red, const struct tree_part *part, uint32_t n, uint64_t to,
		 size_t count)
{
	return reduce_queue(kernels, NULL, red, part, n, (void *)to, count);
}

/* Largest nodes of random pieces of the tree are reduced alone, as devices with several ranks would. */
static uint32_t gather(const struct tree_reduction *red, struct tree_part *part, size_t count)
{
	uint64_t partial = PARTIALS;
	uint32_t n = 0, r = 0;

	while (r < red->ranks) {
		uint32_t most = 1u << rnd(4), len = 1;

		while (len < most && tree_has(red->ranks, r, r + 2 * len) && 2 * len < red->ranks)
			len *= 2;
		if (len == 1 || partial + count * 8 > PARTIALS + 8 * ROOM) {
			part[n++] = part[r++];
			continue;
		}
		CHECK_EQ(queue(red, part + r, len, partial, count), 0);
		part[n++] = (struct tree_part){ { r, r + len }, (void *)partial, NULL };
		partial += (count * 8 + 63) & ~63ull;
		r += len;
	}
	return n;
}

static void one(const struct tree_reduction *red, size_t count, bool in_place)
{
	struct tree_part h[RANKS], d[RANKS];
	size_t size = tree_leaf_size(red->type), off = rnd(5) * size;
	uint64_t to = in_place ? device(rnd(red->ranks)) + off : RESULT + off;
	uint32_t n;

	leaves(red, count, off, h, d);
	CHECK_EQ(tree_reduce(red, h, red->ranks, want, count), 0);
	if (!in_place) {
		n = gather(red, d, count);
		CHECK_EQ(queue(red, d, n, to, count), 0);
		down(got, to, count * size);
		differ(red, count, "in nodes");
		for (uint32_t r = 0; r < red->ranks; r++) {
			d[r] = (struct tree_part){ { r, r + 1 }, (void *)(device(r) + off),
						   h[r].scale ? (void *)(FACTORS + 8 * r) : NULL };
		}
	}
	/* The elements around the result are not touched. */
	memset(got, 0xa5, size);
	if (!in_place) {
		CHECK_EQ(l->s.hal.drv.cuMemsetD8_v2(to, 0xa5, (count + 1) * size), 0);
		CHECK_EQ(l->s.hal.drv.cuStreamSynchronize(NULL), 0);
	}
	CHECK_EQ(queue(red, d, red->ranks, to, count), 0);
	down(got, to, (count + 1) * size);
	differ(red, count, in_place ? "in place" : "at once");
	for (size_t i = 0; !in_place && i < size; i++)
		CHECK_EQ(got[count * size + i] & 0xff, 0xa5);
}

static void random_all(void *arg)
{
	static const uint32_t ranks[] = { 1, 2, 3, 4, 5, 7, 8, 13, 32, 64 };

	(void)arg;
	begin();
	for (int t = 0; t < TREE_TYPES; t++)
		for (int o = 0; o < TREE_OPS; o++)
			for (uint32_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
				struct tree_reduction red = { t, o, ranks[i] };

				one(&red, 1 + rnd(ranks[i] > 8 ? 300 : 3000), i & 1);
			}
	reduce_close(kernels);
}

TEST(kernels_give_the_bits_of_the_tree)
{
	EXPECT_EQ(local_child(random_all, NULL), 0);
}

/* All pairs of 8 bits, and all values of 16 with noise beside. */
static void narrow_all(void *arg)
{
	static const enum tree_type types[] = { TREE_E4M3, TREE_E5M2, TREE_INT8, TREE_UINT8, TREE_F16,
						TREE_BF16 };

	(void)arg;
	begin();
	for (uint32_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		for (int o = 0; o < TREE_OPS; o++) {
			struct tree_reduction red = { types[i], o, 2 };
			struct tree_part h[2], d[2];
			size_t size = tree_leaf_size(types[i]);

			leaves(&red, 65536, 0, h, d);
			for (uint32_t k = 0; k < 65536; k++) {
				if (size == 2) {
					((uint16_t *)host[0])[k] = k;
					continue;
				}
				host[0][k] = k & 255;
				host[1][k] = k >> 8;
			}
			up(device(0), host[0], 65536 * size);
			up(device(1), host[1], 65536 * size);
			CHECK_EQ(tree_reduce(&red, h, 2, want, 65536), 0);
			CHECK_EQ(queue(&red, d, 2, RESULT, 65536), 0);
			down(got, RESULT, 65536 * size);
			differ(&red, 65536, "all values");
		}
	reduce_close(kernels);
}

TEST(kernels_do_so_for_all_values_of_narrow_types)
{
	EXPECT_EQ(local_child(narrow_all, NULL), 0);
}

static int by_name(const char *const *names, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

/* A line of docs/collectives.md; false: it is none. */
static bool vector(char *line)
{
	char *word, *rest, *end, *result = strchr(line, '=');
	struct tree_part part[RANKS];
	struct tree_reduction red = { 0 };
	int type, op;

	if (strncmp(line, "    ", 4) || !result)
		return false;
	*result++ = 0;
	word = strtok_r(line, " ", &rest);
	type = word ? by_name(type_names, TREE_TYPES, word) : -1;
	word = strtok_r(NULL, " ", &rest);
	op = word ? by_name(op_names, TREE_OPS, word) : -1;
	if (type < 0 || op < 0)
		return false;
	red = (struct tree_reduction){ type, op, 0 };
	while ((word = strtok_r(NULL, " ", &rest))) {
		uint32_t r = red.ranks++;
		uint64_t bits = strtoull(word, &end, 16);

		part[r] = (struct tree_part){ { r, r + 1 }, (void *)device(r), NULL };
		up(device(r), &bits, 8);
		if (*end == '*') {
			bits = strtoull(end + 1, &end, 16);
			part[r].scale = (void *)(FACTORS + 8 * r);
			up(FACTORS + 8 * r, &bits, 8);
		}
		CHECK(end != word && !*end);
	}
	*(uint64_t *)want = strtoull(result, NULL, 16);
	CHECK_EQ(queue(&red, part, red.ranks, RESULT, 1), 0);
	down(got, RESULT, 8);
	differ(&red, 1, "a test vector");
	return true;
}

static void vectors(void *arg)
{
	FILE *f = fopen("docs/collectives.md", "r");
	char line[4096];
	unsigned int n = 0;

	(void)arg;
	CHECK(f);
	begin();
	while (fgets(line, sizeof(line), f))
		n += vector(line);
	CHECK(n >= 50);
	fclose(f);
	reduce_close(kernels);
}

TEST(kernels_give_the_results_of_the_specification)
{
	EXPECT_EQ(local_child(vectors, NULL), 0);
}

static void wrong(void *arg)
{
	struct tree_reduction red = { TREE_F32, TREE_SUM, 4 };
	struct tree_part h[RANKS], d[RANKS], many[REDUCE_PARTS + 1] = { 0 };
	size_t before, after, all;

	(void)arg;
	begin();
	leaves(&red, 8, 0, h, d);
	memset(want, 0x5a, 64);
	up(RESULT, want, 64);
	CHECK_EQ(queue(&red, d, 0, RESULT, 8), -EINVAL);
	CHECK_EQ(queue(&red, d, 3, RESULT, 8), -EINVAL);		/* no node */
	CHECK_EQ(queue(&red, d + 1, 2, RESULT, 8), -EINVAL);
	CHECK_EQ(queue(&red, many, REDUCE_PARTS + 1, RESULT, 8), -EINVAL);
	d[1].scale = (void *)FACTORS;					/* not for a sum */
	CHECK_EQ(queue(&red, d, 4, RESULT, 8), -EINVAL);
	d[1].scale = NULL;
	red.type = TREE_TYPES;
	CHECK_EQ(queue(&red, d, 4, RESULT, 8), -EINVAL);
	red.type = TREE_F32;
	CHECK_EQ(queue(&red, d, 4, RESULT, 0), 0);
	down(got, RESULT, 64);
	CHECK(!memcmp(got, want, 64));
	/* A thousand leaves; the last rank's one is not forgotten. */
	red.ranks = REDUCE_PARTS;
	for (uint32_t r = 0; r < REDUCE_PARTS; r++)
		many[r] = (struct tree_part){ { r, r + 1 }, (void *)device(0), NULL };
	many[REDUCE_PARTS - 1].data = (void *)(device(0) + 4);
	((float *)host[0])[0] = 1;
	((float *)host[0])[1] = 5;
	up(device(0), host[0], 8);
	CHECK_EQ(queue(&red, many, REDUCE_PARTS, RESULT, 1), 0);
	down(got, RESULT, 4);
	CHECK_EQ(*(float *)got, REDUCE_PARTS + 4);
	/* Nothing is left behind. */
	reduce_close(kernels);
	CHECK_EQ(l->s.hal.drv.cuMemGetInfo_v2(&before, &all), 0);
	CHECK_EQ(reduce_open(&kernels, &l->s.hal, &(struct why){ 0 }), 0);
	reduce_close(kernels);
	reduce_close(NULL);
	CHECK_EQ(l->s.hal.drv.cuMemGetInfo_v2(&after, &all), 0);
	CHECK_EQ(after, before);
}

TEST(kernels_refuse_what_is_no_node)
{
	EXPECT_EQ(local_child(wrong, NULL), 0);
}

TEST_HARNESS_MAIN
