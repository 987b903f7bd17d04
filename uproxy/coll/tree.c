// SPDX-License-Identifier: Apache-2.0
/*
 * tree.c - walks the reduction tree, block by block, so that partial results stay in the cache
 *
 * Each block of elements is carried through the whole tree before the next one: every part is
 * read once, and the result written once.
 */
#include <errno.h>
#include <fenv.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "arith.h"
#include "tree.h"

#define BLOCK 4096 /* bytes of partial results */
/* Slots of partial results: a right child's is the next one, so there are as many as levels. */
#define SLOTS 26

static const struct {
	uint8_t leaf, partial;
	uint8_t acc;
	int8_t narrow;
} types[TREE_TYPES] = {
	[TREE_INT8] = { 1, 1, ACC_INT8, -1 },         [TREE_UINT8] = { 1, 1, ACC_UINT8, -1 },
	[TREE_INT32] = { 4, 4, ACC_INT32, -1 },       [TREE_UINT32] = { 4, 4, ACC_UINT32, -1 },
	[TREE_INT64] = { 8, 8, ACC_INT64, -1 },       [TREE_UINT64] = { 8, 8, ACC_UINT64, -1 },
	[TREE_F16] = { 2, 4, ACC_F32, NARROW_F16 },   [TREE_F32] = { 4, 4, ACC_F32, -1 },
	[TREE_F64] = { 8, 8, ACC_F64, -1 },           [TREE_BF16] = { 2, 4, ACC_F32, NARROW_BF16 },
	[TREE_E4M3] = { 1, 4, ACC_F32, NARROW_E4M3 }, [TREE_E5M2] = { 1, 4, ACC_F32, NARROW_E5M2 },
};

/* From the lowest level up. */
static const struct {
	const char *name;
	const struct arith *arith;
} levels[] = {
	{ "base", &arith_base },
#if defined(__x86_64__)
	{ "avx2", &arith_avx2 },
	{ "avx512", &arith_avx512 },
#endif
};
#define LEVELS (sizeof(levels) / sizeof(levels[0]))

/* Chosen once; every thread would choose the same. */
static const struct arith *used;

static bool has_level(unsigned int level)
{
#if defined(__x86_64__)
	if (level == 1)
		return __builtin_cpu_supports("avx2");
	if (level == 2)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
	return level == 0;
}

bool tree_use_level(unsigned int level)
{
	if (level >= LEVELS || !has_level(level))
		return false;
	__atomic_store_n(&used, levels[level].arith, __ATOMIC_RELAXED);
	return true;
}

const char *tree_level_name(unsigned int level)
{
	return level < LEVELS ? levels[level].name : NULL;
}

static const struct arith *arithmetic(void)
{
	const struct arith *a = __atomic_load_n(&used, __ATOMIC_RELAXED);
	unsigned int level = LEVELS;

	while (!a) {
		tree_use_level(--level);
		a = __atomic_load_n(&used, __ATOMIC_RELAXED);
	}
	return a;
}

/* The thread's own modes may be others: a driver or a library may have changed them. */
#if defined(__SSE__)
typedef unsigned int float_modes;

static float_modes modes_begin(void)
{
	float_modes was = _mm_getcsr();

	_mm_setcsr(0x1f80);
	return was;
}

static void modes_end(float_modes was)
{
	_mm_setcsr(was);
}
#else
typedef fenv_t float_modes;

static float_modes modes_begin(void)
{
	float_modes was;

	fegetenv(&was);
	fesetenv(FE_DFL_ENV);
	return was;
}

static void modes_end(float_modes was)
{
	fesetenv(&was);
}
#endif

size_t tree_leaf_size(enum tree_type type)
{
	return (unsigned int)type < TREE_TYPES ? types[type].leaf : 0;
}

size_t tree_partial_size(enum tree_type type)
{
	return (unsigned int)type < TREE_TYPES ? types[type].partial : 0;
}

uint32_t tree_split(uint32_t lo, uint32_t hi)
{
	return lo + (1u << (31 - __builtin_clz(hi - lo - 1)));
}

bool tree_has(uint32_t ranks, uint32_t lo, uint32_t hi)
{
	uint32_t l = 0, h = ranks;

	if (lo >= hi || hi > ranks)
		return false;
	while (l != lo || h != hi) {
		uint32_t mid;

		if (h - l < 2)
			return false;
		mid = tree_split(l, h);
		if (hi <= mid)
			h = mid;
		else if (lo >= mid)
			l = mid;
		else
			return false;
	}
	return true;
}

/* What a set has of node (lo, hi): nothing, some, all. */
static int held(const uint64_t *has, uint32_t lo, uint32_t hi)
{
	uint32_t n = 0, r;

	for (r = lo; r < hi; r++)
		n += has[r >> 6] >> (r & 63) & 1;
	return !n ? 0 : n < hi - lo ? 1 : 2;
}

static uint32_t cover(const uint64_t *has, uint32_t lo, uint32_t hi, struct tree_node *out,
                      uint32_t n, uint32_t max)
{
	int h = held(has, lo, hi);
	uint32_t mid;

	if (!h)
		return n;
	if (h == 2) {
		if (n < max)
			out[n] = (struct tree_node){ lo, hi };
		return n + 1;
	}
	mid = tree_split(lo, hi);
	n = cover(has, lo, mid, out, n, max);
	return cover(has, mid, hi, out, n, max);
}

uint32_t tree_cover(uint32_t ranks, const uint64_t *has, struct tree_node *out, uint32_t max)
{
	return ranks ? cover(has, 0, ranks, out, 0, max) : 0;
}

/* A reduction at work on one block. */
struct walk {
	const struct arith *arith;
	const struct tree_part *parts;
	uint32_t next;
	size_t from, n;
	uint8_t leaf, partial, acc;
	int8_t narrow;
	uint8_t op;
	_Alignas(64) char slots[SLOTS][BLOCK];
};

/* The block of a part as the type of accumulation has it: where it lies, or made in into. */
static const void *part_block(struct walk *w, const struct tree_part *p, void *into)
{
	char factor[sizeof(double)];
	const char *data = p->data;

	if (p->node.hi - p->node.lo > 1)
		return data + w->from * w->partial;
	data += w->from * w->leaf;
	if (w->narrow < 0) {
		if (!p->scale)
			return data;
		memcpy(factor, p->scale, w->leaf);
		w->arith->scale[w->acc](into, data, factor, w->n);
		return into;
	}
	w->arith->widen[w->narrow](into, data, w->n);
	if (p->scale) {
		w->arith->widen[w->narrow](factor, p->scale, 1);
		w->arith->scale[w->acc](into, into, factor, w->n);
	}
	return into;
}

/* The block of node (lo, hi), which the next parts cover; into: where it is made if it must be. */
static const void *node_block(struct walk *w, uint32_t lo, uint32_t hi, uint32_t slot, void *into)
{
	const struct tree_part *p = &w->parts[w->next];
	const void *left, *right;
	uint32_t mid;

	if (p->node.lo == lo && p->node.hi == hi) {
		w->next++;
		return part_block(w, p, into);
	}
	mid = tree_split(lo, hi);
	left = node_block(w, lo, mid, slot, w->slots[slot]);
	right = node_block(w, mid, hi, slot + 1, w->slots[slot + 1]);
	w->arith->combine[w->acc][w->op](into, left, right, w->n);
	return into;
}

/* What is done at the root alone: the quotient of an average, the canonical NaN, one rounding. */
static void root_block(struct walk *w, const struct tree_reduction *red, void *dst)
{
	void *into = w->narrow < 0 ? dst : w->slots[0];
	const void *value, *right;
	uint32_t mid;

	if (red->ranks > 1 && w->narrow < 0 && red->op != TREE_AVG) {
		mid = tree_split(0, red->ranks);
		value = node_block(w, 0, mid, 0, w->slots[0]);
		right = node_block(w, mid, red->ranks, 1, w->slots[1]);
		w->arith->last[w->acc][w->op](dst, value, right, w->n);
		return;
	}
	value = node_block(w, 0, red->ranks, 0, into);
	if (red->op == TREE_AVG) {
		w->arith->divide[w->acc](into, value, red->ranks, w->n);
		value = into;
	}
	if (w->narrow >= 0) {
		w->arith->narrow[w->narrow](dst, value, w->n);
		return;
	}
	if (value != dst)
		memmove(dst, value, w->n * w->leaf);
	if (w->arith->canon[w->acc])
		w->arith->canon[w->acc](dst, w->n);
}

/* Whether parts are what tree_reduce() asks for. */
static bool are_parts(const struct tree_reduction *red, const struct tree_part *parts, uint32_t n)
{
	uint32_t i;

	if (!n || !tree_has(red->ranks, parts[0].node.lo, parts[n - 1].node.hi))
		return false;
	for (i = 0; i < n; i++) {
		const struct tree_part *p = &parts[i];
		bool leaf = p->node.hi - p->node.lo == 1;

		if (!tree_has(red->ranks, p->node.lo, p->node.hi) ||
		    (i && p->node.lo != parts[i - 1].node.hi) ||
		    !p->scale != !(leaf && red->op == TREE_PREMULSUM))
			return false;
	}
	return n > 1 || parts[0].node.hi - parts[0].node.lo == red->ranks;
}

/* Node (lo, hi), which the parts from *next on cover: the part that completes it gets one merge more. */
static void count_merges(const struct tree_part *parts, uint32_t *next, uint32_t lo, uint32_t hi,
                         uint32_t *merges)
{
	uint32_t mid;

	if (parts[*next].node.lo == lo && parts[*next].node.hi == hi) {
		merges[(*next)++] = 0;
		return;
	}
	mid = tree_split(lo, hi);
	count_merges(parts, next, lo, mid, merges);
	count_merges(parts, next, mid, hi, merges);
	merges[*next - 1]++;
}

int tree_merges(const struct tree_reduction *red, const struct tree_part *parts, uint32_t nparts,
                uint32_t *merges)
{
	uint32_t next = 0, depth = 0, most = 0, i;

	if ((unsigned int)red->type >= TREE_TYPES || (unsigned int)red->op >= TREE_OPS ||
	    red->ranks > TREE_RANKS_MAX || !are_parts(red, parts, nparts))
		return -EINVAL;
	count_merges(parts, &next, parts[0].node.lo, parts[nparts - 1].node.hi, merges);
	for (i = 0; i < nparts; i++) {
		most = ++depth > most ? depth : most;
		depth -= merges[i];
	}
	return (int)most;
}

int tree_reduce(const struct tree_reduction *red, const struct tree_part *parts, uint32_t nparts,
                void *dst, size_t count)
{
	static const uint8_t ops[TREE_OPS] = {
		[TREE_PROD] = ARITH_MUL,
		[TREE_MAX] = ARITH_MAX,
		[TREE_MIN] = ARITH_MIN,
	};
	float_modes modes;
	uint32_t lo, hi;
	size_t most;
	struct walk w;
	bool root;

	if ((unsigned int)red->type >= TREE_TYPES || (unsigned int)red->op >= TREE_OPS ||
	    red->ranks > TREE_RANKS_MAX || !are_parts(red, parts, nparts))
		return -EINVAL;
	lo = parts[0].node.lo;
	hi = parts[nparts - 1].node.hi;
	root = hi - lo == red->ranks;
	w.arith = arithmetic();
	w.parts = parts;
	w.leaf = types[red->type].leaf;
	w.partial = types[red->type].partial;
	w.acc = types[red->type].acc;
	w.narrow = types[red->type].narrow;
	w.op = ops[red->op];
	most = BLOCK / w.partial;
	modes = modes_begin();
	for (w.from = 0; w.from < count; w.from += w.n) {
		char *to = (char *)dst + w.from * (root ? w.leaf : w.partial);

		w.n = count - w.from < most ? count - w.from : most;
		w.next = 0;
		if (root)
			root_block(&w, red, to);
		else
			node_block(&w, lo, hi, 0, to);
	}
	modes_end(modes);
	return 0;
}

void tree_slice(size_t count, uint32_t n, uint32_t i, size_t *first, size_t *len)
{
	size_t lines = (count + 63) / 64;
	size_t from = (lines / n * i + (lines % n * i) / n) * 64;
	size_t to = (lines / n * (i + 1) + (lines % n * (i + 1)) / n) * 64;

	*first = from < count ? from : count;
	*len = (to < count ? to : count) - *first;
}
