// SPDX-License-Identifier: Apache-2.0
/*
 * vectors.c - computes reductions written as lines, with uproxy/coll; for test-vectors
 *
 * Reads lines TYPE OP LEAF[*FACTOR]... [= RESULT], and writes them with the result. Each element is
 * reduced at WIDTH places of arrays, by each level of the arithmetic and over random maps, which
 * must agree. Exits 1 where they do not, 2 at a line that is none.
 */
#include <stdio.h>

#include "maps.h"
#include "types.h"

#define WIDTH 67

static int by_name(const char *const *names, int n, const char *name)
{
	int i;

	for (i = 0; i < n; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

static char leaves[MAPS_RANKS][WIDTH * 8];
static uint64_t factors[MAPS_RANKS];
static struct tree_part parts[MAPS_RANKS];

static bool read_leaf(struct tree_reduction *red, const char *word)
{
	size_t size = tree_leaf_size(red->type), i;
	uint32_t r = red->ranks++;
	unsigned long long bits;
	char *end;

	if (red->ranks > MAPS_RANKS)
		return false;
	bits = strtoull(word, &end, 16);
	for (i = 0; i < WIDTH; i++)
		memcpy(leaves[r] + i * size, &bits, size);
	parts[r] = (struct tree_part){ { r, r + 1 }, leaves[r], NULL };
	if (*end == '*') {
		factors[r] = strtoull(end + 1, &end, 16);
		parts[r].scale = &factors[r];
	}
	return end != word && !*end;
}

/* The bits of the reduction; *agreed: at all places, levels and maps. */
static uint64_t result(const struct tree_reduction *red, bool *agreed)
{
	size_t size = tree_leaf_size(red->type), i;
	uint64_t bits = 0, one;
	char out[WIDTH * 8];
	unsigned int level;
	bool first = true;
	struct map m;

	for (level = 0; tree_level_name(level); level++) {
		if (!tree_use_level(level))
			continue;
		map_random(&m, red->ranks);
		memset(out, 0xa5, sizeof(out));
		if (map_reduce(red, &m, parts, out, WIDTH) < 0)
			*agreed = false;
		for (i = 0; i < WIDTH; i++) {
			one = 0;
			memcpy(&one, out + i * size, size);
			if (first)
				bits = one;
			else if (one != bits)
				*agreed = false;
			first = false;
		}
	}
	return bits;
}

int main(void)
{
	char line[4096], *word, *rest;
	bool agreed = true;

	while (fgets(line, sizeof(line), stdin)) {
		struct tree_reduction red = { 0 };
		int type, op;
		uint64_t bits;

		line[strcspn(line, "=\n")] = '\0';
		while (*line && line[strlen(line) - 1] == ' ')
			line[strlen(line) - 1] = '\0';
		printf("%s", line);
		if (!(word = strtok_r(line, " ", &rest)))
			continue;
		type = by_name(type_names, TREE_TYPES, word);
		word = strtok_r(NULL, " ", &rest);
		op = word ? by_name(op_names, TREE_OPS, word) : -1;
		if (type < 0 || op < 0)
			return 2;
		red.type = type;
		red.op = op;
		while ((word = strtok_r(NULL, " ", &rest)))
			if (!read_leaf(&red, word))
				return 2;
		bits = result(&red, &agreed);
		printf(" = %0*llx\n", (int)(2 * tree_leaf_size(red.type)),
		       (unsigned long long)bits);
		if (!agreed) {
			fprintf(stderr,
			        "the places, levels or maps do not agree on the last line\n");
			return 1;
		}
	}
	return 0;
}
