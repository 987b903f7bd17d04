// SPDX-License-Identifier: Apache-2.0
/*
 * config.c - the versioned structs of NCCL's interface
 *
 * They begin with their size and a magic number and have grown at their ends alone. A program's struct is
 * copied over one of the newest layout that is filled with "not set", as far as it goes.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_i.h"

struct head {
	size_t size;
	unsigned int magic, version;
};

/* ncclConfig_t of 2.31. */
struct layout {
	struct head head;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share, traffic_class;
	const char *comm_name;
	int collnet, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric;
	int graph_usage, rma_contexts, max_p2p_peers, graph_stream_ordering, launch_order_implicit;
	int rma_signals, rma_eager, host_cft, nvls_host;
};

/* ncclCollConfig_t of 2.32. */
struct call_layout {
	struct head head;
	const void *ext;
	int min_ctas, max_ctas, nvls_ctas, cga_cluster_size;
	const char *algorithm;
	int force_algorithm, cta_policy;
	uint64_t profiler_tag;
	void *launch_event;
};

#define UNSET INT_MIN

LOCAL const struct config config_default = { .blocking = 1 };

/* Copies a struct that begins with a head over `to`, which has room for `size` bytes. */
static ncclResult_t take(void *to, size_t size, const void *from, const char *what)
{
	struct head h;

	memcpy(&h, from, sizeof(h));
	if (h.magic != API_MAGIC || h.size < sizeof(h))
		return failed(ncclInvalidArgument, "%s was not initialized with its INITIALIZER", what);
	memcpy(to, from, h.size < size ? h.size : size);
	return ncclSuccess;
}

static ncclResult_t flag(const char *name, int value, int *out)
{
	if (value == UNSET)
		return ncclSuccess;
	if (value != 0 && value != 1)
		return failed(ncclInvalidArgument, "ncclConfig_t: %s is %d, not 0 or 1", name, value);
	*out = value;
	return ncclSuccess;
}

static ncclResult_t at_least(const char *name, int value, int least)
{
	if (value != UNSET && value < least)
		return failed(ncclInvalidArgument, "ncclConfig_t: %s is %d", name, value);
	return ncclSuccess;
}

/* NCCL_COMM_BLOCKING counts more than the program, as in NCCL. */
static void environment(struct config *c)
{
	const char *s = getenv("NCCL_COMM_BLOCKING");

	if (s && (!strcmp(s, "0") || !strcmp(s, "1")))
		c->blocking = *s == '1';
}

ncclResult_t config_read(const ncclConfig_t *c, const struct config *of, struct config *out)
{
	struct layout l = { .blocking = UNSET, .cga_cluster_size = UNSET, .min_ctas = UNSET,
			    .max_ctas = UNSET, .split_share = UNSET };

	*out = *of;
	if (c) {
		TRY(take(&l, sizeof(l), c, "ncclConfig_t"));
		TRY(flag("blocking", l.blocking, &out->blocking));
		TRY(flag("splitShare", l.split_share, &out->split_share));
		TRY(at_least("cgaClusterSize", l.cga_cluster_size, 0));
		TRY(at_least("minCTAs", l.min_ctas, 1));
		TRY(at_least("maxCTAs", l.max_ctas, 1));
		if (l.min_ctas != UNSET && l.max_ctas != UNSET && l.min_ctas > l.max_ctas)
			return failed(ncclInvalidArgument, "ncclConfig_t: minCTAs is %d, maxCTAs %d",
				      l.min_ctas, l.max_ctas);
	}
	environment(out);
	return ncclSuccess;
}

ncclResult_t config_check_call(const char *call, const ncclCollConfig_t *c)
{
	struct call_layout l = { .force_algorithm = 1 };

	if (!c)
		return ncclSuccess;
	TRY(take(&l, sizeof(l), c, "ncclCollConfig_t"));
	if (l.algorithm && *l.algorithm && l.force_algorithm)
		return failed(ncclInvalidUsage, "%s: algorithm %.40s is not supported: operations follow one "
			      "tree", call, l.algorithm);
	if (l.launch_event)
		return failed(ncclInvalidUsage, "%s: launchCompletionEvent is not supported: no kernel is "
			      "launched", call);
	return ncclSuccess;
}
