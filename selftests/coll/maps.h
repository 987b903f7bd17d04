/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maps.h - a reduction as hosts and devices do it: any map from ranks to devices, and to hosts
 */
#ifndef SELFTESTS_COLL_MAPS_H
#define SELFTESTS_COLL_MAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tree.h"

#define MAPS_RANKS 64

static uint64_t maps_seed = 88172645463325252ull;

static inline uint32_t rnd(uint32_t n)
{
	maps_seed ^= maps_seed << 13;
	maps_seed ^= maps_seed >> 7;
	maps_seed ^= maps_seed << 17;
	return (uint32_t)(maps_seed >> 33) % n;
}

/* Which device has each rank, and which host each device. */
struct map {
	uint32_t device[MAPS_RANKS], host[MAPS_RANKS];
};

static inline void map_random(struct map *m, uint32_t ranks)
{
	uint32_t devices = 1 + rnd(ranks), hosts = 1 + rnd(devices), i;

	for (i = 0; i < ranks; i++) {
		m->device[i] = rnd(devices);
		m->host[i] = rnd(hosts);
	}
}

static inline int by_rank(const void *a, const void *b)
{
	const struct tree_part *l = a, *r = b;

	return l->node.lo < r->node.lo ? -1 : l->node.lo > r->node.lo;
}

/*
 * Makes the largest nodes of a set from parts that lie within it, and appends them to out. Partials
 * are allocated; those of a round before are freed if mine.
 */
static inline int map_gather(const struct tree_reduction *red, const struct tree_part *parts,
                             uint32_t n, size_t count, bool mine, struct tree_part *out,
                             uint32_t *nout)
{
	struct tree_node nodes[MAPS_RANKS];
	uint64_t has[1] = { 0 };
	uint32_t i, j, k, nnodes;

	for (i = 0; i < n; i++)
		for (k = parts[i].node.lo; k < parts[i].node.hi; k++)
			has[0] |= 1ull << k;
	nnodes = tree_cover(red->ranks, has, nodes, MAPS_RANKS);
	for (i = j = 0; i < nnodes; i++) {
		struct tree_part *p = &out[(*nout)++];

		for (k = j; j < n && parts[j].node.hi <= nodes[i].hi; j++)
			;
		if (j - k == 1) {
			*p = parts[k];
			continue;
		}
		*p = (struct tree_part){ nodes[i], NULL, NULL };
		p->data = malloc(count * 8 + 1);
		/* The root's own rounding is for the end. */
		if (nodes[i].hi - nodes[i].lo == red->ranks) {
			free((void *)p->data);
			*nout += j - k - 1;
			memcpy(p, &parts[k], (j - k) * sizeof(*p));
			continue;
		}
		if (tree_reduce(red, &parts[k], j - k, (void *)p->data, count))
			return -1;
		for (; k < j; k++)
			if (mine && parts[k].node.hi - parts[k].node.lo > 1)
				free((void *)parts[k].data);
	}
	return 0;
}

/* One level of the map: the parts of each holder, gathered. */
static inline int map_level(const struct tree_reduction *red, const uint32_t *holder,
                            const struct tree_part *in, uint32_t nin, size_t count, bool mine,
                            struct tree_part *out)
{
	struct tree_part some[MAPS_RANKS];
	uint32_t h, i, n, nout = 0;

	for (h = 0; h < MAPS_RANKS; h++) {
		for (i = n = 0; i < nin; i++)
			if (holder[i] == h)
				some[n++] = in[i];
		if (n && map_gather(red, some, n, count, mine, out, &nout))
			return -1;
	}
	return (int)nout;
}

/*
 * Reduces leaves as a map's devices would, then its hosts, then one finisher. Returns the number of
 * parts that the finisher got, or -1.
 */
static inline int map_reduce(const struct tree_reduction *red, const struct map *m,
                             const struct tree_part *leaves, void *dst, size_t count)
{
	struct tree_part devices[MAPS_RANKS], hosts[MAPS_RANKS];
	uint32_t holder[MAPS_RANKS], i;
	int n, err;

	n = map_level(red, m->device, leaves, red->ranks, count, false, devices);
	if (n < 0)
		return -1;
	memcpy(hosts, devices, n * sizeof(hosts[0]));
	qsort(hosts, n, sizeof(hosts[0]), by_rank);
	for (i = 0; i < (uint32_t)n; i++)
		holder[i] = m->host[m->device[hosts[i].node.lo]];
	n = map_level(red, holder, hosts, n, count, true, devices);
	if (n < 0)
		return -1;
	qsort(devices, n, sizeof(devices[0]), by_rank);
	err = tree_reduce(red, devices, n, dst, count);
	for (i = 0; i < (uint32_t)n; i++)
		if (devices[i].node.hi - devices[i].node.lo > 1)
			free((void *)devices[i].data);
	return err ? -1 : n;
}

#endif /* SELFTESTS_COLL_MAPS_H */
