/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - the reduction tree: sums whose bits do not depend on which device holds which rank
 *
 * docs/collectives.md is the specification; selftests/coll/reference.py is another implementation.
 *
 * Words. A *leaf* is one rank's contribution, in the operation's type. The *tree* over the ranks
 * lo … hi-1 has one root, node(lo, hi); a node of more than one rank splits at lo + the largest
 * power of two below hi - lo. A *partial* is the value of a node in the type of accumulation: f32
 * for the narrow types (f16, bf16, fp8), the operation's own type for all others. A *part* is a
 * leaf or a partial in memory. Only the root is rounded to the operation's type, divided and
 * canonicalised.
 *
 * The functions keep no state, may run in several threads at once, and set the processor's rounding
 * and subnormal modes for themselves.
 */
#ifndef UPROXY_COLL_TREE_H
#define UPROXY_COLL_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are those of ncclDataType_t. */
enum tree_type {
	TREE_INT8,
	TREE_UINT8,
	TREE_INT32,
	TREE_UINT32,
	TREE_INT64,
	TREE_UINT64,
	TREE_F16,
	TREE_F32,
	TREE_F64,
	TREE_BF16,
	TREE_E4M3,
	TREE_E5M2,
	TREE_TYPES,
};

/* The numbers are those of ncclRedOp_t; NCCL gives each pre-multiplied sum a number of its own. */
enum tree_op {
	TREE_SUM,
	TREE_PROD,
	TREE_MAX,
	TREE_MIN,
	TREE_AVG,
	TREE_PREMULSUM,
	TREE_OPS,
};

/* Ranks of one reduction; the depth of its tree is below 32. */
#define TREE_RANKS_MAX (1u << 24)

struct tree_node {
	uint32_t lo, hi;
};

struct tree_reduction {
	enum tree_type type;
	enum tree_op op;
	uint32_t ranks;
};

/*
 * One part: of node (lo, hi), count elements at data. A node of one rank is a leaf, any other one a
 * partial. scale is the rank's factor for TREE_PREMULSUM, one element of the operation's type; only
 * leaves have one.
 */
struct tree_part {
	struct tree_node node;
	const void *data;
	const void *scale;
};

/* Bytes of one element of a leaf and of a partial; 0 for what is no type. */
size_t tree_leaf_size(enum tree_type type);
size_t tree_partial_size(enum tree_type type);

/* Where node (lo, hi) splits; hi - lo must be 2 or more. */
uint32_t tree_split(uint32_t lo, uint32_t hi);

/* Whether (lo, hi) is a node of the tree over ranks. */
bool tree_has(uint32_t ranks, uint32_t lo, uint32_t hi);

/*
 * Finds the largest nodes all of whose leaves are in a set: bit r & 63 of has[r >> 6] is rank r's.
 * Writes up to max of them to out, by rank, and returns their number, which may be above max. These
 * are the partials that a holder of this set contributes.
 */
uint32_t tree_cover(uint32_t ranks, const uint64_t *has, struct tree_node *out, uint32_t max);

/*
 * Reduces parts, sorted by rank and without gaps, to the node that they cover; the result is
 * written to dst: count elements of the operation's type if the node is the root, else a partial.
 * dst may be the data of a part whose elements have the size of the result's, and must not overlap
 * any part otherwise. Alignment is that of the elements. Returns 0; -EINVAL if the parts cover no
 * node of two or more ranks (or the root), one of them is no node, or a factor is missing or too
 * much.
 */
int tree_reduce(const struct tree_reduction *red, const struct tree_part *parts, uint32_t nparts,
                void *dst, size_t count);

/*
 * The same reduction as a program for a stack machine, for whoever computes elsewhere: push the
 * i-th part, then merges[i] times replace the two topmost values by their combination, the lower
 * one on the left. Returns how many values the stack must have room for; -EINVAL as tree_reduce().
 */
int tree_merges(const struct tree_reduction *red, const struct tree_part *parts, uint32_t nparts,
                uint32_t *merges);

/*
 * The slice of an operation's count elements that the i-th of n devices finishes: *first and *len.
 * Slices are contiguous and in order, and their borders are multiples of 64 elements, so that no
 * two devices write one cache line.
 */
void tree_slice(size_t count, uint32_t n, uint32_t i, size_t *first, size_t *len);

/*
 * For tests: the arithmetic is compiled for several levels of processors, all with the same
 * results. tree_use_level() takes level 0 … and returns false if this processor lacks it; without
 * a call the highest level is used. tree_level_name() names one, NULL if there is none.
 */
bool tree_use_level(unsigned int level);
const char *tree_level_name(unsigned int level);

#endif /* UPROXY_COLL_TREE_H */
